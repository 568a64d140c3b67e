"""Ways to rank the neurons of a layer: each is a function from the data of a layer to a ranking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probing.data.examples import Sides, read
from probing.data.labelling import Sample, load, thin
from probing.data.module import layer_moments
from probing.probes import closed_forms
from probing.probes.objective import centre_over_classes, cross_entropy_sums
from probing.probes.solvers import Evaluation, Penalty, Preconditioner, Solution, lbfgs
from probing.rankings.contributions import ClassMagnitudes, MagnitudeAccumulator, mean_contribution
from probing.statistics.moments import ClassMoments, ClassMomentsAccumulator, Moments, PenaltySpace, Scaling

# l1 falls in STEPS equal ratios, from the value at which every weight is 0 to LAST times that value. On the built-in
# model all but three of 384 neurons have entered by then.
STEPS, LAST = 30, 1e-2
# At each step: bound on the distance from the optimum in nats, and the largest number of passes. On the built-in
# model's layer 6, the first 10, 50 and 100 neurons have 9, 50 and 100 in common with the result of a bound of 1e-3 and
# 60 passes, which takes 1.4 times as long.
TOLERANCE, MAX_PASSES = 1e-2, 20


@dataclass(frozen=True)
class Entries:
    """The step of the path at which each neuron enters.

    Args:
        l1: The strongest penalty at which some weight of the neuron is not 0, or 0 if there is none, shape (d_model,).
        norm: Norm over classes of the neuron's weights at that step, shape (d_model,).
    """

    l1: Tensor
    norm: Tensor


def minimise(
    states: Tensor, labels: Tensor, start: Tensor, penalty: Penalty, preconditioner: Preconditioner
) -> Solution:
    """Train a probe on tokens held in memory.

    Args:
        states: Activations in the space where weights are penalised, shape (n, d_model).
        labels: Class of each token, shape (n,).
        start: Initial weights, shape (n_classes, d_model).
        penalty: Penalty of the weights.
        preconditioner: Preconditioner made from the states.
    """
    solver, n = lbfgs(start, penalty, preconditioner, TOLERANCE), len(labels)
    point = next(solver)
    for n_passes in range(MAX_PASSES + 1):
        sums = cross_entropy_sums(point[None], states, labels)
        here = Evaluation(float(sums.cross_entropy[0]) / n, sums.gradient[0] / n, sums.class_covariance[0] / n)
        try:
            point = solver.send(here if n_passes < MAX_PASSES else None)
        except StopIteration as stop:
            solution: Solution = stop.value
            return solution
    raise RuntimeError("the solver went on after its last pass")


def entries(states: Tensor, labels: Tensor, n_classes: int, l2: float) -> Entries:
    """Follow the elastic-net path (Zou & Hastie 2005; for neurons Dalvi et al. 2019) from no neurons upwards.

    Each step starts from the weights of the step before. A neuron enters as soon as it has a weight
    for any class, and keeps its place in the order even if its weights return to 0 later.

    Args:
        states: Activations in the space where weights are penalised, shape (n, d_model), float32.
        labels: Class of each token, shape (n,).
        n_classes: Number of classes.
        l2: Strength of the squared l2 penalty, the same along the whole path.
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
    """Everything that the methods use of a layer.

    Args:
        layer: Layer number.
        weight: Weight of the layer's probe on raw hidden states, shape (n_classes, d_model).
        penalty: Penalty of that probe.
        scaling: The scaling of the layer's neurons under that penalty.
        classes: Moments of the training tokens by class.
        magnitudes: Class magnitudes of the test tokens, by their true class.
        predicted: Class magnitudes of the test tokens, by the class that the probe predicts.
        train: Training tokens, or a sample of them.
        validation: Validation tokens, or a sample of them.
        seed: Seed of every random draw.
    """

    layer: int
    weight: Tensor
    penalty: Penalty
    scaling: Scaling
    classes: ClassMoments
    magnitudes: ClassMagnitudes
    predicted: ClassMagnitudes
    train: Sample
    validation: Sample
    seed: int

    @property
    def moments(self) -> Moments:
        """Moments of the training tokens."""
        return self.scaling.moments

    @property
    def live(self) -> list[int]:
        """Indices of the neurons that are not dead, ascending; every method but `random` ranks dead neurons last."""
        return (~self.moments.dead).nonzero().squeeze(1).tolist()

    @property
    def standardised_weight(self) -> Tensor:
        """Weight of each neuron once it is divided by its sd, centred over classes, shape (n_classes, d_model)."""
        return centre_over_classes(self.weight.double()) * self.moments.sd

    def standardise(self, values: Tensor) -> Tensor:
        """Divide values, shape (..., d_model), by each neuron's sd; dead neurons give 0."""
        return torch.where(self.moments.dead, 0.0, values / self.moments.sd)

    def draw(self, n_neurons: int, draw: int) -> list[int]:
        """Return randomly drawn neurons, ascending; each number `draw` gives an independent draw."""
        generator = np.random.default_rng([self.seed, self.layer, draw])
        return sorted(generator.permutation(len(self.moments.sd))[:n_neurons].tolist())


