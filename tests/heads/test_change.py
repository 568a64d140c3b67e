"""Attention, hidden states and parameters of two checkpoints: changes are where they were made, and only there."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import make_sentences
from families import FAMILIES, make_checkpoint, make_tokenizer, untouched
from probing.activations import Request
from probing.errors import UserError
from probing.heads import change
from probing.heads.accumulation import Measure, accumulate
from probing.heads.change import (
    OTHER_HEADS,
    OTHER_SENTENCES,
    OTHER_TOKENS,
    SAME,
    check_padding,
    map_change,
    map_cosines,
    map_rows,
    other_head_cosines,
    others_of_equal_length,
    parameter_rows,
    published_change,
    published_rows,
    row_cosines,
    row_divergences,
    state_change,
    state_rows,
)
from probing.heads.survey import SurveyedCheckpoint, check_comparable
from probing.models import load_tokenizer
from probing.text import from_sentences
from tiny_models import CHANGED, asked, other_padding, other_queries, tuned

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.numeric

Rows = list[dict[str, Any]]
BLOCKS = (1, 2, 3)


def rows_of(one: Request, other: Request, cache: Path) -> Rows:
    return map_rows(
        accumulate(one, [map_change(SurveyedCheckpoint(other))], cache, {"accelerator": "cpu"})["change"], BLOCKS
    )


def by(rows: Rows, measure: str, of: str = SAME) -> dict[tuple[int, int | None], float]:
    return {(row["layer"], row["head"]): row["value"] for row in rows if (row["measure"], row["of"]) == (measure, of)}


def cosine(x: Any, y: Any) -> float:
    return float((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y))


def divergence(x: Any, y: Any) -> float:
    m = (x + y) / 2
    return float((x * np.log(x / m)).sum() + (y * np.log(y / m)).sum()) / 2


def test_cosines_and_divergences_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = ((torch.randn(2, 3, 5, 5, generator=generator) * 3).softmax(-1) for _ in range(2))
    cosines, others, divergences = map_cosines(a, b), other_head_cosines(a, b), row_divergences(a, b)
    for s, h in np.ndindex(2, 3):
        x, y = (maps[s].double().numpy() for maps in (a, b))
        assert float(cosines[s, h]) == pytest.approx(cosine(x[h], y[h]))
        assert float(others[s, h]) == pytest.approx(np.mean([cosine(x[h], y[g]) for g in range(3) if g != h]))
        assert float(divergences[s, h]) == pytest.approx(divergence(x[h], y[h]), rel=1e-4, abs=1e-6)
    assert torch.equal(map_cosines(a, a), torch.ones(2, 3, dtype=torch.float64))
    assert not row_divergences(a, a).any()
    assert others_of_equal_length(torch.tensor([5, 4, 5, 5, 3])).tolist() == [2, 1, 3, 0, 4]


@torch.no_grad()
def test_a_run_has_the_numbers_of_a_loop_over_sentences(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("bert")
    # In one batch, so that every other sentence of equal length is there.
    requests = [replace(asked(one, 25), batch_tokens=10_000) for one in (folder, tuned(folder, other_queries))]
    rows = rows_of(requests[0], requests[1], tmp_path / "c")
    tokenizer = load_tokenizer(requests[0].source)
    models = [untouched(Path(one.source.name), attn_implementation="eager") for one in requests]
    maps = []
    by_length: dict[int, list[int]] = {}
    for i, sentence in enumerate(requests[0].corpus.sentences):
        encoded = tokenizer(sentence, return_tensors="pt")
        maps.append([
            torch.stack(model(**encoded, output_attentions=True).attentions)[:, 0].double().numpy() for model in models
        ])  # fmt: skip
        by_length.setdefault(maps[i][0].shape[2], []).append(i)
    others = {i: group[(k + 1) % len(group)] for group in by_length.values() for k, i in enumerate(group)}
    heads = [(k, h) for k in range(3) for h in range(2)]
    for of, with_what in {
        SAME: {i: [theirs[k, h] for k, h in heads] for i, (_, theirs) in enumerate(maps)},
        OTHER_HEADS: {i: [theirs[k, 1 - h] for k, h in heads] for i, (_, theirs) in enumerate(maps)},
        OTHER_SENTENCES: {i: [maps[o][1][k, h] for k, h in heads] for i, o in others.items() if o != i},
    }.items():
        n_queries = sum(maps[i][0].shape[2] for i in with_what)
        assert len(with_what) == 25 if of != OTHER_SENTENCES else 10 < len(with_what) < 25
        for measure, compare, n in (("cosine", cosine, len(with_what)), ("jensen_shannon", divergence, n_queries)):
            sums = [
                [compare(maps[i][0][k, h], y) for (k, h), y in zip(heads, theirs, strict=True)]
                for i, theirs in with_what.items()
            ]
            expected, values = np.sum(sums, 0) / n, by(rows, measure, of)
            # A forward pass in float32, in a batch here and one sentence at a time there.
            assert [values[k + 1, h + 1] for k, h in heads] == pytest.approx(expected.tolist(), abs=1e-6)
            assert [values[layer, None] for layer in BLOCKS] == pytest.approx(expected.reshape(3, 2).mean(1), abs=1e-6)


def test_the_same_model_is_the_same_and_other_heads_and_sentences_are_not(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    request = asked(tiny_model("bert"))
    rows = rows_of(request, request, tmp_path / "c")
    assert set(by(rows, "cosine").values()) == {1}
    assert set(by(rows, "jensen_shannon").values()) == {0}
    assert {(row["low"], row["high"]) for row in rows if (row["measure"], row["of"]) == ("cosine", SAME)} == {(1, 1)}
    for of in (OTHER_HEADS, OTHER_SENTENCES):
        assert all(0 < value < 1 for value in by(rows, "cosine", of).values())
        assert all(0 < value < math.log(2) for value in by(rows, "jensen_shannon", of).values())
    assert {row["n"] for row in rows if row["measure"] == "cosine" and row["of"] != OTHER_SENTENCES} == {30}


def test_below_a_changed_block_maps_are_exactly_the_same(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "MAPS_BYTES", 1)  # the other checkpoint is run again for each block
    folder = tiny_model("bert")
    rows = rows_of(asked(folder), asked(tuned(folder, other_queries)), tmp_path / "c")
    for (layer, _), value in by(rows, "cosine").items():
        assert (value == 1) == (layer < CHANGED)
    for (layer, _), value in by(rows, "jensen_shannon").items():
        assert (value == 0) == (layer < CHANGED)


PUBLISHED_BLOCKS = [1, 2, 3]


def compared(one: Request, other: Request, cache: Path) -> tuple[dict[Any, float], dict[Any, float]]:
    """Return cosines as published and of cropped maps, by what is compared, layer and head."""
    measures: list[Measure] = [
        published_change(SurveyedCheckpoint(one), SurveyedCheckpoint(other)),
        map_change(SurveyedCheckpoint(other)),
    ]
    stores = accumulate(one, measures, cache, {"accelerator": "cpu"})
    published = published_rows(stores["change_as_published"], PUBLISHED_BLOCKS)
    cropped = [row for row in map_rows(stores["change"], PUBLISHED_BLOCKS) if row["measure"] == "cosine"]
    return (  # type: ignore[return-value]
        {(row["of"], row["layer"], row["head"]): row["value"] for row in rows} for rows in (published, cropped)
    )


@torch.no_grad()
def test_rows_of_padding_count_as_in_maps_of_a_fixed_length(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "PUBLISHED_LENGTH", 50)
    monkeypatch.setattr(change, "PUBLISHED_SENTENCES", 3)
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
    monkeypatch.setattr(change, "PUBLISHED_LENGTH", 50)
    folder = tiny_model("bert")
    published, cropped = compared(asked(folder, 5), asked(tuned(folder, other_padding), 5), tmp_path / "c")
    for layer, head in np.ndindex(3, 2):
        assert cropped[SAME, layer + 1, head + 1] == 1
        assert published[SAME, layer + 1, head + 1] < 0.9999


def test_without_padding_published_and_cropped_are_equal(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "PUBLISHED_LENGTH", 10)
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
    short = SurveyedCheckpoint(asked(tiny_model("bert")))
    with pytest.raises(UserError, match=r"`--as_published` pads sentences to 200 tokens, and .* takes at most 128"):
        check_padding(short)
    monkeypatch.setattr(change, "PUBLISHED_LENGTH", 100)
    check_padding(short)
    with pytest.raises(UserError, match=r"in .* they attend to no token, because its attention is local; leave"):
        check_padding(SurveyedCheckpoint(asked(tiny_model("modernbert"))))


@torch.no_grad()
def test_states_are_those_of_a_loop_and_below_a_changed_block_the_same(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_model("bert")
    requests = asked(folder, 25), asked(tuned(folder, other_queries), 25)
    measure = state_change(SurveyedCheckpoint(requests[0]), SurveyedCheckpoint(requests[1]))
    store = accumulate(requests[0], [measure], tmp_path, {"accelerator": "cpu"})[measure.name]
    found = {(row["of"], row["layer"]): row for row in state_rows(store, (0, 1, 2, 3))}
    tokenizer = load_tokenizer(requests[0].source)
    models = [untouched(Path(one.source.name)) for one in requests]
    same, following = [], []
    for sentence in requests[0].corpus.sentences:
        encoded = tokenizer(sentence, return_tensors="pt")
        states = (model(**encoded, output_hidden_states=True).hidden_states for model in models)
        x, y = (torch.stack(one)[:, 0].double() for one in states)
        same.append(torch.cosine_similarity(x, y, dim=-1).numpy())
        following.append(torch.cosine_similarity(x[:, :-1], y[:, 1:], dim=-1).numpy())
    for of, values in ((SAME, same), (OTHER_TOKENS, following)):
        expected = np.concatenate(values, 1)
        for layer in range(4):
            # A forward pass in float32, in batches here and one sentence at a time there.
            assert found[of, layer]["value"] == pytest.approx(expected[layer].mean(), abs=1e-6)
            assert found[of, layer]["n"] == expected.shape[1]
    assert [found[SAME, layer]["value"] == 1 for layer in range(4)] == [True, True, False, False]


@torch.no_grad()
def test_only_the_matrix_that_was_changed_differs(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    one, other = (SurveyedCheckpoint(asked(each)) for each in (folder, tuned(folder, other_queries)))
    assert {row["value"] for row in parameter_rows(one, one)} == {1}
    rows = parameter_rows(one, other)
    name = f"encoder.layer.{CHANGED - 1}.attention.self.query.weight"
    assert [(row["of"], row["layer"]) for row in rows if row["value"] != 1] == [(name, CHANGED)]
    x, y = (dict(untouched(Path(each.request.source.name)).named_parameters())[name].double() for each in (one, other))
    expected = torch.cosine_similarity(x.flatten(), y.flatten(), dim=0)
    (value,) = (row["value"] for row in rows if row["of"] == name)
    assert value == pytest.approx(float(expected))
    assert {row["layer"] for row in rows} == {None, 1, 2, 3}
    words = next(row for row in rows if row["of"] == "embeddings.word_embeddings.weight")
    assert words["layer"] is None


def test_a_pooler_that_a_checkpoint_lacks_does_not_count_as_changed(tiny_model: Callable[..., Path]) -> None:
    from transformers import BertModel

    folder = tiny_model("bert")
    BertModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(folder)
    one, other = SurveyedCheckpoint(asked(folder)), SurveyedCheckpoint(asked(folder))
    random: list[Any] = [each.encoder.get_submodule("pooler.dense").weight for each in (one, other)]
    assert not torch.equal(*random)  # transformers draws it at random
    assert {row["value"] for row in parameter_rows(one, other)} == {1}


def test_cosines_in_pieces_are_exact_for_equal_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 2**20 + 7, generator=generator) for _ in range(2))
    assert row_cosines(a, a).tolist() == [1, 1]
    assert row_cosines(a, -a).tolist() == [-1, -1]
    expected = torch.cosine_similarity(a.double(), b.double(), dim=-1)
    assert row_cosines(a, b).tolist() == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-12)


def check(one: Path, other: Path) -> None:
    check_comparable(asked(one), SurveyedCheckpoint(asked(one)).heads, SurveyedCheckpoint(asked(other)))


def resized(folder: Path, family: str, **sizes: Any) -> Path:
    """Save a model of other sizes with the tokenizer of a folder, in that folder."""
    from transformers import AutoModel, AutoTokenizer

    config = FAMILIES[family].config(len(AutoTokenizer.from_pretrained(folder)))
    for name, size in sizes.items():
        setattr(config, name, size)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_hidden_layers": 2}, "has 2 blocks, and .* has 3 blocks; give two checkpoints of one model"),
        ({"num_attention_heads": 4}, "has 4 heads in a block, and .* has 2 heads in a block; give two"),
        ({"hidden_size": 32}, "has hidden states of 32 neurons, and .* has hidden states of 16 neurons; give two"),
    ],
)
def test_models_of_other_sizes_are_refused(
    tiny_model: Callable[..., Path], sizes: dict[str, int], message: str
) -> None:
    one, other = tiny_model("bert"), resized(tiny_model("bert", 1), "bert", **sizes)
    check(one, one)
    with pytest.raises(UserError, match=rf"^`--against .*` {message}"):
        check(one, other)


def test_another_tokenizer_is_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    one, other = tiny_model("bert"), tuned(tiny_model("bert", 1), lambda model: None)
    check(one, other)
    make_tokenizer("wordpiece", make_sentences(20, seed=5, longest=6)[:3]).save_pretrained(other)
    with pytest.raises(UserError, match=r"^`--against .*` divides the corpus into other tokens than .*one tokenizer"):
        check(one, other)


def test_a_model_that_cuts_sentences_earlier_is_refused_with_a_way_out(tiny_model: Callable[..., Path]) -> None:
    one, other = tiny_model("bert"), resized(tiny_model("bert", 1), "bert", max_position_embeddings=12)
    with pytest.raises(UserError, match=r"takes 12 tokens, and .* 128, so that .* add `--max_length 12`"):
        check(one, other)


def test_weights_that_are_not_there_are_told_by_the_option(tiny_model: Callable[..., Path]) -> None:
    one, other = tiny_model("bert"), tiny_model("bert", 1)
    (other / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"^`--against .*` has no model.safetensors in .*; save the weights there\.$"):
        check(one, other)


@torch.no_grad()
def test_threads_read_the_same_as_the_model_alone(checkpoints: dict[str, Path]) -> None:
    made = SurveyedCheckpoint(asked(checkpoints["bert"])).prepared()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(5, 40, (2, n), generator=generator) for n in (5, 9, 6, 8)]
    model = untouched(checkpoints["bert"])

    def read(ids: torch.Tensor) -> dict[int, torch.Tensor]:
        with torch.no_grad():
            return made.states({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    with ThreadPoolExecutor(4) as pool:
        for ids, found in zip(batches, pool.map(read, batches), strict=True):
            expected = model(ids, output_hidden_states=True).hidden_states
            assert sorted(found) == [0, 1, 2, 3]
            assert all(torch.allclose(found[k], expected[k], atol=1e-6) for k in found)


def test_a_block_that_is_used_again_has_no_layer(sentences: list[str], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "albert", "albert", sentences)
    assert {layer for layer, _ in SurveyedCheckpoint(asked(folder)).matrices().values()} == {None}
