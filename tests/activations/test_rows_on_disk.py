"""Files of 200 MB are opened, and a layer's part read, without reading them whole."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
import zarr
from datasets import Dataset

from probing import read_activations

N_ROWS, WIDTH, N_LAYERS = 25_000, 500, 4
SIZE = N_LAYERS * N_ROWS * WIDTH * 4
# Of 200 MB; what libraries allocate when they are used first comes on top of a part of 0.2 MB.
MOST = 50e6


def _npy(folder: Path) -> Path:
    (folder / "acts").mkdir()
    for layer in range(N_LAYERS):  # sparse, as the files are of which nothing was written
        np.lib.format.open_memmap(folder / "acts" / f"{layer}.npy", "w+", np.float32, (N_ROWS, WIDTH))[-1] = 1
    return folder / "acts"


def _npz(folder: Path) -> Path:
    layers: dict[str, Any] = {f"layer_{layer}": np.zeros((N_ROWS, WIDTH), np.float32) for layer in range(N_LAYERS)}
    np.savez(folder / "acts.npz", **layers)
    return folder / "acts.npz"


def _hdf5(folder: Path) -> Path:
    with h5py.File(folder / "acts.h5", "w") as file:
        for layer in range(N_LAYERS):
            file.create_dataset(f"layer_{layer}", data=np.zeros((N_ROWS, WIDTH), np.float32))
    return folder / "acts.h5"


def _neurox(folder: Path) -> Path:
    with h5py.File(folder / "acts.hdf5", "w") as file:
        names = {f"sentence {i}": str(i) for i in range(100)}
        for name in names.values():
            file[name] = np.zeros((N_LAYERS, N_ROWS // 100, WIDTH), np.float32)
        file.create_dataset("sentence_to_index", data=[json.dumps(names)], dtype=h5py.special_dtype(vlen=str))
    return folder / "acts.hdf5"


def _zarr(folder: Path) -> Path:
    group = zarr.open_group(str(folder / "acts.zarr"), mode="w")
    for layer in range(N_LAYERS):
        made = group.create_array(
            f"layer_{layer}", shape=(N_ROWS, WIDTH), chunks=(500, WIDTH), dtype="float32", compressors=None,
            config={"write_empty_chunks": True},
        )  # fmt: skip
        made[:] = 0
    return folder / "acts.zarr"


def _safetensors(folder: Path) -> Path:
    """Write the documented layout: the length of a header, the header as JSON, and the bytes; here sparse ones."""
    size = N_ROWS * WIDTH * 4
    layers = {
        f"layer_{layer}": {"dtype": "F32", "shape": [N_ROWS, WIDTH], "data_offsets": [layer * size, (layer + 1) * size]}
        for layer in range(N_LAYERS)
    }
    header = json.dumps(layers).encode()
    with (folder / "acts.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + SIZE)
    return folder / "acts.safetensors"


def _torch(folder: Path) -> Path:
    torch.save([torch.zeros(N_ROWS, WIDTH) for _ in range(N_LAYERS)], folder / "acts.pt")
    return folder / "acts.pt"


def _datasets(folder: Path) -> Path:
    values = pa.array(np.zeros(N_ROWS * WIDTH, np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, WIDTH)
    table = pa.table({f"layer_{layer}": vectors for layer in range(N_LAYERS)})
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
    assert (part.shape, few.shape) == ((100, WIDTH), (3, WIDTH))
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
