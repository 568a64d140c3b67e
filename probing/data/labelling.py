"""The labels of the tokens of each side, the classes or numbers among them, and the best constant answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.activations.source import MOST_FEATURES, ActivationSource, FeatureStore, most_active, report_dropped_text
from probing.activations.store import CacheEntry
from probing.cli.options import LARGEST, SMALLEST, ProbeOptions
from probing.data.examples import (
    Examples,
    HiddenStateSource,
    Sides,
    check_covariate,
    pooled,
    read,
    with_covariate,
)
from probing.data.examples import values_of as covariate_values_of
from probing.errors import UserError
from probing.results import listed
from probing.text import Corpus, GroupBy, Split, intervals_by_document, splits_by_document
from probing.text.columns import label_of, text_of
from probing.text.tasks import (
    Covariate,
    Labels,
    SentenceTask,
    TokenTask,
    classes_of,
    has_label,
    labels_of,
    labels_words,
    on_side,
    predicts_numbers,
    reader_of,
    unit_of,
)
from probing.text.tokens import Tokens, count_words


def values_of(numbers: Labels) -> NDArray[np.float64]:
    """Return the different numbers among labels, ascending."""
    return np.unique(numbers[has_label(numbers)])


def check_size(numbers: Labels, where: str) -> None:
    """Refuse numbers to predict above 1e30 in magnitude, whose powers are infinite; NaN is missing."""
    if (largest := float(np.abs(numbers[has_label(numbers)]).max(initial=0.0))) > LARGEST:
        raise UserError(
            f"{where}: a number to predict has the size {largest:g}, where at most {LARGEST:g} is expected; give the "
            "numbers in another unit, or as logarithms."
        )


def check_varies(values: NDArray[np.float64], where: str, unit: str) -> None:
    """Refuse numbers to predict that are all equal or within 1e-30, where powers of differences are 0."""
    if len(values) < 2:
        problem = f"all have the number {values[0]:g}" if len(values) else "have no number"
        raise UserError(f"{where}: the training {unit} {problem}, and a probe needs numbers that vary.")
    if (spread := float(values[-1]) - float(values[0])) < SMALLEST:
        raise UserError(
            f"{where}: the numbers of the training {unit} differ by {spread:g} at most, and at least {SMALLEST:g} is "
            "needed; give the numbers in another unit, or as logarithms."
        )


@dataclass(frozen=True)
class Standard:
    """Standardisation of the numbers to predict by mean and population standard deviation of the training examples.

    The mean is the constant answer that a probe is compared with.
    """

    mean: float
    sd: float

    @classmethod
    def of(cls, train: Examples) -> Standard:
        """Return mean and standard deviation of the training examples."""
        targets = train.targets
        return cls(float(targets.mean()), float(targets.std()))

    def table(self, examples: Examples) -> Tensor:
        """Return the standardised number of each label of the examples, float64."""
        assert examples.values is not None
        return torch.from_numpy((examples.values - self.mean) / self.sd)


def prior_cross_entropy_by_sentence(train: Examples, test: Examples, n_classes: int) -> NDArray[np.float64]:
    """Return the cross-entropy of the training class shares, summed over each sentence's test tokens, in nats.

    A class without training tokens counts as half a token; otherwise its cross-entropy would be infinite. The shape is
    (n_sentences of the test corpus,).
    """
    counts, examples = train.counts(n_classes), test.labels >= 0
    cost = -np.log(np.maximum(counts, 0.5) / counts.sum())[test.labels[examples]]
    sums = np.zeros(test.store.tokens.n_sentences)
    np.add.at(sums, test.store.tokens.sentences[examples], cost)
    return sums


def constant_cross_entropy_by_sentence(train: Examples, test: Examples, n_classes: int) -> NDArray[np.float64]:
    """Return the cross-entropy of the better constant answer: the training class shares, or the uniform distribution.

    If many classes are equally frequent, differences of their shares are noise. A probe that its penalty keeps near
    uniform then predicts better than the shares, by about (n_classes - 1) / (2 n_train_tokens) nats, without having
    learnt anything. Unit and shape are as of `prior_cross_entropy_by_sentence`.
    """
    shares = prior_cross_entropy_by_sentence(train, test, n_classes)
    uniform = test.tokens_by_sentence() * np.log(n_classes)
    return uniform if uniform.sum() < shares.sum() else shares


# Labels that a message lists.
_SHOWN = 5


class Classified(NamedTuple):
    """The class of each token of one side; for a task of sentences, of each sentence.

    Args:
        labels: Class of each token, -1 on another side or without a class, shape (n_tokens,). For numbers, the index of
            each number among the corpus's distinct numbers.
        dropped: The labels of the side's tokens that are no classes, in the order of the tokens.
        n_unlabelled: Number of the side's tokens without a label, special tokens apart.
        n_special: Number of the side's special tokens without a label; 0 for a task of sentences.
    """

    labels: NDArray[np.int64]
    dropped: Labels
    n_unlabelled: int
    n_special: int


def label(
    store: HiddenStateSource,
    corpus: Corpus,
    task: TokenTask,
    splits: Sequence[Split],
    classes: Labels,
    side: Split,
    by_document: bool = False,
    known: Classified | None = None,
) -> Examples:
    """Return the examples of one side, with their classes; `splits` is the side of each sentence, `classes` ascend.

    Intervals are over documents if `by_document`; the corpus must then have documents. `known` is the class of each
    token where it is known.
    """
    known = known or class_of_tokens(store.tokens, corpus, task, splits, classes, side)
    pooling = task.pooling if isinstance(task, SentenceTask) else None
    return Examples(
        pooled(store, task, corpus) if isinstance(task, SentenceTask) else store,
        known.labels.astype(np.int32),
        len(known.dropped),
        word_means=pooling is None and task.word_means,
        documents=np.array(corpus.documents) if by_document else None,
        pooling=pooling,
        values=values_of(labels_of(task, store.tokens, corpus)) if predicts_numbers(task) else None,
        n_unlabelled=known.n_unlabelled,
        n_special=known.n_special,
        of_words=labels_words(task, store.tokens, corpus),
    )


def class_of_tokens(
    tokens: Tokens, corpus: Corpus, task: TokenTask, splits: Sequence[Split], classes: Labels, side: Split
) -> Classified:
    """Return the class of each token of one side, or of each sentence for a task of sentences; `classes` ascend."""
    labels = labels_of(task, tokens, corpus)
    if predicts_numbers(task):
        check_size(labels, f"`{corpus.name}`")
    of_side = on_side(task, labels, tokens, corpus, splits, side)
    return classify(labels, of_side, classes, None if isinstance(task, SentenceTask) else tokens.special)


def classify(
    labels: Labels, of_side: NDArray[np.bool_], classes: Labels, special: NDArray[np.bool_] | None = None
) -> Classified:
    """Return the class of each label of one side; `classes` ascend. All arrays of labels have the same shape."""
    labelled = of_side & has_label(labels)
    special = np.zeros(len(labels), dtype=bool) if special is None else special
    n_without = int((of_side & ~labelled & ~special).sum()), int((of_side & ~labelled & special).sum())
    if labels.dtype.kind == "f" and not len(classes := values_of(labels)):
        return Classified(np.full(len(labels), -1), labels[:0], *n_without)
    # Index of each label among the classes; checked below, since it also exists for labels that are not classes.
    index = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    known = labelled & (classes[index] == labels)
    return Classified(np.where(known, index, -1), labels[labelled & ~known], *n_without)


def choose_classes(tokens: Tokens, corpus: Corpus, task: TokenTask, splits: Sequence[Split]) -> Labels:
    """Return the labels with enough training examples, ascending, at least two; none if numbers are predicted."""
    n_train, labels = splits.count("train"), labels_of(task, tokens, corpus)
    if tokens.special.all():
        raise UserError("`--corpus`: no sentence is longer than one token, and special tokens do not count.")
    if not has_label(labels).any():
        raise UserError(
            f"`--corpus {corpus.name}`: the task gives no {unit_of(task)} a label; give text that it has labels for."
        )
    trained = labels[on_side(task, labels, tokens, corpus, splits, "train")]
    if predicts_numbers(task):
        check_varies(values_of(trained), f"`--corpus {corpus.name}`", corpus.unit)
        return np.zeros(0)
    classes = classes_of(task, trained, n_train)
    if len(classes) < 2:
        of_train = np.unique(trained[has_label(trained)])
        if len(of_train) == 1:
            raise UserError(
                f"`--corpus`: all labels of the {n_train} training {corpus.unit} are {of_train[0]}, and a "
                "probe needs two classes; give text with another label, too."
            )
        if (most := getattr(task, "max_position", None)) is not None and (of_train > most).any():
            raise UserError(
                f"`--task_args.max_position {most}` leaves {len(classes)} classes with enough examples, and a probe "
                "needs two; raise it, or leave it out."
            )
        lines = ", one a line in a text file," if corpus.seconds is None else ""
        raise UserError(
            f"`--corpus`: {n_train} training {corpus.unit} leave {len(classes)} classes with enough "
            f"examples, and a probe needs two; give more {corpus.unit}{lines} or lower the bar with "
            "`--task_args.min_count`."
        )
    return classes


def labels_in_training(tokens: Tokens, corpus: Corpus, task: TokenTask, splits: Sequence[Split]) -> set[Any]:
    """Return the labels of the training tokens, also labels that are too rare to be classes."""
    labels = labels_of(task, tokens, corpus)
    in_train = on_side(task, labels, tokens, corpus, splits, "train")
    return set(labels[in_train & has_label(labels)].tolist())


def warn_missing_labels(tokens: Tokens, corpus: Corpus, task: TokenTask, say: Callable[[str], None]) -> None:
    """Report the numbers of words (all pieces) or sentences without a label, and of repeats with other labels."""
    labelled = has_label(labels_of(task, tokens, corpus))
    unit = "words" if unit_of(task) == "token" else f"{unit_of(task)}s"
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
    place = corpus.column_with(column) or column
    if n_other := corpus.relabelled.get(place):
        say(
            f"{corpus.name}: {n_other} of the {corpus.n_repeated} repeated {corpus.unit} have other values of {place} "
            "than their first occurrence, whose values are used"
        )


def _missing_in(rows: Sequence[Any], unit: str) -> str:
    """Return the texts in place of missing labels of a column, by frequency, in brackets."""
    cells = rows if unit == "sentences" else chain.from_iterable(rows)
    counts = Counter(text_of(cell) or "empty" for cell in cells if not label_of(cell))
    listed = [text if text == "empty" else f"`{text}`" for text, _ in counts.most_common(_SHOWN)]
    below = ": numbers below 0 stand for none" if set(counts) != {"empty"} else ""
    return f" ({', '.join(listed)}{below})" if below else ""


def warn_unused_columns(corpora: Sequence[Corpus], task: TokenTask, say: Callable[[str], None]) -> None:
    """Report that a corpus has labels where the task is about positions, as by default."""
    corpus = corpora[0]
    tasks = {"label": corpus.columns, "sentence_label": corpus.sentence_columns}
    if type(task).__name__.startswith("Position"):
        for name in [name for name, columns in tasks.items() if "label" in columns]:
            say(f"{corpus.name}: its labels are not used; `--task {name}` predicts them")


def warn_rare_classes(
    sides: Mapping[Split, Classified], in_training: set[Any], unit: str, say: Callable[[str], None],
    most: int | None = None,
) -> None:  # fmt: skip
    """Report the numbers of labels that are no class: above a limit (`most`), too rare, or not in training."""
    dropped = {side: classified.dropped.tolist() for side, classified in sides.items()}

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


# --------------------------------------------------------------------------------------------------------------------
# Prepares the examples that `fit` trains and tests on.
# --------------------------------------------------------------------------------------------------------------------

# Called with the tokens of the training corpus, the number of classes, and that of training examples.
Announce = Callable[[Tokens, int, int], None]


def origin(store: CacheEntry) -> dict[str, Any]:
    """Return the origin of activations for `results.json`, with columns read, cut sentences, words and documents."""
    corpus, site = store.corpus, {"site": store.header["site"]} if "site" in store.header else {}
    counts = corpus and count_words(store.tokens, corpus)
    documents = {"n_documents": len(set(corpus.documents))} if corpus and corpus.documents is not None else {}
    return {
        **{name: store.header[name] for name in ("model", "revision", "corpus", "key", "versions")},
        **site,
        "n_truncated": store.tokens.n_truncated,
        **(counts.as_json() if counts else {}),
        **documents,
        **(corpus.as_read if corpus else {}),
    }


def n_heads_of(store: ActivationStore) -> int | None:
    """Return the number of heads into which a layer's neurons divide; None if they belong to no heads."""
    n_heads: int | None = store.header.get("site", {}).get("n_heads")
    return n_heads


