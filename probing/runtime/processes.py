"""Processes (ranks) of a job: rank and world size, sums over ranks, and the end of all ranks, also by Ctrl-C."""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from probing.errors import RunError, UserError

if TYPE_CHECKING:
    from torch import Tensor

_T = TypeVar("_T")

# Set by torchrun, by Lightning's launcher and by SLURM, in the order in which Lightning reads them.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
# Logger on which Lightning's launcher reports that one of its processes has ended.
_LAUNCHER = "lightning_fabric.strategies.launchers.subprocess_script"
# Words in the errors of gloo, NCCL and their store when another rank has ended.
_LOST = re.compile(r"gloo|nccl|connection (reset|closed|was closed)|broken pipe|tcpstore", re.IGNORECASE)

KEPT = "the cached activations are kept: run the same command again"

# Whether this process computes by itself, whatever others there are; for all of its threads.
_is_alone = False


@contextmanager
def alone() -> Iterator[None]:
    """Compute in this process alone: nothing is divided among ranks, summed over them or left to rank zero."""
    global _is_alone
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


def is_main_process() -> bool:
    """Return whether this process writes results and messages: true for rank 0 and without ranks."""
    if _is_alone:
        return True
    rank = next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")
    return rank == "0" and os.environ.get("NODE_RANK", "0") == "0"


# --- starting ranks ---


def check_ranks() -> None:
    """Raise UserError if the environment names a further process of a job and no launcher started this process.

    An earlier job may have left such variables in a shell. Variables that are not whole numbers are refused too.
    """
    leftover = [f"{name}={os.environ[name]}" for name in ("WORLD_SIZE", *_RANK_VARIABLES[:2]) if name in os.environ]
    is_lightnings = "RANK" not in os.environ and "MASTER_ADDR" in os.environ
    is_launched = is_lightnings or "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_NTASKS" in os.environ
    if leftover and not is_main_process() and not is_launched:
        raise UserError(
            f"{' '.join(leftover)} in the environment means that this is a further process of a job, and no launcher "
            f"(torchrun, srun) has started it; unset {', '.join(each.partition('=')[0] for each in leftover)}."
        )
    try:
        launched()
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"the environment has variables of torchrun or SLURM of which one is missing or no number ({error}); start "
            "the job by torchrun or srun, or unset TORCHELASTIC_RUN_ID and SLURM_NTASKS."
        ) from None


def launched() -> dict[str, Any]:
    """Return the Trainer options that join processes started by torchrun or srun; empty for a single process.

    Raises UserError if srun does not set the number of processes per host.
    """
    variables = os.environ
    if _is_alone:
        return {}
    if "TORCHELASTIC_RUN_ID" in variables:
        per_node, n = int(variables["LOCAL_WORLD_SIZE"]), int(variables["WORLD_SIZE"])
        nodes = n // per_node
    elif "SLURM_NTASKS" in variables and variables.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        n = int(variables["SLURM_NTASKS"])
        if n > 1 and "SLURM_NTASKS_PER_NODE" not in variables:
            raise UserError(f"srun started {n} processes without `--ntasks-per-node`; give it to sbatch or srun.")
        per_node, nodes = int(variables.get("SLURM_NTASKS_PER_NODE", 1)), int(variables.get("SLURM_NNODES", 1))
    else:
        return {}
    return {"devices": per_node, "num_nodes": nodes, "strategy": "ddp"} if n > 1 else {}


# --- communication between ranks ---


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; (0, 1) before a Trainer has set up the process group."""
    if _is_alone or not _has_process_group():
        return 0, 1
    from torch import distributed

    return distributed.get_rank(), distributed.get_world_size()


def are_several() -> bool:
    """Return whether several processes divide the work."""
    return rank_and_world_size()[1] > 1


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks, bitwise equal on each; all ranks must call this in the same order."""
    return _all_reduce(tensor, "SUM")


def most_over_ranks(tensor: Tensor | None) -> Tensor | None:
    """Return the maximum of a tensor over all ranks; None for None. All ranks must call this in the same order."""
    return None if tensor is None else _all_reduce(tensor, "MAX")


def _all_reduce(tensor: Tensor, operation: str) -> Tensor:
    if not are_several():
        return tensor
    from torch import distributed

    on_device = distributed.get_backend() == "nccl"  # NCCL handles CUDA tensors only
    reduced = tensor.cuda() if on_device else tensor.clone()
    distributed.all_reduce(reduced, getattr(distributed.ReduceOp, operation))
    return reduced.to(tensor.device)


def run_on_rank_zero(make: Callable[[], _T]) -> _T:
    """Return on every rank the result of a function that rank zero alone calls; all ranks raise its error.

    All ranks must call this, in the same order.
    """
    rank, n = rank_and_world_size()
    if n == 1:
        with alone():
            return make()
    from torch import distributed

    value: _T | None = None
    error: Exception | None = None
    if rank == 0:
        try:
            with alone():
                value = make()
        except Exception as raised:
            error = raised
    kind = UserError if isinstance(error, UserError) else RunError
    broadcast: list[Any] = [value, error and (kind, str(error) or type(error).__name__)]
    distributed.broadcast_object_list(broadcast)
    if error is not None:
        raise error
    if broadcast[1] is not None:
        kind, message = broadcast[1]
        raise kind(message)
    value_of_first: _T = broadcast[0]
    return value_of_first


