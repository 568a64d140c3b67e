"""Outliers and norms: parameters and terms of neurons, the path of outliers, and `geometry` from end to end."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from families import D_MODEL, FAMILIES, masked_lm
from probing import WandbOptions
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.interventions.model_output import SentenceSums, sum_by_sentence
from probing.interventions.parameters import ordinary_row
from probing.models import load_encoder, resolve_model
from probing.models.anatomy import examine
from probing.models.residual_stream import NormModule, Parameters, StreamSite, find_norms, find_parameters, find_path
from probing.results import Table, count
from probing.runs import Result
from probing.statistics.moments import by_mean_profile
from probing.studies.geometry import geometry
from probing.studies.geometry.figures import draw_changes, draw_terms
from probing.studies.geometry.inside import (
    changes_conclusions,
    changes_tables,
    course,
    first_row_conclusions,
    followed,
    inside_conclusions,
    norms_table,
    terms_conclusion,
)
from probing.studies.geometry.norms import (
    NormMeans,
    change_first_row,
    change_norms,
    chosen_conditions,
    groups_of,
    layer_deviations,
    norm_means,
    norm_rows,
    path_means,
    path_rows,
)
from probing.studies.geometry.survey import not_applicable, parameter_rows
from probing.text.tokens import Tokens
from tiny_models import D_MODEL as TERMS_D_MODEL
from tiny_models import N_LAYERS, each_alone, make_wide, make_wide_tokens
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.numeric


# For each family: the row of position 0 (None: no table of the model's width), whether norms have a bias, and whether
# its token embedding has the model's width.
FOUND: dict[str, tuple[int | None, bool, bool]] = {
    "bert": (0, True, True),
    "roberta": (2, True, True),
    "distilbert": (0, True, True),
    "albert": (None, True, False),
    "electra": (None, True, False),
    "deberta": (None, True, True),
    "deberta-v2": (None, True, True),
    "xlm-roberta": (2, True, True),
    "mpnet": (2, True, True),
    "modernbert": (None, False, True),
    "convbert": (None, True, False),
    "xlnet": (None, True, True),
    "t5": (None, False, True),
    "bart": (2, True, True),
    "prophetnet": (1, True, True),
    "openai-gpt": (0, True, True),
    "gpt2": (0, True, True),
    "gpt_neox": (None, True, True),
    "llama": (None, False, True),
    "eurobert": (None, False, True),
    "nomic_bert": (None, True, True),
    "gte": (None, True, True),
    "jina_embeddings_v3": (None, True, True),
    "roformer": (None, True, True),
    "esm": (None, True, True),
    "megatron-bert": (0, True, True),
    "luke": (2, True, True),
    "rembert": (None, True, False),
    "qwen3": (None, False, True),
    "gemma3_text": (None, False, True),
    "bloom": (None, True, True),
    "lfm2": (None, False, True),
    "olmo2": (None, False, True),
    "mpt": (None, False, True),
    "longformer": (2, True, True),
}


def of(checkpoint: Path) -> tuple[Any, Parameters]:
    encoder = load_encoder(resolve_model(str(checkpoint))).requires_grad_(False)
    return encoder, find_parameters(encoder, examine(encoder))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_shows_what_it_has_and_says_what_it_has_not(family: str, checkpoints: dict[str, Path]) -> None:
    first_row, has_bias, has_embedding = FOUND[family]
    _, found = of(checkpoints[family])
    assert (found.position_table is None) == (first_row is None)
    if first_row is not None:
        assert found.first_row == first_row
    assert any(norm.bias is not None for norm in found.norms) == has_bias
    assert (found.mean_token is not None) == has_embedding
    assert all(norm.gain.shape == (D_MODEL,) for norm in found.norms)
    missing = not_applicable(found)
    assert ("position table" in missing, "LayerNorm bias" in missing) == (first_row is None, not has_bias)
    rows = parameter_rows(found, [3])
    assert {row["parameter"] for row in rows} >= {"gain"}
    assert ("position" in {row["parameter"] for row in rows}) == (first_row is not None)
    # Every block has a norm that makes or reads its hidden state; ALBERT's one block stands for all. OLMo 2 normalises
    # what its parts add, so that only the final norm makes a hidden state.
    layers = {norm.layer for norm in found.output_norms}
    others: dict[str, set[int]] = {"xlnet": set(), "albert": {1}, "olmo2": {3}}
    expected = others.get(family, set(range(1, FAMILIES[family].n_layers + 1)))
    assert layers == expected


def test_berts_output_norms_are_those_behind_blocks_and_gpt2s_those_that_read(checkpoints: dict[str, Path]) -> None:
    _, bert = of(checkpoints["bert"])
    assert {norm.layer: norm.module for norm in bert.norms if norm.layer is not None} == {
        0: "embeddings.LayerNorm", **{k + 1: f"encoder.layer.{k}.output.LayerNorm" for k in range(3)},
    }  # fmt: skip
    assert len(bert.norms) == 7  # those behind attention have no layer of their own
    _, gpt2 = of(checkpoints["gpt2"])
    assert {norm.layer: norm.module for norm in gpt2.norms if norm.layer is not None} == {
        0: "h.0.ln_1", 1: "h.1.ln_1", 2: "h.2.ln_1", 3: "ln_f",
    }  # fmt: skip


def test_segments_are_told_from_positions_and_tokens(checkpoints: dict[str, Path]) -> None:
    for family in ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "gpt2", "deberta-v2", "t5"):
        encoder, found = of(checkpoints[family])
        rows = [row for row in parameter_rows(found, [3, 5]) if row["parameter"] == "segment"]
        assert bool(rows) == (family in ("bert", "roberta", "xlm-roberta")), family
        if rows:
            table = encoder.embeddings.token_type_embeddings.weight
            assert len(rows) == 2 * len(table)
            assert [row["value"] for row in rows] == [float(table[row["row"], row["neuron"]]) for row in rows]


def test_rows_are_the_models_own_numbers_with_ranks_by_loops(checkpoints: dict[str, Path]) -> None:
    encoder, found = of(checkpoints["roberta"])
    rows = parameter_rows(found, [5, 11])
    table = encoder.embeddings.position_embeddings.weight.detach().double().numpy()
    of_table = [row for row in rows if row["parameter"] == "position"]
    assert len(of_table) == 2 * len(table)
    for row in of_table[:40]:
        values, k = table[row["row"]], row["neuron"]
        assert row["value"] == values[k]
        assert row["rank"] == 1 + sum(other > values[k] for other in values)
        assert row["absolute_rank"] == 1 + sum(abs(other) > abs(values[k]) for other in values)
        assert row["deviations"] == pytest.approx((values[k] - values.mean()) / values.std())
        assert row.get("position") == (row["row"] - 2 if row["row"] >= 2 else None)
    (bias,) = [row for row in rows if row["parameter"] == "bias" and row.get("layer") == 2 and row["neuron"] == 11]
    assert bias["value"] == float(encoder.encoder.layer[1].output.LayerNorm.bias[11])
    (token,) = [row for row in rows if row["parameter"] == "mean_token" and row["neuron"] == 5]
    assert token["value"] == pytest.approx(float(encoder.embeddings.word_embeddings.weight[:, 5].mean()), abs=1e-7)


def test_of_equal_values_the_lower_neuron_comes_first_and_a_flat_vector_has_no_deviations() -> None:
    flat = Parameters(None, 0, torch.ones(4), (NormModule("norm", torch.tensor([1.0, -2.0, 1.0, 0.0]), None, 1),))
    rows = parameter_rows(flat, [0, 1, 2, 3])
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 1, 4, 2, 3]
    assert [row["absolute_rank"] for row in rows[4:]] == [2, 1, 3, 4]
    assert [row["deviations"] for row in rows[:4]] == [0, 0, 0, 0]
    assert np.allclose([row["deviations"] for row in rows[4:]], np.array([1, -2, 1, 0]) / np.std([1, -2, 1, 0]))
    assert {row["n_outliers"] for row in rows} == {0}
    assert not_applicable(flat) == ["position table", "LayerNorm bias"]


def test_neurons_far_from_the_others_are_counted_whichever_are_listed() -> None:
    vector = torch.zeros(100)
    vector[[7, 8, 9]] = torch.tensor([-9.0, 9.0, 1.0])
    (row,) = parameter_rows(Parameters(None, 0, vector, ()), [50])
    assert row["n_outliers"] == 2


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
    others = [k for k in range(TERMS_D_MODEL) if k != K]
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


CHANGES_K, SEED = 11, 0
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

    def __call__(self) -> tuple[SentenceSums, NDArray[np.float64]]:
        self.gains.append([norm.weight.detach().clone() for norm in self.norms])
        seen = layer_deviations(self.encoder, self.anatomy, self.tokens, ~self.tokens.special, 0)
        sums = sum_by_sentence(self.tokens, seen.last.double().mean(1).numpy())
        return SentenceSums({"mlm_loss": sums}, {"mlm_loss": self.tokens.lengths.astype(np.int64)}), seen.deviations


def planted(where: str, neuron: int = CHANGES_K) -> Any:
    """Return a model with an outlier in the bias of the first, or of the second norm of every block."""
    encoder = make_wide("bert")
    with torch.no_grad():
        for layer in encoder.encoder.layer:
            norm = layer.attention.output.LayerNorm if where == "first" else layer.output.LayerNorm
            norm.bias[neuron] = -7
    return encoder


def changed(encoder: Any, neuron: int = CHANGES_K) -> tuple[list[dict[str, Any]], Reader]:
    reader, named = Reader(encoder, make_wide_tokens()), {1: [neuron], 2: [neuron]}
    chosen = chosen_conditions([neuron], TERMS_D_MODEL, N_DRAWS, SEED)
    return change_norms(modules_of(encoder), named, chosen, reader, 5), reader


def test_distances_of_layers_are_those_of_each_sentence_by_itself() -> None:
    encoder, tokens = planted("second"), make_wide_tokens()
    seen = layer_deviations(encoder, examine(encoder), tokens, ~tokens.special, 0)
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
            assert row["neurons"] != str(CHANGES_K)
    assert len(layer_1) == 1 + 3 * (1 + N_DRAWS)


def test_gains_and_biases_are_the_means_of_others_while_measured_and_exactly_as_before_afterwards() -> None:
    encoder = planted("second")
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    rows, reader = changed(encoder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    others = [k for k in range(TERMS_D_MODEL) if k != CHANGES_K]
    intact, first = reader.gains[0], reader.gains[1]
    for was, now, is_first in zip(intact, first, [True, True, False, False], strict=True):
        assert torch.equal(was[others], now[others])
        assert float(now[CHANGES_K]) == pytest.approx(
            float(was[others].double().mean() if is_first else was[CHANGES_K])
        )
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

    chosen = chosen_conditions([CHANGES_K], TERMS_D_MODEL, 2, SEED)
    with pytest.raises(RuntimeError, match="midway"):
        change_norms(modules_of(encoder), {1: [CHANGES_K]}, chosen, breaks, 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def test_an_ordinary_neuron_in_the_place_of_an_outlier_changes_nothing_that_random_ones_do_not() -> None:
    rows, _ = changed(make_wide("bert"), neuron=20)
    found = [row for row in rows if row["kind"] == "outliers" and row["measure"] == "deviations"]
    assert all(row["outlier"] == "no" and abs(row["effect"]) < 1 for row in found)
    losses = [row for row in rows if row["measure"] == "mlm_loss"]
    effects = [abs(row["effect"]) for row in losses if row["kind"] == "random"]
    assert all(abs(row["effect"]) < 3 * max(effects) for row in losses if row["kind"] == "outliers")


def test_as_many_others_are_drawn_in_every_place_and_never_outliers() -> None:
    found = chosen_conditions([3, CHANGES_K], TERMS_D_MODEL, 4, SEED)
    assert [(one.where, one.kind, one.draw) for one in found] == [
        (where, kind, draw)
        for where in ("first", "second", "both")
        for kind, draw in (("outliers", 0), ("random", 1), ("random", 2), ("random", 3), ("random", 4))
    ]
    assert all(len(one.neurons) == 2 and not {3, CHANGES_K} & set(one.neurons) for one in found if one.kind == "random")
    assert [one.neurons for one in found[:5]] == [one.neurons for one in found[5:10]]
    assert found != chosen_conditions([3, CHANGES_K], TERMS_D_MODEL, 4, SEED + 1)


def term(neuron: int, number: int, z: float, largest: str, kind: str = "outlier") -> dict[str, Any]:
    parts = {f"by_{name}": 3.0 if name == largest else 0.25 for name in ("input", "gain", "bias")}
    about = {"layer": 2, "norm": number, "module": "n", "neuron": neuron, "kind": kind}
    return {**about, **parts, "by_others_bias": 0.5, "mean": 4.0, "deviations": z, "largest": largest}


def changes(n_draws: int) -> list[dict[str, Any]]:
    """Two outliers, of which the second norm makes one, and a loss that rises by .2 where both are ordinary."""
    rows: list[dict[str, Any]] = []
    for neuron, after in (
        (3, {"first": 6.0, "second": 1.0, "both": 1.5}),
        (8, dict.fromkeys(("first", "second"), 7.0)),
    ):
        about = {"measure": "deviations", "layer": 1, "neuron": neuron, "n_tokens": 9}
        rows.append({**about, "where": "", "kind": "intact", "value": 8.0, "outlier": "yes"})
        for where in ("first", "second", "both"):
            value = after.get(where, 7.0)
            p = {"percentile": 100.0, "p_value": 0.25} if n_draws else {}
            left = "yes" if value > 5 else "no"
            rows.append({**about, "where": where, "kind": "outliers", "value": value, "outlier": left, **p})
            rows += [
                {**about, "where": where, "kind": "random", "draw": i + 1, "value": 8.0, "outlier": "yes"}
                for i in range(n_draws)
            ]
    about = {"measure": "mlm_loss", "n_tokens": 9}
    rows.append({**about, "where": "", "kind": "intact", "value": 1.5})
    for where, effect in (("first", 0.0), ("second", 0.1), ("both", 0.2)):
        p = {"percentile": 50.0, "p_value": 0.5} if n_draws else {}
        ends = {"effect_low": effect - 0.05, "effect_high": effect + 0.05}
        rows.append({**about, "where": where, "kind": "outliers", "value": 1.5 + effect, "effect": effect, **ends, **p})
        rows += [{**about, "where": where, "kind": "random", "draw": i + 1, "effect": 0.1 * i} for i in range(n_draws)]
    return rows


def test_terms_are_counted_and_the_farthest_outlier_is_split() -> None:
    rows = Table([
        term(3, 1, -6.0, "gain"),
        term(3, 2, -9.0, "bias"),
        term(8, 2, 4.9, "input"),
        term(1, 2, 2.0, "bias", "random"),
    ])  # fmt: skip
    said = terms_conclusion(rows)
    assert "more than 5 sd from the other neurons after a norm 2 times" in said
    assert "the input of the norm in 0, the neuron's gain in 1 and the neuron's bias in 1" in said
    assert "The farthest is neuron 3 after norm 2 of block 2 (-9.0 sd): its mean +4.00 is +0.25 by the input" in said
    assert "+3.00 by its bias" in said
    assert "Random neurons are that far 0 times" in said
    assert norms_table(rows).row_count == 2
    assert terms_conclusion(rows[2:3]).startswith("No outlier is more than 5 sd")
    draw_terms(Figure(), rows, "m")


@pytest.mark.parametrize("n_draws", [0, 3])
def test_what_is_left_is_counted_beside_random_neurons(n_draws: int) -> None:
    rows = Table(changes(n_draws))
    left, loss = changes_conclusions(rows)
    beside = " (with random neurons instead 2.0)" if n_draws else ""
    assert "2 outliers are more than 5 sd" in left
    assert f"2 in the first norm{beside}, 1 in the second norm{beside} and 1 in both norms{beside}" in left
    assert "Loss on masked words in nats (intact: 1.500)" in loss
    assert "in both norms by +0.200 (+0.150 to +0.250" in loss
    assert ("more harm than 50% of random draws" in loss) == bool(n_draws)
    assert [table.row_count for table in changes_tables(rows)] == [2, 3]
    draw_changes(figure := Figure(), rows, "m")
    assert len(figure.axes) == 2


FIRST_K, FIRST_N_DRAWS = 11, 3
# MPNet's positions begin in row 2 of the table, behind that of padding, and it has a relative bias beside the table.
OWN = {"bert": {}, "mpnet": {"pad_token_id": 1}}


def first_planted(family: str, of_words: str) -> Any:
    """Return a model whose words have an outlier by attending to the first token, or by their own position's row.

    By attention: neuron K is far in the first row alone; block 1 attends evenly and its values copy this neuron.
    """
    encoder = make_wide(family, **OWN[family])
    first = find_parameters(encoder, examine(encoder, 0)).first_row
    table = encoder.embeddings.position_embeddings.weight
    with torch.no_grad():
        if of_words == "rows":
            table[first:, FIRST_K] = 25
            return encoder
        for name, embedding in encoder.embeddings.named_parameters():
            if name.endswith("embeddings.weight"):
                embedding[:, FIRST_K] = 0
        table[first, FIRST_K] = 60
        block = encoder.encoder.layer[0].attention
        inner = block.self if family == "bert" else block.attn
        names = ("query", "key", "value") if family == "bert" else ("q", "k", "v")
        for name in names:
            getattr(inner, name).weight.zero_()
        getattr(inner, names[2]).weight[FIRST_K, FIRST_K] = 9
        output = block.output.dense if family == "bert" else block.attn.o
        output.weight.copy_(torch.eye(len(output.weight)))
    return encoder


def first_changed(encoder: Any) -> list[dict[str, Any]]:
    anatomy, tokens = examine(encoder, 0), make_wide_tokens()
    words = ~tokens.special
    first = find_parameters(encoder, anatomy).first_row
    named = {layer: [FIRST_K] for layer in range(1, N_LAYERS + 1)}
    table: Any = anatomy.position_table
    return change_first_row(
        table,
        first,
        named,
        lambda: layer_deviations(encoder, anatomy, tokens, words, 0).deviations,
        FIRST_N_DRAWS,
        0,
        99,
    )


@pytest.mark.parametrize("family", OWN)
@pytest.mark.parametrize(("of_words", "stays"), [("attention", "no"), ("rows", "yes")])
def test_words_lose_an_outlier_with_the_first_row_only_if_it_comes_from_there(
    family: str, of_words: str, stays: str
) -> None:
    rows = [row for row in first_changed(first_planted(family, of_words)) if row["layer"] == 1]
    found = {kind: [row["outlier"] for row in rows if row["kind"] == kind] for kind in ("intact", "outliers", "random")}
    assert found == {"intact": ["yes"], "outliers": [stays], "random": ["yes"] * FIRST_N_DRAWS}
    assert all(FIRST_K not in map(int, row["neurons"].split()) for row in rows if row["kind"] == "random")


def test_the_row_has_the_mean_of_later_rows_and_its_own_values_again() -> None:
    table = torch.nn.Embedding(6, 4)
    before = table.weight.detach().clone()
    expected = before.clone()
    for k in (0, 3):
        expected[2, k] = (before[3, k] + before[4, k] + before[5, k]) / 3
    with ordinary_row(table, 2, [0, 3]):
        torch.testing.assert_close(table.weight.detach(), expected)
    assert torch.equal(table.weight.detach(), before)


def test_the_sentence_counts_the_outliers_that_are_left() -> None:
    rows = first_changed(first_planted("bert", "attention"))
    (said,) = first_row_conclusions(Table(rows))
    n = sum(row["kind"] == "intact" and row["outlier"] == "yes" for row in rows)
    assert f"of {count(n, 'outlier')} of layers 0 are still more than 5 sd from the other neurons; with " in said
    assert said.endswith(f"random neurons set instead, {n} to {n}.")
    assert first_row_conclusions(Table(rows).where(layer=9)) == []


def path_measured(encoder: Any) -> tuple[list[StreamSite], dict[str, Any]]:
    anatomy, tokens = examine(encoder), make_wide_tokens()
    sites = find_path(encoder, anatomy)
    return sites, path_means(encoder, anatomy, sites, tokens, groups_of(tokens), 0)


def path_rows_of(encoder: Any) -> list[dict[str, Any]]:
    sites, means = path_measured(encoder)
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
    sites, means = path_measured(encoder)
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
    assert all(abs(row["deviations"]) < 5 for row in path_rows_of(encoder))
    with torch.no_grad():
        encoder.embeddings.position_embeddings.weight[0, K] = -9
    rows = path_rows_of(encoder)
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
    found = course(path_rows_of(encoder), K, "first")
    assert found is not None
    assert found.end is not None
    assert (found.end["layer"], found.end["site"]) == (1, "norm_2")
    assert (found.beyond[-1]["layer"], found.beyond[-1]["site"]) == (1, "sum_feed_forward")


def test_distances_are_in_standard_deviations_of_all_neurons() -> None:
    sites, means = path_measured(make_wide("gpt2"))
    rows = path_rows(sites, means, groups_of(make_wide_tokens()), dict.fromkeys(range(TERMS_D_MODEL), "layers"))
    steps = {(row["step"], row["tokens"]) for row in rows}
    assert len(steps) == 2 * len(sites)
    for step, tokens in steps:
        z = [row["deviations"] for row in rows if (row["step"], row["tokens"]) == (step, tokens)]
        assert (np.mean(z), np.std(z)) == (pytest.approx(0, abs=1e-9), pytest.approx(1))


PLANTED = 3
N_SENTENCES = 60


def geometry_of(model: Path, place: Path, **options: Any) -> Result:
    """Measure layers 1 and 2 without what costs most."""
    return geometry(
        str(model), "1,2", runs=str(place / "runs"), transforms="none", definition="argmin_share", quiet=True,
        wandb=WandbOptions("offline"), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(place: Path, bent: Path, short_text: Path) -> Result:
    return geometry_of(bent, place, corpus=str(short_text), name="g", smoothing_bound=True, draws=1)


@pytest.mark.usefixtures("few_passes")
@pytest.mark.slow
def test_the_bound_holds_on_every_sentence_and_the_folder_holds_each_of_them(made: Result, bent: Path) -> None:
    blocks = {row["layer"] for row in made.smoothing}
    assert blocks == {1, 2, 3}  # the theorem is about all blocks, whatever --layer
    for row in made.smoothing:
        if row["measure"] in ("share_within_bound", "share_within_bound_per_matrix"):
            assert (row["value"], row["n_sentences"]) == (1, N_SENTENCES)
    with (made.folder / "smoothing_sentences.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["sentence"]), int(row["layer"])) for row in rows] == [
        (i, k) for i in range(N_SENTENCES) for k in (1, 2, 3)
    ]
    first = [float(row["sigma_1"]) * float(row["sigma_2"]) for row in rows if row["layer"] == "1"]
    (mean,) = [r["value"] for r in made.smoothing if (r["layer"], r["measure"]) == (1, "sigma_product")]
    assert np.mean(first) == pytest.approx(mean)


@pytest.mark.usefixtures("few_passes")
@pytest.mark.slow
def test_tables_figures_and_sentences_are_where_the_others_are(made: Result, capsys: Any) -> None:
    for name in ("smoothing",):
        rows, stored = getattr(made, name), read_csv(made.folder / f"{name}.csv")
        assert len(stored) == len(rows) > 0
        for row, again in zip(rows, stored, strict=True):
            # An empty end of an interval is read as one that is not defined.
            given, read = ({k: str(v) for k, v in one.items() if str(v) not in ("", "nan")} for one in (row, again))
            assert read == given
    figures = {path.name for path in (made.folder / "figures").iterdir()}
    assert {"smoothing_bound.png", "smoothing_bound.pdf"} <= figures
    assert "Theorem 2" in repr(made)
    (bound,) = inside_conclusions({"smoothing": made.smoothing})
    assert "Theorem 2 holds on all of them" in bound
    (tracked,) = read_offline_runs(made.folder)
    assert all(tracked.rows(key) for key in ("smoothing", "figures/smoothing_bound"))


def ask(*args: str) -> list[str]:
    return ["geometry", "--transforms=none", "--draws=2", "--wandb.mode=disabled", *args]


@pytest.mark.usefixtures("few_passes")
@pytest.mark.slow
def test_what_does_not_apply_is_said_and_leaves_no_table(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--model={checkpoints['gpt2']}", f"--corpus={short_text}", f"--runs={tmp_path}", "--name=g"]
    assert run(COMMANDS, ask("--smoothing_bound", "--layer=1", *args)) == 0
    said = capsys.readouterr().err
    assert "--smoothing_bound does not apply" in said
    assert "post-LN" in said
    assert not {"smoothing.csv", "smoothing_sentences.csv"} & {path.name for path in (tmp_path / "g").iterdir()}


TABLES = ("norms", "norm_changes", "path", "first_row")


@pytest.fixture(scope="module")
def stream_made(place: Path, short_text: Path, sentences: list[str]) -> Result:
    """Measure a model with a head for masked words, whose second norms make one neuron the smallest of all tokens."""
    from transformers import AutoModelForMaskedLM

    folder = masked_lm(place / "bent", "bert", sentences)
    model: Any = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        for block in model.base_model.encoder.layer:
            block.output.LayerNorm.bias[PLANTED] = -6
    model.save_pretrained(folder)
    return geometry_of(folder, place, corpus=str(short_text), name="stream", norms=True, path=True, draws=2)


@pytest.mark.usefixtures("few_passes")
@pytest.mark.slow
def test_the_planted_bias_is_traced_and_its_removal_measured_beside_random_neurons(stream_made: Result) -> None:
    terms = {(row["layer"], row["norm"]): row for row in stream_made.norms if row["neuron"] == PLANTED}
    assert set(terms) == {(k, n) for k in (1, 2, 3) for n in (1, 2)}
    assert {terms[k, 2]["largest"] for k in (1, 2, 3)} == {"bias"}
    assert sum(row["kind"] == "random" for row in stream_made.norms) == 6 * 10
    changes = [row for row in stream_made.norm_changes if row["measure"] == "deviations"]
    value = {(r["layer"], r["where"]): r["value"] for r in changes if r["kind"] in ("intact", "outliers")}
    for layer in (1, 2):
        assert value[layer, ""] < -3
        assert abs(value[layer, "second"]) < 2
        assert abs(value[layer, "first"]) > abs(value[layer, "second"])
    others = {row["measure"] for row in stream_made.norm_changes} - {"deviations"}
    assert others == {"mlm_loss", "position_accuracy", "position_accuracy_retrained"}
    for measure in others:
        kinds = [row["kind"] for row in stream_made.norm_changes if row["measure"] == measure]
        assert (kinds.count("intact"), kinds.count("outliers"), kinds.count("random")) == (1, 3, 6)


@pytest.mark.usefixtures("few_passes")
@pytest.mark.slow
def test_the_path_follows_it_through_every_block(stream_made: Result) -> None:
    at = {(r["layer"], r["site"]): r for r in stream_made.path if (r["neuron"], r["tokens"]) == (PLANTED, "words")}
    assert len(at) == 5 + 3 * 6
    # A value of the bias of the norm alone is in the second norms, and enters the next block from there.
    assert all(at[k, "norm_2"]["deviations"] < at[k, "sum_feed_forward"]["deviations"] - 1 for k in (1, 2, 3))
    assert {row["kind"] for row in stream_made.path} == {"layers", "random"}


@pytest.mark.usefixtures("few_passes")
@pytest.mark.slow
def test_tables_figures_and_sentences_have_them(stream_made: Result) -> None:
    for name in TABLES:
        rows, stored = getattr(stream_made, name), read_csv(stream_made.folder / f"{name}.csv")
        assert len(stored) == len(rows) > 0
        for row, again in zip(rows, stored, strict=True):
            # An empty end of an interval is read as one that is not defined.
            given, read = ({k: str(v) for k, v in one.items() if str(v) not in ("", "nan")} for one in (row, again))
            assert read == given
    figures = {path.name for path in (stream_made.folder / "figures").iterdir()}
    assert {f"{name}.{form}" for name in TABLES if name != "first_row" for form in ("png", "pdf")} <= figures
    shown = repr(stream_made)
    assert all(part in shown for part in ("Terms of outliers", "Outliers in sd", "on the residual stream"))
    said = stream_made.conclusions()
    for start in ("Above the embeddings,", "Loss on masked words", "Accuracy of position", "10 random neurons are"):
        assert any(line.startswith(start) for line in said), start
    (tracked,) = read_offline_runs(stream_made.folder)
    assert all(tracked.rows(key) for key in (*TABLES, *(f"figures/{name}" for name in TABLES[:-1])))


@pytest.mark.usefixtures("few_passes")
@pytest.mark.slow
def test_a_model_without_outliers_is_told_so_and_has_no_table(
    checkpoints: dict[str, Path], short_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [f"--model={checkpoints['gpt2']}", f"--corpus={short_text}", f"--runs={tmp_path}", "--name=g"]
    options = ["--norms", "--path", "--layer=1", "--transforms=none", "--draws=2", "--wandb.mode=disabled"]
    assert run(COMMANDS, ["geometry", *options, *args]) == 0
    said = capsys.readouterr().err
    # A model of 16 neurons has no outlier by the default definition.
    assert "--norms: no outlier dimension was found above the embeddings" in said
    assert "--path: neither the first position nor any layer has an outlier to follow" in said
    assert not {f"{name}.csv" for name in TABLES} & {path.name for path in (tmp_path / "g").iterdir()}


@pytest.mark.usefixtures("few_passes")
@pytest.mark.parametrize(
    ("family", "option", "reason"),
    [
        ("xlnet", "--norms", "the norms of its blocks cannot be told"),
        ("xlnet", "--path", "the terms of its residual stream cannot be told"),
        ("modernbert", "--norms", "block 1 has 1 norm as wide as its hidden states, where 2 are expected"),
    ],
)
def test_models_whose_parts_cannot_be_told_are_refused_before_any_work(
    family: str, option: str, reason: str, checkpoints: dict[str, Path], short_text: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    args = [f"--model={checkpoints[family]}", f"--corpus={short_text}", f"--runs={tmp_path}"]
    assert run(COMMANDS, ["geometry", option, "--wandb.mode=disabled", *args]) == 2
    said = capsys.readouterr().err
    assert f"`{option}`: " in said
    assert reason in said
    assert f"({family})" in said
    assert "leave the option out, or choose another model" in said
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list(tmp_path.glob("*geometry*"))
