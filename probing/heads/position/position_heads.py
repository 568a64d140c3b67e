"""The contrast of a block's heads at an offset, the neurons that produce it, and what is left without these neurons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probing.heads.position.contrast import LagMoments, PositionMeans, SampledWords, Shares, Words, contrast_without
from probing.heads.position.position_run import PositionRun
from probing.heads.position.removal import HeadScores, as_masks, matched_sets, random_sets, top_neurons, word_mass
from probing.heads.rows import Sentences
from probing.models.query_key import QueryKey
from probing.probes.objective import centre_over_classes
from probing.statistics.chance import rank_p
from probing.statistics.rank_similarity import spearman

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """Rank correlations of what heads use with a ranking.

    Args:
        spearman: Plain ones, shape (n_heads,); NaN where all neurons are tied.
        partial: Partial ones, likewise.
    """

    spearman: Array
    partial: Array

    @classmethod
    def of(cls, use: Array, ranking: Array, spreads: Sequence[Array]) -> Agreement:
        """Correlate.

        Args:
            use: How much each head uses each neuron, shape (n_heads, d_model).
            ranking: The score of each neuron, shape (d_model,).
            spreads: What the partial correlation keeps constant, each of shape (d_model,).
        """
        used, ranked = rankdata(use, axis=1), rankdata(ranking)
        design = np.stack([np.ones(len(ranked)), *(rankdata(one) for one in spreads)], axis=1)
        left = [values - values @ np.linalg.pinv(design).T @ design.T for values in (ranked, used)]
        # If the spreads determine the ranks exactly, the residuals are rounding errors: they are set to 0.
        left = [np.where(np.abs(values) < 1e-6 * len(ranked), 0.0, values) for values in left]
        return cls(spearman(ranked, used), spearman(left[0], left[1]))


def contributions_in_bases(weight: Tensor, states: Tensor, classes: Tensor, bases: Tensor) -> Tensor:
    """Return the mean absolute contribution of each direction to the logit of the true class, centred over classes.

    Args:
        weight: Weights of a probe, shape (n_classes, d_model).
        states: States of tokens, shape (n, d_model).
        classes: Index of the true class of each, shape (n,).
        bases: Each column a direction, shape (n_bases, d_model, d_model).

    Returns:
        Shape (n_bases, d_model).
    """
    centred = centre_over_classes(weight.to(states.dtype))
    # A product adds up the tokens of each class much faster than by their index.
    of_class = torch.nn.functional.one_hot(classes, len(centred)).to(states.dtype).T.contiguous() / max(len(states), 1)
    found = []
    for basis in bases:
        found.append(((centred @ basis).abs_() * (of_class @ (states @ basis).abs_())).sum(0))
    return torch.stack(found)


Rows = list[dict[str, Any]]
# Numbers of neurons that are held together; numbers above half of all neurons are skipped.
SIZES = (5, 10, 20, 50)


@dataclass(frozen=True)
class Block:
    """The words of both samples as the attention of a block receives them, and its heads.

    Args:
        layer: Number of the block, from 1.
        heads: Its queries and keys.
        means: Means of the training words.
        states: The hidden states that enter the block, at the words that are reported on, shape (n, d_model).
        inputs: The input of the block's attention at these words; equal to `states` if no norm comes in between.
        words: These words.
        groups: Words whose attention is computed again, as indices by sentence.
        run: The rankings of the neurons.
        bases: Random bases, shape (n_bases, d_model, d_model).
        seed: Seed of the sets of neurons.
    """

    layer: int
    heads: QueryKey
    means: PositionMeans
    states: Tensor
    inputs: Tensor
    words: Words
    groups: Sequence[Tensor]
    run: PositionRun
    bases: Tensor
    seed: int

    @classmethod
    def of(
        cls, layer: int, heads: QueryKey, samples: tuple[SampledWords, SampledWords], run: PositionRun, bases: Tensor,
        seed: int,
    ) -> Block:  # fmt: skip
        """Read the hidden states that enter a block at the words to estimate by, and at those to report on."""
        train, test = samples
        means = PositionMeans.of(heads.inputs(train.states(layer - 1)), train.words.positions)
        states = test.states(layer - 1)
        groups = test.to_hold(seed)
        return cls(layer, heads, means, states, heads.inputs(states), test.words, groups, run, bases, seed)

    def at(self, offset: int) -> AtOffset:
        """Compute what all heads share at an offset."""
        return AtOffset(self, offset)

    @cached_property
    def of_position(self) -> Tensor:
        """The position's part of each word, shape (n, d_model)."""
        return self.means.of_words(self.words.positions)

    @cached_property
    def means_seen(self) -> tuple[Tensor, Tensor]:
        """Means over the words that each word sees, of inputs and of position parts; they are subtracted from keys."""
        return self.words.means_seen(self.inputs), self.words.means_seen(self.of_position)

    @cached_property
    def mean_biases(self) -> Tensor:
        """Mean bias of the words that each word sees, shape (heads, n)."""
        if self.heads.biases is None:
            return self.inputs.new_zeros(len(self.heads.query), len(self.inputs))
        return self.words.mean_biases_seen(self.heads.biases_at)

    @cached_property
    def scores(self) -> dict[str, NDArray[np.float64]]:
        """The run's rankings of the neurons that enter the block."""
        return self.run.of_layer(self.layer - 1)

    @cached_property
    def spreads(self) -> list[NDArray[np.float64]]:
        """What the partial correlation keeps constant."""
        return [one.numpy() for one in self.means.spread]

    @cached_property
    def in_bases(self) -> list[tuple[NDArray[np.float64], list[NDArray[np.float64]]]]:
        """For each random basis, the contributions and the spreads of its directions."""
        classes = self.run.classes_of(self.words.positions)
        labelled = classes >= 0
        weight, states = self.run.weight_of(self.layer - 1), self.states[labelled].float()
        found = contributions_in_bases(weight, states, classes[labelled], self.bases)
        parts = self.means.parts.float()
        return [
            (own.double().numpy(), [one.numpy() for one in self.means.turned(parts @ basis).spread])
            for basis, own in zip(self.bases, found, strict=True)
        ]


