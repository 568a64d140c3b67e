"""The study `rank`: other rankings of the neurons of a finished run, and their evaluation by other probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import (
    FIGURE_FORMAT,
    FigureFormat,
    Folder,
    Layers,
    Moved,
    Options,
    Wandb,
    WandbOptions,
    as_options,
    chosen,
    configuration,
    figure_formats,
    layer_numbers,
    option,
    rotation_problems,
)
from probing.errors import UserError, out_of_range, refuse
from probing.models import from_the_end, neuron_of, site_of
from probing.results import Row, Table, cells_table, layers_named, read_csv, read_rows, shown_table, write_csv
from probing.runs import Result, Study, refuse_several, study_of
from probing.runs.call import print_output_location, writable_folder
from probing.runs.checks import check_ranking
from probing.runs.folder import reading
from probing.runs.loading import load_fit_of_classes, tracked_like
from probing.runs.run import Run, read_run
from probing.runtime import quiet_libraries
from probing.runtime.files import replacing
from probing.runtime.progress import BRIEF, expect, messages, stage
from probing.tables import FIRST, has_intercept, is_top, neuron_name, smallest
from probing.tables.evidence_sentences import say
from probing.tables.schema import CURVES, DIRECTIONS, ERASURE, EVALUATION, RANKING
from probing.text.tasks import label_name
from probing.tracking import Tracker, resolve_mode

# Tables that evaluate rankings, by name, and the columns that identify a row of each.
TABLES = {schema.name: schema for schema in (DIRECTIONS, EVALUATION, ERASURE, CURVES)}
KEYS = {
    "directions": ("layer", "ranking"),
    "evaluation": ("layer", "ranking", "probe", "from", "k", "draw"),
    "erasure": ("layer", "condition"),
    "curves": ("layer", "ranking", "kind", "from", "k", "draw"),
}


class Rankings(Result):
    """The rankings that `rank` computed from a run, and their evaluation.

    Args:
        run: The run.
        folder: Folder of the rankings, `rankings` in the run's folder.
        rankings: For each method, a dict per layer and neuron in ranked order, as in `METHOD.csv`.
        others: The tables `directions`, `evaluation`, `erasure` and `curves`, where requested.
    """

    def __init__(self, run: Run, folder: Path, rankings: Mapping[str, Table], others: Mapping[str, Table]) -> None:
        super().__init__(study_of("rank"), folder, run.config, run.results, others)
        self.rankings = dict(rankings)


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
    """Evaluate every ranking by linear and Gaussian probes of its first, its last, and random neurons."""
    erase: bool = False
    """Measure how well a linear probe decodes the class from only the first neurons of the run's ranking, from all
    others, and after linear erasure, each compared with a random counterpart."""
    curves: bool = False
    """Measure accuracy with only the first k neurons of every ranking, and without them, compared with random and last
    neurons. Also find the smallest k whose accuracy is within 1 point of all neurons'."""
    k: int | list[int] | str | None = None
    """Numbers of neurons for the probes of `--evaluate` and `--curves`, such as 10,50,100. Default: 10, 50, 100
    (`--evaluate`) or 1, 2, 5, 10, 20, 50, 100, 200 (`--curves`), as far as the layer has more neurons."""
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
    verbose: bool = False
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
    if not options.folder:
        raise UserError("`rank` takes the folder of one finished run, such as runs/A.")
    run = load_fit_of_classes(config["folder"])
    if has_intercept(run.config):
        raise UserError(
            f"`rank {run.folder}`: its probes have an intercept (`--probe.bias true`), and the other rankings are of "
            "probes without one; give a run without it."
        )
    layers = _layers(options.layer, run)
    place = writable_folder(run.folder / "rankings", f"rank {run.folder}", "copy the run to a writable folder")
    with quiet_libraries():
        from probing.probes.rankings import METHODS
        from probing.studies.fit.estimate import RankingEvaluation, erasure_rows, rank_layers

        default = "contribution" if options.erase or options.curves else "all"
        methods = chosen("--method", options.method or default, tuple(METHODS))
        if options.curves and methods == ["random"]:
            raise UserError("`--curves`: random neurons are part of every comparison; name a ranking with --method.")
        width = run.weight.shape[2]
        problems = [problem for size in sizes or () for problem in out_of_range("k", size, 1, width)]
        refuse(problems + (top_problems(options.top, width) if options.erase else []))
        expect([*[None] * (2 + options.erase), BRIEF])
        label, sides = _read(run, options.corpus, options.cache, options.quiet)
        if not sides.validation.n_tokens and (options.evaluate or options.curves or "gaussian" in methods):
            raise UserError(
                f"`rank {run.folder}`: no sentence of the validation part has a token of any class, and `gaussian`, "
                "`--evaluate` and `--curves` need some; name other methods with --method, or fit with more sentences."
            )
        judging = RankingEvaluation(options.evaluate, options.curves, sizes, options.draws)
        rankings, tables = rank_layers(run, layers, sides, methods, judging, options.seed, options.rotations)
        tables["erasure"] = erasure_rows(run, sides, layers, options.top, options.seed) if options.erase else []
        ranked = {name: Table(rows, RANKING) for name, rows in rankings.items()}
        result = Rankings(run, place, ranked, {name: Table(rows, TABLES[name]) for name, rows in tables.items()})
        figures = _write(result, run, layers, label, figure_formats(options.figure_format))
    where = _track(result, tracked_like(run, wandb), f"{run.folder.name}-rankings", config, figures)
    _report(result, run, where, options.quiet, options.verbose)
    return result


