"""kvpush-router as a process, and a client of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

WAIT_SECONDS = 20.0


def router_binary() -> str:
    """KVPUSH_ROUTER, else the newest one built in this tree, else the installed one."""
    if path := os.environ.get("KVPUSH_ROUTER"):
        return path
    root = Path(__file__).resolve().parents[2]
    built = sorted(root.glob("build/**/apps/kvpush-router"), key=lambda path: path.stat().st_mtime)
    path = str(built[-1]) if built else shutil.which("kvpush-router")
    if path is None:
        raise FileNotFoundError("no kvpush-router: build it, install it, or name it in KVPUSH_ROUTER")
    return path


class RouterProcess:
    """A running router; a context manager that leaves no process behind."""

    def __init__(self, prefill: list[str], decode: list[str], *more: str) -> None:
        """`prefill` as HOST:PORT=DIRECTORY_HOST:PORT, `decode` as HOST:PORT."""
        flags = [flag for server in prefill for flag in ("--prefill", server)]
        flags += [flag for server in decode for flag in ("--decode", server)]
        self.process = subprocess.Popen(
            [router_binary(), "--listen", "127.0.0.1:0", *flags, *more], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], WAIT_SECONDS)[0]:
            self.process.kill()
            raise TimeoutError("the router did not say where it listens")
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        assert match, f"the router said {line!r}"
        self.port = int(match[1])
        self._sent: list[Sent] = []  # a request that nobody holds would be one whose client went away

    def __enter__(self) -> RouterProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for sent in self._sent:
            sent.go_away()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(WAIT_SECONDS)

    def get(self, path: str) -> Answer:
        return self.send("GET", path).finish()

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Sent:
        """Sends `body` (bytes as they are, anything else as JSON) and returns without waiting for the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, {"Content-Type": "application/json"} | (headers or {}))

    def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Sent:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        connection.request(method, path, body, headers or {})
        self._sent.append(Sent(connection))
        return self._sent[-1]

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series; 0 when it does not exist."""
        text = ",".join(f'{key}="{value}"' for key, value in labels.items())
        series = f"{name}{{{text}}}" if text else name
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(series + " "):
                return float(line.split()[-1])
        return 0.0


class Answer:
    """A whole answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


class Sent:
    """A request that was sent, whose answer may still come."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.response: http.client.HTTPResponse | None = None

    def head(self) -> http.client.HTTPResponse:
        """Waits for status and headers."""
        if self.response is None:
            self.response = self._connection.getresponse()
        return self.response

    def piece(self) -> bytes:
        """Waits for the next bytes of the body."""
        return self.head().read1()

    def finish(self) -> Answer:
        answer = Answer(self.head())
        self._connection.close()
        return answer

    def go_away(self) -> None:
        if self.response is not None:
            self.response.close()
        self._connection.close()
