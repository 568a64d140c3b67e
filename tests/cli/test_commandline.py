"""The command line: spellings, config files, errors and what they suggest, exit status."""

from __future__ import annotations

import ast
import atexit
import errno
import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from conftest import ROOT
from pages import nodes_of
from probing.__main__ import COMMANDS
from probing.cli.arguments import COMMANDS_ELSEWHERE, ELSEWHERE, option_types, parse, with_underscores
from probing.cli.commandline import command, load_command, run, without_display
from probing.cli.options import HELP_GROUPS, Options, ProbeOptions
from probing.commands import prune
from probing.errors import UserError, about_option, did_you_mean, lack_of_machine, library_errors
from probing.registry import RENAMED, STUDIES, python_name
from probing.runs import study_of
from probing.runs.call import only_accelerator
from probing.runtime.processes import interrupts_pass
from probing.runtime.trainer import check_trainer_options
from probing.studies.compare import compare
from probing.studies.fit import fit
from probing.studies.pretrain import pretrain

EXPERIMENTS = sorted((ROOT / "conf" / "experiments").glob("*.yaml"))  # sweeps are read by `sweep`


def test_there_are_experiments_to_check() -> None:
    assert len(EXPERIMENTS) >= 2


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.name)
def test_every_experiment_is_accepted_by_the_real_command(path: Path) -> None:
    (command,) = re.findall(r"#   python -m probing (\w+) --config", path.read_text(encoding="utf-8"))
    functions: dict[str, Callable[..., Any]] = {"fit": fit, "compare": compare, "pretrain": pretrain}
    options = parse(command, functions[command], ["--config", str(path)])
    for key, value in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        group = key in ("probe", "encoder", "training")
        assert (vars(options[key]) | value == vars(options[key])) if group else options[key] == value


def test_hyphens_and_underscores_are_the_same() -> None:
    assert with_underscores("--test-corpus=a-b.txt") == "--test_corpus=a-b.txt"
    assert with_underscores("my-run") == "my-run"
    assert parse("fit", fit, ["--test-corpus", "a-b.txt", "--probe.penalty-space=rms"])["test_corpus"] == "a-b.txt"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], False),
        (["--yes"], True),
        (["--yes", "true"], True),
        (["--yes=false"], False),
        (["--yes", "--unused_days", "3"], True),
    ],
)
def test_a_yes_no_option_may_stand_alone(args: list[str], expected: bool) -> None:
    assert parse("cache prune", prune, args)["yes"] is expected


