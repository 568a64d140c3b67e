"""Rollout, what the first token gets, and how alike heads are, against loops by definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from conftest import make_sentences
from probing.activations import Request, load, tokens_of
from probing.heads import accumulation, parts
from probing.heads.accumulation import BatchValues, BlockAttention, Measure, SentenceBatch, accumulate, attention_of
from probing.heads.measures import PATTERNS, PROFILE, SINK, SentenceDraws, attended, sink, without_first_token
from probing.heads.parts import (
    GROUPS,
    MEASURES,
    ROLLOUT,
    SHARES,
    SIMILARITY,
    cosines,
    jensen_shannon,
    matched,
    queries_of,
    rollout_rows,
    similarity_rows,
    without_special,
)
from probing.heads.syntax import MOST_ATTENDED, NONE
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.models.attention_heads import OutputProjection, find_heads, read_heads
from probing.text import from_sentences

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.numeric

LENGTHS = (8, 5, 3)
OWN, UNIFORM = 0, 1
WORDS, SPECIAL = 0, 1


def padded(is_causal: bool = False) -> SentenceBatch:
    """Return sentences whose first token, and the last one unless the model is causal, are special."""
    n, length = len(LENGTHS), max(LENGTHS)
    ids = torch.arange(n * length).view(n, length)
    mask = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    special = mask & (torch.arange(length) == 0)
    if not is_causal:
        special |= torch.arange(length) == torch.tensor(LENGTHS)[:, None] - 1
    return SentenceBatch(torch.arange(n), ids, ids, mask, special, ids, is_causal)


def rolled_out(batch: SentenceBatch, layers: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return sums, shape (sentences, layers, 2, 2, measures), and counts, given maps of shape (batch, heads, n, n)."""
    accumulator = ROLLOUT.of_corpus(None, None)(batch)  # type: ignore[arg-type]
    for layer, maps in enumerate(layers, 1):
        accumulator.add(BlockAttention(layer, maps, maps, None))
    kept = accumulator.batch_values().by_sentence
    return kept["sums"], kept["counts"]


def by_definition(maps: list[np.ndarray], special: np.ndarray, is_causal: bool) -> np.ndarray:
    """Return the measures of one sentence after each block, summed over words and over special tokens.

    Args:
        maps: For each block, the attention of its heads, shape (heads, n, n).
        special: Whether a token is special.
        is_causal: Whether a token sees earlier ones only.
    """
    n = len(special)
    product = np.eye(n)
    found = np.zeros((len(maps), 2, len(MEASURES)))
    for k, of_heads in enumerate(maps):
        product = (np.eye(n) + of_heads.astype(np.float64).mean(0)) / 2 @ product
        for i in range(n):
            here = dict.fromkeys(MEASURES, 0.0)
            for j, share in enumerate(product[i]):
                if j == i:
                    here["self"] += share
                elif special[j]:
                    here["special_tokens"] += share
                else:
                    here[{-1: "previous", 1: "next"}.get(j - i, "others")] += share
                here["distance"] += share * abs(i - j)
                here["entropy"] -= share * math.log(share) if share else 0
            seen = i + 1 if is_causal else n
            here["entropy"] = here["entropy"] / math.log(seen) if seen > 1 else 0
            found[k, int(special[i])] += list(here.values())
    return found


@pytest.mark.parametrize("is_causal", [False, True])
def test_sums_are_those_of_a_loop_over_sentences(is_causal: bool) -> None:
    batch = padded(is_causal)
    generator = torch.Generator().manual_seed(0)
    maps = []
    for _ in range(3):
        scores = 2 * torch.randn(*batch.uniform.shape[:1], 4, *batch.uniform.shape[1:], generator=generator)
        weights = scores.masked_fill(batch.uniform[:, None] == 0, -torch.inf).softmax(-1)
        maps.append(torch.where(batch.mask[:, None, :, None], weights, 0.0))
    sums, counts = rolled_out(batch, maps)
    for s, n in enumerate(LENGTHS):
        special = batch.special[s, :n].numpy()
        own = by_definition([of[s, :, :n, :n].numpy() for of in maps], special, is_causal)
        assert_close(sums[s, :, OWN], torch.from_numpy(own), rtol=1e-6, atol=1e-6)
        flat = by_definition([batch.uniform[s, None, :n, :n].numpy()] * 3, special, is_causal)
        assert_close(sums[s, :, UNIFORM], torch.from_numpy(flat), rtol=1e-12, atol=1e-12)
        assert counts[s].tolist() == [[(~special).sum()] * 2, [special.sum(), special.sum() - is_causal]]


