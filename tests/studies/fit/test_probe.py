"""`probing.probe`: arrays in, the tables of `fit` out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pytorch_lightning.loggers import CSVLogger
from scipy.stats import pearsonr

import probing
from probing import Run, fit, probe
from probing.activations.store import cache_folder
from probing.cli.options import WandbOptions
from probing.data.examples import read
from probing.data.module import ActivationDataModule
from probing.errors import UserError
from probing.statistics import difference_interval
from wandb_stand_in import read_offline_runs

FAST: Mapping[str, Any] = {"probe": {"l2": 1e-2}, "replicates": 0, "evidence": "none"}
CARRIER = 7


@pytest.fixture(scope="module")
def planted() -> tuple[NDArray[np.float32], NDArray[np.str_], NDArray[np.int64]]:
    """1,200 rows of 12 neurons in groups of 4; the label is the sign of neuron 7."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((1200, 12)).astype(np.float32)
    return X, np.where(X[:, CARRIER] > 0, "up", "down"), np.arange(1200) // 4


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]], left_out: set[str]) -> None:
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        for name in other.keys() - left_out:
            if isinstance(other[name], float):
                assert row[name] == pytest.approx(other[name], rel=1e-3, abs=2e-4, nan_ok=True), name
            else:
                assert row[name] == other[name], name


@pytest.mark.slow
def test_the_activations_of_a_run_give_its_tables(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"replicates": 2, "probe": {"l2": 1e-2, "tolerance": 1e-6}}
    made = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=[0, 2], runs=str(tmp_path), quiet=True,
        controls="none", wandb=WandbOptions(mode="disabled"), **options,
    )  # fmt: skip
    data = ActivationDataModule.from_text(
        str(checkpoints["bert"]), str(corpus_file), [0, 2], cache=cache_folder(None, str(tmp_path))
    )
    parts: list[tuple[Any, ...]] = []
    for side in ("train", "validation", "test"):
        for batch in read(getattr(data.sides, side), [0, 2]):
            sentences = batch.sentences.numpy()
            parts.append((*batch.hidden_states, data.sides.classes[batch.labels], sentences, [side] * len(sentences)))
    zero, two, y, groups, split = (np.concatenate(part) for part in zip(*parts, strict=True))
    again = probe({0: zero, 2: two}, y, groups, split, ordinal=True, controls="none", **options)
    same(again.accuracy, made.accuracy, set())
    # Neurons that hardly differ may change places where sums are in another order.
    ours, theirs = (sorted(run.neurons, key=lambda row: (row["layer"], row["neuron"])) for run in (again, made))
    same(ours, theirs, {"rank", "rank_low", "rank_high", "cross_entropy_without", "removed"} | ABOUT_REMOVALS)
    for layer in (0, 2):
        assert [r["neuron"] for r in again.top(layer, 3)] == [r["neuron"] for r in made.top(layer, 3)]


ABOUT_REMOVALS = {"cross_entropy_without_low", "cross_entropy_without_high"}


def test_a_planted_neuron_is_found_and_shuffled_labels_find_nothing(planted: Any) -> None:
    X, y, groups = planted
    run = probe(X, y, groups, probe={"l2": 1e-2}, replicates=2)
    assert run.accuracy[0]["accuracy"] > 0.95
    assert abs(run.accuracy[0]["shuffled_accuracy"] - 0.5) < 0.15
    first = run.top(0, 1)[0]
    assert (first["neuron"], first["flag"], first["rank_high"]) == (CARRIER, "", 1)
    assert first["cross_entropy_without_low"] > 0.3
    assert [row["neuron"] for row in run.neurons if "no-signal" not in row["flag"]] == [CARRIER]
    assert run.results["intervals_over"]["unit"] == "group"
    chance = np.random.default_rng(1).permutation(y)
    nothing = probe(X, chance, groups, **FAST)
    assert nothing.accuracy[0]["flag"] == "uninformative"
    assert {row["flag"] for row in nothing.neurons} == {"uninformative"}


