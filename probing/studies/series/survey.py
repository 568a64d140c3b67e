"""Measures one checkpoint after the other, each with what is not in the cache yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from probing.cache.entries import remove_unused
from probing.cache.source import ActivationSource
from probing.errors import UserError
from probing.results.shown import count
from probing.runtime.machine import drop_garbage
from probing.runtime.progress import stage
from probing.studies.series.checkpoints import Checkpoint
from probing.studies.series.measures import MEASURES, Document, How, Rows, Text, kept, key_of, not_writable


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
    say: Callable[[str], None],
) -> Found:
    """Measure each checkpoint, with one model in memory at a time.

    Args:
        checkpoints: The checkpoints, by step.
        source_of: Returns the model of a checkpoint; called just before the checkpoint is measured.
        names: Names of the measures.
        text: What all of them read.
        how: How they are measured.
        keeps_activations: Whether the hidden states of a checkpoint stay in the cache once it is measured.
        say: Called with a line for each checkpoint.

    Raises:
        UserError: If a checkpoint cannot be read, or does not read the text as the first one does.
    """
    measured: list[dict[str, Document]] = []
    n_kept = 0
    with stage(count(len(checkpoints), "checkpoint"), len(checkpoints)) as advance:
        for i, checkpoint in enumerate(checkpoints):
            source = source_of(checkpoint)
            before = _entries_before(source, keeps_activations)
            here: dict[str, Document] = {}
            were_kept = []
            for name in names:

                def make(name: str = name, source: ActivationSource = source) -> Any:
                    return MEASURES[name](source, text, how)

                here[name], was_kept = kept(source.cache, key_of(name, source, text, how), make, source.say)
                were_kept += [name] * was_kept
                drop_garbage()  # the model that was read, before the next one is loaded
            _check_text(checkpoints[0], measured[0] if measured else here, checkpoint, here)
            measured.append(here)
            n_kept += len(were_kept)
            if not keeps_activations:
                for folder in _entries(source) - before:
                    remove_unused(source.cache, folder)
                _note(source).unlink(missing_ok=True)
            left, cached = len(checkpoints) - i - 1, f", {', '.join(were_kept)} from the cache" if were_kept else ""
            say(f"step {checkpoint.step} ({checkpoint.name}) is measured{cached}; {left} of {len(checkpoints)} left")
            advance(1)
    return Found(checkpoints, measured, n_kept)


def _entries(source: ActivationSource) -> set[Path]:
    """Return the entries of the cache that hold what a model of this name made, such as hidden states."""
    return set(source.cache.glob(f"{escape(source.model.short_name)}-{'[0-9a-f]' * 16}"))


def _note(source: ActivationSource) -> Path:
    """Return the path of the note that says which entries a checkpoint had before it was measured."""
    return source.cache / f"series-{source.model.short_name}-{source.model.fingerprint()[:16]}.json"


def _entries_before(source: ActivationSource, keeps_activations: bool) -> set[Path]:
    """Return the entries of a checkpoint that a series leaves there, because others made them.

    They are noted until the checkpoint is measured, so that a series that goes on after a kill does not take the
    entries that it has made for those of others.

    Raises:
        UserError: If the cache cannot be written.
    """
    note = _note(source)
    if keeps_activations:
        note.unlink(missing_ok=True)
        return set()
    with suppress(FileNotFoundError, ValueError):  # a note that a kill cut short was written before any entry
        return {source.cache / name for name in json.loads(note.read_text(encoding="utf-8"))}
    before = _entries(source)
    try:
        source.cache.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(sorted(folder.name for folder in before)), encoding="utf-8")
    except OSError as error:
        raise not_writable(source.cache, error) from None
    return before


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
