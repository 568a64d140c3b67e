"""Columns, tables and sentences of `ablate`, for files and the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.interventions import MLM, POSITION, RETRAINED, TUNED, TUNED_R2, measure_of
from probing.results import Column, Schema, count, ends, in_brackets, interval, listed, number, text, whole
from probing.statistics import few_sentences
from probing.tables.schema import effect, layer_column

# What is rounded, by which scale, and what is kept in full.
WEIGHTS, ACTIVATIONS, BOTH = "weights", "activations", "both"

TENSOR, CHANNEL = "tensor", "channel"

NOTHING, OUTLIERS, RANDOM_MEAN = "none", "outliers", "random_mean"

# Orders in which weights are pruned, and the mean of the random ones.
MAGNITUDE, RANDOM, MEAN = "magnitude", "random", "random_mean"

_UNIT = text("unit", "A head, such as 3-9, or the number of a layer.")

_UNITS = text("units", "heads or layers.")

_KIND = text("kind", "What replaces the output.")

_READOUT = text(
    "readout",
    "What is read: position, position_retrained, mlm, sts:NAME, wic, or of a tuned model its "
    "task: tuned (accuracy) or tuned_r2 (R²).",
)

_READ = layer_column("Layer that is read.")

_N = whole("n", "Number of sentences, or of pairs.")

_ORDER = text("order", "Order in which units are ablated: importance, reverse or random.")

ABLATED = Schema("ablated", "a row per unit, kind of replacement and layer that is read", (
    _UNIT, _KIND, _READOUT, _READ,
    number("intact", "The measure of the intact model."),
    number("value", "The measure with the unit ablated."),
    effect("The second minus the first"),
    number("percentile", "Percentage of the units of its kind that do less harm.", form=".0f"),
    number("p_value", "p-value of the effect, corrected for the units."),
    _N,
))  # fmt: skip

BETTER_WITHOUT = Schema("better_without", "a row per kind of unit, replacement, readout and layer", (
    _UNITS, _KIND, _READOUT, _READ,
    text("unit", "The unit without which the model is best, chosen on one half of the sentences."),
    number("effect_chosen_on", "Its effect on that half.", form="+.3f"),
    effect("Its effect on the other half"),
    number("p_value", "p-value, corrected for the number of rows."),
    whole("n", "Number of sentences, or of pairs, of the other half."),
))  # fmt: skip

RAISING = Schema("raising", "a row per kind of unit, replacement and readout", (
    _UNITS, _KIND, _READOUT, _READ,
    whole("n_units", "Number of heads or layers."),
    whole("n_better", "Number of them without which the measure is better, by however little."),
    whole("n_clear", "Number of them without which it is better by more than 1.645 standard errors."),
    whole("n_chance_low", "Lower end of the range of that number in 95% of draws in which the differences of each "
          "sentence, or pair, have the same or the opposite sign at random.", "by chance"),
    whole("n_chance_high", "Upper end."),
    number("p_value", "Share of draws with at least as many, corrected for the rows of the readout."),
), optional=True)  # fmt: skip

IMPORTANCE = Schema("importance", "a row per head", (
    _UNIT, _READOUT, _READ,
    Column("importance", float, "Mean of |dL/d xi| over sentences, in nats; low, high: its 95% interval.", form=".3f",
           interval=""),
    number("normalised", "That divided by the Euclidean norm over the heads of its layer."),
    whole("n", "Number of sentences."),
), optional=True)  # fmt: skip

PRUNING = Schema("pruning", "with `--prune`, a row per order and step", (
    _UNITS, _KIND, _READOUT, _READ, _ORDER,
    whole("draw", "Number of the random order."),
    whole("n_ablated", "Number of units that are ablated."),
    number("share", "That as a share of all."),
    number("value", "The measure."),
    effect("Its difference from the intact model"),
    text("ablated", "Units that this step ablated."),
    _N,
), optional=True)  # fmt: skip

PRUNING_AREAS = Schema("pruning_areas", "with `--prune`, a row per order that is not random", (
    _UNITS, _KIND, _READOUT, _READ, _ORDER,
    number("area", "Area under the curve of the order."),
    number("random_area", "Mean area of the random orders."),
    effect("The first minus the second"),
    number("percentile", "Percentage of the random orders that keep less.", form=".0f"),
    number("p_value", "Its p-value, by rank."),
    _N,
), optional=True)  # fmt: skip

WEIGHT_PRUNING = Schema("weight_pruning", "with `--prune weights`, a row per order, draw and share", (
    _READOUT, _READ,
    text("order", "Which weights of each matrix are pruned: magnitude (the smallest), random, or random_mean, the mean "
         "of the random draws."),
    whole("draw", "Number of the random draw."),
    number("share", "Share of the weights of each matrix that is 0.", form=".0%"),
    whole("n_weights", "Number of weights of all matrices.", form=","),
    number("value", "The measure."),
    effect("Its difference from the whole model; for the mean, with an interval over sentences and draws"),
    number("p_value", "p-value of the effect over sentences, corrected for the shares."),
    _N,
), optional=True)  # fmt: skip

QUANTISED = Schema("quantised", "with `--quantise`, a row per rounding and readout", (
    _READOUT, _READ,
    whole("bits", "Number of bits that numbers are rounded to."),
    text("rounded", "What is rounded: weights (the matrices of blocks), activations (the hidden states that enter "
         "blocks) or both."),
    text("scale", "tensor: a whole matrix, or layer, has one scale; channel: each unit, or neuron, has its own."),
    text("kept", "Neurons of hidden states that are not rounded: none, outliers, random (as many others), or "
         "random_mean, the mean of the random draws.", heading="kept in full"),
    whole("draw", "Number of the random draw."),
    whole("n_kept", "Number of these neurons, summed over blocks."),
    number("value", "The measure."),
    effect("Its difference from the model as it is; for the mean, with an interval over sentences and draws"),
    number("p_value", "p-value of the effect over sentences, corrected for all rows of the readout but single draws."),
    number("rank_p", "Of kept outliers, the share of the random draws, and of what is tested, that lose no more."),
    _N,
), optional=True)  # fmt: skip

SCHEMAS = ABLATED, BETTER_WITHOUT, RAISING, IMPORTANCE, PRUNING, PRUNING_AREAS, WEIGHT_PRUNING, QUANTISED

Row = Mapping[str, Any]

Tables = Mapping[str, Sequence[Row]]

# What stands in the place of a unit, as the end of "with ...".
PLACES = {
    "uniform": "uniform attention",
    "zero": "zeros",
    "mean": "the mean of its outputs",
    "resample": "its outputs at random tokens of other sentences",
    "skip": "the block skipped",
}

# The losses whose gradients tell the importance of heads.
_LOSSES = {
    "position": "in nats, the loss of layer {layer}'s probe",
    "mlm": "in nats, the loss of masked words",
    "sts": "the squared error of the cosines",
    "wic": "in nats, the loss of the cosine's logistic curve",
    "tuned": "in nats, the loss of the task",
    "tuned_r2": "in squared deviations, the loss of the task",
}

# What is read by a head of the model, which takes the last layer alone.
_BY_HEAD = (MLM, TUNED, TUNED_R2)

# Largest difference of two scores of the same model on the same text.
SAME = 1e-6

# Most heads in the table of the terminal.
_SHOWN = 10


def is_head(row: Row) -> bool:
    """Return True if the unit of a row is a head, False for a layer."""
    return "-" in row["unit"]


def at_last_layer(rows_by_table: Tables, readout: str = "position") -> list[Row]:
    """Return the rows of `ablated.csv` for the highest layer, of a readout as named in the column `readout`."""
    rows = [row for row in rows_by_table.get("ablated", ()) if row["readout"] == readout]
    last = max((row["layer"] for row in rows), default=0)
    return [row for row in rows if row["layer"] == last]


def kinds_of(rows: Sequence[Row]) -> list[str]:
    """Return the kinds of replacement, in the order of the rows."""
    return list(dict.fromkeys(row["kind"] for row in rows))


def readouts_of(rows_by_table: Tables) -> list[str]:
    """Return the readouts, in the order of the rows, without retrained probes."""
    return [
        name for name in dict.fromkeys(row["readout"] for row in rows_by_table.get("ablated", ())) if name != RETRAINED
    ]


def named(readout: str, layer: int) -> str:
    """Return the name of a readout in titles."""
    of = readout.partition(":")[2]
    at = "" if readout in _BY_HEAD else f" of layer {layer}"
    return f"{measure_of(readout).noun}{f' ({of})' if of else ''}{at}"


def tables(rows_by_table: Tables) -> list[Any]:
    """Return the tables of the terminal, as rich tables; tables without rows are omitted."""
    readout_tables = []
    for readout in readouts_of(rows_by_table):
        rows = at_last_layer(rows_by_table, readout)
        layers, heads = ([row for row in rows if is_head(row) is of_heads] for of_heads in (False, True))
        readout_tables += [
            _table(layers, "layer", ""),
            _table(_first(heads), "head", f", of {len(_units(heads))} heads"),
        ]
    return [table for table in [*readout_tables, _retrained_table(rows_by_table)] if table is not None]


def _units(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["unit"] for row in rows))


def _gain(row: Row) -> float:
    """Return the effect, positive for an improvement."""
    return float(measure_of(row["readout"]).sign * row["effect"])


def _first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the heads with the greatest loss by the first kind of replacement, in that order."""
    kinds = kinds_of(rows)
    order = sorted((row for row in rows if row["kind"] == kinds[0]), key=_gain)
    first = [row["unit"] for row in order[:_SHOWN]]
    return sorted((row for row in rows if row["unit"] in first), key=lambda row: first.index(row["unit"]))


