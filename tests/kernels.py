"""Run the numeric tests under other arithmetic than this processor's own; `make test-kernels` does.

Processors differ in how many numbers their kernels add at a time and in whether they round a product before it is
added, and threads in where sums are cut. What fails under this setting fails on some other machine.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "probing"

N_THREADS = 2

# What sets the kernels of torch, of MKL and of numpy's BLAS: at the other end from the processor's own. Threads that
# wait are to sleep: on a busy machine they would keep each other from working.
SETTING: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Prescott",
    "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(N_THREADS),
}  # fmt: skip

# Rooms that add up over all tokens, whose sums two threads cut in another place. On the short sums of the others, two
# threads take twice the time of one.
_THREADED = {"layer_geometry", "probes", "runtime", "statistics"}

# What computes imports one of these, and none of those: training loops, models and drawings are slow to test, and
# compute nothing that these have not.
_ARITHMETIC = {"numpy", "scipy", "torch"}
_ABOVE = {"matplotlib", "pytorch_lightning", "torchmetrics", "transformers"}

# Whole runs on real models are left out: they are slow, and compute nothing that quick tests do not.
_CHOICE = "numeric and not slow and not patient and not several and not fuzz and not base"


def computing() -> list[Path]:
    """Return the modules that compute, but for commands, pages and figures."""
    files = (file for file in sorted(PACKAGE.rglob("*.py")) if _room(file) not in ("commands", "page", "figures"))
    return [file for file in files if (found := _imported(file)) & _ARITHMETIC and not found & _ABOVE]


def numeric_tests() -> set[Path]:
    """Return the test files that are numeric: those that stand where a module that computes does."""
    places = (TESTS / file.relative_to(PACKAGE).with_name(f"test_{file.name}") for file in computing())
    return {place for place in places if place.exists()}


def _room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0]


def _imported(file: Path) -> set[str]:
    """Return the packages that a file imports when it is imported itself."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    plain = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in plain + names}


def n_threads_of(file: Path) -> int:
    """Return the number of threads that torch has in the tests of a file, under the setting above."""
    parts = file.relative_to(TESTS).parts
    return N_THREADS if len(parts) == 1 or parts[0] in _THREADED else 1


def main(arguments: Sequence[str]) -> int:
    """Run the numeric tests under that arithmetic, and return pytest's status.

    Args:
        arguments: Further arguments of pytest.
    """
    # Other files need not be read.
    names = [str(file) for file in [TESTS / "test_kernels.py", *sorted(numeric_tests())]]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", _CHOICE, *names, *arguments]
    return subprocess.run(command, env={**os.environ, **SETTING}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
