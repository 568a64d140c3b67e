"""Evaluation of rankings by probes of their first, last and random neurons, and the smallest sufficient number.

For the sufficient number, probes read only a ranking's first k neurons, or all other neurons, as k grows. They are
compared with several draws of k random neurons and with the ranking's last k. The smallest number that does nearly as
well as all neurons is chosen on validation tokens, because a choice on the test tokens would be biased
upwards. (Dalvi et al. 2020, arXiv 2004.04010, measure for a task how few neurons it needs.) A ranking that is a mean
over the test tokens, such as `contribution`, has nevertheless used them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations.store import StorePlan
from probing.data.examples import Examples, HiddenStateSource, Sides, n_constants, read
from probing.data.labelling import thin
from probing.probes import closed_forms
from probing.probes.rankings import LayerData, Ranking, drawn_neurons
from probing.probes.solvers import Problem
from probing.probes.training import LayerFit, Lbfgs, Training, train_probes, train_variants
from probing.statistics import accuracy_interval
from probing.tables import is_top, smallest
from probing.text.tokens import Tokens

# Default numbers of neurons; those that exceed the layer's width are left out.
SIZES = (10, 50, 100)

# Default number of random draws of neurons.
DRAWS = 10

# The linear probes are trained on at most so many tokens; where there are more, whole sentences are drawn evenly.
MOST_TOKENS = 50_000

# Largest distance of these probes from their optimum, in nats. On the built-in model's layer 6 accuracies are within
# .002 of those at a tenth of it.
TOLERANCE = 1e-2

# Probability that any of the choices of a layer is called better than chance although none is.
BY_CHANCE = 0.05


@dataclass(frozen=True)
class Chosen:
    """A choice of neurons by a ranking; `end` is `top`, `bottom` or `random`, with `draw` counted from 1."""

    ranking: str
    end: str
    draw: int | None
    neurons: Sequence[int]


class Views:
    """A store with views in place of layers: choices of equally many neurons of a single layer of another store.

    Dead neurons read as 0. Constants of the store are in every view.
    """

    def __init__(self, store: HiddenStateSource, layer: int, views: Sequence[Sequence[int]], dead: Tensor) -> None:
        self.store, self.layer, self.dead = store, layer, dead
        self.tokens: Tokens = store.tokens
        self.n_constants = n_constants(store)
        constants = range(store.plan.d_model - self.n_constants, store.plan.d_model)
        self.views = [torch.tensor([*neurons, *constants]) for neurons in views]
        self.plan: StorePlan = replace(store.plan, d_model=len(self.views[0]))
        # The last shard read, since every view reads it; stored by neuron, so that some can be taken alone.
        self._shard: tuple[int, Tensor] | None = None

    def read(self, view: int, shard: int) -> Tensor:
        """Return a shard's activations of a view, shape (n, n_chosen)."""
        if self._shard is None or self._shard[0] != shard:
            self._shard = shard, self.store.read(self.layer, shard).masked_fill(self.dead, 0).T.contiguous()
        return self._shard[1][self.views[view]].T


def choices(rankings: Mapping[str, Ranking], data: LayerData, k: int, draws: int) -> list[Chosen]:
    """Return the first and last k neurons of each ranking except `random`, and `draws` draws of k random neurons."""
    ends = {"top": slice(None, k), "bottom": slice(-k, None)}
    chosen = [
        Chosen(name, end, None, ranking.order[where].tolist())
        for name, ranking in rankings.items()
        if name != "random"
        for end, where in ends.items()
    ]
    return chosen + [Chosen("random", "random", draw, data.draw(k, draw)) for draw in range(1, draws + 1)]


def accuracy_columns(test: Examples, correct: NDArray[np.int64]) -> dict[str, float]:
    """Return the accuracy on the test tokens with its 95% interval, given the correct tokens by sentence."""
    low, high = accuracy_interval(test.clusters(correct), test.clusters(test.tokens_by_sentence()))
    return {"accuracy": float(correct.sum() / test.n_tokens), "accuracy_low": low, "accuracy_high": high}


