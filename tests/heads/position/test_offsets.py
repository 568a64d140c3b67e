"""Attention to the word at an offset: against loops, and where words are told the positions of other words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from families import untouched
from probing.cache import Request, tokens_of
from probing.cache.extraction import reading_order
from probing.corpus import Corpus, from_sentences
from probing.heads.accumulation import accumulate
from probing.heads.position import AT_OFFSETS, OFFSETS, ToldOffsets, mass_at_offsets, told_positions
from probing.models import load_tokenizer, resolve_model

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


def by_loops(maps: Tensor, ordinary: Tensor) -> dict[str, Tensor]:
    """Return what `mass_at_offsets` does of one sentence, by definition, shape (heads, offsets)."""
    found = {
        name: torch.zeros(len(maps), len(OFFSETS), dtype=torch.float64) for name in ("mass", "word_mass", "hit", "n")
    }
    for head, rows in enumerate(maps.double()):
        for at, offset in enumerate(OFFSETS):
            for i, row in enumerate(rows):
                j = i + offset
                if 0 <= j < len(row) and ordinary[i] and ordinary[j]:
                    found["n"][head, at] += 1
                    found["mass"][head, at] += row[j]
                    found["word_mass"][head, at] += row[j] / row[ordinary].sum()
                    found["hit"][head, at] += int(row.argmax()) == j
    return found


def test_attention_at_offsets_is_that_of_a_loop_and_ignores_special_tokens_and_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths, heads, longest = (14, 5, 1, 3), 2, 14
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    scores = 3 * torch.randn(len(lengths), heads, longest, longest, generator=generator)
    maps = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1) * mask[:, None, :, None]
    ordinary = mask.clone()
    ordinary[:, 0], ordinary[0, 13] = False, False
    found = mass_at_offsets(maps, ordinary)
    for s, n in enumerate(lengths):
        expected = by_loops(maps[s, :, :n, :n], ordinary[s, :n])
        for name, values in expected.items():
            assert torch.allclose(found[name][s].expand_as(values), values, atol=1e-6), (name, s)
    assert 0 not in OFFSETS
    assert len(OFFSETS) == 20


def test_a_head_that_attends_to_one_offset_has_all_its_mass_and_hits_there() -> None:
    maps = torch.zeros(1, 1, 9, 9)
    for i in range(9):
        maps[0, 0, i, (i - 2) % 9] = 0.75
        maps[0, 0, i, 0] += 0.25
    ordinary = torch.ones(1, 9, dtype=torch.bool)
    ordinary[0, 0] = False
    found = {name: values[0, 0, OFFSETS.index(-2)] for name, values in mass_at_offsets(maps, ordinary).items()}
    assert {name: float(value / found["n"]) for name, value in found.items()} == pytest.approx(
        {"mass": 0.75, "word_mass": 1, "hit": 1, "n": 1}
    )


@pytest.fixture(scope="module")
def request_of_bert(checkpoints: dict[str, Path], sentences: list[str]) -> Request:
    corpus: Corpus = from_sentences("some", sentences[:12])
    return Request(resolve_model(str(checkpoints["bert"])), corpus, [1])


def test_told_positions_are_those_that_the_model_is_told(request_of_bert: Request, tmp_path: Path) -> None:
    seed = 3
    from dataclasses import replace

    told_request = replace(request_of_bert, permuted_tokens_seed=seed)
    stores = accumulate(told_request, [ToldOffsets(seed)], tmp_path, {"accelerator": "cpu"})
    store = stores[ToldOffsets.name]
    tokens = tokens_of(request_of_bert, load_tokenizer(request_of_bert.source))
    told = told_positions(tokens, seed)
    order = reading_order(store, slice(0, tokens.n_tokens)).numpy()
    assert (told[order] == tokens.positions).all()
    assert (told[tokens.special] == tokens.positions[tokens.special]).all()
    assert (told != tokens.positions).mean() > 0.5
    # The model itself reads the sentences in their order and is told positions as `position_ids`.
    model = untouched(Path(request_of_bert.source.name), attn_implementation="eager")
    for s in (0, 5):
        rows = tokens.of_sentences(s, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))[None]
        with torch.inference_mode():
            maps = model(input_ids=ids, position_ids=torch.from_numpy(told[rows])[None], output_attentions=True)
        ordinary = torch.from_numpy(~tokens.special[rows])
        by_told = torch.from_numpy(np.argsort(told[rows]))
        for layer, attention in enumerate(maps.attentions):
            true = by_loops(attention[0], ordinary)["mass"]
            as_told = by_loops(attention[0][:, by_told][:, :, by_told], ordinary)["mass"]
            for name, expected in (("told", as_told), ("told_true", true)):
                assert torch.allclose(store.by_sentence(name)[s, layer], expected, atol=1e-5), (name, layer)


def test_sums_of_a_corpus_are_kept_by_sentence(request_of_bert: Request, tmp_path: Path) -> None:
    (store,) = accumulate(request_of_bert, [AT_OFFSETS], tmp_path, {"accelerator": "cpu"}).values()
    sums = store.all_by_sentence()
    n_layers, n_heads = 3, 2
    assert sums["mass"].shape == (12, n_layers, n_heads, len(OFFSETS))
    lengths = torch.from_numpy(store.tokens.lengths.astype(np.int64))
    for at, offset in enumerate(OFFSETS):
        assert torch.equal(sums["n"][:, 0, 0, at], (lengths - 2 - abs(offset)).clamp_min(0).double())
    assert bool((sums["mass"] <= sums["word_mass"] + 1e-9).all())
