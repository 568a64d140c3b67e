"""Position heads, the neurons that they read, and the effect of fixing these neurons at their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probing.errors import UserError, as_clause
from probing.heads.accumulation import (
    Begin,
    Measure,
    SentenceBatch,
    StackedBlocks,
    SumsStore,
)
from probing.heads.measures import Row, Rows, SentenceDraws
from probing.heads.position_controls import (
    HeadScores,
    LagMoments,
    PositionMeans,
    SampledWords,
    Shares,
    WordTokens,
    as_masks,
    contrast_without,
    matched_sets,
    random_sets,
    sample_requests,
    top_neurons,
    word_mass,
)
from probing.heads.survey import STATES, HeadSurvey, PositionRun, SurveyInputs, SurveyPart
from probing.models.attention_heads import QueryKey
from probing.probes.agreement import random_bases
from probing.probes.solvers import centre_over_classes
from probing.statistics import spearman
from probing.statistics.chance import permute_within_sentences, rank_p
from probing.text import Corpus
from probing.text.tokens import Tokens

Array = NDArray[np.float64]


def rank_agreement(use: Array, ranking: Array, spreads: Sequence[Array]) -> dict[str, Array]:
    """Return rank correlations of heads' neuron use, shape (n_heads, d_model), with a ranking, shape (n_heads,).

    `partial` has `spreads` partialled out. Both are NaN if all neurons are tied.
    """
    used, ranked = rankdata(use, axis=1), rankdata(ranking)
    design = np.stack([np.ones(len(ranked)), *(rankdata(spread) for spread in spreads)], axis=1)
    residuals = [values - values @ np.linalg.pinv(design).T @ design.T for values in (ranked, used)]
    # If the spreads determine the ranks exactly, the residuals are rounding errors: they are set to 0.
    residuals = [np.where(np.abs(values) < 1e-6 * len(ranked), 0.0, values) for values in residuals]
    return {"spearman": spearman(ranked, used), "partial": spearman(residuals[0], residuals[1])}


def contributions_in_bases(weight: Tensor, states: Tensor, classes: Tensor, bases: Tensor) -> Tensor:
    """Return each direction's mean absolute contribution to the true class's logit, shape (n_bases, d_model).

    The logits are centred over classes; the columns of `bases`, shape (n_bases, d_model, d_model), are the directions.
    """
    centred = centre_over_classes(weight.to(states.dtype))
    # A product adds up the tokens of each class much faster than by their index.
    of_class = torch.nn.functional.one_hot(classes, len(centred)).to(states.dtype).T.contiguous() / max(len(states), 1)
    contributions = []
    for basis in bases:
        contributions.append(((centred @ basis).abs_() * (of_class @ (states @ basis).abs_())).sum(0))
    return torch.stack(contributions)


# Numbers of neurons that are held together; numbers above half of all neurons are skipped.
SIZES = (5, 10, 20, 50)


@dataclass(frozen=True)
class Block:
    """The words of both samples as inputs of a block's attention, and the heads of the block.

    Args:
        layer: Number of the block, from 1.
        means: Means of the training words.
        states: The hidden states that enter the block, at the words to report on, shape (n, d_model).
        inputs: The input of the block's attention at these words; equal to `states` if no norm comes in between.
        groups: Words whose attention is recomputed, as indices by sentence.
        bases: Random bases, shape (n_bases, d_model, d_model).
    """

    layer: int
    heads: QueryKey
    means: PositionMeans
    states: Tensor
    inputs: Tensor
    words: WordTokens
    groups: Sequence[Tensor]
    run: PositionRun
    bases: Tensor
    seed: int

    @classmethod
    def of(
        cls, layer: int, heads: QueryKey, samples: tuple[SampledWords, SampledWords], run: PositionRun, bases: Tensor,
        seed: int,
    ) -> Block:  # fmt: skip
        """Read the hidden states that enter a block, at the words to estimate by and the words to report on."""
        train, test = samples
        means = PositionMeans.of(heads.inputs(train.states(layer - 1)), train.words.positions)
        states = test.states(layer - 1)
        groups = test.to_hold(seed)
        return cls(layer, heads, means, states, heads.inputs(states), test.words, groups, run, bases, seed)

    def of_heads(self, index: int | list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return W_Q and W_K of one head or of several, and the bias of their queries."""
        return self.heads.query[index], self.heads.key[index], self.heads.query_bias[index]

    @cached_property
    def of_position(self) -> Tensor:
        """The part of the position in each word, shape (n, d_model)."""
        return self.means.of_words(self.words.positions)

    @cached_property
    def means_seen(self) -> tuple[Tensor, Tensor]:
        """Means of inputs and of position parts over the words that each word sees; they are subtracted from keys."""
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
        """The spreads that the partial correlation keeps constant."""
        return [spread.numpy() for spread in self.means.spread]

    @cached_property
    def in_bases(self) -> list[tuple[NDArray[np.float64], list[NDArray[np.float64]]]]:
        """For each random basis, the contributions and the spreads of its directions."""
        classes = self.run.classes_of(self.words.positions)
        labelled = classes >= 0
        weight, states = self.run.weight_of(self.layer - 1), self.states[labelled].float()
        contributions = contributions_in_bases(weight, states, classes[labelled], self.bases)
        parts = self.means.parts.float()
        return [
            (
                basis_contributions.double().numpy(),
                [spread.numpy() for spread in replace(self.means, parts=parts @ basis).spread],
            )
            for basis, basis_contributions in zip(self.bases, contributions, strict=True)
        ]


