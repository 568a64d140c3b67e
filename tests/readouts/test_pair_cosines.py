"""Pairs of sentences and of words, read by cosines: against a sentence at a time, and gradients against differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from probing.cache import ActivationStore, Request, activations
from probing.corpus import Corpus
from probing.downstream.labelled_pairs import WordPairs
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.readouts.forward import Forward, Intact, Readers, padded
from probing.readouts.pair_cosines import (
    READ,
    TRAIN,
    PairsReadout,
    Rule,
    draw_pairs,
    drawn,
    halves,
    read_senses,
    read_similarity,
    rule_of,
    senses_readout,
    similarity_readout,
)
from probing.studies.disable.weights import importance
from small_data import sentence_pairs, word_pairs, write_semeval, write_wic

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]


class Case:
    """A tiny model, and its readouts of pairs of sentences and of words."""

    def __init__(self, folder: Path, place: Path) -> None:
        source = resolve_model(str(folder))
        self.readers = Readers.of(load_encoder(source), load_tokenizer(source).pad_token_id or 0, "tiny")
        self.last = self.readers.model.anatomy.n_layers

        def read(corpus: Corpus) -> ActivationStore:
            return activations(Request(source, corpus, range(self.last + 1)), place / "cache", {"accelerator": "cpu"})

        write_semeval(place / "STS12", "one", sentence_pairs(40, 0))
        (self.rated,) = read_similarity(str(place / "STS12"))
        self.store = read(self.rated.corpus)
        self.kept = drawn(self.rated, self.store, 600, 0)
        self.similarity = similarity_readout(self.rated, self.store, self.kept, self.last)
        for part, n in ((TRAIN, 60), (READ, 30)):
            write_wic(place / "wic", part, word_pairs(n, n))
        self.words: Any = read_senses(str(place / "wic"))
        self.stores = {part: read(pairs.corpus) for part, pairs in self.words.items()}
        self.rule = rule_of(self.words[TRAIN], self.stores[TRAIN], self.last)
        self.senses = senses_readout(self.words[READ], self.stores[READ], self.rule, 10_000, self.last, 0)

    @torch.no_grad()
    def states(self, store: ActivationStore, sentence: int) -> Tensor:
        """The last hidden states of a sentence by itself, by the whole model."""
        ids = torch.from_numpy(store.tokens.input_ids[store.tokens.of_sentences(sentence, 1)].astype(np.int64))[None]
        states: Tensor = self.readers.model.encoder(input_ids=ids).last_hidden_state[0]
        return states


@pytest.fixture(scope="module")
def case(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(checkpoints["bert"], tmp_path_factory.mktemp("pairs"))


def cosine(first: Tensor, second: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(first.double(), second.double(), dim=0))


def of_sentences(case: Case) -> list[float]:
    special = case.store.tokens.special
    found = []
    for pair in case.rated.sentences[case.kept]:
        vectors = [
            case.states(case.store, int(one))[~special[case.store.tokens.of_sentences(int(one), 1)]].mean(0)
            for one in pair
        ]
        found.append(cosine(*vectors))
    return found


def of_words(case: Case) -> list[float]:
    pairs: WordPairs = case.words[READ]
    store = case.stores[READ]
    found = []
    for sentences, words in zip(pairs.sentences, pairs.targets, strict=True):
        vectors = [
            case.states(store, int(one))[store.tokens.words[store.tokens.of_sentences(int(one), 1)] == word].mean(0)
            for one, word in zip(sentences, words, strict=True)
        ]
        found.append(cosine(*vectors))
    return found


def test_the_correlation_is_that_of_each_sentence_by_itself_from_whatever_block(case: Case) -> None:
    assert 10 < len(case.kept) < 40
    expected = spearmanr(of_sentences(case), case.rated.gold[case.kept]).statistic
    forward = Forward(case.readers, case.similarity.text, 128)
    for layer in (0, case.last - 1):
        (sums,) = forward.read(Intact(layer), case.similarity)
        assert float(sums.mean()) == pytest.approx(expected, abs=1e-6)
    assert case.similarity.n.tolist() == [1] * len(sums)
    assert case.similarity.name == "sts:STS12"


def test_senses_are_told_by_the_threshold_of_the_training_pairs(case: Case) -> None:
    found = np.array(of_words(case))
    expected = (found > case.rule.threshold) == case.words[READ].labels
    (sums,) = Forward(case.readers, case.senses.text, 128).read(Intact(1), case.senses)
    assert sums.bool().tolist() == expected.tolist()
    assert 0 < expected.mean() < 1  # some are told, some are not


def true_losses(case: Case, readout: PairsReadout, block: int, head: int, factor: float) -> Tensor:
    """The loss of each pair while a head's output is multiplied, both sentences of a pair together."""
    model, mentions = case.readers.model, readout.mentions
    here, tokens = model.columns(head), readout.text.tokens
    batch = padded(tokens, np.arange(tokens.n_sentences), case.readers.pad_token_id)

    def change(outputs: Tensor) -> Tensor:
        changed = outputs.clone()
        changed[..., here] *= factor
        return changed

    with torch.inference_mode():
        states = model.encoder(**batch.inputs, output_hidden_states=True).hidden_states[block - 1]
        last = model.run(batch.inputs, block, states, None, [case.last], change)[case.last]
        vectors = torch.zeros(len(mentions.sentences), last.shape[-1], dtype=torch.float64)
        index = torch.from_numpy(mentions.of_token)[batch.rows[batch.mask]]
        vectors.index_add_(0, index[index >= 0], last[batch.mask][index >= 0])
        first, second = vectors[torch.from_numpy(readout.pairs)].unbind(1)  # a cosine is blind to the mean's divisor
        return readout.error(torch.nn.functional.cosine_similarity(first, second))


