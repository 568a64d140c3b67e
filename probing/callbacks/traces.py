"""What a measurement in the middle of a training leaves behind in the process: nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from probing.runtime.libraries import quiet_libraries
from probing.runtime.machine import drop_garbage, heap_set_aside
from probing.runtime.trainer import algorithms_kept

# Where torch keeps how products of float32 are rounded, one switch for each library; versions before 2.9 have none.
_SWITCHES: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))


@contextmanager
def without_traces() -> Iterator[None]:
    """Compute as a command does in a process of its own, and restore what a training goes on with, after errors too.

    That is: the random generators of Python, NumPy and torch, gradient and inference mode, autocast, the default dtype,
    torch's algorithms, precision and number of threads, the current device and the environment.
    """
    with ExitStack() as stack:
        stack.enter_context(heap_set_aside())
        stack.callback(drop_garbage)  # models and Trainers refer to each other
        for own in (_draws_kept(), algorithms_kept(), _numbers_kept(), _environment_kept(), quiet_libraries()):
            stack.enter_context(own)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _draws_kept() -> Iterator[None]:
    """Restore the random generators."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def _numbers_kept() -> Iterator[None]:
    """Compute in float32 of full precision; restore dtype, precision, number of threads and device."""
    dtype, n_threads = torch.get_default_dtype(), torch.get_num_threads()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        torch.set_default_dtype(torch.float32)
        with _full_precision():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(n_threads)
        if device is not None:
            torch.cuda.set_device(device)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply matrices of float32 as such, whatever of the two interfaces of torch the training was set up by."""
    switches = [one for one in _SWITCHES if hasattr(one, "fp32_precision")]
    before = [one.fp32_precision for one in switches]
    try:
        together: str | None = torch.get_float32_matmul_precision()
    except RuntimeError:  # some switches were set one by one, and these are all that counts
        together = None
    try:
        _set(switches, ["ieee"] * len(switches), together and "highest")
        yield
    finally:
        _set(switches, before, together)


def _set(switches: Sequence[Any], values: Sequence[str], together: str | None) -> None:
    if together is not None:
        torch.set_float32_matmul_precision(together)  # which sets the others, too
    for switch, value in zip(switches, values, strict=True):
        switch.fp32_precision = value


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore the environment variables."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
