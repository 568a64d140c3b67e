"""Time this project against other tools and against the machine; `make bench` runs it.

    python -m benchmarks [COMPARISON ...] [--pairs 5]

Each comparison writes its tables when it is done, and the page is written again from all tables that exist, so that
each comparison can be repeated by itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ROOT, BenchmarkError, Setting, save
from benchmarks.machine import describe
from benchmarks.report import render

COMPARISONS = ("startup", "extraction", "loading", "probes", "ranking", "whole_job", "scaling", "classes", "memory")
RESULTS = ROOT / "benchmarks" / "results"


def main(args: Sequence[str] | None = None) -> int:
    """Parse the options, run the comparisons, write the page; return the exit status."""
    options = _options(args)
    options.results.mkdir(parents=True, exist_ok=True)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        failed = [name for name in options.comparisons if not _compare(name, options)]
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{options.results / 'README.md'}{': without ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


def _compare(name: str, options: argparse.Namespace) -> bool:
    """Run one comparison, write its tables and the page; return whether it succeeded."""
    start = time.perf_counter()
    _say(f"{name}:")
    # Beside the results, hence on a disk: the system's temporary folder may be in memory.
    with tempfile.TemporaryDirectory(prefix=".work-", dir=options.results) as work:
        setting = Setting(
            options.pairs, options.threads, options.model, options.sentences, options.largest, Path(work), _say
        )
        context = describe(options.threads)
        try:
            found = importlib.import_module(f"benchmarks.{name}").compare(setting)
        except BenchmarkError as error:
            print(f"{name} was not measured: {error}", file=sys.stderr, flush=True)
            return False
    save(options.results, name, found, context)
    (options.results / "README.md").write_text(render(options.results), encoding="utf-8")
    _say(f"{name}: {time.perf_counter() - start:.0f} s")
    return True


def _stop(*_: object) -> None:
    """Exit as Ctrl-C does, which also ends the running contestant and removes temporary files."""
    sys.exit(143)


def _options(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "comparisons", nargs="*", metavar="COMPARISON", help=f"{', '.join(COMPARISONS)}; all by default"
    )
    parser.add_argument("--pairs", type=int, default=5, help="rounds in which the contestants take turns")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each contestant (all cores)")
    parser.add_argument("--model", default="minilm", help="alias, or folder written by save_pretrained")
    parser.add_argument("--sentences", type=int, help="use the first sentences of the built-in corpus; all by default")
    parser.add_argument("--largest", type=int, default=1_000_000, help="tokens of the largest corpus in scaling")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the tables")
    options = parser.parse_args(args)
    if unknown := [name for name in options.comparisons if name not in COMPARISONS]:
        parser.error(f"no comparison is called {unknown[0]}; there are {', '.join(COMPARISONS)}")
    for name in ("pairs", "threads", "sentences", "largest"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name} {value}: expected at least 1")
    options.comparisons = options.comparisons or COMPARISONS
    options.results = options.results.resolve()
    return options


def _say(message: str) -> None:
    print(message, flush=True)


if __name__ == "__main__":
    sys.exit(main())
