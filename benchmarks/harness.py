"""Run contestants in turns, each in its own process, and write their measurements as statistics and tables."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# Seconds after which a contestant is stopped, and between two readings of its memory.
GIVE_UP_S, LOOK_S = 3600.0, 0.02


class BenchmarkError(Exception):
    """A contestant failed, or its answer differs from the others'."""


@dataclass(frozen=True)
class Contestant:
    """One way of doing a job.

    Args:
        name: Name in tables.
        command: Returns the command line, given an empty folder for the answer; it must print one JSON line.
        rounds: Number of rounds in which it takes part; None means all.
    """

    name: str
    command: Callable[[Path], Sequence[str]]
    rounds: int | None = None


@dataclass(frozen=True)
class Run:
    """The measurements of one process: numbers by measure."""

    contestant: str
    round: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Check:
    """A comparison of answers: what was compared, the difference, and the largest difference allowed."""

    what: str
    difference: float
    at_most: float

    @property
    def held(self) -> bool:
        """Whether the difference is allowed; NaN is not."""
        return self.difference <= self.at_most


@dataclass(frozen=True)
class Met:
    """A measurement that the project has a target for.

    Args:
        key: Key of the target in `benchmarks.targets`.
        measured: The measurement in words.
        is_met: Whether the target is met; None where the measurement is only reported.
    """

    key: str
    measured: str
    is_met: bool | None = None


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Args:
        runs: All runs.
        reference: The contestant to which ratios are taken; None where contestants do different jobs.
        checks: Checks of the answers.
        met: Measurements that have targets.
        notes: Sentences for the reader.
    """

    runs: Sequence[Run]
    reference: str | None = None
    checks: Sequence[Check] = ()
    met: Sequence[Met] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Setting:
    """The settings that all comparisons share.

    Args:
        pairs: Number of rounds of each comparison.
        threads: Number of threads of each contestant.
        model: Alias or folder of the model.
        sentences: Number of first sentences of the built-in corpus; None for all.
        largest: Tokens of the largest corpus in `scaling`.
        work: Folder for temporary files; on a disk, not in memory.
        say: Receives one-line messages.
    """

    pairs: int
    threads: int
    model: str
    sentences: int | None
    largest: int
    work: Path
    say: Callable[[str], None] = field(default=print)


def environment(threads: int) -> dict[str, str]:
    """Return the environment of every contestant: the same number of threads, no network, this checkout."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "true"}
    kept = {k: v for k, v in os.environ.items() if k != "PROBING_CACHE"}
    return {**kept, **counts, **offline, "PYTHONPATH": path}


def measure(command: Sequence[str], threads: int = 1) -> dict[str, Any]:
    """Run a command; return the last JSON line it printed, with `wall_s`, `peak_anonymous_mb` and `peak_mapped_mb`.

    The latter two, in MiB, are the largest RssAnon and RssFile observed: memory that belongs to no file, which is what
    can run out, and pages of mapped files, which the system takes back when it needs them. They are absent where the
    system does not report them.

    Raises:
        BenchmarkError: If the command fails or prints no JSON; the message ends with its last lines of standard error.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment(threads), cwd=ROOT)
        peak = _Peak(process.pid)
        try:
            process.wait(GIVE_UP_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise BenchmarkError(f"{' '.join(command)}: given up after {GIVE_UP_S:.0f} s") from None
            raise
        finally:
            wall, memory = time.perf_counter() - start, peak.stop()
        out.seek(0)
        err.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
        if process.returncode or not lines:
            said = "\n".join(err.read().splitlines()[-20:])
            raise BenchmarkError(f"{' '.join(command)}\nended with {process.returncode}, having said:\n{said}")
    return {**json.loads(lines[-1]), "wall_s": wall, **memory}


# What the system calls the memory of a process that belongs to no file, and that which is mapped from files.
KINDS = {"RssAnon": "peak_anonymous_mb", "RssFile": "peak_mapped_mb"}


class _Peak:
    """Watches the memory of a process."""

    def __init__(self, pid: int) -> None:
        self.path, self.ended = Path(f"/proc/{pid}/status"), threading.Event()
        self.peak_kb = dict.fromkeys(KINDS, 0)
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.ended.wait(LOOK_S):
            try:
                found = re.findall(
                    r"^(RssAnon|RssFile):\s+(\d+) kB", self.path.read_text(encoding="utf-8"), re.MULTILINE
                )
            except OSError:
                return
            for kind, kb in found:
                self.peak_kb[kind] = max(self.peak_kb[kind], int(kb))

    def stop(self) -> dict[str, float]:
        self.ended.set()
        self.thread.join()
        return {KINDS[kind]: kb / 1024 for kind, kb in self.peak_kb.items() if kb}


def interleave(
    contestants: Sequence[Contestant],
    setting: Setting,
    check: Callable[[Mapping[str, Path]], Sequence[Check]] | None = None,
) -> tuple[list[Run], list[Check]]:
    """Run the contestants in turns, A B A B ..., each with its own empty folder.

    After the first round the answers are compared; answers that are not compared are deleted at once.

    Args:
        contestants: Contestants in the order of a round.
        setting: Settings, among them the number of rounds.
        check: Compares the answers, given the folder of each contestant's; None if they are not compared.

    Returns:
        All runs, and the checks.

    Raises:
        BenchmarkError: If a contestant fails, or if the answers disagree, since times are then not comparable.
    """
    runs: list[Run] = []
    checks: list[Check] = []
    answers: dict[str, Path] = {}
    try:
        for turn in range(setting.pairs):
            for contestant in contestants:
                if contestant.rounds is not None and turn >= contestant.rounds:
                    continue
                folder = Path(tempfile.mkdtemp(dir=setting.work))
                answers[contestant.name] = folder
                found = measure(contestant.command(folder), setting.threads)
                values = {k: float(v) for k, v in found.items() if isinstance(v, int | float)}
                runs.append(Run(contestant.name, turn, values))
                shown = values.get("seconds", values["wall_s"])
                setting.say(f"  round {turn + 1} of {setting.pairs}: {contestant.name}: {shown:.2f} s")
                if turn or check is None:
                    shutil.rmtree(folder)
            if turn == 0 and check is not None:
                checks = list(check(answers))
                for one in checks:
                    setting.say(f"  {one.what}: {one.difference:.3g} (at most {one.at_most:g})")
                if broken := [one for one in checks if not one.held]:
                    raise BenchmarkError(
                        "answers differ: " + "; ".join(f"{c.what}: {c.difference:.3g}" for c in broken)
                    )
                for folder in answers.values():
                    shutil.rmtree(folder)
    finally:
        for folder in answers.values():
            shutil.rmtree(folder, ignore_errors=True)
    return runs, checks


# --- statistics ---


def values_of(runs: Iterable[Run], contestant: str, name: str) -> dict[int, float]:
    """Return a contestant's values of one measure by round."""
    return {run.round: run.values[name] for run in runs if run.contestant == contestant and name in run.values}


