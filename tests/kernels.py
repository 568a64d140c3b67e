"""Run the numeric tests with other arithmetic than that of this processor, as `make test-kernels` does.

Processors differ in how many numbers their kernels add at a time and in whether they round a product before it is
added; and the number of threads decides where sums are divided. A test that fails under this setting fails on some
other machine.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "probing"

N_THREADS = 2

# Variables that choose the kernels of torch, of MKL, of oneDNN and of numpy's BLAS: simple ones, unlike those that a
# modern processor chooses. oneDNN is told too: where it finds bfloat16 units that torch's own kernels are not to use,
# attention in bfloat16 fails. Waiting threads sleep: on a busy machine, active waiting would keep others from working.
SETTING: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Prescott", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(N_THREADS),
}  # fmt: skip

# Packages that sum over all tokens: two threads divide these sums in other places than one thread. On the short sums of
# other packages, two threads take twice the time of one.
_THREADED = {"geometry", "probes", "runtime", "statistics"}

# A module computes if it imports a package of `_ARITHMETIC` and none of `_ABOVE`: training loops, models and figures
# are slow to test, and compute nothing that the other modules do not.
_ARITHMETIC = {"numpy", "scipy", "torch"}
_ABOVE = {"matplotlib", "pytorch_lightning", "torchmetrics", "transformers"}

# Files are searched for the mark instead of imported, which would take as long as the tests.
_MARK = re.compile(r"^(?:pytestmark = \[?\s*|@)pytest\.mark\.numeric\b", re.MULTILINE)

_CHOICE = "numeric and not patient and not several and not fuzz and not base"


def computing() -> list[Path]:
    """Return the modules that compute, but for commands, pages and figures."""
    files = (file for file in sorted(PACKAGE.rglob("*.py")) if _room(file) not in ("commands", "page", "figures"))
    return [file for file in files if (found := _imported(file)) & _ARITHMETIC and not found & _ABOVE]


def numeric_tests() -> set[Path]:
    """Return the files with tests that are marked as numeric: those of modules that compute."""
    return {file for file in TESTS.rglob("test_*.py") if _MARK.search(file.read_text(encoding="utf-8"))}


def _room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0]


def _imported(file: Path) -> set[str]:
    """Return the packages that a file imports at its top level."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    plain = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in plain + names}


def n_threads_of(file: Path) -> int:
    """Return the number of threads that torch has in the tests of a file, under the setting above."""
    parts = file.relative_to(TESTS).parts
    return N_THREADS if len(parts) == 1 or parts[-2] in _THREADED else 1


def main(arguments: Sequence[str]) -> int:
    """Run the numeric tests under that arithmetic, and return pytest's status.

    Args:
        arguments: Further arguments of pytest.
    """
    # The files are named so that pytest need not import the others.
    names = [str(file) for file in [TESTS / "test_kernels.py", *sorted(numeric_tests())]]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", _CHOICE, *names, *arguments]
    return subprocess.run(command, env={**os.environ, **SETTING}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
