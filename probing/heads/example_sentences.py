"""Chooses a few short sentences of a corpus, and reads the attention of every head in them.

Sums over a corpus say what heads do, and an example shows it. Sentences are chosen so that there is a map of each class
and that many dependency relations occur; the model reads them once more, each alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import load
from probing.errors import UserError
from probing.heads import ClassExample, Example, Examples, ExampleSentence
from probing.heads.accumulation import Attention, AttentionReader, Batch, Kept, SumsStore
from probing.heads.rows import CLASSES, PATTERNS, classify
from probing.heads.subject import Subject, without_first
from probing.heads.syntax import LEAST_ARCS, Arcs, arcs_of, has_arcs
from probing.models import load_tokenizer
from probing.models.examination import n_token_types
from probing.text import Corpus

# Number of example sentences, and how long they are.
N_SENTENCES = 6
FEWEST_WORDS, MOST_WORDS, MOST_TOKENS = 5, 12, 16


def examples_of(subject: Subject, stores: Mapping[str, SumsStore]) -> Examples | None:
    """Choose example sentences, and read their attention; None if no sentence is short enough.

    Args:
        subject: Model and corpus.
        stores: The sums of each measure by its name; those of the classes decide which maps are examples of a class.
    """
    candidates = short_sentences(subject)
    if not len(candidates):
        return None
    there = {}
    if PATTERNS.name in stores:
        there = maps_of_classes(stores[PATTERNS.name].all_by_sentence(), subject.lengths, subject.layers)
    has_class = {name: is_there[candidates] for name, (_, is_there) in there.items()}
    shown = [name for name, of in has_class.items() if of.any()]
    chosen = cover(np.array([has_class[name] for name in shown], dtype=bool).T.reshape(len(candidates), -1), [])
    chosen = cover(_relations_of(subject, candidates), chosen)
    chosen += [i for i in range(len(candidates)) if i not in chosen][: N_SENTENCES - len(chosen)]
    sentences = candidates[chosen].tolist()
    classes = {}
    for name in shown:
        (layer, head, share), is_there = there[name]
        classes[name] = ClassExample([bool(is_there[one]) for one in sentences].index(True), layer, head, share)
    return Examples(subject.layers, read_maps(subject, sentences), classes)


def short_sentences(subject: Subject) -> NDArray[np.int64]:
    """Return the indices of the sentences that are short enough to be shown, but have a few words if possible."""
    tokens = subject.tokens
    first = tokens.first_pieces & ~tokens.special
    n_words = np.bincount(tokens.sentences[first], minlength=tokens.n_sentences)
    if subject.request.corpus.words is not None:  # words without a piece, and words that were cut off
        n_words = np.maximum(n_words, [len(words) for words in subject.request.corpus.words])
    short = (tokens.lengths <= MOST_TOKENS) & (n_words <= MOST_WORDS) & (n_words >= 2)
    return np.flatnonzero(several if (several := short & (n_words >= FEWEST_WORDS)).any() else short)


def maps_of_classes(
    sums: Mapping[str, Tensor], lengths: NDArray[np.int32], layers: Sequence[int]
) -> dict[str, tuple[tuple[int, int, float], NDArray[np.bool_]]]:
    """Return for each class that occurs the head that has it most often, and which maps of this head have it.

    Args:
        sums: How vertical (v) and how diagonal (d) each map is, and of pairs of sentences how much it keeps within them
            (b), each of shape (n_sentences, all layers, heads).
        lengths: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens do not count.
        layers: The layers that are reported.

    Returns:
        By class: the numbers of the layer and the head (both from 1) with the largest share of maps of the class, the
            first one of equal shares, and this share; and whether the head's map of each sentence has the class, shape
            (n_sentences,).
    """
    there = lengths > 0
    here = {name: sums[name][:, [layer - 1 for layer in layers]] for name in ("v", "d", "b") if name in sums}
    found = classify(here["v"], here["d"], here.get("b")).numpy()
    made = {}
    for index, name in enumerate(CLASSES):
        is_of = (found == index) & there[:, None, None]
        shares = is_of.sum(0) / max(int(there.sum()), 1)
        if shares.any():
            layer, head = np.unravel_index(int(shares.argmax()), shares.shape)
            share = float(shares[layer, head])
            made[name] = (layers[int(layer)], int(head) + 1, share), is_of[:, layer, head]
    return made


def cover(has: NDArray[np.bool_], chosen: Sequence[int], most: int = N_SENTENCES) -> list[int]:
    """Choose rows that together have many properties: at each step, the first of those that add most new properties.

    Args:
        has: Which properties each row has, shape (n, n_properties).
        chosen: Rows that are chosen already.
        most: Most rows.
    """
    found = list(chosen)
    while len(found) < most:
        new = (has & ~has[found].any(0)).sum(1)
        if not new.any():
            break
        found.append(int(new.argmax()))
    return found


def read_maps(subject: Subject, sentences: Sequence[int]) -> list[Example]:
    """Run the model over some sentences, each alone, and return them with the attention of the reported layers.

    Args:
        subject: Model and corpus.
        sentences: Indices of the sentences.
    """
    tokens, corpus = subject.tokens, subject.request.corpus
    encoder, pad_token_id = load(subject.request)
    n_types = n_token_types(encoder, load_tokenizer(subject.request.source), corpus.seconds is not None)
    reader = AttentionReader.of(encoder, pad_token_id, subject.request.source.name, n_types)
    texts, words = tokens.piece_texts(corpus), tokens.word_texts(corpus)
    arcs = _arcs_of(corpus)
    found = []

    def begin(batch: Batch) -> _Maps:
        return _Maps(subject.layers)

    for sentence in sentences:
        rows = tokens.of_sentences(sentence, 1)
        batch = _batch(subject, rows, sentence, reader.n_token_types)
        with torch.inference_mode():
            (kept,) = reader.read(encoder, batch, [without_first(begin) if subject.asked.without_first else begin])
        own = ExampleSentence(
            sentence,
            texts[rows].tolist(),
            batch.special[0].tolist(),
            _words(subject, sentence, words[rows]),
            # As wherever heads are measured between words, special tokens belong to no word.
            torch.where(batch.special[0], -1, batch.words[0]).tolist(),
            [] if arcs is None else _triples(arcs.where(arcs.sentences == sentence)),
        )
        found.append(Example(own, kept.by_sentence["maps"][0].numpy()))
    return found


def _batch(subject: Subject, rows: slice, sentence: int, n_token_types: int) -> Batch:
    """Return one sentence as a batch."""
    tokens = subject.tokens
    ids, words = (torch.from_numpy(values[rows].astype(np.int64))[None] for values in (tokens.input_ids, tokens.words))
    segments, token_types = (
        None if values is None else torch.from_numpy(values[rows].astype(np.int64))[None]
        for values in (tokens.segments, tokens.types_for(n_token_types))
    )
    return Batch(
        sentences=torch.tensor([sentence]),
        rows=torch.arange(rows.start, rows.stop)[None],
        input_ids=ids,
        mask=torch.ones_like(ids, dtype=torch.bool),
        special=torch.from_numpy(subject.special[rows])[None],
        words=words,
        is_causal=subject.heads.is_causal,
        segments=segments,
        token_types=token_types,
    )


class _Maps:
    """Keeps the maps of some layers as they are."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers, self.found = layers, [torch.empty(0)] * len(layers)

    def add(self, attention: Attention) -> None:
        if attention.layer in self.layers:
            self.found[self.layers.index(attention.layer)] = attention.probabilities.float().cpu().clone()

    def kept(self) -> Kept:
        return Kept({"maps": torch.stack(self.found, dim=1)})


