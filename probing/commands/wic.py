"""`wic`: does the cosine of a word's vectors tell whether the word means the same in two sentences?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from probing.cli.choices import FIGURE_FORMAT, FigureFormat, figure_formats
from probing.cli.option_values import Dtype, Layers, Model, Tokenizer, number_problems, resolved
from probing.cli.options import WandbOptions
from probing.cli.python_calls import command
from probing.cli.shared_options import with_shared_help
from probing.commands.folders import places, say_results
from probing.errors import UserError, out_of_range, refuse
from probing.models import layer_numbers, load_tokenizer
from probing.runs.evaluations import WordsInContext
from probing.runs.folder import RunFolder
from probing.runs.loading import read_folder
from probing.runs.tracked import tracking
from probing.runtime.stopwatch import Stopwatch
from probing.tables.space_names import Definition
from probing.tracking import Tracker, resolve_mode


@command
@with_shared_help
@resolved
def wic(
    config: dict[str, Any],
    folder: str | None = None, model: Model = "minilm", layer: Layers = "all", revision: str | None = None,
    random_weights: bool = False,
    dtype: Dtype = "float32", part: Literal["dev", "test"] = "dev", transforms: str | list[str] = "clip,whiten",
    definition: Definition = "mean_profile",
    components: int | None = None, max_length: int | None = None, batch_tokens: int | None = None,
    seed: int = 0, runs: str = "runs", name: str | None = None, cache: str | None = None, quiet: bool = False,
    trainer: dict[str, Any] | None = None, wandb: WandbOptions = WandbOptions(),
    tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
) -> WordsInContext | None:  # fmt: skip
    """Tell word senses apart by cosine (WiC), per layer, plain, clipped and whitened.

    Args:
        folder: Folder of the WiC data set, or hf:NAME?config=C for its SuperGLUE form; may be given without `--folder`.
        part: Part whose accuracy is reported; layer and threshold are chosen on train.
        transforms: Transforms to compare with the plain hidden states: all, none, or some of clip, clip_random, whiten,
            standardise, center, all_but_the_top; they are fitted on the tokens of training sentences.
        name: Name of this run; MODEL-wic-YYYYMMDD-HHMMSS by default.

    Returns:
        The results; None on ranks other than the first.
    """
    from probing.cli.choices import chosen as named
    from probing.runtime import terminal
    from probing.tables.space_names import SPACES, Space

    say = terminal.silence if quiet else terminal.say
    progress = terminal.show_progress(quiet)
    refuse(number_problems(seed, max_length, batch_tokens) + out_of_range("components", components, 1))
    resolve_mode(wandb.mode)
    layer_numbers(layer)
    spaces: list[Space] = ["none", *named("--transforms", transforms, SPACES[1:], "none")]
    cached, place = places(cache, runs, name)
    data = _read_pairs(folder, part, say)
    with terminal.quiet_libraries():
        from probing.cache.source import ActivationSource, say_what_was_left_out
        from probing.downstream.fitting import Text, not_in
        from probing.downstream.spaces import Fitting
        from probing.downstream.wic.evaluation import evaluate, target_check, unknown_pairs, without_cut_words
        from probing.runtime.distributed import is_main_process

        watch = Stopwatch()
        source = ActivationSource.of(
            model, revision, layer, trainer, cache=cached, dtype=dtype, max_length=max_length,
            batch_tokens=batch_tokens, random_weights_seed=seed if random_weights else None, say=say,
            shows_progress=progress, tokenizer=tokenizer,
        )  # fmt: skip
        config["model"] = source.model.name
        refuse(out_of_range("components", components, 1, source.config.hidden_size))
        corpora = [pairs.corpus for pairs in data.values()]
        kept = not_in(corpora[0].sentences, corpora[1].sentences)
        if not kept.any():
            raise UserError(f"`wic {folder}`: every sentence of train is in {part} too; give parts that differ.")
        stores = source.read(corpora, [target_check(pairs) for pairs in data.values()])
        if not is_main_process():
            return None
        watch.end("extract")
        say_what_was_left_out(corpora, [store.tokens for store in stores], say)
        pairs = without_cut_words(data, stores, say)
        n_unknown = unknown_pairs(pairs, stores, load_tokenizer(source.model), say)
        with tracking(run_folder := RunFolder(place, name, f"{source.model.short_name}-wic"), wandb, config) as tracker:
            fitting = Fitting(spaces, definition, components, seed)
            rows, chosen = evaluate(pairs, stores, Text(stores[0], kept), source.layers, fitting, seed)
            watch.end("evaluate")
            summary = {
                "kind": "word-in-context evaluation",
                "n_read_pairs": {which: some.n_read for which, some in data.items()},
                "n_pairs": {which: some.n_pairs for which, some in pairs.items()},
                "n_unlabelled_pairs": {which: some.n_unlabelled for which, some in data.items()},
                "n_cut_pairs": {which: data[which].n_pairs - some.n_pairs for which, some in pairs.items()},
                "n_unknown_pairs": n_unknown,
                "n_sentences_fitted_on": int(kept.sum()),
                "timings": watch.timings(),
            }
            read = dict(zip(data, stores, strict=True))
            _write(run_folder.path, rows, chosen, config, summary, read, part, source.model.short_name, tracker)
        found = read_folder(WordsInContext, run_folder.finish())
    say_results(found, tracker.where(found.folder) if tracker else None, quiet)
    return found


def _read_pairs(folder: str | None, part: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the pairs of the training part and of another part, and say how many have no label.

    Raises:
        UserError: If no folder is given, or it cannot be read.
    """
    from probing.downstream.wic.dataset import READABLE, read_wic

    if not folder:
        raise UserError(f"`wic` takes {READABLE}.")
    data = read_wic(folder, ["train", part])
    for line in (line for which, some in data.items() for line in some.said(which)):
        say(line)
    return data


def _write(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    chosen: Sequence[dict[str, Any]],
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    stores: Any,
    part: str,
    model_name: str,
    tracker: Tracker | None,
) -> None:
    """Write tables, summary and figure into the run's folder, and log them."""
    from probing.data.preparation import origin
    from probing.downstream.figures import write_wic_figure
    from probing.downstream.fitting import write_results
    from probing.downstream.wic.words_in_context import CHOSEN_COLUMNS, WIC_COLUMNS

    tables = {"wic": (rows, WIC_COLUMNS), "chosen": (chosen, CHOSEN_COLUMNS)}
    cached = {which: origin(store) for which, store in stores.items()}
    files = write_results(folder, config, tables, {**summary, "cache": cached})
    formats = figure_formats(config["figure_format"])
    figures = write_wic_figure(folder / "figures" / "wic", rows, part, model_name, formats)
    if tracker:
        logged = {name: rows for name, (rows, _) in tables.items()}
        tracker.log_results(_curves(rows), [], figures, files, logged, "wic")


def _curves(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each space and measure, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
        point |= {f"{row['transform']}_{measure}": row[measure] for measure in ("accuracy", "auc")}
    return list(by_layer.values())
