"""Hidden states with a planted position part: a helix in three neurons, or rotated, among contexts and noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.store import ActivationStore
from probing.studies.geometry.layers import Sampled
from probing.studies.geometry.position.survey import Measured, survey_position
from synthetic import make_store, make_tokens

Array = NDArray[np.float64]
D, N_SENTENCES = 24, 200
NEURONS = (3, 7, 20)
Tables = dict[str, list[dict[str, Any]]]


def helix(n: int) -> Array:
    """Return a turn every 15 positions and a rise, in three dimensions; shape (n, 3)."""
    t = np.arange(n)
    return np.stack([np.cos(2 * np.pi * t / 15), np.sin(2 * np.pi * t / 15), (t - 12) / 12], 1)


def rotation(seed: int = 0) -> Array:
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0])


def planted(folder: Path, parts: Sequence[Array | None], scale: float = 1.0) -> ActivationStore:
    """Return layers of contexts and noise with a position part each, shape (n_positions, d_model)."""
    generator = np.random.default_rng(1)
    lengths = generator.integers(7, 28, N_SENTENCES)
    tokens = make_tokens(lengths.tolist())
    states = []
    for part in parts:
        x = (
            generator.normal(size=(tokens.n_tokens, D))
            + 0.5 * generator.normal(size=(N_SENTENCES, D))[tokens.sentences]
        )
        x[:, 0] *= scale
        states.append(x if part is None else x + part[tokens.positions])
    return make_store(folder, states, tokens, 700)


def surveyed(store: ActivationStore, ranked: dict[int, list[int]] | None = None) -> Tables:
    counts = Sampled(store.tokens, "exclude", 0).counts
    return survey_position(Measured(store, counts, 0), list(range(store.plan.n_layers + 1)), ranked or {})
