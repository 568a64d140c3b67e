"""Neurons beside directions, and features beside other units of the same hidden states: tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import Row, interval, layers_named, listed
from probing.runtime.terminal import plain_table
from probing.tables.columns import BASIS_KINDS, CENTRED, FIRST, PLAIN, UNINFORMATIVE
from probing.tables.evidence_sentences import ALPHA, say

FEATURES = "features"
_MARKS = {"better": "", "unresolved": "°", "worse": "−"}
_SENTENCES = {"better": "better_with", "unresolved": "unresolved_with", "worse": "worse_with"}


def bases_table(rows: Sequence[Row]) -> Any:
    """Return the accuracies of one layer as a rich table, a row per number of units."""
    names = list(dict.fromkeys(row["basis"] for row in rows))
    table = plain_table(f"Layer {rows[0]['layer']}: accuracy of the first k units of each basis")
    for heading in ("k", FEATURES, "95% range", *names[1:]):
        table.add_column(heading, justify="right", no_wrap=heading == "k")
    cells = {(row["basis"], row["k"]): row for row in rows}
    for k in dict.fromkeys(row["k"] for row in rows):
        own = cells[FEATURES, k]
        others = [cells[name, k] for name in names[1:]]
        shown = [f"{row['accuracy']:.3f}{_MARKS[row['features']]}" for row in others]
        table.add_row(str(k), f"{own['accuracy']:.3f}", interval(own, "accuracy"), *shown)
    first = {name: next(row for row in rows if row["basis"] == name) for name in names}
    drawn = first["random features"]
    table.caption = "; ".join([
        say("note_of_bases", majority=drawn["majority_accuracy"], n=drawn["n_draws"]),
        say("note_of_activity", features=first[FEATURES]["n_active"], n_features=first[FEATURES]["n_units"],
            random=drawn["n_active"]),
    ])  # fmt: skip
    table.caption_justify = "left"
    return table


def bases_lines(rows: Sequence[Row], task: str) -> list[str]:
    """Return what may be concluded: of each basis where features are better, and plainly where nowhere.

    Args:
        rows: The rows of `bases.csv`.
        task: The task in words.
    """
    lines = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        own = [row for row in rows if row["layer"] == layer and row["basis"] != FEATURES]
        names, never = list(dict.fromkeys(row["basis"] for row in own)), []
        for name in names:
            of = [row for row in own if row["basis"] == name]
            parts = [_part(verdict, [row for row in of if row["features"] == verdict]) for verdict in _MARKS]
            lines.append(say("beside_basis", layer=layer, basis=name, parts="; ".join(filter(None, parts))))
            never += [name] * all(row["features"] != "better" for row in of)
        if never:
            lines.append(say("no_better_than", layer=layer, task=task, others=f"as many {listed(never)}"))
    return lines


def _part(verdict: str, rows: Sequence[Row]) -> str:
    """Return with which numbers of units a verdict holds; nothing where it holds with none."""
    if not rows:
        return ""
    most = max(abs(row["difference"]) for row in rows)
    return say(_SENTENCES[verdict], counts=listed([str(row["k"]) for row in rows]), most=most)


# --- neurons beside directions ---


def basis(
    rows: Sequence[Row], beside: Sequence[Row] = (), task: str = "", config: Mapping[str, Any] | None = None,
    in_short: bool = False,
) -> list[str]:  # fmt: skip
    """Say whether layers favour neurons over directions; nothing of layers whose rankings are not to be read.

    Args:
        rows: Rows of `accuracy.csv`.
        beside: Rows of `basis.csv`; without any, say that directions were not measured.
        task: Name of the task.
        config: The resolved configuration.
        in_short: Whether several layers are taken together.
    """
    layers = [row["layer"] for row in rows if row.get("flag") != UNINFORMATIVE]
    if not layers:
        return []
    of_layers = {kind: {row["layer"]: row for row in beside if row["kind"] == kind} for kind in BASIS_KINDS}
    pairs = [(of_layers[PLAIN][layer], of_layers[CENTRED][layer]) for layer in layers if layer in of_layers[PLAIN]]
    if not pairs:
        return [say("basis")]
    if in_short and len(pairs) > 1:
        said = _favouring_layers([plain for plain, _ in pairs], task)
    else:
        said = [_favouring(plain, centred, task) for plain, centred in pairs]
    return said + [say("optimum_of_neurons")] * bool(((config or {}).get("probe") or {}).get("l1"))


def _favouring(plain: Row, centred: Row, task: str) -> str:
    """Say whether a layer favours neurons, and how many contribute more than directions."""
    favours, beside = _favours(plain), ""
    if favours != _favours(centred):
        beside = say("centred_favours_not" if favours else "centred_favours", **_shares(centred))
    name, n, direction = "favours_neurons" if favours else "favours_no_neurons", plain["n_above"], _direction(plain)
    neurons = f"{n:,} neuron{' contributes' if n == 1 else 's contribute'}"
    above = say("n_above" if n else "none_above", neurons=neurons, direction=direction, task=task)
    return say(name, layer=plain["layer"], centred=beside, above=above, **_shares(plain))


def _favouring_layers(rows: Sequence[Row], task: str) -> list[str]:
    """Say which layers favour neurons and which do not, and in which no neuron contributes more than directions."""
    said = []
    for favours in (True, False):
        name = "layers_favour_neurons" if favours else "layers_favour_no_neurons"
        if own := [row for row in rows if _favours(row) == favours]:
            layers = layers_named([row["layer"] for row in own])
            verb = ("favour" if len(own) > 1 else "favours") if favours else _not(len(own))
            shown_of = own[-1 if favours else 0]
            said.append(say(name, Layers=f"{layers[0].upper()}{layers[1:]}", favour=verb, layer=shown_of["layer"],
                            **_shares(shown_of)))  # fmt: skip
    if none := [row["layer"] for row in rows if not row["n_above"]]:
        said.append(say("layers_none_above", layers=layers_named(none), direction=_direction(rows[0]), task=task))
    return said


def _not(n: int) -> str:
    return "do not favour" if n > 1 else "does not favour"


def _share(row: Row) -> str:
    """Return the column that a layer is judged by: of few neurons the first ten would be nearly all."""
    return f"first_{FIRST}_share" if row["n_neurons"] >= 4 * FIRST else "first_share"


def _favours(row: Row) -> bool:
    return bool(row[f"{_share(row)}_p"] <= ALPHA)


def _shares(row: Row) -> dict[str, Any]:
    """Return what sentences say of the shares of a row of `basis.csv`."""
    share = _share(row)
    is_one = share == "first_share"
    return {
        "first": "first makes up" if is_one else f"first {FIRST} make up", "n": row["n_rotations"],
        "directions": "one random direction" if is_one else f"{FIRST} random directions",
        "share": row[share], "lowest": row[f"{share}_lowest"], "highest": row[f"{share}_highest"],
    }  # fmt: skip


def _direction(row: Row) -> str:
    """Return what neurons contribute more than: with so few rotations than all directions of all of them."""
    every = 2 / (1 + row["n_rotations"]) > ALPHA
    return "any direction" if every else f"the largest direction of 95% of {row['n_rotations']} rotations"


# Columns that loggers show as curves over layers.
_CURVES = (f"first_{FIRST}_share", *(f"first_{FIRST}_share_{of}" for of in ("directions", "highest", "p")), "n_above")


def with_basis(accuracy: Sequence[Row], beside: Sequence[Row]) -> list[Row]:
    """Return the rows of `accuracy.csv` with how each layer compares with directions, as loggers show them.

    Args:
        accuracy: Rows of `accuracy.csv`.
        beside: Rows of `basis.csv`; without any, nothing is added.
    """
    of_layers = {row["layer"]: {name: row[name] for name in _CURVES} for row in beside if row["kind"] == PLAIN}
    return [{**row, **of_layers.get(row["layer"], {})} for row in accuracy]


def is_above_directions(row: Mapping[str, Any]) -> bool:
    """Return whether a neuron contributes more than directions; one with the flag `offset`, centred too.

    Nothing is shown where no rotations were measured.

    Args:
        row: The neuron's row of the table.
    """
    names = ["direction_p", *["direction_p_centred"] * ("offset" in row["flag"])]
    return all(isinstance(row.get(name), float) and row[name] <= ALPHA for name in names)


def beside_directions(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `neurons.csv` of neurons that were rotated: none without rotations, and no dead ones."""
    ends = ("direction_lowest", "direction_highest")
    return [row for row in rows if all(isinstance(at := row.get(end), float) and math.isfinite(at) for end in ends)]


def as_a_direction(top: Mapping[str, Any]) -> str:
    """Say that a direction contributes as much; an empty text where none does, or none was measured."""
    return say("as_a_direction", p=top["direction_p"]) if "direction" in top["flag"].split() else ""
