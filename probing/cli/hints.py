"""Types of a command's options, as its signature states them and as messages say them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from inspect import signature
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class PythonOnly:
    """Stands for the type of an argument that a command takes from Python alone."""


def python_only(function: Callable[..., Any]) -> set[str | int]:
    """Return the names of a command's arguments that have no form on the command line."""
    return {name for name, hint in get_type_hints(function).items() if hint is PythonOnly}


def option_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotation of each option of a function or class; nested dataclasses give dotted names.

    A class whose objects only Python can give is left out of an annotation that also allows text.
    """
    types: dict[str, Any] = {}
    for name, hint in _hints(function).items():
        if dataclasses.is_dataclass(hint):
            types |= {f"{name}.{inner}": inner_hint for inner, inner_hint in get_type_hints(hint).items()}
        elif name != "return" and hint is not PythonOnly:
            types[name] = _without_objects(hint)
    return types


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function's arguments, or of those that make an object of a class."""
    if not isinstance(function, type):
        return get_type_hints(function)
    own_init = "__init__" in vars(function) and "__dataclass_fields__" not in vars(function)
    hints = get_type_hints(vars(function)["__init__"]) if own_init else get_type_hints(function)
    return {name: hints.get(name, Any) for name in signature(function).parameters}


def _without_objects(hint: Any) -> Any:
    """Return an annotation for the command line: if it allows text, without all classes that are not built in."""
    parts = get_args(hint)
    if get_origin(hint) not in (Union, UnionType) or str not in parts:
        return hint
    objects = [part for part in parts if isinstance(part, type) and part.__module__ != "builtins"]
    return Union[tuple(part for part in parts if part not in objects)] if objects else hint  # noqa: UP007


def as_typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as the command line sees it, where options that also take objects take text alone.

    The parser would import the class that a text names, build an object of it, and list all classes in the help.
    """
    hints = get_type_hints(function)
    seen = {name: _without_objects(hint) for name, hint in hints.items()}
    if seen == hints or not isinstance(function, FunctionType):
        return function
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__doc__, copy.__module__, copy.__kwdefaults__ = function.__doc__, function.__module__, function.__kwdefaults__
    copy.__dict__.update(function.__dict__)  # the signature that a decorator gave it
    copy.__annotations__ = seen
    return copy


def expected(hint: Any) -> str:
    """Describe the values of a type in words."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        return _either(map(str, get_args(hint)))
    if kind in (Union, UnionType):
        return _either(expected(part) for part in get_args(hint) if part is not NoneType)
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text, in quotes if need be",
        list: "a list such as [a, b]",
        dict: "names with values",
    }
    return words.get(kind, "another value")


def is_mapping(hint: Any) -> bool:
    """Return whether an option takes names with values."""
    return any((get_origin(part) or part) is dict for part in (hint, *get_args(hint)))


def admits_none(hint: Any) -> bool:
    """Return whether an option may be None."""
    return hint is Any or NoneType in get_args(hint)


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
