"""The files of figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probing.cli.option_types import FIGURE_FORMAT, figure_formats

# Formats of figures where none are asked for.
USUAL = tuple(figure_formats(FIGURE_FORMAT))


def forms_of(paths: Sequence[Path], formats: Sequence[str]) -> list[Path]:
    """Return the files of some figures.

    Args:
        paths: Path of each figure, whose suffix is replaced by that of each format.
        formats: Formats that the figures are written in.
    """
    return [path.with_suffix(f".{form}") for path in paths for form in formats]