def label_sides(
    stores: Sequence[HiddenStateSource],
    corpora: Sequence[Corpus],
    splits: Sequence[Sequence[Split]],
    task: TokenTask,
    group_by: GroupBy = "sentence",
    covariate: Covariate | None = None,
    checked: ExampleChecks | None = None,
) -> Sides:
    """Return the labelled tokens of each side; with two corpora, the second is the test side.

    `group_by` is the option's value: the independent unit in each corpus, sentences or documents. What the checks of
    the same tokens have found is taken from `checked`.
    """
    known = checked.classified if checked else {}
    classes = checked.classes if checked else choose_classes(stores[0].tokens, corpora[0], task, splits[0])
    by_document = [splits_by_document(group_by, corpora[0]), intervals_by_document(group_by, corpora)][-len(corpora) :]
    parts = {
        side: label(stores[part], corpora[part], task, splits[part], classes, side, by_document[part], known.get(side))
        for part in range(len(corpora))
        for side in _sides_of(part, len(corpora))
    }
    sides = Sides(parts["train"], parts["validation"], parts["test"], classes, task.ordinal)
    if covariate is None:
        return sides
    pairs = zip(stores, corpora, strict=True)
    return with_covariate(
        sides, [covariate_values_of(covariate, store.tokens, corpus, task) for store, corpus in pairs]
    )


