"""Tasks of one's own, given in every way, and tasks of whole sentences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from probing.builtin_tasks.column import SentenceLabel
from transformers import AutoModel, AutoTokenizer

from conftest import BARE, BARE_ARGS, FAMILIES
from families import MAX_LENGTH
from probing import Run, SentenceTask, Task, WandbOptions, compare, fit, rank
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.data.examples import Sides
from probing.data.labelling import choose_classes, label
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model
from probing.page.charts import source_of
from probing.page.run import question
from probing.probes.rankings import shuffled_among_types
from probing.runs.loading import load_run
from probing.text import Corpus, assign_splits, from_sentences, from_words, load_corpus
from probing.text.tasks import classes_of, described, labels_of, load_task
from probing.text.tokens import Tokens, tokenize
from synthetic import make_splits, make_store, make_tokens

NO_WANDB = WandbOptions(mode="disabled")

# "un|likely dogs" and "he", each with [CLS] and [SEP].
TOKENS = Tokens(
    np.array([5, 3], np.int32), np.arange(8, dtype=np.int32), np.array([-1, 0, 0, 1, -1, -1, 0, -1], np.int16)
)
CORPUS = Corpus("few.txt", ("unlikely dogs", "he"))


@dataclass(frozen=True)
class Long(Task):
    """Whether a word has at least `n` characters."""

    n: int = 6

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[bool]:
        return [len(word) >= self.n for word in tokens.word_texts(corpus)]


class Returns(Task):
    """Returns what it is told to."""

    def labels(self, tokens: Tokens, corpus: Corpus) -> Any:
        return self.values  # type: ignore[attr-defined]


def returning(values: Any, ordinal: bool = False) -> Task:
    task = Returns()
    object.__setattr__(task, "values", values)
    object.__setattr__(task, "ordinal", ordinal)
    return task


# --- the text of tokens ---


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_are_the_characters_of_their_word(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    tokenizer = load_tokenizer(resolve_model(str(checkpoints[family])))
    corpus = from_sentences("text", sentences)
    table = tokenize(tokenizer, corpus.sentences, MAX_LENGTH)
    pieces, words = table.piece_texts(corpus), table.word_texts(corpus)
    own = tokenizer.convert_ids_to_tokens(table.input_ids[table.special].tolist())
    assert pieces[table.special].tolist() == words[table.special].tolist() == own
    for i, sentence in enumerate(corpus.sentences):
        here = np.flatnonzero((table.sentences == i) & ~table.special)
        assert "".join(pieces[here]) == sentence.replace(" ", "")
        assert "".join(words[table.first_pieces & (table.sentences == i)]) == sentence.replace(" ", "")
        for word in set(table.words[here].tolist()):
            own = here[table.words[here] == word]
            assert set(words[own]) == {"".join(pieces[own])}
    listed = from_words("words", [text.split() for text in sentences])
    table = tokenize(tokenizer, listed.sentences, MAX_LENGTH, listed.words)
    first = table.word_texts(listed)[table.first_pieces]
    assert first.tolist() == [word for row in listed.words or () for word in row]


# --- what `labels` returns ---


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (["", "a", "", "b", "", "", "a", ""], ["", "a", "", "b", "", "", "a", ""]),
        ([None, "a", None, "b", None, None, "a", None], ["", "a", "", "b", "", "", "a", ""]),
        (np.array(["", "a", "", "b", "", "", "a", ""]), ["", "a", "", "b", "", "", "a", ""]),
        ([-1, 0, 1, 0, -1, -1, 0, -1], [-1, 0, 1, 0, -1, -1, 0, -1]),
        ([None, 0, 1, 0, None, None, 0, None], [-1, 0, 1, 0, -1, -1, 0, -1]),
        (torch.tensor([-1, 0, 1, 0, -1, -1, 0, -1]), [-1, 0, 1, 0, -1, -1, 0, -1]),
        (np.array([0, 1, 2, 3, 4, 5, 6, 7], dtype=np.uint8), [0, 1, 2, 3, 4, 5, 6, 7]),
        ([True] * 6 + [False] * 2, ["", "True", "", "True", "", "", "False", ""]),
        (np.array([True] * 6 + [False] * 2), ["", "True", "", "True", "", "", "False", ""]),
        ([True, None, True, True, None, None, False, None], ["", "", "", "True", "", "", "False", ""]),
        ([None] * 8, [""] * 8),
        ([np.nan, 0.0, 1, 0, -100, None, np.int64(0), -1.0], [-1, 0, 1, 0, -1, -1, 0, -1]),
        (np.array([np.nan, 0, 1, 0, np.inf, -1, 0, -100]), [-1, 0, 1, 0, -1, -1, 0, -1]),
        (
            np.ma.array([9, 0, 1, 0, 9, 9, 0, 9], mask=[True, False, False, False, True, True, False, True]),
            [-1, 0, 1, 0, -1, -1, 0, -1],
        ),
        ([np.nan, " a", "_", "b ", "-100", None, "a", "  "], ["", "a", "", "b", "", "", "a", ""]),
        (np.array(["", "01", "", "1", "", "", "NA", ""]), ["", "01", "", "1", "", "", "NA", ""]),
    ],
)
def test_lists_and_arrays_of_any_kind_are_labels(returned: Any, expected: list[Any]) -> None:
    found = labels_of(returning(returned), TOKENS, CORPUS)
    assert found.tolist() == expected
    assert found.dtype == (object if isinstance(expected[0], str) else np.int64)


def test_true_and_false_are_numbers_where_the_task_says_so() -> None:
    found = labels_of(returning([True] * 6 + [False] * 2, ordinal=True), TOKENS, CORPUS)
    assert found.tolist() == [-1, 1, -1, 1, -1, -1, 0, -1]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (["a"] * 7, "returned 7 labels for the 8 tokens of `few.txt`; return one label for each token"),
        (["a"] * 4, "returned 4 labels for the 8 tokens of `few.txt` .special tokens count."),
        (np.zeros((8, 2), dtype=int), r"returned an array of shape \(8, 2\); .* shape \(n_tokens,\)"),
        (np.array(3), r"returned an array of shape \(\)"),
        (np.full(8, 0.5), "returned numbers with a fraction, such as 0.5; return one label for each token: text"),
        ([0.5] * 8, "returned numbers with a fraction, such as 0.5; "),
        ([2**63] * 8, "returned 9223372036854775808, and whole numbers have to be below 2.63; "),
        (np.full(8, 2**63, dtype=np.uint64), "returned 9223372036854775808, and whole numbers have"),
        (["\ud83d"] * 8, r"returned a label that has one half of a character, a lone surrogate \('\\ud83d' in"),
        (["a"] * 5 + [3, 4, 5], "returned 3 of the type int for token 5, counted from 0, where others are str"),
        ([True] * 5 + [3, 4, 5], "returned 3 of the type int for token 5, counted from 0, where others are bool"),
        ([["a"]] * 8, r"returned \['a'\] of the type list for token 0"),
        (np.array([b"a"] * 8), "returned bytes; "),
        (None, "returned nothing; "),
        ("aaaaaaaa", "returned a value of the type str; "),
        ({"a": 1}, "returned a value of the type dict; "),
    ],
)
def test_other_labels_are_refused_with_what_was_found(returned: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"the task Returns: `labels` {message}"):
        labels_of(returning(returned), TOKENS, CORPUS)


def test_text_is_refused_where_labels_should_be_numbers() -> None:
    with pytest.raises(UserError, match="the task Returns: `labels` returned text, and its `ordinal` says"):
        labels_of(returning(["a"] * 8, ordinal=True), TOKENS, CORPUS)


def test_classes_are_ascending_and_of_the_labels_type() -> None:
    class Chooses(Returns):
        def classes(self, labels: Any, n_sentences: int) -> Sequence[Any]:
            return self.chosen  # type: ignore[attr-defined]

    task, labels = Chooses(), np.array(["a", "b", "c", ""], dtype=object)
    for chosen, expected in ((["c", "a"], ["a", "c"]), (np.array(["b", "b"]), ["b"]), ([], [])):
        object.__setattr__(task, "chosen", chosen)
        assert classes_of(task, labels, 1).tolist() == expected
    object.__setattr__(task, "chosen", [1, 2])
    with pytest.raises(UserError, match="the task Chooses: `classes` returned values of another type than `labels`"):
        classes_of(task, labels, 1)


# --- where tasks come from ---

FILE = '''
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probing import Task
from probing.text.tokens import Tokens
from probing.text import Corpus


@dataclass(frozen=True)
class Half(Task):
    """In which half of its sentence a token is.

    Args:
        least: Tokens a sentence needs.
    """

    least: int = 4

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[str]:
        lengths = tokens.lengths[tokens.sentences]
        late = np.where(tokens.special | (lengths < self.least), 2, (tokens.positions >= lengths / 2).astype(int))
        return [["first", "second", ""][i] for i in late]


class NoLabels(Task):
    pass


class NoTask:
    pass


helper = 3
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "half.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def bare(checkpoints: dict[str, Path], long_corpus_file: Path, tmp_path: Path) -> dict[str, Any]:
    """Options of a run that is over in seconds."""
    return {
        "model": str(checkpoints["bert"]), "corpus": str(long_corpus_file), "runs": str(tmp_path / "runs"), "layer": 2,
        "quiet": True, "wandb": NO_WANDB, **BARE,
    }  # fmt: skip


@pytest.mark.slow
def test_a_file_gives_a_task_to_fit_rank_and_the_configuration(
    file: Path, bare: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model, corpus, runs = bare["model"], bare["corpus"], bare["runs"]
    args = ["fit", "--model", model, "--corpus", corpus, "--runs", runs, "--layer", "2", *BARE_ARGS]
    args += ["--task", f"{file}:Half", "--task_args.least", "6", "--wandb.mode", "disabled"]
    assert run(COMMANDS, args) == 0
    (folder,) = [path for path in Path(runs).iterdir() if path.name != "cache"]
    assert folder.name.startswith("tiny-bert-Half-")
    made = load_run(folder)
    assert (made.config["task"], made.config["task_args"]) == (f"{file}:Half", {"least": 6})
    assert made.results["classes"] == ["first", "second"]
    assert made.accuracy[0]["accuracy"] > made.accuracy[0]["majority_accuracy"]
    assert "/half.py" not in capsys.readouterr().out  # titles and conclusions have the class alone
    again = fit(**{**made.config, "name": "again", "quiet": True})
    assert again.neurons == made.neurons
    ranked = rank(str(folder), method="anova", quiet=True, wandb=NO_WANDB)
    assert len(ranked.rankings["anova"]) == len(made.neurons)


@pytest.mark.slow
def test_an_object_gives_the_same_run_as_its_file(file: Path, bare: dict[str, Any]) -> None:
    task = load_task(f"{file}:Half", {"least": 6})
    by_object = fit(task=task, name="object", **bare)
    by_file = fit(task=f"{file}:Half", task_args={"least": 6}, name="file", **bare)
    assert by_object is not None
    assert by_file is not None
    assert by_object.neurons == by_file.neurons
    # Relative to the folder where the run was made, or whole.
    assert by_object.config["task"] in (f"{file}:Half", f"{os.path.relpath(file)}:Half")
    assert by_object.config["task_args"] == {"min_count": None, "least": 6}
    assert yaml.safe_load((by_object.folder / "config.yaml").read_text(encoding="utf-8")) == {**by_object.config}


def test_an_object_of_a_module_is_described_and_found_again() -> None:
    config = described(Long(n=7), None)
    assert config == {"task": f"{__name__}:Long", "task_args": {"min_count": None, "n": 7}}
    assert load_task(config["task"], config["task_args"]) == Long(n=7)
    position = load_task("position", {"max_position": 9})
    assert described(position, None)["task"] == "position"
    assert load_task("position", described(position, None)["task_args"]) == position


def test_labels_that_are_true_or_false_make_two_classes(bare: dict[str, Any]) -> None:
    made = fit(task=Long(), name="long", **bare)
    assert made.results["classes"] == ["False", "True"]
    (row,) = made.accuracy
    assert row["accuracy"] > row["majority_accuracy"] + 0.05


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            "half.py",
            r"`--task half.py`: expected FILE.py:CLASS, and the name of the class is missing; give half.py:Half",
        ),
        (
            "half.py:Hlaf",
            r"`--task half.py:Hlaf`: half.py has no class Hlaf \(did you mean `Half`\?\); give half.py:Half",
        ),
        ("half.py:NoTask", "the class NoTask is not a task, since it lacks `labels` and `classes`; give half.py:Half"),
        ("half.py:NoLabels", "the class NoLabels is not a task, since it lacks a method `labels` of its own"),
        ("half.py:helper", "`--task half.py:helper`: helper is not a class"),
        ("gone.py:Half", r"`--task gone.py:Half`: gone.py cannot be read \(No such file or directory\)"),
        ("broken.py:Half", r"broken.py cannot be imported \(NameError in line 2: name 'oops' is not defined\)"),
        ("syntax.py:Half", r"syntax.py cannot be imported \(line 1 is not Python: "),
        ("unfrozen.py:A", r"unfrozen.py cannot be imported \(TypeError in line 5: cannot inherit non-frozen"),
        ("no.such.module:Half", r"the module no.such.module cannot be imported \(ModuleNotFoundError: No module named"),
        ("subprocess:Popen", "the class Popen is not a task, since it lacks `labels` and `classes`"),
        ("__main__:Half", "the class Half was of a notebook or a session that is gone"),
        ("positon", r"`--task positon` is not installed \(did you mean `position`\?\); .* or FILE.py:CLASS"),
    ],
)
def test_what_is_no_task_is_refused(file: Path, typed: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    (file.parent / "broken.py").write_text("x = 1\noops\n", encoding="utf-8")
    (file.parent / "syntax.py").write_text("class Half(:\n", encoding="utf-8")
    unfrozen = (
        "from dataclasses import dataclass\nfrom probing import Task\n\n\n@dataclass\nclass A(Task):\n    n: int = 3\n"
    )
    (file.parent / "unfrozen.py").write_text(unfrozen, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_task(typed, {})


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        (Long, {}, r"`task`: .* found the class Long; give `Long\(\)`"),
        (
            CORPUS,
            {},
            r"`task`: .* derived from probing.Task, found Corpus\(.*, which lacks `labels`, ",
        ),
        (Task(), {}, "which lacks a method `labels` of its own"),
        (Long(), {"n": 3}, r"`task_args`: .* the object Long\(...\) has its own"),
    ],
)
def test_objects_that_are_no_task_are_refused_before_any_work(
    task: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        fit(task=task, task_args=options, runs=str(tmp_path / "runs"), wandb=NO_WANDB)
    assert not (tmp_path / "runs").exists()


def test_a_value_is_no_task() -> None:
    with pytest.raises(UserError, match=r"found 3, which lacks `labels`, `classes`, `ordinal` and `word_means`"):
        load_task(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`task=3`: expected text"):
        fit(task=3)  # type: ignore[arg-type]


def test_options_of_a_file_are_checked_as_any_others(file: Path) -> None:
    with pytest.raises(UserError, match=r"`--task_args.least x`: expected a whole number"):
        load_task(f"{file}:Half", {"least": "x"})
    with pytest.raises(UserError, match=r"`--task_args.lest` is not an option of the task Half .*`--task_args.least`"):
        load_task(f"{file}:Half", {"lest": 3})


# --- an installed package ---


@pytest.fixture
def installed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with the task `half` by pip, not editable, into a folder from which this process imports."""
    source, site = tmp_path / "source", tmp_path / "site"
    (source / "my_tasks").mkdir(parents=True)
    (source / "my_tasks" / "__init__.py").touch()
    (source / "my_tasks" / "half.py").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    (source / "pyproject.toml").write_text(
        textwrap.dedent(
            """
            [build-system]
            requires = ["setuptools"]
            build-backend = "setuptools.build_meta"

            [project]
            name = "my-tasks"
            version = "1"

            [project.entry-points."probing.tasks"]
            half = "my_tasks.half:Half"

            [tool.setuptools]
            packages = ["my_tasks"]
            """
        ),
        encoding="utf-8",
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(site), str(source)], check=True, capture_output=True)
    for path in sorted(source.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    monkeypatch.syspath_prepend(site)


@pytest.mark.slow
def test_a_task_comes_from_an_installed_package(
    installed: None, bare: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--{name}={bare[name]}" for name in ("model", "corpus", "runs")]
    args += ["--layer=2", "--task=half", "--task_args.least=6", "--name=half", "--wandb.mode=disabled", *BARE_ARGS]
    assert run(COMMANDS, ["fit", *args]) == 0
    made = load_run(tmp_path / "runs" / "half")
    assert (made.config["task"], made.results["classes"]) == ("half", ["first", "second"])
    capsys.readouterr()
    assert run(COMMANDS, ["fit", "--task", "hafl"]) == 2
    assert "did you mean `half`?" in capsys.readouterr().err


SENTENCE_TOKENS = Tokens(
    np.array([4, 2], np.int32), np.arange(6, dtype=np.int32), np.array([-1, 0, 1, -1, -1, -1], np.int16)
)
SENTENCE_CORPUS = Corpus(
    "two.jsonl", ("two words", "\x01"), sentence_columns={"label": ("a", "b"), "score": (0.5, 1.0)}
)


class SentenceLong(SentenceTask):
    """Whether a sentence has more than 20 words."""

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[bool]:
        return [text.count(" ") > 20 for text in corpus.sentences]


class Two(SentenceTask):
    """The wrong number of labels."""

    def labels(self, tokens: Tokens, corpus: Corpus) -> Sequence[Any]:
        return ["a"] * tokens.n_tokens


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory, long_corpus_file: Path) -> Path:
    """A .jsonl file of sentences labelled by their number of words."""
    path = tmp_path_factory.mktemp("labelled") / "sentences.jsonl"
    texts = long_corpus_file.read_text(encoding="utf-8").splitlines()
    rows = [{"text": text, "label": "long" if text.count(" ") > 20 else "short", "n": 0.5} for text in texts]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def made(checkpoints: dict[str, Path], corpus: Path, runs: Path, **how: Any) -> Run:
    options: dict[str, Any] = {
        "model": str(checkpoints["bert"]), "corpus": str(corpus), "runs": str(runs), "task": "sentence_label",
        "layer": "0,2", "quiet": True, "wandb": NO_WANDB, **BARE,
    }  # fmt: skip
    return fit(**{**options, **how})


# --- labels ---


def test_a_sentence_of_special_tokens_alone_is_no_example() -> None:
    assert labels_of(SentenceLabel(), SENTENCE_TOKENS, SENTENCE_CORPUS).tolist() == ["a", ""]
    assert labels_of(SentenceLong(), SENTENCE_TOKENS, SENTENCE_CORPUS).tolist() == ["False", ""]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Two(),
            "the task Two: `labels` returned 6 labels for the 2 sentences of `two.jsonl`; return one ",
        ),
        (
            SentenceLabel(column="tone"),
            "`--corpus two.jsonl`: the task reads the column tone of its",
        ),
        (
            SentenceLabel(column="score"),
            "the column score has numbers with a fraction, such as 0.5",
        ),
    ],
)
def test_what_is_wrong_is_said(task: SentenceTask, message: str) -> None:
    with pytest.raises(UserError, match=message):
        labels_of(task, SENTENCE_TOKENS, SENTENCE_CORPUS)


