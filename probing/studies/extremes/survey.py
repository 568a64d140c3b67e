"""The measurements of `extremes`: large values, attention sinks, and heads without outliers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import Request, load, tokens_of
from probing.activations.source import ActivationSource
from probing.data.examples import HiddenStateSource
from probing.errors import UserError, as_clause
from probing.heads.accumulation import (
    Accumulator,
    AttentionReader,
    BatchValues,
    BlockAttention,
    SentenceBatch,
    SumsStore,
    accumulate,
)
from probing.heads.measures import Means, SentenceDraws, attention_by_type, fingerprint_of, members_of
from probing.interventions.model_output import draw_sentences
from probing.interventions.passes import Rows
from probing.models import load_tokenizer
from probing.models.anatomy import examine
from probing.models.attention_heads import find_query_keys
from probing.probes.outliers import OutlierSurvey
from probing.results import layers_named
from probing.runtime.progress import counted, stage
from probing.runtime.trainer import to_float64
from probing.statistics.moments import ROWS
from probing.studies.extremes import ABSOLUTE, ALL, DEFINITIONS, DEVIATIONS, OTHER, RELATIVE, ExtremeDefinition
from probing.studies.extremes import MOST_TOKENS as MOST_MASSIVE_TOKENS
from probing.studies.extremes.fixed_outliers import (
    TOKENS,
    AttentionSample,
    Compared,
    Inputs,
    TokenKinds,
    agrees,
    as_sinks,
    by_text,
    compare,
    fixed_outlier_rows,
)
from probing.text import Corpus
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# Values of hidden states that are far larger than others, by three definitions, streamed layer by layer.
# --------------------------------------------------------------------------------------------------------------------

Shards = Callable[[], Iterator[tuple[slice, Tensor]]]
# TokenKinds of fewer tokens say nothing of where a neuron is large.
LEAST_TOKENS = 10
# Most neurons that are listed for each layer, definition and kind of token.
MOST_NEURONS = 5
# Bits of a float32 number without its sign are those of a whole number of the same order, read in two halves.
_HALF = 16
# A neuron whose sd is below this share of its magnitude does not vary.
_DEAD = 1e-6


@dataclass(frozen=True)
class LargeValues:
    """The large values of a layer, with the median magnitude of all values.

    `largest` has the largest magnitude of each neuron on each kind of token and `counts`, by definition, the number of
    large values, both of shape (n_kinds, d_model); `tokens` has, by definition, the number of tokens of each kind with
    a large value, shape (n_kinds,).
    """

    layer: int
    median: float
    largest: NDArray[np.float64]
    counts: Mapping[ExtremeDefinition, NDArray[np.int64]]
    tokens: Mapping[ExtremeDefinition, NDArray[np.int64]]


def large_values(store: HiddenStateSource, layer: int, kinds: TokenKinds) -> LargeValues:
    """Detect the large values of a layer in a few passes over its shards, with the memory of one shard."""
    d_model, n_kinds = store.plan.d_model, len(kinds.names)

    def shards() -> Iterator[tuple[slice, Tensor]]:
        for shard in store.plan.shards:
            rows, states = shard.rows(store.tokens), store.read(layer, shard.index).float()
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
            magnitudes = values[torch.from_numpy(of == kind)].abs().amax(0).numpy()
            largest[kind] = np.maximum(largest[kind], magnitudes)
        for name, is_large in _large(values, median, mean, sd).items():
            counts[name] += (members @ is_large.double()).numpy().astype(np.int64)
            tokens[name] += (members @ is_large.any(1).double()).numpy().astype(np.int64)
    return LargeValues(layer, median, largest, counts, tokens)


def _large(values: Tensor, median: float, mean: Tensor, sd: Tensor) -> dict[ExtremeDefinition, Tensor]:
    """Return the mask of large values by each definition, shape (n, d_model)."""
    magnitude = values.abs()
    of_token = (values - values.mean(1, keepdim=True)).abs()
    return {
        "massive": (magnitude > ABSOLUTE) & (magnitude >= RELATIVE * median),
        "token_sd": of_token > DEVIATIONS * values.std(1, correction=0, keepdim=True),
        "neuron_sd": (values - mean).abs() > DEVIATIONS * sd,
    }


def median_magnitude(shards: Shards) -> float:
    """Return the exact median magnitude of float32 numbers, from repeatable parts, in two passes with 2^16 counters."""

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
    patterns = [
        chosen << _HALF | int(np.searchsorted(low[chosen].cumsum(), rank - (ends - high)[chosen], side="right"))
        for rank, chosen in zip(middle, bins, strict=True)
    ]
    return float(np.array(patterns, dtype=np.uint32).view(np.float32).astype(np.float64).mean())


def _moments(shards: Shards, d_model: int) -> tuple[Tensor, Tensor]:
    """Return the mean and the sd of each neuron over tokens; the sd of a neuron that does not vary is infinite."""
    n, sums, squares = 0, torch.zeros(d_model, dtype=torch.float64), torch.zeros(d_model, dtype=torch.float64)
    for _, states in shards():
        n, sums = n + len(states), sums + states.sum(0, dtype=torch.float64)
    mean = sums / n
    for _, states in shards():
        squares += (states.double() - mean).square().sum(0)
    sd = (squares / n).sqrt()
    return mean, torch.where(sd > _DEAD * mean.abs(), sd, torch.inf)


def massive_rows(large: LargeValues, kinds: TokenKinds) -> Rows:
    """Return the rows of `massive.csv` of a layer.

    For each definition there is a row for all tokens and for each kind that has a large value, without a neuron, and a
    row for each of the first neurons on that kind, by their share of its tokens and then by magnitude.
    """
    return [
        {"layer": large.layer, "definition": name, **row, "median": large.median}
        for name in DEFINITIONS
        for row in _rows_of(large, name, kinds)
    ]


def _rows_of(large: LargeValues, name: ExtremeDefinition, kinds: TokenKinds) -> Iterator[dict[str, Any]]:
    counts, tokens, n_of = large.counts[name], large.tokens[name], kinds.counts
    yield _row(ALL, int(tokens.sum()), int(n_of.sum())) | _over_neurons(counts, large.largest, n_of)
    for kind in np.flatnonzero(tokens).tolist():
        of_kind, n, token = slice(kind, kind + 1), int(n_of[kind]), kinds.names[kind]
        yield _row(token, int(tokens[kind]), n) | _over_neurons(counts[of_kind], large.largest[of_kind], n_of[of_kind])
        for neuron in np.lexsort((-large.largest[kind], -counts[kind]))[:MOST_NEURONS].tolist():
            if count := int(counts[kind, neuron]):
                largest = float(large.largest[kind, neuron])
                yield _row(token, count, n) | {"neuron": neuron, "largest_magnitude": largest}


def _row(token: str, count: int, n: int) -> dict[str, Any]:
    return {"token": token, "count": count, "n_tokens": n, "share": count / n}


def _over_neurons(
    counts: NDArray[np.int64], largest: NDArray[np.float64], n_of: NDArray[np.int64]
) -> dict[str, int | float]:
    """Return the columns of rows over all neurons of some kinds of tokens, the rows of each argument."""
    n_values = int(n_of.sum()) * counts.shape[1]
    return {
        "n_neurons": int(counts.any(0).sum()), "largest_magnitude": float(largest.max()),
        "value_share": int(counts.sum()) / n_values,
    }  # fmt: skip


def course_rows(layers: Sequence[LargeValues], kinds: TokenKinds) -> Rows:
    """Return the rows of `massive_course.csv`: the ascending layers with a neuron large on most tokens of a kind."""
    layers_of_neuron: dict[tuple[ExtremeDefinition, int, int], list[int]] = {}
    for i, large in enumerate(layers):
        for name in DEFINITIONS:
            shares = large.counts[name] / kinds.counts[:, None]
            often = (kinds.counts >= LEAST_TOKENS)[:, None]
            for kind, neuron in np.argwhere((shares >= MOST_MASSIVE_TOKENS) & often).tolist():
                layers_of_neuron.setdefault((name, kind, neuron), []).append(i)
    rows = []
    for (name, kind, neuron), at in layers_of_neuron.items():
        first, last = _longest(at)
        reach = [float(large.largest[kind, neuron]) for large in layers]
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
    """Return the ends of the longest run of consecutive numbers among ascending ones; the first in a tie."""
    runs: list[list[int]] = []
    for i in at:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    longest = max(runs, key=len)
    return longest[0], longest[-1]


# --------------------------------------------------------------------------------------------------------------------
# Attention sinks: what kinds of tokens get of the attention, by weight and by norm, and what they add.
# --------------------------------------------------------------------------------------------------------------------


def added(attention: BlockAttention, batch: SentenceBatch, types: Tensor) -> dict[str, Tensor]:
    """Return norms of the heads' contributions to the residual stream, by query or summed over a sentence's queries.

    A head adds sum_j alpha_j f(x_j), with f(x) = (x W_V + b_V) W_O of the head (Kobayashi et al. 2020). The vectors of
    the tokens of a type are summed before the norm is taken, and for norms of a block also the vectors of all heads.
    `attention` has a known output projection; `types` has the type membership of each token, shape (batch, sequence,
    types), False for padding.

    Returns:
        added: Norm of a head's contribution from the tokens of the type, shape (batch, heads, types).
        by_query: Norm of the contribution of all heads to each query, shape (batch, sequence, types).
        added_of_block: The same summed, shape (batch, 1, types).
        output: Norm of a head's whole contribution, shape (batch, heads, 1).
        output_of_block: Norm of the output of the attention, with b_O, shape (batch, 1, 1).
        value_norm: Sum of |f(x)| over the tokens of the type, shape (batch, heads, types).
    """
    assert attention.projection is not None
    maps, is_token = attention.probabilities.double(), batch.mask[:, None, :, None]
    values = torch.where(is_token, attention.values.double(), 0.0)
    matrix, bias = (to_float64(of) for of in (attention.projection.matrix, attention.projection.bias))
    gram = attention.projection.gram

    def of_heads(outputs: Tensor) -> Tensor:
        return (outputs @ gram * outputs).sum(-1).clamp_min(0).sqrt().sum(2)

    def by_query(outputs: Tensor, plus: Tensor | float = 0.0) -> Tensor:
        vectors = torch.einsum("bhqv,hvd->bqd", outputs, matrix) + plus
        return vectors.norm(dim=2) * batch.mask

    parts = [(maps * types[:, None, None, :, t]) @ values for t in range(types.shape[2])]
    whole = maps @ values
    of_queries = torch.stack([by_query(part) for part in parts], 2)
    return {
        "by_query": of_queries,
        "added": torch.stack([of_heads(part) for part in parts], 2),
        "added_of_block": of_queries.sum(1, keepdim=True),
        "output": of_heads(whole)[..., None],
        "output_of_block": by_query(whole, bias).sum(1)[:, None, None],
        "value_norm": torch.where(batch.mask[:, None], attention.value_norms(), 0.0) @ types.double(),
    }


@dataclass(frozen=True)
class ContributionMeasure:
    """The measure of the contributions of tokens of each type, given as masks of shape (n_tokens,)."""

    types: Mapping[str, NDArray[np.bool_]]
    name: str = "added"
    settings: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        of = fingerprint_of(self.types)
        object.__setattr__(self, "settings", {"version": 2, "types": [*self.types], "of": of})

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[SentenceBatch], Accumulator]:
        """Return a function that creates an accumulator for a batch."""
        table = torch.from_numpy(np.stack(list(self.types.values()), axis=1))
        return lambda batch: _Contributions(batch, members_of(table, batch))


class _Contributions:
    """Accumulator of the contributions, stacked over blocks."""

    def __init__(self, batch: SentenceBatch, types: Tensor) -> None:
        self.batch, self.types = batch, types
        self.stacked: dict[str, list[Tensor]] = {}

    def add(self, attention: BlockAttention) -> None:
        for name, values in added(attention, self.batch, self.types).items():
            self.stacked.setdefault(name, []).append(values)

    def batch_values(self) -> BatchValues:
        by_query = torch.stack(self.stacked.pop("by_query"), dim=2)
        return BatchValues(
            {name: torch.stack(values, dim=1) for name, values in self.stacked.items()}, {"added": by_query}
        )


def stream_norms(store: HiddenStateSource, layer: int, sentences: Sequence[int]) -> NDArray[np.float64]:
    """Return the norms of the hidden states of some sentences, in ascending order, shape (n_tokens of these,)."""
    chosen, norms = np.isin(store.tokens.sentences, list(sentences)), []
    for shard in store.plan.shards:
        states = store.read(layer, shard.index)[torch.from_numpy(chosen[shard.rows(store.tokens)])]
        norms.append(states.double().norm(dim=1).numpy())
    return np.concatenate(norms)


@dataclass(frozen=True)
class AttentionSums:
    """Sums of the attention over sentences, of the measures `attention_by_type` and `ContributionMeasure`.

    `added` is None if the model's output projection cannot be identified. The kinds of tokens are in the order of both
    sums. `stream` has norms of the hidden states of each token that enter a block, for some of the blocks.
    """

    attended: SumsStore
    added: SumsStore | None
    kinds: TokenKinds
    stream: Mapping[int, NDArray[np.float64]]

    def rows(self, blocks: Sequence[int], seed: int) -> Rows:
        """Return the rows of `sinks.csv`: for each block and kind of token, of all heads together and of each head."""
        tokens = self.attended.tokens
        sentences, lengths = SentenceDraws(tokens.n_sentences, seed), tokens.lengths
        # The first of the types that `attention_by_type` sums is that of all special tokens.
        weights = {name: of[..., 1:] for name, of in self._of(self.attended).items() if name != "column_max"}
        norms = {} if self.added is None else self._of(self.added)
        n_of = np.stack([np.bincount(tokens.sentences[of], minlength=tokens.n_sentences)
                         for of in self.kinds.members.values()], axis=1)  # fmt: skip
        rows: Rows = []
        for block in blocks:
            at = block - 1
            of_heads: dict[str, Means] = {}
            of_block: dict[str, Means] = {}
            for name in ("mass", "norm_mass"):
                if name in weights:
                    of_heads[name] = sentences.means(weights[name][:, at], lengths)
                    of_block[name] = sentences.means(weights[name][:, at].mean(1, keepdims=True), lengths)
            uniform = weights["expected"][:, at, 0].sum(0) / lengths.sum()
            if norms:
                of_heads |= _of_norms(sentences, norms, at, "", lengths)
                of_block |= _of_norms(sentences, norms, at, "_of_block", lengths)
                if block in self.stream:
                    of_block["of_stream"] = sentences.means(self._shares(block), lengths)
            values = norms["value_norm"][:, at].sum(0) / n_of.sum(0) if norms else None
            for i, name in enumerate(self.kinds.names):
                about = {"token": name, "share": float(n_of[:, i].sum() / lengths.sum()), "uniform": float(uniform[i])}
                of_values = None if values is None else values.mean(0, keepdims=True)
                rows.append({"layer": block, **about, **_cells(of_block, 0, i), **self._value(of_values, 0, i)})
                rows += [
                    {"layer": block, "head": h + 1, **about, **_cells(of_heads, h, i), **self._value(values, h, i)}
                    for h in range(weights["mass"].shape[2])
                ]
        return rows

    def _shares(self, block: int) -> NDArray[np.float64]:
        """Return each kind's contribution as a share of the query's state, summed by sentence, (n_sentences, 1, k).

        The division is query by query: the norms of a few tokens may be as large as the norms of all others together.
        """
        assert self.added is not None
        tokens, norms = self.attended.tokens, self.stream[block][:, None]
        shares = self.added.by_token("added")[:, block - 1].numpy() / np.maximum(norms, np.finfo(float).tiny)
        sums = np.zeros((tokens.n_sentences, 1, shares.shape[1]))
        np.add.at(sums[:, 0], tokens.sentences, shares)
        return sums

    def _value(self, norms: NDArray[np.float64] | None, head: int, kind: int) -> dict[str, float]:
        """Return the mean norm of f(x) on a kind of token, and its ratio to the norm on tokens that are no sinks."""
        if norms is None:
            return {}
        columns = {"value_norm": float(norms[head, kind])}
        if OTHER in self.kinds.names and (others := norms[head, self.kinds.names.index(OTHER)]) > 0:
            columns["value_ratio"] = columns["value_norm"] / float(others)
        return columns

    @staticmethod
    def _of(store: SumsStore) -> dict[str, NDArray[np.float64]]:
        return {name: values.numpy() for name, values in store.all_by_sentence().items()}


def _of_norms(
    sentences: SentenceDraws, norms: Mapping[str, NDArray[np.float64]], at: int, end: str, lengths: NDArray[Any]
) -> dict[str, Means]:
    """Return each kind's contribution, a mean over queries, and its share of the whole output, by head or block."""
    sums, output = norms[f"added{end}"][:, at], norms[f"output{end}"][:, at, :, 0]
    return {"added": sentences.means(sums, lengths), "of_output": sentences.means(sums, output)}


