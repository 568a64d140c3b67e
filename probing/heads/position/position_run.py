"""A run of `fit` on position, whose rankings of neurons are compared with what position heads read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.errors import UserError
from probing.models.layers import site_of

if TYPE_CHECKING:
    from probing.runs.run import Run

# The columns of `neurons.csv` that are rankings.
RANKINGS = ("contribution", "contribution_centred", "eta_squared")


@dataclass(frozen=True)
class PositionRun:
    """What a run of `fit` says of the neurons of its layers.

    Args:
        name: Folder of the run, as the user typed it.
        layers: Its layers, ascending.
        positions: The position of each class, shape (n_classes,).
        weight: Weights of the probes, shape (n_layers, n_classes, d_model).
        scores: For each ranking that the run has, the score of each neuron, shape (n_layers, d_model).
    """

    name: str
    layers: Sequence[int]
    positions: NDArray[np.int64]
    weight: Tensor
    scores: Mapping[str, NDArray[np.float64]]

    @classmethod
    def of(cls, run: Run, key: Mapping[str, Any], model: str) -> PositionRun:
        """Take from a run what is needed, if it is a run on position of the model that is asked for.

        Args:
            run: A finished run of `fit`.
            key: The cache key of the corpus that is read, which tells the model.
            model: Its name as the user typed it.

        Raises:
            UserError: If the run is on another task, site or space, or of another model.
        """
        config, typed = run.config, f"`--run {run.folder}`"
        if config["task"] != "position":
            raise UserError(
                f"{typed} is a run on `--task {config['task']}`, and position heads are compared with a run on "
                "position; give the folder of one, as `fit` writes it."
            )
        if site_of(config) != "residual" or run.transform != "none":
            raise UserError(
                f"{typed} has `--site {site_of(config)}` and `--transform {run.transform}`, and position heads read "
                "hidden states as they are; give a run with `--site residual` and `--transform none`."
            )
        if config["probe"].get("bias"):
            raise UserError(
                f"{typed} has `--probe.bias true`, and position heads are compared with probes without an intercept; "
                "give a run without it."
            )
        own = run.results["cache"]["test"]["key"]
        if any(own.get(name) != key.get(name) for name in ("model", "random_weights_seed")):
            raise UserError(
                f"{typed} is a run of `--model {config['model']}`, and this survey is of `--model {model}`, which has "
                "other weights; give a run of the same model."
            )
        layers = [row["layer"] for row in run.accuracy]
        weight = run.weight
        scores = {}
        for name in RANKINGS:
            if all(name in row for row in run.neurons):
                scores[name] = np.zeros((len(layers), weight.shape[2]))
                for row in run.neurons:
                    scores[name][layers.index(row["layer"]), row["neuron"]] = row[name]
        return cls(str(run.folder), layers, np.array(run.results["classes"], dtype=np.int64), weight, scores)

    def of_layer(self, layer: int) -> dict[str, NDArray[np.float64]]:
        """Return the scores of one layer by ranking, each of shape (d_model,); empty if the run has no such layer."""
        if layer not in self.layers:
            return {}
        return {name: values[self.layers.index(layer)] for name, values in self.scores.items()}

    def weight_of(self, layer: int) -> Tensor:
        """Return the weights of one layer's probe, shape (n_classes, d_model)."""
        return self.weight[self.layers.index(layer)]

    def classes_of(self, positions: Tensor) -> Tensor:
        """Return the index of each position's class, shape (n,), -1 where it is none."""
        index = torch.full((int(max(self.positions.max(), int(positions.max()))) + 1,), -1, dtype=torch.int64)
        index[torch.from_numpy(self.positions)] = torch.arange(len(self.positions))
        return index[positions]
