"""What a run predicts, in titles and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Tasks that read a column that the user names.
_OF_ANY_COLUMN = ("column", "sentence_label")


def short_name(config: Mapping[str, Any]) -> str:
    """Return the name of what a run's task predicts, without the file or the module of its class.

    A task that reads any column is named by its column, unless that is `label`.

    Args:
        config: The run's configuration.
    """
    task = str(config["task"])
    column = (config.get("task_args") or {}).get("column")
    return str(column) if task in _OF_ANY_COLUMN and column not in (None, "label") else task.rpartition(":")[2]
