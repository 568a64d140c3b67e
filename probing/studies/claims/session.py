"""The runs that claims need: existing ones are reused, the others carried out one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from probing.activations.source import ActivationSource, PendingRequest, Speed
from probing.cli.options import ProbeOptions, as_options
from probing.data.labelling import choose_classes, class_of_tokens
from probing.data.module import READ_AGAIN
from probing.errors import UserError, about_option, as_clause
from probing.interventions.heads import OF_HEADS, UNITS
from probing.models import ALIASES, load_config, resolve_model
from probing.models.source import ModelSource, is_downloaded
from probing.runtime import drop_garbage
from probing.runtime.progress import remark, stage
from probing.studies.ablate.weights import N_FILES, N_RANDOM
from probing.studies.claims.claim import Claim, Paper, kinds_of
from probing.studies.claims.planning import (
    PRETRAINED_PREFIX,
    Fingerprints,
    Model,
    Need,
    UserInputs,
    concerns,
    existing,
    finished_runs,
    is_pretrained_locally,
    needs_of,
    runs_of,
)
from probing.studies.cloze import predictor as minimal_pairs
from probing.studies.cloze.survey import read_facts
from probing.studies.finetune.tables import STARTS, TuningOptions
from probing.studies.fit import chosen_controls
from probing.studies.fit.estimate import ProbeCosts
from probing.studies.pretrain.tables import EncoderOptions, Size, TrainingOptions, chosen_recipe
from probing.text import Corpus, from_sentences, load_corpus, read_pairs, splits_of
from probing.text.tasks import load_task

# --------------------------------------------------------------------------------------------------------------------
# Estimates, made before a model reads anything, of the time that the runs for claims take.
# --------------------------------------------------------------------------------------------------------------------

# Floating-point operations per activation (tokens x layers x neurons) of each command, apart from reading the text, at
# the rate of matrix products. They come from runs of the built-in model on its corpus on a core of 150 GFLOP/s, and are
# accurate to a factor of two or three.
_OPERATIONS = {"geometry": 27e3, "attention": 87e3, "wic": 15e3, "sts": 15e3, "hierarchy": 105e3, "cloze": 150e3,
               "trees": 500e3}  # fmt: skip
# Number of tokens of the sentences that a command generates itself, whatever the corpus is; and the maximum number of
# tokens of the corpus that a command reads by default.
_OWN_TOKENS, _MOST_TOKENS = {"hierarchy": 120_000}, {"ablate": 20_000, "cloze": 20_000, "trees": 20_000}
# Operations per activation that these options add.
_OF_OPTIONS = {"norms": 225e3, "path": 45e3}
# Share of the sentences of a text that are its test part.
_TESTED = 0.1
# Seconds of one training by its size: on a processor (tiny), and summed over the paper's four A100 GPUs (base).
_TRAINING_S = {"tiny": 100.0, "base": 4 * 35 * 3600.0}


def training_seconds(need: Need) -> float:
    """Estimate the processor seconds of a training of encoders."""
    options: Mapping[str, Any] = need.options
    return _TRAINING_S[options["size"]] * options["seeds"] * len(str(options["arms"]).split(","))


def seconds(need: Need, defaults: Mapping[str, Any], reading: PendingRequest, speed: Speed) -> float:
    """Estimate the seconds of a run on this machine, apart from reading the text into the cache."""
    options, size = {**defaults, **need.options}, reading.size
    n_tokens = _OWN_TOKENS.get(need.command, min(size.n_tokens, _MOST_TOKENS.get(need.command, size.n_tokens)))
    share = n_tokens / max(size.n_tokens, 1)
    forward_s = share * speed.forward_s(size)
    if need.command == "fit":
        probes, n_readings = _probes(options, reading)
        return n_readings * forward_s + probes.seconds(probes.pass_seconds(), speed.rates["square"])
    if need.command == "ablate":
        n_heads = int(getattr(load_config(reading.request.source), "num_attention_heads", 1))
        passes = _passes(options, speed.blocks.n_blocks, n_heads)
        return passes * (min(_TESTED, share) if need.is_of_run else share) * speed.forward_s(size)
    if need.command == "triggers":
        return _searches(options, len(reading.request.corpus.sentences)) * speed.forward_s(size)
    if need.command == "finetune":
        return _tunings(options, speed.blocks.n_blocks) * speed.forward_s(size)
    operations = _OPERATIONS[need.command] + sum(more for name, more in _OF_OPTIONS.items() if options.get(name))
    return operations * share * size.n_activations / speed.rates["square"]


def _passes(options: Mapping[str, Any], n_blocks: int, n_heads: int) -> float:
    """Return the number of passes through all blocks of a run of `ablate`.

    A head, or a layer, is ablated in a pass through the later blocks, which are half of them on average. Joint pruning
    is in every block, and in half of the sentences.
    """
    pruned = "" if options["prune"] is False else str(options["prune"])
    of_units, of_weights = (pruned in ("True", "all") or name in pruned for name in ("units", "weights"))
    kinds = len(OF_HEADS) if options["kinds"] in (None, "all") else len(str(options["kinds"]).split(","))
    n_units = {"heads": n_heads, "layers": 1}.get(str(options["units"]), n_heads + 1)
    passes = kinds * n_blocks * n_units / 2
    passes += len(UNITS) * (N_RANDOM + 2) / options["prune_share"] / 2 if of_units else 0
    return passes + (N_FILES if of_weights else 0)


def _searches(options: Mapping[str, Any], n_sentences: int) -> float:
    """Return the number of passes over the text that take as long as a run of `triggers` at most."""
    half = _TESTED / 2
    steps = options["length"] * options["rounds"] * (options["candidates"] + 3)  # of which the gradient is three
    searched = min(half, options["sentences"] / n_sentences)
    return (1 + options["shuffles"]) * steps * searched + 2 * options["draws"] * half


def _tunings(options: Mapping[str, Any], n_blocks: int) -> float:
    """Return the number of passes over the text that take as long as the trainings of a run of `finetune`.

    A step takes three times as long as its forward pass, and the training part is four fifths of the text. Tests after
    each epoch, and the baselines, take as long as another epoch together.
    """
    tuning = as_options(TuningOptions, options["tuning"], "tuning")
    starts = len(STARTS) if options["starts"] == "all" else len(str(options["starts"]).split(","))
    tuned_share = (n_blocks + 1 + tuning.layer if tuning.layer < 0 else tuning.layer) / n_blocks
    return starts * options["seeds"] * options["orders"] * tuned_share * (3 * 0.8 * tuning.epochs + 1)


def _probes(options: Mapping[str, Any], reading: PendingRequest) -> tuple[ProbeCosts, int]:
    """Return the probes of a run of `fit`, and the number of additional readings for its controls."""
    corpus, tokens = reading.request.corpus, reading.tokens
    task = load_task(options["task"], options["task_args"])
    splits = splits_of(corpus, options["seed"], options["group_by"])
    classes = choose_classes(tokens, corpus, task, splits)
    labels = class_of_tokens(tokens, corpus, task, splits, classes, "train").labels
    controls = chosen_controls(options["controls"], task.ordinal, "token", not len(classes))
    probe = as_options(ProbeOptions, options["probe"], "probe")
    requested = ProbeCosts.of_options(
        reading.request.layers, controls, options["replicates"], options["evidence"] == "all", options["mdl"], probe
    )
    size = reading.size
    known = replace(requested, n_tokens=int((labels >= 0).sum()), n_classes=max(len(classes), 1), d_model=size.width)
    return known, len(READ_AGAIN.keys() & set(controls))


# The model that needs no network, and that is measured where no other is named.
BUILTIN = "minilm"

# Why a single model has no runs of trainings.
_NOT_OF_ONE_MODEL = (
    f"encoders with and without position embeddings: `--models {PRETRAINED_PREFIX}tiny` trains small ones"
)

# The command that tunes a model, whose run others read.
TUNING = "finetune"

# Tasks whose labels are a column of a treebank.
OF_TREEBANKS = ("upos", "xpos", "deprel")

# Makes a run of a command with these options and returns its folder.
Maker = Callable[[str, Mapping[str, Any]], Path]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A run of a model that claims need, with its folder if it exists already.

    Seconds and bytes added to the cache are estimates; 0 for an existing run, or without estimates.
    """

    need: Need
    folder: Path | None
    seconds: float = 0.0
    n_bytes: int = 0


