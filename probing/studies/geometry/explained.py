"""The share of a neuron's variance explained by position, frequency, frequent tokens, punctuation and special tokens.

Luo, Kulmizev & Mao (2021) trace outliers to position, Puccetti et al. (2022) to frequency. Frequent tokens are often
punctuation, which often ends a sentence. All sources are therefore in one regression, which gives what each source
explains alone and what it adds to the other sources. The most frequent tokens are few, and a neuron may have a value
for each of them that is unrelated to its frequency. Each of these tokens therefore has a column of its own, so that
frequency adds only what also holds among the other tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens

SOURCES = ("position", "frequency", "token", "punctuation", "special")

# Number of positions with a column of their own; later positions share one.
POSITIONS = 128
# Number of tokens with a column of their own, the most frequent of the corpus.
COMMONEST = 30
# Directions of the regressors are collinear if their eigenvalue is below this share of the largest.
_REPEATED = 1e-10
# A residual sum of squares below this share of the neuron's sum of squares is rounding.
_ROUNDING = 1e-10

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Regressors:
    """The regressors of a neuron, for each token.

    Position has a column for each position. Frequency has a column for the logarithm of the token's count in the corpus
    and one for each octave of the count, so that its effect may have any shape, as that of position may. The
    `COMMONEST` tokens have a column each. Special tokens have a column each too; in the columns of frequency and of the
    most frequent tokens they have the mean of the other tokens, so that these columns do not distinguish them. Sources
    may overlap: [CLS] is always at position 0.

    Args:
        tokens: The token table.
        punctuation: Whether each token is punctuation, shape (n_tokens,), bool.
    """

    tokens: Tokens
    punctuation: NDArray[np.bool_]

    @cached_property
    def _log_counts(self) -> Array:
        ids, special = self.tokens.input_ids, self.tokens.special
        logs = np.log2(np.maximum(np.bincount(ids[~special], minlength=int(ids.max()) + 1)[ids], 1))
        return np.where(special, logs[~special].mean() if not special.all() else 0.0, logs)

    @cached_property
    def _special_ids(self) -> NDArray[np.int32]:
        return np.unique(self.tokens.input_ids[self.tokens.special & self.tokens.measured])

    @cached_property
    def _common_indices(self) -> NDArray[np.int64]:
        """Index of each token id among the most frequent tokens, -1 for other ids."""
        ids, special = self.tokens.input_ids, self.tokens.special
        counts = np.bincount(ids[~special], minlength=int(ids.max()) + 1)
        indices = np.full(len(counts), -1)
        commonest = np.argsort(-counts, kind="stable")[:COMMONEST]
        indices[commonest[counts[commonest] > 0]] = np.arange(int((counts[commonest] > 0).sum()))
        return indices

    @cached_property
    def _usual(self) -> Array:
        """Mean of the tokens that are not special in the columns of octaves and of the most frequent tokens."""
        plain, columns = ~self.tokens.special, self.columns
        octaves, common = self._log_counts[plain].astype(np.int64), self._common_indices[self.tokens.input_ids[plain]]
        n_octaves = columns["frequency"].stop - columns["frequency"].start - 1
        n_common = columns["token"].stop - columns["token"].start
        counts = (np.bincount(octaves, minlength=n_octaves), np.bincount(common[common >= 0], minlength=n_common))
        return np.concatenate(counts) / max(int(plain.sum()), 1)

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Columns of each source; column 0 is the intercept."""
        n_positions = min(POSITIONS, int(self.tokens.lengths.max()))
        n_common = int(self._common_indices.max()) + 1
        widths = (n_positions, int(self._log_counts.max()) + 2, n_common, 1, len(self._special_ids))
        ends = 1 + np.cumsum([0, *widths])
        return {name: slice(int(a), int(b)) for name, a, b in zip(SOURCES, ends[:-1], ends[1:], strict=True)}

    def of(self, rows: slice) -> Array:
        """Return the regressors of consecutive tokens, shape (n, n_columns), float64."""
        tokens, columns = self.tokens, self.columns
        n = rows.stop - rows.start
        x = np.zeros((n, columns["special"].stop))
        every = np.arange(n)
        x[:, 0] = 1
        own = columns["position"]
        positions = np.minimum(self._positions[rows], own.stop - own.start - 1)
        x[every, own.start + positions] = 1
        special = tokens.special[rows]
        frequency, log_counts = columns["frequency"].start, self._log_counts[rows]
        x[:, frequency] = log_counts
        x[every, frequency + 1 + log_counts.astype(np.int64)] = 1
        common = self._common_indices[tokens.input_ids[rows]]
        known = np.flatnonzero(common >= 0)
        x[known, columns["token"].start + common[known]] = 1
        x[special, frequency + 1 : columns["token"].stop] = self._usual
        x[:, columns["punctuation"].start] = self.punctuation[rows]
        special &= tokens.measured[rows]
        ids = tokens.input_ids[rows][special]
        x[np.flatnonzero(special), columns["special"].start + np.searchsorted(self._special_ids, ids)] = 1
        return x

    @cached_property
    def _positions(self) -> NDArray[np.int32]:
        return self.tokens.positions


