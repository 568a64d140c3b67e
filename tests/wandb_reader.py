"""Read an offline run of W&B back from disk, without the client's service and without network.

The log of a run is a LevelDB-style file: 32 KiB blocks of records with a checksum, a length and a
kind (whole, first, middle, last), each holding one protobuf message. Tested with wandb 0.31.
"""

from __future__ import annotations

import importlib
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FILE_HEADER = 7
_RECORD_HEADER = struct.Struct("<IHB")
_BLOCK = 32 * 1024
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """What an offline run would upload.

    Attributes:
        folder: The run's own folder, `.../wandb/offline-run-...`.
        run: Id, name, project, sweep, group, tags, notes and job type.
        step_metrics: The x axis of each metric that was declared, or "".
        artifacts: Per artifact its name, its type and the paths its files are read from.
        exit_code: None if the run was never finished.
    """

    folder: Path
    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)
    artifacts: list[tuple[str, str, dict[str, Path]]] = field(default_factory=list)
    exit_code: int | None = None

    def rows(self, key: str) -> list[dict[str, Any]]:
        """Return the history's rows that hold a key."""
        return [row for row in self.history if key in row]

    def table(self, key: str) -> list[dict[str, Any]]:
        """Return the rows of the only table logged under a key."""
        (row,) = self.rows(key)
        table = json.loads((self.folder / "files" / row[key]["path"]).read_text(encoding="utf-8"))
        return [dict(zip(table["columns"], values, strict=True)) for values in table["data"]]


def read_offline_runs(folder: Path) -> list[OfflineRun]:
    """Read every offline run beneath `folder/wandb`, oldest first."""
    return [read_offline_run(path) for path in sorted((folder / "wandb").glob("offline-run-*"))]


def read_offline_run(folder: Path) -> OfflineRun:
    """Read one offline run from its own folder."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (log,) = folder.glob("run-*.wandb")
    found = OfflineRun(folder)
    for message in _messages(log):
        record = messages.Record()
        record.ParseFromString(message)
        _add(found, record)
    return found


def _add(found: OfflineRun, record: Any) -> None:
    match record.WhichOneof("record_type"):
        case "run":
            run = record.run
            found.run = {"id": run.run_id, "name": run.display_name, "project": run.project}
            found.run |= {"sweep": run.sweep_id, "group": run.run_group, "tags": list(run.tags)}
            found.run |= {"notes": run.notes, "job_type": run.job_type}
            _update(found.config, run.config.update)
        case "config":
            _update(found.config, record.config.update)
        case "summary":
            _update(found.summary, record.summary.update)
        case "history":
            found.history.append(_update({}, record.history.item))
        case "metric":
            metric = record.metric
            found.step_metrics[metric.name or metric.glob_name] = metric.step_metric
        case "artifact":
            artifact = record.artifact
            files = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
            found.artifacts.append((artifact.name, artifact.type, files))
        case "exit":
            found.exit_code = record.exit.exit_code


def _update(target: dict[str, Any], items: Iterable[Any]) -> dict[str, Any]:
    for item in items:
        *outer, last = list(item.nested_key) or [item.key]
        inner = target
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = json.loads(item.value_json)
    return target


def _messages(log: Path) -> Iterator[bytes]:
    """Yield each complete message; stop at the first that is torn."""
    content = log.read_bytes()
    if content[:4] != b":W&B":
        raise ValueError(f"{log} is not the log of a W&B run")
    position = _FILE_HEADER
    parts: list[bytes] = []
    while True:
        if (left := _BLOCK - position % _BLOCK) < _RECORD_HEADER.size:
            position += left  # a header never crosses blocks
        body = position + _RECORD_HEADER.size
        if body > len(content):
            return
        checksum, length, kind = _RECORD_HEADER.unpack_from(content, position)
        data = content[body : body + length]
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            return
        position = body + length
        parts = [data] if kind in (_WHOLE, _FIRST) else [*parts, data]
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
