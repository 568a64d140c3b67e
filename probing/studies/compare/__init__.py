"""The study `compare`: agreement of the rankings of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from probing.cli.commandline import command
from probing.cli.options import (
    Folders,
    Moved,
    OneProcessOptions,
    OutputOptions,
    Wandb,
    WandbOptions,
    defaults,
    option,
    options_of,
)
from probing.errors import RunError, UserError, refuse
from probing.models import site_of
from probing.results import Html, Row, listed, read_rows
from probing.runs import Result, SectionPlace, Study, Terms, split_names, study_of
from probing.runs.call import Call, Measurements
from probing.runs.folder import RunFolder, read_json, read_yaml
from probing.runs.loading import is_of_tunings, load_fit_of_classes, load_run
from probing.runs.run import Run
from probing.runtime import quiet_libraries
from probing.runtime.progress import stage
from probing.studies.compare import tables as compare_tables
from probing.studies.compare.tables import (
    ACCURACIES,
    AGREEMENT,
    NEURONS,
    OPTIONS,
    RECIPES,
    TERMS,
    TOP_EVERYWHERE,
    TUNINGS,
    accuracy_sentence,
    accuracy_tables,
    agreement_section,
    agreement_tables,
    everywhere_sentence,
    everywhere_tables,
    neurons_tables,
    other_depths_lines,
    sites_lines,
    unpaired_lines,
    unread_layers,
    unread_lines,
    verdicts,
)
from probing.tables.conclusions import leading
from probing.tables.figures import Chart, Drawings
from probing.text.tasks import label_name

# More draws than this would take long to train and hardly sharpen the p-values.
MOST_NULL_DRAWS = 1000

# Options that also apply to runs of `finetune`.
_OF_RECIPES = ("runs", "cache", "quiet", "verbose", "figure_format")


@dataclass(frozen=True)
class CompareOptions(OutputOptions, OneProcessOptions):
    """Options of `compare`."""

    folders: Folders | None = None
    """Folders of finished runs, all of `fit` or all of `finetune`; may be given without `--folders`."""
    models: list[str] | None = None
    """Models to fit first and to include in the comparison, such as [bert, roberta]."""
    fit: dict[str, Any] | None = None
    """Options of `fit` for --models, such as --fit.layer 0,6,12."""
    matching: Literal["auto", "index", "correlation"] = "auto"
    """How neurons of two models are paired: index, for models with a common origin; correlation, for other models; auto
    is index if both runs use the same model."""
    assignment: Literal["one_to_one", "many_to_one"] = "one_to_one"
    """With matching by correlation, whether several neurons may be paired with the same neuron (many_to_one)."""
    model_name: str | list[str] | None = None
    """Names of the runs in tables, figures and sentences, separated by commas, in the order of --folders, then of
    --models; default: those of their models, with their tasks or folders if these are equal."""
    top: int = option(10, at_least=1)
    """Number of first neurons whose overlap is measured."""
    null_draws: int = option(19, at_least=1, at_most=MOST_NULL_DRAWS)
    """Number of label permutations, for runs whose neurons are compared by index; the smallest possible p-value is 1 /
    (1 + null_draws)."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: resampled sentences and the null distributions."""
    runs: str = "runs"
    """Folder of runs, in which the comparison is also saved."""
    name: str | None = None
    """Name of the comparison; default: compare-MODELS-YYYYMMDD-HHMMSS."""
    quiet: bool = False
    """Print only summary sentences and warnings."""
    verbose: bool = False
    """Also print the top neurons of every run."""
    wandb: Wandb = WandbOptions()
    """Where and how to track the comparison in Weights & Biases."""
    corpus: Moved | None = None
    """Text of runs whose text has moved: its path, or [A, B] for several texts. Each is used for the runs whose text
    has the same content; a text that matches no run is refused."""


