"""Which controls an accuracy can be held against, and which are asked for.

`shuffled`: labels dealt anew within each sentence; no probe can do better than a sentence's length and words allow.
`token`: the input embedding's row of each token instead of its hidden state; what the token alone tells.
`permuted_positions`: hidden states of the same model, which reads each sentence with its tokens permuted; for position,
    the true floor, however the model is told of order.
`untrained`: hidden states of the untrained twin; for position a ceiling rather than a floor, for the architecture
    carries position by itself.
`control_task`: labels drawn for each word type (Hewitt & Liang 2019), several times; what a probe reaches by knowing
    words by heart.
"""

from __future__ import annotations

from collections.abc import Sequence

from probing.cli.choices import chosen

# In the order of tables and figures, and what these call them.
CONTROLS = {
    "shuffled": "labels shuffled",
    "token": "token alone",
    "permuted_positions": "tokens permuted",
    "control_task": "control task",
    "untrained": "random weights",
}
# What `--transform` adds: the same probe on activations as they are, and with other neurons clipped than the outliers.
TRANSFORM_CONTROLS = {"untransformed": "untransformed", "others_clipped": "others clipped"}


def chosen_controls(typed: str | Sequence[str], ordinal: bool) -> list[str]:
    """Return the controls that were asked for, in the order of the tables.

    Args:
        typed: `all` for those that say something of the task, `none`, or names; a text separates them by commas.
        ordinal: Whether the task's labels are numbers.

    Raises:
        UserError: If one is unknown.
    """
    wanted = chosen("--controls", "none" if typed in ("0", [], ["0"]) else typed, [*CONTROLS], "none")
    if typed in ("all", ["all"]):
        # A sentence without its order is a floor for position alone; words known by heart tell nothing of it.
        wanted.remove("control_task" if ordinal else "permuted_positions")
    return wanted
