"""The benchmark of agreement between random tasks, at toy size."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from probing.data.controls import token_types
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, sides

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]


@pytest.fixture(scope="module")
def null_tasks() -> ModuleType:
    return importlib.import_module("benchmarks.null_tasks")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["token", "word_type"])
def test_random_tasks_agree_where_scores_are_exchanged_and_not_beyond_shuffled_labels(
    null_tasks: ModuleType, tmp_path: Path, kind: str
) -> None:
    # Neurons whose means are far from 0 serve as the intercept of any probe.
    tokens = make_tokens([9] * 80)
    states = np.random.default_rng(0).standard_normal((2, tokens.n_tokens, 30)) + np.geomspace(0.05, 20, 30)
    data = sides(make_store(tmp_path / "store", list(states), tokens))
    found = list(null_tasks.pairs(data, [0, 1], kind, 3, 4, 19, seed=0, l2=1e-2))
    assert len(found) == 4
    p_values, exchanged = (
        np.array([getattr(one, what)[name] for one in found for name in ("overlap", "spearman")])
        for what in ("p_values", "exchanged")
    )
    assert p_values.shape == (8, 4)  # pairs of layers
    assert np.mean(exchanged <= 0.05) > 0.3
    assert np.mean(p_values <= 0.05) < 0.2
    for one in found:
        assert (one.corrected["spearman"] >= one.p_values["spearman"]).all()
        assert one.common.chance is not None
    shown = null_tasks.report(found, kind, 3)
    assert f"| 3 by {kind.replace('_', ' ')} | overlap | " in shown
    assert " of 4 |" in shown


def test_a_class_is_drawn_for_each_token_or_for_each_type(null_tasks: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens([9] * 80)
    data = sides(make_store(tmp_path / "store", [np.ones((tokens.n_tokens, 2))], tokens))
    types = token_types(tokens)
    for kind, mixed in (("token", True), ("word_type", False)):
        task = null_tasks.random_task(data, kind, 4, seed=1)  # tokens were drawn from seed 0
        labels = np.maximum(np.maximum(task.train.labels, task.validation.labels), task.test.labels)
        own = {(int(t), int(y)) for t, y in zip(types, labels, strict=True) if y >= 0}
        assert (len(own) > len({t for t, _ in own})) == mixed
        assert {y for _, y in own} == {0, 1, 2, 3}
        assert task.classes.tolist() == [0, 1, 2, 3]
