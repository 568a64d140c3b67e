"""The study `position`: the part of hidden states that is position, its directions, and the neurons that have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from probing.cli.commandline import command
from probing.cli.options import (
    FirstToken,
    Folder,
    OutputOptions,
    RunOptions,
    Source,
    SpecialTokens,
    StatesOptions,
    defaults,
)
from probing.errors import UserError
from probing.results import (
    Row,
    Schema,
    Table,
    by_layer_table,
    cells_table,
    count,
    curve_points,
    ends,
    in_brackets,
    interval,
    layers_named,
    listed,
    number,
    rounded,
    shown,
    sign_of_interval,
    text,
    whole,
)
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runs.loading import read_as_run
from probing.runs.run import Run, load_fit, of_text
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.tables.figures import Chart, Line, Panel, linear, spaced_layers
from probing.tables.outlier_effects import N_TOKENS
from probing.tables.schema import layer_column, value

SCALES = RAW, STANDARDISED = "raw", "standardised"

SUFFIX = {RAW: "", STANDARDISED: "_standardised"}

SIGNIFICANT = 0.05

# Number of neurons in the table of what neurons hold.
NEURONS = 10

# Curves are drawn of at most so many layers, at the positions that have this share of the tokens of the commonest.
MOST_LAYERS, DRAWN = 6, 0.02

ORDERS = {
    "fit": "first of fit", "eta_squared": "by eta squared", "part": "largest shares", "random": "random",
    "rotated": "of a rotation", "directions": "own directions",
}  # fmt: skip

SENTENCES = {
    "too_few": "{sentences} are too few for confidence intervals of the position part.",
    "none": "No layer has a position part: the confidence interval of its share of the variance contains 0 in every "
    "layer that was measured, and ends at {most} at most.",
    "in_layers": "Position explains a share of the variance in {layers}: {share} in layer {largest}, where the share "
    "is largest{last}.",
    "in_layer": "Position explains {share} of the variance in layer {largest}{others}.",
    "last": ", and {share} in layer {layer}",
    "not_in_last": ", and no share is shown in layer {layer}",
    "not_in_others": ", and no share is shown in the other layers that were measured",
    "context": "Context explains {context} in layer {largest}. By chance, tokens in random order within their "
    "sentences would give position {chance}; all shares are adjusted for chance.",
    "no_direction": "No direction of the position part helps to explain held-out sentences.",
    "directions": "The position part has {directions}{in_largest}: the number that it takes to explain held-out "
    "sentences.",
    "slow": "In layer {largest}, the position part {verdict} along the sentence than by chance: the lowest tenth of "
    "the frequencies has {share:.0%} of it, and {chance:.0%} after positions are shuffled.",
    "read": "From these directions alone, the nearest mean decodes the exact position of {accuracy} of the tokens of "
    "held-out sentences (by chance {chance}){longer}.",
    "longer": ", and of {accuracy:.1%} in sentences longer than all fitted sentences",
    "basis": "{scale}, {verdicts}. Each layer is compared with {n_rotations} random rotations (p ≤ .05).{zeros}",
    "no_basis": "{scale}, it is not known whether position is in neurons: no direction of it is confirmed in any "
    "layer.",
    "neurons": "{position} favours neurons in {layers}: half of it is in {half}{in_layer}",
    "rotations": "{position} is not shown to favour neurons over random directions in {layers}: half of it is in "
    "{half}{in_layer}",
    "half": "{half} of {n_live} neurons{varying}, and in {lowest} to {highest} random directions",
    "zeros": " Position is in {where}, and is 0 in the other neurons.",
}

_SCALES = {RAW: "As the neurons are", STANDARDISED: "With every neuron standardised"}

_SLOW = {True: "changes more slowly", False: "is not shown to change more slowly"}


class PositionTables:
    """The rows of a run's tables of the position part, by their keys."""

    def __init__(self, tables: Mapping[str, Sequence[Row]]) -> None:
        self._split = {(row["layer"], row["scale"], row["part"]): row for row in tables["position_split"]}
        self._shape = {(row["layer"], row["measure"]): row for row in tables["position_shape"]}
        self._basis = {(row["layer"], row["scale"]): row for row in tables["position_basis"]}
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

    def is_above_zero(self, layer: int, scale: str = RAW) -> bool:
        """Check that the interval of the position part is above 0."""
        return sign_of_interval(self.split(layer, scale=scale)) > 0


