"""What attention loses when outlier neurons are held at their mean in the queries and keys of a single head.

This is open question 5 of Luo et al. (2021). A neuron that is held at its mean differs no more between tokens, in what
the head reads: its mean stays, so that only what it tells apart is taken away. Each head is compared with itself under
sets of as many other neurons, each drawn among those with the nearest standard deviations that no definition calls
outliers. (Their means are not matched: that no other neuron has such a mean is what makes an outlier, and the mean is
not taken away.) As outliers often vary more than any other neuron, the deviations that are taken away from each set are
also scaled to the variance of those of the outliers.
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
from probing.heads.position_controls import FixedScores, matched_sets
from probing.heads.subject import PUNCTUATION, types_of
from probing.models.attention_heads import QueryKey
from probing.results import ALL_LAYERS
from probing.statistics.chance import holm, rank_p
from probing.statistics.moments import ProfileAccumulator
from probing.studies.geometry.extremes import FIRST, OTHER
from probing.text import Corpus
from probing.text.tokens import Tokens

Array = NDArray[np.float64]
Rows = list[dict[str, Any]]
# Most matched sets that a block's outliers are compared with; of a single outlier there are no more than 20.
DRAWS = 100
# Approximate number of tokens whose attention is computed again under each set, and groups of sentences by length.
TOKENS, GROUPS = 1_000, 8
# How far the mass on special tokens may be from that of the model itself.
_ROUNDING = 0.01


@dataclass(frozen=True)
class AttentionSample:
    """Sentences whose attention is computed again.

    Args:
        rows: Index of each of their tokens in the corpus's table, ascending, shape (n,).
        sentences: Index of each token's sentence among them, shape (n,).
        special: Whether the tokenizer added the token, or it is the first one of a causal model, likewise.
        is_causal: Whether no token sees a later one.
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
    """What the attention of a block reads.

    Args:
        states: Its input at the tokens of the sample, shape (n, d_model), float64.
        mean: Mean of each neuron over all tokens of the corpus, shape (d_model,).
        sd: Their standard deviation, likewise.
    """

    states: Tensor
    mean: Tensor
    sd: Array

    @classmethod
    def of(cls, store: HiddenStateSource, layer: int, heads: QueryKey, sample: AttentionSample) -> Inputs:
        """Read the hidden states of a layer, which enter the block, shard by shard.

        Args:
            store: Hidden states of the corpus.
            layer: Number of the layer.
            heads: Queries and keys of the block that reads it.
            sample: The sentences.
        """
        profile, some = ProfileAccumulator(store.plan.d_model), []
        for shard in store.plan.shards:
            rows = store.shard_tokens(shard)
            states = heads.inputs(store.read(layer, shard.index).double())
            profile.update(states)
            shard_rows = sample.rows[(sample.rows >= rows.start) & (sample.rows < rows.stop)] - rows.start
            some.append(states[torch.from_numpy(shard_rows)])
        moments = profile.result()
        return cls(torch.cat(some), torch.from_numpy(moments.mean), np.sqrt(moments.variance))


@dataclass(frozen=True)
class Effects:
    """What sets of neurons do in each head when they are held: outliers, matched sets, and these scaled.

    Args:
        divergence: Mean over queries of the Jensen-Shannon divergence from the whole head's attention, in nats, shape
            (n_heads, n_sets).
        special: Attention to special tokens, a mean over queries, likewise.
        whole: The same of the whole head, shape (n_heads,).
    """

    divergence: Array
    special: Array
    whole: Array


def effects(
    inputs: Inputs, heads: QueryKey, sample: AttentionSample, sets: NDArray[np.int64], factors: Array
) -> Effects:
    """Compute the attention of each head of a block with each set of neurons held in this head alone.

    Args:
        inputs: What the block's attention reads.
        heads: Its queries and keys.
        sample: The sentences.
        sets: Shape (n_sets, k).
        factors: By what the deviations that are taken away are multiplied, shape (n_sets,).
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
    """Draw distinct sets of neurons that match others in sd and hold none of them, shape (at most n, k).

    A set that were drawn twice would count twice in a p-value by rank, and there are few sets of one neuron.

    Args:
        sd: Standard deviation of each neuron, shape (d_model,).
        neurons: The neurons to be matched, k of them.
        n: Most sets.
        generator: Source of the draws.
        without: Further neurons that are not drawn.
    """
    drawn = matched_sets(sd, np.array(neurons), generator, 5 * n, sorted({*neurons, *without}))
    _, first = np.unique(drawn, axis=0, return_index=True)
    return drawn[np.sort(first)[:n]]


@dataclass(frozen=True)
class Compared:
    """Effects of outliers beside those of matched sets.

    Args:
        layer: Number of the block.
        neurons: The outliers of the layer that enters it.
        effects: The effects: of the outliers, of the matched sets, and of the same sets scaled.
        sd_ratio: Root of the variance of the outliers divided by that of the matched neurons, a mean over sets.
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
    """Hold the outliers that enter a block in each of its heads, and matched sets.

    Args:
        layer: Number of the block.
        neurons: The outliers, at most half of the neurons.
        inputs: What the block's attention reads.
        heads: Its queries and keys.
        sample: The sentences.
        seed: Seed of the sets.
        without: Further neurons that are not drawn, because they are outliers by another definition.
    """
    sets = distinct_sets(inputs.sd, neurons, DRAWS, np.random.default_rng([seed, layer, 5]), without)
    variance = np.square(inputs.sd)
    ratios = np.sqrt(variance[list(neurons)].sum() / np.maximum(variance[sets].sum(1), np.finfo(float).tiny))
    outlier_set = np.sort(np.array(neurons))[None]
    factors = np.concatenate([np.ones(1 + len(sets)), ratios])
    set_effects = effects(inputs, heads, sample, np.concatenate([outlier_set, sets, sets]), factors)
    return Compared(layer, neurons, set_effects, float(ratios.mean()))


