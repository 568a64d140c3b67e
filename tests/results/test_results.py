"""Tables of results: columns declared once, numbers as people read them, as LaTeX, Parquet files and code on pages."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probing.errors import UserError
from probing.results import (
    Column,
    Html,
    Schema,
    Table,
    View,
    booktabs,
    element,
    escaped,
    estimate,
    estimated,
    layer_number,
    layers_by,
    layers_named,
    listed,
    number,
    read_csv,
    sign_of_interval,
    text,
    two_decimals,
    whole,
    write_csv,
    write_tables,
)
from probing.runs import study_names, study_of
from probing.runtime.terminal import plain_table
from probing.studies.compare.tables import TOP_EVERYWHERE
from probing.studies.sweep import SWEEP
from probing.tables.schema import NEURONS
from written import read_csv as rows_read_csv
from written import schemas
from written import write_csv as rows_write_csv

ONE = Schema("one", "a row per thing", (
    Column("layer", layer_number), text("set", "A set."), text("clipped", "Neurons.", may_be_empty=True),
    estimate("accuracy", "Its accuracy."), whole("n_pairs", "Number of pairs."), number("spearman", "A correlation."),
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
    rows_write_csv(tmp_path / "t.csv", rows, ["layer", "definition", "value"])
    for _ in range(2):  # an existing file is replaced
        rows_read_csv(tmp_path / "t.csv").to_parquet(str(tmp_path / "t.parquet"))
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


SCHEMA = Schema("made", "a row per thing", (
    whole("layer", "Its layer."), text("token", "Its text.", "what it is"), estimate("accuracy", "Its accuracy."),
    number("change", "Its change.", "change (%)", "+.2f", interval="change"),
))  # fmt: skip
LATEX_ROWS = Table([
    {"layer": 0, "token": "[CLS]", "accuracy": 0.5, "accuracy_low": 0.25, "accuracy_high": 0.75,
     "change": -0.125, "change_low": -0.25, "change_high": 0.0},
    {"layer": 1, "token": r"a&b_c 50% #1 $x^2 ~ \{y}", "accuracy": 1.0, "accuracy_low": math.nan,
     "accuracy_high": math.nan, "change": 0.5, "change_low": 0.25, "change_high": 1e-05},
], SCHEMA)  # fmt: skip


def test_a_table_has_headings_numbers_and_intervals_of_the_terminal() -> None:
    assert LATEX_ROWS.to_latex() == "\n".join([
        r"\begin{tabular}{rlrrrr}",
        r"\toprule",
        r"layer & what it is & accuracy & 95\% range & change (\%) & 95\% range \\",
        r"\midrule",
        r"0 & {[}CLS{]} & 0.500 & 0.250--0.750 & $-$0.12 & $-$0.25 to +0.00 \\",
        r"1 & a\&b\_c 50\% \#1 \$x\textasciicircum{}2 \textasciitilde{} \textbackslash{}\{y\} & 1.000 &  & +0.50 & "
        r"+1$\times10^{-5}$ to +0.25 \\",
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ])  # fmt: skip


def test_an_interval_of_something_else_than_its_column_says_of_what() -> None:
    schema = Schema("made", "", (number("shuffled", "", interval="above_shuffled"),))
    row = {"shuffled": 0.1, "above_shuffled_low": 0.5, "above_shuffled_high": 0.75}
    assert r"shuffled & 95\% range above shuffled \\" in Table([row], schema).to_latex()


def test_columns_are_chosen_with_or_without_their_interval() -> None:
    lines = LATEX_ROWS.to_latex(["accuracy*", "layer"]).splitlines()
    assert lines[0] == r"\begin{tabular}{rrr}"
    assert lines[4] == r"0.500 & 0.250--0.750 & 0 \\"
    assert Table([{"a_b": 1, "c": "x"}]).to_latex().splitlines()[2:5] == [r"a b & c \\", r"\midrule", r"1 & x \\"]


@pytest.mark.parametrize(
    ("table", "columns", "words"),
    [
        (LATEX_ROWS, ["acuracy"], "no column `acuracy`; it has layer, token, accuracy, change"),
        (LATEX_ROWS, ["layer*"], "`layer` has no interval"),
        (Table((), SCHEMA), [], "has no rows"),
    ],
)
def test_what_is_not_there_is_refused(table: Table, columns: list[str], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        table.to_latex(columns)


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("-1.5", "$-$1.5"),
        ("2-12", "2--12"),
        ("-0.10--0.02", "$-$0.10--$-$0.02"),
        ("-1 to -.5", "$-$1 to $-$.5"),
        ("0.03%-3.0%", r"0.03\%--3.0\%"),
        ("4e-12", r"4$\times10^{-12}$"),
        ("2e-05--1e-05", r"2$\times10^{-5}$--$-$1$\times10^{-5}$"),
        ("-3e+10", r"$-$3$\times10^{10}$"),
    ],
)
def test_hyphens_of_numbers_are_dashes_and_minus_signs(cell: str, written: str) -> None:
    table = plain_table(None)
    table.add_column("x", justify="right")
    table.add_row(cell)
    assert booktabs(table).splitlines()[4] == rf"{written} \\"


def test_no_character_of_any_text_is_left_that_latex_reads_otherwise() -> None:
    """What is written out is taken away; of what is left, nothing is special."""
    every = "".join(map(chr, range(32, 127)))
    written = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]|\{[]*[]\}", "", escaped(every))
    assert not set(written) & set("&%$#_{}~^\\[]*<>|")
    assert escaped("two\nlines") == "two lines"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_it_compiles(tmp_path: Path) -> None:
    every = Table([{"x": "".join(map(chr, range(32, 127))) + "²°×≤≥–…"}, {"x": "[next] *row"}])
    body = "\n\n".join([LATEX_ROWS.to_latex(), every.to_latex()])
    page = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"], cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.004, "0.00"), (0.004, "0.00"), (-0.006, "-0.01"), (1.0, "1.00"), (float("nan"), "nan")]
)
def test_zero_has_no_sign(value: float, shown: str) -> None:
    assert two_decimals(value) == shown


@pytest.mark.parametrize(
    ("layers", "shown"),
    [([3], "layer 3"), ([0, 1], "layers 0 and 1"), ([0, 1, 2], "layers 0 to 2"), ([0, 2, 3], "layers 0, 2 and 3")],
)
def test_layers_in_a_row_are_named_by_their_ends(layers: list[int], shown: str) -> None:
    assert layers_named(layers) == shown


def test_the_last_of_a_list_stands_after_and() -> None:
    assert [listed([7]), listed("ab"), listed("abc")] == ["7", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    ("sentence", "inner"),
    [
        ("`--probe.bias true` trains; a < b", '<code class="whole">--probe.bias true</code> trains; a &lt; b'),
        ("--test_corpus tests.", '<code class="whole">--test_corpus</code> tests.'),
        ("from 1--5, a--b, -- and one `", "from 1--5, a--b, -- and one `"),
        (f"`{'x ' * 20}<b>`", f"<code>{'x ' * 20}&lt;b&gt;</code>"),
        (Html("<b>`made`</b>"), "<b>`made`</b>"),
    ],
)
def test_code_in_a_paragraph_is_marked(sentence: str, inner: str) -> None:
    assert element("p", sentence) == f"<p>{inner}</p>"


def test_a_cell_of_data_is_text() -> None:
    assert element("td", "`a` --b") == "<td>`a` --b</td>"


# --- selections of rows, and what is said and shown of them ---

ACCURACIES = Schema("accuracy", "a row per condition and layer", (
    text("condition", "The condition.", labels={"model": "the model"}), whole("layer", "Layer."),
    estimate("accuracy", "Share of correct answers."), estimate("difference", "Model minus control."),
))  # fmt: skip


def accuracies() -> Table:
    """Return rows in which the model is above the control in layers 1 and 2, and below it in layer 0."""
    rows = [
        {"condition": condition, "layer": layer, "accuracy": accuracy, "accuracy_low": accuracy - 0.1,
         "accuracy_high": accuracy + 0.1}
        for condition, values in {"model": (0.2, 0.8, 0.7), "control": (0.5, 0.5, 0.5)}.items()
        for layer, accuracy in enumerate(values)
    ]  # fmt: skip
    for row, (low, high) in zip(rows[3:], [(-0.5, -0.1), (0.1, 0.5), (0.1, 0.3)], strict=True):
        row |= {"difference": (low + high) / 2, "difference_low": low, "difference_high": high}
    return Table(rows, ACCURACIES)


def test_rows_are_selected_by_values_and_by_a_function() -> None:
    table = accuracies()
    model = table.where(condition="model")
    assert model.column("accuracy") == [0.2, 0.8, 0.7]
    assert model.layers(lambda row: row["accuracy"] > 0.5) == [1, 2]
    assert table.where(lambda row: row["accuracy"] == 0.5, layer=(0, 2)).values("layer") == [0, 2]
    assert {name: len(rows) for name, rows in table.by("condition").items()} == {"model": 3, "control": 3}
    by_both = table.by("condition", "layer")
    assert list(by_both) == [(condition, layer) for condition in ("model", "control") for layer in (0, 1, 2)]
    assert by_both["control", 1] == [table[4]]
    assert model.first_and_last() == [table[0], table[2]]
    assert model[:1].first_and_last() == [table[0]]
    assert table.values("condition") == ["model", "control"]
    assert model.schema is ACCURACIES


@pytest.mark.parametrize("access", [lambda table: table["accuracies"], lambda table: table.column("accuracies")])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(access: Callable[[Table], Any]) -> None:
    with pytest.raises(UserError, match=r"no column `layr`: expected one of condition, layer"):
        accuracies().where(layr=2)
    with pytest.raises(UserError, match=r"no column `accuracies`: expected one of condition, layer, .*to_pandas"):
        access(accuracies())


def test_a_column_asked_for_as_of_a_frame_is_explained() -> None:
    with pytest.raises(UserError, match=r"`column\('accuracy'\)` gives the column"):
        accuracies()["accuracy"]
    with pytest.raises(AttributeError, match=r"`column\('accuracy'\)` gives the column"):
        _ = accuracies().accuracy


def test_a_sign_of_an_interval_and_the_layers_that_have_it() -> None:
    control = accuracies().where(condition="control")
    assert [sign_of_interval(row, "difference") for row in control] == [-1, 1, 1]
    assert sign_of_interval({"difference_low": -0.1, "difference_high": 0.1}, "difference") == 0
    assert sign_of_interval({}, "difference") == 0
    assert layers_by(control, "difference") == "above it in layers 1 and 2 and below it in layer 0"


def test_a_number_has_its_interval_in_brackets_where_there_is_one() -> None:
    row = accuracies()[0]
    assert estimated(row, "accuracy") == "0.200 (0.100 to 0.300)"
    assert estimated(row, "accuracy", ".1%") == "20.0% (10.0 to 30.0)"
    assert estimated({"accuracy": 0.2}, "accuracy", ".1%") == "20.0%"


def test_a_view_shows_some_rows_and_columns_and_other_values_beside_them() -> None:
    pivot = "condition", "accuracy", {"control": "of the control"}
    view = View(ACCURACIES, ("layer", "accuracy*", "difference"), "by layer", "", {"condition": "model"}, pivot)
    (shown,) = view.tables(accuracies())
    assert shown.title == "By layer"
    # The column of differences has no value in these rows.
    assert [str(column.header) for column in shown.columns] == ["layer", "accuracy", "95% range", "of the control"]
    by_condition = View(ACCURACIES, ("layer", "accuracy"), "{condition} by layer", "condition")
    assert [table.title for table in by_condition.tables(accuracies())] == ["The model by layer", "Control by layer"]
    assert View(ACCURACIES).tables(Table((), ACCURACIES)) == []
    assert set(view.terms()) >= {"layer", "accuracy", "of the control"}
