"""Tables and sentences of `geometry --position`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results import Schema, ends, in_brackets, interval, layers_named, listed, number, shown, text, whole
from probing.tables.schema import layer_column, value

Row = Mapping[str, Any]

SCALES = RAW, STANDARDISED = "raw", "standardised"

SUFFIX = {RAW: "", STANDARDISED: "_standardised"}

SIGNIFICANT = 0.05

# Number of neurons in the table of what neurons hold.
NEURONS = 10

ORDERS = {
    "fit": "first of fit", "eta_squared": "by eta squared", "part": "that hold most", "random": "random",
    "rotated": "of a rotation", "directions": "own directions",
}  # fmt: skip


class PositionTables:
    """The rows of a run's tables of the position part, by their keys."""

    def __init__(self, tables: Mapping[str, Sequence[Row]]) -> None:
        self._split = {(row["layer"], row["scale"], row["part"]): row for row in tables["position_split"]}
        self._shape = {(row["layer"], row["measure"]): row for row in tables["position_shape"]}
        self._basis = {(row["layer"], row["scale"]): row for row in tables["position_basis"]}
        self._prefix_shares = {
            (row["layer"], row["scale"], row["order"], row["k"]): row for row in tables["position_held"]
        }
        self.layers = sorted({layer for layer, _, _ in self._split})

    def split(self, layer: int, part: str = "position", scale: str = RAW) -> Row:
        """Return the row of a part's share of the variance."""
        return self._split[layer, scale, part]

    def shape(self, layer: int, measure: str) -> Row | None:
        """Return the row of a measure, None where it is not defined."""
        return self._shape.get((layer, measure))

    def basis(self, layer: int, scale: str = RAW) -> Row | None:
        """Return the number of neurons with half of the part, and of random directions; None where unknown."""
        return self._basis.get((layer, scale))

    def prefix_share(self, layer: int, order: str, k: int, scale: str = RAW) -> Row | None:
        """Return the share of the position part in the first k neurons of an order; None where unknown."""
        return self._prefix_shares.get((layer, scale, order, k))

    def is_above_zero(self, layer: int, scale: str = RAW) -> bool:
        """Check that the interval of the position part is above 0."""
        bounds = ends(self.split(layer, scale=scale))
        return bounds is not None and bounds[0] > 0


