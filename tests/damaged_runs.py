"""Runs, activations, model folders and answers of a hub, ways to damage them, and everything that reads them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.lib import format as npy
from safetensors.numpy import load_file, save_file

import probing
from activation_files import BLOCK_FILES, write_neurox_hdf5, write_neurox_lines, write_ragged_dataset, write_saelens
from families import masked_lm
from loopback_hub import LoopbackHub
from probing.activations import Request, activations
from probing.errors import RunError, UserError
from probing.models import load_tokenizer, resolve_model
from probing.text import from_sentences
from report_runs import QUICKLY, treebank
from small_data import sentence_pairs, word_pairs, write_semeval, write_wic

NO_WANDB: Any = {"mode": "disabled"}
SHORT: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 3}

# Folders of results by what they are.
Kinds = dict[str, Path]


def make_few(model: Path, corpus: Path, place: Path) -> Kinds:
    """Make runs of classes and of numbers, rankings and a comparison."""
    bare: dict[str, Any] = {"model": str(model), "corpus": str(corpus), "runs": str(place), **QUICKLY}
    for name, more in (("fit", {"replicates": 2, "controls": "shuffled"}), ("twin", {"random_weights": True})):
        probing.fit(**{**bare, **more, "name": name})
    probing.rank(str(place / "fit"), method="contribution,anova", layer=2, quiet=True, wandb=NO_WANDB)
    generator = np.random.default_rng(0)
    states, numbers = generator.normal(size=(120, 8)), generator.normal(size=120)
    probing.probe(states, numbers, runs=place, name="numbers", numbers=True, replicates=0, controls="none")
    both = [str(place / "fit"), str(place / "twin")]
    probing.compare(both, runs=str(place), name="comparison", null_draws=1, quiet=True, wandb=NO_WANDB)
    return {name: place / name for name in ("fit", "numbers", "fit/rankings", "comparison")}


def make_all(model: Path, corpus: Path, sentences: list[str], place: Path) -> Kinds:
    """Make results of every kind."""
    few = make_few(model, corpus, place)
    quietly: dict[str, Any] = {"runs": str(place), "quiet": True, "wandb": NO_WANDB}
    on: dict[str, Any] = {**quietly, "model": str(model), "corpus": str(corpus)}
    (place / "data").mkdir()
    bank, data = str(place / "data" / "bank.conllu"), place / "data"
    Path(bank).write_text(treebank(sentences[:100]), encoding="utf-8")
    fits: dict[str, dict[str, Any]] = {
        "labels": {"corpus": bank, "task": "deprel", "task_args": {"min_count": 1}},
        "clipped": {"transform": "clip", "first_token": "exclude"},
        "outputs": {"site": "attention", "layer": 2},
    }
    for name, more in fits.items():
        probing.fit(**{**on, **QUICKLY, **more, "name": name})
    probing.geometry(**on, name="geometry", estimators="all", norms=True, trainer=SHORT)
    probing.position(**on, name="position")
    probing.extremes(**on, name="extremes")
    probing.ablate(**on, name="neurons", neurons=3, kinds="zero", retrain=0, tokens=60, draws=2, trainer=SHORT)
    probing.attention(**{**on, "corpus": bank}, name="attention")
    probing.ablate(**on, name="ablate", retrain=0, kinds="mean", prune="all", trainer=SHORT)
    sizes: dict[str, Any] = {"train_sentences": 60, "test_sentences": 25, "generalisation_sentences": 30}
    weak: Any = {"l2": 1e-2}
    probing.hierarchy(**quietly, **sizes, model=str(model), name="hierarchy", layer=1, probe=weak)
    head = masked_lm(place / "data" / "bert", "bert", sentences)
    probing.cloze(**quietly, model=str(head), corpus=bank, tokens=200, name="cloze")
    for step in (1, 2):
        shutil.copytree(model, data / f"step{step}")
    steps = str(data / "step*")
    probing.checkpoints(steps, **quietly, corpus=str(corpus), name="checkpoints", layer=1, probe=weak)
    encoder = {"n_layers": 1, "d_model": 32, "n_heads": 2, "d_feedforward": 32, "vocabulary": 100, "row_length": 16}
    training = {"steps": 6, "batch_size": 8, "warm_up": 2, "held_out_rows": 20, "checkpoint_factor": 4.0}
    own: dict[str, Any] = {"encoder": encoder, "training": training, "sentences": 60, "trainer": {"accelerator": "cpu"}}
    probing.pretrain(**quietly, corpus=str(corpus), name="pretraining", **own)
    for part, n, seed in (("train", 20, 0), ("dev", 20, 1)):
        write_wic(data / "wic", part, word_pairs(n, seed))
    probing.wic(str(data / "wic"), **quietly, model=str(model), layer=[2], name="wic")
    write_semeval(data / "STS12", "one", sentence_pairs(20, 0))
    probing.sts([str(data)], **quietly, model=str(model), layer=[2], name="sts", transforms="none")
    shape: dict[str, Any] = {"sentences": 3, "documents": 20, "top": 2, "draws": 1}
    probing.position_bias(**quietly, **shape, model=str(model), corpus=str(corpus), name="position-bias", sts=str(data))
    probing.trees(**{**on, "corpus": bank}, name="trees", layer=1, train_sentences=20, controls="none", rotations=0)
    points = {"probe.l2": {"values": [1e-5, 1e-2]}, "layer": {"value": 0}}
    (data / "sweep.yaml").write_text(yaml.safe_dump({"method": "grid", "parameters": points}), encoding="utf-8")
    probing.sweep(str(data / "sweep.yaml"), fit={"model": str(model), "corpus": str(corpus)}, **quietly, name="sweep")
    probing.reproduce("luo2021", str(model), "1-2,34", str(corpus), **quietly, name="claims")
    others = [path.parent for path in sorted(place.glob("*/results.json")) if path.parent.name not in few]
    return few | {path.name: path for path in others}


# --- damages ---

HUGE_TEXT = "x" * 5000
WRONG: list[Any] = [
    None, True, False, 0, 1, -1, 7, 10**30, -(10**400), 0.5, 1e308, float("nan"), float("inf"), "", "x", "a\0b", "3",
    "\ud800", "[bold]", "\x1b[31m", "../../etc", HUGE_TEXT, [], [1], ["x"], [[]], [None], {}, {"x": 1}, {"": []},
]  # fmt: skip


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Return every container with each of its keys."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [pair for key in keys for pair in [(value, key), *_parts(value[key])]]


def _document(draw: random.Random, value: Any) -> Any:
    """Change one part of a document: another value, another type, a part less, a part more, or another order."""
    parts = _parts(value)
    if not parts or draw.random() < 0.03:
        return draw.choice(WRONG)
    held, key = draw.choice(parts)
    how = draw.choice(["other", "other", "other", "less", "more", "nested", "reversed"])
    if how == "less":
        del held[key]
    elif how == "more" and isinstance(held, list):
        held.insert(key, draw.choice([held[key], *WRONG]))
    elif how == "nested":
        held[key] = [held[key]]
    elif how == "reversed" and isinstance(held, list):
        held.reverse()
    else:
        held[key] = draw.choice(WRONG)
    return value


def _json(draw: random.Random, path: Path) -> None:
    text = json.dumps(_document(draw, json.loads(path.read_text(encoding="utf-8"))))
    twice = text.replace("{", '{"kind": "geometry", "classes": [], ', 1)
    changed = draw.choice([text] * 12 + [twice, "[" * 100_000, f"{text}x", text + text])
    path.write_bytes(changed.encode("utf-8", "surrogatepass"))


def _yaml(draw: random.Random, path: Path) -> None:
    changed = _document(draw, yaml.safe_load(path.read_text(encoding="utf-8")))
    text = yaml.safe_dump(changed, sort_keys=False) if draw.random() < 0.9 else json.dumps(changed)
    first = text.split(":")[0]
    broken = [f"{text}\n{first}: 3\n", "[" * 5000, "a: &a [*a]", f"{text}\n\t- :"]
    path.write_text(draw.choice([text] * 12 + broken), encoding="utf-8")


CELLS = [
    "", "nan", "inf", "-inf", "1e400", "x", "-1", "9" * 30, "9" * 5000, "0.5", "0", "all", "True", "a\0b", "½", "1_0",
]  # fmt: skip


def _csv(draw: random.Random, path: Path) -> None:
    rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
    i, j = draw.randrange(len(rows)), draw.randrange(len(rows[0]))
    row = rows[i]
    how = draw.choice(["cell", "cell", "cell", "swap", "fewer", "more", "less", "twice", "column", "exchange", "head"])
    if how == "cell":
        row[j] = draw.choice(CELLS)
    elif how == "swap":
        other = draw.randrange(len(rows))
        rows[i], rows[other] = rows[other], rows[i]
    elif how == "fewer":
        del row[-1]
    elif how == "more":
        row.append("1")
    elif how == "less":
        del rows[i]
    elif how == "twice":
        rows.insert(i, row)
    elif how == "column":
        for each in rows:
            del each[j]
    elif how == "exchange":
        other = draw.randrange(len(row))
        row[j], row[other] = row[other], row[j]
    else:
        rows[0][j] = draw.choice([rows[0][0], "", "x", "layer"])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _tensors(draw: random.Random, path: Path) -> None:
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        about = file.metadata() or {}
    tensors = load_file(path)
    name = draw.choice(sorted(tensors))
    value = tensors[name]
    how = draw.choice(["nan", "inf", "layer", "width", "flat", "scalar", "empty", "type", "name", "about"])
    if how in ("nan", "inf") and value.size and value.dtype.kind == "f":
        value.flat[draw.randrange(value.size)] = float(how)
    elif how in ("layer", "width") and value.ndim:
        value = np.delete(value, 0, axis=0 if how == "layer" else -1)
    elif how == "flat":
        value = value.reshape(-1)
    elif how == "scalar":
        value = np.ones((), dtype=np.float32)
    elif how == "empty":
        value = value[:0]
    elif how == "type":
        value = np.zeros_like(value, dtype=draw.choice(["bool", "int64", "float16", "float64"]))
    tensors = {
        ("x" if how == "name" and key == name else key): value if key == name else t for key, t in tensors.items()
    }
    if how == "about" and about:
        about[draw.choice(sorted(about))] = draw.choice(["", "x", "[]", "{", "[1]", "null"])
    save_file({key: np.ascontiguousarray(t) for key, t in tensors.items()}, path, about)


def _bytes(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    how = draw.choice(["cut", "flip", "flip", "garbage", "empty", "ends", "nul"])
    at = draw.randrange(max(1, len(content)))
    if how == "cut":
        del content[at:]
    elif how == "flip" and content:
        content[at] ^= 1 << draw.randrange(8)
    elif how == "nul":
        content.insert(at, 0)
    elif how == "ends":
        content = bytearray(content.replace(b"\n", b"\r"))
    else:
        content = bytearray(draw.randbytes(200) if how == "garbage" else b"")
    path.write_bytes(content)


def _entry(draw: random.Random, path: Path) -> None:
    """Put something else where the file is: nothing, a folder, a link to itself, or another file of the run."""
    others = [other for other in sorted(path.parent.iterdir()) if other.is_file()]
    other = draw.choice(others).read_bytes()
    path.unlink()
    how = draw.choice(["gone", "folder", "link", "other", "pipe"])
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(path.name)
    elif how == "other":
        path.write_bytes(other)
    elif how == "pipe" and hasattr(os, "mkfifo"):
        os.mkfifo(path)


_BY_SUFFIX: Mapping[str, Callable[[random.Random, Path], None]] = {
    ".json": _json, ".yaml": _yaml, ".csv": _csv, ".safetensors": _tensors,
}  # fmt: skip


def damage(folder: Path, draw: random.Random) -> str:
    """Damage one file of a folder of results, and return which and how."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in _BY_SUFFIX and path.is_file()]
    path = draw.choice(files)
    how = draw.choice([_BY_SUFFIX[path.suffix]] * 6 + [_bytes, _entry])
    how(draw, path)
    return f"{path.name}, {how.__name__.strip('_')}"


