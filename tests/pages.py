"""The README, the documentation's pages and files of code, as tests read them."""

from __future__ import annotations

import ast
import gc
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a file; the first is the module."""
    gc.disable()  # it would visit the nodes of all files again and again, which takes twice as long as the rest
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    gc.enable()
    return nodes


def label(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def code_blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def prose(page: Path) -> str:
    """Return what is left of a page without its blocks of code."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Return where a page's links and images lead, those in code left out."""
    return re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings that a code host and the site name alike.

    The host keeps one hyphen for each space, the site one for several; a heading that they name differently has none.
    """
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        host, site = plain.replace(" ", "-"), re.sub(r"[-\s]+", "-", plain)
        found |= {host} & {site}
    return found
