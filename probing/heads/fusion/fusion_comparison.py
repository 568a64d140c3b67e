"""Compares linear probes of fusions of layers with probes of single layers, on a frozen model.

For each task, a linear probe without an intercept is trained on every layer and on every fusion, all with the same
penalty, which is chosen on validation sentences. A fusion is compared on the test sentences with the last layer, with
the layer whose probe predicts validation sentences best, and with the mean of the layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probing.cache import tokens_of
from probing.cli.options import ProbeOptions
from probing.comparison.agreement import holm
from probing.data.examples import Activations, Examples, Sides
from probing.data.labelling import example_checks, label_sides
from probing.data.module import layer_moments
from probing.errors import UserError, as_clause
from probing.heads.fusion.fused import FusedStates, Fusion, Largest, Weighted, states_of
from probing.heads.fusion.fusion_training import (
    BLOCK_BYTES,
    LayerMoments,
    LayersOfExamples,
    Learned,
    Objective,
    Start,
    gated_family,
    learn,
    weighted_family,
)
from probing.heads.rows import Rows
from probing.heads.subject import Part, Subject
from probing.heads.sums import SumsStore
from probing.models import load_tokenizer
from probing.probes.penalty_path import penalised
from probing.probes.recipe import Training
from probing.probes.training import LayerFit, train_probes
from probing.runtime.terminal import silence
from probing.statistics.intervals import (
    accuracy_interval,
    difference_interval,
    difference_p_value,
    mean_interval,
)
from probing.tasks import TokenTask, load_task

Row = dict[str, Any]
# Numbers of the fusions beside those of layers, and their names.
EQUAL, LARGEST, CONCAT, GATE = -1, -2, -3, -4
NAMES = {EQUAL: "equal", LARGEST: "max", CONCAT: "concat", GATE: "gate"}
# The name of a single layer, and what fusions are compared with.
LAYER = "layer"
LAST, BEST = "last layer", "best layer"


@dataclass(frozen=True)
class FusedProbes:
    """The probes of one task.

    Args:
        layers: Numbers of the layers that are fused.
        fits: The probe of each layer and fusion, by their numbers.
        fusions: The fusions by their numbers.
        best: The layer that predicts validation sentences best.
        converged: Whether the training of each fusion that is learned ended at a minimum.
        counts: Number of test examples of each sentence of the test corpus, shape (n_sentences,).
        n_train: Number of training examples.
    """

    layers: Sequence[int]
    fits: Mapping[int, LayerFit]
    fusions: Mapping[int, Fusion]
    best: int
    converged: Mapping[int, bool]
    counts: NDArray[np.int64]
    n_train: int


def compare_fusions(sides: Sides, layers: Sequence[int], trainer: Mapping[str, Any], seed: int) -> FusedProbes:
    """Train the probes of all layers and fusions of one task, and test them.

    Args:
        sides: Examples and their classes.
        layers: Numbers of the layers that are fused, at least two, ascending.
        trainer: Arguments of Lightning's Trainer.
        seed: Seed of every random draw.
    """
    fusions: dict[int, Fusion] = {EQUAL: Weighted.equal(len(layers)), LARGEST: Largest()}
    views, fused = [*layers, EQUAL, LARGEST], _with_fusions(sides, layers, fusions)
    moments = layer_moments(fused.train, views)
    path, training = penalised(ProbeOptions(), seed, fused, views, moments, trainer)
    assert path is not None
    found = train_probes(fused, views, training, moments=moments, starts=path.weights)
    fits = dict(zip(views, found, strict=True))
    of_layers = path.cross_entropy[path.best, : len(layers)]
    learned = _learned(sides, layers, fits, training)
    fusions |= {number: one.fusion for number, one in learned.items()}
    views, fused = list(learned), _with_fusions(sides, layers, fusions)
    again = train_probes(fused, views, training, starts=[one.weight for one in learned.values()])
    fits |= dict(zip(views, again, strict=True))
    return FusedProbes(
        layers, fits, fusions, layers[int(of_layers.argmin())], {n: one.converged for n, one in learned.items()},
        sides.test.tokens_by_sentence(), sides.train.n_tokens,
    )  # fmt: skip


def _with_fusions(sides: Sides, layers: Sequence[int], fusions: Mapping[int, Fusion]) -> Sides:
    made: dict[int, FusedStates] = {}

    def change(examples: Examples) -> Examples:
        store = made.setdefault(id(examples.store), FusedStates(examples.store, layers, fusions))
        return replace(examples, store=store)

    return sides.each(change)


def _learned(
    sides: Sides, layers: Sequence[int], fits: Mapping[int, LayerFit], training: Training
) -> dict[int, Learned]:
    """Learn the gate, and the layer weights from two starts: the mean, and the layer that is best in training."""
    examples = LayersOfExamples(sides.train, layers)
    moments = LayerMoments.of(examples)
    (family, parameters_of), gated = weighted_family(moments), gated_family(moments)
    one_hot = torch.eye(len(layers))
    lowest = min(range(len(layers)), key=lambda i: fits[layers[i]].objective)
    n_classes, l2 = len(sides.classes), training.penalty.l2
    begins = {EQUAL: Weighted.equal(len(layers)), layers[lowest]: Weighted(one_hot[lowest])}
    objective = Objective(examples, family, n_classes)
    several = [learn(objective, _start(fits[n], parameters_of(one)), l2) for n, one in begins.items()]
    begin = _start(fits[EQUAL], torch.zeros(gated.n_parameters))
    gate = learn(Objective(examples, gated, n_classes), begin, l2)
    return {CONCAT: min(several, key=lambda one: one.objective), GATE: gate}


def _start(fit: LayerFit, parameters: torch.Tensor) -> Start:
    return Start(parameters, fit.weight)


# --- rows ---


def accuracy_rows(task: str, tested: FusedProbes) -> list[Row]:
    """Return the accuracies of one task, and the differences that its fusions make, with uncorrected p-values."""
    n, fits = tested.counts, tested.fits
    rows: list[Row] = []
    for number, fit in fits.items():
        low, high = accuracy_interval(fit.correct_by_sentence, n)
        row: Row = {"task": task, "fusion": NAMES.get(number, LAYER), "measure": "accuracy"}
        if number in tested.layers:
            row |= {"layer": number, "chosen": "yes" if number == tested.best else "no"}
        row |= {
            "value": float(fit.correct_by_sentence.sum() / n.sum()), "low": low, "high": high,
            "n_train": tested.n_train, "n": int(n.sum()), "optimality_gap": fit.optimality_gap,
        }  # fmt: skip
        if number in tested.converged:
            row["converged"] = "yes" if tested.converged[number] else "no"
        rows.append(row)
    baselines = {LAST: tested.layers[-1], BEST: tested.best, NAMES[EQUAL]: EQUAL}
    for number in (CONCAT, LARGEST, GATE):
        for name, baseline in baselines.items():
            difference = fits[number].correct_by_sentence - fits[baseline].correct_by_sentence
            low, high = difference_interval(difference, n)
            row = {"task": task, "fusion": NAMES[number], "measure": "difference", "against": name}
            if baseline in tested.layers:
                row["layer"] = baseline
            row |= {
                "value": float(difference.sum() / n.sum()), "low": low, "high": high,
                "p_value": difference_p_value(difference, n), "n_train": tested.n_train, "n": int(n.sum()),
            }  # fmt: skip
            rows.append(row)
    return rows


def corrected(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose p-values are corrected for their number (Holm)."""
    found = [i for i, row in enumerate(rows) if "p_value" in row]
    p_values = holm([rows[i]["p_value"] for i in found])
    adjusted = {i: float(p) for i, p in zip(found, p_values, strict=True)}
    return [{**row, "p_value": adjusted[i]} if i in adjusted else row for i, row in enumerate(rows)]