def _words(subject: Subject, sentence: int, of_tokens: NDArray[np.object_]) -> list[str]:
    """Return the words of a sentence; for running text, the words into which the tokenizer divides it."""
    if subject.request.corpus.words is not None:
        return list(subject.request.corpus.words[sentence])
    indices = subject.tokens.words[subject.tokens.of_sentences(sentence, 1)].tolist()
    by_index = dict(zip(indices, of_tokens.tolist(), strict=True))
    return [str(by_index.get(i, "")) for i in range(max(indices, default=-1) + 1)]


def _arcs_of(corpus: Corpus) -> Arcs | None:
    """Return the arcs of a treebank without those of punctuation; None for running text and for malformed arcs.

    Parts of the survey that need arcs refuse malformed ones; examples are then shown without arcs.
    """
    if not has_arcs(corpus):
        return None
    try:
        arcs = arcs_of(corpus)
    except UserError:
        return None
    return arcs.where(~arcs.is_punctuation)


def _triples(arcs: Arcs) -> list[tuple[int, int, str]]:
    return list(zip(arcs.dependents.tolist(), arcs.heads.tolist(), map(str, arcs.relations), strict=True))


def _relations_of(subject: Subject, sentences: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which frequent relations of the treebank each sentence has, shape (n, n_relations)."""
    corpus = subject.request.corpus
    if (arcs := _arcs_of(corpus)) is None:
        return np.zeros((len(sentences), 0), dtype=bool)
    _, index, counts = np.unique(arcs.relations.astype(str), return_inverse=True, return_counts=True)
    has = np.zeros((len(corpus.sentences), len(counts)), dtype=bool)
    has[arcs.sentences, index] = True
    return has[sentences][:, counts >= min(LEAST_ARCS, counts.max(initial=0))]
