"""Trials of a sweep that are trained together: one stack for each seed, and a light run folder for each trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from probing.activations import ActivationStore
from probing.activations.source import ActivationSource
from probing.cli.options import WandbOptions, plain
from probing.data.examples import Sides
from probing.data.labelling import ExampleChecks, label_sides, n_heads_of, origin, read_sides
from probing.data.module import layer_moments
from probing.models import load_config, parse_layers, resolve_model
from probing.probes.evidence import collect_evidence
from probing.probes.linear import LinearProbe
from probing.probes.solvers import Penalty, Problem
from probing.probes.training import LayerFit, train_problems, training_of
from probing.runs.call import tracking
from probing.runs.checks import leaves_out_first
from probing.runs.folder import RunFolder
from probing.runs.places import read_from
from probing.runs.results import ClassResults, write
from probing.runtime.files import parse_json, regular, write_tensors
from probing.runtime.terminal import silence
from probing.statistics.moments import Moments
from probing.studies.sweep.definition import SEED, Trial, alike, group_by_key
from probing.text import read_corpora
from probing.text.tasks import Labels, load_task, reader_of

# Seconds between two savings.
EVERY_S = 5.0


class Progress:
    """A file with the weights of a stack in training, one stack at a time, by the names of its problems.

    `stack` identifies the stack and its data: weights of another stack are not used as a start.
    """

    def __init__(self, path: Path, stack: str, names: Sequence[str]) -> None:
        self.path, self.stack, self.names = path, stack, list(names)

    def save(self, weight: Tensor) -> None:
        """Write the weights on raw hidden states, shape (n_problems, n_classes, d_model)."""
        temporary = self.path.with_suffix(".new")
        tensors = {name: problem_weight.clone() for name, problem_weight in zip(self.names, weight.cpu(), strict=True)}
        write_tensors(temporary, tensors, {"stack": self.stack})
        temporary.replace(self.path)

    def starts(self) -> dict[str, Tensor]:
        """Return the weights by problem, shape (n_classes, d_model); empty if none were saved."""
        from safetensors import SafetensorError, safe_open

        if not self.path.is_file():
            return {}
        try:
            with safe_open(regular(self.path, self.path.parent), "pt") as file:
                saved = file.metadata()["stack"] == self.stack
                return {name: file.get_tensor(name) for name in self.names} if saved else {}
        except SafetensorError:  # torn by a crash of the machine
            return {}


class SavedProgress(pl.Callback):
    """Callback that saves a stack's progress every few seconds."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.last = progress, time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the current points of the solvers, unless the last saving is recent."""
        if time.monotonic() - self.last < EVERY_S:
            return
        weight = cast(LinearProbe, pl_module).weight
        if torch.isfinite(weight).all():
            self.progress.save(weight)
        self.last = time.monotonic()


# Memory that the problems of one stack may take, in bytes, and the number of copies of a problem's weights that a
# solver keeps: its history, and sums in float64.
STACK_BYTES, COPIES = 2**31, 60

Key = tuple[int, Penalty]


@dataclass
class StackContext:
    """Folders of the trials and the cache, and functions for messages and for each finished trial."""

    trials: Path
    cache: Path
    wandb: WandbOptions
    say: Callable[[str], None]
    finished: Callable[[Trial], None]


def run_stack(trials: Sequence[Trial], done: Sequence[Trial], context: StackContext) -> None:
    """Train trials that differ only in layer, seed and penalty, and write a run folder for each.

    Probes start from the weights of the finished trials in `done`.
    """
    data = _Data(trials, context)
    solved = _Solved(context.trials, data.layers_of, done)
    for seed, group in group_by_key(trials, lambda trial: trial.options[SEED]).items():
        sides, stores = data.of_seed(seed)
        start = time.perf_counter()
        keys = sorted({key for trial in group for key in data.keys(trial)}, key=lambda key: (key[0], key[1].l2))
        layers = sorted({layer for layer, _ in keys})
        moments = layer_moments(sides.train, layers)
        # The key covers the text as well: the file may have changed since.
        stack = f"{seed} {stores[0].header['key']} {alike(trials[0])}"
        fits: dict[Key, LayerFit] = {}
        for part in _parts(keys, len(sides.classes), stores[0].plan.d_model):
            fits |= _train(
                part, sides, dict(zip(layers, moments, strict=True)), trials[0], seed, stack, solved, context
            )
        solved.add(fits, sides.classes)
        timings = {"probe_s": time.perf_counter() - start, "probes_trained_together": len(fits)}
        collected = collect_evidence(sides.train, sides.test, layers, moments, len(sides.classes))
        evidence = dict(zip(layers, collected, strict=True))
        cached_of = {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))}
        for trial in group:
            probes, penalty = data.keys(trial), {"l2": _penalty(trial).l2}
            of_layers = [evidence[layer] for layer, _ in probes]
            heads = n_heads_of(stores[0])
            results = ClassResults(sides, [fits[key] for key in probes], of_layers, penalty=penalty, n_heads=heads)
            _write(trial, results, cached_of, timings, context, data.source.model.short_name)
        with suppress(FileNotFoundError):
            (context.trials.parent / "progress.safetensors").unlink()


