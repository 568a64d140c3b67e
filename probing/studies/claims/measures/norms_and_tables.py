"""Where outliers sit in the parameters: the table of positions, and gains and biases of norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from probing.runs.study import Result
from probing.statistics.moments import MEAN_DEVIATIONS
from probing.studies.claims.measures.extremes import above_embeddings, layers_of
from probing.studies.claims.measures.registry import SIGNS, NotMeasurable, Role, Subject, measure
from probing.studies.claims.verdict import Measured

Rows = Sequence[Mapping[str, Any]]


@measure("geometry", "stream")
def outliers_of_first_position(subject: Subject, role: Role) -> Measured:
    """Return how many neurons of the first position's row are beyond 5 sd of the others.

    The control is the rank of the model's own outlier in that row, 1 where it is its most extreme neuron.
    """
    neuron = subject.neuron(role)
    (row,) = _of(neuron, [row for row in _position_rows(subject) if row.get("position") == 0])
    found = {row["neuron"] for row in subject.run("stream").path if row["kind"] in ("first_row", "both")}
    return Measured.exact(len(found), control=_rank(subject, row, role), neurons=(neuron,))


@measure("geometry")
def other_rows_with_outlier(subject: Subject, role: Role) -> Measured:
    """Return in how many rows other than the first position's an outlier is beyond 5 sd of the other neurons.

    These are the rows of the other positions, those of segments, and the mean row of the token embeddings. The control
    is its deviation, in the direction of its role, in the row of the first position.
    """
    neuron = subject.neuron(role)
    rows = _of(neuron, _position_rows(subject))
    embeddings = [row for row in subject.run("geometry").parameters if row["parameter"] in ("segment", "mean_token")]
    first = [row for row in rows if row.get("position") == 0]
    others = [row for row in rows if row.get("position", 0) != 0] + _of(neuron, embeddings)
    if not first or len(others) < 2:
        raise NotMeasurable("its table of positions has a single row")
    beyond = sum(abs(row["deviations"]) > MEAN_DEVIATIONS for row in others)
    return Measured.exact(beyond, control=SIGNS[role] * first[0]["deviations"], neurons=(neuron,))


@measure("geometry")
def deviation_in_rows(subject: Subject, roles: list[Role], rows: list[int]) -> Measured:
    """Return how far outliers are from the other neurons in a row of the table of positions: the least of them, in sd.

    If there are several rows, the one with the largest value counts. The control is the number of neurons of that row
    that are beyond 5 sd.

    Args:
        subject: The model.
        roles: Roles of the outliers.
        rows: Rows of the table, from 0.
    """
    chosen = subject.outliers(roles)
    table = _position_rows(subject)
    least: list[tuple[float, int | None]] = []  # runs of former versions did not count outliers
    for number in rows:
        here = [row for row in table if row["row"] == number]
        if here:
            found = [SIGNS[role] * _of(neuron, here)[0]["deviations"] for role, neuron in chosen.items()]
            least.append((min(found), here[0].get("n_outliers")))
    if not least:
        raise NotMeasurable(f"its table of positions has no row {rows[0]}")
    value, n_outliers = max(least, key=lambda one: one[0])
    return Measured.exact(value, control=n_outliers, neurons=tuple(chosen.values()))


@measure("geometry")
def share_of_rows(subject: Subject, role: Role, first_row: int) -> Measured:
    """Return the share of the rows of the table of positions in which an outlier is the most extreme neuron.

    Args:
        subject: The model.
        role: Role of the outlier.
        first_row: The first row that counts, from 0.
    """
    neuron = subject.neuron(role)
    rows = [row for row in _of(neuron, _position_rows(subject)) if row["row"] >= first_row]
    if not rows:
        raise NotMeasurable(f"its table of positions has no row {first_row}")
    return Measured.exact(sum(_rank(subject, row, role) == 1 for row in rows) / len(rows), neurons=(neuron,))


@measure("geometry")
def ranks_in_norms(
    subject: Subject, role: Role, norm: Literal[1, 2], parameter: Literal["gain", "bias"], at_most: Mapping[str, int]
) -> Measured:
    """Return the share of the statements on an outlier's rank in the norms of blocks that are true of the model.

    A rank is that of the signed value, 1 for the largest. Layers that the model does not have are left out. Where all
    blocks share their norms (ALBERT), a rank is that of every layer.

    Args:
        subject: The model.
        role: Role of the outlier.
        norm: 1 for the first norm of each block, after attention, or 2 for the second.
        parameter: The parameter.
        at_most: The highest rank in some layers, such as 6 in `1-10`.
    """
    geometry: Result = subject.run("geometry")
    neuron = subject.neuron(role)
    rows = [row for row in _of(neuron, geometry.parameters) if row["parameter"] == parameter]
    second = {row["layer"]: row["rank"] for row in rows if row.get("layer", 0) > 0}
    # The output of a block's first norm is not the hidden state of a layer, so that its rows have no layer number.
    first = {k: row["rank"] for k, row in enumerate((row for row in rows if "layer" not in row), start=1)}
    if not second or set(first) != set(second):
        raise NotMeasurable(
            f"its blocks do not each have two norms with a {parameter}, the second of which makes a layer"
        )
    ranks = {1: first, 2: second}[norm]
    last = max([*ranks, *(row["layer"] for row in above_embeddings(geometry.dimensions))])
    if len(ranks) == 1:
        ranks = dict.fromkeys(range(1, last + 1), *ranks.values())
    so = [ranks[layer] <= most for layers, most in at_most.items() for layer in layers_of(layers, max(ranks))]
    if not so:
        raise NotMeasurable(f"the claim names none of its layers up to {last}")
    return Measured.exact(sum(so) / len(so), neurons=(neuron,))


@measure("geometry", "stream")
def deviation_with_ordinary_norms(subject: Subject, role: Role) -> Measured:
    """Return how far an outlier still is from the other neurons when all norms give it their mean gain and bias.

    The value is in sd, the largest over the layers in which the neuron is an outlier of the intact model. The control
    is the neuron's least deviation, over draws and these layers, when random neurons are changed instead.
    """
    neuron = subject.neuron(role)
    rows = [row for row in subject.run("stream").norm_changes if row["measure"] == "deviations"]
    rows = [row for row in above_embeddings(rows) if row["neuron"] == neuron]
    rows = [row for row in rows if row["kind"] == "intact" or row["where"] == "both"]
    lacking = "the norms of its blocks could not be changed, or it has no outlier behind them"
    return _left_of_outlier(rows, role, neuron, lacking)


@measure("geometry", "stream")
def deviation_without_first_row(subject: Subject, role: Role) -> Measured:
    """Return how far an outlier of words still is from the other neurons without its entry in the first position's row.

    The value is in sd, the largest over the layers in which the neuron is an outlier of the intact model. The control
    is the neuron's least deviation, over draws and these layers, when the entries of random neurons are changed
    instead.
    """
    neuron = subject.neuron(role)
    every = subject.run("stream").first_row
    if not every:
        raise NotMeasurable("it has no table of positions as wide as its hidden states, or no outliers")
    rows = [row for row in above_embeddings(every) if row["neuron"] == neuron]
    return _left_of_outlier(rows, role, neuron, "it is an outlier of no layer")


def _left_of_outlier(rows: Rows, role: Role, neuron: int, lacking: str) -> Measured:
    """Return how far a changed outlier is from other neurons: the largest over the layers where it was an outlier.

    The control is the neuron's least deviation when random neurons are changed instead.

    Raises:
        NotMeasurable: If it was not changed in any such layer; the message is `lacking`.
    """
    layers = {row["layer"] for row in rows if row["kind"] == "intact" and row["outlier"] == "yes"}
    here = [row for row in rows if row["layer"] in layers]
    changed, control = (
        [SIGNS[role] * row["value"] for row in here if row["kind"] == kind] for kind in ("outliers", "random")
    )
    if not changed:
        raise NotMeasurable(lacking)
    return Measured.exact(max(changed), control=min(control, default=None), neurons=(neuron,))


def _position_rows(subject: Subject) -> list[Mapping[str, Any]]:
    rows = [row for row in subject.run("geometry").parameters if row["parameter"] == "position"]
    if not rows:
        raise NotMeasurable("it has no table of positions as wide as its hidden states")
    return rows


def _of(neuron: int, rows: Rows) -> list[Mapping[str, Any]]:
    """Return the rows of a neuron.

    Raises:
        NotMeasurable: If there is none: parameters are listed of neurons that some definition names as outliers.
    """
    found = [row for row in rows if row["neuron"] == neuron]
    if not found:
        raise NotMeasurable(f"neuron {neuron} is no outlier by any definition, so that its parameters are not listed")
    return found


def _rank(subject: Subject, row: Mapping[str, Any], role: Role) -> int:
    """Return the rank of a neuron's value in its row, 1 for the most extreme in the direction of its role."""
    width = len({one["neuron"] for one in subject.run("geometry").dimensions})
    return int(row["rank"] if role == "maximum" else width + 1 - row["rank"])
