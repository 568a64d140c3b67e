"""Log a run to Weights & Biases without ever depending on it.

The only room that imports wandb, and not before a run is tracked. The files of a run are complete before anything here
is told about them, so whatever W&B does (no network, a dead server, a full quota) ends in one warning. Measured with
wandb 0.31; comments say which habit of the client each precaution is for.
"""

from probing.tracking.mode import resolve_mode
from probing.tracking.service import one_service
from probing.tracking.tracker import Tracker

__all__ = ["Tracker", "one_service", "resolve_mode"]
