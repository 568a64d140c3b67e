"""Activations on disk: a folder per key, a safetensors file per layer and shard, and an append-only manifest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from probing.errors import RunError, UserError, as_clause
from probing.runtime.files import file_sha256, most_text, parse_json, read_text, regular, write_tensors
from probing.text import Corpus
from probing.text.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

# Increased whenever the layout on disk or the meaning of the values changes.
FORMAT = 2

DTYPES = ("float32", "bfloat16", "float16")

# Size of one shard's activations of all layers, which extraction holds in memory at a time.
SHARD_BYTES = 128 * 2**20

MIN_SHARD_TOKENS = 1024


@dataclass(frozen=True)
class Shard:
    """Consecutive sentences whose activations of a layer are in one file."""

    index: int
    first_sentence: int
    n_sentences: int
    n_tokens: int

    def rows(self, tokens: Tokens) -> slice:
        """Return the shard's rows of a table of tokens."""
        return tokens.of_sentences(self.first_sentence, self.n_sentences)


class _Divided:
    """A plan whose corpus is divided into shards."""

    shards: tuple[Shard, ...]

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the corpus."""
        return sum(shard.n_tokens for shard in self.shards)


@dataclass(frozen=True)
class StorePlan(_Divided):
    """The files of the hidden states of a corpus: for each shard, one for each layer.

    Args:
        key: Everything that changes the values (model, weights, tokenizer, corpus, dtype, ...).
        n_layers: Number of blocks of the model; layers are numbered 0..n_layers.
        dtype: Dtype of the stored activations, by its name in torch.
        batch_tokens: Padded tokens in one forward pass.
        shards: The shards, in corpus order.
    """

    key: Mapping[str, Any]
    n_layers: int
    d_model: int
    dtype: str
    batch_tokens: int
    shards: tuple[Shard, ...]

    @property
    def n_files(self) -> int:
        """Number of files for each shard: one for each layer."""
        return self.n_layers + 1


@dataclass(frozen=True)
class WorkPlan(_Divided):
    """The files of a work over a corpus: for each shard, one for each index below `n_files`.

    Args:
        key: Everything that changes the values.
        holds: What is stored, for users; `{n}` is replaced by the number of finished files.
        n_files: Maximum number of files for each shard.
        dtype: Dtype of the forward pass, by its name in torch.
        batch_tokens: Padded tokens in one forward pass.
        shards: The shards, in corpus order.
    """

    key: Mapping[str, Any]
    holds: str
    n_files: int
    dtype: str
    batch_tokens: int
    shards: tuple[Shard, ...]

    @classmethod
    def of_whole_text(
        cls, key: Mapping[str, Any], holds: str, n_files: int, tokens: Tokens, batch_tokens: int
    ) -> WorkPlan:
        """Return the plan of files that are of the whole text each."""
        whole = Shard(0, 0, tokens.n_sentences, tokens.n_tokens)
        return cls(key, holds, n_files, "float32", batch_tokens, (whole,))


def fingerprint(key: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a key, independent of the order of its items."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def shard_tokens(n_layers: int, d_model: int, itemsize: int) -> int:
    """Return the number of tokens per shard at which all layers together fill `SHARD_BYTES`."""
    return max(MIN_SHARD_TOKENS, SHARD_BYTES // ((n_layers + 1) * d_model * itemsize))


def divide(lengths: NDArray[np.int32], max_tokens: int) -> tuple[Shard, ...]:
    """Group consecutive sentences into shards of at most `max_tokens` tokens, or of one longer sentence."""
    shards: list[Shard] = []
    first, filled = 0, 0
    for sentence, length in enumerate(lengths.tolist()):
        if filled and filled + length > max_tokens:
            shards.append(Shard(len(shards), first, sentence - first, filled))
            first, filled = sentence, 0
        filled += length
    return (*shards, Shard(len(shards), first, len(lengths) - first, filled))


def batches(lengths: NDArray[np.int32], batch_tokens: int, with_padding: bool = True) -> Iterator[NDArray[np.int64]]:
    """Yield a shard's sentences, longest first, in batches of at most `batch_tokens` padded tokens, or of one sentence.

    Sentences without tokens are in no batch. Without `with_padding`, a batch has sentences of equal length only.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    while len(order):
        longest = int(lengths[order[0]])
        size = max(1, batch_tokens // longest)
        if not with_padding:
            size = min(size, int((lengths[order] == longest).sum()))
        yield order[:size]
        order = order[size:]


def cache_folder(cache: str | Path | None, runs: str = "runs") -> Path:
    """Return the folder of cached activations: `--cache`, else $PROBING_CACHE, else `cache` in the folder of runs."""
    if cache:
        return folder(cache, f"--cache {cache}")
    if variable := os.environ.get("PROBING_CACHE"):
        return folder(variable, f"PROBING_CACHE={variable}")
    return folder(Path(runs) / "cache", f"--runs {runs}")


def folder(path: str | Path, flag_text: str) -> Path:
    """Return the path of a folder that exists or can be created; `UserError` if the path is something else."""
    try:
        str(path).encode()  # safetensors opens no other files
    except UnicodeEncodeError:
        raise UserError(f"`{flag_text}` is no name in UTF-8{_of_locale(path)} name another folder.") from None
    for part in (path := Path(path), *path.parents):
        try:
            if stat.S_ISDIR(part.stat().st_mode):
                return path
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = as_clause(error)
        else:
            reason = f"{part} is a file"
        raise UserError(f"`{flag_text}` is no folder ({reason}); name another one.")
    return path


def _of_locale(path: str | Path) -> str:
    """Return advice if the locale prevents Python from reading a name as UTF-8; else a semicolon."""
    try:
        os.fsencode(path).decode()
    except UnicodeError:
        return ";"
    return " under this locale: set PYTHONUTF8=1 or LC_ALL=C.UTF-8, or"


class FileLease:
    """A shared read lock on a file, such as the manifest of a cache entry while a store reads it.

    It ends with this object or with its process; forked processes share it. It needs no right to write; a process that
    removes the file takes it alone (`shared=False`). Where the file system has no locks nothing is locked, nor on
    Windows, where open files are not removed. `BlockingIOError` is raised if other locks forbid it, `OSError` if the
    file is missing or cannot be opened.
    """

    def __init__(self, path: Path, shared: bool = True) -> None:
        # NFS locks a file alone only if it is open for writing.
        self._descriptor, self._close = os.open(regular(path), os.O_RDONLY if shared else os.O_RDWR), os.close
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:  # the second one on NFS
                raise BlockingIOError(*error.args) from None
            except OSError:
                return
        if not os.fstat(self._descriptor).st_nlink:  # removed before it was locked
            raise FileNotFoundError(f"{path} was removed")

    def __del__(self) -> None:
        if hasattr(self, "_close"):
            self._close(self._descriptor)


MANIFEST, TOKENS = "manifest.jsonl", "tokens.safetensors"

# Maximum number of files that a store keeps memory-mapped; further files are mapped at each read. Mapping all files
# again in every pass would take a sixth of the time of the pass. The system allows about 65,000 mappings per process.
MOST_MAPPED = 8192


_Value = TypeVar("_Value")


class MemoryCache:
    """Tensors by layer and shard in memory, up to a number of bytes; others are computed again on each request."""

    def __init__(self, n_bytes: int) -> None:
        self.cached: dict[tuple[int, int], Any] = {}
        self.room = n_bytes

    def get(self, layer: int, shard: int, compute: Callable[[int, int], _Value]) -> _Value:
        """Return the tensor, or the tensors, that `compute` gives for a layer and shard."""
        if (layer, shard) in self.cached:
            return cast(_Value, self.cached[layer, shard])
        value: Any = compute(layer, shard)
        size = sum(tensor.nbytes for tensor in value) if isinstance(value, tuple) else value.nbytes
        if size <= self.room:
            self.cached[layer, shard] = value
            self.room -= size
        return cast(_Value, value)


class DamagedCache(Exception):
    """The plan or token table of an entry is missing or damaged, and must be rebuilt."""


class NewerCache(RunError):
    """The entry was written by a newer version, and is not touched."""


class CacheEntry:
    """One entry of the cache: files of results over one corpus, such as the hidden states under one model.

    The manifest's first line is the plan; every further line records one finished shard with its checksum. Each line
    has a separate checksum. A line that was cut off by a crash, or damaged later, is ignored, and the shard is
    extracted again. As long as a store or a view of it is referenced, `remove_unused` leaves the entry.

    Raises:
        DamagedCache: If the plan or the token table is missing or damaged, or the plan is of other contents.
        NewerCache: If a newer version of probing wrote the entry.
    """

    plans: ClassVar[tuple[type, ...]] = (StorePlan, WorkPlan)
    plan: Any

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus: Corpus | None = None
        try:
            self._lease = FileLease(folder / MANIFEST)
            header = _parse(self._manifest_lines()[0])
            if header["format"] > FORMAT:
                raise NewerCache(
                    f"the cache entry {folder} was written by a newer version of probing (format {header['format']}, "
                    f"this one reads {FORMAT}); upgrade, or name another folder with --cache"
                )
            self.plan, self.header = _plan(header), header
            if not isinstance(self.plan, self.plans):
                raise ValueError("it is of other contents")
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise DamagedCache(f"{folder / MANIFEST}: {error or type(error).__name__}") from None
        if _checksum(folder / TOKENS) != header["tokens_sha256"]:
            raise DamagedCache(f"{folder / TOKENS} does not match its checksum")

    @classmethod
    def create(cls, folder: Path, plan: StorePlan | WorkPlan, tokens: Tokens, description: Mapping[str, Any]) -> Self:
        """Create an entry: write its table of tokens, then its plan, which makes it valid.

        If a damaged plan is replaced, files that were recorded under an equal plan are preserved. `UserError` is raised
        if there is no room.
        """
        is_new = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            cls._set_up(folder, plan, tokens, description)
        except BaseException as error:
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise not_written(folder, error) from error
            raise
        return cls(folder)

    @staticmethod
    def _set_up(folder: Path, plan: StorePlan | WorkPlan, tokens: Tokens, description: Mapping[str, Any]) -> None:
        with _put(folder / TOKENS) as partial:
            tokens.save(partial)
        header = {
            "format": FORMAT,
            **{k: v for k, v in asdict(plan).items() if k != "shards"},
            "shards": [[s.first_sentence, s.n_sentences, s.n_tokens] for s in plan.shards],
            "tokens_sha256": _checksum(folder / TOKENS),
            **description,
        }
        old = folder / MANIFEST
        lines_to_keep = [line for line in _lines(old) if _is_shard_of(line, _plan_id(header))] if old.exists() else []
        with _put(folder / MANIFEST) as partial:
            partial.write_text(_line(header) + "".join(f"{line}\n" for line in lines_to_keep), encoding="utf-8")
        _sync(folder.parent)

    @cached_property
    def tokens(self) -> Tokens:
        """The table of tokens."""
        return Tokens.load(self.folder / TOKENS)

    @property
    def description(self) -> dict[str, Any]:
        """The model, the corpus and the versions behind the entry, for users."""
        return {name: self.header[name] for name in ("model", "revision", "corpus", "versions")}

    def path(self, layer: int, shard: int) -> Path:
        """Return the path of the activations of one layer and shard."""
        return self.folder / f"layer_{layer:02d}" / f"{shard:06d}.safetensors"

    # --- recorded shards ---

    def records(self) -> dict[tuple[int, int], str]:
        """Return the checksum recorded for each finished (layer, shard)."""
        plan_id = _plan_id(self.header)
        records = [_parse(line) for line in self._manifest_lines()[1:] if _is_shard_of(line, plan_id)]
        checksums = {(record["layer"], record["shard"]): str(record["sha256"]) for record in records}
        files, shards = range(self.plan.n_files), range(len(self.plan.shards))
        return {at: sha256 for at, sha256 in checksums.items() if at[0] in files and at[1] in shards}

    def layers(self) -> list[int]:
        """Return the layers, or indices, of which every shard is recorded."""
        recorded = self.records()
        shards = range(len(self.plan.shards))
        return [k for k in range(self.plan.n_files) if all((k, shard) in recorded for shard in shards)]

    def damaged(self, layers: Iterable[int]) -> list[tuple[int, int]]:
        """Return the recorded (layer, shard) whose file is missing or does not match its checksum."""
        requested = set(layers)
        recorded = {at: sha for at, sha in sorted(self.records().items()) if at[0] in requested}
        # Hashing releases the interpreter's lock.
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            checksums = pool.map(lambda at: _checksum(self.path(*at)), recorded)
        return [at for (at, expected), sha in zip(recorded.items(), checksums, strict=True) if sha != expected]

    def missing(self, layers: Sequence[int], damaged: Iterable[tuple[int, int]] = ()) -> dict[int, list[int]]:
        """Return the layers to be written for each incomplete shard."""
        have = set(self.records()) - set(damaged)
        work = {shard.index: [k for k in layers if (k, shard.index) not in have] for shard in self.plan.shards}
        return {shard: lacking for shard, lacking in work.items() if lacking}

    # --- writing ---

    def write_tensors(self, layer: int, shard: int, tensors: Mapping[str, Tensor]) -> None:
        """Store named tensors as one file: write to a temporary file, sync, rename, then record."""
        path = self.path(layer, shard)
        path.parent.mkdir(exist_ok=True)
        with _put(path) as partial:
            write_tensors(partial, tensors)
            sha256 = _checksum(partial)
        self._append({"layer": layer, "shard": shard, "sha256": sha256, "plan": _plan_id(self.header)})

    def touch(self) -> None:
        """Record that the entry was used now, for `cache prune`."""
        with suppress(PermissionError):  # the entry of another user of a shared cache
            os.utime(self.folder)

    def _append(self, record: Mapping[str, Any]) -> None:
        from filelock import FileLock

        manifest = self.folder / MANIFEST
        # Ranks share the manifest; a leading newline ends a line that a crash may have cut off.
        with FileLock(self.folder / "manifest.lock"), manifest.open("a+b") as file:
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + _line(record).encode())
            file.flush()
            os.fsync(file.fileno())

    def _manifest_lines(self) -> list[str]:
        return _lines(self.folder / MANIFEST)


