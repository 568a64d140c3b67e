"""Prediction of a word's sense identity by thresholds on the cosine of its two vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.activations import ActivationStore
from probing.downstream.labelled_pairs import WordPairs
from probing.downstream.sentence_vectors import (
    FittingText,
    TransformFitting,
    cosines,
    fitted,
    has_pieces,
    outliers,
    token_moments,
    unknown_words,
    word_vectors,
)
from probing.errors import UserError
from probing.results import estimate_cells
from probing.statistics import MIN_SENTENCES, NO_INTERVAL, binomial_interval, difference_interval, size_columns
from probing.statistics.chance import DRAWS, holm, percentile_interval
from probing.text.tokens import Tokens

# The thresholds of Luo, Kulmizev & Mao (2021), who took the best of these and of all layers on the training set.
PUBLISHED_THRESHOLDS = tuple(round(0.1 * k, 1) for k in range(1, 10))

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


@dataclass(frozen=True)
class ThresholdRule:
    """A threshold, above which a score means yes, and its accuracy on the pairs it was chosen on, hence too high."""

    threshold: float
    accuracy: float


def best_threshold(scores: Scores, labels: Labels) -> ThresholdRule:
    """Return the threshold with the most correct labels, among those between any two scores and beyond both ends.

    Of several equally good thresholds, the lowest is returned; NaN if a score is not finite. Scores and labels have
    shape (n,).
    """
    if not np.isfinite(scores).all():  # sorted, NaN would be the largest score
        return ThresholdRule(float("nan"), float("nan"))
    values, group = np.unique(scores, return_inverse=True)
    yes = np.bincount(group, weights=labels, minlength=len(values))
    no = np.bincount(group, weights=~labels, minlength=len(values))
    # Number of correct labels if the threshold is above the k lowest values: the noes among these and the yeses among
    # the other values.
    right = np.concatenate([[0.0], np.cumsum(no)]) + np.concatenate([[0.0], np.cumsum(yes[::-1])])[::-1]
    best = int(right.argmax())
    # Halfway between neighbouring values; the lower value if no floating-point number lies between them.
    halfway = np.minimum((values[:-1] + values[1:]) / 2, np.nextafter(values[1:], -np.inf))
    thresholds = np.concatenate([[values[0] - 1], halfway, [values[-1]]])
    return ThresholdRule(float(thresholds[best]), float(right[best] / len(labels)))


def best_published_threshold(scores: Scores, labels: Labels) -> ThresholdRule:
    """Return the best of the nine thresholds .1 to .9, the lowest of equally good thresholds.

    Such a coarse grid favours spaces whose cosines spread over the range of the thresholds.
    """
    accuracies = [accuracy(scores, labels, threshold) for threshold in PUBLISHED_THRESHOLDS]
    best = int(np.argmax(accuracies))
    return ThresholdRule(PUBLISHED_THRESHOLDS[best], accuracies[best])


def accuracy(scores: Scores, labels: Labels, threshold: float) -> float:
    """Return the share of correct labels under a threshold; NaN if a score is not finite."""
    return float(((scores > threshold) == labels).mean()) if np.isfinite(scores).all() else float("nan")


def exact_interval(n_right: int, n: int) -> tuple[float, float]:
    """Return the exact confidence interval of a share (Clopper & Pearson 1934); NaN for too few pairs.

    It assumes independent pairs; some share a sentence or a word, so the correct interval is slightly wider.
    """
    return NO_INTERVAL if n < MIN_SENTENCES else binomial_interval(n_right, n)


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test: numbers of pairs on which only the second or only the first rule is correct, and p."""

    gained: int
    lost: int
    p_value: float


def mcnemar(first: Labels, second: Labels) -> McNemar:
    """Return the exact test of McNemar (1947) of two rules, given which pairs each labels correctly, shape (n,)."""
    from scipy.stats import binomtest

    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    p_value = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return McNemar(gained, lost, p_value)


def area_under_curve(scores: Scores, labels: Labels) -> Scores:
    """Return the area under the ROC curve: the probability that a yes scores higher than a no, ties counting half.

    It is computed from ranks (Mann & Whitney 1947) without a threshold, over the last axis of scores and labels, shape
    (..., n); NaN if all labels are equal, or a score is not finite.
    """
    from scipy.stats import rankdata

    n_yes = labels.sum(-1)
    n_no = labels.shape[-1] - n_yes
    above = (rankdata(scores, axis=-1) * labels).sum(-1) - n_yes * (n_yes + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isfinite(scores).all(-1), above / (n_yes * n_no), np.nan)


