"""What is read of position heads: against a loop over words, and a head that was planted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from probing.readouts.frozen_probes import at_offset

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("offset", [-2, 1])
def test_contrast_and_attention_are_those_of_a_loop_over_words(offset: int, is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    query, key = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    words = torch.tensor([[0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 1, 1]]).bool()
    contrast, mass = at_offset(inputs, words, query, bias, key, offset, is_causal)
    for b in range(3):
        expected = [0.0, 0.0]
        for i in range(7):
            seen = [j for j in range(7) if words[b, j] and (j <= i or not is_causal)]
            if not words[b, i] or i + offset not in seen:
                continue
            scores = [float((inputs[b, i] @ query + bias) @ (inputs[b, j] @ key + 3.0)) for j in seen]
            own = scores[seen.index(i + offset)]
            expected[0] += own - float(np.mean(scores))
            expected[1] += math.exp(own) / sum(math.exp(s) for s in scores)
        assert float(contrast[b]) == pytest.approx(expected[0], abs=1e-9)
        assert float(mass[b]) == pytest.approx(expected[1], abs=1e-9)


def test_a_head_without_query_weights_has_no_contrast_and_attends_to_all_words_alike() -> None:
    inputs, words = torch.randn(1, 6, 5), torch.tensor([[0, 1, 1, 1, 1, 0]]).bool()
    contrast, mass = at_offset(inputs, words, torch.zeros(5, 4), torch.zeros(4), torch.randn(5, 4), 1, False)
    assert float(contrast) == 0
    assert float(mass) == pytest.approx(3 / 4)
