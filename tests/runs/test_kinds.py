"""`load_run` opens the results of every command as the command returns them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import BARE
from probing import Rankings, Result, Run, fit, load_run, rank, sweep
from probing.errors import UserError
from probing.results.rows import Table

NO_WANDB: Any = {"mode": "disabled"}

WRITERS = (
    "`fit`, `probe`, `rank`, `compare`, `sweep`, `geometry`, `attention`, `disable`, `hierarchy`, `cloze`, `pretrain`, "
    "`finetune`, `changes`, `series`, `wic`, `sts`, `embeddings` or `reproduce`"
)


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: Any = {"quiet": True, "wandb": NO_WANDB, **BARE}
    place = tmp_path_factory.mktemp("runs")
    made = fit(model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(place), layer=2, name="r", **options)
    assert made is not None
    return made


def as_text(results: Any) -> str:
    """Return all that an object holds; as text, since the ends of no interval are NaN, which equals nothing."""
    return repr(sorted(vars(results).items()))


def test_a_run_is_opened_as_fit_returned_it(run: Run) -> None:
    opened = load_run(str(run.folder))
    assert isinstance(opened, Run)
    assert as_text(opened) == as_text(run)


def test_rankings_are_opened_with_all_that_rank_has_added(run: Run) -> None:
    options: Any = {"quiet": True, "wandb": NO_WANDB}
    first = rank(str(run.folder), method="contribution,anova", evaluate=True, k=[2], draws=2, **options)
    opened = load_run(run.folder / "rankings")
    assert isinstance(opened, Rankings)
    assert vars(opened) == vars(first)
    assert opened.config == run.config
    assert {type(table) for table in (*opened.rankings.values(), opened.evaluation, opened.erasure)} == {Table}
    assert not opened.erasure
    assert repr(opened).endswith(str(run.folder / "rankings"))
    second = rank(str(run.folder), method="weight", **options)
    assert set(second.rankings) == {"weight"}
    assert set(load_run(run.folder / "rankings").rankings) == {"contribution", "anova", "weight"}


def test_a_sweep_is_opened_with_the_options_of_its_trials(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    points = {"probe.l2": {"values": [1e-5, 1e-2]}, "layer": {"value": 0}, "seed": {"values": [3]}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"method": "grid", "parameters": points}), encoding="utf-8")
    data = {"model": str(checkpoints["bert"]), "corpus": str(corpus_file)}
    made = sweep(str(tmp_path / "s.yaml"), fit=data, runs=str(tmp_path / "runs"), quiet=True)
    opened = load_run(made.folder)
    assert isinstance(opened, Result)
    assert as_text(opened) == as_text(made)
    assert [row["probe.l2"] for row in opened.sweep] == [1e-5, 1e-2]
    assert opened.config["sweep"]["parameters"] == points
    best = load_run(made.folder / "trials" / opened.results["best"]["trial"])
    assert best.accuracy[0]["accuracy"] == max(row["accuracy"] for row in opened.sweep)
    assert "The best 2 of 2 rows by accuracy" in repr(opened)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, f"expected a folder that {WRITERS} wrote"),
        ('{"kind": "dream"}', "holds a dream, which this version cannot read"),
        ('{"kind": "comparison"}', r"is damaged \(agreement.csv: No such file"),
        ("[]", "is damaged"),
        ("{", "is damaged"),
    ],
)
def test_a_folder_that_holds_no_results_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_run(tmp_path)


def test_a_table_that_is_gone_is_named_and_one_that_is_made_on_request_is_empty(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"kind": "geometry"}), encoding="utf-8")
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    names = ("geometry", "outliers", "dimensions", "parameters", "explained")
    for name in names:
        (tmp_path / f"{name}.csv").write_text("layer,neuron,low\n3,1,\n", encoding="utf-8")
    opened = load_run(tmp_path)
    assert [row["layer"] for row in opened.geometry] == [3]
    assert opened.smoothing == opened.smoothing_sentences == opened.interventions == Table()
    (tmp_path / "outliers.csv").unlink()
    with pytest.raises(UserError, match=r"is damaged \(outliers.csv: No such file"):
        load_run(tmp_path)