def test_uniform_attention_has_a_closed_form() -> None:
    """U U = U, so that the product of k blocks is 2^-k I + (1 - 2^-k) U."""
    batch = padded()
    maps = batch.uniform[:, None].repeat(1, 2, 1, 1)
    sums, counts = rolled_out(batch, [maps] * 5)
    assert_close(sums[:, :, OWN], sums[:, :, UNIFORM])
    for k in range(5):
        kept = 2.0 ** -(k + 1)
        for s, n in enumerate(LENGTHS):
            words = counts[s, WORDS, 0]
            expected: dict[str, Any] = {
                "self": kept + (1 - kept) / n,
                "special_tokens": (1 - kept) * 2 / n,
                "previous": (1 - kept) / n * (words - 1) / words,
                "others": (1 - kept) / n * (n - 3 - 2 * (words - 1) / words),
            }
            for name, value in expected.items():
                assert float(sums[s, k, OWN, WORDS, MEASURES.index(name)] / words) == pytest.approx(float(value))


def test_attention_to_oneself_leaves_every_vector_its_own() -> None:
    batch = padded()
    maps = (torch.eye(8) * batch.mask[:, :, None]).float()[:, None].repeat(1, 3, 1, 1)
    sums, counts = rolled_out(batch, [maps] * 4)
    assert_close(sums[:, :, OWN, :, 0], counts[:, None, :, 0].double().expand(-1, 4, -1))
    assert not sums[:, :, OWN, :, 1:].any()


def test_later_blocks_multiply_from_the_left() -> None:
    """Block 1 gives each token the next one, block 2 the first one: the first one's share comes with the second's."""
    batch = padded()
    following, first = torch.zeros(2, 8, 8)
    following[:-1] = torch.eye(8)[1:]
    first[:, 0] = 1
    maps = [(one * batch.mask[:, :, None] * batch.mask[:, None]).float()[:, None] for one in (following, first)]
    sums, _ = rolled_out(batch, maps)
    words = dict(zip(MEASURES, (sums[0, 1, OWN, WORDS] / 6).tolist(), strict=True))
    # Half of a half stays and a half of a half is the next token; the other half is half [CLS], half the second token,
    # which is a word's own, previous or other token.
    assert words["self"] == pytest.approx(1 / 4 + 1 / 4 / 6)
    assert words["next"] == pytest.approx(5 / 6 / 4)
    assert words["previous"] == pytest.approx(1 / 4 / 6)
    assert words["others"] == pytest.approx(4 / 6 / 4)
    assert words["special_tokens"] == pytest.approx(1 / 4 + 1 / 4 / 6)


