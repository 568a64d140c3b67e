"""Reads .tsv files: each line has a word, a tab and its label; a blank line ends a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from probing.errors import UserError


def read_labelled(lines: Iterable[str], typed: str) -> dict[str, list[tuple[str, ...]]]:
    """Return the columns `form` and `label` of a .tsv file: for each sentence, one value per word.

    A label may be missing, after its tab.

    Args:
        lines: Lines of the file.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a line is not a word, a tab and a label.
    """
    sentences: list[list[tuple[str, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            sentences.append([])
            continue
        word, *labels = (cell.strip() for cell in line.split("\t"))
        if not word or len(labels) != 1:
            raise UserError(
                f"`{typed}`: line {number} is not a word, a tab and a label (found {line[:60]!r}); "
                "give two columns, and a blank line between sentences."
            )
        sentences[-1].append((word, sys.intern(labels[0])))
    columns = ("form", "label")
    return {name: [tuple(cells[i] for cells in sentence) for sentence in sentences] for i, name in enumerate(columns)}
