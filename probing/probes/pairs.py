"""Comparison of two runs: matched neurons, and the agreement of their rankings by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from probing.activations.store import ActivationStore
from probing.data.examples import Examples, common_words, pool_words, read, sum_over_spans
from probing.errors import UserError
from probing.models import layers_at_equal_depth
from probing.probes.agreement import (
    ROUNDING,
    Agreement,
    RotationNull,
    agreement,
    excess,
    max_p_values,
    permutations_for,
)
from probing.probes.rankings import sentence_contributions
from probing.runtime import check_memory
from probing.statistics import MIN_SENTENCES, neuron_ranks
from probing.statistics.chance import correct_p_values, percentiles, resampled_means
from probing.statistics.moments import ROWS, RunningMean, hardly_vary
from probing.text.tokens import Tokens

Method = Literal["many_to_one", "one_to_one"]

Array = NDArray[np.float64]

PERMUTATIONS = 1999


def match(correlation: Array, method: Method) -> NDArray[np.int64]:
    """Return for each neuron of the first model its partner in the second, by |correlation|, shape (d_a,); -1 for none.

    `many_to_one` takes the strongest correlation (several neurons may share a partner; ties go to the lower index).
    `one_to_one` takes the assignment with the highest sum (Jonker & Volgenant 1987): 0.02 s for 768 neurons, 0.06 s for
    1024. Dead neurons, whose correlations are 0, have no partner, nor have surplus neurons in `one_to_one`.

    Raises:
        ValueError: If a correlation is not finite.
    """
    if not np.isfinite(correlation).all():
        raise ValueError("correlations must be finite, found NaN or infinity")
    size = np.abs(correlation)
    partner = np.full(len(size), -1, dtype=np.int64)
    if method == "many_to_one":
        partner[:] = size.argmax(1)
    else:
        rows, columns = linear_sum_assignment(size, maximize=True)
        partner[rows] = columns
    matched = np.flatnonzero(partner >= 0)
    partner[matched[size[matched, partner[matched]] == 0]] = -1
    return partner


@dataclass(frozen=True)
class MatchQuality:
    """Mean correlation of matched neurons; NaN if no neuron is matched.

    Args:
        fit: Mean |correlation| on the sentences used for matching: high by selection alone.
        test: Mean correlation on the other sentences, times its sign in the matching, so that an accidental match is
            near 0 rather than above it.
        chance: Mean of `test` if partners are permuted among the matched neurons, above 0 if all neurons correlate,
            with 95% between `chance_low` and `chance_high`. If the rotation null is higher, its mean replaces it.
        p_value: One-sided: share of permutations, the true order included, with as large a `test`.
    """

    fit: float
    test: float
    chance: float
    chance_low: float
    chance_high: float
    p_value: float
    n_matched: int


def match_correlations(partner: NDArray[np.int64], fit: Array, test: Array) -> Array:
    """Return the held-out correlation of each matched neuron with its partner, times its sign where they were matched.

    `partner` is the result of `match`; correlations have shape (d_a, d_b). The result has shape (n_matched,).
    """
    rows = np.flatnonzero(partner >= 0)
    columns = partner[rows]
    return np.sign(fit[rows, columns]) * test[rows, columns]


def judge(
    partner: NDArray[np.int64],
    fit: Array,
    test: Array,
    rotated: Sequence[float] = (),
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> MatchQuality:
    """Return the quality of a match on held-out sentences; `rotated` has its value in random bases."""
    rows = np.flatnonzero(partner >= 0)
    columns = partner[rows]
    if not len(rows):
        nan = float("nan")
        return MatchQuality(nan, nan, nan, nan, nan, nan, 0)
    signed = np.sign(fit) * test
    generator = np.random.default_rng(seed)
    null = np.array([signed[rows, generator.permutation(columns)].mean() for _ in range(permutations)])
    (low, high), moved = percentiles(null), excess(rotated, float(null.mean()))
    true = float(match_correlations(partner, fit, test).mean())
    p_value = float((1 + (null + moved >= true - ROUNDING).sum()) / (1 + permutations))
    return MatchQuality(
        float(np.abs(fit[rows, columns]).mean()), true, float(null.mean()) + moved, low, high + moved, p_value,
        len(rows),
    )  # fmt: skip


@dataclass(frozen=True)
class CrossMoments:
    """Covariances of the neurons of two models, several layers each, over the same words.

    Args:
        within_a: Covariance of each layer of the first model, shape (n_layers_a, d_a, d_a), float64; `within_b`
            likewise.
        cross: Covariance between the models, shape (n_layers_a, d_a, n_layers_b, d_b), float32.
        mean_a: Mean of each layer of the first model, shape (n_layers_a, d_a), float64; `mean_b` likewise.
    """

    n_words: int
    within_a: Tensor
    within_b: Tensor
    cross: Tensor
    mean_a: Tensor
    mean_b: Tensor

    def correlation(self, a: int, b: int, basis: Tensor | None = None) -> NDArray[np.float64]:
        """Return the correlations of two layers, given by index, shape (d_a, d_b); 0 for dead neurons.

        `basis`, shape (d_b, n_neurons), replaces the neurons of the second model by combinations, its columns.
        """
        cross, variance, mean = self.cross[a, :, b], self.within_b[b].diagonal(), self.mean_b[b]
        if basis is not None:
            cross = cross.to(basis) @ basis
            variance, mean = (self.within_b[b].to(basis) @ basis).mul_(basis).sum(0), mean.to(basis) @ basis
        scale = _inverse_sd(self.within_a[a].diagonal(), self.mean_a[a])[:, None], _inverse_sd(variance, mean)
        return (scale[0] * cross * scale[1]).clamp(-1, 1).double().numpy()

    def cka(self, a: int, b: int) -> float:
        """Return the linear CKA of two layers (Kornblith et al. 2019, section 3), NaN if a layer is constant.

        |C_ab|^2 / (|C_aa| |C_bb|), Frobenius norms, equals the form with centred Gram matrices of words. This estimator
        is biased upwards: see `cka_chance`.
        """
        return float(
            self.cross[a, :, b].square().sum(dtype=torch.float64) / (self.within_a[a].norm() * self.within_b[b].norm())
        )

    def cka_chance(self, a: int, b: int) -> float:
        """Return the CKA of unrelated layers with these spectra: tr C_aa tr C_bb / ((n - 1) |C_aa| |C_bb|).

        This is the mean over permutations of the words: only the bias of the estimator. Models that read the same words
        are similar for that reason alone (layer 0 of the built-in model and its randomly initialised model: .44, where
        chance is .003), so training accounts for the excess over the randomly initialised model.
        """
        traces = self.within_a[a].trace() * self.within_b[b].trace()
        return float(traces / ((self.n_words - 1) * self.within_a[a].norm() * self.within_b[b].norm()))


class CrossMomentsAccumulator:
    """Accumulates the covariances of two models over the same words, from float32 products of `ROWS` words.

    Their sum is float64 within each model, and float32 between the models, where it is the largest part of the memory.
    """

    def __init__(self, n_layers: tuple[int, int], d_model: tuple[int, int]) -> None:
        self.sizes = tuple(zip(n_layers, d_model, strict=True))
        self.means = [RunningMean(n, d) for n, d in self.sizes]
        self.within = [torch.zeros(n, d, d, dtype=torch.float64) for n, d in self.sizes]
        (n_a, d_a), (n_b, d_b) = self.sizes
        self.cross = torch.zeros(n_a * d_a, n_b * d_b)

    @property
    def n_words(self) -> int:
        """Number of words added."""
        return self.means[0].n

    def update(self, batch_a: Sequence[Tensor], batch_b: Sequence[Tensor]) -> None:
        """Add words: for each layer of each model a tensor (n_words, d_model); n_words may be 0.

        Raises:
            ValueError: If numbers of words, layers or neurons disagree, or a value is not finite.
        """
        sides = [self._stack(batch, *size) for batch, size in zip((batch_a, batch_b), self.sizes, strict=True)]
        if sides[0].shape[1] != sides[1].shape[1]:
            raise ValueError(f"both models must give the same words, found {[side.shape[1] for side in sides]}")
        for some in zip(*(side.split(ROWS, 1) for side in sides), strict=True):
            self._add(*(mean.update(words).float() for mean, words in zip(self.means, some, strict=True)))

    def result(self) -> CrossMoments:
        """Return the covariances of the added words, at least one; none can be added afterwards."""
        if not self.n_words:
            raise ValueError("no words to take moments of")
        n, (within_a, within_b) = self.n_words, self.within
        # In place, since a copy would be as large again.
        cross, self.cross = self.cross.div_(n).reshape(*self.sizes[0], *self.sizes[1]), torch.zeros(0)
        return CrossMoments(n, within_a / n, within_b / n, cross, *(running.mean for running in self.means))

    def _stack(self, batch: Sequence[Tensor], n_layers: int, d_model: int) -> Tensor:
        shapes = [tuple(states.shape) for states in batch]
        if len(batch) != n_layers or len(set(shapes)) > 1 or shapes[0][1:] != (d_model,):
            raise ValueError(f"expected {n_layers} layers of shape (n_words, {d_model}), found {shapes}")
        wide = torch.promote_types(batch[0].dtype, torch.float32)
        side = torch.stack([states.to(wide) for states in batch])
        if not side.isfinite().all():
            raise ValueError("hidden states must be finite, found NaN or infinity")
        return side

    def _add(self, a: Tensor, b: Tensor) -> None:
        """Add the words' deviations from the means, shapes (n_layers, n, d_model)."""
        for side, within in zip((a, b), self.within, strict=True):
            within += side.mT @ side
        flat_a, flat_b = (side.transpose(0, 1).flatten(1) for side in (a, b))
        self.cross.addmm_(flat_a.T, flat_b)