def _read(run: Run, corpus: Moved | None, cache: str | None, quiet: bool) -> tuple[str, Any]:
    """Return the name of the run in figures, and its examples as a `probing.data.examples.Sides`."""
    from probing.runs.finished import RunExtraction, open_runs, sides_of
    from probing.runs.places import cache_of, given_texts

    (finished,) = open_runs([run], "index", given_texts(corpus))
    extract = RunExtraction(cache_of(run, cache), {}, messages(quiet))
    return finished.label, sides_of(finished, extract)


@stage("tables and figures")
def _write(rankings: Rankings, run: Run, layers: Sequence[int], label: str, formats: Sequence[str]) -> list[Path]:
    """Write the tables that have rows, keeping rows of earlier calls, and return the paths of the figures.

    Raises:
        UserError: If a file is damaged, and no table is written then; or if the folder cannot be written.
    """
    folder, tables = rankings.folder, {**rankings.rankings, **rankings.by_name}
    with reading(folder):
        merged = {name: _merged(folder, name, rows) for name, rows in tables.items() if rows}
    try:
        folder.mkdir(exist_ok=True)
        for name, table in merged.items():
            with replacing(folder / f"{name}.csv") as partial:
                write_csv(partial, table, TABLES.get(name, RANKING))
        return _draw_curves(merged["curves"], folder, layers, label, run, formats) if rankings.curves else []
    except OSError as error:
        raise UserError(
            f"`rank {run.folder}`: {folder} cannot be written ({error.strerror or error}); make room, or copy the run "
            "to a writable folder."
        ) from None


def _merged(folder: Path, name: str, rows: Table) -> Table:
    """Return the rows in the order of layers, with the rows of the file that no new row replaces."""
    path, schema, key = folder / f"{name}.csv", TABLES.get(name, RANKING), KEYS.get(name, ("layer", "neuron"))

    def identity(row: Row) -> tuple[str, ...]:
        return tuple(str(row.get(column, "")) for column in key)

    new = {identity(row) for row in rows}
    unchanged = [row for row in read_csv(path, schema) if identity(row) not in new] if path.is_file() else []
    return Table(sorted([*unchanged, *rows], key=lambda row: int(row["layer"])), schema)


def _draw_curves(
    rows: Table, folder: Path, layers: Sequence[int], model: str, run: Run, formats: Sequence[str]
) -> list[Path]:
    """Draw the curves of these layers, including the curves of earlier commands, and return the figures' paths."""
    from probing.tables.figures import write_drawings
    from probing.tables.probe_figures import how_many_neurons

    draw = partial(how_many_neurons, task=label_name(run.config), model=model)
    majority = {row["layer"]: row["majority_accuracy"] for row in run.accuracy}
    drawings = {
        f"curves_{layer:02d}": partial(draw, rows=rows.where(layer=layer), majority=majority[layer]) for layer in layers
    }
    return write_drawings(folder, drawings, formats)


def _report(rankings: Rankings, run: Run, where: str | None, quiet: bool, verbose: bool) -> None:
    from probing.runtime import terminal
    from probing.tables.conclusions import few_clusters

    measured = rankings.evaluation or rankings.erasure or rankings.curves
    few = few_clusters(run.results) if measured else None
    site = site_of(run.config)
    about = "" if site == "residual" else say("site", label="this run", neuron=neuron_of(site))
    sentences = [*curves_lines(rankings.curves), *filter(None, [few, about])]
    has_more = False
    if quiet:
        for line in rankings_lines(rankings.rankings):
            print(line)
        terminal.tell(*sentences)
    elif verbose:
        terminal.show(*rankings.tables())
        terminal.tell(*sentences)
    else:
        has_more = terminal.brief(sentences, rankings.tables(), 2 + 2 * bool(where))
    print_output_location(rankings.folder, where, has_more)


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


