"""The strength of the l2 penalty, chosen on validation sentences: one value for all layers, so that layers compare.

Too little penalty overfits where tokens are few for the width, and accuracy hardly shows it: the probes of a base-size
model on 500 sentences predicted worse than a constant answer at a penalty that suits 50,000 tokens. The validation
cross-entropy shows it. All layers walk a grid of half decades together, from strong to weak, each probe starting from
its optimum at the penalty before, so that one stack serves all layers and a step takes few passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Sides
from probing.probes.linear import Problem
from probing.probes.recipe import Training
from probing.probes.solvers import Penalty
from probing.probes.training import LayerFit, train_problems
from probing.statistics.moments import Moments

# Half decades: l2 = 10 ** (index / 2). The walk begins at 1e-2, which takes few passes, and ends at 1e-10 or 100 at the
# latest: there probes are hardly penalised any more, or no different from a uniform guess.
FIRST, WEAKEST, STRONGEST = -4, -20, 4
# How near to its optimum a probe must come to be judged, in nats. At 1e-2 and 1e-3 the choice was the same, and mean
# validation cross-entropies .0005 to .01 apart, where neighbours of the chosen penalty differed by .01 and more.
TOLERANCE = 3e-3
# A step that improves the mean by less ends the walk, in nats: where a layer tells everything, weaker penalties go on
# improving next to nothing, at ever more passes. So does one that leaves some probe away from its optimum after this
# many passes: at a penalty so weak the run's own probes would hardly reach theirs.
RESOLUTION, MOST_PASSES = 2e-3, 60


def strength(index: int) -> float:
    """Return the l2 penalty of a grid index."""
    return float(f"{10 ** (index / 2):.3g}")


@dataclass(frozen=True)
class PenaltyPath:
    """Validation cross-entropy along a grid of penalties.

    Args:
        layers: Layer numbers.
        l2: The penalties tried, descending, half a decade apart.
        cross_entropy: Mean over validation tokens in nats, shape (n_penalties, n_layers).
        weights: The probe of each layer at the chosen penalty on raw hidden states, within `TOLERANCE` of its optimum.
    """

    layers: Sequence[int]
    l2: Sequence[float]
    cross_entropy: NDArray[np.float64]
    weights: Sequence[Tensor]

    @property
    def best(self) -> int:
        """The index of the chosen penalty: the lowest mean over layers, of equal ones the strongest."""
        return int(self.cross_entropy.mean(1).argmin())

    @property
    def chosen(self) -> float:
        """The chosen penalty."""
        return self.l2[self.best]

    @property
    def alone(self) -> list[float]:
        """The penalty that each layer by itself would take among those tried."""
        return [self.l2[i] for i in self.cross_entropy.argmin(0)]

    @property
    def neighbours(self) -> list[tuple[float, float]]:
        """Each penalty within one step of the chosen one, the strongest first, with its mean cross-entropy."""
        means = self.cross_entropy.mean(1).tolist()
        return list(zip(self.l2, means, strict=True))[max(self.best - 1, 0) : self.best + 2]

    def summary(self) -> dict[str, Any]:
        """Return what the path showed, as plain values for `results.json`."""
        return {
            "l2": self.chosen,
            "tried": list(self.l2),
            "validation_cross_entropy": self.cross_entropy.mean(1).tolist(),
            "validation_cross_entropy_by_layer": {
                str(layer): column.tolist() for layer, column in zip(self.layers, self.cross_entropy.T, strict=True)
            },
            "alone": dict(zip(map(str, self.layers), self.alone, strict=True)),
        }


def choose_penalty(
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    training: Training,
) -> PenaltyPath:
    """Return the penalty under which probes predict validation tokens best, on average over layers.

    Args:
        sides: Examples and their classes; the test side is not used.
        layers: Layer numbers.
        moments: Moments of the training tokens, for each layer.
        training: How the probes will be trained; its l1 penalty holds along the path, its l2 penalty is not used.

    Raises:
        ValueError: If there are no validation tokens.
    """
    if not sides.validation.n_tokens:
        raise ValueError("no validation tokens to choose a penalty by")
    judged = replace(sides, test=sides.validation)
    roughly = training.loosened(TOLERANCE).for_measuring()
    roughly = replace(roughly, trainer={**roughly.trainer, "max_epochs": MOST_PASSES})

    def train(l2: float, starts: Sequence[Tensor | None]) -> list[LayerFit]:
        penalty = Penalty(training.penalty.l1, l2)
        problems = [Problem(f"layer_{layer:02d}", i, penalty, starts[i]) for i, layer in enumerate(layers)]
        return train_problems(judged, layers, moments, problems, roughly, f"choosing the penalty: {l2:g}", test=True)

    found = walk(train, len(layers))
    indices = sorted(found, reverse=True)
    means = np.array([[fit.metrics["cross_entropy"] for fit in found[index]] for index in indices])
    best = found[indices[int(means.mean(1).argmin())]]
    return PenaltyPath(layers, [strength(index) for index in indices], means, [fit.weight for fit in best])


def walk(train: Callable[[float, Sequence[Tensor | None]], list[LayerFit]], n_layers: int) -> dict[int, list[LayerFit]]:
    """Train on the grid until a step no longer improves the mean, and return the probes by grid index.

    A step towards weaker penalties whose probes do not come near their optima is left out and ends the walk.

    Towards weaker penalties first, where each probe starts from where the two before it point, which takes half the
    passes of starting from the one before; then, if the first was the best, towards stronger ones.

    Args:
        train: Trains the probes of all layers at a penalty from the weights given, or from 0 where there are none.
        n_layers: How many probes there are.
    """
    found: dict[int, list[LayerFit]] = {}

    def visit(index: int, near: Sequence[int]) -> float:
        found[index] = train(strength(index), _starts([found[i] for i in near], n_layers))
        return _mean(found[index])

    first = best = visit(FIRST, [])
    for step, end in ((-1, WEAKEST), (1, STRONGEST)):
        index, best = FIRST, first
        while index != end:
            index += step
            here = visit(index, [i for i in (index - step, index - 2 * step) if i in found])
            if step < 0 and not all(fit.converged for fit in found[index]):
                del found[index]
                break
            if here > best - RESOLUTION:
                break
            best = here
        if best < first:
            break
    return found


def _mean(fits: Sequence[LayerFit]) -> float:
    return float(np.mean([fit.metrics["cross_entropy"] for fit in fits]))


def _starts(before: Sequence[Sequence[LayerFit]], n_layers: int) -> list[Tensor | None]:
    """Return where probes begin: on the line through the last two points of their path, at the last, or at 0."""
    if not before:
        return [None] * n_layers
    if len(before) == 1:
        return [fit.weight for fit in before[0]]
    return [2 * last.weight - former.weight for last, former in zip(*before, strict=True)]