class ActivationStore(CacheEntry):
    """The hidden states of one corpus under one model: a file for each layer and shard."""

    plans = (StorePlan,)
    plan: StorePlan

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._mapped: dict[tuple[int, int], Tensor] = {}

    def of_corpus(self, corpus: Corpus) -> ActivationStore:
        """Return the same entry with its corpus."""
        view = copy(self)
        view.corpus = corpus
        return view

    def without_first(self) -> ActivationStore:
        """Return the same entry with the first token of each sentence set aside in its table of tokens."""
        view = copy(self)
        view.tokens = self.tokens.without_first()
        return view

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the activations of one layer and shard, memory-mapped, shape (n_tokens_in_shard, d_model).

        Raises:
            RunError: If the file is missing.
        """
        from safetensors import safe_open

        if (mapped := self._mapped.get((layer, shard))) is not None:
            return mapped
        try:
            with safe_open(regular(self.path(layer, shard), self.folder), framework="pt") as file:
                mapped = file.get_tensor("hidden_states")
        except FileNotFoundError:
            gone = f"{self.path(layer, shard)} was removed while it was in use; run the same command again"
            raise RunError(gone) from None
        if len(self._mapped) < MOST_MAPPED:
            self._mapped[layer, shard] = mapped
        return mapped

    def write(self, layer: int, shard: int, hidden_states: Tensor) -> None:
        """Store activations, shape (n_tokens_in_shard, d_model), in the plan's dtype, as a whole file or not at all."""
        self._mapped.pop((layer, shard), None)
        self.write_tensors(layer, shard, {"hidden_states": hidden_states})

    @property
    def uncompared(self) -> Path:
        """Path of an empty file that exists from an extraction's start until its comparison with the plain model."""
        return self.folder / "uncompared"


