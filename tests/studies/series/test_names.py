"""Checkpoints are found by pattern or revision, and stand in the order of their steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from probing.errors import UserError
from probing.studies.series.survey import find_checkpoints


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step0", 0), ("step1000", 1000), ("checkpoint-500", 500), ("0100", 100), ("run2-step_20k", 20_000),
        ("seed3-1M", 1_000_000), ("step3000-tokens4B", 3000), ("bert-2-300", 300), ("epoch-4", 4),
    ],
)  # fmt: skip
def test_the_step_is_the_number_in_the_name(name: str, step: int) -> None:
    (one,) = find_checkpoints("some/model", [name], None)
    assert (one.step, one.name, one.model, one.revision, one.folder) == (step, name, "some/model", name, None)


def test_revisions_are_sorted_as_numbers() -> None:
    found = find_checkpoints("pythia", "step1000, step8,step16", None)
    assert [one.revision for one in found] == ["step8", "step16", "step1000"]


@pytest.fixture
def folder(tmp_path: Path, checkpoints: dict[str, Path]) -> Path:
    """Three checkpoints, and a table beside them."""
    for name in ("step16", "step8", "step100"):
        (tmp_path / name).symlink_to(checkpoints["bert"])
    (tmp_path / "loss9.csv").write_text("step\n", encoding="utf-8")
    return tmp_path


def test_folders_are_found_by_a_pattern_or_by_their_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    by_pattern = find_checkpoints(None, None, "*")
    assert [one.step for one in by_pattern] == [8, 16, 100]
    assert by_pattern == find_checkpoints(None, None, ["step16", "step100", "step8"])
    assert by_pattern[0].folder == Path("step8")


def refused(*args: object) -> str:
    with pytest.raises(UserError) as caught:
        find_checkpoints(*args)  # type: ignore[arg-type]
    return str(caught.value)


def test_what_is_no_series_is_refused_with_what_to_do(folder: Path) -> None:
    assert "takes checkpoints: local folders as `--checkpoints 'DIR/step*'`" in refused(None, None, None)
    assert "takes checkpoints" in refused("pythia", None, None)
    assert "`--checkpoints` and `--model`" in refused("pythia", None, "a")
    assert f"`--checkpoints {folder}/none*` matches no folder" in refused(None, None, f"{folder}/none*")
    assert f"`--checkpoints {folder}/nine`: there is no such folder" in refused(None, None, f"{folder}/nine")
    (folder / "step3").mkdir()
    assert f"`--checkpoints {folder}/step3`: the folder has no config.json" in refused(None, None, f"{folder}/step3")
    (folder / "last").symlink_to(folder / "step8")
    assert "the name last tells no step; expected a number" in refused(None, None, f"{folder}/last")
    assert "step7 and step07 are both of step 7" in refused("m", "step07,step9,step7", None).replace(
        "step07 and step7", "step7 and step07"
    )
    assert "`--revisions`: the name main tells no step" in refused("m", "main,step7", None)
