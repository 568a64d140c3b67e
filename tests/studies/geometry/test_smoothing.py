"""Over-smoothing against loops and numerical minimisation, and the bound of Shi et al. on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import erf, softmax

from families import untouched
from probing.activations.store import StorePlan, divide
from probing.models.anatomy import examine
from probing.models.residual_stream import find_blocks, largest_slope
from probing.statistics.chance import MeanOverSentences, normalise, weights
from probing.studies.geometry import smoothing_bound
from probing.studies.geometry.layers import smoothness, sum_by_sentence
from probing.studies.geometry.smoothing_bound import (
    BY_SENTENCE,
    SentenceValues,
    Summary,
    attention_eigenvalues,
    attention_reach,
    constants,
    distance_to_equal_rows,
    least_deviation,
)
from probing.text.tokens import Tokens
from synthetic import make_tokens

pytestmark = pytest.mark.numeric

LENGTHS = [4, 1, 7, 2]


def measured(x: torch.Tensor, lengths: list[int]) -> dict[str, torch.Tensor]:
    n, units = torch.tensor(lengths), normalise(x)
    return smoothness(x, units, sum_by_sentence(units, n), n)


def sentences(seed: int = 0) -> tuple[torch.Tensor, list[np.ndarray]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(LENGTHS), 5, generator=generator, dtype=torch.float64) + 0.5
    return x, np.split(x.numpy(), np.cumsum(LENGTHS)[:-1])


def test_similarities_are_those_of_loops_over_pairs() -> None:
    x, parts = sentences()
    found = measured(x, LENGTHS)
    for i, rows in enumerate(parts):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        pairs = [unit[a] @ unit[b] for a, b in itertools.permutations(range(len(rows)), 2)]
        mean = rows.mean(0) / np.linalg.norm(rows.mean(0))
        if pairs:
            assert float(found["token_similarity"][i]) == pytest.approx(np.mean(pairs), abs=1e-12)
        else:
            assert torch.isnan(found["token_similarity"][i])
        assert float(found["intra_sentence_similarity"][i]) == pytest.approx(np.mean(unit @ mean), abs=1e-12)


def test_the_distance_is_the_minimum_over_matrices_with_equal_rows_and_half_the_mean_squared_difference() -> None:
    x, parts = sentences()
    found = measured(x, LENGTHS)
    for i, rows in enumerate(parts):
        least = minimize(lambda row, rows=rows: ((rows - row) ** 2).sum(), np.zeros(5), tol=1e-12).fun
        assert float(found["distance_to_equal_rows"][i]) == pytest.approx(np.sqrt(least), abs=1e-6)
        pairs = sum(((a - b) ** 2).sum() for a in rows for b in rows) / (2 * len(rows))
        assert float(found["distance_to_equal_rows"][i]) == pytest.approx(np.sqrt(pairs), abs=1e-10)
        assert float(found["relative_distance"][i]) == pytest.approx(np.sqrt(least) / np.linalg.norm(rows), abs=1e-6)


def test_equal_tokens_are_at_distance_0_and_a_common_offset_moves_cosines_and_no_distance() -> None:
    x, _ = sentences()
    alike = measured(x[:1].repeat(4, 1), [4])
    assert float(alike["token_similarity"][0]) == pytest.approx(1, abs=1e-12)
    assert float(alike["distance_to_equal_rows"][0]) == pytest.approx(0, abs=1e-12)
    before, after = measured(x, LENGTHS), measured(x + 1000, LENGTHS)
    torch.testing.assert_close(after["distance_to_equal_rows"], before["distance_to_equal_rows"], atol=1e-9, rtol=0)
    assert float(after["token_similarity"][0]) > 0.99999
    assert float(after["relative_distance"][0]) < 0.002


def test_equal_tokens_are_at_distance_0_exactly_in_float32_too() -> None:
    # 50 sentences of 3 to 12 equal tokens: their means would be rounded.
    x = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)) * 100
    lengths = [3 + i % 10 for i in range(50)]
    found = measured(x.repeat_interleave(torch.tensor(lengths), 0), lengths)
    assert not found["distance_to_equal_rows"].any()
    assert not found["relative_distance"].any()
    torch.testing.assert_close(found["intra_sentence_similarity"], torch.ones(50).double())


def test_a_small_spread_around_a_large_vector_keeps_its_digits_in_float32() -> None:
    x, _ = sentences()
    far = (x + 300).float()
    exact = measured(far.double(), LENGTHS)["distance_to_equal_rows"]
    torch.testing.assert_close(measured(far, LENGTHS)["distance_to_equal_rows"], exact, atol=2e-4, rtol=0)


def test_means_over_sentences_leave_out_those_without_a_number_and_batches_do_not_matter() -> None:
    values = torch.tensor([1.0, float("nan"), 3.0, 8.0]).repeat(8)
    whole, parts = MeanOverSentences(100), MeanOverSentences(100)
    drawn = torch.cat([weights(i, 1, 5, 100) for i in range(32)], 1)
    whole.update(values, drawn)
    for i in range(32):
        parts.update(values[i : i + 1], drawn[:, i : i + 1])
    assert whole.result().value == 4
    assert whole.result().n == 24
    assert parts.result() == whole.result()
    assert 1 <= whole.result().low < 4 < whole.result().high <= 8


def test_the_mean_of_few_sentences_has_no_interval() -> None:
    found = MeanOverSentences(100)
    found.update(torch.arange(19.0), weights(0, 19, 5, 100))
    assert found.result().value == 9
    assert np.isnan([found.result().low, found.result().high]).all()


def test_the_interval_of_a_mean_is_the_usual_one() -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    found = MeanOverSentences(2000)
    found.update(values, weights(0, 2000, 0, 2000))
    error = 1.96 * float(values.std()) / np.sqrt(2000)
    assert found.result().low == pytest.approx(float(values.mean()) - error, abs=0.006)
    assert found.result().high == pytest.approx(float(values.mean()) + error, abs=0.006)


Array = NDArray[np.float64]
BOUND_LENGTHS = [7, 3, 12, 5, 1, 9]
GELU = torch.nn.functional.gelu


def whole(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """One sentence without padding."""
    states = torch.as_tensor(x)[None]
    return states, torch.ones(states.shape[:2], dtype=torch.bool)


def distance(x: Any) -> float:
    return float(distance_to_equal_rows(*whole(x)))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# --- the lemmas ---


def test_the_distance_is_the_least_over_equal_rows_whatever_the_padding(generator: torch.Generator) -> None:
    states = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64) + 2
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = distance_to_equal_rows(states, mask)
    for i, n in enumerate((5, 3)):
        rows = states[i, :n].numpy()
        least = minimize(lambda row, rows=rows: ((rows - row) ** 2).sum(), np.zeros(3), tol=1e-12).fun
        assert float(found[i]) == pytest.approx(math.sqrt(least), abs=1e-6)


def test_attention_stretches_no_sentence_more_than_its_eigenvalue_and_some_as_much(generator: torch.Generator) -> None:
    for n in (2, 3, 8):
        attention = torch.softmax(4 * torch.randn(1, 1, n, n, generator=generator, dtype=torch.float64), -1)
        mask = torch.ones(1, n, dtype=torch.bool)
        most = math.sqrt(float(attention_eigenvalues(attention, mask)))
        for _ in range(50):
            h = torch.randn(n, 4, generator=generator, dtype=torch.float64) + 3
            assert distance(attention[0, 0] @ h) <= most * distance(h) * (1 + 1e-9)
        away = attention[0, 0] - attention[0, 0].mean(0)
        worst = torch.linalg.svd(away).Vh[0][:, None]
        assert distance(attention[0, 0] @ worst) == pytest.approx(most * distance(worst))


def test_attention_reaches_its_bound_in_the_direction_that_it_stretches_most(generator: torch.Generator) -> None:
    """The first sentence has such states for its second head, and the second one is padded and has one token."""
    attention = torch.softmax(3 * torch.randn(2, 2, 5, 5, generator=generator, dtype=torch.float64), -1)
    attention[1] = torch.eye(5)
    away = attention[0, 1] - attention[0, 1].mean(0)
    states = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    states[0] = torch.linalg.svd(away).Vh[0][:, None] * torch.tensor([1.0, -2.0, 0.5]) + 7
    mask = torch.tensor([[True] * 5, [True] + [False] * 4])
    found = attention_reach(states, attention, mask, attention_eigenvalues(attention, mask))
    assert found.tolist() == pytest.approx([1, 0])
    uniform = torch.full((2, 2, 5, 5), 0.2)
    assert attention_reach(states, uniform, mask, attention_eigenvalues(uniform, mask)).tolist() == [0, 0]


def test_attention_that_is_uniform_up_to_rounding_reaches_nothing(generator: torch.Generator) -> None:
    states, mask = 1e3 * torch.randn(20, 7, 5, generator=generator), torch.ones(20, 7, dtype=torch.bool)
    attention = (1e-8 * torch.randn(20, 2, 7, 7, generator=generator)).softmax(-1)
    assert len(attention.unique()) > 1
    assert attention_reach(states, attention, mask, attention_eigenvalues(attention, mask)).tolist() == [0] * 20
    apart = (1e-4 * torch.randn(20, 2, 7, 7, generator=generator)).softmax(-1)
    found = attention_reach(states, apart, mask, attention_eigenvalues(apart, mask))
    assert ((found > 0.1) & (found <= 1 + 1e-6)).all()


def test_eigenvalues_of_attention_that_is_known() -> None:
    n = 6
    uniform, identity = torch.full((n, n), 1 / n), torch.eye(n)
    hubs = torch.zeros(n, n)
    hubs[: n // 2, 0], hubs[n // 2 :, 1] = 1, 1
    attention = torch.stack([uniform, identity, hubs])[None]
    found = attention_eigenvalues(attention, torch.ones(1, n, dtype=torch.bool))
    assert found[0].tolist() == pytest.approx([0, 1, n / 2], abs=1e-6)


def test_padding_does_not_change_eigenvalues(generator: torch.Generator) -> None:
    alone = torch.softmax(torch.randn(1, 2, 4, 4, generator=generator), -1)
    padded = torch.rand(1, 2, 7, 7, generator=generator)  # what queries that are padding attend to is anything
    padded[..., 4:], padded[:, :, :4, :4] = 0, alone
    mask = torch.tensor([[True] * 4 + [False] * 3])
    expected = attention_eigenvalues(alone, mask[:, :4])
    torch.testing.assert_close(attention_eigenvalues(padded, mask), expected)


def test_layer_norm_needs_its_gain_in_the_bound(generator: torch.Generator) -> None:
    beyond = 0
    for _ in range(300):
        norm = torch.nn.LayerNorm(6, eps=1e-5).double().requires_grad_(False)
        torch.nn.init.normal_(norm.weight, 0, 3, generator)
        torch.nn.init.normal_(norm.bias, 0, 3, generator)
        h = torch.randn(4, 6, generator=generator, dtype=torch.float64)
        sigma = float(least_deviation(*whole(h), norm.eps))
        assert sigma == pytest.approx(min(math.sqrt(row.var() + 1e-5) for row in h.numpy()))
        after, plain = distance(norm(h)), distance(h) / sigma
        assert after <= float(norm.weight.abs().max()) * plain * (1 + 1e-9)
        beyond += after > plain
    assert beyond > 100  # as the theorem is printed, it does not hold


def test_gelu_stretches_more_than_relu_and_at_most_by_its_slope(generator: torch.Generator) -> None:
    around = math.sqrt(2) + 0.01 * torch.randn(5, 3, generator=generator, dtype=torch.float64)
    assert distance(around) < distance(GELU(around)) <= largest_slope(GELU) * distance(around)
    for _ in range(100):
        h = 3 * torch.randn(5, 3, generator=generator, dtype=torch.float64)
        assert distance(GELU(h)) <= largest_slope(GELU) * distance(h)
        assert distance(torch.relu(h)) <= distance(h)


# --- models ---


def run(encoder: Any, tokens: Tokens, batch_tokens: int = 100, shard_tokens: int = 20) -> list[SentenceValues]:
    anatomy = examine(encoder)
    blocks = find_blocks(encoder)
    plan = StorePlan({}, anatomy.n_layers, 16, "float32", batch_tokens, divide(tokens.lengths, shard_tokens))
    of_blocks = [constants(block) for block in blocks]
    return list(smoothing_bound.measure(encoder, blocks, of_blocks, tokens, plan, 0, True))


def values(found: list[SentenceValues]) -> dict[str, Array]:
    """Each measure by block and sentence, shape (n_blocks, n_sentences)."""
    joined = np.concatenate([part.values for part in found], 2)
    return {name: joined[:, i] for i, name in enumerate(BY_SENTENCE)}


@pytest.fixture
def tokens() -> Tokens:
    made = make_tokens(BOUND_LENGTHS)
    return Tokens(made.lengths, made.input_ids % 100 + 5, made.words)


@pytest.fixture
def bert(checkpoints: dict[str, Path]) -> Any:
    return untouched(checkpoints["bert"])


def norm_of(x: Array, gain: Array, bias: Array) -> Array:
    return gain * (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-12) + bias


def naive(encoder: Any, ids: NDArray[np.integer]) -> list[dict[str, float]]:
    """Every term for one sentence, block by block: the model written out in numpy, singular values by SVD."""
    p = {name: tensor.double().numpy() for name, tensor in encoder.state_dict().items()}
    at = "embeddings."
    x = p[f"{at}word_embeddings.weight"][ids] + p[f"{at}position_embeddings.weight"][: len(ids)]
    x = norm_of(x + p[f"{at}token_type_embeddings.weight"][0], p[f"{at}LayerNorm.weight"], p[f"{at}LayerNorm.bias"])
    n, d, heads, rows = len(ids), 16, 2, []
    centre = np.eye(n) - np.ones((n, n)) / n
    c = 0.5 * (1 + erf(1.0)) + math.sqrt(2) * math.exp(-1) / math.sqrt(2 * math.pi)  # Phi(sqrt 2) + sqrt 2 phi(sqrt 2)
    for layer in range(3):
        w = {name.split(f"layer.{layer}.")[1]: v for name, v in p.items() if f"layer.{layer}." in name}
        q, k, v = (
            x @ w[f"attention.self.{part}.weight"].T + w[f"attention.self.{part}.bias"]
            for part in ("query", "key", "value")
        )
        added, roots, singular, reaches = np.zeros((n, d)) + w["attention.output.dense.bias"], [], [], [0.0]
        for head in range(heads):
            own = slice(head * d // heads, (head + 1) * d // heads)
            attention = softmax(q[:, own] @ k[:, own].T / math.sqrt(d / heads), axis=1)
            w_o = w["attention.output.dense.weight"].T[own]
            added += attention @ v[:, own] @ w_o
            roots.append(np.linalg.svd(centre @ attention)[1][0])
            if n > 1:
                reaches.append(np.linalg.norm(centre @ attention @ x) / (roots[-1] * np.linalg.norm(centre @ x)))
            singular.append(np.linalg.svd(w["attention.self.value.weight"].T[:, own] @ w_o)[1][0])
        gains = [w["attention.output.LayerNorm.weight"], w["output.LayerNorm.weight"]]
        h = norm_of(x + added, gains[0], w["attention.output.LayerNorm.bias"])
        inner = h @ w["intermediate.dense.weight"].T + w["intermediate.dense.bias"]
        inner = 0.5 * inner * (1 + erf(inner / math.sqrt(2)))
        entering = h + inner @ w["output.dense.weight"].T + w["output.dense.bias"]
        out = norm_of(entering, gains[1], w["output.LayerNorm.bias"])
        sigma_1, sigma_2 = ((y.std(1) ** 2 + 1e-12).min() ** 0.5 for y in (x + added, entering))
        s_1, s_2 = (np.linalg.svd(w[f"{name}.dense.weight"])[1][0] for name in ("intermediate", "output"))
        s, gain = max(*singular, s_1, s_2), np.abs(gains[0]).max() * np.abs(gains[1]).max()
        factor = 1 + sum(root * value for root, value in zip(roots, singular, strict=True))
        rows.append({
            "sigma_1": sigma_1,
            "sigma_2": sigma_2,
            "lambda_max": max(roots) ** 2,
            "attention_factor": factor,
            "distance_before": np.linalg.norm(centre @ x),
            "distance_after": np.linalg.norm(centre @ out),
            "bound_published": (1 + s**2) * (1 + max(roots) * heads * s) / (sigma_1 * sigma_2),
            "bound": (1 + c * s**2) * (1 + max(roots) * heads * s) * gain / (sigma_1 * sigma_2),
            "bound_per_matrix": (1 + c * s_1 * s_2) * factor * gain / (sigma_1 * sigma_2),
            "attention_reach": max(reaches),
        })  # fmt: skip
        x = out
    return rows


def test_every_term_is_that_of_the_model_written_out_in_float64(bert: Any, tokens: Tokens) -> None:
    found = values(run(bert, tokens))
    for sentence in range(len(BOUND_LENGTHS)):
        for block, expected in enumerate(naive(bert, tokens.input_ids[tokens.of_sentences(sentence, 1)])):
            for name, value in expected.items():
                # The model itself computes in float32.
                assert found[name][block, sentence] == pytest.approx(value, rel=2e-4, abs=1e-6), (name, block)


def test_a_sentence_has_the_same_terms_alone_and_in_any_batch_or_shard(bert: Any, tokens: Tokens) -> None:
    alone, padded, one = run(bert, tokens, 1, 1), run(bert, tokens, 1000, 1000), run(bert, tokens)
    assert [len(found) for found in (alone, padded, one)] == [6, 1, 3]
    for other in (padded, one):
        for name, expected in values(alone).items():
            np.testing.assert_allclose(values(other)[name], expected, rtol=1e-4, atol=1e-5)
    assert [part.first for part in one] == [0, 2, 5]
    sentences = [row["sentence"] for part in one for row in part.rows()]
    assert sentences == [i for i in range(6) for _ in range(3)]


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert", "deberta-v2", "bart"])
def test_no_sentence_is_beyond_its_bound(family: str, checkpoints: dict[str, Path], tokens: Tokens) -> None:
    encoder = untouched(checkpoints[family])
    for scale in (1.0, 0.1):
        found = values(run(encoder, tokens))
        for name in ("bound", "bound_per_matrix"):
            assert (found["distance_after"] <= found[name] * found["distance_before"] * (1 + 1e-6)).all()
        assert (found["bound_per_matrix"] <= found["bound"] * (1 + 1e-9)).all()
        assert (found["attention_reach"] <= 1 + 1e-6).all()
        assert (found["distance_after"] > 0).any()
        shrink(encoder, scale)


def shrink(encoder: Any, scale: float, gain: float = 1.0, bias: float = 0.0) -> None:
    """Scale all matrices of the blocks, set gains, and give the residual stream biases of a size."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "layer" in name.lower() and parameter.dim() == 2:
                parameter.mul_(scale)
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.fill_(gain)
            elif "norm" in name.lower():
                parameter.zero_()
            elif "output.dense.bias" in name:
                parameter.copy_(bias * torch.randn(parameter.shape, generator=generator))


