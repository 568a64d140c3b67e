"""Tables and sentences of `geometry` for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from probing.results import Column, Schema, estimate, in_brackets, interval, number, text, whole
from probing.statistics import few_sentences, label, size_lines
from probing.studies.geometry import position
from probing.studies.geometry.extremes import EXTREMES
from probing.tables.schema import SIZES, block, effect, layer_column, value

_NEURON = whole("neuron", "Index of the neuron.")

_N_TOKENS = whole("n_tokens", "Number of tokens that were measured.")

_P = (
    number("percentile", "Percentage of the draws of random neurons that do less harm.", form=".0f"),
    number("p_value", "Share of these draws, and of what is tested, that do at least as much harm."),
)

_SPECIAL = text("special_tokens", "Whether special tokens are included: exclude or include.", may_be_empty=True)

_WHERE = "Where neurons are changed"

GEOMETRY = Schema("geometry", "a row per layer, transform and measure", (
    layer_column(),
    text("transform", "Transform of the hidden states: none, clip, clip_random (mean and range of the draws), whiten, "
         "standardise, center or all_but_the_top."),
    text("measure", "What is measured."),
    value("Its value"),
    _N_TOKENS, *SIZES,
))  # fmt: skip

OUTLIERS = Schema("outliers", "a row per definition, layer and outlier", (
    text("definition", "Definition by which the neuron is an outlier."),
    layer_column("Number of the layer; all stands for all layers but the embeddings."),
    _NEURON,
    number("value", "How strong an outlier it is, in the unit of the definition."),
    _SPECIAL,
))  # fmt: skip

DIMENSIONS = Schema("dimensions", "a row per layer and neuron", (
    layer_column(), _NEURON,
    number("mean", "Mean activation."),
    number("sd", "Standard deviation of the activation."),
    number("cosine_share", "Share of the mean cosine that the neuron contributes."),
    number("argmin_share", "Share of tokens in which it is the smallest."),
    number("argmax_share", "Share of tokens in which it is the largest."),
    number("beyond_share", "Share of tokens in which it is more than 3 sd from the mean of that token's neurons."),
))  # fmt: skip

PARAMETERS = Schema("parameters", "a row per outlier and parameter", (
    text("parameter", "Which parameter: position, segment, mean_token, gain or bias."),
    text("module", "Name of the module that holds it."),
    layer_column("The layer that the module makes or reads."),
    whole("row", "Row of the embedding table."),
    whole("position", "Position that the row is of."),
    _NEURON,
    number("value", "The neuron's parameter."),
    whole("rank", "Its rank among the neurons, 1 for the largest."),
    whole("absolute_rank", "Its rank by absolute value."),
    number("deviations", "Its distance from the mean of the neurons, in standard deviations."),
    whole("n_outliers", "Number of neurons that are more than 5 standard deviations away."),
))  # fmt: skip

EXPLAINED = Schema("explained", "a row per layer, neuron and source of variance", (
    layer_column(), _NEURON,
    text("kind", "outlier, or random for ten other neurons."),
    _SPECIAL,
    text("source", "What explains: position, token, sentence, ..."),
    number("alone", "Share of the neuron's variance that the source explains alone."),
    number("partial", "Share that it explains of what the other sources leave."),
    _N_TOKENS,
))  # fmt: skip

FIRST_TOKEN = Schema("first_token", "with `--first_token exclude`, a row per layer, choice of tokens and measure", (
    layer_column(),
    text("first_token", "Tokens that are measured: exclude (without the first), include, only."),
    text("measure", "rms_norm, mean_energy_share, mean_cosine, farthest_mean, or the definition of an outlier."),
    whole("neuron", "Neuron that the measure is of."),
    number("value", "Its value."),
    _N_TOKENS,
), optional=True)  # fmt: skip

_OF_BOUND = text("measure", "Term of the bound of Shi et al. (2022).")

SMOOTHING = Schema("smoothing", "with `--smoothing_bound`, a row per block and term of the bound", (
    layer_column("The block's output."), _OF_BOUND,
    value("Mean over sentences"),
    whole("n_sentences", "Number of sentences."),
), optional=True)  # fmt: skip

_OF_SENTENCE = {
    "sigma_1": "Least standard deviation, over neurons, among the tokens that enter the first LayerNorm.",
    "sigma_2": "The same of the second LayerNorm.",
    "lambda_max": "Largest eigenvalue of the attention's part.",
    "attention_factor": "Largest factor by which the attention multiplies the distance.",
    "distance_before": "Distance of the sentence to equal rows before the block.",
    "distance_after": "The same after the block.",
    "bound_published": "The bound as published.",
    "bound": "The bound of this block.",
    "bound_per_matrix": "The bound with one singular value for each matrix.",
    "attention_reach": "Share of the attention's factor that is reached.",
}

INTERVENTIONS = Schema("interventions", "with `--interventions`, a row per measure and set of neurons", (
    text("measure", "What is measured while neurons are 0."),
    text("where", f"{_WHERE}: inside the model, or after it.", may_be_empty=True),
    text("kind", "intact, outliers, largest_gain or random."),
    whole("draw", "Number of the random draw."),
    text("neurons", "The neurons."),
    value("The measure"),
    estimate("effect", "Its difference from the intact model.", form="+.3f"),
    *_P, _N_TOKENS,
), optional=True)  # fmt: skip

NORMS = Schema("norms", "with `--norms`, a row per norm of a block and neuron", (
    block(),
    whole("norm", "Number of the norm within the block."),
    text("module", "Name of the norm's module."),
    _NEURON,
    text("kind", "outlier, or random for ten other neurons."),
    number("mean", "Mean output."),
    number("deviations", "Its distance from other neurons, in standard deviations."),
    number("gain", "The neuron's gain."),
    number("bias", "The neuron's bias."),
    number("others_gain", "Mean gain of other neurons."),
    number("others_bias", "Mean bias of other neurons."),
    number("standardised", "Mean input as the norm standardises it."),
    number("by_scaled_input", "Term of the formula: the scaled input."),
    number("by_centring", "Term of the formula: the subtracted mean."),
    number("by_input", "What the mean would be with the gain of other neurons and no bias."),
    number("by_gain", "What the neuron's own gain adds."),
    number("by_bias", "What the neuron's own bias adds to that of other neurons."),
    number("by_others_bias", "Mean bias of other neurons."),
    text("largest", "The largest of the terms of input, own gain and own bias."),
    _N_TOKENS,
), optional=True)  # fmt: skip

NORM_CHANGES = Schema("norm_changes", "with `--norms`, a row per measure and change of gains and biases", (
    text("measure", "deviations, mlm_loss, position_accuracy or position_accuracy_retrained."),
    layer_column(), _NEURON,
    text("where", f"{_WHERE}: in the first norm of every block, the second, or both.", may_be_empty=True),
    text("kind", "intact, outliers or random."),
    whole("draw", "Number of the random draw."),
    text("neurons", "The neurons."),
    value("The measure"),
    estimate("effect", "Its difference from the intact model.", form="+.3f"),
    text("outlier", "Whether the neuron is an outlier: yes or no."),
    *_P, _N_TOKENS,
), optional=True)  # fmt: skip

PATH = Schema("path", "with `--path`, a row per place of the residual stream and neuron", (
    whole("step", "Number of the place on the stream."),
    block("Number of the block; 0 for the embeddings."),
    text("site", "Name of the place."),
    text("term", "Whether it is added to the stream: yes or no."),
    text("tokens", "first or words: what the mean is over."),
    _NEURON,
    text("kind", "Where the neuron is an outlier: first_row, layers, both, or random for ten others."),
    number("value", "Mean value."),
    number("deviations", "Its distance from other neurons, in standard deviations."),
    _N_TOKENS,
), optional=True)  # fmt: skip

FIRST_ROW = Schema("first_row", "with `--path`, a row per outlier and change of the first position's embedding", (
    layer_column(), _NEURON,
    text("kind", "intact, outliers or random: which entries of the first row are those of other rows."),
    whole("draw", "Number of the random draw."),
    text("neurons", "The neurons whose entries are changed."),
    number("value", "Distance of the neuron from others, in standard deviations."),
    number("effect", "Its difference from the intact model.", form="+.3f"),
    text("outlier", "Whether it is an outlier: yes or no."),
    *_P, _N_TOKENS,
), optional=True)  # fmt: skip

SMOOTHING_SENTENCES = Schema("smoothing_sentences", "with `--smoothing_bound`, a row per block and sentence", (
    whole("sentence", "Index of the sentence."), layer_column("The block's output."), _N_TOKENS,
    *(number(name, meaning) for name, meaning in _OF_SENTENCE.items()),
), optional=True)  # fmt: skip


def _beside(kind: str) -> tuple[Column, ...]:
    """Return the columns of the effects of drawn sets of neurons."""
    return (
        number(kind, f"Mean effect of the {kind} sets.", form="+.3f"),
        number(f"{kind}_lowest", "The lowest of these effects.", form="+.3f"),
        number(f"{kind}_highest", "The highest of these effects.", form="+.3f"),
        number(f"{kind}_percentile", "Percentage of these sets that do less harm.", form=".0f"),
        number(f"{kind}_p", "(1 + number of these sets that do at least as much harm) / (1 + number of sets)."),
    )


_OF_CHANGE = (
    whole("changed_layer", "Layer whose neurons are changed."),
    text("kind", "What replaces the neurons."),
    whole("k", "Number of neurons that are changed."),
    text("task", "Task of the run whose classes are erased and read; absent for position."),
    text("readout", "What is read."),
    layer_column("Layer that is read."),
    whole("head", "Position head that is read."),
    whole("offset", "Its offset."),
)

NEURON_INTERVENTIONS = Schema("neuron_interventions", "with `--neurons` or `--from_run`, a row per set and readout", (
    *_OF_CHANGE,
    text("neurons", "The neurons."),
    number("intact", "The readout of the intact model."),
    number("value", "The readout with these neurons changed."),
    effect("The second minus the first, paired by sentence"),
    *_beside("random"), *_beside("matched"),
    number("all_neurons", "With kind interchange, the readout with all neurons of the layer exchanged."),
    number("difference", "Of readout words, by how many nats the intact log odds differ in a pair, on average."),
    whole("n_as_given", "Of readout words, the number of pairs in which this difference is as the file has it."),
    whole("n", "Number of sentences, or of pairs."),
), optional=True)  # fmt: skip

NEURON_DRAWS = Schema("neuron_draws", "with `--neurons` or `--from_run`, a row per set, drawn ones too, and readout", (
    *_OF_CHANGE,
    text("set", "chosen, random or matched."),
    whole("draw", "Number of the draw."),
    number("effect", "Difference from the intact model on the sentences that drawn sets are read on.", form="+.3f"),
), optional=True)  # fmt: skip

SCHEMAS = (
    GEOMETRY, OUTLIERS, DIMENSIONS, PARAMETERS, EXPLAINED, FIRST_TOKEN, SMOOTHING, SMOOTHING_SENTENCES, INTERVENTIONS,
    NORMS, NORM_CHANGES, PATH, FIRST_ROW, NEURON_INTERVENTIONS, NEURON_DRAWS, *position.SCHEMAS,
    *EXTREMES,
)  # fmt: skip

Row = Mapping[str, Any]

# Headings of the columns, by transform and by definition of outliers.
TRANSFORMS = {
    "none": "untransformed",
    "clip": "clipped",
    "clip_random": "others clipped",
    "center": "centred",
    "standardise": "standardised",
    "whiten": "whitened",
    "all_but_the_top": "all but the top",
}

DEFINITIONS = {
    "mean_profile": "far mean (sd)",
    "variance": "variance (x mean)",
    "argmin_share": "smallest of",
    "argmax_share": "largest of",
    "layer_norm": "LayerNorm (layers)",
}

SOURCES = ("position", "frequency", "token", "punctuation", "special", "all")

# Advice where a covariance was fitted on too few vectors.
MORE_TEXT = "Fit it on more text with `--fit_corpus`, or keep fewer directions of whitening with `--components`."

# Number of neurons that a table in the terminal shows; the files have all.
SHOWN, N_EXPLAINED = 8, 3


class Tables(Protocol):
    """The tables of a run."""

    @property
    def geometry(self) -> list[dict[str, Any]]:
        """Rows of `geometry.csv`."""
        ...

    @property
    def outliers(self) -> list[dict[str, Any]]:
        """Rows of `outliers.csv`."""
        ...

    @property
    def dimensions(self) -> list[dict[str, Any]]:
        """Rows of `dimensions.csv`."""
        ...

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Rows of `parameters.csv`."""
        ...

    @property
    def explained(self) -> list[dict[str, Any]]:
        """Rows of `explained.csv`."""
        ...