@pytest.mark.slow
def test_one_decomposition_of_a_layer_serves_its_probe_its_controls_and_its_evidence(
    planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, groups = planted
    sizes, eigh = [], torch.linalg.eigh

    def counted(matrix: torch.Tensor) -> Any:
        sizes.append(len(matrix))
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    probe(X, y, groups, replicates=2)  # with a penalty of its own, which takes several trainings to choose
    assert sizes.count(X.shape[1]) == 1


@pytest.mark.parametrize("grouped", [True, False])
def test_labels_of_groups_are_compared_between_groups(grouped: bool) -> None:
    """Four rows of a group are no more evidence than one: what is constant in groups must not be a signal for it."""
    generator = np.random.default_rng(3)
    n_groups, times = 600, 4 if grouped else 1
    groups = np.repeat(np.arange(n_groups), times)
    labels = generator.integers(2, size=n_groups)
    X = generator.standard_normal((n_groups, 40))[groups] + 0.01 * generator.standard_normal((len(groups), 40))
    X[:, CARRIER] += 2 * labels[groups] - 1
    run = probe(X, labels[groups], groups if grouped else None, **FAST)
    assert run.accuracy[0]["flag"] == ""
    signals = {row["neuron"] for row in run.neurons if "no-signal" not in row["flag"]}
    assert CARRIER in signals
    assert len(signals) <= 3
    p = {row["neuron"]: row["eta_squared_p"] for row in run.neurons}
    assert p[CARRIER] < 1e-5
    # By the definition, among means of groups: the share's distribution under relabelling is that of a t statistic.
    from scipy.stats import ttest_ind

    train = {row for row in range(n_groups) if probing.text.side_of(str(row), 0) == "train"}
    kept = sorted(train)
    means = np.stack([X[groups == group].mean(0) for group in kept])
    own = labels[kept]
    expected = ttest_ind(means[own == 0], means[own == 1]).pvalue
    np.testing.assert_allclose([p[i] for i in range(40)], expected, rtol=0.2, atol=0.02)


def test_neurons_of_a_given_value_are_told_from_those_of_the_label(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    given = generator.integers(5, size=1500)
    side = given < 2
    y = np.where(generator.random(1500) < 0.25, ~side, side)
    X = generator.standard_normal((1500, 10)).astype(np.float32)
    X[:, 3] += 2 * side - 0.8
    X[:, CARRIER] += y - 0.5
    rows = {row["neuron"]: row for row in probe(X, y, control_for=given, name="held", runs=tmp_path, **FAST).neurons}
    assert rows[3]["flag"] == "confound"
    assert rows[3]["eta_squared"] > 0.1 > 0.01 > rows[3]["within_covariate_eta_squared"]
    assert "confound" not in rows[CARRIER]["flag"]
    assert rows[CARRIER]["within_covariate_p"] < 1e-10
    text = [f"g{value}" for value in given]
    again = {row["neuron"]: row for row in probe(X, y, control_for=text, **FAST).neurons}
    assert {i: row["within_covariate_p"] for i, row in again.items()} == {
        i: row["within_covariate_p"] for i, row in rows.items()
    }
    page = (tmp_path / "held" / "report.html").read_text(encoding="utf-8")
    assert "Within values of the covariate" in page
    assert "Neurons are also compared within values of the covariate: among" in page


def test_of_numbers_too_a_given_value_is_told_from_the_number() -> None:
    generator = np.random.default_rng(6)
    given = generator.integers(30, size=1200)
    shared, own = generator.standard_normal(30)[given], generator.standard_normal(1200)
    X = generator.standard_normal((1200, 10)).astype(np.float32)
    X[:, 3] += 2 * shared
    X[:, CARRIER] += own
    made = probe(X, shared + 0.5 * own, control_for=given, **FAST)
    rows = {row["neuron"]: row for row in made.neurons}
    assert rows[3]["flag"] == "confound"
    assert rows[CARRIER]["within_covariate_eta_squared"] > 2 * rows[CARRIER]["eta_squared"]
    assert rows[CARRIER]["within_covariate_p"] < 1e-20
    # By the definition: the squared partial correlation within values, where the number varies by what it is alone.
    train = {row for row in range(1200) if probing.text.side_of(str(row), 0) == "train"}
    kept = np.array(sorted(train))
    within = np.stack([X[kept, CARRIER], 0.5 * own[kept]], axis=1).astype(np.float64)
    for value in range(30):
        within[given[kept] == value] -= within[given[kept] == value].mean(0)
    expected = pearsonr(within[:, 0], within[:, 1]).statistic ** 2
    assert rows[CARRIER]["within_covariate_eta_squared"] == pytest.approx(expected, abs=0.01)
    assert made.accuracy[0]["r2"] > made.accuracy[0]["covariate_r2"] > 0.3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (np.zeros(3), r"`control_for` has shape \(3,\), and `X` has 1200 rows"),
        (np.linspace(0, 1, 1200), r"`control_for` has numbers with a fraction"),
        (np.arange(1200), r"`control_for`: no two training rows with the same value have different labels"),
    ],
)
def test_given_values_are_checked(planted: Any, tmp_path: Path, given: Any, sentence: str) -> None:
    X, y, _ = planted
    with pytest.raises(UserError, match=sentence):
        probe(X, y, control_for=given, runs=tmp_path, **FAST)
    assert not list(tmp_path.iterdir())


