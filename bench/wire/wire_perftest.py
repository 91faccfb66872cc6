"""UCX's own program between two processes: puts of one size over TCP on the loopback interface."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

from process import ProcessError
from worker import environment

PROGRAM = "ucx_perftest"
START_LIMIT_S = 10.0
RUN_LIMIT_S = 60.0
LOOK_S = 0.02
# Not counted; enough to fill the connection.
WARM_UP_PUTS = 10


def installed() -> bool:
    return shutil.which(PROGRAM) is not None


def seconds(length_bytes: int, total_bytes: int) -> float:
    """For so many puts. Raises ProcessError if it fails."""
    port = free_port()
    base = [PROGRAM, "-p", str(port), "-f"]
    env = {**os.environ, **environment()}
    server = subprocess.Popen(base, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_listener(port)
        count = total_bytes // length_bytes
        client = [*base, "127.0.0.1", "-t", "ucp_put_bw", "-s", str(length_bytes), "-w", str(WARM_UP_PUTS)]
        done = subprocess.run(
            [*client, "-n", str(count)], env=env, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
        if done.returncode != 0:
            raise ProcessError(f"{PROGRAM} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return total_bytes / bytes_a_second(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise ProcessError(f"{PROGRAM} has not ended within {RUN_LIMIT_S:.0f} s") from error
    finally:
        server.kill()
        server.wait()


def bytes_a_second(output: str) -> float:
    """Of the whole run, from what `ucx_perftest -f` prints.

    Its last line holds the number of puts, three times in microseconds, then twice MiB/s and twice messages a second,
    each first of late and then of all.
    """
    for line in reversed(output.splitlines()):
        fields = line.split()
        if len(fields) == 8 and all(re.fullmatch(r"[\d.]+", field) for field in fields):
            return float(fields[5]) * (1 << 20)
    raise ProcessError(f"{PROGRAM} prints something else than is known: {output[-300:]}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for_listener(port: int) -> None:
    """The server answers one connection only, so that trying is not possible."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if any(listens(line, port) for path in ("tcp", "tcp6") for line in _sockets(path)):
            return
        time.sleep(LOOK_S)
    raise ProcessError(f"{PROGRAM} does not listen within {START_LIMIT_S:.0f} s")


def listens(line: str, port: int) -> bool:
    """`line` is one of /proc/net/tcp."""
    fields = line.split()
    return len(fields) > 3 and fields[1].endswith(f":{port:04X}") and fields[3] == "0A"


def _sockets(name: str) -> list[str]:
    path = Path("/proc/net") / name
    return path.read_text().splitlines() if path.exists() else []
