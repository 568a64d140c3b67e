"""Planted data without a model: activation stores built from arrays, and optima found by other means in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from probing.builtin_tasks.position import Position
from scipy.optimize import minimize

from probing.activations.store import ActivationStore, StorePlan, divide
from probing.data.examples import Examples, Sides
from probing.data.labelling import choose_classes, label
from probing.probes.solvers import Penalty
from probing.probes.training import Adam, LayerFit, Lbfgs, Training, train_probes
from probing.studies.position.survey import PositionSample, survey_position
from probing.text import Corpus, Split
from probing.text.tokens import Tokens

Array = NDArray[np.float64]
SPLITS: tuple[Split, ...] = get_args(Split)

# Tasks of position ask nothing of the text.
CORPUS = Corpus("planted", ())


def make_tokens(lengths: Sequence[int], special: bool = True, seed: int = 0) -> Tokens:
    """Return a token table with random ids; the first and last token of a sentence are special ones, or none is."""
    n = sum(lengths)
    words = np.concatenate([np.arange(length) for length in lengths]).astype(np.int16) - special
    if special:
        words[np.cumsum(lengths) - 1] = -1
    ids = np.random.default_rng(seed).integers(1000, size=n).astype(np.int32)
    return Tokens(np.array(lengths, dtype=np.int32), ids, words)


def make_store(
    folder: Path, hidden_states: Sequence[Any], tokens: Tokens, shard_tokens: int = 200, dtype: str = "float32"
) -> ActivationStore:
    """Write one array of shape (n_tokens, d_model) for each of the layers 0, 1, ... into a new store."""
    arrays = [torch.as_tensor(states).to(getattr(torch, dtype)) for states in hidden_states]
    shards = divide(tokens.lengths, shard_tokens)
    plan = StorePlan({"planted": str(folder)}, len(arrays) - 1, arrays[0].shape[1], dtype, 1024, shards)
    store = ActivationStore.create(folder, plan, tokens, {})
    for layer, states in enumerate(arrays):
        for shard in plan.shards:
            store.write(layer, shard.index, states[shard.rows(store.tokens)].contiguous())
    return store


def make_splits(n_sentences: int) -> list[Split]:
    """Return sides in turn: of ten sentences seven for training, one for validation, two for the test."""
    return [("test" if i % 10 > 7 else "validation" if i % 10 == 7 else "train") for i in range(n_sentences)]


class Data(Sides):
    """The three sides of one store and their classes."""

    def fit(self, layers: Sequence[int] = (0,), trainer: Mapping[str, Any] | None = None, **how: Any) -> list[LayerFit]:
        """Train probes; `l1`, `l2`, `folder`, `callbacks` and the fields of `Training` and its solver can be set."""
        penalty = Penalty(how.pop("l1", 0.0), how.pop("l2", 1e-3))
        folder, callbacks = how.pop("folder", None), how.pop("callbacks", ())
        space = how.pop("penalty_space", "sd")
        solver: Lbfgs | Adam
        if how.pop("solver", "lbfgs") == "lbfgs":
            solver = Lbfgs(**{"tolerance": 1e-5, **how})
        else:
            defaults: dict[str, Any] = {
                "learning_rate": 0.01, "batch_size": 64, "patience": 3, "seed": 0, "tolerance": 1e-5,
            }  # fmt: skip
            solver = Adam(**{**defaults, **how})
        training = Training(penalty, solver, space, trainer or {}, lambda what: callbacks)
        return train_probes(self, layers, training, folder=folder)


def sides(store: ActivationStore, task: Position | None = None, splits: Sequence[Split] | None = None) -> Data:
    """Label a store by position and divide it."""
    task, splits = task or Position(), splits or make_splits(store.tokens.n_sentences)
    classes = choose_classes(store.tokens, CORPUS, task, splits)
    train, validation, test = (label(store, CORPUS, task, splits, classes, side) for side in SPLITS)
    return Data(train, validation, test, classes, ordinal=True)


def positional(tokens: Tokens, d_model: int, strength: float, seed: int = 0) -> Array:
    """Return noise plus, for each position, a fixed random vector `strength` times as large."""
    generator = np.random.default_rng(seed)
    vectors = strength * generator.standard_normal((int(tokens.lengths.max()), d_model))
    return vectors[tokens.positions] + generator.standard_normal((tokens.n_tokens, d_model))


def scaled_features(examples: Examples, layer: int = 0) -> tuple[Array, NDArray[np.integer]]:
    """Return the examples' activations divided by their sd, and their labels: what the penalty sees, by numpy."""
    store = examples.store
    states = np.concatenate([store.read(layer, s.index).double().numpy() for s in store.plan.shards])
    kept = examples.labels >= 0
    return states[kept] / states[kept].std(0), examples.labels[kept]


