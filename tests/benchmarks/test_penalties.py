"""The benchmark of the chosen penalty, at toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import penalties
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]


def test_a_row_a_layer_compares_the_fixed_penalty_with_the_chosen_one(tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 9, 80).tolist())
    states = [positional(tokens, 32, 1.0), positional(tokens, 32, 0.2, seed=1)]
    data = sides(make_store(tmp_path / "store", states, tokens))
    rows = penalties.compare(data, [0, 1], 80, 1e-4, seed=0)
    assert [row.layer for row in rows] == [0, 1]
    assert rows[1].cross_entropy[1] < rows[1].cross_entropy[0]  # faint, and few tokens for the width
    for row in rows:
        assert row.cross_entropy[1] < row.prior + 0.05
        assert all(-1 <= value <= 1 for value in (*row.overlap, *row.spearman))
    assert rows[0].l2 == rows[1].l2 > 1e-4
    assert penalties.report(rows, 1e-4).count("\n| 80 |") == 2


def test_halves_share_no_sentence_and_leave_none_out(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 30)
    data = sides(make_store(tmp_path / "store", [positional(tokens, 4, 1.0)], tokens))
    one, other = penalties.halves(data, 0).bool()
    assert not (one & other).any()
    assert (one | other).nonzero().squeeze(1).tolist() == data.train.sentences().tolist()