def area_interval(scores: Scores, labels: Labels, seed: int) -> tuple[float, float]:
    """Return the percentile interval of the area under the curve over resampled pairs; NaN for too few pairs.

    With the same seed, every layer and transform resamples the same pairs, which makes them comparable.
    """
    drawn = np.random.default_rng(seed).integers(len(labels), size=(DRAWS, len(labels)))
    return percentile_interval(area_under_curve(scores[drawn], labels[drawn]), len(labels))


def gain_interval(first: Labels, second: Labels) -> tuple[float, float]:
    """Return the confidence interval of the second rule's accuracy minus the first's; NaN for too few pairs."""
    difference = second.astype(np.int64) - first
    return difference_interval(difference, np.ones_like(difference))


Row = dict[str, Any]


@dataclass(frozen=True)
class PairCosines:
    """The cosines of all pairs in a layer and space, shape (n_pairs,), for the training and the reported part.

    `clipped` has the neurons that were set to 0.
    """

    layer: int
    transform: str
    train: Scores
    reported: Scores
    clipped: Sequence[int]


def by_layer(scored: Sequence[PairCosines], train: Labels, reported: Labels, seed: int) -> list[Row]:
    """Return a row for each layer and space, as in `wic.csv`, with its threshold chosen on the training part."""
    rows = []
    for scores in scored:
        rule, published = best_threshold(scores.train, train), best_published_threshold(scores.train, train)
        area = float(area_under_curve(scores.reported, reported))
        rows.append({
            "layer": scores.layer, "transform": scores.transform, "threshold": rule.threshold,
            "train_accuracy": rule.accuracy, **_accuracy_cells((scores.reported > rule.threshold) == reported),
            **estimate_cells("auc", area, area_interval(scores.reported, reported, seed)),
            "train_auc": float(area_under_curve(scores.train, train)),
            "published_threshold": published.threshold, "published_accuracy": published.accuracy,
            "constant_true_accuracy": float(reported.mean()), "n_clipped": len(scores.clipped),
            "clipped": " ".join(map(str, scores.clipped)), "n_train_pairs": len(train),
        })  # fmt: skip
    return rows


def chosen(
    scored: Sequence[PairCosines],
    rows: Sequence[Mapping[str, Any]],
    train: Labels,
    reported: Labels,
    part: str,
    seed: int,
) -> list[Row]:
    """Return the result of each space under each protocol, and of the constant answer yes, as in `chosen.csv`.

    Under `held_out`, each space is compared with the plain space by McNemar's test; p-values are corrected for the
    number of spaces (Holm). `rows` is the result of `by_layer`; `part` is the name of the reported part.
    """
    names = list(dict.fromkeys(scores.transform for scores in scored))
    indices = {name: [i for i, scores in enumerate(scored) if scores.transform == name] for name in names}
    best = {name: max(indices[name], key=lambda i: rows[i]["train_accuracy"]) for name in names}
    right = {name: (scored[i].reported > rows[i]["threshold"]) == reported for name, i in best.items()}
    chosen_rows = [
        _chosen_row("held_out", rows[i], rows[i]["threshold"], part, right[name]) for name, i in best.items()
    ]
    compared = [row for row in chosen_rows if row["transform"] != "none"] if "none" in right else []
    tests = [mcnemar(right["none"], right[row["transform"]]) for row in compared]
    p_values = holm([test.p_value for test in tests])
    for row, test, p_value in zip(compared, tests, p_values, strict=True):
        plain, of_space = right["none"], right[row["transform"]]
        row |= estimate_cells("gain", float(of_space.mean() - plain.mean()), gain_interval(plain, of_space))
        row |= {"n_gained": test.gained, "n_lost": test.lost, "p_value": float(p_value)}
    for name in names:
        i = max(indices[name], key=lambda i: rows[i]["published_accuracy"])
        threshold = rows[i]["published_threshold"]
        chosen_rows.append(
            _chosen_row("published", rows[i], threshold, "train", (scored[i].train > threshold) == train)
        )
    return [*chosen_rows, {"protocol": "constant_true", "reported_on": part, **_accuracy_cells(reported)}]


def _chosen_row(protocol: str, row: Mapping[str, Any], threshold: float, reported_on: str, right: Labels) -> Row:
    return {
        "protocol": protocol, "transform": row["transform"], "layer": row["layer"], "threshold": threshold,
        "reported_on": reported_on, "n_clipped": row["n_clipped"], **_accuracy_cells(right),
    }  # fmt: skip


def _accuracy_cells(right: Labels) -> Row:
    interval = exact_interval(int(right.sum()), len(right))
    return {**estimate_cells("accuracy", float(right.mean()), interval), "n_pairs": len(right)}


