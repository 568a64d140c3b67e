"""Sentences on what the numbers of a layer and the rankings of a run support, and what its intervals hold for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import Row, ends, in_brackets, interval, listed, shown
from probing.statistics.intervals import few_sentences
from probing.statistics.rank_similarity import TOP_OF_BOOTSTRAPS, TOP_OF_PENALTIES
from probing.tables.bases import as_a_direction, basis, is_above_directions
from probing.tables.columns import (
    FAR,
    NEGLIGIBLE,
    NEGLIGIBLE_NATS,
    R2,
    UNINFORMATIVE,
    UNRESOLVED,
    has_intercept,
    score_of,
    score_of_neurons,
    with_intercept,
)
from probing.tables.controls import side_of
from probing.tables.evidence_sentences import ALPHA, say

# A centred contribution within this share of the contribution itself counts as nearly unchanged.
UNCHANGED = 0.05
# False discovery rate below which a neuron surely varies with the label.
SURE = 1e-3
# Neurons of a group that are named.
MOST_NAMED = 8


def conclusion(
    rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any] | None = None, given: str = "",
    bias: bool = False, dependent: str = "",
) -> str:  # fmt: skip
    """Return what the top neuron's numbers support, in a few sentences.

    Args:
        rows: The whole ranked table of one layer.
        task: What the probe predicts, such as `position`.
        layer: The layer's row of `accuracy.csv`, for the controls that see the token, or what is held fixed, alone.
        given: What is held fixed, as `given_words` says it.
        bias: Whether the probe has an intercept.
        dependent: What is not independent, as `dependent_unit` says it; of it, no p-value is a claim.
    """
    top = rows[0]
    if not top["contribution"]:
        return say("no_weights", layer=top["layer"])
    if top["flag"] == UNINFORMATIVE:
        return _unread(rows, task, layer or {}, bias, dependent)
    first = [row["neuron"] for row in rows if row["rank"] == top["rank"]]
    values = {"layer": top["layer"], "ratio": top["ratio"], "share": top["share"], "range": _range(top)}
    who = say("most", neuron=top["neuron"], **values) if len(first) == 1 else say(
        "most_equal", neurons=_named(first), neuron=top["neuron"], **values
    )  # fmt: skip
    said = [
        who, _correlated(rows), _of_itself(top, task, layer, dependent), _without_it(rows),
        _given(top, task, given, dependent), *_confounds(layer, task, given), as_a_direction(top),
        _first_unflagged(rows), _in_control_tasks(top), _not_measured(top),
    ]  # fmt: skip
    return " ".join(sentence for sentence in said if sentence)


def _unread(rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any], bias: bool, dependent: str) -> str:
    """Say that a ranking is not to be read, and whether the probe lacks an intercept."""
    is_number = score_of_neurons(rows[0]) is R2
    column, values = "r2" if is_number else "information", {"measure": "R²" if is_number else "nats", "task": task}
    said = say("unread", layer=rows[0]["layer"], **values)
    if known(layer, f"{column}_high") and layer[f"{column}_high"] < 0:
        said = say("worse", layer=rows[0]["layer"], interval=interval(layer, column, " to ", ".4f"), **values)
    why = [] if bias else _far_mean(rows)
    why += [] if bias or dependent else _varies_by_itself(rows, task, layer, is_number)
    return f"{said} {say('no_intercept', why=listed(why))}" if why else said


def _far_mean(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the neuron whose mean is farthest from 0, if it is far."""
    live = [row for row in rows if row["flag"] != "dead" and known(row, "sd") and row["sd"] > 0]
    far, neuron = max(((abs(row["mean"]) / row["sd"], row["neuron"]) for row in live), default=(0.0, 0))
    return [say("far_mean", neuron=neuron, far=far)] if far > FAR else []


def _varies_by_itself(
    rows: Sequence[Mapping[str, Any]], task: str, layer: Mapping[str, Any], is_number: bool
) -> list[str]:
    """Name the neuron that varies most surely with what a probe predicts worse than the majority class does."""
    q, neuron = min(
        ((row["eta_squared_q"], row["neuron"]) for row in rows if known(row, "eta_squared_q")), default=(1, 0)
    )
    score, floor = (layer.get("r2"), 0) if is_number else (layer.get("accuracy"), layer.get("majority_accuracy"))
    if q >= SURE or score is None or floor is None or score >= floor:
        return []
    return [say("varies_by_itself_number" if is_number else "varies_by_itself", neuron=neuron, task=task, q=q)]


