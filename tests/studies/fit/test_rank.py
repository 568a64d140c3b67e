"""`rank` from the command line: planted neurons are found, rankings are judged, and a run is only added to."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import accuracy_score

from conftest import BARE
from families import D_MODEL
from probing import Rankings, WandbOptions, fit, load_run, rank
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.probes.rankings import METHODS
from probing.runs.loading import tracked_like
from probing.runs.run import Run, load_fit
from probing.runtime.terminal import render
from probing.tables.schema import CURVES, EVALUATION
from rendering import rendered
from wandb_stand_in import read_offline_runs
from written import read_csv

NO_WANDB: Any = {"mode": "disabled"}
INFORMATIVE, CONSTANT = 5, 11


def plant(model: Path, copy: Path) -> Path:
    """Save a copy of a BERT whose embeddings hold the position in one neuron and a large constant in another.

    The embedding output is after a LayerNorm, whose gain and bias set the size of both.
    """
    shutil.copytree(model, copy)
    weights = load_file(copy / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    embeddings = [name for name in weights if name.startswith("embeddings") and weights[name].ndim == 2]
    for name in embeddings:
        weights[name] = torch.randn(weights[name].shape, generator=generator)
    for name in embeddings:
        weights[name][:, INFORMATIVE] = 0
    (table,) = (name for name in embeddings if "position" in name)
    weights[table] *= 0.01
    weights[table][:, INFORMATIVE] = torch.linspace(-4, 4, len(weights[table]))
    weights["embeddings.LayerNorm.weight"][CONSTANT] = 0.5
    weights["embeddings.LayerNorm.bias"][CONSTANT] = 20.0
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.fixture(scope="module")
def options(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("runs")
    return {"corpus": str(corpus_file), "runs": str(place), "quiet": True, "wandb": NO_WANDB, **BARE}


@pytest.fixture(scope="module")
def planted(checkpoints: dict[str, Path], options: dict[str, Any]) -> Path:
    """A run on the embedding output of a model with planted neurons."""
    model = plant(checkpoints["bert"], Path(options["runs"]).parent / f"{Path(options['runs']).name}-planted")
    how = {**options, "probe": {"l2": 1e-4}}
    made = fit(model=str(model), layer=0, name="planted", task_args={"max_position": 30}, **how)
    return made.folder


@pytest.fixture(scope="module")
def plain(checkpoints: dict[str, Path], options: dict[str, Any]) -> Path:
    """A run on all layers of a tiny BERT."""
    made = fit(model=str(checkpoints["bert"]), name="plain", **options)
    return made.folder


def contents(folder: Path) -> dict[str, str]:
    """Return a checksum of every file of a run but its rankings."""
    files = [path for path in folder.rglob("*") if path.is_file() and "rankings" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rank_of(neuron: int, rows: list[dict[str, Any]]) -> int:
    return next(row["rank"] for row in rows if row["neuron"] == neuron)


@pytest.mark.slow
def test_planted_neurons_are_found_from_the_command_line(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(planted)
    assert run(COMMANDS, ["rank", str(planted), "--evaluate", "--k", "1,4", "--wandb.mode", "disabled"]) == 0
    output = capsys.readouterr().out
    assert "Layer 0: first neurons by each ranking" in output
    assert f"Results: {planted / 'rankings'}" in output
    assert contents(planted) == before  # a run is only added to
    found = {name: read_csv(planted / "rankings" / f"{name}.csv") for name in METHODS}
    for name, rows in found.items():
        assert [row["rank"] for row in rows] == list(range(1, D_MODEL + 1)), name
    # science.md F1: the neuron of position is first wherever its size does not matter.
    for name in ("contribution_centred", "weight", "weight_mass", "probeless_standardised", "anova", "gaussian"):
        assert found[name][0]["neuron"] == INFORMATIVE, name
    # F2: the constant stands in for the intercept; what asks how much a neuron varies with position is not misled.
    assert rank_of(CONSTANT, found["contribution_all"]) == 1
    # (The LayerNorm spreads some position over all neurons.)
    for name in ("probeless_standardised", "anova", "gaussian"):
        score = {row["neuron"]: row["score"] for row in found[name]}
        assert score[CONSTANT] < 0.5 * score[INFORMATIVE], name
    rows = read_csv(planted / "rankings" / "evaluation.csv")
    value = {(row["ranking"], row["probe"], row["from"], row["k"]): row["accuracy"] for row in rows if not row["draw"]}
    for probe in ("linear", "gaussian"):
        assert value["anova", probe, "top", 4] > value["anova", probe, "bottom", 4]
    random_ones = [row for row in rows if (row["ranking"], row["probe"], row["k"]) == ("random", "gaussian", 1)]
    assert value["anova", "gaussian", "top", 1] >= max(row["accuracy"] for row in random_ones)
    above = {(row["ranking"], row["probe"], row["from"], row["k"]): row["above_chance"] for row in rows}
    assert {above[name, "gaussian", "bottom", 1] for name in METHODS if name != "random"} == {"no"}


@pytest.mark.slow
def test_the_contribution_is_the_runs_own_ranking(plain: Path) -> None:
    made = rank(str(plain), method="contribution, contribution_centred", quiet=True, wandb=NO_WANDB)
    own = load_run(plain)
    for layer in range(4):
        rows = [row for row in made.rankings["contribution"] if row["layer"] == layer]
        assert [row["neuron"] for row in rows] == [row["neuron"] for row in own.top(layer, D_MODEL)]
        centred = {row["neuron"]: row["contribution_centred"] for row in own.top(layer, D_MODEL)}
        for row in (row for row in made.rankings["contribution_centred"] if row["layer"] == layer):
            assert row["score"] == pytest.approx(centred[row["neuron"]], rel=1e-6)


@pytest.mark.slow
def test_rankings_are_compared_with_directions_and_contributions_as_the_run_has_them(
    checkpoints: dict[str, Path], options: dict[str, Any]
) -> None:
    how = {**options, "evidence": "all", "quiet": True}
    made = fit(model=str(checkpoints["bert"]), name="beside", layer=[1, 3], **how)
    methods = ["contribution", "contribution_centred", "weight", "weight_mass", "anova"]
    ranked = rank(str(made.folder), method=methods, quiet=True, wandb=NO_WANDB)
    compared = [name for name in methods if name != "weight_mass"]
    assert [(row["layer"], row["ranking"]) for row in ranked.directions] == [
        (k, name) for k in (1, 3) for name in compared
    ]
    for row in made.basis:
        name = {"plain": "contribution", "centred": "contribution_centred"}[row["kind"]]
        (own,) = [one for one in ranked.directions if (one["layer"], one["ranking"]) == (row["layer"], name)]
        for column in own.keys() - {"ranking"}:
            assert own[column] == pytest.approx(row[column], rel=1e-9), column
    shown = " ".join(render(table) for table in ranked.tables())
    assert "directions" in shown
    assert shown.count("–") == 3 * 2 + 2  # of one method in two layers, and in what is said of it
    opened: Any = load_run(made.folder / "rankings")
    assert opened.directions == ranked.directions
    assert len(rank(str(made.folder), method="weight", rotations=0, quiet=True, wandb=NO_WANDB).directions) == 0
    with pytest.raises(UserError, match="`rotations=5`: expected 0, or at least 19"):
        rank(str(made.folder), rotations=5)


@pytest.mark.slow
def test_every_ranking_is_judged_by_every_probe_at_both_ends(plain: Path) -> None:
    made = rank(str(plain), layer=3, evaluate=True, k=[3, 8], draws=2, quiet=True, wandb=NO_WANDB)
    rows = made.evaluation
    keys = {(row["layer"], row["ranking"], row["probe"], row["from"], row["k"], row.get("draw")) for row in rows}
    ranked = {
        (3, name, probe, end, k, None)
        for name in METHODS
        if name != "random"
        for probe in ("linear", "gaussian")
        for end in ("top", "bottom")
        for k in (3, 8)
    }
    drawn = {
        (3, "random", probe, "random", k, draw) for probe in ("linear", "gaussian") for k in (3, 8) for draw in (1, 2)
    }
    assert keys == ranked | drawn
    assert len(rows) == len(keys)
    for row in rows:
        # On fewer than 20 test sentences there is no interval, but NaN, which is neither above nor below.
        assert not (row["accuracy_low"] > row["accuracy"])
        assert not (row["accuracy"] > row["accuracy_high"])
        assert row["share_of_entropy"] <= 1
        assert row["majority_accuracy"] == rows[0]["majority_accuracy"]
    assert rows[0]["majority_accuracy"] == pytest.approx(load_run(plain).accuracy[3]["majority_accuracy"])
    for probe in ("linear", "gaussian"):
        for k in (3, 8):
            own = [row for row in rows if (row["probe"], row["k"]) == (probe, k)]
            best = max(row["accuracy"] for row in own if row["ranking"] == "random")
            for row in (row for row in own if row["ranking"] != "random"):
                # At a stricter level than that of the interval which is shown, since many are judged.
                bar = max(best, row["majority_accuracy"])
                if row["above_chance"] == "yes":
                    assert row["accuracy_low"] > bar
                elif row["accuracy_low"] > bar:
                    assert row["accuracy_low"] - bar < row["accuracy"] - row["accuracy_low"]
    on_disk = read_csv(plain / "rankings" / "evaluation.csv")
    assert list(on_disk[0]) == list(EVALUATION.types)
    assert [row["accuracy"] for row in on_disk] == [row["accuracy"] for row in rows]
    assert "5 draws" not in repr(made)
    assert "random x2, best | worst" in repr(made)


def test_with_all_neurons_the_linear_probe_is_the_runs_own(plain: Path) -> None:
    made = rank(str(plain), method="anova", layer=2, evaluate=True, k=D_MODEL, draws=1, quiet=True, wandb=NO_WANDB)
    own = load_run(plain).accuracy[2]
    for row in made.evaluation:
        if row["probe"] == "linear":
            # Trained to .01 nats instead of 3e-6.
            assert row["accuracy"] == pytest.approx(own["accuracy"], abs=0.02)
            assert row["cross_entropy"] == pytest.approx(own["cross_entropy"], abs=0.02)
    assert len({row["accuracy"] for row in made.evaluation if row["probe"] == "gaussian"}) == 1


@pytest.mark.slow
def test_the_same_command_writes_the_same_bytes_and_other_layers_stay(plain: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(plain, tmp_path / "runs" / "copy", ignore=shutil.ignore_patterns("rankings")))
    cache = str(plain.parent / "cache")
    ask: dict[str, Any] = {"evaluate": True, "draws": 1, "quiet": True, "wandb": NO_WANDB, "cache": cache}
    rank(str(copy), method="gaussian,random", layer=2, **ask)
    first = {path.name: path.read_text(encoding="utf-8") for path in (copy / "rankings").iterdir()}
    assert set(first) == {"gaussian.csv", "random.csv", "evaluation.csv", "directions.csv"}
    rank(str(copy), method="gaussian,random", layer=2, **ask)
    assert {path.name: path.read_text(encoding="utf-8") for path in (copy / "rankings").iterdir()} == first
    rank(str(copy), method=["gaussian", "anova"], layer=1, **ask)
    assert [row["layer"] for row in read_csv(copy / "rankings" / "gaussian.csv")] == [1] * D_MODEL + [2] * D_MODEL
    assert (copy / "rankings" / "random.csv").read_text(encoding="utf-8") == first["random.csv"]
    evaluated = {(row["layer"], row["ranking"]) for row in read_csv(copy / "rankings" / "evaluation.csv")}
    assert evaluated == {(2, "gaussian"), (2, "random"), (1, "gaussian"), (1, "anova"), (1, "random")}
    kept = [row for row in read_csv(copy / "rankings" / "evaluation.csv") if row["layer"] == 2]
    assert len(kept) == len(first["evaluation.csv"].splitlines()) - 1


def test_quiet_says_a_line_for_each_ranking(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["rank", str(plain), "--quiet", "--method", "weight,anova", "--layer", "1", "--wandb.mode", "disabled"]
    assert run(COMMANDS, args) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["layer 1, weight", "layer 1, anova", "Results"]
    assert output.err == ""


def test_rankings_are_tracked(plain: Path) -> None:
    made = rank(str(plain), method="anova", layer=0, evaluate=True, k=4, quiet=True, wandb={"mode": "offline"})
    (tracked,) = read_offline_runs(made.folder)
    assert len(tracked.table("evaluation")) == len(made.evaluation)
    assert len(tracked.table("rankings/anova")) == D_MODEL


def test_the_linear_judge_is_right_as_often_as_sklearn_says(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neurons are passed on as columns of their own; here they are taken from the store by hand."""
    from sklearn.linear_model import LogisticRegression

    from probing.data.labelling import load
    from probing.probes import evaluation
    from probing.probes.evaluation import Chosen, linear
    from probing.probes.rankings import read_layer
    from probing.probes.solvers import Penalty
    from probing.runs.finished import RunExtraction, open_runs, sides_of
    from probing.runtime import quiet_libraries

    own = load_run(plain)
    (finished,) = open_runs([own], "index")
    sides = sides_of(finished, RunExtraction(plain.parent / "cache", {}, print))
    weight = load_file(plain / "probe.safetensors")["weight"]
    data = read_layer(2, weight[2], Penalty(0.0, 1e-3), "sd", sides, 0)
    neurons = [9, 2, 14]
    monkeypatch.setattr(evaluation, "TOLERANCE", 1e-6)
    with quiet_libraries():
        (judged,) = linear([Chosen("mine", "top", None, neurons)], data, sides)
    x, y = data.train
    scale = x[:, neurons].double().std(0, correction=0)
    model = LogisticRegression(C=1 / (2 * len(y) * 1e-3), fit_intercept=False, tol=1e-8, max_iter=5000)
    model.fit((x[:, neurons] / scale).numpy(), y.numpy())
    test, labels = load(sides.test, 2)
    expected = accuracy_score(labels, model.predict((test[:, neurons] / scale).numpy()))
    # Both within 1e-6 nats of one optimum: a token or two may lie on the border between classes.
    assert judged.correct_by_sentence.sum() == pytest.approx(expected * len(labels), abs=2)
    assert np.count_nonzero(judged.correct_by_sentence) > 0