def _track(
    rankings: Rankings, options: WandbOptions, name: str, config: Mapping[str, Any], figures: Sequence[Path]
) -> str | None:
    """Log tables and figures to W&B, without files since `rank` may replace them, and return their address."""
    from probing.runtime.terminal import say

    tables: dict[str, Sequence[Row]] = {f"rankings/{name}": rows for name, rows in rankings.rankings.items()}
    tables |= {name: rankings.by_name[name] for name in TABLES}
    tracker = Tracker(options, rankings.folder, name, config, say)
    tracker.log_results([], [], figures, [], tables)
    tracker.finish()
    return tracker.where(rankings.folder)


def top_problems(n_top: int, d_model: int) -> list[str]:
    """Return the problems with a number of first neurons, which are compared with as many random neurons."""
    half = d_model // 2
    expected = f"expected 1 to {half}, half the neurons, since they are compared with as many random ones"
    return [] if 1 <= n_top <= half else [f"`--top {n_top}` is out of range: {expected}"]


# Number of neurons of a ranking that the terminal shows.
_SHOWN = 10

# Marks accuracies that are no better than chance.
_CHANCE = "°"


def rankings_lines(rankings: Mapping[str, Table]) -> list[str]:
    """Return a line with the first neurons for each layer and method, for --quiet."""
    return [
        f"layer {layer}, {method}: top neurons {', '.join(_first(rows, layer)[:5])}"
        for layer in _layers_of(rankings)
        for method, rows in rankings.items()
    ]


def rankings_tables(rankings: Mapping[str, Table], directions: Table) -> list[Any]:
    """Return a table per layer with the first neurons by each method, and their share compared with directions."""
    share, compared = DIRECTIONS[f"first_{FIRST}_share"], {}
    for row in directions:
        ends = "-".join(DIRECTIONS[f"{share.name}_{end}"].show(row) for end in ("lowest", "highest"))
        compared[row["layer"], row["ranking"]] = [share.show(row), ends, DIRECTIONS[f"{share.name}_p"].show(row)]
    headings = ["ranking", *map(str, range(1, _SHOWN + 1)), *[f"first {FIRST}", "directions", "p"] * bool(compared)]
    tables = []
    for layer in _layers_of(rankings):
        rows = []
        for method, ranked in rankings.items():
            first = _first(ranked, layer)
            beside = compared.get((layer, method), ["–"] * 3) if compared else []
            rows.append([method, *first, *[""] * (_SHOWN - len(first)), *beside])
        table = cells_table(f"Layer {layer}: first neurons by each ranking", headings, rows, ["ranking"])
        if compared:
            table.caption = say("note_of_rotated", first=FIRST, n=max(directions.column("n_rotations")))
        tables.append(table)
    return tables


def _layers_of(rankings: Mapping[str, Table]) -> list[int]:
    return sorted({row["layer"] for rows in rankings.values() for row in rows})


def _first(rows: Table, layer: int) -> list[str]:
    return [neuron_name(row) for row in rows if row["layer"] == layer][:_SHOWN]


def evaluation_table(rows: Table) -> Any:
    """Return the accuracy of a probe of one layer on the neurons of each ranking as a rich table."""
    sizes, first = sorted(rows.values("k")), rows[0]
    probe = {"linear": "a linear probe", "gaussian": "a Gaussian probe"}[first["probe"]]
    known = rows.where(lambda row: row["share_of_entropy"])
    of = f" (of {known[0]['mutual_information'] / known[0]['share_of_entropy']:.2f})" if known else ""
    table = cells_table(
        f"Layer {first['layer']}: accuracy of {probe} on the top or bottom k neurons (majority "
        f"{first['majority_accuracy']:.3f}), and bits of information in the top k{of}",
        ["ranking", *(f"{heading} {k}" for heading in ("top", "bottom", "bits") for k in sizes)],
        [_evaluated(ranking, of_ranking, sizes) for ranking, of_ranking in rows.by("ranking").items()],
        ["ranking"],
    )
    if rows.where(above_chance="no"):
        table.caption = say("note_of_choices", mark=_CHANCE)
    return table


def _evaluated(ranking: str, rows: Table, sizes: Sequence[int]) -> list[str]:
    """Return the cells of a ranking; of random neurons, the best draw at the top and the worst at the bottom."""
    n_draws = max(row.get("draw") or 0 for row in rows)
    cells = [f"random x{n_draws}, best | worst" if n_draws else ranking]
    for end, choose in (("top", max), ("bottom", min)):
        for k in sizes:
            accuracy = choose(rows.where(**{"from": (end, "random")}, k=k).column("accuracy"))
            is_chance = rows.where(**{"from": end}, k=k, above_chance="no")
            cells.append(f"{accuracy:.3f}" + _CHANCE * bool(is_chance))
    bits = (max(rows.where(**{"from": ("top", "random")}, k=k).column("mutual_information")) for k in sizes)
    return [*cells, *(f"{most:.2f}" for most in bits)]


