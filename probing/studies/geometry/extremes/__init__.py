"""Tables, sentences and figures of `geometry --extremes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from probing.results import (
    ALL_LAYERS,
    Schema,
    count,
    estimate,
    in_brackets,
    interval,
    listed,
    number,
    shown_table,
    text,
    whole,
)
from probing.runtime.terminal import plain_table
from probing.tables.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    USUAL,
    error_bars,
    joined,
    name_layers,
    write_drawings,
)
from probing.tables.schema import HEAD, block, layer_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Definition = Literal["massive", "token_sd", "neuron_sd"]

# Sun et al. 2024: magnitude above 100, and at least 1,000 times the median magnitude (they write "around").
ABSOLUTE, RELATIVE = 100.0, 1000.0

# Standard deviations beyond which a value is an outlier of its token's neurons, or of its neuron's tokens.
DEVIATIONS = 5.0

# Share of normally distributed values that are as far from their mean.
OF_NORMAL = 5.7e-7

DEFINITIONS: dict[Definition, str] = {
    "massive": f"above {ABSOLUTE:g} and {RELATIVE:,.0f} times the median magnitude of the layer",
    "token_sd": f"more than {DEVIATIONS:g} sd from the mean of the token's neurons",
    "neuron_sd": f"more than {DEVIATIONS:g} sd from the neuron's mean over tokens",
}

# Share of the tokens of a kind from which on a neuron is called large on that kind.
MOST_TOKENS = 0.5

# Kinds of tokens beside the texts of special and of frequent tokens.
ALL, FIRST, OTHER = "all tokens", "first token", "other tokens"

_DEFINITION = text(
    "definition", "Why a value is large. " + "; ".join(f"{name}: {why}" for name, why in DEFINITIONS.items()) + "."
)

_TOKEN = text("token", "Kind of token: the text of a special or of a frequent one, first token (of a sentence, where "
              "it is no special one), other tokens, or all tokens.")  # fmt: skip

_TERMS = "f(x) = (x W_V + b_V) W_O"

MASSIVE = Schema("massive", "with `--extremes`, a row per layer, definition, kind of token and neuron", (
    layer_column(), _DEFINITION, _TOKEN,
    whole("neuron", "Index of the neuron; empty in rows over all neurons. At most five are listed for each kind."),
    whole("count", "Number of tokens of the kind on which the neuron, or some neuron, is large.", form=",d"),
    whole("n_tokens", "Number of tokens of the kind.", form=",d"),
    number("share", "The first number divided by the second.", form=".1%"),
    number("largest_magnitude", "Largest on these tokens, of the neuron or of any, large by the definition or not.",
           "largest", form=".2f"),
    number("median", "Median magnitude of all values of the layer.", form=".3g"),
    whole("n_neurons", "Number of neurons that are large on some token of the kind."),
    number("value_share", "Share of the values of all neurons on these tokens that are large.", form=".2g"),
), optional=True)  # fmt: skip

MASSIVE_COURSE = Schema(
    "massive_course",
    f"with `--extremes`, a row per definition, kind of token and neuron that is large on at least {MOST_TOKENS:.0%} of "
    "the tokens of the kind in some layer", (
    _DEFINITION, _TOKEN,
    whole("neuron", "Index of the neuron."),
    whole("first_layer", "Layer from which on it is large on so many of them, in the longest run of layers.", "from"),
    whole("last_layer", "Last layer of that run.", "to"),
    whole("gone_layer", "The measured layer after it, in which it is no longer; empty at the last one.", "gone in"),
    whole("n_layers", "Number of layers in which it is large on so many of them."),
    number("largest_magnitude", "The largest on these tokens in any layer.", "largest", form=".2f"),
    whole("largest_layer", "The layer of that.", "in layer"),
    number("times_median", "That divided by the median magnitude of the layer.", "x median", form=",.0f"),
), optional=True)  # fmt: skip

SINKS = Schema("sinks", "with `--extremes`, a row per block, kind of token and head, and of all heads of the block", (
    block(),
    HEAD,
    text("token", "Kind of token: the text of a special one, first token, punctuation, or other tokens."),
    number("share", "Share of the tokens that are of the kind.", form=".1%"),
    number("uniform", "Attention to the kind if every query attended alike to all tokens that it sees.", form=".1%"),
    estimate("mass", "Attention to the kind, a mean over all queries; of a block the mean of its heads.", form=".1%"),
    estimate("norm_mass", f"The same of weights times the norm of {_TERMS}, rows divided by their sum.", "by norm",
             form=".1%"),
    number("value_norm", f"Mean norm of {_TERMS} of the tokens of the kind.", "value norm"),
    number("value_ratio", "That divided by the same of tokens of no other kind.", "x others", form=".2f"),
    estimate("added", f"Norm of the sum of attention times {_TERMS} over the tokens of the kind, a mean over queries; "
             "of a block, of the sum over its heads."),
    estimate("of_output", "That divided by the norm of all that the head adds, or of the output of the attention.",
             "of output", form=".1%"),
    estimate("of_stream", "Of a block, the norm of what is added to a query divided by that of the hidden state "
             "of the query that enters the block, a mean over queries.", "of stream", form=".1%"),
), optional=True)  # fmt: skip

_FIXED = "with the outliers held at their mean in the queries and keys of the head"

_MATCHED = "with as many other neurons of about the same sd held"

_SCALED = f"{_MATCHED}, and what is taken away scaled to the variance of the outliers"

_CORRECTED = "The p-value beside matched sets, corrected for the number of heads, or of blocks (Holm)."

HELD_OUTLIERS = Schema(
    "held_outliers", "with `--extremes`, a row per head of blocks that outliers enter, per block, and over all", (
    block("Number of the block; all for all of these blocks together."), HEAD,
    text("neurons", "The outlier neurons of the layer that enters the block."),
    whole("k", "Their number."),
    number("sd_ratio", "Root of their variance divided by that of the matched neurons, a mean over the sets.",
           "sd ratio", form=".2f"),
    whole("n_draws", "Number of distinct matched sets."),
    number("divergence", f"Jensen-Shannon divergence from the whole head's attention {_FIXED}, in nats, a mean over "
           "queries; in rows without a head the mean over heads, each changed alone.", form=".4f"),
    number("divergence_matched", f"The same {_MATCHED}, a mean over the sets.", "matched", form=".4f"),
    number("divergence_matched_low", "The least of these sets.", form=".4f"),
    number("divergence_matched_high", "The largest of these sets.", form=".4f"),
    number("divergence_p", "Share of the matched sets, and of the outliers, with at least this divergence.", "p",
           form=".2g"),
    number("divergence_scaled", f"The same {_SCALED}, a mean over the sets.", "scaled", form=".4f"),
    number("divergence_scaled_p", "Share of these sets, and of the outliers, with at least this divergence.", "p",
           form=".2g"),
    number("divergence_p_holm", _CORRECTED, "p (Holm)", form=".2g"),
    number("special", "Attention of the whole head to special tokens, in causal models to the first token too.",
           form=".1%"),
    number("special_held", f"The same {_FIXED}.", "held", form=".1%"),
    number("special_matched", f"The same {_MATCHED}, a mean over the sets.", "matched", form=".1%"),
    number("special_matched_low", "The least of these sets.", form=".1%"),
    number("special_matched_high", "The largest of these sets.", form=".1%"),
    number("special_p", "Share of the sets, and of the outliers, that change this attention at least as much, in "
           "either direction.", "p", form=".2g"),
    number("special_scaled", f"The same {_SCALED}, a mean over the sets.", "scaled", form=".1%"),
    number("special_scaled_p", "Share of these sets, and of the outliers, that change it at least as much.", "p",
           form=".2g"),
    number("special_p_holm", _CORRECTED, "p (Holm)", form=".2g"),
), optional=True)  # fmt: skip

EXTREMES = (MASSIVE, MASSIVE_COURSE, SINKS, HELD_OUTLIERS)

NAMES = tuple(schema.name for schema in EXTREMES)

Row = Mapping[str, Any]

Tables = Mapping[str, Sequence[Row]]

# Error rate of claims about heads.
ALPHA = 0.05

# Most neurons of each definition that a table and a sentence name.
SHOWN, NAMED = 6, 3

COURSE_COLUMNS = (
    "definition", "token", "neuron", "first_layer", "last_layer", "gone_layer", "largest_magnitude", "largest_layer",
    "times_median",
)  # fmt: skip

# The last of these are there where the model's output projections can be told.
SINK_COLUMNS = ("layer", "token", "share", "mass*", "norm_mass", "value_ratio", "of_output", "of_stream")

_FIXED_COLUMNS = (
    "layer", "k", "divergence", "divergence_matched", "divergence_p", "divergence_scaled", "divergence_scaled_p",
    "special", "special_held", "special_matched", "special_p", "special_scaled", "special_scaled_p", "sd_ratio",
)  # fmt: skip


def tables(rows_by_table: Tables) -> list[Any]:
    """Return large values, the course of large neurons, sinks, and heads without outliers, as rich tables."""
    massive, course, sinks, fixed_rows = (
        _rows(rows_by_table, name) for name in ("massive", "massive_course", "sinks", "held_outliers")
    )
    shown = [_large_table(massive)] if massive else []
    if course:
        some = [row for name in DEFINITIONS for row in [row for row in course if row["definition"] == name][:SHOWN]]
        title = f"Neurons that are large on at least {MOST_TOKENS:.0%} of the tokens of a kind ({SHOWN} per definition)"
        shown.append(shown_table(MASSIVE_COURSE, some, title, COURSE_COLUMNS))
    if sinks:
        rows = [row for row in sinks if not _head(row) and row["token"] != OTHER]
        names = [name for name in SINK_COLUMNS if any(name.rstrip("*") in row for row in rows)]
        shown.append(shown_table(SINKS, rows, "What attention gives to kinds of tokens, and what these add", names))
    if fixed_rows:
        title = "Attention of heads with outliers held at their mean in queries and keys of one head: means over heads"
        shown.append(shown_table(HELD_OUTLIERS, [row for row in fixed_rows if not _head(row)], title, _FIXED_COLUMNS))
    return shown


def quoted(token: str) -> str:
    """Return a kind of token for use in a sentence: the text of a frequent token in quotes."""
    is_named = token in (ALL, FIRST, OTHER, "punctuation") or (
        len(token) > 2 and token[0] + token[-1] in ("[]", "<>", "''")
    )
    return token if is_named else f"“{token}”"


def conclusions(rows_by_table: Tables) -> list[str]:
    """Return the conclusions, a sentence or two for each question."""
    massive, sinks, fixed_rows = (_rows(rows_by_table, name) for name in ("massive", "sinks", "held_outliers"))
    lines = []
    if massive:
        course = _rows(rows_by_table, "massive_course")
        lines += [_massive_sentence(massive, course), *_deviation_sentences(massive, course)]
    return [
        *lines,
        *([_sink_sentence(sinks)] if sinks else []),
        *([_fixed_outliers_sentence(fixed_rows)] if fixed_rows else []),
    ]


def _rows(rows_by_table: Tables, name: str) -> Sequence[Row]:
    return rows_by_table.get(name, ())


def _head(row: Row) -> Any:
    return row.get("head")


def of_all(massive: Sequence[Row], definition: Definition) -> list[Row]:
    """Return the rows of a definition over all tokens, one for each layer."""
    return [row for row in massive if row["token"] == ALL and row["definition"] == definition]


def _large_table(massive: Sequence[Row]) -> Any:
    table = plain_table(
        f"Large values: tokens with massive ones, and share of values beyond 5 sd (normal: {OF_NORMAL:.1e})"
    )
    for heading in ("layer", "median", "largest", "on", "x median", "massive", "of token", "of neuron"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer_row, token, neuron in zip(*(of_all(massive, name) for name in DEFINITIONS), strict=True):
        table.add_row(
            str(layer_row["layer"]), f"{layer_row['median']:.3g}", f"{layer_row['largest_magnitude']:.1f}",
            where_largest(massive, layer_row),
            _times(layer_row), f"{layer_row['count']:,}", f"{token['value_share']:.1e}", f"{neuron['value_share']:.1e}",
        )  # fmt: skip
    return table


def where_largest(massive: Sequence[Row], of_layer: Row) -> str:
    """Return the kind of token with a layer's largest value; empty if no definition calls the value large."""
    largest_of_layer = of_layer["layer"], of_layer["largest_magnitude"]
    largest_rows = (
        row for row in massive if (row["layer"], row["largest_magnitude"]) == largest_of_layer and row["token"] != ALL
    )
    return next((row["token"] for row in largest_rows), "")


