"""Names of the poolings of a sentence, importable without heavy libraries."""

from __future__ import annotations

from typing import Literal, get_args

Pooling = Literal["mean", "mean_special", "cls", "first_last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
