"""How much a covariance was fitted on for each dimension of it, and whether that is enough to whiten by.

Whitening d directions by the covariance of n independent Gaussian vectors leaves other vectors a variance of
n / (n - d - 2) on average where 1 is meant (the mean of an inverse Wishart matrix), and
the ratio of the largest variance to the smallest goes as ((1 + sqrt(d / n)) / (1 - sqrt(d / n)))^2 (Marchenko & Pastur
1967): 1.1 and 4 with ten vectors a dimension, 2 and 34 with two, and without bound where n comes down to d. Tokens of
one sentence are not independent and count for less; `docs/whitening.md` has what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

# Transforms that use directions of the whole covariance, and what to call them in a sentence.
OF_COVARIANCE = {"whiten": "Whitening", "all_but_the_top": "All-but-the-top"}
# Vectors for each dimension below which a reader is warned.
ENOUGH = 10

SIZE_COLUMNS = ("n_fitted_sentences", "n_fitted_vectors", "n_fitted_dimensions", "vectors_per_dimension")

Row = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class SampleSize:
    """What a covariance was fitted on.

    Args:
        n_vectors: How many vectors, of tokens or of whole sentences.
        n_sentences: How many sentences they are from.
        n_dimensions: How many directions of the covariance are used.
    """

    n_vectors: int
    n_sentences: int
    n_dimensions: int

    @property
    def is_small(self) -> bool:
        """Whether a reader is to be warned."""
        return self.n_vectors < ENOUGH * self.n_dimensions

    @property
    def unit(self) -> str:
        """What the vectors are of; a token of each sentence counts as a sentence."""
        return "sentences" if self.n_vectors == self.n_sentences else "tokens"

    def __str__(self) -> str:
        sentences, vectors = (_short(n / self.n_dimensions) for n in (self.n_sentences, self.n_vectors))
        if self.unit == "sentences":
            return f"{self.n_sentences:,} sentences, {sentences} per dimension"
        return (
            f"{self.n_vectors:,} tokens of {self.n_sentences:,} sentences, {vectors} tokens and {sentences} sentences "
            "per dimension"
        )


def size_columns(
    transform: str, n_vectors: int, n_sentences: int, d_model: int, components: int | None = None
) -> dict[str, int | float]:
    """Return what the rows of a transform say of the text it was fitted on; nothing if it uses no covariance.

    Args:
        transform: Which.
        n_vectors: How many vectors it was fitted on, of tokens or of whole sentences.
        n_sentences: How many sentences they are from.
        d_model: Width of the vectors.
        components: Directions that whitening keeps, all if None.
    """
    if transform not in OF_COVARIANCE:
        return {}
    # Which directions come first, all-but-the-top takes from the whole covariance.
    n_dimensions = min(components or d_model, d_model) if transform == "whiten" else d_model
    values = (n_sentences, n_vectors, n_dimensions, n_vectors / n_dimensions)
    return dict(zip(SIZE_COLUMNS, values, strict=True))


def size_of(row: Row) -> SampleSize | None:
    """Return what a row's transform was fitted on; None if it says nothing of that."""
    values = [row.get(name) for name in ("n_fitted_vectors", "n_fitted_sentences", "n_fitted_dimensions")]
    return None if None in values or "" in values else SampleSize(*map(int, values))  # type: ignore[arg-type]


def label(words: str, rows: Iterable[Row]) -> str:
    """Return what to call the transform of some rows, with what it was fitted on where that is too little.

    Args:
        words: What to call it otherwise.
        rows: All of that transform; where it was fitted several times, the least is told.
    """
    found = min((size for row in rows if (size := size_of(row))), default=None)
    if found is None or not found.is_small:
        return words
    return f"{words} (from {_short(found.n_vectors / found.n_dimensions)} {found.unit} per dimension)"


def size_lines(rows: Iterable[Row], remedy: str) -> list[str]:
    """Return a sentence for each transform that uses a covariance, which warns if it was fitted on too little.

    Args:
        rows: Of any transforms; where one was fitted several times, the least is told.
        remedy: What the user can do, as a sentence.
    """
    return [_line(name, n_dimensions, found, remedy) for (name, n_dimensions), found in _by_transform(rows).items()]


def _line(name: str, n_dimensions: int, found: set[SampleSize], remedy: str) -> str:
    least = min(found)
    fitted = (
        f"{OF_COVARIANCE[name]} of {n_dimensions:,} dimensions is fitted on {'as few as ' * (len(found) > 1)}{least}"
    )
    if not least.is_small:
        return f"{fitted}."
    return (
        f"Warning: {fitted}, fewer than {ENOUGH}: what it does to other vectors is largely the sampling error of the "
        f"covariance. {remedy}"
    )


def _by_transform(rows: Iterable[Row]) -> dict[tuple[str, int], set[SampleSize]]:
    """Return the different sizes of each transform and number of dimensions."""
    found: dict[tuple[str, int], set[SampleSize]] = {}
    for row in rows:
        if row.get("transform") in OF_COVARIANCE and (size := size_of(row)):
            found.setdefault((row["transform"], size.n_dimensions), set()).add(size)
    return found


def _short(number: float) -> str:
    """Return about two digits, rounded down so that what is too little never looks like enough."""
    if number < 1:
        return f"{number:.2g}"
    return f"{floor(10 * number) / 10:g}" if number < ENOUGH else f"{number:,.0f}"
