"""Part of the page on a run: its neurons as a map, as a table, and class by class."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from probing.models import neuron_of, site_of, what_is_a_neuron
from probing.page.charts import RunView, Sources, panels_html
from probing.page.terms import (
    class_chart,
    class_data,
    first_rows,
    is_numeric,
    meaning_of_flag,
    neuron_map,
    packed_rows,
    scale,
    shaded_map,
)
from probing.results import (
    Child,
    Html,
    Row,
    as_in_terminal,
    count,
    element,
    ends,
    joined,
    layers_named,
    listed,
    shortened,
    shown_table,
    with_code,
)
from probing.runs import model_name
from probing.runs.folder import reading
from probing.runs.predictions import NeuronPage, pages_of_first
from probing.tables import (
    FAR,
    NEGLIGIBLE,
    R2,
    SPANS_IN_ORDER,
    UNRESOLVED,
    controls_of,
    has_intercept,
    neuron_name,
    score_of,
)
from probing.tables.conclusions import (
    Sentences,
    bases_lines,
    bases_table,
    beside_directions,
    layer_conclusions,
)
from probing.tables.figures import Chart, Line, Panel
from probing.tables.probe_figures import accuracy_chart, majority_lines
from probing.tables.probes import (
    accuracies_table,
    classes_table,
    confusion_shares,
    heads_table,
    run_sentences,
)
from probing.tables.schema import ACCURACY, CONTEXTS, NUMBERS

# --------------------------------------------------------------------------------------------------------------------
# The question of a run and its answer, in sentences made from its numbers.
# --------------------------------------------------------------------------------------------------------------------


def title(sources: Sources) -> str:
    """Return the title of a page, from its runs with probes, or else from its other results."""
    if not sources.views:
        return listed(list(dict.fromkeys(result.study.about(result) for result in sources.shown)))
    tasks = list(dict.fromkeys(view.task for view in sources.views))
    return f"{listed(tasks)} in {listed([view.label for view in sources.views])}"


def question(views: Sequence[RunView]) -> str:
    """Return the question of all runs, which names their models once, and how their probes were trained."""
    of_tasks: dict[str, dict[str, list[str]]] = {}
    for view in views:
        of_tasks.setdefault(view.task, {}).setdefault(layers_named(view.run.layers), []).append(_model(view))
    questions = [
        f"{task} be decoded from {listed([f'{layers} of {listed(models)}' for layers, models in of_layers.items()])}"
        for task, of_layers in of_tasks.items()
    ]
    trained: dict[str, list[str]] = {}
    for view in views:
        trained.setdefault(_training(view, len(views) == 1), []).append(view.label)
    parts = [f"{f'{listed(labels)}: ' * (len(trained) > 1)}{text}" for text, labels in trained.items()]
    return " ".join([f"Can {listed(questions)}, and which neurons carry the label?", *parts])


def _model(view: RunView) -> str:
    """Return the name of a run's model, and what is read of it."""
    config, name = view.run.config, model_name(view.run.config)
    if view.run.transform != "none":
        name += f", whose hidden states are transformed by {view.run.transform}"
    if not view.run.is_of_arrays and (site := site_of(config)) != "residual":
        name += f", where a neuron is a {neuron_of(site)}"
    return name


def _training(view: RunView, is_alone: bool) -> str:
    """Return the training and test examples of a run in a sentence; of a page's only run also their numbers."""
    config, results, first = view.run.config, view.run.results, view.run.accuracy[0]
    probe = f"In each layer, a linear probe {_with_or_without(view)} an intercept was trained "
    predicted = f"to predict {_predicted(first)} from " if is_alone else "on "
    train, test = (results["n_sentences"][side] for side in ("train", "test"))
    n_train, n_test = (first[f"n_{side}_tokens"] for side in ("train", "test"))
    if view.run.is_of_arrays:
        unit = results["intervals_over"]["unit"]
        of_groups = f" of {count(train, unit)}" if unit != "row" else ""
        others = f" of {count(test, f'other {unit}')}" if unit != "row" else " that it had not seen"
        rows = f"{count(n_train, 'row')}{of_groups} of arrays, and tested on {count(n_test, 'row')}{others}"
        return f"{probe}{predicted}{rows}."
    tested = f" of `{config['test_corpus']}`" if config.get("test_corpus") else ""
    # Where examples are sentences, results say how their tokens were pooled.
    of_train, of_test = (
        f"{count(n, 'token')} of " if is_alone and "pooling" not in results else "" for n in (n_train, n_test)
    )
    return (
        f"{probe}{predicted}{of_train}{count(train, 'sentence')} of the corpus `{config['corpus']}`, and tested on "
        f"{of_test}{count(test, 'other sentence')}{tested}."
    )


