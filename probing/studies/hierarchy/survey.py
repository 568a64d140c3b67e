"""Probes of a task, tested on sentences in which linear order and hierarchy differ."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.activations.source import ActivationSource
from probing.data.examples import Examples, HiddenStateSource, Sides
from probing.data.examples import read as read_examples
from probing.data.labelling import origin
from probing.data.module import layer_moments, sources_of_controls
from probing.errors import UserError
from probing.probes.training import LayerFit, penalised, train_probes
from probing.results import Table, curve_points, estimate_cells, layers_named
from probing.runs.call import Measurements
from probing.runtime.progress import stage
from probing.statistics import accuracy_interval, difference_interval, ratio_estimate
from probing.studies.hierarchy import ITSELF, LINEAR, HierarchyOptions
from probing.text import Corpus, from_words
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# A grammar of English sentences whose first auxiliary is, or is not, the main one; likewise for noun and subject.
# --------------------------------------------------------------------------------------------------------------------

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
class RuleSentence:
    """A sentence with the answers of both rules.

    Args:
        words: Its words, including the full stop.
        answer: Index of the main auxiliary, or of the subject's head.
        linear: Index of the first auxiliary, or of the first noun.
        distractor: The construction in the subject that contains the first auxiliary, or noun: `subject_relative` (that
            must wait), `object_relative` (that the boy must greet), `compound` (worker bee) or `possessive` (worker 's
            bee). Empty if both rules agree.
    """

    words: tuple[str, ...]
    answer: int
    linear: int
    distractor: str = ""


class Grammar:
    """A grammar of English that draws sentences of a task."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self._draw = task, random.Random(f"{task} {seed}")

    def sentences(self, n: int, n_others: int) -> tuple[list[RuleSentence], list[RuleSentence]]:
        """Return distinct sentences: n in which both rules agree, and `n_others` in which they differ."""
        return self._distinct(n, differ=False), self._distinct(n_others, differ=True)

    def _distinct(self, n: int, differ: bool) -> list[RuleSentence]:
        by_words: dict[tuple[str, ...], RuleSentence] = {}
        while len(by_words) < n:
            sentence = self._main_auxiliary(differ) if self.task == "main_auxiliary" else self._subject_noun(differ)
            by_words.setdefault(sentence.words, sentence)
        return list(by_words.values())

    def _main_auxiliary(self, differ: bool) -> RuleSentence:
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
            rest = [self._draw_word(TRANSITIVE), *self._noun_phrase()]
            rest += self._relative_clause(of_object)[1] if has_clause else []
        else:
            rest = [self._draw_word(INTRANSITIVE)]
        return self._sentence([*subject, main, *rest], len(subject), AUXILIARIES, distractor)

    def _subject_noun(self, differ: bool) -> RuleSentence:
        distractor, subject = self._modified() if differ else ("", self._noun_phrase())
        answer = len(subject) - 1
        rest = [self._draw_word(AUXILIARIES)]
        if self._is_transitive():
            modified = self._draw.random() < 0.5
            rest += [self._draw_word(TRANSITIVE), *(self._modified()[1] if modified else self._noun_phrase())]
        else:
            rest.append(self._draw_word(INTRANSITIVE))
        words = [*subject, *self._prepositional_phrases(), *rest]
        return self._sentence(words, answer, NOUNS + PLURALS, distractor)

    def _sentence(self, words: list[str], answer: int, candidates: tuple[str, ...], distractor: str) -> RuleSentence:
        linear = next(i for i, word in enumerate(words) if word in candidates)
        return RuleSentence((words[0].capitalize(), *words[1:], "."), answer, linear, distractor)

    def _noun_phrase(self) -> list[str]:
        bare = self._draw.random() < _BARE
        return [*self._before_noun(bare), self._draw_word(PLURALS if bare else NOUNS)]

    def _modified(self) -> tuple[str, list[str]]:
        """Return the name of a construction, and a noun phrase in which it puts another noun before the head."""
        bare, kind = self._draw.random() < _BARE, self._draw_word(("compound", "possessive"))
        first, second = self._draw.sample(range(len(NOUNS)), 2)
        between = ["'s"] if kind == "possessive" else []
        return kind, [*self._before_noun(bare), NOUNS[first], *between, (PLURALS if bare else NOUNS)[second]]

    def _before_noun(self, bare: bool) -> Iterator[str]:
        if not bare:
            yield self._draw_word(DETERMINERS)
        for _ in range(self._number(_N_ADJECTIVES)):
            yield self._draw_word(ADJECTIVES)

    def _prepositional_phrases(self) -> list[str]:
        phrases = ([self._draw_word(PREPOSITIONS), *self._noun_phrase()] for _ in range(self._number(_N_PHRASES)))
        return [word for phrase in phrases for word in phrase]

    def _relative_clause(self, auxiliary: str) -> tuple[str, list[str]]:
        """Return the name of a kind of relative clause, and such a clause with this auxiliary."""
        if self._draw.random() < 0.5:
            return "object_relative", ["that", *self._noun_phrase(), auxiliary, self._draw_word(TRANSITIVE)]
        if self._draw.random() < 0.5:
            return "subject_relative", ["that", auxiliary, self._draw_word(INTRANSITIVE)]
        return "subject_relative", ["that", auxiliary, self._draw_word(TRANSITIVE), *self._noun_phrase()]

    def _is_transitive(self) -> bool:
        return self._draw.random() < _TRANSITIVE[self.task]

    def _number(self, shares: tuple[float, ...]) -> int:
        return self._draw.choices(range(len(shares)), shares)[0]

    def _draw_word(self, words: tuple[str, ...]) -> str:
        return self._draw.choice(words)


