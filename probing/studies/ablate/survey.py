"""Survey of the effects of ablated heads and layers: probes, resumable passes, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.activations.store import WorkStore
from probing.data.labelling import origin
from probing.errors import UserError
from probing.interventions import POSITION, RETRAINED, TUNED, ReadoutUnit, measure_of
from probing.interventions.forward import ReadableText, Readout
from probing.interventions.heads import (
    KINDS,
    AblationJob,
    HeadPasses,
    HeadReplacement,
    UnitType,
    all_jobs,
    chosen_units,
    is_needed,
)
from probing.interventions.parameters import roundings
from probing.interventions.passes import Rows, Sums, fingerprint_of, run_unfinished, tested
from probing.interventions.probed_task import retrained
from probing.interventions.subject import InterventionSetup, InterventionTexts
from probing.page.charts import HeadMeasure, Place, head_map
from probing.results import Html, Row, Table, capitalised, curve_points, element, in_brackets
from probing.runs.call import Measurements
from probing.runs.loading import Tuned
from probing.runtime.progress import stage
from probing.statistics import ENDS
from probing.statistics.chance import correct_p_values, percentile_of, rank_p
from probing.studies.ablate import tables
from probing.studies.ablate.neurons import ProbedClasses
from probing.studies.ablate.weights import (
    N_FILES,
    Cumulative,
    importance,
    importance_rows,
    n_files,
    pruned_weights,
    rounded_numbers,
)
from probing.tables.figures import Drawings, draw_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    kinds: Sequence[HeadReplacement]
    blocks: Sequence[int]
    n_tokens: int
    n_retrained: int
    seed: int
    prune: bool = False
    prune_share: float = 0.1
    prune_weights: bool = False
    bits: Sequence[int] = ()

    @property
    def prune_kind(self) -> HeadReplacement:
        """The replacement in cumulative ablation: zeros, as published, or the mean."""
        return "zero" if "zero" in self.kinds else "mean"


def survey(
    setup: InterventionSetup, stores: Sequence[ActivationStore], config: AblationConfig, tuned: Tuned | None = None
) -> Measurements:
    """Ablate one unit after the other, and read the later layers; `tuned` is the tuned model whose head is read.

    Raises:
        UserError: If the cache cannot be written.
    """
    work = _ReadoutPasses.of(setup, stores, config)
    parts: list[_ReadoutResults] = []
    if POSITION in setup.readouts:
        with stage(f"positions read without {' and '.join(config.units)}"):
            parts.append(work.positions())
    if others(setup):
        named = ["the task" if name == TUNED else name for name in others(setup)]
        with stage(f"{' and '.join(named)} read without {' and '.join(config.units)}"):
            parts += map(work.other, setup.other_readouts(work.text, config.n_tokens, config.seed, stores))
    unit_effects = [unit_effect for part in parts for unit_effect in part.unit_effects]
    frozen = [unit_effect for unit_effect in unit_effects if unit_effect.readout != RETRAINED]
    tables = {
        "ablated": effect_rows(unit_effects), "better_without": better_without_rows(frozen, config.seed),
        "raising": raising_rows(frozen, config.seed),
    }  # fmt: skip
    for part in parts:
        for name, rows in part.tables.items():
            if rows:
                tables[name] = [*tables.get(name, ()), *rows]
    results = {
        "cache": {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))},
        "model": {"n_layers": stores[-1].plan.n_layers, "n_heads": setup.model.heads.n_heads},
        "n_sentences": work.text.tokens.n_sentences,
        "n_tokens": work.text.tokens.n_tokens,
        "readouts": {part.readout.name: part.summary for part in parts},
    }
    if tuned is not None:
        n_tested = tuned.results["n_examples"]["test"]
        results["tuned"] = {
            "run": str(tuned.folder), "checkpoint": tuned.checkpoint.name, "score": tuned.score, "n_tested": n_tested,
        }  # fmt: skip
    return Measurements(tables, results, _logged_rows(tables["ablated"]))


def others(setup: InterventionSetup) -> list[str]:
    """Return the names of the readouts other than positions."""
    return [name for name in setup.readouts if name != POSITION]


@dataclass(frozen=True)
class _ReadoutResults:
    readout: Readout
    unit_effects: Sequence[PassScores]
    tables: Mapping[str, Rows]

    @property
    def summary(self) -> dict[str, Any]:
        """The number of examples, and the measure of the intact model by layer."""
        intact = {
            scores.layer: float(scores.intact.sum() / scores.n.sum())
            for scores in self.unit_effects
            if scores.readout != RETRAINED
        }
        by_layer = {str(layer): value for layer, value in sorted(intact.items())}
        return {"n_examples": int(self.readout.n.sum()), "intact": by_layer}


@dataclass(frozen=True, eq=False)
class _ReadoutPasses(InterventionTexts):
    """The passes of all readouts."""

    config: AblationConfig

    @cached_property
    def jobs(self) -> list[AblationJob]:
        """All possible passes; the index of a pass's file is the index of its job plus 1."""
        heads = self.setup.model.heads
        return all_jobs(heads.n_layers, heads.n_heads)

    @cached_property
    def passes(self) -> HeadPasses:
        return self._passes_over(self.text)

    def _passes_over(self, text: ReadableText) -> HeadPasses:
        return HeadPasses(self.setup.readers, text, self.train, self.batch_tokens, self.config.seed)

    def positions(self) -> _ReadoutResults:
        """Read positions by frozen and by retrained probes."""
        config, task = self.config, self.setup.probed(POSITION)
        with self._store(POSITION, task.key(self.stores)) as store:
            probes, device = task.probes(self.stores, store), self.setup.readers.device
            classes = ProbedClasses(task, self.stores, self.train, *probes, device, config.seed)
            readout = classes.readout(self.text)
            results = self._run(store, readout, self.passes)
            layers = {block: readout.layers(block) for block in config.blocks}
            unit_effects = pass_scores_of(results, layers, readout.n, POSITION)
            if config.n_retrained:
                last = {
                    unit_effect.job: unit_effect.effect()
                    for unit_effect in unit_effects
                    if unit_effect.layer == classes.last
                }
                strongest = chosen_units(list(results), last, config.n_retrained, config.seed)
                repeated = self._retrained(store, results, strongest, classes)
                unit_effects += pass_scores_of(repeated, layers, readout.n, RETRAINED)
            of_gradients = self._importance(store, readout)
        pruned = self._pruned(classes.readout(self.train), readout)
        tables = {"importance": of_gradients, **pruned, **self._of_weights(readout)}
        return _ReadoutResults(readout, unit_effects, tables)

    def other(self, readout: Readout) -> _ReadoutResults:
        with self._store(readout.name, {"content": fingerprint_of(*readout.content)}) as store:
            results = self._run(store, readout, self._passes_over(readout.text))
            layers = {block: readout.layers(block) for block in self.config.blocks}
            unit_effects = pass_scores_of(results, layers, readout.n, readout.name)
            tables = {"importance": self._importance(store, readout)}
        if self.config.prune:
            sides = self.setup.pruning_sides(readout, self.train, self.config.n_tokens, self.config.seed)
            tables |= self._pruned(*sides)
        return _ReadoutResults(readout, unit_effects, tables | self._of_weights(readout))

    def _of_weights(self, readout: Readout) -> dict[str, Rows]:
        """Return the rows of pruned weights and of rounded numbers, if requested."""
        config, readers, tables = self.config, self.setup.readers, dict[str, Rows]()
        key_part = {"blocks": list(config.blocks), "content": fingerprint_of(*readout.content)}
        if config.prune_weights:
            with self._store(readout.name, {"pruned": "weights", **key_part}, N_FILES) as store:
                tables["weight_pruning"] = pruned_weights(
                    readers, config.blocks, config.seed, self.batch_tokens, readout, store
                )
        if config.bits:
            n_passes = 1 + len(roundings(config.bits))
            with self._store(readout.name, {"bits": list(config.bits), **key_part}, n_passes) as store:
                tables["quantised"] = rounded_numbers(
                    readers, self.train, config.blocks, config.bits, config.seed, self.batch_tokens, readout, store
                )
        return tables

    def _pruned(self, chosen_on: Readout, reported_on: Readout) -> dict[str, Rows]:
        """Return the rows of cumulative ablation; the losses of `chosen_on` decide on the order."""
        config, tables = self.config, dict[str, Rows](pruning=[], pruning_areas=[])
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
                config.seed, self.batch_tokens,
            )  # fmt: skip
            n_units = len(config.blocks) * (self.setup.model.heads.n_heads if units == "heads" else 1)
            if n_units < 2:  # there is but one order
                continue
            n_passes = n_files(n_units, config.prune_share)
            with self._store(reported_on.name, key_part | {"content": content}, n_passes) as store:
                for rows, new_rows in zip(tables.values(), how.rows(chosen_on, reported_on, store), strict=True):
                    rows += new_rows
        return tables

    @cached_property
    def _stands(self) -> Tensor:
        """Replacements of the outputs of all heads together, shape (n_layers, width)."""
        model = self.setup.readers.model
        stands = torch.zeros(model.heads.n_layers, model.width, device=self.setup.readers.device)
        if self.config.prune_kind == "mean":
            for block in self.config.blocks:
                stands[block - 1] = self.passes.replacements(block).mean
        return stands

    def _store(
        self, readout: str, key_part: Mapping[str, Any], n_passes: int | None = None
    ) -> AbstractContextManager[WorkStore]:
        # The passes of single units, requested or not, are numbered by all kinds that exist.
        kinds = {"kinds": list(KINDS)} if n_passes is None else {}
        return self.opened("ablation", {**kinds, "readout": readout, **key_part}, n_passes or 2 * len(self.jobs) + 1)

    def _run(self, store: WorkStore, readout: Readout, passes: HeadPasses) -> dict[AblationJob, Sums]:
        config = self.config
        chosen = {
            i + 1: job for i, job in enumerate(self.jobs) if is_needed(job, config.units, config.kinds, config.blocks)
        }
        what = "heads and layers" if readout.name == POSITION else f"heads and layers, {readout.name}"
        return run_unfinished(chosen, store, lambda job: passes.read(job, readout), what)

    def _retrained(
        self,
        store: WorkStore,
        results: Mapping[AblationJob, Any],
        strongest: Sequence[AblationJob],
        classes: ProbedClasses,
    ) -> dict[AblationJob, Any]:
        train = classes.labelled(self._passes_over(self.train), self.train)
        text = classes.labelled(self.passes, self.text)

        def again(job: AblationJob) -> Tensor:
            layers = [layer for layer in classes.weight if layer >= job.block]
            return retrained(train, text, classes.classes, job, classes.task.training(), layers)

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


