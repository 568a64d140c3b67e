"""What tuning a model adds and changes, what its task does without, and on which layer its head is best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probing.readouts.names import TUNED, TUNED_R2
from probing.runs.study import Result
from probing.studies.claims.measures.cosines import by_layer
from probing.studies.claims.measures.heads import gained
from probing.studies.claims.measures.layers import SIMILARITY, lead_of_last
from probing.studies.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.studies.claims.verdict import Measured
from probing.studies.disable.schema import MAGNITUDE, MEAN, RANDOM
from probing.studies.disable.tables import at_last_layer, is_head
from probing.studies.finetune.options import PRETRAINED, SHUFFLED
from probing.studies.finetune.options import RANDOM as RANDOM_START
from probing.studies.finetune.tables import CONSTANT, MAJORITY

# By which order heads are pruned.
_IMPORTANCE = "importance"
_MORE_SENTENCES = "a labelled text with more sentences"


@measure("tuned")
def least_gain_by_tuning(subject: Subject) -> Measured:
    """Return what tuning adds to the constant answer, or pretraining to a tuned random start: the lesser of the two.

    The constant answer is the most frequent class, or the mean of numbers, which is what a head tells that was never
    trained. Intervals are over seeds, orders and test sentences. The control is what tuning on shuffled labels adds to
    the constant answer, as a share of what tuning on the true ones adds.
    """
    run: Result = subject.run("tuned")
    rows = {(row["answer"], row["against"]): row for row in run.differences}
    constant = MAJORITY if (PRETRAINED, MAJORITY) in rows else CONSTANT
    pairs = {against: rows.get((PRETRAINED, against)) for against in (constant, RANDOM_START)}
    if None in pairs.values() or (SHUFFLED, constant) not in rows:
        raise NotMeasurable("a run of `finetune` with all starts")
    gains = {against: from_row(row, "difference") for against, row in pairs.items() if row is not None}
    least = min(gains.values(), key=lambda one: one.value)
    return replace(least, control=_share(rows[SHUFFLED, constant]["difference"], gains[constant].value))


@measure("tuned_change", "shuffled_change")
def lead_of_change_by_tuning(subject: Subject, n_layers: int) -> Measured:
    """Return by how much less alike tuning leaves the maps in each of the last layers than in any lower one.

    A tuned model is compared with its start, by the least cosine of the maps (mean over heads) in the lower layers
    minus the largest in the last ones. The control is the same lead of a model that was tuned on shuffled labels, as a
    share of this one: what they cause too is not the task's.

    Args:
        subject: The model.
        n_layers: Number of last layers.
    """
    found, shuffled = (lead_of_last(subject.run(name), n_layers) for name in ("tuned_change", "shuffled_change"))
    return replace(found, control=_share(shuffled.value, found.value))


def _share(part: float, whole: float) -> float | None:
    """Return what a part that is above 0 is of a whole; None if there is no such whole."""
    return max(part, 0.0) / whole if whole > 0 else None


@measure("disabled_task")
def gain_for_task(subject: Subject) -> Measured:
    """Return how much better a tuned model is without some head.

    The head is the one whose removal gains most on one half of the test sentences; the gain is measured on the other
    half. The control is by how much this is above the mean gain of all heads: what a random head gives.
    """
    run: Result = subject.run("disabled_task")
    rows = [row for row in run.better_without if row["readout"] in (TUNED, TUNED_R2) and row["units"] == "heads"]
    heads = [gained(row, row["readout"]).value for row in _without(run) if is_head(row)]
    if not rows or not heads:
        raise NotMeasurable(_MORE_SENTENCES)
    gain = gained(rows[0], rows[0]["readout"])
    return replace(gain, control=gain.value - sum(heads) / len(heads))


@measure("disabled_task")
def gain_without_layer(subject: Subject, layer: int) -> Measured:
    """Return how much better a tuned model is without the heads of a layer.

    The control is by how much this is above the mean gain of the other layers: what a random layer gives.

    Args:
        subject: The model.
        layer: The layer.
    """
    rows = _without(subject.run("disabled_task"))
    gains = {row["unit"]: gained(row, row["readout"]) for row in rows if not is_head(row)}
    own = gains.pop(str(layer), None)
    if own is None or not gains:
        raise NotMeasurable(f"a model with a layer {layer} and others")
    return replace(own, control=own.value - sum(one.value for one in gains.values()) / len(gains))


def _without(run: Result) -> list[Mapping[str, Any]]:
    """Return what a tuned model's task loses without each unit."""
    return [row for name in (TUNED, TUNED_R2) for row in at_last_layer(run.by_name, name)]


