"""Columns, tables and sentences of `attention`, for files and the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.results import ALL_LAYERS, ends, in_brackets, interval
from probing.statistics import few_sentences
from probing.tables.change import change_conclusions, change_table, fusion_lines, fusion_tables

# --------------------------------------------------------------------------------------------------------------------
# What the terminal says of heads and semantic roles.
# --------------------------------------------------------------------------------------------------------------------

Row = Mapping[str, Any]


def role_lines(role_rows: Sequence[Row]) -> list[str]:
    """Return a sentence on the heads that attend along role links, and on the number of compared links."""
    rows = [row for row in role_rows if row["role"] == "all"]
    if not rows:
        return []
    best = max(rows, key=lambda row: row["z"])
    heads = {_name_of(row) for row in rows if row["p_value"] < 0.05}
    several = f"{len(heads)} of {len({_name_of(row) for row in rows})} heads"
    return [
        f"Role links: {several} attend along {best['n']:,} links more than to pairs of other sentences that look alike"
        ", the links of each predicate resampled together (p below .05, corrected for the choice of a head), above all "
        f"{_name_of(best)} from the {best['query']}: {best['score']:.3f}"
        f"{in_brackets(interval(best, between=' to '))}, unlinked pairs "
        f"{best['unlinked']:.3f}, p {best['p_value']:.2g}.{_unmatched(best)}"
    ]


def _unmatched(row: Row) -> str:
    n = int(row["n_unmatched"])
    several = "A further link has" if n == 1 else f"A further {n:,} links have"
    alike = "no unlinked pairs that look alike, together with the other links of their predicate"
    return f" {several} {alike}, and cannot be compared." if n else ""


def _name_of(row: Row) -> str:
    return f"{row['layer']}-{row['head']}"


# --------------------------------------------------------------------------------------------------------------------
# The table and the sentence of attention rollout, for the terminal.
# --------------------------------------------------------------------------------------------------------------------

# Headings of the shares of a vector, in the order of the table, and their names in a sentence.
_SHARES = {
    "self": ("itself", "the word's own token"),
    "special_tokens": ("special tokens", "special tokens"),
    "previous": ("previous", "the previous token"),
    "next": ("next", "the next token"),
    "others": ("others", "all other tokens"),
}


def rollout_table(rows: Sequence[Row]) -> Any:
    """Return the composition of the vectors of words after each layer as a rich table; None without rows."""
    from probing.runtime.terminal import plain_table

    by_measure = {(row["layer"], row["measure"]): row for row in _of_words(rows)}
    if not by_measure:
        return None
    table = plain_table("Rollout: which tokens the vectors of words are composed of (under uniform attention)")
    for heading in ("layer", *(heading for heading, _ in _SHARES.values())):
        table.add_column(heading, justify="right")
    for layer in dict.fromkeys(layer for layer, _ in by_measure):
        cells = [by_measure[layer, name] for name in _SHARES]
        table.add_row(str(layer), *(f"{row['value']:.3f} ({row['uniform']:.3f})" for row in cells))
    return table


def rollout_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence on the last layer."""
    of_words = _of_words(rows)
    if not of_words:
        return []
    layer = of_words[-1]["layer"]
    last = {row["measure"]: row for row in of_words if row["layer"] == layer}
    parts = []
    for name in sorted(_SHARES, key=lambda name: -last[name]["value"]):
        between = interval(last[name], between=" to ", form=".1f", times=100)
        uniform = f"uniform attention: {last[name]['uniform']:.1%}"
        parts.append(f"{_SHARES[name][1]} {last[name]['value']:.1%}{in_brackets(between, uniform)}")
    return [
        "Rollout, which takes every block to keep half of each vector, finds in the vectors of words after block "
        f"{layer}: {', '.join(parts)}."
    ]


def _of_words(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["query"] == "words"]


Tables = Mapping[str, Sequence[Row]]


# Short headings of the classes.
CLASSES = {
    "vertical": "vertical",
    "diagonal": "diagonal",
    "vertical and diagonal": "both",
    "block": "block",
    "heterogeneous": "heterogeneous",
}
# Letter of each class in maps of heads, and its shade: 0 is white, 1 the darkest.
LETTERS = {
    "vertical": ("V", 0.9), "diagonal": ("D", 0.65), "vertical and diagonal": ("B", 0.45), "block": ("P", 0.25),
    "heterogeneous": ("h", 0.05),
}  # fmt: skip
SPECIAL, FIRST = "special tokens", "first token"
_PROFILE = {"entropy": "entropy", "distance": "distance", "self": "self", "previous": "previous", "next": "next"}


