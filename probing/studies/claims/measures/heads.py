"""Measures of heads: relations, trees and neighbours, similarity within layers, ablation, tokens and readouts.

Intervals of differences and ratios are the widest that the two intervals allow, because covariances are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.interventions import MLM, POSITION, measure_of
from probing.results import Table, ends
from probing.runs import Result
from probing.statistics import ENDS
from probing.studies.ablate.tables import at_last_layer, is_head
from probing.studies.claims.claim import ClaimEstimate
from probing.studies.claims.measures.position import above_embeddings
from probing.studies.claims.measures.registry import (
    ModelRuns,
    NotMeasurable,
    by_ends,
    from_row,
    largest,
    least,
    measure,
    required,
    upper,
)
from probing.studies.hierarchy import ITSELF
from probing.tables.heads import SPECIAL, name_of, of_all_maps, of_measure

# A head attends to a neighbour, as in Clark et al. (2019, section 3.2), if it gives it more than this attention.
MOST = 0.5


@measure("attention")
def least_lead_over_offset(model_runs: ModelRuns, relations: Sequence[str]) -> ClaimEstimate:
    """Return the lead of the best head over the best fixed offset in recovering a relation: the least over relations.

    The head and the offset are chosen on other sentences. The control is the largest such lead of a head of a randomly
    initialised model over the same offsets. Relations are, for example, `det`.
    """
    of_relations = model_runs.run("attention").relations.where(relation=tuple(relations))
    rows = {row["relation"]: row for row in of_relations}
    if missing := [name for name in relations if name not in rows]:
        raise NotMeasurable(
            "a treebank as `--corpus`, with at least 100 arcs to choose a head by and 100 to test for each of "
            f"{', '.join(missing)}"
        )
    row = min(rows.values(), key=lambda row: row["difference"])
    untrained = max(row["untrained"] - row["offset_test"] for row in rows.values())
    return from_row(row, "difference", "difference", untrained)


@measure("attention")
def edges_of_best_head(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the share of a treebank's edges that are in the trees of the best head, chosen on other sentences.

    The control is the difference from the share of a chain of neighbouring words.
    """
    best = model_runs.run("attention").trees.where(measure="uuas", chosen="yes")
    row = required(best, "a treebank as `--corpus`")[0]
    return from_row(row, "test", "test", row["difference"])


@measure("attention")
def heads_at_neighbour(model_runs: ModelRuns, side: Literal["previous", "next"]) -> ClaimEstimate:
    """Return the number of heads with a mean attention of more than half to the previous or the next token.

    The lower end of the interval counts the heads whose whole interval is above a half, the upper end those whose
    interval reaches above a half. The control is the largest attention of any head to this neighbour.
    """
    rows = of_measure(model_runs.run("attention").heads, side)
    heads = [from_row(row) for row in required(rows, "a survey of heads with the part `profile`")]
    return by_ends(lambda values: sum(value > MOST for value in values), heads, max(head.value for head in heads))


