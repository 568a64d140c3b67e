"""Another checkout of this project: one of its commands in a process of its own, with its processor time.

python -m benchmarks.contestants.checkout CHECKOUT COMMAND ARGS...
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(checkout: Path, args: Sequence[str]) -> dict[str, Any]:
    """Run a command of the checkout; return `seconds` and `processor_s`, which counts all threads.

    Raises:
        SystemExit: If the command fails.
    """
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-m", "probing", *args], cwd=checkout, env=environment, stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": time.perf_counter() - start, "processor_s": used.ru_utime + used.ru_stime}


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]).resolve(), sys.argv[2:])))
