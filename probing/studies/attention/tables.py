"""Schemas, views and charts of `attention`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from probing.results import (
    Column,
    NamedLayer,
    Row,
    Schema,
    Table,
    View,
    count,
    estimate,
    grouped_table,
    in_brackets,
    interval,
    label_of_class,
    number,
    shown_table,
    text,
    whole,
)
from probing.tables.figures import Chart, Line, Panel, by_name, linear
from probing.tables.heads import CLASSES, SPECIAL, Tables, name_of, of_heads, of_measure, rows_of
from probing.tables.schema import HEAD, block, value

_N = whole("n", "Number of sentences that are measured; with `--pairs`, of pairs.")

_MEASURE = text("measure", "The measure.")

_TO = text("to", "Type of the tokens that receive the attention, if the measure has one.", "type of token")

_P = number("p_value", "p-value, corrected for the rows that are tested together.")

HEADS = Schema("heads", "a row per head, measure and type of tokens", (
    block(), HEAD, _MEASURE, _TO, value("Its value"), _N,
), optional=True)  # fmt: skip

ATTENTION_LAYERS = Schema("attention_layers", "a row per layer, measure and type of tokens, as means over heads", (
    block(), _MEASURE, _TO, value("Its value"), _N,
), optional=True)  # fmt: skip

ATTENTION_CLASSES = Schema("attention_classes", "a row per head and factor of the thresholds", (
    block("Number of the block; in rows with `all`, the share of each class among the maps of all heads."), HEAD,
    number("factor", "Factor of the thresholds: 1, 0.75 or 1.25.", form=".2f"),
    number("v", "Mean of the vertical score over maps."),
    number("d", "Mean of the diagonal score over maps."),
    number("b", "Mean of the block score over maps, with `--pairs`."),
    number("b_moved", "Mean of the block score with the boundary of each pair moved."),
    Column("class", label_of_class, "Class of most of the head's maps."),
    Column("share", float, "Share of its maps that are of this class; low, high: its 95% interval.", interval=""),
    _N,
    number("class_entropy", "Entropy of the classes of its maps, in nats."),
    estimate("share_moved", "Share of block maps with the boundary moved."),
), optional=True)  # fmt: skip

ROLLOUT = Schema("rollout", "a row per layer, kind of token and measure", (
    block("Layer whose vectors are traced."),
    text("query", "Tokens whose vectors are traced: words or special tokens."),
    text("measure", "self, special_tokens, previous, next, others, distance or entropy."),
    value("Its value"), _N,
    number("uniform", "The value under uniform attention."),
), optional=True)  # fmt: skip

SIMILARITY = Schema("similarity", "a row per measure and pair of heads or of layers", (
    text("measure", "jensen_shannon of two heads, or cosine, cosine_of_means, cosine_matched of two layers."),
    block(), HEAD,
    whole("other_layer", "Number of the other block."),
    whole("other_head", "Number of the other head."),
    value("Its value"), whole("n", "Number of queries, of cosines of sentences."),
), optional=True)  # fmt: skip

_RELATION = text("relation", "Dependency relation.")

_QUERY = text("query", "Side of the arc that attends: dependent or head; selected on the training part.", "from")

_COUNTS = (
    whole("n_train", "Number of arcs, words or examples of the training part."),
    whole("n_test", "Number of arcs or words of the test part."),
)

_OF_RELATION = (
    number("train", "Accuracy on the training part."),
    estimate("test", "Accuracy on the test part.", "accuracy"),
    whole("offset", "The best fixed offset.", form="+d"),
    number("offset_train", "Accuracy of the offset on the training part."),
    estimate("offset_test", "Accuracy of the offset on the test part.", "its accuracy"),
    estimate("difference", "Accuracy of the head minus accuracy of the offset.", form="+.3f"),
    _P,
    number(
        "difference_permuted",
        "Mean difference if syntactic heads are permuted among a sentence's dependents: also "
        "found by a head that attends to words which head many others.",
        "if permuted",
        "+.3f",
    ),
    number(
        "p_permuted",
        "p-value that the difference is larger than with permuted syntactic heads, corrected.",
        "p beyond permuted",
    ),
)

_UNTRAINED = estimate("untrained", "Accuracy of a randomly initialised model.", "randomly initialised")

RELATIONS = Schema("relations", "a row per dependency relation", (
    _RELATION, *_COUNTS, _QUERY, block("Block of the head, chosen on train."), HEAD, *_OF_RELATION, _UNTRAINED,
), optional=True)  # fmt: skip

HEAD_RELATIONS = Schema("head_relations", "a row per head, with its best relation", (
    block(), HEAD, _RELATION, _QUERY, *_COUNTS, *_OF_RELATION,
), optional=True)  # fmt: skip

TREES = Schema("trees", "a row per head, and of the probe of all heads", (
    text("measure", "uuas of a head's trees, or uas of the probe of all heads.", labels={
        "uuas": "edges in the tree of the selected head", "uas": "syntactic heads by a probe of all attention heads",
    }),
    block("Number of the block; `all` for the probe."), HEAD,
    text("chosen", "yes for the best head on train."),
    *_COUNTS,
    number("train", "Accuracy on the training part."),
    estimate("test", "Accuracy on the test part.", "accuracy"),
    estimate("baseline", "Accuracy of the best simple tree."),
    estimate("difference", "Accuracy minus accuracy of the baseline."),
    _P, _UNTRAINED,
    whole("offset", "Offset of the baseline of the probe."),
    number("optimality_gap", "By how many nats, at most, the probe's objective is above its minimum.", form=".1e"),
), optional=True)  # fmt: skip

ROLES = Schema("roles", "a row per role, side that attends and head", (
    text("role", "Semantic role; all for all links together."),
    text("query", "Side that attends: predicate or filler."),
    block(), HEAD,
    Column("score", float, "Mean attention of linked words; low, high: its 95% interval.", interval=""),
    number("unlinked", "Mean of similar unlinked pairs of other sentences."),
    number("z", "Distance of the score from the mean of unlinked pairs, in standard deviations of the draws."),
    number("p_value", "p-value against draws of all links of a predicate together."),
    whole("n", "Number of links that are compared."),
    whole("n_unmatched", "Number of links without similar unlinked pairs."),
), optional=True)  # fmt: skip

CHANGE = Schema("change", "with `--against`, a row per measure and head, layer or matrix", (
    text("measure", "cosine, jensen_shannon, hidden_states or parameters; as published also cosine_as_published."),
    text("of", "same, other heads, other sentences, other tokens, or the name of a matrix."),
    block(), HEAD, value("Its value"), whole("n", "Number of sentences, or of tokens, of the mean."),
), optional=True)  # fmt: skip

FUSION = Schema("fusion", "with `--parts fusion`, a row per task, fusion of layers and measure", (
    text("task", "upos, deprel or position."),
    text("fusion", "layer for a single one, equal, max, concat or gate."),
    text("measure", "accuracy, difference, cosine or weight."),
    block("Number of the layer."),
    text("chosen", "yes for the best layer on validation sentences."),
    text("against", "Baseline of a difference: last layer, best layer or equal."),
    value("Its value"), _P,
    whole("n_train", "Number of training examples."),
    whole("n", "Number of test examples, of cosines of sentences."),
    number("optimality_gap", "By how many nats, at most, the objective is above its minimum.", form=".1e"),
    text("converged", "Whether the training of the fusion ended: yes or no."),
), optional=True)  # fmt: skip

_OFFSET = whole("offset", "Offset that the head attends to, chosen on training sentences.", form="+d")


def _beside(of: str, what: str, heading: str) -> tuple[Column, ...]:
    return (
        number(of, f"{what} of the neurons' use with the run's contributions.", heading, ".2f"),
        number(f"{of}_heads", "Mean of this correlation over the other heads of the block."),
        number(f"{of}_heads_p", "p-value by rank."),
        number(f"{of}_bases", "Mean of this correlation over random bases."),
        number(f"{of}_bases_p", "p-value by rank."),
    )


POSITION_HEADS = Schema("position_heads", "with `--run`, a row per head", (
    block(), HEAD, _OFFSET,
    text("position_head", "Whether it is a position head: yes or no."),
    estimate("mass", "Attention at the offset.", "all keys", ".2f"),
    estimate("word_mass", "Attention at the offset, among words alone.", "words", ".2f"),
    estimate("hit", "Share of queries whose largest attention is at the offset.", "most", ".2f"),
    estimate(
        "told", "With the words permuted, attention to the word at the offset in the permuted order.", "permuted",
        ".2f",
    ),
    estimate(
        "told_true", "With the words permuted, attention to the word at the offset in the original order.", "original",
        ".2f",
    ),
    whole("n", "Number of sentences."),
    estimate("contrast", "Score of the key at the offset minus the mean score of all words, in logits.", form=".2f"),
    estimate("position_part", "Part of the contrast that comes from position, in logits.", "positions", ".2f"),
    estimate("bias_part", "Part of the contrast that comes from a bias of relative positions, in logits."),
    *_beside("spearman", "Spearman's correlation", "Spearman"),
    *_beside("partial", "Spearman's partial correlation", ""),
), optional=True)  # fmt: skip

POSITION_NEURONS = Schema("position_neurons", "a row per position head, and per clearest head, and neuron", (
    block(), HEAD, _OFFSET,
    whole("rank", "Rank by use."), whole("neuron", "Index of the neuron."),
    number("use", "How much the head's position part uses the neuron, in logits."),
    number("by_query", "Part of the query."), number("by_key", "Part of the key."),
    number("position_part", "Sum of both parts."),
    number("contribution", "Contribution in the run."),
    number("contribution_centred", "Centred contribution in the run."),
    number("eta_squared", "Eta squared in the run."),
    number("sd_of_positions", "Standard deviation of the neuron's means by position."),
    number("sd_of_steps", "Standard deviation of the differences of these means between neighbouring positions."),
), optional=True)  # fmt: skip


def _ablated_columns(of: str, what: str, heading: str) -> tuple[Column, ...]:
    return (
        number(of, f"{what} in the intact model.", heading, ".2f"),
        number(f"{of}_held", "The same with the neurons replaced by their mean.", "ablated", ".2f"),
        number(f"{of}_random", "The same, mean of random sets.", "random", ".2f"),
        number(f"{of}_random_p", "p-value compared with these sets, by rank."),
        number(f"{of}_matched", "The same, mean of sets matched in standard deviation.", "matched", ".2f"),
        number(f"{of}_matched_p", "p-value compared with these sets, by rank.", "p", ".2f"),
    )


POSITION_REMOVAL = Schema("position_removal", "a row per position head, ranking and number of neurons", (
    block(), HEAD, _OFFSET,
    text("ranking", "Ranking whose first neurons are replaced by their mean.",
         labels={"contribution_centred": "centred", "eta_squared": "eta"}),
    whole("k", "Number of neurons."), text("neurons", "The neurons."),
    *_ablated_columns("contrast", "Contrast of the word at the offset, in logits,", ""),
    *_ablated_columns("word_mass", "Attention at the offset among words", "words"),
), optional=True)  # fmt: skip

# Tables of the page.
VIEWS = (
    View(
        RELATIONS,
        ("relation", "n_test", "query", "layer", "head", "test*", "offset", "offset_test", "difference*", "p_value",
         "difference_permuted", "p_permuted", "untrained"),
        "Dependency relations: the best head, selected on the training part, compared with the best fixed offset",
    ),
    View(
        TREES, ("measure", "layer", "head", "test*", "baseline", "p_value", "untrained"),
        "Trees: the baseline is the chain of neighbours for edges, and the best fixed offset for syntactic heads",
        where={"chosen": ("yes", None)},
    ),
)  # fmt: skip

SCHEMAS = (
    HEADS, ATTENTION_LAYERS, ATTENTION_CLASSES, ROLLOUT, SIMILARITY, RELATIONS, HEAD_RELATIONS, TREES, ROLES, CHANGE,
    FUSION, POSITION_HEADS, POSITION_NEURONS, POSITION_REMOVAL,
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Tables of the terminal: a row per layer, type of token or task, and a column for each measure.
# --------------------------------------------------------------------------------------------------------------------

# Functions from rows of a group to the text of a cell, by heading.
Cells = Mapping[str, Callable[[Table], str]]

PROFILE = ("entropy", "distance", "self", "previous", "next")
# Measures of a layer by their headings, each with its type of token.
_OF_LAYERS = {
    **{name: (name, "") for name in PROFILE},
    SPECIAL: ("mass", SPECIAL), "lift": ("lift", SPECIAL), "by norm": ("norm_mass", SPECIAL),
}  # fmt: skip
# Shares of a vector, with their headings and their names in a sentence.
SHARES = {
    "self": ("itself", "the word's own token"), "special_tokens": ("special tokens", "special tokens"),
    "previous": ("previous", "the previous token"), "next": ("next", "the next token"),
    "others": ("others", "all other tokens"),
}  # fmt: skip
# Comparisons of two checkpoints by their headings: the measure, and with what each head or layer is compared.
SAME = "same"
CHANGES = {
    "maps": ("cosine", SAME), "other heads": ("cosine", "other heads"),
    "other sentences": ("cosine", "other sentences"),
    "Jensen-Shannon": ("jensen_shannon", SAME), "as published": ("cosine_as_published", SAME),
    "hidden states": ("hidden_states", SAME), "other tokens": ("hidden_states", "other tokens"),
}  # fmt: skip
# The fusions in the order of tables and figures, with their headings; the mean of the layers has nothing to learn.
FUSIONS = {"equal": "mean", "concat": "concat", "max": "max", "gate": "gate"}
BASELINES = {"last layer": "last layer", "best layer": "best layer", "equal": "mean"}
# Sentences and a table are about the largest measured number of ablated neurons up to this number.
_MOST_ABLATED = 10


def tables(by_name: Tables) -> list[Any]:
    """Return the non-empty tables of the terminal as rich tables."""
    layers, heads, fused = (rows_of(by_name, name) for name in ("attention_layers", "heads", "fusion"))
    lifts, words = heads.where(measure="lift"), rows_of(by_name, "rollout").where(query="words")
    statistics = layers.where(lambda row: (row["measure"], row.get("to", "")) in _OF_LAYERS.values())
    changed = layers_of_changes(rows_of(by_name, "change"))
    compared = changed.where(lambda row: (row["measure"], row["of"]) in CHANGES.values())
    classes = of_heads(by_name)
    grouped: list[tuple[Schema, list[Table], str, list[str], Cells]] = [
        (ATTENTION_CLASSES, _by_layer(classes), _title_of_classes(classes), ["layer"],
         {heading: partial(_heads_of_class, name) for name, heading in CLASSES.items()}),
        (ATTENTION_LAYERS, _by_layer(statistics), "Attention of each layer, mean over its heads and all queries",
         ["layer"], {heading: partial(_value, *which) for heading, which in _OF_LAYERS.items()}),
        (HEADS, [heads.where(to=name) for name in (lifts.values("to") if lifts else ())],
         "For each type of token, the head with the most attention to it", ["to"], _OF_TYPES),
        (ROLLOUT, _by_layer(words),
         "Rollout: which tokens the vectors of words are composed of (under uniform attention)", ["layer"],
         {heading: partial(_share, name) for name, (heading, _) in SHARES.items()}),
        (CHANGE, _by_layer(compared),
         "Cosines between the two checkpoints (Jensen-Shannon divergence in nats), mean over heads", ["layer"],
         {heading: partial(_change, *which) for heading, which in CHANGES.items()}),
        (FUSION, _groups(fused.where(measure="accuracy"), "task"),
         "Fusion of layers: accuracy of linear probes on test sentences", ["task"], _ACCURACIES),
        (FUSION, _groups(fused.where(measure="difference"), "task", "fusion"),
         "Differences of accuracies in points, with 95% intervals", ["task", "fusion"],
         {f"from the {heading}": partial(_points_from, name) for name, heading in BASELINES.items()}),
    ]  # fmt: skip
    of_groups = [grouped_table(*of) for of in grouped if of[1]]
    return [*of_groups, *_position_tables(by_name)]


def _by_layer(rows: Table) -> list[Table]:
    return [of for _, of in sorted(rows.by("layer").items())] if rows else []


def _groups(rows: Table, *columns: str) -> list[Table]:
    return [*rows.by(*columns).values()] if rows else []


def _title_of_classes(rows: Table) -> str:
    if not rows:
        return ""
    of_pairs = "b" in rows[0]
    over = count(rows[0]["n"], "pair of sentences" if of_pairs else "sentence", "pairs of sentences" * of_pairs)
    return f"Heads by the class of most of their maps, over {over}"


def _heads_of_class(name: str, rows: Table) -> str:
    of_class = rows.where(**{"class": name})
    return ", ".join(map(str, of_class.column("head"))) if of_class else ""


def _value(measure: str, to: str, rows: Table) -> str:
    return "".join(f"{row['value']:.2f}" for row in of_measure(rows, measure, to))


def _share(measure: str, rows: Table) -> str:
    return "".join(f"{row['value']:.3f} ({row['uniform']:.3f})" for row in rows.where(measure=measure))


def _change(measure: str, of: str, rows: Table) -> str:
    return "".join(cosine_text(row["value"]) for row in rows.where(measure=measure, of=of))


def cosine_text(value: float) -> str:
    """Return a number with three decimals; a number just below 1 is not rounded to 1."""
    return "above 0.9995" if 0.9995 <= value < 1 else f"{round(value, 3) + 0.0:.3f}"


def _most_attending(rows: Table) -> Row:
    return max(rows.where(measure="mass"), key=lambda row: row["value"])


def _of_most_attending(measure: str, form: str, rows: Table) -> str:
    best = _most_attending(rows)
    same_head = rows.where(measure=measure, layer=best["layer"], head=best["head"])
    return "".join(format(row["value"], form) for row in same_head)


def _mass_if_uniform(rows: Table) -> str:
    best = _most_attending(rows)
    lifts = rows.where(measure="lift", layer=best["layer"], head=best["head"])
    return "".join(f"{best['value'] / lift['value']:.1%}" for lift in lifts if lift["value"])


_OF_TYPES: Cells = {
    "if uniform": _mass_if_uniform, "head": lambda rows: name_of(_most_attending(rows)),
    "mass": partial(_of_most_attending, "mass", ".3f"), "95% interval": lambda rows: interval(_most_attending(rows)),
    "lift": partial(_of_most_attending, "lift", ".2f"), "by norm": partial(_of_most_attending, "norm_mass", ".3f"),
}  # fmt: skip


def last_layer(rows: Table) -> Row:
    """Return the row of the last single layer among rows of fusions."""
    return max(rows.where(fusion="layer"), key=lambda row: row["layer"])


def best_layer(rows: Table) -> Row:
    """Return the row of the layer that is best on validation sentences."""
    return rows.where(chosen="yes")[0]


def _accuracy(fusion: str, rows: Table) -> str:
    return "".join(f"{row['value']:.3f}" for row in rows.where(fusion=fusion))


_ACCURACIES: Cells = {
    "last layer": lambda rows: f"{last_layer(rows)['value']:.3f}",
    "best layer": lambda rows: "{value:.3f} (layer {layer})".format_map(best_layer(rows)),
    **{heading: partial(_accuracy, name) for name, heading in FUSIONS.items()},
}  # fmt: skip


def _points_from(baseline: str, rows: Table) -> str:
    return "".join(points(row) for row in rows.where(against=baseline))


def points(row: Row, *more: str) -> str:
    """Return a difference of accuracies in points, with its interval and what else is in brackets."""
    between = interval(row, between=" to ", form="+.1f", times=100)
    return f"{100 * row['value']:+.1f}{in_brackets(between, *more)}"


def _position_tables(by_name: Tables) -> list[Any]:
    heads = {name_of(row): row for row in (*position_heads(by_name), *examined_heads(by_name)) if "mass" in row}
    rows, ablated = _clearest_first(Table(heads.values())), ablated_neurons(by_name)
    shown = []
    if rows:
        columns = ["mass", "word_mass", "hit", "told", "told_true", "contrast", "position_part", "spearman", "partial"]
        present = [name for name in columns if any(name in row for row in rows)]
        title = "Heads that attend to a fixed offset most (position heads are marked *)"
        cells = {"head": lambda row: f"{name_of(row)}{' *' * (row['position_head'] == 'yes')}"}
        shown.append(shown_table(POSITION_HEADS, rows, title, ["head", "offset", *present], cells=cells))
    if ablated:
        columns = [f"{of}{kind}" for of in ("contrast", "word_mass")
                   for kind in ("", "_held", "_random", "_matched", "_matched_p")]  # fmt: skip
        title = (
            f"First {ablated[0]['k']} neurons of a ranking replaced by their mean in the queries and keys of one head"
        )
        names = ["head", "ranking", *columns]
        shown.append(shown_table(POSITION_REMOVAL, ablated, title, names, cells={"head": name_of}))
    return shown


def position_heads(by_name: Tables) -> Table:
    """Return the rows of position heads, the clearest first."""
    return _clearest_first(rows_of(by_name, "position_heads").where(position_head="yes"))


def examined_heads(by_name: Tables) -> Table:
    """Return the rows of the heads whose neurons are reported, the clearest first."""
    names = {name_of(row) for row in rows_of(by_name, "position_removal")}
    return _clearest_first(rows_of(by_name, "position_heads").where(lambda row: name_of(row) in names))


def _clearest_first(rows: Table) -> Table:
    return Table(sorted(rows, key=lambda row: -row.get("word_mass", 0.0)), rows.schema)


def ablated_neurons(by_name: Tables) -> Table:
    """Return the rows of the largest number of ablated neurons that tables and sentences are about."""
    rows = rows_of(by_name, "position_removal")
    sizes = sorted(rows.values("k"))
    return rows.where(k=max((k for k in sizes if k <= _MOST_ABLATED), default=sizes[0])) if sizes else rows


def layers_of_changes(rows: Sequence[Row], measure: str | None = None, of: str = SAME) -> Table:
    """Return the rows of `change.csv` about whole layers; of one measure and one comparison, if a measure is given."""
    of_layers = Table(rows).where(lambda row: row.get("head") is None and row.get("layer") is not None)
    return of_layers if measure is None else of_layers.where(measure=measure, of=of)


def heads_of_changes(rows: Sequence[Row], measure: str) -> Table:
    """Return the rows of `change.csv` that compare each head in both checkpoints, of one measure."""
    return Table(rows).where(lambda row: row.get("head") is not None, measure=measure, of=SAME)


# --------------------------------------------------------------------------------------------------------------------
# Charts of figures and page.
# --------------------------------------------------------------------------------------------------------------------

BY_NEURON, BY_FUSION = by_name("neuron", "neuron, by use"), by_name("layer or fusion", "layer, or fusion of layers")
# Heads whose neurons are drawn, and neurons of each.
CLEAREST, NEURONS = 3, 12
_BY_BLOCK, _BY_LAYER = linear("layer", "layer"), "means over heads by layer, 95% intervals"
# Lines of the chart of changes: measure, comparison and label.
_LINES = (
    ("cosine", SAME, "same head"), ("cosine", "other heads", "two heads of the layer"),
    ("cosine", "other sentences", "two sentences of equal length"),
    ("cosine_as_published", SAME, "same head, with padding"),
)  # fmt: skip


def charts(by_name: Tables, against: str = "") -> list[Chart]:
    """Return the charts of what was measured.

    They show the attention to special tokens and the change of maps by layer, the neurons of the clearest heads, and
    fused layers; `against` is the other checkpoint.
    """
    layers, changes = rows_of(by_name, "attention_layers"), rows_of(by_name, "change")
    mass, lift = (of_measure(layers, measure, SPECIAL) for measure in ("mass", "lift"))
    drawn = []
    if mass:
        uniform = {row["layer"]: row["value"] / of["value"] for row, of in zip(mass, lift, strict=True) if of["value"]}
        lines = [
            Line.of(mass, "value", "by weight", ""),
            Line.of(of_measure(layers, "norm_mass", SPECIAL), "value", "by weight x norm", ""),
            Line("uniform attention", [*uniform], [*uniform.values()]),
        ]
        panel = Panel([line for line in lines if line.at], "attention to special tokens")
        y = "share of attention (mean of heads)"
        drawn.append(Chart("special_tokens", _BY_LAYER, [panel], y, from_zero=True, x=_BY_BLOCK))
    if changes:
        compared = [(layers_of_changes(changes, *which), label) for *which, label in _LINES]
        panel = Panel(
            [Line.of(rows, "value", label, "") for rows, label in compared if rows],
            f"attention maps compared with {against}",
        )
        drawn.append(Chart("change_by_layer", _BY_LAYER, [panel], "cosine (mean of heads)", x=_BY_BLOCK))
    if clearest := examined_heads(by_name)[:CLEAREST]:
        drawn.append(_neuron_shares(clearest, by_name["position_neurons"]))
    if fused := rows_of(by_name, "fusion"):
        drawn.append(_fusions_chart(fused))
    return drawn


def _fusions_chart(rows: Table) -> Chart:
    """Return a panel for each task from rows of `fusion.csv`: the layers from the left, joined, then the fusions."""
    panels = []
    for task, task_rows in rows.where(measure="accuracy").by("task").items():
        single = task_rows.where(fusion="layer")
        fused = [row for fusion in FUSIONS for row in task_rows.where(fusion=fusion)]
        names = [str(row["layer"]) for row in single] + [FUSIONS[row["fusion"]] for row in fused]
        rows_by_name = zip([*single, *fused], names, strict=True)
        placed = [row | {"place": NamedLayer(i, name)} for i, (row, name) in enumerate(rows_by_name)]
        panels.append(Panel([
            Line.of(placed[: len(single)], "value", "layer", "", x="place"),
            replace(Line.of(placed[len(single) :], "value", "fusion of layers", "", x="place"), kind="marks"),
        ], task))  # fmt: skip
    title = "linear probes of layers and of fused layers, 95% intervals"
    return Chart("fusion", title, panels, "accuracy (test sentences)", (0, 1), x=BY_FUSION)


def _neuron_shares(heads: Sequence[Row], neurons: Sequence[Row]) -> Chart:
    """Return the neurons that heads use most, with their shares of the contrast between positions."""
    panels = []
    for head in heads:
        head_neurons = [row for row in neurons if name_of(row) == name_of(head)][:NEURONS]
        names = [NamedLayer(i, str(row["neuron"])) for i, row in enumerate(head_neurons)]
        shares = {
            label: [100 * row[name] / (row["position_part"] or math.inf) for row in head_neurons]
            for name, label in (("by_query", "query"), ("by_key", "key"))
        }
        lines = [Line(label, names, values, kind="bars") for label, values in shares.items()]
        panels.append(Panel(lines, f"head {name_of(head)}, offset {head['offset']:+d}"))
    title = "shares of neurons in the contrast of heads"
    return Chart("position_neurons", title, panels, "% of the contrast between positions", x=BY_NEURON, reference=0)
