"""Loader of a model's configuration, tokenizer and weights from local files."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from probing.errors import RunError, UserError, as_clause, without_panics
from probing.models.anatomy import are_lower_layers, leave_out_blocks, not_cut
from probing.models.examination import (
    Unsteady,
    add_tensor,
    attributes,
    max_length_of,
    model_behaviour,
    outline,
    tokenizer_behaviour,
)
from probing.models.source import OBJECT, WEIGHT_FILES, ModelSource, building, entries, has, know_family, resolve_model
from probing.runtime import check_memory

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

# --------------------------------------------------------------------------------------------------------------------
# Models that are objects of this process: `fit(model=<PreTrainedModel>, tokenizer=...)`.
# --------------------------------------------------------------------------------------------------------------------

# Entries of a configuration that change no hidden state, and states that a tokenizer keeps from its last call.
NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
_OF_THE_LAST_CALL = ("truncation", "padding")
# Packages whose classes are identified by their names, and whose hooks change no hidden state.
_LIBRARIES = ("torch", "transformers", "accelerate")


@dataclass(frozen=True, eq=False)
class ModelObject(ModelSource):
    """A model and its tokenizer as objects; both are copied before use, so that the originals stay unchanged.

    The name is the class with a part of `of_weights`, the SHA-256 (hex) of everything that determines the hidden
    states.
    """

    model: Any = field(default=None, repr=False)
    tokenizer: Any = field(default=None, repr=False)
    of_weights: str = field(default="", repr=False)

    has_files: ClassVar[bool] = False

    @property
    def short_name(self) -> str:
        """The class of the model."""
        return type(self.model).__name__

    def fingerprint(self, weights: bool = True) -> str:
        """Return the SHA-256 (hex) of everything that determines the hidden states.

        Without `weights` it is of a randomly initialised model; `UserError` if no such model can be built or run.
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
        """Return the model after some training; it is not examined again, and no cache identifies it by its weights.

        `UserError` is raised if it now has hooks that change its output, `RunError` if a weight is not finite.
        """
        _refuse_hooks(model)
        if bad := next((name for name, weight in model.named_parameters() if not weight.isfinite().all()), None):
            raise RunError(f"`{bad}` of the {type(model).__name__} is not finite: the training has diverged")
        return replace(self, model=model, of_weights=uuid4().hex)

    def built(self) -> Any:
        """Return a newly initialised model of the same class and configuration."""
        return type(self.model)._from_config(deepcopy(self.model.config))


def encoder_in(model: Any) -> Any:
    """Return the part that computes hidden states: an encoder-decoder's encoder, else everything before the head."""
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


def _has_head(model: Any, classes: Any) -> bool:
    """Return whether a model has such a head; false for an encoder-decoder, whose head reads the decoder."""
    kind = type(model.config)  # its class is loaded where the mapping is asked for it
    return not model.config.is_encoder_decoder and kind in classes and type(model) is classes[kind]


def predicts_next_tokens(config: Any) -> bool:
    """Return whether a checkpoint is of a causal language model, whose head would load as a masked one."""
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    causal = [name for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if name not in masked]
    return any(name in causal for name in getattr(config, "architectures", None) or ())


def find_model(model: Any, revision: str | None = None, tokenizer: Any = None) -> ModelSource:
    """Return a model by its name, or a model that is an object with its tokenizer."""
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
        UserError: If the objects are no matching model and fast tokenizer of transformers, or hooks change the output.
    """
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    class_name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        way_out = "; of a PEFT model give `merge_and_unload()`" if "Peft" in class_name else ""
        raise UserError(
            f"`model` is of type {class_name}: expected a name, the path of a folder, or a PreTrainedModel of "
            f"transformers{way_out}."
        )
    if tokenizer is None:
        raise UserError(
            f"`model` is a {class_name}: give its tokenizer too, such as "
            "`tokenizer=AutoTokenizer.from_pretrained(...)`."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(
            f"`tokenizer` is of type {type(tokenizer).__name__}: expected a fast tokenizer of transformers, "
            "as `AutoTokenizer.from_pretrained` returns it."
        )
    if any(tensor.is_meta for tensor in model.parameters()):
        raise UserError(f"`model`: some weights of the {class_name} are not in memory; load it without a device map.")
    _refuse_hooks(model)
    rows: Any = model.get_input_embeddings().num_embeddings
    if (most := max(tokenizer.get_vocab().values(), default=0)) >= rows:
        raise UserError(
            f"`tokenizer` gives ids up to {most}, and the {class_name} has embeddings for {rows}: give the model's own."
        )
    digest = _fingerprint(model, tokenizer)
    return ModelObject(f"{OBJECT}{class_name}@{digest[:16]}", Path(), None, model, tokenizer, digest)


def _fingerprint(model: Any, tokenizer: Any) -> str:
    """Return the SHA-256 (hex) of a model's parts and output, with its tokenizer."""
    digest = hashlib.sha256()
    for text in (*_descriptions(model, tokenizer), _behaviour(model, tokenizer), tokenizer_behaviour(tokenizer)):
        digest.update(text.encode() + b"\0")
    read = _what_is_read(model)
    for name, tensor in (*read.named_parameters(), *read.named_buffers()):
        digest.update(name.encode() + b"\0")
        add_tensor(digest, tensor)
    return digest.hexdigest()


