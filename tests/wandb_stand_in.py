"""A stand-in for the W&B service on the loopback interface, and a reader of offline runs.

It answers what the pinned client sends for init, log, tables, images, artifacts, finish,
`wandb sync`, `wandb sweep` and `wandb agent`, and keeps what it received. It proves what is sent,
not what the real service accepts or draws.

The log of a run is a LevelDB-style file: 32 KiB blocks of records with a checksum, a length and a
kind (whole, first, middle, last), each holding one protobuf message. Tested with wandb 0.31.
"""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

JSON = dict[str, Any]

_ENTITY = "researcher"
_KEY = "0" * 40  # the client refuses shorter ones before it asks the server


@dataclass
class ServedRun:
    """What the server knows of one run."""

    name: str
    display_name: str | None = None
    project: str | None = None
    sweep: str | None = None
    config: JSON = field(default_factory=dict)
    history: list[JSON] = field(default_factory=list)
    summary: JSON = field(default_factory=dict)
    exit_code: int | None = None


@dataclass
class ServedArtifact:
    """What the server knows of one artifact."""

    name: str
    type: str
    committed: bool = False
    files: list[str] = field(default_factory=list)


@dataclass
class ServedSweep:
    """What the server knows of one sweep.

    Attributes:
        project: Where it is.
        config: Its file.
        waiting: The points of its grid that no agent has yet.
        points: Those handed out, by the id of the run that each was to become.
        agents: How many asked for points.
    """

    project: str
    config: JSON
    waiting: Iterator[JSON]
    points: dict[str, JSON] = field(default_factory=dict)
    agents: int = 0


class WandbServer:
    """Serve until the `with` block ends.

    Args:
        delay_s: Wait before each answer.
        dies_after: Number of requests answered; then every connection is cut and the port closed.
        dies_at: The GraphQL operation that is never answered: every connection is cut and the port closed.
        hangs_after: Number of requests answered; then connections are accepted and left waiting.

    Attributes:
        connections: How often anything connected, whether or not it then asked something.
        requests: GraphQL operations and paths, in the order of arrival.
        unknown: Those that the server has no answer to. They get a 4xx: the client retries a
            5xx for ever.
        runs: By run id.
        sweeps: By sweep id.
        stopped: Ids of runs that agents are told to stop, as early termination does.
        artifacts: By the server's own id.
        died: Set when the server has died as it was asked to.
        uploads: File contents by run id (or artifact id) and name, as in `RUN/files.json`.
    """

    def __init__(
        self,
        delay_s: float = 0.0,
        dies_after: int | None = None,
        hangs_after: int | None = None,
        dies_at: str = "",
    ) -> None:
        self.connections = 0
        self.requests: list[str] = []
        self.unknown: list[str] = []
        self.runs: dict[str, ServedRun] = {}
        self.sweeps: dict[str, ServedSweep] = {}
        self.stopped: set[str] = set()
        self.artifacts: dict[str, ServedArtifact] = {}
        self.uploads: dict[str, bytes] = {}
        self._delay_s = delay_s
        self._dies_after = dies_after
        self._hangs_after = hangs_after
        self._dies_at = dies_at.encode()
        self._dead = False
        self.died = threading.Event()
        self._closed = threading.Event()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._http = _Listener(self)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> WandbServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point a client here, with a key it accepts."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": _KEY}

    def close(self) -> None:
        """Cut every connection and close the port."""
        self._dead = True
        self._closed.set()
        # First the thread that accepts connections: over a closed socket it would take a processor for itself.
        self._http.shutdown()
        self._http.server_close()

    def artifact(self, type: str) -> ServedArtifact:
        """Return the only artifact of a type."""
        (found,) = [artifact for artifact in self.artifacts.values() if artifact.type == type]
        return found

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, JSON] | None:
        """Answer one request with a status and a body, or with None: cut the connection."""
        self._closed.wait(self._delay_s)
        if self._hangs_after is not None and len(self.requests) >= self._hangs_after:
            self._closed.wait()
        with self._lock:
            is_last = self._dies_at and b"mutation " + self._dies_at in body
            if is_last or (self._dies_after is not None and len(self.requests) >= self._dies_after):
                self.close()
                self.died.set()
            if self._dead:
                return None
            return self._route(method, path.partition("?")[0], body)

    def _route(self, method: str, path: str, body: bytes) -> tuple[int, JSON]:
        if path == "/graphql":
            return self._graphql(json.loads(body))
        self.requests.append(f"{method} {path}")
        if stream := re.fullmatch(r"/files/[^/]*/[^/]*/([^/]*)/file_stream", path):
            self._receive_stream(self.runs[stream[1]], json.loads(body))
        elif path.startswith("/upload/"):
            self.uploads[path.removeprefix("/upload/")] = body
        elif not path.startswith("/sdk/otel/"):  # usage statistics, sent by `wandb sync`
            self.unknown.append(f"{method} {path}")
            return 404, {}
        return 200, {}

    def _graphql(self, request: JSON) -> tuple[int, JSON]:
        found = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
        operation = found[1] if found else "anonymous"
        self.requests.append(operation)
        if (resolve := _RESOLVERS.get(operation)) is None:
            self.unknown.append(operation)
            return 400, {"errors": [{"message": f"no answer to {operation}"}]}
        return 200, {"data": resolve(self, request.get("variables") or {})}

    def _receive_stream(self, run: ServedRun, body: JSON) -> None:
        for name, chunk in (body.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                rows = [json.loads(line) for line in chunk["content"]]
                run.history[chunk["offset"] :] = rows
            elif name == "wandb-summary.json":
                run.summary = json.loads(chunk["content"][-1])
        if body.get("complete"):
            run.exit_code = body["exitcode"]

    def new_id(self, letter: str) -> str:
        return f"{letter}{next(self._ids)}"

    def upload_slot(self, owner: str, name: str) -> JSON:
        """Describe where a file is to be sent, in the form all three uploads share."""
        return {"uploadUrl": f"{self.url}/upload/{owner}/{name}", "uploadHeaders": []}


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, server: WandbServer) -> None:
        super().__init__(("127.0.0.1", 0), _handler_for(server))
        self._server = server

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self._server.connections += 1
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client resets idle connections as a matter of course."""


def _handler_for(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            answer = server.answer(self.command, self.path, body)
            if answer is None:
                self.close_connection = True
                return
            status, content = answer
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_POST = do_PUT = handle_request

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the requests out of the test's output."""

    return Handler


