"""Methods that rank the neurons of a layer: functions from the data of a layer to a ranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides, read, read_share
from probing.data.labelling import LayerSample, load, thin
from probing.data.module import layer_moments, permute_among_types, token_types
from probing.probes import closed_forms
from probing.probes.solvers import (
    Evaluation,
    Penalty,
    Preconditioner,
    Problem,
    Solution,
    centre_over_classes,
    cross_entropy_sums,
    lbfgs,
)
from probing.probes.training import Adam, LayerFit, Training, train_probes, train_problems
from probing.runtime.processes import sum_over_ranks
from probing.statistics import ranked
from probing.statistics.moments import ClassMoments, ClassMomentsAccumulator, Moments, PenaltySpace, Scaling


def neuron_contributions(weight: Tensor, hidden_states: Tensor) -> Tensor:
    """Split each logit of a probe without an intercept into weight x activation per neuron, signed, in logit units.

    The sum over the last axis is the logit of the weight centred over classes.

    Args:
        weight: Probe weight, shape (n_classes, d_model).
        hidden_states: Activations of a layer, shape (n_tokens, d_model).

    Returns:
        Shape (n_tokens, n_classes, d_model).

    Raises:
        ValueError: If the arguments differ in d_model.
    """
    if weight.shape[-1] != hidden_states.shape[-1]:
        raise ValueError(
            f"weight {tuple(weight.shape)} and hidden_states {tuple(hidden_states.shape)} differ in d_model"
        )
    return centre_over_classes(weight) * hidden_states[:, None, :]


@dataclass(frozen=True)
class ClassMagnitudes:
    """Sums of neuron magnitudes by class, which suffice for mean contributions.

    Args:
        counts: Tokens of each class, shape (n_classes,), float64.
        magnitude: Sum over the class's tokens of |v|, shape (n_classes, d_model), float64.
        deviation: Sum over the class's tokens of |v - mean|, with the mean over the training tokens, of the same shape.
    """

    counts: Tensor
    magnitude: Tensor
    deviation: Tensor


class MagnitudeAccumulator:
    """Accumulates class magnitudes without a tensor of (n_tokens, n_classes, d_model), given the training mean."""

    def __init__(self, mean: Tensor, n_classes: int) -> None:
        self.mean = mean
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        self.magnitude = torch.zeros(n_classes, len(mean), dtype=torch.float64)
        self.deviation = torch.zeros_like(self.magnitude)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens, shapes (n, d_model) and (n,); tokens labelled -1 are ignored."""
        labelled = labels >= 0
        states, classes = hidden_states[labelled].double(), labels[labelled]
        self.counts += classes.bincount(minlength=len(self.counts))
        self.magnitude.index_add_(0, classes, states.abs())
        self.deviation.index_add_(0, classes, (states - self.mean).abs_())

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums; `sum_over_ranks` returns the sum of a tensor over processes."""
        self.counts = sum_over_ranks(self.counts)
        self.magnitude, self.deviation = sum_over_ranks(self.magnitude), sum_over_ranks(self.deviation)

    def result(self) -> ClassMagnitudes:
        """Return the accumulated sums."""
        return ClassMagnitudes(self.counts, self.magnitude, self.deviation)


def class_magnitudes(
    examples: Examples, layers: Sequence[int], means: Sequence[Tensor], n_classes: int | None
) -> list[ClassMagnitudes]:
    """Stream examples, divided among ranks, and return the class magnitudes of each layer.

    `means` are over the training tokens. `n_classes` None means numbers, whose probe has a single logit, the
    prediction.
    """
    accumulators = [MagnitudeAccumulator(mean, n_classes or 1) for mean in means]
    for batch in read_share(examples, layers):
        labels = torch.zeros_like(batch.labels) if n_classes is None else batch.labels
        for sums, states in zip(accumulators, batch.hidden_states, strict=True):
            sums.update(states, labels)
    for sums in accumulators:
        sums.all_reduce(sum_over_ranks)
    return [sums.result() for sums in accumulators]


def class_contributions(weight: Tensor, sums: ClassMagnitudes) -> Tensor:
    """Return the mean of |W[c, i] * v[i]| over the tokens of each class c; 0 for a class without tokens.

    Weight and result have shape (n_classes, d_model); the result is in logit units, float64.
    """
    return centre_over_classes(weight.double()).abs() * sums.magnitude / sums.counts.clamp(min=1)[:, None]


def mean_contribution(weight: Tensor, sums: ClassMagnitudes, centred: bool = False) -> Tensor:
    """Return the mean over tokens of |W[y, i] * v[i]|, y the token's true class (Luo et al. 2021, section 3.3).

    The result has shape (d_model,), in logit units, float64.

    Args:
        weight: Probe weight, shape (n_classes, d_model).
        sums: Class magnitudes of the same layer.
        centred: Use v[i] - mean(v[i]) instead of v[i].
    """
    size = sums.deviation if centred else sums.magnitude
    return (centre_over_classes(weight.double()).abs() * size).sum(0) / sums.counts.sum().clamp(min=1)


def sentence_contributions(weight: Tensor, hidden_states: Tensor, labels: Tensor, rows: Tensor, out: Tensor) -> None:
    """Add to each sentence's row of `out`, (n_sentences, d_model), the sum over its tokens of |W[y, i] * v[i]|.

    `weight` has shape (n_classes, d_model), `hidden_states` (n, d_model), `labels` and `rows` (each token's row of
    `out`) (n,). `out` is float64.
    """
    sizes = centre_over_classes(weight.double()).abs()
    out.index_add_(0, rows, sizes[labels] * hidden_states.double().abs())


# Neurons of each class in the table; `contributions.safetensors` has all.
MOST = 20


def class_rows(layer: int, weight: Tensor, sums: ClassMagnitudes, classes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a row per class with tokens and neuron among its first `MOST`, as in `classes.csv`."""
    contribution, centred = class_contributions(weight, sums), centre_over_classes(weight.double())
    totals, n_tokens = contribution.sum(1).tolist(), sums.counts.int().tolist()
    return [
        {
            "layer": layer, "class": label, "n_test_tokens": n_tokens[c], "rank": rank, "neuron": neuron,
            "contribution": float(contribution[c, neuron]),
            "share": float(contribution[c, neuron]) / totals[c] if totals[c] else 0.0,
            "weight": float(centred[c, neuron]),
        }
        for c, label in enumerate(classes)
        if n_tokens[c]
        for rank, neuron in ranked(contribution[c].numpy())[:MOST]
    ]  # fmt: skip


