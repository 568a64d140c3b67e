"""Tables as Python has them, and as CSV files in full precision; the schema of a table has the type of every column."""

from __future__ import annotations

import ast
import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TextIO

from probing.errors import UserError, as_clause
from probing.results.schema import (
    Column,
    Row,
    Schema,
    Type,
    Value,
    is_end,
    shown_table,
    with_layer_name,
    with_named_layer,
)
from probing.runtime.files import most_text, open_file, replacing

# --------------------------------------------------------------------------------------------------------------------
# HTML and SVG from Python, escaped by construction: a child that is not yet HTML is text.
# --------------------------------------------------------------------------------------------------------------------

Child = str | int | None

# The first line of a page, by which a report is recognised.
MARK = '<!doctype html><html lang="en" data-made-by="probing report">'


class Html(str):
    """A string that is already HTML, so it is not escaped again."""

    __slots__ = ()


# What is code in a sentence: what stands between backticks, and options.
_CODE = re.compile(r"`([^`\n]+)`|((?<![\w-])--[a-z][\w.]*)")
# Most characters of code that is not broken over lines.
_SHORT = 32


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element with its attributes and children; in text of a paragraph, what is code is marked as code.

    Args:
        name: Name of the element.
        children: Text, which is escaped, or HTML; None is omitted.
        attributes: Attributes: `class_` is `class` and `data_x` is `data-x`; True gives a bare attribute, None and
            False are omitted.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("br", "input", "meta"):
        return Html(f"<{name}{written}>")
    inner = joined(*map(_with_code, children)) if name in ("p", "li", "dd") else joined(*children)
    return Html(f"<{name}{written}>{inner}</{name}>")


def _with_code(child: Child) -> Child:
    if isinstance(child, Html) or not isinstance(child, str):
        return child
    parts: list[Child] = []
    end = 0
    for found in _CODE.finditer(child):
        code = found[1] or found[2]
        parts += [child[end : found.start()], element("code", code, class_="whole" if len(code) <= _SHORT else None)]
        end = found.end()
    return joined(*parts, child[end:])


