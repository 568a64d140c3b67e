"""Names that a user chooses several of, in the order of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from probing.errors import UserError, did_you_mean

_Name = TypeVar("_Name", bound=str)


def chosen(option: str, typed: str | Sequence[str], known: Sequence[_Name], nothing: str | None = None) -> list[_Name]:
    """Return the names that are asked for: some, separated by commas, or all.

    Args:
        option: Where the user typed them, such as `--pooling`.
        typed: What the user typed.
        known: All there are.
        nothing: The word for none of them, if that may be.

    Raises:
        UserError: If one is unknown.
    """
    names = [name.strip() for name in typed.split(",")] if isinstance(typed, str) else list(typed)
    if names == ["all"]:
        return list(known)
    if nothing is not None and names == [nothing]:
        return []
    for name in names or [""]:
        if name not in known:
            words = ", ".join([*known, "all", *([nothing] if nothing else [])])
            raise UserError(f"`{option} {name}` is none of {words}{did_you_mean(name, known)}; give some of these.")
    return [name for name in known if name in names]
