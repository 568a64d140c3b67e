"""Reads a corpus and its test corpus, and assigns each sentence, or each document, to a side of the split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from probing.corpus import Corpus, load_corpus
from probing.corpus.splits import Split, assign_splits, compared
from probing.errors import UserError
from probing.statistics.intervals import MIN_SENTENCES

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
    corpus: Any, test_corpus: Any, seed: int, say: Callable[[str], None], group_by: GroupBy = "sentence"
) -> tuple[list[Corpus], list[list[Split]]]:
    """Read the corpus, and the test corpus if there is one, and assign each sentence to a side of the split.

    With a separate test corpus, the test part of the main corpus is used for training.
    """
    if test_corpus == corpus == "-":
        raise UserError("`--test_corpus -`: standard input can be read only once; give one of the corpora as a file.")
    main = load_corpus(corpus)
    if test_corpus is None:
        return [main], [splits_of(main, seed, group_by)]
    test = load_corpus(test_corpus, "--test_corpus")
    kept, left_out = hold_out(main, test)
    if left_out:
        say(
            f"{main.name}: {len(left_out)} sentences that are also in {test.name} were left out of training, such as "
            f"`{left_out[0]:.60}`"
        )
    joined: list[Split] = ["train" if side == "test" else side for side in splits_of(kept, seed, group_by)]
    return [kept, test], [joined, ["test"] * len(test.sentences)]


def hold_out(main: Corpus, test: Corpus) -> tuple[Corpus, list[str]]:
    """Return the main corpus without the sentences of the test corpus, as `compared` says, and those sentences.

    Raises:
        UserError: If nothing is left.
    """
    held_out = {compared(sentence): sentence for sentence in test.sentences}
    is_kept = [compared(sentence) not in held_out for sentence in main.sentences]
    left_out = [sentence for sentence, kept in zip(main.sentences, is_kept, strict=True) if not kept]
    if not any(is_kept):
        raise UserError(
            f"`--test_corpus {test.name}` holds every sentence of `--corpus {main.name}`, such as `{left_out[0]:.60}` "
            f"(there: `{held_out[compared(left_out[0])]:.60}`); nothing is left to train on."
        )
    return main.subset([i for i, kept in enumerate(is_kept) if kept]), left_out
