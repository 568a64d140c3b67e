"""The output of `pretrain`, and the growth of an arm's farthest mean with the steps."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from probing.runs.call import Measured
from probing.statistics import LEVEL
from probing.studies.pretrain.batches import PackedText
from probing.studies.pretrain.tables import (
    CAUSAL_LM,
    FREQUENCIES,
    MOST_ARMS,
    OUTLIER,
    arms_of,
    frequencies_of,
    judge,
    last_rows,
    predicted_in,
    trainings_of,
)
from probing.tables.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PAGE,
    PURPLE,
    USUAL,
    from_zero,
    name_layers,
    write_drawings,
)
from probing.text import Corpus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --------------------------------------------------------------------------------------------------------------------
# Draws what `pretrain` found: in one panel, or with many arms in a panel for each.
# --------------------------------------------------------------------------------------------------------------------

Row = Mapping[str, Any]
_LOOKS: dict[str, dict[str, Any]] = {
    "learned": {"color": BLUE, "ls": "-", "marker": "o"},
    "none": {"color": ORANGE, "ls": "--", "marker": "s"},
    "constant": {"color": GREEN, "ls": "-.", "marker": "^"},
    "causal": {"color": PURPLE, "ls": ":", "marker": "D"},
    "sinusoidal": {"color": "black", "ls": "-", "marker": "v"},
    "rotary": {"color": GREY, "ls": "--", "marker": "P"},
    "alibi": {"color": GREEN, "ls": "-", "marker": "X"},
    "relative": {"color": PURPLE, "ls": "--", "marker": "<"},
    "disentangled": {"color": ORANGE, "ls": ":", "marker": ">"},
    CAUSAL_LM: {"color": "black", "ls": "-.", "marker": "p"},
    "pre_norm": {"color": BLUE, "ls": "--", "marker": "*"},
    "plain_norm": {"color": GREY, "ls": ":", "marker": "h"},
}
# What an arm is drawn with in a panel of its own, and the others there.
_OWN, _OTHERS = {"color": BLUE, "ls": "-", "marker": "o", "ms": 3}, {"color": "#cccccc", "ls": "-", "lw": 0.7}
# Panels side by side.
_BESIDE = 4


def write_figures(folder: Path, tables: Mapping[str, Sequence[Row]], formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw a run's figures from its tables by name, each in some formats, and return the paths of the files."""
    drawings: dict[str, Callable[[Figure], None]] = {
        "loss": lambda figure: loss_by_step(figure, tables["arms"]),
        "outliers": lambda figure: outliers_by_layer(figure, tables["arms"]),
        "position": lambda figure: position_by_layer(figure, tables["arms"]),
    }
    if tables.get("lengths"):
        drawings["lengths"] = lambda figure: loss_by_length(figure, tables["lengths"])
    return write_drawings(folder, drawings, formats)


