"""What `geometry --extremes` measures: large values of all layers, attention sinks, and heads without outliers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probing.cache import Request, load, tokens_of
from probing.cache.source import ActivationSource
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.data.examples import Activations
from probing.errors import UserError, as_clause
from probing.heads.accumulation import AttentionReader, SumsStore, accumulate
from probing.heads.subject import Attended
from probing.models import load_tokenizer
from probing.models.anatomy import examine
from probing.models.attention_heads import QueryKey, find_query_keys
from probing.readouts.model_output import draw_sentences
from probing.results.schema import ALL_LAYERS, layers_named
from probing.runtime.progress import counted, stage
from probing.studies.geometry.extremes.held import TOKENS, Compared, Inputs, Sample, agrees, compare, held_rows
from probing.studies.geometry.extremes.kinds import Kinds, as_sinks, by_text
from probing.studies.geometry.extremes.massive import course_rows, large_values, massive_rows
from probing.studies.geometry.extremes.sinks import Added, Sums, stream_norms

Rows = list[dict[str, Any]]
Say = Callable[[str], None]
# Approximate number of tokens whose attention is read.
MOST_TOKENS = 20_000


@dataclass(frozen=True)
class Attentions:
    """The attention of a sample of the corpus.

    Args:
        request: Model and sample.
        kept: Indices of its sentences in the corpus, ascending.
        reader: The structure of the model.
        kinds: The kind of each of its tokens.
        stores: The sums of each measure.
    """

    request: Request
    kept: Sequence[int]
    reader: AttentionReader
    kinds: Kinds
    stores: Mapping[str, SumsStore]


def read_attention(source: ActivationSource, corpus: Corpus, store: Activations, seed: int) -> Attentions | None:
    """Read the attention of some sentences, on all ranks; None if the model has none that can be read, and say so.

    Args:
        source: The model and its cache.
        corpus: The corpus.
        store: Its hidden states.
        seed: Seed of the draw of sentences.
    """
    _, kept = draw_sentences(store.tokens, MOST_TOKENS, seed)
    request = source.request(corpus if len(kept) == store.tokens.n_sentences else corpus.subset(kept))
    tokenizer = load_tokenizer(source.model)
    with stage("attention to special tokens"):
        encoder, pad_token_id = load(request)
        try:
            reader = AttentionReader.of(encoder, pad_token_id, source.model.name)
        except UserError as error:
            source.say(f"--extremes leaves out what attention does with special tokens: {as_clause(error)}")
            return None
        kinds = as_sinks(tokens_of(request, tokenizer), request.corpus, tokenizer)
        measures: list[Any] = [Attended.of(kinds.members)]
        if reader.projections is None:
            source.say("--extremes leaves out norms of what heads add: the model's output projections cannot be told")
        else:
            measures.append(Added(kinds.members))
        stores = accumulate(request, measures, source.cache, source.trainer, source.say)
    return Attentions(request, kept, reader, kinds, stores)


def measure_extremes(
    source: ActivationSource, store: Activations, attentions: Attentions | None, outliers: Mapping[int, Sequence[int]],
    others: Rows, seed: int,
) -> dict[str, Rows]:  # fmt: skip
    """Return the rows of the tables, by name.

    Args:
        source: The model and its cache.
        store: Hidden states of the corpus.
        attentions: What was read of the attention, if there is any.
        outliers: The outlier neurons of each layer, by the definition that was chosen.
        others: Rows of `outliers.csv`, with those by all definitions.
        seed: Seed of every random draw.
    """
    kinds = by_text(store.tokens, load_tokenizer(source.model))
    with stage(f"large values of {layers_named(source.layers)}", len(source.layers)) as advance:
        found = []
        for layer in source.layers:
            found.append(large_values(store, layer, kinds))
            advance(1)
    tables = {
        "massive": [row for one in found for row in massive_rows(one, kinds)],
        "massive_course": course_rows(found, kinds),
    }
    with stage("heads without outliers in queries and keys"):
        if attentions is None:
            return tables
        named = {layer: (chosen, _named(others, layer)) for layer, chosen in outliers.items()}
        held = _held(source, store, attentions, named, seed)
    blocks = [layer for layer in source.layers if layer > 0]
    stream = {block: stream_norms(store, block - 1, attentions.kept) for block in blocks if block - 1 in source.layers}
    sums = Sums(attentions.stores["attended"], attentions.stores.get("added"), attentions.kinds, stream)
    return {**tables, "sinks": sums.rows(blocks, seed), "held_outliers": held}


def _named(rows: Rows, layer: int) -> set[int]:
    """Return the neurons that are outliers of a layer by any definition."""
    return {row["neuron"] for row in rows if row["layer"] in (layer, ALL_LAYERS)}


def _held(
    source: ActivationSource, store: Activations, attentions: Attentions,
    outliers: Mapping[int, tuple[Sequence[int], Collection[int]]], seed: int,
) -> Rows:  # fmt: skip
    """Return the rows of `held_outliers.csv`; none, and say why, where it cannot be measured.

    Args:
        source: The model and its cache.
        store: Hidden states of the corpus.
        attentions: What was read of the attention.
        outliers: By layer, the outliers that are held, and those by any definition.
        seed: Seed of every random draw.
    """
    n_layers, d_model = attentions.reader.heads.n_layers, store.plan.d_model
    chosen = {
        layer + 1: (list(held), named) for layer, (held, named) in outliers.items()
        if held and layer < n_layers and len(held) + len({*held, *named}) <= d_model
    }  # fmt: skip
    if not chosen:
        source.say("--extremes holds no outliers in queries and keys: no layer that a block reads has any")
        return []
    sample, mass = _sample(attentions, store.tokens, seed)
    try:
        query_keys = _query_keys(attentions, int(np.bincount(sample.sentences).max()))
    except UserError as error:
        source.say(f"--extremes holds no outliers in queries and keys of {source.model.name}: {as_clause(error)}")
        return []
    compared: list[Compared] = []
    with counted("", len(chosen)) as advance:
        for block, (held, named) in chosen.items():
            heads = query_keys[block - 1]
            inputs = Inputs.of(store, block - 1, heads, sample)
            one = compare(block, held, inputs, heads, sample, seed, named)
            if agrees(one.effects, mass[block - 1]):
                compared.append(one)
            else:
                source.say(
                    f"--extremes leaves out block {block}: its attention is not that of its queries and keys alone"
                )
            advance(1)
    return held_rows(compared, seed) if compared else []


def _sample(attentions: Attentions, corpus: Tokens, seed: int) -> tuple[Sample, Any]:
    """Return some of the sentences, and the attention to special tokens that was read there, (n_layers, n_heads).

    Args:
        attentions: The attention that was read.
        corpus: The table of tokens of the whole corpus.
        seed: Seed of the draw.
    """
    store, is_causal = attentions.stores["attended"], attentions.reader.heads.is_causal
    drawn, chosen = draw_sentences(store.tokens, TOKENS, seed)
    starts = corpus.offsets[np.array(attentions.kept)[chosen]]
    rows = np.repeat(starts, drawn.lengths) + drawn.positions
    special = drawn.special | ((drawn.positions == 0) & is_causal)
    # The first type that `Attended` sums is that of all special tokens.
    mass = store.by_sentence("mass")[chosen, ..., 0].sum(0).numpy() / drawn.n_tokens
    return Sample(rows.astype(np.int64), drawn.sentences.astype(np.int64), special, is_causal), mass


def _query_keys(attentions: Attentions, longest: int) -> list[QueryKey]:
    encoder, pad_token_id = load(attentions.request)
    anatomy = examine(encoder, pad_token_id, attentions.request.source.name)
    return find_query_keys(encoder, anatomy, attentions.reader.heads, pad_token_id, longest)
