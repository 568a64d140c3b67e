"""What stands in the place of the outputs of heads, against loops."""

from __future__ import annotations

import pytest
import torch

from probing.disabling.probed_task import Replacements, replacing, uniform_outputs

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("is_causal", [False, True])
def test_uniform_outputs_are_the_means_of_the_values_that_a_query_may_see(is_causal: bool) -> None:
    values = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = (5, 3)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    values[1, :, 3:] = 1e4  # of padding, which must not count
    found = uniform_outputs(values, mask, is_causal)
    assert found.shape == (2, 5 if is_causal else 1, 12)
    for sentence, n in enumerate(lengths):
        for query in range(n):
            for head in range(3):
                seen = range(query + 1) if is_causal else range(n)
                expected = sum(values[sentence, head, key] for key in seen) / len(seen)
                at = found[sentence, query if is_causal else 0, 4 * head : 4 * head + 4]
                assert torch.allclose(at, torch.as_tensor(expected), atol=1e-5)


def test_only_the_columns_of_the_heads_are_replaced_and_the_original_stays() -> None:
    outputs = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    before = outputs.clone()
    changed = replacing(slice(4, 8), torch.arange(4.0))(outputs)
    assert torch.equal(outputs, before)
    assert torch.equal(changed[..., :4], before[..., :4])
    assert torch.equal(changed[..., 8:], before[..., 8:])
    assert torch.equal(changed[..., 4:8], torch.arange(4.0).expand(2, 5, 4))


def test_a_whole_block_cannot_stand_in_the_place_of_outputs() -> None:
    nothing = torch.zeros(1, 4)
    made = Replacements(nothing, False, nothing[0], nothing, torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="skip replaces no outputs"):
        made.of("skip", slice(0, 2), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64))
