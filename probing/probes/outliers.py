"""Outlier dimensions of layers: the moments that define them, and the neurons that each definition names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.activations.source import ActivationSource, report_dropped_text
from probing.data.examples import HiddenStateSource
from probing.errors import UserError
from probing.models.residual_stream import Parameters
from probing.results import ALL_LAYERS, layers_named
from probing.runtime.progress import stage
from probing.statistics import moments
from probing.statistics.chance import normalise
from probing.statistics.moments import (
    Covariance,
    CovarianceAccumulator,
    Definition,
    Outlier,
    Profile,
    ProfileAccumulator,
    outliers_of,
    pooled,
)
from probing.text import Corpus, load_corpus
from probing.text.tokens import Tokens

SpecialTokens = Literal["exclude", "include"]


def is_included(tokens: Tokens, special_tokens: SpecialTokens) -> NDArray[np.bool_]:
    """Return the mask of the tokens that are measured, shape (n_tokens,)."""
    return tokens.included if special_tokens == "include" else ~tokens.special


def check_tokens(tokens: Tokens, special_tokens: SpecialTokens) -> None:
    """Raise a `UserError` for a corpus with fewer than two tokens to compare."""
    n = int(is_included(tokens, special_tokens).sum())
    if n < 2:
        first = "" if tokens.included.all() else " and the first ones"
        raise UserError(f"`--corpus`: {n} tokens are left without special tokens{first}, and cosines need two.")


def read_text_to_measure(
    source: ActivationSource, config: Mapping[str, Any], check: Callable[[Tokens], None] = lambda tokens: None
) -> tuple[Corpus, list[ActivationStore]]:
    """Return the corpus that is measured, and the activations of each corpus, that of `--fit_corpus` last, if given.

    `check` is a further check of the corpus that is measured, before its activations are extracted.
    """
    of_tokens = partial(check_tokens, special_tokens=config["special_tokens"])

    def both(tokens: Tokens) -> None:
        of_tokens(tokens)
        check(tokens)

    corpora = [load_corpus(config["corpus"])]
    if config.get("fit_corpus") is not None:
        corpora.append(load_corpus(config["fit_corpus"], "--fit_corpus"))
    checks: list[Callable[[Tokens], None]] = [both, of_tokens]
    stores = source.read(corpora, checks[: len(corpora)])
    report_dropped_text(corpora, [store.tokens for store in stores], source.say)
    return corpora[0], stores


@dataclass(frozen=True)
class TokenGroup:
    """A group of a layer's tokens: its profile, and the sum of its unit vectors, shape (d_model,), float64."""

    profile: Profile
    units: NDArray[np.float64]

    @property
    def mean_cosine(self) -> float:
        """The mean cosine over all pairs of two different tokens; NaN for fewer than two."""
        n = self.profile.n_tokens
        return float((np.square(self.units).sum() - n) / (n * (n - 1))) if n > 1 else float("nan")


@dataclass(frozen=True)
class LayerMoments:
    """The moments of the measured tokens of a layer, and the profiles of its neurons over kinds of tokens.

    `profiles` are without special tokens (`exclude`), unless all are special, and with them (`include`). `of_first` has
    the measured tokens without the first one of each sentence (`exclude`), with it (`include`), and the first ones
    alone (`only`); it is empty unless first tokens are excluded.
    """

    layer: int
    moments: Covariance
    profiles: Mapping[SpecialTokens, Profile]
    of_first: Mapping[str, TokenGroup]


def collect_layer_moments(store: HiddenStateSource, layer: int, special_tokens: SpecialTokens) -> LayerMoments:
    """Return the moments of the measured tokens of a layer, and the profiles of its neurons, in one pass."""
    d_model, tokens = store.plan.d_model, store.tokens
    included = is_included(tokens, special_tokens)
    words, first = ~tokens.special, ~tokens.included
    disjoint = {
        "words": words, "special": ~words & ~first, "first words": first & ~tokens.added,
        "first special": first & tokens.added,
    }  # fmt: skip
    accumulators = {name: ProfileAccumulator(d_model) for name, of in disjoint.items() if of.any()}
    units = {name: np.zeros(d_model) for name in accumulators} if first.any() else {}
    moments = CovarianceAccumulator(d_model)
    for shard_rows, states in shards_of(store, layer):
        moments.update(states[torch.from_numpy(included[shard_rows])])
        for name, accumulator in accumulators.items():
            some = states[torch.from_numpy(disjoint[name][shard_rows])]
            accumulator.update(some)
            if units:
                units[name] += normalise(some).double().sum(0).numpy()
    profile_of_group = {name: accumulator.result() for name, accumulator in accumulators.items()}

    def of(*names: str) -> Profile:
        return pooled([profile_of_group[name] for name in names if name in profile_of_group])

    profiles: dict[SpecialTokens, Profile] = {"include": of("words", "special")}
    if "words" in profile_of_group:
        profiles["exclude"] = profile_of_group["words"]
    kinds = ("words", "special") if special_tokens == "include" else ("words",)
    alone = {kind: f"first {kind}" for kind in ("words", "special")}
    groups = {"exclude": kinds, "include": (*kinds, *(alone[kind] for kind in kinds)), "only": tuple(alone.values())}
    of_first = {
        which: TokenGroup(of(*names), np.sum([units[name] for name in names if name in units], axis=0))
        for which, names in (groups if units else {}).items()
    }
    return LayerMoments(layer, moments.result(), profiles, of_first)


