"""Tasks whose labels are numbers that a ridge probe predicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing.builtin_tasks.sentence_label import SentenceLabel

from probing import Run, SentenceTask, Task, WandbOptions, compare, fit, rank, sweep
from probing.__main__ import COMMANDS
from probing.cache.tokens import Tokens
from probing.cli.commandline import run as main_run
from probing.corpus import Corpus
from probing.errors import UserError
from probing.tasks import labels_of
from synthetic import make_tokens

NO_WANDB = WandbOptions(mode="disabled")
TOKENS = make_tokens([3, 4])
CORPUS = Corpus(
    "two.jsonl", ("a b", "c d"), sentence_columns={"score": (0.5, None), "tone": ("1e3", "warm")},
    words=(("a", "b"), ("c", "d")), columns={"reading": (("1.5", "_"), ("nan", "2"))},
)  # fmt: skip


class Length(SentenceTask):
    """The number of characters of a sentence."""

    numbers = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> Sequence[Any]:
        return [len(text) for text in corpus.sentences]


@dataclass(frozen=True)
class Depth(Task):
    """The log of a token's place in its sentence, counted from 1; special tokens have none."""

    numbers = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> Sequence[Any]:
        return [None if special else float(np.log1p(p)) for special, p in zip(tokens.special, tokens.positions)]  # noqa: B905


class Given(SentenceTask):
    """Returns what it is given."""

    numbers = True
    given: Any = None

    def labels(self, tokens: Tokens, corpus: Corpus) -> Any:
        return self.given


def of(values: Any, **more: Any) -> Given:
    task = Given()
    for name, value in {"given": values, **more}.items():
        object.__setattr__(task, name, value)
    return task


# --- labels ---


