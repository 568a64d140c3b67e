"""Terms of neurons in norms: they add up to what the model's norms give, and planted outliers are traced to a cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from probing.cache.tokens import Tokens
from probing.models.anatomy import examine
from probing.models.residual_stream import find_norms
from probing.studies.geometry.inside.stream import NormMeans, norm_means, norm_rows
from tiny_models import D_MODEL, N_LAYERS, each_alone, make_wide, make_wide_tokens

pytestmark = pytest.mark.numeric

K = 11


def measured(encoder: Any, tokens: Tokens) -> list[NormMeans]:
    anatomy = examine(encoder)
    return norm_means(encoder, anatomy, find_norms(encoder, anatomy), tokens, ~tokens.special, 0)


def rows_of(encoder: Any) -> dict[tuple[int, int, int], dict[str, Any]]:
    rows = norm_rows(measured(encoder, make_wide_tokens()), [K], [1, 2, 50])
    return {(row["layer"], row["norm"], row["neuron"]): row for row in rows}


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "gpt2", "llama"])
def test_terms_add_up_to_the_mean_output_of_each_norm_sentence_by_sentence(family: str) -> None:
    encoder, tokens = make_wide(family), make_wide_tokens()
    means, words = measured(encoder, tokens), ~tokens.special
    names = [one.of.name for one in means]
    outputs: dict[str, list[Any]] = {name: [] for name in names}
    handles = [
        encoder.get_submodule(name).register_forward_hook(
            lambda module, args, made, name=name: outputs[name].append(made[0].double())
        )
        for name in names
    ]
    with torch.inference_mode():
        for _, ids in each_alone(tokens):
            encoder(ids)
    for handle in handles:
        handle.remove()
    rows = norm_rows(means, [K, 20], [1, 2, 50])
    assert len(rows) == 2 * N_LAYERS * 5
    for row in rows:
        plain = torch.cat(outputs[row["module"]])[torch.from_numpy(words)].mean(0)[row["neuron"]]
        assert row["mean"] == pytest.approx(float(plain), abs=1e-5)
        assert row["by_scaled_input"] + row["by_centring"] + row["bias"] == pytest.approx(row["mean"], abs=1e-5)
        own = row["by_input"] + row["by_gain"] + row["by_bias"]
        assert own + row["by_others_bias"] == pytest.approx(row["mean"], abs=1e-5)
        assert row["n_tokens"] == words.sum()
        if family == "llama":  # an RMS norm neither centres nor has a bias
            assert row["by_centring"] == row["bias"] == row["by_bias"] == 0


def test_the_gain_and_bias_of_others_are_means_over_all_but_the_outliers() -> None:
    encoder = make_wide("bert")
    norm = encoder.encoder.layer[1].output.LayerNorm
    row = rows_of(encoder)[2, 2, K]
    others = [k for k in range(D_MODEL) if k != K]
    assert row["others_gain"] == pytest.approx(float(norm.weight.detach()[others].mean()))
    assert row["others_bias"] == pytest.approx(float(norm.bias.detach()[others].mean()))
    assert (row["gain"], row["bias"]) == (float(norm.weight.detach()[K]), float(norm.bias.detach()[K]))


def test_outliers_are_traced_to_the_gain_the_bias_or_the_input_and_random_neurons_to_nothing() -> None:
    plain = rows_of(make_wide("bert"))
    assert all(abs(row["deviations"]) < 5 for row in plain.values())

    of_bias = make_wide("bert")
    of_gain = make_wide("bert")
    with torch.no_grad():
        of_bias.encoder.layer[0].attention.output.LayerNorm.bias[K] = -6
        norm = of_gain.encoder.layer[0].attention.output.LayerNorm
        norm.weight[K] = 40
        # A gain alone makes no outlier of a mean of 0.
        of_gain.encoder.layer[0].attention.output.dense.bias[K] += 0.5
    found = rows_of(of_bias)
    assert found[1, 1, K]["largest"] == "bias"
    assert found[1, 1, K]["deviations"] < -5
    assert found[1, 1, K]["by_bias"] == pytest.approx(-6, abs=0.1)
    # What the first norm gives enters the second as its input.
    assert (found[1, 2, K]["largest"], found[1, 2, K]["deviations"] < -5) == ("input", True)
    traced = rows_of(of_gain)[1, 1, K]
    assert (traced["largest"], abs(traced["deviations"]) > 5) == ("gain", True)
    assert abs(traced["by_gain"]) > 10 * abs(traced["by_input"]) > 0
    for rows in (found, rows_of(of_gain)):
        assert all(abs(row["deviations"]) < 5 for row in rows.values() if row["kind"] == "random")


def test_only_tokens_that_count_are_in_the_means() -> None:
    encoder, tokens = make_wide("bert"), make_wide_tokens()
    anatomy = examine(encoder)
    everything = norm_means(
        encoder, anatomy, find_norms(encoder, anatomy), tokens, np.ones(tokens.n_tokens, dtype=np.bool_), 0
    )
    with torch.inference_mode():
        states = torch.cat([encoder(ids).last_hidden_state[0] for _, ids in each_alone(tokens)]).double().numpy()
    np.testing.assert_allclose(everything[-1].output, states.mean(0), atol=1e-5)
    words = measured(encoder, tokens)[-1]
    np.testing.assert_allclose(words.output, states[~tokens.special].mean(0), atol=1e-5)
    assert np.abs(words.output - everything[-1].output).max() > 1e-3
