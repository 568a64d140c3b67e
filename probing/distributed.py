"""Which rank of a job this process is, known before torch is imported."""

from __future__ import annotations

import os

# Set by torchrun, by Lightning's launcher and by SLURM, in the order in which Lightning reads them.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def is_main_process() -> bool:
    """Whether this process writes results and speaks: true for rank 0 and where there are no ranks."""
    rank = next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")
    return rank == "0" and os.environ.get("NODE_RANK", "0") == "0"
