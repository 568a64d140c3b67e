"""The losses of later layers when neurons are changed, beside drawn sets; a killed run continues with the next set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.activations.store import WorkStore
from probing.data.labelling import origin
from probing.errors import UserError, as_clause
from probing.interventions import AGAIN, POSITION, PROBED, TRANSLATED, NeuronReplacement, ReadoutUnit, measure_of
from probing.interventions.forward import ReadableText, Readout, ReadText
from probing.interventions.frozen_probes import (
    PositionHead,
    PositionHeads,
    ProbeReadout,
    find_position_heads,
    spread,
)
from probing.interventions.neurons import (
    Moves,
    NeuronPasses,
    NeuronSet,
    Place,
    Source,
    Values,
    chosen_sets,
    draw_targets,
    drawn_sets,
)
from probing.interventions.passes import Rows, Sums, among, fingerprint_of, run_unfinished, valued
from probing.interventions.probed_task import OF_CLASSES, Labelled, ProbedTask, retrained
from probing.interventions.subject import InterventionSetup, InterventionTexts
from probing.models.attention_heads import find_query_keys
from probing.runs.call import Measurements
from probing.text.tasks import Labels

# --------------------------------------------------------------------------------------------------------------------
# Effects of changed neurons, paired by item and compared with drawn sets.
# --------------------------------------------------------------------------------------------------------------------

DRAWN: tuple[Source, ...] = ("random", "matched")


@dataclass(frozen=True)
class EffectRow:
    """Description of one row of the results of a pass; `named` are further columns.

    The layer of a head is the layer of its block. `n` is the number of examples of each item, or another divisor of its
    sum, shape (n_items,).
    """

    readout: str
    layer: int
    n: NDArray[Any]
    named: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measure(self) -> ReadoutUnit:
        """Unit of the readout."""
        return measure_of(self.readout)


def lines_of(reads: Sequence[Any], layer: int) -> list[EffectRow]:
    """Describe each row of the results of a pass with these readouts, in order, when a layer is changed."""
    lines = []
    for read in reads:
        if isinstance(read, PositionHeads):
            for measure, head in read.rows(layer + 1):
                lines.append(EffectRow(measure, head.layer, read.n(head), {"head": head.head, "offset": head.offset}))
        else:
            lines += [EffectRow(read.name, read_layer, read.n) for read_layer in read.layers(layer + 1)]
    return lines


def effect_rows(
    results: Mapping[NeuronSet, Sums],
    drawn: Mapping[NeuronSet, Sums],
    lines: Sequence[EffectRow],
    part: NDArray[np.int64],
) -> tuple[Rows, Rows]:
    """Return the rows of both tables for the sets of one layer.

    `effect` is the measure minus its value in the intact model, paired by item. Drawn sets may be read on a part of the
    items, given by index, and the chosen sets are then compared with them on this part: `random_percentile` is the
    percentage of random sets that harm less, and `random_p` is the share of sets, among the random ones and the set
    itself, that harm at least as much. `results`, which include the empty set, have shape (n_lines, n_items); `drawn`
    have (n_lines, n_items of the part).
    """
    (intact,) = (sums for neuron_set, sums in results.items() if not neuron_set.k)
    rows: Rows = []
    draws: Rows = []
    for neuron_set, sums in results.items():
        if not neuron_set.k:
            continue
        alike = {other: sums for other, sums in drawn.items() if other.compared_with == neuron_set.compared_with}
        others = {source: [sums for other, sums in alike.items() if other.source == source] for source in DRAWN}
        for i, line in enumerate(lines):
            if not (total := line.n.sum()):
                continue
            named = {
                "changed_layer": neuron_set.layer, "kind": neuron_set.kind, "k": neuron_set.k, "readout": line.readout,
                "layer": line.layer, **line.named,
            }  # fmt: skip
            values = {"intact": float(intact[i].sum() / total)}
            values |= valued(sums[i], intact[i], line.n, line.measure.is_share)
            values.pop("p_value")
            row = {**named, "neurons": " ".join(map(str, neuron_set.neurons)), **values}
            on_part = _effect(sums[i][part], intact[i][part], line.n[part])
            draws.append({**named, "set": "chosen", "draw": 0, "effect": on_part})
            for source, drawn_sums in others.items():
                effects = [_effect(other[i], intact[i][part], line.n[part]) for other in drawn_sums]
                draws += [
                    {**named, "set": source, "draw": draw, "effect": effect}
                    for draw, effect in enumerate(effects, start=1)
                ]
                row |= _compared(source, on_part, np.array(effects), -line.measure.sign)
            rows.append(row)
    return rows, draws


def _compared(source: str, effect: float, others: Sums, harm: int) -> dict[str, float]:
    """Return the columns, prefixed `source`, that compare an effect with drawn sets; `harm` is the sign of a loss."""
    if not len(others):
        return {}
    lowest, highest = float(others.min()), float(others.max())
    columns = {source: float(others.mean()), f"{source}_lowest": lowest, f"{source}_highest": highest}
    return columns | among(effect, others, harm, f"{source}_")


def _effect(sums: Sums, intact: Sums, n: NDArray[Any]) -> float:
    return float((sums - intact).sum() / total) if (total := n.sum()) else 0.0


@dataclass(frozen=True)
class NeuronConfig:
    """Settings of the changes of neurons, ranked by layer, and of the readouts.

    `n_tokens` is the maximum of the read text, and of the training sentences. `n_draws` is the number of random sets,
    and of matched ones, for each size; for `n_retrained` of the largest size, probes are retrained. `task_name` is None
    for position.
    """

    ranked: Mapping[int, Sequence[int]]
    kinds: Sequence[NeuronReplacement]
    at: Place
    n_tokens: int
    n_draws: int
    n_retrained: int
    seed: int
    task_name: str | None = None


@dataclass(frozen=True)
class NeuronTables:
    """The rows of `neuron_interventions.csv` and `neuron_draws.csv`, and the texts, heads and tasks behind them.

    Drawn sets were read on `part`. `read` has the origin of each task's probes: `run`, or `here` if they were trained
    for this. `erased` is the task whose classes were erased, or between which examples were moved, if any. Neurons were
    exchanged in `n_pairs`; `n_excluded` pairs cannot be read token by token.
    """

    interventions: Rows
    draws: Rows
    text: ReadableText
    part: ReadableText
    heads: Sequence[PositionHead]
    read: Mapping[str, str]
    erased: str | None
    n_pairs: int = 0
    n_excluded: int = 0


# --------------------------------------------------------------------------------------------------------------------
# The classes that probes read of texts while neurons are changed, and between which examples are moved.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ProbedClasses:
    """The classes of a task, with the probes of later layers that decode them, each of shape (n_classes, d_model)."""

    task: ProbedTask
    stores: Sequence[ActivationStore]
    train: ReadText
    weight: Mapping[int, Tensor]
    classes: Labels
    device: torch.device
    seed: int

    @property
    def name(self) -> str:
        """Name of the readout."""
        return self.task.name

    @property
    def again(self) -> str:
        """Name of the readout by retrained probes."""
        return self.name + AGAIN

    @property
    def last(self) -> int:
        """The last layer that has a probe."""
        return max(self.weight)

    @cached_property
    def train_labels(self) -> NDArray[np.int32]:
        """Class of each training token that is an example or represents one, -1 for others, shape (n_tokens,)."""
        return self.task.labels(self.stores, 0, self.classes, "train")[self.train.of_corpus]

    @cached_property
    def _test_labels(self) -> NDArray[np.int32]:
        return self.task.labels(self.stores, -1, self.classes, "test")

    @cached_property
    def _targets(self) -> NDArray[np.int32]:
        seen = np.unique(self.train_labels[self.train_labels >= 0]).astype(np.int64)
        return draw_targets(self._test_labels, seen, self.seed)

    def _labels_of(self, text: ReadText) -> NDArray[np.int32]:
        return self.train_labels if text is self.train else self._test_labels[text.of_corpus]

    def readout(self, text: ReadText) -> ProbeReadout:
        """Return the readout of the accuracy on the examples of the training sentences, or of some test sentences."""
        return self._readout(text, self._labels_of(text), self.name)

    def translated(self, text: ReadText) -> ProbeReadout:
        """Return the readout of the share of a text's examples decoded as the class that they are moved to."""
        return self._readout(text, self._targets[text.of_corpus], self.name + TRANSLATED)

    def _readout(self, text: ReadText, labels: NDArray[np.int32], name: str) -> ProbeReadout:
        token_labels = torch.from_numpy(labels.astype(np.int64))
        return ProbeReadout(text, self.weight, token_labels, self.device, self.task.stands(text.tokens), name)

    def moves(self, text: ReadText) -> Moves:
        """Return the class of each token's example, and the class that the example is moved to."""
        stands, rows = self.task.stands(text.tokens), text.of_corpus
        source, target = (
            spread(torch.from_numpy(labels[rows].astype(np.int64)), stands)
            for labels in (self._test_labels, self._targets)
        )
        return Moves(torch.where(target >= 0, source, -1), target)

    def labelled(self, passes: Any, text: ReadText) -> Labelled:
        """Return passes over the training or the test sentences with their classes, for retrained probes."""
        return Labelled(passes, self._labels_of(text), self.task.task)


