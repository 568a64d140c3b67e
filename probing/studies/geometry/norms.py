"""Outliers inside a model: their terms in norms, their path along the residual stream, and norms that are changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.errors import UserError
from probing.interventions.forward import padded_batches
from probing.interventions.model_output import BATCH_TOKENS, PROBE_TOKENS, SentenceSums, draw_sentences
from probing.interventions.outliers import (
    Condition,
    OutlierModel,
    Where,
    condition_rows,
    effect_rows,
    read_under,
    with_random,
)
from probing.interventions.parameters import ordinary_row, replaced
from probing.interventions.passes import Rows
from probing.models import ModelSource, load_encoder, load_tokenizer
from probing.models.anatomy import Anatomy, examine, hidden_states
from probing.models.residual_stream import (
    BlockNorm,
    HookPoint,
    StreamSite,
    UnknownParts,
    find_norms,
    find_parameters,
    find_path,
    watching,
)
from probing.probes.outliers import is_included
from probing.probes.transforms import random_neurons
from probing.runtime.progress import note, stage
from probing.statistics.moments import MEAN_DEVIATIONS, deviations_of
from probing.studies.geometry.smoothing_bound import smoothing
from probing.studies.geometry.tables import FIRST_ROW
from probing.text.tokens import Tokens

# What an outlier may come from, in the order in which ties are broken.
SOURCES = ("input", "gain", "bias")

Array = NDArray[np.float64]


# Splits the vectors of tokens at a point of a forward pass, shape (n, width), into parts whose means are taken.
Parts = Callable[[Tensor], Mapping[str, Tensor]]


def means_at(
    encoder: nn.Module,
    anatomy: Anatomy,
    parts: Mapping[HookPoint, Parts],
    tokens: Tokens,
    groups: Mapping[str, NDArray[np.bool_]],
    pad_token_id: int,
) -> dict[str, dict[tuple[HookPoint, str], Array]]:
    """Run a model in evaluation mode; return the mean of each part, float64, over each group, a mask (n_tokens,)."""
    device = next(encoder.parameters()).device
    sums: dict[str, dict[tuple[HookPoint, str], Tensor]] = {name: {} for name in groups}
    batch_masks: dict[str, Tensor] = {}
    shape: Sequence[int] = ()

    def see(tap: HookPoint, value: Tensor) -> None:
        if tap not in parts:
            return
        rows = value.expand(*shape, value.shape[-1])  # positions are the same in all sentences
        for name, mask in batch_masks.items():
            for part, vectors in parts[tap](rows[mask.to(rows.device)].cpu().double()).items():
                added = vectors.sum(0)
                sums[name][tap, part] = sums[name].get((tap, part), torch.zeros_like(added)) + added

    with torch.inference_mode(), watching(encoder, anatomy, [tap.module for tap in parts], see):
        for batch in padded_batches(tokens, BATCH_TOKENS, pad_token_id, anatomy.padding_is_neutral):
            shape = batch.mask.shape
            batch_masks = {name: batch.mask & torch.from_numpy(group)[batch.rows] for name, group in groups.items()}
            encoder(**batch.inputs_on(device))
    n = {name: max(1, int(group.sum())) for name, group in groups.items()}
    return {name: {part: (total / n[name]).numpy() for part, total in of.items()} for name, of in sums.items()}


@dataclass(frozen=True)
class NormMeans:
    """Means of a norm over tokens, float64, of shape (d_model,) but for `centring`.

    `scaled` is the mean of x / sigma, and `centring` the mean of m / sigma.
    """

    of: BlockNorm
    output: Array
    scaled: Array
    centring: float
    n_tokens: int

    @property
    def standardised(self) -> Array:
        """Mean of (x - m) / sigma, shape (d_model,)."""
        return self.scaled - self.centring


def norm_means(
    encoder: nn.Module,
    anatomy: Anatomy,
    norms: Sequence[BlockNorm],
    tokens: Tokens,
    counts: NDArray[np.bool_],
    pad_token_id: int,
) -> list[NormMeans]:
    """Run a model in evaluation mode and float32; return means of its norms over a mask of tokens, (n_tokens,)."""

    def split(norm: BlockNorm) -> Parts:
        return lambda vectors: dict(zip(("scaled", "centring"), norm.norm.parts(vectors), strict=True))

    outputs = {norm.tap: replace(norm.tap, side="made") for norm in norms}
    parts = {norm.tap: split(norm) for norm in norms}
    parts |= {output: lambda vectors: {"output": vectors} for output in outputs.values()}
    means = means_at(encoder, anatomy, parts, tokens, {"": counts}, pad_token_id)[""]
    return [
        NormMeans(
            norm, means[outputs[norm.tap], "output"], means[norm.tap, "scaled"],
            float(means[norm.tap, "centring"].item()), int(counts.sum()),
        )
        for norm in norms
    ]  # fmt: skip


def norm_rows(means: Sequence[NormMeans], outliers: Sequence[int], others: Sequence[int]) -> list[dict[str, Any]]:
    """Return rows of `norms.csv`: terms of outliers and `others` in each norm, with averages over all but outliers."""
    kinds = [(neuron, "outlier") for neuron in outliers] + [(neuron, "random") for neuron in others]
    return [_row(norm, neuron, kind, outliers) for norm in means for neuron, kind in kinds]


def _row(means: NormMeans, k: int, kind: str, outliers: Sequence[int]) -> dict[str, Any]:
    norm, standardised = means.of.norm, float(means.standardised[k])
    gains, biases = norm.gain.numpy(), norm.bias.numpy()
    gain, bias = (float(np.delete(values, list(outliers)).mean()) for values in (gains, biases))
    parts = {
        "by_input": gain * standardised,
        "by_gain": float(gains[k] - gain) * standardised,
        "by_bias": float(biases[k]) - bias,
    }
    return {
        "layer": means.of.layer, "norm": means.of.number, "module": means.of.name, "neuron": k, "kind": kind,
        "mean": float(means.output[k]), "deviations": float(deviations_of(means.output)[k]),
        "gain": float(gains[k]), "bias": float(biases[k]), "others_gain": gain, "others_bias": bias,
        "standardised": standardised, "by_scaled_input": float(gains[k] * means.scaled[k]),
        "by_centring": float(-gains[k] * means.centring), **parts, "by_others_bias": bias,
        "largest": max(SOURCES, key=lambda name: abs(parts[f"by_{name}"])), "n_tokens": means.n_tokens,
    }  # fmt: skip


FIRST, WORDS = "first", "words"


def groups_of(tokens: Tokens) -> dict[str, NDArray[np.bool_]]:
    """Return masks of the first tokens of sentences, and of words, which are neither first nor special."""
    first = np.zeros(tokens.n_tokens, dtype=np.bool_)
    first[tokens.offsets[:-1]] = True
    return {FIRST: first, WORDS: ~first & ~tokens.special}


def path_means(
    encoder: nn.Module,
    anatomy: Anatomy,
    sites: Sequence[StreamSite],
    tokens: Tokens,
    groups: Mapping[str, NDArray[np.bool_]],
    pad_token_id: int,
) -> dict[str, Array]:
    """Run a model and return the mean vector at each site, (n_sites, d_model), for each group, a mask (n_tokens,)."""
    parts: dict[HookPoint, Parts] = {site.tap: lambda vectors: {"value": vectors} for site in sites}
    means = means_at(encoder, anatomy, parts, tokens, groups, pad_token_id)
    return {name: np.stack([of[site.tap, "value"] for site in sites]) for name, of in means.items()}


def path_rows(
    sites: Sequence[StreamSite],
    means: Mapping[str, Array],
    groups: Mapping[str, NDArray[np.bool_]],
    kinds: Mapping[int, str],
) -> list[dict[str, Any]]:
    """Return rows of `path.csv`, from the results of `path_means` and the kind of each neuron."""
    rows = []
    for name, vectors in means.items():
        n_tokens = int(groups[name].sum())
        for step, (site, vector) in enumerate(zip(sites, vectors if n_tokens else (), strict=bool(n_tokens))):
            z = deviations_of(vector)
            rows += [
                {
                    "step": step, "layer": site.layer, "site": site.name, "term": "yes" if site.is_term else "no",
                    "tokens": name, "neuron": neuron, "kind": kind, "value": float(vector[neuron]),
                    "deviations": float(z[neuron]), "n_tokens": n_tokens,
                }
                for neuron, kind in kinds.items()
            ]  # fmt: skip
    return rows


# --------------------------------------------------------------------------------------------------------------------
# What changes if the outliers have gains and biases, or entries of the first position's row, like other neurons.
# --------------------------------------------------------------------------------------------------------------------

# Numbers of the norms of a block that are changed.
PLACES: Mapping[Where, tuple[int, ...]] = {"first": (1,), "second": (2,), "both": (1, 2)}


class LayerDeviations(NamedTuple):
    """Results of a model in its present state: last hidden states, shape (n_tokens, d_model), float32, and deviations.

    The deviations are of the mean of each neuron, in sd of the layer's neurons, shape (n_layers + 1, d_model).
    """

    last: Tensor
    deviations: Array


@torch.inference_mode()
def layer_deviations(
    encoder: nn.Module, anatomy: Anatomy, tokens: Tokens, counts: NDArray[np.bool_], pad_token_id: int
) -> LayerDeviations:
    """Run a model on sentences, with means over the tokens in the mask `counts`, shape (n_tokens,)."""
    layers, device = range(anatomy.n_layers + 1), next(encoder.parameters()).device
    last, sums = torch.empty(0), torch.empty(0)
    for batch in padded_batches(tokens, BATCH_TOKENS, pad_token_id, anatomy.padding_is_neutral):
        states = hidden_states(encoder, anatomy, layers, **batch.inputs_on(device))
        if not last.numel():
            d_model = states[0].shape[-1]
            last, sums = torch.empty(tokens.n_tokens, d_model), torch.zeros(len(layers), d_model, dtype=torch.float64)
        is_counted = batch.mask & torch.from_numpy(counts)[batch.rows]
        for layer, state in states.items():
            sums[layer] += state.cpu()[is_counted].double().sum(0)
        last[batch.rows[batch.mask]] = states[anatomy.n_layers].float().cpu()[batch.mask]
    return LayerDeviations(last, np.stack([deviations_of(mean) for mean in (sums / counts.sum()).numpy()]))


def chosen_conditions(outliers: Sequence[int], d_model: int, n_draws: int, seed: int) -> list[Condition]:
    """Return the conditions: the outliers and as many random others, in each choice of norms."""
    return with_random(PLACES, outliers, d_model, n_draws, np.random.default_rng([seed, 2]))


def change_norms(
    norms: Mapping[int, Sequence[nn.Module]],
    outliers: Mapping[int, Sequence[int]],
    chosen: Sequence[Condition],
    read: Callable[[], tuple[SentenceSums, Array]],
    n_tokens: int,
) -> list[dict[str, Any]]:
    """Measure a model when it is intact and under each condition; return rows of `norm_changes.csv`.

    For each layer and each of its outliers, rows with the measure `deviations` have the distance of the neuron's mean
    from the mean of all neurons, in standard deviations, and whether it is an `outlier` (more than 5); `percentile` is
    the percentage of random draws that reduce this distance less, and `p_value` is by rank. All other rows are as in
    `interventions.csv`. `norms` has the modules of the first and of the second norm of all blocks, by number; `read`
    measures the model in its present state, and also returns `LayerDeviations.deviations`, means over `n_tokens`.
    """
    named = {neuron for neurons in outliers.values() for neuron in neurons}

    def ordinary(condition: Condition) -> AbstractContextManager[None]:
        modules = [module for number in PLACES[condition.where] for module in norms[number]]
        return replaced(modules, condition.neurons, _mean_of_others({*named, *condition.neurons}))

    def words(condition: Condition) -> str:
        where = "both norms" if condition.where == "both" else f"the {condition.where} norm"
        return f"{condition.name} made ordinary in {where}"

    note("the intact model")
    intact, before = read()
    reads = read_under(chosen, ordinary, read, words)
    rows = deviation_rows(outliers, before, {condition: values for condition, (_, values) in reads.items()}, n_tokens)
    return rows + effect_rows(intact, {condition: sums for condition, (sums, _) in reads.items()})


def _mean_of_others(neurons: set[int]) -> Callable[[Tensor], float]:
    """Return a function that averages a parameter over all but these neurons."""

    def mean(parameter: Tensor) -> float:
        others = torch.ones(len(parameter), dtype=torch.bool)
        others[sorted(neurons)] = False
        return float(parameter.cpu()[others].double().mean())

    return mean


def deviation_rows(
    outliers: Mapping[int, Sequence[int]], before: Array, after: Mapping[Condition, Array], n_tokens: int
) -> list[dict[str, Any]]:
    """Return the rows of the distance of each layer's outliers from the other neurons."""
    rows: list[dict[str, Any]] = []
    for layer, neuron in [(layer, neuron) for layer, neurons in sorted(outliers.items()) for neuron in neurons]:
        intact = float(before[layer, neuron])
        about = {"measure": "deviations", "layer": layer, "neuron": neuron, "n_tokens": n_tokens}
        rows.append(about | {"where": "", "kind": "intact"} | _deviation(intact))
        values = {condition: float(of[layer, neuron]) for condition, of in after.items()}
        of = {condition: {**_deviation(value), "effect": value - intact} for condition, value in values.items()}
        rows += condition_rows(about, of, {condition: abs(value) for condition, value in values.items()}, harm=-1)
    return rows


