"""Activations, model folders and answers of a hub that are damaged in many ways, and what reads them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

import probing
from activation_files import BLOCK_FILES, write_neurox_hdf5, write_neurox_lines, write_ragged_dataset, write_saelens
from damaged_runs import _bytes, _document, _tensors
from loopback_hub import LoopbackHub
from probing.cache import Request, activations
from probing.corpus import from_sentences
from probing.models import load_tokenizer, resolve_model

DEEP = "[" * 5000 + "]" * 5000


def write_activations(place: Path) -> None:
    """Write a file or folder of every format."""
    place.mkdir()
    for name, (write, _) in BLOCK_FILES.items():
        write(place / name)
    write_neurox_hdf5(place / "neurox.hdf5")
    write_neurox_lines(place / "neurox.json")
    write_saelens(place / "saelens")
    write_ragged_dataset(place / "dataset", "float32")


def _npy(draw: random.Random, path: Path) -> None:
    """Write a header that says something else than the values are."""
    shapes = ["(3, 4)", "(-3, 4)", "(3, -4)", "(3,)", "()", "(0, 4)", "(2, 2, 2, 2)", "(3.0, 4)", "(True, 4)", DEEP]
    shape, order = draw.choice(shapes), draw.choice(["True", "False", "3"])
    descr = draw.choice(["<f4", "|b1", "<c8", "|S4", "<M8[s]", "|V4", "<f2", "x", "<U2", "<i8"])
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text = header.ljust((len(header) + 11 + 63) // 64 * 64 - 11) + b"\n"
    path.write_bytes(npy.magic(1, 0) + len(text).to_bytes(2, "little") + text + bytes(48))


def _header_of_safetensors(draw: random.Random, path: Path) -> None:
    """Change one part of the header, and leave the values."""
    content = path.read_bytes()
    n = int.from_bytes(content[:8], "little")
    changed = json.dumps(_document(draw, json.loads(content[8 : 8 + n])))
    text = draw.choice([changed] * 5 + [DEEP, '{"a": ' * 2000 + "1" + "}" * 2000]).encode("utf-8", "surrogatepass")
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + n :])


def _objects_of_torch(draw: random.Random, path: Path) -> None:
    """Save tensors of other kinds, shapes and places."""
    states = torch.arange(12.0).reshape(3, 4)
    kinds: list[Any] = [
        states.to("meta"), states > 3, states.to(torch.complex64), states[0], states[0, 0], states[:0], [[states]],
        states.to_sparse(), torch.quantize_per_tensor(states, 0.1, 0, torch.qint8), states.to(torch.float8_e5m2), {},
        {"a": {"b": states}}, {1: states, "x": states[None]}, [states, None], states[None, None], {(1, 2): states}, [],
        {True: states}, states.to(torch.int8), torch.nested.nested_tensor([states, states[:2]]), {"layer_1": 3},
    ]  # fmt: skip
    torch.save(draw.choice(kinds), path)


def _texts(draw: random.Random, path: Path) -> None:
    """Change one part of JSON, in a line of several."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at = draw.randrange(len(lines)) if path.name == "neurox.json" else None
    old = "\n".join(lines) if at is None else lines[at]
    new = draw.choice([json.dumps(_document(draw, json.loads(old)))] * 8 + [DEEP, old[:-3], old + old])
    text = new if at is None else "\n".join([*lines[:at], new, *lines[at + 1 :]])
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


_BY_SUFFIX: Mapping[str, Sequence[Callable[[random.Random, Path], None]]] = {
    ".npy": (_npy,), ".safetensors": (_header_of_safetensors, _tensors), ".pt": (_objects_of_torch,),
    ".pth": (_objects_of_torch,), ".json": (_texts,), ".zarray": (_texts,), ".zgroup": (_texts,),
}  # fmt: skip


def _damage(draw: random.Random, place: Path) -> str:
    """Damage one file of a folder, or a file, and return which and how."""
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    described = [path for path in files if path.suffix in _BY_SUFFIX or path.name in _BY_SUFFIX]
    path = draw.choice(described) if described and draw.random() < 0.7 else draw.choice(files)
    how = draw.choice([*(_BY_SUFFIX.get(path.suffix) or _BY_SUFFIX.get(path.name) or ()), _bytes])
    how(draw, path)
    return f"{path.name}, {how.__name__.strip('_')}"


def read_activations(path: Path, draw: random.Random) -> None:
    """Read activations and ask for everything that they offer."""
    found = probing.read_activations(path, first=draw.choice([*[None] * 8, "layers", "sentences"]))
    repr(found)
    assert found.n_rows > 0
    for rows in found.layers.values():
        assert rows[: found.n_rows].shape == np.asarray(rows).shape
        assert np.asarray(rows[[0, found.n_rows - 1]]).dtype.kind in "iuf"
    for values in (found.tokens, found.positions, found.groups, *found.columns.values()):
        assert values is None or len(values) == found.n_rows


def damaged_activations(valid: Path, place: Path, draw: random.Random) -> tuple[str, Callable[[], object]]:
    """Copy one of the valid files or folders, damage the copy, and return how, and what reads it."""
    source = draw.choice(sorted(valid.iterdir()))
    copy = place / source.name
    shutil.copytree(source, copy) if source.is_dir() else shutil.copyfile(source, copy)
    how = _damage(draw, copy)
    return f"{source.name}: {how}", lambda: read_activations(copy, draw)


def damaged_model(valid: Path, place: Path, draw: random.Random) -> tuple[str, Callable[[], object]]:
    """Copy the folder of a model, damage the copy, and return how, and what reads it."""
    copy = Path(shutil.copytree(valid, place / "model"))
    how = _damage(draw, copy)

    def read() -> None:
        source = resolve_model(str(copy))
        load_tokenizer(source)
        activations(Request(source, from_sentences("x", ["a b", "the probe reads ."]), [0, 1]), place / "cache", {})

    return how, read


class HostileHub(LoopbackHub):
    """A hub whose answers are damaged by a random draw, one kind of answer for a while."""

    kind = ""

    def damage(self, draw: random.Random) -> str:
        """Choose what is damaged from now on: the answer about a repository, its headers, or a file."""
        self.draw, self.kind = draw, draw.choice(["body", "document", "document", "headers", "status", "file"])
        return self.kind

    def answer(
        self, content: bytes, kind: str, headers: dict[str, str], status: int
    ) -> tuple[bytes, dict[str, str], int]:
        """Return the damaged answer."""
        if not self.kind:
            return content, headers, status
        draw, is_json = self.draw, kind == "application/json"
        if self.kind == "status":
            return content, headers, draw.choice([200, 204, 206, 301, 304, 401, 403, 404, 416, 418, 429, 500, 503])
        if self.kind == "headers":
            name = draw.choice(["ETag", "X-Repo-Commit", "Content-Type", "X-Linked-Size", "Location", "X-Error-Code"])
            return content, {**headers, name: draw.choice(["", "x", "-1", "../..", f'"{"a" * 900}"'])}, status
        if self.kind == "document" and is_json:
            return json.dumps(_document(draw, json.loads(content))).encode("utf-8", "surrogatepass"), headers, status
        if self.kind == ("body" if is_json else "file"):
            half, other = content[: len(content) // 2], draw.randbytes(40)
            return draw.choice([b"", b"x", half, b"null", b"[]", DEEP.encode(), other, content * 2]), headers, status
        return content, headers, status