def joined(*children: Child) -> Html:
    """Return the children joined."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(f"{value:g}" if isinstance(value, float) else str(value))}"'


def table(head: Sequence[str], rows: Sequence[Sequence[Child]], caption: Child = None) -> Html:
    """Return a table whose first column names the rows."""
    body = [
        element(
            "tr",
            element("th", first, scope="row", class_=_phrase(first)),
            *(element("td", cell, class_=_phrase(cell)) for cell in rest),
        )
        for first, *rest in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("caption", caption) if caption else None,
            element("thead", element("tr", *(element("th", name, scope="col") for name in head))),
            element("tbody", *body),
        ),
        class_="scroll",
    )


def _phrase(cell: Child) -> str | None:
    """Return the class of a cell of several words, which may take several lines on paper; no number is broken."""
    return "phrase" if " " in str(cell) else None


def as_in_terminal(shown: Any) -> Html:
    """Return a rich table as a table of the page, so that both show the same; the caller shows its title."""
    columns = [list(column.cells) for column in shown.columns]
    head = [str(column.header) for column in shown.columns]
    return table(head, list(zip(*columns, strict=True)))


def pairs(entries: Sequence[tuple[str, Child]]) -> Html:
    """Return a list of names and their meanings."""
    parts = [part for name, value in entries for part in (element("dt", name), element("dd", value))]
    return element("dl", *parts)


# Rows that a prompt or a notebook shows of a table.
SHOWN = 10

# In a notebook no number is broken, and an interval has room for one line.
_STYLE = element(
    "style", Html(".probing td:not(.phrase) { white-space: nowrap } .probing td.phrase { min-width: 11em }")
)


class Table(list[dict[str, Any]]):
    """Rows of a table, in order; each is a dict by column. A prompt or a notebook shows the first `SHOWN`.

    Args:
        rows: The rows.
        schema: Its columns with their types; without it, a column is what its cells are.
    """

    def __init__(self, rows: Iterable[Row] = (), schema: Schema | None = None) -> None:
        super().__init__(row if isinstance(row, dict) else dict(row) for row in rows)
        self.schema = schema

    def __repr__(self) -> str:
        if self.schema is None or not self:
            return super().__repr__()
        from probing.runtime.terminal import render

        table = self._shown()
        table.caption, table.caption_justify = self._which(), "left"
        return render(table)

    def _repr_html_(self) -> str:
        if self.schema is None or not self:
            return element("p", repr(self))
        table = self._shown()
        shown = as_in_terminal(table)
        return element("div", _STYLE, element("p", table.title), shown, element("p", self._which()), class_="probing")

    def _shown(self) -> Any:
        assert self.schema
        return shown_table(self.schema, self[:SHOWN])

    def _which(self) -> str | None:
        return f"the first {SHOWN} of {len(self):,} rows" if len(self) > SHOWN else None

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame, each column by its type; missing numbers are NaN.

        Raises:
            UserError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("`to_pandas` needs pandas, which is not installed; `pip install pandas`.") from None

        def series(column: str) -> Any:
            cells, kind = self._cells(column)
            if kind is str:
                return pandas.Series(cells)
            return pandas.Series(cells, dtype=float if kind is float or None in cells else int)

        return pandas.DataFrame({column: series(column) for column in self._columns()})

    def to_latex(self, columns: Sequence[str] = ()) -> str:
        r"""Return the table as a LaTeX `tabular`, with the headings, numbers and intervals that a prompt shows.

        It needs `\usepackage{booktabs}`; the caption is yours.

        Args:
            columns: The columns, by their names in files; an asterisk behind a name, such as `accuracy*`, shows its
                interval as well. By default all that some row has.

        Raises:
            UserError: If the table does not have a column, or the column no interval, or there are no rows.
        """
        if not self:
            raise UserError("`to_latex`: the table has no rows; expected at least one.")
        there = self._columns()
        schema = self.schema or Schema("table", "", [Column(name, self._cells(name)[1]) for name in there])
        known = [name for name in there if name in schema]
        for name in columns:
            bare = name.removesuffix("*")
            if bare not in known:
                raise UserError(f"`to_latex`: the table has no column `{bare}`; it has {', '.join(known)}.")
            if bare != name and schema[bare].interval is None:
                raise UserError(f"`to_latex`: the column `{bare}` has no interval; give it without the asterisk.")
        return booktabs(shown_table(schema, self, names=columns))

    def to_parquet(self, path: str | Path) -> None:
        """Write the table as a Parquet file, each column by its type; an existing file is replaced.

        A cell is null where its row does not have the column, where a number is missing, and at the ends of an interval
        where there is none. Columns of whole numbers and of words, such as classes, are text.

        Args:
            path: The file.

        Raises:
            UserError: If pyarrow is not installed, or the file cannot be written.
        """
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise UserError(
                "`to_parquet` needs pyarrow, which is not installed; `pip install pyarrow`, or read the CSV file."
            ) from None
        table = pyarrow.table({column: self._array(column, pyarrow) for column in self._columns()})
        try:
            with replacing(Path(path)) as partial, partial.open("wb") as file:
                parquet.write_table(table, file)
        except OSError as error:
            raise UserError(f"`{path}` cannot be written ({as_clause(error)}); name a writable file.") from None

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self for column in row))

    def _array(self, column: str, pyarrow: Any) -> Any:
        """Return a column as an Arrow array."""
        cells, kind = self._cells(column)
        if kind is str:
            return pyarrow.array([None if cell is None else str(cell) for cell in cells], pyarrow.string())
        return pyarrow.array(cells, pyarrow.float64() if kind is float else pyarrow.int64())

    def _cells(self, column: str) -> tuple[list[Any], type]:
        """Return the cells of a column, None where one is missing, and their type: text if any of them is text."""
        cells = [row.get(column) for row in self]
        if (self.schema.type_of(column) if self.schema else None) is str:
            return cells, str
        known = [None if _is_missing(column, cell) else cell for cell in cells]
        if any(isinstance(cell, str) for cell in known):
            return known if self.schema else cells, str
        is_whole = all(isinstance(cell, int) for cell in known if cell is not None)
        declared = self.schema.type_of(column) if self.schema else None
        return known, int if is_whole and declared is not float and any(cell is not None for cell in known) else float


def _is_missing(column: str, cell: Any) -> bool:
    """Whether a cell of numbers holds none: it is empty, or the end of an interval that there is not."""
    return cell is None or cell == "" or (is_end(column) and isinstance(cell, float) and math.isnan(cell))


_LARGEST = 2**63 - 1


def write_csv(path: Path, rows: Sequence[Row], schema: Schema) -> None:
    """Write rows in full precision, leaving out columns that no row has; without rows, the columns alone.

    Where there is no interval, the cells of its ends are empty.

    Raises:
        RuntimeError: If a row has a column that the schema does not declare.
    """
    rows = [with_layer_name(row) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        # With this end of a line, the writer also puts cells with a carriage return in quotes.
        writer = csv.DictWriter(_Lines(file), schema.order(rows), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)


class _Lines:
    """Writes each row, which ends in CR LF, with LF as its end."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def write_tables(
    folder: Path, config: Mapping[str, Any], tables: Mapping[str, Sequence[Row]], schemas: Sequence[Schema]
) -> list[Path]:
    """Write the configuration and the tables of a run, and return their paths.

    Args:
        folder: The run's folder.
        config: The resolved configuration as plain values.
        tables: Rows by the name of their table.
        schemas: The tables that the command may write.

    Raises:
        RuntimeError: If a table, or a column of one, is not declared.
    """
    import yaml

    declared = {schema.name: schema for schema in schemas}
    if undeclared := [name for name in tables if name not in declared]:
        raise RuntimeError(f"the table {undeclared[0]} is not declared")
    paths = [folder / "config.yaml", *(folder / f"{name}.csv" for name in tables)]
    paths[0].write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    for path, (name, rows) in zip(paths[1:], tables.items(), strict=True):
        write_csv(path, rows, declared[name])
    return paths


