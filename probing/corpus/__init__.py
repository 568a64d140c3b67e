"""Corpora: reading sentences, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from os import PathLike, fspath
from os.path import splitext
from typing import Any, NamedTuple, TypeVar

from probing.corpus.columns import (
    BEGINS_DOCUMENT,
    LABEL,
    Rows,
    Wanted,
    check_text,
    label_of,
    values_of_sentences,
    values_of_words,
)
from probing.corpus.files import path_and_columns, read_dataset, read_lines
from probing.corpus.tables import builtin_sentences, read_json_lines, read_table, treebank
from probing.errors import UserError
from probing.results.schema import shortened
from probing.runtime.progress import say_once

_T = TypeVar("_T")


@dataclass(frozen=True)
class Corpus:
    """Distinct sentences in their order of appearance, with their words if the source divides them into words.

    A corpus of pairs has both sentences of a pair in one text, which counts as one sentence.

    Args:
        name: The corpus as the user typed it, for messages and run names.
        sentences: The sentences, with single spaces and no surrounding blanks. No two are equal; with `words`, no two
            have equal words.
        n_repeated: Number of repeated sentences that were dropped.
        words: The words of each sentence; None for running text. Joined by single spaces, without empty words, they
            give the sentence.
        columns: Annotations of the source (CoNLL-U: `upos`, `head`, ...): for each column and sentence, one value per
            word, as text; `_` where one is missing.
        documents: Index of each sentence's document, ascending; None if the source has no documents.
        sentence_columns: Annotations of whole sentences: for each column, one value per sentence, which is text, a
            number, or None.
        seconds: For pairs of sentences, where the second one begins in the text of both, in characters; a space stands
            before it. No two pairs are equal. None for single sentences.
        relabelled: How many of the repeated sentences had other values in a column than their first occurrence, whose
            values are kept; columns without any are left out.
        n_without_text: Number of rows of a .jsonl file or a data set that were dropped because their text is empty or
            missing. Empty lines of other files are no rows.
        reading: Which columns of the source were read, and what of them; empty for running text.
    """

    name: str
    sentences: tuple[str, ...]
    n_repeated: int = 0
    words: tuple[tuple[str, ...], ...] | None = None
    columns: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    documents: tuple[int, ...] | None = None
    sentence_columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    seconds: tuple[int, ...] | None = None
    relabelled: Mapping[str, int] = field(default_factory=dict)
    n_without_text: int = 0
    reading: str = field(default="", compare=False)

    @property
    def unit(self) -> str:
        """What the model reads at once, for messages: `sentences` or `pairs`."""
        return "sentences" if self.seconds is None else "pairs"

    @property
    def as_read(self) -> dict[str, str]:
        """Which columns were read, as `results.json` notes it; nothing for running text."""
        return {"read": self.reading} if self.reading else {}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The two sentences of each pair."""
        assert self.seconds is not None
        return [(text[: at - 1], text[at:]) for text, at in zip(self.sentences, self.seconds, strict=True)]

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the sentences, their order and their division into pairs or words.

        The columns are not part of it, because they do not change hidden states.
        """
        digest = hashlib.sha256()
        # `str.split` treats \x1e and \x1f as blanks, so they occur neither in a word nor in running text.
        if self.seconds is not None:
            lines: Iterable[str] = map("\x1e".join, self.pairs)
        elif self.words is None:
            lines = self.sentences
        else:
            lines = ("".join(f"{word}\x1f" for word in words) for words in self.words)
        for line in lines:
            digest.update(line.encode("utf-8"))
            digest.update(b"\n")
        return digest.hexdigest()

    def subset(self, indices: Sequence[int]) -> Corpus:
        """Return the corpus with these sentences only, and their words, columns and documents."""

        def pick(rows: Sequence[_T]) -> tuple[_T, ...]:
            return tuple(rows[i] for i in indices)

        return replace(
            self,
            sentences=pick(self.sentences),
            words=None if self.words is None else pick(self.words),
            columns={column: pick(values) for column, values in self.columns.items()},
            documents=None if self.documents is None else pick(self.documents),
            sentence_columns={column: pick(values) for column, values in self.sentence_columns.items()},
            seconds=None if self.seconds is None else pick(self.seconds),
        )


def load_corpus(
    name: Any, option: str = "--corpus", column_of: Callable[[Corpus], str | None] | None = lambda corpus: None
) -> Corpus:
    """Read the distinct sentences of `builtin`, a file of text or labels, a data set (`hf:`), or `-` (stdin).

    Of a source with columns, one line says what was read of it.

    Args:
        name: The source, as the user typed it; from Python, also a path or a list of sentences.
        option: The option that names it, for messages.
        column_of: Returns the column of a corpus that labels are read from, None if there is none; without this
            function, nothing is said.

    Raises:
        UserError: If the source is unknown, unreadable, damaged, not UTF-8, or holds no sentence, or if it cannot be
            told which of its columns holds words, sentences or labels.
    """
    if isinstance(name, PathLike):
        name = fspath(name)
    if not isinstance(name, str):
        return _from_list(name, option.removeprefix("--"))
    if name == "builtin":
        return from_sentences(name, builtin_sentences(), option)
    if (rows := _rows(name, option)).places:
        corpus = _from_rows(name, rows, option)
        column = None if column_of is None else column_of(corpus)
        corpus = replace(corpus, reading=_reading(corpus, rows, column or LABEL[0]))
        if column_of is not None:
            say_once(f"read {name}: {corpus.reading}")
        return corpus
    return from_sentences(name, rows.texts, option)


def _rows(name: str, option: str) -> Rows:
    """Return the rows of a source; those of running text are its lines."""
    if name.startswith("hf:"):
        return read_dataset(name, option)
    path, wanted = path_and_columns(name, option)
    lines = read_lines(path, option)
    kind = splitext(path.removesuffix(".gz"))[1]
    if kind in (".csv", ".tsv", ".conll"):
        return read_table(lines, kind, wanted)
    if kind == ".jsonl":
        return read_json_lines(lines, wanted)
    if wanted != Wanted(wanted.typed, example=wanted.example):
        raise UserError(f"`{wanted.typed}`: a file of type {kind} has no columns to name; give `{option} {path}`.")
    return treebank(lines, wanted.typed) if kind == ".conllu" else Rows(lines)


def _from_rows(name: str, rows: Rows, option: str) -> Corpus:
    if rows.are_words:
        corpus = from_words(name, rows.texts, rows.columns, option, rows.documents, rows.sentence_columns)
    else:
        corpus = from_sentences(name, rows.texts, option, rows.sentence_columns)
    n_begin = sum(list(text) == [BEGINS_DOCUMENT] for text in rows.texts) if rows.are_words else 0
    if rows.documents is not None:
        return corpus
    n_there = len(corpus.sentences) + corpus.n_repeated + n_begin
    return replace(corpus, n_without_text=len(rows.texts) + rows.n_empty - n_there)


def _reading(corpus: Corpus, rows: Rows, column: str) -> str:
    """Return which columns were read, with two labels and what has them, and how much it is."""
    label = rows.places.get(column, f"column {column}")
    counts = [_count(len(corpus.sentences), "sentence")]
    if corpus.words is not None:
        counts.append(_count(sum(map(len, corpus.words)), "word"))
    units: Iterable[str] = corpus.sentences
    values: Iterable[Any] = corpus.sentence_columns.get(column, ())
    if corpus.words is not None and column in corpus.columns:
        units, values = map(chain.from_iterable, (corpus.words, corpus.columns[column]))
    first: dict[str, str] = {}
    for unit, value in zip(units, values, strict=False):
        first.setdefault(label_of(value), unit)
    read = f"{'text' if corpus.words is None else 'word'} = {rows.places['']}"
    if labels := [one for one in first if one]:
        shown = ", ".join(f'"{shortened(first[one], 30)}" {shortened(one, 30)}' for one in labels[:2])
        read += f", label = {label} ({shown})"
        counts.append(_count(len(labels), "label"))
    return ", ".join(filter(None, [read, *counts, rows.note]))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _from_list(sentences: Any, option: str) -> Corpus:
    """Build a corpus from a list of sentences, as Python gives it; an empty one begins a new document."""
    if not isinstance(sentences, list | tuple):
        raise UserError(
            f"`{option}` is of type {type(sentences).__name__}: expected a name, a path, or a list of sentences."
        )
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise UserError(
                f"`{option}`: item {i} of the list, counted from 0, is {sentence!r:.60}, where a sentence was expected."
            )
    return from_sentences(f"a list of {len(sentences)} sentences", sentences, option)


def from_sentences(
    name: str,
    lines: Iterable[str],
    option: str = "--corpus",
    sentence_columns: Mapping[str, Sequence[Any]] | None = None,
) -> Corpus:
    """Build a corpus from lines: blanks are collapsed, and empty lines and repeated sentences are dropped.

    An empty line between sentences begins a new document. A repeated sentence has the values of its first occurrence.

    Raises:
        UserError: If nothing is left, or a sentence, a word or a value has a lone surrogate.
    """
    cleaned = [_single_spaced(line) for line in lines]
    distinct = _distinct(cleaned, cleaned, name, option)
    before = list(accumulate(not line for line in cleaned))
    of_sentences = values_of_sentences(sentence_columns or {}, f"`{option} {name}`")
    return Corpus(
        name, tuple(cleaned[i] for i in distinct.first), len(distinct.repeats),
        documents=_numbered([before[i] for i in distinct.first]),
        sentence_columns={column: tuple(rows[i] for i in distinct.first) for column, rows in of_sentences.items()},
        relabelled=distinct.relabelled(of_sentences),
    )  # fmt: skip


def from_words(
    name: str,
    sentences: Iterable[Sequence[str]],
    columns: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    option: str = "--corpus",
    documents: Sequence[int] | None = None,
    sentence_columns: Mapping[str, Sequence[Any]] | None = None,
) -> Corpus:
    """Build a corpus from the words of each sentence, and from columns with a value for each word.

    Blanks inside a word are collapsed. Empty words are kept, so that columns stay aligned. Sentences with only empty
    words are dropped, and so are repeated sentences. A first word `-DOCSTART-` begins a new document, as in CoNLL-2003,
    and is left out.

    Raises:
        UserError: If nothing is left, or a sentence, a word or a value has a lone surrogate.
    """
    words = [tuple(_single_spaced(word) for word in sentence) for sentence in sentences]
    begins = [sentence[:1] == (BEGINS_DOCUMENT,) for sentence in words]
    words = [sentence[new:] for sentence, new in zip(words, begins, strict=True)]
    text = tuple(" ".join(filter(None, sentence)) for sentence in words)
    found = [sentence if any(sentence) else () for sentence in words]
    distinct = _distinct(found, text, name, option)
    if any(begins):
        columns = {
            column: [row[new:] for row, new in zip(rows, begins, strict=True)]
            for column, rows in (columns or {}).items()
        }
    values = values_of_words(columns or {}, f"`{option} {name}`")
    of_sentences = values_of_sentences(sentence_columns or {}, f"`{option} {name}`")
    corpus = Corpus(
        name, text, len(distinct.repeats), tuple(words), values, sentence_columns=of_sentences,
        relabelled=distinct.relabelled({**of_sentences, **values}),
    ).subset(distinct.first)  # fmt: skip
    marks = documents or list(accumulate(begins))
    return replace(corpus, documents=_numbered([marks[i] for i in distinct.first]))


def from_pairs(
    name: str, pairs: Iterable[tuple[str, str]], columns: Mapping[str, Sequence[Any]] | None = None
) -> Corpus:
    """Build a corpus from one or more pairs of sentences, which have single spaces only; repeated pairs are dropped.

    Args:
        name: Name of the corpus.
        pairs: The pairs.
        columns: For each column, one value per pair; a repeated pair has those of its first occurrence.

    Raises:
        UserError: If there is no pair, or a sentence or a value has a lone surrogate.
    """
    listed = list(pairs)
    texts = [" ".join(pair) for pair in listed]
    distinct = _distinct(listed, texts, name, "--pairs")
    of_pairs = values_of_sentences(columns or {}, f"`--pairs {name}`")
    return Corpus(
        name, tuple(texts[i] for i in distinct.first), len(distinct.repeats),
        sentence_columns={column: tuple(values[i] for i in distinct.first) for column, values in of_pairs.items()},
        seconds=tuple(len(listed[i][0]) + 1 for i in distinct.first), relabelled=distinct.relabelled(of_pairs),
    )  # fmt: skip


def _numbered(marks: Sequence[int]) -> tuple[int, ...] | None:
    """Renumber ascending document marks from 0; return None if there is only one document."""
    numbers = {mark: i for i, mark in enumerate(sorted(set(marks)))}
    return tuple(numbers[mark] for mark in marks) if len(numbers) > 1 else None


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


class _Distinct(NamedTuple):
    """Which rows are different.

    Args:
        first: Index of the first occurrence of each row.
        repeats: Index of each repetition, and of the first occurrence of its row.
    """

    first: list[int]
    repeats: list[tuple[int, int]]

    def relabelled(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, int]:
        """Return the columns in which repetitions have other values than first occurrences, and how many do."""
        counts = {name: sum(rows[i] != rows[first] for i, first in self.repeats) for name, rows in columns.items()}
        return {name: n for name, n in counts.items() if n}


def _distinct(rows: Sequence[Hashable], texts: Sequence[str], name: str, option: str) -> _Distinct:
    """Tell apart the rows that are not empty, whose sentences are `texts`."""
    first: dict[Hashable, int] = {}
    repeats: list[tuple[int, int]] = []
    for i, row in enumerate(rows):
        if row and (at := first.setdefault(row, i)) != i:
            repeats.append((i, at))
    if not first:
        raise UserError(f"`{option} {name}` holds no sentence: it is empty or blank; give a corpus with text.")
    for number, i in enumerate(first.values(), 1):
        check_text(texts[i], f"`{option} {name}`: sentence {number}")
    return _Distinct(list(first.values()), repeats)
