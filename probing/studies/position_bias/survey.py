"""Documents, and the bias of their vectors without and with each correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import nn

from probing.activations import ActivationStore
from probing.downstream import Pooling, SentencePairs
from probing.downstream.sentence_vectors import cosines, pair_draws, sentence_vectors, weighted_spearman
from probing.errors import UserError
from probing.results import estimate_cells
from probing.runtime.progress import stage
from probing.statistics import mean_interval, mean_p_value, ratio_interval
from probing.statistics.chance import N_DRAWS, percentile_interval
from probing.statistics.two_way import MOST_POSITIONS, Design, TwoWaySums
from probing.studies.position_bias import (
    AGAINST,
    AS_WRITTEN,
    BAG,
    CENTRED,
    INSERT,
    MODEL,
    NEURONS,
    POSITION,
    RANDOM,
    REPLACE,
    SHUFFLED,
    WEIGHT,
)
from probing.text import Corpus, from_sentences
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# Documents as runs of consecutive sentences, and the texts in which one of their sentences is edited.
# --------------------------------------------------------------------------------------------------------------------

Ints = NDArray[np.int64]

# Among how many sentences of the nearest length the one is drawn that replaces another.
NEAREST = 10
# How many runs of sentences are looked at for every document that is wanted, and how many others are read for each.
LOOKED_AT, OTHERS = 4, 2


@dataclass(frozen=True)
class Documents:
    """Documents of equally many sentences.

    Args:
        evaluated: Sentence indices of the measured documents, shape (n_documents, n_sentences).
        others: The same of other documents, the source of replacing sentences and position parts.
        n_tokens: Number of tokens of each sentence without special tokens; 0 for sentences of no document.
        n_too_long: Number of examined runs that the model does not take whole.
        room: Maximal number of tokens that an edit may add, shape (n_documents,).
    """

    sentences: Sequence[str]
    evaluated: Ints
    others: Ints
    n_tokens: Ints
    n_too_long: int
    room: Ints

    @property
    def of_others(self) -> Corpus:
        """Corpus of the other documents, a text each."""
        return from_sentences("other documents", [self.text(document.tolist()) for document in self.others])

    def text(self, sentences: Sequence[int]) -> str:
        """Return a text of some sentences, with spaces between."""
        return " ".join(self.sentences[i] for i in sentences)


def runs_of(corpus: Corpus, n_sentences: int) -> Ints:
    """Return all disjoint runs of `n_sentences` consecutive sentences, shape (n_runs, n_sentences).

    If the corpus has documents, no run crosses their borders, and the first run of each begins at its start.
    """
    numbers = np.asarray(corpus.documents or np.zeros(len(corpus.sentences)), dtype=np.int64)
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    runs = [
        np.arange(first, first + n_sentences)
        for start, end in pairwise(cuts)
        for first in range(start, end - n_sentences + 1, n_sentences)
    ]
    return np.stack(runs) if runs else np.empty((0, n_sentences), dtype=np.int64)


def documents_of(
    corpus: Corpus, n_sentences: int, n_documents: int, inserts: bool, limit: int, n_special: int,
    n_tokens_of: Callable[[Sequence[str]], Ints], seed: int,
) -> Documents:  # fmt: skip
    """Draw documents that a model takes whole, and other documents.

    Args:
        n_documents: Maximal number of measured documents; at most half of all.
        inserts: Whether sentences are inserted, which needs room.
        limit: Maximal number of tokens of a text.
        n_special: Number of special tokens of a text.
        n_tokens_of: Returns the number of tokens of sentences, without special tokens.

    Raises:
        UserError: If there are fewer than four documents.
    """
    runs = runs_of(corpus, n_sentences)
    runs = np.random.default_rng(seed).permutation(runs)[: LOOKED_AT * n_documents]
    n_tokens = np.zeros(len(corpus.sentences), dtype=np.int64)
    if len(runs):
        n_tokens[runs.ravel()] = n_tokens_of([corpus.sentences[i] for i in runs.ravel()])
    lengths = n_tokens[runs]
    room = limit - n_special - lengths.sum(1)
    fits = room >= (np.median(lengths, axis=1) if inserts and len(runs) else 0)
    fitting_runs, room = runs[fits], room[fits]
    if len(fitting_runs) < 4:
        in_documents = "" if corpus.documents is None else " of one document"
        raise UserError(
            f"`--sentences {n_sentences}`: expected at least 4 runs of {n_sentences} consecutive "
            f"sentences{in_documents} that the model takes whole ({limit} tokens), found {len(fitting_runs)} in "
            f"{corpus.name}, and {len(runs) - len(fitting_runs)} that are too long; give more text or fewer sentences."
        )
    n = min(n_documents, len(fitting_runs) // 2)
    others = fitting_runs[n : n + OTHERS * n_documents]
    return Documents(corpus.sentences, fitting_runs[:n], others, n_tokens, int((~fits).sum()), room[:n])


@dataclass(frozen=True)
class DocumentTexts:
    """All texts of the measured documents: the distinct texts in `corpus`, and indices into it.

    Args:
        orders: Index in the document of the sentence at each place, shape (n_orders, n_documents, n_sentences).
        intact: The text of each document in each order, shape (n_orders, n_documents).
        edited: By edit, the text after it at each place, shape (n_orders, n_documents, n_places).
        alone: The text of each sentence alone, shape (n_documents, n_sentences).
        shares: Share of each sentence in the tokens of its document, shape (n_documents, n_sentences).
        donor_distance: Mean difference in tokens between a sentence and its replacement.
    """

    corpus: Corpus
    orders: Ints
    intact: Ints
    edited: Mapping[str, Ints]
    alone: Ints
    shares: NDArray[np.float64]
    donor_distance: float


def texts_of(documents: Documents, edits: Sequence[str], seed: int) -> DocumentTexts:
    """Return the documents in three orders, each with every edit at every place, and their sentences alone.

    The shuffled order is drawn for each document. In its reverse, every sentence is at the opposite place with the same
    edit, so that the first and the last place have the same sentences.
    """
    generator = np.random.default_rng([seed, 1])
    n_documents, n_sentences = documents.evaluated.shape
    index: dict[str, int] = {}

    def number(sentences: Sequence[int]) -> int:
        return index.setdefault(documents.text(sentences), len(index))

    shuffled = np.stack([generator.permutation(n_sentences) for _ in range(n_documents)])
    orders = np.stack([np.tile(np.arange(n_sentences), (n_documents, 1)), shuffled, shuffled[:, ::-1]])
    donors, inserted, distance = _donors(documents, generator)
    alone = np.array([[number([i]) for i in sentence_indices] for sentence_indices in documents.evaluated.tolist()])
    intact = np.zeros(orders.shape[:2], dtype=np.int64)
    edited: dict[str, list[list[list[int]]]] = {name: [[] for _ in orders] for name in edits}
    for which, order in enumerate(orders):
        for i, sentence_order in enumerate(order):
            text = documents.evaluated[i, sentence_order].tolist()
            intact[which, i] = number(text)
            others = donors[i, sentence_order].tolist()
            for name in edits:
                edited_texts = edited_at_all_places(text, name, others, int(inserted[i]))
                edited[name][which].append([number(sentence_indices) for sentence_indices in edited_texts])
    lengths = documents.n_tokens[documents.evaluated]
    return DocumentTexts(
        from_sentences("edited documents", index), orders, intact,
        {name: np.array(text_numbers) for name, text_numbers in edited.items()}, alone,
        lengths / lengths.sum(1, keepdims=True), distance,
    )  # fmt: skip


def edited_at_all_places(text: Sequence[int], edit: str, others: Sequence[int], inserted: int) -> list[list[int]]:
    """Return a text after an edit at each place; `others` has the replacements, insertions have an additional place."""
    if edit == INSERT:
        return [[*text[:at], inserted, *text[at:]] for at in range(len(text) + 1)]
    new = [[other] for other in others] if edit == REPLACE else [[] for _ in text]
    return [[*text[:at], *new[at], *text[at + 1 :]] for at in range(len(text))]


def _donors(documents: Documents, generator: np.random.Generator) -> tuple[Ints, Ints, float]:
    """Draw the replacement of each sentence, and the sentence that is inserted everywhere, from other documents.

    Each is drawn from the `NEAREST` closest in length to the replaced sentence, or to the document's median sentence,
    among those that fit; no sentence is drawn twice for a document.
    """
    pool = documents.others.ravel()
    lengths = documents.n_tokens[pool]
    drawn, inserted, distances = [], [], []
    for document, room in zip(documents.evaluated, documents.room, strict=True):
        replaced_lengths = documents.n_tokens[document]
        taken = np.zeros(len(pool), dtype=bool)
        donor_indices = []
        for length, most in [
            *zip(replaced_lengths, replaced_lengths + room, strict=True),
            (np.median(replaced_lengths), room),
        ]:
            distance = np.abs(lengths - length) + np.where(taken | (lengths > most), lengths.max() + 1.0, 0.0)
            nearest = np.argsort(distance, kind="stable")[:NEAREST]
            # Among these, none that is taken or too long, if there is another one.
            good = nearest[distance[nearest] <= lengths.max()]
            at = generator.choice(good if len(good) else nearest[:1])
            taken[at] = True
            donor_indices.append(at)
        drawn.append(pool[donor_indices[:-1]])
        inserted.append(pool[donor_indices[-1]])
        distances.append(np.abs(lengths[donor_indices[:-1]] - replaced_lengths).mean())
    return np.stack(drawn), np.array(inserted), float(np.mean(distances))


# --------------------------------------------------------------------------------------------------------------------
# The vectors of texts, and what is taken from them after the model: a mean, position parts, and neurons.
# --------------------------------------------------------------------------------------------------------------------

Floats = NDArray[np.float64]

# A position of fewer tokens has the part of the last one before it that has as many; less where there are fewer texts.
LEAST = 10


def bag_of_words(tokens: Tokens, table: nn.Module) -> Floats:
    """Return the mean word embedding of each text's non-special tokens, shape (n_texts, width); 0 without any."""
    is_content = ~tokens.special
    ids, at = np.unique(tokens.input_ids[is_content], return_inverse=True)
    device = next(table.parameters()).device
    with torch.inference_mode():
        rows = table(torch.from_numpy(ids.astype(np.int64)).to(device)).cpu().double().numpy()
    where = tokens.sentences[is_content], at
    counts = csr_matrix((np.ones(len(at)), where), shape=(tokens.n_sentences, len(ids)))
    return np.asarray(counts @ rows / np.maximum(counts.sum(1).reshape(-1, 1), 1))


