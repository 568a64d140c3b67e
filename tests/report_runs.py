"""A small finished run with every kind of column that a report shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probing import WandbOptions, attention, fit
from probing.tables.columns import UNRESOLVED
from written import read_csv, write_csv

# Looser than usual: these probes only have to be there.
QUICKLY: dict[str, Any] = {
    "quiet": True, "wandb": {"mode": "disabled"}, "layer": "0,2", "probe": {"tolerance": 1e-3, "l2": 1e-2},
    "replicates": 0, "controls": "none", "evidence": "none",
}  # fmt: skip

# By rank, what retraining without the neuron showed.
PLANTED = {1: (0.025, "top"), 2: (0.0001, f"top, {UNRESOLVED}"), 9: (0.0006, "matched")}


def make_run(model: Path, corpus: Path, place: Path, name: str) -> Path:
    """Fit a run with controls and bootstraps, and plant what retraining without neurons would have found."""
    options = {**QUICKLY, "replicates": 2, "controls": "shuffled,untrained"}
    made = fit(model=str(model), corpus=str(corpus), runs=str(place), name=name, **options)
    assert made is not None
    rows = read_csv(made.folder / "neurons.csv")
    for row in rows:
        rise, removed = PLANTED.get(row["rank"], (None, None))
        row |= {
            "unique": 0.3 / row["rank"],
            "cross_entropy_without": rise,
            "removed": removed,
            "removed_p": removed and 0.001,
        }
        # The third by rank is as a neuron is that stands far from 0.
        row |= {"contribution_companion": row["contribution"] / 2 if row["rank"] == 3 else None}
        row |= {"mean": 4 * row["sd"]} if row["rank"] == 3 else {}
        row |= {f"cross_entropy_without_{end}": rise and rise + by for end, by in (("low", -0.005), ("high", 0.005))}
    write_csv(made.folder / "neurons.csv", rows)
    return made.folder


def treebank(sentences: list[str]) -> str:
    """Write sentences as CoNLL-U in which each word but the first depends on the previous one."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            relation = "root" if i == 1 else ("dep", "nmod")[i % 2]
            lines.append(f"{i}\t{word}\t_\tX\t_\t_\t{i - 1}\t{relation}\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


def make_survey(model: Path, sentences: list[str], place: Path, name: str) -> Path:
    """Survey the heads of a model on a treebank."""
    (place / "train.conllu").write_text(treebank(sentences[:40]), encoding="utf-8")
    (place / "test.conllu").write_text(treebank(sentences[40:70]), encoding="utf-8")
    made = attention(
        model=str(model), corpus=str(place / "train.conllu"), test_corpus=str(place / "test.conllu"), runs=str(place),
        name=name, parts="classes,profile,tokens,relations,trees", quiet=True, trainer={"accelerator": "cpu"},
        wandb=WandbOptions("disabled"),
    )  # fmt: skip
    assert made is not None
    return made.folder
