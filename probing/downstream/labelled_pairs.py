"""Labelled pairs of sentences as `sts` and `wic` read them, their parts, and what is predicted of a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from probing.corpus import Corpus, from_pairs
from probing.corpus.splits import GroupBy, Split, compared, divided, split_key, splits_by_document, splits_of
from probing.downstream import sts_dataset, wic_dataset
from probing.downstream.sts_dataset import SICK, SentencePairs
from probing.downstream.wic_dataset import WordPairs
from probing.errors import UserError
from probing.tasks import SentenceTask, TokenTask, load_task

# What is predicted of a pair, by the column that has it; of these, the numbers.
ENTAILMENT, RELATEDNESS, SIMILARITY, SAME_SENSE = "entailment", "relatedness", "similarity", "same_sense"
_NUMBERS = (RELATEDNESS, SIMILARITY)
# The task that reads a column.
_TASK = "sentence_label"
# A group of pairs with a larger share than this is trained on, because no other part would have room for it.
_LARGEST_TESTED = 0.1

Pair = tuple[str, str]
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Part:
    """One part of a data set.

    Args:
        name: Data set and part, such as `SICK dev`.
        pairs: Its pairs.
        columns: What is said of each pair, by column.
    """

    name: str
    pairs: Sequence[Pair]
    columns: Columns


@dataclass(frozen=True)
class PairText:
    """The pairs that a model is tuned and tested on.

    Args:
        corpora: One corpus, or that of training and, last, that of the test part.
        splits: Side of each pair of each corpus.
        n_sharing: Number of test pairs with a sentence that training pairs have, too.
    """

    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    n_sharing: int


def read_parts(source: str, option: str, say: Callable[[str], None]) -> dict[str, Part]:
    """Read the parts of the one data set of a source, by `train`, `dev` and `test`.

    Args:
        source: A folder or a file of WiC, SICK, STS-B or one of STS12 to STS16, or `hf:NAME?config=C`.
        option: The option that names it, for messages.
        say: Takes messages.

    Raises:
        UserError: If there is none, or several, or it cannot be read.
    """
    with _of_option(option, "sts", "wic"):
        if of_words := wic_dataset.read_wic_parts(source):
            for part, found in of_words.items():
                for line in found.said(f"WiC {part}"):
                    say(line)
            return {part: _of_words(part, found) for part, found in of_words.items()}
        sets = sts_dataset.read_sts([source])
    names = list(dict.fromkeys(one.name for one in sets))
    if len(names) > 1:
        raise UserError(f"`{option} {source}` holds {', '.join(names)}; give the folder or file of one of them.")
    for one in sets:
        for line in one.said():
            say(line)
    parts: dict[str, Part] = {one.part: _of_sentences(one) for one in sets}
    return {part: parts[part] for part in ("train", "dev", "test") if part in parts}


@contextmanager
def _of_option(option: str, *others: str) -> Iterator[None]:
    """Name an option in messages of what reads its source for other commands or options, too."""
    try:
        yield
    except UserError as error:
        message = str(error)
        for other in others:
            message = message.replace(f"`{other} ", f"`{option} ")
        both = f"{sts_dataset.READABLE}; or {wic_dataset.READABLE}"
        raise UserError(message.replace(sts_dataset.READABLE, both)) from None


@contextmanager
def about_pairs() -> Iterator[None]:
    """Name the options of pairs in messages about those of corpora."""
    try:
        yield
    except UserError as error:
        message = str(error).replace("--corpus", "--pairs").replace("--test_corpus", "--test_pairs")
        raise UserError(message) from None


def _of_sentences(found: SentencePairs) -> Part:
    sentences, rows = found.corpus.sentences, found.sentences.tolist()
    of_score = RELATEDNESS if found.name == SICK else SIMILARITY
    columns: dict[str, Sequence[Any]] = {of_score: found.gold.tolist()}
    if found.entailment:
        columns[ENTAILMENT] = found.entailment
    name = "SICK" if found.name == SICK else found.name
    return Part(f"{name} {found.part}", [(sentences[i], sentences[j]) for i, j in rows], columns)


def _of_words(part: str, found: WordPairs) -> Part:
    sentences, rows = found.corpus.sentences, found.sentences.tolist()
    pairs = [(sentences[i], sentences[j]) for i, j in rows]
    return Part(f"WiC {part}", pairs, {SAME_SENSE: found.labels.tolist()})


def task_of(
    task: str | TokenTask, task_args: Mapping[str, Any] | None, sources: Mapping[str, Mapping[str, Part]]
) -> tuple[TokenTask, dict[str, Any]]:
    """Return the task of pairs, and its options; scores are numbers to predict unless the user says else.

    Args:
        task: The task, as given.
        task_args: Its options.
        sources: The parts of each source, by its option and name as they were typed.

    Raises:
        UserError: If it is not clear which column is meant, or the task is not one of whole pairs.
    """
    options = dict(task_args or {})
    if task == _TASK:
        for typed, parts in sources.items():
            columns = list(dict.fromkeys(column for part in parts.values() for column in part.columns))
            column = options.setdefault("column", columns[0] if len(columns) == 1 else None)
            if column not in columns:
                found = "has several labels" if column is None else f"has no {column}"
                choices = " or ".join(f"`--task_args.column {column}`" for column in columns)
                raise UserError(f"`{typed}` {found}; give {choices}.")
        if options["column"] in _NUMBERS:
            options.setdefault("numbers", True)
    loaded = load_task(task, options)
    if not isinstance(loaded, SentenceTask):
        name = task if isinstance(task, str) else type(task).__name__
        raise UserError(
            f"`--task {name}` labels tokens, and `--pairs` are labelled as a whole; leave --task out, or give a task "
            "of sentences."
        )
    if loaded.pooling != "mean":
        raise UserError(
            f"`--task_args.pooling {loaded.pooling}`: the baselines of pairs read the mean of each sentence; leave it "
            "out."
        )
    return loaded, options


def pair_text(
    source: str, parts: Mapping[str, Part], other: tuple[str, Mapping[str, Part]] | None, seed: int, group_by: GroupBy,
    say: Callable[[str], None],
) -> PairText:  # fmt: skip
    """Divide pairs into training, validation and test, and say how.

    The parts of the data set are used where it has a training part and another one, or a test part is given;
    validation pairs are those of dev, unless these are tested on, and else a tenth of training. Otherwise pairs are
    divided by the seed, those that share a sentence together.

    Args:
        source: The data set, as it was typed.
        parts: Its parts.
        other: The data set of test pairs, if one was given, and its parts.
        seed: Seed of the split.
        group_by: The option's value: what is independent, pairs or groups of pairs that share a sentence.
        say: Takes messages.

    Raises:
        UserError: If groups are requested and all pairs are one, or no training pair is left.
    """
    test = _test_part(parts, other)
    if test is None:
        main, _ = _corpus(source, list(parts.values()))
        found = PairText([main], [_sides(main, seed, group_by)], 0)
    else:
        held_out, _ = _corpus(f"{other[0] if other else source}, {test.name}", [test])
        trained_on = [part for part in parts.values() if part is not test]
        main, of_pair = _corpus(f"{source}, {' and '.join(part.name for part in trained_on)}", trained_on)
        with about_pairs():
            corpora, splits = divided(main, held_out, seed, say, group_by)
        dev = parts.get("dev")
        if dev is not None and dev is not test and len(trained_on) > 1:
            splits[0] = ["validation" if of_pair[pair] is dev else "train" for pair in corpora[0].pairs]
        found = PairText(corpora, splits, 0)
        say(f"trained on {' and '.join(part.name for part in trained_on)}, tested on {test.name}")
    n_sharing, n_tested = _sharing(found)
    if n_sharing:
        together = "; --group_by document keeps such pairs together" if test is None else ""
        say(f"{n_sharing:,} of {n_tested:,} test pairs have a sentence that training pairs have, too{together}")
    elif test is None and splits_by_document(group_by, found.corpora[0]):
        n = len(set(found.corpora[0].documents or ()))
        say(f"{source}: pairs that share a sentence are on the same side of the split ({n:,} groups)")
    return PairText(found.corpora, found.splits, n_sharing)


def _test_part(parts: Mapping[str, Part], other: tuple[str, Mapping[str, Part]] | None) -> Part | None:
    """Return the test part: of the other data set, or else of this one beside its training part; None without one."""
    there = parts if other is None else other[1]
    found = next((there[name] for name in ("test", "dev", "train") if name in there), None)
    return found if other is not None or ("train" in parts and len(parts) > 1) else None


def _corpus(name: str, parts: Sequence[Part]) -> tuple[Corpus, dict[Pair, Part]]:
    """Return the pairs of some parts as a corpus, in which pairs that share a sentence are one document.

    Returns:
        The corpus, and the part of each pair.
    """
    there = [((_plain(first), _plain(second)), part) for part in parts for first, second in part.pairs]
    pairs = [pair for pair, _ in there]
    of_pair = dict(reversed(there))  # of a pair that several parts have, the first one
    columns = {
        column: [value for part in parts for value in part.columns.get(column, [None] * len(part.pairs))]
        for column in dict.fromkeys(column for part in parts for column in part.columns)
    }
    groups = groups_of(pairs)
    order = np.argsort(groups, kind="stable").tolist()
    corpus = from_pairs(
        name, [pairs[i] for i in order], {key: [values[i] for i in order] for key, values in columns.items()}
    )
    group_of = dict(zip(pairs, groups.tolist(), strict=True))
    documents = tuple(group_of[pair] for pair in corpus.pairs) if len(set(group_of.values())) > 1 else None
    return replace(corpus, documents=documents), of_pair


def _plain(sentence: str) -> str:
    return " ".join(sentence.split())


def groups_of(pairs: Sequence[Pair]) -> NDArray[np.int64]:
    """Return the group of each pair, numbered as they appear; pairs that share a sentence are in one.

    Sentences are the same as for a split, whatever their case and punctuation; groups are the connected components.
    """
    numbers: dict[str, int] = {}
    ends = np.array([[numbers.setdefault(split_key(text), len(numbers)) for text in pair] for pair in pairs])
    links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(numbers), len(numbers)))
    _, component = connected_components(links, directed=False)
    _, first, group = np.unique(component[ends[:, 0]], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group]


def _sides(corpus: Corpus, seed: int, group_by: GroupBy) -> list[Split]:
    """Return the side of each pair by the seed; a group too large to be tested on is trained on."""
    if group_by == "document" and corpus.documents is None:
        raise UserError(
            f"`--group_by document`: all pairs of `{corpus.name}` are linked by sentences that they share; give "
            "--group_by sentence, which divides them pair by pair, or test pairs with --test_pairs."
        )
    sides = splits_of(corpus, seed, group_by)
    if not splits_by_document(group_by, corpus):
        return sides
    sizes = np.bincount(corpus.documents or ())
    too_large = sizes > _LARGEST_TESTED * sizes.sum()
    return ["train" if too_large[group] else side for group, side in zip(corpus.documents or (), sides, strict=True)]


def _sharing(text: PairText) -> tuple[int, int]:
    """Return how many test pairs have a sentence that is in a training pair, too, and how many there are."""
    sides: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for corpus, splits in zip(text.corpora, text.splits, strict=True):
        for pair, side in zip(corpus.pairs, splits, strict=True):
            sides[side].append(pair)
    known = {compared(sentence) for pair in sides["train"] for sentence in pair}
    return sum(any(compared(one) in known for one in pair) for pair in sides["test"]), len(sides["test"])
