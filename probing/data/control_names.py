"""The controls that an accuracy can be compared with, and the choice among them.

`shuffled`: labels permuted within each sentence, and exchanged among sentences as far as they differ between these, as
    labels of whole sentences do; accuracy comes only from a sentence's length and words.
`token`: each token's input embedding instead of its hidden state; shows what can be predicted from the token's identity
    alone. For sentences the embeddings are pooled.
`permuted_positions`: hidden states of the same model for sentences whose tokens are permuted; for position this is the
    true floor, independent of how the model encodes order.
`untrained`: hidden states of a randomly initialised model; for position a ceiling rather than a floor, because the
    architecture itself passes on positions.
`control_task`: random labels for each word type (Hewitt & Liang 2019), drawn several times; shows what a probe reaches
    by memorising words.
"""

from __future__ import annotations

from collections.abc import Sequence

from probing.cli.option_types import chosen
from probing.errors import UserError

# The controls in the order of tables and figures, with their labels there.
CONTROLS = {
    "shuffled": "labels shuffled",
    "token": "token alone",
    "permuted_positions": "tokens permuted",
    "control_task": "control task",
    "untrained": "random weights",
}
# Controls that other options add. `--transform`: untransformed activations, and clipping of other neurons than the
# outliers. `--given`: labels permuted among tokens with the same value of what is held fixed.
ADDED_CONTROLS = {"untransformed": "untransformed", "others_clipped": "others clipped", "given": "given alone"}


def chosen_controls(
    typed: str | Sequence[str], ordinal: bool, of_sentences: bool = False, numbers: bool = False
) -> list[str]:
    """Return the requested controls, in the order of the tables.

    Args:
        typed: `all` for those that suit the task, `none`, or names; in a string they are separated by commas.
        ordinal: Whether the task's labels are numbers.
        of_sentences: Whether the task labels sentences, which have no word type of their own.
        numbers: Whether the task predicts numbers, and not classes.

    Raises:
        UserError: If a control is unknown, or does not apply to the task.
    """
    wanted = chosen("--controls", "none" if typed in ("0", [], ["0"]) else typed, [*CONTROLS], "none")
    if typed in ("all", ["all"]):
        # `permuted_positions` is a floor only for tasks about positions; `control_task` measures memorised words, which
        # do not predict positions.
        wanted.remove("control_task" if ordinal else "permuted_positions")
        left_out = of_sentences or numbers
        return [name for name in wanted if not (left_out and name in ("control_task", "permuted_positions"))]
    if of_sentences and "control_task" in wanted:
        raise UserError(
            "`--controls control_task`: it gives each word type a random label, and this task labels sentences; "
            "give shuffled, token, permuted_positions or untrained."
        )
    if numbers and "control_task" in wanted:
        raise UserError(
            "`--controls control_task`: it gives each word type a random class, and this task predicts numbers; "
            "give shuffled, token, permuted_positions or untrained."
        )
    return wanted
