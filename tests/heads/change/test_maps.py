"""Attention of two checkpoints: the same is the same, and what is below a changed block is exactly the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import untouched
from probing.cache import Request
from probing.heads import change as change
from probing.heads.accumulation import accumulate
from probing.heads.change import (
    OTHER_HEADS,
    OTHER_SENTENCES,
    SAME,
    Change,
    map_cosines,
    map_rows,
    other_head_cosines,
    others_of_equal_length,
    row_divergences,
)
from probing.heads.subject import Checkpoint
from probing.models import load_tokenizer
from tiny_models import CHANGED, asked, other_queries, tuned

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

Rows = list[dict[str, Any]]
BLOCKS = (1, 2, 3)


def rows_of(one: Request, other: Request, cache: Path) -> Rows:
    return map_rows(accumulate(one, [Change(Checkpoint(other))], cache, {"accelerator": "cpu"})["change"], BLOCKS)


def by(rows: Rows, measure: str, of: str = SAME) -> dict[tuple[int, int | None], float]:
    return {(row["layer"], row["head"]): row["value"] for row in rows if (row["measure"], row["of"]) == (measure, of)}


def cosine(x: Any, y: Any) -> float:
    return float((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y))


def divergence(x: Any, y: Any) -> float:
    m = (x + y) / 2
    return float((x * np.log(x / m)).sum() + (y * np.log(y / m)).sum()) / 2


def test_cosines_and_divergences_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = ((torch.randn(2, 3, 5, 5, generator=generator) * 3).softmax(-1) for _ in range(2))
    cosines, others, divergences = map_cosines(a, b), other_head_cosines(a, b), row_divergences(a, b)
    for s, h in np.ndindex(2, 3):
        x, y = (maps[s].double().numpy() for maps in (a, b))
        assert float(cosines[s, h]) == pytest.approx(cosine(x[h], y[h]))
        assert float(others[s, h]) == pytest.approx(np.mean([cosine(x[h], y[g]) for g in range(3) if g != h]))
        assert float(divergences[s, h]) == pytest.approx(divergence(x[h], y[h]), rel=1e-4, abs=1e-6)
    assert torch.equal(map_cosines(a, a), torch.ones(2, 3, dtype=torch.float64))
    assert not row_divergences(a, a).any()
    assert others_of_equal_length(torch.tensor([5, 4, 5, 5, 3])).tolist() == [2, 1, 3, 0, 4]


@torch.no_grad()
def test_a_run_has_the_numbers_of_a_loop_over_sentences(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("bert")
    # In one batch, so that every other sentence of equal length is there.
    requests = [replace(asked(one, 25), batch_tokens=10_000) for one in (folder, tuned(folder, other_queries))]
    rows = rows_of(requests[0], requests[1], tmp_path / "c")
    tokenizer = load_tokenizer(requests[0].source)
    models = [untouched(Path(one.source.name), attn_implementation="eager") for one in requests]
    maps = []
    by_length: dict[int, list[int]] = {}
    for i, sentence in enumerate(requests[0].corpus.sentences):
        encoded = tokenizer(sentence, return_tensors="pt")
        maps.append([
            torch.stack(model(**encoded, output_attentions=True).attentions)[:, 0].double().numpy() for model in models
        ])  # fmt: skip
        by_length.setdefault(maps[i][0].shape[2], []).append(i)
    others = {i: group[(k + 1) % len(group)] for group in by_length.values() for k, i in enumerate(group)}
    heads = [(k, h) for k in range(3) for h in range(2)]
    for of, with_what in {
        SAME: {i: [theirs[k, h] for k, h in heads] for i, (_, theirs) in enumerate(maps)},
        OTHER_HEADS: {i: [theirs[k, 1 - h] for k, h in heads] for i, (_, theirs) in enumerate(maps)},
        OTHER_SENTENCES: {i: [maps[o][1][k, h] for k, h in heads] for i, o in others.items() if o != i},
    }.items():
        n_queries = sum(maps[i][0].shape[2] for i in with_what)
        assert len(with_what) == 25 if of != OTHER_SENTENCES else 10 < len(with_what) < 25
        for measure, compare, n in (("cosine", cosine, len(with_what)), ("jensen_shannon", divergence, n_queries)):
            sums = [
                [compare(maps[i][0][k, h], y) for (k, h), y in zip(heads, theirs, strict=True)]
                for i, theirs in with_what.items()
            ]
            expected, values = np.sum(sums, 0) / n, by(rows, measure, of)
            # A forward pass in float32, in a batch here and one sentence at a time there.
            assert [values[k + 1, h + 1] for k, h in heads] == pytest.approx(expected.tolist(), abs=1e-6)
            assert [values[layer, None] for layer in BLOCKS] == pytest.approx(expected.reshape(3, 2).mean(1), abs=1e-6)


def test_the_same_model_is_the_same_and_other_heads_and_sentences_are_not(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    request = asked(tiny_model("bert"))
    rows = rows_of(request, request, tmp_path / "c")
    assert set(by(rows, "cosine").values()) == {1}
    assert set(by(rows, "jensen_shannon").values()) == {0}
    assert {(row["low"], row["high"]) for row in rows if (row["measure"], row["of"]) == ("cosine", SAME)} == {(1, 1)}
    for of in (OTHER_HEADS, OTHER_SENTENCES):
        assert all(0 < value < 1 for value in by(rows, "cosine", of).values())
        assert all(0 < value < math.log(2) for value in by(rows, "jensen_shannon", of).values())
    assert {row["n"] for row in rows if row["measure"] == "cosine" and row["of"] != OTHER_SENTENCES} == {30}


def test_below_a_changed_block_maps_are_exactly_the_same(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "HELD_BYTES", 1)  # the other checkpoint is run again for each block
    folder = tiny_model("bert")
    rows = rows_of(asked(folder), asked(tuned(folder, other_queries)), tmp_path / "c")
    for (layer, _), value in by(rows, "cosine").items():
        assert (value == 1) == (layer < CHANGED)
    for (layer, _), value in by(rows, "jensen_shannon").items():
        assert (value == 0) == (layer < CHANGED)
