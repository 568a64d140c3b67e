"""Controls for an accuracy, and their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
