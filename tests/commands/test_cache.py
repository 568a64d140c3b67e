"""`cache ls`, `cache verify` and `cache prune` as they are typed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from conftest import N_LAYERS
from fault_loop import processes
from probing import commands as commands_of_cache
from probing.__main__ import COMMANDS
from probing.activations import ActivationStore, Request, activations, store
from probing.activations import store as cache_store
from probing.activations.store import MANIFEST, DamagedCache, FileLease
from probing.cli.commandline import run
from probing.commands import prune, verify
from probing.errors import UserError
from probing.models import resolve_model
from probing.runs.folder import ResumableFolder, RunFolder
from probing.text import from_sentences

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.

DAY_S = 86_400


@pytest.fixture(scope="module")
def two_entries(checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All layers of the tiny BERT, and layers 0 and 2 of RoBERTa; copied before they are changed."""
    cache = tmp_path_factory.mktemp("cache")
    corpus = from_sentences("made-up", sentences[:40])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_store, "SHARD_BYTES", 0)
        patch.setattr(cache_store, "MIN_SHARD_TOKENS", 500)
        for family, layers in (("bert", [0, 1, 2, 3]), ("roberta", [0, 2])):
            source = resolve_model(str(checkpoints[family]))
            activations(Request(source, corpus, layers), cache, {"accelerator": "cpu"})
    return cache


@pytest.fixture
def cache(two_entries: Path, tmp_path: Path) -> Path:
    return shutil.copytree(two_entries, tmp_path / "cache")


def entry(cache: Path, family: str) -> Path:
    (found,) = cache.glob(f"tiny-{family}-*/")
    return found