def _table(rows: Sequence[Row], what: str, of: str) -> Any:
    from probing.runtime.terminal import plain_table

    if not rows:
        return None
    kinds = kinds_of(rows)
    readout = rows[0]["readout"]
    title = f"{named(readout, rows[0]['layer'])} without a {what}, in {measure_of(readout).unit}{of}"
    table = plain_table(title[0].upper() + title[1:])
    for heading in (what, *kinds):
        table.add_column(heading, justify="right")
    row_of = {(row["unit"], row["kind"]): row for row in rows}
    for unit in _units(rows):
        table.add_row(unit, *(points(row_of.get((unit, kind))) for kind in kinds))
    return table


def _retrained_table(rows_by_table: Tables) -> Any:
    from probing.runtime.terminal import plain_table

    rows = at_last_layer(rows_by_table, RETRAINED)
    if not rows:
        return None
    table = plain_table(f"Position accuracy of layer {rows[0]['layer']} by probes trained again, in points")
    for heading in ("without", "kind", "probe as it was", "trained again"):
        table.add_column(heading, justify="right")
    frozen = {(row["unit"], row["kind"]): row for row in at_last_layer(rows_by_table)}
    for row in rows:
        table.add_row(row["unit"], row["kind"], points(frozen.get((row["unit"], row["kind"]))), points(row))
    return table


