"""`compare`: what the rankings of several runs have in common, neuron by neuron and layer by layer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from probing.commands.shared import (
    cache_folder,
    extract_all,
    number_problems,
    plain,
    read_corpora,
    runs_folder,
    tracking,
)
from probing.errors import RunError, UserError, out_of_range, refuse
from probing.options import WandbOptions, as_options
from probing.runs import Run, RunFolder, check_name, load_run, write_csv
from probing.wandb_mode import resolve_mode

if TYPE_CHECKING:
    from probing.comparison import Pair, Ranked, Readings
    from probing.corpus import Corpus
    from probing.models import ModelSource

Say = Callable[[str], None]


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
        folders: Folders of two or more finished runs; `--folders` itself may be left out.
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
    if len(folders or ()) < 2:
        raise UserError("`compare` takes the folders of two or more finished runs, such as runs/A runs/B.")
    made = [load_run(folder) for folder in folders or ()]
    with terminal.quiet_libraries():
        from probing.comparison import AGREEMENT_COLUMNS, top_everywhere
        from probing.figures import write_comparison_figures
        from probing.training import check_trainer_options

        check_trainer_options(trainer or {}, "lbfgs")
        sources = [_source(run) for run in made]
        _check_matching(matching, made, sources)
        extract = _Extraction(cached, trainer or {}, say, terminal.show_progress(quiet))
        labels = _labels(made, sources)
        ranked = [
            _ranked(run, source, label, extract, seed) for run, source, label in zip(made, sources, labels, strict=True)
        ]
        pairs = _pairs(made, sources, ranked, extract, matching, assignment, top, seed)
        rows = [row for pair in pairs.values() for row in pair.rows]
        common = top_everywhere(ranked, {j: pair for (i, j), pair in pairs.items() if i == 0}, top)

        stem = "compare-" + "-".join(dict.fromkeys(source.short_name for source in sources))
        folder = RunFolder(place, name, stem[:120])
        with tracking(folder, wandb, config) as tracker:
            write_csv(folder.path / "agreement.csv", rows, AGREEMENT_COLUMNS)
            write_csv(folder.path / "top_everywhere.csv", common, list(common[0]) if common else ["layer", "neuron"])
            _write_summary(folder.path, config, made, labels, pairs)
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


@dataclass(frozen=True)
class _Extraction:
    """What every extraction of a comparison has in common."""

    cache: Path
    trainer: Mapping[str, Any]
    say: Say
    progress: bool

    def readings(self, run: Run, source: ModelSource, corpus: Corpus) -> Readings:
        """Return what a run's model made of a corpus, in the run's layers."""
        from probing.cache.tokens import LONGEST, tokenize
        from probing.comparison import Readings
        from probing.models import length_limits, load_tokenizer

        config, layers = run.config, [row["layer"] for row in run.accuracy]
        (store,) = extract_all(
            source, [corpus], layers, self.cache, self.trainer, self.say, self.progress, dtype=config["dtype"],
            max_length=config["max_length"], batch_tokens=config["batch_tokens"],
            random_weights_seed=config["seed"] if config["random_weights"] else None,
        )  # fmt: skip
        if corpus.words is not None:
            return Readings(store, store.tokens, layers)
        # Each tokenizer has words of its own in running text; those between blanks are the same for all.
        tokenizer = load_tokenizer(source)
        longest = config["max_length"] or min(length_limits(source, tokenizer)[1], LONGEST)
        tokens = tokenize(tokenizer, corpus.sentences, longest, [text.split() for text in corpus.sentences])
        return Readings(store, tokens, layers)


def _source(run: Run) -> ModelSource:
    from probing.models import resolve_model

    return resolve_model(run.config["model"], run.config["revision"])


def _labels(made: Sequence[Run], sources: Sequence[ModelSource]) -> list[str]:
    """Name each run by its model, or by its folder where two have the same."""
    names = [source.short_name for source in sources]
    return names if len(set(names)) == len(names) else [run.folder.name for run in made]


def _is_same_model(a: Run, b: Run) -> bool:
    keys = [run.results["cache"]["test"]["key"] for run in (a, b)]
    return keys[0]["model"] == keys[1]["model"] and keys[0]["random_weights_seed"] == keys[1]["random_weights_seed"]


def _matching_of(matching: str, a: Run, b: Run) -> Literal["index", "correlation"]:
    if matching == "auto":
        return "index" if _is_same_model(a, b) else "correlation"
    return "index" if matching == "index" else "correlation"


def _check_matching(matching: str, made: Sequence[Run], sources: Sequence[ModelSource]) -> None:
    from probing.models import load_config

    widths = {source.name: load_config(source).hidden_size for source in sources}
    if matching == "index" and len(set(widths.values())) > 1:
        found = ", ".join(f"{name} has {width}" for name, width in widths.items())
        raise UserError(
            f"`--matching index`: neurons of one index need models of one width, and {found}; use correlation."
        )


def _ranked(run: Run, source: ModelSource, label: str, extract: _Extraction, seed: int) -> Ranked:
    """Rank a run's neurons again from its probe, its test sentences one by one.

    Raises:
        UserError: If model or corpus are no longer what they were.
        RunError: If the ranking does not come out as the run has it.
    """
    import numpy as np
    from safetensors import safe_open

    from probing.comparison import rank_on_sentences
    from probing.examples import label as label_tokens
    from probing.tasks import load_task

    config = run.config
    if "-" in (config["corpus"], config["test_corpus"]):
        raise UserError(f"`{run.folder}` read standard input, which is gone; repeat it with the text in a file.")
    corpora, splits = read_corpora(config["corpus"], config["test_corpus"], config["seed"], lambda message: None)
    before = run.results["cache"]["test"]["key"]
    is_trained = not config["random_weights"]
    if corpora[-1].fingerprint != before["corpus"] or source.fingerprint(weights=is_trained) != before["model"]:
        raise UserError(
            f"`{run.folder}`: its model or corpus has changed since; repeat the run, "
            f"for example with `fit --config {run.folder / 'config.yaml'}`."
        )
    readings = extract.readings(run, source, corpora[-1])
    task = load_task(config["task"], config["task_args"])
    test = label_tokens(readings.store, task, splits[-1], np.array(run.results["classes"]), "test")
    with safe_open(run.folder / "probe.safetensors", "pt") as file:
        ranked = rank_on_sentences(label, file.get_tensor("weight"), test, readings.layers, seed)
    for i, layer in enumerate(ranked.layers):
        stored = {row["neuron"]: row["contribution"] for row in run.neurons if row["layer"] == layer}
        if not np.allclose([stored[n] for n in range(ranked.d_model)], ranked.scores[i], rtol=1e-3, atol=1e-6):
            raise RunError(
                f"{run.folder}: the contributions of layer {layer} are not those of its probe; repeat the run"
            )
    return ranked


def _pairs(
    made: Sequence[Run],
    sources: Sequence[ModelSource],
    ranked: Sequence[Ranked],
    extract: _Extraction,
    matching: str,
    assignment: Literal["one_to_one", "many_to_one"],
    top: int,
    seed: int,
) -> dict[tuple[int, int], Pair]:
    """Compare every run with every later one, matched on the sentences of the earlier one's corpus."""
    from probing.comparison import compare_pair, cross_moments

    pairs = {}
    for i, j in itertools.combinations(range(len(made)), 2):
        config = made[i].config
        corpus = read_corpora(config["corpus"], config["test_corpus"], config["seed"], lambda message: None)[0][0]
        moments = cross_moments(*(extract.readings(made[at], sources[at], corpus) for at in (i, j)))
        how = _matching_of(matching, made[i], made[j])
        pairs[i, j] = compare_pair(ranked[i], ranked[j], moments, how, assignment, top, seed)
        if how == "index" and not pairs[i, j].related:
            extract.say(
                f"{ranked[i].label} and {ranked[j].label}: neurons of one index go together no more than any two do, "
                "so these models hardly share a lineage and neuron i of one is not neuron i of the other; "
                "`--matching correlation` finds which belong together"
            )
    return pairs


def _write_summary(
    folder: Path,
    config: Mapping[str, Any],
    made: Sequence[Run],
    labels: Sequence[str],
    pairs: Mapping[tuple[int, int], Pair],
) -> None:
    import yaml

    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    results = {
        "kind": "comparison",
        "runs": {label: str(run.folder) for label, run in zip(labels, made, strict=True)},
        "related": {f"{labels[i]}, {labels[j]}": pair.related for (i, j), pair in pairs.items()},
    }
    (folder / "results.json").write_text(json.dumps(results, indent=2))
