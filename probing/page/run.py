"""The part of the page on one run: its neurons as a map, as a table, and class by class."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from probing.models.layers import site_of, what_is_a_neuron
from probing.page.answers import conclusions
from probing.page.lines import Line, line_chart
from probing.page.neuron_blocks import directions_chart, neurons_one_by_one
from probing.page.neurons import class_chart, class_data, first_rows, neuron_map, packed_rows, scale
from probing.page.sources import Subject
from probing.page.terms import meaning_of_flag
from probing.results.markup import Html, as_in_terminal, element, joined, table
from probing.results.schema import Row
from probing.results.shown import ends, interval, listed
from probing.tables.bases import bases_lines, bases_table, beside_directions
from probing.tables.columns import FAR, NEGLIGIBLE, R2, UNRESOLVED, controls_of
from probing.tables.probes import heads_table
from probing.tasks import task_in_words


def accuracy_table(subject: Subject, caption: str) -> Html:
    """Return a run's accuracy by layer with its controls; of numbers, R²."""
    if subject.score is R2:
        return _r2_table(subject, caption)
    rows, controls = subject.run.accuracy, controls_of(subject.run.accuracy)
    optional = {"within 1": ("within_one", ".3f"), "error": ("mean_absolute_error", ".2f"),
                "selectivity": ("selectivity", ".3f"), "compression": ("compression", ".1f")}  # fmt: skip
    shown = {heading: how for heading, how in optional.items() if how[0] in rows[0]}
    beside = {"constant": "prior_cross_entropy", "training": "train_cross_entropy"}
    nats = {heading: column for heading, column in beside.items() if column in rows[0]}
    head = ["layer", "accuracy", "95% range", *controls.values(), *shown, "nats", *nats, "gap"]
    body = [
        [
            row["layer"],
            f"{row['accuracy']:.3f}",
            interval(row, "accuracy", "–"),
            *(f"{row[f'{name}_accuracy']:.3f}" for name in controls),
            *(format(row[column], form) for column, form in shown.values()),
            f"{row['cross_entropy']:.3f}",
            *(f"{row[column]:.3f}" for column in nats.values()),
            f"{row['optimality_gap']:.1e}",
        ]
        for row in rows
    ]
    return table(head, body, caption)


def _r2_table(subject: Subject, caption: str) -> Html:
    rows, controls = subject.run.accuracy, controls_of(subject.run.accuracy)
    head = ["layer", "R²", "95% range", *controls.values(), "in training", "error", "rms error", "constant", "gradient"]
    body = [
        [
            row["layer"],
            f"{row['r2']:.3f}",
            interval(row, "r2", "–"),
            *(f"{row[f'{name}_r2']:.3f}" for name in controls),
            f"{row['train_r2']:.3f}",
            f"{row['mean_absolute_error']:.3g}",
            f"{row['root_mean_squared_error']:.3g}",
            f"{row['constant_root_mean_squared_error']:.3g}",
            f"{row['relative_gradient']:.1e}",
        ]
        for row in rows
    ]
    return table(head, body, caption)


def accuracy_lines(subject: Subject) -> list[Line]:
    """Return the lines of a run's accuracy with its intervals, and of each control."""
    rows, layers = subject.run.accuracy, subject.layers
    score = subject.score.name
    ranges = [ends(row, score) for row in rows]
    label = "probe" + ", 95% interval" * any(ranges)
    probe = Line(label, layers, [row[score] for row in rows], ranges)
    controls = controls_of(rows).items()
    return [probe, *(Line(words, layers, [row[f"{name}_{score}"] for row in rows]) for name, words in controls)]


def accuracy_figure(subject: Subject, beside_others: bool) -> Html:
    """Return a run's accuracy by layer, drawn and as numbers.

    Args:
        subject: The run.
        beside_others: Whether it is also drawn in one chart with other runs, which is enough if the majority class is
            its only control.
    """
    title = f"{subject.label}: test {subject.score.words} of a linear probe of {subject.task} by layer"
    numbers = element("details", element("summary", f"The numbers of {subject.label}"), accuracy_table(subject, title))
    if beside_others and {*controls_of(subject.run.accuracy)} <= {"majority"}:
        return numbers
    return element("figure", element("figcaption", title), line_chart(accuracy_lines(subject), title), numbers)


def neurons_section(subject: Subject, number: int, room: int, room_of_each: int) -> Html:
    """Return the neurons of a run.

    Args:
        subject: The run.
        number: Index of the run on the page, from 0.
        room: Number of characters that the page has for contributions by class and for single neurons.
        room_of_each: How many of these are for single neurons.
    """
    one_by_one, directions = neurons_one_by_one(subject, f"neurons-{number}", room_of_each), _directions(subject)
    classes = class_data(subject, max(0, room - len(f"{one_by_one or ''}{directions}")))
    data = {
        "task": subject.task, "layers": subject.layers, "leading": subject.leading,
        "layerNames": [*map(str, subject.layers)],
        "width": subject.d_model, "classes": subject.classes,
        "flags": {flag: meaning_of_flag(flag) for flag in _flags(subject)}, "far": FAR, "unresolved": UNRESOLVED,
        "negligible": NEGLIGIBLE, "byClass": classes, **packed_rows(subject),
    }  # fmt: skip
    return element(
        "section",
        element("h2", f"Neurons of {subject.label}"),
        _map(subject),
        directions,
        _listing(subject),
        _detail(subject, classes["per_layer"]),
        element(
            "details",
            element("summary", "Conclusion on each layer's first neuron"),
            element("ul", *(element("li", sentence) for sentence in conclusions(subject))),
        ),
        one_by_one,
        element("script", script_data(data), type="application/json"),
        class_="neurons-of",
        id=f"neurons-{number}",
    )


