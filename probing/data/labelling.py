"""The labels of the tokens of each side, the classes or numbers among them, and the best constant answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.cli.options import LARGEST, SMALLEST
from probing.corpus import Corpus
from probing.corpus.columns import label_of, text_of
from probing.corpus.splits import Split
from probing.data.examples import Activations, Examples
from probing.data.words import SentenceVectors
from probing.errors import UserError
from probing.results.shown import listed
from probing.tasks import (
    Labels,
    SentenceTask,
    TokenTask,
    classes_of,
    has_label,
    labels_of,
    labels_words,
    predicts_numbers,
    reader_of,
    sentences_of,
    unit_of,
)

if TYPE_CHECKING:
    from probing.data.examples import Examples


def values_of(numbers: Labels) -> NDArray[np.float64]:
    """Return the different numbers among labels, ascending."""
    return np.unique(numbers[has_label(numbers)])


def check_size(numbers: Labels, where: str) -> None:
    """Refuse numbers to predict that are so large that their powers are infinite.

    Args:
        numbers: The numbers, of training and test examples alike; NaN where there is none.
        where: What the numbers are from, as the user typed it.

    Raises:
        UserError: If one is above 1e30 in size.
    """
    if (largest := float(np.abs(numbers[has_label(numbers)]).max(initial=0.0))) > LARGEST:
        raise UserError(
            f"{where}: a number to predict has the size {largest:g}, where at most {LARGEST:g} is expected; give the "
            "numbers in another unit, or as logarithms."
        )


def check_varies(values: NDArray[np.float64], where: str, unit: str) -> None:
    """Refuse numbers to predict that are all the same, or so near to each other that powers of differences are 0.

    Args:
        values: The different numbers of the training side.
        where: What the numbers are from, as the user typed it.
        unit: What the training side consists of.

    Raises:
        UserError: If there are fewer than two, or all are within 1e-30.
    """
    if len(values) < 2:
        found = f"all have the number {values[0]:g}" if len(values) else "have no number"
        raise UserError(f"{where}: the training {unit} {found}, and a probe needs numbers that vary.")
    if (spread := float(values[-1]) - float(values[0])) < SMALLEST:
        raise UserError(
            f"{where}: the numbers of the training {unit} differ by {spread:g} at most, and at least {SMALLEST:g} is "
            "needed; give the numbers in another unit, or as logarithms."
        )


@dataclass(frozen=True)
class Standard:
    """Standardises the numbers to predict by the training examples.

    Args:
        mean: Mean of the training examples, which is the constant answer that a probe is compared with.
        sd: Their population standard deviation.
    """

    mean: float
    sd: float

    @classmethod
    def of(cls, train: Examples) -> Standard:
        """Return mean and standard deviation of the training examples."""
        targets = train.targets
        return cls(float(targets.mean()), float(targets.std()))

    def table(self, examples: Examples) -> Tensor:
        """Return the standardised number that each label of the examples stands for, float64."""
        assert examples.values is not None
        return torch.from_numpy((examples.values - self.mean) / self.sd)


def prior_cross_entropy_by_sentence(train: Examples, test: Examples, n_classes: int) -> NDArray[np.float64]:
    """Return the cross-entropy of the training tokens' class shares, summed over the test tokens of each sentence.

    A class without training tokens counts as half a token; otherwise its cross-entropy would be infinite.

    Args:
        train: Examples that give the shares of the classes.
        test: Examples that are predicted.
        n_classes: Number of classes.

    Returns:
        In nats, shape (n_sentences of the test corpus,).
    """
    counts, kept = train.counts(n_classes), test.labels >= 0
    cost = -np.log(np.maximum(counts, 0.5) / counts.sum())[test.labels[kept]]
    sums = np.zeros(test.store.tokens.n_sentences)
    np.add.at(sums, test.store.tokens.sentences[kept], cost)
    return sums


def constant_cross_entropy_by_sentence(train: Examples, test: Examples, n_classes: int) -> NDArray[np.float64]:
    """Return the cross-entropy of the better constant answer: the training class shares, or the uniform one.

    If many classes are equally frequent, differences of their shares are noise. A probe that its penalty keeps near
    uniform then predicts better than the shares, by about (n_classes - 1) / (2 n_train_tokens) nats, without having
    learnt anything.

    Args:
        train: Examples that give the shares of the classes.
        test: Examples that are predicted.
        n_classes: Number of classes.

    Returns:
        In nats, summed over the test tokens of each sentence, shape (n_sentences of the test corpus,).
    """
    shares = prior_cross_entropy_by_sentence(train, test, n_classes)
    uniform = test.tokens_by_sentence() * np.log(n_classes)
    return uniform if uniform.sum() < shares.sum() else shares


# Labels that a message lists.
_SHOWN = 5


class Classified(NamedTuple):
    """The class of each token of one side; for a task of sentences, of each sentence.

    Args:
        labels: Class of each token, -1 on another side or without a class, shape (n_tokens,). If numbers are predicted,
            the index of each number among the corpus's distinct numbers takes the place of the class.
        dropped: The labels of the side's tokens that are no classes, in the order of the tokens.
        n_unlabelled: Number of the side's tokens without a label, special tokens apart.
        n_special: Number of the side's special tokens without a label; 0 for a task of sentences.
    """

    labels: NDArray[np.int64]
    dropped: Labels
    n_unlabelled: int
    n_special: int


def label(
    store: Activations,
    corpus: Corpus,
    task: TokenTask,
    splits: Sequence[Split],
    classes: Labels,
    side: Split,
    by_document: bool = False,
) -> Examples:
    """Return the examples of one side, with their classes.

    Args:
        store: The store of the activations.
        corpus: The corpus that the store was made from.
        task: The task, which gives the labels.
        splits: Side of each sentence.
        classes: The labels that are classes, ascending.
        side: The side to return.
        by_document: Whether intervals are over documents; the corpus must then have documents.
    """
    found = class_of_tokens(store.tokens, corpus, task, splits, classes, side)
    labels = found.labels.astype(np.int32)
    documents = np.array(corpus.documents) if by_document else None
    values = values_of(labels_of(task, store.tokens, corpus)) if predicts_numbers(task) else None
    if isinstance(task, SentenceTask):
        vectors = SentenceVectors(store, task.pooling)
        return Examples(
            vectors, labels, len(found.dropped), False, documents, pooling=task.pooling, values=values,
            n_unlabelled=found.n_unlabelled,
        )  # fmt: skip
    return Examples(
        store, labels, len(found.dropped), task.word_means, documents, values=values,
        n_unlabelled=found.n_unlabelled, n_special=found.n_special, of_words=labels_words(task, store.tokens, corpus),
    )  # fmt: skip


def class_of_tokens(
    tokens: Tokens, corpus: Corpus, task: TokenTask, splits: Sequence[Split], classes: Labels, side: Split
) -> Classified:
    """Return the class of each token of one side, or of each sentence for a task of sentences.

    Args:
        tokens: The table of tokens.
        corpus: The corpus that the tokens belong to.
        task: The task, which gives the labels.
        splits: Side of each sentence.
        classes: The labels that are classes, ascending.
        side: The side whose tokens are classified.
    """
    labels = labels_of(task, tokens, corpus)
    if predicts_numbers(task):
        check_size(labels, f"`{corpus.name}`")
    here = np.array([split == side for split in splits])[sentences_of(task, tokens)]
    there = here & has_label(labels)
    special = np.zeros(len(here), dtype=bool) if isinstance(task, SentenceTask) else tokens.special
    n_without = int((here & ~there & ~special).sum()), int((here & ~there & special).sum())
    if predicts_numbers(task) and not len(classes := values_of(labels)):
        return Classified(np.full(len(labels), -1), labels[:0], *n_without)
    # Index of each label among the classes; checked below, since it also exists for labels that are not classes.
    index = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    known = there & (classes[index] == labels)
    return Classified(np.where(known, index, -1), labels[there & ~known], *n_without)


def choose_classes(tokens: Tokens, corpus: Corpus, task: TokenTask, splits: Sequence[Split]) -> Labels:
    """Return the labels with enough training examples, ascending; none if the task predicts numbers.

    Raises:
        UserError: If there are fewer than two, or no token or sentence has a label.
    """
    in_train = np.array([split == "train" for split in splits])
    labels = labels_of(task, tokens, corpus)
    if tokens.special.all():
        raise UserError("`--corpus`: no sentence is longer than one token, and special tokens do not count.")
    if not has_label(labels).any():
        raise UserError(
            f"`--corpus {corpus.name}`: the task gives no {unit_of(task)} a label; give text that it has labels for."
        )
    if predicts_numbers(task):
        check_varies(values_of(labels[in_train[sentences_of(task, tokens)]]), f"`--corpus {corpus.name}`", corpus.unit)
        return np.zeros(0)
    classes = classes_of(task, labels[in_train[sentences_of(task, tokens)]], int(in_train.sum()))
    if len(classes) < 2:
        trained = labels[in_train[sentences_of(task, tokens)]]
        of_train = np.unique(trained[has_label(trained)])
        if len(of_train) == 1:
            raise UserError(
                f"`--corpus`: all labels of the {int(in_train.sum())} training {corpus.unit} are {of_train[0]}, and a "
                "probe needs two classes; give text with another label, too."
            )
        if (most := getattr(task, "max_position", None)) is not None and (of_train > most).any():
            raise UserError(
                f"`--task_args.max_position {most}` leaves {len(classes)} classes with enough examples, and a probe "
                "needs two; raise it, or leave it out."
            )
        lines = ", one a line in a text file," if corpus.seconds is None else ""
        raise UserError(
            f"`--corpus`: {int(in_train.sum())} training {corpus.unit} leave {len(classes)} classes with enough "
            f"examples, and a probe needs two; give more {corpus.unit}{lines} or lower the bar with "
            "`--task_args.min_count`."
        )
    return classes


def labels_in_training(tokens: Tokens, corpus: Corpus, task: TokenTask, splits: Sequence[Split]) -> set[Any]:
    """Return the labels of the training tokens, also those that are too rare to be classes."""
    labels = labels_of(task, tokens, corpus)
    in_train = np.array([split == "train" for split in splits])[sentences_of(task, tokens)]
    return set(labels[in_train & has_label(labels)].tolist())


def say_what_has_no_label(tokens: Tokens, corpus: Corpus, task: TokenTask, say: Callable[[str], None]) -> None:
    """Report how many words or sentences have no label, and how many repeated sentences had other labels.

    A word has a label if one of its pieces has.
    """
    labelled = has_label(labels_of(task, tokens, corpus))
    unit = "sentences" if isinstance(task, SentenceTask) else "words"
    if unit == "words":
        begins = tokens.first_pieces
        labelled = np.bincount((begins.cumsum() - 1)[~tokens.special], labelled[~tokens.special], begins.sum()) > 0
    column = reader_of(task)(corpus) or ""
    if n_without := int((~labelled).sum()):
        values = corpus.sentence_columns if unit == "sentences" else corpus.columns
        what = "number" if predicts_numbers(task) else "label"
        shown = _missing_in(values[column], unit) if column in values and not predicts_numbers(task) else ""
        named = corpus.unit if unit == "sentences" else unit
        say(f"{corpus.name}: {n_without} of {len(labelled)} {named} have no {what}{shown} and are left out")
    if n_other := corpus.relabelled.get(column):
        say(
            f"{corpus.name}: {n_other} of the {corpus.n_repeated} repeated {corpus.unit} have other values of {column} "
            "than their first occurrence, whose values are used"
        )


def _missing_in(rows: Sequence[Any], unit: str) -> str:
    """Return the texts in the place of missing labels of a column, and how often each occurs, in brackets."""
    cells = rows if unit == "sentences" else chain.from_iterable(rows)
    counts = Counter(text_of(cell) or "empty" for cell in cells if not label_of(cell))
    listed = [text if text == "empty" else f"`{text}`" for text, _ in counts.most_common(_SHOWN)]
    below = ": numbers below 0 stand for none" if set(counts) != {"empty"} else ""
    return f" ({', '.join(listed)}{below})" if below else ""


def say_what_is_not_read(corpora: Sequence[Corpus], task: TokenTask, say: Callable[[str], None]) -> None:
    """Report that a corpus has labels where the task is about positions, as by default."""
    corpus = corpora[0]
    tasks = {"label": corpus.columns, "sentence_label": corpus.sentence_columns}
    if type(task).__name__.startswith("Position"):
        for name in [name for name, columns in tasks.items() if "label" in columns]:
            say(f"{corpus.name}: its labels are not used; `--task {name}` predicts them")


def say_what_is_no_class(
    sides: Mapping[Split, Classified], in_training: set[Any], unit: str, say: Callable[[str], None],
    most: int | None = None,
) -> None:  # fmt: skip
    """Report how many tokens or sentences have a label that is no class: above a limit, too rare, or not in training.

    Args:
        sides: What was found on each side.
        in_training: All labels of the training side.
        unit: What has a label.
        say: Function that takes one-line messages.
        most: Highest number that can be a class, as `--task_args.max_position` says it; None without a limit.
    """
    dropped = {side: found.dropped.tolist() for side, found in sides.items()}

    def is_beyond(label: Any) -> bool:
        return most is not None and label > most

    kinds = {
        f"are above `--task_args.max_position {most}`": is_beyond,
        "do not occur in training": lambda label: label not in in_training and not is_beyond(label),
        "are too rare to be classes (`--task_args.min_count` sets how often one must occur in training)":
            lambda label: label in in_training and not is_beyond(label),
    }  # fmt: skip
    for why, is_of in kinds.items():
        out = {side: [label for label in labels if is_of(label)] for side, labels in dropped.items()}
        counts = [
            f"{len(labels)} of the {int((sides[side].labels >= 0).sum()) + len(dropped[side])} in {side}"
            for side, labels in out.items()
            if labels
        ]
        if counts:
            shown = some_of(sorted(set(chain.from_iterable(out.values()))))
            say(f"{unit}s are left out, {listed(counts)}: their labels ({shown}) {why}")


def some_of(labels: Iterable[Any]) -> str:
    """Return the first few labels, for a message."""
    first = [str(label)[:40] for label in islice(labels, _SHOWN + 1)]
    return ", ".join(first[:_SHOWN]) + ", ..." * (len(first) > _SHOWN)
