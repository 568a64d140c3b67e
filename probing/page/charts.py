"""Sources of a page, its charts with the values that a pointer shows, and its maps of heads."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError
from probing.results import Child, Html, Table, element, in_brackets, interval, joined, pairs, two_decimals
from probing.runs import MODEL_NAME, Result, model_name, with_names
from probing.runs.folder import read_tensor, reading
from probing.runs.loading import load_run
from probing.runs.run import Run, load_fit
from probing.runtime.files import read_text
from probing.tables import Score, score_of
from probing.tables.conclusions import leading
from probing.tables.figures import HEIGHT, N_LOOKS, WIDTH, Chart, Line, Panel, Part, panels_as_svg
from probing.tables.heads import CLASSES, FIRST, LETTERS, SPECIAL, Tables, finds_relation, of_heads, of_measure
from probing.text.tasks import label_name, task_in_words

# Stands for the class where numbers are predicted.
ALL = "all"


@dataclass(frozen=True)
class RunView:
    """Finished run on a page under a unique label.

    `by_class` is the mean contribution to each class's logit over the class's tokens, shape (n_layers, n_classes,
    d_model).
    """

    label: str
    run: Run
    by_class: NDArray[np.float32]

    @property
    def task(self) -> str:
        """Task of the probes, in words."""
        return task_in_words(self.run.config)

    @property
    def leading(self) -> int:
        """Layer whose neurons are shown first."""
        return int(leading(self.run.accuracy)["layer"])

    @property
    def classes(self) -> list[int | str]:
        """Labels of the classes; for numbers, a word for all of them."""
        return list(self.run.results["classes"]) or [ALL]

    @property
    def score(self) -> Score:
        """Score of the probes."""
        return score_of(self.run.accuracy[0])

    @property
    def d_model(self) -> int:
        """Number of neurons of a layer."""
        return int(self.by_class.shape[2])

    @cached_property
    def ranked(self) -> dict[int, Table]:
        """Ranked table of each layer."""
        return self.run.neurons.by("layer")


@dataclass(frozen=True)
class Sources:
    """Sources of a page: runs, their comparison, if any, and other results in order."""

    views: Sequence[RunView]
    agreement: Result | None = None
    shown: Sequence[Result] = ()


def read_sources(
    folders: Sequence[str | Path], model_name: str | Sequence[str] | None = None, label_name: str | None = None
) -> Sources:
    """Read the folders of a page, and the runs of a comparison among them; names are as in `with_names`.

    Raises:
        UserError: If a folder has no finished run, is damaged or given twice, or there are several comparisons.
    """
    paths = [Path(folder) for folder in folders]
    for path in paths:
        if sum(path.resolve() == other.resolve() for other in paths) > 1:
            raise UserError(f"`{path}` is given twice; each run is shown once.")
    results = with_names([load_run(path) for path in paths], model_name, label_name)
    runs = [result for result in results if isinstance(result, Run)]
    # What compares runs of `finetune` has no agreement of rankings.
    agreements = [result for result in results if result.study.name == "compare" and "compared" not in result.results]
    if len(agreements) > 1:
        named = ", ".join(str(result.folder) for result in agreements)
        raise UserError(f"`report` shows one comparison, and {len(agreements)} are given: {named}.")
    names: dict[str, Run] = {}
    for agreement in agreements:
        with reading(agreement.folder):
            compared = _compared(agreement)
        names = {label: _find(agreement.folder, folder, runs) for label, folder in compared.items()}
    others = [run for run in runs if not any(run is compared_run for compared_run in names.values())]
    labelled = names | dict(zip(labels(others, taken=list(names)), others, strict=True))
    views = [_view_of(label, run) for label, run in labelled.items()]
    shown = [result for result in results if not isinstance(result, Run) and result not in agreements]
    return Sources(views, agreements[0] if agreements else None, shown)


def _compared(agreement: Result) -> Mapping[str, str]:
    """Return the folders of the compared runs, by name; raise ValueError if the comparison is damaged."""
    compared = agreement.results["runs"]
    if not isinstance(compared, dict) or not all(
        isinstance(path, str) and "\0" not in path for path in compared.values()
    ):
        raise ValueError("results.json names no runs")
    if not agreement.agreement or not {"model_a", "layer_a", "statistic", "value"} <= set(agreement.agreement[0]):
        raise ValueError("agreement.csv holds no agreement")
    return compared


def source_of(run: Run) -> Sources:
    """Return the sources of a page on a single run; raise UserError if the run is damaged."""
    (label,) = labels([run])
    return Sources([_view_of(label, run)])


def labels(runs: Sequence[Run], taken: Sequence[str] = ()) -> list[str]:
    """Name each run by its model, with its task if names are equal, or else by its folder or its whole path."""
    models = [model_name(run.config) for run in runs]
    with_tasks = [f"{name} {label_name(run.config)}" for name, run in zip(models, runs, strict=True)]
    for names in (models, with_tasks, [run.folder.name for run in runs]):
        if len({*names, *taken}) == len(names) + len(taken):
            return names
    return [str(run.folder) for run in runs]


def _find(comparison: Path, folder: str, given: Sequence[Run]) -> Run:
    """Return a compared run: among the given runs, at its recorded path, or next to the comparison."""
    name = Path(folder).name
    known = {run.folder.resolve(): run for run in given}
    same = known.get(Path(folder).resolve()) or next((run for run in given if run.folder.name == name), None)
    if same is not None:
        return same
    for path in (Path(folder), comparison.parent / name):
        if os.path.isfile(path / "results.json"):  # unlike Path, it accepts a name that is too long
            with reading(path):
                return load_fit(path)
    raise UserError(f"`{comparison}` compares {folder}, which no longer exists there; give its folder as well.")


def _view_of(label: str, run: Run) -> RunView:
    with reading(run.folder):
        by_class = read_tensor(run.folder / "contributions.safetensors", "contribution").numpy()
    return RunView(label, run, by_class)


# Options on where results are written and how they are shown; they do not change the results.
BESIDE_THE_POINT = ("runs", "cache", "quiet", "verbose", "wandb", MODEL_NAME)


def command_line(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the command that repeats a run; `defaults` are the option defaults of `fit`, mappings for groups."""
    words = [
        word
        for name, value in config.items()
        if name not in BESIDE_THE_POINT
        for word in option_words(name, value, defaults.get(name))
    ]
    return shlex.join(["python", "-m", "probing", "fit", *words])


