"""What a task is, and where the installed ones are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.cli.arguments import OptionSource, checked
from probing.corpus import Corpus
from probing.errors import UserError, did_you_mean

GROUP = "probing.tasks"


# int64, or strings in an array of objects.
Labels = NDArray[Any]


class TokenTask(Protocol):
    """Gives each token a label. A task is a dataclass whose fields are its options (`--task_args.NAME`)."""

    @property
    def ordinal(self) -> bool:
        """Whether labels are numbers, so that distances between them mean something."""
        ...

    @property
    def word_means(self) -> bool:
        """Whether a word's activations are the mean over its pieces, its label being at the first."""
        ...

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels:
        """Return the label of each token, -1 or an empty string where it is no example; shape (n_tokens,)."""
        ...

    def classes(self, labels: Labels, n_sentences: int) -> Labels:
        """Return the labels that become classes, ascending, given those of the training tokens."""
        ...


def has_label(labels: Labels) -> NDArray[np.bool_]:
    """Return which tokens have a label."""
    has: NDArray[np.bool_] = labels != "" if labels.dtype.kind == "O" else labels >= 0
    return has


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
    return task(**checked(task, options, f"the task {name}", OptionSource("--task_args.")))