def is_above_chance(
    test: Examples, correct: NDArray[np.int64], by_chance: Sequence[float], n_judged: int
) -> Literal["yes", "no"]:
    """Return whether an accuracy is above chance: the lower end of its interval is above all accuracies by chance.

    The interval is at the level that leaves 5% for all that are judged together (Bonferroni), and is wider than the
    interval in the row.
    """
    level = 1 - 2 * BY_CHANCE / max(n_judged, 1)
    low, _ = accuracy_interval(test.clusters(correct), test.clusters(test.tokens_by_sentence()), level)
    return "yes" if low > max(by_chance) else "no"


def majority_accuracy(sides: Sides) -> float:
    """Return the accuracy on the test tokens of always predicting the most frequent class of training."""
    labels = sides.test.labels[sides.test.labels >= 0]
    return float((labels == int(sides.train.counts(len(sides.classes)).argmax())).mean())


def evaluate(
    rankings: Mapping[str, Ranking], data: LayerData, sides: Sides, sizes: Sequence[int], draws: int
) -> list[dict[str, Any]]:
    """Return a row for each ranking, probe, end and size, as in `evaluation.csv`, measured on the test tokens.

    `above_chance` compares with the majority class and every draw of k random neurons; all choices of the layer are
    judged together (`is_above_chance`). Rows of random draws have no such verdict. Each size is in 1..d_model.
    """
    test, majority, rows = sides.test, majority_accuracy(sides), []
    entropy = closed_forms.entropy(torch.from_numpy(test.labels[test.labels >= 0]))
    for k in sizes:
        chosen = choices(rankings, data, k, draws)
        n_judged = len(sizes) * len(PROBES) * (len(chosen) - draws)  # the same for every size
        for probe, judge in PROBES.items():
            judged = judge(chosen, data, sides)
            columns = [accuracy_columns(test, fit.correct_by_sentence) for fit in judged]
            by_chance = [majority, *(of["accuracy"] for c, of in zip(chosen, columns, strict=True) if c.draw)]
            for choice, fit, accuracy in zip(chosen, judged, columns, strict=True):
                verdict = is_above_chance(test, fit.correct_by_sentence, by_chance, n_judged)
                bits = entropy - fit.cross_entropy / math.log(2)
                rows.append({
                    "layer": data.layer, "ranking": choice.ranking, "probe": probe, "from": choice.end, "k": k,
                    **({"draw": choice.draw} if choice.draw else {}), **accuracy, "majority_accuracy": majority,
                    **({} if choice.draw else {"above_chance": verdict}),
                    "cross_entropy": fit.cross_entropy, "mutual_information": bits, "share_of_entropy": bits / entropy,
                    "n_train_tokens": fit.n_train_tokens, "n_test_tokens": test.n_tokens,
                })  # fmt: skip
    return rows


class Judged(NamedTuple):
    """Result of a probe on the test tokens: mean cross-entropy in nats, and correct tokens by sentence."""

    cross_entropy: float
    correct_by_sentence: NDArray[np.int64]
    n_train_tokens: int


def linear(chosen: Sequence[Chosen], data: LayerData, sides: Sides) -> list[Judged]:
    """Train a linear probe on each choice of neurons, all in one stack, with the run's penalty, and test it."""
    neurons = [choice.neurons for choice in chosen]
    few = replace(sides, train=thin(sides.train, MOST_TOKENS, data.seed))
    viewed = few.each(lambda examples: of_views(examples, data.layer, neurons, data.moments.dead))
    fits = train_probes(viewed, range(len(chosen)), rough_training(data))
    return [Judged(fit.metrics["cross_entropy"], fit.correct_by_sentence, few.train.n_tokens) for fit in fits]


def of_views(examples: Examples, layer: int, views: Sequence[Sequence[int]], dead: Tensor) -> Examples:
    """Return the examples with views of a layer in place of layers; see `Views`."""
    return replace(examples, store=Views(examples.store, layer, views, dead))


def rough_training(data: LayerData) -> Training:
    """Return training options for probes that are only tested: the run's penalty, solved to `TOLERANCE`."""
    return Training(data.penalty, Lbfgs(TOLERANCE), data.scaling.space)


