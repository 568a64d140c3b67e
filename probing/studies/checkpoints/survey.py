"""Measurement of checkpoints in turn, each with the measures that are not cached yet."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from glob import escape, glob, has_magic
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probing.activations import NotWritable, job_lock
from probing.activations.source import ActivationSource
from probing.activations.store import CacheEntry, DamagedCache, WorkPlan, WorkStore, fingerprint, remove_unused
from probing.cli.options import ProbeOptions
from probing.data.labelling import read_sides
from probing.data.module import control_sides
from probing.errors import UserError, about_option
from probing.heads.parts import PARTS
from probing.heads.parts import measure as measure_heads
from probing.heads.position import OFFSET_HEADS, POSITION_HEADS
from probing.heads.survey import HeadSurvey
from probing.models import find_model, load_config, load_encoder, load_tokenizer
from probing.models.examination import add_tensor, tokenizer_behaviour
from probing.models.loading import NOT_OF_THE_MODEL
from probing.probes.outliers import check_tokens
from probing.probes.transforms import Fitting
from probing.results import Table, count
from probing.runs.call import Measurements
from probing.runs.results import ClassResults, EvidenceConfig, measure
from probing.runtime import drop_garbage
from probing.runtime.files import most_text, open_file, parse_json, read_text
from probing.runtime.progress import remark, stage
from probing.statistics.moments import deviations_of
from probing.studies.checkpoints.tables import CHECKPOINTS, LOST, UNIGRAM, Thresholds, by_step, emergence, words_of
from probing.studies.geometry.survey import GeometryPlan
from probing.studies.geometry.survey import survey as survey_geometry
from probing.tables.heads import SPECIAL, of_measure
from probing.text import Corpus, Split
from probing.text.tasks import load_task

# What a command measured of one checkpoint, as JSON has it.
Document = dict[str, Any]

# The only file of an entry.
_ONLY = 0

# Increased whenever the meaning of what is kept changes.
FORMAT = 1


@dataclass(frozen=True)
class CheckpointConfig:
    """What every checkpoint of a series reads, and how it is measured.

    Args:
        corpora: The corpus and any test corpus.
        splits: The sides of their sentences.
        probe: How probes are trained.
        seed: Seed of every random draw.
    """

    corpora: Sequence[Corpus]
    splits: Sequence[Sequence[Split]]
    probe: ProbeOptions
    seed: int


def cached_document(
    name: str, source: ActivationSource, config: CheckpointConfig, make: Callable[[], tuple[Document, CacheEntry]],
    **more: Any,
) -> tuple[Document, bool]:  # fmt: skip
    """Return what a measure found of a checkpoint, from the cache if it is there, and whether it was there.

    The key of its entry has all that changes the result, which includes `more` and no names of checkpoints. `make`
    returns the result and the cache entry that is its origin.

    Raises:
        UserError: If the cache cannot be written.
    """
    key = {
        **source.request(config.corpora[0]).key(),
        "checkpoints": name,
        "checkpoints_format": FORMAT,
        "layers": list(source.layers),
        "test_corpus": config.corpora[1].fingerprint if len(config.corpora) > 1 else None,
        "seed": config.seed,
        **({"probe": asdict(config.probe)} if name == "fit" else {}),
        **more,
    }
    folder = source.cache / f"checkpoints-{name}-{fingerprint(key)[:16]}"
    with job_lock(source.cache, folder.name, source.say):
        if (stored := _read(folder)) is not None:
            return stored, True
        document, origin = make()
        batch_tokens = origin.plan.batch_tokens
        plan = WorkPlan.of_whole_text(key, f"{name} of checkpoints", 1, origin.tokens, batch_tokens)
        store = WorkStore.opened(folder, lambda: (plan, origin.tokens), origin.description)
        written = json.dumps(document)
        store.put(_ONLY, {"document": torch.tensor(list(written.encode()), dtype=torch.uint8)})
        # Converted to JSON and back, so that a number is the same whether it was measured now or read from the cache.
        return json.loads(written), False


@contextmanager
def without_new_entries(sources: Sequence[ActivationSource], keeps: bool) -> Iterator[None]:
    """Remove the hidden states that were extracted inside, after the measurement, unless `keeps`.

    The entries that existed before are recorded in the cache until then, so that a command that resumes after a kill
    does not mistake its entries for earlier entries.

    Raises:
        UserError: If the cache cannot be written.
    """
    of_all = {_note(source): source for source in sources}
    if keeps:
        for note in of_all:
            note.unlink(missing_ok=True)
        yield
        return
    before = {folder for note, source in of_all.items() for folder in _entries_before(note, source)}
    yield
    for note, source in of_all.items():
        for folder in _entries(source) - before:
            remove_unused(source.cache, folder)
        note.unlink(missing_ok=True)


def _entries(source: ActivationSource) -> set[Path]:
    return set(source.cache.glob(f"{escape(source.model.short_name)}-{'[0-9a-f]' * 16}"))


def _note(source: ActivationSource) -> Path:
    """Return the path of the note on the entries that a checkpoint had before it was measured."""
    return source.cache / f"checkpoints-{source.model.short_name}-{source.model.fingerprint()[:16]}.json"


def _entries_before(note: Path, source: ActivationSource) -> set[Path]:
    with suppress(FileNotFoundError, ValueError):  # a note that a kill cut short was written before any entry
        return {source.cache / name for name in parse_json(read_text(note, source.cache))}
    before = _entries(source)
    try:
        source.cache.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(sorted(folder.name for folder in before)), encoding="utf-8")
    except OSError as error:
        raise NotWritable(source.cache, error) from None
    return before


def _read(folder: Path) -> Document | None:
    try:
        store = WorkStore(folder)
    except DamagedCache:
        return None
    if store.unfinished([_ONLY]):
        return None
    store.touch()
    document: Document = parse_json(bytes(store.get(_ONLY)["document"].tolist()).decode())
    return document


Rows = list[dict[str, Any]]

# Measures of `accuracy.csv`, those with an interval first.
_OF_PROBES = (
    "accuracy", "information", "macro_accuracy", "within_one", "mean_absolute_error", "cross_entropy",
    "majority_accuracy", "token_accuracy",
)  # fmt: skip

# Measures of `attention_layers.csv`, as it names them, and what they are called here.
_OF_HEADS = {
    ("entropy", ""): "entropy", ("distance", ""): "distance", ("self", ""): "self", ("previous", ""): "previous",
    ("next", ""): "next", ("mass", SPECIAL): "special_mass", ("norm_mass", SPECIAL): "special_norm_mass",
}  # fmt: skip


def _of_fit(source: ActivationSource, config: CheckpointConfig) -> tuple[Document, CacheEntry]:
    """Measure the accuracy of position probes of each layer, and of a probe of the token alone."""
    task, corpora = load_task("position", None), config.corpora
    sides, stores = read_sides(source, corpora, config.splits, task, config.probe, "auto")
    controls = control_sides(["token"], sides, corpora, source, config.seed)
    evidence = EvidenceConfig(config.seed, ranking=False)
    measured = measure(sides, controls, source.layers, config.probe, evidence, source.trainer)
    assert isinstance(measured, ClassResults)
    rows: Rows = []
    for row in measured.accuracy():
        layer, n = row["layer"], int(row["n_test_tokens"])
        rows += [
            _row(layer, name, row[name], row.get(f"{name}_low"), row.get(f"{name}_high"), n=n) for name in _OF_PROBES
        ]
        above = row["accuracy"] - row["token_accuracy"]
        rows.append(_row(layer, "above_token", above, row["above_token_low"], row["above_token_high"], n=n))
    return _document(rows, stores[0]), stores[0]


def _of_geometry(source: ActivationSource, config: CheckpointConfig) -> tuple[Document, CacheEntry]:
    """Measure the anisotropy of each layer, and the distance of each neuron's mean from the others."""
    (store,) = source.read(config.corpora[:1], [partial(check_tokens, special_tokens="exclude")])
    plan = GeometryPlan("exclude", (), "mean_profile", Fitting(), 0, (), config.seed)
    geometry = survey_geometry(
        store, store, source.layers, load_encoder(source.model), load_tokenizer(source.model), plan
    )
    rows, deviations, dimensions = [], {}, Table(geometry.tables["dimensions"]).by("layer")
    for layer in source.layers:
        means = np.array(dimensions[layer].column("mean"))
        deviations[str(layer)] = [float(value) for value in deviations_of(means)]
        rows += [
            _row(layer, row["measure"], row["value"], row.get("low"), row.get("high"), n=int(row["n_tokens"]))
            for row in Table(geometry.tables["geometry"]).where(layer=layer, transform="none")
        ]
    return {**_document(rows, store), "deviations": deviations}, store


