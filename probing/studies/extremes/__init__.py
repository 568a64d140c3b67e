"""The study `extremes`: massive activations, attention sinks, and what heads read of outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from probing.cli.commandline import command
from probing.cli.options import (
    Definition,
    OutlierOptions,
    OutputOptions,
    RunOptions,
    Source,
    SpecialTokens,
    StatesOptions,
)
from probing.models import load_encoder, load_tokenizer
from probing.results import (
    ALL_LAYERS,
    Column,
    Row,
    Schema,
    Table,
    View,
    cells_table,
    count,
    estimate,
    estimated,
    in_brackets,
    listed,
    number,
    text,
    whole,
)
from probing.runs import Result, Study, Terms, study_of
from probing.runs.call import Call, Measurements
from probing.runtime import quiet_libraries
from probing.runtime.processes import is_main_process
from probing.tables.figures import Chart, Line, Panel, linear
from probing.tables.schema import HEAD, block, layer_column

ExtremeDefinition = Literal["massive", "token_sd", "neuron_sd"]

# Sun et al. 2024: magnitude above 100, and at least 1,000 times the median magnitude (they write "around").
ABSOLUTE, RELATIVE = 100.0, 1000.0

# Standard deviations beyond which a value is an outlier of its token's neurons, or of its neuron's tokens.
DEVIATIONS = 5.0

# Share of normally distributed values that are as far from their mean.
OF_NORMAL = 5.7e-7

DEFINITIONS: dict[ExtremeDefinition, str] = {
    "massive": f"above {ABSOLUTE:g} and {RELATIVE:,.0f} times the median magnitude of the layer",
    "token_sd": f"more than {DEVIATIONS:g} sd from the mean of the token's neurons",
    "neuron_sd": f"more than {DEVIATIONS:g} sd from the neuron's mean over tokens",
}

# Share of the tokens of a kind from which on a neuron is called large on that kind.
MOST_TOKENS = 0.5

# Kinds of tokens, in addition to the texts of special and of frequent tokens.
ALL, FIRST, OTHER = "all tokens", "first token", "other tokens"

_DEFINITION = text(
    "definition", "Why a value is large. " + "; ".join(f"{name}: {why}" for name, why in DEFINITIONS.items()) + "."
)

_TOKEN = text("token", "Kind of token: the text of a special or of a frequent one, first token (of a sentence, where "
              "it is no special one), other tokens, or all tokens.")  # fmt: skip

_TERMS = "f(x) = (x W_V + b_V) W_O"

MASSIVE = Schema("massive", "a row per layer, definition, kind of token and neuron", (
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
))  # fmt: skip

MASSIVE_COURSE = Schema(
    "massive_course",
    f"a row per definition, kind of token and neuron that is large on at least {MOST_TOKENS:.0%} of "
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

SINKS = Schema("sinks", "a row per block, kind of token and head, and of all heads of the block", (
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

_FIXED = "with the outliers fixed at their mean in the queries and keys of the head"

_MATCHED = "with as many other neurons of about the same sd fixed"

_SCALED = f"{_MATCHED}, and what is taken away scaled to the variance of the outliers"


def _compared(name: str, form: str, which: str) -> tuple[Column, ...]:
    """Return the columns of a measure with matched sets fixed, and its p-values; `which` says what sets are counted."""
    share = f"and of the outliers, that {which}."
    return (
        number(f"{name}_matched", f"The same {_MATCHED}, a mean over the sets.", "matched", form),
        number(f"{name}_matched_low", "The least of these sets.", form=form),
        number(f"{name}_matched_high", "The largest of these sets.", form=form),
        number(f"{name}_p", f"Share of the matched sets, {share}", "p", ".2g"),
        number(f"{name}_scaled", f"The same {_SCALED}, a mean over the sets.", "scaled", form),
        number(f"{name}_scaled_p", f"Share of these sets, {share}", "p", ".2g"),
        number(f"{name}_p_holm", "The p-value of the comparison with matched sets, corrected for the number of heads, "
               "or of blocks (Holm).", "p (Holm)", ".2g"),
    )  # fmt: skip


HELD_OUTLIERS = Schema(
    "held_outliers", "a row per head of blocks that outliers enter, per block, and over all", (
    block("Number of the block; all for all of these blocks together."), HEAD,
    text("neurons", "The outlier neurons of the layer that enters the block."),
    whole("k", "Their number."),
    number("sd_ratio", "Root of their variance divided by that of the matched neurons, a mean over the sets.",
           "sd ratio", form=".2f"),
    whole("n_draws", "Number of distinct matched sets."),
    number("divergence", f"Jensen-Shannon divergence from the whole head's attention {_FIXED}, in nats, a mean over "
           "queries; in rows without a head the mean over heads, each changed alone.", form=".4f"),
    *_compared("divergence", ".4f", "have at least this divergence"),
    number("special", "Attention of the whole head to special tokens, in causal models to the first token too.",
           form=".1%"),
    number("special_held", f"The same {_FIXED}.", "fixed", form=".1%"),
    *_compared("special", ".1%", "change this attention at least as much, in either direction"),
), optional=True)  # fmt: skip

SCHEMAS = (MASSIVE, MASSIVE_COURSE, SINKS, HELD_OUTLIERS)

Tables = Mapping[str, Sequence[Row]]

# Error rate of claims about heads.
ALPHA = 0.05

# Most kinds of tokens that are drawn.
DRAWN = 4

_SHORT: dict[ExtremeDefinition, str] = {
    "massive": "massive", "token_sd": "beyond 5 sd of the token", "neuron_sd": "beyond 5 sd of the neuron",
}  # fmt: skip

# Most neurons of each definition that a table and a sentence name.
SHOWN, NAMED = 6, 3

COURSES = View(MASSIVE_COURSE, (
    "definition", "token", "neuron", "first_layer", "last_layer", "gone_layer", "largest_magnitude", "largest_layer",
    "times_median",
),
    f"Neurons that are large on at least {MOST_TOKENS:.0%} of the tokens of a kind ({SHOWN} per definition)",
)  # fmt: skip

# The last of these columns are there where the model's output projections can be told.
OF_BLOCKS = View(
    SINKS, ("layer", "token", "share", "mass*", "norm_mass", "value_ratio", "of_output", "of_stream"),
    "What attention gives to kinds of tokens, and what these add", where={"head": None},
)  # fmt: skip

WITHOUT_OUTLIERS = View(HELD_OUTLIERS, (
    "layer", "k", "divergence", "divergence_matched", "divergence_p", "divergence_scaled", "divergence_scaled_p",
    "special", "special_held", "special_matched", "special_p", "special_scaled", "special_scaled_p", "sd_ratio",
), "Attention of heads with outliers fixed at their mean in queries and keys of one head: means over heads",
    where={"head": None},
)  # fmt: skip

SENTENCES = {
    "not_massive": "No value is massive, {definition} (Sun et al. 2024): the largest is {largest:.1f} in layer {layer}"
    "{on}, {times} times the median of that layer.",
    "massive": "{tokens} of layer {layer} {have} massive values, {definition} (Sun et al. 2024), up to {largest:,.0f}, "
    "{times} times the median; such values are in {layers} and {neurons}. {courses}",
    "massive_courses": "On most tokens of a kind: {courses}.",
    "no_massive_course": "No neuron is massive on most tokens of a kind.",
    "far": "Values more than {deviations:g} sd from {mean} are at most {share:.1e} of all values (layer {layer}; "
    "{normal:.1e} of normally distributed values). {courses}",
    "far_courses": "{neurons} {are} that far on most tokens of a kind; in most layers: {courses}.",
    "no_far_course": "No neuron is that far on most tokens of a kind.",
    "course": "neuron {neuron} on {token} {layers}{gone} (up to {largest:,.1f})",
    "gone": ", no longer in layer {layer}",
    "sink": "The strongest sink is {token} in block {layer}: {share:.1%} of the tokens get {mass} of the attention, "
    "and uniform attention would give {uniform:.1%}{norm_mass}{value_ratio}{of_output}{of_stream}.",
    "norm_mass": "; by the norm of what is added they get {norm_mass:.1%}",
    "value_ratio": "; the norm of their values is {value_ratio:.2f} times the norm for ordinary tokens",
    "of_output": "; what they add has {of_output:.1%} of the norm of the attention's output",
    "of_stream": " and {of_stream:.1%} of the norm of the stream",
    "divergence": "With the outliers fixed at their mean in its queries and keys, the attention of a head changes by a "
    "Jensen-Shannon divergence of {divergence} nats, a mean over the heads of {blocks}; with as many other neurons "
    "of about the same sd by {divergence_matched} ({divergence_matched_low} to {divergence_matched_high}; "
    "p = {divergence_p}, {draws}), and with their deviations scaled by {sd_ratio} to the outliers' variance by "
    "{divergence_scaled} (p = {divergence_scaled_p}).",
    "special": "Attention to special tokens changes from {special} to {special_held}, with the other neurons "
    "to {special_matched} (p = {special_p}; scaled {special_scaled}, p = {special_scaled_p}).",
    "heads": "Of {heads}, each compared with matched neurons and corrected for their number (Holm), p <= {alpha:g} for "
    "{changes}{least}.",
    "least": "; with these draws the least possible p-value is {p:.2g}",
}

_MEANS: dict[ExtremeDefinition, str] = {
    "token_sd": "the mean of their token's neurons", "neuron_sd": "the mean of their neuron over tokens",
}  # fmt: skip


def tables(rows_by_table: Tables) -> list[Any]:
    """Return large values, the course of large neurons, sinks, and heads without outliers, as rich tables."""
    massive, course, sinks, fixed_rows = tables_of(rows_by_table)
    first = Table((row for name in DEFINITIONS for row in course.where(definition=name)[:SHOWN]), MASSIVE_COURSE)
    return [
        *([_large_table(massive)] if massive else []),
        *COURSES.tables(first),
        *OF_BLOCKS.tables(sinks.where(is_of_kind)),
        *WITHOUT_OUTLIERS.tables(fixed_rows),
    ]


def tables_of(rows_by_table: Tables) -> list[Table]:
    """Return the tables in the order of their schemas."""
    return [Table(rows_by_table.get(schema.name, ()), schema) for schema in SCHEMAS]


def is_of_kind(row: Row) -> bool:
    """Return whether a row is of a kind of tokens that may be a sink."""
    return bool(row["token"] != OTHER)


def quoted(token: str) -> str:
    """Return a kind of token for use in a sentence: the text of a frequent token in quotes."""
    is_named = token in (ALL, FIRST, OTHER, "punctuation") or (
        len(token) > 2 and token[0] + token[-1] in ("[]", "<>", "''")
    )
    return token if is_named else f"“{token}”"


def conclusions(rows_by_table: Tables) -> list[str]:
    """Return the conclusions, a sentence or two for each question."""
    massive, course, sinks, fixed_rows = tables_of(rows_by_table)
    return [
        *([_massive_sentence(massive, course)] if massive else []),
        *(_far_sentence(massive, course, name) for name in _MEANS if massive),
        *([_sink_sentence(sinks)] if sinks else []),
        *([_fixed_outliers_sentence(fixed_rows)] if fixed_rows else []),
    ]


def of_all(massive: Table, definition: ExtremeDefinition) -> Table:
    """Return the rows of a definition over all tokens, one for each layer."""
    return massive.where(token=ALL, definition=definition)


def _large_table(massive: Table) -> Any:
    rows = zip(*(of_all(massive, name) for name in DEFINITIONS), strict=True)
    return cells_table(
        f"Large values: tokens with massive values, and share of values beyond 5 sd (normal: {OF_NORMAL:.1e})",
        ("layer", "median", "largest", "on", "x median", "massive", "of token", "of neuron"),
        (
            (
                str(row["layer"]), f"{row['median']:.3g}", f"{row['largest_magnitude']:.1f}",
                where_largest(massive, row), _times(row), f"{row['count']:,}", f"{token['value_share']:.1e}",
                f"{neuron['value_share']:.1e}",
            )
            for row, token, neuron in rows
        ),
    )  # fmt: skip


def where_largest(massive: Table, of_layer: Row) -> str:
    """Return the kind of token with a layer's largest value; empty if no definition calls the value large."""
    same = massive.where(layer=of_layer["layer"], largest_magnitude=of_layer["largest_magnitude"])
    return next((token for token in same.column("token") if token != ALL), "")


