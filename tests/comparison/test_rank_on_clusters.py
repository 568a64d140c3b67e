"""Rankings of a run on its test part, and on resampled parts of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from probing.comparison.pairs import rank_on_clusters
from probing.rankings.methods import neuron_contributions
from probing.statistics.chance import sentence_counts
from synthetic import Data, make_store, make_tokens, positional, sides


def planted(tmp_path: Path) -> Data:
    tokens = make_tokens(np.random.default_rng(0).integers(5, 9, 300).tolist())
    states = positional(tokens, 6, 1.0) + np.random.default_rng(1).standard_normal((100, 6))[tokens.sentences // 3]
    return sides(make_store(tmp_path / "store", [states], tokens))


def by_hand(data: Data, weight: torch.Tensor, cluster_of_sentence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of contributions and numbers of tokens, cluster by cluster, by the definition."""
    test = data.test
    states = torch.cat([test.store.read(0, shard.index) for shard in test.store.plan.shards]).double()
    kept = np.flatnonzero(test.labels >= 0)
    terms = neuron_contributions(weight.double(), states[kept]).abs()
    true = terms[torch.arange(len(kept)), torch.from_numpy(test.labels[kept]).long()].numpy()
    cluster = cluster_of_sentence[test.store.tokens.sentences[kept]]
    found = np.unique(cluster)
    return np.stack([true[cluster == c].sum(0) for c in found]), np.array([(cluster == c).sum() for c in found])


def test_sentences_are_resampled_or_documents_where_intervals_are_over_these(tmp_path: Path) -> None:
    data = planted(tmp_path)
    weight = torch.randn(1, len(data.classes), 6, generator=torch.Generator().manual_seed(0))
    document = np.arange(300) // 3
    for documents in (None, document):
        made = replace(data.test, documents=documents)
        ranked = rank_on_clusters("run", weight, made, [0], seed=4)
        sums, n = by_hand(data, weight[0], np.arange(300) if documents is None else documents)
        assert np.allclose(ranked.scores[0], sums.sum(0) / n.sum(), rtol=1e-6)
        times = sentence_counts(len(n), 4, 100)
        assert ranked.draws is not None
        assert np.allclose(ranked.draws[0], (times @ sums) / (times @ n)[:, None], rtol=1e-6)
    few = replace(data.test, documents=np.arange(300) // 40)
    assert rank_on_clusters("run", weight, few, [0], seed=4).draws is None