def _with_or_without(view: RunView) -> str:
    return "with" if has_intercept(view.run.config) else "without"


def _predicted(row: Row) -> str:
    return "a number" if score_of(row) is R2 else count(row["n_classes"], "class", "classes")


def answer(view: RunView) -> Sentences:
    """Return the answer of a run in short sentences, what to distrust, and details."""
    run = view.run
    return run_sentences(
        run.accuracy, run.neurons, run.class_scores, view.task, run.results, run.config, run.basis, run.transform
    )


# Measured numbers in a sentence, which are printed bold: those with a point or a percent sign.
_MEASURED = re.compile(r"(?<![\w.-])[-+]?\d[\d,]*(?:\.\d+%?|%)(?![\w.]*\w)")


def with_bold_numbers(sentence: str) -> Html:
    """Return a sentence with its measured numbers in bold."""
    parts: list[Child] = []
    end = 0
    for number in _MEASURED.finditer(sentence):
        parts += [with_code(sentence[end : number.start()]), element("strong", number[0])]
        end = number.end()
    return joined(*parts, with_code(sentence[end:]))


def answer_section(view: RunView) -> Html:
    """Return the answer, and below it what to distrust, and, folded, details."""
    answer_sentences, doubts, details = answer(view)
    shown = [element("p", Html(" ".join(map(with_bold_numbers, answer_sentences))), class_="answer")]
    if doubts:
        shown += [element("h4", "What to distrust"), element("ul", *(element("li", line) for line in doubts))]
    if details:
        lines = element("ul", *(element("li", line) for line in details))
        shown.append(element("details", element("summary", "Details"), lines))
    return joined(*shown)


def conclusions(view: RunView) -> list[str]:
    """Return the conclusion on the top neuron of each layer, and the dependence of its ranking on choices."""
    run = view.run
    return [
        " ".join(layer_conclusions(row, view.ranked[row["layer"]], view.task, run.results, run.config))
        for row in run.accuracy
    ]


# --------------------------------------------------------------------------------------------------------------------
# The classes of a run on a page: how well each is read in each layer, and a map of what each is taken for.
# --------------------------------------------------------------------------------------------------------------------

# Width of all classes together in pixels, unless cells would become too small or too large.
WIDE, LEAST, MOST = 420, 3, 22
# Pixels from one name of a class to the next.
APART = 18
# Most characters of the name of a class beside the map; the table has the whole name.
LONGEST = 14
# Most classes in the table of a layer.
IN_TABLE = 60


def classes_of(view: RunView) -> list[Html]:
    """Return the classes of each layer, open for the leading layer; nothing for a run without their scores."""
    scores, confusions = view.run.class_scores, view.run.confusions
    parts, are_names = [], bool(view.run.scores_of(view.leading))
    for layer in view.run.layers if scores and confusions else ():
        layer_rows = [rows.where(layer=layer) for rows in (scores, confusions)]
        table = [as_in_terminal(classes_table(layer_rows[0], IN_TABLE))] if are_names else []
        summary = element("summary", f"Layer {layer}: what the probe takes each class for")
        parts.append(element("details", summary, *table, _class_map(view, *layer_rows), open=layer == view.leading))
    return parts