def values_of(geometry: Sequence[Row]) -> dict[tuple[int, str, str], Row]:
    """Return the rows of `geometry.csv` by layer, transform and measure."""
    return {(row["layer"], row["transform"], row["measure"]): row for row in geometry}


def layers_of(geometry: Sequence[Row]) -> list[int]:
    """Return the layers that were measured, ascending."""
    return sorted({row["layer"] for row in geometry})


def tables(geometry_tables: Tables) -> list[Any]:
    """Return all tables that have rows, as rich tables."""
    return [
        table
        for table in (
            _outliers_table(geometry_tables),
            _anisotropy_table(geometry_tables),
            _transforms_table(geometry_tables.geometry),
            _smoothing_table(geometry_tables.geometry),
            _parameters_table(geometry_tables),
            _explained_table(geometry_tables),
        )
        if table.row_count
    ]


def conclusions(geometry_tables: Tables, clipped: Mapping[int, Sequence[int]]) -> list[str]:
    """Return the conclusions from the tables and the clipped neurons of each layer, a sentence for each question."""
    by_measure, layers = values_of(geometry_tables.geometry), layers_of(geometry_tables.geometry)
    return [
        _which(clipped),
        _why(by_measure, layers, geometry_tables.dimensions),
        *_does_clipping_help(by_measure, layers, clipped),
        _alike(by_measure, layers),
        *size_lines(geometry_tables.geometry, MORE_TEXT),
        *_why_no_intervals(by_measure, layers),
    ]


