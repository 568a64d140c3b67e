"""Survey of the effects of ablated heads and layers: probes, resumable passes, and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore
from probing.activations.store import WorkStore
from probing.errors import UserError
from probing.interventions import POSITION, RETRAINED, TUNED, measure_of
from probing.interventions.forward import (
    Forward,
    LaterBlocks,
    Padded,
    ReadableText,
    Readers,
    Readout,
    ReadText,
    draw_text,
)
from probing.interventions.frozen_probes import FrozenProbes, ProbeReadout
from probing.interventions.probed_task import (
    AblationJob,
    Kind,
    Labelled,
    Passes,
    ProbedTask,
    UnitType,
    all_jobs,
    chosen_units,
    fingerprint_of,
    is_needed,
    opened,
    retrained,
    run_unfinished,
)
from probing.interventions.subject import (
    InterventionSetup,
    PassScores,
    Rows,
    better_without_rows,
    effect_rows,
    pass_scores_of,
    raising_rows,
    tested,
)
from probing.probes.transforms import random_neurons
from probing.runtime.progress import stage
from probing.statistics import widened
from probing.statistics.chance import holm
from probing.statistics.moments import ProfileAccumulator, outliers_of
from probing.studies.ablate.tables import (
    ACTIVATIONS,
    BOTH,
    CHANNEL,
    NOTHING,
    OUTLIERS,
    RANDOM,
    RANDOM_MEAN,
    TENSOR,
    WEIGHTS,
)
from probing.studies.ablate.weights import (
    N_FILES,
    Cumulative,
    WeightPruning,
    first_block,
    importance,
    importance_rows,
    matrices,
    n_files,
)
from probing.text import Split
from probing.text.tasks import Labels

# --------------------------------------------------------------------------------------------------------------------
# Rounds a model's weights and hidden states to few bits, with and without its outlier neurons, and reads it out.
# --------------------------------------------------------------------------------------------------------------------

# Random draws of neurons that are kept; with so many a rank can be significant at 5%.
N_DRAWS = 20


@dataclass(frozen=True)
class Rounding:
    """A rounding of a model.

    Args:
        bits: Number of bits; 0 for the original model.
        rounded: `weights`, `activations` or `both`.
        scale: `tensor` or `channel`.
        unrounded: Neurons of hidden states that are neither rounded nor count for the scale: none, outliers, random.
        draw: Number of the random draw.
    """

    bits: int
    rounded: str = ""
    scale: str = ""
    unrounded: str = NOTHING
    draw: int = 0


def roundings(bits: Sequence[int]) -> list[Rounding]:
    """Return all roundings: the original model, then each number of bits."""
    settings = [Rounding(0)]
    for n in bits:
        settings += [
            Rounding(n, rounded, scale) for rounded in (WEIGHTS, ACTIVATIONS, BOTH) for scale in (TENSOR, CHANNEL)
        ]
        settings += [Rounding(n, rounded, TENSOR, OUTLIERS) for rounded in (ACTIVATIONS, BOTH)]
        settings += [Rounding(n, ACTIVATIONS, TENSOR, RANDOM, draw) for draw in range(1, N_DRAWS + 1)]
    return settings


def rounded(values: Tensor, bits: int, largest: Tensor) -> Tensor:
    """Return values rounded to the nearest of 2^bits - 1 equally spaced values from -largest to largest.

    `bits` is at least 2; `largest`, the largest magnitude, must broadcast, and is 0 where all values are 0.
    """
    steps = 2 ** (bits - 1) - 1
    step = torch.where(largest > 0, largest, 1.0) / steps
    return (values / step).round().clamp(-steps, steps) * step


@contextmanager
def rounded_weights(
    weights: Sequence[nn.Parameter], bits: int, by_channel: bool, columns: Collection[nn.Parameter] = ()
) -> Iterator[None]:
    """Round weight matrices, and restore them; 0 bits rounds nothing.

    With `by_channel`, each output unit has a scale. Units are the columns of matrices in `columns`, the rows of others.
    """
    before = [weight.detach().clone() for weight in weights] if bits else []
    try:
        for weight in weights if bits else ():
            magnitude = weight.detach().abs()
            is_of_columns = any(weight is column_weight for column_weight in columns)
            largest = magnitude.amax(0 if is_of_columns else 1, keepdim=True) if by_channel else magnitude.amax()
            weight.data.copy_(rounded(weight.detach(), bits, largest))
        yield
    finally:
        for weight, original in zip(weights if bits else (), before, strict=True):
            weight.data.copy_(original)


def column_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights whose columns are the output units, as in GPT-2."""
    from transformers.pytorch_utils import Conv1D

    return [module.weight for module in model.modules() if isinstance(module, Conv1D)]


