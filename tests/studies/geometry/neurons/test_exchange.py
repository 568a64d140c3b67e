"""Passes with neurons exchanged: what is exchanged with itself, which sets are drawn, and what is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import masked_lm
from probing.cache.source import ActivationSource
from probing.cache.tokens import Tokens
from probing.corpus import load_corpus
from probing.disabling.subject import Subject
from probing.readouts.model_output import MaskedHead, MaskedText, Prompt, WordOdds, prompt_of, tokens_of_prompts
from probing.readouts.names import WORDS
from probing.studies.geometry.neurons.interchange import Exchanged, by_pair, draw_pairs, exchanged, partner_of
from probing.studies.geometry.neurons.sets import Asked

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]
TEXTS = ("The probe [MASK] the model.", "The token [MASK] the model.", "A neuron of the probe [MASK] one token.")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory, sentences: list[str], corpus_file: Path) -> Subject:
    place = tmp_path_factory.mktemp("exchange")
    folder = masked_lm(place / "bert", "bert", sentences)
    source = ActivationSource.of(str(folder), None, "all", {"accelerator": "cpu"}, cache=place / "cache")
    corpus = load_corpus(str(corpus_file))
    return Subject(source, [corpus], [["train"] * len(corpus.sentences)], 0, None, {WORDS: None})


def passes(subject: Subject, texts: list[str], at: Any, n_draws: int = 2) -> Exchanged:
    """Return what passes over texts in pairs give."""
    readers = subject.readers
    prompts = [one for text in texts if isinstance(one := _prompt(subject, text), Prompt)]
    assert len(prompts) == len(texts)
    encoder, model = subject.model.encoder, subject.masked_lm
    assert model is not None
    text = MaskedText(tokens_of_prompts(prompts), encoder, subject.model.anatomy, subject.pad_token_id, 512)
    masks, words = np.array([one.mask for one in prompts]), np.array([one.answers for one in prompts])
    head = MaskedHead(model, encoder, torch.tensor([prompts[0].input_ids], device=readers.device))
    asked = Asked({1: [3, 0, 5]}, ["interchange"], at, 1000, n_draws, 0, 0)
    (store,) = subject.source.read(subject.corpora)
    ((layer, found),) = exchanged(subject, store, text, [WordOdds(text, masks, words, head)], asked, {})
    assert layer == 1
    return found


def _prompt(subject: Subject, text: str) -> Prompt | str:
    return prompt_of(subject.tokenizer, text, ("reads", "hides"), 100)


@pytest.mark.parametrize("at", ["words", "everywhere"])
def test_exchange_with_the_same_sentence_changes_nothing(subject: Subject, at: str) -> None:
    found = passes(subject, [text for text in TEXTS for _ in range(2)], at)
    assert len({float(value) for value in found.intact[0]}) == len(TEXTS)
    for sums in (found.whole, *found.chosen.values(), *found.drawn.values()):
        assert torch.equal(torch.from_numpy(sums), torch.from_numpy(found.intact))


def test_the_sets_are_those_of_the_dose_curve_and_those_drawn_beside_each(subject: Subject) -> None:
    found = passes(subject, [*TEXTS[:2]], "words")
    assert [one.neurons for one in found.chosen] == [(), (3,), (3, 0), (3, 0, 5)]
    assert sorted((one.k, one.source, one.draw) for one in found.drawn) == sorted(
        (k, source, draw) for k in (1, 2, 3) for source in ("random", "matched") for draw in (1, 2)
    )
    assert not np.allclose(found.whole, found.intact)
    # Special tokens differ only in what they have seen, and their exchange too makes a difference, everywhere alone.
    everywhere = passes(subject, [*TEXTS[:2]], "everywhere")
    np.testing.assert_allclose(everywhere.whole, found.intact[:, ::-1], atol=1e-5)
    assert not np.allclose(everywhere.whole, found.whole, atol=1e-5)


def test_each_token_has_its_counterpart_at_the_same_place() -> None:
    lengths = np.array([3, 3, 1, 1], dtype=np.int32)
    tokens = Tokens(lengths, np.arange(8, dtype=np.int32), np.zeros(8, dtype=np.int16))
    assert partner_of(tokens).tolist() == [3, 4, 5, 0, 1, 2, 7, 6]
    assert by_pair(np.array([[1, 2, 3, 4]])).tolist() == [[3, 7]]


def test_pairs_are_drawn_until_the_next_would_exceed_the_number_of_tokens() -> None:
    lengths = np.array([4, 6, 8, 10])
    assert draw_pairs(lengths, 28, 0).tolist() == [0, 1, 2, 3]
    some = draw_pairs(lengths, 15, 0)
    assert lengths[some].sum() <= 15
    assert len(draw_pairs(lengths, 1, 0)) == 1
    assert {tuple(draw_pairs(lengths, 12, seed)) for seed in range(20)} > {tuple(draw_pairs(lengths, 12, 0))}