def test_the_command_line_overrides_the_file_and_the_file_the_default(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("layer: 3\nseed: 5\nprobe: {l2: 1.0e-3}\ntrainer: {max_epochs: 7}\n", encoding="utf-8")
    options = parse("fit", fit, ["--config", str(path), "--seed", "6", "--trainer.devices=2"])
    assert (options["layer"], options["seed"], options["model"]) == (3, 6, "minilm")
    assert options["probe"] == ProbeOptions(l2=1e-3)
    assert options["trainer"] == {"max_epochs": 7, "devices": 2}


def test_a_group_of_options_is_read_from_its_own_file(tmp_path: Path) -> None:
    whole, group = tmp_path / "c.yaml", tmp_path / "p.yml"
    whole.write_text("seed: 5\nprobe: {l2: 1.0e-3, patience: 2}\n", encoding="utf-8")
    group.write_text("l2: 1.0e-2\nl1: 1.0e-5\n", encoding="utf-8")
    for args in (
        ["--config", str(whole), "--probe", str(group), "--probe.l1", "1e-4"],
        ["--probe.l1=1e-4", f"--probe={group}", f"--config={whole}"],
    ):
        assert parse("fit", fit, args)["probe"] == ProbeOptions(l1=1e-4, l2=1e-2, patience=2)
    group.write_text("l3: 1\nl2: strong\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"`probe.l3` in {group} is not an option.*`probe.l2: strong` in {group}"):
        parse("fit", fit, ["--probe", str(group)])
    with pytest.raises(UserError, match=r"`--probe no\.yaml` cannot be read \(No such file"):
        parse("fit", fit, ["--probe", "no.yaml"])
    with pytest.raises(UserError, match=r"`--probe strong`: expected some of .*; or `--probe FILE.yaml`"):
        parse("fit", fit, ["--probe", "strong"])


@pytest.mark.parametrize(
    ("program", "started"),
    [("/usr/bin/neuron-probing", "neuron-probing"), ("x/probing/__main__.py", "python -m probing")],
)
def test_usage_lines_name_the_program_as_it_was_started(
    program: str, started: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert run(COMMANDS, []) == 0
    assert capsys.readouterr().out.startswith(f"usage: {started} COMMAND [OPTIONS]\n       {started} COMMAND --help ")
    with pytest.raises(SystemExit, match="0"):
        run(COMMANDS, ["cache", "ls", "--help"])
    assert capsys.readouterr().out.startswith(f"usage: {started} cache ls [OPTIONS]\n")
    with pytest.raises(SystemExit, match="0"):
        run(COMMANDS, ["rank", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {started} rank [FOLDER] [OPTIONS]\n")
    assert "--method METHOD" in shown
    assert "--method+" not in shown
    with pytest.raises(SystemExit, match="0"):
        run(COMMANDS, ["fit", "--help"])
    assert "YAML file of the options that begin with --probe" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("typed", ["6", "0,3,6", "all"])
def test_layers_are_taken_as_sweeps_pass_them(typed: str) -> None:
    assert str(parse("fit", fit, [f"--layer={typed}"])["layer"]) == typed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["--layr", "6", "--probe.l3", "1"],
            ["`--layr` is not an option of fit (did you mean `--layer`?); `--probe.l3`"],
        ),
        (["--seed", "x"], ["`--seed x`: expected a whole number."]),
        (["--dtype", "float8"], ["dtype", "float8", "bfloat16"]),
        (
            ["--evidence", "non", "--layer", "six", "--probe.l2", "-1", "--controls", "shufled"],
            [
                "`--evidence non`: expected",
                "`--layer six` is not",
                "`--probe.l2 -1.0` is out",
                "`--controls shufled` is",
            ],
        ),
        (["--probe.solver", "sgd"], ["solver", "lbfgs"]),
        (["--config", "missing.yaml"], ["missing.yaml"]),
    ],
)
def test_bad_arguments_are_refused_in_one_line_with_what_was_typed(args: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse("fit", fit, args)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_unknown_keys_of_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("layers: 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="layers"):
        parse("fit", fit, ["--config", str(path)])


def test_exit_status_tells_mistakes_from_failures(capsys: pytest.CaptureFixture[str]) -> None:
    here = __name__
    names = ("mistaken", "failing", "stopped", "stopped_in_training", "terminated", "fine")
    commands = {name: f"{here}:{name}" for name in names}
    assert [run(commands, [name]) for name in commands] == [2, 1, 130, 130, 143, 0]
    assert run(commands, ["nothing"]) == 2
    error = capsys.readouterr().err
    assert "probing mistaken: `--x 3` is too much" in error
    assert "probing nothing" not in error
    assert "there is no command `nothing`; commands are mistaken" in error


def test_the_version_is_that_of_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, ["--version"]) == 0
    assert capsys.readouterr().out == f"probing {version('neuron-probing')}\n"


@command(Options)
def mistaken(options: Options) -> None:
    """Ask for too much."""
    raise UserError("`--x 3` is too much")


@command(Options)
def failing(options: Options) -> None:
    """Fail."""
    from probing.errors import RunError

    raise RunError("no luck")


@command(Options)
def stopped(options: Options) -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


@command(Options)
def stopped_in_training(options: Options) -> None:
    """Be interrupted as Lightning passes it on."""
    with interrupts_pass():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)


@command(Options)
def terminated(options: Options) -> None:
    """Be told to end."""
    signal.raise_signal(signal.SIGTERM)


@command(Options)
def fine(options: Options) -> None:
    """Do nothing."""


# One process for all: most of the time of each would be Python's start.
HELP_OF_ALL = """
import sys
from probing.__main__ import COMMANDS, main
heavy = {"torch", "transformers", "pytorch_lightning", "wandb"}
for name in ["", *COMMANDS]:
    sys.argv = ["probing", *name.split(), "--help"]
    try:
        ended = main()
    except SystemExit as end:
        ended = end.code
    print("ENDED", repr(name), ended or 0, *sorted(heavy & set(sys.modules)))
"""


def test_help_of_every_command_is_shown_and_imports_nothing_heavy() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", HELP_OF_ALL], capture_output=True, encoding="utf-8", check=True,
        env={**os.environ, "COLUMNS": "60"},
    )  # fmt: skip
    assert asked.stderr == ""
    *shown, rest = re.split(r"^ENDED (.*)\n", asked.stdout, flags=re.MULTILINE)
    assert rest == ""
    helps = dict(zip(shown[1::2], shown[::2], strict=True))
    assert list(helps) == [f"{name!r} 0" for name in ["", *COMMANDS]]
    assert all(text.startswith("usage: ") for text in helps.values())
    for option in ("--layer", "--probe.l2", "--wandb.mode", "--task_args", "--trainer", "--config"):
        assert option in helps["'fit' 0"]
    lines = [line for text in helps.values() for line in text.splitlines()]
    wide = [line for line in lines if len(line) > 60 and not line.startswith("  --")]  # an option stays on one line
    assert [line for line in wide if len(line.split()) > 1] == []
    for name, place in COMMANDS.items():
        listed = re.findall(r"^  --([\w.]+)", helps[f"{name!r} 0"], re.MULTILINE)
        assert len(listed) == len(set(listed)), name
        assert {*option_types(load_command(place))} <= {*listed}, name
    groups = re.split(r"^(?=\S.*:$)", helps["'fit' 0"], flags=re.MULTILINE)[1:]
    assert [group.splitlines()[0] for group in groups[:6]] == [f"{title}:" for title in [*HELP_GROUPS][:6]]
    first = ["model", "layer", "corpus", "task", "evidence", "name"]
    assert re.findall(r"^  --([\w.]+)", groups[0], re.MULTILINE) == first


def test_the_program_that_python_starts_shows_help() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "probing", "fit", "--help"], capture_output=True, encoding="utf-8", check=True
    )
    assert asked.stderr == ""
    assert asked.stdout.startswith("usage: ")