def read_sides(
    source: ActivationSource,
    corpora: Sequence[Corpus],
    splits: Sequence[Sequence[Split]],
    task: TokenTask,
    probe: ProbeOptions,
    group_by: GroupBy,
    announce: Announce = lambda tokens, n_classes, n_train: None,
    covariate: Covariate | None = None,
) -> tuple[Sides, list[ActivationStore]]:
    """Read the corpora and label their tokens; return the sides and the activations of each corpus.

    With two corpora, the second is the test side. `probe` decides whether validation tokens are needed; `announce` is
    called once examples are known, before the model reads the corpora.

    Raises:
        UserError: If a required side has no examples, or if documents are requested but the corpus has none.
    """
    intervals_by_document(group_by, corpora)  # refuses a corpus without documents before a model reads it
    if getattr(task, "n_spans", 1) > 1 and source.site not in ("residual", "mlp"):
        raise UserError(
            f"`--site {source.site}`: the task reads the vectors of two spans side by side, which are not divided into "
            "heads or features; give residual or mlp, or a task of single spans."
        )
    checks = ExampleChecks(task, corpora, splits, probe, source.say, announce, covariate)
    stores = source.read(corpora, checks.by_corpus())
    report_dropped_text(corpora, [store.tokens for store in stores], source.say)
    stores = _narrowed(stores, source, splits[0])
    checked = checks if checks.classified else None  # the rank-zero process alone checks
    return label_sides(stores, corpora, splits, task, group_by, covariate, checked), stores


