"""Runs of a model of which everything that Rogers et al. (2020) report is true, or of which none of it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

from planted_attention import runs_of as attention_runs_of
from planted_attention import with_interval
from planted_tuned import runs_of as runs_of_tuned
from probing.results.rows import Table
from probing.runs.run import Run
from probing.runs.study import Result
from written import results_of

N_LAYERS, N_HEADS = 12, 6
Row = dict[str, Any]


def runs_of(true: bool) -> Mapping[str, Any]:
    """Return the runs that the claims are measured on.

    Args:
        true: Whether what the survey says is true of the model.
    """
    return {
        "hierarchy": results_of("hierarchy", Path("hierarchy"), {}, {}, Table(_order(true)), Table()),
        "positions": _fit([1.0, 1.0, 0.99, 0.98] + [0.9 - 0.05 * k for k in range(9)] if true else [0.3] * 12 + [0.9]),
        "parts_of_speech": _fit(_curve(5, 0.7) if true else _curve(11, 0.7)),
        "relations": _fit(_curve(8, 0.5) if true else _curve(2, 0.5)),
        "attention": results_of("attention", 
            Path("attention"), {}, {}, heads=Table(_near(true)), attention_layers=Table(_attended(true)),
            relations=Table(_relations(true)), trees=Table(_trees(true)), similarity=Table(_similarity(true)),
        ),
        "pooling": results_of("sts", Path("sts"), {}, {}, Table(_pooled(true)), Table(_pooled(true, chosen=True))),
        "minimal_pairs": results_of("cloze", Path("pairs"), {}, {}, groups=Table(_groups(true))),
        "changed_text": results_of("cloze", Path("changed"), {}, {}, changes=Table(_changes(true))),
        "disabled": _disabled("position", true),
        "disabled_words": _disabled("mlm", true),
        "change": attention_runs_of(true)["change"],
        **runs_of_tuned(true),
    }  # fmt: skip


def _named(column: str, value: float, half: float = 0.01) -> Row:
    """Return a value with its interval in columns of its name."""
    return {column: value, f"{column}_low": value - half, f"{column}_high": value + half}


def _order(true: bool) -> Iterator[Row]:
    """Yield the shares of answers; the more layers, the fewer go by linear order, or else the more."""
    linear = {"main_auxiliary": "first_auxiliary", "subject_noun": "first_noun"}
    for task, condition, layer in product(linear, ("model", "untrained"), range(N_LAYERS + 1)):
        depth = layer / N_LAYERS
        right = 0.02 if condition == "untrained" else 0.1 + 0.85 * (depth if true else 1 - depth)
        yield {
            "task": task, "condition": condition, "layer": layer, "test": 0.99, "generalisation": right,
            **_named(linear[task], 1 - right), **_named("preference", 2 * right - 1),
        }  # fmt: skip


def _curve(best: int, start: float) -> list[float]:
    """Return accuracies that rise from the embeddings to the best layer and fall from there."""
    return [start + 0.2 * (1 - abs(layer - best) / N_LAYERS) for layer in range(N_LAYERS + 1)]


def _fit(accuracies: list[float]) -> Run:
    rows = [
        {
            "layer": layer,
            **_named("accuracy", one, 0.005),
            "untrained_accuracy": 0.4,
            "permuted_positions_accuracy": 0.1,
        }
        for layer, one in enumerate(accuracies)
    ]
    return Run(Path("fit"), {}, {}, Table(rows), Table())


def _near(true: bool) -> Iterator[Row]:
    """Yield attention to neighbours: four heads at the previous token and five at the next one, or none."""
    for i, (layer, head) in enumerate(product(range(1, N_LAYERS + 1), range(1, N_HEADS + 1))):
        near = {"previous": i < 4, "next": 4 <= i < 9}
        for name, beside in near.items():
            yield {"layer": layer, "head": head, "measure": name, **with_interval(0.8 if beside and true else 0.1)}


def _attended(true: bool) -> Iterator[Row]:
    """Yield attention to [CLS] in early layers, to [SEP] in middle ones and to punctuation in the last ones."""
    for layer in range(1, N_LAYERS + 1):
        early, late = layer <= 4, layer >= 11
        sep = 0.6 if 5 <= layer <= 10 else 0.1
        masses = {"[CLS]": 0.5 if early else 0.02, "[SEP]": sep, "punctuation": 0.4 if late else 0.02}
        if not true:
            masses = {"[CLS]": 0.5 if late else 0.02, "[SEP]": 0.4 if early else 0.2,
                      "punctuation": 0.4 if layer == 1 else 0.02}  # fmt: skip
        for to, mass in masses.items():
            yield {"layer": layer, "measure": "mass", "to": to, **with_interval(mass)}
        yield {"layer": layer, "measure": "norm_mass", "to": "[SEP]", **with_interval(0.1 if early else 0.05)}
        for name, value in {"mass": 0.6, "norm_mass": 0.2 if true else 0.8, "lift": 5.0}.items():
            yield {"layer": layer, "measure": name, "to": "special tokens", **with_interval(value)}


def _relations(true: bool) -> Iterator[Row]:
    for relation in ("det", "obj", "nsubj", "advmod", "amod"):
        yield {
            "relation": relation,
            **_named("difference", 0.4 if true else -0.1),
            "offset_test": 0.4,
            "untrained": 0.1,
        }


def _trees(true: bool) -> Iterator[Row]:
    for head in range(1, N_HEADS + 1):
        chosen = {"chosen": "yes"} if head == 2 else {}
        edges = (0.5 if true else 0.9) if chosen else 0.1
        yield {"measure": "uuas", "layer": 3, "head": head, **chosen, **_named("test", edges), "difference": 0.1}
    yield {"measure": "uas", "layer": "all", **_named("test", 0.95), "difference": 0.5}


def _similarity(true: bool) -> Iterator[Row]:
    """Yield divergences of pairs of heads, which are small in one layer, or between layers."""
    heads = product(range(1, 4), range(1, N_HEADS + 1))
    for (layer, head), (other_layer, other_head) in combinations(heads, 2):
        is_near = (layer == other_layer) is true
        yield {"measure": "jensen_shannon", "layer": layer, "head": head, "other_layer": other_layer,
               "other_head": other_head, **with_interval(0.2 if is_near else 0.5)}  # fmt: skip


def _pooled(true: bool, chosen: bool = False) -> Iterator[Row]:
    for name, layer, (i, pooling) in product(
        ("STS12", "STS-B dev"), (0, 12), enumerate(("cls", "mean", "first_last"))
    ):  # fmt: skip
        value = 0.5 + (0.1 if true else -0.1) * i * (layer == 12)
        row = {"set": name, "pooling": pooling, "layer": layer, "transform": "none", "aggregation": "all",
               "spearman": value, "low": value - 0.01, "high": value + 0.01}  # fmt: skip
        if not chosen:
            yield row
        elif layer == 12:
            yield {**row, "protocol": "held_out"}


def _groups(true: bool) -> Iterator[Row]:
    for name, share in {"agreement": 0.95, "negative polarity": 0.9, "affirmative": 0.95, "negated": 0.1}.items():
        found = share if true else 1 - share
        yield {"group": name, "share": found, "low": found - 0.1, "high": found + 0.1}


def _changes(true: bool) -> Iterator[Row]:
    yield {"condition": "intact", "loss": 2.0}
    costs = {"words_shuffled": 0.02 if true else 1.5, "name_replaced": 0.3, "noun_replaced": 0.1 if true else 0.6}
    for name, cost in costs.items():
        yield {"condition": name, "against": "intact", **_named("difference", cost)}
    beside = costs["name_replaced"] - costs["noun_replaced"]
    yield {"condition": "name_replaced", "against": "noun_replaced", **_named("difference", beside)}


def _disabled(readout: str, true: bool) -> Result:
    """Return what is lost without one head: nothing without most of them, or much without each."""
    sign = 1 if readout == "position" else -1
    rows: list[Row] = []
    for layer in range(1, N_LAYERS + 1):
        units = {f"{layer}-{head}": 0.0 if true and head > 1 else -0.05 for head in range(1, N_HEADS + 1)}
        for unit, gain in {**units, str(layer): -0.2}.items():
            effect = sign * gain
            rows.append({"unit": unit, "readout": readout, "layer": N_LAYERS, "effect": effect,
                         "low": effect - 0.005, "high": effect + 0.005})  # fmt: skip
    best = [
        {"units": units, "readout": readout, "layer": N_LAYERS, "effect": sign * gain, "low": sign * gain - 0.005,
         "high": sign * gain + 0.005, "p_value": 0.001}
        for units, gain in {"heads": 0.03 if true else -0.02, "layers": -0.1}.items()
    ]  # fmt: skip
    return results_of("disable", Path("disabled"), {}, {}, Table(rows), Table(best))
