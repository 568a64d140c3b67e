"""Trains the probes of a task, and tests them on sentences in which linear order and hierarchy differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache import ActivationStore
from probing.cache.source import ActivationSource
from probing.cli.options import ProbeOptions
from probing.data.module import layer_moments
from probing.probes.training import LayerFit, penalised, train_probes
from probing.results.schema import layers_named
from probing.runtime.progress import stage
from probing.studies.hierarchy.grammar import Task
from probing.studies.hierarchy.parts import Parts, Row, Sizes, answered_words, compared, counted, generalised
from probing.studies.hierarchy.tables import ITSELF, LINEAR

# The names of its tables.
TABLES = ("hierarchy", "distractors")


@dataclass(frozen=True)
class Asked:
    """What is measured.

    Args:
        tasks: The tasks.
        controls: Names of the controls.
        sizes: Numbers of sentences.
        probe: How probes are trained.
        seed: Seed of every random draw.
    """

    tasks: Sequence[Task]
    controls: Sequence[str]
    sizes: Sizes
    probe: ProbeOptions
    seed: int


@dataclass(frozen=True)
class OfTask:
    """What was found of a task.

    Args:
        rows: Rows of each table, by its name.
        l2: Strength of the l2 penalty of the probes.
        optimality_gap: Largest distance of a probe of the model itself to its optimum, in nats.
        stores: The activations of both texts by the model itself.
    """

    rows: Mapping[str, Sequence[Row]]
    l2: float
    optimality_gap: float
    stores: Sequence[ActivationStore]


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        tasks: What was found of each task.
    """

    tasks: Mapping[Task, OfTask]

    @property
    def tables(self) -> dict[str, list[Row]]:
        """Rows of all tasks, by the name of their table."""
        return {name: [row for one in self.tasks.values() for row in one.rows[name]] for name in TABLES}


def read(source: ActivationSource, parts: Parts) -> list[ActivationStore]:
    """Return the activations of both texts of a task."""
    return source.read([text.corpus for text in parts.texts], [text.check for text in parts.texts])


def survey(source: ActivationSource, asked: Asked, say: Callable[[str], None]) -> Found:
    """Train the probes of every task, on the model itself and on the controls, and ask them.

    Args:
        source: The model.
        asked: What is measured.
        say: Called with one-line messages.
    """
    sources = {ITSELF: source, **dict(_controls(source, asked, say))}
    found: dict[Task, OfTask] = {}
    for task in asked.tasks:
        parts = Parts.of(task, asked.sizes, asked.seed)
        with stage(f"hidden states of {layers_named(source.layers)}, {task}", len(sources)) as advance:
            stores = {}
            for name, one in sources.items():
                stores[name] = read(one, parts)
                advance(1)
        with stage(f"probes of {layers_named(source.layers)}, {task}"):
            found[task] = _measure(task, parts, stores, source, asked)
    return Found(found)


def _controls(
    source: ActivationSource, asked: Asked, say: Callable[[str], None]
) -> Iterator[tuple[str, ActivationSource]]:
    """Yield the name of each control that applies, and what gives its activations."""
    for name in asked.controls:
        if name == "permuted_positions":
            yield name, replace(source, permuted_tokens_seed=asked.seed)
        elif source.random_weights_seed is None:
            yield name, replace(source, random_weights_seed=asked.seed)
        else:
            say("the control untrained is left out: the model itself is randomly initialised")


def _measure(
    task: Task, parts: Parts, stores: Mapping[str, Sequence[ActivationStore]], source: ActivationSource, asked: Asked,
) -> OfTask:  # fmt: skip
    """Return what is found of a task.

    Args:
        task: The task.
        parts: Its sentences.
        stores: The activations of both texts, for the model itself and then for each control.
        source: The model.
        asked: What is measured.
    """
    layers, sides = source.layers, parts.sides(stores[ITSELF])
    moments = layer_moments(sides.train, layers)
    path, training = penalised(asked.probe, asked.seed, sides, layers, moments, source.trainer)
    fits = {
        ITSELF: train_probes(sides, layers, training, task, moments=moments, starts=path.weights if path else None)
    }  # fmt: skip
    for control in list(stores)[1:]:
        what = f"{task}, {control}"
        fits[control] = train_probes(parts.sides(stores[control]), layers, training.for_controls(), what)
    answers = {name: answers_of(own, parts, stores[name]) for name, own in fits.items()}
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    for name, own in answers.items():
        made = task_rows(task, name, layers, own, None if name == ITSELF else answers[ITSELF], parts)
        for table, more in zip(rows.values(), made, strict=True):
            table.extend(more)
    gap = max(fit.optimality_gap for fit in fits[ITSELF])
    return OfTask(rows, training.penalty.l2, gap, stores[ITSELF])


def answers_of(fits: Sequence[LayerFit], parts: Parts, stores: Sequence[ActivationStore]) -> NDArray[np.int64]:
    """Return the word that each probe answers in the sentences of the second text, shape (n_layers, n_sentences)."""
    return answered_words(parts.words(stores), [fit.layer for fit in fits], [fit.weight for fit in fits])


def task_rows(
    task: Task, condition: str, layers: Sequence[int], answers: NDArray[np.int64],
    itself: NDArray[np.int64] | None, parts: Parts,
) -> tuple[list[Row], list[Row]]:  # fmt: skip
    """Return the rows of a task for `hierarchy.csv` and `distractors.csv`.

    Args:
        task: The task.
        condition: Name of the control, or `model`.
        layers: Layer numbers.
        answers: The word that each layer's probe answers, shape (n_layers, n_sentences).
        itself: The same of the model itself, if this is a control.
        parts: The sentences.
    """
    text, differ = parts.testing, parts.differ
    rows, kinds = [], []
    for i, layer in enumerate(layers):
        own: dict[str, Any] = {"task": task, "condition": condition, "layer": layer}
        right = answers[i] == text.answers
        row = {**own, **counted("test", right[~differ]), **generalised(answers[i], text, differ, LINEAR[task])}
        if itself is not None:
            of_model = itself[i] == text.answers
            row |= compared("difference", of_model[differ], right[differ])
        rows.append(row)
        for kind in np.unique(text.distractors[differ]):
            chosen = text.distractors == kind
            measured = generalised(answers[i], text, chosen, LINEAR[task])
            kinds.append({**own, "distractor": str(kind), **measured, "n": int(chosen.sum())})
    return rows, kinds