# --------------------------------------------------------------------------------------------------------------------
# The sentences of a task as corpora, and their words as examples of a probe.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Numbers of sentences: training, validation (`test`; as many further test sentences), and generalisation."""

    train: int
    test: int
    generalisation: int


@dataclass(frozen=True)
class RuleSentences:
    """Sentences in the order of a corpus, with the answers of both rules, each of shape (n_sentences,).

    Args:
        answers: Index of the correct word.
        linear: Index of the word by linear order.
        distractors: The construction that contains the word by linear order; empty if both rules agree.
    """

    corpus: Corpus
    answers: NDArray[np.int64]
    linear: NDArray[np.int64]
    distractors: NDArray[np.str_]

    @classmethod
    def of(cls, name: str, sentences: Sequence[RuleSentence]) -> RuleSentences:
        """Return the text of distinct sentences."""
        answers, linear = (
            np.array([getattr(sentence, rule) for sentence in sentences]) for rule in ("answer", "linear")
        )
        distractors = np.array([sentence.distractor for sentence in sentences])
        return cls(from_words(name, [sentence.words for sentence in sentences]), answers, linear, distractors)

    def check(self, tokens: Tokens) -> None:
        """Reject a tokenization in which a sentence lacks a word.

        Raises:
            UserError: If the model's limit truncates a sentence, or its tokenizer drops a word.
        """
        n_read = np.bincount(tokens.sentences[tokens.first_pieces], minlength=tokens.n_sentences)
        n_words = np.array([len(words) for words in self.corpus.words or ()])
        if (lacking := np.flatnonzero(n_read < n_words)).size:
            raise UserError(
                f"`--model`: of the {self.corpus.name}, `{self.corpus.sentences[lacking[0]]}` keeps only "
                f"{n_read[lacking[0]]} of {n_words[lacking[0]]} words; choose a model that reads all words of longer "
                "sentences."
            )

    def examples(self, store: HiddenStateSource, chosen: NDArray[np.bool_]) -> Examples:
        """Return the words of the sentences in a mask as examples: class 1 the correct word, class 0 all others."""
        tokens = store.tokens
        is_example = tokens.first_pieces & chosen[tokens.sentences]
        is_answer = tokens.words == self.answers[tokens.sentences]
        return Examples(store, np.where(is_example, is_answer, -1).astype(np.int32), word_means=True)