def _times(row: Row) -> str:
    return f"{row['largest_magnitude'] / row['median']:,.0f}" if row["median"] else ""


def _massive_sentence(massive: Sequence[Row], course: Sequence[Row]) -> str:
    layers = of_all(massive, "massive")
    what = f"above {ABSOLUTE:g} and {RELATIVE:,.0f} times the median magnitude of the layer (Sun et al. 2024)"
    large_layers = [row for row in layers if row["count"]]
    if not large_layers:
        top = max(layers, key=lambda row: row["largest_magnitude"])
        on = in_brackets(f"on {quoted(token)}" if (token := where_largest(massive, top)) else "")
        return (
            f"No value is massive, {what}: the largest is {top['largest_magnitude']:.1f} in layer {top['layer']}{on}, "
            f"{_times(top)} times the median there."
        )
    top = max(large_layers, key=lambda row: row["largest_magnitude"])
    steady = [row for row in course if row["definition"] == "massive"]
    neurons = sorted(
        {row["neuron"] for row in massive if row["definition"] == "massive" and row.get("neuron") is not None}
    )
    where = "; ".join(_course(row) for row in steady[:NAMED])
    return (
        f"{count(top['count'], 'token')} of layer {top['layer']} {'has' if top['count'] == 1 else 'have'} massive "
        f"values, {what}, up to {top['largest_magnitude']:,.0f}, {_times(top)} times the median; such values are in "
        f"{count(len(large_layers), 'layer')} and {count(len(neurons), 'neuron')}. "
        + (f"On most tokens of a kind: {where}." if steady else "No neuron is massive on most tokens of a kind.")
    )


