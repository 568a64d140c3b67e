"""What differs between two checkpoints of a model on the same sentences (after Kovaleva et al. 2019, section 4.3).

The published measure is the cosine of a head's flattened maps before and after fine-tuning. It is high for any two maps
whose rows sum to 1, so it stands beside that of other heads of the layer and that of other sentences of equal length.
The code published with the paper compares maps of 200 x 200 tokens and does not crop them to the sentence. Most rows
are then those of padding, and its figure 5 may show padding; `published_cosines` repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache import ActivationStore, Request, load, tokens_of
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import UserError
from probing.heads.accumulation import AttentionReader
from probing.heads.measures import Accumulator, Kept
from probing.heads.reading import Attention, Batch
from probing.heads.sums import SumsStore
from probing.models import load_config, load_tokenizer
from probing.models.attention_heads import Heads, read_heads
from probing.runtime.float64 import on_float64_device
from probing.statistics.intervals import mean_interval

# Tokens to which the code of Kovaleva et al. pads each sentence, and the most sentences that they compare.
PUBLISHED_LENGTH, PUBLISHED_SENTENCES = 200, 1000
# Most bytes of the other checkpoint's maps that are held; beyond it, its forward pass is repeated for further blocks.
HELD_BYTES = 2**28
SAME, OTHER_HEADS, OTHER_SENTENCES, OTHER_TOKENS = "same", "other heads", "other sentences", "other tokens"
_OF_MAPS = (SAME, OTHER_HEADS, OTHER_SENTENCES)
CHANGE_COLUMNS = ("measure", "of", "layer", "head", "value", "low", "high", "n")


def map_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of flattened maps, shape (batch, heads), float64; exactly 1 for equal maps.

    Args:
        a: Shape (batch, heads, from, to).
        b: Of the same shape.
    """
    first, second = a.double(), b.double()
    product, *squares = ((x * y).sum((2, 3)) for x, y in ((first, second), (first, first), (second, second)))
    return product / (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)


