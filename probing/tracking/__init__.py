"""Logs a run to Weights & Biases, and to other loggers, without depending on them.

This is the only package that imports wandb, tensorboard or mlflow, and it does so only when a run is tracked. The
files of a run are complete before they are logged, so a failure of a logger (no network, a server that does not answer,
a full quota) only causes one warning. Tested with wandb 0.31; comments name the behaviour of the client that each
precaution is for.
"""

from probing.tracking.client import least, one_service, resolve_mode
from probing.tracking.tracker import Tracker

__all__ = ["Tracker", "least", "one_service", "resolve_mode"]
