"""How alike heads are, and how alike the attention of consecutive layers is.

Heads are compared by the Jensen-Shannon divergence of their rows (Clark et al. 2019, section 6), in nats: 0 for heads
that attend alike, at most ln 2.

Layers are compared by the cosine of their maps, with the maps of all heads concatenated (Shi et al. 2022, figure 3).
This published form has two faults. Head 3 of one layer has nothing to do with head 3 of the next one, so that the
result depends on the arbitrary order of heads; and a column that all heads share, such as that of [SEP], makes any two
layers alike. So two forms that do not depend on the order of heads are given beside it, the cosine of the mean over
heads and that of best-matched heads, and each form also without special tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.heads.reading import Accumulator, Attention, Batch, Kept
from probing.heads.sums import SumsStore
from probing.statistics.intervals import mean_interval

# Maximum number of queries of a sentence by which heads are compared; of a longer sentence, this many evenly spaced
# queries are taken. So the maps of one batch that wait for the last block take at most heads x 64 x batch_tokens x 4
# bytes: 18 MiB for the 72 heads of the built-in model and the 1,024 tokens of a batch on a CPU, 96 MiB for the 384
# heads of bert-large.
QUERIES = 64
# Sums for each pair of heads are kept for groups of sentences, which are the clusters of the intervals. For each
# sentence, the 10,296 pairs of bert-base would take 82 kB.
GROUPS = 40
COSINES = ("cosine", "cosine_of_means", "cosine_matched")
JENSEN_SHANNON = "jensen_shannon"
_WITHOUT = "_without_special"


def jensen_shannon(maps: Tensor) -> Tensor:
    """Return the divergence of all pairs of heads, summed over the queries, shape (pairs,), float64.

    The pairs (0, 1), (0, 2), ..., (1, 2), ... are in the order of `torch.triu_indices(heads, heads, 1)`.

    Args:
        maps: Rows that sum to 1, shape (heads, queries, keys).
    """
    flat, n_queries = maps.flatten(1), maps.shape[1]
    entropies = _entropies(flat)
    # The entropy of the mean of p and q is half of -sum (p + q) ln (p + q), plus ln 2.
    found = [
        _entropies(flat[i + 1 :] + flat[i]) / 2 + n_queries * math.log(2) - (entropies[i + 1 :] + entropies[i]) / 2
        for i in range(len(flat) - 1)
    ]
    return torch.cat(found or [entropies[:0]]).clamp(0, n_queries * math.log(2))


def _entropies(values: Tensor) -> Tensor:
    """Return -sum x ln x of each row, shape (rows,), float64."""
    logarithms = values.clamp_min(torch.finfo(values.dtype).tiny).log_()  # twice as fast as `torch.special.entr`
    return -logarithms.mul_(values).sum(1, dtype=torch.float64)


def cosines(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the maps of two layers.

    Args:
        a: Shape (batch, heads, from, to); rows and columns that do not count are 0.
        b: Those of the other layer, of the same shape.

    Returns:
        The inner product of each head of `a` with each head of `b`, over the norms of all heads together, shape
        (batch, heads, heads), whose trace is the published cosine; and the cosine of the means over heads, shape
        (batch,). Both are float64, and 0 where a map is 0.
    """
    products = (a.flatten(2).double() @ b.flatten(2).double().transpose(1, 2)) / _norms(a, b)[:, None, None]
    mean_a, mean_b = (maps.double().mean(1, keepdim=True) for maps in (a, b))
    return products, (mean_a * mean_b).sum((1, 2, 3)) / _norms(mean_a, mean_b)


def _norms(a: Tensor, b: Tensor) -> Tensor:
    squares = [maps.double().square().sum((1, 2, 3)) for maps in (a, b)]
    return (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(torch.float64).tiny)


def without_special(probabilities: Tensor, batch: Batch) -> Tensor:
    """Return maps in which special tokens neither attend nor are attended to, with rows that sum to 1 or are 0.

    Args:
        probabilities: Shape (batch, heads, from, to).
        batch: The sentences.
    """
    ordinary = batch.ordinary[:, :, None] & batch.ordinary[:, None, :]
    left = torch.where(ordinary[:, None], probabilities, 0.0)
    return left / left.sum(3, keepdim=True).clamp_min(torch.finfo(left.dtype).tiny)


@dataclass(frozen=True)
class Similarity:
    """The measure: divergence of all pairs of heads, and cosines of consecutive layers."""

    name: str = "similarity"
    settings: Mapping[str, Any] = field(default_factory=lambda: {"version": 1, "queries": QUERIES, "groups": GROUPS})

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        return _Maps


