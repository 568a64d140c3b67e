"""Closed-form probes: ridge probes of numbers without an intercept, and Gaussian probes of classes.

Ridge: numbers are standardised by the training examples; activations are divided by their standard deviation, not
centred, as for a probe of classes. With C the second moment of the scaled neurons and b their mean product with the
numbers, the probe minimises mean (t - u x)^2 + l2 |u|^2, so that (C + l2) u = b; a single decomposition serves every
penalty. In scikit-learn's `Ridge` on X / scale and (y - mean) / sd without an intercept, alpha = n l2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides, read_share
from probing.data.labelling import Standard
from probing.data.module import layer_moments
from probing.probes.training import STRONGEST_PENALTY, WEAKEST_PENALTY, PenaltyPath, strength
from probing.runtime.processes import sum_over_ranks
from probing.statistics.moments import ClassMoments, Moments, PenaltySpace, Scaling


@dataclass(frozen=True)
class Spectrum:
    """Eigendecomposition of the second moment of a layer's scaled neurons, float64.

    `second_moment` is the mean of x x' over the training examples, shape (d_model, d_model); `vectors` are columns.
    """

    scaling: Scaling
    second_moment: Tensor
    values: Tensor
    vectors: Tensor

    def inverse(self, l2: float) -> Tensor:
        """Return the inverse of C + l2."""
        return (self.vectors / (self.values + l2)) @ self.vectors.T

    def solve(self, product: Tensor, l2: float) -> Tensor:
        """Return u with (C + l2) u = b, where b is `product`, shape (d_model,), refined once."""

        def once(b: Tensor) -> Tensor:
            return self.vectors @ ((self.vectors.T @ b) / (self.values + l2))

        u = once(product)
        return u + once(product - self.second_moment @ u - l2 * u)


@dataclass(frozen=True)
class NumberFit:
    """The ridge probe of a layer.

    Args:
        weight: Weight on raw hidden states, in units of the numbers, shape (1, d_model), float64. A prediction is the
            mean of the training numbers plus its product with the hidden state.
        scaled: Weight on scaled neurons in standard deviations of the numbers, shape (d_model,).
        product: Mean product of scaled neurons and standardised numbers, shape (d_model,).
        objective: Mean squared error of the standardised training numbers plus penalty.
        train_r2: 1 - mean squared error of the standardised training numbers.
        relative_gradient: Norm of the objective's gradient at the probe, divided by the norm at 0.
        optimality_gap: Upper bound on the objective's distance to its minimum, as a share of the numbers' variance.
        errors: Squared error of the standardised test numbers, summed by sentence of the test corpus.
        absolute: Absolute error, summed likewise.
        deviations: Squared standardised test numbers (squared errors of the constant answer), summed likewise.
    """

    layer: int
    weight: Tensor
    scaled: Tensor
    spectrum: Spectrum
    product: Tensor
    standard: Standard
    objective: float
    train_r2: float
    relative_gradient: float
    optimality_gap: float
    errors: NDArray[np.float64]
    absolute: NDArray[np.float64]
    deviations: NDArray[np.float64]

    # The closed form needs one pass and is always at its optimum.
    converged = True
    n_passes = 1

    @property
    def moments(self) -> Moments:
        """Moments of the layer's training examples."""
        return self.spectrum.scaling.moments

    @property
    def r2(self) -> float:
        """R² on the test examples: the share of the constant answer's squared error that the probe saves."""
        return 1 - float(self.errors.sum() / self.deviations.sum())


def spectra(train: Examples, layers: Sequence[int], moments: Sequence[Moments], space: PenaltySpace) -> list[Spectrum]:
    """Stream the training examples in float64, divided among ranks, and decompose each layer."""
    # Around the mean, because a large mean would cost the precision of what varies.
    sums = [torch.zeros(len(m.mean), len(m.mean), dtype=torch.float64) for m in moments]
    for batch in read_share(train, layers):
        for total, of_layer, states in zip(sums, moments, batch.hidden_states, strict=True):
            deviations = states.double() - of_layer.mean
            total.addmm_(deviations.T, deviations)
    decomposed = []
    for total, of_layer in zip(sums, moments, strict=True):
        scaling = Scaling(of_layer, space)
        second = scaling.products(sum_over_ranks(total) / of_layer.n_tokens + torch.outer(of_layer.mean, of_layer.mean))
        values, vectors = torch.linalg.eigh(second)
        decomposed.append(Spectrum(scaling, second, values.clamp(min=0), vectors))
    return decomposed