@measure("pruned_task")
def heads_pruned_together(subject: Subject, at_most: float) -> Measured:
    """Return the share of heads that a tuned model can do without together, the least important first: see `_pruned`.

    The order is estimated on one half of the test sentences, and the loss is that of the other half.
    """
    run: Result = subject.run("pruned_task")
    rows = [row for row in run.pruning if row["units"] == "heads" and row["readout"] in (TUNED, TUNED_R2)]
    return _pruned(rows, _IMPORTANCE, RANDOM, at_most)


@measure("pruned_task")
def weights_pruned(subject: Subject, at_most: float) -> Measured:
    """Return the share of the weights that a tuned model can do without, the smallest first: see `_pruned`."""
    run: Result = subject.run("pruned_task")
    rows = [row for row in run.weight_pruning if row["readout"] in (TUNED, TUNED_R2)]
    return _pruned(rows, MAGNITUDE, MEAN, at_most)


def _pruned(rows: Sequence[Mapping[str, Any]], order: str, random: str, at_most: float) -> Measured:
    """Return the largest share that can be pruned so that neither it nor any smaller one costs more than a little.

    The lower end of the interval is the share up to which the whole interval of the loss is within `at_most`, the upper
    end that up to which a part of it is: up to there, no larger loss is resolved. The control is by how much the share
    is larger than that of random pruning, by the mean loss of its draws.

    Args:
        rows: Rows of `pruning.csv` or of `weight_pruning.csv`.
        order: The order that is measured.
        random: The order of the control.
        at_most: The largest loss that counts as little, in units of the readout.
    """
    own, drawn = ([row for row in rows if row["order"] == one and row["share"] > 0] for one in (order, random))
    if not own or not drawn:
        raise NotMeasurable("a run of `disable --prune all`")
    gains = {row["share"]: gained(row, row["readout"]) for row in own}
    of_draws: dict[float, list[float]] = {}
    for row in drawn:
        of_draws.setdefault(row["share"], []).append(gained(row, row["readout"]).value)
    by_chance = {share: sum(found) / len(found) for share, found in of_draws.items()}
    value, low, high = (
        _share_kept({share: getattr(gain, end) for share, gain in gains.items()}, at_most)
        for end in ("value", "low", "high")
    )
    return Measured(value, low, high, value - _share_kept(by_chance, at_most))


def _share_kept(gains: Mapping[float, float], at_most: float) -> float:
    """Return the largest share up to which no gain is below minus `at_most`."""
    kept = 0.0
    for share in sorted(gains):
        if gains[share] < -at_most:
            break
        kept = share
    return kept


# Runs of `finetune` with the head on the last layer and on those below it, each with one of the checkpoint's geometry.
_LAST, _LOWER = "on_last", ("1_below", "2_below", "3_below")
_RUNS = [f"{what}_{on}" for what in ("head", "similarity") for on in (_LAST, *_LOWER)]


@measure(*_RUNS)
def lead_of_lower_head(subject: Subject, n_below: int) -> Measured:
    """Return how much better a tuned model is with its head some layers below the last one than on any other layer.

    The other layers are the last one and the three below it. Intervals are over seeds, orders and test sentences; the
    covariance of two runs is not known, so that the interval of a difference is the widest that both allow. The control
    is by how much less alike the tokens of a sentence are in the layer under this head than under any other one.

    Args:
        subject: The model.
        n_below: How many layers below the last one.
    """
    scores = {on: _score(subject.run(f"head_{on}")) for on in (_LAST, *_LOWER)}
    alike = {on: _similarity(subject.run(f"similarity_{on}")) for on in scores}
    own = _LOWER[n_below - 1]
    leads = [difference(scores[own], score) for on, score in scores.items() if on != own]
    control = min(_others(alike, own)) - alike[own]
    return replace(min(leads, key=lambda one: one.value), control=control)


def _others(values: Mapping[str, float], own: str) -> Iterable[float]:
    return (value for on, value in values.items() if on != own)


def _score(run: Result) -> Measured:
    row = next(row for row in run.scores if row["answer"] == PRETRAINED)
    return from_row(row, "score", "overall")


def _similarity(run: Result) -> float:
    """Return how alike the tokens of a sentence are in the last layer."""
    rows = by_layer(run, SIMILARITY)
    return float(rows[max(rows)]["value"])