@dataclass(frozen=True)
class Parts:
    """The two texts of a task.

    Args:
        training: Training sentences, then validation sentences.
        testing: Test sentences of the same kind, then sentences for generalisation.
    """

    training: RuleSentences
    testing: RuleSentences
    sizes: Sizes

    @classmethod
    def of(cls, task: Task, sizes: Sizes, seed: int) -> Parts:
        """Return the texts of a task, without repeated sentences."""
        n = sizes.train + sizes.test
        agree, differ = Grammar(task, seed).sentences(n + sizes.test, sizes.generalisation)
        name = task.replace("_", " ")
        training = RuleSentences.of(f"sentences of the task {name}, to train on", agree[:n])
        return cls(training, RuleSentences.of(f"sentences of the task {name}, to test on", agree[n:] + differ), sizes)

    @property
    def texts(self) -> tuple[RuleSentences, RuleSentences]:
        """Both texts."""
        return self.training, self.testing

    @property
    def differ(self) -> NDArray[np.bool_]:
        """Mask of the sentences of the second text that are for generalisation, shape (n_sentences,)."""
        return np.arange(len(self.testing.answers)) >= self.sizes.test

    def sides(self, stores: Sequence[HiddenStateSource]) -> Sides:
        """Return the training, validation and test examples, given the activations of both texts."""
        trained = np.arange(len(self.training.answers)) < self.sizes.train
        train, validation = (self.training.examples(stores[0], chosen) for chosen in (trained, ~trained))
        return Sides(train, validation, self.testing.examples(stores[1], ~self.differ), np.arange(2), False)

    def words(self, stores: Sequence[HiddenStateSource]) -> Examples:
        """Return all words of the second text, given the activations of both texts."""
        return self.testing.examples(stores[1], np.ones(len(self.testing.answers), dtype=bool))


# A row of a table.
Row = dict[str, Any]


def answered_words(examples: Examples, layers: Sequence[int], weights: Sequence[Tensor]) -> NDArray[np.int64]:
    """Return the index of each probe's most probable word of each sentence, shape (n_layers, n_sentences).

    Special tokens and padding are excluded; ties go to the first word. The examples must be all words of each sentence.
    The weights of probes on raw hidden states have shape (2, d_model), and class 1 is the target word.
    """
    directions = [(weight[1] - weight[0]).double() for weight in weights]
    scores: list[Tensor] = []
    rows: list[Tensor] = []
    for batch in read_examples(examples, layers):
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


def counted(name: str, right: NDArray[np.bool_], of: str | None = None) -> Row:
    """Return a share with its 95% confidence interval as cells, with `of` as in `estimate_cells`."""
    return estimate_cells(name, *ratio_estimate(right.astype(np.int64), interval=accuracy_interval), of)


