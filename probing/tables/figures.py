"""Style and paper size of all figures; the only place that writes figures, as PNG, PDF and SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from probing.cli.option_types import FIGURE_FORMAT, figure_formats
from probing.results import NamedLayer, Row, ends
from probing.runtime.files import replacing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox


def spaced_layers(layers: Sequence[int], most: int) -> list[int]:
    """Return the layers to label, of which at most `most` fit: the first, and each far enough from the last label."""
    room = (layers[-1] - layers[0]) / most if layers else 0.0
    named: list[int] = []
    for layer in layers:
        if not named or layer - named[-1] >= room:
            named.append(layer)
    return named


# Least distance between two labels, in characters; distance between step 0 and the next step, as a share of the
# distance from there to the last step; and the least such distance, in powers of ten.
_BETWEEN, _APART, _LEAST_APART = 1.5, 0.12, 0.3


def coordinates(steps: Sequence[int]) -> list[float]:
    """Return the positions of ascending, distinct steps on a logarithmic axis; step 0 is separate on the left."""
    positive = [math.log10(step) for step in steps if step > 0]
    if len(positive) == len(steps):
        return positive
    if not positive:
        return [0.0] * len(steps)
    return [positive[0] - max(_LEAST_APART, _APART * (positive[-1] - positive[0])), *positive]


def labels(steps: Sequence[int], n_characters: float) -> list[str]:
    """Return the label of each ascending step, such as 143k, or "" without room on an axis of `n_characters`."""
    at, names = coordinates(steps), [short(step) for step in steps]
    width, end = (at[-1] - at[0]) / n_characters, len(steps) - 1

    def fit(i: int, j: int) -> bool:
        return at[j] - at[i] >= width * ((len(names[i]) + len(names[j])) / 2 + _BETWEEN)

    named = [0]
    for i in range(1, len(steps)):
        if fit(named[-1], i) and (i == end or fit(i, end)):
            named.append(i)
    return [name if i in named else "" for i, name in enumerate(names)]


def name(steps: Sequence[int]) -> str:
    """Return the name of the axis with its scale."""
    return f"step (logarithmic{', 0 apart' if 0 in steps else ''})"


def short(step: int) -> str:
    """Return a step in few letters: 143000 as 143k."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if step >= size and step % (size // 10) == 0:
            return f"{step / size:g}{unit}"
    return str(step)


# Formats of figures where none are asked for.
USUAL = tuple(figure_formats(FIGURE_FORMAT))


def forms_of(paths: Sequence[Path], formats: Sequence[str]) -> list[Path]:
    """Return the files of figures: each path with the suffix of each format."""
    return [path.with_suffix(f".{form}") for path in paths for form in formats]


# Widths in inches: of one of two columns, and of the page.
COLUMN, PAGE = 3.3, 6.8

# Widest figure for the screen, in inches, whose single panel is drawn in one column.
SMALL = 6.5

# Height of a page, in inches: a taller figure is not stretched further to make room for its letters.
HEIGHT = 9.0

# Smallest letters in points, and those of numbers in the cells of a map; without room for these the cells are empty.
LETTERS, CELLS = 6.5, 4.5

# Of layers that have names: most that stand below an axis, characters of a line, and the height of one in inches.
MOST_NAMES, NAME_WIDTH, LETTER = 10, 24, 0.07

# Most panels of a figure in a row, and width of the narrowest such figure in inches.
SIDE_BY_SIDE, NARROWEST = 4, 4.6

# Share of a cell's width that its number may take, and height of a panel in a column, as a share of its width.
FILLED, PANEL = 0.9, 0.62