def products(train: Examples, layers: Sequence[int], spectra: Sequence[Spectrum], standard: Standard) -> list[Tensor]:
    """Return the mean product of each layer's scaled neurons with the standardised numbers, each (d_model,)."""
    table = standard.table(train)
    sums = [torch.zeros(len(spectrum.values), dtype=torch.float64) for spectrum in spectra]
    for batch in read_share(train, layers):
        numbers = table[batch.labels]
        for total, spectrum, states in zip(sums, spectra, batch.hidden_states, strict=True):
            # The numbers add up to 0, so that what is subtracted from the states does not matter.
            total += (states.double() - spectrum.scaling.moments.mean).T @ numbers
    return [
        spectrum.scaling.raw_weight(sum_over_ranks(total)) / train.n_tokens
        for spectrum, total in zip(spectra, sums, strict=True)
    ]


@dataclass(frozen=True)
class Errors:
    """Errors of probes, summed for each sentence, (n_sentences, n_probes) by layer, and of the constant answer."""

    squared: list[NDArray[np.float64]]
    absolute: list[NDArray[np.float64]]
    constant: NDArray[np.float64]


def errors_of(examples: Examples, layers: Sequence[int], weights: Sequence[Tensor], standard: Standard) -> Errors:
    """Stream examples, divided among ranks, and return the errors of several probes of each layer.

    `weights` on raw hidden states predict standardised numbers, shape (n_probes, d_model), float64, for each layer.
    """
    table, n = standard.table(examples), examples.store.tokens.n_sentences
    squared, absolute = ([torch.zeros(n, len(of_layer), dtype=torch.float64) for of_layer in weights] for _ in range(2))
    constant = torch.zeros(n, dtype=torch.float64)
    for batch in read_share(examples, layers):
        numbers = table[batch.labels]
        constant.index_add_(0, batch.sentences, numbers.square())
        for square, size, weight, states in zip(squared, absolute, weights, batch.hidden_states, strict=True):
            error = numbers[:, None] - states.double() @ weight.T
            square.index_add_(0, batch.sentences, error.square())
            size.index_add_(0, batch.sentences, error.abs())
    squares, sizes = ([sum_over_ranks(of_layer).numpy() for of_layer in of_layers] for of_layers in (squared, absolute))
    return Errors(squares, sizes, sum_over_ranks(constant).numpy())


def choose_ridge_penalty(
    sides: Sides, layers: Sequence[int], decomposed: Sequence[Spectrum], b: Sequence[Tensor]
) -> PenaltyPath:
    """Return the validation R² under every penalty of the grid for probes of classes; the test side is not used."""
    standard = Standard.of(sides.train)
    grid = [strength(index) for index in range(STRONGEST_PENALTY, WEAKEST_PENALTY - 1, -1)]
    weights = [
        torch.stack([spectrum.scaling.raw_weight(spectrum.solve(product, l2)) for l2 in grid])
        for spectrum, product in zip(decomposed, b, strict=True)
    ]
    errors = errors_of(sides.validation, layers, weights, standard)
    # The validation numbers may be all the same, and then R² has no scale of its own: that of training does.
    scale = errors.constant.sum() or float(sides.validation.n_tokens)
    r2 = np.stack([1 - squares.sum(0) / scale for squares in errors.squared], 1)
    return PenaltyPath(layers, grid, r2, measure="r2")