@dataclass(frozen=True)
class Pooled:
    """Vectors of texts, shape (n_texts, d_model), pooled from position `first` to before `stop`, shape (n_texts,)."""

    vectors: Floats
    first: Ints
    stop: Ints

    @classmethod
    def of(cls, store: ActivationStore, layer: int, pooling: Pooling) -> Pooled:
        """Pool the hidden states of a layer by `mean`, `mean_special` or `cls`."""
        tokens = store.tokens
        first, stop = np.zeros(tokens.n_sentences, dtype=np.int64), tokens.lengths.astype(np.int64)
        if pooling == "cls":
            stop = first + 1
        elif pooling == "mean":  # special tokens are at the ends
            positions = np.where(tokens.special, -1, tokens.positions)
            stop = np.maximum.reduceat(positions, tokens.offsets[:-1]) + 1
            positions = np.where(tokens.special, tokens.n_tokens, tokens.positions)
            first = np.minimum.reduceat(positions, tokens.offsets[:-1])
            first = np.minimum(first, stop)
        return cls(sentence_vectors(store, layer, pooling).double().numpy(), first.astype(np.int64), stop)


@dataclass(frozen=True)
class PositionPart:
    """Contribution of the position to hidden states, estimated on texts by a two-way analysis of variance.

    Args:
        means: Mean of all tokens plus the part of each position, shape (n_positions, d_model).
        mean: Mean of all tokens, shape (d_model,).
        shares: Share of each neuron's variance over non-special tokens that positions explain beyond texts and chance,
            shape (d_model,); 0 for a constant neuron.
    """

    means: Floats
    mean: Floats
    shares: Floats

    @classmethod
    def of(cls, store: ActivationStore, layer: int, with_special: bool = True) -> PositionPart:
        """Estimate the part on the activations of texts; `with_special` includes special tokens in the means."""
        tokens = store.tokens
        near, words = tokens.positions < MOST_POSITIONS, ~tokens.special
        of_words = _summed(store, layer, near & words)
        sums = _summed(store, layer, near) if with_special else of_words
        design, origin = sums.design, sums.origin
        assert origin is not None  # there are tokens
        n, positions = design.whole.n, design.values
        mean = origin.numpy() + sums.by_position.sum((0, 1)) / n.sum()
        enough = np.flatnonzero(n >= min(LEAST, tokens.n_sentences))
        at = np.searchsorted(positions[enough], np.arange(positions[-1] + 1), side="right") - 1
        part = sums.position_part(design.whole)[enough[np.maximum(at, 0)]]
        return cls(mean + part, mean, np.nan_to_num(of_words.shares(by_neuron=True)[0].excess["position"]))

    def over(self, first: Ints, stop: Ints) -> Floats:
        """Return the mean of `means` over positions from `first` to before `stop` of each text, shape (n, d_model).

        Positions after the last known position have its mean.
        """
        n_more = max(int(stop.max()) - len(self.means), 0)
        means = np.concatenate([self.means, np.repeat(self.means[-1:], n_more, axis=0)])
        until = np.concatenate([np.zeros((1, means.shape[1])), np.cumsum(means, axis=0)])
        return np.asarray((until[stop] - until[first]) / np.maximum(stop - first, 1)[:, None])

    def first_neurons(self, n: int) -> list[int]:
        """Return the neurons with the largest share of position; ties by index."""
        return [int(i) for i in np.argsort(-self.shares, kind="stable")[:n]]

    def centred(self, texts: Pooled) -> Floats:
        """Return vectors minus the mean of all tokens."""
        return np.asarray(texts.vectors - self.mean)

    def removed(self, texts: Pooled) -> Floats:
        """Return vectors minus the mean and the position parts of their tokens, as if subtracted from each token."""
        return np.asarray(texts.vectors - self.over(texts.first, texts.stop))

    def with_mean_neurons(self, texts: Pooled, neurons: Sequence[int]) -> Floats:
        """Return vectors in which some neurons have the mean of all tokens, as if fixed there in each token."""
        vectors = texts.vectors.copy()
        vectors[:, list(neurons)] = self.mean[list(neurons)]
        return vectors


