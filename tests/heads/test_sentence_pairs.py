"""Attention over pairs of sentences: that of transformers, and blocks where there are some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from families import untouched
from probing.cache import Request
from probing.corpus import from_pairs, from_sentences
from probing.heads import accumulation
from probing.heads.accumulation import Attention, Batch, accumulate
from probing.heads.rows import BLOCK, PATTERNS, STRIPES, Sentences, class_rows, exchanged, patterns
from probing.models import load_tokenizer, resolve_model

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

CPU = {"accelerator": "cpu"}
# How a pair is given to each: with token types, without them, relative ones, and without a token between the two.
FAMILIES = ("bert", "roberta", "xlnet", "gpt2")


def above(mass: float, uniform: float) -> float:
    return 0.0 if uniform > 1 - 1e-9 else max(0.0, (mass - uniform) / (1 - uniform))


def values_of(weights: np.ndarray, segments: list[int | None], causal: bool) -> tuple[float, float, float]:
    """Return v, d and b of one map by the definitions, a row and a key at a time."""
    n = len(weights)
    # In a causal model, the first token is special, and uniform attention is over earlier tokens.
    special = [segment is None or (causal and i == 0) for i, segment in enumerate(segments)]
    flat = np.array([[float(j <= i or not causal) for j in range(n)] for i in range(n)])
    flat /= flat.sum(1, keepdims=True)

    def masses(rows: np.ndarray) -> tuple[float, float, float]:
        v = d = b = 0.0
        for i in range(n):
            within = total = 0.0
            for j in range(n):
                v += rows[i, j] * special[j]
                d += rows[i, j] * (abs(i - j) <= 1 and not special[j])
                if not special[i] and not special[j]:
                    total += rows[i, j]
                    within += rows[i, j] * (segments[i] == segments[j])
            b += within / total if total else 0.0
        return v / n, d / n, b / (n - sum(special))

    found, expected = masses(weights), masses(flat)
    return above(found[0], expected[0]), above(found[1], expected[1]), above(found[2], expected[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_a_loop_over_single_pairs(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(accumulation, "SHARD_TOKENS", 200)
    short = [" ".join(text.split()[:12]) for text in sentences]
    pairs = list(zip(short[:8], short[8:16], strict=True))
    source = resolve_model(str(checkpoints[family]))
    request = Request(source, from_pairs("made up", pairs), (), batch_tokens=250)
    store = accumulate(request, [PATTERNS], tmp_path, CPU)["patterns"]
    assert len(store.plan.shards) > 1
    model = untouched(checkpoints[family], attn_implementation="eager")
    tokenizer = load_tokenizer(source)
    for i, (first, second) in enumerate(pairs):
        encoding = tokenizer(first, second)
        ids = torch.tensor([encoding["input_ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if family in ("bert", "xlnet"):
            inputs["token_type_ids"] = torch.tensor([encoding.encodings[0].type_ids])
        with torch.no_grad():
            maps = model(**inputs, output_attentions=True).attentions
        for layer, of_heads in enumerate(maps):
            for head, weights in enumerate(of_heads[0].double().numpy()):
                segments = encoding.sequence_ids()
                order = [None if segment is None else j for j, segment in enumerate(segments)]
                places = [j for j in order if j is not None][segments.count(1) :]
                moved = [None if j is None else int(j in places) for j in order]
                (v, d, b), (_, _, b_moved) = (values_of(weights, of, family == "gpt2") for of in (segments, moved))
                expected = [v, d, b, b_moved]
                found = [float(store.by_sentence(name)[i, layer, head]) for name in ("v", "d", "b", "b_moved")]
                # The forward pass is in float32, and a batch and a single pair are rounded otherwise.
                assert found == pytest.approx(expected, rel=2e-5, abs=2e-6)
    texts = Request(source, from_sentences("made up", request.corpus.sentences), (), batch_tokens=250)
    alone = accumulate(texts, [PATTERNS], tmp_path, CPU)["patterns"]
    assert alone.folder != store.folder
    assert sorted(alone.all_by_sentence()) == ["d", "v"]


def test_a_pair_alone_has_the_numbers_that_it_has_in_a_batch(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    source = resolve_model(str(checkpoints["bert"]))
    pairs = from_pairs("made up", [(a[:60], b[:30]) for a, b in zip(sentences[:12], sentences[12:24], strict=True)])
    stores = [
        accumulate(Request(source, pairs, (), batch_tokens=n), [PATTERNS], tmp_path / str(n), CPU)["patterns"]
        for n in (1, 1000)
    ]
    for name in ("v", "d", "b", "b_moved"):
        torch.testing.assert_close(
            stores[0].by_sentence(name), stores[1].by_sentence(name), rtol=2e-5, atol=2e-6, msg=name
        )


def test_planted_blocks_are_found_and_told_from_attention_to_words_nearby() -> None:
    generator = torch.Generator().manual_seed(0)
    sums: dict[str, list[torch.Tensor]] = {}
    for _ in range(30):
        n_first, n_second = (int(n) for n in torch.randint(5, 15, (2,), generator=generator))
        segments = torch.tensor([[-1, *[0] * n_first, -1, *[1] * n_second, -1]])
        n, special = segments.shape[1], segments < 0
        ids = torch.arange(n)[None]
        batch = Batch(
            torch.zeros(1, dtype=torch.long), ids, ids, torch.ones_like(special), special, ids, segments=segments
        )
        noise = torch.rand(1, 3, n, n, generator=generator)
        noise[:, 1] *= torch.where(segments[:, :, None] == segments[:, None], 1.0, 0.05)
        noise[:, 2] *= torch.where((ids[:, :, None] - ids[:, None]).abs() < 4, 1.0, 0.05)
        maps = noise / noise.sum(-1, keepdim=True)
        for name, values in patterns(Attention(1, maps, torch.empty(0), None), batch).items():
            sums.setdefault(name, []).append(values[:, None])
    together = {name: torch.cat(values) for name, values in sums.items()}
    rows = class_rows(together, np.full(30, 20), [1], Sentences(30, 0))
    of_heads = {row["head"]: row for row in rows if row["layer"] == 1 and row["factor"] == 1}
    assert (of_heads[1]["class"], of_heads[2]["class"]) == ("heterogeneous", "block")
    assert of_heads[1]["b"] < 0.2 < 0.8 < of_heads[2]["b"]
    assert of_heads[2]["b"] - of_heads[2]["b_moved"] > 0.3
    assert of_heads[3]["b"] > 0.4
    assert of_heads[3]["b"] - of_heads[3]["b_moved"] < 0.1
    (block,) = (row for row in rows if (row["layer"], row["factor"], row["class"]) == ("all", 1, "block"))
    is_block = (together["b_moved"] >= BLOCK) & (together["v"] + together["d"] < STRIPES)
    assert block["share_moved"] == pytest.approx(is_block.double().mean().item())
    assert block["share_moved_low"] <= block["share_moved"] <= block["share_moved_high"] < block["low"]


def test_moved_boundaries_exchange_the_lengths_of_sentences_and_leave_special_tokens() -> None:
    segments = torch.tensor(
        [[-1, 0, 0, 0, -1, 1, -1, -1], [-1, 0, -1, -1, 1, 1, 1, -1], [-1, 0, -1, 1, -1, -1, -1, -1]]
    )
    assert exchanged(segments).tolist() == [
        [-1, 0, 1, 1, -1, 1, -1, -1], [-1, 0, -1, -1, 0, 0, 1, -1], [-1, 0, -1, 1, -1, -1, -1, -1],
    ]  # fmt: skip
