"""Outliers along the residual stream: their terms in norms, and their path through every term to the last layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import ActivationStore
from probing.errors import UserError
from probing.interventions.forward import Padded, padded_batches
from probing.interventions.model_output import (
    BATCH_TOKENS,
    PROBE_TOKENS,
    SentenceSums,
    draw_sentences,
)
from probing.models import ModelSource, load_encoder, load_masked_lm, load_tokenizer
from probing.models.anatomy import Anatomy, examine
from probing.models.residual_stream import (
    BlockNorm,
    Seen,
    StreamSite,
    Tap,
    UnknownParts,
    find_norms,
    find_path,
    watching,
)
from probing.probes.transforms import random_neurons
from probing.runtime.progress import note, stage
from probing.statistics.moments import MEAN_DEVIATIONS, deviations_of
from probing.studies.geometry.inside.changed_norms import (
    PLACES,
    change_first_row,
    change_norms,
    chosen_conditions,
    find_parameters,
    interventions,
    masked_words,
    position_reader,
    see_layers,
    smoothing,
)
from probing.text import Corpus
from probing.text.tokens import Tokens

# What an outlier may come from, in the order in which ties are broken.
SOURCES = ("input", "gain", "bias")

Array = NDArray[np.float64]


def run_watched(
    encoder: nn.Module, anatomy: Anatomy, modules: Sequence[nn.Module], see: Seen, tokens: Tokens, pad_token_id: int
) -> Iterator[Padded]:
    """Run an encoder on sentences, showing tensors to `see`; yield each batch before its tensors are shown."""
    device = next(encoder.parameters()).device
    with torch.inference_mode(), watching(encoder, anatomy, modules, see):
        for batch in padded_batches(tokens, BATCH_TOKENS, pad_token_id, anatomy.padding_is_neutral):
            yield batch
            encoder(**batch.inputs_on(device))


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
    norm_at = {norm.tap: norm.norm for norm in norms}
    zeros = torch.zeros(norms[0].norm.gain.shape, dtype=torch.float64)
    sums: dict[tuple[Tap, str], Tensor] = {}
    is_counted = torch.empty(0, dtype=torch.bool)

    def see(tap: Tap, value: Tensor) -> None:
        wide = value[is_counted.to(value.device)].cpu().double()
        if tap.side == "made":
            sums[tap, "output"] = sums.get((tap, "output"), zeros) + wide.sum(0)
        elif tap in norm_at:
            for name, part in zip(("scaled", "centring"), norm_at[tap].parts(wide), strict=True):
                sums[tap, name] = sums.get((tap, name), torch.zeros(part.shape[-1], dtype=torch.float64)) + part.sum(0)

    modules = [norm.tap.module for norm in norms]
    for batch in run_watched(encoder, anatomy, modules, see, tokens, pad_token_id):
        is_counted = batch.mask & torch.from_numpy(counts)[batch.rows]
    n = int(counts.sum())
    return [
        NormMeans(
            norm,
            (sums[Tap(norm.tap.block, norm.tap.module, norm.tap.call, "made"), "output"] / n).numpy(),
            (sums[norm.tap, "scaled"] / n).numpy(),
            float(sums[norm.tap, "centring"] / n),
            n,
        )
        for norm in norms
    ]


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
    index = {site.tap: i for i, site in enumerate(sites)}
    sums: dict[str, dict[int, Tensor]] = {name: {} for name in groups}
    batch_masks: dict[str, Tensor] = {}
    shape = (0, 0)

    def see(tap: Tap, value: Tensor) -> None:
        if tap in index:
            rows = value.expand(*shape, value.shape[-1])  # positions are the same in all sentences
            for name, mask in batch_masks.items():
                added = rows[mask.to(rows.device)].cpu().double().sum(0)
                sums[name][index[tap]] = sums[name].get(index[tap], torch.zeros_like(added)) + added

    modules = [site.tap.module for site in sites]
    for batch in run_watched(encoder, anatomy, modules, see, tokens, pad_token_id):
        shape = tuple(batch.mask.shape)  # type: ignore[assignment]
        batch_masks = {
            name: batch.mask & torch.from_numpy(is_in_group)[batch.rows] for name, is_in_group in groups.items()
        }
    return {
        name: torch.stack([sums[name][i] for i in range(len(sites))]).numpy() / max(1, int(is_in_group.sum()))
        for name, is_in_group in groups.items()
    }


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
# What `geometry` measures by running the model; defined here: outliers in norms and along the residual stream.
# --------------------------------------------------------------------------------------------------------------------

Rows = list[dict[str, Any]]
Say = Callable[[str], None]

# Number of other neurons that are followed for comparison with the outliers.
RANDOM = 10
# Approximate number of tokens over which the means of layers are taken while a row of the position table is changed.
ROW_TOKENS = 5_000


@dataclass(frozen=True)
class StreamInputs:
    """A model whose norms and residual stream are measured, and its input text, sampled from the sentences of `store`.

    The encoder, in evaluation mode and float32, is unchanged afterwards. Outliers are by layer. `includes_special` is
    for means of hidden states. Without trained weights, the language-model head is not used.
    """

    source: ModelSource
    encoder: nn.Module
    tokenizer: Any
    store: ActivationStore
    corpus: Corpus
    outliers: Mapping[int, Sequence[int]]
    includes_special: bool
    is_trained: bool
    n_draws: int
    seed: int
    say: Say

    @property
    def pad_token_id(self) -> int:
        """The padding token id; 0 if the tokenizer has none."""
        return self.tokenizer.pad_token_id or 0

    def counts(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Return the mask of tokens in means of hidden states, shape (n_tokens,)."""
        return tokens.included if self.includes_special else ~tokens.special