def _times(row: Row) -> str:
    return f"{row['largest_magnitude'] / row['median']:,.0f}" if row["median"] else ""


def _massive_sentence(massive: Table, course: Table) -> str:
    layers = of_all(massive, "massive")
    large_layers = layers.where(lambda row: row["count"] > 0)
    top = max(large_layers or layers, key=lambda row: row["largest_magnitude"])
    slots: dict[str, Any] = {
        "definition": DEFINITIONS["massive"], "layer": top["layer"], "largest": top["largest_magnitude"],
        "times": _times(top),
    }  # fmt: skip
    if not large_layers:
        token = where_largest(massive, top)
        return SENTENCES["not_massive"].format(**slots, on=in_brackets(f"on {quoted(token)}" if token else ""))
    neurons = massive.where(lambda row: row.get("neuron") is not None, definition="massive").values("neuron")
    courses = _courses(course.where(definition="massive"))
    return SENTENCES["massive"].format(
        **slots, tokens=count(top["count"], "token"), have="has" if top["count"] == 1 else "have",
        layers=count(len(large_layers), "layer"), neurons=count(len(neurons), "neuron"),
        courses=SENTENCES["massive_courses" if courses else "no_massive_course"].format(courses=courses),
    )  # fmt: skip


def _far_sentence(massive: Table, course: Table, definition: ExtremeDefinition) -> str:
    top = max(of_all(massive, definition), key=lambda row: row["value_share"])
    far = course.where(definition=definition)
    n = len(far.values("neuron"))
    courses = SENTENCES["far_courses" if n else "no_far_course"].format(
        neurons=count(n, "neuron"), are="is" if n == 1 else "are", courses=_courses(far)
    )
    return SENTENCES["far"].format(
        deviations=DEVIATIONS, mean=_MEANS[definition], share=top["value_share"], layer=top["layer"], normal=OF_NORMAL,
        courses=courses,
    )  # fmt: skip


