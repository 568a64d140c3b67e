"""Models that are objects of this process: `fit(model=<PreTrainedModel>, tokenizer=...)`."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from probing.errors import RunError, UserError, as_clause
from probing.models.behaviour import Unsteady, add_tensor, attributes, model_behaviour, tokenizer_behaviour
from probing.models.source import OBJECT, ModelSource, building, resolve_model

# Entries of a configuration that change no hidden state, and states that a tokenizer keeps from its last call.
NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
_OF_THE_LAST_CALL = ("truncation", "padding")
# Packages whose classes are identified by their names, and whose hooks change no hidden state.
_LIBRARIES = ("torch", "transformers", "accelerate")


@dataclass(frozen=True, eq=False)
class ModelObject(ModelSource):
    """A model and its tokenizer as objects; both are copied before they are used, so that they stay as they are.

    Args:
        name: Its class with a part of its fingerprint.
        folder: Of no meaning for an object.
        revision: None.
        model: The `PreTrainedModel`.
        tokenizer: Its fast tokenizer.
        of_weights: SHA-256 (hex) of what determines the hidden states.
    """

    model: Any = field(default=None, repr=False)
    tokenizer: Any = field(default=None, repr=False)
    of_weights: str = field(default="", repr=False)

    @property
    def short_name(self) -> str:
        """The class of the model."""
        return type(self.model).__name__

    def fingerprint(self, weights: bool = True) -> str:
        """SHA-256 (hex) of what determines the hidden states: of the object, or of a randomly initialised model.

        Raises:
            UserError: If no randomly initialised model can be built or run.
        """
        return self.of_weights if weights else self._of_random_weights

    @cached_property
    def _of_random_weights(self) -> str:
        import torch

        with building(self), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = self.built()
        return _fingerprint(built, self.tokenizer)

    @property
    def encoder(self) -> Any:
        """The part that turns text into hidden states."""
        return encoder_in(self.model)

    def copied(self) -> Any:
        """Return a copy of the model, on the processor and in evaluation mode."""
        return deepcopy(self.model).cpu().eval()

    def trained_on(self, model: Any) -> ModelObject:
        """Return the model after some training; it is not examined again, and no cache knows it by its weights.

        Args:
            model: The same model, with other weights.

        Raises:
            UserError: If it has hooks by now that change what it computes.
            RunError: If a weight is not finite.
        """
        _refuse_hooks(model)
        if bad := next((name for name, weight in model.named_parameters() if not weight.isfinite().all()), None):
            raise RunError(f"`{bad}` of the {type(model).__name__} is not finite: the training has diverged")
        return replace(self, model=model, of_weights=uuid4().hex)

    def built(self) -> Any:
        """Return a model of the same class and configuration, with weights as they are initialised."""
        return type(self.model)._from_config(deepcopy(self.model.config))


def encoder_in(model: Any) -> Any:
    """Return the part that computes hidden states: the encoder of an encoder-decoder, otherwise all before the head."""
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


def has_masked_lm_head(model: Any) -> bool:
    """Whether a model predicts masked words; that of an encoder-decoder reads the decoder."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    classes: Any = MODEL_FOR_MASKED_LM_MAPPING  # loads a class when it is asked for one
    kind = type(model.config)
    return not model.config.is_encoder_decoder and kind in classes and type(model) is classes[kind]


def predicts_next_tokens(config: Any) -> bool:
    """Whether a checkpoint was saved by a model of next tokens, whose head would load as one of masked words."""
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    causal = [name for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if name not in masked]
    return any(name in causal for name in getattr(config, "architectures", None) or ())


def find_model(model: Any, revision: str | None = None, tokenizer: Any = None) -> ModelSource:
    """Return a model by its name, or a model that is an object with its tokenizer.

    Raises:
        UserError: If there is none of the name, or the objects cannot be used.
    """
    if not isinstance(model, str):
        if revision:
            raise UserError(f"`revision={revision}`: `model` is an object, which has no revisions.")
        return model_object(model, tokenizer)
    if tokenizer is not None:
        raise UserError(f"`tokenizer` belongs to a model that is an object; `model={model}` has its own.")
    return resolve_model(model, revision)


