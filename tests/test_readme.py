"""The commands and code of the README and of the documentation's pages run, at toy size."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import probing
from conftest import BARE, BARE_ARGS, make_sentences
from families import masked_lm
from pages import PAGES, README, ROOT, code_blocks, label
from probing.__main__ import COMMANDS
from probing.cli.arguments import parse
from probing.cli.commandline import load_command, run
from probing.models import find_model
from probing.runtime.trainer import check_trainer_options
from rendering import rendered_once
from small_data import word_pairs, write_sts, write_wic

# Notes tell how something was measured; what the README and the manual show is run.
NOTES = ROOT / "docs" / "notes"
MANUAL = [page for page in PAGES if page.parent != NOTES]
BLOCKS = [block for page in MANUAL for block in code_blocks(page)]
OF_NOTES = [block for page in PAGES if page.parent == NOTES for block in code_blocks(page)]
LINES = [line.split("#")[0].strip() for language, block in BLOCKS if language == "bash" for line in block.splitlines()]
# Each once, however many pages show it; the README's come first.
PROBING = list(dict.fromkeys(line for line in LINES if line.startswith("python -m probing ")))
# What takes a second or two; the others are run by `make test-all`.
QUICK = (
    "fit --layer 6",
    "fit --corpus words.tsv",
    "fit --task half.py",
    "extract",
    "cache",
)
# An encoder that is pretrained within a second.
TOY_ENCODER = [
    "--corpus=sentences.txt", "--seeds=1", "--size=tiny", "--sentences=60", "--encoder.n_layers=1",
    "--encoder.d_model=16", "--encoder.n_heads=2", "--encoder.d_feedforward=16", "--encoder.vocabulary=100",
    "--encoder.row_length=16", "--training.steps=1", "--training.warm_up=1", "--training.batch_size=4",
    "--trainer.accelerator=cpu", "--trainer.precision=32", "--trainer.devices=1",
]  # fmt: skip
# Names of the figures that were drawn already: those of one run are those of all.
FIGURES: set[str] = set()
WITH_PYTHON = [page for page in PAGES if any(language == "python" for language, _ in code_blocks(page))]


@pytest.fixture(scope="module")
def sentences(sentences: list[str]) -> list[str]:
    """Half of the sentences of other tests, which are enough for every command to run."""
    return sentences[:100]


@pytest.fixture
def toy(tmp_path: Path, checkpoints: dict[str, Path], sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which the pages' names stand for small things."""
    (tmp_path / "sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
    for name, part in (("train", sentences[:75]), ("dev", sentences[75:])):
        rows = ["".join(map(_word, range(1, 999), text.split())) for text in part]
        (tmp_path / f"{name}.conllu").write_text("\n".join(rows) + "\n", encoding="utf-8")
    labelled = ("".join(f"{form}\t{_length(form)}\n" for form in text.split()) for text in sentences)
    short = [text for text in make_sentences(200, longest=24) if 5 <= len(text.split()) <= 12]  # links need many
    (tmp_path / "roles.tsv").write_text("".join(f"{text}\t1\tthing\t4\n" for text in short), encoding="utf-8")
    (tmp_path / "tuned").symlink_to(checkpoints["bert"])
    (tmp_path / "words.tsv").write_text("\n".join(labelled), encoding="utf-8")
    for part_of_wic, n in (("train", 30), ("dev", 20)):
        write_wic(tmp_path / "wic", part_of_wic, word_pairs(n, n))
    write_sts(tmp_path / "sts", 10)
    (tmp_path / "glove.txt").write_text("the 1 2\ntoken 3 4\nlayer 2 0\n", encoding="utf-8")
    pairs = zip(sentences[::2], sentences[1::2], strict=True)
    (tmp_path / "pairs.tsv").write_text("".join(f"{first}\t{second}\n" for first, second in pairs), encoding="utf-8")
    (tmp_path / "minimal.tsv").write_text("The [MASK] reads a layer.\tprobe\ttoken\tsubject\n", encoding="utf-8")
    lines = (f'"{text}",{"LONG" if len(text) > 150 else "SHORT"}\n' for text in sentences)
    (tmp_path / "reviews.csv").write_text("".join(["text,label\n", *lines]), encoding="utf-8")
    numbers = (f"{text} {10 ** (i % 4) + i}\n" for i, text in enumerate(sentences))
    (tmp_path / "numbers.txt").write_text("".join(numbers), encoding="utf-8")
    fact = {"masked_sentences": ["The token is a [MASK]."], "sub_label": "token", "obj_label": "probe"}
    of_files: dict[str, list[dict[str, Any]]] = {
        "reviews": [{"text": text, "label": "LONG" if len(text) > 150 else "SHORT"} for text in sentences],
        "ratings": [{"text": text, "label": len(text) / 10} for text in sentences],
        "roles": [
            {"text": text, "targets": [{"span1": [i, i + 1], "label": str(i)} for i in (0, 1)]} for text in sentences
        ],
        "blimp": [{"sentence_good": text, "sentence_bad": text[1:], "phenomenon": "order"} for text in sentences],
        "lama": [fact, {**fact, "obj_label": "layer"}],
    }
    for name, of in of_files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in of), encoding="utf-8")
    own_task = next(code for language, code in code_blocks(ROOT / "docs" / "tasks.md") if language == "python")
    (tmp_path / "half.py").write_text(own_task, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("layer: 2\n", encoding="utf-8")
    for training in ("training", "tiny"):
        for step in ("step0", "step10"):
            shutil.copytree(checkpoints["bert"], tmp_path / training / step)  # copies, because a page writes there
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    return checkpoints["bert"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path], sentences: list[str]) -> Path:
    """A folder of the runs A and B, with their cache; read only."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
        wandb = probing.WandbOptions(mode="disabled")
        for name in ("A", "B"):
            model = str(checkpoints["bert"])
            probing.fit(model=model, corpus="sentences.txt", name=name, quiet=True, wandb=wandb, **BARE)
    return folder / "runs"


def _length(form: str) -> str:
    return "LONG" if len(form) > 5 else "SHORT"


def _word(index: int, form: str) -> str:
    tree = [str(index - 1), ("dep", "nmod")[index % 2] if index > 1 else "root"]
    return "\t".join([str(index), form, form, _length(form), "_", "_", *tree, "_", "_"]) + "\n"


def test_the_readme_shows_commands() -> None:
    shown = [line for language, block in code_blocks(README) if language == "bash" for line in block.splitlines()]
    assert len([line for line in shown if line.startswith("python -m probing ")]) >= 8
    assert [line.split("#")[0].strip() for line in shown if line.startswith("make")] == ["make fit", "make test"]
    assert PROBING[0] == "python -m probing fit --layer 6"


@pytest.mark.parametrize("target", ["fit", "test"])
def test_the_two_commands_are_targets_of_the_makefile(target: str) -> None:
    assert {"fit": "-m probing fit --layer 6", "test": "-m pytest"}[target] in _planned(target)


def test_every_target_that_a_page_names_is_in_the_makefile() -> None:
    named = {line.split()[1] for line in LINES if line.startswith("make ")}
    named |= {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))}
    assert named >= {"fit", "test", "docs", "bench", "models"}
    for target in named:
        assert _planned(target), target


def _planned(target: str) -> str:
    return subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=typed, marks=() if typed.startswith(QUICK) else pytest.mark.slow)
        for line in PROBING
        if (typed := line.removeprefix("python -m probing "))
    ],
)
def test_every_command_of_the_readme_and_the_pages_runs(line: str, toy: Path, finished: Path) -> None:
    # The tiny model has no layer 6.
    line, _, written = line.partition(" > ")
    args = [{"6": "2", "0,3,6": "0,2"}.get(arg, arg) for arg in shlex.split(line)[3:]]
    if args[0] == "fit":  # all that is measured by default is tested with the controls
        args += BARE_ARGS
    if "--revision" in args:  # of the hub; a folder has none
        del args[(at := args.index("--revision")) : at + 2]
    reads = (
        "fit",
        "extract",
        "geometry",
        "extremes",
        "attention",
        *(() if "--run" in args else ("ablate", "position")),
    )  # a run has its own
    if args[0] in reads:
        corpus = "train.conllu" if "runs/upos" in args else "sentences.txt"
        args += ["--model", str(toy)] + ([] if {"--corpus", "--pairs"} & {*args} else ["--corpus", corpus])
    if args[0] == "pretrain":
        args += TOY_ENCODER
    if args[0] == "finetune":
        args += ["--model", str(toy), "--seeds=1", "--orders=1", "--tuning.epochs=1", "--task_args.min_count=5"]
    if args[0] == "ablate" and "outliers" not in args:  # for each of many passes
        args += ["--tokens", "300", "--retrain", "0"]
    if "--neurons" in args:
        args += ["--draws", "2"]
    if args[0] == "sweep":
        args += [f"--fit.{name}={value}" for name, value in (("model", toy), ("corpus", "sentences.txt"), ("layer", 0))]
        args += ["--trials", "2"]
    if args[0] == "checkpoints":
        args += ["--corpus", "sentences.txt", "--probe.l2=1e-2"]
    if args[0] == "cloze":  # which needs a model with a head
        args += ["--model", str(masked_lm(Path("masked"), "bert", make_sentences(200)))]
    if args[0] == "hierarchy":
        args += ["--train_sentences", "60", "--test_sentences", "20", "--generalisation_sentences", "20"]
        args += ["--probe.l2", "1e-2"]
    if args[0] in ("wic", "sts", "hierarchy", "position-bias", "trees"):
        args += ["--model", str(toy)]
    if args[0] == "trees":
        args += ["--layer", "0,2", "--train_sentences", "40", "--rotations", "0"]
    if args[0] == "position-bias":
        args += ["--sentences", "3", "--documents", "8", *([] if "--corpus" in args else ["--corpus", "sentences.txt"])]
    if args[0] == "reproduce":
        if {"pretrain-tiny", "bertology"} & {*args}:  # trained at full size, and on thousands of sentences of its own
            args.append("--dry_run")
        args += [] if "--models" in args else ["--models", str(toy)]
        if "shi2022" in args:  # fusions are trained in a test of their own
            args += ["--claims", "1,3-7"]
        args += ["--corpus", "sentences.txt"]
    if "runs/A" in args:
        shutil.copytree(finished, "runs")
        if args[0] == "compare":  # 19 draws take half a minute
            args += ["--null_draws", "2"]
    elif "runs/upos" in args:  # the tiny model's last layer is the third
        args = ["2" if arg == "3" else arg for arg in args]
        wandb = probing.WandbOptions(mode="disabled")
        probing.fit(model=str(toy), corpus="train.conllu", task="upos", name="upos", quiet=True, wandb=wandb, **BARE)
    elif "runs/tuned" in args:
        few: Any = {"quiet": True, "wandb": probing.WandbOptions(mode="disabled"), "tuning": {"epochs": 1}}
        probing.finetune(model=str(toy), corpus="reviews.csv", name="tuned", seeds=1, orders=1, **few)
        args += ["--candidates", "2", "--shuffles", "1", "--draws", "2"]
    elif "runs/heads" in args:
        probing.attention(model=str(toy), corpus="sentences.txt", parts="classes", name="heads", quiet=True)
    elif args[0] == "compare":
        args += ["--models", f"[{toy}, {toy}]", "--fit.corpus", "sentences.txt", "--fit.layer", "2"]
        args += [arg.replace("--", "--fit.") for arg in BARE_ARGS]
    with contextlib.ExitStack() as stack:
        stack.enter_context(rendered_once(FIGURES))
        if written:
            stack.enter_context(
                contextlib.redirect_stdout(stack.enter_context(Path(written).open("w", encoding="utf-8")))
            )
        assert run(COMMANDS, args) == 0


@pytest.mark.filterwarnings(
    "ignore:.*(does not have many workers|tensorboardX|number of training batches|pin_memory):UserWarning"
)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=label(page), marks=pytest.mark.slow if page.name == "python.md" else ())
        for page in WITH_PYTHON
    ],
)
def test_the_python_of_the_readme_and_the_pages_runs(page: Path, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = probing.fit

    def small(**options: Any) -> Any:
        return real(**{"model": str(toy), "corpus": "sentences.txt", **BARE, **options, "layer": 2})

    real_attention = probing.attention

    def small_attention(**options: Any) -> Any:
        return real_attention(**{"model": str(toy), "corpus": "sentences.txt", **options})

    monkeypatch.setattr(probing, "fit", small, raising=False)
    monkeypatch.setattr(probing, "attention", small_attention, raising=False)
    if page.name == "python.md":
        monkeypatch.setattr("probing.models.resolve_model", lambda name: find_model(str(toy)))
    names: dict[str, Any] = {"__name__": "page"}
    for language, code in code_blocks(page):
        if language == "python":
            exec(
                compile(re.sub(r"(top\(|neuron\(|layer_0?)6", r"\g<1>2", code), page.name, "exec", dont_inherit=True),
                names,
            )
    if page.name == "activations.md":
        assert names["run"].top(0, 1)[0]["neuron"] == int(names["size"].argmax()) == 42
        assert 0.8 < names["metrics"]["test/accuracy"] <= 1
        assert names["by_position"].top(3, 1)[0]["neuron"] == 5
    elif page.name == "python.md":
        assert names["run"].accuracy[0]["layer"] == 2
        assert names["probe"].neurons_[0]["neuron"] == 42
        assert names["scores"].min() > 0.8
        assert names["search"].best_params_["l2"] == names["probe"].l2_
    elif "run" in names:
        assert names["run"].accuracy[0]["layer"] == 2


def test_the_pages_with_python_are_found() -> None:
    assert {label(page) for page in WITH_PYTHON} == {
        "README.md",
        "docs/activations.md",
        "docs/python.md",
        "docs/results.md",
        "docs/studies.md",
        "docs/tasks.md",
    }


def test_commands_that_are_not_run_are_understood() -> None:
    # Those for several processes are started for real in test_ranks.py; here, that no option is misspelled.
    blocks = [block for language, block in BLOCKS if language == "sh"]
    blocks += [block for language, block in OF_NOTES if language in ("bash", "sh")]
    found = [line.split("-m probing ")[1] for block in blocks for line in block.splitlines() if "-m probing" in line]
    assert len(found) >= 40
    for line in found:
        name, *args = shlex.split(line.partition(" > ")[0], comments=True)
        options = parse(name, load_command(COMMANDS[name]), args)
        check_trainer_options(options.get("trainer") or {}, "lbfgs")


def test_every_option_that_the_readme_and_the_pages_name_exists() -> None:
    help_text = io.StringIO()
    for command in COMMANDS:
        with contextlib.redirect_stdout(help_text), pytest.raises(SystemExit):
            run(COMMANDS, [*command.split(), "--help"])
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"`(--[a-z_]+(?:\.[a-z0-9_]+)?)", text))
    missing = {name for name in named if name.split(" ")[0] not in help_text.getvalue()}
    # Options of Lightning's Trainer and of a task are checked by their owners.
    assert {name for name in missing if not name.startswith(("--trainer.", "--task_args."))} == set()