def similarity_rows(
    store: Activations, chosen: NDArray[np.bool_], layers: Sequence[int], fusions: Mapping[int, Fusion], **named: str
) -> list[Row]:
    """Return how alike the tokens of a sentence are after each fusion, and how much of it comes from each layer.

    `cosine` is the mean cosine of all pairs of a sentence's tokens (CosSim, Shi et al. section 3), as a mean over
    sentences with at least two; `weight` is a mean over tokens. Special tokens count in both.

    Args:
        store: The store of the layers.
        chosen: The sentences that are measured, shape (n_sentences,).
        layers: Numbers of the layers.
        fusions: The fusions by their numbers, among which may be layers.
        named: Columns that name the task.
    """
    lengths = np.where(chosen, store.tokens.lengths, 0).astype(np.int64)
    cosines = {number: np.zeros(len(lengths)) for number in fusions}
    weights = {number: np.zeros((len(lengths), len(layers))) for number in fusions}
    for states, sentences in _sentences(store, chosen, layers):
        of = torch.from_numpy(sentences)
        for number, fusion in fusions.items():
            weights[number] += _sums(fusion.weights(states).T, of, len(lengths)).numpy()
            cosines[number] += _pair_cosines(fusion(states), of, len(lengths))
    rows: list[Row] = []
    for number in fusions:
        layer = {"layer": number} if number in layers else {}
        of_pairs = {"fusion": NAMES.get(number, LAYER), **layer}
        pairs = (lengths > 1).astype(np.int64)
        rows.append({**named, **of_pairs, "measure": "cosine", **_mean(cosines[number], pairs)})
        for i, own in enumerate(layers if number in (LARGEST, CONCAT, GATE) else ()):
            row = {**named, "fusion": NAMES[number], "measure": "weight", "layer": own}
            of_layer = _mean(weights[number][:, i], lengths)
            # The weights of `concat` are the same for all tokens.
            rows.append({**row, **of_layer, **({"low": math.nan, "high": math.nan} if number == CONCAT else {})})
    return rows