class _Maps:
    """Holds the maps of one batch, and those of the last block in full."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.groups = batch.sentences % GROUPS
        self.lengths = batch.lengths.tolist()
        queries = [torch.from_numpy(queries_of(n)).to(batch.mask.device) for n in self.lengths]
        self.queries, self.first = queries, batch.first.tolist()
        self.counted = torch.stack([batch.lengths > 1, batch.ordinary.sum(1) > 1], dim=1).double()
        self.held: list[list[Tensor]] = [[] for _ in self.lengths]
        self.last: list[Tensor] = []
        self.published: list[Tensor] = []
        self.of_means: list[Tensor] = []
        self.products: list[Tensor] = []

    def add(self, attention: Attention) -> None:
        for i, (rows, first, n) in enumerate(zip(self.queries, self.first, self.lengths, strict=True)):
            self.held[i].append(attention.probabilities[i][:, first + rows, first : first + n].float())
        maps = [attention.probabilities.clone(), without_special(attention.probabilities, self.batch)]
        if self.last:
            pairs = [cosines(a, b) for a, b in zip(self.last, maps, strict=True)]
            products = torch.stack([products for products, _ in pairs], 1) * self.counted[:, :, None, None]
            self.published.append(products.diagonal(dim1=2, dim2=3).sum(2))
            self.of_means.append(torch.stack([of_means for _, of_means in pairs], 1) * self.counted)
            self.products.append(self._by_group(products))
        self.last = maps

    def kept(self) -> Kept:
        divergences = torch.stack([jensen_shannon(torch.cat(maps)) for maps in self.held])
        found = {"counted": self.counted}
        totals = {JENSEN_SHANNON: self._by_group(divergences)}
        if self.products:
            found |= {"cosine": torch.stack(self.published, 1), "cosine_of_means": torch.stack(self.of_means, 1)}
            totals["products"] = torch.stack(self.products, 1)
        return Kept(found, total=totals)

    def _by_group(self, values: Tensor) -> Tensor:
        made = torch.zeros(GROUPS, *values.shape[1:], dtype=torch.float64, device=values.device)
        return made.index_add_(0, self.groups, values.double())


def queries_of(n_tokens: int) -> NDArray[np.int64]:
    """Return the queries of a sentence by which its heads are compared, ascending.

    Args:
        n_tokens: Number of its tokens.
    """
    if n_tokens <= QUERIES:
        return np.arange(n_tokens)
    return np.linspace(0, n_tokens - 1, QUERIES).round().astype(np.int64)


def similarity_rows(
    store: SumsStore, n_layers: int, n_heads: int, lengths: NDArray[Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of `similarity.csv`.

    A row compares two heads (`jensen_shannon`, in nats, a mean over queries), or two consecutive layers (cosines, means
    over sentences). Intervals are over sentences, and over groups of sentences for pairs of heads and matched heads.

    Args:
        store: The sums of `Similarity`.
        n_layers: Number of blocks.
        n_heads: Number of heads of a block.
        lengths: Number of tokens of each sentence that are measured, shape (n_sentences,); None for all.
    """
    lengths = store.tokens.lengths if lengths is None else lengths
    n_queries = _grouped(np.minimum(lengths, QUERIES).astype(np.int64))
    sums = store.total(JENSEN_SHANNON).numpy()
    names = [(layer, head) for layer in range(1, n_layers + 1) for head in range(1, n_heads + 1)]
    first, second = np.triu_indices(len(names), 1)
    rows = [
        _row(JENSEN_SHANNON, *names[i], *names[j], sums[:, pair], n_queries)
        for pair, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True))
    ]
    if n_layers > 1:
        rows += _layer_rows(store, n_layers)
    return rows


def _layer_rows(store: SumsStore, n_layers: int) -> list[dict[str, Any]]:
    counted = store.by_sentence("counted").numpy().astype(np.int64)
    products = store.total("products").numpy()
    rows = []
    for k, ending in enumerate(("", _WITHOUT)):
        by_group = _grouped(counted[:, k])
        for name in COSINES:
            for i in range(n_layers - 1):
                if name == "cosine_matched":
                    sums, n = matched(products[:, i, k]), by_group
                else:
                    sums, n = store.by_sentence(name)[:, i, k].numpy(), counted[:, k]
                rows.append(_row(name + ending, i + 1, None, i + 2, None, sums, n))
    return rows


def matched(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of best-matched heads, summed over each group, shape (groups,).

    Each head is matched with one of the other layer's heads, so that the mean cosine is the largest (the assignment
    problem). The matching that is best for odd groups is applied to even groups, and the reverse, so that the choice
    among many matchings does not inflate the cosine.

    Args:
        products: Sums of the products that `cosines` returns over each group, shape (groups, heads, heads).
    """
    from scipy.optimize import linear_sum_assignment

    found = np.zeros(len(products))
    for side in (0, 1):
        heads, others = linear_sum_assignment(products[1 - side :: 2].sum(0), maximize=True)
        found[side::2] = products[side::2, heads, others].sum(1)
    return found


def _grouped(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum over the sentences of each group, shape (GROUPS,)."""
    return np.array([values[group::GROUPS].sum() for group in range(GROUPS)])


def _row(
    measure: str, layer: int, head: int | None, other_layer: int, other_head: int | None,
    sums: NDArray[np.float64], n: NDArray[np.int64],
) -> dict[str, Any]:  # fmt: skip
    low, high = mean_interval(sums, n)
    value = float(sums.sum() / n.sum()) if n.sum() else math.nan
    return {
        "measure": measure, "layer": layer, "head": head, "other_layer": other_layer, "other_head": other_head,
        "value": value, "low": low, "high": high, "n": int(n.sum()),
    }  # fmt: skip
