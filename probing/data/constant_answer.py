"""Cross-entropy of constant predictions, which do not depend on the token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probing.data.examples import Examples


def prior_cross_entropy_by_sentence(train: Examples, test: Examples, n_classes: int) -> NDArray[np.float64]:
    """Return the cross-entropy of the training tokens' class shares, summed over the test tokens of each sentence.

    A class without training tokens counts as half a token; otherwise its cross-entropy would be infinite.

    Args:
        train: Examples that give the shares of the classes.
        test: Examples that are predicted.
        n_classes: Number of classes.

    Returns:
        In nats, shape (n_sentences of the test corpus,).
    """
    counts, kept = train.counts(n_classes), test.labels >= 0
    cost = -np.log(np.maximum(counts, 0.5) / counts.sum())[test.labels[kept]]
    sums = np.zeros(test.store.tokens.n_sentences)
    np.add.at(sums, test.store.tokens.sentences[kept], cost)
    return sums


def constant_cross_entropy_by_sentence(train: Examples, test: Examples, n_classes: int) -> NDArray[np.float64]:
    """Return the cross-entropy of the better constant prediction: the training class shares, or the uniform one.

    If many classes are equally frequent, differences of their shares are noise. A probe that its penalty keeps near
    uniform then predicts better than the shares, by about (n_classes - 1) / (2 n_train_tokens) nats, without having
    learnt anything.

    Args:
        train: Examples that give the shares of the classes.
        test: Examples that are predicted.
        n_classes: Number of classes.

    Returns:
        In nats, summed over the test tokens of each sentence, shape (n_sentences of the test corpus,).
    """
    shares = prior_cross_entropy_by_sentence(train, test, n_classes)
    uniform = test.tokens_by_sentence() * np.log(n_classes)
    return uniform if uniform.sum() < shares.sum() else shares
