"""The ranked neuron table of a layer, with the evidence for or against each neuron."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from probing.data.examples import Examples, n_spans, read_clusters, read_share
from probing.data.labelling import thin
from probing.probes.closed_forms import NumberFit
from probing.probes.rankings import ClassMagnitudes, class_magnitudes, mean_contribution
from probing.probes.solvers import centre_over_classes
from probing.probes.training import LayerFit
from probing.runtime.processes import sum_over_ranks
from probing.statistics import ranked
from probing.statistics.chance import discovery_rates, holm, rotation_of_parts
from probing.statistics.label_scores import (
    ConditionalAccumulator,
    EtaSquared,
    EtaSquaredAccumulator,
    StratumMeans,
    WithinStrata,
    neurons_at_a_time,
    strata_with_several,
)
from probing.statistics.moments import Moments, PenaltySpace, Scaling
from probing.tables import (
    ALPHA,
    BASIS_KINDS,
    CONCENTRATION,
    FAR,
    FIRST,
    NEGLIGIBLE,
    NEGLIGIBLE_NATS,
    UNINFORMATIVE,
    UNRESOLVED,
)
from probing.tables.schema import FALSE_DISCOVERIES, NEURONS, WITHIN_COVARIATE

# Test tokens that are read, whole sentences drawn evenly.
N_TOKENS = 4_000

# Numbers at a time, so that a wide layer takes no more memory than a narrow one.
AT_A_TIME = 2**17

# Sums of equal parts differ in the last bits alone.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Directions:
    """Contributions of a layer's neurons and of the directions of rotations, on the same test tokens.

    The first axis is `BASIS_KINDS`: raw contributions, and contributions without the training means. Shapes are (2,
    d_model), 0 for dead neurons, and (2, n_rotations, n_live), highest first.
    """

    neurons: Tensor
    directions: Tensor
    n_tokens: int

    @property
    def n_rotations(self) -> int:
        """Number of rotations."""
        return self.directions.shape[1]

    @property
    def p(self) -> Tensor:
        """Share of bases whose largest direction contributes as much as each neuron, shape (2, d_model)."""
        return torch.stack([shares_above(*pair) for pair in zip(self.neurons, self.directions, strict=True)])

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Columns of the neuron table: p-values, and whether the neuron contributes more than directions."""
        plain, centred = self.p.tolist()
        above = ["yes" if p <= ALPHA else "no" for p in plain]
        return {"direction_p": plain, "direction_p_centred": centred, "above_directions": above}


def shares_above(neurons: Tensor, directions: Tensor) -> Tensor:
    """Return the share of bases whose largest direction scores as much as each neuron, shape (n,).

    The basis of neurons is included. `directions` has shape (n_rotations, n_live), highest first.
    """
    largest = directions[:, :1].sum(-1)  # 0 where no neuron is live
    reached = largest[:, None] >= neurons * (1 - ROUNDING)
    return (1 + reached.sum(0)).double() / (1 + len(directions))


def rotation_comparison(
    test: Examples, layer: int, weight: Tensor, moments: Moments, space: PenaltySpace, n_rotations: int, seed: int
) -> Callable[[], Directions]:
    """Read test tokens of a layer, divided among ranks; return a function that compares neurons with random rotations.

    `weight` is on raw hidden states, shape (n_classes, d_model). Neurons are divided by the scale of `space` before
    they are rotated, as before their weights are penalised. In pairs of spans, the neurons of each span are rotated
    among themselves: directions across both would make neurons seem concentrated wherever one span matters more.
    """
    scaling, live = Scaling(moments, space), ~moments.dead
    weights = scaling.scaled_weight(centre_over_classes(weight.double()))[:, live]
    mean = scaling.features(moments.mean)[live]
    states, labels = _sample(thin(test, N_TOKENS, seed), layer, scaling, live, len(weight))
    return partial(
        _compare_with_rotations, states, labels, mean, weights, live, n_spans(test.store), int(layer), n_rotations, seed
    )


