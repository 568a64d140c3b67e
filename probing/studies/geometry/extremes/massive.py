"""Values of hidden states that are far larger than others, by three definitions, streamed layer by layer.

Sun et al. (2024, section 2) call a value massive if its magnitude is above 100 and at least around 1,000 times the
median magnitude of the hidden state; here that is the median over all tokens and neurons of the layer. Papers on
outliers of encoders define neurons, not values: Luo et al. (2021) by the mean vector of a layer, Puccetti et al.
(2022) by parameters of LayerNorms. Values beyond five standard deviations are therefore counted in both senses in
which the literature measures outliers: within the vector of one token, and within the values of one neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Activations
from probing.statistics.moments import ROWS
from probing.studies.geometry.extremes.kinds import Kinds
from probing.studies.geometry.extremes.names import (
    ABSOLUTE,
    ALL,
    DEFINITIONS,
    DEVIATIONS,
    MOST_TOKENS,
    RELATIVE,
    Definition,
)

Rows = list[dict[str, Any]]
Shards = Callable[[], Iterator[tuple[slice, Tensor]]]
# Kinds of fewer tokens say nothing of where a neuron is large.
LEAST_TOKENS = 10
# Most neurons that are listed for each layer, definition and kind of token.
MOST_NEURONS = 5
# Bits of a float32 number without its sign are those of a whole number of the same order, read in two halves.
_HALF = 16
# A neuron whose sd is below this share of its magnitude does not vary.
_DEAD = 1e-6


@dataclass(frozen=True)
class Large:
    """The large values of a layer.

    Args:
        layer: Number of the layer.
        median: Median magnitude of all values.
        largest: Largest magnitude of each neuron on each kind of token, shape (n_kinds, d_model).
        counts: For each definition, the number of large values of each neuron on each kind, likewise.
        tokens: For each definition, the number of tokens of each kind that have a large value, shape (n_kinds,).
    """

    layer: int
    median: float
    largest: NDArray[np.float64]
    counts: Mapping[Definition, NDArray[np.int64]]
    tokens: Mapping[Definition, NDArray[np.int64]]


def large_values(store: Activations, layer: int, kinds: Kinds) -> Large:
    """Find the large values of a layer in a few passes over its shards; memory is that of one shard."""
    d_model, n_kinds = store.plan.d_model, len(kinds.names)

    def shards() -> Iterator[tuple[slice, Tensor]]:
        for shard in store.plan.shards:
            rows, states = store.shard_tokens(shard), store.read(layer, shard.index).float()
            for first in range(0, len(states), ROWS):
                some = states[first : first + ROWS]
                yield slice(rows.start + first, rows.start + first + len(some)), some

    median, (mean, sd) = median_magnitude(shards), _moments(shards, d_model)
    largest = np.zeros((n_kinds, d_model))
    counts = {name: np.zeros((n_kinds, d_model), dtype=np.int64) for name in DEFINITIONS}
    tokens = {name: np.zeros(n_kinds, dtype=np.int64) for name in DEFINITIONS}
    for rows, states in shards():
        values, of = states.double(), kinds.of_tokens[rows]
        members = torch.nn.functional.one_hot(torch.from_numpy(of), n_kinds).double().T
        for kind in np.unique(of).tolist():
            here = values[torch.from_numpy(of == kind)].abs().amax(0).numpy()
            largest[kind] = np.maximum(largest[kind], here)
        for name, is_large in _large(values, median, mean, sd).items():
            counts[name] += (members @ is_large.double()).numpy().astype(np.int64)
            tokens[name] += (members @ is_large.any(1).double()).numpy().astype(np.int64)
    return Large(layer, median, largest, counts, tokens)


def _large(values: Tensor, median: float, mean: Tensor, sd: Tensor) -> dict[Definition, Tensor]:
    """Return whether each value is large by each definition, shape (n, d_model)."""
    magnitude = values.abs()
    of_token = (values - values.mean(1, keepdim=True)).abs()
    return {
        "massive": (magnitude > ABSOLUTE) & (magnitude >= RELATIVE * median),
        "token_sd": of_token > DEVIATIONS * values.std(1, correction=0, keepdim=True),
        "neuron_sd": (values - mean).abs() > DEVIATIONS * sd,
    }


def median_magnitude(shards: Shards) -> float:
    """Return the exact median of the magnitudes of float32 numbers, in two passes and with 2^16 counters in memory.

    Args:
        shards: Gives the numbers in parts, the same ones each time.
    """

    def halves() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        for _, states in shards():
            bits = states.abs().numpy().view(np.uint32).ravel()
            yield bits >> _HALF, bits & (2**_HALF - 1)

    high = np.zeros(2**_HALF, dtype=np.int64)
    for upper, _ in halves():
        high += np.bincount(upper, minlength=len(high))
    n, ends = int(high.sum()), high.cumsum()
    middle = (n - 1) // 2, n // 2
    bins = [int(np.searchsorted(ends, rank, side="right")) for rank in middle]
    low = {chosen: np.zeros(2**_HALF, dtype=np.int64) for chosen in bins}
    for upper, lower in halves():
        for chosen, counters in low.items():
            counters += np.bincount(lower[upper == chosen], minlength=len(counters))
    found = [
        chosen << _HALF | int(np.searchsorted(low[chosen].cumsum(), rank - (ends - high)[chosen], side="right"))
        for rank, chosen in zip(middle, bins, strict=True)
    ]
    return float(np.array(found, dtype=np.uint32).view(np.float32).astype(np.float64).mean())


def _moments(shards: Shards, d_model: int) -> tuple[Tensor, Tensor]:
    """Return the mean and the sd of each neuron over tokens; that of a neuron that does not vary is infinite."""
    n, sums, squares = 0, torch.zeros(d_model, dtype=torch.float64), torch.zeros(d_model, dtype=torch.float64)
    for _, states in shards():
        n, sums = n + len(states), sums + states.sum(0, dtype=torch.float64)
    mean = sums / n
    for _, states in shards():
        squares += (states.double() - mean).square().sum(0)
    sd = (squares / n).sqrt()
    return mean, torch.where(sd > _DEAD * mean.abs(), sd, torch.inf)


def massive_rows(found: Large, kinds: Kinds) -> Rows:
    """Return the rows of `massive.csv` of a layer.

    For each definition there is a row for all tokens and for each kind that has a large value, without a neuron, and a
    row for each of the first neurons on that kind, by their share of its tokens and then by magnitude.
    """
    return [
        {"layer": found.layer, "definition": name, **row, "median": found.median}
        for name in DEFINITIONS
        for row in _rows_of(found, name, kinds)
    ]


def _rows_of(found: Large, name: Definition, kinds: Kinds) -> Iterator[dict[str, Any]]:
    counts, tokens, n_of = found.counts[name], found.tokens[name], kinds.counts
    yield _row(ALL, int(tokens.sum()), int(n_of.sum())) | _over_neurons(counts, found.largest, n_of)
    for kind in np.flatnonzero(tokens).tolist():
        here, n, token = slice(kind, kind + 1), int(n_of[kind]), kinds.names[kind]
        yield _row(token, int(tokens[kind]), n) | _over_neurons(counts[here], found.largest[here], n_of[here])
        for neuron in np.lexsort((-found.largest[kind], -counts[kind]))[:MOST_NEURONS].tolist():
            if count := int(counts[kind, neuron]):
                largest = float(found.largest[kind, neuron])
                yield _row(token, count, n) | {"neuron": neuron, "largest_magnitude": largest}


def _row(token: str, count: int, n: int) -> dict[str, Any]:
    return {"token": token, "count": count, "n_tokens": n, "share": count / n}


def _over_neurons(
    counts: NDArray[np.int64], largest: NDArray[np.float64], n_of: NDArray[np.int64]
) -> dict[str, int | float]:
    """Return the columns of rows over all neurons of some kinds of tokens, each argument with these kinds in rows."""
    n_values = int(n_of.sum()) * counts.shape[1]
    return {
        "n_neurons": int(counts.any(0).sum()), "largest_magnitude": float(largest.max()),
        "value_share": int(counts.sum()) / n_values,
    }  # fmt: skip


def course_rows(layers: Sequence[Large], kinds: Kinds) -> Rows:
    """Return the rows of `massive_course.csv`: where each neuron is large on most tokens of a kind, and until where.

    Args:
        layers: The layers that were measured, ascending.
        kinds: The kinds of tokens.
    """
    there: dict[tuple[Definition, int, int], list[int]] = {}
    for i, found in enumerate(layers):
        for name in DEFINITIONS:
            shares = found.counts[name] / kinds.counts[:, None]
            often = (kinds.counts >= LEAST_TOKENS)[:, None]
            for kind, neuron in np.argwhere((shares >= MOST_TOKENS) & often).tolist():
                there.setdefault((name, kind, neuron), []).append(i)
    rows = []
    for (name, kind, neuron), at in there.items():
        first, last = _longest(at)
        reach = [float(found.largest[kind, neuron]) for found in layers]
        top = int(np.argmax(reach))
        median = layers[top].median
        rows.append({
            "definition": name, "token": kinds.names[kind], "neuron": neuron, "first_layer": layers[first].layer,
            "last_layer": layers[last].layer, "n_layers": len(at), "largest_magnitude": reach[top],
            "largest_layer": layers[top].layer, "times_median": reach[top] / median if median else np.nan,
            **({"gone_layer": layers[last + 1].layer} if last + 1 < len(layers) else {}),
        })  # fmt: skip
    order = list(DEFINITIONS)
    return sorted(rows, key=lambda row: (order.index(row["definition"]), -row["n_layers"], -row["largest_magnitude"]))


def _longest(at: Sequence[int]) -> tuple[int, int]:
    """Return the ends of the longest run of numbers without a gap among ascending ones; the first of equal ones."""
    runs: list[list[int]] = []
    for i in at:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    longest = max(runs, key=len)
    return longest[0], longest[-1]
