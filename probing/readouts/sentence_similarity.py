"""How well the cosines of sentences agree with human scores of their similarity (STS, SICK), in the last layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.downstream.sts.dataset import SentencePairs, read_sts
from probing.downstream.sts.rank_correlation import pseudo_values
from probing.downstream.sts.sentence_similarity import reported
from probing.errors import UserError
from probing.readouts.pair_cosines import Array, Mentions, PairsReadout, draw_pairs
from probing.readouts.text import Text
from probing.tables.readout_names import STS


def read_similarity(folder: str) -> list[SentencePairs]:
    """Read the sets to report on: test parts, and dev parts where there is no test part.

    Args:
        folder: The folder, or `hf:NAME?config=C`, as in `--readouts sts=FOLDER`.

    Raises:
        UserError: If there are none.
    """
    try:
        sets = reported(read_sts([folder]))
    except UserError as error:
        raise UserError(str(error).replace("`sts ", "`--readouts sts=")) from None
    if not sets:
        raise UserError(f"`--readouts sts={folder}`: these are training parts only; give dev or test parts too.")
    return sets


def similarity_readout(
    pairs: SentencePairs, store: ActivationStore, kept: NDArray[np.int64], last: int
) -> PairsReadout:  # fmt: skip
    """Return the readout of some pairs of a set: Spearman's correlation, all subsets of the set taken together.

    The loss for gradients is the squared difference between the cosines and the human scores, scaled to 0 to 1.

    Args:
        pairs: The set.
        store: The activations of its sentences.
        kept: Indices of the pairs.
        last: The layer that is read.
    """
    gold = pairs.gold[kept]
    lowest, highest = float(pairs.gold.min()), float(pairs.gold.max())
    scaled = torch.from_numpy((gold - lowest) / max(highest - lowest, 1e-12))

    def score(cosine: Array) -> Array:
        return pseudo_values(cosine, gold)

    def error(cosine: Tensor) -> Tensor:
        return (cosine - scaled.to(cosine)) ** 2

    read, at = np.unique(pairs.sentences[kept], return_inverse=True)
    text = Text(store, read)
    sentence = text.tokens.sentences.astype(np.int64)
    of_token = np.where(text.tokens.special, -1, sentence)
    mentions = Mentions(text, of_token, np.arange(len(read)))
    return PairsReadout(f"{STS}:{pairs.label}", mentions, at.reshape(-1, 2), last, score, error, gold)


def drawn(pairs: SentencePairs, store: ActivationStore, n_tokens: int, seed: int) -> NDArray[np.int64]:
    """Draw pairs of a set, of at most so many tokens, and return their indices."""
    return draw_pairs(pairs.sentences, store.tokens.lengths, n_tokens, seed)


def halves(kept: NDArray[np.int64], seed: int) -> Sequence[NDArray[np.int64]]:
    """Divide pairs at random into two halves: one to choose on, one to report on."""
    order = np.random.default_rng(seed).permutation(kept)
    return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
