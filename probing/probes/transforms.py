"""Affine maps of one layer's hidden states, fitted on some tokens and applied to any tokens.

Each follows the definition of a published post-processing: clipping (Luo, Kulmizev & Mao 2021), whitening (Su et al.
2021), standardisation and mean removal (Timkey & van Schijndel 2021), all-but-the-top (Mu & Viswanath 2018). They
change hidden states after the forward pass, never the forward pass itself. Linear erasure
(`probing.probes.erasure`) is another such map; it depends on labels and has a low-rank form of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from probing.runtime.files import parse_json, regular, write_tensors
from probing.statistics.moments import Covariance, subtract_

Kind = Literal["clip", "whiten", "standardise", "center", "all_but_the_top"]
KINDS: tuple[Kind, ...] = ("clip", "whiten", "standardise", "center", "all_but_the_top")
ClipTo = Literal["zero", "mean"]
Whitening = Literal["pca", "zca"]

# Whitening leaves out eigenvalues of the covariance below this share of the largest: dividing by them would amplify
# rounding errors. For example, vectors after a LayerNorm do not vary along one direction.
EIGENVALUE_FLOOR = 1e-6


@dataclass(frozen=True)
class Transform:
    """The map x -> linear(x - shift) + offset.

    Args:
        kind: Kind of the map, such as `clip`.
        shift: Subtracted first, shape (d_model,), float64.
        linear: One factor per neuron, shape (d_model,), or a matrix to multiply by from the right, shape
            (d_model, n_out); float64.
        offset: Added last, shape (n_out,), float64; n_out is d_model if `linear` has one factor per neuron.
        rank: Dimension of the space of images.
    """

    kind: str
    shift: Tensor
    linear: Tensor
    offset: Tensor
    rank: int

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Map hidden states of shape (..., d_model) to images of shape (..., n_out), in float32 or wider."""
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        images = subtract_(hidden_states.to(dtype, copy=True), self.shift)
        linear = self.linear.to(dtype)
        images = images.mul_(linear) if linear.ndim == 1 else images @ linear
        return images.add_(self.offset.to(dtype)) if self.offset.any() else images

    @property
    def n_out(self) -> int:
        """Width of the images."""
        return len(self.offset)

    @property
    def clipped(self) -> list[int]:
        """Neurons whose images are constant, if `linear` has one factor per neuron; empty if it is a matrix."""
        return (self.linear == 0).nonzero().squeeze(1).tolist() if self.linear.ndim == 1 else []

    def moments(self, before: Covariance) -> Covariance:
        """Return the exact moments of the images: the covariance L' C L, and the image of the mean."""
        linear = self.linear.diag() if self.linear.ndim == 1 else self.linear
        return Covariance(before.n_tokens, self(before.mean), linear.T @ before.covariance @ linear)

    def centred_on(self, mean: Tensor) -> Transform:
        """Return the map that takes `mean` to 0 and is otherwise the same."""
        return Transform(self.kind, mean, self.linear, torch.zeros_like(self.offset), self.rank)


def _map(kind: str, shift: Tensor, linear: Tensor, rank: int | None = None) -> Transform:
    """Return a map without offset; by default its rank is the number of nonzero factors."""
    n_out = linear.shape[-1]
    found = int(linear.count_nonzero()) if rank is None else rank
    return Transform(kind, shift, linear, torch.zeros(n_out, dtype=torch.float64), found)


def identity(d_model: int) -> Transform:
    """Return the map that changes nothing."""
    return _map("none", torch.zeros(d_model, dtype=torch.float64), torch.ones(d_model, dtype=torch.float64))


