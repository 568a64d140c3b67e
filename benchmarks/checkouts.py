"""Two checkouts of this project on the same `fit`: times in pairs, and whether their answers agree.

    python -m benchmarks.checkouts BEFORE [NOW] [--pairs 5] [--layer all] [--cache FOLDER] [--threads 2]

Checkouts are folders, such as `git worktree add ../before COMMIT` makes them; NOW is this one by default. Both read
the same activations, which are extracted before times are taken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import (
    ROOT,
    BenchmarkError,
    Check,
    Contestant,
    Run,
    Setting,
    interleave,
    measure,
    read_csv,
    values_of,
)

BEFORE, NOW = "before", "now"
# Neurons of a layer whose place and contribution are compared.
TOP = 20
# Fills the cache, with activations of controls too; hardly anything is trained.
WARMING = (
    "--evidence", "none", "--replicates", "0", "--probe.l2", "1", "--probe.tolerance", "1", "--trainer.max_epochs", "1",
)  # fmt: skip

Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Answer:
    """Tables of a run.

    Args:
        neurons: Rows of `neurons.csv`.
        layers: Rows of `accuracy.csv`.
    """

    neurons: Rows
    layers: Rows

    @classmethod
    def of(cls, folder: Path) -> Answer:
        """Read the tables of a run's folder."""
        return cls(read_csv(folder / "neurons.csv"), read_csv(folder / "accuracy.csv"))

    def top(self, layer: str) -> list[str]:
        """Return the first neurons of a layer."""
        return [row["neuron"] for row in self.neurons if row["layer"] == layer and int(row["rank"]) <= TOP]

    def by_neuron(self) -> dict[tuple[str, str], Mapping[str, str]]:
        """Return the rows by layer and neuron."""
        return {(row["layer"], row["neuron"]): row for row in self.neurons}


def differences(one: Answer, other: Answer) -> list[Check]:
    """Return how far two answers are apart, and how far they may be.

    Contributions may differ by the 1% within which the tolerance of probes settles their order. The effect of a removal
    is compared with half the width of its interval, to which its own error may add a tenth.
    """
    layers = [row["layer"] for row in one.layers]
    ours, theirs = one.by_neuron(), other.by_neuron()
    first = [(layer, neuron) for layer in layers for neuron in one.top(layer)]
    only = max(len({*one.top(layer)} - {*other.top(layer)}) for layer in layers)
    contributions = max(_apart(ours[key], theirs[key], "contribution", relative=True) for key in first)
    checks = [
        Check(f"neurons of a layer's first {TOP} that only one has", only, 1),
        Check(f"contribution of the first {TOP}, largest relative difference", contributions, 0.01),
    ]
    pairs = list(zip(one.layers, other.layers, strict=True))
    for end, at_most in (
        ("accuracy", 0.001), ("cross_entropy", 0.0005), ("_accuracy", 0.003), ("_overlap", 0.11), ("_spearman", 0.01),
    ):  # fmt: skip
        for name in _columns(pairs, end):
            apart = max(_apart(*pair, name) for pair in pairs)
            checks.append(Check(f"{name}, largest difference of a layer", apart, at_most))
    removed = [key for key, row in ours.items() if row.get("removed") and theirs.get(key, {}).get("removed")]
    if removed:
        shifts = (_apart(ours[key], theirs[key], "cross_entropy_without") / _half_width(theirs[key]) for key in removed)
        widths = (abs(_half_width(ours[key]) / _half_width(theirs[key]) - 1) for key in removed)
        checks.append(Check("cross_entropy_without, largest difference in half widths of its interval", max(shifts), 1))
        checks.append(Check("width of that interval, largest relative difference", max(widths), 0.2))
    return checks


def _columns(pairs: Sequence[tuple[Mapping[str, str], Mapping[str, str]]], end: str) -> list[str]:
    """Return the columns that both tables have, called so or, where it begins with `_`, that end so."""
    shared = [name for name in pairs[0][0] if name in pairs[0][1] and all(a[name] and b[name] for a, b in pairs)]
    return [name for name in shared if (name.endswith(end) if end.startswith("_") else name == end)]


