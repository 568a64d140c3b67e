"""Neurons taken out of a model: what is compared, what is restored, and what effects are held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from families import untouched
from probing.models.anatomy import examine
from probing.readouts.later_blocks import Read, conditions, intervene, zeroed
from probing.studies.geometry.inside.changed_norms import find_parameters

pytestmark = pytest.mark.numeric


class RootMeanSquare(nn.Module):
    """A norm without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 9.0))


def output_norms(encoder: Any) -> list[nn.Module]:
    return [encoder.get_submodule(norm.module) for norm in find_parameters(encoder, examine(encoder)).output_norms]


def test_gain_and_bias_are_zero_inside_and_afterwards_as_they_were() -> None:
    norms = [nn.LayerNorm(8), RootMeanSquare()]
    nn.init.normal_(norms[0].get_parameter("bias"))
    before = [parameter.detach().clone() for norm in norms for parameter in norm.parameters()]
    parameters = [parameter for norm in norms for parameter in norm.parameters()]
    others = [0, 1, 3, 4, 6, 7]

    def break_off() -> None:
        with zeroed([*norms, norms[0]], [2, 5]):
            assert all(parameter[[2, 5]].tolist() == [0, 0] for parameter in parameters)
            assert all(torch.equal(p[others], was[others]) for p, was in zip(parameters, before, strict=True))
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        break_off()
    assert all(torch.equal(parameter, was) for parameter, was in zip(parameters, before, strict=True))


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert"])
def test_a_zeroed_neuron_is_0_in_all_that_blocks_hand_on_and_the_model_is_the_same_afterwards(
    family: str, checkpoints: dict[str, Path]
) -> None:
    encoder = untouched(checkpoints[family])
    norms = output_norms(encoder)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    ids = torch.arange(5, 15)[None]
    with torch.inference_mode(), zeroed(norms, [3]):
        embedded, *states = encoder(ids, output_hidden_states=True).hidden_states
    assert len(states) == 3
    assert (embedded[..., 3] != 0).all()
    for state in states:
        assert (state[..., 3] == 0).all()
        assert (state[..., [0, 1, 2, 4]] != 0).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def test_others_are_as_many_and_never_outliers() -> None:
    gains = np.array([9.0, 1, 2, 8, 3, 7, 0, 0, 0, 0])
    found = conditions([3, 0], gains, 20, 1)
    assert [(c.where, c.kind, c.draw) for c in found] == [
        ("inside", "outliers", 0), ("inside", "largest_gain", 0), *(("inside", "random", i + 1) for i in range(20)),
        ("after", "outliers", 0), *(("after", "random", i + 1) for i in range(20)),
    ]  # fmt: skip
    assert found[0].neurons == found[22].neurons == (0, 3)
    assert found[1].neurons == (4, 5)
    random = [c.neurons for c in found if c.kind == "random"]
    assert all(len(set(neurons)) == 2 and not {0, 3} & set(neurons) for neurons in random)
    assert random[:20] == random[20:]
    assert len(set(random)) > 5
    assert found == conditions([0, 3], gains, 20, 1) != conditions([0, 3], gains, 20, 2)


@pytest.mark.parametrize("outliers", [[], [0, 1, 2, 3, 4, 5]])
def test_nothing_is_compared_where_there_is_nothing_to_take_out_or_nothing_left(outliers: list[int]) -> None:
    with pytest.raises(ValueError, match="neurons"):
        conditions(outliers, np.ones(10), 3, 0)


# Each neuron's worth: the loss rises by it where the neuron is zeroed inside, by a tenth of it where it is clipped.
WORTH = np.array([5.0, 0, 1, 2, 3, 4, 0.5, 0])
SENTENCES = np.tile([2.0, -1, 3, 0.5], 8)
N_TOKENS = np.tile([3, 1, 2, 0], 8)