def _cells(means_of_columns: Mapping[str, Means], head: int, kind: int) -> dict[str, float]:
    cells: dict[str, float] = {}
    for name, means in means_of_columns.items():
        row = means.row(head, kind)
        cells |= {name: row["value"], f"{name}_low": row["low"], f"{name}_high": row["high"]}
    return cells


# Approximate number of tokens whose attention is read.
MOST_TOKENS = 20_000


@dataclass(frozen=True)
class Attentions:
    """The attention of a sample of the corpus, whose `sentences` are ascending indices in the corpus."""

    request: Request
    sentences: Sequence[int]
    reader: AttentionReader
    kinds: TokenKinds
    stores: Mapping[str, SumsStore]


def read_attention(source: ActivationSource, corpus: Corpus, store: HiddenStateSource, seed: int) -> Attentions | None:
    """Read the attention of random sentences, on all ranks; report why and return None if it cannot be read."""
    _, sentences = draw_sentences(store.tokens, MOST_TOKENS, seed)
    request = source.request(corpus if len(sentences) == store.tokens.n_sentences else corpus.subset(sentences))
    tokenizer = load_tokenizer(source.model)
    with stage("attention to special tokens"):
        encoder, pad_token_id = load(request)
        try:
            reader = AttentionReader.of(encoder, pad_token_id, source.model.name)
        except UserError as error:
            source.say(f"what attention does with special tokens is left out: {as_clause(error)}")
            return None
        kinds = as_sinks(tokens_of(request, tokenizer), request.corpus, tokenizer)
        measures: list[Any] = [attention_by_type(kinds.members)]
        if reader.projections is None:
            source.say("norms of what heads add are left out: the model's output projections cannot be told")
        else:
            measures.append(ContributionMeasure(kinds.members))
        stores = accumulate(request, measures, source.cache, source.trainer, source.say)
    return Attentions(request, sentences, reader, kinds, stores)