def _deviation(value: float) -> dict[str, Any]:
    return {"value": value, "outlier": "yes" if abs(value) > MEAN_DEVIATIONS else "no"}


def change_first_row(
    table: nn.Module,
    first_row: int,
    outliers: Mapping[int, Sequence[int]],
    read: Callable[[], Array],
    n_draws: int,
    seed: int,
    n_tokens: int,
) -> list[dict[str, Any]]:
    """Return rows of `first_row.csv`: distances of outliers in the intact model, and without the first row's outliers.

    The columns are among the columns of `norm_changes.csv`. `read` returns the distance of each neuron's mean from the
    others' in each layer of the model in its present state, shape (n_layers + 1, d_model), in standard deviations.
    `first_row` is the row of the first position in `table`; there are `n_draws` draws of as many random neurons.
    """
    named = sorted({neuron for neurons in outliers.values() for neuron in neurons})
    note("the intact model")
    before = read()
    after = read_under(
        with_random(("first_row",), named, before.shape[1], n_draws, np.random.default_rng([seed, 4])),
        lambda condition: ordinary_row(table, first_row, condition.neurons),
        read,
        lambda condition: f"the first position's row without its {condition.name}",
    )
    rows = deviation_rows(outliers, before, after, n_tokens)
    return [{name: cell for name, cell in row.items() if name in FIRST_ROW.types} for row in rows]


