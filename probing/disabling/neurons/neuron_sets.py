"""Which neurons are changed together: the first of a ranking, and as many others that they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probing.heads.position.removal import matched_sets, random_sets

Kind = Literal["mean", "zero", "resample", "direction", "shuffled", "translate", "interchange"]
Source = Literal["chosen", "random", "matched"]

KINDS: tuple[Kind, ...] = ("mean", "zero", "resample", "direction", "shuffled", "translate")
# Numbers of neurons of a dose curve; the number of all neurons that were asked for is its last point.
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class NeuronSet:
    """Neurons of one layer that are changed together.

    Args:
        layer: The layer whose hidden states are changed.
        kind: The replacement: their mean, 0, their values at a random token of another sentence, their values after
            linear erasure of the classes of a task, or of classes that are permuted, their values moved by the
            difference of two class means, or those at the same token of a counterfactual sentence.
        neurons: The neurons; none if nothing is changed, which is what the others are compared with.
        source: Whether these are the neurons that were asked for, or drawn to be compared with them.
        draw: Number of the draw, from 1; 0 for those that were asked for.
    """

    layer: int
    kind: Kind
    neurons: tuple[int, ...]
    source: Source = "chosen"
    draw: int = 0

    @property
    def k(self) -> int:
        """Number of neurons."""
        return len(self.neurons)


def sizes_up_to(n: int) -> list[int]:
    """Return the numbers of neurons of a dose curve, ascending, up to all n."""
    return [*(k for k in _STEPS if k < n), n]


def chosen_sets(layer: int, ranked: Sequence[int], kinds: Sequence[Kind], d_model: int) -> list[NeuronSet]:
    """Return the empty set, and the first neurons of a ranking, for each kind and each number of neurons.

    Args:
        layer: The layer.
        ranked: The neurons that were asked for, in their order; if they are all neurons of the layer, the order has no
            meaning.
        kinds: What stands in their place.
        d_model: Number of neurons of the layer.
    """
    sizes = sizes_up_to(len(ranked)) if len(ranked) < d_model else [d_model]
    steps = [NeuronSet(layer, kind, tuple(ranked[:k])) for kind in kinds for k in sizes]
    return [NeuronSet(layer, kinds[0], ()), *steps]


def drawn_sets(chosen: Sequence[NeuronSet], sd: NDArray[np.float64], n_draws: int, seed: int) -> Iterator[NeuronSet]:
    """Yield sets to compare each chosen one with: as many neurons at random, and others with nearly the same spread.

    For a given layer and size, the sets are the same for all kinds. No sets are drawn to compare with all neurons of
    the layer.

    Args:
        chosen: Sets of one layer.
        sd: Standard deviation of each neuron of the layer over training tokens, shape (d_model,).
        n_draws: Number of sets of either source.
        seed: Seed of the draws.
    """
    for one in chosen:
        if n_draws and 0 < one.k < len(sd):
            generator = np.random.default_rng([seed, one.layer, one.k])
            drawn: dict[Source, NDArray[np.int64]] = {
                "random": random_sets(len(sd), one.k, generator, n_draws),
                "matched": matched_sets(sd, np.array(one.neurons, dtype=np.int64), generator, n_draws),
            }
            for source, sets in drawn.items():
                for draw, neurons in enumerate(sets.tolist(), start=1):
                    yield NeuronSet(one.layer, one.kind, tuple(neurons), source, draw)
