"""Configuration, tokenizer and weights of a model whose files are here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from probing.errors import UserError, as_clause
from probing.models.source import WEIGHT_FILES, ModelSource, has

if TYPE_CHECKING:
    import torch
    from torch import nn


def load_config(source: ModelSource) -> Any:
    """Load the model's configuration (`num_hidden_layers`, `hidden_size`, ...).

    Raises:
        UserError: If it is unreadable, of an unknown family, not of text, or needs code from outside.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    except Exception as error:  # transformers and what checks its classes raise many kinds
        if "trust_remote_code" in str(error):
            raise UserError(
                f"`--model {source.name}` needs code that comes with its weights, which is never run; "
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
            f"`--model {source.name}`: its config.json speaks of {config.num_hidden_layers} blocks and a width of "
            f"{config.hidden_size}; check the folder."
        )
    return config


def load_tokenizer(source: ModelSource) -> Any:
    """Load the model's fast tokenizer, which alone tells words from pieces (`word_ids()`).

    Raises:
        UserError: If there is none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False)
    except Exception as error:  # tokenizers raises plain Exception for a file that it cannot read
        raise UserError(
            f"`--model {source.name}`: its tokenizer cannot be loaded ({as_clause(error)}); "
            "the folder needs the files that `tokenizer.save_pretrained` writes."
        ) from None
    # Without any file transformers 5 makes an empty tokenizer, to which every word is unknown.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise UserError(
            f"`--model {source.name}` has no tokenizer in {source.folder}; "
            "the folder needs the files that `tokenizer.save_pretrained` writes."
        )
    if not tokenizer.is_fast:
        raise UserError(f"`--model {source.name}` has no fast tokenizer; save one as tokenizer.json in its folder.")
    return tokenizer


def load_encoder(source: ModelSource, random_weights_seed: int | None = None, dtype: str = "float32") -> nn.Module:
    """Load the model in evaluation mode, or with `random_weights_seed` its untrained twin built from the configuration.

    Of an encoder-decoder, its encoder; of a language model, what comes before its head.

    Args:
        source: The model's files.
        random_weights_seed: Seed of the weights where they are not to be read.
        dtype: Of the parameters, as torch calls it.

    Raises:
        UserError: If weights are missing, in whole or in part, or are not safetensors or plain tensors.
    """
    import torch
    from transformers import AutoModel

    config = load_config(source)
    if random_weights_seed is not None:
        with torch.random.fork_rng(devices=[]), building(source):
            torch.manual_seed(random_weights_seed)
            return _encoder_of(AutoModel.from_config(config, trust_remote_code=False)).to(getattr(torch, dtype))
    if not has(source.folder, WEIGHT_FILES):
        raise UserError(
            f"`--model {source.name}` has no model.safetensors in {source.folder}; save the weights there, "
            "or take the untrained twin with `--random_weights`."
        )
    model, report = _read_weights(AutoModel, source, config, getattr(torch, dtype))
    encoder = _encoder_of(model)
    # transformers fills what is missing with random numbers. A decoder may be missing, and the pooler, which comes
    # after every hidden state.
    read = {id(tensor) for tensor in encoder.state_dict(keep_vars=True).values()}
    here = {name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in read}
    if missing := sorted(name for name in report["missing_keys"] if name in here and "pooler" not in name):
        raise UserError(
            f"`--model {source.name}`: its weights lack {len(missing)} of the model's tensors ({missing[0]}, ...); "
            "save them again with `save_pretrained`, or take the untrained twin with `--random_weights`."
        )
    return encoder


def load_masked_lm(source: ModelSource) -> nn.Module | None:
    """Load the model with its masked-language-model head, in evaluation mode and float32.

    Returns:
        None where the family has no such head, or the checkpoint lacks a part of it, as that of most models tuned for
        something else does: `transformers` would fill it with random numbers. Of encoder-decoders too, whose head reads
        the decoder.

    Raises:
        UserError: If the weights cannot be loaded.
    """
    import torch
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM

    config = load_config(source)
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        return None
    model, report = _read_weights(AutoModelForMaskedLM, source, config, torch.float32)
    return None if report["missing_keys"] or report["mismatched_keys"] else model.eval()


def _read_weights(kind: Any, source: ModelSource, config: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """Return a model as one of the `Auto` classes makes it, and what its checkpoint lacks.

    Raises:
        UserError: If the weights are not safetensors or plain tensors.
    """
    try:
        return kind.from_pretrained(
            source.folder, config=config, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # safetensors, pickle and transformers each raise their own kinds
        raise UserError(
            f"`--model {source.name}`: its weights cannot be loaded as safetensors or with weights_only "
            f"({as_clause(error)}); save them again with `save_pretrained`."
        ) from None


def _encoder_of(model: Any) -> nn.Module:
    """Return the part that turns text into hidden states, in evaluation mode."""
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    encoder.config.use_cache = False  # a decoder would keep keys and values for words to come
    return encoder.eval()


@contextmanager
def building(source: ModelSource) -> Iterator[None]:
    """Turn what transformers raises for sizes that make no model into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each family raises its own kinds
        raise UserError(
            f"`--model {source.name}`: its config.json and tokenizer_config.json make no model ({as_clause(error)}); "
            "check the folder."
        ) from None
