"""`extract`: only fill the activation cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probing.cli.option_values import Dtype, Layers, number_problems
from probing.commands.folders import cache_folder
from probing.errors import refuse
from probing.models import SiteName, layer_numbers


def extract(
    model: str = "minilm",
    layer: Layers = "all",
    revision: str | None = None,
    random_weights: bool = False,
    dtype: Dtype = "float32",
    site: SiteName = "residual",
    corpus: str = "builtin",
    max_length: int | None = None,
    batch_tokens: int | None = None,
    seed: int = 0,
    runs: str = "runs",
    cache: str | None = None,
    quiet: bool = False,
    trainer: dict[str, Any] | None = None,
) -> Path:
    """Cache the hidden states of a corpus, from which `fit` reads them.

    Args:
        model: Model to read: an alias (minilm, bert, roberta, distilbert, ...), a hub id, or a local folder.
        layer: Layers to read: one (6), several (0,3,6) or all; layer 0 is the embedding output, which only
            the residual stream has.
        revision: Branch, tag or commit of the model on the hub.
        random_weights: Use a randomly initialised model: the same architecture, weights drawn with --seed.
        dtype: Precision of the forward pass and of the cached activations.
        site: What a neuron is: a coordinate of the hidden state (residual), a unit of the MLP inside block k after its
            activation function (mlp), or a coordinate of a head's output inside block k (attention).
        corpus: Text to read: builtin, a file (.txt with one sentence per line, .conllu, .tsv; each also as .gz),
            hf:NAME?config=C&split=S&column=T, or - for standard input.
        max_length: Maximum length of a tokenised sentence, special tokens included; longer ones are truncated. The
            model's own limit by default.
        batch_tokens: Maximum number of tokens in one forward pass, padding included; fixed when the cache entry is
            made.
        seed: Seed of the weights of a randomly initialised model.
        runs: Folder of runs, in which the cache is by default.
        cache: Folder of cached activations; $PROBING_CACHE or RUNS/cache by default.
        quiet: Print the result line only.
        trainer: Arguments of Lightning's Trainer that apply to a forward pass, such as --trainer.devices 2.

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
            shows_progress=terminal.show_progress(quiet), site=site,
        )  # fmt: skip
        corpora = [load_corpus(corpus)]
        (store,) = source.read(corpora)
        say_what_was_left_out(corpora, [store], say)
    if is_main_process():
        read = f"{store.plan.n_tokens} tokens of {store.tokens.n_sentences} sentences"
        print(f"{read}, layers {source.layers}: {store.folder}")
    return store.folder
