"""What is asked of a survey of changed neurons, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.readouts.forward import ReadableText
from probing.readouts.frozen_probes import PositionHead
from probing.studies.geometry.neurons.sets import Kind, Rows
from probing.studies.geometry.neurons.stream import Place


@dataclass(frozen=True)
class Asked:
    """What is asked.

    Args:
        ranked: The neurons that are changed, in their order, by layer.
        kinds: What stands in their place.
        at: At which tokens.
        n_tokens: Most tokens of the text that is read, and of the training sentences.
        n_draws: Number of random sets, and of matched ones, for each size.
        n_retrained: Number of these, of the largest size, for which probes are trained again.
        seed: Seed of every random draw.
        task_name: Name of the task of a run, where it is another than position, for tables.
    """

    ranked: Mapping[int, Sequence[int]]
    kinds: Sequence[Kind]
    at: Place
    n_tokens: int
    n_draws: int
    n_retrained: int
    seed: int
    task_name: str | None = None


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        interventions: Rows of `neuron_interventions.csv`.
        draws: Rows of `neuron_draws.csv`.
        text: The sentences that were read.
        part: Those of them that drawn sets were read on.
        heads: The heads that were read.
        read: What probes read, and of whose training they are: `run`, or `here` where they were trained for it.
        erased: The task whose classes were erased, or between which examples were moved; None if there was none.
        n_pairs: Number of pairs between whose sentences neurons were exchanged; 0 if they were not.
        n_left_out: Number of pairs whose sentences cannot be read token by token.
    """

    interventions: Rows
    draws: Rows
    text: ReadableText
    part: ReadableText
    heads: Sequence[PositionHead]
    read: Mapping[str, str]
    erased: str | None
    n_pairs: int = 0
    n_left_out: int = 0

    @property
    def summary(self) -> dict[str, Any]:
        """What `results.json` says of it."""
        return {
            "n_sentences": self.text.tokens.n_sentences, "n_tokens": self.text.tokens.n_tokens,
            "n_drawn_sentences": self.part.tokens.n_sentences, "n_drawn_tokens": self.part.tokens.n_tokens,
            "position_heads": [vars(one) for one in self.heads], "probes": dict(self.read), "classes_of": self.erased,
            **({"n_pairs": self.n_pairs, "n_left_out": self.n_left_out} if self.n_pairs else {}),
        }  # fmt: skip
