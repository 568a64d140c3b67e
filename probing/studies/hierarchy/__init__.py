"""The study `hierarchy`: generalisation of probes by linear order or by hierarchy, if trained where both agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import OutputOptions, ProbedOptions, RunOptions, StatesOptions, option
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.hierarchy import tables
from probing.studies.hierarchy.tables import CONTROLS, LINEAR
from probing.tables.figures import Chart


@dataclass(frozen=True)
class HierarchyOptions(OutputOptions, ProbedOptions, RunOptions, StatesOptions):
    """Options of `hierarchy`."""

    tasks: str | list[str] = option("all", choices=LINEAR)
    """Words that the probe predicts: all, or some of main_auxiliary (the auxiliary of the main clause) and subject_noun
    (the head of the subject)."""
    controls: str | list[str] = option("all", choices=CONTROLS, nothing="none")
    """Controls: all, none, or some of untrained (a randomly initialised model) and permuted_positions (the model reads
    each sentence with permuted tokens)."""
    train_sentences: int = option(2500, at_least=1, at_most=100_000)
    """Number of training sentences."""
    test_sentences: int = option(500, at_least=1, at_most=100_000)
    """Number of validation sentences, on which the penalty is selected, and also of test sentences; both are of the
    same kind as the training sentences."""
    generalisation_sentences: int = option(1000, at_least=1, at_most=100_000)
    """Number of sentences in which the two rules differ."""
    batch_tokens: int | None = None
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: the sentences, permuted tokens, adam's batches, random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-hierarchy-YYYYMMDD-HHMMSS."""
    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer, such as --trainer.max_epochs 50."""

    def problems(self) -> list[str]:
        """Return the problem with a probe that has an intercept."""
        return self.probe_options.problems_without_bias()


@command(HierarchyOptions)
def hierarchy(options: HierarchyOptions) -> Result | None:
    """Test whether a probe of each layer generalises by linear order or by hierarchy.

    The sentences come from a grammar. In the training sentences, the first auxiliary (or noun) is the main auxiliary
    (or noun); in the generalisation sentences, it is not.

    Returns:
        The results; None except in the rank-zero process.
    """
    call = Call.of(study_of("hierarchy"), options)
    with quiet_libraries():
        from probing.studies.hierarchy.survey import HierarchyConfig, Sizes, survey

        probe = options.probe_options
        sizes = Sizes(options.train_sentences, options.test_sentences, options.generalisation_sentences)
        source = call.source(probe.solver, tokenizer=options.tokenizer)
        hierarchy_config = HierarchyConfig(
            options.selected("tasks"), options.selected("controls"), sizes, probe, options.seed
        )
        call.expect(2 * len(hierarchy_config.tasks))
        output = survey(source, hierarchy_config, call.say)
        if not is_main_process():
            return None
        return call.write(source.model, lambda _: output)


class Hierarchy(Study):
    """Generalisation of probes by linear order or by hierarchy."""

    name, kind, title = "hierarchy", "linear order or hierarchy", "Linear order or hierarchy"
    function = "probing.studies.hierarchy:hierarchy"
    in_several_processes = True
    schemas = tables.HIERARCHY, tables.DISTRACTORS
    page = "small-studies.md#linear-order-or-hierarchy"
    files: ClassVar[Mapping[str, str]] = {
        "figures/hierarchy": "The shares by layer, a panel for each task.",
    }

    views = tables.VIEWS

    def charts(self, result: Result) -> list[Chart]:
        """Return the shares by layer."""
        return tables.charts(result.hierarchy)

    def conclusions(self, result: Result) -> list[str]:
        """Return which layers follow which rule."""
        return tables.conclusions(result.hierarchy)


STUDY = Hierarchy()
