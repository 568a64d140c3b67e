"""The entries of a cache folder: which there are, and how those that no job uses are removed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from probing.cache.files import FileLease
from probing.cache.store import MANIFEST, TOKENS, ActivationStore, DamagedCache, NewerCache, remove
from probing.errors import UserError

# Folder name of an entry: the model's name and the beginning of the key's fingerprint.
_ENTRY_NAME = re.compile(r".+-[0-9a-f]{16}")


@dataclass(frozen=True)
class Entry:
    """A folder of the cache.

    Args:
        folder: Path of the folder.
        store: The entry, or None if it cannot be opened.
        trouble: The reason why it cannot be opened: `damaged`, or `of a newer version`.
    """

    folder: Path
    store: ActivationStore | None
    trouble: str = ""

    @property
    def last_used(self) -> float:
        """When the entry was last used, in seconds since the epoch; infinity if it was removed meanwhile."""
        try:
            return max(path.stat().st_mtime for path in (self.folder, *self.folder.glob(MANIFEST)))
        except FileNotFoundError:
            return math.inf


def entries(cache: Path) -> list[Entry]:
    """Return the entries in a cache folder, by name; other files and folders are ignored."""
    found = []
    for folder in sorted(cache.glob("*/")):
        if not _ENTRY_NAME.fullmatch(folder.name) or not any((folder / name).exists() for name in (MANIFEST, TOKENS)):
            continue
        try:
            found.append(Entry(folder, ActivationStore(folder)))
        except DamagedCache:
            found.append(Entry(folder, None, "damaged"))
        except NewerCache:
            found.append(Entry(folder, None, "of a newer version"))
    return found


def remove_unused(cache: Path, path: Path) -> bool:
    """Remove an entry of the cache or a file of one, unless a job writes it or reads the entry.

    Returns:
        Whether it is gone.

    Raises:
        UserError: If it cannot be removed.
    """
    from filelock import FileLock, Timeout

    try:
        with FileLock(cache / f"{path.relative_to(cache).parts[0]}.lock").acquire(timeout=0):
            lease = FileLease(path / MANIFEST, shared=False) if (path / MANIFEST).exists() else None
            remove(path)
            del lease
    except (Timeout, BlockingIOError):
        return False
    except OSError as error:
        raise UserError(f"`--cache {cache}`: {path} cannot be removed ({error.strerror or error}).") from None
    return True