def test_the_first_token_must_be_special_to_stand_for_the_sentence() -> None:
    plain = make_tokens([3, 4], special=False)
    assert labels_of(SentenceLabel(), plain, SENTENCE_CORPUS).tolist() == ["a", "b"]
    with pytest.raises(UserError, match=r"`--task_args.pooling cls`: the model's tokenizer puts no special token"):
        labels_of(SentenceLabel(pooling="cls"), plain, SENTENCE_CORPUS)
    with pytest.raises(UserError, match=r"`--task_args.pooling median`: expected mean, cls or max"):
        load_task("sentence_label", {"pooling": "median"})


# --- runs ---


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_the_probe_reads_the_pooled_vectors_of_the_plain_forward_pass(
    pooling: str, checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    run = made(checkpoints, labelled, tmp_path / "runs", task_args={"pooling": pooling})
    corpus = load_corpus(str(labelled))
    test = [i for i, side in enumerate(assign_splits(corpus.sentences, 0)) if side == "test"]
    model, tokenizer = (kind.from_pretrained(checkpoints["bert"]) for kind in (AutoModel, AutoTokenizer))
    right = np.zeros(2)
    for i in test:
        with torch.no_grad():
            states = model.eval()(**tokenizer(corpus.sentences[i], return_tensors="pt"), output_hidden_states=True)
        for at, layer in enumerate((0, 2)):
            own = states.hidden_states[layer][0]
            vector = {"mean": own[1:-1].mean(0), "max": own[1:-1].amax(0), "cls": own[0]}[pooling]
            predicted = run.results["classes"][int((run.weight[at] @ vector).argmax())]
            right[at] += predicted == corpus.sentence_columns["label"][i]
    assert [row["n_test_tokens"] for row in run.accuracy] == [len(test)] * 2
    # One sentence may be so near the boundary that the other order of sums changes its class.
    assert [row["accuracy"] for row in run.accuracy] == pytest.approx(right / len(test), abs=1.01 / len(test))
    if pooling == "mean":
        assert run.accuracy[1]["accuracy"] > run.accuracy[1]["majority_accuracy"]


def test_controls_that_make_sense_are_held_against_it(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    how = {"layer": 2, "controls": "all", "evidence": "all", "replicates": 2}
    run = made(checkpoints, labelled, tmp_path / "runs", **how)
    (row,) = run.accuracy
    assert {"shuffled_accuracy", "token_accuracy", "untrained_accuracy"} <= set(row)
    assert not {"control_task_accuracy", "permuted_positions_accuracy", "within_one"} & set(row)
    assert row["accuracy"] > row["shuffled_accuracy"]
    assert run.results["pooling"] == "mean"
    assert {"rank_low", "eta_squared_z", "cross_entropy_without"} <= set(run.neurons[0])
    assert not run.positions
    assert "token" not in question([source_of(run).views[0]])
    with pytest.raises(UserError, match=r"`controls=.control_task.`: it gives each word type a random label, and this"):
        made(checkpoints, labelled, tmp_path / "runs", controls="control_task")


def test_token_embeddings_are_averaged_where_the_first_token_stands_for_the_sentence(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    rows = [
        made(
            checkpoints, labelled, tmp_path / "runs", name=pooling, layer=2, controls="token",
            task_args={"pooling": pooling},
        ).accuracy[0]
        for pooling in ("cls", "mean")
    ]  # fmt: skip
    assert rows[0]["token_accuracy"] == rows[1]["token_accuracy"] > rows[0]["majority_accuracy"]


class Tens(SentenceTask):
    """The tens of a sentence's number of words."""

    ordinal = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[int]:
        return [text.count(" ") // 10 for text in corpus.sentences]


def test_numbers_have_their_distances_but_no_positions(
    checkpoints: dict[str, Path], labelled: Path, corpus_file: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text(
        "".join(f"{text} Indeed.\n" for text in corpus_file.read_text(encoding="utf-8").splitlines()[:40]),
        encoding="utf-8",
    )
    run = made(checkpoints, labelled, tmp_path / "runs", layer=2, task=Tens(), test_corpus=str(few))
    (row,) = run.accuracy
    assert run.results["classes"] == [0, 1, 2, 3]
    assert row["n_test_tokens"] + run.results["n_dropped_tokens"]["test"] == 40
    assert row["within_one"] >= row["accuracy"]
    assert not run.positions
    assert not (run.folder / "positions.csv").exists()


@pytest.mark.slow
def test_a_run_is_ranked_and_compared_as_others_are(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    runs = [made(checkpoints, labelled, tmp_path / "runs", seed=seed, name=f"seed{seed}", layer=2) for seed in (0, 1)]
    ranked = rank(str(runs[0].folder), method="anova", evaluate=True, quiet=True, wandb=NO_WANDB)
    assert len(ranked.rankings["anova"]) == len(runs[0].neurons)
    compared = compare(
        [str(run.folder) for run in runs], null_draws=2, quiet=True, runs=str(tmp_path / "runs"), wandb=NO_WANDB
    )
    assert compared is not None


def test_an_own_task_of_sentences_gives_what_a_column_gives(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    by_column = made(checkpoints, labelled, tmp_path / "runs", name="column")
    by_task = made(checkpoints, labelled, tmp_path / "runs", name="own", task=SentenceLong())
    assert by_task.results["classes"] == ["False", "True"]  # short and long, in the other order
    assert [row["accuracy"] for row in by_task.accuracy] == [row["accuracy"] for row in by_column.accuracy]
    pairs = zip(by_task.neurons, by_column.neurons, strict=True)
    assert all(a["contribution"] == pytest.approx(b["contribution"], rel=1e-3) for a, b in pairs)


def test_labels_of_a_null_ranking_change_sentences(tmp_path: Path) -> None:
    tokens = make_tokens([5] * 100)
    store = make_store(tmp_path / "store", [np.zeros((tokens.n_tokens, 4))], tokens)
    column = tuple("ab"[i % 2] for i in range(100))
    corpus, task = Corpus("planted", ("x",) * 100, sentence_columns={"label": column}), SentenceLabel(min_count=2)
    splits = make_splits(100)
    classes = choose_classes(tokens, corpus, task, splits)
    train, validation, test = (
        label(store, corpus, task, splits, classes, side) for side in ("train", "validation", "test")
    )
    (drawn,) = shuffled_among_types(Sides(train, validation, test, classes, ordinal=False), 1, 0)
    changed = (drawn.train.labels != train.labels)[train.labels >= 0]
    assert 0.3 < changed.mean() < 0.7
    assert ((drawn.train.labels >= 0) == (train.labels >= 0)).all()