def _courses(course: Table) -> str:
    """Return the layers in which the first neurons are large, as clauses."""
    return "; ".join(
        SENTENCES["course"].format(
            neuron=row["neuron"], token=quoted(row["token"]), largest=row["largest_magnitude"],
            layers=_from_to(row["first_layer"], row["last_layer"]),
            gone="" if row.get("gone_layer") is None else SENTENCES["gone"].format(layer=row["gone_layer"]),
        )
        for row in course[:NAMED]
    )  # fmt: skip


def _from_to(first: int, last: int) -> str:
    return f"in layer {first}" if first == last else f"from layer {first} to {last}"


def strongest_sink(sinks: Sequence[Row]) -> Row:
    """Return the row of the block and kind of token whose attention is farthest above uniform."""
    blocks = Table(sinks).where(is_of_kind, head=None) or sinks
    return max(blocks, key=lambda row: row["mass"] - row["uniform"])


def _sink_sentence(sinks: Table) -> str:
    """Return a sentence on the strongest sink."""
    top = strongest_sink(sinks)
    names = ("norm_mass", "value_ratio", "of_output", "of_stream")
    clauses = {name: SENTENCES[name].format(**top) if name in top else "" for name in names}
    return SENTENCES["sink"].format(**{**top, **clauses, "mass": estimated(top, "mass", ".1%")})