def objective(weight: Array, x: Array, y: NDArray[np.integer], l1: float, l2: float) -> tuple[float, Array]:
    """Return mean cross-entropy plus penalty, and the gradient of all but the l1 part, written out in float64."""
    logits = x @ weight.T
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    value = -log_p[np.arange(len(y)), y].mean() + l1 * np.abs(weight).sum() + l2 * np.square(weight).sum()
    residual = np.exp(log_p)
    residual[np.arange(len(y)), y] -= 1
    return float(value), residual.T @ x / len(y) + 2 * l2 * weight


def optimum(x: Array, y: NDArray[np.integer], n_classes: int, l1: float, l2: float) -> Array:
    """Return the weights of the minimum in float64: scipy's L-BFGS, or proximal gradients where l1 > 0."""
    if l1:
        return _proximal_gradients(x, y, n_classes, l1, l2)

    def flat(weight: Array) -> tuple[float, Array]:
        value, gradient = objective(weight.reshape(n_classes, -1), x, y, 0, l2)
        return value, gradient.ravel()

    # Stops at a gradient of 1e-10; with l2 = 1e-4 the value is then within 1e-14 of the minimum.
    options = {"maxiter": 20_000, "maxfun": 50_000, "gtol": 1e-10, "ftol": 0, "maxcor": 50}
    found = minimize(flat, np.zeros(n_classes * x.shape[1]), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(n_classes, -1)


def _proximal_gradients(x: Array, y: NDArray[np.integer], n_classes: int, l1: float, l2: float) -> Array:
    """FISTA with restarts (Beck & Teboulle 2009; O'Donoghue & Candes 2015)."""
    # The Hessian of softmax cross-entropy in the logits is at most 1/2.
    step = 1 / (np.linalg.norm(x, 2) ** 2 / (2 * len(y)) + 2 * l2)
    weight = ahead = np.zeros((n_classes, x.shape[1]))
    momentum = 1.0
    for _ in range(100_000):
        _, gradient = objective(ahead, x, y, 0, l2)
        moved = ahead - step * gradient
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * l1, 0)
        if np.abs(new - ahead).max() < 1e-13:
            return new
        if ((ahead - new) * (new - weight)).sum() > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead, weight, momentum = new + (momentum - 1) / following * (new - weight), new, following
    raise RuntimeError("the reference did not converge")


D, N_SENTENCES = 24, 200
NEURONS = (3, 7, 20)
Tables = dict[str, list[dict[str, Any]]]


def helix(n: int) -> Array:
    """Return a turn every 15 positions and a rise, in three dimensions; shape (n, 3)."""
    t = np.arange(n)
    return np.stack([np.cos(2 * np.pi * t / 15), np.sin(2 * np.pi * t / 15), (t - 12) / 12], 1)


def rotation(seed: int = 0) -> Array:
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0])


def planted(folder: Path, parts: Sequence[Array | None], scale: float = 1.0) -> ActivationStore:
    """Return layers of contexts and noise with a position part each, shape (n_positions, d_model)."""
    generator = np.random.default_rng(1)
    lengths = generator.integers(7, 28, N_SENTENCES)
    tokens = make_tokens(lengths.tolist())
    states = []
    for part in parts:
        x = (
            generator.normal(size=(tokens.n_tokens, D))
            + 0.5 * generator.normal(size=(N_SENTENCES, D))[tokens.sentences]
        )
        x[:, 0] *= scale
        states.append(x if part is None else x + part[tokens.positions])
    return make_store(folder, states, tokens, 700)


def surveyed(store: ActivationStore, ranked: dict[int, list[int]] | None = None) -> Tables:
    return survey_position(PositionSample(store, "exclude", 0), list(range(store.plan.n_layers + 1)), ranked or {})