def _narrowed(stores: list[ActivationStore], source: ActivationSource, split: Sequence[Split]) -> list[ActivationStore]:
    """Return stores of the most active features of a dictionary that has too many, with a message; others unchanged."""
    first = stores[0]
    if not isinstance(first, FeatureStore) or first.plan.d_model <= MOST_FEATURES:
        return stores
    (layer,) = source.layers
    selected_features, most = most_active(first, layer, [i for i, side in enumerate(split) if side == "train"])
    source.say(
        f"{first.dictionary_folder}: of {first.plan.d_model:,} features, the {len(selected_features):,} are read that "
        "are active on "
        f"the most training tokens; each of the others is active on at most {most:,}. The column `feature` of "
        "neurons.csv has their numbers in the dictionary"
    )
    return [store.keeping(selected_features) if isinstance(store, FeatureStore) else store for store in stores]


def selected_features_of(store: ActivationStore) -> tuple[int, ...] | None:
    """Return the numbers of the selected features of a dictionary; None if all are read, or without dictionary."""
    return (
        tuple(store.selected_features)
        if isinstance(store, FeatureStore) and store.selected_features is not None
        else None
    )


@dataclass
class ExampleChecks:
    """Checks of the tokens of each corpus, which refuse a side without examples and report tokens without a class.

    The checks need only the tokens, so they run before the model reads the corpus, which may take hours. The validation
    side may be empty if nothing is chosen on it. Afterwards, `classes` and `classified`, by side, hold the labels.
    """

    task: TokenTask
    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    probe: ProbeOptions
    say: Callable[[str], None]
    announce: Announce = lambda tokens, n_classes, n_train: None
    covariate: Covariate | None = None
    classes: Labels = field(default_factory=lambda: np.zeros(0))  # set by the check of the first corpus, as is the next
    in_training: set[Any] = field(default_factory=set)
    classified: dict[Split, Classified] = field(default_factory=dict)

    def by_corpus(self) -> list[Callable[[Tokens], None]]:
        """Return the check of each corpus, of which the first runs first."""
        return [partial(self.check, part=part) for part in range(len(self.corpora))]

    def check(self, tokens: Tokens, part: int) -> None:
        """Check the tokens of a corpus."""
        task, corpus, splits, covariate = self.task, self.corpora[part], self.splits[part], self.covariate
        # Said first: what has no label may be why there are too few classes.
        warn_missing_labels(tokens, corpus, task, self.say)
        if part == 0:
            self.classes = choose_classes(tokens, corpus, task, splits)
            self.in_training = labels_in_training(tokens, corpus, task, splits)
        by_side: dict[Split, Classified] = {}
        for side in _sides_of(part, len(self.corpora)):
            classified = class_of_tokens(tokens, corpus, task, splits, self.classes, side)
            if covariate is not None and side == "train":
                values = covariate_values_of(covariate, tokens, corpus, task)
                check_covariate(values, classified.labels, f"--control_for {covariate.typed}", unit_of(task))
            if not (classified.labels >= 0).any() and (self.probe.needs_validation or side != "validation"):
                n_sentences, dropped = splits.count(side), classified.dropped
                raise _no_examples(task, n_sentences, corpus.unit, side, self.classes, dropped, self.probe)
            by_side[side] = classified
        self.classified |= by_side
        unit = unit_of(task) if corpus.seconds is None else corpus.unit[:-1]
        warn_rare_classes(by_side, self.in_training, unit, self.say, getattr(task, "max_position", None))
        if part == 0:
            self.announce(tokens, len(self.classes), int((by_side["train"].labels >= 0).sum()))


