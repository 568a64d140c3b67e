"""Tables and sentences of `geometry` for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from probing.results import (
    Column,
    Row,
    Schema,
    Table,
    View,
    by_layer_table,
    cells_table,
    count,
    estimated,
    in_brackets,
    interval,
    layer_number,
    listed,
    number,
    rounded,
    text,
    whole,
)
from probing.runs import Result, Terms
from probing.statistics import few_sentences, label, size_lines
from probing.tables.figures import Chart, Line, Panel
from probing.tables.outlier_effects import N_TOKENS, RANKED, SPECIAL_TOKENS, changed
from probing.tables.schema import SIZES, block, layer_column, value

_NEURON = whole("neuron", "Index of the neuron.")


GEOMETRY = Schema("geometry", "a row per layer, transform and measure", (
    layer_column(),
    text("transform", "Transform of the hidden states: none, clip, clip_random (mean and range of the draws), whiten, "
         "standardise, center or all_but_the_top."),
    text("measure", "What is measured."),
    value("Its value"),
    N_TOKENS, *SIZES,
))  # fmt: skip

OUTLIERS = Schema("outliers", "a row per definition, layer and outlier", (
    text("definition", "Definition by which the neuron is an outlier."),
    layer_column("Number of the layer; all stands for all layers but the embeddings."),
    _NEURON,
    number("value", "How strong an outlier it is, in the unit of the definition.", form=".3g"),
    SPECIAL_TOKENS,
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
    SPECIAL_TOKENS,
    text("source", "What explains: position, token, sentence, ..."),
    number("alone", "Share of the neuron's variance that the source explains alone."),
    number("partial", "Share that it explains of what the other sources leave."),
    N_TOKENS,
))  # fmt: skip

FIRST_TOKEN = Schema("first_token", "with `--first_token exclude`, a row per layer, choice of tokens and measure", (
    layer_column(),
    text("first_token", "Tokens that are measured: exclude (without the first), include, only."),
    text("measure", "rms_norm, mean_energy_share, mean_cosine, farthest_mean, or the definition of an outlier."),
    whole("neuron", "Neuron that the measure is of."),
    number("value", "Its value."),
    N_TOKENS,
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


NORMS = Schema("norms", "with `--norms`, a row per norm of a block and neuron", (
    Column("layer", layer_number, "Number of the block; its output is the layer of the same number.", "block"),
    whole("norm", "Number of the norm within the block, in the order in which the block calls its norms."),
    text("module", "Name of the norm's module."),
    _NEURON,
    text("kind", "outlier, or random for ten other neurons."),
    number("mean", "Mean of the neuron behind the norm: the sum of input, own gain, own bias and others' bias.",
           form="+.2f"),
    number("deviations", "Distance of that mean from the mean of all neurons, in standard deviations of the neurons.",
           "sd", "+.1f"),
    number("gain", "The neuron's gain."),
    number("bias", "The neuron's bias."),
    number("others_gain", "Mean gain of other neurons."),
    number("others_bias", "Mean bias of other neurons."),
    number("standardised", "Mean input as the norm standardises it."),
    number("by_scaled_input", "Term of the formula: the scaled input."),
    number("by_centring", "Term of the formula: the subtracted mean."),
    number("by_input", "What the mean would be with the gain that other neurons have on average, and without a bias.",
           "input", "+.2f"),
    number("by_gain", "What the neuron's own gain adds to that.", "own gain", "+.2f"),
    number("by_bias", "What the neuron's own bias adds to the bias that other neurons have on average.", "own bias",
           "+.2f"),
    number("by_others_bias", "Mean bias of the neurons that are no outliers.", "others' bias", "+.2f"),
    text("largest", "The term of input, own gain and own bias that is largest in magnitude."),
    N_TOKENS,
), optional=True)  # fmt: skip

NORM_CHANGES = Schema("norm_changes", "with `--norms`, a row per measure and change of gains and biases", (
    text("measure", "deviations, mlm_loss, position_accuracy or position_accuracy_retrained."),
    layer_column(), _NEURON,
    *changed("in the first norm of every block, the second, or both", "intact, outliers or random"),
    text("outlier", "Whether the neuron is an outlier: yes or no."),
    *RANKED, N_TOKENS,
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
    N_TOKENS,
), optional=True)  # fmt: skip

FIRST_ROW = Schema("first_row", "with `--path`, a row per outlier and change of the first position's embedding", (
    layer_column(), _NEURON,
    text("kind", "intact, outliers or random: which entries of the first row are those of other rows."),
    whole("draw", "Number of the random draw."),
    text("neurons", "The neurons whose entries are changed."),
    number("value", "Distance of the neuron from others, in standard deviations."),
    number("effect", "Its difference from the intact model.", form="+.3f"),
    text("outlier", "Whether it is an outlier: yes or no."),
    *RANKED, N_TOKENS,
), optional=True)  # fmt: skip

SMOOTHING_SENTENCES = Schema("smoothing_sentences", "with `--smoothing_bound`, a row per block and sentence", (
    whole("sentence", "Index of the sentence."), layer_column("The block's output."), N_TOKENS,
    *(number(name, meaning) for name, meaning in _OF_SENTENCE.items()),
), optional=True)  # fmt: skip

SCHEMAS = (
    GEOMETRY, OUTLIERS, DIMENSIONS, PARAMETERS, EXPLAINED, FIRST_TOKEN, SMOOTHING, SMOOTHING_SENTENCES, NORMS,
    NORM_CHANGES, PATH, FIRST_ROW,
)  # fmt: skip

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

EXCLUDED = "These measures are of all tokens but the first token of each sentence."

# Number of neurons that a table in the terminal shows; the files have all.
SHOWN, N_EXPLAINED = 8, 3
# Cell of a rank in parameters that the model does not have.
_NONE = "n/a"


SENTENCES = {
    "outliers": "Outlier dimensions: {by_layer}.",
    "highest": "The mean cosine is highest in layer {layer}: {cosine}{by_neuron}.",
    "only_layer": "The mean cosine of layer {layer} is {cosine}{by_neuron}.",
    "by_neuron": ", of which neuron {neuron} alone contributes {share}",
    "centred": "The mean vector has {energy:.0%} of the squared length of the hidden states; without it, the mean "
    "cosine is {centred}.",
    "clipped": "Clipping {neurons} changes the mean cosine of layer {layer} from {before} to {after}{random}.",
    "random": "; clipping as many other neurons changes it to {value}",
    "no_pairs": "No sentence has two tokens to compare.",
    "alike": "The mean cosine of two tokens of one sentence is {in_layers}.",
    "alike_in": "{cosine} in layer {layer} (distance to equal rows: {distance} of the norm)",
}


def layers_of(rows: Sequence[Row]) -> list[int]:
    """Return the layers of the rows, ascending."""
    return sorted({row["layer"] for row in rows})


# --- sentences ---


def conclusions(result: Result, clipped: Mapping[int, Sequence[int]]) -> list[str]:
    """Return the conclusions from the tables and the clipped neurons of each layer, a sentence for each question."""
    plain = result.geometry.where(transform="none")
    by_layer = "; ".join(f"layer {layer}: {_listed(neurons) or 'none'}" for layer, neurons in clipped.items())
    return [
        SENTENCES["outliers"].format(by_layer=by_layer),
        _why(plain, result.dimensions),
        *_does_clipping_help(result.geometry, clipped),
        _alike(plain),
        *size_lines(result.geometry, MORE_TEXT),
        *_why_no_intervals(result.geometry),
        *([EXCLUDED] if result.first_token else []),
    ]


def _listed(neurons: Sequence[int]) -> str:
    return ", ".join(map(str, neurons))


def _why_no_intervals(geometry: Table) -> list[str]:
    sampled = geometry.where(transform="none", measure="mean_cosine_one_per_sentence")
    few = few_sentences(min(sampled.column("n_tokens")), "sentence") if sampled else None
    return [few] if few else []


def _highest(cosines: Table) -> Row:
    return max(cosines, key=lambda row: row["value"])


def _why(plain: Table, dimensions: Table) -> str:
    cosines = plain.where(measure="mean_cosine")
    layer, cosine = (_highest(cosines)[name] for name in ("layer", "value"))
    share, neuron = max((row["cosine_share"], row["neuron"]) for row in dimensions.where(layer=layer))
    by_neuron = SENTENCES["by_neuron"].format(neuron=neuron, share=rounded(share, ".0%")) if share == share else ""
    highest = SENTENCES["highest" if len(cosines) > 1 else "only_layer"].format(
        layer=layer, cosine=rounded(cosine, ".3f"), by_neuron=by_neuron
    )
    of_layer = plain.where(layer=layer).by("measure")
    energy, centred = (of_layer[name][0]["value"] for name in ("mean_energy_share", "mean_cosine_centred"))
    return f"{highest} {SENTENCES['centred'].format(energy=energy, centred=rounded(centred, '.3f'))}"


def _does_clipping_help(geometry: Table, clipped: Mapping[int, Sequence[int]]) -> list[str]:
    by_transform = geometry.where(measure="mean_cosine").by("transform")
    if "clip" not in by_transform:
        return []
    of_clipped = by_transform["clip"]
    before = _highest(by_transform["none"].where(layer=tuple(of_clipped.values("layer"))))
    (after,) = of_clipped.where(layer=before["layer"])
    drawn = by_transform.get("clip_random", Table()).where(layer=before["layer"])
    return [SENTENCES["clipped"].format(
        neurons=_listed(clipped[before["layer"]]), layer=before["layer"], before=rounded(before["value"], ".3f"),
        after=rounded(after["value"], ".3f"),
        random="".join(SENTENCES["random"].format(value=estimated(row, "value", ".3f", "")) for row in drawn),
    )]  # fmt: skip


def _alike(plain: Table) -> str:
    by_measure = plain.by("measure")
    if "token_similarity" not in by_measure:
        return SENTENCES["no_pairs"]
    in_layers = []
    for row in by_measure["token_similarity"].first_and_last():
        (distance,) = by_measure["relative_distance"].where(layer=row["layer"])
        in_layers.append(SENTENCES["alike_in"].format(
            cosine=rounded(row["value"], ".3f"), layer=row["layer"], distance=rounded(distance["value"], ".0%")
        ))  # fmt: skip
    return SENTENCES["alike"].format(in_layers=listed(in_layers))


# --- tables of the terminal ---


def tables(result: Result) -> list[Any]:
    """Return all tables that have rows, as rich tables."""
    all_tables = (
        _outliers_table(result), _anisotropy_table(result), _transforms_table(result.geometry),
        _smoothing_table(result.geometry), _parameters_table(result), _explained_table(result),
    )  # fmt: skip
    return [table for table in all_tables if table.row_count]


def _outliers_table(result: Result) -> Any:
    """Tabulate layers by definitions; a star marks neurons detected only with special tokens, a ring only without."""
    by_layer = result.outliers.by("layer")
    layers = dict.fromkeys([*layers_of(result.geometry), *by_layer])
    none = Table()
    return cells_table(
        "Outlier dimensions by five definitions (* only with special tokens, ° only without them)",
        ["layer", *DEFINITIONS.values()],
        (
            [str(layer), *(_named(by_layer.get(layer, none).where(definition=name)) for name in DEFINITIONS)]
            for layer in layers
        ),
        words=[*DEFINITIONS.values()],
    )


def _named(rows: Table) -> str:
    without_last = sorted(rows, key=lambda row: row["special_tokens"] == "exclude")
    by_neuron = Table(without_last).by("neuron")
    return ", ".join(f"{neuron}{_mark(of)} ({_amount(of[-1])})" for neuron, of in by_neuron.items())


def _mark(rows: Table) -> str:
    which = {*rows.column("special_tokens")}
    return "" if which in ({"exclude", "include"}, {""}) else "*" if which == {"include"} else "°"


def _amount(row: Row) -> str:
    if row["definition"].endswith("share"):
        return f"{row['value']:.0%}"
    return f"{row['value']:.0f}" if row["definition"] == "layer_norm" else f"{row['value']:.1f}"


def _anisotropy_table(result: Result) -> Any:
    by_layer = result.dimensions.by("layer")

    def top_neuron(rows: Table) -> str:
        shares = by_layer.get(rows[0]["layer"], Table()).where(lambda row: row["cosine_share"] == row["cosine_share"])
        return str(max(shares, key=lambda row: abs(row["cosine_share"]))["neuron"]) if shares else ""

    one_per_sentence = "mean_cosine_one_per_sentence"
    return by_layer_table("Anisotropy", result.geometry, {
        "mean cosine": _measure("mean_cosine"), "one per sentence": _measure(one_per_sentence),
        "95% range": lambda rows: "".join(map(interval, rows.where(transform="none", measure=one_per_sentence))),
        "centred": _measure("mean_cosine_centred"), "energy in mean": _measure("mean_energy_share"),
        "IsoScore": _measure("isoscore"), "largest share": _measure("top_cosine_share", form=".0%"),
        "neuron": top_neuron,
    })  # fmt: skip


def _measure(measure: str, transform: str = "none", form: str = ".3f") -> Callable[[Table], str]:
    """Return a function from the rows of a layer to the text of a measure, empty without it."""
    return lambda rows: "".join(rounded(row["value"], form) for row in rows.where(transform=transform, measure=measure))


def _transforms_table(geometry: Table) -> Any:
    by_transform = geometry.by("transform")
    names = {label(words, by_transform[name]): name for name, words in TRANSFORMS.items() if name in by_transform}
    cells = {words: _measure("mean_cosine", name) for words, name in names.items()}
    return by_layer_table("Mean cosine", geometry if len(names) > 1 else Table(), cells)


def _smoothing_table(geometry: Table) -> Any:
    title = "Similarity of the tokens of one sentence, and of one word in several sentences"
    return by_layer_table(title, geometry, {
        "token similarity": _measure("token_similarity"), "clipped": _measure("token_similarity", "clip"),
        "distance": _measure("distance_to_equal_rows", form=".1f"), "of the norm": _measure("relative_distance"),
        "to layer before": _measure("distance_ratio"), "one word": _measure("self_similarity"),
        "minus mean cosine": _measure("self_similarity_adjusted"),
    })  # fmt: skip


def most_named(outliers: Sequence[Row], n: int = SHOWN) -> list[int]:
    """Return the neurons named most often over layers, definitions and token sets; ties by lower index."""
    counts = Counter(row["neuron"] for row in outliers)
    return sorted(counts, key=lambda neuron: (-counts[neuron], neuron))[:n]


def _parameters_table(result: Result) -> Any:
    """Tabulate each outlier's rank by magnitude in the parameters that have a value for each neuron."""
    headings = (
        "neuron", "position 0", "median position", "first in", "mean token", "best gain", "in first 3", "best bias",
        "in first 3",
    )  # fmt: skip
    return cells_table(
        "Outliers in the parameters: rank by magnitude (1 is the farthest from 0)",
        headings,
        (
            [str(neuron), *_ranks(result.parameters.where(neuron=neuron))]
            for neuron in (most_named(result.outliers) if result.parameters else ())
        ),
    )


