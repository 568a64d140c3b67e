"""Options that commands share are described once, and `--print_config` prints what gives the same call again."""

from __future__ import annotations

import ast
import inspect
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from probing.__main__ import COMMANDS
from probing.cli.arguments import Parser, as_text, as_yaml, option_types, parse
from probing.cli.commandline import load_command, without_validation
from probing.cli.commandline import run as run_command
from probing.cli.option_types import resolved
from probing.cli.options import DESCRIPTIONS, WIDTH, WandbOptions, complete, with_shared_help
from probing.errors import UserError

ROOT = Path(__file__).parent.parent.parent


def load(command: str) -> Callable[..., Any]:
    return load_command(COMMANDS[command])


def entries(docstring: str) -> dict[str, str]:
    """Return the descriptions in a docstring without indentation, by option, each on one line."""
    section = docstring.split("\nArgs:\n")[1].split("\n\n")[0] if "\nArgs:\n" in docstring else ""
    found: dict[str, str] = {}
    for line in section.splitlines():
        if line[4:5] != " ":
            name, _, text = line.strip().partition(": ")
            found[name] = text
        else:
            found[name] += f" {line.strip()}"
    return found


def own_descriptions() -> dict[str, dict[str, str]]:
    """Return what each command's source describes, before it is completed."""
    found: dict[str, dict[str, str]] = {}
    for command in COMMANDS:
        function = load(command)
        source = Path(inspect.getfile(sys.modules[function.__module__])).read_text(encoding="utf-8")
        (node,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == function.__name__)
        found[command] = entries(ast.get_docstring(node) or "")
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help(command: str) -> None:
    function = load(command)
    parser = Parser(prog="probing")
    parser.add_function_arguments(function)
    help_of = {action.dest: action.help for action in parser._actions}
    options = [name for name in option_types(function) if not name.startswith("return")]
    assert options
    assert [name for name in options if not (help_of[name] or "").strip()] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_in_python_describes_the_options_in_their_order(command: str) -> None:
    function = load(command)
    docstring = inspect.getdoc(function) or ""
    assert list(entries(docstring)) == list(inspect.signature(function).parameters)
    assert all(len(line) <= WIDTH for line in docstring.splitlines())


def test_every_shared_description_is_used_by_several_commands() -> None:
    own = own_descriptions()
    shared = Counter(
        name for command in own for name in inspect.signature(load(command)).parameters if name not in own[command]
    )
    assert set(shared) == set(DESCRIPTIONS)
    assert [name for name, n in shared.items() if n < 2] == []


def test_no_description_is_written_in_two_files() -> None:
    own = own_descriptions()
    written: dict[tuple[str, str], set[str]] = {}
    for command, texts in own.items():
        for entry in texts.items():
            written.setdefault(entry, set()).add(load(command).__module__)
    assert len(written) > 50
    # "Print the result line only" is what `quiet` means to two commands, beside the usual meaning.
    repeated = [entry for entry, files in written.items() if len(files) > 1 and entry[0] not in DESCRIPTIONS]
    assert repeated == []
    assert [entry for entry in written if DESCRIPTIONS.get(entry[0]) == entry[1]] == []


def test_a_docstring_is_completed_in_the_order_of_the_options() -> None:
    own = "Do it.\n\nArgs:\n    b: Of its own, in\n        two lines.\n\nReturns:\n    Nothing."
    found = complete(own, ["a", "b", "c"], {"a": "Shared.", "b": "Not used.", "c": "word " * 40})
    assert list(entries(found).items()) == [
        ("a", "Shared."), ("b", "Of its own, in two lines."), ("c", "word " * 39 + "word"),
    ]  # fmt: skip
    assert found.startswith("Do it.\n\nArgs:\n    a: ")
    assert found.endswith("\n\nReturns:\n    Nothing.")


def test_an_option_without_a_description_is_an_error() -> None:
    def command(seed: int, unheard_of: int) -> None:
        """Do it.

        Args:
            seed: Of its own.
        """

    with pytest.raises(KeyError, match="unheard_of"):
        with_shared_help(command)


@resolved
def run(
    config: dict[str, Any], model: str, seed: int = 0, name: str | None = None, wandb: WandbOptions = WandbOptions()
) -> tuple[dict[str, Any], str, int, WandbOptions]:
    """Return what it is given."""
    return config, model, seed, wandb