def _deviation_sentences(massive: Sequence[Row], course: Sequence[Row]) -> list[str]:
    of = {"token_sd": "the mean of their token's neurons", "neuron_sd": "the mean of their neuron over tokens"}
    lines = []
    for name, mean in of.items():
        top = max((row for row in massive if row["token"] == ALL and row["definition"] == name),
                  key=lambda row: row["value_share"])  # fmt: skip
        steady = [row for row in course if row["definition"] == name]
        n = len({row["neuron"] for row in steady})
        where = "; ".join(_course(row) for row in steady[:NAMED])
        named = (
            f"{count(n, 'neuron')} {'is' if n == 1 else 'are'} so far on most tokens of a kind; the steadiest: {where}."
        )
        lines.append(
            f"Values more than {DEVIATIONS:g} sd from {mean} are at most {top['value_share']:.1e} of all (layer "
            f"{top['layer']}; {OF_NORMAL:.1e} of normally distributed ones). "
            + (named if steady else "No neuron is so far on most tokens of a kind.")
        )
    return lines


def _course(row: Row) -> str:
    """Return the layers in which a neuron is large as a clause."""
    first, last = row["first_layer"], row["last_layer"]
    where = f"in layer {first}" if first == last else f"from layer {first} to {last}"
    gone = row.get("gone_layer")
    until = f", gone in {gone}" if gone is not None else ""
    return f"neuron {row['neuron']} on {quoted(row['token'])} {where}{until} (up to {row['largest_magnitude']:,.1f})"


