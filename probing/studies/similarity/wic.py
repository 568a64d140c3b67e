"""`wic`: does the cosine of a word's vectors tell whether the word means the same in two sentences?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from probing.cli.commandline import configured
from probing.cli.option_types import FIGURE_FORMAT, Dtype, FigureFormat, Folder, Layers, Model, Tokenizer, Wandb
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
