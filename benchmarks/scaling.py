"""Scaling: cost against tokens, layers, classes and replicates as log-log slopes, and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import commands
from benchmarks.corpora import larger, sentences, write_text
from benchmarks.harness import Comparison, Contestant, Met, Run, Setting, interleave, median_of, slope

# Approximate numbers of tokens of the corpora; memory is compared between the two in DOUBLED.
TOKENS, DOUBLED = (10_000, 30_000, 100_000, 200_000, 400_000, 1_000_000), (200_000, 400_000)
# Larger corpora are measured once, except for those in DOUBLED: the peak memory of one size differs between runs.
OFTEN = 30_000
N_SENTENCES, ROUNDS = 600, 3
TOKENS_PER_WORD = 1.48
SERIES = {
    "layers": [("--layer", "0"), ("--layer", "0,1"), ("--layer", "0,1,2,3"), ("--layer", "all")],
    "classes": [("--task_args.max_position", str(n)) for n in (4, 8, 16, 32)],
    "replicates": [("--replicates", str(n)) for n in (2, 4, 8, 16)],
}


def compare(setting: Setting) -> Comparison:
    """Run the whole job on corpora of growing size, then each series in one process, most of them on a small corpus."""
    small = write_text(setting.work / "small.txt", sentences(min(setting.sentences or N_SENTENCES, N_SENTENCES)))
    cache = setting.work / "cache"
    found = commands.prepare(setting, commands.extract(setting, small, cache))
    n_layers = int(found["n_layers_cached"]) - 1
    sizes = [n for n in TOKENS if n <= setting.largest]
    contestants = [_of_size(setting, n) for n in sizes]
    contestants.append(_steps(setting, write_text(setting.work / "steps.txt", sentences(setting.sentences)), n_layers))
    contestants += [_series(setting, small, cache, name, n_layers) for name in SERIES]
    runs, _ = interleave(contestants, setting)
    return Comparison(runs, None, (), _met(runs, sizes, n_layers), _slopes(runs, sizes))


def _of_size(setting: Setting, n: int) -> Contestant:
    corpus = write_text(setting.work / f"{n}.txt", larger(int(n / TOKENS_PER_WORD)))
    rounds = None if n <= OFTEN else ROUNDS if n in DOUBLED else 1

    def command(folder: Path) -> list[str]:
        return commands.fit(setting, corpus, folder / "cache", folder, *commands.BARE, *commands.TO_A_THOUSANDTH)

    return Contestant(_tokens(n), command, rounds)


def _tokens(n: int) -> str:
    return f"{n} tokens"


def _jobs(setting: Setting, name: str, jobs: Mapping[str, Sequence[str]]) -> Contestant:
    file = setting.work / f"{name}.json"
    file.write_text(json.dumps(jobs), encoding="utf-8")
    return Contestant(name, lambda folder: commands.ours("jobs", file), ROUNDS)


def _steps(setting: Setting, corpus: Path, n_layers: int) -> Contestant:
    """Extract up to each layer; a first extraction of all layers absorbs the process's one-time costs."""
    options = ["extract", "--model", setting.model, "--corpus", str(corpus), "--cache", "{fresh}", "--quiet"]
    jobs = {"first": [*options, "--layer", str(n_layers)]}
    jobs |= {str(k): [*options, "--layer", str(k)] for k in range(n_layers + 1)}
    return _jobs(setting, "steps", jobs)


def _series(setting: Setting, corpus: Path, cache: Path, name: str, n_layers: int) -> Contestant:
    jobs = {}
    last = str(n_layers)
    for added in SERIES[name]:
        bare = commands.BARE if name != "replicates" else commands.BARE[2:]
        layer = () if name == "layers" else ("--layer", last)
        if name == "layers" and added[1] != "all" and int(added[1].split(",")[-1]) >= n_layers:
            continue
        options = (*bare, *commands.TO_A_THOUSANDTH, *layer, *added)
        jobs[str(_amount(added[1], n_layers))] = commands.fit_args(setting, corpus, cache, "{fresh}", *options)
    return _jobs(setting, name, jobs)


