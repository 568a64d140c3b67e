"""Progress bars in the cell of a notebook: shown while a command works, gone when it ends, none where it is quiet."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import BARE
from probing import fit
from probing.runtime import progress, terminal


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a shell with a kernel, as a notebook has one, sends to be shown."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shells = pytest.importorskip("IPython.core.interactiveshell")
    publishers = pytest.importorskip("IPython.core.displaypub")
    hooks = sys.displayhook, sys.excepthook
    shell = shells.InteractiveShell.instance(display_pub_class=publishers.CapturingDisplayPublisher)
    shell.history_manager.enabled = False
    shell.kernel = object()
    yield shell.display_pub.outputs
    shells.InteractiveShell.clear_instance()
    shell.atexit_operations()
    atexit.unregister(shell.atexit_operations)
    sys.displayhook, sys.excepthook = hooks


def fitted(checkpoints: dict[str, Path], corpus_file: Path, place: Path, quiet: bool) -> None:
    options: dict[str, Any] = {**BARE, "quiet": quiet, "wandb": {"mode": "disabled"}}
    fit(model=checkpoints["bert"], corpus=corpus_file, runs=str(place), layer=2, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_shows_bars_in_one_output_that_is_empty_at_the_end(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, shown: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(progress, "PAUSE_S", 0.0)
    monkeypatch.setattr(progress, "_outputs", set())
    fitted(checkpoints, corpus_file, tmp_path, quiet=False)
    bars = [one for one in shown if (one.get("transient") or {}).get("display_id", "").startswith("probing-progress-")]
    assert [one["update"] for one in bars] == [False] + [True] * (len(bars) - 1)
    assert len({one["transient"]["display_id"] for one in bars}) == 1
    html = [one["data"].get("text/html", "") for one in bars]
    (extracted,) = (text for text in html if "hidden states" in text and "1/1" in text)
    assert extracted.startswith("<pre")
    assert any("probes, pass 2" in text for text in html)
    assert bars[-1]["data"] == {"text/plain": ""}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_quiet_command_shows_nothing_in_a_notebook(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, shown: list[dict[str, Any]]
) -> None:
    assert terminal.in_notebook()
    fitted(checkpoints, corpus_file, tmp_path, quiet=True)
    assert shown == []


def test_outside_a_notebook_there_is_none() -> None:
    assert not terminal.in_notebook()
