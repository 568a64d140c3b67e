"""Loads configuration, tokenizer and weights of a model from its local files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from probing.errors import UserError, as_clause, without_panics
from probing.models.forward_cost import check_counts, weight_bytes
from probing.models.lower_blocks import are_lower_layers, leave_out_blocks, not_cut
from probing.models.max_length import max_length_of, outline
from probing.models.objects import ModelObject, encoder_in, has_masked_lm_head, predicts_next_tokens
from probing.models.source import WEIGHT_FILES, ModelSource, building, entries, has, know_family
from probing.runtime.machine import check_memory

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

# What a head of transformers is of.
HeadOf = Literal["tokens", "sentences"]


def load_config(source: ModelSource) -> Any:
    """Load the model's configuration (`num_hidden_layers`, `hidden_size`, ...).

    Raises:
        UserError: If it is unreadable, or if the model is of an unknown family, not a text model, or needs remote code.
    """
    from transformers import AutoConfig

    if isinstance(source, ModelSource):
        folder = source.checked()
        check_counts(source.name, entries(source.folder, "config.json"))
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
    """Load the model's fast tokenizer; only a fast one maps pieces to words (`word_ids()`).

    Raises:
        UserError: If the model has no fast tokenizer.
    """
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

    Args:
        source: The model's files.
        random_weights_seed: Seed of the randomly initialised weights; None loads the trained weights.
        dtype: The parameters' dtype, by its name in torch.

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
    here = {name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in read}
    if missing := sorted(name for name in report["missing_keys"] if name in here and "pooler" not in name):
        raise UserError(
            f"`--model {source.name}`: its weights lack {len(missing)} of the model's tensors ({missing[0]}, ...); "
            "save them again with `save_pretrained`, or use a randomly initialised model with `--random_weights`."
        )
    return encoder


def load_tuned(source: ModelSource, of: HeadOf) -> Any:
    """Load a model with the trained head that its folder has, in float32 and evaluation mode.

    Args:
        source: The model's files.
        of: What the head is of: tokens or sentences.

    Raises:
        UserError: If the folder has no such head with all of its weights, or the weights cannot be loaded.
    """
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

    Returns:
        The model, or None in four cases: the family has no such head; the checkpoint lacks a part of it, as with most
        fine-tuned models (`transformers` would initialise it randomly); it was trained on next tokens; or the model is
        an encoder-decoder, whose head reads the decoder.

    Raises:
        UserError: If the weights cannot be loaded.
    """
    import torch
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM

    _check_full_precision(source, load_config(source))
    if isinstance(source, ModelObject):
        return source.copied().float() if has_masked_lm_head(source.model) else None
    config = load_config(source)
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_MASKED_LM_MAPPING or predicts_next_tokens(config):
        return None
    _check_memory(source, config, torch.float32)
    model, report = _read_weights(AutoModelForMaskedLM, source, config, torch.float32)
    return None if report["missing_keys"] or report["mismatched_keys"] else model.eval()


def load_with_head(
    source: ModelSource, of: HeadOf, n_outputs: int, seed: int, random_weights: bool = False, layer: int = -1
) -> Any:  # fmt: skip
    """Load a model with a new head of `transformers`, to be tuned.

    Args:
        source: The model's files.
        of: What the head is of: tokens or sentences.
        n_outputs: Number of classes, or 1 for a number.
        seed: Seed of the head, and of whatever else the checkpoint lacks, such as a pooler.
        random_weights: Whether the model itself is randomly initialised, too, by the seed.
        layer: The block on which the head stands, from 1, or from -1 for the last one; those above are left out.

    Returns:
        The model, in float32 and evaluation mode.

    Raises:
        UserError: If the family has no such head, if the model is an encoder-decoder or has no such block, or if it
            cannot be loaded, or not without the blocks above.
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
    """Refuse quantised weights: each method has kernels of its own, whose hidden states no dtype describes."""
    if quantised := getattr(config, "quantization_config", None):
        entries = quantised if isinstance(quantised, dict) else vars(quantised)
        method = getattr(method := entries.get("quant_method", "an unknown method"), "value", method)
        raise UserError(
            f"`--model {source.name}`: its weights are quantised ({method}, by `quantization_config` in its "
            "config.json), and hidden states are read in float32, bfloat16 or float16; give the folder of the model "
            "before it was quantised, or of the dequantised one."
        )


def _check_memory(source: ModelSource, config: Any, dtype: torch.dtype) -> None:
    """Refuse a model whose weights do not fit in the memory of the machine, before any of them is read."""
    what, way_out = f"`--model {source.name}`: its weights", "take a smaller model, or a machine with more memory"
    check_memory(weight_bytes(config, dtype.itemsize), what, way_out)


def _read_weights(kind: Any, source: ModelSource, config: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """Load a model by one of the `Auto` classes; return it with a report of the tensors that its checkpoint lacks.

    Raises:
        UserError: If the weights are not safetensors or plain tensors.
    """
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
    """Return a model of a configuration with weights as they are initialised."""
    if isinstance(source, ModelObject):
        return source.built()
    kind = _class_of(config)
    # Only the `Auto` classes have the public form.
    make = getattr(kind, "from_config", None)
    return kind._from_config(config) if make is None else make(config, trust_remote_code=False)


def _class_of(config: Any) -> Any:
    """Return the class that loads a model: `AutoModel`, or the class that saved it where that one has other parts.

    These are encoders, or decoders, of encoder-decoder families that were saved alone (`T5EncoderModel`), and models
    whose parts are named after their use (DPR's context encoder).
    """
    import transformers
    from transformers import MODEL_MAPPING, AutoModel

    named = (getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ())
    own = next((one for one in named if getattr(one, "config_class", None) is type(config)), None)
    usual: Any = MODEL_MAPPING.get(type(config), None)
    if own is None or not isinstance(usual, type):
        return AutoModel
    is_half = type(config)().is_encoder_decoder and not config.is_encoder_decoder
    return own if is_half or own.base_model_prefix != usual.base_model_prefix else AutoModel  # type: ignore[attr-defined]


def _encoder_of(model: Any) -> nn.Module:
    """Return the part that turns text into hidden states, in evaluation mode."""
    encoder = encoder_in(model)
    if not hasattr(encoder, "config"):  # FSMT's encoder is a plain module
        encoder.config = model.config
    encoder.config.use_cache = False  # a decoder would store keys and values for later words
    encoder.config.return_dict = True  # else hidden states would have no names
    return encoder.eval()


def word_folding(tokenizer: Any) -> Callable[[str], str]:
    """Return the function by which a tokenizer normalises words; an uncased one lowercases and removes accents.

    Args:
        tokenizer: A fast tokenizer.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str if normalizer is None else normalizer.normalize_str


def length_limits(source: ModelSource, tokenizer: Any) -> tuple[int, int]:
    """Return the lengths of the shortest sequence that holds a word and of the longest that the model accepts.

    Both include special tokens.

    Raises:
        UserError: If the longest sequence does not hold a word.
    """
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
    """Check that the model has a vector for each token of a text.

    Args:
        source: The model's files.
        tokenizer: Its tokenizer.
        input_ids: The ids of the tokens, of any shape.

    Raises:
        UserError: If it has none for some token, which is then named.
    """
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
