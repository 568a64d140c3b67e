"""Norms whose outliers have ordinary gains and biases: what is left, what is restored, and random neurons beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.models.anatomy import examine
from probing.models.residual_stream import find_norms
from probing.readouts.later_blocks import Read
from probing.readouts.model_output import sum_by_sentence
from probing.statistics.moments import by_mean_profile
from probing.studies.geometry.inside.changed_norms import change_norms, chosen_conditions, see_layers
from tiny_models import D_MODEL, N_LAYERS, each_alone, make_wide, make_wide_tokens

pytestmark = pytest.mark.numeric

K, SEED = 11, 0
N_DRAWS = 9


def modules_of(encoder: Any) -> dict[int, list[Any]]:
    norms = find_norms(encoder, examine(encoder))
    return {n: [encoder.get_submodule(one.name) for one in norms if one.number == n] for n in (1, 2)}


class Reader:
    """Reads the distances of neurons, and a loss that is the mean of all last hidden states of a sentence."""

    def __init__(self, encoder: Any, tokens: Tokens) -> None:
        self.encoder, self.tokens, self.anatomy = encoder, tokens, examine(encoder)
        self.norms = [norm for norms in modules_of(encoder).values() for norm in norms]
        self.gains: list[Any] = []

    def __call__(self) -> tuple[Read, NDArray[np.float64]]:
        self.gains.append([norm.weight.detach().clone() for norm in self.norms])
        seen = see_layers(self.encoder, self.anatomy, self.tokens, ~self.tokens.special, 0)
        sums = sum_by_sentence(self.tokens, seen.last.double().mean(1).numpy())
        return Read({"mlm_loss": sums}, {"mlm_loss": self.tokens.lengths.astype(np.int64)}), seen.deviations


def planted(where: str, neuron: int = K) -> Any:
    """Return a model with an outlier in the bias of the first, or of the second norm of every block."""
    encoder = make_wide("bert")
    with torch.no_grad():
        for layer in encoder.encoder.layer:
            norm = layer.attention.output.LayerNorm if where == "first" else layer.output.LayerNorm
            norm.bias[neuron] = -7
    return encoder


def changed(encoder: Any, neuron: int = K) -> tuple[list[dict[str, Any]], Reader]:
    reader, named = Reader(encoder, make_wide_tokens()), {1: [neuron], 2: [neuron]}
    chosen = chosen_conditions([neuron], D_MODEL, N_DRAWS, SEED)
    return change_norms(modules_of(encoder), named, chosen, reader, 5), reader


def test_distances_of_layers_are_those_of_each_sentence_by_itself() -> None:
    encoder, tokens = planted("second"), make_wide_tokens()
    seen = see_layers(encoder, examine(encoder), tokens, ~tokens.special, 0)
    with torch.inference_mode():
        alone = [encoder(ids, output_hidden_states=True).hidden_states for _, ids in each_alone(tokens)]
    for layer in range(N_LAYERS + 1):
        states = torch.cat([states[layer][0] for states in alone])
        mean = states[torch.from_numpy(~tokens.special)].double().mean(0).numpy()
        np.testing.assert_allclose(seen.deviations[layer], (mean - mean.mean()) / mean.std(), atol=1e-4)
        far = {one.neuron: one.value for one in by_mean_profile(mean)}
        assert set(far) == set(np.flatnonzero(np.abs(seen.deviations[layer]) > 5))
    torch.testing.assert_close(seen.last, states, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("where", "gone"), [("second", {"second", "both"}), ("first", {"first", "both"})])
def test_an_outlier_goes_where_the_norm_that_makes_it_is_made_ordinary_and_only_there(
    where: str, gone: set[str]
) -> None:
    rows, _ = changed(planted(where))
    layer_1 = [row for row in rows if (row["measure"], row.get("layer")) == ("deviations", 1)]
    (intact,) = [row for row in layer_1 if row["kind"] == "intact"]
    assert (intact["outlier"], intact["value"] < -5) == ("yes", True)
    for row in layer_1:
        if row["kind"] == "outliers":
            assert (row["outlier"] == "no") == (row["where"] in gone), row
            assert row["effect"] == pytest.approx(row["value"] - intact["value"])
            if row["where"] in gone:
                assert (row["percentile"], row["p_value"]) == (100, 1 / (1 + N_DRAWS))
        if row["kind"] == "random":
            assert row["outlier"] == "yes"
            assert row["neurons"] != str(K)
    assert len(layer_1) == 1 + 3 * (1 + N_DRAWS)


def test_gains_and_biases_are_the_means_of_others_while_measured_and_exactly_as_before_afterwards() -> None:
    encoder = planted("second")
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    rows, reader = changed(encoder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    others = [k for k in range(D_MODEL) if k != K]
    intact, first = reader.gains[0], reader.gains[1]
    for was, now, is_first in zip(intact, first, [True, True, False, False], strict=True):
        assert torch.equal(was[others], now[others])
        assert float(now[K]) == pytest.approx(float(was[others].double().mean() if is_first else was[K]))
    # A random neuron takes the mean of those that are neither it nor the outlier.
    drawn = next(row for row in rows if (row["kind"], row["where"], row.get("draw")) == ("random", "first", 1))
    k = int(drawn["neurons"])
    rest = [j for j in others if j != k]
    assert float(reader.gains[2][0][k]) == pytest.approx(float(intact[0][rest].double().mean()))


def test_an_error_midway_leaves_the_parameters_bit_for_bit() -> None:
    encoder = planted("first")
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    reader, n_reads = Reader(encoder, make_wide_tokens()), 0

    def breaks() -> Any:
        nonlocal n_reads
        n_reads += 1
        if n_reads == 3:
            assert not all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
            raise RuntimeError("midway")
        return reader()

    chosen = chosen_conditions([K], D_MODEL, 2, SEED)
    with pytest.raises(RuntimeError, match="midway"):
        change_norms(modules_of(encoder), {1: [K]}, chosen, breaks, 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def test_an_ordinary_neuron_in_the_place_of_an_outlier_changes_nothing_that_random_ones_do_not() -> None:
    rows, _ = changed(make_wide("bert"), neuron=20)
    found = [row for row in rows if row["kind"] == "outliers" and row["measure"] == "deviations"]
    assert all(row["outlier"] == "no" and abs(row["effect"]) < 1 for row in found)
    losses = [row for row in rows if row["measure"] == "mlm_loss"]
    effects = [abs(row["effect"]) for row in losses if row["kind"] == "random"]
    assert all(abs(row["effect"]) < 3 * max(effects) for row in losses if row["kind"] == "outliers")


def test_as_many_others_are_drawn_in_every_place_and_never_outliers() -> None:
    found = chosen_conditions([3, K], D_MODEL, 4, SEED)
    assert [(one.where, one.kind, one.draw) for one in found] == [
        (where, kind, draw)
        for where in ("first", "second", "both")
        for kind, draw in (("outliers", 0), ("random", 1), ("random", 2), ("random", 3), ("random", 4))
    ]
    assert all(len(one.neurons) == 2 and not {3, K} & set(one.neurons) for one in found if one.kind == "random")
    assert [one.neurons for one in found[:5]] == [one.neurons for one in found[5:10]]
    assert found != chosen_conditions([3, K], D_MODEL, 4, SEED + 1)
