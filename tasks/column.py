"""Tasks whose labels are a column of the corpus: of its words, or of its sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np

from probing.errors import UserError, did_you_mean
from probing.results import shortened
from probing.text import Corpus
from probing.text.columns import TARGETS, features, label_of, number_of
from probing.text.tables import COLUMNS
from probing.text.tasks import Labels, SentenceTask, Task
from probing.text.tokens import Tokens

# Columns that every CoNLL-U file has.
_OF_TREEBANKS = frozenset(COLUMNS)

# Columns that a task of their name reads.
_TASKS = ("label", "upos", "xpos", "deprel")


def number_in(value: object, column: str, corpus: str) -> float | None:
    """Return a value of a column as a number, or None if it is missing; anything else raises UserError."""
    try:
        return number_of(value)
    except ValueError:
        raise UserError(
            f"`--task_args.numbers`: the column {column} of `{corpus}` has {value!r:.60}, which is no number; give a "
            "column of numbers, with null or `_` where there is none, or leave the option out."
        ) from None


@dataclass(frozen=True)
class WordLabels(Task):
    """Label each word by a column of the corpus; the probe reads one of its pieces, or their mean.

    Args:
        min_count: Training words a value needs to be a class; by default 50, fewer on a small corpus (a twentieth of
            its training sentences), never under 5.
        pieces: Activations of a word of several pieces: first piece, last piece, or mean over its pieces.
        numbers: Whether the values are numbers to predict, with or without a fraction, and not classes.
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
        """Return the name of the column."""
        return self.column

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels:
        """Return each word's value at one of its pieces, shape (n_tokens,).

        At other pieces, and where a value is missing, it is an empty string, or None if values are numbers.

        Raises:
            UserError: If the corpus lacks the column, a sentence does not have a value per word, or a value is no
                number although `numbers` is true.
        """
        rows = corpus.values_of(self.column)
        if rows is None:
            raise UserError(
                f"`--corpus {corpus.name}`: the task reads the column {self.column} and "
                f"{_available_columns(corpus, self.column)}."
            )
        several = (cell for row in rows for cell in row if self.column == "misc" and len(features(cell)) > 1)
        if cell := next(several, ""):
            keys = corpus.keys["misc"]
            raise UserError(
                f"`--corpus {corpus.name}`: the column misc has several values in a cell, such as `{cell:.60}`; give "
                f"one of its keys ({shortened(', '.join(keys), 200)}), such as "
                f"`--task_args.column {next(key for key in keys if key != 'SpaceAfter')}`."
            )
        n_words = [0] * len(rows) if corpus.words is None else [len(words) for words in corpus.words]
        for i in (i for i, row in enumerate(rows) if len(row) != n_words[i]):
            raise UserError(
                f"`--corpus {corpus.name}`: the column {self.column} has {len(rows[i])} values for the {n_words[i]} "
                f"words of `{corpus.sentences[i]:.60}`; give a value for each word."
            )
        chosen = np.flatnonzero(tokens.last_pieces if self.pieces == "last" else tokens.first_pieces)
        pairs = zip(tokens.sentences[chosen].tolist(), tokens.words[chosen].tolist(), strict=True)
        read = partial(number_in, column=self.column, corpus=corpus.name) if self.numbers else label_of
        labels = np.full(tokens.n_tokens, None if self.numbers else "", dtype=object)
        labels[chosen] = [read(rows[i][word]) for i, word in pairs]
        return labels


def _of_sentences(corpus: Corpus) -> dict[str, tuple[Any, ...]]:
    """Return the columns of sentences without that of spans."""
    return {name: values for name, values in corpus.sentence_columns.items() if name != TARGETS}


