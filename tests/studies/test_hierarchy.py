"""`hierarchy`: grammars and answers, planted rules, and the command from end to end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing import Result, hierarchy
from probing.__main__ import COMMANDS
from probing.activations.store import ActivationStore
from probing.cli.commandline import run
from probing.data.examples import Examples
from probing.errors import UserError
from probing.probes.solvers import Penalty
from probing.probes.training import STRONGEST_PENALTY as STRONGEST
from probing.probes.training import WEAKEST_PENALTY as WEAKEST
from probing.probes.training import Lbfgs, Training, strength, train_probes
from probing.runs.loading import load_run
from probing.studies.hierarchy.survey import (
    ADJECTIVES,
    AUXILIARIES,
    DETERMINERS,
    INTRANSITIVE,
    NOUNS,
    PLURALS,
    PREPOSITIONS,
    TASKS,
    TRANSITIVE,
    Grammar,
    Parts,
    RuleSentence,
    RuleSentences,
    Sizes,
    Task,
    answered_words,
    answers_of,
    compared,
    counted,
    task_rows,
)
from probing.text.tokens import Tokens
from rendering import rendered
from synthetic import make_store
from wandb_stand_in import read_offline_runs
from written import read_csv

pytestmark = pytest.mark.numeric

SIZES = {"train_sentences": 60, "test_sentences": 25, "generalisation_sentences": 30}
NONE: Any = {"mode": "disabled"}


@pytest.fixture
def options(tmp_path: Path, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.getbasetemp() / "hierarchy-cache"
    model = str(checkpoints["bert"])
    return {"model": model, "runs": str(tmp_path / "runs"), "cache": str(cache), "probe": {"l2": 1e-2}, **SIZES}


@pytest.mark.slow
@rendered()
def test_both_tasks_with_their_controls_are_on_disk_and_repeat(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    probe = options.pop("probe")
    args = [f"--{name}={value}" for name, value in options.items()]
    args += [f"--probe.l2={probe['l2']}", "--layer=0,2", "--figure_format=png", "--verbose"]
    assert run(COMMANDS, ["hierarchy", *args, "--wandb.mode=offline", "--name=a"]) == 0
    said = capsys.readouterr().out
    assert "Main auxiliary: accuracy, and share whose answer follows linear order" in said
    assert "Subject noun: where the two rules differ, probes follow" in said
    folder = Path(options["runs"]) / "a"
    assert {path.name for path in folder.iterdir()} == {
        "hierarchy.csv", "distractors.csv", "config.yaml", "results.json", "figures", "wandb"
    }  # fmt: skip
    assert (folder / "figures" / "hierarchy.png").stat().st_size > 10_000
    rows = read_csv(folder / "hierarchy.csv")
    assert [(row["task"], row["condition"], row["layer"]) for row in rows] == [
        (task, condition, layer)
        for task in ("main_auxiliary", "subject_noun")
        for condition in ("model", "untrained", "permuted_positions")
        for layer in (0, 2)
    ]
    for row in rows:
        other, own = sorted(("first_auxiliary", "first_noun"), key=lambda name: row[name] != "")
        assert row[other] == ""
        assert 0 <= row[own] + row["generalisation"] <= 1
        assert row["preference"] == pytest.approx(row["generalisation"] - row[own])
        assert (row["difference"] == "") is (row["condition"] == "model")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["n_sentences"] == {"train": 60, "validation": 25, "test": 25, "generalisation": 30}
    assert results["penalty"] == {"main_auxiliary": 0.01, "subject_noun": 0.01}
    (tracked,) = read_offline_runs(folder)
    assert len(tracked.table("hierarchy")) == len(rows)
    assert len(tracked.table("distractors")) == 2 * len(rows)
    made = load_run(folder)
    assert type(made) is Result
    assert [row["condition"] for row in made.hierarchy[:3]] == ["model", "model", "untrained"]
    assert "accuracy, and share whose answer follows linear order" in repr(made)
    again = ["hierarchy", "--config", str(folder / "config.yaml"), "--name", "b", "--wandb.mode=disabled"]
    assert run(COMMANDS, again) == 0
    for name in ("hierarchy.csv", "distractors.csv"):
        assert (folder / name).read_bytes() == (folder.parent / "b" / name).read_bytes()


@pytest.mark.slow
def test_a_random_model_has_no_random_control_and_a_penalty_is_chosen(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options.pop("probe")
    made = hierarchy(**options, layer=1, random_weights=True, tasks="subject_noun", wandb=NONE)
    assert {row["condition"] for row in made.hierarchy} == {"model", "permuted_positions"}
    assert "the control untrained is left out: the model itself is randomly initialised" in capsys.readouterr().err
    assert made.results["penalty"]["subject_noun"] in [strength(index) for index in range(WEAKEST, STRONGEST + 1)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--tasks=main_auxilary"],
            "`--tasks main_auxilary` is not one of main_auxiliary, subject_noun, all",
        ),
        (["--controls=token"], "`--controls token` is not one of untrained, permuted_positions, all, none"),
        (["--train_sentences=0"], "`--train_sentences 0`"),
        (["--probe.l2=0"], "`--probe.l2 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(
    args: list[str], message: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    own = [f"--{name}={options[name]}" for name in ("model", "runs", "cache")]
    assert run(COMMANDS, ["hierarchy", *own, *args, "--wandb.mode=disabled"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not Path(options["runs"]).exists()


SURVEY_SIZES = Sizes(train=300, test=60, generalisation=120)
HIERARCHY, LINEAR, WORD, NOISE = range(4)


def tokens_of(text: RuleSentences) -> Tokens:
    """A table of tokens with a special token at both ends of each sentence, and a piece for each word."""
    assert text.corpus.words is not None
    words = [[-1, *range(len(words)), -1] for words in text.corpus.words]
    lengths = np.array([len(one) for one in words], dtype=np.int32)
    joined = np.concatenate(words).astype(np.int16)
    return Tokens(lengths, np.zeros(len(joined), dtype=np.int32), joined)


def planted(folder: Path, text: RuleSentences, seed: int) -> ActivationStore:
    """Four layers: one tells the right word, one the first auxiliary, one auxiliaries, one nothing."""
    tokens, generator = tokens_of(text), np.random.default_rng(seed)
    assert text.corpus.words is not None
    is_auxiliary = np.zeros(tokens.n_tokens, dtype=bool)
    for i, word in enumerate(tokens.words):
        is_auxiliary[i] = word >= 0 and text.corpus.words[tokens.sentences[i]][word] in AUXILIARIES
    rules: list[NDArray[Any]] = [tokens.words == rule[tokens.sentences] for rule in (text.answers, text.linear)]
    layers = []
    for tells in (*rules, is_auxiliary, np.zeros(tokens.n_tokens)):
        states = generator.normal(size=(tokens.n_tokens, 5))
        states[:, 0] = 1
        states[:, 1] = 6 * tells
        # Special tokens look like what is searched for, which must not matter: they are no words.
        states[tokens.special, 1] = 100
        layers.append(states)
    return make_store(folder, layers, tokens, shard_tokens=700)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    parts, folder = Parts.of("main_auxiliary", SURVEY_SIZES, 0), tmp_path_factory.mktemp("planted")
    stores = [planted(folder / str(i), text, i) for i, text in enumerate(parts.texts)]
    layers = [HIERARCHY, LINEAR, WORD, NOISE]
    fits = train_probes(parts.sides(stores), layers, Training(Penalty(0.0, 1e-3), Lbfgs(1e-4)))
    answers = answers_of(fits, parts, stores)
    return task_rows("main_auxiliary", "untrained", layers, answers, answers[[HIERARCHY] * 4], parts)


def test_a_layer_that_tells_the_main_auxiliary_generalises_by_hierarchy(rows: Any) -> None:
    row = rows[0][HIERARCHY]
    assert (row["test"], row["generalisation"], row["first_auxiliary"], row["preference"]) == (1, 1, 0, 1)
    assert row["low"] > 0.95
    assert row["high"] == 1
    assert row["preference_low"] > 0.9


def test_a_layer_that_tells_the_first_auxiliary_generalises_by_linear_order(rows: Any) -> None:
    row = rows[0][LINEAR]
    assert (row["test"], row["generalisation"], row["first_auxiliary"], row["preference"]) == (1, 0, 1, -1)
    assert row["high"] < 0.05
    assert (row["difference"], row["difference_low"] > 0.9) == (1, True)


def test_a_layer_that_tells_auxiliaries_alone_prefers_neither_rule(rows: Any) -> None:
    row = rows[0][WORD]
    assert row["preference_low"] < 0 < row["preference_high"]
    # Half of the sentences have two auxiliaries and half have three.
    assert row["low"] < 5 / 12 < row["high"]
    assert row["first_auxiliary_low"] < 5 / 12 < row["first_auxiliary_high"]


def test_a_layer_that_tells_nothing_does_not_learn_the_task(rows: Any) -> None:
    assert rows[0][NOISE]["test"] < 0.3
    assert rows[0][NOISE]["generalisation"] < 0.3


def test_each_distractor_has_its_sentences(rows: Any) -> None:
    table, kinds = rows
    for layer, row in enumerate(table):
        own = [kind for kind in kinds if kind["layer"] == layer]
        assert [kind["distractor"] for kind in own] == ["object_relative", "subject_relative"]
        assert sum(kind["n"] for kind in own) == SURVEY_SIZES.generalisation
        right = sum(kind["n"] * kind["generalisation"] for kind in own)
        assert right == pytest.approx(row["generalisation"] * SURVEY_SIZES.generalisation)


def test_a_sentence_of_which_a_word_is_cut_is_refused() -> None:
    text = Parts.of("subject_noun", Sizes(3, 2, 4), 0).training
    whole = tokens_of(text)
    text.check(whole)
    last = whole.lengths[0] - 2  # the full stop, before the special token
    lengths = whole.lengths - (np.arange(whole.n_sentences) == 0).astype(np.int32)
    tokens = Tokens(lengths, np.delete(whole.input_ids, last), np.delete(whole.words, last))
    with pytest.raises(UserError, match=r"sentences of the task subject noun, to train on, .* keeps only"):
        text.check(tokens)


# Four sentences with a special token at both ends; some words have two pieces.
WORDS = [[-1, 0, 0, 1, 2, -1], [-1, 0, 1, -1], [-1, 0, 1, 1, 2, 3, 3, -1], [-1, 0, 1, 2, -1]]


def test_the_answer_is_the_likeliest_word_as_a_loop_finds_it(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    words = np.concatenate(WORDS).astype(np.int16)
    tokens = Tokens(np.array([len(one) for one in WORDS], dtype=np.int32), np.zeros(len(words), np.int32), words)
    layers = [generator.normal(size=(len(words), 3)).astype(np.float32) for _ in range(2)]
    weights = [torch.from_numpy(generator.normal(size=(2, 3)).astype(np.float32)) for _ in range(2)]
    for states, weight in zip(layers, weights, strict=True):
        direction = (weight[1] - weight[0]).numpy()
        states[tokens.special] = 50 * direction  # what is no word would be likeliest
        states[tokens.sentences == 3] = np.where(tokens.special[tokens.sentences == 3, None], 50 * direction, 1)
    store = make_store(tmp_path / "store", layers, tokens, shard_tokens=8)
    assert len(store.plan.shards) > 1
    found = answered_words(Examples(store, np.where(tokens.first_pieces, 0, -1), word_means=True), [0, 1], weights)
    for layer in range(2):
        for sentence in range(4):
            scores = []
            for word in range(max(WORDS[sentence]) + 1):
                of_word = (tokens.sentences == sentence) & (words == word)
                mean = np.mean(layers[layer][of_word].astype(np.float64), axis=0)
                scores.append(float(mean @ (weights[layer][1] - weights[layer][0]).double().numpy()))
            assert found[layer, sentence] == np.argmax(scores)
    assert found[:, 3].tolist() == [0, 0]  # of equally likely words the first


def test_shares_and_their_differences_are_those_of_the_sentences() -> None:
    first, second = np.array([True] * 30 + [False] * 10), np.array([False] * 20 + [True] * 20)
    own, difference = counted("test", first), compared("difference", first, second)
    assert own["test"] == 0.75
    assert own["test_low"] < 0.75 < own["test_high"]
    assert difference["difference"] == 0.25
    assert difference["difference_low"] < 0.25 < difference["difference_high"]
    assert compared("difference", first, first)["difference"] == 0


# A letter for each class of words, so that a sentence is a string and a rule a regular expression over it.
CLASSES = {
    "A": ADJECTIVES, "X": AUXILIARIES, "D": DETERMINERS, "I": INTRANSITIVE, "N": NOUNS, "M": PLURALS,
    "P": PREPOSITIONS, "T": TRANSITIVE, "R": ("that",), "S": ("'s",), "E": (".",),
}  # fmt: skip
LETTERS = {word: letter for letter, words in CLASSES.items() for word in words}
NP = "(?:DA{0,2}N|A{0,2}M)"
RELATIVE = f"(?:RXI|RXT{NP}|R{NP}XT)"
MODIFIED = "(?:DA{0,2}NS?N|A{0,2}NS?M)"
PHRASES = f"(?:P{NP}){{0,2}}"
# The group is the answer.
RULES: dict[tuple[Task, bool], str] = {
    ("main_auxiliary", False): f"{NP}{PHRASES}(X)(?:I|T{NP}{RELATIVE}?)E",
    ("main_auxiliary", True): f"{NP}{RELATIVE}(X)(?:I|T{NP}{RELATIVE}?)E",
    ("subject_noun", False): f"(?:DA{{0,2}}(?=N)|A{{0,2}}(?=M))([NM]){PHRASES}X(?:I|T(?:{NP}|{MODIFIED}))E",
    ("subject_noun", True): f"(?:DA{{0,2}}NS?(?=N)|A{{0,2}}NS?(?=M))([NM]){PHRASES}X(?:I|T(?:{NP}|{MODIFIED}))E",
}
CANDIDATES = {"main_auxiliary": "X", "subject_noun": "[NM]"}


def letters(sentence: RuleSentence) -> str:
    return "".join(LETTERS[word.lower()] for word in sentence.words)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("differ", [False, True])
def test_both_rules_answer_as_a_parser_does(task: Task, differ: bool) -> None:
    for sentence in Grammar(task, 3).sentences(400, 400)[differ]:
        found = re.fullmatch(RULES[task, differ], letters(sentence))
        assert found, " ".join(sentence.words)
        assert sentence.answer == found.start(1)
        first = re.search(CANDIDATES[task], letters(sentence))
        assert first
        assert sentence.linear == first.start()
        assert (sentence.answer != sentence.linear) is differ
        assert bool(sentence.distractor) is differ


def test_distractors_are_what_they_are_called() -> None:
    (_, clauses), (_, nouns) = (Grammar(task, 0).sentences(1, 300) for task in TASKS)
    of = {one.distractor: {letters(o)[o.linear - 1] == "R" for o in clauses if o.distractor == one.distractor}
          for one in clauses}  # fmt: skip
    assert of == {"subject_relative": {True}, "object_relative": {False}}
    after = {one.distractor: {letters(o)[o.linear + 1] == "S" for o in nouns if o.distractor == one.distractor}
             for one in nouns}  # fmt: skip
    assert after == {"possessive": {True}, "compound": {False}}


@pytest.mark.parametrize("task", TASKS)
def test_sentences_are_distinct_and_their_words_are_known_from_training(task: Task) -> None:
    agree, differ = Grammar(task, 0).sentences(2500, 1000)
    assert len({one.words for one in (*agree, *differ)}) == 3500
    seen = {word.lower() for one in agree for word in one.words}
    assert {word.lower() for one in differ for word in one.words} <= seen
    # Each place of the first candidate is also one of a later candidate, or of the answer, in training.
    lasting = {i for one in agree for i, letter in enumerate(letters(one)) if re.match(CANDIDATES[task], letter)}
    assert {one.linear for one in differ} | {one.answer for one in differ} <= lasting


def test_a_seed_gives_the_same_sentences_and_another_one_others() -> None:
    first, again, other = (Grammar("subject_noun", seed).sentences(50, 20) for seed in (0, 0, 1))
    assert first == again
    assert not {one.words for one in first[0]} & {one.words for one in other[0]}


def test_no_word_is_in_two_classes() -> None:
    assert len(LETTERS) == sum(len(words) for words in CLASSES.values())