def test_curves_and_evaluation_have_sizes_of_their_own(plain: Path) -> None:
    made = rank(str(plain), method="weight", layer=0, curves=True, evaluate=True, draws=1, quiet=True, wandb=NO_WANDB)
    # The search for the fewest neurons that are enough tries further numbers.
    assert {1, 2, 5, 10} <= {row["k"] for row in made.curves}
    assert {row["k"] for row in made.evaluation} - {D_MODEL} == {10}


@pytest.mark.slow
@rendered()
def test_how_many_neurons_from_the_command_line(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(planted)
    typed = ["rank", str(planted), "--curves", "--k", "1,4", "--draws", "2"]
    assert run(COMMANDS, [*typed, "--method", "anova", "--wandb.mode", "offline"]) == 0
    output = capsys.readouterr().out
    assert "Layer 0, anova: accuracy by number of neurons, random draws: 2" in output
    assert f"Layer 0, anova: 1 of {D_MODEL} neurons reach" in output
    assert "within 1 point" in output
    assert contents(planted) == before
    folder = planted / "rankings"
    (tracked,) = read_offline_runs(folder)
    rows = read_csv(folder / "curves.csv")
    assert list(rows[0]) == list(CURVES.types)
    assert len(tracked.table("curves")) == len(rows)
    assert any("curves_00" in key for key in tracked.summary)
    first = (folder / "curves_00.png").read_bytes()
    accuracy = {(row["kind"], row["from"], row["k"]): row["accuracy"] for row in rows}
    own = load_run(planted).accuracy[0]
    # The probe of all neurons is the run's own, trained to .01 nats instead of 3e-6.
    assert accuracy["only", "top", D_MODEL] == pytest.approx(own["accuracy"], abs=0.02)
    assert accuracy["without", "top", 4] < accuracy["without", "bottom", 4]
    assert {row["n_test_tokens"] for row in rows} == {own["n_test_tokens"]}
    # Another ranking is added to the table and to the figure, with a line of its own where there are no tables.
    made = rank(str(planted), method="weight", curves=True, k=[4], draws=1, quiet=True, wandb=NO_WANDB)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"Layer 0, weight: 4 of {D_MODEL} neurons reach")
    assert {row["ranking"] for row in read_csv(folder / "curves.csv")} == {"anova", "weight", "random"}
    assert (folder / "curves_00.png").read_bytes() != first
    assert (folder / "curves_00.pdf").is_file()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert "Layer 0, weight: accuracy by number of neurons, random draws: 1" in repr(made)


