"""Tables and sentences of `compare`: two runs layer by layer, and the neurons at the top of all runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from probing.models import neuron_of
from probing.results import (
    Column,
    Html,
    Row,
    Schema,
    Table,
    Type,
    as_in_terminal,
    cells_table,
    count,
    element,
    ends,
    estimated,
    in_brackets,
    interval,
    layer_number,
    layers_named,
    listed,
    number,
    shortened,
    shown,
    shown_table,
    sign_of_interval,
    text,
    two_decimals,
    whole,
)
from probing.runs import Result, Terms, folded, framed
from probing.statistics import LEVEL, MIN_SENTENCES, few_sentences
from probing.studies.finetune.tables import PRETRAINED, RANDOM, SHORT, SHUFFLED, score_words
from probing.tables import ALPHA, SAME, UNINFORMATIVE
from probing.tables.evidence_sentences import say
from probing.tables.figures import Chart, Line, Panel
from probing.tables.probe_figures import majority_lines
from probing.tables.probes import accuracies_table
from probing.tables.schema import ACCURACY, layer_column, value

# Marks layers that are no evidence, and matches that correlate no more than by chance.
MARK = "°"

# What the column `null` of `agreement.csv` holds, in words.
NULLS = {
    "shuffled_labels": "rankings under shuffled labels",
    "random_bases": "random bases of the second run",
    "permutation": "permuted rankings",
}


def agreement_tables(rows: Table, top: int, unread: Mapping[str, Sequence[int]] = {}) -> list[Any]:
    """Return a table per pair of runs with their layers at the same relative depth; the last has the legend."""
    tables = [_agreement_table(of_pair, unread) for of_pair in rows.by("model_a", "model_b").values()]
    nulls = [NULLS[null] for null in rows.where(statistic="spearman").values("null")]
    if tables:
        legend = [say("note_of_overlap", top=top), say("note_of_chance", null=" or ".join(nulls)), say("note_of_match")]
        legend += [say("note_of_unread", mark=MARK)] * any(MARK in cell for t in tables for cell in t.columns[0].cells)
        tables[-1].caption = "\n".join(legend)
    return tables


def accuracy_tables(rows: Table) -> list[Any]:
    """Return the accuracy of all runs by layer in one table."""
    return [accuracies_table(rows.by("model"))] if rows else []


def charts(rows: Table, task: str) -> list[Chart]:
    """Return the chart of the accuracies of all runs by layer."""
    by_run = rows.by("model")
    lines = [Line.of(of_run, "accuracy", label) for label, of_run in by_run.items()] + majority_lines(by_run)
    return [Chart("accuracy", f"linear probes of {task}", [Panel(lines)], "test accuracy", (0, 1))] if lines else []


# Neurons of a ranking that are shown.
FIRST_NEURONS = 10


def neurons_tables(rows: Table, shown_layers: Mapping[str, int]) -> list[Any]:
    """Return a table per pair of runs: the first neurons of a layer of the first run, with their matches.

    `shown_layers` has that layer by pair, as in `results.json`.
    """
    tables = []
    for (a, b), of_pair in rows.by("model_a", "model_b").items():
        of_layer = of_pair.where(layer_a=shown_layers[f"{a}, {b}"])[:FIRST_NEURONS]
        names = (f"{name} ({side}), layer {of_layer[0][f'layer_{side}']}" for name, side in ((a, "a"), (b, "b")))
        title = f"First neurons of {', and their matches in '.join(names)}"
        table = shown_table(
            NEURONS, of_layer, title, _NEURONS_SHOWN, cells={"correlation": _marked_correlation},
            leave_out=["contribution_b", "contribution_a"],
        )  # fmt: skip
        if n := sum(map(_is_by_chance, of_layer)):
            table.caption = say("note_of_matches", mark=MARK, n=n, of=len(of_layer))
        tables.append(table)
    return tables


def _is_by_chance(row: Row) -> bool:
    return "correlation" in row and not row["correlation"] > row["chance"]


def _marked_correlation(row: Row) -> str:
    return NEURONS["correlation"].show(row) + MARK * _is_by_chance(row)


def accuracy_sentence(accuracy_of_run: Mapping[str, Sequence[Row]]) -> str:
    """Return the highest accuracy of each run, and its layer."""
    best = {label: max(reversed(rows), key=lambda row: row["accuracy"]) for label, rows in accuracy_of_run.items()}
    accuracies = [f"for {label} in layer {row['layer']}, {estimated(row, 'accuracy')}" for label, row in best.items()]
    return say("accuracy_of_runs", accuracies=listed(accuracies))


def same_depth(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the layers of a pair of runs that are at the same relative depth."""
    return list(dict.fromkeys((row["layer_a"], row["layer_b"]) for row in rows if row["same_depth"] == "yes"))


