"""The spaces in which cosines are taken: hidden states as they are, and under transforms fitted on other text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probing.downstream.space_names import Space
from probing.geometry import transforms as of
from probing.geometry.transforms import Transform
from probing.moments import Covariance


def fitted(
    names: Sequence[Space], moments: Covariance, outliers: Sequence[int], seed: int, layer: int
) -> dict[Space, Transform]:
    """Return the transforms of one layer by their names.

    Args:
        names: Which.
        moments: Of the vectors that they are fitted on.
        outliers: Neurons that are clipped; as many others, drawn at random, are by `clip_random`.
        seed: Of that draw, with the layer.
        layer: Number of the layer.
    """
    return {name: _fitted(name, moments, outliers, np.random.default_rng([seed, layer])) for name in names}


def _fitted(name: Space, moments: Covariance, outliers: Sequence[int], generator: np.random.Generator) -> Transform:
    d_model = len(moments.mean)
    if name == "none":
        return of.identity(d_model)
    if name == "clip":
        return of.clip(moments, outliers)
    if name == "clip_random":
        return of.clip(moments, of.random_neurons(d_model, len(outliers), outliers, generator))
    if name == "whiten" and moments.covariance.diagonal().any():
        return of.whiten(moments)
    if name == "standardise":
        return of.standardise(moments)
    if name == "all_but_the_top":
        return of.all_but_the_top(moments)
    # Where no neuron varies, such as of [CLS] in the embeddings, there is nothing to whiten.
    return of.center(moments)
