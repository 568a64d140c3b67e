"""The ranked neuron table of a layer, each row with the evidence that lets a reader believe it or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from probing.data.examples import Examples, read_clusters
from probing.evidence.directions import Directions
from probing.evidence.removal import AblationEffect, Outcome
from probing.evidence.stability import Stability
from probing.probes.ridge import NumberFit
from probing.probes.training import LayerFit
from probing.rankings.contributions import ClassMagnitudes, class_magnitudes, mean_contribution
from probing.runtime.processes import sum_over_ranks
from probing.statistics.chance import discovery_rates
from probing.statistics.moments import Moments
from probing.statistics.rank_similarity import ranked
from probing.statistics.separation import (
    ConditionalAccumulator,
    Separation,
    SeparationAccumulator,
    StratumMeans,
    WithinStrata,
    neurons_at_a_time,
    strata_with_several,
)
from probing.tables.columns import FAR, NEGLIGIBLE, UNINFORMATIVE, UNRESOLVED
from probing.tables.evidence_sentences import ALPHA
from probing.tables.schema import FALSE_DISCOVERIES, GIVEN, NEURONS


def separation_given(train: Examples, layer: int, n_classes: int) -> Separation | None:
    """Stream one layer's training examples twice, divided among ranks, and return how its neurons go with the labels.

    Args:
        train: Training examples.
        layer: Layer number.
        n_classes: Number of classes; of no importance where numbers are predicted.

    Returns:
        None if nothing is held fixed.
    """
    if train.given is None:
        return None
    stratum = strata_with_several(train.given, train.labels)
    used = replace(train, labels=np.where(stratum >= 0, train.labels, -1).astype(np.int32))
    codes, kept = used.codes(n_classes), stratum >= 0
    between = codes.excess_between(used.labels, used.store.tokens.sentences)
    vectors = WithinStrata.of(codes, torch.from_numpy(used.labels[kept]).long(), torch.from_numpy(stratum[kept]))
    strata, parts = torch.from_numpy(stratum), []
    for neurons in torch.arange(used.store.plan.d_model).split(neurons_at_a_time(vectors.labels.shape[1])):
        here = slice(int(neurons[0]), int(neurons[-1]) + 1)
        means = StratumMeans.empty(len(vectors.sizes), len(neurons))
        for batch, _ in read_clusters(used, [layer]):
            means.add(batch.hidden_states[0][:, here].double(), strata[batch.rows], batch.sentences)
        means = StratumMeans(sum_over_ranks(means.states), sum_over_ranks(means.of_sentences)).over(vectors.sizes)
        sums = ConditionalAccumulator(means, vectors, between)
        for batch, clusters in read_clusters(used, [layer]):
            sums.update(batch.hidden_states[0][:, here], strata[batch.rows], batch.labels, batch.sentences, clusters)
        sums.all_reduce(sum_over_ranks)
        parts.append(sums.result())
    return Separation.of_all(parts)


def compared_with(train: Examples) -> dict[str, int]:
    """Return the numbers of training tokens that are compared, and of the values that they have."""
    assert train.given is not None
    stratum = strata_with_several(train.given, train.labels)
    return {"n_tokens": int((stratum >= 0).sum()), "n_values": int(stratum.max(initial=-1)) + 1}


# A neuron is flagged `offset` where centring leaves less than this share of its contribution.
OFFSET_BELOW = 0.5


_OUTCOMES: Mapping[Outcome, str] = {"seen": "", "negligible": f", {NEGLIGIBLE}", "unresolved": f", {UNRESOLVED}"}


@dataclass(frozen=True)
class Evidence:
    """What is known of a layer's neurons beyond the probe's weights.

    Args:
        moments: Moments of the training tokens.
        magnitudes: Class magnitudes of the test tokens.
        separation: How the neurons separate the classes, on the training tokens.
        unique: Estimated loss of the probe without each neuron, shape (d_model,), or None.
        stability: Stability of the ranking over bootstraps of the training sentences, or None.
        penalty_stability: Columns of `accuracy.csv`; empty if no other penalty was tried.
        ablation_effects: Effect of retraining without a neuron, by neuron, for those that were removed.
        matched: Neurons among these that were removed only for comparison.
        contribution_with_intercept: Mean over tokens of |W[y, i] * (v[i] - mean(v[i]))| with the weights of a probe
            with an intercept, shape (d_model,), or None.
        given: How the neurons separate the classes among training tokens that are alike in what is held fixed, or None.
        control_task_share: Share of each neuron in the contributions to probes of the control task, shape (d_model,),
            or None.
        directions: What the directions of random rotations contribute, or None.
    """

    moments: Moments
    magnitudes: ClassMagnitudes
    separation: Separation
    unique: Tensor | None = None
    stability: Stability | None = None
    penalty_stability: Mapping[str, float] = field(default_factory=dict)
    ablation_effects: Mapping[int, AblationEffect] = field(default_factory=dict)
    matched: Sequence[int] = ()
    contribution_with_intercept: Tensor | None = None
    given: Separation | None = None
    control_task_share: Tensor | None = None
    directions: Directions | None = None


def collect_evidence(
    train: Examples, test: Examples, layers: Sequence[int], moments: Sequence[Moments], n_classes: int | None
) -> list[Evidence]:
    """Stream the training and the test tokens, divided among ranks, and return the evidence of each layer.

    Args:
        train: Training examples.
        test: Test examples.
        layers: Layer numbers.
        moments: Moments of each layer's training tokens.
        n_classes: Number of classes; None where numbers are predicted, of which a probe has one logit, the prediction.
    """
    magnitudes = class_magnitudes(test, layers, [own.mean for own in moments], n_classes)
    parts = zip(layers, moments, magnitudes, strict=True)
    return [
        Evidence(
            m,
            sums,
            separation_of(train, layer, m, n_classes or 0),
            given=separation_given(train, layer, n_classes or 0),
        )
        for layer, m, sums in parts
    ]


def separation_of(train: Examples, layer: int, moments: Moments, n_classes: int) -> Separation:
    """Stream one layer's training examples, divided among ranks, and return how its neurons go with the labels.

    With so many classes that the products of all neurons exceed memory, the examples are streamed several times.

    Args:
        train: Training examples.
        layer: Layer number.
        moments: Moments of the layer's training examples.
        n_classes: Number of classes; of no importance where numbers are predicted.
    """
    codes = train.codes(n_classes)
    between, parts = codes.excess_between(train.labels, train.store.tokens.sentences), []
    for neurons in torch.arange(len(moments.mean)).split(neurons_at_a_time(len(codes.mean))):
        here = slice(int(neurons[0]), int(neurons[-1]) + 1)
        sums = SeparationAccumulator(moments.mean[here], moments.sd[here], codes, between)
        for batch, clusters in read_clusters(train, [layer]):
            sums.update(batch.hidden_states[0][:, here], batch.labels, batch.sentences, clusters)
        sums.all_reduce(sum_over_ranks)
        parts.append(sums.result())
    return Separation.of_all(parts)


def is_far(moments: Moments) -> Tensor:
    """Return which live neurons have a mean far from 0 (more than `FAR` sd), shape (d_model,), bool."""
    return (moments.mean.abs() > FAR * moments.sd) & ~moments.dead


# Size of a correlation from which on two neurons are of one group.
ALIKE = 0.99


def correlated_groups(moments: Moments) -> NDArray[np.int64]:
    """Return the lowest neuron of the group of each, chained by correlations of `ALIKE` in size; -1 of one alone."""
    scale = torch.where(moments.dead, 0.0, 1 / moments.covariance.diagonal().clamp(min=1e-300).sqrt())
    is_alike = (scale[:, None] * moments.covariance * scale).abs() >= ALIKE
    _, group = connected_components(csr_array(is_alike.numpy()), directed=False)
    _, first, size = np.unique(group, return_index=True, return_counts=True)
    return np.where(size[group] > 1, first[group], -1)


def order(statistic: Tensor) -> Tensor:
    """Return neuron indices from the highest to the lowest value, equal ones by lower index."""
    return torch.tensor([i for _, i in ranked(statistic.double().numpy())])


def flags(
    contribution: Tensor, contribution_centred: Tensor, q: Tensor, dead: Tensor, q_given: Tensor | None = None,
    direction_p: Tensor | None = None,
) -> list[str]:  # fmt: skip
    """Return what a reader must know before believing a neuron's rank.

    `dead`: the neuron hardly varies, so its weight and contribution are 0. `offset`: less than half of the
    contribution remains once the neuron's mean is subtracted: it is large and nearly constant, and replaces
    the intercept that the probe lacks. `no-signal`: its values differ between classes no more than under
    chance alone. Among the layer's neurons without this flag, at most a share of
    `FALSE_DISCOVERIES` is expected to have no signal. `confound`: it has a signal, but is not shown to have
    one among tokens that are alike in what is held fixed, at the same rate. `direction`: a direction of a random
    rotation contributes as much.

    Args:
        contribution: Contribution of each neuron, shape (d_model,).
        contribution_centred: Contribution of each neuron without its mean, shape (d_model,).
        q: Lowest false discovery rate at which each neuron counts as a signal, shape (d_model,).
        dead: Which neurons are dead, shape (d_model,), bool.
        q_given: The rates among tokens that are alike, shape (d_model,); None if nothing is held fixed.
        direction_p: Share of rotations whose largest direction contributes as much, shape (d_model,); None without any.
    """
    offset = contribution_centred < OFFSET_BELOW * contribution
    no_signal = q > FALSE_DISCOVERIES
    confound = torch.zeros_like(no_signal) if q_given is None else ~no_signal & (q_given > FALSE_DISCOVERIES)
    direction = torch.zeros_like(no_signal) if direction_p is None else direction_p > ALPHA
    held = {
        "offset": offset.tolist(), "no-signal": no_signal.tolist(), "confound": confound.tolist(),
        "direction": direction.tolist(),
    }  # fmt: skip
    return [
        "dead" if is_dead else " ".join(name for name, holds in held.items() if holds[i])
        for i, is_dead in enumerate(dead.tolist())
    ]


def first_neurons(fits: Sequence[LayerFit | NumberFit], evidence: Sequence[Evidence], n: int) -> dict[int, list[int]]:
    """Return the first neurons of each layer's ranking, which is by contribution."""
    pairs = zip(fits, evidence, strict=True)
    return {fit.layer: order(mean_contribution(fit.weight, one.magnitudes))[:n].tolist() for fit, one in pairs}


