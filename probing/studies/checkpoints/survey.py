"""Measurement of checkpoints in turn, each with the measures that are not cached yet."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from glob import glob, has_magic
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from probing.activations.source import ActivationSource
from probing.errors import UserError, about_option
from probing.models import find_model, load_config, load_encoder, load_tokenizer
from probing.models.examination import add_tensor, tokenizer_behaviour
from probing.models.loading import NOT_OF_THE_MODEL
from probing.results import Table, count
from probing.runs.call import Measured
from probing.runtime import drop_garbage
from probing.runtime.files import most_text, open_file, parse_json, read_text
from probing.runtime.progress import remark, stage
from probing.studies.checkpoints.measures import (
    MEASURES,
    CheckpointConfig,
    Document,
    Rows,
    cached_document,
    without_new_entries,
)
from probing.studies.checkpoints.tables import CHECKPOINTS, LOST, UNIGRAM, Thresholds, by_step, emergence, words_of

# --------------------------------------------------------------------------------------------------------------------
# The checkpoints of a training in the order of their steps, and the losses that their training wrote beside them.
# --------------------------------------------------------------------------------------------------------------------

_THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
# A whole number, also as 20k or 1M; not the digits of a word such as 2B or v2beta.
_NUMBER = r"(?<![\d.])(\d+)([km]?)(?![\w.]*[a-z])"
# What says that the number after it is the step.
_NAMED = re.compile(r"(?:step|steps|checkpoint|ckpt|iter|iteration)[-_=]?(\d+)([km]?)(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class Checkpoint:
    """State of a model in its training: a folder with its name, or a revision of a hub id or alias."""

    step: int
    name: str
    model: str
    revision: str | None = None

    @property
    def folder(self) -> Path | None:
        """Local folder; None for a revision on the hub."""
        return Path(self.model) if self.revision is None else None


def find_checkpoints(
    model: str | None, revisions: str | Sequence[str] | None, checkpoints: str | Sequence[str] | None
) -> list[Checkpoint]:
    """Return the checkpoints that the options name, by step: revisions, or folders and patterns such as DIR/*.

    Raises:
        UserError: If both or neither are given, nothing matches, a folder has no model, or names give no distinct
            steps.
    """
    if checkpoints is not None:
        if model is not None or revisions is not None:
            other = "--model" if model is not None else "--revisions"
            raise UserError(
                f"`--checkpoints` and `{other}`: a series is one of local folders, given as --checkpoints, or of "
                "revisions on the hub, given as --model and --revisions; leave one of the two out."
            )
        return _by_step([_of_folder(folder) for folder in _folders(words_of(checkpoints))], "--checkpoints")
    if model is None or revisions is None:
        raise UserError(
            "`checkpoints` takes checkpoints: local folders as `--checkpoints 'DIR/step*'`, or revisions on the hub as "
            "`--model pythia --revisions step0,step1000`."
        )
    if not (names := list(dict.fromkeys(words_of(revisions)))):
        raise UserError("`--revisions` names none; give some, such as step0,step1000.")
    return _by_step([Checkpoint(_step(name, "--revisions"), name, model, name) for name in names], "--revisions")


def _folders(patterns: Sequence[str]) -> list[Path]:
    """Return the folders that patterns match; files next to checkpoints, such as a table, are skipped."""
    folders_in_order: dict[Path, None] = {}
    for pattern in patterns:
        matches = [Path(path) for path in sorted(glob(pattern))] if has_magic(pattern) else [Path(pattern)]
        folders = [path for path in matches if os.path.isdir(path)]
        if has_magic(pattern) and not folders:
            raise UserError(
                f"`--checkpoints {pattern}` matches no folder; give the pattern of folders that hold a model each, "
                "such as 'DIR/step*'."
            )
        if not has_magic(pattern) and not os.path.exists(matches[0]):
            raise UserError(f"`--checkpoints {pattern}`: there is no such folder; give folders that hold a model each.")
        folders_in_order |= dict.fromkeys(folders)
    if not folders_in_order:
        raise UserError(
            f"`--checkpoints {','.join(patterns) or ' '}` names no folder; give folders that hold a model each."
        )
    return list(folders_in_order)


def _of_folder(folder: Path) -> Checkpoint:
    with about_option("--checkpoints"):
        source = find_model(str(folder))
        load_config(source)
        load_tokenizer(source)
    name = folder.name or folder.resolve().name
    return Checkpoint(_step(name, "--checkpoints"), name, str(folder))


def _step(name: str, option: str) -> int:
    """Return the step in a name: the number after a word such as step, or else the last number; refuse other names."""
    numbers = _NAMED.findall(name) or re.findall(_NUMBER, name, re.IGNORECASE)
    if not numbers:
        raise UserError(
            f"`{option}`: the name {name} tells no step; expected a number in it, such as step1000 or checkpoint-500: "
            "rename it, or leave it out."
        )
    digits, unit = numbers[-1]
    return int(digits) * _THOUSANDS[unit.lower()]


def _by_step(checkpoints: Sequence[Checkpoint], option: str) -> list[Checkpoint]:
    """Return checkpoints in the order of their steps; refuse equal steps."""
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    for earlier, later in pairwise(ordered):
        if earlier.step == later.step:
            names = sorted((earlier, later), key=lambda each: (each.name, each.model))
            first, second = (each.name if each.revision else each.model for each in names)
            raise UserError(
                f"`{option}`: {first} and {second} are both of step {earlier.step}; leave one of them out, or "
                f"rename it."
            )
    return ordered


# What the Trainer of transformers writes into each checkpoint.
TRAINER_STATE = "trainer_state.json"
# What `pretrain` writes into its run, whose checkpoints are at checkpoints/ARM-seedSEED/stepSTEP.
LOSSES = "losses.csv"


def loss_rows(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """Return the rows of `checkpoints.csv` with the loss of each checkpoint whose folder records it.

    A run of `pretrain` also records the loss of a model of token frequencies.
    """
    rows = []
    for checkpoint in checkpoints:
        if (folder := checkpoint.folder) is not None:
            about = {"step": checkpoint.step, "checkpoint": checkpoint.name, "command": "training"}
            losses = _of_pretrain(folder, checkpoint.step) or _of_trainer(folder, checkpoint.step)
            rows += [{**about, "measure": measure, "value": value} for measure, value in losses.items()]
    return rows


def _of_pretrain(folder: Path, step: int) -> dict[str, float]:
    training = folder.absolute().parent
    try:
        with open_file(training.parent.parent / LOSSES, "r", most=most_text(), newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if f"{row['arm']}-seed{row['seed']}" == training.name]
            (step_row,) = (row for row in rows if int(row["step"]) == step)
            return {LOST: float(step_row["loss"]), UNIGRAM: float(step_row["unigram_loss"])}
    except (OSError, LookupError, ValueError):
        return {}


def _of_trainer(folder: Path, step: int) -> dict[str, float]:
    """Return the loss on the evaluation set at a step; empty if the Trainer did not write it."""
    try:
        state = parse_json(read_text(folder / TRAINER_STATE, folder, most_text()))
    except (OSError, ValueError):
        return {}
    history = state.get("log_history", ()) if isinstance(state, Mapping) else ()
    losses = [entry["eval_loss"] for entry in history if entry.get("step") == step and "eval_loss" in entry]
    return {LOST: float(losses[-1])} if losses else {}


@dataclass(frozen=True)
class CheckpointMeasurements:
    """Results of a series, by step and measure, with the number of cached results.

    `identity` is a digest of the weights, configuration and tokenizer of each checkpoint.
    """

    checkpoints: Sequence[Checkpoint]
    documents: Sequence[dict[str, Document]]
    n_cached: int
    identity: Sequence[str] = ()

    def same_as(self) -> dict[int, str]:
        """Return the name of the last equal model, by the step of each checkpoint that equals later checkpoints."""
        last = dict(zip(self.identity, self.checkpoints, strict=False))
        pairs = zip(self.checkpoints, (last[digest] for digest in self.identity), strict=False)
        return {checkpoint.step: other.name for checkpoint, other in pairs if checkpoint is not other}


def survey(
    checkpoints: Sequence[Checkpoint], source_of: Callable[[Checkpoint], ActivationSource], names: Sequence[str],
    config: CheckpointConfig, keeps_activations: bool,
) -> CheckpointMeasurements:  # fmt: skip
    """Measure each checkpoint, in order, with one model in memory at a time.

    Raises:
        UserError: If a checkpoint cannot be read, or tokenises the text differently from the first.
    """
    documents: list[dict[str, Document]] = []
    identity: list[str] = []
    n_cached = 0
    with stage(count(len(checkpoints), "checkpoint"), len(checkpoints)) as advance:
        for i, checkpoint in enumerate(checkpoints):
            source = source_of(checkpoint)
            identity.append(_identity(source))
            if (first := identity.index(identity[-1])) < i:
                documents.append(documents[first])
                remark(f"step {checkpoint.step} ({checkpoint.name}) is the same model as {checkpoints[first].name}")
                advance(1)
                continue
            new_documents: dict[str, Document] = {}
            cached_names = []
            with without_new_entries([source], keeps_activations):
                for name in names:
                    make = partial(MEASURES[name], source, config)
                    new_documents[name], is_cached = cached_document(name, source, config, make)
                    cached_names += [name] * is_cached
                    drop_garbage()  # the model that was read, before the next one is loaded
                documents.append(new_documents)
                _check_text(checkpoints[0], documents[0], checkpoint, new_documents)
            n_cached += len(cached_names)
            cached = f", {', '.join(cached_names)} from the cache" if cached_names else ""
            remark(
                f"step {checkpoint.step} ({checkpoint.name}) is measured{cached}; {len(checkpoints) - i - 1} of "
                f"{len(checkpoints)} left"
            )
            advance(1)
    return CheckpointMeasurements(checkpoints, documents, n_cached, identity)


def _identity(source: ActivationSource) -> str:
    """Return the SHA-256 (hex) of a checkpoint's parameters, configuration and tokenizer, however stored."""
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


def _check_text(
    first: Checkpoint, of_first: dict[str, Document], checkpoint: Checkpoint, documents: dict[str, Document]
) -> None:
    for key, document in documents.items():
        if document["tokens"] != of_first[key]["tokens"]:
            option = "--checkpoints" if checkpoint.revision is None else "--revisions"
            raise UserError(
                f"`{option}`: {checkpoint.name} makes other tokens of the text than {first.name}, so that the two "
                "cannot be compared; give checkpoints of one training, with one tokenizer."
            )


def tables_of(measurements: CheckpointMeasurements, thresholds: Thresholds) -> dict[str, Rows]:
    """Return the rows of each table by its name."""
    rows, outliers = loss_rows(measurements.checkpoints), []
    deviations: dict[int, dict[int, list[float]]] = {}
    for checkpoint, documents in zip(measurements.checkpoints, measurements.documents, strict=True):
        about = {"step": checkpoint.step, "checkpoint": checkpoint.name}
        rows += [{**about, "command": name, **row} for name, document in documents.items() for row in document["rows"]]
        by_layer = documents["geometry"]["deviations"] if "geometry" in documents else {}
        deviations[checkpoint.step] = {int(layer): values for layer, values in by_layer.items()}
        for layer, values in deviations[checkpoint.step].items():
            beyond = [(abs(value), k) for k, value in enumerate(values) if abs(value) > thresholds.outliers]
            outliers += [
                {**about, "layer": layer, "neuron": k, "deviations": values[k]} for _, k in sorted(beyond, reverse=True)
            ]
            of_layer = {**about, "command": "geometry", "layer": layer}
            rows.append({**of_layer, "measure": "n_outliers", "value": float(len(beyond))})
            k = max(range(len(values)), key=lambda k: (abs(values[k]), -k))
            rows.append({**of_layer, "measure": "largest_deviation", "value": abs(values[k]), "neuron": k})
    same_as = measurements.same_as()
    for row in (*rows, *outliers):
        if row["step"] in same_as:
            row["same_as"] = same_as[row["step"]]
    # A state that stands under several steps says nothing of the earlier ones.
    distinct_rows = [row for row in rows if "same_as" not in row]
    distinct = {step: values for step, values in deviations.items() if step not in same_as}
    return {
        "checkpoints": rows,
        "checkpoint_outliers": outliers,
        "emergence": emergence(distinct_rows, list(distinct.values()), list(distinct), thresholds),
    }


def study_output(measurements: CheckpointMeasurements, names: Sequence[str], thresholds: Thresholds) -> Measured:
    """Return the tables with their summary."""
    tables = tables_of(measurements, thresholds)
    results = {
        "models": [
            {name: getattr(checkpoint, name) for name in ("step", "name", "model", "revision")}
            for checkpoint in measurements.checkpoints
        ],
        "measures": list(names),
        "n_kept": measurements.n_cached,
        "thresholds": asdict(thresholds),
    }
    return Measured(tables, results, by_step(Table(tables["checkpoints"], CHECKPOINTS)), "step")
