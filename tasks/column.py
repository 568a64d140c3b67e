"""Labels of words from a column of the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.corpus.columns import label_of, number_of
from probing.corpus.tables import COLUMNS
from probing.errors import UserError
from probing.tasks import Labels, Task

# Columns that every CoNLL-U file has.
_OF_TREEBANKS = frozenset(COLUMNS)

# Columns that a task of their name reads.
_TASKS = ("label", "upos", "xpos", "deprel")


def number_in(value: object, column: str, corpus: str) -> float | None:
    """Return a value of a column as a number, or None where there is none.

    Args:
        value: The value, a number or its text; see `probing.corpus.columns` for what is missing.
        column: Name of the column, for messages.
        corpus: Name of the corpus, for messages.

    Raises:
        UserError: If it is something else.
    """
    try:
        return number_of(value)
    except ValueError:
        raise UserError(
            f"`--task_args.numbers`: the column {column} of `{corpus}` has {value!r:.60}, which is no number; give a "
            "column of numbers, with null or `_` where there is none, or leave the option out."
        ) from None


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

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the column that is read."""
        return self.column

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels:
        """Return each word's value at one of its pieces; shape (n_tokens,).

        At other pieces, and where a value is missing, it is an empty string, or None if values are numbers.

        Raises:
            UserError: If the corpus has no such column, the column does not have one value per word, or a value is not
                a number although `numbers` is true.
        """
        rows = corpus.columns.get(self.column)
        if rows is None:
            raise UserError(
                f"`--corpus {corpus.name}`: the task reads the column {self.column} and {_there(corpus, self.column)}."
            )
        n_words = [0] * len(rows) if corpus.words is None else [len(words) for words in corpus.words]
        for i in (i for i, row in enumerate(rows) if len(row) != n_words[i]):
            raise UserError(
                f"`--corpus {corpus.name}`: the column {self.column} has {len(rows[i])} values for the {n_words[i]} "
                f"words of `{corpus.sentences[i]:.60}`; give a value for each word."
            )
        chosen = np.flatnonzero(tokens.last_pieces if self.pieces == "last" else tokens.first_pieces)
        pairs = zip(tokens.sentences[chosen].tolist(), tokens.words[chosen].tolist(), strict=True)
        values = [rows[i][word] for i, word in pairs]
        found = np.full(tokens.n_tokens, None if self.numbers else "", dtype=object)
        if self.numbers:
            found[chosen] = [number_in(value, self.column, corpus.name) for value in values]
        else:
            found[chosen] = [label_of(value) for value in values]
        return found


def _there(corpus: Corpus, asked: str) -> str:
    """Return which columns of words a corpus has, and what to do, as the end of a message."""
    if not corpus.columns:
        if of_sentences := [name for name in corpus.sentence_columns if name != "label"] or [*corpus.sentence_columns]:
            name = asked if asked in corpus.sentence_columns else of_sentences[0]
            named = "" if name == "label" else f" --task_args.column {name}"
            return (
                f"the corpus has none of words, but columns of sentences ({', '.join(of_sentences)}); "
                f"`--task sentence_label{named}` predicts these"
            )
        return (
            "the corpus has none; give a .conllu file, or for the task label a .tsv or .jsonl file of words and labels"
        )
    own = [name for name in corpus.columns if name not in _OF_TREEBANKS]
    name = next(iter(own or corpus.columns))
    task = name if name in _TASKS else f"column --task_args.column {name}"
    return (
        f"the corpus has {', '.join(corpus.columns)}; {f'for the labels of {name}, ' * bool(own)}give `--task {task}`"
    )


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
