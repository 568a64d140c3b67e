"""Neurons of a run on a page, and the terms: the meaning of every heading and of every name in a chart."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probing.data import ADDED_CONTROLS, CONTROLS
from probing.page.charts import RunView
from probing.results import Column, Html, Row, element, pairs, shortened
from probing.runs import Terms
from probing.tables import FAR, NEGLIGIBLE, NEGLIGIBLE_NATS, UNINFORMATIVE, UNRESOLVED, is_far, neuron_name
from probing.tables.conclusions import beside_directions
from probing.tables.probes import SHOWN
from probing.tables.schema import CLASS_SCORES, NEURON_CLASSES, NEURONS, NUMBER_NEURONS, SPANS

# Bytes of text for each byte of an array.
BASE64 = 4 / 3


def pack_integers(values: ArrayLike) -> dict[str, Any]:
    """Return numbers from 0 to 65535 as base64 of little-endian uint16; raise ValueError if out of range."""
    array = np.asarray(values)
    if array.size and (array.min() < 0 or array.max() > 0xFFFF):
        raise ValueError(f"numbers from 0 to 65535 were expected, not {array.min()} to {array.max()}")
    return {"kind": "integer", "data": _text(array.astype("<u2"))}


def pack_floats(values: ArrayLike) -> dict[str, Any]:
    """Return numbers as base64 of little-endian float32 (seven digits); infinities become NaN."""
    return {"kind": "single", "data": _text(_finite(values).astype("<f4"))}


def pack_halves(values: ArrayLike) -> dict[str, Any]:
    """Return numbers as base64 of little-endian float16 (three digits), with the power of two to multiply them by.

    Division by it brings the largest magnitude to between 1/2 and 1, so that no number overflows; numbers below 6e-8 of
    the largest become 0. Infinities become NaN.
    """
    array = _finite(values)
    largest = float(np.nanmax(np.abs(array), initial=0.0))
    scale = 2.0 ** int(np.frexp(largest)[1]) if largest else 1.0
    return {"kind": "half", "scale": scale, "data": _text((array / scale).astype("<f2"))}


def shades(values: ArrayLike) -> str:
    """Return opacities from 0 to 1, shape (height, width), as a data URL of a PNG."""
    alpha = np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64)), 0, 1)
    pixels = np.zeros((*alpha.shape, 2), dtype=np.uint8)
    pixels[..., 1] = np.round(alpha * 255)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    height, width = alpha.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 4, 0, 0, 0)  # 8 bits of grey and 8 of opacity
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)


def _text(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


WIDTH, BARS_HIGH = 720, 230

LEFT, RIGHT, TOP = 58, 8, 14

# Room for the labels of classes, which are turned upright if they are words.
BOTTOM_OF_NUMBERS, BOTTOM_OF_WORDS = 40, 84

MOST_LABELS = 40


def class_chart(values: Sequence[float], typical: Sequence[float], classes: Sequence[int | str], task: str) -> Html:
    """Return a bar per class, in logit units, and a line for the average contribution of the layer's neurons."""
    bottom = BARS_HIGH - (BOTTOM_OF_NUMBERS if is_numeric(classes) else BOTTOM_OF_WORDS)
    # The coordinates that the script needs to draw another neuron.
    frame = {"data_left": LEFT, "data_width": WIDTH - LEFT - RIGHT, "data_top": TOP, "data_height": bottom - TOP}
    top = max([*values, *typical, 0.0]) or 1.0
    ticks = [
        element("text", f"{top * share:.2g}", x=LEFT - 7, y=bottom - share * (bottom - TOP) + 4, text_anchor="end",
                class_="level", data_share=share)
        for share in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    grid = [
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level, class_="grid")
        for level in (bottom - share * (bottom - TOP) for share in (0.0, 0.5, 1.0))
    ]
    return element(
        "svg", *grid, *ticks,
        element("path", d=_bars(values, top, bottom), class_="bars"),
        element("path", d=_steps(typical, top, bottom), class_="typical"),
        *_names(classes, bottom),
        element("text", task, x=(LEFT + WIDTH - RIGHT) / 2, y=BARS_HIGH - 4, text_anchor="middle"),
        viewBox=f"0 0 {WIDTH} {BARS_HIGH}", role="img", aria_label=f"contribution by {task}", class_="chart by-class",
        **frame,
    )  # fmt: skip


