"""Probes of many layers trained and tested together: data, Trainer, and what came out."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from probing.distributed import end_together, launched, sum_over_ranks
from probing.errors import UserError, as_clause, did_you_mean, out_of_range, refuse
from probing.examples import Batch, Examples, ShardBatches, Sides, open_shard, read_share
from probing.interrupts import interrupts_pass
from probing.kept import KeptBatches
from probing.metrics import ProbeMetrics, SumBySentence
from probing.mini_batches import MiniBatches
from probing.moments import Moments, MomentsAccumulator, PenaltySpace
from probing.probe import AdamProbe, FullPassProbe, LinearProbe, Problem
from probing.solvers import Penalty

SolverName = Literal["lbfgs", "adam"]

# Passes after which a problem that is not solved is left as it is, and says so.
MAX_PASSES = 1000
# Epochs of Adam where no problem stops by itself.
MAX_EPOCHS = 100

# Arguments of Lightning's Trainer that mean something here: for both solvers, for mini-batches alone, and for
# measuring how far these stayed from the optimum.
_HONOURED = {
    "accelerator", "strategy", "devices", "num_nodes", "max_epochs", "max_time", "deterministic", "benchmark",
    "enable_progress_bar", "enable_checkpointing", "detect_anomaly",
}  # fmt: skip
_HONOURED_BY_ADAM = _HONOURED | {
    "precision", "min_epochs", "gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches",
    "limit_train_batches", "limit_val_batches", "check_val_every_n_epoch",
}  # fmt: skip
_YES_OR_NO = {"deterministic", "benchmark", "enable_progress_bar", "enable_checkpointing", "detect_anomaly"}
# Whole numbers and the least of each; -1 epochs are as many as it takes.
_AT_LEAST = {
    "max_epochs": -1, "min_epochs": 0, "limit_train_batches": 1, "limit_val_batches": 0, "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
}  # fmt: skip
# Ways in which processes work together that bring what they learnt back to the command.
STRATEGIES = ("auto", "ddp")
_FOR_MEASURING = _HONOURED - {"max_epochs", "max_time", "enable_checkpointing"}


@dataclass(frozen=True)
class Training:
    """How probes are trained.

    Args:
        penalty: On the scaled weights.
        penalty_space: By what neurons are divided where their weights are penalised.
        solver: `lbfgs` to a bound on the distance to the optimum, `adam` on mini-batches.
        tolerance: That bound, in nats.
        learning_rate: Of Adam.
        batch_size: Of Adam, in tokens.
        patience: Of Adam, in epochs.
        seed: Of Adam's batches.
    """

    penalty: Penalty
    penalty_space: PenaltySpace
    solver: SolverName
    tolerance: float
    learning_rate: float
    batch_size: int
    patience: int
    seed: int


@dataclass(frozen=True)
class LayerFit:
    """The probe of one layer.

    Args:
        layer: Layer number.
        weight: On raw hidden states, shape (n_classes, d_model), float32.
        moments: Of the layer's training tokens.
        objective: On the training tokens, in nats.
        optimality_gap: Upper bound on the objective's distance to its minimum, in nats.
        converged: Whether the gap is within the tolerance asked for; Adam's seldom is.
        n_passes: Passes over the training tokens.
        metrics: On the test tokens.
        correct_by_sentence: Test tokens rightly predicted, for each sentence of the corpus tested on.
        cross_entropy_by_sentence: Summed over the test tokens of each sentence, in nats.
    """

    layer: int
    weight: Tensor
    moments: Moments
    objective: float
    optimality_gap: float
    converged: bool
    n_passes: int
    metrics: Mapping[str, float]
    correct_by_sentence: NDArray[np.int64]
    cross_entropy_by_sentence: NDArray[np.float64]


class ProbeData(pl.LightningDataModule):
    """Examples as Lightning wants them, divided among ranks by shard.

    Args:
        sides: What is read.
        layers: Layers that are read.
        mini_batches: Batch size in tokens and seed, or None for whole shards.
    """

    def __init__(self, sides: Sides, layers: Sequence[int], mini_batches: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.sides, self.layers, self.mini_batches = sides, layers, mini_batches

    def _shards(self, examples: Examples, **how: Any) -> ShardBatches:
        trainer = cast(pl.Trainer, self.trainer)
        return ShardBatches(examples, self.layers, trainer.global_rank, trainer.world_size, **how)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return whole shards in order, or shuffled mini-batches."""
        trainer = cast(pl.Trainer, self.trainer)
        if self.mini_batches is None:
            # Whole shards are read in every pass: on a processor as they lie on disk, to an accelerator copied once, as
            # far as there is room.
            device = trainer.strategy.root_device
            if device.type == "cuda":
                return DataLoader(KeptBatches(self._shards(self.sides.train), device), batch_size=None)
            return DataLoader(self._shards(self.sides.train, read=open_shard), batch_size=None)
        ranks = trainer.global_rank, trainer.world_size
        mini_batches = MiniBatches(self.sides.train, self.layers, *self.mini_batches, *ranks)
        return DataLoader(mini_batches, batch_size=None)

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        """Return whole shards; nothing where there are no mini-batches to choose between."""
        return DataLoader(self._shards(self.sides.validation), batch_size=None) if self.mini_batches else []

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return whole shards."""
        return DataLoader(self._shards(self.sides.test), batch_size=None)


def layer_moments(train: Examples, layers: Sequence[int]) -> list[Moments]:
    """Return the moments of each layer's training tokens, in one streamed pass, divided among ranks."""
    accumulators = [MomentsAccumulator(train.store.plan.d_model) for _ in layers]
    for batch in read_share(train, layers):
        for accumulator, states in zip(accumulators, batch.hidden_states, strict=True):
            accumulator.update(states)
    for accumulator in accumulators:
        accumulator.gather(sum_over_ranks)
    return [accumulator.result() for accumulator in accumulators]