# --- what cannot be done ---


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "`rank` takes the folder of one finished run"),
        (["nowhere"], "`nowhere` does not exist"),
        (["RUN", "RUN"], "`rank` takes one folder, and 2 are given"),
        (["RUN", "--method", "anvoa"], "random, all (did you mean `anova`?); give one or more of these"),
        (["RUN", "--method", "anova,,weight"], "`--method ` is not one of"),
        (["RUN", "--layer", "7"], "`--layer 7` is not in"),
        (["RUN", "--layer", "x"], "`--layer x` is not a layer"),
        (["RUN", "--evaluate", "--k", "10,17"], "`--k 17` is out of range: expected 1 to 16"),
        (["RUN", "--evaluate", "--k", "0"], "`--k 0` is out of range: expected 1 to 16"),
        (["RUN", "--k", "some"], "`--k some`: expected a number of neurons"),
        (["RUN", "--curves", "--method", "random"], "`--curves`: random neurons are part of every comparison"),
        (["RUN", "--curves", "--k", "17"], "`--k 17` is out of range: expected 1 to 16"),
        (["RUN", "--draws", "0"], "`--draws 0` is out of range"),
        (["RUN", "--seed", "-1"], "`--seed -1` is out of range"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    plain: Path, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.lstat().st_mtime_ns for path in plain.rglob("*")}
    typed = [str(plain) if arg == "RUN" else arg for arg in args]
    assert run(COMMANDS, ["rank", *typed, "--wandb.mode", "disabled"]) == 2
    sentence = capsys.readouterr().err
    assert words in sentence
    assert sentence.count("\n") == 1
    assert {path: path.lstat().st_mtime_ns for path in plain.rglob("*")} == before


