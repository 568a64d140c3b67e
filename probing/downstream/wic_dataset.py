"""The Word-in-Context data set: does a word mean the same in two sentences?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.corpus import Corpus, from_words
from probing.corpus.columns import number_of, truth_of
from probing.corpus.files import decode_lines, read_bytes, read_splits, sentence_of
from probing.errors import UserError

READABLE = (
    "the folder of the WiC data set, with train/train.data.txt and train/train.gold.txt and the same for dev, "
    "or 'hf:NAME?config=C' for its SuperGLUE form"
)
# Names of the parts in SuperGLUE, and the columns that it gives of a pair.
_HUB_PARTS = {"train": "train", "dev": "validation", "test": "test"}
_HUB_COLUMNS = ("sentence1", "sentence2", "start1", "end1", "start2", "end2", "label")


@dataclass(frozen=True)
class WordPair:
    """A word in two sentences.

    Args:
        sentences: The words of each sentence.
        targets: Index of the word in each sentence.
        same: Whether it has the same sense in both.
    """

    sentences: tuple[tuple[str, ...], tuple[str, ...]]
    targets: tuple[int, int]
    same: bool


@dataclass(frozen=True)
class WordPairs:
    """One part of the data set.

    Args:
        corpus: Its distinct sentences, as lists of words.
        sentences: Indices into the corpus of the sentences of each pair, shape (n_pairs, 2).
        targets: Index of the word in each sentence, shape (n_pairs, 2).
        labels: Whether the word has the same sense in both, shape (n_pairs,), bool.
        n_unlabelled: Number of pairs that were left out because they have no label.
    """

    corpus: Corpus
    sentences: NDArray[np.int64]
    targets: NDArray[np.int64]
    labels: NDArray[np.bool_]
    n_unlabelled: int = 0

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return len(self.labels)

    @property
    def n_read(self) -> int:
        """Number of all pairs, with those that have no label."""
        return self.n_pairs + self.n_unlabelled

    def said(self, name: str) -> list[str]:
        """Return a line on the pairs of a part that have no label; none if there are none."""
        if not self.n_unlabelled:
            return []
        return [f"{name}: {self.n_unlabelled} of {self.n_read} pairs have no label and are left out"]

    def pick(self, kept: NDArray[np.bool_]) -> WordPairs:
        """Return only these pairs; the corpus is unchanged."""
        return replace(self, sentences=self.sentences[kept], targets=self.targets[kept], labels=self.labels[kept])


def read_wic(source: str, parts: Sequence[str]) -> dict[str, WordPairs]:
    """Read parts of the data set, in its original or its SuperGLUE form.

    Args:
        source: The original folder, or `hf:NAME?config=C`: a hub id or a folder of json or parquet files.
        parts: Parts to read, among `train`, `dev` and `test`.

    Raises:
        UserError: If files are missing or malformed, or have no labelled pair.
    """
    found = _from_hub(source, parts) if source.startswith("hf:") else {p: _from_folder(source, p) for p in parts}
    for part, pairs in found.items():
        if not any(pairs):
            raise UserError(f"`wic {source}`: no pair of {part} has a label; take another part.")
    return {part: _indexed(f"{source} {part}", pairs) for part, pairs in found.items()}


def read_wic_parts(source: str) -> dict[str, WordPairs]:
    """Read all parts that are there and have labelled pairs, in the order train, dev, test; none of another data set.

    Args:
        source: See `read_wic`.

    Raises:
        UserError: If a data set cannot be read, or files are malformed.
    """
    if source.startswith("hf:"):
        rows = read_splits(source, "wic")
        there = {split for split, of_split in rows.items() if of_split and {*_HUB_COLUMNS} <= {*of_split[0]}}
        parts = [part for part in _HUB_PARTS if there & {*_hub_names(part)}]
        found = _from_hub(source, parts)
    else:
        parts = [part for part in _HUB_PARTS if all(path.is_file() for path in _files(source, part))]
        found = {part: _from_folder(source, part) for part in parts}
    return {part: _indexed(f"{source} {part}", pairs) for part, pairs in found.items() if any(pairs)}


def _files(source: str, part: str) -> tuple[Path, Path]:
    """Return the files of a part's pairs and of their labels in the original format."""
    folder = Path(source, part) if os.path.isdir(Path(source, part)) else Path(source)
    return folder / f"{part}.data.txt", folder / f"{part}.gold.txt"