def unpaired_lines(rows: Sequence[Row]) -> list[str]:
    """Name the layers of each run that have no layer of the same relative depth in another run."""
    lines = []
    for (a, b), of_pair in Table(rows).by("model_a", "model_b").items():
        pairs = same_depth(of_pair)
        for side, label, other in ((0, a, b), (1, b, a)):
            layers = {*of_pair.column(f"layer_{'ab'[side]}")} - {layers[side] for layers in pairs}
            if layers:
                lines.append(say("unpaired", label=label, layers=layers_named(sorted(layers)), other=other))
    return lines


def verdicts(rows: Sequence[Row], accuracy_of_run: Mapping[str, Sequence[Row]], top: int) -> dict[str, str]:
    """Return a sentence for each pair of runs on whether they rank the same neurons first."""
    unread = unread_layers(accuracy_of_run)
    pairs = Table(rows).by("model_a", "model_b")
    return {f"{a}, {b}": _verdict(a, b, of_pair, unread, top) for (a, b), of_pair in pairs.items()}


def unread_layers(accuracy_of_run: Mapping[str, Sequence[Row]]) -> dict[str, list[int]]:
    """Return the layers with an uninformative ranking by run."""
    return {
        label: [row["layer"] for row in rows if UNINFORMATIVE in row.get("flag", "")]
        for label, rows in accuracy_of_run.items()
    }


def is_unread(row: Row, unread: Mapping[str, Sequence[int]]) -> bool:
    """Return whether a row of `agreement.csv` is of a layer with an uninformative ranking."""
    return any(row[f"layer_{side}"] in unread.get(row[f"model_{side}"], ()) for side in "ab")


def _verdict(a: str, b: str, rows: Table, unread: Mapping[str, Sequence[int]], top: int) -> str:
    unread_pairs = [f"{i} with {j}" for i, j in same_depth([row for row in rows if is_unread(row, unread)])]
    read = rows.where(lambda row: row["same_depth"] == "yes" and not is_unread(row, unread))
    overlaps, spearmans = (read.where(statistic=of) for of in ("overlap", "spearman"))
    if not overlaps:
        return say("no_verdict", a=a, b=b)
    beyond = [[*map(_is_above_chance, of)] for of in (overlaps, spearmans)]
    k = min(top, *(row["n_neurons"] for row in overlaps))
    is_same = all(map(all, beyond)) and all(row["value"] >= SAME for row in overlaps)
    name = "same_neurons" if is_same else "partly_same" if any(map(any, beyond)) else "no_more_than_chance"
    numbers = say(
        "agreement",
        left_out=in_brackets(f"left out as uninformative: {listed(unread_pairs)}") if unread_pairs else "",
        tested=_tested(rows),
        shared=_span([k * row["value"] for row in overlaps], "{:.0f}"),
        top=k,
        chance=_span([k * end for row in overlaps for end in ends(row, "chance") or ()], "{:.0f}"),
        n_overlap=sum(beyond[0]),
        pairs=count(len(overlaps), "pair"),
        n=len(overlaps),
        values=_span([row["value"] for row in spearmans], "{:.2f}"),
        n_spearman=sum(beyond[1]),
    )
    return say(name, a=a, b=b, numbers=numbers)


