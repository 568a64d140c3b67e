"""Figures at the size of a paper: as wide as a column or the whole page, with letters that can still be read there."""

from __future__ import annotations

import math
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

# Widths in inches: of one of two columns, and of the page.
COLUMN, PAGE = 3.3, 6.8
# Widest figure for the screen, in inches, whose single panel is drawn in one column.
SMALL = 6.5
# Height of a page, in inches: a taller figure is not stretched further to make room for its letters.
HEIGHT = 9.0
# Smallest letters in points, and those of numbers in the cells of a map; without room for these the cells are empty.
LETTERS, CELLS = 6.5, 4.5
# Share of a cell's width that its number may take, and height of a panel in a column, as a share of its width.
FILLED, PANEL = 0.9, 0.62


def fit_to_paper(figure: Figure) -> Bbox:
    """Give a figure, as it was drawn for the screen, the width of a column or of a page.

    A figure with one panel gets the width of a column, and its legend is below the panel. Letters shrink with the
    width, but not below what can be read, and titles that are too long for it go over several lines.

    Returns:
        What is to be written, in inches: the whole figure, and what might stick out of it.
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
        figure.set_size_inches(new, PANEL * new + sum(below))
    figure.draw_without_rendering()
    for axes in panels:
        if axes.images:
            _fit_cells(axes)
    if _fit_titles(figure, panels):
        figure.draw_without_rendering()
    return Bbox.union([figure.bbox_inches, figure.get_tightbbox()])


def _below(figure: Figure, legend: Legend, axes: Axes) -> float:
    """Put a legend below the only panel, in as many columns as there is room for, and return its height in inches."""
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


def _fit_cells(axes: Axes) -> None:
    """Make the numbers in the cells of a map as small as the cells, or leave them out; name the columns with room."""
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
    """Break the titles that would reach beyond the figure, or into the next panel; return whether there were any."""
    lefts = [box.x0 for axes in panels if (box := axes.get_tightbbox())]
    rooms: dict[Text, float] = {text: figure.bbox.width for text in figure.texts if not text.get_rotation()}
    for axes in panels:
        # A title begins at the left end of its panel.
        start = axes.get_window_extent().x0
        end = min([left for left in lefts if left > start + 1], default=figure.bbox.width)
        title = axes.get_title(loc="left")
        rooms |= {text: end for text in _texts(axes) if title and text.get_text() == title}
    broken = [_break(text, end) for text, end in rooms.items()]
    return any(broken)


def _texts(part: Artist) -> list[Text]:
    from matplotlib.text import Text

    return [found for found in part.findobj(Text) if isinstance(found, Text)]


def _break(text: Text, end: float) -> bool:
    """Break a text over several lines, so that it ends before a coordinate; return whether that was needed."""
    extent = text.get_window_extent()
    if extent.x1 <= end:
        return False
    longest = max(map(len, text.get_text().split("\n")))
    room = int(longest * (end - extent.x0) / extent.width)
    text.set_text(fill(text.get_text().replace("\n", " "), max(room, 10)))
    return True
