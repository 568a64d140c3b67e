"""Means over queries or sentences, with confidence intervals by a bootstrap of the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.heads.accumulation import BlockAttention, BlockMeasure, SentenceBatch
from probing.results import ALL_LAYERS
from probing.statistics import ENDS, MIN_SENTENCES
from probing.statistics.chance import percentiles, sentence_counts
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# Classes of attention maps (after Kovaleva et al. 2019, section 4.1), and how concentrated and far attention is.
# --------------------------------------------------------------------------------------------------------------------

CLASSES = ("vertical", "diagonal", "vertical and diagonal", "block", "heterogeneous")
# From this value of v + d on, a map has stripes; from this value of b on, blocks.
STRIPES, BLOCK = 0.5, 0.5
# A map has both patterns if the weaker one has at least this share of v + d.
BOTH = 0.25
# Factors by which all thresholds are multiplied to see how much depends on them.
SWEEP = (0.75, 1.25)


def patterns(attention: BlockAttention, batch: SentenceBatch) -> Mapping[str, Tensor]:
    """Return the vertical (v) and the diagonal (d) score of each map, shape (batch, heads), float64.

    For pairs of sentences, also return the attention within sentences (b), and with the boundary moved (b_moved).
    """
    uniform = attention.uniform(batch)
    v, d = stripes(attention.probabilities, batch, uniform)
    if batch.segments is None:
        return {"v": v, "d": d}
    b, b_moved = (
        blocks(attention.probabilities, batch, of, uniform) for of in (batch.segments, exchanged(batch.segments))
    )
    return {"v": v, "d": d, "b": b, "b_moved": b_moved}


def stripes(probabilities: Tensor, batch: SentenceBatch, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the vertical and the diagonal scores of maps, each of shape (batch, heads), float64.

    The score is (mass - e) / (1 - e), at least 0, with e the mass under uniform attention. The vertical mass is the
    attention to special tokens. The diagonal mass is the attention to the token itself, the previous and the next
    token, unless they are special. Both are means over all queries. `uniform` is uniform attention over the keys that
    the block's mask shows, shape (batch, from, to); the batch's if None.
    """
    masses = _stripe_masses(probabilities, batch)
    expected = _stripe_masses((batch.uniform if uniform is None else uniform)[:, None], batch)
    v, d = (_above_uniform(mass, e) for mass, e in zip(masses, expected, strict=True))
    return v, d


def blocks(probabilities: Tensor, batch: SentenceBatch, segments: Tensor, uniform: Tensor | None = None) -> Tensor:
    """Return the attention within the segments of a pair, above uniform attention; shape (batch, heads), float64.

    Special tokens are removed and the rows of the others renormalised. Uniform attention is over the visible tokens: in
    causal models, over earlier tokens only, so that a token of the first segment sees no token of the second segment.
    For `uniform` see `stripes`.
    """
    ordinary = batch.ordinary
    seen = (ordinary[:, :, None] & ordinary[:, None, :])[:, None]
    same = (segments[:, :, None] == segments[:, None, :])[:, None]

    def mass(maps: Tensor) -> Tensor:
        maps = torch.where(seen, maps.double(), 0.0)
        rows = (maps * same).sum(3) / maps.sum(3).clamp_min(torch.finfo(torch.float64).tiny)
        return rows.sum(2) / ordinary.sum(1).clamp_min(1)[:, None]

    return _above_uniform(mass(probabilities), mass((batch.uniform if uniform is None else uniform)[:, None]))


def exchanged(segments: Tensor) -> Tensor:
    """Return the segments, (batch, sequence), of pairs if their sentences exchange lengths; -1 does not change."""
    ordinary = segments >= 0
    is_second = ordinary.cumsum(1) > (segments == 1).sum(1, keepdim=True)
    return torch.where(ordinary, is_second.to(segments.dtype), segments)


def classify(v: Tensor, d: Tensor, b: Tensor | None = None, factor: float = 1.0) -> Tensor:
    """Return the class of each map as an index into `CLASSES`; `b` is None for single sentences."""
    share = v / (v + d).clamp_min(torch.finfo(torch.float64).tiny)
    striped, low = v + d >= STRIPES * factor, BOTH * factor
    classes = torch.full(v.shape, CLASSES.index("heterogeneous"))
    if b is not None:
        classes[b >= BLOCK * factor] = CLASSES.index("block")
    classes[striped] = CLASSES.index("vertical and diagonal")
    classes[striped & (share > 1 - low)] = CLASSES.index("vertical")
    classes[striped & (share < low)] = CLASSES.index("diagonal")
    return classes


def _stripe_masses(maps: Tensor, batch: SentenceBatch) -> tuple[Tensor, Tensor]:
    n = batch.lengths[:, None]
    columns = maps.sum(2, dtype=torch.float64)
    vertical = (columns * batch.special[:, None]).sum(2)
    diagonal = torch.zeros_like(vertical)
    for offset in (-1, 0, 1):
        keys = batch.ordinary[:, max(offset, 0) : batch.ordinary.shape[1] + min(offset, 0)]
        diagonal += (maps.diagonal(offset, 2, 3) * keys[:, None]).sum(2, dtype=torch.float64)
    return vertical / n, diagonal / n


def _above_uniform(mass: Tensor, uniform: Tensor) -> Tensor:
    """Return (mass - uniform) / (1 - uniform), at least 0; 0 where uniform attention has all of the mass."""
    room = 1 - uniform
    return torch.where(room > 1e-9, (mass - uniform) / room.clamp_min(1e-9), 0.0).clamp_min(0)


PATTERNS = BlockMeasure("patterns", patterns, {"version": 2})


