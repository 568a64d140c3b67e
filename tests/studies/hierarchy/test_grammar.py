from __future__ import annotations

import re

import pytest

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
    Sentence,
    Task,
)

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


def letters(sentence: Sentence) -> str:
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
