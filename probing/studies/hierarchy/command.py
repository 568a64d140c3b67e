"""`hierarchy`: does a probe generalise by linear order or by hierarchy, if its training sentences fit both?"""

from __future__ import annotations

from typing import Any

from probing.cli.commandline import configured
from probing.cli.option_types import FIGURE_FORMAT, Dtype, FigureFormat, Layers, Model, Probe, Tokenizer, Wandb, chosen
from probing.cli.options import ProbeOptions, WandbOptions, as_options
from probing.errors import out_of_range
from probing.runs.call import Call
from probing.runs.study import Result, study_of
from probing.runtime.machine import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.studies.hierarchy.tables import CONTROLS, LINEAR


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
    """Find whether a probe of each layer generalises by linear order or by hierarchy.

    The sentences come from a grammar. In those that the probe is trained on, the first auxiliary (or noun) is the main
    one; in those for generalisation it is not.

    Args:
        tasks: What the probe looks for: all, or some of main_auxiliary (the auxiliary of the main clause) and
            subject_noun (the head of the subject).
        controls: Controls that the model is compared with: all, none, or some of untrained (a randomly initialised
            model) and permuted_positions (the model reads each sentence with its tokens permuted).
        train_sentences: Number of sentences that probes are trained on.
        test_sentences: Number of validation sentences, on which the penalty is chosen, and also of test sentences; both
            are of the same kind as the training sentences.
        generalisation_sentences: Number of sentences in which the two rules differ.
        seed: Seed of every random draw: the sentences, permuted tokens, adam's batches, random initialisation.
        name: Name of this run; MODEL-hierarchy-YYYYMMDD-HHMMSS by default.
        trainer: Arguments of Lightning's Trainer, such as --trainer.max_epochs 50.

    Returns:
        What was found; None on ranks other than the first.
    """
    sizes = {name: config[name] for name in ("train_sentences", "test_sentences", "generalisation_sentences")}
    too_few = [problem for option, n in sizes.items() for problem in out_of_range(option, n, 1, 100_000)]
    probe = as_options(ProbeOptions, probe, "probe")
    call = Call.of(study_of("hierarchy"), config, name, wandb, [*probe.problems_without_bias(), *too_few])
    wanted = chosen("--tasks", tasks, list(LINEAR)), chosen("--controls", controls, list(CONTROLS), "none")
    with quiet_libraries():
        from probing.studies.hierarchy.survey import Asked, Sizes, measured, survey

        source = call.source(probe.solver, tokenizer=tokenizer)
        asked = Asked(*wanted, Sizes(*sizes.values()), probe, seed)  # type: ignore[arg-type]
        call.expect(2 * len(asked.tasks))
        found = survey(source, asked, call.say)
        if not is_main_process():
            return None
        return call.write(source.model, lambda folder: measured(found, asked.sizes, source.model.short_name))
