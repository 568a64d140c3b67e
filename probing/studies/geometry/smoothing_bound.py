"""A bound on how far apart a post-LN block can keep the tokens of a sentence: Theorem 2 of Shi et al. (2022).

(arXiv 2202.08625.) The distance of n tokens to the nearest matrix with n equal rows, d_M(H) = |(I - J) H|_F with
J = e e^T / n, satisfies (Lemma 1)

    d_M(H W) <= s d_M(H), s the largest singular value of W,
    d_M(A H) <= sqrt(lambda) d_M(H), lambda the largest eigenvalue of A^T (I - J) A, A an attention matrix,
    d_M(act(H)) <= c d_M(H), c the largest slope of the activation function, and d_M(G + H) <= d_M(G) + d_M(H),
    d_M(LN(H)) <= max|gamma| / sigma d_M(H), sigma the least standard deviation among the tokens entering LN.

Biases are equal rows and change nothing. A post-LN block with h heads therefore has d_M(out) <= v d_M(in) with

    v = (1 + c s_1 s_2) (1 + sum_k sqrt(lambda_k) s_k) max|gamma_1| max|gamma_2| / (sigma_1 sigma_2),

s_k the largest singular value of W_V W_O of head k, s_1 and s_2 of the feed-forward matrices: this is
`bound_per_matrix`. The paper uses a single s and lambda, the largest of all matrices and heads, and omits the gains and
the slope of GELU (1.129):

    v = (1 + s^2) (1 + sqrt(lambda) h s) / (sigma_1 sigma_2): `bound_published`.

With gains above 1, a model can exceed this value; with gains and slope included, the bound holds: `bound`. (The paper's
I - e e^T is no projection; read I - J.) For s -> 0 and gains of 1, v < 1 means sigma_1 sigma_2 > 1, which papers
report. Where weights are not small, v is far above 1 and not informative, so the measured ratio is reported too.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations.extraction import padded_index
from probing.activations.store import StorePlan, batches
from probing.interventions.outliers import OutlierModel
from probing.models.anatomy import examine
from probing.models.residual_stream import NotPostNorm, PostNormBlock, find_blocks, run_with_attention
from probing.runtime.progress import counted
from probing.runtime.trainer import float64_device, on_float64_device, to_float64
from probing.statistics.chance import MeanOverSentences, weights
from probing.studies.geometry.tables import SMOOTHING_SENTENCES
from probing.text.tokens import Tokens

# Values of each sentence and block, in the order of `smoothing_sentences.csv`.
BY_SENTENCE = (
    "sigma_1", "sigma_2", "lambda_max", "attention_factor", "distance_before", "distance_after", "bound_published",
    "bound", "bound_per_matrix", "attention_reach",
)  # fmt: skip
# Most entries of attention matrices that are held at a time, over all blocks.
_ATTENTION = 2**25
# Relative tolerance for rounding when a sentence is compared with its bound.
_ROUNDING = 1e-6
# Quantiles of sigma_1 sigma_2, estimated from a histogram of its logarithm: 2000 bins over 10 decades, 1.2% wide.
QUANTILES = (5, 25, 50, 75, 95)
_BINS = np.linspace(-5, 5, 2001)


@dataclass(frozen=True)
class Constants:
    """The factors of the bound that come from a block's parameters: `n_heads` is h, and `slope` is c.

    `gain_1` and `gain_2` are the largest magnitudes of the gains of LN1 and LN2. `value_output` has the largest
    singular value of W_V W_O of each head, shape (n_heads,), `first` of W_1, and `second` of W_2.
    """

    n_heads: int
    slope: float
    gain_1: float
    gain_2: float
    value_output: Tensor
    first: float
    second: float

    @property
    def largest(self) -> float:
        """The paper's s: the largest singular value over all matrices."""
        return max(float(self.value_output.max()), self.first, self.second)


@torch.no_grad()
def constants(block: PostNormBlock) -> Constants:
    """Return the factors that come from a block's parameters, computed in float64."""
    value = to_float64(block.value.weight).unflatten(0, (block.n_heads, -1))
    output = to_float64(block.output.weight).unflatten(1, (block.n_heads, -1)).transpose(0, 1)
    # W_V W_O of a head has rank d_head: its singular values are those of R_O R_V^T from the two QR decompositions.
    right = torch.linalg.qr(output, mode="r").R @ torch.linalg.qr(value.mT, mode="r").R.mT
    first, second = (_singular_value(to_float64(layer.weight)) for layer in (block.first, block.second))
    gain_1, gain_2 = (
        1.0 if norm.weight is None else float(norm.weight.abs().max()) for norm in (block.norm_1, block.norm_2)
    )
    singular = _singular_value(right).cpu()
    return Constants(block.n_heads, block.slope, gain_1, gain_2, singular, float(first), float(second))


