"""The former location of `probing.transforms.affine`, kept for code that reads a run's transforms from here."""

from __future__ import annotations

from probing.transforms.affine import Transform, load, save

__all__ = ["Transform", "load", "save"]