class Planted:
    """Reads a loss, and an accuracy that falls by a hundredth of what it rises by, off the gains of a norm."""

    def __init__(self, norm: nn.LayerNorm, sign: float = 1.0) -> None:
        self.norm, self.sign = norm, sign
        self.seen: list[Any] = []

    def __call__(self, clips: Sequence[Sequence[int]]) -> list[Read]:
        zero = self.norm.weight.detach().numpy() == 0
        self.seen.append(np.flatnonzero(zero).tolist())
        assert (self.norm.bias.detach().numpy()[zero] == 0).all()
        losses = [self.sign * (WORTH[zero].sum() + WORTH[list(neurons)].sum() / 10) for neurons in clips]
        return [
            Read(
                {
                    "mlm_loss": (SENTENCES + loss) * N_TOKENS,
                    "position_accuracy": (0.5 - (SENTENCES + loss) / 100) * N_TOKENS,
                },
                dict.fromkeys(("mlm_loss", "position_accuracy"), N_TOKENS),
            )
            for loss in losses
        ]


def planted(outlier: int, n_draws: int = 12, sign: float = 1.0) -> tuple[list[dict[str, Any]], Planted, nn.LayerNorm]:
    norm = nn.LayerNorm(8)
    nn.init.ones_(norm.bias)
    reader = Planted(norm, sign)
    return intervene([norm], conditions([outlier], np.ones(8), n_draws, 0), reader), reader, norm


def test_effects_are_differences_to_the_intact_model_with_intervals_over_sentences() -> None:
    rows, reader, norm = planted(0)
    assert norm.weight.tolist() == norm.bias.tolist() == [1] * 8
    assert reader.seen[:3] == [[], [0], [1]]  # as it is, without the outlier, without the first of equal gains
    by = {(row["measure"], row["where"], row["kind"]): row for row in rows if row.get("draw") is None}
    mean = (SENTENCES * N_TOKENS).sum() / N_TOKENS.sum()
    intact = by["mlm_loss", "", "intact"]
    assert intact["value"] == pytest.approx(mean)
    assert intact["low"] < mean < intact["high"]
    assert intact["n_tokens"] == 48
    inside, after = (by["mlm_loss", where, "outliers"] for where in ("inside", "after"))
    assert (inside["effect"], after["effect"]) == (pytest.approx(5), pytest.approx(0.5))
    assert inside["value"] == pytest.approx(mean + 5)
    # The effect is the same in every sentence: sentences differ in the value and not in the effect.
    assert (inside["effect_low"], inside["effect_high"]) == (pytest.approx(5), pytest.approx(5))
    assert inside["low"] < inside["value"] < inside["high"]
    accuracy = by["position_accuracy", "inside", "outliers"]
    assert accuracy["effect"] == pytest.approx(-0.05)
    assert accuracy["effect_low"] < -0.05 < accuracy["effect_high"]  # of accuracies, even that is not certain
    assert 0 < accuracy["low"] < accuracy["value"] < accuracy["high"] < 1
    for row in rows:
        if row["kind"] == "random":
            worth = WORTH[int(row["neurons"])] * (1 if row["where"] == "inside" else 0.1)
            assert row["effect"] == pytest.approx(worth if row["measure"] == "mlm_loss" else -worth / 100)
    assert len(rows) == 2 * (1 + 2 + 12 + 1 + 12)


@pytest.mark.parametrize("measure", ["mlm_loss", "position_accuracy"])
def test_the_percentile_counts_random_draws_that_do_less_harm(measure: str) -> None:
    for outlier in (0, 4, 1):
        rows, _, _ = planted(outlier, 12)
        for where in ("inside", "after"):
            here = [row for row in rows if (row["measure"], row["where"]) == (measure, where)]
            drawn = [WORTH[int(row["neurons"])] for row in here if row["kind"] == "random"]
            (row,) = [row for row in here if row["kind"] == "outliers"]
            less = sum(worth < WORTH[outlier] for worth in drawn)
            assert row["percentile"] == pytest.approx(100 * less / 12)
            assert row["p_value"] == pytest.approx((13 - less) / 13)
    assert 0 < less < 12 or outlier == 1


def test_taking_out_what_disturbs_is_no_harm() -> None:
    rows, _, _ = planted(0, 12, sign=-1)
    found = [row for row in rows if row["kind"] == "outliers"]
    assert {row["percentile"] for row in found} == {0}
    assert {row["p_value"] for row in found} == {1}


def test_without_random_draws_there_is_no_percentile() -> None:
    rows, _, _ = planted(0, 0)
    assert all("percentile" not in row and "p_value" not in row for row in rows)