def tables(by_name: Tables) -> list[Any]:
    """Return the non-empty tables of the terminal as rich tables."""
    optional_tables = (
        _classes_table(by_name), _layers_table(by_name), _types_table(by_name),
        rollout_table(by_name.get("rollout", ())), change_table(by_name.get("change", ())),
        *fusion_tables(by_name.get("fusion", ())),
    )  # fmt: skip
    return [table for table in optional_tables if table is not None]


def conclusions(by_name: Tables) -> list[str]:
    """Return the conclusions from the tables, a sentence for each question."""
    return [
        *_which_classes(by_name),
        *_neighbours(by_name),
        *_special_tokens(by_name),
        *_first_token(by_name),
        *rollout_lines(by_name.get("rollout", ())),
        *_similarity(by_name),
        *_relations(by_name),
        *_trees(by_name),
        *role_lines(by_name.get("roles", ())),
        *change_conclusions(by_name.get("change", ())),
        *fusion_lines(by_name.get("fusion", ())),
        *_why_no_intervals(by_name),
    ]


def of_heads(by_name: Tables, factor: float = 1.0) -> list[Row]:
    """Return the row of each head in `attention_classes.csv`."""
    return [row for row in by_name.get("attention_classes", ()) if "head" in row and row["factor"] == factor]


def of_all_maps(by_name: Tables, factor: float = 1.0) -> dict[str, Row]:
    """Return the row of each class over all maps."""
    rows = by_name.get("attention_classes", ())
    return {row["class"]: row for row in rows if row["layer"] == ALL_LAYERS and row["factor"] == factor}


def of_measure(rows: Sequence[Row], measure: str, to: str = "") -> list[Row]:
    """Return the rows of a measure and, where it has one, a type of tokens."""
    return [row for row in rows if row["measure"] == measure and row.get("to", "") == to]


def name_of(row: Row) -> str:
    """Return the name of a head, such as 3-9: the ninth head of layer 3."""
    return f"{row['layer']}-{row['head']}"


def beats_offset(row: Row) -> bool:
    """Return whether a head finds a relation more often than the best fixed offset (corrected p below .05)."""
    return bool(row["difference"] > 0 and row["p_value"] < 0.05)


def finds_relation(row: Row) -> bool:
    """Return whether a head beats the best fixed offset by more than with permuted syntactic heads."""
    return beats_offset(row) and bool(row["p_permuted"] < 0.05)


def largest_move(by_name: Tables) -> tuple[str, float] | None:
    """Return the class whose share changes most when all thresholds move by a quarter, and the change."""
    unmoved = of_all_maps(by_name)
    factors = {row["factor"] for row in by_name.get("attention_classes", ())} - {1.0}
    moves = {
        name: max(abs(of_all_maps(by_name, factor)[name]["share"] - row["share"]) for factor in factors)
        for name, row in unmoved.items()
    }
    return max(moves.items(), key=lambda item: item[1]) if moves else None


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _classes_table(by_name: Tables) -> Any:
    rows = of_heads(by_name)
    if not rows:
        return None
    n = rows[0]["n"]
    classes = [name for name in CLASSES if any(row["class"] == name for row in rows)]
    over = f"{n:,} {'pairs of sentences' if 'b' in rows[0] else 'sentences'}"
    table = _table(f"Heads by the class that most of their maps have, over {over}", "layer")
    for name in classes:
        table.add_column(CLASSES[name])
    for layer in dict.fromkeys(row["layer"] for row in rows):
        layer_rows = [row for row in rows if row["layer"] == layer]
        cells = (", ".join(str(row["head"]) for row in layer_rows if row["class"] == name) for name in classes)
        table.add_row(str(layer), *cells)
    return table


def _layers_table(by_name: Tables) -> Any:
    rows = by_name.get("attention_layers", ())
    profile = {name: heading for name, heading in _PROFILE.items() if of_measure(rows, name)}
    types = [SPECIAL] if of_measure(rows, "mass", SPECIAL) else []
    by_norm = bool(of_measure(rows, "norm_mass", SPECIAL))
    if not profile and not types:
        return None
    headings = ["layer", *profile.values(), *(["special tokens", "lift"] if types else []), *(["by norm"] * by_norm)]
    table = _table("Attention of each layer, mean over its heads and all queries", *headings)
    cells = [(name, "") for name in profile] + [(m, t) for t in types for m in ("mass", "lift")]
    cells += [("norm_mass", SPECIAL)] * by_norm
    by_cell = {(row["layer"], row["measure"], row.get("to", "")): row for row in rows}
    for layer in dict.fromkeys(row["layer"] for row in rows):
        table.add_row(str(layer), *(_number(by_cell.get((layer, *cell))) for cell in cells))
    return table