@dataclass(frozen=True)
class ClaimsPlan:
    """The runs of each model, the reasons why models have none, and the kinds of models that are not the paper's."""

    paper: Paper
    models: Mapping[str, Sequence[Planned]]
    lacking: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def to_run(self) -> list[Planned]:
        """The runs that are neither finished nor impossible."""
        return [run for runs in self.models.values() for run in runs if not run.folder and not run.need.lacking]

    @property
    def n_bytes(self) -> int:
        """Estimated bytes of activations added to the cache."""
        return sum(run.n_bytes for run in self.to_run)


def plan(
    paper: Paper, claims: Sequence[Claim], named: Mapping[str, str] | None, inputs: UserInputs, corpus: Corpus,
    defaults: Mapping[str, Mapping[str, Any]], place: Path, cache: Path | None = None,
) -> ClaimsPlan:  # fmt: skip
    """Return the runs that claims need, and the existing ones among them.

    `named` has the location of each model that the user named; None for the models on this machine. `place` is the
    folder of runs. Without `cache`, the folder of the cache, the costs of runs are not estimated.

    Raises:
        UserError: If a model that is none of the paper's does not exist, or a file of pairs cannot be read.
    """
    chosen = named
    if chosen is None:
        at_hand = [model for model in paper.models if model in ALIASES and is_downloaded(model)]
        chosen = {name: name for name in (BUILTIN, *at_hand)}
    about = [model for model in paper.models if any(model in claim.models for claim in claims)]
    runs: dict[str, list[Planned]] = {}
    lacking = {model: _not_named(model) for model in about if model not in chosen}
    kinds: dict[str, frozenset[str]] = {}
    finished = finished_runs(place)
    for name, where in chosen.items():
        model_claims = [claim for claim in claims if concerns(claim, name, paper) or _compares(claim, name)]
        try:
            if is_pretrained_locally(name):
                names = _possible_runs(model_claims, name, paper, kinds)
                runs[name] = _trainings(names, name, paper, inputs, corpus, defaults, finished)
                continue
            with about_option("--models"):
                source = resolve_model(where)
                load_config(source)
        except UserError as error:
            if name not in paper.models or is_pretrained_locally(name):
                raise
            lacking[name] = f"{ALIASES.get(name, name)}, which cannot be read: {as_clause(error)}"
            continue
        if name not in paper.models:
            available_data = {datum for datum, value in inputs.data.items() if value is not None}
            kinds[name] = kinds_of(source, {kind for claim in model_claims for kind in claim.kinds}, available_data)
        names = _possible_runs(model_claims, name, paper, kinds)
        costs = _Costs(source, cache, defaults) if cache else None
        stated = needs_of(names, paper, where, inputs, defaults)
        runs[name] = _Planning(source, corpus, defaults, finished, place, costs).of(stated)
    return ClaimsPlan(paper, runs, lacking, kinds)


