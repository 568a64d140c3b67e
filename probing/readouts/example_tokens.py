"""Which tokens an example is read from: one token, the pieces of a word, or all words of a sentence.

An example's label is at one token that stands for it. Its vector is the hidden state of this token, or the mean over
several tokens of its sentence: each of these then names the token that stands for their example.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.tasks import SentenceTask, TokenTask


def standing_for(task: TokenTask, tokens: Tokens) -> NDArray[np.int64] | None:
    """Return for each token the row of the token that stands for its example; None where examples are single tokens.

    Args:
        task: The task; of sentences, its vectors are means, or those of the first token.
        tokens: The table of tokens.

    Returns:
        Shape (n_tokens,); -1 for tokens that are in no mean, such as special ones.
    """
    if isinstance(task, SentenceTask):
        if task.pooling == "cls":
            return None
        return np.where(tokens.special, -1, _first_words(tokens)[tokens.sentences])
    if not task.word_means:
        return None
    begins = np.where(tokens.first_pieces, np.arange(tokens.n_tokens), -1)
    return np.where(tokens.special, -1, np.maximum.accumulate(begins))


def at_tokens(task: TokenTask, tokens: Tokens, labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the class of each token that stands for an example, -1 for others, shape (n_tokens,).

    Args:
        task: The task.
        tokens: The table of tokens.
        labels: Class of each token, or for a task of sentences of each sentence; -1 where there is none.
    """
    if not isinstance(task, SentenceTask):
        return labels
    first = tokens.offsets[:-1] if task.pooling == "cls" else _first_words(tokens)
    there = (tokens.lengths > 0) & (first >= 0)
    found = np.full(tokens.n_tokens, -1, dtype=np.int32)
    found[first[there]] = labels[there]
    return found


def means(states: Tensor, into: Tensor, n: int) -> Tensor:
    """Return means over the tokens of each example, shape (n, width), 0 for an example without tokens.

    Args:
        states: Values at tokens, shape (n_tokens, width).
        into: Index of the example of each token, shape (n_tokens,); -1 for tokens of none.
        n: Number of examples.
    """
    there = into >= 0
    rows = into[there]
    sums = states.new_zeros(n, states.shape[1]).index_add_(0, rows, states[there])
    return sums / rows.bincount(minlength=n).clamp_min(1)[:, None]


def spread(labels: Tensor, stands: Tensor | None) -> Tensor:
    """Return for each token the label of its example, shape (n_tokens,).

    Args:
        labels: Label of each token that stands for an example, shape (n_tokens,); -1 for others.
        stands: The row of the token that stands for each token's example, as `standing_for` returns it.
    """
    return labels if stands is None else torch.where(stands >= 0, labels[stands.clamp_min(0)], -1)


def _first_words(tokens: Tokens) -> NDArray[np.int64]:
    """Return the row of the first token of each sentence that is not special, -1 if there is none."""
    found = np.full(tokens.n_sentences, -1, dtype=np.int64)
    rows = np.flatnonzero(~tokens.special)
    sentences, first = np.unique(tokens.sentences[rows], return_index=True)
    found[sentences] = rows[first]
    return found