def control_task_shares(draws: Sequence[Sides], fits: Sequence[Sequence[LayerFit]]) -> list[Tensor]:
    """Return each neuron's share of the contributions to probes of a control task, averaged over draws, by layer.

    Shares have shape (d_model,), float64. A neuron whose share is as large there as in the probe of the task
    distinguishes words rather than classes: for accuracy, this is the selectivity of Hewitt & Liang (2019). Draws have
    the same tokens.
    """
    labels = [torch.from_numpy(sides.test.labels).long() for sides in draws]
    by_layer = []
    for of_layer in zip(*fits, strict=True):
        sums = [MagnitudeAccumulator(fit.moments.mean, fit.weight.shape[0]) for fit in of_layer]
        for batch in read_share(draws[0].test, [of_layer[0].layer]):
            for accumulator, of_draw in zip(sums, labels, strict=True):
                accumulator.update(batch.hidden_states[0], of_draw[batch.rows])
        shares = []
        for accumulator, fit in zip(sums, of_layer, strict=True):
            accumulator.all_reduce(sum_over_ranks)
            contribution = mean_contribution(fit.weight, accumulator.result())
            shares.append(contribution / contribution.sum().clamp(min=1e-300))
        by_layer.append(torch.stack(shares).mean(0))
    return by_layer


# l1 falls in STEPS equal ratios, from the value at which every weight is 0 to LAST times that value. On the built-in
# model all but three of 384 neurons have entered by then.
STEPS, LAST = 30, 1e-2

