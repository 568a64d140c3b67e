r"""Compare neurons with random directions in six models, pretrained and randomly initialised, and print the table.

    python -m benchmarks.bases --reactions reactions.txt --treebank dev.conllu   # after `make models`
    python -m benchmarks.bases --reactions reactions.txt --treebank dev.conllu --models smollm2 \
        --tasks upos --layers 0,15,30

Is the basis of neurons privileged, does training make it so, and in which layers? Runs `fit` with `--rotations` and
without other evidence, each in a process of its own. Runs that are finished are read, so that the same command
continues after a kill. docs/notes/real-models.md has the table.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.corpora import sentences, write_text
from benchmarks.harness import ROOT, BenchmarkError
from benchmarks.machine import describe
from benchmarks.models import MODELS
from benchmarks.real_models import LONGEST, N_TEXTS
from probing import load_run

# Models by name, with the text that they read. A decoder is measured without the first token of each sentence, whose
# few extreme neurons are no matter of position (`geometry --first_token`).
READS = {
    "minilm": "english", "all-mpnet-base-v2": "english", "smollm2": "english",
    "rxn-bert": "reactions", "rxn-bert-tuned": "reactions", "rxn-albert": "reactions",
}  # fmt: skip
BARE = ("--controls", "none", "--replicates", "0", "--evidence", "none", "--rotations", "20", "--figure_format", "png")
INITIALISATIONS = {"trained": (), "random": ("--random_weights", "true")}
TASKS = ("position", "upos")
COLUMNS = (
    "model", "layer", "neurons", "directions", "above", "neurons, centred", "directions", "above", "neurons, random",
    "directions", "neurons, random, centred", "directions",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def texts(folder: Path, reactions: Path) -> dict[str, Path]:
    """Write the first sentences of the built-in corpus and the first short reactions, and return their files.

    Raises:
        BenchmarkError: If the file has too few short reactions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = dict.fromkeys(reactions.read_text(encoding="utf-8").splitlines())
    short = [line for line in lines if 0 < len(line) <= LONGEST][:N_TEXTS]
    if len(short) < N_TEXTS:
        raise BenchmarkError(f"{reactions}: {len(short)} reactions have at most {LONGEST} characters; give {N_TEXTS}")
    return {
        "english": write_text(folder / "english.txt", sentences(N_TEXTS)),
        "reactions": write_text(folder / "reactions.txt", short),
    }


def runs(
    models: Sequence[str], tasks: Sequence[str], layers: str, folder: Path, corpora: Mapping[str, Path], treebank: Path,
    threads: int,
) -> Iterator[tuple[str, str, Any, Any]]:  # fmt: skip
    """Run what is not finished; yield for each model and task its name, the task, and the runs of both models."""
    for model in models:
        text, path = READS[model], model if model == "minilm" else str(MODELS / model)
        for task in (task for task in tasks if task == "position" or text == "english"):
            corpus = treebank if task == "upos" else corpora[text]
            options = ["--model", path, "--corpus", str(corpus), "--task", task, "--layer", layers, *BARE]
            if model == "smollm2":
                options += ["--first_token", "exclude"]
            both = []
            for initialisation, more in INITIALISATIONS.items():
                name = f"{model}-{task}-{initialisation}{'' if layers == 'all' else '-' + layers.replace(',', '+')}"
                if not (folder / "runs" / name / "results.json").is_file():
                    commands.in_folder(folder, name, "fit", [*options, *more], threads)
                both.append(load_run(folder / "runs" / name))
            yield model, task, *both


def table(model: str, trained: Any, random: Any) -> Iterator[str]:
    """Yield a line of the table for each layer: shares of the first 10, and how many neurons are above directions."""
    rows = {(row["layer"], row["kind"]): (row, other) for row, other in zip(trained.basis, random.basis, strict=True)}
    for layer in dict.fromkeys(layer for layer, _ in rows):
        (plain, other), (centred, other_centred) = (rows[layer, kind] for kind in ("plain", "centred"))
        cells = [model, str(layer), *_shares(plain), str(plain["n_above"]), *_shares(centred), str(centred["n_above"])]
        yield f"| {' | '.join([*cells, *_shares(other), *_shares(other_centred)])} |"


def _shares(row: Mapping[str, Any]) -> tuple[str, str]:
    lowest, highest = row["first_10_share_lowest"], row["first_10_share_highest"]
    return f"{row['first_10_share']:.3f}"[1:], f"{lowest:.3f} to {highest:.3f}".replace("0.", ".")


def main() -> int:
    """Run `fit` on every model, and print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reactions", type=Path, required=True, help="file of reactions (SMILES), a line each")
    parser.add_argument("--treebank", type=Path, required=True, help="treebank (CoNLL-U) for the parts of speech")
    parser.add_argument("--models", nargs="+", choices=READS, default=list(READS), help="all by default")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="both by default")
    parser.add_argument("--layers", default="all", help="such as 0,15,30")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bases")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if missing := [name for name in options.models if name != "minilm" and not (MODELS / name).is_dir()]:
        parser.error(f"{missing[0]} is not there: `make models` brings it")
    lines: dict[str, list[str]] = {task: [] for task in options.tasks}
    try:
        corpora = texts(options.folder, options.reactions)
        chosen = options.models, options.tasks, options.layers
        for model, task, trained, random in runs(*chosen, options.folder, corpora, options.treebank, options.threads):
            lines[task] += table(model, trained, random)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    print(", ".join(f"{name}: {value}" for name, value in describe(options.threads).items()))
    for task, of_task in lines.items():
        print(f"\n## {task}\n\n{HEADER}", *of_task, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