def test_rows_without_a_given_value_are_left_out_of_what_is_compared(planted: Any) -> None:
    X, y, _ = planted
    given: list[Any] = [None if row % 3 else row % 2 for row in range(1200)]
    made = probe(X, y, control_for=given, **FAST)
    assert made.results["covariate"]["n_values"] == 2
    assert made.results["covariate"]["n_tokens"] == pytest.approx(made.accuracy[0]["n_train_tokens"] / 3, rel=0.1)


def test_a_run_without_a_name_goes_with_its_object(planted: Any) -> None:
    X, y, groups = planted
    run = probe(X, y, groups, **FAST)
    folder = run.folder
    assert folder.is_dir()
    assert "up" in run.results["classes"]
    del run
    assert not folder.exists()


def test_a_named_run_is_kept_with_figures_and_a_page(planted: Any, tmp_path: Path) -> None:
    X, y, groups = planted
    run = probe({3: X}, y, groups, runs=tmp_path, name="mine", model="sparse", task="sign", mdl=True, **FAST)
    assert run.folder == tmp_path / "mine"
    assert (run.folder / "figures" / "accuracy.png").is_file()
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Can sign be decoded from layer 3 of sparse" in page
    assert "of arrays, and tested on" in page
    assert "hold for others drawn as these were" in page
    assert probing.load_run(run.folder).accuracy == run.accuracy
    assert run.accuracy[0]["compression"] > 1
    with pytest.raises(UserError, match='`name="mine"`'):
        probe(X, y, runs=tmp_path, name="mine", **FAST)
    for refused in (lambda: probing.rank(str(run.folder)), lambda: probing.compare([str(run.folder)] * 2)):
        with pytest.raises(UserError, match=r"was made by `probing.probe` from arrays, which are not kept"):
            refused()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"replicates": 1}, r"`replicates=1` is too few"),
        ({"probe": {"l2": 0.0}}, r"`probe.l2=0.0` is out of range"),
        ({"probe": {"l3": 1}}, r"`probe.l3` is not an option"),
        ({"controls": "untrained"}, r'`controls="untrained"` is not one of shuffled, all, none'),
        ({"trainer": {"max_epoch": 3}}, r'`trainer\["max_epoch"\]` is not an argument.*max_epochs'),
        ({"name": "../x"}, r"is not a plain name"),
    ],
)
def test_options_are_checked(planted: Any, tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    X, y, _ = planted
    with pytest.raises(UserError, match=sentence):
        probe(X, y, runs=tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_how_each_layer_compares_with_directions_is_logged_by_layer(planted: Any, tmp_path: Path) -> None:
    X, y, groups = planted
    layers = {0: X, 3: X @ np.linalg.qr(np.random.default_rng(1).standard_normal((12, 12)))[0].astype(np.float32)}
    options = {**FAST, "evidence": "all", "controls": "none", "quiet": True, "wandb": {"mode": "offline"}}
    run = probe(layers, y, groups, runs=tmp_path, **options)
    (logged,) = read_offline_runs(run.folder)
    columns = ("first_10_share", *(f"first_10_share_{of}" for of in ("directions", "highest", "p")), "n_above")
    plain = {row["layer"]: row for row in run.basis if row["kind"] == "plain"}
    assert plain[0]["n_above"] > plain[3]["n_above"] == 0
    for column in columns:
        curve = {row["layer"]: row[f"by_layer/{column}"] for row in logged.rows(f"by_layer/{column}")}
        assert curve == {layer: row[column] for layer, row in plain.items()}
        assert [logged.summary[f"layer_{layer:02d}/{column}"] for layer in plain] == list(curve.values())
    (without,) = read_offline_runs(probe(layers, y, groups, runs=tmp_path, **{**options, "rotations": 0}).folder)
    keys = {key for row in without.history for key in row} | {*without.summary}
    assert "by_layer/accuracy" in keys
    assert not [key for key in keys if key.endswith(columns)]


def test_a_run_is_logged_to_wandb_as_one_of_fit_is(planted: Any, tmp_path: Path, capsys: Any) -> None:
    X, y, groups = planted
    run = probe(X, y, groups, runs=tmp_path, name="logged", wandb={"mode": "offline", "project": "arrays"}, **FAST)
    assert (
        f"Results: {run.folder} (open report.html in a browser)\nTo upload to Weights & Biases: cd"
        in capsys.readouterr().out
    )
    (logged,) = read_offline_runs(run.folder)
    assert logged.config["task"] == "label"
    assert logged.summary["layer_00/accuracy"] == pytest.approx(run.accuracy[0]["accuracy"])
    assert logged.rows("train/layer_00/objective")
    for logger, words in ((None, "give `name` or `runs`"), (CSVLogger("unused"), "`logger` and `wandb`")):
        with pytest.raises(UserError, match=words):
            probe(X, y, wandb={"mode": "offline"}, logger=logger, **FAST)
    with pytest.raises(UserError, match=r"`wandb\.modus` is not an option"):
        probe(X, y, wandb={"modus": "offline"}, **FAST)


@pytest.mark.parametrize("missing", ["", -1])
def test_quiet_says_what_is_left_out_and_not_where_results_are(
    planted: Any, missing: str | int, tmp_path: Path, capsys: Any
) -> None:
    X, y, groups = planted
    y = np.where(np.arange(len(y)) == 3, missing, y if missing == "" else y == "up")
    probe(X, y, groups, runs=tmp_path, name="loud", **FAST)
    said = capsys.readouterr()
    assert "1 of 1200 rows have no label" in said.err
    assert said.out == f"Results: {tmp_path / 'loud'} (open report.html in a browser)\n"
    probe(X, y, groups, runs=tmp_path, name="quiet", quiet=True, wandb={"mode": "disabled"}, **FAST)
    assert capsys.readouterr() == ("", said.err)


def test_it_is_a_run(planted: Any) -> None:
    X, y, _ = planted
    run = probe(X, y, **FAST)
    assert isinstance(run, Run)
    assert "Layer 0: neurons by contribution" in repr(run)
    assert isinstance(run.neurons[0], dict)


# --- numbers ---


@pytest.fixture(scope="module")
def measured() -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.int64]]:
    """1,200 rows of 12 neurons in groups of 4; the number is neuron 7 with noise."""
    generator = np.random.default_rng(4)
    X = generator.standard_normal((1200, 12)).astype(np.float32)
    return X, 50 + 3 * X[:, CARRIER] + generator.standard_normal(1200), np.arange(1200) // 4


