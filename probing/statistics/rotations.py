"""Random rotations of neurons: bases that have nothing to do with the neurons, and the same distances and products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor

# Most neurons of which a rotation is drawn as a matrix. Of more, drawing the matrix takes longer than multiplying by
# it, and sign changes with cosine transforms take its place.
MOST_DRAWN = 1024
# Number of sign changes, each with a cosine transform: after three, a direction has a part of every neuron.
TRANSFORMS = 3


def random_rotation(n: int, *seeds: int) -> Callable[[Tensor], Tensor]:
    """Draw a rotation or reflection, and return what expresses rows by its directions.

    Of up to `MOST_DRAWN` neurons it is uniform (Haar): the orthogonal factor of a matrix of normal numbers, with the
    signs that make the triangular factor's diagonal positive. Of more it is the product of random sign changes and
    cosine transforms, which are orthogonal, too (Yu et al. 2016, arXiv 1610.09072).

    Args:
        n: Number of neurons.
        seeds: Numbers that the draw depends on, and on nothing else.

    Returns:
        Takes rows of shape (n_rows, n), float64, and returns their products with each direction, of the same shape.
    """
    generator = np.random.default_rng(seeds)
    if n > MOST_DRAWN:
        signs = generator.choice([-1.0, 1.0], (TRANSFORMS, n))
        return lambda rows: _mixed(rows, signs)
    q, r = torch.linalg.qr(torch.from_numpy(generator.standard_normal((n, n))))
    directions = q * r.diagonal().sign()
    return lambda rows: rows @ directions


def _mixed(rows: Tensor, signs: np.ndarray) -> Tensor:
    mixed = rows.numpy()
    for own in signs:
        mixed = dct(mixed * own, norm="ortho", axis=1)
    return torch.from_numpy(mixed)
