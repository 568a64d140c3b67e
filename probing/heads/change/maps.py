"""How attention differs between two checkpoints of a model, on the same sentences (Kovaleva et al. 2019, section 4.3).

The published measure is the cosine of a head's flattened maps before and after fine-tuning. It is high for any two maps
whose rows sum to 1. It is therefore compared with two baselines: the cosine with other heads of the layer, and the
cosine with another sentence of equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.change.checkpoints import Checkpoint
from probing.heads.reading import Accumulator, Attention, Batch, Kept
from probing.heads.rows import Rows
from probing.heads.sums import SumsStore
from probing.statistics.intervals import mean_interval

# Maximum number of bytes of the other checkpoint's maps in memory; if all blocks need more, its forward pass is
# repeated for the remaining blocks.
HELD_BYTES = 2**28
SAME, OTHER_HEADS, OTHER_SENTENCES = "same", "other heads", "other sentences"
_OF_MAPS = (SAME, OTHER_HEADS, OTHER_SENTENCES)


def map_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of flattened maps, shape (batch, heads), float64; exactly 1 for equal maps.

    Args:
        a: Shape (batch, heads, from, to).
        b: Of the same shape.
    """
    first, second = a.double(), b.double()
    product, *squares = ((x * y).sum((2, 3)) for x, y in ((first, second), (first, first), (second, second)))
    return (product / (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1)


def other_head_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean cosine of each head's map with the maps of all other heads, shape (batch, heads), float64.

    It is 0 if the layer has only one head.

    Args:
        a: Shape (batch, heads, from, to).
        b: Of the same shape; the other heads are taken from here.
    """
    first, second = (maps.double().flatten(2) for maps in (a, b))
    norms = [maps.norm(dim=2).clamp_min(torch.finfo(torch.float64).tiny) for maps in (first, second)]
    cosines = first @ second.transpose(1, 2) / (norms[0][:, :, None] * norms[1][:, None, :])
    return (cosines.sum(2) - cosines.diagonal(dim1=1, dim2=2)) / max(a.shape[1] - 1, 1)


def row_divergences(a: Tensor, b: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of rows in nats, summed over the rows, shape (batch, heads), float64.

    Args:
        a: Maps, shape (batch, heads, from, to); rows of padding are 0.
        b: Maps of the same shape.
    """
    return _divergences((a, _entropies(a)), (b, _entropies(b)))


# Maps with the entropies of their rows, summed over the rows.
_Known = tuple[Tensor, Tensor]


def _divergences(a: _Known, b: _Known) -> Tensor:
    return (_entropies((a[0] + b[0]) / 2) - (a[1] + b[1]) / 2).clamp_min(0)


def _other_head_divergences(a: _Known, b: _Known) -> Tensor:
    """Return the mean divergence of each head's map from those of all other heads, shape (batch, heads)."""
    n_heads = a[0].shape[1]
    found = torch.zeros_like(a[1])
    for k in range(1, n_heads):
        found += _divergences(a, (b[0].roll(k, 1), b[1].roll(k, 1)))
    return found / max(n_heads - 1, 1)


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
        alone: Whether the same map is compared alone, and not those of other heads and other sentences too.
    """

    against: Checkpoint
    name: str = "change"
    alone: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything other than model and corpus that changes the sums."""
        return {"version": 1, "against": self.against.request.key(), **({"alone": True} if self.alone else {})}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Load the other checkpoint, and return what makes an accumulator for each batch."""
        against = self.against.prepared()
        return lambda batch: _Compared(against, batch, self.alone)


class _Compared:
    def __init__(self, against: Checkpoint, batch: Batch, alone: bool) -> None:
        self.against, self.batch, self.alone = against, batch, alone
        self.others = others_of_equal_length(batch.lengths)
        self.held: dict[int, Tensor] = {}
        self.found: dict[str, list[Tensor]] = {"cosine": [], "jensen_shannon": []}

    def add(self, attention: Attention) -> None:
        if attention.layer not in self.held:
            self.held = self._read(attention.layer)
        ours, theirs = attention.probabilities, self.held.pop(attention.layer)
        if self.alone:
            self.found["cosine"].append(map_cosines(ours, theirs)[:, None])
            self.found["jensen_shannon"].append(row_divergences(ours, theirs)[:, None])
            return
        cosines = map_cosines(ours, theirs), other_head_cosines(ours, theirs), map_cosines(ours, theirs[self.others])
        a, b = (ours, _entropies(ours)), (theirs, _entropies(theirs))
        of_sentences = theirs[self.others], b[1][self.others]
        divergences = _divergences(a, b), _other_head_divergences(a, b), _divergences(a, of_sentences)
        for name, found in (("cosine", cosines), ("jensen_shannon", divergences)):
            self.found[name].append(torch.stack(found, dim=1))

    def _read(self, first: int) -> dict[int, Tensor]:
        """Return the other checkpoint's maps from a block on, as many as may be held."""
        mask = self.batch.mask
        size = mask.numel() * mask.shape[1] * self.against.heads.n_heads * 4
        maps = self.against.maps(self.batch.inputs, first, first + max(HELD_BYTES // size, 1) - 1)
        pairs = (mask[:, :, None] & mask[:, None, :])[:, None]
        return {layer: torch.where(pairs, one, 0.0) for layer, one in maps.items()}

    def kept(self) -> Kept:
        others = torch.arange(len(self.others), device=self.others.device) != self.others
        return Kept({"has_other": others, **{name: torch.stack(one, dim=2) for name, one in self.found.items()}})


def map_rows(store: SumsStore, layers: Sequence[int]) -> Rows:
    """Return the rows of `change.csv` that concern maps: of each head, and of each layer as the mean over its heads.

    Cosines are means over sentences, and divergences (nats) over queries, each with its interval over sentences. `of`
    says what is compared: the same head and sentence, other heads of the layer, or another sentence of equal length
    from the same batch; a sentence for which there is none is left out of this comparison.

    Args:
        store: The sums of `Change`.
        layers: The layers to report.
    """
    has_other = store.by_sentence("has_other").numpy()
    lengths = store.tokens.lengths.astype(np.int64)
    rows = []
    for name, counts in (("cosine", (lengths > 0).astype(np.int64)), ("jensen_shannon", lengths)):
        sums = store.by_sentence(name).numpy()
        for i, of in enumerate(_OF_MAPS[: sums.shape[1]]):
            if of == OTHER_HEADS and sums.shape[3] == 1:
                continue
            used = has_other if of == OTHER_SENTENCES else np.ones(len(counts), dtype=bool)
            rows += head_rows(name, of, layers, sums[used, i], counts[used])
    return rows


def head_rows(measure: str, of: str, layers: Sequence[int], sums: NDArray[np.float64], n: NDArray[np.int64]) -> Rows:
    """Return a row for each head and, without a head, for each layer.

    Args:
        measure: The measure.
        of: What is compared.
        layers: The layers to report.
        sums: Sum of each sentence, shape (n_sentences, all layers, heads).
        n: What the sums are divided by, of each sentence, shape (n_sentences,).
    """
    return [
        *(change_row(measure, of, layer, head + 1, sums[:, layer - 1, head], n)
          for layer in layers for head in range(sums.shape[2])),
        *(change_row(measure, of, layer, None, sums[:, layer - 1].mean(1), n) for layer in layers),
    ]  # fmt: skip


def change_row(
    measure: str, of: str, layer: int | None, head: int | None, sums: NDArray[np.float64], n: NDArray[np.int64]
) -> dict[str, Any]:
    """Return a row of `change.csv`.

    Args:
        measure: The measure.
        of: What is compared.
        layer: The layer, if it is of one.
        head: The head, from 1, if it is of one.
        sums: Sum of each sentence, shape (n_sentences,).
        n: What the sums are divided by, of each sentence, shape (n_sentences,).
    """
    low, high = mean_interval(sums, n)
    return {
        "measure": measure, "of": of, "layer": layer, "head": head,
        "value": float(sums.sum() / n.sum()) if n.sum() else float("nan"), "low": low, "high": high, "n": int(n.sum()),
    }  # fmt: skip