class WorkStore(CacheEntry):
    """Results of a work over one corpus, by index and shard, such as those of passes or the sums of a measure."""

    plans = (WorkPlan,)
    plan: WorkPlan

    @classmethod
    def opened(cls, folder: Path, make: Callable[[], tuple[WorkPlan, Tokens]], description: Mapping[str, Any]) -> Self:
        """Open an entry, or create it; `make` returns its plan and tokens, and `description` is for users."""
        try:
            return cls(folder)
        except DamagedCache:
            return cls.create(folder, *make(), description)

    def unfinished(self, indices: Sequence[int]) -> list[int]:
        """Return the indices of missing or damaged files of the first shard."""
        unfinished = set(self.missing(indices, self.damaged(indices)).get(0, ()))
        return [index for index in indices if index in unfinished]

    def put(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a file of the first shard; `UserError` if there is no room for it."""
        try:
            self.write_tensors(index, 0, tensors)
        except OSError as error:
            raise not_written(self.folder, error) from error

    def get(self, index: int, shard: int = 0) -> dict[str, Tensor]:
        """Return the content of a file."""
        from safetensors.torch import load_file

        return load_file(regular(self.path(index, shard), self.folder))


def not_written(folder: Path, error: OSError) -> UserError:
    """Return the error for an entry that could not be written, for example on a full disk."""
    return UserError(
        f"the activations could not be written to {folder} ({error.strerror or error}); finished shards are kept: "
        "make room, or name another folder with `--cache`, and run the same command again."
    )


def leftovers(folder: Path) -> list[Path]:
    """Return the partial files of an entry. While the caller has the job's lock, none of their writers is alive."""
    return sorted(folder.rglob("*.partial-*"))


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _put(path: Path) -> Iterator[Path]:
    """Yield a temporary path; then sync the file and rename it to `path`, or remove it after an error."""
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _sync(path.parent)


def _plan(header: Mapping[str, Any]) -> StorePlan | WorkPlan:
    """Return the plan in a header, or raise an error if the header is malformed."""
    shards = tuple(Shard(i, *map(int, row)) for i, row in enumerate(header["shards"]))
    if header["format"] < FORMAT or header["dtype"] not in DTYPES:
        raise ValueError(f"format {header['format']}, dtype {header['dtype']}")
    how: dict[str, Any] = {"key": header["key"], "dtype": header["dtype"], "shards": shards}
    how |= {"batch_tokens": int(header["batch_tokens"])}
    if "n_files" in header:
        return WorkPlan(holds=str(header["holds"]), n_files=int(header["n_files"]), **how)
    return StorePlan(n_layers=int(header["n_layers"]), d_model=int(header["d_model"]), **how)


def _plan_id(header: Mapping[str, Any]) -> str:
    """Return an identifier of a plan, which determines the rows of each shard."""
    return fingerprint({name: header[name] for name in ("key", "shards", "batch_tokens", "tokens_sha256")})[:16]


def _is_shard_of(line: str, plan_id: str) -> bool:
    """Return whether a line of a manifest is intact and records a shard of this plan."""
    try:
        record = _parse(line)
    except ValueError:
        return False
    named = all(type(record.get(name)) is int for name in ("layer", "shard"))
    return named and record.get("plan") == plan_id and "sha256" in record


def _lines(manifest: Path) -> list[str]:
    return read_text(manifest, manifest.parent, most_text(), "replace").splitlines()


def _line(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True)
    return (
        json.dumps({"check": hashlib.sha256(text.encode()).hexdigest()[:16], "record": record}, sort_keys=True) + "\n"
    )


def _parse(line: str) -> dict[str, Any]:
    """Return the record of a manifest line, or raise `ValueError` if the line is incomplete or damaged."""
    try:
        outer = parse_json(line)
        record: dict[str, Any] = outer["record"]
        if json.loads(_line(record)) != outer:
            raise ValueError("checksum differs")
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"damaged line ({error})") from None
    return record


