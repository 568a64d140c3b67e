"""The study `sweep`: the trials of a W&B sweep file, trained together where possible."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, is_dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from probing.cli.arguments import OptionSource, as_mapping, checked, read_yaml
from probing.cli.commandline import command
from probing.cli.options import (
    FIGURE_FORMAT,
    FigureFormat,
    Options,
    Wandb,
    WandbOptions,
    as_options,
    configuration,
    defaults,
    figure_formats,
    flat,
    option,
    problems_of,
)
from probing.errors import UserError, as_clause, refuse
from probing.models import load_config, parse_layers, resolve_model
from probing.page.charts import charts_html, option_words
from probing.results import RANGE, Html, Schema, Type, cells_table, count, interval, read_trials, text, write_csv
from probing.runs import Result, Study, Terms, refuse_several, study_of
from probing.runs.call import places, say_results
from probing.runs.folder import PARTIAL, ResumableFolder, read_json
from probing.runs.run import load_fit
from probing.runtime import quiet_libraries, started_as, versions
from probing.runtime.files import parse_json, read_text
from probing.runtime.processes import interrupt_behind
from probing.runtime.progress import BRIEF, Advance, disable_progress, expect, messages, remark, stage
from probing.studies.fit import FitOptions, chosen_controls
from probing.studies.fit import fit as fit_command
from probing.studies.sweep.definition import (
    LIGHT,
    SEED,
    Parameter,
    Sweep,
    Trial,
    alike,
    column_of,
    group_by_key,
    is_stacked,
    layer_problems,
    metric_problems,
    parse_sweep,
    stacks,
    trial_name,
)
from probing.tables.figures import Drawings, write_drawings
from probing.tables.schema import ACCURACY, NUMBERS
from probing.text.tasks import load_task, predicts_numbers, unit_of
from probing.tracking import Tracker, resolve_mode, shared_service

BEST = 10


def best_table(rows: Sequence[Mapping[str, Any]], varied: Sequence[str], metric: str | None, goal: str) -> Any:
    """Return the best rows, one per trial and layer, as a rich table.

    They are ordered by the mean over seeds of `metric`, as named by W&B, or of the accuracy.
    """
    column = (column_of(metric) if metric else None) or "accuracy"
    column = column if rows and column != "layer" and column in rows[0] else "accuracy"
    sign = 1 if column != "accuracy" and goal == "minimize" else -1
    setting_of = itemgetter("layer", "layer", *(name for name in varied if name != SEED))
    settings = group_by_key(rows, setting_of)
    means = {key: fmean(row[column] for row in of_setting) for key, of_setting in settings.items()}
    ranked = sorted(rows, key=lambda row: (sign * means[setting_of(row)], row.get("cross_entropy", 0)))[:BEST]
    shown = list(dict.fromkeys([*varied, "layer"]))
    extra = [name for name in dict.fromkeys([column, "cross_entropy"]) if name != "accuracy" and name in rows[0]]
    headings = [name if "." in name else name.replace("_", " ") for name in (*shown, "accuracy", RANGE, *extra)]
    cells = (
        [row["trial"].partition("-")[0], *(str(row[name]) for name in shown), f"{row['accuracy']:.3f}",
         interval(row, "accuracy"), *(f"{row[name]:.3f}" for name in extra)]
        for row in ranked
    )  # fmt: skip
    by = f"mean {column} over seeds" if SEED in varied else column
    return cells_table(f"The best {len(ranked)} of {count(len(rows), 'row')} by {by}", ["trial", *headings], cells)


def _option(name: str) -> Type | None:
    """Return the type of an option that a sweep varies, or of the agreement with runs that differ in it."""
    return float if name.endswith(("_spearman", "_overlap")) else str


SWEEP = Schema("sweep", "a row per trial and layer: the options that vary, and the columns of accuracy.csv", (
    text("trial", "Name of the trial."),
    *{column.name: column for column in (*ACCURACY.columns, *NUMBERS.columns)}.values(),
), further=_option)  # fmt: skip

# Options that the sweep sets for its trials; a value that the file gives for all trials is the sweep's own default.
DECIDED = ("name", "runs", "cache", "quiet", "verbose", "wandb")


class TrialOptions:
    """Conversion of points to keyword arguments of `fit`; options in `over` override the file, and are not varied.

    Raises:
        UserError: If options do not exist, or values are of the wrong type; the message names them all.
    """

    def __init__(self, sweep: Sweep, file: str, over: Mapping[str, Any]) -> None:
        checked(FitOptions, over, "fit", OptionSource("--fit."))
        refuse([f"`--fit.{name}` cannot be set: the sweep's own `--{name}` decides" for name in over if _decided(name)])
        self.place = OptionSource("", ": ", f" in {file}")
        varied = [p for p in sweep.parameters if p.varies and p.name not in over]
        problems = [f"`{p.name}` in {file} cannot vary: the sweep decides it" for p in varied if _decided(p.name)]
        constant = {**as_mapping(sweep.command), **{p.name: p.values()[0] for p in sweep.parameters if not p.varies}}
        if "name" in constant:
            problems.append(f"`name` in {file} cannot be set: trials are named by the sweep")
        self.decided = {name: value for name, value in constant.items() if _decided(name)}
        fixed = {**LIGHT, **{name: value for name, value in constant.items() if not _decided(name)}, **over}
        self.varied = [p.name for p in varied]
        self.known: dict[tuple[str, str], Mapping[str, Any]] = {}
        for name, value in ((p.name, value) for p in varied for value in _some_values(p)):
            try:
                self._checked(name, value)
            except UserError as error:
                problems.append(str(error).rstrip("."))
        try:
            self.base = checked(FitOptions, fixed, "fit", self.place)
        except UserError as error:
            problems.append(str(error).rstrip("."))
        refuse(problems)

    def of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a trial.

        Raises:
            UserError: If they are invalid for every model and corpus.
        """
        options = dict(self.base)
        for name, value in self.varied_of(point).items():
            top, _, inner = name.partition(".")
            given = self._checked(name, value)[top]
            options[top] = _put(options[top], inner, given) if inner else given
        refuse(list(problems_of(FitOptions(**options))))
        task = load_task(options["task"], options["task_args"] or {})
        if predicts_numbers(task):
            raise UserError(
                f"`task {options['task']}`: it predicts numbers, "
                "and a sweep compares accuracies of classes; use `fit`, whose ridge probe has no options to search."
            )
        chosen_controls(options["controls"], task.ordinal, unit_of(task))
        return options

    def varied_of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a point that vary between trials."""
        return {name: value for name, value in point.items() if name in self.varied}

    def _checked(self, name: str, value: Any) -> Mapping[str, Any]:
        key = (name, repr(value))
        if key not in self.known:
            self.known[key] = checked(FitOptions, {name: value}, "fit", self.place)
        return self.known[key]


def _decided(name: str) -> bool:
    return name.partition(".")[0] in DECIDED


def _some_values(parameter: Parameter) -> list[Any]:
    """Return some values of a parameter, enough to check its types."""
    if parameter.distribution.startswith("categorical"):
        return parameter.values()
    is_range = parameter.distribution in ("uniform", "q_uniform", "int_uniform", "log_uniform_values")
    return [parameter.settings[end] for end in ("min", "max") if end in parameter.settings and is_range]


def _put(options: Any, inner: str, given: Any) -> Any:
    """Replace one option of a group by its value in another such group."""
    if is_dataclass(options) and not isinstance(options, type):
        return replace(options, **{inner: getattr(given, inner)})
    return {**(options or {}), inner: given[inner]}


class SweepFolder(ResumableFolder):
    """The folder of a sweep that is new or continued.

    `definition` is everything that determines the trials; a sweep with another definition is another sweep.

    Raises:
        UserError: If the name is taken by something else, or the folder cannot be created.
    """

    what, other = "sweep", "another sweep, or to another version of this file"
    work = "trials"
    temporary = ("progress.safetensors",)

    def __init__(self, runs: Path, name: str, definition: Mapping[str, Any]) -> None:
        super().__init__(runs, name, definition)
        self.trials = self.path / self.work

    @contextmanager
    def claimed(self) -> Iterator[list[str]]:
        """Lock the folder against other processes, and yield the names of the finished trials.

        Raises:
            UserError: If another process is running the sweep, or the folder cannot be created.
        """
        with self.locked():
            for torn in self.trials.glob(f"*{PARTIAL}"):
                shutil.rmtree(torn)
            yield sorted(trial.name for trial in self.trials.iterdir())


@dataclass(frozen=True)
class SweepOptions(Options):
    """Options of `sweep`."""

    file: str | None = None
    """Sweep file whose trials are runs of fit; may be given without `--file`."""
    trials: int | None = option(None, at_least=1)
    """Maximum number of trials; default: all of a grid, otherwise run_cap of the file."""
    seed: int = 0
    """Seed of random and Bayesian search; the seed of the split is an option of the trials."""
    fit: dict[str, Any] | None = None
    """Options of fit that apply to all trials and override the file, such as --fit.corpus text.txt."""
    _: KW_ONLY
    runs: str = "runs"
    """Folder of runs, in which the sweep is also saved."""
    name: str | None = None
    """Name of the sweep; default: the name of the file. An unfinished sweep of this name is continued."""
    cache: str | None = None
    quiet: bool = False
    verbose: bool = False
    wandb: Wandb = WandbOptions()
    """Where and how to track the trials, as one group, in Weights & Biases."""
    figure_format: FigureFormat = FIGURE_FORMAT


@command(SweepOptions)
def sweep(options: SweepOptions) -> Result:
    """Run the trials of a W&B sweep file locally; trials that differ only in layer, seed or penalty train together.

    Returns:
        The sweep.
    """
    refuse_several("sweep")
    if options.file is None:
        raise UserError("`sweep` takes a sweep file, such as conf/sweeps/layers.yaml.")
    content = read_yaml(options.file, "sweep")
    over = _flat(options.fit or {})
    definition = parse_sweep(content, options.file).without(over)
    trial_options = TrialOptions(definition, options.file, over)
    runs, cache, quiet, wandb = _with_file_defaults(trial_options.decided, definition, options)
    name = options.name or Path(options.file).stem
    mode, formats = resolve_mode(wandb.mode), figure_formats(options.figure_format)
    cached, place = places(cache, runs, None)
    n_trials = _number_of_trials(definition, options.trials, options.file)
    settings = {"sweep": content, "trials": n_trials, "seed": options.seed, "fit": over}
    folder = SweepFolder(place, name, settings)
    if quiet:
        disable_progress()
    say = messages(quiet)
    with quiet_libraries(), folder.claimed() as whole, shared_service(mode):
        start = time.perf_counter()
        runner = _Runner(definition, trial_options, folder, whole, n_trials, options.seed, cached, wandb, say)
        try:
            expect([None, BRIEF])
            with stage(count(n_trials, "trial"), n_trials, len(whole)) as runner.advance:
                finished_trials = runner.run()
            with stage("tables and figures"):
                _conclude(folder.path, definition, trial_options, finished_trials, wandb, name, say, start, formats)
        except BaseException as error:
            hint = f"{_command_line(options.file, options)} continues the sweep"
            if interrupt := interrupt_behind(error):
                raise type(interrupt)(f"the unfinished sweep is {folder.path}, and {hint}") from None
            if isinstance(error, OSError):
                raise UserError(
                    f"`--runs {runs}` cannot be written ({as_clause(error)}); make room: {hint}."
                ) from error
            raise
    finished = study_of("sweep").read(folder.finish())
    say_results(finished, None, quiet, options.verbose)
    return finished


def _command_line(file: str, options: SweepOptions) -> str:
    """Return the typed command, with every option that is not at its default."""
    default_values = defaults(sweep)
    values = configuration(options) | {"name": options.name, "fit": _flat(options.fit or {})}
    del values["file"]
    words = [word for name, value in values.items() for word in option_words(name, value, default_values.get(name))]
    return shlex.join([*started_as().split(), "sweep", file, *words])


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their dotted names; groups of options, as in Python, are flattened."""
    groups = {name: value for name, value in options.items() if isinstance(value, Mapping)}
    inner = {f"{name}.{key}": value for name, group in groups.items() for key, value in group.items()}
    return {**{name: value for name, value in options.items() if name not in groups}, **inner}


