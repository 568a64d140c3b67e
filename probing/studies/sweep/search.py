"""Points of a search: all points of a grid, points drawn at random, or Bayesian search with the package `sweeps`."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from probing.errors import UserError, as_clause
from probing.studies.sweep.definition import Parameter, Sweep

Point = dict[str, Any]


def grid(sweep: Sweep) -> Iterator[Point]:
    """Yield all points, the last parameter changing fastest."""
    names = [parameter.name for parameter in sweep.parameters]
    for values in itertools.product(*(parameter.values() for parameter in sweep.parameters)):
        yield dict(zip(names, values, strict=True))


def n_points(sweep: Sweep) -> int:
    """Return the number of points of a grid."""
    return math.prod(len(parameter.values()) for parameter in sweep.parameters)


def draw(sweep: Sweep, number: int, seed: int) -> Point:
    """Return a point drawn at random, the same for the same number and seed.

    Args:
        sweep: The sweep that is searched.
        number: Number of the trial, from 0.
        seed: Seed of the search.

    Raises:
        UserError: If a distribution has no finite numbers.
    """
    generator = np.random.default_rng([seed, number])
    return {parameter.name: _drawn(parameter, generator) for parameter in sweep.parameters}


def _drawn(parameter: Parameter, generator: np.random.Generator) -> Any:
    try:
        return _draw(parameter, generator)
    except (OverflowError, ValueError) as error:
        said = ", ".join(f"{key}: {value}" for key, value in parameter.settings.items() if key != "distribution")
        raise UserError(
            f"`parameters.{parameter.name}`: no finite number can be drawn from {parameter.distribution} with {said} "
            f"({as_clause(error)}); give other bounds."
        ) from None


def _draw(parameter: Parameter, generator: np.random.Generator) -> Any:
    settings, kind = parameter.settings, parameter.distribution
    if kind == "constant":
        return settings["value"]
    if kind.startswith("categorical"):
        values = settings["values"]
        shares = np.array(settings["probabilities"]) if kind == "categorical_w_probabilities" else None
        return values[generator.choice(len(values), p=None if shares is None else shares / shares.sum())]
    if kind == "int_uniform":
        return int(generator.integers(settings["min"], settings["max"], endpoint=True))
    value = _real(kind.removeprefix("q_"), settings, generator)
    if not kind.startswith("q_"):
        return value
    q = settings.get("q", 1)
    value = round(value / q) * q
    return int(value) if isinstance(q, int) else float(value)


def _real(kind: str, settings: Mapping[str, Any], generator: np.random.Generator) -> float:
    """Draw a number; logarithms are natural, as in W&B."""
    if kind in ("normal", "log_normal"):
        value = float(generator.normal(settings.get("mu", 0), settings.get("sigma", 1)))
        return math.exp(value) if kind == "log_normal" else value
    if kind == "beta":
        return float(generator.beta(settings["a"], settings["b"]))
    low, high = settings["min"], settings["max"]
    if kind in ("log_uniform_values", "inv_log_uniform_values"):  # if x is log-uniform, so is 1 / x
        return math.exp(generator.uniform(math.log(low), math.log(high)))
    value = float(generator.uniform(low, high))
    if kind == "uniform":
        return value
    return math.exp(value if kind == "log_uniform" else -value)


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