def test_importing_probing_is_cheap_and_changes_nothing() -> None:
    code = (
        "import sys, random; state = random.getstate(); import probing; print(state == random.getstate(), *sys.modules)"
    )
    equal, *modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    ).stdout.split()
    assert equal == "True"
    assert not {"torch", "numpy", "jsonargparse", "wandb", "matplotlib"} & set(modules)


# argparse itself passes over a closed pipe if it finds it: Python writes there when its buffer is full, or at the end.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "statuses"), [("cache ls --cache nothing", {141}), ("fit --help", {0, 141}), ("--help", {141})]
)
def test_output_that_nobody_reads_any_more_ends_quietly(args: str, statuses: set[int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "probing", *args.split()]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert ended.stderr == b""
    assert ended.returncode in statuses


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full; Linux has one")
@pytest.mark.parametrize(
    ("args", "unbuffered"), [("cache ls --cache nothing", ""), ("--help", ""), ("--version", ""), ("--version", "1")]
)
def test_output_for_which_there_is_no_room_ends_in_a_sentence(args: str, unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "probing", *args.split()]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", check=False, env=environment
        )
    said = " ".join(ended.stderr.split())
    assert said.endswith("standard output cannot be written (No space left on device); send it to where there is room.")
    assert ended.returncode == 1


