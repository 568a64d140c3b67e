"""Bayesian search with the package `sweeps` of Weights & Biases."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from probing.errors import UserError
from probing.sweeps.definition import Sweep
from probing.sweeps.search import Point


def check_installed() -> None:
    """Refuse a Bayesian sweep where the package is missing.

    Raises:
        UserError: If it cannot be imported.
    """
    try:
        with warnings.catch_warnings():  # the package warns about its own use of pydantic
            warnings.simplefilter("ignore")
            # Names of it, since any folder that is called `sweeps` can be imported.
            from sweeps import SweepRun, next_run  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"`method: bayes` needs the package sweeps ({error}): `pip install --no-deps sweeps`, since it asks for "
            "numpy 1, and `pip install jsonref jsonschema scikit-learn`."
        ) from None


def suggest(sweep: Sweep, finished: Sequence[tuple[Point, float]], seed: int) -> Point:
    """Return the point to try next; the same trials and the same seed give the same point.

    Args:
        sweep: The sweep that is searched.
        finished: Points that were tried, each with its metric.
        seed: Seed of the search.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sweeps

        assert sweep.metric is not None
        config = {
            "method": "bayes",
            "metric": {"name": sweep.metric, "goal": sweep.goal},
            # Flat, because the package silently drops nested parameters.
            "parameters": {p.name: {"distribution": p.distribution, **p.settings} for p in sweep.parameters},
        }
        runs = [
            sweeps.SweepRun(
                name=str(i), state="finished", summary_metrics={sweep.metric: metric}, history=[{sweep.metric: metric}],
                config={name: {"value": value} for name, value in point.items()},
            )
            for i, (point, metric) in enumerate(finished)
        ]  # fmt: skip
        # The package draws from numpy's global generator, whose state belongs to the user.
        state = np.random.get_state()
        np.random.seed([seed & 0xFFFFFFFF, len(finished)])
        try:
            suggested = sweeps.next_run(config, runs)
        finally:
            np.random.set_state(state)
    return {name: _plain(value["value"]) for name, value in suggested.config.items()}


def _plain(value: object) -> object:
    """Return a Python value: the package turns values into numpy's."""
    return value.item() if isinstance(value, np.generic) else value