def _train(
    keys: Sequence[Key],
    sides: Sides,
    moments: Mapping[int, Moments],
    trial: Trial,
    seed: int,
    stack: str,
    solved: _Solved,
    context: StackContext,
) -> dict[Key, LayerFit]:
    """Train some of a seed's probes in one stack from near optima in `solved`, saving their progress."""
    layers = sorted({layer for layer, _ in keys})
    names = [f"layer_{layer:02d}/l1_{penalty.l1}_l2_{penalty.l2}" for layer, penalty in keys]
    saved = Progress(context.trials.parent / "progress.safetensors", stack, names)
    starts = saved.starts()
    problems = [
        Problem(name, layers.index(key[0]), key[1], starts.get(name, solved.start(key, sides.classes)))
        for name, key in zip(names, keys, strict=True)
    ]
    training = training_of(
        trial.probe, _penalty(trial).l2, seed, trial.options["trainer"],
        lambda what: [SavedProgress(saved)],
    )  # fmt: skip
    what, of_layers = f"{len(problems)} probes of seed {seed}", [moments[layer] for layer in layers]
    return dict(zip(keys, train_problems(sides, layers, of_layers, problems, training, what, test=True), strict=True))


class _Data:
    """Data of a stack's trials; data that do not depend on the seed are opened once."""

    def __init__(self, trials: Sequence[Trial], context: StackContext) -> None:
        self.options, self.probe = trials[0].options, trials[0].probe
        model = resolve_model(self.options["model"], self.options["revision"])
        self.n_layers = load_config(model).num_hidden_layers
        self.task = load_task(self.options["task"], self.options["task_args"] or {})
        layers = sorted({layer for trial in trials for layer in self.layers_of(trial)})
        self.source = ActivationSource(
            model, layers, context.cache, self.options["dtype"], self.options["max_length"],
            self.options["batch_tokens"], trainer=self.options["trainer"] or {}, say=context.say,
            site=self.options["site"], without_first=leaves_out_first(self.options),
        )  # fmt: skip
        self.stores: list[ActivationStore] = []

    def layers_of(self, trial: Trial) -> Sequence[int]:
        return parse_layers(trial.options["layer"], self.n_layers, self.options["model"], self.options["site"])

    def keys(self, trial: Trial) -> list[Key]:
        """Return the layer and the penalty of each probe of a trial."""
        return [(layer, _penalty(trial)) for layer in self.layers_of(trial)]

    def of_seed(self, seed: int) -> tuple[Sides, list[ActivationStore]]:
        """Return the sides of the split by a seed, and the activations."""
        source = self.source if not self.stores else replace(self.source, say=silence)  # said of the first seed
        if self.options["random_weights"]:
            source = replace(source, random_weights_seed=seed)
        group_by = self.options["group_by"]
        named = self.options["corpus"], self.options["test_corpus"]
        corpora, splits = read_corpora(*named, seed, source.say, group_by, reader_of(self.task))
        if not self.stores or self.options["random_weights"]:
            sides, self.stores = read_sides(source, corpora, splits, self.task, self.probe, group_by)
            return sides, self.stores
        for check, store in zip(
            ExampleChecks(self.task, corpora, splits, self.probe, source.say).by_corpus(), self.stores, strict=True
        ):
            check(store.tokens)
        return label_sides(self.stores, corpora, splits, self.task, group_by), self.stores


class _Solved:
    """Known optima of this seed or of others, near the optima of the next problems."""

    def __init__(self, trials: Path, layers_of: Callable[[Trial], Sequence[int]], done: Sequence[Trial]) -> None:
        from safetensors import safe_open

        self.weights: dict[Key, tuple[Tensor, Labels]] = {}
        for trial in done:
            with safe_open(regular(trials / trial.name / "probe.safetensors", trials), "pt") as file:
                classes = np.array(parse_json(file.metadata()["classes"]))
                for layer, weight in zip(layers_of(trial), file.get_tensor("weight"), strict=True):
                    self.weights[layer, _penalty(trial)] = weight, classes

    def add(self, fits: dict[Key, LayerFit], classes: Labels) -> None:
        self.weights |= {key: (fit.weight, classes) for key, fit in fits.items()}

    def start(self, key: Key, classes: Labels) -> Tensor | None:
        """Return known weights of a key, 0 for classes without any, shape (n_classes, d_model); None if unknown."""
        if key not in self.weights:
            return None
        weight, known = self.weights[key]
        start = torch.zeros(len(classes), weight.shape[1])
        _, rows, known_rows = np.intersect1d(classes, known, return_indices=True)
        start[torch.from_numpy(rows)] = weight[torch.from_numpy(known_rows)]
        return start


def _parts(keys: Sequence[Key], n_classes: int, d_model: int) -> Iterator[list[Key]]:
    """Yield the problems in as few stacks as memory allows."""
    size = max(1, STACK_BYTES // (4 * COPIES * n_classes * d_model))
    for start in range(0, len(keys), size):
        yield list(keys[start : start + size])


def _penalty(trial: Trial) -> Penalty:
    """Return the penalty of a stacked trial, which is given: trials that choose their penalty are not stacked."""
    assert trial.probe.l2 != "auto"
    return Penalty(trial.probe.l1, trial.probe.l2)


def _write(
    trial: Trial,
    results: ClassResults,
    cached: dict[str, dict[str, Any]],
    timings: dict[str, float],
    context: StackContext,
    model_name: str,
) -> None:
    """Write one trial's run folder, without figures, and track it."""
    config = plain({**trial.options, "wandb": context.wandb})
    folder = RunFolder(context.trials, trial.name, "", figures=False)
    with tracking(folder, context.wandb, config, light=True) as tracker:
        noted = read_from(config, folder.path)
        written = write(folder.path, config, results, model_name, cached, lambda: timings, formats=(), noted=noted)
        if tracker:
            tracker.log_results(written.tables["accuracy"], [], [], [])
    if tracker:  # after the server failed once, later trials do not wait for it
        context.wandb = replace(context.wandb, mode=tracker.mode)
    folder.finish()
    context.finished(trial)