def _inverse_sd(variance: Tensor, mean: Tensor) -> Tensor:
    sd = variance.clamp(min=0).sqrt()
    return torch.where(hardly_vary(sd, mean.abs()), 0.0, 1 / sd)


# Number of resampled sets of sentences behind an interval.
DRAWS = 100

# Maximum number of sentences whose words are pooled at a time, and about the maximum number of bytes of their hidden
# states in both models. The words are copied four times, which took a gigabyte at 256 sentences and thirteen layers of
# 768 neurons.
BLOCK, BLOCK_BYTES = 256, 64 * 2**20


@dataclass(frozen=True)
class Ranked:
    """Rankings of a run, with data on their dependence on the test sentences.

    Args:
        label: Name in tables and figures, different for each run.
        scores: Contribution of each neuron, shape (n_layers, d_model).
        draws: Contributions on resampled test sentences, or documents, shape (n_layers, n_draws, d_model); None if
            there are too few.
        no_signal: Which neurons are flagged `no-signal`, shape (n_layers, d_model); None if unknown.
        shuffled: Contributions by probes of shuffled labels, of the shape of `draws`, if neurons are compared by index.
        n_blocks: Number of blocks of the model; None if the last of `layers` is the model's last.
    """

    label: str
    layers: Sequence[int]
    scores: Array
    draws: Array | None
    no_signal: NDArray[np.bool_] | None = None
    shuffled: Array | None = None
    n_blocks: int | None = None

    @property
    def d_model(self) -> int:
        """Number of neurons of a layer."""
        return int(self.scores.shape[1])

    def aligned(self, other: Ranked) -> dict[int, int]:
        """Return the index of the other run's layer at the same relative depth, by the index of the layer."""
        blocks = tuple(max(run.layers) if run.n_blocks is None else run.n_blocks for run in (self, other))
        return dict(layers_at_equal_depth(self.layers, other.layers, (blocks[0], blocks[1])))


