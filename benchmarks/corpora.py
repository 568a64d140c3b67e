"""Text for all contestants, made from the built-in corpus."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from probing.corpus import assign_splits, load_corpus

# Label of words at positions beyond the last one that is a class.
BEYOND = "beyond"


def sentences(n: int | None) -> list[str]:
    """Return the first n sentences of the built-in corpus, single-spaced and distinct; None returns all."""
    return list(load_corpus("builtin").sentences[:n])


def write_text(path: Path, lines: Sequence[str]) -> Path:
    """Write one sentence per line."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def larger(n_words: int, seed: int = 0) -> list[str]:
    """Return distinct sentences with about `n_words` words in all, each the halves of two built-in sentences.

    Their lengths are like those of the built-in sentences.
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
    """Label each word, split at blanks, with its position, or `BEYOND` after the last position that is a class.

    Args:
        texts: Sentences.
        seed: Seed of the split.
        at_least: Training words that a position needs to be a class; fewer in a small corpus, as in `fit`.

    Returns:
        One label per word for each sentence, and the side of each sentence.
    """
    sides = assign_splits(texts, seed)
    n_train = sides.count("train")
    at_least = min(at_least, max(5, n_train // 20))
    train = [len(text.split()) for text, side in zip(texts, sides, strict=True) if side == "train"]
    counts = Counter(position for n in train for position in range(n))
    last = max(position for position in counts if counts[position] >= at_least)
    labels = [[str(i) if i <= last else BEYOND for i in range(len(text.split()))] for text in texts]
    return labels, list(sides)


def write_labelled(path: Path, texts: Sequence[str], labels: Sequence[Sequence[str]]) -> Path:
    """Write a word, a tab and its label per line, the format that `probing` reads."""
    blocks = (
        "".join(f"{word}\t{label}\n" for word, label in zip(text.split(), row, strict=True))
        for text, row in zip(texts, labels, strict=True)
    )
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path