def loss_by_step(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the held-out loss of each arm and seed over the steps, and the loss of the frequencies of tokens."""
    title = f"Prediction of {predicted_in(rows)}; a line for each seed"

    def draw(axes: Axes, rows: Sequence[Row], **look: Any) -> None:
        curve = {row["step"]: row["loss"] for row in rows}
        axes.plot(list(curve), list(curve.values()), **{"ms": 3, **look})

    panels = _drawn(figure, rows, draw, title, (6.8, 3.4), of_loss=True, line=f"; across: {FREQUENCIES}")
    last = max(row["step"] for row in rows)
    shown = [0, *(4**i for i in range(last.bit_length() // 2 + 1) if 4**i <= last)]
    for arms, axes in panels:
        for name, loss in {
            frequencies_of(row["arm"]): row["unigram_loss"] for row in rows if row["arm"] in arms
        }.items():
            axes.axhline(loss, color=GREY, lw=0.8, ls="-" if name == FREQUENCIES else ":", label=name)
        axes.set_xscale("symlog", linthresh=1, base=2)
        axes.set_xlim(-0.2, 1.2 * last)
        few = shown if len(panels) == 1 else shown[:: -(-len(shown) // 4)]
        axes.set_xticks(few, [f"{step:,}" for step in few])
        axes.minorticks_off()
    _name(figure, panels, "step", "held-out loss, nats")


def outliers_by_layer(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the farthest mean of each arm and seed by layer, after the last step."""
    panels = _by_layer(
        figure, rows, "max_mean_sd", f"After the last step: an outlier lies above {OUTLIER:g} sd",
        "farthest mean of a neuron, sd",
    )  # fmt: skip
    for _, axes in panels:
        axes.axhline(OUTLIER, color=GREY, lw=0.8)
    top = max(panels, key=lambda panel: panel[1].dataLim.ymax)
    from_zero(top[1])


def position_by_layer(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the accuracy of position of each arm and seed by layer, after the last step."""
    panels = _by_layer(
        figure, rows, "position_accuracy", "After the last step: positions read off by a linear probe",
        "position accuracy",
    )  # fmt: skip
    for _, axes in panels:
        axes.set_ylim(0, 1.02)


def loss_by_length(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the held-out loss of each arm and seed by the length of the rows, for readable lengths."""
    read = [row for row in rows if row.get("loss") is not None]
    lengths = sorted({row["length"] for row in rows})

    def draw(axes: Axes, rows: Sequence[Row], **look: Any) -> None:
        curve = {row["length"]: row["loss"] for row in rows}
        axes.plot([lengths.index(length) for length in curve], list(curve.values()), **{"ms": 4, **look})

    panels = _drawn(
        figure, read, draw, "After the last step: rows longer than those of the training", (6.2, 3.2), of_loss=True
    )
    for _, axes in panels:
        axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    _name(figure, panels, "tokens in a row", "held-out loss, nats")


def _by_layer(
    figure: Figure, rows: Sequence[Row], column: str, title: str, upward: str
) -> list[tuple[list[str], Axes]]:  # fmt: skip
    """Draw a line for each arm and seed, and return the panels."""
    end = last_rows(rows)

    def draw(axes: Axes, rows: Sequence[Row], **look: Any) -> None:
        axes.plot([row["layer"] for row in rows], [row[column] for row in rows], **{"ms": 4, **look})

    panels = _drawn(figure, end, draw, title, (6.2, 3.2))
    for _, axes in panels:
        name_layers(axes, sorted({row["layer"] for row in end}))
    _name(figure, panels, None, upward)
    return panels


def _drawn(
    figure: Figure, rows: Sequence[Row], draw: Callable[..., None], title: str, size: tuple[float, float],
    of_loss: bool = False, line: str = "",
) -> list[tuple[list[str], Axes]]:  # fmt: skip
    """Draw each training, and return the panels with their arms; `line` describes a reference line in the title.

    Arms share a panel if their lines can be distinguished. Otherwise each has a panel, in which the others are grey.
    `of_loss` excludes comparisons between arms that predict different tokens.
    """
    arms, trainings = arms_of(rows), trainings_of(rows)
    if len(arms) <= MOST_ARMS:
        figure.set_size_inches(*size)
        axes = figure.add_subplot()
        axes.set_title(title)
        named: set[str] = set()
        for (arm, _), of_training in trainings.items():
            draw(axes, of_training, label=None if arm in named else arm, **_LOOKS[arm])
            named.add(arm)
        return [(arms, axes)]
    n_rows = math.ceil(len(arms) / _BESIDE)
    figure.set_size_inches(PAGE, 0.7 + 1.5 * n_rows)
    figure.suptitle(f"{title}\n(grey: the other arms{line})")
    grid = list(figure.subplots(n_rows, _BESIDE, sharex=True, sharey=True, squeeze=False).flat)
    for axes in grid[len(arms) :]:
        axes.set_visible(False)
    for arm, axes in zip(arms, grid, strict=False):
        axes.set_title(arm)
        for (other, _), of_training in trainings.items():
            if other != arm and not (of_loss and CAUSAL_LM in (other, arm)):
                draw(axes, of_training, **_OTHERS)
        for (other, _), of_training in trainings.items():
            if other == arm:
                draw(axes, of_training, **_OWN)
    return [([arm], axes) for arm, axes in zip(arms, grid, strict=False)]


def _name(figure: Figure, panels: Sequence[tuple[list[str], Axes]], across: str | None, upward: str) -> None:
    """Label the axes, once for all panels, and add a legend to a single panel; `across` is None if the label exists."""
    if len(panels) == 1:
        ((_, axes),) = panels
        axes.set_xlabel(across or axes.get_xlabel())
        axes.set_ylabel(upward)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
        return
    figure.supxlabel(across or panels[0][1].get_xlabel())
    figure.supylabel(upward)
    for _, axes in panels:
        axes.set_xlabel("")


# Growth is measured over the last steps: from a sixteenth of them on.
LAST = 16
# An extrapolation over more doublings of the steps says nothing.
DOUBLINGS = 30


def growth_of(rows: Sequence[Mapping[str, Any]], arm: str = "learned") -> dict[str, float | None] | None:
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
    arm_rows = [row for row in rows if row["arm"] == arm and row["layer"] > 0 and row["step"] > 0]
    last = max((row["step"] for row in arm_rows), default=0)
    fitted = sorted({row["step"] for row in arm_rows if row["step"] * LAST >= last})
    if len(fitted) < 2:
        return None
    seeds = sorted({row["seed"] for row in arm_rows})
    farthest = np.array(
        [
            [
                max(row["max_mean_sd"] for row in arm_rows if (row["seed"], row["step"]) == (seed, step))
                for step in fitted
            ]
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
    """Return the number of steps to an outlier; None if never, or beyond the limit of extrapolation."""
    if slope is None or slope <= 0:
        return None
    doublings = max(0.0, (OUTLIER - now) / slope)
    return last * 2.0**doublings if doublings < DOUBLINGS else None


def study_output(tables: Mapping[str, Sequence[Row]], corpus: Corpus, name: str, text: PackedText) -> Measured:
    """Return the output of a run on a corpus of this name; it removes files that only a continued run needs."""
    judgement = judge(tables["arms"])
    results = {
        "corpus": {"name": name, "fingerprint": corpus.fingerprint, "n_sentences": len(corpus.sentences)},
        "n_vocabulary": len(text.tokenizer),
        "n_training_rows": len(text.train),
        "n_held_out_rows": len(text.validation),
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