def _possible_runs(claims: Sequence[Claim], model: str, paper: Paper, kinds: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the names of the runs that a model can have: trainings, or runs of a single model."""
    names = runs_of(claims, model, paper, kinds.get(model, ()))
    return [name for name in names if (paper.runs[name]["command"] == "pretrain") == is_pretrained_locally(model)]


def _with_columns(need: Need, corpus: Corpus) -> Need:
    """Mark a run as lacking a treebank if its task reads a column that the corpus does not have."""
    column = "head" if need.command == "trees" else need.options.get("task")
    has_column = column not in ("head", *OF_TREEBANKS) or column in corpus.columns
    return need if has_column else replace(need, lacking="a treebank as `--corpus`")


def _text_of(need: Need, corpus: Corpus) -> tuple[Corpus, str]:
    """Return the text that a run reads, with its fingerprint; a run of pairs does not read `corpus`."""
    if "pairs" in need.options:
        pairs = read_pairs(need.options["pairs"])
        return pairs, pairs.fingerprint
    if "facts" in need.options:
        facts, _ = read_facts(need.options["facts"], f"--facts {need.options['facts']}")
        return from_sentences("cloze", [fact.text for fact in facts]), minimal_pairs.fingerprint_of(facts)
    if need.command == "cloze" and "corpus" not in need.options:
        file = need.options.get("file", minimal_pairs.BUILTIN)
        word_pairs, _ = minimal_pairs.read_pairs(file, f"--cloze {file}")
        return from_sentences("cloze", [pair.text for pair in word_pairs]), minimal_pairs.fingerprint_of(word_pairs)
    return corpus, corpus.fingerprint


@dataclass
class _Planning:
    """Plan of a model's runs, some of which read the folders of others; without `costs`, nothing is estimated."""

    source: ModelSource
    corpus: Corpus
    defaults: Mapping[str, Mapping[str, Any]]
    finished: Sequence[Path]
    place: Path
    costs: _Costs | None
    folders: dict[str, Path] = field(default_factory=dict)
    texts: dict[str, Corpus] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)

    def of(self, needs: Sequence[Need]) -> list[Planned]:
        """Return the runs, each with its folder if it exists."""
        return [self._planned(need) for need in needs]

    def _planned(self, stated: Need) -> Planned:
        need = _with_columns(stated, self.corpus)
        if need.lacking or (gone := next((name for name in need.reads if name in self.lacking), None)):
            self.lacking[need.name] = need.lacking or self.lacking[str(gone)]
            return Planned(replace(need, lacking=self.lacking[need.name]), None)
        need = need.in_folders(self.folders)
        if need.command in (TUNING, "fit") and need.has_separate_corpus:  # which is known by its fingerprint
            text = load_corpus(need.options["corpus"])
            fingerprint, need = text.fingerprint, replace(need, has_separate_corpus=False)
        elif need.is_of_run:
            text = self.texts[need.reads[0]]
            fingerprint = text.fingerprint
        else:
            text, fingerprint = _text_of(need, self.corpus)
        if need.command == TUNING:
            need = self._named(need, fingerprint)
        folder = self._existing_folder(need, fingerprint)
        if folder and need.command == TUNING:  # which may have another name, and others read it by that
            need = replace(need, options={**need.options, "name": folder.name})
        self.folders[need.name] = folder or self.place / str(need.options.get("name", need.name))
        self.texts[need.name] = text
        if folder or not self.costs:
            return Planned(need, folder)
        try:
            return Planned(need, None, *self.costs.of(need, text))
        except UserError as error:  # of a text that lacks what the run predicts
            self.lacking[need.name] = as_clause(error)
            return Planned(replace(need, lacking=self.lacking[need.name]), None)

    def _named(self, need: Need, fingerprint: str) -> Need:
        """Return a tuning with a name, by which other runs read it and a killed one is continued."""
        digest = _digest(self.source.fingerprint(), fingerprint, need.line)
        options = {**need.options, "name": f"{self.source.short_name}-{need.name}-{digest}"}
        if self.place != Path(self.defaults[TUNING]["runs"]):
            options["runs"] = str(self.place)
        return replace(need, options=options)

    def _existing_folder(self, need: Need, fingerprint: str) -> Path | None:
        """Return the folder of an existing run; a run that reads another exists only if that run does."""
        source = self.source
        if need.model_of_run:
            if not Path(need.model_of_run).is_dir():
                return None
            source = resolve_model(need.model_of_run)
        prints = Fingerprints(source.fingerprint(), fingerprint)
        return existing(need, self.finished, self.defaults[need.command], prints)


