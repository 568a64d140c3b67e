"""A grammar of English sentences whose first auxiliary is, or is not, the main one; likewise for noun and subject.

It follows the design of Lin, Tan & Frank (2019), *Open Sesame*, with a vocabulary and rules of its own. In sentences to
train on, two rules give the same answer: the linear one, the first auxiliary (or noun) of the sentence, and the
hierarchical one, the auxiliary of the main clause (or the head of the subject). In sentences for generalisation they
differ.

Main auxiliary:
    to train on   the old farmer near the queen can greet the singer that must wait .
    then          the old farmer that must wait can greet the singer .

Subject noun:
    to train on   the farmer can greet the singer 's neighbor .
    then          the singer 's neighbor can greet the farmer .

The constructions that put another auxiliary (or noun) before the answer modify the subject in sentences for
generalisation, and the object in some sentences to train on, so that a probe has seen them and every word. Noun phrases
have 1 to 4 words, or more with such a construction. The positions of the first and of later auxiliaries (and nouns)
therefore overlap in training, so that the position of a word alone does not give the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Task = Literal["main_auxiliary", "subject_noun"]
TASKS: tuple[Task, ...] = ("main_auxiliary", "subject_noun")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Frequent words, each a single piece in most vocabularies. No word is in two lists.
NOUNS = _words(
    "teacher doctor farmer singer painter pilot lawyer sailor student neighbor soldier nurse writer dancer baker "
    "hunter visitor manager player driver worker queen king boy girl dog cat horse bird bear rabbit monkey snake bee"
)
PLURALS = tuple(f"{noun}s" for noun in NOUNS)
TRANSITIVE = _words(
    "see hear help follow find meet know thank warn carry push greet trust remember admire describe forget ignore"
)
INTRANSITIVE = _words("sleep sing smile wait travel swim laugh cry listen move fight stay")
ADJECTIVES = _words("old young small tall happy quiet brave clever tired hungry friendly strange rich poor famous")
PREPOSITIONS = _words("near behind beside with above")
# Determiners of singular nouns; plural nouns have none.
DETERMINERS = _words("the my your our their this some every")
AUXILIARIES = _words("can could may might must should will would")

# Shares of noun phrases: with 0, 1 or 2 adjectives, without a determiner, and with 0, 1 or 2 prepositional phrases.
_N_ADJECTIVES, _BARE, _N_PHRASES = (0.5, 0.35, 0.15), 0.3, (0.4, 0.4, 0.2)
# Probability that the main verb has an object, if the object is not already required by a relative clause on it.
_TRANSITIVE = {"main_auxiliary": 0.5, "subject_noun": 0.7}


@dataclass(frozen=True)
class Sentence:
    """A sentence with the answers of both rules.

    Args:
        words: Its words, the full stop being one.
        answer: Index of the main auxiliary, or of the subject's head.
        linear: Index of the first auxiliary, or of the first noun.
        distractor: The construction in the subject that contains the first auxiliary, or noun: `subject_relative` (that
            must wait), `object_relative` (that the boy must greet), `compound` (worker bee) or `possessive` (worker 's
            bee). Empty in sentences to train on.
    """

    words: tuple[str, ...]
    answer: int
    linear: int
    distractor: str = ""


class Grammar:
    """Draws sentences of a task.

    Args:
        task: The task.
        seed: Seed of every draw.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self._draw = task, random.Random(f"{task} {seed}")

    def sentences(self, n: int, n_others: int) -> tuple[list[Sentence], list[Sentence]]:
        """Return distinct sentences to train and test on, and others for generalisation.

        Args:
            n: Number of sentences in which both rules agree.
            n_others: Number of those in which they differ.
        """
        return self._distinct(n, differ=False), self._distinct(n_others, differ=True)

    def _distinct(self, n: int, differ: bool) -> list[Sentence]:
        found: dict[tuple[str, ...], Sentence] = {}
        while len(found) < n:
            made = self._main_auxiliary(differ) if self.task == "main_auxiliary" else self._subject_noun(differ)
            found.setdefault(made.words, made)
        return list(found.values())

    def _main_auxiliary(self, differ: bool) -> Sentence:
        # No auxiliary occurs twice: embeddings without positions could not distinguish equal words.
        main, of_subject, of_object = self._draw.sample(AUXILIARIES, 3)
        subject, distractor = self._noun_phrase(), ""
        if differ:
            distractor, clause = self._relative_clause(of_subject)
            subject += clause
        else:
            subject += self._prepositional_phrases()
        has_clause = self._draw.random() < 0.5
        if has_clause or self._is_transitive():
            rest = [self._one(TRANSITIVE), *self._noun_phrase()]
            rest += self._relative_clause(of_object)[1] if has_clause else []
        else:
            rest = [self._one(INTRANSITIVE)]
        return self._sentence([*subject, main, *rest], len(subject), AUXILIARIES, distractor)

    def _subject_noun(self, differ: bool) -> Sentence:
        distractor, subject = self._modified() if differ else ("", self._noun_phrase())
        answer = len(subject) - 1
        rest = [self._one(AUXILIARIES)]
        if self._is_transitive():
            modified = self._draw.random() < 0.5
            rest += [self._one(TRANSITIVE), *(self._modified()[1] if modified else self._noun_phrase())]
        else:
            rest.append(self._one(INTRANSITIVE))
        words = [*subject, *self._prepositional_phrases(), *rest]
        return self._sentence(words, answer, NOUNS + PLURALS, distractor)

    def _sentence(self, words: list[str], answer: int, candidates: tuple[str, ...], distractor: str) -> Sentence:
        linear = next(i for i, word in enumerate(words) if word in candidates)
        return Sentence((words[0].capitalize(), *words[1:], "."), answer, linear, distractor)

    def _noun_phrase(self) -> list[str]:
        bare = self._draw.random() < _BARE
        return [*self._before_noun(bare), self._one(PLURALS if bare else NOUNS)]

    def _modified(self) -> tuple[str, list[str]]:
        """Return the name of a construction, and a noun phrase in which it puts another noun before the head."""
        bare, kind = self._draw.random() < _BARE, self._one(("compound", "possessive"))
        first, second = self._draw.sample(range(len(NOUNS)), 2)
        between = ["'s"] if kind == "possessive" else []
        return kind, [*self._before_noun(bare), NOUNS[first], *between, (PLURALS if bare else NOUNS)[second]]

    def _before_noun(self, bare: bool) -> Iterator[str]:
        if not bare:
            yield self._one(DETERMINERS)
        for _ in range(self._number(_N_ADJECTIVES)):
            yield self._one(ADJECTIVES)

    def _prepositional_phrases(self) -> list[str]:
        phrases = ([self._one(PREPOSITIONS), *self._noun_phrase()] for _ in range(self._number(_N_PHRASES)))
        return [word for phrase in phrases for word in phrase]

    def _relative_clause(self, auxiliary: str) -> tuple[str, list[str]]:
        """Return the name of a kind of relative clause, and such a clause with this auxiliary."""
        if self._draw.random() < 0.5:
            return "object_relative", ["that", *self._noun_phrase(), auxiliary, self._one(TRANSITIVE)]
        if self._draw.random() < 0.5:
            return "subject_relative", ["that", auxiliary, self._one(INTRANSITIVE)]
        return "subject_relative", ["that", auxiliary, self._one(TRANSITIVE), *self._noun_phrase()]

    def _is_transitive(self) -> bool:
        return self._draw.random() < _TRANSITIVE[self.task]

    def _number(self, shares: tuple[float, ...]) -> int:
        return self._draw.choices(range(len(shares)), shares)[0]

    def _one(self, words: tuple[str, ...]) -> str:
        return self._draw.choice(words)
