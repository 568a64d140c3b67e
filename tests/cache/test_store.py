"""An entry of the cache on disk: what it holds, what becomes of damage, and several processes that share it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

import fault_loop
from conftest import BARE_ARGS
from fault_loop import contents, extract_with_small_shards, in_two_ranks, processes
from probing.__main__ import COMMANDS
from probing.activations import ActivationStore as ProcessesActivationStore
from probing.activations import store as store_module
from probing.activations.store import (
    FORMAT,
    MANIFEST,
    TOKENS,
    ActivationStore,
    DamagedCache,
    Entry,
    StorePlan,
    WorkPlan,
    WorkStore,
    divide,
    entries,
    leftovers,
)
from probing.cli.commandline import run
from probing.errors import RunError, UserError
from probing.interventions.passes import opened
from probing.runtime.processes import check_ranks, is_main_process
from probing.tables.conclusions import scope
from probing.text.tokens import Tokens

N_LAYERS = 2


def make_store(
    folder: Path, d_model: int = 8, dtype: str = "float32", n: int = 12, size: int = 40, batch_tokens: int = 64
) -> ActivationStore:
    """Make an entry for sentences of 3 to 14 tokens, without activations."""
    lengths = np.array([3 + 7 * k % 12 for k in range(n)], dtype=np.int32)
    total = int(lengths.sum())
    tokens = Tokens(lengths, np.arange(total, dtype=np.int32), np.zeros(total, dtype=np.int16), n_truncated=1)
    plan = StorePlan({"model": "abc", "dtype": dtype}, N_LAYERS, d_model, dtype, batch_tokens, divide(lengths, size))
    return ActivationStore.create(folder, plan, tokens, {"model": "tiny", "corpus": "made up"})


def states_of(store: ActivationStore, layer: int, shard: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * layer + shard)
    shape = (store.plan.shards[shard].n_tokens, store.plan.d_model)
    return torch.randn(shape, generator=generator).to(getattr(torch, store.plan.dtype))


def fill(store: ActivationStore, layers: tuple[int, ...] = (0, 1, 2)) -> ActivationStore:
    for shard in store.plan.shards:
        for layer in layers:
            store.write(layer, shard.index, states_of(store, layer, shard.index))
    return store


@pytest.fixture
def store(tmp_path: Path) -> ActivationStore:
    return fill(make_store(tmp_path / "entry"))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- what it holds ---


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_read_is_what_was_written(tmp_path: Path, dtype: str) -> None:
    fill(make_store(tmp_path / "entry", dtype=dtype))
    again = ActivationStore(tmp_path / "entry")
    assert len(again.plan.shards) > 2
    for shard in again.plan.shards:
        for layer in range(N_LAYERS + 1):
            assert torch.equal(again.read(layer, shard.index), states_of(again, layer, shard.index))
    assert again.layers() == [0, 1, 2]
    assert again.missing([0, 1, 2]) == {}
    assert again.damaged([0, 1, 2]) == []


def test_what_is_recorded_was_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure, a file that the manifest has is whole: the file is synced, its name, and then the line."""
    store = make_store(tmp_path / "entry")
    synced: list[tuple[int, int]] = []

    def note(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))

    monkeypatch.setattr(os, "fsync", note)
    recorded = (tmp_path / "entry" / MANIFEST).stat()
    store.write(1, 0, states_of(store, 1, 0))
    path = store.path(1, 0)
    assert [inode for inode, _ in synced] == [one.stat().st_ino for one in (path, path.parent, store.folder / MANIFEST)]
    assert synced[0][1] == path.stat().st_size
    assert synced[-1][1] == (tmp_path / "entry" / MANIFEST).stat().st_size > recorded.st_size