def _ranks(rows: Table) -> Iterator[str]:
    """Yield the ranks of a neuron in the position embedding, in the mean token and in the LayerNorms."""
    positions = rows.where(lambda row: row.get("position") is not None, parameter="position")
    ranks = sorted(positions.column("absolute_rank"))
    yield _rank(positions.where(position=0))
    yield str(ranks[len(ranks) // 2]) if ranks else _NONE
    yield f"{ranks.count(1)} of {len(ranks)}" if ranks else _NONE
    yield _rank(rows.where(parameter="mean_token"))
    for parameter in ("gain", "bias"):
        ranks = rows.where(parameter=parameter).column("absolute_rank")
        yield str(min(ranks)) if ranks else _NONE
        yield f"{sum(rank <= 3 for rank in ranks)} of {len(ranks)}" if ranks else _NONE


def _rank(rows: Table) -> str:
    return str(rows[0]["absolute_rank"]) if rows else _NONE


def of_first_choice(explained: Table) -> Table:
    """Return the rows with special tokens where there are any, otherwise those without."""
    return explained.where(special_tokens="include") or explained.where(special_tokens="exclude")


def _explained_table(result: Result) -> Any:
    """Tabulate partial R^2 by source with R^2 alone in parentheses, and the joint R^2; other neurons as a mean."""
    title = f"What explains a layer's first {N_EXPLAINED} outliers: partial R squared (R squared alone)"
    table = cells_table(title, ["layer", "neuron", *SOURCES], ())
    for layer, rows in sorted(of_first_choice(result.explained).by("layer").items()):
        outliers, others = rows.where(kind="outlier"), rows.where(kind="random")
        of_layer = result.outliers.where(neuron=tuple(outliers.values("neuron")))
        for neuron in most_named(of_layer, N_EXPLAINED):
            table.add_row(str(layer), str(neuron), *_shares(outliers.where(neuron=neuron)))
        if others:
            table.add_row(str(layer), "others", *_shares(others), end_section=True)
    return table


def _shares(rows: Table) -> Iterator[str]:
    """Yield the mean shares of each source over the neurons of the rows."""
    for source in SOURCES:
        if not (of_source := rows.where(source=source)):
            yield ""
            continue
        partial, alone = (rounded(fmean(of_source.column(name)), ".2f") for name in ("partial", "alone"))
        yield alone if source == "all" else f"{partial} ({alone})"


def more_tables(geometry: Result) -> list[Any]:
    """Return all measures of each layer by transform, and the outliers."""
    tables = []
    for transform, rows in geometry.geometry.by("transform").items():
        cells = {measure.replace("_", " "): partial(_value, measure) for measure in rows.values("measure")}
        tables.append(by_layer_table(f"Measures of each layer, {label(TRANSFORMS[transform], rows)}", rows, cells))
    outliers = f"Outlier dimensions: {count(len(geometry.outliers), 'row')}"
    return [*tables, *View(OUTLIERS, title=outliers).tables(geometry.outliers)]


def _value(measure: str, rows: Table) -> str:
    found = rows.where(measure=measure)
    return "".join(f"{row['value']:.3g}{in_brackets(interval(row, between=' to ', form='.3g'))}" for row in found)


# --- charts ---


def charts(geometry: Table) -> list[Chart]:
    """Return the mean cosine with its sources, before and after transforms, and the similarity within sentences."""
    cosines = "mean_cosine_one_per_sentence", "mean_cosine", "mean_cosine_centred"
    sources = "mean_energy_share", "top_cosine_share", "isoscore"
    within = "none", "clip", "center"
    return [
        Chart("anisotropy", "mean cosine of two tokens, and its sources (bars: 95%)", [
            Panel(_by_measure(geometry, cosines), "tokens of all sentences", "mean cosine of two tokens"),
            Panel(_by_measure(geometry, sources), "sources of the mean cosine", "share, or score from 0 to 1"),
        ], reference=0.0),
        Chart("transforms", "transforms of the hidden states (bars: 95%; of others clipped, range of draws)", [
            Panel(_by_transform(geometry, "mean_cosine"), "mean cosine by transform"),
        ], "mean cosine of two tokens", reference=0.0, bars="95% intervals, of others clipped the range of draws"),
        Chart("smoothing", "do the tokens of a sentence become alike?", [
            Panel(_by_transform(geometry, "token_similarity", within), "token similarity",
                  "mean cosine within a sentence"),
            Panel(_by_transform(geometry, "relative_distance", within), "distance to a sentence of equal tokens",
                  "distance to equal rows / norm"),
        ], limits=(0, 1)),
    ]  # fmt: skip


def _by_measure(geometry: Table, measures: Sequence[str]) -> list[Line]:
    untransformed = geometry.where(transform="none").by("measure")
    return [
        Line.of(untransformed[name], "value", name.replace("_", " "), "") for name in measures if name in untransformed
    ]


def _by_transform(geometry: Table, measure: str, only: Sequence[str] = tuple(TRANSFORMS)) -> list[Line]:
    by_transform = geometry.where(measure=measure).by("transform")
    return [
        Line.of(rows, "value", label(TRANSFORMS[name], rows), "") for name in only if (rows := by_transform.get(name))
    ]


def explained_chart(explained: Table, outliers: Table) -> Chart:
    """Return the partial R² of each source, for the most frequent outliers, in the layers that have them."""
    shown_rows = of_first_choice(explained)
    neurons = most_named(outliers.where(neuron=tuple(explained.values("neuron"))), 4)
    rows_of = {f"neuron {neuron}": shown_rows.where(neuron=neuron, kind="outlier") for neuron in neurons}
    rows_of["mean of other neurons"] = shown_rows.where(kind="random")
    panels = []
    for title, rows in rows_of.items():
        layers = layers_of(rows)
        shares = {
            source: [fmean(rows.where(layer=layer, source=source).column("partial") or [0.0]) for layer in layers]
            for source in SOURCES[:-1]
        }
        panels.append(Panel([Line(source, layers, values, kind="bars") for source, values in shares.items()], title))
    return Chart("explained", "what each source explains of an outlier beyond the others", panels, "partial R²")


# --- meanings of the headings on a page ---

MEASURES: Terms = {
    "mean_cosine": "Mean cosine of the hidden states of two tokens, over all pairs of different tokens.",
    "mean_cosine_one_per_sentence": "The same over tokens of different sentences, one drawn from each.",
    "mean_cosine_centred": "The same after the mean vector is subtracted.",
    "mean_energy_share": "Share of the squared length of the hidden states that lies in their mean vector.",
    "isoscore": "IsoScore: 1 if all directions have the same variance, 0 if only one varies (Rudman et al. 2022).",
    "partition_isotropy": "Smallest value of a partition function divided by its largest, over directions: 1 where "
    "vectors are spread evenly (Mu & Viswanath 2018).",
    "top_cosine_share": "Share of the mean cosine that the neuron with the largest share contributes.",
    "self_similarity": "Mean cosine of the vectors of one word in different sentences.",
    "self_similarity_adjusted": "Self-similarity minus the mean cosine of tokens of different sentences.",
    "intra_sentence_similarity": "Mean cosine of the tokens of a sentence with the mean vector of that sentence.",
    "intra_sentence_similarity_adjusted": "The same minus the mean cosine of tokens of different sentences.",
    "token_similarity": "Mean cosine of two tokens of one sentence.",
    "distance_to_equal_rows": "Distance of a sentence's hidden states to the nearest matrix whose rows, the tokens, "
    "are all equal.",
    "relative_distance": "That distance divided by the norm of the hidden states: 0 if all tokens of a sentence are "
    "equal.",
    "distance_ratio": "That distance divided by the distance in the layer before.",
    "rank": "Number of dimensions that the transform leaves.",
    "mean_cosine_e19": "Mean cosine as Ethayarajh (2019) estimates it, from drawn pairs.",
    "mean_cosine_lkm": "Mean cosine as Luo, Kulmizev & Mao (2021) estimate it, from drawn pairs.",
    "mean_cosine_tvs": "Mean cosine as Timkey & van Schijndel (2021) estimate it, from drawn pairs.",
}

TERMS: Terms = {
    "layer": GEOMETRY["layer"].meaning
    + " In the table of outliers, all stands for all layers but the embeddings together.",
    **{name.replace("_", " "): text for name, text in MEASURES.items()},
    "definition": "Why a neuron is an outlier. argmin_share and argmax_share: it is the smallest or the largest of "
    "most tokens' vectors. mean_profile: its mean is far from the mean neuron's. variance: it varies at least five "
    "times as much as the mean neuron. layer_norm: its LayerNorm parameters deviate in more than three layers.",
    "neuron": "Coordinate of the hidden state.",
    "value": "How strong an outlier the neuron is. Depending on the definition: a share of tokens, standard deviations "
    "with their sign, multiples of the mean variance, or a number of layers.",
    "special tokens": "Whether special tokens such as [CLS] are included.",
    "without the first token": "Neurons with a far mean over the tokens that are measured, and how far it is, in sd.",
    "with it": "The same over these tokens and the first one of each sentence.",
    "first tokens alone": "The same over the first tokens.",
    "norm, without the first token": "Root mean square of the norms of the tokens that are measured.",
    "norm, first tokens": "The same of the first tokens.",
    "mean cosine, without the first token": "Mean cosine of two of the tokens that are measured.",
    "mean cosine, with it": "The same with the first token of each sentence.",
}
