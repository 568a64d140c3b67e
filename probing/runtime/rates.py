"""How fast this machine computes, measured in a fraction of a second."""

from __future__ import annotations

import time
from collections.abc import Callable


def rate(work: Callable[[], object], amount: float, attempts: int = 3, attempt_s: float = 0.15) -> float:
    """Return the best rate over several attempts, in units of `amount` per second; work is done once before.

    Args:
        work: Does the work, and returns when it is done.
        amount: How much is done in one call.
        attempts: Number of attempts. The best of several leaves out what other programs take from the machine.
        attempt_s: Least duration of an attempt in seconds; with 0 it is a single call.
    """
    work()
    best = 0.0
    for _ in range(attempts):
        start, n = time.perf_counter(), 0
        while not n or time.perf_counter() - start < attempt_s:
            work()
            n += 1
        best = max(best, n * amount / (time.perf_counter() - start))
    return best


def undisturbed_rate(work: Callable[[], object], amount: float, device: str = "cpu") -> float:
    """Return the rate that the machine has with nothing else running, also where it is busy now.

    This is the rate of the fastest of many short calls, because few short calls are interrupted. On a processor, calls
    run in one thread, and the rate is multiplied by the number of threads, because on a busy machine threads wait for
    each other.

    Args:
        work: Work of about a millisecond, by torch.
        amount: How much is done in one call.
        device: Where the work is done, by its name in torch.
    """
    if device != "cpu":
        return rate(work, amount, attempts=40, attempt_s=0)
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return n_threads * rate(work, amount, attempts=40, attempt_s=0)
    finally:
        torch.set_num_threads(n_threads)