def strongest_sink(sinks: Sequence[Row]) -> Row:
    """Return the row of the block and kind of token whose attention is farthest above uniform."""
    blocks = [row for row in sinks if not _head(row) and row["token"] != OTHER] or list(sinks)
    return max(blocks, key=lambda row: row["mass"] - row["uniform"])


def _sink_sentence(sinks: Sequence[Row]) -> str:
    """Return a sentence on the strongest sink."""
    top = strongest_sink(sinks)
    sentence = (
        f"The strongest sink is {top['token']} in block {top['layer']}: {top['share']:.1%} of the tokens get "
        f"{top['mass']:.1%} of the attention{in_brackets(interval(top, 'mass', ' to ', '.1%'))}, where uniform "
        f"attention would give {top['uniform']:.1%}"
    )
    if "norm_mass" in top:
        sentence += f", and by the norm of what is added {top['norm_mass']:.1%}"
    if "value_ratio" in top:
        sentence += f": the norm of its values is {top['value_ratio']:.2f} times that of ordinary tokens"
    if "of_output" in top:
        stream = f" and {top['of_stream']:.1%} of that of the stream" if "of_stream" in top else ""
        sentence += f", and what it adds has {top['of_output']:.1%} of the norm of the attention's output{stream}"
    return f"{sentence}."


