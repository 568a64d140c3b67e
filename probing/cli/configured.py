"""Makes a command of a function: resolved options, shared descriptions of options, and calls from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from probing.cli.option_values import resolved
from probing.cli.python_calls import command
from probing.cli.shared_options import with_shared_help

_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


def configured(function: Callable[Concatenate[dict[str, Any], _Options], _Result]) -> Callable[_Options, _Result]:
    """Make a command of a function whose first argument is the configuration, which its callers do not see.

    The others are the command's options. Those that other commands have too, such as `model` and `seed`, need no
    description in its docstring.
    """
    return command(with_shared_help(resolved(function)))
