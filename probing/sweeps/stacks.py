"""Trials of a sweep that are trained together: one stack for each seed, and a light run folder for each trial."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probing.cache import ActivationStore
from probing.cache.corpora import extract_all, say_what_was_left_out
from probing.cli.option_values import plain
from probing.cli.options import WandbOptions
from probing.corpus.sides import read_corpora
from probing.data.examples import Sides
from probing.data.preparation import example_checks, goes_by_document, label_sides, origin
from probing.evidence.table import collect_evidence
from probing.models import load_config, parse_layers, resolve_model
from probing.probes.linear import Problem
from probing.probes.options import training_of
from probing.probes.solvers import Penalty
from probing.probes.training import LayerFit, layer_moments, train_problems
from probing.runs.folder import RunFolder
from probing.runs.results import Measured, write, write_summary
from probing.runs.tracked import tracking
from probing.sweeps.progress import Progress, SavedProgress
from probing.sweeps.trials import Trial, alike, by_seed
from probing.tasks import Labels, load_task

# What the problems of one stack may take, in bytes, and copies that a solver keeps of a problem's weights: those of its
# history, and what is summed in float64.
STACK_BYTES, COPIES = 2**31, 60

Key = tuple[int, Penalty]


@dataclass
class Place:
    """Where trials go and who is told.

    Args:
        trials: Folder of the trials' runs.
        cache: The cache folder.
        wandb: Where and how trials are tracked.
        say: Takes one-line messages.
        callbacks: Returns Lightning callbacks for what is trained.
        finished: Is told of each trial that is whole.
    """

    trials: Path
    cache: Path
    wandb: WandbOptions
    say: Callable[[str], None]
    callbacks: Callable[[str], list[Any]]
    finished: Callable[[Trial], None]


def run_stack(trials: Sequence[Trial], done: Sequence[Trial], place: Place, progress: bool) -> None:
    """Train trials that differ only in layer, seed and penalty, and write a run folder for each.

    Args:
        trials: Those that are still to be done.
        done: Others of the stack, which are whole: probes start from theirs.
        place: Where they go.
        progress: Whether to show how the extraction goes.
    """
    trainer = trials[0].options["trainer"] or {}
    data = _Data(trials, place, progress)
    solved = _Solved(place.trials, data.layers_of, done)
    for seed, group in by_seed(trials).items():
        sides, stores = data.of_seed(seed)
        start = time.perf_counter()
        keys = sorted({key for trial in group for key in data.keys(trial)}, key=lambda key: (key[0], key[1].l2))
        training = training_of(trials[0].probe, _penalty(trials[0]).l2, seed)
        layers = sorted({layer for layer, _ in keys})
        moments = dict(zip(layers, layer_moments(sides.train, layers), strict=True))
        fits: dict[Key, LayerFit] = {}
        for part in _parts(keys, len(sides.classes), stores[0].plan.d_model):
            here = sorted({layer for layer, _ in part})
            names = [f"layer_{layer:02d}/l1_{penalty.l1}_l2_{penalty.l2}" for layer, penalty in part]
            # Of the same text too: the file may be another by now.
            stack = f"{seed} {stores[0].header['key']} {alike(trials[0])}"
            saved = Progress(place.trials.parent / "progress.safetensors", stack, names)
            starts = saved.starts()
            problems = [
                Problem(name, here.index(key[0]), key[1], starts.get(name, solved.start(key, sides.classes)))
                for name, key in zip(names, part, strict=True)
            ]
            found = train_problems(
                sides, here, [moments[layer] for layer in here], problems, training, trainer,
                [*place.callbacks(f"{len(problems)} probes of seed {seed}"), SavedProgress(saved)], test=True,
            )  # fmt: skip
            fits |= dict(zip(part, found, strict=True))
        solved.add(fits, sides.classes)
        trained = time.perf_counter()
        evidence = dict(
            zip(
                layers,
                collect_evidence(sides.train, sides.test, layers, [moments[n] for n in layers], len(sides.classes)),
                strict=True,
            )
        )
        cached_of = {side: origin(store) for side, store in (("train", stores[0]), ("test", stores[-1]))}
        for trial in group:
            measured = Measured(
                sides,
                [fits[key] for key in data.keys(trial)],
                [evidence[layer] for layer, _ in data.keys(trial)],
                penalty={"l2": _penalty(trial).l2},
            )
            timings = {"probe_s": trained - start, "probes_trained_together": len(fits)}
            _write(trial, measured, cached_of, timings, place, data.source.short_name)
        with suppress(FileNotFoundError):
            (place.trials.parent / "progress.safetensors").unlink()


class _Data:
    """What the trials of a stack are trained on; what does not depend on the seed is opened once."""

    def __init__(self, trials: Sequence[Trial], place: Place, progress: bool) -> None:
        self.options, self.probe, self.place = trials[0].options, trials[0].probe, place
        self.source = resolve_model(self.options["model"], self.options["revision"])
        self.n_layers = load_config(self.source).num_hidden_layers
        self.task = load_task(self.options["task"], self.options["task_args"] or {})
        layers = sorted({layer for trial in trials for layer in self.layers_of(trial)})
        self.extract = partial(
            extract_all, self.source, layers=layers, cache=place.cache, trainer=self.options["trainer"] or {},
            say=place.say, progress=progress, dtype=self.options["dtype"], max_length=self.options["max_length"],
            batch_tokens=self.options["batch_tokens"],
        )  # fmt: skip
        self.stores: list[ActivationStore] = []

    def layers_of(self, trial: Trial) -> Sequence[int]:
        """Return the layers of a trial."""
        return parse_layers(trial.options["layer"], self.n_layers, self.options["model"])

    def keys(self, trial: Trial) -> list[Key]:
        """Return the layer and the penalty of each probe of a trial."""
        return [(layer, _penalty(trial)) for layer in self.layers_of(trial)]

    def of_seed(self, seed: int) -> tuple[Sides, list[ActivationStore]]:
        """Return the sides of the split that a seed makes, and the activations."""
        say = self.place.say if not self.stores else _silence
        corpora, splits = read_corpora(self.options["corpus"], self.options["test_corpus"], seed, say)
        checks = example_checks(self.task, corpora, splits, self.probe, say)
        if not self.stores or self.options["random_weights"]:
            weights_seed = seed if self.options["random_weights"] else None
            self.stores = self.extract(corpora=corpora, checks=checks, random_weights_seed=weights_seed)
            say_what_was_left_out(corpora, self.stores, say)
        else:
            for check, store in zip(checks, self.stores, strict=True):
                check(store.tokens)
        by_document = goes_by_document(self.options["group_by"], corpora[-1], splits[-1])
        return label_sides(self.stores, corpora, splits, self.task, by_document), self.stores


class _Solved:
    """Optima that are known, of this seed or of others: the next ones are near."""

    def __init__(self, trials: Path, layers_of: Callable[[Trial], Sequence[int]], done: Sequence[Trial]) -> None:
        from safetensors import safe_open

        self.weights: dict[Key, tuple[Tensor, Labels]] = {}
        for trial in done:
            with safe_open(trials / trial.name / "probe.safetensors", "pt") as file:
                classes = np.array(json.loads(file.metadata()["classes"]))
                for layer, weight in zip(layers_of(trial), file.get_tensor("weight"), strict=True):
                    self.weights[layer, _penalty(trial)] = weight, classes

    def add(self, fits: dict[Key, LayerFit], classes: Labels) -> None:
        """Add the probes of a seed."""
        self.weights |= {key: (fit.weight, classes) for key, fit in fits.items()}

    def start(self, key: Key, classes: Labels) -> Tensor | None:
        """Return the weights of another seed, 0 for classes that it has not, shape (n_classes, d_model)."""
        if key not in self.weights:
            return None
        weight, known = self.weights[key]
        start = torch.zeros(len(classes), weight.shape[1])
        _, here, there = np.intersect1d(classes, known, return_indices=True)
        start[torch.from_numpy(here)] = weight[torch.from_numpy(there)]
        return start


def _parts(keys: Sequence[Key], n_classes: int, d_model: int) -> Iterator[list[Key]]:
    """Yield the problems in as few stacks as memory allows."""
    size = max(1, STACK_BYTES // (4 * COPIES * n_classes * d_model))
    for start in range(0, len(keys), size):
        yield list(keys[start : start + size])


def _penalty(trial: Trial) -> Penalty:
    """Return the penalty of a stacked trial, which names one: those that choose their own are fits of their own."""
    assert trial.probe.l2 != "auto"
    return Penalty(trial.probe.l1, trial.probe.l2)


def _write(
    trial: Trial,
    measured: Measured,
    cached: dict[str, dict[str, Any]],
    timings: dict[str, float],
    place: Place,
    model_name: str,
) -> None:
    """Write one trial's run folder, without figures, and track it."""
    config = plain({**trial.options, "wandb": place.wandb})
    folder = RunFolder(place.trials, trial.name, "", figures=False)
    with tracking(folder, place.wandb, config, light=True) as tracker:
        written = write(folder.path, config, measured, model_name, draws=False)
        write_summary(folder.path, measured, written, cached, timings)
        if tracker:
            tracker.log_results(written.accuracy, [], [], [])
    if tracker:  # a server that failed once is not waited for by every trial
        place.wandb = replace(place.wandb, mode=tracker.mode)
    folder.finish()
    place.finished(trial)


def _silence(message: str) -> None:
    """Print nothing: of the first seed it was said."""