def _why_no_intervals(by_measure: Mapping[tuple[int, str, str], Row], layers: Sequence[int]) -> list[str]:
    sampled_rows = [row for k in layers if (row := by_measure.get((k, "none", "mean_cosine_one_per_sentence")))]
    few = few_sentences(min(row["n_tokens"] for row in sampled_rows), "sentence") if sampled_rows else None
    return [few] if few else []


def _which(clipped: Mapping[int, Sequence[int]]) -> str:
    parts = [
        f"layer {layer}: {', '.join(map(str, neurons)) if neurons else 'none'}" for layer, neurons in clipped.items()
    ]
    return f"Outlier dimensions: {'; '.join(parts)}."


def _why(by_measure: Mapping[tuple[int, str, str], Row], layers: Sequence[int], dimensions: Sequence[Row]) -> str:
    layer = max(layers, key=lambda layer: by_measure[layer, "none", "mean_cosine"]["value"])
    cosine, energy = (by_measure[layer, "none", name]["value"] for name in ("mean_cosine", "mean_energy_share"))
    centred = by_measure[layer, "none", "mean_cosine_centred"]["value"]
    share, neuron = max((row["cosine_share"], row["neuron"]) for row in dimensions if row["layer"] == layer)
    by_neuron = f", of which neuron {neuron} alone makes up {share:.0%}" if share == share else ""
    return (
        f"The mean cosine is highest in layer {layer}: {cosine:.3f}{by_neuron}. The mean vector holds {energy:.0%} of "
        f"the squared length; without it, the mean cosine is {centred:.3f}."
    )