def _compare_with_rotations(
    states: Tensor, labels: Tensor, mean: Tensor, weights: Tensor, live: Tensor, n_parts: int, layer: int,
    n_rotations: int, seed: int,
) -> Directions:  # fmt: skip
    n_live, width = states.shape[1], len(live)
    if not n_live:
        return Directions(torch.zeros(2, width), torch.zeros(2, n_rotations, 0), len(labels))
    sums = torch.zeros(2, 1 + n_rotations, n_live, dtype=torch.float64)
    sums[:, 0] = _sums(states, labels, mean, weights)
    for draw in range(n_rotations):
        rotate = rotation_of_parts([int(part.sum()) for part in live.chunk(n_parts)], seed, layer, draw)
        turned_mean, turned_weights = rotate(mean[None])[0], rotate(weights)
        for part, part_labels in zip(_parts(states), _parts(labels, n_live), strict=True):
            sums[:, 1 + draw] += _sums(rotate(part), part_labels, turned_mean, turned_weights)
    n_tokens = int(sum_over_ranks(torch.tensor(len(labels))))
    means = sum_over_ranks(sums) / max(n_tokens, 1)
    neurons = torch.zeros(2, width, dtype=torch.float64)
    neurons[:, live] = means[:, 0]
    return Directions(neurons, means[:, 1:].sort(-1, descending=True).values, n_tokens)


