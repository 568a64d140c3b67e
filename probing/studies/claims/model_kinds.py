"""Kinds of models that claims are about: a model that is none of a paper's own is measured if it is of that kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from probing.errors import UserError
from probing.models import load_config, load_encoder, load_masked_lm, load_tokenizer
from probing.models.examination import examination_inputs, run
from probing.models.source import ModelSource

# Blocks from which a model is called large: those of BERT-large and RoBERTa-large.
LARGE = 24
# Largest change of a token's last hidden state, relative to its norm, that counts as rounding in float32.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Args:
        words: What a model of this kind is, as the object of a sentence.
        has: Returns whether a model is of this kind; it may load the model. None where the files do not tell.
        datum: The data by which the user says that a model is of this kind; empty where the files tell.
    """

    words: str
    has: Callable[[ModelSource], bool] | None = None
    datum: str = ""


def is_decoder(source: ModelSource) -> bool:
    """Return whether no token attends to a later one: with another last token, all states before it are the same.

    Raises:
        UserError: If the model cannot be loaded.
    """
    import torch

    encoder, tokenizer = load_encoder(source), load_tokenizer(source)
    inputs = {name: values[:1] for name, values in examination_inputs(encoder, tokenizer.pad_token_id or 0).items()}
    changed = inputs["input_ids"].clone()
    changed[0, -1] = inputs["input_ids"][0, 0]
    with torch.inference_mode():
        one, other = (run(encoder, {**inputs, "input_ids": ids}).last for ids in (inputs["input_ids"], changed))
    difference = (one - other)[:, :-1].norm(dim=-1) / one[:, :-1].norm(dim=-1)
    return bool((difference < _ROUNDING).all())


def has_mask_head(source: ModelSource) -> bool:
    """Return whether a model has a mask token and a masked-language-model head with trained weights.

    Raises:
        UserError: If the model cannot be loaded.
    """
    return load_tokenizer(source).mask_token_id is not None and load_masked_lm(source) is not None


def is_large(source: ModelSource) -> bool:
    """Return whether a model has as many blocks as BERT-large."""
    return bool(load_config(source).num_hidden_layers >= LARGE)


KINDS_OF_MODELS: Mapping[str, Kind] = {
    "decoder": Kind("a decoder, in which no token attends to a later one", is_decoder),
    "masked language model": Kind("a model with a trained masked-language-model head", has_mask_head),
    "large model": Kind(f"a model of {LARGE} blocks or more", is_large),
    "tuned model": Kind("a tuned model, whose start `--untuned` names", datum="untuned"),
}


def kinds_of(source: ModelSource, asked: Collection[str], given: Collection[str] = ()) -> frozenset[str]:
    """Return those of the asked kinds that a model is of; a model that cannot be read whole is of none.

    Args:
        source: The model's files.
        asked: Names of kinds; only these are looked for, because that may load the model.
        given: Names of the data that the user gave.
    """
    return frozenset(name for name in sorted(asked) if _has(KINDS_OF_MODELS[name], source, given))


def _has(kind: Kind, source: ModelSource, given: Collection[str]) -> bool:
    if kind.has is None:
        return kind.datum in given
    try:
        return kind.has(source)
    except UserError:  # which the runs of this model will say, in the words of their commands
        return False
