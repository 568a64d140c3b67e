"""`--print_config`: what is printed, given back through `--config`, is the same call."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from probing.__main__ import COMMANDS
from probing.cli.arguments import as_text, as_yaml, parse
from probing.cli.commandline import load_command, run, unchecked

# Of some commands a call whose options differ from the defaults; texts that YAML could take for something else.
ARGS = {
    "fit": ["--layer", "0,3", "--name=1e-4", "--corpus", "no.txt", "--probe.l2", "1e-4", "--trainer.max_epochs=7",
            "--controls", "[token, untrained]", "--mdl", "--wandb.tags=[a, '1']"],
    "rank": ["no-run", "--method", "anova", "--k=10,50"],
    "compare": ["a", "b", "--fit.layer", "0,3", "--fit.probe.l2=1e-3"],
    "sweep": ["sweep.yaml", "--fit.seed", "3", "--wandb.project", "2026-11-22"],
    "cache prune": ["--unused_days", "3"],
}  # fmt: skip


def call_of(name: str, args: list[str]) -> dict[str, Any]:
    return parse(name, unchecked(load_command(COMMANDS[name])), args)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed_and_given_back_is_the_same_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    args, path = ARGS.get(name, []), tmp_path / "printed.yaml"
    for form in ("--print_config", "--print-config=comments"):
        assert run(COMMANDS, [*name.split(), form, *args]) == 0
        text, errors = capsys.readouterr()
        assert errors == ""
        assert [file.name for file in tmp_path.iterdir()] == []
        path.write_text(text, encoding="utf-8")
        assert call_of(name, ["--config", str(path)]) == call_of(name, args)
        assert run(COMMANDS, [*name.split(), "--config", str(path), "--print_config"]) == 0
        again = capsys.readouterr().out
        assert yaml.safe_load(again) == yaml.safe_load(text)
        path.unlink()
    assert text.count("\n# ") + text.count("\n  # ") >= len(yaml.safe_load(text))


@pytest.mark.skipif(sys.getfilesystemencoding() != "utf-8", reason="names of files lack these letters in this locale")
def test_a_terminal_without_a_letter_is_given_its_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["--corpus", "café 字.tsv"]
    with (path := tmp_path / "printed.yaml").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="ascii"))
        assert run(COMMANDS, ["fit", *args, "--print_config"]) == 0
    assert call_of("fit", ["--config", str(path)]) == call_of("fit", args)


def test_the_command_line_overrides_what_was_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, ["rank", "first", "--seed", "3", "--print_config"]) == 0
    (path := tmp_path / "printed.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    options = call_of("rank", ["second", "--config", str(path)])
    assert (options["folder"], options["seed"]) == ("second", 3)


def test_mistakes_are_refused_as_by_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, ["fit", "--print_config", "--layr", "6"]) == 2
    assert "`--layr` is not an option of fit (did you mean `--layer`?)" in capsys.readouterr().err
    assert run(COMMANDS, ["fit", "--print_config=all"]) == 2
    assert "`--print_config=all`: expected --print_config alone or --print_config=comments." in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1e-4", "0x10", "no", "null", "2026-11-22", "a: b", "é", "3", "", " x", "it's"])
def test_text_stays_text(text: str) -> None:
    assert as_yaml(as_text({"name": text})) == {"name": text}
