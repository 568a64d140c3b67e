"""The whole job, from text and labels to a ranked table of every layer, compared with NeuroX's own steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks import commands
from benchmarks.corpora import sentences, word_labels, write_labelled, write_text
from benchmarks.harness import Check, Comparison, Contestant, Met, Setting, interleave, median_of, ratios, values_of
from benchmarks.peers import peers_python

COLD, WARM, NEUROX = "probing, cold", "probing, activations cached", "NeuroX"
# Largest deficit in accuracy allowed for our probes, which are at their optimum under a penalty, without intercept.
WORSE = 0.02


def compare(setting: Setting) -> Comparison:
    """Label each word, split at blanks, with its position, for both tools; probe its last piece."""
    python, model = peers_python(setting.say), commands.model_folder(setting.model)
    texts = sentences(setting.sentences)
    labels, sides = word_labels(texts)
    labelled = write_labelled(setting.work / "words.tsv", texts, labels)
    corpus = write_text(setting.work / "sentences.txt", texts)
    classes = write_text(setting.work / "labels.txt", [" ".join(row) for row in labels])
    (setting.work / "sides.json").write_text(json.dumps(sides), encoding="utf-8")
    task = ("--task", "label", "--task_args.pieces", "last", "--task_args.min_count", "1", "--seed", "0")
    options = (*task, *commands.BARE, *commands.TO_A_THOUSANDTH)
    warm = setting.work / "warm"
    commands.prepare(setting, commands.extract(setting, labelled, warm))
    contestants = [
        Contestant(COLD, lambda folder: commands.fit(setting, labelled, folder / "cache", folder, *options)),
        Contestant(WARM, lambda folder: commands.fit(setting, labelled, warm, folder, *options)),
        Contestant(
            NEUROX,
            lambda folder: commands.peer(
                python, "neurox_tool", "whole", model, corpus, classes, setting.work / "sides.json", folder
            ),
        ),
    ]

    def check(answers: Mapping[str, Path]) -> list[Check]:
        ours = commands.accuracies(answers[COLD])
        theirs = json.loads((answers[NEUROX] / "accuracy.json").read_text(encoding="utf-8"))
        with (answers[NEUROX] / "neurons.csv").open(encoding="utf-8") as file:
            ranked = sum(1 for _ in file) - 1
        with (answers[COLD] / "run" / "neurons.csv").open(encoding="utf-8") as file:
            ours_ranked = sum(1 for _ in file) - 1
        worse = max(theirs[layer] - ours[layer] for layer in ours)
        return [
            Check("layers and neurons ranked, difference", abs(ranked - ours_ranked), 0),
            Check("accuracy, how much lower ours is in any layer", worse, WORSE),
        ]

    runs, checks = interleave(contestants, setting, check)
    for name in ("n_train_tokens", "n_classes"):
        apart = abs(median_of(runs, COLD, name) - median_of(runs, NEUROX, name))
        checks.append(Check(f"{name}, difference", apart, 0))
    of_medians, paired = ratios(values_of(runs, COLD, "wall_s"), values_of(runs, NEUROX, "wall_s"))
    met = Met("whole_job", f"{of_medians:.1f} times faster (median of paired ratios {paired:.1f})", of_medians >= 5)
    note = (
        f"{median_of(runs, COLD, 'n_train_tokens'):.0f} training words, {median_of(runs, COLD, 'n_classes'):.0f} "
        "classes, from the start of the process to its end; ours ends with every optimality_gap at most "
        ".001 nats, contributions and intervals, NeuroX's after its 10 epochs."
    )  # fmt: skip
    return Comparison(runs, COLD, checks, [met], [note])
