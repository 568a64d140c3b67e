"""Tables of `geometry --position`."""

from __future__ import annotations

from probing.results.schema import Schema, number, text, whole
from probing.tables.schema import layer_column, value

_WITH = "with `--position`, "
_SCALE = text("scale", "raw, or standardised: every neuron counts as if its variance were 1.")
_N_TOKENS = whole("n_tokens", "Number of tokens that were measured.")

POSITION_SPLIT = Schema("position_split", f"{_WITH}a row per layer, scale and part", (
    layer_column(), _SCALE,
    text("part", "position (what positions add to sentences), context (what sentences add to positions), shared (what "
         "either of them explains), rest; these add up to 1. position_alone and context_alone: shares of the means, "
         "whatever else these differ in."),
    value("Share of the variance without what is by chance"),
    number("share", "Share of the variance in the text that was read.", form=".4f"),
    number("chance", "Share by chance: of position, the mean over all orders of the tokens within each sentence.",
           form=".4f"),
    whole("n_sentences", "Number of sentences."), _N_TOKENS,
), optional=True)  # fmt: skip
POSITION_SPECTRUM = Schema("position_spectrum", f"{_WITH}a row per layer, scale and direction", (
    layer_column(), _SCALE,
    whole("component", "Number of the principal direction of the position part."),
    number("share", "Its share of the position part, with its noise."),
    number("held_out", "What the directions up to it explain in sentences left out, as a share of the most that any "
           "number of directions explains there; 0 where that is nothing."),
), optional=True)  # fmt: skip
POSITION_CURVES = Schema("position_curves", f"{_WITH}a row per layer, position and direction", (
    layer_column(),
    whole("position", "Index of the token in its sentence, from 0."),
    whole("component", "Number of the principal direction of the position part, up to 3."),
    value("The position part along it"),
    _N_TOKENS,
), optional=True)  # fmt: skip
POSITION_SHAPE = Schema("position_shape", f"{_WITH}a row per layer and measure", (
    layer_column(),
    text("measure", "directions, directions_in_sample, low_frequencies, context_overlap, context_angle, "
         "halves_overlap, below_overlap, read_accuracy, read_error, read_longer_accuracy or read_longer_error; "
         "directions also with _standardised."),
    value("Its value"),
    number("chance", "Its mean for shuffled positions, or for random directions."),
    number("p_value", "Share of random draws, and of what is measured, that are at least as far from chance."),
    whole("k", "Number of directions that are compared or read."),
    _N_TOKENS,
), optional=True)  # fmt: skip
POSITION_BASIS = Schema("position_basis", f"{_WITH}a row per layer and scale", (
    layer_column(), _SCALE,
    whole("half", "Number of neurons that hold half of the position part: ordered by that of half of the sentences, "
          "measured on that of the other, both ways."),
    number("half_directions", "The same of the directions of a random rotation: the median of the rotations.",
           form=".1f"),
    whole("half_lowest", "The lowest of a rotation."),
    whole("half_highest", "The highest of a rotation."),
    number("half_p", "Share of the rotations, and of the neurons, of which at most as many hold half."),
    whole("n_directions", "Number of principal directions that the part is cut to."),
    whole("n_nonzero", "Number of neurons in which it is not 0."),
    whole("n_live", "Number of neurons that vary, which are rotated."),
    whole("n_neurons", "Number of neurons."),
    whole("n_rotations", "Number of random rotations."),
), optional=True)  # fmt: skip
POSITION_HELD = Schema("position_held", f"{_WITH}a row per layer, scale, order of neurons and number", (
    layer_column(), _SCALE,
    text("order", "fit (ranking of --from_run), eta_squared, part (those that hold most), random, rotated (those that "
         "hold most of a random rotation), directions (the part's own). All but fit and random are chosen in half of "
         "the sentences and measured in the other, both ways."),
    whole("k", "Number of the first neurons, or directions."),
    number("value", "Share of the position part that they hold; of draws (random, rotated) the median."),
    number("low", "The lowest of 20 draws."),
    number("high", "The highest of 20 draws."),
), optional=True)  # fmt: skip
POSITION_BY_NEURON = Schema("position_by_neuron", f"{_WITH}a row per layer and neuron", (
    layer_column(),
    whole("neuron", "Index of the neuron."),
    number("variance", "Variance of the activation.", form=".3g"),
    number("eta_squared", "Share of its variance between positions."),
    number("share", "Share of its variance that positions add to sentences."),
    number("chance", "The same for tokens in random order within each sentence."),
    number("value", "The share without what is by chance."),
    number("held", "Share of the position part that it holds."),
    number("held_standardised", "The same where every neuron counts as if its variance were 1."),
), optional=True)  # fmt: skip

SCHEMAS = (
    POSITION_SPLIT, POSITION_SPECTRUM, POSITION_CURVES, POSITION_SHAPE, POSITION_BASIS, POSITION_HELD,
    POSITION_BY_NEURON,
)  # fmt: skip
