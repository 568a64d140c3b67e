"""Ranking: order a trained probe's neurons, compared with NeuroX by the same statistic on the same weights."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks import commands
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import Check, Comparison, Contestant, Setting, interleave
from benchmarks.peers import peers_python

LAYER, SEED = 3, "0"
N_SENTENCES = 1000
# Sums over tokens in another order exchange neighbours whose scores agree in seven digits.
AGREE = 0.02
OURS = "probing, weight_mass and probeless"
THEIRS = {"weight_mass": "NeuroX, weight mass", "probeless": "NeuroX, probeless"}


def compare(setting: Setting) -> Comparison:
    """Rank in turns; the order of `probeless`, which has no ties, must be the same."""
    python = peers_python(setting.say)
    corpus = write_text(setting.work / "sentences.txt", sentences(min(setting.sentences or N_SENTENCES, N_SENTENCES)))
    cache, runs, examples = (setting.work / name for name in ("cache", "runs", "examples"))
    fitted = commands.prepare(
        setting, commands.fit(setting, corpus, cache, runs, *commands.BARE, *commands.TO_A_THOUSANDTH, "--seed", SEED)
    )
    layer = str(min(LAYER, fitted["n_layers_cached"] - 1))
    examples.mkdir()
    commands.prepare(setting, commands.ours("export", commands.entry(cache), corpus, layer, SEED, examples))
    weights = examples / "weights.npz"
    commands.prepare(setting, commands.ours("weights", runs / "run", layer, weights))
    method = ("--method", "[weight_mass,probeless]", "--layer", layer, "--quiet", "--wandb.mode", "disabled")
    contestants = [
        Contestant(OURS, lambda folder: commands.ours("command", "rank", runs / "run", *method)),
        *(
            Contestant(name, lambda folder, m=m: commands.peer(python, "neurox_tool", "rank", examples, weights, m))  # type: ignore[misc]
            for m, name in THEIRS.items()
        ),
    ]

    def check(answers: Mapping[str, Path]) -> list[Check]:
        theirs = json.loads((examples / "neurox-probeless.json").read_text(encoding="utf-8"))
        with (runs / "run" / "rankings" / "probeless.csv").open(newline="", encoding="utf-8") as file:
            ours = [int(row["neuron"]) for row in csv.DictReader(file) if row["layer"] == layer]
        apart = sum(a != b for a, b in zip(ours, theirs, strict=True)) / len(ours)
        return [Check("probeless, share of ranks with another neuron than NeuroX's", apart, AGREE)]

    found, checks = interleave(contestants, setting, check)
    note = f"Layer {layer}. Ours reads the cached activations from disk; NeuroX has them in memory already."
    return Comparison(found, OURS, checks, notes=[note])
