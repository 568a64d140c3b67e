"""The survey of all layers: detect outliers, fit and measure transforms, and explain the outliers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore
from probing.data.examples import HiddenStateSource
from probing.data.labelling import origin
from probing.interventions.passes import Rows
from probing.models.anatomy import examine
from probing.models.residual_stream import Parameters, find_parameters
from probing.probes import transforms
from probing.probes.outliers import (
    LayerMoments,
    OutlierSurvey,
    SpecialTokens,
    collect_layer_moments,
    is_included,
)
from probing.probes.transforms import Fitting, Transform, TransformKind, fit_transform, identity, random_neurons
from probing.results import Row, curve_points, layers_named
from probing.runs.call import Measurements
from probing.runtime.progress import stage
from probing.statistics import size_columns
from probing.statistics.moments import MEAN_DEVIATIONS, Definition
from probing.studies.geometry.layers import Estimator, LayerMeasures, Sampled, first_token_rows, measure
from probing.studies.geometry.tables import SCHEMAS
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# The share of a neuron's variance explained by position, frequency, frequent tokens, punctuation and special tokens.
# --------------------------------------------------------------------------------------------------------------------

SOURCES = ("position", "frequency", "token", "punctuation", "special")

# Number of positions with a column of their own; later positions share one.
POSITIONS = 128
# Number of tokens with a column of their own, the most frequent of the corpus.
COMMONEST = 30
# Directions of the regressors are collinear if their eigenvalue is below this share of the largest.
_REPEATED = 1e-10
# A residual sum of squares below this share of the neuron's sum of squares is rounding.
_ROUNDING = 1e-10

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Regressors:
    """The regressors of a neuron, for each token.

    Position has a column for each position. Frequency has a column for the logarithm of the token's count in the corpus
    and one for each octave of the count, so that its effect may have any shape, like the effect of position. The
    `COMMONEST` tokens and the special tokens have a column each. In the columns of frequency and of the most frequent
    tokens, special tokens have the mean of the other tokens, so that these columns do not distinguish special tokens.
    Sources may overlap: [CLS] is always at position 0. `punctuation` is a mask of shape (n_tokens,).
    """

    tokens: Tokens
    punctuation: NDArray[np.bool_]

    @cached_property
    def _log_counts(self) -> Array:
        ids, special = self.tokens.input_ids, self.tokens.special
        logs = np.log2(np.maximum(np.bincount(ids[~special], minlength=int(ids.max()) + 1)[ids], 1))
        return np.where(special, logs[~special].mean() if not special.all() else 0.0, logs)

    @cached_property
    def _special_ids(self) -> NDArray[np.int32]:
        return np.unique(self.tokens.input_ids[self.tokens.special & self.tokens.included])

    @cached_property
    def _common_indices(self) -> NDArray[np.int64]:
        """Index of each token id among the most frequent tokens, -1 for other ids."""
        ids, special = self.tokens.input_ids, self.tokens.special
        counts = np.bincount(ids[~special], minlength=int(ids.max()) + 1)
        indices = np.full(len(counts), -1)
        commonest = np.argsort(-counts, kind="stable")[:COMMONEST]
        indices[commonest[counts[commonest] > 0]] = np.arange(int((counts[commonest] > 0).sum()))
        return indices

    @cached_property
    def _mean_columns(self) -> Array:
        """Mean of the tokens that are not special in the columns of octaves and of the most frequent tokens."""
        plain, columns = ~self.tokens.special, self.columns
        octaves, common = self._log_counts[plain].astype(np.int64), self._common_indices[self.tokens.input_ids[plain]]
        n_octaves = columns["frequency"].stop - columns["frequency"].start - 1
        n_common = columns["token"].stop - columns["token"].start
        counts = (np.bincount(octaves, minlength=n_octaves), np.bincount(common[common >= 0], minlength=n_common))
        return np.concatenate(counts) / max(int(plain.sum()), 1)

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Columns of each source; column 0 is the intercept."""
        n_positions = min(POSITIONS, int(self.tokens.lengths.max()))
        n_common = int(self._common_indices.max()) + 1
        widths = (n_positions, int(self._log_counts.max()) + 2, n_common, 1, len(self._special_ids))
        ends = 1 + np.cumsum([0, *widths])
        return {name: slice(int(a), int(b)) for name, a, b in zip(SOURCES, ends[:-1], ends[1:], strict=True)}

    def of(self, rows: slice) -> Array:
        """Return the regressors of consecutive tokens, shape (n, n_columns), float64."""
        tokens, columns = self.tokens, self.columns
        n = rows.stop - rows.start
        x = np.zeros((n, columns["special"].stop))
        every = np.arange(n)
        x[:, 0] = 1
        position_columns = columns["position"]
        positions = np.minimum(self._positions[rows], position_columns.stop - position_columns.start - 1)
        x[every, position_columns.start + positions] = 1
        special = tokens.special[rows]
        frequency, log_counts = columns["frequency"].start, self._log_counts[rows]
        x[:, frequency] = log_counts
        x[every, frequency + 1 + log_counts.astype(np.int64)] = 1
        common = self._common_indices[tokens.input_ids[rows]]
        known = np.flatnonzero(common >= 0)
        x[known, columns["token"].start + common[known]] = 1
        x[special, frequency + 1 : columns["token"].stop] = self._mean_columns
        x[:, columns["punctuation"].start] = self.punctuation[rows]
        special &= tokens.included[rows]
        ids = tokens.input_ids[rows][special]
        x[np.flatnonzero(special), columns["special"].start + np.searchsorted(self._special_ids, ids)] = 1
        return x

    @cached_property
    def _positions(self) -> NDArray[np.int32]:
        return self.tokens.positions


