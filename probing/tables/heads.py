"""Tables, charts and sentences of `attention`, and sentences of `geometry` on the first token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probing.results import (
    ALL_LAYERS,
    Row,
    Table,
    cells_table,
    count,
    ends,
    estimated,
    in_brackets,
    interval,
)
from probing.statistics import few_sentences
from probing.tables.change import change_conclusions, change_table, fusion_lines, fusion_tables
from probing.tables.change import of_layers as change_of_layers
from probing.tables.figures import Chart, Line, Panel, linear

Tables = Mapping[str, Sequence[Row]]

SENTENCES = {
    "classes": "Classes of all attention maps: {classes}.",
    "class_heads": "most maps of {n} of {heads}",
    "boundary": "With the boundary of each pair moved so that its two sentences exchange their lengths, {share} of the "
    "maps would be block: attention to nearby words explains these.",
    "thresholds": "If all thresholds are 25% lower or higher, the share of {name} maps changes most of all classes, to "
    "{lower:.1%} or {higher:.1%}: by {move:.1f} points.",
    "neighbours": "Most attention to neighbours: {neighbours}.",
    "neighbour": "head {head} gives {value:.3f} to {token}",
    "neighbour_heads": "above .5 in {n} of {heads}",
    "special_tokens": "Special tokens receive {most} of the attention in layer {layer}, the most of all layers, and "
    "{least} in layer {least_layer}, the least (means over heads); in layer {layer} this is {lift:.1f} times uniform "
    "attention{by_norm}.",
    "special_tokens_of_layer": "Special tokens receive {most} of the attention in layer {layer} (mean over heads), "
    "{lift:.1f} times uniform attention{by_norm}.",
    "first_token": "The first token receives {most} of the attention of later tokens in layer {layer}{the_most}, and "
    "more than .5 in {n} of {heads}{uniform}{by_norm}.",
    "uniform": "; uniform attention gives it {value:.3f}",
    "by_norm": ", and {value} if weights are multiplied by the norms of the vectors that are read",
    "rollout": "Rollout, in which every block keeps half of each vector: after block {layer}, the vectors of words "
    "consist of {shares}.",
    "rollout_uniform": "uniform attention: {uniform:.1%}",
    "similarity": "Of {pairs} of heads, {most} are most similar, {least} least similar.",
    "similar_heads": "heads {head} and {other} ({value:.3f} nats{within})",
    "similar_layers": "By the published cosine, layers {layer} and {other} are the most similar consecutive layers: "
    "{published}; with best-matched heads and without special tokens, the cosine is {matched}.",
    "relations": "A head finds {n} of {relations} more often than the best fixed offset{permuted} (corrected p below "
    ".05): {heads}.",
    "no_relations": "No head finds any of {relations} more often than the best fixed offset{permuted} (corrected p "
    "below .05); the most accurate are {heads}.",
    "permuted": ", by more than if syntactic heads are permuted within each sentence",
    "relation": "{relation} {head} ({test:.3f}{within}; offset {offset:+d}: {offset_test:.3f}{untrained})",
    "only_offset": "More often than the best fixed offset, but not by more than with permuted syntactic heads: "
    "{relations}. Attention to words that head many others is enough for this.",
    "uuas": "Trees of head {head}, which is selected on other sentences, have {test} of the treebank's edges, and the "
    "chain of neighbours {baseline}.",
    "uas": "A probe of the attention of all heads finds the syntactic head of {test} of the words, and the offset "
    "{offset:+d} of {baseline}.",
    "roles": "Role links: {n} of {heads} attend along {links} more than to similar unlinked pairs of other sentences "
    "(p below .05, corrected for the choice of a head; the links of each predicate are resampled together), most of "
    "all {best} from the {query}: {score}, unlinked pairs {unlinked:.3f}, p {p:.2g}.",
    "unmatched_roles": " Of a further {links}, no unlinked pairs are similar to all links of the predicate, so that "
    "these are not compared.",
    "causal": "The first token counts as a special token here. With a causal mask, uniform attention favours it too: "
    "`--first_token exclude` measures it separately and excludes it from all other measures.",
    "no_first_outliers": "The first token adds no outlier and hides none.",
    "with_first": "Neurons with a far mean with the first token and not without it: {neurons}.",
    "without_first": "Neurons with a far mean without the first token, which it hides: {neurons}.",
    "first_alone": "Neurons with a far mean on the first token alone, and not on the others: {neurons}.",
}

# Headings of the shares of a vector, in the order of the table, and their names in a sentence.
_SHARES = {
    "self": ("itself", "the word's own token"),
    "special_tokens": ("special tokens", "special tokens"),
    "previous": ("previous", "the previous token"),
    "next": ("next", "the next token"),
    "others": ("others", "all other tokens"),
}
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
_PROFILE = ("entropy", "distance", "self", "previous", "next")
_NEIGHBOURS = {"previous": "the previous token", "next": "the next token", "self": "the token itself"}


def rows_of(by_name: Tables, name: str) -> Table:
    """Return the rows of a table; none if it was not measured."""
    return Table(by_name.get(name, ()))


def tables(by_name: Tables) -> list[Any]:
    """Return the non-empty tables of the terminal as rich tables."""
    optional_tables = (
        _classes_table(by_name), _layers_table(rows_of(by_name, "attention_layers")),
        _types_table(rows_of(by_name, "heads")), rollout_table(rows_of(by_name, "rollout")),
        change_table(by_name.get("change", ())), *fusion_tables(by_name.get("fusion", ())),
    )  # fmt: skip
    return [table for table in optional_tables if table is not None]


def charts(by_name: Tables, against: str = "") -> list[Chart]:
    """Return the attention to special tokens by layer, and the change of maps; `against` is the other checkpoint."""
    layers, changes = rows_of(by_name, "attention_layers"), by_name.get("change", ())
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
        lines = [
            Line.of(rows, "value", label, "")
            for *which, label in _CHANGES
            if (rows := change_of_layers(changes, *which))
        ]
        panel = Panel(lines, f"attention maps compared with {against}")
        drawn.append(Chart("change_by_layer", _BY_LAYER, [panel], "cosine (mean of heads)", x=_BY_BLOCK))
    return drawn


_BY_BLOCK, _BY_LAYER = linear("layer", "layer"), "means over heads by layer, 95% intervals"
# Lines of the chart of changes: measure, comparison and label.
_CHANGES = (
    ("cosine", "same", "same head"),
    ("cosine", "other heads", "two heads of the layer"),
    ("cosine", "other sentences", "two sentences of equal length"),
    ("cosine_as_published", "same", "same head, with padding"),
)


def conclusions(by_name: Tables) -> list[str]:
    """Return the conclusions from the tables, a sentence for each question."""
    layers, heads = rows_of(by_name, "attention_layers"), rows_of(by_name, "heads")
    return [
        *_which_classes(by_name), *_neighbours(heads), *_special_tokens(layers), *_first_token(layers, heads),
        *_rollout(rows_of(by_name, "rollout")), *_similarity(rows_of(by_name, "similarity")),
        *_relations(rows_of(by_name, "relations")), *_trees(rows_of(by_name, "trees")),
        *_roles(rows_of(by_name, "roles")), *change_conclusions(by_name.get("change", ())),
        *fusion_lines(by_name.get("fusion", ())), *_why_no_intervals(by_name),
    ]  # fmt: skip


def of_heads(by_name: Tables, factor: float = 1.0) -> Table:
    """Return the row of each head in `attention_classes.csv`."""
    return rows_of(by_name, "attention_classes").where(lambda row: "head" in row, factor=factor)


def of_all_maps(by_name: Tables, factor: float = 1.0) -> dict[str, Row]:
    """Return the row of each class over all maps."""
    rows = rows_of(by_name, "attention_classes").where(layer=ALL_LAYERS, factor=factor)
    return {row["class"]: row for row in rows}


def of_measure(rows: Sequence[Row], measure: str, to: str = "") -> Table:
    """Return the rows of a measure and, where it has one, a type of tokens."""
    return Table(rows).where(lambda row: row.get("to", "") == to, measure=measure)


def name_of(row: Row) -> str:
    """Return the name of a head, such as 3-9: the ninth head of layer 3."""
    return f"{row['layer']}-{row['head']}"


def beats_offset(row: Row) -> bool:
    """Return whether a head finds a relation more often than the best fixed offset (corrected p below .05)."""
    return bool(row["difference"] > 0 and row["p_value"] < 0.05)


def finds_relation(row: Row) -> bool:
    """Return whether a head beats the best fixed offset by more than with permuted syntactic heads."""
    return beats_offset(row) and bool(row["p_permuted"] < 0.05)


def _most(rows: Sequence[Row], column: str = "value") -> Row:
    return max(rows, key=lambda row: row[column])


def _least(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row["value"])


def _value(row: Row) -> str:
    return estimated(row, "value", of="")


def _within(row: Row, of: str = "") -> str:
    between = interval(row, of, between=" to ")
    return f", {between}" if between else ""


def _of_heads(rows: Sequence[Row]) -> str:
    return count(len(rows), "head")


def _classes_table(by_name: Tables) -> Any:
    rows = of_heads(by_name)
    if not rows:
        return None
    of_pairs = "b" in rows[0]
    over = count(rows[0]["n"], "pair of sentences" if of_pairs else "sentence", "pairs of sentences" * of_pairs)
    classes = [name for name in CLASSES if rows.where(**{"class": name})]
    body = [
        [str(layer), *(", ".join(map(str, of.where(**{"class": name}).column("head"))) for name in classes)]
        for layer, of in rows.by("layer").items()
    ]
    headings = ["layer", *(CLASSES[name] for name in classes)]
    return cells_table(f"Heads by the class of most of their maps, over {over}", headings, body)


def _layers_table(rows: Table) -> Any:
    cells = {(name, ""): name for name in _PROFILE}
    cells |= {("mass", SPECIAL): SPECIAL, ("lift", SPECIAL): "lift", ("norm_mass", SPECIAL): "by norm"}
    cells = {cell: heading for cell, heading in cells.items() if of_measure(rows, *cell)}
    if not cells:
        return None
    body = []
    for layer, of in rows.by("layer").items():
        by_cell = {(row["measure"], row.get("to", "")): row for row in of}
        body.append([str(layer), *(_number(by_cell.get(cell)) for cell in cells)])
    title = "Attention of each layer, mean over its heads and all queries"
    return cells_table(title, ["layer", *cells.values()], body)


def _types_table(rows: Table) -> Any:
    lifts = rows.where(measure="lift")
    if not lifts:
        return None
    by_head = {(row["measure"], row.get("to", ""), row["layer"], row["head"]): row for row in rows}
    norms, body = rows.where(measure="norm_mass"), []
    for name in lifts.values("to"):
        best = _most(of_measure(rows, "mass", name))
        lift, norm = (by_head.get((m, name, best["layer"], best["head"])) for m in ("lift", "norm_mass"))
        uniform = f"{best['value'] / lift['value']:.1%}" if lift and lift["value"] else ""
        cells = [name, uniform, name_of(best), f"{best['value']:.3f}", interval(best), _number(lift)]
        body.append([*cells, *([_number(norm, ".3f")] if norms else [])])
    headings = ("type of token", "if uniform", "head", "mass", "95% interval", "lift", *["by norm"] * bool(norms))
    return cells_table(
        "For each type of token, the head with the most attention to it", headings, body, words=headings[:1]
    )


def rollout_table(rows: Table) -> Any:
    """Return the composition of the vectors of words after each layer as a rich table; None without rows."""
    by_layer = rows.where(query="words").by("layer")
    if not by_layer:
        return None
    body = []
    for layer, of in by_layer.items():
        by_measure = {row["measure"]: row for row in of}
        cells = (by_measure[name] for name in _SHARES)
        body.append([str(layer), *(f"{row['value']:.3f} ({row['uniform']:.3f})" for row in cells)])
    title = "Rollout: which tokens the vectors of words are composed of (under uniform attention)"
    return cells_table(title, ["layer", *(heading for heading, _ in _SHARES.values())], body)


def _number(row: Row | None, form: str = ".2f") -> str:
    return "" if row is None else format(row["value"], form)


def _which_classes(by_name: Tables) -> Iterator[str]:
    heads, overall = of_heads(by_name), of_all_maps(by_name)
    if not heads:
        return
    parts = []
    for name, row in sorted(overall.items(), key=lambda item: -item[1]["share"]):
        of_class = SENTENCES["class_heads"].format(n=len(heads.where(**{"class": name})), heads=_of_heads(heads))
        between = interval(row, between=" to ", form=".1f", times=100)
        parts += [f"{name} {row['share']:.1%}{in_brackets(between, of_class)}"] if row["share"] else []
    yield SENTENCES["classes"].format(classes=", ".join(parts))
    if (block := overall.get("block")) and "share_moved" in block:
        yield SENTENCES["boundary"].format(share=estimated(block, "share_moved", ".1%"))
    factors = [factor for factor in rows_of(by_name, "attention_classes").values("factor") if factor != 1.0]
    moved = {factor: of_all_maps(by_name, factor) for factor in sorted(factors)}
    moves = {name: max(abs(of[name]["share"] - row["share"]) for of in moved.values()) for name, row in overall.items()}
    name = max(moves, key=lambda name: moves[name], default="")
    if moves and moves[name] >= 0.0005:
        lower, higher = (of[name]["share"] for of in moved.values())
        yield SENTENCES["thresholds"].format(name=name, lower=lower, higher=higher, move=100 * moves[name])


def _neighbours(rows: Table) -> Iterator[str]:
    parts = []
    for measure, token in _NEIGHBOURS.items():
        heads = of_measure(rows, measure)
        if any(heads.column("value")):  # with a causal mask, no head attends to the next token
            best, n = _most(heads), len(heads.where(lambda row: row["value"] > 0.5))
            begin = SENTENCES["neighbour"].format(head=name_of(best), token=token, value=best["value"])
            many = SENTENCES["neighbour_heads"].format(n=n, heads=_of_heads(heads))
            parts.append(f"{begin}{in_brackets(interval(best, between=' to '), many)}")
    if parts:
        yield SENTENCES["neighbours"].format(neighbours="; ".join(parts))


def _special_tokens(layers: Table) -> Iterator[str]:
    rows = of_measure(layers, "mass", SPECIAL)
    if any(rows.column("value")):
        most, least = _most(rows), _least(rows)
        yield SENTENCES["special_tokens" if len(rows) > 1 else "special_tokens_of_layer"].format(
            most=_value(most), layer=most["layer"], least=_value(least), least_layer=least["layer"],
            lift=of_measure(layers, "lift", SPECIAL).where(layer=most["layer"])[0]["value"],
            by_norm=_by_norm(layers, most, SPECIAL),
        )  # fmt: skip


def _by_norm(layers: Table, most: Row, to: str) -> str:
    norm = of_measure(layers, "norm_mass", to).where(layer=most["layer"])
    return SENTENCES["by_norm"].format(value=_value(norm[0])) if norm else ""


def _first_token(layers: Table, all_heads: Table) -> Iterator[str]:
    rows, heads = of_measure(layers, "mass", FIRST), of_measure(all_heads, "mass", FIRST)
    if rows:
        most = _most(rows)
        uniform = of_measure(layers, "uniform", FIRST).where(layer=most["layer"])
        yield SENTENCES["first_token"].format(
            most=_value(most), layer=most["layer"], the_most=", the most of all layers" * (len(rows) > 1),
            n=len(heads.where(lambda row: row["value"] > 0.5)), heads=_of_heads(heads),
            uniform=SENTENCES["uniform"].format(**uniform[0]) if uniform else "", by_norm=_by_norm(layers, most, FIRST),
        )  # fmt: skip


def _rollout(rows: Table) -> Iterator[str]:
    if words := rows.where(query="words"):
        last = {row["measure"]: row for row in words.where(layer=words[-1]["layer"])}
        shares = []
        for name in sorted(_SHARES, key=lambda name: -last[name]["value"]):
            between = interval(last[name], between=" to ", form=".1f", times=100)
            uniform = SENTENCES["rollout_uniform"].format(**last[name])
            shares.append(f"{_SHARES[name][1]} {last[name]['value']:.1%}{in_brackets(between, uniform)}")
        yield SENTENCES["rollout"].format(layer=words[-1]["layer"], shares=", ".join(shares))


def _similarity(rows: Table) -> Iterator[str]:
    if pairs := rows.where(measure="jensen_shannon"):
        least, most = (
            SENTENCES["similar_heads"].format(
                head=name_of(row), other=f"{row['other_layer']}-{row['other_head']}", value=row["value"],
                within=_within(row),
            ) for row in (_most(pairs), _least(pairs))
        )  # fmt: skip
        yield SENTENCES["similarity"].format(pairs=count(len(pairs), "pair"), most=most, least=least)
    if published := rows.where(measure="cosine"):
        best = _most(published)
        (matched,) = rows.where(measure="cosine_matched_without_special", layer=best["layer"])
        yield SENTENCES["similar_layers"].format(
            layer=best["layer"], other=best["other_layer"], published=_value(best), matched=_value(matched)
        )


def _relations(rows: Table) -> Iterator[str]:
    if not rows:
        return
    resolved = sorted(rows.where(finds_relation), key=lambda row: -row["difference"])
    reported = (resolved or sorted(rows, key=lambda row: -row["test"]))[:5]
    of_relations = [
        SENTENCES["relation"].format_map({
            **row, "head": name_of(row), "within": _within(row, "test"), "untrained": _untrained(row),
        }) for row in reported
    ]  # fmt: skip
    above_all = "above all " * (len(resolved) > len(reported))
    yield SENTENCES["relations" if resolved else "no_relations"].format(
        n=len(resolved), relations=count(len(rows), "relation"), heads=above_all + ", ".join(of_relations),
        permuted=SENTENCES["permuted"] * ("p_permuted" in rows[0]),
    )  # fmt: skip
    if only_offset := rows.where(lambda row: beats_offset(row) and not finds_relation(row)):
        yield SENTENCES["only_offset"].format(relations=", ".join(only_offset.column("relation")))


def _untrained(row: Row) -> str:
    untrained = row.get("untrained", math.nan)
    return "" if math.isnan(untrained) else f"; randomly initialised model: {untrained:.3f}"


def _trees(rows: Table) -> Iterator[str]:
    for row in rows:
        if row["measure"] == "uas" or row["chosen"] == "yes":
            yield SENTENCES[row["measure"]].format(
                head=name_of(row) if "head" in row else "", offset=row.get("offset"),
                test=f"{row['test']:.1%}{in_brackets(interval(row, 'test', ' to '))}",
                baseline=f"{row['baseline']:.1%}{in_brackets(_untrained(row)[2:])}",
            )  # fmt: skip


def _roles(rows: Table) -> Iterator[str]:
    if links := rows.where(role="all"):
        best = _most(links, "z")
        heads = {name_of(row) for row in links.where(lambda row: row["p_value"] < 0.05)}
        n = int(best["n_unmatched"])
        yield SENTENCES["roles"].format(
            n=len(heads), heads=count(len({name_of(row) for row in links}), "head"), links=count(best["n"], "link"),
            best=name_of(best), query=best["query"], score=estimated(best, "score", of=""), unlinked=best["unlinked"],
            p=best["p_value"],
        ) + (SENTENCES["unmatched_roles"].format(links=count(n, "link")) if n else "")  # fmt: skip


def causal_conclusions(is_causal: bool, heads: Table) -> list[str]:
    """Return a sentence on the first token of a causal model, if it counts as a special token."""
    types = heads.values("to")
    return [SENTENCES["causal"]] if is_causal and SPECIAL in types and FIRST not in types else []


def _why_no_intervals(by_name: Tables) -> list[str]:
    rows = [*rows_of(by_name, "attention_layers"), *rows_of(by_name, "attention_classes")]
    most = max(rows, key=lambda row: row["n"], default=None)
    of_pairs = any("b" in row for row in rows)
    few = few_sentences(most["n"], "pair" if of_pairs else "sentence") if most and not ends(most) else None
    return [few] if few else []


# --------------------------------------------------------------------------------------------------------------------
# The first token of each sentence: a table and sentences of `geometry`.
# --------------------------------------------------------------------------------------------------------------------

# Headings, by the value of the column `first_token`.
TOKENS = {"exclude": "without the first token", "include": "with it", "only": "first tokens alone"}
_FAR, _NORM, _COSINE = "mean_profile", "rms_norm", "mean_cosine"
_NAMES = {_NORM: "norm", _COSINE: "mean cosine"}


def first_token_tables(all_rows: Sequence[Row]) -> list[Any]:
    """Return a rich table of neurons with an outlying mean without the first token, with it, and on it alone."""
    if not all_rows:
        return []
    shown = [(_NORM, "exclude"), (_NORM, "only"), (_COSINE, "exclude"), (_COSINE, "include")]
    body = []
    for layer, rows in sorted(Table(all_rows).by("layer").items()):
        values = {(row["measure"], row["first_token"]): row["value"] for row in rows.where(measure=(_NORM, _COSINE))}
        numbers = (f"{values[key]:.{3 if key[0] == _COSINE else 1}f}" if key in values else "" for key in shown)
        neurons = (
            ", ".join(f"{row['neuron']} ({row['value']:+.1f})" for row in rows.where(first_token=which, measure=_FAR))
            for which in TOKENS
        )
        body.append([str(layer), *neurons, *numbers])
    of_numbers = (f"{_NAMES[measure]}, {TOKENS[which].removesuffix(' alone')}" for measure, which in shown)
    title = "The first token of each sentence: neurons with a far mean (sd), norms, and mean cosines"
    return [cells_table(title, ["layer", *TOKENS.values(), *of_numbers], body)]


def first_token_conclusions(rows: Sequence[Row]) -> list[str]:
    """Return sentences on the outliers that the first token adds, hides, or has alone."""
    if not rows:
        return []
    without, with_it, alone = (_neurons(Table(rows), which) for which in TOKENS)
    of_sentences = {
        "with_first": _less(with_it, without),
        "without_first": _less(without, with_it),
        "first_alone": _less(alone, without),
    }
    lines = [SENTENCES[name].format(neurons=_list(by_layer)) for name, by_layer in of_sentences.items() if by_layer]
    return lines or [SENTENCES["no_first_outliers"]]


def _neurons(rows: Table, which: str) -> dict[int, set[int]]:
    far = rows.where(first_token=which, measure=_FAR)
    return {layer: set(far.where(layer=layer).column("neuron")) for layer in sorted(rows.values("layer"))}


def _less(some: Mapping[int, set[int]], others: Mapping[int, set[int]]) -> dict[int, list[int]]:
    return {layer: remaining for layer in some if (remaining := sorted(some[layer] - others[layer]))}


def _list(by_layer: Mapping[int, Sequence[int]]) -> str:
    return "; ".join(f"layer {layer}: {', '.join(map(str, neurons))}" for layer, neurons in by_layer.items())
