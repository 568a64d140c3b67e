"""Activations of other tools: every format gives the arrays that were written, and no file is read whole."""

from __future__ import annotations

import gc
import json
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
import zarr
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import probing
from activation_files import (
    BLOCK_FILES,
    BLOCKS,
    COARSE,
    LENGTHS,
    N_LAYERS,
    N_SENTENCES,
    N_TOKENS,
    RAGGED,
    ROWS,
    TOKEN_IDS,
    WIDTH,
    WORDS,
    write_hdf5,
    write_neurox_hdf5,
    write_neurox_lines,
    write_ragged_dataset,
    write_saelens,
    write_zarr,
)
from pages import ROOT
from probing import read_activations
from probing.activations.reading import FORMATS
from probing.errors import UserError

GROUPS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
BLOCK_GROUPS = np.repeat(np.arange(N_SENTENCES), N_TOKENS)


@pytest.mark.parametrize("name", BLOCK_FILES)
def test_named_arrays_are_layers_whose_rows_are_tokens(tmp_path: Path, name: str) -> None:
    write, form = BLOCK_FILES[name]
    write(tmp_path / name)
    found = read_activations(tmp_path / name)
    assert (found.format, [*found.layers], found.n_rows) == (form, [*range(N_LAYERS)], ROWS[0])
    for layer, rows in zip(BLOCKS, found.layers.values(), strict=True):
        expected = layer.reshape(ROWS)
        assert (rows.shape, rows.dtype, len(rows)) == (ROWS, np.float32, ROWS[0])
        np.testing.assert_array_equal(np.asarray(rows), expected)
        for picked in (slice(3, 9), slice(5, 6), slice(1, 18, 5), [19, 3, 3, 0], np.arange(20) % 3 == 1, slice(4, 4)):
            np.testing.assert_array_equal(rows[picked], expected[picked])
        np.testing.assert_array_equal(rows[2:7, 1], expected[2:7, 1])
        np.testing.assert_array_equal(rows[-1], expected[-1])
    np.testing.assert_array_equal(found.groups, BLOCK_GROUPS)
    np.testing.assert_array_equal(found.positions, np.tile(np.arange(N_TOKENS), N_SENTENCES))
    if "token_ids" in found.columns:
        np.testing.assert_array_equal(found.columns["token_ids"], TOKEN_IDS.ravel())
    assert found.tokens is None
    assert repr(found).startswith(f"<{form}: 20 rows, 3 layers (")


@pytest.mark.parametrize(("name", "write"), [("a.hdf5", write_neurox_hdf5), ("a.json", write_neurox_lines)])
def test_files_of_neurox_give_layers_sentences_and_tokens(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name)
    found = read_activations(tmp_path / name)
    assert found.format.startswith("NeuroX")
    assert [*found.layers] == [0, 1, 2]
    for layer, rows in found.layers.items():
        np.testing.assert_allclose(rows[:], RAGGED[layer], atol=5e-9)  # JSON has 8 decimal places
        np.testing.assert_array_equal(rows[2:8], rows[:][2:8])
        np.testing.assert_array_equal(rows[[8, 0, 3]], rows[:][[8, 0, 3]])
    np.testing.assert_array_equal(found.groups, GROUPS)
    np.testing.assert_array_equal(found.positions, [0, 1, 2, 0, 1, 2, 0, 0, 1])
    assert found.tokens is not None
    assert found.tokens.tolist() == WORDS  # "(Occurrence 2)" is no word


def test_layers_of_neurox_may_be_concatenated_or_in_files_of_their_own(tmp_path: Path) -> None:
    write_neurox_hdf5(tmp_path / "all.hdf5", concatenated=True)
    (whole,) = read_activations(tmp_path / "all.hdf5").layers.values()
    assert whole.shape == (sum(LENGTHS), N_LAYERS * WIDTH)
    divided = read_activations(tmp_path / "all.hdf5", n_layers=N_LAYERS)
    for layer in range(N_LAYERS):
        write_neurox_hdf5(tmp_path / f"acts-layer{layer}.hdf5", slice(layer, layer + 1))
    (tmp_path / "all.hdf5").unlink()
    decomposed = read_activations(tmp_path)
    for found in (divided, decomposed):
        assert [*found.layers] == [0, 1, 2]
        for layer, rows in found.layers.items():
            np.testing.assert_array_equal(rows[:], RAGGED[layer])
            np.testing.assert_array_equal(rows[4:7], RAGGED[layer][4:7])
        np.testing.assert_array_equal(found.groups, GROUPS)