def test_a_planted_number_is_found_and_shuffled_numbers_find_nothing(measured: Any, tmp_path: Path) -> None:
    X, y, groups = measured
    run = probe(X, y, groups, replicates=2, runs=tmp_path, name="numbers", task="size")
    (row,) = run.accuracy
    assert 0.8 < row["r2_low"] < row["r2"] < row["r2_high"] < 0.95
    assert row["shuffled_r2"] < 0.05
    assert row["above_shuffled_low"] > 0.7
    assert row["relative_gradient"] < 1e-12
    assert row["mean_absolute_error"] == pytest.approx(np.sqrt(2 / np.pi), rel=0.15)
    assert not {"accuracy", "majority_accuracy", "optimality_gap"} & set(row)
    first = run.top(0, 1)[0]
    assert (first["neuron"], first["flag"], first["rank_high"]) == (CARRIER, "", 1)
    assert first["correlation"] == pytest.approx(0.95, abs=0.02)
    assert first["r2_without_low"] > 0.7
    assert [one["neuron"] for one in run.neurons if "no-signal" not in one["flag"]] == [CARRIER]
    # The page, the figures and the conclusion are those of numbers.
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Test R² of" in page or "test R² of" in page
    assert "carries size" in page
    assert "accuracy of" not in page.split('id="terms"')[0]
    assert not (run.folder / "classes.csv").exists()
    test = np.array([probing.text.side_of(str(group), 0) == "test" for group in groups])
    predicted = run.results["numbers"]["mean"] + X[test].astype(np.float64) @ run.weight[0, 0].numpy()
    centre = run.results["numbers"]["mean"]
    assert row["r2"] == pytest.approx(1 - ((y[test] - predicted) ** 2).sum() / ((y[test] - centre) ** 2).sum())
    nothing = probe(X, np.random.default_rng(1).permutation(y), groups, replicates=0, evidence="none")
    assert nothing.accuracy[0]["r2"] < 0.02
    assert {one["flag"] for one in nothing.neurons} == {"uninformative"}
    assert min(one["eta_squared_q"] for one in nothing.neurons) > 0.01