def train_probes(
    sides: Sides,
    layers: Sequence[int],
    training: Training,
    trainer_options: Mapping[str, Any],
    logger: Any = None,
    callbacks: Sequence[pl.Callback] = (),
    folder: str | None = None,
) -> list[LayerFit]:
    """Train one probe per layer, all in one stack, and test them.

    Args:
        sides: Examples and their classes.
        layers: Layer numbers.
        training: How to train.
        trainer_options: Arguments of Lightning's Trainer, checked by `check_trainer_options`.
        logger: Lightning logger for the training curves.
        callbacks: Lightning callbacks.
        folder: Where Lightning writes what it writes (checkpoints, if asked for).
    """
    moments = layer_moments(sides.train, layers)
    problems = [Problem(f"layer_{layer:02d}", i, training.penalty) for i, layer in enumerate(layers)]
    stack, data = _stack(sides, moments, training), ProbeData(sides, layers)
    probe: LinearProbe
    if training.solver == "lbfgs":
        probe = solved = FullPassProbe(problems, **stack, **_full_pass(sides, training))
        fitting = build_trainer({"max_epochs": MAX_PASSES, **trainer_options}, logger, callbacks, folder)
        with interrupts_pass():
            fitting.fit(probe, datamodule=data)
    else:
        probe = AdamProbe(problems, **stack, learning_rate=training.learning_rate, patience=training.patience)
        fitting = build_trainer({"max_epochs": MAX_EPOCHS, **trainer_options}, logger, callbacks, folder)
        with interrupts_pass():
            fitting.fit(probe, datamodule=ProbeData(sides, layers, mini_batches=(training.batch_size, training.seed)))
        if not torch.isfinite(probe.scaled_weight).all():
            raise _diverged(training, trainer_options)
        # How far Adam stayed from the optimum is measured by going there from where it stopped.
        problems = [replace(p, start=weight.cpu()) for p, weight in zip(problems, probe.weight, strict=True)]
        solved = FullPassProbe(problems, **stack, **_full_pass(sides, training))
        full = {k: v for k, v in trainer_options.items() if k in _FOR_MEASURING} | {"max_epochs": MAX_PASSES}
        with interrupts_pass():
            build_trainer(full, None, callbacks, folder).fit(solved, datamodule=data)
    _refuse_no_pass(solved)
    if fitting.checkpoint_callback is not None:  # which knows neither the solvers' last point nor Adam's best
        fitting.save_checkpoint(Path(fitting.default_root_dir) / "checkpoints" / "probe.ckpt", weights_only=True)
    with interrupts_pass():
        fitting.test(probe, datamodule=data, verbose=False)
    fits = [_layer_fit(layer, i, probe, solved, moments[i], fitting.current_epoch) for i, layer in enumerate(layers)]
    if not all(math.isfinite(fit.optimality_gap) for fit in fits):
        raise _diverged(training, trainer_options)
    return fits


