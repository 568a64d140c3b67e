"""The memory of this machine, and a limit that a container has."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest

from probing.runtime import machine as memory


def test_a_container_has_no_more_memory_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "LIMITS", (limit, tmp_path / "not there"))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.memory_bytes() == machine
    limit.write_text("max\n", encoding="utf-8")
    assert memory.memory_bytes() == machine
    limit.write_text("1048576\n", encoding="utf-8")
    assert memory.memory_bytes() == 2**20


class Knot:
    """Refers to itself, so that only a search for garbage frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_searches_for_garbage_read_what_is_new_alone_and_old_garbage_is_freed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.unfreeze()
    monkeypatch.setattr(memory, "_is_set_aside", False)
    try:
        old = weakref.ref(Knot())
        with memory.heap_set_aside():
            assert old() is None
            set_aside = gc.get_freeze_count()
            assert set_aside > 10_000
            assert len(gc.get_objects()) < set_aside / 10
            with memory.heap_set_aside():  # a command that calls another one
                new = weakref.ref(Knot())
            assert gc.get_freeze_count() > 0
            gc.collect()
            assert new() is None
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()  # as tests have it
