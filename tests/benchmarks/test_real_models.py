"""Benchmarks of several models: what is run of each, which neurons are looked at, and what is told of them."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import commands, memory, real_models, two_models
from benchmarks.corpora import SIMILARITY, write_similarity
from benchmarks.harness import BenchmarkError, Run
from benchmarks.position_parts import CLOSE, draw, main, repeated, rows_of
from benchmarks.position_parts import READ as POSITIONS_READ
from benchmarks.real_models import LONGEST, N_TEXTS, PARTS, READ, Asked, Read, first_neurons, make, wanted, write_texts
from benchmarks.real_models_page import write_all
from benchmarks.two_models import Asked as TwoAsked
from benchmarks.two_models import depths, options_of
from benchmarks.two_models import make as two_make
from benchmarks.two_models_page import write_all as two_write_all
from conftest import BARE
from probing import WandbOptions, fit
from probing.downstream import read_sts
from probing.tables.figures import write_drawings
from synthetic import NEURONS, D, helix, planted, surveyed

BY_NAME = {read.name: read for read in READ}


def asked(folder: Path, *names: str, reactions: Path | None = None, parts: tuple[str, ...] = PARTS) -> Asked:
    return Asked(folder, [BY_NAME[name] for name in names], parts, reactions, 1)


def fitted(first: list[int], n_neurons: int = 40) -> Any:
    """A run in which the given neuron ranks first in each layer."""
    accuracy = [
        {"layer": k, "accuracy": 0.9 - k / 20, "accuracy_low": 0.8 - k / 20, "accuracy_high": 0.95 - k / 20,
         "majority_accuracy": 0.1, "untrained_accuracy": 1.0}
        for k in range(len(first))
    ]  # fmt: skip
    neurons: list[dict[str, Any]] = []
    for layer, best in enumerate(first):
        for neuron in range(n_neurons):
            ratio = 9.0 if neuron == best else 0.5 + neuron / n_neurons
            neurons.append(
                {"layer": layer, "neuron": neuron, "rank": 1, "ratio": ratio, "share": ratio / n_neurons,
                 "contribution": ratio, "contribution_centred": ratio / 2, "eta_squared": 0.3, "flag": ""}
            )  # fmt: skip

    def top(layer: int, n: int) -> list[Any]:
        own = [row for row in neurons if row["layer"] == layer]
        return sorted(own, key=lambda row: -float(row["ratio"]))[:n]

    basis = [
        {"layer": layer, "kind": kind, "first_share_lowest": 0.05, "first_share_highest": 0.08, "n_neurons": n_neurons,
         "n_rotations": 20}
        for layer in range(len(first)) for kind in ("plain", "centred")
    ]  # fmt: skip
    return SimpleNamespace(accuracy=accuracy, neurons=neurons, top=top, basis=basis)


def test_neurons_that_are_first_in_the_most_layers_are_looked_at() -> None:
    assert first_neurons(fitted([7, 7, 3, 3, 5])) == [3, 7]  # as often; the lower index first
    assert first_neurons(fitted([9, 9, 9, 2])) == [9, 2]
    assert first_neurons(fitted([4, 4])) == [4]


def test_each_model_is_read_as_its_kind_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = asked(tmp_path, *BY_NAME)

    def runs(part: str, name: str) -> dict[str, tuple[str, list[str]]]:
        return wanted(part, BY_NAME[name], some)

    (command, args) = runs("change", "rxn-bert-tuned")["change-rxn-bert-tuned"]
    assert command == "attention"
    assert Path(args[args.index("--against") + 1]).name == "rxn-bert"
    assert runs("change", "rxn-bert") == {}
    assert set(runs("first_token", "smollm2")) == {"first_token-smollm2", "attention-first_token-smollm2"}
    assert runs("first_token", "minilm") == {}
    assert runs("neurons", "minilm") == {}
    monkeypatch.setattr(real_models, "load_run", lambda folder: fitted([7, 7, 3]))
    neurons = runs("neurons", "rxn-bert")
    assert set(neurons) == {"neurons-rxn-bert-7", "neurons-rxn-bert-3", "interventions-rxn-bert"}
    assert neurons["interventions-rxn-bert"][1][-2:] == ["--neurons", "outliers"]
    readouts = {name: runs("ablate", name)[f"ablate-{name}"][1] for name in ("rxn-bert", "minilm")}
    assert "position,mlm" in readouts["rxn-bert"]
    assert "position,mlm" not in readouts["minilm"]
    assert "position_heads" not in " ".join(runs("attention", "smollm2")["attention-smollm2"][1])
    assert str(tmp_path / f"reactions-{N_TEXTS}.txt") in runs("fit", "rxn-albert")["fit-rxn-albert"][1]
    assert str(tmp_path / f"english-{N_TEXTS}.txt") in runs("fit", "minilm")["fit-minilm"][1]


def test_texts_are_the_first_short_reactions_and_few_of_them_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "reactions.txt"
    short = [f"C{k}" for k in range(N_TEXTS + 5)]
    file.write_text("\n".join(["C" * (LONGEST + 1), short[0], *short]), encoding="utf-8")
    some = asked(tmp_path / "out", "rxn-bert", reactions=file)
    write_texts(some)
    assert some.text("reactions").read_text(encoding="utf-8").splitlines() == short[:N_TEXTS]
    assert len(some.text("english").read_text(encoding="utf-8").splitlines()) == N_TEXTS
    file.write_text("\n".join(short[:10]), encoding="utf-8")
    with pytest.raises(BenchmarkError, match=f"10 reactions have at most {LONGEST} characters"):
        write_texts(asked(tmp_path / "again", "rxn-bert", reactions=file))


def test_finished_runs_are_not_made_again_and_the_costs_of_others_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = asked(tmp_path, "minilm", "smollm2", parts=("fit", "geometry", "compare"))
    made: list[str] = []

    def pretend(command: list[str], threads: int) -> dict[str, Any]:
        name = command[command.index("--name") + 1]
        made.append(name)
        some.run(name).mkdir(parents=True)
        (some.run(name) / "results.json").write_text("{}", encoding="utf-8")
        return {"seconds": 1.5}

    monkeypatch.setattr(commands, "measure", pretend)
    monkeypatch.setattr(real_models, "load_run", lambda folder: folder.name)
    names = ["fit-minilm", "fit-smollm2", "geometry-minilm", "geometry-smollm2"]
    assert make(some) == {name: name for name in names}
    assert make(some) == {name: name for name in names}
    assert made == names
    costs = json.loads((tmp_path / "costs" / "fit-minilm.json").read_text(encoding="utf-8"))
    assert (costs["run"], costs["seconds"]) == ("fit-minilm", 1.5)
    assert "date" in costs


def bent(n_layers: int, n_neurons: int = 40) -> Any:
    rows = [
        {"layer": k, "transform": how, "measure": "mean_cosine", "value": k / 20, "low": k / 20 - 0.01,
         "high": k / 20 + 0.01}
        for k in range(n_layers) for how in ("none", "clip", "clip_random")
    ]  # fmt: skip
    dimensions = [
        {"layer": k, "neuron": neuron, "mean": 8.0 if neuron == 7 else 0.1 * (neuron % 2), "sd": 1.0,
         "cosine_share": 0.5 if neuron == 7 else 0.01}
        for k in range(n_layers) for neuron in range(n_neurons)
    ]  # fmt: skip
    gains = [{"layer": 1, "neuron": 7, "parameter": "gain", "rank": 3}]
    return SimpleNamespace(geometry=rows, dimensions=dimensions, parameters=gains)


def test_tables_and_figures_say_what_the_first_neurons_do_in_every_layer(tmp_path: Path) -> None:
    runs = {
        "fit-rxn-bert": fitted([7, 7, 3, 3]), "fit-minilm": fitted([5, 2, 5]), "geometry-rxn-bert": bent(4),
        "geometry-minilm": bent(3),
    }  # fmt: skip
    page = write_all(tmp_path, runs, {"date": "today"})
    with (tmp_path / "layers.csv").open(encoding="utf-8") as file:
        layers = [row for row in csv.DictReader(file) if row["model"] == "rxn-bert"]
    assert [row["first"] for row in layers] == ["7", "7", "3", "3"]
    assert {(row["largest"], row["largest_share"]) for row in layers} == {("7", "0.5")}
    assert {float(row["centred"]) for row in layers} == {0.5}
    with (tmp_path / "neurons.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["neuron"]) == ("rxn-bert", "7")]
    assert [row["layer"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["gain_rank"] for row in rows] == ["", "3", "", ""]
    assert all(float(row["in_sd"]) > 5 for row in rows)
    text = page.read_text(encoding="utf-8")
    for name, is_there in (("finding", True), ("by_depth", True), ("tuned", False), ("first_token", False)):
        assert (f"figures/real_models_{name}.png" in text) is is_there
        assert (tmp_path / "figures" / f"real_models_{name}.png").exists() is is_there
    assert "date today" in text


def test_a_model_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args, words in (
        (["--models", "smollm3"], "there is no smollm3; there are rxn-bert, "),
        (["--parts", "fits"], "there is no fits; there are fit, "),
        (["--models", "rxn-bert"], "name it with --reactions"),
    ):
        with pytest.raises(SystemExit):
            real_models.main([*args, "--folder", str(tmp_path)])
        assert words in capsys.readouterr().err


def test_the_builtin_model_is_named_and_the_others_are_folders() -> None:
    assert Read("minilm", "english").model == "minilm"
    assert Path(BY_NAME["rxn-albert"].model).parts[-3:] == ("runs", "models", "rxn-albert")


MODELS = ("small", "large")


@pytest.mark.parametrize(
    ("n_blocks", "layers"), [(6, [0, 1, 2, 3, 4, 5, 6]), (12, [0, 2, 4, 6, 8, 10, 12]), (2, [0, 1, 2])]
)
def test_layers_are_at_the_same_relative_depths(n_blocks: int, layers: list[int]) -> None:
    assert depths(n_blocks) == layers


def probed(n_layers: int, top: int) -> Any:
    accuracy = [
        {"layer": k, "accuracy": 0.9 - k / 20, "accuracy_low": 0.8 - k / 20, "accuracy_high": 0.95 - k / 20,
         "majority_accuracy": 0.1, "untrained_accuracy": 1.0, "cross_entropy": 1.0, "prior_cross_entropy": 2.0}
        for k in range(0, n_layers + 1, n_layers // 2)
    ]  # fmt: skip
    return SimpleNamespace(accuracy=accuracy, top=lambda layer, n: [{"neuron": top, "share": 0.01, "flag": "offset"}])


def bends(n_layers: int) -> Any:
    rows = [
        {"layer": k, "transform": how, "measure": "mean_cosine", "value": k / 20, "low": k / 20 - 0.01,
         "high": k / 20 + 0.01}
        for k in range(0, n_layers + 1, n_layers // 2) for how in ("none", "clip")
    ]  # fmt: skip
    return SimpleNamespace(geometry=rows)


def compared() -> Any:
    rows = [
        {"model_a": "small", "layer_a": a, "model_b": "large", "layer_b": b, "statistic": "spearman", "value": 0.1 * a,
         "chance_low": 0.0, "chance_high": 0.2, "p_value": float("nan"), "same_depth": "yes" if b == 2 * a else "no"}
        for a in (0, 1, 2) for b in (0, 2, 4)
    ]  # fmt: skip
    return SimpleNamespace(agreement=rows)


def test_the_tables_have_both_models_at_their_depths_and_the_page_says_what_there_is(tmp_path: Path) -> None:
    runs = {
        "fit-small": probed(2, 7), "fit-large": probed(4, 9), "geometry-small": bends(2), "geometry-large": bends(4),
        "compare": compared(),
    }  # fmt: skip
    page = two_write_all(tmp_path, MODELS, runs, 500, {"date": "today"})
    with (tmp_path / "by_depth.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["layer"], float(row["depth"])) for row in rows] == [
        (model, str(layer), layer / n) for model, n in (("small", 2), ("large", 4)) for layer in range(0, n + 1, n // 2)
    ]
    assert {row["top_neuron"] for row in rows if row["model"] == "large"} == {"9"}
    assert float(rows[1]["cosine_clipped"]) == pytest.approx(0.05)
    with (tmp_path / "agreement.csv").open(encoding="utf-8") as file:
        assert [(row["layer_a"], row["layer_b"]) for row in csv.DictReader(file)] == [
            ("0", "0"),
            ("1", "2"),
            ("2", "4"),
        ]
    text = page.read_text(encoding="utf-8")
    assert "figures/two_models_accuracy.png" in text
    assert "figures/two_models_anisotropy.png" in text
    assert "two_models_others" not in text  # nothing of attention was run
    assert "## Sts" not in text
    assert "date today" in text
    assert all((tmp_path / "figures" / f"two_models_{name}.png").exists() for name in ("accuracy", "anisotropy"))


def two_asked(tmp_path: Path, model: str, *parts: str) -> TwoAsked:
    return TwoAsked(tmp_path, {"a": model, "b": model}, 60, parts, {"wic": None, "sts": None}, {}, 1)


def test_a_part_without_its_data_is_left_out_and_a_finished_run_is_not_made_again(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = two_asked(tmp_path, str(checkpoints["bert"]), "wic", "geometry")
    assert options_of("wic", "a", some) is None
    assert options_of("geometry", "a", some) is not None
    made: list[str] = []

    def pretend(part: str, name: str, args: Any, asked: TwoAsked) -> None:
        made.append(name)
        asked.run(name).mkdir(parents=True)
        (asked.run(name) / "results.json").write_text("{}", encoding="utf-8")

    monkeypatch.setattr(two_models, "_measure", pretend)
    monkeypatch.setattr(two_models, "load_run", lambda folder: folder.name)
    expected = {"geometry-a": "geometry-a-60", "geometry-b": "geometry-b-60"}
    assert two_make(some) == expected
    assert two_make(some) == expected
    assert made == ["geometry-a", "geometry-b"]


def test_sets_of_similarity_have_their_numbers_of_pairs_and_are_read(tmp_path: Path) -> None:
    found = read_sts([str(write_similarity(tmp_path, 4))])
    assert sorted(one.n_pairs for one in found) == sorted(SIMILARITY.values())
    assert {one.name for one in found} == {"STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"}
    assert all(len(one.corpus.sentences) <= 4 for one in found)


def test_the_largest_peak_of_a_command_decides_and_mapped_pages_are_told_apart() -> None:
    runs = [
        Run("fit, a", 0, {"peak_anonymous_mb": 700.0, "peak_mapped_mb": 4000.0}),
        Run("sts, a", 0, {"peak_anonymous_mb": 900.0, "peak_mapped_mb": 10.0}),
    ]
    (met,) = memory._met(runs)
    assert met.is_met
    assert met.measured == "at most 900 MiB (sts, a)"
    assert "fit, a 4000 MiB" in memory._mapped(runs)[0]
    (met,) = memory._met([Run("fit, a", 0, {"peak_anonymous_mb": 1600.0, "peak_mapped_mb": 1.0})])
    assert met.is_met is False


@pytest.mark.several
def test_two_tiny_models_are_compared_for_real_from_runs_of_elsewhere(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    models = [checkpoints["bert"], checkpoints["mpnet"]]
    args = ["--folder", str(tmp_path), "--models", ",".join(map(str, models)), "--quick", "--threads", "1"]
    for model in models:
        run = fit(
            model=str(model), corpus=str(corpus_file), runs=str(tmp_path / "others"), name=model.name, quiet=True,
            wandb=WandbOptions("disabled"), trainer={"accelerator": "cpu"}, **BARE,
        )  # fmt: skip
        args += ["--use", f"fit-{model.name}={run.folder}"]
    assert two_models.main([*args, "--parts", "compare"]) == 0
    with (tmp_path / "costs.csv").open(encoding="utf-8") as file:
        costs = {row["run"]: float(row["peak_anonymous_mb"]) for row in csv.DictReader(file)}
    assert set(costs) == {"compare"}
    assert 50 < costs["compare"] < 2000
    assert "## Agreement" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.numeric
def test_ten_numbers_by_plain_loops_and_the_figure(tmp_path: Path) -> None:
    code = np.zeros((30, D))
    code[:, NEURONS] = helix(30)
    store = planted(tmp_path / "store", [None, code])
    found = surveyed(store)
    run: Any = SimpleNamespace(**found, config={"seed": 0})
    compared = repeated(run, store, 1)
    assert len(compared) == 10
    for name, ours, plain in compared:
        assert ours == pytest.approx(plain, abs=CLOSE / 100), name
    rows = list(rows_of({"minilm": run, "smollm2-later": run}))
    assert [row["layer"] for row in rows] == [0, 1, 0, 1]
    assert rows[0]["half"] is None
    assert rows[1]["half"] < rows[1]["half_lowest"]
    assert rows[1]["directions"] == 3
    (path,) = write_drawings(tmp_path, {"parts": partial(draw, rows=rows)}, ("png",))
    assert path.exists()


@pytest.mark.numeric
def test_models_of_reactions_need_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert {read.text for read in POSITIONS_READ} == {"english", "reactions"}
    with pytest.raises(SystemExit):
        main(["--models", "rxn-bert"])
    assert "--reactions" in capsys.readouterr().err
