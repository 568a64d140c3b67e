"""Names of readouts in tables, and the units of their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

POSITION, RETRAINED, MLM, STS, WIC = "position", "position_retrained", "mlm", "sts", "wic"

# The classes of the task of a run.
TASK = "task"

# What the trained head of a tuned model reads: classes, or numbers.
TUNED, TUNED_R2 = "tuned", "tuned_r2"

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

INTERCHANGE: NeuronReplacement = "interchange"

NEURON_KINDS: tuple[NeuronReplacement, ...] = get_args(NeuronReplacement)[:-1]


@dataclass(frozen=True)
class ReadoutUnit:
    """Name and unit of the numbers of a readout.

    Args:
        unit: Unit of a difference.
        times: Factor that converts a difference to this unit.
        digits: Number of decimals of a difference.
        is_share: Whether it is a share of correct examples rather than a mean of numbers.
        loss: The loss by whose gradients heads are ranked, if they can be; `{layer}` is the layer of a probe.
        items: Unit of resampling and pairing.
        by_head: Whether a head of the model reads, which takes the last layer alone.
    """

    noun: str
    unit: str
    times: int
    digits: int
    higher_is_better: bool
    is_share: bool
    loss: str = ""
    items: str = "sentence"
    by_head: bool = False

    @property
    def sign(self) -> int:
        """Sign of an improvement."""
        return 1 if self.higher_is_better else -1


_PROBE_LOSS = "the loss of the probe of layer {layer} (nats)"

_MEASURES = {
    POSITION: ReadoutUnit("position accuracy", "points", 100, 1, True, True, _PROBE_LOSS),
    TASK: ReadoutUnit("accuracy", "points", 100, 1, True, True),
    TUNED: ReadoutUnit("task accuracy", "points", 100, 1, True, True, "the loss of the task (nats)", by_head=True),
    TUNED_R2: ReadoutUnit(
        "task R²", "points", 100, 1, True, False, "the loss of the task (squared deviations)", by_head=True
    ),
    # What is looked for is a rise.
    TRANSLATED: ReadoutUnit("share read as the target", "points", 100, 1, False, True),
    INTERCHANGED: ReadoutUnit("share read as the counterpart", "points", 100, 1, False, True, items="pair"),
    WORDS: ReadoutUnit("log odds carried", "points", 100, 1, False, False, items="pair"),
    MLM: ReadoutUnit(
        "loss of masked words", "nats", 1, 3, False, False, "the loss of masked words (nats)", by_head=True
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

    Its name in tables is `position` or `task`, alone or with `_retrained`, `_translated` or `_interchanged`; `words`,
    `mlm`, `wic`, `tuned`, `tuned_r2`; or `sts:` and the name of a set.
    """
    for name in (TRANSLATED, INTERCHANGED):
        if readout.endswith(name):
            return _MEASURES[name]
    return _MEASURES[readout.split(":")[0].removesuffix(AGAIN)]


def probed_of(readout: str) -> str | None:
    """Return the target of probes, `position` or `task`; None if the readout is not by probes."""
    name = readout.removesuffix(AGAIN).removesuffix(TRANSLATED).removesuffix(INTERCHANGED)
    return name if name in PROBED else None
