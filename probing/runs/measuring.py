"""Measurements of a run: its probes, their controls, and the evidence for their rankings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probing.cli.options import ProbeOptions
from probing.data.examples import Sides
from probing.data.module import layer_moments
from probing.evidence.neuron_profiles import extremes, predicted_classes, profile_rows
from probing.evidence.removal import PENALTIES
from probing.evidence.retraining import Retraining, strengthened
from probing.evidence.table import collect_evidence, directions_of, first_neurons
from probing.probes.training import Lbfgs, online_code, penalised, train_controls, train_probes
from probing.probes.transforms import moments_with_constant, of_neurons, with_constant
from probing.rankings.bases import basis_rows, feature_store
from probing.rankings.evaluation import head_rows
from probing.rankings.methods import control_task_shares, mean_contribution
from probing.results.schema import count, layers_named
from probing.runs.results import AnyMeasured, Measured, measure_numbers
from probing.runtime.machine import Stopwatch
from probing.runtime.progress import counted, stage

# In the table of contexts: neurons of each layer, by rank, and tokens of each end.
N_NEURONS, N_TOKENS = 10, 5
# Random rotations, where their number is not chosen.
ROTATIONS = 20


@dataclass(frozen=True)
class Asked:
    """What is measured besides accuracy.

    Args:
        n_replicates: Number of bootstrap samples of the training sentences, 0 for none.
        retraining: Whether probes are retrained without neurons and under other penalties.
        codes: Whether the training labels are encoded online.
        transform: Transform of the activations, as in `--transform`.
        seed: Seed of every random draw.
        n_heads: Number of heads that the neurons of a layer belong to; None if they belong to none.
        extremes: Whether the first neurons are described, and the tokens looked for on which they are highest and
            lowest.
        ranking: Whether neurons are ranked, with the evidence for it; otherwise there are accuracies alone.
        n_rotations: Number of random rotations whose directions neurons are compared with, 0 for none; by default
            `ROTATIONS` with `retraining`, otherwise none.
    """

    n_replicates: int
    retraining: bool
    codes: bool
    transform: str
    seed: int
    n_heads: int | None = None
    extremes: bool = False
    ranking: bool = True
    n_rotations: int | None = None

    @property
    def rotations(self) -> int:
        """Number of random rotations, 0 for none."""
        return ROTATIONS * self.retraining if self.n_rotations is None else self.n_rotations


def measure(
    sides: Sides,
    controls: Mapping[str, Sequence[Sides]],
    layers: Sequence[int],
    probe: ProbeOptions,
    asked: Asked,
    trainer: Mapping[str, Any],
    watch: Stopwatch,
    say: Callable[[str], None],
    logger: Any,
    folder: str | None,
) -> AnyMeasured:
    """Train the probes of a run, its controls, and the probes that give evidence for its rankings.

    Args:
        sides: Examples and their classes.
        controls: Examples of each control, by name and draw.
        layers: Layer numbers.
        probe: How probes are trained.
        asked: What is measured besides accuracy.
        trainer: Arguments of Lightning's Trainer.
        watch: Stopwatch that records how long the stages take.
        say: Function that takes one-line messages.
        logger: Lightning logger for the training curves of the run's own probes.
        folder: Folder for Lightning's own files; None on other ranks than the first.
    """
    measured: AnyMeasured
    if sides.numbers:
        measured = measure_numbers(
            sides, controls, layers, probe, asked.n_replicates, asked.retraining, asked.transform, asked.seed,
            asked.n_heads, watch, asked.ranking, asked.rotations,
        )  # fmt: skip
    else:
        measured = _measure_classes(sides, controls, layers, probe, asked, trainer, watch, say, logger, folder)
    if asked.extremes:
        with counted("tokens on which neurons are highest and lowest", None):
            first = first_neurons(measured.fits, measured.evidence, N_NEURONS)
            found = extremes(sides.test, first, N_TOKENS)
            measured = replace(measured, extremes=found, profiles=profile_rows(sides.test, first))
    watch.end("evidence")
    return measured


def _measure_classes(
    sides: Sides, controls: Mapping[str, Sequence[Sides]], layers: Sequence[int], probe: ProbeOptions, asked: Asked,
    trainer: Mapping[str, Any], watch: Stopwatch, say: Callable[[str], None], logger: Any,
    folder: str | None,
) -> Measured:  # fmt: skip
    """Measure probes that predict classes; the arguments are those of `measure`."""
    with stage(f"probes of {layers_named(layers)}"):
        moments = of_read = layer_moments(sides.train, layers)
        read, read_controls = sides, controls  # what probes read: the neurons, and the constant beside an intercept
        if probe.bias:
            read, read_controls = with_constant(sides, controls)
            of_read = [moments_with_constant(of_layer) for of_layer in moments]
        path, training = penalised(probe, asked.seed, read, layers, of_read, trainer)
        starts = path.weights if path else None
        trained = train_probes(read, layers, training, logger=logger, folder=folder, moments=of_read, starts=starts)
        watch.end("probe")
    held_against = {}
    if controls:
        with stage(f"probes of {count(len(controls), 'control')}"):
            held_against = train_controls(read_controls, layers, training, read.train, of_read)
    codes: Any = ()
    if asked.codes:
        with stage("codes of the labels"):
            codes = online_code(read, layers, training, asked.seed)
    if not asked.ranking:
        penalty = path.summary() if path else {"l2": probe.l2}
        return Measured(sides, trained, (), held_against, codes=codes, penalty=penalty, transform=asked.transform)
    with stage("evidence for the ranking"):
        evidence = collect_evidence(sides.train, sides.test, layers, moments, len(sides.classes))
        fits = [of_neurons(fit) for fit in trained] if probe.bias else trained
        if draws := controls.get("control_task"):
            of_draws = held_against["control_task"]
            if probe.bias:
                of_draws = [[of_neurons(fit) for fit in of_layers] for of_layers in of_draws]
            shares = control_task_shares(draws, of_draws)
            evidence = [replace(one, control_task_share=share) for one, share in zip(evidence, shares, strict=True)]
        replicates = None
        if isinstance(training.solver, Lbfgs) and all(fit.converged for fit in fits):
            others = {name: path.starts(decades) for name, decades in PENALTIES.items()} if path else {}
            retraining = Retraining(read, layers, trained, training, asked.seed, others)
            evidence, replicates = strengthened(evidence, retraining, asked.n_replicates, asked.retraining)
            found = directions_of(fits, sides.test, probe.penalty_space, asked.rotations, asked.seed)
            evidence = [replace(one, directions=own) for one, own in zip(evidence, found, strict=True)]
        elif asked.n_replicates or asked.retraining or asked.rotations:
            say("the probes are not at their optimum, so --replicates, --evidence and --rotations are skipped")
        predicted = predicted_classes(read.test, layers, [fit.weight for fit in trained])
        pairs = zip(fits, evidence, strict=True)
        heads = () if not asked.n_heads else head_rows(
            read, trained, [mean_contribution(fit.weight, one.magnitudes) for fit, one in pairs],
            asked.n_heads, training if asked.retraining else None, asked.seed,
        )  # fmt: skip
        bases: list[dict[str, Any]] = []
        if asked.retraining and feature_store(sides.train.store) is not None:
            bases = [row for layer in layers for row in basis_rows(sides, layer, training, path is None, asked.seed)]
    return Measured(
        sides, fits, evidence, held_against, replicates, codes, path.summary() if path else {"l2": probe.l2},
        asked.transform, predicted, asked.n_heads, heads, bases=bases,
    )  # fmt: skip