def is_punctuation(texts: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the tokens of punctuation and symbols alone, ignoring the tokenizer's markers; shape (n,)."""

    def bare(text: str) -> str:
        for mark in ("Ġ", "▁", "</w>"):
            text = text.replace(mark, "")
        return text.removeprefix("##") or text  # `##` itself may be a token

    return np.array(
        [bool(bare(text)) and all(unicodedata.category(c)[0] in "PS" for c in bare(text)) for text in texts]
    )


class ExplainedAccumulator:
    """Accumulator of the shares of variance that regressors explain, by least squares from sums over tokens.

    `columns` are the regressors' columns by source; column 0 is the intercept, and columns after the last source are
    ignored.
    """

    def __init__(self, columns: Mapping[str, slice], n_neurons: int) -> None:
        p = max(source_columns.stop for source_columns in columns.values())
        self.columns, self.n_tokens = columns, 0
        self.origin: Array | None = None
        self.xx, self.xv, self.vv = np.zeros((p, p)), np.zeros((p, n_neurons)), np.zeros(n_neurons)

    def update(self, regressors: Array, neurons: Array) -> None:
        """Add tokens, shapes (n, n_columns) and (n, n_neurons); n may be 0."""
        if not len(neurons):
            return
        if self.origin is None:
            self.origin = neurons.mean(0, dtype=np.float64)
        v = neurons.astype(np.float64) - self.origin
        self.n_tokens += len(v)
        x = regressors[:, : len(self.xx)]
        self.xx += x.T @ x
        self.xv += x.T @ v
        self.vv += np.einsum("nk,nk->k", v, v)

    def result(self) -> dict[str, tuple[Array, Array]]:
        """Return the share of each neuron's variance explained by each source, and by `all` sources together.

        The first array is R^2 of the source alone. The second is the partial R^2, (SSE without - SSE) / SSE without:
        the share that this source explains of the variance that the other sources leave. For `all` both are the joint
        R^2. Each is biased upwards by about the number of columns over the number of tokens. NaN for a neuron that does
        not vary.

        Raises:
            ValueError: If no tokens were added.
        """
        if not self.n_tokens:
            raise ValueError("no tokens to explain neurons of")
        every = np.arange(len(self.xx))
        whole, none = self._sse(every), self._sse(every[:1])
        none = np.where(none > 0, none, np.nan)
        shares = {}
        for name, source_columns in self.columns.items():
            source_indices = np.arange(source_columns.start, source_columns.stop)
            without = self._sse(np.setdiff1d(every, source_indices))
            alone = 1 - self._sse(np.concatenate([every[:1], source_indices])) / none
            shares[name] = alone, np.where(without > 0, (without - whole) / np.where(without > 0, without, 1), 0)
        joint = 1 - whole / none
        return {**shares, "all": (joint, joint)}

    def _sse(self, columns: NDArray[np.int64]) -> Array:
        """Return each neuron's residual sum of squares after a least-squares fit on some columns."""
        xx, xv = self.xx[np.ix_(columns, columns)], self.xv[columns]
        scale = np.where(xx.diagonal() > 0, xx.diagonal(), 1) ** -0.5
        values, vectors = np.linalg.eigh(scale[:, None] * xx * scale)
        selected = values > _REPEATED * values[-1]
        along = (vectors[:, selected].T * scale) @ xv / np.sqrt(values[selected])[:, None]
        residual = self.vv - np.square(along).sum(0)
        return np.where(residual > _ROUNDING * self.vv, residual, 0)


def explained_rows(
    layer: int,
    neurons: Sequence[int],
    kinds: Sequence[str],
    special_tokens: str,
    shares: Mapping[str, tuple[Array, Array]],
    n_tokens: int,
) -> list[dict[str, Any]]:
    """Return the rows of `explained.csv` from `ExplainedAccumulator.result`; kinds are `outlier` or `random`."""
    return [
        {
            "layer": layer, "neuron": neuron, "kind": kind, "special_tokens": special_tokens, "source": source,
            "alone": float(alone[i]), "partial": float(partial[i]), "n_tokens": n_tokens,
        }
        for i, (neuron, kind) in enumerate(zip(neurons, kinds, strict=True))
        for source, (alone, partial) in shares.items()
        if np.isfinite(alone[i])
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Outliers in a model's parameters: its position table, its segment and token embeddings, and its LayerNorms.
# --------------------------------------------------------------------------------------------------------------------


def parameter_rows(parameters: Parameters, neurons: Sequence[int]) -> list[dict[str, Any]]:
    """Return the ranks of some neurons in each parameter, as in `parameters.csv`.

    A row has the neuron's value, its rank by signed value (1 is the largest, d_model the smallest), its rank by
    magnitude (1 is the farthest from 0), its distance from the mean of all neurons in standard deviations
    (`deviations`), and the number of neurons beyond 5 of these (`n_outliers`). Luo, Kulmizev & Mao (2021) do not
    specify which of the two ranks they report. In a tie the lower neuron comes first. Rows of the position table that
    no position uses have no position.
    """
    return [row for vector, about in _vectors(parameters) for row in _ranks(vector, about, neurons)]


def not_applicable(parameters: Parameters) -> list[str]:
    """Return the kinds of parameters that the model does not have, or not in the width of its hidden states."""
    kinds = {
        "position table": parameters.position_table is not None,
        "token embedding": parameters.mean_token is not None,
        "LayerNorm": bool(parameters.norms),
        "LayerNorm bias": any(norm.bias is not None for norm in parameters.norms),
    }
    return [name for name, exists in kinds.items() if not exists]


def _vectors(parameters: Parameters) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Yield each vector over the neurons, with the columns that identify it."""
    if (table := parameters.position_table) is not None:
        for row, vector in enumerate(table):
            position = row - parameters.first_row
            yield vector, {"parameter": "position", "row": row} | ({"position": position} if position >= 0 else {})
    if parameters.segment_table is not None:
        for row, vector in enumerate(parameters.segment_table):
            yield vector, {"parameter": "segment", "row": row}
    if parameters.mean_token is not None:
        yield parameters.mean_token, {"parameter": "mean_token"}
    for norm in parameters.norms:
        about: dict[str, Any] = {"module": norm.module} | ({} if norm.layer is None else {"layer": norm.layer})
        yield norm.gain, {"parameter": "gain", **about}
        if norm.bias is not None:
            yield norm.bias, {"parameter": "bias", **about}


def _ranks(vector: Tensor, about: dict[str, Any], neurons: Sequence[int]) -> Iterator[dict[str, Any]]:
    values = vector.double().numpy()
    signed, absolute = (_ranks_of(key) for key in (values, np.abs(values)))
    sd = values.std()
    n_outliers = int((np.abs(values - values.mean()) > MEAN_DEVIATIONS * sd).sum())
    for neuron in neurons:
        deviations = float((values[neuron] - values.mean()) / sd) if sd > 0 else 0.0
        yield {
            **about,
            "neuron": neuron,
            "value": float(values[neuron]),
            "rank": int(signed[neuron]),
            "absolute_rank": int(absolute[neuron]),
            "deviations": deviations,
            "n_outliers": n_outliers,
        }


def _ranks_of(values: Any) -> Any:
    """Return the rank of each value, 1 for the largest; in a tie the first value has the lower rank."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return ranks


# --------------------------------------------------------------------------------------------------------------------
# The survey of all layers.
# --------------------------------------------------------------------------------------------------------------------


TABLES = "geometry", "outliers", "dimensions", "parameters", "explained", "first_token"

# Number of other neurons that are explained for comparison with the outliers.
RANDOM = 10


@dataclass(frozen=True)
class GeometryPlan:
    """Settings of a survey; `n_draws` is the number of draws of random neurons that are clipped for comparison."""

    special_tokens: SpecialTokens
    kinds: Sequence[TransformKind]
    definition: Definition
    fitting: Fitting
    n_draws: int
    estimators: Sequence[Estimator]
    seed: int


@dataclass(frozen=True)
class LayerSurvey:
    """Results of all layers: rows of tables by name, and transforms by kind and layer.

    The table `first_token` is empty unless first tokens are excluded. `clipped` has the neurons of each layer that are
    outliers by the plan's definition, and `not_applicable` the kinds of parameters that the model does not have.
    """

    tables: dict[str, Rows]
    transforms: Mapping[str, Mapping[int, Transform]]
    clipped: Mapping[int, list[int]]
    not_applicable: list[str]


def survey(
    store: HiddenStateSource, fitted_on: HiddenStateSource, layers: Sequence[int], encoder: nn.Module, tokenizer: Any,
    plan: GeometryPlan,
) -> LayerSurvey:  # fmt: skip
    """Survey a model, in ascending layers, one at a time.

    `store` has the activations that are measured; outliers are detected and transforms fitted on `fitted_on`, which may
    be the same. The encoder is read for its parameters, and the tokenizer identifies punctuation.
    """
    parameters = find_parameters(encoder, examine(encoder, tokenizer.pad_token_id or 0))
    outliers = OutlierSurvey.of(parameters, plan.definition, plan.special_tokens)
    sampled = Sampled(store.tokens, plan.special_tokens, plan.seed)
    ids, of_token = np.unique(store.tokens.input_ids, return_inverse=True)
    punctuation = is_punctuation(tokenizer.convert_ids_to_tokens(ids.tolist()))[of_token.reshape(-1)]
    work = _Survey(store, fitted_on, sampled, Regressors(store.tokens, punctuation), plan, outliers)
    tables: dict[str, Rows] = {name: [] for name in TABLES}
    transforms: dict[str, dict[int, Transform]] = {}
    with stage(f"geometry of {layers_named(layers)}", len(layers)) as advance:
        for layer in layers:
            for name, rows in work.tables(layer, transforms).items():
                tables[name] += rows
            advance(1)
    tables["outliers"] = outliers.rows
    tables["parameters"] = parameter_rows(parameters, sorted({row["neuron"] for row in tables["outliers"]}))
    return LayerSurvey(tables, transforms, outliers.chosen, not_applicable(parameters))


@dataclass
class _Survey:
    """Activations that are measured, activations for fitting, and what was found in the layers so far.

    `distances` has the distances of sentences to equal rows, by layer.
    """

    store: HiddenStateSource
    fitted_on: HiddenStateSource
    sampled: Sampled
    regressors: Regressors
    plan: GeometryPlan
    outliers: OutlierSurvey
    distances: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def tables(self, layer: int, transforms: dict[str, dict[int, Transform]]) -> dict[str, Rows]:
        """Return the rows of a layer by table, and add its transforms by kind and layer."""
        plan, store, special_tokens = self.plan, self.store, self.plan.special_tokens
        fitted = collect_layer_moments(self.fitted_on, layer, special_tokens)
        measured = fitted if store is self.fitted_on else collect_layer_moments(store, layer, special_tokens)
        self.outliers.add(fitted)
        clipped, named = self.outliers.chosen[layer], self.outliers.named(layer)
        of_layer, d_model = _transforms(plan, fitted, clipped), len(measured.moments.mean)
        result = measure(
            store, layer, self.sampled, measured.moments, {"none": identity(d_model), **of_layer},
            _random_choices(plan, layer, d_model, clipped, named), plan.estimators, self.distances.get(layer - 1),
        )  # fmt: skip
        self.distances[layer] = result.distances
        tokens = self.fitted_on.tokens
        n_sentences = len(np.unique(tokens.sentences[is_included(tokens, special_tokens)]))
        size = fitted.moments.n_tokens, n_sentences, d_model, plan.fitting.n_components
        sizes = {kind: size_columns(kind, *size) for kind in of_layer}
        for kind, transform in of_layer.items():
            transforms.setdefault(kind, {})[layer] = transform
        dead = measured.moments.dead.nonzero().flatten().tolist()
        return {
            "geometry": [row | sizes.get(row["transform"], {}) for row in result.rows],
            "dimensions": _dimension_rows(measured, special_tokens, result),
            "explained": _explained(store, layer, self.regressors, named, dead, plan.seed),
            "first_token": first_token_rows(layer, fitted.of_first),
        }


def _transforms(plan: GeometryPlan, fitted_on: LayerMoments, clipped: Sequence[int]) -> dict[str, Transform]:
    """Fit the transforms of a layer; clipping needs outliers, and the other transforms need neurons that vary."""
    fitted: dict[str, Transform] = {}
    for kind in plan.kinds:
        applies = bool(clipped) if kind == "clip" else fitted_on.moments.varies
        if applies:
            fitted[kind] = fit_transform(kind, fitted_on.moments, clipped, plan.fitting)
    return fitted


def _random_choices(
    plan: GeometryPlan, layer: int, d_model: int, clipped: Sequence[int], excluded: Sequence[int]
) -> list[list[int]]:
    """Draw as many neurons as are clipped, several times, among those that no definition names as outliers."""
    if "clip" not in plan.kinds or not clipped or len(clipped) > d_model - len(excluded):
        return []
    generator = np.random.default_rng([plan.seed, layer])
    return [random_neurons(d_model, len(clipped), excluded, generator) for _ in range(plan.n_draws)]


def _dimension_rows(of_layer: LayerMoments, special_tokens: SpecialTokens, result: LayerMeasures) -> Rows:
    profile = of_layer.profiles[special_tokens]
    columns = {
        "mean": profile.mean, "sd": np.sqrt(profile.variance), "cosine_share": result.cosine_shares.numpy(),
        "argmin_share": profile.argmin_share, "argmax_share": profile.argmax_share,
        "beyond_share": profile.beyond_share,
    }  # fmt: skip
    return [
        {"layer": of_layer.layer, "neuron": k} | {name: float(values[k]) for name, values in columns.items()}
        for k in range(len(profile.mean))
    ]


def _explained(
    store: HiddenStateSource, layer: int, regressors: Regressors, named: Sequence[int], dead: Sequence[int], seed: int
) -> list[dict[str, Any]]:
    """Return the variance explained of a layer's outliers, and for comparison of up to ten other neurons.

    Dead neurons, which may be outliers by their LayerNorm, are left out: their variance is only rounding.
    """
    named = [neuron for neuron in named if neuron not in dead]
    if not named:
        return []
    d_model, tokens, out = store.plan.d_model, regressors.tokens, [*named, *dead]
    others = random_neurons(d_model, min(RANDOM, d_model - len(out)), out, np.random.default_rng([seed, layer, 1]))
    neurons, columns = [*named, *others], regressors.columns
    without = {name: shard_rows for name, shard_rows in columns.items() if name != "special"}
    accumulators = {
        "exclude": ExplainedAccumulator(without, len(neurons)), "include": ExplainedAccumulator(columns, len(neurons)),
    }  # fmt: skip
    for shard in store.plan.shards:
        shard_rows = shard.rows(store.tokens)
        values = store.read(layer, shard.index)[:, torch.tensor(neurons)].float().numpy()
        x, plain, is_counted = regressors.of(shard_rows), ~tokens.special[shard_rows], tokens.included[shard_rows]
        accumulators["include"].update(x[is_counted], values[is_counted])
        accumulators["exclude"].update(x[plain], values[plain])
    kinds = ["outlier"] * len(named) + ["random"] * len(others)
    return [
        row
        for which, accumulator in accumulators.items()
        if accumulator.n_tokens
        for row in explained_rows(layer, neurons, kinds, which, accumulator.result(), accumulator.n_tokens)
    ]


def study_output(surveyed: LayerSurvey, inside: Mapping[str, Rows], stores: Sequence[ActivationStore]) -> Measurements:
    """Return tables, transforms and results; `stores` are measured first, fitted on last."""
    optional = {schema.name for schema in SCHEMAS if schema.optional}
    tables = {
        name: rows for name, rows in {**surveyed.tables, **inside}.items() if rows or name not in optional
    }  # fmt: skip

    def write(folder: Path) -> list[Path]:
        paths = []
        (folder / "transforms").mkdir()
        for kind, by_layer in surveyed.transforms.items():
            paths.append(folder / "transforms" / f"{kind}.safetensors")
            transforms.save(paths[-1], by_layer)
        return paths

    results = {
        "cache": {"measured": origin(stores[0]), "fitted": origin(stores[-1])},
        "clipped": {str(layer): neurons for layer, neurons in surveyed.clipped.items()},
        "not_applicable": surveyed.not_applicable,
    }
    return Measurements(tables, results, _curves(tables["geometry"]), write=write)


def _curves(rows: Rows) -> Rows:
    """Return a row per layer for W&B's curves; of the many transforms, one measure each."""

    def cells(row: Row) -> Row:
        transform, measure = row["transform"], row["measure"]
        if transform == "none":
            ends = {f"{measure}_{end}": row[end] for end in ("low", "high") if row.get(end) is not None}
            return {measure: row["value"], **ends}
        return {f"{transform}_{measure}": row["value"]} if measure == "mean_cosine" else {}

    return curve_points(rows, cells)