def _checksum(path: Path) -> str | None:
    """Return the SHA-256 (hex) of a file, or None if it cannot be read."""
    try:
        return file_sha256(path, path.parent)
    except OSError:
        return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Folder name of an entry: the model's name and the beginning of the key's fingerprint.
_ENTRY_NAME = re.compile(r".+-[0-9a-f]{16}")


@dataclass(frozen=True)
class Entry:
    """A folder of the cache, with its store, or None and `trouble`: `damaged`, or `of a newer version`."""

    folder: Path
    store: CacheEntry | None
    trouble: str = ""

    @property
    def last_used(self) -> float:
        """Time of the last use of the entry, in seconds since the epoch; infinity if it has been removed."""
        try:
            return max(path.stat().st_mtime for path in (self.folder, *self.folder.glob(MANIFEST)))
        except FileNotFoundError:
            return math.inf


def entries(cache: Path) -> list[Entry]:
    """Return the entries in a cache folder, by name; other files and folders are ignored."""
    cache_entries = []
    for folder in sorted(cache.glob("*/")):
        if not _ENTRY_NAME.fullmatch(folder.name) or not any((folder / name).exists() for name in (MANIFEST, TOKENS)):
            continue
        try:
            cache_entries.append(Entry(folder, CacheEntry(folder)))
        except DamagedCache:
            cache_entries.append(Entry(folder, None, "damaged"))
        except NewerCache:
            cache_entries.append(Entry(folder, None, "of a newer version"))
    return cache_entries


def remove_unused(cache: Path, path: Path) -> bool:
    """Remove an entry of the cache or a file of it, unless a job writes or reads it; return whether it was removed."""
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
