"""The study `fit`: text in, ranked neurons and accuracies out; `extract` fills the cache, `probe` takes arrays."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from probing.activations.store import cache_folder
from probing.cli.commandline import command, converted
from probing.cli.options import (
    FIGURE_FORMAT,
    FigureFormat,
    FirstToken,
    OutputOptions,
    ProbedOptions,
    ProbeOptions,
    RunOptions,
    Source,
    StatesOptions,
    WandbOptions,
    chosen,
    defaults,
    figure_formats,
    option,
    problems_of,
    rotation_problems,
)
from probing.data import CONTROLS as OF_FIT
from probing.errors import UserError, flag, in_python, refuse, spelled
from probing.models import ModelSource, SiteName, site_of
from probing.results import Table, layers_named, listed, read_csv
from probing.runs import Result, Study, model_name
from probing.runs.call import Call, print_output_location, runs_folder, save_input_text, tracking
from probing.runs.checks import check_documents, check_tables, check_tensors
from probing.runs.folder import RunFolder, check_name
from probing.runs.run import Run, read_documents, run_of
from probing.runtime import Stopwatch, logger_names, quiet_libraries, terminal
from probing.runtime.processes import is_main_process
from probing.runtime.progress import Cost, expect, messages, overview, stage
from probing.tables import Order, controls_of
from probing.tables.figures import Chart, Drawings
from probing.tables.schema import ACCURACY, NEURONS, NUMBER_NEURONS, NUMBERS, PREDICTIONS, TABLES
from probing.text import GroupBy, load_corpus, read_corpora
from probing.text.tasks import (
    Covariate,
    TokenTask,
    described,
    label_name,
    label_name_problems,
    load_task,
    predicts_numbers,
    reader_of,
    task_in_words,
    unit_of,
)
from probing.tracking import Tracker, resolve_mode

Transform = Literal["none", "clip", "whiten", "standardise", "center", "all_but_the_top"]


@dataclass(frozen=True)
class FitOptions(OutputOptions, ProbedOptions, RunOptions, StatesOptions):
    """Options of `fit`."""

    site: str = "residual"
    """Definition of a neuron: a coordinate of the hidden state (residual), a unit of the MLP inside block k after its
    activation function (mlp), a coordinate of an attention head's output inside block k (attention), or a feature of
    the sparse autoencoder in a folder (sae:FOLDER)."""
    corpus: Source = "builtin"
    test_corpus: Source | None = None
    group_by: GroupBy = "auto"
    max_length: int | None = None
    batch_tokens: int | None = None
    task: str | TokenTask = "position"
    """Task that the probe predicts: its name, such as position, or FILE.py:CLASS; in Python also an object."""
    task_args: dict[str, Any] | None = None
    """Options of the task, such as --task_args.special_tokens include."""
    label_name: str | None = None
    """What the probe predicts, for titles and summaries: a noun phrase that needs no article, such as "part of speech"
    or "named entities"; default: the name of the task or of its column."""
    replicates: int = option(5, at_least=0)
    """Number of probes trained on bootstrap samples of the training sentences; 0 trains none. The range of a rank
    covers these probes and the run's probe."""
    controls: str | list[str] = option("all", choices=OF_FIT, nothing="none")
    """Controls of the accuracy: all that apply to the task, none, or some of {choices}; untrained is a randomly
    initialised model, permuted_positions lets the model read sentences with permuted tokens."""
    evidence: Literal["all", "none"] = "all"
    """Further evidence for the ranking: all retrains the probe without each of the first neurons and under other
    penalties, and compares neurons with directions; none omits these."""
    mdl: bool = False
    """Also measure the minimum description length of the training labels, in bits, by online coding."""
    rotations: int | None = None
    """Number of random rotations for comparing neurons with directions; default: 20 with --evidence all, otherwise
    0."""
    transform: Transform = "none"
    """Transform of the activations that the probes are trained on, fitted on training tokens; probes of untransformed
    activations are also trained. clip sets neurons with an outlying mean to 0; whiten is ZCA."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: split, shuffled labels, permuted tokens, bootstraps, batches, random
    initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-TASK-YYYYMMDD-HHMMSS."""
    trainer: dict[str, Any] | None = None
    """Arguments of Lightning's Trainer, such as --trainer.max_epochs 50. Loggers in addition to W&B are some of csv,
    tensorboard and mlflow: --trainer.logger csv,mlflow."""
    first_token: FirstToken = "include"
    control_for: str | None = None
    """Covariate that may be correlated with the labels: token, a task, or a column of the corpus. Neurons are also
    compared within values of the covariate, and a control permutes labels within these values."""
    sort: Order = "contribution"
    """Order of the printed neurons: contribution, or centred (without the neurons' means)."""
    verbose: bool = False
    """Print all tables and summary sentences, layer by layer."""

    def problems(self) -> list[str]:
        """Return the problems with numbers of replicates and rotations, and with the name of the label."""
        few = f"{flag('replicates', 1)} is too few: a single bootstrap has no range, so expected 0 or at least 2"
        return [
            *[few] * (self.replicates == 1),
            *rotation_problems(self.rotations),
            *label_name_problems(self.label_name),
        ]