def _is_above_chance(row: Row) -> bool:
    return bool(row.get("p_value", math.nan) <= ALPHA)


def _tested(rows: Table) -> str:
    """Return for how many pairs of layers the p-values of two runs are corrected, with the noun."""
    return count(sum(map(math.isfinite, rows.where(statistic="overlap").column("p_value"))), "pair")


def other_depths_lines(rows: Sequence[Row], unread: Mapping[str, Sequence[int]], top: int) -> list[str]:
    """Return a sentence for each pair of runs whose rankings agree in layers of other relative depths, if any do."""
    lines = []
    for (a, b), of_pair in Table(rows).by("model_a", "model_b").items():
        others = of_pair.where(lambda row: row["same_depth"] == "no" and not is_unread(row, unread))
        overlaps, spearmans = (others.where(statistic=of) for of in ("overlap", "spearman"))
        above = overlaps.where(_is_above_chance)
        n_spearman = sum(map(_is_above_chance, spearmans))
        if above or n_spearman:
            k, pairs = min([top, *above.column("n_neurons")]), count(len(overlaps), "pair")
            shared = in_brackets(f"{_span([k * row['value'] for row in above], '{:.0f}')} of {k}") if above else ""
            of: dict[str, Any] = {"n_overlap": len(above), "n_spearman": n_spearman, "tested": _tested(of_pair)}
            lines.append(say("other_depths", a=a, b=b, pairs=pairs, shared=shared, share=ALPHA, **of))
    return lines


