"""Labelled activations from arrays: any rows with any labels, such as recordings of another tool."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations.contents import LazyRows
from probing.activations.store import StorePlan, divide, shard_tokens
from probing.data.examples import Examples, Sides, check_covariate, numbered, with_covariate
from probing.data.labelling import check_size, check_varies, classify, values_of
from probing.errors import UserError, as_clause
from probing.results import ALL_LAYERS, NamedLayer
from probing.statistics.moments import is_constant, limits_of
from probing.text import Split, sides_of_clusters
from probing.text.tasks import Labels, LabelWording, class_values, has_label, numbers_of
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# Activations that come from arrays: rows behave like a store, and columns may have units of their own.
# --------------------------------------------------------------------------------------------------------------------

# Range of a layer's largest magnitude, far beyond that of any model. Squares are summed over rows in float32: they
# overflow from about 1e18 on, and vanish below 1e-22.
_SMALLEST, _LARGEST = 1e-12, 1e12
# A column is resolved whose range is more than as many times the rounding of its values, about 200 float32 numbers:
# of 6 sd, rounding then adds less than 0.01% to its variance.
RESOLVED = 100
# Number of columns that a warning names.
_NAMED = 8


class ArrayActivations:
    """Store whose sentences are groups of rows and whose hidden states are rows of arrays.

    Rows are read when needed, so that memory maps larger than memory work.

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
        self.plan = StorePlan({}, max(layers), width, "float32", 0, shards)
        self._is_sorted = bool((np.diff(order) == 1).all())
        # Columns of each layer that float32 hardly resolves, once values are checked.
        self.unresolved: dict[int, list[int]] = {}

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the activations of a shard, shape (n, d_model), float32."""
        return self.in_float32(self.as_passed(layer, shard))

    @staticmethod
    def in_float32(picked: Any) -> Tensor:
        """Return rows of an array as a tensor of float32."""
        if not isinstance(picked, Tensor):
            # A read-only array is copied here, because tensors cannot be read-only, nor can they have all dtypes or
            # another order of bytes. What overflows is refused.
            with np.errstate(over="ignore"):
                picked = torch.from_numpy(np.require(picked, dtype=np.float32, requirements=["C", "W"]))
        return picked.detach().to("cpu", torch.float32)

    def as_passed(self, layer: int, shard: int) -> Any:
        """Return the rows of a shard in the array's dtype."""
        rows, array = self.plan.shards[shard].rows(self.tokens), self.layers[layer]
        return array[rows] if self._is_sorted else array[self._rows(rows, array)]

    def _rows(self, tokens: slice, array: Any) -> Any:
        return (
            torch.from_numpy(self.order[tokens]).to(array.device) if isinstance(array, Tensor) else self.order[tokens]
        )

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
    """Refuse values not finite and magnitudes whose squares float32 cannot sum; record columns it hardly resolves."""
    for layer in store.layers:
        named = f" layer {layer}" if len(store.layers) > 1 else ""
        limits = torch.full((2, store.plan.d_model), -torch.inf, dtype=torch.float64)  # -minimum and maximum
        for shard in store.plan.shards:
            original = store.as_passed(layer, shard.index)
            read = store.in_float32(original)
            read_limits = limits_of(read)
            if not torch.isfinite(read_limits).all():
                bad = (~torch.isfinite(read).all(1)).nonzero()
                row = store.order[shard.rows(store.tokens).start + int(bad[0])]
                of = f" of{named}" if named else ""
                raise UserError(f"`X`: row {row}{of} has a value that is infinite or not a number in float32.")
            limits = torch.maximum(limits, _limits(original, read_limits))
        varies, largest = limits.sum(0) > 0, float(limits.abs().max())
        store.unresolved[layer] = (varies & is_constant(limits, RESOLVED)).nonzero().flatten().tolist()
        if largest and not _SMALLEST <= largest <= _LARGEST:
            within = f" in{named}" if named else ""
            raise UserError(
                f"`X`: the largest magnitude{within} is {largest:.3g}, and expected are {_SMALLEST:g} to {_LARGEST:g}, "
                "whose squares can be summed in float32; divide all values by a constant."
            )


