"""Sentences in: where they come from, their fingerprint, and which side of the split each is on."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probing.errors import UserError

Split = Literal["train", "validation", "test"]

# Shares of the split, as thresholds on a uniform hash: 80 / 10 / 10.
TRAIN_BELOW, VALIDATION_BELOW = 0.8, 0.9


@dataclass(frozen=True)
class Corpus:
    """Distinct sentences in their order of appearance.

    Args:
        name: What the user typed, for messages and run names.
        sentences: Each with single spaces and no surrounding blanks; no two are equal.
        n_repeated: How many further occurrences were dropped.
    """

    name: str
    sentences: tuple[str, ...]
    n_repeated: int = 0

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the sentences and their order."""
        digest = hashlib.sha256()
        for sentence in self.sentences:
            digest.update(sentence.encode("utf-8"))
            digest.update(b"\n")
        return digest.hexdigest()


def load_corpus(name: str, option: str = "--corpus") -> Corpus:
    """Read the distinct sentences of `builtin`, a text file with a sentence a line, or `-` (standard input).

    Args:
        name: What the user typed.
        option: Where the user typed it, for messages.

    Raises:
        UserError: If the source is unknown, unreadable, not UTF-8, or holds no sentence.
    """
    if name == "builtin":
        lines: Iterable[str] = builtin_sentences()
    elif name == "-":
        lines = _decode(_read_standard_input(option), f"{option} -")
    else:
        lines = _decode(_read(Path(name), option), f"{option} {name}")
    return from_sentences(name, lines, option)


def from_sentences(name: str, lines: Iterable[str], option: str = "--corpus") -> Corpus:
    """Build a corpus from lines: blanks collapsed, empty lines dropped, repeated sentences kept once.

    Raises:
        UserError: If nothing is left.
    """
    distinct: dict[str, None] = {}
    n_seen = 0
    for line in lines:
        if sentence := " ".join(line.split()):
            n_seen += 1
            distinct.setdefault(sentence)
    if not distinct:
        raise UserError(f"`{option} {name}` holds no sentence: expected text with one sentence a line.")
    return Corpus(name, tuple(distinct), n_seen - len(distinct))


def split_key(sentence: str) -> str:
    """The words of a sentence without case and punctuation: near-duplicates share it, and so their side."""
    return " ".join(re.findall(r"\w+", sentence.casefold())) or sentence


def assign_splits(sentences: Sequence[str], seed: int) -> list[Split]:
    """Put each sentence on a side by a hash of its words salted with `seed`.

    A sentence keeps its side when the corpus grows or is reordered, and sentences that differ
    only in case or punctuation are never divided.
    """
    return [_side(split_key(sentence), seed) for sentence in sentences]


def hold_out(main: Corpus, test: Corpus) -> Corpus:
    """Return the main corpus without the sentences that are in the test corpus, but for case and punctuation.

    Raises:
        UserError: If nothing is left.
    """
    held_out = {split_key(sentence) for sentence in test.sentences}
    kept = tuple(sentence for sentence in main.sentences if split_key(sentence) not in held_out)
    if not kept:
        raise UserError(
            f"`--test_corpus {test.name}` holds every sentence of `--corpus {main.name}`; nothing is left to train on."
        )
    return Corpus(main.name, kept, main.n_repeated)


def _side(key: str, seed: int) -> Split:
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    uniform = int.from_bytes(digest[:8], "big") / 2**64
    if uniform < TRAIN_BELOW:
        return "train"
    return "validation" if uniform < VALIDATION_BELOW else "test"


def _read(path: Path, option: str) -> bytes:
    if path.suffix not in (".txt", ""):
        raise UserError(
            f"`{option} {path}`: a file of type {path.suffix} is not read; "
            "give `builtin`, a .txt file with a sentence a line, or `-` for standard input."
        )
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UserError(
            f"`{option} {path}` cannot be read ({reason}); "
            "give `builtin`, the path of a .txt file with a sentence a line, or `-` for standard input."
        ) from None


def _read_standard_input(option: str) -> bytes:
    try:
        if sys.stdin is None:
            raise OSError("it is closed")
        return sys.stdin.buffer.read()
    except OSError as error:
        raise UserError(f"`{option} -` cannot be read ({error.strerror or error}); give it a text.") from None


def _decode(data: bytes, typed: str) -> Iterator[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"`{typed}` is not UTF-8 (line {line}, byte {error.start}); convert it, "
            "for example with `iconv -f latin1 -t utf-8`."
        ) from None
    return iter(text.splitlines())


# --- the built-in corpus ---------------------------------------------------------------------------------------------

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|[A-Z])\.)$")


def builtin_sentences() -> list[str]:
    """English prose of the Python language reference, from the standard library's `pydoc_data.topics`.

    Code, grammar, headings, tables and signatures are left out: what stays starts like a sentence
    and ends like one. The text varies with the Python version, so the version belongs beside
    every figure made from it.
    """
    from pydoc_data.topics import topics

    return [
        sentence
        for name in sorted(topics)
        for paragraph in re.split(r"\n\s*\n", topics[name])
        if _is_prose(paragraph)
        for sentence in _sentences(" ".join(paragraph.split()))
    ]


def _is_prose(paragraph: str) -> bool:
    heading_or_table = re.search(r"^\s*(?:[+|]|([*=\-~^\"])\1{2})", paragraph, re.MULTILINE)
    return not heading_or_table and "::=" not in paragraph and ">>>" not in paragraph


def _sentences(paragraph: str) -> Iterator[str]:
    """Cut a paragraph at sentence ends, mend cuts after abbreviations, keep what reads like a sentence."""
    paragraph = re.sub(r"^(?:[*\-]|\d+\.|\[\d+\])\s+", "", paragraph)  # bullets and footnote marks
    parts: list[str] = []
    for part in _SENTENCE_END.split(paragraph):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] += " " + part
        else:
            parts.append(part)
    return (part for part in parts if re.match(r"[\"'(]*[A-Z].*[.!?:][\"')]*$", part) and part.count(" ") >= 2)
