"""A program of this project as a process that serves HTTP, and a client of it."""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from network import Network

from process import end_with_parent

WAIT_SECONDS = 20.0


def binary(name: str, variable: str) -> str:
    """What the environment variable names, else the newest one built in this tree, else the installed one."""
    if path := os.environ.get(variable):
        return path
    root = Path(__file__).resolve().parents[2]
    built = sorted(root.glob(f"build/**/apps/{name}"), key=lambda path: path.stat().st_mtime)
    path = str(built[-1]) if built else shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"no {name}: build it, install it, or name it in {variable}")
    return path


def wait_until(
    is_so: Callable[[], object], what: str, within: float = WAIT_SECONDS, seen: Callable[[], object] = str
) -> None:
    """Asks again and again; fails with `what` has not come true, and what was `seen`, when the time is over."""
    until = time.monotonic() + within
    while not is_so():
        assert time.monotonic() < until, f"not within {within} s: {what} {seen()}"
        time.sleep(0.001)  # leaves the processor to those that are waited for


class ProgramEnded(Exception):
    """Instead of serving; with its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the program ended with status {status}")
        self.status = status


class HttpProcess:
    """A running program; a context manager that leaves no process behind."""

    # What it says of a port each, in this order, when it has started.
    _says: tuple[str, ...] = ("listening",)

    def __init__(self, *command: str, network: Network | None = None) -> None:
        self._network = network  # the one that it runs on, if not the test's own
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this
        self._sent: list[Sent] = []  # a request that nobody holds would be one whose client went away
        self._start(*command)

    def _start(self, *command: str) -> None:
        way = [] if self._network is None else self._network.prefix()
        self.process = subprocess.Popen(
            [*way, *command],
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Without effect on a network of its own: entering one gives other rights, which ends it.
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
        self._said = b""
        try:
            self._ports = {what: self._read_port(what) for what in self._says}
        except BaseException:  # before anybody could have entered it
            self._end()
            raise

    @property
    def port(self) -> int:
        return self._ports["listening"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sent in self._sent:
            sent.go_away()
        self._end()
        sys.stderr.write(self.log())  # which pytest shows if the test fails
        self._log.close()

    def _end(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def log(self) -> str:
        """What it has written to stderr so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode()

    def logged(self, *parts: str) -> list[str]:
        """The lines of the log that have all of these in them."""
        return [line for line in self.log().splitlines() if all(part in line for part in parts)]

    def _read_port(self, what: str) -> int:
        line = self._line()
        match = re.fullmatch(rf"{what} on http://127\.0\.0\.1:(\d+)", line)
        assert match, f"the program said {line!r}"
        return int(match[1])

    def _line(self) -> str:
        """The next line that the program says, without its end."""
        assert self.process.stdout is not None
        while b"\n" not in self._said:
            if not select.select([self.process.stdout], [], [], WAIT_SECONDS)[0]:
                raise TimeoutError("the program did not say where it listens")
            more = os.read(self.process.stdout.fileno(), 4096)
            if not more:
                sys.stderr.write(self.log())
                raise ProgramEnded(self.process.wait(WAIT_SECONDS))
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(WAIT_SECONDS)

    def kill(self) -> None:
        """SIGKILL; gone when it returns."""
        self.process.kill()
        self.wait()

    def stop(self) -> None:
        """SIGSTOP; it stands still when it returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def get(self, path: str, port: int | None = None) -> Answer:
        """From its own port, or another one that it has."""
        return self.send("GET", path, port=port).finish()

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Sent:
        """Sends `body` (bytes as they are, anything else as JSON) and returns without waiting for the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, {"Content-Type": "application/json"} | (headers or {}))

    def send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, port: int | None = None
    ) -> Sent:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=WAIT_SECONDS)
        if self._network is not None:
            connection.sock = self._network.connect(connection.port)
            connection.sock.settimeout(WAIT_SECONDS)
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

    def is_answered(self) -> bool:
        """Whether some of the answer has come, or the connection has ended."""
        return self.wait_for_answer(0)

    def wait_for_answer(self, limit_s: float) -> bool:
        """Like is_answered(), waiting for it."""
        return bool(select.select([self._connection.sock], [], [], limit_s)[0])

    def finish(self) -> Answer:
        answer = Answer(self.head())
        self._connection.close()
        return answer

    def go_away(self) -> None:
        if self.response is not None:
            self.response.close()
        self._connection.close()
