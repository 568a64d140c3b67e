"""The cache of measures of checkpoints: a series that was killed continues with the measures that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probing.cache import job_lock
from probing.cache.passes import PassStore
from probing.cache.plan import fingerprint
from probing.cache.store import ActivationStore, DamagedCache, leftovers, remove
from probing.errors import UserError

# What a command measured of one checkpoint, as JSON has it.
Document = dict[str, Any]
# The only file of an entry.
_ONLY = 0


def folder_of(cache: Path, key: Mapping[str, Any]) -> Path:
    """Return the folder of an entry.

    Args:
        cache: The cache folder.
        key: Everything that changes the result; a checkpoint under another name has the same.
    """
    return cache / f"series-{key['series']}-{fingerprint(key)[:16]}"


def kept(
    cache: Path,
    key: Mapping[str, Any],
    make: Callable[[], tuple[Document, ActivationStore]],
    say: Callable[[str], None],
) -> tuple[Document, bool]:
    """Return what an entry of the cache holds, or make and keep it; also return whether it was there.

    Args:
        cache: The cache folder.
        key: Everything that changes the result.
        make: Returns the result, and an entry of the cache that it was made from, which tells its origin.
        say: Called with one-line messages.

    Raises:
        UserError: If the cache cannot be written.
    """
    folder = folder_of(cache, key)
    try:
        lock = job_lock(cache, folder.name, say)
    except OSError as error:
        raise not_writable(cache, error) from None
    with lock:
        for path in leftovers(folder):
            remove(path)
        if (found := _read(folder)) is not None:
            return found, True
        made, source = make()
        description = {one: source.header[one] for one in ("model", "revision", "corpus", "versions")}
        store = PassStore.opened(folder, key, source.tokens, _ONLY, source.plan.batch_tokens, description)
        store.put(_ONLY, {"document": _as_tensor(json.dumps(made))})
        # Converted to JSON and back, so that a number is the same whether it was measured now or read from the cache.
        return json.loads(json.dumps(made)), False


def not_writable(cache: Path, error: OSError) -> UserError:
    """Return the error for a cache that nothing can be written to."""
    return UserError(
        f"`--cache {cache}` cannot be written ({error.strerror or error}); name a writable folder with --cache."
    )


def _read(folder: Path) -> Document | None:
    try:
        store = PassStore(folder)
    except DamagedCache:
        return None
    if store.unfinished([_ONLY]):
        return None
    store.touch()
    found: Document = json.loads(bytes(store.get(_ONLY)["document"].tolist()))
    return found


def _as_tensor(text: str) -> Any:
    import torch

    return torch.tensor(list(text.encode()), dtype=torch.uint8)
