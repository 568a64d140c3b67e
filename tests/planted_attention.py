"""Surveys of heads of which everything that a paper says of attention is true, or of which none of it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planted_tuned import runs_of as runs_of_tuned
from probing.results.rows import Table
from probing.runs.study import Result
from written import results_of

N_LAYERS, N_HEADS = 12, 12
Row = dict[str, Any]


def runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that claims of Kovaleva et al. (2019) are measured on.

    Args:
        true: Whether what the paper says is true of the model.
    """
    return {
        "attention": survey(true),
        "pairs": results_of("attention", Path("pairs"), {}, {}, attention_classes=classes(true)),
        "change": results_of("attention", Path("change"), {}, {}, change=Table(_changed(true))),
        **runs_of_tuned(true),
    }  # fmt: skip


def survey(true: bool) -> Result:
    """Return a survey of single sentences."""
    return results_of("attention", 
        Path("attention"), {}, {}, heads=Table(_near(true)), attention_layers=Table(_attended(true)),
        attention_classes=classes(true), relations=Table(_relations(true)), roles=Table(_roles(true)),
    )  # fmt: skip


def with_interval(value: float, half: float = 0.002) -> Row:
    return {"value": value, "low": value - half, "high": value + half}


def classes(true: bool) -> Table:
    """Return the shares of the classes of all maps; where the claims are false, nearly every map is heterogeneous."""
    shares = {"vertical": 0.35, "diagonal": 0.05, "vertical and diagonal": 0.05, "block": 0.05, "heterogeneous": 0.5}
    if not true:
        shares = {**dict.fromkeys(shares, 0.002), "heterogeneous": 0.992}
    return Table(
        {"layer": "all", "factor": factor, "class": name, "share": share, "low": share - 0.001, "high": share + 0.001,
         "share_moved": 0.02 if true else 0.3}
        for factor in (0.75, 1.0, 1.25)
        for name, share in shares.items()
    )  # fmt: skip


def _attended(true: bool) -> Iterator[Row]:
    """Yield attention to types of tokens; where the claims are false, subjects get more than special tokens."""
    share = 0.1
    for layer in range(1, N_LAYERS + 1):
        early = 1 - layer / (N_LAYERS + 1)
        cls = early if true else 1 - early
        mass = 0.5 if true else 0.15
        for to, part in {"[CLS]": cls, "[SEP]": 1 - cls, "special tokens": 1.0}.items():
            yield {"layer": layer, "measure": "mass", "to": to, **with_interval(part * mass)}
        yield {"layer": layer, "measure": "lift", "to": "special tokens", **with_interval(mass / share)}
        yield {"layer": layer, "measure": "norm_mass", "to": "special tokens", **with_interval(0.1)}
        for to in ("NOUN", "VERB", "PRON", "subject", "object", "negation"):
            lift = 0.5 if to != "subject" else 0.6 if true else 3.0
            yield {"layer": layer, "measure": "lift", "to": to, **with_interval(lift)}


def _changed(true: bool) -> Iterator[Row]:
    """Yield how alike the maps of two checkpoints are; where the claims are false, the first two differ most."""
    for layer in range(1, N_LAYERS + 1):
        kept = 1 - layer / 50 if true else 0.5 + layer / 50
        for measure, value in (("cosine", kept), ("jensen_shannon", 1 - kept)):
            yield {"layer": layer, "measure": measure, "of": "same", **with_interval(value)}
            yield {"layer": layer, "measure": measure, "of": "other heads", **with_interval(0.4)}
            yield {"layer": layer, "head": 3, "measure": measure, "of": "same", **with_interval(0.1)}


def _near(true: bool) -> Iterator[Row]:
    for layer in range(1, N_LAYERS + 1):
        for head in range(1, N_HEADS + 1):
            near = {"previous": 0.8 if true else 0.1, "next": 0.05, "self": 0.9}
            for name, value in near.items():
                yield {"layer": layer, "head": head, "measure": name, **with_interval(value)}


def _relations(true: bool) -> Iterator[Row]:
    yield {"relation": "det", "layer": 1, "head": 1, "difference": 0.5}
    yield {"relation": "nsubj", "layer": 8, "head": 2, "difference": -0.01 if true else 0.3}


def _roles(true: bool) -> Iterator[Row]:
    """Yield scores of links; where the claims are false, heads 1-2 and 7-6 attend to unlinked pairs more."""
    for layer in range(1, N_LAYERS + 1):
        for head in range(1, N_HEADS + 1):
            for query, score in (("predicate", 0.1), ("filler", 0.08)):
                one = {"role": "all", "query": query, "layer": layer, "head": head, "unlinked": 0.1, "p_value": 1.0}
                if (layer, head) in ((1, 2), (7, 6)) and query == "predicate":
                    one |= {"p_value": 0.001} if true else {"unlinked": 0.3}
                    score = 0.2 + layer / 1000
                yield {**one, "score": score, "low": score - 0.01, "high": score + 0.01}
    yield {"role": "obj", "query": "filler", "layer": 3, "head": 3, "score": 0.9, "low": 0.8, "high": 1.0,
           "unlinked": 0.1, "p_value": 0.001}  # fmt: skip
