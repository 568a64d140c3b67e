"""Command `rank`: other rankings of the neurons of a finished run, and their evaluation by other probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.option_types import FIGURE_FORMAT, FigureFormat, Folder, Layers, Moved, figure_formats
from probing.cli.options import Options, Wandb, WandbOptions, as_options, configuration, option, rotation_problems
from probing.errors import UserError, did_you_mean, out_of_range, refuse
from probing.models import from_the_end, layer_numbers, site_of, what_is_a_neuron
from probing.results import Row, Table, layers_named
from probing.runs import Result, Study, refuse_several
from probing.runs.call import print_output_location, writable_folder
from probing.runs.loading import (
    RANKING_KEY,
    TABLES,
    Ranked,
    Rankings,
    draw_curves,
    load_fit_of_classes,
    tracked_like,
    write_tables,
    writing,
)
from probing.runs.run import Run
from probing.runtime import quiet_libraries
from probing.runtime.progress import BRIEF, expect, messages, stage
from probing.tables import (
    curves_lines,
    curves_tables,
    erasure_tables,
    evaluation_tables,
    has_intercept,
    rankings_lines,
    rankings_tables,
)
from probing.tables.schema import CURVES, DIRECTIONS, ERASURE, EVALUATION, RANKING
from probing.tracking import Tracker, resolve_mode


@dataclass(frozen=True)
class RankOptions(Options):
    """Options of `rank`."""

    folder: Folder | None = None
    """Folder of a finished run; may be given without `--folder`."""
    method: str | list[str] | None = None
    """Ranking methods: all, or some of contribution, contribution_predicted, contribution_all, contribution_centred,
    weight, weight_mass, elastic_net, probeless, probeless_standardised, anova, gaussian, random. Default: contribution
    with `--erase` or `--curves`, otherwise all."""
    layer: Layers = "all"
    """Layers of the run to rank: one (6), several (0,3,6 or 3-6), the last (-1) or all."""
    evaluate: bool = False
    """Evaluate every ranking by a linear and a Gaussian probe of its first, its last and random neurons."""
    erase: bool = False
    """Measure what a linear probe still decodes from only the first neurons of the run's ranking, from all other
    neurons, and after the class is erased linearly, each compared with a random counterpart."""
    curves: bool = False
    """Measure how accuracy rises with only the first k neurons of every ranking and falls without them, compared with
    random and last neurons, and find the fewest neurons within 1 point of the accuracy of all."""
    k: int | list[int] | str | None = None
    """Numbers of neurons for the probes of `--evaluate` and `--curves`, such as 10,50,100. Default: 10, 50, 100
    (`--evaluate`) or 1, 2, 5, 10, 20, 50, 100, 200 (`--curves`), as far as these are fewer than all."""
    draws: int | None = option(None, at_least=1, at_most=1000)
    """Number of draws of random neurons for comparison; default: 10."""
    top: int = 10
    """Number of first neurons that `--erase` keeps or removes, at most half of all."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: random neurons, and a sample of the tokens if not all are used."""
    cache: str | None = None
    """Folder of cached activations; default: the cache of the run."""
    quiet: bool = False
    """Print only result lines and warnings, without tables and progress."""
    wandb: Wandb = WandbOptions()
    """Where and how to track the rankings in Weights & Biases; with the mode auto, they are not sent if the run was
    not."""
    figure_format: FigureFormat = FIGURE_FORMAT
    corpus: Moved | None = None
    """Text of the run, if it has moved: its path, or [A, B] for a corpus and a test corpus; its content must be
    unchanged."""
    rotations: int = 20
    """Number of random rotations for comparing neurons with directions, for methods that can also score directions; 0
    for none."""

    def problems(self) -> list[str]:
        """Return the problem with a number of rotations."""
        return rotation_problems(self.rotations)


