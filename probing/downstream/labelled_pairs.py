"""Labelled pairs of sentences: the reader of WiC, the parts of data sets, and the labels of pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from probing.downstream import READABLE as STS_READABLE
from probing.downstream import SICK, PairFiles, SentencePairs, read_sts
from probing.errors import UserError
from probing.runs.loading import Tuned
from probing.text import (
    Corpus,
    GroupBy,
    Split,
    compared,
    divided,
    from_pairs,
    from_words,
    read_corpora,
    split_key,
    splits_by_document,
    splits_of,
)
from probing.text.columns import number_of, truth_of
from probing.text.files import read_splits, sentence_of
from probing.text.tasks import SentenceTask, TokenTask, load_task, refuse_spans

# --------------------------------------------------------------------------------------------------------------------
# The Word-in-Context data set: does a word mean the same in two sentences?
# --------------------------------------------------------------------------------------------------------------------

READABLE = (
    "the folder of the WiC data set, with train/train.data.txt and train/train.gold.txt and the same for dev, "
    "or 'hf:NAME?config=C' for its SuperGLUE form"
)
OF_WIC = PairFiles("wic ", READABLE)
# Names of the parts in SuperGLUE, and the columns that it gives of a pair.
_HUB_PARTS = {"train": "train", "dev": "validation", "test": "test"}
_HUB_COLUMNS = ("sentence1", "sentence2", "start1", "end1", "start2", "end2", "label")


@dataclass(frozen=True)
class WordPair:
    """A word in two sentences of words, its index in each, and whether it has the same sense in both."""

    sentences: tuple[tuple[str, ...], tuple[str, ...]]
    targets: tuple[int, int]
    same: bool


@dataclass(frozen=True)
class WordPairs:
    """A part of the data set, with its distinct sentences as lists of words.

    Args:
        sentences: Indices into the corpus of the sentences of each pair, shape (n_pairs, 2).
        targets: Index of the word in each sentence, shape (n_pairs, 2).
        labels: Whether the word has the same sense in both, shape (n_pairs,), bool.
        n_unlabelled: Number of omitted pairs without a label.
    """

    corpus: Corpus
    sentences: NDArray[np.int64]
    targets: NDArray[np.int64]
    labels: NDArray[np.bool_]
    n_unlabelled: int = 0

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return len(self.labels)

    @property
    def n_read(self) -> int:
        """Number of all pairs, unlabelled pairs included."""
        return self.n_pairs + self.n_unlabelled

    def messages(self, name: str) -> list[str]:
        """Return a line on the pairs of a part without a label, if any."""
        if not self.n_unlabelled:
            return []
        return [f"{name}: {self.n_unlabelled} of {self.n_read} pairs have no label and are left out"]

    def pick(self, chosen: NDArray[np.bool_]) -> WordPairs:
        """Return only these pairs; the corpus is unchanged."""
        return replace(self, sentences=self.sentences[chosen], targets=self.targets[chosen], labels=self.labels[chosen])


def read_wic(source: str, parts: Sequence[str], reader: PairFiles = OF_WIC) -> dict[str, WordPairs]:
    """Read parts of the WiC data set (`train`, `dev`, `test`), in its original or its SuperGLUE form.

    `source` is the original folder, or `hf:NAME?config=C`: a hub id or a folder of json or parquet files.

    Raises:
        UserError: If files are missing or malformed, or have no labelled pair.
    """
    by_part = _pairs_by_part(source, parts, reader)
    for part, pairs in by_part.items():
        if not any(pairs):
            raise UserError(f"`{reader.option}{source}`: no pair of {part} has a label; take another part.")
    return {part: _indexed(f"{source} {part}", pairs) for part, pairs in by_part.items()}


def read_wic_parts(source: str, reader: PairFiles = OF_WIC) -> dict[str, WordPairs]:
    """Read all available parts with labelled pairs, in the order train, dev, test; empty for another data set.

    Raises:
        UserError: If a data set cannot be read, or files are malformed.
    """
    if source.startswith("hf:"):
        rows = read_splits(source, f"{reader.option}{source}")
        labelled_splits = {split for split, of_split in rows.items() if of_split and {*_HUB_COLUMNS} <= {*of_split[0]}}
        parts = [part for part in _HUB_PARTS if labelled_splits & {*_hub_names(part)}]
    else:
        parts = [part for part in _HUB_PARTS if all(path.is_file() for path in _files(source, part))]
    by_part = _pairs_by_part(source, parts, reader)
    return {part: _indexed(f"{source} {part}", pairs) for part, pairs in by_part.items() if any(pairs)}


def _pairs_by_part(source: str, parts: Sequence[str], reader: PairFiles) -> dict[str, list[WordPair | None]]:
    """Return the pairs of each part, None for unlabelled ones."""
    if not source.startswith("hf:"):
        return {part: _from_folder(source, part, reader) for part in parts}
    rows, flag_text, by_part = read_splits(source, f"{reader.option}{source}"), f"{reader.option}{source}", {}
    for part in parts:
        if not (names := [name for name in _hub_names(part) if name in rows]):
            raise UserError(
                f"`{flag_text}`: there is no split {_HUB_PARTS[part]}, only {', '.join(rows)}; give {reader.readable}."
            )
        by_part[part] = list(_from_spans(rows[names[0]], flag_text))
    return by_part


def _files(source: str, part: str) -> tuple[Path, Path]:
    """Return the files of a part's pairs and of their labels in the original format."""
    folder = Path(source, part) if os.path.isdir(Path(source, part)) else Path(source)
    return folder / f"{part}.data.txt", folder / f"{part}.gold.txt"


