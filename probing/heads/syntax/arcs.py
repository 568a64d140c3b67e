"""The dependency arcs of a treebank, between words that a model has read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.corpus.columns import UNSPECIFIED
from probing.errors import UserError
from probing.heads.reading import Accumulator, Attention, Batch, Kept

HEAD, RELATION = "head", "deprel"
PUNCTUATION = "punct"


@dataclass(frozen=True)
class Arcs:
    """Arcs from dependents to their heads, in the order of the corpus, each of shape (n_arcs,).

    Arcs to the root are left out: there is no word for it. Words are counted from 0 in their sentence.

    Args:
        sentences: Index of the sentence.
        dependents: Index of the dependent.
        heads: Index of the head.
        relations: The relation with its subtype, objects.
    """

    sentences: NDArray[np.int64]
    dependents: NDArray[np.int64]
    heads: NDArray[np.int64]
    relations: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.sentences)

    def where(self, chosen: NDArray[np.bool_]) -> Arcs:
        """Return some of the arcs, given whether each is chosen."""
        return Arcs(self.sentences[chosen], self.dependents[chosen], self.heads[chosen], self.relations[chosen])

    @property
    def offsets(self) -> NDArray[np.int64]:
        """How many words the head is behind the dependent."""
        return self.heads - self.dependents

    @property
    def is_punctuation(self) -> NDArray[np.bool_]:
        """Whether the relation is that of punctuation."""
        return _are_punctuation(self.relations.tolist())


def punctuation_of(corpus: Corpus) -> list[NDArray[np.bool_]]:
    """Return for each sentence of a treebank which of its words are attached as punctuation."""
    return [_are_punctuation(of_words) for of_words in corpus.columns[RELATION]]


def _are_punctuation(relations: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([relation.split(":")[0] == PUNCTUATION for relation in relations], dtype=bool)


def has_arcs(corpus: Corpus) -> bool:
    """Whether a corpus has the columns of a treebank that arcs are read from."""
    return corpus.words is not None and HEAD in corpus.columns and RELATION in corpus.columns


def arcs_of(corpus: Corpus, option: str = "--corpus") -> Arcs:
    """Return all arcs of a treebank but those to the root; words whose head is `_` have none.

    Args:
        corpus: A corpus with the columns `head` and `deprel`.
        option: The option that names it, for messages.

    Raises:
        UserError: If the columns are missing, or a head is not the number of another word of its sentence.
    """
    if not has_arcs(corpus):
        raise UserError(
            f"`{option} {corpus.name}` has no dependency relations: they need the columns `{HEAD}` and `{RELATION}` "
            "of a treebank; give a .conllu file."
        )
    found: list[tuple[int, int, int]] = []
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
            found.append((sentence, word, number - 1))
            relations.append(relation)
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return Arcs(table[:, 0], table[:, 1], table[:, 2], np.array(relations, dtype=object))


class WordRows:
    """Finds the row of a word's last piece in the table of tokens.

    Args:
        tokens: The table of tokens.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.rows = np.flatnonzero(tokens.last_pieces)
        # Sentences are ascending, and so are the words of a sentence.
        self.keys = self._key(tokens.sentences[self.rows].astype(np.int64), tokens.words[self.rows].astype(np.int64))

    def of(self, sentences: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each word, -1 where it has no piece; shape (n,)."""
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
    """The words of a batch of sentences.

    Args:
        words: Index of each token's word in its sentence, -1 for special tokens and padding, shape (batch, sequence).
    """

    words: Tensor

    @classmethod
    def of(cls, batch: Batch, kept: Tensor | None = None) -> WordBatch:
        """Return the words of a batch; the first token of a causal model is special and belongs to no word.

        Args:
            batch: The sentences.
            kept: Whether a token is of a word that is kept, shape (batch, sequence); all are kept if None.
        """
        return cls(torch.where(batch.ordinary if kept is None else batch.ordinary & kept, batch.words, NONE))

    @cached_property
    def pieces(self) -> Tensor:
        """Whether a token is a piece of a word, shape (batch, sequence, words), float32."""
        n_words = int(self.words.max()) + 1 if self.words.numel() else 0
        return (self.words[:, :, None] == torch.arange(n_words, device=self.words.device)).float()

    @cached_property
    def n_pieces(self) -> Tensor:
        """Number of pieces of each word, shape (batch, words), float32."""
        return self.pieces.sum(1)

    @cached_property
    def present(self) -> Tensor:
        """Whether a word has a piece, shape (batch, words)."""
        return self.n_pieces > 0

    @cached_property
    def means(self) -> Tensor:
        """The map from pieces to means over the pieces of each word, shape (batch, words, sequence), float32."""
        return (self.pieces / self.n_pieces.clamp_min(1)[:, None]).transpose(1, 2)

    @cached_property
    def pairs(self) -> Tensor:
        """Whether two different words are there, shape (batch, words, words)."""
        both = self.present[:, :, None] & self.present[:, None, :]
        return both & ~torch.eye(both.shape[1], dtype=torch.bool, device=both.device)

    @cached_property
    def has_another(self) -> Tensor:
        """Whether a word is there and another one too, shape (batch, words)."""
        return self.pairs.any(2)

    def maps(self, probabilities: Tensor) -> Tensor:
        """Return the attention between different words, shape (batch, heads, from, to); 0 elsewhere.

        Args:
            probabilities: The attention between tokens, shape (batch, heads, from, to).
        """
        n, heads, length, _ = probabilities.shape
        pieces, means = self.pieces.to(probabilities.dtype), self.means.to(probabilities.dtype)
        # Heads and queries are one axis here, so that the matrix of pieces is not repeated for each head.
        to_words = (probabilities.reshape(n, heads * length, length) @ pieces).view(n, heads, length, -1)
        return (means[:, None] @ to_words).masked_fill_(~self.pairs[:, None], 0.0)

    def at_tokens(self, values: Tensor) -> Tensor:
        """Return for each token the value of its word, `NONE` for other tokens.

        Args:
            values: A value of each word, shape (batch, ..., words).

        Returns:
            Shape (batch, sequence, ...).
        """
        if not values.shape[-1]:
            return values.new_full((*self.words.shape, *values.shape[1:-1]), NONE)
        by_word = values.movedim(-1, 1)
        rows = torch.arange(len(self.words), device=self.words.device)[:, None]
        found = by_word[rows, self.words.clamp_min(0)]
        found[self.words < 0] = NONE
        return found


class Attended(NamedTuple):
    """For each word, the other word for which attention is largest, each of shape (batch, heads, words), int16.

    Ties go to the lower index. `NONE` for a word that has no piece, or if no other word has.

    Args:
        from_word: The word that this word attends to most.
        to_word: The word that attends to this word most.
    """

    from_word: Tensor
    to_word: Tensor


def most_attended(maps: Tensor, words: WordBatch) -> Attended:
    """Return for each word the word that it attends to most, and the word that attends to it most.

    Args:
        maps: The attention between words, shape (batch, heads, from, to).
        words: The words.
    """
    if not maps.shape[-1]:
        nothing = torch.empty(maps.shape[:3], dtype=torch.int16, device=maps.device)
        return Attended(nothing, nothing)
    candidates = maps.masked_fill(~words.pairs[:, None], -1.0)
    missing = ~words.has_another[:, None]
    # The transpose is copied, because argmax takes five times as long over columns as over rows.
    both = (candidates, candidates.transpose(2, 3).contiguous())
    return Attended(*(one.argmax(3).to(torch.int16).masked_fill_(missing, NONE) for one in both))


class MostAttended:
    """The measure: for each word and head, the word that it attends to most and the word that attends to it most.

    It needs no annotation, so that any treebank of the same words can be compared with it. `most_attended` is kept by
    token, each piece of a word having that of its word: shape (n_tokens, n_layers, heads, 2), int16.
    """

    name = "most_attended"
    settings: Mapping[str, Any] = {"version": 1}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        return _MostAttended


class _MostAttended:
    def __init__(self, batch: Batch) -> None:
        self.words = WordBatch.of(batch)
        self.found: list[Tensor] = []

    def add(self, attention: Attention) -> None:
        maps = self.words.maps(attention.probabilities)
        self.found.append(torch.stack(most_attended(maps, self.words), dim=2))

    def kept(self) -> Kept:
        return Kept(by_token={self.name: self.words.at_tokens(torch.stack(self.found, dim=1))})

    name = MostAttended.name


# Most bytes of the pairs of a corpus.
MOST_BYTES = 512 * 2**20
# Stands for the attention between a word and itself, or a word that is not there.
NO_PAIR = -1.0


def sample_sentences(corpus: Corpus, n_heads: int, seed: int, most_bytes: int = MOST_BYTES) -> NDArray[np.bool_]:
    """Return a random sample of sentences whose pairs of words fit into some memory, shape (n_sentences,).

    Args:
        corpus: A corpus of words.
        n_heads: Number of heads of all blocks together.
        seed: Seed of the order in which sentences are taken; the first one that does not fit ends the sample.
        most_bytes: Most bytes of the pairs, of 4 bytes a head.
    """
    order = np.random.default_rng(seed).permutation(len(corpus.sentences))
    lengths = np.array([len(words) for words in corpus.words or ()], dtype=np.int64)
    size = np.cumsum(lengths[order] ** 2) * 4 * n_heads
    found = np.zeros(len(order), dtype=bool)
    found[order[size <= most_bytes]] = True
    return found


class HeadPairs:
    """The measure: the attention between the words of some sentences.

    `pairs` is listed by sentence: for its n words, n * n rows of shape (n_layers, heads), float32, the attending word
    first; `NO_PAIR` between a word and itself, and where a word has no piece.

    Args:
        sentences: Whether a sentence is in the sample, shape (n_sentences,).
    """

    name = "pairs"

    def __init__(self, sentences: NDArray[np.bool_]) -> None:
        self.sentences = torch.from_numpy(sentences)
        self.settings: Mapping[str, Any] = {"version": 1, "of": hashlib.sha256(sentences.tobytes()).hexdigest()}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        lengths = torch.tensor([len(words) for words in corpus.words or ()])
        return lambda batch: _HeadPairs(batch, torch.where(self.sentences, lengths, 0)[batch.sentences.cpu()])


class _HeadPairs:
    def __init__(self, batch: Batch, n_words: Tensor) -> None:
        self.n_words = n_words.tolist()
        self.chosen = [i for i, n in enumerate(self.n_words) if n]
        self.words = WordBatch(WordBatch.of(batch).words[self.chosen])
        self.found: list[Tensor] = []
        self.n_heads = 0

    def add(self, attention: Attention) -> None:
        self.n_heads = attention.probabilities.shape[1]
        maps = self.words.maps(attention.probabilities[self.chosen])
        self.found.append(maps.masked_fill_(~self.words.pairs[:, None], NO_PAIR).float())

    def kept(self) -> Kept:
        rows = [torch.empty(0, len(self.found), self.n_heads)] * len(self.n_words)
        for index, maps in zip(self.chosen, torch.stack(self.found, dim=-1).cpu(), strict=True):
            n = self.n_words[index]
            there = maps.movedim(0, -1)[:n, :n]  # from, to, layers, heads; words that were cut off are not in it
            own = torch.full((n, n, *there.shape[2:]), NO_PAIR)
            own[: len(there), : len(there)] = there
            rows[index] = own.flatten(0, 1)
        return Kept(listed={HeadPairs.name: rows})
