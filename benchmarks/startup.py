"""Start-up: the cost of the command line and of the import before any work."""

from __future__ import annotations

import sys

from benchmarks.harness import Comparison, Contestant, Met, Run, Setting, interleave, median_of

PLAIN = "python, nothing"
WHAT = {
    PLAIN: ("-c", "pass"),
    "import probing": ("-c", "import probing"),
    "probing --help": ("-m", "probing", "--help"),
    "probing fit --help": ("-m", "probing", "fit", "--help"),
}
# Prints the JSON line that these commands do not print.
_TIMED = (
    "import json, subprocess, sys, time; start = time.perf_counter(); "
    "subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL); "
    "print(json.dumps({'seconds': time.perf_counter() - start}))"
)


def compare(setting: Setting) -> Comparison:
    """Start each command in turns."""
    contestants = [
        Contestant(name, lambda folder, args=args: [sys.executable, "-c", _TIMED, *args])  # type: ignore[misc]
        for name, args in WHAT.items()
    ]
    found, _ = interleave(contestants, setting)
    runs = [Run(run.contestant, run.round, {"seconds": run.values["seconds"]}) for run in found]
    helped, imported, plain = (median_of(runs, name, "seconds") for name in ("probing --help", "import probing", PLAIN))
    fitted = median_of(runs, "probing fit --help", "seconds")
    text = f"{imported:.3f} s, of which {plain:.3f} s are Python's own start"
    met = [
        Met("help", f"{helped:.2f} s; `fit --help` {fitted:.2f} s", max(helped, fitted) < 1),
        Met("import", text, imported < 0.2),
    ]
    return Comparison(runs, PLAIN, (), met)
