"""An HTTP server whose every answer a test writes, step by step, from its own thread."""

from __future__ import annotations

import json
import queue
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_SECONDS = 20.0  # for what must happen; only a failing test waits that long


class Asked:
    """One request that has arrived, and the means to answer it. Used by the test's thread alone."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.method = handler.command
        self.path = handler.path
        self.headers = handler.headers
        self.raw_body = body
        self.answered = threading.Event()
        self.keep_alive = True
        self._socket: socket.socket = handler.connection

    @property
    def body(self) -> Any:
        return json.loads(self.raw_body)

    @property
    def asker_port(self) -> int:
        """Tells connections apart."""
        return self._socket.getpeername()[1]

    @property
    def transfer(self) -> dict[str, Any]:
        return self.body["kv_transfer_params"]

    def answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """The whole answer, as JSON."""
        body = json.dumps(value).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {})
        self._send(_head(status, fields) + body)
        self.answered.set()

    def start_stream(self, headers: dict[str, str] | None = None) -> None:
        """The head of a streamed answer."""
        fields = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"} | (headers or {})
        self._send(_head(200, fields))

    def piece(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self._send(b"0\r\n\r\n")
        self.answered.set()

    def pieces_until_full(self, data: bytes, count_max: int, full_seconds: float) -> int:
        """Sends the same piece until the other side has taken nothing for so long; returns how many were sent."""
        for count in range(count_max):
            if not select.select([], [self._socket], [], full_seconds)[1]:
                return count
            self.piece(data)
        return count_max

    def close(self) -> None:
        """Breaks the connection."""
        self.keep_alive = False
        self._socket.shutdown(socket.SHUT_RDWR)
        self.answered.set()

    def wait_until_cancelled(self) -> None:
        """Returns when the asker has closed the connection."""
        self._socket.settimeout(WAIT_SECONDS)
        try:
            data = self._socket.recv(1)
        except ConnectionError:
            data = b""
        assert data == b"", "more was sent instead of a close"
        self.keep_alive = False
        self.answered.set()

    def is_cancelled(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(WAIT_SECONDS)
        self._socket.sendall(data)


class FakeServer:
    """A server of which GET /health answers by itself; every other request waits for the test."""

    def __init__(self) -> None:
        self._asked: queue.Queue[Asked] = queue.Queue()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = Asked(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))
                if (asked.method, asked.path) == ("GET", "/health"):
                    asked.answer({})
                else:
                    owner._asked.put(asked)
                asked.answered.wait()
                self.close_connection = not asked.keep_alive

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._server = serve(Handler)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def next(self) -> Asked:
        """The oldest request that the test has not taken."""
        return self._asked.get(timeout=WAIT_SECONDS)

    def has_request(self) -> bool:
        return not self._asked.empty()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """On a port of the kernel's choice, with threads that nobody has to wait for; until its shutdown()."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def unused_address() -> str:
    """An address at which nobody listens: its port was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def _head(status: int, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted"] + [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
