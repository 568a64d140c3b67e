"""The activation cache: a single pass over a corpus serves every layer, task, replicate and sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.activations.store import (
    FORMAT,
    ActivationStore,
    DamagedCache,
    StorePlan,
    divide,
    fingerprint,
    leftovers,
    remove,
    shard_tokens,
)
from probing.errors import NotTheModels, RunError, UserError, library_errors
from probing.models import ModelSource, SiteName, check_ids, length_limits, load_config, load_encoder, load_tokenizer
from probing.runtime import drop_garbage, package_version
from probing.runtime.processes import end_together, is_main_process
from probing.text import Corpus
from probing.text.tokens import LONGEST, Tokens, tokenize, tokenize_pairs

if TYPE_CHECKING:
    from torch import nn

    from probing.models.sites import Site

# Padded tokens in one forward pass. A processor is fastest while a block's activations stay in its cache (8192 tokens
# took 1.7 times as long as 2048 on two cores), and small batches of sorted sentences have less padding (a tenth at
# 1024, a fifth at 2048). An accelerator needs large products.
BATCH_TOKENS_CPU, BATCH_TOKENS_GPU = 1024, 32768


@dataclass(frozen=True)
class Request:
    """A request for activations.

    Args:
        layers: Ascending layer numbers.
        dtype: Dtype of the forward pass and of the stored activations, by its name in torch.
        max_length: Number of tokens at which sentences are cut; None for the model's limit.
        random_weights_seed: Seed of a randomly initialised model; None for the trained model.
        permuted_tokens_seed: Seed by which each sentence's tokens, except special tokens, are permuted before the model
            reads them; a hidden state is stored at its token's original row. None does not permute.
        batch_tokens: Padded tokens in one forward pass, used only when the entry is created; None chooses by the
            machine.
    """

    source: ModelSource
    corpus: Corpus
    layers: Sequence[int]
    dtype: str = "float32"
    max_length: int | None = None
    random_weights_seed: int | None = None
    permuted_tokens_seed: int | None = None
    batch_tokens: int | None = None
    site: SiteName = "residual"

    def key(self) -> dict[str, Any]:
        """Return everything that changes the values; the layers are not part of the key."""
        key = {
            "format": FORMAT,
            "model": self.source.fingerprint(weights=self.random_weights_seed is None),
            "random_weights_seed": self.random_weights_seed,
            "corpus": self.corpus.fingerprint,
            "max_length": self.max_length,
            "dtype": self.dtype,
        }
        # Present only where they say something, so that all other entries keep their key.
        if self.permuted_tokens_seed is not None:
            key["permuted_tokens_seed"] = self.permuted_tokens_seed
        if self.site != "residual":
            key["site"] = self.site
        return key


def activations(
    request: Request,
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None] = lambda message: None,
    callbacks: Sequence[Any] = (),
    check: Callable[[Tokens], None] = lambda tokens: None,
) -> ActivationStore:
    """Return the stored activations, extracting missing or damaged shards.

    Many processes may request the same activations: one extracts them, the others wait and then read. The lock belongs
    to the job and is taken before Lightning launches further ranks; these receive their share of the work from the
    rank-zero process. A cache that cannot be written still serves complete entries. `check` gets the table of tokens
    before any work, and raises an error if the tokens are unusable.

    Raises:
        UserError: If the cache cannot be written, or the model or its tokenizer cannot be loaded.
        RunError: If the extraction failed; finished shards stay in the cache.
    """
    key, folder = request.key(), entry_folder(request, cache)
    if not is_main_process():
        _extract(request, folder, None, trainer_options, callbacks)
        return ActivationStore(folder).of_corpus(request.corpus)
    try:
        lock = job_lock(cache, folder.name, say)
    except NotWritable:
        if store := _whole(folder, request):
            check(store.tokens)
            return store
        raise
    with lock:
        store = _open_or_create(folder, request, key, say, check)
        damaged = store.damaged(request.layers)
        for layer, shard in damaged:
            say(f"{store.path(layer, shard)} is damaged or missing: extracting it again")
        work = store.missing(request.layers, damaged)
        # What an extraction left that ended before it was compared.
        uncompared = [k for k in store.layers() if not store.damaged([k])] if store.uncompared.exists() else []
        try:
            if work:
                store.uncompared.touch()
            _extract(request, folder, work, trainer_options, callbacks, uncompared)
        except UserError as error:
            if isinstance(error, NotTheModels) or not store.records():
                remove(folder)  # for example if the weights cannot be loaded
            raise
        # The model and its trainer refer to each other: without this, each corpus would leave one model in memory.
        drop_garbage()
        store.touch()
    return store


def entry_folder(request: Request, cache: Path) -> Path:
    """Return the folder of a request's entry in a cache, existing or not."""
    return cache / f"{request.source.short_name}-{fingerprint(request.key())[:16]}"


