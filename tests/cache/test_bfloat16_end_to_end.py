"""Whoever reads a cache in bfloat16 finds what the same numbers give in float32, in every table, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import BARE_ARGS
from probing.__main__ import COMMANDS
from probing.cache.store import ActivationStore, entries
from probing.cli.commandline import run
from probing.tables.conclusions import scope

DTYPES = ("bfloat16", "float32")
BARE = " ".join(BARE_ARGS)
# What the model computes again has other numbers in bfloat16: these commands read the cache alone.
READERS = {
    "fit": ["fit --name=made --replicates=2 --controls=shuffled --given=token --transform=whiten"],
    "rank": [
        f"fit --name=made {BARE}",
        "rank runs/made --layer=2 --method=contribution,anova,gaussian --erase --top=5",
    ],
    "compare": [f"fit --name={name} --layer=2 --seed={seed} {BARE}" for seed, name in enumerate("ab")]
    + ["compare runs/a runs/b --name=made"],
    "geometry": ["geometry --name=made --transforms=all --estimators=all --position"],
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
    assert entry.store is not None
    return entry.store


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")
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
            assert run(COMMANDS, [name, *(read if name in ("fit", "geometry") else []), *args, *cache]) == 0
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
        "The model ran in bfloat16 and its activations are kept so: --dtype float32 gives them without this rounding."
    )
    assert "float32" not in said("float32")
