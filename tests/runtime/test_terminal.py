"""What a command leaves as it was, what a terminal can show, and that no number of a table is cut."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning  # noqa: F401  importing it sets the level of its log
from huggingface_hub import utils as hub
from rich.console import Console
from transformers.utils import logging as transformers_logging

from probing import fit
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.commands import ls
from probing.errors import UserError
from probing.results import cells_table
from probing.runtime import quiet_libraries
from probing.runtime.terminal import (
    brief,
    complain,
    escaped_output,
    plain_table,
    render,
    say,
    show,
    tell,
    visible,
    visible_output,
)
from probing.studies.fit import extract


def switches() -> dict[str, Any]:
    return {
        "verbosity": transformers_logging.get_verbosity(),
        "bars of transformers": transformers_logging.is_progress_bar_enabled(),
        "bars of the hub": not hub.are_progress_bars_disabled(),
        "level of Lightning": logging.getLogger("pytorch_lightning").level,
    }


def turn(bars_of_transformers: bool, bars_of_hub: bool) -> None:
    (transformers_logging.enable_progress_bar if bars_of_transformers else transformers_logging.disable_progress_bar)()
    (hub.enable_progress_bars if bars_of_hub else hub.disable_progress_bars)()


@pytest.fixture(params=[(True, True), (True, False), (False, True), (False, False)], ids=str)
def chosen(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Switches that the user has set, in each way."""
    before = switches()
    transformers_logging.set_verbosity_info()
    turn(*request.param)
    yield switches()
    transformers_logging.set_verbosity(before["verbosity"])
    turn(before["bars of transformers"], before["bars of the hub"])


def test_libraries_are_silent_inside_and_as_they_were_after(chosen: dict[str, Any]) -> None:
    with quiet_libraries():
        assert switches() == {
            "verbosity": logging.ERROR,
            "bars of transformers": False,
            "bars of the hub": False,
            "level of Lightning": logging.ERROR,
        }
        with quiet_libraries():  # as when one command calls another
            pass
        assert switches()["verbosity"] == logging.ERROR
    assert switches() == chosen


