"""Tasks of numerals: their value (Wallace et al. 2019, EMNLP), and the number of its digits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probing.errors import out_of_range, refuse
from probing.text import Corpus, Split
from probing.text.tasks import Labels, Span, SpanTask

_UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
# Words that are part of a number without being part of one that is read.
_OTHERS = ["point", "half", "dozen", "billion", "trillion"]

# Digits, perhaps with commas between thousands and a fraction; no date, time, range, ordinal or other code.
_DIGITS = r"(?<![\w.,:/+−–-])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,15})(?:\.[0-9]+)?(?![\w/:−–-]|[.,][0-9])"
_WORD = rf"(?:{'|'.join([*_UNITS, *_TENS, 'hundred', 'thousand', 'million', *_OTHERS])})"
_WORDS = rf"(?<![\w-]){_WORD}(?:(?:[ -]|(?<=hundred|housand) and ){_WORD})*(?![\w]|-\w)"
# What stands between the parts of a number, a date, a time or a range, also in a treebank, whose words are apart.
_BETWEEN = re.compile(r" ?[-–/:]? ?")
_NUMERAL = re.compile(f"({_DIGITS})|{_WORDS}", re.IGNORECASE)


@cache
def _below_thousand() -> dict[str, int]:
    """Return the numbers from 0 to 999 by their English words, with `and` behind the hundreds and without."""
    names = {word: i for i, word in enumerate(_UNITS)}
    for i, ten in enumerate(_TENS, 2):
        names |= {ten: 10 * i} | {f"{ten} {unit}": 10 * i + n for n, unit in enumerate(_UNITS[1:10], 1)}
    below_hundred = list(names.items())
    for n, unit in [(1, ""), *enumerate(_UNITS[1:10], 1)]:
        hundred = f"{unit} hundred".strip()
        names[hundred] = 100 * n
        for name, value in below_hundred[1:]:
            names |= {f"{hundred} {name}": 100 * n + value, f"{hundred} and {name}": 100 * n + value}
    return names


def value_of_words(words: str) -> int | None:
    """Return the number, from 0 to a million, that English words name; None for other words."""
    names = _below_thousand()
    before, thousand, after = words.casefold().replace("-", " ").partition("thousand")
    if not thousand:
        return 1_000_000 if before in ("million", "one million") else names.get(before)
    thousands, rest = names.get(before.strip() or "one"), names.get(after.strip().removeprefix("and ") or "zero")
    if not thousands or rest is None or (after and not rest):
        return None
    return 1000 * thousands + rest


def numerals(sentence: str) -> Iterator[tuple[int, int, float]]:
    """Yield start, end and value of each numeral of a sentence.

    Numerals with only a blank, a hyphen, a slash or a colon between them, such as `5 million`, `10 000` or, in a
    treebank, `twenty - five`, may be one number and are left out, as is the word `one` by itself, mostly a pronoun.
    """
    found = list(_NUMERAL.finditer(sentence))
    adjoining = {
        match
        for pair in pairwise(found)
        if _BETWEEN.fullmatch(sentence, pair[0].end(), pair[1].start())
        for match in pair
    }
    for match in found:
        value = float(match[1].replace(",", "")) if match[1] else value_of_words(match[0])
        if value is not None and match not in adjoining and match[0].casefold() != "one":
            yield *match.span(), float(value)


def labelled_numerals(corpus: Corpus, label_of: Callable[[float], float]) -> list[Span]:
    """Return the numerals of a corpus, each with the label of its value."""
    return [
        Span(i, start, end, label_of(value))
        for i, sentence in enumerate(corpus.sentences)
        for start, end, value in numerals(sentence)
    ]


@dataclass(frozen=True)
class NumberValue(SpanTask):
    """The value of a numeral, in digits or in English words up to a million: log10(1 + value), predicted as a number.

    Args:
        min_count: Not for numbers.
        pooling: Vector of a numeral: the mean or the maximum over its tokens.
        test: Numerals that are tested on: of any value (interpolate), or of a value above all of training
            (above_training).
        highest: With `test` above_training, the highest value in training and validation.
    """

    test: Literal["interpolate", "above_training"] = "interpolate"
    highest: float = 100.0

    numbers = True

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        super().__post_init__()
        refuse(out_of_range("task_args.highest", self.highest, 1))

    def spans(self, corpus: Corpus) -> Sequence[Span]:
        """Return the numerals of a corpus, each with log10(1 + value)."""
        return labelled_numerals(corpus, lambda value: math.log10(1 + value))

    def may_be_on(self, side: Split, labels: Labels) -> NDArray[np.bool_]:
        """Return whether a value may be an example of a side: every value, or only values above training in test."""
        if self.test == "interpolate":
            return super().may_be_on(side, labels)
        is_above: NDArray[np.bool_] = labels > math.log10(1 + self.highest)
        return is_above if side == "test" else ~is_above


@dataclass(frozen=True)
class NumberDigits(SpanTask):
    """The number of digits before the point of a numeral's value, such as 3 for `105` and `one hundred and five`."""

    ordinal = True

    def spans(self, corpus: Corpus) -> Sequence[Span]:
        """Return the numerals of a corpus, each with the number of digits of its value."""
        return labelled_numerals(corpus, lambda value: len(str(int(value))))
