"""Models of many families: what they receive and return, their residual streams, and that objects are told apart."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.testing import assert_close
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForMaskedLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from conftest import BARE_ARGS, N_LAYERS, ROOT, make_sentences
from families import (
    CORE,
    D_MODEL,
    FAMILIES,
    MAX_LENGTH,
    N_HEADS,
    few_quickly,
    make_tokenizer,
    masked_lm,
    page_row,
    save_at_random,
    untouched,
)
from probing.__main__ import COMMANDS
from probing.activations import ActivationStore
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import find_model, load_encoder, resolve_model
from probing.models.anatomy import examine, hidden_states, word_table
from probing.models.attention_heads import find_heads, read_heads
from probing.models.examination import Unreadable, examination_inputs, vectors_in, vectors_received, with_vectors
from probing.models.examination import run as output_run
from probing.models.residual_stream import HookPoint, StreamSite, UnknownParts, find_norms, find_path, watching
from probing.models.sites import find_site
from probing.runs.loading import load_run
from probing.studies.fit import extract

PAGE = (ROOT / "docs" / "notes" / "families.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("family", few_quickly(CORE))
def test_text_becomes_a_ranked_table(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--model", str(checkpoints[family]), "--corpus", str(corpus_file), "--runs", str(tmp_path), "--name", "run"]
    status = run(COMMANDS, ["fit", *args, *BARE_ARGS, "--wandb.mode", "disabled"])
    output = capsys.readouterr()
    assert status == 0, output.err
    layers = list(range(N_LAYERS[family] + 1))
    made = load_run(tmp_path / "run")
    assert [row["layer"] for row in made.accuracy] == layers
    # A tiny random model holds position in some layer; one whose positions are distances has none in its embeddings.
    assert max(row["accuracy"] / row["majority_accuracy"] for row in made.accuracy) > 1.2
    for layer in layers:
        ranked = [row for row in made.neurons if row["layer"] == layer]
        assert sorted(row["neuron"] for row in ranked) == list(range(16))
        assert [row["contribution"] for row in ranked] == sorted((row["contribution"] for row in ranked), reverse=True)
    assert "Layers: test accuracy of the probe and of its controls" in output.out


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in CORE])
def test_text_becomes_hidden_states_of_every_layer(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--model", str(checkpoints[family]), "--corpus", str(corpus_file), "--cache", str(tmp_path)]
    status = run(COMMANDS, ["extract", *args])
    assert status == 0, capsys.readouterr().err
    (entry,) = tmp_path.glob("*/")
    store = ActivationStore(entry)
    assert store.layers() == list(range(N_LAYERS[family] + 1))
    assert store.damaged(store.layers()) == []
    assert len(store.tokens.sentences) > 2000


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_says_what_the_family_does(checkpoints: dict[str, Path], family: str) -> None:
    assert page_row(family, checkpoints[family]) in PAGE.splitlines()


def test_the_page_lists_no_other_family() -> None:
    table = PAGE.split("<!-- families -->")[1].split("<!-- end of families -->")[0]
    assert len([line for line in table.splitlines() if line.startswith("| ")]) == 1 + len(FAMILIES)


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
    states = output_run(encoder, inputs, output_hidden_states=True).states
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
    output = output_run(Told(made), {"input_ids": ids}, output_hidden_states=True)
    assert torch.equal(output.last, ids[..., None] + 1.0)
    assert [state.tolist() for state in output.states] == [(ids[..., None] + k).tolist() for k in (0, 1)]


def test_an_output_without_a_last_hidden_state_is_named() -> None:
    with pytest.raises(Unreadable, match="returns SimpleNamespace without a last hidden state"):
        output_run(Told(lambda x: SimpleNamespace(logits=x)), {"input_ids": torch.ones(1, 2)})


def test_vectors_are_found_and_exchanged_in_any_place() -> None:
    ids, x, y = torch.arange(3), torch.ones(1, 3, 2), torch.zeros(1, 3, 2)
    assert vectors_in([ids, (None, x)]) is x
    assert vectors_in({"ids": ids}) is None
    assert vectors_received((ids,), {"mask": None, "states": x, "bias": y}) is x
    args, kwargs = with_vectors((ids, x, 1), {"y": y}, y)
    assert (args[0] is ids, args[1] is y, args[2], kwargs["y"] is y) == (True, True, 1, True)
    args, kwargs = with_vectors((ids,), {"mask": None, "states": x}, y)
    assert (args[0] is ids, kwargs["states"] is y) == (True, True)


IDS = torch.arange(7, 16)[None]
TERMS = ("word", "position", "type", "attention", "feed_forward")
POST = ("attention", "sum_attention", "norm_1", "feed_forward", "sum_feed_forward", "norm_2")
PRE = ("attention", "sum_attention", "feed_forward", "sum_feed_forward")
# The sites of the embeddings, those of a block, and whether there is a norm at the end.
FOUND = {
    "bert": (("word", "type", "position", "sum", "norm"), POST, False),
    "roberta": (("word", "type", "position", "sum", "norm"), POST, False),
    "distilbert": (("word", "position", "sum", "norm"), POST, False),
    "mpnet": (("word", "position", "sum", "norm"), POST, False),
    "albert": (("embeddings",), POST, False),
    "bart": (("word", "position", "sum", "norm"), POST, False),
    "gpt2": (("word", "position", "sum"), PRE, True),
    "llama": (("word", "sum"), PRE, True),
    "t5": (("word", "sum"), PRE, True),
    "gpt_neox": (("word", "sum"), ("attention", "feed_forward", "sum_feed_forward"), True),
    "mpt": (("word", "sum"), PRE, True),
    "megatron-bert": (("word", "type", "position", "sum"), PRE, True),
    "longformer": (("word", "position", "type", "sum", "norm"), POST, False),
}


def read(encoder: Any, sites: list[StreamSite]) -> tuple[dict[tuple[int, str], Tensor], Any]:
    """Return what is at each site in a plain forward pass, and the pass's hidden states."""
    taken: dict[HookPoint, Tensor] = {}
    anatomy = examine(encoder)
    modules = [site.tap.module for site in sites]
    with torch.inference_mode(), watching(encoder, anatomy, modules, lambda tap, x: taken.update({tap: x.clone()})):
        states = encoder(IDS, attention_mask=torch.ones_like(IDS), output_hidden_states=True).hidden_states
    return {(site.layer, site.name): taken[site.tap].view(-1, IDS.shape[1], states[0].shape[-1]) for site in sites}, (
        states
    )