def test_activations_cached_by_saelens_have_token_ids(tmp_path: Path) -> None:
    write_saelens(tmp_path / "cache")
    found = read_activations(tmp_path / "cache")
    np.testing.assert_array_equal(found.layers["blocks.0.hook_mlp_out"][:], BLOCKS[0].reshape(ROWS))
    np.testing.assert_array_equal(found.layers["blocks.0.hook_mlp_out"][[17, 2]], BLOCKS[0].reshape(ROWS)[[17, 2]])
    np.testing.assert_array_equal(found.columns["token_ids"], TOKEN_IDS.ravel())
    np.testing.assert_array_equal(found.groups, BLOCK_GROUPS)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_data_sets_of_sentences_of_any_length(tmp_path: Path, dtype: str) -> None:
    write_ragged_dataset(tmp_path / "set", dtype)
    found = read_activations(tmp_path / "set")
    assert [*found.layers] == [0, 1, 2]
    for layer, rows in found.layers.items():
        assert rows.dtype == dtype
        np.testing.assert_array_equal(rows[:], RAGGED[layer].astype(dtype))
        np.testing.assert_array_equal(rows[2:8], RAGGED[layer].astype(dtype)[2:8])
    assert found.tokens is not None
    assert found.tokens.tolist() == WORDS
    assert found.columns["language"].tolist() == ["en"] * 3 + ["fr"] * 3 + ["en", "de", "de"]
    np.testing.assert_array_equal(found.groups, GROUPS)


def test_a_data_set_of_vectors_has_a_token_in_each_row(tmp_path: Path) -> None:
    columns = {"vector": BLOCKS[0, 0].tolist(), "label": list("abca"), "groups": [7, 7, 8, 8]}
    Dataset.from_dict(columns).save_to_disk(str(tmp_path / "set"))
    found = read_activations(tmp_path / "set")
    np.testing.assert_array_equal(found.layers["vector"][:], BLOCKS[0, 0])
    assert found.columns["label"].tolist() == list("abca")
    np.testing.assert_array_equal(found.positions, [0, 1, 0, 1])


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_bfloat16_is_read_as_float32(tmp_path: Path, suffix: str) -> None:
    tensors = {f"layer_{layer}": torch.from_numpy(COARSE[layer]).bfloat16() for layer in range(N_LAYERS)}
    (save_file if suffix == ".safetensors" else torch.save)(tensors, tmp_path / f"acts{suffix}")
    found = read_activations(tmp_path / f"acts{suffix}")
    for layer, rows in found.layers.items():
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows[5:13], COARSE[layer].reshape(ROWS)[5:13])


def test_the_first_axis_of_a_single_array_is_asked_for(tmp_path: Path) -> None:
    for name, array in (("three", BLOCKS[0]), ("four", BLOCKS), ("two", BLOCKS[0, 0])):
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(UserError, match='layers or sentences: give `first="layers"` or `first="sentences"`'):
        read_activations(tmp_path / "three.npy")
    by_layer = read_activations(tmp_path / "three.npy", first="layers")
    assert ([*by_layer.layers], by_layer.groups) == ([0, 1, 2, 3, 4], None)
    np.testing.assert_array_equal(by_layer.layers[3], BLOCKS[0, 3])
    by_sentence = read_activations(tmp_path / "three.npy", first="sentences")
    np.testing.assert_array_equal(by_sentence.layers["three"], BLOCKS[0].reshape(ROWS))
    whole = read_activations(tmp_path / "four.npy", first="layers")
    np.testing.assert_array_equal(whole.layers[2], BLOCKS[2].reshape(ROWS))
    np.testing.assert_array_equal(whole.groups, BLOCK_GROUPS)
    alone = read_activations(tmp_path / "two.npy")
    assert (alone.groups, alone.positions, alone.columns) == (None, None, {})


def test_a_probe_of_rows_on_disk_is_the_probe_of_the_same_arrays(tmp_path: Path) -> None:
    states = np.random.default_rng(3).standard_normal((80, 5, 8)).astype(np.float32)
    states[:, :, 2] += np.arange(5)
    with h5py.File(tmp_path / "acts.h5", "w") as file:
        file["layer_4"], file["layer_11"] = states, states**2
    found = read_activations(tmp_path / "acts.h5")
    options: dict[str, Any] = {"replicates": 0, "controls": "none", "evidence": "none", "quiet": True}
    for groups in (found.groups, found.groups[::-1] % 70):  # type: ignore[index] # in order, and not
        lazy = probing.probe(found.layers, found.positions, groups=groups, **options)
        arrays = {4: states.reshape(-1, 8), 11: states.reshape(-1, 8) ** 2}
        plain = probing.probe(arrays, found.positions, groups=groups, **options)
        assert [*lazy.accuracy] == [*plain.accuracy]
        assert lazy.top(4, 8) == plain.top(4, 8)
    assert lazy.top(4, 1)[0]["neuron"] == 2
    assert lazy.predict(found.layers) == plain.predict(arrays)


