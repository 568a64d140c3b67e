"""Figures in tests: everything is drawn, but what is written is one pixel, unless a test asks for the real image.

Rendering takes two thirds of the time of a run on a tiny model, and most tests are about something else.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from probing.tables import figures as style

_PIXEL = {
    "png": base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    ),
    "pdf": b"%PDF-1.4\n%%EOF\n",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>\n',
}
_render, FIT_TO_PAPER, _SHOW_AS_WRITTEN = Figure.savefig, style.fit_to_paper, style._show_as_written


def _write_pixel(figure: Figure, path: Path, *, format: str, **_: Any) -> None:
    path.write_bytes(_PIXEL[format])


def without_rendering() -> None:
    """Write figures of this process as one pixel from now on."""
    Figure.savefig = _write_pixel  # type: ignore[assignment,method-assign]
    style.fit_to_paper = lambda figure: figure.bbox_inches
    # It makes all ticks, which takes a third of the time of drawing, and matters to what is rendered only.
    style._show_as_written = lambda figure: None


@contextmanager
def rendered() -> Iterator[None]:
    """Write figures as users get them; also to be put before a test, as `@rendered()`."""
    with _writing(_render, FIT_TO_PAPER):
        yield


@contextmanager
def rendered_once(names: set[str]) -> Iterator[None]:
    """Write the PNG of a figure as users get it, but of these names one pixel; the names of others are added.

    Vector forms are one pixel: they take twice as long, and are looked at where a figure is tested by itself.

    Args:
        names: Names of figures that were written before.
    """

    def save(figure: Figure, path: Path, *, format: str, **options: Any) -> None:
        name = path.name.strip(".").split(".")[0]  # of a partial file, too
        is_new = format == "png" and name not in names
        if is_new:
            names.add(name)
        (_render if is_new else _write_pixel)(figure, path, format=format, **options)

    with _writing(save, lambda figure: figure.bbox_inches):
        yield


@contextmanager
def _writing(save: Callable[..., Any], fit: Callable[[Figure], Bbox]) -> Iterator[None]:
    before, Figure.savefig = Figure.savefig, save  # type: ignore[method-assign]
    fit_before, style.fit_to_paper = style.fit_to_paper, fit  # type: ignore[assignment]
    shown_before, style._show_as_written = style._show_as_written, _SHOW_AS_WRITTEN
    try:
        yield
    finally:
        Figure.savefig = before  # type: ignore[method-assign]
        style.fit_to_paper = fit_before
        style._show_as_written = shown_before