def train_variants(
    sides: Sides,
    layers: Sequence[int],
    fits: Sequence[LayerFit],
    problems: Sequence[Problem],
    training: Training,
    trainer_options: Mapping[str, Any],
    callbacks: Sequence[pl.Callback] = (),
    test: bool = False,
) -> list[LayerFit]:
    """Train small changes of finished probes by `train_problems`: other sentences, another penalty, fewer neurons.

    Problems that say no other start begin from the finished probe of their layer, in `fits`.
    """
    started = [p if p.start is not None else replace(p, start=fits[p.layer].weight) for p in problems]
    # Passes that the user allowed were meant for the probe itself.
    options = {k: v for k, v in trainer_options.items() if k in _FOR_MEASURING}
    moments = [fit.moments for fit in fits]
    return train_problems(sides, layers, moments, started, training, options, callbacks, test)


def train_problems(
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    problems: Sequence[Problem],
    training: Training,
    trainer_options: Mapping[str, Any],
    callbacks: Sequence[pl.Callback] = (),
    test: bool = False,
) -> list[LayerFit]:
    """Train any problems in one stack, by full passes.

    Args:
        sides: Examples and their classes.
        layers: Layer numbers.
        moments: Of the training tokens, for each layer.
        problems: Each with its layer, penalty and start.
        training: How to train; always to a bound on the distance to the optimum.
        trainer_options: Arguments of Lightning's Trainer.
        callbacks: Lightning callbacks.
        test: Whether they are tested too; otherwise their metrics are empty.

    Returns:
        The probe of each problem.
    """
    data = ProbeData(sides, layers)
    probe = FullPassProbe(problems, **_stack(sides, moments, training), **_full_pass(sides, training))
    trainer = build_trainer({"max_epochs": MAX_PASSES, **trainer_options}, None, callbacks, None)
    with interrupts_pass():
        trainer.fit(probe, datamodule=data)
        _refuse_no_pass(probe)
        if test:
            trainer.test(probe, datamodule=data, verbose=False)
    return [
        _layer_fit(layers[p.layer], i, probe, probe, moments[p.layer], trainer.current_epoch, test)
        for i, p in enumerate(problems)
    ]


def _refuse_no_pass(probe: FullPassProbe) -> None:
    """Refuse weights that no pass over the tokens has moved.

    Raises:
        UserError: If there are any.
    """
    if not all(solution.n_passes for solution in probe.solutions.values()):
        raise UserError(
            "`--trainer.max_epochs` or `--trainer.max_time` ended the training before its first pass over the tokens; "
            "allow more."
        )


def _stack(sides: Sides, moments: Sequence[Moments], training: Training) -> dict[str, Any]:
    """Return what every stack of probes is built with."""
    return {
        "moments": moments,
        "classes": torch.from_numpy(sides.classes) if sides.ordinal else torch.arange(len(sides.classes)),
        "ordinal": sides.ordinal,
        "penalty_space": training.penalty_space,
        "n_test_sentences": sides.test.store.tokens.n_sentences,
    }


