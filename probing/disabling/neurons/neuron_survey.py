"""Measures what later layers lose when sets of neurons are changed; a killed run continues with the next set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.cache.passes import PassStore
from probing.disabling.neurons.neuron_effects import DRAWN, Line, Rows, effect_rows
from probing.disabling.neurons.neuron_sets import Kind, NeuronSet, chosen_sets, drawn_sets
from probing.disabling.neurons.stream import Place, Values
from probing.disabling.neurons.stream_passes import NeuronPasses
from probing.disabling.retraining import Labelled, retrained
from probing.disabling.store import fingerprint_of, opened, run_unfinished
from probing.disabling.subject import Subject
from probing.errors import UserError, as_clause
from probing.models.query_key import find_query_keys
from probing.probes.recipe import Progress
from probing.readouts.position_heads import PositionHead, PositionHeads, find_position_heads
from probing.readouts.positions import Positions, Probes
from probing.readouts.readout import ReadableText, Readout
from probing.readouts.text import Text, draw_text
from probing.tables.readout_names import POSITION, RETRAINED
from probing.tasks import Labels

# Increased whenever the meaning of what is stored changes.
FORMAT = 1
# Most tokens of the test sentences that drawn sets are read on: there are many of them, and their effects, unlike those
# of the neurons that were asked for, need no intervals.
DRAWN_TOKENS = 5_000
# Most tokens of the training sentences by which position heads are chosen.
HEAD_TOKENS = 5_000


@dataclass(frozen=True)
class Asked:
    """What is asked.

    Args:
        ranked: The neurons that are changed, in their order, by layer.
        kinds: What stands in their place.
        at: At which tokens.
        n_tokens: Most tokens of the text that is read, and of the training sentences.
        n_draws: Number of random sets, and of matched ones, for each size.
        n_retrained: Number of these, of the largest size, for which probes are trained again.
        seed: Seed of every random draw.
    """

    ranked: Mapping[int, Sequence[int]]
    kinds: Sequence[Kind]
    at: Place
    n_tokens: int
    n_draws: int
    n_retrained: int
    seed: int


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        interventions: Rows of `neuron_interventions.csv`.
        draws: Rows of `neuron_draws.csv`.
        text: The sentences that were read.
        part: Those of them that drawn sets were read on.
        heads: The heads that were read.
    """

    interventions: Rows
    draws: Rows
    text: Text
    part: Text
    heads: Sequence[PositionHead]

    @property
    def summary(self) -> dict[str, Any]:
        """What `results.json` says of it."""
        return {
            "n_sentences": self.text.tokens.n_sentences, "n_tokens": self.text.tokens.n_tokens,
            "n_drawn_sentences": self.part.tokens.n_sentences, "n_drawn_tokens": self.part.tokens.n_tokens,
            "position_heads": [vars(one) for one in self.heads],
        }  # fmt: skip


def survey(subject: Subject, stores: Sequence[ActivationStore], asked: Asked, progress: Progress) -> Found:
    """Change one set of neurons after the other, and read the later layers.

    Args:
        subject: Model and corpora.
        stores: The activations of each corpus, with all layers.
        asked: What is asked.
        progress: Returns Lightning callbacks that show the training of probes.

    Raises:
        UserError: If the cache cannot be written.
    """
    is_test, is_train = (
        np.array([one == side for one in splits], dtype=bool)
        for splits, side in ((subject.splits[-1], "test"), (subject.splits[0], "train"))
    )
    text = draw_text(stores[-1], is_test, asked.n_tokens, asked.seed)
    train = draw_text(stores[0], is_train, asked.n_tokens, asked.seed)
    work = _Work(subject, stores, asked, text, train, progress)
    parts = work.of_positions() if POSITION in subject.wanted else []
    heads = work.heads.heads if parts and work.heads else ()
    parts += [work.of_other(readout) for readout in subject.other_readouts(work.part, DRAWN_TOKENS, asked.seed)]
    interventions: Rows = []
    draws: Rows = []
    for layer in asked.ranked:
        for part in parts:
            for table, more in zip((interventions, draws), part.rows(layer), strict=True):
                table += more
    return Found(interventions, draws, text, work.part, heads)


@dataclass(frozen=True)
class _Part:
    """The results of passes over one text, for the readouts that share them.

    Args:
        results: Sums of each set, shape (n_lines, n_items).
        lines: Returns the description of each row of the results when a layer is changed.
        items: Index of each item that drawn sets were read on.
    """

    results: Mapping[NeuronSet, Any]
    lines: Callable[[int], Sequence[Line]]
    items: NDArray[np.int64]

    def rows(self, layer: int) -> tuple[Rows, Rows]:
        """Return the rows of both tables for the sets of a layer."""
        here = {one: sums for one, sums in self.results.items() if one.layer == layer}
        chosen, others = (
            {one: sums for one, sums in here.items() if (one.source in DRAWN) is wanted} for wanted in (False, True)
        )
        return effect_rows(chosen, others, self.lines(layer), self.items)