def fit_to_paper(figure: Figure) -> Bbox:
    """Resize a figure for the screen to the width of a column or a page; return the box to write, in inches.

    A figure with one panel gets the width of a column and its legend below. Letters shrink with the width, but stay
    legible, and long titles are wrapped. The box contains the whole figure and whatever sticks out of it.
    """
    from matplotlib.transforms import Bbox

    width, height = figure.get_size_inches()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    is_small = len(panels) == 1 and width <= SMALL
    new = COLUMN if is_small else PAGE
    for text in _texts(figure):
        size = float(text.get_fontsize())
        text.set_fontsize(min(size, max(LETTERS, size * new / width)))
    scale = new / width
    # Letters shrink less than the width, and therefore the height shrinks less, too.
    figure.set_size_inches(new, max(height * scale, min(height * math.sqrt(scale), HEIGHT)))
    if is_small:
        below = [_below(figure, legend, panels[0]) for legend in figure.legends]
        figure.set_size_inches(new, PANEL * new + sum(below) + _upright(figure, panels[0]))
    figure.draw_without_rendering()
    for axes in panels:
        if axes.images:
            _fit_cells(axes)
    if _fit_titles(figure, panels):
        figure.draw_without_rendering()
    return Bbox.union([figure.bbox_inches, figure.get_tightbbox()])


def _below(figure: Figure, legend: Legend, axes: Axes) -> float:
    """Put a legend below the only panel in as many columns as fit; return its height in inches."""
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    labels = [text.get_text() for text in legend.get_texts()]
    for n_columns in (3, 2, 1):
        legend.remove()
        legend = figure.legend(
            [handles[label] for label in labels], labels, loc="outside lower center", ncols=n_columns, fontsize=LETTERS
        )
        if legend.get_window_extent().width <= figure.bbox.width:
            break
    return float(legend.get_window_extent().height / figure.dpi)


def _upright(figure: Figure, axes: Axes) -> float:
    names = [label for label in axes.get_xticklabels() if label.get_rotation() == 90]
    return max((float(name.get_window_extent().height / figure.dpi) for name in names), default=0.0)


def _fit_cells(axes: Axes) -> None:
    """Fit the numbers in the cells of a map, or hide them; label the columns that have room."""
    n_columns = axes.images[0].get_size()[1]
    width = axes.get_window_extent().width / n_columns
    widest = max((text.get_window_extent().width for text in axes.texts), default=0.0)
    for text in axes.texts:
        size = float(text.get_fontsize()) * min(1, FILLED * width / widest)
        text.set_fontsize(size)
        text.set_visible(size >= CELLS)
    labels = axes.get_xticklabels()
    if len(labels) == n_columns:  # each column has a name of its own
        room = max(label.get_window_extent().width for label in labels) / (FILLED * width)
        step = max(1, math.ceil(room))
        names = [label.get_text() if i % step == 0 else "" for i, label in enumerate(labels)]
        axes.set_xticks(axes.get_xticks(), names, fontsize=labels[0].get_fontsize())


def _fit_titles(figure: Figure, panels: list[Axes]) -> bool:
    """Wrap titles that reach beyond the figure or into the next panel; return whether there were any."""
    lefts = [box.x0 for axes in panels if (box := axes.get_tightbbox())]
    rooms: dict[Text, float] = {text: figure.bbox.width for text in figure.texts if not text.get_rotation()}
    for axes in panels:
        # A title begins at the left end of its panel.
        start = axes.get_window_extent().x0
        end = min([edge for edge in lefts if edge > start + 1], default=figure.bbox.width)
        title = axes.get_title(loc="left")
        rooms |= {text: end for text in _texts(axes) if title and text.get_text() == title}
    broken = [_break(text, end) for text, end in rooms.items()]
    return any(broken)


def _texts(part: Artist) -> list[Text]:
    from matplotlib.text import Text

    return [text for text in part.findobj(Text) if isinstance(text, Text)]


def _break(text: Text, end: float) -> bool:
    """Wrap a text so that it ends before a coordinate; return whether that was needed."""
    extent = text.get_window_extent()
    if extent.x1 <= end:
        return False
    longest = max(map(len, text.get_text().split("\n")))
    room = int(longest * (end - extent.x0) / extent.width)
    text.set_text(fill(text.get_text().replace("\n", " "), max(room, 10)))
    return True


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
    """Yield an empty figure to draw on; afterwards write it in each format, atomically and reproducibly.

    A PNG keeps its size, vector formats get the width of a paper's column or page.
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
    """Show names literally, where matplotlib would read text between two `$` as a formula; keep logarithmic axes."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    logarithmic = [axis for axis in axes if isinstance(axis.get_major_formatter(), LogFormatter)]
    formulas = {text for axis in logarithmic for minor in (False, True) for text in axis.get_ticklabels(minor=minor)}
    for text in figure.findobj(Text):
        if text not in formulas:
            text.set_parse_math(False)