def points(row: Row | None) -> str:
    """Return an effect in its unit with its confidence interval, and a star for a corrected p-value below .05."""
    if row is None:
        return ""
    return f"{_change(row)}{in_brackets(_between(row))}{'*' if row['p_value'] < 0.05 else ''}"


def _change(row: Row) -> str:
    measure = measure_of(row["readout"])
    return f"{measure.times * row['effect']:+.{measure.digits}f}"


def _between(row: Row) -> str:
    measure = measure_of(row["readout"])
    return interval(row, between=" to ", form=f"+.{measure.digits}f", times=measure.times)


def conclusions(rows_by_table: Tables) -> list[str]:
    """Return the conclusions from the tables, a sentence for each question."""
    lines = []
    for readout in readouts_of(rows_by_table):
        rows = at_last_layer(rows_by_table, readout)
        for of_heads, what in ((False, "layer"), (True, "head")):
            for kind in kinds_of(rows):
                if kind_rows := [row for row in rows if row["kind"] == kind and is_head(row) is of_heads]:
                    lines.append(_most(kind_rows, what, kind))
        lines += _trained_again(rows_by_table) if readout == POSITION else []
        lines += [
            *_raising(rows_by_table, readout),
            *_better_without(rows_by_table, readout),
            *_importance(rows_by_table, readout),
            *_pruning(rows_by_table, readout),
            *_why_no_intervals(rows),
        ]
    return lines