# At each step: bound on the distance from the optimum in nats, and the largest number of passes. On the built-in
# model's layer 6, the first 10, 50 and 100 neurons have 9, 50 and 100 in common with the result of a bound of 1e-3 and
# 60 passes, which takes 1.4 times as long.
TOLERANCE, MAX_PASSES = 1e-2, 20


@dataclass(frozen=True)
class Entries:
    """Strongest l1 at which some weight of each neuron is not 0 (0 if none), and the norm of the weights there."""

    l1: Tensor
    norm: Tensor


def minimise(
    states: Tensor, labels: Tensor, start: Tensor, penalty: Penalty, preconditioner: Preconditioner
) -> Solution:
    """Train a probe on tokens in memory; states (n, d_model) are scaled, and the preconditioner belongs to them."""
    solver, n = lbfgs(start, penalty, preconditioner, TOLERANCE), len(labels)
    point = next(solver)
    for n_passes in range(MAX_PASSES + 1):
        sums = cross_entropy_sums(point[None], states, labels)
        evaluation = Evaluation(float(sums.cross_entropy[0]) / n, sums.gradient[0] / n, sums.class_covariance[0] / n)
        try:
            point = solver.send(evaluation if n_passes < MAX_PASSES else None)
        except StopIteration as stop:
            solution: Solution = stop.value
            return solution
    raise RuntimeError("the solver went on after its last pass")


def entries(states: Tensor, labels: Tensor, n_classes: int, l2: float) -> Entries:
    """Follow the elastic-net path (Zou & Hastie 2005; for neurons Dalvi et al. 2019) from no neurons upwards.

    Each step starts from the weights of the previous step. A neuron enters as soon as it has a weight for any class,
    and does not lose its place if its weights return to 0 later. States, (n, d_model), are scaled as for the penalty.
    """
    n, d_model = states.shape
    preconditioner = Preconditioner((states.T @ states).double() / n)
    weight = torch.zeros(n_classes, d_model)
    strongest = float((cross_entropy_sums(weight[None], states, labels).gradient / n).abs().max())
    l1, norm = torch.zeros(d_model, dtype=torch.float64), torch.zeros(d_model, dtype=torch.float64)
    for step in range(1, STEPS + 1):
        penalty = Penalty(strongest * LAST ** (step / STEPS), l2)
        weight = minimise(states, labels, weight, penalty, preconditioner).point
        new = (weight != 0).any(0) & (l1 == 0)
        l1[new] = penalty.l1
        norm[new] = weight[:, new].double().norm(dim=0)
    return Entries(l1, norm)


# Number of neurons that greedy selection chooses; the others follow by the information that each would add next.
SELECTED = 50

# Most tokens held in memory: training tokens for the elastic net, validation tokens for greedy selection.
MOST_TRAIN, MOST_VALIDATION = 50_000, 8_192


@dataclass(frozen=True)
class LayerData:
    """Inputs of the ranking methods for a layer.

    Args:
        weight: Weight of the layer's probe on raw hidden states, shape (n_classes, d_model).
        classes: Moments of the training tokens by class.
        magnitudes: Class magnitudes of the test tokens, by true class; `predicted` by predicted class.
        train: Training tokens, or a sample of them; `validation` likewise.
    """

    layer: int
    weight: Tensor
    penalty: Penalty
    scaling: Scaling
    classes: ClassMoments
    magnitudes: ClassMagnitudes
    predicted: ClassMagnitudes
    train: LayerSample
    validation: LayerSample
    seed: int

    @property
    def moments(self) -> Moments:
        """Moments of the training tokens."""
        return self.scaling.moments

    @property
    def live(self) -> list[int]:
        """Indices of live neurons, ascending; every method but `random` ranks dead neurons last."""
        return (~self.moments.dead).nonzero().squeeze(1).tolist()

    @property
    def standardised_weight(self) -> Tensor:
        """Weight on neurons divided by their sd, centred over classes, shape (n_classes, d_model)."""
        return centre_over_classes(self.weight.double()) * self.moments.sd

    def standardise(self, values: Tensor) -> Tensor:
        """Divide values, shape (..., d_model), by each neuron's sd; dead neurons give 0."""
        return torch.where(self.moments.dead, 0.0, values / self.moments.sd)

    def draw(self, n_neurons: int, draw: int) -> list[int]:
        """Return randomly drawn neurons, ascending; each `draw` gives an independent draw."""
        return drawn_neurons(len(self.moments.sd), n_neurons, self.layer, draw, self.seed)


