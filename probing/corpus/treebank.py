"""Reads CoNLL-U: sentences as lists of words, with the annotations of each word."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from conllu.exceptions import ParseException
from conllu.parser import DEFAULT_FIELDS, parse_id_value, parse_line

from probing.errors import UserError

# form, lemma, upos, xpos, feats, head, deprel, deps, misc
COLUMNS = DEFAULT_FIELDS[1:]

_NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")

# Return every column as written; the library would parse some into dicts and numbers.
_AS_WRITTEN = {field: lambda cells, i: cells[i] for field in DEFAULT_FIELDS}


def read_treebank(lines: Iterable[str], typed: str) -> dict[str, list[tuple[str, ...]]]:
    """Return each column of a CoNLL-U file: for each sentence, one value per syntactic word.

    Ranges of multiword tokens (`1-2`) and empty nodes (`1.1`) are left out.

    Args:
        lines: Lines of the file.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a line is malformed, or if all forms were removed from the file.
    """
    sentences: list[list[tuple[str, ...]]] = [[]]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            sentences.append([])
        elif not line.startswith("#"):
            try:
                index, *cells = _cells(line)
                if isinstance(word_id := parse_id_value(index), tuple):
                    continue
                if word_id != len(sentences[-1]) + 1:
                    raise ParseException(f"expected word {len(sentences[-1]) + 1} of the sentence, found {index!r}")
            except (ParseException, ValueError) as error:  # ValueError: a number with thousands of digits
                reason = str(error)[:200].rstrip(".")
                raise UserError(
                    f"`{typed}` is not CoNLL-U in line {number} ({reason}); correct it, or give a .txt file."
                ) from None
            sentences[-1].append(tuple(map(sys.intern, cells)))  # interned: a fiftieth of the memory
    if {cells[0] for sentence in sentences for cells in sentence} == {"_"}:
        raise UserError(
            f"`{typed}`: every form is `_`, as in treebanks whose text may not be published; "
            "insert the words first, as the treebank's README describes."
        )
    return {name: [tuple(cells[i] for cells in sentence) for sentence in sentences] for i, name in enumerate(COLUMNS)}


def documents_of(lines: Iterable[str]) -> list[int]:
    """Return the number of documents begun (`# newdoc`) up to each sentence that `read_treebank` returns."""
    found = [0]
    for line in lines:
        if not line.strip():
            found.append(found[-1])
        elif _NEW_DOCUMENT.match(line):
            found[-1] += 1
    return found


def _cells(line: str) -> list[str]:
    line = line.rstrip(" ")
    cells = list(parse_line(line, DEFAULT_FIELDS, _AS_WRITTEN).values())
    # The library also accepts two spaces instead of a tab, and any number of columns.
    if len(cells) != len(DEFAULT_FIELDS) or "\t".join(cells) != line:
        raise ParseException(f"expected {len(DEFAULT_FIELDS)} columns with a tab between them and no double spaces")
    return cells