@dataclass(frozen=True)
class Decomposed:
    """Examples with the decomposition of their layers, which other numbers of the same examples share."""

    sides: Sides
    layers: Sequence[int]
    spectra: Sequence[Spectrum]
    products: Sequence[Tensor]

    @classmethod
    def of(
        cls, sides: Sides, layers: Sequence[int], space: PenaltySpace, known: Sequence[Spectrum] | None = None
    ) -> Decomposed:
        """Decompose layers, unless their decomposition is known."""
        decomposed = known or spectra(sides.train, layers, layer_moments(sides.train, layers), space)
        return cls(sides, layers, decomposed, products(sides.train, layers, decomposed, Standard.of(sides.train)))

    def train(self, l2: float) -> list[NumberFit]:
        """Return the tested probe of each layer under a penalty."""
        scaled = [spectrum.solve(b, l2) for spectrum, b in zip(self.spectra, self.products, strict=True)]
        standard = Standard.of(self.sides.train)
        raw = [spectrum.scaling.raw_weight(u)[None] for spectrum, u in zip(self.spectra, scaled, strict=True)]
        tested = errors_of(self.sides.test, self.layers, raw, standard)
        fits = []
        for i, (spectrum, b, u) in enumerate(zip(self.spectra, self.products, scaled, strict=True)):
            curved, size = spectrum.second_moment @ u, float(b.norm())
            residual = float((curved + l2 * u - b).norm())  # half of the gradient
            mse = float(1 - 2 * (u @ b) + u @ curved)
            fits.append(
                NumberFit(
                    layer=self.layers[i],
                    weight=raw[i] * standard.sd,
                    scaled=u,
                    spectrum=spectrum,
                    product=b,
                    standard=standard,
                    objective=mse + l2 * float(u @ u),
                    train_r2=1 - mse,
                    relative_gradient=residual / size if size else 0.0,
                    optimality_gap=residual**2 / l2,  # from strong convexity, as of a probe of classes
                    errors=tested.squared[i][:, 0],
                    absolute=tested.absolute[i][:, 0],
                    deviations=tested.constant,
                )
            )
        return fits


# --------------------------------------------------------------------------------------------------------------------
# The Gaussian probe (Torroba Hennigen, Williams & Cotterell 2020), and neurons selected by it.
# --------------------------------------------------------------------------------------------------------------------

# Weights of the shared covariance that are tried, in tokens: from the published prior to almost one common covariance.
SHARED = (0.0, 1e2, 1e3, 1e4, 1e5, 1e6)
# Share of a neuron's variance that is added to each class's variance, so that a neuron that is constant within a class
# has a density.
FLOOR = 1e-6
# Most numbers (tokens x classes x candidates) processed together, so that they stay in the processor's cache.
BLOCK = 2**21


def entropy(labels: Tensor) -> float:
    """Return the entropy of the classes among these labels, in bits."""
    p = labels.bincount().double() / len(labels)
    return float(torch.special.entr(p).sum()) / math.log(2)


def information(log_p: Tensor, labels: Tensor) -> float:
    """Return the mutual information, in bits, given by a probe's log-probabilities, shape (n, n_classes)."""
    return entropy(labels) + float(log_p.gather(1, labels[:, None]).double().mean()) / math.log(2)


