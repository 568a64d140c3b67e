"""Each sentence on evidence: noise must not bring it about and a signal must, or the other way round."""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import probing
from probing import Run
from probing.page.charts import source_of
from probing.page.run import answer, conclusions
from probing.probes.agreement import agreement
from probing.probes.evidence import corrected
from probing.probes.neuron_profiles import position_line
from probing.probes.retraining import ablation_effect
from probing.results import Table, ends
from probing.statistics import difference_interval
from probing.studies.compare.tables import everywhere_sentence, unpaired_lines, unread_lines, verdicts
from probing.studies.fit import _report
from probing.studies.fit.rank import evaluation_table, rankings_tables
from probing.tables import UNINFORMATIVE, probes
from probing.tables.conclusions import (
    basis,
    carries_it,
    compare_with_controls,
    conclusion,
    few_clusters,
    held_fixed,
    not_above,
    overlaps,
    scope,
)
from probing.tables.evidence_sentences import SENTENCES, say
from probing.tables.probes import transform_lines

ROOT = Path(__file__).parents[2]
N, D = 1200, 12


def as_pattern(text: str) -> str:
    """Return a pattern of a sentence in which anything may stand in braces."""
    parts = re.split(r"(\{[^}]*\})", text)
    return "".join("(?:[^:]*?)" if part.startswith("{") else re.escape(part) for part in parts)


def said(name: str, text: str) -> bool:
    sentence = SENTENCES[name].text
    if name == "not_above":  # another sentence has "probe" in this place
        sentence = sentence.replace("{what}", "accuracy")
    return re.search(f"{as_pattern(sentence)}(?![0-9])", text) is not None


# --- what is probed ---