@pytest.mark.parametrize("date", ["x", "-1", "1.5", "9" * 20])
def test_a_date_for_figures_that_is_none_is_refused_before_any_work(
    date: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
    assert run(COMMANDS, ["cache", "ls", "--cache", "nothing"]) == 2
    assert f"SOURCE_DATE_EPOCH is '{date}': expected a date in seconds since 1970" in capsys.readouterr().err


def test_a_window_system_that_there_is_not_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "x")
    without_display()
    assert "MPLBACKEND" not in os.environ


def test_public_names_are_what_they_say() -> None:
    import probing
    from probing.studies.fit import extract

    assert probing.extract is extract
    assert probing.UserError is UserError
    assert {*probing._HOMES, *map(python_name, STUDIES), "__version__"} == set(probing.__all__)
    assert all(getattr(probing, name).__name__ == name for name in (*probing._HOMES, *map(python_name, STUDIES)))


def test_type_checkers_find_every_public_name_where_it_is() -> None:
    import probing

    (block,) = (node for node in ast.parse(inspect.getsource(probing)).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.asname: f"{node.module}:{alias.name}" for node in imports for alias in node.names}
    functions = {python_name(name): study_of(name).function for name in STUDIES}
    assert typed == functions | {name: f"{module}:{name}" for name, module in probing._HOMES.items()}


def test_the_page_of_the_api_has_every_study() -> None:
    page = (ROOT / "docs" / "reference.py").read_text(encoding="utf-8")
    described = set(re.findall(r"^::: probing\.(?:\S+\.)?(\w+)$", page, re.MULTILINE))
    assert set(map(python_name, STUDIES)) - described == set()


def test_a_notebook_shows_a_mistake_in_a_line_and_in_the_words_of_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shells = pytest.importorskip("IPython.core.interactiveshell")
    hooks = sys.displayhook, sys.excepthook
    shell = shells.InteractiveShell(colors="nocolor")
    shell.history_manager.enabled = False
    shell.run_cell("from probing import UserError")
    shell.run_cell("raise UserError('`--layer 13`: it has 12; `--probe.l2 auto`, `--quiet` or --test_corpus do.')")
    shell.run_cell("raise UserError('give `--task column --task_args.column ner`, or `probing fit --layer 3`.')")
    shell.atexit_operations()
    atexit.unregister(shell.atexit_operations)
    sys.displayhook, sys.excepthook = hooks
    assert capsys.readouterr().out.strip() == (
        'UserError: `layer=13`: it has 12; `probe={"l2": "auto"}`, `quiet` or `test_corpus` do.\n'
        'UserError: give `task="column", task_args={"column": "ner"}`, or `probing fit --layer 3`.'
    )


@pytest.mark.parametrize("name", [name for name in COMMANDS if " " not in name])
def test_every_command_is_a_function_of_the_package(name: str) -> None:
    assert getattr(importlib.import_module("probing"), python_name(name)) is load_command(COMMANDS[name])


# --- hints ---


HINT = re.compile(r"--([a-z_.0-9]+)`")
OPTIONS = {name: option_types(load_command(where)) for name, where in COMMANDS.items()}
WORDS = {part for options in OPTIONS.values() for option in options for part in (option, option.rpartition(".")[2])}
OF_TRAINER = {
    "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "max_epochs": 3, "precision": "32-true",
    "accumulate_grad_batches": 2, "gradient_clip_val": 1.0,
}  # fmt: skip