def row_divergences(a: Tensor, b: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of rows in nats, summed over the rows, shape (batch, heads), float64.

    Args:
        a: Maps, shape (batch, heads, from, to); rows of padding are 0.
        b: Maps of the same shape.
    """
    return (_entropies((a + b) / 2) - (_entropies(a) + _entropies(b)) / 2).clamp_min(0)


def _entropies(maps: Tensor) -> Tensor:
    return torch.special.entr(maps).sum((2, 3), dtype=torch.float64)


def others_of_equal_length(lengths: Tensor) -> Tensor:
    """Return for each sentence of a batch the next one of equal length; itself where there is none; shape (batch,).

    Args:
        lengths: Number of tokens of each sentence, shape (batch,).
    """
    found = torch.arange(len(lengths), device=lengths.device)
    for length in lengths.unique():
        members = (lengths == length).nonzero()[:, 0]
        found[members] = members.roll(-1)
    return found


@dataclass(frozen=True)
class Change:
    """The measure: each map compared with that of another checkpoint.

    Args:
        against: The other checkpoint, on the same sentences.
    """

    against: Request
    name: str = "change"

    @property
    def settings(self) -> Mapping[str, Any]:
        """What changes the sums beside model and corpus."""
        return {"version": 1, "against": self.against.key()}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Load the other checkpoint, and return what makes an accumulator for each batch."""
        encoder, pad_token_id = load(self.against)
        heads = AttentionReader.of(encoder, pad_token_id, self.against.source.name).heads
        return lambda batch: _Compared(encoder, heads, batch)


class _Compared:
    def __init__(self, encoder: nn.Module, heads: Heads, batch: Batch) -> None:
        self.encoder, self.heads, self.batch = encoder, heads, batch
        self.others = others_of_equal_length(batch.lengths)
        self.held: dict[int, Tensor] = {}
        self.found: dict[str, list[Tensor]] = {}

    def add(self, attention: Attention) -> None:
        if attention.layer not in self.held:
            self.held = self._read(attention.layer)
        ours, theirs = attention.probabilities, self.held.pop(attention.layer)
        n_heads = ours.shape[1]
        for name, compare in (("cosine", map_cosines), ("jensen_shannon", row_divergences)):
            of_heads = [compare(ours, theirs.roll(k, 1)) for k in range(1, n_heads)]
            found = (
                compare(ours, theirs),
                torch.stack(of_heads).mean(0) if of_heads else torch.zeros_like(ours[:, :, 0, 0], dtype=torch.float64),
                compare(ours, theirs[self.others]),
            )
            self.found.setdefault(name, []).append(torch.stack(found, dim=1))

    def _read(self, first: int) -> dict[int, Tensor]:
        """Return the other checkpoint's maps from a block on, as many as may be held."""
        batch = self.batch
        size = batch.mask.numel() * batch.mask.shape[1] * self.heads.n_heads * 4
        last = first + max(HELD_BYTES // size, 1) - 1
        pairs = (batch.mask[:, :, None] & batch.mask[:, None, :])[:, None]
        held: dict[int, Tensor] = {}

        def give(layer: int, probabilities: Tensor, values: Tensor) -> None:
            if first <= layer <= last:
                held[layer] = torch.where(pairs, on_float64_device(probabilities), 0.0)

        read_heads(self.encoder.to(batch.mask.device), self.heads, give, _inputs(batch.input_ids, batch.mask))
        return held

    def kept(self) -> Kept:
        others = torch.arange(len(self.others), device=self.others.device) != self.others
        return Kept({"has_other": others, **{name: torch.stack(one, dim=2) for name, one in self.found.items()}})


def _inputs(input_ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {"input_ids": input_ids, "attention_mask": mask.long()}


def check_comparable(request: Request, against: Request, option: str = "--against") -> None:
    """Raise a UserError unless two checkpoints have the same tokens, blocks and heads.

    Args:
        request: A checkpoint and the corpus.
        against: The other checkpoint, with the same corpus.
        option: The option that names the other one, for messages.
    """
    typed = f"`{option} {against.source.name}`"
    configs = [load_config(one.source) for one in (request, against)]
    for name, said in (("num_hidden_layers", "blocks"), ("num_attention_heads", "heads"), ("hidden_size", "neurons")):
        mine, other = (getattr(config, name, None) for config in configs)
        if mine != other:
            raise UserError(
                f"{typed} has {other} {said}, and {request.source.name} has {mine}; give two checkpoints of one model."
            )
    ours, theirs = (tokens_of(one, load_tokenizer(one.source)) for one in (request, against))
    if not np.array_equal(ours.input_ids, theirs.input_ids):
        raise UserError(
            f"{typed} divides the corpus into other tokens than {request.source.name}; give two checkpoints with one "
            "tokenizer."
        )


def map_rows(store: SumsStore) -> list[dict[str, Any]]:
    """Return the rows of `change.csv` that concern maps.

    Cosines are means over sentences, and divergences (nats) over queries, each with its interval over sentences. `of`
    says what is compared: the same head and sentence, other heads of the layer, or another sentence of equal length
    that was read in the same batch; sentences without such another one are left out there.

    Args:
        store: The sums of `Change`.
    """
    has_other = store.by_sentence("has_other").numpy()
    lengths = store.tokens.lengths.astype(np.int64)
    rows = []
    for name, counts in (("cosine", (lengths > 0).astype(np.int64)), ("jensen_shannon", lengths)):
        sums = store.by_sentence(name).numpy()
        for i, of in enumerate(_OF_MAPS):
            if of == OTHER_HEADS and sums.shape[3] == 1:
                continue
            used = has_other if of == OTHER_SENTENCES else np.ones(len(counts), dtype=bool)
            for layer, head in np.ndindex(*sums.shape[2:]):
                rows.append(_row(name, of, layer + 1, head + 1, sums[used, i, layer, head], counts[used]))
    return rows


@torch.inference_mode()
def published_rows(request: Request, against: Request, length: int = PUBLISHED_LENGTH) -> list[dict[str, Any]]:
    """Return the cosine of each head's maps as published: padded to `length` tokens, and not cropped.

    Args:
        request: A checkpoint and the corpus, of which the first `PUBLISHED_SENTENCES` sentences are read.
        against: The other checkpoint.
        length: Number of tokens to which sentences are padded, or cut.
    """
    tokens = tokens_of(request, load_tokenizer(request.source))
    models = [load(one) for one in (request, against)]
    readers = [AttentionReader.of(*model, "the model") for model in models]
    found = []
    for sentence in range(min(tokens.n_sentences, PUBLISHED_SENTENCES)):
        ids = torch.from_numpy(tokens.input_ids[tokens.of_sentences(sentence, 1)].astype(np.int64))[:length]
        padded = torch.full((1, length), models[0][1])
        padded[0, : len(ids)] = ids
        mask = (torch.arange(length) < len(ids))[None]
        ours, theirs = (
            _maps(encoder, reader.heads, padded, mask) for (encoder, _), reader in zip(models, readers, strict=True)
        )
        found.append(torch.cat([map_cosines(a, b) for a, b in zip(ours, theirs, strict=True)]))
    cosines = torch.stack(found).numpy()
    ones = np.ones(len(cosines), dtype=np.int64)
    return [
        _row("cosine_as_published", SAME, layer + 1, head + 1, cosines[:, layer, head], ones)
        for layer, head in np.ndindex(*cosines.shape[1:])
    ]


def _maps(encoder: nn.Module, heads: Heads, input_ids: Tensor, mask: Tensor) -> list[Tensor]:
    """Return the attention of each block, rows of padding included."""
    found: list[Tensor] = []

    def give(layer: int, probabilities: Tensor, values: Tensor) -> None:
        found.append(probabilities.clone())

    read_heads(encoder, heads, give, _inputs(input_ids, mask))
    return found


def state_rows(stores: Sequence[ActivationStore], layers: Sequence[int]) -> list[dict[str, Any]]:
    """Return the mean cosine of each token's hidden states in both checkpoints, and of a token and the next one.

    Args:
        stores: The activations of both checkpoints on the same sentences.
        layers: Layer numbers.
    """
    tokens = stores[0].tokens
    starts = torch.from_numpy(tokens.offsets[:-1][tokens.lengths > 0])
    rows = []
    for layer in layers:
        same, next_one = [], []
        for shard in stores[0].plan.shards:
            a, b = (store.read(layer, shard.index).float() for store in stores)
            same.append(_cosines(a, b))
            next_one.append(_cosines(a, b.roll(-1, 0)))
        lengths = tokens.lengths[tokens.lengths > 0].astype(np.int64)
        of_tokens = torch.cat(next_one)
        of_tokens[starts + torch.from_numpy(lengths) - 1] = 0  # the last token of a sentence has no next one
        for of, values, n in ((SAME, torch.cat(same), lengths), (OTHER_TOKENS, of_tokens, lengths - 1)):
            sums = np.add.reduceat(values.numpy(), starts.numpy())
            rows.append(_row("hidden_states", of, layer, None, sums, n))
    return rows


def parameter_rows(encoder: nn.Module, other: nn.Module) -> list[dict[str, Any]]:
    """Return the cosine of each matrix of parameters in both checkpoints; `of` is its name.

    Args:
        encoder: A checkpoint.
        other: The other one.
    """
    theirs = dict(other.named_parameters())
    rows = []
    for name, matrix in encoder.named_parameters():
        if matrix.ndim > 1 and name in theirs and theirs[name].shape == matrix.shape:
            value = float(_cosines(matrix.detach().reshape(1, -1), theirs[name].detach().reshape(1, -1)))
            rows.append(_row("parameters", name, None, None, np.array([value]), np.ones(1, dtype=np.int64)))
    return rows


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of each row with that of the other matrix, shape (rows,), float64; exactly 1 if equal."""
    product, *squares = (_products(x, y) for x, y in ((a, b), (a, a), (b, b)))
    return product / (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)


def _products(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner products of rows in float64, in pieces of columns, because parameters are large."""
    pieces = zip(x.split(2**20, dim=1), y.split(2**20, dim=1), strict=True)
    return torch.stack([(p.double() * q.double()).sum(1) for p, q in pieces]).sum(0)


def _row(
    measure: str, of: str, layer: int | None, head: int | None, sums: NDArray[np.float64], n: NDArray[np.int64]
) -> dict[str, Any]:
    low, high = mean_interval(sums, n)
    return {
        "measure": measure, "of": of, "layer": layer, "head": head,
        "value": float(sums.sum() / n.sum()) if n.sum() else float("nan"), "low": low, "high": high, "n": int(n.sum()),
    }  # fmt: skip