def of_gaussians(chosen: Sequence[Chosen], data: LayerData, sides: Sides) -> list[Judged]:
    """Test a Gaussian probe of each choice of neurons, without dead neurons."""
    live = [[i for i in choice.neurons if not data.moments.dead[i]] for choice in chosen]
    drawn = [i for i in data.draw(len(chosen[0].neurons), 0) if not data.moments.dead[i]]
    probe = closed_forms.choose_shared(data.classes, *data.validation, drawn)
    nats = torch.zeros(len(chosen), dtype=torch.float64)
    right = torch.zeros(len(chosen), sides.test.store.tokens.n_sentences, dtype=torch.int64)
    for batch in read(sides.test, [data.layer]):
        for i, neurons in enumerate(live):
            log_p = probe.log_p(batch.hidden_states[0], neurons)
            nats[i] -= log_p.gather(1, batch.labels[:, None]).sum()
            right[i].index_add_(0, batch.sentences, (log_p.argmax(1) == batch.labels).long())
    n_train = int(data.classes.counts.sum())
    means = (nats / sides.test.n_tokens).tolist()
    return [Judged(mean, correct.numpy(), n_train) for mean, correct in zip(means, right, strict=True)]


# The probes that judge rankings, by name.
PROBES = {"linear": linear, "gaussian": of_gaussians}

# The same of the probes as k grows.
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)

# Bisection finds the smallest sufficient number to within a fiftieth of itself.
PRECISION = 50

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
    The ranking `random` is omitted, since random neurons are compared with every ranking. There must be validation
    tokens; sizes are at least 1 and less than d_model.
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
    """Return the middle of the smallest sufficient number and the next lower tried number; None once they are close."""
    high = smallest(tops)["k"]
    low = max((row["k"] for row in tops if row["k"] < high), default=0)
    return (low + high) // 2 if high - low > max(1, high // PRECISION) else None