@dataclass(frozen=True)
class AtOffset:
    """The heads of a block at one offset, in tokens from query to key."""

    block: Block
    offset: int

    @cached_property
    def queries(self) -> Tensor:
        """Indices of the words that have a key at the offset, shape (n,)."""
        return self.block.words.with_key_at(self.offset)

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """State of each query, and state of its key minus the mean of the keys that it sees; shapes (n, d_model)."""
        states, queries = self.block.inputs, self.queries
        return states[queries], states[queries + self.offset] - self.block.means_seen[0][queries]

    @cached_property
    def of_position(self) -> tuple[Tensor, Tensor]:
        """The same as `inputs` for the part of the position in each word instead of its state."""
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
        """The products of the parts of positions; see `LagMoments`."""
        return LagMoments.of(*self.of_position, torch.zeros_like(self.block.means.mean)).products

    @cached_property
    def shares(self) -> Shares:
        """The shares of neurons in the contrasts of all heads between positions, each of shape (heads, d_model)."""
        return Shares.of(self.block.heads.query, self.block.heads.key, self.products)

    @cached_property
    def use(self) -> NDArray[np.float64]:
        """The use of each neuron by each head of the block, shape (heads, d_model)."""
        return self.shares.use.numpy()

    def contrasts(self, heads: Sequence[int], sentences: SentenceDraws) -> Rows:
        """Return the contrasts of some heads, with their position and bias parts and intervals over sentences."""
        block, words = self.block, self.block.words
        counts = words.sentences[self.queries].bincount(minlength=sentences.times.shape[1])
        query, key, bias = block.of_heads(list(heads))
        biases = self.biases[list(heads)].T
        # The scores of keys less their mean, of each query and head, shape (n, heads).
        by_state, of_position = (
            ((torch.einsum("nd,hde->nhe", asking, query) + added) * torch.einsum("nd,hde->nhe", differences, key)).sum(
                2
            )
            for (asking, differences), added in ((self.inputs, bias), (self.of_position, 0 * bias))
        )
        parts = {"contrast": by_state + biases, "position_part": of_position, "bias_part": biases}
        rows: Rows = [{} for _ in heads]
        for name, values in parts.items():
            sums = torch.zeros(len(counts), len(heads), dtype=torch.float64)
            sums.index_add_(0, words.sentences[self.queries], values)
            means = sentences.means(sums.numpy(), counts.numpy())
            for i, row in enumerate(rows):
                row |= {column: cell for column, cell in means.row(i, name=name).items() if column != "n"}
        return rows

    def agreements(self, heads: Sequence[int]) -> Rows:
        """Return the rank correlations of some heads' neuron use with the run's contributions, and both nulls."""
        block = self.block
        if "contribution" not in block.scores:
            return [{} for _ in heads]
        query, key, _ = block.of_heads(list(heads))
        observed = rank_agreement(self.use, block.scores["contribution"], block.spreads)
        used = Shares.of(query.float(), key.float(), self.products.float(), block.bases).use.numpy()
        turned = [
            rank_agreement(use, contributions, spreads)
            for use, (contributions, spreads) in zip(used, block.in_bases, strict=True)
        ]
        rows = []
        for i, head in enumerate(heads):
            row: Row = {}
            for name, of_heads in observed.items():
                of_bases = np.array([agreement[name][i] for agreement in turned])
                row |= _beside(name, of_heads[head], "heads", np.delete(of_heads, head))
                row |= _beside(name, of_heads[head], "bases", of_bases)
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
        """Return a head's contrast and attention with each ranking's top neurons fixed, and with random sets fixed."""
        query, key, bias = self.block.of_heads(head)
        pairs, singles = self.moments.split(query @ key.T, key @ bias)
        groups = [self._scores(head, group) for group in self.block.groups]
        of_biases = float(self.biases[head].mean()) if len(self.queries) else 0.0
        sd, generator = self.block.means.sd.numpy(), np.random.default_rng([self.block.seed, self.block.layer, head])

        def without(sets: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
            masks = as_masks(sets, len(sd))
            contrasts = contrast_without(pairs, singles, masks).numpy() + of_biases
            return {"contrast": contrasts, "word_mass": word_mass(groups, sets)}

        intact = without(np.empty((1, 0), dtype=np.int64))
        rows: Rows = []
        for k in (k for k in SIZES if 2 * k <= len(sd)):
            random = without(random_sets(len(sd), k, generator))
            for ranking, values in {**self.block.scores, "use": self.use[head]}.items():
                top = top_neurons(values, k)
                matched = without(matched_sets(sd, top, generator))
                row = {"ranking": ranking, "k": k, "neurons": " ".join(map(str, top))}
                for name, fixed_values in without(top[None]).items():
                    row |= {name: float(intact[name][0]), f"{name}_held": float(fixed_values[0])}
                    for kind, others in (("random", random), ("matched", matched)):
                        row[f"{name}_{kind}"] = float(others[name].mean())
                        row[f"{name}_{kind}_p"] = rank_p(-fixed_values[0], -others[name])
                rows.append(row)
        return rows

    def _scores(self, head: int, group: Tensor) -> HeadScores:
        block = self.block
        query, key, bias = block.of_heads(head)
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
    """Return a correlation, the mean of the correlations for comparison, and its p-value by rank."""
    finite = others[np.isfinite(others)]
    if not len(finite) or np.isnan(value):
        return {name: float(value)}
    return {name: float(value), f"{name}_{kind}": float(finite.mean()), f"{name}_{kind}_p": rank_p(value, finite)}


# --------------------------------------------------------------------------------------------------------------------
# How much each head attends to the word at a fixed offset, also where words are told the positions of other words.
# --------------------------------------------------------------------------------------------------------------------

# In tokens, from query to key. 0 is left out: a head may find the token itself by what it is.
OFFSETS = tuple(offset for offset in range(-10, 11) if offset)


def mass_at_offsets(probabilities: Tensor, ordinary: Tensor) -> dict[str, Tensor]:
    """Return sums over queries of the attention to the key at each offset; queries and keys are ordinary tokens.

    The attention has shape (batch, heads, from, to), 0 at padding; `ordinary` has shape (batch, sequence).

    Returns:
        mass: Sum of the attention to the key at the offset, shape (batch, heads, offsets), float64.
        word_mass: The same for the attention divided by the query's attention to all ordinary tokens.
        hit: Number of queries that attend to this key more than to any other token.
        n: Number of queries that have such a key, shape (batch, 1, offsets).
    """
    keys = ordinary[:, None, None, :].to(probabilities.dtype)
    to_words = (probabilities * keys).sum(3)
    per_word_mass = torch.where(to_words > 0, 1 / to_words, 0.0)
    most = probabilities.argmax(3)
    index = torch.arange(probabilities.shape[3], device=probabilities.device)
    sums: dict[str, list[Tensor]] = {"mass": [], "word_mass": [], "hit": [], "n": []}
    for offset in OFFSETS:
        n, first = max(0, len(index) - abs(offset)), max(0, -offset)
        rows, columns = slice(first, first + n), slice(first + offset, first + offset + n)
        is_pair = (ordinary[:, rows] & ordinary[:, columns])[:, None]
        mass = probabilities.diagonal(offset, 2, 3) * is_pair
        sums["mass"].append(mass.sum(2, dtype=torch.float64))
        sums["word_mass"].append((mass * per_word_mass[:, :, rows]).sum(2, dtype=torch.float64))
        sums["hit"].append(((most[:, :, rows] == index[columns]) & is_pair).sum(2, dtype=torch.float64))
        sums["n"].append(is_pair.sum(2, dtype=torch.float64))
    return {name: torch.stack(values, dim=2) for name, values in sums.items()}


AT_OFFSETS = Measure.of_blocks(
    "offsets", lambda attention, batch: mass_at_offsets(attention.probabilities, batch.ordinary), {"version": 1}
)
PERMUTED = "told_offsets"


def permuted_offsets(seed: int) -> Measure:
    """Return the measure of the attention at each offset if the words of each sentence are permuted in the input.

    Each word thus has the position of another word. (If the model encodes positions only in a table, this equals
    permuting its `position_ids`; a causal model also sees the words in the permuted order.) By sentence, `told` is the
    attention to the key at the offset in the permuted order, `told_true` the attention to the key at the offset in the
    sentence, each as `mass` of `mass_at_offsets`. The seed is the request's `permuted_tokens_seed`.
    """

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        places = torch.from_numpy(permuted_positions(tokens, seed))

        def begin(batch: SentenceBatch) -> StackedBlocks:
            padding = torch.arange(batch.mask.shape[1], device=batch.mask.device).expand_as(batch.mask)
            # For each true position, where its token is read.
            place = torch.where(batch.mask, places.to(batch.rows.device)[batch.rows], padding)
            return StackedBlocks(lambda attention: _in_both_orders(attention.probabilities, batch.ordinary, place))

        return begin

    return Measure(PERMUTED, of_corpus, {"version": 1})


def _in_both_orders(read: Tensor, ordinary: Tensor, place: Tensor) -> dict[str, Tensor]:
    queries = place[:, None, :, None].expand_as(read)
    true = read.gather(2, queries).gather(3, place[:, None, None, :].expand_as(read))
    return {
        "told": mass_at_offsets(read, ordinary)["mass"],
        "told_true": mass_at_offsets(true, ordinary.gather(1, place))["mass"],
    }


def permuted_positions(tokens: Tokens, seed: int) -> Any:
    """Return each token's position in the permuted order, shape (n_tokens,), int64; special tokens do not move."""
    index = np.arange(tokens.n_tokens)
    (drawn,) = permute_within_sentences(
        np.where(tokens.special, -1, index), tokens.sentences, tokens.input_ids, 1, seed
    )
    return np.where(tokens.special, index, drawn) - np.repeat(tokens.offsets[:-1], tokens.lengths)


# --------------------------------------------------------------------------------------------------------------------
# Parts of a survey on position heads: which heads they are, and whether they read a run's top-ranked neurons.
# --------------------------------------------------------------------------------------------------------------------

Stores = Mapping[str, SumsStore]
POSITION_HEADS = "position_heads"
# A head is a position head if it gives more than this to one offset (Clark et al. 2019), or attends there most of all
# in this share of the queries (Voita et al. 2019).
MOST_MASS, MOST_HITS = 0.5, 0.9
# Number of heads whose neurons are reported even if they are not position heads: those with the most attention to the
# word at their offset.
CLEAREST = 3
# Random bases: with 20, a value above all of them has p = .048.
BASES = 20

_TRAIN, _TEST, _PERMUTED = "position train", "position test", "position told"


def joined(rows: Rows, more: Rows) -> Rows:
    """Return rows extended by the columns of other rows for the same heads."""
    columns = {(row["layer"], row["head"]): row for row in more}
    return [{**row, **columns.get((row["layer"], row["head"]), {})} for row in rows]


def _lacks_run(survey: HeadSurvey) -> str | None:
    if survey.run is None:
        return "a run of `fit` on position to compare with, given as --run RUN"
    return _lacks_sides(survey)


def _lacks_sides(survey: HeadSurvey) -> str | None:
    n_train, n_test = int(survey.is_train.sum()), int(survey.tested[1].sum())
    if not n_train or not n_test:
        return f"sentences to choose offsets by and others to report on, and there are {n_train:,} and {n_test:,}"
    return None


def _lacks_neurons(survey: HeadSurvey) -> str | None:
    if lack := _lacks_run(survey):
        return lack
    assert survey.run is not None
    if not {layer - 1 for layer in survey.layers} & set(survey.run.layers):
        entering = ", ".join(str(layer - 1) for layer in survey.layers)
        return (
            f"a ranking of the neurons that enter a block, layers {entering}, and `--run {survey.run.name}` has "
            f"layers {', '.join(map(str, survey.run.layers))}"
        )
    try:
        survey.query_keys  # noqa: B018
    except UserError as error:
        return f"positions that heads read from the hidden states that enter a block, and {as_clause(error)}"
    return None


# --- which heads are position heads, and do they follow the positions that they are told? ---


def _readings(survey: HeadSurvey, *, states: bool = False, permuted: bool = False) -> list[SurveyInputs]:
    """Return the samples to choose offsets by and to report on, and the latter with its words permuted."""
    train, test = sample_requests(survey)
    readings = [SurveyInputs(name, of, [AT_OFFSETS], states) for name, of in ((_TRAIN, train), (_TEST, test))]
    if permuted:
        request = replace(test, permuted_tokens_seed=survey.seed)
        readings.append(SurveyInputs(_PERMUTED, request, [permuted_offsets(survey.seed)]))
    return readings


def _head_tables(survey: HeadSurvey, stores: Stores) -> dict[str, Rows]:
    names = (f"{_TEST}/{AT_OFFSETS.name}", f"{_PERMUTED}/{PERMUTED}")
    return {POSITION_HEADS: _offset_rows(survey, stores, names)[0]}


def _offset_rows(survey: HeadSurvey, stores: Stores, names: Sequence[str]) -> tuple[Rows, SentenceDraws]:
    """Return a row for each reported head, from the sums of some readings, and the draws of their sentences."""
    sums = {
        name: values.numpy()
        for reading in names
        if reading in stores
        for name, values in stores[reading].all_by_sentence().items()
    }
    sentences = SentenceDraws(len(sums["n"]), survey.seed)
    rows = head_rows(sums, chosen_offsets(stores), sentences)
    return [row for row in rows if row["layer"] in survey.layers], sentences


def chosen_offsets(stores: Stores) -> NDArray[np.int64]:
    """Return the index of each head's offset with the most attention in training sentences, shape (layers, heads)."""
    sums = stores[f"{_TRAIN}/{AT_OFFSETS.name}"].all_by_sentence()
    mass, n = (sums[name].sum(0).numpy() for name in ("mass", "n"))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(mass / n, nan=-1).argmax(2)


def head_rows(sums: Mapping[str, NDArray[np.float64]], chosen: NDArray[np.int64], sentences: SentenceDraws) -> Rows:
    """Return a row for each head, with its attention to its offset.

    `sums` has sums by name, shape (n_sentences, layers, heads, offsets), and `n`, the number of queries, shape
    (n_sentences, layers, 1, offsets). `chosen` has the index of each head's offset, shape (layers, heads).
    """
    rows: dict[tuple[int, int], Row] = {}
    for at in np.unique(chosen).tolist():
        layers, heads = np.nonzero(chosen == at)
        counts = sums["n"][:, 0, 0, at]
        means = {
            name: sentences.means(values[:, layers, heads, at], counts) for name, values in sums.items() if name != "n"
        }
        for i, (layer, head) in enumerate(zip(layers.tolist(), heads.tolist(), strict=True)):
            row: Row = {"layer": layer + 1, "head": head + 1, "offset": OFFSETS[at]}
            for name, mean in means.items():
                row |= mean.row(i, name=name)
            is_position_head = row["mass"] > MOST_MASS or row["hit"] >= MOST_HITS
            rows[layer, head] = {**row, "position_head": "yes" if is_position_head else "no"}
    return [rows[at] for at in sorted(rows)]


# --- which neurons do they read? ---


def _neuron_tables(survey: HeadSurvey, stores: Stores) -> dict[str, Rows]:
    run = survey.run
    assert run is not None
    of_heads, sentences = _offset_rows(survey, stores, [f"{_TEST}/{AT_OFFSETS.name}"])
    chosen, examined = chosen_offsets(stores), _examined(of_heads, run.layers)
    train, test = (
        SampledWords.of(cast(Any, stores[f"{name}/{STATES}"]), survey.heads.is_causal) for name in (_TRAIN, _TEST)
    )
    tables: dict[str, Rows] = {POSITION_HEADS: [], "position_neurons": [], "position_removal": []}
    bases = random_bases(run.weight.shape[2], BASES, survey.seed)
    for layer in survey.layers:
        block = Block.of(layer, survey.query_keys[layer - 1], (train, test), run, bases, survey.seed)
        for at in np.unique(chosen[layer - 1]).tolist():
            heads = np.flatnonzero(chosen[layer - 1] == at).tolist()
            at_offset = AtOffset(block, OFFSETS[at])
            pairs = zip(at_offset.contrasts(heads, sentences), at_offset.agreements(heads), strict=True)
            for head, (contrast, agreement) in zip(heads, pairs, strict=True):
                named = {"layer": layer, "head": head + 1, "offset": OFFSETS[at]}
                tables[POSITION_HEADS].append({**named, **contrast, **agreement})
                if (layer, head + 1) in examined:
                    tables["position_neurons"] += [{**named, **row} for row in at_offset.neurons(head)]
                    tables["position_removal"] += [{**named, **row} for row in at_offset.removals(head)]
    return {name: sorted(rows, key=lambda row: (row["layer"], row["head"])) for name, rows in tables.items()}


def _examined(rows: Rows, ranked_layers: Any) -> set[tuple[int, int]]:
    """Return the heads whose neurons are reported: position heads and the clearest heads, in blocks with a ranking."""
    ranked = [row for row in rows if row["layer"] - 1 in ranked_layers]
    clearest = sorted(ranked, key=lambda row: -np.nan_to_num(row["word_mass"], nan=-1))[:CLEAREST]
    examined = [*clearest, *(row for row in ranked if row["position_head"] == "yes")]
    return {(row["layer"], row["head"]) for row in examined}


POSITION_PARTS = (
    SurveyPart(
        POSITION_HEADS, _head_tables, needs=_lacks_run, beside=lambda survey: _readings(survey, permuted=True),
        by_name_only=True,
    ),
    SurveyPart(
        "position_neurons", _neuron_tables, needs=_lacks_neurons, beside=lambda survey: _readings(survey, states=True),
        by_name_only=True,
    ),
)  # fmt: skip
# The first of these parts without a run: it measures how much heads attend to a fixed offset, but not whether they
# follow permuted positions.
OFFSET_HEADS = SurveyPart(POSITION_HEADS, _head_tables, needs=_lacks_sides, beside=_readings)
