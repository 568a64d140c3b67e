"""Columns that tables of several commands have."""

from __future__ import annotations

from probing.results.schema import Column, Type, layer_number, measured, number, text, whole
from probing.statistics.sample_size import SIZE_COLUMNS

INTERVAL = "95% interval"


def layer(meaning: str = "Number of the layer; 0 is the embedding output, k the output of block k.") -> Column:
    """Return the column of the layer."""
    return Column("layer", layer_number, meaning)


def block(meaning: str = "Number of the block, from 1.") -> Column:
    """Return the column of the layer where it is the number of a block."""
    return Column("layer", layer_number, meaning)


HEAD = whole("head", "Number of the attention head within its block, from 1.")


def ends(of: str, meaning: str, kind: Type = float) -> tuple[Column, Column]:
    """Return the columns of both ends of an interval that does not belong to the column before it."""
    return tuple(Column(f"{of}_{end}".lstrip("_"), kind, meaning) for end in ("low", "high"))  # type: ignore[return-value]


def value(meaning: str) -> Column:
    """Return the column `value` with its interval, `low` and `high`."""
    return Column("value", float, f"{meaning}; low, high: its {INTERVAL}.", form=".3f", interval="")


def effect(meaning: str) -> Column:
    """Return the column `effect` with its interval, `low` and `high`."""
    return Column("effect", float, f"{meaning}; low, high: its {INTERVAL}.", form="+.3f", interval="")


_SIZES = {
    "n_fitted_sentences": "Number of sentences on which the transform was fitted.",
    "n_fitted_vectors": "Number of vectors on which the transform was fitted.",
    "n_fitted_dimensions": "Number of dimensions that the transform estimates.",
}
# The size of the sample that a transform was fitted on; only of transforms that estimate a covariance.
SIZES = (
    *(whole(name, meaning) for name, meaning in _SIZES.items()),
    number("vectors_per_dimension", "Vectors per estimated dimension; whitening is unreliable below ten.", form=".1f"),
)
assert tuple(column.name for column in SIZES) == tuple(SIZE_COLUMNS)

N_TRAIN_TOKENS = whole("n_train_tokens", "Number of training tokens, or other examples.")
N_TEST_TOKENS = whole("n_test_tokens", "Number of test tokens, or other examples.")
__all__ = [
    "HEAD", "INTERVAL", "N_TEST_TOKENS", "N_TRAIN_TOKENS", "SIZES", "Column", "block", "effect", "ends", "layer",
    "measured", "number", "text", "value", "whole",
]  # fmt: skip
