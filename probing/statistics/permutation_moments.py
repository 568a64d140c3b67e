"""Exact moments of sums over classes when labels are permuted within each sentence, for any values.

In a sentence of n tokens, m_c of them of class c, permuting the labels gives each class a sample of the sentence's
tokens without replacement. The joint moments of the classes' sums then depend on the values only through the sentence's
sums of squares, cubes and fourth powers of deviations from its mean, and on the labels only through the m_c.
`docs/eta_squared.md` derives them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Number of tokens processed at a time, so that intermediate results stay in the processor's cache.
ROWS = 2048


class PowerSums(NamedTuple):
    """Mean of each sentence and sums of powers of deviations from it, shape (n_sentences, d_model), float64."""

    mean: Tensor
    squares: Tensor
    cubes: Tensor
    fourths: Tensor


def power_sums(hidden_states: Tensor, origin: Tensor, lengths: Tensor) -> PowerSums:
    """Return the power sums of sentences.

    Args:
        hidden_states: Hidden states of the sentences' tokens, sentence by sentence, shape (n_tokens, d_model).
        origin: Subtracted first, so that large means do not cost precision, shape (d_model,), float64.
        lengths: Number of tokens of each sentence, at least one, shape (n_sentences,), int64.
    """
    # Whole sentences, in parts of about `ROWS` tokens.
    parts = lengths.split(torch.unique_consecutive(lengths.cumsum(0) // ROWS, return_counts=True)[1].tolist())
    tokens = hidden_states.split([int(part.sum()) for part in parts])
    sums = [_power_sums(states.double() - origin, part) for states, part in zip(tokens, parts, strict=True)]
    return PowerSums(*(torch.cat(columns) for columns in zip(*sums, strict=True)))


def _power_sums(states: Tensor, lengths: Tensor) -> PowerSums:
    sentence = torch.arange(len(lengths)).repeat_interleave(lengths)

    def by_sentence(values: Tensor) -> Tensor:
        return values.new_zeros(len(lengths), values.shape[1]).index_add_(0, sentence, values)

    mean = by_sentence(states) / lengths[:, None]
    deviations = states - mean[sentence]
    squares = deviations.square()
    return PowerSums(mean, by_sentence(squares), by_sentence(squares * deviations), by_sentence(squares.square()))


class LabelMoments(NamedTuple):
    """Contribution of each sentence's labels to the moments of u, the classes' sums of deviations under permutation.

    The sum of class c is divided by the root of the class's size, so that |u|^2 is a between-class sum of squares. With
    s2, s3 and s4 the sentence's sums of squares, cubes and fourth powers:

    Args:
        scaled: m_c over the root of the class's size, shape (n_sentences, n_classes).
        variance: cov(u) = s2 / (n - 1) (diag(variance) - scaled scaled' / n), shape (n_sentences, n_classes).
        cubes: cov(u, |u|^2) = s3 cubes, shape (n_sentences, n_classes).
        fourths: var(|u|^2) - 2 tr cov(u)^2 = s4 fourths + s2^2 squares, shape (n_sentences,).
        squares: See `fourths`; shape (n_sentences,).
    """

    scaled: Tensor
    variance: Tensor
    cubes: Tensor
    fourths: Tensor
    squares: Tensor


def label_moments(counts: Tensor, sizes: Tensor) -> LabelMoments:
    """Return the contribution of the labels to the moments.

    Args:
        counts: Number of tokens of each class in each sentence, shape (n_sentences, n_classes), float64.
        sizes: Number of tokens of each class in the corpus, shape (n_classes,), float64.
    """
    w = _inverse(sizes)
    fourths, squares = _fourth_order(counts, w)
    # Subtract the square of the mean, and twice the trace of the squared covariance: the variance of Gaussian sums.
    n, m2 = counts.sum(1), counts.square()
    trace = counts @ w - m2 @ w * _inverse(n)
    of_square = m2 @ w.square() - 2 * (counts**3 @ w.square()) * _inverse(n) + (m2 @ w * _inverse(n)).square()
    squares -= (trace.square() + 2 * of_square) * _inverse(n - 1).square()
    root = w.sqrt()
    return LabelMoments(root * counts, w * counts, root * _third_order(counts, w), fourths, squares)


def _third_order(counts: Tensor, w: Tensor) -> Tensor:
    """Return E[u_d sum over c of w_c u_c^2] / s3 for every class d (u: sums of deviations), of `counts`' shape."""
    m1, m2, m3 = (_falling(counts, k) for k in (1, 2, 3))
    # Mean products of three deviations: of one token, of two tokens (one squared), of three.
    e3, e21, e111 = (a * _inverse(_falling(counts.sum(1, keepdim=True), k)) for k, a in ((1, 1), (2, -1), (3, 2)))
    own = w * (m1 * e3 + 3 * m2 * e21 + m3 * e111)
    return own + m1 * (e21 * _of_others(m1, w) + e111 * _of_others(m2, w))


def _fourth_order(counts: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of s4 and s2^2 in E[(sum over c of w_c u_c^2)^2], each of shape (n_sentences,)."""
    m1, m2, m3, m4 = (_falling(counts, k) for k in (1, 2, 3, 4))
    # Weights of the products of four deviations, by how many fall on the same token: four; three and one; two and two;
    # two, one and one; one each. The four deviations are of one class, or two each of two classes.
    f4, f31 = m1 @ w.square(), 4 * (m2 @ w.square())
    f22 = 3 * (m2 @ w.square()) + _of_two(m1, m1, w)
    f211 = 6 * (m3 @ w.square()) + 2 * _of_two(m2, m1, w)
    f1111 = m4 @ w.square() + _of_two(m2, m2, w)
    i1, i2, i3, i4 = (_inverse(_falling(counts.sum(1), k)) for k in (1, 2, 3, 4))
    fourths = f4 * i1 - (f31 + f22) * i2 + 2 * f211 * i3 - 6 * f1111 * i4
    return fourths, f22 * i2 - f211 * i3 + 3 * f1111 * i4


def log_relabellings(counts: Tensor) -> Tensor:
    """Return the log of the number of distinct labellings under permutation; counts: (n_sentences, n_classes)."""
    return torch.lgamma(counts.sum(1) + 1).sum() - torch.lgamma(counts + 1).sum()


def _of_others(m: Tensor, w: Tensor) -> Tensor:
    """Return for every class the sum of w m over the other classes."""
    return (m @ w)[:, None] - m * w


def _of_two(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Return the sum of w_c a_c w_d b_d over all pairs of different classes c and d, shape (n_sentences,)."""
    return (a @ w) * (b @ w) - (a * b) @ w.square()


def _falling(x: Tensor, k: int) -> Tensor:
    """Return x (x - 1) ... (x - k + 1), the number of ordered choices of k among x."""
    result = x
    for i in range(1, k):
        result = result * (x - i)
    return result


def _inverse(x: Tensor) -> Tensor:
    """Return 1 / x, and 0 where x is 0: a sentence with so few tokens has no such products."""
    return torch.where(x > 0, 1 / x, 0.0)
