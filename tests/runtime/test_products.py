"""Large products by oneDNN, and sums in float64 on the device or on the processor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import functional

from pretended_device import pretended
from probing.runtime import trainer as products
from probing.runtime.trainer import (
    LEAST,
    add_product,
    fast_linear_maps,
    float64_device,
    is_onednn_faster,
    on_float64_device,
    product,
    to_float64,
)

pytestmark = pytest.mark.numeric


@pytest.fixture
def numbers() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the products that are given to oneDNN, on any processor, without changing how they are computed."""
    found: list[int] = []

    @contextmanager
    def counted() -> Iterator[None]:
        found.append(1)
        yield

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found.append(1)
        return functional.linear(x, weight, bias)

    monkeypatch.setattr(products, "_by_onednn", counted)
    monkeypatch.setattr(products, "_linear", linear)
    monkeypatch.setattr(products, "is_onednn_faster", lambda: True)
    return found


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("batch", [(), (3,)])
def test_large_products_are_those_of_float64(numbers: torch.Generator, batch: tuple[int, ...]) -> None:
    a, b = (torch.randn(*batch, *size, generator=numbers) for size in ((300, 256), (256, 300)))
    assert a.numel() * b.shape[-1] >= LEAST
    assert error(product(a, b), a.double() @ b.double()) < 1e-5
    turned = b.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert error(product(a, turned), a.double() @ b.double()) < 1e-5


def test_linear_maps_of_a_forward_pass_are_those_of_float64(numbers: torch.Generator) -> None:
    x, weight, bias = (torch.randn(size, generator=numbers) for size in ((2, 200, 256), (256, 256), (256,)))
    expected = x.double() @ weight.double().T + bias
    with torch.inference_mode(), fast_linear_maps():
        assert error(functional.linear(x, weight, bias), expected) < 1e-5
        assert error(torch.addmm(bias, x.flatten(0, 1), weight.T), expected.flatten(0, 1)) < 1e-5


