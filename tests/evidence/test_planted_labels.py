"""What must come out of `fit` and `rank` where the truth is known (science.md F8 to F10), through the command line.

A model that knows nothing but the word: its embedding output is a code of its own for each of twelve words. Labels are
either the word's own, which is easy, or drawn anew for every occurrence, which nobody can know.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from families import D_MODEL
from probing import Run, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from written import read_csv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning")

N_WORDS, N_SENTENCES = 12, 240
LABELS = ("A", "B", "C")


def lookup(model: Path, copy: Path, words: list[str]) -> Path:
    """Save a copy of a BERT whose embedding output is one-hot in the word, up to a LayerNorm, and nothing else."""
    shutil.copytree(model, copy)
    weights, tokenizer = load_file(copy / "model.safetensors"), AutoTokenizer.from_pretrained(copy)
    for name in weights:
        if name.startswith("embeddings") and weights[name].ndim == 2:
            weights[name].zero_()
    (table,) = (name for name in weights if name.startswith("embeddings") and "word" in name)
    for i, word in enumerate(words):
        (piece,) = tokenizer(word, add_special_tokens=False)["input_ids"]
        weights[table][piece, i] = 1.0
    weights["embeddings.LayerNorm.weight"] = torch.ones(D_MODEL)
    weights["embeddings.LayerNorm.bias"] = torch.zeros(D_MODEL)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


def single_words(model: Path, sentences: list[str]) -> list[str]:
    """Return words of the corpus that are a token each."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    known = sorted({word for sentence in sentences for word in sentence.lower().split() if word.isalpha()})
    return [word for word in known if len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1][:N_WORDS]


def spelt(word: str, capitals: np.random.Generator | None) -> str:
    """Return a word, with a capital half of the time if they are drawn."""
    return word.capitalize() if capitals is not None and capitals.random() < 0.5 else word


@pytest.fixture(scope="module")
def made(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """Runs on labels that are the word's own (`easy`) and drawn for every occurrence (`random`).

    And of an uncased model on words that are the same but for a capital now and then (`capitals`).
    """
    place, generator = tmp_path_factory.mktemp("planted-labels"), np.random.default_rng(0)
    words = single_words(checkpoints["bert"], sentences)
    assert len(words) == N_WORDS
    cased = lookup(checkpoints["bert"], place / "lookup", words)
    uncased = lookup(checkpoints["distilbert"], place / "uncased", words)
    texts = [generator.integers(N_WORDS, size=generator.integers(6, 12)) for _ in range(N_SENTENCES)]
    labels: dict[str, Any] = {
        "easy": [[LABELS[i % 3] for i in text] for text in texts],
        "random": [generator.choice(LABELS, size=len(text)) for text in texts],
    }
    labels["capitals"] = labels["easy"]
    found = {}
    for name, rows in labels.items():
        model, capitals = (uncased, generator) if name == "capitals" else (cased, None)
        pairs = zip(texts, rows, strict=True)
        lines = [
            "".join(f"{spelt(words[i], capitals)}\t{label}\n" for i, label in zip(*pair, strict=True)) for pair in pairs
        ]
        (place / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
        typed = ["fit", "--model", str(model), "--corpus", str(place / f"{name}.tsv"), "--task", "label"]
        typed += [
            "--layer",
            "0",
            "--mdl",
            "--probe.l2",
            "0.01",
            "--controls",
            "control_task",
            "--replicates",
            "0",
            "--evidence",
            "none",
        ]
        typed += ["--runs", str(place), "--name", name, "--wandb.mode", "disabled", "--quiet"]
        assert run(COMMANDS, typed) == 0
        found[name] = load_run(place / name)
    return found


@pytest.mark.slow
def test_random_labels_take_the_uniform_code_and_easy_ones_far_fewer_bits(made: dict[str, Run]) -> None:
    easy, random = (made[name].accuracy[0] for name in ("easy", "random"))
    for row in (easy, random):
        assert row["uniform_code_bits"] == pytest.approx(row["n_train_tokens"] * np.log2(len(LABELS)))
    # By Kraft's inequality any code saves m bits on uniformly random labels with chance 2^-m.
    assert random["uniform_code_bits"] - 20 < random["online_code_bits"] < 1.1 * random["uniform_code_bits"]
    assert easy["compression"] > 5
    assert easy["accuracy"] > 0.99


@pytest.mark.slow
def test_erased_labels_are_predicted_as_well_as_by_the_best_constant_answer(made: dict[str, Run]) -> None:
    folder = made["easy"].folder
    assert run(COMMANDS, ["rank", str(folder), "--erase", "--top", "6", "--quiet", "--wandb.mode", "disabled"]) == 0
    rows = {row["condition"]: row for row in read_csv(folder / "rankings" / "erasure.csv")}
    assert rows["all"]["accuracy"] > 0.99
    erased = rows["erased"]
    assert erased["n_removed"] == len(LABELS) - 1
    # The held-out majority, but for answers that are as good as equal: a quarter of a standard error of an accuracy.
    assert erased["accuracy"] == pytest.approx(
        erased["majority_accuracy"], abs=0.25 * 0.5 / erased["n_test_tokens"] ** 0.5
    )
    assert erased["cross_entropy"] == pytest.approx(erased["constant_cross_entropy"], abs=0.01)
    # As many directions of labels shuffled within sentences, which still go with the words a little, leave some.
    assert rows["erased_shuffled"]["information_low"] > erased["information_high"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["easy", "random", "capitals"])
def test_who_looks_words_up_masters_the_control_task_so_that_selectivity_is_not_above_0(
    made: dict[str, Run], name: str
) -> None:
    (row,) = made[name].accuracy
    assert row["control_task_accuracy"] > 0.99
    assert row["selectivity"] == row["accuracy"] - row["control_task_accuracy"]
    assert row["selectivity"] <= 0
    assert row["above_control_task_low"] <= row["selectivity"] <= row["above_control_task_high"]
    if name == "random":
        assert row["selectivity"] < -0.5
