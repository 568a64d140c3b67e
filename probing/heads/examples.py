"""Example sentences of a corpus, chosen so that each class has a map, and the attention of every head in them.

The sentences are short, and many dependency relations occur in them. The model reads each of them once more, in a
separate batch.

`examples.safetensors` has a tensor `attention/0`, `attention/1`, ... for each sentence, shape (n_layers, n_heads, from,
to), float16 (three digits). Its metadata are JSON: `layers`, the layer numbers; `sentences`, with the fields of
`ExampleSentence`; `classes`, with the fields of `ClassExample` by class of maps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import load
from probing.errors import UserError
from probing.heads.accumulation import (
    AttentionReader,
    BlockAttention,
    SentenceBatch,
    StackedBlocks,
    SumsStore,
    TokenRows,
)
from probing.heads.measures import CLASSES, PATTERNS, classify, without_first
from probing.heads.survey import HeadSurvey
from probing.heads.syntax import LEAST_ARCS, Arcs, arcs_of, has_arcs
from probing.models import load_tokenizer
from probing.models.examination import n_token_types
from probing.runtime.files import parse_json, regular, write_tensors
from probing.text import Corpus

NAME = "examples.safetensors"

Arc = tuple[int, int, str]


@dataclass(frozen=True)
class ExampleSentence:
    """A sentence and its tokens.

    Args:
        sentence: Index in the corpus, from 0.
        tokens: Text of each token as in the sentence; the name of a special token.
        special: Whether each token is special; the first token of a causal model is.
        word_of_token: Index of each token's word, -1 for special tokens.
        arcs: Dependent, head and relation of each treebank arc between two words; empty for running text.
    """

    sentence: int
    tokens: Sequence[str]
    special: Sequence[bool]
    words: Sequence[str]
    word_of_token: Sequence[int]
    arcs: Sequence[Arc] = ()


@dataclass(frozen=True)
class Example:
    """A sentence and its attention maps, shape (n_layers, n_heads, from, to)."""

    of: ExampleSentence
    maps: NDArray[np.float32]

    @cached_property
    def word_maps(self) -> NDArray[np.float32]:
        """The attention between different words, shape (n_layers, n_heads, from, to), as for dependency relations.

        Attention to a word is the sum over its pieces, attention from a word the mean over them. It is 0 from a word to
        itself, and from and to words without a piece in the input.
        """
        pieces = np.array(self.of.word_of_token)[:, None] == np.arange(len(self.of.words))
        means = (pieces / np.maximum(pieces.sum(0), 1)).T
        maps: NDArray[np.float32] = (means @ (self.maps @ pieces)).astype(np.float32)
        return np.where(np.eye(len(self.of.words), dtype=bool), np.float32(0), maps)

    def strongest(self, layer: int, head: int) -> list[tuple[int, int, float]]:
        """Return each word's index, the other word that it attends to most (ties: the earlier), and the attention."""
        words = self.word_maps[layer, head]
        return [(i, int(row.argmax()), float(row.max())) for i, row in enumerate(words) if row.any()]

    def mass_on_special(self, layer: int, head: int) -> float:
        """Return the mean attention of all tokens to special tokens."""
        return float(self.maps[layer, head][:, np.array(self.of.special)].sum(1).mean())


@dataclass(frozen=True)
class ClassExample:
    """An attention map of a class, with the class's share of the head's maps; layer and head count from 1."""

    example: int
    layer: int
    head: int
    share: float


@dataclass(frozen=True)
class ExampleMaps:
    """The examples of a survey: layer numbers, sentences, and a map of each class that occurs among short sentences."""

    layers: Sequence[int]
    examples: Sequence[Example]
    classes: Mapping[str, ClassExample] = field(default_factory=dict)

    def map_of(self, name: str) -> tuple[ExampleSentence, NDArray[np.float32]]:
        """Return the sentence and the map of a class, shape (from, to)."""
        class_example = self.classes[name]
        example = self.examples[class_example.example]
        return example.of, example.maps[list(self.layers).index(class_example.layer), class_example.head - 1]


def write_examples(folder: Path, examples: ExampleMaps) -> Path:
    """Write the examples to a run's folder, and return the path of the file."""
    described = {
        "layers": list(examples.layers),
        "sentences": [asdict(example.of) for example in examples.examples],
        "classes": {name: asdict(example) for name, example in examples.classes.items()},
    }
    tensors = {f"attention/{i}": example.maps.astype(np.float16) for i, example in enumerate(examples.examples)}
    path = folder / NAME
    write_tensors(path, tensors, {name: json.dumps(value) for name, value in described.items()})
    return path


