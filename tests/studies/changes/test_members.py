"""The names of checkpoints in tables: no two are alike, and none is taken for the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from probing import UserError
from probing.studies.changes.survey import START, TRUE, of_names


def test_each_checkpoint_has_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("a/model", "b/model", "c/start", "other"):
        (tmp_path / name).mkdir(parents=True)
    models = [str(tmp_path / name) for name in ("a/model", "b/model", "c/start", "other")]
    family = of_names("bert", models[:3], models[3:])
    names = [one.name for one in family.members]
    assert names == [str(tmp_path / name) for name in ("a/model", "b/model", "c/start")] + ["other"]
    assert START not in names
    assert [one.model for one in family.of(TRUE)] == models[:3]
    assert len(list(family.apart())) == 3


def test_a_folder_under_another_name_is_the_same_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "again").symlink_to(tmp_path / "model")
    with pytest.raises(UserError, match="is named twice"):
        of_names("bert", [str(tmp_path / "model"), str(tmp_path / "again")], [])
