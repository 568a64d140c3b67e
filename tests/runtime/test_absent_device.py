"""Every command gives on a GPU the tables of the processor, shown without a GPU.

The devices of `pretended_device` compute as the processor does and refuse what CUDA or MPS refuses, so that a tensor on
the wrong device, or one of float64 where there is none, ends a command with an error. What differs is where sums are
taken: hence `TOLERANCE`, some rounding errors of float32. Small runs of the commands are made once on each device; a
run that reads another one reads that of the same device.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import probing
from conftest import BARE
from families import masked_lm
from pretended_device import pretended
from probing.probes import solvers as midway_curvature
from probing.runs import Result
from small_data import word_pairs, write_sts, write_wic
from synthetic import LIGHTNING_WARNINGS

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning", *LIGHTNING_WARNINGS
)

TOLERANCE = 1e-6
PROCESSOR, CUDA, MPS = "cpu", "cuda", "mps"
# An encoder that is pretrained within a second.
ENCODER = {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_feedforward": 16, "vocabulary": 100, "row_length": 16}


def treebank(sentences: list[str]) -> str:
    """Return sentences as CoNLL-U, in which every word but the second depends on the second."""
    lines = []
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            head, relation, upos = (0, "root", "VERB") if i == 2 else (2, "nsubj" if i == 1 else "dep", "NOUN")
            lines.append("\t".join([str(i), word, "_", upos, "_", "_", str(head), relation, "_", "_"]))
        lines.append("")
    return "\n".join(lines) + "\n"


class Runs:
    """Small runs of every command on each device, made when they are first asked for.

    Args:
        place: Folder for all files.
        sentences: Sentences of the corpus.
    """

    def __init__(self, place: Path, sentences: list[str]) -> None:
        self.place, self.done = place, dict[tuple[str, str], Result]()
        self.n_calls: dict[tuple[str, str], int] = {}
        self.model = str(masked_lm(place / "bert", "bert", sentences))
        self.text = str(place / "text.txt")
        Path(self.text).write_text("\n".join(sentences[:150]) + "\n", encoding="utf-8")
        (place / "trees.conllu").write_text(treebank(sentences[:30]), encoding="utf-8")
        (place / "more.conllu").write_text(treebank(sentences[30:60]), encoding="utf-8")
        with (place / "labelled.csv").open("w", encoding="utf-8", newline="") as file:
            labelled = [(text, "long" if len(text) > 60 else "short") for text in sentences[:120]]
            csv.writer(file).writerows([("text", "label"), *labelled])
        for part in ("train", "dev"):
            write_wic(place / "senses", part, word_pairs(40, len(part)))
        write_sts(place / "pairs", 20)

    def __call__(self, name: str, device: str) -> Result:
        """Return a run on a device."""
        key = name, device
        if key not in self.done:
            command, options = self.call_of(name, device)
            trainer = {"accelerator": "gpu" if device == CUDA else device, **options.pop("trainer", {})}
            usual = {
                "quiet": True, "wandb": {"mode": "disabled"}, "runs": str(self.place / device), "trainer": trainer,
                "cache": str(self.place / device / "cache"), "name": name.replace(" ", "-"),
            }  # fmt: skip
            with nullcontext() if device == PROCESSOR else pretended(device) as mode:
                self.done[key] = getattr(probing, command.replace("-", "_"))(**{**usual, **options})
            self.n_calls[key] = 0 if mode is None else mode.n_calls
        return self.done[key]

    def call_of(self, name: str, device: str) -> tuple[str, dict[str, Any]]:
        """Return the command of a run and its options; the number of tokens in a batch is set, since devices differ."""
        of_model: dict[str, Any] = {"model": self.model, "batch_tokens": 500}
        read: dict[str, Any] = {**of_model, "corpus": self.text}
        here = self.place
        trees = {**read, "corpus": str(here / "trees.conllu"), "test_corpus": str(here / "more.conllu")}
        pairs = [f"wic={here / 'senses'}", f"sts={here / 'pairs'}"]

        def run(of: str) -> str:
            return str(self(of, device).folder)

        match name:
            case "all evidence":
                return "fit", {**read, "layer": "1,2", "probe": {"l2": 1e-2}, "replicates": 2}
            case "adam":
                adam = {"solver": "adam", "l2": 1e-2}
                return "fit", {**read, **BARE, "layer": 1, "probe": adam, "trainer": {"max_epochs": 2}}
            case "sparse":
                return "fit", {**read, **BARE, "layer": 1, "probe": {"l2": 1e-2, "l1": 1e-3}}
            case "units of the MLP":
                return "fit", {**read, **BARE, "layer": 1, "site": "mlp"}
            case "layers":
                return "fit", {**read, **BARE, "layer": "all"}
            case "heads":
                return "attention", trees
            case "position heads":
                return "attention", {**read, "run": run("layers"), "parts": "position_heads,position_neurons"}
            case "ablated":
                return "ablate", {
                    **read, "readouts": ["position", "mlm", *pairs], "units": "heads", "kinds": "zero,mean,resample",
                    "retrain": 1, "prune": True, "prune_share": 0.5, "quantise": 8, "tokens": 300,
                    "trainer": {"max_epochs": 15},
                }  # fmt: skip
            case "changed neurons":
                return "ablate", {
                    "run": run("layers"), "neurons": "ranked", "batch_tokens": 500, "layer": 1, "draws": 1,
                    "retrain": 0, "kinds": "mean,direction", "tokens": 200, "readouts": ["task", "position"],
                }  # fmt: skip
            case "pretrained":
                training = {"steps": 4, "warm_up": 1, "batch_size": 4}
                return "pretrain", {
                    "corpus": self.text, "arms": "learned", "size": "tiny", "sentences": 60, "encoder": ENCODER,
                    "training": training,
                }  # fmt: skip
            case "tuned":
                return "finetune", {
                    "model": self.model, "corpus": str(here / "labelled.csv"), "seeds": 1, "orders": 1,
                    "starts": "pretrained", "tuning": {"epochs": 1},
                }  # fmt: skip
            case "tuned heads":
                return "attention", {"run": run("tuned"), "batch_tokens": 500, "parts": "similarity,change"}
            case "tuned changes":
                measures = "states,special"
                return "tuning-effect", {
                    "run": run("tuned"),
                    "sentences": 30,
                    "batch_tokens": 500,
                    "measures": measures,
                }
            case "syntax":
                few = {"train_sentences": 60, "test_sentences": 25, "generalisation_sentences": 30}
                return "hierarchy", {**of_model, **few, "layer": 1, "probe": {"l2": 1e-2}}
            case "words in context":
                return "wic", {**of_model, "folder": str(here / "senses"), "layer": 1}
            case "similar sentences":
                return "sts", {**of_model, "folders": [str(here / "pairs")], "layer": "0,1"}
            case "static vectors":
                return "position-bias", {**read, "sentences": 3, "documents": 20, "draws": 2, "top": 2}
        raise ValueError(name)


QUICK = ("all evidence", "adam", "sparse", "position heads", "heads", "pretrained", "tuned", "tuned heads")
LONG = (
    "units of the MLP", "ablated", "changed neurons", "tuned changes", "syntax",
    "words in context", "similar sentences", "static vectors",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Runs:
    return Runs(tmp_path_factory.mktemp("absent"), sentences)


@pytest.fixture(autouse=True)
def curvature_of_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no curvature on the way, which is done on processors alone: probes would take other ways there."""
    monkeypatch.setattr(midway_curvature, "LEAST_TOKENS", sys.maxsize)


