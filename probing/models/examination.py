"""Inputs for the examination of an encoder, and the values that its modules receive and return."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from probing.errors import UserError, as_clause
from probing.runtime import memory_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

# --------------------------------------------------------------------------------------------------------------------
# The length of the longest sequence that a model accepts, also where its configuration does not say it.
# --------------------------------------------------------------------------------------------------------------------

# Names that configurations have for the length of the longest sequence; of several, the first counts.
_NAMES = (
    "max_encoder_position_embeddings", "max_position_embeddings", "max_source_positions", "n_positions", "n_ctx",
    "max_seq_len", "max_seq_length", "seq_length", "context_length", "model_max_length", "max_sequence_length",
    "max_target_positions",
)  # fmt: skip


def max_length_of(config: Any, tokenizer: Any, make: Callable[[Any], Any] | None = None) -> int:
    """Return the length of the longest sequence that the model accepts, special tokens included.

    Models with only relative positions have no limit; transformers then gives 10^30. `make` replaces `AutoModel`.
    """
    limits = [tokenizer.model_max_length]
    named = (getattr(config, name, None) for name in _NAMES)
    rows = next((rows for rows in named if isinstance(rows, int) and rows > 0), 0)  # XLNet says -1
    if rows:
        limits.append(rows - _rows_before_the_first_position(config, rows, make))
    return int(min(limits))


def _rows_before_the_first_position(config: Any, rows: int, make: Callable[[Any], Any] | None) -> int:
    """Return the number of rows of the position table before position 0: in RoBERTa, up to the row of padding."""
    # Not only `nn.Embedding` has a padding index: I-BERT's table is quantised.
    tables = (
        module
        for name, module in outline(config, make).named_modules()
        if "position" in name and getattr(getattr(module, "weight", None), "shape", ())[:1] == (rows,)
    )
    behind = (getattr(table, "padding_idx", None) for table in tables)
    return next((index + 1 for index in behind if index is not None), 0)


def outline(config: Any, make: Callable[[Any], Any] | None) -> Any:
    """Return a model of a configuration, built by `make` or `AutoModel`, whose tensors have shapes and no values."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return make(config) if make else AutoModel.from_config(config, trust_remote_code=False)


@contextmanager
def with_max_length_hint(encoder: nn.Module, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Turn the error of a model for a too long sequence into a `UserError` with the longest length that it accepts.

    Running the model determines this length, because not every configuration names it.
    """
    import torch

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each family raises its own types
        n_tokens = inputs["input_ids"].shape[1]
        longest = None
        if not isinstance(error, torch.OutOfMemoryError) and "alloc" not in str(error):
            longest = _longest(encoder, inputs["input_ids"])
        if longest is None:
            raise
        kind = encoder.config.model_type  # type: ignore[union-attr]
        raise UserError(
            f"this model ({kind}) takes at most {longest} tokens, as running it shows (with more: {as_clause(error)}), "
            f"and the text has a sentence of {n_tokens}; give `--max_length {longest}`."
        ) from None


def _longest(encoder: nn.Module, input_ids: Tensor) -> int | None:
    """Return the longest shorter sequence that an encoder runs on; None if it runs on this length, or on none."""
    import torch

    n_tokens, token = input_ids.shape[1], input_ids[:1, :1]

    def runs(length: int) -> bool:
        repeated = token.expand(1, length)
        try:
            encoder(input_ids=repeated, attention_mask=torch.ones_like(repeated))
        except Exception:  # what else it cannot do was found by `examine`
            return False
        return True

    if n_tokens < 2 or runs(n_tokens) or not runs(1):
        return None
    return bisect_left(range(n_tokens), True, lo=2, key=lambda length: not runs(length)) - 1


class Unreadable(Exception):
    """A model returns something other than one vector per token; the message, after the model's name, describes it."""


@dataclass(frozen=True)
class EncoderOutput:
    """Output of an encoder for a batch: last state, states of layers, attention of blocks as returned.

    States have shape (batch, sequence, d_model); `states` and `attentions` are empty if not returned.
    """

    last: Tensor
    states: tuple[Tensor, ...] = ()
    attentions: tuple[Any, ...] = ()


def run(encoder: nn.Module, inputs: Mapping[str, Tensor], **options: bool) -> EncoderOutput:
    """Run an encoder and read its output, with names or as a tuple that begins with the last hidden state.

    `inputs` are `input_ids` and `attention_mask`, shape (batch, sequence); `options` request further output, such as
    `output_hidden_states=True`. `Unreadable` is raised if there is no last hidden state.
    """
    if "return_dict" in signature(encoder.forward).parameters:
        options["return_dict"] = True  # where it is an argument, it may be false by default
    output = encoder(**inputs, **options)
    if isinstance(output, tuple | list):
        # Only the hidden states of all layers are a sequence of their own.
        last, attentions = vectors_in(output), None
        states = next((element for element in output if isinstance(element, tuple | list)), None)
    else:
        last, states = getattr(output, "last_hidden_state", None), getattr(output, "hidden_states", None)
        attentions = getattr(output, "attentions", None)
    if last is None:
        raise Unreadable(f"returns {type(output).__name__} without a last hidden state")
    length = inputs["input_ids"].shape[1]
    read = [vectors_of_tokens(state, length) for state in states or ()]
    return EncoderOutput(last, tuple(state for state in read if state is not None), tuple(attentions or ()))


def vectors_of_tokens(value: Any, length: int) -> Tensor | None:
    """Return the vectors in a value without those beyond `length`, which some families append inside blocks."""
    vectors = vectors_in(value)
    return vectors[:, :length] if vectors is not None and vectors.dim() == 3 else vectors


def vectors_in(value: Any) -> Tensor | None:
    """Return the first floating-point tensor in a value, such as a sequence or a mapping; None without any."""
    import torch

    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, Mapping):  # such as the outputs of transformers
        value = tuple(value.values())
    if not isinstance(value, tuple | list):
        return None
    return next((vectors for element in value if (vectors := vectors_in(element)) is not None), None)