@dataclass(frozen=True)
class GaussianProbe:
    """Class-conditional Gaussians, with the covariance at the mode of the posterior.

    The prior of a class's covariance in k neurons is inverse Wishart with k + 2 degrees of freedom. Its scale is the
    diagonal of the class's covariance (Torroba Hennigen et al. 2020, after Fraley & Raftery 2007). The mode is then
    (diagonal + scatter) / (n + 2 k + 4). If classes have few tokens for the number of neurons, or tails heavier than a
    Gaussian's, the probe is far too confident (layer 6 of the built-in model, 65 positions: -1 bit from 10 neurons,
    -160 from 100). `shared` adds the pooled covariance within classes to the scale, as if that many more tokens with
    this covariance had been observed; 0 gives the published prior.

    k is the number of neurons in use, so that the probe of a subset is the mode in the space of the subset. The
    published code always sets k to the number of all neurons, which divides by far more than n and makes small classes
    too narrow.
    """

    classes: ClassMoments
    shared: float

    @property
    def log_prior(self) -> Tensor:
        """Log of each class's share of the training tokens, shape (n_classes,)."""
        return (self.classes.counts / self.classes.counts.sum()).log()

    def tokens(self, k: int) -> Tensor:
        """Return the divisor of the scatter for k neurons, shape (n_classes,)."""
        return self.classes.counts + (2 * k + 4) + self.shared

    def diagonal(self) -> Tensor:
        """Return the diagonal part of each class's prior scale, shape (n_classes, d_model)."""
        class_variance = self.classes.scatter.diagonal(dim1=1, dim2=2) / self.classes.counts.clamp(min=1)[:, None]
        total = (self.classes.within + self.classes.between) / self.classes.counts.sum()
        return class_variance + FLOOR * total

    def scale(self, neurons: Tensor) -> Tensor:
        """Return the covariance of these neurons times `tokens`, shape (n_classes, k, k), float64."""
        scatter = self.classes.scatter[:, neurons[:, None], neurons]
        shared = self.shared * self.classes.pooled[neurons[:, None], neurons]
        return scatter + shared + torch.diag_embed(self.diagonal()[:, neurons])

    def log_p(self, hidden_states: Tensor, neurons: Sequence[int]) -> Tensor:
        """Return the log-probability of each class given only these neurons (the prior if none), (n, n_classes)."""
        chosen, k = torch.tensor(list(neurons), dtype=torch.int64), len(neurons)
        factor, tokens = torch.linalg.cholesky(self.scale(chosen)), self.tokens(k)
        # The part of a class's log-probability that does not depend on the token: prior, determinant and units.
        constant = self.log_prior - factor.diagonal(dim1=1, dim2=2).log().sum(1) + k * tokens.log() / 2
        # Tokens are whitened for all classes by one float32 product, around a common centre.
        eye = torch.eye(k, dtype=torch.float64).expand_as(factor)
        whitening = torch.linalg.solve_triangular(factor, eye, upper=False) * tokens.sqrt()[:, None, None]
        centre = self.log_prior.exp() @ self.classes.mean[:, chosen]
        offset = (whitening @ (self.classes.mean[:, chosen] - centre)[:, :, None]).float()
        flat, parts = whitening.flatten(0, 1).float(), []
        for states in hidden_states[:, chosen].split(max(1, BLOCK // max(1, len(flat)))):
            whitened = (flat @ (states.double() - centre).float().T).view(len(tokens), k, len(states)) - offset
            parts.append((constant[:, None] - whitened.square().sum(1).double() / 2).log_softmax(0).T)
        return torch.cat(parts)


def choose_shared(
    classes: ClassMoments, hidden_states: Tensor, labels: Tensor, neurons: Sequence[int]
) -> GaussianProbe:
    """Return the probe whose weight of the shared covariance gives the most information on held-out tokens.

    `neurons` should be as many as will be used, chosen independently of their information.
    """
    probes = [GaussianProbe(classes, shared) for shared in SHARED]
    return max(probes, key=lambda probe: information(probe.log_p(hidden_states, neurons), labels))


@dataclass(frozen=True)
class Selection:
    """Neurons in the order of selection.

    Args:
        information: Held-out mutual information of the first 0, 1, 2, ... of them, in bits.
        with_next: The same of all of them plus each candidate, shape (n_candidates,); -inf for selected candidates.
    """

    neurons: list[int]
    information: list[float]
    with_next: Tensor


class _Conditionals:
    """The density of each candidate given the selected neurons, for each class, updated incrementally.

    Each selected neuron adds a column to a Cholesky factor per class (Golub & Van Loan 2013, section 4.2).
    """

    def __init__(self, probe: GaussianProbe, hidden_states: Tensor, candidates: Tensor, most: int) -> None:
        classes, n_classes = probe.classes, len(probe.classes.counts)
        self.probe, self.candidates, self.selected = probe, candidates, 0
        # Standardise for the precision of float32; the Gaussian probe is invariant to units.
        self.sd = ((classes.within + classes.between) / classes.counts.sum()).sqrt()[candidates]
        centre = classes.counts @ classes.mean[:, candidates] / classes.counts.sum()
        self.states = ((hidden_states[:, candidates].double() - centre) / self.sd).float()
        self.mean = ((classes.mean[:, candidates] - centre) / self.sd).float()
        diagonal = (
            classes.scatter.diagonal(dim1=1, dim2=2) + probe.diagonal() + probe.shared * classes.pooled.diagonal()
        )
        self.variance = diagonal[:, candidates] / self.sd.square()  # conditional variance times `tokens`
        self.factor = torch.zeros(n_classes, most, len(candidates), dtype=torch.float64)
        self.whitened = torch.zeros(n_classes, len(hidden_states), most)
        self.distance = torch.zeros(n_classes, len(hidden_states), dtype=torch.float64)
        self.log_determinant = torch.zeros(n_classes, dtype=torch.float64)

    def information(self, labels: Tensor) -> Tensor:
        """Return the information with each candidate added, in bits, shape (n_candidates,)."""
        j, (n, d) = self.selected, self.states.shape
        tokens = self.probe.tokens(j + 1)
        so_far = tokens[:, None] * self.distance + (self.log_determinant - (j + 1) * tokens.log())[:, None]
        so_far = (self.probe.log_prior[:, None] - so_far / 2).float()
        constant, slope = (-self.variance.log() / 2).float(), (-tokens[:, None] / (2 * self.variance)).float()
        total, factor = torch.zeros(d, dtype=torch.float64), self.factor[:, :j].float()
        size = max(1, BLOCK // (len(tokens) * max(1, d)))
        for rows in (slice(start, start + size) for start in range(0, n, size)):
            residual = self.states[rows] - self.mean[:, None]
            residual.baddbmm_(self.whitened[:, rows, :j], factor, alpha=-1)
            log_joint = residual.square_().mul_(slope[:, None]).add_(constant[:, None]).add_(so_far[:, rows, None])
            true = log_joint[labels[rows], torch.arange(log_joint.shape[1])]
            total += (true - log_joint.logsumexp(0)).sum(0, dtype=torch.float64)
        return entropy(labels) + total / n / math.log(2)

    def add(self, i: int) -> None:
        """Select the i-th candidate."""
        j, classes, neuron = self.selected, self.probe.classes, self.candidates[i]
        root = self.variance[:, i].sqrt()
        shared = self.probe.shared * classes.pooled[neuron, self.candidates]
        column = (classes.scatter[:, neuron, self.candidates] + shared) / (self.sd * self.sd[i])
        column -= torch.einsum("cjd,cj->cd", self.factor[:, :j], self.factor[:, :j, i])
        column[:, i] = root.square()  # includes the diagonal of the prior, unlike the other entries
        column /= root[:, None]
        residual = self.states[:, i] - self.mean[:, i, None]
        residual = residual - torch.einsum("cnj,cj->cn", self.whitened[:, :, :j], self.factor[:, :j, i].float())
        self.whitened[:, :, j] = residual / root[:, None].float()
        self.distance += self.whitened[:, :, j].double().square()
        self.log_determinant += 2 * root.log()
        self.factor[:, j] = column
        self.variance = self.variance - column.square()
        self.variance[:, i] = 1.0  # its conditional variance is 0 and is not used again
        self.selected += 1


def select(
    probe: GaussianProbe, hidden_states: Tensor, labels: Tensor, candidates: Sequence[int], n_neurons: int
) -> Selection:
    """Select neurons greedily by the information that each adds (Torroba Hennigen et al. 2020, section 4).

    Of two candidates with equal information, the lower index is selected. Candidates must be live. `hidden_states` of
    held-out tokens have shape (n, d_model), `labels` (n,).
    """
    most = min(n_neurons, len(candidates))
    state = _Conditionals(probe, hidden_states, torch.tensor(list(candidates), dtype=torch.int64), most)
    chosen: list[int] = []
    information_path = [information(probe.log_p(hidden_states, []), labels)]
    while True:
        with_next = state.information(labels)
        with_next[chosen] = -math.inf
        if len(chosen) == most:
            return Selection([candidates[i] for i in chosen], information_path, with_next)
        best = int(with_next.argmax())
        chosen.append(best)
        information_path.append(float(with_next[best]))
        state.add(best)