def is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True))
    return bool(found == expected)


def differences(found: Result, expected: Result) -> list[str]:
    """Return the cells of all tables in which two runs differ, and check that there are any cells."""
    tables: Mapping[str, Any] = {
        schema.name: getattr(expected, schema.name)
        for schema in expected.study.schemas
        if getattr(expected, schema.name, None)
    }
    assert tables
    told = []
    for name, rows in tables.items():
        own = getattr(found, name)
        assert len(own) == len(rows)
        for i, (row, other) in enumerate(zip(own, rows, strict=True)):
            assert row.keys() == other.keys()
            wrong = [of for of in other if not is_same(row[of], other[of])]
            told += [f"{name} {i} {of}: {row[of]}, expected {other[of]}" for of in wrong]
    return told


# What differs between the two devices, such as float64, is in what the quick runs do.
@pytest.mark.parametrize(
    ("name", "device"),
    [(name, device) for name in QUICK for device in (CUDA, MPS)]
    + [pytest.param(name, CUDA, marks=pytest.mark.slow) for name in LONG],
)
def test_a_run_has_the_tables_of_the_processor(name: str, device: str, runs: Runs) -> None:
    found, expected = runs(name, device), runs(name, PROCESSOR)
    assert runs.n_calls[name, device] > 1000
    assert differences(found, expected) == []