def _of_attention(source: ActivationSource, config: CheckpointConfig) -> tuple[Document, CacheEntry]:
    """Measure attention to fixed offsets and special tokens, its distance and its entropy."""
    request, *test = (source.request(corpus) for corpus in config.corpora)
    head_inputs = HeadSurvey.of(
        request, blocks_of(source), config.seed, test=test[0] if test else None, splits=config.splits, source=source
    )
    if lack := OFFSET_HEADS.needs(head_inputs):
        raise UserError(f"`--measures attention` needs {lack}.")
    parts = [*(part for part in PARTS if part.name in ("profile", "tokens")), OFFSET_HEADS]
    tables, stores = measure_heads(head_inputs, parts, source.cache, source.trainer, source.say)
    rows = [
        _row(row["layer"], name, row["value"], row["low"], row["high"], n=int(row["n"]))
        for (quantity, to), name in _OF_HEADS.items()
        for row in of_measure(tables["attention_layers"], quantity, to)
    ]
    for layer in blocks_of(source):
        heads = Table(tables[POSITION_HEADS]).where(layer=layer)
        rows.append(_row(layer, "n_position_heads", len(heads.where(position_head="yes"))))
        if attending := heads.where(lambda row: not math.isnan(row["mass"])):
            most = max(attending, key=lambda row: row["mass"])
            where = {"n": int(most["n"]), "head": most["head"], "offset": most["offset"]}
            rows.append(_row(layer, "offset_mass", most["mass"], most["mass_low"], most["mass_high"], **where))
    store = head_inputs.entry(stores)
    return _document(rows, store), store


