"""What figures show, found in what is drawn, and the two forms of their files, the same bytes each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text

from pages import ROOT
from probing.cli.options import FIGURE_FORMAT, FORMATS, figure_formats
from probing.data import ADDED_CONTROLS, CONTROLS
from probing.errors import UserError
from probing.page.charts import charts_html, panels_html
from probing.results import Table
from probing.runs import Result, SectionPlace, study_of
from probing.studies.compare.tables import charts
from probing.studies.geometry import figures as geometry_figures
from probing.studies.geometry import tables as geometry_tables
from probing.studies.hierarchy import LINEAR
from probing.studies.similarity import STS, WIC, sts_charts, wic_charts
from probing.studies.sweep.search import draw_sweep
from probing.tables import figures as style
from probing.tables import probe_figures as figures
from probing.tables.figures import (
    COLUMN,
    LETTERS,
    PAGE,
    USUAL,
    Chart,
    Line,
    Panel,
    chart_drawings,
    coordinates,
    drawing,
    labels,
    name,
    name_layers,
    short,
    spaced_layers,
    write_drawings,
)
from rendering import FIT_TO_PAPER, rendered

Row = dict[str, Any]
Drawn = list[Figure]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """The figures that a test has drawn, in their order; nothing is written but empty files."""
    found: Drawn = []

    def keep(figure: Figure, path: Path, **_: Any) -> None:
        Path(path).touch()
        if figure not in found:
            found.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


def accuracy(layers: Sequence[int], controls: Sequence[str] = ("majority", "shuffled", "token")) -> list[Row]:
    return [
        {"layer": k, "accuracy": 0.9 - 0.02 * k, "accuracy_low": 0.85 - 0.02 * k, "accuracy_high": 0.95 - 0.02 * k}
        | {f"{name}_accuracy": 0.05 for name in controls}
        for k in layers
    ]


def neurons(layers: Sequence[int], width: int) -> list[Row]:
    values = np.random.default_rng(0).gamma(2, size=(len(layers), width))
    return [
        {"layer": k, "rank": rank, "neuron": int(neuron), "contribution": row[neuron], "flag": "",
         "contribution_centred": 0.9 * row[neuron], "ratio": row[neuron] / row.mean(), "direction_lowest": 1 / rank,
         "direction_highest": 2 / rank, "above_directions": "yes" if rank < 4 else "no"}
        for k, row in zip(layers, values, strict=True)
        for rank, neuron in enumerate(np.argsort(-row), start=1)
    ]  # fmt: skip


def measured(layers: Sequence[int], transforms: Sequence[str]) -> list[Row]:
    return [
        {"layer": k, "transform": transform, "measure": measure, "value": 0.1, "low": 0.05, "high": 0.2}
        for k in layers
        for transform in transforms
        for measure in ("mean_cosine", "isoscore", "token_similarity", "relative_distance")
    ]


def ticks(axes: Axes) -> list[float]:
    return [float(tick) for tick in axes.get_xticks()]


def places_of(line: Line2D) -> list[float]:
    return [float(place) for place in np.asarray(line.get_xdata())]


def texts(figure: Figure) -> list[Text]:
    """All text that is seen; matplotlib also keeps what is on panels without content and beyond the ends of an axis."""
    unseen: set[Any] = set()
    for axes in figure.axes:
        unseen |= set() if axes.get_visible() else set(axes.findobj(Text))
        for side, (axis, ends) in enumerate(((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))):
            labels = axis.get_ticklabels()
            unseen |= {label for label in labels if not min(ends) <= label.get_position()[side] <= max(ends)}
    found: list[Any] = figure.findobj(Text)
    return [text for text in found if text.get_visible() and text.get_text().strip() and text not in unseen]


def test_accuracies_of_a_single_layer_are_marks_beside_each_other(drawn: Drawn, tmp_path: Path) -> None:
    figures.write_figures(tmp_path, {"accuracy": accuracy([6]), "neurons": neurons([6], 16)}, "position", "tiny")
    axes = drawn[0].axes[0]
    places = sorted(places_of(line)[0] for line in axes.lines if line.get_marker() not in ("|", "_"))
    assert len(places) >= 3
    assert ticks(axes) == [6]
    assert 5.5 < places[0] < 6 < places[-1] < 6.5
    assert min(np.diff(places)) > 0.1
    assert {line.get_linestyle() for line in axes.lines} == {"None"}  # nothing is joined, and nothing goes across


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[0, 3, 6], list(range(25))])
def test_accuracies_stand_at_the_layers_that_were_measured(layers: list[int], drawn: Drawn, tmp_path: Path) -> None:
    figures.write_figures(tmp_path, {"accuracy": accuracy(layers), "neurons": neurons(layers, 16)}, "position", "tiny")
    axes = drawn[0].axes[0]
    assert ticks(axes) == layers
    by_look: dict[Any, list[float]] = {}
    for line in axes.lines:
        if line.get_marker() not in ("|", "_"):
            by_look.setdefault((line.get_color(), line.get_marker()), []).extend(places_of(line))
    assert len(by_look) == 4  # the probe and three controls
    assert all(places == layers for places in by_look.values())
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert all(name == "" or int(name) in layers for name in names)


def test_the_map_has_each_neuron_of_a_wide_model(drawn: Drawn, tmp_path: Path) -> None:
    figures.write_figures(
        tmp_path, {"accuracy": accuracy([0, 1]), "neurons": neurons([0, 1], 1500)}, "position", "tiny"
    )
    figure = drawn[2]
    figure.draw_without_rendering()
    axes = figure.axes[0]
    # A pixel or more for each, and in the vector form the numbers themselves instead of pixels drawn from them.
    assert axes.get_window_extent().width >= 1500
    (image,) = axes.images
    assert image.get_interpolation() == "none"
    values = image.get_array()
    assert values is not None
    assert values.shape == (2, 1500)


@pytest.mark.parametrize(
    ("values", "begin", "step"),
    [([0.1, 0.99], 0, 0.2), ([0.65, 0.99], 0, 0.2), ([0.7, 0.9], 0.6, 0.1), ([0.877, 0.974], 0.8, 0.05),
     ([0.93, 0.95], 0.9, 0.02), ([1.0], 0.9, 0.02)],
)  # fmt: skip
def test_accuracies_are_drawn_from_0_unless_all_are_near_1(values: list[float], begin: float, step: float) -> None:
    axes = Figure().add_subplot()
    style.share_axis([*values, float("nan")], axes)
    low, high = axes.get_ylim()
    assert begin - 0.05 < low < begin < min(values) <= 1 < high
    assert np.diff(axes.get_yticks()) == pytest.approx(step)


def test_runs_that_are_compared_are_beside_the_majority_class() -> None:
    runs = {"a": accuracy([0, 1, 2]), "b": accuracy([0, 1])}
    rows = Table([{"model": name, **row} for name, of_run in runs.items() for row in of_run])
    assert [(line.label, line.at) for line in charts(rows, "position")[0].panels[0].lines][2:] == [
        ("majority class", [0, 1, 2])
    ]
    other = Table([{**row, "majority_accuracy": 0.1 * (row["model"] == "a")} for row in rows])
    labels = [line.label for line in charts(other, "position")[0].panels[0].lines]
    assert labels == ["a", "b", "majority class of a", "majority class of b"]


@pytest.mark.slow
def test_many_layers_have_room_on_a_page_of_a_paper() -> None:
    figure, layers = Figure(layout="constrained"), range(13)
    rows = neurons(layers, 16)
    figures.top_neurons(figure, Table(rows).by("layer"), "tiny")
    FIT_TO_PAPER(figure)
    assert figure.get_figheight() <= style.PAGE_HEIGHT
    agreement = [
        {"model_a": "a", "model_b": "b", "layer_a": i, "layer_b": j, "statistic": statistic, "value": -0.25}
        for i, j in product(range(7), layers)
        for statistic in ("spearman", "overlap", "cka")
    ]
    figure = Figure(layout="constrained")
    figures.layers_by_layers(figure, agreement)
    FIT_TO_PAPER(figure)
    assert figure.get_figheight() <= style.PAGE_HEIGHT
    shown = [text for axes in figure.axes for text in axes.texts if text.get_visible()]
    assert len(shown) == 3 * 7 * 13
    assert min(float(text.get_fontsize()) for text in shown) >= 5


def test_a_run_of_one_layer_is_a_mark_at_its_layer_in_a_comparison(drawn: Drawn, tmp_path: Path) -> None:
    runs = {"all": accuracy(range(7)), "one": accuracy([6]), "three": accuracy([0, 3, 6])}
    agreement = [
        {"model_a": "all", "model_b": "one", "layer_a": k, "layer_b": 6, "statistic": statistic, "value": 0.5}
        for k in range(7)
        for statistic in ("spearman", "overlap", "cka")
    ]
    of_compare_figures(tmp_path, agreement, runs, "position")
    axes = drawn[1].axes[0]
    found = {str(line.get_label()): line for line in axes.lines}
    assert places_of(found["one"]) == [6]
    assert found["one"].get_linestyle() == "None"
    assert found["three"].get_linestyle() != "None"
    assert ticks(axes) == list(range(7))
    # The shades are told by a scale too: of deep models the cells have no room for numbers.
    assert len(drawn[0].axes) == 4


def geometry_charts(rows: Sequence[Row]) -> list[style.Chart]:
    """The charts of `geometry` in which the transforms differ, and those without them."""
    return geometry_tables.charts(Table(rows))


@pytest.mark.parametrize("layers", [[0, 1, 2], [6]])
def test_geometry_has_a_line_for_each_transform(layers: list[int], drawn: Drawn, tmp_path: Path) -> None:
    charts = geometry_charts(measured(layers, ("none", "whiten", "center")))
    assert [chart.name for chart in charts] == ["anisotropy", "transforms", "smoothing"]
    assert [line.label for line in charts[1].panels[0].lines] == ["untransformed", "centred", "whitened"]
    write_drawings(tmp_path, chart_drawings(charts, "tiny"), ["png"])
    (axes,) = drawn[1].axes
    assert ticks(axes) == layers
    marks = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    assert len(marks) == 3
    assert len({places_of(line)[0] for line in marks}) == 3  # none covers another


def test_a_layer_without_a_value_breaks_the_line() -> None:
    rows = measured([0, 1, 2], ("none", "whiten"))
    rows = [row for row in rows if (row["layer"], row["transform"]) != (1, "whiten")]
    whole, broken = geometry_charts(rows)[1].panels[0].lines
    assert [len(line.parts(True)) for line in (whole, broken)] == [1, 2]
    assert list(broken.at) == [0, 2]


def test_a_chart_has_no_lines_without_values_and_no_panels_without_lines() -> None:
    (chart,) = Chart.with_values(
        geometry_charts([row for row in measured([0, 1], ("none",)) if row["measure"] == "isoscore"])
    )
    assert [[line.label for line in panel.lines] for panel in chart.panels] == [["isoscore"]]


# --- legends and text ---


def of_sweep(path: Path, n_layers: int = 7) -> None:
    rows = [
        {"layer": k, "probe.l2": l2, "seed": seed, "task": "position" if seed else "position_from_end",
         "accuracy": 0.99 - 0.7 * k / n_layers, "probe.l2_spearman": 0.9 - 0.01 * k, "seed_spearman": 0.99 - 0.05 * k}
        for k in range(n_layers)
        for l2 in (1e-5, 1e-4, 1e-2)
        for seed in (0, 1, 2)
    ]  # fmt: skip
    varied = ["layer", "probe.l2", "seed", "task"]
    write_drawings(path, {"sweep": partial(draw_sweep, rows=rows, varied=varied)})


def of_deep_sweep(path: Path) -> None:
    of_sweep(path, 25)


def of_fit(path: Path) -> None:
    layers = range(13)
    tables = {"accuracy": accuracy(layers), "neurons": neurons(layers, 32), "basis": [{"n_rotations": 20}]}
    figures.write_figures(path, tables, "position", "tiny")


def of_compare_figures(
    path: Path, agreement: Sequence[Mapping[str, Any]], of_run: Mapping[str, Sequence[Mapping[str, Any]]], task: str
) -> None:
    rows = Table({"model": label, **row} for label, of in of_run.items() for row in of)
    write_drawings(path, {**figures.agreement_drawings(Table(agreement)), **chart_drawings(charts(rows, task), "")})


def of_compare(path: Path) -> None:
    statistics = ("spearman", "overlap", "cka")
    for layers in (range(13), [6]):
        rows = [
            {"model_a": "first", "model_b": "second", "layer_a": i, "layer_b": j, "statistic": name, "value": 0.5}
            for i in range(13) for j in layers for name in statistics
        ]  # fmt: skip
        of_compare_figures(path, rows, {"first": accuracy(range(13)), "second": accuracy(layers)}, "x")


def of_geometry(path: Path) -> None:
    means = Table({"layer": k, "mean": 0.1, "neuron": i} for k in range(13) for i in range(4))
    tables = {**dict.fromkeys(("outliers", "norms", "norm_changes", "path"), Table(())), "dimensions": means}
    charts = geometry_charts(measured(range(13), list(geometry_tables.TRANSFORMS)))
    write_drawings(path, {**geometry_figures.drawings(tables, "tiny"), **chart_drawings(charts, "tiny")})


def of_wic(path: Path) -> None:
    rows = [
        {"layer": k, "transform": space, "accuracy": 0.6, "accuracy_low": 0.5, "accuracy_high": 0.7, "auc": 0.6,
         "auc_low": 0.5, "auc_high": 0.7, "constant_true_accuracy": 0.5, "n_pairs": 400}
        for k in range(25) for space in ("none", "clip", "whiten")
    ]  # fmt: skip
    charts = wic_charts(Table(rows, WIC), Table([{"protocol": "held_out", "reported_on": "dev"}]))
    write_drawings(path, chart_drawings(charts, "tiny"))


def of_sts(path: Path) -> None:
    rows = [
        {"set": name, "layer": k, "pooling": "mean", "transform": space, "aggregation": "all", "n_pairs": 300,
         "spearman": 0.6, "low": 0.5, "high": 0.7}
        for name in ("STS12", "STS-B dev", "SICK-R trial") for k in range(25) for space in ("none", "clip", "whiten")
    ]  # fmt: skip
    write_drawings(path, chart_drawings(sts_charts(Table(rows, STS)), "tiny"))


def of_curves(path: Path) -> None:
    rows = [
        {"layer": 6, "ranking": "random" if end == "random" else "contribution", "kind": kind, "from": end, "k": k,
         "accuracy": 0.5, "validation_accuracy": 0.5, "draw": 1}
        for kind in ("only", "without") for end in ("top", "bottom", "random") for k in (1, 2, 5, 10, 20, 50, 100, 200)
    ]  # fmt: skip
    whole: dict[str, Any] = {"layer": 6, "ranking": "contribution", "kind": "only", "from": "top", "k": 384}
    rows.append({**whole, "accuracy": 0.6, "validation_accuracy": 0.6})
    draw = partial(figures.how_many_neurons, rows=rows, majority=0.1, task="x", model="tiny")
    write_drawings(path, {"curves": draw})


DRAWERS = (of_fit, of_compare, of_curves, of_geometry, of_wic, of_sts, of_sweep, of_deep_sweep)


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWERS)
def test_legends_stand_beside_the_data_and_no_text_covers_another(
    draw: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "fit_to_paper", FIT_TO_PAPER)
    found: list[str] = []

    def check(figure: Figure, path: Path, *, format: str, **_: Any) -> None:
        Path(path).touch()
        found.append(format)
        if format == "png":  # to fit the page, the other was drawn already
            figure.draw_without_rendering()
        if format == "pdf":
            assert figure.get_figwidth() in (COLUMN, PAGE)
            left, bottom, right, top = figure.get_tightbbox().extents
            assert min(left, bottom) >= 0  # nothing sticks out
            assert right <= figure.get_figwidth()
            assert top <= figure.get_figheight()
            in_cells = {text for axes in figure.axes if axes.images for text in axes.texts}
            assert min(float(text.get_fontsize()) for text in texts(figure) if text not in in_cells) >= LETTERS
        panels = [axes.get_window_extent() for axes in figure.axes if axes.get_visible()]
        for legend in figure.findobj(Legend):
            assert not any(legend.get_window_extent().overlaps(panel) for panel in panels)
        upright = [text for text in texts(figure) if text.get_rotation() % 90 == 0]
        assert len(upright) > 5
        boxes = [(text.get_text(), text.get_window_extent()) for text in upright]
        covered = [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if first.overlaps(second)]
        assert covered == []

    monkeypatch.setattr(Figure, "savefig", check)
    draw(tmp_path)
    assert set(found) == {"png", "pdf"}


def test_a_sweep_joins_values_that_have_an_order_and_no_others(drawn: Drawn, tmp_path: Path) -> None:
    of_sweep(tmp_path)
    panels = {axes.get_xlabel(): axes for axes in drawn[0].axes if axes.get_ylabel() == "test accuracy"}
    means = {name: axes.lines[1].get_linestyle() for name, axes in panels.items()}
    assert means == {"layer (0 = embeddings)": "-", "probe.l2": "-", "seed": "None", "task": "None"}
    assert panels["probe.l2"].get_xscale() == "log"
    layers = next(axes for axes in drawn[0].axes if axes.get_xlabel().startswith("layer"))
    assert ticks(layers) == list(range(7))
    (legend,) = drawn[0].legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["one probe", "mean of probes", *(f"layer {k}" for k in range(7))]


@pytest.mark.slow
def test_what_is_drawn_differs_without_colour(drawn: Drawn, tmp_path: Path) -> None:
    for draw in (of_fit, of_geometry, of_wic, of_compare):
        draw(tmp_path)
    for figure in drawn:
        for axes in figure.axes:
            looks = [
                (line.get_marker(), line.get_linestyle(), line.get_markerfacecolor() == line.get_color())
                for line in axes.lines
                if not str(line.get_label()).startswith("_")
            ]
            assert all(a != b for a, b in pairwise(sorted(looks, key=str)))


def test_where_a_probe_with_an_intercept_was_trained_its_contribution_is_marked() -> None:
    table = neurons([2], 20)
    table[1]["contribution_companion"], table[3]["contribution_companion"] = 0.25, None
    figure = Figure(layout="constrained")
    figures.top_neurons(figure, {2: table}, "tiny")
    (mark,) = figure.axes[0].lines
    assert (places_of(mark), list(np.asarray(mark.get_ydata()))) == ([0.25], [1])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][-1] == "with an intercept"
    plain = Figure(layout="constrained")
    figures.top_neurons(plain, {2: neurons([2], 20)}, "tiny")
    assert not plain.axes[0].lines


def test_the_band_of_directions_lies_behind_the_sorted_neurons(drawn: Drawn, tmp_path: Path) -> None:
    tables = {"accuracy": accuracy([0, 6]), "neurons": neurons([0, 6], 30), "basis": [{"n_rotations": 20}]}
    for row in tables["neurons"][-3:]:  # dead ones have no direction, and a layer without any other has no curve
        del row["direction_lowest"], row["direction_highest"]
    names = [path.name for path in figures.write_figures(tmp_path, tables, "position", "tiny")]
    assert "directions.png" in names
    for axes, rows in zip(drawn[1].axes, (tables["neurons"][:30], tables["neurons"][30:57]), strict=True):
        (band,), (line, marks), n = axes.collections, axes.lines, len(rows)
        (outline,) = (path.vertices for path in band.get_paths())
        corners = {(coordinates([rank])[0], end / rank) for rank in range(1, n + 1) for end in (1, 2)}
        assert {(float(x), float(y)) for x, y in np.asarray(outline)} == corners
        assert list(np.asarray(line.get_ydata())) == sorted((row["contribution"] for row in rows), reverse=True)
        assert places_of(line) == coordinates(range(1, n + 1))
        assert places_of(marks) == coordinates([1, 2, 3])
        assert band.zorder < line.zorder
    assert [axes.get_title(loc="left") for axes in drawn[1].axes] == ["layer 0: 3 above", "layer 6: 3 above"]
    assert "directions of 20 rotations\n(range)" in {text.get_text() for text in texts(drawn[1])}
    del tables["basis"]
    assert not any("directions" in path.name for path in figures.write_figures(tmp_path, tables, "position", "tiny"))


def test_a_layer_of_dead_neurons_has_no_panel_beside_directions() -> None:
    rows = neurons([0], 4)
    without = [row | {"direction_lowest": ""} for row in rows[:3]] + [rows[3] | {"direction_highest": float("nan")}]
    (chart,) = Chart.with_values([figures.contributions_chart({0: without, 1: rows}, 20)])
    assert [panel.lines[0].at for panel in chart.panels] == [[1, 2, 3, 4]]
    assert Chart.with_values([figures.contributions_chart({0: without}, 20)]) == []


def test_bars_and_bands_of_a_chart_are_on_its_figure_and_on_its_page(drawn: Drawn, tmp_path: Path) -> None:
    at, x = [style.NamedLayer(i, name) for i, name in enumerate("abc")], style.by_name("word", "word")
    bars = [style.Line(label, at, [0.1, 0.2, 0.3], kind="bars") for label in ("query", "key")]
    rows = [{"k": k, "low": 0.1 * k, "high": 0.2 * k} for k in (1, 2, 4)]
    areas = [
        style.Line("curve", [1, 2, 4], [0.1, 0.2, 0.4], kind="curve"),
        style.Line.band(rows, "low", "high", "b", "k"),
    ]
    charts = [
        style.Chart("bars", "t", [style.Panel(bars)], x=x),
        style.Chart("areas", "t", [style.Panel(areas)], x=style.by_count("k", "k")),
    ]
    write_drawings(tmp_path, chart_drawings(charts, ""), ["png"])
    (left, right), (axes, logarithmic) = drawn[0].axes[0].containers, (figure.axes[0] for figure in drawn)
    assert [patch.get_x() + patch.get_width() for patch in left] == pytest.approx([patch.get_x() for patch in right])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert ticks(logarithmic) == pytest.approx(np.log10([1, 2, 4]))
    page, area = charts_html(charts)
    assert re.findall('class="block"><title>([^<]*)', page)[:2] == ["query, word a: 0.100", "query, word b: 0.200"]
    assert page.count('class="block"') == 6 + 2  # those of the legend, too
    assert (area.count('class="line"'), area.count('class="band"'), area.count('class="mark"')) == (2, 2, 0)


def test_every_control_has_a_line_that_looks_like_no_other(drawn: Drawn, tmp_path: Path) -> None:
    every = {"majority": "majority"} | {name: one.words for name, one in {**CONTROLS, **ADDED_CONTROLS}.items()}
    assert len(style.LOOKS) == len(set(style.LOOKS)) == 1 + len(every)
    rows = [{"layer": 0, "accuracy": 0.5} | {f"{name}_accuracy": 0.1 for name in every}]
    write_drawings(tmp_path, chart_drawings([figures.accuracy_chart(rows, "position")], "bert"), ["png"])
    axes = drawn[0].axes[0]
    assert len([line for line in axes.lines if line.get_label() in every.values()]) == len(every)
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 1 + len(every)


def test_steps_stand_at_their_logarithms_and_step_0_to_the_left_of_them() -> None:
    assert coordinates([1, 10, 1000]) == pytest.approx([0, 1, 3])
    zero, *others = coordinates([0, 10, 1000])
    assert others == pytest.approx([1, 3])
    assert zero == pytest.approx(0.7)
    assert coordinates([0]) == [0.0]
    assert (name([0, 10]), name([10])) == ("step (logarithmic, 0 apart)", "step (logarithmic)")


def test_a_step_is_labelled_where_there_is_room() -> None:
    assert labels([0, 10, 100, 1000], 28) == ["0", "10", "100", "1k"]
    dense = [0, *(2**i for i in range(11)), 1500]
    assert labels(dense, 28) == ["0", "1", "", "4", "", "16", "", "64", "", "256", "", "", "1.5k"]
    # The last step is named, and not 1024 before it, where there is room for one of them.
    assert labels(dense, 68)[-4:] == ["256", "512", "", "1.5k"]
    assert labels(dense, 200) == [short(step) for step in dense]
    assert labels([7], 28) == ["7"]


@pytest.mark.parametrize("steps", [list(range(0, 3000, 100)), [1000 * i for i in range(1, 144)]])
def test_no_label_runs_into_the_next(steps: list[int]) -> None:
    at = coordinates(steps)
    character = (at[-1] - at[0]) / 28
    named = [(place, label) for place, label in zip(at, labels(steps, 28), strict=True) if label]
    assert len(named) > 3
    for (place, label), (following, other) in pairwise(named):
        assert following - place > character * (len(label) + len(other)) / 2


def test_large_steps_are_short() -> None:
    assert [short(step) for step in (0, 512, 1000, 1500, 1024, 143_000, 2_500_000)] == [
        "0", "512", "1k", "1.5k", "1024", "143k", "2.5M",
    ]  # fmt: skip


# --- charts that are declared once, for figures and pages ---


def charts_of(layers: Sequence[int]) -> style.Chart:
    probe = style.Line.of(accuracy(layers), "accuracy", "probe")
    floor = style.Line("majority", [*layers], [0.05] * len(layers))
    return style.Chart("chart", "accuracy by layer", [style.Panel([probe, floor])], "accuracy", (0, 1))


@pytest.mark.parametrize(("layers", "n_parts"), [([0, 1, 2], 1), ([0, 3, 4, 6], 3), ([5], 1)])
def test_layers_between_which_none_was_measured_are_not_joined(
    layers: list[int], n_parts: int, drawn: Drawn, tmp_path: Path
) -> None:
    chart = charts_of(layers)
    assert write_drawings(tmp_path, chart_drawings([chart], "minilm"), ["png"]) == [tmp_path / "chart.png"]
    (axes,) = drawn[0].axes
    parts = [line for line in axes.lines if line.get_color() == style.LOOKS[0][0] and line.get_marker() == "o"]
    assert sum(np.size(part.get_xdata()) for part in parts) == len(layers)
    assert len(parts) == n_parts
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["probe", "majority"]
    (page,) = panels_html(chart, [""])
    assert "reference" not in page
    assert 'class="reference"' in panels_html(replace(chart, reference=0.5), [""])[0]
    shown = page.split("</svg>")[0]
    n_joined = sum(len(layers[part]) > 1 for part in chart.panels[0].lines[0].parts(True))
    assert shown.count('class="line"') == 2 * n_joined
    assert shown.count('class="mark"') == 2 * len(layers)


def test_a_chart_of_a_study_is_its_figure_and_stands_on_its_page() -> None:
    hierarchy = study_of("hierarchy")
    rows = [
        {"task": task, "condition": condition, "layer": layer, "test": 1.0, "generalisation": 0.5, LINEAR[task]: 0.25}
        for task in LINEAR for condition in ("model", "untrained") for layer in (0, 1)
    ]  # fmt: skip
    result = Result(hierarchy, Path("runs/h"), {"model": "minilm"}, {}, {"hierarchy": Table(rows)})
    (chart,) = hierarchy.charts(result)
    assert [panel.title for panel in chart.panels] == ["main auxiliary", "subject noun"]
    assert [len(panel.lines) for panel in chart.panels] == [4, 4]
    section = hierarchy.section(result, SectionPlace("h", 0, 1000))
    assert section.count("<svg") >= 2
    assert "Main auxiliary: share of sentences" in section


@pytest.fixture
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


@pytest.mark.usefixtures("images")
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


@pytest.mark.usefixtures("images")
def test_the_same_drawing_gives_the_same_bytes(tmp_path: Path) -> None:
    for file in ("a", "b"):
        draw(tmp_path / f"{file}.png", FORMATS)
    for suffix in (".png", ".pdf", ".svg"):
        first, second = (tmp_path.joinpath(file).with_suffix(suffix).read_bytes() for file in ("a", "b"))
        assert first == second
        assert b"Date" not in first
        assert b":date>" not in first


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("formats", [["svg"], ["pdf"], ["png"], ["pdf", "svg"]])
def test_only_the_formats_that_are_asked_for_are_written(formats: list[str], tmp_path: Path) -> None:
    draw(tmp_path / "drawn", formats)
    assert {file.name for file in tmp_path.iterdir()} == {f"drawn.{form}" for form in formats}


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_vector_forms_have_the_width_of_a_column_or_of_a_page(tmp_path: Path) -> None:
    draw(tmp_path / "one", FORMATS)
    with drawing(tmp_path / "two", FORMATS) as figure:
        figure.set_size_inches(9, 3)
        for axes in figure.subplots(1, 2):
            axes.set_title("a title that is much too long for a panel of this width, so that it takes two lines")
    for file, inches in (("one", 3.3), ("two", 6.8)):
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", (tmp_path / f"{file}.pdf").read_bytes())
        assert float(width) == pytest.approx(72 * inches, abs=0.1)
        svg = (tmp_path / f"{file}.svg").read_text(encoding="utf-8")
        (width,) = re.findall(r'<svg [^>]*width="([\d.]+)pt"', svg)
        assert float(width) == pytest.approx(72 * inches, abs=0.1)
    # The text of an SVG can be found and edited.
    assert "layer (0 = embeddings)</text>" in (tmp_path / "one.svg").read_text(encoding="utf-8")


@pytest.mark.usefixtures("images")
def test_the_legend_of_a_small_chart_stands_below_it_with_long_labels_in_two_lines(tmp_path: Path) -> None:
    lines = [Line("a label that is longer than a line of a legend", [0, 1], [1.0, 2.0]), Line("short", [0, 1], [2, 3])]
    write_drawings(tmp_path, chart_drawings([Chart("drawn", "a chart", [Panel(lines)], "y")], "model"), FORMATS)
    svg = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    assert all(f">{text}</text>" in svg for text in ("a label that is longer", "than a line of a legend", "short"))


@pytest.mark.usefixtures("images")
def test_formats_are_named_as_other_options_are() -> None:
    assert tuple(figure_formats(FIGURE_FORMAT)) == USUAL
    assert figure_formats("svg,png") == ["png", "svg"]
    assert figure_formats(["pdf"]) == ["pdf"]
    assert figure_formats("all") == list(FORMATS)
    with pytest.raises(UserError, match="`--figure_format jpg` is not one of png, pdf, svg, all; give one or more"):
        figure_formats("jpg")


@pytest.mark.usefixtures("images")
def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(tmp_path: Path) -> None:
    draw(path := tmp_path / "drawn.png")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ZeroDivisionError), drawing(path) as figure:
        figure.add_subplot().plot([1 / 0])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("images")
def test_no_label_is_a_formula_which_would_be_shown_as_it_is_typed() -> None:
    files = [file for room in ("probing", "benchmarks") for file in (ROOT / room).rglob("*.py")]
    drawing_ones = {file.name: text for file in files if "tables.figures" in (text := file.read_text(encoding="utf-8"))}
    assert len(drawing_ones) > 10
    assert [name for name, text in drawing_ones.items() if "$\\" in text] == []


@pytest.mark.usefixtures("images")
def test_names_are_shown_as_they_are_and_not_as_formulas(tmp_path: Path) -> None:
    with drawing(tmp_path / "drawn.png", ["svg"]) as figure:
        axes = figure.add_subplot()
        axes.plot([1, 1000], [0, 1], label=r"$\unknown$")
        axes.set_xscale("log")
        axes.set_title("B-$A$ and $x_1$")
        axes.set_yticks([0, 1], labels=["$a$", "b"])
        axes.legend()
    text = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    for words in (r"$\unknown$", "B-$A$ and $x_1$", ">$a$<"):
        assert words in text
    assert ">$\\mathdefault" not in text


@pytest.mark.usefixtures("images")
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


@pytest.mark.usefixtures("images")
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


@pytest.mark.usefixtures("images")
def test_a_chart_without_values_is_not_drawn_and_one_with_some_loses_its_empty_panels() -> None:
    empty, filled = Panel([Line("empty", [], [], [])]), Panel([Line("filled", [0, 3], [1.0, 2.0], [None, None])])
    charts = [Chart(name, name, panels) for name, panels in (("none", [empty]), ("some", [empty, filled]))]
    assert [(chart.name, chart.panels) for chart in Chart.with_values(charts)] == [("some", [filled])]