def _most(rows: Sequence[Row], what: str, kind: str) -> str:
    most = min(rows, key=_gain)
    lower, higher = (
        sum(sign * row["effect"] > 0 and row["p_value"] < 0.05 for row in rows) for sign in (-1, 1)
    )  # fmt: skip
    without = f"Without a {what}, with {PLACES[kind]}" if kind != "skip" else "With a block skipped"
    return (
        f"{without}: {_changes_most(most)} by {what} {most['unit']}, from {most['intact']:.3f} to "
        f"{most['value']:.3f} ({_change(most)} {measure_of(most['readout']).unit}{_after(most)}); {lower} of "
        f"{len(rows)} {what}s lower it and {higher} raise it (corrected p below .05)."
    )


def _after(row: Row) -> str:
    between = _between(row)
    return f"; {between}" if between else ""


def _changes_most(most: Row) -> str:
    measure = measure_of(most["readout"])
    if most["readout"] == POSITION:
        return f"the probe of layer {most['layer']} {_loses(most)}"
    worse, better = ("falls", "rises") if measure.higher_is_better else ("rises", "falls")
    article = "the " if most["readout"] in _BY_HEAD else ""
    return f"{article}{named(most['readout'], most['layer'])} " + (
        f"{worse} most" if _gain(most) < 0 else f"{worse} nowhere, and {better} least"
    )


def _loses(most: Row) -> str:
    """Return a verb phrase for a probe without the unit whose absence costs it most; even this may be a gain."""
    return "loses most" if most["effect"] < 0 else "loses nothing, and gains least"


def _trained_again(rows_by_table: Tables) -> list[str]:
    lines = []
    for of_heads, what in ((False, "layer"), (True, "head")):
        rows = [row for row in at_last_layer(rows_by_table, RETRAINED) if is_head(row) is of_heads]
        if rows:
            lower = sum(row["effect"] < 0 and row["p_value"] < 0.05 for row in rows)
            most = min(rows, key=lambda row: row["effect"])
            lines.append(
                f"Trained again without one of {len(rows)} {what}s ({most['kind']}), the probe of layer "
                f"{most['layer']} reads less in {lower} cases (corrected p below .05); it {_loses(most)} without "
                f"{what} {most['unit']}: {100 * most['effect']:+.1f} points{_within(most)}."
            )
    return lines


def _raising(rows_by_table: Tables, readout: str) -> list[str]:
    """Return sentences on the units without which a tuned model's task gains, and on the chance level."""
    if readout not in (TUNED, TUNED_R2):
        return []
    lines = []
    for units in ("layers", "heads"):
        rows = [row for row in rows_by_table.get("raising", ()) if (row["readout"], row["units"]) == (readout, units)]
        if not rows:
            continue
        more = [row["kind"] for row in rows if row["p_value"] < 0.05]
        names = [
            f"{row['n_better']} ({row['kind']}; clearly without {row['n_clear']}, where chance gives "
            f"{row['n_chance_low']} to {row['n_chance_high']})"
            for row in rows
        ]
        verdict = f"more than chance gives with {listed(more)}" if more else "no more than chance gives"
        lines.append(
            f"Of {rows[0]['n_units']} {units}, the {measure_of(readout).noun} rises without {listed(names)}: {verdict} "
            "(p below .05 by random signs of the differences, corrected)."
        )
    return lines


def tuned_sentences(results: Mapping[str, Any]) -> list[str]:
    """Return the intact score of a tuned head and the score of its run; empty for other `results.json`."""
    tuned = results.get("tuned")
    if tuned is None:
        return []
    (readout, shown), *_ = ((name, values) for name, values in results["readouts"].items() if name in (TUNED, TUNED_R2))
    (intact,), score = shown["intact"].values(), tuned["score"]
    sentence = f"Intact, {tuned['checkpoint']} has a {measure_of(readout).noun} of {intact:.3f}"
    if shown["n_examples"] < tuned["n_tested"]:
        return [
            f"{sentence} on {shown['n_examples']:,} of the {tuned['n_tested']:,} targets that its run tested "
            f"({score:.3f})."
        ]
    if abs(intact - score) <= SAME:
        return [f"{sentence} on the {shown['n_examples']:,} targets of the test part, as its run says."]
    return [f"{sentence}, where its run says {score:.3f}: it was tuned with other versions or on another machine."]


