"""Tensor files: permissions by the umask, errors as OSError."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from probing.cache.files import tensor_file


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_says_who_may_read(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with tensor_file(tmp_path / "x.safetensors") as path:
            save_file({"x": torch.ones(3)}, path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert torch.equal(load_file(path)["x"], torch.ones(3))


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"), tensor_file(tmp_path / "missing" / "x.safetensors"):
        raise AssertionError("never reached")
    with pytest.raises(OSError, match="directory"), tensor_file(tmp_path):
        save_file({"x": torch.ones(3)}, tmp_path)
