"""Training and tests of the probes of many layers together: data, Trainer and results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import ProbeOptions
from probing.data.examples import Examples, Sides
from probing.data.module import ActivationDataModule, layer_moments
from probing.errors import UserError
from probing.probes.linear import Descent, FullPasses, LinearProbe, ProbeMetrics
from probing.probes.solvers import Penalty, Problem, problem_of_layer
from probing.runtime import drop_garbage
from probing.runtime.processes import interrupts_pass
from probing.runtime.trainer import HONOURED, CountedSolutions, build_trainer
from probing.statistics.moments import Moments, PenaltySpace, Scaling

# --------------------------------------------------------------------------------------------------------------------
# Settings of the training: penalty, solver and arguments of Lightning's Trainer.
# --------------------------------------------------------------------------------------------------------------------

# Returns Lightning callbacks for the training of the named probes, such as `bootstraps`.
Callbacks = Callable[[str], Sequence[pl.Callback]]

# Tolerance of controls, in nats. At this tolerance the third digit of their accuracy is right; at ten times this
# tolerance, accuracy was wrong by up to .0005 (on the built-in model). A stricter tolerance is not needed, because the
# neurons of controls are not ranked.
CONTROL_TOLERANCE = 1e-4
# Arguments of the Trainer that also apply to probes trained after the one requested, such as those that measure the
# distance to the optimum.
_FOR_MEASURING = HONOURED - {"max_epochs", "max_time", "enable_checkpointing"}


def no_callbacks(what: str) -> Sequence[pl.Callback]:
    """Return no callbacks."""
    return ()


@dataclass(frozen=True)
class Lbfgs:
    """L-BFGS: full passes over the training tokens until a bound on the distance to the optimum, in nats."""

    tolerance: float


@dataclass(frozen=True)
class Adam:
    """Adam on shuffled mini-batches with early stopping, as published probes are trained.

    A layer stops after `patience` epochs without a lower validation cross-entropy. L-BFGS continues from Adam's last
    point to `tolerance`, in nats, to measure its distance from the optimum, unless it is infinite.
    """

    learning_rate: float
    batch_size: int
    patience: int
    seed: int
    tolerance: float


@dataclass(frozen=True)
class Training:
    """Settings of the training.

    `penalty_space` is the scale by which neurons are divided before their weights are penalised; `trainer` has
    arguments of Lightning's Trainer; `callbacks` returns Lightning callbacks for the training of the named probes.
    """

    penalty: Penalty
    solver: Lbfgs | Adam
    penalty_space: PenaltySpace = "sd"
    trainer: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callbacks = no_callbacks

    def scaling(self, moments: Moments) -> Scaling:
        """Return the scaling of a layer's neurons, given the moments of its training tokens."""
        return Scaling(moments, self.penalty_space)

    def loosened(self, tolerance: float) -> Training:
        """Return the settings with a tolerance of at least this many nats."""
        return replace(self, solver=replace(self.solver, tolerance=max(self.solver.tolerance, tolerance)))

    def for_controls(self) -> Training:
        """Return the settings for controls, whose accuracy needs only three digits.

        Adam's distance to the optimum is not measured, and nothing is checkpointed.
        """
        trainer = {name: value for name, value in self.trainer.items() if name != "enable_checkpointing"}
        tolerance = CONTROL_TOLERANCE if isinstance(self.solver, Lbfgs) else math.inf
        return replace(self.loosened(tolerance), trainer=trainer)

    def for_measuring(self) -> Training:
        """Return the settings for probes other than the requested probes; limits on passes do not apply to them."""
        trainer = {name: value for name, value in self.trainer.items() if name in _FOR_MEASURING}
        return replace(self, trainer=trainer)


# Most passes; a problem that is not solved by then is reported as not converged.
MAX_PASSES = 1000
# Most epochs of Adam.
MAX_EPOCHS = 100


