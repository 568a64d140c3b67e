"""Files from outside, read within limits; atomic replacement of files; tensor files.

Every file that may come from elsewhere is opened by `open_file`, or by a library after `regular` or `files_of`.
SECURITY.md states their guarantees.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from probing.errors import UserError

# Most bytes of a document, such as a configuration, in JSON and in YAML, whose parser is slow.
DOCUMENT, YAML_DOCUMENT = 32_000_000, 2_000_000
# Most levels of a document, and most values of one in YAML, where each use of an anchor counts in full.
MOST_LEVELS, MOST_VALUES = 100, 100_000
# Most gigabytes of a text or a table, unpacked, and of all files of results that are downloaded.
_MOST_GB, _VARIABLE = 2.0, "PROBING_MAX_GB"

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "it is a named pipe"), (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"), (stat.S_ISBLK, "it is a device"),
)  # fmt: skip


def most_text() -> int:
    """Return the most bytes of a text or table: $PROBING_MAX_GB, which must be above 0 (UserError), or 2 GB."""
    variable_text = os.environ.get(_VARIABLE, "")
    try:
        gb = float(variable_text or _MOST_GB)
        if not 0 < gb < float("inf"):
            raise ValueError
    except ValueError:
        raise UserError(f"`{_VARIABLE}={variable_text}`: expected a number of gigabytes above 0, such as 16.") from None
    return int(gb * 1e9)


def above_most_text(most: int) -> str:
    """Return the clause for something that is larger than a text may be."""
    return f"it has more than {most / 1e9:g} GB, the most that is read; ${_VARIABLE} raises it"


def open_file(
    path: str | Path, mode: str = "rb", *, within: Path | None = None, most: int | None = None, **how: Any
) -> IO[Any]:
    """Open a regular file for reading, without blocking on anything else, such as a named pipe.

    `within` is a folder that must contain the file after links are resolved, `most` the maximal number of bytes.

    Raises:
        OSError: If the file cannot be opened, is not regular, lies elsewhere or is too large; the message says which.
    """
    return open(path, mode, opener=partial(_descriptor, within, most), **how)


def _descriptor(within: Path | None, most: int | None, path: str, flags: int) -> int:
    """Open a file, then check the open descriptor: another process could exchange a file between check and opening."""
    target = path
    if within is not None:
        target = os.path.realpath(path)
        if not _is_in(target, within):
            raise OSError(errno.EPERM, "it leads out of its folder", os.fspath(path))
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(target, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            what = next((what for holds, what in _KINDS if holds(status.st_mode)), "it is something else")
            raise OSError(errno.EINVAL, f"{what}, where a file was expected", os.fspath(path))
        if most is not None and status.st_size > most:
            raise OSError(errno.EFBIG, _too_large(most), os.fspath(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_in(target: str, folder: Path) -> bool:
    return Path(target).is_relative_to(os.path.realpath(folder))


def _too_large(most: int) -> str:
    return above_most_text(most) if most == most_text() else f"it has more than {most:,} bytes"


def home_of(folder: Path) -> Path:
    """Return the folder that must contain a folder's files: for a snapshot of links in a hub cache, its repository."""
    place = folder.resolve()
    for snapshot in (place, *place.parents):
        home = snapshot.parent.parent
        if snapshot.parent.name == "snapshots" and home.name.startswith(("models--", "datasets--")):
            return home
    return place


def regular(path: Path, within: Path | None = None, most: int | None = None) -> Path:
    """Return the path of a file that a library will open, after the checks of `open_file`, which raise OSError."""
    open_file(path, within=within, most=most).close()
    return path


def stored(path: Path, within: Path | None = None) -> Path:
    """Return the path of a file of `torch.save`, after the checks of `open_file`; compressed parts raise OSError.

    `torch.save` never compresses, and compressed content could have any size.
    """
    with open_file(path, within=within) as file:
        if zipfile.is_zipfile(file):
            with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
                if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                    raise OSError(errno.EINVAL, "its parts are compressed, which torch.save does not do", str(path))
    return path


def files_of(folder: Path) -> set[str]:
    """Return the paths of all files of a folder that a library reads as a whole, relative to the folder, with `/`.

    Raises OSError if a file is not regular or lies, links resolved, outside the folder.
    """
    paths, waiting = set(), [""]
    while waiting:
        inside = waiting.pop()
        with os.scandir(folder / inside) as directory:
            for entry in directory:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{inside}{entry.name}/")
                    continue
                paths.add(f"{inside}{entry.name}")
                if not entry.is_file(follow_symlinks=False):  # only what is no plain file has to be looked at
                    regular(Path(entry.path), folder)
    return paths


def read_text(path: Path, within: Path | None = None, most: int = DOCUMENT, errors: str = "strict") -> str:
    """Return the text of a document in UTF-8; raise errors as `open_file`, and UnicodeDecodeError."""
    with open_file(path, "r", within=within, most=most, encoding="utf-8", errors=errors) as file:
        text: str = file.read(most + 1)
    if len(text) > most:  # it has grown, or the system does not know its size
        raise OSError(errno.EFBIG, _too_large(most), os.fspath(path))
    return text


def file_sha256(path: str | Path, within: Path | None = None, digest: Any = None) -> str:
    """Return the SHA-256 (hex) of a file, or the given digest continued with the file; errors as `open_file`."""
    digest = digest or sha256()
    with open_file(path, within=within) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return str(digest.hexdigest())


