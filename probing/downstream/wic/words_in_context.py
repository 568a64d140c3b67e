"""How well the cosine of a word's two vectors predicts whether its sense is the same: every layer, space and threshold.

Two protocols are reported. `held_out` chooses the layer and threshold with the highest accuracy on the training part,
and reports the accuracy on the other part. `published` (Luo, Kulmizev & Mao 2021) takes the best layer and the best of
nine thresholds, and reports their accuracy on the same pairs they were chosen on, which is too high by construction
and favours spaces whose cosines spread over the nine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.comparison.agreement import holm
from probing.downstream.wic.threshold import (
    Labels,
    Rule,
    Scores,
    area_interval,
    area_under_curve,
    best_published_threshold,
    best_threshold,
    exact_interval,
    gain_interval,
    mcnemar,
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """The cosines of all pairs in one layer and space.

    Args:
        layer: Layer number.
        transform: Name of the space.
        train: Cosines of the training part, shape (n_train_pairs,).
        reported: Cosines of the part that is reported on, shape (n_pairs,).
        clipped: Neurons that were set to 0.
    """

    layer: int
    transform: str
    train: Scores
    reported: Scores
    clipped: Sequence[int]


def by_layer(scored: Sequence[Scored], train: Labels, reported: Labels, seed: int) -> list[Row]:
    """Return a row for each layer and space, as in `wic.csv`, with its threshold chosen on the training part.

    Args:
        scored: Cosines in every layer and space.
        train: Labels of the training part.
        reported: Labels of the part that is reported on.
        seed: Seed of the bootstraps.
    """
    return [_row(one, train, reported, seed) for one in scored]


def _row(one: Scored, train: Labels, reported: Labels, seed: int) -> Row:
    rule, published = best_threshold(one.train, train), best_published_threshold(one.train, train)
    right = (one.reported > rule.threshold) == reported
    low, high = exact_interval(int(right.sum()), len(right))
    auc_low, auc_high = area_interval(one.reported, reported, seed)
    return {
        "layer": one.layer,
        "transform": one.transform,
        "threshold": rule.threshold,
        "train_accuracy": rule.accuracy,
        "accuracy": float(right.mean()),
        "accuracy_low": low,
        "accuracy_high": high,
        "auc": float(area_under_curve(one.reported, reported)),
        "auc_low": auc_low,
        "auc_high": auc_high,
        "train_auc": float(area_under_curve(one.train, train)),
        "published_threshold": published.threshold,
        "published_accuracy": published.accuracy,
        "constant_true_accuracy": float(reported.mean()),
        "n_clipped": len(one.clipped),
        "clipped": " ".join(map(str, one.clipped)),
        "n_train_pairs": len(train),
        "n_pairs": len(reported),
    }


def chosen(
    scored: Sequence[Scored], rows: Sequence[Mapping[str, Any]], train: Labels, reported: Labels, part: str, seed: int
) -> list[Row]:
    """Return the result of each space under each protocol, and that of always answering yes, as in `chosen.csv`.

    Under `held_out`, each space is compared with the plain one by McNemar's test; p-values are corrected for the number
    of spaces (Holm).

    Args:
        scored: Cosines in every layer and space.
        rows: Result of `by_layer` for them.
        train: Labels of the training part.
        reported: Labels of the part that is reported on.
        part: Name of that part.
        seed: Seed of the bootstraps.
    """
    names = list(dict.fromkeys(one.transform for one in scored))
    indices = {name: [i for i, one in enumerate(scored) if one.transform == name] for name in names}
    best = {name: max(indices[name], key=lambda i: rows[i]["train_accuracy"]) for name in names}
    right = {name: (scored[i].reported > rows[i]["threshold"]) == reported for name, i in best.items()}
    found = [_chosen_row("held_out", name, rows[i], _rule(rows[i], ""), part, right[name]) for name, i in best.items()]
    for row in found:
        if "none" in right and row["transform"] != "none":
            test = mcnemar(right["none"], right[row["transform"]])
            row["gain"] = float(right[row["transform"]].mean() - right["none"].mean())
            row["gain_low"], row["gain_high"] = gain_interval(right["none"], right[row["transform"]])
            row |= {"n_gained": test.gained, "n_lost": test.lost, "p_value": test.p_value}
    compared = [row for row in found if "p_value" in row]
    for row, p_value in zip(compared, holm([row["p_value"] for row in compared]), strict=True):
        row["p_value"] = float(p_value)
    for name in names:
        i = max(indices[name], key=lambda i: rows[i]["published_accuracy"])
        rule = _rule(rows[i], "published_")
        found.append(
            _chosen_row("published", name, rows[i], rule, "train", (scored[i].train > rule.threshold) == train)
        )
    constant = {"protocol": "constant_true", "reported_on": part}
    return [*found, constant | _measured(reported)]


def _rule(row: Mapping[str, Any], prefix: str) -> Rule:
    return Rule(row[f"{prefix}threshold"], row[f"{prefix}accuracy"])


def _chosen_row(protocol: str, name: str, row: Mapping[str, Any], rule: Rule, reported_on: str, right: Labels) -> Row:
    start = {"protocol": protocol, "transform": name, "layer": row["layer"], "threshold": rule.threshold}
    return start | {"reported_on": reported_on, "n_clipped": row["n_clipped"]} | _measured(right)


def _measured(right: Labels) -> Row:
    low, high = exact_interval(int(right.sum()), len(right))
    return {"accuracy": float(right.mean()), "accuracy_low": low, "accuracy_high": high, "n_pairs": len(right)}
