"""The arms: what they share, how a checkpoint expresses them, and which of them can tell positions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import make_sentences
from probing.models import load_masked_lm, resolve_model
from probing.studies.pretrain.arms import (
    build,
    common_parameters,
    head_of,
    make_ordinary,
    position_table,
    save_checkpoint,
    told,
)
from probing.studies.pretrain.batches import train_tokenizer
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from probing.studies.pretrain.tables import Encoder

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


TABLE = "embeddings.position_embeddings.weight"
NO_TABLE_OF_ITS_OWN = ("learned", "plain_norm")
KINDS = ("weight", "bias")
# In which parameters each arm is not as `learned`, by BERT's names, with blocks as one: its own, and those it lacks.
DIFFERENT: dict[str, tuple[set[str], set[str]]] = {
    **{arm: ({TABLE}, set()) for arm in ARMS},
    **{arm: (set(), set()) for arm in NO_TABLE_OF_ITS_OWN},
    "rotary": ({"encoder.embed_positions.weight"}, {TABLE}),
    "relative": (
        {TABLE, "encoder.relative_attention_bias.weight"}, {"embeddings.token_type_embeddings.weight"}
    ),
    "disentangled": (
        {
            "encoder.rel_embeddings.weight",
            *(f"layer.attention.self.pos_{name}_proj.{kind}" for name in ("key", "query") for kind in KINDS),
        },
        {TABLE},
    ),
    "pre_norm": (
        {
            TABLE, *(f"LayerNorm.{kind}" for kind in KINDS),
            *(f"layer.{part}.LayerNorm.{kind}" for part in ("attention", "intermediate") for kind in KINDS),
        },
        {f"layer.{part}output.LayerNorm.{kind}" for part in ("attention.", "") for kind in KINDS},
    ),
}  # fmt: skip


def of_any_block(names: Iterable[str]) -> set[str]:
    return {re.sub(r"^encoder\.layer\.\d+", "layer", name) for name in names}


@pytest.mark.parametrize("arm", ARMS)
def test_arms_begin_with_the_same_weights_but_for_what_defines_them(arm: str) -> None:
    (own,) = common_parameters({arm: build(arm, SHAPE, TOKENIZER, 3)}).values()
    (usual,) = common_parameters({"learned": build("learned", SHAPE, TOKENIZER, 3)}).values()
    different = {name for name in own if name not in usual or not torch.equal(own[name], usual[name])}
    assert (of_any_block(different), of_any_block(set(usual) - set(own))) == DIFFERENT[arm]
    (other,) = common_parameters({arm: build(arm, SHAPE, TOKENIZER, 4)}).values()
    words = "embeddings.word_embeddings.weight"
    assert not torch.equal(other[words], own[words])


def test_the_table_of_pre_norm_is_that_of_learned_behind_the_row_of_padding() -> None:
    tables = [position_table(build(arm, SHAPE, TOKENIZER, 0)) for arm in ("learned", "pre_norm")]
    assert torch.equal(tables[1][1:], tables[0])


def test_tables_hold_what_the_arm_tells() -> None:
    tables = {
        arm: position_table(build(arm, SHAPE, TOKENIZER, 0)) for arm in ARMS if arm not in ("rotary", "disentangled")
    }
    trained = ["learned", "constant", "relative", "pre_norm", "plain_norm"]
    assert [arm for arm, table in tables.items() if table.requires_grad] == trained
    for arm in ("none", "causal", "alibi", "causal_lm"):
        assert not tables[arm].any()
    assert torch.equal(tables["constant"], tables["learned"][:1].expand(16, 16))
    # Vaswani et al. 2017, section 3.4, times the standard deviation of the token embeddings.
    assert float(tables["sinusoidal"][3, 4]) == pytest.approx(0.3 * torch.sin(torch.tensor(3 / 10_000 ** (4 / 16))))
    assert float(tables["sinusoidal"][3, 5]) == pytest.approx(0.3 * torch.cos(torch.tensor(3 / 10_000 ** (4 / 16))))


@pytest.mark.parametrize("arm", ARMS)
def test_a_checkpoint_gives_what_was_trained_and_needs_token_ids_alone(arm: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    of_language: Any = AutoModelForCausalLM if arm == "causal_lm" else AutoModelForMaskedLM
    model = changed(arm)
    with torch.no_grad():
        states = model.base_model(**told(arm, ids())).last_hidden_state
        logits = head_of(model)(states)
    save_checkpoint(tmp_path / "c", arm, model, TOKENIZER)
    save_checkpoint(tmp_path / "c", arm, model, TOKENIZER)  # replaces itself
    encoder, language_model = (kind.from_pretrained(tmp_path / "c").eval() for kind in (AutoModel, of_language))
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


@pytest.mark.parametrize("arm", ["causal", "causal_lm"])
def test_causal_arms_read_no_later_token(arm: str) -> None:
    model, first = changed(arm), ids()
    second = first.clone()
    second[:, 6:] = first[:, :6]
    with torch.no_grad():
        made, others = (model(input_ids=some).logits for some in (first, second))
    assert torch.allclose(made[:, :6], others[:, :6], atol=1e-5)
    assert float((made[:, 6:] - others[:, 6:]).abs().max()) > 0.1


@pytest.mark.parametrize("arm", ["causal", "causal_lm"])
def test_a_model_of_next_tokens_is_taken_for_none_of_masked_words(arm: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", arm, build(arm, SHAPE, TOKENIZER, 0), TOKENIZER)
    found = load_masked_lm(resolve_model(str(tmp_path / "c")))
    assert (found is None) is (arm == "causal_lm")


RELATIVE = ("none", "rotary", "alibi", "relative", "disentangled")


@pytest.mark.parametrize("arm", [*RELATIVE, "learned", "sinusoidal", "plain_norm"])
def test_states_stay_where_a_row_is_moved_inside_a_padded_row_if_positions_are_relative(arm: str) -> None:
    model = changed(arm)
    make_ordinary(arm, model)
    row = ids(8)
    moved = torch.zeros(4, 14, dtype=torch.long)
    moved[:, 5:13] = row
    with torch.no_grad():
        states = model.base_model(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state
        others = model.base_model(input_ids=moved, attention_mask=(moved != 0).long()).last_hidden_state[:, 5:13]
    difference = float((states - others).abs().max())
    assert difference < 1e-5 if arm in RELATIVE else difference > 0.1


@pytest.mark.parametrize("arm", ["alibi", "learned", "relative", "disentangled", "rotary", "causal_lm"])
def test_of_these_only_symmetric_biases_commute_with_reversed_rows(arm: str) -> None:
    model = changed(arm)
    make_ordinary(arm, model)
    with torch.no_grad():
        states, others = (model.base_model(input_ids=some).last_hidden_state for some in (ids(), ids().flip(1)))
    difference = float((states - others.flip(1)).abs().max())
    assert difference < 1e-5 if arm == "alibi" else difference > 0.1


def test_plain_norms_have_neither_gain_nor_bias_to_train_and_leave_mean_0_and_variance_1() -> None:
    model = changed("plain_norm")
    norms = [name for name, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm)]
    assert len(norms) == 1 + 2 * SHAPE.n_layers + 1  # of the embeddings, of each block, of the head
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert not [name for name in trained if name.rpartition(".")[0] in norms]
    usual = changed("learned").named_parameters()
    assert {name for name, _ in usual} - {*trained} == {f"{name}.{kind}" for name in norms for kind in KINDS}
    with torch.no_grad():
        for states in model.base_model(input_ids=ids(), output_hidden_states=True).hidden_states:
            assert float(states.mean(-1).abs().max()) < 1e-5
            assert float((states.var(-1, correction=0) - 1).abs().max()) < 1e-4


def test_pre_norm_norms_what_enters_a_part_of_a_block_and_post_norm_what_leaves_it() -> None:
    from torch.nn.functional import gelu

    for arm in ("pre_norm", "learned"):
        model = changed(arm)
        first = model.base_model.encoder.layer[0]
        after, mlp = first.attention.output, first.output
        with torch.no_grad():
            x, y, *_ = model.base_model(input_ids=ids(), output_hidden_states=True).hidden_states
            if arm == "pre_norm":
                x = x + after.dense(first.attention.self(first.attention.LayerNorm(x))[0])
                expected = x + mlp.dense(gelu(first.intermediate.dense(first.intermediate.LayerNorm(x))))
            else:
                x = after.LayerNorm(x + after.dense(first.attention.self(x)[0]))
                expected = mlp.LayerNorm(x + mlp.dense(gelu(first.intermediate.dense(x))))
        assert torch.allclose(y, expected, atol=1e-5)