def _does_clipping_help(
    by_measure: Mapping[tuple[int, str, str], Row], layers: Sequence[int], clipped: Mapping[int, Sequence[int]]
) -> list[str]:
    clipped_layers = [layer for layer in layers if (layer, "clip", "mean_cosine") in by_measure]
    if not clipped_layers:
        return []
    layer = max(clipped_layers, key=lambda layer: by_measure[layer, "none", "mean_cosine"]["value"])
    before, after = (by_measure[layer, name, "mean_cosine"]["value"] for name in ("none", "clip"))
    neurons = ", ".join(map(str, clipped[layer]))
    sentence = f"Clipping {neurons} changes the mean cosine of layer {layer} from {before:.3f} to {after:.3f}"
    if random := by_measure.get((layer, "clip_random", "mean_cosine")):
        sentence += (
            f"; clipping as many other neurons gives {random['value']:.3f}"
            f"{in_brackets(interval(random, between=' to '))}"
        )
    return [sentence + "."]


def _alike(by_measure: Mapping[tuple[int, str, str], Row], layers: Sequence[int]) -> str:
    compared_layers = [layer for layer in layers if (layer, "none", "token_similarity") in by_measure]
    if not compared_layers:
        return "No sentence has two tokens to compare."
    ends = [
        (layer, by_measure[layer, "none", "token_similarity"], by_measure[layer, "none", "relative_distance"]["value"])
        for layer in dict.fromkeys((compared_layers[0], compared_layers[-1]))
    ]
    parts = [
        f"{row['value']:.3f} in layer {layer} (distance to equal rows: {distance:.0%} of the norm)"
        for layer, row, distance in ends
    ]
    return f"Two tokens of one sentence have a mean cosine of {' and '.join(parts)}."


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _outliers_table(geometry_tables: Tables) -> Any:
    """Tabulate layers by definitions; a star marks neurons detected only with special tokens, a ring only without."""
    table = _table("Outlier dimensions by five definitions (* only with special tokens, ° only without them)", "layer")
    for heading in DEFINITIONS.values():
        table.add_column(heading)
    for layer in dict.fromkeys(
        [*layers_of(geometry_tables.geometry), *(row["layer"] for row in geometry_tables.outliers)]
    ):
        layer_rows = [row for row in geometry_tables.outliers if row["layer"] == layer]
        table.add_row(str(layer), *(_named([r for r in layer_rows if r["definition"] == name]) for name in DEFINITIONS))
    return table


