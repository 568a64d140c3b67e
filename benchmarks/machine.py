"""The machine, the versions and the date of a measurement."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import ROOT

LIBRARIES = ("neuron-probing", "torch", "pytorch-lightning", "transformers", "numpy", "scikit-learn")


def describe(threads: int) -> dict[str, str]:
    """Return machine, versions, commit, date and the load before the measurement."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(threads),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _commit() -> str:
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    extras = [name for name in ("avx512f", "avx512_bf16", "amx_bf16") if re.search(rf"\b{name}\b", text)]
    return f"{found[1] if found else platform.processor()}{' with ' + ', '.join(extras) if extras else ''}"