def _fixed_outliers_sentence(fixed_rows: Sequence[Row]) -> str:
    """Return a sentence on the attention of heads without outliers, compared with matched neurons."""
    heads, row = [row for row in fixed_rows if _head(row)], fixed_rows[0]
    where = "all blocks that outliers enter" if row["layer"] == ALL_LAYERS else f"block {row['layer']}"
    parts = []
    for name, what in (("divergence", "the divergence"), ("special", "attention to special tokens")):
        parts.append(f"{what} in {sum(row[f'{name}_p_holm'] <= ALPHA for row in heads)}")
    reach = len(heads) / (1 + max(row["n_draws"] for row in heads))
    sentence = (
        f"With the outliers held at their mean in its queries and keys, the attention of a head changes by a Jensen-"
        f"Shannon divergence of {row['divergence']:.4f} nats, a mean over the heads of {where}; with as many other "
        f"neurons of about the same sd by {row['divergence_matched']:.4f} ({row['divergence_matched_low']:.4f} to "
        f"{row['divergence_matched_high']:.4f}; p = {row['divergence_p']:.2g}, {row['n_draws']} draws), and with "
        f"their deviations scaled by {row['sd_ratio']:.2f} to the outliers' variance by "
        f"{row['divergence_scaled']:.4f} (p = {row['divergence_scaled_p']:.2g}). Attention to special tokens goes "
        f"from {row['special']:.1%} to {row['special_held']:.1%}, with the others to {row['special_matched']:.1%} "
        f"(p = {row['special_p']:.2g}; scaled {row['special_scaled']:.1%}, p = {row['special_scaled_p']:.2g}). Of "
        f"{count(len(heads), 'head')}, each "
        f"beside matched neurons and corrected for their number (Holm), {listed(parts)} have p <= {ALPHA:g}"
    )
    if reach > ALPHA:
        sentence += f"; with these draws the least possible is {min(reach, 1):.2g}"
    return f"{sentence}."


# Most kinds of tokens that are drawn.
DRAWN = 4

_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))


