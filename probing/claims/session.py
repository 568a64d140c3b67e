"""The runs that claims need: found among finished ones, or made one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probing.claims.claim import Claim, Paper
from probing.claims.estimate import Size, seconds
from probing.claims.evaluation import Model
from probing.claims.planning import Fingerprints, Given, Need, existing, finished_runs, needs_of, runs_of
from probing.corpus import Corpus
from probing.errors import UserError, about_option, as_clause
from probing.models import ALIASES, load_config, resolve_model
from probing.models.source import is_downloaded

# The model that needs no network, and that is measured where no other is named.
BUILTIN = "minilm"
# Stands for encoders that the paper's authors trained, which no hub has.
OWN = "own"

# Makes a run of a command with these options and returns its folder.
Maker = Callable[[str, Mapping[str, Any]], Path]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A run of a model that claims need.

    Args:
        need: The run.
        there: Its folder if it is there already.
        size: What it reads.
    """

    need: Need
    there: Path | None
    size: Size

    @property
    def seconds(self) -> float:
        """About how many processor seconds it will take."""
        return 0.0 if self.there or self.need.lacking else seconds(self.need, self.size)


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Args:
        paper: The paper.
        models: The runs of each model, by its name.
        lacking: Why nothing of a model can be run, by its name.
    """

    paper: Paper
    models: Mapping[str, Sequence[Planned]]
    lacking: Mapping[str, str] = field(default_factory=dict)

    @property
    def to_run(self) -> list[Planned]:
        """The runs that are to be made."""
        return [one for runs in self.models.values() for one in runs if not one.there and not one.need.lacking]

    @property
    def n_bytes(self) -> int:
        """About how many bytes of activations are cached."""
        sizes = (next((one.size for one in runs if one in self.to_run), None) for runs in self.models.values())
        return sum(size.n_bytes for size in sizes if size)


def plan(
    paper: Paper, claims: Sequence[Claim], named: Mapping[str, str] | None, given: Given, corpus: Corpus,
    defaults: Mapping[str, Mapping[str, Any]], place: Path,
) -> Plan:  # fmt: skip
    """Return what claims need, and what of it is there.

    Args:
        paper: The paper.
        claims: The claims.
        named: Where each model is found that the user named; None for those at hand.
        given: What the user gave for all runs.
        corpus: The text.
        defaults: The defaults of the options of each command.
        place: The folder of runs.

    Raises:
        UserError: If a model that is none of the paper's is not found.
    """
    chosen = named if named is not None else {name: name for name in _at_hand(paper)}
    about = [model for model in paper.models if any(model in claim.models for claim in claims)]
    runs: dict[str, list[Planned]] = {}
    lacking = {model: _not_named(model) for model in about if model not in chosen}
    finished = finished_runs(place)
    for name, where in chosen.items():
        try:
            with about_option("--models"):
                source = resolve_model(where)
                settings = load_config(source)
        except UserError as error:
            if name not in paper.models:
                raise
            lacking[name] = f"{ALIASES.get(name, name)}, which cannot be read: {as_clause(error)}"
            continue
        prints = Fingerprints(source.fingerprint(), corpus.fingerprint)
        size = Size.of(corpus.sentences, settings)
        needs = needs_of(runs_of(claims, name, paper), paper, where, given, defaults)
        runs[name] = [
            Planned(need, None if need.lacking else existing(need, finished, defaults[need.command], prints), size)
            for need in needs
        ]
    return Plan(paper, runs, lacking)


def carry_out(planned: Plan, make: Maker, load: Callable[[Path], Any], say: Say) -> tuple[list[Model], dict[str, Any]]:
    """Make the runs that are not there, one after the other, and return the models with all runs and their folders.

    A run that a model refuses, such as one of the norms of blocks that have none, leaves its claims without a value.

    Args:
        planned: What is to be run.
        make: Makes a run.
        load: Reads a run from its folder.
        say: Receives one-line messages.
    """
    models, folders, n = [], {}, 0
    for name, runs in planned.models.items():
        lacking: dict[str, str] = {}
        places: dict[str, Path] = {}
        for one in runs:
            if one.need.lacking:
                lacking[one.need.name] = one.need.lacking
                continue
            if one.there:
                say(f"{one.need.line}: read from {one.there}")
                places[one.need.name] = one.there
                continue
            n += 1
            say(f"run {n} of {len(planned.to_run)}: {one.need.line}")
            try:
                places[one.need.name] = make(one.need.command, one.need.options)
            except UserError as error:
                lacking[one.need.name] = as_clause(error)
                say(f"{one.need.line} is left out: {as_clause(error)}")
        loaded = {run: load(place) for run, place in places.items()}
        models.append(Model(name, loaded, {one.need.name: one.need.line for one in runs}, lacking))
        folders[name] = {run: str(place) for run, place in places.items()}
    missing = [Model(name, lacking={"": why}) for name, why in planned.lacking.items()]
    order = {model: i for i, model in enumerate(planned.paper.models)}
    return sorted([*models, *missing], key=lambda model: order.get(model.name, -1)), folders


def _at_hand(paper: Paper) -> list[str]:
    """Return the built-in model, and those of the paper that are on this machine."""
    return [BUILTIN, *(model for model in paper.models if model in ALIASES and is_downloaded(model))]


def _not_named(model: str) -> str:
    if model == OWN:
        return "encoders that the authors trained, which are not published"
    return f"{ALIASES.get(model, model)}, which is not on this machine: `--models {model}` downloads it"
