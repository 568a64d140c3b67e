"""The text on which checkpoints are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from probing.corpus import Corpus, load_corpus
from probing.errors import UserError
from probing.runs.places import texts_of
from probing.studies.changes.members import Family, tuned_on


def text_of(corpus: Any, family: Family, most: int, seed: int, say: Callable[[str], None]) -> Corpus:
    """Return the text: what is given, or that of the run, or the built-in one; at most so many sentences of it.

    Args:
        corpus: The text, as given; None if it is not.
        family: What is compared.
        most: Most sentences that are read; 0 for all.
        seed: Seed of their choice.
        say: Takes messages.

    Raises:
        UserError: If it cannot be read, or the run was tuned on pairs and none is given.
    """
    if corpus is not None or family.run is None:
        found = load_corpus("builtin" if corpus is None else corpus)
    elif (tuned := tuned_on(family)) is None:
        raise UserError(
            f"`--run {family.run.folder}`: it was tuned on pairs, and single sentences are read here; give a text as "
            "--corpus."
        )
    else:
        found = texts_of(tuned).corpora[0]
    if most and len(found.sentences) > most:
        drawn = np.random.default_rng(seed).choice(len(found.sentences), most, replace=False)
        say(f"{most} of {len(found.sentences):,} sentences are read (--sentences)")
        found = found.subset(sorted(drawn.tolist()))
    return replace(found, n_repeated=0, relabelled={}, n_without_text=0)
