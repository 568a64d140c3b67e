"""Objects that compute different things have different fingerprints, and equal ones have the same."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from conftest import make_sentences
from families import masked_lm
from probing.cache import ActivationStore
from probing.errors import UserError
from probing.models import find_model
from probing.studies.fit.command import extract

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
