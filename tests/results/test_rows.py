"""Tables as Parquet files: the types of columns, missing cells, and what happens without pyarrow."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from probing.errors import UserError
from probing.results.rows import Table
from probing.tables.schema import NEURONS
from written import read_csv, write_csv

ROWS = Table([
    {"layer": 0, "class": 3, "rank_low": 1, "rank_high": 4, "accuracy": 1, "accuracy_low": 0.5,
     "cosine_share": math.nan, "contribution_companion": "", "flag": "", "removed": "7"},
    {"layer": 1, "class": 7, "rank_low": math.nan, "rank_high": math.nan, "accuracy": 0.25, "accuracy_low": math.nan,
     "cosine_share": 0.5, "contribution_companion": 2.5, "flag": "offset", "removed": "", "head": 2},
])  # fmt: skip


def test_a_parquet_file_has_the_types_and_the_missing_cells_of_the_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ROWS.to_parquet(tmp_path / "t.parquet")
    found = parquet.read_table(tmp_path / "t.parquet")
    types = {field.name: str(field.type) for field in found.schema}
    whole = dict.fromkeys(("layer", "class", "rank_low", "rank_high", "head"), "int64")
    numbers = dict.fromkeys(("accuracy", "accuracy_low", "cosine_share", "contribution_companion"), "double")
    assert types == {**whole, **numbers, "flag": "string", "removed": "string"}
    assert list(types) == list(ROWS[1])
    first, second = found.to_pylist()
    assert math.isnan(first.pop("cosine_share"))  # a number that was measured and is none is not missing
    assert first == {
        "layer": 0, "class": 3, "rank_low": 1, "rank_high": 4, "accuracy": 1.0, "accuracy_low": 0.5,
        "contribution_companion": None, "flag": "", "removed": "7", "head": None,
    }  # fmt: skip
    assert second == ROWS[1] | dict.fromkeys(("rank_low", "rank_high", "accuracy_low"))


def test_a_csv_file_of_any_command_becomes_a_parquet_file_with_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"layer": 3, "definition": "variance", "value": 0.1 + 0.2},
        {"layer": "all", "definition": "", "value": 1e-300},
    ]
    write_csv(tmp_path / "t.csv", rows, ["layer", "definition", "value"])
    for _ in range(2):  # an existing file is replaced
        read_csv(tmp_path / "t.csv").to_parquet(str(tmp_path / "t.parquet"))
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == [{**rows[0], "layer": "3"}, rows[1]]
    assert {file.name for file in tmp_path.iterdir()} == {"t.csv", "t.parquet"}
    Table().to_parquet(tmp_path / "empty.parquet")
    assert parquet.read_table(tmp_path / "empty.parquet").to_pylist() == []


def test_what_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow.parquet")
    with pytest.raises(UserError, match=r"none/t\.parquet` cannot be written \(No such file or directory\); name a"):
        ROWS.to_parquet(tmp_path / "none" / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="`to_parquet` needs pyarrow, which is not installed; `pip install pyarrow`"):
        ROWS.to_parquet(tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_shows_a_range_in_one_cell_and_no_column_of_numbers_that_is_empty() -> None:
    rows = [
        {
            "layer": 6,
            "rank": 1,
            "neuron": 99,
            "rank_low": 1,
            "rank_high": 4,
            "contribution_companion": None,
            "flag": "",
        },
        {"layer": 6, "rank": 2, "neuron": 18, "rank_low": None, "rank_high": None, "flag": ""},
    ]
    for shown in (Table(rows, NEURONS)._repr_html_(), repr(Table(rows, NEURONS)), Table(rows, NEURONS).to_latex()):
        assert "1-4" in shown.replace("--", "-")
        assert "range" in shown
        assert "rank high" not in shown
        assert "intercept" not in shown
        assert "flag" in shown
