"""How long the stages of a command took."""

from __future__ import annotations

from time import perf_counter


class Stopwatch:
    """Started when it is made; the stages follow one another without a gap."""

    def __init__(self) -> None:
        self._start = self._last = perf_counter()
        self._stages: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """Note that a stage is over, and that the next one begins."""
        now = perf_counter()
        self._stages[f"{stage}_s"], self._last = now - self._last, now

    def timings(self) -> dict[str, float]:
        """Return the seconds of each stage, and of all until the last one's end, as in `results.json`."""
        return {**self._stages, "total_s": self._last - self._start}
