"""The label of a sentence, from a column of a data set or a .jsonl file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.corpus.columns import label_of
from probing.errors import UserError, did_you_mean
from probing.tasks import SentenceTask

from .column import number_in


def _there(columns: Mapping[str, Sequence[Any]], asked: str) -> str:
    """Return which columns of sentences a corpus has, and what to do, as the end of a message."""
    # The column that was taken for the labels is there twice.
    twice = any(columns[name] == columns.get("label") for name in columns if name != "label")
    own = [name for name in columns if name != "label" or not twice]
    if not own:
        return (
            "has none; give a .csv file with a line of names such as text,label, or a .jsonl file of lines such as "
            '{"text": "A sentence.", "label": "short"}'
        )
    meant = did_you_mean(asked, own)
    recurring = [name for name in own if 2 * len(set(columns[name])) <= len(columns[name])]
    return f"has {', '.join(own)}{meant}; name one of them, such as `--task_args.column {(recurring or own)[0]}`"


@dataclass(frozen=True)
class SentenceLabel(SentenceTask):
    """Labels each sentence by a column of the corpus; the probe reads one vector for each sentence.

    Args:
        min_count: Training sentences a label needs to be a class; by default 50, fewer on a small corpus
            (a twentieth of its training sentences), never under 5.
        pooling: Vector of a sentence: the mean or the maximum over its tokens without special ones, or that of its
            first token, which must be special (cls).
        column: Name of the column; label by default, or else labels.
        numbers: Whether the column holds numbers to predict as such, with or without a fraction, and not classes.
    """

    column: str = "label"
    numbers: bool = False

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the column that is read, which may be `labels` for `label`; None if it is not there."""
        names = [self.column, *["labels"] * (self.column == "label")]
        return next((name for name in names if name in corpus.sentence_columns), None)

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[Any]:
        """Return each sentence's value, shape (n_sentences,); a missing one is an empty string, or None if `numbers`.

        Raises:
            UserError: If the corpus has no such column, or a value does not suit the task: a number with a fraction if
                classes are predicted, or anything but a finite number or null if numbers are.
        """
        columns, name = corpus.sentence_columns, self.column_of(corpus)
        if name is None:
            raise UserError(
                f"`--corpus {corpus.name}`: the task reads the column {self.column} of its sentences and the corpus "
                f"{_there(columns, self.column)}."
            )
        values = columns[name]
        if self.numbers:
            return [number_in(value, self.column, corpus.name) for value in values]
        if odd := next((value for value in values if isinstance(value, float) and not value.is_integer()), None):
            raise UserError(
                f"`--corpus {corpus.name}`: the column {self.column} has numbers with a fraction, such as {odd}, and "
                "the task predicts classes; give a column of text or of whole numbers, or `--task_args.numbers true` "
                "to have the numbers predicted."
            )
        return [label_of(value) for value in values]
