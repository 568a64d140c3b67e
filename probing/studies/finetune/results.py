"""Scores of all tunings beside their baselines, and what their variance consists of."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.corpus import Corpus
from probing.downstream.sentence_vectors import spearman
from probing.models import ModelSource
from probing.results.schema import without_nan
from probing.runs.call import Measured
from probing.runs.tuned_answers import ANSWERS, TunedAnswers
from probing.statistics.intervals import Spread, accuracy_interval, ratio_interval, spread
from probing.studies.finetune.baselines import Baseline
from probing.studies.finetune.examples import Task
from probing.studies.finetune.figures import write_figures
from probing.studies.finetune.module import Answers
from probing.studies.finetune.tables import SECOND
from probing.studies.finetune.training import Job

Row = dict[str, Any]
Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Scores of trainings and baselines on the same test part, as sums over its clusters.

    Args:
        task: What models were tuned on.
        right: What each tuning or baseline has of each sentence of the test corpus, by its job or name.
        predicted: Of numbers of sentences, what each tuning or baseline that reads the text predicts, by the same.
    """

    task: Task
    right: Mapping[Any, Sums]
    predicted: Mapping[Any, Sums]

    @property
    def numbers(self) -> bool:
        """Whether numbers are predicted."""
        return self.task.standard is not None

    @property
    def denominators(self) -> Sums:
        """What a score is a share of in each cluster: targets, or squared errors of the constant answer."""
        return self._of_clusters(self.of_sentences())

    def of_sentences(self) -> Sums:
        """Return the same of each sentence of the test corpus, 0 without targets, shape (n_sentences,)."""
        examples = self.task.sides.test
        if self.task.standard is None:
            return examples.tokens_by_sentence().astype(np.float64)
        kept = examples.labels >= 0
        squares = self.task.standard.table(examples).numpy()[examples.labels[kept]] ** 2
        sums = np.zeros(examples.store.tokens.n_sentences)
        np.add.at(sums, examples.store.tokens.sentences[kept], squares)
        return sums

    def _of_clusters(self, sums: Sums) -> Sums:
        """Return the sums of clusters that have targets."""
        test = self.task.sides.test
        tested = test.clusters(test.tokens_by_sentence()) > 0
        return np.asarray(test.clusters(sums), dtype=np.float64)[tested]

    def numerators(self, of: Any) -> Sums:
        """Return what a tuning or baseline has of each cluster."""
        return self._of_clusters(self.right[of])

    def score(self, of: Any) -> float:
        """Return the accuracy, or R²."""
        return float(self.numerators(of).sum() / self.denominators.sum())

    def interval(self, numerators: Sums) -> tuple[float, float]:
        """Return the interval of a score over the clusters of the test part alone."""
        if self.numbers:
            return ratio_interval((numerators, self.denominators))
        return accuracy_interval(numerators, self.denominators.astype(np.int64))

    def correlations(self, *of: Any) -> Row:
        """Return the mean correlations of true numbers with those that are predicted; none of classes and of tokens."""
        if not self.numbers or self.task.of != "sentences" or any(one not in self.predicted for one in of):
            return {}
        true = self.task.sides.test.targets
        found = [(pearson(self.predicted[one], true), spearman(self.predicted[one], true)) for one in of]
        of_pearson, of_spearman = np.mean(found, axis=0).tolist()
        return {"pearson": of_pearson, "spearman": of_spearman}

    def crossed(self, jobs: Sequence[Job], start: str) -> Sums:
        """Return the numerators of the tunings of a start, shape (n_seeds, n_orders, n_clusters)."""
        own = [job for job in jobs if job.start == start]
        seeds, orders = sorted({job.seed for job in own}), sorted({job.order for job in own})
        return np.stack([np.stack([self.numerators(Job(start, seed, order)) for order in orders]) for seed in seeds])


def tables_of(
    jobs: Sequence[Job], task: Task, answers: Mapping[Job, Answers], others: Mapping[str, Baseline],
    curve: Sequence[Row],
) -> dict[str, list[Row]]:  # fmt: skip
    """Return the rows of every table by its name.

    Args:
        jobs: The tunings.
        task: What models were tuned on.
        answers: What each tuned model answers on the test part.
        others: What baselines have right, by name.
        curve: Rows of the curves.
    """
    right: dict[Any, Sums] = {job: answers[job].right for job in jobs}
    right |= {name: one.right for name, one in others.items()}
    tested = task.sides.test.sentences()
    predicted: dict[Any, Sums] = {job: answers[job].predicted[tested] for job in jobs}
    predicted |= {name: one.predicted for name, one in others.items() if one.predicted is not None}
    scores = Scores(task, right, predicted)
    starts = list(dict.fromkeys(job.start for job in jobs))
    spreads = {start: spread(scores.crossed(jobs, start), scores.denominators) for start in starts}
    tables: dict[str, list[Row]] = {
        "tunings": [_tuning(scores, job, answers[job], _steps(curve, job)) for job in jobs],
        "scores": [
            *(_of_start(scores, jobs, start, spreads[start]) for start in starts),
            *(_of_baseline(scores, name) for name in others),
        ],
        "differences": [*_differences(scores, jobs, starts, list(others))],
        "tuning_curves": [dict(row) for row in curve],
    }
    return {name: [without_nan(row) for row in rows] for name, rows in tables.items()}


def kept_answers(task: Task, corpus: Corpus, answers: Mapping[Job, Answers]) -> TunedAnswers:
    """Return what each tuning has right of each test sentence, as the run keeps it.

    Args:
        task: What models were tuned on.
        corpus: The test corpus.
        answers: What each tuned model answers on the test part.
    """
    of = Scores(task, {}, {}).of_sentences()
    right = {job.name: one.right for job, one in answers.items()}
    return TunedAnswers.on(corpus, task.sides.test, task.classes, of, right)


