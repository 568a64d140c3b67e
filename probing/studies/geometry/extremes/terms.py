"""Meanings of the headings of `geometry --extremes` on a page."""

from __future__ import annotations

from probing.page.terms import Terms
from probing.studies.geometry.extremes.schema import HELD_OUTLIERS, MASSIVE, MASSIVE_COURSE, SINKS
from probing.studies.geometry.extremes.tables import COURSE_COLUMNS, SINK_COLUMNS

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