def rank_on_clusters(label: str, weight: Tensor, test: Examples, layers: Sequence[int], seed: int) -> Ranked:
    """Score the neurons of each layer by their mean contribution, on the test part and on resampled parts of it.

    Sentences are resampled, or documents if the run's confidence intervals are over documents; runs with equally many
    and the same seed resample the same ones. `weight` has shape (n_layers, n_classes, d_model); of pairs of spans, a
    neuron's contribution is the sum over both spans.
    """
    cluster = test.cluster_of_sentence()
    clusters = np.unique(cluster[test.sentences()])
    sums = torch.zeros(len(layers), len(clusters), weight.shape[2], dtype=torch.float64)
    for batch in read(test, layers):
        rows = torch.from_numpy(np.searchsorted(clusters, cluster[batch.sentences.numpy()]))
        for i, states in enumerate(batch.hidden_states):
            sentence_contributions(weight[i], states, batch.labels, rows, out=sums[i])
    sums = sum_over_spans(sums, test.store)
    n_tokens = test.clusters(test.tokens_by_sentence())[clusters]
    draws = None
    if len(clusters) >= MIN_SENTENCES:
        draws = np.stack([resampled_means(layer.numpy(), n_tokens, seed, DRAWS) for layer in sums])
    scores = sums.sum(1).numpy() / n_tokens.sum()
    return Ranked(label, layers, scores, draws, n_blocks=test.store.plan.n_layers)


