"""The measures of claims: functions of finished runs that return one number each.

Intervals of differences are the widest that the two intervals allow, and wider than for paired differences, because
covariances are not known: see `difference`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist, median
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probing.interventions import RANDOM, TUNED, TUNED_R2
from probing.results import Table
from probing.runs import Result
from probing.statistics import spearman
from probing.studies.ablate.tables import MAGNITUDE, MEAN, at_last_layer, is_head
from probing.studies.claims.claim import ClaimEstimate
from probing.studies.claims.measures.heads import gained
from probing.studies.claims.measures.position import above_embeddings
from probing.studies.claims.measures.registry import MEASURES as MEASURES
from probing.studies.claims.measures.registry import (
    ModelRuns,
    NotMeasurable,
    Role,
    by_ends,
    from_row,
    largest,
    least,
    measure,
    required,
)
from probing.studies.finetune.tables import CONSTANT, MAJORITY, PRETRAINED, SHUFFLED
from probing.studies.finetune.tables import RANDOM as RANDOM_START

Rows = Mapping[int, Mapping[str, Any]]


@measure("geometry")
def growth(model_runs: ModelRuns, of: str) -> ClaimEstimate:
    """Return Spearman's correlation of a measure, such as `mean_cosine`, with the number of the layer."""
    rows = by_layer(model_runs.run("geometry"), of)
    if len({row["value"] for row in rows.values()}) < 3:
        raise NotMeasurable(f"fewer than three layers have a {of.replace('_', ' ')} of their own")
    layers, values = (rankdata(numbers) for numbers in (list(rows), [row["value"] for row in rows.values()]))
    return ClaimEstimate.exact(float(spearman(layers, values)))


@measure("geometry")
def least_mean_cosine(model_runs: ModelRuns, first_layer: int = 1) -> ClaimEstimate:
    """Return the least mean cosine over the layers from `first_layer` on; the control is the mean cosine of layer 0."""
    every = by_layer(model_runs.run("geometry"), "mean_cosine")
    control = every[0]["value"] if 0 in every else None
    return least(from_row(row, control=control) for row in _from(every, first_layer).values())


