"""How good rankings are: probes of their first, of their last and of random neurons (Antverg & Belinkov 2022).

A ranking is not judged only by the probe that made it: each is judged by a linear probe, trained
anew on the chosen neurons alone, and by a Gaussian one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.plan import Plan, Shard
from probing.cache.tokens import Tokens
from probing.data.examples import Activations, Examples, Sides, read
from probing.data.subsample import thin
from probing.probes import gaussian
from probing.probes.recipe import Lbfgs, Training
from probing.probes.training import train_probes
from probing.rankings.methods import LayerData, Ranking
from probing.statistics.intervals import accuracy_interval

# Sizes that are looked at, where nobody says otherwise and the layer has more neurons.
SIZES = (10, 50, 100)
# How many times random neurons are drawn, where nobody says otherwise.
DRAWS = 10
# Training tokens of the linear probes, whole sentences drawn evenly where there are more.
MOST_TOKENS = 50_000
# How far these are from their optimum at most, in nats. On the built-in model's layer 6 accuracies are within .002 of
# those at a tenth of that.
TOLERANCE = 1e-2

# Chance that any of a layer's choices is called better than chance where none is.
BY_CHANCE = 0.05

EVALUATION_COLUMNS = (
    "layer", "ranking", "probe", "from", "k", "draw", "accuracy", "accuracy_low", "accuracy_high", "majority_accuracy",
    "above_chance", "cross_entropy", "mutual_information", "share_of_entropy", "n_train_tokens", "n_test_tokens",
)  # fmt: skip
# What tells one row from another.
EVALUATION_KEY = ("layer", "ranking", "probe", "from", "k", "draw")


@dataclass(frozen=True)
class Chosen:
    """Neurons that a probe is to make do with.

    Args:
        ranking: What they were chosen by, `random` for none.
        end: `top`, `bottom` or `random`.
        draw: Which draw it is, from 1, of random ones.
        neurons: Indices.
    """

    ranking: str
    end: str
    draw: int | None
    neurons: Sequence[int]


class Columns:
    """Reads like a store whose layers are choices of neurons from one layer; dead neurons are 0 in it.

    Args:
        store: Where the activations are.
        layer: Layer number.
        chosen: For each choice its neurons, equally many.
        dead: Which neurons of the layer hardly vary, shape (d_model,), bool.
    """

    def __init__(self, store: Activations, layer: int, chosen: Sequence[Sequence[int]], dead: Tensor) -> None:
        self.store, self.layer, self.dead = store, layer, dead
        self.tokens: Tokens = store.tokens
        self.plan: Plan = replace(store.plan, d_model=len(chosen[0]))
        self.chosen = [torch.tensor(list(neurons)) for neurons in chosen]
        # The last one, which every choice reads: neuron by neuron, so that some are taken without the others.
        self._shard: tuple[int, Tensor] | None = None

    def shard_tokens(self, shard: Shard) -> slice:
        """Return which rows of the table of tokens are in the shard."""
        return self.store.shard_tokens(shard)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return a shard's activations of one choice, shape (n, n_chosen)."""
        if self._shard is None or self._shard[0] != shard:
            self._shard = shard, self.store.read(self.layer, shard).masked_fill(self.dead, 0).T.contiguous()
        return self._shard[1][self.chosen[layer]].T


def choices(rankings: Mapping[str, Ranking], data: LayerData, k: int, draws: int) -> list[Chosen]:
    """Return the first and the last k neurons of each ranking but `random`, and k random ones as often as asked for."""
    ends = {"top": slice(None, k), "bottom": slice(-k, None)}
    chosen = [
        Chosen(name, end, None, ranking.order[where].tolist())
        for name, ranking in rankings.items()
        if name != "random"
        for end, where in ends.items()
    ]
    return chosen + [Chosen("random", "random", draw, data.draw(k, draw)) for draw in range(1, draws + 1)]