# For each command, what measures one checkpoint; it returns an entry of the cache too, which tells what was read.
MEASURES: Mapping[str, Callable[[ActivationSource, CheckpointConfig], tuple[Document, CacheEntry]]] = {
    "fit": _of_fit, "geometry": _of_geometry, "attention": _of_attention,
}  # fmt: skip


def blocks_of(source: ActivationSource) -> list[int]:
    """Return the layers that are outputs of blocks."""
    return [layer for layer in source.layers if layer > 0]


def _row(
    layer: int, measure: str, value: float, low: float | None = None, high: float | None = None, **more: Any
) -> dict[str, Any]:
    ends = {} if low is None or high is None else {"low": float(low), "high": float(high)}
    return {"layer": int(layer), "measure": measure, "value": float(value), **ends, **more}


def _document(rows: Iterable[Mapping[str, Any]], store: CacheEntry) -> Document:
    tokens = store.tokens
    ids = sha256(tokens.input_ids.astype(np.int64).tobytes() + tokens.lengths.astype(np.int64).tobytes()).hexdigest()
    return {"rows": [dict(row) for row in rows], "tokens": {"n": tokens.n_tokens, "sha256": ids}}


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


def survey(
    checkpoints: Sequence[Checkpoint], source_of: Callable[[Checkpoint], ActivationSource], names: Sequence[str],
    config: CheckpointConfig, keeps_activations: bool, thresholds: Thresholds,
) -> Measurements:  # fmt: skip
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
    last = dict(zip(identity, checkpoints, strict=True))
    pairs = zip(checkpoints, (last[digest] for digest in identity), strict=True)
    same_as = {checkpoint.step: other.name for checkpoint, other in pairs if checkpoint is not other}
    tables = tables_of(checkpoints, documents, same_as, thresholds)
    results = {
        "models": [
            {name: getattr(checkpoint, name) for name in ("step", "name", "model", "revision")}
            for checkpoint in checkpoints
        ],
        "measures": list(names),
        "n_kept": n_cached,
        "thresholds": asdict(thresholds),
    }
    return Measurements(tables, results, by_step(Table(tables["checkpoints"], CHECKPOINTS)), "step")


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


def tables_of(
    checkpoints: Sequence[Checkpoint], documents: Sequence[dict[str, Document]], same_as: Mapping[int, str],
    thresholds: Thresholds,
) -> dict[str, Rows]:  # fmt: skip
    """Return the rows of each table by its name.

    `documents` has the measures of each checkpoint by name, `same_as` the name of the last equal model by the step of
    each checkpoint that equals a later one.
    """
    rows, outliers = loss_rows(checkpoints), []
    deviations: dict[int, dict[int, list[float]]] = {}
    for checkpoint, by_name in zip(checkpoints, documents, strict=True):
        about = {"step": checkpoint.step, "checkpoint": checkpoint.name}
        rows += [{**about, "command": name, **row} for name, document in by_name.items() for row in document["rows"]]
        by_layer = by_name["geometry"]["deviations"] if "geometry" in by_name else {}
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
