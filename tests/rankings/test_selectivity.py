"""Shares of the contributions to probes of the control task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.data.examples import Examples
from probing.rankings.methods import control_task_shares, neuron_contributions
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]


def test_shares_are_means_over_draws_of_the_contributions_to_their_probes(tmp_path: Path) -> None:
    """Neuron 0 tells the types of the control task apart, and neuron 1 the positions of the task itself."""
    generator = np.random.default_rng(0)
    tokens = make_tokens(generator.integers(6, 10, 200).tolist())
    types, others = generator.integers(2, size=(2, tokens.n_tokens))
    states = [positional(tokens, 6, 0.0), positional(tokens, 6, 0.0)]
    for of_layer in states:
        of_layer[:, 0] += 3 * types
        of_layer[:, 1] += tokens.positions
    planted = sides(make_store(tmp_path / "store", states, tokens))

    def draw(drawn: NDArray[np.int64]) -> Data:
        def labelled(examples: Examples) -> Examples:
            return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

        made = planted.each(labelled)
        assert isinstance(made, Data)
        return replace(made, classes=np.arange(2))

    draws = [draw(types), draw(others)]
    fits = [one.fit([0, 1]) for one in draws]
    found = control_task_shares(draws, fits)
    assert len(found) == 2
    for layer, share in enumerate(found):
        expected = []
        for one, of_draw in zip(draws, fits, strict=True):
            kept = one.test.labels >= 0
            v = torch.cat([one.test.store.read(layer, s.index) for s in one.test.store.plan.shards]).double()[kept]
            terms = neuron_contributions(of_draw[layer].weight.double(), v).abs()
            true = terms[torch.arange(len(v)), torch.from_numpy(one.test.labels[kept]).long()].mean(0)
            expected.append(true / true.sum())
        assert torch.allclose(share, torch.stack(expected).mean(0), rtol=1e-5)
        assert expected[0].argmax() == 0
        assert not torch.allclose(share, expected[0], rtol=0.1)
    assert share.sum() == pytest.approx(1)
