"""Measures one checkpoint after the other, each with what is not in the cache yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from probing.cache.source import ActivationSource
from probing.errors import UserError
from probing.models import load_encoder, load_tokenizer
from probing.models.examination import add_tensor, tokenizer_behaviour
from probing.models.loading import NOT_OF_THE_MODEL
from probing.results.schema import count
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
        identity: Of each checkpoint, what its weights, its configuration and its tokenizer are known by.
    """

    checkpoints: Sequence[Checkpoint]
    measured: Sequence[dict[str, Document]]
    n_kept: int
    identity: Sequence[str] = ()

    def same_as(self) -> dict[int, str]:
        """Return by the step of each checkpoint that is the same model as later ones the name of the last of these."""
        last = dict(zip(self.identity, self.checkpoints, strict=False))
        pairs = zip(self.checkpoints, (last[own] for own in self.identity), strict=False)
        return {one.step: other.name for one, other in pairs if one is not other}

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
    identity: list[str] = []
    n_kept = 0
    with stage(count(len(checkpoints), "checkpoint"), len(checkpoints)) as advance:
        for i, checkpoint in enumerate(checkpoints):
            source = source_of(checkpoint)
            identity.append(_identity(source))
            if (first := identity.index(identity[-1])) < i:
                measured.append(measured[first])
                remark(f"step {checkpoint.step} ({checkpoint.name}) is the same model as {checkpoints[first].name}")
                advance(1)
                continue
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
    return Found(checkpoints, measured, n_kept, identity)


def _identity(source: ActivationSource) -> str:
    """SHA-256 (hex) of the parameters, the configuration and the tokenizer of a checkpoint, however they are stored."""
    encoder: Any = load_encoder(source.model, dtype=source.dtype)
    beside = {*NOT_OF_THE_MODEL, "architectures"}
    config = {name: value for name, value in encoder.config.to_dict().items() if name not in beside}
    described = json.dumps(config, sort_keys=True, default=str), tokenizer_behaviour(load_tokenizer(source.model))
    digest = sha256("\0".join(described).encode())
    for parameter_name, parameter in encoder.named_parameters():
        digest.update(parameter_name.encode())
        add_tensor(digest, parameter)
    del encoder
    drop_garbage()  # before the next model is loaded
    return digest.hexdigest()


def _check_text(first: Checkpoint, of_first: dict[str, Document], one: Checkpoint, here: dict[str, Document]) -> None:
    """Refuse a checkpoint whose tokenizer makes other tokens of the text.

    Raises:
        UserError: If the tokens differ.
    """
    for key, document in here.items():
        if document["tokens"] != of_first[key]["tokens"]:
            option = "--checkpoints" if one.revision is None else "--revisions"
            raise UserError(
                f"`{option}`: {one.name} makes other tokens of the text than {first.name}, so that the two cannot be "
                "compared; give checkpoints of one training, with one tokenizer."
            )
