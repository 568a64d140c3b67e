"""No number of a table is cut, however narrow the window."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from probing.runtime.terminal import plain_table, render, show


def shown(table: Any, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table, crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def made(leave_out: tuple[str, ...] = ()) -> Any:
    table = plain_table("Numbers of layers", leave_out)
    for heading in ("layer", "neuron", "95% range", "without it at all", "ratio", "flag"):
        table.add_column(heading, justify="right")
    table.add_row("6", "223", "0.3694 to 0.4041", "+0.026912", "5.64", "offset")
    table.add_row("12", "1023", "0.1000 to 0.2000", "+0.000001", "123.45", "")
    table.caption = "95% range: over sentences; ratio: in multiples of the mean\nwithout it at all: in nats"
    return table


def test_what_fits_is_shown_as_it_is() -> None:
    lines = shown(made(), 80)
    assert "left out" not in " ".join(lines)
    assert [line.split() for line in lines if "5.64" in line] == [
        ["6", "223", "0.3694", "to", "0.4041", "+0.026912", "5.64", "offset"]
    ]


def test_headings_are_broken_between_words_before_a_column_is_left_out() -> None:
    whole = max(len(line) for line in shown(made(), 80) if "layer" in line)
    text = " ".join(shown(made(), whole - 1))
    assert "left out" not in text
    assert "without it at all" not in text.partition("95% range: ")[0]
    assert all(number in text for number in ("0.3694 to 0.4041", "+0.026912", "123.45", "1023"))


@pytest.mark.parametrize("width", [25, 30, 40, 50])
def test_columns_without_room_are_left_out_and_named(width: int) -> None:
    text = " ".join(" ".join(shown(made(("ratio",)), width)).split())
    before, _, named = text.partition("left out for lack of room: ")
    left_out = named.split(", ")
    assert left_out[-1] == "ratio"  # the first to go; named in the order of the table
    assert {"layer", "neuron", "flag"}.isdisjoint(left_out)
    numbers = {"95% range": "0.3694 to 0.4041", "without it at all": "+0.026912", "ratio": "123.45", "flag": "offset"}
    for heading, number in numbers.items():
        assert (number in before) == (heading not in left_out)
    assert "in multiples of the mean" not in before
    assert ("over sentences" in before) == ("95% range" not in left_out)


def test_what_cannot_fit_at_all_goes_over_the_width_with_all_its_columns() -> None:
    table = plain_table("Four")
    for heading in ("name", "number", "ratio", "flag"):
        table.add_column(heading)
    table.add_row("a", "1.23456789012345", "5.64", "offset")
    text = " ".join(shown(table, 10))
    assert "left out" not in text
    assert {"1.23456789012345", "5.64", "offset"} <= set(text.split())


def test_text_is_broken_between_words_alone() -> None:
    table = plain_table("Sentences")
    for heading in ("n", "said", "of", "flag"):
        table.add_column(heading)
    long = "/models/" + "electroencephalographically" * 2
    table.add_row("1.234", "position is told by neurons of many layers that are counted", f"{long} of bert", "offset")
    for width in (25, 60, 80, 85, 90, 100):
        words = " ".join(shown(table, width)).split()
        assert "left" in words or {"1.234", "position", "counted", long, "offset"} <= set(words), width
        assert "…" not in " ".join(words)


def test_where_the_output_is_no_terminal_no_column_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("Wide")
    for k in range(30):
        table.add_column(f"column {k}", justify="right")
    table.add_row(*(str(10.0**k) for k in range(10, 40)))
    show(table)
    for text in (capsys.readouterr().out, render(table)):
        assert "left out" not in text
        assert [float(cell) for cell in text.splitlines()[-2].split()] == [10.0**k for k in range(10, 40)]


@pytest.mark.parametrize("width", range(20, 90, 3))
def test_a_column_whose_heading_recurs_is_never_without_the_column_that_it_is_of(width: int) -> None:
    table = plain_table("Intervals")
    for heading in ("layer", "kind", "accuracy", "95% range", "recall", "95% range", "precision", "95% range", "flag"):
        table.add_column(heading, justify="right")
    table.add_row("6", "all", "0.111", "0.112-0.113", "0.221", "0.222-0.223", "0.331", "0.332-0.333", "")
    text = "\n".join(shown(table, width))
    for number, its_range in (("0.111", "0.112"), ("0.221", "0.222"), ("0.331", "0.332")):
        assert number in text or its_range not in text
    if "0.221" in text and "0.222" not in text:
        assert "95% range of recall" in " ".join(text.split())
