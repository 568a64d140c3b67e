"""What the results of every command have in common as Python has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from probing.runs.reading import reading


@dataclass(frozen=True, repr=False)
class ResultFolder:
    """The results of a command other than `fit`, whose tables have the names of their files.

    Args:
        folder: Their folder.
        config: The resolved configuration, without the name.
        results: The content of `results.json`.
    """

    folder: Path
    config: dict[str, Any]
    results: dict[str, Any]

    def __init_subclass__(cls) -> None:
        """Let what each kind says of its tables refuse tables that nothing can be said of."""
        for name in ("tables", "conclusions"):
            if name in vars(cls):
                setattr(cls, name, _refusing(vars(cls)[name]))

    def tables(self) -> list[Any]:
        """Return the results as rich tables."""
        raise NotImplementedError

    def conclusions(self) -> list[str]:
        """Return what the results say, a sentence for each question."""
        return []

    def __repr__(self) -> str:
        from probing.runtime.terminal import render

        return render(*self.tables()) + str(self.folder)


def _refusing(said: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    @wraps(said)
    def refusing(self: ResultFolder) -> list[Any]:
        with reading(self.folder):
            return said(self)

    return refusing
