"""Reads a corpus and its test corpus, and assigns each sentence to a side of the split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probing.corpus import Corpus, Split, assign_splits, hold_out, load_corpus
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
    kept = hold_out(main, test)
    if n_shared := len(main.sentences) - len(kept.sentences):
        say(f"{main.name}: {n_shared} sentences that are also in {test.name} were left out of training")
    joined: list[Split] = ["train" if side == "test" else side for side in assign_splits(kept.sentences, seed)]
    return [kept, test], [joined, ["test"] * len(test.sentences)]