@dataclass(frozen=True)
class RoundingRange:
    """Statistics of the hidden states that enter a block, for rounding.

    Args:
        largest: Largest magnitude of each neuron, shape (d_model,), float32.
        outliers: Outlier neurons by any definition of `geometry`, special tokens included; ascending.
    """

    largest: Tensor
    outliers: list[int]

    @classmethod
    def of(cls, states: Tensor) -> RoundingRange:
        """Return the range of hidden states, shape (n_tokens, d_model)."""
        profile = ProfileAccumulator(states.shape[1])
        profile.update(states)
        named = {outlier.neuron for outlier in outliers_of(profile.result())}
        return cls(states.abs().amax(0).float().cpu(), sorted(named))

    def unrounded(self, rounding: Rounding, seed: int, block: int) -> list[int]:
        """Return the neurons that are not rounded."""
        if rounding.unrounded == OUTLIERS:
            return self.outliers
        if rounding.unrounded == RANDOM:
            generator = np.random.default_rng([seed, 16, block, rounding.draw])
            n = min(len(self.outliers), len(self.largest) - len(self.outliers))
            return random_neurons(len(self.largest), n, self.outliers, generator)
        return []


@dataclass(frozen=True)
class RoundedStates:
    """A change of a model: rounding of the hidden states that enter its blocks.

    `layer` is the layer from whose hidden states the blocks are run; `ranges` are the ranges of the rounded blocks.
    """

    layer: int
    ranges: Mapping[int, RoundingRange]
    rounding: Rounding
    seed: int

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return later hidden states."""
        entering = {block: self._round(block) for block in self.ranges}
        return model.run(batch.inputs, self.layer + 1, states, beside, layers, entering=entering)

    def _round(self, block: int) -> Any:
        block_range, how = self.ranges[block], self.rounding
        is_unrounded = torch.zeros(len(block_range.largest), dtype=torch.bool)
        is_unrounded[block_range.unrounded(how, self.seed, block)] = True
        others = block_range.largest.where(~is_unrounded, torch.zeros(()))
        largest = others if how.scale == CHANNEL else others.amax().expand_as(others)

        def change(states: Tensor) -> Tensor:
            device_largest = largest.to(states.device)
            return torch.where(is_unrounded.to(states.device), states, rounded(states, how.bits, device_largest))

        return change


@dataclass(frozen=True)
class Quantised:
    """A model whose weights and hidden states are rounded.

    `train` are the sentences whose hidden states define the ranges and the outliers.
    """

    readers: Readers
    train: ReadableText
    blocks: Sequence[int]
    bits: Sequence[int]
    seed: int
    batch_tokens: int

    @property
    def n_files(self) -> int:
        """Number of files of passes."""
        return 1 + len(roundings(self.bits))

    @cached_property
    def ranges(self) -> dict[int, RoundingRange]:
        """The range of the hidden states that enter each block."""
        return {block: RoundingRange.of(self.train.states(block - 1)) for block in self.blocks}

    def rows(self, readout: Readout, store: WorkStore) -> Rows:
        """Return the rows of `quantised.csv`, running the passes that are not stored."""
        n_unrounded = sum(len(states_range.outliers) for states_range in self.ranges.values())
        files = {
            i + 1: setting
            for i, setting in enumerate(roundings(self.bits))
            if n_unrounded or setting.unrounded == NOTHING
        }
        weights = matrices(self.readers.model, self.blocks)
        columns = column_weights(self.readers.model.encoder)
        forward = Forward(self.readers, readout.text, self.batch_tokens)
        first = first_block(self.readers.model, self.blocks) - 1

        def read(rounding: Rounding) -> Tensor:
            ranges = self.ranges if rounding.rounded in (ACTIVATIONS, BOTH) else {}
            of_weights = rounding.bits if rounding.rounded in (WEIGHTS, BOTH) else 0
            with rounded_weights(weights, of_weights, rounding.scale == CHANNEL, columns):
                return forward.read(RoundedStates(first, ranges, rounding, self.seed), readout)[-1].clone()

        outputs = run_unfinished(files, store, read, f"rounded to few bits, {readout.name}")
        named = {"readout": readout.name, "layer": max(readout.layers(1))}
        sums = {setting: gave.astype(np.float64) for setting, gave in outputs.items()}
        return quantised_rows(sums, readout.n, named, n_unrounded)


def quantised_rows(
    item_sums: Mapping[Rounding, NDArray[np.float64]], n: NDArray[np.int64], named: Mapping[str, Any], n_unrounded: int
) -> Rows:
    """Return the rows of `quantised.csv`: each rounding, and for each number of bits the mean of the random draws.

    `effect` is the difference from the original model, paired by item; for the mean, its confidence interval is over
    items and draws. p-values are two-sided, over items, and corrected (Holm) for all rows but single draws. `rank_p` of
    unrounded outliers is by rank among the draws: the share of these, and of the tested one, that lose no more.

    Args:
        item_sums: Sums of each pass over the examples of each item, shape (n_items,).
        n: Number of examples of each item, shape (n_items,).
        named: Columns of all rows: `readout`, `layer`.
        n_unrounded: Number of unrounded outliers, over all blocks.
    """
    measure, whole = measure_of(str(named["readout"])), item_sums[Rounding(0)]

    def row(rounding: Rounding, unrounded: str, sums: NDArray[np.float64]) -> dict[str, Any]:
        columns = {
            **named, "bits": rounding.bits, "rounded": rounding.rounded, "scale": rounding.scale,
            "kept": unrounded, "draw": rounding.draw, "n_kept": 0 if unrounded == NOTHING else n_unrounded,
            "value": float(sums.sum() / n.sum()),
        }  # fmt: skip
        return columns | tested(sums, whole, n, measure.is_share)

    main = [
        row(setting, setting.unrounded, sums)
        for setting, sums in item_sums.items()
        if setting.bits and setting.unrounded != RANDOM
    ]
    draws, means = [], []
    for bits in dict.fromkeys(setting.bits for setting in item_sums if setting.unrounded == RANDOM):
        of_bits = {
            setting: sums for setting, sums in item_sums.items() if (setting.bits, setting.unrounded) == (bits, RANDOM)
        }
        rows = [row(setting, RANDOM, sums) for setting, sums in of_bits.items()]
        effects = [draw_row["effect"] for draw_row in rows]
        mean = row(replace(next(iter(of_bits)), draw=0), RANDOM_MEAN, np.mean(list(of_bits.values()), axis=0))
        mean["low"], mean["high"] = widened(mean["effect"], (mean["low"], mean["high"]), effects)
        outlier_row = next(
            main_row
            for main_row in main
            if (main_row["bits"], main_row["rounded"], main_row["kept"]) == (bits, ACTIVATIONS, OUTLIERS)
        )
        better = sum(measure.sign * effect >= measure.sign * outlier_row["effect"] for effect in effects)
        outlier_row["rank_p"] = (1 + better) / (1 + len(effects))
        draws += rows
        means.append(mean)
    for tested_row, p_value in zip(
        [*main, *means], holm([tested_row["p_value"] for tested_row in [*main, *means]]), strict=True
    ):
        tested_row["p_value"] = float(p_value)
    return [*main, *means, *draws]


# Increased whenever the meaning of what is stored changes.
FORMAT = 2


@dataclass(frozen=True)
class AblationConfig:
    """Settings of a survey.

    Args:
        units: Whether heads, layers or both are ablated.
        kinds: Kinds of replacement.
        blocks: The changed blocks.
        n_tokens: Maximum number of tokens of the text.
        n_retrained: Number of the strongest heads and layers, and of random ones, whose probes are retrained.
        prune: Whether units are also ablated cumulatively.
        prune_share: Share of units added at each step.
        bits: Numbers of bits for rounding.
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
        """The replacement in cumulative ablation: zeros, as published, or the mean."""
        return "zero" if "zero" in self.kinds else "mean"


