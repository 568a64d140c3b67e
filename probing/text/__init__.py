"""Text: corpora and their fingerprint; the split into training, validation and test; equal sentences."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from os import PathLike, fspath
from os.path import isfile, join, splitext
from typing import Any, Literal, TypeVar

from probing.cli.options import GroupBy as GroupBy
from probing.errors import UserError
from probing.results import count, listed, shortened
from probing.runtime.progress import say_once
from probing.statistics import MIN_SENTENCES
from probing.text.columns import (
    BEGINS_DOCUMENT,
    KEYED,
    LABEL,
    TARGETS,
    ColumnSelection,
    Rows,
    check_text,
    features,
    label_of,
    values_of_sentences,
    values_of_words,
)
from probing.text.files import path_and_columns, read_dataset, read_lines
from probing.text.tables import SAMPLES, builtin_sentences, read_json_lines, read_samples, read_table, treebank

Split = Literal["train", "validation", "test"]

# Shares of the split, as thresholds on a uniform hash: 80 / 10 / 10.
TRAIN_BELOW, VALIDATION_BELOW = 0.8, 0.9

# Punctuation by Unicode's categories that is written as part of a word or a number: C#, 5%, -1, @name.
_SIGNS = frozenset("#%‰&*@/\\_+-−§†‡")


def split_key(sentence: str) -> str:
    """Return the words of a sentence, without case, punctuation and signs; equal keys are on the same side.

    A word is a run of letters, digits and the marks on them. `compared`, in contrast, preserves signs.
    """
    text = unicodedata.normalize("NFC", sentence.casefold())
    if not text.isascii():
        # A mark that NFC leaves by itself, such as a vowel sign of Devanagari, is part of a letter; `\w` leaves it out.
        text = "".join(letter if unicodedata.category(letter)[0] != "M" else f"_{ord(letter):x}_" for letter in text)
    return " ".join(re.findall(r"\w+", text)) or sentence


def compared(sentence: str) -> str:
    """Return a sentence in the form in which it is compared with sentences of other texts.

    Sentences count as equal if they differ only in case, in blanks, in how Unicode composes letters (NFC), or in
    punctuation around words. Marks and signs are preserved: `C++` is not `C#`, and कि is not की.
    """
    words = unicodedata.normalize("NFC", sentence.casefold()).split()
    return " ".join(filter(None, map(_without_punctuation, words))) or sentence


def _without_punctuation(word: str) -> str:
    """Return a word without punctuation at its ends; several marks without letters, such as `:(`, are preserved."""
    first, last = 0, len(word)
    while first < last and _is_punctuation(word[first]):
        first += 1
    while last > first and _is_punctuation(word[last - 1]):
        last -= 1
    return word[first:last] or (word if len(word) > 1 else "")


def _is_punctuation(letter: str) -> bool:
    return letter not in _SIGNS and unicodedata.category(letter)[0] == "P"


def assign_splits(sentences: Sequence[str], seed: int, documents: Sequence[int] | None = None) -> list[Split]:
    """Split by sentence, or by document if `documents` are given: assign each to a side by a hash salted with `seed`.

    Sentences that differ only in case, punctuation or signs are on the same side. A sentence keeps its side when the
    corpus grows or is reordered; so does a document, whose hash is the hash of its first sentence, unless that sentence
    is also in another document. `documents` is the document of each sentence, None to assign sentences; a sentence that
    is also in an earlier document is on the side of that document.
    """
    keys = [split_key(sentence) for sentence in sentences]
    if documents is None:
        return [side_of(key, seed) for key in keys]
    first: dict[int, str] = {}
    for key, document in zip(keys, documents, strict=True):
        first.setdefault(document, key)
    side_of_document = dict(zip(first, sides_of_clusters(list(first.values()), seed), strict=True))
    side_of_key: dict[str, Split] = {}
    return [
        side_of_key.setdefault(key, side_of_document[document_index])
        for key, document_index in zip(keys, documents, strict=True)
    ]


def sides_of_clusters(keys: Sequence[str], seed: int) -> list[Split]:
    """Return the side of each cluster by a hash of its key; if the test part is too small, it has the largest hashes.

    Of 3 x `MIN_SENTENCES` clusters or more, at least `MIN_SENTENCES` are tested on, as intervals require.
    """
    sides = [side_of(key, seed) for key in keys]
    if sides.count("test") >= MIN_SENTENCES or len(keys) < 3 * MIN_SENTENCES:
        return sides
    last = sorted(range(len(keys)), key=lambda i: hashed(keys[i], seed), reverse=True)
    for rank, i in enumerate(last):
        sides[i] = "test" if rank < MIN_SENTENCES else "validation" if rank < 1.5 * MIN_SENTENCES else "train"
    return sides


def side_of(key: str, seed: int) -> Split:
    """Return the side of the split by a hash of a key and the seed: 80% train, 10% validation, 10% test."""
    if (uniform := hashed(key, seed)) < TRAIN_BELOW:
        return "train"
    return "validation" if uniform < VALIDATION_BELOW else "test"


def hashed(key: str, seed: int) -> float:
    """Return a hash of a key and the seed, uniform on 0 to 1."""
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def splits_by_document(group_by: GroupBy, corpus: Corpus) -> bool:
    """Return whether documents are assigned to sides; `auto`: if there are enough documents for the test part."""
    if group_by == "sentence" or corpus.documents is None:
        return False
    return group_by == "document" or len(set(corpus.documents)) >= 3 * MIN_SENTENCES


def intervals_by_document(group_by: GroupBy, corpora: Sequence[Corpus]) -> bool:
    """Return whether intervals are over test documents: documents of the split, or at least 20 of a test corpus.

    Documents that are requested but missing in the last of the corpora, the test corpus, raise `UserError`.
    """
    tested = corpora[-1].documents
    if group_by == "document" and tested is None:
        raise UserError(
            f"`--group_by document`: `{corpora[-1].name}` does not say where documents begin; expected empty lines "
            "between them in a .txt file, or `# newdoc` in CoNLL-U. Leave the option out for intervals over sentences."
        )
    if len(corpora) == 1 or tested is None:
        return splits_by_document(group_by, corpora[0]) and tested is not None
    return group_by == "document" or (group_by == "auto" and len(set(tested)) >= MIN_SENTENCES)


def splits_of(corpus: Corpus, seed: int, group_by: GroupBy = "sentence") -> list[Split]:
    """Return the side of the split of each sentence of a corpus: that of its source, or a hash."""
    if corpus.sides is not None:
        return [*corpus.sides]
    return assign_splits(corpus.sentences, seed, corpus.documents if splits_by_document(group_by, corpus) else None)


def read_corpora(
    corpus: Any,
    test_corpus: Any,
    seed: int,
    say: Callable[[str], None],
    group_by: GroupBy = "sentence",
    column_of: Callable[[Corpus], str | None] = lambda corpus: None,
) -> tuple[list[Corpus], list[list[Split]]]:
    """Read the corpus and any test corpus, and assign each sentence to a side of the split.

    With a separate test corpus, the test part of the main corpus is used for training. `column_of` returns the column
    of a corpus that labels are read from, for the message about the columns.
    """
    if test_corpus == corpus == "-":
        raise UserError("`--test_corpus -`: standard input can be read only once; give one of the corpora as a file.")
    main = load_corpus(corpus, column_of=column_of)
    test = None if test_corpus is None else load_corpus(test_corpus, "--test_corpus", column_of)
    return divided(main, test, seed, say, group_by)


def divided(
    main: Corpus, test: Corpus | None, seed: int, say: Callable[[str], None], group_by: GroupBy = "sentence"
) -> tuple[list[Corpus], list[list[Split]]]:
    """Assign each sentence of a corpus, and of a test corpus if there is one, to a side; see `read_corpora`."""
    if test is None:
        return [main], [splits_of(main, seed, group_by)]
    training, excluded = hold_out(main, test)
    if excluded:
        say(
            f"{main.name}: {len(excluded)} {main.unit} that are also in {test.name} were left out of training, such as "
            f"`{excluded[0]:.60}`"
        )
    joined: list[Split] = ["train" if side == "test" else side for side in splits_of(training, seed, group_by)]
    return [training, test], [joined, ["test"] * len(test.sentences)]


def hold_out(main: Corpus, test: Corpus) -> tuple[Corpus, list[str]]:
    """Return the main corpus without the sentences of the test corpus, equal by `compared`, and those sentences.

    Pairs are equal in either order. `UserError` is raised if nothing is left.
    """
    test_sentences = dict(zip(_compared_in(test), test.sentences, strict=True))
    keys = _compared_in(main)
    keep_rows = [key not in test_sentences for key in keys]
    excluded = [sentence for sentence, keep in zip(main.sentences, keep_rows, strict=True) if not keep]
    if not any(keep_rows):
        what = "corpus" if main.seconds is None else "pairs"
        raise UserError(
            f"`--test_{what} {test.name}` holds every {main.unit[:-1]} of `--{what} {main.name}`, such as "
            f"`{excluded[0]:.60}` (there: `{test_sentences[keys[0]]:.60}`); nothing is left to train on."
        )
    return main.subset([i for i, keep in enumerate(keep_rows) if keep]), excluded


def _compared_in(corpus: Corpus) -> list[Hashable]:
    """Return the compared form of each sentence of a corpus; of a pair, both sentences in any order."""
    if corpus.seconds is None:
        return [compared(sentence) for sentence in corpus.sentences]
    return [tuple(sorted(map(compared, pair))) for pair in corpus.pairs]


# How the mask is written in files, whatever a model's own mask token is.
MASK = "[MASK]"

# What a file of pairs has, for messages.
_LINES = "lines `first sentence TAB second sentence`"

_LINES_OF_COUPLES = (
    f"lines `sentence TAB counterfactual`, or of texts with {MASK} `text TAB counterfactual TAB word TAB other word`"
)


def read_pairs(name: str, option: str = "--pairs") -> Corpus:
    """Read the distinct pairs of a file, which may be compressed by gzip, or of standard input (`-`)."""
    flag_text = f"{option} {name}"
    pairs = [_pair(cells, where) for cells, where in _lines_of_cells(read_lines(name, option, _LINES), flag_text)]
    if not pairs:
        raise UserError(f"`{flag_text}` holds no pair: it is empty or blank; give {_LINES}.")
    return from_pairs(name, pairs)


@dataclass(frozen=True)
class Couple:
    """A sentence, its counterfactual, and the suitable word of each if they have `[MASK]` once, else None."""

    first: str
    second: str
    words: tuple[str, str] | None = None


def read_couples(name: str) -> list[Couple]:
    """Read the distinct pairs of different sentences of a file, all of them whole or all with masks."""
    flag_text = f"--pairs {name}"
    couples = list(dict.fromkeys(_couples_of(read_lines(name, "--pairs", _LINES_OF_COUPLES), flag_text)))
    if not couples:
        raise UserError(f"`{flag_text}` holds no pair: it is empty or blank; give {_LINES_OF_COUPLES}.")
    return couples


def _couples_of(lines: Iterable[str], flag_text: str) -> Iterator[Couple]:
    n_columns = 0
    for cells, where in _lines_of_cells(lines, flag_text):
        if len(cells) == 3:
            raise UserError(f"{where}: expected 2 columns, or 4 with words, found 3; give {_LINES_OF_COUPLES}.")
        couple = _with_masks(cells, where) if len(cells) == 4 else Couple(*_pair(cells, where))
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
    """Return a pair of texts with a single mask each, and two different words."""
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


def _lines_of_cells(lines: Iterable[str], flag_text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the cells of each line that is not blank, which tabs divide, and the place of the line for messages."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield [_single_spaced(cell) for cell in line.split("\t")], f"`{flag_text}`, line {number}"


def _pair(cells: Sequence[str], where: str) -> tuple[str, str]:
    """Return the two sentences of a line."""
    if len(cells) != 2:
        actual = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
        raise UserError(
            f"{where}: expected two sentences with a tab between them, found {actual}; write for example "
            "`She left early. TAB He stayed.`, without other columns."
        )
    if not all(cells):
        empty = "second" if cells[0] else "first"
        raise UserError(
            f"{where}: the {empty} sentence is empty; write one on both sides of the tab, or remove the line."
        )
    return cells[0], cells[1]


_T = TypeVar("_T")


@dataclass(frozen=True)
class Corpus:
    """Distinct sentences in order of appearance, with their words if the source divides them into words.

    A corpus of pairs has both sentences of a pair in one text, which counts as one sentence.

    Args:
        name: The corpus as the user typed it, for messages and run names.
        sentences: The sentences, with single spaces and no surrounding blanks. No two are equal; with `words`, no two
            have equal words.
        n_repeated: Number of repeated sentences that were dropped.
        words: The words of each sentence; None for running text. Joined by single spaces, without empty words, they
            give the sentence.
        columns: Annotations of the source (CoNLL-U: `upos`, `head`, ...): for each column and sentence, one value per
            word, as text; `_` if missing.
        documents: Index of each sentence's document, ascending; None if the source has no documents.
        sentence_columns: For each column of whole sentences, one value per sentence: text, a number, or None.
        seconds: For pairs, the character at which the second sentence begins in the text of both, after a space; no two
            pairs are equal. None for single sentences.
        sides: Side of the split of each sentence; None if the source does not divide them.
        relabelled: For each column, number of repeated sentences with another value than the first occurrence, if any.
        n_without_text: Number of rows of a .jsonl file or data set that were dropped because their text is empty or
            missing.
        reading: The columns of the source that were read, with details; empty for running text.
    """

    name: str
    sentences: tuple[str, ...]
    n_repeated: int = 0
    words: tuple[tuple[str, ...], ...] | None = None
    columns: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    documents: tuple[int, ...] | None = None
    sentence_columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    seconds: tuple[int, ...] | None = None
    sides: tuple[Split, ...] | None = None
    relabelled: Mapping[str, int] = field(default_factory=dict)
    n_without_text: int = 0
    reading: str = field(default="", compare=False)
    # The spans that tasks read, by the identity of the task, with the task; see `SpanTask.spans_of`.
    spans: dict[int, tuple[Any, Sequence[Any]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def unit(self) -> str:
        """The unit that the model reads at once, for messages: `sentences` or `pairs`."""
        return "sentences" if self.seconds is None else "pairs"

    @property
    def as_read(self) -> dict[str, str]:
        """The columns that were read, as an entry of `results.json`; empty for running text."""
        return {"read": self.reading} if self.reading else {}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The two sentences of each pair."""
        assert self.seconds is not None
        return [(text[: at - 1], text[at:]) for text, at in zip(self.sentences, self.seconds, strict=True)]

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of sentences, order and division into pairs or words, which alone affect hidden states."""
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

    @cached_property
    def keys(self) -> dict[str, list[str]]:
        """The keys in the columns feats and misc (`NER` of `NER=ENT`), the most frequent first."""
        keys = {name: Counter[str]() for name in KEYED if name in self.columns}
        for name, counts in keys.items():
            for cell, n in Counter(chain.from_iterable(self.columns[name])).items():
                counts.update(dict.fromkeys(features(cell), n))
        return {name: [key for key, _ in counts.most_common()] for name, counts in keys.items()}

    def column_with(self, name: str) -> str | None:
        """Return the column of words of a name, or the one of feats and misc that has this key; None without.

        Raises:
            UserError: If both have the key.
        """
        having = [column for column, keys in self.keys.items() if name in keys and name not in self.columns]
        if len(having) > 1:
            raise UserError(f"`--corpus {self.name}` has the key {name} in {listed(having)}; rename it in one of them.")
        return next(iter(having), name if name in self.columns else None)

    def values_of(self, name: str) -> tuple[tuple[str, ...], ...] | None:
        """Return the value of each word in the column of a name, or by a key, `_` if missing; None without."""
        if (column := self.column_with(name)) in (name, None):
            return self.columns.get(name)
        rows = self.columns[str(column)]
        values = {cell: features(cell).get(name) for cell in set(chain.from_iterable(rows))}
        by_word = [[values[cell] for cell in row] for row in rows]
        return values_of_words({name: by_word}, f"`--corpus {self.name}`")[name]

    def subset(self, indices: Sequence[int]) -> Corpus:
        """Return the corpus with these sentences only, and their words, columns and documents."""

        def pick(rows: Sequence[_T]) -> tuple[_T, ...]:
            return tuple(rows[i] for i in indices)

        of_sentences: dict[str, Any] = {
            name: pick(values)
            for name in ("sentences", "words", "documents", "seconds", "sides")
            if (values := getattr(self, name)) is not None
        }
        by_column: dict[str, Any] = {
            name: {column: pick(values) for column, values in getattr(self, name).items()}
            for name in ("columns", "sentence_columns")
        }
        return replace(self, **of_sentences, **by_column)


def load_corpus(
    name: Any, option: str = "--corpus", column_of: Callable[[Corpus], str | None] | None = lambda corpus: None
) -> Corpus:
    """Read the distinct sentences of `builtin`, a file of text or labels, a data set (`hf:`), or `-` (stdin).

    For a source with columns, a message names the columns that were read, unless `column_of` is None; it returns the
    column of a corpus that labels are read from, None without. From Python, the source may be a path or a list of
    sentences.

    Raises:
        UserError: If the source is unknown, unreadable, damaged, not UTF-8, or holds no sentence, or if its columns of
            words, sentences or labels are ambiguous.
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
    """Return the rows of a source; for running text, its lines."""
    if name.startswith("hf:"):
        return read_dataset(name, option)
    path, selection = path_and_columns(name, option)
    if isfile(samples := join(path, SAMPLES)):
        return read_samples(read_lines(samples, option), selection.flag_text)
    lines = read_lines(path, option)
    kind = splitext(path.removesuffix(".gz"))[1]
    if kind in (".csv", ".tsv", ".conll"):
        return read_table(lines, kind, selection)
    if kind == ".jsonl":
        return read_json_lines(lines, selection)
    if selection != ColumnSelection(selection.flag_text, example=selection.example):
        raise UserError(
            f"`{selection.flag_text}`: a file of type {kind} has no columns to name; give `{option} {path}`."
        )
    return treebank(lines, selection.flag_text) if kind == ".conllu" else Rows(lines)


