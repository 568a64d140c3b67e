"""Outliers along the residual stream: their terms in norms, and their path through every term to the last layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.tokens import Tokens
from probing.models.anatomy import Anatomy
from probing.models.residual_stream import BlockNorm, Seen, Site, Tap, watching
from probing.readouts.model_output import BATCH_TOKENS, Batch, token_batches
from probing.statistics.moments import deviations_of

# What an outlier may come from, in the order in which ties are broken.
SOURCES = ("input", "gain", "bias")

Array = NDArray[np.float64]


def run_watched(
    encoder: nn.Module, anatomy: Anatomy, modules: Sequence[nn.Module], see: Seen, tokens: Tokens, pad_token_id: int
) -> Iterator[Batch]:
    """Run an encoder on sentences, showing tensors of modules; yield each batch before it is run.

    Args:
        encoder: The encoder.
        anatomy: Its structure.
        modules: The modules.
        see: Called with each tensor, which belongs to the batch that was yielded last.
        tokens: The token table of the sentences.
        pad_token_id: Token id that fills a batch.
    """
    device = next(encoder.parameters()).device
    with torch.inference_mode(), watching(encoder, anatomy, modules, see):
        for batch in token_batches(tokens, pad_token_id, BATCH_TOKENS, anatomy.padding_is_neutral):
            yield batch
            encoder(input_ids=batch.input_ids.to(device), attention_mask=batch.mask.long().to(device))


@dataclass(frozen=True)
class NormMeans:
    """Means of a norm over tokens, float64.

    Args:
        of: The norm.
        output: Mean of its output, shape (d_model,).
        scaled: Mean of x / sigma, shape (d_model,).
        centring: Mean of m / sigma.
        n_tokens: Number of tokens.
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
    """Run a model and return the means of its norms.

    Args:
        encoder: The model, in evaluation mode and in float32.
        anatomy: Its structure.
        norms: The norms.
        tokens: The token table of the sentences.
        counts: Which tokens count, shape (n_tokens,).
        pad_token_id: Token id that fills a batch.
    """
    norm_at = {one.tap: one.norm for one in norms}
    zeros = torch.zeros(norms[0].norm.gain.shape, dtype=torch.float64)
    sums: dict[tuple[Tap, str], Tensor] = {}
    here = torch.empty(0, dtype=torch.bool)

    def see(tap: Tap, value: Tensor) -> None:
        wide = value[here.to(value.device)].cpu().double()
        if tap.side == "made":
            sums[tap, "output"] = sums.get((tap, "output"), zeros) + wide.sum(0)
        elif tap in norm_at:
            for name, part in zip(("scaled", "centring"), norm_at[tap].parts(wide), strict=True):
                sums[tap, name] = sums.get((tap, name), torch.zeros(part.shape[-1], dtype=torch.float64)) + part.sum(0)

    modules = [one.tap.module for one in norms]
    for batch in run_watched(encoder, anatomy, modules, see, tokens, pad_token_id):
        here = batch.mask & torch.from_numpy(counts)[batch.rows]
    n = int(counts.sum())
    return [
        NormMeans(
            one,
            (sums[Tap(one.tap.block, one.tap.module, one.tap.call, "made"), "output"] / n).numpy(),
            (sums[one.tap, "scaled"] / n).numpy(),
            float(sums[one.tap, "centring"] / n),
            n,
        )
        for one in norms
    ]


def norm_rows(means: Sequence[NormMeans], outliers: Sequence[int], others: Sequence[int]) -> list[dict[str, Any]]:
    """Return rows of `norms.csv`: the terms of outliers, and of other neurons for comparison, in each norm.

    Args:
        means: Means of the norms.
        outliers: The outlier neurons; the gain and the bias of the others are averages over all but these.
        others: Other neurons.
    """
    kinds = [(neuron, "outlier") for neuron in outliers] + [(neuron, "random") for neuron in others]
    return [_row(one, neuron, kind, outliers) for one in means for neuron, kind in kinds]


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
    """Return which tokens are the first of their sentences, and which are words: neither first nor special."""
    first = np.zeros(tokens.n_tokens, dtype=np.bool_)
    first[tokens.offsets[:-1]] = True
    return {FIRST: first, WORDS: ~first & ~tokens.special}


def path_means(
    encoder: nn.Module,
    anatomy: Anatomy,
    sites: Sequence[Site],
    tokens: Tokens,
    groups: Mapping[str, NDArray[np.bool_]],
    pad_token_id: int,
) -> dict[str, Array]:
    """Run a model and return the mean vector at each site, shape (n_sites, d_model), for each group of tokens.

    Args:
        encoder: The model, in evaluation mode and in float32.
        anatomy: Its structure.
        sites: The sites.
        tokens: The token table of the sentences.
        groups: Which tokens each group has, shape (n_tokens,).
        pad_token_id: Token id that fills a batch.
    """
    index = {site.tap: i for i, site in enumerate(sites)}
    sums: dict[str, dict[int, Tensor]] = {name: {} for name in groups}
    here: dict[str, Tensor] = {}
    shape = (0, 0)

    def see(tap: Tap, value: Tensor) -> None:
        if tap in index:
            rows = value.expand(*shape, value.shape[-1])  # positions are the same in all sentences
            for name, those in here.items():
                added = rows[those.to(rows.device)].cpu().double().sum(0)
                sums[name][index[tap]] = sums[name].get(index[tap], torch.zeros_like(added)) + added

    modules = [site.tap.module for site in sites]
    for batch in run_watched(encoder, anatomy, modules, see, tokens, pad_token_id):
        shape = tuple(batch.mask.shape)  # type: ignore[assignment]
        here = {name: batch.mask & torch.from_numpy(those)[batch.rows] for name, those in groups.items()}
    return {
        name: torch.stack([sums[name][i] for i in range(len(sites))]).numpy() / max(1, int(those.sum()))
        for name, those in groups.items()
    }


def path_rows(
    sites: Sequence[Site],
    means: Mapping[str, Array],
    groups: Mapping[str, NDArray[np.bool_]],
    kinds: Mapping[int, str],
) -> list[dict[str, Any]]:
    """Return rows of `path.csv`.

    Args:
        sites: The sites, in order.
        means: Mean vectors, as `path_means` returns them.
        groups: Which tokens each group has.
        kinds: Kind of each neuron.
    """
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
