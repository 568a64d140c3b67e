"""Figures come in two forms, the same bytes each time; their layers are whole numbers, named where there is room."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from pages import ROOT
from probing.cli.options import FIGURE_FORMAT, FORMATS, figure_formats
from probing.errors import UserError
from probing.tables.figures import (
    USUAL,
    Chart,
    Line,
    Panel,
    chart_drawings,
    drawing,
    name_layers,
    spaced_layers,
    write_drawings,
)
from rendering import rendered


@pytest.fixture(autouse=True)
def images() -> Iterator[None]:
    """What is written is the image itself."""
    with rendered():
        yield


def draw(path: Path, formats: Sequence[str] = USUAL) -> None:
    with drawing(path, formats) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 3, 6], [1.0, 0.5, 0.25], marker="o", label=r"$\sigma_1$ and é")
        axes.legend()
        name_layers(axes, [0, 3, 6])


def test_a_figure_is_an_image_and_a_vector_form_with_its_fonts(tmp_path: Path) -> None:
    draw(path := tmp_path / "drawn.png")
    assert {file.name for file in tmp_path.iterdir()} == {"drawn.png", "drawn.pdf"}
    assert path.read_bytes().startswith(b"\x89PNG")
    vector = path.with_suffix(".pdf").read_bytes()
    assert vector.startswith(b"%PDF")
    # Text is text, in outlines that are part of the file and that publishers take.
    assert b"/FontFile2" in vector
    assert b"/ToUnicode" in vector
    assert b"/Type3" not in vector


def test_the_same_drawing_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw(tmp_path / f"{name}.png", FORMATS)
    for suffix in (".png", ".pdf", ".svg"):
        first, second = (tmp_path.joinpath(name).with_suffix(suffix).read_bytes() for name in ("a", "b"))
        assert first == second
        assert b"Date" not in first
        assert b":date>" not in first


@pytest.mark.parametrize("formats", [["svg"], ["pdf"], ["png"], ["pdf", "svg"]])
def test_only_the_formats_that_are_asked_for_are_written(formats: list[str], tmp_path: Path) -> None:
    draw(tmp_path / "drawn", formats)
    assert {file.name for file in tmp_path.iterdir()} == {f"drawn.{form}" for form in formats}


def test_vector_forms_have_the_width_of_a_column_or_of_a_page(tmp_path: Path) -> None:
    draw(tmp_path / "one", FORMATS)
    with drawing(tmp_path / "two", FORMATS) as figure:
        figure.set_size_inches(9, 3)
        for axes in figure.subplots(1, 2):
            axes.set_title("a title that is much too long for a panel of this width, so that it takes two lines")
    for name, inches in (("one", 3.3), ("two", 6.8)):
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", (tmp_path / f"{name}.pdf").read_bytes())
        assert float(width) == pytest.approx(72 * inches, abs=0.1)
        svg = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        (width,) = re.findall(r'<svg [^>]*width="([\d.]+)pt"', svg)
        assert float(width) == pytest.approx(72 * inches, abs=0.1)
    # The text of an SVG can be found and edited.
    assert "layer (0 = embeddings)</text>" in (tmp_path / "one.svg").read_text(encoding="utf-8")


def test_the_legend_of_a_small_chart_stands_below_it_with_long_labels_in_two_lines(tmp_path: Path) -> None:
    lines = [Line("a label that is longer than a line of a legend", [0, 1], [1.0, 2.0]), Line("short", [0, 1], [2, 3])]
    write_drawings(tmp_path, chart_drawings([Chart("drawn", "a chart", [Panel(lines)], "y")], "model"), FORMATS)
    svg = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    assert all(f">{text}</text>" in svg for text in ("a label that is longer", "than a line of a legend", "short"))


def test_formats_are_named_as_other_options_are() -> None:
    assert tuple(figure_formats(FIGURE_FORMAT)) == USUAL
    assert figure_formats("svg,png") == ["png", "svg"]
    assert figure_formats(["pdf"]) == ["pdf"]
    assert figure_formats("all") == list(FORMATS)
    with pytest.raises(UserError, match="`--figure_format jpg` is not one of png, pdf, svg, all; give one or more"):
        figure_formats("jpg")


def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(tmp_path: Path) -> None:
    draw(path := tmp_path / "drawn.png")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ZeroDivisionError), drawing(path) as figure:
        figure.add_subplot().plot([1 / 0])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_no_label_is_a_formula_which_would_be_shown_as_it_is_typed() -> None:
    files = [file for room in ("probing", "benchmarks") for file in (ROOT / room).rglob("*.py")]
    drawing_ones = {file.name: text for file in files if "tables.figures" in (text := file.read_text(encoding="utf-8"))}
    assert len(drawing_ones) > 10
    assert [name for name, text in drawing_ones.items() if "$\\" in text] == []


def test_names_are_shown_as_they_are_and_not_as_formulas(tmp_path: Path) -> None:
    with drawing(tmp_path / "drawn.png", ["svg"]) as figure:
        axes = figure.add_subplot()
        axes.plot([1, 1000], [0, 1], label=r"$\unknown$")
        axes.set_xscale("log")
        axes.set_title("B-$A$ and $x_1$")
        axes.set_yticks([0, 1], labels=["$a$", "b"])
        axes.legend()
    text = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    for name in (r"$\unknown$", "B-$A$ and $x_1$", ">$a$<"):
        assert name in text
    assert ">$\\mathdefault" not in text


@pytest.mark.parametrize(
    ("layers", "most", "named"),
    [
        ([0, 3, 6], 14, [0, 3, 6]),
        ([6], 14, [6]),
        (range(13), 14, list(range(13))),
        (range(25), 14, list(range(0, 25, 2))),
        ([0, 47, 48], 14, [0, 47]),
        ([], 14, []),
    ],
)
def test_layers_are_named_where_there_is_room(layers: list[int], most: int, named: list[int]) -> None:
    assert spaced_layers(layers, most) == named


def test_the_ticks_are_the_layers_that_were_measured() -> None:
    axes = Figure().add_subplot()
    name_layers(axes, [6, 0, 3, 6])
    assert axes.get_xticks().tolist() == [0, 3, 6]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "3", "6"]
    deep = Figure().add_subplot()
    name_layers(deep, range(49), most=9)
    shown = [label.get_text() for label in deep.get_xticklabels()]
    assert len(shown) == 49  # a mark for each, a name for some
    assert [text for text in shown if text] == [str(layer) for layer in range(0, 49, 6)]


def test_a_chart_without_values_is_not_drawn_and_one_with_some_loses_its_empty_panels() -> None:
    empty, filled = Panel([Line("empty", [], [], [])]), Panel([Line("filled", [0, 3], [1.0, 2.0], [None, None])])
    charts = [Chart(name, name, panels) for name, panels in (("none", [empty]), ("some", [empty, filled]))]
    assert [(chart.name, chart.panels) for chart in Chart.with_values(charts)] == [("some", [filled])]
