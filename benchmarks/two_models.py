"""The built-in model and one of BERT's size beside each other: what holds for both, and what for one.

    python -m benchmarks.two_models --wic wic/ --sts sts/        # after `make models`
    python -m benchmarks.two_models --parts fit,compare --quick   # some of it, on fewer sentences

Runs `fit`, `geometry`, `attention`, `ablate`, `compare`, `wic` and `sts` on both models, each in a process of its own
whose memory is watched, and writes tables, figures and a page into one folder. Runs that are finished there are read,
so that the same command goes on after a kill; `--use wic-minilm=RUN` reads a finished run from elsewhere. Both models
are read at the same relative depths: all layers of the built-in model, every second one of the other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import ROOT, BenchmarkError, read_csv, write_csv
from benchmarks.machine import describe
from benchmarks.memory import base_model
from probing import load_run
from probing.models import load_config, resolve_model

PARTS = ("fit", "geometry", "attention", "ablate", "compare", "wic", "sts")
# Sentences of the built-in corpus that are read, and how many heads and layers are ablated on.
N_SENTENCES, N_QUICK = 500, 200
TOKENS = 1_000
DEPTHS = 6
COSTS = ("run", "seconds", "processor_s", "peak_anonymous_mb", "peak_mapped_mb", "date", "load before")


@dataclass(frozen=True)
class Asked:
    """What is run, and where it is written.

    Args:
        folder: The folder of runs, tables and figures.
        models: What names each model, by its short name.
        n_sentences: Number of first sentences of the built-in corpus that are read.
        parts: Names of the parts.
        data: Folders of `wic` and `sts`; None where they were not given.
        used: Folders of finished runs from elsewhere, by the name of the run that they stand for.
        threads: Number of threads.
    """

    folder: Path
    models: Mapping[str, str]
    n_sentences: int
    parts: Sequence[str]
    data: Mapping[str, str | None]
    used: Mapping[str, Path]
    threads: int

    @property
    def corpus(self) -> Path:
        """The text."""
        return self.folder / f"text-{self.n_sentences}.txt"

    def run(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.used.get(name, self.folder / "runs" / f"{name}-{self.n_sentences}")


def depths(n_blocks: int) -> list[int]:
    """Return the layers at the same relative depths in every model: embeddings, sixths of the blocks, the last."""
    return sorted({round(Fraction(i * n_blocks, DEPTHS)) for i in range(DEPTHS + 1)})


def options_of(part: str, name: str, asked: Asked) -> list[str] | None:
    """Return the arguments of a run, without the model; None where its data were not given.

    Args:
        part: Name of the part, which is that of the command.
        name: Short name of the model.
        asked: What is run.
    """
    n_blocks = load_config(resolve_model(asked.models[name])).num_hidden_layers
    text = ["--corpus", str(asked.corpus)]
    layers = ["--layer", ",".join(map(str, depths(n_blocks)))]
    if part == "fit":
        return [*text, *layers, "--replicates", "3", "--evidence", "none"]
    if part == "geometry":
        return [*text, *layers, "--transforms", "clip,whiten"]
    if part == "attention":
        return [*text, "--parts", "classes,profile,tokens"]
    if part == "ablate":
        run = ["--run", str(asked.run(f"fit-{name}"))]
        return [*run, "--units", "layers", "--kinds", "skip", "--retrain", "0", "--tokens", str(TOKENS)]
    data = asked.data[part]
    return None if data is None else [data, *layers]


def make(asked: Asked) -> dict[str, Any]:
    """Make the runs of the parts that are not there, and return all that are, by their names.

    Raises:
        BenchmarkError: If a run fails; those that are finished stay.
    """
    asked.folder.mkdir(parents=True, exist_ok=True)
    if not asked.corpus.exists():
        write_text(asked.corpus, sentences(asked.n_sentences))
    found: dict[str, Any] = {}
    for part in PARTS:
        if part == "compare":
            fits = [str(asked.run(f"fit-{name}")) for name in asked.models]
            wanted: dict[str, list[str] | None] = {"compare": [*fits, "--matching", "correlation"]}
        else:
            wanted = {f"{part}-{name}": _with_model(part, name, asked) for name in asked.models}
        for name, args in wanted.items():
            is_there = (asked.run(name) / "results.json").is_file()
            if part in asked.parts and args is not None and not is_there:
                _measure(part, name, args, asked)
                is_there = True
            if is_there:
                found[name] = load_run(asked.run(name))
    return found


def _with_model(part: str, name: str, asked: Asked) -> list[str] | None:
    options = options_of(part, name, asked)
    # A run of `ablate` takes the model from the run of `fit`.
    model = [] if part == "ablate" else ["--model", asked.models[name]]
    return None if options is None else [*options, *model]


def _measure(part: str, name: str, args: Sequence[str], asked: Asked) -> None:
    """Run a command in a process of its own, and add what it took to `costs.csv`."""
    took, context = commands.in_folder(asked.folder, asked.run(name).name, part, args, asked.threads)
    path = asked.folder / "costs.csv"
    before = [row for row in read_csv(path) if row["run"] != name] if path.exists() else []
    row = {"run": name, **{key: took[key] for key in COSTS if key in took}}
    write_csv(path, COSTS, [*before, row | {key: context[key] for key in ("date", "load before")}])


def main(args: Sequence[str] | None = None) -> int:
    """Run what is asked for, write tables and figures; return the exit status."""
    from benchmarks.two_models_page import write_all

    asked = _options(args)
    try:
        found = make(asked)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    context = describe(asked.threads)
    (asked.folder / "machine.json").write_text(json.dumps(context, indent=2), encoding="utf-8")
    print(write_all(asked.folder, list(asked.models), found, asked.n_sentences, context))
    return 0


def _options(args: Sequence[str] | None) -> Asked:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "two-models")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to run; all by default")
    parser.add_argument("--quick", action="store_true", help=f"read {N_QUICK} sentences instead of {N_SENTENCES}")
    parser.add_argument("--wic", help="folder of WiC, as for `wic`; without it that part is left out")
    parser.add_argument("--sts", help="folder of STS and SICK, as for `sts`; without it that part is left out")
    parser.add_argument("--models", help="two models, such as minilm,FOLDER; minilm and all-mpnet-base-v2 by default")
    parser.add_argument("--use", action="append", default=[], metavar="NAME=RUN", help="a finished run from elsewhere")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args(args)
    if unknown := set(parts := given.parts.split(",")) - set(PARTS):
        parser.error(f"no part is called {min(unknown)}; there are {', '.join(PARTS)}")
    models = given.models.split(",") if given.models else ["minilm", str(base_model() or "")]
    if len(models) != 2 or not all(models):
        parser.error("it takes two models: run `make models`, or name both with --models")
    used = dict(one.split("=", 1) for one in given.use)
    return Asked(
        given.folder, {Path(model).name: model for model in models}, N_QUICK if given.quick else N_SENTENCES,
        [part for part in PARTS if part in parts], {"wic": given.wic, "sts": given.sts},
        {name: Path(path) for name, path in used.items()}, given.threads,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