def _apart(one: Mapping[str, str], other: Mapping[str, str], column: str, relative: bool = False) -> float:
    a, b = float(one[column]), float(other[column])
    return abs(a - b) / abs(b) if relative else abs(a - b)


def _half_width(row: Mapping[str, str]) -> float:
    return (float(row["cross_entropy_without_high"]) - float(row["cross_entropy_without_low"])) / 2


def told(runs: Sequence[Run]) -> list[str]:
    """Return a line for each measure: the medians, and the least, the median and the largest ratio of a pair."""
    lines = []
    for measured, name in (("seconds", "wall time"), ("processor_s", "processor time")):
        before, now = (values_of(runs, contestant, measured) for contestant in (BEFORE, NOW))
        ratios = sorted(before[i] / now[i] for i in before)
        middle = statistics.median(ratios)
        lines.append(
            f"{name}: before {statistics.median(before.values()):.1f} s, now {statistics.median(now.values()):.1f} s; "
            f"before / now of {len(ratios)} pairs: least {ratios[0]:.2f}, median {middle:.2f}, largest {ratios[-1]:.2f}"
        )
    return lines


def compare(setting: Setting, folders: Mapping[str, Path], cache: Path, layer: str) -> tuple[list[Run], list[Check]]:
    """Warm the cache, run both checkouts in turns, and compare the answers of the first pair.

    Args:
        setting: Number of pairs and of threads, and a folder for temporary files.
        folders: The checkouts, by name.
        cache: Folder of cached activations.
        layer: The option of `fit`.
    """

    def command(name: str, runs: Path, *more: str) -> list[str]:
        where = ("--cache", str(cache), "--runs", str(runs), "--name", "run", "--quiet", "--wandb.mode", "disabled")
        wrapped = [sys.executable, "-m", "benchmarks.contestants.checkout", str(folders[name])]
        return [*wrapped, "fit", "--model", setting.model, "--layer", layer, *where, *more]

    for name in folders:
        with tempfile.TemporaryDirectory(dir=setting.work) as runs:
            measure(command(name, Path(runs), *WARMING), setting.threads)
    contestants = [Contestant(name, lambda runs, name=name: command(name, runs)) for name in folders]  # type: ignore[misc]

    def check(answers: Mapping[str, Path]) -> list[Check]:
        found = [Answer.of(answers[name] / "run") for name in (NOW, BEFORE)]
        return differences(*found)

    return interleave(contestants, setting, check)


def main(args: Sequence[str] | None = None) -> int:
    """Parse the options, compare and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkouts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path, help="folder of the checkout to compare with")
    parser.add_argument("now", type=Path, nargs="?", default=ROOT, help="folder of the other checkout; this one")
    parser.add_argument("--pairs", type=int, default=5, help="how often the two take turns")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each (all cores)")
    parser.add_argument("--model", default="minilm", help="alias or folder of the model")
    parser.add_argument("--layer", default="all", help="as for fit")
    parser.add_argument("--cache", type=Path, help="folder of cached activations; a temporary one")
    options = parser.parse_args(args)
    folders = {BEFORE: options.before.resolve(), NOW: options.now.resolve()}
    for folder in folders.values():
        if not (folder / "probing" / "__main__.py").exists():
            parser.error(f"{folder} is no checkout of this project: it has no probing/__main__.py")
    if options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: expected at least 1")
    with tempfile.TemporaryDirectory(prefix="checkouts-") as work:
        setting = Setting(options.pairs, options.threads, options.model, None, 1, Path(work))
        cache = (options.cache or Path(work) / "cache").resolve()
        try:
            runs, _ = compare(setting, folders, cache, options.layer)
        except BenchmarkError as error:
            print(error, file=sys.stderr)
            return 1
    print("\n".join(told(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