def run_block(view: RunView) -> Html:
    """Return the section on how to repeat a run."""
    results = view.run.results
    note, command = None, view.run.study.command_line(view.run.config)
    if view.run.is_of_arrays:
        command = "probing.probe(X, y, ...)"
        note = element("p", "This run was made from arrays, which have to be given again.")
    elif "-" in (view.run.config["corpus"], view.run.config.get("test_corpus")):
        note = element("p", "This run read standard input, so the text has to be given again.")
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    times = ", ".join(f"{name.removesuffix('_s')} {seconds:.1f} s" for name, seconds in results["timings"].items())
    return element(
        "section",
        element("h3", view.label),
        element("pre", element("code", command), tabindex="0"),
        note,
        _configuration(view.run.folder / "config.yaml"),
        pairs([("Versions", versions), ("Time", times), *_columns(results["cache"]), *_fingerprints(results["cache"])]),
    )  # fmt: skip


def folder_block(heading: str, result: Result) -> Html:
    """Return the section on how to repeat the run of another command than `fit`."""
    command = element("pre", element("code", result.study.command_line(result.config)), tabindex="0")
    # Rankings are made with the configuration of their run, and a sweep by its file.
    paths = [result.folder / name for name in ("config.yaml", "sweep.yaml", "../config.yaml")]
    path = next((path for path in paths if path.exists()), paths[0])
    return element("section", element("h3", heading), command, _configuration(path))


def option_words(name: str, value: Any, default: Any = None) -> list[str]:
    """Return the words by which an option, or a group of options, is typed; none for its default."""
    if isinstance(value, Mapping):
        known = default if isinstance(default, Mapping) else {}
        return [word for key, inner in value.items() for word in option_words(f"{name}.{key}", inner, known.get(key))]
    if value == default or value is None:
        return []
    if isinstance(value, bool | list):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", str(value)]


def _configuration(path: Path) -> Html:
    with reading(path.parent):
        text = read_text(path, path.parent)
    name = joined("The configuration, ", element("code", path.name))
    return element("details", element("summary", name), element("pre", element("code", text), tabindex="0"))