def _from_rows(name: str, rows: Rows, option: str) -> Corpus:
    if rows.are_words:
        corpus = from_words(name, rows.texts, rows.columns, option, rows.documents, rows.sentence_columns)
    else:
        corpus = from_sentences(name, rows.texts, option, rows.sentence_columns)
    if rows.sides:
        return replace(corpus, sides=tuple(rows.sides))  # type: ignore[arg-type]
    n_begin = sum(list(text) == [BEGINS_DOCUMENT] for text in rows.texts) if rows.are_words else 0
    if rows.documents is not None:
        return corpus
    n_accounted = len(corpus.sentences) + corpus.n_repeated + n_begin
    return replace(corpus, n_without_text=len(rows.texts) + rows.n_empty - n_accounted)


def _reading(corpus: Corpus, rows: Rows, column: str) -> str:
    """Return the columns that were read, with two labels and examples, and counts."""
    place = corpus.column_with(column)
    label = rows.places.get(column, f"column {column}" if place in (column, None) else f"{column} of column {place}")
    counts = [count(len(corpus.sentences), "sentence")]
    if corpus.words is not None:
        counts.append(count(sum(map(len, corpus.words)), "word"))
    units: Iterable[str] = corpus.sentences
    values: Iterable[Any] = corpus.sentence_columns.get(column, ())
    if column == TARGETS and TARGETS in corpus.sentence_columns:
        pairs = zip(corpus.sentences, values, strict=True)
        named = [(sentence[slice(*target.first)], target.label) for sentence, of in pairs for target in of]
        units, values = [text for text, _ in named], [label for _, label in named]
    elif corpus.words is not None and (of_words := corpus.values_of(column)):
        units, values = map(chain.from_iterable, (corpus.words, of_words))
    first: dict[str, str] = {}
    for unit, value in zip(units, values, strict=False):
        first.setdefault(label_of(value), unit)
    read = f"{'text' if corpus.words is None else 'word'} = {rows.places['']}"
    if labels := [text for text in first if text]:
        shown = ", ".join(f'"{shortened(first[text], 30)}" {shortened(text, 30)}' for text in labels[:2])
        read += f", label = {label} ({shown})"
        counts.append(count(len(labels), "label"))
    return ", ".join(filter(None, [read, *counts, rows.note]))