@contextmanager
def identified(option: str, what: str, name: str, encoder: Any) -> Iterator[None]:
    """Raise a `UserError` that names the option if the parts that it measures cannot be identified in a model."""
    try:
        yield
    except UnknownParts as reason:
        raise UserError(
            f"`{option}`: {what} cannot be told in {name} ({encoder.config.model_type}): {reason}; "
            "leave the option out, or choose another model."
        ) from None


def norms_of(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int, name: str) -> list[BlockNorm]:
    """Return the norms of a model's blocks for `--norms`; raise a `UserError` if they cannot be identified."""
    with identified("--norms", "the norms of its blocks", name, encoder):
        return find_norms(encoder, anatomy, pad_token_id)


def path_of(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int, name: str) -> list[StreamSite]:
    """Return the sites of a model's residual stream for `--path`; raise a `UserError` if they cannot be identified."""
    with identified("--path", "the terms of its residual stream", name, encoder):
        return find_path(encoder, anatomy, pad_token_id)


def check(source: ModelSource, norms: bool, path: bool) -> None:
    """Raise a `UserError` if the norms or the terms of the residual stream are requested but cannot be identified."""
    if not norms and not path:
        return
    # The trained weights are loaded even if a run uses random ones: the architecture, which decides, is the same.
    encoder, pad_token_id = load_encoder(source), load_tokenizer(source).pad_token_id or 0
    anatomy = examine(encoder, pad_token_id, source.name)
    if norms:
        norms_of(encoder, anatomy, pad_token_id, source.name)
    if path:
        path_of(encoder, anatomy, pad_token_id, source.name)


def measure_inside(folder: Path, inputs: StreamInputs, inside: Mapping[str, bool]) -> dict[str, Rows]:
    """Run the measurements in `inside`, and return tables' rows by name; sentences' terms are written to `folder`."""
    of, tables = inputs, dict[str, Rows]()
    if inside["smoothing"]:
        with stage("bound of smoothing"):
            tables["smoothing"] = smoothing(folder, of.source.name, of.encoder, of.tokenizer, of.store, of.seed, of.say)
    if inside["interventions"]:
        with stage("interventions on outliers"):
            tables["interventions"] = interventions(
                of.source, of.encoder, of.tokenizer, of.store, of.corpus, of.outliers, of.is_trained,
                of.n_draws, of.seed, of.say,
            )  # fmt: skip
    if inside["norms"]:
        with stage("terms of the norms"):
            tables["norms"], tables["norm_changes"] = measure_norms(inputs)
    if inside["path"]:
        with stage("path of outliers through the blocks"):
            tables["path"], tables["first_row"] = measure_path(inputs), measure_first_row(inputs)
    return tables