def agrees(computed: Effects, mass: Array) -> bool:
    """Return whether attention that is computed from queries and keys is that of the model.

    Args:
        computed: What was computed.
        mass: The attention to special tokens that was read in the model, of each head, shape (n_heads,).
    """
    return bool(np.abs(computed.whole - mass).max() <= _ROUNDING)


def fixed_outlier_rows(compared: Sequence[Compared], seed: int) -> Rows:
    """Return the rows of `held_outliers.csv`: of each head, of the mean over each block's heads, and over all heads.

    P-values are by rank among matched sets, of the heads and of the blocks also corrected for their number (Holm).

    Args:
        compared: The blocks that outliers enter.
        seed: Seed of which sets of different blocks are taken together.
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
            for row, p in zip(rows, holm([row[f"{name}_p"] for row in rows]), strict=True):
                row[f"{name}_p_holm"] = p
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
    """Return the columns of one head, or of the mean over heads.

    Args:
        head_effects: The effects.
        n: Number of matched sets.
        head: Index of the head, or all of them.
    """
    divergence, special = (
        of[head].reshape(-1, of.shape[1]).mean(0) for of in (head_effects.divergence, head_effects.special)
    )
    whole = float(head_effects.whole[head].mean())
    outlier_divergence = divergence[0]
    matched, scaled = divergence[1 : 1 + n], divergence[1 + n :]
    outlier_special, changed = special[0], np.abs(special - whole)
    return {
        "divergence": float(outlier_divergence), "divergence_matched": float(matched.mean()),
        "divergence_matched_low": float(matched.min()), "divergence_matched_high": float(matched.max()),
        "divergence_p": rank_p(outlier_divergence, matched), "divergence_scaled": float(scaled.mean()),
        "divergence_scaled_p": rank_p(outlier_divergence, scaled), "special": whole,
        "special_held": float(outlier_special),
        "special_matched": float(special[1 : 1 + n].mean()), "special_matched_low": float(special[1 : 1 + n].min()),
        "special_matched_high": float(special[1 : 1 + n].max()), "special_p": rank_p(changed[0], changed[1 : 1 + n]),
        "special_scaled": float(special[1 + n :].mean()), "special_scaled_p": rank_p(changed[0], changed[1 + n :]),
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Kinds of tokens, each token being of exactly one: special ones by their text, first ones, frequent ones, others.
# --------------------------------------------------------------------------------------------------------------------

# Number of frequent texts that are kinds of their own.
FREQUENT = 10


@dataclass(frozen=True)
class Kinds:
    """The kind of each token.

    Args:
        names: Names of the kinds that occur.
        of_tokens: Index of each token's kind, shape (n_tokens,).
    """

    names: list[str]
    of_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, names: NDArray[Any]) -> Kinds:
        """Number the kinds in the order of the text; the rest comes last.

        Args:
            names: The name of each token's kind, shape (n_tokens,), objects.
        """
        ordered = sorted(dict.fromkeys(names.tolist()), key=lambda name: name == OTHER)
        index = {name: i for i, name in enumerate(ordered)}
        return cls(ordered, np.array([index[name] for name in names.tolist()], dtype=np.int64))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of tokens of each kind, shape (n_kinds,)."""
        return np.bincount(self.of_tokens, minlength=len(self.names))

    @property
    def members(self) -> dict[str, NDArray[np.bool_]]:
        """Whether each token is of each kind, by name, each of shape (n_tokens,)."""
        return {name: self.of_tokens == i for i, name in enumerate(self.names)}


def by_text(tokens: Tokens, tokenizer: Any) -> Kinds:
    """Tell tokens by their texts: special ones, first ones of a sentence, the most frequent ones, and the others."""
    texts = _texts(tokens, tokenizer)
    names = np.full(tokens.n_tokens, OTHER, dtype=object)
    inside = ~tokens.added & (tokens.positions > 0)
    frequent = {text for text, _ in Counter(texts[inside].tolist()).most_common(FREQUENT)}
    for text in frequent:
        names[inside & (texts == text)] = text
    return Kinds.of(_with_special(names, texts, tokens))


def as_sinks(tokens: Tokens, corpus: Corpus, tokenizer: Any) -> Kinds:
    """Tell tokens by what may draw attention: special ones, first ones of a sentence, punctuation, and the others."""
    names = np.full(tokens.n_tokens, OTHER, dtype=object)
    if (marks := types_of(tokens, corpus, {}).get(PUNCTUATION)) is not None:
        names[marks] = PUNCTUATION
    return Kinds.of(_with_special(names, _texts(tokens, tokenizer), tokens))


def _with_special(names: NDArray[Any], texts: NDArray[Any], tokens: Tokens) -> NDArray[Any]:
    """Return the names of kinds with those of special tokens by their text, and of first tokens that are not."""
    names[tokens.positions == 0] = FIRST
    return np.where(tokens.added, texts, names)


def _texts(tokens: Tokens, tokenizer: Any) -> NDArray[Any]:
    """Return the text of each token without blanks around it, shape (n_tokens,), objects."""
    ids, of_token = np.unique(tokens.input_ids, return_inverse=True)
    texts: Mapping[int, str] = {i: tokenizer.decode([i]) for i in ids.tolist()}
    return np.array([text.strip() or repr(text) for text in texts.values()], dtype=object)[of_token.reshape(-1)]
