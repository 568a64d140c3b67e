"""The studies of `fit` and `rank`."""

from __future__ import annotations

from probing.runs.finished_rankings import RANK
from probing.runs.run import FIT

__all__ = ["FIT", "RANK"]