class _Costs:
    """Estimates of a model's runs; reading a text counts once, for the first run that reads it."""

    def __init__(self, source: ModelSource, cache: Path, defaults: Mapping[str, Mapping[str, Any]]) -> None:
        layers = range(load_config(source).num_hidden_layers + 1)
        self.source, self.defaults = ActivationSource(source, layers, cache), defaults
        self.readings: dict[tuple[str, Any, str], PendingRequest] = {}
        self.speed: Speed | None = None

    def of(self, need: Need, text: Corpus) -> tuple[float, int]:
        """Return the estimated seconds of a run, and the bytes that it adds to the cache."""
        key = text.fingerprint, need.options.get("corpus") if need.has_separate_corpus else None, need.model_of_run
        reading = self.readings.get(key) or PendingRequest.of(self.source.request(text), self.source.cache)
        self.speed = self.speed or Speed.measure(reading.request)
        run_seconds = seconds(need, self.defaults[need.command], reading, self.speed)
        if key in self.readings or need.command in ("hierarchy", "triggers", TUNING):  # which read into no cache
            return run_seconds, 0
        self.readings[key] = reading
        return run_seconds + reading.seconds(self.speed), reading.missing_bytes


def _trainings(
    names: Sequence[str], model: str, paper: Paper, inputs: UserInputs, corpus: Corpus,
    defaults: Mapping[str, Mapping[str, Any]], finished: Sequence[Path],
) -> list[Planned]:  # fmt: skip
    """Return the runs of `pretrain` for a size of encoders; by their fixed names, killed runs are continued."""
    size = model.removeprefix(PRETRAINED_PREFIX)
    if size not in get_args(Size):
        sizes = ", ".join(f"{PRETRAINED_PREFIX}{name}" for name in get_args(Size))
        raise UserError(f"`--models {model}`: encoders that are trained here are {sizes}.")
    shape, recipe = chosen_recipe(cast(Size, size), EncoderOptions(), TrainingOptions())
    training_defaults = {**defaults["pretrain"], "encoder": asdict(shape), "training": asdict(recipe)}
    planned = []
    for need in needs_of(names, paper, model, replace(inputs, data={**inputs.data, "size": size}), defaults):
        named = replace(need, options={**need.options, "name": f"{model}-{_digest(corpus.fingerprint, need.line)}"})
        folder = existing(need, finished, training_defaults, Fingerprints("", corpus.fingerprint))
        planned.append(Planned(named, folder, 0.0 if folder or need.lacking else training_seconds(need)))
    return planned


