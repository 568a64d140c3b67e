"""Names of the ways in which a sentence gets one vector, known before anything heavy is imported."""

from __future__ import annotations

from typing import Literal, get_args

Pooling = Literal["mean", "mean_special", "cls", "first_last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