def is_cached(request: Request, cache: Path) -> bool:
    """Return whether the requested activations are in the cache, complete and undamaged."""
    return _whole(entry_folder(request, cache), request) is not None


def _whole(folder: Path, request: Request) -> ActivationStore | None:
    """Return the entry if the requested layers are complete and undamaged, else None."""
    try:
        store = ActivationStore(folder).of_corpus(request.corpus)
    except DamagedCache:
        return None
    is_whole = not store.uncompared.exists() and not store.missing(request.layers, store.damaged(request.layers))
    return store if is_whole else None


def _open_or_create(
    folder: Path,
    request: Request,
    key: Mapping[str, Any],
    say: Callable[[str], None],
    check: Callable[[Tokens], None],
) -> ActivationStore:
    try:
        store = ActivationStore(folder).of_corpus(request.corpus)
    except DamagedCache as error:
        if folder.exists():
            say(f"the plan of the cache entry is damaged and is made again ({error})")
    else:
        check(store.tokens)
        return store
    import torch

    config, tokenizer = load_config(request.source), load_tokenizer(request.source)
    site = _site(request, tokenizer.pad_token_id or 0)
    tokens = tokens_of(request, tokenizer)
    check(tokens)
    itemsize = getattr(torch, request.dtype).itemsize
    n_layers, d_model = config.num_hidden_layers, site.width if site else config.hidden_size
    shards = divide(tokens.lengths, shard_tokens(n_layers, d_model, itemsize))
    plan = StorePlan(key, n_layers, d_model, request.dtype, batch_tokens_of(request), shards)
    return ActivationStore.create(folder, plan, tokens, description(request, site)).of_corpus(request.corpus)


def tokens_of(request: Request, tokenizer: Any) -> Tokens:
    """Tokenise the corpus of a request; refuse lengths or tokens that the model does not accept."""
    corpus = request.corpus
    least, limit = length_limits(request.source, tokenizer)
    limit = min(limit, LONGEST)
    if corpus.seconds is not None:
        least = int(tokenizer.num_special_tokens_to_add(pair=True)) + 2
    if request.max_length is not None and not least <= request.max_length <= limit:
        raise UserError(f"`--max_length {request.max_length}`: {request.source.name} takes {least} to {limit} tokens.")
    of_model = f"`--model {request.source.name}`: its tokenizer cannot read {corpus.name}"
    with library_errors(lambda reason: f"{of_model} ({reason}); choose another model, or correct its tokenizer.json."):
        if corpus.seconds is not None:
            tokens = tokenize_pairs(tokenizer, corpus.sentences, corpus.seconds, request.max_length or limit)
        else:
            tokens = tokenize(tokenizer, corpus.sentences, request.max_length or limit, corpus.words)
    check_ids(request.source, tokenizer, tokens.input_ids)
    return tokens


def batch_tokens_of(request: Request) -> int:
    """Return the number of padded tokens in one forward pass, chosen by the machine unless requested."""
    import torch

    return request.batch_tokens or (BATCH_TOKENS_GPU if torch.cuda.is_available() else BATCH_TOKENS_CPU)