@command(FitOptions)
def fit(options: FitOptions) -> Run | None:
    """Fit a probe per layer on cached activations, split its logits by neuron, and rank the neurons.

    Returns:
        The finished run; None except in the rank-zero process.
    """
    call, probe = Call.of(STUDY, options), options.probe_options
    config, say = call.config | described(options.task, options.task_args), call.say
    token_task, fixed = load_task(options.task, options.task_args), Covariate.of(options.control_for)
    selected = controls_of_call(options.controls, token_task, probe, options.trainer, options.mdl, options.control_for)
    text = read_corpora(options.corpus, options.test_corpus, options.seed, say, options.group_by, reader_of(token_task))
    with quiet_libraries():
        from probing.data.labelling import n_heads_of
        from probing.runs.results import EvidenceConfig, measure

        watch = Stopwatch()
        source = call.source(probe.solver, site=options.site, tokenizer=options.tokenizer)
        plan = EvidenceConfig(
            options.seed, options.replicates, options.evidence == "all", options.mdl, options.transform, extremes=True,
            n_rotations=options.rotations,
        )  # fmt: skip
        sides, others, fitted, stores = _read(
            source, text, token_task, fixed, options.group_by, probe, selected, plan, watch
        )
        stem = f"{source.model.short_name}-{config['task'].rpartition(':')[2]}"
        folder = RunFolder(call.place, call.name, stem) if is_main_process() else None
        input_files = save_input_text(config, source.model.name, folder) if folder else []
        with tracking(folder, call.wandb, config) as tracker:
            results = measure(
                sides, others, source.layers, probe, replace(plan, n_heads=n_heads_of(stores[0])), source.trainer,
                watch, say, tracker and tracker.logger, str(folder.path) if folder else None,
            )  # fmt: skip
            if folder is None or tracker is None:
                return None
            run = _write(
                folder.path, config, results, fitted, stores, text[0][-1], source.model, watch, tracker, input_files
            )
        run.folder = folder.finish()
    _report(run, tracker.where(run.folder, options.verbose), options.quiet, options.verbose, options.sort)
    return run


def controls_of_call(
    controls: str | list[str], task: TokenTask, probe: ProbeOptions, trainer: dict[str, Any] | None, mdl: bool,
    control_for: str | None,
) -> list[str]:  # fmt: skip
    """Return the controls, after a check that all options suit the predictions of the task."""
    numbers = predicts_numbers(task)
    refuse(probe.problems_with_numbers(trainer or {}, mdl) if numbers else probe.problems_with_trainer(trainer or {}))
    chosen = chosen_controls(controls, task.ordinal, unit_of(task), numbers)
    return chosen if control_for is None else [*chosen, "covariate"]


