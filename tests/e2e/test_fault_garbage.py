"""Bytes that are no messages and no requests, on every port: closed, counted, and nothing else happens."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import SHORT, SLACK_S, Cluster, cluster, control_port, troubles
from engine_process import EngineProcess
from http_process import wait_until

FRAME_BYTES_MAX = 2 << 20
# Lines about garbage on a port in ten seconds.
LOGGED_MAX = 20


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def garbage(seed: int) -> list[bytes]:
    """What must end a control connection."""
    chance = random.Random(seed)
    noise = [frame(chance.randbytes(chance.randrange(1, 4000))) for _ in range(20)]
    sizes = [struct.pack("<I", size) + b"x" * 100 for size in (FRAME_BYTES_MAX + 1, 1 << 31, 0xFFFFFFFF)]
    http = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"  # as a length far beyond what is allowed
    return [*noise, *sizes, http, frame(b""), frame(bytes(64))]


def is_closed_after(port: int, data: bytes) -> bool:
    """Whether the other side ends the connection within a bound once it has heard this."""
    with socket.create_connection(("127.0.0.1", port), timeout=SLACK_S) as connection:
        try:
            connection.sendall(data)
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
    return True


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


# Shows E3, F1.
@pytest.mark.parametrize("side", ["p", "d"])
def test_garbage_on_a_control_port_is_closed_and_counted(pair, side):
    engine: EngineProcess = getattr(pair, side)
    port = control_port(engine)
    pair.expect_right(*SHORT)
    bad = garbage(seed=1)

    assert [data[:16] for data in bad if not is_closed_after(port, data)] == []

    assert troubles(engine) == {"bad_messages producer": len(bad)}
    logged = engine.logged("control: the connection to 127.0.0.1 port")
    assert len(logged) == LOGGED_MAX < len(bad), "the log names some of a flood, the counter all"
    pair.expect_right(*SHORT)
    pair.expect_rest()


# Shows E3.
def test_a_message_that_never_ends_takes_no_memory_and_disturbs_nobody(pair):
    before = resident_bytes(pair.p)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", control_port(pair.p))))
            connection.sendall(struct.pack("<I", FRAME_BYTES_MAX) + b"x" * 1000)
        pair.expect_right(*SHORT)
        assert resident_bytes(pair.p) - before < 200 * 64 * 1024, "a claim of 2 MiB is no reason to take them"
    pair.expect_rest()
    assert troubles(pair.p) == {}


# Shows E3, F1.
@pytest.mark.parametrize("place", ["engine", "directory", "router", "agent"])
def test_garbage_on_an_http_port_is_closed_and_counted(pair, place):
    ports = {
        "engine": pair.p.port,
        "directory": pair.p.directory_port,
        "router": pair.router.port,
        "agent": rank_http_port(pair.p),
    }
    port = ports[place]
    pair.expect_right(*SHORT)
    chance = random.Random(2)
    noise = [chance.randbytes(chance.randrange(1, 4000)) + b"\r\n\r\n" for _ in range(20)]
    wrong = [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),  # TLS
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50000,
        frame(bytes(64)),
    ]

    bad = noise + wrong

    assert [data[:32] for data in bad if not is_closed_after(port, data)] == []

    assert {where: bad_requests(pair.p, one) for where, one in ports.items()} == dict.fromkeys(ports, 0) | {
        place: len(bad)
    }
    program = pair.router if place == "router" else pair.p
    logged = program.logged("http: the connection to 127.0.0.1 port")
    assert len(logged) == LOGGED_MAX < len(bad), "the log names some of a flood, the counter all"
    pair.expect_right(*SHORT)
    pair.expect_rest()
    assert (troubles(pair.p), troubles(pair.d)) == ({}, {})


# Shows E3, E7.
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\x00",
        b"[" * 100000,
        b'{"prompt": {}}',
        b'{"prompt": [-1], "max_tokens": 1}',
        b'{"prompt": [1], "max_tokens": 1e99}',
        b'{"prompt": "x", "kv_transfer_params": []}',
        b'{"prompt": "x", "kv_transfer_params": {"do_remote_prefill": true}}',
        b'{"prompt": "x", "kv_transfer_params": {"do_remote_prefill": true, "remote_host": 5, "remote_port": "x"}}',
    ],
)
def test_a_body_that_is_no_request_is_refused_and_counted(pair, body):
    answer = pair.d.post("/v1/completions", body).finish()

    assert answer.status == 400, answer.body
    assert pair.d.metric("kvpush_engine_requests_total", outcome="refused") == 1
    pair.expect_right(SHORT[0])
    pair.expect_rest()


# Shows E3, F1.
def test_a_directory_that_is_none_fails_its_request_alone(pair):
    with socket.create_server(("127.0.0.1", 0)) as server:
        decode = pair.decode_leg(SHORT[0], "nowhere", server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"ranks":')
        wait_until(lambda: pair.d.agent_metric("kvpush_resolves_failed_total") >= 1, "it cannot be read")
        pair.expect_right(*SHORT)
        decode.go_away()
        pair.expect_rest()


def resident_bytes(engine: EngineProcess) -> int:
    return int(Path(f"/proc/{engine.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bad_requests(engine: EngineProcess, port: int) -> int:
    """What whoever serves this port, the engine or somebody beside it, has counted of it."""
    text = engine.get("/metrics", port).body.decode()
    return int(*re.findall(r"^kvpush_http_bad_requests_total (\d+)$", text, re.MULTILINE))


def rank_http_port(engine: EngineProcess) -> int:
    (rank,) = engine.get("/kvpush/v1/engine", engine.directory_port).json["ranks"]
    return rank["http"]["port"]
