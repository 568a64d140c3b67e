"""Style and paper size of all figures; the only place that writes figures, as PNG, PDF and SVG."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO, StringIO
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from probing.cli.options import FIGURE_FORMAT, figure_formats
from probing.results import NamedLayer, Row, element, ends
from probing.results import joined as joined_html
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

# Height of a page of a paper, in inches: a taller figure is not stretched further to make room for its letters.
PAGE_HEIGHT = 9.0

# Smallest letters in points, and those of numbers in the cells of a map; without room for these the cells are empty.
LETTERS, CELLS = 6.5, 4.5

# Of layers that have names: most that stand below an axis, characters of a line, and the height of one in inches.
MOST_NAMES, NAME_WIDTH, LETTER = 10, 24, 0.07

# Most numbers of an axis that are marked where not all have a label.
MOST_MARKED = 40

# Most panels of a figure in a row, and width of the narrowest such figure in inches.
SIDE_BY_SIDE, NARROWEST = 4, 4.6

# Share of a cell's width that its number may take, and height of a panel in a column, as a share of its width.
FILLED, PANEL = 0.9, 0.62


def fit_to_paper(figure: Figure) -> Bbox:
    """Resize a figure for the screen to the width of a column or a page; return the box to write, in inches.

    A figure with one panel gets the width of a column and its legend below. Letters have one size, and long titles are
    wrapped. The box contains the whole figure and whatever sticks out of it.
    """
    from matplotlib.transforms import Bbox

    width, height = figure.get_size_inches()
    panels = [axes for axes in figure.axes if axes.get_visible()]
    is_small = len(panels) == 1 and width <= SMALL
    new = COLUMN if is_small else PAGE
    for text in _texts(figure):
        size = float(text.get_fontsize())
        text.set_fontsize(min(size, LETTERS))
    scale = new / width
    # Letters shrink less than the width, and therefore the height shrinks less, too.
    figure.set_size_inches(new, max(height * scale, min(height * math.sqrt(scale), PAGE_HEIGHT)))
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
    named = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    # Legends of charts have long labels in two lines.
    handles = {words: handle for label, handle in named.items() for words in (label, _in_two_lines(label))}
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


Drawings = Mapping[str, Callable[["Figure"], None]]


def write_drawings(folder: Path, drawings: Drawings, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw figures by name, each in some formats, and return the paths of the files."""
    if drawings:
        folder.mkdir(exist_ok=True)
    paths = [folder / name for name in drawings]
    for path, draw in zip(paths, drawings.values(), strict=True):
        with drawing(path.with_suffix(".png"), formats) as figure:
            draw(figure)
    return forms_of(paths, formats)


# --------------------------------------------------------------------------------------------------------------------
# Charts: declared once and drawn here, as figures and as SVG that `probing.page.charts` puts on pages.
# --------------------------------------------------------------------------------------------------------------------

# Number of looks that a page has (`page/style.css`), so that lines of one chart can be distinguished there, too.
N_LOOKS = 7
# Colour, dashes and mark of each look: lines differ without colour, too.
LOOKS = (
    (BLUE, "-", "o"), (GREY, (0, (7, 4)), "s"), (ORANGE, ":", "^"), (GREEN, "-.", "D"), (PURPLE, (0, (4, 2)), "v"),
    ("#1b1b1b", (0, (1, 4)), "x"), ("#00706b", (0, (10, 4)), "+"), (GREY, "-", "P"), (ORANGE, "--", "*"),
    (GREEN, (0, (1, 1)), "<"),
)  # fmt: skip

