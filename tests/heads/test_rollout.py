"""Rollout: against a loop over sentences in float64, and what is known for uniform attention and for none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from probing.cache import Request, load, tokens_of
from probing.corpus import from_sentences
from probing.heads.accumulation import Attention, Batch, accumulate
from probing.heads.parts import MEASURES, SHARES, Rollout, rollout_rows
from probing.heads.rows import Sentences
from probing.models import load_tokenizer, resolve_model
from probing.models.anatomy import examine
from probing.models.attention_heads import find_heads, read_heads

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

LENGTHS = (8, 5, 3)
OWN, UNIFORM = 0, 1
WORDS, SPECIAL = 0, 1


def padded(is_causal: bool = False) -> Batch:
    """Return sentences whose first token, and the last one unless the model is causal, are special."""
    n, length = len(LENGTHS), max(LENGTHS)
    ids = torch.arange(n * length).view(n, length)
    mask = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    special = mask & (torch.arange(length) == 0)
    if not is_causal:
        special |= torch.arange(length) == torch.tensor(LENGTHS)[:, None] - 1
    return Batch(torch.arange(n), ids, ids, mask, special, ids, is_causal)


def rolled_out(batch: Batch, layers: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return sums, shape (sentences, layers, 2, 2, measures), and counts, given maps of shape (batch, heads, n, n)."""
    accumulator = Rollout().of_corpus(None, None)(batch)  # type: ignore[arg-type]
    for layer, maps in enumerate(layers, 1):
        accumulator.add(Attention(layer, maps, maps, None))
    kept = accumulator.kept().by_sentence
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
        store = accumulate(request, [Rollout()], tmp_path / str(budget), {"accelerator": "cpu"})["rollout"]
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
    table = rollout_rows(sums, counts, [2], Sentences(24, 0))
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
