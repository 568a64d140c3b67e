"""Runs of a model whose tokens become alike as Shi et al. (2022) claim, or of one of which none of it is true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planted_attention import N_LAYERS, Row, with_interval
from planted_tuned import runs_of as runs_of_tuned
from probing.results.rows import Table
from written import results_of

_N_SENTENCES = 60


def runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that claims of Shi et al. (2022) are measured on.

    Args:
        true: Whether what the paper says is true of the model.
    """
    empty = {name: Table() for name in ("outliers", "dimensions", "parameters", "explained")}
    geometry = results_of("geometry", 
        Path("geometry"), {}, {}, geometry=Table(_similarity(true)), smoothing=Table(_shares(true)),
        smoothing_sentences=Table(_sentences(true)), **empty,
    )  # fmt: skip
    attention = results_of("attention", Path("attention"), {}, {}, similarity=Table(_maps(true)))
    return {
        "geometry": geometry,
        "attention": attention,
        "fusion": results_of("attention", Path("fusion"), {}, {}, fusion=Table(_fusions(true))),
        **runs_of_tuned(true),
    }


def _similarity(true: bool) -> Iterator[Row]:
    for layer in range(N_LAYERS + 1):
        value = 0.2 + 0.75 * layer / N_LAYERS if true else 0.8 - 0.5 * layer / N_LAYERS
        for transform, part in (("none", 1.0), ("clip", 0.9)):
            yield {"layer": layer, "transform": transform, "measure": "token_similarity", **with_interval(part * value)}


def _shares(true: bool) -> Iterator[Row]:
    for layer in range(1, N_LAYERS + 1):
        yield {"layer": layer, "measure": "share_within_bound", **with_interval(1.0 if true else 0.8, half=0)}


def _sentences(true: bool) -> Iterator[Row]:
    """Yield sentences of different lengths; where the claims are true, less is left with larger products."""
    for i in range(_N_SENTENCES):
        product = 0.5 + i / _N_SENTENCES
        left = 1.5 - product if true else product
        yield {
            "sentence": i, "layer": N_LAYERS, "n_tokens": 5 + i * 7 % 11, "sigma_1": product, "sigma_2": 1.0,
            "distance_before": 3.0, "distance_after": 3 * left, "bound": 2.0, "attention_reach": 0.9 if true else 1.1,
        }  # fmt: skip


def _maps(true: bool) -> Iterator[Row]:
    for layer in range(1, N_LAYERS):
        value = 0.95 if true and layer >= 5 else 0.3
        for measure in ("cosine", "cosine_without_special"):
            yield {"layer": layer, "other_layer": layer + 1, "measure": measure, **with_interval(value)}


def _fusions(true: bool) -> Iterator[Row]:
    sign = 1 if true else -1
    for task in ("upos", "position"):
        for against in ("last layer", "best layer"):
            yield {"task": task, "fusion": "gate", "measure": "difference", "against": against, "layer": N_LAYERS,
                   **with_interval(sign * 0.1)}  # fmt: skip
        yield {"task": task, "fusion": "gate", "measure": "cosine", **with_interval(0.5 - sign * 0.2)}
    yield {"fusion": "layer", "layer": N_LAYERS, "measure": "cosine", **with_interval(0.5)}
    yield {"fusion": "equal", "measure": "cosine", **with_interval(0.4)}
