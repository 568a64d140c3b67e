"""The spaces by their names."""

from __future__ import annotations

import pytest
import torch

from probing.cli.option_types import chosen
from probing.downstream.names import SPACES
from probing.downstream.sentence_vectors import Fitting, fitted
from probing.errors import UserError
from probing.statistics.moments import CovarianceAccumulator

pytestmark = pytest.mark.numeric


def moments(states: torch.Tensor) -> CovarianceAccumulator:
    accumulator = CovarianceAccumulator(states.shape[1])
    accumulator.update(states)
    return accumulator


def test_each_name_does_what_it_says() -> None:
    states = torch.randn(500, 12, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 13) + 3
    made = fitted(Fitting(SPACES), moments(states).result(), [2, 5], layer=1)
    assert list(made) == list(SPACES)
    torch.testing.assert_close(made["none"](states), states)
    assert made["clip"](states)[:, [2, 5]].abs().max() == 0
    drawn = made["clip_random"].clipped
    assert len(drawn) == 2
    assert not {*drawn} & {2, 5}
    torch.testing.assert_close(torch.cov(made["whiten"](states).T, correction=0), torch.eye(12), atol=1e-4, rtol=0)
    assert made["center"](states).mean(0).abs().max() < 1e-4
    torch.testing.assert_close(made["standardise"](states).std(0, correction=0), torch.ones(12))
    assert torch.linalg.matrix_rank(made["all_but_the_top"](states), rtol=1e-4) == 11
    again = fitted(Fitting(["clip_random"]), moments(states).result(), [2, 5], layer=1)["clip_random"].clipped
    assert again == drawn
    few = fitted(Fitting(["whiten"], components=3), moments(states).result(), [], layer=1)["whiten"]
    torch.testing.assert_close(few(states), made["whiten"](states)[:, :3])


def test_vectors_that_do_not_vary_are_centred_not_whitened() -> None:
    states = torch.ones(20, 4)
    assert fitted(Fitting(["whiten"]), moments(states).result(), [], 0)["whiten"](states).abs().max() == 0


def test_vectors_that_vary_by_rounding_alone_are_centred_not_whitened() -> None:
    values = torch.randn(4, generator=torch.Generator().manual_seed(0))
    last_digit = torch.randint(0, 2, (50, 4), generator=torch.Generator().manual_seed(1))
    states = torch.where(last_digit == 1, values.nextafter(torch.tensor(2.0)), values)
    assert (states.std(0) > 0).all()
    assert fitted(Fitting(["whiten"]), moments(states).result(), [], 0)["whiten"](states).abs().max() < 1e-6


def test_names_are_chosen_in_the_order_of_tables() -> None:
    assert chosen("--x", "whiten,clip", SPACES) == ["clip", "whiten"]
    assert chosen("--x", ["clip"], SPACES) == ["clip"]
    assert chosen("--x", "all", SPACES) == list(SPACES)
    assert chosen("--x", "none", SPACES[1:], "none") == []
    with pytest.raises(UserError, match=r"`--x whitn` is not one of .*\(did you mean `whiten`\?\)"):
        chosen("--x", "clip,whitn", SPACES)
