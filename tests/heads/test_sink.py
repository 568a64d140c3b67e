"""What the first token gets, and measures without it: loops in float64, and a softmax whose first key is masked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from probing.heads.accumulation import Attention, Batch, BlockMeasure, Kept, Measure, attention_of
from probing.heads.parts import Rollout, Similarity
from probing.heads.rows import PATTERNS, PROFILE
from probing.heads.subject import SINK, WithoutFirst, attended, sink
from probing.heads.syntax import NONE, MostAttended
from probing.models.attention_heads import OutputProjection

pytestmark = pytest.mark.numeric

LENGTHS, HEADS, WIDTH = (8, 5, 2, 1), 3, 5
LONGEST = max(LENGTHS)
NOTHING: Any = None  # measures here need no corpus


def batch_of(is_causal: bool) -> Batch:
    """Return sentences whose first token counts as special in a causal model, and whose last one is special."""
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    special = mask & (torch.arange(LONGEST) == torch.tensor(LENGTHS)[:, None] - 1)
    words = torch.where(special | ~mask, -1, torch.arange(LONGEST).expand_as(mask))
    special[:, 0] |= is_causal
    rows = torch.arange(mask.numel()).view(mask.shape)
    return Batch(torch.arange(len(LENGTHS)), rows, rows, mask, special, words, is_causal)


def scores_of(strength: float, seed: int) -> Tensor:
    """Return random scores of every query and key, of which the first key has more."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(len(LENGTHS), HEADS, LONGEST, LONGEST, generator=generator, dtype=torch.float64)
    scores[..., 0] += strength
    return scores


def attention(batch: Batch, scores: Tensor, seed: int, layer: int = 1) -> Attention:
    """Return the softmax of scores over the keys that a query may see."""
    generator = torch.Generator().manual_seed(100 + seed)
    weights = scores.masked_fill(~(batch.uniform[:, None] > 0), -torch.inf).softmax(-1).nan_to_num(0).float()
    values = torch.randn(len(LENGTHS), HEADS, LONGEST, WIDTH, generator=generator)[:, :, -weights.shape[-1] :]
    matrix = torch.randn(HEADS, WIDTH, 6, generator=generator)
    return attention_of(layer, weights, values, OutputProjection(matrix, torch.zeros(6)), batch)


def shorter(batch: Batch) -> Batch:
    """Return the batch that there would be if sentences began at their second token."""
    short = {name: getattr(batch, name)[:, 1:] for name in ("rows", "input_ids", "mask", "special", "words")}
    return replace(batch, **short)


def kept(measure: Measure, batch: Batch, blocks: list[Attention]) -> Kept:
    accumulator = measure.of_corpus(NOTHING, NOTHING)(batch)
    for block in blocks:
        accumulator.add(block)
    return accumulator.kept()


def of_types(attention: Attention, batch: Batch) -> dict[str, Tensor]:
    types = torch.stack([batch.special, batch.rows % 3 == 0], dim=2)
    return attended(attention, batch, types & batch.mask[:, :, None])


