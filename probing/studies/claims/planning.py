"""Which runs claims need, as the command lines a user would type, and which of them are there already."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.errors import UserError
from probing.runs.folder import PARTIAL, read_json, read_yaml
from probing.studies.claims.claim import Claim, Paper, Reading
from probing.studies.claims.measures.registry import MEASURES

# The kind that `results.json` names, for each command that claims may need; a run of `fit` names none.
KINDS: Mapping[str, str | None] = {
    "fit": None,
    "geometry": "geometry",
    "attention": "survey of attention heads",
    "disable": "disabling of heads and layers",
    "hierarchy": "linear order or hierarchy",
    "cloze": "predictions at masks",
    "wic": "word-in-context evaluation",
    "sts": "similarity evaluation",
    "pretrain": "pretraining with and without positions",
}
# Prefix of the names of encoders that `pretrain` trains on this machine; the size follows, as in pretrain-tiny.
TRAINED_HERE = "pretrain-"
# Options that say where and how a run was made, and not what is in it.
BESIDE_THE_POINT = (
    "name", "tokenizer", "runs", "cache", "quiet", "verbose", "wandb", "figure_format", "trainer",
    "batch_tokens",
)  # fmt: skip
# A value that the user gives: a dollar sign and the name of an option of `reproduce`. If the user does not give it, an
# option of the run whose value ends with a question mark is left out; without the question mark, the run cannot be
# made.
_DATUM = re.compile(r"\$(?P<name>\w+)(?P<optional>\??)")
# Options that list what is measured: a finished run that measured more than is needed can be used, too.
OF_WHICH_MORE_SERVES = ("controls", "transforms")
# Options that name a text which a run reads in place of `--corpus`.
OTHER_TEXTS = ("pairs", "file")
# Options that commands take without their name.
_WORDS = ("folder", "folders", "file")


@dataclass(frozen=True)
class Need:
    """A run that measures read.

    Args:
        name: The name by which measures ask for it.
        command: The command that makes it.
        options: The options that are not the defaults, with the model and the corpus.
        lacking: What it would need that was not given, as a clause; empty if it can be made.
        has_own_text: Whether the paper's file gives this run a corpus of its own, instead of the corpus of all runs.
    """

    name: str
    command: str
    options: Mapping[str, Any]
    lacking: str = ""
    has_own_text: bool = False

    @property
    def line(self) -> str:
        """The command line."""
        words = ["python", "-m", "probing", self.command]
        for option, value in self.options.items():
            if option in _WORDS:
                words += value if isinstance(value, list) else [value]
            elif value is True:
                words.append(f"--{option}")
            else:
                words += [f"--{option}", str(value)]
        return shlex.join(words)


@dataclass(frozen=True)
class Given:
    """What the user gave for all runs.

    Args:
        corpus: The text that models read.
        data: Further data by name, such as `other_corpus`; None where it was not given.
    """

    corpus: str
    data: Mapping[str, str | None]


def reading_of(claim: Claim, model: str, paper: Paper, kinds: Collection[str] = ()) -> Reading | None:
    """Return how a claim is measured on a model: as on the paper's own ones, or as an analogue; None if it is not.

    Args:
        claim: The claim.
        model: The model's name.
        paper: The paper.
        kinds: The kinds that the model is of, where it is none of the paper's.
    """
    reading = claim.reading if model in paper.models else claim.analogue(kinds)
    return reading and reading.of(model)


def runs_of(claims: Sequence[Claim], model: str, paper: Paper, kinds: Collection[str] = ()) -> list[str]:
    """Return the names of the runs of a model that measures of claims read, in the order of the paper's file."""
    wanted: set[str] = set()
    for claim in claims:
        if reading := reading_of(claim, model, paper, kinds):
            wanted |= set(_runs(reading))
            numbers = _others(reading, model)
            wanted |= set(runs_of([one for one in paper.claims if one.id in numbers], model, paper, kinds))
    return [name for name in paper.runs if name in wanted]


def is_trained_here(model: str) -> bool:
    """Return whether a name stands for all encoders of one size that are pretrained here, not for a single model."""
    return model.startswith(TRAINED_HERE)


def concerns(claim: Claim, model: str, paper: Paper) -> bool:
    """Return whether a claim has a row for a model: if it is about the model, or if the paper is not about the model.

    Encoders that are pretrained here have rows only for claims that are measured on runs of `pretrain`.
    """
    if model in paper.models:
        return model in claim.models
    readings = [one.reading for one in claim.analogues] or ([claim.reading] if claim.reading else [])
    of_trainings = any(paper.runs[name]["command"] == "pretrain" for one in readings for name in _runs(one))
    return of_trainings or not is_trained_here(model)


def _runs(reading: Reading) -> tuple[str, ...]:
    return MEASURES[reading.measure].runs


def needs_of(
    names: Sequence[str], paper: Paper, model: str, given: Given, defaults: Mapping[str, Mapping[str, Any]]
) -> list[Need]:
    """Return runs of a model.

    Args:
        names: Their names in the paper's file.
        paper: The paper.
        model: The model, as `--model` takes it.
        given: What the user gave for all runs.
        defaults: The defaults of the options of each command.
    """
    text = {name: {} if set(OTHER_TEXTS) & set(paper.runs[name]) else {"corpus": given.corpus} for name in names}
    return [_need(name, paper.runs[name], {"model": model, **text[name]}, given, defaults) for name in names]