def _columns(cache: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    lines = dict.fromkeys(f"{side['corpus']}: {side['read']}" for side in cache.values() if "read" in side)
    return [("Read", line) for line in lines]


def _fingerprints(cache: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Html]]:
    sides = {side: dict(cached["key"]) for side, cached in cache.items()}
    if sides.get("test") == sides.get("train"):
        sides.pop("test")
    return [
        (f"Fingerprint: {name}" + (f", {side}" if len(sides) > 1 else ""), element("code", str(value)))
        for side, key in sides.items()
        for name, value in key.items()
        if value is not None
    ]


def charts_html(charts: Iterable[Chart]) -> list[Html]:
    """Return the charts that have values as figures of a page, each panel as one; none of a chart of a single layer."""
    drawn = [chart for chart in Chart.with_values(charts) if not chart.is_of_one_layer]
    return [figure for chart in drawn for figure in _chart(chart)]


def _chart(chart: Chart) -> list[Html]:
    drawn = [line for panel in chart.panels for line in panel.lines]
    intervals = f", with {chart.bars}" if any(any(line.ranges) for line in drawn) else ""
    titles = []
    for panel in chart.panels:
        begin = f"{panel.title[:1].upper()}{panel.title[1:]}: " if panel.title else ""
        about = "; ".join(filter(None, (panel.y, chart.caption))) or chart.y or chart.title
        titles.append(f"{begin}{about}{intervals}")
    figures = [
        element("figure", element("figcaption", title), panel)
        for title, panel in zip(titles, panels_html(chart, titles), strict=True)
    ]
    return [element("div", *figures, class_="panels")] if len(figures) > 2 else figures


def panels_html(chart: Chart, titles: Sequence[str]) -> list[Html]:
    """Return each panel of a chart with its legend; the titles describe the panels for readers who do not see them."""
    drawn = zip(chart.panels, titles, panels_as_svg(chart), strict=True)
    return [_panel(chart, panel, title, svg, parts) for panel, title, (svg, parts) in drawn]


def _panel(chart: Chart, panel: Panel, title: str, svg: str, parts: Sequence[Part]) -> Html:
    """Return what matplotlib drew, in the colours and type of the page, and with its values as text."""
    looks, by_id = chart.looks_of(panel), {f"part-{i}": part for i, part in enumerate(parts)}
    frame: list[Html] = []
    lines: dict[int, list[Html]] = {}
    keys: dict[str, Html] = {}
    for group in ElementTree.fromstring(svg).iterfind(".//{*}g"):
        name, paths = group.get("id", ""), group.findall("{*}path")
        part = by_id.get(name)
        if part is None:
            frame += [_text(text) for text in group.iterfind("{*}text")]
            frame += [_path(path, class_="grid") for path in paths if not name.startswith("patch")]
        elif part.line is None:
            frame += [_path(path, class_="reference") for path in paths]
        elif part.kind == "faint":
            frame += [_path(path, element("title", part.line.name), class_="line faint") for path in paths]
        else:
            lines.setdefault(id(part.line), []).extend(_shapes(group, part, chart.x.unit))
            if part.kind in ("line", "band", "block"):
                key = _key(group, part.kind, _look(looks, part.line))
                keys[part.line.label] = key if any(map(_is_line, paths)) else keys.get(part.line.label, key)
    drawn = [element("g", *lines[id(line)], class_=_look(looks, line)) for line in panel.lines if id(line) in lines]
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}"}
    shown = element("svg", element("title", title), *frame, *drawn, role="img", class_="chart", **size)
    legend = element("ul", *(element("li", key, joined(label)) for label, key in keys.items()), class_="legend")
    return element("div", shown, legend, class_="with-legend")


def _look(looks: Mapping[str, int], line: Line) -> str:
    return f"look-{looks[line.label] % N_LOOKS}"


def _shapes(group: ElementTree.Element, part: Part, unit: str) -> Iterator[Html]:
    """Yield the line of a part, if it has one, and its marks, bars or dots, each with its value in words."""
    assert part.line is not None
    for definition in group.iterfind(".//{*}defs/{*}path"):
        yield element("defs", _path(definition, id=definition.get("id")))
    shapes, kind = group.findall("{*}path"), part.kind
    if kind == "line":
        yield from (_path(path, class_="line", stroke_dasharray=_dashes(path)) for path in shapes if _is_line(path))
        shapes, kind = [], "mark"
    shapes = shapes or group.findall(".//{*}use")
    # The ends of bars have no text of their own.
    texts: list[Html | None] = [element("title", part.line.value_text(i, unit)) for i in part.indices]
    for shape, text in zip(shapes, texts or [None] * len(shapes), strict=True):
        if shape.tag.endswith("path"):
            yield _path(shape, text, class_=kind)
        else:
            at = {name: _rounded(shape.get(name, "")) for name in ("x", "y")}
            yield element("use", text, href=shape.get(_HREF), class_=kind, **at)


