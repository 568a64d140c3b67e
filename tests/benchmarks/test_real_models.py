"""Models of several kinds: what is run of each, which neurons are looked at, and what the tables and figures tell."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import commands, real_models
from benchmarks.harness import BenchmarkError
from benchmarks.real_models import LONGEST, N_TEXTS, PARTS, READ, Asked, Read, first_neurons, make, wanted, write_texts
from benchmarks.real_models_page import write_all

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
    assert "--neurons" not in neurons["interventions-rxn-bert"][1]
    readouts = {name: runs("disable", name)[f"disable-{name}"][1] for name in ("rxn-bert", "minilm")}
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
