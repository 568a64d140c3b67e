"""The protocol of a task, and loading of installed tasks."""

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


# An int64 array, or an object array of strings.
Labels = NDArray[Any]


class TokenTask(Protocol):
    """Gives each token a label. A task is a dataclass whose fields are its options (`--task_args.NAME`)."""

    @property
    def ordinal(self) -> bool:
        """Whether labels are numbers, so that distances between labels are meaningful."""
        ...

    @property
    def word_means(self) -> bool:
        """Whether a word's activations are the mean over its pieces; its label is then at the first piece."""
        ...

    def labels(self, tokens: Tokens, corpus: Corpus) -> Labels:
        """Return the label of each token, -1 or an empty string if it is not an example; shape (n_tokens,)."""
        ...

    def classes(self, labels: Labels, n_sentences: int) -> Labels:
        """Return the labels that become classes, ascending, given the labels of the training tokens."""
        ...


def has_label(labels: Labels) -> NDArray[np.bool_]:
    """Return whether each token has a label."""
    has: NDArray[np.bool_] = labels != "" if labels.dtype.kind == "O" else labels >= 0
    return has


def load_task(name: str, options: Mapping[str, Any]) -> TokenTask:
    """Build an installed task from its options, whose types are checked.

    Raises:
        UserError: If there is no such task, or an option is unknown or has the wrong type.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        near = did_you_mean(name, found)
        raise UserError(f"`--task {name}` is not installed{near}; tasks are {', '.join(sorted(found)) or 'none'}.")
    task = found[name].load()
    # The command line's own checks, so that a task's options behave like any other option.
    return task(**checked(task, options, f"the task {name}", OptionSource("--task_args.")))
