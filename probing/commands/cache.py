"""`cache ls`, `cache verify`, `cache prune`: what is cached, is it intact, free space."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from probing.cache.store import ActivationStore, entries, leftovers
from probing.commands.shared import cache_folder
from probing.errors import RunError, UserError

DAY_S = 86_400


def ls(cache: str | None = None) -> list[Path]:
    """List what is cached.

    Args:
        cache: Folder of cached activations; $PROBING_CACHE or runs/cache by default.

    Returns:
        The folders of the entries.
    """
    from rich import box
    from rich.table import Table

    from probing.terminal import show

    folder = cache_folder(cache)
    found = entries(folder)
    if not found:
        print(f"nothing is cached in {folder}")
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"Cached activations in {folder}", title_justify="left")
    for heading in ("entry", "corpus", "dtype"):
        table.add_column(heading, overflow="fold")
    for heading in ("layers", "sentences", "tokens", "size", "last used"):
        table.add_column(heading, justify="right")
    for entry in found:
        if isinstance(entry, ActivationStore):
            plan, header = entry.plan, entry.header
            used = time.strftime("%Y-%m-%d", time.localtime(entry.last_used))
            layers, n = entry.layers(), sum(shard.n_sentences for shard in plan.shards)
            table.add_row(
                entry.folder.name, header["corpus"], plan.dtype, _ranges(layers), str(n), str(plan.n_tokens),
                _bytes(entry.size_bytes()), used,
            )  # fmt: skip
        else:
            table.add_row(entry.name, "damaged", *[""] * 6)
    show(table)
    return [entry.folder if isinstance(entry, ActivationStore) else entry for entry in found]


def verify(cache: str | None = None) -> None:
    """Compare every cached file with its checksum; exit status 1 if one differs.

    A damaged file is never read: the next run that needs it extracts it again.

    Args:
        cache: Folder of cached activations; $PROBING_CACHE or runs/cache by default.
    """
    folder = cache_folder(cache)
    if cache and not folder.is_dir():
        raise UserError(f"`--cache {folder}` is no folder; name the one where activations are cached.")
    bad: list[Path] = []
    n_files = 0
    for entry in entries(folder):
        n_files += 1  # the plan and the table of tokens
        if isinstance(entry, ActivationStore):
            n_files += len(entry.records())
            bad += [entry.path(*at) for at in entry.damaged(range(entry.plan.n_layers + 1))]
        else:
            bad.append(entry)
    for path in bad:
        print(f"damaged: {path}")
    if bad:
        raise RunError(
            f"{len(bad)} of {n_files} cached files are damaged; the next run that needs them extracts them again"
        )
    print(f"{n_files} cached files in {folder} match their checksums")


def prune(cache: str | None = None, unused_days: float = 30.0, yes: bool = False) -> list[Path]:
    """Remove entries that were not used lately or have lost their plan, and what interrupted writers left.

    Without --yes it only says what would go.

    Args:
        cache: Folder of cached activations; $PROBING_CACHE or runs/cache by default.
        unused_days: Remove entries not used for this many days; 0 removes all.
        yes: Remove, instead of saying what would be removed.

    Returns:
        The folders and files that were or would be removed.
    """
    if unused_days < 0:
        raise UserError(f"`--unused_days {unused_days}` is out of range: expected at least 0, which removes all.")
    folder = cache_folder(cache)
    then = time.time() - unused_days * DAY_S
    found = entries(folder)
    doomed = [e.folder for e in found if isinstance(e, ActivationStore) and e.last_used <= then]
    doomed += [e for e in found if isinstance(e, Path)]
    doomed += [path for path in leftovers(folder) if path.parent not in doomed and path.parent.parent not in doomed]
    gone: list[Path] = []
    freed = 0
    for path in doomed:
        size = _size(path)
        if yes and not _remove(folder, path):
            print(f"kept {path}: a job is using it")
            continue
        print(f"{'removed' if yes else 'would remove'} {path} ({_bytes(size)})")
        freed += size
        gone.append(path)
    print(
        f"{_bytes(freed)} {'freed' if yes else 'would be freed; run again with --yes'}"
        if doomed
        else "nothing to remove"
    )
    return gone


def _remove(cache: Path, path: Path) -> bool:
    """Remove a file or folder, unless the job that extracts its entry is alive; return whether it is gone."""
    from filelock import FileLock, Timeout

    entry = path.relative_to(cache).parts[0].split(".partial-")[0]
    try:
        with FileLock(cache / f"{entry}.lock").acquire(timeout=0):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except Timeout:
        return False
    return True


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers with runs shortened: 0-3, 6."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none whole"
