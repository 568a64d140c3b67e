"""Passes that are stored one by one, so that a killed run continues with the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from probing.activations import ActivationStore, job_lock
from probing.activations.source import ActivationSource
from probing.activations.store import WorkPlan, WorkStore, fingerprint
from probing.interventions.effects import Sums
from probing.interventions.forward import Forward, Readout
from probing.runtime.progress import counted
from probing.text.tokens import Tokens

Job = TypeVar("Job")


def fingerprint_of(*arrays: Any) -> str:
    """Return a fingerprint of arrays, SHA-256 in hex."""
    from hashlib import sha256

    digest = sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@contextmanager
def opened(
    source: ActivationSource, key: Mapping[str, Any], read: ActivationStore, tokens: Tokens, n_passes: int, command: str
) -> Iterator[WorkStore]:
    """Open the store of the passes of a command, for which other jobs then wait; `key` is all that changes results.

    Raises:
        UserError: If the cache cannot be written.
    """
    folder = source.cache / f"{source.model.short_name}-{fingerprint(key)[:16]}"
    with job_lock(source.cache, folder.name, source.say):
        holds, batch_tokens = f"{{n}} files of {command}", read.plan.batch_tokens
        plan = WorkPlan.of_whole_text(key, holds, n_passes + 1, tokens, batch_tokens)
        store = WorkStore.opened(folder, lambda: (plan, tokens), read.description)
        yield store
        store.touch()


def run_unfinished(
    files: Mapping[int, Job], store: WorkStore, run: Callable[[Job], Tensor], what: str
) -> dict[Job, Sums]:
    """Run the passes, by index of their file, that are not stored yet; return their results, (n_rows, n_items)."""
    if unfinished := store.unfinished(list(files)):
        with counted(what, len(files), len(files) - len(unfinished)) as advance:
            for index in unfinished:
                store.put(index, {"right": run(files[index])})
                advance(1)
    return {job: store.get(index)["right"].numpy().astype(np.float64) for index, job in files.items()}


def run_last_layer(
    passes: Forward, readout: Readout, files: Mapping[int, Job], store: WorkStore, what: str
) -> dict[Job, Sums]:
    """Run the passes that are not stored yet; return the results of a readout in its last layer, shape (n_items,)."""
    return run_unfinished(files, store, lambda job: passes.read(job, readout)[-1].clone(), what)