def _from_folder(source: str, part: str, reader: PairFiles) -> list[WordPair | None]:
    """Read the original format: lemma, part of speech, `index1-index2`, two tokenised sentences; None if unlabelled."""
    data_file, gold_file = _files(source, part)
    flag_text, data, gold = f"{reader.option}{data_file.parent}", reader.lines(data_file), reader.lines(gold_file)
    if len(data) != len(gold):
        raise UserError(
            f"`{flag_text}`: {part}.data.txt has {len(data)} lines and {part}.gold.txt has {len(gold)}; "
            "each pair needs its label in the same line."
        )
    pairs: list[WordPair | None] = []
    for number, (line, label) in enumerate(zip(data, gold, strict=True), 1):
        try:
            if (same := truth_of(label)) is None:
                pairs.append(None)
                continue
            _, _, indices, *texts = line.split("\t")
            first, second = (tuple(text.split()) for text in texts)
            targets = _index(indices.split("-")[0], first), _index(indices.split("-")[1], second)
            pairs.append(WordPair((first, second), targets, same))
        except (ValueError, LookupError) as error:
            raise UserError(
                f"`{flag_text}`: line {number} of {part} is not a pair ({str(error)[:80]}); expected in "
                f"{part}.data.txt a lemma, its part of speech, two indices such as 2-1 and two sentences, separated by "
                f"tabs, and in {part}.gold.txt T or F, or nothing where there is no label."
            ) from None
    if not pairs:
        raise UserError(f"`{flag_text}`: {part}.data.txt holds no pair; give {reader.readable}.")
    return pairs


def _index(text: str, words: Sequence[str]) -> int:
    index = int(text)
    if not 0 <= index < len(words):
        raise ValueError(f"there is no word {index} in a sentence of {len(words)}")
    return index


def _hub_names(part: str) -> tuple[str, ...]:
    return _HUB_PARTS[part], part, part.replace("dev", "val")


