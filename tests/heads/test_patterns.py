"""Five classes, on maps generated for each of them, and on maps whose class is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.heads.accumulation import Batch
from probing.heads.rows import BLOCK, CLASSES, STRIPES, blocks, classify, stripes

pytestmark = pytest.mark.numeric

N_MAPS = 150


def pair(n: int, middle: int | None = None, is_causal: bool = False) -> tuple[Batch, Tensor]:
    """Return a batch of one sentence, or of one pair, of n tokens, special ones at the ends; and its segments."""
    special = torch.zeros(1, n, dtype=torch.bool)
    special[0, [0, n - 1] if middle is None else [0, middle, n - 1]] = True
    ids = torch.arange(n)[None]
    segments = (ids > (n if middle is None else middle)).long()
    mask = torch.ones_like(special)
    return Batch(torch.zeros(1, dtype=torch.long), ids, ids, mask, special, ids.masked_fill(special, -1), is_causal), (
        segments
    )


def generated(kind: str, noise: float, generator: np.random.Generator) -> tuple[np.ndarray, Batch, Tensor]:
    """Return a map of a class with a share of noise, by the recipe of the specification."""
    n = int(generator.integers(12, 61))
    middle = int(generator.integers(n // 3, 2 * n // 3 + 1))
    batch, segments = pair(n, middle)
    columns = np.flatnonzero(batch.special[0].numpy())
    vertical = np.zeros((n, n))
    vertical[:, columns] = generator.dirichlet(np.ones(len(columns)))
    offset = int(generator.integers(-1, 2))
    diagonal = np.zeros((n, n))
    diagonal[np.arange(n), np.clip(np.arange(n) + offset, 0, n - 1)] = 1
    mixing = generator.uniform(0.35, 0.65)
    same = segments[0].numpy()[:, None] == segments[0].numpy()[None]
    pure = {
        "vertical": lambda: vertical,
        "diagonal": lambda: diagonal,
        "vertical and diagonal": lambda: mixing * vertical + (1 - mixing) * diagonal,
        "block": lambda: generator.gamma(1, size=(n, n)) * same,
        "heterogeneous": lambda: generator.gamma(generator.uniform(0.1, 1), size=(n, n)) + 1e-12,
    }[kind]()
    pure = pure / pure.sum(1, keepdims=True)
    other = generator.gamma(0.3, size=(n, n)) + 1e-12
    return (1 - noise) * pure + noise * other / other.sum(1, keepdims=True), batch, segments


def class_of(weights: np.ndarray, batch: Batch, segments: Tensor | None) -> str:
    maps = torch.from_numpy(weights)[None, None]
    v, d = stripes(maps, batch)
    b = None if segments is None else blocks(maps, batch, segments)
    return CLASSES[int(classify(v, d, b))]


def macro_f1(noise: float) -> float:
    generator = np.random.default_rng(0)
    pairs = [(kind, class_of(*generated(kind, noise, generator))) for kind in CLASSES for _ in range(N_MAPS)]
    scores = []
    for kind in CLASSES:
        hits = sum(true == found == kind for true, found in pairs)
        scores.append(2 * hits / (sum(true == kind for true, _ in pairs) + sum(found == kind for _, found in pairs)))
    return float(np.mean(scores))


@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.97), (0.1, 0.97), (0.2, 0.97), (0.3, 0.97), (0.4, 0.85)])
def test_generated_maps_get_their_class(noise: float, least: float) -> None:
    assert macro_f1(noise) >= least


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n", [3, 4, 5, 12, 60])
def test_uniform_attention_is_heterogeneous_whatever_the_length(n: int, is_causal: bool) -> None:
    batch, _ = pair(n, is_causal=is_causal)
    v, d = stripes(batch.uniform[:, None], batch)
    b = blocks(batch.uniform[:, None], batch, (torch.arange(n) > n // 2).long()[None])
    assert max(float(v), float(d), float(b)) < 1e-9
    assert CLASSES[int(classify(v, d))] == "heterogeneous"


@pytest.mark.parametrize("kind", ["vertical", "diagonal", "vertical and diagonal", "heterogeneous"])
def test_single_sentences_have_no_block_pattern(kind: str) -> None:
    weights, batch, _ = generated(kind, 0.1, np.random.default_rng(1))
    assert class_of(weights, batch, None) == kind
    weights, batch, _ = generated("block", 0.0, np.random.default_rng(1))
    assert class_of(weights, batch, None) == "heterogeneous"


def test_values_are_0_for_uniform_and_1_for_pure_patterns() -> None:
    batch, segments = pair(20, 9)
    to_special = torch.zeros(1, 1, 20, 20)
    to_special[..., 9] = 1
    assert [float(value) for value in stripes(to_special, batch)] == pytest.approx([1, 0])
    # The last token's next one does not exist, and special keys do not count.
    following = torch.zeros(1, 1, 20, 20)
    following[0, 0, torch.arange(19), torch.arange(1, 20)] = 1
    following[0, 0, 19, 19] = 1
    v, d = (float(value) for value in stripes(following, batch))
    uniform = batch.uniform[0].numpy()
    near = np.abs(np.subtract.outer(np.arange(20), np.arange(20))) <= 1
    e = (uniform * near * batch.ordinary[0].numpy()).sum() / 20
    assert d == pytest.approx((17 / 20 - e) / (1 - e))
    assert v == pytest.approx((3 / 20 - 3 / 20) / (1 - 3 / 20), abs=1e-12)
    same = (segments[:, :, None] == segments[:, None, :]).double()[:, None]
    assert float(blocks(same / same.sum(-1, keepdim=True), batch, segments)) == pytest.approx(1)
    assert float(blocks(batch.uniform[:, None], batch, segments)) == pytest.approx(0)


def test_padding_changes_nothing() -> None:
    generator = np.random.default_rng(2)
    weights, alone, segments = generated("vertical and diagonal", 0.3, generator)
    n = weights.shape[0]
    padded = torch.zeros(1, 1, n + 5, n + 5, dtype=torch.float64)
    padded[..., :n, :n] = torch.from_numpy(weights)

    def longer(values: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(values, (0, 5), value=fill)

    batch = Batch(
        alone.sentences, longer(alone.rows, 0), longer(alone.input_ids, 0), longer(alone.mask, False),
        longer(alone.special, False), longer(alone.words, -1),
    )  # fmt: skip
    for found, expected in zip(
        stripes(padded, batch), stripes(torch.from_numpy(weights)[None, None], alone), strict=True
    ):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        blocks(padded, batch, longer(segments, 0)),
        blocks(torch.from_numpy(weights)[None, None], alone, segments),
    )


def test_thresholds_are_where_they_are_said_to_be() -> None:
    def found(v: float, d: float, b: float = 0.0, factor: float = 1.0) -> str:
        one = [torch.tensor([value], dtype=torch.float64) for value in (v, d, b)]
        return CLASSES[int(classify(one[0], one[1], one[2], factor))]

    assert found(STRIPES, 0) == "vertical"
    assert found(STRIPES - 0.01, 0) == "heterogeneous"
    assert found(STRIPES - 0.01, 0, BLOCK) == "block"
    assert found(0.74, 0.26) == found(0.26, 0.74) == "vertical and diagonal"
    assert (found(0.76, 0.24), found(0.24, 0.76)) == ("vertical", "diagonal")
    assert found(0.5, 0.1, factor=1.25) == "heterogeneous"
    assert found(0.4, 0, factor=0.75) == "vertical"