def write_drawings(
    folder: Path, drawings: Mapping[str, Callable[[Figure], None]], formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw figures by name, each in some formats, and return the paths of the files."""
    paths = [folder / name for name in drawings]
    for path, draw in zip(paths, drawings.values(), strict=True):
        with drawing(path.with_suffix(".png"), formats) as figure:
            draw(figure)
    return forms_of(paths, formats)


def _save(figure: Figure, path: Path, form: str, **options: Any) -> None:
    (target,) = forms_of([path], [form])
    with replacing(target) as partial:
        figure.savefig(partial, format=form, metadata=_METADATA[form], **options)


def _in_lines(name: str) -> str:
    """Return a name wrapped after dots into lines of at most `NAME_WIDTH` characters, where possible."""
    lines = [""]
    for part in re.split(r"(?<=\.)", name):
        if lines[-1] and len(lines[-1]) + len(part) > NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def name_layers(axes: Axes, layers: Sequence[int], most: int = 14, what: str = "layer (0 = embeddings)") -> None:
    """Mark the measured layers on the x axis, and label at most `most` of them.

    A single layer is placed in the middle, with room for `side_by_side` marks.
    """
    numbers = sorted(set(layers))
    has_names = any(isinstance(layer, NamedLayer) for layer in numbers)
    named = set(spaced_layers(numbers, MOST_NAMES if has_names else most))
    axes.set_xticks(numbers, [_in_lines(str(layer)) if layer in named else "" for layer in numbers])
    if has_names:
        axes.tick_params(axis="x", rotation=90)
        figure = cast("Figure", axes.figure)
        if figure.axes[0] is axes:
            longest = max(len(line) for layer in named for line in _in_lines(str(layer)).splitlines())
            figure.set_figheight(figure.get_figheight() + LETTER * longest)
    axes.set_xlabel("layer" if has_names else what)
    if len(numbers) == 1:
        axes.set_xlim(numbers[0] - 0.5, numbers[0] + 0.5)


def panels(figure: Figure, n: int, size: tuple[float, float], room: tuple[float, float], **options: Any) -> list[Axes]:
    """Return n panels, at most `SIDE_BY_SIDE` in a row; `size` of a panel and `room` around all are in inches."""
    columns = min(SIDE_BY_SIDE, n)
    rows = -(-n // columns)
    figure.set_size_inches(max(NARROWEST, room[0] + size[0] * columns), room[1] + size[1] * rows)
    grid = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for axes in grid[n:]:
        axes.set_visible(False)
    return cast("list[Axes]", grid[:n])


def from_zero(axes: Axes) -> None:
    """Let the y axis begin at 0 and end above all data, so that no line lies on its border."""
    top = float(axes.dataLim.ymax)
    axes.set_ylim(0, 1.05 * top if top > 0 else 1)


def side_by_side(n: int, layers: Sequence[int]) -> NDArray[np.float64]:
    """Return a shift along the x axis for each of n lines, in layers, for a single layer, whose marks would overlap."""
    if len(set(layers)) > 1 or n == 1:
        return np.zeros(n)
    return np.linspace(-0.3, 0.3, n)


def joined(look: dict[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """Return the look of a line over some layers; for a single layer it has marks only."""
    return look if len(set(layers)) > 1 else {**look, "ls": ""}


def error_bars(rows: Sequence[Row], values: NDArray[np.float64], of: str = "", times: float = 1) -> NDArray[Any] | None:
    """Return the reach of intervals below and above the values, shape (2, n); None if no row has an interval.

    Values, shape (n,), are already multiplied by `times`; `of` is as in `probing.results.ends`. A row without an
    interval gets a bar of length 0.
    """
    intervals = [ends(row, of) for row in rows]
    if not any(intervals):
        return None
    low, high = (np.array([times * pair[i] if pair else np.nan for pair in intervals]) for i in (0, 1))
    return np.nan_to_num(np.clip([values - low, high - values], 0, None))
