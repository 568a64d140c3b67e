"""Measures of a head in single blocks, and their rows with confidence intervals over the sentences of a corpus.

A measure is a function of the attention of one block over one batch, as `probing.heads.accumulation` sums it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations.store import fingerprint
from probing.heads.accumulation import Accumulator, BatchValues, Begin, BlockAttention, Measure, SentenceBatch
from probing.results import ALL_LAYERS, estimate_cells
from probing.statistics import (
    ENDS,
    MIN_SENTENCES,
    accuracy_interval,
    difference_interval,
    difference_p_value,
    ratio_estimate,
)
from probing.statistics.chance import correct_p_values, percentiles, sentence_counts
from probing.tables.heads import CLASSES as CLASS_HEADINGS
from probing.tables.heads import SPECIAL
from probing.text import Corpus
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# Classes of attention maps (after Kovaleva et al. 2019, section 4.1), and how concentrated and far attention is.
# --------------------------------------------------------------------------------------------------------------------

CLASSES = tuple(CLASS_HEADINGS)
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


PATTERNS = Measure.of_blocks("patterns", patterns, {"version": 2})


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


def entropy_scale(seen: Tensor) -> Tensor:
    """Return 1 / ln n for queries with n > 1 keys (`seen` above 0), 0 for others; (batch, sequence), float64."""
    n_seen = (seen > 0).sum(2)
    return torch.where(n_seen > 1, 1 / n_seen.clamp_min(2).double().log(), 0.0)


def _diagonal(probabilities: Tensor, offset: int) -> Tensor:
    return probabilities.diagonal(offset, 2, 3).sum(2, dtype=torch.float64)


PROFILE = Measure.of_blocks("profile", profile, {"version": 2})

# --------------------------------------------------------------------------------------------------------------------
# Which tokens a head attends to, by weight and by norm, and the first token as an attention sink.
# --------------------------------------------------------------------------------------------------------------------

PUNCTUATION, NEGATION = "punctuation", "negation"
# The negation words of Kovaleva et al. 2019, who list some of the words that end in n't.
_NEGATION = re.compile(
    r"(?<![\w'’])(?:neither|nor|not|never|none|nothing|nowhere|cannot|\w*n['’]t)(?![\w'’])", re.IGNORECASE
)
# Relations of a treebank by which the subject and the object of a clause are found, without subtypes.
_ROLES = {"subject": ("nsubj", "csubj"), "object": ("obj", "iobj")}


def attended(attention: BlockAttention, batch: SentenceBatch, types: Tensor) -> dict[str, Tensor]:
    """Return the attention to each type of token, summed over the queries of each sentence.

    `types` is a mask of the tokens of each type, shape (batch, sequence, types); False for padding.

    Returns:
        mass: The attention to all tokens of the type, shape (batch, heads, types), float64.
        norm_mass: As `mass`, for weights times norms, each row divided by its sum; absent if the output projection is
            unknown.
        column_max: The largest mean over queries among the sentence's tokens of the type, not summed; 0 without such
            tokens.
        n_tokens: Number of tokens of the type, shape (batch, 1, types).
        expected: The mass of the type under uniform attention over the visible keys, shape (batch, 1, types).
    """
    members = types.to(torch.float64)
    columns = attention.probabilities.sum(2, dtype=torch.float64)
    means = columns / batch.lengths[:, None, None].clamp_min(1)
    sums = {
        "n_tokens": members.sum(1)[:, None],
        "expected": _uniform_columns(attention, batch) @ members,
        "mass": columns @ members,
        "column_max": torch.stack([(means * members[:, None, :, i]).amax(2) for i in range(types.shape[2])], dim=2),
    }
    if attention.projection is not None:
        norms = torch.where(batch.mask[:, None], attention.value_norms(), 0.0)
        sums["norm_mass"] = norm_columns(attention.probabilities, norms) @ members
    return sums


def _uniform_columns(attention: BlockAttention, batch: SentenceBatch) -> Tensor:
    """Return the column sums of uniform attention over the visible keys, shape (batch, 1, to), float64."""
    if attention.visible is None and not batch.is_causal:
        return batch.mask.double()[:, None]  # n queries give 1 / n each, without rounding
    return attention.uniform(batch).sum(1, keepdim=True)


def norm_columns(probabilities: Tensor, norms: Tensor) -> Tensor:
    """Return the column sums of weights times norms, rows divided by their sums; (batch, heads, to), float64."""
    single = norms.to(probabilities.dtype)
    rows = (probabilities @ single[..., None])[..., 0]
    inverse = torch.where(rows > 0, 1 / rows.clamp_min(torch.finfo(rows.dtype).tiny), 0.0)
    return (inverse[:, :, None] @ probabilities)[:, :, 0].double() * norms


def types_of(tokens: Tokens, corpus: Corpus, special_tokens: Mapping[int, str]) -> dict[str, NDArray[np.bool_]]:
    """Return masks, (n_tokens,), of the token types that occur; some types need the columns of a treebank."""
    special = tokens.special
    by_type = {text: special & (tokens.input_ids == token) for token, text in special_tokens.items()}
    by_type[PUNCTUATION] = _punctuation(tokens, corpus) & ~special
    by_type[NEGATION] = _within(_NEGATION, tokens, corpus) & ~special
    if "upos" in corpus.columns:
        upos = _by_token(corpus.columns["upos"], tokens)
        by_type |= {name: upos == name for name in sorted(set(upos[~special].tolist()) - {"_", "PUNCT"})}
    if "deprel" in corpus.columns:
        relations = _by_token(corpus.columns["deprel"], tokens)
        plain = np.array([relation.split(":")[0] for relation in relations.tolist()], dtype=object)
        by_type |= {name: np.isin(plain, relations_of) for name, relations_of in _ROLES.items()}
    return {name: members for name, members in by_type.items() if members.any()}


def fingerprint_of(types: Mapping[str, NDArray[np.bool_]]) -> str:
    """Return a fingerprint of the types and their tokens."""
    return fingerprint({name: np.packbits(members).tobytes().hex() for name, members in types.items()})


def members_of(types: Tensor, batch: SentenceBatch) -> Tensor:
    """Return a mask of the tokens of each type in a batch, shape (batch, sequence, types); False for padding."""
    return types[batch.rows.cpu()].to(batch.mask.device) & batch.mask[:, :, None]


def _punctuation(tokens: Tokens, corpus: Corpus) -> NDArray[np.bool_]:
    """Return a mask of the tokens that are punctuation marks alone, shape (n_tokens,).

    A mark between two letters or digits, as in "don't", is a part of a word. Tokenizers separate marks from words in
    different ways, so that their words do not show whether a mark is inside a word.
    """
    is_punctuation = np.zeros(tokens.n_tokens, dtype=bool)
    assert tokens.spans is not None
    for row, (sentence, (start, stop)) in enumerate(zip(tokens.sentences.tolist(), tokens.spans.tolist(), strict=True)):
        text = corpus.sentences[sentence]
        piece = text[start:stop]
        if piece.strip() and all(unicodedata.category(character)[0] == "P" for character in piece.strip()):
            start += len(piece) - len(piece.lstrip())
            inside = text[start - 1 : start].isalnum() and text[stop : stop + 1].isalnum()
            is_punctuation[row] = not inside
    return is_punctuation


def _within(words: re.Pattern[str], tokens: Tokens, corpus: Corpus) -> NDArray[np.bool_]:
    """Return a mask of the tokens inside a match in their sentence, shape (n_tokens,).

    The tokenizer may split running text differently: BERT's makes three words of "don't".
    """
    is_inside = np.zeros(tokens.n_tokens, dtype=bool)
    assert tokens.spans is not None
    for i, sentence in enumerate(corpus.sentences):
        for match in words.finditer(sentence):
            rows = tokens.of_sentences(i, 1)
            first, last = tokens.spans[rows].T
            is_inside[rows] |= (first < match.end()) & (last > match.start())
    return is_inside


def _by_token(column: tuple[tuple[str, ...], ...], tokens: Tokens) -> NDArray[Any]:
    """Return the annotation of each token's word, empty for special tokens; shape (n_tokens,), objects."""
    annotations = np.full(tokens.n_tokens, "", dtype=object)
    pairs = zip(tokens.sentences.tolist(), tokens.words.tolist(), strict=True)
    annotations[:] = [column[sentence][word] if word >= 0 else "" for sentence, word in pairs]
    return annotations


