"""Rows of tables of heads: means and accuracies with confidence intervals over the sentences of a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.heads.measures import CLASSES, SWEEP, classify
from probing.results import ALL_LAYERS
from probing.statistics import (
    ENDS,
    MIN_SENTENCES,
    accuracy_interval,
    difference_interval,
    difference_p_value,
    mean_interval,
)
from probing.statistics.chance import holm, percentiles, sentence_counts
from probing.text.tokens import Tokens

Row = dict[str, Any]
Rows = list[Row]


def cells(name: str, value: float, low: float, high: float) -> Row:
    """Return an estimate and its interval as cells of a row: NAME, NAME_low, NAME_high; of `value`, low and high."""
    prefix = "" if name == "value" else f"{name}_"
    return {name: value, f"{prefix}low": low, f"{prefix}high": high}


def mean_cells(sums: NDArray[np.float64], n: NDArray[np.int64]) -> Row:
    """Return the cells `value, low, high, n` of a mean, from the sum and the denominator n of each sentence."""
    total = int(n.sum())
    return {**cells("value", float(sums.sum() / total) if total else float("nan"), *mean_interval(sums, n)), "n": total}


def accuracy_cells(name: str, correct: NDArray[np.int64], n: NDArray[np.int64]) -> Row:
    """Return an accuracy and its confidence interval as cells of a row, from counts by sentence."""
    total = int(n.sum())
    return cells(name, float(correct.sum() / total) if total else float("nan"), *accuracy_interval(correct, n))


def difference_cells(name: str, difference: NDArray[np.int64], n: NDArray[np.int64]) -> Row:
    """Return a difference of two accuracies, paired by sentence, as cells of a row, from differences of counts."""
    interval = difference_interval(difference, n)
    return {**cells(name, float(difference.sum() / n.sum()), *interval), "p_value": difference_p_value(difference, n)}


def corrected(rows: Iterable[Row]) -> Rows:
    """Return rows whose p-values are corrected for their number (Holm)."""
    rows = [dict(row) for row in rows]
    tested = [row for row in rows if "p_value" in row]
    for row, p_value in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_value"] = float(p_value)
    return rows


# Columns of a matrix whose draws are in memory at a time.
_COLUMNS = 4096


@dataclass(frozen=True)
class Means:
    """Ratios of sums over n sentences, with the ends of their 95% confidence intervals.

    Ratios are NaN if nothing is counted, intervals if fewer than `MIN_SENTENCES` sentences count.
    """

    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: int

    def row(self, *index: int, name: str = "value") -> Row:
        """Return one ratio as cells of a row, with the number of sentences `n`; see `cells`."""
        value, low, high = (float(values[index]) for values in (self.values, self.low, self.high))
        return {**cells(name, value, low, high), "n": self.n}


class SentenceDraws:
    """The sentences of a corpus, drawn with replacement: every mean of a survey has the same draws."""

    def __init__(self, n_sentences: int, seed: int) -> None:
        self.times = sentence_counts(n_sentences, seed).astype(np.float64)

    def means(self, sums: NDArray[np.float64], counts: NDArray[Any]) -> Means:
        """Return sums, shape (n_sentences, ...), over all sentences divided by counts over all sentences.

        The counts, such as queries, have shape (n_sentences,), or (n_sentences, k) if they differ along the first of
        the other axes of the sums.
        """
        shape, flat = sums.shape[1:], sums.reshape(len(sums), -1)
        by_column = counts.reshape(len(counts), -1).astype(np.float64)
        n = int((by_column > 0).any(1).sum())
        index = np.arange(flat.shape[1]) * by_column.shape[1] // max(flat.shape[1], 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = flat.sum(0) / by_column.sum(0)[index]
            drawn_counts = self.times @ by_column
            ends = np.full((2, flat.shape[1]), np.nan)
            for first in range(0, flat.shape[1] if n >= MIN_SENTENCES else 0, _COLUMNS):
                columns = slice(first, first + _COLUMNS)
                ends[:, columns] = _percentiles(self.times @ flat[:, columns] / drawn_counts[:, index[columns]])
        low, high = ends.reshape(2, *shape)
        return Means(values.reshape(shape), low, high, n)


def _percentiles(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the percentile interval of each column over the finite draws, shape (2, n)."""
    if np.isfinite(draws).all():
        return np.quantile(draws, ENDS, axis=0)
    return np.array([percentiles(column) for column in draws.T]).T


# Factors by which the thresholds of the classes are multiplied; the first factor is 1.
FACTORS = (1.0, *SWEEP)
BLOCKS = "block"


