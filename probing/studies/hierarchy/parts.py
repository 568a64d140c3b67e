"""The sentences of a task as corpora, and their words as examples of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words
from probing.data.examples import Activations, Examples, Sides, read
from probing.errors import UserError
from probing.statistics.intervals import accuracy_interval, difference_interval
from probing.studies.hierarchy.grammar import Grammar, Sentence, Task


@dataclass(frozen=True)
class Sizes:
    """Numbers of sentences.

    Args:
        train: Sentences that probes are trained on.
        test: Sentences that the penalty is chosen on; probes are tested on as many further sentences.
        generalisation: Sentences in which the two rules differ.
    """

    train: int
    test: int
    generalisation: int


@dataclass(frozen=True)
class Text:
    """Sentences in the order of a corpus, with the answers of both rules.

    Args:
        corpus: The sentences, divided into words.
        answers: Index of the word that is right, shape (n_sentences,).
        linear: Index of the word that linear order gives, shape (n_sentences,).
        distractors: The construction that contains the word that linear order gives, where this word is wrong, shape
            (n_sentences,); empty where both rules agree.
    """

    corpus: Corpus
    answers: NDArray[np.int64]
    linear: NDArray[np.int64]
    distractors: NDArray[np.str_]

    @classmethod
    def of(cls, name: str, sentences: Sequence[Sentence]) -> Text:
        """Return the text of distinct sentences.

        Args:
            name: Name of the corpus.
            sentences: The sentences.
        """
        answers, linear = (np.array([getattr(one, rule) for one in sentences]) for rule in ("answer", "linear"))
        distractors = np.array([one.distractor for one in sentences])
        return cls(from_words(name, [one.words for one in sentences]), answers, linear, distractors)

    def check(self, tokens: Tokens) -> None:
        """Refuse a tokenization in which a sentence lacks a word.

        Raises:
            UserError: If the model's limit cuts a sentence, or its tokenizer drops a word.
        """
        found = np.bincount(tokens.sentences[tokens.first_pieces], minlength=tokens.n_sentences)
        n_words = np.array([len(words) for words in self.corpus.words or ()])
        if (lacking := np.flatnonzero(found < n_words)).size:
            raise UserError(
                f"`--model`: of the {self.corpus.name}, `{self.corpus.sentences[lacking[0]]}` keeps only "
                f"{found[lacking[0]]} of {n_words[lacking[0]]} words; choose a model that reads all words of longer "
                "sentences."
            )

    def examples(self, store: Activations, chosen: NDArray[np.bool_]) -> Examples:
        """Return the words of some sentences as examples: class 1 the right word, class 0 every other.

        Args:
            store: The activations of the corpus.
            chosen: Which sentences, shape (n_sentences,), bool.
        """
        tokens = store.tokens
        here = tokens.first_pieces & chosen[tokens.sentences]
        is_answer = tokens.words == self.answers[tokens.sentences]
        return Examples(store, np.where(here, is_answer, -1).astype(np.int32), word_means=True)


@dataclass(frozen=True)
class Parts:
    """The two texts of a task.

    Args:
        training: Sentences to train on, then those that the penalty is chosen on.
        testing: Sentences of the same kind to test on, then those for generalisation.
        sizes: Numbers of sentences.
    """

    training: Text
    testing: Text
    sizes: Sizes

    @classmethod
    def of(cls, task: Task, sizes: Sizes, seed: int) -> Parts:
        """Return the texts of a task; no sentence is there twice.

        Args:
            task: The task.
            sizes: Numbers of sentences.
            seed: Seed of the draw.
        """
        n = sizes.train + sizes.test
        agree, differ = Grammar(task, seed).sentences(n + sizes.test, sizes.generalisation)
        name = task.replace("_", " ")
        training = Text.of(f"sentences of the task {name}, to train on", agree[:n])
        return cls(training, Text.of(f"sentences of the task {name}, to test on", agree[n:] + differ), sizes)

    @property
    def texts(self) -> tuple[Text, Text]:
        """Both texts."""
        return self.training, self.testing

    @property
    def differ(self) -> NDArray[np.bool_]:
        """Which sentences of the second text are for generalisation, shape (n_sentences,)."""
        return np.arange(len(self.testing.answers)) >= self.sizes.test

    def sides(self, stores: Sequence[Activations]) -> Sides:
        """Return the examples that probes are trained, chosen and tested on.

        Args:
            stores: The activations of both texts.
        """
        trained = np.arange(len(self.training.answers)) < self.sizes.train
        train, validation = (self.training.examples(stores[0], chosen) for chosen in (trained, ~trained))
        return Sides(train, validation, self.testing.examples(stores[1], ~self.differ), np.arange(2), False)

    def words(self, stores: Sequence[Activations]) -> Examples:
        """Return all words of the second text.

        Args:
            stores: The activations of both texts.
        """
        return self.testing.examples(stores[1], np.ones(len(self.testing.answers), dtype=bool))


# A row of a table.
Row = dict[str, Any]


def answered_words(examples: Examples, layers: Sequence[int], weights: Sequence[Tensor]) -> NDArray[np.int64]:
    """Return the index of the word that each probe finds likeliest, among the words of its sentence.

    Special tokens and padding are no words. Of equally likely words the first is taken.

    Args:
        examples: The words, every one of each sentence.
        layers: Layer numbers.
        weights: Weight of each layer's probe on raw hidden states, shape (2, d_model); class 1 is the word looked for.

    Returns:
        Shape (n_layers, n_sentences).
    """
    directions = [(weight[1] - weight[0]).double() for weight in weights]
    scores: list[Tensor] = []
    rows: list[Tensor] = []
    for batch in read(examples, layers):
        pairs = zip(batch.hidden_states, directions, strict=True)
        scores.append(torch.stack([states.double() @ direction for states, direction in pairs]))
        rows.append(batch.rows)
    at, tokens = torch.cat(rows).numpy(), examples.store.tokens
    begins = np.flatnonzero(np.diff(tokens.sentences[at], prepend=-1))
    of_words = torch.cat(scores, 1).numpy()
    highest = np.maximum.reduceat(of_words, begins, axis=1)
    is_highest = of_words == np.repeat(highest, np.diff(np.append(begins, len(at))), axis=1)
    # The first of the words with the highest score: all other words get a number beyond the last word.
    words = np.where(is_highest, tokens.words[at].astype(np.int64), np.iinfo(np.int64).max)
    return np.minimum.reduceat(words, begins, axis=1)


def counted(name: str, right: NDArray[np.bool_]) -> Row:
    """Return the share of sentences of which something holds, with its 95% interval.

    Args:
        name: Column of the share; its interval is in `NAME_low` and `NAME_high`.
        right: Whether it holds, shape (n_sentences,).
    """
    low, high = accuracy_interval(right.astype(np.int64), np.ones(len(right), dtype=np.int64))
    return {name: float(right.mean()), f"{name}_low": low, f"{name}_high": high}


def compared(name: str, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Row:
    """Return by how much the share of the first is above that of the second, with its 95% interval, paired.

    Args:
        name: Column of the difference.
        first: Whether something holds of each sentence, shape (n_sentences,).
        second: The same of something else.
    """
    difference = first.astype(np.int64) - second
    low, high = difference_interval(difference, np.ones(len(first), dtype=np.int64))
    return {name: float(difference.mean()), f"{name}_low": low, f"{name}_high": high}


def generalised(answers: NDArray[np.int64], text: Text, chosen: NDArray[np.bool_], linear: str) -> Row:
    """Return how often a probe's answers follow each rule in the sentences where the two rules differ.

    Args:
        answers: The word that it answers, shape (n_sentences,).
        text: The sentences.
        chosen: Which sentences are counted, shape (n_sentences,).
        linear: Name of the column with the share of answers that follow linear order.
    """
    right, first = ((answers == rule)[chosen] for rule in (text.answers, text.linear))
    found = counted("generalisation", right)
    own = {"generalisation": found["generalisation"], "low": found["generalisation_low"]}
    return {
        **own, "high": found["generalisation_high"], **counted(linear, first), **compared("preference", right, first)
    }  # fmt: skip