def _behaviour(model: Any, tokenizer: Any) -> str:
    """Return the SHA-256 (hex) of the output of a copy of a model; refuse a model that is not deterministic."""
    class_name = type(model).__name__
    try:
        copy = deepcopy(model).cpu().float().eval()
        encoder_in(copy).config.use_cache = False
        return model_behaviour(_what_is_read(copy), encoder_in(copy), tokenizer)
    except Unsteady as error:
        raise UserError(
            f"`model`: {f'`{error}` of ' if str(error) else ''}the {class_name} computes something else when the same "
            "tokens are read again, and cached activations would be those of one pass; take out what is random or "
            "remembers earlier passes, and call `model.eval()` if a replaced `forward` has kept parts of the model."
        ) from None
    except Exception as error:  # whatever a forward pass raises
        raise UserError(
            f"`model`: a copy of the {class_name} does not run on `input_ids` and `attention_mask` on the processor in "
            f"float32 ({type(error).__name__}: {as_clause(error)}); give a text model, and tensors that it reads as "
            "parameters or buffers, which move with it."
        ) from None


def _what_is_read(model: Any) -> Any:
    """Return the part of a model that commands read: with its head if it predicts masked words, else the encoder."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    return model if _has_head(model, MODEL_FOR_MASKED_LM_MAPPING) else encoder_in(model)


def _descriptions(model: Any, tokenizer: Any) -> Iterator[str]:
    """Yield descriptions of the parts of a model and its tokenizer, except the tensors."""
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
    """Return the package that defines a hook."""
    function = getattr(hook, "func", hook)  # of a partial
    return str(getattr(function, "__module__", None) or type(function).__module__).split(".")[0]


# --------------------------------------------------------------------------------------------------------------------
# What a forward pass costs: the matrix products of a model's blocks, and how fast this machine computes them.
# --------------------------------------------------------------------------------------------------------------------

# Names that families have for the width of the MLP.
_WIDTHS = ("intermediate_size", "hidden_dim", "n_inner", "d_ff", "encoder_ffn_dim")


class Matrix(NamedTuple):
    """Name, number of inputs and of outputs of a block's matrices of equal shape, and their number."""

    name: str
    inputs: int
    outputs: int
    times: int


def weight_bytes(config: Any, itemsize: int) -> int:
    """Return the bytes of a model's weights in its blocks and token embeddings; `itemsize` is bytes per weight."""
    sizes = Blocks.of(config)
    of_block = sum(matrix.inputs * matrix.outputs * matrix.times for matrix in sizes.matrices)
    return itemsize * (sizes.n_blocks * of_block + int(getattr(config, "vocab_size", 0)) * sizes.d_model)


# Most of what a configuration counts, by the end of the name: of each a model has a module, or a name.
_MOST = ((re.compile(r"(layer|block|group|stage|depth)s?$"), 1000), (re.compile(r"(label|expert|head)s$"), 100_000))


