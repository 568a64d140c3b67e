"""What models of other families receive and return, and what can be read of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import CONFIG_MAPPING, AutoModel
from transformers.modeling_outputs import BaseModelOutput

from families import D_MODEL, FAMILIES, MAX_LENGTH, N_HEADS, make_tokenizer, save_at_random
from probing.errors import UserError
from probing.models import load_encoder, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.models.attention_heads import find_heads, read_heads
from probing.models.examination import Unreadable, examination_inputs, run, vectors_given, vectors_in, with_vectors
from probing.models.residual_stream import word_table
from probing.models.sites import find_site

_HALVES: dict[str, Any] = {
    "d_model": D_MODEL, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": N_HEADS,
    "decoder_attention_heads": N_HEADS, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "max_position_embeddings": MAX_LENGTH, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_BLOCKS: dict[str, Any] = {
    "hidden_size": D_MODEL, "num_hidden_layers": 2, "num_attention_heads": N_HEADS,
    "max_position_embeddings": MAX_LENGTH,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "fsmt": {**_HALVES, "langs": ["en", "de"], "src_vocab_size": 300, "tgt_vocab_size": 300},
    "pegasus_x": {**_HALVES, "block_size": 8, "num_global_tokens": 4},
    "dpr": {**_BLOCKS, "intermediate_size": 32},
    "opt": {**_BLOCKS, "ffn_dim": 32, "word_embed_proj_dim": D_MODEL, "pad_token_id": 1},
    "olmo2": {**_BLOCKS, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
    "xglm": {
        "d_model": D_MODEL, "num_layers": 2, "attention_heads": N_HEADS, "ffn_dim": 32, "pad_token_id": 1,
        "max_position_embeddings": MAX_LENGTH,
    },
}  # fmt: skip


@pytest.fixture
def save(tmp_path: Path, sentences: list[str]) -> Callable[..., Path]:
    """Save a tiny model of one of the `OTHERS`, or of another class of its family."""

    def make(family: str, model_class: Any = AutoModel, folder: str = "model", **own: Any) -> Path:
        config: Any = CONFIG_MAPPING[family]
        config = config(**{"vocab_size": 300, **OTHERS.get(family, {}), **own})
        model = model_class.from_config(config) if model_class is AutoModel else model_class(config)
        return save_at_random(tmp_path / folder, model, make_tokenizer("byte-level", sentences))

    return make


def load(folder: Path) -> Any:
    return load_encoder(resolve_model(str(folder)))


@pytest.mark.parametrize("family", OTHERS)
@torch.inference_mode()
def test_hidden_states_are_read_in_whatever_form_they_are_returned(save: Callable[..., Path], family: str) -> None:
    folder = save(family)
    encoder, whole = load(folder), AutoModel.from_pretrained(folder).eval()
    whole = whole.get_encoder() if whole.config.is_encoder_decoder else whole
    anatomy, inputs = examine(encoder, 1), examination_inputs(encoder, 1)
    length = inputs["input_ids"].shape[1]
    expected = whole(**inputs, output_hidden_states=True, return_dict=True).hidden_states
    # Pegasus-X pads its states, and pairs the last one with that of its global tokens.
    expected = [(state[0] if isinstance(state, tuple) else state)[:, :length] for state in expected]
    mask = inputs["attention_mask"].bool()
    for layer, states in enumerate(expected):
        assert_close(hidden_states(encoder, anatomy, [layer], **inputs)[layer][mask], states[mask])
    assert word_table(encoder).weight.shape[1] == D_MODEL  # type: ignore[index]


@torch.inference_mode()
def test_heads_of_all_sentences_in_one_row_are_told_apart(save: Callable[..., Path]) -> None:
    folder = save("xglm")
    encoder, inputs = (
        load(folder),
        {"input_ids": torch.arange(5, 27).view(2, 11), "attention_mask": torch.ones(2, 11).long()},
    )
    seen: list[Tensor] = []
    heads = find_heads(encoder, examine(encoder, 1), 1)
    read_heads(encoder, heads, lambda block, probabilities, values: seen.append(probabilities.clone()), inputs)
    expected = AutoModel.from_pretrained(folder).eval()(**inputs, output_attentions=True).attentions
    for found, own in zip(seen, expected, strict=True):
        assert_close(found, own)
    assert heads.projections


@pytest.mark.parametrize("site", ["mlp", "attention"])
@pytest.mark.parametrize("family", ["opt", "olmo2"])
def test_sites_are_found_among_tokens_in_one_row_and_behind_norms_over_all_heads(
    save: Callable[..., Path], family: str, site: Any
) -> None:
    encoder = load(save(family))
    found = find_site(encoder, examine(encoder, 1), site, 1)
    assert len(found.modules) == 2
    assert found.width == (D_MODEL if site == "attention" else 32)


def test_experts_have_no_units_that_all_tokens_use(save: Callable[..., Path]) -> None:
    encoder = load(save("mixtral", **_BLOCKS, intermediate_size=32, num_local_experts=4, num_key_value_heads=2))
    with pytest.raises(UserError, match="block 1 has experts, of which each token uses some"):
        find_site(encoder, examine(encoder), "mlp")


def test_mlps_that_write_to_a_narrower_stream_inside_the_block_are_counted(save: Callable[..., Path]) -> None:
    own = {"embedding_size": 8, "intra_bottleneck_size": 8, "intermediate_size": 32, "num_feedforward_networks": 3}
    encoder = load(save("mobilebert", **_BLOCKS, **own))
    with pytest.raises(UserError, match=r"block 1 has 3 linear maps that read .*, and none of them adds its output"):
        find_site(encoder, examine(encoder), "mlp")


@pytest.mark.parametrize(
    ("family", "model_class"), [("t5", "T5EncoderModel"), ("dpr", "DPRContextEncoder"), ("t5", "T5Model")]
)
@torch.inference_mode()
def test_a_part_of_a_family_that_was_saved_alone_is_read(
    save: Callable[..., Path], family: str, model_class: str
) -> None:
    import transformers

    kind = getattr(transformers, model_class)
    own = FAMILIES["t5"].config(300).to_diff_dict() if family == "t5" else {}
    folder = save(family, kind, **{name: value for name, value in own.items() if name != "model_type"})
    encoder, whole = load(folder), kind.from_pretrained(folder).eval()
    inputs = examination_inputs(encoder, 0)
    own_states = (whole.get_encoder() if whole.config.is_encoder_decoder else whole)(
        **inputs, output_hidden_states=True
    )
    states = run(encoder, inputs, output_hidden_states=True).states
    assert_close(states, own_states.hidden_states)
    assert len(examine(load_encoder(resolve_model(str(folder)), 0)).blocks or ()) == len(states) - 1


class Told(nn.Module):
    """Returns what it is told to."""

    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.made, self.config = made, SimpleNamespace(model_type="told")

    def forward(self, input_ids: Tensor, output_hidden_states: bool = False) -> Any:
        return self.made(input_ids[..., None].float())


@pytest.mark.parametrize(
    "made",
    [
        lambda x: BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x, x + 1)),
        lambda x: (x + 1, (x, x + 1)),
        lambda x: [x + 1, x[:, 0], [x, x + 1]],
        lambda x: (x + 1, ((x, x[:, :1]), torch.cat([x + 1, x], dim=1))),
    ],
)
def test_outputs_tuples_and_lists_are_read_alike(made: Any) -> None:
    ids = torch.arange(6).view(2, 3)
    output = run(Told(made), {"input_ids": ids}, output_hidden_states=True)
    assert torch.equal(output.last, ids[..., None] + 1.0)
    assert [state.tolist() for state in output.states] == [(ids[..., None] + k).tolist() for k in (0, 1)]


def test_an_output_without_a_last_hidden_state_is_named() -> None:
    with pytest.raises(Unreadable, match="returns SimpleNamespace without a last hidden state"):
        run(Told(lambda x: SimpleNamespace(logits=x)), {"input_ids": torch.ones(1, 2)})


def test_vectors_are_found_and_exchanged_in_any_place() -> None:
    ids, x, y = torch.arange(3), torch.ones(1, 3, 2), torch.zeros(1, 3, 2)
    assert vectors_in([ids, (None, x)]) is x
    assert vectors_in({"ids": ids}) is None
    assert vectors_given((ids,), {"mask": None, "states": x, "bias": y}) is x
    args, kwargs = with_vectors((ids, x, 1), {"y": y}, y)
    assert (args[0] is ids, args[1] is y, args[2], kwargs["y"] is y) == (True, True, 1, True)
    args, kwargs = with_vectors((ids,), {"mask": None, "states": x}, y)
    assert (args[0] is ids, kwargs["states"] is y) == (True, True)