def _limits(original: Any, in_float32: Tensor) -> Tensor:
    """Return the limits of the columns in their dtype, whose values may be equal in float32."""
    if isinstance(original, Tensor):
        wide = original.detach().cpu().double().numpy() if original.dtype == torch.float64 else None
    else:
        wide = None if np.can_cast(original.dtype, np.float32) else np.require(original, np.float64, ["C", "W"])
    return in_float32 if wide is None else limits_of(torch.from_numpy(wide))


def warn_of_rounding(store: ArrayActivations) -> None:
    """Warn of columns whose values float32 hardly resolves."""
    for layer, columns in store.unresolved.items():
        if not columns:
            continue
        where = f"`X[{layer!r}]`" if len(store.layers) > 1 else "`X`"
        names = ", ".join(map(str, columns[:_NAMED]))
        more = f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
        is_single = len(columns) == 1
        warnings.warn(
            f"{where}: {'column' if is_single else 'columns'} {names}{more}, counted from 0, "
            f"{'varies' if is_single else 'vary'} "
            f"so little for {'its' if is_single else 'their'} size that float32 hardly resolves it: a weight may be "
            "that of rounding, or 0. Subtract the mean of such a column before, in float64.",
            stacklevel=3,
        )


# What counts as no label, for messages.
_MISSING = "None, NaN, blank text, `_` or a whole number below 0"


def activations_of_arrays(activations: Any) -> ArrayActivations:
    """Return the rows, each a separate group, of an array, (n_rows, d_model), or arrays by layer number or name."""
    layers = _layers(activations)
    n_rows = len(next(iter(layers.values())))
    store = ArrayActivations(layers, np.arange(n_rows), np.ones(n_rows, dtype=np.int64))
    check_values(store)
    return store


def sides_of_arrays(
    activations: Any,
    labels: Any,
    groups: Any = None,
    split: Any = None,
    ordinal: bool = False,
    seed: int = 0,
    numbers: bool | None = None,
    say: Callable[[str], None] = lambda message: None,
    control_for: Any = None,
) -> tuple[Sides, list[int]]:
    """Return labelled rows of arrays, divided into train, validation and test, and the layer numbers.

    Args:
        activations: Array of shape (n_rows, d_model), or an array for each layer number or name.
        labels: Label of each row, a whole number or a string; every label of a training row is a class. Or the number
            to predict for each row. Rows without a label, as defined in `probing.text.columns`, are left out.
        groups: Group of each row, such as its sentence or document. Rows of a group are on the same side, and intervals
            and bootstraps are over groups. Every row is a separate group if None.
        split: `train`, `validation` or `test` for each row; if None, a hash of its group and `seed` decides: 80, 10 and
            10 per cent. Of 60 groups or more, at least 20 are tested on, without which there is no interval.
        ordinal: Whether labels are numbers, so that distances between labels are meaningful.
        numbers: Whether labels are numbers to predict; if None, they are where some have a fraction.
        say: Function that takes a message on the number of rows without a label.
        control_for: The covariate, a value of each row, text or whole numbers; rows without a value are not compared.

    Raises:
        UserError: If shapes differ, activations are not finite, labels are no labels, a side has no examples, or the
            covariate determines the label.
    """
    layers = _layers(activations)
    n_rows = len(next(iter(layers.values())))
    row_labels = _labels(labels, n_rows, numbers)
    is_numbers = row_labels.dtype.kind == "f"
    if ordinal and row_labels.dtype.kind == "O":
        raise UserError("`ordinal=True`: the labels are strings, and only numbers have distances.")
    if ordinal and is_numbers:
        raise UserError(
            "`ordinal=True`: the labels are numbers to predict as such, and not classes; leave it out, or give whole "
            "numbers without `numbers=True`."
        )
    names, group_of_row = groups_of_rows(groups, n_rows)
    order = np.argsort(group_of_row, kind="stable")
    store = ArrayActivations(layers, order, np.bincount(group_of_row, minlength=len(names)))
    check_values(store)
    warn_of_rounding(store)
    side_of_row = _split(split, names, group_of_row, seed)[order]
    row_labels = row_labels[order]
    classes = np.unique(row_labels[(side_of_row == "train") & has_label(row_labels)])
    if n_missing := int((~has_label(row_labels)).sum()):
        say(f"y: {n_missing} of {n_rows} rows have no label ({_MISSING}) and are left out")
    if is_numbers:
        check_size(row_labels, "`y`")
        check_varies(classes, "`y`", "rows")
    elif len(classes) < 2:
        label_clause = "the same label" if len(classes) else "no label"
        without = f"; {n_missing} rows have none ({_MISSING})" if n_missing else ""
        raise UserError(f"`y`: all training rows have {label_clause}, and a probe tells at least two apart{without}.")
    unit = "row" if groups is None else "group"
    sides = {side: _examples(store, row_labels, side_of_row == side, classes, unit) for side in _SIDES}
    for side in ("train", "test"):
        if not sides[side].n_tokens:
            raise UserError(
                f"no row of a class is on the {side} side; give more rows or groups, or `split` with "
                "train, validation or test for each row."
            )
    classes = classes[:0] if is_numbers else classes
    sides_of_rows = Sides(sides["train"], sides["validation"], sides["test"], classes, ordinal)
    if control_for is not None:
        values = numbered(_classes(_value_per_row(control_for, "control_for", n_rows), _COVARIATE))[order]
        check_covariate(values, sides_of_rows.train.labels, "control_for", "row")
        sides_of_rows = with_covariate(sides_of_rows, [values])
    return sides_of_rows, list(layers)


