"""Tables as LaTeX for papers: the headings and cells of the terminal, in the form of the package booktabs."""

from __future__ import annotations

import re
from typing import Any

# What a character is written as. Brackets and stars would be arguments of the end of a row where they begin the next.
_WRITTEN = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}",
    "²": "$^2$", "°": r"$^\circ$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$", "–": "--", "…": r"\ldots{}",
}  # fmt: skip


def escaped(text: str) -> str:
    """Return a text as it is written in LaTeX, in one line."""
    return "".join(_WRITTEN.get(character, character) for character in " ".join(text.split()))


def _number(cell: str) -> str:
    """Return a cell of numbers with dashes between two, minus signs before one, and powers of ten for an `e`."""
    dashed = escaped(re.sub(r"(?<=[\d%])-(?=-?\.?\d)", "–", cell)).replace("--", "–")
    powers = re.sub(r"(?<=\d)e([-+])0*(\d+)", lambda e: rf"$\times10^{{{'−' * (e[1] == '-')}{e[2]}}}$", dashed)
    return re.sub(r"-(?=\.?\d)", "$-$", powers).replace("−", "-").replace("–", "--")


def booktabs(table: Any) -> str:
    """Return a rich table as a `tabular` that needs the package booktabs; it ends in a line break.

    Args:
        table: The table, whose title and caption are left out.
    """
    columns = [([*column.cells], column.justify == "right", str(column.header)) for column in table.columns]
    cells = [[(_number if is_number else escaped)(str(cell)) for cell in of] for of, is_number, _ in columns]
    head = [escaped(heading) for _, _, heading in columns]
    lines = [" & ".join(row) + r" \\" for row in zip(*cells, strict=True)]
    return "\n".join([
        rf"\begin{{tabular}}{{{''.join('r' if is_number else 'l' for _, is_number, _ in columns)}}}",
        r"\toprule", " & ".join(head) + r" \\", r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip
