"""Figures of heads: what is written in them is what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from probing.figures.style import GREY
from probing.heads.example_maps import ClassExample, Example, Examples, ExampleSentence
from probing.studies.attention.figures import class_examples, relation_map, write_figures
from rendering import rendered

TOKENS = ["[CLS]", "$", "5", "and", "$", "6", "[SEP]"]


def examples(n_classes: int) -> Examples:
    of = ExampleSentence(3, TOKENS, [True, *[False] * 5, True], TOKENS[1:-1], [-1, 0, 1, 2, 3, 4, -1])
    maps = np.random.default_rng(0).dirichlet(np.ones(7), size=(2, 3, 7)).astype(np.float32)
    names = ("vertical", "diagonal", "heterogeneous")[:n_classes]
    return Examples([1, 5], [Example(of, maps)], {name: ClassExample(0, 5, 3 - i, 0.7) for i, name in enumerate(names)})


@pytest.mark.parametrize("n_classes", [1, 3])
def test_each_class_has_a_panel_with_its_map_and_the_tokens(n_classes: int) -> None:
    figure, made = Figure(), examples(n_classes)
    class_examples(figure, made, "bert")
    panels = [axes for axes in figure.axes if axes.get_visible() and axes.get_title()]
    titles = [axes.get_title() for axes in panels]
    assert titles == [f"{name}\nhead 5-{3 - i}, 70% of its maps" for i, name in enumerate(made.classes)]
    for i, axes in enumerate(panels):
        assert [label.get_text() for label in axes.get_xticklabels()] == TOKENS
        assert [label.get_text() for label in axes.get_yticklabels()] == TOKENS
        np.testing.assert_array_equal(axes.images[0].get_array(), made.examples[0].maps[1, 2 - i])
        assert axes.images[0].get_clim() == (0, 1)
    bars = [axes for axes in figure.axes if axes.get_ylabel() == "attention"]
    assert len([axes for axes in figure.axes if axes.get_visible()]) == len(panels) + len(bars) == n_classes + 1


def test_a_head_is_shaded_where_it_beats_the_offset() -> None:
    rows = [
        {"layer": layer, "head": head, "relation": "nsubj:pass", "test": 0.8, "difference": difference, "p_value": p}
        for layer, head, difference, p in ((2, 1, 0.3, 0.001), (2, 2, 0.3, 0.2), (4, 1, -0.3, 0.001), (4, 2, 0.0, 1.0))
    ]
    figure = Figure()
    relation_map(figure, rows, "bert")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["nsubj:pass\n.80"] * 4
    assert [text.get_color() for text in axes.texts] == ["white", GREY, GREY, GREY]
    np.testing.assert_array_equal(axes.images[0].get_array(), [[0.8, 0], [0, 0]])
    assert "(1 of 4)" in axes.get_title()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "4"]


@rendered()
def test_examples_come_in_the_formats_that_are_asked_for(tmp_path: Path) -> None:
    paths = write_figures(tmp_path, {}, ["bert"], ["pdf", "svg"], examples(3))
    assert [path.name for path in paths] == ["examples.pdf", "examples.svg"]
    text = paths[1].read_text(encoding="utf-8")
    assert text.count(">$<") == 2 * 2 * 3  # a dollar sign stays one
    assert 'width="489.6pt"' in text  # of a page, 6.8 inches
