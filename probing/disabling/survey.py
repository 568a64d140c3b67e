"""Measures what a model loses without its heads and layers: probes, passes that go on where they stopped, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.cache import ActivationStore, job_lock
from probing.cache.passes import PassStore
from probing.cache.plan import fingerprint
from probing.cache.store import leftovers, remove
from probing.corpus import Split
from probing.disabling.effects import Measured, Rows, better_without_rows, effect_rows, measured_of
from probing.disabling.importance import importance, importance_rows
from probing.disabling.passes import Passes
from probing.disabling.retraining import Labelled, chosen_units, retrained
from probing.disabling.store import PROBES, fingerprint_of, run_unfinished
from probing.disabling.subject import Subject
from probing.disabling.units import Job, Kind, UnitType, all_jobs, wanted
from probing.errors import UserError
from probing.probes.recipe import Progress
from probing.readouts.positions import Positions, Probes
from probing.readouts.readout import ReadableText, Readout
from probing.readouts.text import Text, draw_text
from probing.tables.readout_names import POSITION, RETRAINED
from probing.tasks import Labels

# Increased whenever the meaning of what is stored changes.
FORMAT = 1


@dataclass(frozen=True)
class Asked:
    """What is asked.

    Args:
        units: Whether heads, layers or both are disabled.
        kinds: What stands in their place.
        blocks: The blocks that are changed.
        n_tokens: Most tokens of the text that is read.
        n_retrained: Number of the strongest heads and layers, and of random ones, whose probes are trained again.
        seed: Seed of every random draw.
    """

    units: Sequence[UnitType]
    kinds: Sequence[Kind]
    blocks: Sequence[int]
    n_tokens: int
    n_retrained: int
    seed: int


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        disabled: Rows of `disabled.csv`.
        better_without: Rows of `better_without.csv`.
        importance: Rows of `importance.csv`; empty if no heads are disabled.
        n_heads: Number of heads of a block.
        text: The sentences that were read.
        intact: What each readout gives while nothing is disabled, by its name and by layer.
        n_examples: Number of examples of each readout, by its name.
    """

    disabled: Rows
    better_without: Rows
    importance: Rows
    n_heads: int
    text: Text
    intact: Mapping[str, Mapping[int, float]]
    n_examples: Mapping[str, int]

    @property
    def tables(self) -> dict[str, Rows]:
        """The rows by the name of their table."""
        named = {"disabled": self.disabled, "better_without": self.better_without, "importance": self.importance}
        return {name: rows for name, rows in named.items() if rows or name != "importance"}


def survey(subject: Subject, stores: Sequence[ActivationStore], asked: Asked, progress: Progress) -> Found:
    """Disable one unit after the other, and read the later layers.

    Args:
        subject: Model and corpora.
        stores: The activations of each corpus.
        asked: What is asked.
        progress: Returns Lightning callbacks that show the training of probes.

    Raises:
        UserError: If the cache cannot be written.
    """
    text = draw_text(stores[-1], _is(subject.splits[-1], "test"), asked.n_tokens, asked.seed)
    train = draw_text(stores[0], _is(subject.splits[0], "train"), asked.n_tokens, asked.seed)
    work = _Work(subject, stores, asked, text, train, progress)
    parts = [work.positions()] if POSITION in subject.wanted else []
    parts += [work.other(readout) for readout in subject.other_readouts(text, asked.seed)]
    measured = [one for part in parts for one in part.measured]
    frozen = [one for one in measured if one.readout != RETRAINED]
    return Found(
        effect_rows(measured), better_without_rows(frozen, asked.seed), [row for part in parts for row in part.rows],
        subject.model.heads.n_heads, text, {part.readout.name: _intact(part) for part in parts},
        {part.readout.name: int(part.readout.n.sum()) for part in parts},
    )  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """What was found by one readout.

    Args:
        readout: The readout.
        measured: What its passes gave.
        rows: Rows of `importance.csv`.
    """

    readout: Readout
    measured: Sequence[Measured]
    rows: Rows


