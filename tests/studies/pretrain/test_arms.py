"""The arms: what they share, how they tell positions, and which of them read longer rows."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT, make_sentences
from probing.models import load_masked_lm, resolve_model
from probing.models.attention_heads import AlibiBertConfig, AlibiBertModel, linear_bias
from probing.results import Table
from probing.runtime.trainer import Places
from probing.studies.pretrain.batches import (
    LEARNED_TABLES,
    _as_in_bert,
    build,
    head_of,
    make_ordinary,
    model_inputs,
    position_table,
    save_checkpoint,
    train_tokenizer,
)
from probing.studies.pretrain.tables import ARMS as ARMS_SCHEMA
from probing.studies.pretrain.tables import LENGTHS, Encoder, Recipe, conclusions, row_multiples
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from probing.studies.pretrain.training import (
    RunPlan,
    TrainingJob,
    measure_lengths,
    packed_text,
    passages,
    stretched,
    train_all,
)
from probing.text import from_sentences

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


def parameters_of(arm: str, seed: int) -> dict[str, torch.Tensor]:
    model = build(arm, SHAPE, TOKENIZER, seed)
    return {_as_in_bert(name): value.detach() for name, value in model.named_parameters()}


def of_any_block(names: Iterable[str]) -> set[str]:
    return {re.sub(r"^encoder\.layer\.\d+", "layer", name) for name in names}


@pytest.mark.parametrize("arm", ARMS)
def test_arms_begin_with_the_same_weights_but_for_what_defines_them(arm: str) -> None:
    own = parameters_of(arm, 3)
    usual = parameters_of("learned", 3)
    different = {name for name in own if name not in usual or not torch.equal(own[name], usual[name])}
    assert (of_any_block(different), of_any_block(set(usual) - set(own))) == DIFFERENT[arm]
    other = parameters_of(arm, 4)
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
        states = model.base_model(**model_inputs(arm, ids())).last_hidden_state
        logits = head_of(model)(states)
    save_checkpoint(tmp_path / "c", arm, model, TOKENIZER)
    save_checkpoint(tmp_path / "c", arm, model, TOKENIZER)  # replaces itself
    encoder, language_model = (kind.from_pretrained(tmp_path / "c").eval() for kind in (AutoModel, of_language))
    with torch.no_grad():
        assert torch.equal(encoder(input_ids=ids()).last_hidden_state, states)
        assert torch.equal(language_model(input_ids=ids()).logits, logits)
        # The model that goes on with its training is still the same.
        assert torch.equal(model.base_model(**model_inputs(arm, ids())).last_hidden_state, states)
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


IDS = torch.randint(5, len(TOKENIZER), (4, 12), generator=torch.Generator().manual_seed(2))


def states_of(model: Any, **inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.base_model(input_ids=IDS, **inputs).last_hidden_state


def slopes(n_heads: int) -> list[float]:
    """Return the slopes as section 3 of Press et al. and their published code have them."""
    if math.log2(n_heads).is_integer():
        return [2 ** (-8 * (head + 1) / n_heads) for head in range(n_heads)]
    fewer = 2 ** int(math.log2(n_heads))
    return slopes(fewer) + slopes(2 * fewer)[::2][: n_heads - fewer]


@pytest.mark.parametrize("n_heads", [2, 4, 8, 12])
def test_the_linear_bias_is_the_slope_of_the_head_times_the_distance(n_heads: int) -> None:
    bias = linear_bias(n_heads, 9)
    assert bias.shape == (1, n_heads, 9, 9)
    for head, slope in enumerate(slopes(n_heads)):
        for i in range(9):
            for j in range(9):
                assert float(bias[0, head, i, j]) == pytest.approx(-slope * abs(i - j), rel=1e-6)


def test_alibi_is_none_with_the_bias_added_to_its_scores() -> None:
    alibi, none = (build(arm, SHAPE, TOKENIZER, 0).eval() for arm in ("alibi", "none"))
    distance = [[[-slope * abs(i - j) for j in range(12)] for i in range(12)] for slope in slopes(2)]
    assert torch.allclose(states_of(alibi), states_of(none, attention_mask=torch.tensor([distance])), atol=1e-5)
    assert float((states_of(alibi) - states_of(none)).abs().max()) > 0.01


def test_alibi_takes_no_mask_that_it_would_not_read() -> None:
    model = build("alibi", SHAPE, TOKENIZER, 0).eval()
    with pytest.raises(ValueError, match="4 dimensions; expected 2"):
        states_of(model, attention_mask=torch.ones(4, 1, 12, 12))
    with pytest.raises(ValueError, match="no causal mask"):
        AlibiBertModel(AlibiBertConfig(is_decoder=True))


@pytest.mark.several
def test_transformers_alone_refuses_a_checkpoint_of_alibi_and_this_package_reads_it(tmp_path: Path) -> None:
    model = build("alibi", SHAPE, TOKENIZER, 0).eval()
    save_checkpoint(tmp_path / "alibi", "alibi", model, TOKENIZER)
    torch.save(states_of(model), tmp_path / "states.pt")
    alone = f"from transformers import AutoModel; AutoModel.from_pretrained({str(tmp_path / 'alibi')!r})"
    ours = f"""if True:
        import torch
        from probing.models import load_encoder, resolve_model
        encoder = load_encoder(resolve_model({str(tmp_path / "alibi")!r}))
        with torch.no_grad():
            found = encoder(input_ids=torch.tensor({IDS.tolist()})).last_hidden_state
        assert torch.equal(found, torch.load({str(tmp_path / "states.pt")!r}))
    """
    made = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT, timeout=120)
        for code in (alone, ours)
    ]
    assert made[0].returncode == 1
    assert "model type `probing-alibi-bert`" in made[0].stderr
    assert made[1].returncode == 0, made[1].stderr


def bucket(offset: int) -> int:
    """Return the bucket of a key's offset from its query, by Raffel et al. (2020), section 2.1: 32, up to 128."""
    first = 16 if offset > 0 else 0
    distance = abs(offset)
    if distance < 8:
        return first + distance
    return first + min(8 + math.floor(math.log(distance / 8) / math.log(128 / 8) * 8 + 1e-6), 15)


