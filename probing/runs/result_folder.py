"""What the results of every command have in common as Python has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


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

    def tables(self) -> list[Any]:
        """Return the results as rich tables."""
        raise NotImplementedError

    def conclusions(self) -> list[str]:
        """Return what the results say, a sentence for each question."""
        return []

    def __repr__(self) -> str:
        from probing.runtime.terminal import render

        return render(*self.tables()) + str(self.folder)
