"""Moments of the neurons over training tokens, in one streamed pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from probing.data.examples import Activations, Batch, Examples, as_batches, blocks, n_constants, read_share
from probing.runtime.processes import most_over_ranks, sum_over_ranks
from probing.statistics.moments import Moments, MomentsAccumulator


def are_columns(store: Activations) -> bool:
    """Return whether neurons are columns of an array, as they are or changed, which may have units of their own."""
    while (inner := getattr(store, "store", None)) is not None:
        store = inner
    return bool(getattr(store, "are_columns", False))


def layer_moments(train: Examples, layers: Sequence[int]) -> list[Moments]:
    """Return the moments of each layer's training tokens, in one streamed pass divided among ranks.

    Neurons that are constants by design are given sd 1, so that they count as live.
    """
    widths = [train.store.plan.d_model] * len(layers)
    found = _moments(read_share(train, layers), widths, are_columns(train.store))
    if n := n_constants(train.store):
        for moments in found:
            moments.sd[-n:] = 1
            if moments.constant is not None:
                moments.constant[-n:] = False
    return found


def loader_moments(batches: Iterable[Any], n_layers: int) -> list[Moments]:
    """Return the moments of each layer over the batches of this rank's loader and those of the other ranks.

    Args:
        batches: Batches of examples, as `as_batches` takes them.
        n_layers: Number of layers in each batch.

    Raises:
        ValueError: If there are no batches.
    """
    iterator = (block for batch in batches for one in as_batches(batch) for block in blocks(one))
    if (first := next(iterator, None)) is None:
        raise ValueError("the loader of training batches yields none")
    widths = [states.shape[1] for states in first.hidden_states]
    if len(widths) != n_layers:
        raise ValueError(f"the batches have {len(widths)} layers, and the probe has {n_layers}")
    return _moments((block for part in ((first,), iterator) for block in part), widths)


def _moments(batches: Iterable[Batch], widths: Sequence[int], columns: bool = False) -> list[Moments]:
    accumulators = [MomentsAccumulator(width, columns) for width in widths]
    for batch in batches:
        for accumulator, states in zip(accumulators, batch.hidden_states, strict=True):
            accumulator.update(states.cpu())
    for accumulator in accumulators:
        accumulator.all_reduce(sum_over_ranks)
        accumulator.mean.limits = most_over_ranks(accumulator.mean.limits)
    return [accumulator.result() for accumulator in accumulators]
