"""What linear probes read of positions, and which neurons their logits are made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.runs.run import Run
from probing.statistics.moments import MEAN_DEVIATIONS
from probing.studies.claims.measures.extremes import above_embeddings, layers_of
from probing.studies.claims.measures.registry import (
    NotMeasurable,
    Role,
    Subject,
    difference,
    from_row,
    magnitude,
    measure,
)
from probing.studies.claims.verdict import Measured

# The least z of eta squared, against permuted positions, that counts as evidence here.
SIGNAL = 4.0


@measure("positions")
def least_accuracy(subject: Subject, layers: str) -> Measured:
    """Return the least accuracy over some layers.

    The control is the largest accuracy in these layers when the model reads each sentence with its tokens permuted.

    Args:
        subject: The model.
        layers: The layers, such as `1-3`.
    """
    rows = _accuracies(subject, layers)
    control = max((row.get("permuted_positions_accuracy", float("nan")) for row in rows), default=None)
    least = min(rows, key=lambda row: row["accuracy"])
    return _accuracy(least, None if control is None or control != control else control)


@measure("positions")
def distance_from_curve(subject: Subject, published: Mapping[str, Sequence[float]]) -> Measured:
    """Return how far accuracies are from those published, the most over the layers above the embeddings.

    Args:
        subject: The model.
        published: Of each model, the accuracies of layers 1, 2, ...
    """
    if subject.model not in published:
        raise NotMeasurable(f"no accuracies of {subject.model} are published")
    curve, rows = published[subject.model], _accuracies(subject, "all")
    if len(rows) != len(curve):
        raise NotMeasurable(f"the run has {len(rows)} layers, and {len(curve)} are published")
    apart = (difference(_accuracy(row), Measured.exact(said)) for said, row in zip(curve, rows, strict=True))
    return max(map(magnitude, apart), key=lambda one: one.value)


@measure("positions")
def accuracy_lost(subject: Subject, layers: str) -> Measured:
    """Return how much lower the accuracy of the last layer is than the least of some lower layers.

    The covariance of the two accuracies is not known, so that the interval is the widest that their intervals allow.

    Args:
        subject: The model.
        layers: The lower layers, such as `1-3`.
    """
    every = _accuracies(subject, "all")
    lower = [row for row in _accuracies(subject, layers) if row["layer"] != every[-1]["layer"]]
    if not lower:
        raise NotMeasurable("the model has no further layers")
    return difference(_accuracy(min(lower, key=lambda row: row["accuracy"])), _accuracy(every[-1]))


@measure("positions")
def least_lead_in_accuracy(subject: Subject, over: str, layers: str) -> Measured:
    """Return how much higher accuracies are than those of another model, the least over some layers.

    The covariance of the two accuracies is not known, so that the interval is the widest that their intervals allow.

    Args:
        subject: The model.
        over: The other model.
        layers: The layers.
    """
    if "positions" not in subject.others.get(over, {}):
        raise NotMeasurable(f"the same run of {over}, with which it is compared: `--models {subject.model},{over}`")
    other = Subject(over, subject.others[over])
    rows, others = ({row["layer"]: row for row in _accuracies(one, layers)} for one in (subject, other))
    if set(rows) != set(others):
        raise NotMeasurable(f"{subject.model} and {over} do not both have the layers {layers}")
    leads = (difference(_accuracy(rows[layer]), _accuracy(others[layer])) for layer in rows)
    return min(leads, key=lambda one: one.value)


@measure("geometry", "positions")
def least_ratio(subject: Subject, roles: list[Role] | None = None) -> Measured:
    """Return an outlier's contribution as a multiple of the mean neuron's, the least over layers and outliers."""
    rows = _of_outliers(subject, roles)
    return Measured.exact(min(row["ratio"] for row in rows), neurons=_neurons(rows))


@measure("geometry", "positions")
def lowest_rank(subject: Subject, roles: list[Role] | None = None) -> Measured:
    """Return the rank of an outlier by its contribution: the worst over layers and outliers.

    The interval is the range of that rank over probes trained on bootstrap samples.
    """
    rows = _of_outliers(subject, roles)
    row = max(rows, key=lambda row: row["rank"])
    low, high = row.get("rank_low", row["rank"]), row.get("rank_high", row["rank"])
    return Measured(row["rank"], min(low, row["rank"]), max(high, row["rank"]), neurons=_neurons(rows))


@measure("geometry", "positions")
def evidence_beside_rank(subject: Subject, roles: list[Role] | None = None) -> Measured:
    """Return the share of four kinds of evidence that say that an outlier encodes position: the least over layers.

    They are: its centred contribution is above the mean neuron's; its eta squared is above that of permuted positions;
    the loss rises without it, by its whole interval; and position explains more of its variance than frequency does,
    each beyond all other sources. Only layers in which all four were measured of the neuron count. The control is the
    best rank in these layers: a neuron that only replaces the probe's intercept can rank high, too.
    """
    rows, run = _of_outliers(subject, roles), _run(subject)
    found: list[tuple[float, int]] = []
    for row in rows:
        explained = {
            one["source"]: one["partial"]
            for one in subject.run("geometry").explained
            if (one["layer"], one["neuron"], one["special_tokens"]) == (row["layer"], row["neuron"], "exclude")
        }
        if not isinstance(row.get("cross_entropy_without_low"), float) or row["cross_entropy_without"] == "":
            continue
        if not {"position", "frequency"} <= set(explained):
            continue
        centred = [one["contribution_centred"] for one in run.neurons if one["layer"] == row["layer"]]
        kinds = (
            row["contribution_centred"] > sum(centred) / len(centred),
            row["eta_squared_z"] >= SIGNAL,
            row["cross_entropy_without_low"] > 0,
            explained["position"] > explained["frequency"],
        )
        found.append((sum(kinds) / len(kinds), row["rank"]))
    if not found:
        raise NotMeasurable(
            "in no layer were all four kinds of evidence measured of it: it is not among the first ranks"
        )
    return Measured.exact(
        min(share for share, _ in found), control=float(min(rank for _, rank in found)), neurons=_neurons(rows)
    )


@measure("positions")
def loss_without_first(subject: Subject) -> Measured:
    """Return by how many nats the loss rises without the neuron that ranks first, the least over layers.

    The control is the largest difference between the rise without a matched neuron and the rise without the first
    neuron of the same layer: above 0, a neuron that does not rank first matters more.
    """
    rows = [
        row for row in above_embeddings(_run(subject).neurons) if isinstance(row.get("cross_entropy_without"), float)
    ]
    first = [row for row in rows if row["rank"] == 1]
    if not first:
        raise NotMeasurable("no probe was trained without the neuron that ranks first (`--evidence all`)")
    beyond = [
        row["cross_entropy_without"] - one["cross_entropy_without"]
        for one in first
        for row in rows
        if row["layer"] == one["layer"] and row["removed"].startswith("matched")
    ]
    least = min(first, key=lambda row: row["cross_entropy_without"])
    neurons = tuple(dict.fromkeys(row["neuron"] for row in first))
    return from_row(least, "cross_entropy_without", "cross_entropy_without", max(beyond, default=None), neurons)


def _run(subject: Subject) -> Run:
    run: Run = subject.run("positions")
    return run


def _accuracies(subject: Subject, layers: str) -> list[Mapping[str, Any]]:
    """Return the rows of some layers above the embeddings."""
    rows = above_embeddings(_run(subject).accuracy)
    wanted = layers_of(layers, max((row["layer"] for row in rows), default=0))
    found = [row for row in rows if row["layer"] in wanted]
    if not found:
        raise NotMeasurable(f"the run has no layers {layers}")
    return found


def _accuracy(row: Mapping[str, Any], control: float | None = None) -> Measured:
    return from_row(row, "accuracy", "accuracy", control)


def _of_outliers(subject: Subject, roles: list[Role] | None) -> list[Mapping[str, Any]]:
    """Return the rows of outliers in the ranked tables of the layers above the embeddings.

    Raises:
        NotMeasurable: If they are not there.
    """
    chosen = set(subject.outliers(roles).values())
    rows = [row for row in above_embeddings(_run(subject).neurons) if row["neuron"] in chosen]
    if {row["neuron"] for row in rows} != chosen:
        raise NotMeasurable("the run has no layer above the embeddings with this neuron")
    return rows


def _neurons(rows: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(sorted({row["neuron"] for row in rows}))


# The arms of `pretrain` with and without position embeddings.
_WITH, _WITHOUT = "learned", "none"


@measure("pretraining")
def distance_from_perplexities(subject: Subject, without: float, with_: float) -> Measured:
    """Return the relative difference of held-out perplexities from the published ones: the larger of both arms.

    The interval is the range over seeds.

    Args:
        subject: The encoders.
        without: The published perplexity without position embeddings.
        with_: The published perplexity with position embeddings.
    """
    found = [
        _over_seeds([abs(math.exp(loss) / said - 1) for loss in _losses(subject, arm).values()])
        for arm, said in ((_WITHOUT, without), (_WITH, with_))
    ]
    return max(found, key=lambda one: one.value)


@measure("pretraining")
def loss_without_positions(subject: Subject) -> Measured:
    """Return by how many nats the held-out loss is higher without position embeddings than with them.

    The value is the mean over seeds, and the interval the range over seeds.
    """
    return _over_seeds(_margins(subject))


@measure("pretraining")
def largest_equivariance(subject: Subject) -> Measured:
    """Return how far the encoders without position embeddings are from ignoring the order of tokens: the largest value.

    The control is the largest lead of a position probe of one of their layers over a probe of the token alone.
    """
    rows = _last(subject, _WITHOUT)
    lead = max(row["position_accuracy"] - row["token_accuracy"] for row in rows)
    return Measured.exact(max(row["equivariance"] for row in rows), control=lead)


@measure("pretraining")
def share_of_largest(subject: Subject) -> Measured:
    """Return the share of tokens in which the neuron with the farthest mean is extreme, with position embeddings.

    For each seed, the share is that of being the smallest or the largest neuron, in the layer above the embeddings
    where it is highest; the value is the least over seeds. The control is by how many nats position embeddings lower
    the loss, the least over seeds.
    """
    shares = [
        max(max(row["argmin_share"], row["argmax_share"]) for row in rows) for rows in _by_seed(subject, _WITH).values()
    ]
    return Measured.exact(min(shares), control=min(_margins(subject)))


@measure("pretraining")
def farthest_without_positions(subject: Subject) -> Measured:
    """Return the farthest mean without position embeddings, in sd from the others': the largest over layers and seeds.

    The control is the least over seeds of the same with position embeddings. Only if the encoders with position
    embeddings have outliers does it mean anything that those without have none.
    """
    without, with_ = (
        [max(row["max_mean_sd"] for row in rows) for rows in _by_seed(subject, arm).values()]
        for arm in (_WITHOUT, _WITH)
    )
    return Measured.exact(max(without), control=min(with_))


@measure("pretraining")
def seeds_with_other_outliers(subject: Subject) -> Measured:
    """Return the share of pairs of seeds whose outliers are not the same neurons, with position embeddings."""
    sets = [
        frozenset(row["outlier_neuron"] for row in rows if row["max_mean_sd"] > MEAN_DEVIATIONS)
        for rows in _by_seed(subject, _WITH).values()
    ]
    found = [one for one in sets if one]
    if len(found) < 2:
        raise NotMeasurable("fewer than two seeds have an outlier above the embeddings")
    pairs = list(itertools.combinations(found, 2))
    return Measured.exact(
        sum(a != b for a, b in pairs) / len(pairs), neurons=tuple(sorted(frozenset.union(*found)))
    )  # fmt: skip


def _last(subject: Subject, arm: str) -> list[Mapping[str, Any]]:
    """Return the rows of the layers above the embeddings of an arm's last checkpoints.

    Raises:
        NotMeasurable: If there are none.
    """
    rows = [row for row in subject.run("pretraining").arms if row["arm"] == arm]
    steps = {row["seed"]: max(one["step"] for one in rows if one["seed"] == row["seed"]) for row in rows}
    found = [row for row in rows if row["step"] == steps[row["seed"]] and row["layer"] > 0]
    if not found:
        raise NotMeasurable(f"the run has no arm {arm}")
    return found


def _by_seed(subject: Subject, arm: str) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in _last(subject, arm):
        found.setdefault(row["seed"], []).append(row)
    return found


def _losses(subject: Subject, arm: str) -> dict[int, float]:
    """Return the held-out loss of each seed."""
    return {seed: rows[0]["loss"] for seed, rows in _by_seed(subject, arm).items()}


def _margins(subject: Subject) -> list[float]:
    """Return by how many nats each seed's loss is better with position embeddings."""
    without, with_ = (_losses(subject, arm) for arm in (_WITHOUT, _WITH))
    return [without[seed] - with_[seed] for seed in without if seed in with_]


def _over_seeds(values: Sequence[float]) -> Measured:
    return Measured(sum(values) / len(values), min(values), max(values))
