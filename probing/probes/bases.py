"""Comparison of dictionary features with other units of the same hidden states, at equal numbers of units.

Probes with an intercept read the first k units of each basis: features; neurons; random features (random directions, as
many of which are active on a token); and randomly rotated neurons. Sparse probing (Gurnee et al. 2023, arXiv
2305.01610) does this for neurons. Units are ranked by the between-class share of their variance over training tokens,
the penalty is chosen on validation tokens, and differences on test tokens are paired by sentence, at a level that
leaves 5% for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations.source import FeatureStore, most_active
from probing.activations.store import MemoryCache
from probing.data.examples import Examples, HiddenStateSource, Sides, exchanged, read
from probing.data.labelling import LayerSample, thin
from probing.data.module import layer_moments
from probing.models.sites import Dictionary
from probing.probes.closed_forms import FLOOR, choose_shared, entropy
from probing.probes.evaluation import BY_CHANCE, TOLERANCE, accuracy_columns, majority_accuracy, of_views
from probing.probes.rankings import SELECTED, LayerData, mean_differences
from probing.probes.solvers import Penalty, Problem, centre_over_classes
from probing.probes.training import LayerFit, Lbfgs, Training, train_problems
from probing.probes.transforms import ChangedOnce, TransformedStore, centred, feature_store, with_constant
from probing.runtime.progress import note
from probing.statistics import difference_interval
from probing.statistics.chance import rotation_of_parts

# Numbers of units; those that exceed the width of the layer or the number of features are left out.
COUNTS = (1, 4, 16, 64)

# Draws of random features and of rotations.
DRAWS = 3

# The probes are trained on at most so many tokens, whole sentences drawn evenly.
MOST_TOKENS = 10_000

# Penalties from which validation tokens choose, where the run's is not given.
PENALTIES = (1e-2, 1e-3, 1e-4)

# Tokens by which the thresholds of random features are set.
N_THRESHOLD = 4096

# Bytes of columns that are kept in memory.
KEPT_BYTES = 2**29

# Number of units that a row names.
NAMED = 16

# The bases beside the features, by what seeds their draws.
BESIDE = ("neurons", "random features", "rotated neurons")

Rows = list[dict[str, Any]]


def basis_rows(sides: Sides, layer: int, training: Training, is_given: bool, seed: int) -> Rows:
    """Return a row per basis and number of units of a layer, as in `bases.csv`; the activations are features.

    The penalty of `training` is used if `is_given`; otherwise it is chosen among `PENALTIES`.
    """
    few = replace(sides, train=thin(sides.train, MOST_TOKENS, seed))
    dictionary_store = feature_store(sides.train.store)
    assert dictionary_store is not None
    width = min(dictionary_store.states.plan.d_model, dictionary_store.plan.d_model)
    counts = [k for k in COUNTS if k < width] or [1]
    roughly = replace(training.for_measuring(), solver=Lbfgs(TOLERANCE))
    penalties = (
        [training.penalty] if is_given or not sides.validation.n_tokens else [Penalty(0.0, l2) for l2 in PENALTIES]
    )

    def measure_basis(name: str, change: Callable[[FeatureStore], HiddenStateSource]) -> _Basis:
        note(f"layer {layer}, {name}")
        return _measure(
            _exchanged(few, change),
            layer,
            counts,
            roughly,
            penalties,
            dictionary_store.selected_features if name == "features" else None,
        )

    features = measure_basis("features", lambda store: store)
    bases = {"neurons": [measure_basis("neurons", lambda store: store.states)]}
    for name, of_draw in (("random features", _random_features), ("rotated neurons", _rotated)):
        changes = (of_draw(few.train, layer, np.random.SeedSequence([seed, layer, draw])) for draw in range(DRAWS))
        bases[name] = [measure_basis(f"{name}, draw {draw}", change) for draw, change in enumerate(changes, start=1)]
    rows = _rows_of(few, layer, "features", [features], [features], 0)
    for name in BESIDE:
        rows += _rows_of(few, layer, name, bases[name], [features], len(BESIDE) * len(counts))
    return rows


@dataclass(frozen=True)
class _Basis:
    """Probes of the first units of a basis, or of a draw of it."""

    counts: Sequence[int]
    fits: Sequence[LayerFit]
    penalties: Sequence[float]
    units: Sequence[int]
    n_units: int
    n_active: float


def _measure(
    sides: Sides, layer: int, counts: Sequence[int], training: Training, penalties: Sequence[Penalty],
    numbers: Sequence[int] | None,
) -> _Basis:  # fmt: skip
    """Rank the units of a basis on training tokens, and train and test probes of the first `counts` units."""
    score = explained(sides.train, layer, len(sides.classes))
    order = np.lexsort([np.arange(len(score)), -score.numpy()])[: counts[-1]].tolist()
    n_active, n_test = 0, 0
    for batch in read(sides.test, [layer]):
        n_active, n_test = n_active + int(batch.hidden_states[0].count_nonzero()), n_test + len(batch.labels)
    in_memory = ChangedOnce().change(sides, lambda store: _Columns(store, layer, order))
    read_by, _ = with_constant(centred(in_memory, {}, [layer])[0], {})
    fits, chosen = [], []
    for k in counts:
        dead = torch.zeros(len(order) + 1, dtype=torch.bool)
        viewed = read_by.each(lambda examples: of_views(examples, layer, [range(k)], dead))  # noqa: B023
        problems = [Problem(f"l2_{penalty.l2}", 0, penalty) for penalty in penalties]
        moments = layer_moments(viewed.train, [0])
        tried = train_problems(viewed, [0], moments, problems, training, f"probes of {k} units", test=True)
        best = 0 if len(tried) == 1 else int(np.argmin(_cross_entropies(viewed.validation, tried)))
        fits.append(tried[best])
        chosen.append(penalties[best].l2)
    named = order if numbers is None else [numbers[i] for i in order]
    return _Basis(counts, fits, chosen, named, len(score), n_active / n_test)


def explained(train: Examples, layer: int, n_classes: int) -> Tensor:
    """Return the between-class share of each unit's variance over training tokens, ordered as F; 0 if constant."""
    n_units = train.store.plan.d_model
    counts = torch.zeros(n_classes, dtype=torch.float64)
    sums = torch.zeros(n_classes, n_units, dtype=torch.float64)
    squares, origin = torch.zeros(n_units, dtype=torch.float64), None
    for batch in read(train, [layer]):
        states = batch.hidden_states[0].double()
        origin = states.mean(0) if origin is None else origin  # against cancellation in the sums of squares
        states -= origin
        counts += batch.labels.bincount(minlength=n_classes)
        sums.index_add_(0, batch.labels, states)
        squares += states.square().sum(0)
    n, mean = counts.sum(), sums.sum(0) / counts.sum()
    between = (sums.square() / counts.clamp(min=1)[:, None]).sum(0) - n * mean.square()
    total = squares - n * mean.square()
    varies = total > 1e-12 * squares.clamp(min=torch.finfo(torch.float64).tiny)
    return torch.where(varies, between / torch.where(varies, total, 1.0), 0.0).clamp(0, 1)


