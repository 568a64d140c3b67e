"""Learns a fusion of layers together with the linear probe that reads it, on the training tokens of a task.

The objective is that of every probe of the project, the mean cross-entropy plus l2 |U|^2, and in addition l2 |theta|^2.
U are the probe's weights on fused neurons after each neuron is divided by its standard deviation; theta are the
parameters of the fusion, and theta = 0 is the mean of the layers. The objective is convex in U for a fixed fusion, but
not in U and theta together, so training ends at a local minimum. The project's L-BFGS takes full passes until
|gradient|^2 / (4 l2) is small. For a convex objective, this bounds the distance to the minimum; here it only says that
no small step would gain more. U is preconditioned as for every probe, theta by the Gauss-Newton matrix; both
preconditioners are recomputed in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probing.data.examples import Examples
from probing.heads.fusion.fused import Fusion, Gated, Weighted, states_of
from probing.probes.solvers import Evaluation, Penalty, Preconditioner, Solution, lbfgs
from probing.statistics.moments import hardly_vary

# Training ends when |gradient|^2 / (4 l2), in nats, falls below this value.
TOLERANCE = 1e-4
# Maximum number of passes over the tokens: in all, and until the preconditioner is recomputed.
MOST_PASSES, PASSES_OF_A_ROUND = 1000, 50
# Bytes of hidden states of all layers in memory at a time.
BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class _Block:
    """Some examples of one shard.

    Args:
        shard: Index of the shard.
        rows: Its tokens that the examples consist of, shape (n_tokens,).
        example: Index of each token's example, shape (n_tokens,).
        labels: Class of each example, shape (n_examples,).
    """

    shard: int
    rows: Tensor
    example: Tensor
    labels: Tensor


class LayersOfExamples:
    """The hidden states of several layers at the examples, in blocks that are read again in every pass.

    Args:
        examples: The examples: tokens, or words whose vectors are means over their pieces.
        layers: Numbers of the layers.
    """

    def __init__(self, examples: Examples, layers: Sequence[int]) -> None:
        self.store, self.layers = examples.store, list(layers)
        self.blocks = list(_blocks(examples, len(self.layers)))
        self.n = sum(len(block.labels) for block in self.blocks)

    def __iter__(self) -> Iterator[tuple[Tensor, _Block]]:
        for block in self.blocks:
            yield states_of(self.store, self.layers, block.shard, block.rows), block


def _blocks(examples: Examples, n_layers: int) -> Iterator[_Block]:
    store, tokens = examples.store, examples.store.tokens
    most = max(BLOCK_BYTES // (4 * n_layers * store.plan.d_model), 1)
    for shard in store.plan.shards:
        here = store.shard_tokens(shard)
        of_rows = examples.labels[here]
        begins = tokens.first_pieces[here] if examples.word_means else of_rows >= 0
        number = begins.cumsum() - 1
        label_of = of_rows[begins]
        belongs = (tokens.words[here] >= 0) if examples.word_means else begins
        rows = np.flatnonzero(belongs)
        rows = rows[label_of[number[rows]] >= 0]
        chosen, first, example = np.unique(number[rows], return_index=True, return_inverse=True)
        block_of = first // most  # an example is in one block, with all its pieces
        for block in np.unique(block_of):
            own = np.flatnonzero(block_of == block)
            inside = (example >= own[0]) & (example <= own[-1])
            yield _Block(
                shard.index, torch.from_numpy(rows[inside]), torch.from_numpy(example[inside] - own[0]),
                torch.from_numpy(label_of[chosen[own]].astype(np.int64)),
            )  # fmt: skip


def pooled(vectors: Tensor, block: _Block) -> Tensor:
    """Return the mean vector of each example, shape (n_examples, d_model)."""
    n = len(block.labels)
    if n == len(block.rows):
        return vectors
    sizes = block.example.bincount(minlength=n)[:, None]
    return vectors.new_zeros(n, vectors.shape[1]).index_add(0, block.example, vectors) / sizes


@dataclass(frozen=True)
class LayerMoments:
    """Moments of the neurons of several layers together.

    Args:
        mean: Shape (n_layers, d_model), float64.
        covariance: Of each neuron between layers, shape (d_model, n_layers, n_layers), float64.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, examples: LayersOfExamples) -> LayerMoments:
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
        """Return 1 / sd of each neuron of a weighted sum of the layers, 0 where it hardly varies; shape (d_model,)."""
        alpha = alpha.double()
        sd = torch.einsum("j,djk,k->d", alpha, self.covariance, alpha).clamp_min(0)
        sd = sd.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        dead = hardly_vary(sd.detach(), torch.hypot(sd.detach(), alpha.detach() @ self.mean))
        return torch.where(dead, 0.0, 1 / sd)


def _pooled_layers(states: Tensor, block: _Block) -> Tensor:
    return torch.stack([pooled(one, block) for one in states]).double()


