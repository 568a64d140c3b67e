"""Reads pairs of sentences: a pair in each line, `first TAB second`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probing.corpus import Corpus, from_pairs
from probing.corpus.files import read_lines
from probing.errors import UserError

# How the mask is written in files, whatever a model's own mask token is.
MASK = "[MASK]"


def read_pairs(name: str, option: str = "--pairs") -> Corpus:
    """Read the distinct pairs of a file, which may be compressed by gzip, or of standard input (`-`).

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.

    Raises:
        UserError: If the source cannot be read, a line is not a pair, or there is no pair at all.
    """
    typed = f"{option} {name}"
    pairs = list(_pairs_of(read_lines(name, option), typed))
    if not pairs:
        raise UserError(
            f"`{typed}` holds no pair: it is empty or blank; give lines `first sentence TAB second sentence`."
        )
    return from_pairs(name, pairs)


def read_couples(name: str, option: str = "--pairs") -> list[tuple[str, str]]:
    """Read the distinct pairs of different sentences of a file, each sentence by itself.

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.

    Raises:
        UserError: If the source cannot be read, a line is not a pair of two sentences, or there is no pair at all.
    """
    typed = f"{option} {name}"
    pairs = dict.fromkeys(_pairs_of(read_lines(name, option), typed))
    if same := next((first for first, second in pairs if first == second), None):
        raise UserError(f"`{typed}`: `{same:.60}` stands on both sides of a tab; give two different sentences.")
    if not pairs:
        raise UserError(f"`{typed}` holds no pair: it is empty or blank; give lines `sentence TAB counterfactual`.")
    return list(pairs)


def _pairs_of(lines: Iterable[str], typed: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"`{typed}`, line {number}"
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        if len(cells) != 2:
            found = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise UserError(
                f"{where}: expected two sentences with a tab between them, found {found}; write for example "
                "`She left early. TAB He stayed.`, without other columns."
            )
        if not all(cells):
            empty = "second" if cells[0] else "first"
            raise UserError(
                f"{where}: the {empty} sentence is empty; write one on both sides of the tab, or remove the line."
            )
        yield cells[0], cells[1]