@dataclass(frozen=True)
class Readings:
    """Activations of a model on the sentences for matching, and tokens with words independent of the tokenizer."""

    store: ActivationStore
    tokens: Tokens
    layers: Sequence[int]

    def words(self, first: int, last: int) -> tuple[NDArray[np.int64], tuple[Tensor, ...]]:
        """Return, for sentences first..last-1, keys (n_words, 2) and the states of each layer (n_words, d_model)."""
        rows = slice(int(self.tokens.offsets[first]), int(self.tokens.offsets[last]))
        states = [self._rows(layer, rows) for layer in self.layers]
        pooled = pool_words(states, self.tokens.words[rows], self.tokens.sentences[rows])
        return pooled.keys, pooled.hidden_states

    def _rows(self, layer: int, rows: slice) -> Tensor:
        parts = []
        for shard in self.store.plan.shards:
            in_shard = shard.rows(self.store.tokens)
            start, stop = max(rows.start, in_shard.start), min(rows.stop, in_shard.stop)
            if start < stop:
                parts.append(
                    self.store.read(layer, shard.index)[start - in_shard.start : stop - in_shard.start].float()
                )
        return torch.cat(parts) if parts else torch.empty(0, self.store.plan.d_model)


def cross_moments(a: Readings, b: Readings) -> tuple[CrossMoments, CrossMoments]:
    """Return the covariances of the neurons of two models over words of the even sentences, and of the odd sentences.

    Raises:
        UserError: If one half of the sentences has no word in common, or the covariances do not fit in memory.
    """
    n_a, n_b = (len(of.layers) * of.store.plan.d_model for of in (a, b))
    check_memory(
        2 * 4 * n_a * n_b, f"covariances of {n_a} neurons with {n_b}, in all layers of two runs,",
        "compare runs of fewer layers",
    )  # fmt: skip
    shape = (len(a.layers), len(b.layers)), (a.store.plan.d_model, b.store.plan.d_model)
    halves = CrossMomentsAccumulator(*shape), CrossMomentsAccumulator(*shape)
    for keys, states_a, states_b in _shared_words(a, b):
        for parity, half in enumerate(halves):
            rows = torch.from_numpy(np.flatnonzero(keys[:, 0] % 2 == parity))
            half.update([states[rows] for states in states_a], [states[rows] for states in states_b])
    if not all(half.n_words for half in halves):
        raise UserError("`--matching`: the sentences that neurons are matched on have too few words; give more.")
    return halves[0].result(), halves[1].result()


def _shared_words(a: Readings, b: Readings) -> Iterator[tuple[NDArray[np.int64], list[Tensor], list[Tensor]]]:
    per_sentence = sum(
        4 * len(of.layers) * of.store.plan.d_model * of.tokens.n_tokens / of.tokens.n_sentences for of in (a, b)
    )
    size = min(BLOCK, max(1, int(BLOCK_BYTES / per_sentence)))
    for first in range(0, a.tokens.n_sentences, size):
        last = min(first + size, a.tokens.n_sentences)
        (keys_a, states_a), (keys_b, states_b) = a.words(first, last), b.words(first, last)
        rows_a, rows_b = (torch.from_numpy(rows) for rows in common_words(keys_a, keys_b))
        yield keys_a[rows_a.numpy()], [states[rows_a] for states in states_a], [states[rows_b] for states in states_b]


@dataclass(frozen=True)
class RunPair:
    """Rows of `agreement.csv` for two runs.

    Args:
        partners: Partner of each neuron, by pair of layers, shape (n_layers_a, n_layers_b, d_a), -1 for none.
        related: Whether neurons of the same index correlate more than by chance in some layer; None if widths differ.
        neurons: Rows of `neurons.csv`: in layers of the same relative depth, the neurons of the first run by rank.
    """

    rows: list[dict[str, Any]]
    partners: NDArray[np.int64]
    related: bool | None
    neurons: Sequence[dict[str, Any]] = ()


