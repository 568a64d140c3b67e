"""The study `hierarchy`: generalisation of probes by linear order or by hierarchy, if trained where both agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from probing.cli.commandline import configured
from probing.cli.option_types import FIGURE_FORMAT, Dtype, FigureFormat, Layers, Model, Probe, Tokenizer, Wandb, chosen
from probing.cli.options import ProbeOptions, WandbOptions, as_options
from probing.errors import out_of_range
from probing.runs import Result, Study, study_of
from probing.runs.call import Call
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.hierarchy import tables
from probing.studies.hierarchy.tables import CONTROLS, LINEAR
from probing.tables.figures import Chart


@configured
def hierarchy(
    config: dict[str, Any],
    model: Model = "minilm", layer: Layers = "all", revision: str | None = None, random_weights: bool = False,
    dtype: Dtype = "float32", tasks: str | list[str] = "all", controls: str | list[str] = "all",
    train_sentences: int = 2500, test_sentences: int = 500, generalisation_sentences: int = 1000,
    batch_tokens: int | None = None, seed: int = 0, runs: str = "runs", name: str | None = None,
    cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    probe: Probe = ProbeOptions(), wandb: Wandb = WandbOptions(), tokenizer: Tokenizer = None,
    figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result | None:  # fmt: skip
    """Test whether a probe of each layer generalises by linear order or by hierarchy.

    The sentences come from a grammar. In the training sentences, the first auxiliary (or noun) is the main auxiliary
    (or noun); in the generalisation sentences, it is not.

    Args:
        tasks: Words that the probe predicts: all, or some of main_auxiliary (the auxiliary of the main clause) and
            subject_noun (the head of the subject).
        controls: Controls: all, none, or some of untrained (a randomly initialised model) and permuted_positions (the
            model reads each sentence with permuted tokens).
        train_sentences: Number of training sentences.
        test_sentences: Number of validation sentences, on which the penalty is selected, and also of test sentences;
            both are of the same kind as the training sentences.
        generalisation_sentences: Number of sentences in which the two rules differ.
        seed: Seed of every random draw: the sentences, permuted tokens, adam's batches, random initialisation.
        name: Name of this run; default: MODEL-hierarchy-YYYYMMDD-HHMMSS.
        trainer: Arguments of Lightning's Trainer, such as --trainer.max_epochs 50.

    Returns:
        The results; None except in the rank-zero process.
    """
    sizes = {name: config[name] for name in ("train_sentences", "test_sentences", "generalisation_sentences")}
    too_few = [problem for option, n in sizes.items() for problem in out_of_range(option, n, 1, 100_000)]
    probe = as_options(ProbeOptions, probe, "probe")
    call = Call.of(study_of("hierarchy"), config, name, wandb, [*probe.problems_without_bias(), *too_few])
    selected = chosen("--tasks", tasks, list(LINEAR)), chosen("--controls", controls, list(CONTROLS), "none")
    with quiet_libraries():
        from probing.studies.hierarchy.survey import HierarchyConfig, Sizes, survey

        source = call.source(probe.solver, tokenizer=tokenizer)
        hierarchy_config = HierarchyConfig(*selected, Sizes(*sizes.values()), probe, seed)  # type: ignore[arg-type]
        call.expect(2 * len(hierarchy_config.tasks))
        measured = survey(source, hierarchy_config, call.say)
        if not is_main_process():
            return None
        return call.write(source.model, lambda _: measured)


class Hierarchy(Study):
    """Generalisation of probes by linear order or by hierarchy."""

    name, kind, title = "hierarchy", "linear order or hierarchy", "Linear order or hierarchy"
    function = "probing.studies.hierarchy:hierarchy"
    in_several_processes = True
    schemas = tables.HIERARCHY, tables.DISTRACTORS
    page = "hierarchy.md"
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