def mistakes(name: str) -> list[str]:
    """Return what may be typed for an option of a command: words of others, and slips in its own."""
    own = sorted(OPTIONS[name])
    slips = [word[:k] + word[k + 1 :] for word in own for k in (1, len(word) // 2)] + [f"{word}s" for word in own]
    return [word for word in {*ELSEWHERE, *WORDS, *slips} if word not in own and re.fullmatch(r"[a-z_0-9]+", word)]


def takes(name: str, option: str) -> bool:
    """Whether a command takes an option; of the Trainer's arguments, whether its own check takes it."""
    if not option.startswith("trainer."):
        return option in OPTIONS[name]
    given = {(word := option.partition(".")[2]): OF_TRAINER[word]}
    try:
        if name != "extract" and not study_of(name).in_several_processes:
            only_accelerator(given, name)
        check_trainer_options(given, {"pretrain": "pretraining", "finetune": "tuning"}.get(name, "lbfgs"))
    except UserError:
        return False
    return "trainer" in OPTIONS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_hint_names_only_what_the_command_takes(name: str) -> None:
    words = mistakes(name)
    with pytest.raises(UserError) as refused:
        parse(name, load_command(COMMANDS[name]), [f"--{word}=1" for word in words])
    said = [part for part in str(refused.value).split("; ") if "is not an option of" in part]
    hints = {hint for part in said if "did you mean" in part for hint in HINT.findall(part.partition("did you ")[2])}
    assert {hint for hint in hints if not takes(name, hint)} == set()
    assert hints
    assert len(said) > 50


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["finetune", "--epochs", "3"], "(did you mean `--tuning.epochs`?)"),
        (["finetune", "--lr", "1e-4"], "(did you mean `--tuning.learning_rate`?)"),
        (["pretrain", "--batch_size", "3"], "(did you mean `--training.batch_size`?)"),
        (["fit", "--epochs", "3"], "(did you mean `--trainer.max_epochs`?)"),
        (["checkpoints", "--gpus", "2"], "(did you mean `--trainer.accelerator`?)"),
        (["geometry", "--position"], "`--position` is now the command `position`"),
        (["geometry", "--interventions"], "`--interventions` is now the command `ablate --neurons outliers`"),
        (["ablate", "--from_run", "runs/A"], "`--from_run` is now `--run`"),
        (["rank", "--run", "runs/A"], "(did you mean `--folder`?)"),
        (["ablate", "--head", "3"], "(did you mean `--units`?)"),
        (["attention", "--heads", "3"], "(did you mean `--layer`?)"),
        (["fit", "--heads", "3"], "(did you mean `--site`?)"),
        (["train"], "(did you mean `fit` or `pretrain` or `finetune`?)"),
    ],
)
def test_what_others_call_it_is_told(typed: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, typed) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_the_new_name_of_a_command_is_told(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    import probing

    assert new in STUDIES
    assert run(COMMANDS, [old, "--layer", "3"]) == 2
    assert capsys.readouterr() == ("", f"probing: the command `{old}` is now `{new}`\n")
    with pytest.raises(AttributeError, match=f"^the command `{old}` is now `{new}`$"):
        getattr(probing, old)


def test_the_new_name_of_an_option_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    import probing

    assert run(COMMANDS, ["fit", "--given", "token"]) == 2
    assert capsys.readouterr().err == "probing fit: `--given` is now `--control_for`.\n"
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'given' \(did you mean `control_for`\?\)"):
        probing.fit(given="token")  # type: ignore[call-arg]


def test_commands_of_others_stand_for_commands_that_there_are() -> None:
    assert {name for names in COMMANDS_ELSEWHERE.values() for name in names.split(",")} <= set(COMMANDS)


@pytest.mark.parametrize(("solver", "option"), [("tuning", "--tuning.epochs"), ("pretraining", "--training.steps")])
def test_passes_of_a_training_of_models_are_an_option_of_its_own(solver: str, option: str) -> None:
    with pytest.raises(UserError, match=f"`--trainer.max_epochs` cannot be used in {solver}; give `{option}`"):
        check_trainer_options({"max_epochs": 3}, solver)
    assert option.removeprefix("--") in OPTIONS[{"tuning": "finetune", "pretraining": "pretrain"}[solver]]


@pytest.mark.slow
def test_options_that_messages_name_are_options() -> None:
    known = {option for options in OPTIONS.values() for option in options} | {f"trainer.{one}" for one in OF_TRAINER}
    known |= {option.partition(".")[0] for option in known} | {"config", "print_config", "help", "version"}
    named = set()
    for file in (ROOT / "probing").rglob("*.py"):
        for node in nodes_of(file):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = re.findall(r"`--([a-z][a-z_0-9.]*)(?=[ `=])(?!=)", node.value)
                named |= {
                    (file.name, option)
                    for option in found
                    if option.split(".")[0] not in ("task_args", "trainer", "fit")
                }
    assert len(named) > 100
    assert {pair for pair in named if pair[1] not in known} == set()


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("layr", ["layer", "l"], "layer"),
        ("extarct", ["extract"], "extract"),  # neighbours swapped
        ("mod", ["model"], "model"),  # two letters
        ("max_epochs", ["min_epochs"], "min_epochs"),
        ("max_epochs", ["min_epoch"], ""),  # three
        ("gpt2-xl", ["gpt2"], ""),
        ("bert-base", ["bert", "bert-large"], ""),
        ("replicate_no", ["replicates"], ""),
        ("label", ["labels", "lapel"], "labels"),
        ("anova", ["anvoa", "novaa"], "anvoa"),
        ("no_quiet", ["quiet"], "quiet"),
        ("ner", ["upos", "NER"], "NER"),  # another case
        ("nre", ["pos", "ner"], "ner"),  # a short word with neighbours swapped
        ("x", ["y"], ""),  # all its letters would have to change
        ("", ["y"], ""),
    ],
)
def test_a_word_is_suggested_within_two_edits(word: str, known: list[str], meant: str) -> None:
    assert did_you_mean(word, known, "--") == (f" (did you mean `--{meant}`?)" if meant else "")


