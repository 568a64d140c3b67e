"""`sts`: does the cosine of two sentences' vectors correlate with human scores of their similarity?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probing.cli.choices import FIGURE_FORMAT, FigureFormat, figure_formats
from probing.cli.option_values import Dtype, Layers, Model, Tokenizer, number_problems, resolved
from probing.cli.options import WandbOptions
from probing.cli.python_calls import command
from probing.cli.shared_options import with_shared_help
from probing.commands.folders import places, say_results
from probing.errors import UserError, out_of_range, refuse
from probing.models import layer_numbers, load_tokenizer
from probing.runs.evaluations import SentenceSimilarity
from probing.runs.folder import RunFolder
from probing.runs.loading import read_folder
from probing.runs.tracked import tracking
from probing.runtime.stopwatch import Stopwatch
from probing.tables.space_names import Definition
from probing.tracking import Tracker, resolve_mode


@command
@with_shared_help
@resolved
def sts(
    config: dict[str, Any],
    folders: list[str] | None = None, model: Model = "minilm", layer: Layers = "all", revision: str | None = None,
    random_weights: bool = False, dtype: Dtype = "float32", pooling: str | list[str] = "mean",
    transforms: str | list[str] = "clip,whiten", definition: Definition = "mean_profile",
    components: int | None = None, fit_on: str = "train", static: str | None = None, max_length: int | None = None,
    batch_tokens: int | None = None, seed: int = 0, runs: str = "runs", name: str | None = None,
    cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    wandb: WandbOptions = WandbOptions(), tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
) -> SentenceSimilarity | None:  # fmt: skip
    """Correlate cosines of sentences with human scores (STS, SICK-R), per layer, plain, clipped and whitened.

    Args:
        folders: Folders with STS12 to STS16, STS-B and SICK, or hf:NAME?config=C; may be given without `--folders`.
        pooling: How token vectors become the vector of a sentence, some or all: mean over tokens that are not special,
            mean_special over all tokens, cls for the first token, first_last for the average of layer 1 and each layer.
        transforms: Transforms to compare with the plain vectors: all, none, or some of clip, clip_random, whiten,
            standardise, center, all_but_the_top.
        fit_on: Text that transforms are fitted on: train for the training parts (the built-in corpus where there are
            none), a corpus such as builtin or text.txt, or target for each set's own sentences, which is transductive.
        static: File of word vectors in GloVe's format, whose mean over a sentence is evaluated for comparison.
        name: Name of this run; MODEL-sts-YYYYMMDD-HHMMSS by default.

    Returns:
        The results; None on ranks other than the first.
    """
    from probing.cli.choices import chosen as named
    from probing.downstream.pooling_names import POOLINGS
    from probing.runtime import terminal
    from probing.tables.space_names import SPACES, Space

    say = terminal.silence if quiet else terminal.say
    progress = terminal.show_progress(quiet)
    refuse(number_problems(seed, max_length, batch_tokens) + out_of_range("components", components, 1))
    resolve_mode(wandb.mode)
    layer_numbers(layer)
    poolings = named("--pooling", pooling, POOLINGS)
    spaces: list[Space] = ["none", *named("--transforms", transforms, SPACES[1:], "none")]
    cached, place = places(cache, runs, name)
    sets = _read_sets(folders or (), say)
    outside = _outside(fit_on, spaces != ["none"] and not any(one.part == "train" for one in sets), say)
    with terminal.quiet_libraries():
        from probing.cache.source import ActivationSource, say_what_was_left_out
        from probing.downstream.spaces import Fitting
        from probing.downstream.sts.evaluation import evaluate
        from probing.downstream.sts.sentence_similarity import reported
        from probing.downstream.sts.sentence_vectors import Vectors, check_text_to_fit_on, first_token_check
        from probing.downstream.sts.static import read_static
        from probing.runtime.distributed import is_main_process

        watch = Stopwatch()
        source = ActivationSource.of(
            model, revision, layer, trainer, cache=cached, dtype=dtype, max_length=max_length,
            batch_tokens=batch_tokens, random_weights_seed=seed if random_weights else None, say=say,
            shows_progress=progress, tokenizer=tokenizer,
        )  # fmt: skip
        config["model"] = source.model.name
        files = source.model
        refuse(out_of_range("components", components, 1, source.config.hidden_size))
        if spaces != ["none"]:
            check_text_to_fit_on(sets, outside, reported(sets), fit_on)
        corpora = [one.corpus for one in sets] + ([outside] if outside else [])
        words = read_static(static, [text for corpus in corpora for text in corpus.sentences]) if static else None
        stores = _with_first(source, poolings, source.model.name).read(
            corpora, [first_token_check(poolings, files.short_name)] * len(corpora)
        )
        if not is_main_process():
            return None
        watch.end("extract")
        say_what_was_left_out(corpora, [store.tokens for store in stores], say)
        vectors = Vectors(sets, stores[: len(sets)], (outside, stores[-1]) if outside else None, words)
        told = _described(vectors, load_tokenizer(files), say)
        with tracking(run_folder := RunFolder(place, name, f"{files.short_name}-sts"), wandb, config) as tracker:
            fitting = Fitting(spaces, definition, components, seed)
            found = (*evaluate(vectors, source.layers, poolings, fitting, fit_on, seed), told)
            watch.end("evaluate")
            _write(run_folder.path, found, config, watch.timings(), vectors, poolings, files.short_name, tracker)
        made = read_folder(SentenceSimilarity, run_folder.finish())
    say_results(made, tracker.where(made.folder) if tracker else None, quiet)
    return made


def _read_sets(folders: Sequence[str], say: Callable[[str], None]) -> Any:
    """Return the sets that the user named, and say how many pairs were left out.

    Raises:
        UserError: If there are none, or only training parts.
    """
    from probing.downstream.sts.dataset import READABLE, read_sts
    from probing.downstream.sts.sentence_similarity import reported

    if not folders:
        raise UserError(f"`sts` takes {READABLE}.")
    sets = read_sts(folders)
    if not reported(sets):
        raise UserError(f"`sts {' '.join(folders)}`: these are training parts only; give dev or test parts too.")
    for one in sets:
        for line in one.said():
            say(line)
    return sets


def _described(vectors: Any, tokenizer: Any, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return descriptions of the sets, and say for how many of their sentences no vector stands.

    Args:
        vectors: The `probing.downstream.sts.sentence_vectors.Vectors` that are compared.
        tokenizer: The model's tokenizer.
        say: Function that takes one-line messages.
    """
    from probing.downstream.sts.sentence_vectors import described, said_of_unknown

    stores = zip(vectors.sets, vectors.stores, strict=True)
    told = [described(one, store, vectors.static, tokenizer) for one, store in stores]
    for line in (line for one in told for line in said_of_unknown(one)):
        say(line)
    return told


