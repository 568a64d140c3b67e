"""Two checkpoints: the same model is the same, and what is below a changed block is exactly the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import make_sentences
from families import untouched
from probing.cache import Request, activations, load
from probing.corpus import from_sentences
from probing.errors import UserError
from probing.heads import change
from probing.heads.accumulation import accumulate
from probing.heads.change import (
    OTHER_HEADS,
    OTHER_SENTENCES,
    OTHER_TOKENS,
    SAME,
    Change,
    check_comparable,
    map_cosines,
    map_rows,
    others_of_equal_length,
    parameter_rows,
    published_rows,
    row_divergences,
    state_rows,
)
from probing.models import load_tokenizer, resolve_model

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

CHANGED = 2  # the block whose queries are changed, of three
Rows = list[dict[str, Any]]


def asked(folder: Path, n: int = 30) -> Request:
    corpus = from_sentences("made up", make_sentences(n, longest=8))
    return Request(resolve_model(str(folder)), corpus, (0, 1, 2, 3), batch_tokens=150)


@pytest.fixture
def pair(tiny_model: Callable[..., Path], tmp_path: Path) -> tuple[Request, Request]:
    """Two checkpoints of which one has other queries in one block."""
    folder = tiny_model("bert")
    other = tmp_path / "other"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    model = untouched(folder)
    query = model.get_submodule(f"encoder.layer.{CHANGED - 1}.attention.self.query")
    with torch.no_grad():
        query.weight.copy_(torch.randn(query.weight.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(other)
    return asked(folder), asked(other)


def by(rows: Rows, measure: str, of: str = SAME) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row in rows:
        if (row["measure"], row["of"]) == (measure, of):
            found.setdefault(row["layer"], []).append(row["value"])
    return found


def test_cosines_and_divergences_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = ((torch.randn(2, 3, 5, 5, generator=generator) * 3).softmax(-1) for _ in range(2))
    cosines, divergences = map_cosines(a, b), row_divergences(a, b)
    for s, h in np.ndindex(2, 3):
        x, y = (maps[s, h].double().numpy() for maps in (a, b))
        expected = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
        assert float(cosines[s, h]) == pytest.approx(expected)
        m = (x + y) / 2
        assert float(divergences[s, h]) == pytest.approx(
            float((x * np.log(x / m)).sum() + (y * np.log(y / m)).sum()) / 2, rel=1e-4, abs=1e-6
        )
    assert torch.equal(map_cosines(a, a), torch.ones(2, 3, dtype=torch.float64))
    assert not row_divergences(a, a).any()
    assert others_of_equal_length(torch.tensor([5, 4, 5, 5, 3])).tolist() == [2, 1, 3, 0, 4]


def test_the_same_model_is_the_same_and_other_heads_and_sentences_are_not(
    pair: tuple[Request, Request], tmp_path: Path
) -> None:
    request, _ = pair
    rows = map_rows(accumulate(request, [Change(request)], tmp_path / "c", {"accelerator": "cpu"})["change"])
    assert {value for values in by(rows, "cosine").values() for value in values} == {1}
    assert {value for values in by(rows, "jensen_shannon").values() for value in values} == {0}
    for of in (OTHER_HEADS, OTHER_SENTENCES):
        assert all(0 < value < 1 for values in by(rows, "cosine", of).values() for value in values)
        assert all(0 < value < math.log(2) for values in by(rows, "jensen_shannon", of).values() for value in values)
    assert {row["n"] for row in rows if row["measure"] == "cosine" and row["of"] != OTHER_SENTENCES} == {30}
    encoder, _ = load(request)
    assert {row["value"] for row in parameter_rows(encoder, encoder)} == {1}


def test_below_a_changed_block_everything_is_exactly_the_same(
    pair: tuple[Request, Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "HELD_BYTES", 1)  # the other checkpoint is run again for each block
    store = accumulate(pair[0], [Change(pair[1])], tmp_path / "c", {"accelerator": "cpu"})["change"]
    rows = map_rows(store)
    cosines, divergences = by(rows, "cosine"), by(rows, "jensen_shannon")
    assert sorted(cosines) == [1, 2, 3]
    for layer in (1, 2, 3):
        assert {value == 1 for value in cosines[layer]} == {layer < CHANGED}
        assert {value == 0 for value in divergences[layer]} == {layer < CHANGED}
    stores = [activations(request, tmp_path / "c", {"accelerator": "cpu"}) for request in pair]
    states = by(state_rows(stores, (0, 1, 2, 3)), "hidden_states")
    assert [states[layer] == [1] for layer in (0, 1, 2, 3)] == [True, True, False, False]
    others = by(state_rows(stores, (1,)), "hidden_states", OTHER_TOKENS)
    assert -1 < others[1][0] < 1
    parameters = parameter_rows(*(load(request)[0] for request in pair))
    changed = [row["of"] for row in parameters if row["value"] != 1]
    assert changed == [f"encoder.layer.{CHANGED - 1}.attention.self.query.weight"]


@torch.no_grad()
def test_the_published_cosine_counts_the_rows_of_padding(pair: tuple[Request, Request]) -> None:
    requests = [asked(Path(one.source.name), 1) for one in pair]
    found = by(published_rows(requests[0], requests[1], length=50), "cosine_as_published")
    tokenizer = load_tokenizer(requests[0].source)
    encoded = tokenizer(requests[0].corpus.sentences[0], padding="max_length", max_length=50, return_tensors="pt")
    assert int(encoded["attention_mask"].sum()) < 25
    models = [untouched(Path(one.source.name), attn_implementation="eager") for one in requests]
    ours, theirs = (model(**encoded, output_attentions=True).attentions for model in models)
    for layer in (1, 2, 3):
        x, y = (maps[layer - 1][0].flatten(1).double() for maps in (ours, theirs))
        assert found[layer] == pytest.approx(torch.cosine_similarity(x, y).tolist(), rel=1e-5)
    assert set(found[1]) == {1}


def test_other_models_are_refused(pair: tuple[Request, Request], checkpoints: dict[str, Path]) -> None:
    check_comparable(*pair)
    with pytest.raises(UserError, match=r"`--against .*roberta` has 2 blocks, and .* has 3; give two checkpoints of"):
        check_comparable(pair[0], asked(checkpoints["roberta"]))
