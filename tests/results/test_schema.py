"""Every column of every table is declared once, and read by its type, whatever a cell looks like."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import read_csv, write_csv, write_tables
from probing.results.schema import Column, Schema, layer_number, measured, number, text, whole
from probing.runs.study import study_names, study_of
from probing.studies.compare.tables import TOP_EVERYWHERE
from probing.studies.sweep.tables import SWEEP
from written import schemas

ONE = Schema("one", "a row per thing", (
    Column("layer", layer_number), text("set", "A set."), text("clipped", "Neurons.", may_be_empty=True),
    measured("accuracy", "Its accuracy."), whole("n_pairs", "Number of pairs."), number("spearman", "A correlation."),
    whole("rank_low", "The lowest rank."), whole("draw", "Its draw."),
))  # fmt: skip


def test_every_column_says_what_it_means_and_means_the_same_type_everywhere() -> None:
    found = schemas()
    assert len(found) > 50
    types: dict[str, Any] = {}
    for schema in found:
        assert schema.row
        assert len({column.name for column in schema.columns}) == len(schema.columns)
        for column in schema.columns:
            assert column.meaning.endswith("."), f"{schema.name}.{column.name}"
            for name in column.names:
                assert types.setdefault(name, column.type) is column.type, f"{schema.name}.{name}"


def test_no_two_tables_of_a_study_have_one_name() -> None:
    for name in study_names():
        tables = [schema.name for schema in study_of(name).schemas]
        assert len({*tables}) == len(tables)
        assert tables


def test_a_column_that_is_not_declared_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the table one has no column lost: declare it"):
        write_csv(tmp_path / "one.csv", [{"layer": 1}, {"layer": 2, "lost": 3}], ONE)
    with pytest.raises(RuntimeError, match="the table two is not declared"):
        write_tables(tmp_path, {}, {"two": []}, [ONE])


def test_columns_are_in_the_order_of_the_declaration_and_those_without_a_value_are_left_out(tmp_path: Path) -> None:
    write_csv(tmp_path / "one.csv", [{"accuracy": 1.0, "layer": 1}, {"set": "a", "accuracy_low": math.nan}], ONE)
    assert (tmp_path / "one.csv").read_text(encoding="utf-8") == "layer,set,accuracy,accuracy_low\n1,,1.0,\n,a,,\n"
    write_csv(tmp_path / "one.csv", [], ONE)
    assert (tmp_path / "one.csv").read_text(encoding="utf-8").strip().split(",") == list(ONE.types)


def test_a_cell_is_what_its_column_says_and_not_what_it_looks_like(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"layer": 1, "set": "2012", "clipped": "7", "n_pairs": 3, "spearman": 1.0}]
    write_csv(tmp_path / "t.csv", rows, ONE)
    (found,) = read_csv(tmp_path / "t.csv", ONE)
    assert found == rows[0]
    assert [type(value) for value in found.values()] == [type(value) for value in rows[0].values()]


def test_numbers_without_a_point_are_numbers_of_their_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("layer,accuracy,n_pairs,accuracy_low,other\n0,1,7,inf,5\n", encoding="utf-8")
    (found,) = read_csv(tmp_path / "t.csv", ONE)
    assert [type(value) for value in found.values()] == [int, float, int, float, str]


def test_outliers_over_all_layers_have_a_word_for_a_layer(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"layer": 3, "draw": 1}, {"layer": "all", "draw": 1}]
    write_csv(tmp_path / "t.csv", rows, ONE)
    assert read_csv(tmp_path / "t.csv", ONE) == rows


@pytest.mark.parametrize(
    ("schema", "column", "kind"),
    [
        (TOP_EVERYWHERE, "bert neuron", int), (TOP_EVERYWHERE, "my run rank", int),
        (TOP_EVERYWHERE, "bert-position layer", layer_number), (TOP_EVERYWHERE, "bert", str),
        (SWEEP, "seed_spearman", float), (SWEEP, "probe.l2_overlap", float), (SWEEP, "shuffled_accuracy", float),
        (SWEEP, "probe.solver", str), (ONE, "what old versions had", str),
    ],
)  # fmt: skip
def test_columns_that_the_user_names_have_the_type_of_what_they_name(schema: Schema, column: str, kind: type) -> None:
    assert schema.type_of(column) is kind


def test_empty_cells_are_the_ends_of_no_interval_or_no_value(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("layer,accuracy_low,rank_low,draw,clipped\n,,,,\n", encoding="utf-8")
    (found,) = read_csv(tmp_path / "t.csv", ONE)
    assert [name for name, value in found.items() if value == ""] == ["layer", "draw", "clipped"]
    assert math.isnan(found["accuracy_low"])
    assert math.isnan(found["rank_low"])
