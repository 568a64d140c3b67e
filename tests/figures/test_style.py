"""Figures come in two forms, the same bytes each time; their layers are whole numbers, named where there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from probing.figures.layer_labels import spaced_layers
from probing.figures.style import drawing, name_layers
from probing.runtime.replaced_files import vector_form
from rendering import rendered


@pytest.fixture(autouse=True)
def images() -> Iterator[None]:
    """What is written is the image itself."""
    with rendered():
        yield


def draw(path: Path) -> None:
    with drawing(path) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 3, 6], [1.0, 0.5, 0.25], marker="o", label=r"$\sigma_1$ and é")
        axes.legend()
        name_layers(axes, [0, 3, 6])


def test_a_figure_is_an_image_and_a_vector_form_with_its_fonts(tmp_path: Path) -> None:
    draw(path := tmp_path / "drawn.png")
    assert {file.name for file in tmp_path.iterdir()} == {"drawn.png", "drawn.pdf"}
    assert path.read_bytes().startswith(b"\x89PNG")
    vector = vector_form(path).read_bytes()
    assert vector.startswith(b"%PDF")
    # Text is text, in outlines that are part of the file and that publishers take.
    assert b"/FontFile2" in vector
    assert b"/ToUnicode" in vector
    assert b"/Type3" not in vector


def test_the_same_drawing_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw(tmp_path / f"{name}.png")
    for suffix in (".png", ".pdf"):
        first, second = (tmp_path.joinpath(name).with_suffix(suffix).read_bytes() for name in ("a", "b"))
        assert first == second
        assert b"Date" not in first


def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(tmp_path: Path) -> None:
    draw(path := tmp_path / "drawn.png")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ZeroDivisionError), drawing(path) as figure:
        figure.add_subplot().plot([1 / 0])
    with pytest.raises(ValueError, match="Unknown symbol"), drawing(path) as figure:
        figure.add_subplot().set_title(r"$\unknown$")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


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
