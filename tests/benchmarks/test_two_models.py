"""The two models beside each other: which layers are read, what the page tells, and all of it at toy size."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import memory, two_models
from benchmarks.corpora import SIMILARITY, write_similarity
from benchmarks.harness import Run
from benchmarks.two_models import Asked, depths, make, options_of
from benchmarks.two_models_page import write_all
from conftest import BARE
from probing import WandbOptions, fit
from probing.downstream.sts_dataset import read_sts

MODELS = ("small", "large")


@pytest.mark.parametrize(
    ("n_blocks", "layers"), [(6, [0, 1, 2, 3, 4, 5, 6]), (12, [0, 2, 4, 6, 8, 10, 12]), (2, [0, 1, 2])]
)
def test_layers_are_at_the_same_relative_depths(n_blocks: int, layers: list[int]) -> None:
    assert depths(n_blocks) == layers


def fitted(n_layers: int, top: int) -> Any:
    accuracy = [
        {"layer": k, "accuracy": 0.9 - k / 20, "accuracy_low": 0.8 - k / 20, "accuracy_high": 0.95 - k / 20,
         "majority_accuracy": 0.1, "untrained_accuracy": 1.0, "cross_entropy": 1.0, "prior_cross_entropy": 2.0}
        for k in range(0, n_layers + 1, n_layers // 2)
    ]  # fmt: skip
    return SimpleNamespace(accuracy=accuracy, top=lambda layer, n: [{"neuron": top, "share": 0.01, "flag": "offset"}])


def bent(n_layers: int) -> Any:
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
        "fit-small": fitted(2, 7), "fit-large": fitted(4, 9), "geometry-small": bent(2), "geometry-large": bent(4),
        "compare": compared(),
    }  # fmt: skip
    page = write_all(tmp_path, MODELS, runs, 500, {"date": "today"})
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


def asked(tmp_path: Path, model: str, *parts: str) -> Asked:
    return Asked(tmp_path, {"a": model, "b": model}, 60, parts, {"wic": None, "sts": None}, {}, 1)


def test_a_part_without_its_data_is_left_out_and_a_finished_run_is_not_made_again(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = asked(tmp_path, str(checkpoints["bert"]), "wic", "geometry")
    assert options_of("wic", "a", some) is None
    assert options_of("geometry", "a", some) is not None
    made: list[str] = []

    def pretend(part: str, name: str, args: Any, asked: Asked) -> None:
        made.append(name)
        asked.run(name).mkdir(parents=True)
        (asked.run(name) / "results.json").write_text("{}", encoding="utf-8")

    monkeypatch.setattr(two_models, "_measure", pretend)
    monkeypatch.setattr(two_models, "load_run", lambda folder: folder.name)
    expected = {"geometry-a": "geometry-a-60", "geometry-b": "geometry-b-60"}
    assert make(some) == expected
    assert make(some) == expected
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
        assert run is not None
        args += ["--use", f"fit-{model.name}={run.folder}"]
    assert two_models.main([*args, "--parts", "compare"]) == 0
    with (tmp_path / "costs.csv").open(encoding="utf-8") as file:
        costs = {row["run"]: float(row["peak_anonymous_mb"]) for row in csv.DictReader(file)}
    assert set(costs) == {"compare"}
    assert 50 < costs["compare"] < 2000
    assert "## Agreement" in (tmp_path / "README.md").read_text(encoding="utf-8")