# Hatches of bands and of bars of each look.
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++")


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Args:
        label: Name in the legend; lines of one name look alike in all panels.
        at: Layers or steps along the x axis.
        values: Values, one for each of these.
        ranges: Intervals, one for each, None where there is none; empty if there are none at all.
        which: What distinguishes it from other lines of the same label, shown to those who point at it.
        points: Values at each of these that the line averages, such as one per seed, drawn as small dots.
        is_faint: Whether it is thin and grey, without marks and not in the legend, as one of many.
        kind: How it is drawn: its marks joined, a curve without marks, marks alone, a band between the ends of its
            intervals, or bars from 0.
    """

    label: str
    at: Sequence[int]
    values: Sequence[float]
    ranges: Sequence[tuple[float, float] | None] = ()
    which: str = ""
    points: Sequence[Sequence[float]] = ()
    is_faint: bool = False
    kind: Literal["line", "curve", "marks", "band", "bars"] = "line"

    @classmethod
    def of(
        cls, rows: Sequence[Row], column: str, label: str, interval: str | None = None, x: str = "layer",
        scale: float = 1.0, which: str = "",
    ) -> Line:  # fmt: skip
        """Return the line of a column of a table, over the rows that have a number in it.

        Args:
            rows: The rows, ascending by x.
            column: The column.
            label: Name in the legend.
            interval: Name of the interval, as in `probing.results.ends`; the column by default.
            x: The column of the x axis.
            scale: Factor of values and intervals.
            which: As of `Line`.
        """
        drawn = [row for row in rows if isinstance(row.get(column), int | float)]
        bounds = [ends(row, column if interval is None else interval) for row in drawn]
        return cls(
            label, [row[x] for row in drawn], [scale * row[column] for row in drawn],
            [None if pair is None else (scale * pair[0], scale * pair[1]) for pair in bounds], which,
        )  # fmt: skip

    @classmethod
    def band(
        cls, rows: Sequence[Row], low: str, high: str, label: str, x: str = "layer", scale: float = 1.0
    ) -> Line:  # fmt: skip
        """Return the band between two columns of a table; the other arguments are those of `of`."""
        bounds = [(scale * row[low], scale * row[high]) for row in rows]
        return cls(label, [row[x] for row in rows], [sum(pair) / 2 for pair in bounds], bounds, kind="band")

    def parts(self, is_by_layer: bool) -> list[slice]:
        """Return the parts that are joined: layers between which another was not measured are not."""
        breaks = [
            i + 1
            for i, (a, b) in enumerate(pairwise(self.at))
            if is_by_layer and not isinstance(a, NamedLayer) and b - a > 1
        ]
        return [slice(*bounds) for bounds in pairwise([0, *breaks, len(self.at)])]

    @property
    def name(self) -> str:
        """The label with what distinguishes the line from others of it."""
        return f"{self.label}, {self.which}" if self.which else self.label

    def value_text(self, i: int, unit: str) -> str:
        """Return the value with this index in words, with its interval and the range of its points."""
        text = f"{self.name}, {unit} {self.at[i]}: {self.values[i]:.3f}"
        if self.ranges and (bounds := self.ranges[i]):
            text += f" ({bounds[0]:.3f} to {bounds[1]:.3f})"
        if self.points and len(values := self.points[i]) > 1:
            text += f" ({min(values):.3f} to {max(values):.3f} in {len(values)})"
        return text

    @property
    def extent(self) -> list[float]:
        """Everything that is drawn along the y axis: values, ends of intervals, points, and the 0 of bars."""
        bounds, points = (pair or () for pair in self.ranges), self.points
        begin = [0.0] * (self.kind == "bars")
        return [*begin, *self.values, *(value for several in (*bounds, *points) for value in several)]


@dataclass(frozen=True)
class XAxis:
    """The x axis of a chart.

    Args:
        unit: What a number along the axis is called.
        name: Returns the label of the axis, from the numbers.
        places: Returns where the numbers are, in any unit.
        labels: Returns the label of each number, given the characters that fit; empty where there is no room.
    """

    unit: str
    name: Callable[[Sequence[int]], str]
    places: Callable[[Sequence[int]], Sequence[float]]
    labels: Callable[[Sequence[int], int], Sequence[str]]


def _labels_of_layers(layers: Sequence[int], characters: int) -> list[str]:
    longest = max((len(str(layer)) for layer in layers), default=1)
    named = spaced_layers(layers, max(1, min(26, characters // longest)))
    return [str(layer) if layer in named else "" for layer in layers]


BY_LAYER = XAxis(
    "layer", lambda layers: "layer" if isinstance(layers[0], NamedLayer) else "layer (0 = embeddings)",
    lambda layers: layers, _labels_of_layers,
)  # fmt: skip
BY_STEP = XAxis("step", name, coordinates, labels)


def by_count(unit: str, name: str) -> XAxis:
    """Return a logarithmic x axis of numbers from 1."""
    return XAxis(unit, lambda _: f"{name} (logarithmic)", coordinates, labels)


def by_name(unit: str, name: str) -> XAxis:
    """Return an x axis of names, which are numbered `NamedLayer`s."""
    return XAxis(unit, lambda _: name, lambda numbers: numbers, lambda names, _: [str(name) for name in names])


def linear(unit: str, name: str) -> XAxis:
    """Return a linear x axis with whole numbers; of the unit `layer`, lines have gaps where no layer was measured."""
    return XAxis(unit, lambda _: name, lambda numbers: numbers, _labels_of_layers)


@dataclass(frozen=True)
class Panel:
    """The lines of one pair of axes.

    Args:
        lines: The lines.
        title: Title of the panel.
        y: Label of a y axis of this panel alone, where the panels show different quantities.
        from_zero: Whether this y axis begins at 0.
        is_logarithmic: Whether this y axis is logarithmic.
    """

    lines: Sequence[Line]
    title: str = ""
    y: str = ""
    from_zero: bool = False
    is_logarithmic: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of lines, marks, bands or bars, as figure and on the page.

    Args:
        name: Name of the figure's file.
        title: What is shown, as a sentence without the model's name.
        panels: Its panels, which share the axes except for a y axis that is of a panel alone.
        y: Label of the y axis.
        limits: Ends of the y axis, of which the lower one is higher where all values are near the upper one (see
            `share_axis`); round ends around the values by default.
        from_zero: Whether the y axis begins at 0 where it has no limits.
        x: The x axis.
        reference: A value at which a horizontal line is drawn.
        bars: What the bars of the lines are.
        caption: Caption on the page; the label of the y axis, or the title, by default.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    y: str = ""
    limits: tuple[float, float] | None = None
    from_zero: bool = False
    x: XAxis = BY_LAYER
    reference: float | None = None
    bars: str = "95% intervals"
    caption: str = ""

    @property
    def is_of_one_layer(self) -> bool:
        """Whether the chart is by layer, and all of it is at one."""
        layers = {at for panel in self.panels for line in panel.lines for at in line.at}
        return self.x.unit == BY_LAYER.unit and len(layers) == 1

    @property
    def is_split(self) -> bool:
        """Whether there are more labels than looks: each panel then has looks and a legend for its own labels."""
        return len(self.panels) > 1 and len({*self._labels_of(*self.panels)}) > N_LOOKS

    def looks_of(self, panel: Panel) -> dict[str, int]:
        """Return the look of each label of a panel, the same in all panels; of a split chart, panels have their own."""
        shown = [panel] if self.is_split else self.panels
        return {label: i for i, label in enumerate(dict.fromkeys(self._labels_of(*shown)))}

    @classmethod
    def with_values(cls, charts: Iterable[Chart]) -> list[Chart]:
        """Return the charts that have values, each with the panels that have some, and the lines of these that do."""
        drawn = [replace(chart, panels=[
            replace(panel, lines=lines) for panel in chart.panels
            if (lines := [line for line in panel.lines if line.at])
        ]) for chart in charts]  # fmt: skip
        return [chart for chart in drawn if chart.panels]

    def places(self, panel: Panel) -> dict[int, float]:
        """Return where each layer or step of a panel is on the x axis, ascending."""
        all_at = sorted({at for line in panel.lines for at in line.at})
        return dict(zip(all_at, self.x.places(all_at), strict=True))

    @staticmethod
    def _labels_of(*panels: Panel) -> list[str]:
        return [line.label for panel in panels for line in panel.lines if not line.is_faint]


def in_panels(lines: Sequence[Line], references: Sequence[Line] = (), what: str = "lines") -> list[Panel]:
    """Return the lines in as many panels as their looks can be distinguished in, each with the references.

    `what` names the labels, in the titles of several panels.
    """
    labels = list(dict.fromkeys(line.label for line in lines))
    n_panels = math.ceil(len(labels) / (N_LOOKS - len(references))) or 1
    size = math.ceil(len(labels) / n_panels)
    parts = [labels[first : first + size] for first in range(0, len(labels), size or 1)]
    numbers = [f"{what} {i * size + 1} to {i * size + len(part)}" for i, part in enumerate(parts)]
    return [
        Panel([*(line for line in lines if line.label in part), *references], title if len(parts) > 1 else "")
        for part, title in zip(parts, numbers, strict=True)
    ]


def chart_drawings(charts: Iterable[Chart], prefix: str) -> Drawings:
    """Return what draws each chart that has values, by its name; titles begin with `prefix`, such as the model's."""
    return {chart.name: partial(_draw_chart, chart=chart, prefix=prefix) for chart in Chart.with_values(charts)}


