"""Trains and tests the probes of many layers together: data, Trainer and results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import Examples, Sides
from probing.data.module import ActivationDataModule, layer_moments
from probing.errors import UserError
from probing.probes.descent import Descent
from probing.probes.full_passes import FullPasses
from probing.probes.linear import LinearProbe
from probing.probes.metrics import ProbeMetrics
from probing.probes.recipe import Adam, Lbfgs, Training
from probing.probes.solvers import Problem, problem_of_layer
from probing.runtime.machine import drop_garbage
from probing.runtime.processes import interrupts_pass
from probing.runtime.progress import solutions_counted
from probing.runtime.trainer import build_trainer
from probing.statistics.moments import Moments

# Most passes; a problem that is not solved by then is reported as not converged.
MAX_PASSES = 1000
# Most epochs of Adam.
MAX_EPOCHS = 100


@dataclass(frozen=True)
class LayerFit:
    """The probe of one layer.

    Args:
        layer: Layer number, or the index of a view of a layer.
        weight: Weights on raw hidden states, shape (n_classes, d_model), float32.
        moments: Moments of the layer's training tokens.
        objective: Cross-entropy plus penalty on the training tokens, in nats.
        train_cross_entropy: Cross-entropy on the training tokens, in nats.
        optimality_gap: Upper bound on the objective's distance to its minimum, in nats.
        converged: Whether the gap is within the tolerance, which it seldom is with Adam, or the problem's readout is
            near enough to its value at the optimum.
        n_passes: Number of passes over the training tokens.
        metrics: Metrics on the test tokens, by name.
        correct_by_sentence: Number of test tokens predicted rightly, for each sentence of the test corpus; empty if the
            probe was not tested.
        cross_entropy_by_sentence: Cross-entropy summed over the test tokens of each sentence, in nats; empty likewise.
        shift: Estimated distance of the problem's readout from its value at the optimum; NaN without a readout.
        intercept: Logit of each class where all neurons have their mean, shape (n_classes,); None for a probe without
            an intercept, whose weights may be of neurons and a constant.
    """

    layer: int
    weight: Tensor
    moments: Moments
    objective: float
    train_cross_entropy: float
    optimality_gap: float
    converged: bool
    n_passes: int
    metrics: Mapping[str, float]
    correct_by_sentence: NDArray[np.int64]
    cross_entropy_by_sentence: NDArray[np.float64]
    shift: float = math.nan
    intercept: Tensor | None = None


def train_probes(
    sides: Sides,
    layers: Sequence[int],
    training: Training,
    what: str = "probes",
    logger: Any = None,
    folder: str | None = None,
    moments: Sequence[Moments] | None = None,
    starts: Sequence[Tensor] | None = None,
) -> list[LayerFit]:
    """Train one probe per layer, all in one stack, and test them.

    Args:
        sides: Examples and their classes.
        layers: Layer numbers.
        training: Settings of the training.
        what: Name of these probes, which is shown.
        logger: Lightning logger for the training curves.
        folder: Folder for Lightning's files, such as checkpoints if they are enabled.
        moments: Moments of each layer's training tokens, if already known.
        starts: Initial weights of L-BFGS on raw hidden states, for each layer. Adam always starts from 0, as published
            probes do.
    """
    moments = moments or layer_moments(sides.train, layers)
    begins = starts if starts and isinstance(training.solver, Lbfgs) else [None] * len(layers)
    problems = [problem_of_layer(layer, i, training.penalty, begins[i]) for i, layer in enumerate(layers)]
    data = ActivationDataModule(sides, layers)
    if isinstance(training.solver, Lbfgs):
        probe, fitting = solved, _ = _solve(problems, data, moments, training, what, logger, folder)
    else:
        probe, fitting = _descend(problems, data, moments, training, training.solver, what, logger, folder)
        # Measure Adam's distance from the optimum by continuing to the optimum from Adam's last point.
        problems = [replace(p, start=weight.cpu()) for p, weight in zip(problems, probe.weight, strict=True)]
        solved, _ = _solve(problems, data, moments, training.for_measuring(), what)
    if fitting.checkpoint_callback is not None:  # Lightning's own checkpoints lack the final weights
        fitting.save_checkpoint(Path(fitting.default_root_dir) / "checkpoints" / "probe.ckpt", weights_only=True)
    with interrupts_pass():
        fitting.test(probe, datamodule=data, verbose=False)
    fits = [_layer_fit(layer, i, probe, solved, moments[i], fitting.current_epoch) for i, layer in enumerate(layers)]
    if not all(math.isfinite(fit.optimality_gap) for fit in fits):
        raise _diverged(training)
    return fits


def train_variants(
    sides: Sides,
    layers: Sequence[int],
    fits: Sequence[LayerFit],
    problems: Sequence[Problem],
    training: Training,
    what: str = "probes",
    test: bool = False,
) -> list[LayerFit]:
    """Train variants of finished probes by `train_problems`: on other sentences, with another penalty or fewer neurons.

    A problem without a start of its own begins from the finished probe of its layer in `fits`.
    """
    started = [p if p.start is not None else replace(p, start=fits[p.layer_index].weight) for p in problems]
    moments = [fit.moments for fit in fits]
    return train_problems(sides, layers, moments, started, training.for_measuring(), what, test)


def train_problems(
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    problems: Sequence[Problem],
    training: Training,
    what: str = "probes",
    test: bool = False,
) -> list[LayerFit]:
    """Train problems in one stack, by full passes.

    Args:
        sides: Examples and their classes.
        layers: Layer numbers.
        moments: Moments of each layer's training tokens.
        problems: The problems, each with its layer, penalty and start.
        training: Settings of the training; these problems are always solved by full passes, to its tolerance.
        what: Name of these probes, which is shown.
        test: Whether to test the probes; otherwise their metrics are empty.

    Returns:
        The probe of each problem.
    """
    data = ActivationDataModule(sides, layers)
    probe, trainer = _solve(problems, data, moments, training, what)
    if test:
        with interrupts_pass():
            trainer.test(probe, datamodule=data, verbose=False)
    return [
        _layer_fit(layers[p.layer_index], i, probe, probe, moments[p.layer_index], trainer.current_epoch)
        for i, p in enumerate(problems)
    ]


class ValidatedIfLogged(pl.Callback):
    """Leaves out validation where nobody sees its curve: the optimum does not depend on it."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Ask the first rank, the only one with a logger, so that all ranks do the same."""
        if stage == "fit" and not trainer.strategy.broadcast(bool(trainer.loggers)):
            trainer.limit_val_batches = 0