def _viewer(server: WandbServer, variables: JSON) -> JSON:
    teams = {"edges": [{"node": {"name": _ENTITY}}]}
    viewer = {"id": "U1", "entity": _ENTITY, "username": _ENTITY, "flags": "{}", "teams": teams}
    return {"viewer": {**viewer, "email": "researcher@localhost"}}


def _upsert_bucket(server: WandbServer, variables: JSON) -> JSON:
    name = variables["name"]
    inserted = name not in server.runs
    run = server.runs.setdefault(name, ServedRun(name))
    run.display_name = variables.get("displayName") or run.display_name
    run.project = variables.get("project") or run.project
    run.sweep = variables.get("sweep") or run.sweep
    if variables.get("config"):
        run.config = json.loads(variables["config"])
    if variables.get("summaryMetrics"):
        run.summary.update(json.loads(variables["summaryMetrics"]))
    project = variables.get("project") or "uncategorized"
    entity = {"id": "E1", "name": variables.get("entity") or _ENTITY}
    bucket = {
        "id": f"bucket-{name}",
        "name": name,
        "displayName": run.display_name,
        "description": None,
        "config": json.dumps(run.config),
        "sweepName": run.sweep,
        "historyLineCount": len(run.history),
        "project": {"id": "P1", "name": project, "entity": entity},
    }
    return {"upsertBucket": {"inserted": inserted, "bucket": bucket}}


def _run_resume_status(server: WandbServer, variables: JSON) -> JSON:
    entity = {"id": "E1", "name": _ENTITY}
    project = variables.get("project")
    return {"model": {"id": "P1", "name": project, "entity": entity, "bucket": None}}


def _create_run_files(server: WandbServer, variables: JSON) -> JSON:
    run = variables["run"]
    files = [{"name": name, **server.upload_slot(run, name)} for name in variables["files"]]
    return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}


def _create_artifact(server: WandbServer, variables: JSON) -> JSON:
    identity = server.new_id("A")
    wanted = variables["input"]
    server.artifacts[identity] = ServedArtifact(wanted["artifactCollectionName"], wanted["artifactTypeName"])
    sequence = {"latestArtifact": None}
    artifact = {"id": identity, "state": "PENDING", "artifactSequence": sequence}
    return {"createArtifact": {"artifact": artifact}}


def _create_artifact_manifest(server: WandbServer, variables: JSON) -> JSON:
    identity = server.new_id("M")
    file = {"id": identity, **server.upload_slot(variables["artifactID"], variables["name"])}
    return {"createArtifactManifest": {"artifactManifest": {"id": identity, "file": file}}}


def _update_artifact_manifest(server: WandbServer, variables: JSON) -> JSON:
    identity = variables["artifactManifestID"]
    file = {"id": identity, **server.upload_slot(identity, "manifest.json")}
    return {"updateArtifactManifest": {"artifactManifest": {"id": identity, "file": file}}}