def rows_of(encoder: Any, tokens: Tokens) -> Callable[[str], list[float]]:
    blocks = find_blocks(encoder)
    summary = Summary([constants(block) for block in blocks], 0)
    for part in run(encoder, tokens):
        summary.update(part)
    rows = summary.rows()
    return lambda measure: [row["value"] for row in rows if row["measure"] == measure]


def test_tokens_become_alike_where_matrices_vanish_and_deviations_are_above_1(bert: Any, tokens: Tokens) -> None:
    shrink(bert, 1e-3, bias=2.0)
    of = rows_of(bert, tokens)
    assert of("share_sigma_product_above_1") == [1, 1, 1]
    assert max(of("bound_per_matrix")) < 1
    assert of("share_distance_falls") == [1, 1, 1]
    assert of("share_within_bound") == [1, 1, 1]


def test_the_published_bound_is_broken_by_gains_and_the_corrected_one_is_not(bert: Any, tokens: Tokens) -> None:
    shrink(bert, 1e-3, gain=3.0, bias=2.0)
    of = rows_of(bert, tokens)
    assert max(of("share_within_bound_published")) == 0
    assert of("share_within_bound") == of("share_within_bound_per_matrix") == [1, 1, 1]
    assert of("gain_1") == of("gain_2") == [3, 3, 3]


def test_the_summary_is_that_of_all_sentences_at_once(bert: Any, tokens: Tokens) -> None:
    shrink(bert, 0.5)  # so that some products are below 1
    of, found = rows_of(bert, tokens), values(run(bert, tokens))
    product = found["sigma_1"] * found["sigma_2"]
    assert of("sigma_product") == pytest.approx(product.mean(1))
    assert of("share_sigma_product_above_1") == pytest.approx((product > 1).mean(1))
    assert 0 < np.mean(of("share_sigma_product_above_1")) < 1
    assert of("sigma_product_q50") == pytest.approx(np.quantile(product, 0.5, axis=1, method="inverted_cdf"), rel=0.012)
    # The fifth sentence has one token, and so no ratio.
    several = [i for i, length in enumerate(BOUND_LENGTHS) if length > 1]
    ratio = found["distance_after"][:, several] / found["distance_before"][:, several]
    assert of("distance_ratio") == pytest.approx(ratio.mean(1))
    assert of("largest_attention_reach") == pytest.approx(found["attention_reach"].max(1))
    assert of("largest_share_of_bound") == pytest.approx((ratio / found["bound_per_matrix"][:, several]).max(1))
