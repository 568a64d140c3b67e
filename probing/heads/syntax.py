"""Dependency relations, trees and the attention-only probe together: what is read in one pass, and the two tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.corpus import Corpus, assign_splits
from probing.heads.attention_probe import answers_of, probe_row
from probing.heads.measures import Measure
from probing.heads.pairs import HeadPairs, sample_sentences
from probing.heads.relations import Row, Scored, relation_rows, scored
from probing.heads.sums import SumsStore
from probing.heads.trees import Trees, TreeScores, scored_trees, tree_rows
from probing.heads.word_maps import MostAttended

RELATIONS_COLUMNS = (
    "relation", "n_train", "n_test", "query", "layer", "head", "train", "test", "test_low", "test_high", "offset",
    "offset_train", "offset_test", "offset_test_low", "offset_test_high", "difference", "difference_low",
    "difference_high", "p_value", "untrained", "untrained_low", "untrained_high",
)  # fmt: skip
TREES_COLUMNS = (
    "measure", "layer", "head", "chosen", "n_train", "n_test", "train", "test", "test_low", "test_high", "baseline",
    "baseline_low", "baseline_high", "difference", "difference_low", "difference_high", "p_value", "untrained",
    "untrained_low", "untrained_high", "offset", "optimality_gap",
)  # fmt: skip


def syntax_measures(corpus: Corpus, n_heads: int, seed: int) -> list[Measure]:
    """Return the measures that the tables need of a treebank, to be read in one pass.

    Args:
        corpus: A corpus with the columns of a treebank.
        n_heads: Number of heads of all blocks together.
        seed: Seed of the sample of sentences whose pairs of words are kept.
    """
    return [MostAttended(), Trees(corpus), HeadPairs(sample_sentences(corpus, n_heads, seed))]


@dataclass(frozen=True)
class Part:
    """The training or the test part of what was read.

    Args:
        stores: The sums of each measure, by its name.
        corpus: The corpus.
        sentences: Whether a sentence belongs to the part, shape (n_sentences,).
        option: The option that names the corpus, for messages.
    """

    stores: Mapping[str, SumsStore]
    corpus: Corpus
    sentences: NDArray[np.bool_]
    option: str = "--corpus"

    def scored(self) -> Scored:
        """Return which arcs of the part each head gets right."""
        return scored(self.stores[MostAttended.name], self.corpus, self.option).of_sentences(self.sentences)

    def trees(self) -> TreeScores:
        """Return which edges of the part are in the trees of each head."""
        return scored_trees(self.stores[Trees.name], self.corpus, self.option).of_sentences(self.sentences)


def parts_of_one(stores: Mapping[str, SumsStore], corpus: Corpus, seed: int) -> tuple[Part, Part]:
    """Divide one treebank: 90% of the sentences to choose by and 10% to report on, as `fit` has its test sentences.

    Args:
        stores: The sums of each measure, by its name.
        corpus: The corpus.
        seed: Seed of the split.
    """
    is_test = np.array([side == "test" for side in assign_splits(corpus.sentences, seed)], dtype=bool)
    return Part(stores, corpus, ~is_test), Part(stores, corpus, is_test)


def parts_of_two(
    train: tuple[Mapping[str, SumsStore], Corpus], test: tuple[Mapping[str, SumsStore], Corpus]
) -> tuple[Part, Part]:
    """Return two treebanks as parts; the first should not hold sentences of the second.

    Args:
        train: The sums by which heads are chosen, and their corpus.
        test: The sums that are reported, and their corpus.
    """
    whole = [np.ones(len(corpus.sentences), dtype=bool) for _, corpus in (train, test)]
    return Part(*train, whole[0]), Part(*test, whole[1], "--test_corpus")


def relations_table(parts: tuple[Part, Part], untrained: tuple[Part, Part] | None) -> list[Row]:
    """Return `relations.csv`: the rows of `relation_rows`.

    Args:
        parts: The training and the test part.
        untrained: The same for the randomly initialised model.
    """
    train, test = (part.scored() for part in parts)
    return relation_rows(train, test, untrained and (untrained[0].scored(), untrained[1].scored()))


def trees_table(parts: tuple[Part, Part], untrained: tuple[Part, Part] | None) -> list[Row]:
    """Return `trees.csv`: a row for each head, then one for the attention-only probe; empty where there are no arcs.

    Args:
        parts: The training and the test part.
        untrained: The same for the randomly initialised model.
    """
    train, test = (part.trees() for part in parts)
    rows = tree_rows(train, test, untrained and (untrained[0].trees(), untrained[1].trees()))
    if rows:
        own = [
            answers_of(*((part.stores[HeadPairs.name], part.corpus, part.sentences) for part in of))
            for of in (parts, untrained)
            if of
        ]
        rows.append(probe_row(*own))
    return rows