def _types_table(by_name: Tables) -> Any:
    rows = by_name.get("heads", ())
    types = list(dict.fromkeys(row["to"] for row in rows if row["measure"] == "lift"))
    if not types:
        return None
    by_norm = any(row["measure"] == "norm_mass" for row in rows)
    table = _table("For each type of token, the head with the most attention to it")
    table.add_column("type of token")
    for heading in ("if uniform", "head", "mass", "95% interval", "lift", *(["by norm"] * by_norm)):
        table.add_column(heading, justify="right")
    by_head = {(row["measure"], row.get("to", ""), row["layer"], row["head"]): row for row in rows}
    for name in types:
        best = max(of_measure(rows, "mass", name), key=lambda row: row["value"])
        lift, norm = (by_head.get((m, name, best["layer"], best["head"])) for m in ("lift", "norm_mass"))
        uniform = f"{best['value'] / lift['value']:.1%}" if lift and lift["value"] else ""
        cells = [uniform, name_of(best), f"{best['value']:.3f}", interval(best), _number(lift)]
        table.add_row(name, *cells, *([_number(norm, ".3f")] if norm else []))
    return table


def _number(row: Row | None, form: str = ".2f") -> str:
    return "" if row is None else format(row["value"], form)


def _which_classes(by_name: Tables) -> list[str]:
    heads, overall = of_heads(by_name), of_all_maps(by_name)
    if not heads:
        return []
    parts = []
    for name, row in sorted(overall.items(), key=lambda item: -item[1]["share"]):
        if not row["share"]:
            continue
        n = sum(head["class"] == name for head in heads)
        between = interval(row, between=" to ", form=".1f", times=100)
        parts.append(f"{name} {row['share']:.1%}{in_brackets(between, f'most maps of {n} of {len(heads)} heads')}")
    lines = [f"Classes of all attention maps: {', '.join(parts)}."]
    if (block := overall.get("block")) and "share_moved" in block:
        lines.append(
            "With the boundary of each pair moved, so that its two sentences exchange their lengths, "
            f"{block['share_moved']:.1%}{in_brackets(interval(block, 'share_moved', ' to ', '.1f', 100))} of the maps "
            "would be block: attention to words nearby is enough for these."
        )
    moved = largest_move(by_name)
    if moved and moved[1] >= 0.0005:
        lower, higher = (of_all_maps(by_name, factor)[moved[0]]["share"] for factor in (0.75, 1.25))
        lines.append(
            f"When all thresholds are 25% lower or higher, the share that changes most is that of {moved[0]} maps, to "
            f"{lower:.1%} or {higher:.1%}: by {100 * moved[1]:.1f} points."
        )
    return lines


def _neighbours(by_name: Tables) -> list[str]:
    rows = by_name.get("heads", ())
    parts = []
    for measure, words in (("previous", "previous token"), ("next", "next token"), ("self", "token itself")):
        head_rows = of_measure(rows, measure)
        if any(row["value"] for row in head_rows):  # with a causal mask, no head attends to the next token
            best = max(head_rows, key=lambda row: row["value"])
            n = sum(row["value"] > 0.5 for row in head_rows)
            many = f"above .5 in {n} of {len(head_rows)} heads"
            parts.append(
                f"the {words} gets {best['value']:.3f} of head {name_of(best)}"
                f"{in_brackets(interval(best, between=' to '), many)}"
            )
    return [f"Most attention to neighbours: {'; '.join(parts)}."] if parts else []


def _special_tokens(by_name: Tables) -> list[str]:
    rows = of_measure(by_name.get("attention_layers", ()), "mass", SPECIAL)
    if not rows or not any(row["value"] for row in rows):
        return []
    most, least = (choose(rows, key=lambda row: row["value"]) for choose in (max, min))
    lifts = {row["layer"]: row for row in of_measure(by_name["attention_layers"], "lift", SPECIAL)}
    norms = {row["layer"]: row for row in of_measure(by_name["attention_layers"], "norm_mass", SPECIAL)}

    def share_text(row: Row) -> str:
        return f"{row['value']:.3f}{in_brackets(interval(row, between=' to '))} in layer {row['layer']}"

    line = (
        f"Special tokens get {share_text(most)}, the most, and {share_text(least)}, the least, as means over heads; in "
        f"layer {most['layer']} this is {lifts[most['layer']]['value']:.1f} times what uniform attention gives"
    )
    if norm := norms.get(most["layer"]):
        between = in_brackets(interval(norm, between=" to "))
        line += f", and when weights are multiplied by the norms of what is read it is {norm['value']:.3f}{between}"
    return [line + "."]


