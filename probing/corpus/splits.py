"""The split into training, validation and test by sentence or document, and which sentences count as equal."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probing.corpus import Corpus, from_pairs, load_corpus
from probing.corpus.files import read_lines
from probing.errors import UserError
from probing.statistics.intervals import MIN_SENTENCES

Split = Literal["train", "validation", "test"]

# Shares of the split, as thresholds on a uniform hash: 80 / 10 / 10.
TRAIN_BELOW, VALIDATION_BELOW = 0.8, 0.9
# Punctuation by Unicode's categories that is written as part of a word or a number: C#, 5%, -1, @name.
_SIGNS = frozenset("#%‰&*@/\\_+-−§†‡")


def split_key(sentence: str) -> str:
    """Return the words of a sentence, without case, punctuation and signs; equal keys are on the same side.

    A word is a run of letters, digits and the marks on them. Sentences with equal keys need not count as equal:
    `compared` keeps signs.
    """
    text = unicodedata.normalize("NFC", sentence.casefold())
    if not text.isascii():
        # A mark that NFC leaves by itself, such as a vowel sign of Devanagari, is part of a letter; `\w` leaves it out.
        text = "".join(letter if unicodedata.category(letter)[0] != "M" else f"_{ord(letter):x}_" for letter in text)
    return " ".join(re.findall(r"\w+", text)) or sentence


def compared(sentence: str) -> str:
    """Return a sentence in the form in which it is compared with those of other texts.

    Sentences count as equal if they differ only in case, in blanks, in how Unicode composes letters (NFC), or in
    punctuation around words. Marks and signs are kept: `C++` is not `C#`, and कि is not की.
    """
    words = unicodedata.normalize("NFC", sentence.casefold()).split()
    return " ".join(filter(None, map(_without_punctuation, words))) or sentence


def _without_punctuation(word: str) -> str:
    """Return a word without punctuation at its ends; several marks by themselves, such as `:(`, are kept."""
    first, last = 0, len(word)
    while first < last and _is_punctuation(word[first]):
        first += 1
    while last > first and _is_punctuation(word[last - 1]):
        last -= 1
    return word[first:last] or (word if len(word) > 1 else "")


def _is_punctuation(letter: str) -> bool:
    return letter not in _SIGNS and unicodedata.category(letter)[0] == "P"


def assign_splits(sentences: Sequence[str], seed: int, documents: Sequence[int] | None = None) -> list[Split]:
    """Assign each sentence, or each document as a whole, to a side of the split by a hash salted with `seed`.

    Sentences that differ only in case, punctuation or signs are on the same side. A sentence keeps its side when the
    corpus grows or is reordered; so does a document, whose hash is that of its first sentence, unless that is also in
    another document.

    Args:
        sentences: The sentences.
        seed: Seed of the split.
        documents: Document of each sentence; None to assign sentences. A sentence that is also in an earlier document
            is on the side of that one.
    """
    keys = [split_key(sentence) for sentence in sentences]
    if documents is None:
        return [side_of(key, seed) for key in keys]
    first: dict[int, str] = {}
    for key, document in zip(keys, documents, strict=True):
        first.setdefault(document, key)
    side_of_document = dict(zip(first, sides_of_clusters(list(first.values()), seed), strict=True))
    side_of_key: dict[str, Split] = {}
    return [side_of_key.setdefault(key, side_of_document[own]) for key, own in zip(keys, documents, strict=True)]


def sides_of_clusters(keys: Sequence[str], seed: int) -> list[Split]:
    """Return the side of each cluster by a hash of its key; if too few are tested on, those of the largest hashes are.

    Of three times `MIN_SENTENCES` clusters or more, at least `MIN_SENTENCES` are tested on, without which there is no
    interval.
    """
    sides = [side_of(key, seed) for key in keys]
    if sides.count("test") >= MIN_SENTENCES or len(keys) < 3 * MIN_SENTENCES:
        return sides
    last = sorted(range(len(keys)), key=lambda i: hashed(keys[i], seed), reverse=True)
    for rank, i in enumerate(last):
        sides[i] = "test" if rank < MIN_SENTENCES else "validation" if rank < 1.5 * MIN_SENTENCES else "train"
    return sides


def side_of(key: str, seed: int) -> Split:
    """Return the side of the split by a hash of a key and the seed: 80% train, 10% validation, 10% test."""
    if (uniform := hashed(key, seed)) < TRAIN_BELOW:
        return "train"
    return "validation" if uniform < VALIDATION_BELOW else "test"


def hashed(key: str, seed: int) -> float:
    """Return a hash of a key and the seed, uniform on 0 to 1."""
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


GroupBy = Literal["auto", "sentence", "document"]


def splits_by_document(group_by: GroupBy, corpus: Corpus) -> bool:
    """Return whether whole documents are assigned to sides of the split.

    Args:
        group_by: `document`, `sentence`, or `auto`: documents if there are so many that enough are tested on.
        corpus: The corpus; without documents, its sentences are assigned.
    """
    if group_by == "sentence" or corpus.documents is None:
        return False
    return group_by == "document" or len(set(corpus.documents)) >= 3 * MIN_SENTENCES


def intervals_by_document(group_by: GroupBy, corpora: Sequence[Corpus]) -> bool:
    """Return whether intervals are over test documents: those of the split, or at least 20 of a test corpus.

    Args:
        group_by: See `splits_by_document`.
        corpora: The corpus and, last, the test corpus if it is another one.

    Raises:
        UserError: If documents are requested but the test corpus has none.
    """
    tested = corpora[-1].documents
    if group_by == "document" and tested is None:
        raise UserError(
            f"`--group_by document`: `{corpora[-1].name}` does not say where documents begin; expected empty lines "
            "between them in a .txt file, or `# newdoc` in CoNLL-U. Leave the option out for intervals over sentences."
        )
    if len(corpora) == 1 or tested is None:
        return splits_by_document(group_by, corpora[0]) and tested is not None
    return group_by == "document" or (group_by == "auto" and len(set(tested)) >= MIN_SENTENCES)


def splits_of(corpus: Corpus, seed: int, group_by: GroupBy = "sentence") -> list[Split]:
    """Return the side of the split of each sentence of a corpus."""
    return assign_splits(corpus.sentences, seed, corpus.documents if splits_by_document(group_by, corpus) else None)


def read_corpora(
    corpus: Any,
    test_corpus: Any,
    seed: int,
    say: Callable[[str], None],
    group_by: GroupBy = "sentence",
    column_of: Callable[[Corpus], str | None] = lambda corpus: None,
) -> tuple[list[Corpus], list[list[Split]]]:
    """Read the corpus, and the test corpus if there is one, and assign each sentence to a side of the split.

    With a separate test corpus, the test part of the main corpus is used for training. `column_of` returns the column
    of a corpus that labels are read from, for the line that says what was read.
    """
    if test_corpus == corpus == "-":
        raise UserError("`--test_corpus -`: standard input can be read only once; give one of the corpora as a file.")
    main = load_corpus(corpus, column_of=column_of)
    test = None if test_corpus is None else load_corpus(test_corpus, "--test_corpus", column_of)
    return divided(main, test, seed, say, group_by)


def divided(
    main: Corpus, test: Corpus | None, seed: int, say: Callable[[str], None], group_by: GroupBy = "sentence"
) -> tuple[list[Corpus], list[list[Split]]]:
    """Assign each sentence of a corpus, and of a test corpus if there is one, to a side; see `read_corpora`."""
    if test is None:
        return [main], [splits_of(main, seed, group_by)]
    kept, left_out = hold_out(main, test)
    if left_out:
        say(
            f"{main.name}: {len(left_out)} {main.unit} that are also in {test.name} were left out of training, such as "
            f"`{left_out[0]:.60}`"
        )
    joined: list[Split] = ["train" if side == "test" else side for side in splits_of(kept, seed, group_by)]
    return [kept, test], [joined, ["test"] * len(test.sentences)]


def hold_out(main: Corpus, test: Corpus) -> tuple[Corpus, list[str]]:
    """Return the main corpus without the sentences of the test corpus, as `compared` says, and those sentences.

    Of pairs, those are left out that the test corpus has, in either order.

    Raises:
        UserError: If nothing is left.
    """
    held_out = dict(zip(_compared_in(test), test.sentences, strict=True))
    keys = _compared_in(main)
    is_kept = [key not in held_out for key in keys]
    left_out = [sentence for sentence, kept in zip(main.sentences, is_kept, strict=True) if not kept]
    if not any(is_kept):
        what = "corpus" if main.seconds is None else "pairs"
        raise UserError(
            f"`--test_{what} {test.name}` holds every {main.unit[:-1]} of `--{what} {main.name}`, such as "
            f"`{left_out[0]:.60}` (there: `{held_out[keys[0]]:.60}`); nothing is left to train on."
        )
    return main.subset([i for i, kept in enumerate(is_kept) if kept]), left_out


def _compared_in(corpus: Corpus) -> list[Hashable]:
    """Return what is compared of each sentence of a corpus; of a pair, both sentences in any order."""
    if corpus.seconds is None:
        return [compared(sentence) for sentence in corpus.sentences]
    return [tuple(sorted(map(compared, pair))) for pair in corpus.pairs]


# --------------------------------------------------------------------------------------------------------------------
# Reads pairs of sentences: a pair in each line, `first TAB second`, of texts with masks also a word for each.
# --------------------------------------------------------------------------------------------------------------------

# How the mask is written in files, whatever a model's own mask token is.
MASK = "[MASK]"
# What a file of pairs has, for messages.
_LINES = "lines `first sentence TAB second sentence`"
_LINES_OF_COUPLES = (
    f"lines `sentence TAB counterfactual`, or of texts with {MASK} `text TAB counterfactual TAB word TAB other word`"
)


def read_pairs(name: str, option: str = "--pairs") -> Corpus:
    """Read the distinct pairs of a file, which may be compressed by gzip, or of standard input (`-`).

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.

    Raises:
        UserError: If the source cannot be read, a line is not a pair, or there is no pair at all.
    """
    typed = f"{option} {name}"
    pairs = list(_pairs_of(read_lines(name, option, _LINES), typed))
    if not pairs:
        raise UserError(f"`{typed}` holds no pair: it is empty or blank; give {_LINES}.")
    return from_pairs(name, pairs)


@dataclass(frozen=True)
class Couple:
    """A sentence and its counterfactual.

    Args:
        first: The sentence.
        second: Its counterfactual.
        words: Where both have `[MASK]` once, the word that suits the first, and the one that suits the second; None for
            whole sentences.
    """

    first: str
    second: str
    words: tuple[str, str] | None = None


def read_couples(name: str, option: str = "--pairs") -> list[Couple]:
    """Read the distinct pairs of different sentences of a file, all of them whole or all with masks.

    Args:
        name: The source, as the user typed it.
        option: The option that names it, for messages.

    Raises:
        UserError: If the source cannot be read, a line is not a pair of two sentences, or there is no pair at all.
    """
    typed = f"{option} {name}"
    couples = list(dict.fromkeys(_couples_of(read_lines(name, option, _LINES_OF_COUPLES), typed)))
    if not couples:
        raise UserError(f"`{typed}` holds no pair: it is empty or blank; give {_LINES_OF_COUPLES}.")
    return couples


def _couples_of(lines: Iterable[str], typed: str) -> Iterator[Couple]:
    n_columns = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"`{typed}`, line {number}"
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        if len(cells) == 3:
            raise UserError(f"{where}: expected 2 columns, or 4 with words, found 3; give {_LINES_OF_COUPLES}.")
        if len(cells) != 4:
            ((first, second),) = _pairs_of([line], typed, number)
            couple = Couple(first, second)
        else:
            couple = _with_masks(cells, where)
        if couple.first == couple.second:
            raise UserError(
                f"{where}: `{couple.first:.60}` stands on both sides of a tab; give two different sentences."
            )
        if n_columns not in (0, len(cells)):
            raise UserError(
                f"{where}: expected {n_columns} columns as in the lines above, found {len(cells)}; put whole sentences "
                f"and texts with {MASK} into files of their own."
            )
        n_columns = len(cells)
        yield couple


def _with_masks(cells: list[str], where: str) -> Couple:
    """Return a pair of texts with masks.

    Raises:
        UserError: If a text does not have one mask, or a word is missing, or both are the same.
    """
    first, second, word, other = cells
    for text in (first, second):
        if (n := text.count(MASK)) != 1:
            raise UserError(f"{where}: `{text:.60}` has {MASK} {n} times; write it once, where the word belongs.")
    if not word or not other or word == other:
        raise UserError(
            f"{where}: expected two different words after the two texts, found `{word}` and `{other}`; write for "
            f"example `The dog {MASK} here. TAB The dogs {MASK} here. TAB is TAB are`."
        )
    return Couple(first, second, (word, other))


def _pairs_of(lines: Iterable[str], typed: str, first: int = 1) -> Iterator[tuple[str, str]]:
    """Yield the two sentences of each line that is not blank; lines are counted from `first`."""
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        where = f"`{typed}`, line {number}"
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        if len(cells) != 2:
            found = "no tab" if len(cells) == 1 else f"{len(cells)} columns"
            raise UserError(
                f"{where}: expected two sentences with a tab between them, found {found}; write for example "
                "`She left early. TAB He stayed.`, without other columns."
            )
        if not all(cells):
            empty = "second" if cells[0] else "first"
            raise UserError(
                f"{where}: the {empty} sentence is empty; write one on both sides of the tab, or remove the line."
            )
        yield cells[0], cells[1]
