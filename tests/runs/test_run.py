"""A run on disk: whole or visibly partial."""

from __future__ import annotations

from pathlib import Path

import pytest

from probing.errors import UserError
from probing.runs.folder import RunFolder, check_name
from probing.runs.loading import load_run
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
    with pytest.raises(UserError, match="under way or was interrupted"):
        RunFolder(tmp_path, "other", "default")


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