class _Measure:
    """Trains probes of some neurons of a layer and returns their rows."""

    def __init__(self, data: LayerData, sides: Sides) -> None:
        self.data, self.d_model = data, len(data.moments.sd)
        self.sides = replace(sides, train=thin(sides.train, MOST_TOKENS, data.seed))
        self.training = rough_training(data)
        (self.of_all,) = train_probes(self.sides, [data.layer], self.training)

    def __call__(self, kind: str, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
        """Return the rows of choices of equally many neurons, fewer than d_model."""
        neurons = [list(choice.neurons) for choice in chosen]
        rest = [sorted(set(range(self.d_model)) - set(some)) for some in neurons]
        return self._rows(kind, chosen, self._train(neurons if kind == "only" else rest))

    def full(self, ranking: str) -> list[dict[str, Any]]:
        """Return the row of the probe of all neurons, as a row of the given ranking."""
        return self._rows("only", [Chosen(ranking, "top", None, range(self.d_model))], [self.of_all])

    def _train(self, neuron_sets: Sequence[Sequence[int]]) -> list[LayerFit]:
        """Train a probe on each set of neurons; return weights of all neurons, (n_classes, d_model).

        Up to half of the neurons are trained as a narrow problem. For more, starting from the probe of all neurons
        takes a third to a sixth of the time (without 1 and without 10 neurons of the built-in model's last layer).
        """
        layer, dead, train_on = self.data.layer, self.data.moments.dead, self.sides
        if len(neuron_sets[0]) <= self.d_model // 2:
            viewed = train_on.each(lambda examples: of_views(examples, layer, neuron_sets, dead))
            narrow = train_probes(viewed, range(len(neuron_sets)), self.training)
            return [
                replace(fit, weight=torch.zeros_like(self.of_all.weight).index_copy_(1, torch.tensor(some), fit.weight))
                for fit, some in zip(narrow, neuron_sets, strict=True)
            ]
        none = torch.zeros(self.d_model, dtype=torch.bool)
        problems = [
            Problem(f"probe_{i}", 0, self.data.penalty, neurons=none.index_fill(0, torch.tensor(some), True))
            for i, some in enumerate(neuron_sets)
        ]
        return train_variants(train_on, [layer], [self.of_all], problems, self.training, test=True)

    def _rows(self, kind: str, chosen: Sequence[Chosen], fits: Sequence[LayerFit]) -> list[dict[str, Any]]:
        test, data = self.sides.test, self.data
        validation = _accuracies(self.sides.validation, fits, data.layer)
        return [
            {
                "layer": data.layer, "ranking": choice.ranking, "kind": kind, "from": choice.end,
                "k": len(choice.neurons), **({"draw": choice.draw} if choice.draw else {}),
                **accuracy_columns(test, fit.correct_by_sentence),
                "cross_entropy": fit.metrics["cross_entropy"], "validation_accuracy": accuracy,
                "n_train_tokens": self.sides.train.n_tokens, "n_test_tokens": test.n_tokens,
            }
            for choice, fit, accuracy in zip(chosen, fits, validation.tolist(), strict=True)
        ]  # fmt: skip


def _accuracies(examples: Examples, fits: Sequence[LayerFit], layer: int) -> NDArray[np.float64]:
    """Return the accuracy of each probe of a layer, shape (n_fits,); weights are of all neurons."""
    weight = torch.stack([fit.weight for fit in fits])
    right = torch.zeros(len(fits), dtype=torch.int64)
    for batch in read(examples, [layer]):
        right += ((batch.hidden_states[0] @ weight.mT).argmax(2) == batch.labels).sum(1)
    return (right.double() / examples.n_tokens).numpy()


Rows = list[dict[str, Any]]


def heads_of(n_neurons: int, n_heads: int) -> list[range]:
    """Return the neurons of each head: equally many, in order."""
    width = n_neurons // n_heads
    return [range(head * width, (head + 1) * width) for head in range(n_heads)]


def head_contributions(layer: int, contribution: Tensor, n_heads: int) -> Rows:
    """Return a row per head, counted from 1, with its part of the layer's contributions, as in `heads.csv`."""
    total = float(contribution.sum())
    rows = []
    for head, neurons in enumerate(heads_of(len(contribution), n_heads), start=1):
        head_sum = float(contribution[neurons.start : neurons.stop].sum())
        rows.append({
            "layer": layer, "head": head, "first_neuron": neurons.start, "n_neurons": len(neurons),
            "contribution": head_sum, "share": head_sum / total if total else head_sum,
        })  # fmt: skip
    return rows


def head_accuracies(sides: Sides, fit: LayerFit, n_heads: int, training: Training, seed: int) -> Rows:
    """Train a probe on each head's slice and on random slices of its width, all in one stack; return a row per head.

    `above_chance` compares with the majority class and every random slice; all heads of the layer are judged together
    (`is_above_chance`). The probes have the penalty of the layer's probe.
    """
    d_model = fit.weight.shape[1] - n_constants(sides.train.store)
    slices = [list(neurons) for neurons in heads_of(d_model, n_heads)]
    slices += [drawn_neurons(d_model, len(slices[0]), fit.layer, draw, seed) for draw in range(1, DRAWS + 1)]
    few = replace(sides, train=thin(sides.train, MOST_TOKENS, seed))
    viewed = few.each(lambda examples: of_views(examples, fit.layer, slices, fit.moments.dead))
    roughly = replace(training.for_measuring(), solver=Lbfgs(TOLERANCE))
    fits = train_probes(viewed, range(len(slices)), roughly, f"heads of layer {fit.layer}")
    test, majority = sides.test, majority_accuracy(sides)
    columns = [accuracy_columns(test, head_fit.correct_by_sentence) for head_fit in fits]
    drawn, rows = [of["accuracy"] for of in columns[n_heads:]], []
    for accuracy, head_fit in zip(columns[:n_heads], fits, strict=False):
        verdict = is_above_chance(test, head_fit.correct_by_sentence, [majority, *drawn], n_heads)
        rows.append({
            **accuracy, "majority_accuracy": majority, "random_accuracy": float(np.mean(drawn)),
            "random_lowest": min(drawn), "random_highest": max(drawn), "n_random": len(drawn), "above_chance": verdict,
            "n_train_tokens": few.train.n_tokens, "n_test_tokens": test.n_tokens,
        })  # fmt: skip
    return rows


def head_rows(
    sides: Sides,
    fits: Sequence[LayerFit],
    contributions: Sequence[Tensor],
    n_heads: int,
    training: Training | None,
    seed: int,
) -> Rows:
    """Return a row per layer and head, as in `heads.csv`; `training` None measures no accuracies."""
    rows = []
    for fit, contribution in zip(fits, contributions, strict=True):
        shares = head_contributions(fit.layer, contribution, n_heads)
        accuracies: Rows = head_accuracies(sides, fit, n_heads, training, seed) if training else [{}] * n_heads
        rows += [{**share, **accuracy} for share, accuracy in zip(shares, accuracies, strict=True)]
    return rows
