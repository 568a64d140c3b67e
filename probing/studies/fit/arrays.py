"""`probe`: arrays of activations and labels in, ranked neurons and accuracies out. For Python alone."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from probing.cli.commandline import converted
from probing.cli.option_types import FIGURE_FORMAT, FigureFormat, chosen, defaults, figure_formats, option_problems
from probing.cli.options import ProbeOptions, WandbOptions, as_options
from probing.errors import UserError, refuse
from probing.runs.call import runs_folder, say_where, tracking
from probing.runs.folder import RunFolder, check_name
from probing.runs.run import Run, load_fit, read_run
from probing.runtime.machine import Stopwatch, logger_names, quiet_libraries
from probing.runtime.progress import expect, messages, overview, stage
from probing.tracking import resolve_mode

# What can be shuffled or drawn without a model.
CONTROLS = ("shuffled",)
# What values that are held fixed are called, in the place of the task that gives them.
GIVEN = "given"


def probe(
    X: Any, y: Any, groups: Any = None, split: Any = None, ordinal: bool = False,
    replicates: int = 5, controls: str | list[str] = "all", evidence: Literal["all", "none"] = "all", mdl: bool = False,
    seed: int = 0, model: str = "activations", task: str = "label",
    runs: str | Path | None = None, name: str | None = None, trainer: Mapping[str, Any] | None = None,
    probe: ProbeOptions | Mapping[str, Any] = ProbeOptions(), logger: Any = None, quiet: bool = False,
    numbers: bool | None = None, figure_format: FigureFormat = FIGURE_FORMAT,
    wandb: WandbOptions | Mapping[str, Any] | None = None, given: Any = None, rotations: int | None = None,
) -> Run:  # fmt: skip
    """Probe activations that come from anywhere, and rank their neurons, with the evidence that `fit` gives.

    Args:
        X: Activations, shape (n_rows, d_model), or a dict of such an array for each layer number or name, in the order
            of the layers: NumPy arrays, memory maps, tensors or the layers of `read_activations`. A neuron is a column.
        y: Label of each row, a whole number or a string. Every label of a training row is a class. Or a number for each
            row that is to be predicted, by a ridge probe; see `numbers`.
        groups: Group of each row, such as its sentence, document or speaker. Rows of a group are on the same side of
            the split, and intervals, bootstraps and p-values take groups, not rows, to be independent. If None, every
            row is a group of its own.
        split: `train`, `validation` or `test` for each row; if None, a hash of the row's group and `seed` puts 80% on
            the train side, and 10% each on the others.
        ordinal: Whether labels are numbers, so that distances between labels are meaningful.
        replicates: Number of probes trained on bootstrap samples of the training groups; 0 trains none.
        controls: `all`, `none` or `shuffled` (shuffled labels); the other controls of `fit` need a model.
        evidence: `all`: probes without first neurons and under other penalties, and directions beside neurons; `none`.
        mdl: Also measure the length in bits of the training labels, encoded online with each layer's activations.
        seed: Seed of every random draw.
        model: What the activations are called in tables and figures.
        task: What the labels are called there.
        runs: Folder in which the run is written; `runs` if only a name is given.
        name: Name of the run; MODEL-TASK-YYYYMMDD-HHMMSS by default. If neither `runs` nor `name` is given, the run
            lives as long as the returned object.
        trainer: Arguments of Lightning's Trainer.
        probe: How the probe is trained.
        logger: Lightning logger for the training curves, of `pytorch_lightning` or of `lightning`.
        quiet: Whether to show no progress and not to say where results are; what was left out is said in any case.
        numbers: Whether labels are numbers to predict as such, and not classes; if None, they are where at least one
            has a fraction.
        figure_format: Formats of the figures of a run that is written: `all`, or some of `png`, `pdf` and `svg`.
        wandb: How a run with a name or `runs` is logged to Weights & Biases, as in `fit`; if None, it is not.
        given: Value of each row, text or a whole number, that is held fixed because labels may go with it, as in `fit`.
        rotations: Number of random rotations whose directions neurons are compared with, as in `fit`.

    Returns:
        The run, with the same tables and files as one of `fit`.

    Raises:
        UserError: If the arrays do not fit together, a value is infinite or not a number, or an option is out of range.
    """
    options, tracked, seed, replicates, evidence, mdl, rotations, quiet, trainer = _converted(
        probe, wandb, seed=seed, replicates=replicates, evidence=evidence, mdl=mdl, rotations=rotations, quiet=quiet,
        trainer=trainer)  # fmt: skip
    wanted, formats = chosen("controls", controls, list(CONTROLS), "none"), figure_formats(figure_format)
    refuse(_problems_with_tracking(tracked, place := _place(runs, name), logger, trainer))
    from probing.data.arrays import sides_of_arrays
    from probing.runs.measuring import Asked, measure
    from probing.runtime.trainer import algorithms_kept, check_trainer_options
    from probing.studies.fit.estimate import stages_of_probes

    with overview(quiet, briefly=True), quiet_libraries(), algorithms_kept():
        watch, say = Stopwatch(), messages(quiet)
        check_trainer_options(trainer or {}, options.solver)
        sides, layers = sides_of_arrays(X, y, groups, split, ordinal, seed, numbers, say, given)
        _check(options, sides, trainer or {}, mdl, logger)
        arrays = _description(sides.train.store)
        sides, others, fitted = _read(sides, layers, options, wanted, given, seed)
        config = {
            "arrays": arrays, "model": model, "layer": [*map(int, layers)], "corpus": "arrays", "test_corpus": None,
            "task": task, "task_args": {}, "ordinal": ordinal, "numbers": sides.numbers, "mdl": mdl,
            "controls": wanted, "evidence": evidence, "replicates": replicates, "rotations": rotations, "seed": seed,
            "given": None if given is None else GIVEN, "trainer": dict(trainer or {}), "probe": asdict(options),
            "transform": "none",
        }  # fmt: skip
        expect(stages_of_probes([*others], replicates, evidence == "all", mdl, options, sides.numbers))
        asked = Asked(replicates, evidence == "all", mdl, "none", seed, n_rotations=rotations)
        measured = partial(measure, sides, others, layers, options, asked, trainer or {}, watch, say)
        if place is None:
            return _passing(measured(logger, None), config, watch, fitted)
        folder = RunFolder(place, name, f"{model}-{task}")
        return _kept(measured, config, folder, watch, formats, tracked, logger, quiet, fitted)


def _read(
    sides: Any, layers: Sequence[int], options: ProbeOptions, controls: Sequence[str], given: Any, seed: int
) -> tuple[Any, dict[str, list[Any]], Any]:
    """Return the examples, those of each control, and the transforms by which they were centred, if they were."""
    from probing.data.controls import shuffled
    from probing.data.examples import permuted_within
    from probing.probes.transforms import centred

    others = {"shuffled": [shuffled(sides, seed)]} if controls else {}
    others |= {} if given is None else {"given": [sides.each(partial(permuted_within, seed=seed))]}
    return centred(sides, others, layers) if options.bias else (sides, others, None)


def _check(options: ProbeOptions, sides: Any, trainer: Mapping[str, Any], mdl: bool, logger: Any) -> None:
    """Check that the options go with what is predicted, and that there are validation rows if they are needed."""
    of_numbers = _problems_with_numbers(options, trainer, mdl, logger) if sides.numbers else []
    refuse(of_numbers + options.problems_with_trainer(trainer))
    if options.needs_validation and not sides.validation.n_tokens:
        raise UserError(
            "no row of a class is on the validation side, on which the penalty is chosen and adam is stopped; give "
            "more rows or groups, `split` with validation for some rows, or, with lbfgs, `probe={'l2': 1e-3}`."
        )


def _place(runs: str | Path | None, name: str | None) -> Path | None:
    """Return the folder of runs; None if the run is not to be kept."""
    if runs is None and name is None:
        return None
    place = runs_folder(str(runs or "runs"))
    if name is not None:
        check_name(place, name)
    return place


def _description(store: Any) -> dict[str, Any]:
    """Return what a configuration says of the arrays."""
    return {"shape": [store.tokens.n_tokens, store.plan.d_model], "sha256": store.fingerprint}


def _converted(probe: Any, wandb: Any, **others: Any) -> tuple[Any, ...]:
    """Return options that `fit` has too, converted and checked as there: the two groups, then the others in order."""
    from probing.studies.fit.command import fit

    given = {"probe": probe, "wandb": WandbOptions("disabled") if wandb is None else wandb, **others}
    found = converted(fit, given, "probe")
    options = as_options(ProbeOptions, found["probe"], "probe")
    refuse(option_problems(options, found["seed"], None, None, found["replicates"], found["rotations"]))
    return options, as_options(WandbOptions, found["wandb"], "wandb"), *(found[option] for option in others)


def _problems_with_tracking(
    options: WandbOptions, place: Path | None, logger: Any, trainer: Mapping[str, Any] | None
) -> list[str]:
    # The two packages have a class of loggers each; what a Trainer needs of one is the same.
    loggers = logger if isinstance(logger, list | tuple) else [] if logger is None else [logger]
    if wrong := [one for one in loggers if not hasattr(one, "log_metrics")]:
        return [
            f"`logger` is {wrong[0]!r:.60}: expected a logger of Lightning, such as pytorch_lightning.loggers.CSVLogger"
        ]
    problems = []
    if named := logger_names(trainer or {}):
        typed = f"`trainer={{'logger': {','.join(named)!r}}}`"
        if place is None:
            problems.append(f"{typed}: a run without a name goes with its object; give `name` or `runs`")
        if logger is not None:
            problems.append(f"`logger` and {typed}: training curves go to one of the two; leave the other out")
    if resolve_mode(options.mode) == "disabled":
        return problems
    if place is None:
        problems.append(
            "`wandb`: a run without a name goes with its object, and so would its log; give `name` or `runs`"
        )
    if logger is not None:
        problems.append("`logger` and `wandb`: training curves go to one of the two; leave the other out")
    return problems


def _problems_with_numbers(options: ProbeOptions, trainer: Mapping[str, Any], mdl: bool, logger: Any) -> list[str]:
    problems = options.problems_with_numbers(trainer, mdl)
    if logger is not None:
        problems.append("`logger` does not apply: a ridge probe in closed form has no training curves; leave it out")
    return problems


def _kept(
    measured: Callable[[Any, None], Any], config: Mapping[str, Any], folder: RunFolder, watch: Stopwatch,
    formats: Sequence[str], tracked: WandbOptions, logger: Any, quiet: bool, fitted: Any,
) -> Run:  # fmt: skip
    """Write a run with figures and a page, log it, say where it is, and return it."""
    from probing.page.build import build
    from probing.page.sources import source_of
    from probing.studies.fit.command import fit

    with tracking(folder, tracked, config) as tracker:
        assert tracker  # there is one wherever there is a folder
        made = measured(logger or tracker.logger, None)
        with stage("tables, figures and page"):
            written, summary = _write(folder.path, made, config, watch, fitted, formats)
            page = folder.path / "report.html"
            page.write_bytes(build(source_of(read_run(folder.path)), defaults(fit)))
        written.log(tracker, [summary], page)
    run = load_fit(folder.finish())
    if not quiet:
        say_where(run.folder, tracker.where(run.folder))
    return run


def _passing(measured: Any, config: Mapping[str, Any], watch: Stopwatch, fitted: Any) -> Run:
    """Return a run in a temporary folder, which is removed with the run."""
    folder = Path(tempfile.mkdtemp(prefix="probing-"))
    try:
        with stage("tables"):
            _write(folder, measured, config, watch, fitted)
        run = load_fit(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(run, shutil.rmtree, folder, True)
    return run


def _write(
    folder: Path, measured: Any, config: Mapping[str, Any], watch: Stopwatch, fitted: Any, formats: Sequence[str] = ()
) -> tuple[Any, Path]:
    """Write everything that was measured; return what was written, and the path of the summary.

    Args:
        folder: The run's folder.
        measured: The `probing.runs.results.Measured` of the run.
        config: The resolved configuration.
        watch: Notes how long writing takes.
        fitted: Transform of each layer, if activations were centred.
        formats: Formats of the figures; without any, none are drawn.
    """
    from probing.runs.results import write, write_summary

    written = write(folder, config, measured, config["model"], formats, transforms=fitted)
    watch.end("rank")
    key = {"activations": config["arrays"]["sha256"]}
    cached_of = {side: {"key": key} for side in ("train", "test")}
    return written, write_summary(folder, measured, written, cached_of, watch.timings())
