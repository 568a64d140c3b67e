"""Options that name several known things, returned in the order of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from probing.errors import UserError, did_you_mean

# Formats of figures: an image for the screen and for W&B, and vector forms for a paper.
FORMATS: tuple[Literal["png", "pdf", "svg"], ...] = ("png", "pdf", "svg")
# How `--figure_format` is typed, and its default.
FigureFormat = str | list[str]
FIGURE_FORMAT = "png,pdf"

_Name = TypeVar("_Name", bound=str)


def chosen(option: str, typed: str | Sequence[str], known: Sequence[_Name], nothing: str | None = None) -> list[_Name]:
    """Return the requested names: some, separated by commas, or all.

    Args:
        option: The option, such as `--pooling`, for messages.
        typed: The value that the user typed.
        known: All known names.
        nothing: The word that stands for none of them, if none is allowed.

    Raises:
        UserError: If a name is unknown.
    """
    names = [name.strip() for name in typed.split(",")] if isinstance(typed, str) else list(typed)
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
    option: str, typed: str | Sequence[str], known: Mapping[_Name, str | None]
) -> dict[_Name, str | None]:  # fmt: skip
    """Return the requested names in the order of tables, with the data of those that need some, typed as NAME=DATA.

    Args:
        option: The option, such as `--readouts`, for messages.
        typed: The value that the user typed: several are separated by commas.
        known: All known names, each with what its data is called in messages; None if it needs no data.

    Raises:
        UserError: If a name is unknown or there twice, or data is missing or not needed.
    """
    parts = [part.strip() for part in typed.split(",")] if isinstance(typed, str) else list(typed)
    found: dict[str, str | None] = {}
    for part in parts or [""]:
        name, equals, data = part.partition("=")
        if name not in known:
            forms = ", ".join(one if what is None else f"{one}={what}" for one, what in known.items())
            raise UserError(f"`{option} {part}` is not one of {forms}{did_you_mean(name, known)}; give some of these.")
        what = known[cast(Any, name)]
        if name in found:
            raise UserError(f"`{option} {part}`: {name} is there twice; name it once.")
        if what is None and equals:
            raise UserError(f"`{option} {part}`: {name} takes no data; give {name} alone.")
        if what is not None and not data:
            raise UserError(f"`{option} {part}` needs its data; give {name}={what}.")
        found[name] = data if equals else None
    return {name: found[name] for name in known if name in found}


def figure_formats(typed: str | Sequence[str]) -> list[str]:
    """Return the formats that `--figure_format` names.

    Raises:
        UserError: If one is unknown.
    """
    return list(chosen("--figure_format", typed, FORMATS))