@measure("attention")
def likeness_within_layers(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the excess of the divergence of heads of different layers over heads of one layer (Jensen-Shannon, nats).

    The interval is the widest that the intervals of the pairs of heads allow. The control is the share of heads whose
    most similar head is in the same layer, divided by the share that is expected by chance.
    """
    rows = of_measure(model_runs.run("attention").similarity, "jensen_shannon")
    within, between = (
        by_ends(np.mean, [from_row(row) for row in required(part, "two layers with two heads each")])
        for part in (
            [row for row in rows if (row["layer"] == row["other_layer"]) is is_within] for is_within in (True, False)
        )
    )
    return (between - within).beside(_nearest_in_layer(rows))


def _nearest_in_layer(rows: Sequence[Any]) -> float:
    """Return the share of heads whose nearest head is in the same layer, divided by the share expected by chance."""
    divergence: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    for row in rows:
        first, second = (row["layer"], row["head"]), (row["other_layer"], row["other_head"])
        divergence.setdefault(first, {})[second] = row["value"]
        divergence.setdefault(second, {})[first] = row["value"]
    in_layer, by_chance = [], []
    for head, others in divergence.items():
        nearest = min(others, key=others.__getitem__)
        in_layer.append(nearest[0] == head[0])
        by_chance.append(sum(layer == head[0] for layer, _ in others) / len(others))
    return float(np.mean(in_layer) / np.mean(by_chance))


# A treebank's relation of a subject to its predicate.
SUBJECT = "nsubj"
_ALL_ROLES = "all"


@measure("attention")
def least_role_excess(model_runs: ModelRuns, heads: Sequence[str] | None = None, n_heads: int = 2) -> ClaimEstimate:
    """Return the excess attention along role links over similar unlinked pairs: the least over heads.

    For each head, the direction with the higher score counts. The interval is of the score of the links alone. The
    control is the largest p-value of these heads; p-values are corrected for the choice among all heads. Without
    `heads`, such as 7-6, the `n_heads` with the highest scores are taken.
    """
    by_head: dict[str, Mapping[str, Any]] = {}
    for row in sorted(model_runs.run("attention").roles.where(role=_ALL_ROLES), key=lambda row: -row["score"]):
        by_head.setdefault(name_of(row), row)
    required(by_head, "a treebank as `--corpus`, with role links that have unlinked pairs which look alike")
    if missing := set(heads or ()) - set(by_head):
        raise NotMeasurable(f"the model has no head {min(missing)}")
    rows = [by_head[name] for name in heads] if heads else list(by_head.values())[:n_heads]
    rows = sorted(rows, key=lambda row: row["score"] - row["unlinked"])
    score, unlinked = from_row(rows[0], "score"), rows[0]["unlinked"]
    p_value = max(row["p_value"] for row in rows)
    return ClaimEstimate(score.value - unlinked, score.low - unlinked, score.high - unlinked, p_value)


@measure("attention")
def nearness_of_subject_head(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the attention to one neighbour, the previous or the next token, of the head that recovers subjects best.

    The head is chosen on other sentences. The control is its lead in recovering subjects over the best fixed offset: a
    head that only attends to a neighbour has no such lead.
    """
    run: Result = model_runs.run("attention")
    lacking = "a treebank as `--corpus`, with at least 100 subjects to choose a head by and 100 to test"
    best = required(run.relations.where(relation=SUBJECT), lacking)[0]
    at_neighbours = Table([row for name in ("previous", "next") for row in of_measure(run.heads, name)])
    near = at_neighbours.where(layer=best["layer"], head=best["head"])
    return from_row(max(near, key=lambda row: row["value"]), control=best["difference"])


@measure("ablated")
def spare_heads_of_positions(model_runs: ModelRuns, at_most: float) -> ClaimEstimate:
    """Return the share of heads without which positions are decoded as well, one head at a time: see `_spare`."""
    return _spare(model_runs.run("ablated"), POSITION, at_most)


@measure("ablated_words")
def spare_heads_of_words(model_runs: ModelRuns, at_most: float) -> ClaimEstimate:
    """Return the share of heads without which words are predicted as well, one head at a time: see `_spare`."""
    return _spare(model_runs.run("ablated_words"), MLM, at_most)


@measure("ablated")
def gain_for_positions(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the gain in decoding positions without one head or layer: see `_gain`."""
    return _gain(model_runs.run("ablated"), POSITION)


@measure("ablated_words")
def gain_for_words(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the gain in predicting words without one head or layer: see `_gain`."""
    return _gain(model_runs.run("ablated_words"), MLM)


def _spare(run: Result, readout: str, at_most: float) -> ClaimEstimate:
    """Return the share of heads, one at a time, whose ablation loses at most `at_most`, in units of the readout.

    The lower end of the interval counts the heads whose whole interval of the loss is within `at_most`, the upper end
    those for which a part of it is. The control is the share of layers whose heads can all be ablated together at such
    a loss, one layer at a time: at 1, this readout needs the heads of no single layer.
    """
    rows = at_last_layer(run.ablated, readout)
    heads, layers = (
        required([row for row in rows if is_head(row) is of_heads], "a run of `ablate` with heads and with layers")
        for of_heads in (True, False)
    )

    def share(gains: Sequence[float]) -> float:
        return sum(gain >= -at_most for gain in gains) / len(gains)

    control = share([gained(row, readout).value for row in layers])
    return by_ends(share, [gained(row, readout) for row in heads], control)


def _gain(run: Result, readout: str) -> ClaimEstimate:
    """Return the gain in the last layer without one head or without one layer: the larger of the two.

    The head and the layer are those whose removal gains most on one half of the sentences; the gain is measured on the
    other half. The control is its p-value, corrected for the number of comparisons.
    """
    rows = run.better_without.where(readout=readout)
    at_last = required(upper(rows, 1), "a run of `ablate` with more sentences")
    return largest(gained(row, readout).beside(row["p_value"]) for row in at_last)


def gained(row: Any, readout: str) -> ClaimEstimate:
    """Return the effect of a row with the sign by which more is better."""
    effect = from_row(row, "effect")
    return effect if measure_of(readout).higher_is_better else -effect


# --------------------------------------------------------------------------------------------------------------------
# Which classes the maps of attention heads have, and which tokens the layers attend to.
# --------------------------------------------------------------------------------------------------------------------

# Names that tokenizers give to the special tokens at the beginning and at the end of a sentence.
FIRST, LAST = ("[CLS]", "<s>"), ("[SEP]", "</s>")


@measure("attention", "pairs")
def rarest_class(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the share of maps that have the rarest of the five classes, over single sentences and pairs of them.

    Maps of single sentences cannot be of the class `block`. The control is the share of maps of pairs that would be of
    this class if the boundary of each pair were moved, divided by the measured share: below 1, some heads depend on the
    place of the boundary.
    """
    of_pairs, of_sentences = (_shares(model_runs.run(name)) for name in ("pairs", "attention"))
    rows = [*of_pairs.values(), *(row for name, row in of_sentences.items() if name != "block")]
    rarest, block = min(rows, key=lambda row: row["share"]), of_pairs["block"]
    control = block["share_moved"] / block["share"] if block["share"] else None
    return from_row(rarest, "share", control=control)


@measure("pairs")
def heterogeneous_share(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the share of heterogeneous maps, which have none of the other classes, over pairs of sentences.

    The control is the largest change of this share when all thresholds of the classes are 25% lower or higher.
    """
    run: Result = model_runs.run("pairs")
    row = _shares(run)["heterogeneous"]
    factors = run.attention_classes.values("factor")
    moved = [of_all_maps(run.by_name, factor)["heterogeneous"]["share"] for factor in factors]
    return from_row(row, "share", control=max(abs(share - row["share"]) for share in moved))


@measure("attention")
def words_in_stripes(model_runs: ModelRuns, types: Sequence[str]) -> ClaimEstimate:
    """Return the share of some types of words in the excess attention of these words and special tokens together.

    The value is x / (x + s). A token of the type, such as `NOUN` or `subject`, that gets most attention gets 1 + x
    times the attention to a mean word, and a special token 1 + s times; a negative x or s counts as 0. All of these are
    means over all heads, and words are all tokens that are not special. The control is the lift of special tokens (1
    under uniform attention) when weights are multiplied by the norms of the vectors that heads read.
    """
    run: Result = model_runs.run("attention")
    if missing := [word_type for word_type in types if not of_measure(run.attention_layers, "lift", word_type)]:
        raise NotMeasurable(f"a treebank as `--corpus`, with tokens of the types {', '.join(missing)}")
    lift = largest(_mean_over_layers(run, "lift", word_type) for word_type in types)
    mass, by_norm = (_mean_over_layers(run, name, SPECIAL) for name in ("mass", "norm_mass"))
    share = mass.value / _mean_over_layers(run, "lift", SPECIAL).value  # of the tokens

    def part(of_type: float, of_special: float) -> float:
        of_mean_word = (1 - of_special) / (1 - share)
        x, s = (max(lift_of / of_mean_word - 1, 0.0) for lift_of in (of_type, of_special / share))
        return x / (x + s) if x + s else 0.0

    ends = [part(*both) for both in product((lift.low, lift.high), (mass.low, mass.high))]
    return ClaimEstimate(part(lift.value, mass.value), min(ends), max(ends), control=by_norm.value / share)


@measure("attention")
def layers_from_first_to_last(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the number of layers from attention to the first special token to attention to the last one.

    Both are mean layers, weighted by the attention to `[CLS]` and to `[SEP]`, or to a tokenizer's equivalents. The
    interval is the widest that the intervals of the attention in each layer allow.
    """
    run: Result = model_runs.run("attention")
    return _mean_layer(run, LAST) - _mean_layer(run, FIRST)


@measure("attention")
def layers_from_last_to_punctuation(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the number of layers from attention to the last special token to attention to punctuation.

    The mean layers and their interval are computed as in `layers_from_first_to_last`.
    """
    run: Result = model_runs.run("attention")
    return _mean_layer(run, ("punctuation",)) - _mean_layer(run, LAST)


def _shares(run: Result) -> dict[str, Mapping[str, Any]]:
    return required(of_all_maps(run.by_name), "the run sorted no maps into classes")


def _mean_layer(run: Result, names: Sequence[str]) -> ClaimEstimate:
    """Return the mean layer, weighted by the attention to a type of tokens, which has one of these names.

    A weighted mean is monotone in each weight. It is therefore lowest if all layers up to a certain one have the upper
    ends of their intervals as weights, and all later layers the lower ends; and highest the other way round.
    """
    masses = {row["layer"]: from_row(row) for row in _of_first_known(run, "mass", names)}

    def mean(ends: Sequence[str]) -> float:
        weights = [getattr(mass, end) for mass, end in zip(masses.values(), ends, strict=True)]
        return sum(layer * weight for layer, weight in zip(masses, weights, strict=True)) / sum(weights)

    n = len(masses)
    low = min(mean(["high"] * k + ["low"] * (n - k)) for k in range(n + 1))
    high = max(mean(["low"] * k + ["high"] * (n - k)) for k in range(n + 1))
    return ClaimEstimate(mean(["value"] * n), low, high)


def _mean_over_layers(run: Result, name: str, to: str) -> ClaimEstimate:
    return _mean(of_measure(run.attention_layers, name, to))


def _of_first_known(run: Result, measure: str, names: Sequence[str]) -> Table:
    """Return a measure of each layer, ascending, for the first of these special tokens that the tokenizer has."""
    known = (rows for name in names if (rows := of_measure(run.attention_layers, measure, name)))
    rows = required(next(known, Table()), f"a tokenizer with a special token {' or '.join(names)}")
    return Table(sorted(rows, key=lambda row: row["layer"]))


# The first token of BERT's sequences and of RoBERTa's, as the survey of heads names it.
_FIRST = ("[CLS]", "<s>")
_SPECIAL = "special tokens"


@measure("heads")
def heads_idle_at_first_token(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the share of heads that attend much to the first token and read their shortest vectors there.

    A head attends much to a token that gets more attention than its share of the tokens (`lift` above 1). The norm of
    the vectors that are read from a type of tokens is its mass by norm divided by its mass by weight; the first token
    has the least if words and every other type of tokens have a larger one. The control is the share of heads for which
    both are true of the last special token.
    """
    by_head: dict[tuple[int, int], dict[str, dict[str, float]]] = {}
    for row in model_runs.run("heads").heads:
        if row["measure"] in ("lift", "mass", "norm_mass"):
            of_type = by_head.setdefault((row["layer"], row["head"]), {}).setdefault(row["to"], {})
            of_type[row["measure"]] = row["value"]
    types = next(iter(by_head.values()), {})
    first = next((name for name in _FIRST if name in types), None)
    if first is None or _SPECIAL not in types:
        raise NotMeasurable("its sequences have no [CLS] or <s>, or heads were not measured")
    last = next((name for name in ("[SEP]", "</s>") if name in types), None)
    idle = [_is_idle(head, first) for head in by_head.values()]
    others = [_is_idle(head, last) for head in by_head.values()] if last else []
    control = sum(others) / len(others) if others else None
    return ClaimEstimate.exact(sum(idle) / len(idle), control=control)


def _is_idle(head: Mapping[str, Mapping[str, float]], name: str) -> bool:
    norms = {
        token_type: _ratio(of["norm_mass"], of["mass"]) for token_type, of in head.items() if token_type != _SPECIAL
    }
    norms["words"] = _ratio(1 - head[_SPECIAL]["norm_mass"], 1 - head[_SPECIAL]["mass"])
    token_norm = norms.pop(name)
    return head[name]["lift"] > 1 and all(token_norm < other for other in norms.values())


def _ratio(by_norm: float, by_weight: float) -> float:
    return by_norm / by_weight if by_weight > 0 else 0.0


@measure("attention")
def attention_to_last_token(model_runs: ModelRuns, from_depth: float, to_depth: float) -> ClaimEstimate:
    """Return the least attention to the last special token, such as `[SEP]`, over the layers of a range.

    The range is given in shares of the number of blocks. The control is the largest such attention in any layer.
    """
    rows = _of_first_known(model_runs.run("attention"), "mass", LAST)
    depth = max(rows.column("layer"))
    inside = rows.where(lambda row: from_depth * depth <= row["layer"] <= to_depth * depth)
    row = min(required(inside, "a model with more layers"), key=lambda row: row["value"])
    return from_row(row, control=max(rows.column("value")))


@measure("attention")
def rise_at_last_token(model_runs: ModelRuns, from_depth: float) -> ClaimEstimate:
    """Return the rise in mean attention to the last special token from lower to upper layers.

    The control is the same when weights are multiplied by the norms of the vectors that heads read there. `from_depth`
    is the least depth of an upper layer, as a share of the number of blocks.
    """
    run = model_runs.run("attention")
    by_weight, by_norm = (_rise(_of_first_known(run, name, LAST), from_depth) for name in ("mass", "norm_mass"))
    return by_weight.beside(by_norm.value)


@measure("attention")
def norm_over_weight(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the ratio of attention to special tokens by norms of the values to that by weight: the most over layers.

    The control is the least lift of special tokens by weight over the layers: above 1, they get more attention than
    under uniform attention in every layer.
    """
    layers: Table = model_runs.run("attention").attention_layers
    by_layer: dict[int, dict[str, Mapping[str, Any]]] = {}
    for name in ("mass", "norm_mass", "lift"):
        for row in of_measure(layers, name, SPECIAL):
            by_layer.setdefault(row["layer"], {})[name] = row
    if not by_layer or any(len(rows) < 3 for rows in by_layer.values()):
        raise NotMeasurable("special tokens that are attended to")
    ratios = []
    for rows in by_layer.values():
        norm, weight = from_row(rows["norm_mass"]), from_row(rows["mass"])
        ratios.append(ClaimEstimate(norm.value / weight.value, norm.low / weight.high, norm.high / weight.low))
    return largest(ratios).beside(min(rows["lift"]["value"] for rows in by_layer.values()))


def _rise(rows: Table, from_depth: float) -> ClaimEstimate:
    depth = max(rows.column("layer"))
    return _mean(upper(rows, from_depth)) - _mean(rows.where(lambda row: row["layer"] < from_depth * depth))


def _mean(rows: Sequence[Mapping[str, Any]]) -> ClaimEstimate:
    estimates = [from_row(row) for row in required(rows, "a model with more layers")]
    return by_ends(lambda values: sum(values) / len(values), estimates)


# --------------------------------------------------------------------------------------------------------------------
# Effects of clipping, whitening and static vectors on word senses, similarity of sentences, and sentence labels.
# --------------------------------------------------------------------------------------------------------------------

_NOTHING: Mapping[str, Sequence[float]] = MappingProxyType({})
_NO_LEADS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


@measure("senses")
def gain_on_senses(
    model_runs: ModelRuns, transform: str, published: Mapping[str, Sequence[float]] = _NOTHING
) -> ClaimEstimate:  # fmt: skip
    """Return the gain in accuracy on WiC by a transform, on pairs on which neither layer nor threshold was chosen.

    The interval is of paired answers. The control is the largest difference from the published accuracies, plain and
    transformed, when accuracies are computed as published, with layer and threshold chosen on the reported pairs.
    """
    rows = model_runs.run("senses").chosen
    control = None
    if model_runs.model in published:
        accuracies = [_of_senses(rows, "published", space)["accuracy"] for space in ("none", transform)]
        control = max(abs(a - b) for a, b in zip(accuracies, published[model_runs.model], strict=True))
    return from_row(_of_senses(rows, "held_out", transform), "gain", "gain", control)


@measure("senses")
def lead_on_senses(model_runs: ModelRuns, transform: str, over: str) -> ClaimEstimate:
    """Return the lead in accuracy on WiC of one transform over another, on held-out pairs."""
    rows = model_runs.run("senses").chosen
    gain, other_gain = (from_row(_of_senses(rows, "held_out", space), "gain", "gain") for space in (transform, over))
    return gain - other_gain


@measure("senses")
def change_of_threshold(model_runs: ModelRuns, transform: str) -> ClaimEstimate:
    """Return the change of the best of the nine thresholds by a transform, chosen in the published way."""
    rows = model_runs.run("senses").chosen
    plain, changed = (_of_senses(rows, "published", space)["threshold"] for space in ("none", transform))
    return ClaimEstimate.exact(round(changed - plain, 9))  # of tenths


@measure("similarity")
def least_gain_on_sets(
    model_runs: ModelRuns, transform: str, sets: Sequence[str], leads: Mapping[str, Mapping[str, Any]] = _NO_LEADS
) -> ClaimEstimate:  # fmt: skip
    """Return the gain in Spearman's correlation by a transform, at layers chosen on other pairs: the least over sets.

    All pairs of a set are taken together; the interval is over pairs. The control is the number of missing sets.

    For some models, by name, `leads` has a lead of the transform that the paper also claims: `over` which other
    transform, `by` how much, and on which `sets`. The measured lead minus the claimed one counts as a further gain; its
    interval is the widest that the intervals of both transforms allow.
    """
    gains = _gains(model_runs, transform, sets)
    lead, excess = leads.get(model_runs.model, {}), list[ClaimEstimate]()
    if shared_sets := [name for name in lead.get("sets", ()) if name in gains]:
        others, by = _gains(model_runs, lead["over"], shared_sets), ClaimEstimate.exact(lead["by"])
        excess = [gains[name] - other - by for name, other in others.items()]
    return least([*gains.values(), *excess]).beside(len(sets) - len(gains))


def _gains(model_runs: ModelRuns, transform: str, sets: Sequence[str]) -> dict[str, ClaimEstimate]:
    rows = _of_sets(model_runs, "mean", transform, sets)
    return {name: from_row(row, "gain", "gain") for name, row in rows.items()}


@measure("similarity")
def least_lead_of_static(model_runs: ModelRuns, transform: str, sets: Sequence[str]) -> ClaimEstimate:
    """Return the lead of static vectors over a transform: the least over sets; see `least_gain_on_sets`."""
    pairs = _beside_static(model_runs, transform, sets)
    return least(static - transformed for transformed, static in pairs).beside(len(sets) - len(pairs))


@measure("similarity")
def least_lead_over_static(model_runs: ModelRuns, transform: str, sets: Sequence[str]) -> ClaimEstimate:
    """Return the lead of a transform over static vectors: the least over sets; see `least_gain_on_sets`."""
    pairs = _beside_static(model_runs, transform, sets)
    return least(transformed - static for transformed, static in pairs).beside(len(sets) - len(pairs))


@measure("labels")
def change_of_accuracy_on_labels(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the change of the accuracy on labels of sentences by clipping: the most over layers with outliers.

    Probes read the mean of a sentence's tokens (Luo, Kulmizev & Mao 2021, table 3): one reads the unchanged states, the
    other the states with the outliers clipped. The interval is of paired answers. The control is the lead of the probe
    of the unchanged states over the most frequent label, the least over layers: where this probe has learned nothing,
    clipping can remove nothing.
    """
    rows = above_embeddings(model_runs.run("labels").accuracy).where(lambda row: row["n_clipped"] > 0)
    differences = [
        ClaimEstimate(row["accuracy"] - row["untransformed_accuracy"], *apart)
        for row in required(rows, "no layer has an outlier that could be clipped")
        if (apart := ends(row, "above_untransformed")) is not None
    ]
    required(differences, "the run has no interval, for which it would need more sentences")
    learned = min(row["untransformed_accuracy"] - row["majority_accuracy"] for row in rows)
    return largest(map(abs, differences)).beside(learned)


def _of_senses(rows: Table, protocol: str, transform: str) -> Mapping[str, Any]:
    lacking = f"the run has no {transform} vectors, such as where no layer has an outlier"
    return required(rows.where(protocol=protocol, transform=transform), lacking)[0]


def _of_sets(model_runs: ModelRuns, pooling: str, transform: str, sets: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the row of each available set, over all its pairs and at a layer chosen on other pairs.

    If a set has several parts, such as `STS-B dev` and `STS-B test`, its test part counts.
    """
    chosen: Table = model_runs.run("similarity").chosen
    set_rows: dict[str, Mapping[str, Any]] = {}
    for row in chosen.where(protocol="held_out", pooling=pooling, transform=transform, aggregation="all"):
        name = row["set"].split(" ")[0]
        if name in sets and (name not in set_rows or row["set"].endswith(" test")):
            set_rows[name] = row
    needed = "`--static`" if pooling == "static" else "one of the sets: " + ", ".join(sets)
    return required(set_rows, f"the run would need {needed}")


def _beside_static(
    model_runs: ModelRuns, transform: str, sets: Sequence[str]
) -> list[tuple[ClaimEstimate, ClaimEstimate]]:
    transformed, static = (_of_sets(model_runs, *how, sets) for how in (("mean", transform), ("static", "none")))
    return [
        (from_row(transformed[name], "spearman"), from_row(static[name], "spearman"))
        for name in transformed
        if name in static
    ]


# The runs that the measures read.
Task = Literal["parts_of_speech", "relations"]
# Half the width of a 95% interval of a normal distribution, in sd.
_HALF_WIDTH = 1.96
_DRAWS = 2000


@measure("parts_of_speech", "relations")
def layers_from_speech_to_syntax(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the number of layers from parts of speech to relations: the difference of expected layers.

    The expected layer is sum_l l d_l / sum_l d_l (Tenney et al. 2019, section 2), where d_l is the gain of layer l over
    the best accuracy of the layers below it, the embeddings included. Tenney et al. mix all layers up to l.

    The ends of the interval are the quantiles 2.5% and 97.5% of the difference over 2,000 draws, in which each accuracy
    is drawn from a normal distribution as wide as its interval. Layers are drawn independently, although all are tested
    on the same words; this makes the interval too wide rather than too narrow.
    """
    draws = np.random.default_rng(0)
    values, drawn = [], []
    for task in ("parts_of_speech", "relations"):
        rows = _rows(model_runs.run(task).accuracy)
        means = np.array([row["accuracy"] for row in rows])
        widths = np.array([row["accuracy_high"] - row["accuracy_low"] for row in rows])
        values.append(float(expected_layer(means)))
        drawn.append(expected_layer(draws.normal(means, widths / (2 * _HALF_WIDTH), (_DRAWS, len(rows)))))
    shift = values[1] - values[0]
    low, high = (float(np.quantile(drawn[1] - drawn[0], end)) for end in ENDS)
    return ClaimEstimate(shift, min(low, shift), max(high, shift))


@measure("parts_of_speech", "relations")
def lead_of_middle_layers(model_runs: ModelRuns, task: Task) -> ClaimEstimate:
    """Return the lead in accuracy of the best middle layer over the best other layer.

    Middle layers are the second third of the blocks; the other layers include the embeddings. The control is the same
    difference for a randomly initialised model.
    """
    rows = _rows(model_runs.run(task).accuracy)
    if "untrained_accuracy" not in rows[0]:
        raise NotMeasurable("a run with the control `untrained`")
    return _lead_of_middle_layers(rows, rows.column("untrained_accuracy"), "accuracy")


@measure("spans")
def lead_over_tokens_of_spans(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the lead in accuracy of the labels of spans over a probe of their tokens alone, in the best layer.

    The control is the lead over a randomly initialised model in this layer.
    """
    rows = above_embeddings(model_runs.run("spans").accuracy)
    best = max(required(rows, "a model with layers above the embeddings"), key=lambda row: row["accuracy"])
    lead, untrained = (best["accuracy"] - best[f"{name}_accuracy"] for name in ("token", "untrained"))
    return from_row({**best, "lead": lead}, "lead", "above_token", untrained)


@measure("structural")
def lead_of_middle_layers_in_trees(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the same lead in the share of the edges of dependency trees that a structural probe recovers."""
    trained, untrained = (
        _rows(model_runs.run("structural").trees.where(condition=name)) for name in (ITSELF, "untrained")
    )
    return _lead_of_middle_layers(trained, untrained.column("uuas"), "uuas")


def _lead_of_middle_layers(rows: Table, untrained: Sequence[float], score: str) -> ClaimEstimate:
    depth = rows[-1]["layer"]
    middle, others = (
        Table([row for row in rows if (depth < 3 * row["layer"] <= 2 * depth) is is_middle])
        for is_middle in (True, False)
    )
    required(middle, "a model with a block in its second third")
    best, other = (from_row(max(part, key=lambda row: row[score]), score, score) for part in (middle, others))
    of_middle, of_others = (max(untrained[row["layer"]] for row in part) for part in (middle, others))
    return (best - other).beside(of_middle - of_others)


def expected_layer(accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the expected layer, (...,), from accuracies, (..., n_layers); 0 if no layer improves on the embeddings."""
    best = np.maximum.accumulate(accuracies, axis=-1)
    added = np.diff(best, axis=-1)
    total = added.sum(-1)
    weighted = (added * np.arange(1, best.shape[-1])).sum(-1)
    return np.divide(weighted, total, out=np.zeros_like(weighted), where=total > 0)


def _rows(of_layers: Table) -> Table:
    rows = Table(sorted(of_layers, key=lambda row: row["layer"]))
    if rows.column("layer") != list(range(len(rows))) or len(rows) < 2:
        raise NotMeasurable("a run of all layers")
    return rows


@measure("pooling")
def least_lead_of_pooling(model_runs: ModelRuns, pooling: str, over: str) -> ClaimEstimate:
    """Return the lead in Spearman's correlation of one pooling over another, the least over the sets.

    Both are of the last layer, over all pairs of a set together. The control is the least lead when the layer of each
    pooling is chosen on other pairs; None if the run chose no layers.
    """
    run: Result = model_runs.run("pooling")
    last = max(run.sts.column("layer"))
    last_leads = _leads(run.sts.where(layer=last), pooling, over)
    chosen = _leads(run.chosen.where(protocol="held_out"), pooling, over)
    required(last_leads, f"a run of `sts` with the poolings {pooling} and {over}")
    return least(last_leads).beside(min((lead.value for lead in chosen), default=None))


def _leads(rows: Table, pooling: str, over: str) -> list[ClaimEstimate]:
    by_set = rows.where(transform="none", aggregation="all").by("set").values()
    by_pooling = [{row["pooling"]: row for row in of_set} for of_set in by_set]
    both = [of_set for of_set in by_pooling if {pooling, over} <= set(of_set)]
    return [from_row(of_set[pooling], "spearman") - from_row(of_set[over], "spearman") for of_set in both]
