"""Versions of this package and of the libraries that results depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

# Name of this distribution.
PACKAGE = "neuron-probing"
_LIBRARIES = ("torch", "pytorch-lightning", "transformers", "torchmetrics", "numpy", "safetensors", "wandb")


# Each version is read from a file, which does not change while the process runs.
_version = cache(version)


def own_version() -> str:
    """Return this package's version."""
    return _version(PACKAGE)


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, and of the libraries that results depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in (PACKAGE, *_LIBRARIES)}}
