"""The output of `pretrain`, and the growth of an arm's farthest mean with the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from probing.results import Row, Table
from probing.runs.call import Measured
from probing.runs.folder import end_of_trainings
from probing.statistics import LEVEL
from probing.studies.pretrain.batches import PackedText
from probing.studies.pretrain.tables import ARMS, DOUBLINGS, OUTLIER, judge
from probing.text import Corpus

# Growth is measured over the last steps: from a sixteenth of them on.
LAST = 16


def growth_of(rows: Table, arm: str = "learned") -> dict[str, float | None] | None:
    """Return the growth of an arm's farthest mean above the embeddings with log2 of the steps, and an extrapolation.

    For each seed, a line is fitted to the checkpoints after a sixteenth of the steps, by least squares. The slope is
    the mean over seeds, with Student's t interval. The number of steps after which the farthest mean would be an
    outlier is extrapolated from its mean over seeds after the last step. The ends of its interval follow from the ends
    of the slope's interval; it has no upper end if the lower slope is 0 or less.

    Returns:
        `first_step` of the fit; `slope`, in sd for each doubling of the steps; `now`, the farthest mean after the last
        step, over seeds; and `steps`. `slope` and `steps` have the ends of an interval, which are None for a single
        seed. None if there are fewer than two checkpoints.
    """
    arm_rows = rows.where(lambda row: row["layer"] > 0 and row["step"] > 0, arm=arm)
    last = max(arm_rows.column("step"), default=0)
    fitted = sorted(step for step in arm_rows.values("step") if step * LAST >= last)
    if len(fitted) < 2:
        return None
    seeds, by_step = sorted(arm_rows.values("seed")), arm_rows.by("seed", "step")
    farthest = np.array([[max(by_step[seed, step].column("max_mean_sd")) for step in fitted] for seed in seeds])
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
    """Return the number of steps to an outlier; None if never, or beyond the limit of extrapolation."""
    if slope is None or slope <= 0:
        return None
    doublings = max(0.0, (OUTLIER - now) / slope)
    return last * 2.0**doublings if doublings < DOUBLINGS else None


def study_output(tables: Mapping[str, Sequence[Row]], corpus: Corpus, name: str, text: PackedText) -> Measured:
    """Return the output of a run on a corpus of this name."""
    arms = Table(tables["arms"], ARMS)
    judgement = judge(arms)
    results = {
        "corpus": {"name": name, "fingerprint": corpus.fingerprint, "n_sentences": len(corpus.sentences)},
        "n_vocabulary": len(text.tokenizer),
        "n_training_rows": len(text.train),
        "n_held_out_rows": len(text.validation),
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "growth": growth_of(arms),
    }

    def write(folder: Path) -> list[Path]:
        return end_of_trainings(folder, {"corpus": name}, {"corpus": corpus})

    return Measured(tables, results, write=write, is_timed=False)