def is_punctuation(texts: Sequence[str]) -> NDArray[np.bool_]:
    """Return which tokens consist of punctuation and symbols alone, ignoring the tokenizer's markers; shape (n,)."""

    def bare(text: str) -> str:
        for mark in ("Ġ", "▁", "</w>"):
            text = text.replace(mark, "")
        return text.removeprefix("##") or text  # `##` itself may be a token

    return np.array(
        [bool(bare(text)) and all(unicodedata.category(c)[0] in "PS" for c in bare(text)) for text in texts]
    )


class ExplainedAccumulator:
    """Accumulates regressors and neurons token by token and gives shares of variance, by least squares from the sums.

    Args:
        columns: Columns of the regressors by source; column 0 is the intercept, and columns after the last source are
            ignored.
        n_neurons: Number of neurons that are explained.
    """

    def __init__(self, columns: Mapping[str, slice], n_neurons: int) -> None:
        p = max(here.stop for here in columns.values())
        self.columns, self.n_tokens = columns, 0
        self.origin: Array | None = None
        self.xx, self.xv, self.vv = np.zeros((p, p)), np.zeros((p, n_neurons)), np.zeros(n_neurons)

    def update(self, regressors: Array, neurons: Array) -> None:
        """Add tokens, shapes (n, n_columns) and (n, n_neurons); n may be 0."""
        if not len(neurons):
            return
        if self.origin is None:
            self.origin = neurons.mean(0, dtype=np.float64)
        v = neurons.astype(np.float64) - self.origin
        self.n_tokens += len(v)
        x = regressors[:, : len(self.xx)]
        self.xx += x.T @ x
        self.xv += x.T @ v
        self.vv += np.einsum("nk,nk->k", v, v)

    def result(self) -> dict[str, tuple[Array, Array]]:
        """Return the share of each neuron's variance explained by each source, and by `all` sources together.

        The first array is R^2 of the source alone. The second is the partial R^2, (SSE without - SSE) / SSE without:
        the share that this source explains of what the other sources leave. For `all` both are the joint R^2. Each is
        biased upwards by about the number of columns over the number of tokens. NaN for a neuron that does not vary.

        Raises:
            ValueError: If no tokens were added.
        """
        if not self.n_tokens:
            raise ValueError("no tokens to explain neurons of")
        every = np.arange(len(self.xx))
        whole, none = self._sse(every), self._sse(every[:1])
        none = np.where(none > 0, none, np.nan)
        found = {}
        for name, here in self.columns.items():
            own = np.arange(here.start, here.stop)
            without = self._sse(np.setdiff1d(every, own))
            alone = 1 - self._sse(np.concatenate([every[:1], own])) / none
            found[name] = alone, np.where(without > 0, (without - whole) / np.where(without > 0, without, 1), 0)
        joint = 1 - whole / none
        return {**found, "all": (joint, joint)}

    def _sse(self, columns: NDArray[np.int64]) -> Array:
        """Return each neuron's residual sum of squares after a least-squares fit on some columns."""
        xx, xv = self.xx[np.ix_(columns, columns)], self.xv[columns]
        scale = np.where(xx.diagonal() > 0, xx.diagonal(), 1) ** -0.5
        values, vectors = np.linalg.eigh(scale[:, None] * xx * scale)
        kept = values > _REPEATED * values[-1]
        along = (vectors[:, kept].T * scale) @ xv / np.sqrt(values[kept])[:, None]
        left = self.vv - np.square(along).sum(0)
        return np.where(left > _ROUNDING * self.vv, left, 0)


def explained_rows(
    layer: int,
    neurons: Sequence[int],
    kinds: Sequence[str],
    special_tokens: str,
    found: Mapping[str, tuple[Array, Array]],
    n_tokens: int,
) -> list[dict[str, Any]]:
    """Return a row for each neuron and source, as in `explained.csv`.

    Args:
        layer: Layer number.
        neurons: Neurons, in the order of the shares.
        kinds: Kind of each neuron, `outlier` or `random`.
        special_tokens: Whether special tokens were used, `exclude` or `include`.
        found: Result of `ExplainedAccumulator.result`.
        n_tokens: Number of tokens used.
    """
    return [
        {
            "layer": layer, "neuron": neuron, "kind": kind, "special_tokens": special_tokens, "source": source,
            "alone": float(alone[i]), "partial": float(partial[i]), "n_tokens": n_tokens,
        }
        for i, (neuron, kind) in enumerate(zip(neurons, kinds, strict=True))
        for source, (alone, partial) in found.items()
        if np.isfinite(alone[i])
    ]  # fmt: skip
