"""How often `tuning-effect` calls a change the task's where checkpoints differ in the seed alone.

    python benchmarks/null_tuning_effect.py reviews.csv                      # 16 seeds, 40 pairs of three seeds each
    python benchmarks/null_tuning_effect.py reviews.csv --seeds 24 --of 5

A model is tuned on the true labels with many seeds. Then two groups of seeds are drawn again and again: one stands for
the checkpoints that were tuned on the task, the other for those that were tuned on shuffled labels. Whatever is called
the task's is a false alarm. Prints how many pairs of groups have one, and of which measures;
docs/notes/training.md has what was seen.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

import probing
from probing.studies.tuning_effect.survey import layer_rows


def main() -> None:
    """Tune, measure, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="sentences with labels, as `finetune --corpus` takes them")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--of", type=int, default=3, help="seeds of a group")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--sentences", type=int, default=150, help="sentences that checkpoints are compared on")
    parser.add_argument("--runs", default="runs")
    given = parser.parse_args()
    usual = {"runs": given.runs, "quiet": True, "wandb": {"mode": "disabled"}}
    name = f"null-tuning-effect-{Path(given.corpus).stem}"
    if not (Path(given.runs) / name).is_dir():
        probing.finetune(
            model=given.model, corpus=given.corpus, starts="pretrained", seeds=given.seeds, orders=1, name=name, **usual
        )
    tuned = probing.load_run(Path(given.runs) / name)
    folders = [str(tuned.folder / "checkpoints" / f"pretrained-seed{row['seed']}-order{row['order_seed']}")
               for row in tuned.tunings]  # fmt: skip
    # Which group a checkpoint is of does not change what is measured of it; pairs within the first are not needed here.
    made = probing.tuning_effect(
        start=given.model, tuned=folders[:1], shuffled=folders[1:], corpus=given.corpus, sentences=given.sentences,
        **usual,
    )  # fmt: skip
    changes = [dict(row) for row in made.checkpoint_changes]
    names = sorted({row["checkpoint"] for row in changes})
    generator, alarms, by_measure = np.random.default_rng(0), 0, Counter()
    for _ in range(given.pairs):
        drawn = [names[i] for i in generator.choice(len(names), 2 * given.of, replace=False)]
        group = dict.fromkeys(drawn[: given.of], "pretrained") | dict.fromkeys(drawn[given.of :], "shuffled")
        relabelled = [
            {**row, "start": group[row["checkpoint"]], "seed": drawn.index(row["checkpoint"])}
            for row in changes if row["checkpoint"] in group
        ]  # fmt: skip
        claimed = {row["measure"] for row in layer_rows(relabelled, {}) if row["by_task"] == "yes"}
        alarms += bool(claimed)
        by_measure.update(claimed)
    scores = [row["score"] for row in tuned.tunings]
    print(f"{len(names)} tunings, accuracy {min(scores):.3f} to {max(scores):.3f}")
    print(f"{alarms} of {given.pairs} pairs of {given.of} and {given.of} seeds have a change that is called the task's")
    for measure, n in by_measure.most_common():
        print(f"  {measure}: {n}")


if __name__ == "__main__":
    main()
