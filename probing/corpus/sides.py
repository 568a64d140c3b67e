"""Reads a corpus and its test corpus, and assigns each sentence to a side of the split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probing.corpus import Corpus, load_corpus
from probing.corpus.splits import Split, assign_splits, compared
from probing.errors import UserError


def read_corpora(
    corpus: Any, test_corpus: Any, seed: int, say: Callable[[str], None]
) -> tuple[list[Corpus], list[list[Split]]]:
    """Read the corpus, and the test corpus if there is one, and assign each sentence to a side of the split.

    With a separate test corpus, the test part of the main corpus is used for training.
    """
    if test_corpus == corpus == "-":
        raise UserError("`--test_corpus -`: standard input can be read only once; give one of the corpora as a file.")
    main = load_corpus(corpus)
    if test_corpus is None:
        return [main], [assign_splits(main.sentences, seed)]
    test = load_corpus(test_corpus, "--test_corpus")
    kept, left_out = hold_out(main, test)
    if left_out:
        say(
            f"{main.name}: {len(left_out)} sentences that are also in {test.name} were left out of training, such as "
            f"`{left_out[0]:.60}`"
        )
    joined: list[Split] = ["train" if side == "test" else side for side in assign_splits(kept.sentences, seed)]
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
