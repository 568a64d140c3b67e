"""Measures what a model loses without its heads and layers: probes, passes that go on where they stopped, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.cache import ActivationStore
from probing.cache.store import PassStore
from probing.corpus.splits import Split
from probing.disabling.probed_task import (
    Job,
    Kind,
    Labelled,
    Passes,
    ProbedTask,
    UnitType,
    all_jobs,
    chosen_units,
    fingerprint_of,
    opened,
    retrained,
    run_unfinished,
    wanted,
)
from probing.disabling.subject import (
    Measured,
    Rows,
    Subject,
    better_without_rows,
    effect_rows,
    measured_of,
    raising_rows,
)
from probing.errors import UserError
from probing.readouts.forward import ReadableText, Readout, Text, draw_text
from probing.readouts.frozen_probes import ProbeReadout, Probes
from probing.readouts.names import POSITION, RETRAINED, TUNED
from probing.runtime.progress import stage
from probing.studies.disable.importance import importance, importance_rows
from probing.studies.disable.pruning import Cumulative, n_files
from probing.studies.disable.quantised import Quantised
from probing.studies.disable.weights import N_FILES, WeightPruning
from probing.tasks import Labels

# Increased whenever the meaning of what is stored changes.
FORMAT = 2


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
        prune: Whether units are also disabled cumulatively.
        prune_share: Share of them that is added at each step.
        prune_weights: Whether weights are pruned, too.
        bits: Numbers of bits that the model is rounded to.
    """

    units: Sequence[UnitType]
    kinds: Sequence[Kind]
    blocks: Sequence[int]
    n_tokens: int
    n_retrained: int
    seed: int
    prune: bool = False
    prune_share: float = 0.1
    prune_weights: bool = False
    bits: Sequence[int] = ()

    @property
    def prune_kind(self) -> Kind:
        """The replacement of what is disabled cumulatively: zeros, as published, or the mean."""
        return "zero" if "zero" in self.kinds else "mean"


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        disabled: Rows of `disabled.csv`.
        better_without: Rows of `better_without.csv`.
        raising: Rows of `raising.csv`.
        importance: Rows of `importance.csv`; empty if no heads are disabled.
        pruning: Rows of `pruning.csv`; empty if nothing is disabled cumulatively.
        pruning_areas: Rows of `pruning_areas.csv`.
        weight_pruning: Rows of `weight_pruning.csv`; empty if no weights are pruned.
        quantised: Rows of `quantised.csv`; empty if nothing is rounded.
        n_heads: Number of heads of a block.
        text: The sentences that were read.
        intact: What each readout gives while nothing is disabled, by its name and by layer.
        n_examples: Number of examples of each readout, by its name.
    """

    disabled: Rows
    better_without: Rows
    raising: Rows
    importance: Rows
    pruning: Rows
    pruning_areas: Rows
    weight_pruning: Rows
    quantised: Rows
    n_heads: int
    text: Text
    intact: Mapping[str, Mapping[int, float]]
    n_examples: Mapping[str, int]

    @property
    def tables(self) -> dict[str, Rows]:
        """The rows by the name of their table."""
        always = {"disabled": self.disabled, "better_without": self.better_without, "raising": self.raising}
        others = {
            "importance": self.importance, "pruning": self.pruning, "pruning_areas": self.pruning_areas,
            "weight_pruning": self.weight_pruning, "quantised": self.quantised,
        }  # fmt: skip
        return always | {name: rows for name, rows in others.items() if rows}


def survey(subject: Subject, stores: Sequence[ActivationStore], asked: Asked) -> Found:
    """Disable one unit after the other, and read the later layers.

    Args:
        subject: Model and corpora.
        stores: The activations of each corpus.
        asked: What is asked.

    Raises:
        UserError: If the cache cannot be written.
    """
    text = draw_text(stores[-1], _is(subject.splits[-1], "test"), asked.n_tokens, asked.seed, subject.n_types)
    train = draw_text(stores[0], _is(subject.splits[0], "train"), asked.n_tokens, asked.seed, subject.n_types)
    work = _Work(subject, stores, asked, text, train)
    parts: list[_Part] = []
    if POSITION in subject.wanted:
        with stage(f"positions read without {' and '.join(asked.units)}"):
            parts.append(work.with_weights(work.positions()))
    if others(subject):
        named = ["the task" if name == TUNED else name for name in others(subject)]
        with stage(f"{' and '.join(named)} read without {' and '.join(asked.units)}"):
            readouts = subject.other_readouts(text, asked.n_tokens, asked.seed, stores)
            parts += [work.with_weights(work.other(readout)) for readout in readouts]
    measured = [one for part in parts for one in part.measured]
    frozen = [one for one in measured if one.readout != RETRAINED]
    return Found(
        effect_rows(measured), better_without_rows(frozen, asked.seed), raising_rows(frozen, asked.seed),
        [row for part in parts for row in part.rows],
        [row for part in parts for row in part.pruning], [row for part in parts for row in part.areas],
        [row for part in parts for row in part.weights], [row for part in parts for row in part.quantised],
        subject.model.heads.n_heads, text, {part.readout.name: _intact(part) for part in parts},
        {part.readout.name: int(part.readout.n.sum()) for part in parts},
    )  # fmt: skip


def others(subject: Subject) -> list[str]:
    """Return the names of what is read beside positions."""
    return [name for name in subject.wanted if name != POSITION]


@dataclass(frozen=True)
class _Part:
    """What was found by one readout.

    Args:
        readout: The readout.
        measured: What its passes gave.
        rows: Rows of `importance.csv`.
        pruning: Rows of `pruning.csv`.
        areas: Rows of `pruning_areas.csv`.
        weights: Rows of `weight_pruning.csv`.
        quantised: Rows of `quantised.csv`.
    """

    readout: Readout
    measured: Sequence[Measured]
    rows: Rows
    pruning: Rows
    areas: Rows
    weights: Rows = field(default_factory=list)
    quantised: Rows = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Work:
    """The passes for all readouts.

    Args:
        subject: Model and corpora.
        stores: The activations of each corpus.
        asked: What is asked.
        text: Test sentences.
        train: Training sentences.
    """

    subject: Subject
    stores: Sequence[ActivationStore]
    asked: Asked
    text: Text
    train: Text

    @cached_property
    def jobs(self) -> list[Job]:
        """All possible passes; the index of a pass's file is the index of its job plus 1."""
        heads = self.subject.model.heads
        return all_jobs(heads.n_layers, heads.n_heads)

    @cached_property
    def probed(self) -> ProbedTask:
        """Positions, and the probes that read them."""
        return self.subject.probed(POSITION)

    @cached_property
    def passes(self) -> Passes:
        """Passes over the test sentences."""
        return self._passes_over(self.text)

    def _passes_over(self, text: ReadableText) -> Passes:
        return Passes(self.subject.readers, text, self.train, self.stores[-1].plan.batch_tokens, self.asked.seed)

    def positions(self) -> _Part:
        """Read positions by frozen and by retrained probes."""
        asked = self.asked
        with self._store(POSITION, self.probed.key(self.stores)) as store:
            probes, classes = self._probes(store)
            readout = ProbeReadout(self.text, probes, self.subject.readers.device)
            results = self._run(store, readout, lambda: self.passes)
            layers = {block: probes.layers(block) for block in asked.blocks}
            measured = measured_of(results, layers, readout.n, POSITION)
            if asked.n_retrained:
                last = {one.job: one.effect() for one in measured if one.layer == max(probes.weight)}
                strongest = chosen_units(list(results), last, asked.n_retrained, asked.seed)
                repeated = self._retrained(store, results, strongest, probes, classes)
                measured += measured_of(repeated, layers, readout.n, RETRAINED)
            rows = self._importance(store, readout)
        labels = self.probed.labels(self.stores, 0, classes, "train")[self.train.of_corpus]
        of_train = Probes(probes.weight, torch.from_numpy(labels.astype(np.int64)))
        chosen_on = ProbeReadout(self.train, of_train, self.subject.readers.device)
        return _Part(readout, measured, rows, *self._pruned(chosen_on, readout))

    def other(self, readout: Readout) -> _Part:
        """Read something else than positions."""
        with self._store(readout.name, {"content": fingerprint_of(*readout.content)}) as store:
            results = self._run(store, readout, cache(lambda: self._passes_over(readout.text)))
            layers = {block: readout.layers(block) for block in self.asked.blocks}
            measured = measured_of(results, layers, readout.n, readout.name)
            rows = self._importance(store, readout)
        if not self.asked.prune:
            return _Part(readout, measured, rows, [], [])
        sides = self.subject.pruning_sides(readout, self.train, self.asked.n_tokens, self.asked.seed)
        return _Part(readout, measured, rows, *self._pruned(*sides))

    def with_weights(self, part: _Part) -> _Part:
        """Return a part with the rows of pruned weights and of rounded numbers, if these are asked for."""
        asked, readout, readers = self.asked, part.readout, self.subject.readers
        batch_tokens = self.stores[-1].plan.batch_tokens
        own = {"blocks": list(asked.blocks), "content": fingerprint_of(*readout.content)}
        if asked.prune_weights:
            pruning = WeightPruning(readers, asked.blocks, asked.seed, batch_tokens)
            with self._store(readout.name, {"pruned": "weights", **own}, N_FILES) as store:
                part = replace(part, weights=pruning.rows(readout, store))
        if asked.bits:
            rounding = Quantised(readers, self.train, asked.blocks, asked.bits, asked.seed, batch_tokens)
            with self._store(readout.name, {"bits": list(asked.bits), **own}, rounding.n_files) as store:
                part = replace(part, quantised=rounding.rows(readout, store))
        return part

    def _pruned(self, chosen_on: Readout, reported_on: Readout) -> tuple[Rows, Rows]:
        """Return the rows of `pruning.csv` and of `pruning_areas.csv`.

        Args:
            chosen_on: The readout whose losses decide on the order.
            reported_on: The readout that is reported.
        """
        asked, rows, areas = self.asked, list[Any](), list[Any]()
        for units in asked.units if asked.prune else ():
            own = {"pruned": units, "kind": asked.prune_kind, "share": asked.prune_share, "blocks": list(asked.blocks)}
            content = [fingerprint_of(*readout.content) for readout in (chosen_on, reported_on)]
            how = Cumulative(
                self.subject.readers, units, asked.prune_kind, self._stands, asked.blocks, asked.prune_share,
                asked.seed, self.stores[-1].plan.batch_tokens,
            )  # fmt: skip
            n_units = len(asked.blocks) * (self.subject.model.heads.n_heads if units == "heads" else 1)
            if n_units < 2:  # there is but one order
                continue
            n_passes = n_files(n_units, asked.prune_share)
            with self._store(reported_on.name, own | {"content": content}, n_passes) as store:
                made = how.rows(chosen_on, reported_on, store)
            rows, areas = [*rows, *made[0]], [*areas, *made[1]]
        return rows, areas

    @cached_property
    def _stands(self) -> Tensor:
        """What stands in the place of the outputs of all heads together, shape (n_layers, width)."""
        model = self.subject.readers.model
        stands = torch.zeros(model.heads.n_layers, model.width, device=self.subject.readers.device)
        if self.asked.prune_kind == "mean":
            for block in self.asked.blocks:
                stands[block - 1] = self.passes.replacements(block).mean
        return stands

    @contextmanager
    def _store(self, readout: str, own: Mapping[str, Any], n_passes: int | None = None) -> Iterator[PassStore]:
        """Open the store of the passes of a readout, which other jobs then wait for."""
        key = _key(self.subject, self.stores, self.asked, readout, own)
        n_passes = n_passes or 2 * len(self.jobs) + 1
        with opened(self.subject.source, key, self.stores[-1], self.text.tokens, n_passes) as store:
            yield store

    def _run(self, store: PassStore, readout: Readout, passes: Callable[[], Passes]) -> dict[Job, Any]:
        """Return what each pass that is asked for gave."""
        asked = self.asked
        chosen = {i + 1: job for i, job in enumerate(self.jobs) if wanted(job, asked.units, asked.kinds, asked.blocks)}
        what = "heads and layers" if readout.name == POSITION else f"heads and layers, {readout.name}"
        return run_unfinished(chosen, store, lambda job: passes().run(job, readout), what)

    def _probes(self, store: PassStore) -> tuple[Probes, Labels]:
        """Return the later layers' probes of the test sentences, and their classes."""
        weight, classes = self.probed.probes(self.stores, store)
        labels = self.probed.labels(self.stores, -1, classes, "test")
        return Probes(weight, torch.from_numpy(labels[self.text.of_corpus].astype(np.int64))), classes

    def _retrained(
        self, store: PassStore, results: Mapping[Job, Any], strongest: Sequence[Job], probes: Probes, classes: Labels
    ) -> dict[Job, Any]:
        """Return the results of probes that are retrained while a unit is disabled."""
        passes_of_train = cache(lambda: self._passes_over(self.train))

        def again(job: Job) -> Tensor:
            of_train = self.probed.labels(self.stores, 0, classes, "train")[self.train.of_corpus]
            of_text = probes.labels.numpy().astype(np.int32)
            parts = Labelled(passes_of_train(), of_train), Labelled(self.passes, of_text)
            return retrained(*parts, classes, job, self.probed.training(), probes.layers(job.block))

        blocks = {job.block for job in strongest}
        jobs_again = [job for job in results if job in strongest or (job.kind is None and job.block in blocks)]
        files = {len(self.jobs) + 1 + self.jobs.index(job): job for job in jobs_again}
        return run_unfinished(files, store, again, "retrained")

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


def check(units: Sequence[UnitType], kinds: Sequence[Kind], prune: bool) -> None:
    """Refuse a choice under which nothing is disabled.

    Raises:
        UserError: If heads alone are to be skipped, or if units are to be disabled cumulatively and neither zero nor
            mean is among the kinds.
    """
    if prune and not {"zero", "mean"} & {*kinds}:
        raise UserError(
            f"`--prune` disables heads together by zero or mean, and `--kinds` has {', '.join(kinds)}; add one of them."
        )
    if list(units) == ["heads"] and list(kinds) == ["skip"]:
        raise UserError("`--kinds skip` takes whole layers out; give `--units layers`, or other kinds for heads.")
