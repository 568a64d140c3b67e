"""Parameters that belong to neurons, found in every family by running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import D_MODEL, FAMILIES
from probing.models import load_encoder, resolve_model
from probing.models.anatomy import examine
from probing.studies.geometry.inside.changed_norms import (
    Norm,
    Parameters,
    find_parameters,
    not_applicable,
    parameter_rows,
)

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
    flat = Parameters(None, 0, torch.ones(4), (Norm("norm", torch.tensor([1.0, -2.0, 1.0, 0.0]), None, 1),))
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
