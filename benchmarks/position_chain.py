"""From position embeddings to neurons, heads and later layers of the built-in model, and what breaks the chain.

    python -m benchmarks.position_chain --runs runs --figure docs/figures/position_chain.png

Runs the commands of docs/notes/interventions.md in the folder of runs, one after the other; those that are finished
there are read. Prints what the page tells, and draws its figure: the accuracy of the probes of later layers, in the
intact model and in changed ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from probing import WandbOptions, ablate, attention, fit, load_run
from probing.tables.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, drawing, name_layers

# Layers from which the linear position is taken, and units that are ablated.
ERASED, UNITS = (0, 1, 3, 5), ("1-3", "2-9")
Rows = Sequence[Mapping[str, Any]]


def main() -> None:
    """Run what is not there, print, draw."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=Path, default=Path("runs"))
    options.add_argument("--figure", type=Path, default=Path("docs/figures/position_chain.png"))
    given = options.parse_args()
    usual: dict[str, Any] = {"runs": str(given.runs), "wandb": WandbOptions("disabled"), "quiet": True}

    def made(name: str, command: Callable[..., Any], **asked: Any) -> Any:
        folder = given.runs / name
        return load_run(folder) if folder.is_dir() else command(name=name, **asked, **usual)

    run = made("A", fit, evidence="none")
    named = str(given.runs / "A")
    heads = made("heads", attention, run=named)
    first = made("first", ablate, neurons="ranked", run=named, layer="1,5")
    erased = made(
        "erased", ablate, neurons="all", kinds="direction,shuffled", layer=",".join(map(str, ERASED)),
    )  # fmt: skip
    ablated = made("ablated", ablate, kinds="uniform,skip")
    for one in (heads, first, erased, ablated):
        print("\n".join(one.conclusions()))
    with drawing(given.figure, ["png"]) as figure:
        draw(figure, erased.neuron_interventions, ablated.ablated, run.accuracy[-1]["majority_accuracy"])


def draw(figure: Figure, erased: Rows, ablated: Rows, majority: float) -> None:
    """Draw the accuracy of the probes by layer, one line for each change.

    Args:
        figure: An empty figure.
        erased: Rows of `neuron_interventions.csv` on whole layers.
        ablated: Rows of `ablated.csv`.
        majority: Accuracy of the majority class.
    """
    figure.set_size_inches(7.6, 4.0)
    axes = figure.subplots()
    intact = _of(erased, changed_layer=ERASED[0], kind="direction")
    layers = [row["layer"] for row in intact]
    axes.plot(layers, [row["intact"] for row in intact], "o-", color=BLUE, label="intact")
    for unit, mark, colour in ((UNITS[0], "^", GREEN), (UNITS[1], "v", ORANGE)):
        _line(axes, _of(ablated, unit=unit, kind="uniform"), f"{mark}--", colour, f"head {unit} uniform")
    _line(axes, _of(ablated, unit="5", kind="skip"), "D-.", PURPLE, "block 5 skipped")
    for kind, style, colour, what in (
        ("shuffled", "--", GREY, "shuffled positions"), ("direction", ":", "black", "linear position"),
    ):  # fmt: skip
        for layer, mark in zip(ERASED, "sPXd", strict=True):
            own = _of(erased, changed_layer=layer, kind=kind)
            _line(axes, own, f"{mark}{style}", colour, f"layer {layer} without {what}")
    axes.axhline(majority, color="black", linewidth=0.8, label="majority class", zorder=0)
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("accuracy of the probe of position")
    name_layers(axes, layers, what="layer whose probe reads")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)


def _of(rows: Rows, **chosen: Any) -> Rows:
    """Return the rows of probes that stay as they were, by layer."""
    found = [row for row in rows if row["readout"] == "position" and all(row[k] == v for k, v in chosen.items())]
    return sorted(found, key=lambda row: int(row["layer"]))


def _line(axes: Any, rows: Rows, style: str, colour: str, label: str) -> None:
    values = [row["value"] for row in rows]
    axes.plot([row["layer"] for row in rows], values, style, color=colour, label=label, markersize=5, linewidth=1.2)


if __name__ == "__main__":
    main()
