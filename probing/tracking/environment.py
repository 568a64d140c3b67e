"""Temporary environment variables, for settings of the W&B client that have no other form."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(ours: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them afterwards."""
    before = {variable: os.environ.get(variable) for variable in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