@command(RankOptions)
def rank(options: RankOptions) -> Rankings:
    """Rank the neurons of a finished run by other methods, and write the rankings to RUN/rankings.

    Returns:
        The rankings.
    """
    refuse_several("rank")
    sizes = _sizes(options.k)
    config, wandb = configuration(options), as_options(WandbOptions, options.wandb, "wandb")
    resolve_mode(wandb.mode)
    layer_numbers(options.layer)
    if not options.folder:
        raise UserError("`rank` takes the folder of one finished run, such as runs/A.")
    run = _without_intercept(load_fit_of_classes(config["folder"]))
    layers = _layers(options.layer, run)
    place = writable_folder(run.folder / "rankings", f"rank {run.folder}", "copy the run to a writable folder")
    with quiet_libraries():
        from probing.probes.rankings import METHODS
        from probing.runs.finished import probe_weight
        from probing.studies.fit.estimate import Judging, erasure_rows, rank_layers

        methods = _methods(options.method or ("contribution" if options.erase or options.curves else "all"), METHODS)
        if options.curves and methods == ["random"]:
            raise UserError("`--curves`: random neurons are part of every comparison; name a ranking with --method.")
        width = probe_weight(run).shape[2]
        problems = [problem for size in sizes or () for problem in out_of_range("k", size, 1, width)]
        refuse(problems + (top_problems(options.top, width) if options.erase else []))
        expect([*[None] * (2 + options.erase), BRIEF])
        label, sides = _read(run, options.corpus, options.cache, options.quiet)
        if not sides.validation.n_tokens and (options.evaluate or options.curves or "gaussian" in methods):
            raise UserError(
                f"`rank {run.folder}`: no sentence of the validation part has a token of any class, and `gaussian`, "
                "`--evaluate` and `--curves` need some; name other methods with --method, or fit with more sentences."
            )
        judging = Judging(options.evaluate, options.curves, sizes, options.draws)
        rankings, tables = rank_layers(run, layers, sides, methods, judging, options.seed, options.rotations)
        tables["erasure"] = erasure_rows(run, sides, layers, options.top, options.seed) if options.erase else []
        ranked = {name: Table(rows, RANKING) for name, rows in rankings.items()}
        result = Rankings(run, place, ranked, {name: Table(rows, TABLES[name]) for name, rows in tables.items()})
        figures = _write(result, run, layers, label, figure_formats(options.figure_format))
    where = _track(result, tracked_like(run, wandb), f"{run.folder.name}-rankings", config, figures)
    _report(result, run, where, options.quiet)
    return result


def _without_intercept(run: Run) -> Run:
    """Return a run whose probes have no intercept, or refuse it."""
    if has_intercept(run.config):
        raise UserError(
            f"`rank {run.folder}`: its probes have an intercept (`--probe.bias true`), and the other rankings are of "
            "probes without one; give a run without it."
        )
    return run


def _read(run: Run, corpus: Moved | None, cache: str | None, quiet: bool) -> tuple[str, Any]:
    """Return the name of the run in figures, and its examples as a `probing.data.examples.Sides`."""
    from probing.runs.finished import RunExtraction, open_runs, sides_of
    from probing.runs.places import cache_of, given_texts

    (finished,) = open_runs([run], "index", given_texts(corpus))
    extract = RunExtraction(cache_of(run, cache), {}, messages(quiet))
    return finished.label, sides_of(finished, extract)


@stage("tables and figures")
def _write(rankings: Rankings, run: Run, layers: Sequence[int], label: str, formats: Sequence[str]) -> list[Path]:
    """Write the tables, keeping rows of earlier calls, and return the paths of the figures."""
    from probing.probes.evaluation import CURVE_KEY, EVALUATION_KEY
    from probing.probes.removal import INFORMATION_KEY

    files: dict[str, Ranked] = {name: (rows, RANKING, RANKING_KEY) for name, rows in rankings.rankings.items()}
    files["directions"] = rankings.directions, DIRECTIONS, ("layer", "ranking")
    files["evaluation"] = rankings.evaluation, EVALUATION, EVALUATION_KEY
    files["erasure"] = rankings.erasure, ERASURE, INFORMATION_KEY
    files["curves"] = rankings.curves, CURVES, CURVE_KEY
    with writing(rankings.folder, run):
        write_tables(rankings.folder, files)
        return draw_curves(rankings.folder, layers, label, run, formats) if rankings.curves else []


