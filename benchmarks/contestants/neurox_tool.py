"""NeuroX, used as its documentation shows.

    python -m benchmarks.contestants.neurox_tool extract MODEL CORPUS FILE [layers]
    python -m benchmarks.contestants.neurox_tool load FILE LAYER
    python -m benchmarks.contestants.neurox_tool probe FOLDER [EPOCHS]      of exported examples
    python -m benchmarks.contestants.neurox_tool rank FOLDER WEIGHTS.npz weight_mass|probeless
    python -m benchmarks.contestants.neurox_tool whole MODEL CORPUS LABELS SIDES FOLDER

Its output, four lines per sentence and a progress bar per epoch, goes to a file, which slows it least.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import neurox.data.loader as loader
import numpy as np
import torch
from neurox.data.extraction.transformers_extractor import extract_representations
from neurox.interpretation import ablation, linear_probe, probeless, utils

from benchmarks.contestants.files import forget, size

# `create_tensors` asks numpy for `np.int`, which was Python's int and left numpy 1.24.
np.int = int  # type: ignore[attr-defined]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        open(os.devnull, "w", encoding="utf-8") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        yield


def extract(model: str, corpus: str, file: str, how: str = "") -> dict[str, Any]:
    """Extract all layers of each word's last piece into HDF5; with `layers`, into a file per layer, read fastest."""
    start = time.perf_counter()
    with _silent():
        extract_representations(model, corpus, file, output_type="hdf5", decompose_layers=how == "layers")
    return {"seconds": time.perf_counter() - start, "bytes": sum(size(path) for path in _files_of(file))}


def _files_of(file: str) -> list[Path]:
    path = Path(file)
    return [path] if path.exists() else sorted(path.parent.glob(f"{path.stem}-layer*{path.suffix}"))


def load(file: str, layer: str) -> dict[str, Any]:
    """Read one layer or all layers by `load_activations`, which always reads all layers of a file."""
    found = _files_of(file)
    if layer != "all" and len(found) > 1:
        found = [found[int(layer)]]
    for path in found:
        forget(path)
    start, total, rows = time.perf_counter(), 0.0, 0
    with _silent():
        for path in found:
            activations, n_layers = loader.load_activations(str(path))
            if layer != "all" and n_layers > 1:
                d_model = activations[0].shape[1] // int(n_layers)
                own = slice(int(layer) * d_model, (int(layer) + 1) * d_model)
                activations = [sentence[:, own] for sentence in activations]
            total += sum(float(sentence.sum()) for sentence in activations)
            rows = sum(len(sentence) for sentence in activations)
    return {"seconds": time.perf_counter() - start, "sum": total, "rows": rows}


def probe(folder: str, epochs: str = "10") -> dict[str, Any]:
    """Train on exported examples with the default options except the number of epochs; write weight and bias."""
    x, y = (np.load(Path(folder) / f"{name}_train.npy") for name in "Xy")
    start = time.perf_counter()
    with _silent():
        trained = linear_probe.train_logistic_regression_probe(x, y, num_epochs=int(epochs))
    seconds = time.perf_counter() - start
    weight, bias = (parameter.detach().numpy() for parameter in trained.parameters())
    np.savez(Path(folder) / f"neurox-{epochs}.npz", weight=weight, bias=bias)
    return {"seconds": seconds}


def rank(folder: str, weights: str, method: str) -> dict[str, Any]:
    """Rank all neurons by a probe's weights, or by differences of class means; write the order."""
    x, y = (np.load(Path(folder) / f"{name}_train.npy") for name in "Xy")
    weight = np.load(weights)["weight"]
    trained = linear_probe.LinearProbe(weight.shape[1], weight.shape[0])
    trained.linear.weight.data[:] = torch.from_numpy(weight)
    classes = {str(i): i for i in range(len(weight))}
    start = time.perf_counter()
    with _silent():
        if method == "weight_mass":
            order, _ = linear_probe.get_neuron_ordering(trained, classes)
        else:
            order = probeless.get_neuron_ordering(x, y)
    seconds = time.perf_counter() - start
    (Path(folder) / f"neurox-{method}.json").write_text(json.dumps([int(i) for i in order]), encoding="utf-8")
    return {"seconds": seconds}


def whole(model: str, corpus: str, labels: str, sides: str, folder: str) -> dict[str, Any]:
    """Go from text and labels to a ranked table of every layer: extract, load, train, evaluate, rank, write."""
    times: dict[str, float] = {}
    start = time.perf_counter()

    def lap(name: str) -> None:
        times[name] = times.get(name, 0.0) + time.perf_counter() - start - sum(times.values())

    file = str(Path(folder) / "activations.hdf5")
    with _silent():
        extract_representations(model, corpus, file, output_type="hdf5")
        lap("extract_s")
        activations, n_layers = loader.load_activations(file)
        tokens = loader.load_data(corpus, labels, activations, 10**6)
        lap("load_s")
        side_of = json.loads(Path(sides).read_text(encoding="utf-8"))
        accuracies, table = [], []
        x_all, y, mappings = utils.create_tensors(*_side(tokens, activations, side_of, "train"), "0")
        x_test_all, y_test, _ = utils.create_tensors(*_side(tokens, activations, side_of, "test"), "0", mappings)
        for layer in range(int(n_layers)):
            x, x_test = (
                ablation.filter_activations_by_layers(each, [layer], int(n_layers)) for each in (x_all, x_test_all)
            )
            lap("load_s")
            trained = linear_probe.train_logistic_regression_probe(x, y)
            scores = linear_probe.evaluate_probe(trained, x_test, y_test, mappings[1])
            accuracies.append(float(scores["__OVERALL__"]))
            lap("probe_s")
            order, _ = linear_probe.get_neuron_ordering(trained, mappings[0])
            table += [{"layer": layer, "rank": rank, "neuron": int(i)} for rank, i in enumerate(order, 1)]
            lap("rank_s")
    with open(Path(folder) / "neurons.csv", "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, ("layer", "rank", "neuron"))
        writer.writeheader()
        writer.writerows(table)
    seconds = time.perf_counter() - start
    (Path(folder) / "accuracy.json").write_text(json.dumps(accuracies), encoding="utf-8")
    examples = {"n_train_tokens": len(y), "n_test_tokens": len(y_test), "n_classes": len(mappings[0])}
    return {"seconds": seconds, **times, **examples, "mean_accuracy": sum(accuracies) / len(accuracies)}


def _side(
    tokens: Mapping[str, Sequence[Any]], activations: Sequence[Any], side_of: Sequence[str], side: str
) -> tuple[dict[str, list[Any]], list[Any]]:
    kept = [i for i, each in enumerate(side_of) if each == side]
    return {name: [rows[i] for i in kept] for name, rows in tokens.items()}, [activations[i] for i in kept]


if __name__ == "__main__":
    action, *rest = sys.argv[1:]
    actions = {"extract": extract, "load": load, "probe": probe, "rank": rank, "whole": whole}
    print(json.dumps(actions[action](*rest)))