def _need(
    name: str, described: Mapping[str, Any], about: Mapping[str, Any], given: Given,
    defaults: Mapping[str, Mapping[str, Any]],
) -> Need:  # fmt: skip
    command = described["command"]
    own, lacking = defaults[command], []
    options = {key: value for key, value in about.items() if key in own and value != own[key]}
    for option, value in described.items():
        datum = _DATUM.fullmatch(str(value))
        if datum and given.data[datum["name"]] is None:
            lacking += [] if datum["optional"] else [f"`--{datum['name']}`"]
        elif option != "command":
            found = given.data[datum["name"]] if datum else value
            options[option] = [found] if option == "folders" else found
    return Need(name, command, options, " and ".join(lacking), "corpus" in described)


@dataclass(frozen=True)
class Fingerprints:
    """What a run was made of.

    Args:
        model: Fingerprint of the model.
        corpus: Fingerprint of the text that the run reads.
    """

    model: str
    corpus: str


def existing(
    need: Need, places: Sequence[Path], defaults: Mapping[str, Any], fingerprints: Fingerprints
) -> Path | None:
    """Return the newest finished run with the same settings, of the same model and text; None if there is none.

    Args:
        need: The run that is needed.
        places: The folders of finished runs.
        defaults: The defaults of the command's options. An option that is missing in a run's configuration had its
            default.
        fingerprints: Fingerprints of the model and the text. Where a run records fingerprints, these are compared
            instead of the options that name the model and the text.
    """
    wanted = {name: value for name, value in {**defaults, **need.options}.items() if name not in BESIDE_THE_POINT}
    for place in sorted(places, key=lambda path: (path.stat().st_mtime, path.name), reverse=True):
        found = _read(place)
        if found is None or found[1].get("kind") != KINDS[need.command] or "arrays" in found[0]:
            continue
        config, keys = {**defaults, **found[0]}, list(_keys(found[1].get("cache", {})))
        corpora = {key["corpus"] for key in keys} | _named(found[1], "corpus", "pairs")
        models = {key["model"] for key in keys} | _named(found[1], "model")
        # A run with a corpus of its own is compared by the name of the corpus, not by a fingerprint.
        is_of_text = "corpus" in defaults and not need.has_own_text
        told = ({"model"} if models else set()) | ({"corpus"} if corpora and is_of_text else set())
        of_these = all(model == fingerprints.model for model in models) and (
            not corpora or not is_of_text or fingerprints.corpus in corpora
        )
        same = (_serves(name, config.get(name), value) for name, value in wanted.items() if name not in told)
        if of_these and all(same):
            return place
    return None


def _serves(option: str, found: Any, wanted: Any) -> bool:
    """Return whether a run that has the value `found` of an option has all that `wanted` asks for; it may have more."""
    if option not in OF_WHICH_MORE_SERVES or found == wanted:
        return bool(found == wanted)
    has, asked = ({*(value.split(",") if isinstance(value, str) else value)} for value in (found, wanted))
    return "all" in has or asked <= has


def _read(place: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the configuration and the results of a run; None if they cannot be read."""
    try:
        return read_yaml(place / "config.yaml"), read_json(place / "results.json")
    except (OSError, ValueError):
        return None


def finished_runs(runs: Path) -> list[Path]:
    """Return the folders of finished runs."""
    if not os.path.isdir(runs):
        return []
    return [path for path in runs.iterdir() if (path / "results.json").is_file() and path.suffix != PARTIAL]


def given_data(paper: Paper) -> list[str]:
    """Return the names of the data that runs of a paper read, in the order of its file."""
    values = (str(value) for run in paper.runs.values() for value in run.values())
    return list(dict.fromkeys(datum["name"] for value in values if (datum := _DATUM.fullmatch(value))))


def split_models(typed: str | Sequence[str]) -> dict[str, str]:
    """Return where each model that `--models` names is found, by its name: BERT in a folder is named bert=FOLDER.

    Raises:
        UserError: If none is named, or one twice.
    """
    found: dict[str, str] = {}
    for word in typed.split(",") if isinstance(typed, str) else typed:
        name, _, place = (part.strip() for part in word.partition("="))
        if not name:
            raise UserError("`--models`: expected names or folders of models, such as minilm,bert or bert=FOLDER.")
        if name in found:
            raise UserError(f"`--models {typed}`: {name} is there twice; name it once.")
        found[name] = place or name
    return found


def _others(reading: Reading, model: str) -> list[int]:
    """Return the numbers of other claims that a measure asks for."""
    found: list[int] = reading.arguments.get("instead", {}).get(model, reading.arguments.get("claims", []))
    return found


def _named(results: Mapping[str, Any], *names: str) -> set[str]:
    """Return the fingerprints that the results of a run without a cache give of its model or its texts."""
    found = (results.get(name) for name in names)
    return {one["fingerprint"] for one in found if isinstance(one, Mapping) and "fingerprint" in one}


def _keys(found: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the keys of the cache that results name, however deep they are."""
    if isinstance(found, Mapping):
        if "key" in found:
            yield found["key"]
        for inner in found.values():
            yield from _keys(inner)