# --------------------------------------------------------------------------------------------------------------------
# The evaluation on WiC: cosines of a word's two vectors by layer and space, and how well they predict its senses.
# --------------------------------------------------------------------------------------------------------------------


def targets(pairs: WordPairs) -> NDArray[np.int64]:
    """Return sentence and word index of both words of every pair, consecutive for each pair, shape (2 n_pairs, 2)."""
    return np.stack([pairs.sentences.ravel(), pairs.targets.ravel()], axis=1)


def with_both_words(pairs: WordPairs, tokens: Tokens) -> WordPairs:
    """Return the pairs of which both words have a token."""
    first, second = has_pieces(tokens, targets(pairs)).reshape(-1, 2).T
    return pairs.pick(first & second)


def target_check(pairs: WordPairs) -> Callable[[Tokens], None]:
    """Return a check that raises a `UserError` if, after truncation, no pair has its word in both sentences."""

    def check(tokens: Tokens) -> None:
        if not with_both_words(pairs, tokens).n_pairs:
            raise UserError(
                f"`--max_length`: of {pairs.corpus.name}, no pair keeps its word in both sentences; allow more tokens."
            )

    return check


def _target_vectors(pairs: WordPairs, store: ActivationStore, layer: int) -> tuple[Tensor, Tensor]:
    """Return the vectors of the first and of the second word of each pair, each of shape (n_pairs, d_model)."""
    words, index = np.unique(targets(pairs), axis=0, return_inverse=True)
    (vectors,) = word_vectors(store, [layer], words)
    first, second = torch.from_numpy(index.reshape(-1, 2)).T
    return vectors[first], vectors[second]


def target_cosines(pairs: WordPairs, store: ActivationStore, layer: int) -> NDArray[np.float64]:
    """Return the cosine of the word's two vectors in a layer, untransformed, for each pair, shape (n_pairs,)."""
    return cosines(*_target_vectors(pairs, store, layer))


def without_cut_words(
    parts: Mapping[str, WordPairs], stores: Sequence[ActivationStore], say: Callable[[str], None]
) -> dict[str, WordPairs]:
    """Return the pairs of each part whose words were not truncated, and report the number of omitted pairs."""
    whole = {}
    for (which, pairs), store in zip(parts.items(), stores, strict=True):
        whole[which] = with_both_words(pairs, store.tokens)
        if n_cut := pairs.n_pairs - whole[which].n_pairs:
            say(f"{which}: {n_cut} of {pairs.n_pairs} pairs are left out: their word was cut off")
    return whole


def unknown_pairs(
    parts: Mapping[str, WordPairs], stores: Sequence[ActivationStore], tokenizer: Any, say: Callable[[str], None]
) -> dict[str, int]:
    """Return the number of pairs of each part with a word that the vocabulary does not know, and report it."""
    counts = {}
    for (which, pairs), store in zip(parts.items(), stores, strict=True):
        unknown = unknown_words(store.tokens, tokenizer, targets(pairs)).reshape(-1, 2).any(axis=1)
        counts[which] = int(unknown.sum())
        if counts[which]:
            say(
                f"{which}: {counts[which]} of {pairs.n_pairs} pairs have a word of which the model's vocabulary knows "
                "no piece; they count like the others"
            )
    return counts


def evaluate(
    parts: Mapping[str, WordPairs], stores: Sequence[ActivationStore], fit_on: FittingText, layers: Sequence[int],
    fitting: TransformFitting, seed: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """Return the rows of `wic.csv` and of `chosen.csv`.

    `parts` are the training part and the reported part, by name; `stores` are the activations of each.
    """
    train, test = parts.values()
    scored = []
    for layer in layers:
        clipped = outliers([fit_on], layer, fitting.definition) if fitting.clips else []
        transforms = fitted(fitting, token_moments([fit_on], layer), clipped, layer)
        vectors = [_target_vectors(pairs, store, layer) for pairs, store in zip(parts.values(), stores, strict=True)]
        for name, transform in transforms.items():
            of_train, reported = (cosines(transform(first), transform(second)) for first, second in vectors)
            scored.append(PairCosines(layer, name, of_train, reported, transform.clipped))
    rows = by_layer(scored, train.labels, test.labels, seed)
    picked = chosen(scored, rows, train.labels, test.labels, list(parts)[1], seed)
    n_vectors, n_sentences, width = int(fit_on.taken.sum()), int(fit_on.is_used.sum()), stores[0].plan.d_model
    for row in (*rows, *picked):
        row |= size_columns(row.get("transform", ""), n_vectors, n_sentences, width, fitting.components)
    return rows, picked
