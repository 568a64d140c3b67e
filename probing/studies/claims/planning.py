"""The runs that claims need, as the command lines a user would type, and the existing ones among them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from probing.errors import UserError
from probing.runs import study_of
from probing.runs.folder import PARTIAL, read_json, read_yaml
from probing.studies.claims.claim import (
    KINDS_OF_MODELS,
    Claim,
    ClaimEstimate,
    ClaimTest,
    Paper,
    Verdict,
    judge,
    runs_named,
    with_folders,
)
from probing.studies.claims.measures.registry import MEASURES, ModelRuns, NotMeasurable

# Prefix of the names of encoders that `pretrain` trains on this machine; the size follows, as in pretrain-tiny.
PRETRAINED_PREFIX = "pretrain-"
# Options that say where and how a run was made, and not what is in it.
BESIDE_THE_POINT = (
    "name", "tokenizer", "runs", "cache", "quiet", "verbose", "wandb", "figure_format", "trainer",
    "batch_tokens",
)  # fmt: skip
# A value that the user gives: a dollar sign and the name of an option of `reproduce`. If the user does not give it, an
# option of the run whose value ends with a question mark is left out; without the question mark, the run cannot be
# made.
_DATUM = re.compile(r"\$(?P<name>\w+)(?P<optional>\??)")
# What a value can name beside the user's data: the model that claims are measured on.
MODEL = "model"
# What the options of a run are where data of others are not given.
WITHOUT = "without"
# The options that may name a finished run, whose model and text are then read: tuned=FOLDER, or FOLDER.
_OF_RUN = ("readouts", "run")
# Options that are those of that run.
_AS_THAT_RUN = ("model", "corpus", "test_corpus", "max_length")
# Options that list what is measured: a finished run that measured more than is needed can be used, too.
OF_WHICH_MORE_SERVES = ("controls", "transforms", "starts")
# Options that name a text which a run reads in place of `--corpus`.
OTHER_TEXTS = ("pairs", "file", "facts")
# Options that commands take without their name.
_WORDS = ("folder", "folders", "file")


@dataclass(frozen=True)
class Need:
    """A run that measures read, by the name under which they request it.

    `options` are those that are not the defaults, with the model and the corpus. `lacking` is the missing requirement,
    as a clause; empty if the run is possible. `has_separate_corpus` means that the paper's file gives this run another
    corpus than all runs have. `reads` are the names of the other runs whose folders its options name.
    """

    name: str
    command: str
    options: Mapping[str, Any]
    lacking: str = ""
    has_separate_corpus: bool = False
    reads: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The command line."""
        words = ["python", "-m", "probing", self.command]
        for option, value in self.options.items():
            if option in _WORDS:
                words += value if isinstance(value, list) else [value]
            elif value is True:
                words.append(f"--{option}")
            elif isinstance(value, Mapping):
                words += [word for name, entry in value.items() for word in (f"--{option}.{name}", str(entry))]
            else:
                words += [f"--{option}", str(value)]
        return shlex.join(words)

    @property
    def model_of_run(self) -> str:
        """The folder of a checkpoint of another run, if it is the model that this run reads; otherwise empty."""
        if not self.reads:
            return ""
        option = next(name for name in (*_OF_RUN, MODEL) if name in self.options)
        return _parts(option, str(self.options[option]))[1]

    @property
    def is_of_run(self) -> bool:
        """Whether the text, too, comes from another run."""
        return bool(self.reads) and not set(_OF_RUN).isdisjoint(self.options)

    def in_folders(self, folders: Mapping[str, Path]) -> Need:
        """Replace the names of other runs by their folders."""
        return replace(self, options={option: with_folders(value, folders) for option, value in self.options.items()})


@dataclass(frozen=True)
class UserInputs:
    """The user's inputs for all runs: the text, and further data by name, None where absent."""

    corpus: str
    data: Mapping[str, str | None]


def reading_of(claim: Claim, model: str, paper: Paper, kinds: Collection[str] = ()) -> ClaimTest | None:
    """Return the test of a claim on a model: as on the paper's models, or as an analogue by kind; None without one."""
    reading = claim.reading if model in paper.models else claim.analogue(kinds)
    return reading and reading.of(model)