@command(CompareOptions)
def compare(options: CompareOptions) -> Result:
    """Compare the rankings of finished runs: do their models encode the task in corresponding neurons?

    For runs of `finetune`, compare the scores: does the difference between two recipes exceed the variation between
    seeds? All options except output options are then refused.

    Returns:
        The comparison.
    """
    call = Call.of(study_of("compare"), options)
    run_folders: list[str] = call.config["folders"] or []
    n_runs = len(run_folders) + len(options.models or ())
    if n_runs < 2:
        raise UserError("`compare` takes two or more finished runs, such as runs/A runs/B, or `--models`.")
    names = split_names(options.model_name)
    if names and {len(names), len({*names})} != {n_runs}:
        raise UserError(f"`--model_name`: {listed(names)}; expected {n_runs} names, of which no two are equal.")
    if any(map(is_of_tunings, run_folders)):
        return _compare_recipes(call, run_folders, options.name)
    if options.corpus is not None and not run_folders:
        raise UserError("`--corpus` is the text of finished runs; give that of `--models` with `--fit.corpus`.")
    of_fits: dict[str, Any] = {
        name: call.config[name] for name in ("runs", "cache", "quiet", "figure_format", "trainer")
    }
    of_fits |= {"wandb": asdict(replace(call.wandb, name=None)), **(options.fit or {})}
    fit_options = _fit_options(of_fits, options.fit, options.models)
    fit_runs = [load_fit_of_classes(folder) for folder in run_folders]
    call.expect(len(options.models or ()) + 2)
    for model in options.models or ():
        with stage(f"fit of {model}"):
            fit_runs.append(_fitted(model, fit_options))
    with quiet_libraries():
        from probing.runs.finished import RunExtraction, by_index, open_runs, pairs_of, ranked_of, with_shuffled
        from probing.runs.places import given_texts
        from probing.runtime.trainer import check_trainer_options
        from probing.studies.compare.recipes import top_everywhere

        check_trainer_options(options.trainer or {}, "lbfgs")
        opened = open_runs(fit_runs, options.matching, given_texts(options.corpus), names)
        extract = RunExtraction(call.cached, options.trainer or {}, call.say)
        with stage(f"rankings of {len(opened)} runs"):
            ranked = [ranked_of(finished, extract, options.seed) for finished in opened]
            for place_of in by_index(opened, options.matching):
                ranked[place_of] = with_shuffled(
                    opened[place_of], ranked[place_of], extract, options.null_draws, options.seed
                )
        with stage("agreement of pairs of runs"):
            pairs = pairs_of(opened, ranked, extract, options.matching, options.assignment, options.top, options.seed)
        unread = unread_layers(_accuracy_of_run(opened))
        common = top_everywhere(ranked, {j: pair for (i, j), pair in pairs.items() if i == 0}, options.top, unread)

        stem = "compare-" + "-".join(dict.fromkeys(finished.source.short_name for finished in opened))
        folder = RunFolder(call.place, options.name, stem[:120])
        return call.write_into(folder, lambda _: _study_output(opened, pairs, common, options.top))


def _compare_recipes(call: Call, run_folders: Sequence[str], name: str | None) -> Result:
    """Compare runs of `finetune`; only options of where and how results are written apply."""
    option_defaults = defaults(compare)
    of_rankings = [key for key in option_defaults if key not in (*_OF_RECIPES, "folders", "wandb")]
    if changed_options := [
        option for option in of_rankings if (call.config[option] or None) != (option_defaults[option] or None)
    ]:
        raise UserError(
            f"`--{changed_options[0]}` is about rankings, and of runs of `finetune` scores are compared; leave it out."
        )
    if other := [folder for folder in run_folders if not is_of_tunings(folder)]:
        raise UserError(
            f"`{other[0]}` is no finished run of `finetune`, as others are; give runs of `fit` alone, whose rankings "
            "are compared, or of `finetune` alone, whose scores are."
        )
    call.expect(1)
    with quiet_libraries():
        from probing.studies.compare.recipes import study_output

        with stage(f"scores of {len(run_folders)} runs"):
            output = study_output([load_run(folder) for folder in run_folders])
        for option in of_rankings:
            del call.config[option]
        return call.write_into(RunFolder(call.place, name, "compare-finetune"), lambda _: output)