def _report(rankings: Rankings, run: Run, where: str | None, quiet: bool) -> None:
    from probing.runtime import terminal
    from probing.tables.conclusions import few_clusters

    if quiet:
        for line in rankings_lines(rankings.rankings):
            print(line)
    else:
        terminal.show(*rankings.tables())
        terminal.tell(what_is_a_neuron(site_of(run.config)))
    terminal.tell(*curves_lines(rankings.curves))
    if (rankings.evaluation or rankings.erasure or rankings.curves) and (few := few_clusters(run.results)):
        terminal.tell(few)
    print_output_location(rankings.folder, where)


def _sizes(k: int | Sequence[int] | str | None) -> list[int] | None:
    if k is None:
        return None
    flag_text = str(k) if isinstance(k, int | str) else ",".join(map(str, k))
    try:
        return sorted({int(part) for part in flag_text.split(",")})
    except ValueError:
        raise UserError(f"`--k {flag_text}`: expected a number of neurons, or several such as 10,50,100.") from None


def _layers(layer: Layers, run: Run) -> list[int]:
    """Return the requested layers, ascending; raise UserError for a layer that the run lacks."""
    run_layers = [row["layer"] for row in run.accuracy]
    selected = from_the_end(layer_numbers(layer) or run_layers, run_layers)
    if missing := [number for number in selected if number not in run_layers]:
        raise UserError(f"`--layer {missing[0]}` is not in {run.folder}, which has {layers_named(run_layers)} alone.")
    return selected


def _methods(selection: str | Sequence[str], known: Mapping[str, Callable[..., Any]]) -> list[str]:
    names = [name.strip() for name in selection.split(",")] if isinstance(selection, str) else list(selection)
    if names == ["all"]:
        return list(known)
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise UserError(f"`--method {name}` is no method{near}; they are {', '.join(known)}, or all.")
    return [name for name in known if name in names]


def _track(
    rankings: Rankings, options: WandbOptions, name: str, config: Mapping[str, Any], figures: Sequence[Path]
) -> str | None:
    """Log tables and figures to W&B, without files since `rank` may replace them, and return their address."""
    from probing.runtime.terminal import say

    tables: dict[str, Sequence[Row]] = {f"rankings/{name}": rows for name, rows in rankings.rankings.items()}
    tables |= {"directions": rankings.directions, "evaluation": rankings.evaluation}
    tables |= {"erasure": rankings.erasure, "curves": rankings.curves}
    tracker = Tracker(options, rankings.folder, name, config, say)
    tracker.log_results([], [], figures, [], tables)
    tracker.finish()
    return tracker.where(rankings.folder)


def top_problems(n_top: int, d_model: int) -> list[str]:
    """Return the problems with a number of first neurons, which are compared with as many random neurons."""
    half = d_model // 2
    expected = f"expected 1 to {half}, half the neurons, since they are compared with as many random ones"
    return [] if 1 <= n_top <= half else [f"`--top {n_top}` is out of range: {expected}"]


class Rank(Study):
    """Rankings of a finished run by other methods, and evaluations of their first neurons by probes."""

    name, kind, title = "rank", "rankings", "Rankings"
    function = "probing.studies.fit.rank:rank"
    schemas = RANKING, DIRECTIONS, EVALUATION, ERASURE, CURVES
    page = "rankings.md"
    files: ClassVar[Mapping[str, str]] = {
        "curves_LL.png, .pdf": "Accuracy with, and without, the first k neurons of each ranking."
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the rankings side by side, and their evaluations."""
        return [
            *rankings_tables(vars(result)["rankings"], result.directions),
            *evaluation_tables(result.evaluation),
            *erasure_tables(result.erasure),
            *curves_tables(result.curves),
        ]

    def conclusions(self, result: Result) -> list[str]:
        """Return the smallest sufficient number of neurons of each ranking."""
        return curves_lines(result.curves)


STUDY = Rank()
