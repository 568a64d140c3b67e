"""The section of a page on the geometry of a model's layers, with the measurements inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from probing.page.charts import chart_html
from probing.page.terms import ACCURACY, TRANSFORMS
from probing.results import Html, Table, View, by_layer_table, count, element, in_brackets, interval
from probing.runs import Result, Terms, folded, framed
from probing.statistics import label, size_lines
from probing.studies.geometry import extremes
from probing.studies.geometry import neurons as neuron_interventions
from probing.studies.geometry.extremes import HELD_OUTLIERS, MASSIVE
from probing.studies.geometry.inside import inside_conclusions, inside_tables
from probing.studies.geometry.position import position_charts, position_conclusions, position_tables
from probing.studies.geometry.tables import MORE_TEXT, NORMS, OUTLIERS, charts
from probing.studies.geometry.tables import TRANSFORMS as NAMES
from probing.tables.figures import Chart
from probing.tables.heads import first_token_conclusions, first_token_tables


@dataclass(frozen=True)
class Part:
    """The results of the layers, or of an option under a heading of the page."""

    heading: str
    tables: Sequence[Any]
    sentences: Sequence[str]
    charts: Sequence[Chart] = ()


def parts(result: Result) -> list[Part]:
    """Return the results of the options that were set."""
    tables, neurons = result.by_name, result.neuron_interventions
    all_parts = (
        Part("The first token", first_token_tables(result.first_token), first_token_conclusions(result.first_token)),
        Part("Position", position_tables(tables), position_conclusions(tables), position_charts(tables)),
        Part("Massive activations and attention sinks", extremes.tables(tables), extremes.conclusions(tables)),
        Part(
            "Inside the model",
            [*inside_tables(tables), *neuron_interventions.tables(neurons)],
            [*inside_conclusions(tables), *neuron_interventions.conclusions(neurons)],
        ),
    )
    return [part for part in all_parts if part.tables or part.sentences]


_EXCLUDED = "The measures above are the measures of all tokens but the first token of each sentence."


def geometry_section(geometry: Result, anchor: str) -> Html:
    """Return the measures of each layer, its outlier dimensions, and the measurements inside the model."""
    content = [figure for chart in charts(geometry.geometry) for figure in chart_html(chart)]
    content += [element("p", sentence) for sentence in size_lines(geometry.geometry, MORE_TEXT)]
    content += folded(more_tables(geometry))
    content += [element("p", _EXCLUDED)] if geometry.first_token else []
    for part in parts(geometry):
        content += [element("h3", part.heading), *(element("p", sentence) for sentence in part.sentences)]
        content += [figure for chart in part.charts for figure in chart_html(chart)] + framed(part.tables)
    return element("section", element("h2", geometry.study.heading(geometry)), *content, id=anchor)


def more_tables(geometry: Result) -> list[Any]:
    """Return all measures of each layer by transform, and the outliers."""
    tables = []
    for transform, rows in geometry.geometry.by("transform").items():
        cells = {measure.replace("_", " "): partial(_value, measure) for measure in rows.values("measure")}
        tables.append(by_layer_table(f"Measures of each layer, {label(NAMES[transform], rows)}", rows, cells))
    outliers = f"Outlier dimensions: {count(len(geometry.outliers), 'row')}"
    return [*tables, *View(OUTLIERS, title=outliers).tables(geometry.outliers)]


def _value(measure: str, rows: Table) -> str:
    found = rows.where(measure=measure)
    return "".join(f"{row['value']:.3g}{in_brackets(interval(row, between=' to ', form='.3g'))}" for row in found)


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
    **{words: TRANSFORMS[transform] for transform, words in NAMES.items()},
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
    **NORMS.terms(["layer"]),
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
    "the model.",
    "effect": "Change of the measure in the title of the table.",
    "95% range": "Interval of the effect over sentences.",
    "random others": "Range of the effects of as many other neurons, drawn at random.",
    "worse than": "Share of these draws that do less harm than the outliers.",
    "p": "Probability that random other neurons do as much harm; of distances, that they reduce them as much with both "
    "norms changed.",
    "large gains": "Effect of as many other neurons, those with the largest LayerNorm gains.",
    **NORMS.terms(["norm", "mean", "deviations", "by_input", "by_gain", "by_bias", "by_others_bias", "largest"]),
    "intact": "The distance in standard deviations in the unchanged model.",
    "the first norm": "The distance, or the effect, with average gains and biases in the first norm of every block; "
    "in brackets the range with the gains and biases of random neurons averaged instead.",
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
    "read": "What is read of later layers: probes of position or of the task of a run, frozen and retrained, "
    "heads that attend to a fixed offset, masked words, or the similarity of sentences or words. Target: the share "
    "that probes read as the class that examples are moved to. Counterpart: the share of examples that are read "
    "differently in two sentences and now as in the other one. Log odds carried: the share of the difference "
    "between two texts in the log odds of two words at the mask.",
    "k": "Number of neurons that are changed, the first of the ranking; all: all neurons of the layer.",
    "effect": "Difference from the intact model.",
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
    "position": "Share of the variance that positions add to sentences, minus the share by chance.",
    "by chance": "Share that positions would add if the tokens of each sentence were in random order, which is "
    "subtracted.",
    "context": "Share that sentences add to positions.",
    "shared": "Share that either of the two explains.",
    "rest": "Share that neither explains.",
    "position, standardised": "Share of position if every neuron counts as if its variance were 1.",
    "position alone": "Share of the means of positions, whatever else these differ in, minus the share by chance.",
    "directions": "Number of directions of the position part that explain held-out sentences.",
    "slow": "Share of the position part in the lowest tenth of the frequencies along the sentence.",
    "with context": "How far its directions are those of the context part: 1 if the same, 0 if at right angles.",
    "other half": "The same of the two halves of the sentences, the most one can expect.",
    "layer below": "The same of the layer below.",
    "read": "Share of the tokens of held-out sentences whose position is decoded from these directions.",
    "in longer": "The same in sentences longer than all that were fitted.",
    "half in neurons": "Number of neurons with half of the position part; in brackets the lowest and the highest "
    "number of directions of random rotations with half of it.",
    "standardised": "The same if every neuron counts as if its variance were 1.",
    "first of fit": "Share of the first neurons of the ranking of `fit`.",
    "by eta squared": "Share of the first neurons by eta squared.",
    "largest shares": "Share of the neurons with the largest shares, chosen in half of the sentences and measured in "
    "the other half.",
    "random": "Share of as many random neurons: median and range of 20 draws.",
    "of a rotation": "Share of as many neurons of a random rotation, chosen and measured alike.",
    "own directions": "Share of as many of its own directions, chosen and measured alike.",
}

# --------------------------------------------------------------------------------------------------------------------
# Meanings of the headings of `geometry --extremes` on a page.
# --------------------------------------------------------------------------------------------------------------------

EXTREMES: Terms = {
    "median": MASSIVE["median"].meaning,
    "on": "Kind of token that has the largest value of the layer.",
    "massive": "Number of tokens with a value above 100 and 1,000 times the median magnitude (Sun et al. 2024).",
    "of token": "Share of all values that are more than 5 sd from the mean of their token's neurons.",
    "of neuron": "Share of all values that are more than 5 sd from the mean of their neuron over tokens.",
    **extremes.WITHOUT_OUTLIERS.terms(),
    **extremes.OF_BLOCKS.terms(),
    **extremes.COURSES.terms(),
    "layer": "Number of the layer; 0 is the embedding output, k the output of block k. Of attention, the block.",
    "k": HELD_OUTLIERS["k"].meaning + " Outliers of the layer that enters the block.",
    "matched": "The number before it with as many other neurons of about the same sd fixed, a mean over the sets.",
    "scaled": "The same with what is taken away scaled to the variance of the outliers.",
    "p": "Share of these sets, and of the outliers, that change as much.",
    "largest": "Largest magnitude: of all values of the layer, or of the neuron on these tokens in any layer.",
    "x median": "That divided by the median magnitude of the layer.",
}
