"""Spanning trees of attention: the heaviest ones, planted trees, and the chain of neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from probing.cache import Request
from probing.heads.accumulation import accumulate, attention_of
from probing.heads.syntax import NONE, WordBatch, arcs_of, punctuation_of
from probing.heads.trees import Trees, TreeScores, scored_trees, spanning_trees, tree_rows
from probing.models import resolve_model
from small_data import batch_of, kept_of, random_maps, tokens_of_words, treebank

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


@pytest.mark.parametrize("is_causal", [False, True])
def test_trees_are_the_heaviest_ones(is_causal: bool) -> None:
    corpus = treebank(8)
    tokens = tokens_of_words(corpus)
    batch = batch_of(tokens, range(8), is_causal)
    kept = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(2)) < 0.8
    words = WordBatch.of(batch, kept)
    weights = random_maps(batch.mask.shape[1], 1)[0].expand(8, -1, -1, -1)
    maps = words.maps(attention_of(1, weights, torch.empty(0), None, batch).probabilities)
    found = spanning_trees(maps, words)
    for s in range(8):
        there = np.flatnonzero(words.present[s].numpy())
        assert 2 < len(there) <= words.present.shape[1]
        for h in range(3):
            own = found[s, h].numpy()
            assert set(np.flatnonzero(own != NONE)) == set(there)
            edges = {frozenset((int(w), int(own[w]))) for w in there if w != own[w]}
            assert len(edges) == len(there) - 1
            assert own[there[0]] == there[0]
            both = (maps[s, h] + maps[s, h].T).double().numpy()[np.ix_(there, there)]
            # scipy takes 0 for no edge, so that all weights are made negative and different from 0.
            expected = minimum_spanning_tree(-(both + 1) * (1 - np.eye(len(there)))).tocoo()
            assert edges == {frozenset((int(there[i]), int(there[j]))) for i, j in zip(*expected.coords, strict=True)}


def test_uniform_attention_joins_all_words_to_the_first_and_no_word_makes_no_tree() -> None:
    words = WordBatch(torch.tensor([[-1, 1, 2, 3, -1], [-1, 0, -1, -1, -1], [-1, -1, -1, -1, -1]]))
    found = spanning_trees(words.maps(torch.full((3, 2, 5, 5), 0.2)), words)
    assert found[:, 1].tolist() == [[-1, 1, 1, 1], [0, -1, -1, -1], [-1, -1, -1, -1]]
    nothing = WordBatch(torch.full((2, 3), -1))
    assert nothing.at_tokens(spanning_trees(nothing.maps(torch.ones(2, 1, 3, 3)), nothing)).shape == (2, 3, 1)


def scores(seed: int, weight: float) -> TreeScores:
    """Return the scores of random trees, head 3 of layer 1 having the edges of the treebank with some weight."""
    corpus = treebank(60, seed)
    tokens, arcs = tokens_of_words(corpus, seed), arcs_of(corpus)

    def maps_of(sentence: int, words: NDArray[np.int16]) -> Tensor:
        maps = random_maps(len(words), sentence)
        own = arcs.sentences == sentence
        for dependent, head in zip(arcs.dependents[own], arcs.heads[own], strict=True):
            queries, keys = np.flatnonzero(words == dependent), np.flatnonzero(words == head)
            maps[0, 2, queries[:, None], keys] += weight
        return maps / maps.sum(-1, keepdim=True)

    return scored_trees(kept_of(Trees(corpus), corpus, tokens, maps_of), corpus)


def test_a_planted_tree_has_all_edges_but_those_at_punctuation_and_random_ones_do_not_beat_the_chain() -> None:
    train, test, other = scores(0, 50), scores(1, 50), scores(2, 0)
    rows = tree_rows(train, test, untrained=(other, other))
    assert [(row["layer"], row["head"]) for row in rows] == [(k, h) for k in (1, 2) for h in (1, 2, 3)]
    best = rows[2]
    assert [row["chosen"] for row in rows] == ["no", "no", "yes", "no", "no", "no"]
    assert best["test"] == 1  # also where words of punctuation have dependents, and what is left is no single tree
    assert best["difference"] == pytest.approx(best["test"] - best["baseline"])
    assert best["difference_low"] > 0
    assert best["p_value"] < 1e-6
    assert all(row["test"] < 0.5 and row["difference_low"] < 0.02 for row in rows if row is not best)
    assert best["untrained"] == pytest.approx(other.right.mean((0,)).max())
    assert {row["baseline"] for row in rows} == {best["baseline"]}


def test_the_chain_is_that_of_words_that_are_not_punctuation() -> None:
    corpus = treebank(30, 4)
    found = scored_trees(
        kept_of(Trees(corpus), corpus, tokens_of_words(corpus), lambda i, words: random_maps(len(words), i)), corpus
    )
    expected, n, arcs = 0, 0, arcs_of(corpus)
    for sentence, left_out in enumerate(punctuation_of(corpus)):
        kept = np.flatnonzero(~left_out).tolist()
        own = arcs.sentences == sentence
        edges = set(zip(arcs.dependents[own].tolist(), arcs.heads[own].tolist(), strict=True))
        edges = {(d, h) for d, h in edges if d in kept and h in kept}
        n += len(edges)
        expected += sum(abs(kept.index(d) - kept.index(h)) == 1 for d, h in edges)
    assert (int(found.chain.sum()), len(found.chain)) == (expected, n)


def test_trees_of_a_model_s_heads_do_not_depend_on_batches(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    corpus = treebank(12, seed=3)
    right = []
    for batch_tokens in (1, 300):
        request = Request(resolve_model(str(checkpoints["bert"])), corpus, (), batch_tokens=batch_tokens)
        store = accumulate(request, [Trees(corpus)], tmp_path / str(batch_tokens), {"accelerator": "cpu"})["trees"]
        right.append(scored_trees(store, corpus).right)
    assert (right[0] == right[1]).all()
    assert 0 < right[0].mean() < 1