def _correlated(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the neurons that correlate nearly fully with the top one; an empty text if none does."""
    group = rows[0].get("correlated_group")
    others = [row["neuron"] for row in rows[1:] if isinstance(group, int) and row.get("correlated_group") == group]
    return say("correlated", neurons=_named(sorted([rows[0]["neuron"], *others]))) if others else ""


def _named(neurons: Sequence[int]) -> str:
    """Return the first neurons of a list, and how many more there are."""
    more = [f"{len(neurons) - MOST_NAMED} more"] if len(neurons) > MOST_NAMED else []
    return listed([*map(str, neurons[:MOST_NAMED]), *more])


def first_unflagged(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first neuron of a ranking that has no flag; None if all have one."""
    return next((row for row in rows if not row["flag"]), None)


def _first_unflagged(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows[0]["flag"]:
        return ""
    found = first_unflagged(rows)
    return say("first_unflagged", neuron=found["neuron"], rank=found["rank"]) if found else say("all_flagged")


def _of_itself(top: Mapping[str, Any], task: str, layer: Mapping[str, Any] | None, dependent: str) -> str:
    """Return the sentence on how the neuron goes with what is predicted."""
    apart = "going with the number" if score_of_neurons(top) is R2 else "telling the classes apart"
    # Runs of earlier versions have no p-values.
    chance = "chance"
    if "eta_squared_p" in top:
        rate = f", q = {top['eta_squared_q']:.2g}" if "eta_squared_q" in top else ""
        chance += f" (p = {top['eta_squared_p']:.2g}{rate})"
    flags = top["flag"].split()
    if {"offset", "no-signal"} <= {*flags}:
        return say("intercept_only", apart=apart, chance=chance, task=task)
    if "no-signal" in flags:
        return say("only_together", apart=apart, chance=chance)
    is_offset = "offset" in flags
    centred = _centred(top, "only " * is_offset)
    begin = f"{centred[0].upper()}{centred[1:]}"
    if dependent:
        return say("unjudged", Centred=begin, task=task, unit=dependent, advice=_advice(dependent))
    explained = say("explained", task=task, share=max(top["eta_squared"], 0), z=top["eta_squared_z"])
    is_confounded = "confound" in flags or any(_is_enough(layer, name) for name in _ALONE)
    carries = carries_it(top) and is_above_directions(top) and not is_confounded
    if is_offset:
        name = "carries_some" if carries else "varies_though_offset"
        return say(name, centred=centred, explained=explained, task=task)
    return say("carries" if carries else "varies", Centred=begin, explained=explained, task=task)


def carries_it(row: Mapping[str, Any]) -> bool:
    """Return whether a probe without a neuron is shown to do worse, at an error rate for all that were removed.

    The loss must be above 0 with a p-value of at most `ALPHA` that is corrected for the layer's removed neurons, and
    its own interval must reach `NEGLIGIBLE_NATS`. Runs of earlier versions have no such p-values: nothing is shown.

    Args:
        row: The neuron's row of the table.
    """
    p, loss = row.get("removed_p"), ends(row, score_of_neurons(row).without) if row.get("removed") else None
    return loss is not None and isinstance(p, float) and p <= ALPHA and loss[0] > 0 and loss[1] >= NEGLIGIBLE_NATS


# Controls that see nothing but what the labels may be confounded with, with the sentence on a probe that does not beat
# them.
_ALONE = {"token": "token_is_enough", "given": "given_is_enough"}


def _is_enough(layer: Mapping[str, Any] | None, control: str) -> bool:
    return layer is not None and side_of(layer, control) in ("below", "alike")


def _confounds(layer: Mapping[str, Any] | None, task: str, given: str) -> list[str]:
    """Say which probes of a confound alone are not beaten; nothing of those that are, or were not trained."""
    found = []
    for control, name in _ALONE.items():
        if layer is not None and _is_enough(layer, control):
            score = score_of(layer)
            both = f"{layer[score.name]:.3f} against {layer[f'{control}_{score.name}']:.3f}"
            found.append(say(name, both=both, task=task, given=given))
    return found


def given_words(config: Mapping[str, Any]) -> str:
    """Return what a run holds fixed, as a sentence says it; an empty text if nothing."""
    given = config.get("given")
    if not given:
        return ""
    return {"token": "the token", "given": "the given value"}.get(str(given), str(given).rpartition(":")[2])


def held_fixed(results: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Say which tokens are compared with something held fixed; an empty text if nothing is."""
    if "given" not in results:
        return ""
    n_train = results["n_example_tokens"]["train"]
    return say("held_fixed", given=given_words(config), n_train=n_train, **results["given"])


def _given(top: Mapping[str, Any], task: str, given: str, dependent: str) -> str:
    """Say how the neuron goes with the labels with something held fixed; an empty text if nothing is."""
    if not known(top, "given_q") or "no-signal" in top["flag"]:
        return ""
    if "confound" in top["flag"]:
        return say("given_not", given=given, task=task, p=top["given_p"], q=top["given_q"])
    if dependent:
        return ""
    return say("given_too", given=given, task=task, share=max(top["given_eta_squared"], 0), q=top["given_q"])


def _in_control_tasks(top: Mapping[str, Any]) -> str:
    """Say what share the neuron has in probes of the control task; an empty text where there are none."""
    share = top.get("control_task_share")
    return say("share_of_control_task", share=share) if isinstance(share, float) else ""


def _not_measured(top: Mapping[str, Any]) -> str:
    """Say which evidence on the neuron the run did not measure; return an empty text if it measured all."""
    lacking = [say("its_stability")] if "rank_low" not in top else []
    lacking += [say("its_loss")] if not top.get("removed") else []
    return say("not_measured", what=listed(lacking)) if lacking else ""


def _range(top: Mapping[str, Any]) -> str:
    """Return the best and the worst rank in brackets; nothing where there were no bootstraps."""
    if "rank_low" not in top:
        return ""
    if top["rank_low"] == top["rank_high"]:
        return say("one_rank", rank=top["rank_low"])
    return say("ranks", low=top["rank_low"], high=top["rank_high"])


def _centred(top: Mapping[str, Any], only: str = "") -> str:
    """Say how much of the contribution is left once the neuron cannot stand in for the intercept.

    Args:
        top: The neuron's row.
        only: Text before the share that is left, such as `only `.
    """
    value = with_intercept(top)
    if value is not None:
        return say("left_with_intercept", only=only, left=value / top["contribution"])
    left = top["contribution_centred"] / top["contribution"]
    if abs(left - 1) <= UNCHANGED:
        return say("unchanged", left=left)
    return say("raised", left=left) if left > 1 else say("left", only=only, left=left)


def _without_it(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the probe loses or gains without the top neuron, compared with what it loses without others."""
    top = rows[0]
    if not top.get("removed"):
        return ""
    score, removed = score_of_neurons(top), str(top["removed"])
    value, sign = top[score.without], -1 if top[score.without] < 0 else 1
    # Of a gain, the interval is that of the gain.
    between = in_brackets(interval(top, score.without, " to ", ".4f", times=sign))
    changes = f"{_lost(value)}{score.unit}{between}"
    if UNRESOLVED in removed:
        return say("unresolved", changes=changes)
    if NEGLIGIBLE in removed:
        name = "negligible_without_signal" if "no-signal" in top["flag"] else "negligible"
        return say(name, changes=changes, least=NEGLIGIBLE_NATS)
    beside = sorted(row[score.without] for row in rows if str(row["removed"]).startswith("matched"))
    usual = say("beside", changes=_lost(beside[len(beside) // 2])) if beside else ""
    return say("loses", changes=changes, beside=usual)


def _lost(value: float) -> str:
    """Return a loss with its verb; one below 0 is a gain."""
    return f"{'gains' if value < 0 else 'loses'} {shown(abs(value), '.4f')}"


def overlaps(layer: Mapping[str, Any], n_neurons: int) -> str:
    """Say how much of a layer's ranking stays under other penalties and other samples of the training part.

    Args:
        layer: The layer's row of `accuracy.csv`.
        n_neurons: Number of neurons of the layer.

    Returns:
        An empty text where the ranking is not to be read, or neither was measured.
    """
    parts = []
    if layer.get("flag") == UNINFORMATIVE:
        return ""
    if known(layer, "more_penalty_overlap"):
        parts.append(
            say(
                "overlap_of_penalties", more=layer["more_penalty_overlap"], less=layer["less_penalty_overlap"],
                spearman_more=layer["more_penalty_spearman"], spearman_less=layer["less_penalty_spearman"],
                top=min(TOP_OF_PENALTIES, n_neurons),
            )
        )  # fmt: skip
    if known(layer, "bootstrap_overlap"):
        top = min(TOP_OF_BOOTSTRAPS, n_neurons)
        parts.append(say("overlap_of_bootstraps", share=layer["bootstrap_overlap"], top=top))
    return say("overlaps", layer=layer["layer"], parts="; ".join(parts)) if parts else ""


def known(row: Mapping[str, Any], column: str) -> bool:
    """Return whether a row has a finite number in a column."""
    value = row.get(column)
    return isinstance(value, float | int) and math.isfinite(value)


def few_clusters(results: Mapping[str, Any]) -> str | None:
    """Return a sentence that tells the reader why a run has no intervals; None where it has them.

    Args:
        results: The content of the run's `results.json`.
    """
    over = _over(results)
    return few_sentences(over["n"], f"test {over['unit']}")


def scope(results: Mapping[str, Any], test_corpus: str | None) -> str:
    """Return what a run's intervals are over, or why there are none, what speaks against them, and what was rounded.

    Args:
        results: The content of the run's `results.json`.
        test_corpus: Name of the test corpus, if it is not the training corpus.
    """
    return " ".join(filter(None, (_held_over(results, test_corpus), _dependence(results), _rounding(results))))


def _held_over(results: Mapping[str, Any], test_corpus: str | None) -> str:
    if few := few_clusters(results):
        return few
    over = _over(results)
    if over["unit"] in ("row", "group"):  # from arrays, whose origin is not known
        return say("over_arrays", **over)
    if not test_corpus:
        if over["unit"] == "document":
            return say("over_documents" if results.get("split_by") == "document" else "over_shared_documents", **over)
        if n_documents := results.get("cache", {}).get("test", {}).get("n_documents"):
            return say("over_sentences_of_documents", **over, n_documents=n_documents)
    of = test_corpus if test_corpus else "the same corpus; --test_corpus tests on another text"
    return say("over_units", **over, of=of)


def dependent_unit(results: Mapping[str, Any]) -> str:
    """Return what is not independent, `row` or `sentence`; an empty text where labels do not speak against it."""
    return str(_over(results)["unit"]) if "correlation_of_neighbours" in results else ""


def _dependence(results: Mapping[str, Any]) -> str | None:
    if not (unit := dependent_unit(results)):
        return None
    return say("neighbours", unit=unit, correlation=results["correlation_of_neighbours"], advice=_advice(unit))


def _advice(unit: str) -> str:
    return say("give_groups" if unit == "row" else "mark_documents")


def _rounding(results: Mapping[str, Any]) -> str | None:
    # Arrays have no entry in the cache.
    dtype = results.get("cache", {}).get("train", {}).get("key", {}).get("dtype", "float32")
    return None if dtype == "float32" else say("rounded", dtype=dtype)


def _over(results: Mapping[str, Any]) -> Mapping[str, Any]:
    # Earlier versions did not record it: their intervals are over sentences.
    over: Mapping[str, Any] | None = results.get("intervals_over")
    return over or {"unit": "sentence", "n": results["n_sentences"]["test"]}


def ranking_conclusions(
    accuracy: Sequence[Row], neurons: Sequence[Row], task: str, results: Mapping[str, Any], config: Mapping[str, Any],
    beside: Sequence[Row] = (),
) -> list[str]:  # fmt: skip
    """Return the conclusion on the ranking of each layer, and what all of them hold for.

    Args:
        accuracy: Rows of `accuracy.csv`.
        neurons: Rows of `neurons.csv`.
        task: Name of the task.
        results: The content of `results.json`.
        config: The resolved configuration.
        beside: Rows of `basis.csv`.
    """
    lines: list[str] = []
    for row, fitted in zip(accuracy, results["layers"], strict=True):
        ranked = [neuron for neuron in neurons if neuron["layer"] == row["layer"]]
        said = conclusion(ranked, task, row, given_words(config), has_intercept(config), dependent_unit(results))
        lines += [said, overlaps(row, len(ranked))]
        if not fitted["converged"]:
            lines.append(say("stopped_short", layer=row["layer"], gap=fitted["optimality_gap"]))
    lines += [
        *basis(accuracy, beside, task, config),
        held_fixed(results, config),
        scope(results, config["test_corpus"]),
    ]
    return [line for line in lines if line]
