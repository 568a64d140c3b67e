"""Versions of this package and of the libraries that results depend on."""

from __future__ import annotations

import platform
from importlib.metadata import version

# Name of this distribution.
PACKAGE = "neuron-probing"
_LIBRARIES = ("torch", "pytorch-lightning", "transformers", "torchmetrics", "numpy", "safetensors", "wandb")


def own_version() -> str:
    """Return this package's version."""
    return version(PACKAGE)


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, and of the libraries that results depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in (PACKAGE, *_LIBRARIES)}}
