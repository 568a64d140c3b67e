"""Classes: processor time and memory of each stage of a probe with all evidence as the number of classes grows.

Rows are made up, so that their number is the same for every number of classes, and one layer is probed. What does not
depend on the classes, such as figures, has a slope of 0, and what is proportional to them a slope of 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import commands
from benchmarks.harness import Comparison, Contestant, Run, Setting, interleave, median_of, slope

CLASSES = (8, 16, 32, 64, 128, 256, 512)
N_ROWS, D_MODEL, ROUNDS = 20_000, 128, 1
STAGES = ("probes", "controls", "bootstraps", "other penalties", "without a neuron", "evidence", "tables")
# Slopes are of the upper half of the numbers of classes: below, they are hidden by what does not depend on them.
UPPER = 4


def compare(setting: Setting) -> Comparison:
    """Run each number of classes in a process of its own."""
    contestants = [
        Contestant(f"{n} classes", lambda folder, n=n: commands.stages("classes", n, N_ROWS, D_MODEL, folder), ROUNDS)  # type: ignore[misc]
        for n in CLASSES
    ]
    runs, _ = interleave(contestants, setting)
    return Comparison(runs, notes=[*_table(runs), f"{N_ROWS:,} rows of {D_MODEL} neurons, one layer, all evidence."])


def _table(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each stage: its processor time by number of classes, the slope, and its peak memory."""
    told = []
    for stage in STAGES:
        took, peaks = (
            [median_of(runs, f"{n} classes", f"{stage}.{what}") for n in CLASSES]
            for what in ("processor_s", "peak_anonymous_mb")
        )
        grown = slope(CLASSES[-UPPER:], took[-UPPER:])
        values = ", ".join(f"{n}: {value:.2g} s" for n, value in zip(CLASSES, took, strict=True))
        told.append(f"{stage}: slope {grown:.2f} ({values}); at most {max(peaks):.0f} MiB.")
    return told