def position_tables(tables: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return the tables of the position part's share, its shape and its neurons."""
    position = PositionTables(tables)
    split, in_neurons = Table(tables["position_split"]), Table(tables["position_held"])
    return [_split_table(split), _shape_table(position), *_prefix_share_tables(in_neurons)]


def _split_table(split: Table) -> Any:
    def share(part: str, form: str = ".4f", scale: str = RAW) -> Callable[[Table], str]:
        return lambda rows: rounded(rows.where(part=part, scale=scale)[0]["value"], form)

    title = "Shares of the variance of the hidden states, adjusted for chance"
    return by_layer_table(title, split, {
        "position": share("position"),
        "95% range": lambda rows: interval(rows.where(part="position", scale=RAW)[0], form=".4f", between=" to "),
        "by chance": lambda rows: rounded(rows.where(part="position", scale=RAW)[0]["chance"], ".4f"),
        **{part: share(part, ".3f") for part in ("context", "shared", "rest")},
        "standardised position": share("position", scale=STANDARDISED), "position alone": share("position_alone"),
    })  # fmt: skip


def _shape_table(position: PositionTables) -> Any:
    """Tabulate the shape of the position part, with the values by chance in brackets."""
    measures = {
        "slow": "low_frequencies", "with context": "context_overlap", "other half": "halves_overlap",
        "layer below": "below_overlap", "read": "read_accuracy", "in longer": "read_longer_accuracy",
    }  # fmt: skip

    def cells(layer: int) -> list[str]:
        directions = position.shape(layer, "directions")
        return [
            str(layer), f"{directions['value']:.0f}" if directions else "",
            *(_with_chance(position.shape(layer, name)) for name in measures.values()),
            *(_half(position.basis(layer, scale)) for scale in SCALES),
        ]  # fmt: skip

    title = "Shape of the position part (in brackets: by chance; of neurons, random directions)"
    headings = ["layer", "directions", *measures, "half in neurons", "standardised"]
    return cells_table(title, headings, map(cells, position.layers))


def _with_chance(row: Row | None) -> str:
    if row is None:
        return ""
    chance = row.get("chance")
    return shown(row["value"], ".2f") + in_brackets("" if chance is None else shown(chance, ".2f"))


def _half(row: Row | None) -> str:
    return "" if row is None else f"{row['half']} ({row['half_lowest']} to {row['half_highest']})"


def _prefix_share_tables(in_neurons: Table) -> list[Any]:
    rich_tables = []
    for scale, which in ((RAW, ""), (STANDARDISED, ", every neuron standardised")):
        if rows := in_neurons.where(scale=scale, k=NEURONS):
            orders = [order for order in ORDERS if rows.where(order=order)]
            title = f"Share of the position part in {NEURONS} neurons{which}"
            rich_tables.append(by_layer_table(title, rows, {
                ORDERS[order]: partial(_prefix_share_cell, order) for order in orders
            }))  # fmt: skip
    return rich_tables


def _prefix_share_cell(order: str, of_layer: Table) -> str:
    rows = of_layer.where(order=order)
    return "".join(rounded(row["value"], ".2f") + in_brackets(interval(row, "", " to ", ".2f")) for row in rows)


def position_charts(tables: Mapping[str, Sequence[Row]]) -> list[Chart]:
    """Return the shares of the variance by layer, those of the position part in a few neurons, and its curves."""
    split, in_neurons = Table(tables["position_split"]), Table(tables["position_held"])
    position = split.where(part="position", scale=RAW)
    shares = "share of the variance"
    return [
        Chart("position_split", "the variance of the hidden states in parts (bars: 95%)", [
            Panel([
                Line.of(position, "value", "position", ""),
                Line.of(split.where(part="position", scale=STANDARDISED), "value", "standardised position", ""),
                Line.of(position, "chance", "by chance"),
            ], "position", shares),
            Panel([
                Line.of(split.where(part=part, scale=RAW), "value", part, "") for part in ("context", "rest", "shared")
            ], "context, rest, and what is shared", shares),
        ], reference=0.0),
        Chart("position_held", "is position in neurons or in directions? (bars: range of rotations)", [
            Panel(_orders(in_neurons.where(scale=RAW, k=NEURONS)), "as the neurons are"),
            Panel(_orders(in_neurons.where(scale=STANDARDISED, k=NEURONS)), "every neuron standardised"),
        ], f"share of the position part in {NEURONS} neurons", limits=(0, 1), bars="the range of random rotations"),
        _curve_chart(tables),
    ]  # fmt: skip


def _curve_chart(tables: Mapping[str, Sequence[Row]]) -> Chart:
    """Return the first components of the position part along the positions, with a panel for each of some layers."""
    position, curves, panels = PositionTables(tables), Table(tables["position_curves"]), []
    for layer in spaced_layers(position.layers, MOST_LAYERS):
        of_layer, directions = curves.where(layer=layer), position.shape(layer, "directions")
        least = DRAWN * max(of_layer.values("n_tokens"), default=0)
        lines = []
        for component, all_rows in of_layer.by("component").items():
            rows = [row for row in all_rows if row["n_tokens"] >= least]
            curve = Line.of(rows, "value", f"component {component}", "", "position")
            lines.append(replace(curve, kind="curve", ranges=()))
            lines.append(Line.band([row for row in rows if ends(row)], "low", "high", curve.label, "position"))
        title = f"layer {layer}: {count(int(directions['value']) if directions else 0, 'direction')}"
        panels.append(Panel(lines, title, "position part"))
    axis = linear("position", "position of the token")
    return Chart("position_curves", "the position part along its first directions", panels, x=axis, reference=0.0)


def _orders(rows: Table) -> list[Line]:
    return [
        Line.of(rows.where(order=order), "value", words, "") for order, words in ORDERS.items() if order != "random"
    ]


def position_conclusions(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return sentences on the position part's share and directions, and on neurons compared with directions."""
    position = PositionTables(tables)
    rows = [position.split(layer) for layer in position.layers]
    if not any(map(ends, rows)):
        return [SENTENCES["too_few"].format(sentences=count(rows[0]["n_sentences"], "sentence"))]
    resolved_layers = [layer for layer in position.layers if position.is_above_zero(layer)]
    if not resolved_layers:
        return [SENTENCES["none"].format(most=_percent(max(row["high"] for row in rows)))]
    largest = max(resolved_layers, key=lambda layer: float(position.split(layer)["value"]))
    return [
        _how_much(position, resolved_layers, largest), *_which_shape(position, resolved_layers, largest),
        *(_where(position, scale) for scale in SCALES),
    ]  # fmt: skip


def _percent(value: float, of: float | None = None) -> str:
    """Format a share in percent, with as many digits as the number `of` needs."""
    size = abs(value if of is None else of)
    return rounded(value, f".{1 if size >= 0.01 else 2 if size >= 0.001 else 3}%")


def _range(row: Row) -> str:
    bounds = ends(row) or ()
    return f"{_percent(row['value'])}{in_brackets(' to '.join(_percent(end, row['value']) for end in bounds))}"


def _how_much(position: PositionTables, resolved_layers: Sequence[int], largest: int) -> str:
    row, last = position.split(largest), position.layers[-1]
    if len(resolved_layers) == 1:
        others = SENTENCES["not_in_others"] if len(position.layers) > 1 else ""
        sentence = SENTENCES["in_layer"].format(share=_range(row), largest=largest, others=others)
    else:
        is_everywhere = len(resolved_layers) == len(position.layers)
        layers = "all layers that were measured" if is_everywhere else layers_named(resolved_layers)
        of_last = SENTENCES["last" if last in resolved_layers else "not_in_last"]
        of_last = "" if last == largest else of_last.format(share=_range(position.split(last)), layer=last)
        sentence = SENTENCES["in_layers"].format(layers=layers, share=_range(row), largest=largest, last=of_last)
    context = _percent(position.split(largest, "context")["value"])
    return f"{sentence} {SENTENCES['context'].format(context=context, largest=largest, chance=_percent(row['chance']))}"


def _which_shape(position: PositionTables, resolved_layers: Sequence[int], largest: int) -> list[str]:
    shapes = [position.shape(layer, "directions") for layer in resolved_layers]
    numbers = [row["value"] for row in shapes if row and row["value"]]
    of_largest = position.shape(largest, "directions")
    if not numbers or of_largest is None or not of_largest["value"]:
        return [SENTENCES["no_direction"]]
    fewest, most = int(min(numbers)), int(max(numbers))
    directions = count(most, "direction") if fewest == most else f"{fewest} to {most} directions"
    in_largest = "" if fewest == most else f", {of_largest['value']:.0f} in layer {largest}"
    sentences = [SENTENCES["directions"].format(directions=directions, in_largest=in_largest)]
    if slow := position.shape(largest, "low_frequencies"):
        verdict = _SLOW[slow["p_value"] <= SIGNIFICANT]
        sentences.append(
            SENTENCES["slow"].format(largest=largest, verdict=verdict, share=slow["value"], chance=slow["chance"])
        )
    if read := position.shape(largest, "read_accuracy"):
        longer = position.shape(largest, "read_longer_accuracy")
        in_longer = SENTENCES["longer"].format(accuracy=longer["value"]) if longer else ""
        sentences.append(
            SENTENCES["read"].format(accuracy=_range(read), chance=_percent(read["chance"]), longer=in_longer)
        )
    return sentences


def _where(position: PositionTables, scale: str) -> str:
    """Return a sentence on the layers whose position part favours neurons over random directions."""
    resolved_layers = [layer for layer in position.layers if position.is_above_zero(layer, scale)]
    rows = {layer: row for layer in resolved_layers if (row := position.basis(layer, scale))}
    if not rows:
        return SENTENCES["no_basis"].format(scale=_SCALES[scale])
    verdicts: list[str] = []
    for verdict, in_neurons in (("neurons", True), ("rotations", False)):
        if layers := [layer for layer in rows if (rows[layer]["half_p"] <= SIGNIFICANT) == in_neurons]:
            largest = max(layers, key=lambda layer: float(position.split(layer, scale=scale)["value"]))
            verdicts.append(SENTENCES[verdict].format(
                position="it" if verdicts else "position", layers=layers_named(layers), half=_half_of(rows[largest]),
                in_layer=f" (layer {largest})" if len(layers) > 1 else "",
            ))  # fmt: skip
    n_rotations = next(iter(rows.values()))["n_rotations"]
    zeros = _zeros(rows) if scale == RAW else ""
    return SENTENCES["basis"].format(
        scale=_SCALES[scale], verdicts="; ".join(verdicts), n_rotations=n_rotations, zeros=zeros
    )


def _half_of(row: Row) -> str:
    """Return the number of neurons with half of the part, and of random directions, as a clause."""
    return SENTENCES["half"].format(
        half=row["half"], n_live=row["n_live"], varying=" that vary" if row["n_live"] < row["n_neurons"] else "",
        lowest=row["half_lowest"], highest=row["half_highest"],
    )  # fmt: skip


def _zeros(rows: Mapping[int, Row]) -> str:
    """Return a sentence on the number of neurons outside which the part is 0; empty if there are none."""
    some = Table({**row, "layer": layer} for layer, row in rows.items() if row["n_nonzero"] < row["n_neurons"])
    where = [
        f"{n} of {of[0]['n_neurons']} neurons in {layers_named(of.column('layer'))}"
        for n, of in some.by("n_nonzero").items()
    ]
    return SENTENCES["zeros"].format(where=listed(where)) if where else ""


_SCALE = text("scale", "raw, or standardised: every neuron counts as if its variance were 1.")

POSITION_SPLIT = Schema("position_split", "a row per layer, scale and part", (
    layer_column(), _SCALE,
    text("part", "position (what positions add to sentences), context (what sentences add to positions), shared (what "
         "either of them explains), rest; these add up to 1. position_alone and context_alone: shares of the means, "
         "whatever else these differ in."),
    value("Share of the variance, adjusted for chance; of position as in the adjusted R²"),
    number("share", "Share of the variance in the text that was read.", form=".4f"),
    number("chance", "Share by chance: of position, the mean over all orders of the tokens within each sentence.",
           form=".4f"),
    whole("n_sentences", "Number of sentences."), N_TOKENS,
))  # fmt: skip

POSITION_SPECTRUM = Schema("position_spectrum", "a row per layer, scale and direction", (
    layer_column(), _SCALE,
    whole("component", "Number of the principal direction of the position part."),
    number("share", "Its share of the position part, with its noise."),
    number("held_out", "What the directions up to it explain in sentences left out, as a share of the most that any "
           "number of directions explains there; 0 where that is nothing."),
))  # fmt: skip

POSITION_CURVES = Schema("position_curves", "a row per layer, position and direction", (
    layer_column(),
    whole("position", "Index of the token in its sentence, from 0."),
    whole("component", "Number of the principal direction of the position part, up to 3."),
    value("The position part along it"),
    N_TOKENS,
))  # fmt: skip

POSITION_SHAPE = Schema("position_shape", "a row per layer and measure", (
    layer_column(),
    text("measure", "directions, directions_in_sample, low_frequencies, context_overlap, context_angle, "
         "halves_overlap, below_overlap, read_accuracy, read_error, read_longer_accuracy or read_longer_error; "
         "directions also with _standardised."),
    value("Its value"),
    number("chance", "Its mean for shuffled positions, or for random directions."),
    number("p_value", "Share of random draws, and of what is measured, that are at least as far from chance."),
    whole("k", "Number of directions that are compared or read."),
    N_TOKENS,
))  # fmt: skip

POSITION_BASIS = Schema("position_basis", "a row per layer and scale", (
    layer_column(), _SCALE,
    whole("half", "Number of neurons with half of the position part: ordered by the part of half of the sentences, "
          "measured on the part of the other half, both ways."),
    number("half_directions", "The same of the directions of a random rotation: the median of the rotations.",
           form=".1f"),
    whole("half_lowest", "The lowest of a rotation."),
    whole("half_highest", "The highest of a rotation."),
    number("half_p", "Share of the rotations, and of the neurons, of which at most as many have half of the part."),
    whole("n_directions", "Number of principal directions that the part is cut to."),
    whole("n_nonzero", "Number of neurons in which it is not 0."),
    whole("n_live", "Number of neurons that vary, which are rotated."),
    whole("n_neurons", "Number of neurons."),
    whole("n_rotations", "Number of random rotations."),
))  # fmt: skip

POSITION_HELD = Schema("position_held", "a row per layer, scale, order of neurons and number", (
    layer_column(), _SCALE,
    text("order", "fit (ranking of --run), eta_squared, part (those with the largest shares), random, rotated "
         "(those with the largest shares of a random rotation), directions (the part's own). All but fit and random "
         "are chosen in half of the sentences and measured in the other, both ways."),
    whole("k", "Number of the first neurons, or directions."),
    number("value", "Share of the position part in them; of draws (random, rotated) the median."),
    number("low", "The lowest of 20 draws."),
    number("high", "The highest of 20 draws."),
))  # fmt: skip

POSITION_BY_NEURON = Schema("position_by_neuron", "a row per layer and neuron", (
    layer_column(),
    whole("neuron", "Index of the neuron."),
    number("variance", "Variance of the activation.", form=".3g"),
    number("eta_squared", "Share of its variance between positions."),
    number("share", "Share of its variance that positions add to sentences."),
    number("chance", "The same for tokens in random order within each sentence."),
    number("value", "The share minus the share by chance."),
    number("held", "Share of the position part that is in it."),
    number("held_standardised", "The same where every neuron counts as if its variance were 1."),
))  # fmt: skip

SCHEMAS = (
    POSITION_SPLIT, POSITION_SPECTRUM, POSITION_CURVES, POSITION_SHAPE, POSITION_BASIS, POSITION_HELD,
    POSITION_BY_NEURON,
)  # fmt: skip

# Meanings of the headings on a page.
TERMS: Terms = {
    "layer": POSITION_SPLIT["layer"].meaning,
    "position": "Share of the variance that positions add to sentences, adjusted for chance.",
    "by chance": "Share that positions would add if the tokens of each sentence were in random order.",
    "context": "Share that sentences add to positions.",
    "shared": "Share that either of the two explains.",
    "rest": "Share that neither explains.",
    "standardised position": "Share of position if every neuron counts as if its variance were 1.",
    "position alone": "Share of the means of positions, whatever else these differ in, adjusted for chance.",
    "directions": "Number of directions of the position part that explain held-out sentences.",
    "slow": "Share of the position part in the lowest tenth of the frequencies along the sentence.",
    "with context": "How far its directions are those of the context part: 1 if the same, 0 if at right angles.",
    "other half": "The same of the two halves of the sentences, the most one can expect.",
    "layer below": "The same of the layer below.",
    "read": "Share of the tokens of held-out sentences whose position is decoded from these directions.",
    "in longer": "The same in sentences longer than all that were fitted.",
    "half in neurons": "Number of neurons with half of the position part; in brackets the lowest and the highest "
    "number of directions of random rotations with half of it.",
    "standardised": "The same if every neuron counts as if its variance were 1.",
    "first of fit": "Share of the first neurons of the ranking of `fit`.",
    "by eta squared": "Share of the first neurons by eta squared.",
    "largest shares": "Share of the neurons with the largest shares, chosen in half of the sentences and measured in "
    "the other half.",
    "random": "Share of as many random neurons: median and range of 20 draws.",
    "of a rotation": "Share of as many neurons of a random rotation, chosen and measured alike.",
    "own directions": "Share of as many of its own directions, chosen and measured alike.",
}


def curves(split: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row per layer for W&B's curves: the share of the variance that is position."""
    names = {"position_share": "value", "position_share_low": "low", "position_share_high": "high"}
    return curve_points(
        Table(split).where(scale=RAW, part="position"),
        lambda row: {name: row[of] for name, of in names.items() if row[of] is not None},
    )


# Options whose values are those of `--run`, where it is given.
OF_RUN = ("model", "revision", "random_weights", "corpus", "max_length")


@dataclass(frozen=True)
class PositionOptions(OutputOptions, RunOptions, StatesOptions):
    """Options of `position`."""

    corpus: Source = "builtin"
    max_length: int | None = None
    batch_tokens: int | None = None
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are split, too."""
    run: Folder | None = None
    """Finished run of `fit` whose ranking of neurons is compared with the position part; its model and corpus are then
    used (--corpus and --model give their new locations if they have moved)."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: folds, rotations, orders of tokens and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-position-YYYYMMDD-HHMMSS."""
    first_token: FirstToken = "include"


@command(PositionOptions)
def position(options: PositionOptions) -> Result | None:
    """Split hidden states into mean, position, context and rest, and find where the position part is.

    Its amount, directions and shape are measured, and whether it is in neurons or in directions.

    Returns:
        The measurements; None except in the rank-zero process.
    """
    call = Call.of(study_of("position"), options)
    config, run = call.config, None
    if config["run"] is not None:
        run = of_text(load_fit(config["run"]))
        read_as_run(run, f"--run {config['run']}", config, defaults(position), OF_RUN)
    with quiet_libraries():
        from probing.data.labelling import origin
        from probing.probes.outliers import read_text_to_measure
        from probing.studies.position.survey import PositionSample, check_position, survey_position

        source, special_tokens = call.source(tokenizer=options.tokenizer), config["special_tokens"]
        ranking = {} if run is None else _ranking(run, source.layers, source.config.hidden_size)
        call.expect(2)
        _, (store,) = read_text_to_measure(source, config, partial(check_position, special_tokens=special_tokens))
        call.watch.end("extract")
        if not is_main_process():
            return None

        def measure(_: Path) -> Measurements:
            rows = survey_position(PositionSample(store, special_tokens, config["seed"]), source.layers, ranking)
            return Measurements(
                {name: of for name, of in rows.items() if of}, {"cache": {"measured": origin(store)}},
                curves(rows["position_split"]),
            )  # fmt: skip

        return call.write(source.model, measure)


def _ranking(run: Run, layers: Sequence[int], d_model: int) -> dict[int, list[int]]:
    """Return all neurons of the layers that a run ranks, by rank; raise a `UserError` if it ranks none of them."""
    both = [layer for layer in layers if layer in run.layers]
    if not both:
        raise UserError(
            f"`--run {run.folder}` ranks the neurons of {layers_named(run.layers)}, and none of these is among "
            f"{layers_named(layers)}; give other layers, or another run."
        )
    return {layer: [row["neuron"] for row in run.top(layer, d_model)] for layer in both}


class PositionStudy(Study):
    """The study of the position part of hidden states."""

    name, kind, title = "position", "position", "Position"
    function = "probing.studies.position:position"
    in_several_processes = True
    schemas = SCHEMAS
    page = "geometry.md#where-position-lives"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Shares of the variance, the position part along its directions, and shares in few neurons.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return the position part's share, its shape and its neurons."""
        return position_tables(result.by_name)

    def charts(self, result: Result) -> list[Chart]:
        """Return the shares of the variance by layer, and those of the position part in a few neurons."""
        return position_charts(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence for each question."""
        return position_conclusions(result.by_name)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: TERMS}


STUDY = PositionStudy()