def _fixed_outliers_sentence(fixed_rows: Table) -> str:
    """Return a sentence on the attention of heads without outliers, compared with matched neurons."""
    row, heads = fixed_rows[0], fixed_rows.where(lambda row: row.get("head") is not None)
    blocks = "all blocks that outliers enter" if row["layer"] == ALL_LAYERS else f"block {row['layer']}"
    names = {"divergence": "the divergence", "special": "attention to special tokens"}
    changes = [f"{words} in {sum(p <= ALPHA for p in heads.column(f'{name}_p_holm'))}" for name, words in names.items()]
    least = len(heads) / (1 + max(heads.column("n_draws")))
    cells = {column.name: column.show(row) for column in HELD_OUTLIERS.columns}
    return " ".join((
        SENTENCES["divergence"].format(**cells, blocks=blocks, draws=count(row["n_draws"], "draw")),
        SENTENCES["special"].format(**cells),
        SENTENCES["heads"].format(
            heads=count(len(heads), "head"), alpha=ALPHA, changes=listed(changes),
            least=SENTENCES["least"].format(p=min(least, 1)) if least > ALPHA else "",
        ),
    ))  # fmt: skip


def charts(rows_by_table: Tables) -> list[Chart]:
    """Return the largest values by kind of token and the share of large ones, and what sinks get and add by block."""
    massive, _, sinks, fixed_rows = tables_of(rows_by_table)
    return [
        Chart("massive", "large values of hidden states", [
            Panel(_largest_lines(massive), "largest value on each kind of token", "largest magnitude (log scale)",
                  is_logarithmic=True),
            Panel([
                Line.of([row for row in of_all(massive, name) if row["value_share"]], "value_share", words)
                for name, words in _SHORT.items()
            ], "values that are large", "share of all values (log scale)", is_logarithmic=True),
        ]),
        Chart("sinks", "attention sinks, and heads without outliers", [
            *_sink_panels(sinks), Panel(_fixed_lines(fixed_rows), "divergence with neurons fixed", "nats"),
        ], x=linear("layer", "block")),
    ]  # fmt: skip


