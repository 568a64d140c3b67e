"""Names of sentence poolings and of spaces for cosines, and the reader of the STS data sets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError
from probing.text import Corpus, from_sentences
from probing.text.columns import label_of, score_of
from probing.text.files import decode_lines, read_bytes, read_splits, sentence_of

Pooling = Literal["mean", "mean_special", "cls", "first_last"]

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

Space = Literal["none", "clip", "clip_random", "whiten", "standardise", "center", "all_but_the_top"]

SPACES: tuple[Space, ...] = get_args(Space)

# Definitions of the outliers that are clipped: those that use hidden states only.
Definition = Literal["argmin_share", "argmax_share", "mean_profile", "variance"]

# Marks transforms that were fitted on the sentences they are evaluated on.
TRANSDUCTIVE = "transductive"

CLIPPING = ("clip", "clip_random")

# Names of the spaces in tables and figures.
WORDS = {
    "none": "plain",
    "clip": "clipped",
    "clip_random": "random clipped",
    "whiten": "whitened",
    "standardise": "standardised",
    "center": "centred",
    "all_but_the_top": "all but the top",
}

Part = Literal["train", "dev", "test"]

STS_B, SICK = "STS-B", "SICK-R"

READABLE = (
    "a folder with STS12 to STS16 or SICK as SentEval has them (STS.input.*.txt with STS.gs.*.txt, SICK_*.txt) or "
    "STS-B as published (sts-*.csv), one of these files, or 'hf:NAME?config=C'"
)

_PARTS: Mapping[str, Part] = {
    "train": "train", "dev": "dev", "trial": "dev", "validation": "dev", "val": "dev", "test": "test",
    "test_annotated": "test",
}  # fmt: skip

# Columns of the two sentences and of the score in data sets on the hub.
_PAIRS = (("sentence1", "sentence2"), ("sentence_A", "sentence_B"))

_SCORES = ("score", "similarity_score", "relatedness_score", "label")

# Columns of SICK's other label; the last one has scores in other data sets.
_ENTAILMENT = ("entailment_judgment", "entailment_label", "label")


class Rated(NamedTuple):
    """A pair of sentences, its score (None if missing), and its entailment (None if the source has none)."""

    first: str
    second: str
    gold: float | None
    entailment: str | None = None


@dataclass(frozen=True)
class SentencePairs:
    """A part of a data set (STS12 to STS16, STS-B, SICK-R, or a data set on the hub).

    Args:
        part: `train`, `dev` or `test`.
        corpus: Its distinct sentences.
        sentences: Indices into the corpus of the sentences of each pair, shape (n_pairs, 2).
        gold: Score of each pair, shape (n_pairs,).
        subset: Index into `subsets` (names such as MSRpar) of each pair, ascending, shape (n_pairs,).
        n_without_sentence: Number of omitted pairs with an empty sentence.
        n_without_score: Number of other omitted pairs, without a score.
        entailment: Entailment of each pair in SICK, as the source writes it; empty for other data sets.
    """

    name: str
    part: Part
    corpus: Corpus
    sentences: NDArray[np.int64]
    gold: NDArray[np.float64]
    subset: NDArray[np.int64]
    subsets: tuple[str, ...]
    n_without_sentence: int = 0
    n_without_score: int = 0
    entailment: tuple[str | None, ...] = ()

    @property
    def label(self) -> str:
        """Label in tables: the data set's name for a test part, as in papers; with the part's name for other parts."""
        part = "trial" if (self.name, self.part) == (SICK, "dev") else self.part
        return self.name if part == "test" else f"{self.name} {part}"

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    @property
    def n_dropped(self) -> int:
        """Number of omitted pairs."""
        return self.n_without_sentence + self.n_without_score

    @property
    def n_read(self) -> int:
        """Number of all pairs of the source."""
        return self.n_pairs + self.n_dropped

    def messages(self) -> list[str]:
        """Return a line on the omitted pairs, if any."""
        if not self.n_dropped:
            return []
        return [
            f"{self.label}: {self.n_dropped} of {self.n_read} pairs are left out: {self.n_without_score} have no "
            f"score, {self.n_without_sentence} lack a sentence"
        ]


@dataclass(frozen=True)
class PairFiles:
    """Sources of pairs in messages: `option` precedes their names, as "sts " does; `readable` lists the formats."""

    option: str
    readable: str

    def lines(self, path: Path) -> list[str]:
        """Return the lines of a file; an empty last line is left out."""
        flag_text = f"{self.option}{path}"
        lines = decode_lines(read_bytes(path, flag_text, self.readable), flag_text)
        return lines[:-1] if lines and not lines[-1].strip() else lines


def read_sts(sources: Sequence[str], reader: PairFiles = PairFiles("sts ", READABLE)) -> list[SentencePairs]:
    """Read all data sets in the sources, in the order STS12 to STS16, STS-B, SICK-R, others.

    Sources are folders (searched recursively), files, and data sets `hf:NAME?config=C`.

    Raises:
        UserError: If there is no data set, files are malformed, or a part occurs twice.
    """
    sets = [
        part
        for source in sources
        for part in (_hub(source, reader) if source.startswith("hf:") else _folder(source, reader))
    ]
    labels = [part.label for part in sets]
    if twice := [label for label in labels if labels.count(label) > 1]:
        flag_text = f"{reader.option}{' '.join(sources)}"
        raise UserError(f"`{flag_text}`: {twice[0]} was found twice; give a folder that has it once.")
    order = {STS_B: "STS17", SICK: "STS18"}
    return sorted(sets, key=lambda part: (not re.fullmatch("STS.*|SICK-R", part.name), order.get(part.name, part.name)))


def _folder(source: str, reader: PairFiles) -> Iterator[SentencePairs]:
    root, is_empty = Path(source), True
    listed = (path for folder in _folders(root) for path in folder.iterdir())
    files = [root] if root.is_file() else sorted(path for path in listed if path.is_file())
    inputs: dict[Path, list[Path]] = {}
    for path in files:
        flag_text = f"{reader.option}{path}"
        if path.match("STS.input.*.txt"):
            inputs.setdefault(path.parent, []).append(path)
        elif match := re.fullmatch(r"sts-(train|dev|test)\.csv", path.name):
            yield _pairs(STS_B, _PARTS[match[1]], {"": _benchmark(path, reader)}, flag_text)
        elif match := re.fullmatch(r"SICK_(train|trial|test_annotated|test)\.txt", path.name):
            yield _pairs(SICK, _PARTS[match[1]], {"": (pair for _, pair in _sick(path, reader))}, flag_text)
        elif path.name == "SICK.txt":
            yield from _whole_sick(path, reader)
        else:
            continue
        is_empty = False
    for folder, paths in inputs.items():
        name = re.search(r"STS-?(1[2-6])", folder.resolve().name, re.IGNORECASE)
        subsets = {path.name.removeprefix("STS.input.").removesuffix(".txt"): _subset(path, reader) for path in paths}
        yield _pairs(f"STS{name[1]}" if name else folder.resolve().name, "test", subsets, f"{reader.option}{folder}")
    if is_empty and source:
        reason = "no such file or directory" if not os.path.exists(root) else "there are no pairs of sentences in it"
        raise UserError(f"`{reader.option}{source}` cannot be read ({reason}); give {reader.readable}.")


def _folders(root: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders, links included, each once; `rglob` would omit links."""
    waiting, seen = [root], set()
    while waiting:
        folder = waiting.pop()
        if (place := folder.resolve()) not in seen and folder.is_dir():
            seen.add(place)
            yield folder
            waiting += sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)