MEASURES = [PATTERNS, PROFILE, BlockMeasure("types", of_types), Rollout(), Similarity(), MostAttended()]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
def test_what_is_left_is_the_softmax_of_sentences_that_begin_at_the_second_token(
    measure: Measure, is_causal: bool
) -> None:
    batch = batch_of(is_causal)
    scores = [scores_of(3.0, seed) for seed in range(2)]
    found = kept(WithoutFirst(measure), batch, [attention(batch, of, i, i + 1) for i, of in enumerate(scores)])
    short = shorter(batch)
    blocks = [attention(short, of[:, :, 1:, 1:], i, i + 1) for i, of in enumerate(scores)]
    expected = kept(measure, short, blocks)
    for kind in ("by_sentence", "total"):
        assert getattr(found, kind).keys() == getattr(expected, kind).keys()
        for name, values in getattr(expected, kind).items():
            assert_close(getattr(found, kind)[name], values, rtol=1e-5, atol=1e-6, msg=f"{name} differs")
    for name, values in expected.by_token.items():
        assert torch.equal(found.by_token[name][:, 1:][short.mask], values[short.mask])
        assert (found.by_token[name][:, 0] == NONE).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_profile_without_the_first_token_is_that_of_a_loop(is_causal: bool) -> None:
    batch = batch_of(is_causal)
    whole = attention(batch, scores_of(3.0, 0), 0)
    found = {name: of[:, 0] for name, of in kept(WithoutFirst(PROFILE), batch, [whole]).by_sentence.items()}
    for s, n in enumerate(LENGTHS):
        for h in range(HEADS):
            expected = dict.fromkeys(("entropy", "distance", "self", "previous", "next"), 0.0)
            for i in range(1, n):
                row = whole.probabilities[s, h, i, 1:n].double().numpy()
                row = row / row.sum()
                n_seen = i if is_causal else n - 1
                if n_seen > 1:
                    expected["entropy"] -= sum(p * math.log(p) for p in row if p) / math.log(n_seen)
                expected["distance"] += sum(p * abs(i - j) for j, p in enumerate(row, start=1))
                for name, key in (("self", i), ("previous", i - 1), ("next", i + 1)):
                    expected[name] += row[key - 1] if 1 <= key < n else 0
            assert {name: float(found[name][s, h]) for name in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_the_first_token_gets_is_that_of_a_loop(is_causal: bool) -> None:
    batch = batch_of(is_causal)
    whole = attention(batch, scores_of(1.0, 0), 0)
    assert whole.projection is not None
    found = sink(whole, batch)
    for s, n in enumerate(LENGTHS):
        for h in range(HEADS):
            rows = whole.probabilities[s, h, 1:n, :n].double().numpy()
            vectors = (whole.values[s, h, :n].double() @ whole.projection.matrix[h].double()).numpy()
            weighted = rows * np.linalg.norm(vectors, axis=1)
            uniform = sum(1 / (i + 1 if is_causal else n) for i in range(1, n))
            assert float(found["mass"][s, h]) == pytest.approx(rows[:, 0].sum(), abs=1e-6)
            assert float(found["uniform"][s, h]) == pytest.approx(uniform)
            by_norm = (weighted[:, 0] / weighted.sum(1)).sum()
            assert float(found["norm_mass"][s, h]) == pytest.approx(by_norm, abs=1e-5)


def test_uniform_attention_gives_the_first_token_what_uniform_attention_gives_it() -> None:
    batch = batch_of(is_causal=True)
    found = kept(SINK, batch, [attention(batch, torch.zeros_like(scores_of(0, 0)), 0)]).by_sentence
    assert_close(found["mass"], found["uniform"], rtol=1e-6, atol=1e-6)


def test_a_sink_moves_its_own_measure_and_none_of_the_others() -> None:
    batch = batch_of(is_causal=True)
    weak, strong = (attention(batch, scores_of(strength, 0), 0) for strength in (0.0, 10.0))
    n_queries = HEADS * (sum(LENGTHS) - len(LENGTHS))
    shares = [float(sink(one, batch)["mass"].sum()) / n_queries for one in (weak, strong)]
    assert shares[0] < 0.6
    assert shares[1] > 0.95
    without = [kept(WithoutFirst(PROFILE), batch, [one]).by_sentence for one in (weak, strong)]
    for name, values in without[0].items():
        assert_close(without[1][name], values, rtol=1e-4, atol=1e-5)
    # With the first token, the same heads seem to read next to nothing.
    entropies = [float(kept(PROFILE, batch, [one]).by_sentence["entropy"].sum()) for one in (weak, strong)]
    assert entropies[1] < 0.1 * entropies[0]


def test_sums_of_both_settings_are_kept_apart() -> None:
    assert WithoutFirst(PROFILE).settings == {**PROFILE.settings, "first_token": "exclude"}
    assert WithoutFirst(PROFILE).name == PROFILE.name


def test_a_query_that_attends_to_nothing_else_has_a_row_of_0() -> None:
    batch = batch_of(is_causal=False)
    whole = attention(batch, scores_of(1e4, 0), 0)
    left = whole.without_first.probabilities
    assert not left.any()
    assert torch.isfinite(left).all()