def test_a_file_stays_mapped_until_it_is_written_anew(store: ActivationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.read(1, 0)
    assert store.read(1, 0).data_ptr() == before.data_ptr()
    store.write(1, 0, before + 1)
    assert torch.equal(store.read(1, 0), before + 1)
    monkeypatch.setattr(store_module, "MOST_MAPPED", 0)
    fresh = ActivationStore(store.folder)
    assert torch.equal(fresh.read(1, 0), before + 1)
    assert not fresh._mapped


def test_plan_tokens_and_description_survive(store: ActivationStore) -> None:
    again = ActivationStore(store.folder)
    assert again.plan == store.plan
    assert again.plan.key == {"model": "abc", "dtype": "float32"}
    assert again.header["corpus"] == "made up"
    assert again.tokens.n_truncated == 1
    assert again.tokens.lengths.sum() == again.plan.n_tokens
    rows = [shard.rows(again.tokens) for shard in again.plan.shards]
    assert [row for rows_of in rows for row in range(rows_of.start, rows_of.stop)] == list(range(again.plan.n_tokens))


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_a_token_takes_its_width_and_at_most_two_percent(tmp_path: Path, dtype: str, itemsize: int) -> None:
    store = fill(make_store(tmp_path / "entry", d_model=384, dtype=dtype, n=400, size=1024))
    floor = 384 * itemsize * store.plan.n_tokens
    for layer in range(N_LAYERS + 1):
        on_disk = sum(path.stat().st_size for path in (store.folder / f"layer_{layer:02d}").iterdir())
        assert floor < on_disk <= 1.02 * floor
    # With the table of tokens and the manifest, though there are few layers to share them.
    assert sum((store.folder / name).stat().st_size for name in files(store.folder)) <= 1.02 * floor * (N_LAYERS + 1)


def test_only_what_is_not_recorded_is_missing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "entry")
    everything = {shard.index: [0, 2] for shard in store.plan.shards}
    assert store.missing([0, 2]) == everything
    fill(store, layers=(0,))
    assert store.layers() == [0]
    assert store.missing([0, 2]) == {shard: [2] for shard in everything}
    assert store.missing([0]) == {}
    assert store.missing([0], damaged=[(0, 1)]) == {1: [0]}


def test_nothing_but_the_entry_is_left(store: ActivationStore) -> None:
    layers = [f"layer_{layer:02d}/{shard.index:06d}.safetensors" for layer in range(3) for shard in store.plan.shards]
    assert set(files(store.folder)) - {"manifest.lock"} == {MANIFEST, TOKENS, *layers}
    assert [path.name for path in store.folder.parent.iterdir()] == ["entry"]


def test_using_an_entry_is_noted(store: ActivationStore) -> None:
    for path in (*store.folder.glob("*"), store.folder):
        os.utime(path, (1000, 1000))
    assert Entry(store.folder, store).last_used == 1000
    store.touch()
    assert Entry(store.folder, store).last_used > 1e9


# --- the manifest ---


def change_line(folder: Path, index: int, change: Callable[[bytes], bytes]) -> None:
    lines = (folder / MANIFEST).read_bytes().splitlines(keepends=True)
    before, lines[index] = lines[index], change(lines[index])
    assert lines[index] != before
    (folder / MANIFEST).write_bytes(b"".join(lines))