def _amount(value: str, n_layers: int) -> int:
    """Return the number of layers, classes or replicates that an option's value stands for."""
    if value == "all":
        return n_layers + 1
    return len(value.split(",")) if "," in value or value == "0" else int(value)


def _medians(runs: Sequence[Run], contestant: str, measure: str) -> dict[int, float]:
    """Return a measure by the number in front of its name."""
    names = {name for run in runs if run.contestant == contestant for name in run.values}
    amounts = sorted(int(name.split(".")[0]) for name in names if name.endswith(f".{measure}") and name[0].isdigit())
    return {n: median_of(runs, contestant, f"{n}.{measure}") for n in amounts}


def _met(runs: list[Run], sizes: Sequence[int], n_layers: int) -> list[Met]:
    met = []
    seconds = _medians(runs, "steps", "seconds")
    steps = np.diff(list(seconds.values()))
    apart = _off_a_line(seconds)
    # Layer 0 does not allocate the memory that the first block does, whose pages later blocks reuse.
    blocks_alone = _off_a_line({layer: value for layer, value in seconds.items() if layer})
    text = f"at most {apart:.0%} off a straight line ({blocks_alone:.0%} from layer 1 on)"
    text += f"; steps of {steps.min():.2f} to {steps.max():.2f} s"
    met.append(Met("layer_steps", text, apart <= 0.1))
    if len(sizes) > 1:
        tokens = [median_of(runs, _tokens(n), "n_tokens") for n in sizes]
        found = {
            name: slope(tokens, [median_of(runs, _tokens(n), name) for n in sizes]) for name in ("extract_s", "total_s")
        }
        sizes_told = f"{tokens[0]:.0f} to {tokens[-1]:.0f} tokens"
        text = f"extraction {found['extract_s']:.2f}, whole job {found['total_s']:.2f}, {sizes_told}"
        met.append(Met("slope", text, all(abs(value - 1) <= 0.1 for value in found.values())))
    one, double = _tokens(DOUBLED[0]), _tokens(DOUBLED[1])
    if DOUBLED[1] in sizes and all("peak_anonymous_mb" in run.values for run in runs):
        less, more = (median_of(runs, name, "peak_anonymous_mb") for name in (one, double))
        scatter = max(_apart(runs, name) for name in (one, double))
        sizes_told = f"{less:.0f} to {more:.0f} MiB, {one} to {double}; runs of one size up to {scatter:.1%} apart"
        text = f"{more / less - 1:+.1%} ({sizes_told})"
        met.append(Met("memory", text, abs(more / less - 1) < 0.1))
    return met


def _off_a_line(values: Mapping[int, float]) -> float:
    """Return the largest relative deviation of the values from their least-squares line."""
    x, y = np.array(list(values)), np.array(list(values.values()))
    return float(np.abs(y / np.polyval(np.polyfit(x, y, 1), x) - 1).max())


def _apart(runs: Sequence[Run], contestant: str) -> float:
    """Return by what share a contestant's highest peak memory exceeds its lowest."""
    peaks = [run.values["peak_anonymous_mb"] for run in runs if run.contestant == contestant]
    return max(peaks) / min(peaks) - 1


def _slopes(runs: list[Run], sizes: Sequence[int]) -> list[str]:
    """Return sentences with the slopes against layers, classes and replicates, and the memory at each size."""
    told = []
    for name in SERIES:
        measure = "evidence_s" if name == "replicates" else "probe_s"
        found = _medians(runs, name, measure)
        if len(found) > 1:
            values = ", ".join(f"{n}: {value:.2f} s" for n, value in found.items())
            told.append(f"Slope against {name} ({measure}): {slope(list(found), list(found.values())):.2f} ({values}).")
    if all("peak_anonymous_mb" in run.values for run in runs):
        peaks = ", ".join(f"{_tokens(n)} {median_of(runs, _tokens(n), 'peak_anonymous_mb'):.0f} MiB" for n in sizes)
        told.append(f"Peak anonymous memory of the whole job: {peaks}.")
    return told
