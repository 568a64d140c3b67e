"""Numeric tests are those of all that computes, and the kernels of the processor are really those asked for."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
import torch

from kernels import PACKAGE, computing, numeric_tests
from pages import nodes_of

MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}


def _imports(file: Path) -> set[str]:
    """Return which modules of the package a file imports, inside of functions too."""
    nodes = [node for node in nodes_of(file) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    return (names | {str(node.module) for node in nodes}) & set(MODULES)


def test_what_computes_and_needs_nothing_else_is_tested_by_numeric_tests() -> None:
    modules = computing()
    imports = {name: _imports(file) for name, file in MODULES.items() if file in modules}
    pure = set(imports)
    # What needs a module that is not pure is not pure either.
    while impure := {name for name in pure if imports[name] - pure}:
        pure -= impure
    assert len(pure) > 4
    tested = set().union(*(_imports(file) for file in numeric_tests()))
    assert pure - tested == set()


# --- the settings that this process was started under have taken effect ---


@pytest.mark.numeric
@pytest.mark.skipif("ATEN_CPU_CAPABILITY" not in os.environ, reason="asked of torch by `make test-kernels`")
def test_torch_has_the_kernels_asked_for() -> None:
    found, asked = torch.backends.cpu.get_cpu_capability(), os.environ["ATEN_CPU_CAPABILITY"].upper()
    if found == "DEFAULT" and asked == "AVX2":
        pytest.skip("this processor has no AVX2")
    assert found == asked


@pytest.mark.numeric
@pytest.mark.skipif(os.environ.get("MKL_CBWR") != "COMPATIBLE", reason="asked of MKL by `make test-kernels`")
def test_mkl_rounds_products_before_it_adds_them() -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("this torch was built without MKL")
    # a a - (1 + 2^-11) with a = 1 + 2^-12 is 2^-24, and 0 once a a is rounded to float32.
    a = 1 + 2**-12
    left, right = torch.tensor([[-(1 + 2**-11), a]]).repeat(64, 1), torch.tensor([[1.0], [a]]).repeat(1, 64)
    assert not (left @ right).any()


@pytest.mark.numeric
def test_torch_has_the_threads_asked_for() -> None:
    # One unless asked otherwise: `conftest.py` sees to that.
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