def with_title(draw: Callable[[Figure], None], title: str) -> Callable[[Figure], None]:
    """Return what draws a figure with another title; an empty one leaves it out."""

    def titled(figure: Figure) -> None:
        draw(figure)
        panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
        if len(panels) == 1 and not figure.get_suptitle():
            panels[0].set_title(title)
        else:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10)

    return titled


class Figures(list["Figure"]):
    """Figures of matplotlib, which a notebook shows one below the other.

    Args:
        drawings: What draws each, by its name.
    """

    def __init__(self, drawings: Drawings) -> None:
        import matplotlib
        from matplotlib.figure import Figure

        super().__init__()
        self.names = list(drawings)
        for draw in drawings.values():
            with matplotlib.rc_context(STYLE):
                figure = Figure(layout="constrained")
                draw(figure)
                _show_as_written(figure)
            self.append(figure)

    def __repr__(self) -> str:
        return f"figures of matplotlib: {', '.join(self.names)}"

    def _repr_html_(self) -> str:
        import matplotlib

        shown = []
        for name, figure in zip(self.names, self, strict=True):
            buffer = BytesIO()
            with matplotlib.rc_context(STYLE):
                figure.savefig(buffer, format="svg", metadata=_METADATA["svg"])
            data = b64encode(buffer.getvalue()).decode()
            shown.append(element("img", src=f"data:image/svg+xml;base64,{data}", alt=name, style="max-width:100%"))
        return joined_html(*(element("p", image) for image in shown))