def _better_without(rows_by_table: Tables, readout: str) -> list[str]:
    rows = [row for row in rows_by_table.get("better_without", ()) if row["readout"] == readout]
    last = max((row["layer"] for row in rows), default=0)
    lines = []
    for units in ("layers", "heads"):
        unit_rows = [row for row in rows if row["units"] == units and row["layer"] == last]
        better = [row for row in unit_rows if _gain(row) > 0 and row["p_value"] < 0.05]
        if not unit_rows:
            continue
        unit = measure_of(readout).unit
        better_texts = [f"{row['unit']} ({row['kind']}: {_change(row)} {unit}{_within(row)})" for row in better]
        what = units.removesuffix("s")
        of = "" if readout == POSITION else f" ({'task' if readout in (TUNED, TUNED_R2) else readout})"
        items = f"{measure_of(readout).items}s{of}"
        lines.append(
            f"Better without a {what}, chosen on one half of the {items} and measured on the other: "
            + (
                f"{', '.join(better_texts)}."
                if better_texts
                else "none, by any kind of replacement (corrected p below .05)."
            )
        )
    return lines


def _importance(rows_by_table: Tables, readout: str) -> list[str]:
    rows = [row for row in rows_by_table.get("importance", ()) if row["readout"] == readout]
    rows.sort(key=lambda row: -row["importance"])
    if not rows:
        return []
    head_texts = []
    for row in rows[:3]:
        between = interval(row, between=" to ", form=".3g")
        head_texts.append(f"{row['unit']} ({row['importance']:.3g}{', ' + between if between else ''})")
    loss = _LOSSES[readout.split(":")[0]].format(layer=rows[0]["layer"])
    return [f"By gradients (Michel et al. 2019), {loss} depends most on heads {', '.join(head_texts)}."]


def _pruning(rows_by_table: Tables, readout: str) -> list[str]:
    rows = [row for row in rows_by_table.get("pruning_areas", ()) if row["readout"] == readout]
    lines = []
    for units in ("layers", "heads"):
        by_order = {row["order"]: row for row in rows if row["units"] == units}
        if not by_order:
            continue
        least, reverse = by_order["importance"], by_order["reverse"]
        lines.append(
            f"Ablated together ({least['kind']}), the least important {units} first, {units} leave an area of "
            f"{least['area']:.3f} under the curve of {named(readout, least['layer'])}, and in random orders "
            f"{least['random_area']:.3f} ({_change(least)} {measure_of(readout).unit}{_after(least)}; better than "
            f"{least['percentile']:.0f}% of them, p = {least['p_value']:.2g} by rank); in the reverse order "
            f"{reverse['area']:.3f}."
        )
    return lines


def _within(row: Row) -> str:
    between = _between(row)
    return f", {between}" if between else ""


def _why_no_intervals(rows: Sequence[Row]) -> list[str]:
    most = max(rows, key=lambda row: row["n"], default=None)
    few = few_sentences(most["n"]) if most and not ends(most) else None
    return [few] if few else []


def by_order(rows_by_table: Tables, readout: str) -> dict[str, list[Row]]:
    """Return the rows of a readout by order, each by share; random draws follow each other."""
    order_rows: dict[str, list[Row]] = {}
    for row in rows_by_table.get("weight_pruning", ()):
        if row["readout"] == readout:
            order_rows.setdefault(row["order"], []).append(row)
    return order_rows


def weight_tables(rows_by_table: Tables) -> list[Any]:
    """Return a rich table for each readout: the measure at each share, by magnitude and at random."""
    return [_weight_table(rows) for readout in readouts_of(rows_by_table) if (rows := by_order(rows_by_table, readout))]


def _weight_table(rows: Mapping[str, Sequence[Row]]) -> Any:
    from probing.runtime.terminal import plain_table

    first, random = rows[MAGNITUDE][0], {row["share"]: row for row in rows[MEAN]}
    n_draws = len({row["draw"] for row in rows[RANDOM]})
    title = (
        f"{named(first['readout'], first['layer'])} with the smallest weights, or random ones (mean of {n_draws} "
        f"draws), pruned, and its change in {measure_of(first['readout']).unit}"
    )
    table = plain_table(title[0].upper() + title[1:])
    for heading in ("pruned", "smallest", "change", "random", "change"):
        table.add_column(heading, justify="right")
    for row in rows[MAGNITUDE]:
        both = [row, random.get(row["share"], first)]
        cells = [
            cell
            for order_row in both
            for cell in (f"{order_row['value']:.3f}", points(order_row) if order_row["share"] else "")
        ]
        table.add_row(f"{row['share']:.0%}", *cells)
    return table