def runs_of(claims: Sequence[Claim], model: str, paper: Paper, kinds: Collection[str] = ()) -> list[str]:
    """Return the names of the runs of a model that measures of claims read, in the order of the paper's file."""
    selected: set[str] = set()
    for claim in claims:
        if reading := reading_of(claim, model, paper, kinds):
            selected |= set(_runs(reading))
            numbers = _others(reading, model)
            selected |= set(runs_of([other for other in paper.claims if other.id in numbers], model, paper, kinds))
    for name in reversed(list(paper.runs)):  # a run names earlier ones alone
        selected |= set(runs_named(paper.runs[name])) if name in selected else set()
    return [name for name in paper.runs if name in selected]


def is_pretrained_locally(model: str) -> bool:
    """Check for a name that means all encoders of one size that are pretrained here, not a single model."""
    return model.startswith(PRETRAINED_PREFIX)


def concerns(claim: Claim, model: str, paper: Paper) -> bool:
    """Check whether a claim has a row for a model: the claim is about the model, or the paper is not.

    Encoders that are pretrained here have rows only for claims that are measured on runs of `pretrain`.
    """
    if model in paper.models:
        return model in claim.models
    readings = claim.analogues or ([claim.reading] if claim.reading else [])
    of_trainings = any(paper.runs[name]["command"] == "pretrain" for analogue in readings for name in _runs(analogue))
    return of_trainings or not is_pretrained_locally(model)


def _runs(reading: ClaimTest) -> tuple[str, ...]:
    return MEASURES[reading.measure].runs


def needs_of(
    names: Sequence[str], paper: Paper, model: str, inputs: UserInputs, defaults: Mapping[str, Mapping[str, Any]]
) -> list[Need]:
    """Return a model's runs with these names in the paper's file, given the user's inputs and command defaults."""
    return [_need(name, paper.runs[name], model, inputs, defaults) for name in names]


def _need(
    name: str, described: Mapping[str, Any], model: str, inputs: UserInputs, defaults: Mapping[str, Mapping[str, Any]]
) -> Need:  # fmt: skip
    command, data = described["command"], {**inputs.data, MODEL: model}
    settings = {option: value for option, value in described.items() if option not in ("command", WITHOUT)}
    absent = {option: datum for option, value in settings.items() if (datum := _absent(value, data))}
    needed = [f"`--{datum['name']}`" for datum in absent.values() if not datum["optional"]]
    settings = {option: value for option, value in settings.items() if option not in absent}
    if needed and WITHOUT in described:
        settings, needed = settings | described[WITHOUT], []
    reads = runs_named(settings)
    about = {} if reads and not set(_OF_RUN).isdisjoint(settings) else {"model": model}
    about |= {"corpus": inputs.corpus} if about and not set(OTHER_TEXTS) & set(described) else {}
    command_defaults = defaults[command]
    options: dict[str, Any] = {
        key: value for key, value in about.items() if key in command_defaults and value != command_defaults[key]
    }
    for option, value in settings.items():
        datum = _DATUM.fullmatch(str(value))
        resolved = data[datum["name"]] if datum else value
        options[option] = [resolved] if option == "folders" else resolved
    return Need(name, command, options, " and ".join(needed), "corpus" in settings, reads)


