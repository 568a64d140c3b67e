"""Passes that are stored one by one, so that a killed run continues with the next, and the effects that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore, job_lock
from probing.activations.source import ActivationSource
from probing.activations.store import WorkPlan, WorkStore, fingerprint
from probing.interventions.forward import Change, Forward, Readout
from probing.runtime.progress import counted
from probing.statistics import difference_interval, difference_p_value, mean_interval, mean_p_value, widened
from probing.statistics.chance import percentile_of, rank_p
from probing.text.tokens import Tokens

Rows = list[dict[str, Any]]

# Sums of a measure over the examples of each item, such as a sentence, shape (n_items,): for a share, the number of
# correct examples.
Sums = NDArray[np.float64]


def tested(sums: Sums, intact: Sums, n: NDArray[Any], is_share: bool) -> dict[str, Any]:
    """Return a difference with its 95% confidence interval and its p-value, paired by item; n is that of examples."""
    difference = sums - intact
    interval, p_value = (difference_interval, difference_p_value) if is_share else (mean_interval, mean_p_value)
    low, high = interval(difference, n)
    return {
        "effect": float(difference.sum() / n.sum()), "low": low, "high": high, "p_value": p_value(difference, n),
        "n": int((n > 0).sum()),
    }  # fmt: skip


def valued(sums: Sums, intact: Sums, n: NDArray[Any], is_share: bool) -> dict[str, Any]:
    """Return the measure itself, followed by what `tested` returns."""
    return {"value": float(sums.sum() / n.sum()), **tested(sums, intact, n, is_share)}


def with_draws(row: Callable[[int, Sums], dict[str, Any]], drawn: Sequence[Sums]) -> tuple[dict[str, Any], Rows]:
    """Return the row of the mean of some draws, as draw 0, with an interval over items and draws, and of each draw.

    `row` returns the columns of a draw, by its number from 1, with those of `tested`.
    """
    rows = [row(draw, sums) for draw, sums in enumerate(drawn, start=1)]
    mean = row(0, np.mean(drawn, axis=0))
    mean["low"], mean["high"] = widened(mean["effect"], (mean["low"], mean["high"]), [of["effect"] for of in rows])
    return mean, rows


def among(effect: float, drawn: Sequence[float] | Sums, harm: int, prefix: str = "") -> dict[str, float]:
    """Return the percentile and the p-value of an effect among those of drawn sets; empty without any.

    The percentile is the percentage of sets that harm less; the p-value is the share of sets, the changed one included,
    that harm at least as much. `harm` is 1 if a larger effect is a greater harm, -1 if a smaller one is.
    """
    if not len(drawn):
        return {}
    value, others = harm * effect, harm * np.asarray(drawn)
    p_value = f"{prefix}p" if prefix else "p_value"
    return {f"{prefix}percentile": percentile_of(value, others), p_value: rank_p(value, others)}


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
    passes: Forward, change: Callable[[Job], Change], readout: Readout, files: Mapping[int, Job], store: WorkStore,
    what: str,
) -> dict[Job, Sums]:  # fmt: skip
    """Run the passes that are not stored yet; return the results of a readout in its last layer, shape (n_items,)."""
    return run_unfinished(files, store, lambda job: passes.read(change(job), readout)[-1].clone(), what)
