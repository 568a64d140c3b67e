"""Folders that are no model or not quite one, and what a model cannot read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import check_ids, examination, load_encoder, load_tokenizer, loading, max_length_of, resolve_model
from probing.models.anatomy import examine, hidden_states


def test_an_adapter_alone_is_named_with_its_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "bert-base-cased"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"is an adapter of bert-base-cased and no model; merge them"):
        resolve_model(str(tmp_path))


def test_the_transformer_in_a_list_of_modules_is_read(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    inside = shutil.copytree(checkpoints["bert"], tmp_path / "old" / "0_Transformer")
    modules = [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (tmp_path / "old" / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    source = resolve_model(str(tmp_path / "old"))
    assert source.folder == inside
    assert source.short_name == "old"
    assert source.fingerprint() == resolve_model(str(checkpoints["bert"])).fingerprint()
    (tmp_path / "old" / "modules.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json.*such as 0_Transformer in it"):
        resolve_model(str(tmp_path / "old"))


def test_a_sentencepiece_file_without_its_package_is_named(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model("deberta-v2")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (folder / "spm.model").write_bytes(b"no pieces")
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"SentencePiece \(spm\.model\).*pip install 'neuron-probing\[sentencepiece\]'"):
        load_tokenizer(resolve_model(str(folder)))


def test_a_token_beyond_the_models_vectors_is_named(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    source = resolve_model(str(folder))
    n_rows = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    tokenizer = load_tokenizer(source)
    tokenizer.add_tokens(["zyzzyva"])
    check_ids(source, tokenizer, np.array([0, n_rows - 1]))
    with pytest.raises(UserError, match=rf"gives `zyzzyva` the id {n_rows}, .* vectors for ids 0 to {n_rows - 1}"):
        check_ids(source, tokenizer, np.array([0, n_rows]))


LIMITS: dict[str, dict[str, Any]] = {
    "mpt": {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 12},
    "led": {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "attention_window": [4],
        "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
        "max_encoder_position_embeddings": 12,
    },
    # Its table is no `nn.Embedding`, and two of its rows are never a position.
    "ibert": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 14,
    },
    "ctrl": {"n_embd": 16, "n_layer": 1, "n_head": 2, "dff": 16, "n_positions": 12},
}  # fmt: skip


@pytest.mark.parametrize("family", LIMITS)
@torch.inference_mode()
def test_the_longest_sequence_is_read_by_any_of_its_names(checkpoints: dict[str, Path], family: str) -> None:
    from transformers import CONFIG_MAPPING, AutoModel

    make: Any = CONFIG_MAPPING[family]
    config = make(vocab_size=50, **LIMITS[family])
    tokenizer = load_tokenizer(resolve_model(str(checkpoints["roberta"])))  # which has no limit of its own
    assert max_length_of(config, tokenizer) == 12
    model = AutoModel.from_config(config).eval()
    encoder = model.get_encoder() if config.is_encoder_decoder else model
    ids, anatomy = torch.full((1, 13), 5), examine(encoder)
    for length in (12, 13):
        inputs = {"input_ids": ids[:, :length], "attention_mask": torch.ones_like(ids[:, :length])}
        if length == 12:
            assert hidden_states(encoder, anatomy, [1], **inputs)[1].shape == (1, 12, 16)
        else:  # the limit that running it shows is the one that it names
            with pytest.raises(UserError, match=r"takes at most 12 tokens.* of 13; give `--max_length 12`"):
                hidden_states(encoder, anatomy, [1], **inputs)


def test_a_text_that_is_longer_than_a_limit_without_a_name_ends_in_a_sentence(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "_NAMES", ())
    text = tmp_path / "text.txt"
    text.write_text(f"a short one\n{'the model reads a token ' * 30}\n", encoding="utf-8")
    args = ["extract", "--model", str(checkpoints["mpt"]), "--corpus", str(text), "--cache", str(tmp_path / "cache")]
    assert run(COMMANDS, args) == 2
    assert re.search(r"\(mpt\) takes at most 128 tokens.* of \d+; give `--max_length 128`", capsys.readouterr().err)
    assert run(COMMANDS, [*args, "--max_length", "128"]) == 0


def test_an_error_that_is_not_about_length_keeps_its_traceback(checkpoints: dict[str, Path]) -> None:
    encoder = load_encoder(resolve_model(str(checkpoints["bert"])))
    ids = torch.full((1, 30), 10**6)
    with pytest.raises(IndexError):
        hidden_states(encoder, examine(encoder), [1], input_ids=ids, attention_mask=torch.ones_like(ids))
