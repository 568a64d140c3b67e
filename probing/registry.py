"""Registry of upper rooms for lower rooms: places as `module:name`, which `probing/__init__.py` fills in.

Nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The study of each command, in the order of the usage text.
STUDIES: dict[str, str] = {}
# Former names of commands, for the sentence that a person gets who types one.
RENAMED = {
    "disable": "ablate", "series": "checkpoints", "changes": "tuning-effect", "embeddings": "position-bias",
}  # fmt: skip
# Functions that the methods of results call.
ACTIONS: dict[str, str] = {}


def python_name(command: str) -> str:
    """Return the name of a command's function in Python."""
    return command.replace("-", "_")


def renamed(command: str) -> str:
    """Return the sentence with the new name of a renamed command; empty for other commands."""
    return f"the command `{command}` is now `{RENAMED[command]}`" if command in RENAMED else ""


def load(place: str) -> Any:
    """Return the object at a place, `module:name`; raise ImportError or AttributeError if it does not exist."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
