"""Survey all layers of a model: find outliers, fit and measure transforms, and explain the outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from probing.data.examples import Activations
from probing.geometry.explained import ExplainedAccumulator, Regressors, explained_rows, is_punctuation
from probing.geometry.layers import Estimator, Look, Measured, Sampled, SpecialTokens, look, measure
from probing.internals.parameters import find_parameters, not_applicable, parameter_rows
from probing.models.anatomy import examine
from probing.statistics import outliers
from probing.statistics.outliers import Definition, Outlier
from probing.statistics.sample_size import size_columns
from probing.transforms.affine import Fitting, Kind, Transform, fit_transform, identity, random_neurons

OUTLIER_COLUMNS = ("definition", "layer", "neuron", "value", "special_tokens")
DIMENSION_COLUMNS = ("layer", "neuron", "mean", "sd", "cosine_share", "argmin_share", "argmax_share")

# Stands for the layer in rows over all layers but the embeddings.
ALL = "all"
# Number of other neurons that are explained for comparison with the outliers.
RANDOM = 10


@dataclass(frozen=True)
class Plan:
    """What is surveyed and how.

    Args:
        special_tokens: Whether special tokens count.
        kinds: Transforms that are fitted and measured.
        definition: Definition of the outliers that are clipped.
        fitting: How transforms are fitted.
        n_draws: Number of draws of random neurons that are clipped for comparison.
        estimators: Published estimators of the mean cosine to add.
        seed: Seed of every random draw.
    """

    special_tokens: SpecialTokens
    kinds: Sequence[Kind]
    definition: Definition
    fitting: Fitting
    n_draws: int
    estimators: Sequence[Estimator]
    seed: int


@dataclass
class Survey:
    """The tables of a survey.

    Args:
        geometry: Rows of `geometry.csv`.
        outliers: Rows of `outliers.csv`.
        dimensions: Rows of `dimensions.csv`.
        parameters: Rows of `parameters.csv`.
        explained: Rows of `explained.csv`.
        smoothing: Rows of `smoothing.csv`; they need the model itself and are added by the command.
        interventions: Rows of `interventions.csv`, added in the same way.
        transforms: Transforms by kind and layer.
        clipped: Neurons of each layer that are outliers by the definition of the plan.
        not_applicable: Kinds of parameters that the model does not have.
    """

    geometry: list[dict[str, Any]] = field(default_factory=list)
    outliers: list[dict[str, Any]] = field(default_factory=list)
    dimensions: list[dict[str, Any]] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    explained: list[dict[str, Any]] = field(default_factory=list)
    smoothing: list[dict[str, Any]] = field(default_factory=list)
    interventions: list[dict[str, Any]] = field(default_factory=list)
    transforms: dict[str, dict[int, Transform]] = field(default_factory=dict)
    clipped: dict[int, list[int]] = field(default_factory=dict)
    not_applicable: list[str] = field(default_factory=list)


def survey(
    measured_on: Activations,
    fitted_on: Activations,
    layers: Sequence[int],
    encoder: nn.Module,
    tokenizer: Any,
    plan: Plan,
    say: Callable[[str], None] = lambda message: None,
) -> Survey:
    """Survey a model, a layer at a time.

    Args:
        measured_on: Activations whose geometry is measured.
        fitted_on: Activations used to find outliers and fit transforms; they may be the same.
        layers: Ascending layer numbers.
        encoder: The model, whose parameters are read.
        tokenizer: Its tokenizer, which tells which tokens are punctuation.
        plan: What is surveyed and how.
        say: Receives a line for each layer.
    """
    found = Survey()
    parameters = find_parameters(encoder, examine(encoder, tokenizer.pad_token_id or 0))
    norms = parameters.output_norms
    by_norm = outliers.by_layer_norm(
        [norm.gain for norm in norms], [norm.bias for norm in norms if norm.bias is not None]
    )
    found.not_applicable = not_applicable(parameters)
    sampled = Sampled(measured_on.tokens, plan.special_tokens, plan.seed)
    fitted = sampled if fitted_on is measured_on else Sampled(fitted_on.tokens, plan.special_tokens, plan.seed)
    regressors = _regressors(measured_on, tokenizer)
    looks: list[Look] = []
    distances: NDArray[np.float64] | None = None
    for layer in layers:
        say(f"layer {layer} of {layers[-1]}")
        looks.append(seen := look(fitted_on, layer, fitted))
        here = look(measured_on, layer, sampled) if fitted is not sampled else seen
        named = {which: outliers.outliers_of(profile) for which, profile in seen.profiles.items()}
        for which, those in named.items():
            found.outliers += _outlier_rows(those, layer, which)
        clipped = _clipped(plan, named, by_norm)
        all_named = sorted({o.neuron for those in named.values() for o in those} | {o.neuron for o in by_norm})
        found.clipped[layer] = clipped
        transforms = _transforms(plan, seen, clipped)
        for kind, transform in transforms.items():
            found.transforms.setdefault(kind, {})[layer] = transform
        result = measure(
            measured_on, layer, sampled, here.moments, {"none": identity(len(here.moments.mean)), **transforms},
            _random_choices(plan, layer, len(here.moments.mean), clipped, all_named), plan.estimators,
            distances if layer - 1 in [one.layer for one in looks[-2:]] else None,
        )  # fmt: skip
        distances = result.distances
        sizes = {kind: _size(kind, fitted, seen, plan.fitting.n_components) for kind in transforms}
        found.geometry += [row | sizes.get(row["transform"], {}) for row in result.rows]
        found.dimensions += _dimension_rows(here, plan.special_tokens, result)
        found.explained += _explained(measured_on, layer, regressors, all_named, _dead(here), plan.seed)
    found.outliers += [
        row for which in ("exclude", "include") for row in _outlier_rows(_pooled(looks, which), ALL, which)
    ]
    found.outliers += _outlier_rows(by_norm, ALL, "")
    neurons = sorted({row["neuron"] for row in found.outliers})
    found.parameters = parameter_rows(parameters, neurons)
    return found


def _dead(seen: Look) -> list[int]:
    return seen.moments.dead.nonzero().flatten().tolist()


def _clipped(plan: Plan, named: Mapping[SpecialTokens, Sequence[Outlier]], by_norm: Sequence[Outlier]) -> list[int]:
    """Return the neurons of a layer that are outliers by the definition of the plan, ascending."""
    those = by_norm if plan.definition == "layer_norm" else named.get(plan.special_tokens, ())
    return sorted(outlier.neuron for outlier in those if outlier.definition == plan.definition)


def _transforms(plan: Plan, seen: Look, clipped: Sequence[int]) -> dict[str, Transform]:
    """Fit the transforms of a layer; clipping needs outliers, and the other transforms need neurons that vary."""
    fitted: dict[str, Transform] = {}
    for kind in plan.kinds:
        applies = bool(clipped) if kind == "clip" else seen.moments.varies
        if applies:
            fitted[kind] = fit_transform(kind, seen.moments, clipped, plan.fitting)
    return fitted


def _size(kind: str, fitted: Sampled, seen: Look, n_components: int | None) -> dict[str, int | float]:
    """Return the columns that describe the tokens a transform was fitted on."""
    n_sentences = len(np.unique(fitted.tokens.sentences[fitted.counts]))
    return size_columns(kind, seen.moments.n_tokens, n_sentences, len(seen.moments.mean), n_components)


def _random_choices(
    plan: Plan, layer: int, d_model: int, clipped: Sequence[int], excluded: Sequence[int]
) -> list[list[int]]:
    """Draw as many neurons as are clipped, several times, among those that no definition names as outliers."""
    if "clip" not in plan.kinds or not clipped or len(clipped) > d_model - len(excluded):
        return []
    generator = np.random.default_rng([plan.seed, layer])
    return [random_neurons(d_model, len(clipped), excluded, generator) for _ in range(plan.n_draws)]


def _outlier_rows(those: Sequence[Outlier], layer: int | str, special_tokens: str) -> list[dict[str, Any]]:
    about = {"layer": layer, "special_tokens": special_tokens}
    return [{"definition": o.definition, "neuron": o.neuron, "value": o.value, **about} for o in those]


def _pooled(looks: Sequence[Look], which: SpecialTokens) -> list[Outlier]:
    """Return the outliers by share over all layers but the embeddings, as in Luo, Kulmizev & Mao (2021)."""
    profiles = [seen.profiles[which] for seen in looks if seen.layer and which in seen.profiles]
    if not profiles:
        return []
    together = outliers.pooled(profiles)
    return outliers.by_share("argmin_share", together) + outliers.by_share("argmax_share", together)


def _dimension_rows(seen: Look, special_tokens: SpecialTokens, result: Measured) -> list[dict[str, Any]]:
    """Return a row for each neuron, as in `dimensions.csv`."""
    profile = seen.profiles[special_tokens]
    columns = {
        "mean": profile.mean, "sd": np.sqrt(profile.variance), "cosine_share": result.cosine_shares.numpy(),
        "argmin_share": profile.argmin_share, "argmax_share": profile.argmax_share,
    }  # fmt: skip
    return [
        {"layer": seen.layer, "neuron": k} | {name: float(values[k]) for name, values in columns.items()}
        for k in range(len(profile.mean))
    ]


def _regressors(store: Activations, tokenizer: Any) -> Regressors:
    ids, of_token = np.unique(store.tokens.input_ids, return_inverse=True)
    return Regressors(store.tokens, is_punctuation(tokenizer.convert_ids_to_tokens(ids.tolist()))[of_token.reshape(-1)])


def _explained(
    store: Activations, layer: int, regressors: Regressors, named: Sequence[int], dead: Sequence[int], seed: int
) -> list[dict[str, Any]]:
    """Return what explains the outliers of a layer, and for comparison up to ten other neurons.

    Dead neurons, which may be outliers by their LayerNorm, are left out: their variance is only rounding.
    """
    named = [neuron for neuron in named if neuron not in dead]
    if not named:
        return []
    d_model, special, out = store.plan.d_model, regressors.tokens.special, [*named, *dead]
    others = random_neurons(d_model, min(RANDOM, d_model - len(out)), out, np.random.default_rng([seed, layer, 1]))
    neurons, columns = [*named, *others], regressors.columns
    without = {name: here for name, here in columns.items() if name != "special"}
    accumulators = {
        "exclude": ExplainedAccumulator(without, len(neurons)), "include": ExplainedAccumulator(columns, len(neurons)),
    }  # fmt: skip
    for shard in store.plan.shards:
        here = store.shard_tokens(shard)
        values = store.read(layer, shard.index)[:, torch.tensor(neurons)].float().numpy()
        x, plain = regressors.of(here), ~special[here]
        accumulators["include"].update(x, values)
        accumulators["exclude"].update(x[plain], values[plain])
    kinds = ["outlier"] * len(named) + ["random"] * len(others)
    return [
        row
        for which, found in accumulators.items()
        if found.n_tokens
        for row in explained_rows(layer, neurons, kinds, which, found.result(), found.n_tokens)
    ]
