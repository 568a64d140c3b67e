"""Corpora: reading sentences, their fingerprint, and the split into training, validation and test."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from os import PathLike, fspath
from typing import Any, Literal, TypeVar

from probing.corpus.builtin import builtin_sentences
from probing.corpus.files import read_lines
from probing.corpus.hub import read_dataset
from probing.corpus.json_lines import read_json_lines
from probing.corpus.labelled import read_labelled
from probing.corpus.rows import Rows
from probing.corpus.treebank import documents_of, read_treebank
from probing.errors import UserError

Split = Literal["train", "validation", "test"]
_T = TypeVar("_T")

# Shares of the split, as thresholds on a uniform hash: 80 / 10 / 10.
TRAIN_BELOW, VALIDATION_BELOW = 0.8, 0.9


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
            word, as written in the source.
        documents: Index of each sentence's document, ascending; None if the source has no documents.
        sentence_columns: Annotations of whole sentences: for each column, one value per sentence, which is text, a
            number, or None.
        seconds: For pairs of sentences, where the second one begins in the text of both, in characters; a space stands
            before it. No two pairs are equal. None for single sentences.
    """

    name: str
    sentences: tuple[str, ...]
    n_repeated: int = 0
    words: tuple[tuple[str, ...], ...] | None = None
    columns: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    documents: tuple[int, ...] | None = None
    sentence_columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    seconds: tuple[int, ...] | None = None

    @property
    def unit(self) -> str:
        """What the model reads at once, for messages: `sentences` or `pairs`."""
        return "sentences" if self.seconds is None else "pairs"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the sentences, their order and their division into pairs or words.

        The columns are not part of it, because they do not change hidden states.
        """
        digest = hashlib.sha256()
        # `str.split` treats \x1e and \x1f as blanks, so they occur neither in a word nor in running text.
        if self.seconds is not None:
            pairs = zip(self.sentences, self.seconds, strict=True)
            lines: Iterable[str] = (f"{text[: start - 1]}\x1e{text[start:]}" for text, start in pairs)
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


def load_corpus(name: Any, option: str = "--corpus") -> Corpus:
    """Read the distinct sentences of `builtin`, a file of text or labels, a data set (`hf:`), or `-` (stdin).

    Args:
        name: The source, as the user typed it; from Python, also a path or a list of sentences.
        option: The option that names it, for messages.

    Raises:
        UserError: If the source is unknown, unreadable, damaged, not UTF-8, or holds no sentence.
    """
    if isinstance(name, PathLike):
        name = fspath(name)
    if not isinstance(name, str):
        return _from_list(name, option.removeprefix("--"))
    if name == "builtin":
        return from_sentences(name, builtin_sentences(), option)
    if name.startswith("hf:"):
        return _from_rows(name, read_dataset(name, option), option)
    lines = read_lines(name, option)
    if name.removesuffix(".gz").endswith(".jsonl"):
        return _from_rows(name, read_json_lines(lines, f"{option} {name}"), option)
    for ending, read, number in ((".conllu", read_treebank, documents_of), (".tsv", read_labelled, None)):
        if name.removesuffix(".gz").endswith(ending):
            columns = read(lines, f"{option} {name}")
            return from_words(name, columns["form"], columns, option, number and number(lines))
    return from_sentences(name, lines, option)


def _from_rows(name: str, rows: Rows, option: str) -> Corpus:
    if rows.are_words:
        return from_words(name, rows.texts, rows.columns, option, sentence_columns=rows.sentence_columns)
    return from_sentences(name, rows.texts, option, rows.sentence_columns)


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
        UserError: If nothing is left.
    """
    cleaned = [_single_spaced(line) for line in lines]
    first, n_repeated = _distinct(cleaned, name, option)
    before = list(accumulate(not line for line in cleaned))
    values = {column: tuple(rows[i] for i in first) for column, rows in (sentence_columns or {}).items()}
    return Corpus(
        name, tuple(cleaned[i] for i in first), n_repeated,
        documents=_numbered([before[i] for i in first]), sentence_columns=values,
    )  # fmt: skip


