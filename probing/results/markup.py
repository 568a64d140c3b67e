"""HTML and SVG from Python, escaped by construction: a child that is not yet HTML is text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

Child = str | int | None

# The first line of a page, by which a report is recognised.
MARK = '<!doctype html><html lang="en" data-made-by="probing report">'


class Html(str):
    """A string that is already HTML, so it is not escaped again."""

    __slots__ = ()


# What is code in a sentence: what stands between backticks, and options.
_CODE = re.compile(r"`([^`\n]+)`|((?<![\w-])--[a-z][\w.]*)")
# Most characters of code that is not broken over lines.
_SHORT = 32


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element with its attributes and children; in text of a paragraph, what is code is marked as code.

    Args:
        name: Name of the element.
        children: Text, which is escaped, or HTML; None is omitted.
        attributes: Attributes: `class_` is `class` and `data_x` is `data-x`; True gives a bare attribute, None and
            False are omitted.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("br", "input", "meta"):
        return Html(f"<{name}{written}>")
    inner = joined(*map(_with_code, children)) if name in ("p", "li", "dd") else joined(*children)
    return Html(f"<{name}{written}>{inner}</{name}>")


def _with_code(child: Child) -> Child:
    if isinstance(child, Html) or not isinstance(child, str):
        return child
    parts: list[Child] = []
    end = 0
    for found in _CODE.finditer(child):
        code = found[1] or found[2]
        parts += [child[end : found.start()], element("code", code, class_="whole" if len(code) <= _SHORT else None)]
        end = found.end()
    return joined(*parts, child[end:])


def joined(*children: Child) -> Html:
    """Return the children joined."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(f"{value:g}" if isinstance(value, float) else str(value))}"'


def table(head: Sequence[str], rows: Sequence[Sequence[Child]], caption: Child = None) -> Html:
    """Return a table whose first column names the rows."""
    body = [
        element(
            "tr",
            element("th", first, scope="row", class_=_phrase(first)),
            *(element("td", cell, class_=_phrase(cell)) for cell in rest),
        )
        for first, *rest in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("caption", caption) if caption else None,
            element("thead", element("tr", *(element("th", name, scope="col") for name in head))),
            element("tbody", *body),
        ),
        class_="scroll",
    )


def _phrase(cell: Child) -> str | None:
    """Return the class of a cell of several words, which may take several lines on paper; no number is broken."""
    return "phrase" if " " in str(cell) else None


def as_in_terminal(shown: Any) -> Html:
    """Return a rich table as a table of the page, so that both show the same; the caller shows its title."""
    columns = [list(column.cells) for column in shown.columns]
    head = [str(column.header) for column in shown.columns]
    return table(head, list(zip(*columns, strict=True)))


def pairs(entries: Sequence[tuple[str, Child]]) -> Html:
    """Return a list of names and their meanings."""
    parts = [part for name, value in entries for part in (element("dt", name), element("dd", value))]
    return element("dl", *parts)
