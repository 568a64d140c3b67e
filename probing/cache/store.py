"""Activations on disk: a folder per key, a safetensors file per layer and shard, a manifest that only grows."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.cache.plan import FORMAT, Plan, Shard
from probing.cache.tokens import Tokens, disk_errors
from probing.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST, TOKENS = "manifest.jsonl", "tokens.safetensors"


class DamagedCache(Exception):
    """An entry whose plan or token table cannot be trusted: it is set up anew."""


class ActivationStore:
    """One entry of the cache: the hidden states of one corpus under one model.

    The manifest's first line is the plan; every further line records one finished shard with its
    checksum. Each line carries a checksum of its own, so a line torn by a crash or damaged later
    is the same as no line: the shard is extracted again.

    Args:
        folder: The entry's folder, made by `create`.

    Raises:
        DamagedCache: If plan or token table are damaged.
        RunError: If a newer version of probing wrote the entry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            header = _parse(self._manifest_lines()[0])
        except (OSError, IndexError, ValueError) as error:
            raise DamagedCache(f"{folder / MANIFEST}: {error}") from None
        if "format" not in header:
            raise DamagedCache(f"{folder / MANIFEST}: its first line is gone")
        if header["format"] > FORMAT:
            raise RunError(
                f"the cache entry {folder} was written by a newer version of probing "
                f"(format {header['format']}, this one reads {FORMAT}); upgrade, or name another folder with --cache"
            )
        if header["format"] < FORMAT or _checksum(folder / TOKENS) != header["tokens_sha256"]:
            raise DamagedCache(f"{folder / TOKENS} does not match its checksum")
        shards = tuple(Shard(i, *row) for i, row in enumerate(header.pop("shards")))
        self.header: dict[str, Any] = header
        self.plan = Plan(
            shards=shards, **{k: header[k] for k in ("key", "n_layers", "d_model", "dtype", "batch_tokens")}
        )

    @classmethod
    def create(cls, folder: Path, plan: Plan, tokens: Tokens, description: Mapping[str, Any]) -> ActivationStore:
        """Make the entry's folder with its plan and token table, whole or not at all.

        Args:
            folder: Where the entry goes; nothing may be there.
            plan: How the corpus is divided.
            tokens: The table of tokens.
            description: What to show a person: names of model and corpus, versions.
        """
        partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            tokens.save(partial / TOKENS)
            header = {
                "format": FORMAT,
                **{k: v for k, v in asdict(plan).items() if k != "shards"},
                "shards": [[s.first_sentence, s.n_sentences, s.n_tokens] for s in plan.shards],
                "tokens_sha256": _checksum(partial / TOKENS),
                **description,
            }
            (partial / MANIFEST).write_text(_line(header))
            for name in (TOKENS, MANIFEST):
                _sync(partial / name)
            partial.rename(folder)
            _sync(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return cls(folder)

    @cached_property
    def tokens(self) -> Tokens:
        """The table of tokens."""
        return Tokens.load(self.folder / TOKENS)

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the rows of the token table that a shard holds."""
        offsets = self.tokens.offsets
        return slice(int(offsets[shard.first_sentence]), int(offsets[shard.first_sentence + shard.n_sentences]))

    def path(self, layer: int, shard: int) -> Path:
        """Return where the activations of one layer and shard are."""
        return self.folder / f"layer_{layer:02d}" / f"{shard:06d}.safetensors"

    # --- what is there ---

    def records(self) -> dict[tuple[int, int], str]:
        """Return the checksum recorded for each finished (layer, shard)."""
        found = {}
        for line in self._manifest_lines()[1:]:
            try:
                record = _parse(line)
            except ValueError:
                continue
            found[record["layer"], record["shard"]] = record["sha256"]
        return found

    def layers(self) -> list[int]:
        """Return the layers that are recorded for every shard."""
        recorded = self.records()
        shards = range(len(self.plan.shards))
        return [k for k in range(self.plan.n_layers + 1) if all((k, shard) in recorded for shard in shards)]

    def damaged(self, layers: Iterable[int]) -> list[tuple[int, int]]:
        """Return the recorded (layer, shard) whose file is gone or does not match its checksum."""
        wanted = set(layers)
        recorded = {at: sha for at, sha in sorted(self.records().items()) if at[0] in wanted}
        # Hashing releases the interpreter's lock.
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            found = pool.map(lambda at: _checksum(self.path(*at)), recorded)
        return [at for (at, expected), sha in zip(recorded.items(), found, strict=True) if sha != expected]

    def missing(self, layers: Sequence[int], damaged: Iterable[tuple[int, int]] = ()) -> dict[int, list[int]]:
        """Return for each shard that needs work the layers to be written."""
        have = set(self.records()) - set(damaged)
        work = {shard.index: [k for k in layers if (k, shard.index) not in have] for shard in self.plan.shards}
        return {shard: lacking for shard, lacking in work.items() if lacking}

    def size_bytes(self) -> int:
        """Return the space the entry takes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    # --- reading and writing ---

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the activations of one layer and shard, memory-mapped, shape (n_tokens_in_shard, d_model)."""
        from safetensors import safe_open

        with safe_open(self.path(layer, shard), framework="pt") as file:
            return file.get_tensor("hidden_states")

    def write(self, layer: int, shard: int, hidden_states: Tensor) -> None:
        """Store the activations of one layer and shard: written aside, synced, renamed, then recorded.

        Args:
            layer: Layer number.
            shard: Index of the shard.
            hidden_states: Shape (n_tokens_in_shard, d_model), in the plan's dtype.

        Raises:
            OSError: If it cannot be written; nothing half-written stays.
        """
        from safetensors.torch import save_file

        path = self.path(layer, shard)
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
        try:
            with disk_errors():
                save_file({"hidden_states": hidden_states}, partial)
            _sync(partial)
            sha256 = _checksum(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self._append({"layer": layer, "shard": shard, "sha256": sha256})

    def touch(self) -> None:
        """Note that the entry was used now; `cache prune` goes by it."""
        os.utime(self.folder)

    @property
    def last_used(self) -> float:
        """When the entry was last used, in seconds since the epoch."""
        return max(self.folder.stat().st_mtime, (self.folder / MANIFEST).stat().st_mtime)

    def _append(self, record: Mapping[str, Any]) -> None:
        from filelock import FileLock

        manifest = self.folder / MANIFEST
        # Ranks share the manifest; the leading newline ends a line that a crash may have torn.
        with FileLock(self.folder / "manifest.lock"), manifest.open("a+b") as file:
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + _line(record).encode())
            file.flush()
            os.fsync(file.fileno())

    def _manifest_lines(self) -> list[str]:
        return (self.folder / MANIFEST).read_text(errors="replace").splitlines()


def not_written(folder: Path, error: OSError) -> RunError:
    """Return what to tell the user where an entry could not be written, such as on a full disk."""
    return RunError(
        f"the activations could not be written to {folder} ({error.strerror or error}); finished shards are kept: "
        "make room, or name another folder with --cache, and run the same command again"
    )


def entries(cache: Path) -> list[ActivationStore | Path]:
    """Return the entries under a cache folder, by name; the folder alone where an entry is damaged."""
    found: list[ActivationStore | Path] = []
    for manifest in sorted(cache.glob(f"*/{MANIFEST}")):
        if ".partial-" in manifest.parent.name:
            continue
        try:
            found.append(ActivationStore(manifest.parent))
        except DamagedCache:
            found.append(manifest.parent)
    return found


def leftovers(cache: Path, older_than_s: float = 3600.0) -> list[Path]:
    """Return half-written files and folders that no live process can still be writing."""
    then = time.time() - older_than_s
    return [path for path in sorted(cache.rglob("*.partial-*")) if path.exists() and path.stat().st_mtime < then]


def _line(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True)
    return (
        json.dumps({"check": hashlib.sha256(text.encode()).hexdigest()[:16], "record": record}, sort_keys=True) + "\n"
    )


def _parse(line: str) -> dict[str, Any]:
    """Return the record of a manifest line, or raise ValueError where the line is torn or damaged."""
    try:
        outer = json.loads(line)
        record: dict[str, Any] = outer["record"]
        if json.loads(_line(record)) != outer:
            raise ValueError("checksum differs")
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"damaged line ({error})") from None
    return record


def _checksum(path: Path) -> str | None:
    """SHA-256 (hex) of a file, or None where there is none."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
