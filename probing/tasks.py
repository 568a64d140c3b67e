"""What a task is, and where the installed ones are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.arguments import Place, checked
from probing.cache.tokens import Tokens
from probing.errors import UserError, did_you_mean

GROUP = "probing.tasks"


class TokenTask(Protocol):
    """Gives each token a label. A task is a dataclass whose fields are its options (`--task_args.NAME`)."""

    ordinal: bool

    def labels(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return the label of each token, -1 where it is no example; shape (n_tokens,)."""
        ...

    def classes(self, labels: NDArray[np.int64], n_sentences: int) -> NDArray[np.int64]:
        """Return the labels that become classes, ascending, given those of the training tokens."""
        ...


def load_task(name: str, options: Mapping[str, Any]) -> TokenTask:
    """Build an installed task with its options, checked by their types.

    Raises:
        UserError: If there is no such task, or an option is unknown or of the wrong type.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        near = did_you_mean(name, found)
        raise UserError(f"`--task {name}` is not installed{near}; tasks are {', '.join(sorted(found)) or 'none'}.")
    task = found[name].load()
    # The command line's own checks, so that a task's options behave like any other option.
    return task(**checked(task, options, f"the task {name}", Place("--task_args.")))
