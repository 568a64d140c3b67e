"""What a task is, and where the installed ones are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.errors import UserError

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
        raise UserError(f"`--task {name}` is not installed; tasks are {', '.join(sorted(found)) or 'none'}.")
    task = found[name].load()
    known = [field.name for field in dataclasses.fields(task)]
    if unknown := [option for option in options if option not in known]:
        raise UserError(
            f"`--task_args.{unknown[0]}` is no option of the task {name}; its options are {', '.join(known)}."
        )
    from jsonargparse import ArgumentParser

    from probing.commandline import plain_words

    # The command line's own type checks, so that a task's options behave like any other option.
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(task, "task_args")
    try:
        checked = parser.parse_object({"task_args": dict(options)})
    except Exception as error:  # jsonargparse raises its own and argparse's errors
        raise UserError(plain_words(str(error))) from None
    return task(**checked.task_args)