_SIDES: tuple[Split, ...] = ("train", "validation", "test")


def _examples(
    store: ArrayActivations, labels: Labels, on_side: NDArray[np.bool_], classes: Labels, unit: str
) -> Examples:
    known = classify(labels, on_side, classes)
    values = values_of(labels) if labels.dtype.kind == "f" else None
    return Examples(
        store, known.labels.astype(np.int32), len(known.dropped), unit=unit, values=values,
        n_unlabelled=known.n_unlabelled,
    )  # fmt: skip


def _layers(activations: Any) -> dict[int, Any]:
    by_key = activations if isinstance(activations, Mapping) else {0: activations}
    if not by_key:
        raise UserError("`X` has no layers: expected an array, or a dict of layer number or name and array.")
    arrays: dict[int, Any] = {}
    for layer, (key, array) in zip(_numbered_layers([*by_key]), by_key.items(), strict=True):
        arrays[layer] = _without_mask(array, f"X[{key!r}]" if isinstance(activations, Mapping) else "X")
    arrays = dict(sorted(arrays.items()))
    first = next(iter(arrays.values()))
    for layer, array in arrays.items():
        key = repr(layer.name) if isinstance(layer, NamedLayer) else layer
        where = f"`X[{key}]`" if isinstance(activations, Mapping) else "`X`"
        if array.ndim != 2:
            raise UserError(f"{where} has shape {tuple(array.shape)}: expected (n_rows, d_model).")
        if not (array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind in "fiu"):
            raise UserError(f"{where} has the dtype {array.dtype}: expected real numbers.")
        if tuple(array.shape) != tuple(first.shape):
            raise UserError(
                f"{where} has shape {tuple(array.shape)} and another layer has {tuple(first.shape)}: expected the same "
                "rows and width in all layers; probe layers of other widths by themselves."
            )
    if 0 in first.shape:
        raise UserError(f"`X` has shape {tuple(first.shape)}: there are no activations.")
    return arrays


