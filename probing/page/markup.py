"""HTML and SVG from Python, escaped by construction: a child that is not yet HTML is text."""

from __future__ import annotations

from html import escape

Child = str | int | None

# The first line of a page, by which a report is recognised.
MARK = '<!doctype html><html lang="en" data-made-by="probing report">'


class Html(str):
    """A string that is already HTML, so it is not escaped again."""

    __slots__ = ()


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element with its attributes and children.

    Args:
        name: Name of the element.
        children: Text, which is escaped, or HTML; None is omitted.
        attributes: Attributes: `class_` is `class` and `data_x` is `data-x`; True gives a bare attribute, None and
            False are omitted.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("br", "input", "meta"):
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(*children)}</{name}>")


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