def _has_process_group() -> bool:
    if "torch.distributed" not in sys.modules:
        return False
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


# --- ending ranks ---

_launchers: list[Any] = []  # Lightning's launchers that may have started processes


def end_with_parent() -> None:
    """End this process soon after its launcher has ended; otherwise a rank would work for hours without any use."""
    # Local rank 0 has no launcher as its parent under Lightning, where it is the launcher itself; under torchrun it
    # does.
    if "TORCHELASTIC_RUN_ID" not in os.environ and os.environ.get("LOCAL_RANK", "0") == "0":
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        _say(f"the process that started this job ended unexpectedly, so all its processes end; {KEPT}")
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def end_together(trainer: Any) -> None:
    """Report a failed rank, and close the process group at exit; call this before the Trainer runs.

    Lightning's launcher kills the other processes within seconds, so that the first rank would end without a message.
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
    spoken = False

    def emit(self, record: logging.LogRecord) -> None:
        match = re.search(r"rank: (\d+)\].*terminated with code (-?\d+)", record.getMessage())
        if match is None or _EndedRanks.spoken:
            return
        rank, code = map(int, match.groups())
        how = f"was killed by signal {-code}" if code < 0 else f"failed with status {code}"
        _say(f"process {rank} of this job {how}, so all its processes end; {KEPT}")


def lost_rank(error: BaseException) -> RunError | None:
    """Return a message for an error that only shows that another rank has ended; None for any other error."""
    if not _has_process_group() or not isinstance(error, RuntimeError) or not _LOST.search(str(error)):
        return None
    _EndedRanks.spoken = True
    return RunError(f"another process of this job ended before its work was done; {KEPT}")


def end_others() -> None:
    """Kill the processes that this process has started, after it has failed."""
    for launcher in _launchers:
        for process in launcher.procs:
            process.kill()


def wait_for_first_rank() -> None:
    """Wait on all ranks but the first, so that the first can print the shared error and end the others."""
    if not is_main_process():
        time.sleep(8)  # longer than the launcher's polling interval


def _say(message: str) -> None:
    print(f"probing: {message}", file=sys.stderr, flush=True)


def _leave_process_group() -> None:
    # Gloo's threads may outlive the interpreter, which then aborts, and a finished job would seem to have failed.
    if _has_process_group():
        from torch import distributed

        distributed.destroy_process_group()


class Terminated(KeyboardInterrupt):
    """Interrupt by SIGTERM, which `kill` sends, and a batch system at the end of a job's time."""


class HungUp(Terminated):
    """Interrupt by SIGHUP, which the system sends when the terminal is closed."""


# Seconds after which a signal that arrived while an object was finalised is sent again.
AGAIN_S = 0.05
# Seconds after an interrupt in which further signals mean the same, and do not interrupt what is cleaned up.
SAME_S = 2.0
_KINDS: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
if hasattr(signal, "SIGHUP"):  # not on Windows
    _KINDS[signal.SIGHUP] = HungUp
# When a signal has interrupted this process, by the monotonic clock.
_interrupted_at = -math.inf
# The last interrupt: an exception raised while C code runs may be replaced by another exception.
_received: type[KeyboardInterrupt] | None = None
# Timer that sends such a signal again.
_again: threading.Timer | None = None


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise an exception on signals, unless ignored (`nohup`); Lightning alone would end the batch after SIGTERM."""
    global _interrupted_at
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # other threads cannot handle signals
            for number in _KINDS:
                default_handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                if signal.getsignal(number) == default_handler:
                    stack.callback(signal.signal, number, signal.signal(number, _interrupt))
                    _interrupted_at = -math.inf
        try:
            yield
        finally:
            _forget()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _received, _again, _interrupted_at
    if time.monotonic() < _interrupted_at + SAME_S:
        return
    _received = _KINDS[number]
    if _is_in_finaliser(frame):  # an exception there would be printed and lost
        _again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
        _again.daemon = True
        _again.start()
        return
    _interrupted_at = time.monotonic()
    raise _received


def _forget() -> None:
    global _received, _again
    if _again is not None:
        _again.cancel()
    _received = _again = None


def _is_in_finaliser(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt that an error is or was caused by; None without an interrupt."""
    if isinstance(error, KeyboardInterrupt):
        return error
    return _received() if _received else None


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Raise the interrupt again if Lightning's Trainer turned it into a SystemExit, whose status may be 0."""
    try:
        yield
    except SystemExit as stop:
        if isinstance(cause := stop.__context__, KeyboardInterrupt):
            raise type(cause)(*cause.args) from None
        if kind := _received:
            _forget()
            raise kind() from None
        raise