def _summed(store: ActivationStore, layer: int, selected: NDArray[np.bool_]) -> TwoWaySums:
    tokens = store.tokens
    design = Design(tokens.sentences[selected], tokens.positions[selected])
    sums = TwoWaySums(design, store.read(layer, 0).shape[1])
    for shard in store.plan.shards:
        sums.update(store.read(layer, shard.index)[torch.from_numpy(selected[shard.rows(store.tokens)])])
    return sums


# --------------------------------------------------------------------------------------------------------------------
# How far an edit at each place moves the vector of a document, and what each sentence weighs in it.
# --------------------------------------------------------------------------------------------------------------------

# Numbers of each document at each place, shape (n_documents, n_places), by the measure and the order of sentences.
Values = Mapping[tuple[str, str], Floats]

# The orders of `DocumentTexts` that belong together: their numbers are averaged.
ORDERS = {AS_WRITTEN: [0], SHUFFLED: [1, 2]}
# Differences that are smaller are taken for rounding.
DECIMALS = 7


def changes(vectors: Floats, intact: Ints, edited: Ints) -> Floats:
    """Return 1 minus the cosine of each document's vector before and after an edit, shape (n_documents, n_places).

    `vectors` has a row per text; `intact`, shape (n_documents,), and `edited`, shape (n_documents, n_places), index
    them.
    """
    before = torch.from_numpy(vectors[np.repeat(intact, edited.shape[1])])
    distances = 1 - cosines(before, torch.from_numpy(vectors[edited.ravel()]))
    return np.asarray(distances.reshape(edited.shape))


