"""Attention-head measures over a corpus, and the attention maps of example sentences.

A measure is a pure function of the attention of one block over one batch (see `probing.heads.accumulation`). It returns
sums by sentence and head, and a pass stores them under the measure's name:

    def entropy(attention: BlockAttention, batch: SentenceBatch) -> Mapping[str, Tensor]:
        return {"entropy": ...}  # shape (batch, heads): a sum over the sentence's queries

    sums = accumulate(request, [Measure.of_blocks("entropy", entropy)], cache, trainer_options)
    sums["entropy"].by_sentence("entropy")  # shape (n_sentences, n_layers, heads), float64

A measure that needs several blocks at once, labels of the corpus, or values by token is a `Measure` with an
`Accumulator`, both of `probing.heads.accumulation`. The cache stores the sums of each measure by shard, so a killed
pass continues where it stopped and no measure is computed twice.

`examples.safetensors` has a tensor `attention/0`, `attention/1`, ... for each sentence, shape (n_layers, n_heads, from,
to), float16 (three digits). Its metadata are JSON: `layers`, the layer numbers; `sentences`, with the fields of
`ExampleSentence`; `classes`, with the fields of `ClassExample` by class of maps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.runtime.files import parse_json, regular, write_tensors

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