def test_a_command_gets_its_resolved_options_which_its_callers_do_not_give() -> None:
    assert list(inspect.signature(run).parameters) == ["model", "seed", "name", "wandb"]
    assert "config" not in run.__annotations__
    config, model, seed, wandb = run("bert", seed=3, name="mine", wandb={"mode": "disabled"})  # type: ignore[arg-type]
    assert (model, seed, wandb) == ("bert", 3, WandbOptions(mode="disabled"))
    # The run's name is no part of what repeats it.
    assert list(config) == ["model", "seed", "wandb"]
    assert config["model"] == "bert"
    assert config["wandb"] == asdict(WandbOptions(mode="disabled"))


def test_options_that_a_command_does_not_have_are_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) got an unexpected keyword argument 'modle'"):
        run("bert", modle="bert")  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"`wandb.mod` is not an option"):
        run("bert", wandb={"mod": "disabled"})  # type: ignore[arg-type]


def test_the_page_of_the_api_describes_the_options_as_help_does() -> None:
    pytest.importorskip("griffe", reason="griffe reads the source for the site; `make docs` installs it")
    functions = {name: load_command(where) for name, where in COMMANDS.items()}
    places = {name: f"{function.__module__}.{function.__name__}" for name, function in functions.items()}
    script = (
        "import griffe, json, sys\n"
        "probing = griffe.load('probing', extensions=griffe.load_extensions('docs/shared_options.py'))\n"
        "read = {name: probing[place.partition('.')[2]] for name, place in json.loads(sys.argv[1]).items()}\n"
        "print(json.dumps({name: [f.docstring.value, [p.name for p in f.parameters]] for name, f in read.items()}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, json.dumps(places)],
        cwd=ROOT, capture_output=True, encoding="utf-8", check=True,
    ).stdout  # fmt: skip
    assert json.loads(found) == {
        name: [inspect.getdoc(function), list(inspect.signature(function).parameters)]
        for name, function in functions.items()
    }


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
    return parse(name, without_validation(load_command(COMMANDS[name])), args)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed_and_given_back_is_the_same_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    args, path = ARGS.get(name, []), tmp_path / "printed.yaml"
    for form in ("--print_config", "--print-config=comments"):
        assert run_command(COMMANDS, [*name.split(), form, *args]) == 0
        text, errors = capsys.readouterr()
        assert errors == ""
        assert [file.name for file in tmp_path.iterdir()] == []
        path.write_text(text, encoding="utf-8")
        assert call_of(name, ["--config", str(path)]) == call_of(name, args)
        assert run_command(COMMANDS, [*name.split(), "--config", str(path), "--print_config"]) == 0
        again = capsys.readouterr().out
        assert yaml.safe_load(again) == yaml.safe_load(text)
        path.unlink()
    assert text.count("\n# ") + text.count("\n  # ") >= len(yaml.safe_load(text))


@pytest.mark.skipif(sys.getfilesystemencoding() != "utf-8", reason="names of files lack these letters in this locale")
def test_a_terminal_without_a_letter_is_given_its_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["--corpus", "café 字.tsv"]
    with (path := tmp_path / "printed.yaml").open("wb") as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="ascii"))
        assert run_command(COMMANDS, ["fit", *args, "--print_config"]) == 0
    assert call_of("fit", ["--config", str(path)]) == call_of("fit", args)


def test_the_command_line_overrides_what_was_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(COMMANDS, ["rank", "first", "--seed", "3", "--print_config"]) == 0
    (path := tmp_path / "printed.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    options = call_of("rank", ["second", "--config", str(path)])
    assert (options["folder"], options["seed"]) == ("second", 3)


def test_mistakes_are_refused_as_by_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(COMMANDS, ["fit", "--print_config", "--layr", "6"]) == 2
    assert "`--layr` is not an option of fit (did you mean `--layer`?)" in capsys.readouterr().err
    assert run_command(COMMANDS, ["fit", "--print_config=all"]) == 2
    assert "`--print_config=all`: expected --print_config alone or --print_config=comments." in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1e-4", "0x10", "no", "null", "2026-11-22", "a: b", "é", "3", "", " x", "it's"])
def test_text_stays_text(text: str) -> None:
    assert as_yaml(as_text({"name": text})) == {"name": text}