def _summary_lines(opened: Sequence[Any], rows: Sequence[Row], common: Any, top: int) -> list[str]:
    from probing.probes.agreement import BASES
    from probing.statistics import few_sentences
    from probing.tables.evidence_sentences import say

    few = few_sentences(min(finished.run.results["n_sentences"]["test"] for finished in opened))
    accuracy_of_run = _accuracy_of_run(opened)
    lines = [
        *other_depths_lines(rows, unread_layers(accuracy_of_run), top),
        accuracy_sentence(accuracy_of_run),
        everywhere_sentence(common.rows, common.summary(), top),
        *unread_lines(accuracy_of_run),
        *unpaired_lines(rows),
        *sites_lines({finished.label: site_of(finished.run.config) for finished in opened}),
        say("basis_compared", n=BASES),
        few,
    ]
    return [line for line in lines if line]


def _accuracy_of_run(opened: Sequence[Any]) -> dict[str, Sequence[Row]]:
    return {finished.label: finished.run.accuracy for finished in opened}


def _fit_options(
    options: Mapping[str, Any], fit_values: Mapping[str, Any] | None, models: Sequence[str] | None
) -> dict[str, Any]:
    from probing.cli.arguments import OptionSource, checked
    from probing.studies.fit import fit

    if fit_values and not models:
        raise UserError("`--fit.*` are options of the models given with `--models`, and none is given.")
    refuse([f"`--fit.{name}` cannot be set: `--models` decides" for name in ("model", "name") if name in options])
    keywords = checked(options_of(fit), options, "fit", OptionSource("--fit."))
    return {name: value for name, value in keywords.items() if name not in ("model", "name")}


def _fitted(model: str, options: Mapping[str, Any]) -> Run:
    from probing.studies.fit import fit

    run = fit(model=model, **options)
    if run is None:
        raise RunError("`compare --models` runs in one process; fit with several and compare the runs")
    return run


def _study_output(opened: Sequence[Any], pairs: Mapping[tuple[int, int], Any], common: Any, top: int) -> Measurements:
    """Return the output of a comparison of `probing.runs.finished.Finished` runs; `pairs` are by their indices."""
    rows = [row for pair in pairs.values() for row in pair.rows]
    neurons = [row for pair in pairs.values() for row in pair.neurons]
    accuracies = [
        {"model": finished.label, **{name: row[name] for name in ACCURACIES.types if name in row}}
        for finished in opened
        for row in finished.run.accuracy
    ]
    results = {
        "runs": {finished.label: str(finished.run.folder) for finished in opened},
        "related": {f"{opened[i].label}, {opened[j].label}": pair.related for (i, j), pair in pairs.items()},
        "top_everywhere": common.summary(),
        "shown_layers": {
            f"{opened[i].label}, {opened[j].label}": _shown_layer(opened[i].run, pair.neurons)
            for (i, j), pair in pairs.items()
        },
        "verdicts": verdicts(rows, _accuracy_of_run(opened), top),
        "said": _summary_lines(opened, rows, common, top),
    }
    results["task"] = " and ".join(dict.fromkeys(label_name(finished.run.config) for finished in opened))
    tables = {"agreement": rows, "neurons": neurons, "accuracies": accuracies, "top_everywhere": common.rows}
    return Measurements(tables, results)


def _shown_layer(run: Run, neurons: Sequence[Row]) -> int:
    """Return the layer of the first run whose neurons are shown: of those with a partner, the one of `leading`."""
    paired = {row["layer_a"] for row in neurons}
    return int(leading([row for row in run.accuracy if row["layer"] in paired])["layer"])


# What a comparison of runs of `finetune` is about.
_RECIPES = "Recipes of tuning"


OF_RANKINGS = AGREEMENT, NEURONS, ACCURACIES, TOP_EVERYWHERE
OF_RECIPES = RECIPES, OPTIONS


