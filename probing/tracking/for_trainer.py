"""Lightning's logger of a run with several loggers, for a Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytorch_lightning.loggers import Logger

from probing.tracking.file_loggers import LoggerRun


def in_all(wandb: Logger | None, others: Sequence[LoggerRun]) -> Logger:
    """Return a logger that passes everything on to W&B's logger, if any, and to other runs."""
    return _InAll(wandb, others)


class _InAll(Logger):
    """Logger that passes on metrics and settings; its runs end with the command, not with a training."""

    def __init__(self, wandb: Logger | None, others: Sequence[LoggerRun]) -> None:
        super().__init__()
        self._wandb, self._others = wandb, others

    @property
    def name(self) -> str | None:
        return self._wandb.name if self._wandb else ""

    @property
    def version(self) -> int | str | None:
        return self._wandb.version if self._wandb else ""

    @property
    def save_dir(self) -> str | None:
        return self._wandb.save_dir if self._wandb else None

    @property
    def experiment(self) -> Any:
        return getattr(self._wandb, "experiment", None)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if self._wandb:
            self._wandb.log_metrics(dict(metrics), step)
        for run in self._others:
            run.log_training(metrics, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        if self._wandb:
            self._wandb.log_hyperparams(params)
        for run in self._others:
            run.log_settings(dict(params))