def test_buckets_of_distances_are_those_of_t5() -> None:
    encoder = build("relative", SHAPE, TOKENIZER, 0).base_model.encoder
    offsets = torch.arange(-300, 301)
    found = encoder.relative_position_bucket(offsets).tolist()
    assert found == [bucket(offset) for offset in offsets.tolist()]
    assert {*found} == {*range(32)} - {16}


def test_the_relative_bias_is_the_number_of_the_bucket_and_head_in_all_blocks() -> None:
    from torch.nn.functional import softmax

    model = build("relative", SHAPE, TOKENIZER, 0).eval()
    encoder = model.base_model.encoder
    assert encoder.relative_attention_bias.weight.requires_grad
    table = encoder.relative_attention_bias.weight.detach()
    assert table.shape == (32, SHAPE.n_heads)
    bias = torch.tensor([[[float(table[bucket(j - i), h]) for j in range(12)] for i in range(12)] for h in (0, 1)])
    with torch.no_grad():
        made = model.base_model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
        for states, block, weights in zip(made.hidden_states, encoder.layer, made.attentions, strict=False):
            query, key = (
                part(states).unflatten(2, (2, 8)).transpose(1, 2)
                for part in (block.attention.attn.q, block.attention.attn.k)
            )
            expected = softmax(query @ key.transpose(2, 3) / math.sqrt(8) + bias, -1)
            assert torch.allclose(weights, expected, atol=1e-5)


def test_the_relative_arm_without_its_bias_is_none() -> None:
    relative, none = (build(arm, SHAPE, TOKENIZER, 0).eval() for arm in ("relative", "none"))
    make_ordinary("relative", relative)
    assert float((states_of(relative) - states_of(none)).abs().max()) > 0.1
    with torch.no_grad():
        relative.base_model.encoder.relative_attention_bias.weight.zero_()
    assert torch.allclose(states_of(relative), states_of(none), atol=1e-5)


def test_disentangled_scores_are_the_three_products_of_contents_and_distances() -> None:
    model = build("disentangled", SHAPE, TOKENIZER, 0).eval()
    base = model.base_model
    assert base.embeddings.position_embeddings is None
    attention, distances = base.encoder.layer[0].attention.self, base.encoder.rel_embeddings.weight
    with torch.no_grad():
        made = base(input_ids=IDS, output_hidden_states=True, output_attentions=True)
        x = made.hidden_states[0][0]
        query, key = attention.query_proj(x)[:, 8:], attention.key_proj(x)[:, 8:]  # of the second head
        of_query, of_key = attention.pos_query_proj(distances)[:, 8:], attention.pos_key_proj(distances)[:, 8:]
        scores = torch.empty(12, 12)
        for i in range(12):
            for j in range(12):
                distance = i - j + 16  # from -16 on; the paper's equation 4 has j - i in its last term
                scores[i, j] = query[i] @ key[j] + query[i] @ of_key[distance] + key[j] @ of_query[distance]
        expected = (scores / math.sqrt(3 * 8)).softmax(-1)
    assert torch.allclose(made.attentions[0][0, 1], expected, atol=1e-5)


