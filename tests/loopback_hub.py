"""A hub on the loopback address: repositories of models in memory, with what uploads and downloads ask for."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

Hub = TypeVar("Hub", bound="LoopbackHub")


class LoopbackHub(ThreadingHTTPServer):
    """Repositories by their names, each with the content of its files by their paths."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []

    def answer(
        self, content: bytes, kind: str, headers: dict[str, str], status: int
    ) -> tuple[bytes, dict[str, str], int]:
        """Return the content, the headers and the status with which a request is answered."""
        return content, headers, status

    @property
    def address(self) -> str:
        """Its address, as `endpoint`."""
        return f"http://127.0.0.1:{self.server_address[1]}"


def commit_of(files: dict[str, bytes]) -> str:
    """Return the commit of these files, which their content decides."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Make a repository, say how files are uploaded, check a card, and take a commit."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        if path == "/api/repos/create":
            name = self._named(json.loads(body))
            self.server.repositories.setdefault(name, {})
            return self._json({"url": f"{self.server.address}/{name}"})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/[^/]+", path):
            names = [one["path"] for one in json.loads(body)["files"]]
            return self._json(
                {
                    "files": [
                        {"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for name in names
                    ]
                }
            )
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/[^/]+", path):
            files = self.server.repositories[found[1]]
            for line in body.decode("utf-8").splitlines():
                one = json.loads(line)
                if one["key"] == "file":
                    files[one["value"]["path"]] = base64.b64decode(one["value"]["content"])
                elif one["key"] == "deletedFile":
                    del files[one["value"]["path"]]
            commit = commit_of(files)
            url = f"{self.server.address}/{found[1]}/commit/{commit}"
            return self._json({"success": True, "commitOid": commit, "commitUrl": url})
        return self._absent()

    def _named(self, asked: dict[str, Any]) -> str:
        owner = asked.get("organization")
        return f"{owner}/{asked['name']}" if owner else str(asked["name"])

    def do_HEAD(self) -> None:
        """Say what a file is."""
        self.do_GET()

    def do_GET(self) -> None:
        """Give what is known of a repository, the list of its files, or a file."""
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            if (files := self.server.repositories.get(found[1])) is None:
                return self._absent()
            siblings = [{"rfilename": name} for name in sorted(files)]
            return self._json({"id": found[1], "modelId": found[1], "sha": commit_of(files), "siblings": siblings})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            files = self.server.repositories[found[1]]
            return self._json([
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in sorted(files.items())
            ])  # fmt: skip
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            files = self.server.repositories.get(found[1], {})
            if found[2] not in files:
                return self._absent()
            content = files[found[2]]
            tag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self._send(content, "application/octet-stream", {"ETag": tag, "X-Repo-Commit": commit_of(files)})
        return self._absent()

    def _json(self, content: Any) -> None:
        self._send(json.dumps(content).encode(), "application/json", {})

    def _absent(self) -> None:
        self._send(b'{"error": "Repository not found"}', "application/json", {"X-Error-Code": "RepoNotFound"}, 404)

    def _send(self, content: bytes, kind: str, headers: dict[str, str], status: int = 200) -> None:
        content, headers, status = self.server.answer(content, kind, headers, status)
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def loopback_hub(kind: type[Hub]) -> Iterator[Hub]:
    """Serve until the end of the block."""
    with kind() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