def _available_columns(corpus: Corpus, requested: str) -> str:
    if not corpus.columns:
        columns = _of_sentences(corpus)
        if of_sentences := [name for name in columns if name != "label"] or [*columns]:
            name = requested if requested in columns else of_sentences[0]
            named = "" if name == "label" else f" --task_args.column {name}"
            return (
                f"the corpus has none of words, but columns of sentences ({', '.join(of_sentences)}); "
                f"`--task sentence_label{named}` predicts these"
            )
        return (
            "the corpus has none; give a .conllu file, or for the task label a .tsv or .jsonl file of words and labels"
        )
    # Neither the words nor, under a second name, the labels.
    all_rows = [*corpus.columns.values()]
    names = [
        name for name, rows in corpus.columns.items()
        if rows != corpus.words and not (name == "label" and all_rows.count(rows) > 1)
    ] or [*corpus.columns]  # fmt: skip
    keys = {name: f"{name} (with the keys {shortened(', '.join(of), 80)})" for name, of in corpus.keys.items() if of}
    has = f"the corpus has {', '.join(keys.get(name, name) for name in names)}"
    known = [] if requested in _TASKS else [*names, *chain.from_iterable(corpus.keys.values())]
    annotated = [name for name in names if name not in _OF_TREEBANKS]
    name = next((name for name in _TASKS if name in names), (annotated or names)[-1])
    task = name if name in _TASKS else f"column --task_args.column {name}"
    by_key = ", or a key by `--task column --task_args.column KEY`" * bool(keys)
    has += did_you_mean(requested, known)
    return f"{has}; {f'for the labels of {name}, ' * bool(annotated)}give `--task {task}`{by_key}"


@dataclass(frozen=True)
class ColumnTask(WordLabels):
    """Label each word by any column of a CoNLL-U file, a .jsonl file or a data set; see `WordLabels`.

    Args:
        column: Name of the column: lemma, upos, xpos, feats, head, deprel, deps or misc of CoNLL-U, a key in its feats
            or misc, such as Number, or a column of a data set or a .jsonl file, such as ner_tags.
    """

    column: str = ""  # type: ignore[misc]

    def __post_init__(self) -> None:
        """Refuse an empty name."""
        super().__post_init__()
        if not self.column:
            raise UserError("`--task column` needs the column's name, such as `--task_args.column feats`.")


@dataclass(frozen=True)
class Label(WordLabels):
    """The label of a word in a .tsv or .jsonl file of words and labels, or in a data set: the column `label`."""

    column = "label"


@dataclass(frozen=True)
class UniversalPartOfSpeech(WordLabels):
    """The universal part of speech (NOUN, VERB, ...) of a word: the column `upos` of CoNLL-U."""

    column = "upos"


@dataclass(frozen=True)
class FineGrainedTag(WordLabels):
    """The fine-grained tag (NN, VBZ, ...) of a word in the treebank's tag set: the column `xpos` of CoNLL-U."""

    column = "xpos"


@dataclass(frozen=True)
class DependencyRelation(WordLabels):
    """The dependency relation (nsubj, obj, ...) of a word to its head: the column `deprel` of CoNLL-U."""

    column = "deprel"


def _available_sentence_columns(columns: Mapping[str, Sequence[Any]], requested: str) -> str:
    # The column that was taken for the labels is there twice.
    twice = any(columns[name] == columns.get("label") for name in columns if name != "label")
    named = [name for name in columns if name != "label" or not twice]
    if not named:
        return (
            "has none; give a .csv file with a line of names such as text,label, or a .jsonl file of lines such as "
            '{"text": "A sentence.", "label": "short"}'
        )
    meant = did_you_mean(requested, named)
    recurring = [name for name in named if 2 * len(set(columns[name])) <= len(columns[name])]
    return f"has {', '.join(named)}{meant}; name one of them, such as `--task_args.column {(recurring or named)[0]}`"


@dataclass(frozen=True)
class SentenceLabel(SentenceTask):
    """Label each sentence by a column of the corpus; the probe reads a vector for each sentence.

    Args:
        min_count: Training sentences a label needs to be a class; by default 50, fewer on a small corpus (a twentieth
            of its training sentences), never under 5.
        pooling: Vector of a sentence: the mean or the maximum over its tokens without special tokens, or the vector of
            its first token, which must be special (cls).
        column: Name of the column; label by default, or else labels.
        numbers: Whether the values are numbers to predict, with or without a fraction, and not classes.
    """

    column: str = "label"
    numbers: bool = False

    def column_of(self, corpus: Corpus) -> str | None:
        """Return the name of the column, which may be `labels` for `label`; None without the column."""
        names = [self.column, *["labels"] * (self.column == "label")]
        return next((name for name in names if name in _of_sentences(corpus)), None)

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[Any]:
        """Return each sentence's value, shape (n_sentences,); a missing value is an empty string, or None if `numbers`.

        Raises:
            UserError: If the corpus lacks the column, a class is a number with a fraction, or a number is neither
                finite nor null.
        """
        columns, name = _of_sentences(corpus), self.column_of(corpus)
        if name is None:
            raise UserError(
                f"`--corpus {corpus.name}`: the task reads the column {self.column} of its sentences and the corpus "
                f"{_available_sentence_columns(columns, self.column)}."
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
