"""How many neurons are enough: probes of a ranking's first k neurons alone, and of all neurons but these, as k grows.

They are compared with several draws of k random neurons and with the ranking's last k. The smallest number that does
nearly as well as all neurons is chosen on validation tokens, because a choice on the test tokens would be biased in
its own favour. (Dalvi et al. 2020, arXiv 2004.04010, ask the same of a task: how few neurons it needs.) A ranking that
is itself a mean over the test tokens, such as `contribution`, has nevertheless seen them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probing.data.examples import Examples, Sides, read
from probing.data.subsample import thin
from probing.probes.problem import Problem
from probing.probes.training import LayerFit, train_probes, train_variants
from probing.rankings.evaluation import MOST_TOKENS, Chosen, choices, of_views, rough_training
from probing.rankings.methods import LayerData, Ranking
from probing.statistics.intervals import accuracy_interval
from probing.tables.rankings import is_top, smallest

# Default numbers of neurons; those that exceed the layer's width are left out.
SIZES = (1, 2, 5, 10, 20, 50, 100, 200)
# Default number of random draws of neurons.
DRAWS = 10
# Bisection finds the smallest sufficient number to within a fiftieth of itself.
PRECISION = 50

# The columns that identify a row.
CURVE_KEY = ("layer", "ranking", "kind", "from", "k", "draw")
# A probe reads only the k neurons, or all neurons without these.
KINDS = ("only", "without")

Row = Mapping[str, Any]


def curves(
    rankings: Mapping[str, Ranking],
    data: LayerData,
    sides: Sides,
    sizes: Sequence[int],
    draws: int,
    say: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Return a row for each ranking, kind, end, number and draw, as in `curves.csv`.

    Each ranking has further rows `only` of the `top`: for all d_model neurons, and for the numbers tried by bisection.

    Args:
        rankings: Rankings by name; `random` is left out, since random neurons are compared with every ranking.
        data: Data of the layer.
        sides: Examples and their classes, some of them in validation.
        sizes: Numbers of neurons, each at least 1 and less than d_model.
        draws: Number of draws of random neurons for each size.
        say: Receives one-line progress messages.
    """
    measure = _Measure(data, sides)
    named = {name: ranking for name, ranking in rankings.items() if name != "random"}
    rows = []
    for kind in KINDS:
        for k in sizes:
            say(f"layer {data.layer}: {kind} {k} neurons")
            rows += measure(kind, choices(named, data, k, draws))
    for name, ranking in named.items():
        tops = measure.full(name) + [row for row in rows if row["ranking"] == name and is_top(row)]
        while between := _between(tops):
            say(f"layer {data.layer}: {name}, smallest number of neurons, {between}")
            tops += measure("only", [Chosen(name, "top", None, ranking.order[:between].tolist())])
        rows += [row for row in tops if row["k"] not in sizes]
    return rows


def _between(tops: Sequence[Row]) -> int | None:
    """Return the middle of the smallest sufficient number and the next lower one tried; None once they are close."""
    high = smallest(tops)["k"]
    low = max((row["k"] for row in tops if row["k"] < high), default=0)
    return (low + high) // 2 if high - low > max(1, high // PRECISION) else None


class _Measure:
    """Trains probes of some neurons of one layer and returns their rows.

    Args:
        data: Data of the layer.
        sides: Examples and their classes.
    """

    def __init__(self, data: LayerData, sides: Sides) -> None:
        self.data, self.d_model = data, len(data.moments.sd)
        self.sides = replace(sides, train=thin(sides.train, MOST_TOKENS, data.seed))
        self.training = rough_training(data)
        (self.of_all,) = train_probes(self.sides, [data.layer], self.training)

    def __call__(self, kind: str, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
        """Return the rows of choices of neurons; all choices have equally many, fewer than d_model."""
        neurons = [list(choice.neurons) for choice in chosen]
        rest = [sorted(set(range(self.d_model)) - set(some)) for some in neurons]
        return self._rows(kind, chosen, self._train(neurons if kind == "only" else rest))

    def full(self, ranking: str) -> list[dict[str, Any]]:
        """Return the row of the probe of all neurons, as a row of the given ranking."""
        return self._rows("only", [Chosen(ranking, "top", None, range(self.d_model))], [self.of_all])

    def _train(self, kept: Sequence[Sequence[int]]) -> list[LayerFit]:
        """Train a probe on each set of neurons; the returned weights are those of all neurons, (n_classes, d_model).

        Up to half of the neurons are trained as a narrow problem of their own columns. For more, starting from the
        probe of all neurons takes a third to a sixth of the time (measured without one, and without ten, neurons of the
        built-in model's last layer).
        """
        layer, dead, train_on = self.data.layer, self.data.moments.dead, self.sides
        if len(kept[0]) <= self.d_model // 2:
            viewed = train_on.each(lambda examples: of_views(examples, layer, kept, dead))
            narrow = train_probes(viewed, range(len(kept)), self.training)
            return [
                replace(fit, weight=torch.zeros_like(self.of_all.weight).index_copy_(1, torch.tensor(some), fit.weight))
                for fit, some in zip(narrow, kept, strict=True)
            ]
        none = torch.zeros(self.d_model, dtype=torch.bool)
        problems = [
            Problem(f"probe_{i}", 0, self.data.penalty, neurons=none.index_fill(0, torch.tensor(some), True))
            for i, some in enumerate(kept)
        ]
        return train_variants(train_on, [layer], [self.of_all], problems, self.training, test=True)

    def _rows(self, kind: str, chosen: Sequence[Chosen], fits: Sequence[LayerFit]) -> list[dict[str, Any]]:
        test, data = self.sides.test, self.data
        n_tokens = test.clusters(test.tokens_by_sentence())
        intervals = [accuracy_interval(test.clusters(fit.correct_by_sentence), n_tokens) for fit in fits]
        validation = _accuracies(self.sides.validation, fits, data.layer)
        return [
            {
                "layer": data.layer, "ranking": choice.ranking, "kind": kind, "from": choice.end,
                "k": len(choice.neurons), **({"draw": choice.draw} if choice.draw else {}),
                "accuracy": float(fit.correct_by_sentence.sum() / test.n_tokens),
                "accuracy_low": interval[0], "accuracy_high": interval[1],
                "cross_entropy": fit.metrics["cross_entropy"], "validation_accuracy": accuracy,
                "n_train_tokens": self.sides.train.n_tokens, "n_test_tokens": test.n_tokens,
            }
            for choice, fit, interval, accuracy in zip(chosen, fits, intervals, validation.tolist(), strict=True)
        ]  # fmt: skip


def _accuracies(examples: Examples, fits: Sequence[LayerFit], layer: int) -> NDArray[np.float64]:
    """Return the accuracy of each probe of one layer, shape (n_fits,); the weights are those of all neurons."""
    weight = torch.stack([fit.weight for fit in fits])
    right = torch.zeros(len(fits), dtype=torch.int64)
    for batch in read(examples, [layer]):
        right += ((batch.hidden_states[0] @ weight.mT).argmax(2) == batch.labels).sum(1)
    return (right.double() / examples.n_tokens).numpy()
