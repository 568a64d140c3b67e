"""Options that commands share are described once, and `--print_config` prints what gives the same call again."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from probing.__main__ import COMMANDS
from probing.cli.arguments import as_text, as_yaml, parse
from probing.cli.commandline import command, load_command, without_validation
from probing.cli.commandline import run as run_command
from probing.cli.options import (
    SHARED,
    WIDTH,
    CorpusOptions,
    Options,
    Probe,
    ProbeOptions,
    RunOptions,
    Wandb,
    WandbOptions,
    configuration,
    declared,
    flat,
    help_in,
    option,
    options_of,
)
from probing.errors import UserError, flag, on_command_line, spelled

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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help(command: str) -> None:
    options = flat(options_of(load(command)))
    assert options
    assert [name for name, entry in options.items() if not entry.help.strip()] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_in_python_describes_the_options_in_their_order(command: str) -> None:
    function = load(command)
    docstring = inspect.getdoc(function) or ""
    assert list(entries(docstring)) == list(inspect.signature(function).parameters)
    assert all(len(line) <= WIDTH for line in docstring.splitlines())


def declaring_classes() -> set[type[Options]]:
    """Return all classes that declare options of commands."""
    return {kind for command in COMMANDS for kind in options_of(load(command)).__mro__ if issubclass(kind, Options)}


def test_no_option_is_described_in_two_classes() -> None:
    modules = {kind.__module__ for kind in declaring_classes()}
    described = Counter((name, text) for module in modules for (_, name), text in help_in(module).items())
    assert len(described) > 200
    # Two commands read data sets in the same way, two train models, and two measure checkpoints.
    repeated = {name for (name, help_text), n in described.items() if n > 1 and help_text}
    assert repeated <= {"definition", "seed", "trainer", "cache"}


def test_every_shared_declaration_is_used_by_several_commands() -> None:
    used = Counter(name for command in COMMANDS for name in declared(options_of(load(command))))
    assert [name for name in SHARED if used[name] < 2] == []


@dataclass(frozen=True, kw_only=True)
class Wanted(RunOptions, CorpusOptions):
    """Options of a command that prints what it is given."""

    model: str = "bert"
    """What is read."""
    corpus: Any = "text.txt"
    share: float = option(0.5, at_least=0, at_most=1)
    names: str | list[str] = option("all", choices=("a", "b"), nothing="none")
    """Some names, of which
    there are two."""
    seed: int = 3
    """Seed of its own."""
    probe: Probe = ProbeOptions()
    wandb: Wandb = WandbOptions()

    def problems(self) -> list[str]:
        """Return what does not go together."""
        return [f"{flag('share', self.share)} is odd with {flag('model', self.model)}"] * (self.share == 1)


@command(Wanted)
def run(options: Wanted) -> tuple[dict[str, Any], Wanted]:
    """Return what it is given.

    Returns:
        The configuration and the options.
    """
    return configuration(options), options


def test_an_option_takes_over_what_a_class_that_it_inherits_declares_of_it() -> None:
    seed, corpus, names = (declared(Wanted)[name] for name in ("seed", "corpus", "names"))
    assert (seed.default, seed.help, seed.at_most) == (3, "Seed of its own.", SHARED["seed"].at_most)
    assert (corpus.default, corpus.help) == ("text.txt", SHARED["corpus"].help)
    assert names.help == "Some names, of which there are two."


def test_a_command_gets_its_options_and_their_configuration_has_no_name() -> None:
    pytest.importorskip(
        "pytorch_lightning", reason="a command that trains restores the algorithms that a Trainer changes"
    )
    given: dict[str, Any] = {"model": "bert", "seed": "5", "name": "mine", "wandb": {"mode": "disabled"}}
    config, options = run(**given, corpus=Path("a") / "b")
    assert (options.model, options.seed, options.name, options.corpus) == ("bert", 5, "mine", str(Path("a") / "b"))
    assert options.wandb == WandbOptions(mode="disabled")
    # The run's name is no part of what repeats it.
    assert "name" not in config
    assert config["wandb"] == asdict(WandbOptions(mode="disabled"))
    assert list(inspect.signature(run).parameters) == list(declared(Wanted))
    assert inspect.getdoc(run).endswith("\n\nReturns:\n    The configuration and the options.")  # type: ignore[union-attr]


def test_all_problems_are_told_at_once_in_the_words_that_were_typed() -> None:
    with pytest.raises(UserError) as refused:
        run(seed=-1, share=2.0, names="a,c", probe={"patience": 0, "bias": True, "solver": "adam"})
    assert [part for part in str(refused.value).split("; ") if "leave" not in part and "give" not in part] == [
        "`seed=-1` is out of range: expected 0 to 9223372036854775807",
        "`share=2.0` is out of range: expected 0 to 1",
        '`names="c"` is not one of a, b, all, none',
        "`probe.patience=0` is out of range: expected at least 1",
        '`probe.solver="adam"`: a probe with an intercept (`probe.bias=True`) is trained by lbfgs',
    ]
    with pytest.raises(UserError, match=r"^`share=1.0` is odd with `model=\"x\"`.$"):
        run(model="x", share=1)
    typed = parse("run", run, ["--seed=-1", "--share", "1", "--probe.bias", "--probe.solver", "adam"])
    with pytest.raises(UserError) as refused:
        without_validation(run)(**typed)
    assert str(refused.value).startswith("`--seed -1` is out of range")
    assert "`--share 1.0` is odd with `--model bert`" in str(refused.value)
    assert "`--probe.solver adam`: a probe with an intercept (`--probe.bias true`)" in str(refused.value)


def test_a_command_within_another_names_options_as_the_other_was_called() -> None:
    with spelled(on_command_line), pytest.raises(UserError, match=r"^`--share 2.0`"):
        run(share=2)


def test_options_that_a_command_does_not_have_are_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match=r"^run\(\) got an unexpected keyword argument 'modle'"):
        run(modle="bert")  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"`wandb.mod` is not an option"):
        run(wandb={"mod": "disabled"})


@pytest.mark.slow
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


@pytest.mark.slow
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
