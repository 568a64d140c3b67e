"""How the farthest mean of an arm grows with the logarithm of the steps, and when it would be an outlier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from probing.statistics.random_draws import LEVEL
from probing.tables.pretraining import OUTLIER

# Growth is measured over the last steps: from a sixteenth of them on.
LAST = 16
# An extrapolation over more doublings of the steps says nothing.
DOUBLINGS = 30


def growth_of(rows: Sequence[Mapping[str, Any]], arm: str = "learned") -> dict[str, float | None] | None:
    """Return the growth of the farthest mean above the embeddings with log2 of the steps, and what follows from it.

    For each seed, a line is fitted to the checkpoints after a sixteenth of the steps, by least squares. The slope is
    the mean over seeds, with Student's t interval. The number of steps after which the
    farthest mean would be an outlier is extrapolated from its mean over seeds after the last step. The ends of its
    interval follow from the ends of the slope's interval; it has no upper end if the lower slope is 0 or less.

    Args:
        rows: Rows of `arms.csv`.
        arm: Name of the arm.

    Returns:
        `first_step` of the fit; `slope`, in sd for each doubling of the steps; `now`, the farthest mean after the last
        step, over seeds; and `steps`. `slope` and `steps` have the ends of an interval, which are None for a single
        seed. None if there are fewer than two checkpoints.
    """
    here = [row for row in rows if row["arm"] == arm and row["layer"] > 0 and row["step"] > 0]
    last = max((row["step"] for row in here), default=0)
    fitted = sorted({row["step"] for row in here if row["step"] * LAST >= last})
    if len(fitted) < 2:
        return None
    seeds = sorted({row["seed"] for row in here})
    farthest = np.array(
        [
            [max(row["max_mean_sd"] for row in here if (row["seed"], row["step"]) == (seed, step)) for step in fitted]
            for seed in seeds
        ]
    )
    slopes = np.polyfit(np.log2(fitted), farthest.T, 1)[0]
    slope, now = float(slopes.mean()), float(farthest[:, -1].mean())
    low = high = None
    if len(seeds) > 1:
        reach = stdtrit(len(seeds) - 1, (1 + LEVEL) / 2) * slopes.std(ddof=1) / math.sqrt(len(seeds))
        low, high = slope - float(reach), slope + float(reach)
    return {
        "first_step": fitted[0], "slope": slope, "slope_low": low, "slope_high": high, "now": now,
        "steps": _steps(last, now, slope), "steps_low": _steps(last, now, high), "steps_high": _steps(last, now, low),
    }  # fmt: skip


def _steps(last: int, now: float, slope: float | None) -> float | None:
    """Return after how many steps there is an outlier; None if never, or beyond what can be extrapolated to."""
    if slope is None or slope <= 0:
        return None
    doublings = max(0.0, (OUTLIER - now) / slope)
    return last * 2.0**doublings if doublings < DOUBLINGS else None
