"""Sentences of `attention`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probing.results import Row, Table, count, ends, estimated, in_brackets, interval, two_decimals
from probing.statistics import few_sentences
from probing.studies.attention.tables import (
    SHARES,
    ablated_neurons,
    best_layer,
    cosine_text,
    examined_heads,
    heads_of_changes,
    last_layer,
    layers_of_changes,
    points,
    position_heads,
)
from probing.tables.heads import (
    FIRST,
    SPECIAL,
    Tables,
    beats_offset,
    finds_relation,
    name_of,
    of_all_maps,
    of_heads,
    of_measure,
    rows_of,
)

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
    "cosine_same": "The two checkpoints have the same attention maps in all layers that are reported: each cosine is "
    "1.",
    "cosine": "Between the two checkpoints, the attention maps of layer {layer} change most, to a mean cosine of "
    "{value}; of all heads, {head} changes most, to {head_value}.",
    "cosine_unchanged": "The attention maps of {layers} are the same: their cosine is 1.",
    "cosine_as_published_same": "As published, in maps of which {padding:.1%} of the rows are padding, each cosine is "
    "1, too.",
    "cosine_as_published": "As published, in maps of which {padding:.1%} of the rows are padding, those of layer "
    "{layer} change most, to a mean cosine of {value}.",
    "hidden_states_same": "Hidden states have a cosine of 1 in all layers that are reported.",
    "hidden_states": "Hidden states change most in layer {layer}, to a mean cosine of {value}.",
    "parameters_same": "All {n} matrices of parameters have a cosine of 1.",
    "parameters": "{changed} of {n} matrices of parameters {have} a cosine below 1; the lowest is {value}, of {of}.",
    "fusion": "Fusion for {task}: layer {layer}, the best on validation sentences, is right about {value:.1%} of {n:,} "
    "test examples{interval}; fusion changes that, in points, by {changes}.",
    "not_converged": "Training of {fusions} for {task} did not end at a minimum, so that more training might give "
    "another accuracy.",
    "fused_cosines": "The mean cosine of two tokens of a sentence is {cosines}.",
    "fusion_limits": "{corrected}The model was not trained with these fusions, so that this says nothing about "
    "pretraining with them.",
    "corrected": "P-values are corrected for {n} comparisons. ",
    "no_position_heads": "None of {heads} is a position head; head {head} attends most to a fixed offset, {offset:+d}: "
    "{mass} of all keys, {word_mass} of word keys.",
    "position_heads": "Position heads ({n} of {heads}): {several}.",
    "position_head": "{head} at offset {offset:+d} with {mass} of its attention, and {word_mass} of its attention to "
    "words",
    "permuted_words": "With words permuted, {n} of {heads} attend more to the offset in the permuted order than in the "
    "original order: {several}.",
    "head_permuted": "{head} {told:.3f} compared with {told_true:.3f}",
    "contrast": "Contrast of the word at the offset, in logits: {several}.",
    "head_contrast": "{head} {contrast}, of which {position_part} from positions alone{bias}",
    "bias": " and {bias_part} from the bias of relative positions",
    "ranking": "Rank correlation of the use of neurons by a head with the contributions in the run: {several}.",
    "head_ranking": "{head} Spearman {spearman} (other heads {spearman_heads}, random bases {spearman_bases}), partial "
    "{partial} (other heads {partial_heads}, p {partial_heads_p:.2g}; random bases {partial_bases}, p "
    "{partial_bases_p:.2g})",
    "ablated": "The {k} neurons {first}, replaced by their mean in the queries and keys of the head alone, lower the "
    "contrast more than matched neurons of about the same standard deviation (p below .05) in {n} of {heads}: "
    "{several}.",
    "head_ablated": "{head} from {contrast:.2f} to {contrast_held:.2f} (matched neurons: {contrast_matched:.2f}, p "
    "{contrast_matched_p:.2g})",
}

_NEIGHBOURS = {"previous": "the previous token", "next": "the next token", "self": "the token itself"}
# Baselines of each measure of change, in words.
_BASELINES_OF_CHANGES = {
    "cosine": {"other heads": "two heads of this layer", "other sentences": "two sentences of equal length"},
    "cosine_as_published": {"other heads": "two heads of this layer"},
    "hidden_states": {"other tokens": "a token and the next one"},
}
# Rankings whose first neurons a sentence is about.
_FIRST_NEURONS = {"contribution": "ranked first by the probe", "use": "most used by the head"}


def conclusions(by_name: Tables, is_causal: bool = False) -> list[str]:
    """Return the conclusions from the tables, a sentence for each question."""
    layers, heads, changes = (rows_of(by_name, name) for name in ("attention_layers", "heads", "change"))
    examined, types = examined_heads(by_name), {row.get("to") for row in heads}
    first_is_special = is_causal and SPECIAL in types and FIRST not in types
    return [
        *_which_classes(by_name), *_neighbours(heads), *_special_tokens(layers), *_first_token(layers, heads),
        *_rollout(rows_of(by_name, "rollout")), *_similarity(rows_of(by_name, "similarity")),
        *_relations(rows_of(by_name, "relations")), *_trees(rows_of(by_name, "trees")),
        *_roles(rows_of(by_name, "roles")), *_changes(changes), *_parameters(changes),
        *_fusion(rows_of(by_name, "fusion")), *_why_no_intervals(by_name), *[SENTENCES["causal"]] * first_is_special,
        *_position_heads(by_name), *_contrast(examined), *_ranking(examined), *_ablation(ablated_neurons(by_name)),
    ]  # fmt: skip


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
        for name in sorted(SHARES, key=lambda name: -last[name]["value"]):
            between = interval(last[name], between=" to ", form=".1f", times=100)
            uniform = SENTENCES["rollout_uniform"].format(**last[name])
            shares.append(f"{SHARES[name][1]} {last[name]['value']:.1%}{in_brackets(between, uniform)}")
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


def _why_no_intervals(by_name: Tables) -> list[str]:
    rows = [*rows_of(by_name, "attention_layers"), *rows_of(by_name, "attention_classes")]
    most = max(rows, key=lambda row: row["n"], default=None)
    of_pairs = any("b" in row for row in rows)
    few = few_sentences(most["n"], "pair" if of_pairs else "sentence") if most and not ends(most) else None
    return [few] if few else []


# --- changes between checkpoints, and fusion of layers ---


def _changes(changes: Table) -> Iterator[str]:
    padding = changes.where(measure="padding_as_published")
    shares = {"padding": padding[0]["value"]} if padding else {}
    for measure, baselines in _BASELINES_OF_CHANGES.items():
        layers, heads = layers_of_changes(changes, measure), heads_of_changes(changes, measure)
        if not layers:
            continue
        if all(row["value"] == 1 for row in (heads if measure == "cosine" else layers)):
            yield SENTENCES[f"{measure}_same"].format(**shares)
            continue
        least = _least(layers)
        of_head = {"head": name_of(_least(heads)), "head_value": _cosine(_least(heads))} if heads else {}
        value = _cosine(least, *_cosines_of_baselines(changes, least, baselines))
        yield SENTENCES[measure].format(layer=least["layer"], value=value, **of_head, **shares)
        unchanged = layers.where(value=1).layers()
        if unchanged and measure == "cosine":
            names = f"{'layer' if len(unchanged) == 1 else 'layers'} {', '.join(map(str, unchanged))}"
            yield SENTENCES["cosine_unchanged"].format(layers=names)


def _cosines_of_baselines(changes: Table, row: Row, baselines: Mapping[str, str]) -> list[str]:
    parts = []
    for of, words in baselines.items():
        for baseline in layers_of_changes(changes, row["measure"], of).where(layer=row["layer"]):
            if baseline["n"]:
                parts.append(f"{words}: {cosine_text(baseline['value'])}{_within(baseline)}")
    return parts


def _cosine(row: Row, *more: str) -> str:
    return f"{cosine_text(row['value'])}{in_brackets(interval(row, between=' to '), *more)}"


def _parameters(changes: Table) -> Iterator[str]:
    if matrices := changes.where(measure="parameters"):
        least, changed = _least(matrices), len(matrices.where(lambda row: row["value"] < 1))
        yield SENTENCES["parameters" if changed else "parameters_same"].format(
            n=len(matrices), changed=changed, have="has" if changed == 1 else "have", of=least["of"],
            value=cosine_text(least["value"]),
        )  # fmt: skip


def _fusion(rows: Table) -> Iterator[str]:
    if not rows:
        return
    for task, of_task in rows.where(measure="accuracy").by("task").items():
        yield _compared(of_task, rows.where(task=task, measure="difference", against="best layer"))
        if unfinished := of_task.where(converged="no"):
            yield SENTENCES["not_converged"].format(fusions=" and ".join(unfinished.column("fusion")), task=task)
    cosines = rows.where(measure="cosine")
    last = last_layer(cosines)
    parts = [f"{_value(last)} in layer {last['layer']}"]
    for name, words in {"equal": "the mean of the layers", "max": "max"}.items():
        parts += [f"{_value(row)} in {words}" for row in cosines.where(fusion=name)]
    for name in ("concat", "gate"):
        parts += [f"{_value(row)} in {name} for {row['task']}" for row in cosines.where(fusion=name)]
    yield SENTENCES["fused_cosines"].format(cosines=", ".join(parts))
    n = len(rows.where(lambda row: not math.isnan(row["p_value"]), measure="difference"))
    yield SENTENCES["fusion_limits"].format(corrected=SENTENCES["corrected"].format(n=n) if n else "")


def _compared(accuracies: Table, differences: Table) -> str:
    """Compare fusions with the best layer, since any other layer too may exceed the last layer."""
    best = best_layer(accuracies)
    return SENTENCES["fusion"].format(
        **{**best, "interval": in_brackets(interval(best, between=" to ", form=".1f", times=100))},
        changes=", ".join(f"{points(row, _p_value(row))} with {row['fusion']}" for row in differences),
    )


def _p_value(row: Row) -> str:
    p = row["p_value"]
    return "" if math.isnan(p) else "p below .001" if p < 0.001 else f"p {p:.3f}"


# --- position heads ---


def _position_heads(by_name: Tables) -> Iterator[str]:
    all_heads = rows_of(by_name, "position_heads").where(lambda row: "mass" in row)
    heads = position_heads(by_name)

    def phrase(name: str, row: Row, **more: Any) -> str:
        shares = {share: estimated(row, share) for share in ("mass", "word_mass")}
        return SENTENCES[name].format(head=name_of(row), offset=row["offset"], **shares, **more)

    if heads:
        several = "; ".join(phrase("position_head", row) for row in heads[:5])
        yield SENTENCES["position_heads"].format(n=len(heads), heads=_of_heads(all_heads), several=several)
    elif all_heads:
        yield phrase("no_position_heads", _most(all_heads, "word_mass"), heads=_of_heads(all_heads))
    if rows := heads.where(lambda row: "told" in row):
        yield SENTENCES["permuted_words"].format(
            n=len(rows.where(lambda row: row["told"] > row["told_true"])), heads=count(len(rows), "position head"),
            several=_several("head_permuted", rows),
        )  # fmt: skip


def _several(name: str, rows: Sequence[Row]) -> str:
    return "; ".join(SENTENCES[name].format_map({**row, "head": name_of(row)}) for row in rows[:5])


def _contrast(examined: Sequence[Row]) -> Iterator[str]:
    parts = []
    for row in [row for row in examined if "contrast" in row][:5]:
        logits = {
            name: estimated(row, name, ".2f") for name in ("contrast", "position_part", "bias_part") if name in row
        }
        bias = SENTENCES["bias"].format(**logits) if row.get("bias_part") else ""
        parts.append(SENTENCES["head_contrast"].format(head=name_of(row), bias=bias, **logits))
    if parts:
        yield SENTENCES["contrast"].format(several="; ".join(parts))


def _ranking(examined: Sequence[Row]) -> Iterator[str]:
    correlations = [f"{of}{end}" for of in ("spearman", "partial") for end in ("", "_heads", "_bases")]
    rows = [row for row in examined if not math.isnan(row.get("partial", math.nan))][:5]
    shown = [
        {**row, **{name: two_decimals(row[name]) for name in correlations}}
        for row in rows
        if row.keys() >= {*correlations}
    ]
    if shown:
        yield SENTENCES["ranking"].format(several=_several("head_ranking", shown))


def _ablation(ablated: Table) -> Iterator[str]:
    for ranking, first in _FIRST_NEURONS.items():
        if rows := ablated.where(ranking=ranking):
            yield SENTENCES["ablated"].format(
                k=rows[0]["k"], first=first, n=sum(row["contrast_matched_p"] < 0.05 for row in rows),
                heads=_of_heads(rows), several=_several("head_ablated", rows),
            )  # fmt: skip