@dataclass(frozen=True)
class AblationResults:
    """Rows of the tables of a survey, empty if not measured, and its text.

    Args:
        n_heads: Number of heads of a block.
        intact: Each readout of the intact model, by name and by layer.
        n_examples: Number of examples of each readout, by name.
    """

    ablated: Rows
    better_without: Rows
    raising: Rows
    importance: Rows
    pruning: Rows
    pruning_areas: Rows
    weight_pruning: Rows
    quantised: Rows
    n_heads: int
    text: ReadText
    intact: Mapping[str, Mapping[int, float]]
    n_examples: Mapping[str, int]

    @property
    def tables(self) -> dict[str, Rows]:
        """The rows by the name of their table."""
        always = {"ablated": self.ablated, "better_without": self.better_without, "raising": self.raising}
        others = {
            "importance": self.importance, "pruning": self.pruning, "pruning_areas": self.pruning_areas,
            "weight_pruning": self.weight_pruning, "quantised": self.quantised,
        }  # fmt: skip
        return always | {name: rows for name, rows in others.items() if rows}


def survey(setup: InterventionSetup, stores: Sequence[ActivationStore], config: AblationConfig) -> AblationResults:
    """Ablate one unit after the other, and read the later layers.

    Raises:
        UserError: If the cache cannot be written.
    """
    text = draw_text(stores[-1], _is(setup.splits[-1], "test"), config.n_tokens, config.seed, setup.n_types)
    train = draw_text(stores[0], _is(setup.splits[0], "train"), config.n_tokens, config.seed, setup.n_types)
    work = _ReadoutPasses(setup, stores, config, text, train)
    parts: list[_ReadoutResults] = []
    if POSITION in setup.readouts:
        with stage(f"positions read without {' and '.join(config.units)}"):
            parts.append(work.with_weights(work.positions()))
    if others(setup):
        named = ["the task" if name == TUNED else name for name in others(setup)]
        with stage(f"{' and '.join(named)} read without {' and '.join(config.units)}"):
            readouts = setup.other_readouts(text, config.n_tokens, config.seed, stores)
            parts += [work.with_weights(work.other(readout)) for readout in readouts]
    unit_effects = [unit_effect for part in parts for unit_effect in part.unit_effects]
    frozen = [unit_effect for unit_effect in unit_effects if unit_effect.readout != RETRAINED]
    return AblationResults(
        effect_rows(unit_effects), better_without_rows(frozen, config.seed), raising_rows(frozen, config.seed),
        [row for part in parts for row in part.rows],
        [row for part in parts for row in part.pruning], [row for part in parts for row in part.areas],
        [row for part in parts for row in part.weights], [row for part in parts for row in part.quantised],
        setup.model.heads.n_heads, text, {part.readout.name: _intact(part) for part in parts},
        {part.readout.name: int(part.readout.n.sum()) for part in parts},
    )  # fmt: skip


