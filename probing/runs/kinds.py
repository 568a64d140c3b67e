"""The results of every command as Python has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from probing.runs.diagnostics import Cloze, Hierarchy
from probing.runs.evaluations import SentenceSimilarity, WordsInContext
from probing.runs.result_folder import ResultFolder
from probing.runs.trainings import CheckpointSeries, Pretraining
from probing.tables.rows import Table


@dataclass(frozen=True, repr=False)
class Comparison(ResultFolder):
    """A finished comparison.

    Args:
        folder: Folder of the comparison.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        agreement: A dict per pair of layers and statistic, as in `agreement.csv`.
        top_everywhere: A dict per neuron that is among the first of every run, as in `top_everywhere.csv`.
    """

    agreement: Table
    top_everywhere: Table

    def tables(self) -> list[Any]:
        """Return the agreement as rich tables."""
        from probing.tables.agreement import agreement_tables

        return agreement_tables(self.agreement)


@dataclass(frozen=True, repr=False)
class Geometry(ResultFolder):
    """A finished measurement of `geometry`; each table is a list of dicts.

    Args:
        folder: Folder of the measurement.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        geometry: Rows of `geometry.csv`.
        outliers: Rows of `outliers.csv`.
        dimensions: Rows of `dimensions.csv`.
        parameters: Rows of `parameters.csv`.
        explained: Rows of `explained.csv`.
        first_token: Rows of `first_token.csv`; empty unless the first token was left out.
        smoothing: Rows of `smoothing.csv`; empty if not asked for or not applicable.
        smoothing_sentences: Rows of `smoothing_sentences.csv`; empty if not asked for or not applicable.
        interventions: Rows of `interventions.csv`; empty if not asked for or not applicable.
        norms: Rows of `norms.csv`; empty if not asked for or without outliers.
        norm_changes: Rows of `norm_changes.csv`; empty if not asked for or without outliers.
        path: Rows of `path.csv`; empty if not asked for or without outliers.
        first_row: Rows of `first_row.csv`; empty likewise, or without a position table.
        neuron_interventions: Rows of `neuron_interventions.csv`; empty if no neurons were named.
        neuron_draws: Rows of `neuron_draws.csv`, likewise.
    """

    geometry: Table
    outliers: Table
    dimensions: Table
    parameters: Table
    explained: Table
    first_token: Table = field(default_factory=Table)
    smoothing: Table = field(default_factory=Table)
    smoothing_sentences: Table = field(default_factory=Table)
    interventions: Table = field(default_factory=Table)
    norms: Table = field(default_factory=Table)
    norm_changes: Table = field(default_factory=Table)
    path: Table = field(default_factory=Table)
    first_row: Table = field(default_factory=Table)
    neuron_interventions: Table = field(default_factory=Table)
    neuron_draws: Table = field(default_factory=Table)

    @property
    def _inside(self) -> tuple[Table, ...]:
        return self.smoothing, self.interventions, self.norms, self.norm_changes, self.path, self.first_row

    def tables(self) -> list[Any]:
        """Return the measurements as rich tables."""
        from probing.internals.inside_report import inside_tables
        from probing.tables import neuron_interventions
        from probing.tables.first_token import first_token_tables
        from probing.tables.geometry import tables

        own = [*tables(self), *first_token_tables(self.first_token)]
        return [*own, *inside_tables(*self._inside), *neuron_interventions.tables(self.neuron_interventions)]

    def conclusions(self) -> list[str]:
        """Return what the measurements say, a sentence for each question."""
        from probing.internals.inside_report import inside_conclusions
        from probing.tables import neuron_interventions
        from probing.tables.first_token import first_token_conclusions
        from probing.tables.geometry import conclusions

        clipped = {int(layer): neurons for layer, neurons in self.results["clipped"].items()}
        lines = [*conclusions(self, clipped), *first_token_conclusions(self.first_token)]
        lines += inside_conclusions(*self._inside)
        return [*lines, *neuron_interventions.conclusions(self.neuron_interventions)]


@dataclass(frozen=True, repr=False)
class Attention(ResultFolder):
    """A finished survey of heads; tables that were not measured are empty.

    Args:
        folder: Folder of the survey.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        heads: A dict per layer, head, measure and type of tokens, as in `heads.csv`.
        attention_layers: The same of each layer, as in `attention_layers.csv`.
        attention_classes: A dict per layer, head and factor of the thresholds, as in `attention_classes.csv`.
        rollout: A dict per layer, kind of token and measure, as in `rollout.csv`.
        similarity: A dict per measure and pair of heads or of layers, as in `similarity.csv`.
        relations: A dict per dependency relation, as in `relations.csv`.
        head_relations: A dict per head, with the relation that it finds most often, as in `head_relations.csv`.
        trees: A dict per head, as in `trees.csv`.
        roles: A dict per role, side that attends and head, as in `roles.csv`.
        change: A dict per measure and head, layer or matrix of parameters, as in `change.csv`.
        fusion: A dict per task, fusion of layers and measure, as in `fusion.csv`.
        position_heads: A dict per head, as in `position_heads.csv`.
        position_neurons: A dict per position head and neuron, as in `position_neurons.csv`.
        position_removal: A dict per position head, ranking and number of neurons, as in `position_removal.csv`.
    """

    heads: Table = field(default_factory=Table)
    attention_layers: Table = field(default_factory=Table)
    attention_classes: Table = field(default_factory=Table)
    rollout: Table = field(default_factory=Table)
    similarity: Table = field(default_factory=Table)
    relations: Table = field(default_factory=Table)
    head_relations: Table = field(default_factory=Table)
    trees: Table = field(default_factory=Table)
    roles: Table = field(default_factory=Table)
    change: Table = field(default_factory=Table)
    fusion: Table = field(default_factory=Table)
    position_heads: Table = field(default_factory=Table)
    position_neurons: Table = field(default_factory=Table)
    position_removal: Table = field(default_factory=Table)

    def tables(self) -> list[Any]:
        """Return the survey as rich tables."""
        from probing.tables import heads, position_heads

        return heads.tables(vars(self)) + position_heads.tables(vars(self))

    def conclusions(self) -> list[str]:
        """Return what the survey says, a sentence for each question."""
        from probing.tables import heads, position_heads
        from probing.tables.first_token import causal_conclusions

        is_causal = self.results.get("model", {}).get("is_causal", False)
        lines = heads.conclusions(vars(self)) + causal_conclusions(is_causal, self.heads)
        return lines + position_heads.conclusions(vars(self))


@dataclass(frozen=True, repr=False)
class Disabled(ResultFolder):
    """What `disable` found.

    Args:
        folder: Folder of the results.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        disabled: A dict per head or layer, kind of replacement and layer that is read, as in `disabled.csv`.
        better_without: A dict per kind of replacement and layer that is read, for heads and for layers, as in
            `better_without.csv`.
        importance: A dict per head, as in `importance.csv`; empty if no heads were disabled.
        pruning: A dict per order and step in which units were disabled together, as in `pruning.csv`; empty without.
        pruning_areas: A dict per order that is not random, as in `pruning_areas.csv`.
    """

    disabled: Table
    better_without: Table
    importance: Table = field(default_factory=Table)
    pruning: Table = field(default_factory=Table)
    pruning_areas: Table = field(default_factory=Table)

    def tables(self) -> list[Any]:
        """Return the effects as rich tables."""
        from probing.tables.disabling import tables

        return tables(vars(self))

    def conclusions(self) -> list[str]:
        """Return what the effects say, a sentence for each question."""
        from probing.tables.disabling import conclusions

        return conclusions(vars(self))


@dataclass(frozen=True, repr=False)
class FinishedSweep(ResultFolder):
    """A finished sweep. Its trials, in `folder / "trials"`, are runs of their own.

    Args:
        folder: Folder of the sweep.
        config: What decides which trials there are: the sweep file as `sweep`, the number of trials, the seed, and the
            options that hold for all trials as `fit`.
        results: The content of `results.json`.
        sweep: A dict for each trial and layer, as in `sweep.csv`; also as `rows`.
    """

    sweep: Table

    @property
    def rows(self) -> Table:
        """A dict for each trial and layer, as in `sweep.csv`."""
        return self.sweep

    @property
    def best(self) -> str:
        """Name of the best trial."""
        return str(self.results["best"]["trial"])

    def tables(self) -> list[Any]:
        """Return the best rows as a rich table."""
        from probing.tables.sweeps import best_table

        metric = self.config["sweep"].get("metric") or {}
        varied = [name for name in self.results["best"] if name not in ("trial", "metric")]
        return [best_table(self.sweep, varied, metric.get("name"), metric.get("goal", "minimize"))]


@dataclass(frozen=True, repr=False)
class Reproduction(ResultFolder):
    """What `reproduce` found of a paper's claims.

    Args:
        folder: Folder of the results.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
        claims: A dict per claim and model, as in `claims.csv`.
    """

    claims: Table

    def tables(self) -> list[Any]:
        """Return the claims as rich tables."""
        from probing.tables.claims import tables

        return tables(self.claims)

    def conclusions(self) -> list[str]:
        """Return how many claims have each verdict."""
        from probing.tables.claims import conclusions

        return conclusions(self.claims, self.results["title"])


@dataclass(frozen=True, repr=False)
class Rankings(ResultFolder):
    """The rankings that `rank` made of a run, and what it measured of them.

    Args:
        folder: Folder of the rankings, `rankings` in the run's folder.
        config: The resolved configuration of the run.
        results: The content of the run's `results.json`.
        rankings: For each method, a dict per layer and neuron in ranked order, as in `METHOD.csv`.
        evaluation: A dict per ranking, probe, end and size, as in `evaluation.csv`; empty if not asked for.
        erasure: A dict per layer and condition, as in `erasure.csv`; empty if not asked for.
        curves: A dict per ranking, kind, end, number of neurons and draw, as in `curves.csv`; empty if not asked for.
    """

    rankings: dict[str, Table]
    evaluation: Table
    erasure: Table
    curves: Table

    def tables(self) -> list[Any]:
        """Return the results as rich tables."""
        from probing.tables.rankings import curves_tables, erasure_tables, evaluation_tables, rankings_tables

        return [
            *rankings_tables(self.rankings),
            *evaluation_tables(self.evaluation),
            *erasure_tables(self.erasure),
            *curves_tables(self.curves),
        ]


# The kinds that `results.json` names. Tables that have a default are not written by every command of the kind.
KINDS: dict[str, type[ResultFolder]] = {
    "comparison": Comparison,
    "geometry": Geometry,
    "survey of attention heads": Attention,
    "disabling of heads and layers": Disabled,
    "pretraining with and without positions": Pretraining,
    "series of checkpoints": CheckpointSeries,
    "linear order or hierarchy": Hierarchy,
    "predictions at masks": Cloze,
    "word-in-context evaluation": WordsInContext,
    "similarity evaluation": SentenceSimilarity,
    "reproduction of a paper": Reproduction,
    "sweep": FinishedSweep,
}