def _site(request: Request, pad_token_id: int) -> Site | None:
    """Return the site inside the blocks, so that all extracting processes read the same maps; None for residual."""
    if request.site == "residual":
        return None
    from probing.models.anatomy import examine
    from probing.models.sites import find_site

    # The gradients that it is found by overflow in float16.
    dtype = "float32" if request.dtype == "float32" else "bfloat16"
    encoder, name = load_encoder(request.source, request.random_weights_seed, dtype), request.source.name
    return find_site(encoder, examine(encoder, pad_token_id, name), request.site, pad_token_id, name)


def description(request: Request, site: Site | None = None) -> dict[str, Any]:
    """Return the origin of an entry, for users."""
    import torch
    import transformers

    return {
        "model": request.source.name,
        "revision": request.source.revision,
        "corpus": request.corpus.name,
        "versions": {
            "probing": package_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        **({"site": {"modules": list(site.modules), "n_heads": site.n_heads}} if site else {}),
    }


def _extract(
    request: Request,
    folder: Path,
    work: Mapping[int, Sequence[int]] | None,
    trainer_options: Mapping[str, Any],
    callbacks: Sequence[Any],
    uncompared: Sequence[int] = (),
) -> None:
    """Extract `work` (None except in the rank-zero process), then compare with the plain model in that process.

    The requested layers and those `uncompared` are compared, unless this was done.
    """
    from probing.activations.comparison import compare_with_plain_model
    from probing.activations.extraction import Extraction, forward_trainer, run_pass
    from probing.models.examination import with_the_same_weights

    trainer = forward_trainer(trainer_options, callbacks)
    plain: list[tuple[nn.Module, Any]] = []

    def load_and_keep() -> tuple[nn.Module, Any]:
        encoder, tokenizer = load_both(request)
        plain.append((with_the_same_weights(encoder), tokenizer))
        return encoder, tokenizer

    if work or trainer.world_size > 1:
        end_together(trainer)
        run_pass(lambda writer: Extraction(load_and_keep, folder, work, writer), folder, trainer)
    if work is not None:
        store = ActivationStore(folder).of_corpus(request.corpus)
        if missing := store.missing(request.layers):
            raise RunError(f"{len(missing)} shards of {folder} were not extracted; run the same command again")
        if store.uncompared.exists():
            encoder, tokenizer = plain[0] if plain else load_both(request)
            layers = sorted({*request.layers, *uncompared})
            encoder = encoder.to(trainer.strategy.root_device)
            compare_with_plain_model(store, layers, encoder, tokenizer, request.corpus)
            store.uncompared.unlink()
    trainer.strategy.barrier()


def load_both(request: Request) -> tuple[nn.Module, Any]:
    """Load the model of a request, and its tokenizer."""
    return load_encoder(request.source, request.random_weights_seed, request.dtype), load_tokenizer(request.source)


def load(request: Request) -> tuple[nn.Module, int]:
    """Load the model of a request; return it with the id of its padding token."""
    encoder, tokenizer = load_both(request)
    return encoder, tokenizer.pad_token_id or 0


class NotWritable(UserError):
    """The folder of the cache cannot be written."""

    def __init__(self, cache: Path, error: OSError) -> None:
        reason = error.strerror or error
        super().__init__(f"`--cache {cache}` cannot be written ({reason}); name a writable folder with --cache.")


def job_lock(cache: Path, name: str, say: Callable[[str], None]) -> AbstractContextManager[Any]:
    """Take the lock of an entry, waiting for the job that has it, and remove the partial files of ended writers.

    Raises:
        NotWritable: If the cache cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / f"{name}.lock")
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            say(f"waiting for another process that is extracting the same activations ({cache / name})")
            held = lock.acquire()
        for path in leftovers(cache / name):
            remove(path)  # its writer held the lock, so it has ended
    except OSError as error:
        raise NotWritable(cache, error) from None
    return held
