"""Files from elsewhere: nothing is waited for, nothing outside of them is read, and each has its limit.

SECURITY.md states what these tests hold.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import signal
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
import zarr
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import probing
from probing.__main__ import COMMANDS
from probing.cli.arguments import read_yaml
from probing.cli.commandline import run
from probing.downstream import read_sts
from probing.downstream.labelled_pairs import read_wic
from probing.downstream.sentence_vectors import read_static
from probing.errors import UserError
from probing.models import load_config, load_encoder, load_tokenizer, resolve_model
from probing.models.source import sentence_model
from probing.runs.loading import load_run
from probing.runtime.files import MOST_LEVELS, YAML_DOCUMENT, check_yaml, files_of, open_file, parse_json, regular
from probing.studies.cloze.predictor import read_pairs
from probing.studies.cloze.sentences import read_sentence_pairs
from probing.studies.cloze.survey import read_facts
from probing.text import load_corpus
from probing.text.files import read_lines
from probing.text.tasks import load_task

SECRET = np.full((6, 4), 7, dtype=np.float32)
NO_WANDB: Any = {"mode": "disabled"}


@pytest.fixture(autouse=True)
def never_waits() -> Iterator[None]:
    """End a test that waits for a pipe."""

    def waited(*_: object) -> None:
        raise AssertionError("a pipe was waited for")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of numbers that belongs to nothing that is read."""
    path = tmp_path / "secret.bin"
    SECRET.tofile(path)
    return path


