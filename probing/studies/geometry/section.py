"""The section of a page on the geometry of a model's layers, with the measurements inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.page.charts import line_chart
from probing.page.terms import ACCURACY, TRANSFORMS
from probing.results import Html, Row, as_in_terminal, element, ends, in_brackets, interval, table
from probing.runs import Result, Terms
from probing.statistics import label, size_lines
from probing.studies.geometry import extremes
from probing.studies.geometry import neurons as neuron_interventions
from probing.studies.geometry.extremes import (
    COURSE_COLUMNS,
    HELD_OUTLIERS,
    MASSIVE,
    MASSIVE_COURSE,
    SINK_COLUMNS,
    SINKS,
)
from probing.studies.geometry.inside import inside_conclusions, inside_tables
from probing.studies.geometry.position import position_conclusions, position_tables
from probing.studies.geometry.tables import MORE_TEXT
from probing.tables.figures import Line
from probing.tables.heads import first_token_conclusions, first_token_tables


def geometry_section(geometry: Result, anchor: str) -> Html:
    """Return the measures of each layer, its outlier dimensions, and the measurements inside the model."""
    transforms = list(dict.fromkeys(row["transform"] for row in geometry.geometry))
    cosines = [row for row in geometry.geometry if row["measure"] == "mean_cosine"]
    return element(
        "section",
        element("h2", geometry.study.heading(geometry)),
        _cosines(cosines) if cosines else None,
        *(element("p", sentence) for sentence in size_lines(geometry.geometry, MORE_TEXT)),
        *(_measures(geometry, transform) for transform in transforms),
        _outliers(geometry) if geometry.outliers else None,
        *_first_token(geometry),
        *_position(geometry),
        *_extremes(geometry),
        *_inside(geometry),
        id=anchor,
    )


def _first_token(geometry: Result) -> list[Html]:
    """Return the results on the first token of each sentence, where it is excluded from all others."""
    if not geometry.first_token:
        return []
    excluded_note = "The measures above are those of all tokens but the first one of each sentence."
    return _terminal_section("The first token", first_token_tables(geometry.first_token), [
        excluded_note, *first_token_conclusions(geometry.first_token)
    ])  # fmt: skip


def _position(geometry: Result) -> list[Html]:
    tables = position_tables(geometry.by_name)
    return _terminal_section("Position", tables, position_conclusions(geometry.by_name)) if tables else []


def _extremes(geometry: Result) -> list[Html]:
    tables = extremes.tables(geometry.by_name)
    return (
        _terminal_section("Massive activations and attention sinks", tables, extremes.conclusions(geometry.by_name))
        if tables
        else []
    )


def _inside(geometry: Result) -> list[Html]:
    """Return the results that were measured by running the model."""
    measurements = (
        geometry.smoothing, geometry.interventions, geometry.norms, geometry.norm_changes, geometry.path,
        geometry.first_row,
    )  # fmt: skip
    neurons = geometry.neuron_interventions
    tables = [*inside_tables(*measurements), *neuron_interventions.tables(neurons)]
    lines = [*inside_conclusions(*measurements), *neuron_interventions.conclusions(neurons)]
    return _terminal_section("Inside the model", tables, lines) if tables else []


def _terminal_section(heading: str, tables: Sequence[Any], lines: Sequence[str]) -> list[Html]:
    """Return sentences and tables of the terminal under a heading."""
    shown = [element("figure", element("figcaption", t.title), as_in_terminal(t)) for t in tables]
    return [element("h3", heading), *(element("p", sentence) for sentence in lines), *shown]


def _cosines(rows: Sequence[Row]) -> Html:
    """Return the mean cosine of tokens by layer, before and after each transform."""
    lines = []
    for transform in dict.fromkeys(row["transform"] for row in rows):
        transform_rows = sorted((row for row in rows if row["transform"] == transform), key=lambda row: row["layer"])
        layers, values = [row["layer"] for row in transform_rows], [row["value"] for row in transform_rows]
        lines.append(Line(label(str(transform), transform_rows), layers, values, [ends(row) for row in transform_rows]))
    title = "Mean cosine of the hidden states of two tokens, by layer and transform (values below 0 are drawn at 0)"
    return element("figure", element("figcaption", title), line_chart(lines, title))


def _measures(geometry: Result, transform: str) -> Html:
    rows = [row for row in geometry.geometry if row["transform"] == transform]
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    by_measure = {(row["layer"], row["measure"]): row for row in rows}
    body = [
        [layer, *(_value(by_measure.get((layer, measure))) for measure in measures)]
        for layer in sorted({row["layer"] for row in rows})
    ]
    name = "without a transform" if transform == "none" else f"after {label(transform, rows)}"
    head = ["layer", *(str(measure).replace("_", " ") for measure in measures)]
    return element("details", element("summary", f"Measures of each layer, {name}"), table(head, body))


def _outliers(geometry: Result) -> Html:
    head = list(geometry.outliers[0])
    body = [[_cell(row[name]) for name in head] for row in geometry.outliers]
    summary = element("summary", f"Outlier dimensions: {len(body)} rows")
    return element("details", summary, table([name.replace("_", " ") for name in head], body))


def _value(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['value']:.3g}{in_brackets(interval(row, between=' to ', form='.3g'))}"


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# --------------------------------------------------------------------------------------------------------------------
# Meanings of the headings of `geometry` on a page.
# --------------------------------------------------------------------------------------------------------------------

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

GEOMETRY: Terms = {
    **TRANSFORMS,
    "layer": ACCURACY["layer"] + " In the table of outliers, all stands for all layers but the embeddings together.",
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
    "block": "Number of the block; its output is the layer of the same number.",
    "measured": "Distance of a sentence to equal rows after the block, divided by the distance before it.",
    "σ1": "Least standard deviation, over neurons, among the tokens that enter the block's first LayerNorm.",
    "σ2": "The same for the second LayerNorm.",
    "σ1σ2": "Product of σ1 and σ2.",
    "above 1": "Share of the sentences in which that product is above 1, in which case small weights would make "
    "tokens more similar.",
    "gains": "Product of the largest gains of the two LayerNorms.",
    "attention": "Largest factor by which the attention of the block can multiply the distance.",
    "FFN": "Largest factor by which its feed-forward layer can multiply the distance.",
    "bound": "Largest factor by which the block can multiply the distance: attention x FFN x gains / σ1σ2.",
    "published": "The bound as published, with one singular value for all matrices and without gains.",
    "closest": "Largest share of the bound that the distance of any sentence reaches.",
    "taken out": "Where the neurons are set to 0: inside the model, so that later blocks cannot read them, or after "
    "it.",
    "effect": "Change of the measure in the title of the table.",
    "95% range": "Interval of the effect over sentences.",
    "random others": "Range of the effects of as many other neurons, drawn at random.",
    "worse than": "Share of these draws that do less harm than the outliers.",
    "p": "Probability that random other neurons do as much harm; of distances, that they reduce them as much with both "
    "norms made ordinary.",
    "large gains": "Effect of as many other neurons, those with the largest LayerNorm gains.",
    "norm": "Number of the norm within the block, in the order in which the block calls its norms.",
    "mean": "Mean of the neuron behind the norm: the sum of the four terms to the right.",
    "sd": "Distance of that mean from the mean of all neurons, in standard deviations of the neurons.",
    "input": "What the mean would be with the gain that other neurons have on average, and without a bias.",
    "own gain": "What the neuron's own gain adds to that.",
    "own bias": "What the neuron's own bias adds to the bias that other neurons have on average.",
    "others' bias": "Mean bias of the neurons that are no outliers.",
    "largest": "The term of input, own gain and own bias that is largest in magnitude.",
    "intact": "The distance in standard deviations in the model as it is.",
    "the first norm": "The distance, or the effect, with ordinary gains and biases in the first norm of every block; "
    "in brackets the range with those of random neurons made ordinary instead.",
    "the second norm": "The same with the second norm of every block.",
    "both norms": "The same with both.",
    "in": "In which norms of every block the outliers have the gain and the bias of other neurons.",
    "tokens": "Whether the mean is over the first tokens of sentences, or over words.",
    "first position": "Distance of the neuron from the others in the position embedding of the first token.",
    "places": "Number of places on the residual stream at which the neuron is more than 5 standard deviations from the "
    "mean of all neurons.",
    "from": "First of these places, with the number of its block.",
    "to": "Last of them.",
    "farthest": "Largest distance anywhere on the stream, and where.",
    "below at": "The place after the last one, where the neuron is within 5 standard deviations again.",
}

CHANGED_NEURONS: Terms = {
    "read": "What is read of later layers: probes of position or of a run's own task, as they were and trained again, "
    "heads that attend to a fixed offset, masked words, or the similarity of sentences or words. Target: the share "
    "that probes read as the class that examples are moved to. Counterpart: the share of examples that are read "
    "differently in two sentences and now as in the other one. Log odds carried: the share of the difference "
    "between two texts in the log odds of two words at the mask.",
    "k": "Number of neurons that are changed, the first of the ranking; all: all neurons of the layer.",
    "effect": "Difference from the whole model.",
    "95% range": "Its interval over sentences, or pairs of sentences.",
    "random sets": "Least and largest effect of as many random neurons.",
    "matched in sd": "Least and largest effect of neurons with about the same standard deviations.",
    "p": "Share of the sets to the left with at least as much loss, the changed neurons counted among them.",
}

# --------------------------------------------------------------------------------------------------------------------
# Meanings of the headings of `geometry --position` on a page.
# --------------------------------------------------------------------------------------------------------------------

POSITION: Terms = {
    "layer": ACCURACY["layer"],
    "position": "Share of the variance that positions add to sentences, without what is by chance.",
    "by chance": "Share that they would add if the tokens of each sentence stood in random order; it is taken off.",
    "context": "Share that sentences add to positions.",
    "shared": "Share that either of the two explains.",
    "rest": "Share that neither explains.",
    "position, standardised": "Share of position if every neuron counts as if its variance were 1.",
    "position alone": "Share of the means of positions, whatever else these differ in, without what is by chance.",
    "directions": "Number of directions of the position part that describe sentences which were left out.",
    "slow": "Share of the position part in the lowest tenth of the frequencies along the sentence.",
    "with context": "How far its directions are those of the context part: 1 if the same, 0 if at right angles.",
    "other half": "The same of the two halves of the sentences, the most one can expect.",
    "layer below": "The same of the layer below.",
    "read": "Share of the tokens whose position is read in these directions, in sentences that were left out.",
    "in longer": "The same in sentences longer than all that were fitted.",
    "half in neurons": "Number of neurons that hold half of it; in brackets the lowest and the highest number of "
    "directions of random rotations that do.",
    "standardised": "The same if every neuron counts as if its variance were 1.",
    "first of fit": "What the first neurons of the ranking of `fit` hold.",
    "by eta squared": "What the first neurons by eta squared hold.",
    "that hold most": "What the neurons hold that hold most, chosen in half of the sentences, measured in the other.",
    "random": "What as many random neurons hold: median and range of 20 draws.",
    "of a rotation": "What as many neurons, chosen and measured alike, hold of a random rotation of it.",
    "own directions": "What as many of its own directions have, chosen and measured alike.",
}

# --------------------------------------------------------------------------------------------------------------------
# Meanings of the headings of `geometry --extremes` on a page.
# --------------------------------------------------------------------------------------------------------------------

EXTREMES: Terms = {
    "layer": "Number of the layer; 0 is the embedding output, k the output of block k. Of attention, the block.",
    "median": MASSIVE["median"].meaning,
    "on": "Kind of token that the largest value of the layer is on.",
    "massive": "Number of tokens with a value above 100 and 1,000 times the median magnitude (Sun et al. 2024).",
    "of token": "Share of all values that are more than 5 sd from the mean of their token's neurons.",
    "of neuron": "Share of all values that are more than 5 sd from the mean of their neuron over tokens.",
    **MASSIVE_COURSE.terms(COURSE_COLUMNS),
    **{name: text for name, text in SINKS.terms(SINK_COLUMNS).items() if name not in ("layer", "token")},
    "k": HELD_OUTLIERS["k"].meaning + " Outliers of the layer that enters the block.",
    "divergence": HELD_OUTLIERS["divergence"].meaning,
    "special": HELD_OUTLIERS["special"].meaning,
    "held": HELD_OUTLIERS["special_held"].meaning,
    "matched": "The number before it with as many other neurons of about the same sd held, a mean over the sets.",
    "scaled": "The same with what is taken away scaled to the variance of the outliers.",
    "p": "Share of these sets, and of the outliers, that change as much.",
    "sd ratio": HELD_OUTLIERS["sd_ratio"].meaning,
    "largest": "Largest magnitude: of all values of the layer, or of the neuron on these tokens in any layer.",
    "x median": "That divided by the median magnitude of the layer.",
}
