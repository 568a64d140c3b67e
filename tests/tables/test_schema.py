"""CSV files are read by the type of each column, whatever a cell looks like."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import probing
from probing.tables.csv_files import read_csv, write_csv
from probing.tables.schema import TYPES, type_of


def tables() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns of every table of the package, by the name of the constant that lists them."""
    for module in pkgutil.walk_packages(probing.__path__, "probing."):
        if module.name != "probing.__main__":
            for name, value in vars(importlib.import_module(module.name)).items():
                # `COLUMNS` alone are those of a page or a figure.
                if name.endswith("_COLUMNS") and not name.startswith("_") and isinstance(value, tuple):
                    yield name, value


def test_every_column_of_every_table_has_a_type() -> None:
    found = dict(tables())
    assert {"ACCURACY_COLUMNS", "NEURON_COLUMNS", "AGREEMENT_COLUMNS", "STS_COLUMNS", "OUTLIER_COLUMNS"} <= set(found)
    unknown = {
        column for columns in found.values() for column in columns if type_of(column) is str and column not in TYPES
    }
    assert unknown == set()


def test_a_cell_is_what_its_column_says_and_not_what_it_looks_like(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"layer": 1, "set": "2012", "clipped": "7", "fitted_on": "nan", "spearman": 1.0, "n_pairs": 3}
    ]
    write_csv(tmp_path / "t.csv", rows, list(rows[0]))
    (found,) = read_csv(tmp_path / "t.csv")
    assert found == rows[0]
    assert [type(value) for value in found.values()] == [type(value) for value in rows[0].values()]


def test_numbers_without_a_point_are_numbers_of_their_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("layer,accuracy,n_classes,low\n0,1,7,inf\n", encoding="utf-8")
    (found,) = read_csv(tmp_path / "t.csv")
    assert [type(value) for value in found.values()] == [int, float, int, float]


def test_outliers_over_all_layers_have_a_word_for_a_layer(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"layer": 3, "neuron": 1}, {"layer": "all", "neuron": 1}]
    write_csv(tmp_path / "t.csv", rows, ["layer", "neuron"])
    assert read_csv(tmp_path / "t.csv") == rows


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("bert neuron", int), ("my run rank", int), ("bert-position layer", TYPES["layer"]), ("seed_spearman", float),
        ("probe.l2_overlap", float), ("shuffled_accuracy", float), ("above_token_low", float), ("rank_low", int),
        ("probe.solver", str), ("what old versions had", str),
    ],
)  # fmt: skip
def test_names_made_of_others_have_the_type_of_what_they_name(column: str, kind: type) -> None:
    assert type_of(column) is kind


def test_empty_cells_are_the_ends_of_no_interval_or_no_value(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "layer,accuracy_low,rank_high,draw,contribution_companion,flag\n,,,,,\n", encoding="utf-8"
    )
    (found,) = read_csv(tmp_path / "t.csv")
    assert [name for name, value in found.items() if value == ""] == ["layer", "draw", "contribution_companion", "flag"]
    assert math.isnan(found["accuracy_low"])
    assert math.isnan(found["rank_high"])


@pytest.mark.parametrize(("column", "text"), [("neuron", "1.5"), ("accuracy", "high"), ("layer", "last")])
def test_a_cell_of_another_type_is_named(tmp_path: Path, column: str, text: str) -> None:
    (tmp_path / "t.csv").write_text(f"{column}\n{text}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"t.csv has `{text}` in the column {column}, where a number belongs"):
        read_csv(tmp_path / "t.csv")
