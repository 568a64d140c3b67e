"""How far the hidden states of two checkpoints are from each other, on the same tokens, by three distances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from probing.cache.store import ActivationStore
from probing.heads.change import row_cosines

# Rows in one product.
_ROWS = 4096
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class StateDistances:
    """Distances of a layer's hidden states in two checkpoints, each 0 for equal ones.

    Args:
        cosine: One less the mean cosine of the same token's hidden states.
        rotated: The same after the best rotation (or reflection) of one checkpoint, which is found on one half of the
            sentences and measured on the other, and vice versa; never above `cosine` by more than what that costs.
        cka: One less linear CKA (Kornblith et al. 2019).
    """

    cosine: float
    rotated: float
    cka: float


def state_distances(a: ActivationStore, b: ActivationStore, layers: Sequence[int]) -> dict[int, StateDistances]:
    """Return the distances of each layer; the tokens of both entries must be the same.

    Args:
        a: Hidden states of a checkpoint.
        b: Those of another one.
        layers: Layer numbers.
    """
    found = {}
    for layer in layers:
        sums = _Sums(a.plan.d_model)
        for rows in _pairs(a, b, layer):
            sums.add(*rows)
        if sums.is_equal:
            found[layer] = StateDistances(0.0, 0.0, 0.0)
            continue
        rotations = sums.rotations()
        turned = sum(
            float(row_cosines(first, second @ rotations[half]).sum()) for first, second, half in _pairs(a, b, layer)
        )
        found[layer] = StateDistances(1 - sums.cosines / sums.n, 1 - turned / sums.n, 1 - sums.cka())
    return found


def _pairs(a: ActivationStore, b: ActivationStore, layer: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield the states of the same tokens in both entries, float64, and of which half their sentences are, 0 or 1."""
    for shard in a.plan.shards:
        first, second = (store.read(layer, shard.index).double() for store in (a, b))
        halves = torch.from_numpy(a.tokens.sentences[a.shard_tokens(shard)] % 2)
        for half in (0, 1):
            here = halves == half
            for pieces in zip(first[here].split(_ROWS), second[here].split(_ROWS), strict=True):
                yield *pieces, half


@dataclass
class _Sums:
    """Sums over tokens of what the distances are made of."""

    d: int
    n: int = 0
    cosines: float = 0.0
    is_equal: bool = True
    products: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    turns: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64)

        self.products = [zeros(self.d, self.d) for _ in range(3)]  # of a with b, of a with itself, of b with itself
        self.means = [zeros(self.d) for _ in range(2)]
        self.turns = [zeros(self.d, self.d) for _ in range(2)]  # of directions, for each half

    def add(self, a: Tensor, b: Tensor, half: int) -> None:
        self.n += len(a)
        self.is_equal &= torch.equal(a, b)
        self.cosines += float(row_cosines(a, b).sum())
        for product, (x, y) in zip(self.products, ((a, b), (a, a), (b, b)), strict=True):
            product.addmm_(x.T, y)
        for mean, x in zip(self.means, (a, b), strict=True):
            mean += x.sum(0)
        units = (x / x.norm(dim=1, keepdim=True).clamp_min(_TINY) for x in (a, b))
        first, second = units
        self.turns[half].addmm_(second.T, first)

    def rotations(self) -> list[Tensor]:
        """Return what turns `b` onto `a` for the sentences of each half: the best one for those of the other half.

        The sum of cosines of `a` and `b R` is trace(R' S), S the sum of outer products of directions, and is highest
        for R = U V' of the singular value decomposition of S (Schoenemann 1966).
        """
        found = []
        for turn in reversed(self.turns):
            u, _, v = torch.linalg.svd(turn)
            found.append(u @ v)
        return found

    def cka(self) -> float:
        """Return |C_ab|^2 / (|C_aa| |C_bb|), Frobenius norms of covariances; NaN where a layer is constant."""
        pairs = ((0, 1), (0, 0), (1, 1))
        cross, *own = (
            float((product - torch.outer(self.means[i], self.means[j]) / self.n).square().sum())
            for product, (i, j) in zip(self.products, pairs, strict=True)
        )
        return cross / (own[0] * own[1]) ** 0.5 if own[0] * own[1] > 0 else float("nan")