# --------------------------------------------------------------------------------------------------------------------
# The measurements that `--norms`, `--path` and `--smoothing_bound` add.
# --------------------------------------------------------------------------------------------------------------------

# Number of other neurons that are followed for comparison with the outliers.
RANDOM = 10
# Approximate number of tokens over which the means of layers are taken while a row of the position table is changed.
ROW_TOKENS = 5_000


# What the options measure, and the function that identifies it in a model.
PARTS: Mapping[str, tuple[str, Callable[[nn.Module, Anatomy, int], Any]]] = {
    "--norms": ("the norms of its blocks", find_norms), "--path": ("the terms of its residual stream", find_path),
}  # fmt: skip


def parts_of(option: str, encoder: Any, anatomy: Anatomy, pad_token_id: int, name: str) -> Any:
    """Return the parts of a model that an option measures; raise a `UserError` if they cannot be identified."""
    what, find = PARTS[option]
    try:
        return find(encoder, anatomy, pad_token_id)
    except UnknownParts as reason:
        raise UserError(
            f"`{option}`: {what} cannot be told in {name} ({encoder.config.model_type}): {reason}; "
            "leave the option out, or choose another model."
        ) from None


def check(source: ModelSource, options: Sequence[str]) -> None:
    """Raise a `UserError` if what some of the options `--norms` and `--path` measure cannot be identified."""
    if not options:
        return
    # The trained weights are loaded even if a run uses random ones: the architecture, which decides, is the same.
    encoder, pad_token_id = load_encoder(source), load_tokenizer(source).pad_token_id or 0
    anatomy = examine(encoder, pad_token_id, source.name)
    for option in options:
        parts_of(option, encoder, anatomy, pad_token_id, source.name)


