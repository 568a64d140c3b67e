"""Neurons exchanged between the sentences of pairs, beside plain forward passes of the unmodified model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.cache.source import ActivationSource
from probing.corpus import load_corpus
from probing.disabling.probed_task import Frozen
from probing.disabling.subject import Subject
from probing.errors import UserError
from probing.readouts.forward import Text
from probing.studies.geometry.neurons.interchange import Couples, check_later, coupled, survey_couples
from probing.studies.geometry.neurons.sets import Asked, Found
from probing.tasks import load_task

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]
LAST, CLASSES = 2, 4


@pytest.fixture(scope="module")
def source(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> ActivationSource:
    cache = tmp_path_factory.mktemp("cache")
    return ActivationSource.of(str(checkpoints["bert"]), None, "all", {"accelerator": "cpu"}, cache=cache)


@pytest.fixture(scope="module")
def couples(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Couples:
    """Pairs of sentences of which the second has its words in another order, and a pair that differs in length."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.txt"
    lines = []
    for sentence in [one for one in sentences if len(one.split()) > 5][:25]:
        first, *others, last = sentence.split()
        lines.append(f"{sentence}\t{' '.join([first, *reversed(others), last])}\n")
    path.write_text("".join([*lines, f"{sentences[60]}\t{sentences[60]} and more words\n"]), encoding="utf-8")
    return Couples.read(str(path))


@pytest.fixture(scope="module")
def frozen(source: ActivationSource) -> Frozen:
    width = source.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    weight = {layer: torch.randn(CLASSES, width, generator=generator) for layer in range(1, LAST + 1)}
    return Frozen(weight, np.arange(CLASSES))


@pytest.fixture(scope="module")
def subject(source: ActivationSource, frozen: Frozen, corpus_file: Path) -> Subject:
    corpus = load_corpus(str(corpus_file))
    splits: Any = [["train"] * len(corpus.sentences)]
    return Subject(source, [corpus], splits, 0, frozen, {"task": None}, load_task("label", {}))


def surveyed(subject: Subject, couples: Couples, frozen: Frozen, neurons: list[int], at: Any = "everywhere") -> Found:
    asked = Asked({1: neurons}, ["interchange"], at, 100_000, 3, 0, 0, "label")
    return survey_couples(subject, couples, frozen, asked, lambda line: None)