def compare_pair(
    a: Ranked,
    b: Ranked,
    moments: tuple[CrossMoments, CrossMoments],
    matching: Literal["index", "correlation"],
    assignment: Method,
    k: int,
    seed: int,
    rotation_null: RotationNull | None = None,
) -> RunPair:
    """Match the neurons of every pair of layers on one half of the sentences, and compare their rankings.

    `moments` are of the sentences for matching, and of the sentences for judging the match. Neurons are matched by
    index if the models share a lineage, or by correlation; the second run in random bases then gives chance agreement.
    """
    fit, test = moments
    shape = (len(a.layers), len(b.layers))
    partners = np.full((*shape, a.d_model), -1, dtype=np.int64)
    rows: list[dict[str, Any]] = []
    neurons: list[dict[str, Any]] = []
    n_permutations = permutations_for(shape[0] * shape[1])
    nulls: dict[str, list[Array]] = {}
    partner_of_layer = a.aligned(b)
    for i, j in np.ndindex(shape):
        correlations = fit.correlation(i, j), test.correlation(i, j)
        partners[i, j] = np.arange(a.d_model) if matching == "index" else match(correlations[0], assignment)
        unrelated, in_bases = _by_chance(a.scores[i], moments, (i, j), assignment, rotation_null)
        names = {
            "model_a": a.label, "layer_a": a.layers[i], "model_b": b.label, "layer_b": b.layers[j],
            "matching": matching, "same_depth": "yes" if partner_of_layer.get(i) == j else "no",
        }  # fmt: skip
        by_match = "random_bases" if rotation_null else "permutation"
        pair = _LayerPair(a, b, i, j, partners[i, j])
        for statistic in pair.statistics(k, unrelated, n_permutations, seed):
            null = by_match if statistic.null is None else "shuffled_labels"
            columns = {name: value for name, value in vars(statistic).items() if name not in ("p_value", "null")}
            columns |= {"p_uncorrected": statistic.p_value, "null": null}
            rows.append({**names, **columns, **pair.no_signal()})
            if statistic.null is not None:
                nulls.setdefault(statistic.statistic, []).append(statistic.null)
        rotated = [float(of[np.isfinite(of)].mean()) for of in in_bases]
        quality = judge(partners[i, j], *correlations, rotated, seed=seed)
        if names["same_depth"] == "yes":
            neurons += pair.neurons(correlations, in_bases)
        rows.append(
            {
                **names, "statistic": "correlation", "value": quality.test,
                "chance": quality.chance, "chance_low": quality.chance_low, "chance_high": quality.chance_high,
                "p_uncorrected": quality.p_value, "null": by_match, "n_neurons": quality.n_matched,
            }
        )  # fmt: skip
        rows.append({**names, "statistic": "cka", "value": test.cka(i, j), "chance": test.cka_chance(i, j)})
    _correct(rows, {name: np.stack(null, axis=-1) for name, null in nulls.items()})
    related = _related(a, b, moments, seed) if a.d_model == b.d_model else None
    return RunPair(rows, partners, related, neurons)


def _by_chance(
    scores: Array,
    moments: tuple[CrossMoments, CrossMoments],
    layer_indices: tuple[int, int],
    assignment: Method,
    rotation_null: RotationNull | None,
) -> tuple[list[tuple[Array, Array]], list[Array]]:
    """Match a layer's neurons with each random basis.

    Returns:
        The scorings of the matched neurons in both, and the correlation of each neuron with its match, shape (d_a,),
        NaN for a neuron without one.
    """
    scorings: list[tuple[Array, Array]] = []
    in_bases: list[Array] = []
    if rotation_null is None:
        return scorings, in_bases
    for basis, theirs in zip(rotation_null.bases, rotation_null.scores[:, layer_indices[1]], strict=True):
        fit, test = (half.correlation(*layer_indices, basis) for half in moments)
        partner = match(fit, assignment)
        matched = np.flatnonzero(partner >= 0)
        scorings.append((scores[matched], theirs[partner[matched]]))
        in_bases.append(np.full(len(partner), np.nan))
        in_bases[-1][matched] = match_correlations(partner, fit, test)
    return scorings, in_bases