def model_object(model: Any, tokenizer: Any) -> ModelObject:
    """Return a model that was given as an object.

    Raises:
        UserError: If the objects are no model and fast tokenizer of transformers that belong together, or if hooks
            change what the model computes.
    """
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    found = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        way_out = "; of a PEFT model give `merge_and_unload()`" if "Peft" in found else ""
        raise UserError(
            f"`model` is of type {found}: expected a name, the path of a folder, or a PreTrainedModel of "
            f"transformers{way_out}."
        )
    if tokenizer is None:
        raise UserError(
            f"`model` is a {found}: give its tokenizer too, such as `tokenizer=AutoTokenizer.from_pretrained(...)`."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(
            f"`tokenizer` is of type {type(tokenizer).__name__}: expected a fast tokenizer of transformers, "
            "as `AutoTokenizer.from_pretrained` returns it."
        )
    if any(tensor.is_meta for tensor in model.parameters()):
        raise UserError(f"`model`: some weights of the {found} are not in memory; load it without a device map.")
    _refuse_hooks(model)
    rows: Any = model.get_input_embeddings().num_embeddings
    if (most := max(tokenizer.get_vocab().values(), default=0)) >= rows:
        raise UserError(
            f"`tokenizer` gives ids up to {most}, and the {found} has embeddings for {rows}: give the model's own."
        )
    digest = _fingerprint(model, tokenizer)
    return ModelObject(f"{OBJECT}{found}@{digest[:16]}", Path(), None, model, tokenizer, digest)


def _fingerprint(model: Any, tokenizer: Any) -> str:
    """SHA-256 (hex) of what a model is made of and what it computes, with its tokenizer.

    Raises:
        UserError: If it does not run on tokens alone, or does not compute the same twice.
    """
    digest = hashlib.sha256()
    for text in (*_descriptions(model, tokenizer), _behaviour(model, tokenizer), tokenizer_behaviour(tokenizer)):
        digest.update(text.encode() + b"\0")
    read = _what_is_read(model)
    for name, tensor in (*read.named_parameters(), *read.named_buffers()):
        digest.update(name.encode() + b"\0")
        add_tensor(digest, tensor)
    return digest.hexdigest()


def _behaviour(model: Any, tokenizer: Any) -> str:
    """SHA-256 (hex) of what a copy of a model computes; the model stays as it is.

    Raises:
        UserError: If it does not run on tokens alone, or does not compute the same twice.
    """
    found = type(model).__name__
    try:
        copy = deepcopy(model).cpu().float().eval()
        encoder_in(copy).config.use_cache = False
        return model_behaviour(_what_is_read(copy), encoder_in(copy), tokenizer)
    except Unsteady as error:
        raise UserError(
            f"`model`: {f'`{error}` of ' if str(error) else ''}the {found} computes something else when the same "
            "tokens are read again, and cached activations would be those of one pass; take out what is random or "
            "remembers earlier passes, and call `model.eval()` if a replaced `forward` has kept parts of the model."
        ) from None
    except Exception as error:  # whatever a forward pass raises
        raise UserError(
            f"`model`: a copy of the {found} does not run on `input_ids` and `attention_mask` on the processor in "
            f"float32 ({type(error).__name__}: {as_clause(error)}); give a text model, and tensors that it reads as "
            "parameters or buffers, which move with it."
        ) from None


def _what_is_read(model: Any) -> Any:
    """Return the part of a model that commands read: with its head if it predicts masked words, else the encoder."""
    return model if has_masked_lm_head(model) else encoder_in(model)


def _descriptions(model: Any, tokenizer: Any) -> Iterator[str]:
    """Yield descriptions of what a model and its tokenizer are made of, except the tensors."""
    of_model = {name: value for name, value in model.config.to_dict().items() if name not in NOT_OF_THE_MODEL}
    yield json.dumps(of_model, sort_keys=True, default=str)
    yield str(model.config._attn_implementation)
    yield from attributes(model)
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        yield f"{kind.__module__}.{kind.__qualname__}"
        if kind.__module__.split(".")[0] not in _LIBRARIES:
            with suppress(OSError, TypeError):  # a class that was defined at a prompt has no source
                yield inspect.getsource(kind)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    yield json.dumps({name: value for name, value in backend.items() if name not in _OF_THE_LAST_CALL})
    yield f"{tokenizer.model_max_length} {tokenizer.pad_token_id} {sorted(tokenizer.all_special_ids)}"


def _refuse_hooks(model: Any) -> None:
    if hooked := next(_hooked(model), None):
        raise UserError(
            f"`model`: a hook on `{hooked}` may change what the {type(model).__name__} computes, and would be called "
            "in passes over copies of it; remove the hook, or give the module a `forward` of its own."
        )


def _hooked(model: Any) -> Iterator[str]:
    """Yield the name of each module that has a hook from outside the libraries."""
    for name, module in model.named_modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if any(_home(hook) not in _LIBRARIES for hook in hooks):
            yield name or type(model).__name__


def _home(hook: Any) -> str:
    """Return the package that a hook is defined in."""
    function = getattr(hook, "func", hook)  # of a partial
    return str(getattr(function, "__module__", None) or type(function).__module__).split(".")[0]