def _numbered_layers(keys: Sequence[Any]) -> list[int]:
    """Return layer numbers: the keys themselves, or for names their indices, which carry the names."""
    are_names = isinstance(keys[0], str)
    for key in keys:
        if isinstance(key, str) != are_names:
            raise UserError(f"`X`: {keys[0]!r} and {key!r} are a number and a name; give all layers one or the other.")
        if not are_names and (isinstance(key, bool) or not isinstance(key, int | np.integer) or key < 0):
            raise UserError(f"`X`: {key!r} is no layer number; expected whole numbers from 0, or names, as keys.")
        if are_names and (key != " ".join(key.split()) or not key or key == ALL_LAYERS or _is_number(key)):
            requirement = f"text in one line that is no number and not `{ALL_LAYERS}`"
            raise UserError(f"`X`: {key!r} is no name of a layer; expected {requirement}.")
    return [NamedLayer(i, key) for i, key in enumerate(keys)] if are_names else [int(key) for key in keys]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _without_mask(values: Any, name: str) -> Any:
    """Return values as a dense tensor, as an array of NumPy, or as rows on disk; masked values are refused."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise UserError(f"`{name}` is a sparse tensor: give `{name}.to_dense()`.")
        return values
    if isinstance(values, LazyRows):
        return values
    try:
        array = np.ma.asarray(values) if isinstance(values, list | tuple) else values
        plain = np.asarray(values)
    except ValueError as error:  # rows of unlike lengths
        raise UserError(f"`{name}` is no array ({as_clause(error)}); give as many values in each row.") from None
    if np.ma.is_masked(array):
        raise UserError(
            f"`{name}` has masked values, where one is expected in each place; leave the rows out, or fill them with "
            f"`{name}.filled(...)`."
        )
    return plain


def _plain(values: Any, name: str, n_rows: int) -> NDArray[Any]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (n_rows,):
        raise _other_shape(name, array.shape, n_rows)
    return array


def _other_shape(name: str, shape: tuple[int, ...], n_rows: int) -> UserError:
    return UserError(f"`{name}` has shape {shape}, and `X` has {n_rows} rows: expected one for each row.")


def _labels(labels: Any, n_rows: int, numbers: bool | None) -> Labels:
    """Return labels as int64 or strings as objects, or float64 to predict; -1, "" or NaN where missing."""
    labels = _value_per_row(labels, "y", n_rows)
    if numbers or (numbers is None and _has_fraction(np.ma.compressed(labels))):
        known_numbers, is_known = numbers_of(labels, _Y)
        return np.where(is_known, known_numbers, np.nan)
    return _classes(labels, _Y)


_Y = LabelWording("`y` has", "give", "row", "or leave out `numbers=False` to have numbers predicted")
_COVARIATE = LabelWording("`control_for` has", "give", "row", "such as the numbers of intervals")


def _value_per_row(values: Any, name: str, n_rows: int) -> NDArray[Any]:
    """Return values as an array, one for each row, with a mask if they have one."""
    if isinstance(values, list | tuple):  # NumPy would make text of a list of text and NaN
        values = np.fromiter(values, dtype=object, count=len(values))
    if not isinstance(values, np.ma.MaskedArray):
        return _plain(values, name, n_rows)
    if values.shape != (n_rows,):
        raise _other_shape(name, values.shape, n_rows)
    return values


def _classes(values: NDArray[Any], wording: LabelWording) -> Labels:
    """Return values as int64, or as an object array of strings; -1 or an empty string where missing."""
    classes, is_known = class_values(values, wording)
    return classes if classes.dtype.kind == "O" else np.where(is_known, classes.astype(np.int64), -1)


def _has_fraction(values: NDArray[Any]) -> bool:
    if values.dtype.kind == "O":
        values = np.array([value for value in values.tolist() if isinstance(value, float | np.floating)], np.float64)
    return values.dtype.kind == "f" and bool((np.isfinite(values) & (values != np.round(values))).any())


def groups_of_rows(groups: Any, n_rows: int) -> tuple[Sequence[str], NDArray[np.int64]]:
    """Return the names of the groups and the group of each row; without groups, each row is a numbered group."""
    if groups is None:
        return [str(row) for row in range(n_rows)], np.arange(n_rows)
    array = _plain(_without_mask(groups, "groups"), "groups", n_rows)
    names, of_row = np.unique(array.astype(str) if array.dtype.kind == "O" else array, return_inverse=True)
    return [str(name) for name in names], of_row


def _split(split: Any, names: Sequence[str], group_of_row: NDArray[np.int64], seed: int) -> NDArray[Any]:
    """Return the side of each row."""
    if split is None:
        return np.array(sides_of_clusters(names, seed))[group_of_row]
    sides = _plain(_without_mask(split, "split"), "split", len(group_of_row)).astype(str)
    unknown = np.flatnonzero(~np.isin(sides, _SIDES))
    if len(unknown):
        raise UserError(f"`split[{unknown[0]}]` is {str(sides[unknown[0]])!r}: expected train, validation or test.")
    _, first = np.unique(group_of_row, return_index=True)
    apart = np.flatnonzero(sides != sides[first][group_of_row])
    if len(apart):
        name = names[group_of_row[apart[0]]]
        raise UserError(f"`split`: the group {name} is on several sides; put all rows of a group on one side.")
    return sides
