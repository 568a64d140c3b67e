"""The spaces in which cosines are taken: untransformed hidden states, and transforms of them fitted on other text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probing.statistics.moments import Covariance
from probing.tables.space_names import CLIPPING, Definition, Space
from probing.transforms import affine as of
from probing.transforms.affine import Transform


@dataclass(frozen=True)
class Fitting:
    """The transforms and how they are fitted.

    Args:
        spaces: Names of the transforms.
        definition: Definition of the outliers that are clipped.
        components: Number of directions that whitening keeps; None keeps all that vary.
        seed: Seed, together with the layer, of the neurons that `clip_random` draws.
    """

    spaces: Sequence[Space]
    definition: Definition = "mean_profile"
    components: int | None = None
    seed: int = 0

    @property
    def clips(self) -> bool:
        """Whether outliers are needed."""
        return bool({*self.spaces} & {*CLIPPING})


def fitted(fitting: Fitting, moments: Covariance, outliers: Sequence[int], layer: int) -> dict[Space, Transform]:
    """Return the transforms of one layer by name.

    Args:
        fitting: The transforms and how they are fitted.
        moments: Moments of the vectors that they are fitted on.
        outliers: Neurons that are clipped; `clip_random` clips as many others, drawn at random.
        layer: Layer number.
    """
    return {name: _fitted(name, fitting, moments, outliers, layer) for name in fitting.spaces}


def _fitted(name: Space, fitting: Fitting, moments: Covariance, outliers: Sequence[int], layer: int) -> Transform:
    d_model = len(moments.mean)
    if name == "none":
        return of.identity(d_model)
    if name == "clip":
        return of.clip(moments, outliers)
    if name == "clip_random":
        generator = np.random.default_rng([fitting.seed, layer])
        return of.clip(moments, of.random_neurons(d_model, len(outliers), outliers, generator))
    if name == "whiten" and moments.varies:
        return of.whiten(moments, n_components=fitting.components and min(fitting.components, d_model))
    if name == "standardise":
        return of.standardise(moments)
    if name == "all_but_the_top":
        return of.all_but_the_top(moments)
    # Where no neuron varies, as for [CLS] in the embeddings, whitening is not defined.
    return of.center(moments)
