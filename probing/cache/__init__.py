"""The activation cache: one pass over a corpus serves every layer, task, replicate and sweep."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.cache.plan import FORMAT, Plan, divide, fingerprint, shard_tokens
from probing.cache.store import ActivationStore, DamagedCache, not_written
from probing.cache.tokens import tokenize
from probing.corpus import Corpus
from probing.distributed import is_main_process, wait_for
from probing.errors import RunError, UserError
from probing.models import ModelSource, load_config, load_encoder, load_tokenizer, max_length_of

__all__ = ["ActivationStore", "Request", "activations"]

# Padded tokens in one forward pass. A processor is fastest while a block's activations stay in its
# cache (8192 took 1.7 times as long as 2048 on two cores); an accelerator wants wide products.
BATCH_TOKENS_CPU, BATCH_TOKENS_GPU = 2048, 32768


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
        batch_tokens: Padded tokens in one forward pass, None for what suits the machine; fixed by
            whoever makes the entry.
    """

    source: ModelSource
    corpus: Corpus
    layers: Sequence[int]
    dtype: str = "float32"
    max_length: int | None = None
    random_weights_seed: int | None = None
    batch_tokens: int | None = None

    def key(self) -> dict[str, Any]:
        """Return everything that changes the values; the layers are not part of it."""
        return {
            "format": FORMAT,
            "model": self.source.fingerprint(weights=self.random_weights_seed is None),
            "random_weights_seed": self.random_weights_seed,
            "corpus": self.corpus.fingerprint,
            "max_length": self.max_length,
            "dtype": self.dtype,
        }


def activations(
    request: Request,
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None] = lambda message: None,
    callbacks: Sequence[Any] = (),
) -> ActivationStore:
    """Return the stored activations, extracting what is missing or damaged.

    Many processes may ask for the same activations: one extracts, the others wait and read. The
    lock belongs to the job, and is taken before Lightning launches further ranks.

    Args:
        request: What is asked for.
        cache: The cache folder.
        trainer_options: Lightning's `Trainer` arguments; only those that concern a forward pass are used.
        say: Takes one-line messages.
        callbacks: Lightning callbacks for the extraction, such as a progress bar.

    Raises:
        UserError: If the cache cannot be written, or the model or its tokenizer cannot be loaded.
        RunError: If the extraction failed; finished shards are kept.
    """
    key = request.key()
    name = f"{request.source.short_name}-{fingerprint(key)[:16]}"
    folder = cache / name
    with _job_lock(cache, name, say):
        store = _open_or_create(folder, request, key, say) if is_main_process() else _join(folder)
        damaged = store.damaged(request.layers)
        for layer, shard in damaged if is_main_process() else ():
            say(f"{store.path(layer, shard)} is damaged or gone: extracting it again")
        if work := store.missing(request.layers, damaged):
            _extract(request, store, work, trainer_options, callbacks)
        if is_main_process():
            store.touch()
    return store


def _open_or_create(
    folder: Path, request: Request, key: Mapping[str, Any], say: Callable[[str], None]
) -> ActivationStore:
    if folder.exists():
        try:
            return ActivationStore(folder)
        except DamagedCache as error:
            say(f"the cache entry is damaged and made anew ({error})")
            shutil.rmtree(folder)
    import torch

    config, tokenizer = load_config(request.source), load_tokenizer(request.source)
    limit = max_length_of(config, tokenizer)
    # Told to leave no room for a word, tokenizers do not truncate at all.
    least = tokenizer.num_special_tokens_to_add() + 1
    if request.max_length is not None and not least <= request.max_length <= limit:
        raise UserError(f"`--max_length {request.max_length}`: {request.source.name} takes {least} to {limit} tokens.")
    tokens = tokenize(tokenizer, request.corpus.sentences, request.max_length or limit, request.corpus.words)
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

    import probing

    return {
        "model": request.source.name,
        "revision": request.source.revision,
        "corpus": request.corpus.name,
        "versions": {
            "probing": probing.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _join(folder: Path) -> ActivationStore:
    """Return the entry that the main process sets up for this job's other ranks."""
    wait_for(lambda: (folder / "manifest.jsonl").exists(), f"the main process to set up {folder}")
    return ActivationStore(folder)


def _extract(
    request: Request,
    store: ActivationStore,
    work: Mapping[int, Sequence[int]],
    trainer_options: Mapping[str, Any],
    callbacks: Sequence[Any],
) -> None:
    import pytorch_lightning as pl
    import torch

    from probing.cache.extraction import run_extraction, trainer_keywords

    encoder = load_encoder(request.source, getattr(torch, request.dtype), request.random_weights_seed)
    pad_token_id = load_tokenizer(request.source).pad_token_id or 0
    trainer = pl.Trainer(
        logger=False,
        callbacks=list(callbacks),
        **{"enable_progress_bar": False, **trainer_keywords(trainer_options)},
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        inference_mode=True,
    )
    run_extraction(encoder, store, work, pad_token_id, trainer)
    if left := store.missing(request.layers):
        raise RunError(f"{len(left)} shards of {store.folder} were not extracted; run the same command again")


def _job_lock(cache: Path, name: str, say: Callable[[str], None]) -> AbstractContextManager[Any]:
    from filelock import FileLock, Timeout

    if not is_main_process():
        return nullcontext()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / f"{name}.lock")
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            say(f"waiting for another process that extracts the same activations ({cache / name})")
            return lock.acquire()
    except OSError as error:
        raise UserError(
            f"`--cache {cache}` cannot be written ({error.strerror or error}); name a folder of yours with --cache."
        ) from None
