"""How much of a sentence's dependency tree is in the maximum spanning tree of a head's attention.

The weight of an edge between two words is their attention to each other, in both directions together. Words of
punctuation are left out, as in evaluations of trees that are read from hidden states (Hewitt & Manning 2019). The score
is the share of edges of the treebank that are in the tree, whatever their direction (UUAS). The baseline is the chain:
each word is joined to the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.comparison.agreement import holm
from probing.corpus import Corpus
from probing.heads.reading import Accumulator, Attention, Batch, Kept
from probing.heads.sums import SumsStore
from probing.heads.syntax.arcs import NONE, Arcs, WordBatch, WordRows, arcs_of, punctuation_of
from probing.heads.syntax.relations import Row, by_sentence, compared, with_interval

# Name of the undirected unlabelled attachment score.
UUAS = "uuas"


def spanning_trees(maps: Tensor, words: WordBatch) -> Tensor:
    """Return the maximum spanning tree of attention in both directions together, by Prim's algorithm (1957).

    The trees of all sentences and heads grow at once, a word in each step, from the first word. Of equally heavy edges
    the one to the lower index is taken.

    Args:
        maps: The attention between words, shape (batch, heads, from, to), at least 0.
        words: The words.

    Returns:
        For each word the word that it was joined to, for the first word itself, and `NONE` for a word that has no
        piece; shape (batch, heads, words), int16.
    """
    n, heads, n_words, _ = maps.shape
    if not n_words:
        return torch.empty(n, heads, 0, dtype=torch.int16, device=maps.device)
    weights = (maps + maps.transpose(2, 3)).masked_fill_(~words.pairs[:, None], -1.0).view(n * heads, n_words, n_words)
    every = torch.arange(n * heads, device=maps.device)
    # The first word, or any word of a sentence without words, which then grows no tree.
    first = words.present.to(torch.uint8).argmax(1).repeat_interleave(heads)
    joined = first[:, None].repeat(1, n_words)
    best = weights[every, first]  # weight of the heaviest edge from the tree to each word
    best[every, first] = -2.0
    for _ in range(n_words - 1):
        heaviest, new = best.max(1)
        grows = heaviest >= 0
        if not bool(grows.any()):
            break
        best[every, new] = torch.where(grows, -2.0, heaviest)  # words of the tree are below those that are not there
        of_new = weights[every, new]
        nearer = (of_new > best) & (best >= 0) & grows[:, None]
        best = torch.where(nearer, of_new, best)
        joined = torch.where(nearer, new[:, None], joined)
    absent = ~words.present[:, None]
    return joined.view(n, heads, n_words).to(torch.int16).masked_fill(absent, NONE)


class Trees:
    """The measure: the spanning tree of each sentence and head.

    `trees` is kept by token, each piece of a word having that of its word: shape (n_tokens, n_layers, heads), int16.

    Args:
        corpus: The corpus, by whose column `deprel` words of punctuation are left out.
    """

    name = "trees"

    def __init__(self, corpus: Corpus) -> None:
        digest = hashlib.sha256()
        for of_words in punctuation_of(corpus):
            digest.update(of_words.tobytes() + b"\n")
        self.settings: Mapping[str, Any] = {"version": 1, "left_out": digest.hexdigest()}

    def of_corpus(self, tokens: Tokens, corpus: Corpus) -> Callable[[Batch], Accumulator]:
        """Return what makes an accumulator for each batch."""
        kept = torch.from_numpy(~of_tokens(tokens, punctuation_of(corpus)))
        return lambda batch: _Trees(WordBatch.of(batch, kept[batch.rows.cpu()].to(batch.mask.device)))


class _Trees:
    def __init__(self, words: WordBatch) -> None:
        self.words = words
        self.found: list[Tensor] = []

    def add(self, attention: Attention) -> None:
        self.found.append(spanning_trees(self.words.maps(attention.probabilities), self.words))

    def kept(self) -> Kept:
        return Kept(by_token={Trees.name: self.words.at_tokens(torch.stack(self.found, dim=1))})


def of_tokens(tokens: Tokens, of_words: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return a property of words for each of their tokens, False for special tokens; shape (n_tokens,)."""
    first = np.concatenate([[0], np.cumsum([len(one) for one in of_words])])
    flat = np.concatenate([*of_words, np.zeros(1, dtype=bool)])
    return np.where(tokens.special, False, flat[first[tokens.sentences] + np.maximum(tokens.words, 0)])


