"""Which process is writing a folder, so that what a killed one left is told from what is under way."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from probing.runtime.files import parse_json, read_text

# Names the process in its folder.
RUNNING = ".running"


@dataclass(frozen=True)
class Owner:
    """A process.

    Args:
        process: Its number.
        machine: Name of the machine that it runs on, and the namespace in which its number is valid.
    """

    process: int
    machine: str

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return this process."""
        return cls(os.getpid(), _machine())

    @classmethod
    def read(cls, folder: Path) -> Owner | None:
        """Return the process that writes a folder, or wrote it; None if the folder does not say."""
        try:
            told = parse_json(read_text(folder / RUNNING, folder))
            return cls(int(told["process"]), str(told["machine"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, folder: Path) -> None:
        """Name the process in a folder."""
        temporary = folder / f"{RUNNING}.{self.process}"
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(folder / RUNNING)

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.machine == _machine()

    @property
    def is_dead(self) -> bool:
        """Whether it has ended for certain: a process of another machine cannot be looked up."""
        if not self.is_here or sys.platform == "win32":  # where a signal of 0 would end it
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return False


def _machine() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{platform.node()} {namespace}".strip()


def take_over(folder: Path, dead: Owner) -> bool:
    """Empty a folder that a dead process has left, and name this process in it.

    Returns:
        Whether it was this process that took it, and not another one before it.
    """
    mark = folder / f"{RUNNING}.after.{dead.process}"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError:
        return False
    if Owner.read(folder) != dead:  # another process has taken it meanwhile
        mark.unlink(missing_ok=True)
        return False
    Owner.of_this_process().write(folder)
    for path in folder.iterdir():
        if path.name != RUNNING:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return True