def _with_file_defaults(
    file_options: Mapping[str, Any], definition: Sweep, options: SweepOptions
) -> tuple[str, str | None, bool, WandbOptions]:
    """Return the sweep's options: from the command line, or else the file's for all trials."""
    default, wandb = WandbOptions(), as_options(WandbOptions, options.wandb, "wandb")
    file_values: dict[str, Any] = {"project": definition.project, "entity": definition.entity}
    file_values |= {
        name.removeprefix("wandb."): value for name, value in file_options.items() if name.startswith("wandb.")
    }
    unset = {
        name: value for name, value in file_values.items() if value and getattr(wandb, name) == getattr(default, name)
    }
    return (
        file_options.get("runs", options.runs) if options.runs == "runs" else options.runs,
        options.cache or file_options.get("cache"), options.quiet or file_options.get("quiet", False),
        replace(wandb, **unset),
    )  # fmt: skip


def _number_of_trials(definition: Sweep, trials: int | None, file: str) -> int:
    """Return the number of trials; refuse a search without a limit, or one that is not possible here."""
    from probing.studies.sweep.search import check_installed, n_points

    refuse(metric_problems(definition.metric))
    cap = min((n for n in (trials, definition.run_cap) if n), default=None)
    if definition.method == "grid":
        return min(n_points(definition), cap or n_points(definition))
    if cap is None:
        raise UserError(f"`method: {definition.method}` in {file} never ends; give `run_cap` there, or --trials.")
    if definition.method == "bayes":
        check_installed()
    return cap