def _subset(path: Path, reader: PairFiles) -> Iterator[Rated]:
    """Read a subset of STS12 to STS16 in SentEval's layout; an empty line among the scores means no score."""
    gold_path = path.with_name(path.name.replace("input", "gs", 1))
    lines, gold = reader.lines(path), reader.lines(gold_path)
    if len(lines) != len(gold):
        raise UserError(
            f"`{reader.option}{path}` has {len(lines)} lines and {gold_path.name} has {len(gold)}; each pair needs its "
            "score, or an empty line, in the same line."
        )
    for number, (line, score) in enumerate(zip(lines, gold, strict=True), 1):
        yield _rated(line.split("\t"), score, f"{reader.option}{path}", number)


def _benchmark(path: Path, reader: PairFiles) -> Iterator[Rated]:
    """Read STS-B as published: genre, file, year, number, score and two sentences, separated by tabs, unquoted."""
    for number, line in enumerate(reader.lines(path), 1):
        cells = line.split("\t")
        yield _rated(cells[5:], cells[4] if len(cells) > 4 else "", f"{reader.option}{path}", number)


def _sick(path: Path, reader: PairFiles) -> Iterator[tuple[str, Rated]]:
    """Read SICK: a header line, then one pair per line; yield with each the value of `SemEval_set`, if present."""
    flag_text, (head, *lines) = f"{reader.option}{path}", reader.lines(path) or [""]
    columns = head.split("\t")
    if missing := {"sentence_A", "sentence_B", "relatedness_score"} - {*columns}:
        raise UserError(f"`{flag_text}`: its first line names no column {min(missing)}; give SICK as published.")
    entailment = next((name for name in _ENTAILMENT if name in columns), "")
    used = {"sentence_A", "sentence_B", "relatedness_score", entailment, "SemEval_set"} & {*columns}
    for number, line in enumerate(lines, 2):
        row = dict(zip(columns, line.split("\t"), strict=False))
        texts = [row["sentence_A"], row["sentence_B"]] if used <= {*row} else []
        rated = _rated(texts, row.get("relatedness_score", ""), flag_text, number)
        yield (
            row.get("SemEval_set", "").strip().lower(),
            rated._replace(entailment=label_of(row.get(entailment)) or None),
        )