def chosen_controls(
    requested: str | Sequence[str], ordinal: bool, unit: str = "token", numbers: bool = False
) -> list[str]:
    """Return the requested controls, in the order of the tables; unknown or unsuitable controls raise `UserError`.

    `requested` is `all` for all controls that suit the task, `none`, or names, in a string separated by commas.
    """
    names = chosen("controls", requested, [*OF_FIT], "none")
    if requested in ("all", ["all"]):
        # `permuted_positions` is a floor only for tasks about positions; `control_task` measures memorised words, which
        # do not predict positions.
        names.remove("control_task" if ordinal else "permuted_positions")
        without_types = unit != "token" or numbers
        return [name for name in names if not (without_types and name in ("control_task", "permuted_positions"))]
    if "control_task" in names and (unit != "token" or numbers):
        why = (
            f"a random label, and this task labels {unit}s"
            if unit != "token"
            else "a random class, and this task predicts numbers"
        )
        others = listed([name for name in OF_FIT if name != "control_task"], "or")
        raise UserError(f"`--controls control_task`: it gives each word type {why}; give {others}.")
    return names


def _read(
    source: Any, text: tuple[Any, Any], task: TokenTask, covariate: Covariate | None, group_by: GroupBy,
    probe: ProbeOptions, controls: Sequence[str], settings: Any, watch: Stopwatch,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Return the examples, the examples of each control, the transforms if any, and the activations of each corpus.

    Types that need torch are not imported here, since the parser of arguments imports every name of this file.
    """
    from probing.data.labelling import read_sides, selected_features_of, warn_unused_columns
    from probing.data.module import READ_AGAIN, control_sides, source_of_control
    from probing.probes.transforms import centred, transform_all
    from probing.studies.fit.estimate import estimate_callback, stages_of_probes

    applicable = [name for name in controls if name not in READ_AGAIN or source_of_control(name, source, settings.seed)]
    again = sum(name in READ_AGAIN for name in applicable)
    is_transformed = settings.transform != "none"  # and so is compared with probes of untransformed activations
    reads = [Cost("reading", 1), *[Cost("reading", again)] * bool(again), *[None] * (is_transformed + probe.bias)]
    compared = [*applicable, *["untransformed"] * is_transformed]
    more = settings.n_replicates, settings.retraining, settings.codes
    announce = estimate_callback(
        source, text[0], controls, settings.seed, *more, probe, n_vectors=getattr(task, "n_spans", 1)
    )
    expect([*reads, *stages_of_probes(compared, *more, probe, predicts_numbers(task))])
    warn_unused_columns(text[0], task, source.say)
    sides, stores = read_sides(source, *text, task, probe, group_by, announce, covariate)
    source = replace(source, selected_features=selected_features_of(stores[0]))
    others, fitted = control_sides(controls, sides, text[0], source, settings.seed), None
    if is_transformed:
        with stage(f"transform of {layers_named(source.layers)}"):
            sides, others, fitted = transform_all(settings.transform, sides, others, source.layers, settings.seed)
    if probe.bias:
        with stage(f"means of {layers_named(source.layers)}"):
            sides, others, fitted = centred(sides, others, source.layers)
    watch.end("extract")
    return sides, others, fitted, stores


@stage("tables, figures and page")
def _write(
    folder: Path,
    config: Mapping[str, Any],
    results: Any,
    fitted: Any,
    stores: Any,
    corpus: Any,
    model: ModelSource,
    watch: Stopwatch,
    tracker: Tracker,
    input_files: Sequence[Path],
) -> Run:
    from probing.data.labelling import origin
    from probing.runs.places import read_from
    from probing.runs.results import write

    formats, noted = figure_formats(config["figure_format"]), read_from(config, folder)
    cached_of = {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))}
    timings = partial(watch.end, "rank")
    written = write(folder, config, results, model.short_name, cached_of, timings, formats, corpus, fitted, noted)
    run = run_of(folder, written.tables)
    written.log(tracker, input_files, _write_page(run))
    return run


def _write_page(run: Run) -> Path:
    from probing.page.build import build
    from probing.page.charts import source_of

    page = run.folder / "report.html"
    page.write_bytes(build(source_of(run)))
    return page


def _report(run: Run, where: str | None, quiet: bool, verbose: bool, sort: Order = "contribution") -> None:
    """Print the answer, tables, caveats and the output folder; `quiet` replaces the tables by a line per layer."""
    from probing.tables import probes
    from probing.tables.conclusions import bases_lines, leading

    rows, task = run.accuracy, task_in_words(run.config)
    verbose = verbose and not quiet
    answer, doubts, details = probes.run_sentences(
        rows, run.neurons, run.class_scores, task, run.results, run.config, run.basis
    )
    layer = leading(rows)["layer"]
    if quiet:
        for row in rows:
            print(probes.result_line(row, run.top(row["layer"], 5, sort)))
    effects = probes.transform_lines(run.transform, rows)
    doubts = [*bases_lines([row for row in run.bases if row["layer"] == layer], task), *doubts]
    has_more = False
    if quiet:
        terminal.tell(*answer, *doubts, *effects)
    elif verbose:
        terminal.tell(*answer)
        terminal.show(*_tables(run, layer, verbose, sort))
        printed = {*answer, *doubts, *details}
        terminal.tell(*doubts, *details, *(line for line in run.conclusions() if line not in printed), *effects)
    else:
        terminal.brief([*answer, *effects, *doubts], _tables(run, layer, verbose, sort), 2 + 2 * bool(where))
        has_more = True  # the tables of the controls
    print_output_location(run.folder, where, has_more)


def _tables(run: Run, layer: int, verbose: bool, sort: Order) -> list[Any]:
    """Return the tables of the terminal: the first neurons of a layer, the accuracies, and what else the run has."""
    from probing.tables import probes

    printed = STUDY.printed(run)
    removed = sum(bool(row.get("removed")) for row in run.top(layer, len(run.neurons)))
    tables = [probes.neurons_table(run.top(layer, by=sort), site_of(run.config), removed, sort, verbose)]
    if verbose:
        tables += [probes.accuracy_table(run.results["layers"]), *printed.get("class_scores", [])]
        tables += printed["accuracy"][1:]
    elif len(run.accuracy) > 1:
        tables.append(probes.layers_table(run.accuracy, run.neurons, sort))
    return tables + [table for name in ("heads", "bases") for table in printed.get(name, [])]


@dataclass(frozen=True)
class ExtractOptions(StatesOptions):
    """Options of `extract`."""

    site: SiteName = "residual"
    """Activations to cache: hidden states (residual), units of the MLP inside block k after its activation function
    (mlp), or outputs of its attention heads (attention). Features (sae:FOLDER) are computed from hidden states."""
    corpus: Source = "builtin"
    max_length: int | None = None
    batch_tokens: int | None = None
    _: KW_ONLY
    seed: int = 0
    """Seed of the weights of a randomly initialised model."""
    runs: str = "runs"
    """Folder of runs, which contains the cache by default."""
    cache: str | None = None
    quiet: bool = False
    """Print only the result line and warnings."""
    trainer: dict[str, Any] | None = None

    def problems(self) -> list[str]:
        """Return the problem with a logger."""
        problem = f"{flag('trainer.logger')} does not apply: `extract` makes no run that could be logged; leave it out"
        return [problem] * ("logger" in (self.trainer or {}))


@command(ExtractOptions)
def extract(options: ExtractOptions) -> Path:
    """Cache the hidden states of a corpus for `fit`.

    Returns:
        The folder of the cache entry.
    """
    from probing.activations.source import ActivationSource, report_dropped_text

    cached = cache_folder(options.cache, options.runs)
    say = messages(options.quiet)
    with quiet_libraries():
        source = ActivationSource.of(
            options.model, options.revision, options.layer, options.trainer, cache=cached, dtype=options.dtype,
            max_length=options.max_length, batch_tokens=options.batch_tokens,
            random_weights_seed=options.seed if options.random_weights else None, say=say, site=options.site,
            tokenizer=options.tokenizer,
        )  # fmt: skip
        corpora = [load_corpus(options.corpus)]
        expect([None])
        (store,) = source.read(corpora)
        report_dropped_text(corpora, [store.tokens], say)
    if is_main_process():
        read = f"{store.plan.n_tokens} tokens of {store.tokens.n_sentences} sentences"
        print(f"{read}, layers {source.layers}: {store.folder}")
    return store.folder


# What can be shuffled or drawn without a model.
CONTROLS = ("shuffled",)

# The covariate of arrays, in the place of the task that gives its values.
COVARIATE = "covariate"


@spelled(in_python)
def probe(
    X: Any, y: Any, groups: Any = None, split: Any = None, ordinal: bool = False,
    replicates: int = 5, controls: str | list[str] = "all", evidence: Literal["all", "none"] = "all", mdl: bool = False,
    seed: int = 0, model: str = "activations", task: str = "label",
    runs: str | Path | None = None, name: str | None = None, trainer: Mapping[str, Any] | None = None,
    probe: ProbeOptions | Mapping[str, Any] = ProbeOptions(), logger: Any = None, quiet: bool = False,
    numbers: bool | None = None, figure_format: FigureFormat = FIGURE_FORMAT,
    wandb: WandbOptions | Mapping[str, Any] | None = None, control_for: Any = None, rotations: int | None = None,
) -> Run:  # fmt: skip
    """Probe activations from any source, and rank their neurons, with the evidence of `fit`.

    Args:
        X: Activations, shape (n_rows, d_model), or a dict of such arrays by layer number or name, in the order of the
            layers: NumPy arrays, memory maps, tensors or the layers of `read_activations`. A neuron is a column.
        y: Label of each row, a whole number or a string; every label of a training row is a class. Or a number for each
            row to predict by a ridge probe; see `numbers`.
        groups: Group of each row, such as its sentence, document or speaker. The split keeps groups whole, and
            intervals, bootstraps and p-values treat groups, not rows, as independent. If None, every row is a group.
        split: `train`, `validation` or `test` for each row; if None, a hash of the group and `seed` puts 80% into
            training and 10% each into the others.
        ordinal: Whether labels are numbers, so that distances between labels are meaningful.
        replicates: Number of probes trained on bootstrap samples of the training groups; 0 trains none.
        controls: `all`, `none` or `shuffled` (shuffled labels); the other controls of `fit` need a model.
        evidence: `all` retrains without the first neurons and under other penalties and compares with directions;
            `none`.
        mdl: Also measure the length in bits of the training labels, encoded online with each layer's activations.
        seed: Seed of every random draw.
        model: Name of the activations in tables and figures.
        task: Name of the labels there.
        runs: Folder in which the run is written; `runs` if only a name is given.
        name: Name of the run; MODEL-TASK-YYYYMMDD-HHMMSS by default. Without `runs` and `name`, the run exists as long
            as the returned object.
        trainer: Arguments of Lightning's Trainer.
        probe: Options of the probe.
        logger: Lightning logger for the training curves, of `pytorch_lightning` or of `lightning`.
        quiet: Whether to hide progress and the output folder; warnings on omitted rows are always printed.
        numbers: Whether labels are numbers to predict, and not classes; if None, true if a label has a fraction.
        figure_format: Formats of the figures of a written run: `all`, or some of `png`, `pdf` and `svg`.
        wandb: Options of Weights & Biases for a run with a name or `runs`, as in `fit`; None for no logging.
        control_for: The covariate: a value of each row, text or a whole number, that is held fixed, as in `fit`.
        rotations: Number of random rotations for the comparison with directions, as in `fit`.

    Returns:
        The run, with the tables and files of a run of `fit`.

    Raises:
        UserError: If the arrays do not match, a value is infinite or not a number, or an option is out of range.
    """
    options, tracked, seed, replicates, evidence, mdl, rotations, quiet, trainer = _converted(
        probe, wandb, seed=seed, replicates=replicates, evidence=evidence, mdl=mdl, rotations=rotations, quiet=quiet,
        trainer=trainer)  # fmt: skip
    selected, formats = chosen("controls", controls, list(CONTROLS), "none"), figure_formats(figure_format)
    refuse(_problems_with_tracking(tracked, place := _place(runs, name), logger, trainer))
    from probing.data.arrays import sides_of_arrays
    from probing.runs.results import EvidenceConfig, measure
    from probing.runtime.trainer import check_trainer_options, preserve_algorithms
    from probing.studies.fit.estimate import stages_of_probes

    with overview(quiet, briefly=True), quiet_libraries(), preserve_algorithms():
        watch, say = Stopwatch(), messages(quiet)
        check_trainer_options(trainer or {}, options.solver)
        sides, layers = sides_of_arrays(X, y, groups, split, ordinal, seed, numbers, say, control_for)
        _check(options, sides, trainer or {}, mdl, logger)
        store: Any = sides.train.store
        arrays = {"shape": [store.tokens.n_tokens, store.plan.d_model], "sha256": store.fingerprint}
        sides, others, fitted = _read_arrays(sides, layers, options, selected, control_for, seed)
        config = {
            "arrays": arrays, "model": model, "layer": [*map(int, layers)], "corpus": "arrays", "test_corpus": None,
            "task": task, "task_args": {}, "ordinal": ordinal, "numbers": sides.numbers, "mdl": mdl,
            "controls": selected, "evidence": evidence, "replicates": replicates, "rotations": rotations, "seed": seed,
            "control_for": None if control_for is None else COVARIATE, "trainer": dict(trainer or {}),
            "probe": asdict(options), "transform": "none",
        }  # fmt: skip
        expect(stages_of_probes([*others], replicates, evidence == "all", mdl, options, sides.numbers))
        settings = EvidenceConfig(seed, replicates, evidence == "all", mdl, n_rotations=rotations)
        measure_run = partial(measure, sides, others, layers, options, settings, trainer or {}, watch, say)
        if place is None:
            return _passing(measure_run(logger, None), config, watch, fitted)
        folder = RunFolder(place, name, f"{model}-{task}")
        return _saved_run(measure_run, config, folder, watch, formats, tracked, logger, quiet, fitted)


def _read_arrays(
    sides: Any, layers: Sequence[int], options: ProbeOptions, controls: Sequence[str], control_for: Any, seed: int
) -> tuple[Any, dict[str, list[Any]], Any]:
    """Return the examples, the examples of each control, and the transforms that centred them, if any."""
    from probing.data.examples import permuted_within
    from probing.data.module import shuffled
    from probing.probes.transforms import centred

    others = {"shuffled": [shuffled(sides, seed)]} if controls else {}
    others |= {} if control_for is None else {"covariate": [sides.each(partial(permuted_within, seed=seed))]}
    return centred(sides, others, layers) if options.bias else (sides, others, None)


def _check(options: ProbeOptions, sides: Any, trainer: Mapping[str, Any], mdl: bool, logger: Any) -> None:
    """Check that the options suit the labels, and that there are validation rows if needed."""
    of_numbers = _problems_with_numbers(options, trainer, mdl, logger) if sides.numbers else []
    refuse(of_numbers + options.problems_with_trainer(trainer))
    if options.needs_validation and not sides.validation.n_tokens:
        raise UserError(
            "no row of a class is on the validation side, on which the penalty is chosen and adam is stopped; give "
            "more rows or groups, `split` with validation for some rows, or, with lbfgs, `probe={'l2': 1e-3}`."
        )


def _place(runs: str | Path | None, name: str | None) -> Path | None:
    if runs is None and name is None:
        return None
    place = runs_folder(str(runs or "runs"))
    if name is not None:
        check_name(place, name)
    return place


def _converted(probe: Any, wandb: Any, **others: Any) -> tuple[Any, ...]:
    """Return options shared with `fit`, converted and checked: the two groups, then the others in order."""
    given = {"probe": probe, "wandb": WandbOptions("disabled") if wandb is None else wandb, **others}
    values = converted(fit, given, "probe")
    refuse(list(problems_of(FitOptions(**values))))
    return values["probe"], values["wandb"], *(values[option] for option in others)


def _problems_with_tracking(
    options: WandbOptions, place: Path | None, logger: Any, trainer: Mapping[str, Any] | None
) -> list[str]:
    # The two packages have a class of loggers each; what a Trainer needs of one is the same.
    loggers = logger if isinstance(logger, list | tuple) else [] if logger is None else [logger]
    if wrong := [candidate for candidate in loggers if not hasattr(candidate, "log_metrics")]:
        return [
            f"`logger` is {wrong[0]!r:.60}: expected a logger of Lightning, such as pytorch_lightning.loggers.CSVLogger"
        ]
    problems = []
    if named := logger_names(trainer or {}):
        flag_text = f"`trainer={{'logger': {','.join(named)!r}}}`"
        if place is None:
            problems.append(f"{flag_text}: a run without a name goes with its object; give `name` or `runs`")
        if logger is not None:
            problems.append(f"`logger` and {flag_text}: training curves go to one of the two; leave the other out")
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


def _saved_run(
    measure_run: Callable[[Any, None], Any], config: Mapping[str, Any], folder: RunFolder, watch: Stopwatch,
    formats: Sequence[str], tracked: WandbOptions, logger: Any, quiet: bool, fitted: Any,
) -> Run:  # fmt: skip
    with tracking(folder, tracked, config) as tracker:
        assert tracker  # there is one wherever there is a folder
        results = measure_run(logger or tracker.logger, None)
        with stage("tables, figures and page"):
            written = _write_arrays(folder.path, results, config, watch, fitted, formats)
            run = run_of(folder.path, written.tables)
            page = _write_page(run)
        written.log(tracker, [], page)
    run.folder = folder.finish()
    if not quiet:
        print_output_location(run.folder, tracker.where(run.folder))
    return run


def _passing(results: Any, config: Mapping[str, Any], watch: Stopwatch, fitted: Any) -> Run:
    """Return a run in a temporary folder, which is removed with the run."""
    folder = Path(tempfile.mkdtemp(prefix="probing-"))
    try:
        with stage("tables"):
            written = _write_arrays(folder, results, config, watch, fitted)
        run = run_of(folder, written.tables)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(run, shutil.rmtree, folder, True)
    return run


def _write_arrays(
    folder: Path, results: Any, config: Mapping[str, Any], watch: Stopwatch, fitted: Any, formats: Sequence[str] = ()
) -> Any:
    """Write all results and return what was written."""
    from probing.runs.results import write

    key = {"activations": config["arrays"]["sha256"]}
    cached_of, timings = {side: {"key": key} for side in ("train", "test")}, partial(watch.end, "rank")
    return write(folder, config, results, config["model"], cached_of, timings, formats, transforms=fitted)


def _drawn_tables(result: Result) -> dict[str, Table]:
    names = "accuracy", "neurons", "bases", "basis", "positions", "class_scores", "confusions"
    return {name: getattr(result, name) for name in names}


class Fit(Study):
    """Probes of each layer, and the neurons that they read."""

    name, kind, title = "fit", "run", "Probes"
    function = "probing.studies.fit:fit"
    in_several_processes = True
    schemas = TABLES
    variants = (NUMBERS, NUMBER_NEURONS, PREDICTIONS)
    page = "concepts.md"
    files: ClassVar[Mapping[str, str]] = {
        "probe.safetensors": "`weight` (n_layers, n_classes, d_model), to be used on raw hidden states: `logits = "
        "hidden_states @ weight[i].T`; its metadata names the layer of each slice and the position of each row. Of "
        "numbers `weight` (n_layers, 1, d_model) in float64, with `mean` in its metadata: a prediction is `mean + "
        "hidden_states @ weight[i, 0]`. With `--probe.bias`, hidden states are those that `transform.safetensors` has "
        "centred, and of classes there is `intercept` (n_layers, n_classes) to add.",
        "replicates.safetensors": "`weight` (n_replicates, n_layers, n_classes, d_model) of the bootstrapped probes.",
        "contributions.safetensors": "`contribution` (n_layers, n_classes, d_model): mean over the test tokens of each "
        "class; of numbers one row in the place of classes.",
        "transform.safetensors": "With `--transform`, the transform of each layer.",
        "figures/": "Accuracy by layer and by position; top neurons; neuron x layer map; neurons beside directions.",
        "report.html": "All of it as one page.",
        "corpus.txt, test_corpus.txt": "Of corpora that Python gave as lists: a sentence a line; `config.yaml` names "
        "these files.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the accuracy of each layer, and the first neurons of the leading layer."""
        printed = self.printed(result)
        return [printed[name][0] for name in ("accuracy", "neurons", "class_scores") if name in printed]

    def printed(self, result: Result) -> Mapping[str, Sequence[Any]]:
        """Return the tables of the terminal: the accuracies, and of the leading layer what else the run has."""
        from probing.tables import probes
        from probing.tables.conclusions import bases_table, leading

        assert isinstance(result, Run)
        rows, layer = result.accuracy, leading(result.accuracy)["layer"]
        has_controls = bool({*controls_of(rows)} - {"majority"})
        tables = {
            "accuracy": [probes.accuracy_table(rows), *([probes.controls_table(rows)] if has_controls else [])],
            "neurons": [probes.neurons_table(result.top(layer), site_of(result.config))],
        }
        parts = {
            "class_scores": (probes.classes_table, result.scores_of(layer)),
            "heads": (probes.heads_table, result.heads.where(layer=layer)),
            "bases": (bases_table, result.bases.where(layer=layer)),
        }
        return tables | {name: [table(of_layer)] for name, (table, of_layer) in parts.items() if of_layer}

    def command_line(self, config: Mapping[str, Any]) -> str:
        """Return the command that repeats a run."""
        from probing.page.charts import command_line

        return command_line(config, defaults(fit))

    def charts(self, result: Result) -> list[Chart]:
        """Return accuracy by layer, and what else the run has: other bases, and random directions."""
        from probing.tables.probe_figures import run_charts

        return run_charts(_drawn_tables(result), label_name(result.config))

    def drawings(self, result: Result) -> Drawings:
        """Return the first neurons, the map of all neurons, accuracy by position and what classes are taken for."""
        from probing.tables.probe_figures import run_drawings

        return run_drawings(_drawn_tables(result), label_name(result.config), model_name(result.config))

    def conclusions(self, result: Result) -> list[str]:
        """Return the penalty, the evidence of the accuracies, and then the rankings, layer by layer."""
        from probing.probes.neuron_profiles import position_line
        from probing.tables.conclusions import bases_lines, leading, not_above, ranking_conclusions, why_leading
        from probing.tables.probes import penalty_lines

        assert isinstance(result, Run)
        layer, task = leading(result.accuracy)["layer"], task_in_words(result.config)
        at_positions = position_line([row for row in result.positions if row["layer"] == layer])
        return [
            *penalty_lines(result.results.get("penalty", {})), *filter(None, [at_positions]),
            *not_above(result.accuracy),
            *bases_lines(result.bases, task), *filter(None, [why_leading(result.accuracy)]),
            *ranking_conclusions(result.accuracy, result.neurons, task, result.results, result.config, result.basis),
        ]  # fmt: skip

    def read(self, folder: Path) -> Run:
        """Read a run whose tables are complete, also from a folder before its final renaming."""
        config, results = read_documents(folder, check_documents)
        schemas = (NUMBERS, NUMBER_NEURONS) if "numbers" in results else (ACCURACY, NEURONS)
        accuracy, neurons = (read_csv(folder / f"{schema.name}.csv", schema) for schema in schemas)
        check_tables(results, accuracy, neurons)
        check_tensors(folder, results, accuracy, len(neurons))
        return Run(folder, config, results, accuracy, neurons)


STUDY = Fit()