def _from_spans(rows: Iterable[Mapping[str, Any]], flag_text: str) -> Iterator[WordPair | None]:
    """Yield the pairs of the SuperGLUE format, in which the word is a span of characters; None if unlabelled.

    The word is separated from its neighbours, as all words are in the original format, so that the same pieces are
    pooled: `Room and board.` becomes `Room and board .`.
    """
    for number, row in enumerate(rows):
        if missing := [column for column in _HUB_COLUMNS if column not in row]:
            raise UserError(
                f"`{flag_text}`: its rows have no column {missing[0]}, only {', '.join(row)}; give the WiC data set."
            )
        place = f"row {number}, counted from 0,"
        try:
            same = truth_of(row["label"])
        except ValueError:
            raise UserError(
                f"`{flag_text}`: the label of {place} is {row['label']!r:.40}; expected T, True or 1 where the senses "
                "are the same, F, False or 0 where they are not, or nothing where there is no label."
            ) from None
        if same is None:
            yield None
            continue
        texts = [sentence_of(row, f"sentence{k}", flag_text, place) for k in (1, 2)]
        halves = [
            _set_off(text, _character(row[f"start{k}"]), _character(row[f"end{k}"])) for k, text in enumerate(texts, 1)
        ]
        if not all(halves):
            raise UserError(
                f"`{flag_text}`: in {place} the span from start to end contains no word; expected the characters of "
                "the word."
            )
        (first, at_first), (second, at_second) = halves  # type: ignore[misc]
        yield WordPair((first, second), (at_first, at_second), same)


def _character(cell: Any) -> int:
    """Return the number of a character; -1, which no sentence has, for everything else."""
    try:
        number = number_of(cell)
    except ValueError:
        return -1
    return int(number) if number is not None and number.is_integer() else -1


def _set_off(sentence: str, start: int, end: int) -> tuple[tuple[str, ...], int] | None:
    """Return the words of a sentence, the span as a word, and its index; None if the span is blank."""
    target = " ".join(sentence[start:end].split()) if 0 <= start < end <= len(sentence) else ""
    before, after = sentence[:start].split(), sentence[end:].split()
    return ((*before, target, *after), len(before)) if target else None


def _indexed(name: str, read: Sequence[WordPair | None]) -> WordPairs:
    pairs = [pair for pair in read if pair is not None]
    # Repeated sentences are no defect here, as each word has several pairs, so they are not counted.
    corpus = replace(from_words(name, [words for pair in pairs for words in pair.sentences]), n_repeated=0)
    at = {words: i for i, words in enumerate(corpus.words or ())}
    return WordPairs(
        corpus,
        np.array([[at[words] for words in pair.sentences] for pair in pairs]),
        np.array([pair.targets for pair in pairs]),
        np.array([pair.same for pair in pairs], dtype=bool),
        len(read) - len(pairs),
    )


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
class DatasetPart:
    """A part of a data set, named such as `SICK dev`: its pairs, and their labels by column."""

    name: str
    pairs: Sequence[Pair]
    columns: Columns


@dataclass(frozen=True)
class PairText:
    """Pairs for tuning and testing a model: a single corpus, or the training and, last, the test corpus.

    `splits` has the side of each pair of each corpus, `n_sharing` the number of test pairs that share a sentence with
    training pairs.
    """

    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    n_sharing: int


def read_parts(source: str, option: str, say: Callable[[str], None]) -> dict[str, DatasetPart]:
    """Read the parts of the only data set of a source, by `train`, `dev` and `test`; `option` is for messages.

    The source is a folder or a file of WiC, SICK, STS-B or one of STS12 to STS16, or `hf:NAME?config=C`.

    Raises:
        UserError: If there is none, or several, or it cannot be read.
    """
    if of_words := read_wic_parts(source, PairFiles(f"{option} ", READABLE)):
        for part, part_pairs in of_words.items():
            for line in part_pairs.messages(f"WiC {part}"):
                say(line)
        return {part: _of_words(part, part_pairs) for part, part_pairs in of_words.items()}
    sets = read_sts([source], PairFiles(f"{option} ", f"{STS_READABLE}; or {READABLE}"))
    names = list(dict.fromkeys(pairs.name for pairs in sets))
    if len(names) > 1:
        raise UserError(f"`{option} {source}` holds {', '.join(names)}; give the folder or file of one of them.")
    for pairs in sets:
        for line in pairs.messages():
            say(line)
    parts: dict[str, DatasetPart] = {pairs.part: _of_sentences(pairs) for pairs in sets}
    return {part: parts[part] for part in ("train", "dev", "test") if part in parts}