# Most tokens of the test sentences that drawn sets are read on: there are many of them, and their effects, unlike those
# of the neurons that were asked for, need no intervals.
DRAWN_TOKENS = 5_000
# Most tokens of the training sentences by which position heads are chosen.
HEAD_TOKENS = 5_000


def survey(setup: InterventionSetup, stores: Sequence[ActivationStore], config: NeuronConfig) -> NeuronTables:
    """Change one set of neurons after the other, and read the later layers, from stores with all layers.

    Raises:
        UserError: If the cache cannot be written.
    """
    work = _NeuronPasses.of(setup, stores, config)
    parts: list[_Part] = []
    for kinds in _together(config.kinds):
        parts += [part for name in PROBED if name in setup.readouts for part in work.of_probes(name, kinds)]
        others = setup.other_readouts(work.part, DRAWN_TOKENS, config.seed)
        parts += [work.of_other(readout, kinds) for readout in others]
    heads = work.heads.heads if POSITION in setup.readouts and work.heads else ()
    interventions: Rows = []
    draws: Rows = []
    for layer in config.ranked:
        for part in parts:
            for table, more in zip((interventions, draws), part.rows(layer), strict=True):
                table += more
    if config.task_name is not None:
        for row in (*interventions, *draws):
            row["task"] = config.task_name
    read = {name: "here" if setup.probed(name).frozen is None else "run" for name in PROBED if name in setup.readouts}
    erased = None if OF_CLASSES.isdisjoint(config.kinds) else config.task_name or POSITION
    return NeuronTables(interventions, draws, work.text, work.part, heads, read, erased)


def _together(kinds: Sequence[NeuronReplacement]) -> list[list[NeuronReplacement]]:
    """Group the kinds whose passes have the same readouts: `translate` also reads the target classes."""
    groups: list[list[NeuronReplacement]] = [[kind for kind in kinds if kind != "translate"], ["translate"]]
    return [group for group in groups if set(group) & set(kinds)]


@dataclass(frozen=True)
class _Part:
    """Sums of passes over one text, (n_lines, n_items), for readouts that share them; drawn sets have `items`."""

    results: Mapping[NeuronSet, Any]
    lines: Callable[[int], Sequence[EffectRow]]
    items: NDArray[np.int64]

    def rows(self, layer: int) -> tuple[Rows, Rows]:
        layer_results = {neuron_set: sums for neuron_set, sums in self.results.items() if neuron_set.layer == layer}
        chosen, others = (
            {neuron_set: sums for neuron_set, sums in layer_results.items() if (neuron_set.source in DRAWN) is is_drawn}
            for is_drawn in (False, True)
        )
        return effect_rows(chosen, others, self.lines(layer), self.items)


@dataclass(frozen=True, eq=False)
class _NeuronPasses(InterventionTexts):
    """The passes for all sets."""

    config: NeuronConfig

    # --- what is read, and of what ---

    @cached_property
    def part(self) -> ReadText:
        """The test sentences that drawn sets are read on."""
        return self.text.drawn(DRAWN_TOKENS, self.config.seed)

    @cached_property
    def probed(self) -> Callable[[str], ProbedClasses]:
        """A function that returns the classes of `position` or `task` with probes: of a run, stored, or trained now."""

        @cache
        def of(name: str) -> ProbedClasses:
            task = self.setup.probed(name)
            if task.frozen is not None:
                probes = task.probes(self.stores, None)
            else:
                with self._opened("probes", self._read(task), 0) as store:
                    probes = task.probes(self.stores, store)
            return ProbedClasses(task, self.stores, self.train, *probes, self.setup.readers.device, self.config.seed)

        return of

    @property
    def erased_classes(self) -> ProbedClasses:
        """The classes that are erased, and between which examples are moved."""
        return self.probed(self.setup.main_task.name)

    @cached_property
    def values(self) -> Any:
        """A function that returns a layer's values at training tokens, with the last layer in memory."""
        if OF_CLASSES.isdisjoint(self.config.kinds):
            class_inputs = np.full(self.train.tokens.n_tokens, -1, dtype=np.int32), 1, self.config.seed, None
        else:
            classes = self.erased_classes
            stands = classes.task.stands(self.train.tokens)
            class_inputs = classes.train_labels, len(classes.classes), self.config.seed, stands  # type: ignore[assignment]

        @lru_cache(maxsize=1)
        def of(layer: int) -> Values:
            return Values.of(self.train, layer, self.config.at, *class_inputs)

        return of

    @cached_property
    def heads(self) -> PositionHeads | None:
        """The readout of position heads; None if the model's queries and keys cannot be identified."""
        readers, say = self.setup.readers, self.setup.source.say
        model, pad = readers.model, readers.pad_token_id
        try:
            query_keys = find_query_keys(model.encoder, model.anatomy, model.heads, pad)
        except UserError as error:
            say(f"position heads are not read: {as_clause(error)}")
            return None
        some = self.train.drawn(HEAD_TOKENS, self.config.seed)
        position_heads = find_position_heads(readers, some, self.batch_tokens, list(self.config.ranked))
        return PositionHeads(self.text, position_heads, query_keys, model.heads.is_causal, readers.device)

    def reads(self, name: str, text: ReadText, kinds: Sequence[NeuronReplacement]) -> list[Any]:
        """Return all readouts of a text that share passes with the classes of a task."""
        classes = self.probed(name)
        reads: list[Any] = [classes.readout(text)]
        if "translate" in kinds and name == self.erased_classes.name:
            reads.append(classes.translated(text))
        if name == POSITION and self.heads is not None:
            of = self.heads
            reads.append(PositionHeads(text, of.heads, of.query_keys, of.is_causal, of.device))
        return reads

    # --- passes ---

    def passes(self, text: ReadableText, moved: ReadText | None = None) -> NeuronPasses:
        """Return the passes over a text; `moved` is the text whose examples are moved to other classes, if any."""
        config = self.config
        moves = None if moved is None else self.erased_classes.moves(moved)
        pass_inputs = self.setup.readers, text, self.values
        return NeuronPasses(*pass_inputs, text is self.train, config.at, self.batch_tokens, config.seed, moves)

    def chosen(self, kinds: Sequence[NeuronReplacement]) -> list[NeuronSet]:
        ranked, d_model = self.config.ranked, self.text.store.plan.d_model
        return [neuron_set for layer in ranked for neuron_set in chosen_sets(layer, ranked[layer], kinds, d_model)]

    def drawn(self, chosen: Sequence[NeuronSet]) -> list[NeuronSet]:
        config = self.config
        return [
            neuron_set
            for layer in config.ranked
            for neuron_set in drawn_sets(
                [neuron_set for neuron_set in chosen if neuron_set.layer == layer],
                self.values(layer).sd,
                config.n_draws,
                config.seed,
            )
        ]

    def again(self, chosen: Sequence[NeuronSet], drawn: Sequence[NeuronSet]) -> list[NeuronSet]:
        """Return the sets for which probes are retrained: the chosen ones, and some drawn ones of the largest size.

        While examples are moved to other classes, no probe is trained: its training would depend on the target classes.
        """
        if not self.config.n_retrained or any(neuron_set.kind == "translate" for neuron_set in chosen):
            return []
        largest = {layer: len(ranked) for layer, ranked in self.config.ranked.items()}
        some = [
            neuron_set
            for neuron_set in drawn
            if neuron_set.draw <= self.config.n_retrained and neuron_set.k == largest[neuron_set.layer]
        ]
        return [*chosen, *some]

    def of_probes(self, name: str, kinds: Sequence[NeuronReplacement]) -> list[_Part]:
        """Read `position` or `task`, by frozen and by retrained probes, and position heads with positions."""
        classes, is_moved = self.probed(name), "translate" in kinds
        chosen = self.chosen(kinds)
        drawn = self.drawn(chosen)
        again = self.again(chosen, drawn)
        n_sets = len(chosen) + len(drawn)
        with self._opened("neurons", {**self._sets(kinds), **self._read(classes.task)}, n_sets + len(again)) as store:
            results: dict[NeuronSet, Any] = {}
            for first, sets, what, text in (
                (1, chosen, "neurons", self.text), (1 + len(chosen), drawn, "drawn neurons", self.part)
            ):  # fmt: skip
                passes = self.passes(text, text if is_moved else None)
                results |= self._run(store, first, sets, what, passes, self.reads(name, text, kinds))
            files = dict(enumerate(again, start=1 + n_sets))
            retrained_results = run_unfinished(files, store, self._retrained(classes), "neurons, probes retrained")
        reads = self.reads(name, self.text, kinds)
        parts = [
            _Part(
                results,
                partial(lines_of, reads),
                np.searchsorted(self.text.sentence_indices, self.part.sentence_indices),
            )
        ]
        if retrained_results:
            n = reads[0].n
            parts.append(
                _Part(
                    retrained_results, lambda layer: [EffectRow(classes.again, classes.last, n, {})], np.arange(len(n))
                )
            )
        return parts

    def of_other(self, readout: Readout, kinds: Sequence[NeuronReplacement]) -> _Part:
        """Read another readout over its text; while examples are moved, this text has the tokens of `part`."""
        key = {**self._sets(kinds), "readout": readout.name, "content": fingerprint_of(*readout.content)}
        chosen = self.chosen(kinds)
        sets = [*chosen, *self.drawn(chosen)]
        moved = self.part if "translate" in kinds else None
        with self._opened("neurons", key, len(sets)) as store:
            what = f"neurons, {readout.name}"
            results = self._run(store, 1, sets, what, self.passes(readout.text, moved), [readout])
        return _Part(results, partial(lines_of, [readout]), np.arange(len(readout.n)))

    def _run(
        self, store: WorkStore, first: int, sets: Sequence[NeuronSet], what: str, passes: NeuronPasses,
        reads: Sequence[Any],
    ) -> dict[NeuronSet, Sums]:  # fmt: skip
        """Run the passes that are not stored yet, as files from this index on."""
        files = dict(enumerate(sets, start=first))
        return run_unfinished(files, store, lambda neuron_set: passes.read(neuron_set, *reads), what)

    def _retrained(self, classes: ProbedClasses) -> Any:
        """Return a function that trains and tests a probe of the last layer while neurons are changed."""
        train, text = (classes.labelled(self.passes(of), of) for of in (self.train, self.text))

        def run(neuron_set: NeuronSet) -> Tensor:
            return retrained(train, text, classes.classes, neuron_set, classes.task.training(), [classes.last])

        return run

    # --- what is stored ---

    def _sets(self, kinds: Sequence[NeuronReplacement]) -> dict[str, Any]:
        """Return the settings that determine the sets and their replacements."""
        config = self.config
        return {
            "ranked": {str(layer): list(ranked) for layer, ranked in config.ranked.items()}, "kinds": list(kinds),
            "at": config.at, "n_draws": config.n_draws, "n_retrained": config.n_retrained,
        }  # fmt: skip

    def _read(self, task: ProbedTask) -> dict[str, Any]:
        """Return the settings behind a task's probes and examples; empty for the task whose classes are erased."""
        return {} if task.name == self.setup.main_task.name else {"read": task.key(self.stores)}

    def _opened(self, what: str, settings: Mapping[str, Any], n_passes: int) -> AbstractContextManager[WorkStore]:
        return self.opened(what, {**self.setup.main_task.key(self.stores), **settings}, n_passes)


def neuron_output(changed: NeuronTables, stores: Sequence[ActivationStore]) -> Measurements:
    """Return the tables and results of a run; `stores` are of the training and of the test text."""
    tables = {"neuron_interventions": changed.interventions, "neuron_draws": changed.draws}
    text, part = changed.text.tokens, changed.part.tokens
    results = {
        "cache": {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))},
        "neurons": {
            "n_sentences": text.n_sentences, "n_tokens": text.n_tokens,
            "n_drawn_sentences": part.n_sentences, "n_drawn_tokens": part.n_tokens,
            "position_heads": [vars(head) for head in changed.heads], "probes": dict(changed.read),
            "classes_of": changed.erased,
            **({"n_pairs": changed.n_pairs, "n_left_out": changed.n_excluded} if changed.n_pairs else {}),
        },
    }  # fmt: skip
    return Measurements(tables, results)