def _key(group: ElementTree.Element, kind: str, look: str) -> Html:
    """Return how the line of a group and its marks look, or its area, for the legend."""
    shown = [element("path", d="M1 2H33V14H1z", class_=kind)]
    if kind == "line":
        dashes = [_dashes(path) for path in group.iterfind("{*}path") if _is_line(path)][:1]
        marks = [mark.get(_HREF) for mark in group.iterfind(".//{*}use")][:1]
        shown = [element("path", d="M1 8H33", class_="line", stroke_dasharray=dash) for dash in dashes]
        shown += [element("use", href=mark, x=17, y=8, class_="mark") for mark in marks]
    return element("svg", *shown, viewBox="0 0 34 16", width=34, height=16, aria_hidden="true", class_=look)


_HREF = "{http://www.w3.org/1999/xlink}href"


def _is_line(path: ElementTree.Element) -> bool:
    return "L" in path.get("d", "")


def _dashes(path: ElementTree.Element) -> str | None:
    dashes = re.search("stroke-dasharray: ([^;]+)", path.get("style", ""))
    return _rounded(dashes[1]) if dashes else None


def _text(text: ElementTree.Element) -> Html:
    (anchor,) = re.findall("text-anchor: ([a-z]+)", text.get("style", "")) or [None]
    at = {name: _rounded(text.get(name, "")) for name in ("x", "y")}
    return element("text", text.text or "", text_anchor=anchor, **at)


def _path(path: ElementTree.Element, *children: Html | None, **attributes: Any) -> Html:
    drawn = re.sub(r"\s*([A-Za-z])\s*", r"\1", _rounded(path.get("d", "")).strip())
    return element("path", *children, d=drawn, **attributes)


def _rounded(numbers: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), numbers)


HeadRow = Mapping[str, Any]

Place = tuple[int, int]  # layer and head


@dataclass(frozen=True)
class HeadMeasure:
    """Measure of heads: a row for each measured head, by layer and head.

    `help` defines it and its shading in a sentence. `text`, `shade` (from 0 to 1) and `value_text` (with the interval)
    take a row, as do `cells`, by heading.
    """

    label: str
    help: str
    rows: Mapping[Place, HeadRow]
    text: Callable[[HeadRow], str]
    shade: Callable[[HeadRow], float]
    value_text: Callable[[HeadRow], str]
    cells: Mapping[str, Callable[[HeadRow], str]] = field(default_factory=dict)


def head_measures(by_name: Tables) -> list[HeadMeasure]:
    """Return the measures of a survey, in the order of the page."""
    measures = [_classes(of_heads(by_name))]
    measures += [_share(name, about, of_measure(by_name["heads"], *which)) for name, about, which in _SHARES]
    measures.append(_relations(by_name["head_relations"]))
    return [measure for measure in measures if measure.rows]


def places(measures: Sequence[HeadMeasure]) -> list[Place]:
    """Return the layer and head of all measured heads, in order."""
    return sorted({place for measure in measures for place in measure.rows})


def values_of_head(measures: Sequence[HeadMeasure], place: Place) -> dict[str, str]:
    """Return all measures of a head, by name."""
    return {measure.label: measure.value_text(measure.rows[place]) for measure in measures if place in measure.rows}


def short(value: float) -> str:
    """Return a share with two decimals and without its zero, such as .47."""
    return two_decimals(value).replace("0.", ".", 1)


# Name, meaning, and the measure with the type of tokens that has it in `heads.csv`.
_SHARES = (
    (
        "entropy",
        "Entropy of a query's attention, 1 for uniform attention and 0 for attention to one token",
        ("entropy",),
    ),
    ("special tokens", "Share of the attention that goes to special tokens", ("mass", SPECIAL)),
    (
        "special tokens by norm",
        "Share of special tokens where weights are multiplied by the norms of what is read",
        ("norm_mass", SPECIAL),
    ),
    ("first token", "Share of the attention of later tokens that goes to the first one", ("mass", FIRST)),
    ("previous token", "Mean attention to the previous token", ("previous",)),
    ("next token", "Mean attention to the next token", ("next",)),
    ("token itself", "Mean attention to the token itself", ("self",)),
)