def _from_folder(source: str, part: str) -> list[WordPair | None]:
    """Read the original format: a line has lemma, part of speech, `index1-index2` and two tokenised sentences.

    A pair without a label is None.
    """
    data_file, gold_file = _files(source, part)
    folder, data, gold = data_file.parent, _lines(data_file), _lines(gold_file)
    if len(data) != len(gold):
        raise UserError(
            f"`wic {folder}`: {part}.data.txt has {len(data)} lines and {part}.gold.txt has {len(gold)}; "
            "each pair needs its label in the same line."
        )
    pairs: list[WordPair | None] = []
    for number, (line, label) in enumerate(zip(data, gold, strict=True), 1):
        try:
            if (same := truth_of(label)) is None:
                pairs.append(None)
                continue
            _, _, indices, *texts = line.split("\t")
            first, second = (tuple(text.split()) for text in texts)
            targets = _index(indices.split("-")[0], first), _index(indices.split("-")[1], second)
            pairs.append(WordPair((first, second), targets, same))
        except (ValueError, LookupError) as error:
            raise UserError(
                f"`wic {folder}`: line {number} of {part} is not a pair ({str(error)[:80]}); expected in "
                f"{part}.data.txt a lemma, its part of speech, two indices such as 2-1 and two sentences, separated by "
                f"tabs, and in {part}.gold.txt T or F, or nothing where there is no label."
            ) from None
    if not pairs:
        raise UserError(f"`wic {folder}`: {part}.data.txt holds no pair; give {READABLE}.")
    return pairs


def _lines(path: Path) -> list[str]:
    lines = decode_lines(read_bytes(path, f"wic {path}", READABLE), f"wic {path}")
    return lines[:-1] if lines and not lines[-1].strip() else lines


def _index(text: str, words: Sequence[str]) -> int:
    index = int(text)
    if not 0 <= index < len(words):
        raise ValueError(f"there is no word {index} in a sentence of {len(words)}")
    return index


def _hub_names(part: str) -> tuple[str, ...]:
    return _HUB_PARTS[part], part, part.replace("dev", "val")


def _from_hub(source: str, parts: Sequence[str]) -> dict[str, list[WordPair | None]]:
    rows = read_splits(source, "wic")
    found = {}
    for part in parts:
        names = [name for name in _hub_names(part) if name in rows]
        if not names:
            raise UserError(
                f"`wic {source}`: there is no split {_HUB_PARTS[part]}, only {', '.join(rows)}; give {READABLE}."
            )
        found[part] = list(_from_spans(rows[names[0]], f"wic {source}"))
    return found


def _from_spans(rows: Iterable[Mapping[str, Any]], typed: str) -> Iterator[WordPair | None]:
    """Yield the pairs of the SuperGLUE format, in which the word is a span of characters; None for one without a label.

    The word is separated from its neighbours, as all words are in the original format: `Room and board.` becomes
    `Room and board .`, and the same pieces are pooled.
    """
    for number, row in enumerate(rows):
        if missing := [column for column in _HUB_COLUMNS if column not in row]:
            raise UserError(
                f"`{typed}`: its rows have no column {missing[0]}, only {', '.join(row)}; give the WiC data set."
            )
        place = f"row {number}, counted from 0,"
        try:
            same = truth_of(row["label"])
        except ValueError:
            raise UserError(
                f"`{typed}`: the label of {place} is {row['label']!r:.40}; expected T, True or 1 where the senses are "
                "the same, F, False or 0 where they are not, or nothing where there is no label."
            ) from None
        if same is None:
            yield None
            continue
        texts = [sentence_of(row, f"sentence{k}", typed, place) for k in (1, 2)]
        halves = [
            _set_off(text, _character(row[f"start{k}"]), _character(row[f"end{k}"])) for k, text in enumerate(texts, 1)
        ]
        if not all(halves):
            raise UserError(
                f"`{typed}`: in {place} the span from start to end contains no word; expected the characters of the "
                "word."
            )
        (first, at_first), (second, at_second) = halves  # type: ignore[misc]
        yield WordPair((first, second), (at_first, at_second), same)


def _character(cell: Any) -> int:
    """Return the number of a character; -1, which no sentence has, for everything else."""
    try:
        number = number_of(cell)
    except ValueError:
        return -1
    return int(number) if number is not None and number.is_integer() else -1


def _set_off(sentence: str, start: int, end: int) -> tuple[tuple[str, ...], int] | None:
    """Return the words of a sentence, the span being one of them, and its index; None if the span is blank."""
    target = " ".join(sentence[start:end].split()) if 0 <= start < end <= len(sentence) else ""
    before, after = sentence[:start].split(), sentence[end:].split()
    return ((*before, target, *after), len(before)) if target else None


def _indexed(name: str, read: Sequence[WordPair | None]) -> WordPairs:
    pairs = [pair for pair in read if pair is not None]
    # Repeated sentences are no defect here, as each word has several pairs, so they are not counted.
    corpus = replace(from_words(name, [words for pair in pairs for words in pair.sentences]), n_repeated=0)
    at = {words: i for i, words in enumerate(corpus.words or ())}
    return WordPairs(
        corpus,
        np.array([[at[words] for words in pair.sentences] for pair in pairs]),
        np.array([pair.targets for pair in pairs]),
        np.array([pair.same for pair in pairs], dtype=bool),
        len(read) - len(pairs),
    )
