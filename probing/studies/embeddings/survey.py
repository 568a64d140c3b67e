"""Reads the documents, and measures the bias of their vectors as they are and after each correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from probing.cache import ActivationStore
from probing.downstream.names import Pooling
from probing.downstream.sentence_vectors import Draws, cosines, weighted_spearman
from probing.downstream.sts_dataset import SentencePairs
from probing.runtime.progress import stage
from probing.statistics.chance import N_DRAWS, percentile_interval
from probing.studies.embeddings.documents import Texts
from probing.studies.embeddings.measures import Values, bias, places, ratio, relative, values_of
from probing.studies.embeddings.tables import AGAINST, BAG, CENTRED, MODEL, NEURONS, POSITION, RANDOM
from probing.studies.embeddings.vectors import Pooled, PositionPart, bag_of_words

Floats = NDArray[np.float64]
Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is measured.

    Args:
        layer: The layer whose hidden states are pooled.
        pooling: How.
        neurons: The neurons that are held; None for those of whose variance position explains the largest share.
        n_neurons: How many are held.
        n_draws: Number of draws of as many random neurons.
        seed: Seed of these draws, and of the bootstrap over pairs of sentences.
    """

    layer: int
    pooling: Pooling
    neurons: Sequence[int] | None
    n_neurons: int
    n_draws: int
    seed: int


@dataclass(frozen=True)
class Read:
    """What a model has read.

    Args:
        texts: The texts of the measured documents.
        store: Their activations.
        others: The activations of other documents.
        sets: Sets of pairs of sentences with human scores, each with the activations of its sentences.
        words: The model's table of word embeddings.
    """

    texts: Texts
    store: ActivationStore
    others: ActivationStore
    sets: Sequence[tuple[SentencePairs, ActivationStore]]
    words: nn.Module


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        tables: Rows by the name of their table.
        explained: Share of the documents' vectors that the weighted sum of sentences explains, by order.
        neurons: The neurons that were held.
    """

    tables: Mapping[str, Sequence[Row]]
    explained: Mapping[str, float]
    neurons: Sequence[int]


def survey(read: Read, asked: Asked) -> Found:
    """Measure the bias of every kind of vector, and how well each agrees with human scores."""
    part = PositionPart.of(read.others, asked.layer, asked.pooling != "mean")
    neurons = part.first_neurons(asked.n_neurons) if asked.neurons is None else list(asked.neurons)
    generator = np.random.default_rng([asked.seed, 2])
    draws = [
        generator.choice(len(part.mean), len(neurons), replace=False).tolist() for _ in range(asked.n_draws)
    ]  # fmt: skip
    with stage("position bias"):
        pooled = Pooled.of(read.store, asked.layer, asked.pooling)
        own, explained = values_of(pooled.vectors, read.texts)
        found: dict[str, Values] = {MODEL: own}
        found[BAG] = values_of(bag_of_words(read.store.tokens, read.words), read.texts)[0]
        for name, vectors in _corrected(pooled, part, neurons).items():
            found[name] = values_of(vectors, read.texts)[0]
        of_draws = [values_of(part.held(pooled, one), read.texts)[0] for one in draws]
        found[RANDOM] = {key: np.mean([one[key] for one in of_draws], axis=0) for key in own}
    tables = {"bias": bias_rows(found, of_draws), "places": place_rows(found)}
    if read.sets:
        with stage("similar sentences"):
            tables["similarity"] = [row for one in read.sets for row in _of_pairs(*one, part, neurons, draws, asked)]
    return Found(tables, explained, neurons)


def _corrected(texts: Pooled, part: PositionPart, neurons: Sequence[int]) -> dict[str, Floats]:
    return {CENTRED: part.centred(texts), POSITION: part.removed(texts), NEURONS: part.held(texts, neurons)}


def bias_rows(found: Mapping[str, Values], of_draws: Sequence[Values]) -> list[Row]:
    """Return the rows of `bias.csv`.

    Args:
        found: The numbers of each document, by the name of the vectors.
        of_draws: Those of each draw of random neurons.
    """
    rows = []
    for key in found[MODEL]:
        ratios = {name: relative(values[key]) for name, values in found.items()}
        for name in [MODEL, BAG, *AGAINST]:
            row = {"measure": key[0], "order": key[1], "embedding": name} | bias(found[name][key])
            if against := AGAINST.get(name):
                row |= {"against": against, **ratio("relative_difference", ratios[name], ratios[against])}
            if name == RANDOM:
                each = [ratio("one", relative(one[key]))["one"] for one in of_draws]
                row |= {"least": min(each), "most": max(each)}
            rows.append(row)
    return rows


def place_rows(found: Mapping[str, Values]) -> list[Row]:
    """Return the rows of `places.csv`."""
    return [
        {"measure": key[0], "order": key[1], "embedding": name, **row}
        for key in found[MODEL]
        for name in [MODEL, BAG, *AGAINST]
        for row in places(found[name][key])
    ]


def _of_pairs(
    pairs: SentencePairs, store: ActivationStore, part: PositionPart, neurons: Sequence[int],
    draws: Sequence[Sequence[int]], asked: Asked,
) -> list[Row]:  # fmt: skip
    """Return the correlation of each kind of vector with human scores, and what it gains beside another kind."""
    pooled = Pooled.of(store, asked.layer, asked.pooling)
    resampled = Draws.of(pairs.subset, asked.seed, N_DRAWS)
    times = np.concatenate([np.ones((1, pairs.n_pairs), dtype=np.float32), resampled.times])

    def correlations(vectors: Floats) -> Floats:
        first, second = (torch.from_numpy(vectors[side]) for side in pairs.sentences.T)
        return weighted_spearman(cosines(first, second), pairs.gold, times)

    found = {name: correlations(vectors) for name, vectors in _corrected(pooled, part, neurons).items()}
    found[MODEL] = correlations(pooled.vectors)
    found[RANDOM] = np.mean([correlations(part.held(pooled, one)) for one in draws], axis=0)
    rows = []
    for name in [MODEL, *AGAINST]:
        low, high = percentile_interval(found[name][1:], pairs.n_pairs)
        row = {"set": pairs.label, "embedding": name, "spearman": float(found[name][0]), "low": low, "high": high}
        if against := AGAINST.get(name):
            gain = found[name] - found[against]
            low, high = percentile_interval(gain[1:], pairs.n_pairs)
            row |= {"against": against, "difference": float(gain[0]), "difference_low": low, "difference_high": high}
        rows.append({**row, "n_pairs": pairs.n_pairs})
    return rows
