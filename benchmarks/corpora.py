"""Text for all contestants, made from the built-in corpus."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from probing.text import assign_splits, load_corpus

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


# Parts of the sets of similarity, with their real numbers of pairs.
SIMILARITY = {
    **{f"STS{year}": n for year, n in ((12, 3108), (13, 1500), (14, 3750), (15, 3000), (16, 1186))},
    **{f"STSB/{part}": n for part, n in (("train", 5749), ("dev", 1500), ("test", 1379))},
    **{f"SICK/{part}": n for part, n in (("train", 4500), ("trial", 500), ("test_annotated", 4927))},
}


def write_similarity(folder: Path, n_sentences: int, n_words: int = 8, seed: int = 0) -> Path:
    """Write sets that look like STS12 to STS16, STS-B and SICK and have as many pairs, with scores of common words.

    The sentences of a set are drawn from a few, so that a model reads them soon; memory goes with the pairs.

    Args:
        folder: The folder of the sets.
        n_sentences: Number of distinct sentences of each part.
        n_words: Most words of a sentence.
        seed: Seed of the pairs.
    """
    texts = iter(larger(len(SIMILARITY) * n_sentences * 40, seed))
    generator = random.Random(seed)
    for name, n_pairs in SIMILARITY.items():
        some = [" ".join(next(texts).split()[:n_words]) for _ in range(n_sentences)]
        pairs = [(generator.choice(some), generator.choice(some)) for _ in range(n_pairs)]
        scores = [round(len({*a.split()} & {*b.split()}) * 5 / n_words, 2) for a, b in pairs]
        rated = list(zip(pairs, scores, strict=True))
        top, _, part = name.partition("/")
        if top == "STSB":
            lines = [f"g\tf\ty\t{i}\t{score}\t{a}\t{b}" for i, ((a, b), score) in enumerate(rated)]
            files = {f"sts-{part}.csv": lines}
        elif top == "SICK":
            head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score"
            files = {f"SICK_{part}.txt": [head, *(f"{i}\t{a}\t{b}\t{s}" for i, ((a, b), s) in enumerate(rated))]}
        else:
            files = {
                "STS.input.x.txt": [f"{a}\t{b}" for (a, b), _ in rated],
                "STS.gs.x.txt": [f"{s}" for _, s in rated],
            }
        (folder / top).mkdir(parents=True, exist_ok=True)
        for file, lines in files.items():
            write_text(folder / top / file, lines)
    return folder


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
