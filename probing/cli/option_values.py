"""Options that several commands share: their types, checks of their values, and their form in a run's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from functools import wraps
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar

from probing.cli.choices import figure_formats
from probing.cli.hints import PythonOnly
from probing.cli.options import ProbeOptions, are_options, as_options
from probing.errors import out_of_range

Dtype = Literal["float32", "bfloat16", "float16"]
FirstToken = Literal["include", "exclude"]

Layers = int | list[int] | str

# Types of options that take a name on the command line, and also an object in Python. The parser of arguments sees only
# the type of the name.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Model: TypeAlias = str | PathLike[str] | PreTrainedModel
    Tokenizer: TypeAlias = Any
    Source: TypeAlias = str | PathLike[str] | list[str]
else:
    Model = Source = str
    Tokenizer = PythonOnly

# The largest seed that all random number generators accept.
LAST_SEED = 2**63 - 1


_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


def resolved(command: Callable[Concatenate[dict[str, Any], _Options], _Result]) -> Callable[_Options, _Result]:
    """Give a command its resolved options as its first argument, which its callers do not see.

    These are all options as plain values, without the run's name, for `config.yaml` and W&B. A group of options that
    is given as a mapping, as in a run's configuration, is converted to its dataclass. Formats of figures, which
    are written after all other work, are checked here.
    """
    whole: Callable[..., _Result] = command
    config, *options = signature(command).parameters.values()
    public = signature(command).replace(parameters=options)

    @wraps(command)
    def run(*args: _Options.args, **keywords: _Options.kwargs) -> _Result:
        try:
            given = public.bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"{command.__name__}() {error}") from None
        given.apply_defaults()
        if "figure_format" in given.arguments:
            figure_formats(given.arguments["figure_format"])
        for option in options:
            if is_dataclass(option.default):
                value = given.arguments[option.name]
                given.arguments[option.name] = as_options(type(option.default), value, option.name)
        return whole(plain(given.arguments), *given.args, **given.kwargs)

    run.__annotations__ = {name: hint for name, hint in command.__annotations__.items() if name != config.name}
    run.__signature__ = public  # type: ignore[attr-defined]
    return run


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
    """Return the options as plain values, for YAML and W&B, without the run's name and a tokenizer."""
    values = {k: asdict(v) if are_options(v) else v for k, v in options.items()}
    mappings = {k: dict(values[k] or {}) for k in ("trainer", "task_args") if k in values}
    return {k: v for k, v in values.items() if k not in ("name", "tokenizer")} | mappings


def option_problems(
    probe: ProbeOptions, seed: int, max_length: int | None, batch_tokens: int | None, replicates: int
) -> list[str]:
    """Return the problems with these numbers that are known without the model and the corpus."""
    problems = probe.problems() + number_problems(seed, max_length, batch_tokens)
    if replicates == 1:
        return [*problems, "`--replicates 1` is too few: a single bootstrap has no range, so expected 0 or at least 2"]
    return problems + out_of_range("replicates", replicates, 0)
