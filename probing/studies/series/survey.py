"""Measures one checkpoint after the other, each with what is not in the cache yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from probing.cache.source import ActivationSource
from probing.errors import UserError
from probing.results.shown import count
from probing.runtime.machine import drop_garbage
from probing.runtime.progress import remark, stage
from probing.studies.series.checkpoints import Checkpoint
from probing.studies.series.measures import (
    MEASURES,
    Document,
    How,
    Rows,
    Text,
    kept,
    key_of,
    without_new_entries,
)


@dataclass(frozen=True)
class Found:
    """What was measured of a series.

    Args:
        checkpoints: The checkpoints, by step.
        measured: For each checkpoint what each measure found, by its name.
        n_kept: Number of these that were in the cache.
    """

    checkpoints: Sequence[Checkpoint]
    measured: Sequence[dict[str, Document]]
    n_kept: int

    def rows_by_checkpoint(self) -> list[Rows]:
        """Return for each checkpoint a row for each layer and measure."""
        return [
            [
                {"step": one.step, "checkpoint": one.name, "command": name, **row}
                for name, document in documents.items()
                for row in document["rows"]
            ]
            for one, documents in zip(self.checkpoints, self.measured, strict=True)
        ]

    def deviations(self) -> list[dict[int, list[float]]]:
        """Return for each checkpoint by layer how far the mean of each neuron is from those of the others, in sd.

        There are no layers if `geometry` was not measured.
        """
        return [
            {int(layer): list(values) for layer, values in documents["geometry"]["deviations"].items()}
            if "geometry" in documents else {}
            for documents in self.measured
        ]  # fmt: skip


def survey(
    checkpoints: Sequence[Checkpoint],
    source_of: Callable[[Checkpoint], ActivationSource],
    names: Sequence[str],
    text: Text,
    how: How,
    keeps_activations: bool,
) -> Found:
    """Measure each checkpoint, with one model in memory at a time.

    Args:
        checkpoints: The checkpoints, by step.
        source_of: Returns the model of a checkpoint; called just before the checkpoint is measured.
        names: Names of the measures.
        text: What all of them read.
        how: How they are measured.
        keeps_activations: Whether the hidden states of a checkpoint stay in the cache once it is measured.

    Raises:
        UserError: If a checkpoint cannot be read, or does not read the text as the first one does.
    """
    measured: list[dict[str, Document]] = []
    n_kept = 0
    with stage(count(len(checkpoints), "checkpoint"), len(checkpoints)) as advance:
        for i, checkpoint in enumerate(checkpoints):
            source = source_of(checkpoint)
            here: dict[str, Document] = {}
            were_kept = []
            with without_new_entries([source], keeps_activations):
                for name in names:

                    def make(name: str = name, source: ActivationSource = source) -> Any:
                        return MEASURES[name](source, text, how)

                    here[name], was_kept = kept(source.cache, key_of(name, source, text, how), make, source.say)
                    were_kept += [name] * was_kept
                    drop_garbage()  # the model that was read, before the next one is loaded
                _check_text(checkpoints[0], measured[0] if measured else here, checkpoint, here)
            measured.append(here)
            n_kept += len(were_kept)
            left, cached = len(checkpoints) - i - 1, f", {', '.join(were_kept)} from the cache" if were_kept else ""
            remark(f"step {checkpoint.step} ({checkpoint.name}) is measured{cached}; {left} of {len(checkpoints)} left")
            advance(1)
    return Found(checkpoints, measured, n_kept)


def _check_text(first: Checkpoint, of_first: dict[str, Document], one: Checkpoint, here: dict[str, Document]) -> None:
    """Refuse a checkpoint whose tokenizer makes other tokens of the text.

    Raises:
        UserError: If the tokens differ.
    """
    for name, document in here.items():
        if document["tokens"] != of_first[name]["tokens"]:
            option = "--checkpoints" if one.revision is None else "--revisions"
            raise UserError(
                f"`{option}`: {one.name} makes other tokens of the text than {first.name}, so that the two cannot be "
                "compared; give checkpoints of one training, with one tokenizer."
            )
