"""`hierarchy`: does a probe generalise by linear order or by hierarchy, if its training sentences fit both?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.cli.choices import FIGURE_FORMAT, FigureFormat, chosen, figure_formats
from probing.cli.option_values import Dtype, Layers, Model, Tokenizer, number_problems, resolved
from probing.cli.options import ProbeOptions, WandbOptions
from probing.cli.python_calls import command
from probing.cli.shared_options import with_shared_help
from probing.commands.folders import places, say_results
from probing.errors import out_of_range, refuse
from probing.models import layer_numbers
from probing.runs.diagnostics import Hierarchy
from probing.runs.folder import RunFolder
from probing.runs.loading import read_folder
from probing.runs.tracked import tracking
from probing.runtime.distributed import is_main_process
from probing.runtime.stopwatch import Stopwatch
from probing.tables.hierarchy import COLUMNS, CONTROLS, ITSELF, LINEAR, of_model, tasks_of
from probing.tracking import Tracker, resolve_mode


@command
@with_shared_help
@resolved
def hierarchy(
    config: dict[str, Any],
    model: Model = "minilm", layer: Layers = "all", revision: str | None = None, random_weights: bool = False,
    dtype: Dtype = "float32", tasks: str | list[str] = "all", controls: str | list[str] = "all",
    train_sentences: int = 2500, test_sentences: int = 500, generalisation_sentences: int = 1000,
    batch_tokens: int | None = None, seed: int = 0, runs: str = "runs", name: str | None = None,
    cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    probe: ProbeOptions = ProbeOptions(), wandb: WandbOptions = WandbOptions(), tokenizer: Tokenizer = None,
    figure_format: FigureFormat = FIGURE_FORMAT,
) -> Hierarchy | None:  # fmt: skip
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
        seed: Seed of every random draw: the sentences, permuted tokens, adam's batches, random weights.
        name: Name of this run; MODEL-hierarchy-YYYYMMDD-HHMMSS by default.
        trainer: Arguments of Lightning's Trainer, such as --trainer.max_epochs 50.

    Returns:
        What was found; None on ranks other than the first.
    """
    from probing.runtime import terminal

    say = terminal.silence if quiet else terminal.say
    sizes = {
        option: config[option] for option in ("train_sentences", "test_sentences", "generalisation_sentences")
    }  # fmt: skip
    too_few = [problem for option, n in sizes.items() for problem in out_of_range(option, n, 1, 100_000)]
    refuse(probe.problems() + number_problems(seed, None, batch_tokens) + too_few)
    resolve_mode(wandb.mode)
    layer_numbers(layer)
    wanted = chosen("--tasks", tasks, list(LINEAR)), chosen("--controls", controls, list(CONTROLS), "none")
    cached, place = places(cache, runs, name)
    with terminal.quiet_libraries():
        from probing.cache.source import ActivationSource
        from probing.diagnostics.hierarchy.parts import Sizes
        from probing.diagnostics.hierarchy.survey import Asked, survey

        watch = Stopwatch()
        source = ActivationSource.of(
            model, revision, layer, trainer, probe.solver, cache=cached, dtype=dtype, batch_tokens=batch_tokens,
            random_weights_seed=seed if random_weights else None, say=say,
            shows_progress=terminal.show_progress(quiet), tokenizer=tokenizer,
        )  # fmt: skip
        config["model"] = source.model.name
        asked = Asked(*wanted, Sizes(*sizes.values()), probe, seed)  # type: ignore[arg-type]
        found = survey(source, asked, terminal.training_bars(source.shows_progress), say)
        watch.end("measure")
        if not is_main_process():
            return None
        folder = RunFolder(place, name, f"{source.model.short_name}-hierarchy")
        with tracking(folder, wandb, config) as tracker:
            _write(folder.path, config, found, asked.sizes, source.model.short_name, watch, tracker)
        made = read_folder(Hierarchy, folder.finish())
    say_results(made, tracker.where(made.folder) if tracker else None, quiet)
    return made


def _write(
    folder: Path, config: Mapping[str, Any], found: Any, sizes: Any, model_name: str, watch: Stopwatch,
    tracker: Tracker | None,
) -> None:  # fmt: skip
    """Write tables, figure and summary into the run's folder, and log them."""
    from probing.diagnostics.hierarchy.figures import write_figure
    from probing.diagnostics.hierarchy.results import write_summary
    from probing.tables.csv_files import write_tables

    files, rows = write_tables(folder, config, found.tables, COLUMNS), found.tables["hierarchy"]
    figures = write_figure(
        folder / "figures" / "hierarchy", rows, model_name, figure_formats(config["figure_format"])
    )  # fmt: skip
    watch.end("write")
    files.append(write_summary(folder, found, sizes, watch.timings()))
    if tracker:
        tracker.log_results(_curves(rows), [], figures, files, found.tables, kind="hierarchy")


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each task and share, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for task in tasks_of(rows):
        for row in of_model(rows, task, ITSELF):
            point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            for column in ("test", "generalisation", LINEAR[task]):
                point[f"{task}_{column}"] = row[column]
    return list(by_layer.values())