def test_nothing_is_meant_where_nothing_is_known() -> None:
    assert did_you_mean("position", []) == ""


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("act", "lacks"),
    [
        (lambda: np.empty(2**58), "memory ran out (Unable to allocate"),
        (lambda: torch.empty(2**58), "memory ran out ("),
        (lambda: _raise(MemoryError()), "memory ran out (MemoryError)"),
        (lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")), "memory ran out (CUDA"),
        (lambda: _raise(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a")), "a file could not be written ("),
        (lambda: _raise(OSError(errno.EMFILE, os.strerror(errno.EMFILE))), "a file could not be used (Too many open"),
        (lambda: _raise(RuntimeError("can't start new thread")), "memory ran out (can't start new thread)"),
        (lambda: save_file({"x": torch.ones(3)}, "none/x"), "a file could not be written ("),
        (lambda: _raise(RuntimeError("[enforce fail at inline_container.cc:6] . unexpected pos")), "a file could not"),
        (lambda: Path("none").read_text(encoding="utf-8"), None),
        (lambda: _raise(ValueError("out of range")), None),
        (lambda: torch.ones(2) @ torch.ones(3), None),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_told_from_errors_of_a_program(act: Callable[[], object], lacks: str | None) -> None:
    with pytest.raises((Exception, MemoryError)) as caught:
        act()
    found = lack_of_machine(caught.value)
    assert (found is None) == (lacks is None)
    assert (found or "").startswith(lacks or "")


def test_a_panic_of_a_library_is_a_sentence_and_an_interrupt_is_not() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(UserError, match="cannot be read: a rule"), library_errors("cannot be read: {}".format):
        raise panic("a rule that matches nothing")
    with pytest.raises(KeyboardInterrupt), library_errors("cannot be read: {}".format):
        raise KeyboardInterrupt
    with pytest.raises(UserError, match="as it is"), library_errors("cannot be read: {}".format):
        raise UserError("as it is")


def test_errors_about_a_model_name_the_option_that_it_was_read_for() -> None:
    for option, said in (("--start", "`--start a/b` is gone."), ("--run r:", "`--run r`: its model `a/b` is gone.")):
        with pytest.raises(UserError) as caught, about_option(option):
            raise UserError("`--model a/b` is gone.")
        assert str(caught.value) == said