def drawn_neurons(d_model: int, n_neurons: int, layer: int, draw: int, seed: int) -> list[int]:
    """Return randomly drawn neurons of a layer, ascending; each `draw` gives an independent draw."""
    generator = np.random.default_rng([seed, layer, draw])
    return sorted(generator.permutation(d_model)[:n_neurons].tolist())


def read_layer(
    layer: int, weight: Tensor, penalty: Penalty, penalty_space: PenaltySpace, sides: Sides, seed: int
) -> LayerData:
    """Stream a layer's training, validation and test tokens, and return the layer's data."""
    (moments,) = layer_moments(sides.train, [layer])
    classes = ClassMomentsAccumulator(weight.shape[1], len(weight))
    for batch in read(sides.train, [layer]):
        classes.update(batch.hidden_states[0], batch.labels)
    true, predicted = (MagnitudeAccumulator(moments.mean, len(weight)) for _ in range(2))
    for batch in read(sides.test, [layer]):
        (states,) = batch.hidden_states
        true.update(states, batch.labels)
        predicted.update(states, (states @ weight.T).argmax(1))
    train = load(thin(sides.train, MOST_TRAIN, seed), layer)
    validation = load(thin(sides.validation, MOST_VALIDATION, seed), layer)
    return LayerData(
        layer, weight, penalty, Scaling(moments, penalty_space), classes.result(), true.result(), predicted.result(),
        train, validation, seed,
    )  # fmt: skip


@dataclass(frozen=True)
class Ranking:
    """Neuron indices in the order of a ranking, shape (d_model,), and the score of each neuron."""

    order: Tensor
    score: Tensor


def by_score(score: Tensor, ties: Tensor | None = None) -> Ranking:
    """Rank from the highest to the lowest score; equal scores by `ties`, then by lower index."""
    keys = [-score.numpy()] if ties is None else [-ties.numpy(), -score.numpy()]
    return Ranking(torch.from_numpy(np.lexsort(keys)), score)


def contribution(data: LayerData) -> Ranking:
    """Rank by the mean over test tokens of |W[y, i] v[i]|, y the true class (Luo et al. 2021, section 3.3)."""
    return by_score(mean_contribution(data.weight, data.magnitudes))


def contribution_predicted(data: LayerData) -> Ranking:
    """Rank by the mean over test tokens of |W[y, i] v[i]|, y the class that the probe predicts."""
    return by_score(mean_contribution(data.weight, data.predicted))


def contribution_all(data: LayerData) -> Ranking:
    """Rank by the mean over test tokens and over all classes c of |W[c, i] v[i]|."""
    magnitude = data.magnitudes.magnitude.sum(0) / data.magnitudes.counts.sum()
    return by_score(centre_over_classes(data.weight.double()).abs().mean(0) * magnitude)


def contribution_centred(data: LayerData) -> Ranking:
    """Rank by the mean over test tokens of |W[y, i] (v[i] - mean(v[i]))|, the mean over training tokens."""
    return by_score(mean_contribution(data.weight, data.magnitudes, centred=True))


def weight(data: LayerData) -> Ranking:
    """Rank by the mean over classes of |W[c, i]| sd[i], the size of the weight for standardised neurons."""
    return by_score(data.standardised_weight.abs().mean(0))


