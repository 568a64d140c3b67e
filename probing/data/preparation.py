"""Prepares the examples that `fit` trains and tests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probing.cache import ActivationStore
from probing.cache.source import MOST_FEATURES, ActivationSource, FeatureStore, most_active, say_what_was_left_out
from probing.cache.tokens import Tokens, count_words
from probing.cli.options import ProbeOptions
from probing.corpus import Corpus
from probing.corpus.splits import GroupBy, Split, intervals_by_document, splits_by_document
from probing.data.examples import Activations, Examples, Sides, read
from probing.data.given_values import check_given, values_of, with_given
from probing.data.labelling import (
    Classified,
    choose_classes,
    class_of_tokens,
    label,
    labels_in_training,
    say_what_has_no_label,
    say_what_is_no_class,
    some_of,
)
from probing.errors import UserError
from probing.tasks import Labels, TokenTask, unit_of
from probing.tasks.given import HeldFixed

# Called with the tokens of the training corpus, the number of classes, and that of training examples.
Announce = Callable[[Tokens, int, int], None]


def origin(store: ActivationStore) -> dict[str, Any]:
    """Return the origin of activations, columns that were read, how many sentences are cut, words and documents.

    They are for a run's `results.json`.
    """
    header = {name: store.header[name] for name in ("model", "revision", "corpus", "key", "versions")}
    if "site" in store.header:
        header["site"] = store.header["site"]
    corpus = store.corpus
    counts = corpus and count_words(store.tokens, corpus)
    documents = {"n_documents": len(set(corpus.documents))} if corpus and corpus.documents is not None else {}
    return {
        **header,
        "n_truncated": store.tokens.n_truncated,
        **(counts.as_json() if counts else {}),
        **documents,
        **(corpus.as_read if corpus else {}),
    }


def n_heads_of(store: ActivationStore) -> int | None:
    """Return the number of heads that the neurons of a layer belong to; None if they belong to none."""
    n_heads: int | None = store.header.get("site", {}).get("n_heads")
    return n_heads


def label_sides(
    stores: Sequence[Activations],
    corpora: Sequence[Corpus],
    splits: Sequence[Sequence[Split]],
    task: TokenTask,
    group_by: GroupBy = "sentence",
    given: HeldFixed | None = None,
) -> Sides:
    """Return the labelled tokens of each side; with two corpora, the second is the test side.

    Args:
        stores: Activations of each corpus.
        corpora: The corpora.
        splits: Side of each sentence of each corpus.
        task: The task, which gives the labels.
        group_by: The option's value: what is independent in each corpus, sentences or documents.
        given: What is held fixed, if anything is.

    Raises:
        UserError: If documents are requested but the test corpus has none.
    """
    classes = choose_classes(stores[0].tokens, corpora[0], task, splits[0])
    by_document = [splits_by_document(group_by, corpora[0]), intervals_by_document(group_by, corpora)][-len(corpora) :]
    parts = {
        side: label(stores[part], corpora[part], task, splits[part], classes, side, by_document[part])
        for part in range(len(corpora))
        for side in _sides_of(part, len(corpora))
    }
    sides = Sides(parts["train"], parts["validation"], parts["test"], classes, task.ordinal)
    if given is None:
        return sides
    pairs = zip(stores, corpora, strict=True)
    return with_given(sides, [values_of(given, store.tokens, corpus, task) for store, corpus in pairs])


def read_sides(
    source: ActivationSource,
    corpora: Sequence[Corpus],
    splits: Sequence[Sequence[Split]],
    task: TokenTask,
    probe: ProbeOptions,
    group_by: GroupBy,
    announce: Announce = lambda tokens, n_classes, n_train: None,
    given: HeldFixed | None = None,
) -> tuple[Sides, list[ActivationStore]]:
    """Read the corpora and label their tokens; return the sides and the activations of each corpus.

    Args:
        source: The model that reads the corpora, and its cache.
        corpora: The corpora; with two, the second is the test side.
        splits: Side of each sentence of each corpus.
        task: The task, which gives the labels.
        probe: The probe options, which decide whether validation tokens are needed.
        group_by: The option's value: whether intervals are over sentences or documents.
        announce: Called once examples are known, before the model reads the corpora.
        given: What is held fixed, if anything is.

    Raises:
        UserError: If a required side has no examples, or if documents are requested but the corpus has none.
    """
    intervals_by_document(group_by, corpora)  # refuses a corpus without documents before a model reads it
    stores = source.read(corpora, example_checks(task, corpora, splits, probe, source.say, announce, given))
    say_what_was_left_out(corpora, [store.tokens for store in stores], source.say)
    stores = _narrowed(stores, source, splits[0])
    return label_sides(stores, corpora, splits, task, group_by, given), stores


def _narrowed(stores: list[ActivationStore], source: ActivationSource, split: Sequence[Split]) -> list[ActivationStore]:
    """Return stores of the most active features of a dictionary that has too many, and say so; others unchanged."""
    first = stores[0]
    if not isinstance(first, FeatureStore) or first.plan.d_model <= MOST_FEATURES:
        return stores
    (layer,) = source.layers
    kept, most = most_active(first, layer, [i for i, side in enumerate(split) if side == "train"])
    source.say(
        f"{first.dictionary_folder}: of {first.plan.d_model:,} features, the {len(kept):,} are read that are active on "
        f"the most training tokens; each of the others is active on at most {most:,}. The column `feature` of "
        "neurons.csv has their numbers in the dictionary"
    )
    return [store.keeping(kept) if isinstance(store, FeatureStore) else store for store in stores]


def kept_features(store: ActivationStore) -> tuple[int, ...] | None:
    """Return the numbers of the features that are read of a dictionary; None if all are, or if there is none."""
    return tuple(store.kept) if isinstance(store, FeatureStore) and store.kept is not None else None


def example_checks(
    task: TokenTask,
    corpora: Sequence[Corpus],
    splits: Sequence[Sequence[Split]],
    probe: ProbeOptions,
    say: Callable[[str], None],
    announce: Announce = lambda tokens, n_classes, n_train: None,
    given: HeldFixed | None = None,
) -> list[Callable[[Tokens], None]]:
    """Return a check for each corpus, which refuses a side without examples and reports tokens without a class.

    The checks need only the tokens, so they run before the model reads the corpus, which may take hours. The validation
    side may be empty if nothing is chosen on it.
    """
    classes: Labels  # set by the check of the first corpus, which runs first
    in_training: set[Any]
    n_of: dict[Split, int] = {}

    def check(tokens: Tokens, part: int) -> None:
        nonlocal classes, in_training
        # Said first: what has no label may be why there are too few classes.
        say_what_has_no_label(tokens, corpora[part], task, say)
        if part == 0:
            classes = choose_classes(tokens, corpora[0], task, splits[0])
            in_training = labels_in_training(tokens, corpora[0], task, splits[0])
        found_on: dict[Split, Classified] = {}
        for side in _sides_of(part, len(corpora)):
            found = class_of_tokens(tokens, corpora[part], task, splits[part], classes, side)
            if given is not None and side == "train":
                values = values_of(given, tokens, corpora[part], task)
                check_given(values, found.labels, f"--given {given.typed}", unit_of(task))
            n_of[side] = n = int((found.labels >= 0).sum())
            if not n and (probe.needs_validation or side != "validation"):
                n_there = splits[part].count(side)
                raise _no_examples(task, n_there, corpora[part].unit, side, classes, found.dropped, probe)
            found_on[side] = found
        unit = unit_of(task) if corpora[part].seconds is None else corpora[part].unit[:-1]
        say_what_is_no_class(found_on, in_training, unit, say, getattr(task, "max_position", None))
        if part == 0:
            announce(tokens, len(classes), n_of["train"])

    return [partial(check, part=part) for part in range(len(corpora))]


def _no_examples(
    task: TokenTask, n_sentences: int, unit: str, side: Split, classes: Labels, dropped: Labels, probe: ProbeOptions
) -> UserError:
    """Return the refusal of a side without examples.

    Args:
        task: The task.
        n_sentences: Number of sentences of the side.
        unit: What these are: `sentences` or `pairs`.
        side: The side.
        classes: The classes, ascending.
        dropped: Labels of the side that are no classes.
        probe: The probe options.
    """
    has = "is" if unit_of(task) == "sentence" else "has a token"
    none = f"none of the {n_sentences} {unit}" if n_sentences else f"no {unit[:-1]}"
    sets = f" (classes: {some_of(classes)}; its labels: {some_of(np.unique(dropped))})" if len(dropped) else ""
    way_out = f"give more {unit}" + _ways_out(side, probe)
    return UserError(f"`--corpus`: {none} of the {side} part {has} of any class{sets}; {way_out}.")


def _ways_out(side: Split, probe: ProbeOptions) -> str:
    """Return remedies, other than more sentences, for a side without examples."""
    if side == "test":
        return " or another --test_corpus"
    return " or a penalty, such as --probe.l2 1e-2" if side == "validation" and probe.solver == "lbfgs" else ""


def _sides_of(part: int, n_corpora: int) -> tuple[Split, ...]:
    """Return the sides that are read from a corpus: with two, the second is the test side."""
    if n_corpora == 1:
        return ("train", "validation", "test")
    return ("train", "validation") if part == 0 else ("test",)


class Sample(NamedTuple):
    """Examples of one layer.

    Args:
        hidden_states: Hidden states of the examples, shape (n, d_model), float32.
        labels: Class of each example, shape (n,).
    """

    hidden_states: Tensor
    labels: Tensor


def thin(examples: Examples, at_most: int, seed: int) -> Examples:
    """Return the examples; if there are too many, those of randomly drawn sentences, as many as fit.

    Where these are fewer than half, since a long sentence does not fit, a part of it fills the rest.

    Args:
        examples: Examples of one side.
        at_most: Most examples to return.
        seed: Seed of the draw.
    """
    if examples.n_tokens <= at_most:
        return examples
    tokens = examples.store.tokens
    sizes = np.bincount(tokens.sentences[examples.labels >= 0], minlength=tokens.n_sentences)
    drawn = np.random.default_rng(seed).permutation(tokens.n_sentences)
    kept = np.zeros(tokens.n_sentences, dtype=bool)
    fits = np.cumsum(sizes[drawn]) <= at_most
    kept[drawn[fits]] = True
    is_kept, n = kept[tokens.sentences], int(sizes[kept].sum())
    if n < at_most // 2:
        rows = np.flatnonzero((tokens.sentences == drawn[fits.sum()]) & (examples.labels >= 0))
        is_kept[rows[np.linspace(0, len(rows) - 1, at_most - n).astype(np.int64)]] = True
    return replace(examples, labels=np.where(is_kept, examples.labels, -1))


def load(examples: Examples, layer: int) -> Sample:
    """Read the examples of one layer into memory."""
    states, labels = [], []
    for batch in read(examples, [layer]):
        states.append(batch.hidden_states[0])
        labels.append(batch.labels)
    return Sample(torch.cat(states), torch.cat(labels))