# --- what reads a folder ---


def _opened(folder: Path) -> None:
    """Ask what `load_run` returns for everything that it offers."""
    made = probing.load_run(folder)
    repr(made)
    tables = [*made.by_name.values()]
    if isinstance(made, probing.Run):
        made._repr_html_()
        tables += [made.positions, made.heads, made.classes]
        assert np.isfinite(made.weight.numpy()).all()
        made.top(made.accuracy[-1]["layer"])
        assert made.transform
        if made.is_of_arrays:
            made.predict(np.zeros((2, made.weight.shape[2]), dtype=np.float32))
        else:
            assert made.test_sentences
            made.predict(["the probe reads the one layer ."])
    else:
        made.tables()
        made.conclusions()
    for table in tables:
        table.to_pandas()


def readers(kind: str, folder: Path, model: Path, cache: Path) -> dict[str, Callable[[], object]]:
    """Return what reads a folder of results of a kind, by its name."""
    place = folder.parent
    own: dict[str, Any] = {"quiet": True, "wandb": NO_WANDB, "cache": str(cache)}
    found: dict[str, Callable[[], object]] = {"load_run": lambda: _opened(folder)}
    if kind == "fit/rankings":
        return {**found, "rank": lambda: probing.rank(str(place), method="weight", layer=2, **own)}
    if kind != "sweep":
        fits = [str(place / "fit")] if kind in ("geometry", "wic", "sts") else []
        found["report"] = lambda: probing.report([*fits, str(folder)], output=str(place / "page.html"))
    if kind in ("fit", "labels", "clipped", "outputs", "numbers"):
        run, more = str(folder), {**own, "runs": str(place)}
        short: dict[str, Any] = {"kinds": "zero", "readouts": "position", "top": 1, "retrain": 0, "tokens": 60}
        found |= {
            "rank": lambda: probing.rank(run, method="contribution", layer=2, **own),
            "erase": lambda: probing.rank(run, method="contribution", layer=2, erase=True, top=2, **own),
            "compare": lambda: probing.compare([run, str(place / "twin")], **more, null_draws=1, top=3),
            "ablate": lambda: probing.ablate(run=run, kinds="mean", units="heads", layer=2, retrain=0, **more),
            "neurons": lambda: probing.ablate(run=run, neurons="ranked", **short, **more),
            "attention": lambda: probing.attention(model=str(model), run=run, parts="position_neurons", **more),
        }
    return found