def erasure_table(rows: Table) -> Any:
    """Return the usable information of one layer under each condition as a rich table."""
    title = f"Layer {rows[0]['layer']}: usable information for retrained linear probes"
    return shown_table(
        ERASURE, rows, f"{title} (majority {rows[0]['majority_accuracy']:.3f})",
        ("condition", "n_neurons", "n_removed", "accuracy*", "information", "share"),
    )  # fmt: skip


def curves_lines(rows: Table) -> list[str]:
    """Return a sentence per layer and ranking on how many neurons are enough."""
    lines = []
    for of_ranking, random in _curves(rows):
        reached = {row["k"]: row["accuracy"] for row in of_ranking if is_top(row)}
        d_model, fewest, sizes = max(reached), smallest(of_ranking), random.values("k")
        first, *others = [k for k in (10, 100) if k in sizes] or [min(sizes)]
        parts = [
            f"{first} of {d_model} neurons reach {reached[first]:.3f}",
            *(f"{k} reach {reached[k]:.3f}" for k in others),
            f"all {reached[d_model]:.3f}",
        ]
        end = "no smaller number is within 1 point of all"
        if fewest["k"] < d_model:
            within = f"{fewest['k']}, chosen on validation tokens, are the fewest within 1 point of all"
            end = f"{within} ({fewest['accuracy']:.3f})"
        lines.append(say("fewest", layer=fewest["layer"], ranking=fewest["ranking"], parts=", ".join(parts), end=end))
    return lines


def _curves(rows: Table) -> Iterator[tuple[Table, Table]]:
    """Yield the rows of each layer and ranking, with those of random neurons."""
    for (layer, ranking), of_ranking in rows.by("layer", "ranking").items():
        if ranking != "random":
            yield of_ranking, rows.where(layer=layer, ranking="random")


def curves_tables(rows: Table) -> list[Any]:
    """Return a table per layer and ranking with the accuracy by number of neurons."""
    return [_curves_table(*of_ranking) for of_ranking in _curves(rows)]


def _curves_table(rows: Table, random: Table) -> Any:
    title = f"Layer {rows[0]['layer']}, {rows[0]['ranking']}: accuracy by number of neurons, random draws: "
    headings = ("k", "only top", "only random", "only bottom", "without top", "without random", "without bottom")
    # Of the numbers that bisection tried, only the one it found is shown.
    tried = {*rows.values("k")}
    cells = []
    for k in sorted({*random.values("k")} & tried | {smallest(rows)["k"], max(tried)}):
        cells.append([str(k)])
        for kind in ("only", "without"):
            for of, end in ((rows, "top"), (random, "random"), (rows, "bottom")):
                accuracies = of.where(**{"kind": kind, "k": k, "from": end}).column("accuracy")
                ends = (min(accuracies), max(accuracies)) if end == "random" and accuracies else accuracies[:1]
                cells[-1].append("-".join(f"{accuracy:.3f}" for accuracy in ends))
    return cells_table(title + str(max(random.column("draw"))), headings, cells)


class Rank(Study):
    """Rankings of a finished run by other methods, and evaluations of their first neurons by probes."""

    name, kind, title = "rank", "rankings", "Rankings"
    function = "probing.studies.fit.rank:rank"
    schemas = RANKING, DIRECTIONS, EVALUATION, ERASURE, CURVES
    page = "rankings.md"
    files: ClassVar[Mapping[str, str]] = {
        "curves_LL.png, .pdf": "Accuracy with, and without, the first k neurons of each ranking."
    }

    def command_line(self, config: Mapping[str, Any]) -> str:
        """Return the commands that repeat the run and rank its neurons; rankings do not have the options of `rank`."""
        return "python -m probing fit --config config.yaml --name RUN\npython -m probing rank runs/RUN OPTIONS"

    def tables(self, result: Result) -> list[Any]:
        """Return the rankings side by side, and their evaluations."""
        return [
            *rankings_tables(vars(result)["rankings"], result.directions),
            *map(evaluation_table, result.evaluation.by("layer", "probe").values()),
            *map(erasure_table, result.erasure.by("layer").values()),
            *curves_tables(result.curves),
        ]

    def conclusions(self, result: Result) -> list[str]:
        """Return the smallest sufficient number of neurons of each ranking."""
        return curves_lines(result.curves)

    def read(self, folder: Path) -> Rankings:
        """Read everything that `rank` has added to a run; raise `ValueError` if a ranking lacks neurons of a layer."""
        run, rankings, others = read_run(folder.parent), {}, {}
        for path in sorted(folder.glob("*.csv")):
            if path.stem in TABLES:
                others[path.stem] = read_rows(path, TABLES[path.stem])
                continue
            rankings[path.stem] = rows = read_rows(path, RANKING)
            ranked = rows.values("layer")
            check_ranking(path.name, rows, [layer for layer in run.layers if layer in ranked])
        return Rankings(run, folder, rankings, others)


STUDY = Rank()
