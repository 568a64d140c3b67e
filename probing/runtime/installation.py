"""How this package was started, whether its files are its own, and the versions that results depend on."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from probing.errors import UserError

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


# An unrelated distribution of the package index, whose import name is also `probing`.
OTHER = "probing"


def started_as() -> str:
    """Return what the user typed before the command: the installed script, or else what works in every installation."""
    return PACKAGE if Path(sys.argv[0]).stem == PACKAGE else "python -m probing"


def refuse_mixed_files() -> None:
    """Refuse to start where the files of the other distribution lie among ours: each overwrites some of the other.

    Raises:
        UserError: If the other distribution has files in this package's folder, or this package's `__init__.py` is not
            its own, as after the other one was installed later or was removed.
    """
    package = Path(__file__).resolve().parent.parent
    version = _other_in(package)
    names = getattr(sys.modules["probing"], "__all__", ())
    if version is None and "load_run" in names:
        return
    other = f"{OTHER} {version}" if version else OTHER
    raise UserError(
        f"files of the unrelated distribution `{other}` are mixed with those of `{PACKAGE}` in {package}, since both "
        f"have the import name `probing`; remove both with `pip uninstall {OTHER} {PACKAGE}`, then install `{PACKAGE}` "
        "again, the other one in another environment"
    )


def _other_in(package: Path) -> str | None:
    """Return the version of the other distribution if it has files in this folder, or None."""
    try:
        other = distribution(OTHER)
    except PackageNotFoundError:
        return None
    files = (Path(str(other.locate_file(file))) for file in other.files or ())
    return other.version if any(package in file.resolve().parents for file in files) else None
