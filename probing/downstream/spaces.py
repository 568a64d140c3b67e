"""The spaces in which cosines are taken: untransformed hidden states, and transforms of them fitted on other text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.corpus.splits import compared
from probing.downstream.names import CLIPPING, Definition, Space
from probing.probes import transforms as of
from probing.probes.transforms import Transform
from probing.results.schema import Row
from probing.statistics.moments import Covariance, CovarianceAccumulator
from probing.statistics.outliers import ProfileAccumulator, outliers_of


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


@dataclass(frozen=True)
class Text:
    """Sentences that transforms are fitted on.

    Args:
        store: Store of their activations.
        kept: Which sentences of the store are used, shape (n_sentences,), bool.
    """

    store: ActivationStore
    kept: NDArray[np.bool_]

    @property
    def taken(self) -> NDArray[np.bool_]:
        """Which tokens belong to these sentences and are not special, shape (n_tokens,), bool."""
        tokens = self.store.tokens
        return self.kept[tokens.sentences] & ~tokens.special


def not_in(sentences: Sequence[str], others: Sequence[str]) -> NDArray[np.bool_]:
    """Return which sentences do not occur among the others, ignoring case and punctuation, shape (n_sentences,)."""
    known = {compared(sentence) for sentence in others}
    return np.array([compared(sentence) not in known for sentence in sentences])


def token_moments(texts: Sequence[Text], layer: int) -> Covariance:
    """Return the moments of the texts' tokens in one layer, without special tokens."""
    accumulator = CovarianceAccumulator(texts[0].store.plan.d_model)
    for states in _words_of(texts, layer):
        accumulator.update(states)
    return accumulator.result()


def outliers(texts: Sequence[Text], layer: int, definition: Definition) -> list[int]:
    """Return a layer's outliers over the texts' tokens without special tokens, ascending; there may be none."""
    accumulator = ProfileAccumulator(texts[0].store.plan.d_model)
    for states in _words_of(texts, layer):
        accumulator.update(states.float())
    found = outliers_of(accumulator.result())
    return sorted({outlier.neuron for outlier in found if outlier.definition == definition})


def _words_of(texts: Sequence[Text], layer: int) -> Iterator[Tensor]:
    """Yield the hidden states of each shard's tokens that are used, shape (n, d_model)."""
    for text in texts:
        taken = text.taken
        for shard in text.store.plan.shards:
            rows = torch.from_numpy(np.flatnonzero(taken[text.store.shard_tokens(shard)]))
            yield text.store.read(layer, shard.index)[rows]


def defined(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows without their undefined values (NaN)."""
    return [{name: value for name, value in row.items() if value == value} for row in rows]