def ended(call: Callable[[], object]) -> str:
    """Return the message with which a call refused; empty if it succeeded. Any other exception goes through."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            call()
        except (UserError, RunError) as error:
            return str(error)
    return ""


def damaged_copy(kind: str, folders: Mapping[str, Path], place: Path, draw: random.Random) -> tuple[Path, str]:
    """Copy a folder of results, and what is read beside it, and damage the copy; return it and what was done."""
    folder = folders[kind]
    top = folders["fit"].parent
    for name in sorted({"fit", "twin", kind.split("/")[0]}):
        shutil.copytree(top / name, place / name, ignore=shutil.ignore_patterns("figures", "*.html", "trials"))
    own = place / folder.relative_to(top)
    damaged = own.parent if kind == "fit/rankings" and draw.random() < 0.5 else own
    return own, damage(damaged, draw)


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


_FILES_BY_SUFFIX: Mapping[str, Sequence[Callable[[random.Random, Path], None]]] = {
    ".npy": (_npy,), ".safetensors": (_header_of_safetensors, _tensors), ".pt": (_objects_of_torch,),
    ".pth": (_objects_of_torch,), ".json": (_texts,), ".zarray": (_texts,), ".zgroup": (_texts,),
}  # fmt: skip


def _damage(draw: random.Random, place: Path) -> str:
    """Damage one file of a folder, or a file, and return which and how."""
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    described = [path for path in files if path.suffix in _FILES_BY_SUFFIX or path.name in _FILES_BY_SUFFIX]
    path = draw.choice(described) if described and draw.random() < 0.7 else draw.choice(files)
    how = draw.choice([*(_FILES_BY_SUFFIX.get(path.suffix) or _FILES_BY_SUFFIX.get(path.name) or ()), _bytes])
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
