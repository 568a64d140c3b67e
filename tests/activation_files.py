"""Activations written in every format that can be read, by the library of the format or by its documented layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import zarr
from datasets import Array2D, Dataset, Features, List, Value
from numpy.typing import NDArray
from safetensors.torch import save_file

LENGTHS = (3, 3, 1, 2)
WORDS = ["the", "old", "man", "the", "old", "man", "Go", "it", "is"]
N_LAYERS, N_SENTENCES, N_TOKENS, WIDTH = 3, 5, 4, 6
# (n_layers, n_sentences, n_tokens, d_model)
BLOCKS = np.random.default_rng(0).standard_normal((N_LAYERS, N_SENTENCES, N_TOKENS, WIDTH)).astype(np.float32)
# (n_layers, n_words, d_model)
RAGGED = np.random.default_rng(1).standard_normal((N_LAYERS, sum(LENGTHS), WIDTH)).astype(np.float32)
# Exact in bfloat16 and float16.
COARSE = torch.from_numpy(BLOCKS).bfloat16().float().numpy()
TOKEN_IDS = np.arange(N_SENTENCES * N_TOKENS).reshape(N_SENTENCES, N_TOKENS)
ROWS = (N_SENTENCES * N_TOKENS, WIDTH)


def sentences() -> list[tuple[list[str], NDArray[np.float32]]]:
    """Return the words and the activations (n_layers, n_words, d_model) of each sentence."""
    ends = np.cumsum(LENGTHS)
    return [(WORDS[end - n : end], RAGGED[:, end - n : end]) for n, end in zip(LENGTHS, ends, strict=True)]


def write_neurox_hdf5(path: Path, layers: slice = slice(None), concatenated: bool = False) -> None:
    """Write as NeuroX 1.0.9 does (neurox/data/writer.py), which asks for numpy 1.19 and torch 1.8 and so is not here.

    A sentence that occurs again has its number in the index; layers that were concatenated are one.
    """
    index: dict[str, str] = {}
    with h5py.File(path, "w") as file:
        for number, (words, activations) in enumerate(sentences()):
            part = activations[layers]
            if concatenated:
                part = part.transpose(1, 0, 2).reshape(1, len(words), -1)
            file.create_dataset(str(number), part.shape, dtype="float32", data=part)
            sentence, times = " ".join(words), 1
            while sentence in index:
                times += 1
                sentence = f"{' '.join(words)} (Occurrence {times})"
            index[sentence] = str(number)
        named = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        named[0] = json.dumps(index)


def write_neurox_lines(path: Path) -> None:
    """Write as NeuroX does, with values of 8 decimal places."""
    lines = []
    for number, (words, activations) in enumerate(sentences()):
        features = [
            {
                "token": word,
                "layers": [
                    {"index": layer, "values": [round(value.item(), 8) for value in activations[layer, place]]}
                    for layer in range(N_LAYERS)
                ],
            }
            for place, word in enumerate(words)
        ]
        lines.append(json.dumps({"linex_index": number, "features": features}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def write_saelens(path: Path) -> None:
    """Write as SAELens' CacheActivationsRunner does: an array column named by the hook, and token ids."""
    features = Features(
        {
            "blocks.0.hook_mlp_out": Array2D(shape=(N_TOKENS, WIDTH), dtype="float32"),
            "token_ids": List(Value("int32"), length=N_TOKENS),
        }
    )
    columns = {"blocks.0.hook_mlp_out": BLOCKS[0], "token_ids": TOKEN_IDS}
    Dataset.from_dict(columns, features=features).save_to_disk(str(path), num_shards=2)


def write_ragged_dataset(path: Path, dtype: str) -> None:
    """Write sentences of several lengths, with their tokens and a language."""
    of_layers = [[part[layer].tolist() for _, part in sentences()] for layer in range(N_LAYERS)]
    arrays = Array2D(shape=(None, WIDTH), dtype=dtype)
    features = {"layer_0": arrays, "layer_1": List(List(Value(dtype))), "layer_2": arrays}
    features |= {"tokens": List(Value("string")), "language": Value("string")}
    columns: dict[str, Any] = {f"layer_{layer}": values for layer, values in enumerate(of_layers)}
    columns |= {"tokens": [words for words, _ in sentences()], "language": ["en", "fr", "en", "de"]}
    Dataset.from_dict(columns, features=Features(features)).save_to_disk(str(path))


def write_hdf5(path: Path) -> None:
    """Write a data set for each layer, in a group, and the tokens."""
    with h5py.File(path, "w") as file:
        for layer in range(N_LAYERS):
            file.create_dataset(f"hidden/layer_{layer}", data=BLOCKS[layer], chunks=(2, 2, WIDTH), compression="gzip")
        file["token_ids"] = TOKEN_IDS


def write_zarr(path: Path, version: int) -> None:
    """Write a group with an array for each layer, in chunks."""
    group = zarr.open_group(str(path), mode="w", zarr_format=version)  # type: ignore[arg-type]
    for layer in range(N_LAYERS):
        made = group.create_array(f"layer_{layer}", shape=BLOCKS[0].shape, chunks=(2, 3, WIDTH), dtype="float32")
        made[:] = BLOCKS[layer]
    group.create_array("token_ids", data=TOKEN_IDS)


def _folder(path: Path, suffix: str, write: Callable[[Path, Any], object]) -> None:
    path.mkdir()
    for layer in range(N_LAYERS):
        write(path / f"acts-layer{layer}{suffix}", BLOCKS[layer])


def _tensors(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {f"layer_{layer}": torch.from_numpy(BLOCKS[layer]).to(dtype) for layer in range(N_LAYERS)}


def _named() -> dict[str, Any]:
    return {f"layer_{layer}": BLOCKS[layer] for layer in range(N_LAYERS)} | {"token_ids": TOKEN_IDS}


# By name of the file: what writes it, and the format.
BLOCK_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "acts.hdf5": (write_hdf5, "HDF5"),
    "acts2.zarr": (lambda path: write_zarr(path, 2), "zarr"),
    "acts3": (lambda path: write_zarr(path, 3), "zarr"),
    "acts.npz": (lambda path: np.savez(path, **_named()), "npz"),
    "compressed.npz": (lambda path: np.savez_compressed(path, **_named()), "npz"),
    "list.pt": (lambda path: torch.save([*_tensors().values()], path), "torch"),
    "dict.pt": (lambda path: torch.save({**_tensors(), "token_ids": torch.from_numpy(TOKEN_IDS)}, path), "torch"),
    "numbers.pth": (lambda path: torch.save(dict(enumerate(_tensors().values())), path), "torch"),
    "older.pt": (lambda path: torch.save(_tensors(), path, _use_new_zipfile_serialization=False), "torch"),
    "grad.pt": (lambda path: torch.save({k: v.requires_grad_() for k, v in _tensors().items()}, path), "torch"),
    "acts.safetensors": (
        lambda path: save_file({**_tensors(), "token_ids": torch.from_numpy(TOKEN_IDS)}, path),
        "safetensors",
    ),
    "npy": (lambda path: _folder(path, ".npy", np.save), "folder of npy"),
    "columns first": (
        lambda path: _folder(path, ".npy", lambda p, a: np.save(p, np.asfortranarray(a))),
        "folder of npy",
    ),
    "tensors": (lambda path: _folder(path, ".pt", lambda p, a: torch.save(torch.from_numpy(a), p)), "folder of torch"),
    "zarrs": (lambda path: _folder(path, ".zarr", lambda p, a: zarr.save_array(str(p), a)), "folder of zarr"),
}