@pytest.mark.parametrize("which", ["similarity", "senses"])
def test_gradients_of_a_pair_are_finite_differences_of_its_loss(case: Case, which: str) -> None:
    readout: PairsReadout = getattr(case, which)
    model = case.readers.model
    model.encoder.double()
    try:
        found = importance(model, case.readers.pad_token_id, readout, 64)
        for block, head in ((1, 2), (3, 1)):
            above, below = (true_losses(case, readout, block, head, 1 + by) for by in (1e-4, -1e-4))
            expected = (above - below) / 2e-4
            # The vectors that the loss starts from are those of the cache, which are float32.
            assert torch.allclose(found[:, block - 1, head - 1].double(), expected, rtol=1e-3, atol=1e-5)
            assert (expected.abs() > 1e-4).any()
    finally:
        model.encoder.float()


def test_pairs_are_drawn_whole_and_divided_in_two() -> None:
    sentences, lengths = np.array([[0, 1], [2, 0], [1, 1], [3, 2]]), np.array([3, 2, 4, 30], dtype=np.int32)
    drawn_pairs = [draw_pairs(sentences, lengths, 16, seed) for seed in range(10)]
    assert {tuple(some.tolist()) for some in drawn_pairs} <= {(0, 1, 2), (0, 2), (0, 1), (1, 2), (0,), (1,), (2,), (3,)}
    assert draw_pairs(sentences, lengths, 1, 0).shape == (1,)
    first, second = halves(np.arange(3, 14), 0)
    assert sorted([*first, *second]) == list(range(3, 14))
    assert abs(len(first) - len(second)) == 1


def test_the_logistic_curve_is_at_its_optimum_and_finite_where_the_cosine_separates_the_pairs() -> None:
    generator = np.random.default_rng(0)
    cosines = generator.random(200)
    same = generator.random(200) < 1 / (1 + np.exp(-(6 * cosines - 2)))
    rule = Rule.of(cosines, same)
    p = 1 / (1 + np.exp(-(rule.slope * cosines + rule.offset)))
    assert abs(np.mean(p - same)) < 1e-4
    assert abs(np.mean((p - same) * cosines)) < 1e-4
    assert rule.slope == pytest.approx(6, abs=2.5)
    separated = Rule.of(cosines, cosines > 0.5)
    assert np.isfinite([separated.slope, separated.offset]).all()
    assert ((cosines > separated.threshold) == (cosines > 0.5)).all()
