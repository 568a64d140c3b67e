"""A survey of heads with the maps that a page draws of it."""

from __future__ import annotations

from dataclasses import dataclass

from probing.heads.examples.example_maps import Examples
from probing.runs.result import Result


@dataclass(frozen=True)
class Survey:
    """What the heads of a model do.

    Args:
        made: The results of `attention`.
        examples: A few sentences with the maps of all heads; None if the run has none.
    """

    made: Result
    examples: Examples | None
