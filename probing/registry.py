"""What upper rooms offer to lower ones: places as `module:name`, which `probing/__init__.py` fills in.

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
    """Return the sentence that tells the new name of a command; empty if it had no other name."""
    return f"the command `{command}` is now `{RENAMED[command]}`" if command in RENAMED else ""


def load(place: str) -> Any:
    """Return the object at a place, `module:name`.

    Raises:
        ImportError: If the module cannot be imported.
        AttributeError: If the module has no such name.
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
