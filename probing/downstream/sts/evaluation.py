"""The evaluation on STS and SICK: similarities in every layer and space, compared with human scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.downstream.pooling_names import Pooling
from probing.downstream.spaces import Fitting
from probing.downstream.sts.dataset import SentencePairs
from probing.downstream.sts.sentence_similarity import by_layer, chosen, reported
from probing.downstream.sts.sentence_vectors import (
    FitOn,
    Vectors,
    check_static_text,
    fitted_columns,
    fitted_texts,
    similarities,
)


def evaluate(
    vectors: Vectors, layers: Sequence[int], poolings: Sequence[Pooling], fitting: Fitting, fit_on: str, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, FitOn]]:
    """Return the rows of `sts.csv` and of `chosen.csv`, and the text that each set's transforms were fitted on.

    Args:
        vectors: Sources of the sentence vectors.
        layers: Layer numbers.
        poolings: Poolings of the sentence vectors.
        fitting: The transforms and how they are fitted.
        fit_on: Value of the option `--fit_on`.
        seed: Seed of the bootstraps.

    Raises:
        UserError: If transforms of static vectors have no sentence to be fitted on.
    """
    targets: Sequence[SentencePairs] = reported(vectors.sets)
    texts = fitted_texts(vectors, targets, fit_on)
    if [*fitting.spaces] != ["none"]:
        check_static_text(texts)
    found = similarities(vectors, texts, layers, poolings, fitting)
    rows, picked = by_layer(found, targets, seed), chosen(found, targets, vectors.sets, seed)
    width = vectors.stores[0].plan.d_model
    for row in (*rows, *picked):
        if row["transform"] != "none":
            row |= fitted_columns(row, texts[row["set"]], width, vectors.static, fitting.components)
    return rows, picked, texts
