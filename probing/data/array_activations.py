"""Activations that come from arrays: rows behave like a store, and columns may have units of their own."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.store import Plan, Shard, divide, shard_tokens
from probing.cache.tokens import Tokens
from probing.errors import UserError
from probing.statistics.moments import is_constant, limits_of

# Range of a layer's largest magnitude, far beyond that of any model. Squares are summed over rows in float32: they
# overflow from about 1e18 on, and vanish below 1e-22.
_SMALLEST, _LARGEST = 1e-12, 1e12
# A column is resolved whose range is more than as many times the rounding of its values, about 200 float32 numbers:
# of 6 sd, rounding then adds less than 0.01% to its variance.
RESOLVED = 100
# Number of columns that a warning names.
_NAMED = 8


class ArrayActivations:
    """Behaves like a store whose sentences are groups of rows and whose hidden states are rows of arrays.

    Rows are read when they are needed, so that memory maps larger than memory work.

    Args:
        layers: Array of each layer, shape (n_rows, d_model); a NumPy array, a memory map, rows on disk or a tensor.
        order: Row of each token, sorted by group, shape (n_rows,).
        lengths: Number of rows of each group, shape (n_groups,).
    """

    are_columns = True

    def __init__(self, layers: Mapping[int, Any], order: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.layers, self.order = dict(layers), order
        words = np.zeros(len(order), dtype=np.int16)
        self.tokens = Tokens(lengths.astype(np.int32), order.astype(np.int32), words)
        width = next(iter(layers.values())).shape[1]
        shards = divide(self.tokens.lengths, shard_tokens(len(layers) - 1, width, 4))
        self.plan = Plan({}, max(layers), width, "float32", 0, shards)
        self._is_sorted = bool((np.diff(order) == 1).all())
        # Columns of each layer that float32 hardly resolves, once values are checked.
        self.unresolved: dict[int, list[int]] = {}

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.tokens.of_sentences(shard.first_sentence, shard.n_sentences)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the activations of a shard, shape (n, d_model), float32."""
        return self.in_float32(self.as_given(layer, shard))

    @staticmethod
    def in_float32(picked: Any) -> Tensor:
        """Return rows of an array as a tensor of float32."""
        if not isinstance(picked, Tensor):
            # A read-only array is copied here, because tensors cannot be read-only, nor can they have all dtypes or
            # another order of bytes. What overflows is refused.
            with np.errstate(over="ignore"):
                picked = torch.from_numpy(np.require(picked, dtype=np.float32, requirements=["C", "W"]))
        return picked.detach().to("cpu", torch.float32)

    def as_given(self, layer: int, shard: int) -> Any:
        """Return the rows of a shard as they are in the array, of its dtype."""
        rows, array = self.shard_tokens(self.plan.shards[shard]), self.layers[layer]
        return array[rows] if self._is_sorted else array[self._rows(rows, array)]

    def _rows(self, here: slice, array: Any) -> Any:
        return torch.from_numpy(self.order[here]).to(array.device) if isinstance(array, Tensor) else self.order[here]

    def of_layers(self, layers: Mapping[int, Any]) -> ArrayActivations:
        """Return the same rows with other layer numbers."""
        return ArrayActivations(layers, self.order, self.tokens.lengths.astype(np.int64))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the activations and of the groups of their rows."""
        digest = hashlib.sha256(self.tokens.lengths.tobytes() + self.tokens.input_ids.tobytes())
        for layer in sorted(self.layers):
            digest.update(f"layer {layer}".encode())
            for shard in self.plan.shards:
                digest.update(self.read(layer, shard.index).numpy().tobytes())
        return digest.hexdigest()


def check_values(store: ArrayActivations) -> None:
    """Refuse values that are not finite in float32, and layers whose squares are not; note what float32 rounds off.

    Raises:
        UserError: If there are any.
    """
    for layer in store.layers:
        named = f" layer {layer}" if len(store.layers) > 1 else ""
        limits = torch.full((2, store.plan.d_model), -torch.inf, dtype=torch.float64)  # -minimum and maximum
        for shard in store.plan.shards:
            given = store.as_given(layer, shard.index)
            read = store.in_float32(given)
            found = limits_of(read)
            if not torch.isfinite(found).all():
                bad = (~torch.isfinite(read).all(1)).nonzero()
                row = store.order[store.shard_tokens(shard).start + int(bad[0])]
                of = f" of{named}" if named else ""
                raise UserError(f"`X`: row {row}{of} has a value that is infinite or not a number in float32.")
            limits = torch.maximum(limits, _limits(given, found))
        varies, largest = limits.sum(0) > 0, float(limits.abs().max())
        store.unresolved[layer] = (varies & is_constant(limits, RESOLVED)).nonzero().flatten().tolist()
        if largest and not _SMALLEST <= largest <= _LARGEST:
            within = f" in{named}" if named else ""
            raise UserError(
                f"`X`: the largest magnitude{within} is {largest:.3g}, and expected are {_SMALLEST:g} to {_LARGEST:g}, "
                "whose squares can be summed in float32; divide all values by a constant."
            )


def _limits(given: Any, in_float32: Tensor) -> Tensor:
    """Return the limits of the columns as they are given, whose values float32 may not tell apart."""
    if isinstance(given, Tensor):
        wide = given.detach().cpu().double().numpy() if given.dtype == torch.float64 else None
    else:
        wide = None if np.can_cast(given.dtype, np.float32) else np.require(given, np.float64, ["C", "W"])
    return in_float32 if wide is None else limits_of(torch.from_numpy(wide))


def warn_of_rounding(store: ArrayActivations) -> None:
    """Warn of columns whose values float32 hardly tells apart."""
    for layer, columns in store.unresolved.items():
        if not columns:
            continue
        where = f"`X[{layer!r}]`" if len(store.layers) > 1 else "`X`"
        names = ", ".join(map(str, columns[:_NAMED]))
        more = f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
        one = len(columns) == 1
        warnings.warn(
            f"{where}: {'column' if one else 'columns'} {names}{more}, counted from 0, {'varies' if one else 'vary'} "
            f"so little for {'its' if one else 'their'} size that float32 hardly resolves it: a weight may be that of "
            "rounding, or 0. Subtract the mean of such a column before, in float64.",
            stacklevel=3,
        )
