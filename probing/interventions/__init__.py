"""Names of readouts in tables, and the units of their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

POSITION, RETRAINED, MLM, STS, WIC = "position", "position_retrained", "mlm", "sts", "wic"

# The classes of the task of a run.
TASK = "task"

# What the trained head of a tuned model reads: classes, or numbers.
TUNED, TUNED_R2 = "tuned", "tuned_r2"

# The model's own head for masked words, which reads for several readouts.
MASKED_LM = "masked_lm"

# What probes of later layers read.
PROBED = (TASK, POSITION)

# What is added to the name of a readout by probes: where probes are trained again, and where the share is measured of
# examples that are read as the class that they were moved to, or as their counterpart in another sentence is read.
AGAIN, TRANSLATED, INTERCHANGED = "_retrained", "_translated", "_interchanged"

# Two words at the mask of texts in pairs.
WORDS = "words"

# What is read of heads that attend to a fixed offset.
CONTRAST, WORD_MASS = "head_contrast", "head_word_mass"

# What is rounded to few bits, by which scale, and which neurons keep full precision. Random draws, as of neurons.
WEIGHTS, ACTIVATIONS, BOTH = "weights", "activations", "both"
TENSOR, CHANNEL = "tensor", "channel"
NOTHING, OUTLIERS, RANDOM = "none", "outliers", "random"

# What the user may name, with how the data is called that it needs.
READOUTS: dict[str, str | None] = {POSITION: None, MLM: None, STS: "DIR", WIC: "DIR"}

READOUTS_OF_NEURONS: dict[str, str | None] = {TASK: None, **READOUTS}

READOUTS_OF_UNITS: dict[str, str | None] = {**READOUTS, TUNED: "RUN"}

# Replacements of neurons; the last one reads pairs of sentences in place of the corpus.
NeuronReplacement = Literal["mean", "zero", "resample", "direction", "shuffled", "translate", "interchange"]

# Replacements of the outputs of heads; the last one removes whole layers.
HeadReplacement = Literal["uniform", "zero", "mean", "resample", "skip"]

# Their words, which follow "replaced by", and stand in brackets after the name of a head.
REPLACEMENTS: dict[HeadReplacement, str] = {
    "uniform": "uniform attention",
    "zero": "zeros",
    "mean": "mean output",
    "resample": "outputs at random tokens of other sentences",
    "skip": "block skipped",
}

INTERCHANGE: NeuronReplacement = "interchange"

NEURON_KINDS: tuple[NeuronReplacement, ...] = get_args(NeuronReplacement)[:-1]


@dataclass(frozen=True)
class ReadoutUnit:
    """Name and unit of the numbers of a readout.

    Args:
        noun: What is measured, in sentences and titles.
        unit: Unit of a difference.
        times: Factor that converts a difference to this unit.
        digits: Number of decimals of a difference.
        higher_is_better: Whether a fall is harm; otherwise a rise is. Orders, percentiles and conclusions depend on it,
            so that a quantity without a better side is no readout.
        is_share: Whether it is a share of correct examples rather than a mean of numbers.
        loss: The loss by whose gradients heads are ranked, if they can be; `{layer}` is the layer of a probe.
        items: Unit of resampling and pairing.
        head: The head of the model that reads the last layer: `MASKED_LM`, `TUNED` or none.
    """

    noun: str
    unit: str
    times: int
    digits: int
    higher_is_better: bool
    is_share: bool
    loss: str = ""
    items: str = "sentence"
    head: str = ""

    @property
    def sign(self) -> int:
        """Sign of an improvement."""
        return 1 if self.higher_is_better else -1


_PROBE_LOSS = "the loss of the probe of layer {layer} (nats)"

_MEASURES = {
    POSITION: ReadoutUnit("position accuracy", "points", 100, 1, True, True, _PROBE_LOSS),
    TASK: ReadoutUnit("accuracy", "points", 100, 1, True, True),
    TUNED: ReadoutUnit("task accuracy", "points", 100, 1, True, True, "the loss of the task (nats)", head=TUNED),
    TUNED_R2: ReadoutUnit(
        "task R²", "points", 100, 1, True, False, "the loss of the task (squared deviations)", head=TUNED
    ),
    # A rise is what the change is meant to cause, and counts as harm.
    TRANSLATED: ReadoutUnit("share read as the target", "points", 100, 1, False, True),
    INTERCHANGED: ReadoutUnit("share read as the counterpart", "points", 100, 1, False, True, items="pair"),
    WORDS: ReadoutUnit("log odds carried", "points", 100, 1, False, False, items="pair", head=MASKED_LM),
    MLM: ReadoutUnit(
        "loss of masked words", "nats", 1, 3, False, False, "the loss of masked words (nats)", head=MASKED_LM
    ),
    STS: ReadoutUnit(
        "Spearman's correlation", "points", 100, 1, True, False, "the squared error of the cosines", "pair"
    ),
    CONTRAST: ReadoutUnit("contrast of a position head", "logits", 1, 2, True, False),
    WORD_MASS: ReadoutUnit("attention of a position head to its offset", "points", 100, 1, True, False),
    WIC: ReadoutUnit(
        "WiC accuracy", "points", 100, 1, True, True, "the loss of the logistic curve of the cosine (nats)", "pair"
    ),
}


def measure_of(readout: str) -> ReadoutUnit:
    """Return the name and unit of the numbers of a readout.

    Its name in tables is a key of `_MEASURES`; the name of a set follows `sts:`, and what probes decode can end in
    `_retrained`, `_translated` or `_interchanged`.
    """
    for name in (TRANSLATED, INTERCHANGED):
        if readout.endswith(name):
            return _MEASURES[name]
    return _MEASURES[readout.split(":")[0].removesuffix(AGAIN)]


def probed_of(readout: str) -> str | None:
    """Return the target of probes, `position` or `task`; None if the readout is not by probes."""
    name = readout.removesuffix(AGAIN).removesuffix(TRANSLATED).removesuffix(INTERCHANGED)
    return name if name in PROBED else None