def read_layer(
    layer: int, weight: Tensor, penalty: Penalty, penalty_space: PenaltySpace, sides: Sides, seed: int
) -> LayerData:
    """Stream a layer's training tokens twice and its test tokens once, and return the layer's data.

    Args:
        layer: Layer number.
        weight: Weight of the layer's probe on raw hidden states, shape (n_classes, d_model).
        penalty: Penalty of that probe.
        penalty_space: Space in which that probe's weights are penalised.
        sides: Examples and their classes.
        seed: Seed of every random draw.
    """
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
    """A ranking of all neurons of a layer.

    Args:
        order: Neuron indices from the first to the last, shape (d_model,).
        score: Score of each neuron, by which it is ranked, shape (d_model,).
    """

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

    For each class, the top neurons at p percent are the fewest that hold p percent of the sum of the
    class's absolute weights. As p goes from 1 to 100, a neuron enters with the first class that has it
    in its top. Neurons that enter together are ordered by their mean weight. The score is the share of
    the mass that is not yet reached, 1 - p / 100.
    """
    sizes = data.standardised_weight.abs()
    largest_first = sizes.sort(dim=1, descending=True, stable=True)
    before = torch.zeros_like(sizes).scatter_(1, largest_first.indices, largest_first.values.cumsum(1)) - sizes
    share = before / sizes.sum(1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
    # A neuron is in the top at p percent if those before it hold less; 1e-9 keeps rounding from turning p into less.
    enters = ((share.min(0).values * 100 + 1e-9).floor() + 1).clamp(max=100)
    return by_score(1 - enters / 100, ties=sizes.mean(0))


def elastic_net_path(data: LayerData) -> Ranking:
    """Rank by the l1 penalty at which a neuron enters; those of one step by the norm of their weights.

    The score is that penalty; it is 0 for neurons that never enter.
    """
    states = data.scaling.features(data.train.hidden_states)
    found = entries(states, data.train.labels, len(data.weight), data.penalty.l2)
    return by_score(found.l1, ties=torch.where(data.moments.dead, -1.0, found.norm))


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

    The first 50 neurons stand in the order of their selection, the others by the information that they would
    add to these. The score is the information in bits that a neuron adds at its step.
    """
    states, labels = data.validation
    # The covariance's shrinkage is chosen for probes of this size, on random neurons so that no ranking is favoured.
    drawn = [i for i in data.draw(SELECTED, 0) if not data.moments.dead[i]]
    probe = closed_forms.choose_shared(data.classes, states, labels, drawn)
    found = closed_forms.select(probe, states, labels, data.live, SELECTED)
    score = torch.zeros(len(data.moments.sd), dtype=torch.float64)
    score[data.live] = found.with_next - found.information[-1]
    others = by_score(torch.where(data.moments.dead, -torch.inf, score)).order.tolist()
    score[found.neurons] = torch.tensor(found.information, dtype=torch.float64).diff()
    selected = set(found.neurons)
    return Ranking(torch.tensor([*found.neurons, *(i for i in others if i not in selected)]), score)


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