def _full_pass(sides: Sides, training: Training) -> dict[str, Any]:
    return {"n_train_tokens": sides.train.n_tokens, "tolerance": training.tolerance}


# How far from their optimum controls may be, in nats: their accuracy has settled by then, and nothing is ranked.
CONTROL_TOLERANCE = 1e-3


def roughly(training: Training) -> Training:
    """Return the same training as near to the optimum as controls need; how near Adam came is not asked."""
    tolerance = max(training.tolerance, CONTROL_TOLERANCE) if training.solver == "lbfgs" else math.inf
    return replace(training, tolerance=tolerance)


def train_controls(
    controls: Mapping[str, Sides],
    layers: Sequence[int],
    training: Training,
    trainer_options: Mapping[str, Any],
    callbacks: Callable[[str], Sequence[pl.Callback]] = lambda name: (),
) -> dict[str, list[LayerFit]]:
    """Train the same probes on other examples, to be held against; on the tokens' own rows a single one.

    Args:
        controls: By name, examples of the same tokens.
        layers: Layer numbers.
        training: How the probes were trained.
        trainer_options: Arguments of Lightning's Trainer.
        callbacks: Returns Lightning callbacks for a control.
    """
    options = {name: value for name, value in trainer_options.items() if name != "enable_checkpointing"}
    return {
        name: train_probes(
            sides, layers[:1] if name == "token" else layers, roughly(training), options, None, callbacks(name)
        )
        for name, sides in controls.items()
    }


def _diverged(training: Training, trainer_options: Mapping[str, Any]) -> UserError:
    precision = ", or leave out `--trainer.precision`" if "precision" in trainer_options else ""
    return UserError(f"`--probe.learning_rate {training.learning_rate}`: the training diverged; lower it{precision}.")


def _layer_fit(
    layer: int,
    i: int,
    probe: LinearProbe,
    solved: FullPassProbe,
    moments: Moments,
    n_epochs: int,
    tested: bool = True,
) -> LayerFit:
    solution = solved.solutions[i]
    metrics = cast(ProbeMetrics, probe.metrics[i])
    is_adam = probe is not solved
    objective = solved.first_objectives[i] if is_adam else solution.objective
    gap = objective - solution.objective + solution.optimality_gap
    return LayerFit(
        layer=layer,
        weight=probe.weight[i].float().cpu(),
        moments=moments,
        objective=objective,
        optimality_gap=gap,
        converged=gap <= solved.tolerance,
        n_passes=n_epochs if is_adam else solution.n_passes,
        metrics=(metrics.compute() if tested else {}) | _validated(probe, i),
        correct_by_sentence=_by_sentence(metrics.correct_by_sentence, tested),
        cross_entropy_by_sentence=_by_sentence(metrics.cross_entropy_by_sentence, tested),
    )


def _validated(probe: LinearProbe, i: int) -> dict[str, float]:
    """Return the cross-entropy by which Adam chose its weights, if there was anything to choose by."""
    value = probe.best_cross_entropy[i] if isinstance(probe, AdamProbe) else math.inf
    return {"validation_cross_entropy": value} if math.isfinite(value) else {}


def _by_sentence(metric: SumBySentence, tested: bool) -> NDArray[Any]:
    # Of one sentence, torchmetrics makes a number; of a metric that saw nothing, a warning.
    values: NDArray[Any] = (metric.compute() if tested else metric.total).cpu().numpy().reshape(-1)
    return values


