"""Cosines of padded maps: padding changes them as predicted, and without padding they are those of cropped maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import untouched
from probing.cache import Request
from probing.corpus import from_sentences
from probing.errors import UserError
from probing.heads import change as change_as_published
from probing.heads.accumulation import Measure, accumulate
from probing.heads.change import OTHER_HEADS, SAME, Change, PublishedChange, check_padding, map_rows, published_rows
from probing.heads.subject import Checkpoint
from probing.models import load_tokenizer
from tiny_models import asked, other_padding, other_queries, tuned

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

BLOCKS = [1, 2, 3]


def compared(one: Request, other: Request, cache: Path) -> tuple[dict[Any, float], dict[Any, float]]:
    """Return cosines as published and of cropped maps, by what is compared, layer and head."""
    measures: list[Measure] = [PublishedChange(Checkpoint(one), Checkpoint(other)), Change(Checkpoint(other))]
    stores = accumulate(one, measures, cache, {"accelerator": "cpu"})
    published = published_rows(stores["change_as_published"], BLOCKS)
    cropped = [row for row in map_rows(stores["change"], BLOCKS) if row["measure"] == "cosine"]
    return (  # type: ignore[return-value]
        {(row["of"], row["layer"], row["head"]): row["value"] for row in rows} for rows in (published, cropped)
    )


@torch.no_grad()
def test_rows_of_padding_count_as_in_maps_of_a_fixed_length(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 50)
    monkeypatch.setattr(change_as_published, "PUBLISHED_SENTENCES", 3)
    folder = tiny_model("bert")
    # Small batches, some of which have none of the first three sentences.
    requests = [replace(asked(one, 8), batch_tokens=12) for one in (folder, tuned(folder, other_queries))]
    published, _ = compared(requests[0], requests[1], tmp_path / "c")
    tokenizer = load_tokenizer(requests[0].source)
    sentences = list(requests[0].corpus.sentences[:3])
    encoded = tokenizer(sentences, padding="max_length", max_length=50, truncation=True, return_tensors="pt")
    models = [untouched(Path(one.source.name), attn_implementation="eager") for one in requests]
    ours, theirs = (
        torch.stack(model(**encoded, output_attentions=True).attentions).flatten(3).double() for model in models
    )
    for layer, head in np.ndindex(3, 2):
        key = layer + 1, head + 1
        expected = torch.cosine_similarity(ours[layer, :, head], theirs[layer, :, head], dim=-1).mean()
        assert published[(SAME, *key)] == pytest.approx(float(expected), abs=1e-6)
        expected = torch.cosine_similarity(ours[layer, :, head], theirs[layer, :, 1 - head], dim=-1).mean()
        assert published[(OTHER_HEADS, *key)] == pytest.approx(float(expected), abs=1e-6)
        assert (published[(SAME, *key)] == 1) == (layer == 0)
        cropped = []
        for s, n in enumerate(encoded["attention_mask"].sum(1).tolist()):
            x, y = (one[layer, s, head].view(50, 50)[:n, :n].flatten() for one in (ours, theirs))
            cropped.append(float(torch.cosine_similarity(x, y, dim=0)))
        assert (abs(published[(SAME, *key)] - sum(cropped) / 3) > 1e-4) == (layer > 0)
    share = 1 - encoded["attention_mask"].double().mean()
    assert published[SAME, None, None] == pytest.approx(float(share))


def test_what_changes_in_padding_alone_is_a_change_as_published(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 50)
    folder = tiny_model("bert")
    published, cropped = compared(asked(folder, 5), asked(tuned(folder, other_padding), 5), tmp_path / "c")
    for layer, head in np.ndindex(3, 2):
        assert cropped[SAME, layer + 1, head + 1] == 1
        assert published[SAME, layer + 1, head + 1] < 0.9999


def test_without_padding_published_and_cropped_are_equal(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 10)
    folder = tiny_model("bert")
    # Cut at 10 tokens, of which these sentences all have more.
    requests = [asked(one, 40, 40) for one in (folder, tuned(folder, other_queries))]
    long = [text for text in requests[0].corpus.sentences if len(text.split()) > 12]
    cut = [replace(one, corpus=from_sentences("long", long), max_length=10) for one in requests]
    published, cropped = compared(cut[0], cut[1], tmp_path / "c")
    for key, value in cropped.items():
        if key[0] in (SAME, OTHER_HEADS):
            assert published[key] == pytest.approx(value, abs=1e-6)
    assert published[SAME, None, None] == 0
    assert min(published[SAME, 3, head] for head in (1, 2)) < 0.99


def test_models_that_cannot_be_padded_so_are_refused(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Checkpoint(asked(tiny_model("bert")))
    with pytest.raises(UserError, match=r"`--as_published` pads sentences to 200 tokens, and .* takes at most 128"):
        check_padding(short)
    monkeypatch.setattr(change_as_published, "PUBLISHED_LENGTH", 100)
    check_padding(short)
    with pytest.raises(UserError, match=r"in .* they attend to no token, because its attention is local; leave"):
        check_padding(Checkpoint(asked(tiny_model("modernbert"))))
