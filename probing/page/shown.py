"""Results of other commands than `fit`, as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from probing.runs.result_folder import ResultFolder

Made = TypeVar("Made", bound=ResultFolder, covariant=True)


@dataclass(frozen=True)
class Shown(Generic[Made]):
    """Finished results that have a section of their own.

    Args:
        made: The results.
        about: What they are about, as the beginning of a heading.
    """

    made: Made
    about: str

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return self.made.folder

    @property
    def title(self) -> str:
        """The heading of the section on the page."""
        return f"{self.about}: {self.folder.name}"