class Compare(Study):
    """Agreement of the rankings of several runs; for runs of `finetune`, comparison of recipes."""

    name, kind, title = "compare", "comparison", "Agreement"
    function = "probing.studies.compare:compare"
    schemas = *OF_RANKINGS, *OF_RECIPES
    page = "rankings.md#comparing-runs"
    artifact = "comparison"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Heat maps of layers by layers, and accuracies; of runs of `finetune`, `recipes`, the differences.",
    }

    def read(self, folder: Path) -> Result:
        """Read a comparison, whose tables are of rankings or of recipes."""
        results = read_json(folder / "results.json")
        schemas = OF_RECIPES if results.get("compared") == TUNINGS else OF_RANKINGS
        tables = {schema.name: read_rows(folder / f"{schema.name}.csv", schema) for schema in schemas}
        return Result(self, folder, read_yaml(folder / "config.yaml"), results, tables)

    def is_of_recipes(self, result: Result) -> bool:
        """Return whether runs of `finetune` were compared."""
        return bool(result.results.get("compared") == TUNINGS)

    def tables(self, result: Result) -> list[Any]:
        """Return the agreement of two runs, or the accuracy of more, and the first neurons of the first two.

        For recipes, return their scores and options.
        """
        if self.is_of_recipes(result):
            return compare_tables.recipe_tables(result.recipes, result.options)
        first, _ = self._tables(result)
        return first

    def charts(self, result: Result) -> list[Chart]:
        """Return the accuracies of the compared runs by layer."""
        return compare_tables.charts(result.accuracies, result.results.get("task", ""))

    def drawings(self, result: Result) -> Drawings:
        """Return the heat maps of layers by layers, or for recipes their differences."""
        from probing.studies.compare.recipes import differences
        from probing.tables.probe_figures import agreement_drawings

        if self.is_of_recipes(result):
            return {"recipes": partial(differences, rows=result.recipes, is_number=result.results["numbers"])}
        return agreement_drawings(result.agreement)

    def more_tables(self, result: Result) -> list[Any]:
        """Return the other tables of rankings: agreement or accuracy, and the neurons of all pairs and of all runs."""
        if self.is_of_recipes(result):
            return []
        _, more = self._tables(result)
        return more

    def _tables(self, result: Result) -> tuple[list[Any], list[Any]]:
        """Return the tables of rankings that are shown, and those that are shown with `--verbose`."""
        agreement, accuracies, neurons, everywhere = self.printed(result).values()
        if len(agreement) > 1:
            agreement, accuracies = accuracies, agreement
        return [*agreement, *neurons[:1]], [*accuracies, *neurons[1:], *everywhere]

    def printed(self, result: Result) -> Mapping[str, Sequence[Any]]:
        """Return the tables of rankings that the terminal shows, of all pairs of runs."""
        if self.is_of_recipes(result):
            return {}
        unread = unread_layers(result.accuracies.by("model"))
        return {
            "agreement": agreement_tables(result.agreement, result.config["top"], unread),
            "accuracies": accuracy_tables(result.accuracies),
            "neurons": neurons_tables(result.neurons, result.results["shown_layers"]),
            "top_everywhere": everywhere_tables(result.top_everywhere),
        }

    def answer(self, result: Result) -> list[str]:
        """Return the verdict on each pair of runs."""
        if self.is_of_recipes(result):
            return compare_tables.answer(result.recipes, result.results)
        return list(result.results["verdicts"].values())

    def conclusions(self, result: Result) -> list[str]:
        """Return sentences on neurons at the top of all runs, and the scope of the verdicts."""
        if self.is_of_recipes(result):
            return compare_tables.conclusions(result.recipes, result.options, result.results)
        return list(result.results["said"])

    def about(self, result: Result) -> str:
        """Return the title of a page of these results alone."""
        if self.is_of_recipes(result):
            return f"recipes of tuning: {listed(list(result.results['runs']))}"
        return super().about(result)

    def heading(self, result: Result) -> str:
        """Return the heading of the section on a page."""
        return f"{_RECIPES}: {result.folder.name}" if self.is_of_recipes(result) else super().heading(result)

    def section(self, result: Result, place: SectionPlace) -> Html:
        """Return the agreement of each pair of runs; for recipes, the content of the terminal."""
        if self.is_of_recipes(result):
            return super().section(result, place)

        return agreement_section(result, place.anchor)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        if self.is_of_recipes(result):
            return {_RECIPES: compare_tables.RECIPE_TERMS}

        return {self.title: TERMS}


STUDY = Compare()
