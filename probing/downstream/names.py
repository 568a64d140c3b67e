"""Names of the poolings of a sentence and of the spaces of cosines, known before anything heavy is imported."""

from __future__ import annotations

from typing import Literal, get_args

Pooling = Literal["mean", "mean_special", "cls", "first_last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


Space = Literal["none", "clip", "clip_random", "whiten", "standardise", "center", "all_but_the_top"]
SPACES: tuple[Space, ...] = get_args(Space)
# Definitions of the outliers that are clipped: those that use hidden states only.
Definition = Literal["argmin_share", "argmax_share", "mean_profile", "variance"]

# Marks transforms that were fitted on the sentences they are evaluated on.
TRANSDUCTIVE = "transductive"
CLIPPING = ("clip", "clip_random")

# Names of the spaces in tables and figures.
WORDS = {
    "none": "plain",
    "clip": "clipped",
    "clip_random": "random clipped",
    "whiten": "whitened",
    "standardise": "standardised",
    "center": "centred",
    "all_but_the_top": "all but the top",
}
