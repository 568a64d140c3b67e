"""Draw pictures of the pages again, from today's code: `make figures ARGS=DATA`, an hour of one core.

A command whose figures are there is not run again, so that this goes on after a kill. Pictures that are not in the
table are of trainings, of `benchmarks`, and of the report in a browser; the notes on them say how they are made.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

FIGURES = Path(__file__).with_name("figures")
SWEEP = Path(__file__).parent.parent / "conf" / "sweeps" / "layers.yaml"
ALL = "fit --name all"
DEV, TRAIN = "DATA/ud/en_ewt-ud-dev.conllu", "DATA/ud/en_ewt-ud-train.conllu"


def _figures(run: str, pictures: str, start: str = "") -> dict[str, str]:
    """Return where a run has some figures, by the names of the pictures that they become."""
    return {f"{start}{name}": f"runs/{run}/figures/{name}.png" for name in pictures.split()}


# The figures that each command draws, by the names of the pictures. DATA is a folder with English-EWT in `ud/`, and
# `wic/`.
DRAWN: Mapping[str, Mapping[str, str]] = {
    ALL: _figures("all", "accuracy"),
    f"fit --name upos --corpus {TRAIN} --test_corpus {DEV} --task upos --replicates 0 --evidence none": {
        "upos": "runs/upos/figures/accuracy.png"
    },
    f"sweep {SWEEP} --name layers": _figures("layers", "sweep"),
    "geometry --name inside": _figures("inside", "outliers", "geometry_"),
    "ablate --name layer-1 --neurons ranked --run runs/all --layer 1": _figures("layer-1", "neurons_layer_1"),
    f"attention --name heads --corpus {DEV}": _figures("heads", "classes", "attention_"),
    "hierarchy --name hierarchy": _figures("hierarchy", "hierarchy"),
    "wic DATA/wic --name wic": _figures("wic", "wic"),
    f"trees --name trees --corpus {TRAIN} --test_corpus {DEV}": _figures("trees", "trees"),
}


def commands_for(pictures: Collection[str]) -> list[str]:
    """Return the commands that draw some of the pictures, in order, with the run that others start from."""
    asked = [command for command, drawn in DRAWN.items() if any(name in pictures for name in drawn)]
    starts_from_all = any("runs/all" in command for command in asked)
    return [command for command in DRAWN if command in asked or (starts_from_all and command == ALL)]


def main() -> None:
    """Run what is asked for, and put its figures into `docs/figures`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with ud/ and wic/")
    parser.add_argument("pictures", nargs="*", help="names of pictures; all by default")
    parser.add_argument("--folder", type=Path, default=Path("runs/pictures"), help="where the commands run")
    given = parser.parse_args()
    known = {name for drawn in DRAWN.values() for name in drawn}
    if unknown := set(given.pictures) - known:
        parser.error(f"{min(unknown)} is not in the table")
    pictures = set(given.pictures) or known
    given.folder.mkdir(parents=True, exist_ok=True)
    for command in commands_for(pictures):
        drawn = {name: given.folder / file for name, file in DRAWN[command].items()}
        if not all(file.is_file() for file in drawn.values()):
            typed = shlex.split(command.replace("DATA", str(given.data.resolve())))
            options = ["--wandb.mode", "disabled"]
            subprocess.run([sys.executable, "-m", "probing", *typed, *options], cwd=given.folder, check=True)
        for name in pictures & set(drawn):
            shutil.copyfile(drawn[name], FIGURES / f"{name}.png")


if __name__ == "__main__":
    main()