def _class_map(view: RunView, scores: Sequence[Row], confusions: Sequence[Row]) -> Html:
    labels = [row["class"] for row in scores]
    cell = max(LEAST, min(MOST, WIDE // len(labels)))
    every = -(-APART // cell) if not is_numeric(labels) else -(-2 * APART // cell)
    what = "share of each class that is taken for each class"
    about = f"{view.label}, layer {scores[0]['layer']}: {what}"
    ticks = {i: shortened(label, LONGEST) for i, label in enumerate(labels) if i % every == 0}
    names = [ticks.get(i, "") for i in range(len(labels))]
    shown = shaded_map(confusion_shares(scores, confusions), (cell, cell), names, ticks, about, "map confusions")
    caption = "Rows: the class. Columns: what it is taken for. Shades: shares of the class in the test part."
    return element("figure", element("figcaption", caption), shown)


# --------------------------------------------------------------------------------------------------------------------
# The first neurons of a run on a page, one by one: their tokens in context, means by position, weights and ranks.
# --------------------------------------------------------------------------------------------------------------------

ENDS = "highest", "lowest"
# Size of a chart, room around it, and the most positions and ranks that it has.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, MOST_POSITIONS, MOST_RANKS = 640, 150, 58, 8, 10, 22, 128, 120


def neuron_pages(view: RunView, anchor: str, room: int) -> Html | None:
    """Return the pages of the first neurons of each layer; nothing for a run without text.

    `anchor` links the section and, with layer and index, its neurons. `room` is the number of characters for more than
    tokens, which the neurons of the first ranks use.
    """
    with reading(view.run.folder):  # an error means that its tables are damaged
        of_layers = {layer: list(pages) for layer, pages in groupby(pages_of_first(view.run), lambda page: page.layer)}
        if not of_layers:
            return None
        most = _most(list(of_layers.values()), room)
        parts = [_layer(layer, pages, most, anchor, layer == view.leading) for layer, pages in of_layers.items()]
    about = "The first neurons of each layer, one by one: test tokens, mean by position, weights, and ranks elsewhere."
    on_paper = element("p", f"On paper these are of layer {view.leading} only.", class_="on-paper")
    return element("details", element("summary", about), on_paper, *parts, class_="contexts")


def _layer(layer: int, pages: Sequence[NeuronPage], most: int, anchor: str, is_leading: bool) -> Html:
    blocks = [
        element(
            "details", element("summary", f"Neuron {page.name}"),
            neuron_block(page) if at < most else _tokens(page),
            class_="neuron-page", id=f"{anchor}-{int(layer)}-{page.neuron}",
        )
        for at, page in enumerate(pages)
    ]  # fmt: skip
    return element(
        "details", element("summary", f"Layer {layer}"), *blocks, class_=None if is_leading else "not-on-paper"
    )


def _most(of_layers: Sequence[Sequence[NeuronPage]], room: int) -> int:
    """Return how many of each layer's neurons have more than tokens, so that these fit into the room."""
    for most in range(max(map(len, of_layers))):
        room -= sum(len(neuron_block(pages[most])) for pages in of_layers if most < len(pages))
        if room < 0:
            return most
    return max(map(len, of_layers))


def neuron_block(page: NeuronPage) -> Html:
    """Return a neuron's page: sentences, tokens, means by position, and weights by class."""
    positions = page.positions
    parts = [
        element("figure", element("figcaption", _about(positions)), position_chart(positions)) if positions else None,
        element("figure", element("figcaption", (shown := page.classes_table()).title), as_in_terminal(shown)),
    ]
    sentences = (element("p", sentence) for sentence in page.sentences())
    return joined(*sentences, _tokens(page), element("div", *parts, class_="beside"))


def _about(positions: Sequence[Row]) -> str:
    about = "Mean activation over test tokens, by position"
    if any(ends(row, "value") for row in positions):
        about += ", with 95% intervals over sentences or documents"
    return f"{about}; the first {MOST_POSITIONS} positions" if len(positions) > MOST_POSITIONS else about


def _tokens(page: NeuronPage) -> Html:
    cells = [element("td", *(_token(row) for row in page if row["end"] == end)) for end in ENDS]
    heads = [element("th", f"{end} on", scope="col") for end in ENDS]
    return element("table", element("thead", element("tr", *heads)), element("tr", *cells), class_="ends")


def _token(row: Row) -> Html:
    label = str(row["class"]) if "class" in row else CONTEXTS["number"].show(row)
    about = f" {label}, {CONTEXTS['activation'].show(row)}"
    return element(
        "p", row["before"], element("mark", row["token"] or "(special)"), row["after"], element("small", about)
    )


def position_chart(positions: Sequence[Row]) -> Html:
    """Return the means at positions, from `profiles.csv`, as a line, and their intervals as a band."""
    line = Line.of(positions[:MOST_POSITIONS], "value", "", x="index")
    return band_chart(line, [line.at[0], line.at[-1]], "position", "mean activation")


def directions_chart(rows: Sequence[Row]) -> Html:
    """Return contributions of a layer's neurons by rank as a line, and of directions of the same rank as a band."""
    at = np.unique(np.geomspace(1, len(rows), MOST_RANKS).round().astype(int)).tolist()
    decades = [10**i for i in range(len(str(len(rows) // 2)))]
    shown = [rows[rank - 1] for rank in at]
    bands = [(row["direction_lowest"], row["direction_highest"]) for row in shown]
    line = Line("neurons", at, [row["contribution"] for row in shown], bands)
    rings = [i for i, row in enumerate(shown) if row.get("above_directions") == "yes"]
    return band_chart(line, [*decades, len(rows)], "rank", "contribution", math.log, rings)


def band_chart(
    line: Line, ticks: Sequence[int], across: str, up: str, place: Callable[[int], float] = float,
    rings: Sequence[int] = (),
) -> Html:  # fmt: skip
    """Return a line with its intervals as a band; `rings` are the indices of marked points.

    `ticks` are labelled, ascending, from the first to the last; `place` gives positions on the x axis, in any unit.
    """
    low, high = min(line.extent), max(line.extent)
    reach = (high - low) or abs(high) or 1.0
    start, end = place(line.at[0]), place(line.at[-1])

    def x(at: int) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (place(at) - start) / ((end - start) or 1):.4g}"

    def y(value: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / reach:.4g}"

    points = [(x(at), y(value)) for at, value in zip(line.at, line.values, strict=True)]
    band_points = [(x(at), *map(y, pair)) for at, pair in zip(line.at, line.ranges, strict=True) if pair]
    band = [f"{at} {top}" for at, _, top in band_points] + [f"{at} {bottom}" for at, bottom, _ in reversed(band_points)]
    levels = [(value, y(value)) for value in dict.fromkeys([high, low, *([0.0] if low < 0 < high else [])])]
    # The number of 0 is left out where that of the highest or the lowest value stands.
    is_apart = min(high, -low) * (HEIGHT - TOP - BOTTOM) > 14 * reach
    numbers = [(value, at) for value, at in levels if value in (high, low) or is_apart]
    anchors = {ticks[-1]: "end", ticks[0]: "start"}
    return element(
        "svg",
        *(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid") for _, at in levels),
        *(
            element("text", f"{value:.3g}", x=LEFT - 6, y=at, dy=4, text_anchor="end", font_size=12)
            for value, at in numbers
        ),
        element("path", d=f"M{'L'.join(band)}z", fill="currentColor", fill_opacity=0.2) if band else None,
        element(
            "path", d="M" + "L".join(map(" ".join, points)),
            fill="none", stroke="currentColor", stroke_width=1.5,
        ),
        *(element("circle", cx=points[i][0], cy=points[i][1], r=3, class_="ring") for i in rings),
        *(
            element("text", f"{across} {at}" if at == ticks[0] else at, x=x(at), y=HEIGHT - 5,
                    text_anchor=anchors.get(at, "middle"), font_size=12)
            for at in dict.fromkeys(ticks)
        ),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, role="img", class_=f"chart by-{across}",
        aria_label=f"{up} by {across}, {low:.3g} to {high:.3g}",
    )  # fmt: skip


def accuracy_table(view: RunView, caption: str) -> Html:
    """Return a run's accuracy by layer with its controls; for numbers, R²."""
    rows, score = view.run.accuracy, view.score
    controls = [f"{name}_{score.name}" for name in controls_of(rows)]
    others = _OF_NUMBERS if score is R2 else _OF_CLASSES
    names = ["layer", f"{score.name}*", *controls, *(name for name in others if name in rows[0])]
    return as_in_terminal(shown_table(NUMBERS if score is R2 else ACCURACY, rows, caption, names), caption)


# Columns of the table of accuracies behind the controls.
_OF_CLASSES = (
    "within_one", "mean_absolute_error", "selectivity", "compression", "cross_entropy", "prior_cross_entropy",
    "train_cross_entropy", "optimality_gap",
)  # fmt: skip
_OF_NUMBERS = (
    "train_r2", "mean_absolute_error", "root_mean_squared_error", "constant_root_mean_squared_error",
    "relative_gradient",
)  # fmt: skip


def accuracy_figure(view: RunView, beside_others: bool) -> Html:
    """Return a run's accuracy by layer, drawn and as numbers.

    With `beside_others`, a chart of several runs has it too, which suffices if the majority class is the only control.
    """
    title = f"{view.label}: test {view.score.words} of a linear probe of {view.task} by layer"
    numbers = element("details", element("summary", f"The numbers of {view.label}"), accuracy_table(view, title))
    if beside_others and {*controls_of(view.run.accuracy)} <= {"majority"}:
        return numbers
    if len(view.run.layers) == 1:
        return element("figure", accuracy_table(view, title))
    chart = accuracy_chart(view.run.accuracy, view.task)
    return element("figure", element("figcaption", title), *panels_html(chart, [title]), numbers)


def neurons_section(view: RunView, number: int, room: int, room_of_each: int) -> Html:
    """Return the neurons of the run with this index on the page.

    `room` is the number of characters for contributions by class and single neurons, `room_of_each` the latter's share.
    """
    by_neuron, directions = neuron_pages(view, f"neurons-{number}", room_of_each), _directions(view)
    classes = class_data(view, max(0, room - len(f"{by_neuron or ''}{directions}")))
    data = {
        "task": view.task, "layers": view.run.layers, "leading": view.leading,
        "layerNames": [*map(str, view.run.layers)],
        "width": view.d_model, "classes": view.classes,
        "flags": {flag: meaning_of_flag(flag) for flag in _flags(view)}, "far": FAR, "unresolved": UNRESOLVED,
        "negligible": NEGLIGIBLE, "byClass": classes, **packed_rows(view),
    }  # fmt: skip
    return element(
        "section",
        element("h2", f"Neurons of {view.label}"),
        _map(view),
        directions,
        _listing(view),
        _detail(view, classes["per_layer"]),
        element(
            "details",
            element("summary", "Conclusion on each layer's first neuron"),
            element("ul", *(element("li", sentence) for sentence in conclusions(view))),
        ),
        by_neuron,
        element("script", script_data(data), type="application/json"),
        class_="neurons-of",
        id=f"neurons-{number}",
    )


def heads_of(view: RunView) -> list[Html]:
    """Return the heads of each layer, open for the leading layer; nothing if neurons belong to no head."""
    parts = []
    for layer in view.run.layers if view.run.heads else ():
        shown = heads_table(view.run.heads.where(layer=layer))
        summary = element("summary", str(shown.title))
        parts.append(element("details", summary, as_in_terminal(shown), open=layer == view.leading))
    return parts


def bases_of(view: RunView) -> list[Html]:
    """Return the comparison of features with other units of each layer; nothing if neurons are no features."""
    if not (rows := view.run.bases):
        return []
    shown = [bases_table(rows.where(layer=layer)) for layer in view.run.layers]
    return [*(element("p", line) for line in bases_lines(rows, view.task)), *map(as_in_terminal, shown)]


def script_data(data: Any) -> Html:
    """Return data as JSON that cannot end its element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _map(view: RunView) -> Html:
    about = f"{view.label}: contribution of each neuron, layers downwards, neurons from left to right"
    return element(
        "figure",
        element(
            "figcaption",
            f"Contribution of each neuron, by layer; {what_is_a_neuron(site_of(view.run.config))}",
            SPANS_IN_ORDER * ("span" in view.ranked[view.leading][0]),
        ),
        neuron_map(view, about),
        scale(),
        element("p", class_="readout", hidden=True),
    )


def _directions(view: RunView) -> Html:
    live = {layer: directions for layer, rows in view.ranked.items() if (directions := beside_directions(rows))}
    panels = [_panel(layer, live[layer]) for layer in sorted(live, key=lambda layer: layer != view.leading)]
    others = element("div", *panels[1:], class_="panels")
    more = element("details", element("summary", "Other layers"), others) if panels[1:] else None
    return joined(*panels[:1], more)


def _panel(layer: int, rows: Sequence[Row]) -> Html:
    n = sum(row.get("above_directions") == "yes" for row in rows)
    about = f"Layer {layer}: contributions by rank, of neurons (line) and of random directions (band); "
    above = f"{n or 'no'} neuron{'s are' if n > 1 else ' is'} above the largest direction"
    return element("figure", element("figcaption", about + above), directions_chart(rows))


def _listing(view: RunView) -> Html:
    what = what_is_a_neuron(site_of(view.run.config))
    caption = f"First neurons of layer {view.leading}, by contribution; {what}"
    return element(
        "div",
        _filters(view),
        element("div", first_rows(view, caption), class_="scroll"),
        element("p", element("button", "Show more", type="button", class_="more"), hidden=True),
    )


def _detail(view: RunView, per_layer: int) -> Html:
    """Return the details of a neuron: the leading layer's first, until the script shows the picked neuron."""
    layer = view.leading
    top, by_class = view.ranked[layer][0], view.by_class[view.run.layers.index(layer)]
    of_numbers = view.score is R2
    by = "" if of_numbers else f", by {view.task}"
    about = f"Mean contribution to {view.score.contribution}{by}; the line is the layer's mean."
    if per_layer < view.d_model:
        about += f" This page has it for the first {per_layer} neurons of each layer."
    typical = by_class.mean(1).tolist()
    return element(
        "div",
        element("h3", f"Layer {layer}, neuron {neuron_name(top)}", class_="picked", tabindex="-1"),
        element("p", meaning_of_flag(top["flag"]), class_="flagged", hidden=not top["flag"]),
        element("dl", class_="facts", hidden=True),
        element(
            "p",
            element("a", "Its tokens, positions, weights and correlations", href="#terms"),
            class_="to-page",
            hidden=True,
        ),
        element(
            "figure",
            element("figcaption", about),
            class_chart(by_class[:, top["neuron"]].tolist(), typical, view.classes, view.task),
            element("p", class_="readout", hidden=True),
        ),
        class_="detail",
    )


def _flags(view: RunView) -> list[str]:
    flags = Counter(row["flag"] for row in view.run.neurons if row["flag"])
    return [flag for flag, _ in flags.most_common()]


def _filters(view: RunView) -> Html:
    layers = [element("option", layer, value=int(layer), selected=layer == view.leading) for layer in view.run.layers]
    flags = [("any or none", ""), ("no flag", "none"), *((name, name) for name in _flags(view))]
    chosen = element("select", *(element("option", text, value=value) for text, value in flags), class_="by-flag")
    number_field = element("input", class_="by-neuron", inputmode="numeric", pattern="[0-9]*", size="6")
    return element(
        "form",
        element("label", "Layer ", element("select", element("option", "all", value=""), *layers, class_="by-layer")),
        element("label", "Flag ", chosen),
        element("label", "Neuron ", number_field),
        element("span", role="status"),
        class_="filters",
        hidden=True,
    )


def accuracies_figure(views: Sequence[RunView]) -> Html:
    """Return the accuracies of several runs in a single chart."""
    tasks = listed(list(dict.fromkeys(view.task for view in views)))
    accuracies = {view.label: view.run.accuracy for view in views}
    lines = [Line.of(view.run.accuracy, view.score.name, view.label) for view in views]
    lines += majority_lines(accuracies)
    scores = " and ".join(dict.fromkeys(view.score.words for view in views))
    title = f"Test {scores} of linear probes of {tasks} by layer"
    title += ", with 95% intervals" * any(any(line.ranges) for line in lines)
    chart = Chart("accuracies", title, [Panel(lines)], limits=(0, 1))
    numbers = accuracies_table(accuracies)
    drawn = panels_html(chart, [title]) if any(len(view.run.layers) > 1 for view in views) else []
    return element("figure", element("figcaption", title), *drawn, as_in_terminal(numbers, numbers.caption))