def _cross_entropies(examples: Examples, fits: Sequence[LayerFit]) -> list[float]:
    """Return the cross-entropy of each probe of a view, summed over the examples, in nats."""
    totals = [0.0] * len(fits)
    for batch in read(examples, [0]):
        for i, fit in enumerate(fits):
            logits = (batch.hidden_states[0] @ fit.weight.T).double()
            totals[i] += float(torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum"))
    return totals


def _rows_of(
    sides: Sides, layer: int, name: str, draws: Sequence[_Basis], features: Sequence[_Basis], n_compared: int
) -> Rows:
    """Return the rows of a basis (or of several draws of it), compared with the features unless `n_compared` is 0."""
    test, majority, rows = sides.test, majority_accuracy(sides), []
    for i, k in enumerate(draws[0].counts):
        correct = [draw.fits[i].correct_by_sentence for draw in draws]
        accuracies = [float(by_sentence.sum() / test.n_tokens) for by_sentence in correct]
        mean = np.mean(correct, axis=0)
        row = {
            "layer": layer, "basis": name, "k": k, **accuracy_columns(test, mean),
            "accuracy": float(np.mean(accuracies)), "majority_accuracy": majority,
        }  # fmt: skip
        if len(draws) > 1:
            row |= {"lowest": min(accuracies), "highest": max(accuracies), "n_draws": len(draws)}
        if n_compared:
            feature_correct = features[0].fits[i].correct_by_sentence
            row |= _difference(
                feature_correct - mean,
                float(feature_correct.sum() / test.n_tokens),
                accuracies,
                test,
                n_compared,
            )
        if len(draws) == 1:
            row["units"] = " ".join(map(str, draws[0].units[: min(k, NAMED)]))
        rows.append(row | {
            "n_units": draws[0].n_units, "n_active": float(np.mean([draw.n_active for draw in draws])),
            "l2": float(np.median([draw.penalties[i] for draw in draws])), "n_train_tokens": sides.train.n_tokens,
            "n_test_tokens": test.n_tokens,
        })  # fmt: skip
    return rows


def _difference(
    correct: NDArray[Any], accuracy: float, others: Sequence[float], test: Examples, n: int
) -> dict[str, Any]:
    """Return the accuracy difference to another basis, with its confidence interval and a verdict.

    The verdict `better` or `worse` requires an interval without 0 and an accuracy beyond every draw in `others`.
    """
    n_tokens = test.clusters(test.tokens_by_sentence())
    low, high = difference_interval(test.clusters(correct), n_tokens, 1 - BY_CHANCE / n)
    verdict = "better" if low > 0 and accuracy > max(others) else "unresolved"
    verdict = "worse" if high < 0 and accuracy < min(others) else verdict
    return {"difference": accuracy - float(np.mean(others)), "difference_low": low, "difference_high": high,
            "features": verdict}  # fmt: skip


def _exchanged(sides: Sides, change: Callable[[FeatureStore], HiddenStateSource]) -> Sides:
    """Return the sides with another basis of the same hidden states."""

    def of(store: HiddenStateSource) -> HiddenStateSource:
        while isinstance(store, TransformedStore):  # transforms and centring are those of the run's own probes
            store = store.store
        return exchanged(store, lambda inner: change(inner) if isinstance(inner, FeatureStore) else inner)

    return ChangedOnce().change(sides, of)


class _Columns(TransformedStore):
    """A store of some units of a single layer, cached in memory up to `KEPT_BYTES`."""

    def __init__(self, store: HiddenStateSource, layer: int, units: Sequence[int]) -> None:
        index = torch.tensor(units)
        super().__init__(store, {layer: lambda states: states[:, index]}, len(units))
        self._cache = MemoryCache(KEPT_BYTES)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the units of a shard, shape (n, n_units), float32."""
        return self._cache.get(layer, shard, super().read)


def _rotated(train: Examples, layer: int, seeds: np.random.SeedSequence) -> Callable[[FeatureStore], HiddenStateSource]:
    """Return a change of store that applies a uniformly drawn rotation or reflection to the hidden states."""
    store = feature_store(train.store)
    assert store is not None
    d_model = store.states.plan.d_model
    q, r = np.linalg.qr(np.random.default_rng(seeds).standard_normal((d_model, d_model)))
    rotation = torch.from_numpy(q * np.sign(np.diagonal(r))).float()
    return lambda store: TransformedStore(store.states, {layer: lambda states: states @ rotation})


def _random_features(
    train: Examples, layer: int, seeds: np.random.SeedSequence
) -> Callable[[FeatureStore], HiddenStateSource]:
    """Return a change of store that encodes hidden states by a random dictionary with equally many active features."""
    store = feature_store(train.store)
    assert store is not None
    sample = sample_of(store, layer, train, seeds)
    drawn = random_dictionary(store.dictionary, sample, np.random.default_rng(seeds))
    selected = store.selected_features
    if selected is not None:  # as of the dictionary itself, those that are active on the most training tokens
        wide = FeatureStore(store.states, drawn, store.dictionary_folder)
        selected = most_active(wide, layer, train.sentences().tolist())[0][: len(selected)]
    return lambda store: FeatureStore(store.states, drawn, store.dictionary_folder, selected)


def sample_of(store: FeatureStore, layer: int, train: Examples, seeds: np.random.SeedSequence) -> Tensor:
    """Return hidden states of at most `N_THRESHOLD` tokens of training sentences, without special tokens."""
    tokens = store.tokens
    candidates = np.flatnonzero(np.isin(tokens.sentences, train.sentences()) & ~tokens.special)
    rows = np.sort(np.random.default_rng(seeds).permutation(candidates)[:N_THRESHOLD])
    parts = []
    for shard in store.plan.shards:
        token_range = shard.rows(store.tokens)
        shard_rows = rows[(rows >= token_range.start) & (rows < token_range.stop)] - token_range.start
        parts.append(store.states.read(layer, shard.index)[torch.from_numpy(shard_rows)].float())
    return torch.cat(parts)


def random_dictionary(dictionary: Dictionary, sample: Tensor, generator: np.random.Generator) -> Dictionary:
    """Return a dictionary of as many random directions, whose features are active as often on the sample.

    It reads the same normalised states, centred on their mean. A `topk` dictionary keeps the k highest; otherwise
    thresholds match the number of active tokens of `sample`, shape (n, d_in), feature by feature.
    """
    d_in, n_features = dictionary.weight.shape
    directions = torch.from_numpy(generator.standard_normal((n_features, d_in))).float()
    weight = torch.nn.functional.normalize(directions).T.contiguous()
    inputs = dictionary.read(sample)
    mean = inputs.mean(0)
    subtracted = mean if dictionary.subtracted is None else dictionary.subtracted + mean
    bias = torch.zeros(n_features)
    drawn = Dictionary("standard", weight, bias, dictionary.normalisation, subtracted)
    if dictionary.k is not None:
        return replace(drawn, architecture="topk", k=dictionary.k)
    n_active = torch.zeros(n_features, dtype=torch.int64)
    for part in sample.split(512):
        n_active += (dictionary.encode(part) > 0).sum(0)
    for features in torch.arange(n_features).split(1024):
        largest_first = ((inputs - mean) @ weight[:, features]).sort(0, descending=True).values
        # What is above the value that is next in order, so many, is active; of what is always active, the lowest, too.
        place = n_active[features].clamp(max=len(sample) - 1)
        bias[features] = -largest_first.gather(0, place[None])[0]
    return drawn


# Validation tokens on which it is measured what directions tell of the class.
N_TOKENS = 2_000

# Numbers of tokens, classes and directions at a time.
AT_A_TIME = 2**24


def _variances(data: LayerData, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of squares of each direction between and within classes, each of shape (n_directions,)."""
    counts, mean = data.classes.counts, data.classes.mean @ basis
    between = counts @ (mean - counts @ mean / counts.sum()).square()
    return between, _squares(data.classes.pooled * counts.sum(), basis)


def _squares(products: Tensor, basis: Tensor) -> Tensor:
    """Return q' P q for each direction q, shape (n_directions,)."""
    return ((products @ basis) * basis).sum(0)


def _weight(data: LayerData, basis: Tensor) -> Tensor:
    """Return the mean over classes of the absolute weight of each direction."""
    return ((centre_over_classes(data.weight.double()) * data.moments.sd.square()) @ basis).abs().mean(0)


def _differences(data: LayerData, basis: Tensor) -> Tensor:
    """Return the distance of class means along each direction, in its standard deviations, summed over pairs."""
    sd = (sum(_variances(data, basis)) / data.classes.counts.sum()).sqrt()
    return mean_differences(data.classes.mean @ basis) / sd


def _anova(data: LayerData, basis: Tensor) -> Tensor:
    """Return the between-class share of each direction's variance, which is ordered as F and always finite."""
    between, within = _variances(data, basis)
    return between / (between + within)


def _alone(data: LayerData, basis: Tensor, shared: float, tokens: LayerSample) -> Tensor:
    """Return the bits of class information that a Gaussian probe decodes from each direction separately, at least 0."""
    between, within = _variances(data, basis)
    counts, n = data.classes.counts[:, None], data.classes.counts.sum()
    scatter = torch.stack([_squares(class_scatter, basis) for class_scatter in data.classes.scatter])
    prior = scatter / counts.clamp(min=1) + FLOOR * (between + within) / n
    variance = (scatter + shared * within / n + prior) / (counts + 6 + shared)
    centre = data.moments.mean
    mean, states = ((data.classes.mean - centre) @ basis).float(), (tokens.hidden_states.double() - centre) @ basis
    constant, slope = ((counts / n).log() - variance.log() / 2).float(), (-0.5 / variance).float()
    total = torch.zeros(basis.shape[1], dtype=torch.float64)
    size = max(1, AT_A_TIME // mean.numel())
    for rows, labels in zip(states.float().split(size), tokens.labels.split(size), strict=True):
        joint = (rows[:, None] - mean).square_().mul_(slope).add_(constant)
        total += (joint[torch.arange(len(labels)), labels] - joint.logsumexp(1)).sum(0, dtype=torch.float64)
    return (entropy(tokens.labels) + total / len(tokens.labels) / math.log(2)).clamp(min=0)


# By what neurons are compared with directions, for each method whose score is one of a direction, too.
SCORES: dict[str, Callable[..., Tensor]] = {
    "weight": _weight, "probeless_standardised": _differences, "anova": _anova, "gaussian": _alone,
}  # fmt: skip


def rotated_scores(
    data: LayerData, methods: Sequence[str], n_rotations: int, seed: int, n_parts: int = 1
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return scores of live neurons, shape (n_live,), and of rotations, (n_rotations, n_live), highest first.

    Of pairs of spans (2 parts), the neurons of each span are rotated among themselves.
    """
    scores = {name: SCORES[name] for name in methods if name in SCORES}
    if "gaussian" in scores:
        states, labels = data.validation
        drawn = [i for i in data.draw(SELECTED, 0) if not data.moments.dead[i]]
        few = slice(None, None, math.ceil(len(labels) / N_TOKENS))
        shared = choose_shared(data.classes, states, labels, drawn).shared  # as the method itself chooses it
        scores["gaussian"] = partial(_alone, shared=shared, tokens=LayerSample(states[few], labels[few]))
    live = data.live
    eye = torch.eye(len(live), dtype=torch.float64)
    sizes = [int(part.sum()) for part in (~data.moments.dead).chunk(n_parts)]
    by_method: dict[str, list[Tensor]] = {name: [] for name in scores}
    for draw in range(-1, n_rotations if live else -1):
        basis = torch.zeros(len(data.moments.sd), len(live), dtype=torch.float64)
        directions = eye if draw < 0 else rotation_of_parts(sizes, seed, int(data.layer), draw)(eye)
        basis[live] = directions / data.moments.sd[live, None]
        for name, score in scores.items():
            by_method[name].append(score(data, basis))
    return {name: (of[0], torch.stack(of[1:]).sort(-1, descending=True).values) for name, of in by_method.items() if of}