@dataclass(frozen=True)
class Family:
    """Fusions with parameters, scaled so that 0 is the mean of the layers and a change of 1 is a large change.

    Args:
        n_parameters: Number of parameters.
        fusion: Returns the fusion, given the parameters.
        inverse_scale: Returns the factor by which each fused neuron is scaled, 1 over a standard deviation, given the
            parameters.
        derivatives: Returns a and f, given the parameters, the probe's weight on fused vectors, and the states of some
            tokens. The derivatives of the logits of token t, with its scale fixed, are sum_k a_k[t] f_k[t]'. Shapes
            (n_layers, n, n_classes) and (n_layers, n, n_parameters).
    """

    n_parameters: int
    fusion: Callable[[Tensor], Fusion]
    inverse_scale: Callable[[Tensor], Tensor]
    derivatives: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def weighted_family(moments: LayerMoments) -> tuple[Family, Callable[[Weighted], Tensor]]:
    """Return the fusions `concat`, and the map from one of them to its parameters.

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

    family = Family(n, lambda p: Weighted(alpha(p)), lambda p: moments.inverse_scale(alpha(p)), derivatives)
    return family, lambda fusion: (fusion.alpha - 1 / n) / units


def gated_family(moments: LayerMoments) -> Family:
    """Return the fusions `gate`; each fused neuron is divided by its standard deviation in the mean of the layers.

    A parameter is the gate's weight on a neuron times the neuron's standard deviation over the tokens of all layers:
    the weight on the standardised neuron.
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

    return Family(d_model, lambda p: Gated(p * inverse), lambda p: scale, derivatives)


@dataclass(frozen=True)
class Learned:
    """A fusion that was learned with its probe.

    Args:
        fusion: The fusion.
        weight: Weight of the probe on fused vectors, shape (n_classes, d_model).
        objective: Cross-entropy plus penalties on the training tokens, in nats.
        n_passes: Number of passes over the training tokens that evaluated the objective.
        converged: Whether training ended because |gradient|^2 / (4 l2) fell below the tolerance.
    """

    fusion: Fusion
    weight: Tensor
    objective: float
    n_passes: int
    converged: bool


@dataclass(frozen=True)
class Start:
    """A trained probe from which training begins.

    Args:
        parameters: Parameters of the fusion that it reads, shape (n_parameters,).
        weight: Its weight on fused vectors, shape (n_classes, d_model).
    """

    parameters: Tensor
    weight: Tensor


class Objective:
    """Mean cross-entropy of fused examples and its derivatives, as a function of scaled weights and parameters.

    Args:
        examples: The training examples.
        family: The fusions.
        n_classes: Number of classes.
    """

    def __init__(self, examples: LayersOfExamples, family: Family, n_classes: int) -> None:
        self.examples, self.family = examples, family
        self.shape = n_classes, examples.store.plan.d_model

    @property
    def n_weights(self) -> int:
        """Number of scaled weights; what follows them in a point are parameters of the fusion."""
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
                (own,) = torch.autograd.grad(losses.sum(), leaf)
            total += float(losses.detach().double().sum())
            gradient += own.double()
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


def _gauss_newton(a: Tensor, f: Tensor, p: Tensor, block: _Block) -> Tensor:
    """Return the sum over tokens of J'(diag(p) - p p')J, shape (n_parameters, n_parameters).

    A word of several pieces is approximated: each piece counts like an example of its own, with the class probabilities
    of the word and the weight 1 / (number of pieces).

    Args:
        a: Factors of the derivatives J, shape (n_layers, n, n_classes); see `Family`.
        f: The other factors, shape (n_layers, n, n_parameters).
        p: Probability of each class, shape (n_examples, n_classes).
        block: The examples that the tokens belong to.
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
    """Preconditions the weights as those of any probe, and the parameters of the fusion by their own curvature."""

    def __init__(self, second_moment: Tensor, curvature: Tensor, shape: tuple[int, int]) -> None:
        super().__init__(second_moment)
        self.shape = shape
        values, vectors = torch.linalg.eigh(curvature)
        self.values, self.vectors = values.clamp_min(0).float(), vectors.float()

    def at(self, class_covariance: Tensor, l2: float) -> Callable[[Tensor], Tensor]:
        """Return the map from gradients to steps for the curvature at one point."""
        of_weights, n = super().at(class_covariance, l2), self.shape[0] * self.shape[1]

        def apply(gradient: Tensor) -> Tensor:
            weights = of_weights(gradient[:n].view(self.shape))
            parameters = self.vectors @ ((self.vectors.T @ gradient[n:]) / (self.values + 2 * l2))
            return torch.cat([weights.reshape(-1), parameters])

        return apply


def learn(objective: Objective, start: Start, l2: float, tolerance: float = TOLERANCE) -> Learned:
    """Train a fusion and its probe together to a local minimum.

    Args:
        objective: The objective.
        start: Where training begins.
        l2: Strength of the penalty.
        tolerance: Value of |gradient|^2 / (4 l2), in nats, below which training ends.
    """
    family, shape = objective.family, objective.shape
    inverse = family.inverse_scale(start.parameters)
    scaled = torch.where(inverse > 0, start.weight / inverse, 0.0).float()
    point, n_passes = torch.cat([scaled.reshape(-1), start.parameters.float()]), 0
    while True:
        most = min(PASSES_OF_A_ROUND, MOST_PASSES - n_passes)
        solution = _round(objective, point, l2, tolerance, most)
        point, n_passes = solution.point, n_passes + solution.n_passes
        # A round that ends before its last pass is at a minimum, or at points that no longer differ in float32.
        if solution.n_passes < most or n_passes >= MOST_PASSES:
            break
    weight, parameters = point[: objective.n_weights].view(shape), point[objective.n_weights :]
    raw = (weight * family.inverse_scale(parameters)).float()
    return Learned(family.fusion(parameters), raw, solution.objective, n_passes, solution.converged)


def _round(objective: Objective, point: Tensor, l2: float, tolerance: float, most: int) -> Solution:
    """Take at most `most` passes from a point, and one more to compute the preconditioner at this point."""
    solver = lbfgs(point, Penalty(0.0, l2), objective.preconditioner(point), tolerance)
    point, n_passes = next(solver), 0
    try:
        while True:
            n_passes += 1
            point = solver.send(objective(point) if n_passes <= most else None)
    except StopIteration as stop:
        solution: Solution = stop.value
    return solution
