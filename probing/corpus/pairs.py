"""Reads pairs of sentences: a pair in each line, `first TAB second`, of texts with masks also a word for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from probing.corpus import Corpus, from_pairs
from probing.corpus.files import read_lines
from probing.errors import UserError

# How the mask is written in files, whatever a model's own mask token is.
MASK = "[MASK]"
# What a file of pairs has, for messages.
_LINES = "lines `first sentence TAB second sentence`"
_LINES_OF_COUPLES = (
    f"lines `sentence TAB counterfactual`, or of texts with {MASK} `text TAB counterfactual TAB word TAB other word`"
)


def read_pairs(name: str, option: str = "--pairs") -> Corpus:
    """Read the distinct pairs of a file, which may be compressed by gzip, or of standard input (`-`).

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.

    Raises:
        UserError: If the source cannot be read, a line is not a pair, or there is no pair at all.
    """
    typed = f"{option} {name}"
    pairs = list(_pairs_of(read_lines(name, option, _LINES), typed))
    if not pairs:
        raise UserError(f"`{typed}` holds no pair: it is empty or blank; give {_LINES}.")
    return from_pairs(name, pairs)


@dataclass(frozen=True)
class Couple:
    """A sentence and its counterfactual.

    Args:
        first: The sentence.
        second: Its counterfactual.
        words: Where both have `[MASK]` once, the word that suits the first, and the one that suits the second; None for
            whole sentences.
    """

    first: str
    second: str
    words: tuple[str, str] | None = None


def read_couples(name: str, option: str = "--pairs") -> list[Couple]:
    """Read the distinct pairs of different sentences of a file, all of them whole or all with masks.

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.

    Raises:
        UserError: If the source cannot be read, a line is not a pair of two sentences, or there is no pair at all.
    """
    typed = f"{option} {name}"
    couples = list(dict.fromkeys(_couples_of(read_lines(name, option, _LINES_OF_COUPLES), typed)))
    if not couples:
        raise UserError(f"`{typed}` holds no pair: it is empty or blank; give {_LINES_OF_COUPLES}.")
    return couples


def _couples_of(lines: Iterable[str], typed: str) -> Iterator[Couple]:
    n_columns = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"`{typed}`, line {number}"
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        if len(cells) == 3:
            raise UserError(f"{where}: expected 2 columns, or 4 with words, found 3; give {_LINES_OF_COUPLES}.")
        if len(cells) != 4:
            ((first, second),) = _pairs_of([line], typed, number)
            couple = Couple(first, second)
        else:
            couple = _with_masks(cells, where)
        if couple.first == couple.second:
            raise UserError(
                f"{where}: `{couple.first:.60}` stands on both sides of a tab; give two different sentences."
            )
        if n_columns not in (0, len(cells)):
            raise UserError(
                f"{where}: expected {n_columns} columns as in the lines above, found {len(cells)}; put whole sentences "
                f"and texts with {MASK} into files of their own."
            )
        n_columns = len(cells)
        yield couple


def _with_masks(cells: list[str], where: str) -> Couple:
    """Return a pair of texts with masks.

    Raises:
        UserError: If a text does not have one mask, or a word is missing, or both are the same.
    """
    first, second, word, other = cells
    for text in (first, second):
        if (n := text.count(MASK)) != 1:
            raise UserError(f"{where}: `{text:.60}` has {MASK} {n} times; write it once, where the word belongs.")
    if not word or not other or word == other:
        raise UserError(
            f"{where}: expected two different words after the two texts, found `{word}` and `{other}`; write for "
            f"example `The dog {MASK} here. TAB The dogs {MASK} here. TAB is TAB are`."
        )
    return Couple(first, second, (word, other))


def _pairs_of(lines: Iterable[str], typed: str, first: int = 1) -> Iterator[tuple[str, str]]:
    """Yield the two sentences of each line that is not blank; lines are counted from `first`."""
    for number, line in enumerate(lines, first):
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
