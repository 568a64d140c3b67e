"""Neurons exchanged between sentences and texts with masks, beside passes of the unmodified model; what is moved to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from families import masked_lm
from probing.activations import Request, activations
from probing.activations.source import ActivationSource
from probing.errors import UserError
from probing.interventions import WORDS
from probing.interventions.forward import ReadText, draw_text, draw_up_to
from probing.interventions.model_output import MaskedHead, MaskedText, Prompt, WordOdds, prompt_of, tokens_of_prompts
from probing.interventions.neurons import NeuronSet
from probing.interventions.probed_task import Frozen, ProbedTask
from probing.interventions.subject import InterventionSetup
from probing.models import resolve_model
from probing.studies.ablate.interchange import (
    Couples,
    by_pair,
    carried,
    check_later,
    coupled,
    exchanged,
    partner_of,
    survey_couples,
    survey_words,
)
from probing.studies.ablate.neurons import NeuronConfig, NeuronTables, ProbedClasses
from probing.text import Corpus, Couple, from_words, load_corpus
from probing.text.tasks import Labels, Task, load_task
from probing.text.tokens import Tokens

pytestmark = pytest.mark.numeric

TEXTS = ("The probe [MASK] the model.", "The token [MASK] the model.", "A neuron of the probe [MASK] one token.")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory, sentences: list[str], corpus_file: Path) -> InterventionSetup:
    place = tmp_path_factory.mktemp("exchange")
    folder = masked_lm(place / "bert", "bert", sentences)
    source = ActivationSource.of(str(folder), None, "all", {"accelerator": "cpu"}, cache=place / "cache")
    corpus = load_corpus(str(corpus_file))
    return InterventionSetup(source, [corpus], [["train"] * len(corpus.sentences)], 0, None, {WORDS: None})


def passes(subject: InterventionSetup, texts: list[str], at: Any, n_draws: int = 2) -> dict[NeuronSet, Any]:
    """Return what passes over texts in pairs give."""
    readers = subject.readers
    prompts = [one for text in texts if isinstance(one := _prompt(subject, text), Prompt)]
    assert len(prompts) == len(texts)
    encoder, model = subject.model.encoder, subject.masked_lm
    assert model is not None
    text = MaskedText(tokens_of_prompts(prompts), encoder, subject.model.anatomy, subject.pad_token_id, 512)
    masks, words = np.array([one.mask for one in prompts]), np.array([one.answers for one in prompts])
    head = MaskedHead(model, encoder, torch.tensor([prompts[0].input_ids], device=readers.device))
    asked = NeuronConfig({1: [3, 0, 5]}, ["interchange"], at, 1000, n_draws, 0, 0)
    (store,) = subject.source.read(subject.corpora)
    return exchanged(subject, store, text, [WordOdds(text, masks, words, head)], asked, {})


def chosen(found: dict[NeuronSet, Any], k: int) -> Any:
    """Return what the passes give with so many neurons exchanged that were not drawn."""
    (sums,) = (sums for one, sums in found.items() if one.k == k and one.source == "chosen")
    return sums


def _prompt(subject: InterventionSetup, text: str) -> Prompt | str:
    return prompt_of(subject.tokenizer, text, ("reads", "hides"), 100)


@pytest.mark.parametrize("at", ["words", "everywhere"])
def test_exchange_with_the_same_sentence_changes_nothing(subject: InterventionSetup, at: str) -> None:
    found = passes(subject, [text for text in TEXTS for _ in range(2)], at)
    assert len({float(value) for value in chosen(found, 0)[0]}) == len(TEXTS)
    for sums in found.values():
        assert np.array_equal(sums, chosen(found, 0))


def test_the_sets_are_those_of_the_dose_curve_and_those_drawn_beside_each(subject: InterventionSetup) -> None:
    found = passes(subject, [*TEXTS[:2]], "words")
    *few, whole = (one for one in found if one.source == "chosen")
    assert [one.neurons for one in few] == [(), (3,), (3, 0), (3, 0, 5)]
    assert sorted((one.k, one.source, one.draw) for one in found if one.source != "chosen") == sorted(
        (k, source, draw) for k in (1, 2, 3) for source in ("random", "matched") for draw in (1, 2)
    )
    assert not np.allclose(found[whole], chosen(found, 0))
    # Special tokens differ only in what they have seen, and their exchange too makes a difference, everywhere alone.
    everywhere = passes(subject, [*TEXTS[:2]], "everywhere")
    np.testing.assert_allclose(everywhere[whole], chosen(found, 0)[:, ::-1], atol=1e-5)
    assert not np.allclose(everywhere[whole], found[whole], atol=1e-5)


def test_each_token_has_its_counterpart_at_the_same_place() -> None:
    lengths = np.array([3, 3, 1, 1], dtype=np.int32)
    tokens = Tokens(lengths, np.arange(8, dtype=np.int32), np.zeros(8, dtype=np.int16))
    assert partner_of(tokens).tolist() == [3, 4, 5, 0, 1, 2, 7, 6]
    assert by_pair(np.array([[1, 2, 3, 4]])).tolist() == [[3, 7]]


def test_pairs_are_drawn_until_the_next_would_exceed_the_number_of_tokens() -> None:
    lengths = np.array([4, 6, 8, 10])
    assert draw_up_to(lengths, 28, 0).tolist() == [0, 1, 2, 3]
    some = draw_up_to(lengths, 15, 0)
    assert lengths[some].sum() <= 15
    assert len(draw_up_to(lengths, 1, 0)) == 1
    assert {tuple(draw_up_to(lengths, 12, seed)) for seed in range(20)} > {tuple(draw_up_to(lengths, 12, 0))}


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
def paired_subject(source: ActivationSource, frozen: Frozen, corpus_file: Path) -> InterventionSetup:
    corpus = load_corpus(str(corpus_file))
    splits: Any = [["train"] * len(corpus.sentences)]
    return InterventionSetup(source, [corpus], splits, 0, frozen, {"task": None}, load_task("label", {}))


def surveyed(
    subject: InterventionSetup, couples: Couples, frozen: Frozen, neurons: list[int], at: Any = "everywhere"
) -> NeuronTables:
    asked = NeuronConfig({1: neurons}, ["interchange"], at, 100_000, 3, 0, 0, "label")
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


@pytest.mark.slow
@pytest.mark.parametrize("at", ["everywhere", "words"])
def test_it_is_what_hooks_on_the_model_give(
    at: str, paired_subject: InterventionSetup, couples: Couples, frozen: Frozen, checkpoints: dict[str, Path]
) -> None:
    neurons = [3, 0, 11, 7, 5, 9, 1]
    found = surveyed(paired_subject, couples, frozen, neurons, at)
    n, carried, kept = naive(checkpoints["bert"], couples, frozen.weight[LAST], neurons, words_alone=at == "words")
    assert n > 30
    assert 0 < carried < n
    rows = {row["readout"]: row for row in found.interventions if (row["k"], row["layer"]) == (7, LAST)}
    assert set(rows) == {"task", "task_interchanged"}
    assert rows["task_interchanged"]["value"] == pytest.approx(carried / n)
    assert rows["task"]["value"] == pytest.approx(kept / n)
    assert (rows["task"]["intact"], rows["task_interchanged"]["intact"]) == (1.0, 0.0)
    assert (found.n_pairs, found.n_excluded) == (25, 1)


def test_with_all_neurons_everywhere_the_model_reads_the_counterpart(
    paired_subject: InterventionSetup, couples: Couples, frozen: Frozen, source: ActivationSource
) -> None:
    found = surveyed(paired_subject, couples, frozen, list(range(source.config.hidden_size)))
    assert {row["layer"] for row in found.interventions} == {LAST}
    for row in found.interventions:
        assert row["value"] == (1.0 if row["readout"] == "task_interchanged" else 0.0)
        assert "random" not in row


def test_each_sentence_of_a_pair_is_replaced_by_the_other_and_pairs_are_what_is_drawn_again(
    paired_subject: InterventionSetup, couples: Couples, frozen: Frozen, source: ActivationSource
) -> None:
    (store,) = source.read([couples.corpus])
    text, n_left_out = coupled(store, couples, 100_000, 0)
    assert n_left_out == 1
    tokens = text.tokens
    partner = partner_of(tokens)
    assert (partner[partner] == np.arange(tokens.n_tokens)).all()
    assert (tokens.positions[partner] == tokens.positions).all()
    assert (tokens.sentences[partner] == tokens.sentences ^ 1).all()
    whole = ReadText(store, np.arange(store.tokens.n_sentences))
    assert torch.equal(text.states(1), whole.states(1)[torch.from_numpy(text.of_corpus)])
    few, _ = coupled(store, couples, 60, 0)
    assert 1 <= few.tokens.n_sentences // 2 < 6
    assert few.tokens.n_tokens <= 60
    row = next(row for row in surveyed(paired_subject, couples, frozen, [3, 5]).interventions if row["k"] == 2)
    assert row["n"] <= 25
    assert row["low"] <= row["effect"] <= row["high"]


def test_pairs_that_can_say_nothing_are_refused(
    paired_subject: InterventionSetup, frozen: Frozen, source: ActivationSource, sentences: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(f"{sentences[0]}\t{sentences[0]} and so on\n", encoding="utf-8")
    with pytest.raises(UserError, match="no pair has as many tokens in one sentence as in the other"):
        surveyed(paired_subject, Couples.read(str(path)), frozen, [1])
    constant = Frozen({layer: torch.zeros_like(one) for layer, one in frozen.weight.items()}, frozen.classes)
    words = sentences[0].split()
    path.write_text(f"{sentences[0]}\t{' '.join([words[1], words[0], *words[2:]])}\n", encoding="utf-8")
    with pytest.raises(UserError, match="read both sentences of every pair alike"):
        surveyed(paired_subject, Couples.read(str(path)), constant, [1])
    path.write_text(f"{sentences[0]}\t{sentences[0]}\n", encoding="utf-8")
    with pytest.raises(UserError, match="stands on both sides of a tab"):
        Couples.read(str(path))
    path.write_text(" \n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no pair"):
        Couples.read(str(path))
    with pytest.raises(UserError, match="has no probe of a layer above 2, whose neurons are exchanged"):
        check_later(frozen, [1, 2], "--run r")


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
def masked_subject(checkpoint: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> InterventionSetup:
    cache = tmp_path_factory.mktemp("cache")
    source = ActivationSource.of(str(checkpoint), None, "all", {"accelerator": "cpu"}, cache=cache)
    corpus = load_corpus(str(corpus_file))
    splits: Any = [["train"] * len(corpus.sentences)]
    return InterventionSetup(source, [corpus], splits, 0, None, {WORDS: None})


def masked_surveyed(
    subject: InterventionSetup, couples: list[Couple], neurons: list[int], at: Any = "everywhere",
    said: list[str] | None = None, n_tokens: int = 100_000,
) -> NeuronTables:  # fmt: skip
    asked = NeuronConfig({1: neurons}, ["interchange"], at, n_tokens, 3, 0, 0)
    say = (lambda line: None) if said is None else said.append
    return survey_words(subject, subject.source.read(subject.corpora)[0], couples, "--pairs p", asked, say)


def masked_naive(checkpoint: Path, couples: list[Couple], neurons: list[int], words_alone: bool) -> tuple[float, float]:
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


@pytest.mark.slow
@pytest.mark.parametrize("at", ["everywhere", "words"])
def test_it_is_what_hooks_on_the_model_and_its_head_give(
    at: str, masked_subject: InterventionSetup, checkpoint: Path
) -> None:
    found = masked_surveyed(masked_subject, COUPLES, NEURONS, at)
    with torch.no_grad():
        share, difference = masked_naive(checkpoint, COUPLES, NEURONS, words_alone=at == "words")
        most, _ = masked_naive(checkpoint, COUPLES, list(range(16)), at == "words")
    (row,) = [row for row in found.interventions if row["k"] == len(NEURONS)]
    assert 0.02 < abs(share) < 0.98
    assert (row["readout"], row["layer"], row["intact"]) == (WORDS, masked_subject.source.layers[-1], 0.0)
    assert row["value"] == row["effect"] == pytest.approx(share, abs=1e-4)
    assert row["all_neurons"] == pytest.approx(most, abs=1e-4)
    assert row["n"] == found.n_pairs == len(COUPLES)
    assert row["low"] < row["effect"] < row["high"]
    assert row["difference"] == pytest.approx(difference, rel=1e-4)


def test_with_all_neurons_everywhere_the_odds_are_those_of_the_other_text(masked_subject: InterventionSetup) -> None:
    d_model = int(masked_subject.source.config.hidden_size)
    (row,) = masked_surveyed(masked_subject, COUPLES, list(range(d_model))).interventions
    assert row["value"] == pytest.approx(1, abs=1e-5)
    assert row["all_neurons"] == row["value"]
    assert "random" not in row
    some = masked_surveyed(masked_subject, COUPLES, NEURONS).interventions
    assert {row["all_neurons"] for row in some} == {row["value"]}


def test_neither_the_order_of_texts_nor_that_of_words_changes_what_is_carried(
    masked_subject: InterventionSetup,
) -> None:
    found = masked_surveyed(masked_subject, COUPLES, NEURONS)
    texts = [Couple(one.second, one.first, one.words) for one in COUPLES]
    words = [Couple(one.first, one.second, ANSWERS[::-1]) for one in COUPLES]
    for other in (masked_surveyed(masked_subject, texts, NEURONS), masked_surveyed(masked_subject, words, NEURONS)):
        for row, own in zip(other.interventions, found.interventions, strict=True):
            assert row["value"] == pytest.approx(own["value"], abs=1e-5)
            assert other.interventions[0]["n_as_given"] == len(COUPLES) - own["n_as_given"]


def test_pairs_that_cannot_be_read_token_by_token_are_left_out_and_counted(masked_subject: InterventionSetup) -> None:
    others = [
        Couple("The probe [MASK] the model.", "The probe of a token [MASK] the model.", ANSWERS),
        Couple("The probe [MASK] the model.", "The [MASK] probe the model.", ANSWERS),
        Couple("The probe [MASK] it.", "The token [MASK] it.", ("reads", "crocodiles")),
    ]
    said: list[str] = []
    found = masked_surveyed(masked_subject, [*COUPLES, *others], NEURONS, said=said)
    assert (found.n_pairs, found.n_excluded) == (len(COUPLES), 3)
    n = len(COUPLES) + 3
    assert said == [
        f"1 of {n} pairs are left out: their texts differ in number of tokens",
        f"1 of {n} pairs are left out: the mask is not the same token, or the words not the same pieces, in both texts",
        f"1 of {n} pairs are left out: a word is not a single piece of the vocabulary",
    ]
    assert found.interventions == masked_surveyed(masked_subject, COUPLES, NEURONS).interventions
    few = masked_surveyed(masked_subject, COUPLES, NEURONS, n_tokens=100)
    assert few.text.tokens.n_tokens <= 100
    assert 1 <= few.n_pairs < len(COUPLES)
    with pytest.raises(
        UserError, match=r"`--pairs p` has no pair between whose texts .*\(their texts differ in number"
    ):
        masked_surveyed(masked_subject, others, NEURONS)


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
    constant = InterventionSetup(source, [corpus], [["train"] * len(corpus.sentences)], 0, None, {WORDS: None})
    with pytest.raises(UserError, match="the same in both texts of every pair, so that nothing can be carried over"):
        masked_surveyed(constant, COUPLES, NEURONS)


PROBED_CLASSES: Labels = np.array(["a", "b", "c"], dtype=object)


@dataclass(frozen=True)
class LastLetter(Task):
    """The last letter of a word among a, b and c, at its first piece; its vector is the mean over its pieces."""

    word_means = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[str]:
        words = tokens.word_texts(corpus).tolist()
        return [
            word[-1] if first and word and word[-1] in "abc" else ""
            for word, first in zip(words, tokens.first_pieces.tolist(), strict=True)
        ]


@pytest.fixture(scope="module")
def classes(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> ProbedClasses:
    generator, source = np.random.default_rng(0), resolve_model(str(checkpoints["bert"]))
    words = [[f"neuron{generator.choice(list('abcd'))}" for _ in range(generator.integers(3, 9))] for _ in range(40)]
    corpus, cache = from_words("made up", words, {}), tmp_path_factory.mktemp("cache")
    store = activations(Request(source, corpus, range(4)), cache, {"accelerator": "cpu"})
    weight = {layer: torch.randn(3, store.plan.d_model) for layer in (1, 2, 3)}
    splits: Any = [["train" if i % 2 else "test" for i in range(store.tokens.n_sentences)]]
    task = ProbedTask(
        "task",
        LastLetter(),
        Frozen(weight, PROBED_CLASSES),
        ActivationSource(source, range(4), cache),
        [corpus],
        splits,
        0,
    )
    train = draw_text(store, np.array([one == "train" for one in splits[0]]), 10_000, 0)
    return ProbedClasses(task, [store], train, *task.probes([store], None), torch.device("cpu"), 3)


def test_every_piece_of_a_word_has_its_class_and_one_target(classes: ProbedClasses) -> None:
    store = classes.stores[0]
    is_test = np.arange(store.tokens.n_sentences) % 2 == 0
    text = draw_text(store, is_test, 10_000, 0)
    moves, tokens, corpus = classes.moves(text), text.tokens, classes.task.corpora[0]
    words = store.tokens.word_texts(corpus)[text.of_corpus]
    assert (np.bincount(tokens.sentences[~tokens.special]) > 3).any()
    pieces: dict[tuple[int, int], set[int]] = {}
    for i, word in enumerate(words):
        source, target = int(moves.source[i]), int(moves.target[i])
        assert (source >= 0) == (target >= 0) == (bool(word) and word[-1] in "abc" and not tokens.special[i])
        if source >= 0:
            assert PROBED_CLASSES[source] == word[-1]
            assert source != target
            pieces.setdefault((int(tokens.sentences[i]), int(tokens.words[i])), set()).add(target)
    assert all(len(found) == 1 for found in pieces.values())
    assert len(pieces) == classes.readout(text).n.sum() == classes.translated(text).n.sum()
    assert {target for found in pieces.values() for target in found} == {0, 1, 2}


def test_a_part_of_a_text_is_moved_as_in_the_whole(classes: ProbedClasses) -> None:
    store = classes.stores[0]
    sentences = np.arange(store.tokens.n_sentences)
    whole, part = (draw_text(store, sentences % of == 0, 10_000, 0) for of in (2, 4))
    inside = torch.from_numpy(np.isin(whole.of_corpus, part.of_corpus))
    assert torch.equal(classes.moves(whole).target[inside], classes.moves(part).target)
    assert (classes.name, classes.again, classes.last) == ("task", "task_retrained", 3)
    assert classes.translated(part).name == "task_translated"