def _singular_value(matrix: Tensor) -> Tensor:
    """Return the largest singular value of matrices (..., m, n); as precise as a decomposition, and faster."""
    wide = matrix if matrix.shape[-1] >= matrix.shape[-2] else matrix.mT
    return torch.linalg.eigvalsh(wide @ wide.mT)[..., -1].clamp_min(0).sqrt()


def distance_to_equal_rows(states: Tensor, mask: Tensor) -> Tensor:
    """Return d_M, (batch,), float64, of states (batch, sequence, d_model): minimum over equal-row Y of |H - Y|_F."""
    mask_column = mask[..., None]
    wide = states.double() * mask_column
    means = wide.sum(1, keepdim=True) / mask_column.sum(1, keepdim=True)
    return ((wide - means) * mask_column).square().sum((1, 2)).sqrt()


def least_deviation(entering: Tensor, mask: Tensor, eps: float) -> Tensor:
    """Return sigma, (batch,), float64, of norm inputs (batch, sequence, d_model): least sqrt(variance + eps)."""
    variance = entering.double().var(-1, correction=0)
    return (variance + eps).sqrt().masked_fill(~mask, torch.inf).amin(1)


def attention_eigenvalues(attention: Tensor, mask: Tensor) -> Tensor:
    """Return for each sentence and head the largest eigenvalue of A^T (I - J) A, shape (batch, n_heads), float64.

    It is 0 where all tokens attend in the same way, 1 where each attends to itself, and n / 2 where one half of n
    tokens attends to one token and the other half to another. `attention` has rows of queries summing to 1 over keys,
    shape (batch, n_heads, sequence, sequence); no token attends to entries outside the mask of tokens, (batch,
    sequence).
    """
    queries = mask[:, None, :, None]
    rows = attention.double() * queries
    away = (rows - rows.sum(2, keepdim=True) / queries.sum(2, keepdim=True)) * queries
    return torch.linalg.eigvalsh(away.mT @ away)[..., -1].clamp_min(0)


def attention_reach(states: Tensor, attention: Tensor, mask: Tensor, eigenvalues: Tensor) -> Tensor:
    """Return the ratio of attention to the bound of Lemma 1, d_M(A H) / (sqrt(lambda) d_M(H)), maximum over heads.

    By the lemma it is at most 1. It is 0 if both sides are 0, for example for a single token. Shape (batch,), float64.
    `states` enter the block, shape (batch, sequence, d_model); `eigenvalues` are the largest of each head, shape
    (batch, n_heads); `attention` and `mask` are as in `attention_eigenvalues`.
    """
    wide, before, roots = states.double(), distance_to_equal_rows(states, mask), eigenvalues.sqrt()
    after = torch.stack([distance_to_equal_rows(head.double() @ wide, mask) for head in attention.unbind(1)], 1)
    limits = roots * before[:, None]
    is_resolved = roots > _ROUNDING  # below, what is left of d_M is rounding
    return torch.where(is_resolved & (limits > 0), after / limits, 0.0).amax(1)


def bounds(of_block: Constants, sigma_1: Tensor, sigma_2: Tensor, eigenvalues: Tensor) -> dict[str, Tensor]:
    """Return upper bounds of the factor by which a block multiplies d_M, and `attention_factor`, shape (batch,).

    The bounds are defined in the module, and the factor is 1 + sum_k sqrt(lambda_k) s_k. The least standard deviations
    entering LN1 and LN2 have shape (batch,), the eigenvalues of heads (batch, n_heads).
    """
    s, gains = of_block.largest, of_block.gain_1 * of_block.gain_2
    roots, product = eigenvalues.sqrt(), sigma_1 * sigma_2
    attention = 1 + roots @ of_block.value_output.to(roots)
    shared_factor = 1 + roots.amax(1) * of_block.n_heads * s
    return {
        "attention_factor": attention,
        "bound_published": (1 + s**2) * shared_factor / product,
        "bound": (1 + of_block.slope * s**2) * shared_factor * gains / product,
        "bound_per_matrix": (1 + of_block.slope * of_block.first * of_block.second) * attention * gains / product,
    }


@dataclass(frozen=True)
class SentenceValues:
    """Measured values of consecutive sentences, from number `first` in the corpus; `lengths` include special tokens.

    `values`, named in `BY_SENTENCE`, have shape (n_blocks, len(BY_SENTENCE), n_sentences), float64; NaN for a sentence
    without tokens.
    """

    first: int
    lengths: NDArray[np.int32]
    values: NDArray[np.float64]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row per sentence and block, as in `smoothing_sentences.csv`; `layer` is the block's output."""
        for i, length in enumerate(self.lengths.tolist()):
            for block, values in enumerate(self.values[:, :, i].tolist(), start=1):
                yield {
                    "sentence": self.first + i, "layer": block, "n_tokens": length,
                    **dict(zip(BY_SENTENCE, values, strict=True)),
                }  # fmt: skip