def check_counts(name: str, configs: Iterable[Mapping[str, Any]]) -> None:
    """Raise `UserError` for counts of layers or other parts beyond any model's, before minutes of building."""
    waiting = [*configs]
    while waiting:
        config = waiting.pop()
        waiting += [inner for inner in config.values() if isinstance(inner, Mapping)]
        for counted, n in config.items():
            most = next((most for ends, most in _MOST if ends.search(counted)), None)
            if most is not None and isinstance(n, int) and n > most:
                raise UserError(
                    f"`--model {name}`: its config.json has {counted} {n}, and at most {most} are read; check "
                    "the folder."
                )


@dataclass(frozen=True)
class Blocks:
    """The sizes that determine the cost of a forward pass."""

    d_model: int
    d_mlp: int
    n_blocks: int

    @classmethod
    def of(cls, config: Any) -> Blocks:
        """Return the sizes of a model with this configuration; an MLP of unknown width counts as four times d_model."""
        d_model = int(config.hidden_size)
        d_mlp: Any = next((width for name in _WIDTHS if (width := getattr(config, name, None))), 4 * d_model)
        d_mlp = int(max(d_mlp) if isinstance(d_mlp, list) else d_mlp)  # some families have a width for each block
        return cls(d_model, d_mlp, int(config.num_hidden_layers))

    @property
    def matrices(self) -> list[Matrix]:
        """The matrices of a block: queries, keys, values and outputs of attention, and both of the MLP."""
        d, wide = self.d_model, self.d_mlp
        return [Matrix("square", d, d, 4), Matrix("widen", d, wide, 1), Matrix("narrow", wide, d, 1)]

    def seconds(self, n_tokens: float, token_pairs: float, rates: Mapping[str, float]) -> float:
        """Return the duration of the matrix products of a forward pass through all blocks.

        Args:
            n_tokens: Number of tokens, without padding.
            token_pairs: Sum of squared sentence lengths, for the products of attention, at the rate of square matrices.
            rates: Rate of each matrix by its name, in floating-point operations per second.
        """
        linear = sum(
            2 * n_tokens * matrix.inputs * matrix.outputs * matrix.times / rates[matrix.name]
            for matrix in self.matrices
        )
        return self.n_blocks * (linear + 4 * token_pairs * self.d_model / rates["square"])

    def rates(
        self, rows: int, dtype: str, rate: Callable[[Callable[[], object], float], float], device: str = "cpu"
    ) -> dict[str, float]:
        """Return the rate of each matrix in linear layers with `rows` tokens, in floating-point operations per second.

        `rate` measures work and its amount, such as `probing.runtime.rate`.
        """
        import torch
        from torch.nn.functional import linear

        from probing.runtime.trainer import fast_linear_maps

        rate_of, kind = {}, getattr(torch, dtype)
        with torch.inference_mode(), fast_linear_maps():
            for name, k, n, _ in self.matrices:
                sizes = (rows, k), (n, k), (n,)
                x, weight, bias = (torch.randn(*size, device=device).to(kind) for size in sizes)

                def product(x: Any = x, weight: Any = weight, bias: Any = bias) -> None:
                    linear(x, weight, bias)
                    if device != "cpu":
                        torch.cuda.synchronize()

                rate_of[name] = rate(product, 2 * rows * k * n)
        return rate_of


# What a head of transformers is of.
HeadOf = Literal["tokens", "sentences"]


