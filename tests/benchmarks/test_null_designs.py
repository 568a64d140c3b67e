"""The benchmark of designs whose rows depend on each other, at toy size."""

from __future__ import annotations

import numpy as np
import pytest

import probing
from benchmarks import null_designs
from benchmarks.null_designs import DESIGNS, Counted


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_has_rows_of_whole_groups_and_of_several_classes(name: str) -> None:
    rows = DESIGNS[name].draw(np.random.default_rng(0), 1)
    assert rows.neurons.shape == (len(rows.labels), null_designs.N_NEURONS)
    assert len(np.unique(rows.labels)) > 1
    assert rows.groups is None or (np.diff(rows.groups) >= 0).all()
    again = DESIGNS[name].draw(np.random.default_rng(0), 1)
    np.testing.assert_array_equal(rows.neurons, again.neurons)


def test_a_line_counts_what_a_run_claims() -> None:
    design, counted = DESIGNS["planted, constant"], Counted()
    generator = np.random.default_rng(0)
    rows, unseen = design.draw(generator, 1), design.draw(generator, 2)
    run = probing.probe(
        rows.neurons.astype(np.float32), rows.labels, groups=rows.groups, quiet=True, replicates=0, evidence="none"
    )
    counted.add(run, design, unseen)
    assert len(counted.p_values[0]) == null_designs.N_NEURONS - 1
    assert counted.found == [True]
    assert counted.excluded == [False]
    assert counted.line("x").count("|") == null_designs.HEADING.count("|")


def test_a_flipped_row_is_one_row() -> None:
    def mixed(name: str) -> int:
        rows = DESIGNS[name].draw(np.random.default_rng(0), 1)
        assert rows.groups is not None
        return sum(len(np.unique(rows.labels[rows.groups == g])) > 1 for g in np.unique(rows.groups))

    assert [mixed(name) for name in ("constant", "one flipped", "each flipped")] == [0, 1, 300]
