"""Linear probes of layer fusions compared with probes of single layers, on a frozen model.

For each task, linear probes without intercept are trained on every layer and every fusion, all with one penalty, chosen
on validation sentences. On the test sentences, a fusion is compared with the last layer, with the layer whose probe
predicts validation sentences best, and with the mean of the layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import tokens_of
from probing.activations.store import MemoryCache, StorePlan
from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, HiddenStateSource, Sides
from probing.data.labelling import ExampleChecks, label_sides
from probing.data.module import layer_moments
from probing.errors import UserError, as_clause
from probing.heads.accumulation import SumsStore
from probing.heads.measures import Row, Rows, accuracy_cells, corrected, difference_cells, mean_cells
from probing.heads.survey import HeadSurvey, SurveyPart
from probing.models import load_tokenizer
from probing.probes.solvers import Evaluation, Penalty, Preconditioner, minimise
from probing.probes.training import LayerFit, Training, penalised, train_probes
from probing.runtime.terminal import silence
from probing.statistics.moments import hardly_vary
from probing.text.tasks import TokenTask, load_task
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# Fusion of layers: one vector for each token from its vectors after several blocks (Shi et al. 2022, section 5).
# --------------------------------------------------------------------------------------------------------------------

# Fused vectors are kept up to this size; beyond, they are fused again in every pass.
FUSED_BYTES = 2**29


class Fusion(Protocol):
    """A map from the vectors of several layers to a single vector for each token (Shi et al. 2022, section 5)."""

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors, shape (n, d_model), of layer vectors, shape (n_layers, n, d_model)."""
        ...

    def weights(self, states: Tensor) -> Tensor:
        """Return the weight of each layer in a token's vector, shape (n_layers, n); absolute values sum to 1."""
        ...


@dataclass(frozen=True)
class Weighted:
    """`concat`: sum_k alpha_k H_k, with the same weights alpha, shape (n_layers,), for all tokens.

    It is a linear map of the concatenated layers with one number for each layer, and includes the mean of the layers
    and every single layer.
    """

    alpha: Tensor

    @classmethod
    def equal(cls, n_layers: int) -> Weighted:
        """Return the mean of the layers."""
        return cls(torch.full((n_layers,), 1 / n_layers))

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors."""
        return torch.tensordot(self.alpha.to(states), states, 1)

    def weights(self, states: Tensor) -> Tensor:
        """Return alpha over the sum of its absolute values."""
        return (self.alpha / self.alpha.abs().sum()).to(states)[:, None].expand(states.shape[:2])


@dataclass(frozen=True)
class Largest:
    """`max`: the largest value of each neuron among the layers; it has no parameters."""

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors."""
        return states.amax(0)

    def weights(self, states: Tensor) -> Tensor:
        """Return the share of neurons with the largest value in each layer; ties go to the first layer."""
        largest = states.argmax(0)
        return torch.stack([(largest == layer).float().mean(1) for layer in range(len(states))])


@dataclass(frozen=True)
class Gated:
    """`gate`: sum_k I_k^t H_k^t, with weights for each token t: the softmax over k of g(H_k^t).

    The gate g is one linear map for all layers, `direction`, shape (d_model,). A bias would add the same to all layers
    and so has no effect.
    """

    direction: Tensor

    def __call__(self, states: Tensor) -> Tensor:
        """Return the fused vectors."""
        return (self.weights(states)[:, :, None] * states).sum(0)

    def weights(self, states: Tensor) -> Tensor:
        """Return the gate of each layer and token."""
        return (states @ self.direction.to(states)).softmax(0)