def from_words(
    name: str,
    sentences: Iterable[Sequence[str]],
    columns: Mapping[str, Sequence[tuple[str, ...]]] | None = None,
    option: str = "--corpus",
    documents: Sequence[int] | None = None,
    sentence_columns: Mapping[str, Sequence[Any]] | None = None,
) -> Corpus:
    """Build a corpus from the words of each sentence, and from columns with a value for each word.

    Blanks inside a word are collapsed. Empty words are kept, so that columns stay aligned. Sentences with only empty
    words are dropped, and so are repeated sentences.

    Raises:
        UserError: If nothing is left.
    """
    words = [tuple(_single_spaced(word) for word in sentence) for sentence in sentences]
    first, n_repeated = _distinct([sentence if any(sentence) else () for sentence in words], name, option)
    text = tuple(" ".join(filter(None, sentence)) for sentence in words)
    values = {column: tuple(rows) for column, rows in (columns or {}).items()}
    of_sentences = {column: tuple(rows) for column, rows in (sentence_columns or {}).items()}
    corpus = Corpus(name, text, n_repeated, tuple(words), values, sentence_columns=of_sentences).subset(first)
    return replace(corpus, documents=_numbered([documents[i] for i in first]) if documents else None)


def from_pairs(name: str, pairs: Iterable[tuple[str, str]]) -> Corpus:
    """Build a corpus from one or more pairs of sentences, which have single spaces only; repeated pairs are dropped."""
    listed = list(pairs)
    distinct = list(dict.fromkeys(listed))
    texts, seconds = tuple(" ".join(pair) for pair in distinct), tuple(len(first) + 1 for first, _ in distinct)
    return Corpus(name, texts, len(listed) - len(distinct), seconds=seconds)


def _numbered(marks: Sequence[int]) -> tuple[int, ...] | None:
    """Renumber ascending document marks from 0; return None if there is only one document."""
    numbers = {mark: i for i, mark in enumerate(sorted(set(marks)))}
    return tuple(numbers[mark] for mark in marks) if len(numbers) > 1 else None


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _distinct(rows: Sequence[Hashable], name: str, option: str) -> tuple[list[int], int]:
    """Return the index of the first occurrence of each non-empty row, and the number of repetitions."""
    first: dict[Hashable, int] = {}
    n_seen = 0
    for i, row in enumerate(rows):
        if row:
            n_seen += 1
            first.setdefault(row, i)
    if not first:
        raise UserError(f"`{option} {name}` holds no sentence: it is empty or blank; give a corpus with text.")
    return list(first.values()), n_seen - len(first)


def split_key(sentence: str) -> str:
    """Return a sentence's words without case and punctuation; near-duplicates have the same key and side."""
    return " ".join(re.findall(r"\w+", sentence.casefold())) or sentence


def assign_splits(sentences: Sequence[str], seed: int) -> list[Split]:
    """Assign each sentence to a side of the split by a hash of its words, salted with `seed`.

    A sentence keeps its side when the corpus grows or is reordered. Sentences that differ only in case or punctuation
    are on the same side.
    """
    return [side_of(split_key(sentence), seed) for sentence in sentences]


def hold_out(main: Corpus, test: Corpus) -> Corpus:
    """Return the main corpus without the sentences of the test corpus, compared without case and punctuation.

    Raises:
        UserError: If nothing is left.
    """
    held_out = {split_key(sentence) for sentence in test.sentences}
    kept = [i for i, sentence in enumerate(main.sentences) if split_key(sentence) not in held_out]
    if not kept:
        raise UserError(
            f"`--test_corpus {test.name}` holds every sentence of `--corpus {main.name}`; nothing is left to train on."
        )
    return main.subset(kept)


def side_of(key: str, seed: int) -> Split:
    """Return the side of the split by a hash of a key and the seed: 80% train, 10% validation, 10% test."""
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    uniform = int.from_bytes(digest[:8], "big") / 2**64
    if uniform < TRAIN_BELOW:
        return "train"
    return "validation" if uniform < VALIDATION_BELOW else "test"