def _named(rows: Sequence[Row]) -> str:
    by_neuron: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["special_tokens"] == "exclude"):
        by_neuron.setdefault(row["neuron"], []).append(row)
    return ", ".join(
        f"{neuron}{_mark(neuron_rows)} ({_amount(neuron_rows[-1])})" for neuron, neuron_rows in by_neuron.items()
    )


def _mark(rows: Sequence[Row]) -> str:
    which = {row["special_tokens"] for row in rows}
    return "" if which in ({"exclude", "include"}, {""}) else "*" if which == {"include"} else "°"


def _amount(row: Row) -> str:
    if row["definition"].endswith("share"):
        return f"{row['value']:.0%}"
    return f"{row['value']:.0f}" if row["definition"] == "layer_norm" else f"{row['value']:.1f}"


def _anisotropy_table(geometry_tables: Tables) -> Any:
    by_measure = values_of(geometry_tables.geometry)
    table = _table(
        "Anisotropy", "layer", "mean cosine", "one per sentence", "95% range", "centred", "energy in mean",
        "IsoScore", "largest share", "neuron",
    )  # fmt: skip
    for layer in layers_of(geometry_tables.geometry):
        layer_rows = [
            row
            for row in geometry_tables.dimensions
            if row["layer"] == layer and row["cosine_share"] == row["cosine_share"]
        ]
        top = max(layer_rows, key=lambda row: abs(row["cosine_share"]), default=None)
        sampled_row = by_measure.get((layer, "none", "mean_cosine_one_per_sentence"))
        table.add_row(
            str(layer),
            _number(by_measure, layer, "none", "mean_cosine"),
            _number(by_measure, layer, "none", "mean_cosine_one_per_sentence"),
            interval(sampled_row) if sampled_row else "",
            _number(by_measure, layer, "none", "mean_cosine_centred"),
            _number(by_measure, layer, "none", "mean_energy_share"),
            _number(by_measure, layer, "none", "isoscore"),
            f"{top['cosine_share']:.0%}" if top else "",
            str(top["neuron"]) if top else "",
        )
    return table


def _number(by_measure: Mapping[tuple[int, str, str], Row], layer: int, transform: str, measure: str) -> str:
    row = by_measure.get((layer, transform, measure))
    return f"{row['value']:.3f}" if row else ""


def _transforms_table(geometry: Sequence[Row]) -> Any:
    by_measure = values_of(geometry)
    transforms = [name for name in TRANSFORMS if any(row["transform"] == name for row in geometry)]
    headings = [label(TRANSFORMS[name], (row for row in geometry if row["transform"] == name)) for name in transforms]
    table = _table("Mean cosine", "layer", *headings)
    for layer in layers_of(geometry) if len(transforms) > 1 else ():
        table.add_row(str(layer), *(_number(by_measure, layer, name, "mean_cosine") for name in transforms))
    return table