def profile(attention: BlockAttention, batch: SentenceBatch) -> Mapping[str, Tensor]:
    """Return sums over the queries of each sentence, each of shape (batch, heads), float64.

    Returns:
        entropy: H / ln n, relative to uniform attention over the n keys that the query may see (after Clark et al.
            2019, section 3.3, who do not divide); undefined for a query that sees one key.
        distance: Number of tokens between query and key.
        self, previous, next: Attention to the token itself, the previous and the next token.
        n_entropy: Number of queries that have an entropy, shape (batch, 1).
    """
    probabilities, n = attention.probabilities, attention.probabilities.shape[-1]
    steps = torch.arange(n, dtype=torch.float64, device=probabilities.device)
    nearness = (steps[:, None] - steps).abs()
    per_nat = entropy_scale(attention.uniform(batch))
    return {
        "n_entropy": (per_nat > 0).sum(1, dtype=torch.float64)[:, None],
        "entropy": torch.special.entr(probabilities).sum(3, dtype=torch.float64).mul(per_nat[:, None]).sum(2),
        "distance": (probabilities * nearness.to(probabilities.dtype)).sum((2, 3), dtype=torch.float64),
        "self": _diagonal(probabilities, 0),
        "previous": _diagonal(probabilities, -1),
        "next": _diagonal(probabilities, 1),
    }


def n_queries(sums: Mapping[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
    """Return the number of queries in each sum of `profile`, (n_sentences,), of entropies (n_sentences, layers)."""
    lengths_minus_1 = (lengths - 1).clamp_min(0)
    entropies = sums["n_entropy"][..., 0]
    return {
        "entropy": entropies,
        "distance": lengths,
        "self": lengths,
        "previous": lengths_minus_1,
        "next": lengths_minus_1,
    }


def entropy_scale(seen: Tensor) -> Tensor:
    """Return 1 / ln n for queries with n > 1 keys (`seen` above 0), 0 for others; (batch, sequence), float64."""
    n_seen = (seen > 0).sum(2)
    return torch.where(n_seen > 1, 1 / n_seen.clamp_min(2).double().log(), 0.0)


def _diagonal(probabilities: Tensor, offset: int) -> Tensor:
    return probabilities.diagonal(offset, 2, 3).sum(2, dtype=torch.float64)


PROFILE = BlockMeasure("profile", profile, {"version": 2})

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

    def row(self, *index: int) -> dict[str, Any]:
        """Return one ratio as the columns `value, low, high, n` of a table."""
        value, low, high = (float(values[index]) for values in (self.values, self.low, self.high))
        return {"value": value, "low": low, "high": high, "n": self.n}


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


Rows = list[dict[str, Any]]
# Factors by which the thresholds of the classes are multiplied; the first factor is 1.
FACTORS = (1.0, *SWEEP)
BLOCKS = "block"
_ENDS = {"": "value", "_low": "low", "_high": "high"}


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
            share = sentences.means(moved, nonempty).row(CLASSES.index(BLOCKS))
            of_all[BLOCKS] |= {f"share_moved{end}": share[name] for end, name in _ENDS.items()}
        rows += of_all.values()
    return rows


def _are_of_class(v: Tensor, d: Tensor, b: Tensor | None, factor: float) -> NDArray[np.float64]:
    """Return 1 or 0 for each map and class, in the shape of `v` with the classes as last axis."""
    return torch.nn.functional.one_hot(classify(v, d, b, factor), len(CLASSES)).double().numpy()


def profile_sums(sums: Mapping[str, Tensor], lengths: NDArray[Any]) -> dict[str, tuple[Any, Any]]:
    """Return the sums of each measure of a head's profile and their denominators; see `n_queries`."""
    counts = n_queries(sums, torch.from_numpy(lengths.astype(np.int64)))
    return {name: (sums[name].numpy(), counted.numpy()) for name, counted in counts.items()}


def measure_rows(
    sums: NDArray[np.float64],
    counts: NDArray[Any],
    layers: Sequence[int],
    sentences: SentenceDraws,
    **named: str,
) -> tuple[Rows, Rows]:
    """Return the rows of one measure in `heads.csv`, and in `attention_layers.csv`, the mean over a layer's heads.

    `sums` has shape (n_sentences, all layers, heads); `counts`, the denominators, has shape (n_sentences,) or
    (n_sentences, all layers); `named` are the columns that name the measure.
    """
    chosen = [layer - 1 for layer in layers]
    selected, counts = sums[:, chosen], counts if counts.ndim == 1 else counts[:, chosen]
    of_heads, of_layers = sentences.means(selected, counts), sentences.means(selected.mean(2), counts)
    return (
        [
            {"layer": layer, "head": head + 1, **named, **of_heads.row(i, head)}
            for i, layer in enumerate(layers)
            for head in range(selected.shape[2])
        ],
        [{"layer": layer, **named, **of_layers.row(i)} for i, layer in enumerate(layers)],
    )


def type_rows(
    sums: Mapping[str, Tensor],
    counts: Mapping[str, NDArray[Any]],
    lengths: NDArray[Any],
    layers: Sequence[int],
    sentences: SentenceDraws,
    leave_out: Sequence[str] = (),
) -> tuple[Rows, Rows]:
    """Return the rows of the attention to each type of token, by head and by layer.

    `sums` are the results of `attended`, shape (n_sentences, all layers, heads, types). Without `expected`, a lift
    divides by the number of tokens of the type, as if all tokens saw all others. `counts` are the tokens of each type
    by sentence. Types in `leave_out` are not reported.
    """
    by_head: Rows = []
    by_layer: Rows = []
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
                of_heads, of_layers = measure_rows(summed, divided_by, layers, sentences, measure=measure, to=name)
                by_head += of_heads
                by_layer += of_layers
    return by_head, by_layer


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
