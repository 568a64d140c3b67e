"""The path of outliers: mean vectors of every site, planted rows of the position table, and random neurons beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from probing.models.anatomy import examine
from probing.models.residual_stream import Site, find_path
from probing.studies.geometry.inside.report import course, followed
from probing.studies.geometry.inside.stream import groups_of, path_means, path_rows
from tiny_models import D_MODEL, N_LAYERS, each_alone, make_wide, make_wide_tokens

pytestmark = pytest.mark.numeric

K = 11


def measured(encoder: Any) -> tuple[list[Site], dict[str, Any]]:
    anatomy, tokens = examine(encoder), make_wide_tokens()
    sites = find_path(encoder, anatomy)
    return sites, path_means(encoder, anatomy, sites, tokens, groups_of(tokens), 0)


def rows_of(encoder: Any) -> list[dict[str, Any]]:
    sites, means = measured(encoder)
    return path_rows(sites, means, groups_of(make_wide_tokens()), {K: "first_row", 20: "random", 21: "random"})


def test_first_tokens_are_those_of_sentences_and_words_are_neither_first_nor_special() -> None:
    tokens = make_wide_tokens()
    groups = groups_of(tokens)
    assert np.flatnonzero(groups["first"]).tolist() == tokens.offsets[:-1].tolist()
    assert groups["words"].tolist() == (~tokens.special).tolist()
    causal = groups_of(type(tokens)(tokens.lengths, tokens.input_ids, np.abs(tokens.words)))  # none is special
    assert not (causal["words"] & causal["first"]).any()
    assert (causal["words"] | causal["first"]).all()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "gpt2", "llama", "opt"])
def test_means_of_terms_add_up_and_those_of_layers_are_the_hidden_states_of_each_sentence(family: str) -> None:
    encoder, tokens = make_wide(family), make_wide_tokens()
    sites, means = measured(encoder)
    index = {(site.layer, site.name): i for i, site in enumerate(sites)}
    with torch.inference_mode():
        alone = [encoder(ids, output_hidden_states=True).hidden_states for _, ids in each_alone(tokens)]
    is_post = (1, "norm_2") in index
    for name, those in groups_of(tokens).items():
        at = {site: means[name][i] for site, i in index.items()}
        states = [
            torch.cat([states[k][0] for states in alone])[torch.from_numpy(those)].double().mean(0).numpy()
            for k in range(N_LAYERS + 1)
        ]
        embedded = [at[0, term] for term in ("word", "position", "type") if (0, term) in at]
        np.testing.assert_allclose(sum(embedded), at[0, "sum"], atol=1e-5)
        np.testing.assert_allclose(at[0, "norm" if is_post else "sum"], states[0], atol=1e-5)
        stream = states[0]
        for layer in range(1, N_LAYERS + 1):
            after = stream + at[layer, "attention"]
            np.testing.assert_allclose(after, at[layer, "sum_attention"], atol=1e-5)
            after = (at[layer, "norm_1"] if is_post else after) + at[layer, "feed_forward"]
            np.testing.assert_allclose(after, at[layer, "sum_feed_forward"], atol=1e-5)
            stream = at[layer, "norm_2" if is_post else "sum_feed_forward"]
            if layer < N_LAYERS or is_post:
                np.testing.assert_allclose(stream, states[layer], atol=1e-5)
        if not is_post:
            np.testing.assert_allclose(at[N_LAYERS, "final_norm"], states[-1], atol=1e-5)


def test_an_outlier_planted_in_the_first_row_of_the_position_table_is_traced_to_it() -> None:
    encoder = make_wide("bert")
    assert all(abs(row["deviations"]) < 5 for row in rows_of(encoder))
    with torch.no_grad():
        encoder.embeddings.position_embeddings.weight[0, K] = -9
    rows = rows_of(encoder)
    at = {(row["site"], row["tokens"], row["neuron"]): row for row in rows if not row["layer"]}
    assert at["position", "first", K]["deviations"] < -5
    assert at["position", "first", K]["value"] == pytest.approx(-9)
    assert abs(at["word", "first", K]["deviations"]) < 5
    assert at["sum", "first", K]["deviations"] < -5
    found = course(rows, K, "first")
    assert found is not None
    assert (found.beyond[0]["site"], found.beyond[0]["layer"]) == ("sum", 0)
    # On words, which have other rows of the table, it is nowhere one.
    of_words = course(rows, K, "words")
    assert of_words is not None
    assert of_words.beyond == []
    assert all(abs(row["deviations"]) < 5 for row in rows if row["kind"] == "random")
    assert followed(rows) == [K]


def test_an_outlier_that_a_norm_ends_falls_below_there() -> None:
    encoder = make_wide("bert")
    with torch.no_grad():
        encoder.embeddings.position_embeddings.weight[0, K] = -9
        encoder.encoder.layer[0].output.LayerNorm.weight[K] = 0
    found = course(rows_of(encoder), K, "first")
    assert found is not None
    assert found.end is not None
    assert (found.end["layer"], found.end["site"]) == (1, "norm_2")
    assert (found.beyond[-1]["layer"], found.beyond[-1]["site"]) == (1, "sum_feed_forward")


def test_distances_are_in_standard_deviations_of_all_neurons() -> None:
    sites, means = measured(make_wide("gpt2"))
    rows = path_rows(sites, means, groups_of(make_wide_tokens()), dict.fromkeys(range(D_MODEL), "layers"))
    steps = {(row["step"], row["tokens"]) for row in rows}
    assert len(steps) == 2 * len(sites)
    for step, tokens in steps:
        z = [row["deviations"] for row in rows if (row["step"], row["tokens"]) == (step, tokens)]
        assert (np.mean(z), np.std(z)) == (pytest.approx(0, abs=1e-9), pytest.approx(1))
