"""What the W&B client can be told by environment variables alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def variables(ours: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and put them back afterwards."""
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
