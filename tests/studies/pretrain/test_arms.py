"""The arms: what they share, how a checkpoint expresses them, and which of them can tell positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import make_sentences
from probing.studies.pretrain.arms import (
    build,
    common_parameters,
    make_ordinary,
    position_table,
    save_checkpoint,
    told,
)
from probing.studies.pretrain.batches import train_tokenizer
from probing.studies.pretrain.options import ARMS, Encoder

pytestmark = pytest.mark.numeric

SHAPE = Encoder(2, 16, 2, 32, 100, True, 16, 0.3, 0.0)
TOKENIZER = train_tokenizer(make_sentences(100), SHAPE.vocabulary, True, SHAPE.row_length)


def changed(arm: str, seed: int = 0) -> Any:
    """Return an encoder whose trained parameters are no longer those it began with, as after training."""
    model = build(arm, SHAPE, TOKENIZER, seed).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def ids(n: int = 12) -> torch.Tensor:
    return torch.randint(5, len(TOKENIZER), (4, n), generator=torch.Generator().manual_seed(2))


def test_arms_begin_with_the_same_weights_but_for_positions() -> None:
    models = {arm: build(arm, SHAPE, TOKENIZER, 3) for arm in ARMS}
    parameters = common_parameters(models)
    n_common = len(parameters["learned"])
    for arm, model in models.items():
        assert len(list(model.parameters())) == n_common + 1  # the table, in the arm `rotary` that of sines
        assert all(torch.equal(value, parameters["learned"][name]) for name, value in parameters[arm].items())
    other = common_parameters({"learned": build("learned", SHAPE, TOKENIZER, 4)})["learned"]
    assert not torch.equal(
        other["embeddings.word_embeddings.weight"], parameters["none"]["embeddings.word_embeddings.weight"]
    )


def test_tables_hold_what_the_arm_tells() -> None:
    tables = {arm: position_table(build(arm, SHAPE, TOKENIZER, 0)) for arm in ARMS if arm != "rotary"}
    assert [arm for arm, table in tables.items() if table.requires_grad] == ["learned", "constant"]
    assert not tables["none"].any()
    assert not tables["causal"].any()
    assert torch.equal(tables["constant"], tables["learned"][:1].expand(16, 16))
    # Vaswani et al. 2017, section 3.4, times the standard deviation of the token embeddings.
    assert float(tables["sinusoidal"][3, 4]) == pytest.approx(0.3 * torch.sin(torch.tensor(3 / 10_000 ** (4 / 16))))
    assert float(tables["sinusoidal"][3, 5]) == pytest.approx(0.3 * torch.cos(torch.tensor(3 / 10_000 ** (4 / 16))))


@pytest.mark.parametrize("arm", ARMS)
def test_a_checkpoint_gives_what_was_trained_and_needs_token_ids_alone(arm: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

    model = changed(arm)
    with torch.no_grad():
        states = model.base_model(**told(arm, ids())).last_hidden_state
        logits = model.cls(states)
    save_checkpoint(tmp_path / "c", arm, model, TOKENIZER)
    save_checkpoint(tmp_path / "c", arm, model, TOKENIZER)  # replaces itself
    encoder, language_model = (
        kind.from_pretrained(tmp_path / "c").eval() for kind in (AutoModel, AutoModelForMaskedLM)
    )
    with torch.no_grad():
        assert torch.equal(encoder(input_ids=ids()).last_hidden_state, states)
        assert torch.equal(language_model(input_ids=ids()).logits, logits)
        # The model that goes on with its training is still the same.
        assert torch.equal(model.base_model(**told(arm, ids())).last_hidden_state, states)
    assert AutoTokenizer.from_pretrained(tmp_path / "c").get_vocab() == TOKENIZER.get_vocab()
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("arm", ARMS)
def test_arms_without_positions_commute_with_permutations_of_the_tokens_and_others_do_not(arm: str) -> None:
    model, order = changed(arm), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    make_ordinary(arm, model)
    with torch.no_grad():
        states, permuted = (model.base_model(input_ids=some).last_hidden_state for some in (ids(), ids()[:, order]))
    difference = float((permuted - states[:, order]).abs().max())
    assert difference < 1e-5 if arm in ("none", "constant") else difference > 0.1


def test_the_causal_arm_reads_no_later_token() -> None:
    model, first = changed("causal"), ids()
    second = first.clone()
    second[:, 6:] = first[:, :6]
    with torch.no_grad():
        states, others = (model.base_model(input_ids=some).last_hidden_state for some in (first, second))
    assert torch.allclose(states[:, :6], others[:, :6], atol=1e-6)
    assert float((states[:, 6:] - others[:, 6:]).abs().max()) > 0.1