@dataclass(frozen=True)
class TreeScores:
    """The edges of a treebank between words that are no punctuation, and which of them trees have.

    Args:
        arcs: The edges.
        right: Whether an edge is in the tree of a head, shape (n_arcs, n_layers, heads).
        chain: Whether an edge is between neighbours, shape (n_arcs,).
    """

    arcs: Arcs
    right: NDArray[np.bool_]
    chain: NDArray[np.bool_]

    def of_sentences(self, chosen: NDArray[np.bool_]) -> TreeScores:
        """Return the edges of some sentences, given whether each sentence of the corpus is chosen."""
        here = chosen[self.arcs.sentences]
        return TreeScores(self.arcs.where(here), self.right[here], self.chain[here])

    def of_layers(self, layers: Sequence[int]) -> TreeScores:
        """Return the same edges with the heads of some layers, given by their numbers."""
        return TreeScores(self.arcs, self.right[:, [layer - 1 for layer in layers]], self.chain)


def scored_trees(store: SumsStore, corpus: Corpus, option: str = "--corpus") -> TreeScores:
    """Return which edges of a treebank the trees of each head have.

    Args:
        store: What `Trees` kept of the corpus.
        corpus: The corpus, with the columns of a treebank.
        option: The option that names it, for messages.

    Raises:
        UserError: If the corpus has no dependency relations, or they are malformed.
    """
    arcs, trees, tokens = arcs_of(corpus, option), store.by_token(Trees.name).numpy(), store.tokens
    rows_of = WordRows(tokens)
    dependents, heads = rows_of.of(arcs.sentences, arcs.dependents), rows_of.of(arcs.sentences, arcs.heads)
    there = trees[:, 0, 0] != NONE
    kept = (dependents >= 0) & (heads >= 0) & there[dependents] & there[heads]
    arcs, dependents, heads = arcs.where(kept), dependents[kept], heads[kept]
    right = trees[dependents] == arcs.heads[:, None, None]
    right |= trees[heads] == arcs.dependents[:, None, None]
    number = np.cumsum(tokens.last_pieces & there)  # of each word that is there, at its last piece
    return TreeScores(arcs, right, np.abs(number[dependents] - number[heads]) == 1)


def tree_rows(train: TreeScores, test: TreeScores, untrained: tuple[TreeScores, TreeScores] | None = None) -> list[Row]:
    """Return a row for each head, in the order of layers and heads; the head that is best in training is `chosen`.

    `difference` is the score minus that of the chain, on the same sentences. Its p-value is two-sided and corrected for
    the number of heads (Holm). `untrained` is the score of the randomly initialised model's head that is best on train.

    Args:
        train: The edges by which a head is chosen.
        test: The edges that scores are reported on.
        untrained: The same two for a randomly initialised model.
    """
    if not len(train.arcs) or not len(test.arcs):
        return []
    n, chain = by_sentence(test.arcs, np.ones_like(test.chain), test.chain)
    of_chain, of_untrained = with_interval("baseline", chain, n), {}
    if untrained is not None:
        own, reported = untrained
        layer, head = best_tree(own)
        right = reported.right[:, layer, head]
        of_untrained = with_interval("untrained", *by_sentence(reported.arcs, right, np.ones_like(right)))
    rows: list[Row] = []
    best = best_tree(train)
    for layer, head in np.ndindex(*test.right.shape[1:]):
        (correct,) = by_sentence(test.arcs, test.right[:, layer, head])
        rows.append({
            "measure": UUAS,
            "layer": layer + 1,
            "head": head + 1,
            "chosen": "yes" if (layer, head) == best else "no",
            "n_train": len(train.arcs),
            "n_test": len(test.arcs),
            "train": float(train.right[:, layer, head].mean()),
            **with_interval("test", correct, n),
            **of_chain,
            **compared(correct, chain, n),
            **of_untrained,
        })  # fmt: skip
    corrected = holm([row["p_value"] for row in rows])
    return [{**row, "p_value": float(p)} for row, p in zip(rows, corrected, strict=True)]


def best_tree(scores: TreeScores) -> tuple[int, int]:
    """Return the indices of the layer and head whose trees have most edges, the first of equally good ones."""
    totals = scores.right.sum(0)
    layer, head = np.unravel_index(int(totals.argmax()), totals.shape)
    return int(layer), int(head)
