"""The effect of fixing outlier neurons at their mean in the queries and keys of a single head.

This is open question 5 of Luo et al. (2021). A fixed neuron no longer distinguishes tokens for the head; its mean
remains, so only the differences are removed. Each head is compared with itself under sets of as many other neurons,
drawn among those with the nearest standard deviations that no definition calls outliers. (Their means are not matched:
that no other neuron has such a mean is what makes an outlier, and the mean is not removed.) As outliers often vary more
than any other neuron, the deviations removed from each set are also scaled to the variance of the outliers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probing.data.examples import HiddenStateSource
from probing.heads.change import row_divergences
from probing.heads.measures import PUNCTUATION, types_of
from probing.heads.position_controls import FixedScores, matched_sets
from probing.interventions.passes import Rows
from probing.models.attention_heads import QueryKey
from probing.results import ALL_LAYERS
from probing.statistics.chance import correct_p_values, rank_p
from probing.statistics.moments import ProfileAccumulator
from probing.studies.extremes import FIRST, OTHER
from probing.text import Corpus
from probing.text.tokens import Tokens

Array = NDArray[np.float64]
# Most matched sets that a block's outliers are compared with; of a single outlier there are no more than 20.
DRAWS = 100
# Approximate number of tokens whose attention is computed again under each set, and groups of sentences by length.
TOKENS, GROUPS = 1_000, 8
# How far the mass on special tokens may be from that of the model itself.
_ROUNDING = 0.01


@dataclass(frozen=True)
class AttentionSample:
    """Sentences whose attention is recomputed.

    Args:
        rows: Index of each token in the corpus's table, ascending, shape (n,).
        sentences: Index of each token's sentence in the sample, shape (n,).
        special: Mask of tokens added by the tokenizer, and of the first tokens of a causal model, shape (n,).
    """

    rows: NDArray[np.int64]
    sentences: NDArray[np.int64]
    special: NDArray[np.bool_]
    is_causal: bool

    @property
    def groups(self) -> list[Tensor]:
        """Indices of the tokens, as padded sentences in groups of similar length; -1 for padding."""
        lengths = np.bincount(self.sentences)
        starts = lengths.cumsum() - lengths
        order = [i for i in np.argsort(lengths, kind="stable").tolist() if lengths[i]]
        rows = [torch.arange(starts[i], starts[i] + lengths[i]) for i in order]
        size = -(-len(rows) // GROUPS)
        return [pad_sequence(rows[i : i + size], True, -1) for i in range(0, len(rows), size)]


@dataclass(frozen=True)
class Inputs:
    """Attention inputs of a block: sampled states, (n, d_model), float64, and mean and sd of all tokens, (d_model,)."""

    states: Tensor
    mean: Tensor
    sd: Array

    @classmethod
    def of(cls, store: HiddenStateSource, layer: int, heads: QueryKey, sample: AttentionSample) -> Inputs:
        """Read the hidden states of a layer, which enter the block with these queries and keys, shard by shard."""
        profile, some = ProfileAccumulator(store.plan.d_model), []
        for shard in store.plan.shards:
            rows = shard.rows(store.tokens)
            states = heads.inputs(store.read(layer, shard.index).double())
            profile.update(states)
            shard_rows = sample.rows[(sample.rows >= rows.start) & (sample.rows < rows.stop)] - rows.start
            some.append(states[torch.from_numpy(shard_rows)])
        moments = profile.result()
        return cls(torch.cat(some), torch.from_numpy(moments.mean), np.sqrt(moments.variance))


@dataclass(frozen=True)
class Effects:
    """Effects of fixing sets of neurons in each head: outliers, matched sets, and the same sets scaled.

    `divergence` is the mean over queries of the Jensen-Shannon divergence from the intact head's attention, in nats,
    and `special` the mean attention to special tokens, both of shape (n_heads, n_sets); `whole` is the intact head's
    mean attention to special tokens, shape (n_heads,).
    """

    divergence: Array
    special: Array
    whole: Array


def effects(
    inputs: Inputs, heads: QueryKey, sample: AttentionSample, sets: NDArray[np.int64], factors: Array
) -> Effects:
    """Recompute the attention of each head of a block with each set of neurons, (n_sets, k), fixed in this head alone.

    `factors`, shape (n_sets,), multiply the deviations that are removed.
    """
    n_heads, n = len(heads.query), len(sample.rows)
    divergence, special = (torch.zeros(n_heads, len(sets), dtype=torch.float64) for _ in range(2))
    whole, nothing = torch.zeros(n_heads, dtype=torch.float64), np.empty((1, 0), dtype=np.int64)
    for group in sample.groups:
        is_token = group >= 0
        states = torch.where(is_token[..., None], inputs.states[group] - inputs.mean, 0.0)
        is_special = is_token & torch.from_numpy(sample.special)[group]
        places = torch.arange(group.shape[1])
        biases = heads.biases_at(places - places[:, None]).nan_to_num()  # NaN at keys that are not seen
        for head in range(n_heads):
            query, key, bias = (of[head] for of in (heads.query, heads.key, heads.query_bias))
            scores = FixedScores(
                states, is_token, query, key, inputs.mean @ query + bias, biases[head].expand(len(group), -1, -1),
                is_causal=sample.is_causal,
            )  # fmt: skip
            (intact,) = scores.maps(nothing)
            whole[head] += (intact * is_special[None, :, None]).sum()
            first = 0
            for maps in scores.maps(sets, factors):
                columns = slice(first, first := first + len(maps))
                divergence[head, columns] += row_divergences(intact, maps).sum(1)
                special[head, columns] += (maps * is_special[None, :, None]).sum((1, 2, 3))
    return Effects((divergence / n).numpy(), (special / n).numpy(), (whole / n).numpy())


def distinct_sets(
    sd: Array, neurons: Sequence[int], n: int, generator: np.random.Generator, without: Collection[int] = ()
) -> NDArray[np.int64]:
    """Draw distinct sets that match neurons in sd and contain none of them or of `without`, shape (at most n, k).

    A repeated set would count twice in a p-value by rank, and there are few sets of one neuron.
    """
    drawn = matched_sets(sd, np.array(neurons), generator, 5 * n, sorted({*neurons, *without}))
    _, first = np.unique(drawn, axis=0, return_index=True)
    return drawn[np.sort(first)[:n]]


@dataclass(frozen=True)
class Compared:
    """Effects of the outliers that enter a block: of themselves, of matched sets, and of the same sets scaled.

    `sd_ratio` is the root of the ratio of the outliers' variance to the matched neurons', a mean over sets.
    """

    layer: int
    neurons: Sequence[int]
    effects: Effects
    sd_ratio: float

    @property
    def n_draws(self) -> int:
        """Number of matched sets."""
        return (self.effects.divergence.shape[1] - 1) // 2


def compare(
    layer: int, neurons: Sequence[int], inputs: Inputs, heads: QueryKey, sample: AttentionSample, seed: int,
    without: Collection[int] = (),
) -> Compared:  # fmt: skip
    """Fix the outliers that enter a block, at most half of the neurons, and matched sets that exclude `without`."""
    sets = distinct_sets(inputs.sd, neurons, DRAWS, np.random.default_rng([seed, layer, 5]), without)
    variance = np.square(inputs.sd)
    ratios = np.sqrt(variance[list(neurons)].sum() / np.maximum(variance[sets].sum(1), np.finfo(float).tiny))
    outlier_set = np.sort(np.array(neurons))[None]
    factors = np.concatenate([np.ones(1 + len(sets)), ratios])
    set_effects = effects(inputs, heads, sample, np.concatenate([outlier_set, sets, sets]), factors)
    return Compared(layer, neurons, set_effects, float(ratios.mean()))


def agrees(computed: Effects, mass: Array) -> bool:
    """Check that attention computed from queries and keys matches the model's to special tokens, `mass` (n_heads,)."""
    return bool(np.abs(computed.whole - mass).max() <= _ROUNDING)