def weight_mass(data: LayerData) -> Ranking:
    """Rank by the share of the weights' mass at which a neuron enters (Dalvi et al. 2019, as in NeuroX).

    For each class, the top neurons at p percent are the fewest with p percent of the sum of the class's absolute
    weights. As p goes from 1 to 100, a neuron enters with the first class that has it in its top. Neurons that enter
    together are ordered by their mean weight. The score is the remaining share of the mass, 1 - p / 100.
    """
    sizes = data.standardised_weight.abs()
    largest_first = sizes.sort(dim=1, descending=True, stable=True)
    before = torch.zeros_like(sizes).scatter_(1, largest_first.indices, largest_first.values.cumsum(1)) - sizes
    share = before / sizes.sum(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    # A neuron is in the top at p percent if those before it hold less; 1e-9 keeps rounding from turning p into less.
    enters = ((share.min(0).values * 100 + 1e-9).floor() + 1).clamp(max=100)
    return by_score(1 - enters / 100, ties=sizes.mean(0))


def elastic_net_path(data: LayerData) -> Ranking:
    """Rank by the l1 penalty at which a neuron enters (0 if it never does), ties by the norm of its weights."""
    states = data.scaling.features(data.train.hidden_states)
    entered = entries(states, data.train.labels, len(data.weight), data.penalty.l2)
    return by_score(entered.l1, ties=torch.where(data.moments.dead, -1.0, entered.norm))


def mean_differences(mean: Tensor) -> Tensor:
    """Return the sum over pairs of classes of |mean[a] - mean[b]|: (n_classes, d_model) becomes (d_model,)."""
    gaps = mean.sort(0).values.diff(dim=0)
    # Of K sorted means, the gap after the k-th lies between the two means of k (K - k) pairs.
    k = torch.arange(1, len(mean), dtype=mean.dtype)
    return (k * (len(mean) - k)) @ gaps


def probeless(data: LayerData) -> Ranking:
    """Rank by the distance between class means, summed over pairs of classes (Antverg & Belinkov 2022)."""
    return by_score(mean_differences(data.classes.mean))


def probeless_standardised(data: LayerData) -> Ranking:
    """Rank as `probeless` does, with distances in units of each neuron's standard deviation."""
    return by_score(data.standardise(mean_differences(data.classes.mean)))


def anova(data: LayerData) -> Ranking:
    """Rank by the F statistic of a one-way analysis of variance on the training tokens."""
    n, n_classes = float(data.classes.counts.sum()), len(data.weight)
    f = (data.classes.between / (n_classes - 1)) / (data.classes.within / (n - n_classes))
    return by_score(torch.where(data.moments.dead, 0.0, f))


def gaussian_selection(data: LayerData) -> Ranking:
    """Rank by greedy selection with a Gaussian probe on validation tokens (Torroba Hennigen et al. 2020).

    The first 50 neurons are in the order of their selection, the others by the information that they would add to
    these. The score is the information in bits that a neuron adds at its step.
    """
    states, labels = data.validation
    # The covariance's shrinkage is chosen for probes of this size, on random neurons so that no ranking is favoured.
    drawn = [i for i in data.draw(SELECTED, 0) if not data.moments.dead[i]]
    probe = closed_forms.choose_shared(data.classes, states, labels, drawn)
    selection = closed_forms.select(probe, states, labels, data.live, SELECTED)
    score = torch.zeros(len(data.moments.sd), dtype=torch.float64)
    score[data.live] = selection.with_next - selection.information[-1]
    others = by_score(torch.where(data.moments.dead, -torch.inf, score)).order.tolist()
    score[selection.neurons] = torch.tensor(selection.information, dtype=torch.float64).diff()
    selected = set(selection.neurons)
    return Ranking(torch.tensor([*selection.neurons, *(i for i in others if i not in selected)]), score)


def random(data: LayerData) -> Ranking:
    """Rank at random, with scores between 0 and 1."""
    return by_score(torch.from_numpy(np.random.default_rng([data.seed, data.layer]).random(len(data.moments.sd))))


# The methods by the name that `rank --method` takes, in the order of tables.
METHODS: dict[str, Callable[[LayerData], Ranking]] = {
    "contribution": contribution,
    "contribution_predicted": contribution_predicted,
    "contribution_all": contribution_all,
    "contribution_centred": contribution_centred,
    "weight": weight,
    "weight_mass": weight_mass,
    "elastic_net": elastic_net_path,
    "probeless": probeless,
    "probeless_standardised": probeless_standardised,
    "anova": anova,
    "gaussian": gaussian_selection,
    "random": random,
}

# Bound on the distance of shuffled-label probes from their optima, in nats; the true distance is about its hundredth.
# On the built-in model (65 positions; 16 parts of speech) rankings at this tolerance correlate by .99 or more with
# those at the optima, and the agreement of two of them changes by .003 or less; for comparison, it varies by .04
# between draws.
NULL_TOLERANCE = 0.1

# Where labels say little, as under the strong penalty that is then chosen, a probe gains less than that over weight 0:
# it would stop there, and its ranking would be empty.
NULL_GAIN_SHARE = 0.03


def shuffled_among_types(sides: Sides, n_draws: int, seed: int) -> list[Sides]:
    """Assign the labels of each word type to another type of similar frequency; return the sides of each of `n_draws`.

    A type has the same labels on all sides, so a probe that memorises words also predicts the test side.
    """
    parts = (sides.train, sides.validation, sides.test)
    rows = [np.flatnonzero(part.labels >= 0) for part in parts]
    labels = np.concatenate([part.labels[labelled] for part, labelled in zip(parts, rows, strict=True)])
    types = np.concatenate(
        [token_types(part.store.tokens)[labelled] for part, labelled in zip(parts, rows, strict=True)]
    )
    ends = np.cumsum([len(labelled) for labelled in rows])[:-1]
    draws = (np.split(draw, ends) for draw in permute_among_types(labels, types, n_draws, seed))
    return [_relabelled(sides, rows, draw) for draw in draws]


def _relabelled(sides: Sides, rows: Sequence[NDArray[np.intp]], labels: Sequence[NDArray[np.int32]]) -> Sides:
    changed = []
    for part, labelled, new_labels in zip((sides.train, sides.validation, sides.test), rows, labels, strict=True):
        changed.append(replace(part, labels=part.labels.copy()))
        changed[-1].labels[labelled] = new_labels
    train, validation, test = changed
    return replace(sides, train=train, validation=validation, test=test)


def null_rankings(
    sides: Sides,
    layers: Sequence[int],
    training: Training,
    n_draws: int,
    seed: int,
) -> NDArray[np.float64]:
    """Return contributions by probes of shuffled labels, trained as the run's, (n_layers, n_draws, d_model)."""
    draws = shuffled_among_types(sides, n_draws, seed)
    scores = np.zeros((len(layers), n_draws, sides.train.store.plan.d_model))
    for layer_scores, layer in zip(scores, layers, strict=True):
        fits = _fits(sides, draws, layer, training)
        layer_scores[:] = _contributions(fits, draws, layer)
    return scores


def _fits(sides: Sides, draws: Sequence[Sides], layer: int, training: Training) -> list[LayerFit]:
    """Return a probe for each draw: all trained in one stack, except for Adam, which trains them in sequence."""
    what = f"layer {layer} under shuffled labels"
    if isinstance(training.solver, Adam):  # Adam stops short of the optimum, so null rankings must too
        fits = (train_probes(draw, [layer], training.for_controls(), what) for draw in draws)
        return [fit for (fit,) in fits]
    problems = [
        Problem(
            f"draw_{i}", 0, training.penalty, labels=torch.from_numpy(draw.train.labels), gain_share=NULL_GAIN_SHARE
        )
        for i, draw in enumerate(draws)
    ]
    moments = layer_moments(sides.train, [layer])
    return train_problems(sides, [layer], moments, problems, training.loosened(NULL_TOLERANCE), what)


def _contributions(fits: Sequence[LayerFit], draws: Sequence[Sides], layer: int) -> NDArray[np.float64]:
    """Return the mean contribution of each neuron under each draw, shape (n_draws, d_model)."""
    sums = [MagnitudeAccumulator(fit.moments.mean, len(fit.weight)) for fit in fits]
    for batch in read(draws[0].test, [layer]):
        rows = batch.rows.numpy()
        for accumulator, draw in zip(sums, draws, strict=True):
            accumulator.update(batch.hidden_states[0], torch.from_numpy(draw.test.labels[rows].astype(np.int64)))
    pairs = zip(fits, sums, strict=True)
    return np.stack([mean_contribution(fit.weight, accumulator.result()).numpy() for fit, accumulator in pairs])