def clip(moments: Covariance, neurons: Sequence[int], to: ClipTo = "zero") -> Transform:
    """Set some neurons to 0 (Luo, Kulmizev & Mao 2021, section 5), or to their mean as a control.

    Only the hidden states that were read are changed; the forward pass has used the neurons. Zeroing their LayerNorm
    parameters (Kovaleva et al. 2021) is another experiment, with the opposite result. Clipping to the mean leaves the
    common direction of all vectors, and therefore their cosines, nearly unchanged; clipping to zero does not.

    Args:
        moments: Moments of the tokens that the map is fitted on; `zero` does not use them.
        neurons: The neurons to set. Detect them on other text than the text the map is evaluated on.
        to: Whether they are set to zero or to their mean.
    """
    d_model = len(moments.mean)
    keep = torch.ones(d_model, dtype=torch.float64)
    keep[list(neurons)] = 0
    offset = (1 - keep) * (moments.mean if to == "mean" else 0)
    return Transform("clip", torch.zeros_like(keep), keep, offset, int(keep.count_nonzero()))


def random_neurons(d_model: int, n_neurons: int, excluded: Sequence[int], generator: np.random.Generator) -> list[int]:
    """Draw neurons other than the excluded ones, as a control for clipping; ascending.

    Raises:
        ValueError: If there are fewer other neurons.
    """
    others = np.setdiff1d(np.arange(d_model), np.asarray(excluded, dtype=np.int64))
    if n_neurons > len(others):
        raise ValueError(f"{n_neurons} neurons cannot be drawn from the {len(others)} that are left")
    return sorted(generator.choice(others, n_neurons, replace=False).tolist())


def center(moments: Covariance) -> Transform:
    """Subtract the mean; dead neurons are mapped to 0, because only rounding errors would remain of them."""
    return _map("center", moments.mean, (~moments.dead).double())


def standardise(moments: Covariance) -> Transform:
    """Subtract each neuron's mean and divide by its standard deviation (Timkey & van Schijndel 2021, section 5).

    Dead neurons are mapped to 0, because only rounding errors would remain of them.
    """
    return _map("standardise", moments.mean, torch.where(moments.dead, 0.0, 1 / moments.sd))


def whiten(
    moments: Covariance,
    method: Whitening = "pca",
    n_components: int | None = None,
    shrinkage: float = 0.0,
    floor: float = EIGENVALUE_FLOOR,
) -> Transform:
    """Make the covariance the identity on the retained subspace (Su et al. 2021, arXiv 2103.15316).

    With Sigma = U diag(lambda) U', `pca` maps x to (x - mean) U diag(lambda)^(-1/2), the published form, and `zca`
    rotates the result back: (x - mean) U diag(lambda)^(-1/2) U', the whitened vectors nearest to the original ones.
    Both have the same inner products and cosines, with or without omitted components, because U' U is the identity on
    the retained components.

    The rank is below d_model if a LayerNorm comes last: sum_k (h_k - beta_k) / gamma_k is 0 for all vectors, so that
    they do not vary along one direction. On the tokens that it was fitted on, whitening maximises an isotropy score by
    construction, so a mean cosine near 0 is not a finding. Fit it on other text than the text it is evaluated on.

    Args:
        moments: Moments of the tokens that the map is fitted on; without shrinkage, many more tokens than d_model.
        method: pca or zca.
        n_components: Number of directions to keep, those that vary most; None keeps all.
        shrinkage: Weight of the isotropic part in Sigma <- (1 - shrinkage) Sigma + shrinkage tr(Sigma) / d_model I,
            from 0 to 1.
        floor: Share of the largest eigenvalue below which a direction is left out.

    Raises:
        ValueError: If no neuron varies, or `n_components` or `shrinkage` are out of range.
    """
    d_model = len(moments.mean)
    if not (n_components is None or 1 <= n_components <= d_model):
        raise ValueError(f"n_components must be 1 to {d_model}, not {n_components}")
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must be 0 to 1, not {shrinkage}")
    if not moments.varies:
        raise ValueError("no neuron varies: there is nothing to whiten")
    isotropic = moments.covariance.trace() / d_model * torch.eye(d_model, dtype=torch.float64)
    values, vectors = torch.linalg.eigh((1 - shrinkage) * moments.covariance + shrinkage * isotropic)
    values, vectors = values.flip(0), vectors.flip(1)
    kept = (values > floor * values[0]).nonzero().squeeze(1)[:n_components]
    matrix = vectors[:, kept] / values[kept].sqrt()
    matrix = matrix @ vectors[:, kept].T if method == "zca" else matrix
    return _map("whiten", moments.mean, matrix, len(kept))


