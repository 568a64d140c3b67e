"""Arms whose attention depends on the distance between tokens: biases and scores, against plain loops."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT, make_sentences
from probing.models.attention_heads import AlibiBertConfig, AlibiBertModel, linear_bias
from probing.studies.pretrain.arms import build, make_ordinary, save_checkpoint
from probing.studies.pretrain.batches import train_tokenizer
from probing.studies.pretrain.tables import Encoder

pytestmark = pytest.mark.numeric

SHAPE = Encoder(2, 16, 2, 32, 100, True, 16, 0.3, 0.0)
TOKENIZER = train_tokenizer(make_sentences(100), SHAPE.vocabulary, True, SHAPE.row_length)
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
