"""Lightning's W&B logger, without the exceptions that W&B raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytorch_lightning.loggers import WandbLogger
    from wandb import Run

# A call of the logger.
Call = Callable[["WandbLogger"], None]


def guarded_logger(
    run: Run, note: Callable[[Call], None], attempt: Callable[[Callable[[], None]], None], **options: Any
) -> WandbLogger:
    """Return Lightning's logger for a run, which records its calls and keeps W&B's errors out of training."""
    from pytorch_lightning.loggers import WandbLogger

    class GuardedLogger(WandbLogger):
        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            self._do(lambda logger: WandbLogger.log_metrics(logger, metrics, step))

        def log_hyperparams(self, params: Any) -> None:
            self._do(lambda logger: WandbLogger.log_hyperparams(logger, params))

        def _do(self, call: Call) -> None:
            note(call)
            attempt(lambda: call(self))

    return GuardedLogger(experiment=run, id=run.id, **options)
