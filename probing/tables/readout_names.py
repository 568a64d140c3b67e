"""What readouts are called in tables, and what their numbers are."""

from __future__ import annotations

from dataclasses import dataclass

POSITION, RETRAINED, MLM, STS, WIC = "position", "position_retrained", "mlm", "sts", "wic"
# What is read of heads that attend to a fixed offset.
CONTRAST, WORD_MASS = "head_contrast", "head_word_mass"
# What the user may name, with how the data is called that it needs.
READOUTS: dict[str, str | None] = {POSITION: None, MLM: None, STS: "DIR", WIC: "DIR"}


@dataclass(frozen=True)
class Measure:
    """What the numbers of a readout are.

    Args:
        noun: What it is called.
        unit: Unit of a difference.
        times: What a difference is multiplied by, to be in this unit.
        digits: Number of decimals of a difference.
        higher_is_better: Whether a rise is a gain.
        is_share: Whether it is a share of examples that are right, and not the mean of numbers.
        items: What is drawn again for intervals, and paired.
    """

    noun: str
    unit: str
    times: int
    digits: int
    higher_is_better: bool
    is_share: bool
    items: str = "sentence"

    @property
    def sign(self) -> int:
        """The sign of a change for the better."""
        return 1 if self.higher_is_better else -1


_MEASURES = {
    POSITION: Measure("position accuracy", "points", 100, 1, True, True),
    MLM: Measure("loss of masked words", "nats", 1, 3, False, False),
    STS: Measure("Spearman's correlation", "points", 100, 1, True, False, "pair"),
    CONTRAST: Measure("contrast of a position head", "logits", 1, 2, True, False),
    WORD_MASS: Measure("attention of a position head to its offset", "points", 100, 1, True, False),
    WIC: Measure("WiC accuracy", "points", 100, 1, True, True, "pair"),
}


def measure_of(readout: str) -> Measure:
    """Return what the numbers of a readout are.

    Args:
        readout: Its name in tables: `position`, `position_retrained`, `mlm`, `wic`, or `sts:` and the name of a set.
    """
    return _MEASURES[POSITION if readout == RETRAINED else readout.split(":")[0]]
