"""Fusions of layers: what they return, and the store that has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from probing.heads import fusion as module
from probing.heads.fusion import FusedStates, Fusion, Gated, Largest, Weighted, states_of
from synthetic import make_store, make_tokens

pytestmark = pytest.mark.numeric

N_LAYERS, N, WIDTH = 3, 7, 4
STATES = torch.randn(N_LAYERS, N, WIDTH, generator=torch.Generator().manual_seed(0))


def test_fusions_are_those_of_a_loop_over_tokens_and_neurons() -> None:
    alpha, direction = torch.tensor([0.5, -2.0, 1.0]), torch.tensor([1.0, 0.0, -1.0, 2.0])
    weighted, largest, gated = Weighted(alpha)(STATES), Largest()(STATES), Gated(direction)(STATES)
    shares = {"max": Largest().weights(STATES), "gate": Gated(direction).weights(STATES)}
    states = STATES.double().numpy()
    for t in range(N):
        gates = np.exp([float(states[k, t] @ direction.double().numpy()) for k in range(N_LAYERS)])
        gates /= gates.sum()
        assert shares["gate"][:, t].tolist() == pytest.approx(gates.tolist(), rel=1e-5)
        highest = [int(np.argmax(states[:, t, j])) for j in range(WIDTH)]
        assert shares["max"][:, t].tolist() == [highest.count(k) / WIDTH for k in range(N_LAYERS)]
        for j in range(WIDTH):
            of_layers = states[:, t, j]
            assert float(weighted[t, j]) == pytest.approx(
                0.5 * of_layers[0] - 2 * of_layers[1] + of_layers[2], rel=1e-5
            )
            assert float(largest[t, j]) == pytest.approx(max(of_layers))
            assert float(gated[t, j]) == pytest.approx(float(gates @ of_layers), rel=1e-4)
    assert_close(Weighted(alpha).weights(STATES), (alpha / 3.5)[:, None].expand(3, N))


def test_one_weight_is_that_layer_to_the_bit_and_equal_weights_are_the_mean() -> None:
    for layer in range(N_LAYERS):
        assert torch.equal(Weighted(torch.eye(N_LAYERS)[layer])(STATES), STATES[layer])
    assert_close(Weighted.equal(N_LAYERS)(STATES), STATES.mean(0))
    assert_close(Gated(torch.zeros(WIDTH))(STATES), STATES.mean(0))


def test_a_bias_of_the_gate_would_change_nothing_and_the_weights_of_a_token_sum_to_1() -> None:
    gate = Gated(torch.ones(WIDTH))
    shifted = STATES + torch.tensor([3.0, 0, 0, 0])  # adds the same to the gate of every layer
    assert_close(gate.weights(shifted), gate.weights(STATES))
    fusions: list[Fusion] = [gate, Largest(), Weighted.equal(3)]
    for one in fusions:
        assert_close(one.weights(STATES).sum(0), torch.ones(N))


@pytest.mark.parametrize("kept", [0, 2**20])
def test_a_store_has_its_layers_and_their_fusions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", kept)
    tokens = make_tokens([5, 6, 4])
    arrays = np.random.default_rng(0).standard_normal((3, tokens.n_tokens, WIDTH)).astype(np.float32)
    base = make_store(tmp_path / "store", list(arrays), tokens, shard_tokens=6, dtype="bfloat16")
    assert len(base.plan.shards) > 1
    store = FusedStates(base, [1, 2], {-1: Weighted.equal(2), -2: Largest()})
    for shard in base.plan.shards:
        both = states_of(base, [1, 2], shard.index)
        assert (both.dtype, both.shape) == (torch.float32, (2, shard.n_tokens, WIDTH))
        for _ in range(2):  # the second time, kept or fused again
            assert_close(store.read(-1, shard.index), both.mean(0))
            assert torch.equal(store.read(-2, shard.index), both.amax(0))
        assert torch.equal(store.read(0, shard.index), base.read(0, shard.index))
        assert store.shard_tokens(shard) == base.shard_tokens(shard)
        some = torch.tensor([2, 0])
        assert torch.equal(states_of(base, [1, 2], shard.index, some), both[:, some])