@pytest.mark.numeric
@pytest.mark.parametrize("family", FOUND)
def test_terms_add_up_to_the_stream_and_the_stream_to_the_hidden_states(
    family: str, checkpoints: dict[str, Path]
) -> None:
    encoder = untouched(checkpoints[family])
    sites = find_path(encoder, examine(encoder))
    embeddings, block, has_final = FOUND[family]
    n_layers = encoder.config.num_hidden_layers
    names = [(site.layer, site.name) for site in sites]
    assert names == [
        *((0, name) for name in embeddings), *((k, name) for k in range(1, n_layers + 1) for name in block),
        *([(n_layers, "final_norm")] if has_final else []),
    ]  # fmt: skip
    assert {site.name for site in sites if site.is_term} == set(TERMS) & {name for _, name in names}
    values, states = read(encoder, sites)
    stream = values[0, embeddings[-1]]
    assert torch.equal(stream, states[0])
    if "sum" in embeddings:
        total = torch.stack([values[0, name].expand_as(stream) for name in embeddings if name in TERMS]).sum(0)
        assert torch.allclose(total, values[0, "sum"], atol=1e-5)
    for layer in range(1, n_layers + 1):
        here = {name: values[layer, name] for name in block}
        if "sum_attention" in block:
            assert torch.allclose(stream + here["attention"], here["sum_attention"], atol=1e-5)
            stream = here["norm_1" if "norm_1" in block else "sum_attention"]
        else:  # both parts read the same stream
            stream = stream + here["attention"]
        assert torch.allclose(stream + here["feed_forward"], here["sum_feed_forward"], atol=1e-5)
        stream = here[block[-1]]
        if layer < n_layers:
            assert torch.equal(stream, states[layer])
    assert torch.equal(values[n_layers, "final_norm" if has_final else block[-1]], states[-1])


@pytest.mark.numeric
def test_the_sites_of_bert_are_what_its_modules_of_those_names_make(checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints["bert"])
    values, _ = read(encoder, find_path(encoder, examine(encoder)))
    tables = encoder.embeddings
    assert torch.equal(values[0, "word"], tables.word_embeddings.weight[IDS])
    assert torch.equal(values[0, "position"][0], tables.position_embeddings.weight[: IDS.shape[1]])
    assert torch.equal(values[0, "type"][0, 0], tables.token_type_embeddings.weight[0])
    with torch.inference_mode():
        for k, block in enumerate(encoder.encoder.layer, start=1):
            assert torch.equal(block.attention.output.LayerNorm(values[k, "sum_attention"]), values[k, "norm_1"])
            inner = block.intermediate(values[k, "norm_1"])
            assert torch.allclose(block.output.dense(inner), values[k, "feed_forward"], atol=1e-6)


