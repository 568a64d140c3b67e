"""Tables, charts and sentences of `ablate`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probing.interventions import (
    ACTIVATIONS,
    NOTHING,
    OUTLIERS,
    POSITION,
    RANDOM,
    READOUTS_OF_UNITS,
    REPLACEMENTS,
    RETRAINED,
    STS,
    TENSOR,
    TUNED,
    TUNED_R2,
    measure_of,
)
from probing.results import (
    Column,
    Row,
    Schema,
    Table,
    View,
    capitalised,
    cells_table,
    count,
    ends,
    in_brackets,
    interval,
    listed,
    number,
    shown,
    text,
    whole,
)
from probing.runs import Terms
from probing.statistics import MIN_SENTENCES, few_sentences
from probing.tables.figures import Chart, Line, Panel, linear
from probing.tables.schema import HEAD_NAME, effect, layer_column

# The mean of random draws; the order by which the smallest weights are pruned first.
MEAN, MAGNITUDE = "random_mean", "magnitude"

_UNIT = text("unit", "A head, such as 3-9, or the number of a layer.")

_UNITS = text("units", "heads or layers.")

_KIND = text("kind", "Replacement of the output.")

_READOUT = text(
    "readout",
    "The measure, named as in `--readouts`; position_retrained is read by probes that are trained again, sts:NAME on a "
    "set of pairs, and tuned_r2 is the R² of a tuned model whose task has numbers.",
    labels={name: measure_of(name).noun for name in (*READOUTS_OF_UNITS, TUNED_R2) if name != STS},
)

_READ = layer_column("Layer that is evaluated.")

_N = whole("n", "Number of sentences, or of pairs.")

_ORDER = text("order", "Order in which units are ablated: importance, reverse or random.")

ABLATED = Schema("ablated", "without `--neurons`, a row per unit, kind of replacement and evaluated layer", (
    _UNIT, _KIND, _READOUT, _READ,
    number("intact", "The measure of the intact model."),
    number("value", "The measure with the unit ablated."),
    effect("Value with the unit ablated minus value of the intact model"),
    number("percentile", "Percentage of the units of this kind whose ablation does less harm.", form=".0f"),
    number("p_value", "p-value of the effect, corrected for the units."),
    _N,
), optional=True)  # fmt: skip

BETTER_WITHOUT = Schema("better_without", "without `--neurons`, a row per type of unit, kind, readout and layer", (
    _UNITS, _KIND, _READOUT, _READ,
    text("unit", "The unit without which the model is best, selected on one half of the sentences."),
    number("effect_chosen_on", "Effect on this half.", form="+.3f"),
    effect("Effect on the other half"),
    number("p_value", "p-value, corrected for the number of rows."),
    whole("n", "Number of sentences, or of pairs, of the other half."),
), optional=True)  # fmt: skip

RAISING = Schema("raising", "a row per kind of unit, replacement and readout", (
    _UNITS, _KIND, _READOUT, _READ,
    whole("n_units", "Number of heads or layers."),
    whole("n_better", "Number of units whose ablation improves the measure at all."),
    whole("n_clear", "Number of units whose ablation improves the measure by more than 1.645 standard errors."),
    whole("n_chance_low", "Lower end of the range of n_clear in 95% of draws in which the differences of each "
          "sentence, or pair, have the same or the opposite sign at random.", "by chance"),
    whole("n_chance_high", "Upper end."),
    number("p_value", "Share of draws with at least as many units, corrected for the rows of the readout."),
), optional=True)  # fmt: skip

IMPORTANCE = Schema("importance", "a row per head", (
    _UNIT, _READOUT, _READ,
    Column("importance", float, "Mean of |dL/d xi| over sentences, in units of the loss L; low, high: 95% interval.",
           form=".3f", interval=""),
    number("normalised", "Importance divided by the Euclidean norm over the heads of its layer."),
    whole("n", "Number of sentences."),
), optional=True)  # fmt: skip

PRUNING = Schema("pruning", "with `--prune`, a row per order and step", (
    _UNITS, _KIND, _READOUT, _READ, _ORDER,
    whole("draw", "Number of the random order."),
    whole("n_ablated", "Number of units that are ablated."),
    number("share", "Share of units that are ablated."),
    number("value", "The measure."),
    effect("Difference from the intact model"),
    text("ablated", "Units that this step ablated."),
    _N,
), optional=True)  # fmt: skip

PRUNING_AREAS = Schema("pruning_areas", "with `--prune`, a row per order that is not random", (
    _UNITS, _KIND, _READOUT, _READ, _ORDER,
    number("area", "Area under the curve of the order."),
    number("random_area", "Mean area of the random orders."),
    effect("Area minus mean area of the random orders"),
    number("percentile", "Percentage of the random orders with a worse area.", form=".0f"),
    number("p_value", "p-value of the order, by rank."),
    _N,
), optional=True)  # fmt: skip

WEIGHT_PRUNING = Schema("weight_pruning", "with `--prune weights`, a row per order, draw and share", (
    _READOUT, _READ,
    text("order", "Weights of each matrix that are pruned: magnitude (the smallest), random, or random_mean, the mean "
         "of the random draws.", "weights", labels={MAGNITUDE: "smallest", MEAN: "random, mean of draws"}),
    whole("draw", "Number of the random draw."),
    number("share", "Share of the weights of each matrix that is 0.", "pruned", form=".0%"),
    whole("n_weights", "Number of weights of all matrices.", form=","),
    number("value", "The measure."),
    effect("Difference from the intact model; for the mean, with an interval over sentences and draws"),
    number("p_value", "p-value of the effect over sentences, corrected for the shares."),
    _N,
), optional=True)  # fmt: skip

QUANTISED = Schema("quantised", "with `--quantise`, a row per rounding and readout", (
    _READOUT, _READ,
    whole("bits", "Number of bits that numbers are rounded to."),
    text("rounded", "Rounded numbers: weights (the matrices of blocks), activations (the hidden states that enter "
         "blocks) or both."),
    text("scale", "tensor: a whole matrix, or layer, has one scale; channel: each unit, or neuron, has its own."),
    text("kept", "Neurons of hidden states that keep full precision: none, outliers, random (as many others), or "
         "random_mean, the mean of the random draws.", "full precision",
         labels={NOTHING: "none", MEAN: "random, mean of draws"}),
    whole("draw", "Number of the random draw."),
    whole("n_kept", "Number of neurons that keep full precision, summed over blocks."),
    number("value", "The measure."),
    effect("Difference from the intact model; for the mean, with an interval over sentences and draws"),
    number("p_value", "p-value of the effect over sentences, corrected for all rows of the readout but single draws."),
    number("rank_p", "Of outliers at full precision, the share of all draws, outliers included, that lose no more."),
    _N,
), optional=True)  # fmt: skip

SCHEMAS = ABLATED, BETTER_WITHOUT, RAISING, IMPORTANCE, PRUNING, PRUNING_AREAS, WEIGHT_PRUNING, QUANTISED

VIEWS = (
    View(
        WEIGHT_PRUNING, ("order", "layer", "share", "value", "effect*", "p_value"), "{readout}, weights pruned",
        "readout", {"order": (MAGNITUDE, MEAN)},
    ),
    View(
        QUANTISED, ("bits", "rounded", "scale", "kept", "layer", "value", "effect*", "p_value"),
        "{readout}, numbers rounded", "readout", {"kept": (NOTHING, OUTLIERS, MEAN)},
    ),
)  # fmt: skip

UNITS = ("layers", "heads")

SENTENCES = {
    "tuned_same": "The intact {checkpoint} has a {measure} of {intact:.3f} on {n:,} test targets, as in its run.",
    "tuned_part": "The intact {checkpoint} has a {measure} of {intact:.3f} on {n:,} of the {n_tested:,} test targets "
    "of its run, and of {score:.3f} in the run.",
    "tuned_differs": "The intact {checkpoint} has a {measure} of {intact:.3f}, and of {score:.3f} in its run: it was "
    "tuned with other versions or on another machine.",
    "most": "{measure} {falls} most without {unit} {name} ({replacement}): from {intact:.3f} to {value:.3f}, a "
    "change of {change}; it is lower without {lower} of {units} and higher without {higher} (corrected p below .05).",
    "none": "Without a {unit} ({replacement}), {measure} never {falls}: the least favourable, {unit} {name}, takes it "
    "from {intact:.3f} to {value:.3f}, a change of {change}; it is lower without {lower} of {units} and higher "
    "without {higher} (corrected p below .05).",
    "retrained": "If probes are retrained while one {unit} is ablated ({replacement}), the probe of layer {layer} is "
    "less accurate without {lower} of {units} (corrected p below .05); its {extreme} is without {unit} {name}: "
    "{change}.",
    "raising": "Of {units}, {measure} rises without {kinds}: {verdict} (random signs of the differences, corrected p "
    "below .05).",
    "raising_kind": "{better} ({kind}; {clear} by more than 1.645 standard errors, {low} to {high} expected by chance)",
    "raising_more": "more than expected by chance with {kinds}",
    "raising_no_more": "no more than expected by chance",
    "better": "{measure} improves without {units} (selected on one half of the {items}, measured on the other; "
    "corrected p below .05).",
    "not_better": "No ablated {unit} significantly improves {measure} (selected on one half of the {items}, measured "
    "on the other; corrected p below .05).",
    "better_untested": "Whether {measure} improves without some {unit} is not tested: half of the {items} are fewer "
    "than {least}.",
    "importance": "By gradients (Michel et al. 2019), {loss} depends most on {heads}.",
    "pruning": "{units} ablated cumulatively ({replacement}): the area under the curve of {measure} is {area:.3f} if "
    "the least important are ablated first, {random_area:.3f} in random orders and {reverse:.3f} if the most important "
    "are ablated first; the first differs from random orders by {change}, better than {percentile:.0f}% of them (p = "
    "{p:.2g} by rank).",
    "pruned_weights": "With the smallest weights of each matrix pruned, {measure} is worse than in the intact model "
    "{smallest} ({n:,} weights); with randomly drawn weights pruned, {random} (corrected p below .05).",
    "from_share": "from {share:.0%} on",
    "no_share": "at no share",
    "rounded": "With hidden states rounded to {bits} bits by one scale per layer, {measure} {changes}: {change}.",
    "rounded_without_outliers": "No layer has an outlier neuron that could keep full precision.",
    "rounded_with_outliers": "With the {outliers} of all blocks at full precision, the change is {exempt}; with as "
    "many random neurons at full precision, it is {random}; p = {p:.2g} by rank.",
}

# Meanings of the headings of effects, which are a column for each kind.
EFFECTS: Terms = {
    "head": HEAD_NAME,
    "layer": "All heads of the layer are ablated together.",
    **{kind: f"The output is replaced by {words}." for kind, words in REPLACEMENTS.items() if kind != "skip"},
    "mean": "The output is replaced by its mean over training tokens.",
    "skip": "The whole block is skipped.",
    "*": "The p-value is below .05 after correction for the number of heads or layers (Holm).",
    "without": "The ablated head or layer.",
    "kind": "Replacement of the output.",
    "frozen probe": "Effect on the probe that was trained on the intact model.",
    "retrained probe": "Effect on a probe that is trained while the head or layer is ablated.",
}

# Largest difference of two scores of the same model on the same text.
SAME = 1e-6

# Most heads in the table of the terminal.
_SHOWN = 10


def _by_units(rows: Table) -> list[tuple[str, Table]]:
    return [(units, of) for units in UNITS if (of := rows.where(units=units))]


def is_head(row: Row) -> bool:
    """Return True if the unit of a row is a head, False for a layer."""
    return "-" in row["unit"]


def of_units(rows: Table, units: str) -> Table:
    """Return the rows of `heads` or of `layers`."""
    return rows.where(lambda row: is_head(row) == (units == "heads"))


def at_last_layer(ablated: Table, readout: str = POSITION) -> Table:
    """Return the rows of `ablated.csv` for the highest layer, of a readout as named in the column `readout`."""
    rows = ablated.where(readout=readout)
    return rows.where(layer=max(rows.column("layer"), default=0))


def by_readout(tables: Mapping[str, Table]) -> dict[str, dict[str, Table]]:
    """Return the tables of each readout, in the order of the rows, without retrained probes."""
    names = [name for name in tables["ablated"].values("readout") if name != RETRAINED]
    return {name: {table: rows.where(readout=name) for table, rows in tables.items()} for name in names}


def named(row: Row) -> str:
    """Return the measure of a row, with its data and its layer."""
    of = row["readout"].partition(":")[2]
    layer = "" if measure_of(row["readout"]).head else f" of layer {row['layer']}"
    return f"{measure_of(row['readout']).noun}{in_brackets(of)}{layer}"


def amount(row: Row) -> str:
    """Return an effect in its unit, without the unit."""
    measure = measure_of(row["readout"])
    return shown(round(measure.times * row["effect"], measure.digits + 2), f"+.{measure.digits}f")


def range_of(row: Row) -> str:
    """Return the confidence interval of an effect in its unit; empty without one."""
    measure = measure_of(row["readout"])
    return interval(row, between=" to ", form=f"+.{measure.digits}f", times=measure.times)


def points(row: Row | None) -> str:
    """Return an effect in its unit with its confidence interval, and a star for a corrected p-value below .05."""
    if row is None:
        return ""
    return f"{amount(row)}{in_brackets(range_of(row))}{'*' if row['p_value'] < 0.05 else ''}"


def effect_tables(tables: Mapping[str, Table]) -> list[Any]:
    """Return rich tables of the effects on the last layer, a column for each kind, and of retrained probes."""
    rich = []
    for readout in by_readout(tables):
        rows = at_last_layer(tables["ablated"], readout)
        layers, heads = (of_units(rows, units) for units in UNITS)
        of = f", of {count(len(heads.values('unit')), 'head')}"
        rich += [_effects(layers, layers.values("unit"), "layer"), _effects(heads, _first(heads), "head", of)]
    return [table for table in [*rich, _retrained_table(tables["ablated"])] if table is not None]


def _gain(row: Row) -> float:
    """Return the effect, positive for an improvement."""
    return float(measure_of(row["readout"]).sign * row["effect"])


def _first(rows: Table) -> list[str]:
    """Return the heads with the greatest loss by the first kind of replacement, in this order."""
    return [row["unit"] for row in sorted(rows.where(kind=rows[0]["kind"]), key=_gain)[:_SHOWN]] if rows else []


def _effects(rows: Table, units: Sequence[str], what: str, of: str = "") -> Any:
    if not rows:
        return None
    title = capitalised(f"{named(rows[0])} without a {what}, in {measure_of(rows[0]['readout']).unit}{of}")
    row_of, kinds = {(row["unit"], row["kind"]): row for row in rows}, rows.values("kind")
    body = ([unit, *(points(row_of.get((unit, kind))) for kind in kinds)] for unit in units)
    return cells_table(title, [what, *kinds], body)


def _retrained_table(ablated: Table) -> Any:
    rows = at_last_layer(ablated, RETRAINED)
    if not rows:
        return None
    frozen = {(row["unit"], row["kind"]): row for row in at_last_layer(ablated)}
    body = (
        (row["unit"], row["kind"], points(frozen.get((row["unit"], row["kind"]))), points(row)) for row in rows
    )  # fmt: skip
    title = f"Position accuracy of layer {rows[0]['layer']} by retrained probes, in points"
    return cells_table(title, ("without", "kind", "frozen probe", "retrained probe"), body)


def conclusions(tables: Mapping[str, Table], results: Mapping[str, Any]) -> list[str]:
    """Return the conclusions, a sentence for each question; `results` is the content of `results.json`."""
    lines = [_tuned(results)] if "tuned" in results else []
    for readout, of in by_readout(tables).items():
        last = at_last_layer(of["ablated"], readout)
        lines += [_most(rows) for units in UNITS for rows in of_units(last, units).by("kind").values()]
        lines += _retrained(at_last_layer(tables["ablated"], RETRAINED)) if readout == POSITION else []
        lines += _raising(of["raising"]) if readout in (TUNED, TUNED_R2) else []
        lines += [
            *_better_without(of["better_without"]), *_importance(of["importance"]), *_pruning(of["pruning_areas"]),
            *_pruned_weights(of["weight_pruning"]), *_rounded(of["quantised"]), *why_no_intervals(last),
        ]  # fmt: skip
    return [capitalised(line) for line in lines]


def _tuned(results: Mapping[str, Any]) -> str:
    """Return the intact score of a tuned head compared with the score of its run."""
    tuned = results["tuned"]
    (readout, values), *_ = ((name, of) for name, of in results["readouts"].items() if name in (TUNED, TUNED_R2))
    (intact,), n = values["intact"].values(), values["n_examples"]
    is_same = abs(intact - tuned["score"]) <= SAME
    case = "tuned_part" if n < tuned["n_tested"] else "tuned_same" if is_same else "tuned_differs"
    return SENTENCES[case].format(**tuned, measure=measure_of(readout).noun, intact=intact, n=n)


def _change(row: Row) -> str:
    return f"{amount(row)} {measure_of(row['readout']).unit}{in_brackets(range_of(row))}"


def _is_clear(row: Row, sign: int) -> bool:
    """Return whether an effect has a sign (1 or -1) and a corrected p-value below .05."""
    return bool(sign * row["effect"] > 0 and row["p_value"] < 0.05)


def _most(rows: Table) -> str:
    worst, unit = min(rows, key=_gain), "head" if is_head(rows[0]) else "layer"
    lower, higher = (sum(_is_clear(row, sign) for row in rows) for sign in (-1, 1))
    return SENTENCES["most" if _gain(worst) < 0 else "none"].format(
        measure=named(worst), falls="falls" if measure_of(worst["readout"]).higher_is_better else "rises", unit=unit,
        name=worst["unit"], replacement=REPLACEMENTS[worst["kind"]], intact=worst["intact"], value=worst["value"],
        change=_change(worst), lower=lower, higher=higher, units=count(len(rows), unit),
    )  # fmt: skip


def _retrained(rows: Table) -> Iterator[str]:
    for units in UNITS:
        if unit_rows := of_units(rows, units):
            worst, unit = min(unit_rows, key=_gain), units.removesuffix("s")
            yield SENTENCES["retrained"].format(
                unit=unit, replacement=REPLACEMENTS[worst["kind"]], layer=worst["layer"], name=worst["unit"],
                lower=sum(_is_clear(row, -1) for row in unit_rows), units=count(len(unit_rows), unit),
                extreme="largest loss" if worst["effect"] < 0 else "smallest gain", change=_change(worst),
            )  # fmt: skip


def _raising(rows: Table) -> Iterator[str]:
    for units, unit_rows in _by_units(rows):
        kinds = [
            SENTENCES["raising_kind"].format(
                better=row["n_better"], kind=row["kind"], clear=row["n_clear"], low=row["n_chance_low"],
                high=row["n_chance_high"],
            ) for row in unit_rows
        ]  # fmt: skip
        more = [row["kind"] for row in unit_rows if row["p_value"] < 0.05]
        verdict = SENTENCES["raising_more"].format(kinds=listed(more)) if more else SENTENCES["raising_no_more"]
        yield SENTENCES["raising"].format(
            units=count(unit_rows[0]["n_units"], units.removesuffix("s")), kinds=listed(kinds), verdict=verdict,
            measure=measure_of(unit_rows[0]["readout"]).noun,
        )  # fmt: skip


def _better_without(rows: Table) -> Iterator[str]:
    last = rows.where(layer=max(rows.column("layer"), default=0))
    for units, unit_rows in _by_units(last):
        better = [
            f"{row['unit']} ({row['kind']}) by {_change(row)}"
            for row in unit_rows
            if _gain(row) > 0 and row["p_value"] < 0.05
        ]
        unit, is_tested = units.removesuffix("s"), any(ends(row) for row in unit_rows)
        case = "better" if better else "not_better" if is_tested else "better_untested"
        yield SENTENCES[case].format(
            measure=named(last[0]), unit=unit, units=f"{unit if len(better) == 1 else units} {', '.join(better)}",
            items=f"{measure_of(last[0]['readout']).items}s", least=MIN_SENTENCES,
        )  # fmt: skip


def _importance(rows: Table) -> Iterator[str]:
    first = sorted(rows, key=lambda row: -row["importance"])[:3]
    if first:
        between = (interval(row, between=" to ", form=".3g") for row in first)
        heads = ", ".join(
            f"{row['unit']} ({row['importance']:.3g}{', ' + ends_of if ends_of else ''})"
            for row, ends_of in zip(first, between, strict=True)
        )
        loss = measure_of(first[0]["readout"]).loss.format(layer=first[0]["layer"])
        yield SENTENCES["importance"].format(loss=loss, heads=f"head{'s' * (len(first) > 1)} {heads}")


def _pruning(rows: Table) -> Iterator[str]:
    for units, unit_rows in _by_units(rows):
        least, reverse = (unit_rows.where(order=order)[0] for order in ("importance", "reverse"))
        yield SENTENCES["pruning"].format(
            units=units, replacement=REPLACEMENTS[least["kind"]], measure=named(least), area=least["area"],
            random_area=least["random_area"], change=_change(least), percentile=least["percentile"],
            p=least["p_value"], reverse=reverse["area"],
        )  # fmt: skip


def _pruned_weights(rows: Table) -> Iterator[str]:
    if rows and not why_no_intervals(rows):
        smallest, random = (_from(rows.where(order=order)) for order in (MAGNITUDE, MEAN))
        yield SENTENCES["pruned_weights"].format(
            measure=named(rows[0]), smallest=smallest, random=random, n=rows[0]["n_weights"]
        )


def _from(rows: Table) -> str:
    """Return the lowest share of pruned weights from which on every share costs something, as a phrase."""
    harmless = [i for i, row in enumerate(rows) if not (_gain(row) < 0 and row["p_value"] < 0.05)]
    costly = rows[harmless[-1] + 1 :] if harmless else rows
    return SENTENCES["from_share"].format(share=costly[0]["share"]) if costly else SENTENCES["no_share"]


def _rounded(rows: Table) -> Iterator[str]:
    """Return, for each number of bits, the effect of rounded hidden states, and the role of the outliers."""
    for bits, of_bits in rows.where(rounded=ACTIVATIONS, scale=TENSOR).by("bits").items():
        exempted = {row["kept"]: row for row in of_bits}
        plain, exempt = exempted[NOTHING], exempted.get(OUTLIERS)
        changes = "does not significantly change" if plain["p_value"] >= 0.05 else "changes"  # also if not tested
        line = SENTENCES["rounded"].format(bits=bits, measure=named(plain), changes=changes, change=_change(plain))
        if exempt is None:
            yield f"{line} {SENTENCES['rounded_without_outliers']}"
            continue
        of_outliers = SENTENCES["rounded_with_outliers"].format(
            outliers=count(exempt["n_kept"], "outlier"), exempt=_change(exempt), p=exempt["rank_p"],
            random=_change(exempted[MEAN]),
        )  # fmt: skip
        yield f"{line} {of_outliers}"


def why_no_intervals(rows: Sequence[Row]) -> list[str]:
    """Return the reason if effects have no intervals."""
    most = max(rows, key=lambda row: row["n"], default=None)
    few = few_sentences(most["n"]) if most and not ends(most) else None
    return [few] if few else []


def charts(tables: Mapping[str, Table]) -> list[Chart]:
    """Return the effects of layers, and the curves of pruning, of each readout."""
    return [chart for readout, of in by_readout(tables).items() for chart in _charts(of, file_name(readout))]


def file_name(readout: str) -> str:
    """Return the end of the name of a figure; empty for positions, the first readout."""
    return "" if readout == POSITION else "_" + re.sub(r"[^A-Za-z0-9.-]+", "_", readout)


def _charts(of: Mapping[str, Table], end: str) -> Iterator[Chart]:
    rows = at_last_layer(of["ablated"], of["ablated"][0]["readout"])
    measure, name = measure_of(rows[0]["readout"]), named(rows[0])
    if layers := Table({**row, "layer": int(row["unit"])} for row in of_units(rows, "layers")):
        lines = [
            Line.of(by_kind, "effect", kind, "", scale=measure.times) for kind, by_kind in layers.by("kind").items()
        ]
        yield Chart(
            f"layers{end}", "effect of ablating a layer, 95% intervals", [Panel(lines, f"{name} without a layer")],
            f"change in {measure.unit}", x=linear("layer", "ablated layer"), reference=0,
        )  # fmt: skip
    for units, curve in of["pruning"].by("units").items():
        yield Chart(
            f"pruning_{units}{end}", f"{units} ablated cumulatively; bars: range of random orders",
            [Panel(_curves(curve), f"{name}, {units} ablated ({curve[0]['kind']})")], measure.noun,
            x=linear(f"{units} ablated", f"{units} ablated, of {max(curve.column('n_ablated'))}"),
            bars="the range of random orders",
        )  # fmt: skip
    if weights := of["weight_pruning"]:
        yield Chart(
            f"pruning_weights{end}", "weights pruned, 95% intervals of the change",
            [Panel(_weight_curves(weights), f"{name}, weights pruned")], measure.noun,
            x=linear("pruned %", "weights of each matrix pruned, %"), reference=weights[0]["value"],
        )  # fmt: skip


def _curves(rows: Table) -> list[Line]:
    drawn = {n: step.column("value") for n, step in rows.where(order="random").by("n_ablated").items()}
    means, ranges = [sum(of) / len(of) for of in drawn.values()], [(min(of), max(of)) for of in drawn.values()]
    orders = {"importance": "least important first", "reverse": "most important first"}
    return [
        *(Line.of(rows.where(order=order), "value", label, x="n_ablated") for order, label in orders.items()),
        Line("random orders: mean", [*drawn], means, ranges),
    ]


def _weight_curves(rows: Table) -> list[Line]:
    intact, lines = rows[0]["value"], []
    for order, label in ((MAGNITUDE, "smallest weights"), (MEAN, "random draws: mean")):
        of = rows.where(order=order)
        intervals = [ends(row) for row in of]
        ranges = [pair and (intact + pair[0], intact + pair[1]) for pair in intervals]
        lines.append(Line(label, _percent(of), [intact + row["effect"] for row in of], ranges))
    drawn = [step.column("value") for step in rows.where(order=RANDOM).by("share").values()]
    percent = _percent(rows.where(order=MEAN))
    extremes = {"lowest": min, "highest": max}
    return lines + [Line(f"random draws: {name}", percent, [*map(of, drawn)]) for name, of in extremes.items()]


def _percent(rows: Table) -> list[int]:
    return [round(100 * share) for share in rows.column("share")]
