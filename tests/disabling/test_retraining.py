"""Probes that are trained again: which units they are trained without, and what they still read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.disabling import probed_task as retraining
from probing.disabling.probed_task import Job, Labelled, Passes, all_jobs, chosen_units, retrained
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

TRAINING = Training(Penalty(0.0, 1e-3), Lbfgs(1e-4), trainer={"accelerator": "cpu"})


@dataclass
class Planted:
    """Stands for passes over 30 sentences of 5 tokens, whose states tell the class unless head 1 of block 1 is gone.

    Args:
        seed: Seed of the states.
    """

    seed: int
    d_model: int = 6

    def __post_init__(self) -> None:
        self.tokens = Tokens(
            np.full(30, 5, dtype=np.int32), np.ones(150, dtype=np.int32), np.zeros(150, dtype=np.int16)
        )
        self.labels = np.random.default_rng(self.seed).integers(3, size=150).astype(np.int32)
        self.asked: list[tuple[int, ...]] = []

    def states(self, job: Job, layers: list[int]) -> dict[int, Tensor]:
        self.asked.append(tuple(layers))
        noise = torch.randn(150, 6, generator=torch.Generator().manual_seed(self.seed))
        told = torch.nn.functional.one_hot(torch.from_numpy(self.labels).long(), 6) * 8.0
        return {layer: noise + (0 if job.head == 1 and layer == 2 else told) for layer in layers}


@pytest.mark.parametrize("memory", [2**29, 1])
def test_a_probe_that_is_trained_again_reads_what_is_still_there(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retraining, "MEMORY", memory)  # with little of it, layer after layer
    train, test = Planted(0), Planted(1)
    parts = [Labelled(cast(Passes, one), one.labels) for one in (train, test)]
    classes: Any = np.arange(3)
    for head, share in ((1, 0.34), (2, 1.0)):
        right = retrained(parts[0], parts[1], classes, Job(1, head, "zero"), TRAINING, [1, 2])
        assert right.shape == (2, 30)
        assert right[0].sum() / 150 > 0.98
        assert right[1].sum() / 150 == pytest.approx(share, abs=0.14)
    assert test.asked == ([(1, 2)] * 2 if memory > 1 else [(1,), (2,)] * 2)


def test_the_strongest_heads_and_layers_and_random_others_are_chosen() -> None:
    jobs = [job for job in all_jobs(4, 3) if job.kind in ("uniform", "zero", "skip", None)]
    effects = {job: -float(i) for i, job in enumerate(reversed(jobs)) if job.kind is not None}
    found = chosen_units(jobs, effects, 2, seed=0)
    assert all(job.kind == "uniform" for job in found)
    heads, layers = ([job for job in found if (job.head is None) is wanted] for wanted in (False, True))
    assert [job.unit for job in heads[:2]] == ["1-1", "1-2"]
    assert [job.unit for job in layers[:2]] == ["1", "2"]
    assert len(set(heads)) == len(set(layers)) == 4
    others = {job.unit for seed in range(30) for job in chosen_units(jobs, effects, 2, seed)[2:4]}
    assert len(others) == 10  # any of the others may be drawn
    assert chosen_units(jobs, effects, 99, 0)  # more than there are
