"""Text, rows, batches and draws of a pretraining, its module and checkpoints, and what is measured of them."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from conftest import ROOT, make_sentences
from probing.errors import UserError
from probing.results import Table
from probing.runtime.trainer import Places, generator_of, seed_of, share_of_rate
from probing.statistics.moments import ProfileAccumulator
from probing.studies.pretrain.batches import (
    MaskedBatch,
    Masking,
    NextTokens,
    PackedRows,
    PackedText,
    build,
    checkpoint_folder,
    checkpoint_steps,
    order_of_rows,
    packed,
    position_table,
    prepare,
    save_checkpoint,
    train_tokenizer,
    validation_flags,
)
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from probing.studies.pretrain.tables import Encoder, Recipe
from probing.studies.pretrain.training import (
    CheckpointInputs,
    LanguageModel,
    RunPlan,
    TrainingJob,
    equivariance,
    growth_of,
    measure,
    outlier_row,
    packed_text,
    train_all,
)
from probing.text import from_sentences

pytestmark = pytest.mark.numeric

SENTENCES = make_sentences(300)


def test_a_tenth_is_held_out_by_sentence_without_regard_to_case_and_punctuation() -> None:
    corpus = from_sentences("text", [*SENTENCES, *(sentence.upper() + "!" for sentence in SENTENCES)])
    held_out = validation_flags(corpus, 0)
    assert 0.05 < sum(held_out) / len(held_out) < 0.15
    assert held_out[:300] == held_out[300:]
    assert held_out != validation_flags(corpus, 1)


def test_documents_are_held_out_as_a_whole_if_there_are_enough() -> None:
    lines = [line for i in range(0, 300, 3) for line in (*SENTENCES[i : i + 3], "")]
    corpus = from_sentences("text", lines)
    assert corpus.documents is not None
    sides = dict(zip(corpus.documents, validation_flags(corpus, 0), strict=True))
    assert validation_flags(corpus, 0) == [sides[document] for document in corpus.documents]
    assert 0 < sum(sides.values()) < 30
    few = from_sentences("text", lines[:40])
    assert validation_flags(few, 0) == validation_flags(from_sentences("text", SENTENCES[:30]), 0)


def test_rows_are_the_text_in_order_with_a_separator_after_every_sentence() -> None:
    tokenizer = train_tokenizer(SENTENCES, 120, True, 16)
    rows = packed(SENTENCES[:20], tokenizer, 16)
    assert rows.dtype == torch.int32
    assert (rows[:, 0] == tokenizer.cls_token_id).all()
    expected = [
        i for sentence in SENTENCES[:20]
        for i in [*tokenizer(sentence, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
    ]  # fmt: skip
    assert rows[:, 1:].flatten().tolist() == expected[: 15 * len(rows)]
    assert len(expected) - 15 * len(rows) < 15


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_has_the_size_and_reads_the_text(lowercase: bool) -> None:
    tokenizer = train_tokenizer(SENTENCES, 150, lowercase, 16)
    assert len(tokenizer) == 150
    assert tokenizer.is_fast
    ids = tokenizer(SENTENCES[0])["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert any(token.isupper() for token in tokenizer.get_vocab() if len(token) == 1) is not lowercase


@pytest.mark.slow
def test_the_same_text_gives_the_same_tokenizer_in_every_process() -> None:
    # The trainer of `tokenizers` alone numbers its pieces in an order that differs between processes.
    code = (
        "from conftest import make_sentences; from probing.studies.pretrain.batches import train_tokenizer; "
        "print(sorted(train_tokenizer(make_sentences(300), 150, True, 16).get_vocab().items()))"
    )
    paths = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]; "
    other = subprocess.run(
        [sys.executable, "-c", paths + code], capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert other.strip() == str(sorted(train_tokenizer(SENTENCES, 150, True, 16).get_vocab().items()))


def test_rare_characters_are_unknown_and_leave_room_for_words() -> None:
    strange = [f"{chr(0x4E00 + i)} word" for i in range(200)]
    tokenizer = train_tokenizer([*SENTENCES, *strange], 120, True, 16)
    assert len(tokenizer) == 120
    assert tokenizer("word")["input_ids"][1:-1] != [tokenizer.unk_token_id]
    assert tokenizer(chr(0x4E00 + 77))["input_ids"][1:-1] == [tokenizer.unk_token_id]


def test_the_unigram_loss_is_that_of_the_frequencies_of_the_training_part() -> None:
    text = prepare(from_sentences("text", SENTENCES), 120, True, 16, 5, 0)
    assert len(text.validation) <= 5
    special = set(text.tokenizer.all_special_ids)
    counts = Counter(i for i in text.train.flatten().tolist() if i not in special)
    total = sum(counts.values()) + len(text.tokenizer) - len(special)
    labels = [i for i in text.validation.flatten().tolist() if i not in special]
    expected = -sum(math.log((counts[i] + 1) / total) for i in labels) / len(labels)
    assert text.unigram_loss(torch.tensor(labels)) == pytest.approx(expected, rel=1e-9)


def test_held_out_sentences_are_not_in_the_training_part() -> None:
    corpus = from_sentences("text", SENTENCES)
    text = prepare(corpus, 120, True, 16, 1000, 0)
    held_out = {sentence for sentence, held in zip(corpus.sentences, validation_flags(corpus, 0), strict=True) if held}
    assert set(text.validation_corpus.sentences) == held_out
    kept = [sentence for sentence in corpus.sentences if sentence not in held_out]
    assert torch.equal(text.train, packed(kept, text.tokenizer, 16))


@pytest.mark.parametrize("n", [1, 3])
def test_too_little_text_is_refused(n: int) -> None:
    with pytest.raises(UserError, match="at least one row of 512 tokens"):
        prepare(from_sentences("text", SENTENCES[:n]), 120, True, 512, 10, 0)


def test_every_row_is_read_once_before_any_is_read_again_wherever_the_order_begins() -> None:
    whole = list(itertools.islice(order_of_rows(10, 4, 0, 7), 10))
    read = torch.cat(whole).tolist()
    for epoch in range(4):
        assert sorted(read[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert read[:10] != read[10:20]
    later = list(itertools.islice(order_of_rows(10, 4, 6, 7), 4))
    assert torch.equal(torch.stack(later), torch.stack(whole[6:]))
    assert torch.cat(list(itertools.islice(order_of_rows(10, 4, 0, 8), 5))).tolist() != read[:20]


@pytest.fixture(scope="module")
def text() -> PackedText:
    return prepare(from_sentences("text", make_sentences(300)), 120, True, 16, 50, 0)


def test_a_share_of_ordinary_tokens_is_predicted_and_most_of_them_are_masked(text: PackedText) -> None:
    rows = text.train.repeat(20, 1)
    inputs, labels = Masking(text.tokenizer, 0.15)(rows, "seed")
    special = torch.isin(rows, torch.tensor(text.tokenizer.all_special_ids))
    chosen = labels >= 0
    assert not (chosen & special).any()
    assert float(chosen.sum() / (~special).sum()) == pytest.approx(0.15, abs=0.01)
    assert torch.equal(labels[chosen], rows.long()[chosen])
    assert torch.equal(inputs[~chosen], rows.long()[~chosen])
    assert float((inputs[chosen] == text.tokenizer.mask_token_id).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((inputs[chosen] == labels[chosen]).float().mean()) == pytest.approx(0.1, abs=0.02)


def test_batches_are_the_same_wherever_they_begin_and_whoever_shares_them(text: PackedText) -> None:
    rows = PackedRows(text, 6, 0.15, 1)
    whole = list(islice(rows.batches(0), 8))
    for a, b in zip(whole[5:], rows.batches(5), strict=False):
        assert torch.equal(a.input_ids, b.input_ids)
        assert torch.equal(a.labels, b.labels)
    parts = [next(rows.batches(3, rank, 2)) for rank in (0, 1)]
    assert torch.equal(torch.stack([part.input_ids for part in parts], 1).flatten(0, 1), whole[3].input_ids)
    assert [part.n_predicted for part in parts] == [int((whole[3].labels >= 0).sum())] * 2
    assert sum(int((part.labels >= 0).sum()) for part in parts) == whole[3].n_predicted
    assert not torch.equal(next(PackedRows(text, 6, 0.15, 2).batches(0)).input_ids, whole[0].input_ids)


def test_accumulated_batches_are_the_parts_of_a_larger_one(text: PackedText) -> None:
    larger, rows = PackedRows(text, 12, 0.15, 1), PackedRows(text, 4, 0.15, 1, n_accumulated=3)
    for step, whole in enumerate(islice(larger.batches(5), 2)):
        of_ranks = [list(islice(rows.batches(5, rank, 2), 3 * step, 3 * step + 3)) for rank in (0, 1)]
        assert [len(part.input_ids) for parts in of_ranks for part in parts] == [2] * 6
        in_order = [part for pair in zip(*of_ranks, strict=True) for part in pair]
        for name in ("input_ids", "labels"):
            joined = torch.stack([getattr(part, name) for part in in_order], 1).flatten(0, 1)
            assert torch.equal(joined, getattr(whole, name))
        assert {part.n_predicted for part in in_order} == {whole.n_predicted}


def test_all_seeds_have_the_same_held_out_masks(text: PackedText) -> None:
    first, second = (list(PackedRows(text, 6, 0.15, seed).validation_batches()) for seed in (1, 2))
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(first, second, strict=True))
    labels = torch.cat([batch.labels for batch in first])
    assert PackedRows(text, 6, 0.15, 3).unigram_loss() == text.unigram_loss(labels[labels >= 0])


def test_next_tokens_are_predicted_from_what_is_before_them(text: PackedText) -> None:
    rows = text.train[:60]
    inputs, labels = NextTokens(text.tokenizer)(rows, "seed")
    assert torch.equal(inputs, rows.long())
    special = text.tokenizer.all_special_ids
    for row, of_row in zip(rows.tolist(), labels.tolist(), strict=True):
        assert of_row == [*(-100 if token in special else token for token in row[1:]), -100]
    assert {text.tokenizer.sep_token_id} <= {*rows.flatten().tolist()}  # there was something to leave out


def test_the_frequencies_that_a_loss_is_compared_with_are_those_of_the_tokens_to_predict(text: PackedText) -> None:
    masked, following = PackedRows(text, 6, 0.15, 1), PackedRows(text, 6, None, 1)
    ordinary = text.validation[~torch.isin(text.validation, torch.tensor(text.tokenizer.all_special_ids))]
    assert following.unigram_loss() == text.unigram_loss(ordinary)
    assert following.unigram_loss() != masked.unigram_loss()
    batches = next(masked.batches(3)), next(following.batches(3))
    changed = batches[0].labels >= 0
    assert torch.equal(batches[0].input_ids[~changed], batches[1].input_ids[~changed])  # the same rows
    assert batches[1].n_predicted == int((batches[1].labels >= 0).sum()) > 3 * batches[0].n_predicted


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    assert seed_of(1, "masks", 2) == seed_of(1, "masks", 2)
    found = {
        seed_of(*parts) for parts in ((1, "masks", 2), (1, "order", 2), (2, "masks", 2), (1, "masks", 12), (11, 2))
    }
    assert len(found) == 5
    assert all(0 <= seed < 2**63 for seed in found)


def test_generators_draw_the_same_whatever_was_drawn_before() -> None:
    first = torch.rand(3, generator=generator_of(0, "a"))
    torch.rand(10)
    assert torch.equal(torch.rand(3, generator=generator_of(0, "a")), first)
    assert not torch.equal(torch.rand(3, generator=generator_of(0, "b")), first)


# The size tiny.
SHAPE = Encoder()


@pytest.fixture(scope="module")
def module_text() -> PackedText:
    return prepare(from_sentences("text", make_sentences(300)), SHAPE.vocabulary, True, SHAPE.row_length, 50, 0)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("arm", ARMS)
def test_the_first_loss_is_that_of_a_uniform_guess(module_text: PackedText, arm: str) -> None:
    module = LanguageModel(build(arm, SHAPE, module_text.tokenizer, 0), arm, Recipe(), 0)
    rows = PackedRows(module_text, 8, None if arm == "causal_lm" else 0.15, 0)
    assert module.validation_loss(rows.validation_batches()) == pytest.approx(
        math.log(len(module_text.tokenizer)), abs=0.3
    )


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_loss_is_that_of_transformers(module_text: PackedText) -> None:
    model = build("learned", SHAPE, module_text.tokenizer, 0).eval()
    module = LanguageModel(model, "learned", Recipe(), 0)
    batches = list(PackedRows(module_text, 8, 0.15, 0).validation_batches())
    whole = MaskedBatch(torch.cat([b.input_ids for b in batches]), torch.cat([b.labels for b in batches]), 0)
    with torch.no_grad():
        expected = float(model(input_ids=whole.input_ids, labels=whole.labels).loss)
    assert module.validation_loss(batches) == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_learning_rate_rises_and_falls_linearly() -> None:
    share = share_of_rate(10, 4)
    assert [share(step) for step in range(11)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]
    )
    assert share_of_rate(3, 3)(3) == 1
    assert share_of_rate(3, 0)(0) == 1


EXPERIMENT_SHAPE = Encoder(1, 16, 2, 16, 100, True, 16, 0.1, 0.2)
RECIPE = Recipe(6, 4, 1e-3, 2, held_out_rows=10, checkpoint_factor=10.0, save_every=2)


class Stop(pl.Callback):
    """Ends the process, as it seems to Lightning, before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise ConnectionError


