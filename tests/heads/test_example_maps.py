"""Maps of example sentences: their file, and the attention between words against that of the survey."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from probing.heads.example_maps import ClassExample, Example, Examples, ExampleSentence, read_examples, write_examples
from probing.heads.syntax import WordBatch, most_attended
from small_data import batch_of, random_maps, tokens_of_words, treebank

pytestmark = pytest.mark.numeric


def example(sentence: int, is_causal: bool = False) -> tuple[Example, WordBatch]:
    """Return a made-up example of two layers of three heads, and its words as the survey has them."""
    corpus = treebank(4)
    tokens = tokens_of_words(corpus)
    batch = batch_of(tokens, [sentence], is_causal)
    words, n = WordBatch.of(batch), batch.mask.shape[1]
    texts = (corpus.words or ())[sentence]
    of = ExampleSentence(
        sentence, [f"t{i}" for i in range(n)], batch.special[0].tolist(), texts, words.words[0].tolist(), [(0, 1, "x")]
    )
    return Example(of, random_maps(n, sentence).float().numpy()), words


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_attention_between_words_is_that_of_the_survey(is_causal: bool) -> None:
    import torch

    for sentence in range(4):
        one, words = example(sentence, is_causal)
        expected = words.maps(torch.from_numpy(one.maps))
        n = expected.shape[-1]
        np.testing.assert_allclose(one.word_maps[..., :n, :n], expected.numpy(), rtol=1e-5, atol=1e-7)
        found = most_attended(expected, words).from_word
        for layer, head in np.ndindex(*one.maps.shape[:2]):
            assert [(i, j) for i, j, _ in one.strongest(layer, head)] == [
                (i, int(j)) for i, j in enumerate(found[layer, head]) if j >= 0
            ]
            assert all(weight == one.word_maps[layer, head, i, j] for i, j, weight in one.strongest(layer, head))
            special = [i for i, is_special in enumerate(one.of.special) if is_special]
            rows = [sum(float(row[i]) for i in special) for row in one.maps[layer, head]]
            assert one.mass_on_special(layer, head) == pytest.approx(np.mean(rows), rel=1e-5)


def test_a_word_without_a_piece_neither_attends_nor_is_attended_to() -> None:
    of = ExampleSentence(0, ["[CLS]", "a", "c"], [True, False, False], ["a", "b", "c"], [-1, 0, 2])
    one = Example(of, np.full((1, 1, 3, 3), 1 / 3, dtype=np.float32))
    assert [(i, j) for i, j, _ in one.strongest(0, 0)] == [(0, 2), (2, 0)]


def test_the_file_gives_back_what_was_written_to_three_digits(tmp_path: Path) -> None:
    made = Examples([2, 4], [example(0)[0], example(1)[0]], {"diagonal": ClassExample(1, 4, 3, 0.75)})
    path = write_examples(tmp_path, made)
    again = read_examples(tmp_path)
    assert again is not None
    assert (again.layers, again.classes) == ([2, 4], made.classes)
    for one, other in zip(made.examples, again.examples, strict=True):
        np.testing.assert_allclose(other.maps, one.maps, rtol=1e-3, atol=1e-7)
        assert list(other.of.tokens) == list(one.of.tokens)
        assert [tuple(arc) for arc in other.of.arcs] == [(0, 1, "x")]
    of, shown = again.map_of("diagonal")
    assert of.sentence == 1
    np.testing.assert_allclose(shown, made.examples[1].maps[1, 2], rtol=1e-3, atol=1e-7)
    (other_file := tmp_path / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other_file.stat().st_mode)
    assert read_examples(tmp_path / "elsewhere") is None


def test_maps_that_do_not_fit_their_sentence_are_refused(tmp_path: Path) -> None:
    one = example(0)[0]
    write_examples(tmp_path, Examples([1, 2], [Example(one.of, one.maps[..., :-1])]))
    with pytest.raises(ValueError, match="maps of another shape than their sentence of"):
        read_examples(tmp_path)
