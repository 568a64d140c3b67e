"""Labels of words from a column of the corpus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.corpus.rows import UNSPECIFIED
from probing.errors import UserError
from probing.tasks import Labels, Task


def number_of(value: object, column: str, corpus: str) -> float | None:
    """Return a value of a column as a number, or None where there is none.

    Args:
        value: The value, a number or its text; None and an empty text are no value.
        column: Name of the column, for messages.
        corpus: Name of the corpus, for messages.

    Raises:
        UserError: If it is something else, infinite, or not a number.
    """
    if value is None or value == "":
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise UserError(
            f"`--task_args.numbers`: the column {column} of `{corpus}` has {value!r:.60}, which is no finite number; "
            "give a column of numbers, with null or `_` where there is none, or leave the option out."
        )
    return number


@dataclass(frozen=True)
class WordLabels(Task):
    """Labels each word by a column of the corpus; the probe reads one of its pieces, or their mean.

    Args:
        min_count: Training words a value needs to be a class; by default 50, fewer on a small corpus
            (a twentieth of its training sentences), never under 5.
        pieces: Activations of a word of several pieces: those of its first or last piece, or the mean over its pieces.
        numbers: Whether the values are numbers to predict as such, with or without a fraction, and not classes.
    """

    pieces: Literal["first", "last", "mean"] = "first"
    numbers: bool = False

    # Name of the column.
    column: ClassVar[str]

    @property
    def word_means(self) -> bool:  # type: ignore[override]
        """Whether the activations of a word's pieces are averaged; its label is then at the first piece."""
        return self.pieces == "mean"

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels:
        """Return each word's value at one of its pieces; shape (n_tokens,).

        At other pieces, and for the value `_`, it is an empty string, or None if values are numbers.

        Raises:
            UserError: If the corpus has no such column, the column does not have one value per word, or a value is not
                a finite number although `numbers` is true.
        """
        rows = corpus.columns.get(self.column)
        if rows is None:
            there = f"has {', '.join(corpus.columns)}" if corpus.columns else "has none"
            raise UserError(
                f"`--corpus {corpus.name}`: the task reads the column {self.column} and the corpus {there}; "
                "give a .conllu file, or for the task label a .tsv or .jsonl file of words and labels."
            )
        n_words = [0] * len(rows) if corpus.words is None else [len(words) for words in corpus.words]
        for i in (i for i, row in enumerate(rows) if len(row) != n_words[i]):
            raise UserError(
                f"`--corpus {corpus.name}`: the column {self.column} has {len(rows[i])} values for the {n_words[i]} "
                f"words of `{corpus.sentences[i]:.60}`; give a value for each word."
            )
        chosen = np.flatnonzero(tokens.last_pieces if self.pieces == "last" else tokens.first_pieces)
        pairs = zip(tokens.sentences[chosen].tolist(), tokens.words[chosen].tolist(), strict=True)
        found = np.full(tokens.n_tokens, "", dtype=object)
        found[chosen] = [value if (value := rows[i][word]) != UNSPECIFIED else "" for i, word in pairs]
        if self.numbers:
            found[found == ""] = None
            found[chosen] = [number_of(value, self.column, corpus.name) for value in found[chosen]]
        return found


@dataclass(frozen=True)
class Column(WordLabels):
    """Any column of a CoNLL-U file, a .jsonl file or a data set that has a value for each word.

    Args:
        min_count: Training words a value needs to be a class; by default 50, fewer on a small corpus
            (a twentieth of its training sentences), never under 5.
        pieces: Activations of a word of several pieces: those of its first or last piece, or the mean over its pieces.
        numbers: Whether the values are numbers to predict as such, with or without a fraction, and not classes.
        column: Name of the column: lemma, upos, xpos, feats, head, deprel, deps or misc of CoNLL-U, or a column of a
            data set or a .jsonl file, such as ner_tags.
    """

    column: str = ""  # type: ignore[misc]

    def __post_init__(self) -> None:
        """Refuse an empty name."""
        super().__post_init__()
        if not self.column:
            raise UserError("`--task column` needs the column's name, such as `--task_args.column feats`.")