def check(units: Sequence[UnitType], kinds: Sequence[HeadReplacement], prune: bool) -> None:
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


Member = TypeVar("Member")

# Rounding gives smaller sums of differences.
_ROUNDING = 1e-9

# A gain of more than this many standard errors, one-sided 5%, is clear.
CLEAR = 1.645


@dataclass(frozen=True)
class PassScores:
    """The result of one pass in one layer.

    Args:
        right: Sum of the measure over the examples of each item, such as a sentence, shape (n_items,): for a share, the
            number of correct examples.
        intact: The same for the intact model.
        n: Number of examples of each item, shape (n_items,).
    """

    job: AblationJob
    readout: str
    layer: int
    right: Sums
    intact: Sums
    n: NDArray[np.int64]

    @property
    def group(self) -> tuple[str, str, str]:
        """Key of tests that are corrected together: layers or heads, kind of replacement, readout."""
        return "layers" if self.job.head is None else "heads", str(self.job.kind), self.readout

    @property
    def named(self) -> dict[str, Any]:
        """Columns of a row for all units of a group in a layer."""
        return {**dict(zip(("units", "kind", "readout"), self.group, strict=True)), "layer": self.layer}

    @property
    def measure(self) -> ReadoutUnit:
        """Name and unit of the measure."""
        return measure_of(self.readout)

    def effect(self, items: NDArray[np.bool_] | slice = slice(None)) -> float:
        """Return the measure minus the intact model's, over some items."""
        return float((self.right - self.intact)[items].sum() / self.n[items].sum())

    def tested(self, items: NDArray[np.bool_] | slice = slice(None)) -> dict[str, Any]:
        """Return the effect over some items with its 95% confidence interval and its p-value, paired by item."""
        return tested(self.right[items], self.intact[items], self.n[items], self.measure.is_share)


