"""Evidence of many layers holds the curvature of one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing.evidence import retraining as module
from probing.evidence.retraining import Retraining, strengthened
from probing.evidence.table import collect_evidence
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]
LAYERS = [0, 1, 2]


@pytest.fixture
def no_search() -> Iterator[None]:
    """Python searches for garbage only where it is told to."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_search")
def test_the_curvature_of_a_layer_is_freed_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 60).tolist())
    data = sides(make_store(tmp_path / "store", [positional(tokens, 8, 1.0) for _ in LAYERS], tokens, shard_tokens=400))
    fits = data.fit(layers=LAYERS, l2=1e-3, tolerance=1e-4)
    evidence = collect_evidence(data.train, data.test, LAYERS, [fit.moments for fit in fits], len(data.classes))
    held: list[Any] = []
    alive: list[int] = []
    made = module.surroundings

    def surroundings(*args: Any, **options: Any) -> Any:
        alive.append(sum(one() is not None for one in held))
        near = made(*args, **options)
        held.append(weakref.ref(near.curvature))
        return near

    monkeypatch.setattr(module, "surroundings", surroundings)
    training = Training(Penalty(0.0, 1e-3), Lbfgs(1e-4))
    strengthened(evidence, Retraining(data, LAYERS, fits, training, 0), n_replicates=2, removals=True)
    assert alive == [0, 0, 0]
