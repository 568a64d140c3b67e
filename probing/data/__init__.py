"""Controls for an accuracy: their descriptions, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probing.cli.option_types import chosen
from probing.errors import UserError
from probing.results import listed


@dataclass(frozen=True)
class Control:
    """Texts on a control: its name in tables and figures, its name in a sentence, and its meaning for a page's terms.

    `probing.data.module` builds its examples, `probing.tables.probe_figures` styles its line, `fit`'s help names it.
    """

    words: str
    called: str
    meaning: str


# The controls in the order of tables and figures.
CONTROLS: Mapping[str, Control] = {
    "shuffled": Control(
        "shuffled labels",
        "shuffled labels",
        "The same probe with labels permuted within each sentence, and exchanged among sentences as far as they differ "
        "between these: what the length of a sentence alone allows. It is the floor of any task.",
    ),
    "token": Control(
        "token alone",
        "the token alone",
        "The same probe on the input embedding of each token instead of its hidden state: what can be read from the "
        "token alone. Words are known by all their pieces; for sentences the embeddings are pooled.",
    ),
    "permuted_positions": Control(
        "permuted tokens",
        "permuted tokens",
        "The same probe where the model reads each sentence with its tokens permuted: the true floor for position.",
    ),
    # Hewitt & Liang (2019).
    "control_task": Control(
        "control task",
        "the control task",
        "The same probe on labels drawn at random for each word type, the mean of several draws: what it reaches by "
        "memorising words.",
    ),
    "untrained": Control(
        "randomly initialised",
        "the randomly initialised model",
        "The same probe on a randomly initialised model of the same architecture: what the architecture passes on "
        "without training. For position it is an upper bound rather than a baseline.",
    ),
}

# Controls that other options add: `--transform` the first two, `--control_for` the last one.
ADDED_CONTROLS: Mapping[str, Control] = {
    "untransformed": Control(
        "untransformed",
        "the states as they are",
        "The same probe on the hidden states as they are, without the transform of this run.",
    ),
    "others_clipped": Control(
        "others clipped",
        "other neurons clipped",
        "The same probe with other neurons clipped, as many as this run clips outliers.",
    ),
    "covariate": Control(
        "covariate alone",
        "the covariate alone",
        "The same probe with labels permuted among tokens with the same value of the covariate (`--control_for`): what "
        "can be read from that value alone.",
    ),
}


def chosen_controls(
    requested: str | Sequence[str], ordinal: bool, of_sentences: bool = False, numbers: bool = False
) -> list[str]:
    """Return the requested controls, in the order of the tables; unknown or unsuitable controls raise `UserError`.

    `requested` is `all` for all controls that suit the task, `none`, or names, in a string separated by commas.
    """
    names = chosen("--controls", "none" if requested in ("0", [], ["0"]) else requested, [*CONTROLS], "none")
    if requested in ("all", ["all"]):
        # `permuted_positions` is a floor only for tasks about positions; `control_task` measures memorised words, which
        # do not predict positions.
        names.remove("control_task" if ordinal else "permuted_positions")
        without_types = of_sentences or numbers
        return [name for name in names if not (without_types and name in ("control_task", "permuted_positions"))]
    if "control_task" in names and (of_sentences or numbers):
        why = (
            "a random label, and this task labels sentences"
            if of_sentences
            else "a random class, and this task predicts numbers"
        )
        others = listed([name for name in CONTROLS if name != "control_task"], "or")
        raise UserError(f"`--controls control_task`: it gives each word type {why}; give {others}.")
    return names