LONG = torch.randint(5, len(TOKENIZER), (4, 40), generator=torch.Generator().manual_seed(2))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm not in LEARNED_TABLES])
def test_a_model_that_reads_longer_rows_reads_short_ones_as_it_was_trained(arm: str) -> None:
    model = build(arm, SHAPE, TOKENIZER, 0).eval()
    if arm in ("constant", "relative"):  # as after training, when only the first row is not what it was
        with torch.no_grad():
            position_table(model)[0] += 1
    longer = stretched(arm, model, 24, SHAPE.initial_sd)
    short = LONG[:, :16]
    model_inputs = {"position_ids": torch.zeros_like(short)} if arm in ("constant", "relative") else {}
    with torch.no_grad():
        expected = model.base_model(input_ids=short, **model_inputs).last_hidden_state
        assert torch.allclose(longer.base_model(input_ids=short).last_hidden_state, expected, atol=1e-5)
        states = longer.base_model(input_ids=LONG).last_hidden_state
    assert states.isfinite().all()
    # What comes later is read: it changes the first tokens, unless they do not attend to it.
    is_causal = arm in ("causal", "causal_lm")
    assert torch.allclose(states[:, :16], expected, atol=1e-5) is is_causal


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_sines_go_on_where_the_table_of_the_training_ends() -> None:
    model = build("sinusoidal", SHAPE, TOKENIZER, 0)
    table = position_table(stretched("sinusoidal", model, 24, SHAPE.initial_sd))
    assert table.shape == (40, 16)
    assert torch.equal(table[:16], position_table(model))
    assert float(table[30, 2]) == pytest.approx(0.3 * math.sin(30 / 10_000 ** (2 / 16)), rel=1e-4)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_texts_of_several_sentences_fill_a_row() -> None:
    sentences = make_sentences(60)
    found = list(passages(sentences, TOKENIZER, 40))
    assert " ".join(sentences).startswith(" ".join(found))
    assert len(found) > 3
    last = 0
    for text in found:
        last = next(i for i in range(last, 60) if text.endswith(sentences[i])) + 1
        assert (
            len(TOKENIZER(text)["input_ids"])
            >= 40
            > len(TOKENIZER(text.removesuffix(sentences[last - 1]))["input_ids"])
        )


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("typed", ["1,2,4", [4, 1, 2], "4, 2,1,1"])
def test_lengths_are_whole_numbers_in_order(typed: str | list[int]) -> None:
    assert row_multiples(typed) == ([1, 2, 4], [])
    assert row_multiples(2) == ([2], [])
    assert row_multiples(None) == ([], [])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("typed", ["0,2", "two", "1.5", [], -1, ""])
def test_other_lengths_are_refused(typed: str | list[int] | int) -> None:
    found, (problem,) = row_multiples(typed)
    assert found == []
    assert "give whole numbers from 1 on, such as 1,2,4" in problem


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.slow
def test_every_arm_is_measured_at_every_length_or_says_why_not(tmp_path: Path) -> None:
    places, jobs = Places(tmp_path), [TrainingJob(arm, 0) for arm in ("learned", "alibi", "causal_lm")]
    recipe = Recipe(4, 8, 1e-2, 1, held_out_rows=40, checkpoint_factor=10.0, save_every=2)
    asked = RunPlan(jobs, SHAPE, recipe, 200, 0, {"accelerator": "cpu"})
    text = packed_text(from_sentences("text", make_sentences(3000)), asked, places)
    losses = train_all(text, asked, places, None)
    rows = measure_lengths(text, asked, [1, 2, 10_000], places, tmp_path / "cache")
    last = Table(rows, LENGTHS).where(layer=(SHAPE.n_layers, None)).by("arm", "length")
    assert [*last] == [(job.arm, length) for job in jobs for length in (16, 32, 160_000)]
    assert [key for key, top in last.items() if not any("loss" in row for row in top)] == [
        ("learned", 32), ("learned", 160_000), ("alibi", 160_000), ("causal_lm", 160_000)
    ]  # fmt: skip
    of_curve = {row["arm"]: row for row in losses if row["step"] == 4}
    for arm, row in of_curve.items():
        (trained,) = last[arm, 16]
        assert (trained["loss"], trained["unigram_loss"]) == (row["loss"], row["unigram_loss"])
    (longer,) = last["alibi", 32]
    assert longer["loss"] != of_curve["alibi"]["loss"]
    assert 0 <= longer["position_accuracy"] <= 1
    assert not (tmp_path / "state" / "alibi-seed0-x32").exists()
    said = conclusions(Table((), ARMS_SCHEMA), Table(rows, LENGTHS))
    assert (
        "learned, rows of 32, 160000 tokens: the table has 16 positions, and none was learned for later tokens." in said
    )
    assert "alibi, causal_lm, rows of 160000 tokens: the held-out text does not fill a row of 160000 tokens." in said
    assert measure_lengths(text, asked, [1, 2, 10_000], places, tmp_path / "cache") == rows  # what is measured is read
