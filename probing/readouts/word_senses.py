"""Whether the cosine of a word's two vectors still tells if its sense is the same (WiC), in the last layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache import ActivationStore
from probing.downstream.wic.dataset import WordPairs, read_wic
from probing.downstream.wic.evaluation import target_cosines, targets, with_both_words
from probing.downstream.wic.threshold import best_threshold
from probing.errors import UserError
from probing.readouts.pair_cosines import Array, Mentions, PairsReadout, draw_pairs
from probing.readouts.text import Text
from probing.tables.readout_names import WIC

# Part that the rule is chosen on, and part that is read.
TRAIN, READ = "train", "dev"
# Penalty of the logistic curve, so that it is finite where the cosine separates the training pairs.
_RIDGE = 1e-6


def read_senses(folder: str) -> Mapping[str, WordPairs]:
    """Read the training and the dev part of the data set.

    Args:
        folder: The folder, or `hf:NAME?config=C`, as in `--readouts wic=FOLDER`.

    Raises:
        UserError: If they cannot be read.
    """
    try:
        return read_wic(folder, [TRAIN, READ])
    except UserError as error:
        raise UserError(str(error).replace("`wic ", "`--readouts wic=")) from None


@dataclass(frozen=True)
class Rule:
    """The rule that decides by the cosine whether senses are the same, chosen on training pairs with the intact model.

    Args:
        threshold: A cosine above it means the same sense.
        slope: Slope of the logistic curve of the cosine; gradients are those of its loss.
        offset: Its offset.
    """

    threshold: float
    slope: float
    offset: float

    @classmethod
    def of(cls, cosine: Array, same: NDArray[np.bool_]) -> Rule:
        """Choose the threshold with the most right answers, and fit the logistic curve by Newton's method.

        Args:
            cosine: Cosine of each training pair, shape (n,).
            same: Whether its senses are the same, shape (n,).
        """
        features = np.stack([cosine, np.ones_like(cosine)], axis=1)
        weight = np.zeros(2)
        for _ in range(100):
            p = 1 / (1 + np.exp(-np.clip(features @ weight, -30, 30)))
            slope = features.T @ (p - same) / len(same) + _RIDGE * weight
            curvature = (features * (p * (1 - p))[:, None]).T @ features / len(same) + _RIDGE * np.eye(2)
            weight = weight - np.linalg.solve(curvature, slope)
        return cls(best_threshold(cosine, same).threshold, float(weight[0]), float(weight[1]))


def rule_of(pairs: WordPairs, store: ActivationStore, last: int) -> Rule:
    """Choose the rule on training pairs, of the intact model's cosines.

    Args:
        pairs: The training part.
        store: The activations of its sentences.
        last: The layer that is read.
    """
    kept = with_both_words(pairs, store.tokens)
    return Rule.of(target_cosines(kept, store, last), kept.labels)


def senses_readout(
    pairs: WordPairs, store: ActivationStore, rule: Rule, n_tokens: int, last: int, seed: int
) -> PairsReadout:  # fmt: skip
    """Return the readout of some pairs: the share that the threshold, which is kept fixed, classifies correctly.

    The loss for gradients is the cross-entropy, in nats, of the logistic curve, which is kept fixed as well; it is used
    because a share of right answers has no gradient.

    Args:
        pairs: One part of the data set.
        store: The activations of its sentences.
        rule: What tells senses apart.
        n_tokens: Most tokens of the pairs that are drawn.
        last: The layer that is read.
        seed: Seed of the draw.
    """
    whole = with_both_words(pairs, store.tokens)
    chosen = np.zeros(whole.n_pairs, dtype=bool)
    chosen[draw_pairs(whole.sentences, store.tokens.lengths, n_tokens, seed)] = True
    some = whole.pick(chosen)
    words, at = np.unique(targets(some), axis=0, return_inverse=True)
    read, sentences = np.unique(words[:, 0], return_inverse=True)
    text = Text(store, read)
    mentions = Mentions(text, _mention_of_tokens(text, sentences, words[:, 1]), sentences)
    signs = torch.from_numpy(np.where(some.labels, 1.0, -1.0))

    def score(cosine: Array) -> Array:
        return ((cosine > rule.threshold) == some.labels).astype(np.float64)

    def error(cosine: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-signs.to(cosine) * (rule.slope * cosine + rule.offset))

    gold = np.concatenate([some.labels.astype(np.float64), [rule.threshold, rule.slope, rule.offset]])
    return PairsReadout(WIC, mentions, at.reshape(-1, 2), last, score, error, gold)


def _mention_of_tokens(text: Text, sentences: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of some words each token belongs to, -1 where to none, shape (n_tokens,)."""
    rank = {(int(sentence), int(word)): i for i, (sentence, word) in enumerate(zip(sentences, words, strict=True))}
    tokens = zip(text.tokens.sentences.tolist(), text.tokens.words.tolist(), strict=True)
    return np.array([rank.get(token, -1) for token in tokens], dtype=np.int64)
