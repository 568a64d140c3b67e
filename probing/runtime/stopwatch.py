"""Times the stages of a command."""

from __future__ import annotations

from time import perf_counter


class Stopwatch:
    """Starts when it is created; each stage begins where the previous one ends."""

    def __init__(self) -> None:
        self._start = self._last = perf_counter()
        self._stages: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """Record the end of a stage, which begins the next one."""
        now = perf_counter()
        self._stages[f"{stage}_s"], self._last = now - self._last, now

    def timings(self) -> dict[str, float]:
        """Return the seconds of each stage, and of all stages together, as in `results.json`."""
        return {**self._stages, "total_s": self._last - self._start}
