"""Seeds and generators that depend on what they are named by, and on nothing that was drawn before."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*parts: int | str) -> int:
    """Return a seed that depends on these parts alone."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_of(*parts: int | str) -> torch.Generator:
    """Return a generator whose draws depend on these parts alone."""
    return torch.Generator().manual_seed(seed_of(*parts))
