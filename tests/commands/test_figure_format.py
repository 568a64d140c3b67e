"""`--figure_format`: which files of figures commands write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import BARE, ROOT
from probing import Run, compare, fit, load_run, rank, sweep
from probing.__main__ import COMMANDS
from probing.cli.commandline import load_command, unchecked
from probing.cli.commandline import run as run_command
from probing.cli.option_types import option_types
from probing.studies.geometry.command import geometry

NO_WANDB = {"mode": "disabled"}
# What the commands that draw take beside the option, to be refused for nothing else.
DRAWING = {
    "fit": [], "rank": ["no-run"], "compare": ["a", "b"], "sweep": [str(ROOT / "conf" / "sweeps" / "layers.yaml")],
    "attention": [], "disable": [], "pretrain": [], "finetune": [], "changes": [], "series": [], "hierarchy": [],
    "cloze": [], "geometry": [], "wic": [], "sts": [], "embeddings": [],
}  # fmt: skip


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix in (".png", ".pdf", ".svg")}


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options: dict[str, Any] = {**BARE, "wandb": NO_WANDB, "layer": [1, 2], "quiet": True, "figure_format": "svg"}
    made = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path_factory.mktemp("r")), **options
    )
    assert made is not None
    return made


def test_a_run_has_its_figures_in_that_format_and_its_page_as_always(run: Run) -> None:
    assert files(run.folder / "figures") == {
        f"{name}.svg" for name in ("accuracy", "positions", "confusions", "top_neurons", "neuron_map")
    }
    assert "<svg" in (run.folder / "report.html").read_text(encoding="utf-8")
    assert load_run(run.folder).config["figure_format"] == "svg"


@pytest.mark.slow
def test_other_commands_write_what_is_asked_for(run: Run, tmp_path: Path, corpus_file: Path) -> None:
    common: dict[str, Any] = {"quiet": True, "wandb": NO_WANDB}
    ranked = rank(str(run.folder), layer=1, curves=True, k=[4], draws=1, figure_format=["pdf", "svg"], **common)
    assert files(ranked.folder) == {"curves_01.pdf", "curves_01.svg"}
    pair = [str(run.folder), str(run.folder)]
    compared = compare(pair, null_draws=2, runs=str(tmp_path), figure_format="pdf", **common)
    assert files(compared.folder / "figures") == {"agreement.pdf", "accuracy.pdf"}
    measured = geometry(
        model=run.config["model"], corpus=str(corpus_file), layer=[1, 2], transforms="none", draws=1,
        runs=str(tmp_path), cache=str(run.folder.parent / "cache"), figure_format="png", **common,
    )  # fmt: skip
    assert measured is not None
    drawn = files(measured.folder / "figures")
    assert {"outliers.png", "anisotropy.png"} <= drawn
    assert {Path(name).suffix for name in drawn} == {".png"}


def test_a_sweep_draws_itself_in_that_format(run: Run, tmp_path: Path, corpus_file: Path) -> None:
    (file := tmp_path / "s.yaml").write_text(
        "method: grid\nparameters:\n  layer: {values: [1, 2]}\n  probe.l2: {value: 0.01}\n", encoding="utf-8"
    )
    made = sweep(
        str(file), fit={"model": run.config["model"], "corpus": str(corpus_file)}, runs=str(tmp_path / "runs"),
        cache=str(run.folder.parent / "cache"), quiet=True, wandb={"mode": "disabled"}, figure_format="svg",
    )  # fmt: skip
    assert files(made.folder / "figures") == {"sweep.svg"}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_format_is_refused_before_any_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draws = "figure_format" in option_types(unchecked(load_command(COMMANDS[name])))
    assert draws == (name in DRAWING)
    if draws:
        monkeypatch.chdir(tmp_path)
        assert run_command(COMMANDS, [name, *DRAWING[name], "--figure_format=png,gif", "--wandb.mode=disabled"]) == 2
        error = capsys.readouterr().err
        assert f"probing {name}: `--figure_format gif` is not one of png, pdf, svg, all; give one or more" in error
        assert list(tmp_path.iterdir()) == []
