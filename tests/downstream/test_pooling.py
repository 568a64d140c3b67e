"""Vectors of sentences and words, against the untouched model's hidden states, sentence by sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from families import untouched
from probing.cache import ActivationStore, Request, activations
from probing.cache import store as cache_store
from probing.cache.tokens import Tokens
from probing.corpus import from_words
from probing.downstream.sentence_vectors import cosines, has_first_special, has_pieces, sentence_vectors, word_vectors
from probing.errors import UserError
from probing.models import load_tokenizer, resolve_model

pytestmark = [pytest.mark.numeric, pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")]

LAYERS = [0, 1, 2]


@pytest.fixture(scope="module")
def words(sentences: list[str]) -> list[list[str]]:
    return [sentence.split() for sentence in sentences]


@pytest.fixture(scope="module")
def store(
    checkpoints: dict[str, Path], words: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> ActivationStore:
    """Activations in several shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_store, "MIN_SHARD_TOKENS", 500)
        patch.setattr(cache_store, "SHARD_BYTES", 1)
        request = Request(resolve_model(str(checkpoints["bert"])), from_words("x", words), LAYERS)
        store = activations(request, tmp_path_factory.mktemp("cache"), {})
    assert len(store.plan.shards) > 3
    return store


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Path], sentences: list[str]) -> list[torch.Tensor]:
    """For each sentence, the hidden states of all layers, shape (n_layers, n_tokens, d_model)."""
    model, tokenizer = untouched(checkpoints["bert"]), load_tokenizer(resolve_model(str(checkpoints["bert"])))
    with torch.inference_mode():
        encoded = (tokenizer(sentence, return_tensors="pt") for sentence in sentences)
        return [torch.stack(model(**one, output_hidden_states=True).hidden_states)[:, 0] for one in encoded]


def close(found: torch.Tensor, expected: list[torch.Tensor]) -> None:
    # Batches are padded and summed in another order.
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_sentences_are_pooled_as_told(store: ActivationStore, expected: list[torch.Tensor]) -> None:
    close(sentence_vectors(store, 2, "mean"), [states[2, 1:-1].mean(0) for states in expected])
    close(sentence_vectors(store, 2, "mean_special"), [states[2].mean(0) for states in expected])
    close(sentence_vectors(store, 2, "cls"), [states[2, 0] for states in expected])
    close(sentence_vectors(store, 2, "first_last"), [states[[1, 2], 1:-1].mean((0, 1)) for states in expected])


def test_words_are_the_means_of_their_pieces(
    store: ActivationStore, expected: list[torch.Tensor], words: list[list[str]]
) -> None:
    generator = np.random.default_rng(0)
    wanted = np.array([(i, generator.integers(len(words[i]))) for i in generator.permutation(len(words))])
    found = word_vectors(store, [0, 2], wanted)
    n_pieces = set()
    for layer, vectors in zip([0, 2], found, strict=True):
        of_words = []
        for sentence, word in wanted:
            here = store.tokens.of_sentences(sentence, 1)
            places = np.flatnonzero(store.tokens.words[here] == word)
            n_pieces.add(len(places))
            of_words.append(expected[sentence][layer, places].mean(0))
        close(vectors, of_words)
    assert max(n_pieces) > 1


def test_a_word_behind_the_cut_has_no_pieces(checkpoints: dict[str, Path]) -> None:
    from probing.cache.tokens import tokenize

    tokenizer = load_tokenizer(resolve_model(str(checkpoints["bert"])))
    listed = [["the", "token", "reads", "the", "layer"]]
    tokens = tokenize(tokenizer, [" ".join(listed[0])], 5, listed)
    wanted = np.array([[0, word] for word in range(5)])
    assert has_pieces(tokens, wanted).tolist() == [True] * 3 + [False] * 2


def test_a_first_token_is_special_or_not() -> None:
    lengths, ids = np.array([2, 2], dtype=np.int32), np.arange(4, dtype=np.int32)
    assert has_first_special(Tokens(lengths, ids, np.array([-1, 0, -1, 0], dtype=np.int16)))
    assert not has_first_special(Tokens(lengths, ids, np.array([-1, 0, 0, -1], dtype=np.int16)))


def test_cosines_are_those_of_torch_and_0_without_a_direction() -> None:
    a, b = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(cosines(a, b), torch.cosine_similarity(a, b).numpy(), rtol=1e-5)
    assert cosines(a, torch.zeros_like(a)).tolist() == [0] * 5
    assert cosines(1e-30 * a, a) == pytest.approx(1)
    # Vectors that differ by rounding alone tie.
    assert set(cosines(a, a + 1e-6 * a.roll(1, 1))) == {1.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_has_no_cosine(value: float) -> None:
    first = torch.ones(3, 4)
    first[1, 2] = value
    with pytest.raises(UserError, match="values that are not finite in float32, so that it has no cosine"):
        cosines(first, torch.ones(3, 4))


def test_vectors_of_any_size_have_cosines() -> None:
    first, second = torch.eye(3)[:2], torch.eye(3)[[0, 2]]
    for size in (1e38, 1e-38, 1e-44):
        assert cosines(size * first, size * second).tolist() == [1, 0]