def _draw_chart(figure: Figure, chart: Chart, prefix: str) -> None:
    n = len(chart.panels)
    has_shared_y = chart.is_split or not any(panel.y for panel in chart.panels)
    all_axes = panels(figure, n, (3.4, 2.9), (2.4, 0.5), sharey=has_shared_y)
    for axes, panel in zip(all_axes, chart.panels, strict=True):
        _draw_panel(axes, chart, panel)
    _set_y_ends(chart, all_axes)
    for i, (axes, panel) in enumerate(zip(all_axes, chart.panels, strict=True)):
        axes.set_ylabel(panel.y or (chart.y if i % SIDE_BY_SIDE == 0 else ""))
    title = f"{prefix}: {chart.title}" if prefix else f"{chart.title[:1].upper()}{chart.title[1:]}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    if chart.is_split:
        for axes in all_axes:
            handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
            axes.legend(handles.values(), map(_in_two_lines, handles), fontsize=7, framealpha=0.7, frameon=True)
        return
    handles = {
        label: handle for axes in all_axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), map(_in_two_lines, handles), loc="outside right center")


def _in_two_lines(label: str) -> str:
    return fill(label, 26)


def _draw_panel(axes: Axes, chart: Chart, panel: Panel) -> None:
    _draw_lines(axes, chart, panel)
    place = chart.places(panel)
    if chart.x.unit == "layer":
        name_layers(axes, [*place], most=9, what=chart.x.name([*place]))
    else:
        room = 80 // max(2, min(SIDE_BY_SIDE, len(chart.panels)))  # characters in a panel on a page of a paper
        ticks = dict(zip(place.values(), chart.x.labels([*place], room), strict=True))
        if len(ticks) > MOST_MARKED:
            ticks = {at: label for at, label in ticks.items() if label}
        axes.set_xticks([*ticks], [*ticks.values()])
        if isinstance(next(iter(place)), NamedLayer) and sum(map(len, ticks.values())) + len(ticks) > room:
            axes.tick_params(axis="x", rotation=90)
        axes.set_xlabel(chart.x.name([*place]))
    axes.set_title(fill(panel.title, 46))