@dataclass(frozen=True)
class _LayerPair:
    """Layer `i` of a run and layer `j` of another, by index, with the partner of each neuron of the first, or -1."""

    a: Ranked
    b: Ranked
    i: int
    j: int
    partner: NDArray[np.int64]

    @property
    def matched(self) -> NDArray[np.intp]:
        """The neurons of the first run that have a partner."""
        return np.flatnonzero(self.partner >= 0)

    def neurons(self, correlations: tuple[Array, Array], in_bases: Sequence[Array]) -> Iterator[dict[str, Any]]:
        """Yield the rows of `neurons.csv`, by rank in the first run.

        By chance, a neuron correlates with its match as with a match that is drawn at random, or as with its matches in
        random bases if these correlate more.
        """
        a, b, i, j, partner, matched = self.a, self.b, self.i, self.j, self.partner, self.matched
        fit, test = correlations
        ranks = neuron_ranks(a.scores[i]), neuron_ranks(b.scores[j])
        correlation_of = dict(zip(matched.tolist(), match_correlations(partner, fit, test).tolist(), strict=True))
        for neuron in np.argsort(ranks[0], kind="stable").tolist():
            row = {
                "model_a": a.label, "layer_a": a.layers[i], "rank_a": int(ranks[0][neuron]), "neuron_a": neuron,
                "contribution_a": float(a.scores[i, neuron]), "model_b": b.label, "layer_b": b.layers[j],
            }  # fmt: skip
            if neuron in correlation_of:
                other = int(partner[neuron])
                at_random = float((np.sign(fit[neuron, partner[matched]]) * test[neuron, partner[matched]]).mean())
                bases = [of[neuron] for of in in_bases if np.isfinite(of[neuron])]
                row |= {
                    "rank_b": int(ranks[1][other]), "neuron_b": other, "contribution_b": float(b.scores[j, other]),
                    "correlation": correlation_of[neuron], "chance": at_random + excess(bases, at_random),
                }  # fmt: skip
            yield row

    def statistics(
        self, k: int, unrelated: Sequence[tuple[Array, Array]], permutations: int, seed: int
    ) -> list[Agreement]:
        """Return the agreement of the rankings of matched neurons; none for fewer than two."""
        matched, theirs = self.matched, self.partner[self.matched]
        if len(matched) < 2:
            return []

        def of_both(ours: Array | None, others: Array | None) -> tuple[Array, Array] | None:
            """Return the scores of matched neurons in several rankings of each run, if both have some."""
            return None if ours is None or others is None else (ours[self.i][:, matched], others[self.j][:, theirs])

        return agreement(
            self.a.scores[self.i][matched],
            self.b.scores[self.j][theirs],
            k=min(k, len(matched)),
            groups=theirs,
            draws=of_both(self.a.draws, self.b.draws),
            unrelated=unrelated,
            shuffled=None if unrelated else of_both(self.a.shuffled, self.b.shuffled),
            permutations=permutations,
            seed=seed,
        )

    def no_signal(self) -> dict[str, int]:
        """Return the number of matched neurons without signal in at least one run; empty if unknown for a run."""
        if self.a.no_signal is None or self.b.no_signal is None:
            return {}
        either = self.a.no_signal[self.i][self.matched] | self.b.no_signal[self.j][self.partner[self.matched]]
        return {"n_no_signal": int(either.sum())}


def _correct(rows: Sequence[dict[str, Any]], nulls: Mapping[str, Array]) -> None:
    """Add p-values corrected over the pairs of layers by statistic: by `nulls`, (2, n_draws, n_rows), or Holm."""
    for statistic in {row["statistic"] for row in rows}:
        statistic_rows = [row for row in rows if row["statistic"] == statistic and "p_uncorrected" in row]
        if statistic not in nulls:
            correct_p_values(statistic_rows, "p_uncorrected")
            continue
        corrected = max_p_values(np.array([row["value"] for row in statistic_rows]), nulls[statistic])
        for row, p_value in zip(statistic_rows, corrected, strict=True):
            row["p_value"] = float(p_value)


def _related(a: Ranked, b: Ranked, moments: tuple[CrossMoments, CrossMoments], seed: int) -> bool:
    """Return whether the models share a lineage: neurons of the same index correlate in some pair of layers."""
    fit, test = moments
    index = np.arange(a.d_model)
    for i, j in np.ndindex(len(a.layers), len(b.layers)):
        quality = judge(index, fit.correlation(i, j), test.correlation(i, j), seed=seed)
        # The margin of a tenth is needed because models that read the same words reach p < .01 by the words alone.
        if quality.p_value < 0.01 and quality.test > quality.chance + 0.1:
            return True
    return False
