"""A TCP connection's way that a test can cut, hold up and turn into a black hole; and a directory that sends an
engine's peers through one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, Self

from fake_server import serve

PIECE_BYTES = 1 << 16


class Link:
    """Listens on `port` and passes what comes to the target's port on this host and back."""

    def __init__(self, target_port: Callable[[], int]) -> None:
        self.connections = 0  # so far
        self.piece_bytes = PIECE_BYTES
        self.pause_s = 0.0  # after each piece
        self._target_port = target_port
        self._flows = threading.Event()
        self._flows.set()
        self._is_hole = False
        self._live: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.getsockname()[1]

    def cut(self) -> None:
        """Ends every connection, with what is under way on it. New ones work."""
        for end in list(self._live):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Nothing moves until release(); no connection ends, and new ones are accepted."""
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def swallow(self) -> None:
        """From now on it accepts and reads everything, and answers nothing."""
        self._is_hole = True

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.release()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port()))
            except OSError:
                near.close()
                continue
            self._live |= {near, far}
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self.piece_bytes):
                self._flows.wait()
                if self._is_hole:
                    continue
                target.sendall(data)
                if self.pause_s > 0:
                    time.sleep(self.pause_s)  # a slow link is what is played
        self._flows.wait()  # an end is under way like everything else
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        self._live.discard(source)
        source.close()


class Detour:
    """An engine's directory whose control address is that of a link to it."""

    def __init__(self, directory_port: int) -> None:
        self._control_port = 0
        self.link = Link(lambda: self._control_port)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{directory_port}{self.path}", timeout=10) as real:
                        body = json.dumps(owner._detoured(json.load(real))).encode()
                except OSError:
                    return self.send_error(503)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = serve(Handler)

    @property
    def directory_port(self) -> int:
        return self._server.server_address[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.link.close()

    def _detoured(self, engine: dict[str, Any]) -> dict[str, Any]:
        (rank,) = engine["ranks"]
        self._control_port = rank["control"]["port"]
        rank["control"]["port"] = self.link.port
        return engine
