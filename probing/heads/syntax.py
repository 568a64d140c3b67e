"""Dependency arcs of a treebank between words of the model's input, and the heads whose attention follows them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.errors import UserError
from probing.heads.accumulation import (
    BatchValues,
    Begin,
    BlockAttention,
    Measure,
    SentenceBatch,
    StackedBlocks,
    SumsStore,
)
from probing.heads.measures import Row, Rows, accuracy_cells, corrected, difference_cells
from probing.statistics.chance import largest_z_test
from probing.text import Corpus
from probing.text.columns import UNSPECIFIED
from probing.text.tokens import Tokens

HEAD, RELATION = "head", "deprel"
PUNCTUATION = "punct"


@dataclass(frozen=True)
class Arcs:
    """Arcs from dependents to their heads, in the order of the corpus, each attribute of shape (n_arcs,).

    Arcs to the root are excluded: there is no word for it. Words are counted from 0 in their sentence; relations
    include their subtypes.
    """

    sentences: NDArray[np.int64]
    dependents: NDArray[np.int64]
    heads: NDArray[np.int64]
    relations: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.sentences)

    def where(self, chosen: NDArray[np.bool_]) -> Arcs:
        """Return the arcs in a mask."""
        return Arcs(self.sentences[chosen], self.dependents[chosen], self.heads[chosen], self.relations[chosen])

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Offset in words from the dependent to the head."""
        return self.heads - self.dependents

    @property
    def is_punctuation(self) -> NDArray[np.bool_]:
        """Mask of the arcs of punctuation."""
        return _are_punctuation(self.relations.tolist())


def punctuation_of(corpus: Corpus) -> list[NDArray[np.bool_]]:
    """Return, for each sentence of a treebank, a mask of the words that are attached as punctuation."""
    return [_are_punctuation(of_words) for of_words in corpus.columns[RELATION]]