def read_examples(folder: Path) -> ExampleMaps | None:
    """Return the examples in a run's folder; None if it has none, for example because no sentence is short enough.

    Raises:
        ValueError: If the shape of a map does not fit its sentence.
    """
    from safetensors import safe_open

    path = folder / NAME
    if not path.is_file():
        return None
    with safe_open(regular(path, folder), framework="numpy") as file:
        described: dict[str, Any] = {name: parse_json(text) for name, text in file.metadata().items()}
        names = range(len(described["sentences"]))
        maps = [np.asarray(file.get_tensor(f"attention/{i}"), dtype=np.float32) for i in names]
    sentences = [ExampleSentence(**fields) for fields in described["sentences"]]
    for of, sentence_maps in zip(sentences, maps, strict=True):
        n = len(of.tokens)
        if (
            sentence_maps.ndim != 4
            or sentence_maps.shape[0] != len(described["layers"])
            or sentence_maps.shape[2:] != (n, n)
        ):
            raise ValueError(f"{NAME} has maps of another shape than their sentence of {n} tokens")
    classes = {name: ClassExample(**fields) for name, fields in described["classes"].items()}
    return ExampleMaps(described["layers"], [Example(*both) for both in zip(sentences, maps, strict=True)], classes)


# Number of example sentences, and how long they are.
N_SENTENCES = 6
FEWEST_WORDS, MOST_WORDS, MOST_TOKENS = 5, 12, 16


