"""The rows of an array on which a penalty is chosen: whole groups, without the last rows of any class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probing.corpus.splits import hashed
from probing.errors import UserError


def hold_out(
    names: Sequence[str], group_of_row: NDArray[np.int64], labels: NDArray[np.int64] | None, share: float, seed: int
) -> NDArray[np.bool_]:
    """Return which rows are held out: those of the groups whose names have the largest hashes.

    A group that has all remaining rows of a class stays, so that every class can be learnt; and so does the last group.

    Args:
        names: Name of each group.
        group_of_row: Group of each row, shape (n_rows,).
        labels: Class of each row, shape (n_rows,); None if numbers are predicted.
        share: Share of the groups that is held out, at least one.
        seed: Seed of the hash.

    Raises:
        UserError: If no group can be held out.
    """
    labels = np.zeros(len(group_of_row), dtype=np.int64) if labels is None else labels
    left, wanted = np.bincount(labels), max(1, round(share * len(names)))
    by_group = np.split(np.argsort(group_of_row, kind="stable"), np.bincount(group_of_row).cumsum()[:-1])
    held: list[int] = []
    for group in sorted(range(len(names)), key=lambda i: hashed(names[i], seed), reverse=True):
        classes, counts = np.unique(labels[by_group[group]], return_counts=True)
        if (left[classes] > counts).all():
            left[classes] -= counts
            held.append(group)
        if len(held) == wanted:
            break
    if not held:
        raise UserError(
            "`l2=auto` chooses the penalty on rows that are held out, and each group of rows has all rows of a class; "
            "give more rows or groups, or a number, such as `l2=1e-3`."
        )
    return np.isin(group_of_row, held)