def test_a_run_where_rankings_cannot_be_written_is_refused(plain: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(plain, tmp_path / "copy", ignore=shutil.ignore_patterns("rankings")))
    (copy / "rankings").write_text("in the way", encoding="utf-8")
    with pytest.raises(UserError, match=r"`rank .*copy` is no folder \(.*rankings is a file\)"):
        rank(str(copy), method="anova", quiet=True, wandb=NO_WANDB)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda text: text.replace("ranking", "layer", 1), lambda text: text[:-5], lambda _: ""]
)
def test_damaged_tables_of_earlier_rankings_are_refused_and_nothing_is_written(
    damage: Callable[[str], str], plain: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(plain, tmp_path / "copy", ignore=shutil.ignore_patterns("rankings")))
    rank(str(copy), method="weight", layer=0, quiet=True, wandb=NO_WANDB)
    table = copy / "rankings" / "directions.csv"
    table.write_text(damage(table.read_text(encoding="utf-8")), encoding="utf-8")
    before = {path: path.read_bytes() for path in (copy / "rankings").glob("*.csv")}
    with pytest.raises(UserError, match=r"rankings` is damaged \(directions\.csv"):
        rank(str(copy), method="anova", layer=1, quiet=True, wandb=NO_WANDB)
    assert {path: path.read_bytes() for path in (copy / "rankings").glob("*.csv")} == before