def examples_of(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> ExampleMaps | None:
    """Choose example sentences and read their attention; None if no sentence is short enough."""
    candidates = short_sentences(survey)
    if not len(candidates):
        return None
    classes_with_maps = {}
    if PATTERNS.name in stores:
        classes_with_maps = maps_of_classes(stores[PATTERNS.name].all_by_sentence(), survey.lengths, survey.layers)
    has_class = {name: has_map[candidates] for name, (_, has_map) in classes_with_maps.items()}
    shown = [name for name, of in has_class.items() if of.any()]
    chosen = cover(np.array([has_class[name] for name in shown], dtype=bool).T.reshape(len(candidates), -1), [])
    chosen = cover(_relations_of(survey, candidates), chosen)
    chosen += [i for i in range(len(candidates)) if i not in chosen][: N_SENTENCES - len(chosen)]
    sentences = candidates[chosen].tolist()
    classes = {}
    for name in shown:
        (layer, head, share), has_map = classes_with_maps[name]
        classes[name] = ClassExample(
            [bool(has_map[sentence]) for sentence in sentences].index(True), layer, head, share
        )
    return ExampleMaps(survey.layers, read_maps(survey, sentences), classes)


def short_sentences(survey: HeadSurvey) -> NDArray[np.int64]:
    """Return the indices of sentences that are short enough to show, but have several words if possible."""
    tokens = survey.tokens
    first = tokens.first_pieces & ~tokens.special
    n_words = np.bincount(tokens.sentences[first], minlength=tokens.n_sentences)
    if survey.request.corpus.words is not None:  # words without a piece, and words that were cut off
        n_words = np.maximum(n_words, [len(words) for words in survey.request.corpus.words])
    short = (tokens.lengths <= MOST_TOKENS) & (n_words <= MOST_WORDS) & (n_words >= 2)
    return np.flatnonzero(several if (several := short & (n_words >= FEWEST_WORDS)).any() else short)


def maps_of_classes(
    sums: Mapping[str, Tensor], lengths: NDArray[np.int32], layers: Sequence[int]
) -> dict[str, tuple[tuple[int, int, float], NDArray[np.bool_]]]:
    """Return, for each class that occurs, the head with the largest share of its maps, and these maps.

    Args:
        sums: Scores of `patterns` by sentence, each of shape (n_sentences, all layers, heads).
        lengths: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens do not count.

    Returns:
        By class: layer and head number (both from 1, ties: the first) and the share; and a mask of the sentences whose
            map of this head has the class, shape (n_sentences,).
    """
    nonempty = lengths > 0
    sums_of_layers = {name: sums[name][:, [layer - 1 for layer in layers]] for name in ("v", "d", "b") if name in sums}
    class_of_map = classify(sums_of_layers["v"], sums_of_layers["d"], sums_of_layers.get("b")).numpy()
    best_heads = {}
    for index, name in enumerate(CLASSES):
        is_of = (class_of_map == index) & nonempty[:, None, None]
        shares = is_of.sum(0) / max(int(nonempty.sum()), 1)
        if shares.any():
            layer, head = np.unravel_index(int(shares.argmax()), shares.shape)
            share = float(shares[layer, head])
            best_heads[name] = (layers[int(layer)], int(head) + 1, share), is_of[:, layer, head]
    return best_heads


def cover(has: NDArray[np.bool_], chosen: Sequence[int], most: int = N_SENTENCES) -> list[int]:
    """Add to `chosen` greedily the first row that adds most new properties, up to `most` rows."""
    rows = list(chosen)
    while len(rows) < most:
        new = (has & ~has[rows].any(0)).sum(1)
        if not new.any():
            break
        rows.append(int(new.argmax()))
    return rows


def read_maps(survey: HeadSurvey, sentences: Sequence[int]) -> list[Example]:
    """Run the model over each sentence separately; return the sentences and the attention of the reported layers."""
    tokens, corpus = survey.tokens, survey.request.corpus
    encoder, pad_token_id = load(survey.request)
    n_types = n_token_types(encoder, load_tokenizer(survey.request.source), corpus.seconds is not None)
    reader = AttentionReader.of(encoder, pad_token_id, survey.request.source.name, n_types)
    texts, words = tokens.piece_texts(corpus), tokens.word_texts(corpus)
    arcs = _arcs_of(corpus)
    examples = []

    def copies(attention: BlockAttention) -> dict[str, Tensor]:
        is_reported = attention.layer in survey.layers
        return {"maps": attention.probabilities.float().cpu().clone()} if is_reported else {}

    def begin(batch: SentenceBatch) -> StackedBlocks:
        return StackedBlocks(copies)

    for sentence in sentences:
        rows = tokens.of_sentences(sentence, 1)
        index = torch.arange(rows.stop - rows.start)[None]
        is_token = torch.ones_like(index, dtype=torch.bool)
        batch = TokenRows.of(tokens, rows, reader).batch(torch.tensor([sentence]), index, is_token, reader, "cpu")
        batch = replace(batch, special=torch.from_numpy(survey.special[rows])[None])
        with torch.inference_mode():
            (batch_values,) = reader.read(encoder, batch, [without_first(begin) if survey.without_first else begin])
        example_sentence = ExampleSentence(
            sentence,
            texts[rows].tolist(),
            batch.special[0].tolist(),
            _words(survey, sentence, words[rows]),
            # As wherever heads are measured between words, special tokens belong to no word.
            torch.where(batch.special[0], -1, batch.words[0]).tolist(),
            [] if arcs is None else _triples(arcs.where(arcs.sentences == sentence)),
        )
        examples.append(Example(example_sentence, batch_values.by_sentence["maps"][0].numpy()))
    return examples


def _words(survey: HeadSurvey, sentence: int, of_tokens: NDArray[np.object_]) -> list[str]:
    """Return the words of a sentence; for running text, the words of the tokenizer."""
    if survey.request.corpus.words is not None:
        return list(survey.request.corpus.words[sentence])
    indices = survey.tokens.words[survey.tokens.of_sentences(sentence, 1)].tolist()
    by_index = dict(zip(indices, of_tokens.tolist(), strict=True))
    return [str(by_index.get(i, "")) for i in range(max(indices, default=-1) + 1)]


def _arcs_of(corpus: Corpus) -> Arcs | None:
    """Return the treebank arcs without punctuation; None for running text and for malformed arcs.

    The parts of the survey that need arcs reject malformed arcs; the examples are then shown without arcs.
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


def _relations_of(survey: HeadSurvey, sentences: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of the frequent treebank relations in each sentence, shape (n, n_relations)."""
    corpus = survey.request.corpus
    if (arcs := _arcs_of(corpus)) is None:
        return np.zeros((len(sentences), 0), dtype=bool)
    _, index, counts = np.unique(arcs.relations.astype(str), return_inverse=True, return_counts=True)
    has = np.zeros((len(corpus.sentences), len(counts)), dtype=bool)
    has[arcs.sentences, index] = True
    return has[sentences][:, counts >= min(LEAST_ARCS, counts.max(initial=0))]