@dataclass(frozen=True, eq=False)
class _Work:
    """The passes for all readouts.

    Args:
        subject: Model and corpora.
        stores: The activations of each corpus.
        asked: What is asked.
        text: Test sentences.
        train: Training sentences.
        progress: Returns Lightning callbacks that show the training of probes.
    """

    subject: Subject
    stores: Sequence[ActivationStore]
    asked: Asked
    text: Text
    train: Text
    progress: Progress

    @cached_property
    def jobs(self) -> list[Job]:
        """Every pass that there can be; the file of each has the index of the job and one."""
        heads = self.subject.model.heads
        return all_jobs(heads.n_layers, heads.n_heads)

    @cached_property
    def passes(self) -> Passes:
        """Passes over the test sentences."""
        return self._passes_over(self.text)

    def _passes_over(self, text: ReadableText) -> Passes:
        return Passes(self.subject.readers, text, self.train, self.stores[-1].plan.batch_tokens, self.asked.seed)

    def positions(self) -> _Part:
        """Read positions by probes, as they are and trained again."""
        asked = self.asked
        with self._store(POSITION, self.subject.key_of_positions()) as store:
            probes, classes = self._probes(store)
            readout = Positions(self.text, probes, self.subject.readers.device)
            results = self._run(store, readout, lambda: self.passes)
            layers = {block: probes.layers(block) for block in asked.blocks}
            measured = measured_of(results, layers, readout.n, POSITION)
            if asked.n_retrained:
                last = {one.job: one.effect() for one in measured if one.layer == max(probes.weight)}
                strongest = chosen_units(list(results), last, asked.n_retrained, asked.seed)
                repeated = self._retrained(store, results, strongest, probes, classes)
                measured += measured_of(repeated, layers, readout.n, RETRAINED)
            return _Part(readout, measured, self._importance(store, readout))

    def other(self, readout: Readout) -> _Part:
        """Read something else than positions."""
        with self._store(readout.name, {"content": fingerprint_of(*readout.content)}) as store:
            results = self._run(store, readout, cache(lambda: self._passes_over(readout.text)))
            layers = {block: readout.layers(block) for block in self.asked.blocks}
            measured = measured_of(results, layers, readout.n, readout.name)
            return _Part(readout, measured, self._importance(store, readout))

    @contextmanager
    def _store(self, readout: str, own: Mapping[str, Any]) -> Iterator[PassStore]:
        """Open the store of the passes of a readout, which other jobs then wait for."""
        source, first = self.subject.source, self.stores[-1]
        key = _key(self.subject, self.stores, self.asked, readout, own)
        folder = source.cache / f"{source.model.short_name}-{fingerprint(key)[:16]}"
        with job_lock(source.cache, folder.name, source.say):
            for path in leftovers(folder):
                remove(path)
            described = {name: first.header[name] for name in ("model", "revision", "corpus", "versions")}
            n_passes, tokens = 2 * len(self.jobs) + 1, self.text.tokens
            store = PassStore.opened(folder, key, tokens, n_passes, first.plan.batch_tokens, described)
            yield store
            store.touch()

    def _run(self, store: PassStore, readout: Readout, passes: Callable[[], Passes]) -> dict[Job, Any]:
        """Return what each pass that is asked for gave."""
        asked = self.asked
        chosen = {i + 1: job for i, job in enumerate(self.jobs) if wanted(job, asked.units, asked.kinds, asked.blocks)}
        what = "heads and layers" if readout.name == POSITION else f"heads and layers, {readout.name}"
        return run_unfinished(
            chosen, store, lambda job: passes().run(job, readout), what, self.subject.source.shows_progress
        )

    def _probes(self, store: PassStore) -> tuple[Probes, Labels]:
        """Return the later layers' probes, trained unless they are stored or come from another run; and classes."""
        subject = self.subject
        if subject.frozen is not None:
            weight, classes = dict(subject.frozen.weight), subject.frozen.classes
        else:
            if store.unfinished([PROBES]):
                store.put(PROBES, subject.train(self.stores, self.progress))
            found = store.get(PROBES)
            weight = dict(zip(range(1, len(found["weight"]) + 1), found["weight"], strict=True))
            classes = found["classes"].numpy()
        labels = subject.labels(self.stores, -1, classes, "test")
        return Probes(weight, torch.from_numpy(labels[self.text.of_corpus].astype(np.int64))), classes

    def _retrained(
        self, store: PassStore, results: Mapping[Job, Any], strongest: Sequence[Job], probes: Probes, classes: Labels
    ) -> dict[Job, Any]:
        """Return what probes give that are trained again while a unit is disabled."""
        passes_of_train = cache(lambda: self._passes_over(self.train))

        def again(job: Job) -> Tensor:
            of_train = self.subject.labels(self.stores, 0, classes, "train")[self.train.of_corpus]
            of_text = probes.labels.numpy().astype(np.int32)
            parts = Labelled(passes_of_train(), of_train), Labelled(self.passes, of_text)
            return retrained(*parts, classes, job, self.subject.training(self.progress), probes.layers(job.block))

        blocks = {job.block for job in strongest}
        jobs_again = [job for job in results if job in strongest or (job.kind is None and job.block in blocks)]
        files = {len(self.jobs) + 1 + self.jobs.index(job): job for job in jobs_again}
        return run_unfinished(files, store, again, "retrained", self.subject.source.shows_progress)

    def _importance(self, store: PassStore, readout: Readout) -> Rows:
        """Return the rows of `importance.csv`, whose gradients are stored as the last file."""
        if "heads" not in self.asked.units:
            return []
        last, subject = store.plan.n_layers, self.subject
        if store.unfinished([last]):
            found = importance(subject.readers.model, subject.pad_token_id, readout, store.plan.batch_tokens)
            store.put(last, {"importance": found})
        by_item = store.get(last)["importance"].abs().numpy()
        layer = max(readout.layers(1))
        return importance_rows(by_item, readout.n, self.asked.blocks, layer, readout.name)


def _key(
    subject: Subject, stores: Sequence[ActivationStore], asked: Asked, readout: str, own: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Return everything that changes the results of a pass; units and kinds are not part of the key."""
    of_passes = {
        "format": FORMAT,
        "readout": readout,
        "train": dict(stores[0].plan.key),
        "split_seed": subject.split_seed,
        **own,
        "trainer": {name: str(value) for name, value in subject.source.trainer.items()},
        "n_tokens": asked.n_tokens,
        "seed": asked.seed,
    }
    return {**stores[-1].plan.key, "disabling": of_passes}


def _is(splits: Sequence[Split], side: Split) -> Any:
    return np.array([split == side for split in splits], dtype=bool)


def _intact(part: _Part) -> dict[int, float]:
    """Return what a readout gives while nothing is disabled, by layer."""
    found = {one.layer: float(one.intact.sum() / one.n.sum()) for one in part.measured if one.readout != RETRAINED}
    return dict(sorted(found.items()))


def check(units: Sequence[UnitType], kinds: Sequence[Kind]) -> None:
    """Refuse a choice under which nothing is disabled.

    Raises:
        UserError: If heads are to be skipped.
    """
    if list(units) == ["heads"] and list(kinds) == ["skip"]:
        raise UserError("`--kinds skip` takes whole layers out; give `--units layers`, or other kinds for heads.")