def naive(
    checkpoint: Path, couples: Couples, weight: torch.Tensor, neurons: list[int], words_alone: bool
) -> tuple[int, int, int]:
    """Return how many examples are read differently, how many then as the counterpart, and how many as before.

    Each sentence is read by itself, with the output of the first block replaced by a hook.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModel.from_pretrained(checkpoint).eval()
    n = carried = kept = 0
    for pair in couples.couples:
        texts = [couples.corpus.sentences[i] for i in pair]
        encoded = [tokenizer(text, return_tensors="pt") for text in texts]
        if encoded[0]["input_ids"].shape != encoded[1]["input_ids"].shape:
            continue
        with torch.no_grad():
            states = [model(**one, output_hidden_states=True).hidden_states for one in encoded]
        for base, other in ((0, 1), (1, 0)):
            word_ids = encoded[base].word_ids()
            where = [i for i, word in enumerate(word_ids) if word is not None or not words_alone]

            def replace(module: Any, inputs: Any, output: Any, other: int = other, where: Any = where) -> Any:
                hidden = (output[0] if isinstance(output, tuple) else output).clone()
                for i in where:
                    hidden[0, i, neurons] = states[other][1][0, i, neurons]  # noqa: B023  used at once
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            handle = model.encoder.layer[0].register_forward_hook(replace)
            with torch.no_grad():
                changed = model(**encoded[base], output_hidden_states=True).hidden_states[LAST][0]
            handle.remove()
            before, there, after = (
                (one @ weight.T).argmax(1) for one in (states[base][LAST][0], states[other][LAST][0], changed)
            )
            firsts = [i for i, word in enumerate(word_ids) if word is not None and word_ids[i - 1] != word]
            in_other = {i for i, word in enumerate(encoded[other].word_ids()) if word is not None}
            others = {i for i in in_other if encoded[other].word_ids()[i - 1] != encoded[other].word_ids()[i]}
            for i in (i for i in firsts if i in others and before[i] != there[i]):
                n, carried, kept = n + 1, carried + int(after[i] == there[i]), kept + int(after[i] == before[i])
    return n, carried, kept


@pytest.mark.parametrize("at", ["everywhere", "words"])
def test_it_is_what_hooks_on_the_model_give(
    at: str, subject: Subject, couples: Couples, frozen: Frozen, checkpoints: dict[str, Path]
) -> None:
    neurons = [3, 0, 11, 7, 5, 9, 1]
    found = surveyed(subject, couples, frozen, neurons, at)
    n, carried, kept = naive(checkpoints["bert"], couples, frozen.weight[LAST], neurons, words_alone=at == "words")
    assert n > 30
    assert 0 < carried < n
    rows = {row["readout"]: row for row in found.interventions if (row["k"], row["layer"]) == (7, LAST)}
    assert set(rows) == {"task", "task_interchanged"}
    assert rows["task_interchanged"]["value"] == pytest.approx(carried / n)
    assert rows["task"]["value"] == pytest.approx(kept / n)
    assert (rows["task"]["intact"], rows["task_interchanged"]["intact"]) == (1.0, 0.0)
    assert (found.n_pairs, found.n_left_out) == (25, 1)


def test_with_all_neurons_everywhere_the_model_reads_the_counterpart(
    subject: Subject, couples: Couples, frozen: Frozen, source: ActivationSource
) -> None:
    found = surveyed(subject, couples, frozen, list(range(source.config.hidden_size)))
    assert {row["layer"] for row in found.interventions} == {LAST}
    for row in found.interventions:
        assert row["value"] == (1.0 if row["readout"] == "task_interchanged" else 0.0)
        assert "random" not in row


def test_each_sentence_of_a_pair_is_replaced_by_the_other_and_pairs_are_what_is_drawn_again(
    subject: Subject, couples: Couples, frozen: Frozen, source: ActivationSource
) -> None:
    (store,) = source.read([couples.corpus])
    text, n_left_out = coupled(store, couples, 100_000, 0)
    assert n_left_out == 1
    tokens = text.tokens
    assert (text.partner[text.partner] == np.arange(tokens.n_tokens)).all()
    assert (tokens.positions[text.partner] == tokens.positions).all()
    assert (tokens.sentences[text.partner] == tokens.sentences ^ 1).all()
    whole = Text(store, np.arange(store.tokens.n_sentences))
    assert torch.equal(text.states(1), whole.states(1)[torch.from_numpy(text.of_store)])
    few, _ = coupled(store, couples, 60, 0)
    assert 1 <= len(few.couples) < 6
    assert few.tokens.n_tokens <= 60
    row = next(row for row in surveyed(subject, couples, frozen, [3, 5]).interventions if row["k"] == 2)
    assert row["n"] <= 25
    assert row["low"] <= row["effect"] <= row["high"]


def test_pairs_that_can_say_nothing_are_refused(
    subject: Subject, frozen: Frozen, source: ActivationSource, sentences: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(f"{sentences[0]}\t{sentences[0]} and so on\n", encoding="utf-8")
    with pytest.raises(UserError, match="no pair has as many tokens in one sentence as in the other"):
        surveyed(subject, Couples.read(str(path)), frozen, [1])
    constant = Frozen({layer: torch.zeros_like(one) for layer, one in frozen.weight.items()}, frozen.classes)
    words = sentences[0].split()
    path.write_text(f"{sentences[0]}\t{' '.join([words[1], words[0], *words[2:]])}\n", encoding="utf-8")
    with pytest.raises(UserError, match="read both sentences of every pair alike"):
        surveyed(subject, Couples.read(str(path)), constant, [1])
    path.write_text(f"{sentences[0]}\t{sentences[0]}\n", encoding="utf-8")
    with pytest.raises(UserError, match="stands on both sides of a tab"):
        Couples.read(str(path))
    path.write_text(" \n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no pair"):
        Couples.read(str(path))
    with pytest.raises(UserError, match="has no probe of a layer above 2, whose neurons are exchanged"):
        check_later(frozen, [1, 2], "--from_run r")