def compared(name: str, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Row:
    """Return the paired difference of two shares with its 95% confidence interval, as cells."""
    return estimate_cells(name, *ratio_estimate(first.astype(np.int64) - second, interval=difference_interval))


def generalised(answers: NDArray[np.int64], text: RuleSentences, chosen: NDArray[np.bool_], linear: str) -> Row:
    """Return the shares of a probe's answers by each rule, in chosen sentences where the rules differ.

    `answers` are word indices, shape (n_sentences,); `linear` is the column of the share by linear order.
    """
    right, first = ((answers == rule)[chosen] for rule in (text.answers, text.linear))
    return counted("generalisation", right, "") | counted(linear, first) | compared("preference", right, first)


def survey(source: ActivationSource, options: HierarchyOptions) -> Measurements:
    """Train and test the probes of every task, on the model itself and on the controls."""
    sizes = Sizes(options.train_sentences, options.test_sentences, options.generalisation_sentences)
    sources = {ITSELF: source, **sources_of_controls(options.selected("controls"), source, options.seed)}
    tables: dict[str, list[Row]] = {"hierarchy": [], "distractors": []}
    origins, penalties, gaps = {}, {}, {}
    for task in options.selected("tasks"):
        parts = Parts.of(task, sizes, options.seed)
        with stage(f"hidden states of {layers_named(source.layers)}, {task}", len(sources)) as advance:
            stores = {}
            for name, task_source in sources.items():
                stores[name] = task_source.read(
                    [text.corpus for text in parts.texts], [text.check for text in parts.texts]
                )
                advance(1)
        with stage(f"probes of {layers_named(source.layers)}, {task}"):
            fits, penalties[task] = _fits(task, parts, stores, source, options)
            answers = {name: answers_of(of_condition, parts, stores[name]) for name, of_condition in fits.items()}
            for name, of_condition in answers.items():
                itself = None if name == ITSELF else answers[ITSELF]
                more_rows = task_rows(task, name, source.layers, of_condition, itself, parts)
                for rows, more in zip(tables.values(), more_rows, strict=True):
                    rows += more
        origins[task] = {side: origin(store) for side, store in zip(("train", "test"), stores[ITSELF], strict=True)}
        # Largest distance of a probe of the model itself to its optimum, in nats.
        gaps[task] = max(fit.optimality_gap for fit in fits[ITSELF])
    results: dict[str, Any] = {
        "cache": origins,
        "n_sentences": {**asdict(sizes), "validation": sizes.test},
        "penalty": penalties,
        "optimality_gap": gaps,
    }
    curves = curve_points(
        Table(tables["hierarchy"]).where(condition=ITSELF),
        lambda row: {f"{row['task']}_{name}": row[name] for name in ("test", "generalisation", LINEAR[row["task"]])},
    )
    return Measurements(tables, results, curves)


def _fits(
    task: Task, parts: Parts, stores: Mapping[str, Sequence[ActivationStore]], source: ActivationSource,
    options: HierarchyOptions,
) -> tuple[dict[str, Sequence[LayerFit]], float]:  # fmt: skip
    """Return the probes of the model itself and of each control, by layer, and their penalty."""
    layers, sides = source.layers, parts.sides(stores[ITSELF])
    moments = layer_moments(sides.train, layers)
    path, training = penalised(options.probe_options, options.seed, sides, layers, moments, source.trainer)
    starts = path.weights if path else None
    fits: dict[str, Sequence[LayerFit]] = {
        ITSELF: train_probes(sides, layers, training, task, moments=moments, starts=starts)
    }
    for control in list(stores)[1:]:
        what = f"{task}, {control}"
        fits[control] = train_probes(parts.sides(stores[control]), layers, training.for_controls(), what)
    return fits, training.penalty.l2


def answers_of(fits: Sequence[LayerFit], parts: Parts, stores: Sequence[ActivationStore]) -> NDArray[np.int64]:
    """Return each probe's word in the sentences of the second text, shape (n_layers, n_sentences)."""
    return answered_words(parts.words(stores), [fit.layer for fit in fits], [fit.weight for fit in fits])


def task_rows(
    task: Task, condition: str, layers: Sequence[int], answers: NDArray[np.int64],
    itself: NDArray[np.int64] | None, parts: Parts,
) -> tuple[list[Row], list[Row]]:  # fmt: skip
    """Return the rows of a task for `hierarchy.csv` and `distractors.csv`.

    `answers` are the words of each layer's probe, shape (n_layers, n_sentences); for a control, `itself` are the words
    of the model itself.
    """
    text, differ = parts.testing, parts.differ
    rows, kinds = [], []
    for i, layer in enumerate(layers):
        key: dict[str, Any] = {"task": task, "condition": condition, "layer": layer}
        right = answers[i] == text.answers
        row = {**key, **counted("test", right[~differ]), **generalised(answers[i], text, differ, LINEAR[task])}
        if itself is not None:
            of_model = itself[i] == text.answers
            row |= compared("difference", of_model[differ], right[differ])
        rows.append(row)
        for kind in np.unique(text.distractors[differ]):
            chosen = text.distractors == kind
            shares = generalised(answers[i], text, chosen, LINEAR[task])
            kinds.append({**key, "distractor": str(kind), **shares, "n": int(chosen.sum())})
    return rows, kinds