def fixed_outlier_rows(compared: Sequence[Compared], seed: int) -> Rows:
    """Return the rows of `held_outliers.csv`: for each head, for the mean over each block's heads, and over all heads.

    P-values are by rank among matched sets; for heads and blocks they are also corrected for their number (Holm).
    `seed` determines which sets of different blocks are combined.
    """
    blocks, heads = Rows(), Rows()
    for block in compared:
        about = {"layer": block.layer, "neurons": " ".join(map(str, block.neurons)), "k": len(block.neurons),
                 "sd_ratio": block.sd_ratio, "n_draws": block.n_draws}  # fmt: skip
        blocks.append({**about, **_row(block.effects, block.n_draws, slice(None))})
        heads += [
            {**about, "head": h + 1, **_row(block.effects, block.n_draws, h)} for h in range(len(block.effects.whole))
        ]
    for rows in (blocks, heads):
        for name in ("divergence", "special"):
            correct_p_values(rows, f"{name}_p", f"{name}_p_holm")
    return [*_of_all(compared, seed), *blocks, *heads]


def _of_all(compared: Sequence[Compared], seed: int) -> Rows:
    """Return the row over all heads, in which each draw is one set of each block, if there are several blocks."""
    if len(compared) < 2:
        return []
    generator, n = np.random.default_rng([seed, 6]), max(block.n_draws for block in compared)
    parts = []
    for block in compared:
        chosen = generator.permutation(n) if block.n_draws == n else generator.integers(block.n_draws, size=n)
        columns = np.array([0, *(1 + chosen), *(1 + block.n_draws + chosen)])
        block_effects = block.effects
        parts.append(
            Effects(block_effects.divergence[:, columns], block_effects.special[:, columns], block_effects.whole)
        )
    whole = Effects(*(np.concatenate([getattr(part, of.name) for part in parts]) for of in fields(Effects)))
    named = sorted({neuron for block in compared for neuron in block.neurons})
    about = {"layer": ALL_LAYERS, "neurons": " ".join(map(str, named)), "n_draws": n,
             "sd_ratio": float(np.mean([block.sd_ratio for block in compared]))}  # fmt: skip
    return [{**about, **_row(whole, n, slice(None))}]