def of_planted(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    y = generator.integers(3, size=N)
    X = generator.standard_normal((N, D))
    X[:, 0] += y
    return X, y


def of_noise(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    X, y = of_planted(generator)
    return X, generator.permutation(y)


def of_offset_noise(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """One of two classes in nine of ten rows, and a signal; a nearly constant neuron is the intercept."""
    y = (generator.random(N) < 0.9).astype(int)
    X = generator.standard_normal((N, D))
    X[:, 0] += y
    X[:, 3] = 10 + 0.5 * X[:, 3]
    return X, y


def of_uneven(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Nine of ten rows have one class, which a probe without an intercept cannot say."""
    y = (generator.random(N) < 0.9).astype(int)
    X = generator.standard_normal((N, D))
    X[:, 0] += 1.2 * (y - 0.9)
    return X, y


def of_far_noise(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    X, y = of_noise(generator)
    X[:, 3] += 8
    return X, y


def of_reversed(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """In the test part, the neuron goes the other way."""
    y = generator.integers(2, size=N)
    X = generator.standard_normal((N, D))
    X[:, 0] += np.where(np.arange(N) < N // 2, 1, -1) * (2 * y - 1)
    return X, y


def of_offset_signal(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    y = (generator.random(N) < 0.75).astype(int)
    X = generator.standard_normal((N, D))
    X[:, 3] += 2 + 1.8 * y
    return X, y


def of_suppressor(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Neuron 2 has the noise of neurons 0 and 1, and nothing of the signal."""
    y = generator.integers(2, size=N)
    X = 0.3 * generator.standard_normal((N, D))
    shared = 3 * generator.standard_normal(N)
    X[:, 0], X[:, 1], X[:, 2] = X[:, 0] + y + shared, X[:, 1] + y + shared, shared
    return X, y


def of_twin_suppressors(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two equal neurons, each half of what tells the noise of four others."""
    y = generator.integers(2, size=N)
    X = 0.3 * generator.standard_normal((N, D))
    shared = 3 * generator.standard_normal(N)
    X[:, :4] += (y + shared)[:, None]
    X[:, 4] = X[:, 5] = shared
    return X, y


def of_copies(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    X, y = of_planted(generator)
    X[:, 1] = X[:, 0]
    return X, y


def of_weak(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every neuron has a little of a signal that all of them together show."""
    y = generator.integers(2, size=N)
    return generator.standard_normal((N, D)) + 0.22 * y[:, None], y


def of_misleading(generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Neuron 5 goes with the label in the training part alone."""
    y = generator.integers(2, size=N)
    X = generator.standard_normal((N, D))
    X[:, 0] += 1.5 * y
    X[: N // 2, 5] += 2 * y[: N // 2]
    return X, y


KINDS: dict[str, Callable[[np.random.Generator], tuple[NDArray[Any], NDArray[Any]]]] = {
    name.removeprefix("of_"): made for name, made in list(globals().items()) if name.startswith("of_")
}


MADE: dict[tuple[str, str], Run] = {}


def run(kind: str, **options: Any) -> Run:
    """Return a run with half of its rows in the test part; the same one each time."""
    if (key := (kind, repr(options))) not in MADE:
        MADE[key] = _run(kind, options)
    return MADE[key]


def _run(kind: str, options: dict[str, Any]) -> Run:
    X, y = KINDS[kind](np.random.default_rng(0))
    split = np.where(np.arange(N) < N // 2, "train", "test")
    weak = kind in ("copies", "twin_suppressors")
    chosen: dict[str, Any] = {"replicates": 2, "probe": {"l2": 1e-7 if weak else 1e-3}, **options}
    return probing.probe(X.astype(np.float32), y, split=split, quiet=True, **chosen)


def spoken(kind: str, **options: Any) -> str:
    """Return all that is said of a run."""
    made = run(kind, **options)
    (layer,) = made.accuracy
    return " ".join(
        sentence
        for sentence in (
            conclusion(made.top(0, D), "label", layer), overlaps(layer, D), *basis(made.accuracy),
            compare_with_controls(layer, "label"), *not_above(made.accuracy), scope(made.results, None),
        )
        if sentence
    )  # fmt: skip


# --- one rule after the other ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "by", "not_by"),
    [
        ("unread", "noise", "planted"),
        ("unread", "noise", "reversed"),
        ("worse", "reversed", "planted"),
        ("no_intercept", "uneven", "planted"),
        ("varies_by_itself", "uneven", "far_noise"),
        ("far_mean", "far_noise", "uneven"),
        ("most", "planted", "noise"),
        ("most_equal", "copies", "planted"),
        ("correlated", "copies", "planted"),
        ("carries", "planted", "noise"),
        ("carries", "planted", "copies"),
        ("carries", "planted", "weak"),
        ("varies", "copies", "planted"),
        ("varies", "weak", "noise"),
        ("intercept_only", "offset_noise", "offset_signal"),
        ("carries_some", "offset_signal", "offset_noise"),
        ("as_a_direction", "offset_noise", "planted"),
        ("all_flagged", "offset_signal", "planted"),
        ("only_together", "suppressor", "planted"),
        ("loses", "planted", "copies"),
        ("unresolved", "weak", "planted"),
        ("negligible", "copies", "planted"),
        ("negligible_without_signal", "twin_suppressors", "suppressor"),
        ("overlaps", "planted", "noise"),
        ("overlap_of_penalties", "planted", "noise"),
        ("overlap_of_bootstraps", "planted", "noise"),
        ("basis", "planted", "noise"),
        ("explained", "planted", "suppressor"),
        ("one_rank", "planted", "noise"),
        ("beside", "planted", "copies"),
        ("not_above", "noise", "planted"),
        ("over_arrays", "planted", ""),
    ],
)  # fmt: skip
def test_a_sentence_is_said_where_its_rule_holds_and_only_there(name: str, by: str, not_by: str) -> None:
    assert said(name, spoken(by)), spoken(by)
    if not_by:
        assert not said(name, spoken(not_by)), spoken(not_by)


def test_an_intercept_is_not_missed_where_there_is_one_or_the_ranking_is_read() -> None:
    made = run("far_noise", probe={"l2": 1e-3, "bias": True})
    assert not said("no_intercept", str(made.conclusions()))
    assert not said("no_intercept", spoken("offset_signal"))


def test_the_first_neuron_without_a_flag_is_named_where_the_first_of_all_has_one() -> None:
    rows = [dict(row) for row in run("offset_noise").top(0, D)]
    rows[2]["flag"] = ""
    assert f"The first neuron of layer 0 without a flag is {rows[2]['neuron']}, at rank 3." in conclusion(rows, "label")
    assert not said("first_unflagged", spoken("planted"))


def test_a_gain_is_called_a_gain() -> None:
    text = spoken("misleading")
    assert re.search(r"neuron 5 contributes most.*without it gains 0\.\d+ nats \(0\.\d+ to 0\.\d+\)", text), text
    assert "carries" not in text
    assert "loses -" not in text
    assert "gains" not in spoken("planted").split("matched")[0]


def test_what_a_neuron_with_an_offset_varies_with_is_carried_only_if_its_removal_shows_it() -> None:
    (first, *_), layer = run("offset_signal").top(0, D), run("offset_signal").accuracy[0]
    text = conclusion([{**first, "removed_p": 0.06}], "label", layer)
    assert said("varies_though_offset", text)
    assert not said("carries_some", text)


def test_what_was_not_measured_is_named() -> None:
    bare = spoken("planted", replicates=0, evidence="none")
    assert said("not_measured", bare)
    assert said("its_stability", bare)
    assert said("its_loss", bare)
    assert not said("not_measured", spoken("planted"))
    assert not said("overlaps", bare)


def test_without_weights_nothing_is_concluded() -> None:
    text = spoken("noise", replicates=0, evidence="none", probe={"l2": 1e-2, "l1": 10.0})
    assert said("no_weights", text)
    assert not said("no_weights", spoken("noise"))


def test_a_probe_that_was_stopped_is_said_to_fall_short(capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = run("planted", trainer={"max_epochs": 2}, replicates=0, evidence="none"), run("planted")
    for made, is_short in ((short, True), (whole, False)):
        assert made.results["layers"][0]["converged"] is not is_short
        _report(made, None, quiet=False, verbose=True)
        printed = capsys.readouterr().out
        assert said("stopped_short", printed) is is_short
        assert said("stopped_short_report", on_page(made)) is is_short


@pytest.mark.parametrize(("kind", "n"), [("planted", 34), ("offset_signal", 35), ("noise", 33)])
def test_a_layer_is_told_in_35_lines_and_the_answer_in_the_first_three(
    kind: str, n: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal of 80 columns; up to two lines more say where a tracked run is, two what is wrong with a class."""
    made = run(kind)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _report(made, None, quiet=False, verbose=False)
    lines = capsys.readouterr().out.rstrip("\n").splitlines()
    assert sum(max(1, math.ceil(len(line.rstrip()) / 80)) for line in lines) <= n, "\n".join(lines)
    first = " ".join(lines[:3])
    assert f"reaches an accuracy of {made.accuracy[0]['accuracy']:.3f}" in first
    is_read = made.accuracy[0]["flag"] != UNINFORMATIVE
    assert (f"neuron {made.top(0, 1)[0]['neuron']} contributes most" if is_read else "do not read its ranking") in first


@pytest.mark.parametrize(("kind", "side"), [("planted", "above"), ("noise", "alike")])
def test_the_side_of_a_control_is_that_of_the_paired_interval(kind: str, side: str) -> None:
    (layer,) = run(kind).accuracy
    assert ends(layer, "above_shuffled") is not None
    assert compare_with_controls(layer, "label").startswith(
        f"In layer 0 the probe is {say(side, names='the majority class')}"
    )


def against_token(shift: float) -> dict[str, Any]:
    """Return the row of a layer whose probe is right on some tokens more often than one that sees the token alone."""
    generator = np.random.default_rng(0)
    ours, theirs = generator.random(2000) < 0.6 + shift, generator.random(2000) < 0.6
    low, high = difference_interval(ours.astype(int) - theirs, np.ones(2000, dtype=np.int64))
    found = {"token_accuracy": theirs.mean(), "above_token_low": low, "above_token_high": high}
    return {**run("planted").accuracy[0], "accuracy": ours.mean(), **found}


@pytest.mark.parametrize(("shift", "is_enough"), [(0.0, True), (-0.2, True), (0.2, False)])
def test_where_the_token_is_enough_no_neuron_carries_anything(shift: float, is_enough: bool) -> None:
    text = conclusion(run("planted").top(0, D), "label", against_token(shift))
    assert said("token_is_enough", text) is is_enough
    assert said("carries", text) is not is_enough
    assert said("below", compare_with_controls(against_token(shift), "label")) is (shift < 0)


def confounded(beyond: float, generator: np.random.Generator) -> Run:
    """Return a run whose label goes with a given value that neuron 0 has, and neuron 1 with the label itself."""
    given = generator.integers(6, size=N)
    side = given < 3
    y = np.where(generator.random(N) < 0.2, ~side, side).astype(int)
    X = generator.standard_normal((N, D))
    X[:, 0] += 3 * side - 1.5
    X[:, 1] += beyond * (y - 0.5)
    split = np.where(np.arange(N) < N // 2, "train", "test")
    return probing.probe(
        X.astype(np.float32), y, split=split, control_for=given, quiet=True, probe={"l2": 1e-3}, replicates=0,
        evidence="none",
    )  # fmt: skip


@pytest.mark.parametrize("beyond", [0.0, 2.0])
def test_what_goes_with_a_given_value_alone_is_told_from_what_goes_with_the_label(beyond: float) -> None:
    made = confounded(beyond, np.random.default_rng(0))
    (layer,), rows = made.accuracy, {row["neuron"]: row for row in made.top(0, D)}

    def text(neuron: int) -> str:
        return conclusion([rows[neuron]], "label", layer, "the covariate")

    assert rows[0]["flag"] == "confound"
    assert said("covariate_not", text(0))
    assert not said("covariate_too", text(0))
    assert said("covariate_too", text(1)) is bool(beyond)
    assert said("covariate_is_enough", text(0)) is not bool(beyond)
    assert (layer["above_covariate_low"] > 0) is bool(beyond)
    of_run = held_fixed(made.results, made.config)
    assert said("held_fixed", of_run)
    assert held_fixed(run("planted").results, run("planted").config) == ""
    assert said("note_of_covariate", str(probes.neurons_table(made.top(0, 3)).caption))
    assert not said("note_of_covariate", str(probes.neurons_table(run("planted").top(0, 3)).caption))


def test_what_goes_with_a_given_value_alone_is_not_said_to_be_carried() -> None:
    (first, *_), layer = run("planted").top(0, D), run("planted").accuracy[0]
    beside = {
        "within_covariate_eta_squared": 0.0,
        "within_covariate_p": 0.4,
        "within_covariate_q": 0.5,
        "flag": "confound",
    }
    assert said("carries", conclusion([first], "label", layer))
    assert said("varies", conclusion([{**first, **beside}], "label", layer, "the covariate"))


def test_the_share_in_control_tasks_stands_beside_that_in_the_task() -> None:
    (first, *_), layer = run("planted").top(0, D), run("planted").accuracy[0]
    assert said("share_of_control_task", conclusion([{**first, "control_task_share": 0.01}], "label", layer))
    assert not said("share_of_control_task", conclusion([first], "label", layer))


def test_few_test_rows_give_no_interval_and_the_reason() -> None:
    X, y = of_planted(np.random.default_rng(0))
    split = np.where(np.arange(N) < N - 15, "train", "test")
    made = probing.probe(
        X.astype(np.float32), y, split=split, quiet=True, probe={"l2": 1e-3}, replicates=0
    )  # fmt: skip
    assert said("few", scope(made.results, None))
    assert said("compare_it", compare_with_controls(made.accuracy[0], "label"))
    assert said("unread", conclusion(made.top(0, D), "label", made.accuracy[0]))
    assert few_clusters(run("planted").results) is None
    assert not said("compare_it", spoken("planted"))


@pytest.mark.parametrize(
    ("unit", "test_corpus", "more", "name"),
    [
        ("sentence", None, {}, "over_units"),
        ("document", "x.txt", {"split_by": "document"}, "over_units"),
        ("document", None, {"split_by": "document"}, "over_documents"),
        ("sentence", None, {"cache": {"test": {"n_documents": 12}}}, "over_sentences_of_documents"),
        ("sentence", "x.txt", {"cache": {"test": {"n_documents": 12}}}, "over_units"),
    ],
)
def test_what_intervals_hold_for_depends_on_what_they_are_over(
    unit: str, test_corpus: str | None, more: dict[str, Any], name: str
) -> None:
    text = scope({"intervals_over": {"unit": unit, "n": 30}, **more}, test_corpus)
    names = [one for one, sentence in SENTENCES.items() if one.startswith("over_") or one == "few"]
    assert [one for one in names if said(one, text)] == [name]


def test_labels_in_runs_are_pointed_out_and_labels_in_any_order_are_not() -> None:
    generator = np.random.default_rng(0)
    X, labels = generator.standard_normal((1200, 5)).astype(np.float32), generator.integers(2, size=240).repeat(5)
    quick = {"quiet": True, "probe": {"l2": 1e-2}, "replicates": 0, "controls": "none", "evidence": "none"}
    runs, mixed = (probing.probe(X, y, **quick) for y in (labels, generator.permutation(labels)))  # type: ignore[arg-type]
    grouped = probing.probe(X, labels, groups=np.arange(240).repeat(5), **quick)  # type: ignore[arg-type]
    assert said("neighbours", scope(runs.results, None))
    assert said("give_groups", scope(runs.results, None))
    assert not said("neighbours", scope(mixed.results, None))
    assert not said("neighbours", scope(grouped.results, None))
    of_text = {"intervals_over": {"unit": "sentence", "n": 30}, "correlation_of_neighbours": 0.4}
    assert said("mark_documents", scope(of_text, None))


@pytest.mark.parametrize("kind", ["in time", "in any order", "with groups"])
def test_rows_that_are_not_independent_support_no_claim_on_a_neuron(kind: str) -> None:
    """A series of 8 slow neurons of which one is the label's: as rows, in a random order, and in groups of 100 rows."""
    generator = np.random.default_rng(1)
    steps = generator.standard_normal((6000, 8))
    X = np.zeros((6000, 8))
    for i in range(1, 6000):
        X[i] = 0.95 * X[i - 1] + steps[i]
    y = (X[:, 3] > 0).astype(int)
    if kind == "in any order":
        order = generator.permutation(6000)
        X, y = X[order], y[order]
    groups = np.arange(6000) // 100 if kind == "with groups" else None
    made = probing.probe(
        X.astype(np.float32), y, groups, control_for=np.arange(6000) % 3, quiet=True, probe={"l2": 1e-3}, replicates=0
    )  # fmt: skip
    page = on_page(made) + " ".join(conclusions(source_of(made).views[0]))
    for text in (" ".join(made.conclusions()), page):
        claims = [name for name in ("carries", "varies", "covariate_too") if said(name, text)]
        assert said("unjudged", text) is (kind == "in time")
        assert said("give_groups", text) is (kind == "in time")
        assert claims == ([] if kind == "in time" else ["carries", "covariate_too"])


def on_page(run: Run) -> str:
    """Return the sentences of a run's answer on its page, which the terminal prints, too."""
    return " ".join(chain(*answer(source_of(run).views[0])))


def test_sentences_that_are_not_independent_and_a_mean_support_no_claim_either() -> None:
    (first, *_), layer = run("offset_signal").top(0, D), run("offset_signal").accuracy[0]
    text = conclusion([first], "label", layer, dependent="sentence")
    assert said("unjudged", text)
    assert said("mark_documents", text)
    assert "only" in text
    assert "carries" not in text
    assert said("intercept_only", conclusion(run("offset_noise").top(0, D), "label", dependent="row"))


def test_positions_are_said_where_there_are_three() -> None:
    rows = [{"layer": 0, "position": i, "accuracy": 0.5, "n_test_tokens": 9} for i in range(6)]
    assert said("positions", position_line(rows))
    assert position_line(rows[:2]) == ""


@pytest.mark.parametrize(("kind", "is_read"), [("planted", True), ("noise", False)])
def test_notes_under_tables(kind: str, is_read: bool) -> None:
    rows = run(kind).top(0, D)
    removed = sum(bool(row["removed"]) for row in rows)
    assert removed == D
    caption = str(probes.neurons_table(rows, "arrays", removed).caption)
    assert said("several_intervals", caption)
    assert not said("several_intervals", str(probes.neurons_table(rows, "arrays").caption))
    assert said("not_better", str(probes.accuracy_table(run(kind).results["layers"]).caption)) is not is_read


@pytest.mark.parametrize(("kind", "is_read"), [("planted", True), ("noise", False)])
def test_layers_that_are_not_to_be_read_and_neurons_of_every_run_are_said(kind: str, is_read: bool) -> None:
    lines = unread_lines({"a": run("planted").accuracy, "b": run(kind).accuracy})
    assert bool(lines) is not is_read
    assert all(said("unread_run", line) for line in lines)
    chance = {"n_layers": 1, "chance_mean": 1.0, "chance_low": 0.0, "chance_high": 2.0, "chance_p_value": 0.5}
    rows = [{"layer": 0, "neuron": 0, "p_value": 0.01, "no_signal": ""}]
    text = everywhere_sentence(rows, chance, 10)
    assert said("everywhere_by_chance", text)
    assert said("everywhere_beyond", text)
    assert "1 of them has" in everywhere_sentence(rows, chance, 10)
    assert "None of them have" in everywhere_sentence([{**rows[0], "p_value": 0.2}], chance, 10)
    assert said("everywhere", everywhere_sentence(rows, {"n_layers": 1, "chance_mean": 1.0}, 10))


@pytest.mark.parametrize(("of_b", "n_lines"), [((0, 1, 2), 0), ((2,), 1), ((1, 3), 2)])
def test_layers_without_one_of_the_same_depth_are_named(of_b: Sequence[int], n_lines: int) -> None:
    rows = [
        {"model_a": "a", "layer_a": i, "model_b": "b", "layer_b": j, "same_depth": "yes" if i == j else "no"}
        for i in range(3)
        for j in of_b
    ]
    lines = unpaired_lines(rows)
    assert len(lines) == n_lines
    assert all(said("unpaired", line) for line in lines)


def verdict_on(strengths: Sequence[float], flag: str = "") -> str:
    """Return the verdict on two runs whose neurons' contributions have a part in common, in each of their layers."""
    generator, rows = np.random.default_rng(0), []
    for layer, strength in enumerate(strengths):
        shared = strength * generator.standard_normal(60)
        a, b = (shared + generator.standard_normal(60) for _ in range(2))
        layers = {"model_a": "a", "layer_a": layer, "model_b": "b", "layer_b": layer, "same_depth": "yes"}
        found = agreement(a, b, k=10)
        rows += [{**layers, **vars(one), "p_value": min(len(strengths) * one.p_value, 1.0)} for one in found]
    flags = [{"layer": layer, "flag": flag} for layer in range(len(strengths))]
    (said,) = verdicts(rows, {"a": flags, "b": [{**row, "flag": ""} for row in flags]}, 10).values()
    return said


def test_a_copy_has_the_same_neurons_first() -> None:
    copied = verdict_on([1e6] * 4)
    assert said("same_neurons", copied)
    assert "10 of the first 10 neurons are in common" in copied
    assert "above chance in 4 of 4, corrected for 4 pairs of layers" in copied


@pytest.mark.parametrize("strengths", [(0.0,) * 4, (0.0,)])
def test_independent_rankings_have_no_more_in_common_than_chance(strengths: tuple[float, ...]) -> None:
    text = verdict_on(strengths)
    assert said("no_more_than_chance", text)
    assert text.endswith(f"(above chance in 0 of {len(strengths)}, corrected).")


def test_rankings_that_agree_in_some_layers_or_a_little_are_alike_in_part() -> None:
    assert "(above chance in 1 of 2, corrected)" in verdict_on((1e6, 0.0))
    for strengths in ((1e6, 0.0), (1.0,) * 3):  # a few neurons in common are more than chance, and not the same ones
        assert said("partly_same", verdict_on(strengths))


def test_a_probe_that_is_no_better_than_a_constant_answer_gives_no_verdict() -> None:
    assert said("no_verdict", verdict_on([1e6] * 2, UNINFORMATIVE))


@pytest.mark.parametrize("above", ["yes", "no"])
def test_what_is_no_better_than_chance_is_marked_and_explained(above: str) -> None:
    head = {
        "layer": 1, "head": 1, "first_neuron": 0, "n_neurons": 4, "share": 0.5, "accuracy": 0.6, "accuracy_low": 0.5,
        "accuracy_high": 0.7, "majority_accuracy": 0.4, "random_accuracy": 0.5, "random_lowest": 0.4,
        "random_highest": 0.55, "n_random": 10, "above_chance": above,
    }  # fmt: skip
    caption = str(probes.heads_table([head]).caption)
    assert said("note_of_heads", caption) is (above == "no")
    assert said("note_of_random_slices", caption)
    assert said("note_of_heads_alone", caption)
    assert not said("note_of_random_slices", str(probes.heads_table([{"layer": 1, **NO_ACCURACY}]).caption))
    row = {
        "layer": 1, "probe": "linear", "ranking": "contribution", "from": "top", "k": 5, "accuracy": 0.6,
        "mutual_information": 0.1, "share_of_entropy": 0.1, "majority_accuracy": 0.4, "draw": 0, "above_chance": above,
    }  # fmt: skip
    table = evaluation_table(Table([row, {**row, "from": "bottom"}]))
    assert said("note_of_choices", str(table.caption)) is (above == "no")
    ranked = {"anova": Table([{"layer": 1, "rank": 1, "neuron": 0, "score": 1.0}])}
    beside = {"layer": 1, "ranking": "anova", "n_rotations": 20}
    beside |= {f"first_10_share{end}": 0.2 for end in ("", "_lowest", "_highest", "_p")}
    for directions in ([beside], []):
        (table,) = rankings_tables(ranked, Table(directions if above == "no" else []))
        assert said("note_of_rotated", str(table.caption)) is (bool(directions) and above == "no")


NO_ACCURACY = {"head": 1, "first_neuron": 0, "n_neurons": 4, "share": 0.5}


def test_how_the_penalty_was_chosen_is_said_where_it_was() -> None:
    tried = {"tried": [1e-3, 1e-2], "l2": 1e-2, "validation_cross_entropy": [0.5, 0.4], "alone": {"0": 1e-2, "1": 1e-3}}
    lines = probes.penalty_lines(tried)
    assert [said("chosen_penalty", lines[0]), said("penalty_alone", lines[1])] == [True, True]
    assert probes.penalty_lines({"l2": 1e-3}) == []
    assert len(probes.penalty_lines({**tried, "alone": {"0": 1e-2}})) == 1


def test_what_a_transform_changed_stands_beside_what_was() -> None:
    row = {"layer": 1, "accuracy": 0.5, "untransformed_accuracy": 0.6, "n_clipped": 2}
    bare = transform_lines("clip", [row])[0]
    assert said("transformed", bare)
    assert "difference" not in bare
    assert "other neurons clipped" not in bare
    ended = {**row, "above_untransformed_low": -0.2, "above_untransformed_high": -0.1, "others_clipped_accuracy": 0.6}
    assert (
        "(difference -0.200 to -0.100), with as many other neurons clipped 0.600."
        in transform_lines("clip", [ended])[0]
    )
    assert transform_lines("none", [row]) == []


# --- claims of a layer together ---


def losses(generator: np.random.Generator, planted: float, n: int = 60) -> dict[int, Any]:
    """Return the effects of removing 20 neurons, of which one is worth something; their losses go together."""
    shared, n_tokens = generator.standard_normal(n), np.full(n, 20)
    with_it = np.zeros(n)
    means = planted * (np.arange(20) == 0)
    return {
        i: ablation_effect(with_it, 20 * (0.5 * shared + generator.standard_normal(n) + mean), n_tokens, 0.0)
        for i, mean in enumerate(means)
    }


def claims(effects: dict[int, Any]) -> set[int]:
    p = corrected(effects)
    columns = ("cross_entropy_without", "cross_entropy_without_low", "cross_entropy_without_high")
    rows = {
        i: {**dict(zip(columns, (one.value, one.low, one.high), strict=True)), "removed": "top", "removed_p": p[i]}
        for i, one in effects.items()
    }
    return {i for i, row in rows.items() if carries_it(row)}


def test_layers_of_noise_claim_a_neuron_at_most_at_the_level() -> None:
    generator = np.random.default_rng(0)
    drawn = [losses(generator, 0.0) for _ in range(100)]
    uncorrected = sum(any(one.low > 0 for one in effects.values()) for effects in drawn)
    claimed = sum(bool(claims(effects)) for effects in drawn)
    assert uncorrected >= 20  # of 100 layers: what the correction is for
    assert claimed <= 6  # 2.5 are expected at most, since gains are not claimed; 7 come up once in 90


def test_a_planted_neuron_is_still_claimed_and_alone() -> None:
    generator = np.random.default_rng(1)
    found = [claims(losses(generator, 0.7)) for _ in range(30)]
    assert sum(0 in own for own in found) >= 29
    assert sum(own == {0} for own in found) >= 26


def test_noise_claims_nothing_in_any_of_many_layers() -> None:
    generator = np.random.default_rng(2)
    y = generator.integers(2, size=800)
    layers = {i: generator.standard_normal((800, 8)).astype(np.float32) for i in range(12)}
    split = np.where(np.arange(800) < 400, "train", "test")
    made = probing.probe(layers, y, split=split, quiet=True, probe={"l2": 1e-3}, replicates=0, controls="none")
    spoken_of = [conclusion(made.top(row["layer"], 8), "label", row) for row in made.accuracy]
    assert sum("carries" in text for text in spoken_of) == 0
    assert sum("do not read its ranking" in text for text in spoken_of) >= 10


def test_earlier_runs_without_corrected_p_values_claim_nothing() -> None:
    rows = [{name: value for name, value in row.items() if name != "removed_p"} for row in run("planted").top(0, D)]
    assert not carries_it(rows[0])
    assert not carries_it({**rows[0], "removed_p": math.nan})


# --- nothing is said that is not listed ---


# Where something is to be found, and values of listed sentences.
FILLED_IN = {
    "The other layers' rankings are in ",
    "the same corpus; --test_corpus tests on another text",
    "value from a probe with an intercept",
}
WHOLE = ("probing/tables/conclusions.py",)
SPEAKERS = {
    "probing/studies/fit/__init__.py": {"_report"},
    "probing/studies/compare/__init__.py": {"_summary_lines"},
    "probing/probes/neuron_profiles.py": {"position_line"},
    "probing/studies/compare/tables.py": {
        "unread_lines",
        "unpaired_lines",
        "everywhere_sentence",
        "other_depths_lines",
        "neurons_tables",
        "agreement_tables",
        "conclusions",
        "_verdict",
        "_options",
    },
    "probing/tables/probes.py": {
        "neurons_table",
        "heads_table",
        "penalty_lines",
        "_uninformative",
        "caveats",
        "transform_lines",
        "_transform_line",
        "worst_class",
    },
    "probing/tables/conclusions.py": {"bases_table", "bases_lines", "_part"},
    "probing/studies/fit/rank.py": {"evaluation_table"},
    "probing/page/run.py": {"answer", "conclusions"},
}


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a piece of code that are sentences or large parts of one, without docstrings and titles."""
    skipped = {
        id(part)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("plain_table", "cells_table"))
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in skipped else None
        if isinstance(text, str) and len(re.findall(r"[A-Za-z'.]+(?: |$)", text)) > 5:
            yield text


@pytest.mark.parametrize("file", [*WHOLE, *SPEAKERS])
def test_no_sentence_is_written_where_it_is_said(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    parts: list[ast.AST] = [tree]
    if file in SPEAKERS:
        parts = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in SPEAKERS[file]]
        assert len(parts) == len(SPEAKERS[file])
    assert {text for part in parts for text in texts(part)} - FILLED_IN == set()


def test_a_sentence_that_is_written_where_it_is_said_is_found() -> None:
    code = 'def f(n):\n    """It says what it says here."""\n    print(f"{n} of these are no noise, but signals")'
    assert list(texts(ast.parse(code))) == [" of these are no noise, but signals"]


def test_every_listed_sentence_is_said_somewhere() -> None:
    used = set()
    for file in (ROOT / "probing").rglob("*.py"):
        if file.name not in ("evidence_sentences.py", "evidence_notes.py", "basis_sentences.py", "recipe_sentences.py"):
            used |= set(re.findall(r"""["'](\w+)["']""", file.read_text(encoding="utf-8")))
    assert set(SENTENCES) - used == {"few"}  # `few_sentences` has its text


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_said_of_a_run_is_made_of_listed_sentences(kind: str) -> None:
    whole = "|".join(as_pattern(sentence.text) for sentence in SENTENCES.values() if sentence.text.endswith("."))
    assert re.fullmatch(f"(?:{whole})(?: (?:{whole}))*", spoken(kind)), spoken(kind)
