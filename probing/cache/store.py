"""Activations on disk: a folder per key, a safetensors file per layer and shard, and an append-only manifest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.cache.files import FileLease
from probing.cache.plan import DTYPES, FORMAT, Plan, Shard, fingerprint
from probing.cache.tokens import Tokens
from probing.corpus import Corpus
from probing.errors import RunError, UserError
from probing.runtime.files import file_sha256, most_text, parse_json, read_text, regular, write_tensors

if TYPE_CHECKING:
    from torch import Tensor


MANIFEST, TOKENS = "manifest.jsonl", "tokens.safetensors"
# Maximum number of files that a store keeps memory-mapped; further files are mapped at each read. Mapping all files
# again in every pass would take a sixth of the time of the pass. The system allows about 65,000 mappings per process.
MOST_MAPPED = 8192


class DamagedCache(Exception):
    """The plan or token table of an entry is missing or damaged, and has to be made again."""


class NewerCache(RunError):
    """The entry was written by a newer version, and is not touched."""


class ActivationStore:
    """One entry of the cache: the hidden states of one corpus under one model.

    The manifest's first line is the plan; every further line records one finished shard with its checksum. Each line
    has a checksum of its own. A line that was cut off by a crash, or damaged later, is ignored, and the shard is
    extracted again. As long as a store or a view of it is referenced, `remove_unused` leaves the entry.

    Args:
        folder: The entry's folder, created by `create`.

    Raises:
        DamagedCache: If the plan or the token table is missing or damaged.
        NewerCache: If a newer version of probing wrote the entry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus: Corpus | None = None
        self._mapped: dict[tuple[int, int], Tensor] = {}
        try:
            self._lease = FileLease(folder / MANIFEST)
            header = _parse(self._manifest_lines()[0])
            if header["format"] > FORMAT:
                raise NewerCache(
                    f"the cache entry {folder} was written by a newer version of probing (format {header['format']}, "
                    f"this one reads {FORMAT}); upgrade, or name another folder with --cache"
                )
            self.plan, self.header = _plan(header), header
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise DamagedCache(f"{folder / MANIFEST}: {error or type(error).__name__}") from None
        if _checksum(folder / TOKENS) != header["tokens_sha256"]:
            raise DamagedCache(f"{folder / TOKENS} does not match its checksum")

    @classmethod
    def create(cls, folder: Path, plan: Plan, tokens: Tokens, description: Mapping[str, Any]) -> ActivationStore:
        """Create an entry: write its table of tokens, then its plan, which makes it valid.

        If a damaged plan is replaced, shards that were recorded under an equal plan are kept.

        Args:
            folder: The entry's folder.
            plan: The division of the corpus.
            tokens: The table of tokens.
            description: Information for users: names of model and corpus, versions.
        """
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            cls._set_up(folder, plan, tokens, description)
        except BaseException:
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(folder)

    @staticmethod
    def _set_up(folder: Path, plan: Plan, tokens: Tokens, description: Mapping[str, Any]) -> None:
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
        kept = [line for line in _lines(old) if _is_shard_of(line, _plan_id(header))] if old.exists() else []
        with _put(folder / MANIFEST) as partial:
            partial.write_text(_line(header) + "".join(f"{line}\n" for line in kept), encoding="utf-8")
        _sync(folder.parent)

    @cached_property
    def tokens(self) -> Tokens:
        """The table of tokens, with the words that this version finds."""
        tokens = Tokens.load(self.folder / TOKENS)
        return tokens if self.corpus is None else tokens.in_words(self.corpus.sentences, self.corpus.words)

    def of_corpus(self, corpus: Corpus) -> ActivationStore:
        """Return the same entry with the corpus that it is of, which tells the words of its tokens."""
        view = copy(self)
        view.__dict__.pop("tokens", None)
        view.corpus = corpus
        return view

    def without_first(self) -> ActivationStore:
        """Return the same entry with the first token of each sentence set aside in its table of tokens."""
        view = copy(self)
        view.tokens = self.tokens.without_first()
        return view

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the token table."""
        return self.tokens.of_sentences(shard.first_sentence, shard.n_sentences)

    def path(self, layer: int, shard: int) -> Path:
        """Return the path of the activations of one layer and shard."""
        return self.folder / f"layer_{layer:02d}" / f"{shard:06d}.safetensors"

    # --- recorded shards ---

    def records(self) -> dict[tuple[int, int], str]:
        """Return the checksum recorded for each finished (layer, shard)."""
        plan_id = _plan_id(self.header)
        records = [_parse(line) for line in self._manifest_lines()[1:] if _is_shard_of(line, plan_id)]
        found = {(record["layer"], record["shard"]): str(record["sha256"]) for record in records}
        layers, shards = range(self.plan.n_layers + 1), range(len(self.plan.shards))
        return {at: sha256 for at, sha256 in found.items() if at[0] in layers and at[1] in shards}

    def layers(self) -> list[int]:
        """Return the layers of which every shard is recorded."""
        recorded = self.records()
        shards = range(len(self.plan.shards))
        return [k for k in range(self.plan.n_layers + 1) if all((k, shard) in recorded for shard in shards)]

    def damaged(self, layers: Iterable[int]) -> list[tuple[int, int]]:
        """Return the recorded (layer, shard) whose file is missing or does not match its checksum."""
        wanted = set(layers)
        recorded = {at: sha for at, sha in sorted(self.records().items()) if at[0] in wanted}
        # Hashing releases the interpreter's lock.
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            found = pool.map(lambda at: _checksum(self.path(*at)), recorded)
        return [at for (at, expected), sha in zip(recorded.items(), found, strict=True) if sha != expected]

    def missing(self, layers: Sequence[int], damaged: Iterable[tuple[int, int]] = ()) -> dict[int, list[int]]:
        """Return the layers to be written for each incomplete shard."""
        have = set(self.records()) - set(damaged)
        work = {shard.index: [k for k in layers if (k, shard.index) not in have] for shard in self.plan.shards}
        return {shard: lacking for shard, lacking in work.items() if lacking}

    # --- reading and writing ---

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
        """Store the activations of one layer and shard.

        Args:
            layer: Layer number.
            shard: Index of the shard.
            hidden_states: The activations, shape (n_tokens_in_shard, d_model), in the plan's dtype.

        Raises:
            OSError: If the file cannot be written; no partial file is left.
        """
        self.write_tensors(layer, shard, {"hidden_states": hidden_states})

    def write_tensors(self, layer: int, shard: int, tensors: Mapping[str, Tensor]) -> None:
        """Store named tensors as one file: write to a temporary file, sync, rename, then record."""
        path = self.path(layer, shard)
        self._mapped.pop((layer, shard), None)
        path.parent.mkdir(exist_ok=True)
        with _put(path) as partial:
            write_tensors(partial, tensors)
            sha256 = _checksum(partial)
        self._append({"layer": layer, "shard": shard, "sha256": sha256, "plan": _plan_id(self.header)})

    @property
    def uncompared(self) -> Path:
        """An empty file, there from the beginning of an extraction until it was compared with the plain model."""
        return self.folder / "uncompared"

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


def not_written(folder: Path, error: OSError) -> UserError:
    """Return the error for an entry that could not be written, for example on a full disk."""
    return UserError(
        f"the activations could not be written to {folder} ({error.strerror or error}); finished shards are kept: "
        "make room, or name another folder with `--cache`, and run the same command again."
    )


def leftovers(folder: Path) -> list[Path]:
    """Return the partial files of an entry. While the caller holds the job's lock, none of their writers is alive."""
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


def _plan(header: Mapping[str, Any]) -> Plan:
    """Return the plan in a header, or raise an error if the header is malformed."""
    shards = tuple(Shard(i, *map(int, row)) for i, row in enumerate(header["shards"]))
    if header["format"] < FORMAT or header["dtype"] not in DTYPES:
        raise ValueError(f"format {header['format']}, dtype {header['dtype']}")
    sizes = {name: int(header[name]) for name in ("n_layers", "d_model", "batch_tokens")}
    return Plan(key=header["key"], dtype=header["dtype"], shards=shards, **sizes)


def _plan_id(header: Mapping[str, Any]) -> str:
    """Return an identifier of a plan, which determines the rows of each shard."""
    return fingerprint({name: header[name] for name in ("key", "shards", "batch_tokens", "tokens_sha256")})[:16]


def _is_shard_of(line: str, plan_id: str) -> bool:
    """Whether a line of a manifest is intact and records a shard of this plan."""
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
    """Return the record of a manifest line, or raise ValueError if the line is incomplete or damaged."""
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
