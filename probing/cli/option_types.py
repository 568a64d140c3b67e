"""Types of options, as in signatures, in messages and in a run's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from probing.errors import UserError, did_you_mean, flag

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
            typed = flag(option.removeprefix("--"), name)
            raise UserError(f"{typed} is not one of {words}{near}; give one or more of these.")
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
        (name, equals, data), typed = part.partition("="), flag(option.removeprefix("--"), part)
        if name not in known:
            forms = ", ".join(
                known_name if what is None else f"{known_name}={what}" for known_name, what in known.items()
            )
            raise UserError(f"{typed} is not one of {forms}{did_you_mean(name, known)}; give some of these.")
        what = known[cast(Any, name)]
        if name in data_by_name:
            raise UserError(f"{typed}: {name} is there twice; name it once.")
        if what is None and equals:
            raise UserError(f"{typed}: {name} takes no data; give {name} alone.")
        if what is not None and not data:
            raise UserError(f"{typed} needs its data; give {name}={what}.")
        data_by_name[name] = data if equals else None
    return {name: data_by_name[name] for name in known if name in data_by_name}


def figure_formats(requested: str | Sequence[str]) -> list[str]:
    """Return the formats that `--figure_format` names; raise UserError for an unknown format."""
    return list(chosen("figure_format", requested, FORMATS))


class PythonOnly:
    """Type of an argument that a command takes from Python alone."""


def without_objects(hint: Any) -> Any:
    """Return an annotation for the command line: if it allows text, without all classes that are not built in.

    The parser would import a class that a text names, build an object of it, and list all classes in the help.
    """
    parts = get_args(hint)
    if get_origin(hint) not in (Union, UnionType) or str not in parts:
        return hint
    objects = [part for part in parts if isinstance(part, type) and part.__module__ != "builtins"]
    return Union[tuple(part for part in parts if part not in objects)] if objects else hint  # noqa: UP007


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
GroupBy = Literal["auto", "sentence", "document"]
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
    # Texts of finished runs.
    Moved: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
else:
    Model = Source = Folder = str
    Folders = list[str]
    Moved = str | list[str]
    Tokenizer = PythonOnly

# The largest seed that all random number generators accept.
LAST_SEED = 2**63 - 1