def _no_examples(
    task: TokenTask, n_sentences: int, unit: str, side: Split, classes: Labels, dropped: Labels, probe: ProbeOptions
) -> UserError:
    """Return the refusal of a side without examples; `dropped` are its labels that are no classes."""
    has = "is" if unit_of(task) == "sentence" else f"has a {unit_of(task)}"
    none = f"none of the {n_sentences} {unit}" if n_sentences else f"no {unit[:-1]}"
    sets = f" (classes: {some_of(classes)}; its labels: {some_of(np.unique(dropped))})" if len(dropped) else ""
    way_out = " or another --test_corpus" if side == "test" else ""
    if side == "validation" and probe.solver == "lbfgs":
        way_out = " or a penalty, such as --probe.l2 1e-2"
    return UserError(f"`--corpus`: {none} of the {side} part {has} of any class{sets}; give more {unit}{way_out}.")


def _sides_of(part: int, n_corpora: int) -> tuple[Split, ...]:
    """Return the sides that are read from a corpus: with two, the second is the test side."""
    if n_corpora == 1:
        return ("train", "validation", "test")
    return ("train", "validation") if part == 0 else ("test",)


class LayerSample(NamedTuple):
    """Hidden states of examples of one layer, shape (n, d_model), float32, and their classes, shape (n,)."""

    hidden_states: Tensor
    labels: Tensor