@pytest.fixture(scope="module")
def untouched_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of given activations."""
    generator = np.random.default_rng(0)
    states, labels = generator.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    bare: Any = {"replicates": 0, "controls": "none"}
    return probing.probe(states, labels, runs=tmp_path_factory.mktemp("runs"), name="own", **bare).folder


@pytest.fixture
def run_folder(untouched_run: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(untouched_run, tmp_path / "runs" / "own"))


# --- what is no file ---


def load_all(folder: Path) -> None:
    source = resolve_model(str(folder))
    sentence_model(source)
    load_tokenizer(source)
    load_encoder(source)


def as_sentence_model(folder: Path) -> None:
    modules = [("", "models.Transformer"), ("1_Pooling", "models.Pooling")]
    text = json.dumps([{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in modules])
    (folder / "modules.json").write_text(text, encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")


OF_MODELS = [
    "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "model.safetensors.index.json",
    "modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "special_tokens_map.json", "vocab.txt",
    "generation_config.json", "chat_template.jinja", "additional_chat_templates/own.jinja",
]  # fmt: skip


@pytest.mark.parametrize("name", OF_MODELS)
def test_no_pipe_in_the_folder_of_a_model_is_waited_for(tiny_model: Callable[..., Path], name: str) -> None:
    folder = tiny_model("bert")
    as_sentence_model(folder)
    load_all(folder)
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"no config.json|named pipe, where a file was expected\); put the file"):
        load_all(folder)


def test_no_pipe_in_the_place_of_a_report_is_waited_for(run_folder: Path) -> None:
    (run_folder / "report.html").unlink(missing_ok=True)
    os.mkfifo(run_folder / "report.html")
    with pytest.raises(UserError, match=r"report\.html.*it is a named pipe"):
        probing.report([str(run_folder)])


TYPED: dict[str, Callable[[str], object]] = {
    "corpus": lambda path: read_lines(path, "--corpus"),
    "packed": lambda path: read_lines(path, "--corpus"),
    "table.xlsx": lambda path: read_lines(path, "--corpus"),
    "static.txt": lambda path: read_static(path, ["a"]),
    "sts-test.csv": lambda path: read_sts([path]),
    "test.data.txt": lambda path: read_wic(str(Path(path).parent), ["test"]),
    "cloze.tsv": lambda path: read_pairs(path),
    "pairs.tsv": lambda path: read_sentence_pairs(path, "cloze"),
    "facts.jsonl": lambda path: read_facts(path, "--facts"),
    "task.py": lambda path: load_task(f"{path}:Own", {}),
    "config.yaml": lambda path: read_yaml(path),
    "lines.jsonl": lambda path: probing.read_activations(path),
    "rows.npy": lambda path: probing.read_activations(path),
    "rows.h5": lambda path: probing.read_activations(path),
    "rows.pt": lambda path: probing.read_activations(path),
}


@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_is_no_file_is_refused_where_a_file_is_named(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = Path(name)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(name)
    with pytest.raises(UserError):
        TYPED[name](name)


def test_what_is_opened_is_a_file_in_its_folder_and_of_its_size(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside.txt"
    inside.mkdir()
    outside.write_bytes(b"12345")
    (inside / "own.txt").write_bytes(b"1234")
    (inside / "alias.txt").symlink_to("own.txt")
    (inside / "link.txt").symlink_to(outside)
    for name in ("own.txt", "alias.txt"):
        with open_file(inside / name, within=inside, most=4) as file:
            assert file.read() == b"1234"
    with open_file(inside / "link.txt") as file:
        assert file.read() == b"12345"
    for path, words in ((inside / "link.txt", "leads out"), (inside / ".." / "outside.txt", "leads out")):
        with pytest.raises(OSError, match=words):
            regular(path, inside)
    with pytest.raises(OSError, match="more than 4 bytes"):
        regular(outside, most=4)
    with pytest.raises(IsADirectoryError):
        regular(inside)
    with pytest.raises(FileNotFoundError):
        regular(inside / "none")
    with pytest.raises(OSError, match="leads out"):
        files_of(inside)
    (inside / "link.txt").unlink()
    (inside / "deep").mkdir()
    (inside / "deep" / "a").touch()
    assert files_of(inside) == {"own.txt", "alias.txt", "deep/a"}


def test_links_from_folder_to_folder_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sts-test.csv").write_text(
        "".join(f"g\tf\t2012\t{n}\t{n % 5}\tone {n}\ttwo {n}\n" for n in range(20)), encoding="utf-8"
    )
    for name in ("a", "b", "c"):
        (tmp_path / name).symlink_to(tmp_path)
    assert len(read_sts([str(tmp_path)])) == 1


# --- what lies elsewhere ---


def write_hdf5(path: Path, secret: Path, how: str) -> None:
    index = {"a b c d e f": "0"}
    with h5py.File(path, "w") as file:
        if how == "external storage":
            file.create_dataset("layer_0", SECRET.shape, "f4", external=[(str(secret), 0, secret.stat().st_size)])
        elif how == "virtual":
            layout = h5py.VirtualLayout(SECRET.shape, "f4")
            layout[:] = h5py.VirtualSource(secret.with_suffix(".h5"), "0", SECRET.shape)
            file.create_virtual_dataset("group/layer_0", layout)
        elif how.startswith("index"):
            if how == "index, external link":
                file["0"] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "0")
            elif how == "index, soft link":
                file["beside"] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "/")
                file["0"] = h5py.SoftLink("/beside/0")
            else:
                file.create_dataset("0", SECRET.shape, "f4", external=[(str(secret), 0, secret.stat().st_size)])
            file["sentence_to_index"] = np.array([json.dumps(index)], dtype=h5py.special_dtype(vlen=str))
        elif how == "external index":
            file["0"] = SECRET
            file["sentence_to_index"] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "names")
        else:
            file["own"], file["beside"] = SECRET, h5py.ExternalLink(str(secret.with_suffix(".h5")), "/")


@pytest.mark.parametrize(
    "how",
    ["external storage", "virtual", "index, external link", "index, soft link", "index, external storage",
     "external index"],
)  # fmt: skip
def test_hdf5_reads_no_other_file(how: str, tmp_path: Path, secret: Path) -> None:
    with h5py.File(secret.with_suffix(".h5"), "w") as file:
        file["0"] = SECRET
        file["names"] = np.array(['{"a": "0"}'], dtype=h5py.special_dtype(vlen=str))
    write_hdf5(tmp_path / "own.h5", secret, how)
    with pytest.raises(UserError, match=r"lie in other files|is a link, which could lead to another file"):
        probing.read_activations(tmp_path / "own.h5")


def test_hdf5_leaves_links_to_other_files_out(tmp_path: Path, secret: Path) -> None:
    os.mkfifo(secret.with_suffix(".h5"))
    write_hdf5(tmp_path / "own.h5", secret, "link beside")
    assert [*probing.read_activations(tmp_path / "own.h5").layers] == ["own"]


@pytest.mark.parametrize("how", ["parent", "absolute", "link", "pipe"])
def test_the_folder_of_a_data_set_reads_no_other_file(how: str, tmp_path: Path) -> None:
    for name, value in (("own", 0.0), ("other", 7.0)):
        Dataset.from_dict({"layer_0": [[value] * 4] * 3}).save_to_disk(tmp_path / name)
    other, (file,) = next((tmp_path / "other").glob("*.arrow")), (tmp_path / "own").glob("*.arrow")
    if how in ("link", "pipe"):
        file.unlink()
        file.symlink_to(other) if how == "link" else os.mkfifo(file)
    else:
        state = json.loads((tmp_path / "own" / "state.json").read_text(encoding="utf-8"))
        state["_data_files"][0]["filename"] = f"../other/{other.name}" if how == "parent" else str(other)
        (tmp_path / "own" / "state.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(UserError, match=r"it leads out of its folder|it is a named pipe"):
        probing.read_activations(tmp_path / "own")
    assert probing.read_activations(tmp_path / "other").n_rows == 3


@pytest.mark.parametrize("pattern", ["../secret.txt", "ABOVE/secret.txt"])
def test_a_folder_of_texts_reads_no_other_file(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret sentence .\n", encoding="utf-8")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.txt").write_text("a sentence of its own .\n", encoding="utf-8")
    assert load_corpus(f"hf:{tmp_path / 'own'}").sentences == ("a sentence of its own .",)
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {pattern.replace('ABOVE', str(tmp_path))}\n---\n"
    (tmp_path / "own" / "README.md").write_text(card, encoding="utf-8")
    with pytest.raises(UserError, match="it leads out of its folder"):
        load_corpus(f"hf:{tmp_path / 'own'}")


@pytest.mark.parametrize("what", ["pipe", "aliases"])
def test_the_description_of_a_folder_of_texts_is_looked_at_before(what: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a sentence of its own .\n", encoding="utf-8")
    path = tmp_path / "README.md"
    os.mkfifo(path) if what == "pipe" else path.write_text(f"---\n{nested_keys(9)}\n---\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"it is a named pipe|a key is no single value"):
        load_corpus(f"hf:{tmp_path}")


@pytest.mark.parametrize("what", ["chunk", "pipe"])
def test_a_store_of_zarr_reads_no_other_file(what: str, tmp_path: Path, secret: Path) -> None:
    zarr.create_array(tmp_path / "own.zarr", data=SECRET)
    chunk = next(path for path in (tmp_path / "own.zarr").rglob("*") if path.is_file() and path.suffix != ".json")
    chunk.unlink()
    chunk.symlink_to(secret) if what == "chunk" else os.mkfifo(chunk)
    with pytest.raises(UserError, match=r"it leads out of its folder|it is a named pipe"):
        probing.read_activations(tmp_path / "own.zarr")


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "ABOVE/elsewhere.safetensors", "inside.safetensors"])
def test_the_index_of_weights_names_no_other_file(name: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("bert")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path = folder / name.replace("ABOVE", str(tmp_path))
    save_file(weights, path, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name.replace("ABOVE", str(tmp_path)))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    if name.startswith("inside"):
        load_all(folder)
        return
    with pytest.raises(UserError, match="it leads out of its folder"):
        load_all(folder)
    with pytest.raises(UserError, match="it leads out of its folder"):
        resolve_model(str(folder)).fingerprint()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "1_Pooling/config.json"])
def test_a_link_out_of_the_folder_of_a_model_is_not_followed(
    name: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_model("bert")
    as_sentence_model(folder)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="it leads out of its folder"):
        load_all(folder)


@pytest.mark.parametrize("kind", ["Transformer", "Pooling"])
def test_a_list_of_modules_names_no_other_folder(kind: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("bert")
    as_sentence_model(folder)
    (folder / "1_Pooling").rename(tmp_path / "1_Pooling")
    path = "../1_Pooling"
    if kind == "Transformer":
        path = f"../{folder.name}"
        folder = tmp_path / "list"
        folder.mkdir()
    modules = [{"path": path, "type": f"models.{kind}"}, {"path": "", "type": "models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(UserError, match="it leads out of its folder"):
        load_all(folder)


def test_a_snapshot_in_the_cache_of_the_hub_is_read_through_its_links(
    tiny_model: Callable[..., Path], tmp_path: Path, secret: Path
) -> None:
    home = tmp_path / "hub" / "models--tiny--bert"
    snapshot, blobs = home / "snapshots" / "0123", home / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(tiny_model("bert").iterdir())):
        shutil.copy(path, blobs / f"{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    load_all(snapshot)
    assert len(resolve_model(str(snapshot)).fingerprint()) == 64
    (blobs / "secret").symlink_to(secret)
    (snapshot / "vocab.json").symlink_to("../../blobs/secret")
    with pytest.raises(UserError, match="it leads out of its folder"):
        load_all(snapshot)


def test_links_that_a_user_names_are_followed(
    tiny_model: Callable[..., Path], tmp_path: Path, corpus_file: Path
) -> None:
    for name, target in (("text.txt", corpus_file), ("model", tiny_model("bert"))):
        (tmp_path / name).symlink_to(target)
    assert load_corpus(str(tmp_path / "text.txt")).sentences == load_corpus(str(corpus_file)).sentences
    load_all(tmp_path / "model")
    np.save(tmp_path / "rows.npy", SECRET)
    (tmp_path / "link.npy").symlink_to("rows.npy")
    assert probing.read_activations(tmp_path / "link.npy").n_rows == len(SECRET)


@pytest.mark.parametrize("name", ["results.json", "neurons.csv", "probe.safetensors", "config.yaml"])
def test_a_link_out_of_the_folder_of_a_run_is_not_followed(name: str, run_folder: Path, tmp_path: Path) -> None:
    (run_folder / name).rename(tmp_path / name)
    (run_folder / name).symlink_to(tmp_path / name)
    with pytest.raises(UserError, match=r"is damaged \(.*it leads out of its folder"):
        load_run(run_folder).weight.sum()
    moved = tmp_path / "link"
    (run_folder / name).unlink()
    (tmp_path / name).rename(run_folder / name)
    moved.symlink_to(run_folder)
    load_run(moved).weight.sum()


# --- limits of size ---


def test_a_text_has_a_limit_packed_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"one two three four five six seven .\n"
    (tmp_path / "long.txt").write_bytes(line * 40_000)
    (tmp_path / "long.txt.gz").write_bytes(gzip.compress(line * 40_000))
    for name in ("long.txt", "long.txt.gz", "-"):
        text = str(tmp_path / name) if name != "-" else name
        for gb in ("", "0.002"):
            monkeypatch.setenv("PROBING_MAX_GB", gb)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line * 40_000), encoding="utf-8"))
            assert len(read_lines(text, "--corpus")) == 40_001
        monkeypatch.setenv("PROBING_MAX_GB", "0.001")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line * 40_000), encoding="utf-8"))
        with pytest.raises(UserError, match=r"more than 0\.001 GB, the most that is read; \$PROBING_MAX_GB raises it"):
            read_lines(text, "--corpus")
    for wrong in ("many", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("PROBING_MAX_GB", wrong)
        with pytest.raises(UserError, match=f"`PROBING_MAX_GB={wrong}`: expected a number of gigabytes above 0"):
            read_lines(str(tmp_path / "long.txt"), "--corpus")


@pytest.mark.parametrize("name", ["text.txt", "sts-test.csv", "cloze.tsv", "lines.jsonl", "config.yaml"])
def test_a_file_with_a_hole_of_a_terabyte_is_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text('{"features"', encoding="utf-8")
    os.truncate(path, 10**12)
    with pytest.raises(UserError, match=r"more than (2 GB|2,000,000 bytes)"):
        TYPED.get(name, TYPED["corpus"])(str(path))


def test_documents_and_tables_of_a_run_have_a_limit(run_folder: Path) -> None:
    for name in ("results.json", "config.yaml", "neurons.csv"):
        content = (run_folder / name).read_bytes()
        os.truncate(run_folder / name, 10**12)
        with pytest.raises(UserError, match=r"is damaged \(.*it has more than (2 GB|32,000,000 bytes)"):
            load_run(run_folder)
        (run_folder / name).write_bytes(content)


def test_vectors_of_words_have_lines_of_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.touch()
    os.truncate(path, 10**12)
    with pytest.raises(UserError, match="line 1 is not a word"):
        read_static(str(path), ["a"])


@pytest.mark.parametrize("what", ["values", "header"])
def test_compressed_arrays_take_no_more_than_the_memory(what: str, tmp_path: Path) -> None:
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**6)}
    np.lib.format.write_array_header_2_0(header, shape)
    content = header.getvalue() if what == "values" else b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 2_000_000
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("layer_0.npy", content)
    with pytest.raises(UserError, match=r"need about 4000000\.0 GB of memory|cannot be read as npz"):
        next(iter(probing.read_activations(tmp_path / "own.npz").layers.values()))[:1]


def test_a_file_of_torch_is_not_compressed(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    torch.save(torch.ones(3, 4), tmp_path / "rows.pt")
    load_all(folder)
    assert probing.read_activations(tmp_path / "rows.pt").n_rows == 3
    for path in (folder / "pytorch_model.bin", tmp_path / "rows.pt"):
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
    for read in (lambda: load_all(folder), lambda: probing.read_activations(tmp_path / "rows.pt")):
        with pytest.raises(UserError, match=r"its parts are compressed, which torch\.save does not do"):
            read()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (1, f"{10**12 - 1} of {10**12} chunks of `own` are missing"),
        (10**12, r"chunks of `own` need about 16000\.0 GB of memory"),
    ],
)
def test_chunks_of_zarr_are_not_counted_one_by_one_and_fit_in_memory(rows: int, message: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "own.zarr", shape=(10**12, 4), chunks=(rows, 4), dtype="float32")
    with pytest.raises(UserError, match=message):
        probing.read_activations(tmp_path / "own.zarr")


@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_whole_stores_of_zarr_are_read_and_missing_chunks_are_counted(
    shards: tuple[int, int] | None, tmp_path: Path
) -> None:
    made = zarr.create_array(
        tmp_path / "own.zarr", shape=(10, 4), chunks=(2, 4), shards=shards, dtype="float32"
    )  # fmt: skip
    rows = np.arange(40, dtype=np.float32).reshape(10, 4) + 1
    made[:] = rows
    assert np.array_equal(np.asarray(next(iter(probing.read_activations(tmp_path / "own.zarr").layers.values()))), rows)
    next(path for path in sorted((tmp_path / "own.zarr").rglob("*")) if path.name == "0" and path.is_file()).unlink()
    with pytest.raises(UserError, match=f"1 of {5 if shards is None else 3} chunks of `own` are missing"):
        probing.read_activations(tmp_path / "own.zarr")


@pytest.mark.parametrize(
    "counts",
    [
        {"num_hidden_layers": 1_000_000}, {"num_hidden_layers": 10**12}, {"text_config": {"encoder_layers": 10**6}},
        {"num_labels": 10**9}, {"num_hidden_groups": 10**6}, {"num_local_experts": 10**6},
    ],
)  # fmt: skip
def test_a_model_of_a_million_parts_is_not_built(counts: dict[str, Any], tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **counts}), encoding="utf-8")
    with pytest.raises(UserError, match=r"its config\.json has \w+ \d+, and at most 10*,?0* are read"):
        load_config(resolve_model(str(folder)))


# --- limits of levels and values ---


def nested_keys(n: int) -> str:
    """Return a mapping with aliases in keys, each of nine times as many values as the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"? {{? &a{i} [{', '.join([f'*a{i - 1}'] * 9)}] : 1}}\n: 1" for i in range(1, n)]
    return "\n".join(lines)


