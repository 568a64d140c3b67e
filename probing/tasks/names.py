"""The name of a task in titles and in the names of runs."""

from __future__ import annotations


def short_name(task: str) -> str:
    """Return the name of a task as a run's configuration has it, without the file or the module of its class."""
    return task.rpartition(":")[2]