@dataclass(frozen=True)
class Part:
    """What draws a part of a panel.

    `kind` is `line`, with its marks, `bar` and `cap` of an interval, `dot`, `band`, `block`, `faint` or `reference`;
    `indices` are those of the values of the line that it shows.
    """

    artist: Artist
    kind: str
    line: Line | None = None
    indices: Sequence[int] = ()


def _draw_lines(axes: Axes, chart: Chart, panel: Panel, marks: float = 4) -> list[Part]:
    """Draw the lines of a panel, with marks of a size in points, and return what draws them."""
    place = chart.places(panel)
    is_single = len(place) == 1
    span = (max(place.values()) - min(place.values())) or 1.0
    # Intervals, and all marks of a single layer, are side by side.
    marked = [line for line in panel.lines if line.kind in ("line", "marks")]
    beside = [line for line in marked if is_single or (any(line.ranges) and len(line.at) > 1)]
    distance = 0.6 / max(1, len(beside) - 1) if is_single else 0.01 * span
    shifts = {id(line): distance * (i - (len(beside) - 1) / 2) for i, line in enumerate(beside)}
    bars = [line for line in panel.lines if line.kind == "bars"]
    width = 0.8 / max(1, len(bars)) * min((b - a for a, b in pairwise(place.values())), default=1.0)
    shifts |= {id(line): width * (i - (len(bars) - 1) / 2) for i, line in enumerate(bars)}
    looks = chart.looks_of(panel)
    parts: list[Part] = []
    if chart.reference is not None:
        parts.append(Part(axes.axhline(chart.reference, color=GREY, lw=0.6), "reference"))
    for line in panel.lines:
        xs = np.array([place[at] for at in line.at]) + shifts.get(id(line), 0.0)
        if line.is_faint:
            (faint,) = axes.plot(xs, line.values, color="#cccccc", lw=0.7, marker=".", ms=marks / 2, zorder=1)
            parts.append(Part(faint, "faint", line))
        elif line.kind == "bars" or (line.kind == "band" and len(xs) > 1):
            parts += _areas(axes, line, xs, looks[line.label], width)
        else:
            joins = line.kind != "marks" and not is_single and len(line.at) > 1
            parts += _marks(axes, line, xs, looks[line.label], line.parts(chart.x.unit == "layer"), joins, marks)
    return parts


def _areas(axes: Axes, line: Line, xs: NDArray[np.float64], look: int, width: float) -> list[Part]:
    """Draw bars from 0, or the band between the ends of intervals."""
    color, hatch = LOOKS[look % len(LOOKS)][0], HATCHES[look % len(HATCHES)]
    options: dict[str, Any] = {"facecolor": f"{color}55", "edgecolor": color, "lw": 0.6, "hatch": hatch}
    if line.kind == "bars":
        bars = axes.bar(xs, line.values, width, label=line.label, **options)
        return [Part(bar, "block", line, [i]) for i, bar in enumerate(bars)]
    low, high = np.array([pair or (math.nan, math.nan) for pair in line.ranges]).T
    return [Part(axes.fill_between(xs, low, high, label=line.label, **options), "band", line)]