@dataclass(frozen=True)
class LayerFit:
    """The probe of a layer.

    Args:
        layer: Layer number, or the index of a view of a layer.
        weight: Weights on raw hidden states, shape (n_classes, d_model), float32.
        objective: Cross-entropy plus penalty on the training tokens, in nats.
        train_cross_entropy: Cross-entropy on the training tokens, in nats.
        optimality_gap: Upper bound on the objective's distance to its minimum, in nats.
        converged: Whether the gap is within the tolerance (rarely with Adam), or the problem's readout is near enough
            to its value at the optimum.
        n_passes: Number of passes over the training tokens.
        metrics: Metrics on the test tokens, by name.
        correct_by_sentence: Number of correct test tokens in each sentence of the test corpus; empty if not tested.
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
    """Train a probe per layer, all in one stack, and test them.

    `what` names the probes for display; `folder` is for Lightning's files, such as checkpoints. `moments` of each
    layer's training tokens are measured if None. `starts` are initial weights of L-BFGS on raw hidden states, by layer;
    Adam always starts from 0, as published probes do.
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
    """Train variants of finished probes (`fits`), from which problems without initial weights start."""
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
    """Train problems in one stack, by full passes to the tolerance of `training`; without `test`, no metrics."""
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
    """Omits validation if no logger records its curve: the optimum does not depend on it."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Decide by the rank-zero process, the only rank with a logger, so that all ranks do the same."""
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
    """Train a stack of problems to their tolerance by full passes."""
    stack = _stack(data, problems, moments, training)
    probe = LinearProbe(**stack, tolerance=training.solver.tolerance)
    options = {"max_epochs": MAX_PASSES, **training.trainer}
    if not data.sides.validation.n_tokens:
        options["limit_val_batches"] = 0
    callbacks = [CountedSolutions(what), *training.callbacks(what), ValidatedIfLogged()]
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
    """Train a stack of problems by Adam."""
    stack = _stack(data, problems, moments, training)
    probe = LinearProbe(**stack, solver="adam", learning_rate=adam.learning_rate, patience=adam.patience)
    callbacks = [CountedSolutions(what), *training.callbacks(what)]
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
    """Train the same probes on the examples of controls; return the probes of every draw, by control.

    The control `token` has a single probe for all layers. `known` moments of `train` are reused by controls that read
    the same activations; draws of a control share activations.
    """
    by_control: dict[str, list[list[LayerFit]]] = {}
    for name, draws in controls.items():
        control_layers = layers[:1] if name == "token" else layers
        moments = known if train and draws and draws[0].train.reads_as(train) else None
        for sides in draws:
            drop_garbage()  # the stack that was trained before
            fits = train_probes(sides, control_layers, training.for_controls(), name, moments=moments)
            by_control.setdefault(name, []).append(fits)
            moments = [fit.moments for fit in by_control[name][0]]  # draws have the same activations
    return by_control


def _diverged(training: Training) -> UserError:
    precision = ", or leave out `--trainer.precision`" if "precision" in training.trainer else ""
    if isinstance(training.solver, Lbfgs):
        return UserError(f"`--probe.l2 {training.penalty.l2}`: the training diverged; raise it{precision}.")
    rate = training.solver.learning_rate
    return UserError(f"`--probe.learning_rate {rate}`: the training diverged; lower it{precision}.")


def _layer_fit(
    layer: int, i: int, probe: LinearProbe, solved: LinearProbe, moments: Moments, n_epochs: int
) -> LayerFit:
    """Return the probe of a problem; `solved` is the stack `probe`, continued to its optimum after adam."""
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
    """Bound the increase of the objective at its optimum, in nats, due to rounding a float64 weight to float32.

    The curvature of the cross-entropy in the logits is at most 1/2, so the increase is at most a quarter of the mean
    square of the changes of the logits.
    """
    lost = (weight - weight.float()).double().cpu()
    return float(((lost @ moments.second_moment) * lost).sum()) / 4


def _validated(probe: LinearProbe, i: int) -> dict[str, float]:
    """Return the validation cross-entropy of adam's best weights, if there was a validation epoch."""
    value = probe.rule.best_cross_entropy[i] if isinstance(probe.rule, Descent) else math.inf
    return {"validation_cross_entropy": value} if math.isfinite(value) else {}


# --------------------------------------------------------------------------------------------------------------------
# Minimum description length of the labels given the activations: the online code (Voita & Titov 2020, section 2.2.2).
# --------------------------------------------------------------------------------------------------------------------

# Shares of the training sentences at which blocks end. The probe trained up to one encodes the block up to the next.
SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
# Base-10 exponents of the l2 penalty: of the first probe, which has hardly any data, of the weakest and of the
# strongest.
FIRST, WEAKEST, STRONGEST = -1, -8, 2


@dataclass(frozen=True)
class CodeLength:
    """Code length of the training labels given a layer's activations, in bits; uniform is n_tokens log2 n_classes."""

    layer: int
    online: float
    uniform: float

    @property
    def compression(self) -> float:
        """Length of the uniform code divided by the length of the online code."""
        return self.uniform / self.online


def prefix_sizes(n_sentences: int) -> list[int]:
    """Return the number of sentences up to the end of each block, ascending; a block has at least one sentence."""
    return sorted({max(1, round(share * n_sentences)) for share in SHARES})


def sentence_order(train: Examples, seed: int) -> NDArray[np.int32]:
    """Return the sentences with examples, in the random order of transmission."""
    return np.random.default_rng(seed).permutation(train.sentences())


def online_code(
    sides: Sides,
    layers: Sequence[int],
    training: Training,
    seed: int,
) -> list[CodeLength]:
    """Encode the training labels with each layer's activations, with the tolerance of controls.

    The l1 penalty of `training` is used for all blocks; its l2 penalty and the test side are not used.
    """
    order = sentence_order(sides.train, seed)
    ends = prefix_sizes(len(order))
    bits_per_token = math.log2(len(sides.classes))
    first = _of_sentences(sides.train, order[: ends[0]])
    bits = [first.n_tokens * bits_per_token] * len(layers)
    coders = [_Coder() for _ in layers]
    for number, (start, end) in enumerate(itertools.pairwise(ends), start=1):
        block = _of_sentences(sides.train, order[start:end])
        known = replace(sides, train=_of_sentences(sides.train, order[:start]), test=block)
        problems = [
            problem
            for i, (layer, coder) in enumerate(zip(layers, coders, strict=True))
            for problem in coder.problems(f"layer_{layer:02d}", i, training.penalty.l1)
        ]
        fits = train_problems(
            known, layers, layer_moments(known.train, layers), problems, training.for_controls().for_measuring(),
            f"{number} of {len(ends) - 1}", test=True,
        )  # fmt: skip
        for i, coder in enumerate(coders):
            tried = [fit for fit, problem in zip(fits, problems, strict=True) if problem.layer_index == i]
            bits[i] += block.n_tokens * coder.encode(tried) / math.log(2)
    uniform = sides.train.n_tokens * bits_per_token
    return [CodeLength(layer, online, uniform) for layer, online in zip(layers, bits, strict=True)]


class _Coder:
    """Chooses the penalty of a layer's next block, and the initial weights of its probes.

    The current penalty and its neighbours are tried on every block; the best is the current penalty of the next block.
    """

    def __init__(self) -> None:
        self.exponent = FIRST
        self.weights: dict[int, Tensor] = {}

    @property
    def tried(self) -> list[int]:
        """Exponents of the penalties to try, including the current penalty, strongest first."""
        return [e for e in range(self.exponent + 1, self.exponent - 2, -1) if WEAKEST <= e <= STRONGEST]

    def problems(self, name: str, layer_index: int, l1: float) -> list[Problem]:
        """Return a problem for each penalty to try, which starts from the nearest probe of the previous block."""
        starts = [self.weights[min(self.weights, key=lambda known: abs(known - e))] for e in self.tried if self.weights]
        return [
            Problem(f"{name}_{e}", layer_index, Penalty(l1, 10.0**e), starts[n] if starts else None)
            for n, e in enumerate(self.tried)
        ]

    def encode(self, fits: Sequence[LayerFit]) -> float:
        """Return the block's nats per token under the current penalty, then make the best penalty current."""
        nats = {e: fit.metrics["cross_entropy"] for e, fit in zip(self.tried, fits, strict=True)}
        self.weights = {e: fit.weight for e, fit in zip(self.tried, fits, strict=True)}
        spent = nats[self.exponent]
        self.exponent = min(nats, key=lambda e: nats[e])
        return spent


