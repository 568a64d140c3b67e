"""Ridge probes of numbers without an intercept, in closed form: one decomposition serves every penalty.

The numbers are standardised by the training examples, and activations are scaled as for a probe of classes: divided by
their standard deviation, not centred. With C the second moment of the scaled neurons and b their mean product with the
numbers, the probe minimises mean (t - u x)^2 + l2 |u|^2, so that (C + l2) u = b. With scikit-learn's `Ridge`, on
X / scale and (y - mean) / sd without an intercept, alpha = n l2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides, read_share
from probing.data.labelling import Standard
from probing.data.module import layer_moments
from probing.probes.penalty_path import STRONGEST, WEAKEST, strength
from probing.runtime.processes import sum_over_ranks
from probing.statistics.moments import Moments, PenaltySpace, Scaling


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues and eigenvectors of the second moment of a layer's scaled neurons, float64.

    Args:
        scaling: The scaling of the layer's neurons.
        second_moment: Mean of x x' over the training examples, shape (d_model, d_model).
        values: Eigenvalues, none below 0, shape (d_model,).
        vectors: Eigenvectors, as columns.
    """

    scaling: Scaling
    second_moment: Tensor
    values: Tensor
    vectors: Tensor

    def inverse(self, l2: float) -> Tensor:
        """Return the inverse of C + l2."""
        return (self.vectors / (self.values + l2)) @ self.vectors.T

    def solve(self, product: Tensor, l2: float) -> Tensor:
        """Return u with (C + l2) u = b, refined once.

        Args:
            product: b, shape (d_model,).
            l2: Strength of the penalty.
        """

        def once(b: Tensor) -> Tensor:
            return self.vectors @ ((self.vectors.T @ b) / (self.values + l2))

        u = once(product)
        return u + once(product - self.second_moment @ u - l2 * u)


@dataclass(frozen=True)
class NumberFit:
    """The ridge probe of one layer.

    Args:
        layer: Layer number.
        weight: Weight on raw hidden states, in units of the numbers, shape (1, d_model), float64; a prediction is the
            mean of the training numbers plus its product with the hidden state.
        scaled: Weight on scaled neurons in standard deviations of the numbers, shape (d_model,).
        spectrum: Decomposition of the layer.
        product: Mean product of scaled neurons and standardised numbers, shape (d_model,).
        standard: Mean and standard deviation of the numbers.
        objective: Mean squared error of the standardised training numbers plus penalty.
        train_r2: 1 - mean squared error of the standardised training numbers.
        relative_gradient: Norm of the objective's gradient at the probe, divided by that at 0.
        optimality_gap: Upper bound on the objective's distance to its minimum, as a share of the numbers' variance.
        errors: Squared error of the standardised test numbers, summed for each sentence of the test corpus.
        absolute: Absolute error of the standardised test numbers, summed likewise.
        deviations: Squared standardised test numbers, the squared errors of the constant answer, summed likewise.
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
    """Stream the training examples in float64, divided among ranks, and decompose each layer.

    Args:
        train: Training examples.
        layers: Layer numbers.
        moments: Moments of each layer's training examples.
        space: Scale by which neurons are divided before their weights are penalised.
    """
    # Around the mean, because a large mean would cost the precision of what varies.
    sums = [torch.zeros(len(m.mean), len(m.mean), dtype=torch.float64) for m in moments]
    for batch in read_share(train, layers):
        for total, one, states in zip(sums, moments, batch.hidden_states, strict=True):
            deviations = states.double() - one.mean
            total.addmm_(deviations.T, deviations)
    found = []
    for total, one in zip(sums, moments, strict=True):
        scaling = Scaling(one, space)
        second = scaling.products(sum_over_ranks(total) / one.n_tokens + torch.outer(one.mean, one.mean))
        values, vectors = torch.linalg.eigh(second)
        found.append(Spectrum(scaling, second, values.clamp(min=0), vectors))
    return found


def products(train: Examples, layers: Sequence[int], spectra: Sequence[Spectrum], standard: Standard) -> list[Tensor]:
    """Return the mean product of each layer's scaled neurons with the standardised numbers, each (d_model,)."""
    table = standard.table(train)
    sums = [torch.zeros(len(one.values), dtype=torch.float64) for one in spectra]
    for batch in read_share(train, layers):
        numbers = table[batch.labels]
        for total, one, states in zip(sums, spectra, batch.hidden_states, strict=True):
            # The numbers add up to 0, so that what is subtracted from the states does not matter.
            total += (states.double() - one.scaling.moments.mean).T @ numbers
    return [
        one.scaling.raw_weight(sum_over_ranks(total)) / train.n_tokens for one, total in zip(spectra, sums, strict=True)
    ]


@dataclass(frozen=True)
class Errors:
    """Errors of probes on the examples of one side, summed for each sentence.

    Args:
        squared: For each layer, shape (n_sentences, n_probes), float64.
        absolute: Likewise.
        constant: Squared errors of the constant answer, shape (n_sentences,).
    """

    squared: list[NDArray[np.float64]]
    absolute: list[NDArray[np.float64]]
    constant: NDArray[np.float64]


