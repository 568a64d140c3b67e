"""The linear probe without an intercept: all layers and penalties stacked in one parameter, trained under Lightning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from probing.data.examples import as_batch, as_batches, blocks
from probing.data.module import loader_moments
from probing.probes.descent import Descent
from probing.probes.full_passes import FullPasses
from probing.probes.metrics import ProbeMetrics
from probing.probes.objective import dtype_that_solves
from probing.probes.solvers import Penalty, Problem, problem_of_layer
from probing.runtime.arithmetic import float64_device
from probing.statistics.moments import Moments, PenaltySpace, Scaling

Stage = Literal["train", "val", "test"]


class LinearProbe(pl.LightningModule):
    """Softmax probes without an intercept, one for each layer or several, trained on activations.

    logits = hidden_states @ weight.T. The parameter holds the scaled weights U, on which the penalty acts; `weight` has
    the weights on raw hidden states.

    With the solver `lbfgs`, an epoch is one pass over the training tokens, and training stops at the optimum. A trainer
    needs no more than `max_epochs`. With `adam`, the data module should give mini-batches, and training stops
    after `patience` epochs without a lower validation cross-entropy.

    Logged are `train/layer_06/objective` and, for lbfgs, `train/layer_06/optimality_gap` in nats; and for the parts
    `val` and `test` `val/layer_06/cross_entropy`, `val/layer_06/accuracy` and the other metrics. The same names without
    the layer are means over the layers, for callbacks such as `ModelCheckpoint(monitor="val/cross_entropy")`.

    Batches are those of `ActivationDataModule`, or pairs (hidden_states, labels) of shapes (n, d_model) and (n,), as a
    `DataLoader` of a `TensorDataset` yields them; labels are then class indices.

    Args:
        d_model: Number of neurons of a layer.
        classes: The label of each class, or the number of classes.
        layers: Layer numbers, in the order of the activations in a batch.
        ordinal: Whether labels are numbers, so that distances between labels are meaningful.
        l1: Strength of the l1 penalty on the scaled weights.
        l2: Strength of the squared l2 penalty on the scaled weights, above 0.
        penalty_space: What each neuron is divided by before its weights are penalised: its standard deviation (sd), its
            root mean square (rms), or 1 (raw).
        solver: `lbfgs` trains by full passes, `adam` on mini-batches.
        tolerance: lbfgs stops when the bound on the distance to the optimum is at most this, in nats.
        learning_rate: Learning rate of adam, on the scaled weights.
        patience: With adam, a layer stops after this many epochs without a lower validation cross-entropy.
        problems: The problems to train in place of one for each layer. They are no hyperparameters.
        moments: Moments of each layer's training tokens, measured on the training batches if None.
    """

    inverse_scale: Tensor

    def __init__(
        self,
        d_model: int,
        classes: int | Sequence[int | str],
        layers: Sequence[int] = (0,),
        ordinal: bool = False,
        l1: float = 0.0,
        l2: float = 1e-3,
        penalty_space: PenaltySpace = "sd",
        solver: Literal["lbfgs", "adam"] = "lbfgs",
        tolerance: float = 3e-6,
        learning_rate: float = 1e-3,
        patience: int = 3,
        problems: Sequence[Problem] | None = None,
        moments: Sequence[Moments] | None = None,
    ) -> None:
        super().__init__()
        classes = list(range(classes)) if isinstance(classes, int) else list(classes)
        layers = list(layers)
        self.save_hyperparameters(ignore=["problems", "moments"])
        self.classes, self.layers, self.ordinal, self.penalty_space = classes, layers, ordinal, penalty_space
        own = [problem_of_layer(layer, i, Penalty(l1, l2)) for i, layer in enumerate(layers)]
        self.is_one_per_layer, self.problems = problems is None, own if problems is None else list(problems)
        self.scaled_weight = nn.Parameter(torch.zeros(len(self.problems), len(classes), d_model))
        self.register_buffer("inverse_scale", torch.ones(len(self.problems), d_model))
        self.moments: Sequence[Moments] = ()
        if moments is not None:
            self._scale_by(moments)
        self.metrics = nn.ModuleList()
        self.rule: FullPasses | Descent
        self.rule = FullPasses(self, tolerance) if solver == "lbfgs" else Descent(self, learning_rate, patience)
        self.automatic_optimization = solver == "adam"  # the solvers of full passes update the weights themselves

    def _scale_by(self, moments: Sequence[Moments]) -> None:
        """Take over the layers' moments, and set the scale of each problem's neurons and its initial weights."""
        weight, self.moments = self.weight, list(moments)
        by_layer = [Scaling(own, self.penalty_space).inverse for own in self.moments]
        for i, problem in enumerate(self.problems):
            # A neuron that may not be used gets an inverse scale of 0, like a dead one.
            inverse_scale = by_layer[problem.layer_index] * (1 if problem.neurons is None else problem.neurons)
            self.inverse_scale[i] = inverse_scale.to(self.inverse_scale)
            start = weight[i] if problem.start is None else problem.start.to(weight)
            own = self.inverse_scale[i]
            self.scaled_weight.data[i] = torch.where(own > 0, start / own, 0.0)

    @property
    def weight(self) -> Tensor:
        """Weights on raw hidden states, shape (n_problems, n_classes, d_model)."""
        return (self.scaled_weight * self.inverse_scale[:, None]).detach()

    def by_layer(self, active: Iterable[int] | None = None) -> dict[int, list[int]]:
        """Return the indices of each layer's problems; with `active`, only those among it."""
        groups: dict[int, list[int]] = {}
        for i in range(len(self.problems)) if active is None else active:
            groups.setdefault(self.problems[i].layer_index, []).append(i)
        return groups

    def forward(self, hidden_states: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return the logits of each problem, shape (n, n_classes).

        Args:
            hidden_states: Hidden states of each layer, shape (n, d_model); a single tensor stands for all layers.
        """
        states = [hidden_states] * len(self.layers) if isinstance(hidden_states, Tensor) else hidden_states
        weight = self.scaled_weight * self.inverse_scale[:, None]
        return [states[p.layer_index] @ w.T for p, w in zip(self.problems, weight, strict=True)]

    # --- training ---

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the stacked parameter, or the steps of lbfgs, one a pass."""
        return self.rule.optimizer()

    def on_train_start(self) -> None:
        """Measure the moments of the training tokens, unless they are known, choose the dtype, and begin."""
        if not self.moments:
            self._scale_by(self._measured_moments())
        if isinstance(self.rule, FullPasses):
            self._use_the_dtype_that_solves()
        self.rule.begin()

    def _use_the_dtype_that_solves(self) -> None:
        """Continue in float64 where a layer needs it and the device has it; in place, as optimisers know the tensor."""
        weakest = min(problem.penalty.l2 for problem in self.problems)
        dtype = dtype_that_solves(self.moments, weakest, cast(FullPasses, self.rule).tolerance)
        if dtype == torch.float64 and float64_device(self.device) == self.device:
            self.scaled_weight.data, self.inverse_scale = self.scaled_weight.data.double(), self.inverse_scale.double()
            self._scale_by(self.moments)

    def _measured_moments(self) -> Sequence[Moments]:
        data = getattr(self.trainer, "datamodule", None)
        known: Sequence[Moments] | None = getattr(data, "moments", None)
        return known or loader_moments(cast(Iterable[Any], self.trainer.train_dataloader), len(self.layers))

    def on_train_epoch_start(self) -> None:
        """Begin a pass."""
        self.rule.begin_epoch()

    def training_step(self, batch: Any) -> Tensor | None:
        """Add batches to the pass; return adam's loss."""
        return self.rule.step(as_batches(batch))

    def on_train_epoch_end(self) -> None:
        """End a pass and log its curves."""
        self._log("train", self.rule.end_epoch())

    def on_train_end(self) -> None:
        """Set the final weights."""
        self.rule.end()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient of each problem separately."""
        if gradient_clip_val and isinstance(self.rule, Descent):
            self.rule.clip(gradient_clip_val, by_value=gradient_clip_algorithm == "value")

    # --- evaluation ---

    def on_validation_epoch_start(self) -> None:
        """Begin a pass over the validation tokens."""
        self._begin_metrics(None)

    def validation_step(self, batch: Any) -> None:
        """Update the metrics of every problem."""
        self._update_metrics(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics; adam keeps each problem's best weights."""
        found = self._end_metrics("val")
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.rule.end_validation([metrics["cross_entropy"] for metrics in found])

    def on_test_epoch_start(self) -> None:
        """Begin a pass over the test tokens."""
        self._begin_metrics(getattr(getattr(self.trainer, "datamodule", None), "n_test_sentences", None))

    def test_step(self, batch: Any) -> None:
        """Update the metrics of every problem."""
        self._update_metrics(batch)

    def on_test_epoch_end(self) -> None:
        """Log the metrics of the test tokens."""
        self._end_metrics("test")

    def predict_step(self, batch: Any) -> Tensor:
        """Return the predicted class of each row, an index of `classes`, shape (n_problems, n)."""
        logits = self([states.to(self.scaled_weight) for states in as_batch(batch).hidden_states])
        return torch.stack([own.argmax(-1) for own in logits])

    def _begin_metrics(self, n_sentences: int | None) -> None:
        labels = torch.tensor(self.classes) if self.ordinal else torch.arange(len(self.classes))
        found = (ProbeMetrics(labels, self.ordinal, n_sentences) for _ in self.problems)
        self.metrics = nn.ModuleList(found).to(self.device)

    def _update_metrics(self, batch: Any) -> None:
        for block in blocks(as_batch(batch), self.scaled_weight.dtype):
            if len(block.labels):
                for metrics, logits in zip(self.metrics, self(block.hidden_states), strict=True):
                    cast(ProbeMetrics, metrics).update(logits.float(), block.labels, block.sentences)

    def _end_metrics(self, stage: Stage) -> list[dict[str, float]]:
        found = [cast(ProbeMetrics, metrics).compute() for metrics in self.metrics]
        pairs = zip(self.problems, found, strict=True)
        self._log(stage, {f"{stage}/{p.name}/{name}": v for p, metrics in pairs for name, v in metrics.items()})
        return found

    def _log(self, stage: Stage, values: Mapping[str, float]) -> None:
        """Log values of problems, with their means over problems, at the epoch as the step."""
        if not values or not (self.is_one_per_layer or self.trainer.loggers):
            return  # nobody reads the values of problems of our own making
        names = dict.fromkeys(name.rsplit("/", 1)[1] for name in values)
        parts = {name: [value for key, value in values.items() if key.endswith(f"/{name}")] for name in names}
        means = {f"{stage}/{name}": sum(part) / len(part) for name, part in parts.items()}
        step = {"step": float(self.current_epoch)} if stage != "test" else {}
        # The values are those of all ranks already. Ranks must not wait for one another here: only one has a logger.
        self.log_dict({**values, **means, **step})
