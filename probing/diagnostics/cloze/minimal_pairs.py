"""Minimal pairs: a text with a mask, and two words of which the first suits it better. Reads and tokenises them.

A file has a pair in each line, `text with [MASK] TAB good TAB bad TAB group`. The mask is written as `[MASK]` whatever
the model's own mask token is.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus.files import decode_lines, read_bytes
from probing.corpus.pairs import MASK
from probing.errors import UserError
from probing.readouts.prompts import Prompt, prompt_of, tokens_of_prompts

# The name of the pairs that come with the program.
BUILTIN = "builtin"
READABLE = "builtin, or a file of lines `text with [MASK] TAB good TAB bad TAB group`"


@dataclass(frozen=True)
class Pair:
    """A text with a mask, and two words for it.

    Args:
        line: Number of its line, from 1.
        text: The text, with `[MASK]` once.
        good: The word that suits the text.
        bad: The word that does not.
        group: What the pair is about.
    """

    line: int
    text: str
    good: str
    bad: str
    group: str


@dataclass(frozen=True)
class Prompts:
    """Pairs as the model reads them.

    Args:
        pairs: The pairs.
        tokens: The table of tokens of their texts, with the model's mask token.
        masks: Index of the mask token in each text, shape (n_pairs,).
        words: Id of the good and of the bad word, shape (n_pairs, 2).
        left_out: Why pairs were left out, with their number.
    """

    pairs: Sequence[Pair]
    tokens: Tokens
    masks: NDArray[np.int64]
    words: NDArray[np.int64]
    left_out: dict[str, int]


def read_pairs(file: str, typed: str | None = None) -> tuple[list[Pair], int]:
    """Return the distinct pairs of a file, and the number of repeated ones.

    Args:
        file: The file, or `builtin`.
        typed: How the user named it, for messages; as the argument of `cloze` by default.

    Raises:
        UserError: If it cannot be read, or a line is no pair.
    """
    typed = typed or f"cloze {file}"
    if file == BUILTIN:
        lines = files(__package__).joinpath("pairs.tsv").read_text(encoding="utf-8").splitlines()
    else:
        lines = decode_lines(read_bytes(Path(file), typed, READABLE), typed)
    found = list(_pairs_of(lines, typed))
    if not found:
        raise UserError(f"`{typed}` holds no pair: it is empty or blank; give {READABLE}.")
    distinct = {(pair.text, pair.good, pair.bad, pair.group): pair for pair in reversed(found)}
    return sorted(distinct.values(), key=lambda pair: pair.line), len(found) - len(distinct)


def fingerprint_of(pairs: Sequence[Pair]) -> str:
    """Return the SHA-256 of the pairs, which does not depend on the file that they are in."""
    cells = ("\t".join((pair.text, pair.good, pair.bad, pair.group)) for pair in pairs)
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()


def _pairs_of(lines: Iterable[str], typed: str) -> Iterator[Pair]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        where = f"`{typed}`, line {number}"
        if len(cells) != 4 or not all(cells):
            raise UserError(
                f"{where}: expected a text, a good word, a bad word and a group with a tab between them, found "
                f"{len(list(filter(None, cells)))} of them; write for example `They [MASK] here. TAB are TAB is TAB "
                "agreement`."
            )
        if (n := cells[0].count(MASK)) != 1:
            raise UserError(f"{where}: the text has {MASK} {n} times; write it once, where the word belongs.")
        yield Pair(number, *cells)


def prompts_of(tokenizer: Any, pairs: Sequence[Pair], longest: int, typed: str) -> Prompts:
    """Return the pairs of which both words are single pieces of the vocabulary, in their context.

    How a text is tokenised, `probing.readouts.prompts` says.

    Args:
        tokenizer: A fast tokenizer with a mask token.
        pairs: The pairs.
        longest: Most tokens that the model reads.
        typed: The command as the user typed it, for messages.

    Raises:
        UserError: If no pair is left.
    """
    kept: list[tuple[Pair, Prompt]] = []
    left_out: Counter[str] = Counter()
    for pair in pairs:
        found = prompt_of(tokenizer, pair.text, (pair.good, pair.bad), longest)
        if isinstance(found, str):
            left_out[found] += 1
        else:
            kept.append((pair, found))
    if not kept:
        said = "; ".join(f"{reason}: {n}" for reason, n in left_out.items())
        raise UserError(f"`{typed}` has no pair that the model can be asked about ({said}); give other words.")
    asked, prompts = zip(*kept, strict=True)
    masks, answers = (np.array([getattr(one, name) for one in prompts]) for name in ("mask", "answers"))
    return Prompts(asked, tokens_of_prompts(prompts), masks, answers, dict(left_out))