# Ways in which a line of the manifest is no longer what was written.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a digit changed": lambda line: line.replace(b'"sha256": "', b'"sha256": "0', 1),
    "other record": lambda line: line.replace(b'"shard": ', b'"shard": 1', 1),
    "zeros": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "no JSON": lambda line: b"garbage\n",
    "JSON of another kind": lambda line: b"[1, 2]\n",
    "a number": lambda line: b"17\n",
    "no UTF-8": lambda line: b"\xff\xfe" + line,
    "no record": lambda line: b'{"check": "0"}\n',
    "empty": lambda line: b"\n",
    "torn": lambda line: line[: len(line) // 2],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_last_line_is_the_same_as_no_line(store: ActivationStore, damage: str) -> None:
    last = (N_LAYERS, len(store.plan.shards) - 1)
    assert last in store.records()
    change_line(store.folder, -1, DAMAGE[damage])
    again = ActivationStore(store.folder)
    assert again.missing([0, 1, 2]) == {last[1]: [last[0]]}
    again.write(*last, states_of(again, *last))
    # The new line does not run on from what was torn.
    assert ActivationStore(store.folder).missing([0, 1, 2]) == {}
    assert ActivationStore(store.folder).damaged([0, 1, 2]) == []


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "torn"])
def test_a_damaged_line_costs_its_own_shard_only(store: ActivationStore, damage: str) -> None:
    change_line(store.folder, 2, DAMAGE[damage])  # the header, layer 0 of the first shard, layer 1
    assert ActivationStore(store.folder).missing([0, 1, 2]) == {0: [1]}


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name not in ("a digit changed", "other record")])
def test_a_damaged_header_is_never_trusted(store: ActivationStore, damage: str) -> None:
    change_line(store.folder, 0, DAMAGE[damage])
    with pytest.raises(DamagedCache, match=MANIFEST):
        ActivationStore(store.folder)


@pytest.mark.parametrize(
    "lose",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:])),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"n_layers": 2', b'"n_layers": 3')),
    ],
    ids=["no manifest", "empty manifest", "no first line", "another plan"],
)
def test_an_entry_that_lost_its_plan_is_damaged(store: ActivationStore, lose: Callable[[Path], Any]) -> None:
    lose(store.folder / MANIFEST)
    with pytest.raises(DamagedCache, match=MANIFEST):
        ActivationStore(store.folder)


def rewrite_header(folder: Path, **changes: Any) -> None:
    def change(line: bytes) -> bytes:
        return store_module._line({**json.loads(line)["record"], **changes}).encode()

    change_line(folder, 0, change)


def test_an_entry_of_a_newer_version_is_refused_and_kept(store: ActivationStore) -> None:
    rewrite_header(store.folder, format=FORMAT + 1)
    with pytest.raises(RunError, match=rf"newer version .*format {FORMAT + 1}, this one reads {FORMAT}.*upgrade"):
        ActivationStore(store.folder)


def test_an_entry_of_an_older_version_is_made_anew(store: ActivationStore) -> None:
    rewrite_header(store.folder, format=FORMAT - 1)
    with pytest.raises(DamagedCache):
        ActivationStore(store.folder)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_changed_table_of_tokens_is_found(store: ActivationStore) -> None:
    flip(store.folder / TOKENS, -1)
    with pytest.raises(DamagedCache, match=TOKENS):
        ActivationStore(store.folder)


# --- shards ---


@pytest.mark.parametrize("at", [0, 60, -1], ids=["length of the header", "header", "last number"])
def test_one_flipped_bit_is_found(store: ActivationStore, at: int) -> None:
    flip(store.path(1, 2), at)
    assert store.damaged([0, 1, 2]) == [(1, 2)]
    assert store.damaged([0, 2]) == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b""), lambda path: flip(path, -1)])
def test_damage_is_mended_by_writing_the_shard_again(store: ActivationStore, damage: Callable[[Path], Any]) -> None:
    path = store.path(2, 0)
    before = path.read_bytes()
    damage(path)
    assert store.damaged(range(3)) == [(2, 0)]
    assert store.missing(range(3), store.damaged(range(3))) == {0: [2]}
    store.write(2, 0, states_of(store, 2, 0))
    assert path.read_bytes() == before
    assert ActivationStore(store.folder).damaged(range(3)) == []


def test_a_shard_exchanged_for_another_is_found(store: ActivationStore) -> None:
    store.path(0, 1).write_bytes(store.path(1, 1).read_bytes())
    assert store.damaged(range(3)) == [(0, 1)]


# --- a disk that does not take it ---


def no_space(*args: Any, **keywords: Any) -> None:
    raise OSError(28, "No space left on device")


def torn_write(tensors: dict[str, Tensor], path: Path, metadata: Any = None) -> None:
    """Leave half of the file and fail, as safetensors does on a full disk."""
    path.write_bytes(safetensors.torch.save(tensors)[:50])
    raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("module", "name", "fails"),
    [
        (safetensors.torch, "save_file", torn_write),
        (safetensors.torch, "save_file", no_space),
        (store_module, "_sync", no_space),
        (Path, "replace", no_space),
    ],
    ids=["half a file", "no file", "sync", "rename"],
)
def test_a_write_that_fails_leaves_nothing_and_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, fails: Callable[..., Any]
) -> None:
    store = make_store(tmp_path / "entry")
    store.write(0, 0, states_of(store, 0, 0))
    before = files(store.folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fails)
        with pytest.raises(OSError, match="No space left"):
            store.write(0, 1, states_of(store, 0, 1))
    assert files(store.folder) == before
    assert list(store.records()) == [(0, 0)]
    store.write(0, 1, states_of(store, 0, 1))
    assert ActivationStore(store.folder).damaged([0]) == []


def test_a_failed_rewrite_keeps_the_shard_that_was_there(store: ActivationStore, monkeypatch: Any) -> None:
    before = store.path(0, 1).read_bytes()
    monkeypatch.setattr(safetensors.torch, "save_file", torn_write)
    with pytest.raises(OSError, match="No space left"):
        store.write(0, 1, states_of(store, 1, 1))
    assert store.path(0, 1).read_bytes() == before


@pytest.mark.parametrize("name", ["_sync", "_checksum"])
def test_an_entry_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(store_module, name, no_space)
    with pytest.raises(UserError, match="No space left"):
        make_store(tmp_path / "entry")
    assert list(tmp_path.iterdir()) == []


# --- entries of a cache ---


def test_entries_are_listed_by_name_and_nothing_else_is(tmp_path: Path) -> None:
    a, b, c, d = (tmp_path / f"{letter}-{letter * 16}" for letter in "abcd")
    for folder in (b, a, c, d):
        make_store(folder)
    make_store(tmp_path / "somebody's own folder")
    (tmp_path / f"e-{'e' * 16}").mkdir()
    (c / MANIFEST).write_text("damaged", encoding="utf-8")
    rewrite_header(d, format=FORMAT + 1)
    found = [(entry.folder, entry.store is not None, entry.trouble) for entry in entries(tmp_path)]
    assert found == [(a, True, ""), (b, True, ""), (c, False, "damaged"), (d, False, "of a newer version")]
    assert entries(tmp_path / "nowhere") == []


def test_leftovers_are_what_is_half_written(store: ActivationStore) -> None:
    half = store.folder / "layer_00" / "000000.safetensors.partial-77"
    half.write_bytes(b"x")
    assert leftovers(store.folder) == [half]


# --- a plan made anew ---


@pytest.mark.parametrize("lose", ["header", "tokens", "tokens gone"])
def test_shards_outlive_the_loss_of_their_plan(store: ActivationStore, lose: str) -> None:
    inodes = {path: path.stat().st_ino for path in store.folder.glob("layer_*/*")}
    if lose == "header":
        change_line(store.folder, 0, DAMAGE["zeros"])
    elif lose == "tokens":
        flip(store.folder / TOKENS, -1)
    else:
        (store.folder / TOKENS).unlink()
    with pytest.raises(DamagedCache):
        ActivationStore(store.folder)
    again = make_store(store.folder)
    assert again.missing([0, 1, 2]) == {}
    assert again.damaged([0, 1, 2]) == []
    assert {path: path.stat().st_ino for path in store.folder.glob("layer_*/*")} == inodes


def test_shards_of_another_plan_do_not(store: ActivationStore) -> None:
    (store.folder / TOKENS).unlink()
    again = make_store(store.folder, batch_tokens=999)
    assert again.records() == {}


def test_results_of_passes_that_were_planned_like_layers_are_planned_again_and_kept(tmp_path: Path) -> None:
    tokens = make_store(tmp_path / "states").tokens
    plan = WorkPlan.of_whole_text({"a": 1}, "{n} files", 4, tokens, 64)
    former = StorePlan(plan.key, 3, 0, plan.dtype, plan.batch_tokens, plan.shards)
    folder = ActivationStore.create(tmp_path / "passes", former, tokens, {}).folder
    ActivationStore(folder).write_tensors(2, 0, {"right": torch.arange(3)})
    with pytest.raises(DamagedCache):
        WorkStore(folder)
    store = WorkStore.opened(folder, lambda: (plan, tokens), {})
    assert store.unfinished([1, 2, 3]) == [1, 3]
    assert store.get(2)["right"].tolist() == [0, 1, 2]
    with pytest.raises(DamagedCache):
        ActivationStore(folder)


def test_a_cache_that_cannot_be_written_is_named_by_whoever_takes_its_lock(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    source: Any = SimpleNamespace(cache=tmp_path / "cache", model=SimpleNamespace(short_name="tiny"), say=print)
    read = make_store(tmp_path / "states")
    with pytest.raises(UserError, match="cannot be written"), opened(source, {}, read, read.tokens, 1, "ablate"):
        pass


# --- a manifest that means harm ---


@pytest.mark.parametrize(
    "record",
    [
        {"layer": 0, "shard": 10**9},
        {"layer": -1, "shard": 0},
        {"layer": "../../..", "shard": 0},
        {"layer": 0, "shard": "../../../etc/passwd"},
        {"layer": [0], "shard": {"a": 1}},
        {"layer": None, "shard": None},
    ],
)
def test_a_record_cannot_point_outside_the_entry(store: ActivationStore, record: dict[str, Any]) -> None:
    plan_id = store_module._plan_id(store.header)
    with (store.folder / MANIFEST).open("a", encoding="utf-8") as file:
        file.write(store_module._line({**record, "sha256": "0" * 64, "plan": plan_id}))
    again = ActivationStore(store.folder)
    assert again.records() == store.records()
    assert again.damaged([0, 1, 2]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "__class__"},
        {"shards": "../../.."},
        {"shards": [["a", 1, 2]]},
        {"shards": [[1, 2]]},
        {"n_layers": None},
        {"format": "1"},
        {"format": None},
    ],
)
def test_a_header_of_another_shape_is_damage(store: ActivationStore, changes: dict[str, Any]) -> None:
    rewrite_header(store.folder, **changes)
    with pytest.raises(DamagedCache):
        ActivationStore(store.folder)


DTYPES = ("bfloat16", "float32")
BARE = " ".join(BARE_ARGS)
# What the model computes again has other numbers in bfloat16: these commands read the cache alone.
READERS = {
    "fit": ["fit --name=made --replicates=2 --controls=shuffled --control_for=token --transform=whiten"],
    "rank": [
        f"fit --name=made {BARE}",
        "rank runs/made --layer=2 --method=contribution,anova,gaussian --erase --top=5",
    ],
    "compare": [f"fit --name={name} --layer=2 --seed={seed} {BARE}" for seed, name in enumerate("ab")]
    + ["compare runs/a runs/b --name=made"],
    "geometry": ["geometry --name=made --transforms=all --estimators=all"],
    "position": ["position --name=made"],
}


@pytest.fixture(scope="module")
def caches(checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and for each dtype a cache of its activations; both caches hold the same numbers."""
    base = tmp_path_factory.mktemp("dtypes")
    (base / "text.txt").write_text("".join(f"{one}\n" for one in sentences[:60]), encoding="utf-8")
    for dtype in DTYPES:
        read = [f"--model={checkpoints['bert']}", f"--corpus={base / 'text.txt'}", "--layer=1-2", f"--dtype={dtype}"]
        assert run(COMMANDS, ["extract", *read, f"--cache={base / dtype}", "--quiet"]) == 0
    half, whole = (store_of(base / dtype) for dtype in DTYPES)
    assert half.folder.name != whole.folder.name
    for layer, shard in half.records():
        assert half.read(layer, shard).dtype == torch.bfloat16
        assert 1.9 < whole.path(layer, shard).stat().st_size / half.path(layer, shard).stat().st_size < 2.1
        whole.write(layer, shard, half.read(layer, shard).float())
    return base


def store_of(cache: Path) -> ActivationStore:
    (entry,) = entries(cache)
    return ActivationStore(entry.folder)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_tables_are_those_of_the_same_numbers_in_float32(
    caches: Path, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reader: str
) -> None:
    tables = {}
    for dtype in DTYPES:
        (folder := tmp_path / dtype).mkdir()
        monkeypatch.chdir(folder)
        cache = [f"--cache={caches / dtype}", "--quiet", "--wandb.mode=disabled"]
        read = [f"--model={checkpoints['bert']}", f"--corpus={caches / 'text.txt'}", f"--dtype={dtype}", "--layer=1-2"]
        for command in READERS[reader]:
            name, *args = command.split()
            assert run(COMMANDS, [name, *(read if name in ("fit", "geometry", "position") else []), *args, *cache]) == 0
        tables[dtype] = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.csv")}
        assert [entry.folder.name for entry in entries(caches / dtype)] == [store_of(caches / dtype).folder.name]
    half, whole = tables.values()
    assert len(half) > 1
    assert half.keys() == whole.keys()
    assert [name for name in half if half[name] != whole[name]] == []


def test_a_run_says_that_its_activations_are_rounded() -> None:
    def said(dtype: str) -> str:
        cache = {"train": {"key": {"dtype": dtype}}}
        return scope({"intervals_over": {"unit": "sentence", "n": 30}, "cache": cache}, None)

    assert said("bfloat16").endswith(
        "The model ran in bfloat16 and its activations are stored in bfloat16: --dtype float32 avoids this rounding."
    )
    assert "float32" not in said("float32")


LAYERS = [0, 1, 2, 3]
SHARD_TOKENS = 300
# Long enough for a busy machine; nothing waits so long unless something is wrong.
PATIENCE_S = 600


@pytest.fixture(scope="module")
def uninterrupted(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What an entry of the tiny BERT holds after an extraction that nobody disturbed, in a process of its own."""
    cache = tmp_path_factory.mktemp("uninterrupted")
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, cache, SHARD_TOKENS)
    process = processes().Process(target=extract_with_small_shards, args=arguments)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    found = contents(cache)
    assert len(found) > 4 * 20  # many shards of four layers
    return found


def watched(events: Any, results: Any, disturb: Callable[..., None], *arguments: Any) -> None:
    """Extract in this process; send what was said, how many shards were extracted, and how it ended."""
    import signal

    import pytorch_lightning as pl

    # A shell that starts the tests in the background makes its children deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    said: list[str] = []
    extracted: list[int] = []

    def say(message: str) -> None:
        said.append(message)
        if "waiting for another process" in message:
            events.set()

    class Watch(pl.Callback):
        def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            disturb("start", events)

        def on_predict_batch_end(self, *args: Any, **keywords: Any) -> None:
            extracted.append(1)
            disturb("shard", events)

    end = "whole"
    try:
        extract: Callable[..., None] = extract_with_small_shards
        extract(*arguments, say=say, callbacks=[Watch()])
    except BaseException as error:
        end = type(error).__name__
    results.put((said, len(extracted), end))


def wait_for_the_other(moment: str, events: Any) -> None:
    """Hold the lock until another process has found it taken."""
    if moment == "start":
        assert events.wait(PATIENCE_S)


def let_be(moment: str, events: Any) -> None:
    """Disturb nothing."""


def die(moment: str, events: Any) -> None:
    """Die while the lock is held, one shard is whole and the next, extracted, may be half-written."""
    if moment == "shard" and events.is_set():
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "shard":
        events.set()