def _mean(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> Row:
    low, high = mean_interval(sums, counts)
    return {"value": float(sums.sum() / counts.sum()), "low": low, "high": high, "n": int((counts > 0).sum())}


def _sentences(store: Activations, chosen: NDArray[np.bool_], layers: Sequence[int]) -> Any:
    """Yield the states of some whole sentences, shape (n_layers, n, d_model), and the sentence of each token."""
    tokens = store.tokens
    most = max(BLOCK_BYTES // (4 * len(layers) * store.plan.d_model), 1)
    for shard in store.plan.shards:
        here = store.shard_tokens(shard)
        rows = np.flatnonzero(chosen[tokens.sentences[here]])
        sentences = tokens.sentences[here][rows].astype(np.int64)
        ends = np.flatnonzero(np.diff(np.append(sentences, -1))) + 1
        first = 0
        while first < len(rows):
            fitting = ends[(ends > first) & (ends <= first + most)]
            stop = int(fitting[-1] if len(fitting) else ends[ends > first][0])
            some = torch.from_numpy(rows[first:stop])
            yield states_of(store, layers, shard.index, some), sentences[first:stop]
            first = stop


def _sums(values: torch.Tensor, sentences: torch.Tensor, n_sentences: int) -> torch.Tensor:
    return torch.zeros(n_sentences, values.shape[1], dtype=torch.float64).index_add_(0, sentences, values.double())


def _pair_cosines(vectors: torch.Tensor, sentences: torch.Tensor, n_sentences: int) -> NDArray[np.float64]:
    """Return the mean cosine of all pairs of each sentence's tokens, 0 for fewer than two; shape (n_sentences,)."""
    units = vectors.double() / vectors.double().norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    n = sentences.bincount(minlength=n_sentences).double()
    squares = _sums(units, sentences, n_sentences).square().sum(1)
    return torch.where(n > 1, (squares - n) / (n * (n - 1)).clamp_min(1), 0.0).numpy()


NAME = "fusion"
TASKS = ("upos", "deprel", "position")


def tasks_of(subject: Subject) -> tuple[dict[str, TokenTask], str]:
    """Return the tasks whose labels the corpora have in every part, and what the last of the others lacks."""
    found: dict[str, TokenTask] = {}
    lack = ""
    requests = subject.requests
    tokens = [tokens_of(request, load_tokenizer(request.source)) for request in requests]
    for name in TASKS:
        task = load_task(name)
        corpora = [request.corpus for request in requests]
        checks = example_checks(task, corpora, subject.asked.splits, ProbeOptions(), silence)
        try:
            for check, own in zip(checks, tokens, strict=True):
                check(own)
        except UserError as error:
            lack = as_clause(error)
        else:
            found[name] = task
    return found, lack


def _lacks(subject: Subject) -> str | None:
    if len(subject.layers) < 2:
        return f"at least two layers to fuse, and `--layer {subject.layers[0]}` is one"
    found, lack = tasks_of(subject)
    return None if found else f"labels of {', '.join(TASKS[:-1])} or {TASKS[-1]}, and {lack}"


def _tables(subject: Subject, stores: Mapping[str, SumsStore]) -> dict[str, Rows]:
    layers, states = list(subject.layers), subject.hidden_states
    is_test = subject.tested[1]
    corpora, splits = [request.corpus for request in subject.requests], subject.asked.splits
    rows: Rows = []
    single = zip(layers, torch.eye(len(layers)), strict=True)
    shared: dict[int, Fusion] = {layer: Weighted(one) for layer, one in single}
    for name, task in tasks_of(subject)[0].items():
        sides = label_sides(states, corpora, splits, task)
        tested = compare_fusions(sides, layers, subject.source.trainer, subject.seed)
        rows += accuracy_rows(name, tested)
        learned = {number: tested.fusions[number] for number in (CONCAT, GATE)}
        rows += similarity_rows(states[-1], is_test, layers, learned, task=name)
    shared |= {EQUAL: Weighted.equal(len(layers)), LARGEST: Largest()}
    rows += similarity_rows(states[-1], is_test, layers, shared)
    return {NAME: corrected(rows)}


FUSION = Part(NAME, _lacks, lambda subject: [], _tables, by_name_only=True, trains=True)
