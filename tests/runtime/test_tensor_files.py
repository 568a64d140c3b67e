"""Tensor files: the same bytes each time, permissions by the umask, errors as OSError."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from probing.runtime.files import write_tensors


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_says_who_may_read(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_tensors(path := tmp_path / "x.safetensors", {"x": torch.ones(3)})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert torch.equal(load_file(path)["x"], torch.ones(3))


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_tensors(tmp_path / "missing" / "x.safetensors", {"x": torch.ones(3)})
    with pytest.raises(OSError, match="directory"):
        write_tensors(tmp_path, {"x": torch.ones(3)})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6))
def test_metadata_of_any_text_come_back_and_are_in_order(metadata: dict[str, str]) -> None:
    path, again = Path("x.safetensors"), Path("again.safetensors")
    for array in (np.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3)):
        write_tensors(path, {"b": array, "a": array + 1}, metadata)
        write_tensors(again, {"a": array + 1, "b": array}, dict(reversed(metadata.items())))
        assert path.read_bytes() == again.read_bytes()
        with safe_open(path, "np") as file:
            assert (file.metadata() or {}) == metadata
            assert np.array_equal(file.get_tensor("a"), np.asarray(array) + 1)
            assert np.array_equal(file.get_tensor("b"), np.asarray(array))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
