"""Pretrained models of the kinds that papers are about, each read as its kind asks for, beside the built-in model.

    python -m benchmarks.real_models --reactions reactions.txt              # after `make models`; an hour of two cores
    python -m benchmarks.real_models --reactions reactions.txt --models rxn-bert --parts fit,geometry

Masked language models of chemical reactions (BERT, the same fine-tuned, ALBERT) read reactions, a line each; a decoder
and the built-in model read English, the built-in corpus. Runs `fit`, `geometry`, `attention`, `ablate` and
`compare`, each in a process of its own, and writes tables and figures into one folder. Runs that are finished there are
read, so that the same command goes on after a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import ROOT, BenchmarkError
from benchmarks.machine import describe
from benchmarks.models import MODELS
from probing import load_run

PARTS = ("fit", "geometry", "attention", "change", "ablate", "neurons", "first_token", "compare")
# Number of texts, and most characters of a reaction: longer ones have positions that few others have.
N_TEXTS, LONGEST = 400, 160
# Tokens that are read while blocks are skipped or neurons changed, and layers in which neurons are changed.
TOKENS, CHANGED_LAYERS = 4_000, "2,5,8,10"
# Without what takes longest on wide and deep models: bootstraps, and probes retrained without a neuron.
BARE = ("--replicates", "0", "--evidence", "none")
FEW = ("--replicates", "2", "--evidence", "none")


@dataclass(frozen=True)
class Read:
    """How a model is read.

    Args:
        name: Its short name; that of its folder under `runs/models`, but for the built-in one.
        text: Which text it reads.
        fit: Options of `fit`.
        untuned: The model that it was fine-tuned from.
        has_head: Whether it has a head for masked words, by which a loss is measured.
        neurons: Whether the neurons that its probes read first are changed inside the model.
        is_decoder: Whether the first token of each sentence is looked at alone.
    """

    name: str
    text: str
    fit: tuple[str, ...] = ()
    untuned: str = ""
    has_head: bool = False
    neurons: bool = False
    is_decoder: bool = False

    @property
    def model(self) -> str:
        """What names the model to the commands."""
        return self.name if self.name == "minilm" else str(MODELS / self.name)


READ = (
    Read("rxn-bert", "reactions", has_head=True, neurons=True),
    Read("rxn-bert-tuned", "reactions", FEW, untuned="rxn-bert"),
    Read("rxn-albert", "reactions", has_head=True, neurons=True),
    Read("smollm2", "english", ("--layer", "0,1,2,3,6,9,12,15,18,21,24,27,30", *BARE), is_decoder=True),
    Read("minilm", "english"),
)


@dataclass(frozen=True)
class Asked:
    """What is run, and where it is written.

    Args:
        folder: The folder of runs, tables and figures.
        models: The models.
        parts: Names of the parts.
        reactions: File of reactions, a line each; None leaves out the models that read them.
        threads: Number of threads.
    """

    folder: Path
    models: Sequence[Read]
    parts: Sequence[str]
    reactions: Path | None
    threads: int

    def run(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / name

    def text(self, which: str) -> Path:
        """Return the file of a text."""
        return self.folder / f"{which}-{N_TEXTS}.txt"


def write_texts(asked: Asked) -> None:
    """Write the texts that are not there: the first short reactions, and the first sentences of the built-in corpus.

    Raises:
        BenchmarkError: If the file has too few short reactions.
    """
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.reactions and not (path := asked.text("reactions")).exists():
        lines = asked.reactions.read_text(encoding="utf-8").splitlines()
        short = [line for line in dict.fromkeys(lines) if 0 < len(line) <= LONGEST][:N_TEXTS]
        if len(short) < N_TEXTS:
            raise BenchmarkError(f"{asked.reactions}: {len(short)} reactions have at most {LONGEST} characters, of "
                                 f"{N_TEXTS} that are read; give a file with more")  # fmt: skip
        write_text(path, short)
    if not (path := asked.text("english")).exists():
        write_text(path, sentences(N_TEXTS))


def first_neurons(fit: Any, n: int = 2) -> list[int]:
    """Return the neurons that rank first in the most layers, ties by the lower index."""
    first = [fit.top(row["layer"], 1)[0]["neuron"] for row in fit.accuracy]
    return sorted(dict.fromkeys(first), key=lambda neuron: (-first.count(neuron), neuron))[:n]


def wanted(part: str, read: Read, asked: Asked) -> dict[str, tuple[str, list[str]]]:
    """Return the runs of a part on a model: by their names the command and its arguments; empty where there is none.

    Args:
        part: Name of the part.
        read: How the model is read.
        asked: What is run.
    """
    about = ["--model", read.model, "--corpus", str(asked.text(read.text))]
    fit, name = str(asked.run(f"fit-{read.name}")), f"{part}-{read.name}"
    if part == "fit":
        return {name: ("fit", [*about, "--controls", "all", *read.fit])}
    if part == "geometry":
        return {name: ("geometry", [*about, "--transforms", "clip,whiten", "--draws", "10"])}
    if part == "attention":
        heads = [] if read.is_decoder else ["--run", fit]
        parts = "classes,profile,tokens" if read.is_decoder else "classes,profile,tokens,position_heads"
        return {name: ("attention", [*about, *heads, "--parts", parts])}
    if part == "change" and read.untuned:
        before = [model.model for model in READ if model.name == read.untuned]
        return {name: ("attention", [*about, "--parts", "change", "--against", *before])}
    if part == "ablate":
        readouts = ["--readouts", "position,mlm" if read.has_head else "position", "--tokens", str(TOKENS)]
        return {name: ("ablate", ["--run", fit, "--units", "layers", "--kinds", "skip", "--retrain", "0", *readouts])}
    if part == "neurons" and read.neurons:
        how = ["--layer", CHANGED_LAYERS, "--readouts", "mlm", "--tokens", str(TOKENS)]
        one_by_one = {
            f"{name}-{neuron}": ("ablate", [*about, *how, "--neurons", str(neuron)])
            for neuron in first_neurons(load_run(Path(fit)))
        }
        return {**one_by_one, f"interventions-{read.name}": ("ablate", [*about, "--neurons", "outliers"])}
    if part == "first_token" and read.is_decoder:
        without = [*about, "--first_token", "exclude"]
        return {
            name: ("geometry", [*without, "--transforms", "clip", "--draws", "10"]),
            f"attention-{name}": ("attention", [*without, "--parts", "tokens,first_token"]),
        }
    return {}


def make(asked: Asked) -> dict[str, Any]:
    """Make the runs of the parts that are not there, and return all that are, by their names.

    Raises:
        BenchmarkError: If a run fails; those that are finished stay.
    """
    write_texts(asked)
    for part in asked.parts:
        for read in asked.models:
            for name, (command, args) in wanted(part, read, asked).items():
                _measure(name, command, args, asked)
    if "compare" in asked.parts:
        fits = [str(asked.run(f"fit-{read.name}")) for read in asked.models if read.text == "reactions"]
        fits = [fit for fit in fits if (Path(fit) / "results.json").is_file()]
        if len(fits) > 1:
            _measure("compare", "compare", fits, asked)
    finished = sorted(path.parent for path in (asked.folder / "runs").glob("*/results.json"))
    return {path.name: load_run(path) for path in finished if path.suffix != ".partial"}


def _measure(name: str, command: str, args: Sequence[str], asked: Asked) -> None:
    """Run a command in a process of its own, unless its run is there, and write down what it took."""
    if (asked.run(name) / "results.json").is_file():
        return
    took, context = commands.in_folder(asked.folder, name, command, args, asked.threads)
    (asked.folder / "costs").mkdir(exist_ok=True)
    row: Mapping[str, Any] = {"run": name, **took, "date": context["date"], "load before": context["load before"]}
    (asked.folder / "costs" / f"{name}.json").write_text(json.dumps(row), encoding="utf-8")


def main(args: Sequence[str] | None = None) -> int:
    """Run what is asked for, write tables and figures; return the exit status."""
    asked = _options(args)
    try:
        found = make(asked)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    from benchmarks.real_models_page import write_all

    print(write_all(asked.folder, found, describe(asked.threads)))
    return 0


def _options(args: Sequence[str] | None) -> Asked:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "real-models")
    parser.add_argument("--reactions", type=Path, help="file of reactions (SMILES), a line each")
    names = [read.name for read in READ]
    parser.add_argument("--models", default=",".join(names), help="models to read; all by default")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to run; all by default")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args(args)
    for typed, known in ((given.parts, PARTS), (given.models, names)):
        if unknown := set(typed.split(",")) - set(known):
            parser.error(f"there is no {min(unknown)}; there are {', '.join(known)}")
    models = [read for read in READ if read.name in given.models.split(",")]
    if given.reactions is None and any(read.text == "reactions" for read in models):
        parser.error("models of reactions read a file: name it with --reactions, or choose --models smollm2,minilm")
    if missing := [read.name for read in models if read.name != "minilm" and not Path(read.model).is_dir()]:
        parser.error(f"{missing[0]} is not there: `make models` brings it")
    return Asked(
        given.folder, models, [part for part in PARTS if part in given.parts.split(",")], given.reactions, given.threads
    )


if __name__ == "__main__":
    sys.exit(main())
