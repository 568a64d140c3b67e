"""Draws that depend on what they are for alone."""

from __future__ import annotations

import pytest
import torch

from probing.runtime.arithmetic import generator_of, seed_of

pytestmark = pytest.mark.numeric


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    assert seed_of(1, "masks", 2) == seed_of(1, "masks", 2)
    found = {
        seed_of(*parts) for parts in ((1, "masks", 2), (1, "order", 2), (2, "masks", 2), (1, "masks", 12), (11, 2))
    }
    assert len(found) == 5
    assert all(0 <= seed < 2**63 for seed in found)


def test_generators_draw_the_same_whatever_was_drawn_before() -> None:
    first = torch.rand(3, generator=generator_of(0, "a"))
    torch.rand(10)
    assert torch.equal(torch.rand(3, generator=generator_of(0, "a")), first)
    assert not torch.equal(torch.rand(3, generator=generator_of(0, "b")), first)