def nested_merges(n: int) -> str:
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: {i}" for i in range(9)) + "}"]
    return "\n".join(lines + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, n)])


def nested_values(n: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    return "\n".join(lines + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, n)])


YAML = {
    "keys": nested_keys(9),
    "merges": nested_merges(9),
    "values": nested_values(9),
    "itself": "a: &a [*a]",
    "levels": "a: " + "[" * 1000 + "]" * 1000,
    "blocks": "a:\n " + "- " * 2000 + "1",
    "text": 'layer: "{' + nested_values(9).replace("\n", ", ") + '}"',
    "long": "#" * (YAML_DOCUMENT + 1),
}


@pytest.mark.parametrize("name", YAML)
def test_a_file_of_options_takes_little_time_and_memory(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(YAML[name] + "\n", encoding="utf-8")
    assert run(COMMANDS, ["fit", "--config", str(path), "--runs", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert re.search(r"more than [\d,]+ (values|levels|bytes)|a key is no single value|refers to itself", said), said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", YAML)
def test_the_configuration_of_a_run_takes_little_time_and_memory(name: str, run_folder: Path) -> None:
    if name == "text":  # which a run does not read as YAML
        return
    with (run_folder / "config.yaml").open("a", encoding="utf-8") as file:
        file.write(YAML[name] + "\n")
    for read in (lambda: load_run(run_folder), lambda: probing.report([str(run_folder)])):
        with pytest.raises(UserError, match=r"is damaged \(.*config\.yaml"):
            read()


def test_a_users_own_file_may_have_anchors(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("probe: &own {l2: 0.1}\ntrainer:\n  <<: *own\n  max_epochs: 3\nlayer: [1, 2]\n", encoding="utf-8")
    assert read_yaml(str(path)) == {
        "probe": {"l2": 0.1}, "trainer": {"l2": 0.1, "max_epochs": 3}, "layer": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize("text", ["[" * 10_000 + "]" * 10_000, '{"a":' * 10_000 + "1" + "}" * 10_000])
def test_levels_of_json_are_counted_before_it_is_read(
    text: str, run_folder: Path, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    (run_folder / "results.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"is damaged \(results\.json: it has more than 100 levels"):
        load_run(run_folder)
    folder = tiny_model("bert")
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    resolve_model(str(folder)).fingerprint()
    (folder / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"its (config\.json|tokenizer)"):
        load_all(folder)
    (tmp_path / "lines.jsonl").write_text('{"features"' + ":" + text, encoding="utf-8")
    with pytest.raises(UserError, match=r"line 1 is no sentence of NeuroX"):
        probing.read_activations(tmp_path / "lines.jsonl")
    (tmp_path / "words.jsonl").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"words\.jsonl"):
        load_corpus(str(tmp_path / "words.jsonl"))


documents = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab[]{}"\\\n\u00e9', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='k[]{}"\\', max_size=3), inner, max_size=4)
    ),
    max_leaves=40,
)


def n_levels(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(n_levels, value.values() if isinstance(value, dict) else value), default=0)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(documents, st.integers(0, MOST_LEVELS), st.booleans())
def test_json_of_few_levels_is_read_as_the_library_reads_it(value: Any, more: int, as_dict: bool) -> None:
    for _ in range(more):
        value = {'"[': value, "]": "[{"} if as_dict else ["]\\", value, "}"]
    text = json.dumps(value)
    if n_levels(value) <= MOST_LEVELS:
        assert parse_json(text) == json.loads(text)
    else:
        with pytest.raises(ValueError, match=f"more than {MOST_LEVELS} levels"):
            parse_json(text)


def n_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(n_values, value.values()))
    return 1 + sum(map(n_values, value)) if isinstance(value, list) else 1


@settings(max_examples=50, deadline=None, derandomize=True)
@given(documents, st.integers(0, 4))
def test_values_of_yaml_are_counted_as_often_as_they_are_used(value: Any, n_times: int) -> None:
    for _ in range(n_times):  # each use of the same object is an alias where it is written
        value = {"first": value, "then": [value, value]}
    text = yaml.safe_dump(value)
    assert yaml.safe_load(text) == value
    n = n_values(value)
    check_yaml(text, n)
    with pytest.raises(ValueError, match=f"more than {n - 1:,} values"):
        check_yaml(text, n - 1)
