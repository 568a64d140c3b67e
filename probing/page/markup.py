"""HTML and SVG from Python, escaped by construction: a child that is not HTML already is text."""

from __future__ import annotations

from html import escape

Child = str | int | None

# How a page is told from other files, in its first line.
MARK = '<!doctype html><html lang="en" data-made-by="probing report">'


class Html(str):
    """A string that is HTML already, and so is not escaped again."""

    __slots__ = ()


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element with its attributes and children.

    Args:
        name: Of the element.
        children: Text, which is escaped, or HTML; None is left out.
        attributes: `class_` is `class` and `data_x` is `data-x`; True stands alone, None and False are left out.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("br", "input", "meta"):
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """Return children one after the other."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(f"{value:g}" if isinstance(value, float) else str(value))}"'