def others(setup: InterventionSetup) -> list[str]:
    """Return the names of the readouts other than positions."""
    return [name for name in setup.readouts if name != POSITION]


@dataclass(frozen=True)
class _ReadoutResults:
    readout: Readout
    unit_effects: Sequence[PassScores]
    rows: Rows
    pruning: Rows
    areas: Rows
    weights: Rows = field(default_factory=list)
    quantised: Rows = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _ReadoutPasses:
    """The passes of all readouts, over test sentences (`text`) and training sentences."""

    setup: InterventionSetup
    stores: Sequence[ActivationStore]
    config: AblationConfig
    text: ReadText
    train: ReadText

    @cached_property
    def jobs(self) -> list[AblationJob]:
        """All possible passes; the index of a pass's file is the index of its job plus 1."""
        heads = self.setup.model.heads
        return all_jobs(heads.n_layers, heads.n_heads)

    @cached_property
    def probed(self) -> ProbedTask:
        return self.setup.probed(POSITION)

    @cached_property
    def passes(self) -> Passes:
        return self._passes_over(self.text)

    def _passes_over(self, text: ReadableText) -> Passes:
        return Passes(self.setup.readers, text, self.train, self.stores[-1].plan.batch_tokens, self.config.seed)

    def positions(self) -> _ReadoutResults:
        """Read positions by frozen and by retrained probes."""
        config = self.config
        with self._store(POSITION, self.probed.key(self.stores)) as store:
            probes, classes = self._probes(store)
            readout = ProbeReadout(self.text, probes, self.setup.readers.device)
            results = self._run(store, readout, lambda: self.passes)
            layers = {block: probes.layers(block) for block in config.blocks}
            unit_effects = pass_scores_of(results, layers, readout.n, POSITION)
            if config.n_retrained:
                last = {
                    unit_effect.job: unit_effect.effect()
                    for unit_effect in unit_effects
                    if unit_effect.layer == max(probes.weight)
                }
                strongest = chosen_units(list(results), last, config.n_retrained, config.seed)
                repeated = self._retrained(store, results, strongest, probes, classes)
                unit_effects += pass_scores_of(repeated, layers, readout.n, RETRAINED)
            rows = self._importance(store, readout)
        labels = self.probed.labels(self.stores, 0, classes, "train")[self.train.of_corpus]
        of_train = FrozenProbes(probes.weight, torch.from_numpy(labels.astype(np.int64)))
        chosen_on = ProbeReadout(self.train, of_train, self.setup.readers.device)
        return _ReadoutResults(readout, unit_effects, rows, *self._pruned(chosen_on, readout))

    def other(self, readout: Readout) -> _ReadoutResults:
        with self._store(readout.name, {"content": fingerprint_of(*readout.content)}) as store:
            results = self._run(store, readout, cache(lambda: self._passes_over(readout.text)))
            layers = {block: readout.layers(block) for block in self.config.blocks}
            unit_effects = pass_scores_of(results, layers, readout.n, readout.name)
            rows = self._importance(store, readout)
        if not self.config.prune:
            return _ReadoutResults(readout, unit_effects, rows, [], [])
        sides = self.setup.pruning_sides(readout, self.train, self.config.n_tokens, self.config.seed)
        return _ReadoutResults(readout, unit_effects, rows, *self._pruned(*sides))

    def with_weights(self, part: _ReadoutResults) -> _ReadoutResults:
        """Return a part with the rows of pruned weights and of rounded numbers, if requested."""
        config, readout, readers = self.config, part.readout, self.setup.readers
        batch_tokens = self.stores[-1].plan.batch_tokens
        key_part = {"blocks": list(config.blocks), "content": fingerprint_of(*readout.content)}
        if config.prune_weights:
            pruning = WeightPruning(readers, config.blocks, config.seed, batch_tokens)
            with self._store(readout.name, {"pruned": "weights", **key_part}, N_FILES) as store:
                part = replace(part, weights=pruning.rows(readout, store))
        if config.bits:
            rounding = Quantised(readers, self.train, config.blocks, config.bits, config.seed, batch_tokens)
            with self._store(readout.name, {"bits": list(config.bits), **key_part}, rounding.n_files) as store:
                part = replace(part, quantised=rounding.rows(readout, store))
        return part

    def _pruned(self, chosen_on: Readout, reported_on: Readout) -> tuple[Rows, Rows]:
        """Return the rows of `pruning.csv` and `pruning_areas.csv`; the losses of `chosen_on` decide on the order."""
        config, rows, areas = self.config, list[Any](), list[Any]()
        for units in config.units if config.prune else ():
            key_part = {
                "pruned": units,
                "kind": config.prune_kind,
                "share": config.prune_share,
                "blocks": list(config.blocks),
            }
            content = [fingerprint_of(*readout.content) for readout in (chosen_on, reported_on)]
            how = Cumulative(
                self.setup.readers, units, config.prune_kind, self._stands, config.blocks, config.prune_share,
                config.seed, self.stores[-1].plan.batch_tokens,
            )  # fmt: skip
            n_units = len(config.blocks) * (self.setup.model.heads.n_heads if units == "heads" else 1)
            if n_units < 2:  # there is but one order
                continue
            n_passes = n_files(n_units, config.prune_share)
            with self._store(reported_on.name, key_part | {"content": content}, n_passes) as store:
                new_rows = how.rows(chosen_on, reported_on, store)
            rows, areas = [*rows, *new_rows[0]], [*areas, *new_rows[1]]
        return rows, areas

    @cached_property
    def _stands(self) -> Tensor:
        """Replacements of the outputs of all heads together, shape (n_layers, width)."""
        model = self.setup.readers.model
        stands = torch.zeros(model.heads.n_layers, model.width, device=self.setup.readers.device)
        if self.config.prune_kind == "mean":
            for block in self.config.blocks:
                stands[block - 1] = self.passes.replacements(block).mean
        return stands

    @contextmanager
    def _store(self, readout: str, key_part: Mapping[str, Any], n_passes: int | None = None) -> Iterator[WorkStore]:
        key = _key(self.setup, self.stores, self.config, readout, key_part)
        n_passes = n_passes or 2 * len(self.jobs) + 1
        with opened(self.setup.source, key, self.stores[-1], self.text.tokens, n_passes, "ablate") as store:
            yield store

    def _run(self, store: WorkStore, readout: Readout, passes: Callable[[], Passes]) -> dict[AblationJob, Any]:
        config = self.config
        chosen = {
            i + 1: job for i, job in enumerate(self.jobs) if is_needed(job, config.units, config.kinds, config.blocks)
        }
        what = "heads and layers" if readout.name == POSITION else f"heads and layers, {readout.name}"
        return run_unfinished(chosen, store, lambda job: passes().run(job, readout), what)

    def _probes(self, store: WorkStore) -> tuple[FrozenProbes, Labels]:
        """Return the later layers' probes with the labels of the test sentences, and the classes."""
        weight, classes = self.probed.probes(self.stores, store)
        labels = self.probed.labels(self.stores, -1, classes, "test")
        return FrozenProbes(weight, torch.from_numpy(labels[self.text.of_corpus].astype(np.int64))), classes

    def _retrained(
        self,
        store: WorkStore,
        results: Mapping[AblationJob, Any],
        strongest: Sequence[AblationJob],
        probes: FrozenProbes,
        classes: Labels,
    ) -> dict[AblationJob, Any]:
        passes_of_train = cache(lambda: self._passes_over(self.train))

        def again(job: AblationJob) -> Tensor:
            of_train = self.probed.labels(self.stores, 0, classes, "train")[self.train.of_corpus]
            of_text = probes.labels.numpy().astype(np.int32)
            parts = Labelled(passes_of_train(), of_train), Labelled(self.passes, of_text)
            return retrained(*parts, classes, job, self.probed.training(), probes.layers(job.block))

        blocks = {job.block for job in strongest}
        jobs_again = [job for job in results if job in strongest or (job.kind is None and job.block in blocks)]
        files = {len(self.jobs) + 1 + self.jobs.index(job): job for job in jobs_again}
        return run_unfinished(files, store, again, "retrained")

    def _importance(self, store: WorkStore, readout: Readout) -> Rows:
        """Return the rows of `importance.csv`, whose gradients are stored as the last file."""
        if "heads" not in self.config.units:
            return []
        last, setup = store.plan.n_files - 1, self.setup
        if store.unfinished([last]):
            gradients = importance(setup.readers.model, setup.pad_token_id, readout, store.plan.batch_tokens)
            store.put(last, {"importance": gradients})
        by_item = store.get(last)["importance"].abs().numpy()
        layer = max(readout.layers(1))
        return importance_rows(by_item, readout.n, self.config.blocks, layer, readout.name)