@pytest.fixture
def probing(cache: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command on the cache; return the exit status, the output and the messages."""

    def type_it(*args: str) -> tuple[int, str, str]:
        status = run(COMMANDS, [*args, "--cache", str(cache)])
        return (status, *capsys.readouterr())

    return type_it


def age(folder: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    for path in (folder / MANIFEST, folder):
        os.utime(path, (then, then))


# --- ls ---


def test_ls_tells_what_is_cached(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    status, output, _ = probing("cache", "ls")
    assert status == 0
    (bert,) = (line for line in output.splitlines() if "tiny-bert" in line)
    (roberta,) = (line for line in output.splitlines() if "tiny-roberta" in line)
    stored = ActivationStore(entry(cache, "bert"))
    assert bert.split()[1:6] == ["made-up", "float32", "0-3", "40", str(stored.plan.n_tokens)]
    assert "0, 2" in roberta


def test_ls_breaks_no_name_over_lines_where_the_output_is_no_terminal(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(checkpoints["bert"], tmp_path / f"a-model-with-a-{'very-' * 20}long-name")
    cache = tmp_path / f"a-cache-with-a-{'very-' * 20}long-name"
    corpus = from_sentences(f"{'corpora/' * 20}sentences.txt", sentences[:20])
    store = activations(Request(resolve_model(str(model)), corpus, [0]), cache, {"accelerator": "cpu"})
    assert run(COMMANDS, ["cache", "ls", "--cache", str(cache)]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == f"Cached activations in {cache}"
    (line,) = (line for line in lines if store.folder.name in line)
    assert line.split()[:3] == [store.folder.name, corpus.name, "float32"]


def test_ls_does_not_call_a_layer_cached_that_lacks_a_shard(
    cache: Path, probing: Callable[..., tuple[int, str, str]]
) -> None:
    manifest = entry(cache, "bert") / MANIFEST
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
    assert "0-2" in probing("cache", "ls")[1]


def test_ls_shows_a_damaged_entry_as_such(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    (entry(cache, "bert") / MANIFEST).write_text("damaged", encoding="utf-8")
    (line,) = (line for line in probing("cache", "ls")[1].splitlines() if "tiny-bert" in line)
    assert line.split()[1] == "(damaged)"


def test_an_empty_cache_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS, ["cache", "ls", "--cache", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"nothing is cached in {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()


# --- verify ---


def test_verify_finds_an_intact_cache_intact(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    n_files = len(list(cache.glob("*/**/*.safetensors")))  # the table of tokens too
    assert n_files > 10
    assert probing("cache", "verify") == (0, f"{n_files} cached files in {cache} match their checksums\n", "")


@pytest.mark.parametrize("layer", range(N_LAYERS["bert"] + 1))
def test_verify_names_the_file_with_a_flipped_bit(
    cache: Path, probing: Callable[..., tuple[int, str, str]], layer: int
) -> None:
    path = entry(cache, "bert") / f"layer_{layer:02d}" / "000001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 128
    path.write_bytes(content)
    status, output, messages = probing("cache", "verify")
    assert status == 1
    assert output == f"damaged: {path}\n"
    assert "probing cache verify: 1 of " in messages
    assert "extracts them again" in messages


def test_an_entry_of_a_newer_version_stops_nothing(
    cache: Path, probing: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FORMAT", cache_store.FORMAT - 1)
    status, output, _ = probing("cache", "ls")
    assert (status, output.count("(of a newer version)")) == (0, 2)
    status, output, _ = probing("cache", "verify")
    assert (status, output.count("not checked because it is of a newer version")) == (0, 2)
    assert probing("cache", "prune", "--yes")[:2] == (0, "nothing to remove\n")


def test_verify_names_files_that_are_gone_and_entries_without_a_plan(
    cache: Path, probing: Callable[..., tuple[int, str, str]]
) -> None:
    gone = entry(cache, "roberta") / "layer_02" / "000000.safetensors"
    gone.unlink()
    (entry(cache, "bert") / MANIFEST).write_text("damaged", encoding="utf-8")
    status, output, _ = probing("cache", "verify")
    assert status == 1
    assert sorted(output.splitlines()) == sorted([f"damaged: {gone}", f"damaged: {entry(cache, 'bert')}"])


# --- prune ---


def everything(cache: Path) -> set[Path]:
    return {path for path in cache.rglob("*") if path.suffix != ".lock"}


def test_prune_only_says_what_would_go(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    age(entry(cache, "bert"), days=31)
    before = everything(cache)
    status, output, _ = probing("cache", "prune")
    assert status == 0
    assert f"would remove {entry(cache, 'bert')} (" in output
    assert "run again with --yes" in output
    assert "roberta" not in output
    assert everything(cache) == before


def test_prune_removes_what_was_not_used_lately(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    old, recent = entry(cache, "bert"), entry(cache, "roberta")
    age(old, days=31)
    age(recent, days=29)
    status, output, _ = probing("cache", "prune", "--yes")
    assert status == 0
    assert f"removed {old} (" in output
    assert not old.exists()
    assert ActivationStore(recent).damaged([0, 2]) == []


def test_prune_goes_by_the_days_it_is_given(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    age(entry(cache, "bert"), days=3)
    probing("cache", "prune", "--unused_days", "4", "--yes")
    assert entry(cache, "bert").exists()
    probing("cache", "prune", "--unused_days", "2", "--yes")
    assert [path.name[:12] for path in cache.glob("tiny-*/")] == ["tiny-roberta"]
    assert probing("cache", "prune", "--unused-days", "2", "--yes")[1] == "nothing to remove\n"
    probing("cache", "prune", "--unused_days", "0", "--yes")
    assert everything(cache) == set()


def test_prune_keeps_what_a_live_job_holds(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    old = entry(cache, "bert")
    age(old, days=31)
    with FileLock(cache / f"{old.name}.lock"):
        status, output, _ = probing("cache", "prune", "--yes")
    assert (status, output) == (0, f"kept {old}: a job is using it\n0 B freed\n")
    assert ActivationStore(old).damaged([0, 1, 2, 3]) == []
    probing("cache", "prune", "--yes")
    assert not old.exists()


@pytest.mark.parametrize("view", [lambda store: store, lambda store: store.without_first()])
def test_prune_keeps_what_a_reader_holds_through_any_view(
    cache: Path, probing: Callable[..., tuple[int, str, str]], view: Callable[[ActivationStore], ActivationStore]
) -> None:
    read, unread = entry(cache, "bert"), entry(cache, "roberta")
    reader, second = view(ActivationStore(read)), ActivationStore(read)
    for _ in range(2):
        status, output, _ = probing("cache", "prune", "--unused_days", "0", "--yes")
        assert status == 0
        assert f"kept {read}: a job is using it" in output
        assert not unread.exists()
        assert len(reader.read(0, 0))
        del second  # readers do not wait for each other, and the last one counts
        second = ActivationStore(read)
    del reader, second
    assert probing("cache", "prune", "--unused_days", "0", "--yes")[1].startswith(f"removed {read} (")


def test_a_reader_without_the_right_to_write_is_left_too(
    cache: Path, probing: Callable[..., tuple[int, str, str]]
) -> None:
    read = entry(cache, "bert")
    read.joinpath(MANIFEST).chmod(0o444)
    reader = ActivationStore(read)
    assert f"kept {read}: a job" in probing("cache", "prune", "--unused_days", "0", "--yes")[1]
    assert reader.damaged([0, 1, 2, 3]) == []


def hold(folder: Path, events: Any) -> None:
    """Open an entry, say so, and never end by itself."""
    store = ActivationStore(folder)
    events.put(store.layers())
    time.sleep(600)


@pytest.mark.slow
def test_a_reader_that_is_killed_holds_nothing(cache: Path, probing: Callable[..., tuple[int, str, str]]) -> None:
    context, read = processes(), entry(cache, "bert")
    events = context.Queue()
    reader = context.Process(target=hold, args=(read, events))
    reader.start()
    assert events.get(timeout=60) == [0, 1, 2, 3]
    assert f"kept {read}: a job" in probing("cache", "prune", "--unused_days", "0", "--yes")[1]
    reader.kill()
    reader.join()
    probing("cache", "prune", "--unused_days", "0", "--yes")
    assert not read.exists()


def test_a_forked_process_goes_on_reading_when_its_parent_no_longer_does(
    cache: Path, probing: Callable[..., tuple[int, str, str]]
) -> None:
    read = entry(cache, "bert")
    lease = FileLease(read / MANIFEST)
    ended, end = os.pipe()
    if not (child := os.fork()):  # pragma: no cover
        os.close(end)
        os.read(ended, 1)
        os._exit(0)
    del lease
    assert f"kept {read}: a job" in probing("cache", "prune", "--unused_days", "0", "--yes")[1]
    os.close(end)
    os.waitpid(child, 0)
    os.close(ended)
    probing("cache", "prune", "--unused_days", "0", "--yes")
    assert not read.exists()


def test_an_entry_that_was_removed_before_it_was_locked_is_not_opened(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, folder = os.open, entry(cache, "bert")

    def open_and_remove(path: str | Path, flags: int, *more: Any) -> int:
        descriptor = opened(path, flags, *more)
        if not flags & os.O_NONBLOCK:  # as where the file is only looked at
            Path(path).unlink()
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_and_remove)
        with pytest.raises(FileNotFoundError, match="was removed"):
            FileLease(folder / MANIFEST)
    with pytest.raises(DamagedCache):
        ActivationStore(folder)


def test_prune_minds_no_entry_that_another_one_removes_meanwhile(
    cache: Path, probing: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = commands_of_cache.entries

    def list_and_remove(folder: Path) -> list[Any]:
        found = listed(folder)
        shutil.rmtree(entry(cache, "roberta"))
        return found

    monkeypatch.setattr(commands_of_cache, "entries", list_and_remove)
    assert probing("cache", "prune", "--unused_days", "0", "--yes")[0] == 0
    assert everything(cache) == set()


def test_prune_removes_what_dead_writers_left_and_keeps_what_can_be_mended(
    cache: Path, probing: Callable[..., tuple[int, str, str]]
) -> None:
    damaged, sound = entry(cache, "bert"), entry(cache, "roberta")
    (damaged / MANIFEST).write_text("damaged", encoding="utf-8")
    half = [sound / "layer_00" / "000000.safetensors.partial-99999", sound / f"{MANIFEST}.partial-1"]
    for path in half:
        path.write_bytes(b"half")
    with FileLock(cache / f"{sound.name}.lock"):
        assert "kept" in probing("cache", "prune", "--yes")[1]
    assert all(path.exists() for path in half)
    probing("cache", "prune", "--yes")
    assert not any(path.exists() for path in half)
    assert damaged.exists()
    assert ActivationStore(sound).damaged([0, 2]) == []


def test_prune_minds_neither_a_clock_that_went_back_nor_what_is_not_an_entry(
    cache: Path, probing: Callable[..., tuple[int, str, str]]
) -> None:
    age(entry(cache, "bert"), days=-400)  # last used in the future
    (cache / "notes").mkdir()
    (cache / "notes" / "mine.partial-1").write_text("mine", encoding="utf-8")
    assert probing("cache", "prune", "--yes")[1] == "nothing to remove\n"
    probing("cache", "prune", "--unused_days", "0", "--yes")
    assert everything(cache) == {cache / "notes", cache / "notes" / "mine.partial-1"}


def test_pruned_activations_are_extracted_again_when_needed(
    cache: Path, checkpoints: dict[str, Path], sentences: list[str], probing: Callable[..., tuple[int, str, str]]
) -> None:
    probing("cache", "prune", "--unused_days", "0", "--yes")
    request = Request(resolve_model(str(checkpoints["bert"])), from_sentences("made-up", sentences[:40]), [0])
    assert activations(request, cache, {"accelerator": "cpu"}).layers() == [0]
    assert probing("cache", "verify")[0] == 0


def test_a_folder_that_is_not_there_is_not_intact(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        verify(cache=str(tmp_path / "missing"))


def test_days_cannot_be_negative(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected at least 0"):
        prune(cache=str(tmp_path), unused_days=-1)


# --- what killed runs left ---


def claim_and_die(runs: Path) -> None:
    """Leave the folder of a run and that of a training, as a killed process does."""
    RunFolder(runs, "killed", "x")
    folder = ResumableFolder(runs, "training", {"steps": 3})
    folder.begin()
    (folder.path / "definition.json").write_text("{}", encoding="utf-8")
    os._exit(0)


@pytest.mark.slow
def test_prune_removes_what_killed_runs_left_and_no_run_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    dead = processes().Process(target=claim_and_die, args=(runs,))
    dead.start()
    dead.join()
    living = RunFolder(runs, "living", "x")
    trained = ResumableFolder(runs, "trained", {})
    (runs / "mine.partial").mkdir()
    own = ["cache", "prune", "--runs", str(runs), "--cache", str(tmp_path / "cache")]
    assert run(COMMANDS, own) == 0
    assert capsys.readouterr().out == "nothing to remove\n"  # of the last days
    with trained.locked():
        assert run(COMMANDS, [*own, "--unused_days", "0"]) == 0
        said = capsys.readouterr().out
        assert [f"{name}.partial" in said for name in ("killed", "training")] == [True, True]
        assert (runs / "killed.partial").exists()
        assert run(COMMANDS, [*own, "--unused_days", "0", "--yes"]) == 0
    assert {path.name for path in runs.iterdir()} == {"living.partial", "trained.partial", "mine.partial"}
    assert living.finish().is_dir()