def class_rows(
    sums: Mapping[str, Tensor], lengths: NDArray[Any], layers: Sequence[int], sentences: SentenceDraws
) -> Rows:
    """Return the rows of `attention_classes.csv`.

    For every factor of the thresholds there is a row for each head, with the class of most of its maps, and a row for
    each class over all maps, without a head and with `all` for the layer. `sums` are the scores of `patterns`, shape
    (n_sentences, all layers, heads). Sentences without tokens do not count.
    """
    nonempty = (lengths > 0).astype(np.int64)
    columns = [name for name in ("v", "d", "b", "b_moved") if name in sums]
    sums_of_layers = {name: sums[name][:, [layer - 1 for layer in layers]] for name in columns}
    means = {
        name: sentences.means(of.numpy() * nonempty[:, None, None], nonempty) for name, of in sums_of_layers.items()
    }
    rows: Rows = []
    for factor in FACTORS:
        is_of_class = (
            _are_of_class(sums_of_layers["v"], sums_of_layers["d"], sums_of_layers.get("b"), factor)
            * nonempty[:, None, None, None]
        )
        shares, overall = sentences.means(is_of_class, nonempty), sentences.means(is_of_class.mean((1, 2)), nonempty)
        for i, layer in enumerate(layers):
            for head in range(shares.values.shape[1]):
                of_head = shares.values[i, head]
                majority = int(of_head.argmax())
                rows.append({
                    "layer": layer, "head": head + 1, "factor": factor,
                    **{name: float(mean.values[i, head]) for name, mean in means.items()}, "class": CLASSES[majority],
                    **_share(shares, i, head, majority), "class_entropy": _entropy(of_head),
                })  # fmt: skip
        of_all = {
            name: {"layer": ALL_LAYERS, "factor": factor, "class": name, **_share(overall, i)}
            for i, name in enumerate(CLASSES) if name != BLOCKS or "b" in sums_of_layers
        }  # fmt: skip
        if "b_moved" in sums_of_layers:
            moved = (
                _are_of_class(sums_of_layers["v"], sums_of_layers["d"], sums_of_layers["b_moved"], factor).mean((1, 2))
                * nonempty[:, None]
            )
            of_all[BLOCKS] |= sentences.means(moved, nonempty).row(CLASSES.index(BLOCKS), name="share_moved")
        rows += of_all.values()
    return rows


def _are_of_class(v: Tensor, d: Tensor, b: Tensor | None, factor: float) -> NDArray[np.float64]:
    """Return 1 or 0 for each map and class, in the shape of `v` with the classes as last axis."""
    return torch.nn.functional.one_hot(classify(v, d, b, factor), len(CLASSES)).double().numpy()


def n_queries(sums: Mapping[str, Tensor], lengths: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the number of queries in each sum of `profile`, (n_sentences,), of entropies (n_sentences, layers)."""
    entropies, later = sums["n_entropy"][..., 0].numpy(), np.maximum(lengths - 1, 0)
    return {"entropy": entropies, "distance": lengths, "self": lengths, "previous": later, "next": later}


def profile_rows(
    sums: Mapping[str, Tensor], lengths: NDArray[Any], layers: Sequence[int], sentences: SentenceDraws
) -> dict[str, Rows]:
    """Return the rows of the sums of `profile`, each divided by its number of queries; see `measure_rows`."""
    return in_one(
        measure_rows(sums[name].numpy(), counted, layers, sentences, measure=name)
        for name, counted in n_queries(sums, lengths).items()
    )


def in_one(tables: Iterable[Mapping[str, Rows]]) -> dict[str, Rows]:
    """Return the rows of several tables of `measure_rows`, one after the other."""
    joined: dict[str, Rows] = {"heads": [], "attention_layers": []}
    for rows_of in tables:
        for name, rows in rows_of.items():
            joined[name] += rows
    return joined


def measure_rows(
    sums: NDArray[np.float64],
    counts: NDArray[Any],
    layers: Sequence[int],
    sentences: SentenceDraws,
    **named: str,
) -> dict[str, Rows]:
    """Return the rows of one measure in `heads.csv`, and in `attention_layers.csv`, the mean over a layer's heads.

    `sums` has shape (n_sentences, all layers, heads); `counts`, the denominators, has shape (n_sentences,) or
    (n_sentences, all layers); `named` are the columns that name the measure.
    """
    chosen = [layer - 1 for layer in layers]
    selected, counts = sums[:, chosen], counts if counts.ndim == 1 else counts[:, chosen]
    of_heads, of_layers = sentences.means(selected, counts), sentences.means(selected.mean(2), counts)
    return {
        "heads": [
            {"layer": layer, "head": head + 1, **named, **of_heads.row(i, head)}
            for i, layer in enumerate(layers)
            for head in range(selected.shape[2])
        ],
        "attention_layers": [{"layer": layer, **named, **of_layers.row(i)} for i, layer in enumerate(layers)],
    }


def type_rows(
    sums: Mapping[str, Tensor],
    counts: Mapping[str, NDArray[Any]],
    lengths: NDArray[Any],
    layers: Sequence[int],
    sentences: SentenceDraws,
    leave_out: Sequence[str] = (),
) -> dict[str, Rows]:
    """Return the rows of the attention to each type of token, by head and by layer.

    `sums` are the results of `attended`, shape (n_sentences, all layers, heads, types). Without `expected`, a lift
    divides by the number of tokens of the type, as if all tokens saw all others. `counts` are the tokens of each type
    by sentence. Types in `leave_out` are not reported.
    """
    tables = []
    for t, (name, of_type) in enumerate(counts.items()):
        if name in leave_out:
            continue
        has = (of_type > 0).astype(np.int64)
        expected = sums["expected"][:, :, 0, t].numpy() if "expected" in sums else of_type
        measures = {"mass": ("mass", lengths), "lift": ("mass", expected), "norm_mass": ("norm_mass", lengths),
                    "column_max": ("column_max", has)}  # fmt: skip
        for measure, (source, divided_by) in measures.items():
            if source in sums:
                summed = sums[source][..., t].numpy()
                tables.append(measure_rows(summed, divided_by, layers, sentences, measure=measure, to=name))
    return in_one(tables)


def counts_of(types: Mapping[str, NDArray[np.bool_]], tokens: Tokens) -> dict[str, NDArray[Any]]:
    """Return the number of tokens of each type in each sentence, each of shape (n_sentences,)."""
    return {
        name: np.bincount(tokens.sentences[members], minlength=tokens.n_sentences) for name, members in types.items()
    }


def _share(means: Means, *index: int) -> dict[str, Any]:
    row = means.row(*index)
    return {"share": row.pop("value"), **row}


def _entropy(shares: NDArray[np.float64]) -> float:
    """Return the entropy of a distribution in nats."""
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum()) + 0.0