def write_extremes_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw the figures of the tables that have rows, each in some formats, and return the paths of the files."""
    drawings = {}
    if massive := tables.get("massive"):
        drawings["massive"] = partial(_draw_massive, massive, model)
    if sinks := tables.get("sinks"):
        drawings["sinks"] = partial(_draw_sinks, sinks, tables.get("held_outliers", ()), model)
    return write_drawings(folder, drawings, formats)


def _draw_massive(massive: Sequence[Row], model: str, figure: Figure) -> None:
    """Draw the largest value of each layer by kind of token, and the share of large values, if there are any."""
    layers = [row["layer"] for row in of_all(massive, "massive")]
    shares = {name: np.array([row["value_share"] for row in of_all(massive, name)]) for name in DEFINITIONS}
    shares = {name: np.where(of > 0, of, np.nan) for name, of in shares.items() if of.any()}
    figure.set_size_inches(9.0 if shares else 5.5, 3.4)
    grid = list(figure.subplots(1, 1 + bool(shares), squeeze=False)[0])
    _draw_largest(grid[0], massive, layers)
    words = {"massive": "massive", "token_sd": "beyond 5 sd of the token", "neuron_sd": "beyond 5 sd of the neuron"}
    for name, (colour, mark) in zip(DEFINITIONS, _LOOKS, strict=False):
        if name in shares:
            look = joined({"ls": "-"}, layers)
            grid[1].plot(layers, shares[name], c=colour, marker=mark, ms=4, label=words[name], **look)
    for axes in grid[1:]:
        axes.set_yscale("log")
        axes.set_ylabel("share of all values (log scale)")
        axes.set_title("values that are large")
    _finish(grid, layers, "layer")
    figure.suptitle(f"{model}: large values of hidden states", x=0.01, ha="left", fontsize=10)


def _draw_largest(axes: Axes, massive: Sequence[Row], layers: Sequence[int]) -> None:
    by_kind: dict[str, dict[int, float]] = {}
    for row in massive:
        if row["token"] != ALL and row.get("neuron") is None:
            by_layer = by_kind.setdefault(row["token"], {})
            by_layer[row["layer"]] = max(by_layer.get(row["layer"], 0.0), row["largest_magnitude"])
    kinds = sorted(by_kind, key=lambda kind: -max(by_kind[kind].values()))[:DRAWN]
    for kind, (colour, mark) in zip(kinds, _LOOKS, strict=False):
        values = [by_kind[kind].get(layer, np.nan) for layer in layers]
        axes.plot(layers, values, c=colour, marker=mark, ms=4, label=quoted(kind), **joined({"ls": "-"}, layers))
    medians = np.array([row["median"] for row in of_all(massive, "massive")])
    axes.plot(layers, medians, c="black", marker=".", ms=4, label="median of all", **joined({"ls": ":"}, layers))
    threshold = np.maximum(ABSOLUTE, RELATIVE * medians)
    axes.plot(layers, threshold, c=GREY, label="massive from here", **joined({"ls": "--"}, layers))
    axes.set_yscale("log")
    axes.set_ylabel("largest magnitude (log scale)")
    axes.set_title("largest value on each kind of token")


def _draw_sinks(sinks: Sequence[Row], fixed_rows: Sequence[Row], model: str, figure: Figure) -> None:
    """Draw the attention to each kind of token and its contribution, by block, and heads without outliers."""
    blocks = [row for row in sinks if not row.get("head") and row["token"] != OTHER]
    layers = list(dict.fromkeys(row["layer"] for row in sinks))
    of_blocks = [row for row in fixed_rows if not row.get("head") and row["layer"] != "all"]
    panels = [("mass", "attention (dotted: uniform)"), ("of_output", "share of the attention's output")]
    panels = [(name, title) for name, title in panels if any(name in row for row in blocks)]
    n = len(panels) + bool(of_blocks)
    figure.set_size_inches(0.6 + 3.3 * n, 3.4)
    grid = list(figure.subplots(1, n, squeeze=False)[0])
    kinds = list(dict.fromkeys(row["token"] for row in blocks))
    kinds = sorted(kinds, key=lambda kind: -max(row["mass"] for row in blocks if row["token"] == kind))[:DRAWN]
    for axes, (name, title) in zip(grid, panels, strict=False):
        for kind, (colour, mark) in zip(kinds, _LOOKS, strict=False):
            rows = [row for row in blocks if row["token"] == kind]
            x, values = [row["layer"] for row in rows], np.array([row[name] for row in rows])
            axes.errorbar(
                x, values, yerr=error_bars(rows, values, name), c=colour, marker=mark, ms=4, capsize=2, label=kind,
                **joined({"ls": "-"}, layers),
            )  # fmt: skip
            if name == "mass":
                axes.plot(x, [row["uniform"] for row in rows], c=colour, **joined({"ls": ":", "lw": 0.9}, layers))
        axes.set_ylim(0, None)
        axes.set_title(title, fontsize=9)
    if of_blocks:
        _draw_fixed_outliers(grid[-1], of_blocks)
    _finish(grid, layers, "block")
    figure.suptitle(f"{model}: attention sinks" + (", and heads without outliers" if of_blocks else ""),
                    x=0.01, ha="left", fontsize=10)  # fmt: skip


def _draw_fixed_outliers(axes: Axes, rows: Sequence[Row]) -> None:
    x = [row["layer"] for row in rows]
    low, high = ([row[f"divergence_matched_{end}"] for row in rows] for end in ("low", "high"))
    axes.vlines(x, low, high, color=GREY, lw=5, alpha=0.5, label="matched neurons")
    axes.plot(x, [row["divergence"] for row in rows], "o", c=BLUE, ms=5, label="outliers")
    axes.set_ylim(0, None)
    axes.set_title("divergence with neurons held (nats)", fontsize=9)


def _finish(grid: Sequence[Axes], layers: Sequence[int], what: str) -> None:
    for axes in grid:
        name_layers(axes, layers, most=9, what=what)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.2), fontsize=7, ncols=3)
