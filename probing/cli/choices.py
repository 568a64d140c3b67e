"""Options that name several known things, returned in the order of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

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


def figure_formats(typed: str | Sequence[str]) -> list[str]:
    """Return the formats that `--figure_format` names.

    Raises:
        UserError: If one is unknown.
    """
    return list(chosen("--figure_format", typed, FORMATS))