def attention_by_type(types: Mapping[str, NDArray[np.bool_]], name: str = "attended") -> Measure:
    """Return the measure of the attention to each type of token, given as masks of shape (n_tokens,).

    The special tokens together, including the first token of a causal model, are added as the first type. The settings
    have a fingerprint of the types, whose columns are not part of a corpus's fingerprint.
    """
    table = torch.from_numpy(np.stack(list(types.values()), axis=1)) if types else None

    def sums(attention: BlockAttention, batch: SentenceBatch) -> Mapping[str, Tensor]:
        of_batch = batch.special[:, :, None]
        if table is not None:
            of_batch = torch.cat([of_batch, members_of(table, batch)], dim=2)
        return attended(attention, batch, of_batch)

    return Measure.of_blocks(name, sums, {"version": 2, "types": [SPECIAL, *types], "of": fingerprint_of(types)})


def sink(attention: BlockAttention, batch: SentenceBatch) -> dict[str, Tensor]:
    """Return the attention of later tokens to the first token, summed over these queries; (batch, heads), float64.

    Returns:
        mass: The attention to the first token.
        uniform: The mass under uniform attention over the keys that a query may see.
        norm_mass: As `mass`, for weights times norms, each row divided by its sum; absent if the output projection is
            unknown.
    """
    later = attention.probabilities[:, :, 1:]
    uniform = attention.uniform(batch)[:, 1:, 0].sum(1)
    sums = {
        "mass": later[..., 0].sum(2, dtype=torch.float64),
        "uniform": uniform[:, None].repeat(1, later.shape[1]),
    }
    if attention.projection is not None:
        sums["norm_mass"] = norm_columns(later, torch.where(batch.mask[:, None], attention.value_norms(), 0.0))[..., 0]
    return sums


