"""The style of every figure, and the one place that writes figures: a PNG for the screen, PDF and SVG for a paper.

PDF is written by default, not SVG: it embeds its fonts, so that text stays text and looks the same on any machine, and
LaTeX includes it directly. The text of an SVG is text, too, and can be edited, but it needs fonts that a reader may not
have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probing.figures.formats import USUAL, forms_of
from probing.figures.layer_labels import spaced_layers
from probing.figures.paper import fit_to_paper
from probing.results.cells import ends
from probing.results.schema import Row
from probing.runtime.replaced_files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY, ORANGE, GREEN, PURPLE = "#0b5394", "#6b6b6b", "#c27c0e", "#38761d", "#741b47"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: many journals refuse the default Type 3
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "probing",  # identifiers would be random
}
# A date would make two drawings of the same numbers differ, so none is written.
_METADATA: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


@contextmanager
def drawing(path: Path, formats: Sequence[str] = USUAL) -> Iterator[Figure]:
    """Yield an empty figure to draw on; afterwards write it in each format.

    A PNG has the size that it is drawn at, vector forms have that of a paper's column or page. The same drawing gives
    the same bytes. Each file replaces an older one as a whole.

    Args:
        path: Path of the figure; each file has the suffix of its format.
        formats: Formats to write.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        yield figure
        _show_as_written(figure)
        if "png" in formats:
            _save(figure, path, "png")
        if vectors := [form for form in formats if form != "png"]:
            box = fit_to_paper(figure)
            for form in vectors:
                _save(figure, path, form, bbox_inches=box)


def _show_as_written(figure: Figure) -> None:
    """Show names and words as they are, where matplotlib would read what is between two `$` as a formula.

    The numbers of logarithmic axes are formulas.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    axes = [axis for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    logarithmic = [axis for axis in axes if isinstance(axis.get_major_formatter(), LogFormatter)]
    formulas = {text for axis in logarithmic for minor in (False, True) for text in axis.get_ticklabels(minor=minor)}
    for text in figure.findobj(Text):
        if text not in formulas:
            text.set_parse_math(False)


def write_drawings(
    folder: Path, drawings: Mapping[str, Callable[[Figure], None]], formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw figures, each in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        drawings: What draws each figure, by its name.
        formats: Formats of the files.
    """
    paths = [folder / name for name in drawings]
    for path, draw in zip(paths, drawings.values(), strict=True):
        with drawing(path.with_suffix(".png"), formats) as figure:
            draw(figure)
    return forms_of(paths, formats)


def _save(figure: Figure, path: Path, form: str, **options: Any) -> None:
    (target,) = forms_of([path], [form])
    with replacing(target) as partial:
        figure.savefig(partial, format=form, metadata=_METADATA[form], **options)


def name_layers(axes: Axes, layers: Sequence[int], most: int = 14, what: str = "layer (0 = embeddings)") -> None:
    """Mark the measured layers on the x axis, and label as many as there is room for.

    A single layer is placed in the middle, with room for `side_by_side` marks.

    Args:
        axes: Axes to label.
        layers: Layers that were measured, in any order.
        most: Number of labels that fit side by side.
        what: Label of the axis.
    """
    measured = sorted(set(layers))
    named = set(spaced_layers(measured, most))
    axes.set_xticks(measured, [str(layer) if layer in named else "" for layer in measured])
    axes.set_xlabel(what)
    if len(measured) == 1:
        axes.set_xlim(measured[0] - 0.5, measured[0] + 0.5)


def from_zero(axes: Axes) -> None:
    """Let the y axis begin at 0 and end above all that was drawn, so that no line lies on its border."""
    top = float(axes.dataLim.ymax)
    axes.set_ylim(0, 1.05 * top if top > 0 else 1)


def side_by_side(n: int, layers: Sequence[int]) -> NDArray[np.float64]:
    """Return a shift along the x axis for each of n lines, in layers; it is 0 unless there is only one layer.

    Lines over several layers are told apart by their course; at a single layer one mark would cover another.
    """
    if len(set(layers)) > 1 or n == 1:
        return np.zeros(n)
    return np.linspace(-0.3, 0.3, n)


def joined(look: dict[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """Return the look of a line over some layers; for a single layer it has marks only."""
    return look if len(set(layers)) > 1 else {**look, "ls": ""}


def error_bars(rows: Sequence[Row], values: NDArray[np.float64], of: str = "", times: float = 1) -> NDArray[Any] | None:
    """Return how far intervals reach below and above the values, shape (2, n); None if no row has an interval.

    Args:
        rows: A row for each value.
        values: The values, already multiplied by `times`, shape (n,).
        of: Name of the value whose interval is drawn, as in `probing.tables.columns.ends`.
        times: Factor of the ends. A row without an interval gets a bar of length 0.
    """
    found = [ends(row, of) for row in rows]
    if not any(found):
        return None
    low, high = (np.array([times * pair[i] if pair else np.nan for pair in found]) for i in (0, 1))
    return np.nan_to_num(np.clip([values - low, high - values], 0, None))