def shards_of(store: HiddenStateSource, layer: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield for each shard its rows in the token table and its states, in float32 or wider."""
    for shard in store.plan.shards:
        states = store.read(layer, shard.index)
        yield shard.rows(store.tokens), states.to(torch.promote_types(states.dtype, torch.float32))


@dataclass(frozen=True)
class OutlierSurvey:
    """The outliers of the layers that were added, by all definitions, and those of one definition.

    Args:
        definition: Definition of the `chosen` outliers.
        special_tokens: Whether special tokens count for the chosen outliers.
        by_norm: Outliers of all layers by the parameters of the norms.
        chosen: Neurons of each layer that are outliers by the definition, ascending.
    """

    definition: Definition
    special_tokens: SpecialTokens
    by_norm: Sequence[Outlier]
    chosen: dict[int, list[int]] = field(default_factory=dict)
    _named: dict[int, dict[SpecialTokens, list[Outlier]]] = field(default_factory=dict)
    _profiles: dict[int, Mapping[SpecialTokens, Profile]] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Parameters, definition: Definition, special_tokens: SpecialTokens) -> OutlierSurvey:
        """Return a survey without layers of a model with these parameters."""
        norms = parameters.output_norms
        biases = [norm.bias for norm in norms if norm.bias is not None]
        return cls(definition, special_tokens, moments.by_layer_norm([norm.gain for norm in norms], biases))

    def add(self, layer_moments: LayerMoments) -> None:
        """Name the outliers of a layer."""
        layer, profiles = layer_moments.layer, layer_moments.profiles
        self._profiles[layer] = profiles
        self._named[layer] = named = {which: outliers_of(profile) for which, profile in profiles.items()}
        outliers = self.by_norm if self.definition == "layer_norm" else named.get(self.special_tokens, ())
        self.chosen[layer] = sorted(outlier.neuron for outlier in outliers if outlier.definition == self.definition)

    def named(self, layer: int) -> list[int]:
        """Return the neurons of a layer that are outliers by any definition, ascending."""
        of_layer = [outlier for outliers in self._named[layer].values() for outlier in outliers]
        return sorted({outlier.neuron for outlier in (*of_layer, *self.by_norm)})

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of `outliers.csv`."""
        rows: list[dict[str, Any]] = []
        for layer, named in self._named.items():
            for which, outliers in named.items():
                rows += _rows(outliers, layer, which)
        for which in ("exclude", "include"):
            rows += _rows(self._pooled(which), ALL_LAYERS, which)
        return rows + _rows(self.by_norm, ALL_LAYERS, "")

    def _pooled(self, which: Any) -> list[Outlier]:
        """Return the outliers by share over all layers but the embeddings, as in Luo, Kulmizev & Mao (2021)."""
        profiles = [of[which] for layer, of in self._profiles.items() if layer and which in of]
        if not profiles:
            return []
        together = pooled(profiles)
        return moments.by_share("argmin_share", together) + moments.by_share("argmax_share", together)


def _rows(outliers: Sequence[Outlier], layer: int | str, special_tokens: str) -> list[dict[str, Any]]:
    about = {"layer": layer, "special_tokens": special_tokens}
    return [{"definition": o.definition, "neuron": o.neuron, "value": o.value, **about} for o in outliers]


def find_outliers(
    store: HiddenStateSource, layers: Sequence[int], parameters: Parameters, config: Mapping[str, Any]
) -> OutlierSurvey:
    """Return the outliers of layers, by the options `definition` and `special_tokens`."""
    survey = OutlierSurvey.of(parameters, config["definition"], config["special_tokens"])
    with stage(f"outliers of {layers_named(layers)}", len(layers)) as advance:
        for layer in layers:
            survey.add(collect_layer_moments(store, layer, config["special_tokens"]))
            advance(1)
    return survey