def _largest_lines(massive: Table) -> list[Line]:
    by_kind = massive.where(lambda row: row["token"] != ALL, neuron=None).by("token")
    largest = {kind: max(rows.column("largest_magnitude")) for kind, rows in by_kind.items()}
    lines = []
    for kind in sorted(largest, key=lambda kind: -largest[kind])[:DRAWN]:
        by_layer = by_kind[kind].by("layer")
        values = [max(rows.column("largest_magnitude")) for rows in by_layer.values()]
        lines.append(Line(quoted(kind), [*by_layer], values))
    every = of_all(massive, "massive")
    thresholds = [max(ABSOLUTE, RELATIVE * row["median"]) for row in every]
    return [
        *lines, Line.of(every, "median", "median of all"),
        Line("massive from here", every.column("layer"), thresholds, kind="curve"),
    ]  # fmt: skip


def _sink_panels(sinks: Table) -> list[Panel]:
    by_kind = sinks.where(is_of_kind, head=None).by("token")
    kinds = sorted(by_kind, key=lambda kind: -max(by_kind[kind].column("mass")))[:DRAWN]
    attention = [Line.of(by_kind[kind], "mass", kind) for kind in kinds]
    uniform = [replace(Line.of(by_kind[kind], "uniform", kind, which="uniform"), kind="curve") for kind in kinds]
    added = [Line.of(by_kind[kind], "of_output", kind) for kind in kinds]
    return [
        Panel([*attention, *uniform], "attention (without marks: uniform)", "share of the attention", from_zero=True),
        Panel(added, "what is added", "share of the attention's output", from_zero=True),
    ]


def _fixed_lines(fixed_rows: Table) -> list[Line]:
    rows = fixed_rows.where(lambda row: row["layer"] != ALL_LAYERS, head=None)
    low, high = "divergence_matched_low", "divergence_matched_high"
    outliers = replace(Line.of(rows, "divergence", "outliers"), kind="marks")
    return [Line.band(rows, low, high, "matched neurons"), outliers]


# Meanings of the headings on a page.
TERMS: Terms = {
    "median": MASSIVE["median"].meaning,
    "on": "Kind of token that has the largest value of the layer.",
    "massive": "Number of tokens with a value above 100 and 1,000 times the median magnitude (Sun et al. 2024).",
    "of token": "Share of all values that are more than 5 sd from the mean of their token's neurons.",
    "of neuron": "Share of all values that are more than 5 sd from the mean of their neuron over tokens.",
    **WITHOUT_OUTLIERS.terms(),
    **OF_BLOCKS.terms(),
    **COURSES.terms(),
    "layer": "Number of the layer; 0 is the embedding output, k the output of block k. Of attention, the block.",
    "k": HELD_OUTLIERS["k"].meaning + " Outliers of the layer that enters the block.",
    "matched": "The number before it with as many other neurons of about the same sd fixed, a mean over the sets.",
    "scaled": "The same with what is taken away scaled to the variance of the outliers.",
    "p": "Share of these sets, and of the outliers, that change as much.",
    "largest": "Largest magnitude: of all values of the layer, or of the neuron on these tokens in any layer.",
    "x median": "That divided by the median magnitude of the layer.",
}


