"""Figures of `finetune`: the score of each tuning beside the baselines, and the losses by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.figures.style import BLUE, GREEN, GREY, ORANGE, USUAL, write_drawings
from probing.studies.finetune.options import PRETRAINED, RANDOM, SHUFFLED
from probing.studies.finetune.tables import CALLED, SHORT, losses_in, score_words, starts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Row = Mapping[str, Any]
_COLORS = {PRETRAINED: BLUE, RANDOM: ORANGE, SHUFFLED: GREEN}
_DASHES = ("--", ":", "-.")


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, is_number: bool, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The run's tables by name.
        model: Model name for the titles.
        is_number: Whether numbers are predicted.
        formats: Formats of the files.
    """
    drawings = {"scores": partial(scores, tables=tables, model=model, is_number=is_number)}
    if tables["tuning_curves"]:
        drawings["losses"] = partial(losses, rows=tables["tuning_curves"], model=model, is_number=is_number)
    return write_drawings(folder, drawings, formats)


def scores(figure: Figure, tables: Mapping[str, Sequence[Row]], model: str, is_number: bool) -> None:
    """Draw a point for each tuning, with its interval over sentences, by start and seed; baselines are lines."""
    figure.set_size_inches(6.8, 3.4)
    axes = figure.add_subplot()
    names: list[str] = []
    places: list[float] = []
    for start in starts_of(tables["scores"]):
        own, shown = [row for row in tables["tunings"] if row["start"] == start], SHORT.get(start, start)
        for seed in sorted({row["seed"] for row in own}):
            place = len(places) + 0.7 * len({name.split(",")[0] for name in names} - {shown})
            here = [row for row in own if row["seed"] == seed]
            for i, row in enumerate(here):
                x = place + (i - (len(here) - 1) / 2) * 0.6 / max(len(here), 2)
                axes.plot([x, x], [row["score_low"], row["score_high"]], color=_COLORS[start], lw=0.8)
                axes.plot([x], [row["score"]], "o", ms=4, color=_COLORS[start])
            names.append(f"{shown},\nseed {seed}")
            places.append(place)
    for row, dashes in zip((row for row in tables["scores"] if not row.get("n_tunings")), _DASHES, strict=False):
        axes.axhline(row["score"], color=GREY, lw=1, ls=dashes, label=CALLED[row["answer"]])
    axes.set_xticks(places, names)
    axes.set_xlim(-0.6, max(places) + 0.6)
    axes.set_ylabel(f"test {score_words(is_number)}")
    axes.set_title(f"{model}: a point for each tuning; of each seed, one for each order")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def losses(figure: Figure, rows: Sequence[Row], model: str, is_number: bool) -> None:
    """Draw the training loss of each tuning by step, and the validation loss at the end of each epoch."""
    figure.set_size_inches(6.8, 3.4)
    axes = figure.add_subplot()
    named: set[str] = set()
    for start, seed, order in dict.fromkeys((row["start"], row["seed"], row["order_seed"]) for row in rows):
        own = [row for row in rows if (row["start"], row["seed"], row["order_seed"]) == (start, seed, order)]
        label = {what: f"{SHORT.get(start, start)}, {what}" for what in ("training", "validation")}
        axes.plot(
            [row["step"] for row in own], [row["train_loss"] for row in own], lw=0.6, alpha=0.6, color=_COLORS[start],
            label=None if label["training"] in named else label["training"],
        )  # fmt: skip
        ended = [row for row in own if row.get("validation_loss") is not None]
        axes.plot(
            [row["step"] for row in ended], [row["validation_loss"] for row in ended], "o", ms=4, color=_COLORS[start],
            label=None if label["validation"] in named or not ended else label["validation"],
        )  # fmt: skip
        named |= set(label.values())
    axes.set_xlabel("step")
    axes.set_ylabel(losses_in(is_number))
    axes.set_title(f"{model}: losses of each tuning")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