def weights(documents: Floats, parts: Floats) -> tuple[Floats, float]:
    """Fit the vectors of documents by weighted sums of vectors of their sentences, with the same weights for all.

    The weights minimise the squared distance over all documents and neurons, without an intercept.

    Args:
        documents: Vectors of each document, in one or more orders, shape (n_documents, n_orders, d_model).
        parts: The vector of the sentence at each place, shape (n_documents, n_orders, n_sentences, d_model).

    Returns:
        The jackknife's pseudo-values, shape (n_documents, n_sentences), whose mean is the weights, and the share of the
        squared length of the documents' vectors that the fit explains.
    """
    grams = np.einsum("noid,nojd->nij", parts, parts)
    products = np.einsum("noid,nod->ni", parts, documents)
    gram, product = grams.sum(0), products.sum(0)
    solution = np.linalg.pinv(gram, hermitian=True) @ product
    total = float((documents**2).sum())
    explained = float(2 * solution @ product - solution @ gram @ solution) / total if total else float("nan")
    without = (np.linalg.pinv(gram - grams, hermitian=True) @ (product - products)[..., None])[..., 0]
    pseudo = solution - (len(documents) - 1) * (without - without.mean(0))
    return np.asarray(pseudo.round(DECIMALS)), explained


def values_of(vectors: Floats, texts: DocumentTexts) -> tuple[dict[tuple[str, str], Floats], dict[str, float]]:
    """Return the numbers of each document by measure and order, and the share that each order's fit explains.

    Vectors of texts have shape (n_texts, d_model).
    """
    values: dict[tuple[str, str], Floats] = {}
    explained: dict[str, float] = {}
    # A sentence weighs as much as its share of the tokens if all tokens weigh the same.
    alone = vectors[texts.alone] * texts.shares[..., None]
    for order, which in ORDERS.items():
        for name, edited in texts.edited.items():
            values[name, order] = np.mean([changes(vectors, texts.intact[i], edited[i]) for i in which], axis=0)
        parts = np.stack([np.take_along_axis(alone, texts.orders[i][..., None], axis=1) for i in which], axis=1)
        documents = np.stack([vectors[texts.intact[i]] for i in which], axis=1)
        values[WEIGHT, order], explained[order] = weights(documents, parts)
    return values, explained


