"""An environment for the other tools, which shares the libraries of this project's environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import ROOT, BenchmarkError

FOLDER = ROOT / "benchmarks" / ".peers"
# NeuroX pins libraries of 2021; its extractor and its linear probe also run with today's.
WITHOUT_DEPENDENCIES = ("neurox==1.0.9",)
WITH_DEPENDENCIES = ("h5py", "imbalanced-learn", "scikit-learn", "tqdm")
_WORKS = "import h5py, imblearn, sklearn, torch, transformers, neurox.interpretation.linear_probe"


def peers_python(say: Callable[[str], None] = print, folder: Path = FOLDER) -> str:
    """Return the interpreter of the peers' environment, which is created if it is missing.

    Raises:
        BenchmarkError: If it cannot be created, for example without a package index.
    """
    python = folder / "bin" / "python"
    if not (python.exists() and _run(python, "-c", _WORKS).returncode == 0):
        say(f"making the environment of the peers in {folder}")
        venv.create(folder, with_pip=True, clear=True)
        # `site` also reads the .pth files of that folder, among them those of editable installations.
        ours = sysconfig.get_paths()["purelib"]
        packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (packages / "neighbours.pth").write_text(f"import site; site.addsitedir({ours!r})\n", encoding="utf-8")
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        for more in (("--no-deps", *WITHOUT_DEPENDENCIES), WITH_DEPENDENCIES):
            if (done := _run(python, *pip, *more)).returncode:
                raise BenchmarkError(f"the peers cannot be installed:\n{done.stderr[-2000:]}")
        if (done := _run(python, "-c", _WORKS)).returncode:
            raise BenchmarkError(f"the peers were installed but do not run:\n{done.stderr[-2000:]}")
    return str(python)


def _run(python: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *args], capture_output=True, encoding="utf-8", check=False)