class Ran:
    """Says that it ran, when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def _zarr_without_a_chunk(path: Path) -> None:
    write_zarr(path, 3)
    (path / "layer_1" / "c" / "0" / "1" / "0").unlink()


def _pickled_zarr(path: Path) -> None:
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    group.create_array("x", data=BLOCKS[0, 0], compressors=None)
    settings = json.loads((path / "x" / ".zarray").read_text(encoding="utf-8"))
    settings["compressor"] = {"id": "pickle", "protocol": 5}  # as a file may say that is to run its code
    (path / "x" / ".zarray").write_text(json.dumps(settings), encoding="utf-8")
    (path / "x" / "0.0").write_bytes(pickle.dumps(Ran()))


def _cut(write: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return what writes a file of which the last quarter is missing."""

    def cut(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])

    return cut


def _folder(path: Path, **files: Any) -> None:
    path.mkdir()
    for name, array in files.items():
        np.save(path / name, array)


def _folder_of_notes(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").touch()


def _with_a_string(path: Path) -> None:
    torch.save({"layer_0": torch.zeros(3, 2), "model": "bert"}, path)


def _objects(path: Path) -> None:
    np.save(path, np.array([[1], [1, 2]], dtype=object))


def _empty_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["layer_0"] = np.zeros((0, 4))


def _cut_in_a_list_of_sentences(path: Path) -> None:
    write_hdf5(path)
    with h5py.File(path, "a") as file:
        file.create_dataset("sentence_to_index", data=['{"a b": "7"}'], dtype=h5py.special_dtype(vlen=str))


def _splits() -> DatasetDict:
    return DatasetDict(train=Dataset.from_dict({"x": [1.0]}))


REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "unknown": ("a.csv", lambda p: p.write_text("1,2\n", encoding="utf-8"), "no known format; taken are HDF5 .*`.npz`"),
    "other JSON": ("a.json", lambda p: p.write_text("{}", encoding="utf-8"), "no known format"),
    "empty folder": ("a", Path.mkdir, "is an empty folder: expected files of activations"),
    "a folder of other files": ("a", _folder_of_notes, "no known format"),
    "no bytes": ("a.npy", Path.touch, "is empty: the file has no bytes"),
    "pickle": ("a.pkl", lambda p: p.write_bytes(pickle.dumps(Ran())), "is a pickle, and unpickling runs code"),
    "hidden pickle": ("a.bin", lambda p: p.write_bytes(pickle.dumps(Ran())), "is a pickle"),
    "pickle in torch": ("a.pt", lambda p: torch.save({"a": Ran()}, p), "holds Python objects beside tensors"),
    "a string in torch": ("a.pt", _with_a_string, "a value of type str under 'model': expected a tensor"),
    "objects of NumPy": ("a.npy", _objects, "holds Python objects"),
    "objects in npz": ("a.npz", lambda p: np.savez(p, a=np.array([Ran()], dtype=object)), "holds Python objects"),
    "unlike rows": ("a.npz", lambda p: np.savez(p, layer_1=BLOCKS[0, 0], layer_2=BLOCKS[0, :, 0]),
                    "the layers 1 and 2 have 4 and 5 rows: expected the same rows"),
    "unlike sentences": ("a.npz", lambda p: np.savez(p, a=BLOCKS[0], b=BLOCKS[0, :3]), "have 5 x 4 and 3 x 4 rows"),
    "unlike files": ("a", lambda p: _folder(p, layer1=BLOCKS[0, 0], layer2=BLOCKS[0, :, 0]), "4 and 5 rows"),
    "a column of other rows": ("a.npz", lambda p: np.savez(p, x=BLOCKS[0], groups=np.arange(3), y=BLOCKS[1]),
                               "`groups` has shape"),
    "no rows": ("a.h5", _empty_hdf5, "is empty: its layers have no rows"),
    "one axis": ("a.npy", lambda p: np.save(p, np.arange(3.0)), "expected .n_rows, d_model."),
    "cut npy": ("a.npy", _cut(lambda p: np.save(p, BLOCKS[0, 0])), "cannot be read as npy .*damaged or truncated"),
    "cut npz": ("a.npz", _cut(BLOCK_FILES["acts.npz"][0]), "cannot be read as npz"),
    "cut HDF5": ("a.h5", _cut(write_hdf5), "cannot be read as HDF5"),
    "cut torch": ("a.pt", _cut(BLOCK_FILES["dict.pt"][0]), "cannot be read as torch"),
    "cut older torch": ("a.pt", _cut(BLOCK_FILES["older.pt"][0]), "cannot be read as torch"),
    "cut safetensors": ("a.safetensors", _cut(BLOCK_FILES["acts.safetensors"][0]), "cannot be read as safetensors"),
    "cut lines": ("a.json", _cut(write_neurox_lines), "line 3 is no sentence of NeuroX|line 4 is no sentence"),
    "a missing sentence": ("a.h5", _cut_in_a_list_of_sentences, "names a data set .'7'. that is not there"),
    "pickles in zarr": ("a.zarr", _pickled_zarr, "cannot be read as zarr .*pickle"),
    "a missing chunk": ("a.zarr", _zarr_without_a_chunk, "1 of 6 chunks of `layer_1` are missing"),
    "several data sets": ("a", lambda p: _splits().save_to_disk(str(p)),
                          "holds the data sets train: name one, such as .*a/train"),
    "no array column": ("a", lambda p: _splits()["train"].save_to_disk(str(p)), "no column of activations"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, write, message = REFUSED[case]
    write(tmp_path / name)
    with pytest.raises(UserError, match=message) as error:
        read_activations(tmp_path / name)
    assert capsys.readouterr().out == ""  # no pickle ran
    assert str(error.value).startswith(str(tmp_path))
    assert "\n" not in str(error.value)


def test_folders_of_several_formats_or_of_files_with_several_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=BLOCKS[0], y=BLOCKS[1])
    with pytest.raises(UserError, match="has 2 arrays: expected one layer in each file"):
        read_activations(tmp_path)
    np.save(tmp_path / "b.npy", BLOCKS[0])
    with pytest.raises(UserError, match=r"files of several formats .*npy.*expected one format"):
        read_activations(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read_activations(tmp_path / "c.npy")


def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    for name, (write, _) in BLOCK_FILES.items():
        if name in ("acts.hdf5", "npy"):
            write(tmp_path / name)
            with pytest.raises(UserError, match="no such array"):
                read_activations(tmp_path / name, first="layers")
            with pytest.raises(UserError, match=r"and .* has 3 layers"):
                read_activations(tmp_path / name, n_layers=2)
    write_neurox_hdf5(tmp_path / "n.hdf5", concatenated=True)
    with pytest.raises(UserError, match="`first` does not apply"):
        read_activations(tmp_path / "n.hdf5", first="layers")
    for wrong in (0, 4):
        with pytest.raises(UserError, match=f"`n_layers={wrong}`.* has 18 columns"):
            read_activations(tmp_path / "n.hdf5", n_layers=wrong)
    with pytest.raises(UserError, match="expected layers or sentences"):
        read_activations(tmp_path / "n.hdf5", first="tokens")  # type: ignore[arg-type]


@pytest.mark.parametrize(("package", "extra"), [("h5py", "hdf5"), ("zarr", "zarr"), ("datasets", "hf")])
def test_a_missing_package_is_named_with_the_extra_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    names: dict[str, Callable[[Path], object]] = {
        "h5py": write_hdf5,
        "zarr": lambda p: write_zarr(p, 3),
        "datasets": write_saelens,
    }
    path = tmp_path / ("a.h5" if package == "h5py" else "a")
    names[package](path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"needs the package {package}, .*{re.escape(f'neuron-probing[{extra}]')}"):
        read_activations(path)


def test_a_damaged_chunk_is_refused_when_it_is_read(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        chunk = file["hidden/layer_1"].id.get_chunk_info(0)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    (tmp_path / "a.h5").write_bytes(data)
    found = read_activations(tmp_path / "a.h5")
    with pytest.raises(UserError, match=r"a.h5 \(1\): rows 0 to 19 cannot be read .*damaged"):
        found.layers[1][:]


def test_the_page_names_every_format() -> None:
    page = (ROOT / "docs" / "activations.md").read_text(encoding="utf-8")
    for form in FORMATS:
        assert form.name in page
        for sign in re.findall(r"`[^`]+`", form.sign):
            assert sign in page
        if form.library:
            assert f"neuron-probing[{form.library[1]}]" in page


def test_zarr_groups_within_groups_are_named_by_their_paths(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_group("encoder").create_array("out", data=BLOCKS[0, 0])
    assert [*read_activations(tmp_path / "a.zarr").layers] == ["encoder/out"]


NAMES = st.builds(
    "{}{}{}".format, st.sampled_from(["layer_", "layer-", "layer", "Layer_", "acts.layer_", ""]),
    st.sampled_from(["", "0", "00"]), st.integers(0, 12),
)  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True)
@given(names=st.lists(NAMES, min_size=1, max_size=5, unique_by=str.lower), form=st.sampled_from(["npy", "npz", "h5"]))
def test_no_layer_vanishes_whatever_its_name(names: list[str], form: str) -> None:
    """Every array is read, under its number or name; or two names of one number are refused."""
    arrays = {name: np.full((3, 2), i, dtype=np.float32) for i, name in enumerate(names)}
    with TemporaryDirectory() as place:
        path = Path(place) / f"all.{form}"
        if form == "npy":
            path = Path(place)
            for name, array in arrays.items():
                np.save(path / f"{name}.npy", array)
        elif form == "npz":
            np.savez(path, allow_pickle=False, **arrays)
        else:
            with h5py.File(path, "w") as file:
                for name, array in arrays.items():
                    file[name] = array
        numbers = [int(re.findall(r"\d+", name)[0]) for name in names]
        try:
            found = probing.read_activations(path)
        except UserError:
            assert len(set(numbers)) < len(numbers)
            with pytest.raises(UserError, match="are two names of one layer"):
                probing.read_activations(path)
            return
        assert len(found.layers) == len(names)
        read = {key: int(np.asarray(rows)[0, 0]) for key, rows in found.layers.items()}
    for key, i in read.items():
        assert key == names[i] or (isinstance(key, int) and key == int(re.findall(r"\d+", names[i])[0]))
        if isinstance(key, int) and any("-" in name for name in names):
            assert all("-" in name for name in names)
            assert min(read) == 0


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["layer-1", "layer_0", "layer_1"], ["layer-1", "layer_0", "layer_1"]),
        (["layer-0", "layer-1", "layer-10"], [0, 1, 10]),
        (["layer-1", "layer-2"], ["layer-1", "layer-2"]),
        (["layer_0", "acts_layer_1"], ["layer_0", "acts_layer_1"]),
    ],
)
def test_a_hyphen_before_a_number_is_a_minus(
    names: list[str], keys: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, name in enumerate(names):
        np.save(tmp_path / f"{name}.npy", np.full((4, 3), i))
    found = probing.read_activations(tmp_path)
    assert sorted(found.layers, key=str) == sorted(keys, key=str)
    assert {int(np.asarray(found.layers[key])[0, 0]) for key in keys} == set(range(len(names)))
    shown = ", ".join(map(str, found.layers))
    assert capsys.readouterr().err == (
        f"read {tmp_path} as folder of npy: {len(names)} layers ({shown}), 4 rows, 3 columns\n"
    )


@pytest.mark.parametrize("names", [("layer_1.npy", "layer_01.npy"), ("layer_1.npy", "layer_1.NPY")])
def test_two_files_of_one_layer_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        with (tmp_path / name).open("wb") as file:
            np.save(file, np.zeros((4, 3)))
    with pytest.raises(UserError, match="are two names of one layer, 1; rename one"):
        probing.read_activations(tmp_path)


N_ROWS, DISK_WIDTH, DISK_N_LAYERS = 25_000, 500, 4
SIZE = DISK_N_LAYERS * N_ROWS * DISK_WIDTH * 4
# Of 200 MB; what libraries allocate when they are used first comes on top of a part of 0.2 MB.
MOST = 50e6


def _npy(folder: Path) -> Path:
    (folder / "acts").mkdir()
    for layer in range(DISK_N_LAYERS):  # sparse, as the files are of which nothing was written
        np.lib.format.open_memmap(folder / "acts" / f"{layer}.npy", "w+", np.float32, (N_ROWS, DISK_WIDTH))[-1] = 1
    return folder / "acts"


def _npz(folder: Path) -> Path:
    layers: dict[str, Any] = {
        f"layer_{layer}": np.zeros((N_ROWS, DISK_WIDTH), np.float32) for layer in range(DISK_N_LAYERS)
    }
    np.savez(folder / "acts.npz", **layers)
    return folder / "acts.npz"


def _hdf5(folder: Path) -> Path:
    with h5py.File(folder / "acts.h5", "w") as file:
        for layer in range(DISK_N_LAYERS):
            file.create_dataset(f"layer_{layer}", data=np.zeros((N_ROWS, DISK_WIDTH), np.float32))
    return folder / "acts.h5"


def _neurox(folder: Path) -> Path:
    with h5py.File(folder / "acts.hdf5", "w") as file:
        names = {f"sentence {i}": str(i) for i in range(100)}
        for name in names.values():
            file[name] = np.zeros((DISK_N_LAYERS, N_ROWS // 100, DISK_WIDTH), np.float32)
        file.create_dataset("sentence_to_index", data=[json.dumps(names)], dtype=h5py.special_dtype(vlen=str))
    return folder / "acts.hdf5"


def _zarr(folder: Path) -> Path:
    group = zarr.open_group(str(folder / "acts.zarr"), mode="w")
    for layer in range(DISK_N_LAYERS):
        made = group.create_array(
            f"layer_{layer}", shape=(N_ROWS, DISK_WIDTH), chunks=(500, DISK_WIDTH), dtype="float32", compressors=None,
            config={"write_empty_chunks": True},
        )  # fmt: skip
        made[:] = 0
    return folder / "acts.zarr"


def _safetensors(folder: Path) -> Path:
    """Write the documented layout: the length of a header, the header as JSON, and the bytes; here sparse ones."""
    size = N_ROWS * DISK_WIDTH * 4
    layers = {
        f"layer_{layer}": {
            "dtype": "F32",
            "shape": [N_ROWS, DISK_WIDTH],
            "data_offsets": [layer * size, (layer + 1) * size],
        }
        for layer in range(DISK_N_LAYERS)
    }
    header = json.dumps(layers).encode()
    with (folder / "acts.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + SIZE)
    return folder / "acts.safetensors"


def _torch(folder: Path) -> Path:
    torch.save([torch.zeros(N_ROWS, DISK_WIDTH) for _ in range(DISK_N_LAYERS)], folder / "acts.pt")
    return folder / "acts.pt"


def _datasets(folder: Path) -> Path:
    values = pa.array(np.zeros(N_ROWS * DISK_WIDTH, np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, DISK_WIDTH)
    table = pa.table({f"layer_{layer}": vectors for layer in range(DISK_N_LAYERS)})
    Dataset(table).save_to_disk(str(folder / "acts"))
    return folder / "acts"


def _private_memory() -> int:
    gc.collect()
    return psutil.Process().memory_full_info().uss


WRITERS = (_npy, _npz, _hdf5, _neurox, _zarr, _safetensors, _torch, _datasets)


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITERS, ids=[write.__name__[1:] for write in WRITERS])
def test_a_part_of_a_large_file_is_read_alone(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path)
    files = [file for file in path.rglob("*") if file.is_file()] or [path]
    assert sum(file.stat().st_size for file in files) > 0.99 * SIZE
    before = _private_memory()
    found = read_activations(path)
    part = found.layers[3][12_000:12_100]
    few = found.layers[1][[24_999, 7, 12_000]]
    grown = _private_memory() - before
    assert (part.shape, few.shape) == ((100, DISK_WIDTH), (3, DISK_WIDTH))
    assert grown < MOST, grown


def test_arrays_of_numpy_are_memory_maps(tmp_path: Path) -> None:
    states = np.ones((5, 4, 3), np.float32)
    np.savez(tmp_path / "a.npz", x=states, y=states)
    np.save(tmp_path / "b.npy", states)
    layers = [*read_activations(tmp_path / "a.npz").layers.values()]
    layers += read_activations(tmp_path / "b.npy", first="sentences").layers.values()
    for layer in layers:
        assert isinstance(layer, np.memmap)
        assert not layer.flags.writeable


def test_only_the_slices_that_are_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((900, 10, 4)), np.zeros((900, 10, 4))
    found = read_activations(tmp_path / "a.h5")
    sizes: list[int] = []
    real = h5py.Dataset.__getitem__

    def counted(data: Any, key: Any, **options: Any) -> Any:
        part = real(data, key, **options)
        sizes.append(part.size)
        return part

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
    found.layers["x"][8993]
    found.layers["y"][[3, 5000, 4]]
    assert sizes == [4, 2 * 4, 4]
