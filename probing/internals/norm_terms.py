"""Terms of the outlier neurons in the outputs of a model's norms: h_k = gain_k (x_k - m) / sigma + bias_k.

The means of the terms over tokens are exact, and the four terms add up exactly to a neuron's mean output. If the neuron
had the mean gain and the mean bias of the other neurons, its mean output would be `by_input` + `by_others_bias`;
`by_gain` and `by_bias` are what its own gain and its own bias add. A neuron whose `by_input` is an outlier was already
one before the norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.tokens import Tokens
from probing.internals.readouts import BATCH_TOKENS, Batch, token_batches
from probing.models.anatomy import Anatomy
from probing.models.residual_stream import BlockNorm, Seen, Tap, watching
from probing.statistics.outliers import deviations_of

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
        wide = value[here.to(value.device)].double().cpu()
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