def thin(examples: Examples, at_most: int, seed: int) -> Examples:
    """Return at most `at_most` examples, if needed of randomly drawn sentences, as many as fit.

    If these are fewer than half, since a long sentence does not fit, a part of that sentence fills the rest.
    """
    if examples.n_tokens <= at_most:
        return examples
    tokens = examples.store.tokens
    sizes = np.bincount(tokens.sentences[examples.labels >= 0], minlength=tokens.n_sentences)
    drawn = np.random.default_rng(seed).permutation(tokens.n_sentences)
    drawn_sentences = np.zeros(tokens.n_sentences, dtype=bool)
    fits = np.cumsum(sizes[drawn]) <= at_most
    drawn_sentences[drawn[fits]] = True
    is_drawn, n = drawn_sentences[tokens.sentences], int(sizes[drawn_sentences].sum())
    if n < at_most // 2:
        rows = np.flatnonzero((tokens.sentences == drawn[fits.sum()]) & (examples.labels >= 0))
        is_drawn[rows[np.linspace(0, len(rows) - 1, at_most - n).astype(np.int64)]] = True
    return replace(examples, labels=np.where(is_drawn, examples.labels, -1))


def load(examples: Examples, layer: int) -> LayerSample:
    """Read the examples of one layer into memory."""
    states, labels = [], []
    for batch in read(examples, [layer]):
        states.append(batch.hidden_states[0])
        labels.append(batch.labels)
    return LayerSample(torch.cat(states), torch.cat(labels))


# --------------------------------------------------------------------------------------------------------------------
# What a model with a head of its own is to predict of each token or sentence, as losses of torch take it.
# --------------------------------------------------------------------------------------------------------------------

# Class of what is not to be predicted, as losses of torch know it.
IGNORED = -100


def targets_of(examples: Examples, standard: Standard | None) -> Tensor:
    """Return the class of each token or sentence, or its standardised number; `IGNORED` or NaN if missing."""
    labels = torch.from_numpy(examples.labels.astype(np.int64))
    if standard is None:
        return labels.where(labels >= 0, IGNORED)
    return standard.table(examples).float()[labels.clamp(min=0)].where(labels >= 0, torch.nan)


def is_target(targets: Tensor) -> Tensor:
    """Return a mask of the targets that are predicted."""
    return ~targets.isnan() if targets.is_floating_point() else targets != IGNORED


def nothing(targets: Tensor) -> float | int:
    """Return the value of targets that are not predicted."""
    return torch.nan if targets.is_floating_point() else IGNORED
