"""The README's commands and code run, at toy size."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import probing
from conftest import BARE, BARE_ARGS
from downstream_data import word_pairs, write_sts, write_wic
from probing.__main__ import COMMANDS
from probing.cli.arguments import parse
from probing.cli.commandline import run
from probing.runtime.trainer import check_trainer_options

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
LINES = [line.split("#")[0].strip() for language, block in BLOCKS if language == "bash" for line in block.splitlines()]
PROBING = [line for line in LINES if line.startswith("python -m probing ")]


@pytest.fixture
def toy(tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which the README's names stand for small things."""
    (tmp_path / "sentences.txt").write_text("\n".join(sentences))
    for name, part in (("train", sentences[:150]), ("dev", sentences[150:])):
        rows = ["".join(map(_word, range(1, 999), text.split())) for text in part]
        (tmp_path / f"{name}.conllu").write_text("\n".join(rows) + "\n")
    for part, n in (("train", 30), ("dev", 20)):
        write_wic(tmp_path / "wic", part, word_pairs(n, n))
    write_sts(tmp_path / "sts", 10)
    (tmp_path / "glove.txt").write_text("the 1 2\ntoken 3 4\nlayer 2 0\n")
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    return checkpoints["bert"]


def _word(index: int, form: str) -> str:
    return "\t".join([str(index), form, form, "LONG" if len(form) > 5 else "SHORT", *"_" * 6]) + "\n"


def test_the_readme_shows_commands() -> None:
    assert len(PROBING) >= 8
    assert [line for line in LINES if line.startswith("make")] == ["make fit", "make test"]


@pytest.mark.parametrize("target", ["fit", "test"])
def test_the_two_commands_are_targets_of_the_makefile(target: str) -> None:
    planned = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"fit": "-m probing fit --layer 6", "test": "-m pytest"}[target] in planned


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("line", PROBING, ids=lambda line: line.removeprefix("python -m probing "))
def test_every_command_of_the_readme_runs(line: str, toy: Path) -> None:
    # The tiny model has no layer 6.
    args = [{"6": "2", "0,3,6": "0,2"}.get(arg, arg) for arg in shlex.split(line)[3:]]
    if args[0] == "fit" and line != PROBING[0]:  # the first shows all that is measured by default
        args += BARE_ARGS
    if args[0] in ("fit", "extract", "geometry"):
        args += ["--model", str(toy)] + ([] if "--corpus" in args else ["--corpus", "sentences.txt"])
    if args[0] == "sweep":
        args += [f"--fit.{name}={value}" for name, value in (("model", toy), ("corpus", "sentences.txt"), ("layer", 0))]
        args += ["--trials", "2"]
    if args[0] in ("wic", "sts"):
        args += ["--model", str(toy)]
    if "runs/A" in args:
        for name in ("A", "B"):
            probing.fit(model=str(toy), corpus="sentences.txt", name=name, quiet=True, **BARE)
    elif args[0] == "compare":
        args += ["--models", f"[{toy}, {toy}]", "--fit.corpus", "sentences.txt", "--fit.layer", "2"]
        args += [arg.replace("--", "--fit.") for arg in BARE_ARGS]
    assert run(COMMANDS, args) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_python_of_the_readme_runs(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for language, block in BLOCKS if language == "python"]
    real = probing.fit

    def small(**options: Any) -> Any:
        return real(**{"model": str(toy), "corpus": "sentences.txt", **BARE, **options, "layer": 2})

    monkeypatch.setattr(probing, "fit", small, raising=False)
    names: dict[str, Any] = {}
    exec(code.replace("top(6", "top(2"), names)
    assert names["run"].accuracy[0]["layer"] == 2


def test_commands_for_several_processes_are_understood() -> None:
    # Started for real in test_ranks.py; here, that no option of theirs is misspelled.
    blocks = [block for language, block in BLOCKS if language == "sh"]
    found = [line.split("-m probing ")[1] for block in blocks for line in block.splitlines() if "-m probing" in line]
    assert len(found) >= 4
    for line in found:
        name, *args = shlex.split(line)
        module, function = COMMANDS[name].split(":")
        options = parse(name, getattr(import_module(module), function), args)
        check_trainer_options(options["trainer"] or {}, "lbfgs")


def test_every_option_that_the_readme_names_exists() -> None:
    help_text = io.StringIO()
    for command in ("fit", "rank", "compare", "sweep", "geometry", "wic", "sts", "report"):
        with contextlib.redirect_stdout(help_text), pytest.raises(SystemExit):
            run(COMMANDS, [command, "--help"])
    named = set(re.findall(r"`(--[a-z_]+(?:\.[a-z0-9_]+)?)", README)) - {"--help", "--yes"}
    missing = {name for name in named if name.split(" ")[0] not in help_text.getvalue()}
    # Options of Lightning's Trainer and of a task are checked by their owners.
    assert {name for name in missing if not name.startswith(("--trainer.", "--task_args."))} == set()