@dataclass(frozen=True)
class AtOffset:
    """The heads of a block at one offset.

    Args:
        block: The block.
        offset: In tokens, from query to key.
    """

    block: Block
    offset: int

    @cached_property
    def queries(self) -> Tensor:
        """Indices of the words that have a key at the offset, shape (n,)."""
        return self.block.words.with_key_at(self.offset)

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """State of each query, and of its key less the mean of the keys that it sees, each of shape (n, d_model)."""
        states, queries = self.block.inputs, self.queries
        return states[queries], states[queries + self.offset] - self.block.means_seen[0][queries]

    @cached_property
    def of_position(self) -> tuple[Tensor, Tensor]:
        """As `inputs`, but for the position's part of each word in place of its state."""
        parts, queries = self.block.of_position, self.queries
        return parts[queries], parts[queries + self.offset] - self.block.means_seen[1][queries]

    @cached_property
    def biases(self) -> Tensor:
        """Bias at each query's key minus the mean bias of the keys that the query sees, shape (heads, n)."""
        block = self.block
        return block.heads.biases_at(torch.tensor([self.offset])) - block.mean_biases[:, self.queries]

    @cached_property
    def moments(self) -> LagMoments:
        """The moments of the inputs."""
        return LagMoments.of(*self.inputs, self.block.means.mean)

    @cached_property
    def products(self) -> Tensor:
        """The products of the position's part; see `LagMoments`."""
        return LagMoments.of(*self.of_position, torch.zeros_like(self.block.means.mean)).products

    @cached_property
    def shares(self) -> Shares:
        """The shares of neurons in the contrasts of all heads between positions, each of shape (heads, d_model)."""
        return Shares.of(self.block.heads.query, self.block.heads.key, self.products)

    @cached_property
    def use(self) -> NDArray[np.float64]:
        """How much each head of the block uses each neuron, shape (heads, d_model)."""
        return self.shares.use.numpy()

    def contrasts(self, heads: Sequence[int], sentences: Sentences) -> list[dict[str, float]]:
        """Return the contrast of some heads, its parts between positions and of biases, with intervals by sentence."""
        block, words = self.block, self.block.words
        counts = words.sentences[self.queries].bincount(minlength=sentences.times.shape[1])
        query, key, bias = (one[list(heads)] for one in (block.heads.query, block.heads.key, block.heads.query_bias))
        biases = self.biases[list(heads)].T
        # The scores of keys less their mean, of each query and head, shape (n, heads).
        by_state, of_position = (
            ((torch.einsum("nd,hde->nhe", asking, query) + added) * torch.einsum("nd,hde->nhe", differences, key)).sum(
                2
            )
            for (asking, differences), added in ((self.inputs, bias), (self.of_position, 0 * bias))
        )
        parts = {"contrast": by_state + biases, "position_part": of_position, "bias_part": biases}
        found: list[dict[str, float]] = [{} for _ in heads]
        for name, values in parts.items():
            sums = torch.zeros(len(counts), len(heads), dtype=torch.float64)
            sums.index_add_(0, words.sentences[self.queries], values)
            means = sentences.means(sums.numpy(), counts.numpy())
            for i, row in enumerate(found):
                one = means.row(i)
                row |= {name: one["value"], f"{name}_low": one["low"], f"{name}_high": one["high"]}
        return found

    def agreements(self, heads: Sequence[int]) -> list[dict[str, float]]:
        """Return the rank correlations of the use of some heads with the run's contributions, and both nulls."""
        block = self.block
        if "contribution" not in block.scores:
            return [{} for _ in heads]
        query, key = (one[list(heads)].float() for one in (block.heads.query, block.heads.key))
        own = Agreement.of(self.use, block.scores["contribution"], block.spreads)
        used = Shares.of(query, key, self.products.float(), block.bases).use.numpy()
        turned = [
            Agreement.of(use, contributions, spreads)
            for use, (contributions, spreads) in zip(used, block.in_bases, strict=True)
        ]
        rows = []
        for i, head in enumerate(heads):
            row: dict[str, float] = {}
            for name in ("spearman", "partial"):
                of_heads = getattr(own, name)
                row |= _beside(name, of_heads[head], "heads", np.delete(of_heads, head))
                row |= _beside(name, of_heads[head], "bases", np.array([getattr(one, name)[i] for one in turned]))
            rows.append(row)
        return rows

    def neurons(self, head: int) -> Rows:
        """Return a row for each neuron, in the order of its use."""
        by_query, by_key, use = self.shares.by_query[head], self.shares.by_key[head], self.use[head]
        part, scores = float(by_query.sum()), self.block.scores
        return [
            {
                "rank": rank, "neuron": n, "use": float(use[n]), "by_query": float(by_query[n]),
                "by_key": float(by_key[n]), "position_part": part,
                "sd_of_positions": float(self.block.spreads[0][n]), "sd_of_steps": float(self.block.spreads[1][n]),
                **{name: float(values[n]) for name, values in scores.items()},
            }
            for rank, n in enumerate(np.argsort(-use, kind="stable").tolist(), start=1)
        ]  # fmt: skip

    def removals(self, head: int) -> Rows:
        """Return a head's contrast and attention with each ranking's top neurons held, compared with random sets."""
        query, key, bias = (
            one[head] for one in (self.block.heads.query, self.block.heads.key, self.block.heads.query_bias)
        )
        pairs, singles = self.moments.split(query @ key.T, key @ bias)
        groups = [self._scores(head, group) for group in self.block.groups]
        of_biases = float(self.biases[head].mean()) if len(self.queries) else 0.0
        sd, generator = self.block.means.sd.numpy(), np.random.default_rng([self.block.seed, self.block.layer, head])

        def without(sets: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
            held = as_masks(sets, len(sd))
            contrasts = contrast_without(pairs, singles, held).numpy() + of_biases
            return {"contrast": contrasts, "word_mass": word_mass(groups, sets)}

        intact = without(np.empty((1, 0), dtype=np.int64))
        rows: Rows = []
        for k in (k for k in SIZES if 2 * k <= len(sd)):
            random = without(random_sets(len(sd), k, generator))
            for ranking, values in {**self.block.scores, "use": self.use[head]}.items():
                top = top_neurons(values, k)
                matched = without(matched_sets(sd, top, generator))
                row = {"ranking": ranking, "k": k, "neurons": " ".join(map(str, top))}
                for name, held in without(top[None]).items():
                    row |= {name: float(intact[name][0]), f"{name}_held": float(held[0])}
                    for kind, others in (("random", random), ("matched", matched)):
                        row[f"{name}_{kind}"] = float(others[name].mean())
                        row[f"{name}_{kind}_p"] = rank_p(-held[0], -others[name])
                rows.append(row)
        return rows

    def _scores(self, head: int, group: Tensor) -> HeadScores:
        block = self.block
        query, key, bias = (one[head] for one in (block.heads.query, block.heads.key, block.heads.query_bias))
        is_word = group >= 0
        states = torch.where(is_word[..., None], block.inputs[group] - block.means.mean, 0.0)
        of_mean = block.means.mean @ query + bias
        places = block.words.positions[group]
        offsets = torch.where(is_word[:, None] & is_word[..., None], places[:, None] - places[..., None], 0)
        biases = block.heads.biases_at(offsets)[head].nan_to_num()  # NaN at keys that are not seen
        return HeadScores(
            states.float(), is_word, query.float(), key.float(), of_mean.float(), biases.float(), self.offset,
            is_causal=block.words.is_causal,
        )  # fmt: skip


def _beside(name: str, value: float, kind: str, others: NDArray[np.float64]) -> Mapping[str, float]:
    """Return a correlation, the mean of the correlations that it is compared with, and its p-value by rank."""
    there = others[np.isfinite(others)]
    if not len(there) or np.isnan(value):
        return {name: float(value)}
    return {name: float(value), f"{name}_{kind}": float(there.mean()), f"{name}_{kind}_p": rank_p(value, there)}