def _by_place(rows: Sequence[HeadRow]) -> dict[Place, HeadRow]:
    return {(row["layer"], row["head"]): row for row in rows}


def _classes(rows: Sequence[HeadRow]) -> HeadMeasure:
    classes = [name for name in CLASSES if any(row["class"] == name for row in rows)]
    legend = ", ".join(f"{LETTERS[name][0]} {name}" for name in classes)
    return HeadMeasure(
        "class",
        f"Class of most maps of the head, and how many per cent of its maps have it: {legend}",
        _by_place(rows),
        lambda row: f"{LETTERS[row['class']][0]} {100 * row['share']:.0f}",
        lambda row: LETTERS[row["class"]][1],
        lambda row: (
            f"{row['class']}, {row['share']:.0%} of its maps"
            + in_brackets(interval(row, between=" to ", form=".0f", times=100))
        ),
        {"class": lambda row: str(row["class"]), "of its maps": lambda row: f"{row['share']:.1%}"},
    )


def _share(name: str, about: str, rows: Sequence[HeadRow]) -> HeadMeasure:
    return HeadMeasure(
        name,
        about,
        _by_place(rows),
        lambda row: short(row["value"]),
        lambda row: float(row["value"]),
        lambda row: f"{row['value']:.3f}{in_brackets(interval(row, between=' to '))}",
        {name: lambda row: f"{row['value']:.3f}"},
    )


def _relations(rows: Sequence[HeadRow]) -> HeadMeasure:
    return HeadMeasure(
        "best relation",
        "Dependency relation that the head is best at, with its accuracy on test sentences; shaded where the head is "
        "more often right than the best fixed offset, by more than with permuted syntactic heads (corrected p below "
        ".05)",
        _by_place(rows),
        lambda row: f"{row['relation']}\n{short(row['test'])}",
        lambda row: float(row["test"]) if finds_relation(row) else 0.0,
        lambda row: (
            f"{row['relation']}, {row['test']:.3f}{in_brackets(interval(row, 'test', ' to '))}; "
            f"offset {row['offset']:+d}: {row['offset_test']:.3f}; p {row['p_value']:.2g}"
        ),
        {
            "best at": lambda row: str(row["relation"]),
            "accuracy": lambda row: f"{row['test']:.3f}",
            "95% range": lambda row: interval(row, "test", "–"),
            "best offset": lambda row: f"{row['offset']:+d}",
            "its accuracy": lambda row: f"{row['offset_test']:.3f}",
            "p": lambda row: f"{row['p_value']:.2g}",
        },
    )


# From this shade on, numbers are written in the colour of the page's background.
STRONG = 0.66


def head_map(measure: HeadMeasure, places: Sequence[Place], number: int, label: str, links: bool) -> Html:
    """Return the map of a measure, which the page's script replaces by others.

    `number` is the index of the survey on the page, `label` the name for readers who do not see the caption.
    """
    heads = sorted({head for _, head in places})
    rows = []
    for layer in sorted({layer for layer, _ in places}):
        cells = [_cell(measure, (layer, head), number, links) if (layer, head) in places else element("td")
                 for head in heads]  # fmt: skip
        rows.append(element("tr", element("th", layer, scope="row"), *cells))
    names: list[Child] = ["layer", f"head {heads[0]}", *heads[1:]]
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    table = element("table", head, element("tbody", *rows), class_="heads-map", aria_label=label)
    return element("div", table, class_="scroll")


def head_id(number: int, place: Place) -> str:
    """Return the identifier of the example sentences of a head."""
    return f"head-{number}-{place[0]}-{place[1]}"


def cell_of(measure: HeadMeasure, place: Place) -> tuple[str, float]:
    """Return the text and the shade of a head's cell."""
    row = measure.rows.get(place)
    return ("", 0.0) if row is None else (measure.text(row), round(min(max(measure.shade(row), 0.0), 1.0), 3))


def _cell(measure: HeadMeasure, place: Place, number: int, links: bool) -> Html:
    text, shade = cell_of(measure, place)
    inside = element("a", text, href=f"#{head_id(number, place)}") if links else element("span", text)
    return element("td", inside, style=f"--shade:{shade:g}", class_="on-strong" if shade > STRONG else None)