@contextmanager
def about_pairs() -> Iterator[None]:
    """Name the options of pairs in messages about options of corpora."""
    try:
        yield
    except UserError as error:
        message = error.original.replace("--corpus", "--pairs").replace("--test_corpus", "--test_pairs")
        raise UserError(message) from None


def _of_sentences(pairs: SentencePairs) -> DatasetPart:
    is_sick = pairs.name == SICK
    columns: dict[str, Sequence[Any]] = {RELATEDNESS if is_sick else SIMILARITY: pairs.gold.tolist()}
    if pairs.entailment:
        columns[ENTAILMENT] = pairs.entailment
    return DatasetPart(f"{'SICK' if is_sick else pairs.name} {pairs.part}", _texts(pairs), columns)


def _of_words(part: str, word_pairs: WordPairs) -> DatasetPart:
    return DatasetPart(f"WiC {part}", _texts(word_pairs), {SAME_SENSE: word_pairs.labels.tolist()})


def _texts(pairs: SentencePairs | WordPairs) -> list[Pair]:
    sentences = pairs.corpus.sentences
    return [(sentences[i], sentences[j]) for i, j in pairs.sentences.tolist()]


def task_of(
    task: str | TokenTask, task_args: Mapping[str, Any] | None, sources: Mapping[str, Mapping[str, DatasetPart]]
) -> tuple[TokenTask, dict[str, Any]]:
    """Return the task of pairs, and its options; scores are numbers to predict unless the user decides otherwise.

    `sources` has the parts of each source, by its option and name as typed.

    Raises:
        UserError: If the column is ambiguous, or the task does not label whole pairs.
    """
    options = dict(task_args or {})
    if task == _TASK:
        for flag_text, parts in sources.items():
            columns = list(dict.fromkeys(column for part in parts.values() for column in part.columns))
            column = options.setdefault("column", columns[0] if len(columns) == 1 else None)
            if column not in columns:
                problem = "has several labels" if column is None else f"has no {column}"
                choices = " or ".join(f"`--task_args.column {column}`" for column in columns)
                raise UserError(f"`{flag_text}` {problem}; give {choices}.")
        if options["column"] in _NUMBERS:
            options.setdefault("numbers", True)
    loaded = load_task(task, options)
    refuse_spans(loaded, f"--task {task}", "leave --task out")
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
    source: str, parts: Mapping[str, DatasetPart], other: tuple[str, Mapping[str, DatasetPart]] | None, seed: int,
    group_by: GroupBy,
    say: Callable[[str], None],
) -> PairText:  # fmt: skip
    """Divide pairs into training, validation and test, and report the division.

    The parts of the data set are used if it has a training part and another one, or if a test part is given. Validation
    pairs are then the pairs of dev, unless dev is the test part, and else a tenth of training. Otherwise pairs are
    divided by the seed, with pairs that share a sentence on the same side.

    Args:
        other: The data set of test pairs, as typed, and its parts, if reader.
        group_by: The independent units: pairs, or groups of pairs that share a sentence.

    Raises:
        UserError: If groups are requested and all pairs are a single group, or no training pair is left.
    """
    test = _test_part(parts, other)
    corpora: Sequence[Corpus]
    splits: list[list[Split]]
    if test is None:
        main, _ = _corpus(source, list(parts.values()))
        corpora, splits = [main], [_sides(main, seed, group_by)]
    else:
        test_corpus, _ = _corpus(f"{other[0] if other else source}, {test.name}", [test])
        trained_on = [part for part in parts.values() if part is not test]
        names = " and ".join(part.name for part in trained_on)
        main, of_pair = _corpus(f"{source}, {names}", trained_on)
        with about_pairs():
            corpora, splits = divided(main, test_corpus, seed, say, group_by)
        dev = parts.get("dev")
        if dev is not None and dev is not test and len(trained_on) > 1:
            splits[0] = ["validation" if of_pair[pair] is dev else "train" for pair in corpora[0].pairs]
        say(f"trained on {names}, tested on {test.name}")
    n_sharing, n_tested = _sharing(corpora, splits)
    if n_sharing:
        together = "; --group_by document keeps such pairs together" if test is None else ""
        say(f"{n_sharing:,} of {n_tested:,} test pairs have a sentence that training pairs have, too{together}")
    elif test is None and splits_by_document(group_by, corpora[0]):
        n = len(set(corpora[0].documents or ()))
        say(f"{source}: pairs that share a sentence are on the same side of the split ({n:,} groups)")
    return PairText(corpora, splits, n_sharing)