@pytest.mark.numeric
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "albert", "gpt2", "llama", "gpt_neox"])
def test_each_block_has_two_norms_that_compute_what_they_say(family: str, checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints[family])
    norms = find_norms(encoder, examine(encoder))
    n_layers = encoder.config.num_hidden_layers
    assert [(one.layer, one.number) for one in norms] == [(k, i) for k in range(1, n_layers + 1) for i in (1, 2)]
    for one in norms:
        assert one.norm.centres == (family != "llama")
        given = torch.randn(4, 16)
        with torch.inference_mode():
            made = encoder.get_submodule(one.name)(given)
        assert torch.allclose(one.norm(given.double()).float(), made, atol=1e-5)


@pytest.mark.numeric
def test_models_whose_parts_cannot_be_told_are_refused_with_the_reason(checkpoints: dict[str, Path]) -> None:
    xlnet, modern = (untouched(checkpoints[name]) for name in ("xlnet", "modernbert"))
    for find in (find_norms, find_path):
        with pytest.raises(UnknownParts, match="do not pass the hidden states from one to the next"):
            find(xlnet, examine(xlnet))
    # Its first block reads the embeddings without a norm.
    with pytest.raises(UnknownParts, match="block 1 has 1 norm as wide as its hidden states, where 2 are expected"):
        find_norms(modern, examine(modern))


@pytest.mark.numeric
def test_a_block_that_does_something_to_its_sum_is_refused(checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints["gpt2"])
    anatomy = examine(encoder)
    encoder.h[1].register_forward_hook(lambda module, args, made: 1.01 * made)
    with pytest.raises(UnknownParts, match="no two parts of block 2 add up to what it adds"):
        find_path(encoder, anatomy)


Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def original(checkpoints: dict[str, Path]) -> tuple[Any, Any]:
    """A tiny BERT of three blocks with its tokenizer, never changed."""
    folder = checkpoints["bert"]
    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def print_of(model: Any, tokenizer: Any) -> str:
    return find_model(model, None, tokenizer).fingerprint()


def changed(original: tuple[Any, Any], change: Change) -> str:
    model, tokenizer = deepcopy(original)
    change(model)
    return print_of(model, tokenizer)


# --- changes ---