def _smoothing_table(geometry: Sequence[Row]) -> Any:
    by_measure = values_of(geometry)
    table = _table(
        "Similarity of the tokens of one sentence, and of one word in several sentences",
        "layer", "token similarity", "clipped", "distance",
        "of the norm", "to layer before", "one word", "minus mean cosine",
    )  # fmt: skip
    for layer in layers_of(geometry):
        distance = by_measure.get((layer, "none", "distance_to_equal_rows"))
        table.add_row(
            str(layer),
            _number(by_measure, layer, "none", "token_similarity"),
            _number(by_measure, layer, "clip", "token_similarity"),
            f"{distance['value']:.1f}" if distance else "",
            _number(by_measure, layer, "none", "relative_distance"),
            _number(by_measure, layer, "none", "distance_ratio"),
            _number(by_measure, layer, "none", "self_similarity"),
            _number(by_measure, layer, "none", "self_similarity_adjusted"),
        )
    return table


def most_named(outliers: Sequence[Row], n: int = SHOWN) -> list[int]:
    """Return the neurons named most often over layers, definitions and token sets; ties by lower index."""
    counts: dict[int, int] = {}
    for row in outliers:
        counts[row["neuron"]] = counts.get(row["neuron"], 0) + 1
    return sorted(counts, key=lambda neuron: (-counts[neuron], neuron))[:n]


def _parameters_table(geometry_tables: Tables) -> Any:
    """Tabulate each outlier's rank by magnitude in the parameters that have a value for each neuron."""
    table = _table(
        "Outliers in the parameters: rank by magnitude (1 is the farthest from 0)", "neuron", "position 0",
        "median position", "first in", "mean token", "best gain", "in first 3", "best bias", "in first 3",
    )  # fmt: skip
    for neuron in most_named(geometry_tables.outliers) if geometry_tables.parameters else ():
        neuron_rows = [row for row in geometry_tables.parameters if row["neuron"] == neuron]
        positions = [row for row in neuron_rows if row["parameter"] == "position" and row.get("position") is not None]
        ranks = sorted(row["absolute_rank"] for row in positions)
        first = next((row for row in positions if row["position"] == 0), None)
        token = next((row for row in neuron_rows if row["parameter"] == "mean_token"), None)
        table.add_row(
            str(neuron),
            str(first["absolute_rank"]) if first else "n/a",
            str(ranks[len(ranks) // 2]) if ranks else "n/a",
            f"{sum(rank == 1 for rank in ranks)} of {len(ranks)}" if ranks else "n/a",
            str(token["absolute_rank"]) if token else "n/a",
            *(cell for kind in ("gain", "bias") for cell in _best([r for r in neuron_rows if r["parameter"] == kind])),
        )
    return table


def _best(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the best rank over LayerNorms, and the number of LayerNorms with a rank among the first three."""
    ranks = [row["absolute_rank"] for row in rows]
    return (str(min(ranks)), f"{sum(rank <= 3 for rank in ranks)} of {len(ranks)}") if ranks else ("n/a", "n/a")


def _explained_table(geometry_tables: Tables) -> Any:
    """Tabulate partial R^2 by source with R^2 alone in parentheses, and the joint R^2; other neurons as a mean."""
    table = _table(
        f"What explains a layer's first {N_EXPLAINED} outliers: partial R squared (R squared alone)",
        "layer",
        "neuron",
        *SOURCES,
    )
    which = "include" if any(row["special_tokens"] == "include" for row in geometry_tables.explained) else "exclude"
    shown_rows = [row for row in geometry_tables.explained if row["special_tokens"] == which]
    for layer in sorted({row["layer"] for row in shown_rows}):
        of_layer = [row for row in shown_rows if row["layer"] == layer]
        outliers = [row for row in of_layer if row["kind"] == "outlier"]
        outlier_neurons = {row["neuron"] for row in outliers}
        for neuron in most_named(
            [row for row in geometry_tables.outliers if row["neuron"] in outlier_neurons], N_EXPLAINED
        ):
            table.add_row(str(layer), str(neuron), *(_shares(outliers, source, neuron) for source in SOURCES))
        others = [row for row in of_layer if row["kind"] == "random"]
        if others:
            table.add_row(str(layer), "others", *(_shares(others, source) for source in SOURCES), end_section=True)
    return table


def _shares(rows: Sequence[Row], source: str, neuron: int | None = None) -> str:
    """Return the mean shares of a source over neurons, or the shares of one neuron."""
    source_rows = [row for row in rows if row["source"] == source and neuron in (None, row["neuron"])]
    if not source_rows:
        return ""
    partial, alone = (sum(row[name] for row in source_rows) / len(source_rows) for name in ("partial", "alone"))
    return f"{alone:.2f}" if source == "all" else f"{partial:.2f} ({alone:.2f})"
