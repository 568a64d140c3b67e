"""Rows longer than those of the training: which arms read them, and that what is trained stays as it is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from conftest import make_sentences
from probing.corpus import from_sentences
from probing.runtime.trainer import Places
from probing.studies.pretrain.arms import LEARNED_TABLES, build, position_table
from probing.studies.pretrain.batches import train_tokenizer
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from probing.studies.pretrain.tables import Encoder, Recipe, conclusions, lengths_read, row_multiples
from probing.studies.pretrain.training import Asked, Job, measure_lengths, packed_text, passages, stretched, train_all

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

SHAPE = Encoder(2, 16, 2, 32, 100, True, 16, 0.3, 0.0)
TOKENIZER = train_tokenizer(make_sentences(100), SHAPE.vocabulary, True, SHAPE.row_length)
LONG = torch.randint(5, len(TOKENIZER), (4, 40), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm not in LEARNED_TABLES])
def test_a_model_that_reads_longer_rows_reads_short_ones_as_it_was_trained(arm: str) -> None:
    model = build(arm, SHAPE, TOKENIZER, 0).eval()
    if arm in ("constant", "relative"):  # as after training, when only the first row is not what it was
        with torch.no_grad():
            position_table(model)[0] += 1
    longer = stretched(arm, model, 24, SHAPE.initial_sd)
    short = LONG[:, :16]
    told = {"position_ids": torch.zeros_like(short)} if arm in ("constant", "relative") else {}
    with torch.no_grad():
        expected = model.base_model(input_ids=short, **told).last_hidden_state
        assert torch.allclose(longer.base_model(input_ids=short).last_hidden_state, expected, atol=1e-5)
        states = longer.base_model(input_ids=LONG).last_hidden_state
    assert states.isfinite().all()
    # What comes later is read: it changes the first tokens, unless they do not attend to it.
    is_causal = arm in ("causal", "causal_lm")
    assert torch.allclose(states[:, :16], expected, atol=1e-5) is is_causal


def test_sines_go_on_where_the_table_of_the_training_ends() -> None:
    model = build("sinusoidal", SHAPE, TOKENIZER, 0)
    table = position_table(stretched("sinusoidal", model, 24, SHAPE.initial_sd))
    assert table.shape == (40, 16)
    assert torch.equal(table[:16], position_table(model))
    assert float(table[30, 2]) == pytest.approx(0.3 * math.sin(30 / 10_000 ** (2 / 16)), rel=1e-4)


def test_texts_of_several_sentences_fill_a_row() -> None:
    sentences = make_sentences(60)
    found = list(passages(sentences, TOKENIZER, 40))
    assert " ".join(sentences).startswith(" ".join(found))
    assert len(found) > 3
    last = 0
    for text in found:
        last = next(i for i in range(last, 60) if text.endswith(sentences[i])) + 1
        assert (
            len(TOKENIZER(text)["input_ids"])
            >= 40
            > len(TOKENIZER(text.removesuffix(sentences[last - 1]))["input_ids"])
        )


@pytest.mark.parametrize("typed", ["1,2,4", [4, 1, 2], "4, 2,1,1"])
def test_lengths_are_whole_numbers_in_order(typed: str | list[int]) -> None:
    assert row_multiples(typed) == ([1, 2, 4], [])
    assert row_multiples(2) == ([2], [])
    assert row_multiples(None) == ([], [])


@pytest.mark.parametrize("typed", ["0,2", "two", "1.5", [], -1, ""])
def test_other_lengths_are_refused(typed: str | list[int] | int) -> None:
    found, (problem,) = row_multiples(typed)
    assert found == []
    assert "give whole numbers from 1 on, such as 1,2,4" in problem


@pytest.mark.slow
def test_every_arm_is_measured_at_every_length_or_says_why_not(tmp_path: Path) -> None:
    places, jobs = Places(tmp_path), [Job(arm, 0) for arm in ("learned", "alibi", "causal_lm")]
    recipe = Recipe(4, 8, 1e-2, 1, held_out_rows=40, checkpoint_factor=10.0, save_every=2)
    asked = Asked(jobs, SHAPE, recipe, 200, 0, {"accelerator": "cpu"})
    text = packed_text(from_sentences("text", make_sentences(3000)), asked, places)
    losses = train_all(text, asked, places, None)
    rows = measure_lengths(text, asked, [1, 2, 10_000], places, tmp_path / "cache")
    read = {(arm, length): top for arm, length, top in lengths_read(rows)}
    assert [*read] == [(job.arm, length) for job in jobs for length in (16, 32, 160_000)]
    assert [key for key, top in read.items() if not top] == [
        ("learned", 32), ("learned", 160_000), ("alibi", 160_000), ("causal_lm", 160_000)
    ]  # fmt: skip
    of_curve = {row["arm"]: row for row in losses if row["step"] == 4}
    for arm, row in of_curve.items():
        (trained,) = read[arm, 16]
        assert (trained["loss"], trained["unigram_loss"]) == (row["loss"], row["unigram_loss"])
    (longer,) = read["alibi", 32]
    assert longer["loss"] != of_curve["alibi"]["loss"]
    assert 0 <= longer["position_accuracy"] <= 1
    assert not (tmp_path / "state" / "alibi-seed0-x32").exists()
    said = conclusions({"arms": [], "lengths": rows})
    assert (
        "learned, rows of 32, 160000 tokens: the table has 16 positions, and none was learned for later tokens." in said
    )
    assert "alibi, causal_lm, rows of 160000 tokens: the held-out text does not fill a row of 160000 tokens." in said
    assert measure_lengths(text, asked, [1, 2, 10_000], places, tmp_path / "cache") == rows  # what is measured is read
