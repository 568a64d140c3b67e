"""Measures of outlier neurons, of position probes and their neurons, of pretraining, and of outliers in parameters.

Intervals of differences are the widest that the two intervals allow, because covariances are not known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.results import Table
from probing.runs import Result
from probing.runs.run import Run
from probing.statistics.moments import MEAN_DEVIATIONS, deviations_of
from probing.studies.claims.claim import ClaimEstimate
from probing.studies.claims.measures.registry import (
    SIGNS,
    ModelRuns,
    NotMeasurable,
    Role,
    from_row,
    largest,
    least,
    measure,
    required,
)

# --------------------------------------------------------------------------------------------------------------------
# Neurons that are the smallest or the largest of most tokens, and how far their means are from the others'.
# --------------------------------------------------------------------------------------------------------------------

_Z = NormalDist().inv_cdf(0.975)


@measure("geometry")
def extreme_share(model_runs: ModelRuns, role: Role) -> ClaimEstimate:
    """Return the share of tokens in which an outlier is the extreme neuron, over all layers above the embeddings.

    The interval is Wilson's with as many trials as sentences, since tokens of a sentence may be alike. The control is
    the largest share of another neuron.
    """
    geometry: Result = model_runs.run("geometry")
    neuron, pooled = model_runs.neuron(role), _pooled(geometry, role)
    if neuron not in pooled:
        raise NotMeasurable(f"the model has no neuron {neuron}")
    others = max(share for other, share in pooled.items() if other != neuron)
    return replace(_share(pooled[neuron], n_sentences(geometry)), control=others, neurons=(neuron,))


@measure("geometry")
def least_share_beyond(model_runs: ModelRuns, role: Role) -> ClaimEstimate:
    """Return the share of tokens in which an outlier is beyond 3 sd of the token's neurons: the least over layers.

    The interval is Wilson's with as many trials as sentences. The control is the largest such share of another neuron
    in that layer.
    """
    geometry: Result = model_runs.run("geometry")
    neuron, n = model_runs.neuron(role), n_sentences(geometry)
    rows = above_embeddings(geometry.dimensions)
    of_neuron = required(rows.where(neuron=neuron), f"the model has no neuron {neuron}")
    row = min(of_neuron, key=lambda row: row["beyond_share"])
    others = rows.where(lambda other: other["neuron"] != neuron, layer=row["layer"])
    return replace(_share(row["beyond_share"], n), control=max(others.column("beyond_share")), neurons=(neuron,))


@measure("geometry", "elsewhere", "third")
def change_over_texts(model_runs: ModelRuns, roles: list[Role] | None = None) -> ClaimEstimate:
    """Return the difference between three texts in the share of tokens in which an outlier is the extreme neuron.

    The share on the first text is compared with the shares on the two others; the value is the largest difference over
    texts and outliers. The control is the number of pairs of an outlier and a text in which another neuron has a larger
    share.
    """
    changes: list[ClaimEstimate] = []
    others = 0
    for role, neuron in model_runs.outliers(roles).items():
        shares = [_pooled(model_runs.run(name), role) for name in ("geometry", "elsewhere", "third")]
        others += sum(max(share, key=lambda other: share[other]) != neuron for share in shares)
        first, *rest = (
            _share(share[neuron], n_sentences(model_runs.run(name)))
            for share, name in zip(shares, ("geometry", "elsewhere", "third"), strict=True)
        )
        changes += [abs(other - first) for other in rest]
    return replace(largest(changes), control=others, neurons=tuple(model_runs.outliers(roles).values()))


@measure("geometry")
def least_deviation(model_runs: ModelRuns, roles: list[Role] | None = None) -> ClaimEstimate:
    """Return the distance of outliers' means from the other neurons' means, in sd: the least over the layers.

    A deviation is positive in the direction of the outlier's role; if there are several outliers, the least deviation
    counts. The interval is of the neuron's mean, from its sd and the number of sentences. The control is the largest
    deviation of another neuron in that layer, in either direction.
    """
    geometry: Result = model_runs.run("geometry")
    chosen = model_runs.outliers(roles)
    deviations: list[ClaimEstimate] = []
    for layer, z, error in _profiles(geometry):
        if max(chosen.values()) >= len(z):
            raise NotMeasurable(f"the model has no neuron {max(chosen.values())}")
        others = float(np.delete(np.abs(z), list(chosen.values())).max())
        for role, neuron in chosen.items():
            value, half = SIGNS[role] * float(z[neuron]), float(error[neuron])
            if layer:
                deviations.append(ClaimEstimate(value, value - half, value + half, others, tuple(chosen.values())))
    return least(required(deviations, "the run has no layer above the embeddings"))


@measure("geometry")
def layers_of_outliers(model_runs: ModelRuns, published: Mapping[str, Mapping[int, str]]) -> ClaimEstimate:
    """Return the least Jaccard index of outliers' layers and the `published` ones, such as `1-10`, of a model."""
    geometry: Result = model_runs.run("geometry")
    if model_runs.model not in published:
        raise NotMeasurable(f"no layers of outliers of {model_runs.model} are published")
    flagged = _flagged(geometry)
    alike = []
    for outlier, layers in published[model_runs.model].items():
        published_layers = set(layers_of(layers, 10**6))
        flagged_layers = flagged.get(int(outlier), set())
        alike.append(len(published_layers & flagged_layers) / len(published_layers | flagged_layers))
    return ClaimEstimate.exact(min(alike), neurons=tuple(map(int, published[model_runs.model])))