def test_numbers_are_taken_in_every_form_and_none_is_the_absence_of_one() -> None:
    for values in ([1, 2.5], (1.0, 2.5), np.array([1, 2.5], np.float32), [np.float32(1), np.float64(2.5)]):
        np.testing.assert_array_equal(labels_of(of(values), TOKENS, CORPUS), [1, 2.5])
    for given in ([None, -3], [float("nan"), -3], np.array([np.inf, -3]), np.ma.array([9, -3], mask=[True, False])):
        np.testing.assert_array_equal(labels_of(of(given), TOKENS, CORPUS), [np.nan, -3])
    np.testing.assert_array_equal(labels_of(SentenceLabel(column="score", numbers=True), TOKENS, CORPUS), [0.5, np.nan])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (of(["1", "2"]), "returned '1' of the type str for sentence 0, counted from 0, and `numbers` says"),
        (of([True, False]), "returned True of the type bool"),
        (of(None), "`labels` returned nothing; return a list or an array with one finite number"),
        (of(np.ones((2, 1))), r"an array of shape \(2, 1\)"),
        (of([1.0]), "`labels` returned 1 labels for the 2 sentences of `two.jsonl`; return one finite number"),
        (of([1.0, 2.0], ordinal=True), "has `numbers = True` and `ordinal = True`"),
        (of(np.array([0.5, 1]), numbers=False), "numbers with a fraction, such as 0.5; .* or set `numbers = True`"),
        (SentenceLabel(column="tone", numbers=True), "the column tone of `two.jsonl` has 'warm', which is no number"),
        (SentenceLabel(column="score"), "has numbers with a fraction, .* or `--task_args.numbers true` to have"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused(task: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        labels_of(task, TOKENS, CORPUS)


def test_a_least_size_of_classes_does_not_apply() -> None:
    with pytest.raises(UserError, match=r"`--task_args\.min_count`: the task predicts numbers, which form no classes"):
        Length(min_count=5)


# --- runs ---


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, long_corpus_file: Path) -> Path:
    """A .jsonl file of sentences with their number of words as score, null for the first."""
    path = tmp_path_factory.mktemp("scored") / "sentences.jsonl"
    texts = long_corpus_file.read_text(encoding="utf-8").splitlines()
    rows = [{"text": text, "label": text.count(" ") / 2 if i else None} for i, text in enumerate(texts)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def made(checkpoints: dict[str, Path], corpus: Path, runs: Path, **how: Any) -> Run:
    options: dict[str, Any] = {
        "model": str(checkpoints["bert"]), "corpus": str(corpus), "runs": str(runs), "layer": "0,2", "quiet": True,
        "replicates": 0, "controls": "none", "evidence": "none", "wandb": NO_WANDB,
    }  # fmt: skip
    run = fit(**{**options, **how})
    assert run is not None
    return run


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], scored: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with controls and evidence."""
    return made(
        checkpoints, scored, tmp_path_factory.mktemp("runs"), task="sentence_label", task_args={"numbers": True},
        controls="all", evidence="all", replicates=2,
    )  # fmt: skip


def test_sentences_with_numbers_have_r_squared_controls_and_evidence(run: Run) -> None:
    row = run.accuracy[-1]
    assert row["r2"] > max(row["shuffled_r2"], 0.1)
    assert {"token_r2", "untrained_r2", "above_token_low", "bootstrap_overlap", "more_penalty_overlap"} <= set(row)
    assert not {"accuracy", "control_task_r2", "n_classes", "cross_entropy", "macro_accuracy"} & set(row)
    assert {"correlation", "r2_without", "rank_low", "unique", "eta_squared_q"} <= set(run.neurons[0])
    assert "cross_entropy_without" not in run.neurons[0]
    assert run.results["pooling"] == "mean"
    assert run.results["classes"] == []
    assert run.results["penalty"]["l2"] in run.results["penalty"]["tried"]
    assert run.weight.shape == (2, 1, len(run.neurons) // 2)
    assert run.config["task_args"] == {"numbers": True}


def test_its_page_speaks_of_numbers(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "R² by layer" in page
    assert "to predict a number from" in page
    assert "contribution to the predicted number" in page.lower()
    assert "R² is " in page


def test_the_terminal_shows_r_squared(
    checkpoints: dict[str, Path], scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["fit", "--model", str(checkpoints["bert"]), "--corpus", str(scored), "--runs", str(tmp_path), "--layer=2"]
    given += ["--task=sentence_label", "--task_args.numbers=true", "--replicates=0", "--wandb.mode=disabled"]
    assert main_run(COMMANDS, [*given, "--controls=shuffled", "--task_args.pooling=max", "--verbose"]) == 0
    shown = capsys.readouterr().out
    for words in ("Test R² by layer", "Controls: test R²", "contribution to the predicted number", "highest mean R²"):
        assert words in shown
    assert main_run(COMMANDS, [*given, "--quiet", "--controls=none", "--evidence=none"]) == 0
    assert "layer 2: R² " in capsys.readouterr().out


@pytest.mark.slow
def test_tokens_may_have_numbers_too(checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    run = made(checkpoints, corpus_file, tmp_path, task=Depth(), controls="shuffled", name="depth")
    first, last = run.accuracy
    # Embeddings tell the place, but when numbers are shuffled within sentences, those of a sentence alone are told.
    assert first["r2"] > 0.1
    assert first["above_shuffled_low"] > 0
    assert first["shuffled_r2"] < 0.1
    assert first["n_test_tokens"] > run.results["n_sentences"]["test"]
    assert last["relative_gradient"] < 1e-9
    again = made(checkpoints, corpus_file, tmp_path, task=Depth(), transform="standardise", layer=2, site="mlp")
    assert "untransformed_r2" in again.accuracy[0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"controls": "control_task", "task": Depth()},
            "`--controls control_task`: it gives each word type a random class, and this",
        ),
        ({"mdl": True}, "`--mdl` does not apply: the task predicts numbers"),
        ({"probe": {"solver": "adam", "l1": 0.5}}, "`--probe.l1 0.5` does not apply.*`--probe.solver adam` does not"),
        ({"trainer": {"max_time": "00:01:00:00"}}, "`--trainer.max_time 00:01:00:00` does not apply"),
        (
            {"task": of([1.0] * 190)},
            "the training sentences all have the number 1, and a probe needs numbers that vary",
        ),
        (
            {"task": of([1.0, 1e-300, 1e300, 0, 2] * 38)},
            r"a number to predict has the size 1e\+300, where at most 1e\+30",
        ),
        (
            {"task": of([0.0, 1e-300, 5e-324, 0, 0] * 38)},
            "the training sentences differ by 1e-300 at most, and at least 1e-30",
        ),
    ],
)
def test_what_does_not_apply_to_numbers_is_refused_before_any_work(
    how: dict[str, Any], message: str, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("\n".join(corpus_file.read_text(encoding="utf-8").splitlines()[:400]), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        made(checkpoints, few, tmp_path / "runs", **{"task": Length(), **how})
    assert not [*tmp_path.glob("runs/*.partial")]


def test_commands_that_read_classes_refuse_it(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="predicts numbers, and `rank` and `compare` take runs that predict classes"):
        rank(str(run.folder), wandb=NO_WANDB)
    with pytest.raises(UserError, match="predicts numbers"):
        compare([str(run.folder), str(run.folder)], wandb=NO_WANDB)
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "method: grid\nprogram: probing\nparameters:\n  task: {value: sentence_label}\n"
        "  task_args.numbers: {value: true}\n  probe.l2: {values: [0.1, 0.01]}\n",
        encoding="utf-8",
    )
    with pytest.raises(UserError, match="`task sentence_label`: it predicts numbers, and a sweep compares accuracies"):
        sweep(str(file), runs=str(tmp_path / "runs"), wandb=NO_WANDB)