def vectors_received(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the vectors that a call of a module receives; None without any."""
    return vectors_in((*args, *kwargs.values()))


@contextmanager
def hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks of modules on leaving."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class ModuleCall(NamedTuple):
    """One call of a module, with the vectors that it received and returned; None without any."""

    module: Any
    states_in: Any
    states_out: Any


@contextmanager
def inputs_of(modules: Iterable[nn.Module]) -> Iterator[list[ModuleCall]]:
    """Yield a list that gets each call of these modules, when it begins."""
    calls: list[ModuleCall] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        calls.append(ModuleCall(module, vectors_received(args, kwargs), None))

    with hooks([module.register_forward_pre_hook(note, with_kwargs=True) for module in dict.fromkeys(modules)]):
        yield calls


@contextmanager
def calls_of(modules: Iterable[nn.Module]) -> Iterator[list[ModuleCall]]:
    """Yield a list that gets each call of these modules, when it ends."""
    calls: list[ModuleCall] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append(ModuleCall(module, vectors_received(args, kwargs), vectors_in(output)))

    with hooks([module.register_forward_hook(note, with_kwargs=True) for module in dict.fromkeys(modules)]):
        yield calls


def with_vectors(args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Tensor) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a call with its vectors replaced."""
    for i, argument in enumerate(args):
        if vectors_in(argument) is not None:
            return (*args[:i], value, *args[i + 1 :]), dict(kwargs)
    name = next(name for name, argument in kwargs.items() if vectors_in(argument) is not None)
    return args, {**kwargs, name: value}


def with_the_same_weights(encoder: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters, which another thread can run with other hooks.

    Buffers are copied: some families write to them in a forward pass, such as rotary frequencies that depend on the
    longest sentence of a batch.
    """
    shared: dict[int, Tensor] = {id(parameter): parameter for parameter in encoder.parameters()}
    return deepcopy(encoder, shared | {id(buffer): buffer.clone() for buffer in encoder.buffers()})


def in_float32(encoder: nn.Module) -> nn.Module | None:
    """Return a copy in float32, sharing parameters that are float32 already; None if it does not fit in memory."""
    import torch
    from torch import nn

    parameters = list(encoder.parameters())
    further = sum(4 * parameter.numel() for parameter in parameters if parameter.dtype != torch.float32)
    room, device = _room(parameters[0].device), parameters[0].device
    current_bytes = 0 if device.type == "cuda" else sum(parameter.nbytes for parameter in parameters)
    if room is not None and current_bytes + further > room:
        return None
    converted: dict[int, Tensor] = {}
    for parameter in parameters:
        is_wider = parameter.is_floating_point() and parameter.dtype != torch.float32
        converted[id(parameter)] = nn.Parameter(parameter.float(), requires_grad=False) if is_wider else parameter
    for buffer in encoder.buffers():
        is_wider = buffer.is_floating_point() and buffer.dtype != torch.float32
        converted[id(buffer)] = buffer.float() if is_wider else buffer.clone()
    copy = deepcopy(encoder, converted)
    copy.config.dtype = torch.float32
    return copy


def _room(device: torch.device) -> int | None:
    """Return the bytes of memory that are free on an accelerator, or all of the machine's; None if unknown."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_bytes()


# Length of the two sequences that an encoder is examined with, and number of padding tokens in the second one. The
# length is odd to reveal families that pad their input to a multiple of some number.
LENGTH, PADDING = 11, 4
# Largest mean change of those sequences' hidden states, relative to their mean, that counts as rounding in float32.
_ROUNDING = 1e-5
# Largest change of any token's hidden state, relative to its norm, that counts as rounding in float32. The same
# sentence in other batches differs by up to 3e-6 in the families that are tested and in trained models, and by 1e-2 and
# more where padding is mixed in or another kind of attention is chosen.
SAME = 1e-3
# Entries of a configuration that may limit a kind of attention or of positions, and the most limits that are crossed.
_NAMES_A_LIMIT = re.compile("position|window|block|chunk|context|length|local")
_MOST_LIMITS = 4


def examination_inputs(encoder: nn.Module, pad_token_id: int) -> dict[str, Tensor]:
    """Return two sequences of `LENGTH` ordinary tokens, of which the last `PADDING` of the second are padding."""
    import torch

    config: Any = encoder.config
    device = next(encoder.parameters()).device
    # Most families give special tokens the lowest ids; any other id will do.
    input_ids = (pad_token_id + 5 + torch.arange(2 * LENGTH, device=device).view(2, LENGTH)) % config.vocab_size
    attention_mask = torch.ones_like(input_ids)
    input_ids[1, -PADDING:], attention_mask[1, -PADDING:] = pad_token_id, 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def unpadded_inputs(encoder: nn.Module, pad_token_id: int) -> dict[str, Tensor]:
    """Return a single sequence of ordinary tokens, without padding."""
    return {name: values[:1] for name, values in examination_inputs(encoder, pad_token_id).items()}


def padding_is_neutral(encoder: nn.Module, inputs: Mapping[str, Tensor], states: Sequence[Tensor]) -> bool:
    """Return whether the padded of the two sequences has the same hidden states without padding, in every layer."""
    alone = {name: values[1:, :-PADDING] for name, values in inputs.items()}
    by_itself = run(encoder, alone, output_hidden_states=True).states
    changes = (_mean_change(state[1:, :-PADDING], unpadded) for state, unpadded in zip(states, by_itself, strict=True))
    return max(changes) <= _ROUNDING


def lengths_are_neutral(encoder: nn.Module, lengths: Sequence[int], pad_token_id: int, name: str) -> bool:
    """Return whether sentences have the same last hidden states in a batch with the longest sentence as alone.

    Some families choose the kind of attention, or the frequencies of their positions, by the longest sentence of the
    batch. Examined are the shortest and the longest sentence, and lengths on both sides of each limit that the
    configuration names between them. The encoder, in float32, must not have been run yet; only copies are run.
    `lengths` is the number of tokens of each sentence that will be read.

    Raises:
        UserError: If the states of a sentence depend on the sentences read before, or on chance, or if the model does
            not run on the longest sentence.
    """
    rows = _examined_lengths(encoder.config, lengths)

    def read(model: nn.Module, *together: int) -> Tensor:
        inputs = _sequences(encoder, together, pad_token_id)
        with with_max_length_hint(model, inputs):
            return run(model, inputs).last

    # A kind of attention that was chosen once may stay: so each order begins with a model that has read nothing.
    upwards, downwards = with_the_same_weights(encoder), with_the_same_weights(encoder)
    alone = {n: read(upwards, n)[0] for n in rows}
    for n in reversed(rows):
        if (change := largest_change(read(downwards, n)[0], alone[n])) > SAME:
            limits = ", ".join(map(str, sorted(_limits(encoder.config)))) or "none"
            raise UserError(
                f"`--model {name}` ({encoder.config.model_type}) gives a sentence of {n} tokens hidden states that "  # type: ignore[union-attr]
                f"depend on what it read before, or on chance (they differ by {change:.1%}); choose another model, or "
                f"by `--max_length` sentences on one side of its limits (its configuration names {limits})."
            )
    longest = rows[-1]
    beside = ((n, read(upwards, n, longest)) for n in rows[:-1])
    return all(
        largest_change(both[0, :n], alone[n]) <= SAME and largest_change(both[1], alone[longest]) <= SAME
        for n, both in beside
    )


def relative_changes(actual: Tensor, expected: Tensor) -> Tensor:
    """Return the distance of each token's two states, relative to the norm of the expected state."""
    actual, expected = actual.float(), expected.float()
    return (actual - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)


def largest_change(actual: Tensor, expected: Tensor) -> float:
    """Return the largest of the relative changes."""
    return float(relative_changes(actual, expected).max())


def _examined_lengths(config: Any, lengths: Sequence[int]) -> list[int]:
    positive = [int(n) for n in lengths if n > 0]
    first, last = min(positive, default=1), max(positive, default=1)
    limits = sorted(n for n in _limits(config) if first <= n < last)[-_MOST_LIMITS:]
    return sorted({first, last, *limits, *(n + 1 for n in limits)})


def _limits(config: Any) -> set[int]:
    """Return the numbers in a configuration whose names may be names of limits."""
    entries = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return {n for name, n in _numbers(entries) if n > 1 and _NAMES_A_LIMIT.search(name)}


def _numbers(entries: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _numbers({f"{name} {inner}": element for inner, element in value.items()})
        for element in value if isinstance(value, list | tuple) else [value]:
            if type(element) is int:
                yield str(name), element


def _sequences(encoder: nn.Module, lengths: Sequence[int], pad_token_id: int) -> dict[str, Tensor]:
    """Return sequences of these lengths as one batch, padded at the end."""
    import torch

    config: Any = encoder.config
    device = next(encoder.parameters()).device
    columns = torch.arange(max(lengths), device=device)
    ids = (pad_token_id + 5 + columns) % config.vocab_size
    ids = torch.where(ids == pad_token_id, (pad_token_id + 5) % config.vocab_size, ids)
    mask = columns < torch.tensor(lengths, device=device)[:, None]
    return {"input_ids": torch.where(mask, ids, pad_token_id), "attention_mask": mask.long()}


def _mean_change(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().float().mean() / expected.abs().float().mean().clamp_min(1e-30))


# --------------------------------------------------------------------------------------------------------------------
# What a model and a tokenizer compute, as fingerprints: what they make of fixed tokens and of fixed texts.
# --------------------------------------------------------------------------------------------------------------------

# Number of token type ids that is assumed if the configuration gives none. XLNet needs no limit: it only compares
# whether two tokens have the same type.
_ANY_TYPE = 2**7


def n_token_types(encoder: nn.Module, tokenizer: Any, of_pairs: bool = False) -> int:
    """Return the number of token type ids that an encoder is given, as in `encoder(**tokenizer(text))`; 0 if none.

    For pairs (`of_pairs`), tokenizers compute types even if they do not return them. An encoder is given these if it
    distinguishes the two sentences by them. Its argument `token_type_ids` alone does not show this: RoBERTa has a
    single type, and GPT-2 treats a type as a token id, whose embedding it adds. So a copy is run with all types 0,
    which must give the same hidden states as no types.
    """
    import torch

    n_types = int(getattr(encoder.config, "type_vocab_size", _ANY_TYPE))
    if "token_type_ids" not in signature(encoder.forward).parameters:
        return 0
    if "token_type_ids" in tokenizer.model_input_names:
        return n_types
    if not of_pairs or n_types < 2:
        return 0
    alone = unpadded_inputs(encoder, tokenizer.pad_token_id or 0)
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
    """A module computes other values for the same tokens when they are read again; the message is its name."""


# --- the model ---


def model_behaviour(model: nn.Module, encoder: nn.Module, tokenizer: Any) -> str:
    """Return the SHA-256 (hex) of the inputs and outputs of each module of a model for fixed tokens.

    The model is on the processor, in float32 and evaluation mode; `encoder` is its part that computes hidden states. An
    error is raised if the model does not run on tokens alone, `Unsteady` if it does not compute the same again.
    """
    import torch

    with _single_thread(), torch.random.fork_rng(devices=[]), torch.inference_mode():
        *short, longest = _inputs(encoder, tokenizer)
        first = _records(model, short)
        try:
            rest = _records(model, [longest])
        except Exception as error:  # the user's text may well be shorter
            rest = [("", type(error).__name__)]
        again = _records(model, short)  # by now, a state that passes change has changed
    if first != again:
        changed = (record[0] for record, other in zip(first, again, strict=False) if record != other)
        raise Unsteady(next(changed, ""))
    # ModernBERT calls modules in the order of a set, which differs from process to process.
    return hashlib.sha256(json.dumps(sorted(first + rest)).encode()).hexdigest()


def _inputs(encoder: nn.Module, tokenizer: Any) -> Iterator[dict[str, Tensor]]:
    """Yield a padded batch, a pair if the model distinguishes its two texts, and inputs of ascending lengths."""
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
    """Return the name of the module and the SHA-256 of its input and output, for each call."""
    records: list[_Record] = []

    def note(name: str, *seen: Any) -> None:
        digest = hashlib.sha256()
        for tensor in _tensors(seen):
            add_tensor(digest, tensor)
        records.append((name, digest.hexdigest()))

    handles = [
        module.register_forward_hook(
            lambda _, args, kwargs, output, name=name: note(name, args, kwargs, output), with_kwargs=True
        )
        for name, module in model.named_modules()
    ]
    with hooks(handles):
        for batch in inputs:
            model(**batch, output_hidden_states=True)
    return records


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested collections, in a dict in the order of its keys."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors([value[key] for key in sorted(value, key=str)])
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)


def add_tensor(digest: Any, tensor: Tensor) -> None:
    """Add the dtype, the shape and the bytes of a tensor to a digest."""
    import torch

    digest.update(f"{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    flat = tensor.detach().cpu().reshape(-1)
    if flat.stride() != (1,):  # a single value may have another stride and count as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    digest.update(flat.view(torch.uint8).numpy())


@contextmanager
def _single_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def attributes(model: nn.Module) -> Iterator[str]:
    """Yield the public attributes of all modules that JSON can express: numbers, lists and dicts, not tensors."""
    for path, module in model.named_modules():
        for name, value in sorted(vars(module).items()):
            if not name.startswith("_") and name not in _OF_NO_EFFECT:
                with suppress(TypeError, ValueError):  # JSON cannot express it
                    yield f"{path}.{name} {json.dumps(value, sort_keys=True)}"


# --- the tokenizer ---


def tokenizer_behaviour(tokenizer: Any) -> str:
    """Return the SHA-256 (hex) of a tokenizer's output for fixed texts and pairs, whole and cut; a copy is run."""
    tokenizer = deepcopy(tokenizer)
    texts = [*_TEXTS, " and ".join(tokenizer.all_special_tokens)]
    pairs = [([text],) for text in texts] + [([a], [b]) for a, b in pairwise(texts)]
    lengths = (tokenizer.num_special_tokens_to_add(pair=True) + 6, LENGTHS[-1])
    encodings = [_pieces(tokenizer, pair, length) for length in lengths for pair in pairs]
    return hashlib.sha256(json.dumps(encodings).encode()).hexdigest()


def _pieces(tokenizer: Any, texts: Sequence[list[str]], max_length: int) -> Any:
    """Return a tokenizer's output for a text or pair, or its error, as of tokenizers without an unknown token."""
    try:
        (encoding,) = tokenizer(*texts, truncation=True, max_length=max_length).encodings
    except Exception as error:  # tokenizers raises a plain Exception
        return str(error)
    return encoding.ids, encoding.offsets, encoding.word_ids, encoding.type_ids