def _absent(value: Any, data: Mapping[str, Any]) -> re.Match[str] | None:
    """Return the datum in an option's value if the user did not supply it."""
    datum = _DATUM.fullmatch(str(value))
    return datum if datum and data[datum["name"]] is None else None


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of the model of a run, and of its text."""

    model: str
    corpus: str


def existing(
    need: Need, places: Sequence[Path], defaults: Mapping[str, Any], fingerprints: Fingerprints
) -> Path | None:
    """Return the newest finished run with the same settings, of the same model and text; None if there is none.

    An option that is missing in a run's configuration had its default. Where a run records fingerprints, these are
    compared instead of the options that name the model and the text.
    """
    plain_defaults = {option: asdict(value) if is_dataclass(value) else value for option, value in defaults.items()}  # type: ignore[arg-type]
    settings = {
        name: value
        for name, value in _over(plain_defaults, need.options).items()
        if name not in BESIDE_THE_POINT and not (need.is_of_run and name in _AS_THAT_RUN)
    }
    for place in sorted(places, key=lambda path: (path.stat().st_mtime, path.name), reverse=True):
        try:
            written, results = read_yaml(place / "config.yaml"), read_json(place / "results.json")
        except (OSError, ValueError):
            continue
        # A run of `fit` names no kind.
        if results.get("kind", study_of("fit").kind) != study_of(need.command).kind or "arrays" in written:
            continue
        config, keys = _over(plain_defaults, written), list(_keys(results.get("cache", {})))
        corpora = {key["corpus"] for key in keys} | _named(
            {**results, **results.get("corpora", {})}, "corpus", "pairs", "facts"
        )
        models = {key["model"] for key in keys} | _named(results, "model")
        # A run with a corpus of its own is compared by the name of the corpus, not by a fingerprint.
        is_of_text = "corpus" in defaults and not need.has_separate_corpus and not need.is_of_run
        fingerprinted = ({"model"} if models else set()) | ({"corpus"} if corpora and is_of_text else set())
        of_these = all(model == fingerprints.model for model in models) and (
            not corpora or not is_of_text or fingerprints.corpus in corpora
        )
        same = (_serves(name, config.get(name), value) for name, value in settings.items() if name not in fingerprinted)
        if of_these and all(same):
            return place
    return None


def _serves(option: str, available: Any, needed: Any) -> bool:
    """Check that a run with the value `available` of an option covers `needed`; more is allowed."""
    if option in _OF_RUN and isinstance(available, str) and isinstance(needed, str):
        parts = (_parts(option, value) for value in (available, needed))
        return len({(name, os.path.realpath(folder)) for name, folder in parts}) == 1
    if option not in OF_WHICH_MORE_SERVES or available == needed:
        return bool(available == needed)
    available_names, needed_names = (
        {*(value.split(",") if isinstance(value, str) else value)} for value in (available, needed)
    )
    return "all" in available_names or needed_names <= available_names


def _over(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of missing options, also in groups."""
    groups = {name: value for name, value in options.items() if isinstance(value, Mapping) and name in defaults}
    return {**defaults, **options, **{name: {**defaults[name], **value} for name, value in groups.items()}}


def _parts(option: str, value: str) -> tuple[str, str]:
    """Return the name and the folder in the value of an option that names a run or a model: readouts tuned=FOLDER."""
    name, _, folder = value.partition("=") if option == "readouts" else ("", "", value)
    return name, folder


def finished_runs(runs: Path) -> list[Path]:
    """Return the folders of finished runs."""
    if not os.path.isdir(runs):
        return []
    return [path for path in runs.iterdir() if (path / "results.json").is_file() and path.suffix != PARTIAL]


def split_models(flag_value: str | Sequence[str]) -> dict[str, str]:
    """Return the location of each model in `--models`, by name: BERT in a folder is named bert=FOLDER.

    Raises:
        UserError: If none is named, or one twice.
    """
    locations: dict[str, str] = {}
    for word in flag_value.split(",") if isinstance(flag_value, str) else flag_value:
        name, _, place = (part.strip() for part in word.partition("="))
        if not name:
            raise UserError("`--models`: expected names or folders of models, such as minilm,bert or bert=FOLDER.")
        if name in locations:
            raise UserError(f"`--models {flag_value}`: {name} is there twice; name it once.")
        locations[name] = place or name
    return locations


def _others(reading: ClaimTest, model: str) -> list[int]:
    """Return the numbers of other claims that a measure refers to."""
    numbers: list[int] = reading.arguments.get("instead", {}).get(model, reading.arguments.get("claims", []))
    return numbers


def _named(results: Mapping[str, Any], *names: str) -> set[str]:
    """Return the fingerprints of model or texts in the results of a run without a cache."""
    entries = (results.get(name) for name in names)
    named = {entry["fingerprint"] for entry in entries if isinstance(entry, Mapping) and "fingerprint" in entry}
    return named | {results[key] for name in names if (key := f"{name}_fingerprint") in results}