def errors_of(examples: Examples, layers: Sequence[int], weights: Sequence[Tensor], standard: Standard) -> Errors:
    """Stream examples, divided among ranks, and return the errors of several probes of each layer.

    Args:
        examples: The examples.
        layers: Layer numbers.
        weights: For each layer, weights on raw hidden states that predict standardised numbers, shape (n_probes,
            d_model), float64.
        standard: Standardises the numbers.
    """
    table, n = standard.table(examples), examples.store.tokens.n_sentences
    squared, absolute = ([torch.zeros(n, len(one), dtype=torch.float64) for one in weights] for _ in range(2))
    constant = torch.zeros(n, dtype=torch.float64)
    for batch in read_share(examples, layers):
        numbers = table[batch.labels]
        constant.index_add_(0, batch.sentences, numbers.square())
        for square, size, weight, states in zip(squared, absolute, weights, batch.hidden_states, strict=True):
            error = numbers[:, None] - states.double() @ weight.T
            square.index_add_(0, batch.sentences, error.square())
            size.index_add_(0, batch.sentences, error.abs())
    squares, sizes = ([sum_over_ranks(one).numpy() for one in of_layers] for of_layers in (squared, absolute))
    return Errors(squares, sizes, sum_over_ranks(constant).numpy())


@dataclass(frozen=True)
class RidgePath:
    """Validation R² of each layer along the grid of penalties.

    Args:
        layers: Layer numbers.
        l2: The penalties, descending, half a decade apart.
        r2: Validation R², shape (n_penalties, n_layers).
    """

    layers: Sequence[int]
    l2: Sequence[float]
    r2: NDArray[np.float64]

    @property
    def chosen(self) -> float:
        """The penalty with the highest mean over layers, among equals the strongest."""
        return self.l2[int(self.r2.mean(1).argmax())]

    def summary(self) -> dict[str, Any]:
        """Return the results of the path, as plain values for `results.json`."""
        return {
            "l2": self.chosen,
            "tried": list(self.l2),
            "validation_r2": self.r2.mean(1).tolist(),
            "validation_r2_by_layer": {
                str(layer): column.tolist() for layer, column in zip(self.layers, self.r2.T, strict=True)
            },
            "alone": {str(layer): self.l2[i] for layer, i in zip(self.layers, self.r2.argmax(0), strict=True)},
        }


def choose_ridge_penalty(
    sides: Sides, layers: Sequence[int], decomposed: Sequence[Spectrum], b: Sequence[Tensor]
) -> RidgePath:
    """Return the validation R² under every penalty of the grid that probes of classes are chosen on.

    Args:
        sides: Examples; the test side is not used.
        layers: Layer numbers.
        decomposed: Decomposition of each layer.
        b: Products of each layer.
    """
    standard = Standard.of(sides.train)
    grid = [strength(index) for index in range(STRONGEST, WEAKEST - 1, -1)]
    weights = [
        torch.stack([one.scaling.raw_weight(one.solve(own, l2)) for l2 in grid])
        for one, own in zip(decomposed, b, strict=True)
    ]
    found = errors_of(sides.validation, layers, weights, standard)
    # The validation numbers may be all the same, and then R² has no scale of its own: that of training does.
    scale = found.constant.sum() or float(sides.validation.n_tokens)
    return RidgePath(layers, grid, np.stack([1 - one.sum(0) / scale for one in found.squared], 1))


@dataclass(frozen=True)
class Decomposed:
    """Examples with the decomposition of their layers, which other numbers of the same examples share.

    Args:
        sides: Examples and their numbers.
        layers: Layer numbers.
        spectra: Decomposition of each layer.
        products: Products of each layer with the numbers.
    """

    sides: Sides
    layers: Sequence[int]
    spectra: Sequence[Spectrum]
    products: Sequence[Tensor]

    @classmethod
    def of(
        cls, sides: Sides, layers: Sequence[int], space: PenaltySpace, known: Sequence[Spectrum] | None = None
    ) -> Decomposed:
        """Decompose layers, if their decomposition is not already known."""
        decomposed = known or spectra(sides.train, layers, layer_moments(sides.train, layers), space)
        return cls(sides, layers, decomposed, products(sides.train, layers, decomposed, Standard.of(sides.train)))

    def train(self, l2: float) -> list[NumberFit]:
        """Return the probe of each layer under a penalty, tested."""
        scaled = [one.solve(b, l2) for one, b in zip(self.spectra, self.products, strict=True)]
        standard = Standard.of(self.sides.train)
        raw = [one.scaling.raw_weight(u)[None] for one, u in zip(self.spectra, scaled, strict=True)]
        tested = errors_of(self.sides.test, self.layers, raw, standard)
        fits = []
        for i, (one, b, u) in enumerate(zip(self.spectra, self.products, scaled, strict=True)):
            curved, size = one.second_moment @ u, float(b.norm())
            left = float((curved + l2 * u - b).norm())  # half of the gradient
            mse = float(1 - 2 * (u @ b) + u @ curved)
            fits.append(
                NumberFit(
                    layer=self.layers[i],
                    weight=raw[i] * standard.sd,
                    scaled=u,
                    spectrum=one,
                    product=b,
                    standard=standard,
                    objective=mse + l2 * float(u @ u),
                    train_r2=1 - mse,
                    relative_gradient=left / size if size else 0.0,
                    optimality_gap=left**2 / l2,  # from strong convexity, as of a probe of classes
                    errors=tested.squared[i][:, 0],
                    absolute=tested.absolute[i][:, 0],
                    deviations=tested.constant,
                )
            )
        return fits
