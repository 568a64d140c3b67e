"""Neurons exchanged between texts with masks, beside plain forward passes of the unmodified model with its head."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import masked_lm
from probing.cache.source import ActivationSource
from probing.corpus import load_corpus
from probing.corpus.splits import Couple
from probing.disabling.subject import Subject
from probing.errors import UserError
from probing.readouts.names import WORDS
from probing.studies.geometry.neurons.interchange import carried, survey_words
from probing.studies.geometry.neurons.sets import Asked, Found

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]
NOUNS = ("probe", "sentence", "neuron", "token", "model")
ANSWERS = ("reads", "hides")
COUPLES = [
    Couple(f"The {one} of a {of} [MASK] the model.", f"The {other} of a {of} [MASK] the model.", ANSWERS)
    for one, other, of in product(NOUNS, NOUNS, NOUNS)
    if one < other
]
NEURONS = [3, 0, 11, 7, 5, 9, 1]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return masked_lm(tmp_path_factory.mktemp("words") / "bert", "bert", sentences)


@pytest.fixture(scope="module")
def subject(checkpoint: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    cache = tmp_path_factory.mktemp("cache")
    source = ActivationSource.of(str(checkpoint), None, "all", {"accelerator": "cpu"}, cache=cache)
    corpus = load_corpus(str(corpus_file))
    splits: Any = [["train"] * len(corpus.sentences)]
    return Subject(source, [corpus], splits, 0, None, {WORDS: None})


def surveyed(
    subject: Subject, couples: list[Couple], neurons: list[int], at: Any = "everywhere", said: list[str] | None = None,
    n_tokens: int = 100_000,
) -> Found:  # fmt: skip
    asked = Asked({1: neurons}, ["interchange"], at, n_tokens, 3, 0, 0)
    say = (lambda line: None) if said is None else said.append
    return survey_words(subject, subject.source.read(subject.corpora)[0], couples, "--pairs p", asked, say)


def naive(checkpoint: Path, couples: list[Couple], neurons: list[int], words_alone: bool) -> tuple[float, float]:
    """Return the share of the difference in log odds that is carried over, and the mean difference.

    Each text is read by itself by the model with its head, whose first block's output a hook replaces.
    """
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModelForMaskedLM.from_pretrained(checkpoint)
    model.eval()
    first, second = (tokenizer.convert_tokens_to_ids(word) for word in ANSWERS)
    moved = total = 0.0
    for couple in couples:
        encoded = [tokenizer(text, return_tensors="pt") for text in (couple.first, couple.second)]
        states = [model(**one, output_hidden_states=True).hidden_states[1] for one in encoded]
        mask = encoded[0]["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        where = [i for i, word in enumerate(encoded[0].word_ids()) if word is not None or not words_alone]
        if words_alone:
            where.append(mask)  # the mask stands for a word

        def odds(one: Any, mask: int = mask) -> float:
            logits = model(**one).logits[0, mask].double()
            return float(logits[first] - logits[second])

        intact = [odds(one) for one in encoded]
        for base, other in ((0, 1), (1, 0)):

            def replace(module: Any, inputs: Any, output: Any, other: int = other, where: Any = where) -> Any:
                hidden = (output[0] if isinstance(output, tuple) else output).clone()
                for i in where:
                    hidden[0, i, neurons] = states[other][0, i, neurons]  # noqa: B023  used at once
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            handle = model.bert.encoder.layer[0].register_forward_hook(replace)
            after = odds(encoded[base])
            handle.remove()
            moved += (after - intact[base]) * np.sign(intact[other] - intact[base])
            total += abs(intact[other] - intact[base])
    return moved / total, total / (2 * len(couples))


@pytest.mark.parametrize("at", ["everywhere", "words"])
def test_it_is_what_hooks_on_the_model_and_its_head_give(at: str, subject: Subject, checkpoint: Path) -> None:
    found = surveyed(subject, COUPLES, NEURONS, at)
    with torch.no_grad():
        share, difference = naive(checkpoint, COUPLES, NEURONS, words_alone=at == "words")
        most, _ = naive(checkpoint, COUPLES, list(range(16)), at == "words")
    (row,) = [row for row in found.interventions if row["k"] == len(NEURONS)]
    assert 0.02 < abs(share) < 0.98
    assert (row["readout"], row["layer"], row["intact"]) == (WORDS, subject.source.layers[-1], 0.0)
    assert row["value"] == row["effect"] == pytest.approx(share, abs=1e-4)
    assert row["all_neurons"] == pytest.approx(most, abs=1e-4)
    assert row["n"] == found.n_pairs == len(COUPLES)
    assert row["low"] < row["effect"] < row["high"]
    assert row["difference"] == pytest.approx(difference, rel=1e-4)


def test_with_all_neurons_everywhere_the_odds_are_those_of_the_other_text(subject: Subject) -> None:
    d_model = int(subject.source.config.hidden_size)
    (row,) = surveyed(subject, COUPLES, list(range(d_model))).interventions
    assert row["value"] == pytest.approx(1, abs=1e-5)
    assert row["all_neurons"] == row["value"]
    assert "random" not in row
    some = surveyed(subject, COUPLES, NEURONS).interventions
    assert {row["all_neurons"] for row in some} == {row["value"]}


def test_neither_the_order_of_texts_nor_that_of_words_changes_what_is_carried(subject: Subject) -> None:
    found = surveyed(subject, COUPLES, NEURONS)
    texts = [Couple(one.second, one.first, one.words) for one in COUPLES]
    words = [Couple(one.first, one.second, ANSWERS[::-1]) for one in COUPLES]
    for other in (surveyed(subject, texts, NEURONS), surveyed(subject, words, NEURONS)):
        for row, own in zip(other.interventions, found.interventions, strict=True):
            assert row["value"] == pytest.approx(own["value"], abs=1e-5)
            assert other.interventions[0]["n_as_given"] == len(COUPLES) - own["n_as_given"]


def test_pairs_that_cannot_be_read_token_by_token_are_left_out_and_counted(subject: Subject) -> None:
    others = [
        Couple("The probe [MASK] the model.", "The probe of a token [MASK] the model.", ANSWERS),
        Couple("The probe [MASK] the model.", "The [MASK] probe the model.", ANSWERS),
        Couple("The probe [MASK] it.", "The token [MASK] it.", ("reads", "crocodiles")),
    ]
    said: list[str] = []
    found = surveyed(subject, [*COUPLES, *others], NEURONS, said=said)
    assert (found.n_pairs, found.n_left_out) == (len(COUPLES), 3)
    n = len(COUPLES) + 3
    assert said == [
        f"1 of {n} pairs are left out: their texts differ in number of tokens",
        f"1 of {n} pairs are left out: the mask is not the same token, or the words not the same pieces, in both texts",
        f"1 of {n} pairs are left out: a word is not a single piece of the vocabulary",
    ]
    assert found.interventions == surveyed(subject, COUPLES, NEURONS).interventions
    few = surveyed(subject, COUPLES, NEURONS, n_tokens=100)
    assert few.text.tokens.n_tokens <= 100
    assert 1 <= few.n_pairs < len(COUPLES)
    with pytest.raises(
        UserError, match=r"`--pairs p` has no pair between whose texts .*\(their texts differ in number"
    ):
        surveyed(subject, others, NEURONS)


def test_what_moves_towards_the_other_text_is_carried_whichever_is_higher() -> None:
    intact = np.array([1.0, 3.0, 4.0, 0.0])
    half, beyond, away = (
        np.array([[2.0, 2.0, 2.0, 2.0]]), np.array([[3.0, 1.0, -4.0, 8.0]]), np.array([[0.0, 4.0, 5.0, -1.0]])
    )  # fmt: skip
    np.testing.assert_array_equal(carried(intact, half), [[2.0, 4.0]])
    np.testing.assert_array_equal(carried(intact, beyond), [[4.0, 16.0]])
    np.testing.assert_array_equal(carried(intact, away), [[-2.0, -2.0]])
    np.testing.assert_array_equal(carried(intact, intact[None]), [[0.0, 0.0]])


def test_a_head_that_says_the_same_everywhere_has_nothing_to_carry(
    tmp_path: Path, sentences: list[str], corpus_file: Path
) -> None:
    from transformers import AutoModelForMaskedLM

    folder = masked_lm(tmp_path / "constant", "bert", sentences)
    model = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        model.cls.predictions.transform.dense.weight.zero_()
    model.save_pretrained(folder)
    source = ActivationSource.of(str(folder), None, "all", {"accelerator": "cpu"}, cache=tmp_path / "cache")
    corpus = load_corpus(str(corpus_file))
    constant = Subject(source, [corpus], [["train"] * len(corpus.sentences)], 0, None, {WORDS: None})
    with pytest.raises(UserError, match="the same in both texts of every pair, so that nothing can be carried over"):
        surveyed(constant, COUPLES, NEURONS)