@dataclass(frozen=True, eq=False)
class _Work:
    """The passes for all sets.

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

    # --- what is read, and of what ---

    @property
    def batch_tokens(self) -> int:
        """Most tokens in a batch, padding included."""
        return self.stores[-1].plan.batch_tokens

    @cached_property
    def part(self) -> Text:
        """The test sentences that drawn sets are read on."""
        candidates = np.isin(np.arange(self.text.store.tokens.n_sentences), self.text.kept)
        return draw_text(self.text.store, candidates, DRAWN_TOKENS, self.asked.seed)

    @cached_property
    def probes(self) -> tuple[dict[int, Tensor], Labels]:
        """Weight of each later layer's probe (of another run, stored, or trained now), and the classes."""
        if self.subject.frozen is not None:
            return self.subject.probes(self.stores, None, self.progress)
        with self._opened("probes", {}, 0) as store:
            return self.subject.probes(self.stores, store, self.progress)

    @cached_property
    def train_labels(self) -> Any:
        """Position class of each token of the training sentences, shape (n_tokens,)."""
        return self.subject.labels(self.stores, 0, self.probes[1], "train")[self.train.of_corpus]

    @cached_property
    def values(self) -> Any:
        """A function that returns a layer's values at training tokens; those of one layer are kept in memory."""
        is_told = not {"direction", "shuffled"}.isdisjoint(self.asked.kinds)  # what tells the position
        labels = self.train_labels if is_told else np.full(self.train.tokens.n_tokens, -1, dtype=np.int32)
        n_classes = len(self.probes[1]) if is_told else 1

        @lru_cache(maxsize=1)
        def of(layer: int) -> Values:
            return Values.of(self.train, layer, self.asked.at, labels, n_classes, self.asked.seed)

        return of

    def positions(self, text: Text) -> Positions:
        """Return the readout of positions of a text."""
        weight, classes = self.probes
        labels = self.subject.labels(self.stores, -1, classes, "test")[text.of_corpus]
        probes = Probes(weight, torch.from_numpy(labels.astype(np.int64)))
        return Positions(text, probes, self.subject.readers.device)

    @cached_property
    def heads(self) -> PositionHeads | None:
        """The readout of position heads; None if the model's queries and keys cannot be told."""
        readers, say = self.subject.readers, self.subject.source.say
        model, pad = readers.model, readers.pad_token_id
        try:
            query_keys = find_query_keys(model.encoder, model.anatomy, model.heads, pad)
        except UserError as error:
            say(f"position heads are not read: {as_clause(error)}")
            return None
        some = draw_text(
            self.train.store, np.isin(np.arange(self.train.store.tokens.n_sentences), self.train.kept), HEAD_TOKENS,
            self.asked.seed,
        )  # fmt: skip
        found = find_position_heads(readers, some, self.batch_tokens, list(self.asked.ranked))
        return PositionHeads(self.text, found, query_keys, model.heads.is_causal, readers.device)

    def reads(self, text: Text) -> list[Any]:
        """Return all that reads a text."""
        reads: list[Any] = [self.positions(text)]
        if self.heads is not None:
            of = self.heads
            reads.append(PositionHeads(text, of.heads, of.query_keys, of.is_causal, of.device))
        return reads

    def lines(self, layer: int) -> list[Line]:
        """Return what each row of the results of a pass is, when this layer is changed."""
        positions = self.positions(self.text)
        lines = [Line(positions.name, one, positions.n, {}) for one in positions.layers(layer + 1)]
        if self.heads is not None:
            lines += [
                Line(measure, one.layer, self.heads.n(one), {"head": one.head, "offset": one.offset})
                for measure, one in self.heads.rows(layer + 1)
            ]
        return lines

    # --- passes ---

    def passes(self, text: ReadableText) -> NeuronPasses:
        """Return the passes over a text."""
        asked = self.asked
        own = self.subject.readers, text, self.values
        return NeuronPasses(*own, text is self.train, asked.at, self.batch_tokens, asked.seed)

    @cached_property
    def chosen(self) -> list[NeuronSet]:
        """The sets that were asked for."""
        ranked, d_model = self.asked.ranked, self.text.store.plan.d_model
        return [one for layer in ranked for one in chosen_sets(layer, ranked[layer], self.asked.kinds, d_model)]

    @cached_property
    def drawn(self) -> list[NeuronSet]:
        """The sets that they are compared with."""
        asked = self.asked
        return [
            one
            for layer in asked.ranked
            for one in drawn_sets(
                [one for one in self.chosen if one.layer == layer], self.values(layer).sd, asked.n_draws, asked.seed
            )
        ]

    @cached_property
    def again(self) -> list[NeuronSet]:
        """The sets for which probes are trained again: those asked for, and some drawn ones of the largest size."""
        if not self.asked.n_retrained:
            return []
        largest = {layer: len(ranked) for layer, ranked in self.asked.ranked.items()}
        drawn = [one for one in self.drawn if one.draw <= self.asked.n_retrained and one.k == largest[one.layer]]
        return [*self.chosen, *drawn]

    def of_positions(self) -> list[_Part]:
        """Read positions, by frozen and by retrained probes, and position heads."""
        n_sets = len(self.chosen) + len(self.drawn)
        with self._opened("neurons", self._sets, n_sets + len(self.again)) as store:
            own = store, 1, self.chosen, "neurons", lambda: self.passes(self.text), self.reads(self.text)
            drawn = (
                store, 1 + len(self.chosen), self.drawn, "drawn neurons", lambda: self.passes(self.part),
                self.reads(self.part),
            )  # fmt: skip
            results = {**self._run(*own), **self._run(*drawn)}
            files, shows = dict(enumerate(self.again, start=1 + n_sets)), self.subject.source.shows_progress
            again = run_unfinished(files, store, self._retrained(), "neurons, probes retrained", shows)
        n = self.positions(self.text).n
        parts = [_Part(results, self.lines, np.searchsorted(self.text.kept, self.part.kept))]
        if again:
            parts.append(_Part(again, lambda layer: [Line(RETRAINED, self.last, n, {})], np.arange(len(n))))
        return parts

    def of_other(self, readout: Readout) -> _Part:
        """Read something else, over a text of its own."""
        own = {**self._sets, "readout": readout.name, "content": fingerprint_of(*readout.content)}
        sets = [*self.chosen, *self.drawn]
        with self._opened("neurons", own, len(sets)) as store:
            what = f"neurons, {readout.name}"
            results = self._run(store, 1, sets, what, lambda: self.passes(readout.text), [readout])

        def lines(layer: int) -> list[Line]:
            return [Line(readout.name, one, readout.n, {}) for one in readout.layers(layer + 1)]

        return _Part(results, lines, np.arange(len(readout.n)))

    def _run(
        self, store: PassStore, first: int, sets: Sequence[NeuronSet], what: str, passes_of: Callable[[], NeuronPasses],
        reads: Sequence[Any],
    ) -> dict[NeuronSet, Any]:  # fmt: skip
        """Run the passes over a text that are not stored yet, as files from this index on."""
        passes = cache(passes_of)
        files = dict(enumerate(sets, start=first))
        shows = self.subject.source.shows_progress
        return run_unfinished(files, store, lambda one: passes().run(one, reads), what, shows)

    @property
    def last(self) -> int:
        """The last layer that has a probe."""
        return max(self.probes[0])

    def _retrained(self) -> Any:
        """Return what trains a probe of the last layer while neurons are changed, and tests it."""

        @cache
        def parts() -> tuple[Any, Any]:
            of_text = self.positions(self.text).probes.labels.numpy().astype(np.int32)
            return Labelled(self.passes(self.train), self.train_labels), Labelled(self.passes(self.text), of_text)  # type: ignore[arg-type]

        def run(one: NeuronSet) -> Tensor:
            training = self.subject.training(self.progress)
            return retrained(*parts(), self.probes[1], one, training, [self.last])  # type: ignore[arg-type]

        return run

    # --- what is stored ---

    @property
    def _sets(self) -> dict[str, Any]:
        """Everything that determines the sets and their replacements."""
        asked = self.asked
        return {
            "ranked": {str(layer): list(ranked) for layer, ranked in asked.ranked.items()}, "kinds": list(asked.kinds),
            "at": asked.at, "n_draws": asked.n_draws, "n_retrained": asked.n_retrained,
        }  # fmt: skip

    @contextmanager
    def _opened(self, what: str, own: Mapping[str, Any], n_passes: int) -> Iterator[PassStore]:
        source, first, asked = self.subject.source, self.stores[-1], self.asked
        settings = {
            "format": FORMAT, "train": dict(self.stores[0].plan.key), "split_seed": self.subject.split_seed,
            **self.subject.key_of_positions(), "n_tokens": asked.n_tokens, "seed": asked.seed,
            "trainer": {name: str(value) for name, value in source.trainer.items()}, **own,
        }  # fmt: skip
        key = {**first.plan.key, what: settings}
        with opened(source, key, first, self.text.tokens, n_passes) as store:
            yield store
