"""How far an edit at each place moves the vector of a document, and what each sentence weighs in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probing.downstream.sentence_vectors import cosines
from probing.statistics.intervals import mean_interval, mean_p_value, ratio_interval
from probing.studies.embeddings.documents import Ints, Texts
from probing.studies.embeddings.tables import AS_WRITTEN, SHUFFLED, WEIGHT

Floats = NDArray[np.float64]
# Numbers of each document at each place, shape (n_documents, n_places), by the measure and the order of sentences.
Values = Mapping[tuple[str, str], Floats]

# The orders of `Texts` that belong together: their numbers are averaged.
ORDERS = {AS_WRITTEN: [0], SHUFFLED: [1, 2]}
# Differences that are smaller are taken for rounding.
DECIMALS = 7


def changes(vectors: Floats, intact: Ints, edited: Ints) -> Floats:
    """Return 1 less the cosine of each document's vector before and after an edit, shape (n_documents, n_places).

    Args:
        vectors: The vector of each text, shape (n_texts, d_model).
        intact: The text of each document, shape (n_documents,).
        edited: The text after the edit at each place, shape (n_documents, n_places).
    """
    before = torch.from_numpy(vectors[np.repeat(intact, edited.shape[1])])
    found = 1 - cosines(before, torch.from_numpy(vectors[edited.ravel()]))
    return np.asarray(found.reshape(edited.shape))


def weights(documents: Floats, parts: Floats) -> tuple[Floats, float]:
    """Fit the vectors of documents by weighted sums of vectors of their sentences, with the same weights for all.

    The weights minimise the squared distance over all documents and neurons, without an intercept.

    Args:
        documents: Vectors of each document, in one or more orders, shape (n_documents, n_orders, d_model).
        parts: The vector of the sentence at each place, shape (n_documents, n_orders, n_sentences, d_model).

    Returns:
        The jackknife's pseudo-values of each document, shape (n_documents, n_sentences), whose mean are the weights,
        and the share of the squared length of the documents' vectors that the fit explains.
    """
    grams = np.einsum("noid,nojd->nij", parts, parts)
    products = np.einsum("noid,nod->ni", parts, documents)
    gram, product = grams.sum(0), products.sum(0)
    found = np.linalg.pinv(gram, hermitian=True) @ product
    total = float((documents**2).sum())
    explained = float(2 * found @ product - found @ gram @ found) / total if total else float("nan")
    without = (np.linalg.pinv(gram - grams, hermitian=True) @ (product - products)[..., None])[..., 0]
    pseudo = found - (len(documents) - 1) * (without - without.mean(0))
    return np.asarray(pseudo.round(DECIMALS)), explained


def values_of(vectors: Floats, texts: Texts) -> tuple[dict[tuple[str, str], Floats], dict[str, float]]:
    """Return the numbers of each document by measure and order, and the share that each order's fit explains.

    Args:
        vectors: The vector of each text, shape (n_texts, d_model).
        texts: The texts.
    """
    found: dict[tuple[str, str], Floats] = {}
    explained: dict[str, float] = {}
    # A sentence weighs as much as its share of the tokens if all tokens weigh the same.
    alone = vectors[texts.alone] * texts.shares[..., None]
    for order, which in ORDERS.items():
        for name, edited in texts.edited.items():
            found[name, order] = np.mean([changes(vectors, texts.intact[i], edited[i]) for i in which], axis=0)
        parts = np.stack([np.take_along_axis(alone, texts.orders[i][..., None], axis=1) for i in which], axis=1)
        documents = np.stack([vectors[texts.intact[i]] for i in which], axis=1)
        found[WEIGHT, order], explained[order] = weights(documents, parts)
    return found, explained


def middle(n_places: int) -> list[int]:
    """Return the index of the place in the middle, or of both."""
    return sorted({(n_places - 1) // 2, n_places // 2})


def relative(values: Floats) -> tuple[Floats, Floats]:
    """Return the number at the first place less that at the last, and the mean over places, both of each document."""
    return values[:, 0] - values[:, -1], values.mean(1)


def bias(values: Floats) -> dict[str, Any]:
    """Return the numbers at the start, in the middle and at the end, and their differences with intervals.

    Args:
        values: Numbers of each document at each place, shape (n_documents, n_places).
    """
    ones = np.ones(len(values), dtype=np.int64)
    start, end, between = values[:, 0], values[:, -1], values[:, middle(values.shape[1])].mean(1)
    row: dict[str, Any] = {"at_start": start.mean(), "at_middle": between.mean(), "at_end": end.mean()}
    for name, difference in (("start_end", start - end), ("start_middle", start - between)):
        low, high = mean_interval(difference, ones)
        row |= {name: difference.mean(), f"{name}_low": low, f"{name}_high": high}
        p_value = mean_p_value(difference, ones)
        row[f"{name}_p"] = None if math.isnan(p_value) else p_value
    return row | ratio("relative", relative(values)) | {"n_documents": len(values)}


def ratio(name: str, *ratios: tuple[Floats, Floats]) -> dict[str, Any]:
    """Return a ratio of sums over documents, or the first of two less the second, with its interval."""
    with np.errstate(invalid="ignore", divide="ignore"):
        each = [float(above.sum() / below.sum()) for above, below in ratios]
    low, high = ratio_interval(*ratios)
    return {name: each[0] - sum(each[1:]), f"{name}_low": low, f"{name}_high": high}


def places(values: Floats) -> Iterable[dict[str, Any]]:
    """Yield the mean at each place, counted from 1, with its interval over documents."""
    ones = np.ones(len(values), dtype=np.int64)
    for at, own in enumerate(values.T):
        low, high = mean_interval(own, ones)
        yield {"position": at + 1, "value": own.mean(), "low": low, "high": high, "n_documents": len(values)}