def _from_list(sentences: Any, option: str) -> Corpus:
    """Build a corpus from a list of sentences from Python; an empty sentence begins a new document."""
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
    Lone surrogates, and a corpus without text, are refused.
    """
    cleaned = [_single_spaced(line) for line in lines]
    begun = tuple(accumulate(not line for line in cleaned))
    return _distinct(name, option, cleaned, cleaned, sentence_columns or {}, documents=begun)


def from_words(
    name: str,
    sentences: Iterable[Sequence[str]],
    columns: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    option: str = "--corpus",
    documents: Sequence[int] | None = None,
    sentence_columns: Mapping[str, Sequence[Any]] | None = None,
) -> Corpus:
    """Build a corpus from the words of each sentence, and from columns with a value for each word.

    Blanks inside a word are collapsed. Empty words are preserved, so that columns stay aligned. Sentences with only
    empty words, and repeated sentences, are dropped. A first word `-DOCSTART-` begins a new document, as in CoNLL-2003,
    and is left out.
    """
    words = [tuple(_single_spaced(word) for word in sentence) for sentence in sentences]
    begins = [sentence[:1] == (BEGINS_DOCUMENT,) for sentence in words]
    words = [sentence[new:] for sentence, new in zip(words, begins, strict=True)]
    text = tuple(" ".join(filter(None, sentence)) for sentence in words)
    nonblank = [sentence if any(sentence) else () for sentence in words]
    if any(begins):
        columns = {
            column: [row[new:] for row, new in zip(rows, begins, strict=True)]
            for column, rows in (columns or {}).items()
        }
    begun = tuple(documents or accumulate(begins))
    return _distinct(
        name, option, nonblank, text, sentence_columns or {}, columns or {}, words=tuple(words), documents=begun
    )  # fmt: skip


def from_pairs(
    name: str, pairs: Iterable[tuple[str, str]], columns: Mapping[str, Sequence[Any]] | None = None
) -> Corpus:
    """Build a corpus of distinct pairs, with single spaces; values in columns are of the first occurrence."""
    listed = list(pairs)
    seconds = tuple(len(first) + 1 for first, _ in listed)
    return _distinct(name, "--pairs", listed, [" ".join(pair) for pair in listed], columns or {}, seconds=seconds)


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _distinct(
    name: str,
    option: str,
    keys: Sequence[Hashable],
    texts: Sequence[str],
    sentence_columns: Mapping[str, Sequence[Any]],
    columns: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    documents: Sequence[int] = (),
    **parts: Any,
) -> Corpus:
    """Build the corpus of the sentences whose keys are neither empty nor equal to an earlier one.

    `documents` has ascending marks of the document of each sentence, and `parts` further fields by sentence.
    """
    first: dict[Hashable, int] = {}
    repeats: list[tuple[int, int]] = []
    for i, key in enumerate(keys):
        if key and (at := first.setdefault(key, i)) != i:
            repeats.append((i, at))
    if not first:
        raise UserError(f"`{option} {name}` holds no sentence: it is empty or blank; give a corpus with text.")
    for number, i in enumerate(first.values(), 1):
        check_text(texts[i], f"`{option} {name}`: sentence {number}")
    of_words = values_of_words(columns or {}, f"`{option} {name}`")
    of_sentences = values_of_sentences(sentence_columns, f"`{option} {name}`")
    changed = {
        column: sum(rows[i] != rows[at] for i, at in repeats) for column, rows in {**of_sentences, **of_words}.items()
    }
    corpus = Corpus(
        name, tuple(texts), len(repeats), columns=of_words, sentence_columns=of_sentences,
        relabelled={column: n for column, n in changed.items() if n}, **parts,
    ).subset(list(first.values()))  # fmt: skip
    marks = [documents[i] for i in first.values()] if documents else [0]
    numbers = {mark: number for number, mark in enumerate(sorted(set(marks)))}
    return replace(corpus, documents=tuple(numbers[mark] for mark in marks) if len(numbers) > 1 else None)