def read_csv(path: Path, schema: Schema) -> Table:
    """Read rows, each cell by the type of its column.

    Where there is no interval, its ends are NaN; another empty cell is an empty text.

    Raises:
        ValueError: If a cell is not of its column's type.
    """
    names, rows = _cells(path)
    types = [schema.type_of(name) for name in names]
    cells = [
        {name: _value(path, name, text, kind) for name, text, kind in zip(names, row, types, strict=True)}
        for row in rows
    ]
    return Table(map(with_named_layer, cells), schema)


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the cells of the rows of a table that is whole.

    Raises:
        ValueError: If it has no columns or two of a name, or a row is cut or too long.
    """
    with open_file(path, "r", within=path.parent, most=most_text(), newline="", encoding="utf-8") as file:
        text = file.read()
    if not text:
        raise ValueError(f"{path.name} is empty")
    try:
        names, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path.name} is no table ({error})") from None
    if len({*names}) < len(names) or "" in names:
        raise ValueError(f"{path.name} has a column twice, or one without a name")
    for n, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise ValueError(f"{path.name} has {len(row)} cells in row {n}, and {len(names)} columns")
    if not text.endswith("\n"):
        raise ValueError(f"{path.name} is cut at its end")
    return names, rows


def read_measured(path: Path, schema: Schema) -> Table:
    """Read rows in the form that they had in the command that wrote them: cells without a value are absent.

    The ends of an interval that is not there are NaN.

    Raises:
        ValueError: If a cell is not of its column's type.
    """
    found, kept = read_csv(path, schema), schema.may_be_empty
    rows = ({name: value for name, value in row.items() if value != "" or name in kept} for row in found)
    return Table(rows, schema)


def read_trials(path: Path, schema: Schema) -> Table:
    """Return the rows of `sweep.csv`, in which columns that are not declared are options of the trials."""
    rows = (
        {
            name: _option(value) if name not in schema.types and isinstance(value, str) else value
            for name, value in row.items()
        }
        for row in read_csv(path, schema)
    )
    return Table(rows, schema)


def _option(text: str) -> Any:
    """Return the value of an option that is written as text: a number, true or false, or none; otherwise the text."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text or None
    return value if isinstance(value, bool | int | float) else text


def _cell(column: str, value: Any) -> Any:
    return "" if is_end(column) and isinstance(value, float) and math.isnan(value) else value


def _value(path: Path, column: str, text: str, kind: Type) -> Value:
    if text == "":
        return math.nan if is_end(column) else ""
    try:
        value = kind(text)
    except ValueError:
        value = None
    # Python reads an underscore in a number, and whole numbers that no other library can hold.
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) <= _LARGEST)
    if value is None or not (isinstance(value, str) or (is_number and "_" not in text)):
        raise ValueError(f"{path.name} has `{text:.40}` in the column {column}, where a number belongs")
    return value


# --------------------------------------------------------------------------------------------------------------------
# Tables as LaTeX for papers: the headings and cells of the terminal, in the form of the package booktabs.
# --------------------------------------------------------------------------------------------------------------------

# What a character is written as. Brackets and stars would be arguments of the end of a row where they begin the next.
_WRITTEN = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}",
    "²": "$^2$", "°": r"$^\circ$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$", "–": "--", "…": r"\ldots{}",
}  # fmt: skip


def escaped(text: str) -> str:
    """Return a text as it is written in LaTeX, in one line."""
    return "".join(_WRITTEN.get(character, character) for character in " ".join(text.split()))


def _number(cell: str) -> str:
    """Return a cell of numbers with dashes between two, minus signs before one, and powers of ten for an `e`."""
    dashed = escaped(re.sub(r"(?<=[\d%])-(?=-?\.?\d)", "–", cell)).replace("--", "–")
    powers = re.sub(r"(?<=\d)e([-+])0*(\d+)", lambda e: rf"$\times10^{{{'−' * (e[1] == '-')}{e[2]}}}$", dashed)
    return re.sub(r"-(?=\.?\d)", "$-$", powers).replace("−", "-").replace("–", "--")


def booktabs(table: Any) -> str:
    """Return a rich table as a `tabular` that needs the package booktabs; it ends in a line break.

    Args:
        table: The table, whose title and caption are left out.
    """
    columns = [([*column.cells], column.justify == "right", str(column.header)) for column in table.columns]
    cells = [[(_number if is_number else escaped)(str(cell)) for cell in of] for of, is_number, _ in columns]
    head = [escaped(heading) for _, _, heading in columns]
    lines = [" & ".join(row) + r" \\" for row in zip(*cells, strict=True)]
    return "\n".join([
        rf"\begin{{tabular}}{{{''.join('r' if is_number else 'l' for _, is_number, _ in columns)}}}",
        r"\toprule", " & ".join(head) + r" \\", r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip
