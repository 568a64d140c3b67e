"""A measurement leaves nothing in the process, whether it ends well or by an error."""

from __future__ import annotations

import gc
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from probing.callbacks.measurement import without_traces

SWITCHES: Any = torch.backends.cuda, torch.backends.mkldnn


def precision() -> tuple[str, ...]:
    return tuple(one.matmul.fp32_precision for one in SWITCHES)


def state() -> dict[str, Any]:
    """Return what a training goes on with."""
    return {
        "python": random.getstate(), "numpy": str(np.random.get_state()), "torch": torch.get_rng_state().tolist(),
        "grad": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"), "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "benchmark": torch.backends.cudnn.benchmark,
        "precision": precision(), "threads": torch.get_num_threads(), "environment": dict(os.environ),
        "warnings": list(warnings.filters), "frozen": gc.get_freeze_count() > 0,
    }  # fmt: skip


@pytest.fixture
def training() -> Iterator[None]:
    """A process as trainings set it up, which differs in everything from one that was just started."""
    before = precision()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.bfloat16)
    with torch.random.fork_rng(), torch.autocast("cpu"), torch.inference_mode():
        yield
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    for one, value in zip(SWITCHES, before, strict=True):
        one.matmul.fp32_precision = value
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)


def disturb() -> None:
    """Change all of it, as the core and Lightning may."""
    random.random(), np.random.random(), torch.rand(1)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_default_dtype(torch.float64)
    os.environ["SET_BY_A_LIBRARY"] = "1"
    os.environ.pop("OMP_NUM_THREADS", None)
    warnings.simplefilter("ignore")


def disturbed(error: type[BaseException] | None) -> None:
    with without_traces():
        disturb()
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_the_state_of_the_process_is_restored(training: None, error: type[BaseException] | None) -> None:
    before = state()
    with nullcontext() if error is None else pytest.raises(error):
        disturbed(error)
    assert state() == before


def test_inside_a_process_is_as_a_command_finds_it(training: None) -> None:
    with without_traces():
        weight = torch.ones(3, 3, requires_grad=True)
        (weight @ weight).sum().backward()
        assert (weight.dtype, weight.grad is not None, torch.is_inference(weight)) == (torch.float32, True, False)
        assert (weight @ weight).dtype == torch.float32  # and not autocast's
        assert torch.get_float32_matmul_precision() == "highest"
        assert precision() == ("ieee", "ieee")
    assert torch.get_float32_matmul_precision() == "medium"


def test_switches_that_were_set_one_by_one_are_restored_as_such() -> None:
    before = precision()
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with without_traces():
            assert precision() == ("ieee", "ieee")
        assert precision() == ("tf32", before[1])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before[0]
    assert torch.get_float32_matmul_precision() == "highest"
