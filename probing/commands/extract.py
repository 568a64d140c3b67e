"""`extract`: only fill the activation cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probing.cli.option_values import Dtype, Layers, number_problems
from probing.commands.folders import cache_folder
from probing.errors import refuse
from probing.models import layer_numbers


def extract(
    model: str = "minilm",
    layer: Layers = "all",
    revision: str | None = None,
    random_weights: bool = False,
    dtype: Dtype = "float32",
    corpus: str = "builtin",
    max_length: int | None = None,
    batch_tokens: int | None = None,
    seed: int = 0,
    runs: str = "runs",
    cache: str | None = None,
    quiet: bool = False,
    trainer: dict[str, Any] | None = None,
) -> Path:
    """Cache the hidden states of a corpus; `fit` reads them from there.

    Args:
        model: Alias (minilm, bert, roberta, distilbert, ...), hub id, or local folder.
        layer: One layer (6), several (0,3,6) or all; 0 is the embedding output.
        revision: Branch, tag or commit of the model on the hub.
        random_weights: Take the untrained twin: the same architecture, weights drawn with --seed.
        dtype: Of the forward pass and of what is stored.
        corpus: builtin, .txt (sentence a line), .conllu, .tsv, or .gz, hf:NAME?config=C&split=S&column=T, - (stdin).
        max_length: Longest tokenised sentence, special tokens included; the model's own limit by default.
        batch_tokens: Padded tokens in one forward pass, fixed when the cache entry is made.
        seed: Of the untrained twin's weights.
        runs: Folder of runs; the cache is in it by default.
        cache: Folder of cached activations; $PROBING_CACHE or RUNS/cache by default.
        quiet: Result line only.
        trainer: Arguments of Lightning's Trainer that concern a forward pass, such as --trainer.devices 2.

    Returns:
        The folder of the cache entry.
    """
    from probing.cache.source import ActivationSource, say_what_was_left_out
    from probing.corpus import load_corpus
    from probing.runtime import terminal
    from probing.runtime.distributed import is_main_process

    refuse(number_problems(seed, max_length, batch_tokens))
    layer_numbers(layer)
    cached = cache_folder(cache, runs)
    say = terminal.silence if quiet else terminal.say
    with terminal.quiet_libraries():
        source = ActivationSource.of(
            model, revision, layer, trainer, cache=cached, dtype=dtype, max_length=max_length,
            batch_tokens=batch_tokens, random_weights_seed=seed if random_weights else None, say=say,
            shows_progress=terminal.show_progress(quiet),
        )  # fmt: skip
        corpora = [load_corpus(corpus)]
        (store,) = source.read(corpora)
        say_what_was_left_out(corpora, [store], say)
    if is_main_process():
        read = f"{store.plan.n_tokens} tokens of {store.tokens.n_sentences} sentences"
        print(f"{read}, layers {source.layers}: {store.folder}")
    return store.folder