def _are_punctuation(relations: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([relation.split(":")[0] == PUNCTUATION for relation in relations], dtype=bool)


def has_arcs(corpus: Corpus) -> bool:
    """Return True if the corpus has the treebank columns of arcs."""
    return corpus.words is not None and HEAD in corpus.columns and RELATION in corpus.columns


def arcs_of(corpus: Corpus, option: str = "--corpus") -> Arcs:
    """Return all arcs of a treebank but those to the root; words with head `_` have none.

    Raises:
        UserError: If the columns are missing, or a head is not the number of another word of its sentence.
    """
    if not has_arcs(corpus):
        raise UserError(
            f"`{option} {corpus.name}` has no dependency relations: they need the columns `{HEAD}` and `{RELATION}` "
            "of a treebank; give a .conllu file."
        )
    triples: list[tuple[int, int, int]] = []
    relations: list[str] = []
    columns = zip(corpus.columns[HEAD], corpus.columns[RELATION], strict=True)
    for sentence, (heads, of_words) in enumerate(columns):
        for word, (head, relation) in enumerate(zip(heads, of_words, strict=True)):
            if head in (UNSPECIFIED, "0"):
                continue
            number = int(head) if head.isdecimal() and len(head) < 10 else 0
            if not 1 <= number <= len(heads) or number == word + 1:
                raise UserError(
                    f"`{option} {corpus.name}`: word {word + 1} of the sentence `{corpus.sentences[sentence]:.60}` has "
                    f"the head `{head}`, where 0 or the number of another of its {len(heads)} words was expected; "
                    "correct the treebank."
                )
            triples.append((sentence, word, number - 1))
            relations.append(relation)
    table = np.array(triples, dtype=np.int64).reshape(-1, 3)
    return Arcs(table[:, 0], table[:, 1], table[:, 2], np.array(relations, dtype=object))


class LastPieceRows:
    """An index of each word's last piece in the table of tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self.rows = np.flatnonzero(tokens.last_pieces)
        # Sentences are ascending, and so are the words of a sentence.
        self.keys = self._key(tokens.sentences[self.rows].astype(np.int64), tokens.words[self.rows].astype(np.int64))

    def of(self, sentences: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each word, shape (n,); -1 if it has no piece."""
        keys = self._key(sentences, words)
        index = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[index] == keys, self.rows[index], -1)

    @staticmethod
    def _key(sentences: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
        return (sentences << 16) | words


# Marks a word that has no piece, or whose sentence has no other word with a piece.
NONE = -1


@dataclass(frozen=True)
class WordBatch:
    """The words of a batch: index of each token's word, -1 for special tokens and padding, (batch, sequence)."""

    words: Tensor

    @classmethod
    def of(cls, batch: SentenceBatch, is_selected: Tensor | None = None) -> WordBatch:
        """Return the words of a batch; the first token of a causal model is special and belongs to no word.

        `is_selected` is a mask of the tokens of selected words, shape (batch, sequence); None for all.
        """
        return cls(
            torch.where(batch.ordinary if is_selected is None else batch.ordinary & is_selected, batch.words, NONE)
        )

    @cached_property
    def pieces(self) -> Tensor:
        """Mask of the pieces of each word, shape (batch, sequence, words), float32."""
        n_words = int(self.words.max()) + 1 if self.words.numel() else 0
        return (self.words[:, :, None] == torch.arange(n_words, device=self.words.device)).float()

    @cached_property
    def n_pieces(self) -> Tensor:
        """Number of pieces of each word, shape (batch, words), float32."""
        return self.pieces.sum(1)

    @cached_property
    def present(self) -> Tensor:
        """Mask of the words that have a piece, shape (batch, words)."""
        return self.n_pieces > 0

    @cached_property
    def means(self) -> Tensor:
        """The map from pieces to means over the pieces of each word, shape (batch, words, sequence), float32."""
        return (self.pieces / self.n_pieces.clamp_min(1)[:, None]).transpose(1, 2)

    @cached_property
    def pairs(self) -> Tensor:
        """Mask of the pairs of different words that are both present, shape (batch, words, words)."""
        both = self.present[:, :, None] & self.present[:, None, :]
        return both & ~torch.eye(both.shape[1], dtype=torch.bool, device=both.device)

    @cached_property
    def has_another(self) -> Tensor:
        """Mask of the words that are present with another word, shape (batch, words)."""
        return self.pairs.any(2)

    def maps(self, probabilities: Tensor) -> Tensor:
        """Return the attention between different words, shape (batch, heads, from, to); 0 elsewhere."""
        n, heads, length, _ = probabilities.shape
        pieces, means = self.pieces.to(probabilities.dtype), self.means.to(probabilities.dtype)
        # Heads and queries are one axis here, so that the matrix of pieces is not repeated for each head.
        to_words = (probabilities.reshape(n, heads * length, length) @ pieces).view(n, heads, length, -1)
        return (means[:, None] @ to_words).masked_fill_(~self.pairs[:, None], 0.0)

    def at_tokens(self, values: Tensor) -> Tensor:
        """Return values of words, (batch, ..., words), at their tokens, (batch, sequence, ...); `NONE` elsewhere."""
        if not values.shape[-1]:
            return values.new_full((*self.words.shape, *values.shape[1:-1]), NONE)
        by_word = values.movedim(-1, 1)
        rows = torch.arange(len(self.words), device=self.words.device)[:, None]
        token_values = by_word[rows, self.words.clamp_min(0)]
        token_values[self.words < 0] = NONE
        return token_values


class AttendedWords(NamedTuple):
    """For each word, the other word with the largest attention, each of shape (batch, heads, words), int16.

    `from_word` is the word that this word attends to most, `to_word` the word that attends to this word most. Ties go
    to the lower index. `NONE` if the word, or all others, have no piece.
    """

    from_word: Tensor
    to_word: Tensor


def most_attended(maps: Tensor, words: WordBatch) -> AttendedWords:
    """Return for each word the word that it attends to most, and the word that attends to it most."""
    if not maps.shape[-1]:
        nothing = torch.empty(maps.shape[:3], dtype=torch.int16, device=maps.device)
        return AttendedWords(nothing, nothing)
    candidates = maps.masked_fill(~words.pairs[:, None], -1.0)
    missing = ~words.has_another[:, None]
    # The transpose is copied, because argmax takes five times as long over columns as over rows.
    both = (candidates, candidates.transpose(2, 3).contiguous())
    return AttendedWords(*(weights.argmax(3).to(torch.int16).masked_fill_(missing, NONE) for weights in both))


def by_word(name: str, of_words: Callable[[Tensor, WordBatch], Tensor], words: WordBatch) -> StackedBlocks:
    """Return an accumulator of values of words, (batch, heads, ..., words), of maps of words, listed by token."""

    def at_tokens(stacked: dict[str, Tensor]) -> BatchValues:
        return BatchValues(by_token={name: words.at_tokens(stacked[name])})

    return StackedBlocks(lambda attention: {name: of_words(words.maps(attention.probabilities), words)}, 1, at_tokens)


def _both_directions(maps: Tensor, words: WordBatch) -> Tensor:
    return torch.stack(most_attended(maps, words), dim=2)


# The measure: for each word and head, the word that it attends to most and the word that attends to it most. It needs
# no annotation, so that any treebank of the same words can be compared with it. It is stored by token, with the same
# value for all pieces of a word: shape (n_tokens, n_layers, heads, 2), int16.
MOST_ATTENDED = Measure(
    "most_attended",
    lambda tokens, corpus: lambda batch: by_word("most_attended", _both_directions, WordBatch.of(batch)),
    {"version": 1},
)


# Most bytes of the pairs of a corpus.
MOST_BYTES = 512 * 2**20
# Stands for the attention between a word and itself, or a word that is not there.
NO_PAIR = -1.0


def sample_sentences(corpus: Corpus, n_heads: int, seed: int, most_bytes: int = MOST_BYTES) -> NDArray[np.bool_]:
    """Return a random sample of sentences whose word pairs fit into `most_bytes`, shape (n_sentences,).

    A pair takes 4 bytes a head; `n_heads` counts the heads of all blocks. Sentences are taken in random order, and the
    first sentence that does not fit ends the sample.
    """
    order = np.random.default_rng(seed).permutation(len(corpus.sentences))
    lengths = np.array([len(words) for words in corpus.words or ()], dtype=np.int64)
    size = np.cumsum(lengths[order] ** 2) * 4 * n_heads
    is_sampled = np.zeros(len(order), dtype=bool)
    is_sampled[order[size <= most_bytes]] = True
    return is_sampled


PAIRS = "pairs"


def head_pairs(sentences: NDArray[np.bool_]) -> Measure:
    """Return the measure of the attention between the words of a sample of sentences, a mask of shape (n_sentences,).

    `pairs` is listed by sentence: for its n words, n * n rows of shape (n_layers, heads), float32, the attending word
    first; `NO_PAIR` between a word and itself, and for a word without a piece.
    """

    def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
        lengths = torch.tensor([len(words) for words in corpus.words or ()])
        n_words = torch.where(torch.from_numpy(sentences), lengths, 0)
        return lambda batch: _HeadPairs(batch, n_words[batch.sentences.cpu()].tolist())

    return Measure(PAIRS, of_corpus, {"version": 1, "of": hashlib.sha256(sentences.tobytes()).hexdigest()})


class _HeadPairs(StackedBlocks):
    def __init__(self, batch: SentenceBatch, n_words: list[int]) -> None:
        super().__init__(self._pairs, -1, self._listed)
        self.n_words = n_words
        self.chosen = [i for i, n in enumerate(n_words) if n]
        self.words = WordBatch(WordBatch.of(batch).words[self.chosen])

    def _pairs(self, attention: BlockAttention) -> dict[str, Tensor]:
        maps = self.words.maps(attention.probabilities[self.chosen])
        return {PAIRS: maps.masked_fill_(~self.words.pairs[:, None], NO_PAIR).float()}

    def _listed(self, stacked: dict[str, Tensor]) -> BatchValues:
        maps = stacked[PAIRS].movedim((1, 4), (4, 3)).cpu()  # sentence, from, to, layers, heads
        rows = [torch.empty(0, *maps.shape[3:])] * len(self.n_words)
        for index, of_sentence in zip(self.chosen, maps, strict=True):
            n = self.n_words[index]
            present = of_sentence[:n, :n]  # words that were cut off are not in it
            pair_rows = torch.full((n, n, *maps.shape[3:]), NO_PAIR)
            pair_rows[: len(present), : len(present)] = present
            rows[index] = pair_rows.flatten(0, 1)
        return BatchValues(listed={PAIRS: rows})


# --------------------------------------------------------------------------------------------------------------------
# Which head carries which dependency relation, beside the best fixed offset and a randomly initialised model.
# --------------------------------------------------------------------------------------------------------------------

DRAWS = 1000


@dataclass(frozen=True)
class Finder:
    """An attention head and an offset (dependent to head) that both predict the syntactic heads of `arcs`."""

    arcs: NDArray[np.int64]
    predicted: NDArray[np.int64]
    offset: int

    def lead(self, dependents: NDArray[np.int64], heads: NDArray[np.int64]) -> float:
        """Return the accuracy of the attention head minus the accuracy of the offset, given all arcs."""
        gold_heads = heads[self.arcs]
        at_offset = gold_heads - dependents[self.arcs] == self.offset
        return float((np.count_nonzero(self.predicted == gold_heads) - np.count_nonzero(at_offset)) / len(gold_heads))


def compare_leads(
    arcs: Arcs, finders: Sequence[Finder], seed: int, n_draws: int = DRAWS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compare the leads of finders with those under permuted syntactic heads; `arcs` are all arcs of the sentences.

    Returns:
        The mean lead of each finder over the permutations, and the one-sided p-value of its true lead, corrected for
            the number of finders by the largest standardised lead of each permutation; shape (n_finders,).
    """
    arrangements = [arcs.heads, *permuted_heads(arcs, n_draws, np.random.default_rng(seed))]
    leads = np.array([[finder.lead(arcs.dependents, heads) for finder in finders] for heads in arrangements])
    return leads[1:].mean(0), largest_z_test(leads)[1]


def permuted_heads(arcs: Arcs, n_draws: int, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield random arrangements of the syntactic heads within sentences, each of shape (n_arcs,), without loops."""
    sentences = np.unique(arcs.sentences, return_inverse=True)[1]
    for _ in range(n_draws):
        heads, open_arcs = arcs.heads.copy(), np.arange(len(arcs))
        # The true arrangement is permitted, so that every sentence has one that is.
        while len(open_arcs):
            # Sentences stand in their order, so that sorting by sentence shuffles within sentences alone.
            heads[open_arcs] = heads[open_arcs[np.argsort(sentences[open_arcs] + generator.random(len(open_arcs)))]]
            has_loop = np.zeros(sentences[-1] + 1, dtype=bool)
            has_loop[sentences[open_arcs[heads[open_arcs] == arcs.dependents[open_arcs]]]] = True
            open_arcs = open_arcs[has_loop[sentences[open_arcs]]]
        yield heads


# Fewest arcs of a relation in the training and in the test part.
LEAST_ARCS = 100
# Offsets from a dependent to its head; of equally good ones the nearest is chosen, the preceding word first.
OFFSETS = tuple(sign * distance for distance in range(1, 11) for sign in (-1, 1))
Query = Literal["dependent", "head"]
# In the order in which they are kept; of equally good ones the first is chosen.
QUERIES: tuple[Query, ...] = ("dependent", "head")


@dataclass(frozen=True)
class ScoredArcs:
    """The arcs of a treebank, and which of them each head, or each head's tree, predicts correctly.

    Args:
        arcs: The arcs between words of the model's input.
        right: Whether a head is correct, shape (n_arcs, n_layers, heads), or (..., 2) with the last axis as `QUERIES`.
        predicted: Word predicted for the dependent of an arc, in the same shape; None if no heads are to be permuted.
        chain: Whether an arc is between neighbours, shape (n_arcs,); None without trees.
    """

    arcs: Arcs
    right: NDArray[np.bool_]
    predicted: NDArray[np.int16] | None = None
    chain: NDArray[np.bool_] | None = None

    def where(self, chosen: NDArray[np.bool_]) -> ScoredArcs:
        """Return the arcs in a mask."""
        predicted = None if self.predicted is None else self.predicted[chosen]
        chain = None if self.chain is None else self.chain[chosen]
        return ScoredArcs(self.arcs.where(chosen), self.right[chosen], predicted, chain)

    def of_sentences(self, chosen: NDArray[np.bool_]) -> ScoredArcs:
        """Return the arcs of the sentences in a mask."""
        return self.where(chosen[self.arcs.sentences])

    def of_layers(self, layers: Sequence[int]) -> ScoredArcs:
        """Return the same arcs with the heads of some layers, given by their numbers."""
        indices = [layer - 1 for layer in layers]
        predicted = None if self.predicted is None else self.predicted[:, indices]
        return replace(self, right=self.right[:, indices], predicted=predicted)


def arcs_with_values(
    arcs: Arcs, tokens: Tokens, has_value: NDArray[np.bool_]
) -> tuple[Arcs, NDArray[np.int64], NDArray[np.int64]]:
    """Return the arcs between words whose tokens are in a mask, and the rows of their dependents and of their heads.

    The mask has shape (n_tokens,). Words that were truncated have no arcs.
    """
    rows_of = LastPieceRows(tokens)
    dependents, heads = rows_of.of(arcs.sentences, arcs.dependents), rows_of.of(arcs.sentences, arcs.heads)
    inside = (dependents >= 0) & (heads >= 0) & has_value[dependents] & has_value[heads]
    return arcs.where(inside), dependents[inside], heads[inside]


# The scores of heads on the arcs to choose heads on and on those to report.
Parts = tuple[ScoredArcs, ScoredArcs]


def scored(store: SumsStore, corpus: Corpus, option: str = "--corpus") -> ScoredArcs:
    """Return the arcs of a treebank with the correct predictions of each head, without arcs of punctuation.

    `store` has the sums of `MOST_ATTENDED`. In a causal model, the first word may consist of the first token alone,
    which belongs to no word; its arcs are then left out.

    Raises:
        UserError: If the corpus has no dependency relations, or they are malformed.
    """
    arcs, attended = arcs_of(corpus, option), store.by_token(MOST_ATTENDED.name).numpy()
    has_value = attended[:, 0, 0, 0] != NONE
    arcs, dependents, _ = arcs_with_values(arcs.where(~arcs.is_punctuation), store.tokens, has_value)
    predicted = attended[dependents]
    return ScoredArcs(arcs, predicted == arcs.heads[:, None, None, None], predicted)


def relation_rows(
    train: ScoredArcs,
    test: ScoredArcs,
    untrained: Parts | None = None,
    least: int = LEAST_ARCS,
    seed: int = 0,
    n_draws: int = DRAWS,
) -> Rows:
    """Return a row for each relation that has enough arcs in both parts, the most frequent in training first.

    `difference` is the accuracy of the chosen head minus the accuracy of the chosen offset, on the same test arcs. Its
    p-value is two-sided and corrected for the number of relations (Holm). Confidence intervals are over sentences.
    `difference_permuted` is the mean difference with permuted syntactic heads, and `p_permuted` tests whether the true
    difference is larger. `least` is the minimum number of arcs of a relation in each part; `untrained` are both parts
    for a randomly initialised model, whose head is chosen in the same way.
    """
    rows = []
    for name in _frequent(train, test, least):
        parts = _of_relation(name, train, test)
        others = _of_relation(name, *untrained) if untrained else None
        rows.append({"relation": name, **_row(*parts, best_head(parts[0].right)), **untrained_cells(others)})
    return corrected(_beside_permuted(rows, test, seed, n_draws))


def head_relation_rows(
    train: ScoredArcs, test: ScoredArcs, least: int = LEAST_ARCS, seed: int = 0, n_draws: int = DRAWS
) -> Rows:
    """Return a row for each head, in the order of layers and heads: the relation that it is best at.

    This is the relation for which the head's training accuracy exceeds the best offset's accuracy most (ties: the most
    frequent). Accuracy alone would choose, for most heads, a relation between neighbouring words, which any head that
    attends to nearby words predicts. Accuracies are on the test sentences; p-values are corrected for the number of
    heads (Holm; `p_permuted` by the largest of each permutation). `least` is the minimum number of arcs of a relation
    in each part.
    """
    names = _frequent(train, test, least)
    if not names:
        return []
    parts = [_of_relation(name, train, test) for name in names]
    above = np.stack([scored_part.right.mean(0) - best_offset(scored_part.arcs)[1] for scored_part, _ in parts])
    rows = []
    for layer, head in np.ndindex(*train.right.shape[1:3]):
        # By relation, then query.
        chosen, query = divmod(int(above[:, layer, head].argmax()), len(QUERIES))
        row = _row(*parts[chosen], (layer, head, query))
        rows.append({"layer": row.pop("layer"), "head": row.pop("head"), "relation": names[chosen], **row})
    return corrected(_beside_permuted(rows, test, seed, n_draws))


def _frequent(train: ScoredArcs, test: ScoredArcs, least: int) -> list[str]:
    """Return the relations that have enough arcs in both parts, the most frequent in training first."""
    names, counts = np.unique(train.arcs.relations.astype(str), return_counts=True)
    tested = Counter(test.arcs.relations.tolist())
    order = np.argsort(-counts, kind="stable")
    return [str(names[i]) for i in order if min(int(counts[i]), tested[str(names[i])]) >= least]


def _of_relation(name: str, train: ScoredArcs, test: ScoredArcs) -> Parts:
    return train.where(train.arcs.relations == name), test.where(test.arcs.relations == name)


def _beside_permuted(rows: Rows, test: ScoredArcs, seed: int, n_draws: int) -> Rows:
    """Return rows with the lead over the offset if the syntactic heads of each sentence are permuted."""
    if test.predicted is None or not rows:
        return rows
    finders = []
    for row in rows:
        arcs = np.flatnonzero(test.arcs.relations == row["relation"])
        predicted = test.predicted[arcs, row["layer"] - 1, row["head"] - 1, QUERIES.index(row["query"])]
        finders.append(Finder(arcs, predicted.astype(np.int64), row["offset"]))
    permuted_leads = compare_leads(test.arcs, finders, seed, n_draws)
    return [
        {**row, "difference_permuted": float(permuted), "p_permuted": float(p)}
        for row, permuted, p in zip(rows, *permuted_leads, strict=True)
    ]


def _row(train: ScoredArcs, test: ScoredArcs, chosen: tuple[int, ...]) -> Row:
    """Return the accuracy of a head, given by indices of layer, head and query, and of the best offset."""
    offset, offset_train = best_offset(train.arcs)
    at_offset = test.arcs.offsets == offset
    return {
        "query": QUERIES[chosen[2]],
        "offset": offset,
        "offset_train": offset_train,
        **head_cells(train, test, chosen, at_offset, "offset_test"),
    }


def head_cells(
    train: ScoredArcs, test: ScoredArcs, chosen: tuple[int, ...], baseline: NDArray[np.bool_], name: str = "baseline"
) -> Row:
    """Return the accuracy of a head, given by its indices, on both parts, beside a baseline on the test part."""
    place: Any = (slice(None), *chosen)
    of_parts = part_cells(train.arcs, train.right[place], test.arcs, test.right[place], baseline, name)
    return {"layer": chosen[0] + 1, "head": chosen[1] + 1, **of_parts}


def part_cells(
    train: Arcs, right_on_train: NDArray[np.bool_], test: Arcs, right: NDArray[np.bool_],
    baseline: NDArray[np.bool_], name: str = "baseline",
) -> Row:  # fmt: skip
    """Return the accuracy on the arcs of both parts, and on the test part also that of a baseline."""
    n, correct, of_baseline = by_sentence(test, np.ones_like(right), right, baseline)
    return {
        "n_train": len(train),
        "n_test": len(test),
        "train": float(right_on_train.mean()),
        **accuracy_cells("test", correct, n),
        **accuracy_cells(name, of_baseline, n),
        **difference_cells("difference", correct - of_baseline, n),
    }


def untrained_cells(untrained: Parts | None) -> Row:
    """Return the accuracy of a randomly initialised model's head that is best in training; none without this model."""
    if untrained is None:
        return {}
    train, test = untrained
    place: Any = (slice(None), *best_head(train.right))
    right = test.right[place]
    return accuracy_cells("untrained", *by_sentence(test.arcs, right, np.ones_like(right)))


def best_head(right: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the indices of the layer, head and query with the highest accuracy; ties go to the first."""
    totals = right.sum(0)
    return tuple(int(index) for index in np.unravel_index(int(totals.argmax()), totals.shape))


def best_offset(arcs: Arcs) -> tuple[int, float]:
    """Return the most frequent offset from dependent to head, and the share of arcs with it."""
    shares = (arcs.offsets[:, None] == np.array(OFFSETS)).mean(0)
    best = int(shares.argmax())
    return OFFSETS[best], float(shares[best])


def by_sentence(arcs: Arcs, *values: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the sums of counts by arc over the arcs of each sentence, for sentences with arcs."""
    sentences = np.unique(arcs.sentences, return_inverse=True)[1]
    return [np.bincount(sentences, weights=counts).astype(np.int64) for counts in values]