def _first_token(by_name: Tables) -> list[str]:
    rows = of_measure(by_name.get("attention_layers", ()), "mass", FIRST)
    if not rows:
        return []
    most = max(rows, key=lambda row: row["value"])
    uniform, norm = (
        next(
            (row for row in of_measure(by_name["attention_layers"], name, FIRST) if row["layer"] == most["layer"]), None
        )
        for name in ("uniform", "norm_mass")
    )
    heads = of_measure(by_name.get("heads", ()), "mass", FIRST)
    sinks = [row for row in heads if row["value"] > 0.5]
    line = (
        f"The first token gets {most['value']:.3f}{in_brackets(interval(most, between=' to '))} of the attention of "
        f"later tokens in layer {most['layer']}, the most, and more than .5 in {len(sinks)} of {len(heads)} heads"
    )
    if uniform:
        line += f"; uniform attention would give it {uniform['value']:.3f}"
    if norm:
        line += f", and when weights are multiplied by the norms of what is read it is {norm['value']:.3f}"
    return [line + "."]


def _similarity(by_name: Tables) -> list[str]:
    rows = by_name.get("similarity", ())
    lines = []
    if pairs := [row for row in rows if row["measure"] == "jensen_shannon"]:
        least, most = (choose(pairs, key=lambda row: row["value"]) for choose in (min, max))
        extremes = [
            f"heads {name_of(row)} and {row['other_layer']}-{row['other_head']} ({row['value']:.3f} nats{_within(row)})"
            for row in (least, most)
        ]
        lines.append(f"Most alike of {len(pairs):,} pairs of heads are {extremes[0]}, least alike {extremes[1]}.")
    if published := [row for row in rows if row["measure"] == "cosine"]:
        best = max(published, key=lambda row: row["value"])
        fair = next(
            row for row in rows
            if (row["measure"], row["layer"]) == ("cosine_matched_without_special", best["layer"])
        )  # fmt: skip
        lines.append(
            f"Of consecutive layers, {best['layer']} and {best['other_layer']} are most alike by the published cosine: "
            f"{best['value']:.3f}{in_brackets(interval(best, between=' to '))}; with best-matched heads and without "
            f"special tokens it is {fair['value']:.3f}{in_brackets(interval(fair, between=' to '))}."
        )
    return lines


def _relations(by_name: Tables) -> list[str]:
    rows = by_name.get("relations", ())
    if not rows:
        return []
    resolved = sorted(filter(finds_relation, rows), key=lambda row: -row["difference"])
    reported = resolved or sorted(rows, key=lambda row: -row["test"])
    several = [
        f"{row['relation']} {name_of(row)} ({row['test']:.3f}{_within(row, 'test')}; offset {row['offset']:+d}: "
        f"{row['offset_test']:.3f}{_beside(row)})"
        for row in reported[:5]
    ]
    than = "more often than the best fixed offset"
    if "p_permuted" in rows[0]:
        than += ", by more than if syntactic heads are permuted within each sentence"
    than += " (corrected p below .05)"
    if not resolved:
        return [
            f"No head finds any of {len(rows)} relations {than}; the best are {', '.join(several)}.",
            *_only_beyond_offset(rows),
        ]
    which = "above all " * (len(resolved) > len(several)) + ", ".join(several)
    return [f"A head finds {len(resolved)} of {len(rows)} relations {than}: {which}.", *_only_beyond_offset(rows)]


def _only_beyond_offset(rows: Sequence[Row]) -> list[str]:
    names = [row["relation"] for row in rows if beats_offset(row) and not finds_relation(row)]
    if not names:
        return []
    return [
        f"Also more often than the best fixed offset, but not by more than with permuted syntactic heads: "
        f"{', '.join(names)}. Attention to words that head many others is enough for that."
    ]


def _trees(by_name: Tables) -> list[str]:
    lines = []
    for row in by_name.get("trees", ()):
        if row["measure"] == "uuas" and row["chosen"] == "yes":
            lines.append(
                f"Trees of head {name_of(row)}, which is chosen on other sentences, have {row['test']:.1%} of the "
                f"treebank's edges{in_brackets(interval(row, 'test', ' to '))}, and the chain of neighbours "
                f"{row['baseline']:.1%}{in_brackets(_beside(row)[2:])}."
            )
        elif row["measure"] == "uas":
            lines.append(
                f"A probe of the attention of all heads finds the head of {row['test']:.1%} of the words"
                f"{in_brackets(interval(row, 'test', ' to '))}, and the offset {row['offset']:+d} that of "
                f"{row['baseline']:.1%}{in_brackets(_beside(row)[2:])}."
            )
    return lines


