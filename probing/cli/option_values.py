"""Options that several commands share: their types, checks of their values, and their form in a run's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from inspect import signature
from typing import Any, Literal

from probing.cli.options import ProbeOptions
from probing.errors import out_of_range

Dtype = Literal["float32", "bfloat16", "float16"]

Layers = int | list[int] | str

# The largest seed that all random number generators accept.
LAST_SEED = 2**63 - 1


def number_problems(seed: int, max_length: int | None, batch_tokens: int | None) -> list[str]:
    """Return the problems with these numbers that are known without the model."""
    return [
        *out_of_range("seed", seed, 0, LAST_SEED),
        *out_of_range("max_length", max_length, 1),
        *out_of_range("batch_tokens", batch_tokens, 1, LAST_SEED),
    ]


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a command's options as plain values, groups of options as mappings."""
    return plain({name: parameter.default for name, parameter in signature(function).parameters.items()})


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as plain values, for YAML and W&B, without the run's name."""
    values = {k: asdict(v) if is_dataclass(v) and not isinstance(v, type) else v for k, v in options.items()}
    mappings = {k: dict(values[k] or {}) for k in ("trainer", "task_args") if k in values}
    return {k: v for k, v in values.items() if k != "name"} | mappings


def option_problems(
    probe: ProbeOptions, seed: int, max_length: int | None, batch_tokens: int | None, replicates: int
) -> list[str]:
    """Return the problems with these numbers that are known without the model and the corpus."""
    problems = probe.problems() + number_problems(seed, max_length, batch_tokens)
    if replicates == 1:
        return [*problems, "`--replicates 1` is too few: a single bootstrap has no range, so expected 0 or at least 2"]
    return problems + out_of_range("replicates", replicates, 0)