def weight_sentences(rows_by_table: Tables, readout: str) -> list[str]:
    """Return the share from which on pruned weights reduce the measure, by magnitude and at random."""
    rows = by_order(rows_by_table, readout)
    if not rows:
        return []
    first, sign = rows[MAGNITUDE][0], measure_of(readout).sign
    clauses = [_from(rows[order], sign) for order in (MAGNITUDE, MEAN)]
    what = "the " + named(readout, first["layer"])
    return [
        f"With the smallest weights of each matrix pruned, {what} is worse than the whole model's {clauses[0]} "
        f"({first['n_weights']:,} weights); with random ones, {clauses[1]} (corrected p below .05)."
    ]


def _from(rows: Sequence[Row], sign: int) -> str:
    """Return the lowest share from which on every share costs something, as a phrase."""
    worst = None
    for row in reversed(rows):
        if not (sign * row["effect"] < 0 and row["p_value"] < 0.05):
            break
        worst = row
    return "at no share" if worst is None else f"from {worst['share']:.0%} on"


_KEPT = {NOTHING: "", OUTLIERS: "outliers", RANDOM_MEAN: "random"}


def quantised_tables(rows_by_table: Tables) -> list[Any]:
    """Return a rich table for each readout."""
    by_readout = {readout: _of(rows_by_table, readout) for readout in readouts_of(rows_by_table)}
    return [_quantised_table(rows) for rows in by_readout.values() if rows]


def _of(rows_by_table: Tables, readout: str) -> list[Row]:
    """Return the rows of a readout but for single draws, by bits."""
    rows = [row for row in rows_by_table.get("quantised", ()) if row["readout"] == readout and row["kept"] != RANDOM]
    bits = list(dict.fromkeys(row["bits"] for row in rows))
    return sorted(rows, key=lambda row: bits.index(row["bits"]))


def _quantised_table(rows: Sequence[Row]) -> Any:
    from probing.runtime.terminal import plain_table

    first = rows[0]
    title = f"{named(first['readout'], first['layer'])} with numbers rounded, and its change in "
    table = plain_table(title[0].upper() + title[1:] + measure_of(first["readout"]).unit)
    for heading in ("bits", "rounded", "scale", "kept in full", "value", "change"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = (row["rounded"], row["scale"], _KEPT[row["kept"]], f"{row['value']:.3f}", points(row))
        table.add_row(str(row["bits"]), *cells)
    return table


def quantised_sentences(rows_by_table: Tables, readout: str) -> list[str]:
    """Return, for each number of bits, the cost of rounded hidden states, and the role of the outliers."""
    row_of = {
        (row["bits"], row["rounded"], row["scale"], row["kept"]): row for row in _of(rows_by_table, readout)
    }  # fmt: skip
    sentences = []
    for bits in dict.fromkeys(key[0] for key in row_of):
        plain = row_of[bits, ACTIVATIONS, TENSOR, NOTHING]
        verb = "changes" if plain["p_value"] < 0.05 else "is not shown to change"
        start = (
            f"With hidden states rounded to {bits} bits by one scale a layer, {named(readout, plain['layer'])} {verb}"
        )
        start = f"{start}: {points(plain)}"
        exempt = row_of.get((bits, ACTIVATIONS, TENSOR, OUTLIERS))
        if exempt is None:
            sentences.append(f"{start}; no layer has an outlier that could be kept in full.")
            continue
        random = row_of[bits, ACTIVATIONS, TENSOR, RANDOM_MEAN]
        sentences.append(
            f"{start}; with the {count(exempt['n_kept'], 'outlier')} of all blocks kept in full: {points(exempt)}; "
            f"with as many random neurons: {points(random)} (p by rank {exempt['rank_p']:.2g})."
        )
    return sentences
