"""The control `permuted_positions`: the model reads each sentence with its tokens permuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.testing import assert_close

from conftest import N_LAYERS
from families import CORE, few_quickly, untouched
from probing.cache import ActivationStore, Request, activations
from probing.cache.extraction import Reading, extract_shard
from probing.cache.store import Plan, divide
from probing.cache.tokens import Tokens
from probing.corpus import from_sentences
from probing.models import load_encoder, resolve_model
from probing.models.anatomy import examine
from probing.statistics.chance import permute_within_sentences
from synthetic import LIGHTNING_WARNINGS, make_tokens, sides

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]

SEED = 4


@pytest.fixture
def request_for(checkpoints: dict[str, Path], sentences: list[str]) -> Callable[..., Request]:
    """Ask for some sentences, several of which are cut, with their tokens permuted."""

    def make(family: str, texts: list[str] = sentences[:20], **options: Any) -> Request:
        source, layers = resolve_model(str(checkpoints[family])), range(N_LAYERS[family] + 1)
        options = {"max_length": 40, "permuted_tokens_seed": SEED, **options}
        return Request(source, from_sentences("some", texts), layers, **options)

    return make


def places(tokens: Tokens) -> NDArray[np.int64]:
    """Return where in its sentence each token is moved to, shape (n_tokens,)."""
    labels = np.where(tokens.special, -1, tokens.positions).astype(np.int64)
    (drawn,) = permute_within_sentences(labels, tokens.sentences, tokens.input_ids, 1, SEED)
    return np.where(tokens.special, tokens.positions, drawn)


# --- what the model reads, and where its states go ---


@pytest.mark.parametrize("family", few_quickly(CORE))
@torch.inference_mode()
def test_the_model_reads_the_moved_tokens_and_each_state_is_kept_at_its_tokens_own_row(
    family: str, request_for: Callable[..., Request], tmp_path: Path
) -> None:
    request = request_for(family)
    stored, model = activations(request, tmp_path, {}), untouched(request.source.folder)
    tokens, moved = stored.tokens, places(stored.tokens)
    assert tokens.n_truncated > 2
    for sentence in range(tokens.n_sentences):
        here = tokens.of_sentences(sentence, 1)
        read = torch.zeros(1, here.stop - here.start, dtype=torch.int64)
        for token, place in zip(tokens.input_ids[here], moved[here], strict=True):
            read[0, place] = int(token)
        states = model(input_ids=read, attention_mask=torch.ones_like(read), output_hidden_states=True).hidden_states
        for layer in request.layers:
            expected = torch.stack([states[layer][0, place] for place in moved[here]])
            # Alone or padded in a batch, the same sums in another order: 1e-4 is hundreds of roundings.
            assert_close(stored.read(layer, 0)[here], expected, rtol=1e-4, atol=1e-4)
    assert (moved != tokens.positions)[~tokens.special].mean() > 0.5


# Models that know order by a table of absolute positions alone, and the row of position 0 in it: RoBERTa counts from
# behind the padding token.
FIRST_ROW = {"bert": 0, "roberta": 2, "albert": 0, "electra": 0, "xlm-roberta": 2}


@pytest.mark.parametrize("family", FIRST_ROW)
@torch.inference_mode()
def test_where_order_is_in_position_ids_alone_moved_tokens_are_tokens_told_other_positions(
    family: str, request_for: Callable[..., Request], tmp_path: Path
) -> None:
    request = request_for(family)
    stored, model = activations(request, tmp_path, {}), untouched(request.source.folder).double()
    moved = torch.from_numpy(places(stored.tokens))
    for sentence in range(stored.tokens.n_sentences):
        here = stored.tokens.of_sentences(sentence, 1)
        read = torch.from_numpy(stored.tokens.input_ids[here].astype(np.int64))[None]
        told = moved[here][None] + FIRST_ROW[family]
        states = model(input_ids=read, position_ids=told, output_hidden_states=True).hidden_states
        for layer in request.layers:
            assert_close(stored.read(layer, 0)[here].double(), states[layer][0], rtol=1e-5, atol=1e-5)


def test_a_token_is_moved_alike_in_every_batch_and_wherever_its_sentence_stands_in_the_corpus(
    request_for: Callable[..., Request], sentences: list[str], tmp_path: Path
) -> None:
    alone = activations(request_for("gpt2", batch_tokens=1), tmp_path / "alone", {})
    backward = activations(request_for("gpt2", sentences[19::-1]), tmp_path / "backward", {})
    for sentence in range(20):
        here, there = (s.tokens.of_sentences(i, 1) for s, i in ((alone, sentence), (backward, 19 - sentence)))
        assert_close(alone.read(3, 0)[here], backward.read(3, 0)[there], rtol=1e-4, atol=1e-4)


def test_the_draw_is_the_same_on_every_machine_and_in_every_process() -> None:
    tokens = make_tokens([10])
    assert places(tokens).tolist() == [0, 8, 1, 7, 2, 3, 4, 6, 5, 9]


def test_an_entry_of_the_former_control_is_not_taken_for_one_of_moved_tokens(
    request_for: Callable[..., Request],
) -> None:
    # That entry, of a model told other positions, had the same draw under this key.
    key = replace(request_for("gpt2"), permuted_tokens_seed=None).key()
    assert "permuted_positions_seed" not in request_for("gpt2").key()
    assert request_for("gpt2").key() not in (key, {**key, "permuted_positions_seed": SEED})
    assert request_for("gpt2").key() != request_for("gpt2", permuted_tokens_seed=SEED + 1).key()


# --- what is left of position ---

N_SENTENCES, N_WORDS = 1600, 8


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "t5", "gpt2", "llama", "convbert", "deberta"])
def test_nothing_but_chance_is_left_of_position_in_any_layer_however_the_model_is_told_of_order(
    family: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    # Words are drawn independently and sentences are of one length, so that the tokens alone tell nothing of position.
    # Then each sentence's positions are a uniform permutation given all that the model reads: whatever a probe says of
    # its N words, it is right 1 time in the mean, with a variance of at most 1 (Hoeffding 1951).
    n_test = N_SENTENCES // 2
    limit = (1 + 4 / n_test**0.5) / N_WORDS
    encoder: Any = load_encoder(resolve_model(str(checkpoints[family])))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "rel" in name:  # a relative bias as plain as a trained model's
                parameter.mul_(30)
    tokens = make_tokens([N_WORDS + 2] * N_SENTENCES)
    input_ids = np.where(tokens.special, 2, tokens.input_ids % (encoder.config.vocab_size - 5) + 5).astype(np.int32)
    tokens = replace(tokens, input_ids=input_ids)

    def accuracies(name: str, key: dict[str, int]) -> list[float]:
        n_layers = N_LAYERS[family]
        plan = Plan(key, n_layers, 16, "float32", 4096, divide(tokens.lengths, tokens.n_tokens))
        store = ActivationStore.create(tmp_path / name, plan, tokens, {})
        pad_token_id = encoder.config.pad_token_id or 0
        anatomy = examine(encoder, pad_token_id)
        readers, reading = [(encoder, anatomy)], Reading(anatomy, pad_token_id, 0)
        for layer, states in extract_shard(readers, store, 0, range(n_layers + 1), reading).items():
            store.write(layer, 0, states)
        fits = sides(store, splits=["train", "test"] * n_test).fit(range(n_layers + 1), tolerance=1e-4)
        return [fit.metrics["accuracy"] for fit in fits]

    assert limit < 1 / N_WORDS + 0.02
    assert max(accuracies("plain", {})) > limit + 0.02
    assert max(accuracies("permuted", {"permuted_tokens_seed": SEED})) < limit
