"""Types of options, as in signatures, in messages and in a run's configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import wraps
from inspect import signature
from os import PathLike
from types import FunctionType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from probing.cli.options import ProbeOptions, WandbOptions, are_options, as_options
from probing.errors import UserError, did_you_mean, out_of_range

# Formats of figures: an image for the screen and for W&B, and vector forms for a paper.
FORMATS: tuple[Literal["png", "pdf", "svg"], ...] = ("png", "pdf", "svg")
# How `--figure_format` is typed, and its default.
FigureFormat = str | list[str]
FIGURE_FORMAT = "png,pdf"

_Name = TypeVar("_Name", bound=str)


def chosen(
    option: str, requested: str | Sequence[str], known: Sequence[_Name], nothing: str | None = None
) -> list[_Name]:
    """Return the requested names: some, separated by commas, or all; `nothing` is the word for none, if allowed.

    Raises:
        UserError: If a name is unknown.
    """
    names = [name.strip() for name in requested.split(",")] if isinstance(requested, str) else list(requested)
    if names == ["all"]:
        return list(known)
    if nothing is not None and names == [nothing]:
        return []
    for name in names or [""]:
        if name not in known:
            words = ", ".join([*known, "all", *([nothing] if nothing else [])])
            near = did_you_mean(name, known)
            raise UserError(f"`{option} {name}` is not one of {words}{near}; give one or more of these.")
    return [name for name in known if name in names]


def chosen_with_data(
    option: str, requested: str | Sequence[str], known: Mapping[_Name, str | None]
) -> dict[_Name, str | None]:  # fmt: skip
    """Return the requested names in the order of tables, each with its data, typed as NAME=DATA, or None.

    `known` has the name of the data for messages, or None if a name needs none. Unknown or repeated names and missing
    or superfluous data raise UserError.
    """
    parts = [part.strip() for part in requested.split(",")] if isinstance(requested, str) else list(requested)
    data_by_name: dict[str, str | None] = {}
    for part in parts or [""]:
        name, equals, data = part.partition("=")
        if name not in known:
            forms = ", ".join(
                known_name if what is None else f"{known_name}={what}" for known_name, what in known.items()
            )
            raise UserError(f"`{option} {part}` is not one of {forms}{did_you_mean(name, known)}; give some of these.")
        what = known[cast(Any, name)]
        if name in data_by_name:
            raise UserError(f"`{option} {part}`: {name} is there twice; name it once.")
        if what is None and equals:
            raise UserError(f"`{option} {part}`: {name} takes no data; give {name} alone.")
        if what is not None and not data:
            raise UserError(f"`{option} {part}` needs its data; give {name}={what}.")
        data_by_name[name] = data if equals else None
    return {name: data_by_name[name] for name in known if name in data_by_name}


def figure_formats(requested: str | Sequence[str]) -> list[str]:
    """Return the formats that `--figure_format` names; raise UserError for an unknown format."""
    return list(chosen("--figure_format", requested, FORMATS))


class PythonOnly:
    """Type of an argument that a command takes from Python alone."""


def python_only(function: Callable[..., Any]) -> set[str | int]:
    """Return the names of a command's arguments that the command line does not have."""
    return {name for name, hint in get_type_hints(function).items() if hint is PythonOnly}


def option_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotation of each option of a function or class; nested dataclasses give dotted names.

    Annotations that allow text omit classes whose objects only Python can give.
    """
    types: dict[str, Any] = {}
    for name, hint in _hints(function).items():
        if dataclasses.is_dataclass(hint):
            types |= {f"{name}.{inner}": inner_hint for inner, inner_hint in get_type_hints(hint).items()}
        elif name != "return" and hint is not PythonOnly:
            types[name] = _without_objects(hint)
    return types


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    if not isinstance(function, type):
        return get_type_hints(function)
    has_init = "__init__" in vars(function) and "__dataclass_fields__" not in vars(function)
    hints = get_type_hints(vars(function)["__init__"]) if has_init else get_type_hints(function)
    return {name: hints.get(name, Any) for name in signature(function).parameters}


def _without_objects(hint: Any) -> Any:
    """Return an annotation for the command line: if it allows text, without all classes that are not built in."""
    parts = get_args(hint)
    if get_origin(hint) not in (Union, UnionType) or str not in parts:
        return hint
    objects = [part for part in parts if isinstance(part, type) and part.__module__ != "builtins"]
    return Union[tuple(part for part in parts if part not in objects)] if objects else hint  # noqa: UP007


def for_command_line(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with annotations in which options that also take objects take text alone.

    The parser would import a class that a text names, build an object of it, and list all classes in the help.
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
    # Results that were read or made stand for their folder.
    Folder: TypeAlias = str | PathLike[str]
    Folders: TypeAlias = Folder | Sequence[Folder]
    Probe: TypeAlias = ProbeOptions | Mapping[str, Any]
    Wandb: TypeAlias = WandbOptions | Mapping[str, Any]
    # Texts of finished runs.
    Moved: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
else:
    Model = Source = Folder = str
    Folders = list[str]
    Probe, Wandb = ProbeOptions, WandbOptions
    Moved = str | list[str]
    Tokenizer = PythonOnly

# The largest seed that all random number generators accept.
LAST_SEED = 2**63 - 1


_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


def resolved(command: Callable[Concatenate[dict[str, Any], _Options], _Result]) -> Callable[_Options, _Result]:
    """Pass a command its resolved options as its first argument, which is hidden from callers.

    These are all options as plain values, without the run's name, for `config.yaml` and W&B. A group of options given
    as a mapping becomes its dataclass. Formats of figures, which are written after all other work, are checked first.
    """
    whole: Callable[..., _Result] = command
    config, *options = signature(command).parameters.values()
    public = signature(command).replace(parameters=options)

    @wraps(command)
    def run(*args: _Options.args, **keywords: _Options.kwargs) -> _Result:
        try:
            bound = public.bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"{command.__name__}() {error}") from None
        bound.apply_defaults()
        if "figure_format" in bound.arguments:
            figure_formats(bound.arguments["figure_format"])
        for option in options:
            if is_dataclass(option.default):
                value = bound.arguments[option.name]
                bound.arguments[option.name] = as_options(type(option.default), value, option.name)
        return whole(plain(bound.arguments), *bound.args, **bound.kwargs)

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
    """Return the options as plain values for YAML and W&B, without the run's name and the tokenizer."""
    values = {k: asdict(v) if are_options(v) else v for k, v in options.items()}
    mappings = {k: dict(values[k] or {}) for k in ("trainer", "task_args") if k in values}
    return {k: v for k, v in values.items() if k not in ("name", "tokenizer")} | mappings


# With so many, the first of all has the p-value .05.
LEAST_ROTATIONS = 19


def rotation_problems(rotations: int | None) -> list[str]:
    """Return the problems with a number of rotations."""
    few = f"`--rotations {rotations}`: expected 0, or at least {LEAST_ROTATIONS}, with fewer of which no p-value "
    return [f"{few}reaches .05"] if rotations and rotations < LEAST_ROTATIONS else []


def option_problems(
    probe: ProbeOptions, seed: int, max_length: int | None, batch_tokens: int | None, replicates: int,
    rotations: int | None = None,
) -> list[str]:  # fmt: skip
    """Return the problems with these numbers that are known without the model and the corpus."""
    problems = probe.problems() + number_problems(seed, max_length, batch_tokens) + rotation_problems(rotations)
    if replicates == 1:
        return [*problems, "`--replicates 1` is too few: a single bootstrap has no range, so expected 0 or at least 2"]
    return problems + out_of_range("replicates", replicates, 0)
