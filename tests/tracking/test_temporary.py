"""Temporary folders of the W&B client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAKE = """
import os, sys, tempfile
sys.modules.pop("wandb", None)
from probing.tracking.client import own_temporary_folder
with own_temporary_folder():
    left = tempfile.mkdtemp("wandb-media")
assert tempfile.gettempdir() == os.environ["TMPDIR"]
print(left)
"""
KILL = "sys.stdout.flush(); os.kill(os.getpid(), 9)"


def made(place: Path, then: str = "") -> Path:
    """Make a temporary folder in a process of its own, and return it."""
    ended = subprocess.run(
        [sys.executable, "-c", MAKE + then], env={"TMPDIR": str(place), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    return Path(ended.stdout.strip())


def test_what_a_killed_process_leaves_is_removed_by_the_next_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    left = made(tmp_path, KILL)
    assert left.is_dir()
    with subprocess.Popen(
        [sys.executable, "-c", MAKE + "sys.stdout.flush(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}, encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdout
        used = Path(process.stdout.readline().strip())
        assert not left.parent.exists()
        made(tmp_path)
        assert used.is_dir()
        process.communicate("\n")
    assert not list(tmp_path.iterdir())