@measure("geometry")
def outliers_of_some_layers(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the number of outliers in some, not all, layers above the embeddings; the control is the number in all."""
    geometry: Result = model_runs.run("geometry")
    above = {row["layer"] for row in above_embeddings(geometry.dimensions)}
    outlier_layers = {neuron: layers & above for neuron, layers in _flagged(geometry).items() if layers & above}
    passing = sorted(neuron for neuron, layers in outlier_layers.items() if layers != above)
    return ClaimEstimate.exact(len(passing), control=len(outlier_layers) - len(passing), neurons=tuple(passing))


def layers_of(text: str | int, last: int) -> range:
    """Return the layers of a text such as `3`, `1-10` or `all`, up to the model's last one."""
    if text == "all":
        return range(1, last + 1)
    first, _, end = str(text).partition("-")
    return range(int(first), min(int(end or first), last) + 1)


def above_embeddings(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of the layers above the embeddings, without the rows of all layers together."""
    return Table(rows).where(lambda row: isinstance(row.get("layer"), int) and row["layer"] != 0)


def n_sentences(geometry: Result) -> int:
    """Return the number of measured sentences: one token of each is sampled for one of the measures."""
    rows = geometry.geometry.where(measure="mean_cosine_one_per_sentence")
    return int(required(rows, "the run measured no sentences")[0]["n_tokens"])


def _pooled(geometry: Result, role: Role) -> dict[int, float]:
    """Return the share of tokens in which each neuron is the extreme one, over the layers above the embeddings."""
    column = {"minimum": "argmin_share", "maximum": "argmax_share"}[role]
    by_neuron = above_embeddings(geometry.dimensions).by("neuron")
    return {neuron: min(sum(rows.column(column)) / len(rows), 1.0) for neuron, rows in by_neuron.items()}


def _share(share: float, n: int) -> ClaimEstimate:
    return ClaimEstimate(share, *_wilson(share, n))


def _profiles(geometry: Result) -> list[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
    """Return, for each layer, each neuron's mean in sd from the others' and half the width of its interval."""
    profiles, root = [], math.sqrt(n_sentences(geometry))
    for layer, rows in geometry.dimensions.by("layer").items():
        in_order = Table(sorted(rows, key=lambda row: row["neuron"]))
        means, sds = (np.array(in_order.column(column)) for column in ("mean", "sd"))
        spread = means.std()
        profiles.append((layer, deviations_of(means), _Z * sds / root / spread if spread > 0 else np.zeros_like(means)))
    return profiles


def _flagged(geometry: Result) -> dict[int, set[int]]:
    """Return the layers in which each neuron's mean is an outlier, for neurons that have any."""
    flagged: dict[int, set[int]] = {}
    for layer, z, _ in _profiles(geometry):
        for neuron in np.flatnonzero(np.abs(z) > MEAN_DEVIATIONS):
            flagged.setdefault(int(neuron), set()).add(layer)
    return flagged


def _wilson(share: float, n: int) -> tuple[float, float]:
    centre, spread = share + _Z**2 / (2 * n), _Z * math.sqrt(share * (1 - share) / n + (_Z / (2 * n)) ** 2)
    low, high = ((centre + sign * spread) / (1 + _Z**2 / n) for sign in (-1, 1))
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # only rounding could put an end outside


# The least z of eta squared, against its null distribution, that counts as evidence here.
SIGNAL = 4.0


@measure("positions")
def least_accuracy(model_runs: ModelRuns, layers: str) -> ClaimEstimate:
    """Return the least accuracy over some layers, such as `1-3`.

    The control is the largest accuracy in these layers when the model reads each sentence with its tokens permuted.
    """
    rows = _accuracies(model_runs, layers)
    controls = [row["permuted_positions_accuracy"] for row in rows if "permuted_positions_accuracy" in row]
    return _accuracy(min(rows, key=lambda row: row["accuracy"]), max(controls, default=None))


@measure("positions")
def distance_from_curve(model_runs: ModelRuns, published: Mapping[str, Sequence[float]]) -> ClaimEstimate:
    """Return the largest distance of accuracies from a model's `published` ones of layers 1, 2, ..."""
    if model_runs.model not in published:
        raise NotMeasurable(f"no accuracies of {model_runs.model} are published")
    curve, rows = published[model_runs.model], _accuracies(model_runs, "all")
    if len(rows) != len(curve):
        raise NotMeasurable(f"the run has {len(rows)} layers, and {len(curve)} are published")
    pairs = zip(curve, rows, strict=True)
    return largest(abs(_accuracy(row) - ClaimEstimate.exact(accuracy)) for accuracy, row in pairs)


@measure("positions")
def accuracy_lost(model_runs: ModelRuns, layers: str) -> ClaimEstimate:
    """Return the decrease of the accuracy from the least of some lower layers, such as `1-3`, to the last layer."""
    every = _accuracies(model_runs, "all")
    lower = _accuracies(model_runs, layers).where(lambda row: row["layer"] != every[-1]["layer"])
    required(lower, "the model has no further layers")
    return _accuracy(min(lower, key=lambda row: row["accuracy"])) - _accuracy(every[-1])


@measure("positions")
def least_lead_in_accuracy(model_runs: ModelRuns, over: str, layers: str) -> ClaimEstimate:
    """Return the lead in accuracy over another model, the least over some layers."""
    if "positions" not in model_runs.others.get(over, {}):
        raise NotMeasurable(f"the same run of {over}, with which it is compared: `--models {model_runs.model},{over}`")
    other = ModelRuns(over, model_runs.others[over])
    rows, others = ({row["layer"]: row for row in _accuracies(compared, layers)} for compared in (model_runs, other))
    if set(rows) != set(others):
        raise NotMeasurable(f"{model_runs.model} and {over} do not both have the layers {layers}")
    return least(_accuracy(rows[layer]) - _accuracy(others[layer]) for layer in rows)


@measure("geometry", "positions")
def least_ratio(model_runs: ModelRuns, roles: list[Role] | None = None) -> ClaimEstimate:
    """Return an outlier's contribution as a multiple of the mean neuron's, the least over layers and outliers."""
    rows = _of_outliers(model_runs, roles)
    return ClaimEstimate.exact(min(row["ratio"] for row in rows), neurons=_neurons(rows))


@measure("geometry", "positions")
def lowest_rank(model_runs: ModelRuns, roles: list[Role] | None = None) -> ClaimEstimate:
    """Return the worst rank of an outlier by its contribution, with the range over probes of bootstrap samples."""
    rows = _of_outliers(model_runs, roles)
    row = max(rows, key=lambda row: row["rank"])
    low, high = row.get("rank_low", row["rank"]), row.get("rank_high", row["rank"])
    return ClaimEstimate(row["rank"], min(low, row["rank"]), max(high, row["rank"]), neurons=_neurons(rows))


@measure("geometry", "positions")
def evidence_beside_rank(model_runs: ModelRuns, roles: list[Role] | None = None) -> ClaimEstimate:
    """Return the share of four kinds of evidence that an outlier encodes position: the least over layers.

    They are: its centred contribution is above the mean neuron's; its eta squared has a z of at least `SIGNAL` against
    permuted positions; the loss rises without it, by its whole interval; and position explains more of its variance
    than frequency does, each beyond all other sources. Only layers in which all four were measured of the neuron count.
    The control is the best rank in these layers: a neuron that only replaces the probe's intercept can rank high, too.
    """
    rows, run, every_source = _of_outliers(model_runs, roles), _run(model_runs), model_runs.run("geometry").explained
    shares: list[tuple[float, int]] = []
    for row in rows:
        of_neuron = every_source.where(layer=row["layer"], neuron=row["neuron"], special_tokens="exclude")
        explained = {other_row["source"]: other_row["partial"] for other_row in of_neuron}
        if not isinstance(row.get("cross_entropy_without_low"), float) or row["cross_entropy_without"] == "":
            continue
        if not {"position", "frequency"} <= set(explained):
            continue
        centred = run.neurons.where(layer=row["layer"]).column("contribution_centred")
        kinds = (
            row["contribution_centred"] > sum(centred) / len(centred),
            row["eta_squared_z"] >= SIGNAL,
            row["cross_entropy_without_low"] > 0,
            explained["position"] > explained["frequency"],
        )
        shares.append((sum(kinds) / len(kinds), row["rank"]))
    required(shares, "in no layer were all four kinds of evidence measured of it: it is not among the first ranks")
    return ClaimEstimate.exact(
        min(share for share, _ in shares), control=float(min(rank for _, rank in shares)), neurons=_neurons(rows)
    )


@measure("positions")
def loss_without_first(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the rise in nats of the loss without the neuron that ranks first, the least over layers.

    The control is the largest difference between the rise without a matched neuron and the rise without the first
    neuron of the same layer: above 0, a neuron that does not rank first matters more.
    """
    neurons_above = above_embeddings(_run(model_runs).neurons)
    rows = neurons_above.where(lambda row: isinstance(row.get("cross_entropy_without"), float))
    lacking = "no probe was trained without the neuron that ranks first (`--evidence all`)"
    first = required(rows.where(rank=1), lacking)
    beyond = [
        row["cross_entropy_without"] - first_row["cross_entropy_without"]
        for first_row in first
        for row in rows.where(layer=first_row["layer"])
        if row["removed"].startswith("matched")
    ]
    row = min(first, key=lambda row: row["cross_entropy_without"])
    neurons = tuple(first.values("neuron"))
    return from_row(row, "cross_entropy_without", "cross_entropy_without", max(beyond, default=None), neurons)


def _run(model_runs: ModelRuns) -> Run:
    run: Run = model_runs.run("positions")
    return run


def _accuracies(model_runs: ModelRuns, layers: str) -> Table:
    rows = above_embeddings(_run(model_runs).accuracy)
    selected_rows = rows.where(layer=tuple(layers_of(layers, max(rows.values("layer"), default=0))))
    return required(selected_rows, f"the run has no layers {layers}")


def _accuracy(row: Mapping[str, Any], control: float | None = None) -> ClaimEstimate:
    return from_row(row, "accuracy", "accuracy", control)


def _of_outliers(model_runs: ModelRuns, roles: list[Role] | None) -> Table:
    """Return the rows of outliers in the ranked tables of the layers above the embeddings."""
    chosen = set(model_runs.outliers(roles).values())
    rows = above_embeddings(_run(model_runs).neurons).where(neuron=tuple(chosen))
    if {*rows.values("neuron")} != chosen:
        raise NotMeasurable("the run has no layer above the embeddings with this neuron")
    return rows


def _neurons(rows: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(sorted({row["neuron"] for row in rows}))


# The arms of `pretrain` with and without position embeddings.
_WITH, _WITHOUT = "learned", "none"


@measure("pretraining")
def distance_from_perplexities(model_runs: ModelRuns, without: float, with_: float) -> ClaimEstimate:
    """Return the relative difference of held-out perplexities from the published ones: the larger of both arms.

    The interval is the range over seeds. `without` and `with_` are the published perplexities without and with position
    embeddings.
    """
    return largest(
        _over_seeds([abs(math.exp(loss) / perplexity - 1) for loss in _losses(model_runs, arm).values()])
        for arm, perplexity in ((_WITHOUT, without), (_WITH, with_))
    )


@measure("pretraining")
def loss_without_positions(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the rise in nats of the held-out loss without position embeddings: the mean and range over seeds."""
    return _over_seeds(_margins(model_runs))


@measure("pretraining")
def largest_equivariance(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the largest deviation from order invariance of the encoders without position embeddings.

    The control is the largest lead of a position probe of one of their layers over a probe of the token alone.
    """
    rows = _last(model_runs, _WITHOUT)
    lead = max(row["position_accuracy"] - row["token_accuracy"] for row in rows)
    return ClaimEstimate.exact(max(row["equivariance"] for row in rows), control=lead)


@measure("pretraining")
def share_of_largest(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the share of tokens in which the neuron with the farthest mean is extreme, with position embeddings.

    For each seed, the share is of tokens with the neuron as the smallest or the largest, in the layer above the
    embeddings where it is highest; the value is the least over seeds. The control is the decrease in nats of the loss
    by position embeddings, the least over seeds.
    """
    shares = [
        max(max(row["argmin_share"], row["argmax_share"]) for row in rows)
        for rows in _by_seed(model_runs, _WITH).values()
    ]
    return ClaimEstimate.exact(min(shares), control=min(_margins(model_runs)))


@measure("pretraining")
def farthest_without_positions(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the farthest mean without position embeddings, in sd from the others': the largest over layers and seeds.

    The control is the least over seeds of the same with position embeddings: only if the encoders with position
    embeddings have outliers is their absence in the others meaningful.
    """
    without, with_ = (
        [max(row["max_mean_sd"] for row in rows) for rows in _by_seed(model_runs, arm).values()]
        for arm in (_WITHOUT, _WITH)
    )
    return ClaimEstimate.exact(max(without), control=min(with_))


@measure("pretraining")
def seeds_with_other_outliers(model_runs: ModelRuns) -> ClaimEstimate:
    """Return the share of pairs of seeds whose outliers are not the same neurons, with position embeddings."""
    sets = [
        frozenset(row["outlier_neuron"] for row in rows if row["max_mean_sd"] > MEAN_DEVIATIONS)
        for rows in _by_seed(model_runs, _WITH).values()
    ]
    outlier_sets = [outliers for outliers in sets if outliers]
    if len(outlier_sets) < 2:
        raise NotMeasurable("fewer than two seeds have an outlier above the embeddings")
    pairs = list(itertools.combinations(outlier_sets, 2))
    return ClaimEstimate.exact(
        sum(a != b for a, b in pairs) / len(pairs), neurons=tuple(sorted(frozenset.union(*outlier_sets)))
    )  # fmt: skip


def _last(model_runs: ModelRuns, arm: str) -> Table:
    """Return the rows of the layers above the embeddings of an arm's last checkpoints."""
    rows: Table = model_runs.run("pretraining").arms.where(arm=arm)
    steps = {seed: max(of_seed.column("step")) for seed, of_seed in rows.by("seed").items()}
    last_rows = rows.where(lambda row: row["step"] == steps[row["seed"]] and row["layer"] > 0)
    return required(last_rows, f"the run has no arm {arm}")


def _by_seed(model_runs: ModelRuns, arm: str) -> dict[int, Table]:
    return _last(model_runs, arm).by("seed")


def _losses(model_runs: ModelRuns, arm: str) -> dict[int, float]:
    return {seed: rows[0]["loss"] for seed, rows in _by_seed(model_runs, arm).items()}


def _margins(model_runs: ModelRuns) -> list[float]:
    """Return the gain in nats of each seed's loss by position embeddings."""
    without, with_ = (_losses(model_runs, arm) for arm in (_WITHOUT, _WITH))
    return [without[seed] - with_[seed] for seed in without if seed in with_]


def _over_seeds(values: Sequence[float]) -> ClaimEstimate:
    return ClaimEstimate(sum(values) / len(values), min(values), max(values))


# --------------------------------------------------------------------------------------------------------------------
# Where outliers sit in the parameters: the table of positions, and gains and biases of norms.
# --------------------------------------------------------------------------------------------------------------------


@measure("geometry", "stream")
def outliers_of_first_position(model_runs: ModelRuns, role: Role) -> ClaimEstimate:
    """Return the number of neurons of the first position's row that are beyond 5 sd of the others.

    The control is the rank of the model's outlier in that row, 1 where it is its most extreme neuron.
    """
    neuron = model_runs.neuron(role)
    (row,) = _of(neuron, _position_rows(model_runs).where(position=0))
    neurons = model_runs.run("stream").path.where(kind=("first_row", "both")).values("neuron")
    return ClaimEstimate.exact(len(neurons), control=_rank(model_runs, row, role), neurons=(neuron,))


@measure("geometry")
def other_rows_with_outlier(model_runs: ModelRuns, role: Role) -> ClaimEstimate:
    """Return the number of rows other than the first position's in which an outlier is beyond 5 sd of other neurons.

    These are rows of other positions, rows of segments, and the mean row of the token embeddings. The control is its
    deviation, in the direction of its role, in the row of the first position.
    """
    neuron = model_runs.neuron(role)
    rows = _of(neuron, _position_rows(model_runs))
    embeddings = model_runs.run("geometry").parameters.where(parameter=("segment", "mean_token"))
    first = rows.where(position=0)
    others = [*rows.where(lambda row: row.get("position", 0) != 0), *_of(neuron, embeddings)]
    if not first or len(others) < 2:
        raise NotMeasurable("its table of positions has a single row")
    beyond = sum(abs(row["deviations"]) > MEAN_DEVIATIONS for row in others)
    return ClaimEstimate.exact(beyond, control=SIGNS[role] * first[0]["deviations"], neurons=(neuron,))


@measure("geometry")
def deviation_in_rows(model_runs: ModelRuns, roles: list[Role], rows: list[int]) -> ClaimEstimate:
    """Return the least deviation of outliers in a row of the position table, in sd.

    If there are several rows, numbered from 0, the row with the largest value counts. The control is the number of
    neurons of that row that are beyond 5 sd.
    """
    chosen = model_runs.outliers(roles)
    table = _position_rows(model_runs)
    of_rows: list[ClaimEstimate] = []
    for number in rows:
        if position_rows := table.where(row=number):
            deviations = [SIGNS[role] * _of(neuron, position_rows)[0]["deviations"] for role, neuron in chosen.items()]
            n_outliers = position_rows[0].get("n_outliers")  # runs of former versions did not count outliers
            of_rows.append(ClaimEstimate.exact(min(deviations), n_outliers, tuple(chosen.values())))
    return largest(required(of_rows, f"its table of positions has no row {rows[0]}"))


@measure("geometry")
def share_of_rows(model_runs: ModelRuns, role: Role, first_row: int) -> ClaimEstimate:
    """Return the share of the position table's rows, from `first_row` on, in which an outlier is the most extreme."""
    neuron = model_runs.neuron(role)
    rows = _of(neuron, _position_rows(model_runs)).where(lambda row: row["row"] >= first_row)
    required(rows, f"its table of positions has no row {first_row}")
    return ClaimEstimate.exact(sum(_rank(model_runs, row, role) == 1 for row in rows) / len(rows), neurons=(neuron,))


@measure("geometry")
def ranks_in_norms(
    model_runs: ModelRuns,
    role: Role,
    norm: Literal[1, 2],
    parameter: Literal["gain", "bias"],
    at_most: Mapping[str, int],
) -> ClaimEstimate:
    """Return the share of the statements on an outlier's rank in the norms of blocks that are true of the model.

    A rank is of the signed value, 1 for the largest. Layers that the model does not have are left out. Where all blocks
    share their norms (ALBERT), a rank applies to every layer. `norm` is 1 for the first norm of each block, after
    attention, or 2 for the second; `at_most` has the highest rank in some layers, such as 6 in `1-10`.
    """
    geometry: Result = model_runs.run("geometry")
    neuron = model_runs.neuron(role)
    rows = _of(neuron, geometry.parameters).where(parameter=parameter)
    second = {row["layer"]: row["rank"] for row in rows if row.get("layer", 0) > 0}
    # The output of a block's first norm is not the hidden state of a layer, so that its rows have no layer number.
    first = {k: row["rank"] for k, row in enumerate((row for row in rows if "layer" not in row), start=1)}
    if not second or set(first) != set(second):
        raise NotMeasurable(
            f"its blocks do not each have two norms with a {parameter}, the second of which makes a layer"
        )
    ranks = {1: first, 2: second}[norm]
    last = max([*ranks, *(row["layer"] for row in above_embeddings(geometry.dimensions))])
    if len(ranks) == 1:
        ranks = dict.fromkeys(range(1, last + 1), *ranks.values())
    so = [ranks[layer] <= most for layers, most in at_most.items() for layer in layers_of(layers, max(ranks))]
    required(so, f"the claim names none of its layers up to {last}")
    return ClaimEstimate.exact(sum(so) / len(so), neurons=(neuron,))


@measure("geometry", "stream")
def deviation_with_ordinary_norms(model_runs: ModelRuns, role: Role) -> ClaimEstimate:
    """Return the remaining deviation of an outlier when all norms give it the other neurons' mean gain and bias.

    The value is in sd, the largest over the layers in which the neuron is an outlier of the intact model. The control
    is the neuron's least deviation, over draws and these layers, when random neurons are changed instead.
    """
    neuron = model_runs.neuron(role)
    rows = above_embeddings(model_runs.run("stream").norm_changes).where(
        lambda row: row["kind"] == "intact" or row["where"] == "both", measure="deviations", neuron=neuron
    )
    lacking = "the norms of its blocks could not be changed, or it has no outlier behind them"
    return _remaining_deviation(rows, role, neuron, lacking)


@measure("geometry", "stream")
def deviation_without_first_row(model_runs: ModelRuns, role: Role) -> ClaimEstimate:
    """Return the remaining deviation of an outlier of words without its entry in the first position's row.

    Value and control are as in `deviation_with_ordinary_norms`, with changes of entries instead of gains and biases.
    """
    neuron = model_runs.neuron(role)
    every = model_runs.run("stream").first_row
    required(every, "it has no table of positions as wide as its hidden states, or no outliers")
    rows = above_embeddings(every).where(neuron=neuron)
    return _remaining_deviation(rows, role, neuron, "it is an outlier of no layer")


def _remaining_deviation(rows: Table, role: Role, neuron: int, lacking: str) -> ClaimEstimate:
    """Return the largest deviation of a changed outlier over the layers where it was an outlier.

    The control is the neuron's least deviation when random neurons are changed instead.
    """
    rows = rows.where(layer=tuple(rows.where(kind="intact", outlier="yes").values("layer")))
    changed, control = (
        [SIGNS[role] * value for value in rows.where(kind=kind).column("value")] for kind in ("outliers", "random")
    )
    return ClaimEstimate.exact(max(required(changed, lacking)), control=min(control, default=None), neurons=(neuron,))


def _position_rows(model_runs: ModelRuns) -> Table:
    rows: Table = model_runs.run("geometry").parameters.where(parameter="position")
    return required(rows, "it has no table of positions as wide as its hidden states")


def _of(neuron: int, rows: Table) -> Table:
    """Return the rows of a neuron; parameters are listed only of neurons that some definition names as outliers."""
    lacking = f"neuron {neuron} is no outlier by any definition, so that its parameters are not listed"
    return required(rows.where(neuron=neuron), lacking)


def _rank(model_runs: ModelRuns, row: Mapping[str, Any], role: Role) -> int:
    """Return the rank of a neuron's value in its row, 1 for the most extreme in the direction of its role."""
    width = len(model_runs.run("geometry").dimensions.values("neuron"))
    return int(row["rank"] if role == "maximum" else width + 1 - row["rank"])