def _marks(
    axes: Axes, line: Line, xs: NDArray[np.float64], look: int, pieces: Sequence[slice], joins: bool, size: float
) -> list[Part]:
    """Draw the marks of a line, its dots and its intervals; of each piece, the marks are joined if `joins`."""
    color, dashes, mark = LOOKS[look % len(LOOKS)]
    values = np.array(line.values, dtype=float)
    parts: list[Part] = []
    for piece in pieces:
        (stroke,) = axes.plot(
            xs[piece], values[piece], color=color, ls=dashes if joins else "", lw=1.3, ms=size,
            marker="" if line.kind == "curve" else mark, label=line.label if piece.start == 0 else None,
        )  # fmt: skip
        shown = [] if line.kind == "curve" else [i for i in range(len(xs))[piece] if np.isfinite(values[i])]
        parts.append(Part(stroke, "line", line, shown))
    for i, (x, some) in enumerate(zip(xs, line.points, strict=False)):
        (dots,) = axes.plot([x] * len(some), some, ".", ms=size, color=color, alpha=0.6)
        parts.append(Part(dots, "dot", line, [i] * int(np.isfinite(some).sum())))
    with_range = [i for i, pair in enumerate(line.ranges) if pair and np.isfinite([*pair, values[i]]).all()]
    if with_range:
        low, high = np.array([line.ranges[i] for i in with_range]).T
        bars = np.clip([values[with_range] - low, high - values[with_range]], 0, None)
        _, caps, (stems,) = axes.errorbar(
            xs[with_range], values[with_range], yerr=bars, fmt="none", ecolor=color, capsize=size / 2, elinewidth=0.7
        )
        parts += [Part(stems, "bar", line, with_range), *(Part(cap, "cap", line) for cap in caps)]
    return parts


def _set_y_ends(chart: Chart, all_axes: Sequence[Axes]) -> None:
    """Set the ends of the y axes of the panels: the limits, or beyond them where values are; or from 0."""
    panels = list(zip(all_axes, chart.panels, strict=True))
    if chart.limits:
        extent = (x for panel in chart.panels for line in panel.lines for x in line.extent)
        share_axis([*extent, math.nan if chart.reference is None else chart.reference], *all_axes)
        return
    for axes, panel in panels:
        if panel.is_logarithmic:
            axes.set_yscale("log")
        if panel.from_zero:
            from_zero(axes)
    if chart.from_zero and (shared := [axes for axes, panel in panels if not panel.y]):
        from_zero(*shared)


# Size in pixels of a panel on a page and the margins of its axes, and the width of a letter below them.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, LETTER_WIDTH = 560, 320, 44, 10, 12, 40, 7
# What is drawn of a panel on a page, where a pixel is a point; `page/style.css` has its colours.
PAGE_STYLE: dict[str, Any] = {
    "font.size": 12.5, "axes.grid": True, "axes.grid.axis": "y", "axes.spines.left": False, "axes.spines.bottom": False,
    "xtick.major.size": 0, "ytick.major.size": 0, "axes.formatter.useoffset": False, "text.parse_math": False,
}  # fmt: skip
_SVG_METADATA = "Creator", "Date", "Format", "Type"