class FusedStates:
    """A store that also has fusions of its layers, as further layers with negative numbers."""

    def __init__(self, base: HiddenStateSource, layers: Sequence[int], fusions: Mapping[int, Fusion]) -> None:
        self.base, self.layers, self.fusions = base, list(layers), dict(fusions)
        self.plan: StorePlan = base.plan
        self.tokens: Tokens = base.tokens
        self._cache = MemoryCache(FUSED_BYTES)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the hidden states of a layer, or the vectors of a fusion in float32, shape (n, d_model)."""
        if layer not in self.fusions:
            return self.base.read(layer, shard)
        return self._cache.get(
            layer, shard, lambda layer, shard: self.fusions[layer](states_of(self.base, self.layers, shard))
        )


def states_of(store: HiddenStateSource, layers: Sequence[int], shard: int, rows: Tensor | None = None) -> Tensor:
    """Return the hidden states of several layers, shape (n_layers, n, d_model), float32; all rows if `rows` is None."""
    layer_states = (store.read(layer, shard) for layer in layers)
    return torch.stack([(states if rows is None else states.index_select(0, rows)).float() for states in layer_states])


# --------------------------------------------------------------------------------------------------------------------
# Learns a fusion of layers together with the linear probe that reads it, on the training tokens of a task.
# --------------------------------------------------------------------------------------------------------------------

# Training ends when |gradient|^2 / (4 l2), in nats, falls below this value.
TOLERANCE = 1e-4
# Maximum number of passes over the tokens: in all, and until the preconditioner is recomputed.
MOST_PASSES, PASSES_OF_A_ROUND = 1000, 50
# Bytes of hidden states of all layers in memory at a time.
BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class _ShardExamples:
    """Some examples of one shard; `rows` and `example` have shape (n_tokens,), `labels` (n_examples,)."""

    shard: int
    rows: Tensor
    example: Tensor
    labels: Tensor


class LayersOfExamples:
    """The hidden states of several layers at the examples, in blocks that are read again in every pass."""

    def __init__(self, examples: Examples, layers: Sequence[int]) -> None:
        self.store, self.layers = examples.store, list(layers)
        self.blocks = list(_blocks(examples, len(self.layers)))
        self.n = sum(len(block.labels) for block in self.blocks)

    def __iter__(self) -> Iterator[tuple[Tensor, _ShardExamples]]:
        for block in self.blocks:
            yield states_of(self.store, self.layers, block.shard, block.rows), block


def _blocks(examples: Examples, n_layers: int) -> Iterator[_ShardExamples]:
    store, tokens = examples.store, examples.store.tokens
    most = max(BLOCK_BYTES // (4 * n_layers * store.plan.d_model), 1)
    for shard in store.plan.shards:
        shard_rows = shard.rows(store.tokens)
        of_rows = examples.labels[shard_rows]
        begins = tokens.first_pieces[shard_rows] if examples.word_means else of_rows >= 0
        number = begins.cumsum() - 1
        label_of = of_rows[begins]
        belongs = (tokens.words[shard_rows] >= 0) if examples.word_means else begins
        rows = np.flatnonzero(belongs)
        rows = rows[label_of[number[rows]] >= 0]
        chosen, first, example = np.unique(number[rows], return_index=True, return_inverse=True)
        block_of = first // most  # an example is in one block, with all its pieces
        for block in np.unique(block_of):
            block_examples = np.flatnonzero(block_of == block)
            inside = (example >= block_examples[0]) & (example <= block_examples[-1])
            yield _ShardExamples(
                shard.index, torch.from_numpy(rows[inside]), torch.from_numpy(example[inside] - block_examples[0]),
                torch.from_numpy(label_of[chosen[block_examples]].astype(np.int64)),
            )  # fmt: skip


def pooled(vectors: Tensor, block: _ShardExamples) -> Tensor:
    """Return the mean vector of each example, shape (n_examples, d_model)."""
    n = len(block.labels)
    if n == len(block.rows):
        return vectors
    sizes = block.example.bincount(minlength=n)[:, None]
    return vectors.new_zeros(n, vectors.shape[1]).index_add(0, block.example, vectors) / sizes


@dataclass(frozen=True)
class FusionMoments:
    """Joint moments, float64: mean, (n_layers, d_model), and covariance of layers, (d_model, n_layers, n_layers)."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, examples: LayersOfExamples) -> FusionMoments:
        """Return the moments over the examples, in two passes."""
        total: Tensor | float = 0.0
        for states, block in examples:
            total = total + _pooled_layers(states, block).sum(1)
        assert isinstance(total, Tensor)
        mean, products = total / examples.n, torch.zeros((), dtype=torch.float64)
        for states, block in examples:
            away = _pooled_layers(states, block) - mean[:, None]
            products = products + torch.einsum("jnd,knd->djk", away, away)
        return cls(mean, products / examples.n)

    def inverse_scale(self, alpha: Tensor) -> Tensor:
        """Return 1 / sd of each neuron of a weighted sum of the layers, 0 if it hardly varies; shape (d_model,)."""
        alpha = alpha.double()
        sd = torch.einsum("j,djk,k->d", alpha, self.covariance, alpha).clamp_min(0)
        sd = sd.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        dead = hardly_vary(sd.detach(), torch.hypot(sd.detach(), alpha.detach() @ self.mean))
        return torch.where(dead, 0.0, 1 / sd)