def _key(
    setup: InterventionSetup, stores: Sequence[ActivationStore], config: AblationConfig, readout: str,
    part: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return all that changes the results of a pass; units and kinds are not part of the key."""
    of_passes = {
        "format": FORMAT,
        "readout": readout,
        "train": dict(stores[0].plan.key),
        "split_seed": setup.split_seed,
        **part,
        "trainer": {name: str(value) for name, value in setup.source.trainer.items()},
        "n_tokens": config.n_tokens,
        "seed": config.seed,
    }
    return {**stores[-1].plan.key, "ablation": of_passes}


def _is(splits: Sequence[Split], side: Split) -> Any:
    return np.array([split == side for split in splits], dtype=bool)


def _intact(part: _ReadoutResults) -> dict[int, float]:
    intact_values = {
        unit_effect.layer: float(unit_effect.intact.sum() / unit_effect.n.sum())
        for unit_effect in part.unit_effects
        if unit_effect.readout != RETRAINED
    }
    return dict(sorted(intact_values.items()))


def check(units: Sequence[UnitType], kinds: Sequence[Kind], prune: bool) -> None:
    """Reject a choice under which nothing is ablated.

    Raises:
        UserError: If heads alone are skipped, or cumulative ablation lacks the kinds zero and mean.
    """
    if prune and not {"zero", "mean"} & {*kinds}:
        raise UserError(
            f"`--prune` ablates heads together by zero or mean, and `--kinds` has {', '.join(kinds)}; add one of them."
        )
    if list(units) == ["heads"] and list(kinds) == ["skip"]:
        raise UserError("`--kinds skip` takes whole layers out; give `--units layers`, or other kinds for heads.")