def test_a_command_called_from_python_leaves_them(
    chosen: dict[str, Any], checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    extract(str(checkpoints["bert"]), 0, corpus=str(corpus_file), cache=str(tmp_path), quiet=True)
    assert switches() == chosen


def test_so_does_one_that_is_refused(
    chosen: dict[str, Any], checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="layer=99"):
        fit(str(checkpoints["bert"]), 99, corpus=str(corpus_file), runs=str(tmp_path))
    assert switches() == chosen


FREEZING = """
import gc
at_start = gc.get_freeze_count()
from importlib import import_module
from probing.runtime import set_heap_aside
from probing.runtime import _without_garbage_collection

def n_frozen_after(*modules):
    with _without_garbage_collection():
        for name in modules:
            import_module(name)
    return gc.get_freeze_count()

from_python = n_frozen_after("colorsys")
set_heap_aside()  # as a command's own process says
first = n_frozen_after("colorsys")
imported = n_frozen_after("ast", "wave")
again = n_frozen_after("ast", "wave")
print(from_python == at_start, first < imported, again <= imported, gc.isenabled())  # some may be freed
"""


def test_what_is_imported_is_frozen_once_and_only_in_a_process_of_ones_own() -> None:
    done = subprocess.run([sys.executable, "-c", FREEZING], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["True"] * 4


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", rb"caf\xe9 \u5b57 bad"), ("latin-1", b"caf\xe9 \\u5b57 bad"), ("utf-8", "café 字 bad".encode())],
)
def test_what_a_terminal_lacks_is_escaped_and_bytes_of_a_path_stay(
    encoding: str, shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    table = plain_table("字")
    table.add_column("é")
    with escaped_output():
        print("café 字 bad\udcff")
        say("café 字 bad\udcff")
        print("half \ud83d")
        show(table)
    assert out.errors == err.errors == "strict"
    first, second, *others = out.buffer.getvalue().splitlines()
    assert first == shown + b"\xff"
    assert second == b"half \\ud83d"
    assert others
    err.flush()
    assert err.buffer.getvalue().splitlines() == [first]


@pytest.mark.parametrize("called", ["command line", "Python"])
def test_every_command_prints_so(called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("probing.commands.cache_folder", lambda cache: Path("é"))
    assert run(COMMANDS, ["cache", "ls"]) == 0 if called == "command line" else ls() == []
    out.flush()
    assert out.buffer.getvalue() == b"nothing is cached in \\xe9\n"


# --- text from outside ---

EVIL = "[bold]a[/bold] :smile: \x1b[31m\x07\x9b\u202e\u2066b"
SHOWN = r"[bold]a[/bold] :smile: \x1b[31m\x07\x9b\u202e\u2066b"


def test_what_steers_a_terminal_is_shown_and_words_of_any_script_stay() -> None:
    assert visible(EVIL) == SHOWN
    for words in ("Grüße, ½ – «x»", "العربية עברית", "👩\u200d👧 கி", "a\tb\n"):
        assert visible(words) == words


def test_every_way_to_a_terminal_makes_text_visible(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table(EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    assert render(table).count(SHOWN) == 3
    with visible_output():
        print(EVIL)
        show(table)
    say(EVIL)
    said = capsys.readouterr()
    assert said.out.count(SHOWN) == 4
    assert said.err == f"{SHOWN}\n"
    print(EVIL)
    assert capsys.readouterr().out == f"{EVIL}\n"


def test_a_table_as_text_displays_nothing_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    displayed: list[Any] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(display, "display", displayed.append)
    table = plain_table("A title")
    table.add_column("layer")
    table.add_row("6")
    assert "A title" in render(table)
    assert displayed == []


@pytest.mark.parametrize(("speak", "stream"), [(tell, "out"), (say, "err"), (complain, "err")])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_sentences_are_wrapped_between_words(
    is_terminal: bool,
    speak: Callable[[str], None],
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sentence = (
        "Well-known neurons of " + "electroencephalographically" * 2 + " measured layers carry position beyond chance."
    )
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(getattr(sys, f"std{stream}"), "isatty", lambda: is_terminal)
    speak(sentence)
    speak("Second.")
    *lines, second = getattr(capsys.readouterr(), stream).splitlines()
    assert second == "Second."
    assert " ".join(lines) == sentence
    assert len(lines) > 1
    assert all(len(line) <= 50 or " " not in line for line in lines)


def test_sentences_in_pipes_and_logs_have_lines_of_at_most_100_characters() -> None:
    code = "from probing.runtime.terminal import say, tell; tell('word ' * 100, 'Second.'); say('word ' * 100)"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    *lines, second = done.stdout.splitlines()
    assert second == "Second."
    for of_stream in (lines, done.stderr.splitlines()):
        assert " ".join(of_stream) == ("word " * 100).rstrip()
        assert [len(line) for line in of_stream] == [99] * 5


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


def test_a_heading_is_no_wider_than_its_numbers_and_has_few_lines() -> None:
    table = plain_table(None)
    table.add_column("share of the total of a layer that it has")
    table.add_row("0.12345678")
    headings = [line.split() for line in shown(table, 20) if any(word in line for word in ("share", "total", "has"))]
    assert 1 < len([line for line in shown(table, 20) if line.strip() and "─" not in line]) - 1 <= 4
    assert headings[0][:2] == ["share", "of"]


@pytest.mark.parametrize("n_tables", [0, 1, 2, 5])
def test_a_brief_answer_has_six_sentences_and_two_tables_in_35_lines_of_a_terminal(
    n_tables: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tables = [cells_table(f"table {i}", ["a", "b"], [[str(k), "x"] for k in range(40)]) for i in range(n_tables)]
    sentences = [f"Sentence {i}." for i in range(9)]
    assert brief(sentences, tables, 2)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 33
    assert printed.count("Sentence ") == 6
    assert printed.count("table ") == min(n_tables, 2)
    assert printed.count("of 40 rows") == min(n_tables, 2)
    assert not brief(sentences[:2], [cells_table("t", ["a"], [["1"]])], 2)


def test_a_brief_answer_in_a_file_has_every_sentence_and_whole_tables(capsys: pytest.CaptureFixture[str]) -> None:
    tables = [cells_table(f"table {n}", ["a", "b"], [[str(k), "x"] for k in range(n)]) for n in (50, 100, 5)]
    sentences = [f"Sentence {i}." for i in range(60)]
    assert brief(sentences, tables, 2)
    printed = capsys.readouterr().out
    assert all(f"{sentence}\n" in printed for sentence in sentences)
    assert [line for line in printed.splitlines() if "table " in line or "rows" in line] == [
        "table 50", "table 100", "the first 74 of 100 rows",
    ]  # fmt: skip
    assert not brief(sentences, tables[:1], 2)


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


def test_tables_in_a_file_are_as_wide_as_sentences_where_columns_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    show(made())
    tell("A word. " * 30)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    assert "left out for lack of room: " in " ".join(lines)


def test_where_the_output_is_no_terminal_no_column_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS")
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