def interrupt(moment: str, events: Any) -> None:
    """Press Ctrl+C after a shard."""
    if moment == "shard":
        os.kill(os.getpid(), signal.SIGINT)


def tell_what_is_there(results: Any) -> None:
    """Send whether this process was forked with the program imported, and with all of it set aside."""
    import gc
    import sys

    results.put(("probing.studies.fit" in sys.modules, gc.get_freeze_count() > 100_000))


@pytest.mark.slow
def test_processes_start_with_everything_imported_and_out_of_the_searches_for_garbage() -> None:
    context = processes()
    results = context.Queue()
    job = context.Process(target=tell_what_is_there, args=(results,))
    job.start()
    assert results.get(timeout=PATIENCE_S) == (True, True)
    job.join(PATIENCE_S)


@pytest.mark.slow
def test_two_processes_ask_at_once_and_one_extracts(
    checkpoints: dict[str, Path], sentences: list[str], uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    context = processes()
    waiting, results = context.Event(), context.Queue()
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, tmp_path, SHARD_TOKENS)
    jobs = [context.Process(target=watched, args=(waiting, results, wait_for_the_other, *arguments)) for _ in range(2)]
    for job in jobs:
        job.start()
    (said_a, n_a, end_a), (said_b, n_b, end_b) = sorted((results.get(timeout=PATIENCE_S) for _ in jobs), key=len_said)
    for job in jobs:
        job.join(PATIENCE_S)
    assert (end_a, end_b) == ("whole", "whole")
    assert n_a > 20  # this one extracted every shard
    assert n_b == 0  # and this one read them
    assert said_a == []
    assert len(said_b) == 1
    assert str(next(tmp_path.glob("tiny-bert-*/"))) in said_b[0]
    assert contents(tmp_path) == uninterrupted


def len_said(result: tuple[list[str], int, str]) -> int:
    return len(result[0])


@pytest.mark.slow
def test_a_process_that_dies_with_the_lock_blocks_nobody_and_loses_nothing(
    checkpoints: dict[str, Path], sentences: list[str], uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    context = processes()
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, tmp_path, SHARD_TOKENS)
    events, results = context.Event(), context.Queue()
    job = context.Process(target=watched, args=(events, results, die, *arguments))
    job.start()
    job.join(PATIENCE_S)
    assert job.exitcode == -signal.SIGKILL
    kept = {path: path.stat().st_ino for path in tmp_path.glob("*/layer_*/000000.safetensors")}
    assert len(kept) == len(LAYERS)
    assert not list(tmp_path.glob("*/layer_*/000002.safetensors"))
    after = context.Process(target=watched, args=(events, results, let_be, *arguments))
    after.start()
    said, _, end = results.get(timeout=PATIENCE_S)
    after.join(PATIENCE_S)
    assert (said, end) == ([], "whole")
    assert {path: path.stat().st_ino for path in kept} == kept
    assert contents(tmp_path) == uninterrupted