def _solve(
    problems: Sequence[Problem],
    data: ActivationDataModule,
    moments: Sequence[Moments],
    training: Training,
    what: str,
    logger: Any = None,
    folder: str | None = None,
) -> tuple[LinearProbe, pl.Trainer]:
    """Train a stack of problems to their tolerance by full passes.

    Raises:
        UserError: If training ended before the first pass over the tokens.
    """
    stack = _stack(data, problems, moments, training)
    probe = LinearProbe(**stack, tolerance=training.solver.tolerance)
    options = {"max_epochs": MAX_PASSES, **training.trainer}
    if not data.sides.validation.n_tokens:
        options["limit_val_batches"] = 0
    callbacks = [solutions_counted(what), *training.callbacks(what), ValidatedIfLogged()]
    trainer = build_trainer(options, logger, callbacks, folder)
    with interrupts_pass():
        trainer.fit(probe, datamodule=data)
    solutions = cast(FullPasses, probe.rule).solutions.values()
    if not solutions or not all(solution.n_passes for solution in solutions):
        raise UserError(
            "`--trainer.max_epochs` or `--trainer.max_time` ended the training before its first pass over the tokens; "
            "allow more."
        )
    return probe, trainer


def _descend(
    problems: Sequence[Problem],
    data: ActivationDataModule,
    moments: Sequence[Moments],
    training: Training,
    adam: Adam,
    what: str,
    logger: Any,
    folder: str | None,
) -> tuple[LinearProbe, pl.Trainer]:
    """Train a stack of problems by Adam.

    Raises:
        UserError: If the weights became infinite.
    """
    stack = _stack(data, problems, moments, training)
    probe = LinearProbe(**stack, solver="adam", learning_rate=adam.learning_rate, patience=adam.patience)
    callbacks = [solutions_counted(what), *training.callbacks(what)]
    trainer = build_trainer({"max_epochs": MAX_EPOCHS, **training.trainer}, logger, callbacks, folder)
    with interrupts_pass():
        trainer.fit(probe, datamodule=ActivationDataModule(data.sides, data.layers, adam.batch_size, adam.seed))
    if not torch.isfinite(probe.scaled_weight).all():
        raise _diverged(training)
    return probe, trainer


