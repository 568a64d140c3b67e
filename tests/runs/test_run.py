"""A run on disk: whole or visibly partial."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from probing.errors import UserError
from probing.runs.folder import RunFolder, check_name
from probing.runs.loading import load_run
from probing.runtime.files import RUNNING, Owner, take_over
from probing.tables.schema import ACCURACY
from written import read_csv, write_csv


def test_a_run_is_partial_until_it_is_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "mine", "default")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.partial"]
    with pytest.raises(UserError, match="is one that did not finish"):
        load_run(tmp_path / "mine")
    assert folder.finish() == tmp_path / "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "name", ["", "..", ".", ".hidden", "a/b", "/tmp/x", "../x", "a b", "x.partial", "-x", "x" * 300, "a\nb", "a\0b"]
)
def test_names_that_are_not_plain_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="not a plain name"):
        check_name(tmp_path, name)


def test_a_name_in_use_is_refused_whole_or_partial(tmp_path: Path) -> None:
    RunFolder(tmp_path, "mine", "default").finish()
    with pytest.raises(UserError, match="runs are never changed"):
        RunFolder(tmp_path, "mine", "default")
    RunFolder(tmp_path, "other", "default")
    with pytest.raises(UserError, match=rf"under way \(process {os.getpid()}\); wait"):
        RunFolder(tmp_path, "other", "default")


KILLED = """
import os, signal, sys
from pathlib import Path
from probing.runs.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), "mine", "default")
(folder.path / "accuracy.csv").write_text("half", encoding="utf-8")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a killed run left."""
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode != 0
    assert (tmp_path / "mine.partial" / "accuracy.csv").is_file()
    return tmp_path / "mine.partial"


@pytest.mark.skipif(sys.platform == "win32", reason="whether a process lives is not asked there")
def test_the_name_of_a_killed_run_is_free_again(left: Path) -> None:
    assert check_name(left.parent, "mine") == left.parent / "mine"
    folder = RunFolder(left.parent, "mine", "default")
    assert sorted(path.name for path in left.iterdir()) == [RUNNING, "figures"]
    with pytest.raises(UserError, match=rf"is under way \(process {os.getpid()}\)"):
        check_name(left.parent, "mine")
    assert [path.name for path in folder.finish().iterdir()] == ["figures"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "under way or was interrupted; remove"),
        ("{", "under way or was interrupted; remove"),
        ('{"process": 1}', "under way or was interrupted; remove"),
        ('{"process": 7, "machine": "node12 pid:[4]"}', r"interrupted on node12 \(process 7\); remove"),
    ],
)
def test_a_run_that_may_be_alive_keeps_its_name(left: Path, told: str | None, words: str) -> None:
    (left / RUNNING).unlink()
    if told is not None:
        (left / RUNNING).write_text(told, encoding="utf-8")
    for claim in (lambda: check_name(left.parent, "mine"), lambda: RunFolder(left.parent, "mine", "default")):
        with pytest.raises(UserError, match=words):
            claim()
    assert (left / "accuracy.csv").read_text(encoding="utf-8") == "half"


def test_a_killed_process_of_another_machine_cannot_be_told(left: Path) -> None:
    dead = Owner.read(left)
    assert dead is not None
    Owner(dead.process, f"not-{dead.machine}").write(left)
    with pytest.raises(UserError, match=rf"interrupted on not-.* \(process {dead.process}\); remove"):
        RunFolder(left.parent, "mine", "default")


@pytest.mark.parametrize("how", ["another is taking it", "another has taken it"])
def test_what_another_process_takes_over_is_left_to_it(left: Path, how: str) -> None:
    dead = Owner.read(left)
    assert dead is not None
    if how == "another is taking it":
        (left / f"{RUNNING}.after.{dead.process}").write_text("", encoding="utf-8")
    else:
        Owner(os.getppid(), dead.machine).write(left)
    before = sorted(path.name for path in left.iterdir())
    assert not take_over(left, dead)
    assert sorted(path.name for path in left.iterdir()) == before
    assert (left / "accuracy.csv").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="whether a process lives is not asked there")
def test_of_many_that_want_the_name_of_a_killed_run_one_gets_it(left: Path) -> None:
    start = threading.Barrier(8)

    def claim(_: int) -> bool:
        start.wait()
        with contextlib.suppress(UserError):
            RunFolder(left.parent, "mine", "default")
            return True
        return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(claim, range(8))) == 1
    assert sorted(path.name for path in left.iterdir()) == [RUNNING, "figures"]


def test_runs_without_a_name_never_meet(tmp_path: Path) -> None:
    names = {RunFolder(tmp_path, None, "minilm-position").final.name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("minilm-position-20") for name in names)


def test_a_folder_of_runs_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"--runs .* cannot be written"):
        RunFolder(tmp_path / "file" / "runs", "mine", "default")


def test_tables_keep_full_precision_and_leave_out_what_was_not_measured(tmp_path: Path) -> None:
    rows = [{"layer": 3, "accuracy": 0.1 + 0.2, "n_classes": 7}, {"layer": 4, "accuracy": 1e-17, "n_classes": 7}]
    write_csv(tmp_path / "t.csv", rows, tuple(ACCURACY.types))
    assert (tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()[0] == "layer,accuracy,n_classes"
    assert read_csv(tmp_path / "t.csv") == rows
