"""Everything a run measured, written into its folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from probing.cache.tokens import disk_errors
from probing.contributions import class_contributions
from probing.corpus import Split
from probing.examples import Examples
from probing.figures import write_figures
from probing.intervals import accuracy_interval
from probing.ranking import Evidence, neuron_table
from probing.runs import ACCURACY_COLUMNS, NEURON_COLUMNS, write_csv
from probing.tasks import Labels
from probing.training import LayerFit

_PACKAGES = (
    "neuron-probing", "torch", "pytorch-lightning", "transformers", "torchmetrics", "numpy", "safetensors", "wandb",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What a run found out.

    Args:
        sides: Examples of the train, validation and test parts.
        classes: The label of each class.
        fits: The probe of each layer.
        evidence: Of each layer, in the same order.
    """

    sides: Mapping[Split, Examples]
    classes: Labels
    fits: Sequence[LayerFit]
    evidence: Sequence[Evidence]

    def accuracy(self, seed: int) -> list[dict[str, Any]]:
        """Return a row per layer, as in `accuracy.csv`."""
        return [self._accuracy_row(fit, seed) for fit in self.fits]

    def neurons(self) -> list[dict[str, Any]]:
        """Return a row per layer and neuron in ranked order, as in `neurons.csv`."""
        pairs = zip(self.fits, self.evidence, strict=True)
        return [row for fit, evidence in pairs for row in neuron_table(fit.layer, fit.weight, evidence)]

    def _accuracy_row(self, fit: LayerFit, seed: int) -> dict[str, Any]:
        train, test = self.sides["train"], self.sides["test"]
        sentences = test.sentences()
        per_sentence = np.bincount(
            test.store.tokens.sentences[test.labels >= 0], minlength=len(fit.correct_by_sentence)
        )
        low, high = accuracy_interval(fit.correct_by_sentence[sentences], per_sentence[sentences], seed)
        majority = int(train.counts(len(self.classes)).argmax())
        return {
            "layer": fit.layer,
            **fit.metrics,
            "accuracy_low": low,
            "accuracy_high": high,
            "optimality_gap": fit.optimality_gap,
            "majority_accuracy": float(test.counts(len(self.classes))[majority] / test.n_tokens),
            "n_train_tokens": train.n_tokens,
            "n_test_tokens": test.n_tokens,
            "n_classes": len(self.classes),
        }


@dataclass(frozen=True)
class Written:
    """What `write` put into the run's folder, for the tracker to log."""

    accuracy: list[dict[str, Any]]
    neurons: list[dict[str, Any]]
    figures: list[Path]
    files: list[Path]


def write(folder: Path, config: Mapping[str, Any], measured: Measured, model_name: str) -> Written:
    """Write tables, tensors, figures and the configuration; `write_summary` adds the rest.

    Args:
        folder: The run's folder.
        config: The resolved configuration as plain values.
        measured: What the run found out.
        model_name: The model's short name, for titles.
    """
    accuracy, neurons = measured.accuracy(config["seed"]), measured.neurons()
    write_csv(folder / "accuracy.csv", accuracy, ACCURACY_COLUMNS)
    write_csv(folder / "neurons.csv", neurons, NEURON_COLUMNS)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    _write_tensors(folder, measured, config["task"], config["model"])
    figures = write_figures(folder / "figures", accuracy, neurons, config["task"], model_name)
    names = ("config.yaml", "accuracy.csv", "neurons.csv", "probe.safetensors", "contributions.safetensors")
    return Written(accuracy, neurons, figures, [folder / name for name in names])


def write_summary(folder: Path, measured: Measured, written: Written, timings: Mapping[str, float]) -> Path:
    """Write `results.json`, everything measured in one file for programs, and return its path.

    Args:
        folder: The run's folder.
        measured: What the run found out.
        written: What `write` returned.
        timings: In seconds.
    """
    cached = {
        side: {k: examples.store.header[k] for k in ("model", "revision", "corpus", "key", "versions")}
        for side, examples in measured.sides.items()
        if side != "validation"
    }
    results = {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "cache": cached,
        "classes": measured.classes.tolist(),
        "n_dropped_tokens": {side: examples.n_dropped for side, examples in measured.sides.items()},
        "n_sentences": {side: len(examples.sentences()) for side, examples in measured.sides.items()},
        "timings": dict(timings),
        "layers": [
            {**row, "converged": fit.converged, "n_passes": fit.n_passes, "objective": fit.objective}
            for row, fit in zip(written.accuracy, measured.fits, strict=True)
        ],
    }
    path = folder / "results.json"
    path.write_text(json.dumps(results, indent=2))
    return path


def _write_tensors(folder: Path, measured: Measured, task: str, model: str) -> None:
    from safetensors.torch import save_file

    metadata = {
        "layers": json.dumps([fit.layer for fit in measured.fits]),
        "classes": json.dumps(measured.classes.tolist()),
        "task": task,
        "model": model,
    }
    weight = torch.stack([fit.weight for fit in measured.fits])
    pairs = zip(measured.fits, measured.evidence, strict=True)
    contribution = torch.stack([class_contributions(fit.weight, e.magnitudes).float() for fit, e in pairs])
    with disk_errors():
        save_file({"weight": weight}, folder / "probe.safetensors", metadata)
        save_file({"contribution": contribution}, folder / "contributions.safetensors", metadata)