def neuron_table(
    layer: int, weight: Tensor, evidence: Evidence, is_informative: bool = True, n_heads: int | None = None
) -> list[dict[str, Any]]:
    """Return the ranked table of a layer, one row per neuron, by contribution.

    Args:
        layer: Layer number.
        weight: Weight of the layer's probe on raw hidden states, shape (n_classes, d_model).
        evidence: Evidence of the layer.
        is_informative: Whether the layer's probe beats a constant answer; where it does not, every neuron that is not
            dead has this as its only flag.
        n_heads: Number of heads that the neurons belong to, equally many to each in order; None if to none.
    """
    contribution = mean_contribution(weight, evidence.magnitudes)
    centred = mean_contribution(weight, evidence.magnitudes, centred=True)
    mean, total = float(contribution.mean()), float(contribution.sum())
    dead, separation = evidence.moments.dead, evidence.separation
    # A dead neuron's variance is rounding error, so its share explained by class means nothing.
    p = torch.where(dead, 1.0, separation.p)
    q = discovery_rates(p, ~dead)
    given = _given_columns(evidence)
    beside = evidence.directions
    flag = flags(contribution, centred, q, dead, given.get("given_q"), None if beside is None else beside.p[0])
    if not is_informative:
        flag = [own if own == "dead" else UNINFORMATIVE for own in flag]
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
        **{name: values.tolist() for name, values in given.items()},
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
    for row in rows if evidence.ablation_effects else ():
        row |= _removal_columns(evidence.ablation_effects.get(row["neuron"]), row["neuron"] in evidence.matched)
    return rows


def _given_columns(evidence: Evidence) -> dict[str, Tensor]:
    """Return how neurons go with the labels with something held fixed; nothing if nothing is."""
    if (given := evidence.given) is None:
        return {}
    dead = evidence.moments.dead
    p = torch.where(dead, 1.0, given.p)
    values = (torch.where(dead, 0.0, given.eta_squared), torch.where(dead, 0.0, given.z), p, discovery_rates(p, ~dead))
    return dict(zip((column.name for column in GIVEN), values, strict=True))


def _removal_columns(effect: AblationEffect | None, is_matched: bool) -> dict[str, Any]:
    """Return the result of retraining without a neuron; the cells are empty for neurons that were not removed."""
    if effect is None:
        return dict.fromkeys((*NEURONS["cross_entropy_without"].names, "removed"))
    how = ("matched" if is_matched else "top") + _OUTCOMES[effect.outcome]
    loss = dict(zip(NEURONS["cross_entropy_without"].names, (effect.value, effect.low, effect.high), strict=True))
    return {**loss, "removed": how}