@measure("geometry")
def clipped_mean_cosine(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the largest mean cosine with outliers clipped, over the layers above the embeddings that have outliers.

    The control is the largest change of the mean cosine in these layers when as many random neurons are clipped.
    """
    geometry: Result = model_runs.run("geometry")
    clipped, plain = _clipped(geometry, "mean_cosine"), by_layer(geometry, "mean_cosine")
    random = by_layer(geometry, "mean_cosine", "clip_random")
    changes = [abs(random[layer]["value"] - plain[layer]["value"]) for layer in clipped if layer in random]
    control = max(changes) if changes else None
    return largest(from_row(row, control=control) for row in clipped.values())


@measure("geometry")
def least_clipped_mean_cosine(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the least mean cosine with outliers clipped, over the layers above the embeddings that have outliers."""
    return least(map(from_row, _clipped(model_runs.run("geometry"), "mean_cosine").values()))


@measure("geometry")
def share_removed_by_clipping(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the share of the mean cosine that clipping removes: the median over the layers above the embeddings.

    A layer without an outlier counts as 0. The interval of a layer's share follows from the interval of the clipped
    mean cosine. The control is the median of the shares that clipping random neurons removes.
    """
    geometry: Result = model_runs.run("geometry")
    plain = _from(by_layer(geometry, "mean_cosine"), 1)
    clipped, random = (by_layer(geometry, "mean_cosine", kind) for kind in ("clip", "clip_random"))
    _clipped(geometry, "mean_cosine")  # refuses models without outliers

    def removed(layer: int) -> ClaimEstimate:
        if layer not in clipped:
            return ClaimEstimate.exact(0.0)
        clipped_cosine, whole = from_row(clipped[layer]), plain[layer]["value"]
        return ClaimEstimate(
            1 - clipped_cosine.value / whole, 1 - clipped_cosine.high / whole, 1 - clipped_cosine.low / whole
        )

    shares = [removed(layer) for layer in plain]
    others = [1 - random[layer]["value"] / plain[layer]["value"] if layer in random else 0.0 for layer in plain]
    return by_ends(median, shares, median(others))


@measure("geometry")
def least_removed_by_clipping(model_runs: ModelRuns, first_layer: int = 1) -> ClaimEstimate:
    """Return the decrease of the mean cosine by clipping, 0 without an outlier: the least from `first_layer` on."""
    geometry: Result = model_runs.run("geometry")
    plain, clipped = by_layer(geometry, "mean_cosine"), _clipped(geometry, "mean_cosine")
    return least(
        from_row(row) - from_row(clipped[layer]) if layer in clipped else ClaimEstimate.exact(0.0)
        for layer, row in _from(plain, first_layer).items()
    )


@measure("geometry")
def least_gain_of_self_similarity(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the gain in adjusted self-similarity by clipping, 0 without an outlier: the least above the embeddings."""
    geometry: Result = model_runs.run("geometry")
    plain = _from(by_layer(geometry, "self_similarity_adjusted"), 1)
    clipped = _clipped(geometry, "self_similarity_adjusted")
    return least(
        from_row(clipped[layer]) - from_row(row) if layer in clipped else ClaimEstimate.exact(0.0)
        for layer, row in plain.items()
    )


@measure("geometry")
def rank_in_cosines(model_runs: ModelRuns, roles: list[Role] | None = None) -> ClaimEstimate:
    """Return the rank of an outlier by its share of the mean cosine: the worst over the layers above the embeddings.

    If there are several outliers, the one that ranks first in a layer counts there.
    """
    chosen = set(model_runs.outliers(roles).values())
    shares: dict[int, list[tuple[float, int]]] = {}
    for row in above_embeddings(model_runs.run("geometry").dimensions):
        shares.setdefault(row["layer"], []).append((-row["cosine_share"], row["neuron"]))
    ranks = [
        1 + min(i for i, (_, neuron) in enumerate(sorted(layer_shares)) if neuron in chosen)
        for layer_shares in shares.values()
    ]
    return ClaimEstimate.exact(max(ranks), neurons=tuple(sorted(chosen)))


@measure("geometry")
def variation_of_outlier(model_runs: ModelRuns, roles: list[Role] | None = None) -> ClaimEstimate:
    """Return the standard deviation of an outlier over tokens divided by its absolute mean: the largest over layers.

    The control is the smallest such ratio of any other neuron in any layer above the embeddings.
    """
    chosen = set(model_runs.outliers(roles).values())
    rows = above_embeddings(model_runs.run("geometry").dimensions).where(lambda row: row["mean"] != 0)
    shares = [(row["neuron"] in chosen, row["sd"] / abs(row["mean"])) for row in rows]
    return ClaimEstimate.exact(
        max(share for is_outlier, share in shares if is_outlier),
        control=min(share for is_outlier, share in shares if not is_outlier),
        neurons=tuple(sorted(chosen)),
    )


@measure("held_out")
def largest_whitened_mean_cosine(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the largest magnitude of the mean cosine above the embeddings, with whitening fitted on another corpus."""
    rows = _from(by_layer(model_runs.run("held_out"), "mean_cosine", "whiten"), 1)
    return largest(abs(from_row(row)) for row in rows.values())


def by_layer(geometry: Result, name: str, transform: str = "none") -> dict[int, Mapping[str, Any]]:
    """Return the row of a measure in each layer, by ascending layers."""
    rows = geometry.geometry.where(transform=transform, measure=name)
    return {row["layer"]: row for row in sorted(rows, key=lambda row: row["layer"])}


def _from(rows: Rows, first_layer: int) -> dict[int, Mapping[str, Any]]:
    selected = {layer: row for layer, row in rows.items() if layer >= first_layer}
    return required(selected, f"nothing was measured in layers from {first_layer} on")


def _clipped(geometry: Result, name: str) -> dict[int, Mapping[str, Any]]:
    """Return the rows of clipped states above the embeddings."""
    rows = {layer: row for layer, row in by_layer(geometry, name, "clip").items() if layer}
    return required(rows, "no layer above the embeddings has an outlier that could be clipped")


@measure("attention")
def least_similarity_of_maps(model_runs: ModelRuns, from_depth: float) -> ClaimEstimate:
    """Return the least cosine of the maps of two consecutive layers, in the layers from a depth on.

    `from_depth` is the least depth of the first of the two layers, as a share of the number of blocks. The control is
    the same without special tokens, whose columns make any two maps alike.
    """
    run: Result = model_runs.run("attention")
    lowest = []
    for name in ("cosine", "cosine_without_special"):
        rows = run.similarity.where(measure=name)
        depth = max((row["other_layer"] for row in rows), default=0)
        upper = [from_row(row) for row in rows if row["layer"] >= from_depth * depth]
        lowest.append(least(required(upper, "two consecutive layers")))
    as_published, without = lowest
    return as_published.beside(without.value)


@measure("change")
def lead_of_change_in_last_layers(model_runs: ModelRuns, n_layers: int) -> ClaimEstimate:
    """Return the lead in change of the maps of two checkpoints in each of the last `n_layers` over any lower one.

    The value is the least cosine of the maps (mean over heads) in the lower layers minus the largest in the last ones.
    The control is the least Jensen-Shannon divergence of the maps' rows in the last layers minus the largest in the
    lower ones; unlike the cosine, the divergence does not make any two maps look alike.
    """
    by_cosine, by_divergence = (lead_of_last(model_runs.run("change"), n_layers, name) for name in _LIKENESS)
    return by_cosine.beside(by_divergence.value)


# How alike the maps of two checkpoints are, and the sign of a measure that is larger where they are more alike.
_LIKENESS: Mapping[str, int] = MappingProxyType({"cosine": 1, "jensen_shannon": -1})


def lead_of_last(run: Result, n_layers: int, name: str = "cosine") -> ClaimEstimate:
    """Return the lead in change of the maps of each of the last layers over any lower one.

    `run` is a survey of a model and another checkpoint; `name` is the measure, `cosine` or `jensen_shannon`.
    """
    sign = _LIKENESS[name]
    of_layers = run.change.where(lambda row: not row.get("head"), measure=name, of="same")
    rows = sorted(of_layers, key=lambda row: row["layer"])
    if len(rows) <= n_layers:
        raise NotMeasurable("more layers than these")
    lower, last = rows[:-n_layers], rows[-n_layers:]
    least_alike = from_row(min(lower, key=lambda row: sign * row["value"]))
    most_alike = from_row(max(last, key=lambda row: sign * row["value"]))
    return least_alike - most_alike if sign > 0 else most_alike - least_alike


@measure("fusion")
def least_gain_by_fusion(model_runs: ModelRuns, fusion: str) -> ClaimEstimate:
    """Return the gain in accuracy of a fusion of layers, such as `gate`, over the last layer: the least over tasks.

    The control is the gain over the layer that is best on validation sentences: if the last layer is not the best one,
    choosing a better layer is a gain, too.
    """
    rows = _fused(model_runs, fusion).where(measure="difference")
    over_last, over_best = (
        min(rows.where(against=against), key=lambda row: row["value"]) for against in ("last layer", "best layer")
    )
    return from_row(over_last, control=over_best["value"])


@measure("fusion")
def similarity_after_fusion(model_runs: ModelRuns, fusion: str) -> ClaimEstimate:
    """Return the gain in similarity of a sentence's tokens by a fusion, over the last layer: the largest over tasks.

    The control is the same difference for the plain mean of the layers, which has no learned weights.
    """
    fused = largest(map(from_row, _fused(model_runs, fusion).where(measure="cosine")))
    others: Table = model_runs.run("fusion").fusion.where(measure="cosine")
    last = from_row(max(others.where(fusion="layer"), key=lambda row: row["layer"]))
    (mean,) = others.where(fusion="equal").column("value")
    return (fused - last).beside(mean - last.value)


def _fused(model_runs: ModelRuns, fusion: str) -> Table:
    rows: Table = model_runs.run("fusion").fusion.where(fusion=fusion)
    return required(rows, "a task whose labels the corpus has")


SIMILARITY = "token_similarity"

_Z = NormalDist().inv_cdf(0.975)

_LEAST_SENTENCES = 20

_NO_BLOCKS = "post-LN blocks, which the bound is about"


@measure("geometry")
def last_token_similarity(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the mean cosine of two tokens of a sentence in the last layer.

    The control is Spearman's correlation of this cosine with the number of the layer.
    """
    rows = by_layer(model_runs.run("geometry"), SIMILARITY)
    return from_row(rows[max(rows)], control=_growth([row["value"] for row in rows.values()]))


@measure("geometry")
def growth_of_token_similarity(model_runs: ModelRuns) -> ClaimEstimate:
    """Return Spearman's correlation of the mean cosine of two tokens of a sentence with the number of the layer.

    The control is the same with outliers clipped, in the layers that have any: tokens that share one large neuron are
    alike in spite of other differences.
    """
    geometry: Result = model_runs.run("geometry")
    plain, clipped = (by_layer(geometry, SIMILARITY, transform) for transform in ("none", "clip"))
    clipped_values = [clipped.get(layer, row)["value"] for layer, row in plain.items()]
    return ClaimEstimate.exact(_growth([row["value"] for row in plain.values()]), control=_growth(clipped_values))


@measure("geometry")
def least_share_within_bound(model_runs: ModelRuns, bound: str) -> ClaimEstimate:
    """Return the share of sentences whose distance to equal rows is within a bound, the least over blocks.

    `bound` is a column of `smoothing_sentences.csv`, such as `bound_per_matrix`. The control is the largest share of
    the bound that any sentence reaches: far below 1, the bound is not informative.
    """
    geometry: Result = model_runs.run("geometry")
    shares = [from_row(row) for row in geometry.smoothing if row["measure"] == f"share_within_{bound}"]
    reached = [
        row["distance_after"] / (row[bound] * row["distance_before"])
        for row in geometry.smoothing_sentences
        if row["distance_before"] > 0
    ]
    required(reached, _NO_BLOCKS)
    return least(required(shares, _NO_BLOCKS)).beside(max(reached))


@measure("geometry")
def largest_reach_of_attention(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the largest share of its bound in Lemma 1 that the attention of a head reaches, over blocks and sentences.

    Above 1, the lemma would not hold; it is rounded to six decimals, because the model computes in float32.
    """
    rows = required(model_runs.run("geometry").smoothing_sentences, _NO_BLOCKS)
    reaches = [row.get("attention_reach") for row in rows]
    if None in reaches:
        raise NotMeasurable("a run of a later version of this program: name another folder by `--runs`")
    return ClaimEstimate.exact(round(max(reach for reach in reaches if not math.isnan(reach)), 6))


@measure("geometry")
def norms_and_smoothing(model_runs: ModelRuns) -> ClaimEstimate:
    """Return Spearman's correlation over sentences of the last block's norm divisors with the distance that it leaves.

    The divisors are the product of the least standard deviations of tokens that enter the block's two LayerNorms. The
    distance is to equal rows, after the block divided by before it. The interval is by Bonett & Wright (2000). The
    control is the partial correlation given the length of sentences: in a longer sentence, the minimum over more tokens
    is lower.
    """
    rows = model_runs.run("geometry").smoothing_sentences.where(lambda row: row["distance_before"] > 0)
    last = rows.where(layer=max(rows.values("layer"), default=0))
    if len(last) < _LEAST_SENTENCES:
        raise NotMeasurable(f"at least {_LEAST_SENTENCES} sentences of several tokens" if last else _NO_BLOCKS)
    products = _ranks([row["sigma_1"] * row["sigma_2"] for row in last])
    ratios = _ranks([row["distance_after"] / row["distance_before"] for row in last])
    lengths = _ranks([row["n_tokens"] for row in last])
    correlation = float(spearman(products, ratios))
    with_lengths = [float(spearman(ranks, lengths)) for ranks in (products, ratios)]
    return ClaimEstimate(correlation, *_interval(correlation, len(last)), control=_partial(correlation, *with_lengths))


def _growth(values: list[float]) -> float:
    if len(set(values)) < 3:
        raise NotMeasurable("at least three layers")
    return float(spearman(_ranks(range(len(values))), _ranks(values)))


def _ranks(values: Any) -> NDArray[np.float64]:
    ranks: NDArray[np.float64] = rankdata(values)
    return ranks


def _interval(correlation: float, n: int) -> tuple[float, float]:
    """Return the interval of Spearman's correlation of n pairs by Fisher's transform (Bonett & Wright 2000)."""
    if abs(correlation) >= 1:
        return correlation, correlation
    half = _Z * math.sqrt((1 + correlation**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(correlation) + sign * half) for sign in (-1, 1))
    return low, high


def _partial(correlation: float, first: float, second: float) -> float | None:
    """Return a partial correlation given a third quantity; `first` and `second` are the correlations with it.

    The correlation is returned unchanged if the third quantity is constant, as where all sentences are equally long. It
    is None if the third quantity determines one of the two.
    """
    if math.isnan(first) or math.isnan(second):
        return correlation
    unexplained = (1 - first**2) * (1 - second**2)
    return (correlation - first * second) / math.sqrt(unexplained) if unexplained > 0 else None


# By which order heads are pruned.
_IMPORTANCE = "importance"

_MORE_SENTENCES = "a labelled text with more sentences"


@measure("tuned")
def least_gain_by_tuning(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the lesser of two gains: tuning over the constant answer, and pretraining over a tuned random start.

    The constant answer is the most frequent class, or the mean of numbers, as an untrained head gives. Intervals are
    over seeds, orders and test sentences. The control is the gain of tuning on shuffled labels over the constant
    answer, as a share of the gain on the true ones.
    """
    run: Result = model_runs.run("tuned")
    rows = {(row["answer"], row["against"]): row for row in run.differences}
    constant = MAJORITY if (PRETRAINED, MAJORITY) in rows else CONSTANT
    pairs = {against: rows.get((PRETRAINED, against)) for against in (constant, RANDOM_START)}
    if None in pairs.values() or (SHUFFLED, constant) not in rows:
        raise NotMeasurable("a run of `finetune` with all starts")
    gains = {against: from_row(row, "difference") for against, row in pairs.items() if row is not None}
    return least(gains.values()).beside(_share(rows[SHUFFLED, constant]["difference"], gains[constant].value))


@measure("tuned_change", "shuffled_change")
def lead_of_change_by_tuning(model_runs: ModelRuns, n_layers: int) -> ClaimEstimate:
    """Return the lead in change of the maps by tuning in each of the last `n_layers` over any lower one.

    A tuned model is compared with its start, by the least cosine of the maps (mean over heads) in the lower layers
    minus the largest in the last ones. The control is the same lead of a model that was tuned on shuffled labels, as a
    share of this one: an effect of shuffled labels is not due to the task.
    """
    tuned, shuffled = (lead_of_last(model_runs.run(name), n_layers) for name in ("tuned_change", "shuffled_change"))
    return tuned.beside(_share(shuffled.value, tuned.value))


@measure("misled")
def fall_by_trigger(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the fall of a tuned model's accuracy by a trigger, on sentences that were not searched.

    The control is the p-value of its rank among random triggers.
    """
    rows: Table = model_runs.run("misled").triggers
    attacked = rows.where(checkpoint=rows[0]["checkpoint"])
    (searched,), (random,) = (attacked.where(condition=name) for name in ("searched", "random"))
    return from_row(searched, "fall", "fall", random["p_value"])


@measure("numerals", "numerals_above")
def best_r2_above_training(model_runs: ModelRuns) -> ClaimEstimate:
    """Return R² of the value of numerals above all of training, in the best layer.

    The control is R² in the best layer where the values that are tested are within those of training.
    """
    within, above = (model_runs.run(name).accuracy for name in ("numerals", "numerals_above"))
    return largest(from_row(row, "r2", "r2") for row in above).beside(max(within.column("r2")))


def _share(part: float, whole: float) -> float | None:
    """Return the part, at least 0, divided by the whole; None if the whole is not positive."""
    return max(part, 0.0) / whole if whole > 0 else None


@measure("ablated_task")
def gain_for_task(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the gain of a tuned model without one head.

    The head is the one whose removal gains most on one half of the test sentences; the gain is measured on the other
    half. The control is the difference from the mean gain of all heads, the gain of a random head.
    """
    run: Result = model_runs.run("ablated_task")
    rows = run.better_without.where(readout=(TUNED, TUNED_R2), units="heads")
    heads = [gained(row, row["readout"]).value for row in _without(run) if is_head(row)]
    if not rows or not heads:
        raise NotMeasurable(_MORE_SENTENCES)
    gain = gained(rows[0], rows[0]["readout"])
    return gain.beside(gain.value - sum(heads) / len(heads))


@measure("ablated_task")
def gain_without_layer(model_runs: ModelRuns, layer: int) -> ClaimEstimate:
    """Return the gain of a tuned model without a layer's heads; the control is its excess over other layers' mean."""
    rows = _without(model_runs.run("ablated_task"))
    gains = {row["unit"]: gained(row, row["readout"]) for row in rows if not is_head(row)}
    layer_gain = gains.pop(str(layer), None)
    if layer_gain is None or not gains:
        raise NotMeasurable(f"a model with a layer {layer} and others")
    return layer_gain.beside(layer_gain.value - sum(gain.value for gain in gains.values()) / len(gains))


def _without(run: Result) -> list[Mapping[str, Any]]:
    """Return the rows of a tuned model's task without each unit."""
    return [row for name in (TUNED, TUNED_R2) for row in at_last_layer(run.ablated, name)]


@measure("pruned_task")
def heads_pruned_together(model_runs: ModelRuns, at_most: float) -> ClaimEstimate:
    """Return the share of heads that a tuned model can lose together, the least important first: see `_pruned`.

    The order is estimated on one half of the test sentences, and the loss on the other half.
    """
    rows = model_runs.run("pruned_task").pruning.where(units="heads", readout=(TUNED, TUNED_R2))
    return _pruned(rows, _IMPORTANCE, RANDOM, at_most)


@measure("pruned_task")
def weights_pruned(model_runs: ModelRuns, at_most: float) -> ClaimEstimate:
    """Return the share of the weights that a tuned model can lose, the smallest first: see `_pruned`."""
    rows = model_runs.run("pruned_task").weight_pruning.where(readout=(TUNED, TUNED_R2))
    return _pruned(rows, MAGNITUDE, MEAN, at_most)


def _pruned(rows: Table, order: str, random: str, at_most: float) -> ClaimEstimate:
    """Return the largest share such that pruning it or any less loses at most `at_most`, in units of the readout.

    The lower end of the interval is the share up to which the whole interval of the loss is within `at_most`, the upper
    end the share up to which a part of it is: up to there, no larger loss is resolved. The control is the difference
    from the share of random pruning, by the mean loss of its draws.
    """
    ordered, drawn = (
        required(rows.where(lambda row: row["share"] > 0, order=name), "a run of `ablate --prune all`")
        for name in (order, random)
    )
    gains = {row["share"]: gained(row, row["readout"]) for row in ordered}
    by_chance = {
        share: sum(gained(row, row["readout"]).value for row in draws) / len(draws)
        for share, draws in drawn.by("share").items()
    }
    value, low, high = (
        _prunable_share({share: getattr(gain, end) for share, gain in gains.items()}, at_most)
        for end in ("value", "low", "high")
    )
    return ClaimEstimate(value, low, high, value - _prunable_share(by_chance, at_most))


def _prunable_share(gains: Mapping[float, float], at_most: float) -> float:
    """Return the largest share up to which no gain is below minus `at_most`."""
    largest_share = 0.0
    for share in sorted(gains):
        if gains[share] < -at_most:
            break
        largest_share = share
    return largest_share


# Runs of `finetune` with the head on the last layer and on those below it, each with one of the checkpoint's geometry.
_LAST, _LOWER = "on_last", ("1_below", "2_below", "3_below")

_RUNS = [f"{what}_{on}" for what in ("head", "similarity") for on in (_LAST, *_LOWER)]


@measure(*_RUNS)
def lead_of_lower_head(model_runs: ModelRuns, n_below: int) -> ClaimEstimate:
    """Return the lead of a tuned model with its head `n_below` layers below the last one over any other layer.

    The other layers are the last one and the three below it. Intervals are over seeds, orders and test sentences. The
    control is the lead in dissimilarity of a sentence's tokens, in the layer under this head over any other one.
    """
    scores = {on: _score(model_runs.run(f"head_{on}")) for on in (_LAST, *_LOWER)}
    alike = {on: _similarity(model_runs.run(f"similarity_{on}")) for on in scores}
    lower_head = _LOWER[n_below - 1]
    others = [on for on in scores if on != lower_head]
    control = min(alike[on] for on in others) - alike[lower_head]
    return least(scores[lower_head] - scores[on] for on in others).beside(control)


def _score(run: Result) -> ClaimEstimate:
    return from_row(run.scores.where(answer=PRETRAINED)[0], "score", "overall")


def _similarity(run: Result) -> float:
    """Return the similarity of the tokens of a sentence in the last layer."""
    rows = by_layer(run, SIMILARITY)
    return float(rows[max(rows)]["value"])
