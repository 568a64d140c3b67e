"""Probes while the Trainer of transformers trains, for which `ProbingCallback.for_trainer` makes a callback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import TrainerCallback

from probing.callbacks.measurement import before_others
from probing.errors import UserError

if TYPE_CHECKING:
    from probing.callbacks.lightning import ProbingCallback

# With which the Trainer's own numbers of an evaluation begin; the others count as those of training in its loggers.
_EVALUATION = "eval_"


class ProbesOfTrainer(TrainerCallback):
    """Measures what a `ProbingCallback` does at each evaluation of a Trainer, which logs it as its own metrics.

    The numbers are in `trainer.state.log_history`, in what `report_to` names, and in what `trainer.evaluate()` returns,
    such as `eval_probe/layer_06/accuracy`.

    Args:
        probes: What is measured.
        trainer: The Trainer.
    """

    def __init__(self, probes: ProbingCallback, trainer: Any) -> None:
        self.probes, self.trainer = probes, trainer

    @property
    def _tokenizer(self) -> Any:
        given = self.probes.tokenizer
        return getattr(self.trainer, "processing_class", None) if given is None else given

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Refuse before the training what cannot be measured; of a continued training, count its evaluations so far."""
        if getattr(args.eval_strategy, "value", args.eval_strategy) == "no":
            raise UserError(
                "`ProbingCallback` measures at evaluations, and this training has none; give TrainingArguments an "
                "`eval_strategy`, such as 'epoch'."
            )
        self._check_parts(args)
        handler = self.trainer.callback_handler
        handler.callbacks = before_others(handler.callbacks, ProbesOfTrainer)
        self.probes.n_validations = len({row["step"] for row in state.log_history if any(map(_is_duration, row))})
        self.probes.prepare(self.trainer.model, self._tokenizer, args.device)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **others: Any
    ) -> None:
        """Measure and log."""
        if not self._is_first(metrics or {}) or not self.probes.is_due():
            return
        self._check_parts(args)
        found = self.probes.measured(self.trainer.model, self._tokenizer, args.device)
        named = {f"{_EVALUATION}{name}": value for name, value in found.items()}
        if metrics is not None:
            metrics.update(named)
        self.trainer.log(dict(named))

    def _is_first(self, metrics: dict[str, float]) -> bool:
        """Whether these are metrics of the first of several sets of the evaluation, or of the only one."""
        sets = self.trainer.eval_dataset
        others = list(sets)[1:] if isinstance(sets, dict) else []
        return not any(f"{_EVALUATION}{name}_runtime" in metrics for name in others)

    def _check_parts(self, args: Any) -> None:
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise UserError(
                "`ProbingCallback`: under FSDP and DeepSpeed each process holds a part of the weights, and the model "
                "is read by one; train without them, or probe saved checkpoints by `series`."
            )


def _is_duration(metric: str) -> bool:
    """Whether a metric is how long an evaluation took, which the Trainer logs once of each set."""
    return metric.startswith(_EVALUATION) and metric.endswith("_runtime")