def heads_section(subject: Subject, number: int) -> Html | None:
    """Return the heads of each layer, those of the leading one open; nothing where the neurons belong to no head.

    Args:
        subject: The run.
        number: Index of the run on the page, from 0.
    """
    rows = subject.run.heads
    if not rows:
        return None
    parts = []
    for layer in subject.layers:
        shown = heads_table([row for row in rows if row["layer"] == layer])
        summary = element("summary", str(shown.title))
        parts.append(element("details", summary, as_in_terminal(shown), open=layer == subject.leading))
    return element("section", element("h2", f"Heads of {subject.label}"), *parts, id=f"heads-{number}")


def bases_section(subject: Subject, number: int) -> Html | None:
    """Return how features compare with other units of each layer; nothing where neurons are no features.

    Args:
        subject: The run.
        number: Index of the run on the page, from 0.
    """
    if not (rows := subject.run.bases):
        return None
    shown = [bases_table([row for row in rows if row["layer"] == layer]) for layer in subject.layers]
    said = [element("p", line) for line in bases_lines(rows, task_in_words(subject.run.config))]
    heading = element("h2", f"Bases of {subject.label}")
    return element("section", heading, *said, *map(as_in_terminal, shown), id=f"bases-{number}")


def script_data(data: Any) -> Html:
    """Return data as JSON that cannot end the element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _map(subject: Subject) -> Html:
    about = f"{subject.label}: contribution of each neuron, layers downwards, neurons from left to right"
    return element(
        "figure",
        element(
            "figcaption", f"Contribution of each neuron, by layer; {what_is_a_neuron(site_of(subject.run.config))}"
        ),
        neuron_map(subject, about),
        scale(),
        element("p", class_="readout", hidden=True),
    )


def _directions(subject: Subject) -> Html:
    """Return the sorted contributions of each layer's neurons over those of directions, the leading layer's first."""
    live = {layer: found for layer, rows in subject.ranked.items() if (found := beside_directions(rows))}
    panels = [_panel(layer, live[layer]) for layer in sorted(live, key=lambda layer: layer != subject.leading)]
    others = element("div", *panels[1:], class_="panels")
    more = element("details", element("summary", "Other layers"), others) if panels[1:] else None
    return joined(*panels[:1], more)


def _panel(layer: int, rows: Sequence[Row]) -> Html:
    n = sum(row.get("above_directions") == "yes" for row in rows)
    about = f"Layer {layer}: contributions by rank, of neurons (line) and of random directions (band); "
    above = f"{n or 'no'} neuron{'s are' if n > 1 else ' is'} above the largest direction"
    return element("figure", element("figcaption", about + above), directions_chart(rows))


def _listing(subject: Subject) -> Html:
    what = what_is_a_neuron(site_of(subject.run.config))
    caption = f"First neurons of layer {subject.leading}, by contribution; {what}"
    return element(
        "div",
        _filters(subject),
        element("div", first_rows(subject, caption), class_="scroll"),
        element("p", element("button", "Show more", type="button", class_="more"), hidden=True),
    )


def _detail(subject: Subject, per_layer: int) -> Html:
    """Return the details of one neuron: the leading layer's first, until the script shows the picked one."""
    layer = subject.leading
    top, by_class = subject.ranked[layer][0], subject.by_class[subject.layers.index(layer)]
    of_numbers = subject.score is R2
    by = "" if of_numbers else f", by {subject.task}"
    about = f"Mean contribution to {subject.score.contribution}{by}; the line is the layer's mean."
    if per_layer < subject.d_model:
        about += f" This page has it for the first {per_layer} neurons of each layer."
    typical = by_class.mean(1).tolist()
    return element(
        "div",
        element("h3", f"Layer {layer}, neuron {top['neuron']}", class_="picked", tabindex="-1"),
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
            class_chart(by_class[:, top["neuron"]].tolist(), typical, subject.classes, subject.task),
            element("p", class_="readout", hidden=True),
        ),
        class_="detail",
    )


def _flags(subject: Subject) -> list[str]:
    """Return the flags that neurons of a run have, the most frequent first."""
    flags = Counter(row["flag"] for row in subject.run.neurons if row["flag"])
    return [flag for flag, _ in flags.most_common()]


def _filters(subject: Subject) -> Html:
    layers = [element("option", layer, value=int(layer), selected=layer == subject.leading) for layer in subject.layers]
    flags = [("any or none", ""), ("no flag", "none"), *((name, name) for name in _flags(subject))]
    chosen = element("select", *(element("option", text, value=value) for text, value in flags), class_="by-flag")
    typed = element("input", class_="by-neuron", inputmode="numeric", pattern="[0-9]*", size="6")
    return element(
        "form",
        element("label", "Layer ", element("select", element("option", "all", value=""), *layers, class_="by-layer")),
        element("label", "Flag ", chosen),
        element("label", "Neuron ", typed),
        element("span", role="status"),
        class_="filters",
        hidden=True,
    )


def accuracies_figure(subjects: Sequence[Subject]) -> Html:
    """Return the accuracies of several runs in one chart."""
    tasks = listed(list(dict.fromkeys(subject.task for subject in subjects)))
    lines = [
        Line(
            subject.label,
            subject.layers,
            [row[subject.score.name] for row in subject.run.accuracy],
            [ends(row, subject.score.name) for row in subject.run.accuracy],
        )
        for subject in subjects
    ]
    scores = " and ".join(dict.fromkeys(subject.score.words for subject in subjects))
    title = f"Test {scores} of linear probes of {tasks} by layer"
    title += ", with 95% intervals" * any(any(line.ranges) for line in lines)
    return element("figure", element("figcaption", title), line_chart(lines, title))
