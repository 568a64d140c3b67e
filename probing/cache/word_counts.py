"""How many words of a word list have a token of their own, and why the others have none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import LONGEST, Tokens
from probing.cache.words_of_tokens import is_visible
from probing.corpus import Corpus


@dataclass(frozen=True)
class WordCounts:
    """The words of a corpus. All are `n_with_token`, `n_shared`, `n_without_token` and `n_cut` together.

    Args:
        n_words: Number of words.
        n_with_token: Number of words that a token belongs to.
        n_shared: Number of words whose characters are in tokens that belong to other words.
        n_without_token: Number of words whose characters are in no token: the tokenizer removes them.
        n_cut: Number of words that were cut off, because their sentence was too long.
        examples: Distinct words that are shared or without a token, in their order of appearance.
    """

    n_words: int
    n_with_token: int
    n_shared: int
    n_without_token: int
    n_cut: int
    examples: tuple[str, ...]

    @property
    def n_left_out(self) -> int:
        """Number of words that the model reads, and that no token belongs to."""
        return self.n_shared + self.n_without_token

    def as_json(self) -> dict[str, int]:
        """Return the counts for `results.json`."""
        return {
            "n_words": self.n_words, "n_words_shared": self.n_shared,
            "n_words_without_token": self.n_without_token, "n_words_cut": self.n_cut,
        }  # fmt: skip


def count_words(tokens: Tokens, corpus: Corpus) -> WordCounts | None:
    """Count the words of a corpus; None for running text, and for tables without the characters of tokens.

    A word counts as cut off if its sentence has as many tokens as any, some were cut, and it lies beyond their
    characters on a side where visible ones are left. Tokens that are set aside count like others.

    Args:
        tokens: The table of tokens of the corpus.
        corpus: The corpus.
    """
    if corpus.words is None or tokens.spans is None:
        return None
    n_with_token = n_shared = n_cut = 0
    missing: list[str] = []
    is_full = (tokens.lengths == tokens.lengths.max(initial=0)) & (tokens.n_truncated > 0)
    for _, chunk, found in tokens.assigned(corpus.sentences, corpus.words):
        starts = found.starts
        has, touched = (np.zeros(starts[-1], dtype=bool) for _ in range(2))
        has[found.words[found.words >= 0]] = True
        for token in np.flatnonzero(found.first < found.last).tolist():
            touched[found.first[token] : found.last[token] + 1] = True
        n_with_token += int(has.sum())
        for i in np.flatnonzero(np.add.reduceat(~has, starts[:-1])).tolist():
            words = corpus.words[chunk.start + i]
            own = slice(starts[i], starts[i + 1])
            cut = _cut_off(words[:LONGEST], has[own] | touched[own]) & is_full[chunk.start + i]
            n_cut += int(cut.sum())
            for word in np.flatnonzero(~has[own] & ~cut).tolist():
                n_shared += bool(touched[own][word] and is_visible(words[word]))
                missing.append(words[word])
        n_cut += sum(max(0, len(words) - LONGEST) for words in corpus.words[chunk])
    n_words = sum(map(len, corpus.words))
    return WordCounts(n_words, n_with_token, n_shared, len(missing) - n_shared, n_cut, tuple(dict.fromkeys(missing)))


def _cut_off(words: tuple[str, ...], read: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which words lie before the first or behind the last that was read, on sides with visible ones."""
    cut = np.zeros(len(words), dtype=bool)
    at = np.flatnonzero(read)
    first, last = (int(at[0]), int(at[-1])) if len(at) else (0, -1)
    for side in (slice(0, first), slice(last + 1, None)):
        cut[side] = any(map(is_visible, words[side]))
    return cut