def _pooled_layers(states: Tensor, block: _ShardExamples) -> Tensor:
    return torch.stack([pooled(layer_states, block) for layer_states in states]).double()


@dataclass(frozen=True)
class FusionFamily:
    """Fusions with parameters, scaled so that 0 is the mean of the layers and a change of 1 is a large change.

    Args:
        fusion: Returns the fusion, given the parameters.
        inverse_scale: Returns 1 / sd, the scale of each fused neuron, given the parameters.
        derivatives: Returns a, shape (n_layers, n, n_classes), and f, shape (n_layers, n, n_parameters), given the
            parameters, the probe's weight on fused vectors, and the states of n tokens. The derivatives of the logits
            of token t, with its scale fixed, are sum_k a_k[t] f_k[t]'.
    """

    n_parameters: int
    fusion: Callable[[Tensor], Fusion]
    inverse_scale: Callable[[Tensor], Tensor]
    derivatives: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def weighted_family(moments: FusionMoments) -> tuple[FusionFamily, Callable[[Weighted], Tensor]]:
    """Return the family of `concat`, and the map from a fusion to its parameters.

    The parameter of layer k is (alpha_k - 1 / n_layers) / unit_k, where unit_k is the mean size (root mean square) of
    the layers divided by the size of layer k. Parameters therefore have similar sizes even in models whose vectors grow
    from block to block.
    """
    sizes = torch.hypot(moments.mean, moments.covariance.diagonal(dim1=1, dim2=2).T.clamp_min(0).sqrt())
    rms = sizes.square().mean(1).sqrt()
    units = (rms.mean() / rms.clamp_min(torch.finfo(torch.float64).tiny)).float()
    n = len(units)

    def alpha(parameters: Tensor) -> Tensor:
        return 1 / n + units * parameters

    def derivatives(parameters: Tensor, weight: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        return states @ weight.T, torch.diag(units)[:, None].expand(n, states.shape[1], n)

    family = FusionFamily(n, lambda p: Weighted(alpha(p)), lambda p: moments.inverse_scale(alpha(p)), derivatives)
    return family, lambda fusion: (fusion.alpha - 1 / n) / units


def gated_family(moments: FusionMoments) -> FusionFamily:
    """Return the family of `gate`; each fused neuron is divided by its standard deviation in the mean of the layers.

    A parameter is the gate's weight on the standardised neuron: its weight on the neuron times the neuron's standard
    deviation over the tokens of all layers.
    """
    n, d_model = moments.mean.shape
    variance = moments.covariance.diagonal(dim1=1, dim2=2).mean(1) + moments.mean.var(0, correction=0)
    sd, size = variance.clamp_min(0).sqrt(), moments.mean.square().mean(0).sqrt()
    inverse = torch.where(hardly_vary(sd, torch.hypot(sd, size)), 0.0, 1 / sd).float()
    scale = moments.inverse_scale(torch.full((n,), 1 / n))

    def derivatives(parameters: Tensor, weight: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        gates = Gated(parameters * inverse).weights(states)[:, :, None]
        away = states - (gates * states).sum(0)
        return gates * (away @ weight.T), states * inverse

    return FusionFamily(d_model, lambda p: Gated(p * inverse), lambda p: scale, derivatives)


@dataclass(frozen=True)
class Learned:
    """A fusion trained together with its probe, whose weight on fused vectors has shape (n_classes, d_model).

    Args:
        objective: Cross-entropy plus penalties on the training tokens, in nats.
        n_passes: Number of passes over the training tokens that evaluated the objective.
        converged: Whether training ended because |gradient|^2 / (4 l2) fell below the tolerance.
    """

    fusion: Fusion
    weight: Tensor
    objective: float
    n_passes: int
    converged: bool


class Objective:
    """Mean cross-entropy of fused examples and its derivatives, as a function of scaled weights and parameters."""

    def __init__(self, examples: LayersOfExamples, family: FusionFamily, n_classes: int) -> None:
        self.examples, self.family = examples, family
        self.shape = n_classes, examples.store.plan.d_model

    @property
    def n_weights(self) -> int:
        """Number of scaled weights; the rest of a point are parameters of the fusion."""
        return self.shape[0] * self.shape[1]

    def __call__(self, point: Tensor) -> Evaluation:
        """Return value, gradient and class covariance at a point, shape (n_weights + n_parameters,)."""
        leaf = point.detach().clone().requires_grad_()
        total, covariance = 0.0, torch.zeros(self.shape[0], self.shape[0], dtype=torch.float64)
        gradient = torch.zeros(point.shape, dtype=torch.float64)
        for states, block in self.examples:
            with torch.enable_grad():
                weight, parameters = leaf[: self.n_weights].view(self.shape), leaf[self.n_weights :]
                scaled = weight * self.family.inverse_scale(parameters).float()
                logits = pooled(self.family.fusion(parameters)(states), block) @ scaled.T
                log_p = logits.log_softmax(1)
                losses = -log_p.gather(1, block.labels[:, None])
                (block_gradient,) = torch.autograd.grad(losses.sum(), leaf)
            total += float(losses.detach().double().sum())
            gradient += block_gradient.double()
            p = log_p.detach().exp()
            covariance += (torch.diag(p.sum(0)) - p.T @ p).double()
        n = self.examples.n
        return Evaluation(total / n, (gradient / n).float(), (covariance / n).float())

    def preconditioner(self, point: Tensor) -> Preconditioner:
        """Return a preconditioner for the curvature at a point, in one pass."""
        weight, parameters = point[: self.n_weights].view(self.shape), point[self.n_weights :]
        inverse = self.family.inverse_scale(parameters).float()
        moment = torch.zeros(self.shape[1], self.shape[1], dtype=torch.float64)
        curvature = torch.zeros(len(parameters), len(parameters), dtype=torch.float64)
        fusion, raw = self.family.fusion(parameters), weight * inverse
        for states, block in self.examples:
            scaled = pooled(fusion(states), block) * inverse
            moment += (scaled.T @ scaled).double()
            p = (scaled @ weight.T).softmax(1)
            curvature += _gauss_newton(*self.family.derivatives(parameters, raw, states), p, block).double()
        return _Joint(moment / self.examples.n, curvature / self.examples.n, self.shape)


def _gauss_newton(a: Tensor, f: Tensor, p: Tensor, block: _ShardExamples) -> Tensor:
    """Return the sum over tokens of J'(diag(p) - p p')J, shape (n_parameters, n_parameters), for J of `a` and `f`.

    A word of several pieces is approximated: each piece counts as a separate example, with the class probabilities `p`
    of the word, shape (n_examples, n_classes), and the weight 1 / (number of pieces). For `a` and `f` see
    `FusionFamily`.
    """
    p = p[block.example]
    centred = a - (a * p).sum(2, keepdim=True)
    of_pairs = torch.einsum("jnc,knc->njk", centred * p, centred)
    values, vectors = torch.linalg.eigh(of_pairs)
    share = 1 / block.example.bincount()[block.example].float()
    root = vectors * (values.clamp_min(0) * share[:, None]).sqrt()[:, None]
    factors = torch.einsum("nkj,knq->njq", root, f).flatten(0, 1)
    return factors.T @ factors


class _Joint(Preconditioner):
    """Preconditions the weights as in any probe, and the parameters of the fusion by their curvature."""

    def __init__(self, second_moment: Tensor, curvature: Tensor, shape: tuple[int, int]) -> None:
        super().__init__(second_moment)
        self.shape = shape
        values, vectors = torch.linalg.eigh(curvature)
        self.values, self.vectors = values.clamp_min(0).float(), vectors.float()

    def at(self, class_covariance: Tensor, l2: float) -> Callable[[Tensor], Tensor]:
        of_weights, n = super().at(class_covariance, l2), self.shape[0] * self.shape[1]

        def apply(gradient: Tensor) -> Tensor:
            weights = of_weights(gradient[:n].view(self.shape))
            parameters = self.vectors @ ((self.vectors.T @ gradient[n:]) / (self.values + 2 * l2))
            return torch.cat([weights.reshape(-1), parameters])

        return apply


def learn(objective: Objective, parameters: Tensor, weight: Tensor, l2: float, tolerance: float = TOLERANCE) -> Learned:
    """Train a fusion and its probe together to a local minimum, until |gradient|^2 / (4 l2) < `tolerance`, in nats.

    Training begins at the parameters of a fusion and at the weight of a probe of its vectors, (n_classes, d_model).
    """
    family, shape = objective.family, objective.shape
    inverse = family.inverse_scale(parameters)
    scaled = torch.where(inverse > 0, weight / inverse, 0.0).float()
    point, n_passes = torch.cat([scaled.reshape(-1), parameters.float()]), 0
    while True:
        most = min(PASSES_OF_A_ROUND, MOST_PASSES - n_passes)
        solution = minimise(objective, point, Penalty(0.0, l2), objective.preconditioner(point), tolerance, most)
        point, n_passes = solution.point, n_passes + solution.n_passes
        # A round that ends before its last pass is at a minimum, or at points that no longer differ in float32.
        if solution.n_passes < most or n_passes >= MOST_PASSES:
            break
    scaled, parameters = point[: objective.n_weights].view(shape), point[objective.n_weights :]
    raw = (scaled * family.inverse_scale(parameters)).float()
    return Learned(family.fusion(parameters), raw, solution.objective, n_passes, solution.converged)


# Numbers of the fusions beside those of layers, and their names.
EQUAL, LARGEST, CONCAT, GATE = -1, -2, -3, -4
NAMES = {EQUAL: "equal", LARGEST: "max", CONCAT: "concat", GATE: "gate"}
# The name of a single layer, and what fusions are compared with.
LAYER = "layer"
LAST, BEST = "last layer", "best layer"


@dataclass(frozen=True)
class FusedProbes:
    """The probes and fusions of one task, by number of the layer or fusion.

    Args:
        best: Number of the layer that predicts validation sentences best.
        converged: Whether training reached a minimum, for each learned fusion.
        counts: Number of test examples of each sentence of the test corpus, shape (n_sentences,).
    """

    layers: Sequence[int]
    fits: Mapping[int, LayerFit]
    fusions: Mapping[int, Fusion]
    best: int
    converged: Mapping[int, bool]
    counts: NDArray[np.int64]
    n_train: int


def compare_fusions(sides: Sides, layers: Sequence[int], trainer: Mapping[str, Any], seed: int) -> FusedProbes:
    """Train and test the probes of all layers and fusions of one task; `layers` are at least two, ascending."""
    fusions: dict[int, Fusion] = {EQUAL: Weighted.equal(len(layers)), LARGEST: Largest()}
    views, fused = [*layers, EQUAL, LARGEST], _with_fusions(sides, layers, fusions)
    moments = layer_moments(fused.train, views)
    path, training = penalised(ProbeOptions(), seed, fused, views, moments, trainer)
    assert path is not None
    layer_fits = train_probes(fused, views, training, moments=moments, starts=path.weights)
    fits = dict(zip(views, layer_fits, strict=True))
    of_layers = path.scores[path.best, : len(layers)]
    learned = _learned(sides, layers, fits, training)
    fusions |= {number: learned_fusion.fusion for number, learned_fusion in learned.items()}
    views, fused = list(learned), _with_fusions(sides, layers, fusions)
    again = train_probes(fused, views, training, starts=[learned_fusion.weight for learned_fusion in learned.values()])
    fits |= dict(zip(views, again, strict=True))
    return FusedProbes(
        layers, fits, fusions, layers[int(of_layers.argmin())],
        {n: learned_fusion.converged for n, learned_fusion in learned.items()}, sides.test.tokens_by_sentence(),
        sides.train.n_tokens,
    )  # fmt: skip


def _with_fusions(sides: Sides, layers: Sequence[int], fusions: Mapping[int, Fusion]) -> Sides:
    fused_stores: dict[int, FusedStates] = {}

    def change(examples: Examples) -> Examples:
        store = fused_stores.setdefault(id(examples.store), FusedStates(examples.store, layers, fusions))
        return replace(examples, store=store)

    return sides.each(change)


def _learned(
    sides: Sides, layers: Sequence[int], fits: Mapping[int, LayerFit], training: Training
) -> dict[int, Learned]:
    """Learn the gate, and the layer weights from two starts: the mean, and the layer with the lowest training loss."""
    examples = LayersOfExamples(sides.train, layers)
    moments = FusionMoments.of(examples)
    (family, parameters_of), gated = weighted_family(moments), gated_family(moments)
    identity = torch.eye(len(layers))
    lowest = min(range(len(layers)), key=lambda i: fits[layers[i]].objective)
    n_classes, l2 = len(sides.classes), training.penalty.l2
    begins = {EQUAL: Weighted.equal(len(layers)), layers[lowest]: Weighted(identity[lowest])}
    objective = Objective(examples, family, n_classes)
    several = [learn(objective, parameters_of(weighted), fits[n].weight, l2) for n, weighted in begins.items()]
    gate = learn(Objective(examples, gated, n_classes), torch.zeros(gated.n_parameters), fits[EQUAL].weight, l2)
    return {CONCAT: min(several, key=lambda learned: learned.objective), GATE: gate}


# --- rows ---


def accuracy_rows(task: str, tested: FusedProbes) -> Rows:
    """Return the accuracies of one task, and the differences of fusions from baselines, with uncorrected p-values."""
    n, fits = tested.counts, tested.fits
    numbers = {"n_train": tested.n_train, "n": int(n.sum())}
    rows: Rows = []
    for number, fit in fits.items():
        row: Row = {"task": task, "fusion": NAMES.get(number, LAYER), "measure": "accuracy"}
        if number in tested.layers:
            row |= {"layer": number, "chosen": "yes" if number == tested.best else "no"}
        row |= {**accuracy_cells("value", fit.correct_by_sentence, n), **numbers, "optimality_gap": fit.optimality_gap}
        if number in tested.converged:
            row["converged"] = "yes" if tested.converged[number] else "no"
        rows.append(row)
    baselines = {LAST: tested.layers[-1], BEST: tested.best, NAMES[EQUAL]: EQUAL}
    for number in (CONCAT, LARGEST, GATE):
        for name, baseline in baselines.items():
            difference = fits[number].correct_by_sentence - fits[baseline].correct_by_sentence
            row = {"task": task, "fusion": NAMES[number], "measure": "difference", "against": name}
            if baseline in tested.layers:
                row["layer"] = baseline
            rows.append({**row, **difference_cells("value", difference, n), **numbers})
    return rows


def similarity_rows(
    store: HiddenStateSource,
    chosen: NDArray[np.bool_],
    layers: Sequence[int],
    fusions: Mapping[int, Fusion],
    **named: str,
) -> Rows:
    """Return the similarity of a sentence's tokens after each fusion, and the weight of each layer in it.

    `cosine` is the mean cosine of all pairs of a sentence's tokens (CosSim, Shi et al. section 3), as a mean over
    sentences with at least two tokens; `weight` is a mean over tokens. Both include special tokens. `chosen` is a mask
    of the measured sentences; `named` are columns that name the task.
    """
    lengths = np.where(chosen, store.tokens.lengths, 0).astype(np.int64)
    cosines = {number: np.zeros(len(lengths)) for number in fusions}
    weights = {number: np.zeros((len(lengths), len(layers))) for number in fusions}
    for states, sentences in _sentences(store, chosen, layers):
        of = torch.from_numpy(sentences)
        for number, fusion in fusions.items():
            weights[number] += _sums(fusion.weights(states).T, of, len(lengths)).numpy()
            cosines[number] += _pair_cosines(fusion(states), of, len(lengths))
    rows: Rows = []
    for number in fusions:
        layer = {"layer": number} if number in layers else {}
        of_pairs = {"fusion": NAMES.get(number, LAYER), **layer}
        pairs = (lengths > 1).astype(np.int64)
        rows.append({**named, **of_pairs, "measure": "cosine", **_mean(cosines[number], pairs)})
        for i, weighted_layer in enumerate(layers if number in (LARGEST, CONCAT, GATE) else ()):
            row = {**named, "fusion": NAMES[number], "measure": "weight", "layer": weighted_layer}
            of_layer = _mean(weights[number][:, i], lengths)
            # The weights of `concat` are the same for all tokens.
            rows.append({**row, **of_layer, **({"low": math.nan, "high": math.nan} if number == CONCAT else {})})
    return rows


def _mean(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> Row:
    return {**mean_cells(sums, counts), "n": int((counts > 0).sum())}


def _sentences(store: HiddenStateSource, chosen: NDArray[np.bool_], layers: Sequence[int]) -> Any:
    """Yield the states of some whole sentences, shape (n_layers, n, d_model), and the sentence of each token."""
    tokens = store.tokens
    most = max(BLOCK_BYTES // (4 * len(layers) * store.plan.d_model), 1)
    for shard in store.plan.shards:
        shard_rows = shard.rows(store.tokens)
        rows = np.flatnonzero(chosen[tokens.sentences[shard_rows]])
        sentences = tokens.sentences[shard_rows][rows].astype(np.int64)
        ends = np.flatnonzero(np.diff(np.append(sentences, -1))) + 1
        first = 0
        while first < len(rows):
            fitting = ends[(ends > first) & (ends <= first + most)]
            stop = int(fitting[-1] if len(fitting) else ends[ends > first][0])
            some = torch.from_numpy(rows[first:stop])
            yield states_of(store, layers, shard.index, some), sentences[first:stop]
            first = stop


def _sums(values: torch.Tensor, sentences: torch.Tensor, n_sentences: int) -> torch.Tensor:
    return torch.zeros(n_sentences, values.shape[1], dtype=torch.float64).index_add_(0, sentences, values.double())


def _pair_cosines(vectors: torch.Tensor, sentences: torch.Tensor, n_sentences: int) -> NDArray[np.float64]:
    """Return the mean cosine of all pairs of each sentence's tokens, 0 for fewer than two; shape (n_sentences,)."""
    units = vectors.double() / vectors.double().norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    n = sentences.bincount(minlength=n_sentences).double()
    squares = _sums(units, sentences, n_sentences).square().sum(1)
    return torch.where(n > 1, (squares - n) / (n * (n - 1)).clamp_min(1), 0.0).numpy()


TASKS = ("upos", "deprel", "position")


def tasks_of(survey: HeadSurvey) -> tuple[dict[str, TokenTask], str]:
    """Return the tasks whose labels the corpora have in every part, and the missing requirement of the last other."""
    tasks: dict[str, TokenTask] = {}
    lack = ""
    requests = survey.requests
    tokens = [tokens_of(request, load_tokenizer(request.source)) for request in requests]
    for name in TASKS:
        task = load_task(name)
        corpora = [request.corpus for request in requests]
        checks = ExampleChecks(task, corpora, survey.splits, ProbeOptions(), silence).by_corpus()
        try:
            for check, corpus_tokens in zip(checks, tokens, strict=True):
                check(corpus_tokens)
        except UserError as error:
            lack = as_clause(error)
        else:
            tasks[name] = task
    return tasks, lack


def _lacks(survey: HeadSurvey) -> str | None:
    if len(survey.layers) < 2:
        return f"at least two layers to fuse, and `--layer {survey.layers[0]}` is one"
    tasks, lack = tasks_of(survey)
    return None if tasks else f"labels of {', '.join(TASKS[:-1])} or {TASKS[-1]}, and {lack}"


def _tables(survey: HeadSurvey, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    assert survey.source is not None
    layers, states = list(survey.layers), survey.hidden_states
    is_test = survey.tested[1]
    corpora, splits = [request.corpus for request in survey.requests], survey.splits
    rows: Rows = []
    single = zip(layers, torch.eye(len(layers)), strict=True)
    shared: dict[int, Fusion] = {layer: Weighted(weights) for layer, weights in single}
    for name, task in tasks_of(survey)[0].items():
        sides = label_sides(states, corpora, splits, task)
        tested = compare_fusions(sides, layers, survey.source.trainer, survey.seed)
        rows += accuracy_rows(name, tested)
        learned = {number: tested.fusions[number] for number in (CONCAT, GATE)}
        rows += similarity_rows(states[-1], is_test, layers, learned, task=name)
    shared |= {EQUAL: Weighted.equal(len(layers)), LARGEST: Largest()}
    rows += similarity_rows(states[-1], is_test, layers, shared)
    return {"fusion": corrected(rows)}


FUSION = SurveyPart("fusion", _tables, needs=_lacks, by_name_only=True, trains=True)