def median_of(runs: Iterable[Run], contestant: str, name: str) -> float:
    """Return the median of a contestant's values of one measure."""
    return statistics.median(values_of(runs, contestant, name).values())


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[float, float]:
    """Return theirs / ours: the ratio of the medians, and the median of the ratios within a round."""
    both = sorted(set(ours) & set(theirs))
    paired = statistics.median(_divide(theirs[i], ours[i]) for i in both) if both else float("nan")
    return _divide(statistics.median(theirs.values()), statistics.median(ours.values())), paired


def _divide(a: float, b: float) -> float:
    return a / b if b else float("nan")


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the least-squares slope of log y against log x; it is 1 where cost is proportional."""
    import numpy as np

    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


COLUMNS = ("contestant", "measure", "n", "median", "min", "max", "ratio_of_medians", "median_of_paired_ratios")


def summarise(runs: Sequence[Run], reference: str | None) -> list[dict[str, Any]]:
    """Return a row for each contestant and measure, with its ratio to the reference's value if that exists."""
    rows: list[dict[str, Any]] = []
    for contestant in dict.fromkeys(run.contestant for run in runs):
        for name in dict.fromkeys(n for run in runs if run.contestant == contestant for n in run.values):
            found = values_of(runs, contestant, name)
            row: dict[str, Any] = {
                "contestant": contestant, "measure": name, "n": len(found), "median": statistics.median(found.values()),
                "min": min(found.values()), "max": max(found.values()),
            }  # fmt: skip
            if reference is not None and contestant != reference and (ours := values_of(runs, reference, name)):
                row["ratio_of_medians"], row["median_of_paired_ratios"] = ratios(ours, found)
            rows.append(row)
    return rows


# --- on disk ---


def save(folder: Path, name: str, comparison: Comparison, context: Mapping[str, Any]) -> None:
    """Write a comparison's tables in place of earlier ones; each file is replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    single = [
        {"contestant": run.contestant, "round": run.round, "measure": measure, "value": value}
        for run in comparison.runs
        for measure, value in run.values.items()
    ]
    write_csv(folder / f"{name}.runs.csv", ("contestant", "round", "measure", "value"), single)
    write_csv(folder / f"{name}.csv", COLUMNS, summarise(comparison.runs, comparison.reference))
    told: list[dict[str, Any]] = [
        *(
            {"kind": "check", "key": c.what, "text": f"{c.difference:.3g}", "bound": c.at_most}
            for c in comparison.checks
        ),
        *(
            {"kind": "target", "key": m.key, "text": m.measured, "bound": "" if m.is_met is None else m.is_met}
            for m in comparison.met
        ),
        *({"kind": "note", "key": "", "text": note, "bound": ""} for note in comparison.notes),
        *({"kind": "context", "key": key, "text": value, "bound": ""} for key, value in context.items()),
    ]
    write_csv(folder / f"{name}.told.csv", ("kind", "key", "text", "bound"), told)


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows in full precision to a temporary file and rename it; absent values are empty."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a file of `write_csv`, with all values as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
