"""The terms of a report explain every heading of the tables on heads, and on what is lost without parts of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.studies.attention import command as schemas
from probing.studies.attention.section import ATTENTION, CHANGE, FUSION, POSITION_HEADS, ROLLOUT, terms_of_survey
from probing.studies.disable import tables as disabling
from probing.studies.disable.schema import DISABLED as DISABLED_SCHEMA
from probing.studies.disable.schema import WEIGHT_PRUNING
from probing.studies.disable.section import DISABLED, PRUNED
from probing.studies.disable.tables import PLACES, weight_tables
from probing.studies.geometry.neurons import tables as neuron_interventions
from probing.studies.geometry.section import CHANGED_NEURONS
from probing.tables import change, heads, position_heads
from probing.tables import change as tables_change
from written import results_of

ENDS = {"low": 0.1, "high": 0.3}


def headings(tables: Iterable[Any]) -> set[str]:
    found = {str(column.header) for table in tables for column in table.columns}
    assert found
    return found


def of_rollout() -> set[str]:
    shares = ("self", "special_tokens", "previous", "next", "others")
    rows = [{"query": "words", "layer": 1, "measure": name, "value": 0.2, "uniform": 0.1} for name in shares]
    return headings([heads.rollout_table(rows)])


def of_change() -> set[str]:
    rows = [{"measure": measure, "of": of, "layer": 1, "value": 0.5} for _, measure, of in change._COLUMNS]
    return headings([change.change_table(rows)])


def of_fusion() -> set[str]:
    here: Mapping[str, Any] = {"task": "position", "measure": "accuracy", "value": 0.5, "chosen": "yes"}
    rows: list[Any] = [
        {**here, "fusion": "layer", "layer": 1},
        *({**here, "fusion": name} for name in tables_change.FUSIONS),
    ]
    rows += [
        {**here, **ENDS, "measure": "difference", "fusion": name, "against": against, "p_value": 0.5}
        for name in tables_change.FUSIONS for against in ("last layer", "best layer", "equal")
    ]  # fmt: skip
    return headings(tables_change.fusion_tables(rows))


def of_position_heads() -> set[str]:
    place = {"layer": 1, "head": 2, "offset": -1, "position_head": "yes"}
    head = {**dict.fromkeys(schemas.POSITION_HEADS.types, 0.5), **place}
    held = {**dict.fromkeys(schemas.POSITION_REMOVAL.types, 0.5), **place, "k": 5, "ranking": "use"}
    return headings(position_heads.tables({"position_heads": [head], "position_removal": [held]}))


def of_disabled() -> set[str]:
    row = {**dict.fromkeys(DISABLED_SCHEMA.types, 0.2), "layer": 2, "readout": "position"}
    rows = [{**row, "unit": unit, "kind": kind} for unit in ("1", "1-2") for kind in PLACES]
    return headings(
        disabling.tables({"disabled": [*rows, *({**one, "readout": "position_retrained"} for one in rows)]})
    )


def of_pruned_weights() -> set[str]:
    row = {**dict.fromkeys(WEIGHT_PRUNING.types, 0.2), **ENDS, "layer": 2, "readout": "tuned", "draw": 1}
    pruned = [{**row, "order": order} for order in ("magnitude", "random", "random_mean")]
    return headings(weight_tables({"disabled": [row], "weight_pruning": pruned}))


def of_changed_neurons() -> set[str]:
    row = {**ENDS, "changed_layer": 1, "kind": "mean", "k": 2, "readout": "position", "layer": 2, "effect": 0.2, "n": 9}
    drawn = {f"{of}_{end}": 0.1 for of in ("random", "matched") for end in ("lowest", "highest", "p")}
    return headings(neuron_interventions.tables([{**row, **drawn, "random": 0.1, "matched": 0.1}]))


@pytest.mark.parametrize(
    ("shown", "terms"),
    [
        (of_rollout, ROLLOUT), (of_change, CHANGE), (of_fusion, FUSION), (of_position_heads, POSITION_HEADS),
        (of_disabled, DISABLED), (of_pruned_weights, PRUNED), (of_changed_neurons, CHANGED_NEURONS),
    ],
)  # fmt: skip
def test_every_heading_is_explained_and_nothing_else(shown: Any, terms: Mapping[str, str]) -> None:
    # The head is explained once, and marks beside numbers have no heading.
    assert shown() - {"head"} == set(terms) - {"head", "*"}


def test_terms_are_those_of_the_tables_that_there_are(tmp_path: Path) -> None:
    plain = results_of("attention", tmp_path, {}, {})
    followed = results_of("attention", tmp_path, {}, {}, rollout=Table([{"layer": 1}]))
    assert terms_of_survey(plain) == {"Attention heads": ATTENTION}
    assert terms_of_survey(followed) == {"Attention heads": ATTENTION, "Rollout": ROLLOUT}