def test_contributions_add_up_to_the_prediction(measured: Any) -> None:
    X, y, _ = measured
    run = probe(X, y, replicates=0, evidence="none", controls="none")
    test = np.array([probing.text.side_of(str(row), 0) == "test" for row in range(len(X))])
    terms = X[test].astype(np.float64) * run.weight[0, 0].numpy()
    shown = {row["neuron"]: row["contribution"] for row in run.neurons}
    np.testing.assert_allclose([shown[i] for i in range(12)], np.abs(terms).mean(0))
    assert "R²" in repr(run)


def test_whole_numbers_are_classes_unless_they_are_said_to_be_numbers(measured: Any) -> None:
    X, y, groups = measured
    whole = np.round(y)
    assert "accuracy" in probe(X, (whole > 50).astype(float), groups, **FAST, controls="none").accuracy[0]
    run = probe(X, whole.astype(int), groups, numbers=True, replicates=0, evidence="none", controls="none")
    assert run.accuracy[0]["r2"] > 0.8


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"y": np.full(40, np.nan)},
            r"`y`: all training rows have no label, and a probe tells .*; 40 rows have none \(None, NaN",
        ),
        (
            {"y": np.full(40, 0.5)},
            "`y`: the training rows all have the number 0.5, and a probe needs numbers that vary",
        ),
        (
            {"y": np.arange(40) * 1e300, "numbers": True},
            r"`y`: a number to predict has the size 3\.9e\+301, where at most 1e\+30",
        ),
        (
            {"y": np.arange(40) * 1e-300},
            "`y`: the numbers of the training rows differ by .*, and at least 1e-30 is needed",
        ),
        (
            {"y": ["a"] * 40, "numbers": True},
            "`y` has 'a' of the type str for row 0, .* and `numbers` says that labels are",
        ),
        ({"numbers": False}, "`y` has numbers with a fraction, such as .*, or leave out `numbers=False`"),
        ({"ordinal": True}, "`ordinal=True`: the labels are numbers to predict as such"),
        ({"mdl": True}, "`mdl` does not apply: the task predicts numbers, by a ridge probe in closed form"),
        ({"probe": {"solver": "adam"}}, '`probe.solver="adam"` does not apply: the task predicts numbers'),
        ({"probe": {"l1": 0.1}}, "`probe.l1=0.1` does not apply"),
        ({"trainer": {"max_epochs": 5}}, "`trainer.max_epochs=5` does not apply"),
        (
            {"logger": CSVLogger("unused")},
            "`logger` does not apply: a ridge probe in closed form has no training curves",
        ),
    ],
)
def test_what_does_not_apply_to_numbers_is_refused(how: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"y": np.arange(40) + 0.5, **how}
    with pytest.raises(UserError, match=message):
        probe(np.random.default_rng(0).standard_normal((40, 3)), **given)


def test_the_linear_probe_of_classes_refuses_numbers() -> None:
    with pytest.raises(UserError, match="`LinearProbe` predicts classes, and these labels are numbers"):
        ActivationDataModule.from_arrays(np.eye(40), np.arange(40) + 0.5)


def test_the_probe_is_held_against_the_majority_class_on_the_same_rows() -> None:
    generator = np.random.default_rng(5)
    groups, y = np.repeat(np.arange(200), 4), (generator.random(800) < 0.3).astype(int)
    X = generator.standard_normal((800, 6)) + 0.4 * y[:, None]
    split = np.where(groups % 2 == 0, "train", np.where(groups % 4 == 1, "validation", "test"))
    run = probe(X, y, groups, split=split, replicates=0, evidence="none", controls="none")
    test, (row,) = split == "test", run.accuracy
    predicted = np.array([one["predicted"] for one in run.predict(X[test])])
    difference = (predicted == y[test]).astype(int) - (y[test] == 0)
    expected = difference_interval(np.bincount(groups[test], difference), np.bincount(groups[test]))
    assert (row["above_majority_low"], row["above_majority_high"]) == pytest.approx(expected)
    assert row["accuracy"] - row["majority_accuracy"] == pytest.approx(difference.mean())


@pytest.mark.parametrize("y", [np.arange(300) % 2, np.linspace(0, 1.5, 300)], ids=["classes", "numbers"])
def test_without_a_validation_side_no_penalty_is_chosen(y: np.ndarray) -> None:
    X = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    split = np.where(np.arange(300) % 3, "train", "test")
    with pytest.raises(UserError, match="no row of a class is on the validation side"):
        probe(X, y, split=split, quiet=True)
    made = probe(X, y, split=split, quiet=True, probe={"l2": 1e-3}, replicates=0, evidence="none")
    assert made.results["n_example_tokens"]["validation"] == 0
