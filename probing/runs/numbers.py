"""Measurements of a run that predicts numbers: its ridge probes, their controls, and the evidence for rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import ProbeOptions
from probing.data.examples import Sides
from probing.evidence.neuron_profiles import Extremes
from probing.evidence.removal import with_corrected
from probing.evidence.table import (
    NumberEvidence,
    basis_table,
    collect_number_evidence,
    directions_of,
    neuron_table,
    with_number_removals,
    with_number_replicates,
)
from probing.probes.closed_forms import Decomposed, NumberFit, choose_ridge_penalty
from probing.rankings.evaluation import head_contributions
from probing.rankings.methods import class_contributions, mean_contribution
from probing.results.schema import Row, count, layers_named
from probing.runtime.machine import Stopwatch
from probing.runtime.progress import stage
from probing.statistics.intervals import ratio_interval
from probing.statistics.sample_size import size_columns
from probing.tables.columns import r2_flag


@dataclass(frozen=True)
class MeasuredNumbers:
    """The results of a run that predicts numbers, as `probing.runs.results.Measured` has those of classes.

    Args:
        sides: Examples of the train, validation and test parts.
        fits: The probe of each layer.
        evidence: The evidence of each layer, in the order of `fits`; empty if neurons are not ranked.
        controls: For each control, the probe of each layer; a single probe stands for all layers.
        replicates: Weights of the bootstrapped probes on raw hidden states, shape (n_replicates, n_layers, 1, d_model);
            None without any.
        penalty: The l2 penalty as `l2`, and how it was chosen if it was not given.
        transform: Transform of the activations, fitted on the training examples.
        n_heads: Number of heads that the neurons of a layer belong to; None if they belong to none.
        extremes: The test tokens on which the first neurons are highest and lowest, if they were looked for.
        profiles: What else describes these neurons, as in `profiles.csv`.
    """

    sides: Sides
    fits: Sequence[NumberFit]
    evidence: Sequence[NumberEvidence]
    controls: Mapping[str, Sequence[NumberFit]] = field(default_factory=dict)
    replicates: Tensor | None = None
    penalty: Mapping[str, Any] = field(default_factory=dict)
    transform: str = "none"
    n_heads: int | None = None
    extremes: Extremes | None = None
    profiles: Sequence[Row] = ()

    @property
    def heads(self) -> list[dict[str, Any]]:
        """A row per layer and head, as in `heads.csv`; empty without heads."""
        if not self.n_heads:
            return []
        pairs = zip(self.fits, self.evidence, strict=True)
        found = [(fit.layer, mean_contribution(fit.weight, one.magnitudes)) for fit, one in pairs]
        return [row for layer, own in found for row in head_contributions(layer, own, self.n_heads)]

    def tables(self) -> dict[str, Sequence[Row]]:
        """Return the rows of every table that a run of these results has, by its name."""
        accuracy, heads = self.accuracy(), self.heads
        neurons = self.neurons([row["flag"] for row in accuracy])
        basis = basis_table((fit.layer, one.directions) for fit, one in zip(self.fits, self.evidence, strict=False))
        tables = {"accuracy": accuracy, "neurons": neurons, "heads": heads, "basis": basis}
        return {name: rows for name, rows in tables.items() if rows}

    def accuracy(self) -> list[dict[str, Any]]:
        """Return a row per layer, as in `accuracy.csv`."""
        return [self._row(i) for i in range(len(self.fits))]

    def neurons(self, flags: Sequence[str]) -> list[dict[str, Any]]:
        """Return a row per layer and neuron in ranked order, as in `neurons.csv`.

        Args:
            flags: The flag of each layer in `accuracy.csv`.
        """
        rows = []
        for fit, one, flag in zip(self.fits, self.evidence, flags, strict=True):
            assert one.correlation is not None
            table = neuron_table(fit.layer, fit.weight, one, is_informative=not flag, n_heads=self.n_heads)
            for row in with_corrected(table, one.ablation_effects):
                named = {name.replace("cross_entropy_without", "r2_without"): value for name, value in row.items()}
                rows.append({**named, "correlation": float(one.correlation[row["neuron"]])})
        return rows

    def contributions(self) -> list[Tensor]:
        """Return the mean contribution of each neuron for each layer, of shape (1, d_model)."""
        return [
            class_contributions(fit.weight, one.magnitudes) for fit, one in zip(self.fits, self.evidence, strict=True)
        ]

    def _row(self, i: int) -> dict[str, Any]:
        fit, train, test = self.fits[i], self.sides.train, self.sides.test
        controls = {name: fits[i] if len(fits) > 1 else fits[0] for name, fits in self.controls.items()}
        n, sd = test.n_tokens, fit.standard.sd
        intervals = self._intervals(fit, controls)
        row: dict[str, Any] = {
            "layer": fit.layer,
            "r2": fit.r2,
            **_ends("r2", intervals["r2"]),
            "train_r2": fit.train_r2,
            "mean_absolute_error": float(fit.absolute.sum()) / n * sd,
            "root_mean_squared_error": float(np.sqrt(fit.errors.sum() / n)) * sd,
            "constant_root_mean_squared_error": float(np.sqrt(fit.deviations.sum() / n)) * sd,
            "relative_gradient": fit.relative_gradient,
            "n_train_tokens": train.n_tokens,
            "n_test_tokens": n,
        }
        row["flag"] = r2_flag(row)
        for name, control in controls.items():
            row |= {f"{name}_r2": control.r2, **_ends(f"above_{name}", intervals[name])}
        evidence = self.evidence[i] if self.evidence else None
        if evidence and (stability := evidence.stability) is not None:
            row["bootstrap_overlap"] = stability.bootstrap_overlap
        row |= size_columns(self.transform, train.n_tokens, len(train.sentences()), train.store.plan.d_model)
        return row | dict(evidence.penalty_stability if evidence else {})

    def _intervals(self, fit: NumberFit, controls: Mapping[str, NumberFit]) -> dict[str, tuple[float, float]]:
        """Return the 95% intervals of R² and of its differences to the controls, over test sentences."""
        test = self.sides.test
        tested = test.clusters(test.tokens_by_sentence()) > 0

        def r2(of: NumberFit) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            return test.clusters(of.deviations - of.errors)[tested], test.clusters(of.deviations)[tested]

        found = {name: ratio_interval(r2(fit), r2(control)) for name, control in controls.items()}
        return {"r2": ratio_interval(r2(fit)), **found}


def _ends(name: str, interval: tuple[float, float]) -> dict[str, float]:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]}


def measure_numbers(
    sides: Sides,
    controls: Mapping[str, Sequence[Sides]],
    layers: Sequence[int],
    probe: ProbeOptions,
    n_replicates: int,
    retraining: bool,
    transform: str,
    seed: int,
    n_heads: int | None,
    watch: Stopwatch,
    ranking: bool = True,
    n_rotations: int = 0,
) -> MeasuredNumbers:
    """Solve the ridge probes of a run, of its controls, and those that give evidence for its rankings.

    Args:
        sides: Examples and their numbers.
        controls: Examples of each control, by name and draw.
        layers: Layer numbers.
        probe: How probes are trained.
        n_replicates: Number of bootstrap samples of the training sentences, 0 for none.
        retraining: Whether probes are solved without neurons and under other penalties.
        transform: Transform of the activations, as in `--transform`.
        seed: Seed of every random draw.
        n_heads: Number of heads that the neurons of a layer belong to; None if they belong to none.
        watch: Stopwatch that records how long the stages take.
        ranking: Whether neurons are ranked, with the evidence for it.
        n_rotations: Number of random rotations whose directions neurons are compared with, 0 for none.
    """
    space = probe.penalty_space
    with stage(f"probes of {layers_named(layers)}"):
        found = Decomposed.of(sides, layers, space)
        penalty: dict[str, Any] = {"l2": probe.l2}
        if probe.l2 == "auto":
            penalty = choose_ridge_penalty(sides, layers, found.spectra, found.products).summary()
        l2 = float(penalty["l2"])
        fits = found.train(l2)
        watch.end("probe")
    held_against = {}
    if controls:
        with stage(f"probes of {count(len(controls), 'control')}"):
            for name, (other, *_) in controls.items():
                # Other numbers of the same examples share the decomposition.
                known = found.spectra if other.train.store is sides.train.store else None
                of_layers = layers[:1] if name == "token" else layers
                held_against[name] = Decomposed.of(other, of_layers, space, known).train(l2)
    if not ranking:
        return MeasuredNumbers(sides, fits, (), held_against, penalty=penalty, transform=transform)
    with stage("evidence for the ranking"):
        evidence, replicates = collect_number_evidence(found, fits), None
        if n_replicates:
            evidence, replicates = with_number_replicates(evidence, found, fits, l2, n_replicates, seed)
        if retraining:
            evidence = with_number_removals(evidence, sides, fits, l2, seed)
        found_directions = directions_of(fits, sides.test, space, n_rotations, seed)
        evidence = [replace(one, directions=own) for one, own in zip(evidence, found_directions, strict=True)]
    return MeasuredNumbers(sides, fits, evidence, held_against, replicates, penalty, transform, n_heads)
