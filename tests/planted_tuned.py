"""Runs of a tuned model of which everything that papers say of tuning is true, or of which none of it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from probing.results.rows import Table
from probing.runs.study import Result
from written import results_of

N_LAYERS, N_HEADS = 12, 6
Row = dict[str, Any]
STARTS = ("pretrained", "random", "shuffled")


def runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that claims about tuned models are measured on.

    Args:
        true: Whether what the papers say is true of the model.
    """
    heads = {f"head_{on}": _head(score) for on, score in _scores(true).items()}
    similarity = {f"similarity_{on}": _geometry(1 - score) for on, score in _scores(true).items()}
    return {
        "tuned": tuned(0.6, 0.4 if true else 0.7, 0.32),
        "tuned_change": _changed(true),
        "shuffled_change": results_of("attention", Path("shuffled"), {}, {}, change=Table(_maps([0.99] * N_LAYERS))),
        "disabled_task": disabled(0.03 if true else -0.03),
        "pruned_task": pruned(0.5 if true else 0.1),
        **heads,
        **similarity,
    }  # fmt: skip


def tuned(pretrained: float, random: float, shuffled: float, constant: str = "majority") -> Result:
    """Return a run of `finetune` in which the constant answer scores 0.3."""
    scores = dict(zip((*STARTS, constant), (pretrained, random, shuffled, 0.3), strict=True))
    rows = [
        {"answer": a, "against": b, "difference": scores[a] - scores[b], "low": scores[a] - scores[b] - 0.05,
         "high": scores[a] - scores[b] + 0.05}
        for i, a in enumerate(scores) for b in list(scores)[i + 1 :]
    ]  # fmt: skip
    return results_of("finetune", Path("tuned"), {}, {}, differences=Table(rows))


def disabled(gain: float, readout: str = "tuned") -> Result:
    """Return what a tuned model gains without some head and without layer 1; without others it loses."""

    def row(unit: str, effect: float) -> Row:
        return {"unit": unit, "kind": "uniform", "readout": readout, "layer": N_LAYERS, "effect": effect,
                "low": effect - 0.01, "high": effect + 0.01}  # fmt: skip

    layers = {str(layer): gain if layer == 1 else -0.1 for layer in range(1, N_LAYERS + 1)}
    heads = {f"{layer}-{head}": -0.04 for layer, head in product(range(1, N_LAYERS + 1), range(1, N_HEADS + 1))}
    best = [{**row("3-2", gain), "units": "heads", "p_value": 0.01}, {**row("1", 0.2), "units": "layers"}]
    rows = [row(unit, effect) for unit, effect in {**layers, **heads}.items()]
    return results_of("disable", Path("disabled"), {}, {}, disabled=Table(rows), better_without=Table(best))


def pruned(kept: float, readout: str = "tuned") -> Result:
    """Return what a tuned model loses with heads and weights pruned: nothing up to a share that the right order keeps.

    At random, it loses from a tenth less on.
    """

    def rows(order: str, upto: float, draw: int = 0) -> Iterator[Row]:
        for step in range(11):
            share = step / 10
            effect = 0.0 if share <= upto + 1e-9 else -0.1 - draw / 100
            yield {"readout": readout, "order": order, "draw": draw, "share": share, "effect": effect,
                   "low": effect - 0.005, "high": effect + 0.005}  # fmt: skip

    heads = [{**row, "units": "heads"} for row in rows("importance", kept)]
    heads += [{**row, "units": "heads"} for draw in (1, 2) for row in rows("random", kept - 0.1, draw)]
    heads += [{**row, "units": "layers"} for row in rows("importance", 1.0)]  # which do not count
    weights = [*rows("magnitude", kept), *rows("random_mean", kept - 0.1), *rows("random", 1.0, 1)]
    return results_of("disable", Path("pruned"), {}, {}, pruning=Table(heads), weight_pruning=Table(weights))


def _changed(true: bool) -> Result:
    """Return how alike tuning leaves the maps; where the claims are false, the first two layers change most."""
    kept = [1 - layer / 50 if true else 0.5 + layer / 50 for layer in range(1, N_LAYERS + 1)]
    return results_of("attention", Path("change"), {}, {}, change=Table(_maps(kept)))


def _maps(kept: list[float]) -> Iterator[Row]:
    for layer, value in enumerate(kept, start=1):
        yield {"layer": layer, "measure": "cosine", "of": "same", "value": value, "low": value - 0.002,
               "high": value + 0.002}  # fmt: skip


def _scores(true: bool) -> dict[str, float]:
    """Return the score with the head on each layer; where the claim is true, it is best two below the last."""
    best = "2_below" if true else "on_last"
    return {on: 0.9 if on == best else 0.6 for on in ("on_last", "1_below", "2_below", "3_below")}


def _head(score: float) -> Result:
    row = {"answer": "pretrained", "score": score, "overall_low": score - 0.05, "overall_high": score + 0.05}
    return results_of("finetune", Path("head"), {}, {}, scores=Table([row]))


def _geometry(alike: float) -> Result:
    rows = [
        {"layer": layer, "transform": "none", "measure": "token_similarity", "value": alike - 0.01 * (2 - layer)}
        for layer in range(3)
    ]
    return results_of("geometry", Path("geometry"), {}, {}, geometry=Table(rows))