def _span(values: Sequence[float], form: str) -> str:
    """Return the lowest and the highest of some numbers, or a single number if they look the same; without NaN."""
    known = [value + 0.0 for value in values if math.isfinite(value)]
    low, high = (form.format(end(known, default=math.nan)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def sites_lines(site_of_run: Mapping[str, str]) -> list[str]:
    """Return the definition of a neuron in each of the compared runs, unless all are of the residual stream."""
    is_default = {*site_of_run.values()} == {"residual"}
    return [] if is_default else [say("site", label=of, neuron=neuron_of(site)) for of, site in site_of_run.items()]


def unread_lines(accuracy_of_run: Mapping[str, Sequence[Row]]) -> list[str]:
    """Name the layers with an uninformative ranking, whose probe does not beat a constant answer."""
    unread = unread_layers(accuracy_of_run)
    return [say("unread_run", label=label, layers=layers_named(of)) for label, of in unread.items() if of]


def everywhere_tables(rows: Sequence[Row]) -> list[Any]:
    """Return a table of the neurons at the top of every run with all their columns, if there are any."""
    title = "Neurons at the top of every run; layer, neuron and rank without a name are of the first run"
    names = [name for name in TOP_EVERYWHERE.types if any(row.get(name, "") != "" for row in rows)]
    others = [name for row in rows[:1] for name in row if name not in TOP_EVERYWHERE]
    beside = {name: partial(lambda row, name: str(row[name]), name=name) for name in others}
    return [shown_table(TOP_EVERYWHERE, rows, title, names, beside)] if rows else []


def everywhere_sentence(rows: Sequence[Row], summary: Row, top: int) -> str:
    """Return the number of neurons at the top of every run, compared with chance; empty if no layer is compared.

    `summary` is that entry of `results.json`.
    """
    if not (n_layers := summary["n_layers"]):
        return ""
    n, n_distinct = len(rows), len({row["neuron"] for row in rows})
    neurons = "1 neuron and its match are" if n == 1 else f"{n} neurons and their matches are"
    values = {name: f"{number:.1f}".removesuffix(".0") for name, number in summary.items() if "chance" in name}
    values |= {"distinct": say("everywhere_distinct", n=n_distinct) if n_distinct < n else ""}
    values |= {"subject": neurons, "summed": f", summed over {n_layers} layers" * (n_layers > 1)}
    if "chance_p_value" not in summary:
        return say("everywhere", top=top, **values)
    sentence = say("everywhere_by_chance", top=top, **values, p=summary["chance_p_value"])
    beyond = [row for row in rows if row["p_value"] <= ALPHA and not row["no_signal"]]
    if not n:
        return sentence
    verb = "has a signal and is" if len(beyond) == 1 else "have a signal and are"
    return f"{sentence} {say('everywhere_beyond', n=len(beyond) or 'None', verb=verb, share=ALPHA)}"


def _agreement_table(rows: Sequence[Row], unread: Mapping[str, Sequence[int]]) -> Any:
    row_of = {(row["layer_a"], row["layer_b"], row["statistic"]): row for row in rows}
    unread_pairs = same_depth([row for row in rows if is_unread(row, unread)])

    def cells(layers: tuple[int, int]) -> list[str]:
        overlap, spearman, match, cka = (
            row_of.get((*layers, name), {}) for name in ("overlap", "spearman", "correlation", "cka")
        )
        return [
            f"{layers[0]}, {layers[1]}{MARK * (layers in unread_pairs)}",
            _two(overlap, "value"), _range(overlap, "chance"), _p(overlap), _two(spearman, "value"),
            _range(spearman, ""), _range(spearman, "chance"), _p(spearman), _two(match, "value"), _two(cka, "value"),
        ]  # fmt: skip

    title = f"{rows[0]['model_a']} (a) and {rows[0]['model_b']} (b), matched by {rows[0]['matching']}"
    headings = (
        "layers", "top overlap", "by chance", "p", "Spearman", "95% range", "by chance", "p", "match", "CKA",
    )  # fmt: skip
    return cells_table(title, headings, map(cells, same_depth(rows)))


def _p(row: Row) -> str:
    return f"{row['p_value']:.1g}" if "p_value" in row else ""


def _two(row: Row, column: str) -> str:
    return two_decimals(row[column]) if column in row else ""


def _range(row: Row, of: str) -> str:
    return " to ".join(two_decimals(end) for end in ends(row, of) or ())


AGREEMENT = Schema("agreement", "a row per pair of runs, pair of layers and statistic", (
    text("model_a", "The first run."), whole("layer_a", "Its layer."),
    text("model_b", "The second run."), whole("layer_b", "Its layer."),
    text("matching", "How neurons are paired: index or correlation."),
    text("same_depth", "Whether the two layers are of the same relative depth: yes or no."),
    text("statistic", "What is measured of the two rankings."),
    value("Its value"),
    number("p_value", "Share of the null's draws that agree at least as much, corrected for the pairs of layers."),
    number("p_uncorrected", "The same without the correction."),
    Column("chance", float, "Mean agreement by chance; chance_low, chance_high: 95% of it.", form=".3f",
           interval="chance"),
    text("null", "What chance is."),
    whole("n_neurons", "Number of neurons."),
    whole("n_no_signal", "Number of neurons with the flag no-signal in either run."),
))  # fmt: skip

ACCURACIES = Schema("accuracies", "a row per run and layer", (
    text("model", "The run."), layer_column(), ACCURACY["accuracy"],
    number("majority_accuracy", "Accuracy of always predicting the most frequent class of training.", "majority"),
    ACCURACY["flag"],
))  # fmt: skip

NEURONS = Schema(
    "neurons",
    "a row per pair of runs, pair of layers of the same relative depth, and neuron of the first run, by rank", (
    text("model_a", "The first run."), whole("layer_a", "Its layer."),
    whole("rank_a", "Rank of the neuron in the first run.", "rank in a"),
    whole("neuron_a", "Index of the neuron in the first run.", "neuron of a"),
    number("contribution_a", "Its contribution in the first run.", "contribution in a", ".4f"),
    text("model_b", "The second run."), whole("layer_b", "Its layer."),
    whole("neuron_b", "Index of its match in the second run; none for a neuron without a match.", "match in b"),
    whole("rank_b", "Rank of the match in the second run.", "rank in b"),
    number("contribution_b", "Contribution of the match in the second run.", "contribution in b", ".4f"),
    number("correlation", "Correlation of the neuron and its match on sentences that were not used for the matching, "
           "times its sign in the matching.", form=".2f"),
    number("chance", "The same by chance: of a match that is drawn at random, or, where it is higher, of the matches "
           "in random bases of the second run.", "by chance", ".2f"),
))  # fmt: skip
_NEURONS_SHOWN = (
    "rank_a", "neuron_a", "contribution_a", "neuron_b", "rank_b", "contribution_b", "correlation", "chance",
)  # fmt: skip

_OF_A_RUN: dict[str, Type] = {"neuron": int, "rank": int, "layer": layer_number}


def _of_a_run(name: str) -> Type | None:
    run, _, of = name.rpartition(" ")
    return _OF_A_RUN.get(of) if run else None


TOP_EVERYWHERE = Schema("top_everywhere", "a row per neuron that is among the first of every run", (
    layer_column("Its layer in the first run."),
    whole("neuron", "Index of the neuron in the first run."),
    whole("rank", "Its rank in the first run."),
    text("no_signal", "Runs in which the neuron has the flag no-signal.", "no signal in", may_be_empty=True),
    number("p_value", "Largest share, over the runs, of the rankings under shuffled labels that have it at the top.",
           "p", ".2g"),
), further=_of_a_run)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# The agreement of the rankings of runs on a page, pair by pair, and what its headings mean.
# --------------------------------------------------------------------------------------------------------------------

TERMS: Terms = {
    "layers": "A layer of the first run and a layer of the second, at the same relative depth; ° marks pairs with "
    "an uninformative ranking.",
    "top overlap": "Share of the first neurons of one ranking that are, or are matched to, first neurons of the other. "
    "In the map: overlap of the top.",
    "by chance": "The range in which the number to its left lies in 95 of 100 cases if the rankings have nothing in "
    "common: one of them is permuted, or computed in a random basis of the same space.",
    "Spearman": "Spearman's correlation of the two rankings over all neurons: 1 for the same order, 0 for "
    "unrelated orders.",
    "95% range": "Interval of Spearman's correlation over bootstrap samples of test sentences.",
    "p": "Probability that chance gives as large an overlap, or a correlation as high, corrected for all pairs of "
    "layers; the range by chance is that of a single pair.",
    "match": "Correlation of matched neurons on sentences that were not used for the matching.",
    "CKA": "Linear centred kernel alignment: how alike the two layers are as a whole, whatever their neurons; 1 where "
    "one is a rotation of the other.",
    **NEURONS.terms(_NEURONS_SHOWN),
    "correlation": f"{NEURONS['correlation'].meaning} ° marks correlations no higher than by chance.",
    "layer, neuron, rank": "Layer, neuron and rank in the first run of a neuron that is at the top of every run; "
    "with the name of a run, those of its match in that run.",
}

CELL_WIDTH, CELL_HEIGHT = 34, 24
LEFT, BOTTOM = 46, 38
# Width of a letter of a name, of which so many are shown at most.
LETTER, LONGEST = 6.4, 24
# From this shade on, numbers are written in the colour of the page's background.
STRONG = 0.6


def heat_map(
    values: Mapping[tuple[int, int], float], titles: Mapping[tuple[int, int], str], names: tuple[str, str], title: str,
    marked: Collection[tuple[int, int]] = (),
) -> Html:  # fmt: skip
    """Return a grid of cells, the first run's layers upwards, by the second run's, shaded from 0 to 1."""
    down, across = (sorted({layers[side] for layers in values}) for side in (0, 1))
    # Beside few cells the names of the axes are longer than these, and the map gets room for them.
    upwards, along = (f"layer of {shortened(name, LONGEST)}" for name in names)
    top = max(0.0, LETTER * len(upwards) - CELL_HEIGHT * len(down))
    foot = top + CELL_HEIGHT * len(down)
    long = max(CELL_WIDTH * len(across), LETTER * len(along))
    width, height = LEFT + long + 4, foot + BOTTOM + 4
    cells = [
        _cell(
            values[layers],
            "*" * (layers in marked),
            titles[layers],
            across.index(layers[1]),
            foot - CELL_HEIGHT * (1 + down.index(layers[0])),
        )
        for layers in sorted(values)
    ]
    labels = [(layer, LEFT - 7.0, foot - (i + 0.5) * CELL_HEIGHT + 4, "end") for i, layer in enumerate(down)]
    labels += [(layer, LEFT + (j + 0.5) * CELL_WIDTH, foot + 15, "middle") for j, layer in enumerate(across)]
    svg = element(
        "svg", element("title", f"{title}, layers of {names[0]} by layers of {names[1]}"), *cells,
        *(element("text", layer, x=x, y=y, text_anchor=anchor) for layer, x, y, anchor in labels),
        element("text", along, x=LEFT + long / 2, y=height - 4, text_anchor="middle"),
        element("text", upwards, transform=f"translate(12 {foot / 2:g}) rotate(-90)", text_anchor="middle"),
        viewBox=f"0 0 {width:g} {height:g}", role="img", class_="chart heat", style=f"width:{width:g}px",
    )  # fmt: skip
    return element("figure", element("figcaption", title), svg, class_="heat-map")


def _cell(value: float, mark: str, title: str, column: int, y: float) -> Html:
    x = LEFT + column * CELL_WIDTH
    shade = min(max(value, 0.0), 1.0)
    text, look = two_decimals(value).replace("0.", ".", 1) + mark, "on-strong" if shade > STRONG else None
    width, height = CELL_WIDTH - 1, CELL_HEIGHT - 1
    return element(
        "g",
        element("title", title),
        element("rect", x=x, y=y, width=width, height=height, fill_opacity=f"{shade:.2f}", class_="cell"),
        element("text", text, x=x + width / 2, y=y + 16, text_anchor="middle", class_=look),
    )


# Statistics that are drawn, and their names.
MAPS = {"spearman": "Spearman of the rankings", "overlap": "overlap of the top", "cka": "linear CKA"}


SENTENCES = {
    "map": "Each cell compares two layers; pointing at a cell shows the range by chance and the interval over "
    "bootstrap samples of test sentences. * marks agreement above chance (p ≤ {share}, corrected for all pairs of "
    "layers).",
}


def agreement_section(result: Result, anchor: str) -> Html:
    """Return the section on the agreement of rankings, pair by pair."""
    return element(
        "section",
        element("h2", "Agreement of the rankings"),
        element("ul", *(element("li", line) for line in result.results["said"])),
        element("p", SENTENCES["map"].format(share=ALPHA)),
        *(_pair(result, rows) for rows in result.agreement.by("model_a", "model_b").values()),
        *folded(everywhere_tables(result.top_everywhere)),
        id=anchor,
    )


def _pair(result: Result, rows: Table) -> Html:
    names = rows[0]["model_a"], rows[0]["model_b"]
    by_statistic, drawn = rows.by("statistic"), []
    for statistic, title in MAPS.items():
        if statistic in by_statistic:
            row_of = {(row["layer_a"], row["layer_b"]): row for row in by_statistic[statistic]}
            titles = {layers: _cell_title(row) for layers, row in row_of.items()}
            above = [layers for layers, row in row_of.items() if _is_above_chance(row)]
            values = {layers: row["value"] for layers, row in row_of.items()}
            drawn.append(heat_map(values, titles, names, title, above))
    aligned = as_in_terminal(_agreement_table(rows, unread_layers(result.accuracies.by("model"))))
    first = neurons_tables(result.neurons.where(model_a=names[0], model_b=names[1]), result.results["shown_layers"])
    return element(
        "section",
        element("h3", f"{names[0]} and {names[1]}, neurons matched by {rows[0]['matching']}"),
        element("div", *drawn, class_="heat-maps"),
        element("details", element("summary", "Layers of the same relative depth, as numbers"), aligned),
        *framed(first),
    )


def _cell_title(row: Row) -> str:
    parts = {"95% range": interval(row, "", " to "), "by chance": interval(row, "chance", " to ")}
    parts |= {"p =": f"{row['p_value']:.2g}"} if "p_value" in row else {}
    value = f"layers {row['layer_a']} and {row['layer_b']}: {row['value']:.3f}"
    return ", ".join([value, *(f"{words} {part}" for words, part in parts.items() if part)])


# --------------------------------------------------------------------------------------------------------------------
# Tables of `compare` of runs of `finetune`, and their sentences: scores of recipes, and options that differ.
# --------------------------------------------------------------------------------------------------------------------

# What `results.json` has under `compared` where the runs are of `finetune`.
TUNINGS = "tunings"
# Whether tunings are held against each other one by one, and which run is better.
PAIRED, INDEPENDENT = "paired", "independent"
FIRST, SECOND, EQUAL, UNRESOLVED, UNKNOWN = "a", "b", "equal", "unresolved", "unknown"

_STARTS = {
    PRETRAINED: "tuned from the pretrained model",
    RANDOM: "tuned from the randomly initialised model",
    SHUFFLED: "tuned on shuffled labels",
}

RECIPES = Schema("recipes", "a row per pair of runs of `finetune` and start", (
    text("run_a", "The first run.", "first run (a)"), text("run_b", "The second run.", "second run (b)"),
    text("start", "From where the models start, as in `tunings.csv` of the runs.", labels=SHORT),
    text("draws", f"Whether tunings are compared at the same seed and order (`{PAIRED}`), or, where those of neither "
         f"run are all among those of the other, as draws of their own (`{INDEPENDENT}`)."),
    whole("tunings_a", "Number of tunings of the first run that are compared.", "tunings of a"),
    whole("tunings_b", "The same of the second run.", "tunings of b"),
    number("score_a", "Mean accuracy of these tunings of the first run on test examples; R² of numbers.", "score of a"),
    number("score_b", "The same of the second run.", "score of b"),
    number("difference", "The first score less the second, with its interval over other seeds, orders and test "
           "sentences.", "a less b", form="+.3f", interval=""),
    text("verdict", f"Which run is better: `{FIRST}` or `{SECOND}` where the interval leaves out 0; `{UNRESOLVED}` "
         f"where it does not; `{EQUAL}` where both have the same score on every test cluster, a sentence or a "
         f"document; `{UNKNOWN}` without an interval."),
), optional=True)  # fmt: skip
OPTIONS = Schema("options", "a row per option of `finetune` that differs, and run", (
    text("option", "Name of the option. Of texts, only those count whose sentences differ, wherever they are."),
    text("run", "The run."),
    text("setting", "Its value there.", may_be_empty=True),
), optional=True)  # fmt: skip

_SHOWN = "start", "tunings_a", "tunings_b", "score_a", "score_b", "difference*", "verdict"
RECIPE_TERMS = RECIPES.terms(_SHOWN) | OPTIONS.terms(("option",))


def level_of(n_pairs: int) -> float:
    """Return the level of each pair's interval for joint coverage of all pairs (Bonferroni)."""
    return 1 - (1 - LEVEL) / n_pairs


def verdict_of(row: Row, is_equal: bool) -> str:
    """Return the better run by the interval of the difference; `is_equal` if scores agree on every test cluster."""
    if is_equal:
        return EQUAL
    if ends(row) is None:
        return UNKNOWN
    return {1: FIRST, -1: SECOND, 0: UNRESOLVED}[sign_of_interval(row)]


def answer(rows: Sequence[Row], results: Mapping[str, Any]) -> list[str]:
    """Return the better run for each pair of runs and start, from `recipes.csv`."""
    return [_recipe_verdict(row, score_words(results["numbers"]), results["examples"]) for row in rows]


def _recipe_verdict(row: Row, score: str, examples: str) -> str:
    a, b, verdict, start = row["run_a"], row["run_b"], row["verdict"], _STARTS[row["start"]]
    if verdict == EQUAL:
        return say("equal_recipes", a=a, b=b, start=start)
    difference, apart = row["difference"], ends(row)
    if apart is None:
        return say(
            "unknown_recipes", a=a, b=b, start=start, difference=shown(difference, "+.3f"), score=score,
            least=MIN_SENTENCES,
        )  # fmt: skip
    if verdict == SECOND:
        difference, apart = -difference, (-apart[1], -apart[0])
    values = {
        "start": start, "score": score, "examples": examples, "difference": shown(difference, "+.3f"),
        "low": shown(apart[0], "+.3f"), "high": shown(apart[1], "+.3f"),
    }  # fmt: skip
    if verdict == UNRESOLVED:
        return say("unresolved_recipes", a=a, b=b, **values)
    better, worse = (a, b) if verdict == FIRST else (b, a)
    return say("better_recipe", better=better, worse=worse, **values)


def conclusions(rows: Sequence[Row], options: Sequence[Row], results: Mapping[str, Any]) -> list[str]:
    """Return the options in which the runs differ, the pairing of their tunings, and the scope of intervals."""
    pairs = Table(rows).by("run_a", "run_b")
    lines = [_options(Table(options))]
    lines += [_draws(a, b, of_pair, results["n_tunings"]) for (a, b), of_pair in pairs.items()]
    if len(pairs) > 1:
        lines.append(say("several_recipes", level=level_of(len(pairs)), n=len(pairs)))
    over = results["intervals_over"]
    return [line for line in (*lines, few_sentences(over["n"], f"test {over['unit']}")) if line]


def _options(rows: Table) -> str:
    by_option = {
        name: "; ".join(f"{row['run']}: {row['setting'] or 'none'}" for row in of_option)
        for name, of_option in rows.by("option").items()
    }
    if not by_option:
        return say("options_same")
    return say("options_differ", options=listed([f"{name} ({settings})" for name, settings in by_option.items()]))


def _draws(a: str, b: str, rows: Sequence[Row], n_tunings: Mapping[str, Mapping[str, int]]) -> str:
    if rows[0]["draws"] == INDEPENDENT:
        return say("independent_tunings", a=a, b=b)
    excluded = [
        f"{n} of {run}"
        for run, side in ((a, "a"), (b, "b"))
        if (n := sum(n_tunings[run][row["start"]] - row[f"tunings_{side}"] for row in rows))
    ]
    more = f"; left out are the tunings that only one has, {listed(excluded)}" if excluded else ""
    return say("paired_tunings", a=a, b=b, left_out=more)


def recipe_tables(rows: Table, options: Table) -> list[Any]:
    """Return the scores of each pair of runs, and the options that differ, as rich tables."""
    tables = [
        shown_table(RECIPES, of_pair, f"Scores of {a} (a) and {b} (b) on the same test part", _SHOWN)
        for (a, b), of_pair in rows.by("run_a", "run_b").items()
    ]
    if options:
        runs = options.values("run")
        settings = {
            name: {row["run"]: row["setting"] for row in of_option} for name, of_option in options.by("option").items()
        }
        cells = ([name, *(of_run[run] for run in runs)] for name, of_run in settings.items())
        tables.append(cells_table("Options that differ", ["option", *runs], cells, words=["option", *runs]))
    return tables


def options_of(config: Mapping[str, Any], excluded: Sequence[str]) -> dict[str, str]:
    """Return the options of a run as text by name, of groups as `group.name`, without the excluded options."""
    options: dict[str, str] = {}
    for name, setting in config.items():
        if isinstance(setting, dict):
            options |= {f"{name}.{inside}": inner for inside, inner in options_of(setting, ()).items()}
        elif name not in excluded:
            options[name] = "" if setting is None else str(setting)
    return options


def differing(options: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows of `options.csv`, from the options of each run."""
    names = dict.fromkeys(name for of_run in options.values() for name in of_run)
    return [
        {"option": name, "run": run, "setting": of_run.get(name, "")}
        for name in names
        if len({of_run.get(name, "") for of_run in options.values()}) > 1
        for run, of_run in options.items()
    ]
