"""Number of vectors per dimension that a covariance was fitted on, and whether they are enough for whitening.

Whitening d directions by the covariance of n independent Gaussian vectors gives new vectors an average variance of
n / (n - d - 2) instead of 1 (the mean of an inverse Wishart matrix). The ratio of the largest variance to the smallest
is about ((1 + sqrt(d / n)) / (1 - sqrt(d / n)))^2 (Marchenko & Pastur 1967). They are 1.1 and 4 with ten vectors per
dimension, 2 and 34 with two, and unbounded as n approaches d. Tokens of one sentence are not independent and count for
less; `docs/notes/whitening.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

# Transforms that use directions of the whole covariance, with their names in a sentence.
OF_COVARIANCE = {"whiten": "Whitening", "all_but_the_top": "All-but-the-top"}
# With fewer vectors per dimension the reader is warned.
ENOUGH = 10

SIZE_COLUMNS = ("n_fitted_sentences", "n_fitted_vectors", "n_fitted_dimensions", "vectors_per_dimension")

Row = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class SampleSize:
    """The sample that a covariance was fitted on.

    Args:
        n_vectors: Number of vectors, of tokens or of whole sentences.
        n_sentences: Number of sentences that the vectors come from.
        n_dimensions: Number of directions of the covariance that are used.
    """

    n_vectors: int
    n_sentences: int
    n_dimensions: int

    @property
    def is_small(self) -> bool:
        """Whether the reader should be warned."""
        return self.n_vectors < ENOUGH * self.n_dimensions

    @property
    def unit(self) -> str:
        """The unit that a vector represents; a sentence, if there is one vector per sentence."""
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
    """Return the columns about the text that a transform was fitted on; empty if it uses no covariance.

    Args:
        transform: Name of the transform.
        n_vectors: Number of vectors it was fitted on, of tokens or of whole sentences.
        n_sentences: Number of sentences that the vectors come from.
        d_model: Width of the vectors.
        components: Number of directions that whitening keeps; None keeps all.
    """
    if transform not in OF_COVARIANCE:
        return {}
    # All-but-the-top finds the first directions from the whole covariance.
    n_dimensions = min(components or d_model, d_model) if transform == "whiten" else d_model
    values = (n_sentences, n_vectors, n_dimensions, n_vectors / n_dimensions)
    return dict(zip(SIZE_COLUMNS, values, strict=True))


def size_of(row: Row) -> SampleSize | None:
    """Return the sample that a row's transform was fitted on; None if the row does not record it."""
    values = [row.get(name) for name in ("n_fitted_vectors", "n_fitted_sentences", "n_fitted_dimensions")]
    return None if None in values or "" in values else SampleSize(*map(int, values))  # type: ignore[arg-type]


def label(words: str, rows: Iterable[Row]) -> str:
    """Return a label for a transform, which adds the sample size where that is too small.

    Args:
        words: The label without the sample size.
        rows: Rows of that transform; where it was fitted several times, the smallest sample counts.
    """
    found = min((size for row in rows if (size := size_of(row))), default=None)
    if found is None or not found.is_small:
        return words
    return f"{words} (from {_short(found.n_vectors / found.n_dimensions)} {found.unit} per dimension)"


def size_lines(rows: Iterable[Row], remedy: str) -> list[str]:
    """Return a sentence for each transform that uses a covariance, which warns if it was fitted on too little.

    Args:
        rows: Rows of any transforms; where one was fitted several times, the smallest sample counts.
        remedy: A sentence that says what the user can do.
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
        f"Warning: {fitted}, fewer than {ENOUGH}: its effect on other vectors is mostly sampling error of the "
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
    """Format a number with about two digits, rounded down so that a value below the limit never looks like enough."""
    if number < 1:
        return f"{number:.2g}"
    return f"{floor(10 * number) / 10:g}" if number < ENOUGH else f"{number:,.0f}"
