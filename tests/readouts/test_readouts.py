"""Masked words and positions, read off a model as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.builtin_tasks.position import Position as PositionTask
from scipy.special import log_softmax

from families import masked_lm
from probing.cache.tokens import Tokens, tokenize
from probing.corpus import from_sentences
from probing.models import load_encoder, load_masked_lm, load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.readouts import model_output as readouts
from probing.readouts.later_blocks import zeroed
from probing.readouts.model_output import (
    MASKED,
    MaskedWords,
    Position,
    choose_masked,
    draw_sentences,
    last_hidden_states,
)
from synthetic import LIGHTNING_WARNINGS, make_tokens

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return masked_lm(tmp_path_factory.mktemp("masked") / "bert", "bert", sentences)


@pytest.fixture
def tokens(folder: Path, sentences: list[str]) -> Tokens:
    return tokenize(load_tokenizer(resolve_model(str(folder))), sentences[:12], 128)


def load(folder: Path) -> Any:
    model = load_masked_lm(resolve_model(str(folder)))
    assert model is not None
    return model


def naive(model: Any, tokens: Tokens, masked: Any, mask_id: int, neuron: int | None = None) -> list[float]:
    """The loss of each sentence by itself, summed over its masked tokens."""
    losses = []
    for sentence in range(tokens.n_sentences):
        rows = tokens.of_sentences(sentence, 1)
        ids, hidden = tokens.input_ids[rows].astype(np.int64), masked[rows]
        with torch.inference_mode():
            states = model.bert(torch.from_numpy(np.where(hidden, mask_id, ids))[None]).last_hidden_state.clone()
            if neuron is not None:
                states[..., neuron] = 0
            nats = log_softmax(model.cls(states)[0].double().numpy(), axis=1)
        losses.append(-sum(nats[i, ids[i]] for i in np.flatnonzero(hidden)))
    return losses


def test_the_loss_of_masked_words_is_that_of_each_sentence_by_itself(
    folder: Path, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder)
    masked = choose_masked(tokens, 0)
    reader = MaskedWords(model, model.bert, tokens, masked, 4, 0)
    monkeypatch.setattr(readouts, "VARIANTS", 2)
    intact, clipped, last = reader([(), (7,), (3,)])
    # Not to the bit: how many variants are read at a time decides how threads cut the sums.
    np.testing.assert_allclose(last.sums["mlm_loss"], reader([(3,)])[0].sums["mlm_loss"], rtol=1e-6)
    np.testing.assert_allclose(intact.sums["mlm_loss"], naive(model, tokens, masked, 4), rtol=1e-4)
    np.testing.assert_allclose(clipped.sums["mlm_loss"], naive(model, tokens, masked, 4, neuron=7), rtol=1e-4)
    assert intact.n_tokens["mlm_loss"].sum() == masked.sum()
    assert not np.allclose(intact.sums["mlm_loss"], clipped.sums["mlm_loss"], rtol=1e-3)
    norm = model.bert.encoder.layer[2].output.LayerNorm
    with zeroed([norm], [7]):
        # In the last block, zeroing inside and clipping after are one.
        (zero,) = reader([()])
    np.testing.assert_allclose(zero.sums["mlm_loss"], clipped.sums["mlm_loss"], rtol=1e-5)
    (again,) = reader([()])
    np.testing.assert_allclose(again.sums["mlm_loss"], intact.sums["mlm_loss"], rtol=1e-6)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "mpnet", "modernbert"])
def test_heads_of_other_families_are_read(family: str, tmp_path: Path, sentences: list[str]) -> None:
    model = load(masked_lm(tmp_path / family, family, sentences))
    tokens = make_tokens([9, 4, 6])
    ids = Tokens(tokens.lengths, tokens.input_ids % 100 + 5, tokens.words)
    masked = choose_masked(ids, 0)
    reader = MaskedWords(model, model.base_model, ids, masked, 4, 1, examine(model.base_model).padding_is_neutral)
    (found,) = reader([()])
    for sentence in range(3):
        rows = ids.of_sentences(sentence, 1)
        labels, hidden = torch.from_numpy(ids.input_ids[rows].astype(np.int64)), torch.from_numpy(masked[rows])
        with torch.inference_mode():
            logits = model(input_ids=torch.where(hidden, 4, labels)[None]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits[hidden], labels[hidden], reduction="sum")
        assert found.sums["mlm_loss"][sentence] == pytest.approx(float(loss), rel=1e-3)


def test_a_head_that_looks_at_several_tokens_at_a_time_is_refused(folder: Path, tokens: Tokens) -> None:
    model = load(folder)
    model.cls.register_forward_pre_hook(lambda module, args: (args[0].cumsum(1),))
    with pytest.raises(ValueError, match="more than one token"):
        MaskedWords(model, model.bert, tokens, choose_masked(tokens, 0), 4, 0)


def test_a_share_of_each_sentence_is_masked_at_least_one_word_and_never_a_special_token() -> None:
    tokens = make_tokens([2, 3, 42, 102, 12])  # of which 0, 1, 40, 100 and 10 are words
    masked = choose_masked(tokens, 0)
    assert np.bincount(tokens.sentences, masked).tolist() == [0, 1, 6, 15, 2]
    assert MASKED == 0.15
    assert not (masked & tokens.special).any()
    np.testing.assert_array_equal(masked, choose_masked(tokens, 0))
    assert (masked != choose_masked(tokens, 1)).any()
    drawn = np.mean([choose_masked(tokens, seed) for seed in range(300)], axis=0)[47:147]
    assert drawn[1:-1].min() > 0.08  # every word of the long sentence is masked at some time
    assert drawn[1:-1].max() < 0.23


def test_sentences_are_drawn_until_no_further_one_fits() -> None:
    tokens = make_tokens([5, 9, 7, 3, 8])
    drawn, kept = draw_sentences(tokens, 16, 0)
    assert drawn.n_tokens <= 16 < tokens.n_tokens
    assert kept == sorted(kept)
    for place, sentence in enumerate(kept):
        np.testing.assert_array_equal(
            drawn.input_ids[drawn.of_sentences(place, 1)], tokens.input_ids[tokens.of_sentences(sentence, 1)]
        )
    assert len(draw_sentences(tokens, 1, 0)[1]) == 1
    assert draw_sentences(tokens, 1000, 0)[1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("family", ["bert", "gpt2", "bart", "electra"])
def test_a_checkpoint_without_its_head_has_none(family: str, checkpoints: dict[str, Path]) -> None:
    assert load_masked_lm(resolve_model(str(checkpoints[family]))) is None


def test_the_part_of_a_masked_language_model_is_the_encoder_that_is_probed(folder: Path) -> None:
    model, encoder = load(folder), load_encoder(resolve_model(str(folder)))
    assert not model.training
    ids = torch.arange(5, 20)[None]
    with torch.inference_mode():
        assert torch.equal(model.bert(ids).last_hidden_state, encoder(ids).last_hidden_state)


# --- positions ---


@pytest.fixture(scope="module")
def many(sentences: list[str], folder: Path) -> tuple[Tokens, Any]:
    tokens = tokenize(load_tokenizer(resolve_model(str(folder))), sentences[:60], 30)
    return tokens, from_sentences("made up", sentences[:60])


def test_last_hidden_states_are_those_of_each_sentence_by_itself(folder: Path, tokens: Tokens) -> None:
    encoder: Any = load_encoder(resolve_model(str(folder)))
    found = last_hidden_states(encoder, examine(encoder), tokens, 0)
    for sentence in range(tokens.n_sentences):
        rows = tokens.of_sentences(sentence, 1)
        with torch.inference_mode():
            alone = encoder(torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]).last_hidden_state[0]
        torch.testing.assert_close(found[rows], alone, rtol=1e-4, atol=1e-5)


def test_positions_are_read_by_a_probe_of_the_intact_model_and_by_a_retrained_one(many: tuple[Tokens, Any]) -> None:
    tokens, corpus = many
    generator = torch.Generator().manual_seed(0)
    # Positions one-hot, in a basis that is turned around later.
    states = torch.nn.functional.one_hot(torch.from_numpy(tokens.positions.astype(np.int64)), 30).float()
    states += 0.01 * torch.randn(states.shape, generator=generator)
    now = [states]
    reader = Position(lambda: now[0], tokens, corpus, PositionTask(), 0)
    intact, without = reader([(), range(10, 30)])
    n = intact.n_tokens["position_accuracy"]
    assert 0 < (n > 0).mean() < 0.5  # test sentences alone
    right = intact.sums["position_accuracy"]
    np.testing.assert_array_equal(right, intact.sums["position_accuracy_retrained"])
    np.testing.assert_array_equal(right, n)
    # The first ten positions are left, of which the special token at 0 is none.
    assert without.sums["position_accuracy_retrained"].sum() >= 9 * (n > 0).sum() * 0.7
    assert without.sums["position_accuracy_retrained"].sum() < n.sum()
    now[0] = states.flip(1)
    (turned,) = reader([()])
    assert turned.sums["position_accuracy_retrained"].sum() == n.sum()
    assert turned.sums["position_accuracy"].sum() < 0.3 * n.sum()


def test_the_reference_probe_is_of_the_model_at_building_whatever_is_read_first(many: tuple[Tokens, Any]) -> None:
    tokens, corpus = many
    states = torch.nn.functional.one_hot(torch.from_numpy(tokens.positions.astype(np.int64)), 30).float()
    now = [states]
    reader = Position(lambda: now[0], tokens, corpus, PositionTask(), 0)
    now[0] = states.flip(1)
    (turned,) = reader([()])
    assert turned.sums["position_accuracy"].sum() < 0.3 * turned.n_tokens["position_accuracy"].sum()
    now[0] = states
    (intact,) = reader([()])
    assert intact.sums["position_accuracy"].sum() == intact.n_tokens["position_accuracy"].sum()