def test_only_large_products_of_float32_are_given_to_onednn(calls: list[int]) -> None:
    large, small = torch.ones(LEAST // 2**16, 2**8), torch.ones(10, 10)
    product(large, large.T[:, : 2**8])
    assert len(calls) == 1
    product(small, small)
    product(large.double(), large.double().T[:, : 2**8])
    assert len(calls) == 1
    with torch.no_grad(), fast_linear_maps():
        functional.linear(large[:1], large[: 2**8])  # however few the rows
        torch.addmm(torch.ones(2**8), large, large.T[:, : 2**8])
        assert len(calls) == 3
        functional.linear(large[:1], weight=large[: 2**8], bias=None)  # as I-BERT calls it
        assert len(calls) == 4
        functional.linear(small, weight=small)
        functional.linear(small, small)
        torch.matmul(large, large.T)  # as attention does
        functional.linear(large[:1].double(), large[: 2**8].double())
        torch.addmm(torch.ones(len(large), 1), large, large.T[:, : 2**8])  # not a bias
        torch.addmm(torch.ones(2**8), large, large.T[:, : 2**8], alpha=2)
        assert len(calls) == 4
    functional.linear(large, large[: 2**8])
    assert len(calls) == 4


class Halved(torch.Tensor):
    """Weights that compute their products themselves, as quantised ones do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            x, weight = args[0], args[1].as_subclass(torch.Tensor)
            return functional.linear(x, weight / 2)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_weights_of_a_class_of_their_own_compute_their_products(numbers: torch.Generator, calls: list[int]) -> None:
    x, weight = (torch.randn(256, 256, generator=numbers) for _ in range(2))
    with torch.inference_mode(), fast_linear_maps():
        found = functional.linear(x, weight.as_subclass(Halved))
    assert error(found, x.double() @ weight.double().T / 2) < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that their interface may change
        rows = torch.nested.nested_tensor([x[:3], x[3:7]])
    with torch.inference_mode(), fast_linear_maps():
        lengths = [len(part) for part in functional.linear(rows, weight).unbind()]
    assert lengths == [3, 4]
    assert not calls


def test_linear_maps_with_gradients_are_torchs_own(calls: list[int]) -> None:
    weight = torch.ones(2**8, 2**8, requires_grad=True)
    with fast_linear_maps():
        functional.linear(torch.ones(1, 2**8), weight).sum().backward()
    assert weight.grad is not None
    assert not calls


def test_linear_maps_change_no_setting_of_the_process(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    monkeypatch.setattr(products, "_by_onednn", lambda: pytest.fail("a setting that other threads would see"))
    with torch.inference_mode(), fast_linear_maps():
        functional.linear(torch.ones(1, 2**8), torch.ones(2**8, 2**8))
    assert len(calls) == 1


@pytest.mark.slow
def test_threads_that_run_passes_at_the_same_time_do_not_change_what_the_others_compute(
    numbers: torch.Generator,
) -> None:
    settings: Any = getattr(torch.backends.mkldnn, "matmul", None)
    before = getattr(settings, "fp32_precision", None)
    x, weight = (torch.randn(size, generator=numbers) for size in ((512, 384), (1536, 384)))
    query = torch.randn(4, 4, 12, 32, generator=numbers)
    found: set[bytes] = set()

    @torch.inference_mode()
    def forward() -> None:
        with fast_linear_maps():
            for _ in range(200):
                attention = functional.scaled_dot_product_attention(query, query, query)
                found.add(functional.linear(x, weight).numpy().tobytes() + attention.numpy().tobytes())

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(forward) for _ in range(2)]:
            done.result()
    assert len(found) == 1
    assert getattr(settings, "fp32_precision", None) == before


def test_the_setting_is_set_back_when_the_last_that_uses_it_has_ended() -> None:
    settings: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if settings is None:
        pytest.skip("this version of torch has no such setting")
    before = settings.fp32_precision
    first, second = products._by_onednn(), products._by_onednn()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # as threads do, which do not wait for one another
    assert settings.fp32_precision == "bf16"
    second.__exit__(None, None, None)
    assert settings.fp32_precision == before


def test_the_setting_is_as_before_afterwards_also_after_an_error() -> None:
    settings: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if settings is None:
        pytest.skip("this version of torch has no such setting")
    before = settings.fp32_precision
    with products._by_onednn():
        assert settings.fp32_precision == "bf16"
    assert settings.fp32_precision == before
    with pytest.raises(RuntimeError), products._by_onednn():
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert settings.fp32_precision == before


@pytest.mark.parametrize("reason", ["another maker", "no wide vectors", "less exact", "less exact maps"])
def test_it_is_not_used_where_it_does_not_help_or_is_less_exact(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    capability, maker, rounded, maps_rounded = "AVX512", "AuthenticAMD", False, reason == "less exact maps"
    if reason == "another maker":
        maker = "GenuineIntel"
    elif reason == "no wide vectors":
        capability = "AVX2"
    else:
        rounded = reason == "less exact"

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return (
            functional.linear(x.bfloat16(), weight.bfloat16()).float() if maps_rounded else functional.linear(x, weight)
        )

    @contextmanager
    def by_onednn() -> Iterator[None]:
        nonlocal rounded
        with pytest.MonkeyPatch.context() as patch:
            if rounded:
                exact = torch.Tensor.__matmul__
                patch.setattr(torch.Tensor, "__matmul__", lambda a, b: exact(a.bfloat16(), b.bfloat16()).float())
            yield

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(products, "_processor", lambda: maker)
    monkeypatch.setattr(products, "_by_onednn", by_onednn)
    monkeypatch.setattr(products, "_linear", linear)
    is_onednn_faster.cache_clear()
    try:
        assert not is_onednn_faster()
        capability, maker, rounded, maps_rounded = "AVX512", "AuthenticAMD", False, False
        is_onednn_faster.cache_clear()
        assert is_onednn_faster() == hasattr(torch.backends.mkldnn, "matmul")
    finally:
        is_onednn_faster.cache_clear()


def test_a_product_is_added_to_what_is_there(numbers: torch.Generator, calls: list[int]) -> None:
    for n, n_calls in ((300, 1), (20, 1)):
        a, b, total = (torch.randn(size, generator=numbers) for size in ((n, 256), (256, 300), (n, 300)))
        expected = total.double() + a.double() @ b.double()
        add_product(total, a, b)
        assert error(total, expected) < 1e-5
        assert len(calls) == n_calls


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
