"""Scores of all tunings beside their baselines, and what their variance consists of."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cli.options import ProbeOptions
from probing.corpus import Corpus
from probing.data.controls import token_identity
from probing.data.examples import Sides
from probing.models import ModelSource, load_encoder
from probing.probes.intercept import centred
from probing.results.shown import without_nan
from probing.runs.call import Measured
from probing.runs.measuring import Asked, measure
from probing.runtime.machine import Stopwatch
from probing.runtime.terminal import silence
from probing.statistics.intervals import accuracy_interval, ratio_interval
from probing.statistics.tuning_variance import Spread, spread
from probing.studies.finetune.examples import Task
from probing.studies.finetune.figures import write_figures
from probing.studies.finetune.module import Answers
from probing.studies.finetune.tables import BAG, CONSTANT, MAJORITY
from probing.studies.finetune.training import Job

Row = dict[str, Any]
# Arguments of Lightning's Trainer that say which processes there are.
_OF_PROCESSES = ("accelerator", "devices", "num_nodes", "strategy")
Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Scores of trainings and baselines on the same test part, as sums over its clusters.

    Args:
        task: What models were tuned on.
        right: What each tuning or baseline has of each sentence of the test corpus, by its job or name.
    """

    task: Task
    right: Mapping[Any, Sums]

    @property
    def numbers(self) -> bool:
        """Whether numbers are predicted."""
        return self.task.standard is not None

    @property
    def denominators(self) -> Sums:
        """What a score is a share of in each cluster: targets, or squared errors of the constant answer."""
        return self._of_clusters(self._each())

    def _each(self) -> Sums:
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

    def crossed(self, jobs: Sequence[Job], start: str) -> Sums:
        """Return the numerators of the tunings of a start, shape (n_seeds, n_orders, n_clusters)."""
        own = [job for job in jobs if job.start == start]
        seeds, orders = sorted({job.seed for job in own}), sorted({job.order for job in own})
        return np.stack([np.stack([self.numerators(Job(start, seed, order)) for order in orders]) for seed in seeds])


def baselines(task: Task, source: ModelSource, seed: int, trainer: Mapping[str, Any]) -> dict[str, Sums]:
    """Return what is right without a tuned model, by sentence: the constant answer, and a bag of static vectors.

    The bag is a linear probe with an intercept of the model's own input embeddings: of the token, or of their mean over
    the sentence.

    Args:
        task: What models are tuned on.
        source: The model.
        seed: Seed of the probe's draws.
        trainer: Arguments of Lightning's Trainer.
    """
    test = task.sides.test
    n_sentences = test.store.tokens.n_sentences
    constant = np.zeros(n_sentences)
    if task.standard is None:
        most = int(task.sides.train.counts(len(task.classes)).argmax())
        np.add.at(constant, test.store.tokens.sentences[test.labels == most], 1.0)
    bag = token_identity(task.sides, load_encoder(source))
    return {MAJORITY if task.standard is None else CONSTANT: constant, BAG: _of_probe(bag, seed, trainer)}


def _of_probe(sides: Sides, seed: int, trainer: Mapping[str, Any]) -> Sums:
    """Return what a linear probe with an intercept has right of each test sentence."""
    # Without validation examples, no penalty can be chosen.
    probe = ProbeOptions(bias=True) if sides.validation.n_tokens else ProbeOptions(bias=True, l2=1e-4)
    own = {name: value for name, value in trainer.items() if name in _OF_PROCESSES}
    centred_sides, _, _ = centred(sides, {}, [0])
    asked = Asked(0, False, False, "none", seed)
    found = measure(centred_sides, {}, [0], probe, asked, own, Stopwatch(), silence, None, None)
    (fit,) = found.fits
    if sides.numbers:
        return np.asarray(fit.deviations - fit.errors)  # type: ignore[union-attr]
    return fit.correct_by_sentence.astype(np.float64)  # type: ignore[union-attr]


