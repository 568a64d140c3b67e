"""The processes of a job, called ranks: which one this is, what they do together, and that none outlives the others."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from probing.errors import RunError, UserError

if TYPE_CHECKING:
    from torch import Tensor

# Set by torchrun, by Lightning's launcher and by SLURM, in the order in which Lightning reads them.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
# What Lightning's launcher looks after its processes with; it says on this logger that one has ended.
_LAUNCHER = "lightning_fabric.strategies.launchers.subprocess_script"
# How errors of gloo, NCCL and their store begin where another rank has gone.
_LOST = re.compile(r"gloo|nccl|connection (reset|closed|was closed)|broken pipe|tcpstore", re.IGNORECASE)

KEPT = "what was cached is kept: run the same command again"


def is_main_process() -> bool:
    """Whether this process writes results and speaks: true for rank 0 and where there are no ranks."""
    rank = next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")
    return rank == "0" and os.environ.get("NODE_RANK", "0") == "0"


# --- how ranks come about ---


def launched() -> dict[str, Any]:
    """Return the Trainer's options that join the processes which torchrun or srun started; none for one process.

    Raises:
        UserError: If srun does not say how many of them are on a host.
    """
    variables = os.environ
    if "TORCHELASTIC_RUN_ID" in variables:
        here, n = int(variables["LOCAL_WORLD_SIZE"]), int(variables["WORLD_SIZE"])
        nodes = n // here
    elif "SLURM_NTASKS" in variables and variables.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        n = int(variables["SLURM_NTASKS"])
        if n > 1 and "SLURM_NTASKS_PER_NODE" not in variables:
            raise UserError(f"srun started {n} processes without `--ntasks-per-node`; give it to sbatch or srun.")
        here, nodes = int(variables.get("SLURM_NTASKS_PER_NODE", 1)), int(variables.get("SLURM_NNODES", 1))
    else:
        return {}
    return {"devices": here, "num_nodes": nodes, "strategy": "ddp"} if n > 1 else {}


def refuse_several(command: str) -> None:
    """Refuse to run where torchrun or srun started several processes.

    Args:
        command: Its name.

    Raises:
        UserError: If there are several.
    """
    if launched():
        raise UserError(
            f"`{command}` runs in one process, and torchrun or srun started several; start it by itself "
            "(`extract` and `fit` run in several)."
        )


# --- what ranks do together ---


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, (0, 1) until a Trainer has brought them together."""
    if not _is_together():
        return 0, 1
    from torch import distributed

    return distributed.get_rank(), distributed.get_world_size()


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum over all ranks, the same bits on each; alone, the tensor itself.

    All ranks must call it, in the same order.
    """
    if rank_and_world_size()[1] == 1:
        return tensor
    from torch import distributed

    on_device = distributed.get_backend() == "nccl"  # which knows no other tensors
    total = tensor.cuda() if on_device else tensor.clone()
    distributed.all_reduce(total)
    return total.to(tensor.device)


def _is_together() -> bool:
    if "torch.distributed" not in sys.modules:
        return False
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


# --- how ranks end ---

_launchers: list[Any] = []  # of Lightning, those that may have started processes


def end_with_parent() -> None:
    """End this process, if a launcher started it as a rank of a job, soon after the launcher has ended.

    A rank in the middle of its share would otherwise go on, for hours, for nobody.
    """
    # Those whose parent is a launcher: Lightning's own, which is itself of local rank 0, or torchrun.
    if "TORCHELASTIC_RUN_ID" not in os.environ and os.environ.get("LOCAL_RANK", "0") == "0":
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        _say(f"the process that started this job has gone without a word, so all of it ends; {KEPT}")
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def end_together(trainer: Any) -> None:
    """Have the first rank say which other one has ended badly, and all of them part at the end.

    Lightning's launcher looks after the processes that it started: where one has ended badly, it kills the others
    within seconds, the first one too, which without this would go without a word.

    Args:
        trainer: About to run.
    """
    logger = logging.getLogger(_LAUNCHER)
    if trainer.world_size == 1:
        return
    _launchers[:] = [launcher for launcher in _launchers if launcher.procs]
    if hasattr(trainer.strategy.launcher, "procs"):
        _launchers.append(trainer.strategy.launcher)
    if any(isinstance(handler, _EndedRanks) for handler in logger.handlers):
        return
    logger.addHandler(_EndedRanks())
    logger.setLevel(logging.INFO)
    logger.propagate = False
    atexit.register(_leave_process_group)


class _EndedRanks(logging.Handler):
    """Says in our words what Lightning's launcher notes about a process that ended."""

    spoken = False

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"rank: (\d+)\].*terminated with code (-?\d+)", record.getMessage())
        if found is None or _EndedRanks.spoken:
            return
        rank, code = map(int, found.groups())
        how = f"was killed by signal {-code}" if code < 0 else f"failed with status {code}"
        _say(f"process {rank} of this job {how}, so all of it ends; {KEPT}")


def lost_rank(error: BaseException) -> RunError | None:
    """Return what to say of an error that only means that another rank has gone, None for any other error."""
    if not _is_together() or not isinstance(error, RuntimeError) or not _LOST.search(str(error)):
        return None
    _EndedRanks.spoken = True
    return RunError(f"another process of this job ended before its work was done; {KEPT}")


def end_others() -> None:
    """End the processes that this one had started, where it fails."""
    for launcher in _launchers:
        for process in launcher.procs:
            process.kill()


def wait_for_first_rank() -> None:
    """Give the first rank, on any other one, time to say what all of them have met, and to end them."""
    if not is_main_process():
        time.sleep(8)  # longer than the launcher takes to look


def _say(message: str) -> None:
    print(f"probing: {message}", file=sys.stderr, flush=True)


def _leave_process_group() -> None:
    # Gloo's threads may outlive the interpreter, which then aborts: a job that was done would seem to have failed.
    if _is_together():
        from torch import distributed

        distributed.destroy_process_group()