def _of_sentences(examples: Examples, sentences: NDArray[np.int32]) -> Examples:
    is_selected = np.zeros(examples.store.tokens.n_sentences, dtype=bool)
    is_selected[sentences] = True
    return replace(examples, labels=np.where(is_selected[examples.store.tokens.sentences], examples.labels, -1))


# --------------------------------------------------------------------------------------------------------------------
# The strength of the l2 penalty, chosen on validation sentences; one value, which makes layers comparable.
# --------------------------------------------------------------------------------------------------------------------

# Half decades: l2 = 10 ** (index / 2). The walk begins at 1e-2, which takes few passes, and ends at 1e-10 or 100 at the
# latest. At 1e-10 probes are hardly penalised; at 100 they hardly differ from a uniform prediction.
FIRST_PENALTY, WEAKEST_PENALTY, STRONGEST_PENALTY = -4, -20, 4
# Tolerance of probes on the path, in nats. Tolerances of 1e-2 and 1e-3 gave the same choice, with mean validation
# cross-entropies .0005 to .01 apart, while neighbours of the chosen penalty differed by .01 and more.
TOLERANCE = 3e-3
# A step that improves the mean by less than `RESOLUTION` nats ends the walk: in a layer that determines the class,
# weaker penalties keep improving by tiny amounts and need more and more passes. A step after which some probe has not
# reached its optimum in `MOST_PASSES` passes ends the walk too: with so weak a penalty the run's own probes would
# hardly converge.
RESOLUTION, MOST_PASSES = 2e-3, 60


def strength(index: int) -> float:
    """Return the l2 penalty of a grid index."""
    return float(f"{10 ** (index / 2):.3g}")


@dataclass(frozen=True)
class PenaltyPath:
    """Validation scores along a grid of penalties, descending, half a decade apart.

    `scores`, shape (n_penalties, n_layers), are the mean cross-entropy of validation tokens in nats, or R² of numbers,
    as `measure` names them. `around` has weights of each layer's probe on raw hidden states, within `TOLERANCE` of the
    optimum, at penalties up to a decade from the chosen one, by the number of half decades from it; empty for numbers.
    """

    layers: Sequence[int]
    l2: Sequence[float]
    scores: NDArray[np.float64]
    around: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    measure: Literal["cross_entropy", "r2"] = "cross_entropy"

    @property
    def _losses(self) -> NDArray[np.float64]:
        """The scores, or R² with the opposite sign: the lower, the better."""
        return self.scores if self.measure == "cross_entropy" else -self.scores

    @property
    def best(self) -> int:
        """The index of the penalty with the best mean over layers; for ties, the strongest."""
        return int(self._losses.mean(1).argmin())

    @property
    def chosen(self) -> float:
        """The chosen penalty."""
        return self.l2[self.best]

    @property
    def weights(self) -> Sequence[Tensor]:
        """Weights of each layer's probe at the chosen penalty."""
        return self.around[0]

    def starts(self, decades: int) -> Sequence[Tensor] | None:
        """Return each layer's initial weights for a penalty a decade stronger (1) or weaker (-1).

        They come from the path, extrapolated if it ended half a decade away; None if it ended at once.
        """
        if 2 * decades in self.around:
            return self.around[2 * decades]
        near = [self.around[i] for i in (decades, 0) if i in self.around]
        return [2 * last - former for last, former in zip(*near, strict=True)] if len(near) == 2 else None

    @property
    def alone(self) -> list[float]:
        """The best tried penalty of each layer separately."""
        return [self.l2[i] for i in self._losses.argmin(0)]

    def summary(self) -> dict[str, Any]:
        """Return the results of the path, as plain values for `results.json`."""
        return {
            "l2": self.chosen,
            "tried": list(self.l2),
            f"validation_{self.measure}": self.scores.mean(1).tolist(),
            f"validation_{self.measure}_by_layer": {
                str(layer): column.tolist() for layer, column in zip(self.layers, self.scores.T, strict=True)
            },
            "alone": dict(zip(map(str, self.layers), self.alone, strict=True)),
        }


