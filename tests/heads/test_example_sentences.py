"""Example sentences: which are chosen, and that their maps are those of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from families import untouched
from probing.cache import Request
from probing.corpus import Corpus, from_sentences
from probing.heads.accumulation import accumulate
from probing.heads.example_sentences import MOST_TOKENS, MOST_WORDS, N_SENTENCES, cover, examples_of, maps_of_classes
from probing.heads.rows import CLASSES, PATTERNS, classify
from probing.heads.subject import Subject
from probing.models import resolve_model
from small_data import treebank

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


def subject_of(model: Path, corpus: Corpus, layers: list[int]) -> Subject:
    return Subject.of(Request(resolve_model(str(model)), corpus, (), batch_tokens=200), layers, 0)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_maps_are_those_of_the_model_and_each_is_of_its_class(
    checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    subject = subject_of(checkpoints[family], treebank(40, shortest=2, longest=3), [2])
    tokens = subject.tokens
    stores = accumulate(subject.request, [PATTERNS], tmp_path, {"accelerator": "cpu"})
    found = examples_of(subject, dict(stores))
    assert found is not None
    assert (found.layers, len(found.examples)) == ([2], N_SENTENCES)
    model = untouched(checkpoints[family], attn_implementation="eager")
    for one in found.examples:
        rows = tokens.of_sentences(one.of.sentence, 1)
        with torch.no_grad():
            ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
            expected = model(input_ids=ids, output_attentions=True).attentions[1]
        np.testing.assert_allclose(one.maps, expected.numpy(), atol=1e-6)
        assert list(one.of.words) == list((subject.request.corpus.words or ())[one.of.sentence])
        assert len(one.of.tokens) == len(one.of.special) == len(one.of.word_of_token) <= MOST_TOKENS
        assert list(one.of.special) == subject.special[rows].tolist()
        assert all(word == -1 for word, special in zip(one.of.word_of_token, one.of.special, strict=True) if special)
        assert all(one.of.words[d] != one.of.words[h] for d, h, _ in one.of.arcs)
        assert {relation for *_, relation in one.of.arcs} <= {"nsubj", "obl:tmod", "det"}
    if family == "bert":
        assert (found.examples[0].of.tokens[0], found.examples[0].of.tokens[-1]) == ("[CLS]", "[SEP]")
    assert found.classes
    for name, of in found.classes.items():
        sentence = found.examples[of.example].of.sentence
        v, d = (stores["patterns"].by_sentence(one)[sentence, of.layer - 1, of.head - 1] for one in ("v", "d"))
        assert CLASSES[int(classify(v, d))] == name


def test_the_head_of_a_class_is_that_whose_maps_are_most_often_of_it() -> None:
    v, d = torch.zeros(10, 2, 3), torch.zeros(10, 2, 3)
    v[:6, 1, 0] = 0.9  # vertical in six sentences, heterogeneous in the others
    v[3:7, 0, 1] = 0.9
    d[:, 1, 2] = 0.8
    lengths = np.array([5] * 9 + [0], dtype=np.int32)
    found = maps_of_classes({"v": v, "d": d}, lengths, [1, 2])
    assert list(found) == ["vertical", "diagonal", "heterogeneous"]
    assert found["vertical"][0] == pytest.approx((2, 1, 6 / 9))
    assert found["vertical"][1].tolist() == [True] * 6 + [False] * 4
    assert found["diagonal"][0] == (2, 3, 1.0)
    assert found["diagonal"][1].tolist() == [True] * 9 + [False]
    assert found["heterogeneous"][0] == (1, 1, 1.0)
    assert maps_of_classes({"v": v, "d": d}, lengths, [1])["vertical"][0] == pytest.approx((1, 2, 4 / 9))


def test_sentences_are_added_while_they_have_something_new() -> None:
    has = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=bool)
    assert cover(has, []) == [1, 3]
    assert cover(has, [2]) == [2, 0, 3]
    assert cover(has, [2], most=2) == [2, 0]
    assert cover(np.zeros((4, 0), dtype=bool), []) == []


def test_running_text_has_words_and_no_arcs(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    short = [text for text in sentences if 5 <= len(text.split()) <= 8][:3]
    corpus = from_sentences("plain", [" ".join(sentences[:5]), *short])
    found = examples_of(subject_of(checkpoints["bert"], corpus, [1]), {})
    assert found is not None
    assert found.classes == {}
    assert all(len(one.of.words) <= MOST_WORDS and not one.of.arcs for one in found.examples)
    joined = {"".join(one.of.words) for one in found.examples}
    assert joined <= {text.replace(" ", "") for text in short}
    assert joined


def test_a_corpus_without_a_short_sentence_has_no_examples(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    corpus = from_sentences("long", [" ".join(sentences[i : i + 5]) for i in range(0, 20, 5)])
    assert examples_of(subject_of(checkpoints["bert"], corpus, [1]), {}) is None


def test_malformed_arcs_are_left_out(checkpoints: dict[str, Path]) -> None:
    corpus = treebank(8, longest=5)
    heads = tuple(("99", *of[1:]) for of in corpus.columns["head"])
    broken = Corpus(corpus.name, corpus.sentences, 0, corpus.words, {**corpus.columns, "head": heads})
    found = examples_of(subject_of(checkpoints["bert"], broken, [1]), {})
    assert found is not None
    assert not any(one.of.arcs for one in found.examples)
