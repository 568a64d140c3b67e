"""The memory of this machine, and a limit that a container has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probing.runtime import memory


def test_a_container_has_no_more_memory_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "LIMITS", (limit, tmp_path / "not there"))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.memory_bytes() == machine
    limit.write_text("max\n")
    assert memory.memory_bytes() == machine
    limit.write_text("1048576\n")
    assert memory.memory_bytes() == 2**20