def all_but_the_top(moments: Covariance, n_components: int | None = None) -> Transform:
    """Subtract the mean and the projection on the first principal components (Mu & Viswanath 2018, algorithm 1).

    x -> (I - U_D U_D') (x - mean), where U_D are the D directions that vary most.

    Args:
        moments: Moments of the tokens that the map is fitted on.
        n_components: D; by default d_model / 100 rounded down, but at least 1, as the authors advise.

    Raises:
        ValueError: If D is not below d_model.
    """
    d_model = len(moments.mean)
    n = max(1, d_model // 100) if n_components is None else n_components
    if not 0 <= n < d_model:
        raise ValueError(f"n_components must be 0 to {d_model - 1}, not {n}")
    _, vectors = torch.linalg.eigh(moments.covariance)
    top = vectors[:, d_model - n :]
    matrix = torch.eye(d_model, dtype=torch.float64) - top @ top.T
    return _map("all_but_the_top", moments.mean, matrix, d_model - n)


@dataclass(frozen=True)
class Fitting:
    """Parameters of the transforms.

    Args:
        clip_to: `to` of `clip`.
        whitening: `method` of `whiten`.
        n_components: `n_components` of `whiten`.
        shrinkage: `shrinkage` of `whiten`.
        n_top: `n_components` of `all_but_the_top`.
    """

    clip_to: ClipTo = "zero"
    whitening: Whitening = "pca"
    n_components: int | None = None
    shrinkage: float = 0.0
    n_top: int | None = None


def fit_transform(kind: Kind, moments: Covariance, outliers: Sequence[int], how: Fitting = Fitting()) -> Transform:
    """Fit one kind of transform.

    Args:
        kind: Kind of the transform.
        moments: Moments of the tokens that it is fitted on.
        outliers: Neurons that `clip` sets; other kinds do not use them. An empty list clips nothing.
        how: Parameters of the transforms.
    """
    if kind == "clip":
        return clip(moments, outliers, how.clip_to)
    if kind == "whiten":
        return whiten(moments, how.whitening, how.n_components, how.shrinkage)
    if kind == "all_but_the_top":
        return all_but_the_top(moments, how.n_top)
    return center(moments) if kind == "center" else standardise(moments)


def save(path: Path, transforms: Mapping[int, Transform]) -> None:
    """Write the transforms of some layers, all of one kind, as safetensors.

    Args:
        path: Path of the file. For layer 6, for example, it holds `06.shift`, `06.linear` and `06.offset` in float64;
            its metadata holds the kind and the rank of each layer.
        transforms: The transform of each layer.

    Raises:
        OSError: If the file cannot be written.
    """
    tensors = {
        f"{layer:02d}.{name}": getattr(transform, name).contiguous().clone()
        for layer, transform in transforms.items()
        for name in ("shift", "linear", "offset")
    }
    (kind,) = {transform.kind for transform in transforms.values()}
    ranks = {layer: transform.rank for layer, transform in transforms.items()}
    write_tensors(path, tensors, {"kind": kind, "ranks": json.dumps(ranks)})


def load(path: Path) -> dict[int, Transform]:
    """Read the transforms that `save` wrote, by layer."""
    from safetensors import safe_open

    with safe_open(regular(path, path.parent), framework="pt") as file:

        def read(layer: int, rank: int) -> Transform:
            shift, linear, offset = (file.get_tensor(f"{layer:02d}.{name}") for name in ("shift", "linear", "offset"))
            return Transform(file.metadata()["kind"], shift, linear, offset, rank)

        return {int(layer): read(int(layer), rank) for layer, rank in parse_json(file.metadata()["ranks"]).items()}