def measure_norms(inputs: StreamInputs) -> tuple[Rows, Rows]:
    """Return rows of `norms.csv` and `norm_changes.csv`; empty if there are no outliers, or too many.

    Raises:
        UserError: If the norms cannot be identified, or there are too few sentences for a position probe.
    """
    outliers = {layer: list(neurons) for layer, neurons in inputs.outliers.items() if layer and neurons}
    named = sorted({neuron for neurons in outliers.values() for neuron in neurons})
    if not named:
        inputs.say("--norms: no outlier dimension was found above the embeddings, so there is none to split")
        return [], []
    source, encoder = inputs.source, inputs.encoder
    has_mask = inputs.is_trained and inputs.tokenizer.mask_token_id is not None
    model = load_masked_lm(source) if has_mask else None
    if model is not None:
        encoder = model.base_model  # type: ignore[assignment]
    anatomy = examine(encoder, inputs.pad_token_id)
    norms = norms_of(encoder, anatomy, inputs.pad_token_id, source.name)
    d_model = len(norms[0].norm.gain)
    if 2 * len(named) > d_model:
        inputs.say(f"--norms does not apply: the {len(named)} outliers are more than half of the neurons")
        return [], []
    tokens, sentences = draw_sentences(inputs.store.tokens, PROBE_TOKENS, inputs.seed)
    counts = inputs.counts(tokens)
    means = norm_means(encoder, anatomy, norms, tokens, counts, inputs.pad_token_id)
    terms = norm_rows(means, named, _others(d_model, named, inputs.seed))
    intact = see_layers(encoder, anatomy, tokens, counts, inputs.pad_token_id)
    position = position_reader(
        lambda: intact.last, tokens, inputs.corpus.subset(sentences), "--norms", source.name, inputs.seed
    )
    words = masked_words(source, model, encoder, inputs.tokenizer, inputs.store, inputs.seed, inputs.say)

    def read() -> tuple[SentenceSums, NDArray[np.float64]]:
        seen = see_layers(encoder, anatomy, tokens, counts, inputs.pad_token_id)
        sums = position.of(seen.last)
        for of_words in words([()]) if words else ():
            sums = SentenceSums(sums.sums | of_words.sums, sums.n_tokens | of_words.n_tokens)
        return sums, seen.deviations

    modules = {
        n: [encoder.get_submodule(layer_norm.name) for layer_norm in norms if layer_norm.number == n]
        for n in PLACES["both"]
    }
    chosen = chosen_conditions(named, d_model, inputs.n_draws, inputs.seed)
    changes = change_norms(modules, outliers, chosen, read, int(counts.sum()), note)
    return terms, changes


def measure_path(inputs: StreamInputs) -> Rows:
    """Return rows of `path.csv`: the outliers of layers and of the position table's first row; empty without outliers.

    Raises:
        UserError: If the terms of the residual stream cannot be identified.
    """
    encoder, pad_token_id = inputs.encoder, inputs.pad_token_id
    anatomy = examine(encoder, pad_token_id)
    sites = path_of(encoder, anatomy, pad_token_id, inputs.source.name)
    tokens, _ = draw_sentences(inputs.store.tokens, PROBE_TOKENS, inputs.seed)
    groups = groups_of(tokens)
    means = path_means(encoder, anatomy, sites, tokens, groups, pad_token_id)
    kinds = _kinds(sites, means[FIRST], inputs.outliers)
    if not kinds:
        inputs.say("--path: neither the first position nor any layer has an outlier to follow")
        return []
    others = _others(means[FIRST].shape[1], list(kinds), inputs.seed)
    return path_rows(sites, means, groups, {**kinds, **dict.fromkeys(others, "random")})


def measure_first_row(inputs: StreamInputs) -> Rows:
    """Return rows of `first_row.csv`, of outliers without the first row's ones; empty without outliers or table."""
    outliers = {layer: list(neurons) for layer, neurons in inputs.outliers.items() if layer and neurons}
    named = {neuron for neurons in outliers.values() for neuron in neurons}
    encoder, pad_token_id = inputs.encoder, inputs.pad_token_id
    anatomy = examine(encoder, pad_token_id)
    parameters, table = find_parameters(encoder, anatomy), anatomy.position_table
    if not named or table is None or parameters.position_table is None:
        return []
    if 2 * len(named) > parameters.position_table.shape[1]:
        return []
    tokens, _ = draw_sentences(inputs.store.tokens, ROW_TOKENS, inputs.seed)
    counts = inputs.counts(tokens)
    return change_first_row(
        table, parameters.first_row, outliers,
        lambda: see_layers(encoder, anatomy, tokens, counts, pad_token_id).deviations,
        inputs.n_draws, inputs.seed, int(counts.sum()), note,
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