def _grouped(members: Iterable[Member], key: Callable[[Member], Any]) -> list[list[Member]]:
    groups: dict[Any, list[Member]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return list(groups.values())


def effect_rows(pass_scores: Sequence[PassScores]) -> Rows:
    """Return the rows of `ablated.csv`.

    `effect` is the measure, such as accuracy, minus the intact model's, paired by item. `percentile` is the percentage
    of the other heads that cost less when ablated, measured in the same layer and by the same kind of replacement.
    p-values are two-sided and corrected (Holm) for the number of heads, or layers, and of read layers, for each kind
    and readout.
    """
    rows: Rows = []
    for scores in pass_scores:
        total = scores.n.sum()
        rows.append({
            "unit": scores.job.unit, "kind": scores.job.kind, "readout": scores.readout, "layer": scores.layer,
            "intact": float(scores.intact.sum() / total), "value": float(scores.right.sum() / total), **scores.tested(),
        })  # fmt: skip
    pairs = list(zip(pass_scores, rows, strict=True))
    for members in _grouped(pairs, lambda pair: pair[0].group):
        correct_p_values([row for _, row in members])
    for members in _grouped(pairs, lambda pair: (pair[0].group, pair[0].layer)):
        for scores, row in members:
            harm = -scores.measure.sign
            others = harm * np.array([other["effect"] for _, other in members if other is not row])
            is_head = scores.job.head is not None
            row["percentile"] = percentile_of(harm * row["effect"], others) if is_head else np.nan
    return rows


def better_without_rows(pass_scores: Sequence[PassScores], seed: int) -> Rows:
    """Return the rows of `better_without.csv`: the unit whose ablation helps most on one half, tested on the other.

    There is a row for heads and for layers, for each kind, readout and read layer. p-values are two-sided and corrected
    for the number of rows (Holm).
    """
    rows: Rows = []
    for members in _grouped(pass_scores, lambda scores: (scores.group, scores.layer)):
        first = members[0]
        order = np.random.default_rng(seed).permutation(len(first.n))
        chosen_on = order < len(order) // 2
        if not all(first.n[half].sum() for half in (chosen_on, ~chosen_on)):
            continue
        best = max(members, key=lambda scores, half=chosen_on: scores.measure.sign * scores.effect(half))  # type: ignore[misc]
        rows.append({
            **first.named, "unit": best.job.unit,
            "effect_chosen_on": best.effect(chosen_on), **best.tested(~chosen_on),
        })  # fmt: skip
    correct_p_values(rows)
    return rows


# Number of draws of the signs of differences.
N_SIGNS = 2000


def raising_rows(pass_scores: Sequence[PassScores], seed: int) -> Rows:
    """Return the rows of `raising.csv`: the number of units whose ablation raises a measure, and the chance level.

    There is a row for heads and for layers, for each kind and readout, in the highest layer that is read. Null
    hypothesis: if units change items only by chance, the sign of an item's differences is arbitrary. All units of an
    item get the same sign, which preserves correlations between units. The count is of clear gains: a sum of
    differences of more than `CLEAR` times the root of the sum of their squares, which signs do not change. `p_value` is
    one-sided, by rank, and corrected for the rows of a readout (Holm).
    """
    rows: Rows = []
    by_readout = _grouped(pass_scores, lambda scores: scores.readout)
    last = {of[0].readout: max(scores.layer for scores in of) for of in by_readout}
    highest = [scores for scores in pass_scores if scores.layer == last[scores.readout]]
    for members in _grouped(highest, lambda scores: scores.group):
        gains = np.stack([scores.measure.sign * (scores.right - scores.intact) for scores in members])
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(N_SIGNS, gains.shape[1]))
        least = CLEAR * np.sqrt((gains**2).sum(1)) + _ROUNDING
        drawn = (signs @ gains.T > least).sum(1)
        clear, better = (int((gains.sum(1) > limit).sum()) for limit in (least, _ROUNDING))
        low, high = np.quantile(drawn, ENDS, method="inverted_cdf")
        rows.append({
            **members[0].named, "n_units": len(members), "n_better": better,
            "n_clear": clear, "n_chance_low": int(low), "n_chance_high": int(high),
            "p_value": rank_p(clear, drawn.astype(np.float64)),
        })  # fmt: skip
    for readout in last:
        correct_p_values([row for row in rows if row["readout"] == readout])
    return rows


