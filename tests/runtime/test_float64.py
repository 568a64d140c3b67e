"""Float64 on the device itself, or on the processor if the device has none."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from pretended_device import pretended
from probing.runtime.arithmetic import float64_device, on_float64_device, to_float64

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("name", ["cpu", "meta"])
def test_a_device_that_holds_float64_computes_it_itself(name: str) -> None:
    here = torch.ones(3, device=name)
    assert float64_device(here.device) == here.device
    assert on_float64_device(here) is here
    assert (to_float64(here).dtype, to_float64(here).device) == (torch.float64, here.device)


def test_the_processor_computes_it_for_a_device_that_has_none() -> None:
    values = torch.tensor([1 + 2**-23, 1e-30, -3.0])
    with pretended("mps"):
        there = values.to("mps")
        with pytest.raises(TypeError, match="float64"):
            there.double()
        assert float64_device(there.device) == torch.device("cpu")
        copied, wide = on_float64_device(there), to_float64(there)
    assert (type(copied), copied.dtype) == (torch.Tensor, torch.float32)
    assert type(wide) is torch.Tensor
    assert torch.equal(wide, values.double())


def test_the_fake_device_refuses_what_mps_refuses() -> None:
    with pretended("mps"):
        there = torch.ones(3, device="mps")
        for refused in (
            lambda: torch.zeros(3, dtype=torch.float64, device="mps"),
            lambda: torch.zeros(3, dtype=torch.float64).to("mps"),
            lambda: there.sum(dtype=torch.float64),
            lambda: there.to("cpu", torch.float64),  # MPS would convert before it copies
            lambda: torch.zeros(3, dtype=torch.float64).copy_(there),
            there.numpy,
        ):
            with pytest.raises(TypeError, match=r"float64|numpy"):
                refused()
        for apart in (lambda: there + torch.ones(3), lambda: torch.ones(3).index_add_(0, torch.zeros(3).long(), there)):
            with pytest.raises(RuntimeError, match="same device"):
                apart()
        assert torch.zeros(3, dtype=torch.float64).to("mps", torch.float32).device == there.device
        assert torch.equal((2 * there).cpu(), torch.full((3,), 2.0))


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_the_pretended_device_refuses_tensors_of_the_processor_where_cuda_does(name: str) -> None:
    here, rows = torch.ones(3), torch.tensor([0, 2])
    with pretended(name):
        there, scalar = here.to(name), torch.tensor(2.0)
        for apart in (
            lambda: torch.stack([there.sum(), scalar]),
            lambda: scalar.add_(there.sum()),
            lambda: here[rows.to(name)],
            lambda: here.__setitem__(rows, there[rows]),
            lambda: torch.mul(there, there, out=here),
            lambda: torch.nn.Linear(3, 1)(there),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                apart()
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, generator=torch.Generator(), device=name)
        here[:2], there[rows] = there[:2], torch.tensor(5.0)
        assert (there * scalar).tolist() == [10.0, 2.0, 10.0]


def test_a_module_that_moves_keeps_its_parameters_which_an_optimiser_holds() -> None:
    with pretended("cuda"):
        module = torch.nn.Linear(3, 1)
        held = list(module.parameters())
        module.to("cuda")
        assert all(one is other for one, other in zip(module.parameters(), held, strict=True))
        assert {one.device.type for one in held} == {deepcopy(module).weight.device.type} == {"cuda"}
        assert {one.device.type for one in module.cpu().parameters()} == {"cpu"}