def parse_json(text: str, **how: Any) -> Any:
    """Return the content of a JSON text; above `MOST_LEVELS` levels, counted before parsing, raise ValueError."""
    if text.count("[") + text.count("{") > MOST_LEVELS:
        # Only brackets outside of strings count. Escaped quotation marks and backslashes are in strings.
        brackets = text.encode("utf-8", "surrogatepass").replace(rb"\\", b"").replace(rb"\"", b"")
        brackets = brackets.translate(bytes.maketrans(b"{}", b"[]"), _NEITHER)
        brackets = re.sub(rb'"[^"]*"', b"", brackets)
        for _ in range(MOST_LEVELS):
            brackets, before = brackets.replace(b"[]", b""), brackets
            if brackets == before:
                break
        if b"[]" in brackets or len(brackets) > MOST_LEVELS:
            raise ValueError(f"it has more than {MOST_LEVELS} levels, or brackets that are not closed")
    return json.loads(text, **how)


_NEITHER = bytes(sorted({*range(256)} - {*b'[]{}"'}))


def check_yaml(text: str, most: int = MOST_VALUES, *, anchors: bool = True) -> None:
    """Refuse a YAML text that would take much memory or time, before any object is built.

    `most` limits the values, including keys; each use of an anchor counts all values of the anchor.

    Raises:
        ValueError: If it has too many values or levels, a key that is no scalar, or a forbidden anchor or merge key.
        yaml.YAMLError: If it is not YAML.
    """
    import yaml

    if len(text) > YAML_DOCUMENT:
        raise ValueError(f"it has more than {YAML_DOCUMENT:,} characters")
    n_values = 0
    sizes: dict[str, int] = {}
    # Of each open list or mapping: whether a key comes next (None in a list), its anchor, and the values before it.
    levels: list[tuple[bool | None, str | None, int]] = []
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            _, anchor, before = levels.pop()
            if anchor:
                sizes[anchor] = n_values - before
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        is_key = False
        if levels and levels[-1][0] is not None:
            is_key = bool(levels[-1][0])
            levels[-1] = (not is_key, *levels[-1][1:])
        is_scalar = isinstance(event, yaml.ScalarEvent)
        if is_key and not is_scalar:
            raise ValueError("a key is no single value")
        is_merge = is_key and isinstance(event, yaml.ScalarEvent) and event.value == "<<"
        if not anchors and (event.anchor or is_merge):
            raise ValueError("it has an anchor, an alias or a merge key")
        if isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for _, anchor, _ in levels):
                raise ValueError(f"`*{event.anchor}` refers to itself")
            n_values += sizes.get(str(event.anchor), 1)  # what it refers to is missing then, which the library says
        else:
            n_values += 1
            if isinstance(event, yaml.CollectionStartEvent):
                levels.append((isinstance(event, yaml.MappingStartEvent) or None, event.anchor, n_values - 1))
                if len(levels) > MOST_LEVELS:
                    raise ValueError(f"it has more than {MOST_LEVELS} levels")
            elif event.anchor:
                sizes[event.anchor] = 1
        if n_values > most:
            raise ValueError(f"it has more than {most:,} values")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` after writing; if writing fails, the old file stays."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` after writing; if writing fails, nothing changes."""
    partial, old = (path.with_name(f".{path.name}.{os.getpid()}{end}") for end in ("", ".old"))
    partial.mkdir(parents=True)
    try:
        yield partial
        if path.exists():
            path.rename(old)
        try:
            partial.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    finally:
        for stale in (partial, old):
            shutil.rmtree(stale, ignore_errors=True)


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file whose bytes depend only on the content, readable as the umask allows.

    The library alone writes metadata in any order, and files that only the owner can read, unfit for shared caches.
    `tensors` are of torch or of NumPy, by name.
    """
    from safetensors import SafetensorError

    are_of_torch = any(hasattr(tensor, "data_ptr") for tensor in tensors.values())
    library: Any = import_module(f"safetensors.{'torch' if are_of_torch else 'numpy'}")
    path.touch()
    mode = path.stat().st_mode
    try:
        library.save_file(dict(tensors), path, dict(metadata) if metadata else None)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    if len(metadata or ()) > 1:
        _sort_metadata(path)
    path.chmod(mode)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file by name, in place: a length in eight bytes, then JSON, then the data."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(text) <= length  # the same characters in another order
        file.seek(8)
        file.write(text.ljust(length))


# --------------------------------------------------------------------------------------------------------------------
# Which process is writing a folder, so that what a killed one left is told from what is under way.
# --------------------------------------------------------------------------------------------------------------------

# Names the process in its folder.
RUNNING = ".running"


@dataclass(frozen=True)
class Owner:
    """Process that writes a folder: its number, and its machine with the namespace in which the number is valid."""

    process: int
    machine: str

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return this process."""
        return cls(os.getpid(), _machine())

    @classmethod
    def read(cls, folder: Path) -> Owner | None:
        """Return the process that writes or wrote a folder; None if the folder does not record it."""
        try:
            record = parse_json(read_text(folder / RUNNING, folder))
            return cls(int(record["process"]), str(record["machine"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, folder: Path) -> None:
        """Record the process in a folder."""
        temporary = folder / f"{RUNNING}.{self.process}"
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(folder / RUNNING)

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the process runs, or ran, on this machine."""
        return self.machine == _machine()

    @property
    def is_dead(self) -> bool:
        """Whether the process has certainly ended; unknown (False) for a process of another machine."""
        if not self.is_on_this_machine or sys.platform == "win32":  # where a signal of 0 would end it
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
    """Empty a dead process's folder and record this process in it; return False if another process was first."""
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