def _stack(
    data: ActivationDataModule, problems: Sequence[Problem], moments: Sequence[Moments], training: Training
) -> dict[str, Any]:
    """Return the arguments that all stacks of probes share."""
    return {
        "d_model": data.d_model,
        "classes": data.classes,
        "layers": data.layers,
        "ordinal": data.sides.ordinal,
        "l1": training.penalty.l1,
        "l2": training.penalty.l2,
        "penalty_space": training.penalty_space,
        "problems": problems,
        "moments": moments,
    }


def train_controls(
    controls: Mapping[str, Sequence[Sides]],
    layers: Sequence[int],
    training: Training,
    train: Examples | None = None,
    known: Sequence[Moments] | None = None,
) -> dict[str, list[list[LayerFit]]]:
    """Train the same probes on the examples of controls; the control `token` has a single probe for all layers.

    Args:
        controls: Examples of each control, for the same tokens; several if there are several draws of labels.
        layers: Layer numbers.
        training: Settings with which the probes were trained.
        train: Training examples of these probes, if their moments are known.
        known: Moments of each layer's training examples; they are those of a control that reads the same activations.

    Returns:
        For each control, the probes of every draw.
    """
    found: dict[str, list[list[LayerFit]]] = {}
    for name, draws in controls.items():
        own = layers[:1] if name == "token" else layers
        moments = known if train and draws and draws[0].train.reads_as(train) else None
        for sides in draws:
            drop_garbage()  # the stack that was trained before
            fits = train_probes(sides, own, training.for_controls(), name, moments=moments)
            found.setdefault(name, []).append(fits)
            moments = [fit.moments for fit in found[name][0]]  # draws have the same activations
    return found


def _diverged(training: Training) -> UserError:
    precision = ", or leave out `--trainer.precision`" if "precision" in training.trainer else ""
    if isinstance(training.solver, Lbfgs):
        return UserError(f"`--probe.l2 {training.penalty.l2}`: the training diverged; raise it{precision}.")
    rate = training.solver.learning_rate
    return UserError(f"`--probe.learning_rate {rate}`: the training diverged; lower it{precision}.")


def _layer_fit(
    layer: int, i: int, probe: LinearProbe, solved: LinearProbe, moments: Moments, n_epochs: int
) -> LayerFit:
    """Return the probe of one problem.

    Args:
        layer: Layer number.
        i: Index of the problem.
        probe: The stack, tested or not.
        solved: The stack, continued to its optimum if it was trained by adam.
        moments: Moments of the layer's training tokens.
        n_epochs: Number of epochs of adam.
    """
    passes = cast(FullPasses, solved.rule)
    solution, metrics = passes.solutions[i], cast(ProbeMetrics, probe.metrics[i]) if len(probe.metrics) else None
    is_adam = probe is not solved
    objective = passes.first_objectives[i] if is_adam else solution.objective
    penalty = probe.problems[i].penalty(probe.scaled_weight.data[i])
    gap = objective - solution.objective + solution.optimality_gap + _rounding(probe.weight[i], moments)
    return LayerFit(
        layer=layer,
        weight=probe.weight[i].float().cpu(),
        moments=moments,
        objective=objective,
        train_cross_entropy=objective - penalty,
        optimality_gap=gap,
        converged=gap <= passes.tolerance if is_adam else solution.converged,
        n_passes=n_epochs if is_adam else solution.n_passes,
        metrics=(metrics.compute() if metrics else {}) | _validated(probe, i),
        correct_by_sentence=metrics.by_sentence("correct") if metrics else np.zeros(0, dtype=np.int64),
        cross_entropy_by_sentence=metrics.by_sentence("cross_entropy") if metrics else np.zeros(0),
        shift=solution.shift,
    )


def _rounding(weight: Tensor, moments: Moments) -> float:
    """Return the most, in nats, by which rounding a weight of float64 to float32 raises the objective at its optimum.

    The curvature of the cross-entropy in the logits is at most 1/2, so that it is a quarter of the mean square of what
    the logits change by.
    """
    lost = (weight - weight.float()).double().cpu()
    return float(((lost @ moments.second_moment) * lost).sum()) / 4


def _validated(probe: LinearProbe, i: int) -> dict[str, float]:
    """Return the validation cross-entropy of adam's best weights, if there was a validation epoch."""
    value = probe.rule.best_cross_entropy[i] if isinstance(probe.rule, Descent) else math.inf
    return {"validation_cross_entropy": value} if math.isfinite(value) else {}
