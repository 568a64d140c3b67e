"""Commands called from Python: their arguments are converted and checked as those of the command line are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from inspect import BoundArguments, signature
from os import PathLike, fspath
from typing import Any, Concatenate, ParamSpec, TypeVar

from probing.cli.arguments import PYTHON, WORDS, checked
from probing.cli.elsewhere import meant
from probing.cli.option_types import option_types, python_only, resolved
from probing.cli.options import are_options, with_shared_help
from probing.errors import UserError, refuse
from probing.runtime.progress import overview
from probing.runtime.terminal import escaped_output

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Options that take a list in Python, and the name of a source on the command line.
_LISTS = ("corpus", "test_corpus", "fit_corpus")
# Options that take a dict.
_DICTS = ("trainer", "task_args")
_UNCHECKED = "without_check"
_PLAIN = (str, bool, int, float, list, dict)


def command(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a command be called from Python with values as Python has them: paths, NumPy numbers, text for numbers.

    The command line calls the function itself, whose arguments it has parsed. Either way its stages are shown.

    Raises:
        UserError: If a value is not one that the option takes, before any work.
    """

    @wraps(function)
    def called(*args: _P.args, **keywords: _P.kwargs) -> _T:
        bound = _bound(function, args, keywords)
        quiet = bool(bound.arguments.get("quiet"))
        kept = _process_kept() if "trainer" in bound.signature.parameters else nullcontext()
        with escaped_output(), overview(quiet, briefly=True), kept:
            return function(*bound.args, **bound.kwargs)

    @wraps(function)
    def typed(*args: _P.args, **keywords: _P.kwargs) -> _T:
        with overview(bool(keywords.get("quiet"))):
            return function(*args, **keywords)

    vars(called)[_UNCHECKED] = typed
    return called


def _bound(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> BoundArguments:
    """Return the arguments of a call, converted.

    Raises:
        UserError: If a value is not one that the option takes.
        TypeError: If there are arguments that the command does not have; values that are wrong are named as well.
    """
    known = signature(function).parameters
    problems = [
        f"got an unexpected keyword argument {name!r}{meant(name, option_types(function), function.__name__)}"
        for name in keywords
        if name not in known
    ]
    try:
        bound = signature(function).bind(*args, **{name: value for name, value in keywords.items() if name in known})
        bound.arguments.update(converted(function, bound.arguments))
    except (TypeError, UserError) as error:
        if isinstance(error, UserError) and not problems:
            raise
        problems.append(str(error).rstrip("."))
    if problems:
        raise TypeError(f"{function.__name__}() {'; '.join(problems)}")
    return bound


@contextmanager
def _process_kept() -> Iterator[None]:
    """Restore torch's algorithms afterwards, and exclude the objects that exist already from garbage collection."""
    from probing.runtime.machine import heap_set_aside
    from probing.runtime.trainer import algorithms_kept  # imports torch

    with algorithms_kept(), heap_set_aside():
        yield


def unchecked(function: Callable[..., _T]) -> Callable[..., _T]:
    """Return a command without the check of its arguments."""
    made: Callable[..., _T] = getattr(function, _UNCHECKED, function)
    return made


def converted(function: Callable[..., Any], arguments: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Return the arguments that are plain values, converted to what a command takes; objects are left to the command.

    Args:
        function: The command.
        arguments: Its arguments.
        name: Name of the command in messages; its own name by default.

    Raises:
        UserError: If a value is not one that the option takes.
    """
    values = {option: as_plain(value) for option, value in arguments.items() if option not in python_only(function)}
    values |= {option: [value] for option in WORDS if isinstance(value := values.get(option), str)}
    objects = {option for option, value in values.items() if _is_object(value, option)}
    refuse([_no_dict(option, values[option]) for option in _DICTS if option in objects])
    given = {option: value for option, value in values.items() if option not in objects}
    found = checked(function, given, name or function.__name__, PYTHON)
    return {option: found[option] for option in given} | {option: values[option] for option in objects}


def _no_dict(option: str, value: Any) -> str:
    """Return what is wrong with an option that has to be a dict."""
    found = f"`{option}` is of the type {type(value).__module__}.{type(value).__name__}, and expected is a dict"
    if option != "trainer":
        return found
    return f"{found} of arguments of Lightning's Trainer, such as {{'max_epochs': 50}}, from which one is made"


def _is_object(value: Any, name: str) -> bool:
    if isinstance(value, list):
        return name in _LISTS or any(_is_object(inner, "") for inner in value)
    return not (value is None or isinstance(value, _PLAIN))


def as_plain(value: Any) -> Any:
    """Return a value as the command line would give it: paths as text, numbers of other libraries as Python's own.

    Groups of options become dicts; values of other types are returned as they are.
    """
    if isinstance(value, PathLike):
        return fspath(value)
    if are_options(value):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: as_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [as_plain(inner) for inner in value]
    if type(value).__module__.split(".")[0] == "numpy" and getattr(value, "ndim", 2) < 2:
        return value.tolist()  # numbers as well as arrays of them
    return value


_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


def configured(
    function: Callable[Concatenate[dict[str, Any], _Options], _Result | None],
) -> Callable[_Options, _Result]:
    """Make a command of a function whose first argument is the configuration, which its callers do not see.

    Types say what the first of several processes returns; the others return None.

    The others are the command's options. Those that other commands have too, such as `model` and `seed`, need no
    description in its docstring.
    """
    made: Callable[..., Any] = command(with_shared_help(resolved(function)))
    return made