def is_numeric(classes: Sequence[int | str]) -> bool:
    """Return whether classes are numbers, such as positions."""
    return all(isinstance(label, int) for label in classes)


def _names(classes: Sequence[int | str], bottom: float) -> list[Html]:
    step = (WIDTH - LEFT - RIGHT) / len(classes)
    numeric = is_numeric(classes)
    every = -(-len(classes) // (20 if numeric else MOST_LABELS))
    names = []
    for i, label in list(enumerate(classes))[::every]:
        x = LEFT + (i + 0.5) * step
        if numeric:
            names.append(element("text", label, x=f"{x:.1f}", y=bottom + 16, text_anchor="middle"))
        else:
            turned = f"translate({x + 4:.1f} {bottom + 8:.1f}) rotate(-60)"
            names.append(element("text", shortened(label, 10), transform=turned, text_anchor="end"))
    return names


def _bars(values: Sequence[float], top: float, bottom: float) -> str:
    step = (WIDTH - LEFT - RIGHT) / len(values)
    tall = (bottom - TOP) / top
    return "".join(
        f"M{LEFT + (i + 0.1) * step:.1f} {bottom}v{-max(value, 0) * tall:.1f}h{0.8 * step:.1f}V{bottom}z"
        for i, value in enumerate(values)
    )


def _steps(values: Sequence[float], top: float, bottom: float) -> str:
    step = (WIDTH - LEFT - RIGHT) / len(values)
    return "".join(
        f"M{LEFT + i * step:.1f} {bottom - max(value, 0) / top * (bottom - TOP):.1f}h{step:.1f}"
        for i, value in enumerate(values)
    )


def class_data(view: RunView, room: int) -> dict[str, Any]:
    """Return contributions by class for the script, in at most `room` characters.

    `values` are packed by layer, rank and class for the first `per_layer` ranks; `typical`, the mean over all neurons,
    by layer and class.
    """
    n_layers, n_classes, d_model = view.by_class.shape
    per_layer = int(min(d_model, max(1, room // (n_layers * n_classes * 2 * BASE64))))
    first = [[row["neuron"] for row in rows[:per_layer]] for rows in view.ranked.values()]
    values = np.stack([view.by_class[i][:, neurons].T for i, neurons in enumerate(first)])
    return {"per_layer": per_layer, "values": pack_halves(values), "typical": pack_halves(view.by_class.mean(2))}


# Number of rows that the page has without its script.
FIRST = 10

# Columns of ablation effects, of classes and of numbers.
WITHOUT = ("cross_entropy_without", "r2_without")


def cell(column: Column, row: Row) -> str:
    """Return a row's value in a column as text."""
    if column.name == "neuron":
        return neuron_name(row)
    if column.name == "rank_low":
        return f"{row['rank_low']}–{row['rank_high']}"
    if row.get(column.name) in (None, ""):
        return ""
    if column.name in WITHOUT:
        verdict = row.get("removed") or ""  # a damaged file may lack it
        if note := next((text for text in (UNRESOLVED, NEGLIGIBLE) if text in verdict), None):
            return note
    star = "*" if column.name == "contribution_centred" and is_far(row) else ""
    return star + column.show(row)


def described(column: Column) -> dict[str, Any]:
    """Return the heading, meaning and format of a column, for the script."""
    digits = re.search(r"\.(\d+)", column.form)
    return {
        "key": column.name, "label": column.words, "help": column.meaning, "digits": int(digits[1]) if digits else 0,
        "percent": column.form.endswith("%"), "signed": column.form.startswith("+"),
    }  # fmt: skip


_SHOWN = (
    "layer", "rank", "rank_low", "neuron", "feature", "head", "contribution", "ratio", "share",
    "contribution_centred", "contribution_companion", "control_task_share", "correlation", "eta_squared",
    "eta_squared_z", "eta_squared_q", "within_covariate_eta_squared", "within_covariate_q", "unique",
    "cross_entropy_without", "r2_without",
)  # fmt: skip

_PRESSED = " What a neuron is stands above the table; press its number to see its contribution to each class."

# The columns of the table, of classes and of numbers.
COLUMNS = tuple(
    replace(column, meaning=column.meaning + _PRESSED) if name == "neuron" else column
    for name in _SHOWN
    for column in [NEURONS[name] if name in NEURONS else NUMBER_NEURONS[name]]
)

# Further columns that the script needs to show the picked neuron.
BESIDE = (
    *(column.name for column in SPANS),
    "rank_high", *(f"{name}_{end}" for name in WITHOUT for end in ("low", "high")), "mean", "sd",
)  # fmt: skip

TEXTS = ("flag", "removed")

_INTEGERS = ("rank", "neuron", "span", "span_neuron", "feature", "head", "rank_low", "rank_high")


def shown_columns(view: RunView) -> list[Column]:
    """Return the non-empty columns of a run."""
    rows = view.run.neurons
    return [column for column in COLUMNS if any(row.get(column.name, "") != "" for row in rows)]


def first_rows(view: RunView, caption: str) -> Html:
    """Return the leading layer's first neurons as a table, which the script extends."""
    columns = shown_columns(view)
    head = [element("th", column.words, scope="col", title=column.meaning, data_key=column.name) for column in columns]
    head.append(element("th", "flag", scope="col", class_="words", title="a warning about the rank", data_key="flag"))
    body = [_row(row, columns) for row in view.ranked[view.leading][:FIRST]]
    return element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body),
        class_="neurons",
    )  # fmt: skip


def _row(row: Row, columns: Sequence[Column]) -> Html:
    cells = [element("td", cell(column, row)) for column in columns]
    return element("tr", *cells, element("td", row["flag"], class_="words"))


def packed_rows(view: RunView) -> dict[str, Any]:
    """Return the whole table for the script: rows in ranked order, layer by layer; columns as packed numbers."""
    rows = [row for table in view.ranked.values() for row in table]
    columns = shown_columns(view)
    numbers = [key for key in (*(column.name for column in columns), *BESIDE) if key in rows[0]]
    packed: dict[str, Any] = {}
    for key in numbers:
        values = [row[key] if row[key] != "" else float("nan") for row in rows]
        if key in _INTEGERS:
            packed[key] = pack_integers(values)
        elif key != "layer":  # known by the row's place
            packed[key] = pack_floats(values)
    for key in TEXTS:
        if key in rows[0]:
            names = sorted({row[key] for row in rows})
            packed[key] = {"names": names, "codes": pack_integers([names.index(row[key]) for row in rows])}
    return {"columns": [described(column) for column in columns], "rows": packed}


# Two flags that mean something of their own together.
_TOGETHER = "offset", "no-signal"


def flags_of(flag: str) -> list[str]:
    """Return the components of a neuron's flag, as in the terms of the page."""
    names = flag.split()
    if not {*_TOGETHER} <= {*names}:
        return names
    return [" ".join(_TOGETHER), *(name for name in names if name not in _TOGETHER)]


def shown_by_script(view: RunView) -> set[str]:
    """Return the names in the map and the script of a run's neurons, besides the headings of the table."""
    rows = view.run.neurons
    removed = {row.get("removed") or "" for row in rows}
    ranges = [f"{name}_{end}" for name in WITHOUT for end in ("low", "high")]
    return {
        "shade", "activation mean", "activation sd", *["band"] * bool(beside_directions(rows)),
        *("ring" for row in rows if row.get("above_directions") == "yes"),
        *(f"flag {name}" for flag in {row["flag"] for row in rows} for name in flags_of(flag)),
        *("*" for row in rows if is_far(row)),
        *(UNRESOLVED for text in removed if UNRESOLVED in text),
        *(NEGLIGIBLE for text in removed if NEGLIGIBLE in text),
        *("95% range of that" for row in rows if any(row.get(name) not in (None, "") for name in ranges)),
    }  # fmt: skip


# Contributions from a tenth of the layer's mean to ten times it, on a logarithmic scale.
LOW, HIGH = 0.1, 10.0

WIDEST = 920

# Height of all layers together, unless rows would become too low or too high.
HEIGHT, LOWEST_ROW, HIGHEST_ROW = 240, 18, 30


def neuron_map(view: RunView, title: str) -> Html:
    """Return the map with its axes and scale."""
    layers, d_model = view.run.layers, view.d_model
    cell = max(1, min(24, WIDEST // d_model))
    row = max(LOWEST_ROW, min(HIGHEST_ROW, HEIGHT // len(layers)))
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, d_model) if step * cell >= 60)
    ticks = {neuron: neuron for neuron in range(0, d_model, every)}
    return shaded_map(ratio_shades(ratios(view)), (cell, row), layers, ticks, title)


def shaded_map(
    darkness: ArrayLike, cell: tuple[int, int], names: Sequence[str | int], ticks: Mapping[int, str | int],
    about: str, kind: str = "map",
) -> Html:  # fmt: skip
    """Return a matrix, shape (n_rows, n_columns), from 0 to 1, as shades, with names of rows and of some columns.

    `cell` is in pixels (width, height); `about` describes it for readers who do not see it.
    """
    (wide, high), (n_rows, n_columns) = cell, np.shape(darkness)
    size = f"--width:{wide * n_columns}px;--row:{high}px;--rows:{n_rows}"
    shaded = element("div", class_="shades", style=f"mask-image:url({shades(darkness)})")
    field = element("div", shaded, class_="field", role="img", aria_label=about)
    rows = element("div", *(element("span", name) for name in names), class_="layers", aria_hidden="true")
    places = {i: f"left:{100 * (i + 0.5) / n_columns:.6g}%" for i in ticks}  # on paper the map may be narrower
    columns = element(
        "div", *(element("span", name, style=places[i]) for i, name in ticks.items()),
        class_="ticks", aria_hidden="true",
    )  # fmt: skip
    shown = element("div", rows, element("div", field, columns), class_=kind, style=size)
    return element("div", shown, class_="scroll")


def scale() -> Html:
    """Return the scale of the shades."""
    return element(
        "p",
        element("span", f"{LOW:g}"),
        element("span", class_="ramp"),
        element("span", f"{HIGH:g}"),
        element("span", "× the layer's mean contribution, logarithmic"),
        class_="scale",
    )


def ratios(view: RunView) -> NDArray[np.float64]:
    """Return contributions in multiples of the layer's mean, by neuron, shape (n_layers, d_model)."""
    values = np.zeros((len(view.run.layers), view.d_model))
    for i, rows in enumerate(view.ranked.values()):
        for row in rows:
            values[i, row["neuron"]] = row["ratio"]
    return values


def ratio_shades(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shade of each ratio: 0 up to a tenth of the mean, 1 from ten times the mean."""
    return (np.log(np.clip(values, LOW, HIGH)) - np.log(LOW)) / (np.log(HIGH) - np.log(LOW))


# The meaning of each flag.
FLAGS = {
    "offset": "overstated: less than half of the contribution is left after centring, so the neuron replaces the "
    "intercept that the probe lacks; it may still carry the task",
    "no-signal": "alone it is not shown to distinguish the classes beyond chance; it may be useful together with other "
    "neurons",
    "offset no-signal": "it replaces the intercept: it is large and nearly constant, and is not shown to distinguish "
    "the classes beyond chance",
    "confound": "within values of the covariate (`--control_for`), it is not shown to distinguish the classes beyond "
    "chance",
    "direction": "a direction of a random rotation of the neurons contributes as much",
    UNINFORMATIVE: "in nats, or of numbers in squared error, the probe of this layer is not shown to be better than a "
    "constant answer, so do not read its ranking",
    "dead": "it hardly varies; its weight and contribution are exactly 0",
}


def meaning_of_flag(flag: str) -> str:
    """Return the meaning of a neuron's flag; empty where there is none."""
    return "; ".join(FLAGS[name] for name in flags_of(flag) if name in FLAGS)


_CONTROLS = {control.words: control.meaning for control in (*CONTROLS.values(), *ADDED_CONTROLS.values())}

ACCURACY: Terms = {
    "layer": "0 is the embedding output, and layer k the output of block k; units of an MLP and outputs of heads of "
    "layer k are inside block k.",
    "probe": "Linear classifier, trained on the hidden states of one layer, without an intercept unless the run was "
    "made with `--probe.bias true`; its neurons are then centred, and so are contributions.",
    "accuracy": "Share of the test tokens, or of the test sentences where these are classified, whose class the probe "
    "predicts correctly. Their sentences were not used in training. It shows that the label can be decoded linearly, "
    "not that the model uses it.",
    "95% range": "Confidence interval of the accuracy, in which sentences or documents, not tokens, are taken as "
    "independent; the answer says which.",
    "majority": "Accuracy of always predicting the most frequent class of the training tokens.",
    **_CONTROLS,
    "within 1": "Share of the test tokens whose predicted class is at most 1 away from the true one, where classes are "
    "numbers.",
    "error": "Mean absolute difference between the predicted number and the true one.",
    "selectivity": "Accuracy minus that of the control task.",
    "compression": "How many times shorter the training labels become when they are encoded online with the help of "
    "this layer, compared with a code that knows only the number of classes. The higher, the more easily they can "
    "be read from the layer.",
    "nats": "Cross-entropy: the mean of -ln p over the test tokens, where p is the probability that the probe gives "
    "to the true class. Lower is better.",
    "constant": "Cross-entropy of a constant answer: the shares of the classes among the training tokens, or a uniform "
    "guess where that is better. If a probe is no better, its ranking says nothing about the neurons.",
    "training": "Cross-entropy of the training tokens. Where it is far below that of the test tokens, the probe "
    "overfits.",
    "gap": "Optimality gap: by how many nats, at most, the probe's training objective is above its minimum. A probe "
    "far from its optimum ranks the optimiser rather than the neurons.",
}

NUMBERS: Terms = {
    "layer": ACCURACY["layer"],
    "probe": "Linear ridge regression on the hidden states of one layer, which are centred with `--probe.bias true`; "
    "the mean of the training numbers is added to what it predicts.",
    "R²": "Share of the constant answer's squared error on the test tokens that the probe saves; the constant answer "
    "is the mean of the training numbers, whose R² is 0. Below 0 the probe is worse; the chart shows that as 0.",
    "95% range": "Confidence interval of R², in which sentences or documents are taken as independent; the answer says "
    "which.",
    **_CONTROLS,
    "in training": "R² of the training tokens. Where it is far above that of the test tokens, the probe overfits.",
    "error": "Mean absolute difference between the predicted number and the true one.",
    "rms error": "Root of the mean squared difference.",
    "constant": "The same of the constant answer.",
    "gradient": "Norm of the gradient of the probe's objective, divided by that at 0: how exactly it is solved.",
}

NEURON_TERMS: Terms = {
    **{column.words: column.meaning for column in COLUMNS},
    "95% range of that": "Interval of the nats lost without the neuron.",
    "activation mean": "Mean of the neuron's activations over training tokens.",
    "activation sd": "Standard deviation of the neuron's activations over training tokens.",
    "flag": "A warning about the rank; empty where there is none.",
    **{f"flag {name}": f"{text[:1].upper()}{text[1:]}." for name, text in FLAGS.items()},
    "*": f"The neuron's mean is more than {FAR:.0f} standard deviations from 0, which makes its centred contribution "
    "unreliable; the column with intercept has the value of a probe with an intercept.",
    UNRESOLVED: f"The loss without the neuron is {UNRESOLVED}: its interval neither excludes 0 nor is narrow "
    "enough to call the loss negligible.",
    NEGLIGIBLE: "A probe without the neuron loses almost nothing: the whole interval is within "
    f"{NEGLIGIBLE_NATS} nats of 0, or of R².",
    "shade": "In the map, a neuron's contribution in multiples of its layer's mean, on a logarithmic scale.",
    "band": "Behind the sorted contributions, those of directions of random rotations of the layer's neurons: at each "
    "rank, the lowest and the highest of a rotation. They add up to the same logits, so that neurons matter as neurons "
    "as far as the line is above the band. Dead neurons are left out.",
    "ring": "A neuron that contributes more than the largest direction, at p = .05.",
    "highest on, lowest on": "The test tokens on which the neuron's activation is highest and lowest, marked in the "
    "text around them, each with its class and the activation.",
    **NEURON_CLASSES.terms(("class", "weight")),
}

CLASSES: Terms = CLASS_SCORES.terms((*SHOWN, "confused_with"))

HEADS: Terms = {
    "head": "An attention head, counted from 1; its neurons are a slice of the layer.",
    "neurons": "First and last neuron of the head.",
    "share": "Contributions of the head's neurons as a share of the sum over the layer's neurons.",
    "accuracy": "Accuracy of a probe that is trained on the head's neurons alone. ° marks heads that are no better "
    "than chance: the interval, widened for the number of heads, reaches the majority class or a random slice.",
    "95% range": ACCURACY["95% range"],
    "random slices": "Lowest and highest accuracy of probes of as many neurons, drawn at random from the layer.",
}

BASES: Terms = {
    "k": "Number of units that a probe with an intercept reads: the first by the share of their variance over training "
    "tokens that is between classes.",
    "features": "Accuracy of the first k features of the dictionary.",
    "neurons": "Accuracy of the first k neurons of the layer. ° features are not shown to be better, − they are worse.",
    "random features": "The mean accuracy of features whose directions are drawn at random, of which as many are "
    "active.",
    "rotated neurons": "The mean accuracy of neurons after random rotations of the hidden states.",
    "95% range": ACCURACY["95% range"],
}

TRANSFORMS = {
    "none": "Hidden states without a transform.",
    "clip": "Outlier dimensions are set to 0, or to their mean, after the model has run.",
    "clip_random": "As many other neurons, drawn at random, are clipped instead.",
    "whiten": "Hidden states are mapped so that all directions have the same variance and are uncorrelated.",
    "standardise": "Each neuron is centred and divided by its standard deviation.",
    "center": "The mean vector of all tokens is subtracted.",
    "all_but_the_top": "The mean vector and the first principal directions are removed (Mu & Viswanath 2018).",
}

PRECISION = (
    "Numbers on this page are rounded, and contributions by class have three digits; the tables and tensors in the "
    "run's folder are exact."
)

# What names something in a part of a page: headings and cells of tables, labels of charts, and choices.
_NAMING = re.compile(r"<(th|td|li|option)\b[^>]*>(.*?)</\1>", re.DOTALL)


def names_in(part: Html) -> set[str]:
    """Return the texts of a part that name something; for a label with details after it, also the label alone."""
    texts = {unescape(re.sub("<[^>]*>", "", tag_text)) for _, tag_text in _NAMING.findall(part)}
    labels = {re.split(r", | \(", text, maxsplit=1)[0] for text in texts}
    return texts | labels | {"*" for text in texts if text.startswith("*") or text.endswith("*")}


class Glossary:
    """Terms used by the parts of a page, gathered as the parts arise."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, str]] = {}

    def add(self, title: str, terms: Terms, part: Html | None, also: Collection[str] = ()) -> None:
        """Add the terms that name something in a part of the page; several parts can share a title.

        Names explained together are separated by commas and added if all are used; `also` has names of scripts and
        images.
        """
        names = names_in(part) | {*also} if part else set()
        before = self._used.get(title, {})
        used = {
            name: meaning
            for name, meaning in terms.items()
            if name in before or name in names or names.issuperset(name.split(", "))
        }
        if used:
            self._used[title] = used

    def section(self) -> Html:
        """Return the terms with their meanings."""
        lists = [element("section", element("h3", name), pairs([*of.items()])) for name, of in self._used.items()]
        return element("section", element("h2", "Terms"), *lists, element("p", PRECISION), id="terms")