def _parts(rows: Tensor, width: int = 0) -> Sequence[Tensor]:
    return rows.split(max(1, AT_A_TIME // (width or rows.shape[1])))


def _sample(examples: Examples, layer: int, scaling: Scaling, live: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return this rank's scaled hidden states of live neurons, in float64, and their classes, ascending."""
    states = [torch.zeros(0, int(live.sum()), dtype=torch.float64)]
    labels = [torch.zeros(0, dtype=torch.int64)]
    for batch in read_share(examples, [layer]):
        states.append(scaling.features(batch.hidden_states[0].double())[:, live])
        labels.append(batch.labels if n_classes > 1 else torch.zeros_like(batch.labels))
    order = torch.cat(labels).argsort(stable=True)
    return torch.cat(states)[order], torch.cat(labels)[order]


def _sums(states: Tensor, labels: Tensor, mean: Tensor, weights: Tensor) -> Tensor:
    """Return the sums over tokens of |W[y, i] z[i]|, and of the same with z - mean for z, shape (2, n)."""
    if not len(labels):
        return torch.zeros(2, weights.shape[1], dtype=torch.float64)
    classes, counts = labels.unique_consecutive(return_counts=True)
    sizes = weights[classes].abs()
    sums = []
    for deviations in (states.abs(), (states - mean).abs_()):
        by_class = torch.segment_reduce(deviations, "sum", lengths=counts)
        sums.append((sizes * by_class).sum(0))
    return torch.stack(sums)


def directions_of(
    fits: Sequence[LayerFit | NumberFit], test: Examples, space: PenaltySpace, n_rotations: int, seed: int
) -> list[Directions | None]:
    """Return for each layer the contributions of neurons and rotated directions; None without rotations."""
    if not n_rotations:
        return [None] * len(fits)
    return [rotation_comparison(test, fit.layer, fit.weight, fit.moments, space, n_rotations, seed)() for fit in fits]


def basis_table(of_layers: Iterable[tuple[int, Directions | None]]) -> list[dict[str, Any]]:
    """Return for each layer a row of raw contributions and a row of centred contributions, as in `basis.csv`."""
    return [
        {
            "layer": layer, "kind": kind, **concentration(directions.neurons[i], directions.directions[i]),
            "n_above": int((directions.p[i] <= ALPHA).sum()), "n_neurons": directions.directions.shape[2],
            "n_rotations": directions.n_rotations, "n_test_tokens": directions.n_tokens,
        }
        for layer, directions in of_layers
        if directions is not None
        for i, kind in enumerate(BASIS_KINDS)
    ]  # fmt: skip


def concentration(neurons: Tensor, directions: Tensor) -> dict[str, float]:
    """Return the concentration of neuron scores, with the distribution of each statistic over the rotations."""
    row: dict[str, float] = {}
    for name, (of_neurons, *_), of_rotations in zip(
        CONCENTRATION, _statistics(neurons[None]), _statistics(directions), strict=True
    ):
        sign = -1 if name == "participation_ratio" else 1  # the fewer, the more concentrated
        reached = int((sign * of_rotations >= sign * of_neurons - ROUNDING * abs(of_neurons)).sum())
        row |= {
            name: float(of_neurons), f"{name}_directions": float(of_rotations.quantile(0.5)),
            f"{name}_lowest": float(of_rotations.min()), f"{name}_highest": float(of_rotations.max()),
            f"{name}_p": (1 + reached) / (1 + len(of_rotations)),
        }  # fmt: skip
    return row


def _statistics(contributions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the share of the first, the share of the first ten and the participation ratio of each row."""
    highest = contributions.sort(-1, descending=True).values
    total = highest.sum(-1)
    known = torch.where(total > 0, total, 1.0)
    ratio = known.square() / highest.square().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    ratio = torch.where(total > 0, ratio, 0.0)
    return highest[:, :1].sum(-1) / known, highest[:, :FIRST].sum(-1) / known, ratio


def separation_within_covariate(train: Examples, layer: int, n_classes: int) -> EtaSquared | None:
    """Stream a layer's training examples twice; return the separation of labels within covariate values, or None."""
    if train.covariate is None:
        return None
    stratum = strata_with_several(train.covariate, train.labels)
    used = replace(train, labels=np.where(stratum >= 0, train.labels, -1).astype(np.int32))
    codes, is_used = used.codes(n_classes), stratum >= 0
    between = codes.excess_between(used.labels, used.store.tokens.sentences)
    vectors = WithinStrata.of(codes, torch.from_numpy(used.labels[is_used]).long(), torch.from_numpy(stratum[is_used]))
    strata, parts = torch.from_numpy(stratum), []
    for neurons in torch.arange(used.store.plan.d_model).split(neurons_at_a_time(vectors.labels.shape[1])):
        columns = slice(int(neurons[0]), int(neurons[-1]) + 1)
        means = StratumMeans.empty(len(vectors.sizes), len(neurons))
        for batch, _ in read_clusters(used, [layer]):
            means.add(batch.hidden_states[0][:, columns].double(), strata[batch.rows], batch.sentences)
        means = StratumMeans(sum_over_ranks(means.states), sum_over_ranks(means.of_sentences)).over(vectors.sizes)
        sums = ConditionalAccumulator(means, vectors, between)
        for batch, clusters in read_clusters(used, [layer]):
            sums.update(batch.hidden_states[0][:, columns], strata[batch.rows], batch.labels, batch.sentences, clusters)
        sums.all_reduce(sum_over_ranks)
        parts.append(sums.result())
    return EtaSquared.of_all(parts)


def compared_with(train: Examples) -> dict[str, int]:
    """Return the numbers of compared training tokens and of their covariate values."""
    assert train.covariate is not None
    stratum = strata_with_several(train.covariate, train.labels)
    return {"n_tokens": int((stratum >= 0).sum()), "n_values": int(stratum.max(initial=-1)) + 1}


Outcome = Literal["seen", "negligible", "unresolved"]


@dataclass(frozen=True)
class AblationEffect:
    """Increase of the test cross-entropy if the probe is retrained without a neuron, negative if it improves.

    Args:
        value: Increase of the mean test cross-entropy, in nats.
        low: Lower end of its 95% confidence interval, from differences paired by test sentence, widened by the possible
            distance of both probes from their optima; NaN if there are too few sentences.
        p: Two-sided p-value of no effect: 1 minus the highest level at which the interval excludes 0.
    """

    value: float
    low: float
    high: float
    p: float = math.nan

    @property
    def outcome(self) -> Outcome:
        """`seen` if the interval excludes 0, `negligible` if it is within `NEGLIGIBLE_NATS` of 0, else `unresolved`."""
        if self.low > 0 or self.high < 0:
            return "seen"
        return "negligible" if max(-self.low, self.high) < NEGLIGIBLE_NATS else "unresolved"


@dataclass(frozen=True)
class Stability:
    """Stability of a layer's ranking over bootstraps.

    `rank_low` and `rank_high` are the best and worst rank of each neuron over the probe and its replicates, shape
    (d_model,), a range and not a confidence interval; `bootstrap_overlap` is the mean share of the first 20 neurons
    that two replicates have in common.
    """

    rank_low: NDArray[np.int64]
    rank_high: NDArray[np.int64]
    bootstrap_overlap: float


# A neuron is flagged `offset` where centring leaves less than this share of its contribution.
OFFSET_BELOW = 0.5

_OUTCOMES: Mapping[Outcome, str] = {"seen": "", "negligible": f", {NEGLIGIBLE}", "unresolved": f", {UNRESOLVED}"}


@dataclass(frozen=True)
class Evidence:
    """Evidence on a layer's neurons beyond the probe's weights; None or empty where it was not measured.

    Args:
        separation: How the neurons separate the classes, on the training tokens.
        unique: Estimated loss of the probe without each neuron, shape (d_model,).
        penalty_stability: Columns of `accuracy.csv`.
        ablation_effects: Effect of retraining without a neuron, by neuron, for the removed neurons.
        matched: Neurons among these that were removed only for comparison.
        contribution_with_intercept: Mean over tokens of |W[y, i] * (v[i] - mean(v[i]))| with the weights of a probe
            with an intercept, shape (d_model,).
        within_covariate: As `separation`, among training tokens with the same value of the covariate.
        control_task_share: Share of each neuron in the contributions to probes of the control task, shape (d_model,).
        correlation: Of numbers, the correlation of each neuron with the training numbers, shape (d_model,).
    """

    moments: Moments
    magnitudes: ClassMagnitudes
    separation: EtaSquared
    unique: Tensor | None = None
    stability: Stability | None = None
    penalty_stability: Mapping[str, float] = field(default_factory=dict)
    ablation_effects: Mapping[int, AblationEffect] = field(default_factory=dict)
    matched: Sequence[int] = ()
    contribution_with_intercept: Tensor | None = None
    within_covariate: EtaSquared | None = None
    control_task_share: Tensor | None = None
    directions: Directions | None = None
    correlation: Tensor | None = None


def with_each(evidence: Sequence[Evidence], **fields: Sequence[Any]) -> list[Evidence]:
    """Return the evidence with further fields, each a value per layer."""
    return [
        replace(of_layer, **dict(zip(fields, values, strict=True)))
        for of_layer, *values in zip(evidence, *fields.values(), strict=True)
    ]


def collect_evidence(
    train: Examples, test: Examples, layers: Sequence[int], moments: Sequence[Moments], n_classes: int | None
) -> list[Evidence]:
    """Stream the training and test tokens, divided among ranks; return each layer's evidence.

    `n_classes` is None if numbers are predicted: such a probe has a single logit, the prediction.
    """
    magnitudes = class_magnitudes(test, layers, [layer_moments.mean for layer_moments in moments], n_classes)
    parts = zip(layers, moments, magnitudes, strict=True)
    return [
        Evidence(
            m,
            sums,
            separation_of(train, layer, m, n_classes or 0),
            within_covariate=separation_within_covariate(train, layer, n_classes or 0),
        )
        for layer, m, sums in parts
    ]


def separation_of(train: Examples, layer: int, moments: Moments, n_classes: int) -> EtaSquared:
    """Stream a layer's training examples, divided among ranks, and return how its neurons separate the labels.

    With so many classes that the products of all neurons exceed memory, the examples are streamed several times.
    """
    codes = train.codes(n_classes)
    between, parts = codes.excess_between(train.labels, train.store.tokens.sentences), []
    for neurons in torch.arange(len(moments.mean)).split(neurons_at_a_time(len(codes.mean))):
        columns = slice(int(neurons[0]), int(neurons[-1]) + 1)
        sums = EtaSquaredAccumulator(moments.mean[columns], moments.sd[columns], codes, between)
        for batch, clusters in read_clusters(train, [layer]):
            sums.update(batch.hidden_states[0][:, columns], batch.labels, batch.sentences, clusters)
        sums.all_reduce(sum_over_ranks)
        parts.append(sums.result())
    return EtaSquared.of_all(parts)


def is_far(moments: Moments) -> Tensor:
    """Return which live neurons have a mean far from 0 (more than `FAR` sd), shape (d_model,), bool."""
    return (moments.mean.abs() > FAR * moments.sd) & ~moments.dead


# Size of a correlation from which on two neurons are of one group.
ALIKE = 0.99


def correlated_groups(moments: Moments) -> NDArray[np.int64]:
    """Return the lowest neuron of each neuron's group, chained by |correlation| >= `ALIKE`; -1 for single neurons."""
    scale = torch.where(moments.dead, 0.0, 1 / moments.covariance.diagonal().clamp(min=1e-300).sqrt())
    is_alike = (scale[:, None] * moments.covariance * scale).abs() >= ALIKE
    _, group = connected_components(csr_array(is_alike.numpy()), directed=False)
    _, first, size = np.unique(group, return_index=True, return_counts=True)
    return np.where(size[group] > 1, first[group], -1)


def flags(
    contribution: Tensor, contribution_centred: Tensor, q: Tensor, dead: Tensor,
    q_within_covariate: Tensor | None = None, direction_p: Tensor | None = None,
) -> list[str]:  # fmt: skip
    """Return the caveats of each neuron's rank, separated by blanks.

    `dead`: the neuron hardly varies, so its weight and contribution are 0. `offset`: less than half of the contribution
    remains without the neuron's mean: the neuron is large and nearly constant, and replaces the intercept that the
    probe lacks. `no-signal`: its values differ between classes no more than by chance. Among neurons without this flag,
    a share of at most `FALSE_DISCOVERIES` is expected to have no signal. `confound`: it has a signal, but none is shown
    among tokens with the same value of the covariate, at the same rate. `direction`: a direction of a random rotation
    contributes as much. All arguments have shape (d_model,); `q` is the lowest false discovery rate at which a neuron
    has a signal.
    """
    offset = contribution_centred < OFFSET_BELOW * contribution
    no_signal = q > FALSE_DISCOVERIES
    confound = (
        torch.zeros_like(no_signal)
        if q_within_covariate is None
        else ~no_signal & (q_within_covariate > FALSE_DISCOVERIES)
    )
    direction = torch.zeros_like(no_signal) if direction_p is None else direction_p > ALPHA
    flagged = {
        "offset": offset.tolist(), "no-signal": no_signal.tolist(), "confound": confound.tolist(),
        "direction": direction.tolist(),
    }  # fmt: skip
    return [
        "dead" if is_dead else " ".join(name for name, holds in flagged.items() if holds[i])
        for i, is_dead in enumerate(dead.tolist())
    ]


def first_neurons(fits: Sequence[LayerFit | NumberFit], evidence: Sequence[Evidence], n: int) -> dict[int, list[int]]:
    """Return the first `n` neurons of each layer, ranked by contribution."""
    pairs = zip(fits, evidence, strict=True)
    return {
        fit.layer: [i for _, i in ranked(mean_contribution(fit.weight, layer_evidence.magnitudes).numpy())[:n]]
        for fit, layer_evidence in pairs
    }


def neuron_table(
    layer: int, weight: Tensor, evidence: Evidence, is_informative: bool = True, n_heads: int | None = None
) -> list[dict[str, Any]]:
    """Return the ranked table of a layer, a row per neuron, by contribution.

    `weight` is on raw hidden states, shape (n_classes, d_model). If the probe does not beat a constant answer
    (`is_informative`), `UNINFORMATIVE` is the only flag of every live neuron. Heads have equally many neurons, in
    order.
    """
    contribution = mean_contribution(weight, evidence.magnitudes)
    centred = mean_contribution(weight, evidence.magnitudes, centred=True)
    mean, total = float(contribution.mean()), float(contribution.sum())
    dead, separation = evidence.moments.dead, evidence.separation
    # A dead neuron's variance is rounding error, so its share explained by class means nothing.
    p = torch.where(dead, 1.0, separation.p)
    q = discovery_rates(p, ~dead)
    within = _covariate_columns(evidence)
    beside = evidence.directions
    flag = flags(
        contribution, centred, q, dead, within.get("within_covariate_q"), None if beside is None else beside.p[0]
    )
    if not is_informative:
        flag = [names if names == "dead" else UNINFORMATIVE for names in flag]
    width = len(contribution) // (n_heads or 1)
    columns: dict[str, Any] = {
        **({"head": [1 + i // width for i in range(len(contribution))]} if n_heads else {}),
        "contribution": contribution.tolist(),
        "ratio": (contribution / mean if mean else contribution).tolist(),
        "share": (contribution / total if total else contribution).tolist(),
        "contribution_centred": centred.tolist(),
        "eta_squared": torch.where(dead, 0.0, separation.eta_squared).tolist(),
        "eta_squared_z": torch.where(dead, 0.0, separation.z).tolist(),
        "eta_squared_p": p.tolist(),
        "eta_squared_q": q.tolist(),
        **{name: values.tolist() for name, values in within.items()},
        "mean": evidence.moments.mean.tolist(),
        "sd": evidence.moments.sd.tolist(),
        "flag": flag,
        **({} if beside is None else beside.columns),
    }
    groups = correlated_groups(evidence.moments)
    if (groups >= 0).any():
        columns["correlated_group"] = [None if group < 0 else group for group in groups.tolist()]
    if (share := evidence.control_task_share) is not None:
        columns["control_task_share"] = share.tolist()
        columns["selectivity"] = (contribution / (total or 1) - share).tolist()
    if evidence.unique is not None:
        columns["unique"] = evidence.unique.tolist()
    if evidence.stability is not None:
        columns["rank_low"] = evidence.stability.rank_low.tolist()
        columns["rank_high"] = evidence.stability.rank_high.tolist()
    if evidence.contribution_with_intercept is not None:
        pairs = zip(evidence.contribution_with_intercept.tolist(), is_far(evidence.moments).tolist(), strict=True)
        columns["contribution_companion"] = [value if far else None for value, far in pairs]
    rows = [
        {"layer": layer, "rank": rank, "neuron": i, **{name: values[i] for name, values in columns.items()}}
        for rank, i in ranked(contribution.numpy())
    ]
    if beside is not None:
        lowest, highest = (ends.tolist() for ends in beside.directions[0].aminmax(dim=0))
        for row, low, high in zip(rows, lowest, highest, strict=False):  # dead neurons, the last ones, have none
            row |= {"direction_lowest": low, "direction_highest": high}
    p_values = corrected(evidence.ablation_effects)
    for row in rows if p_values else ():
        neuron = row["neuron"]
        row |= _removal_columns(evidence.ablation_effects.get(neuron), neuron in evidence.matched)
        row["removed_p"] = p_values.get(neuron)
    return rows


def _covariate_columns(evidence: Evidence) -> dict[str, Tensor]:
    """Return how neurons separate the labels within the covariate; empty without a covariate."""
    if (within := evidence.within_covariate) is None:
        return {}
    dead = evidence.moments.dead
    p = torch.where(dead, 1.0, within.p)
    values = (
        torch.where(dead, 0.0, within.eta_squared),
        torch.where(dead, 0.0, within.z),
        p,
        discovery_rates(p, ~dead),
    )
    return dict(zip((column.name for column in WITHIN_COVARIATE), values, strict=True))


def _removal_columns(effect: AblationEffect | None, is_matched: bool) -> dict[str, Any]:
    """Return the result of retraining without a neuron; cells are empty for neurons that were not removed."""
    if effect is None:
        return dict.fromkeys((*NEURONS["cross_entropy_without"].names, "removed"))
    how = ("matched" if is_matched else "top") + _OUTCOMES[effect.outcome]
    loss = dict(zip(NEURONS["cross_entropy_without"].names, (effect.value, effect.low, effect.high), strict=True))
    return {**loss, "removed": how}


def corrected(effects: Mapping[int, AblationEffect]) -> dict[int, float]:
    """Return the p-value of each removed neuron, corrected (Holm) for all removed neurons of the layer."""
    return dict(zip(effects, holm([effect.p for effect in effects.values()]), strict=True))