class Scaled(nn.Module):
    """A parametrization whose factor is an attribute."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, weight: Tensor) -> Tensor:
        return self.factor * weight


def block(model: Any, index: int = 1) -> Any:
    return model.encoder.layer[index]


def steered(coefficient: float, where: Callable[[Tensor], Any] = lambda states: ...) -> Change:
    """Return a change that adds to the output of a block at some tokens; nothing but a closure knows of it."""

    def change(model: Any) -> None:
        def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            made = type(self).forward(self, hidden_states, *args, **kwargs).clone()
            made[:, where(hidden_states)] += coefficient
            return made

        block(model).forward = MethodType(forward, block(model))

    return change


def at_long(states: Tensor) -> slice:
    return slice(None) if states.shape[1] > 100 else slice(0)


def blocks_in_order(*order: int) -> Change:
    def change(model: Any) -> None:
        model.encoder.layer = nn.ModuleList(model.encoder.layer[i] for i in order)

    return change


def attribute(name: str, value: Any) -> Change:
    """Return a change of an attribute, given by its path in the second block."""
    path, _, last = name.rpartition(".")
    return lambda model: setattr(block(model).get_submodule(path), last, value)


def parametrized(factor: float) -> Change:
    return lambda model: parametrize.register_parametrization(block(model).output.dense, "weight", Scaled(factor))


def only_inside_the_mlp(model: Any) -> None:
    """Double the units of the MLP, and halve what is read of them: exactly the same hidden states."""
    units, down = block(model).intermediate.intermediate_act_fn, block(model).output.dense
    make, read = units.forward, down.forward
    units.forward = lambda values: 2 * make(values)
    down.forward = lambda values: read(values / 2)


def swapped(model: Any) -> None:
    block(model).output.LayerNorm = nn.RMSNorm(16)


def only_one_token(model: Any) -> None:
    """Move the embedding of one token in the middle of the vocabulary, by no parameter."""
    table, token = model.embeddings.word_embeddings, model.config.vocab_size // 2
    embed = type(table).forward
    table.forward = lambda ids: embed(table, ids) + (ids == token)[..., None]


CHANGES: dict[str, Change] = {
    "weight": lambda model: block(model).output.dense.weight.data[0, 0].add_(1e-3),
    "buffer": lambda model: model.embeddings.register_buffer("shift", torch.ones(1)),
    "steered by 0": steered(0),
    "steered by 4": steered(4),
    "steered a little": steered(1e-4),
    "steered in long inputs": steered(4, at_long),
    "steered at the first token": steered(4, lambda states: slice(1)),
    "one token": only_one_token,
    "attention scaled": attribute("attention.self.scaling", 0.5),
    "activation": attribute("intermediate.intermediate_act_fn", nn.LeakyReLU(0.1)),
    "slope of the activation": attribute("intermediate.intermediate_act_fn", nn.LeakyReLU(0.2)),
    "function": attribute("intermediate.intermediate_act_fn", nn.Tanh()),
    "units of the MLP": only_inside_the_mlp,
    "eps": attribute("output.LayerNorm.eps", 1e-3),
    "eps a little": attribute("output.LayerNorm.eps", 1e-11),
    "parametrization by 1": parametrized(1),
    "parametrization by 2": parametrized(2),
    "order": blocks_in_order(1, 0, 2),
    "shared blocks": blocks_in_order(0, 1, 0),
    "shared blocks in another order": blocks_in_order(0, 0, 1),
    "module": swapped,
    "attention implementation": lambda model: model.set_attn_implementation("eager"),
    "configuration": lambda model: setattr(model.config, "layer_norm_eps", 1e-6),
}  # fmt: skip


@pytest.mark.slow
def test_no_two_objects_that_compute_different_things_have_the_same_fingerprint(original: tuple[Any, Any]) -> None:
    found = {name: changed(original, change) for name, change in CHANGES.items()}
    assert len(found) == 23
    alike = {name: other for name in found for other in found if name < other and found[name] == found[other]}
    assert alike == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.requires_grad_(False),
        lambda model: model.train(),
        lambda model: model(torch.ones(1, 3).long()),
    ],
    ids=["no gradients", "training", "called"],
)
def test_what_changes_nothing_changes_no_fingerprint(original: tuple[Any, Any], change: Change) -> None:
    assert changed(original, change) == print_of(*original)


def test_threads_random_numbers_and_another_object_of_the_same_files_change_nothing(
    original: tuple[Any, Any], checkpoints: dict[str, Path]
) -> None:
    before, n_threads, state = print_of(*original), torch.get_num_threads(), torch.get_rng_state()
    try:
        torch.set_num_threads(2)
        assert print_of(*original) == before
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert print_of(AutoModel.from_pretrained(checkpoints["bert"]), original[1]) == before


def test_the_order_of_a_set_changes_no_fingerprint(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ModernBERT calls its rotary embedding for a set of kinds of layers, in an order that Python draws."""
    from transformers.models.modernbert import modeling_modernbert as modernbert

    objects = [kind.from_pretrained(checkpoints["modernbert"]) for kind in (AutoModel, AutoTokenizer)]
    found = set()
    for reverse in (False, True):
        monkeypatch.setattr(modernbert, "set", partial(sorted, reverse=reverse), raising=False)
        found.add(print_of(*objects))
    assert len(found) == 1


def test_a_hook_of_all_modules_changes_the_fingerprint(original: tuple[Any, Any]) -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, made: 2 * made if isinstance(module, nn.Linear) else None
    )
    try:
        hooked = print_of(*original)
    finally:
        handle.remove()
    assert hooked != print_of(*original)


def test_the_randomly_initialised_model_of_a_class_is_what_the_class_computes(original: tuple[Any, Any]) -> None:
    class Steered(type(original[0])):  # type: ignore[misc]
        coefficient = 0

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            made = super().forward(*args, **kwargs)
            made.last_hidden_state = made.last_hidden_state + self.coefficient
            return made

    model = Steered(original[0].config)
    before = find_model(model, None, original[1])
    without, whole = before.fingerprint(weights=False), before.fingerprint()
    assert find_model(model, None, original[1]).fingerprint(weights=False) == without
    Steered.coefficient = 4
    after = find_model(model, None, original[1])
    assert after.fingerprint() != whole
    assert after.fingerprint(weights=False) != without


