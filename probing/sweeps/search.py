"""Points of a search: all points of a grid, or points drawn at random."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from probing.errors import UserError, as_clause
from probing.sweeps.definition import Parameter, Sweep

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
