"""Sentences on the accuracies of controls beside those of a probe, by the interval of the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.data.control_names import ADDED_CONTROLS, CONTROLS
from probing.results.schema import Row, ends, layers_named, listed
from probing.tables.columns import R2, UNINFORMATIVE, controls_of, score_of
from probing.tables.evidence_sentences import say


def held_against(row: Mapping[str, Any], task: str) -> str:
    """Compare a layer's accuracy with each control, by the interval of the difference.

    Where there are no intervals, only the controls and their accuracies are listed.

    Args:
        row: The layer's row of `accuracy.csv`.
        task: What the probe predicts.
    """
    score = score_of(row).name
    if not controls_of([row]):
        return ""
    named = {name: f"{_called(name)} ({row[f'{name}_{score}']:.3f})" for name in controls_of([row])}
    if ends(row, score) is None:
        return say("compare_it", layer=row["layer"], names=listed(list(named.values())))
    if side_of(row, "untrained") == "below":  # what is said of it ends the sentence
        named["untrained"] = named.pop("untrained") + say("ceiling", task=task)
    sides: dict[str, list[str]] = {}
    for name, said in named.items():
        sides.setdefault(side_of(row, name), []).append(said)
    parts = [say(side, names=listed(sides[side])) for side in SIDES if side in sides]
    return say("held_against", layer=row["layer"], sides="; ".join(parts))


def held_against_by_layer(rows: Sequence[Mapping[str, Any]], task: str) -> str:
    """Compare the accuracies of several layers with each control, by the intervals of the differences.

    Args:
        rows: Rows of `accuracy.csv`, ascending by layer.
        task: What the probe predicts.

    Returns:
        What `held_against` says of the last layer where there are no intervals, or is a single layer.
    """
    if len(rows) == 1:
        return held_against(rows[0], task)
    everywhere: dict[str, list[str]] = {}
    somewhere: list[str] = []
    for name in sorted(controls_of(rows), key=lambda name: name == "untrained"):
        layers: dict[str, list[int]] = {}
        for row in rows:
            if side := side_of(row, name):
                layers.setdefault(side, []).append(row["layer"])
        called = _called(name)
        if len(layers) == 1:
            (side,) = layers
            end = say("ceiling", task=task) if (name, side) == ("untrained", "below") else ""
            everywhere.setdefault(side, []).append(f"{called}{end}")
        elif layers:
            # Named where it is first said of, in the order of the sides.
            sides = [side for side in SIDES if side in layers]
            names = [called, *["it"] * (len(sides) - 1)]
            parts = [
                say("side_in", side=say(side, names=name), layers=layers_named(layers[side]))
                for side, name in zip(sides, names, strict=True)
            ]
            end = say("ceiling", task=task) if name == "untrained" and sides[-1] == "below" else ""
            somewhere.append(f"{listed(parts)}{end}")
    if not everywhere and not somewhere:
        return held_against(rows[-1], task)
    first = [say(side, names=listed(everywhere[side])) for side in SIDES if side in everywhere]
    said = [say("in_every_layer", sides="; ".join(first))] if first else []
    return " ".join([*said, *(say("in_some_layers", parts=part) for part in somewhere)])


def not_above(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each control that is not beaten in some layer, by the interval of the difference.

    Args:
        rows: Rows of `accuracy.csv`, ascending by layer.
    """
    what = "R²" if score_of(rows[0]) is R2 else "accuracy"
    found = []
    for name, words in controls_of(rows).items():
        for side in ("below", "alike"):
            if layers := [row["layer"] for row in rows if side_of(row, name) == side]:
                beside = say(side, names=say("the_control", control=words))
                found.append(say("not_above", layers=layers_named(layers), what=what, side=beside))
    return found


# Controls that are other probes of what can be read, and no floors.
_NO_FLOORS = ("untransformed", "others_clipped")


def _strongest_floor(row: Row) -> tuple[str, float]:
    """Return the floor with the highest score, in words, and its score; of R² without controls, a constant answer."""
    score = score_of(row).name
    # Of positions, a model without training is a ceiling; only labels that are such numbers have `within_one`.
    ceilings = ("untrained",) if "within_one" in row else ()
    floors = [name for name in controls_of([row]) if name not in _NO_FLOORS + ceilings]
    constant = {"a constant answer": 0.0} if score == R2.name else {}
    scores = {**constant, **{_called(name): float(row[f"{name}_{score}"]) for name in floors}}
    return max(scores.items(), key=lambda item: item[1], default=("nothing", 0.0))


def leading(rows: Sequence[Row]) -> Row:
    """Return the row of the layer whose neurons are shown first: the one furthest above its strongest floor.

    Layers whose ranking is not to be read come after all others. Of differences that are equal to three digits, the
    last layer is taken.

    Args:
        rows: Rows of `accuracy.csv`, ascending by layer.
    """
    return max(reversed(rows), key=lambda row: (row.get("flag") != UNINFORMATIVE, _above_floor(row)))


def _above_floor(row: Row) -> float:
    return round(row[score_of(row).name] - _strongest_floor(row)[1], 3)


def why_leading(rows: Sequence[Row]) -> str:
    """Say which of several layers has its neurons shown first, and why; an empty text for a single layer."""
    if len(rows) == 1:
        return ""
    row = leading(rows)
    floor, value = _strongest_floor(row)
    among = say("among_readable") if any(one.get("flag") == UNINFORMATIVE for one in rows) else ""
    what = "R²" if score_of(row) is R2 else "accuracy"
    apart = _above_floor(row)
    return say("leading", layer=row["layer"], what=what, apart=apart, floor=floor, value=value, among=among)


# Results of comparing a score with that of a control, by the names of their words in `SENTENCES`.
SIDES = ("above", "alike", "below")


def side_of(row: Mapping[str, Any], name: str) -> str:
    """Return how a layer's score lies to a control's; empty where there are no intervals."""
    if (apart := ends(row, f"above_{name}")) is None:
        return ""
    return "above" if apart[0] > 0 else "below" if apart[1] < 0 else "alike"


def _called(name: str) -> str:
    """Return the name of a control in a sentence."""
    return "the majority class" if name == "majority" else {**CONTROLS, **ADDED_CONTROLS}[name].called