def measure_inside(folder: Path, of: OutlierModel, inside: Mapping[str, bool]) -> dict[str, Rows]:
    """Run the measurements in `inside`, and return tables' rows by name; sentences' terms are written to `folder`."""
    tables: dict[str, Rows] = {}
    if inside["smoothing"]:
        with stage("bound of smoothing"):
            tables["smoothing"] = smoothing(folder, of)
    if inside["norms"]:
        with stage("terms of the norms"):
            tables["norms"], tables["norm_changes"] = measure_norms(of)
    if inside["path"]:
        with stage("path of outliers through the blocks"):
            tables["path"], tables["first_row"] = measure_path(of), measure_first_row(of)
    return tables


def measure_norms(of: OutlierModel) -> tuple[Rows, Rows]:
    """Return rows of `norms.csv` and `norm_changes.csv`; empty if there are no outliers, or too many.

    Raises:
        UserError: If the norms cannot be identified, or there are too few sentences for a position probe.
    """
    if not (named := of.neurons):
        of.say("--norms: no outlier dimension was found above the embeddings, so there is none to split")
        return [], []
    model, encoder = of.with_head()
    anatomy, pad_token_id = examine(encoder, of.pad_token_id), of.pad_token_id
    norms: list[BlockNorm] = parts_of("--norms", encoder, anatomy, pad_token_id, of.source.name)
    d_model = len(norms[0].norm.gain)
    if 2 * len(named) > d_model:
        of.say(f"--norms does not apply: the {len(named)} outliers are more than half of the neurons")
        return [], []
    tokens, sentences = draw_sentences(of.store.tokens, PROBE_TOKENS, of.seed)
    counts = is_included(tokens, of.special_tokens)
    means = norm_means(encoder, anatomy, norms, tokens, counts, pad_token_id)
    terms = norm_rows(means, named, _others(d_model, named, of.seed))
    intact = layer_deviations(encoder, anatomy, tokens, counts, pad_token_id)
    position = of.positions(lambda: intact.last, tokens, sentences, "--norms")
    words = of.masked_words(model, encoder)

    def read() -> tuple[SentenceSums, Array]:
        changed = layer_deviations(encoder, anatomy, tokens, counts, pad_token_id)
        sums = position.of(changed.last)
        for of_words in words([()]) if words else ():
            sums = SentenceSums(sums.sums | of_words.sums, sums.n_tokens | of_words.n_tokens)
        return sums, changed.deviations

    modules = {
        n: [encoder.get_submodule(layer_norm.name) for layer_norm in norms if layer_norm.number == n]
        for n in PLACES["both"]
    }
    chosen = chosen_conditions(named, d_model, of.n_draws, of.seed)
    return terms, change_norms(modules, of.changed, chosen, read, int(counts.sum()))


