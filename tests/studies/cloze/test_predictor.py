"""Probabilities that a head is planted with come back, and losses are those of a loop over sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from families import masked_lm
from probing.cache.tokens import tokenize
from probing.models import resolve_model
from probing.readouts.model_output import choose_masked
from probing.statistics.intervals import binomial_interval
from probing.studies.cloze.predictor import Masked, Pair, Predictor, group_rows, loss_row, shuffled

pytestmark = pytest.mark.numeric

CPU = {"accelerator": "cpu"}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Predictor:
    folder = masked_lm(tmp_path_factory.mktemp("masked") / "bert", "bert", sentences)
    return Predictor.of(resolve_model(str(folder)), CPU)


@pytest.fixture
def planted(
    tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Predictor, np.ndarray[Any, Any]]:
    """A model whose logits are the bias of its head, whatever it reads."""
    made = Predictor.of(resolve_model(str(masked_lm(tmp_path / "bert", "bert", sentences))), CPU)
    bias = np.random.default_rng(0).normal(scale=3, size=len(made.tokenizer)).astype(np.float32)
    with torch.no_grad():
        norm = made.model.cls.predictions.transform.LayerNorm
        norm.weight.zero_()
        norm.bias.zero_()
        made.model.cls.predictions.decoder.bias.copy_(torch.from_numpy(bias))
    return made, bias


def some_pairs(predictor: Predictor) -> list[Pair]:
    words = [word for word in ("layer", "token", "model", "probe", "neuron", "value") if _is_piece(predictor, word)]
    assert len(words) >= 4
    texts = ("The [MASK] reads a layer.", "A probe reads the hidden [MASK] of this model, slowly.", "[MASK] reads.")
    return [
        Pair(i, text, good, bad, f"group {i % 2}")
        for i, (text, good, bad) in enumerate((t, g, b) for t in texts for g in words for b in words if g != b)
    ]


def _is_piece(predictor: Predictor, word: str) -> bool:
    return len(predictor.tokenizer(word, add_special_tokens=False)["input_ids"]) == 1


def test_planted_probabilities_come_back(planted: tuple[Predictor, Any]) -> None:
    predictor, bias = planted
    pairs = some_pairs(predictor)
    found = predictor.ask(predictor.prompts(pairs, "cloze"), 64)
    nats = log_softmax(bias.astype(np.float64))
    ids = predictor.tokenizer.get_vocab()
    assert len(found["cloze"]) == len(pairs)
    for pair, row in zip(pairs, found["cloze"], strict=True):
        assert row["good_log_probability"] == pytest.approx(nats[ids[pair.good]], abs=1e-12)
        assert row["bad_log_probability"] == pytest.approx(nats[ids[pair.bad]], abs=1e-12)
    every, first, _ = found["groups"]
    assert (every["group"], every["n"], every["n_right"]) == ("all", len(pairs), len(pairs) // 2)
    assert every["difference"] == pytest.approx(0, abs=1e-12)  # each pair is there both ways round
    own = [nats[ids[pair.good]] - nats[ids[pair.bad]] for pair in pairs if pair.group == "group 0"]
    assert (first["group"], first["n_right"]) == ("group 0", sum(one > 0 for one in own))
    assert first["difference"] == pytest.approx(np.mean(own))
    assert (first["low"], first["high"]) == binomial_interval(first["n_right"], first["n"])


def test_a_word_is_scored_in_its_text_in_any_batch(predictor: Predictor) -> None:
    pairs = some_pairs(predictor)
    prompts = predictor.prompts(pairs, "cloze")
    found = predictor.ask(prompts, 1024)["cloze"]
    for pair, row, mask, words in zip(pairs, found, prompts.masks, prompts.words, strict=True):
        ids = predictor.tokenizer(pair.text.replace("[MASK]", predictor.tokenizer.mask_token), return_tensors="pt")
        with torch.inference_mode():
            logits = predictor.model(**ids).logits[0, mask].double().numpy()
        expected = log_softmax(logits)[words]
        assert (row["good_log_probability"], row["bad_log_probability"]) == pytest.approx(tuple(expected), abs=1e-5)
    assert len({round(row["good_log_probability"], 4) for row in found}) > 10


def test_a_probability_is_clearly_higher_by_more_than_a_hundredth() -> None:
    def row(good: float, bad: float) -> dict[str, Any]:
        return {"group": "x", "good_log_probability": np.log(good), "bad_log_probability": np.log(bad),
                "difference": np.log(good) - np.log(bad)}  # fmt: skip

    (every, _) = group_rows([row(0.5, 0.4), row(0.005, 0.001), row(0.1, 0.3), row(0.2, 0.2)])
    assert (every["n_right"], every["share"], every["clear_share"]) == (2, 0.5, 0.25)


def text_of(predictor: Predictor, sentences: list[str]) -> Masked:
    tokens = tokenize(predictor.tokenizer, sentences, 128)
    return Masked(tokens, choose_masked(tokens, 0))


def test_losses_are_those_of_a_loop_over_sentences(predictor: Predictor, sentences: list[str]) -> None:
    text = shuffled(text_of(predictor, sentences[:15]), 2, 0)
    found, tokens = predictor.losses(text, 128), text.tokens
    for i in range(tokens.n_sentences):
        rows = tokens.of_sentences(i, 1)
        ids = torch.from_numpy(tokens.input_ids[rows].astype(np.int64))
        hidden = torch.from_numpy(text.masked[rows])
        with torch.inference_mode():
            given = torch.where(hidden, predictor.tokenizer.mask_token_id, ids)[None]
            logits = predictor.model(input_ids=given).logits[0].double().numpy()
        nats = log_softmax(logits, axis=1)
        assert found[i] == pytest.approx(-sum(nats[j, ids[j]] for j in np.flatnonzero(text.masked[rows])), rel=1e-5)


def test_order_costs_nothing_where_the_model_reads_nothing(
    planted: tuple[Predictor, Any], predictor: Predictor, sentences: list[str]
) -> None:
    text = text_of(predictor, sentences[:40])
    n = np.bincount(text.tokens.sentences[text.masked])
    moved = shuffled(text, 1, 0)
    assert np.abs(predictor.losses(moved, 512) - predictor.losses(text, 512)).mean() > 0.05
    blind = loss_row("words_shuffled", planted[0].losses(moved, 512), n, "intact", planted[0].losses(text, 512))
    assert blind["difference"] == pytest.approx(0, abs=1e-6)
    nats = -log_softmax(planted[1].astype(np.float64))[text.tokens.input_ids[text.masked]]
    assert blind["loss"] == pytest.approx(nats.mean(), rel=1e-6)


def test_a_row_has_the_means_of_the_sentences_that_count() -> None:
    sums, other, n = np.array([4.0, 9.0, 100.0]), np.array([2.0, 6.0, 0.0]), np.array([1, 3, 0])
    row = loss_row("name_replaced", sums, n, "intact", other)
    assert (row["loss"], row["baseline"], row["difference"]) == (13 / 4, 8 / 4, 5 / 4)
    assert (row["n_sentences"], row["n"]) == (2, 4)
    assert np.isnan(row["difference_low"])  # two sentences are too few
    assert "difference" not in loss_row("intact", sums, n)