def _steps(curve: Sequence[Row], job: Job) -> int:
    """Return the number of steps of a tuning; orders may differ by a few."""
    return max((int(row["step"]) for row in curve if row.items() >= job.row.items()), default=0)


def _tuning(scores: Scores, job: Job, answers: Answers, steps: int) -> Row:
    low, high = scores.interval(scores.numerators(job))
    row: Row = {**job.row, "score": scores.score(job), "score_low": low, "score_high": high, "steps": steps}
    if not scores.numbers:
        row["cross_entropy"] = float(answers.loss.sum()) / int(scores.denominators.sum())
        row["macro_f1"] = macro_f1(answers.confusion)
    return {**row, **scores.correlations(job)}


def pearson(a: Sums, b: Sums) -> float:
    """Return Pearson's correlation; NaN where all values of a side are equal, or one is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(a, b)[0, 1])


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Return the mean F1 over the classes that have targets.

    Args:
        confusion: Number of targets of each class that are taken for each class, shape (n_classes, n_classes).
    """
    right, of, taken = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    there = of > 0
    return float((2 * right[there] / (of[there] + taken[there])).mean())


def _of_start(scores: Scores, jobs: Sequence[Job], start: str, found: Spread) -> Row:
    crossed = scores.crossed(jobs, start)
    low, high = scores.interval(crossed.mean((0, 1)))
    # No accuracy is below 0, and no score above 1.
    least = -np.inf if scores.numbers else 0.0
    return {
        "answer": start, "n_tunings": crossed.shape[0] * crossed.shape[1], "score": found.mean, "score_low": low,
        "score_high": high, "overall_low": max(found.low, least), "overall_high": min(found.high, 1.0),
        **scores.correlations(*(job for job in jobs if job.start == start)),
        **{f"sd_{name}": value for name, value in found.sds.items()},
        **{f"share_{name}": value for name, value in found.shares.items()},
        **{f"share_{name}_{end}": ends[side] for name, ends in found.share_ends.items()
           for side, end in enumerate(("low", "high"))},
    }  # fmt: skip


def _of_baseline(scores: Scores, name: str) -> Row:
    low, high = scores.interval(scores.numerators(name))
    return {
        "answer": name, "score": scores.score(name), "score_low": low, "score_high": high, **scores.correlations(name)
    }  # fmt: skip


def _differences(scores: Scores, jobs: Sequence[Job], starts: Sequence[str], others: Sequence[str]) -> list[Row]:
    """Return a row for each pair of starts, and of a start and a baseline, over seeds, orders and clusters.

    Of pairs, the second sentence alone is also compared with the constant answer, the first of the baselines.
    """
    pairs = [(a, b) for i, a in enumerate(starts) for b in starts[i + 1 :]] + [(a, b) for a in starts for b in others]
    rows = []
    for a, b in pairs:
        minus = scores.crossed(jobs, b) if b in starts else scores.numerators(b)[None, None]
        found = spread(scores.crossed(jobs, a) - minus, scores.denominators)
        # No two accuracies differ by more than 1.
        most = np.inf if scores.numbers else 1.0
        low, high = max(found.low, -most), min(found.high, most)
        rows.append({"answer": a, "against": b, "difference": found.mean, "low": low, "high": high})
    if SECOND in others:
        rows.append(_difference_of_baselines(scores, SECOND, others[0]))
    return rows


def _difference_of_baselines(scores: Scores, a: str, b: str) -> Row:
    """Return the difference of two baselines, which are not tuned: its interval is over clusters alone."""
    numerators = scores.numerators(a) - scores.numerators(b)
    low, high = ratio_interval((numerators, scores.denominators))
    difference = float(numerators.sum() / scores.denominators.sum())
    return {"answer": a, "against": b, "difference": difference, "low": low, "high": high}


def measured(
    tables: Mapping[str, Sequence[Row]], task: Task, corpora: Mapping[str, Corpus | None], config: Mapping[str, Any],
    model: ModelSource, n_sharing: int | None = None,
) -> Measured:  # fmt: skip
    """Return what is written of a run; what only a continued run needs is removed then.

    Args:
        tables: Rows by the name of their table.
        task: What models were tuned on.
        corpora: The texts by the option that names them.
        config: The resolved options.
        model: The model.
        n_sharing: Of pairs, number of test pairs with a sentence that training pairs have, too.
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

    def write(folder: Path) -> list[Path]:
        shutil.rmtree(folder / "state", ignore_errors=True)
        return [folder / ANSWERS] + [
            path
            for option, text in corpora.items()
            if text is not None and str(config[option]).endswith(f"{folder.stem}/{option}.txt")
            for path in [_kept(folder / f"{option}.txt", text)]
        ]

    def draw(folder: Path, formats: Sequence[str]) -> list[Path]:
        folder.mkdir(exist_ok=True)
        return write_figures(folder, tables, model.short_name, task.standard is not None, formats)

    return Measured(tables, results, draw=draw, write=write, is_timed=False)


def _unit(task: Task, n_clusters: int) -> str:
    """Return what intervals are over; a group is of pairs that share a sentence."""
    test = task.sides.test
    if task.are_pairs:
        return "group" if test.documents is not None and n_clusters < test.n_tokens else "pair"
    return test.unit if test.documents is None else "document"


def _kept(path: Path, text: Corpus) -> Path:
    """Write sentences that were given as a list."""
    path.write_text("".join(f"{sentence}\n" for sentence in text.sentences), encoding="utf-8")
    return path
