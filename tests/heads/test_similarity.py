"""How alike heads and layers are: against loops by definition, with bounds, and with heads in another order."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from conftest import make_sentences
from probing.cache import Request
from probing.corpus import from_sentences
from probing.heads import accumulation, parts
from probing.heads.accumulation import Attention, Batch, accumulate, attention_of
from probing.heads.parts import (
    GROUPS,
    Similarity,
    cosines,
    jensen_shannon,
    matched,
    queries_of,
    similarity_rows,
    without_special,
)
from probing.models import resolve_model

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

LENGTHS = (9, 5, 2)
NAMES, VALUES = ("measure", "layer", "head", "other_layer", "other_head", "n"), ("value", "low", "high")


def made_up(seed: int = 0, heads: int = 3) -> tuple[Tensor, Batch]:
    """Return random attention over a padded batch whose first token is special."""
    generator = torch.Generator().manual_seed(seed)
    n, length = len(LENGTHS), max(LENGTHS)
    mask = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    special = mask & (torch.arange(length) == 0)
    ids = torch.arange(n * length).view(n, length)
    batch = Batch(torch.arange(n), ids, ids, mask, special, ids)
    scores = torch.randn(n, heads, length, length, generator=generator) * 3
    weights = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)
    return attention_of(1, weights, weights, None, batch).probabilities, batch


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    mean = (p + q) / 2
    return sum(float((r[r > 0] * np.log(r[r > 0] / mean[r > 0])).sum()) / 2 for r in (p, q))


def test_divergences_are_those_of_a_loop() -> None:
    maps = made_up()[0][0]
    rows = maps.numpy().astype(np.float64)
    expected = [
        sum(divergence(a, b) for a, b in zip(rows[i], rows[j], strict=True)) for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    assert_close(jensen_shannon(maps), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_a_divergence_is_0_for_equal_heads_and_ln_2_for_heads_without_a_common_key() -> None:
    apart = torch.zeros(3, 4, 4)
    apart[0, :, 0] = 1
    apart[1:, :, 3] = 1
    assert (jensen_shannon(apart) / 4).tolist() == pytest.approx([math.log(2), math.log(2), 0], abs=1e-7)
    assert float(jensen_shannon(apart).max()) / 4 <= math.log(2)
    assert jensen_shannon(apart[:1]).shape == (0,)


def test_cosines_are_those_of_flattened_maps() -> None:
    (a, _), (b, _) = made_up(1), made_up(2)
    products, of_means = cosines(a, b)
    for s in range(len(LENGTHS)):
        x, y = a[s].double().flatten().numpy(), b[s].double().flatten().numpy()
        assert float(products[s].trace()) == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
        x, y = (maps[s].double().mean(0).flatten().numpy() for maps in (a, b))
        assert float(of_means[s]) == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_without_special_tokens_the_rows_of_the_others_sum_to_1() -> None:
    maps, batch = made_up()
    left = without_special(maps, batch)
    assert_close(left.sum(3), batch.ordinary[:, None].expand(-1, 3, -1).float())
    assert not left[:, :, :, 0].any()
    assert_close(left[0, :, 1:, 1:], maps[0, :, 1:, 1:] / maps[0, :, 1:, 1:].sum(2, keepdim=True))


def test_a_long_sentence_is_compared_by_queries_that_are_evenly_spaced() -> None:
    assert queries_of(3).tolist() == [0, 1, 2]
    long = queries_of(500)
    assert (len(long), long[0], long[-1]) == (parts.QUERIES, 0, 499)
    assert set(np.diff(long)) <= {7, 8}


def test_heads_are_matched_on_the_other_groups() -> None:
    products = np.zeros((GROUPS, 2, 2))
    products[::2] = [[1, 0], [0, 1]]  # here heads keep their order
    products[1::2] = [[0, 1], [1, 0]]
    assert matched(products).tolist() == [0] * GROUPS
    products[1::2] = products[0]
    assert matched(products).tolist() == [2] * GROUPS


# --- over a corpus ---


@pytest.fixture
def request_for(checkpoints: dict[str, Path]) -> Callable[..., Request]:
    def ask(**options: Any) -> Request:
        corpus = from_sentences("made up", make_sentences(60, longest=12))
        return Request(resolve_model(str(checkpoints["bert"])), corpus, (), **{"batch_tokens": 150, **options})

    return ask


def permuted(order: dict[int, list[int]]) -> type:
    """Return the accumulator of the measure, which sees the heads of a block in another order."""

    class Permuted(parts._Maps):
        def add(self, attention: Attention) -> None:
            heads = order.get(attention.layer, slice(None))
            super().add(Attention(attention.layer, attention.probabilities[:, heads], attention.values, None))

    return Permuted


def rows_of(request: Request, cache: Path) -> list[dict[str, Any]]:
    return similarity_rows(accumulate(request, [Similarity()], cache, {"accelerator": "cpu"})["similarity"], 3, 2)


def test_permuted_heads_move_the_published_cosine_alone(
    request_for: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(request_for(), tmp_path / "a")
    monkeypatch.setattr(parts, "_Maps", permuted({2: [1, 0]}))
    after = rows_of(request_for(), tmp_path / "b")
    measures = {row["measure"] for row in before} - {"jensen_shannon"}
    moved = {
        a["measure"]
        for a, b in zip(before, after, strict=True)
        if a["measure"] in measures and abs(a["value"] - b["value"]) > 1e-9
    }
    assert moved == {"cosine", "cosine_without_special"}
    assert measures - moved == {
        "cosine_of_means", "cosine_matched", "cosine_of_means_without_special", "cosine_matched_without_special"
    }  # fmt: skip
    divergences = [{row["value"] for row in rows if row["measure"] == "jensen_shannon"} for rows in (before, after)]
    assert sorted(divergences[0]) == pytest.approx(sorted(divergences[1]))


def test_batches_and_shards_change_nothing_and_rows_say_what_they_compare(
    request_for: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(request_for(batch_tokens=1), tmp_path / "a")
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 100)
    for row, other in zip(rows, rows_of(request_for(), tmp_path / "b"), strict=True):
        assert {name: other[name] for name in NAMES} == {name: row[name] for name in NAMES}
        assert [other[name] for name in VALUES] == pytest.approx([row[name] for name in VALUES], rel=1e-4, abs=1e-6)
    pairs = [row for row in rows if row["measure"] == "jensen_shannon"]
    assert len(pairs) == 15
    assert (pairs[0]["layer"], pairs[0]["head"], pairs[0]["other_layer"], pairs[0]["other_head"]) == (1, 1, 1, 2)
    assert all(0 <= row["low"] <= row["value"] <= row["high"] <= math.log(2) for row in pairs)
    layers = [row for row in rows if row["measure"] == "cosine"]
    assert [(row["layer"], row["other_layer"], row["head"], row["n"]) for row in layers] == [
        (1, 2, None, 60), (2, 3, None, 60)
    ]  # fmt: skip
    assert all(row["low"] < row["value"] < row["high"] < 1 for row in layers)
