"""A sentence with arcs above it, from each word to the word that it attends to most, as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from probing.results.markup import Html, element

# Width of a letter, of a wide one and of the room between words; distances of arcs from the line of the words.
LETTER, WIDE, GAP = 7.4, 14.0, 16.0
ABOVE, BELOW = 21, 14
# Width of an arc for all of the attention of a word, and the least width, which all weak arcs have. In between, the
# width is proportional to the attention.
FULL, LEAST = 7.0, 0.5
# Width and height of the heads of arrows, which lie between arcs and words: arcs end at a right angle to the line.
TIP_WIDTH, TIP_HEIGHT = 8, 6
# Arcs begin this far to the right of a word's middle and end as far to the left, so that two words that attend to each
# other have two arcs, one inside the other.
ASIDE = 3


@dataclass(frozen=True)
class Row:
    """Words side by side.

    Args:
        middles: The x coordinate of the middle of each word.
        width: Width of all of them.
    """

    middles: Sequence[float]
    width: float

    @classmethod
    def of(cls, words: Sequence[str]) -> Row:
        """Place words from the left to the right, by an estimate of their widths."""
        middles, x = [], 0.0
        for word in words:
            width = sum(WIDE if east_asian_width(letter) in "WF" else LETTER for letter in word) + GAP
            middles.append(round(x + width / 2, 1))
            x += width
        return cls(middles, x)


def words_row(words: Sequence[str], row: Row, name: str) -> Html:
    """Return the words, to be shown under this name by `sentence_arcs`."""
    texts = [element("text", word, x=x, text_anchor="middle") for word, x in zip(words, row.middles, strict=True)]
    return element("g", *texts, id=name)


def sentence_arcs(
    row: Row,
    name: str,
    arcs: Sequence[tuple[int, int, float]],
    right: Sequence[tuple[int, int]],
    title: str,
) -> Html:
    """Return the sentence with its arcs: those of the attention above, and those that would be right below.

    Args:
        row: Where its words are.
        name: Name under which `words_row` put them on the page.
        arcs: Each word, the word that it attends to most, and the attention, from 0 to 1.
        right: Arcs of the treebank, from the word that should attend to the word that it should attend to.
        title: Description of the arcs for readers who do not see them.
    """
    top = max((_height(row, i, j) for i, j, _ in arcs), default=0.0) + ABOVE + 6
    foot = max((_height(row, i, j) for i, j in right), default=-2.0) + BELOW + 6
    drawn = [
        f'<path d="{_path(row, i, j, -ABOVE)}" stroke-width="{_number(max(LEAST, FULL * weight))}"'
        + (' class="hit"/>' if (i, j) in right else "/>")
        for i, j, weight in arcs
    ]
    drawn.append(_tips(row, {j for _, j, _ in arcs}, -ABOVE, "tips"))
    if right:
        drawn += [f'<path d="{_path(row, i, j, BELOW)}" class="gold"/>' for i, j in right]
        drawn.append(_tips(row, {j for _, j in right}, BELOW, "tips hit"))
    return element(
        "svg", element("use", href=f"#{name}"), Html("".join(drawn)), role="img", aria_label=title, class_="arcs",
        viewBox=f"0 {_number(-top)} {_number(row.width)} {_number(top + foot)}", style=f"width:{_number(row.width)}px",
    )  # fmt: skip


def _height(row: Row, i: int, j: int) -> float:
    """Return how high an arc is: higher for words further apart, so that arcs nest."""
    return min(10 + 0.22 * abs(row.middles[j] - row.middles[i]), 84.0)


def _path(row: Row, i: int, j: int, y: float) -> str:
    """Return half an ellipse between two words, above the line if y is negative and below it otherwise."""
    start, end = row.middles[i] + ASIDE, row.middles[j] - ASIDE
    sweep = int((j > i) == (y < 0))
    radii = f"{_number(abs(end - start) / 2)} {_number(_height(row, i, j))}"
    return f"M{_number(start)} {_number(y)}A{radii} 0 0 {sweep} {_number(end)} {_number(y)}"


def _tips(row: Row, ends: Iterable[int], y: float, look: str) -> str:
    """Return the heads of the arrows at some words."""
    shape = f"h{TIP_WIDTH}l{-TIP_WIDTH // 2} {TIP_HEIGHT if y < 0 else -TIP_HEIGHT}z"
    tips = (f"M{_number(row.middles[j] - ASIDE - TIP_WIDTH / 2)} {_number(y)}{shape}" for j in sorted(ends))
    return f'<path d="{"".join(tips)}" class="{look}"/>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
