"""Results of `finetune`: its tables, and each tuned model's score on each test sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.data.examples import Examples
from probing.downstream.sentence_vectors import spearman
from probing.errors import UserError
from probing.models import ModelSource
from probing.results import estimate_cells, without_nan
from probing.runs import Result
from probing.runs.call import Measurements
from probing.runs.loading import checkpoint_name
from probing.runtime.files import regular, write_tensors
from probing.runtime.progress import remark, stage
from probing.runtime.trainer import Places
from probing.statistics import Spread, accuracy_interval, ratio_interval, spread
from probing.studies.finetune import FinetuneOptions
from probing.studies.finetune.tables import SECOND, TuningOptions
from probing.studies.finetune.training import (
    Baseline,
    TestAnswers,
    TuningJob,
    TuningTask,
    baselines,
    labelled,
    read_answers,
    tune,
)
from probing.text import Corpus, Split
from probing.text.tasks import TokenTask

# Its file in the folder of a run, and what the names of its tensors of tunings begin with.
ANSWERS, RIGHT = "answers.safetensors", "right/"

# Largest difference of a score from that of `tunings.csv`, which is made of the same sums.
_ROUNDING = 1e-9

Sums = NDArray[np.float64]

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TunedAnswers:
    """Scores of tuned models by test sentence with a target; every array is of shape (n_sentences,).

    Args:
        sentence: Hash of the text of each sentence, or of both sentences of a pair.
        labels: Hash of its targets, in order; of words, each with the number of its word.
        cluster: Number of its document, or of the sentence itself: the unit of intervals.
        of: Denominator of the score: the number of targets, or the squared errors of the constant answer.
        right: By the name of a tuning, as of its checkpoint, the number of correct targets, or the squared error of the
            constant answer minus the model's.
    """

    sentence: Ids
    labels: Ids
    cluster: Ids
    of: Sums
    right: Mapping[str, Sums]

    @classmethod
    def on(
        cls, corpus: Corpus, test: Examples, classes: Sequence[Any], of: Sums, right: Mapping[str, Sums]
    ) -> TunedAnswers:
        """Return the answers of tuned models on a test part; without `classes`, numbers are predicted.

        The denominator `of` and the numerators `right` of a score have shape (n_sentences of the corpus,).
        """
        sentences = test.sentences().astype(np.int64)
        has_target = test.labels >= 0
        named = test.values.tolist() if test.values is not None else [str(label) for label in classes]
        tokens, labels = test.store.tokens, test.labels[has_target]
        word = tokens.words[has_target] if test.pooling is None else np.zeros_like(labels)
        targets: dict[int, list[str]] = {}
        for i, at, label in zip(tokens.sentences[has_target].tolist(), word.tolist(), labels.tolist(), strict=True):
            targets.setdefault(i, []).append(f"{at} {named[label]}")
        return cls(
            _hashes(_text(corpus, i) for i in sentences.tolist()),
            _hashes(targets[i] for i in sentences.tolist()),
            test.cluster_of_sentence()[sentences].astype(np.int64),
            of[sentences],
            {name: sums[sentences] for name, sums in right.items()},
        )

    def write(self, folder: Path) -> Path:
        """Write `answers.safetensors` into the folder of a run, and return its path."""
        tensors = {name: getattr(self, name) for name in ("sentence", "labels", "cluster", "of")}
        tensors |= {f"{RIGHT}{name}": sums for name, sums in self.right.items()}
        write_tensors(path := folder / ANSWERS, tensors)
        return path


def _text(corpus: Corpus, i: int) -> list[str]:
    """Return the text that identifies a sentence or a pair in its corpus: its words, where they are divided."""
    if corpus.seconds is not None:
        at = corpus.seconds[i]
        return [corpus.sentences[i][: at - 1], corpus.sentences[i][at:]]
    return [corpus.sentences[i]] if corpus.words is None else list(corpus.words[i])


def _hashes(parts: Any) -> Ids:
    digests = (blake2b("\x1f".join(texts).encode("utf-8"), digest_size=8).digest() for texts in parts)
    return np.array([int.from_bytes(texts, "big", signed=True) for texts in digests], dtype=np.int64)


def read_answers_of(run: Result) -> TunedAnswers:
    """Read the scores by test sentence of a finished run's tuned models.

    Raises:
        UserError: If the run has no such file.
        ValueError: If it is damaged: tunings are missing, or their scores differ from `tunings.csv`.
    """
    from safetensors.numpy import load_file

    path = run.folder / ANSWERS
    if not path.exists():
        raise UserError(
            f"`{run.folder}` does not have {ANSWERS}, what its tuned models have right of each test sentence: "
            "tune again."
        )
    arrays = load_file(regular(path, run.folder))
    known = [checkpoint_name(row) for row in run.tunings]
    right = {name: arrays[f"{RIGHT}{name}"] for name in known}
    answers = TunedAnswers(arrays["sentence"], arrays["labels"], arrays["cluster"], arrays["of"], right)
    arrays_of_sentences = answers.sentence, answers.labels, answers.cluster, answers.of, *right.values()
    if len({len(array) for array in arrays_of_sentences}) != 1:
        raise ValueError(f"{ANSWERS} has tensors of several lengths")
    for name, row in zip(known, run.tunings, strict=True):
        if not abs(right[name].sum() / answers.of.sum() - row["score"]) <= _ROUNDING:
            raise ValueError(f"{ANSWERS} gives {name} another score than tunings.csv")
    return answers


Row = dict[str, Any]


@dataclass(frozen=True)
class TuningScores:
    """Scores of tunings and baselines on the same test part, as sums over its clusters.

    `right` has the numerator for each sentence of the test corpus; `predicted`, for numbers of sentences, the
    predictions.
    """

    task: TuningTask
    right: Mapping[Any, Sums]
    predicted: Mapping[Any, Sums]

    @property
    def numbers(self) -> bool:
        """Whether numbers are predicted."""
        return self.task.standard is not None

    @property
    def denominators(self) -> Sums:
        """Denominator of the score in each cluster: targets, or squared errors of the constant answer."""
        return self._of_clusters(self.of_sentences())

    def of_sentences(self) -> Sums:
        """Return the denominator for each sentence of the test corpus, 0 without targets, shape (n_sentences,)."""
        examples = self.task.sides.test
        if self.task.standard is None:
            return examples.tokens_by_sentence().astype(np.float64)
        has_target = examples.labels >= 0
        squares = self.task.standard.table(examples).numpy()[examples.labels[has_target]] ** 2
        sums = np.zeros(examples.store.tokens.n_sentences)
        np.add.at(sums, examples.store.tokens.sentences[has_target], squares)
        return sums

    def _of_clusters(self, sums: Sums) -> Sums:
        test = self.task.sides.test
        tested = test.clusters(test.tokens_by_sentence()) > 0
        return np.asarray(test.clusters(sums), dtype=np.float64)[tested]

    def numerators(self, of: Any) -> Sums:
        """Return the numerator of a tuning's or baseline's score in each cluster."""
        return self._of_clusters(self.right[of])

    def score(self, of: Any) -> float:
        """Return the accuracy, or R²."""
        return float(self.numerators(of).sum() / self.denominators.sum())

    def interval(self, numerators: Sums) -> tuple[float, float]:
        """Return the interval of a score over the clusters of the test part alone."""
        if self.numbers:
            return ratio_interval((numerators, self.denominators))
        return accuracy_interval(numerators, self.denominators.astype(np.int64))

    def cells(self, of: Any) -> Row:
        """Return the score of a tuning or a baseline with its interval over the test part alone, and correlations."""
        score = estimate_cells("score", self.score(of), self.interval(self.numerators(of)))
        return {**score, **self.correlations(of)}

    def correlations(self, *of: Any) -> Row:
        """Return the mean correlations of true and predicted numbers; empty for classes and for tokens."""
        if not self.numbers or self.task.of != "sentences" or any(name not in self.predicted for name in of):
            return {}
        true = self.task.sides.test.targets
        correlations = [(pearson(self.predicted[name], true), spearman(self.predicted[name], true)) for name in of]
        of_pearson, of_spearman = np.mean(correlations, axis=0).tolist()
        return {"pearson": of_pearson, "spearman": of_spearman}

    def crossed(self, jobs: Sequence[TuningJob], start: str) -> Sums:
        """Return the numerators of the tunings of a start, shape (n_seeds, n_orders, n_clusters)."""
        start_jobs = [job for job in jobs if job.start == start]
        seeds, orders = sorted({job.seed for job in start_jobs}), sorted({job.order for job in start_jobs})
        return np.stack(
            [np.stack([self.numerators(TuningJob(start, seed, order)) for order in orders]) for seed in seeds]
        )


def tables_of(
    jobs: Sequence[TuningJob], task: TuningTask, answers: Mapping[TuningJob, TestAnswers],
    others: Mapping[str, Baseline],
    curve: Sequence[Row],
) -> dict[str, list[Row]]:  # fmt: skip
    """Return the rows of every table by its name; `others` are the baselines by name."""
    right: dict[Any, Sums] = {job: answers[job].right for job in jobs}
    right |= {name: baseline.right for name, baseline in others.items()}
    tested = task.sides.test.sentences()
    predicted: dict[Any, Sums] = {job: answers[job].predicted[tested] for job in jobs}
    predicted |= {name: baseline.predicted for name, baseline in others.items() if baseline.predicted is not None}
    scores = TuningScores(task, right, predicted)
    starts = list(dict.fromkeys(job.start for job in jobs))
    spreads = {start: spread(scores.crossed(jobs, start), scores.denominators) for start in starts}
    tables: dict[str, list[Row]] = {
        "tunings": [_tuning(scores, job, answers[job], _steps(curve, job)) for job in jobs],
        "scores": [
            *(_of_start(scores, jobs, start, spreads[start]) for start in starts),
            *({"answer": name, **scores.cells(name)} for name in others),
        ],
        "differences": [*_differences(scores, jobs, starts, list(others))],
        "tuning_curves": [dict(row) for row in curve],
    }
    return {name: [without_nan(row) for row in rows] for name, rows in tables.items()}


def _steps(curve: Sequence[Row], job: TuningJob) -> int:
    """Return the number of steps of a tuning; orders may differ by a few."""
    return max((int(row["step"]) for row in curve if row.items() >= job.row.items()), default=0)


def _tuning(scores: TuningScores, job: TuningJob, answers: TestAnswers, steps: int) -> Row:
    row: Row = {**job.row, "steps": steps, **scores.cells(job)}
    if not scores.numbers:
        row["cross_entropy"] = float(answers.loss.sum()) / int(scores.denominators.sum())
        row["macro_f1"] = macro_f1(answers.confusion)
    return row


def pearson(a: Sums, b: Sums) -> float:
    """Return Pearson's correlation; NaN where all values of a side are equal, or one is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(a, b)[0, 1])


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Return the mean F1 over the classes that have targets, from a confusion matrix of true by predicted classes."""
    right, of, taken = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    has_targets = of > 0
    return float((2 * right[has_targets] / (of[has_targets] + taken[has_targets])).mean())


def _of_start(scores: TuningScores, jobs: Sequence[TuningJob], start: str, varied: Spread) -> Row:
    crossed = scores.crossed(jobs, start)
    # No accuracy is below 0, and no score above 1.
    least = -np.inf if scores.numbers else 0.0
    row = {
        "answer": start, "n_tunings": crossed.shape[0] * crossed.shape[1],
        **estimate_cells("score", varied.mean, scores.interval(crossed.mean((0, 1)))),
        "overall_low": max(varied.low, least), "overall_high": min(varied.high, 1.0),
        **scores.correlations(*(job for job in jobs if job.start == start)),
    }  # fmt: skip
    row |= {f"sd_{name}": sd for name, sd in varied.sds.items()}
    row |= {f"share_{name}": share for name, share in varied.shares.items()}
    for name, (low, high) in varied.share_ends.items():
        row |= {f"share_{name}_low": low, f"share_{name}_high": high}
    return row


def _differences(
    scores: TuningScores, jobs: Sequence[TuningJob], starts: Sequence[str], others: Sequence[str]
) -> list[Row]:
    """Return a row for each pair of starts, and of a start and a baseline, over seeds, orders and clusters.

    For pairs, the second sentence alone is also compared with the constant answer, the first of the baselines.
    """
    pairs = [(a, b) for i, a in enumerate(starts) for b in starts[i + 1 :]] + [(a, b) for a in starts for b in others]
    rows = []
    for a, b in pairs:
        minus = scores.crossed(jobs, b) if b in starts else scores.numerators(b)[None, None]
        difference = spread(scores.crossed(jobs, a) - minus, scores.denominators)
        # No two accuracies differ by more than 1.
        most = np.inf if scores.numbers else 1.0
        interval = max(difference.low, -most), min(difference.high, most)
        rows.append({"answer": a, "against": b, **estimate_cells("difference", difference.mean, interval, "")})
    if SECOND in others:  # baselines are not tuned: the interval is over clusters alone
        numerators = scores.numerators(SECOND) - scores.numerators(others[0])
        mean = float(numerators.sum() / scores.denominators.sum())
        interval = ratio_interval((numerators, scores.denominators))
        rows.append({"answer": SECOND, "against": others[0], **estimate_cells("difference", mean, interval, "")})
    return rows


def study_output(
    tables: Mapping[str, Sequence[Row]], task: TuningTask, corpora: Mapping[str, Corpus | None],
    config: Mapping[str, Any],
    model: ModelSource, n_sharing: int | None = None,
) -> Measurements:  # fmt: skip
    """Return the output of a run.

    `n_sharing` is the number of test pairs with a sentence that also occurs in training pairs.
    """
    test = task.sides.test
    n_clusters = int((test.clusters(test.tokens_by_sentence()) > 0).sum())
    results = {
        "model": model.name,
        "model_fingerprint": model.fingerprint(),
        "numbers": task.standard is not None,
        "classes": [str(label) for label in task.classes],
        "n_examples": {
            side: getattr(task.sides, side).n_tokens for side in ("train", "validation", "test")
        },
        "intervals_over": {"unit": _unit(task, n_clusters), "n": n_clusters},
        "corpora": {
            option: {
                "name": config[option] or text.name, "fingerprint": text.fingerprint, f"n_{text.unit}":
                len(text.sentences), **text.as_read,
            }
            for option, text in corpora.items()
            if text is not None
        },
        "n_truncated": task.n_truncated,
        **({} if n_sharing is None else {"n_test_pairs_sharing_sentences": n_sharing}),
    }  # fmt: skip
    return Measurements(tables, results, write=lambda folder: [folder / ANSWERS])


def _unit(task: TuningTask, n_clusters: int) -> str:
    """Return the unit of intervals; a group is of pairs that share a sentence."""
    test = task.sides.test
    if task.are_pairs:
        return "group" if test.documents is not None and n_clusters < test.n_tokens else "pair"
    return test.unit if test.documents is None else "document"


def jobs_of(options: FinetuneOptions) -> list[TuningJob]:
    """Return the tunings: every start with every seed and every order, each numbered from `--seed` on."""
    first = options.seed
    numbers = range(first, first + options.seeds), range(first, first + options.orders)
    starts = options.selected("starts")
    return [TuningJob(start, seed, order) for start in starts for seed in numbers[0] for order in numbers[1]]


def carry_out(
    source: ModelSource, text: tuple[Sequence[Corpus], Sequence[Sequence[Split]]], token_task: TokenTask,
    options: FinetuneOptions, recipe: TuningOptions, places: Places, logger: Any, say: Callable[[str], None],
) -> tuple[dict[str, list[Row]], TuningTask]:  # fmt: skip
    """Tune unfinished jobs on the corpora, with sides of sentences; return the rows of every table, and the task."""
    with stage("tokens and labels of the text"):
        task = labelled(source, *text, token_task, options.group_by, options.max_length, say)
    jobs, trainer = jobs_of(options), options.trainer or {}
    curve: list[Row] = []
    for job in jobs:
        if not places.document(job.name).is_file() and places.state(job.name).is_file():
            remark(f"{job.name}: the tuning goes on")
        with stage(f"tuning of {job.name}"):
            curve += tune(job, source, task, recipe, trainer, places, logger)
    with stage("baselines"):  # all processes share their passes
        others = baselines(task, source, options.seed, trainer)
    if not places.writes:
        return {}, task
    answers = {job: read_answers(places, job) for job in jobs}
    of, right = TuningScores(task, {}, {}).of_sentences(), {job.name: answer.right for job, answer in answers.items()}
    TunedAnswers.on(text[0][-1], task.sides.test, task.classes, of, right).write(places.folder)
    return tables_of(jobs, task, answers, others, curve), task