class Permute(pl.Callback):
    """Notes after every step how far the encoder is from commuting with permutations of the tokens."""

    def __init__(self) -> None:
        self.rows = torch.randint(5, 100, (8, 16), generator=torch.Generator().manual_seed(0))
        self.found: list[float] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._note(pl_module, 0)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        self._note(pl_module, trainer.global_step)

    def _note(self, module: Any, step: int) -> None:
        module.model.eval()
        self.found.append(max(equivariance(module.model.base_model, self.rows, step)))
        module.model.train()


def curve_of(
    folder: Path, shape: Encoder, recipe: Recipe, accumulated: int = 1, arm: str = "learned",
    callbacks: Sequence[pl.Callback] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Train in a folder, and return the curve."""
    folder.mkdir(exist_ok=True)
    job, places = TrainingJob(arm, 0), Places(folder)
    asked = RunPlan([job], shape, recipe, 100, 0, {"accelerator": "cpu", "accumulate_grad_batches": accumulated})
    text = packed_text(from_sentences("text", make_sentences(200)), asked, places)
    return train_all(text, asked, places, None, callbacks)


def trained(folder: Path, stop: int | None = None) -> dict[str, bytes]:
    """Train in a folder, and return the content of the last checkpoint and the curve."""
    rows = curve_of(folder, EXPERIMENT_SHAPE, RECIPE, 3, callbacks=[Stop(stop)] if stop else [])
    return {
        "model": (folder / "checkpoints/learned-seed0/step6/model.safetensors").read_bytes(),
        "curve": str(rows).encode(),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("stop", [3, 4])
def test_a_training_goes_on_to_the_same_bytes_with_dropout_and_accumulated_gradients(tmp_path: Path, stop: int) -> None:
    with pytest.raises(ConnectionError):
        trained(tmp_path / "stopped", stop)
    assert not (tmp_path / "stopped/checkpoints/learned-seed0/step6").exists()
    assert trained(tmp_path / "stopped") == trained(tmp_path / "whole")
    assert trained(tmp_path / "stopped") == trained(tmp_path / "whole")  # what is finished is read


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_gradients_accumulated_over_batches_are_those_of_one_larger_batch(tmp_path: Path) -> None:
    shape = replace(EXPERIMENT_SHAPE, dropout=0.0)
    whole = curve_of(tmp_path / "whole", shape, replace(RECIPE, batch_size=12))
    parts = curve_of(tmp_path / "parts", shape, RECIPE, 3)
    other = curve_of(tmp_path / "other", shape, RECIPE)
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(7))
    for name in ("train_loss", "loss"):
        expected = [row[name] for row in whole if name in row]
        assert [row[name] for row in parts if name in row] == pytest.approx(expected, abs=1e-5)
        assert [row[name] for row in other if name in row][-1] != pytest.approx(expected[-1], abs=1e-3)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("arm", ["none", "learned"])
def test_an_encoder_that_is_told_no_positions_commutes_with_permutations_after_every_step(
    tmp_path: Path, arm: str
) -> None:
    noting = Permute()
    curve_of(tmp_path / arm, EXPERIMENT_SHAPE, replace(RECIPE, learning_rate=2e-2), arm=arm, callbacks=[noting])
    assert len(noting.found) == 7
    assert all(difference < 1e-5 if arm == "none" else difference > 0.1 for difference in noting.found)


@pytest.mark.parametrize(
    ("steps", "factor", "expected"),
    [
        (10, 2.0, [0, 1, 2, 4, 8, 10]),
        (8, 2.0, [0, 1, 2, 4, 8]),
        (1, 2.0, [0, 1]),
        (100, 10.0, [0, 1, 10, 100]),
        (5, 1.3, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_steps_are_powers_with_the_first_and_the_last(steps: int, factor: float, expected: list[int]) -> None:
    assert checkpoint_steps(steps, factor) == expected


def test_names_sort_as_steps_do() -> None:
    names = [checkpoint_folder(Path(), "none", 1, step, 2000).name for step in (0, 1, 16, 128, 2000)]
    assert names == sorted(names)
    assert names[0] == "step0000"
    assert checkpoint_folder(Path("c"), "none", 1, 4, 2000).parent == Path("c/none-seed1")


PLANTED_SENTENCES = make_sentences(300, longest=10)
PLANTED_SHAPE = Encoder(1, 32, 2, 32, 100, True, 16, 0.08, 0.0)
TOKENIZER = train_tokenizer(PLANTED_SENTENCES, PLANTED_SHAPE.vocabulary, True, PLANTED_SHAPE.row_length)


def test_the_farthest_mean_is_named_if_it_is_an_outlier() -> None:
    states = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    states[:, 7] -= 0.5
    states[:200, 7] -= 50
    accumulator = ProfileAccumulator(64)
    accumulator.update(states)
    found = outlier_row(accumulator.result())
    mean = states.double().mean(0).numpy()
    assert found["outlier_neuron"] == 7
    assert found["max_mean_sd"] == pytest.approx(abs(mean[7] - mean.mean()) / mean.std())
    assert found["argmin_share"] == pytest.approx(np.mean(states.numpy().argmin(1) == 7))
    assert found["argmax_share"] == pytest.approx(np.mean(states.numpy().argmax(1) == 7))
    plain = ProfileAccumulator(64)
    plain.update(torch.randn(500, 64, generator=torch.Generator().manual_seed(1)))
    assert outlier_row(plain.result())["outlier_neuron"] is None
    assert 1 < outlier_row(plain.result())["max_mean_sd"] < 5


def test_equivariance_is_the_largest_difference_in_root_mean_squares() -> None:
    model = build("learned", PLANTED_SHAPE, TOKENIZER, 0).eval()
    rows = packed(PLANTED_SENTENCES, TOKENIZER, 16)[:5].long()
    found = equivariance(model.base_model, rows, 3)
    assert all(difference > 0.1 for difference in found)
    with torch.no_grad():
        position_table(model).zero_()
    assert all(difference < 1e-5 for difference in equivariance(model.base_model, rows, 3))
    # In layer 0 of an encoder of the first position alone, a token changes if it leaves that place.
    with torch.no_grad():
        position_table(model)[0] = 1.0 * torch.arange(32)
        embed = model.base_model.embeddings
        states, alone = embed(input_ids=rows), embed(input_ids=rows, position_ids=torch.ones_like(rows))
        first = embed(input_ids=rows, position_ids=torch.zeros_like(rows))
    largest = float((first - alone).abs().max() / states.square().mean().sqrt())
    assert 0 < equivariance(model.base_model, rows, 3)[0] <= largest * 1.001


@pytest.mark.slow
def test_positions_are_read_off_where_the_encoder_tells_them(tmp_path: Path) -> None:
    corpus = from_sentences("text", PLANTED_SENTENCES)
    plan = RunPlan([], PLANTED_SHAPE, Recipe(), 200, 0, {"accelerator": "cpu", "precision": 32})
    subject = CheckpointInputs.of(corpus, packed(PLANTED_SENTENCES, TOKENIZER, 16), plan, tmp_path / "cache")
    assert 100 < len(subject.corpus.sentences) <= 200
    assert {*subject.splits} == {"train", "validation", "test"}
    assert subject.trainer == {"accelerator": "cpu"}
    found = {}
    for arm in ("learned", "none"):
        model = build(arm, PLANTED_SHAPE, TOKENIZER, 0)
        with torch.no_grad():
            model.base_model.embeddings.LayerNorm.bias[5] = 40.0  # an outlier, which has nothing to do with positions
        save_checkpoint(tmp_path / arm / "step0", arm, model, TOKENIZER)
        found[arm] = measure(tmp_path / arm / "step0", subject, lambda message: None)
        assert [row["layer"] for row in found[arm]] == [0, 1]
        assert found[arm][0]["outlier_neuron"] == 5
        assert found[arm][0]["argmax_share"] == 1
    assert found["learned"][0]["position_accuracy"] > 0.9
    assert found["none"][0]["position_accuracy"] < 0.5
    assert found["none"][0]["token_accuracy"] == pytest.approx(found["none"][0]["position_accuracy"], abs=0.15)
    assert not (tmp_path / "cache" / "none-step0").exists()


STEPS = [0, 1, 16, 64, 128, 256, 512, 1024]


def rows_of(slopes: list[float], at_end: float = 3.0) -> Table:
    """Return rows in which the farthest mean of layer 2 is a line in log2 of the steps, from step 64 on."""
    return Table(
        {
            "arm": "learned", "seed": seed, "step": step, "layer": layer,
            "max_mean_sd": (
                at_end + slope * (math.log2(step) - 10) if layer == 2 and step >= 64 else 1.0 + 8 * (layer == 0)
            ),
        }
        for seed, slope in enumerate(slopes) for step in STEPS for layer in (0, 1, 2)
    )  # fmt: skip


def test_a_planted_line_is_found_and_extrapolated() -> None:
    found = growth_of(rows_of([0.4, 0.4]))
    assert found is not None
    assert found["first_step"] == 64
    assert found["slope"] == pytest.approx(0.4)
    assert found["now"] == pytest.approx(3.0)
    assert found["steps"] == pytest.approx(1024 * 2 ** (2.0 / 0.4))
    assert found["steps_low"] == pytest.approx(found["steps"])


def test_the_interval_is_students_over_seeds() -> None:
    slopes = [0.3, 0.4, 0.5]
    found = growth_of(rows_of(slopes))
    assert found is not None
    reach = 4.302652729911275 * np.std(slopes, ddof=1) / math.sqrt(3)  # Student's t at .975 with 2 degrees of freedom
    assert found["slope_low"] == pytest.approx(0.4 - reach)
    assert found["steps_low"] == pytest.approx(1024 * 2 ** (2.0 / (0.4 + reach)))
    assert found["steps_high"] == pytest.approx(1024 * 2 ** (2.0 / (0.4 - reach)))


def test_without_growth_there_is_no_step() -> None:
    falling, unsure = growth_of(rows_of([-0.1, -0.2])), growth_of(rows_of([0.9, 0.1]))
    assert falling is not None
    assert unsure is not None
    assert falling["steps"] is None
    assert unsure["steps"] is not None
    assert unsure["steps_high"] is None


def test_one_seed_has_no_interval_and_one_checkpoint_no_growth() -> None:
    found = growth_of(rows_of([0.4]))
    assert found is not None
    assert found["steps"] is not None
    assert found["slope_low"] is None
    assert growth_of(rows_of([0.4]).where(step=(0, 1024))) is None
    assert growth_of(rows_of([0.4]), "none") is None


def test_an_outlier_that_is_there_needs_no_more_steps() -> None:
    found = growth_of(rows_of([0.4], at_end=6.0))
    assert found is not None
    assert found["steps"] == 1024
