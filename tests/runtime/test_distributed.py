"""Sums of several processes taken together: threads stand for the processes, and one of them has nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from probing.rankings.methods import MagnitudeAccumulator
from probing.runtime.processes import lost_rank, rank_and_world_size, sum_over_ranks
from probing.statistics.label_scores import LabelCodes, SeparationAccumulator
from probing.statistics.moments import CovarianceAccumulator, MomentsAccumulator

N, D, CLASSES = 300, 5, 4
LABELS = torch.randint(-1, CLASSES, (N,), generator=torch.Generator().manual_seed(1))
SENTENCES = torch.arange(N) // 10
# What each of three processes reads, in whole sentences; the second has no shard.
PARTS = (slice(0, 110), slice(110, 110), slice(110, N))


def together(accumulators: list[Any]) -> list[Any]:
    """Gather, each in its own thread, and return what every one then has."""
    barrier, sent = threading.Barrier(len(accumulators), timeout=600), [torch.empty(0)] * len(accumulators)

    def gather(rank: int) -> Any:
        def total(tensor: Tensor) -> Tensor:
            sent[rank] = tensor
            barrier.wait()
            found = torch.stack(list(sent)).sum(0)
            barrier.wait()
            return found

        accumulators[rank].all_reduce(total)
        return accumulators[rank].result()

    with ThreadPoolExecutor(len(accumulators)) as pool:
        return list(pool.map(gather, range(len(accumulators))))


@pytest.fixture
def states() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    # Far from 0 and drifting, so that the processes' means differ.
    return torch.randn(N, D, generator=generator) + 50 + torch.linspace(0, 3, N)[:, None]


def moments() -> tuple[Any, Callable[..., None]]:
    accumulator = MomentsAccumulator(D)
    return accumulator, lambda states, labels, sentences: accumulator.update(states)


def covariance() -> tuple[Any, Callable[..., None]]:
    accumulator = CovarianceAccumulator(D)
    return accumulator, lambda states, labels, sentences: accumulator.update(states)


def separation() -> tuple[Any, Callable[..., None]]:
    sizes = LABELS[LABELS >= 0].bincount()
    codes = LabelCodes.of_classes(sizes)
    accumulator = SeparationAccumulator(torch.full((D,), 50.0).double(), torch.ones(D).double(), codes, 0.25)
    return accumulator, accumulator.update


def magnitudes() -> tuple[Any, Callable[..., None]]:
    accumulator = MagnitudeAccumulator(torch.full((D,), 50.0).double(), CLASSES)
    return accumulator, lambda states, labels, sentences: accumulator.update(states, labels)


@pytest.mark.parametrize("make", [moments, covariance, separation, magnitudes])
def test_what_processes_gather_is_what_one_adds(make: Any, states: Tensor) -> None:
    one, add = make()
    add(states, LABELS, SENTENCES)
    several = []
    for part in PARTS:
        accumulator, add = make()
        if len(states[part]):
            add(states[part], LABELS[part], SENTENCES[part])
        several.append(accumulator)
    expected = vars(one.result())
    for found in together(several):
        assert vars(found).keys() == expected.keys()
        for name, value in expected.items():
            if name == "axes":  # computed when they are asked for
                assert value == getattr(found, name) == {}
                continue
            if value is None:
                assert getattr(found, name) is None
                continue
            # Squares and products of batches are in float32.
            torch.testing.assert_close(
                torch.as_tensor(getattr(found, name)), torch.as_tensor(value), rtol=1e-5, atol=1e-6
            )


def test_alone_a_sum_is_what_it_is_and_no_rank_is_lost() -> None:
    tensor = torch.ones(2)
    assert rank_and_world_size() == (0, 1)
    assert sum_over_ranks(tensor) is tensor
    assert lost_rank(RuntimeError("gloo: Connection closed by peer")) is None
