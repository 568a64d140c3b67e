"""What a model and a tokenizer compute, as fingerprints: what they make of fixed tokens and of fixed texts.

Parameters, buffers and configuration do not say what an object computes: a `forward` can be replaced, a module can have
any attribute, and a layer can be called twice. So the model is run, and what each of its modules receives and returns
is hashed. That includes the hidden states of all layers and what is read inside the blocks.

The exact bytes are hashed. Rounded values would not tell a small change from none, and a value beside the border of two
roundings could still go either way. Exact bytes repeat if the order of sums does, so the model is always run on the
processor, in float32, with one thread, one input after the other. On another processor or with another version of torch
the bytes can differ; this costs an extraction and no more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from inspect import signature
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, Any

from probing.models.examination import SAME, examination_inputs, largest_change, run, with_the_same_weights
from probing.models.max_length import max_length_of

if TYPE_CHECKING:
    from torch import Tensor, nn


# Number of token type ids that is assumed if the configuration gives none. XLNet needs no limit: it only compares
# whether two tokens have the same type.
_ANY_TYPE = 2**7


def n_token_types(encoder: nn.Module, tokenizer: Any, of_pairs: bool = False) -> int:
    """Return how many token type ids an encoder is given, as in `encoder(**tokenizer(text))`; 0 if none.

    For pairs, tokenizers compute types even if they do not return them. An encoder is given these if it tells the two
    sentences apart by them. Its argument `token_type_ids` alone does not show this: RoBERTa has a single type, and
    GPT-2 treats a type as a token id, whose embedding it adds. So a copy is run with all types 0, which must give the
    same hidden states as no types.

    Args:
        encoder: A model in evaluation mode.
        tokenizer: Its tokenizer.
        of_pairs: Whether it reads pairs of sentences.
    """
    import torch

    n_types = int(getattr(encoder.config, "type_vocab_size", _ANY_TYPE))
    if "token_type_ids" not in signature(encoder.forward).parameters:
        return 0
    if "token_type_ids" in tokenizer.model_input_names:
        return n_types
    if not of_pairs or n_types < 2:
        return 0
    inputs = examination_inputs(encoder, tokenizer.pad_token_id or 0)
    alone = {name: values[:1] for name, values in inputs.items()}  # the first sequence has no padding
    with torch.inference_mode():
        copy = with_the_same_weights(encoder)
        plain = run(copy, alone).last
        zeros = run(copy, {**alone, "token_type_ids": torch.zeros_like(alone["input_ids"])}).last
    # Equal but for rounding: with zeros XLNet adds a constant to what a softmax takes, in any dtype.
    return n_types if largest_change(zeros, plain) <= max(SAME, 8 * torch.finfo(plain.dtype).eps) else 0


# Lengths of the inputs, as far as the model takes them; the last is what most encoders take at most.
LENGTHS = (1, 2, 5, 12, 40, 512)
# Indices of the two inputs that are also read together, as a padded batch; the longer one is also read as a pair.
_LONG, _SHORT = 3, 2
# The fractional parts of its multiples are evenly spread over any vocabulary, however many are taken.
_GOLDEN_RATIO = 0.6180339887498949
# Public attributes of a module that change no hidden state in evaluation mode.
_OF_NO_EFFECT = ("training", "gradient_checkpointing", "name_or_path", "warnings_issued")
# Letters with and without case, accents and ligatures, numbers, blanks, and several scripts.
_TEXTS = (
    "The neurons of a LAYER don't re-read what they've read: 1,234.5 times, (nearly) always!",
    "  two  blanks,\ta tab\nand a line ",
    "Élan naïve ﬁne Straße İstanbul µ½ e\u0301",
    "日本語のテキスト и слова 🙂 नमस्ते",
)
_Record = tuple[str, str]


class Unsteady(Exception):
    """A module makes something else of the same tokens when they are read again; the message is its name."""


# --- the model ---


def model_behaviour(model: nn.Module, encoder: nn.Module, tokenizer: Any) -> str:
    """SHA-256 (hex) of what each module of a model receives and returns for fixed tokens.

    Args:
        model: A model on the processor, in float32 and evaluation mode.
        encoder: The part of it that computes hidden states, or the model itself.
        tokenizer: Its tokenizer, which knows special tokens and the maximum length.

    Raises:
        Unsteady: If the model does not compute the same again.
        Exception: If the model does not run on tokens alone.
    """
    import torch

    with _one_thread(), torch.random.fork_rng(devices=[]), torch.inference_mode():
        *short, longest = _inputs(encoder, tokenizer)
        first = _records(model, short)
        try:
            rest = _records(model, [longest])
        except Exception as error:  # the user's text may well be shorter
            rest = [("", type(error).__name__)]
        again = _records(model, short)  # by now, a state that passes change has changed
    if first != again:
        changed = (one[0] for one, other in zip(first, again, strict=False) if one != other)
        raise Unsteady(next(changed, ""))
    # ModernBERT calls modules in the order of a set, which differs from process to process.
    return hashlib.sha256(json.dumps(sorted(first + rest)).encode()).hexdigest()


def _inputs(encoder: nn.Module, tokenizer: Any) -> Iterator[dict[str, Tensor]]:
    """Yield a padded batch, a pair if the model tells its two texts apart, and inputs of ascending lengths."""
    import torch

    config: Any = encoder.config
    longest = max_length_of(config, tokenizer, lambda _: encoder)
    tokens = _tokens(encoder.get_input_embeddings().num_embeddings, tokenizer.all_special_ids)  # type: ignore[operator]
    rows = [torch.tensor([[*islice(tokens, min(n, longest))]]) for n in LENGTHS]
    pad_token_id, long, short = tokenizer.pad_token_id or 0, rows[_LONG], rows[_SHORT]
    beside = torch.full_like(long, pad_token_id)
    beside[:, : short.shape[1]] = short
    mask = torch.ones_like(beside)
    mask[:, short.shape[1] :] = 0
    yield {"input_ids": torch.cat([long, beside]), "attention_mask": torch.cat([torch.ones_like(long), mask])}
    if n_token_types(encoder, tokenizer, of_pairs=True) > 1:
        types = torch.arange(long.shape[1])[None] * 2 // long.shape[1]
        yield {"input_ids": long, "attention_mask": torch.ones_like(long), "token_type_ids": types}
    yield from ({"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows)


def _tokens(vocab_size: int, special: Sequence[int]) -> Iterator[int]:
    """Yield the special tokens, and then tokens that are spread over the whole vocabulary."""
    yield from sorted(token for token in special if token < vocab_size)
    yield from (int(vocab_size * (i * _GOLDEN_RATIO % 1)) for i in count())


def _records(model: nn.Module, inputs: Sequence[Mapping[str, Tensor]]) -> list[_Record]:
    """Return for each call of a module its name, and the SHA-256 of what it received and returned."""
    records: list[_Record] = []

    def note(name: str, *seen: Any) -> None:
        digest = hashlib.sha256()
        for tensor in _tensors(seen):
            add_tensor(digest, tensor)
        records.append((name, digest.hexdigest()))

    handles = [
        module.register_forward_hook(
            lambda _, args, kwargs, made, name=name: note(name, args, kwargs, made), with_kwargs=True
        )
        for name, module in model.named_modules()
    ]
    try:
        for batch in inputs:
            model(**batch, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    return records


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested collections, those of a dict in the order of its keys."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors([value[key] for key in sorted(value, key=str)])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def add_tensor(digest: Any, tensor: Tensor) -> None:
    """Add the dtype, the shape and the bytes of a tensor to a digest."""
    import torch

    digest.update(f"{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    flat = tensor.detach().cpu().reshape(-1)
    if flat.stride() != (1,):  # a single value may have another stride and count as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    digest.update(flat.view(torch.uint8).numpy())


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def attributes(model: nn.Module) -> Iterator[str]:
    """Yield the public attributes of all modules that JSON can express, such as numbers; a small one may change little.

    Lists and dicts of such values are among them, tensors are not.
    """
    for path, module in model.named_modules():
        for name, value in sorted(vars(module).items()):
            if not name.startswith("_") and name not in _OF_NO_EFFECT:
                with suppress(TypeError, ValueError):  # JSON cannot express it
                    yield f"{path}.{name} {json.dumps(value, sort_keys=True)}"


# --- the tokenizer ---


def tokenizer_behaviour(tokenizer: Any) -> str:
    """SHA-256 (hex) of what a tokenizer makes of fixed texts and pairs, whole and cut; its own state stays."""
    tokenizer = deepcopy(tokenizer)
    texts = [*_TEXTS, " and ".join(tokenizer.all_special_tokens)]
    pairs = [([text],) for text in texts] + [([a], [b]) for a, b in pairwise(texts)]
    lengths = (tokenizer.num_special_tokens_to_add(pair=True) + 6, LENGTHS[-1])
    made = [_pieces(tokenizer, pair, length) for length in lengths for pair in pairs]
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()


def _pieces(tokenizer: Any, texts: Sequence[list[str]], max_length: int) -> Any:
    """Return what a tokenizer makes of one text or pair, or the error of one that has no token for what is unknown."""
    try:
        (encoding,) = tokenizer(*texts, truncation=True, max_length=max_length).encodings
    except Exception as error:  # tokenizers raises a plain Exception
        return str(error)
    return encoding.ids, encoding.offsets, encoding.word_ids, encoding.type_ids