def measure(
    encoder: nn.Module,
    blocks: Sequence[PostNormBlock],
    of_blocks: Sequence[Constants],
    tokens: Tokens,
    plan: StorePlan,
    pad_token_id: int,
    with_padding: bool,
) -> Iterator[SentenceValues]:
    """Run an encoder over a corpus; yield, shard by shard, the terms of the bound and the measured distances.

    Special tokens are included, because attention averages over them. `with_padding` allows sentences of different
    lengths in a batch. The encoder is in evaluation mode and float32.
    """
    n_heads = sum(block.n_heads for block in blocks)
    for shard in plan.shards:
        lengths = tokens.lengths[shard.first_sentence : shard.first_sentence + shard.n_sentences]
        input_ids = torch.from_numpy(tokens.input_ids[shard.rows(tokens)])
        values = np.full((len(blocks), len(BY_SENTENCE), len(lengths)), np.nan)
        at_most = min(plan.batch_tokens, _ATTENTION // (n_heads * max(1, int(lengths.max()))))
        for some in batches(lengths, at_most, with_padding):
            index, mask = padded_index(lengths, some)
            padded = torch.where(mask, input_ids[index].long(), pad_token_id)
            values[:, :, some] = _measure_batch(encoder, blocks, of_blocks, padded, mask)
        yield SentenceValues(shard.first_sentence, lengths, values)


@torch.inference_mode()
def _measure_batch(
    encoder: nn.Module, blocks: Sequence[PostNormBlock], of_blocks: Sequence[Constants], input_ids: Tensor, mask: Tensor
) -> NDArray[np.float64]:
    """Return the values of a batch, shape (n_blocks, len(BY_SENTENCE), batch)."""
    device = next(encoder.parameters()).device
    attention_mask, mask = mask.long().to(device), mask.to(float64_device(device))
    deviations: dict[nn.Module, list[Tensor]] = {}

    def note(norm: nn.Module, args: Any) -> None:
        deviations.setdefault(norm, []).append(least_deviation(on_float64_device(args[0]), mask, norm.eps))  # type: ignore[arg-type]

    norms = dict.fromkeys(norm for block in blocks for norm in (block.norm_1, block.norm_2))
    handles = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        states, attentions = run_with_attention(encoder, input_ids=input_ids.to(device), attention_mask=attention_mask)
    finally:
        for handle in handles:
            handle.remove()
    distances = [distance_to_equal_rows(on_float64_device(state), mask) for state in states]
    block_values = []
    for layer, (block, of_block) in enumerate(zip(blocks, of_blocks, strict=True)):
        # Blocks that share their parameters call the same LayerNorms, one after the other.
        sigma_1, sigma_2 = (deviations[norm].pop(0) for norm in (block.norm_1, block.norm_2))
        attention, state = on_float64_device(attentions[layer]), on_float64_device(states[layer])
        eigenvalues = attention_eigenvalues(attention, mask)
        values = {
            "sigma_1": sigma_1, "sigma_2": sigma_2, "lambda_max": eigenvalues.amax(1),
            "distance_before": distances[layer], "distance_after": distances[layer + 1],
            "attention_reach": attention_reach(state, attention, mask, eigenvalues),
            **bounds(of_block, sigma_1, sigma_2, eigenvalues),
        }  # fmt: skip
        block_values.append(torch.stack([values[name] for name in BY_SENTENCE]))
    return torch.stack(block_values).cpu().numpy()


class Summary:
    """Accumulator of the rows of `smoothing.csv`: means over sentences with intervals, and shares."""

    def __init__(self, of_blocks: Sequence[Constants], seed: int) -> None:
        self.of_blocks, self.seed = of_blocks, seed
        self.means: list[dict[str, MeanOverSentences]] = [{} for _ in of_blocks]
        self.closest = np.full(len(of_blocks), np.nan)
        self.reach = np.zeros(len(of_blocks))
        self.counts = np.zeros((len(of_blocks), len(_BINS) + 1), dtype=np.int64)

    def update(self, sentences: SentenceValues) -> None:
        """Add sentences; intervals depend on the number of sentences added at a time."""
        drawn = weights(sentences.first, len(sentences.lengths), self.seed)
        for block, (of_block, values) in enumerate(zip(self.of_blocks, sentences.values, strict=True)):
            named = dict(zip(BY_SENTENCE, values, strict=True))
            product = named["sigma_1"] * named["sigma_2"]
            with np.errstate(divide="ignore", invalid="ignore"):  # a single token has both distances 0
                ratio = named["distance_after"] / named["distance_before"]
            norms = of_block.gain_1 * of_block.gain_2 / product
            limits = {name: named[name] for name in ("bound_published", "bound", "bound_per_matrix")}
            measures = {
                "sigma_1": named["sigma_1"],
                "sigma_2": named["sigma_2"],
                "sigma_product": product,
                "share_sigma_product_above_1": _share(product > 1, product),
                "lambda_max": named["lambda_max"],
                "attention_factor": named["attention_factor"],
                "norm_factor": norms,
                "share_norm_factor_below_1": _share(norms < 1, norms),
                "distance_ratio": ratio,
                "share_distance_falls": _share(ratio < 1, ratio),
                **limits,
                **{f"share_within_{name}": _share(ratio <= of * (1 + _ROUNDING), ratio) for name, of in limits.items()},
            }
            for name, of_sentences in measures.items():
                mean = self.means[block].setdefault(name, MeanOverSentences())
                mean.update(torch.from_numpy(of_sentences), drawn)
            self.closest[block] = np.fmax(self.closest[block], np.fmax.reduce(ratio / named["bound_per_matrix"]))
            self.reach[block] = np.fmax(self.reach[block], np.fmax.reduce(named["attention_reach"]))
            bins = np.digitize(np.log10(product[np.isfinite(product)]), _BINS)
            self.counts[block] += np.bincount(bins, minlength=len(_BINS) + 1)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per block and measure; values that come from the parameters have no interval."""
        rows: list[dict[str, Any]] = []
        for layer, (of_block, means) in enumerate(zip(self.of_blocks, self.means, strict=True), start=1):
            for name, mean in means.items():
                estimate = mean.result()
                rows.append({
                    "layer": layer, "measure": name, "value": estimate.value, "low": estimate.low,
                    "high": estimate.high, "n_sentences": estimate.n,
                })  # fmt: skip
            fixed = {
                "largest_share_of_bound": float(self.closest[layer - 1]),
                "largest_attention_reach": float(self.reach[layer - 1]),
                **{f"sigma_product_q{q}": _quantile(self.counts[layer - 1], q / 100) for q in QUANTILES},
                "singular_value_largest": of_block.largest,
                "singular_value_value_output": float(of_block.value_output.max()),
                "singular_value_first": of_block.first,
                "singular_value_second": of_block.second,
                "feed_forward_factor": 1 + of_block.slope * of_block.first * of_block.second,
                "gain_1": of_block.gain_1,
                "gain_2": of_block.gain_2,
                "activation_slope": of_block.slope,
                "n_heads": float(of_block.n_heads),
            }
            rows += [{"layer": layer, "measure": name, "value": value} for name, value in fixed.items()]
        return rows


def _share(holds: NDArray[np.bool_], where: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 for sentences where `holds` is true and 0 for others; NaN where `where` is NaN."""
    return np.where(np.isnan(where), np.nan, holds.astype(np.float64))


def _quantile(counts: NDArray[np.int64], share: float) -> float:
    """Return the middle of the bin that contains a quantile; NaN outside the histogram."""
    index = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
    if not 0 < index < len(_BINS):
        return float("nan")
    return float(10 ** ((_BINS[index - 1] + _BINS[index]) / 2))


def smoothing(folder: Path, of: OutlierModel) -> list[dict[str, Any]]:
    """Measure Theorem 2 of Shi et al. on every sentence, and write the terms of each to `smoothing_sentences.csv`.

    The encoder keeps the plain implementation of attention afterwards. The returned rows of `smoothing.csv` are empty
    if the theorem does not apply to the model.
    """
    encoder, store, pad_token_id, name = of.encoder, of.store, of.pad_token_id, of.source.name
    anatomy = examine(encoder, pad_token_id)
    try:
        blocks = find_blocks(encoder, pad_token_id)
    except NotPostNorm as reason:
        of.say(f"--smoothing_bound does not apply to {name}: the theorem is about post-LN blocks, and {reason}")
        return []
    if not blocks:
        of.say(f"--smoothing_bound does not apply to {name}: it has no blocks")
        return []
    of_blocks = [constants(block) for block in blocks]
    summary, n_shards = Summary(of_blocks, of.seed), len(store.plan.shards)
    with (folder / "smoothing_sentences.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*SMOOTHING_SENTENCES.types], lineterminator="\n")
        writer.writeheader()
        batches = measure(
            encoder, blocks, of_blocks, store.tokens, store.plan, pad_token_id, anatomy.padding_is_neutral
        )
        with counted("", n_shards) as advance:
            for sentences in batches:
                summary.update(sentences)
                writer.writerows(sentences.rows())
                advance(1)
    return summary.rows()