def choose_penalty(
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    training: Training,
) -> PenaltyPath:
    """Select the penalty under which probes predict validation tokens best, on average over layers.

    The l1 penalty of `training` is used along the path; its l2 penalty and the test side are not used.

    Raises:
        ValueError: If there are no validation tokens.
    """
    if not sides.validation.n_tokens:
        raise ValueError("no validation tokens to choose a penalty by")
    judged = replace(sides, test=sides.validation)
    roughly = training.loosened(TOLERANCE).for_measuring()
    roughly = replace(roughly, trainer={**roughly.trainer, "max_epochs": MOST_PASSES})

    def train(l2: float, starts: Sequence[Tensor | None]) -> list[LayerFit]:
        penalty = Penalty(training.penalty.l1, l2)
        problems = [problem_of_layer(layer, i, penalty, starts[i]) for i, layer in enumerate(layers)]
        return train_problems(judged, layers, moments, problems, roughly, f"choosing the penalty: {l2:g}", test=True)

    by_index = walk(train, len(layers))
    indices = sorted(by_index, reverse=True)
    means = np.array([[fit.metrics["cross_entropy"] for fit in by_index[index]] for index in indices])
    best = indices[int(means.mean(1).argmin())]
    around = {i - best: [fit.weight for fit in fits] for i, fits in by_index.items() if abs(i - best) <= 2}
    return PenaltyPath(layers, [strength(index) for index in indices], means, around)


def walk(train: Callable[[float, Sequence[Tensor | None]], list[LayerFit]], n_layers: int) -> dict[int, list[LayerFit]]:
    """Train on the grid until a step no longer improves the mean, and return the probes by grid index.

    The walk goes towards weaker penalties first. Each probe starts from a linear extrapolation of the two previous
    probes, which takes half the passes of starting from the previous probe. If the first penalty is the best, the walk
    then goes towards stronger penalties. A step towards weaker penalties whose probes do not converge is discarded and
    ends the walk.
    """
    by_index: dict[int, list[LayerFit]] = {}

    def visit(index: int, near: Sequence[int]) -> float:
        by_index[index] = train(strength(index), _starts([by_index[i] for i in near], n_layers))
        return float(np.mean([fit.metrics["cross_entropy"] for fit in by_index[index]]))

    first = best = visit(FIRST_PENALTY, [])
    for step, end in ((-1, WEAKEST_PENALTY), (1, STRONGEST_PENALTY)):
        index, best = FIRST_PENALTY, first
        while index != end:
            index += step
            cross_entropy = visit(index, [i for i in (index - step, index - 2 * step) if i in by_index])
            if step < 0 and not all(fit.converged for fit in by_index[index]):
                del by_index[index]
                break
            if cross_entropy > best - RESOLUTION:
                break
            best = cross_entropy
        if best < first:
            break
    return by_index


def _starts(before: Sequence[Sequence[LayerFit]], n_layers: int) -> list[Tensor | None]:
    """Return initial weights: extrapolated from the last two points of the path, the last point, or None."""
    if not before:
        return [None] * n_layers
    if len(before) == 1:
        return [fit.weight for fit in before[0]]
    return [2 * last.weight - former.weight for last, former in zip(*before, strict=True)]


def training_of(
    probe: ProbeOptions,
    l2: float,
    seed: int,
    trainer: Mapping[str, Any] | None = None,
    callbacks: Callbacks = no_callbacks,
) -> Training:
    """Return the training settings; `l2` replaces the value in the options, `seed` is for Adam's mini-batches."""
    solver: Lbfgs | Adam = Lbfgs(probe.tolerance)
    if probe.solver == "adam":
        solver = Adam(probe.learning_rate, probe.batch_size, probe.patience, seed, probe.tolerance)
    return Training(Penalty(probe.l1, l2), solver, probe.penalty_space, trainer or {}, callbacks)


def penalised(
    probe: ProbeOptions,
    seed: int,
    sides: Sides,
    layers: Sequence[int],
    moments: Sequence[Moments],
    trainer: Mapping[str, Any],
) -> tuple[PenaltyPath | None, Training]:
    """Return the penalty path, if the penalty is to be chosen, and the training settings."""
    if probe.l2 != "auto":
        return None, training_of(probe, probe.l2, seed, trainer)
    training = training_of(probe, strength(FIRST_PENALTY), seed, trainer)
    path = choose_penalty(sides, layers, moments, training)
    return path, training_of(probe, path.chosen, seed, trainer)
