"""Where passes over a changed model are stored, so that a run that was killed goes on with the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore, job_lock
from probing.cache.source import ActivationSource
from probing.cache.store import PassStore, fingerprint, leftovers, remove
from probing.cache.tokens import Tokens
from probing.runtime.progress import counted

# Index of the file of the probes; that of the i-th pass is one higher than i.
PROBES = 0

_Job = TypeVar("_Job")


def fingerprint_of(*arrays: Any) -> str:
    """Return a fingerprint of arrays, SHA-256 in hex."""
    from hashlib import sha256

    digest = sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@contextmanager
def opened(
    source: ActivationSource, key: Mapping[str, Any], read: ActivationStore, tokens: Tokens, n_passes: int
) -> Iterator[PassStore]:
    """Open the store of the passes of a job, which other jobs then wait for.

    Args:
        source: The model and the cache.
        key: Everything that changes what the passes give.
        read: The activations that are read.
        tokens: The sentences that are read.
        n_passes: Number of files beside that of the probes.

    Raises:
        UserError: If the cache cannot be written.
    """
    folder = source.cache / f"{source.model.short_name}-{fingerprint(key)[:16]}"
    with job_lock(source.cache, folder.name, source.say):
        for path in leftovers(folder):
            remove(path)
        described = {name: read.header[name] for name in ("model", "revision", "corpus", "versions")}
        store = PassStore.opened(folder, key, tokens, n_passes, read.plan.batch_tokens, described)
        yield store
        store.touch()


def run_unfinished(
    files: Mapping[int, _Job], store: PassStore, run: Callable[[_Job], Tensor], what: str
) -> dict[_Job, NDArray[Any]]:
    """Run the passes that are not stored yet, and return what each gave, shape (n_rows, n_items).

    Args:
        files: The passes, by the index of their file.
        store: Where they are stored.
        run: Runs one of them.
        what: What they are, which is shown.
    """
    if left := store.unfinished(list(files)):
        with counted(what, len(files), len(files) - len(left)) as advance:
            for index in left:
                store.put(index, {"right": run(files[index])})
                advance(1)
    return {job: store.get(index)["right"].numpy() for index, job in files.items()}