def load_config(source: ModelSource) -> Any:
    """Load the model's configuration; refuse unknown families, remote code and models that are no text models."""
    from transformers import AutoConfig

    if source.has_files:
        folder = source.checked()
        check_counts(source.name, entries(folder, "config.json"))
        know_family(folder)
    try:
        config = (
            getattr(source.encoder, "config", source.model.config)
            if isinstance(source, ModelObject)
            else AutoConfig.from_pretrained(folder, trust_remote_code=False)
        )
    except Exception as error:  # transformers and its validators raise many types
        if "trust_remote_code" in str(error):
            raise UserError(
                f"`--model {source.name}` needs code from its repository, which is never run here; "
                "choose a model whose family is part of transformers."
            ) from None
        raise UserError(
            f"`--model {source.name}`: its config.json is not one that transformers reads ({as_clause(error)}); "
            "check the folder or upgrade transformers."
        ) from None
    if not all(hasattr(config, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")):
        raise UserError(
            f"`--model {source.name}` ({config.model_type}) is not one stack of blocks over text; "
            "choose a text model, such as BERT."
        )
    if not (config.num_hidden_layers >= 0 and config.hidden_size >= 1):
        raise UserError(
            f"`--model {source.name}`: its config.json gives {config.num_hidden_layers} blocks and a width of "
            f"{config.hidden_size}; check the folder."
        )
    return config


def load_tokenizer(source: ModelSource) -> Any:
    """Load the model's fast tokenizer; only a fast tokenizer maps pieces to words (`word_ids()`)."""
    from transformers import AutoTokenizer

    if isinstance(source, ModelObject):
        return deepcopy(source.tokenizer)
    folder = source.checked()
    try:
        with without_panics():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            tokenizer("a b")
    except Exception as error:  # tokenizers raises a plain Exception for an unreadable file
        pieces = next(source.folder.glob("*.model"), None)
        if pieces and not find_spec("sentencepiece") and not (source.folder / "tokenizer.json").is_file():
            raise UserError(
                f"`--model {source.name}`: its tokenizer is a file of SentencePiece ({pieces.name}), which is read "
                "with `pip install 'neuron-probing[sentencepiece]'`; or save the tokenizer as tokenizer.json in its "
                "folder."
            ) from None
        raise UserError(
            f"`--model {source.name}`: its tokenizer cannot be loaded ({as_clause(error)}); "
            "the folder needs tokenizer.json and tokenizer_config.json, as `tokenizer.save_pretrained` writes them."
        ) from None
    # Without any file transformers 5 makes an empty tokenizer, for which every word is unknown.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise UserError(
            f"`--model {source.name}` has no tokenizer in {source.folder}; "
            "the folder needs the files that `tokenizer.save_pretrained` writes."
        )
    if not tokenizer.is_fast:
        raise UserError(f"`--model {source.name}` has no fast tokenizer; save one as tokenizer.json in its folder.")
    return tokenizer


def load_encoder(source: ModelSource, random_weights_seed: int | None = None, dtype: str = "float32") -> nn.Module:
    """Load the model in evaluation mode; with `random_weights_seed`, initialise it randomly from its configuration.

    Of an encoder-decoder, only the encoder is returned; of a language model, everything before its head.

    Raises:
        UserError: If weights are missing, in whole or in part, are quantised, are not safetensors or plain tensors, or
            do not fit in the memory of the machine.
    """
    import torch

    config = load_config(source)
    _check_memory(source, config, getattr(torch, dtype))
    if random_weights_seed is not None:
        with torch.random.fork_rng(devices=[]), building(source):
            torch.manual_seed(random_weights_seed)
            return _encoder_of(build(source, config)).to(getattr(torch, dtype))
    _check_full_precision(source, config)
    if isinstance(source, ModelObject):
        return _encoder_of(source.copied()).to(getattr(torch, dtype))
    if not has(source.folder, WEIGHT_FILES):
        raise UserError(
            f"`--model {source.name}` has no model.safetensors in {source.folder}; save the weights there, "
            "or use a randomly initialised model with `--random_weights`."
        )
    model, report = _read_weights(_class_of(config), source, config, getattr(torch, dtype))
    encoder = _encoder_of(model)
    # transformers initialises missing tensors randomly. A decoder may be missing, and so may the pooler, which comes
    # after all hidden states.
    read = {id(tensor) for tensor in encoder.state_dict(keep_vars=True).values()}
    encoder_names = {name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in read}
    if missing := sorted(name for name in report["missing_keys"] if name in encoder_names and "pooler" not in name):
        raise UserError(
            f"`--model {source.name}`: its weights lack {len(missing)} of the model's tensors ({missing[0]}, ...); "
            "save them again with `save_pretrained`, or use a randomly initialised model with `--random_weights`."
        )
    return encoder


def load_tuned(source: ModelSource, of: HeadOf) -> Any:
    """Load a model with the trained head in its folder, complete with weights, in float32 and evaluation mode."""
    import torch

    config, families = load_config(source), _families_with_head(of)
    _check_full_precision(source, config)
    _check_memory(source, config, torch.float32)
    if not config.is_encoder_decoder and type(config) in families:
        model, report = _read_weights(families[type(config)], source, config, torch.float32)
        if not report["missing_keys"] and not report["mismatched_keys"]:
            _encoder_of(model)
            return model.eval()
    raise UserError(
        f"`--model {source.name}` has no head of {of} with weights in its files; give a checkpoint that `finetune` "
        "wrote."
    )


def _families_with_head(of: HeadOf) -> Any:
    """Return the class of a model with a head by the class of its configuration."""
    import transformers

    return {
        "tokens": transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
        "sentences": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    }[of]


def load_masked_lm(source: ModelSource) -> nn.Module | None:
    """Load the model with its masked-language-model head, in evaluation mode and float32.

    None is returned in four cases: the family has no such head; the checkpoint lacks a part of it, as do most
    fine-tuned models (`transformers` would initialise it randomly); it is a causal language model; or the model is an
    encoder-decoder, whose head reads the decoder.
    """
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM

    return _load_language_model(source, MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM)


def load_causal_lm(source: ModelSource) -> nn.Module | None:
    """Load a causal model with its head, in evaluation mode and float32; None as for `load_masked_lm`."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    return _load_language_model(source, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, is_causal=True)


def _load_language_model(
    source: ModelSource, families: Any, kind: Any, is_causal: bool = False
) -> nn.Module | None:  # fmt: skip
    import torch

    _check_full_precision(source, load_config(source))
    if isinstance(source, ModelObject):
        return source.copied().float() if _has_head(source.model, families) else None
    config = load_config(source)
    if config.is_encoder_decoder or type(config) not in families or predicts_next_tokens(config) != is_causal:
        return None
    _check_memory(source, config, torch.float32)
    model, report = _read_weights(kind, source, config, torch.float32)
    return None if report["missing_keys"] or report["mismatched_keys"] else model.eval()


def load_with_head(
    source: ModelSource, of: HeadOf, n_outputs: int, seed: int, random_weights: bool = False, layer: int = -1
) -> Any:  # fmt: skip
    """Load a model with a new head of `transformers`, to be tuned, in float32 and evaluation mode.

    Args:
        n_outputs: Number of classes, or 1 for a number.
        seed: Seed of the head, of other parts that the checkpoint lacks, such as a pooler, and with `random_weights` of
            all.
        layer: The block under the head, from 1, or from -1 for the last; blocks above are removed.

    Raises:
        UserError: If the family has no such head, it is an encoder-decoder, or it does not work without the blocks
            above.
    """
    import torch

    config, families = deepcopy(load_config(source)), _families_with_head(of)
    if config.is_encoder_decoder or type(config) not in families:
        raise UserError(
            f"`--model {source.name}` ({config.model_type}): transformers has no head of {of} for it that reads its "
            "encoder alone; choose another model, such as BERT."
        )
    is_cut = leave_out_blocks(config, layer, source.name)
    config.num_labels = n_outputs
    config.problem_type = None
    _check_memory(source, config, torch.float32)
    with torch.random.fork_rng(devices=[]), building(source):
        torch.manual_seed(seed)
        model: Any = families[type(config)]._from_config(config)
        base = model.base_model
        if not random_weights:
            encoder = load_encoder(source)
            weights = encoder.state_dict()
            if lacking := sorted(set(base.state_dict()) - set(weights)):
                raise UserError(
                    f"`--model {source.name}` ({config.model_type}): the model under a head of {of} has a part that "
                    f"the model by itself has not ({lacking[0]}); choose another model."
                )
            if is_cut and any(value.shape != weights[name].shape for name, value in base.state_dict().items()):
                raise not_cut(config, layer, source.name)
            base.load_state_dict({name: weights[name] for name in base.state_dict()})
            if is_cut and not are_lower_layers(base.eval(), encoder):
                raise not_cut(config, layer, source.name)
    return model.float().eval()


def _check_full_precision(source: ModelSource, config: Any) -> None:
    """Refuse quantised weights: each method has special kernels, whose hidden states no dtype describes."""
    if quantised := getattr(config, "quantization_config", None):
        entries = quantised if isinstance(quantised, dict) else vars(quantised)
        method = getattr(method := entries.get("quant_method", "an unknown method"), "value", method)
        raise UserError(
            f"`--model {source.name}`: its weights are quantised ({method}, by `quantization_config` in its "
            "config.json), and hidden states are read in float32, bfloat16 or float16; give the folder of the model "
            "before it was quantised, or of the dequantised one."
        )


def _check_memory(source: ModelSource, config: Any, dtype: torch.dtype) -> None:
    """Refuse a model whose weights do not fit in the memory of the machine, before reading them."""
    what, way_out = f"`--model {source.name}`: its weights", "take a smaller model, or a machine with more memory"
    check_memory(weight_bytes(config, dtype.itemsize), what, way_out)


def _read_weights(kind: Any, source: ModelSource, config: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """Load a model by an `Auto` class; return it with a report of the tensors that its checkpoint lacks."""
    folder = source.checked()
    try:
        with without_panics():
            return kind.from_pretrained(
                folder, config=config, dtype=dtype, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # safetensors, pickle and transformers each raise their own types
        if isinstance(error, ImportError):
            raise UserError(
                f"`--model {source.name}` ({config.model_type}) needs a package that is not installed "
                f"({as_clause(error)}); install it, or choose another model."
            ) from None
        raise UserError(
            f"`--model {source.name}`: its weights cannot be loaded as safetensors or with weights_only "
            f"({as_clause(error)}); save them again with `save_pretrained`."
        ) from None


def build(source: ModelSource, config: Any) -> Any:
    """Return a newly initialised model of a configuration."""
    if isinstance(source, ModelObject):
        return source.built()
    kind = _class_of(config)
    # Only the `Auto` classes have the public form.
    make = getattr(kind, "from_config", None)
    return kind._from_config(config) if make is None else make(config, trust_remote_code=False)


def _class_of(config: Any) -> Any:
    """Return the class that loads a model: `AutoModel`, or the class that saved it if its parts differ.

    These are encoders, or decoders, of encoder-decoder families that were saved alone (`T5EncoderModel`), and models
    whose parts are named after their use (DPR's context encoder).
    """
    import transformers
    from transformers import MODEL_MAPPING, AutoModel

    named = (getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ())
    saved_class = next(
        (candidate for candidate in named if getattr(candidate, "config_class", None) is type(config)), None
    )
    default: Any = MODEL_MAPPING.get(type(config), None)
    if saved_class is None or not isinstance(default, type):
        return AutoModel
    is_half = type(config)().is_encoder_decoder and not config.is_encoder_decoder
    return saved_class if is_half or saved_class.base_model_prefix != default.base_model_prefix else AutoModel  # type: ignore[attr-defined]


def _encoder_of(model: Any) -> nn.Module:
    """Return the part that turns text into hidden states, in evaluation mode."""
    encoder = encoder_in(model)
    if not hasattr(encoder, "config"):  # FSMT's encoder is a plain module
        encoder.config = model.config
    encoder.config.use_cache = False  # a decoder would store keys and values for later words
    encoder.config.return_dict = True  # else hidden states would have no names
    return encoder.eval()


def word_folding(tokenizer: Any) -> Callable[[str], str]:
    """Return a tokenizer's normalisation of words; an uncased tokenizer lowercases and removes accents."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str if normalizer is None else normalizer.normalize_str


def length_limits(source: ModelSource, tokenizer: Any) -> tuple[int, int]:
    """Return the lengths, with special tokens, of the shortest sequence with a word and the longest accepted."""
    with building(source):
        longest = max_length_of(load_config(source), tokenizer, partial(build, source))
    # With a maximum length that leaves no room for a word, tokenizers do not truncate at all.
    least = int(tokenizer.num_special_tokens_to_add()) + 1
    if longest < least:
        raise UserError(
            f"`--model {source.name}` takes {longest} tokens by its config.json and tokenizer_config.json, "
            "which leaves no room for a word; check the folder."
        )
    return least, longest


def check_ids(source: ModelSource, tokenizer: Any, input_ids: NDArray[np.integer]) -> None:
    """Raise `UserError`, naming the token, if the model has no vector for a token of a text."""
    rows = None
    with building(source), suppress(AttributeError, NotImplementedError):  # some models name no table of tokens
        model = encoder_in(outline(load_config(source), partial(build, source)))
        rows = int(model.get_input_embeddings().weight.shape[0])
    if rows is not None and input_ids.size and (most := int(input_ids.max())) >= rows:
        raise UserError(
            f"`--model {source.name}`: its tokenizer gives `{tokenizer.convert_ids_to_tokens(most)}` the id {most}, "
            f"and the model has vectors for ids 0 to {rows - 1}; give the model's own tokenizer, or save the model "
            "after `resize_token_embeddings`."
        )
