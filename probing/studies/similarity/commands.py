"""`sts`: does the cosine of two sentences' vectors correlate with human scores of their similarity?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from probing.cli.commandline import configured
from probing.cli.option_types import (
    FIGURE_FORMAT,
    Dtype,
    FigureFormat,
    Folder,
    Folders,
    Layers,
    Model,
    Tokenizer,
    Wandb,
)
from probing.cli.options import WandbOptions
from probing.downstream.names import Definition
from probing.errors import UserError, out_of_range, refuse
from probing.models import load_tokenizer
from probing.results.schema import layers_named
from probing.runs.call import Call, Measured
from probing.runs.study import Result, study_of
from probing.runtime.machine import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.runtime.progress import stage


@configured
def sts(
    config: dict[str, Any],
    folders: Folders | None = None, model: Model = "minilm", layer: Layers = "all", revision: str | None = None,
    random_weights: bool = False, dtype: Dtype = "float32", pooling: str | list[str] = "mean",
    transforms: str | list[str] = "clip,whiten", definition: Definition = "mean_profile",
    components: int | None = None, fit_on: str = "train", static: str | None = None, max_length: int | None = None,
    batch_tokens: int | None = None, seed: int = 0, runs: str = "runs", name: str | None = None,
    cache: str | None = None, quiet: bool = False, trainer: dict[str, Any] | None = None,
    wandb: Wandb = WandbOptions(), tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result | None:  # fmt: skip
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
    from probing.cli.option_types import chosen as named
    from probing.downstream.names import POOLINGS, SPACES, Space

    call = Call.of(study_of("sts"), config, name, wandb, out_of_range("components", components, 1))
    poolings = named("--pooling", pooling, POOLINGS)
    spaces: list[Space] = ["none", *named("--transforms", transforms, SPACES[1:], "none")]
    sets = _read_sets(config["folders"] or (), call.say)
    outside = _outside(fit_on, spaces != ["none"] and not any(one.part == "train" for one in sets), call.say)
    with quiet_libraries():
        from probing.cache.source import say_what_was_left_out
        from probing.downstream.sentence_vectors import (
            Fitting,
            Vectors,
            check_text_to_fit_on,
            evaluate,
            first_token_check,
            reported,
        )
        from probing.downstream.static import read_static
        from probing.studies.similarity.results import measured_sts

        source = call.source(tokenizer=tokenizer)
        files = source.model
        refuse(out_of_range("components", components, 1, source.config.hidden_size))
        if spaces != ["none"]:
            check_text_to_fit_on(sets, outside, reported(sets), fit_on)
        corpora = [one.corpus for one in sets] + ([outside] if outside else [])
        words = read_static(static, [text for corpus in corpora for text in corpus.sentences]) if static else None
        call.expect(2)
        stores = _with_first(source, poolings, source.model.name).read(
            corpora, [first_token_check(poolings, files.short_name)] * len(corpora)
        )
        if not is_main_process():
            return None
        call.watch.end("extract")
        say_what_was_left_out(corpora, [store.tokens for store in stores], call.say)
        vectors = Vectors(sets, stores[: len(sets)], (outside, stores[-1]) if outside else None, words)
        told = _described(vectors, load_tokenizer(files), call.say)
        fitting = Fitting(spaces, definition, components, seed)

        def measure(_: Path) -> Measured:
            with stage(f"cosines of {layers_named(source.layers)}"):
                found = evaluate(vectors, source.layers, poolings, fitting, fit_on, seed)
            return measured_sts(*found, vectors, told, poolings, files.short_name)

        return call.write(files, measure)


def _read_sets(folders: Sequence[str], say: Callable[[str], None]) -> Any:
    """Return the sets that the user named, and say how many pairs were left out.

    Raises:
        UserError: If there are none, or only training parts.
    """
    from probing.downstream.sentence_vectors import reported
    from probing.downstream.sts_dataset import READABLE, read_sts

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
        vectors: The `probing.downstream.sentence_vectors.Vectors` that are compared.
        tokenizer: The model's tokenizer.
        say: Function that takes one-line messages.
    """
    from probing.downstream.sentence_vectors import described, said_of_unknown

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
    from probing.downstream.sentence_vectors import FIRST

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


# --------------------------------------------------------------------------------------------------------------------
# `wic`: does the cosine of a word's vectors tell whether the word means the same in two sentences?
# --------------------------------------------------------------------------------------------------------------------


@configured
def wic(
    config: dict[str, Any],
    folder: Folder | None = None, model: Model = "minilm", layer: Layers = "all", revision: str | None = None,
    random_weights: bool = False,
    dtype: Dtype = "float32", part: Literal["dev", "test"] = "dev", transforms: str | list[str] = "clip,whiten",
    definition: Definition = "mean_profile",
    components: int | None = None, max_length: int | None = None, batch_tokens: int | None = None,
    seed: int = 0, runs: str = "runs", name: str | None = None, cache: str | None = None, quiet: bool = False,
    trainer: dict[str, Any] | None = None, wandb: Wandb = WandbOptions(),
    tokenizer: Tokenizer = None, figure_format: FigureFormat = FIGURE_FORMAT,
) -> Result | None:  # fmt: skip
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
    from probing.cli.option_types import chosen as named
    from probing.downstream.names import SPACES, Space

    call = Call.of(study_of("wic"), config, name, wandb, out_of_range("components", components, 1))
    spaces: list[Space] = ["none", *named("--transforms", transforms, SPACES[1:], "none")]
    data = _read_pairs(config["folder"], part, call.say)
    with quiet_libraries():
        from probing.cache.source import say_what_was_left_out
        from probing.downstream.sentence_vectors import Fitting, Text, not_in
        from probing.downstream.wic import evaluate, target_check, unknown_pairs, without_cut_words
        from probing.studies.similarity.results import measured_wic

        source = call.source(tokenizer=tokenizer)
        refuse(out_of_range("components", components, 1, source.config.hidden_size))
        corpora = [pairs.corpus for pairs in data.values()]
        kept = not_in(corpora[0].sentences, corpora[1].sentences)
        if not kept.any():
            raise UserError(f"`wic {folder}`: every sentence of train is in {part} too; give parts that differ.")
        call.expect(2)
        stores = source.read(corpora, [target_check(pairs) for pairs in data.values()])
        if not is_main_process():
            return None
        call.watch.end("extract")
        say_what_was_left_out(corpora, [store.tokens for store in stores], call.say)
        pairs = without_cut_words(data, stores, call.say)
        n_unknown = unknown_pairs(pairs, stores, load_tokenizer(source.model), call.say)
        fitting = Fitting(spaces, definition, components, seed)
        results = {"n_unknown_pairs": n_unknown, "n_sentences_fitted_on": int(kept.sum())}

        def measure(_: Path) -> Measured:
            with stage(f"cosines of {layers_named(source.layers)}"):
                found = evaluate(pairs, stores, Text(stores[0], kept), source.layers, fitting, seed)
            return measured_wic(*found, data, pairs, stores, results, source.model.short_name)

        return call.write(source.model, measure)


def _read_pairs(folder: str | None, part: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the pairs of the training part and of another part, and say how many have no label.

    Raises:
        UserError: If no folder is given, or it cannot be read.
    """
    from probing.downstream.labelled_pairs import READABLE, read_wic

    if not folder:
        raise UserError(f"`wic` takes {READABLE}.")
    data = read_wic(folder, ["train", part])
    for line in (line for which, some in data.items() for line in some.said(which)):
        say(line)
    return data