def panels_as_svg(chart: Chart) -> list[tuple[str, list[Part]]]:
    """Return each panel of a chart as SVG for a page, whose group `part-0` shows the first part, and so on."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    box = LEFT / WIDTH, BOTTOM / HEIGHT, 1 - (LEFT + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / HEIGHT
    texts = []
    with matplotlib.rc_context(STYLE | PAGE_STYLE):
        figures = [Figure((WIDTH / 72, HEIGHT / 72)) for _ in chart.panels]
        all_axes: list[Axes] = []
        for figure, panel in zip(figures, chart.panels, strict=True):
            shared = [axes for axes, other in zip(all_axes, chart.panels, strict=False) if not (panel.y or other.y)]
            all_axes.append(figure.add_axes(box, sharey=shared[0] if shared else None))
        drawn = [_draw_lines(axes, chart, panel, 8) for axes, panel in zip(all_axes, chart.panels, strict=True)]
        _set_y_ends(chart, all_axes)
        for figure, axes, panel, parts in zip(figures, all_axes, chart.panels, drawn, strict=True):
            if not (panel.is_logarithmic or chart.limits):
                axes.locator_params(axis="y", nbins=6)
            _label_x_on_page(axes, chart.x, chart.places(panel))
            for i, part in enumerate(parts):
                part.artist.set_gid(f"part-{i}")
            text = StringIO()
            # Of two charts on a page, no identifiers are equal.
            with matplotlib.rc_context({"svg.hashsalt": f"{chart.title} {panel}"}):
                FigureCanvasSVG(figure).print_svg(text, metadata=dict.fromkeys(_SVG_METADATA))
            texts.append(text.getvalue())
    return list(zip(texts, drawn, strict=True))


def _label_x_on_page(axes: Axes, x: XAxis, places: Mapping[int, float]) -> None:
    labels = x.labels([*places], (WIDTH - LEFT - RIGHT) // LETTER_WIDTH)
    # What is drawn is read as XML, which has no control characters.
    axes.set_xticks([*places.values()], [label if label.isprintable() else ascii(label) for label in labels])
    axes.set_xlabel(x.name([*places]))
    if len(places) == 1:
        (place,) = places.values()
        axes.set_xlim(place - 0.5, place + 0.5)
        return
    first, *_, last = axes.get_xticklabels()
    for label in (first, last):
        if LETTER_WIDTH * len(label.get_text()) > 2 * LEFT:
            label.set_horizontalalignment("left" if label is first else "right")


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

    A single layer is placed in the middle, with room for marks beside each other.
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


def draw_cells(
    figure: Figure, cells: Mapping[tuple[int, int], tuple[str, float]], size: tuple[float, float] = (0.44, 0.3)
) -> Axes:
    """Draw a cell with a text and a shade from 0 to 1 for each layer, upwards, and head; `size` in inches."""
    layers, heads = (sorted({place[i] for place in cells}) for i in (0, 1))
    figure.set_size_inches(max(5.0, 1.2 + size[0] * len(heads)), 1.1 + size[1] * len(layers))
    axes = figure.add_subplot()
    shades = np.zeros((len(layers), len(heads)))
    for (layer, head), (text, shade) in cells.items():
        i, j = layers.index(layer), heads.index(head)
        shades[i, j] = shade
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if shade > 0.62 else "black")
    axes.imshow(shades, cmap="Greys", vmin=0, vmax=1.1, origin="lower", aspect="auto")
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    return axes


def from_zero(*panels: Axes) -> None:
    """Let the y axes begin at 0, or below all data, and end above all data, so that no line lies on their border."""
    bottom, top = min(axes.dataLim.ymin for axes in panels), max(axes.dataLim.ymax for axes in panels)
    for axes in panels:
        axes.set_ylim(min(0, 1.05 * bottom), 1.05 * top if top > 0 else 1)


# Shares that are all above this are drawn on an axis that does not begin at 0.
TOP_BAND = 0.65


def share_axis(values: Iterable[float], *panels: Axes) -> None:
    """Let the y axes of shares range from 0 to 1 or, if all values are near 1, from a round number below them."""
    from matplotlib.ticker import MultipleLocator

    drawn = [value for value in values if math.isfinite(value)]
    lowest = min(drawn, default=0.0)
    begin = math.floor(10 * lowest - 0.1) / 10 if lowest > TOP_BAND else 0.0
    margin = 0.04 * (1 - begin)
    step = next(step for step in (0.02, 0.05, 0.1, 0.2) if 1 - begin < 5.5 * step)
    for axes in panels:
        axes.set_ylim(min([begin - margin, *drawn]), max([1 + margin, *drawn]))
        axes.yaxis.set_major_locator(MultipleLocator(step))


def error_bars(
    rows: Sequence[Row], values: Sequence[float] | NDArray[np.float64], of: str = "", times: float = 1
) -> NDArray[Any] | None:
    """Return the reach of intervals below and above the values, shape (2, n); None if no row has an interval.

    Values, shape (n,), are already multiplied by `times`; `of` is as in `probing.results.ends`. A row without an
    interval gets a bar of length 0.
    """
    intervals = [ends(row, of) for row in rows]
    if not any(intervals):
        return None
    low, high = (np.array([times * pair[i] if pair else np.nan for pair in intervals]) for i in (0, 1))
    return np.nan_to_num(np.clip([np.subtract(values, low), np.subtract(high, values)], 0, None))