def _digest(*parts: str) -> str:
    """Return eight hexadecimal digits that identify the inputs of a run."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


def carry_out(
    planned: ClaimsPlan, make: Maker, load: Callable[[Path], Any], say: Say
) -> tuple[list[Model], dict[str, Any]]:
    """Carry out missing runs one after the other; return the models with all runs, and the folders.

    A run can be impossible for a model, such as a measurement of norms in blocks without norms; its claims then have no
    value. `make` executes a run, `load` reads a run from its folder, and `say` receives one-line messages.
    """
    models, folders, n = [], {}, 0
    for name, runs in planned.models.items():
        lacking: dict[str, str] = {}
        places: dict[str, Path] = {}
        for run, described in planned.paper.runs.items():
            if (described["command"] == "pretrain") != is_pretrained_locally(name):
                lacking[run] = _NOT_OF_ONE_MODEL
        for planned_run in runs:
            if planned_run.need.lacking:
                lacking[planned_run.need.name] = planned_run.need.lacking
                continue
            if planned_run.folder:
                remark(f"{planned_run.need.line}: read from {planned_run.folder}")
                places[planned_run.need.name] = planned_run.folder
                continue
            n += 1
            remark(f"run {n} of {len(planned.to_run)}: {planned_run.need.line}")
            try:
                with stage(planned_run.need.line):
                    if gone := [lacking[other] for other in planned_run.need.reads if other in lacking]:
                        raise UserError(gone[0])
                    places[planned_run.need.name] = make(planned_run.need.command, planned_run.need.options)
            except UserError as error:
                lacking[planned_run.need.name] = as_clause(error)
                say(f"{planned_run.need.line} is left out: {as_clause(error)}")
            drop_garbage()
        loaded = {run: load(place) for run, place in places.items()}
        lines = {planned_run.need.name: planned_run.need.line for planned_run in runs}
        models.append(Model(name, loaded, lines, lacking, planned.kinds.get(name, frozenset())))
        folders[name] = {run: str(place) for run, place in places.items()}
    missing = [Model(name, lacking={"": why}) for name, why in planned.lacking.items()]
    order = {model: i for i, model in enumerate(planned.paper.models)}
    return sorted([*models, *missing], key=lambda model: order.get(model.name, -1)), folders


def _compares(claim: Claim, model: str) -> bool:
    """Check whether a claim compares its models with this one."""
    return claim.reading is not None and claim.reading.arguments.get("over") == model


def _not_named(model: str) -> str:
    if is_pretrained_locally(model):
        return f"encoders that the authors trained and did not publish: `--models {model}` trains such ones"
    if model not in ALIASES:
        return f"a model of the authors, who did not publish it: `--models {model}=FOLDER` says that a folder holds one"
    return f"{ALIASES[model]}, which is not on this machine: `--models {model}` downloads it"
