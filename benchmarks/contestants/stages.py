"""What each stage of a command takes: processor time and peak memory, in this process.

    python -m benchmarks.contestants.stages command ARGS...        a command; --cache and --runs name its folders
    python -m benchmarks.contestants.stages classes K N D FOLDER   `probing.probe` on N made-up rows of K classes

Stages are those that a command shows, and `start`, which is everything outside them. Memory is that of no file.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestants.files import size
from probing.runtime import progress
from probing.runtime.progress import Overview, Stage

# Seconds between two readings of the memory.
LOOK_S = 0.02
# Names of stages without what differs between runs, such as the number of layers.
NAMES = {"hidden states": "hidden states", "evidence": "evidence", "tokens on which": "evidence", "tables": "tables"}
CONTROLS = re.compile(r"probes of \d+ control")
# Beginning of the names of what is counted inside a stage and has its own row, such as `layer 0: bootstraps`.
INSIDE = "layer "


@dataclass
class Span:
    """What a stage took so far: seconds of processor time, and the peak of the anonymous memory in MiB."""

    processor_s: float = 0.0
    peak_anonymous_mb: float = 0.0


class Watched(Overview):
    """Notes what the outermost stages take, without what has a row of its own inside them; nothing is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: dict[str, Span] = {"start": Span()}
        self.name, self.begun = "start", time.process_time()

    def enter(self, name: str) -> None:
        """Let another stage take what is taken from here on."""
        now = time.process_time()
        self.spans[self.name].processor_s += now - self.begun
        self.name, self.begun = name, now
        self.spans.setdefault(name, Span())
        self.look()

    def look(self) -> None:
        """Read the memory."""
        span = self.spans[self.name]
        span.peak_anonymous_mb = max(span.peak_anonymous_mb, anonymous_mb())

    def begin(self, one: Stage, is_stage: bool) -> None:
        """Note that a stage, or a count, has begun."""
        if not self.open or one.name.startswith(INSIDE):
            self.enter(name_of(one.name))
        super().begin(one, is_stage)

    def end(self, one: Stage, has_failed: bool) -> None:
        """Note that a stage or count has ended."""
        super().end(one, has_failed)
        if not self.open or one.name.startswith(INSIDE):
            self.enter(name_of(self.open[0].name) if self.open else "start")


def name_of(stage: str) -> str:
    """Return a stage's name without the number of layers or of controls; what is none of them belongs to `start`."""
    if stage.startswith(INSIDE):
        return stage.partition(": ")[2]
    if CONTROLS.match(stage):
        return "controls"
    if re.match(r"probes of (\d+ )?layer", stage):
        return "probes"
    return next((name for begin, name in NAMES.items() if stage.startswith(begin)), "start")


def anonymous_mb() -> float:
    """Return the memory of this process that belongs to no file, in MiB."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    """Watch the stages of what is called inside."""
    here, done = Watched(), threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_S):
            here.look()

    watcher = threading.Thread(target=watch, daemon=True)
    before = progress._overview.set(here)
    watcher.start()
    try:
        yield here
    finally:
        here.enter("start")
        done.set()
        watcher.join()
        progress._overview.reset(before)


def command(*args: str) -> dict[str, Any]:
    """Run a command; return what its stages took, and what its cache and its run take on disk."""
    from probing.__main__ import COMMANDS
    from probing.activations.store import entries
    from probing.cli.commandline import run

    with contextlib.redirect_stdout(io.StringIO()), watched() as found:
        status = run(COMMANDS, args)
    if status:
        raise SystemExit(status)
    named = dict(itertools.pairwise(args))
    stores = [entry for entry in entries(Path(named["--cache"])) if entry.store is not None]
    return {
        **_told(found),
        "n_tokens": sum(int(entry.store.tokens.n_tokens) for entry in stores if entry.store is not None),
        "cache_mb": sum(size(entry.folder) for entry in stores) / 2**20,
        "run_mb": size(Path(named["--runs"])) / 2**20,
    }


def classes(n_classes: str, n_rows: str, d_model: str, folder: str) -> dict[str, Any]:
    """Probe made-up activations with all evidence; groups of 20 rows stand for sentences.

    Classes are about as unequal as words: class k is drawn in proportion to 1 / (k + 10). Each has a mean of its own, 3
    standard deviations from 0.
    """
    import numpy as np

    from probing import probe

    n, d = int(n_rows), int(d_model)
    generator = np.random.default_rng(0)
    share = 1 / (np.arange(int(n_classes)) + 10)
    y = generator.choice(len(share), n, p=share / share.sum())
    means = 3 / np.sqrt(d) * generator.standard_normal((len(share), d))
    x = (means[y] + generator.standard_normal((n, d))).astype(np.float32)
    probe(x[:500], y[:500] % 2, evidence="none", replicates=0, controls="none", quiet=True)  # imports what is needed
    with watched() as found:
        probe(x, y, groups=np.arange(n) // 20, quiet=True, runs=folder, name="run")
    return {**_told(found), "run_mb": size(Path(folder)) / 2**20}


def _told(found: Watched) -> dict[str, Any]:
    spans = {name: span for name, span in found.spans.items() if span.processor_s}
    values = {f"{name}.{what}": value for name, span in spans.items() for what, value in vars(span).items()}
    return {"processor_s": sum(span.processor_s for span in spans.values()), **values}


def main(action: str, *args: str) -> None:
    """Run one action and print what it found."""
    actions: dict[str, Callable[..., dict[str, Any]]] = {"command": command, "classes": classes}
    print(json.dumps(actions[action](*args)))


if __name__ == "__main__":
    main(*sys.argv[1:])