def text_of_tuned(
    tuned: Tuned, config: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[Sequence[Corpus], Sequence[Sequence[Split]]]:
    """Return the corpora of a tuned model, of sentences or pairs, and the split of each; see `read_as_tuned`.

    Raises:
        UserError: If the pairs at the places that `config` names are others than those of the run.
    """
    corpus, test_corpus, seed = config["corpus"], config["test_corpus"], tuned.config["seed"]
    if not tuned.are_pairs:
        return read_corpora(corpus, test_corpus, seed, say, tuned.split_by)
    parts = read_parts(corpus, "--corpus", say)
    other = None if test_corpus is None else (test_corpus, read_parts(test_corpus, "--test_corpus", say))
    pairs = pair_text(corpus, parts, other, seed, tuned.split_by, say)
    prints = [text["fingerprint"] for text in tuned.results["corpora"].values()]
    if [text.fingerprint for text in pairs.corpora] != prints:
        raise UserError(
            f"`{tuned.flag_text}`: the pairs at `{corpus}` are others than those that the run read; give their folder "
            "or file with --corpus, or repeat the run."
        )
    return pairs.corpora, pairs.splits


def _test_part(
    parts: Mapping[str, DatasetPart], other: tuple[str, Mapping[str, DatasetPart]] | None
) -> DatasetPart | None:
    """Return the test part: of the other data set, else of this data set if it has a training part; else None."""
    available = parts if other is None else other[1]
    part = next((available[name] for name in ("test", "dev", "train") if name in available), None)
    return part if other is not None or ("train" in parts and len(parts) > 1) else None


def _corpus(name: str, parts: Sequence[DatasetPart]) -> tuple[Corpus, dict[Pair, DatasetPart]]:
    """Return a corpus in which pairs that share a sentence are a document, and the part of each pair."""
    parts_of_pairs = [((_plain(first), _plain(second)), part) for part in parts for first, second in part.pairs]
    pairs = [pair for pair, _ in parts_of_pairs]
    of_pair = dict(reversed(parts_of_pairs))  # of a pair that several parts have, the first one
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
    """Return the group of each pair, numbered in order of appearance; pairs that share a sentence are in one group.

    Sentences are compared as for a split, ignoring case and punctuation; groups are the connected components.
    """
    numbers: dict[str, int] = {}
    ends = np.array([[numbers.setdefault(split_key(text), len(numbers)) for text in pair] for pair in pairs])
    links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(numbers), len(numbers)))
    _, component = connected_components(links, directed=False)
    _, first, group = np.unique(component[ends[:, 0]], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group]


def _sides(corpus: Corpus, seed: int, group_by: GroupBy) -> list[Split]:
    """Return the side of each pair by the seed; a group too large for testing is trained on."""
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


def _sharing(corpora: Sequence[Corpus], splits: Sequence[Sequence[Split]]) -> tuple[int, int]:
    """Return the number of test pairs that share a sentence with training pairs, and the number of test pairs."""
    sides: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for corpus, of_corpus in zip(corpora, splits, strict=True):
        for pair, side in zip(corpus.pairs, of_corpus, strict=True):
            sides[side].append(pair)
    known = {compared(sentence) for pair in sides["train"] for sentence in pair}
    return sum(any(compared(text) in known for text in pair) for pair in sides["test"]), len(sides["test"])