class _Runner:
    """Runner of the unfinished trials; `whole` are the names of the finished ones, and `n_trials` counts all."""

    def __init__(
        self, definition: Sweep, options: TrialOptions, folder: SweepFolder, whole: Sequence[str], n_trials: int,
        seed: int, cache: Path, wandb: WandbOptions, say: Any,
    ) -> None:  # fmt: skip
        self.definition, self.options, self.folder, self.whole = definition, options, folder, set(whole)
        self.n_trials, self.seed, self.cache, self.say = n_trials, seed, cache, say
        self.advance: Advance  # is called with the number of trials that have finished
        self.wandb = replace(wandb, group=wandb.group or folder.final.name, name=None)  # the name is the sweep's

    def run(self) -> list[Trial]:
        """Run the unfinished trials and return all trials."""
        if self.whole:
            remark(f"{len(self.whole)} of {self.n_trials} trials are finished already")
        if self.definition.program:
            self.say(f"`program: {self.definition.program}` is ignored: here every trial is a run of `probing fit`")
        if self.definition.stops_early:
            self.say("early_terminate applies to the agents of W&B only: here every trial runs to its end")
        if self.definition.method == "bayes":
            return self._search()
        trials = [self._trial(number, point) for number, point in enumerate(self._points())]
        self._check(trials)
        for stack in stacks(trials):
            self._run(stack)
        return trials

    def _points(self) -> Iterator[Mapping[str, Any]]:
        from probing.studies.sweep.search import draw, grid

        if self.definition.method == "grid":
            return itertools.islice(grid(self.definition), self.n_trials)
        return (draw(self.definition, number, self.seed) for number in range(self.n_trials))

    def _search(self) -> list[Trial]:
        """Run a Bayesian search: each trial's point is suggested from the metrics of the trials before it."""
        from probing.studies.sweep.search import metric_of, missing_metric, outcome, suggest

        trials: list[Trial] = []
        finished: list[tuple[dict[str, Any], float]] = []
        for number in range(self.n_trials):
            point = suggest(self.definition, finished, self.seed)
            trials.append(self._trial(number, point))
            self._check(trials[-1:])
            self._run(trials[-1:])
            trial_outcome = outcome(trials[-1].name, point, load_fit(self.folder.trials / trials[-1].name))
            finished.append((point, metric_of(trial_outcome, self.definition.metric)))
            if problem := missing_metric([trial_outcome], self.definition.metric):
                raise UserError(f"{problem}; search by one of these.")
        return trials

    def _trial(self, number: int, point: Mapping[str, Any]) -> Trial:
        varied = self.options.varied_of(point)
        options = {**self.options.of(point), "cache": str(self.cache), "wandb": self.wandb}
        return Trial(trial_name(number, self.n_trials, varied), varied, options)

    def _check(self, trials: Sequence[Trial]) -> None:
        """Refuse impossible settings of the model or the training, before any work."""
        from probing.runtime.trainer import check_trainer_options

        for same in {alike(trial): trial for trial in trials}.values():
            trainer = same.options["trainer"] or {}
            if {"strategy", "num_nodes"} & set(trainer) or trainer.get("devices", 1) != 1:
                raise UserError(
                    "`trainer.strategy`, `trainer.devices` and `trainer.num_nodes`: a sweep runs in one process; "
                    "`wandb agent` runs its trials on any number of hosts."
                )
            check_trainer_options(trainer, same.probe.solver)
            if same.options["corpus"] == "-":
                raise UserError("`corpus: -`: a sweep reads its corpus more than once; give it as a file.")
        depth: dict[tuple[str, str | None], int] = {}
        layers: set[int] = set()
        for trial in trials:
            model, revision = trial.options["model"], trial.options["revision"]
            if (model, revision) not in depth:
                depth[model, revision] = load_config(resolve_model(model, revision)).num_hidden_layers
            layers.update(parse_layers(trial.options["layer"], depth[model, revision], model))
        refuse(layer_problems(self.definition.metric, sorted(layers)))

    def _run(self, stack: Sequence[Trial]) -> None:

        todo = [trial for trial in stack if trial.name not in self.whole]
        if not todo:
            return
        if not is_stacked(todo[0]):
            self._fit(todo[0])
            return
        from probing.studies.sweep.stacked_trials import StackContext, run_stack

        done = [trial for trial in stack if trial.name in self.whole]
        context = StackContext(self.folder.trials, self.cache, self.wandb, self.say, self._finished)
        run_stack(todo, done, context)

    def _fit(self, trial: Trial) -> None:
        """Run a trial that needs more than a probe as a separate `fit`."""
        import yaml

        with contextlib.redirect_stdout(io.StringIO()):  # its tables are on disk
            result = fit_command(
                **{**trial.options, "runs": str(self.folder.trials), "name": trial.name, "quiet": True}
            )
        assert result is not None  # of one process the first rank
        config = {**result.config, "runs": trial.options["runs"], "quiet": trial.options["quiet"]}
        (result.folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        self._finished(trial)

    def _finished(self, trial: Trial) -> None:
        before = len(self.whole)
        self.whole.add(trial.name)
        self.advance(1)
        tenth = max(1, self.n_trials // 10)
        if before // tenth != len(self.whole) // tenth or len(self.whole) == self.n_trials:
            remark(f"{len(self.whole)} of {self.n_trials} trials")


def _conclude(
    folder: Path, definition: Sweep, options: TrialOptions, trials: Sequence[Trial], wandb: WandbOptions, name: str,
    say: Any, start: float, formats: Sequence[str],
) -> None:  # fmt: skip
    """Write the results of all trials, with the lines for the terminal, and log them."""
    import yaml

    from probing.studies.sweep import search as table

    outcomes = [table.outcome(trial.name, trial.point, load_fit(folder / "trials" / trial.name)) for trial in trials]
    rows = table.rows(outcomes, options.varied)
    problem = table.missing_metric(outcomes, definition.metric)
    metric = None if problem else definition.metric
    best = table.best(outcomes, metric, definition.goal)
    drawings = {"sweep": partial(table.draw_sweep, rows=rows, varied=options.varied)}
    figures = write_drawings(folder / "figures", drawings, formats)
    write_csv(folder / "sweep.csv", rows, SWEEP)
    settings = parse_json(read_text(folder / "definition.json", folder))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(settings["sweep"], sort_keys=False), encoding="utf-8")
    summary = {
        "kind": "sweep", "versions": versions(), **{key: settings[key] for key in ("trials", "seed", "fit")},
        # The first seed of the setting that is best in the mean of its seeds.
        "best": {"trial": best[0].name, **best[0].point, "metric": table.mean_metric(best, metric)},
        "timings": {"total_s": time.perf_counter() - start},
        "said": [
            *([f"{problem}; so trials are ranked by their accuracy."] if problem else []),
            *table.conclusion(rows, outcomes, options.varied, metric, definition.goal),
        ],
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(summary, indent=2), encoding="utf-8")
    files = [folder / file for file in ("sweep.csv", "sweep.yaml", "results.json")]
    tracker = Tracker(replace(wandb, group=wandb.group or name), folder, name, {**settings, **asdict(wandb)}, say)
    tracker.log_results([], [], figures, files, {"sweep": rows}, kind="sweep")
    tracker.finish()


class SweepStudy(Study):
    """The study of many runs of `fit`, whose trials are runs in `folder / "trials"`."""

    name, kind, title = "sweep", "sweep", "Sweep"
    function = "probing.studies.sweep:sweep"
    schemas = (SWEEP,)
    page = "cluster.md#sweeps"
    files: ClassVar[Mapping[str, str]] = {
        "trials/": "A run of `fit` for each trial.",
        "definition.json, sweep.yaml": "What decides which trials there are.",
        "figures/sweep": "Accuracy by layer and option.",
    }

    def drawings(self, result: Result) -> Drawings:
        """Return what draws the accuracy by layer and option."""
        from probing.studies.sweep.search import draw_sweep

        return {"sweep": partial(draw_sweep, rows=result.sweep, varied=self._varied(result))}

    def maps(self, result: Result) -> list[Html]:
        """Return the chart of the page, of the same numbers as the figure."""
        from probing.studies.sweep.search import sweep_charts

        return charts_html(sweep_charts(result.sweep, self._varied(result)))

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings; those of options are their help."""
        options = flat(FitOptions)
        varied = {name: options[name].help for name in self._varied(result) if name in options}
        return {self.title: {**varied, **SWEEP.terms(["accuracy*"]), "cross entropy": SWEEP["cross_entropy"].meaning}}

    def command_line(self, config: Mapping[str, Any]) -> str:
        """Return the command that repeats a sweep."""
        words = [option_words(name, config[name], defaults(sweep)[name]) for name in ("trials", "seed", "fit")]
        return shlex.join(["python", "-m", "probing", "sweep", "sweep.yaml", *itertools.chain(*words)])

    def _varied(self, result: Result) -> list[str]:
        return [name for name in result.results["best"] if name not in ("trial", "metric")]

    def tables(self, result: Result) -> list[Any]:
        """Return the best rows."""
        metric = result.config["sweep"].get("metric") or {}
        return [best_table(result.sweep, self._varied(result), metric.get("name"), metric.get("goal", "minimize"))]

    def conclusions(self, result: Result) -> list[str]:
        """Return the best trial, and the dependence of rankings on each option."""
        return list(result.results["said"])

    def read(self, folder: Path) -> Result:
        """Read a sweep, whose configuration is the definition of its trials."""
        rows = read_trials(folder / "sweep.csv", SWEEP)
        config, results = read_json(folder / "definition.json"), read_json(folder / "results.json")
        return Result(self, folder, config, results, {"sweep": rows})


STUDY = SweepStudy()
