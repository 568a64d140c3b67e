"""The activation cache: one pass over a corpus serves every layer, task, replicate and sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.cache.plan import FORMAT, Plan, divide, fingerprint, shard_tokens
from probing.cache.store import ActivationStore, DamagedCache, leftovers, not_written, remove
from probing.cache.tokens import LONGEST, Tokens, tokenize
from probing.corpus import Corpus
from probing.errors import RunError, UserError
from probing.models import ModelSource, length_limits, load_config, load_encoder, load_tokenizer
from probing.runtime.distributed import end_together, is_main_process

__all__ = ["ActivationStore", "Request", "activations"]

# Padded tokens in one forward pass. A processor is fastest while a block's activations stay in its
# cache (8192 took 1.7 times as long as 2048 on two cores), and small batches of sorted sentences hold less padding (a
# tenth at 1024, a fifth at 2048); an accelerator wants wide products.
BATCH_TOKENS_CPU, BATCH_TOKENS_GPU = 1024, 32768


@dataclass(frozen=True)
class Request:
    """What is asked of the cache.

    Args:
        source: The model's files.
        corpus: The sentences.
        layers: Ascending layer numbers.
        dtype: Of the forward pass and of what is stored, as torch names it.
        max_length: Longest tokenised sentence; None for the model's own limit.
        random_weights_seed: Seed of the untrained twin, None for the trained model.
        permuted_tokens_seed: Seed by which each sentence's tokens are permuted before the model reads them, special
            ones in place; a hidden state is stored at its token's own row. None for the sentences as they are.
        batch_tokens: Padded tokens in one forward pass, None for what suits the machine; fixed by
            whoever makes the entry.
    """

    source: ModelSource
    corpus: Corpus
    layers: Sequence[int]
    dtype: str = "float32"
    max_length: int | None = None
    random_weights_seed: int | None = None
    permuted_tokens_seed: int | None = None
    batch_tokens: int | None = None

    def key(self) -> dict[str, Any]:
        """Return everything that changes the values; the layers are not part of it."""
        key = {
            "format": FORMAT,
            "model": self.source.fingerprint(weights=self.random_weights_seed is None),
            "random_weights_seed": self.random_weights_seed,
            "corpus": self.corpus.fingerprint,
            "max_length": self.max_length,
            "dtype": self.dtype,
        }
        # Named only where it is so: entries of sentences as they are keep their name.
        permuted = self.permuted_tokens_seed
        return key if permuted is None else {**key, "permuted_tokens_seed": permuted}


def activations(
    request: Request,
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None] = lambda message: None,
    callbacks: Sequence[Any] = (),
    check: Callable[[Tokens], None] = lambda tokens: None,
) -> ActivationStore:
    """Return the stored activations, extracting what is missing or damaged.

    Many processes may ask for the same activations: one extracts, the others wait and read. The
    lock belongs to the job, and is taken before Lightning launches further ranks; these take
    their share of the work from the first rank. A cache that cannot be written serves what is
    whole in it.

    Args:
        request: What is asked for.
        cache: The cache folder.
        trainer_options: Lightning's `Trainer` arguments; only those that concern a forward pass are used.
        say: Takes one-line messages.
        callbacks: Lightning callbacks for the extraction, such as a progress bar.
        check: Takes the table of tokens before any work and raises where they are of no use.

    Raises:
        UserError: If the cache cannot be written, or the model or its tokenizer cannot be loaded.
        RunError: If the extraction failed; finished shards are kept.
    """
    key = request.key()
    folder = cache / f"{request.source.short_name}-{fingerprint(key)[:16]}"
    if not is_main_process():
        _extract(request, folder, None, trainer_options, callbacks)
        return ActivationStore(folder)
    try:
        lock = _job_lock(cache, folder.name, say)
    except OSError as error:
        if store := _whole(folder, request.layers):
            check(store.tokens)
            return store
        raise UserError(
            f"`--cache {cache}` cannot be written ({error.strerror or error}); name a folder of yours with --cache."
        ) from None
    with lock:
        for path in leftovers(folder):
            remove(path)  # whoever was writing it held the lock, and is dead
        store = _open_or_create(folder, request, key, say, check)
        damaged = store.damaged(request.layers)
        for layer, shard in damaged:
            say(f"{store.path(layer, shard)} is damaged or gone: extracting it again")
        try:
            _extract(request, folder, store.missing(request.layers, damaged), trainer_options, callbacks)
        except UserError:
            if not store.records():
                remove(folder)  # such as for a model whose weights cannot be loaded
            raise
        if left := store.missing(request.layers):
            raise RunError(f"{len(left)} shards of {folder} were not extracted; run the same command again")
        store.touch()
    return store


def _whole(folder: Path, layers: Sequence[int]) -> ActivationStore | None:
    """Return the entry if nothing of these layers is missing or damaged."""
    try:
        store = ActivationStore(folder)
    except DamagedCache:
        return None
    return None if store.missing(layers, store.damaged(layers)) else store


def _open_or_create(
    folder: Path,
    request: Request,
    key: Mapping[str, Any],
    say: Callable[[str], None],
    check: Callable[[Tokens], None],
) -> ActivationStore:
    try:
        store = ActivationStore(folder)
    except DamagedCache as error:
        if folder.exists():
            say(f"the plan of the cache entry is damaged and made anew ({error})")
    else:
        check(store.tokens)
        return store
    import torch

    config, tokenizer = load_config(request.source), load_tokenizer(request.source)
    least, limit = length_limits(request.source, tokenizer)
    limit = min(limit, LONGEST)
    if request.max_length is not None and not least <= request.max_length <= limit:
        raise UserError(f"`--max_length {request.max_length}`: {request.source.name} takes {least} to {limit} tokens.")
    tokens = tokenize(tokenizer, request.corpus.sentences, request.max_length or limit, request.corpus.words)
    check(tokens)
    itemsize = getattr(torch, request.dtype).itemsize
    n_layers, d_model = config.num_hidden_layers, config.hidden_size
    batch_tokens = request.batch_tokens or (BATCH_TOKENS_GPU if torch.cuda.is_available() else BATCH_TOKENS_CPU)
    shards = divide(tokens.lengths, shard_tokens(n_layers, d_model, itemsize))
    plan = Plan(key, n_layers, d_model, request.dtype, batch_tokens, shards)
    try:
        return ActivationStore.create(folder, plan, tokens, _description(request))
    except OSError as error:
        raise not_written(folder, error) from error


def _description(request: Request) -> dict[str, Any]:
    import torch
    import transformers

    from probing.runtime.versions import own_version

    return {
        "model": request.source.name,
        "revision": request.source.revision,
        "corpus": request.corpus.name,
        "versions": {
            "probing": own_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _extract(
    request: Request,
    folder: Path,
    work: Mapping[int, Sequence[int]] | None,
    trainer_options: Mapping[str, Any],
    callbacks: Sequence[Any],
) -> None:
    """Extract this job's work, which the first rank knows and the others pass as None."""
    import pytorch_lightning as pl
    import torch

    from probing.cache.extraction import run_extraction, trainer_keywords

    trainer = pl.Trainer(
        logger=False,
        callbacks=list(callbacks),
        **{"enable_progress_bar": False, **trainer_keywords(trainer_options)},
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        inference_mode=True,
    )
    if not work and trainer.world_size == 1:
        return
    end_together(trainer)

    def load() -> tuple[torch.nn.Module, int]:
        encoder = load_encoder(request.source, request.random_weights_seed, request.dtype)
        return encoder, load_tokenizer(request.source).pad_token_id or 0

    run_extraction(load, folder, work, trainer)


def _job_lock(cache: Path, name: str, say: Callable[[str], None]) -> AbstractContextManager[Any]:
    from filelock import FileLock, Timeout

    cache.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache / f"{name}.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that extracts the same activations ({cache / name})")
        return lock.acquire()