def tables_of(
    jobs: Sequence[Job], task: Task, answers: Mapping[Job, Answers], others: Mapping[str, Sums], curve: Sequence[Row],
) -> dict[str, list[Row]]:  # fmt: skip
    """Return the rows of every table by its name.

    Args:
        jobs: The tunings.
        task: What models were tuned on.
        answers: What each tuned model answers on the test part.
        others: What baselines have right of each test sentence, by name.
        curve: Rows of the curves.
    """
    scores = Scores(task, {**{job: answers[job].right for job in jobs}, **others})
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


def _steps(curve: Sequence[Row], job: Job) -> int:
    """Return the number of steps of a tuning; orders may differ by a few."""
    return max((int(row["step"]) for row in curve if row.items() >= job.row.items()), default=0)


def _tuning(scores: Scores, job: Job, answers: Answers, steps: int) -> Row:
    low, high = scores.interval(scores.numerators(job))
    row: Row = {**job.row, "score": scores.score(job), "score_low": low, "score_high": high, "steps": steps}
    if not scores.numbers:
        row["cross_entropy"] = float(answers.loss.sum()) / int(scores.denominators.sum())
        row["macro_f1"] = macro_f1(answers.confusion)
    return row


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
        **{f"sd_{name}": value for name, value in found.sds.items()},
        **{f"share_{name}": value for name, value in found.shares.items()},
    }  # fmt: skip


def _of_baseline(scores: Scores, name: str) -> Row:
    low, high = scores.interval(scores.numerators(name))
    return {"answer": name, "score": scores.score(name), "score_low": low, "score_high": high}


def _differences(scores: Scores, jobs: Sequence[Job], starts: Sequence[str], others: Sequence[str]) -> list[Row]:
    """Return a row for each pair of starts, and of a start and a baseline, over seeds, orders and clusters."""
    pairs = [(a, b) for i, a in enumerate(starts) for b in starts[i + 1 :]] + [(a, b) for a in starts for b in others]
    rows = []
    for a, b in pairs:
        minus = scores.crossed(jobs, b) if b in starts else scores.numerators(b)[None, None]
        found = spread(scores.crossed(jobs, a) - minus, scores.denominators)
        rows.append({"answer": a, "against": b, "difference": found.mean, "low": found.low, "high": found.high})
    return rows


def measured(
    tables: Mapping[str, Sequence[Row]], task: Task, corpora: Mapping[str, Corpus | None], config: Mapping[str, Any],
    model: ModelSource,
) -> Measured:  # fmt: skip
    """Return what is written of a run; what only a continued run needs is removed then.

    Args:
        tables: Rows by the name of their table.
        task: What models were tuned on.
        corpora: The texts by the option that names them.
        config: The resolved options.
        model: The model.
    """
    test = task.sides.test
    n_clusters = int((test.clusters(test.tokens_by_sentence()) > 0).sum())
    results = {
        "model": model.name,
        "numbers": task.standard is not None,
        "classes": [str(label) for label in task.classes],
        "n_examples": {
            side: getattr(task.sides, side).n_tokens for side in ("train", "validation", "test")
        },
        "intervals_over": {"unit": test.unit if test.documents is None else "document", "n": n_clusters},
        "corpora": {
            option: {"name": config[option], "fingerprint": text.fingerprint, "n_sentences": len(text.sentences)}
            for option, text in corpora.items()
            if text is not None
        },
        "n_truncated": task.n_truncated,
    }  # fmt: skip

    def write(folder: Path) -> list[Path]:
        shutil.rmtree(folder / "state", ignore_errors=True)
        return [
            path
            for option, text in corpora.items()
            if text is not None and str(config[option]).endswith(f"{folder.stem}/{option}.txt")
            for path in [_kept(folder / f"{option}.txt", text)]
        ]

    def draw(folder: Path, formats: Sequence[str]) -> list[Path]:
        folder.mkdir(exist_ok=True)
        return write_figures(folder, tables, model.short_name, task.standard is not None, formats)

    return Measured(tables, results, draw=draw, write=write, is_timed=False)


def _kept(path: Path, text: Corpus) -> Path:
    """Write sentences that were given as a list."""
    path.write_text("".join(f"{sentence}\n" for sentence in text.sentences), encoding="utf-8")
    return path