def evaluate(
    rankings: Mapping[str, Ranking], data: LayerData, sides: Sides, sizes: Sequence[int], draws: int
) -> list[dict[str, Any]]:
    """Return a row for each ranking, probe, end and size, as in `evaluation.csv`; tested on the test tokens.

    Neurons are above chance (`yes`) where the interval of their accuracy is above the majority class and each draw of
    as many random neurons; these are not judged themselves. That interval is at the level which leaves 5% for all
    choices of the layer together (Bonferroni), and so is wider than the one that is shown.

    Args:
        rankings: By name.
        data: Of the layer.
        sides: Examples and their classes.
        sizes: Numbers of neurons, each at least 1 and at most d_model.
        draws: How many times as many neurons are drawn blindly.
    """
    test = sides.test
    labels, n_tokens = torch.from_numpy(test.labels[test.labels >= 0]), test.clusters(test.tokens_by_sentence())
    majority = float((labels == int(sides.train.counts(len(sides.classes)).argmax())).double().mean())
    rows = []
    n_judged = len(sizes) * len(PROBES) * (len(choices(rankings, data, sizes[0], draws)) - draws)
    for k in sizes:
        chosen = choices(rankings, data, k, draws)
        for probe, judge in PROBES.items():
            judged = judge(chosen, data, sides)
            right = [float(found.correct_by_sentence.sum() / len(labels)) for found in judged]
            by_chance = [majority, *(a for c, a in zip(chosen, right, strict=True) if c.end == "random")]
            for choice, found, accuracy in zip(chosen, judged, right, strict=True):
                correct = test.clusters(found.correct_by_sentence)
                low, high = accuracy_interval(correct, n_tokens)
                cautious, _ = accuracy_interval(correct, n_tokens, 1 - 2 * BY_CHANCE / max(n_judged, 1))
                bits = gaussian.entropy(labels) - found.cross_entropy / math.log(2)
                rows.append({
                    "layer": data.layer, "ranking": choice.ranking, "probe": probe, "from": choice.end, "k": k,
                    **({"draw": choice.draw} if choice.draw else {}),
                    "accuracy": accuracy, "accuracy_low": low, "accuracy_high": high, "majority_accuracy": majority,
                    **({} if choice.draw else {"above_chance": "yes" if cautious > max(by_chance) else "no"}),
                    "cross_entropy": found.cross_entropy, "mutual_information": bits,
                    "share_of_entropy": bits / gaussian.entropy(labels),
                    "n_train_tokens": found.n_train_tokens, "n_test_tokens": len(labels),
                })  # fmt: skip
    return rows


class Judged(NamedTuple):
    """What a probe of some neurons does on the test tokens.

    Args:
        cross_entropy: In nats.
        correct_by_sentence: Tokens rightly predicted, for each sentence of the corpus tested on.
        n_train_tokens: Tokens that it was trained on.
    """

    cross_entropy: float
    correct_by_sentence: NDArray[np.int64]
    n_train_tokens: int


def linear(chosen: Sequence[Chosen], data: LayerData, sides: Sides) -> list[Judged]:
    """Train a linear probe on each choice of neurons, all in one stack, with the penalty of the run's own; test it."""
    places = [choice.neurons for choice in chosen]
    few = replace(sides, train=thin(sides.train, MOST_TOKENS, data.seed))
    columns = few.each(lambda examples: of_columns(examples, data.layer, places, data.moments.dead))
    fits = train_probes(columns, range(len(chosen)), rough_training(data))
    return [Judged(fit.metrics["cross_entropy"], fit.correct_by_sentence, few.train.n_tokens) for fit in fits]


def of_columns(examples: Examples, layer: int, chosen: Sequence[Sequence[int]], dead: Tensor) -> Examples:
    """Return the examples with choices of neurons in place of layers, as `Columns` has them."""
    return replace(examples, store=Columns(examples.store, layer, chosen, dead))


def rough_training(data: LayerData) -> Training:
    """Return how probes that are only to be tested are trained: with the run's penalty, to `TOLERANCE`."""
    return Training(data.penalty, Lbfgs(TOLERANCE), data.penalty_space)


def of_gaussians(chosen: Sequence[Chosen], data: LayerData, sides: Sides) -> list[Judged]:
    """Test a Gaussian probe of each choice of neurons; dead ones are left out."""
    live = [[i for i in choice.neurons if not data.moments.dead[i]] for choice in chosen]
    drawn = [i for i in data.draw(len(chosen[0].neurons), 0) if not data.moments.dead[i]]
    probe = gaussian.choose_shared(data.classes, *data.validation, drawn)
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


# What rankings are judged by.
PROBES = {"linear": linear, "gaussian": of_gaussians}