def measure_extremes(
    source: ActivationSource, store: HiddenStateSource, attentions: Attentions | None,
    outliers: OutlierSurvey, seed: int,
) -> dict[str, Rows]:  # fmt: skip
    """Return the tables' rows by name; without `attentions`, of large values only."""
    kinds = by_text(store.tokens, load_tokenizer(source.model))
    with stage(f"large values of {layers_named(source.layers)}", len(source.layers)) as advance:
        large_layers = []
        for layer in source.layers:
            large_layers.append(large_values(store, layer, kinds))
            advance(1)
    tables = {
        "massive": [row for large in large_layers for row in massive_rows(large, kinds)],
        "massive_course": course_rows(large_layers, kinds),
    }
    with stage("heads without outliers in queries and keys"):
        if attentions is None:
            return tables
        fixed_rows = _fixed_outlier_rows(source, store, attentions, outliers, seed)
    blocks = [layer for layer in source.layers if layer > 0]
    stream = {
        block: stream_norms(store, block - 1, attentions.sentences) for block in blocks if block - 1 in source.layers
    }
    sums = AttentionSums(attentions.stores["attended"], attentions.stores.get("added"), attentions.kinds, stream)
    return {**tables, "sinks": sums.rows(blocks, seed), "held_outliers": fixed_rows}


