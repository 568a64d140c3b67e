"""The dependency arcs of a treebank, between words that a model has read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.corpus.cells import UNSPECIFIED
from probing.errors import UserError

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