def test_the_head_of_a_masked_language_model_belongs_to_it(tmp_path: Path) -> None:
    folder = masked_lm(tmp_path / "bert", "bert", make_sentences(50))
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    found = [print_of(model, tokenizer)]
    model.cls.predictions.transform.transform_act_fn = nn.Tanh()
    found.append(print_of(model, tokenizer))
    model.cls.predictions.bias.data[3] += 1
    assert len({*found, print_of(model, tokenizer)}) == 3


@pytest.mark.parametrize("family", ["t5", "gpt2", "xlnet", "albert", "modernbert"])
def test_objects_of_other_families_are_told_apart(family: str, checkpoints: dict[str, Path]) -> None:
    model, tokenizer = (kind.from_pretrained(checkpoints[family]) for kind in (AutoModel, AutoTokenizer))
    before = print_of(model, tokenizer)
    assert print_of(deepcopy(model), tokenizer) == before
    norm = next(module for module in model.modules() if "Norm" in type(module).__name__)
    norm.forward = lambda states: type(norm).forward(norm, states) * 1.001
    assert print_of(model, tokenizer) != before


def test_an_object_that_reads_short_text_alone_is_told_apart_too(original: tuple[Any, Any]) -> None:
    def short(coefficient: float) -> Change:
        def change(model: Any) -> None:
            steered(coefficient)(model)
            model.embeddings.position_embeddings = nn.Embedding(50, 16, _weight=torch.ones(50, 16))

        return change

    assert changed(original, short(1)) != changed(original, short(2))


# --- tokenizers ---


def lower_case(kind: Any) -> Any:
    """Return a class of tokenizers that reads everything in lower case."""

    def call(self: Any, texts: Any, *args: Any, **kwargs: Any) -> Any:
        return kind.__call__(self, [text.lower() for text in texts], *args, **kwargs)

    return type("LowerCase", (kind,), {"__call__": call})


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: setattr(tokenizer, "truncation_side", "left"),
        lambda tokenizer: setattr(tokenizer, "split_special_tokens", True),
        lambda tokenizer: setattr(tokenizer, "__class__", lower_case(type(tokenizer))),
    ],
    ids=["side", "special tokens", "class"],
)
def test_tokenizers_that_make_other_tokens_have_other_fingerprints(original: tuple[Any, Any], change: Change) -> None:
    model, tokenizer = original[0], deepcopy(original[1])
    change(tokenizer)
    assert print_of(model, tokenizer) != print_of(*original)


# --- entries ---


def test_the_dose_curve_of_a_coefficient_is_not_flat(
    original: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sentences, states = make_sentences(20), {}
    for coefficient in (0, 1, 4):
        model, tokenizer = deepcopy(original)
        steered(coefficient)(model)
        store = ActivationStore(extract(model, 2, corpus=sentences, tokenizer=tokenizer, quiet=True))
        states[coefficient] = store.read(2, 0)
    for coefficient in (1, 4):
        assert (states[coefficient] - states[0]).mean() == pytest.approx(coefficient, rel=1e-3)


# --- what is refused ---


def randomly(self: Any, states: Tensor) -> Tensor:
    return nn.functional.dropout(type(self).forward(self, states), 0.1)


def counting(seen: list[int], self: Any, states: Tensor) -> Tensor:
    seen.append(1)
    return type(self).forward(self, states) * (1 + 1e-3 * (len(seen) > 3))


def needing_more(self: Any, states: Tensor) -> Tensor:
    raise ValueError("You have to specify pixel_values")


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (randomly, "`encoder.layer.1.output.dense` of the BertModel computes something else when the same tokens"),
        (partial(counting, []), "`encoder.layer.1.output.dense` of the BertModel computes something else"),
        (needing_more, "does not run on `input_ids` and `attention_mask`.*You have to specify pixel_values"),
    ],
    ids=["random", "state", "no text model"],
)
def test_what_has_no_fingerprint_is_refused(original: tuple[Any, Any], forward: Any, words: str) -> None:
    def replace(model: Any) -> None:
        dense = block(model).output.dense
        dense.forward = MethodType(forward, dense)

    with pytest.raises(UserError, match=words) as refused:
        changed(original, replace)
    assert "\n" not in str(refused.value)
