"""The benchmarks of intervals, estimators, penalties and evidence, at toy size."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import probing
from benchmarks import estimators, null_designs, penalties
from benchmarks.coverage import Quantity, coverage, halves, report
from benchmarks.null_designs import DESIGNS, Counted
from probing import ProbeClassifier
from probing.data.module import token_types
from probing.statistics import accuracy_interval, mean_interval
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, positional, sides


def test_intervals_contain_the_truth_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    n_tokens = generator.integers(5, 40, 500)
    # An accuracy that differs between sentences, and nats that are skewed.
    right = generator.binomial(n_tokens, generator.beta(3, 5, 500)).astype(np.float64)
    nats = n_tokens * generator.gamma(2.0, 0.5, 500)
    for name, interval, sums in (("accuracy", accuracy_interval, right), ("nats", mean_interval, nats)):
        quantity = Quantity(name, interval, sums)
        for size in (20, 100):
            now, before = coverage(quantity, n_tokens, size, 500, seed=0)
            # The standard error of a share of .95 in 500 samples is .01; four of them.
            assert 0.91 < now <= 1
            assert before < now + 0.02


def test_the_table_has_both_intervals_for_each_number_of_sentences() -> None:
    shown = report({"accuracy": {20: (0.95, 0.9), 50: (0.99, 0.93)}}, {"accuracy": 0.5})
    assert "| accuracy | 0.5000 | 95.0% (90.0%) | 99.0% (93.0%) |" in shown
    assert "1 of 2 cells are within 92% to 98%" in shown


def test_half_of_the_sentences_are_tested_on() -> None:
    drawn = halves(2000, 0)
    assert abs(drawn.count("test") - 1000) < 100
    assert {*drawn} == {"train", "validation", "test"}


def test_little_is_lost_by_the_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = estimators.planted(300, 6, 3, 3.0, 0)
    monkeypatch.setattr(estimators, "data_sets", lambda: iter([("toy", x, y)]))
    monkeypatch.setattr(estimators, "GRID", estimators.GRID[:13])  # to 1e-4, where probes are soon at their optimum
    estimators.print_choices()
    head, line, toy, *diabetes = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == toy.count("|") == 6
    _, name, auto, search, lost, _, _ = (cell.strip() for cell in toy.split("|"))
    assert name == "toy"
    assert 0 <= float(lost) < 2e-3  # below what the path takes for no gain
    assert 1e-4 <= float(search) <= 100
    assert float(auto) <= 100
    assert len(diabetes) == 3


def test_the_gap_is_the_one_that_the_probe_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, size in (("N_ROWS", 400), ("WIDTH", 8), ("N_CLASSES", 3), ("L2", 1e-3)):
        monkeypatch.setattr(estimators, name, size)
    x, y = estimators.correlated()
    sd = x.std(0, dtype=np.float64)
    probe = ProbeClassifier(l2=1e-3, tolerance=1e-4).fit(x, y)
    assert estimators.gap(probe.coef_ * sd, x / sd, y) == pytest.approx(probe.gap_, rel=0.01)
    estimators.print_times()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| Probe", "| Logistic"))]
    assert len(rows) == 4
    assert float(rows[0].split("|")[4]) <= 3e-6


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_has_rows_of_whole_groups_and_of_several_classes(name: str) -> None:
    rows = DESIGNS[name].draw(np.random.default_rng(0), 1)
    assert rows.neurons.shape == (len(rows.labels), null_designs.N_NEURONS)
    assert len(np.unique(rows.labels)) > 1
    assert rows.groups is None or (np.diff(rows.groups) >= 0).all()
    again = DESIGNS[name].draw(np.random.default_rng(0), 1)
    np.testing.assert_array_equal(rows.neurons, again.neurons)


def test_a_line_counts_what_a_run_claims() -> None:
    design, counted = DESIGNS["planted, constant"], Counted()
    generator = np.random.default_rng(0)
    rows, unseen = design.draw(generator, 1), design.draw(generator, 2)
    run = probing.probe(
        rows.neurons.astype(np.float32), rows.labels, groups=rows.groups, quiet=True, replicates=0, evidence="none"
    )
    counted.add(run, design, unseen)
    assert len(counted.p_values[0]) == null_designs.N_NEURONS - 1
    assert counted.found == [True]
    assert counted.excluded == [False]
    assert counted.line("x").count("|") == null_designs.HEADING.count("|")


def test_a_flipped_row_is_one_row() -> None:
    def mixed(name: str) -> int:
        rows = DESIGNS[name].draw(np.random.default_rng(0), 1)
        assert rows.groups is not None
        return sum(len(np.unique(rows.labels[rows.groups == g])) > 1 for g in np.unique(rows.groups))

    assert [mixed(name) for name in ("constant", "one flipped", "each flipped")] == [0, 1, 300]


@pytest.fixture(scope="module")
def null_runs() -> ModuleType:
    return importlib.import_module("benchmarks.null_runs")


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_planted_neurons_are_told_for_what_they_are(null_runs: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 300).tolist())
    data = sides(make_store(tmp_path / "store", [positional(tokens, 20, 0.3)], tokens, shard_tokens=1000))
    answers = list(null_runs.runs(data, 0, 4, seed=0))
    assert len(answers) == 4
    for answer in answers:
        assert set(answer.yes) == set(null_runs.QUESTIONS)
        assert answer.yes["signal"]
        assert answer.yes["constant"]
        assert answer.yes["strength_0.2"]
        assert answer.rank <= 10
        assert answer.n_live == 20
    # Of 16 a sixth is expected to be missed, at a false discovery rate of 1%.
    assert sum(answer.yes[kind] for answer in answers for kind in ("noise", "sentence", "length", "shuffled")) >= 14
    assert sum(answer.yes["strength_0.0002"] for answer in answers) <= 1  # of 2,000 tokens it takes more
    assert sum(answer.false_alarms for answer in answers) <= 1  # in 99% of runs there are none
    shown = null_runs.report(answers)
    assert "without a flag | 4 | 4 | 1.000 | 0.398 to 1.000 |" in shown  # .025 ** (1 / 4) = .398
    assert f"ranked {min(a.rank for a in answers)} to" in shown
    assert f"{sum(a.false_alarms for a in answers)} of 80 real neurons" in shown


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_the_same_neurons_are_flagged_no_signal_once_labels_are_permuted(null_runs: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 300).tolist())
    data = sides(make_store(tmp_path / "store", [positional(tokens, 20, 3.0)], tokens, shard_tokens=1000))
    (answer,) = null_runs.runs(data, 0, 1, seed=0)
    assert answer.false_alarms == 0  # of 20 that position explains to nine tenths
    assert answer.n_live == 20


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_planted_neurons_are_explained_as_much_as_they_say(null_runs: ModuleType) -> None:
    tokens = make_tokens([12] * 2000)
    columns = null_runs.planted_neurons(tokens, np.random.default_rng(0))
    assert list(columns)[null_runs.N_SEEN - 1] == "constant"
    assert list(columns)[null_runs.N_SEEN] == "strength_0.0002"
    for kind, expected in (("signal", 0.5), ("strength_0.2", 0.2), ("noise", 0.0)):
        values = columns[kind]
        means = np.array([values[tokens.positions == p].mean() for p in range(12)])
        assert means.var() / values.var() == pytest.approx(expected, abs=0.02)
    sentence = columns["sentence"].reshape(2000, 12)
    assert (sentence == sentence[:, :1]).all()
    assert columns["constant"].mean() == pytest.approx(10, abs=0.02)


@pytest.fixture(scope="module")
def null_tasks() -> ModuleType:
    return importlib.import_module("benchmarks.null_tasks")


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["token", "word_type"])
def test_random_tasks_agree_where_scores_are_exchanged_and_not_beyond_shuffled_labels(
    null_tasks: ModuleType, tmp_path: Path, kind: str
) -> None:
    # Neurons whose means are far from 0 serve as the intercept of any probe.
    tokens = make_tokens([9] * 80)
    states = np.random.default_rng(0).standard_normal((2, tokens.n_tokens, 30)) + np.geomspace(0.05, 20, 30)
    data = sides(make_store(tmp_path / "store", list(states), tokens))
    found = list(null_tasks.pairs(data, [0, 1], kind, 3, 4, 19, seed=0, l2=1e-2))
    assert len(found) == 4
    p_values, exchanged = (
        np.array([getattr(one, what)[name] for one in found for name in ("overlap", "spearman")])
        for what in ("p_values", "exchanged")
    )
    assert p_values.shape == (8, 4)  # pairs of layers
    assert np.mean(exchanged <= 0.05) > 0.3
    assert np.mean(p_values <= 0.05) < 0.2
    for one in found:
        assert (one.corrected["spearman"] >= one.p_values["spearman"]).all()
        assert one.common.chance is not None
    shown = null_tasks.report(found, kind, 3)
    assert f"| 3 by {kind.replace('_', ' ')} | overlap | " in shown
    assert " of 4 |" in shown


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_a_class_is_drawn_for_each_token_or_for_each_type(null_tasks: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens([9] * 80)
    data = sides(make_store(tmp_path / "store", [np.ones((tokens.n_tokens, 2))], tokens))
    types = token_types(tokens)
    for kind, mixed in (("token", True), ("word_type", False)):
        task = null_tasks.random_task(data, kind, 4, seed=1)  # tokens were drawn from seed 0
        labels = np.maximum(np.maximum(task.train.labels, task.validation.labels), task.test.labels)
        own = {(int(t), int(y)) for t, y in zip(types, labels, strict=True) if y >= 0}
        assert (len(own) > len({t for t, _ in own})) == mixed
        assert {y for _, y in own} == {0, 1, 2, 3}
        assert task.classes.tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_a_row_a_layer_compares_the_fixed_penalty_with_the_chosen_one(tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 9, 80).tolist())
    states = [positional(tokens, 32, 1.0), positional(tokens, 32, 0.2, seed=1)]
    data = sides(make_store(tmp_path / "store", states, tokens))
    rows = penalties.compare(data, [0, 1], 80, 1e-4, seed=0)
    assert [row.layer for row in rows] == [0, 1]
    assert rows[1].cross_entropy[1] < rows[1].cross_entropy[0]  # faint, and few tokens for the width
    for row in rows:
        assert row.cross_entropy[1] < row.prior + 0.05
        assert all(-1 <= value <= 1 for value in (*row.overlap, *row.spearman))
    assert rows[0].l2 == rows[1].l2 > 1e-4
    assert penalties.report(rows, 1e-4).count("\n| 80 |") == 2


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_halves_share_no_sentence_and_leave_none_out(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 30)
    data = sides(make_store(tmp_path / "store", [positional(tokens, 4, 1.0)], tokens))
    one, other = penalties.halves(data, 0).bool()
    assert not (one & other).any()
    assert (one | other).nonzero().squeeze(1).tolist() == data.train.sentences().tolist()