def middle(n_places: int) -> list[int]:
    """Return the index of the middle place, or of both."""
    return sorted({(n_places - 1) // 2, n_places // 2})


def relative(values: Floats) -> tuple[Floats, Floats]:
    """Return the difference of the first and the last place, and the mean over places, of each document."""
    return values[:, 0] - values[:, -1], values.mean(1)


def bias(values: Floats) -> dict[str, Any]:
    """Return the numbers at the start, in the middle and at the end, and their differences with intervals.

    Values have shape (n_documents, n_places).
    """
    ones = np.ones(len(values), dtype=np.int64)
    start, end, between = values[:, 0], values[:, -1], values[:, middle(values.shape[1])].mean(1)
    row: dict[str, Any] = {"at_start": start.mean(), "at_middle": between.mean(), "at_end": end.mean()}
    for name, difference in (("start_end", start - end), ("start_middle", start - between)):
        row |= estimate_cells(name, difference.mean(), mean_interval(difference, ones))
        p_value = mean_p_value(difference, ones)
        row[f"{name}_p"] = None if math.isnan(p_value) else p_value
    return row | ratio("relative", relative(values)) | {"n_documents": len(values)}


def ratio(name: str, *ratios: tuple[Floats, Floats]) -> dict[str, Any]:
    """Return a ratio of sums over documents, or the difference of two, with its interval."""
    with np.errstate(invalid="ignore", divide="ignore"):
        each = [float(above.sum() / below.sum()) for above, below in ratios]
    return estimate_cells(name, each[0] - sum(each[1:]), ratio_interval(*ratios))


def places(values: Floats) -> Iterable[dict[str, Any]]:
    """Yield the mean at each place, counted from 1, with its interval over documents."""
    ones = np.ones(len(values), dtype=np.int64)
    for at, place_values in enumerate(values.T):
        cells = estimate_cells("value", place_values.mean(), mean_interval(place_values, ones), "")
        yield {"position": at + 1, **cells, "n_documents": len(values)}


Row = dict[str, Any]


@dataclass(frozen=True)
class BiasConfig:
    """Options of the measurement: the pooled layer, and `n_neurons` fixed neurons, compared with random neurons.

    Without `neurons`, those with the largest share of variance explained by position are fixed. `seed` is of the draws
    and of the bootstrap over pairs of sentences.
    """

    layer: int
    pooling: Pooling
    neurons: Sequence[int] | None
    n_neurons: int
    n_draws: int
    seed: int


@dataclass(frozen=True)
class DocumentVectors:
    """Activations of the measured texts, of other documents and of scored sentence pairs, and the word embeddings."""

    texts: DocumentTexts
    store: ActivationStore
    others: ActivationStore
    sets: Sequence[tuple[SentencePairs, ActivationStore]]
    words: nn.Module


def survey(read: DocumentVectors, config: BiasConfig) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Measure the bias of every kind of vector, and its agreement with human scores; return tables and results.

    The results are the share of document vectors explained by weighted sentences, by order, and the fixed neurons.
    """
    part = PositionPart.of(read.others, config.layer, config.pooling != "mean")
    neurons = part.first_neurons(config.n_neurons) if config.neurons is None else list(config.neurons)
    generator = np.random.default_rng([config.seed, 2])
    draws = [generator.choice(len(part.mean), len(neurons), replace=False).tolist() for _ in range(config.n_draws)]
    with stage("position bias"):
        pooled = Pooled.of(read.store, config.layer, config.pooling)
        model_values, explained = values_of(pooled.vectors, read.texts)
        values: dict[str, Values] = {MODEL: model_values}
        values[BAG] = values_of(bag_of_words(read.store.tokens, read.words), read.texts)[0]
        for name, vectors in _corrected(pooled, part, neurons).items():
            values[name] = values_of(vectors, read.texts)[0]
        of_draws = [values_of(part.with_mean_neurons(pooled, draw), read.texts)[0] for draw in draws]
        values[RANDOM] = {key: np.mean([draw[key] for draw in of_draws], axis=0) for key in model_values}
    tables = {"bias": bias_rows(values, of_draws), "places": place_rows(values)}
    if read.sets:
        with stage("similar sentences"):
            tables["similarity"] = [row for draw in read.sets for row in _of_pairs(*draw, part, neurons, draws, config)]
    return tables, {"explained": explained, "neurons": neurons}


def _corrected(texts: Pooled, part: PositionPart, neurons: Sequence[int]) -> dict[str, Floats]:
    return {
        CENTRED: part.centred(texts),
        POSITION: part.removed(texts),
        NEURONS: part.with_mean_neurons(texts, neurons),
    }


def bias_rows(values_by_name: Mapping[str, Values], of_draws: Sequence[Values]) -> list[Row]:
    """Return the rows of `bias.csv`, from the numbers of each document by vectors, and by random draw."""
    rows = []
    for key in values_by_name[MODEL]:
        ratios = {name: relative(values[key]) for name, values in values_by_name.items()}
        for name in [MODEL, BAG, *AGAINST]:
            row = {"measure": key[0], "order": key[1], "embedding": name} | bias(values_by_name[name][key])
            if against := AGAINST.get(name):
                row |= {"against": against, **ratio("relative_difference", ratios[name], ratios[against])}
            if name == RANDOM:
                each = [ratio("one", relative(draw_values[key]))["one"] for draw_values in of_draws]
                row |= {"least": min(each), "most": max(each)}
            rows.append(row)
    return rows


def place_rows(values_by_name: Mapping[str, Values]) -> list[Row]:
    """Return the rows of `places.csv`."""
    return [
        {"measure": key[0], "order": key[1], "embedding": name, **row}
        for key in values_by_name[MODEL]
        for name in [MODEL, BAG, *AGAINST]
        for row in places(values_by_name[name][key])
    ]


def _of_pairs(
    pairs: SentencePairs, store: ActivationStore, part: PositionPart, neurons: Sequence[int],
    draws: Sequence[Sequence[int]], config: BiasConfig,
) -> list[Row]:  # fmt: skip
    pooled = Pooled.of(store, config.layer, config.pooling)
    resampled = pair_draws(pairs.subset, config.seed, N_DRAWS)
    times = np.concatenate([np.ones((1, pairs.n_pairs), dtype=np.float32), resampled])

    def correlations(vectors: Floats) -> Floats:
        first, second = (torch.from_numpy(vectors[side]) for side in pairs.sentences.T)
        return weighted_spearman(cosines(first, second), pairs.gold, times)

    correlations_by_name = {name: correlations(vectors) for name, vectors in _corrected(pooled, part, neurons).items()}
    correlations_by_name[MODEL] = correlations(pooled.vectors)
    correlations_by_name[RANDOM] = np.mean(
        [correlations(part.with_mean_neurons(pooled, draw)) for draw in draws], axis=0
    )
    rows = []
    for name in [MODEL, *AGAINST]:
        values = correlations_by_name[name]
        interval = percentile_interval(values[1:], pairs.n_pairs)
        row = {"set": pairs.label, "embedding": name, **estimate_cells("spearman", float(values[0]), interval, "")}
        if against := AGAINST.get(name):
            gain = values - correlations_by_name[against]
            interval = percentile_interval(gain[1:], pairs.n_pairs)
            row |= {"against": against, **estimate_cells("difference", float(gain[0]), interval)}
        rows.append({**row, "n_pairs": pairs.n_pairs})
    return rows