def position_tables(tables: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return the tables of the position part's share, its shape and its neurons; empty if it was not measured."""
    if not tables["position_split"]:
        return []
    position = PositionTables(tables)
    return [_split_table(position), _shape_table(position), *_prefix_share_tables(position)]


def _split_table(position: PositionTables) -> Any:
    table = _table(
        "Shares of the variance of the hidden states, without what is by chance", "layer", "position", "95% range",
        "by chance", "context", "shared", "rest", "position, standardised", "position alone",
    )  # fmt: skip
    for layer in position.layers:
        row = position.split(layer)
        table.add_row(
            str(layer), f"{row['value']:.4f}", interval(row, form=".4f", between=" to "), f"{row['chance']:.4f}",
            *(f"{position.split(layer, part)['value']:.3f}" for part in ("context", "shared", "rest")),
            f"{position.split(layer, scale=STANDARDISED)['value']:.4f}",
            f"{position.split(layer, 'position_alone')['value']:.4f}",
        )  # fmt: skip
    return table


def _shape_table(position: PositionTables) -> Any:
    """Tabulate the shape of the position part, with the values by chance in brackets."""
    table = _table(
        "Shape of the position part (in brackets: by chance; of neurons, random directions)", "layer", "directions",
        "slow", "with context", "other half", "layer below", "read", "in longer", "half in neurons", "standardised",
    )  # fmt: skip
    measures = ("low_frequencies", "context_overlap", "halves_overlap", "below_overlap", "read_accuracy",
                "read_longer_accuracy")  # fmt: skip
    for layer in position.layers:
        directions = position.shape(layer, "directions")
        table.add_row(
            str(layer), f"{directions['value']:.0f}" if directions else "",
            *(_with_chance(position.shape(layer, name)) for name in measures),
            *(_half(position.basis(layer, scale)) for scale in SCALES),
        )  # fmt: skip
    return table


def _with_chance(row: Row | None) -> str:
    if row is None:
        return ""
    chance = row.get("chance")
    return shown(row["value"], ".2f") + (f" ({shown(chance, '.2f')})" if chance is not None else "")


def _half(row: Row | None) -> str:
    return "" if row is None else f"{row['half']} ({row['half_lowest']} to {row['half_highest']})"


def _prefix_share_tables(position: PositionTables) -> list[Any]:
    rich_tables = []
    for scale in (RAW, STANDARDISED):
        layers = [layer for layer in position.layers if position.prefix_share(layer, "part", NEURONS, scale)]
        if not layers:
            continue
        orders = [
            name for name in ORDERS if any(position.prefix_share(layer, name, NEURONS, scale) for layer in layers)
        ]
        which = "" if scale == RAW else ", every neuron standardised"
        table = _table(
            f"Share of the position part in {NEURONS} neurons{which}", "layer", *(ORDERS[name] for name in orders)
        )
        for layer in layers:
            table.add_row(
                str(layer), *(_prefix_share_cell(position.prefix_share(layer, name, NEURONS, scale)) for name in orders)
            )
        rich_tables.append(table)
    return rich_tables


def _prefix_share_cell(row: Row | None) -> str:
    if row is None:
        return ""
    ends = interval(row, between=" to ", form=".2f")
    return f"{row['value']:.2f}" + (f" ({ends})" if ends else "")


def position_conclusions(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return sentences on the position part's share and directions, and on neurons against directions."""
    if not tables["position_split"]:
        return []
    position = PositionTables(tables)
    resolved_layers = [layer for layer in position.layers if position.is_above_zero(layer)]
    if not any(ends(position.split(layer)) for layer in position.layers):
        row = position.split(position.layers[0])
        return [f"There are {row['n_sentences']} sentences, too few for intervals of the position part."]
    if not resolved_layers:
        most = max(position.split(layer)["high"] for layer in position.layers)
        return [
            "No layer has a position part: the intervals of its share of the variance hold 0 everywhere, and end at "
            f"{_percent(most)} at most."
        ]
    largest = max(resolved_layers, key=lambda layer: float(position.split(layer)["value"]))
    return [
        _how_much(position, resolved_layers, largest), *_which_shape(position, resolved_layers, largest),
        *(_where(position, scale) for scale in (RAW, STANDARDISED)),
    ]  # fmt: skip


def _percent(value: float, of: float | None = None) -> str:
    """Format a share in percent, with as many digits as the number `of` needs."""
    size = abs(value if of is None else of)
    return f"{value:.{1 if size >= 0.01 else 2 if size >= 0.001 else 3}%}"


def _range(row: Row) -> str:
    bounds = ends(row)
    within = " to ".join(_percent(end, row["value"]) for end in bounds) if bounds else ""
    return f"{_percent(row['value'])}{in_brackets(within)}"


def _how_much(position: PositionTables, resolved_layers: Sequence[int], largest: int) -> str:
    row, last = position.split(largest), position.layers[-1]
    if len(resolved_layers) == 1:
        sentence = f"Position has a share of the variance in layer {largest}: {_range(row)}"
        sentence += "" if len(position.layers) == 1 else ", and none is shown in the other layers that were measured"
    else:
        where = (
            "all layers that were measured"
            if len(resolved_layers) == len(position.layers)
            else layers_named(resolved_layers)
        )
        sentence = (
            f"Position has a share of the variance in {where}: {_range(row)} in layer {largest}, where it is largest"
        )
        if last != largest:
            end = (
                f"{_range(position.split(last))} in layer {last}"
                if last in resolved_layers
                else f"none is shown in layer {last}"
            )
            sentence += f", and {end}"
    return (
        f"{sentence}. Context has {_percent(position.split(largest, 'context')['value'])} in layer {largest}. By "
        "chance, which is taken off, tokens in random order within their sentences would have "
        f"{_percent(row['chance'])}."
    )


def _which_shape(position: PositionTables, resolved_layers: Sequence[int], largest: int) -> list[str]:
    numbers = [
        row["value"] for layer in resolved_layers if (row := position.shape(layer, "directions")) and row["value"]
    ]
    n_directions = position.shape(largest, "directions")
    if not numbers or n_directions is None or not n_directions["value"]:
        return ["No direction of the position part helps to describe sentences that were left out."]
    words = f"{min(numbers):.0f}" if min(numbers) == max(numbers) else f"{min(numbers):.0f} to {max(numbers):.0f}"
    where = f", {n_directions['value']:.0f} in layer {largest}" if min(numbers) < max(numbers) else ""
    sentences = [
        f"It has {words} {'direction' if max(numbers) == 1 else 'directions'}{where}: as many as it takes to explain "
        "what it can in sentences that were left out."
    ]
    if low := position.shape(largest, "low_frequencies"):
        slowly = "changes more slowly" if low["p_value"] <= SIGNIFICANT else "is not shown to change more slowly"
        sentences.append(
            f"In layer {largest} it {slowly} along the sentence than by chance: the lowest tenth of the frequencies "
            f"has {low['value']:.0%} of it, and {low['chance']:.0%} if positions are shuffled."
        )
    if read := position.shape(largest, "read_accuracy"):
        longer = position.shape(largest, "read_longer_accuracy")
        further = f", and for {longer['value']:.1%} in sentences longer than all fitted ones" if longer else ""
        sentences.append(
            f"In these directions alone, the nearest mean gives the exact position for {_range(read)} of the tokens of "
            f"such sentences (by chance {_percent(read['chance'])}){further}."
        )
    return sentences


def _where(position: PositionTables, scale: str) -> str:
    """Return a sentence on the layers whose position part favours neurons over random directions."""
    resolved_layers = [layer for layer in position.layers if position.is_above_zero(layer, scale)]
    rows = {layer: row for layer in resolved_layers if (row := position.basis(layer, scale))}
    how = "With every neuron standardised" if scale == STANDARDISED else "As the neurons are"
    if not rows:
        return f"{how}, whether position lies in neurons is not known: no direction of it is confirmed in any layer."
    largest = sorted(rows, key=lambda layer: -float(position.split(layer, scale=scale)["value"]))
    parts: list[str] = []
    for verdict, in_neurons in (
        ("position favours neurons", True), ("it is not shown to favour neurons over random directions", False),
    ):  # fmt: skip
        if layers := [layer for layer in rows if (rows[layer]["half_p"] <= SIGNIFICANT) == in_neurons]:
            layer = next(layer for layer in largest if layer in layers)
            where = f" (layer {layer})" if len(layers) > 1 else ""
            verdict = verdict if parts else verdict.replace("it is", "position is")
            parts.append(f"{verdict} in {layers_named(layers)}: half of it is in {_half_of(rows[layer])}{where}")
    n_rotations = rows[largest[0]]["n_rotations"]
    sentence = f"{how}, {'; '.join(parts)}. Each layer is judged by {n_rotations} rotations (p ≤ .05)."
    return sentence + (_zeros(rows) if scale == RAW else "")


def _half_of(row: Row) -> str:
    """Return the number of neurons with half of the part, and of random directions, as a clause."""
    varying = " that vary" if row["n_live"] < row["n_neurons"] else ""
    return (
        f"{row['half']} of {row['n_live']} neurons{varying}, in {row['half_lowest']} to {row['half_highest']} random "
        "directions"
    )


def _zeros(rows: Mapping[int, Row]) -> str:
    """Return a sentence on the number of neurons outside which the part is 0; empty if there are none."""
    layers_of: dict[int, list[int]] = {}
    for layer, row in rows.items():
        if row["n_nonzero"] < row["n_neurons"]:
            layers_of.setdefault(row["n_nonzero"], []).append(layer)
    if not layers_of:
        return ""
    n_neurons = next(iter(rows.values()))["n_neurons"]
    where = listed([f"{n} of {n_neurons} neurons in {layers_named(layers)}" for n, layers in layers_of.items()])
    return f" It lies in {where}, and is 0 in the others."


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


_WITH = "with `--position`, "

_SCALE = text("scale", "raw, or standardised: every neuron counts as if its variance were 1.")

_N_TOKENS = whole("n_tokens", "Number of tokens that were measured.")

POSITION_SPLIT = Schema("position_split", f"{_WITH}a row per layer, scale and part", (
    layer_column(), _SCALE,
    text("part", "position (what positions add to sentences), context (what sentences add to positions), shared (what "
         "either of them explains), rest; these add up to 1. position_alone and context_alone: shares of the means, "
         "whatever else these differ in."),
    value("Share of the variance without what is by chance"),
    number("share", "Share of the variance in the text that was read.", form=".4f"),
    number("chance", "Share by chance: of position, the mean over all orders of the tokens within each sentence.",
           form=".4f"),
    whole("n_sentences", "Number of sentences."), _N_TOKENS,
), optional=True)  # fmt: skip

POSITION_SPECTRUM = Schema("position_spectrum", f"{_WITH}a row per layer, scale and direction", (
    layer_column(), _SCALE,
    whole("component", "Number of the principal direction of the position part."),
    number("share", "Its share of the position part, with its noise."),
    number("held_out", "What the directions up to it explain in sentences left out, as a share of the most that any "
           "number of directions explains there; 0 where that is nothing."),
), optional=True)  # fmt: skip

POSITION_CURVES = Schema("position_curves", f"{_WITH}a row per layer, position and direction", (
    layer_column(),
    whole("position", "Index of the token in its sentence, from 0."),
    whole("component", "Number of the principal direction of the position part, up to 3."),
    value("The position part along it"),
    _N_TOKENS,
), optional=True)  # fmt: skip

POSITION_SHAPE = Schema("position_shape", f"{_WITH}a row per layer and measure", (
    layer_column(),
    text("measure", "directions, directions_in_sample, low_frequencies, context_overlap, context_angle, "
         "halves_overlap, below_overlap, read_accuracy, read_error, read_longer_accuracy or read_longer_error; "
         "directions also with _standardised."),
    value("Its value"),
    number("chance", "Its mean for shuffled positions, or for random directions."),
    number("p_value", "Share of random draws, and of what is measured, that are at least as far from chance."),
    whole("k", "Number of directions that are compared or read."),
    _N_TOKENS,
), optional=True)  # fmt: skip

POSITION_BASIS = Schema("position_basis", f"{_WITH}a row per layer and scale", (
    layer_column(), _SCALE,
    whole("half", "Number of neurons that hold half of the position part: ordered by that of half of the sentences, "
          "measured on that of the other, both ways."),
    number("half_directions", "The same of the directions of a random rotation: the median of the rotations.",
           form=".1f"),
    whole("half_lowest", "The lowest of a rotation."),
    whole("half_highest", "The highest of a rotation."),
    number("half_p", "Share of the rotations, and of the neurons, of which at most as many hold half."),
    whole("n_directions", "Number of principal directions that the part is cut to."),
    whole("n_nonzero", "Number of neurons in which it is not 0."),
    whole("n_live", "Number of neurons that vary, which are rotated."),
    whole("n_neurons", "Number of neurons."),
    whole("n_rotations", "Number of random rotations."),
), optional=True)  # fmt: skip

POSITION_HELD = Schema("position_held", f"{_WITH}a row per layer, scale, order of neurons and number", (
    layer_column(), _SCALE,
    text("order", "fit (ranking of --from_run), eta_squared, part (those that hold most), random, rotated (those that "
         "hold most of a random rotation), directions (the part's own). All but fit and random are chosen in half of "
         "the sentences and measured in the other, both ways."),
    whole("k", "Number of the first neurons, or directions."),
    number("value", "Share of the position part that they hold; of draws (random, rotated) the median."),
    number("low", "The lowest of 20 draws."),
    number("high", "The highest of 20 draws."),
), optional=True)  # fmt: skip

POSITION_BY_NEURON = Schema("position_by_neuron", f"{_WITH}a row per layer and neuron", (
    layer_column(),
    whole("neuron", "Index of the neuron."),
    number("variance", "Variance of the activation.", form=".3g"),
    number("eta_squared", "Share of its variance between positions."),
    number("share", "Share of its variance that positions add to sentences."),
    number("chance", "The same for tokens in random order within each sentence."),
    number("value", "The share without what is by chance."),
    number("held", "Share of the position part that it holds."),
    number("held_standardised", "The same where every neuron counts as if its variance were 1."),
), optional=True)  # fmt: skip

SCHEMAS = (
    POSITION_SPLIT, POSITION_SPECTRUM, POSITION_CURVES, POSITION_SHAPE, POSITION_BASIS, POSITION_HELD,
    POSITION_BY_NEURON,
)  # fmt: skip
