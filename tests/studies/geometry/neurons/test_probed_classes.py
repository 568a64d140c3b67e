"""Classes of a task of words, and the classes that they are moved to, of each text as of the whole corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.cache import Request, activations
from probing.cache.source import ActivationSource
from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words
from probing.disabling.probed_task import Frozen, ProbedTask
from probing.models import resolve_model
from probing.readouts.forward import draw_text
from probing.studies.geometry.neurons.survey import ProbedClasses
from probing.tasks import Labels, Task

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

CLASSES: Labels = np.array(["a", "b", "c"], dtype=object)


@dataclass(frozen=True)
class LastLetter(Task):
    """The last letter of a word among a, b and c, at its first piece; its vector is the mean over its pieces."""

    word_means = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[str]:
        words = tokens.word_texts(corpus).tolist()
        return [
            word[-1] if first and word and word[-1] in "abc" else ""
            for word, first in zip(words, tokens.first_pieces.tolist(), strict=True)
        ]


@pytest.fixture(scope="module")
def classes(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> ProbedClasses:
    generator, source = np.random.default_rng(0), resolve_model(str(checkpoints["bert"]))
    words = [[f"neuron{generator.choice(list('abcd'))}" for _ in range(generator.integers(3, 9))] for _ in range(40)]
    corpus, cache = from_words("made up", words, {}), tmp_path_factory.mktemp("cache")
    store = activations(Request(source, corpus, range(4)), cache, {"accelerator": "cpu"})
    weight = {layer: torch.randn(3, store.plan.d_model) for layer in (1, 2, 3)}
    splits: Any = [["train" if i % 2 else "test" for i in range(store.tokens.n_sentences)]]
    task = ProbedTask(
        "task", LastLetter(), Frozen(weight, CLASSES), ActivationSource(source, range(4), cache), [corpus], splits, 0
    )
    train = draw_text(store, np.array([one == "train" for one in splits[0]]), 10_000, 0)
    return ProbedClasses(task, [store], train, *task.probes([store], None), torch.device("cpu"), 3)


def test_every_piece_of_a_word_has_its_class_and_one_target(classes: ProbedClasses) -> None:
    store = classes.stores[0]
    is_test = np.arange(store.tokens.n_sentences) % 2 == 0
    text = draw_text(store, is_test, 10_000, 0)
    moves, tokens, corpus = classes.moves(text), text.tokens, classes.task.corpora[0]
    words = store.tokens.word_texts(corpus)[text.of_corpus]
    assert (np.bincount(tokens.sentences[~tokens.special]) > 3).any()
    pieces: dict[tuple[int, int], set[int]] = {}
    for i, word in enumerate(words):
        source, target = int(moves.source[i]), int(moves.target[i])
        assert (source >= 0) == (target >= 0) == (bool(word) and word[-1] in "abc" and not tokens.special[i])
        if source >= 0:
            assert CLASSES[source] == word[-1]
            assert source != target
            pieces.setdefault((int(tokens.sentences[i]), int(tokens.words[i])), set()).add(target)
    assert all(len(found) == 1 for found in pieces.values())
    assert len(pieces) == classes.readout(text).n.sum() == classes.translated(text).n.sum()
    assert {target for found in pieces.values() for target in found} == {0, 1, 2}


def test_a_part_of_a_text_is_moved_as_in_the_whole(classes: ProbedClasses) -> None:
    store = classes.stores[0]
    sentences = np.arange(store.tokens.n_sentences)
    whole, part = (draw_text(store, sentences % of == 0, 10_000, 0) for of in (2, 4))
    inside = torch.from_numpy(np.isin(whole.of_corpus, part.of_corpus))
    assert torch.equal(classes.moves(whole).target[inside], classes.moves(part).target)
    assert (classes.name, classes.again, classes.last) == ("task", "task_retrained", 3)
    assert classes.translated(part).name == "task_translated"