def _fixed_outlier_rows(
    source: ActivationSource, store: HiddenStateSource, attentions: Attentions,
    outliers: OutlierSurvey, seed: int,
) -> Rows:  # fmt: skip
    """Return the rows of `held_outliers.csv`; report why and return none where they cannot be measured."""
    n_layers, d_model = attentions.reader.heads.n_layers, store.plan.d_model
    chosen = {
        layer + 1: (fixed, named) for layer, fixed in outliers.chosen.items()
        if fixed and layer < n_layers and len(fixed) + len(named := outliers.named(layer)) <= d_model
    }  # fmt: skip
    if not chosen:
        source.say("no outliers are fixed in queries and keys: no layer that a block reads has any")
        return []
    sample, mass = _sample(attentions, store.tokens, seed)
    try:
        encoder, pad_token_id = load(attentions.request)
        anatomy = examine(encoder, pad_token_id, attentions.request.source.name)
        longest = int(np.bincount(sample.sentences).max())
        query_keys = find_query_keys(encoder, anatomy, attentions.reader.heads, pad_token_id, longest)
    except UserError as error:
        source.say(f"no outliers are fixed in queries and keys of {source.model.name}: {as_clause(error)}")
        return []
    compared: list[Compared] = []
    with counted("", len(chosen)) as advance:
        for block, (fixed, named) in chosen.items():
            heads = query_keys[block - 1]
            inputs = Inputs.of(store, block - 1, heads, sample)
            comparison = compare(block, fixed, inputs, heads, sample, seed, named)
            if agrees(comparison.effects, mass[block - 1]):
                compared.append(comparison)
            else:
                source.say(f"block {block} is left out: its attention is not that of its queries and keys alone")
            advance(1)
    return fixed_outlier_rows(compared, seed) if compared else []


def _sample(attentions: Attentions, corpus: Tokens, seed: int) -> tuple[AttentionSample, Any]:
    """Sample sentences; return them with their attention to special tokens in the model, shape (n_layers, n_heads)."""
    store, is_causal = attentions.stores["attended"], attentions.reader.heads.is_causal
    drawn, chosen = draw_sentences(store.tokens, TOKENS, seed)
    starts = corpus.offsets[np.array(attentions.sentences)[chosen]]
    rows = np.repeat(starts, drawn.lengths) + drawn.positions
    special = drawn.special | ((drawn.positions == 0) & is_causal)
    # The first type that `attention_by_type` sums is that of all special tokens.
    mass = store.by_sentence("mass")[chosen, ..., 0].sum(0).numpy() / drawn.n_tokens
    return AttentionSample(rows.astype(np.int64), drawn.sentences.astype(np.int64), special, is_causal), mass
