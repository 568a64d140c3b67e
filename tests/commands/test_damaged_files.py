"""Whatever is in a file of activations, the folder of a model or the answer of a hub: it is read, or one sentence."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import probing
from damaged_runs import HostileHub, damaged_activations, damaged_model, ended, make_few, write_activations
from loopback_hub import loopback_hub

pytestmark = pytest.mark.filterwarnings("ignore")

# What reads a damaged copy, and how it was damaged.
Damaged = tuple[str, Callable[[], object]]


def try_damages(n: int, place: Path, make: Callable[[Path, random.Random], Damaged]) -> Counter[str]:
    """Damage `n` copies and read each; what is neither read nor refused by a sentence fails with its seed."""
    counts: Counter[str] = Counter()
    for seed in range(n):
        folder, draw = place / str(seed), random.Random(seed)
        folder.mkdir()
        how, read = make(folder, draw)
        try:
            said = ended(read)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {how}") from error
        counts["refused" if said else "read"] += 1
        shutil.rmtree(folder)
    print(dict(counts))
    return counts


@pytest.mark.parametrize("n", [100, pytest.param(2000, marks=pytest.mark.fuzz)])
def test_damaged_activations_are_read_or_refused(n: int, tmp_path: Path) -> None:
    write_activations(tmp_path / "valid")
    counts = try_damages(n, tmp_path, lambda place, draw: damaged_activations(tmp_path / "valid", place, draw))
    assert min(counts["refused"], counts["read"]) > n / 10


@pytest.mark.parametrize("n", [pytest.param(10, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.fuzz)])
def test_damaged_models_are_read_or_refused(n: int, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    counts = try_damages(n, tmp_path, lambda place, draw: damaged_model(checkpoints["bert"], place, draw))
    assert min(counts["refused"], counts["read"]) > n / 10


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HostileHub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its tries
    with loopback_hub(HostileHub) as opened:
        yield opened


@pytest.mark.parametrize("n", [pytest.param(20, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.fuzz)])
def test_answers_of_a_hub_are_taken_or_refused(
    n: int, checkpoints: dict[str, Path], corpus_file: Path, hub: HostileHub, tmp_path: Path
) -> None:
    run = make_few(checkpoints["bert"], corpus_file, tmp_path / "runs")["fit"]
    probing.load_run(run).push("some/run", endpoint=hub.address)

    def make(place: Path, draw: random.Random) -> Damaged:
        how = hub.damage(draw)
        return how, lambda: probing.pull("some/run", place / "run", endpoint=hub.address)

    counts = try_damages(n, tmp_path, make)
    assert not list(tmp_path.glob("*/.run.*"))
    assert counts["refused"] > counts["read"] > 0