def test_a_run_without_validation_tokens_is_ranked_by_what_needs_none(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from probing.runs import finished

    whole = finished.sides_of

    def without(*args: Any) -> Any:
        sides = whole(*args)
        return replace(sides, validation=replace(sides.validation, labels=np.full_like(sides.validation.labels, -1)))

    monkeypatch.setattr(finished, "sides_of", without)
    with pytest.raises(UserError, match="no sentence of the validation part has a token"):
        rank(str(plain), method="gaussian", quiet=True, wandb=NO_WANDB)
    with pytest.raises(UserError, match="and `curves` need some"):
        rank(str(plain), method="anova", curves=True, quiet=True, wandb=NO_WANDB)
    assert rank(str(plain), method="anova", layer=1, quiet=True, wandb=NO_WANDB).rankings["anova"]


@pytest.mark.parametrize(("variable", "is_tracked"), [("", False), ("offline", True)])
def test_rankings_are_tracked_where_the_run_was_unless_asked_otherwise(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, is_tracked: bool
) -> None:
    # Of a run that is not tracked at all.
    copy = shutil.copytree(plain, tmp_path / "copy", ignore=shutil.ignore_patterns("rankings"))
    monkeypatch.setenv("WANDB_MODE", variable)
    rank(str(copy), method="random", layer=1, cache=str(plain.parent / "cache"), quiet=True)
    assert (copy / "rankings" / "wandb").is_dir() == is_tracked


def test_a_comparison_is_no_run_to_rank(plain: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(plain, tmp_path / "copy", ignore=shutil.ignore_patterns("rankings")))
    (copy / "results.json").write_text(json.dumps({"kind": "comparison"}), encoding="utf-8")
    with pytest.raises(UserError, match="holds a comparison"):
        rank(str(copy), quiet=True, wandb=NO_WANDB)


def test_a_probe_that_is_not_the_runs_own_is_found_out(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(plain, tmp_path / "copy", ignore=shutil.ignore_patterns("rankings")))
    weight = load_file(copy / "probe.safetensors")["weight"]
    save_file({"weight": weight * 2}, copy / "probe.safetensors")
    args = ["rank", str(copy), "--cache", str(plain.parent / "cache"), "--wandb.mode", "disabled"]
    assert run(COMMANDS, args) == 1
    assert "are not those of its probe" in capsys.readouterr().err
    assert not (copy / "rankings").exists()


def test_the_result_shows_itself(plain: Path) -> None:
    made = rank(str(plain), method="anova", layer=1, quiet=True, wandb=NO_WANDB)
    assert isinstance(made, Rankings)
    assert made.evaluation == []
    assert "anova" in repr(made)
    assert repr(made).endswith("rankings")


@pytest.mark.parametrize(
    ("made", "expected"),
    [({"wandb": {"mode": mode}}, mode) for mode in ("offline", "disabled", "auto")]
    + [({"wandb": {"mode": "online"}}, "auto"), ({}, "auto")],
)
def test_only_what_keeps_a_run_from_being_sent_is_taken_over(
    made: dict[str, Any], expected: str, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    found = load_fit(plain)
    run_so_made = Run(found.folder, made, found.results, found.accuracy, found.neurons)
    assert tracked_like(run_so_made, WandbOptions(tags=["a"])) == WandbOptions(mode=expected, tags=["a"])  # type: ignore[arg-type]
    assert tracked_like(run_so_made, WandbOptions(mode="online")).mode == "online"
