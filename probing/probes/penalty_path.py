"""The strength of the l2 penalty, chosen on validation sentences; one value, which makes layers comparable.

With too weak a penalty, probes overfit if there are few tokens for the width, and accuracy hardly shows it: on 500
sentences, probes of a base-size model predicted worse than a constant answer with a penalty that suits 50,000 tokens.
The validation cross-entropy shows it. The penalties form a grid of half decades. All layers are trained together, from
strong to weak penalties, and each probe starts from a linear extrapolation of its optima at the previous two penalties,
so that a step takes few passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import ProbeOptions
from probing.data.examples import Sides
from probing.probes.recipe import Adam, Callbacks, Lbfgs, Training, no_callbacks
from probing.probes.solvers import Penalty, problem_of_layer
from probing.probes.training import LayerFit, train_problems
from probing.statistics.moments import Moments

# Half decades: l2 = 10 ** (index / 2). The walk begins at 1e-2, which takes few passes, and ends at 1e-10 or 100 at the
# latest. At 1e-10 probes are hardly penalised; at 100 they hardly differ from a uniform prediction.
FIRST, WEAKEST, STRONGEST = -4, -20, 4
# Tolerance of probes on the path, in nats. Tolerances of 1e-2 and 1e-3 gave the same choice, with mean validation
# cross-entropies .0005 to .01 apart, while neighbours of the chosen penalty differed by .01 and more.
TOLERANCE = 3e-3
# A step that improves the mean by less than `RESOLUTION` nats ends the walk: in a layer that determines the class,
# weaker penalties keep improving by tiny amounts and need more and more passes. A step after which some probe has not
# reached its optimum in `MOST_PASSES` passes ends the walk too: with so weak a penalty the run's own probes would
# hardly converge.
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
        around: Weights of each layer's probe at penalties up to a decade from the chosen one, by the number of half
            decades from it, on raw hidden states, within `TOLERANCE` of the optimum.
    """

    layers: Sequence[int]
    l2: Sequence[float]
    cross_entropy: NDArray[np.float64]
    around: Mapping[int, Sequence[Tensor]]

    @property
    def best(self) -> int:
        """The index of the chosen penalty: that with the lowest mean over layers, among equals the strongest."""
        return int(self.cross_entropy.mean(1).argmin())

    @property
    def chosen(self) -> float:
        """The chosen penalty."""
        return self.l2[self.best]

    @property
    def weights(self) -> Sequence[Tensor]:
        """Weights of each layer's probe at the chosen penalty."""
        return self.around[0]

    def starts(self, decades: int) -> Sequence[Tensor] | None:
        """Return initial weights for a penalty a decade stronger (1) or weaker (-1), for each layer.

        They are those of the path, or extrapolated where that ended half a decade away; None where it ended at once.
        """
        if 2 * decades in self.around:
            return self.around[2 * decades]
        near = [self.around[i] for i in (decades, 0) if i in self.around]
        return [2 * last - former for last, former in zip(*near, strict=True)] if len(near) == 2 else None

    @property
    def alone(self) -> list[float]:
        """The best penalty of each layer by itself, among those tried."""
        return [self.l2[i] for i in self.cross_entropy.argmin(0)]

    @property
    def neighbours(self) -> list[tuple[float, float]]:
        """The chosen penalty and its neighbours, strongest first, each with its mean cross-entropy."""
        means = self.cross_entropy.mean(1).tolist()
        return list(zip(self.l2, means, strict=True))[max(self.best - 1, 0) : self.best + 2]

    def summary(self) -> dict[str, Any]:
        """Return the results of the path, as plain values for `results.json`."""
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
        training: Settings of the training; its l1 penalty is used along the path, its l2 penalty is not used.

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
        problems = [problem_of_layer(layer, i, penalty, starts[i]) for i, layer in enumerate(layers)]
        return train_problems(judged, layers, moments, problems, roughly, f"choosing the penalty: {l2:g}", test=True)

    found = walk(train, len(layers))
    indices = sorted(found, reverse=True)
    means = np.array([[fit.metrics["cross_entropy"] for fit in found[index]] for index in indices])
    best = indices[int(means.mean(1).argmin())]
    around = {i - best: [fit.weight for fit in fits] for i, fits in found.items() if abs(i - best) <= 2}
    return PenaltyPath(layers, [strength(index) for index in indices], means, around)


def walk(train: Callable[[float, Sequence[Tensor | None]], list[LayerFit]], n_layers: int) -> dict[int, list[LayerFit]]:
    """Train on the grid until a step no longer improves the mean, and return the probes by grid index.

    The walk goes towards weaker penalties first. Each probe starts from a linear extrapolation of the two previous
    ones, which takes half the passes of starting from the previous one. If the first penalty is the best, the walk then
    goes towards stronger ones. A step towards weaker penalties whose probes do not converge is discarded, and ends the
    walk.

    Args:
        train: Trains the probes of all layers at a penalty, from the given weights, or from 0 where these are None.
        n_layers: Number of probes.
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
    """Return initial weights: extrapolated from the last two points of the path, the last point, or None."""
    if not before:
        return [None] * n_layers
    if len(before) == 1:
        return [fit.weight for fit in before[0]]
    return [2 * last.weight - former.weight for last, former in zip(*before, strict=True)]


def training_of(
    probe: ProbeOptions,
    l2: float,
    seed: int,
    trainer: Mapping[str, Any] | None = None,
    callbacks: Callbacks = no_callbacks,
) -> Training:
    """Return the training settings.

    Args:
        probe: The options.
        l2: Strength of the squared l2 penalty, which replaces the value in the options.
        seed: Seed of Adam's mini-batches.
        trainer: Arguments of Lightning's Trainer.
        callbacks: Returns Lightning callbacks for the training of the named probes.
    """
    solver: Lbfgs | Adam = Lbfgs(probe.tolerance)
    if probe.solver == "adam":
        solver = Adam(probe.learning_rate, probe.batch_size, probe.patience, seed, probe.tolerance)
    return Training(Penalty(probe.l1, l2), solver, probe.penalty_space, trainer or {}, callbacks)


def penalised(
    probe: ProbeOptions,
    seed: int,
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    trainer: Mapping[str, Any],
) -> tuple[PenaltyPath | None, Training]:
    """Return the penalty path, if the penalty is to be chosen, and the training settings."""
    if probe.l2 != "auto":
        return None, training_of(probe, probe.l2, seed, trainer)
    training = training_of(probe, strength(FIRST), seed, trainer)
    path = choose_penalty(sides, layers, moments, training)
    return path, training_of(probe, path.chosen, seed, trainer)
