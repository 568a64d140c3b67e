"""The table of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def _from(module: str, function: str) -> Callable[[], tuple[Callable[..., Any], Sequence[str]]]:
    return lambda: (getattr(import_module(f"probing.commands.{module}"), function), ())


COMMANDS = {
    "fit": _from("fit", "fit"),
    "extract": _from("extract", "extract"),
    "cache ls": _from("cache", "ls"),
    "cache verify": _from("cache", "verify"),
    "cache prune": _from("cache", "prune"),
}


def main() -> int:
    """Run the command line and return the exit status."""
    from probing.commandline import run

    return run(COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