SINK = Measure.of_blocks("sink", sink, {"version": 2})


def without_first_token(measure: Measure) -> Measure:
    """Return a measure of the attention without the first token of each sentence, which is treated as padding.

    A query that attends only to the first token, in the precision of the model, has a row of 0.
    """

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        return without_first(measure.of_corpus(tokens, corpus))

    return Measure(measure.name, of_corpus, {**measure.settings, "first_token": "exclude"})


def without_first(begin: Begin) -> Begin:
    """Return the function that creates accumulators without first tokens."""
    return lambda batch: _WithoutFirst(begin(batch.without_first))


@dataclass(frozen=True)
class _WithoutFirst:
    inner: Accumulator

    def add(self, attention: BlockAttention) -> None:
        self.inner.add(attention.without_first)

    def batch_values(self) -> BatchValues:
        return self.inner.batch_values()


# --------------------------------------------------------------------------------------------------------------------
# Rows of tables: means, accuracies and differences with their intervals.
# --------------------------------------------------------------------------------------------------------------------

Row = dict[str, Any]
Rows = list[Row]


def mean_cells(sums: NDArray[np.float64], n: NDArray[np.int64]) -> Row:
    """Return the cells `value, low, high, n` of a mean, from the sum and the denominator n of each sentence."""
    return {**estimate_cells("value", *ratio_estimate(sums, n)), "n": int(n.sum())}


def accuracy_cells(name: str, correct: NDArray[np.int64], n: NDArray[np.int64]) -> Row:
    """Return an accuracy and its confidence interval as cells of a row, from counts by sentence."""
    return estimate_cells(name, *ratio_estimate(correct, n, accuracy_interval))


def difference_cells(name: str, difference: NDArray[np.int64], n: NDArray[np.int64]) -> Row:
    """Return a difference of two accuracies, paired by sentence, as cells of a row, from differences of counts."""
    cells = estimate_cells(name, *ratio_estimate(difference, n, difference_interval))
    return {**cells, "p_value": difference_p_value(difference, n)}


def corrected(rows: Iterable[Row]) -> Rows:
    """Return rows whose p-values are corrected for their number (Holm)."""
    rows = [dict(row) for row in rows]
    correct_p_values([row for row in rows if "p_value" in row])
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
        """Return one ratio as cells of a row, with the number of sentences `n`."""
        value, low, high = (float(values[index]) for values in (self.values, self.low, self.high))
        return {**estimate_cells(name, value, (low, high)), "n": self.n}


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