def pass_scores_of(
    results: Mapping[AblationJob, Sums], layers: Mapping[int, Sequence[int]], n: NDArray[np.int64], readout: str
) -> list[PassScores]:
    """Return the results of the passes, a member for each read layer, from sums of shape (n_layers, n_items)."""
    intact = {job.block: job_sums for job, job_sums in results.items() if job.kind is None}
    return [
        PassScores(job, readout, layer, job_sums[i], intact[job.block][i], n)
        for job, job_sums in results.items()
        if job.kind is not None
        for i, layer in enumerate(layers[job.block])
    ]


def _by_kind(ablated: Table) -> Iterator[tuple[str, str, Table]]:
    """Yield each readout and kind of replacement, with the rows of heads."""
    for readout in tables.by_readout({"ablated": ablated}):
        heads = tables.of_units(tables.at_last_layer(ablated, readout), "heads")
        yield from ((readout, kind, rows) for kind, rows in heads.by("kind").items())


def maps_of_page(ablated: Table) -> Iterator[Html]:
    """Yield a map of heads for each readout and kind of replacement."""
    for readout, kind, rows in _by_kind(ablated):
        title = capitalised(f"{tables.named(rows[0])} without the head ({kind}), in {measure_of(readout).unit}")
        caption = element("figcaption", f"{title}; the stronger the colour, the more is lost")
        row_of = {_place(row): row for row in rows}
        # No head links to sentences, so that the survey's number is not used.
        yield element("figure", caption, head_map(_measure(row_of), sorted(row_of), 0, title, links=False))


