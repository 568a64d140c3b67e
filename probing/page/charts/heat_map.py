"""A map of the layers of one run by the layers of another as SVG, each cell with its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probing.results.markup import Html, element
from probing.tables.wording import two_decimals

CELL_WIDTH, CELL_HEIGHT = 34, 24
LEFT, BOTTOM = 46, 38
# From this shade on, numbers are written in the colour of the page's background.
STRONG = 0.6


def heat_map(
    values: Mapping[tuple[int, int], float], titles: Mapping[tuple[int, int], str], names: tuple[str, str], title: str
) -> Html:
    """Return a grid of cells, the first run's layers upwards, shaded from 0 to 1.

    Args:
        values: Values by a layer of the first run and a layer of the second.
        titles: Text shown for each cell.
        names: Names of the two runs.
        title: Title of the map.
    """
    down, across = (sorted({layers[side] for layers in values}) for side in (0, 1))
    width, height = LEFT + CELL_WIDTH * len(across) + 4, CELL_HEIGHT * len(down) + BOTTOM + 4
    cells = [
        _cell(values[layers], titles[layers], across.index(layers[1]), len(down) - 1 - down.index(layers[0]))
        for layers in sorted(values)
    ]
    rows = _labels(down, [(LEFT - 7, (len(down) - i - 0.5) * CELL_HEIGHT + 4) for i in range(len(down))], "end")
    foot = len(down) * CELL_HEIGHT
    columns = _labels(across, [(LEFT + (j + 0.5) * CELL_WIDTH, foot + 15) for j in range(len(across))], "middle")
    middle = (LEFT + len(across) * CELL_WIDTH / 2, foot / 2)
    upwards = f"translate(12 {middle[1]:g}) rotate(-90)"
    svg = element(
        "svg", element("title", f"{title}, layers of {names[0]} by layers of {names[1]}"), *cells, *rows, *columns,
        element("text", f"layer of {_short(names[1])}", x=middle[0], y=height - 4, text_anchor="middle"),
        element("text", f"layer of {_short(names[0])}", transform=upwards, text_anchor="middle"),
        viewBox=f"0 0 {width} {height}", role="img", class_="chart heat", style=f"width:{width}px",
    )  # fmt: skip
    return element("figure", element("figcaption", title), svg, class_="heat-map")


def _cell(value: float, title: str, column: int, row: int) -> Html:
    x, y = LEFT + column * CELL_WIDTH, row * CELL_HEIGHT
    shade = min(max(value, 0.0), 1.0)
    text, look = two_decimals(value).replace("0.", ".", 1), "on-strong" if shade > STRONG else None
    width, height = CELL_WIDTH - 1, CELL_HEIGHT - 1
    return element(
        "g",
        element("title", title),
        element("rect", x=x, y=y, width=width, height=height, fill_opacity=f"{shade:.2f}", class_="cell"),
        element("text", text, x=x + width / 2, y=y + 16, text_anchor="middle", class_=look),
    )


def _labels(layers: Sequence[int], points: Sequence[tuple[float, float]], anchor: str) -> list[Html]:
    return [
        element("text", layer, x=point[0], y=point[1], text_anchor=anchor)
        for layer, point in zip(layers, points, strict=True)
    ]


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"
