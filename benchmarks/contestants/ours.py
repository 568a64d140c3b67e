"""This project's commands as the command line runs them, timed like the peers once the libraries are imported.

    python -m benchmarks.contestants.ours command ARGS...     one command; --cache and --runs name its folders
    python -m benchmarks.contestants.ours plain ARGS...       the same, without measures of its cache
    python -m benchmarks.contestants.ours jobs FILE.json      several in turn: {"name": [ARGS, ...], ...}
    python -m benchmarks.contestants.ours load ENTRY LAYER    reads a cache; LAYER is a number or all
    python -m benchmarks.contestants.ours export ENTRY CORPUS LAYER SEED FOLDER
    python -m benchmarks.contestants.ours weights RUN LAYER FILE.npz

In the arguments of a job `{fresh}` is an empty folder that is deleted afterwards.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants.files import forget, size


def plain(*args: str) -> dict[str, Any]:
    """Run a command and return `seconds`, and `processor_s`, which does not depend on what else the machine does."""
    from probing.__main__ import COMMANDS
    from probing.cli.commandline import run

    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        status = run(COMMANDS, args)
        seconds = time.perf_counter() - start
    if status:
        raise SystemExit(status)
    return {"seconds": seconds, "processor_s": time.process_time()}


def command(*args: str) -> dict[str, Any]:
    """Run a command and return `seconds`, the measures of its cache, and those of its `results.json`."""
    found = plain(*args)
    named = dict(itertools.pairwise(args))
    if args[0] in ("extract", "fit"):
        found |= _cached(Path(named["--cache"]))
    if args[0] == "fit":
        found |= _results(Path(named["--runs"]) / named["--name"] / "results.json")
    return found


def _cached(folder: Path) -> dict[str, Any]:
    from probing.activations.store import entries

    (entry,) = entries(folder)
    assert entry.store is not None
    lengths = entry.store.tokens.lengths.astype("int64")
    return {
        "bytes": size(entry.folder),
        "n_tokens": int(lengths.sum()),
        "token_pairs": int((lengths**2).sum()),
        "n_layers_cached": len(entry.store.layers()),
        "d_model": entry.store.plan.d_model,
    }


def _results(path: Path) -> dict[str, Any]:
    results = json.loads(path.read_text(encoding="utf-8"))
    layers = results["layers"]
    return {
        **results["timings"],
        "n_classes": len(results["classes"]),
        "n_train_tokens": layers[0]["n_train_tokens"],
        "worst_optimality_gap": max(layer["optimality_gap"] for layer in layers),
        "passes": max(layer["n_passes"] for layer in layers),
        "mean_accuracy": sum(layer["accuracy"] for layer in layers) / len(layers),
    }


def jobs(file: str) -> dict[str, Any]:
    """Run commands in turn and return their measurements, each under NAME.MEASURE."""
    found: dict[str, Any] = {}
    for name, args in json.loads(Path(file).read_text(encoding="utf-8")).items():
        fresh = tempfile.mkdtemp(dir=Path(file).parent)
        try:
            measured = command(*(arg.replace("{fresh}", fresh) for arg in args))
        finally:
            shutil.rmtree(fresh)
        found |= {f"{name}.{measure}": value for measure, value in measured.items()}
    return found


def load(entry: str, layer: str) -> dict[str, Any]:
    """Read one layer or all layers in float32; return the time and the sum of the values."""
    from probing.activations import ActivationStore

    forget(Path(entry))
    start = time.perf_counter()
    store = ActivationStore(Path(entry))
    layers = store.layers() if layer == "all" else [int(layer)]
    total = sum(float(store.read(k, s.index).float().sum()) for k in layers for s in store.plan.shards)
    return {"seconds": time.perf_counter() - start, "sum": total, "rows": store.plan.n_tokens}


def export(entry: str, corpus: str, layer: str, seed: str, folder: str) -> dict[str, Any]:
    """Write the position examples that `fit` trains and tests on, and the scale of each neuron, as .npy files."""
    import numpy as np
    from probing.builtin_tasks.position import Position

    from probing.activations import ActivationStore
    from probing.data.examples import read
    from probing.data.labelling import choose_classes, label
    from probing.data.module import layer_moments
    from probing.statistics.moments import Scaling
    from probing.text import assign_splits, load_corpus

    store, text, task = ActivationStore(Path(entry)), load_corpus(corpus), Position()
    splits = assign_splits(text.sentences, int(seed))
    classes = choose_classes(store.tokens, text, task, splits)
    for side in ("train", "test"):
        examples = label(store, text, task, splits, classes, side)  # type: ignore[arg-type]
        parts = list(read(examples, [int(layer)]))
        np.save(Path(folder) / f"X_{side}.npy", np.concatenate([part.hidden_states[0].numpy() for part in parts]))
        np.save(Path(folder) / f"y_{side}.npy", np.concatenate([part.labels.numpy() for part in parts]))
        if side == "train":
            (moments,) = layer_moments(examples, [int(layer)])
            inverse = Scaling(moments, "sd").inverse.numpy()
            np.save(Path(folder) / "dead.npy", inverse == 0)
            np.save(Path(folder) / "scale.npy", 1 / np.where(inverse == 0, 1, inverse))
    return {"n_classes": len(classes)}


def weights(run: str, layer: str, file: str) -> dict[str, Any]:
    """Write a layer's probe for raw hidden states; return its results in the run and its worst optimality gap."""
    import numpy as np
    from safetensors import safe_open

    found = json.loads((Path(run) / "results.json").read_text(encoding="utf-8"))["layers"]
    (i,) = (i for i, row in enumerate(found) if row["layer"] == int(layer))
    with safe_open(Path(run) / "probe.safetensors", framework="numpy") as stored:
        np.savez(file, weight=stored.get_tensor("weight")[i])
    return {
        "cross_entropy": found[i]["cross_entropy"],
        "worst_optimality_gap": max(row["optimality_gap"] for row in found),
    }


def main(action: str, args: Sequence[str]) -> None:
    """Import what every command needs, then run one action."""
    import pytorch_lightning
    import transformers
    from transformers import AutoModel, AutoTokenizer

    del pytorch_lightning, transformers, AutoModel, AutoTokenizer
    actions = {"command": command, "plain": plain, "jobs": jobs, "load": load, "export": export, "weights": weights}
    print(json.dumps(actions[action](*args)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