def test_padding_and_batches_change_nothing_and_rows_are_means_over_a_corpus(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    source, corpus = resolve_model(str(checkpoints["bert"])), from_sentences("made up", sentences[:24])
    found = {}
    for budget in (1, 150):
        request = Request(source, corpus, (), batch_tokens=budget)
        store = accumulate(request, [ROLLOUT], tmp_path / str(budget), {"accelerator": "cpu"})["rollout"]
        found[budget] = store.by_sentence("sums"), store.by_sentence("counts")
    assert_close(found[1], found[150], rtol=1e-5, atol=1e-5)
    tokens = tokens_of(request, load_tokenizer(source))
    encoder, _ = load(request)
    heads = find_heads(encoder, examine(encoder))
    for s in (0, 7):
        rows = tokens.of_sentences(s, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
        maps: list[Any] = []
        with torch.inference_mode():
            read_heads(
                encoder, heads, lambda layer, weights, values, out=maps: out.append(weights[0].numpy().copy()),  # type: ignore[misc]
                {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            )  # fmt: skip
        expected = by_definition(maps, tokens.special[rows], is_causal=False)
        assert_close(found[150][0][s, :, OWN], torch.from_numpy(expected), rtol=1e-5, atol=1e-5)

    sums, counts = found[150]
    table = rollout_rows(sums, counts, [2], SentenceDraws(24, 0))
    by_name = {(row["query"], row["measure"]): row for row in table}
    assert len(by_name) == len(table) == 2 * len(MEASURES)
    for query in ("words", "special tokens"):
        here = [by_name[query, name] for name in SHARES]
        assert sum(row["value"] for row in here) == pytest.approx(1, abs=1e-6)
        assert sum(row["uniform"] for row in here) == pytest.approx(1)
        assert all(row["layer"] == 2 and row["n"] == 24 for row in here)
        assert all(row["low"] <= row["value"] <= row["high"] for row in here)
    n_words = int(counts[:, WORDS, 0].sum())
    mean = float(sums[:, 1, OWN, WORDS, MEASURES.index("distance")].sum()) / n_words
    assert by_name["words", "distance"]["value"] == pytest.approx(mean)


SINK_LENGTHS, HEADS, WIDTH = (8, 5, 2, 1), 3, 5
LONGEST = max(SINK_LENGTHS)
NOTHING: Any = None  # measures here need no corpus


def batch_of(is_causal: bool) -> SentenceBatch:
    """Return sentences whose first token counts as special in a causal model, and whose last one is special."""
    mask = torch.arange(LONGEST) < torch.tensor(SINK_LENGTHS)[:, None]
    special = mask & (torch.arange(LONGEST) == torch.tensor(SINK_LENGTHS)[:, None] - 1)
    words = torch.where(special | ~mask, -1, torch.arange(LONGEST).expand_as(mask))
    special[:, 0] |= is_causal
    rows = torch.arange(mask.numel()).view(mask.shape)
    return SentenceBatch(torch.arange(len(SINK_LENGTHS)), rows, rows, mask, special, words, is_causal)


def scores_of(strength: float, seed: int) -> Tensor:
    """Return random scores of every query and key, of which the first key has more."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(len(SINK_LENGTHS), HEADS, LONGEST, LONGEST, generator=generator, dtype=torch.float64)
    scores[..., 0] += strength
    return scores


def attention(batch: SentenceBatch, scores: Tensor, seed: int, layer: int = 1) -> BlockAttention:
    """Return the softmax of scores over the keys that a query may see."""
    generator = torch.Generator().manual_seed(100 + seed)
    weights = scores.masked_fill(~(batch.uniform[:, None] > 0), -torch.inf).softmax(-1).nan_to_num(0).float()
    values = torch.randn(len(SINK_LENGTHS), HEADS, LONGEST, WIDTH, generator=generator)[:, :, -weights.shape[-1] :]
    matrix = torch.randn(HEADS, WIDTH, 6, generator=generator)
    return attention_of(layer, weights, values, OutputProjection(matrix, torch.zeros(6)), batch)


def shorter(batch: SentenceBatch) -> SentenceBatch:
    """Return the batch that there would be if sentences began at their second token."""
    short = {name: getattr(batch, name)[:, 1:] for name in ("rows", "input_ids", "mask", "special", "words")}
    return replace(batch, **short)


def kept(measure: Measure, batch: SentenceBatch, blocks: list[BlockAttention]) -> BatchValues:
    accumulator = measure.of_corpus(NOTHING, NOTHING)(batch)
    for block in blocks:
        accumulator.add(block)
    return accumulator.batch_values()


def of_types(attention: BlockAttention, batch: SentenceBatch) -> dict[str, Tensor]:
    types = torch.stack([batch.special, batch.rows % 3 == 0], dim=2)
    return attended(attention, batch, types & batch.mask[:, :, None])


SINK_MEASURES = [PATTERNS, PROFILE, Measure.of_blocks("types", of_types), ROLLOUT, SIMILARITY, MOST_ATTENDED]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("measure", SINK_MEASURES, ids=lambda measure: measure.name)
def test_what_is_left_is_the_softmax_of_sentences_that_begin_at_the_second_token(
    measure: Measure, is_causal: bool
) -> None:
    batch = batch_of(is_causal)
    scores = [scores_of(3.0, seed) for seed in range(2)]
    found = kept(without_first_token(measure), batch, [attention(batch, of, i, i + 1) for i, of in enumerate(scores)])
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
    found = {name: of[:, 0] for name, of in kept(without_first_token(PROFILE), batch, [whole]).by_sentence.items()}
    for s, n in enumerate(SINK_LENGTHS):
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
    for s, n in enumerate(SINK_LENGTHS):
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
    n_queries = HEADS * (sum(SINK_LENGTHS) - len(SINK_LENGTHS))
    shares = [float(sink(one, batch)["mass"].sum()) / n_queries for one in (weak, strong)]
    assert shares[0] < 0.6
    assert shares[1] > 0.95
    without = [kept(without_first_token(PROFILE), batch, [one]).by_sentence for one in (weak, strong)]
    for name, values in without[0].items():
        assert_close(without[1][name], values, rtol=1e-4, atol=1e-5)
    # With the first token, the same heads seem to read next to nothing.
    entropies = [float(kept(PROFILE, batch, [one]).by_sentence["entropy"].sum()) for one in (weak, strong)]
    assert entropies[1] < 0.1 * entropies[0]


def test_sums_of_both_settings_are_kept_apart() -> None:
    assert without_first_token(PROFILE).settings == {**PROFILE.settings, "first_token": "exclude"}
    assert without_first_token(PROFILE).name == PROFILE.name


def test_a_query_that_attends_to_nothing_else_has_a_row_of_0() -> None:
    batch = batch_of(is_causal=False)
    whole = attention(batch, scores_of(1e4, 0), 0)
    left = whole.without_first.probabilities
    assert not left.any()
    assert torch.isfinite(left).all()


SIMILARITY_LENGTHS = (9, 5, 2)
NAMES, VALUES = ("measure", "layer", "head", "other_layer", "other_head", "n"), ("value", "low", "high")


def made_up(seed: int = 0, heads: int = 3) -> tuple[Tensor, SentenceBatch]:
    """Return random attention over a padded batch whose first token is special."""
    generator = torch.Generator().manual_seed(seed)
    n, length = len(SIMILARITY_LENGTHS), max(SIMILARITY_LENGTHS)
    mask = torch.arange(length) < torch.tensor(SIMILARITY_LENGTHS)[:, None]
    special = mask & (torch.arange(length) == 0)
    ids = torch.arange(n * length).view(n, length)
    batch = SentenceBatch(torch.arange(n), ids, ids, mask, special, ids)
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
    for s in range(len(SIMILARITY_LENGTHS)):
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

    class Permuted(parts._BatchMaps):
        def add(self, attention: BlockAttention) -> None:
            heads = order.get(attention.layer, slice(None))
            super().add(BlockAttention(attention.layer, attention.probabilities[:, heads], attention.values, None))

    return Permuted


def rows_of(request: Request, cache: Path) -> list[dict[str, Any]]:
    return similarity_rows(accumulate(request, [SIMILARITY], cache, {"accelerator": "cpu"})["similarity"], 3, 2)


def test_permuted_heads_move_the_published_cosine_alone(
    request_for: Callable[..., Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(request_for(), tmp_path / "a")
    monkeypatch.setattr(parts, "_BatchMaps", permuted({2: [1, 0]}))
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
