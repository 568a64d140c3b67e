"""Probes: all layers at a measured optimum, compared with NeuroX's trainer and scikit-learn's on one layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks import commands
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import (
    Check,
    Comparison,
    Contestant,
    Met,
    Run,
    Setting,
    interleave,
    median_of,
    ratios,
    values_of,
)
from benchmarks.peers import peers_python

OURS, REPLICATES = "probing, all layers", "probing, all layers, 5 replicates"
NEUROX, SCIKIT = "NeuroX, one layer, its defaults", "scikit-learn, one layer, to convergence"
# Defaults of `fit`, the gap named by the targets, and the difference of two evaluations of one probe in float32.
SEED, L2, GAP, EVALUATED = "0", "1e-4", 1e-3, 1e-4
LAYER = 3
# Each round takes about a minute.
SCIKIT_ROUNDS = 2


def compare(setting: Setting) -> Comparison:
    """Train on the same cached tokens, and compare the probes by one function."""
    python = peers_python(setting.say)
    corpus = write_text(setting.work / "sentences.txt", sentences(setting.sentences))
    cache = setting.work / "cache"
    found = commands.prepare(setting, commands.extract(setting, corpus, cache))
    layer = str(min(LAYER, found["n_layers_cached"] - 1))
    examples = setting.work / "examples"
    examples.mkdir()
    commands.prepare(setting, commands.ours("export", commands.entry(cache), corpus, layer, SEED, examples))

    def training(*more: str) -> list[str]:
        return [
            "--controls",
            "none",
            "--evidence",
            "none",
            "--seed",
            SEED,
            "--probe.l2",
            L2,
            *commands.TO_A_THOUSANDTH,
            *more,
        ]

    contestants = [
        Contestant(OURS, lambda f: commands.fit(setting, corpus, cache, f, *training("--replicates", "0"))),
        Contestant(REPLICATES, lambda f: commands.fit(setting, corpus, cache, f, *training("--replicates", "5"))),
        Contestant(NEUROX, lambda folder: commands.peer(python, "neurox_tool", "probe", examples)),
        Contestant(SCIKIT, lambda folder: commands.peer(python, "scikit", examples, L2), SCIKIT_ROUNDS),
    ]  # fmt: skip
    quality: dict[str, float] = {}

    def check(answers: Mapping[str, Path]) -> list[Check]:
        run = answers[OURS] / "run"
        own = commands.prepare(setting, commands.ours("weights", run, layer, examples / "ours.npz"))
        files = [examples / f"{name}.npz" for name in ("ours", "neurox-10", "scikit")]
        quality.update(commands.prepare(setting, commands.peer(python, "answers", "probes", examples, L2, *files)))
        apart = abs(quality["ours.test_cross_entropy"] - own["cross_entropy"])
        above = quality["ours.objective"] - quality["scikit.objective"]
        return [
            Check("test cross-entropy of our probe, as the run says and as measured here", apart, EVALUATED),
            Check("objective of our probe above scikit-learn's, nats", above, GAP + EVALUATED),
            Check("largest optimality_gap of all layers, nats", own["worst_optimality_gap"], GAP),
        ]

    runs, checks = interleave(contestants, setting, check)
    runs = [_with_quality(run, quality) for run in runs]
    return Comparison(runs, NEUROX, checks, _met(runs), [_notes(runs, layer)])


def _with_quality(run: Run, quality: Mapping[str, float]) -> Run:
    name = {OURS: "ours", NEUROX: "neurox-10", SCIKIT: "scikit"}.get(run.contestant)
    more = {key.split(".")[1]: value for key, value in quality.items() if key.split(".")[0] == name}
    if "probe_s" in run.values:
        # Loading the cache and writing the tables are not part of the training time.
        part = run.values["probe_s"] + (run.values["evidence_s"] if run.contestant == REPLICATES else 0)
        more |= {"command_s": run.values["seconds"], "seconds": part}
    return Run(run.contestant, run.round, {**run.values, **more})


def _met(runs: list[Run]) -> list[Met]:
    theirs = values_of(runs, NEUROX, "seconds")
    found = []
    for key, name, must in (("probe", OURS, 2.0), ("probe_replicates", REPLICATES, None)):
        of_medians, paired = ratios(theirs, values_of(runs, name, "seconds"))
        text = f"{of_medians:.2f} times (median of paired ratios {paired:.2f})"
        found.append(Met(key, text, None if must is None else of_medians <= must))
    return found


def _notes(runs: list[Run], layer: str) -> str:
    n_tokens, n_classes = (median_of(runs, OURS, name) for name in ("n_train_tokens", "n_classes"))
    return (
        f"{n_tokens:.0f} training tokens, {n_classes:.0f} classes; the one layer is {layer}. Ratios are to NeuroX's "
        "trainer. Cross-entropies, in nats, and the objective are of that layer, by one function on the same tokens."
    )  # fmt: skip
