"""Outliers of the first position's row: which of them words lose with it, beside random neurons."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from probing.models.anatomy import examine
from probing.studies.geometry.inside.changed_norms import (
    change_first_row,
    find_parameters,
    first_row_conclusions,
    ordinary_row,
    see_layers,
)
from tiny_models import N_LAYERS, make_wide, make_wide_tokens

pytestmark = pytest.mark.numeric

K, N_DRAWS = 11, 3
# MPNet's positions begin in row 2 of the table, behind that of padding, and it has a relative bias beside the table.
OWN = {"bert": {}, "mpnet": {"pad_token_id": 1}}


def planted(family: str, of_words: str) -> Any:
    """Return a model whose words have an outlier by attending to the first token, or by their own position's row.

    By attention: neuron K is far in the first row alone; block 1 attends evenly and its values copy this neuron.
    """
    encoder = make_wide(family, **OWN[family])
    first = find_parameters(encoder, examine(encoder, 0)).first_row
    table = encoder.embeddings.position_embeddings.weight
    with torch.no_grad():
        if of_words == "rows":
            table[first:, K] = 25
            return encoder
        for name, embedding in encoder.embeddings.named_parameters():
            if name.endswith("embeddings.weight"):
                embedding[:, K] = 0
        table[first, K] = 60
        block = encoder.encoder.layer[0].attention
        inner = block.self if family == "bert" else block.attn
        names = ("query", "key", "value") if family == "bert" else ("q", "k", "v")
        for name in names:
            getattr(inner, name).weight.zero_()
        getattr(inner, names[2]).weight[K, K] = 9
        output = block.output.dense if family == "bert" else block.attn.o
        output.weight.copy_(torch.eye(len(output.weight)))
    return encoder


def changed(encoder: Any) -> list[dict[str, Any]]:
    anatomy, tokens = examine(encoder, 0), make_wide_tokens()
    words = ~tokens.special
    first = find_parameters(encoder, anatomy).first_row
    named = {layer: [K] for layer in range(1, N_LAYERS + 1)}
    table: Any = anatomy.position_table
    return change_first_row(
        table, first, named, lambda: see_layers(encoder, anatomy, tokens, words, 0).deviations, N_DRAWS, 0, 99
    )


@pytest.mark.parametrize("family", OWN)
@pytest.mark.parametrize(("of_words", "stays"), [("attention", "no"), ("rows", "yes")])
def test_words_lose_an_outlier_with_the_first_row_only_if_it_comes_from_there(
    family: str, of_words: str, stays: str
) -> None:
    rows = [row for row in changed(planted(family, of_words)) if row["layer"] == 1]
    found = {kind: [row["outlier"] for row in rows if row["kind"] == kind] for kind in ("intact", "outliers", "random")}
    assert found == {"intact": ["yes"], "outliers": [stays], "random": ["yes"] * N_DRAWS}
    assert all(K not in map(int, row["neurons"].split()) for row in rows if row["kind"] == "random")


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
    rows = changed(planted("bert", "attention"))
    (said,) = first_row_conclusions(rows)
    n = sum(row["kind"] == "intact" and row["outlier"] == "yes" for row in rows)
    assert f"0 of {n} outliers of layers are still beyond 5 sd; with random neurons instead {n} to {n}." in said
    assert first_row_conclusions([row for row in rows if row["layer"] == 9]) == []