def _whole_sick(path: Path, reader: PairFiles) -> Iterator[SentencePairs]:
    """Read SICK with all its parts in one file, distinguished by the column `SemEval_set`."""
    of_parts: dict[str, list[Rated]] = {}
    for part, pair in _sick(path, reader):
        of_parts.setdefault(part, []).append(pair)
    flag_text = f"{reader.option}{path}"
    if unknown := sorted({*of_parts} - {*_PARTS}):
        raise UserError(
            f"`{flag_text}`: its column SemEval_set has {unknown[0]!r:.40}; expected TRAIN, TRIAL or TEST in each line."
        )
    for part, pairs in of_parts.items():
        yield _pairs(SICK, _PARTS[part], {"": pairs}, flag_text)


def _rated(texts: Sequence[str], score: str, flag_text: str, number: int) -> Rated:
    if len(texts) < 2:
        raise UserError(f"`{flag_text}`: line {number} is not a pair of sentences separated by a tab; correct it.")
    return Rated(texts[0], texts[1], _score(score, flag_text, f"line {number}"))


def _score(cell: Any, flag_text: str, place: str) -> float | None:
    """Return the score of a cell, None if it has none: data sets have -1 for withheld scores."""
    try:
        return score_of(cell)
    except ValueError:
        raise UserError(
            f"`{flag_text}`: the score of {place} is {cell!r:.40}, which is not a number of at least 0; write one, or "
            "leave it empty where there is no score."
        ) from None


def _hub(source: str, reader: PairFiles) -> Iterator[SentencePairs]:
    """Read every split that has scores; the data set is recognised by its name."""
    flag_text, n_parts = f"{reader.option}{source}", 0
    for split, rows in read_splits(source, flag_text).items():
        if (part := _PARTS.get(split)) and rows:
            rated = list(_rated_rows(rows, flag_text))
            if any(pair.gold is not None for pair in rated):
                n_parts += 1
                yield _pairs(_hub_name(source), part, {"": rated}, flag_text)
    if not n_parts:
        raise UserError(f"`{flag_text}`: no split train, validation, dev or test has scores; give another data set.")


def _hub_name(source: str) -> str:
    name = re.sub("[^a-z0-9]", "", source.removeprefix("hf:").lower())
    if year := re.search("sts(1[2-6])", name):
        return f"STS{year[1]}"
    known = {"stsb": STS_B, "sick": SICK}
    return next((what for sign, what in known.items() if sign in name), source.removeprefix("hf:").split("/")[-1])


def _rated_rows(rows: Sequence[Mapping[str, Any]], flag_text: str) -> Iterator[Rated]:
    columns = list(rows[0])
    pair = next((names for names in _PAIRS if {*names} <= {*columns}), None)
    score = next((name for name in _SCORES if name in columns), None)
    entailment = next((name for name in _ENTAILMENT if name in columns and name != score), None)
    if pair is None or score is None:
        raise UserError(
            f"`{flag_text}`: its columns are {', '.join(columns)}; expected sentence1 and sentence2, or sentence_A and "
            f"sentence_B, with one of {', '.join(_SCORES)}."
        )
    for number, row in enumerate(rows):
        place = f"row {number}, counted from 0,"
        first, second = (sentence_of(row, name, flag_text, place) for name in pair)
        label = None if entailment is None else label_of(row[entailment]) or None
        yield Rated(first, second, _score(row[score], flag_text, place), label)


def _pairs(name: str, part: Part, subsets: Mapping[str, Iterable[Rated]], flag_text: str) -> SentencePairs:
    """Leave out pairs without a score or a sentence, and index the sentences in a corpus."""
    everything = [(subset, pair) for subset, pairs in subsets.items() for pair in pairs]
    whole = [(subset, pair) for subset, pair in everything if pair.first.strip() and pair.second.strip()]
    scored = [(subset, pair) for subset, pair in whole if pair.gold is not None]
    if len(scored) < 3:
        raise UserError(
            f"`{flag_text}`: only {len(scored)} pairs have a score and two sentences, out of {len(everything)}, too "
            "few to rank; give more."
        )
    pairs, names = [pair for _, pair in scored], list(dict.fromkeys(subset for subset, _ in scored))
    texts = [text for pair in pairs for text in (pair.first, pair.second)]
    corpus = replace(from_sentences(f"{name} {part}", texts), n_repeated=0)
    at = {sentence: i for i, sentence in enumerate(corpus.sentences)}
    return SentencePairs(
        name, part, corpus,
        np.array([at[" ".join(text.split())] for text in texts]).reshape(-1, 2),
        np.array([pair.gold for pair in pairs], dtype=np.float64),
        np.array([names.index(subset) for subset, _ in scored]),
        tuple(names),
        n_without_sentence=len(everything) - len(whole),
        n_without_score=len(whole) - len(scored),
        entailment=tuple(pair.entailment for pair in pairs) if any(pair.entailment for pair in pairs) else (),
    )  # fmt: skip