def _with_first(source: Any, poolings: Sequence[str], model: str) -> Any:
    """Return the source with the layer that the pooling `first_last` also needs.

    Raises:
        UserError: If the model does not have it.
    """
    from probing.downstream.pooling import FIRST

    if "first_last" not in poolings:
        return source
    if source.config.num_hidden_layers < FIRST:
        raise UserError(f"`--pooling first_last`: {model} has no blocks, so no layer {FIRST}; take mean.")
    return replace(source, layers=sorted({*source.layers, FIRST}))


def _outside(fit_on: str, lacks_training_part: bool, say: Callable[[str], None]) -> Any:
    """Return the text outside the sets on which transforms are fitted, None if there is none.

    Args:
        fit_on: Value of `--fit_on`.
        lacks_training_part: Whether there are transforms but no training part to fit them on.
        say: Function that takes one-line messages.
    """
    from probing.corpus import load_corpus

    if fit_on == "train" and lacks_training_part:
        say("there is no training part: transforms are fitted on the built-in corpus")
        return load_corpus("builtin", "--fit_on")
    return None if fit_on in ("train", "target") else load_corpus(fit_on, "--fit_on")


def _write(
    folder: Path,
    found: tuple[Any, Any, Any, Any],
    config: Mapping[str, Any],
    timings: Mapping[str, float],
    vectors: Any,
    poolings: Sequence[str],
    model_name: str,
    tracker: Tracker | None,
) -> None:
    """Write tables, summary and figures into the run's folder, and log them.

    Args:
        folder: The run's folder.
        found: The rows of both tables, the texts that transforms were fitted on, and the descriptions of the sets.
        config: The resolved configuration.
        timings: Durations in seconds.
        vectors: The `probing.downstream.sts.sentence_vectors.Vectors` that were compared.
        poolings: How sentences were pooled.
        model_name: The model's short name, for titles.
        tracker: Logs what is written.
    """
    from probing.data.preparation import origin
    from probing.downstream.figures import write_sts_figure
    from probing.downstream.fitting import write_results
    from probing.downstream.sts.sentence_similarity import CHOSEN_COLUMNS, STS_COLUMNS

    rows, chosen, texts, sets = found
    summary = {
        "kind": "similarity evaluation",
        "fitted_on": {label: text.described() for label, text in texts.items()},
        "timings": timings,
    }
    tables = {"sts": (rows, STS_COLUMNS), "chosen": (chosen, CHOSEN_COLUMNS)}
    stores = zip(vectors.sets, vectors.stores, strict=True)
    cached = {one.corpus.name: origin(store) for one, store in stores}
    if vectors.outside:
        cached[vectors.outside[0].name] = origin(vectors.outside[1])
    files = write_results(folder, config, tables, {**summary, "cache": cached, "sets": sets})
    place, formats = folder / "figures", figure_formats(config["figure_format"])
    figures = [
        path for how in poolings for path in write_sts_figure(place / f"sts_{how}", rows, how, model_name, formats)
    ]
    if tracker:
        logged = {name: rows for name, (rows, _) in tables.items()}
        tracker.log_results(_curves(rows, poolings[0]), [], figures, files, logged, "sts")


def _curves(rows: Sequence[dict[str, Any]], pooling: str) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each set and space, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["pooling"] == pooling and row["aggregation"] == "all":
            point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            point[f"{row['set']}_{row['transform']}_spearman".replace(" ", "_")] = row["spearman"]
    return list(by_layer.values())