def measure_path(of: OutlierModel) -> Rows:
    """Return rows of `path.csv`: the outliers of layers and of the position table's first row; empty without outliers.

    Raises:
        UserError: If the terms of the residual stream cannot be identified.
    """
    encoder, pad_token_id = of.encoder, of.pad_token_id
    anatomy = examine(encoder, pad_token_id)
    sites: list[StreamSite] = parts_of("--path", encoder, anatomy, pad_token_id, of.source.name)
    tokens, _ = draw_sentences(of.store.tokens, PROBE_TOKENS, of.seed)
    groups = groups_of(tokens)
    means = path_means(encoder, anatomy, sites, tokens, groups, pad_token_id)
    kinds = _kinds(sites, means[FIRST], of.outliers)
    if not kinds:
        of.say("--path: neither the first position nor any layer has an outlier to follow")
        return []
    others = _others(means[FIRST].shape[1], list(kinds), of.seed)
    return path_rows(sites, means, groups, {**kinds, **dict.fromkeys(others, "random")})


def measure_first_row(of: OutlierModel) -> Rows:
    """Return rows of `first_row.csv`, of outliers without the first row's ones; empty without outliers or table."""
    outliers, named = of.changed, of.neurons
    encoder, pad_token_id = of.encoder, of.pad_token_id
    anatomy = examine(encoder, pad_token_id)
    parameters, table = find_parameters(encoder, anatomy), anatomy.position_table
    if not named or table is None or parameters.position_table is None:
        return []
    if 2 * len(named) > parameters.position_table.shape[1]:
        return []
    tokens, _ = draw_sentences(of.store.tokens, ROW_TOKENS, of.seed)
    counts = is_included(tokens, of.special_tokens)
    return change_first_row(
        table, parameters.first_row, outliers,
        lambda: layer_deviations(encoder, anatomy, tokens, counts, pad_token_id).deviations,
        of.n_draws, of.seed, int(counts.sum()),
    )  # fmt: skip


def _kinds(
    sites: Sequence[StreamSite], first: NDArray[np.float64], outliers: Mapping[int, Sequence[int]]
) -> dict[int, str]:
    """Return the neurons that are followed, ascending, each with the kind of its outlier."""
    rows = [first[i] for i, site in enumerate(sites) if site.name == "position"]
    of_row = {int(k) for row in rows for k in np.flatnonzero(np.abs(deviations_of(row)) > MEAN_DEVIATIONS)}
    of_layers = {neuron for neurons in outliers.values() for neuron in neurons}
    both = {(True, True): "both", (True, False): "first_row", (False, True): "layers"}
    return {k: both[k in of_row, k in of_layers] for k in sorted(of_row | of_layers)}


def _others(d_model: int, named: Sequence[int], seed: int) -> list[int]:
    n = min(RANDOM, d_model - len(named))
    return random_neurons(d_model, n, named, np.random.default_rng([seed, 3]))