def _place(row: Row) -> Place:
    layer, head = map(int, row["unit"].split("-"))
    return layer, head


def _measure(rows: Mapping[Place, Row]) -> HeadMeasure:
    measure = measure_of(next(iter(rows.values()))["readout"])

    def harm(row: Row) -> float:
        return float(-measure.sign * row["effect"])

    most = max(max(map(harm, rows.values())), 1e-12)

    def value_text(row: Row) -> str:
        return f"{tables.amount(row)} {measure.unit}{in_brackets(tables.range_of(row))}"

    return HeadMeasure("effect", "", rows, tables.amount, lambda row: harm(row) / most, value_text)


def head_maps(ablated: Table, model: str) -> Drawings:
    """Return the drawings of the maps of heads."""
    return {
        f"heads_{kind}{tables.file_name(readout)}": partial(draw_head_map, rows=rows, what=f"{model}, {kind}")
        for readout, kind, rows in _by_kind(ablated)
    }


def draw_head_map(figure: Figure, rows: Sequence[Row], what: str) -> None:
    """Draw the effect of ablating each head, a cell for each head, darker for a greater loss."""
    measure = _measure({_place(row): row for row in rows})
    axes = draw_cells(figure, {place: (measure.text(row), measure.shade(row)) for place, row in measure.rows.items()})
    axes.set_title(
        f"{what}: {tables.named(rows[0])} without the head, {measure_of(rows[0]['readout']).unit}", fontsize=9
    )


def _logged_rows(ablated: Rows) -> Rows:
    """Return rows for W&B: by layer, the effect of its ablation on the last layer, a column for each kind."""
    rows = [
        row | {"layer": int(row["unit"])}
        for readout, of in tables.by_readout({"ablated": Table(ablated)}).items()
        for row in tables.of_units(tables.at_last_layer(of["ablated"], readout), "layers")
    ]

    def cells(row: Row) -> Row:
        kind = row["kind"] if row["readout"] == POSITION else f"{row['readout']}_{row['kind']}"
        return {f"{kind}_{name}": row[name] for name in ("effect", "low", "high")}

    return curve_points(rows, cells)
