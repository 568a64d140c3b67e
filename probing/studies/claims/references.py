"""Names of other runs in the options of a run: an at sign and the run's name stand for the folder of that run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# At the beginning of a value or behind the name of a readout, as in task=@tuned; a folder in that folder may follow.
_OTHER_RUN = re.compile(r"(?:(?<=^)|(?<==))@(?P<name>\w+)")


def runs_named(described: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the other runs that the options of a run name."""
    found = (found["name"] for value in values_of(described) for found in _OTHER_RUN.finditer(value))
    return tuple(dict.fromkeys(found))


def values_of(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of the options of a run, also those in groups and those that may stand in place of others."""
    for value in described.values():
        yield from values_of(value) if isinstance(value, Mapping) else (str(value),)


def with_folders(value: Any, folders: Mapping[str, Path]) -> Any:
    """Return the value of an option with the folders of runs in the place of their names."""
    return _OTHER_RUN.sub(lambda found: str(folders[found["name"]]), value) if isinstance(value, str) else value
