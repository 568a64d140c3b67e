"""`compare`: what the rankings of several runs have in common, neuron by neuron and layer by layer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probing.commands.shared import (
    cache_folder,
    number_problems,
    plain,
    runs_folder,
    tracking,
)
from probing.errors import RunError, UserError, out_of_range, refuse
from probing.options import WandbOptions, as_options
from probing.runs import Run, RunFolder, check_name, load_run, write_csv
from probing.wandb_mode import resolve_mode


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Args:
        folder: Where it is.
        agreement: A dict per pair of layers and statistic, as in `agreement.csv`.
        top_everywhere: A dict per neuron that is at the top of every run, as in `top_everywhere.csv`.
    """

    folder: Path
    agreement: list[dict[str, Any]]
    top_everywhere: list[dict[str, Any]]

    def __repr__(self) -> str:
        from probing.terminal import agreement_tables, render

        return render(*agreement_tables(self.agreement)) + str(self.folder)


def compare(
    folders: list[str] | None = None,
    models: list[str] | None = None,
    fit: dict[str, Any] | None = None,
    matching: Literal["auto", "index", "correlation"] = "auto",
    assignment: Literal["one_to_one", "many_to_one"] = "one_to_one",
    top: int = 10,
    seed: int = 0,
    runs: str = "runs",
    name: str | None = None,
    cache: str | None = None,
    quiet: bool = False,
    trainer: dict[str, Any] | None = None,
    wandb: WandbOptions = WandbOptions(),
) -> Comparison:
    """Compare the rankings of finished runs: do their models keep the task in corresponding neurons?

    Args:
        folders: Folders of finished runs; `--folders` itself may be left out.
        models: Models that are fitted first and compared too, such as [bert, roberta].
        fit: Options of `fit` for these, such as --fit.layer 0,6,12.
        matching: index for models of one lineage, correlation for others; auto is index for one and the same model.
        assignment: Whether two neurons may go with the same one, where they are matched by correlation.
        top: Size of the top whose overlap is taken.
        seed: Of redrawn sentences and of what chance gives.
        runs: Folder of runs, where the comparison goes too.
        name: Name of the comparison; compare-MODELS-YYYYMMDD-HHMMSS by default.
        cache: Folder of cached activations; $PROBING_CACHE or RUNS/cache by default.
        quiet: Result line only.
        trainer: Arguments of Lightning's Trainer that concern a forward pass.
        wandb: Where and how to track the comparison in Weights & Biases.

    Returns:
        The finished comparison.
    """
    wandb = as_options(WandbOptions, wandb, "wandb")
    config = plain(locals())
    from probing import terminal

    say = terminal.silence if quiet else terminal.say
    refuse(number_problems(seed, None, None) + out_of_range("top", top, 1))
    resolve_mode(wandb.mode)
    cached, place = cache_folder(cache, runs), runs_folder(runs)
    if name is not None:
        check_name(place, name)
    if len(folders or ()) + len(models or ()) < 2:
        raise UserError("`compare` takes two or more finished runs, such as runs/A runs/B, or `--models`.")
    shared = _fit_options(fit, models)
    made = [load_run(folder) for folder in folders or ()]
    defaults = {"runs": runs, "cache": cache, "quiet": quiet, "trainer": trainer, "wandb": wandb}
    made += [_fitted(model, {**defaults, **shared}) for model in models or ()]
    with terminal.quiet_libraries():
        from probing.commands.finished import Extraction, check_matching, labels_of, pairs_of, ranked_of, source_of
        from probing.comparison import AGREEMENT_COLUMNS, top_everywhere
        from probing.figures import write_comparison_figures
        from probing.training import check_trainer_options

        check_trainer_options(trainer or {}, "lbfgs")
        sources = [source_of(run) for run in made]
        check_matching(matching, sources)
        extract = Extraction(cached, trainer or {}, say, terminal.show_progress(quiet))
        labels = labels_of(made, sources)
        named = zip(made, sources, labels, strict=True)
        ranked = [ranked_of(run, source, label, extract, seed) for run, source, label in named]
        pairs = pairs_of(made, sources, ranked, extract, matching, assignment, top, seed)
        rows = [row for pair in pairs.values() for row in pair.rows]
        common = top_everywhere(ranked, {j: pair for (i, j), pair in pairs.items() if i == 0}, top)

        stem = "compare-" + "-".join(dict.fromkeys(source.short_name for source in sources))
        folder = RunFolder(place, name, stem[:120])
        with tracking(folder, wandb, config) as tracker:
            write_csv(folder.path / "agreement.csv", rows, AGREEMENT_COLUMNS)
            write_csv(folder.path / "top_everywhere.csv", common, list(common[0]) if common else ["layer", "neuron"])
            related = {f"{labels[i]}, {labels[j]}": pair.related for (i, j), pair in pairs.items()}
            _write_summary(folder.path, config, made, labels, related)
            curves = {label: run.accuracy for label, run in zip(labels, made, strict=True)}
            figures = write_comparison_figures(folder.path / "figures", rows, curves, made[0].config["task"])
            files = [
                folder.path / file for file in ("agreement.csv", "top_everywhere.csv", "config.yaml", "results.json")
            ]
            if tracker:
                tables = {"agreement": rows, "top_everywhere": common}
                tracker.log_results([], [], figures, files, tables, kind="comparison")
        comparison = Comparison(folder.finish(), rows, common)
    if not quiet:
        terminal.show(*terminal.agreement_tables(rows))
        print(f"{len(common)} neurons are, with those they go with, among the first {top} of every run at their depth.")
    where = tracker.where(comparison.folder) if tracker else None
    print(f"Results: {comparison.folder}" + (f"; on Weights & Biases: {where}" if where else ""))
    return comparison


def _fit_options(options: Mapping[str, Any] | None, models: Sequence[str] | None) -> dict[str, Any]:
    """Return the options of `fit`, checked for what makes no sense here."""
    from probing.commands.fit import fit

    known = [name for name in inspect.signature(fit).parameters if name not in ("model", "name")]
    if options and not models:
        raise UserError("`--fit.*` are options for `--models`, of which there are none.")
    wrong = [name for name in options or {} if name not in known]
    refuse([f"`--fit.{name}` cannot be set: expected one of {', '.join(known)}" for name in wrong])
    return dict(options or {})


def _fitted(model: str, options: Mapping[str, Any]) -> Run:
    from probing.commands.fit import fit

    run = fit(model=model, **options)
    if run is None:
        raise RunError("`compare --models` runs in one process; fit with several and compare the runs")
    return run


def _write_summary(
    folder: Path,
    config: Mapping[str, Any],
    made: Sequence[Run],
    labels: Sequence[str],
    related: Mapping[str, bool | None],
) -> None:
    import yaml

    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    results = {
        "kind": "comparison",
        "runs": {label: str(run.folder) for label, run in zip(labels, made, strict=True)},
        "related": dict(related),
    }
    (folder / "results.json").write_text(json.dumps(results, indent=2))
