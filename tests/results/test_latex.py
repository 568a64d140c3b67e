"""Tables as LaTeX: what the terminal shows, with every character that LaTeX reads otherwise written out."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from probing.errors import UserError
from probing.results.rows import Table, booktabs, escaped
from probing.results.schema import Schema, measured, number, text, whole
from probing.runtime.terminal import plain_table

SCHEMA = Schema("made", "a row per thing", (
    whole("layer", "Its layer."), text("token", "Its text.", "what it is"), measured("accuracy", "Its accuracy."),
    number("change", "Its change.", "change (%)", "+.2f", interval="change"),
))  # fmt: skip
ROWS = Table([
    {"layer": 0, "token": "[CLS]", "accuracy": 0.5, "accuracy_low": 0.25, "accuracy_high": 0.75,
     "change": -0.125, "change_low": -0.25, "change_high": 0.0},
    {"layer": 1, "token": r"a&b_c 50% #1 $x^2 ~ \{y}", "accuracy": 1.0, "accuracy_low": math.nan,
     "accuracy_high": math.nan, "change": 0.5, "change_low": 0.25, "change_high": 1e-05},
], SCHEMA)  # fmt: skip


def test_a_table_has_headings_numbers_and_intervals_of_the_terminal() -> None:
    assert ROWS.to_latex() == "\n".join([
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
    lines = ROWS.to_latex(["accuracy*", "layer"]).splitlines()
    assert lines[0] == r"\begin{tabular}{rrr}"
    assert lines[4] == r"0.500 & 0.250--0.750 & 0 \\"
    assert Table([{"a_b": 1, "c": "x"}]).to_latex().splitlines()[2:5] == [r"a b & c \\", r"\midrule", r"1 & x \\"]


@pytest.mark.parametrize(
    ("table", "columns", "words"),
    [
        (ROWS, ["acuracy"], "no column `acuracy`; it has layer, token, accuracy, change"),
        (ROWS, ["layer*"], "`layer` has no interval"),
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
    body = "\n\n".join([ROWS.to_latex(), every.to_latex()])
    page = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"], cwd=tmp_path, check=True)