@dataclass(frozen=True)
class ExtremesOptions(OutputOptions, RunOptions, OutlierOptions, StatesOptions):
    """Options of `extremes`."""

    corpus: Source = "builtin"
    fit_corpus: Source | None = None
    max_length: int | None = None
    batch_tokens: int | None = None
    special_tokens: SpecialTokens = "exclude"
    """Whether special tokens are included where outliers are identified; large values are sought on all tokens."""
    definition: Definition = "mean_profile"
    """Definition of the outliers that are fixed in queries and keys."""
    _: KW_ONLY
    seed: int = 0
    """Seed of every random draw: sentences, matched neurons and random initialisation."""
    name: str | None = None
    """Name of this run; default: MODEL-extremes-YYYYMMDD-HHMMSS."""


@command(ExtremesOptions)
def extremes(options: ExtremesOptions) -> Result | None:
    """Find massive activations and attention sinks, and measure what heads attend to without outliers.

    For each kind of token, it measures its attention and what this adds to the residual stream.

    Returns:
        The measurements; None except in the rank-zero process.
    """
    call = Call.of(study_of("extremes"), options)
    config, seed = call.config, call.config["seed"]
    with quiet_libraries():
        from probing.data.labelling import origin
        from probing.models.anatomy import examine
        from probing.models.residual_stream import find_parameters
        from probing.probes.outliers import find_outliers, read_text_to_measure
        from probing.studies.extremes.survey import measure_extremes, read_attention

        source = call.source(tokenizer=options.tokenizer)
        call.expect(5)
        text, stores = read_text_to_measure(source, config)
        attention = read_attention(source, text, stores[0], seed)
        call.watch.end("extract")
        if not is_main_process():
            return None

        def measure(_: Path) -> Measurements:
            encoder, tokenizer = load_encoder(source.model, source.random_weights_seed), load_tokenizer(source.model)
            parameters = find_parameters(encoder, examine(encoder, tokenizer.pad_token_id or 0))
            outliers = find_outliers(stores[-1], source.layers, parameters, config)
            rows = measure_extremes(source, stores[0], attention, outliers, seed)
            rows = {name: of for name, of in rows.items() if of}
            results = {
                "cache": {"measured": origin(stores[0]), "fitted": origin(stores[-1])},
                "outliers": {str(layer): neurons for layer, neurons in outliers.chosen.items()},
            }
            return Measurements(rows, results)

        return call.write(source.model, measure)


class ExtremesStudy(Study):
    """The study of large values, attention sinks, and heads without outliers in queries and keys."""

    name, kind, title = "extremes", "extremes", "Massive activations and attention sinks"
    function = "probing.studies.extremes:extremes"
    in_several_processes = True
    schemas = SCHEMAS
    page = "geometry.md#massive-activations-and-sinks"
    files: ClassVar[Mapping[str, str]] = {
        "figures/": "Largest values by layer and kind of token, and attention to kinds of tokens by block.",
    }

    def tables(self, result: Result) -> list[Any]:
        """Return large values, the course of large neurons, sinks, and heads without outliers."""
        return tables(result.by_name)

    def charts(self, result: Result) -> list[Chart]:
        """Return large values by layer, and attention sinks by block."""
        return charts(result.by_name)

    def conclusions(self, result: Result) -> list[str]:
        """Return the conclusions, a sentence or two for each question."""
        return conclusions(result.by_name)

    def terms(self, result: Result) -> Mapping[str, Terms]:
        """Return the meanings of the headings."""
        return {self.title: TERMS}


STUDY = ExtremesStudy()
