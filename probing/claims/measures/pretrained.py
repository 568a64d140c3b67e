"""What becomes of encoders that are trained with position embeddings and without them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.claims.measures.registry import NotMeasurable, Subject, measure
from probing.claims.verdict import Measured
from probing.statistics.outliers import MEAN_DEVIATIONS

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