def _create_artifact_files(server: WandbServer, variables: JSON) -> JSON:
    edges = []
    for wanted in (variables.get("input") or variables)["artifactFiles"]:
        identity, name = wanted["artifactID"], wanted["name"]
        server.artifacts[identity].files.append(name)
        slot = server.upload_slot(identity, name)
        node = {**slot, "storagePath": name, "uploadMultipartUrls": None}
        edges.append({"node": {**node, "artifact": {"id": identity}}})
    return {"createArtifactFiles": {"files": {"edges": edges}}}


def _commit_artifact(server: WandbServer, variables: JSON) -> JSON:
    identity = variables["artifactID"]
    server.artifacts[identity].committed = True
    return {"commitArtifact": {"artifact": {"id": identity, "digest": ""}}}


def _upsert_sweep(server: WandbServer, variables: JSON) -> JSON:
    config = yaml.safe_load(variables["config"])
    name = server.new_id("sweep")
    server.sweeps[name] = ServedSweep(variables["projectName"], config, _grid(config["parameters"]))
    entity = {"id": "E1", "name": variables.get("entityName") or _ENTITY}
    project = {"id": "P1", "name": variables["projectName"], "entity": entity}
    return {"upsertSweep": {"sweep": {"name": name, "project": project}, "configValidationWarnings": []}}


def _grid(parameters: JSON) -> Iterator[JSON]:
    choices = [parameter.get("values", [parameter.get("value")]) for parameter in parameters.values()]
    for point in itertools.product(*choices):
        yield dict(zip(parameters, point, strict=True))


def _sweep_with_runs(server: WandbServer, variables: JSON) -> JSON:
    if (sweep := server.sweeps.get(variables["sweep"])) is None or sweep.project != variables["project"]:
        return {"project": None}
    # Of what the client asks for, all that an agent reads.
    found = {"id": variables["sweep"], "name": variables["sweep"], "config": yaml.safe_dump(sweep.config)}
    return {"project": {"sweep": {**found, "runs": {"edges": []}}}}


def _create_agent(server: WandbServer, variables: JSON) -> JSON:
    server.sweeps[variables["sweep"]].agents += 1
    return {"createAgent": {"agent": {"id": f"{server.new_id('agent')} {variables['sweep']}"}}}


def _heartbeat(server: WandbServer, variables: JSON) -> JSON:
    """Hand the next point to an agent that runs nothing; tell it to go where there is none."""
    name = variables["id"].split()[1]
    sweep, running = server.sweeps[name], json.loads(variables["runState"])
    commands: list[JSON] = [{"type": "stop", "run_id": run} for run in running if run in server.stopped]
    point = None if running else next(sweep.waiting, None)
    if not running and point is None:
        commands = [{"type": "exit"}]
    elif point is not None:
        run = server.new_id("run")
        sweep.points[run] = point
        server.runs[run] = ServedRun(run, project=sweep.project, sweep=name)
        args = {parameter: {"value": value} for parameter, value in point.items()}
        commands = [{"type": "run", "run_id": run, "program": sweep.config.get("program"), "args": args}]
    return {"agentHeartbeat": {"agent": {"id": variables["id"]}, "commands": json.dumps(commands)}}


def _run_stopped_status(server: WandbServer, variables: JSON) -> JSON:
    return {"project": {"run": {"stopped": variables["runId"] in server.stopped}}}


def _always(answer: JSON) -> Callable[[WandbServer, JSON], JSON]:
    return lambda server, variables: answer


_VERSIONS = {"max_cli_version": "99.0.0", "min_cli_version": "0.0.1"}

_RESOLVERS: dict[str, Callable[[WandbServer, JSON], JSON]] = {
    "Viewer": _viewer,
    "UpsertBucket": _upsert_bucket,
    "RunResumeStatus": _run_resume_status,
    "CreateRunFiles": _create_run_files,
    "CreateArtifact": _create_artifact,
    "CreateArtifactManifest": _create_artifact_manifest,
    "UpdateArtifactManifest": _update_artifact_manifest,
    "CreateArtifactFiles": _create_artifact_files,
    "CommitArtifact": _commit_artifact,
    "ArtifactType": _always({"project": {"artifact": None}}),
    "RunStoppedStatus": _run_stopped_status,
    "UpsertSweep": _upsert_sweep,
    "SweepWithRuns": _sweep_with_runs,
    "CreateAgent": _create_agent,
    "Heartbeat": _heartbeat,
    "ServerFeaturesQuery": _always({"serverInfo": {"features": []}}),
    "ServerInfo": _always({"serverInfo": {"cliVersionInfo": _VERSIONS, "latestLocalVersionInfo": None}}),
    "OrganizationCoreWeaveOrganizationID": _always({"entity": {"organization": {"coreWeaveOrganizationId": ""}}}),
    "OrgFeatureFlags": _always({"organization": {"featureFlags": []}}),
}

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