def check_trainer_options(options: Mapping[str, Any], solver: SolverName) -> None:
    """Check the Trainer's arguments before any work.

    Raises:
        UserError: If one is unknown, cannot be honoured by the solver, or has a value that Lightning refuses.
    """
    known = set(inspect.signature(pl.Trainer).parameters)
    honoured = _HONOURED_BY_ADAM if solver == "adam" else _HONOURED
    problems = [
        f"`--trainer.{name}` is no argument of Lightning's Trainer{did_you_mean(str(name), honoured, '--trainer.')}"
        if name not in known
        else f"`--trainer.{name}` cannot be honoured by the solver {solver}"
        for name in options
        if name not in honoured
    ]
    if problems:
        problems.append(f"what can be set is {', '.join(sorted(honoured))}")
    # What Lightning would refuse or stumble over only once it trains.
    for name, least in _AT_LEAST.items():
        if (value := options.get(name)) is None:
            continue
        if isinstance(value, int) or (name.startswith("limit") and isinstance(value, float) and value.is_integer()):
            problems += out_of_range(f"trainer.{name}", value, least)
        else:
            problems.append(f"`--trainer.{name} {value}`: expected a whole number")
    if isinstance(clip := options.get("gradient_clip_val"), int | float):
        problems += out_of_range("trainer.gradient_clip_val", clip, 0)
    for name in _YES_OR_NO & set(options):
        if not (isinstance(options[name], bool) or (name == "deterministic" and options[name] == "warn")):
            problems.append(f"`--trainer.{name} {options[name]}`: expected true or false")
    if options.get("max_epochs") == 0:
        problems.append(
            "`--trainer.max_epochs 0` leaves no pass over the tokens: expected at least 1, or -1 for no limit"
        )
    if not isinstance(max_time := options.get("max_time", {}), str | Mapping | timedelta):
        problems.append(f"`--trainer.max_time {max_time}`: expected DD:HH:MM:SS")
    refuse(problems)
    refuse(_rank_problems(options))
    # One by one, so that the message names what is refused; then all, which may be at odds with one another.
    for tried in [*({name: value} for name, value in options.items()), options]:
        try:
            build_trainer(tried, logger=False, callbacks=(), folder=None)
        except Exception as error:  # Lightning raises many kinds
            typed = " ".join(f"--trainer.{name} {value}" for name, value in tried.items())
            raise UserError(f"`{typed}`: Lightning refuses it ({as_clause(error)}).") from None
    if "max_time" in options and (pl.callbacks.Timer(options["max_time"]).time_remaining() or 0) <= 0:
        raise UserError(f"`--trainer.max_time {options['max_time']}` leaves no time to train: expected DD:HH:MM:SS.")


def _rank_problems(options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with how many processes are asked for, and with how they would work together."""
    problems = []
    strategy = options.get("strategy", "auto")
    if isinstance(strategy, str) and strategy not in STRATEGIES:  # whoever gives an object knows what it does
        problems.append(f"`--trainer.strategy {strategy}`: expected {' or '.join(STRATEGIES)}")
    joined = launched()
    for name in ("devices", "num_nodes"):
        if joined and (value := options.get(name)) not in (None, "auto", -1, "-1", joined[name], str(joined[name])):
            problems.append(
                f"`--trainer.{name} {value}`: torchrun or srun started {joined['devices']} processes a host on "
                f"{joined['num_nodes']} hosts; leave the option out"
            )
    if options.get("accelerator", "auto") == "cpu" or not torch.cuda.is_available():
        n, cores = options.get("devices", 1), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        n, cores = int(n) if str(n).isdecimal() else 1, cores or os.cpu_count() or 1
        if n > max(cores, 2):
            problems.append(
                f"`--trainer.devices {n}`: on this machine {cores} cores can be used, and more processes than cores "
                "only wait for one another; give fewer"
            )
    return problems


def build_trainer(
    options: Mapping[str, Any], logger: Any, callbacks: Sequence[pl.Callback], folder: str | None
) -> pl.Trainer:
    """Return a Trainer with this project's defaults under the user's options."""
    defaults = {
        "accelerator": "gpu" if torch.cuda.is_available() else "cpu",
        "devices": 1,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    }
    trainer = pl.Trainer(
        **{**defaults, **launched(), **options},
        logger=logger or False,
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,  # shards are divided by `ShardBatches`, without repetition
    )
    end_together(trainer)
    return trainer