def _row(head_effects: Effects, n: int, head: int | slice) -> dict[str, float]:
    """Return the columns of one head, or of the mean over heads, for n matched sets."""
    divergence, special = (
        of[head].reshape(-1, of.shape[1]).mean(0) for of in (head_effects.divergence, head_effects.special)
    )
    whole = float(head_effects.whole[head].mean())
    return {
        "divergence": float(divergence[0]), **_compared("divergence", divergence, divergence, n), "special": whole,
        "special_held": float(special[0]), **_compared("special", special, np.abs(special - whole), n),
    }  # fmt: skip


def _compared(name: str, values: Array, ranked: Array, n: int) -> dict[str, float]:
    """Return the means over n matched sets and over scaled ones, and the ranks among them of the first of `ranked`."""
    matched, scaled = slice(1, 1 + n), slice(1 + n, None)
    return {
        f"{name}_matched": float(values[matched].mean()), f"{name}_matched_low": float(values[matched].min()),
        f"{name}_matched_high": float(values[matched].max()), f"{name}_p": rank_p(ranked[0], ranked[matched]),
        f"{name}_scaled": float(values[scaled].mean()), f"{name}_scaled_p": rank_p(ranked[0], ranked[scaled]),
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Kinds of tokens, each token being of exactly one: special ones by their text, first ones, frequent ones, others.
# --------------------------------------------------------------------------------------------------------------------

# Number of frequent texts that are kinds of their own.
FREQUENT = 10


@dataclass(frozen=True)
class TokenKinds:
    """Names of the kinds of tokens, and the index of each token's kind, shape (n_tokens,)."""

    names: list[str]
    of_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, names: NDArray[Any]) -> TokenKinds:
        """Number the kinds, given as a name for each token, in the order of the text; the rest comes last."""
        ordered = sorted(dict.fromkeys(names.tolist()), key=lambda name: name == OTHER)
        index = {name: i for i, name in enumerate(ordered)}
        return cls(ordered, np.array([index[name] for name in names.tolist()], dtype=np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of tokens of each kind, shape (n_kinds,)."""
        return np.bincount(self.of_tokens, minlength=len(self.names))

    @property
    def members(self) -> dict[str, NDArray[np.bool_]]:
        """Mask of the tokens of each kind, by name, each of shape (n_tokens,)."""
        return {name: self.of_tokens == i for i, name in enumerate(self.names)}


def by_text(tokens: Tokens, tokenizer: Any) -> TokenKinds:
    """Classify tokens by their texts: special ones, first ones, the most frequent ones, and the others."""
    texts = _texts(tokens, tokenizer)
    names = np.full(tokens.n_tokens, OTHER, dtype=object)
    inside = ~tokens.added & (tokens.positions > 0)
    frequent = {text for text, _ in Counter(texts[inside].tolist()).most_common(FREQUENT)}
    for text in frequent:
        names[inside & (texts == text)] = text
    return TokenKinds.of(_with_special(names, texts, tokens))


def as_sinks(tokens: Tokens, corpus: Corpus, tokenizer: Any) -> TokenKinds:
    """Classify tokens by what may draw attention: special ones, first ones, punctuation, and the others."""
    names = np.full(tokens.n_tokens, OTHER, dtype=object)
    if (marks := types_of(tokens, corpus, {}).get(PUNCTUATION)) is not None:
        names[marks] = PUNCTUATION
    return TokenKinds.of(_with_special(names, _texts(tokens, tokenizer), tokens))


def _with_special(names: NDArray[Any], texts: NDArray[Any], tokens: Tokens) -> NDArray[Any]:
    """Return the names with special tokens named by their text, and first tokens as such."""
    names[tokens.positions == 0] = FIRST
    return np.where(tokens.added, texts, names)


def _texts(tokens: Tokens, tokenizer: Any) -> NDArray[Any]:
    """Return the text of each token without surrounding blanks, shape (n_tokens,), objects."""
    ids, of_token = np.unique(tokens.input_ids, return_inverse=True)
    texts: Mapping[int, str] = {i: tokenizer.decode([i]) for i in ids.tolist()}
    return np.array([text.strip() or repr(text) for text in texts.values()], dtype=object)[of_token.reshape(-1)]
