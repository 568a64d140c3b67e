"""`extract`: only fill the activation cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probing.cache.location import cache_folder
from probing.cli.option_values import Dtype, Layers, Model, Source, Tokenizer, number_problems
from probing.cli.python_calls import command
from probing.cli.shared_options import with_shared_help
from probing.errors import refuse
from probing.models import SiteName, layer_numbers


@command
@with_shared_help
def extract(
    model: Model = "minilm", layer: Layers = "all", revision: str | None = None, random_weights: bool = False,
    dtype: Dtype = "float32", site: SiteName = "residual", corpus: Source = "builtin", max_length: int | None = None,
    batch_tokens: int | None = None,
    seed: int = 0, runs: str = "runs", cache: str | None = None, quiet: bool = False,
    trainer: dict[str, Any] | None = None,
    tokenizer: Tokenizer = None,
) -> Path:  # fmt: skip
    """Cache the hidden states of a corpus, from which `fit` reads them.

    Args:
        layer: Layers to read: one (6), several (0,3,6), the last (-1) or all; layer 0 is the embedding output,
            which only the residual stream has.
        seed: Seed of the weights of a randomly initialised model.
        runs: Folder of runs, in which the cache is by default.
        quiet: Print the result line only.

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
            shows_progress=terminal.show_progress(quiet), site=site, tokenizer=tokenizer,
        )  # fmt: skip
        corpora = [load_corpus(corpus)]
        (store,) = source.read(corpora)
        say_what_was_left_out(corpora, [store.tokens], say)
    if is_main_process():
        read = f"{store.plan.n_tokens} tokens of {store.tokens.n_sentences} sentences"
        print(f"{read}, layers {source.layers}: {store.folder}")
    return store.folder
