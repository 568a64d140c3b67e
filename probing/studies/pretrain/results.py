"""Writes what `pretrain` found: tables, figures, and how the farthest mean of an arm grows with the steps."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from probing.corpus import Corpus
from probing.figures.formats import USUAL
from probing.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, from_zero, name_layers, write_drawings
from probing.runs.call import Measured
from probing.statistics.intervals import LEVEL
from probing.studies.pretrain.batches import PackedText
from probing.studies.pretrain.tables import FREQUENCIES, OUTLIER, arms_of, judge, last_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Row = Mapping[str, Any]
_LOOKS: dict[str, dict[str, Any]] = {
    "learned": {"color": BLUE, "ls": "-", "marker": "o"},
    "none": {"color": ORANGE, "ls": "--", "marker": "s"},
    "constant": {"color": GREEN, "ls": "-.", "marker": "^"},
    "causal": {"color": PURPLE, "ls": ":", "marker": "D"},
    "sinusoidal": {"color": "black", "ls": "-", "marker": "v"},
    "rotary": {"color": GREY, "ls": "--", "marker": "P"},
}


def write_figures(folder: Path, tables: Mapping[str, Sequence[Row]], formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The run's tables by name.
        formats: Formats of the files.
    """
    drawings = {
        "loss": lambda figure: loss_by_step(figure, tables["arms"]),
        "outliers": lambda figure: outliers_by_layer(figure, tables["arms"]),
        "position": lambda figure: position_by_layer(figure, tables["arms"]),
    }
    return write_drawings(folder, drawings, formats)


def loss_by_step(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the held-out loss of each arm and seed over the steps, and the loss of the frequencies of tokens."""
    figure.set_size_inches(6.8, 3.4)
    axes = figure.add_subplot()
    for arm in arms_of(rows):
        for i, seed in enumerate(sorted({row["seed"] for row in rows if row["arm"] == arm})):
            curve = {row["step"]: row["loss"] for row in rows if (row["arm"], row["seed"]) == (arm, seed)}
            axes.plot(list(curve), list(curve.values()), ms=3, label=None if i else arm, **_LOOKS[arm])
    axes.axhline(rows[0]["unigram_loss"], color=GREY, lw=0.8, label=FREQUENCIES)
    last = max(row["step"] for row in rows)
    shown = [0, *(4**i for i in range(last.bit_length() // 2 + 1) if 4**i <= last)]
    axes.set_xscale("symlog", linthresh=1, base=2)
    axes.set_xlim(-0.2, 1.2 * last)
    axes.set_xticks(shown, [f"{step:,}" for step in shown])
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss, nats")
    axes.set_title("Prediction of masked tokens; a line for each seed")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def outliers_by_layer(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the farthest mean of each arm and seed by layer, after the last step."""
    axes = _by_layer(figure, rows, "max_mean_sd")
    axes.axhline(OUTLIER, color=GREY, lw=0.8)
    from_zero(axes)
    axes.set_ylabel("farthest mean of a neuron, sd")
    axes.set_title(f"After the last step: an outlier lies above {OUTLIER:g} sd")


def position_by_layer(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw how well positions are read off each arm and seed by layer, after the last step."""
    axes = _by_layer(figure, rows, "position_accuracy")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("position accuracy")
    axes.set_title("After the last step: positions read off by a linear probe")


def _by_layer(figure: Figure, rows: Sequence[Row], column: str) -> Any:
    """Draw a line for each arm and seed, and return the axes."""
    figure.set_size_inches(6.2, 3.2)
    axes, end = figure.add_subplot(), last_rows(rows)
    for arm in arms_of(end):
        for i, seed in enumerate(sorted({row["seed"] for row in end if row["arm"] == arm})):
            here = [row for row in end if (row["arm"], row["seed"]) == (arm, seed)]
            values = [row[column] for row in here]
            axes.plot([row["layer"] for row in here], values, ms=4, label=None if i else arm, **_LOOKS[arm])
    name_layers(axes, sorted({row["layer"] for row in end}))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return axes


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


def measured(tables: Mapping[str, Sequence[Row]], corpus: Corpus, name: str, text: PackedText) -> Measured:
    """Return what is written of a run; what only a continued run needs is removed then.

    Args:
        tables: Rows by the name of their table.
        corpus: The corpus.
        name: Its name in the run's configuration.
        text: The packed text.
    """
    judgement = judge(tables["arms"])
    results = {
        "corpus": {"name": name, "fingerprint": corpus.fingerprint, "n_sentences": len(corpus.sentences)},
        "n_vocabulary": len(text.tokenizer),
        "n_training_rows": len(text.train),
        "n_held_out_rows": len(text.held_out),
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "growth": growth_of(tables["arms"]),
    }

    def draw(folder: Path, formats: Sequence[str]) -> list[Path]:
        folder.mkdir(exist_ok=True)
        return write_figures(folder, tables, formats)

    def write(folder: Path) -> list[Path]:
        shutil.rmtree(folder / "state", ignore_errors=True)
        if not name.endswith(f"{folder.stem}/corpus.txt"):
            return []
        path = folder / "corpus.txt"  # sentences that were given as a list
        path.write_text("".join(f"{sentence}\n" for sentence in corpus.sentences), encoding="utf-8")
        return [path]

    return Measured(tables, results, draw=draw, write=write, is_timed=False)
