"""The text that all contestants read, made from the built-in corpus."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from probing.corpus import assign_splits, load_corpus

# Of the words that stand further back than any class.
BEYOND = "beyond"


def sentences(n: int | None) -> list[str]:
    """Return the first sentences of the built-in corpus, single-spaced and distinct; None for all."""
    return list(load_corpus("builtin").sentences[:n])


def write_text(path: Path, lines: Sequence[str]) -> Path:
    """Write a sentence a line."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def larger(n_words: int, seed: int = 0) -> list[str]:
    """Return distinct sentences of about so many words in all: the first part of one and the second of another.

    Lengths are those of the built-in sentences.
    """
    own = [sentence.split() for sentence in sentences(None)]
    generator, found, filled = random.Random(seed), dict[str, None](), 0
    while filled < n_words:
        one, other = generator.choice(own), generator.choice(own)
        words = one[: len(one) // 2] + other[len(other) // 2 :]
        sentence = " ".join(words)
        if sentence not in found:
            found[sentence] = None
            filled += len(words)
    return list(found)


def word_labels(texts: Sequence[str], seed: int = 0, at_least: int = 50) -> tuple[list[list[str]], list[str]]:
    """Return the label of each word, split at blanks: where it stands, or `BEYOND` the last place that is a class.

    Args:
        texts: Sentences.
        seed: Of the split.
        at_least: Training words that a place needs to be a class, fewer in a small corpus as in `fit`.

    Returns:
        For each sentence a label a word, and the side of each sentence.
    """
    sides = assign_splits(texts, seed)
    n_train = sides.count("train")
    at_least = min(at_least, max(5, n_train // 20))
    train = [len(text.split()) for text, side in zip(texts, sides, strict=True) if side == "train"]
    counts = Counter(place for n in train for place in range(n))
    last = max(place for place in counts if counts[place] >= at_least)
    labels = [[str(i) if i <= last else BEYOND for i in range(len(text.split()))] for text in texts]
    return labels, list(sides)


def write_labelled(path: Path, texts: Sequence[str], labels: Sequence[Sequence[str]]) -> Path:
    """Write a word, a tab and its label a line, as `probing` reads them."""
    blocks = (
        "".join(f"{word}\t{label}\n" for word, label in zip(text.split(), row, strict=True))
        for text, row in zip(texts, labels, strict=True)
    )
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path
