"""Tables with a header line and a sentence a row, and files with a word and its annotations a line."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence

from probing.corpus.layouts import COLUMNS, documents_of, read_treebank
from probing.corpus.rows import Rows
from probing.errors import UserError

# Possible names of the column of sentences, and of labels, in any case.
_TEXT, _LABEL = ("text", "sentence"), ("label", "labels")
_HEADER = "a first line that names the columns, such as sentence and label"
# Rows that are looked at to tell a table of sentences from one of words.
_LOOKED_AT = 1000


def read_table(lines: Sequence[str], typed: str, delimiter: str | None = None) -> Rows:
    """Return the sentences of a table with a header, and the other columns with a value for each sentence.

    The column of sentences is `text` or `sentence`, else the only one whose cells are mostly several words. The column
    of labels is `label` or `labels`, else the only other one, or the only other one with values that recur; it is
    also available as `label`. What is guessed is noted.

    Args:
        lines: Lines of the file.
        typed: The option and its value, for messages.
        delimiter: What divides cells, which are then never in quotation marks; by default the comma, semicolon or tab
            that the header has most of, as in .csv files.

    Raises:
        UserError: If there is no header, a row has another number of cells, or the columns cannot be told apart.
    """
    header, *rows = _cells(lines, typed, delimiter)
    names = [name.strip() for name in header]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"`{typed}`: two columns are called {twice[0]}; rename one.")
    columns = {name: cells for name, cells in zip(names, zip(*rows, strict=True), strict=False) if name}
    text = _named(columns, _TEXT) or _only(name for name, cells in columns.items() if _are_sentences(cells))
    if text is None:
        found = f"of the columns {', '.join(columns)}, it" if columns else "it"
        raise UserError(f"`{typed}`: {found} is not clear which holds the sentences; give {_HEADER}.")
    others = {name: list(cells) for name, cells in columns.items() if name != text}
    label = _named(others, _LABEL) or _only(others) or _only(n for n, cells in others.items() if _recur(cells))
    if label is not None and label.casefold() not in _LABEL and label in others[label] and " " in text.strip():
        raise UserError(
            f"`{typed}`: its first line, `{', '.join(names):.60}`, looks like a sentence with its label; put "
            f"{_HEADER}, before it."
        )
    if label is not None and label not in _LABEL:
        others["label"] = others[label]
    guessed = [f"its sentences are in the column {text}"] * (text.casefold() not in _TEXT)
    guessed += [f"its labels in the column {label}"] * (label is not None and label.casefold() not in _LABEL)
    return Rows(columns[text], {}, others, note=" and ".join(guessed))


def _cells(lines: Sequence[str], typed: str, delimiter: str | None) -> list[list[str]]:
    """Return the cells of the header and of each row that is not blank."""
    first = next((line for line in lines if line.strip()), "")
    if delimiter is None:
        reader = csv.reader((f"{line}\n" for line in lines), delimiter=max(",;\t", key=first.count), strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    found: list[list[str]] = []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                found.append(row)
                if len(row) != len(found[0]):
                    raise UserError(
                        f"`{typed}`: line {reader.line_num} has {len(row)} cells and the header has {len(found[0])}; "
                        "put a cell that has the delimiter in quotation marks."
                    )
    except csv.Error as error:
        raise UserError(f"`{typed}` is not a table in line {reader.line_num} ({error}); correct it.") from None
    if len(found) < 2:
        raise UserError(f"`{typed}` holds no sentence: expected {_HEADER}, and a sentence in each row.")
    return found


def _named(columns: Iterable[str], names: Sequence[str]) -> str | None:
    return next((column for name in names for column in columns if column.casefold() == name), None)


def _only(names: Iterable[str]) -> str | None:
    listed = list(names)
    return listed[0] if len(listed) == 1 else None


def _are_sentences(cells: Sequence[str]) -> bool:
    """Whether more than half of the cells have several words."""
    looked_at = [cell for cell in cells[:_LOOKED_AT] if cell.strip()]
    return 2 * sum(" " in cell.strip() for cell in looked_at) > len(looked_at)


def _recur(cells: Sequence[str]) -> bool:
    return 2 * len(set(cells)) <= len(cells)


def is_table(lines: Sequence[str], typed: str) -> bool:
    """Return whether a .tsv file has a header and a sentence a row, and not a word and a label a line.

    Raises:
        UserError: If it has sentences without a header.
    """
    rows = [line.split("\t") for line in lines[:_LOOKED_AT] if line.strip()]
    if len(rows) < 2 or len(rows[0]) < 2:
        return False
    if name := _named(rows[0], _TEXT):
        at = rows[0].index(name)
        return _are_sentences([row[at] for row in rows[1:] if len(row) > at])
    if not all(line.strip() for line in lines[: len(rows)]):
        return False
    if _are_sentences([row[0] for row in rows]):  # labels may well be several words
        raise UserError(f"`{typed}`: its rows hold whole sentences; give {_HEADER}, with a tab between them.")
    return False


def read_columns(lines: Sequence[str], typed: str) -> dict[str, list[tuple[str, ...]]]:
    """Return the columns `form` and `label` of a .conll file: the first and the last of each line.

    Columns are divided by tabs or blanks, and an empty line ends a sentence. Lines that begin with # and have another
    number of columns are comments. A file with the ten columns of CoNLL-U has all of these.

    Args:
        lines: Lines of the file.
        typed: The option and its value, for messages.

    Raises:
        UserError: If a line has another number of columns, or only one.
    """
    split = [line.split("\t") if "\t" in line else line.split() for line in lines]
    n = len(next((row for line, row in zip(lines, split, strict=True) if line.strip() and line[0] != "#"), []))
    if n == len(COLUMNS) + 1 and any("\t" in line for line in lines):
        return read_treebank(lines, typed)
    sentences: list[list[tuple[str, str]]] = [[]]
    for number, (line, row) in enumerate(zip(lines, split, strict=True), 1):
        if not line.strip():
            sentences.append([])
        elif len(row) == n > 1:
            sentences[-1].append((row[0].strip(), sys.intern(row[-1].strip())))
        elif not line.startswith("#"):
            raise UserError(
                f"`{typed}`: line {number} has {len(row)} columns (found {line[:60]!r}), where "
                f"{f'{n}, as in the first line,' if n > 1 else 'a word and its label'} were expected; correct it."
            )
    columns = ("form", "label")
    return {name: [tuple(cells[i] for cells in sentence) for sentence in sentences] for i, name in enumerate(columns)}


def documents_if_marked(lines: Sequence[str]) -> list[int] | None:
    """Return the number of documents begun up to each sentence, if comments mark any, as in CoNLL-U."""
    found = documents_of(lines)
    return found if found[-1] else None
