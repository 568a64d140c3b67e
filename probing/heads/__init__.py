"""What the heads of a model do, measured in one pass over a corpus.

A measure is a pure function of the attention of one block over one batch; `probing.heads.accumulation` says what it
receives. It returns what it wants to have summed, by sentence and head, and it is added to a pass by its name:

    def entropy(attention: Attention, batch: Batch) -> Mapping[str, Tensor]:
        return {"entropy": ...}  # shape (batch, heads): a sum over the sentence's queries

    sums = accumulate(request, [BlockMeasure("entropy", entropy)], cache, trainer_options)
    sums["entropy"].by_sentence("entropy")  # shape (n_sentences, n_layers, heads), float64

A measure that needs several blocks at once, labels of the corpus, or something by token instead of by sentence is a
class with the two methods of `probing.heads.accumulation.CorpusMeasure`. Sums are stored by shard in the cache, one
entry for each measure, so that a pass that was killed goes on where it stopped and no measure is taken twice.

`examples.safetensors` has a tensor for each sentence, `attention/0`, `attention/1` and so on, of shape (n_layers,
n_heads, from, to) in float16, which keeps three digits. Its metadata are JSON: `layers`, the number of each layer;
`sentences`, which has for each sentence its index in the corpus (from 0), `tokens` and whether they are `special`,
`words` and the index of each token's word (`word_of_token`, -1 for special tokens), and the arcs of the treebank, if
there is one, as dependent, head and relation; `classes`, which has for each class of maps the index of an example
sentence, and the layer and the head (both from 1) whose map of this sentence has the class.
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
        sentence: Index of the sentence in the corpus.
        tokens: The tokens as they stand in the sentence, special ones by their name.
        special: Whether a token is special; the first token of a causal model is.
        words: The words.
        word_of_token: Index of each token's word, -1 for special tokens.
        arcs: Dependent, head and relation of each arc between two words of a treebank; empty for running text.
    """

    sentence: int
    tokens: Sequence[str]
    special: Sequence[bool]
    words: Sequence[str]
    word_of_token: Sequence[int]
    arcs: Sequence[Arc] = ()


@dataclass(frozen=True)
class Example:
    """A sentence with the attention of every head in it.

    Args:
        of: The sentence.
        maps: The attention, shape (n_layers, n_heads, from, to).
    """

    of: ExampleSentence
    maps: NDArray[np.float32]

    @cached_property
    def word_maps(self) -> NDArray[np.float32]:
        """The attention between different words, shape (n_layers, n_heads, from, to), as for dependency relations.

        Attention to a word is the sum over its pieces, and from a word the mean over them. It is 0 from a word to
        itself, and from and to words of which the model has read no piece.
        """
        pieces = np.array(self.of.word_of_token)[:, None] == np.arange(len(self.of.words))
        means = (pieces / np.maximum(pieces.sum(0), 1)).T
        maps: NDArray[np.float32] = (means @ (self.maps @ pieces)).astype(np.float32)
        return np.where(np.eye(len(self.of.words), dtype=bool), np.float32(0), maps)

    def strongest(self, layer: int, head: int) -> list[tuple[int, int, float]]:
        """Return each word with the other word that it attends to most, ties to the earlier one, and the attention.

        Args:
            layer: Index of the layer.
            head: Index of the head.
        """
        words = self.word_maps[layer, head]
        return [(i, int(row.argmax()), float(row.max())) for i, row in enumerate(words) if row.any()]

    def mass_on_special(self, layer: int, head: int) -> float:
        """Return how much of the attention of all tokens goes to special tokens."""
        return float(self.maps[layer, head][:, np.array(self.of.special)].sum(1).mean())


@dataclass(frozen=True)
class ClassExample:
    """A map of a class.

    Args:
        example: Index of the example sentence.
        layer: Number of the layer.
        head: Number of the head.
        share: Share of all maps of this head that are of the class.
    """

    example: int
    layer: int
    head: int
    share: float


@dataclass(frozen=True)
class ExampleMaps:
    """The examples of a survey.

    Args:
        layers: Number of each layer of the maps.
        examples: The sentences.
        classes: For each class that occurs among short sentences, a map of it.
    """

    layers: Sequence[int]
    examples: Sequence[Example]
    classes: Mapping[str, ClassExample] = field(default_factory=dict)

    def map_of(self, name: str) -> tuple[ExampleSentence, NDArray[np.float32]]:
        """Return the sentence and the map of a class, shape (from, to)."""
        class_example = self.classes[name]
        example = self.examples[class_example.example]
        return example.of, example.maps[list(self.layers).index(class_example.layer), class_example.head - 1]


def write_examples(folder: Path, examples: ExampleMaps) -> Path:
    """Write the examples into a run's folder, and return the path of the file."""
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
        ValueError: If maps and sentences do not fit together.
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