def _beside(row: Row) -> str:
    untrained = row.get("untrained", math.nan)
    return "" if math.isnan(untrained) else f"; randomly initialised model: {untrained:.3f}"


def _within(row: Row, of: str = "") -> str:
    between = interval(row, of, between=" to ")
    return f", {between}" if between else ""


def _why_no_intervals(by_name: Tables) -> list[str]:
    rows = [*by_name.get("attention_layers", ()), *by_name.get("attention_classes", ())]
    most = max(rows, key=lambda row: row["n"], default=None)
    of_pairs = any("b" in row for row in rows)
    few = few_sentences(most["n"], "pair" if of_pairs else "sentence") if most and not ends(most) else None
    return [few] if few else []


# --------------------------------------------------------------------------------------------------------------------
# What the terminal says of the first token of each sentence: the table of `geometry`, and sentences.
# --------------------------------------------------------------------------------------------------------------------

# Headings, by the value of the column `first_token`.
TOKENS = {"exclude": "without the first token", "include": "with it", "only": "first tokens alone"}
_FAR, _NORM, _COSINE = "mean_profile", "rms_norm", "mean_cosine"
_NAMES = {_NORM: "norm", _COSINE: "mean cosine"}


def first_token_tables(rows: Sequence[Row]) -> list[Any]:
    """Return a rich table of neurons with an outlying mean without the first token, with it, and on it alone."""
    from probing.runtime.terminal import plain_table

    if not rows:
        return []
    table = plain_table("The first token of each sentence: neurons with a far mean (sd), norms, and mean cosines")
    table.add_column("layer", justify="right")
    for heading in TOKENS.values():
        table.add_column(heading)
    shown = [(_NORM, "exclude"), (_NORM, "only"), (_COSINE, "exclude"), (_COSINE, "include")]
    for measure, which in shown:
        table.add_column(f"{_NAMES[measure]}, {TOKENS[which].removesuffix(' alone')}", justify="right")
    for layer in _layers(rows):
        layer_rows = [row for row in rows if row["layer"] == layer]
        values = {(row["measure"], row["first_token"]): row["value"] for row in layer_rows if row["measure"] in _NAMES}
        numbers = (f"{values[key]:.{3 if key[0] == _COSINE else 1}f}" if key in values else "" for key in shown)
        table.add_row(str(layer), *(_named(layer_rows, which) for which in TOKENS), *numbers)
    return [table]


def first_token_conclusions(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the outliers that the first token adds, hides, or has alone."""
    if not rows:
        return []
    without, with_it, alone = (_neurons(rows, which) for which in TOKENS)
    sentences = {
        "Neurons with a far mean with the first token and not without it": _less(with_it, without),
        "Neurons with a far mean without the first token, which it hides": _less(without, with_it),
        "Neurons with a far mean on the first token alone, and not on the others": _less(alone, without),
    }
    if not any(sentences.values()):
        return ["The first token has no outlier of its own, and hides none."]
    return [f"{what}: {_list(by_layer)}." for what, by_layer in sentences.items() if by_layer]


def causal_conclusions(is_causal: bool, heads: Sequence[Row]) -> list[str]:
    """Return a sentence on the first token of a causal model, if it counts as a special token."""
    if (
        not is_causal
        or not any(row.get("to") == SPECIAL for row in heads)
        or any(row.get("to") == FIRST for row in heads)
    ):
        return []
    return [
        "The first token counts as a special one here. With a causal mask uniform attention favours it too: "
        "`--first_token exclude` measures it beside that, and leaves it out of all else."
    ]


def _neurons(rows: Sequence[Row], which: str) -> dict[int, set[int]]:
    return {layer: {row["neuron"] for row in _far(rows, which) if row["layer"] == layer} for layer in _layers(rows)}


def _less(some: Mapping[int, set[int]], others: Mapping[int, set[int]]) -> dict[int, list[int]]:
    return {layer: remaining for layer in some if (remaining := sorted(some[layer] - others[layer]))}


def _list(by_layer: Mapping[int, Sequence[int]]) -> str:
    return "; ".join(f"layer {layer}: {', '.join(map(str, neurons))}" for layer, neurons in by_layer.items())


def _layers(rows: Sequence[Row]) -> list[int]:
    return sorted({row["layer"] for row in rows})


def _far(rows: Sequence[Row], which: str) -> list[Row]:
    return [row for row in rows if row["first_token"] == which and row["measure"] == _FAR]


def _named(rows: Sequence[Row], which: str) -> str:
    return ", ".join(f"{row['neuron']} ({row['value']:+.1f})" for row in _far(rows, which))