@pytest.mark.slow
def test_ctrl_c_is_an_interruption_and_not_lightnings_exit(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    context = processes()
    events, results = context.Event(), context.Queue()
    arguments = (str(checkpoints["bert"]), sentences, LAYERS, tmp_path, SHARD_TOKENS)
    job = context.Process(target=watched, args=(events, results, interrupt, *arguments))
    job.start()
    _, n_extracted, end = results.get(timeout=PATIENCE_S)
    job.join(PATIENCE_S)
    assert (n_extracted, end) == (1, "KeyboardInterrupt")


@pytest.mark.slow
def test_no_fault_loses_anything_or_makes_a_wrong_table(capsys: pytest.CaptureFixture[str]) -> None:
    status = fault_loop.main(["--faults", "4", "--seed", "1"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert re.search(r"4 faults in \d+ s: 0 things lost or wrong", said)


# --- ranks ---


def type_extract(args: list[str], shard_tokens: int | None) -> int:
    """Type `probing extract` in a rank; the second one is slow, so that the first has done its share long before."""
    from probing.__main__ import COMMANDS
    from probing.cli.commandline import run
    from probing.runtime.processes import is_main_process

    if shard_tokens:
        fault_loop.small_shards(shard_tokens)
    write = ProcessesActivationStore.write

    def write_slowly(self: ProcessesActivationStore, layer: int, shard: int, hidden_states: torch.Tensor) -> None:
        time.sleep(0 if is_main_process() else 0.03)
        write(self, layer, shard, hidden_states)

    ProcessesActivationStore.write = write_slowly  # type: ignore[method-assign]
    return run(COMMANDS, ["extract", *args])


def extract_in_two_ranks(model: Path, corpus: Path, cache: Path, shard_tokens: int | None) -> str:
    args = [
        "--model", str(model), "--corpus", str(corpus), "--batch_tokens", "256", "--cache", str(cache),
        "--trainer.accelerator", "cpu",
    ]  # fmt: skip
    first, second = in_two_ranks(type_extract, args, shard_tokens)
    assert (first.found, second.found) == (0, 0), first.error
    assert not second.out
    return first.out


@pytest.mark.slow
def test_two_ranks_give_the_bytes_of_one(
    checkpoints: dict[str, Path], sentences: list[str], uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    (corpus := tmp_path / "sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
    said = extract_in_two_ranks(checkpoints["bert"], corpus, tmp_path / "cache", SHARD_TOKENS)
    assert said.count(f"tokens of {len(sentences)} sentences") == 1
    found = contents(tmp_path / "cache")
    shards = [name for name in uninterrupted if "layer_" in name]
    assert {name: found[name] for name in shards} == {name: uninterrupted[name] for name in shards}
    assert records(found) == records(uninterrupted)
    (manifest,) = (tmp_path / "cache").glob(f"*/{fault_loop.MANIFEST}")
    assert len(manifest.read_text(encoding="utf-8").splitlines()) == 1 + len(
        shards
    )  # no rank repeated the work of the other


def records(found: dict[str, bytes]) -> list[bytes]:
    """The manifest without its header, which names the corpus as it was typed."""
    (manifest,) = (content for name, content in found.items() if name.endswith(fault_loop.MANIFEST))
    return manifest.split(b"\n")[1:]


@pytest.mark.slow
def test_a_rank_that_is_left_without_a_shard_waits_for_the_other(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    extract_in_two_ranks(checkpoints["bert"], corpus_file, tmp_path, None)
    assert len(list(tmp_path.glob("*/layer_*/*.safetensors"))) == len(LAYERS)  # the corpus is one shard


# --- which rank is this ---


@pytest.mark.parametrize(
    ("variables", "main"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),  # torchrun, second machine
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "3"}, True),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "1"}, False),
        ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, False),  # Lightning's own launcher, second machine
        ({"NODE_RANK": "1"}, False),
    ],
)
def test_one_process_of_a_job_is_the_main_one(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], main: bool
) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_main_process() is main


LIGHTNING = {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "2", "RANK": "0"}, ""),
        (LIGHTNING, ""),
        (TORCHRUN, ""),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}, ""),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE=2 RANK=1 in the environment .* unset WORLD_SIZE, RANK."),
        ({"RANK": "1", "MASTER_ADDR": "a"}, "RANK=1 in the environment"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 in the environment"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "one is missing or no number"),
        ({**TORCHRUN, "WORLD_SIZE": "two"}, "one is missing or no number"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, "one is missing or no number"),
        ({"SLURM_NTASKS": "x"}, "one is missing or no number"),
    ],
)
def test_variables_that_an_earlier_job_has_left_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")] + [*LIGHTNING, *TORCHRUN]:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not words:
        check_ranks()
        return
    with pytest.raises(UserError, match=words):
        check_ranks()
