"""The command lines of the contestants that several comparisons share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Setting, measure
from benchmarks.machine import describe

# A probe without further evidence. Its penalty is fixed because the other tools choose none. `TO_A_THOUSANDTH` is the
# distance from the optimum that the targets name.
BARE = ("--replicates", "0", "--controls", "none", "--evidence", "none", "--probe.l2", "1e-4")
TO_A_THOUSANDTH = ("--probe.tolerance", "1e-3")

# How other tools extract: contestant, action, file, and further arguments.
EXTRACTORS = {
    "NeuroX, HDF5": ("neurox_tool", "extract", "neurox.hdf5"),
    "NeuroX, HDF5, a file a layer": ("neurox_tool", "extract", "neurox_layers.hdf5", "layers"),
    "transformers, a sentence at a time, torch.save": ("loops", "sentences", "sentences.pt"),
    "transformers, padded batches of 32, h5py": ("loops", "batches", "batches.hdf5"),
}


def ours(*args: str | Path) -> list[str]:
    """Return the command line of `benchmarks.contestants.ours`."""
    return [sys.executable, "-m", "benchmarks.contestants.ours", *map(str, args)]


def stages(*args: str | Path | int) -> list[str]:
    """Return the command line of `benchmarks.contestants.stages`."""
    return [sys.executable, "-m", "benchmarks.contestants.stages", *map(str, args)]


def peer(python: str, name: str, *args: str | Path) -> list[str]:
    """Return the command line of another contestant, in the peers' environment."""
    return [python, "-m", f"benchmarks.contestants.{name}", *map(str, args)]


def extract(setting: Setting, corpus: Path, cache: Path, *more: str) -> list[str]:
    """Return the command line that fills a cache with activations."""
    options = ("--model", setting.model, "--corpus", str(corpus), "--cache", str(cache), "--quiet", *more)
    return ours("command", "extract", *options)


def in_folder(
    folder: Path, name: str, command: str, args: Sequence[str], threads: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Run a command of this project that writes the run FOLDER/runs/NAME; return what it took, and the machine.

    Args:
        folder: Folder of the runs, and of the cache that they share.
        name: Name of the run.
        command: The command, such as `fit`.
        args: Its arguments.
        threads: Number of threads.
    """
    context = describe(threads)
    print(f"{name}: probing {command} {' '.join(args)}", flush=True)
    places = ("--cache", folder / "cache", "--runs", folder / "runs")
    options = (*args, *places, "--name", name, "--quiet", "--wandb.mode", "disabled")
    return measure(ours("plain", command, *options), threads), context


def extract_by(name: str, python: str, model: str, corpus: Path, folder: Path) -> list[str]:
    """Return the command line with which another tool extracts into a file of the folder.

    Args:
        name: Name of the tool, a key of `EXTRACTORS`.
        python: The peers' interpreter.
        model: Folder of the model.
        corpus: The text file.
        folder: Folder for the answer.
    """
    tool, action, file, *more = EXTRACTORS[name]
    return peer(python, tool, action, model, corpus, folder / file, *more)


def fit_args(setting: Setting, corpus: Path, cache: Path | str, runs: Path | str, *more: str) -> list[str]:
    """Return the arguments of a `fit` that writes the run RUNS/run."""
    folders = ("--cache", str(cache), "--runs", str(runs), "--name", "run")
    options = ("--model", setting.model, "--corpus", str(corpus), *folders, "--quiet", "--wandb.mode", "disabled")
    return ["fit", *options, *more]


def fit(setting: Setting, corpus: Path, cache: Path | str, runs: Path | str, *more: str) -> list[str]:
    """Return the command line of a `fit` that writes the run RUNS/run."""
    return ours("command", *fit_args(setting, corpus, cache, runs, *more))


def prepare(setting: Setting, command: list[str]) -> dict[str, Any]:
    """Run a preparation of the contestants, which is not timed."""
    return measure(command, setting.threads)


def entry(cache: Path) -> Path:
    """Return the folder of a cache's only entry."""
    (found,) = (path.parent for path in cache.glob("*/manifest.jsonl"))
    return found


def accuracies(runs: Path) -> dict[int, float]:
    """Return the accuracy of each layer of the run in RUNS/run."""
    layers = json.loads((runs / "run" / "results.json").read_text(encoding="utf-8"))["layers"]
    return {row["layer"]: row["accuracy"] for row in layers}


def model_folder(model: str) -> str:
    """Return the folder of a model, which other tools take instead of a name."""
    from probing.models import resolve_model

    return str(resolve_model(model).folder)
