"""Sentences on what a run's intervals are over and hold for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probing.statistics.intervals import few_sentences
from probing.tables.evidence_sentences import say


def few_clusters(results: Mapping[str, Any]) -> str | None:
    """Return a sentence that tells the reader why a run has no intervals; None where it has them.

    Args:
        results: The content of the run's `results.json`.
    """
    over = _over(results)
    return few_sentences(over["n"], f"test {over['unit']}")


def scope(results: Mapping[str, Any], test_corpus: str | None) -> str:
    """Return what a run's intervals are over, or why there are none, and what speaks against independent units.

    Args:
        results: The content of the run's `results.json`.
        test_corpus: Name of the test corpus, if it is not the training corpus.
    """
    return " ".join(filter(None, (_held_over(results, test_corpus), _dependence(results))))


def _held_over(results: Mapping[str, Any], test_corpus: str | None) -> str:
    if few := few_clusters(results):
        return few
    over = _over(results)
    if over["unit"] in ("row", "group"):  # from arrays, whose origin is not known
        return say("over_arrays", **over)
    if not test_corpus:
        if over["unit"] == "document":
            return say("over_documents" if results.get("split_by") == "document" else "over_shared_documents", **over)
        if n_documents := results.get("cache", {}).get("test", {}).get("n_documents"):
            return say("over_sentences_of_documents", **over, n_documents=n_documents)
    of = test_corpus if test_corpus else "the same corpus; --test_corpus tests on another text"
    return say("over_units", **over, of=of)


def _dependence(results: Mapping[str, Any]) -> str | None:
    if (correlation := results.get("correlation_of_neighbours")) is None:
        return None
    unit = _over(results)["unit"]
    advice = say("give_groups" if unit == "row" else "mark_documents")
    return say("neighbours", unit=unit, correlation=correlation, advice=advice)


def _over(results: Mapping[str, Any]) -> Mapping[str, Any]:
    # Earlier versions did not record it: their intervals are over sentences.
    over: Mapping[str, Any] | None = results.get("intervals_over")
    return over or {"unit": "sentence", "n": results["n_sentences"]["test"]}