def _keys(results: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the keys of the cache in nested results."""
    if isinstance(results, Mapping):
        if "key" in results:
            yield results["key"]
        for inner in results.values():
            yield from _keys(inner)


# --------------------------------------------------------------------------------------------------------------------
# Rows of the table of claims: each claim measured on each model, with its verdict.
# --------------------------------------------------------------------------------------------------------------------

ANALOGUE = "analogue"
# Whether the criterion is met, by verdict. For an analogue this is the only result: it is no verdict on the paper.
_MET: Mapping[Verdict, str] = {"confirmed": "yes", "not confirmed": "no", "unclear": "unclear"}


@dataclass(frozen=True)
class Model:
    """A model, by its name as typed, with its runs and their command lines, by the names that measures request.

    `lacking` has the reasons for missing runs; the empty name means all runs of the model. `kinds` are its kinds among
    those that claims need.
    """

    name: str
    runs: Mapping[str, Any] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()


def rows_of(claims: Sequence[Claim], models: Sequence[Model], paper: Paper) -> list[dict[str, Any]]:
    """Return a row for each claim and model, with a verdict, or `analogue` if the paper is not about the model."""
    runs = {model.name: model.runs for model in models}
    judged = [_Judged(model, paper, runs) for model in models]
    return [
        model_claims.row(claim)
        for claim in claims
        for model_claims in judged
        if concerns(claim, model_claims.model.name, paper)
    ]


class _Judged:
    """Measurements of claims on a model, each once; `others` are the runs of all models."""

    def __init__(self, model: Model, paper: Paper, others: Mapping[str, Mapping[str, Any]]) -> None:
        self.model, self.paper = model, paper
        self.is_of_paper = model.name in paper.models
        self._estimates: dict[int, tuple[ClaimEstimate | None, str]] = {}
        self._claims = {claim.id: claim for claim in paper.claims}
        published = paper.outliers.get(model.name, {})
        self._model_runs = ModelRuns(model.name, model.runs, published, self._holds, others)

    def row(self, claim: Claim) -> dict[str, Any]:
        """Return the row of a claim; columns without a value are left out."""
        reading = self._reading(claim)
        estimate, lacking = self._estimate(claim)
        lines = [self.model.commands.get(name) for name in self._runs(claim)]
        command = " && ".join(line for line in lines if line)
        about = {
            "id": claim.id, "claim": claim.says, "where": claim.where, "published": claim.published,
            "model": self.model.name,
        }  # fmt: skip
        if estimate is None or reading is None:
            return {**about, "verdict": "not testable here", "command": command, "lacking": lacking}
        verdict = judge(estimate, reading.criterion, reading.control)
        row: dict[str, Any] = {
            **about, "measured": estimate.value, "low": estimate.low, "high": estimate.high,
            "verdict": verdict if self.is_of_paper else ANALOGUE, "command": command, "met": _MET[verdict],
            "measure": reading.measure, "criterion": str(reading.criterion),
        }  # fmt: skip
        published = claim.values.get(self.model.name, next(iter(claim.values.values()), None))
        row |= {"published_value": published} if published is not None else {}
        row |= {"control": estimate.control} if estimate.control is not None else {}
        row |= {"control_criterion": str(reading.control)} if reading.control else {}
        return row | ({"neurons": " ".join(map(str, estimate.neurons))} if estimate.neurons else {})

    def _reading(self, claim: Claim) -> ClaimTest | None:
        return reading_of(claim, self.model.name, self.paper, self.model.kinds)

    def _runs(self, claim: Claim) -> list[str]:
        return runs_of([claim], self.model.name, self.paper, self.model.kinds)

    def _holds(self, number: int) -> bool | None:
        claim = self._claims[number]
        estimate, _ = self._estimate(claim)
        reading = self._reading(claim)
        if estimate is None or reading is None:
            return None
        return judge(estimate, reading.criterion, reading.control) == "confirmed"

    def _estimate(self, claim: Claim) -> tuple[ClaimEstimate | None, str]:
        """Return the measured value, or the reason for its absence."""
        if claim.id not in self._estimates:
            self._estimates[claim.id] = self._measure(claim)
        return self._estimates[claim.id]

    def _measure(self, claim: Claim) -> tuple[ClaimEstimate | None, str]:
        reading, lacking = self._reading(claim), self.model.lacking
        if reading is None:
            return None, self._unread(claim)
        if "" in lacking:
            return None, lacking[""]
        if missing := [name for name in self._runs(claim) if name in lacking]:
            return None, lacking[missing[0]]
        try:
            return MEASURES[reading.measure].function(self._model_runs, **reading.arguments), ""
        except NotMeasurable as error:
            return None, str(error)

    def _unread(self, claim: Claim) -> str:
        """Return the reason why a claim has no test on the model."""
        if not self.is_of_paper and claim.kinds:
            kinds = " or ".join(KINDS_OF_MODELS[kind].words for kind in claim.kinds)
            return f"{kinds}; {self.model.name} is none"
        return claim.lacking if self.is_of_paper or claim.reading is None else f"no analogue: {claim.lacking}"
