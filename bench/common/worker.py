"""Programs that answer questions line by line, each stopped while others are measured."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path

from process import ROOT, Process, ProcessError

APPS = ROOT / "build" / "release" / "apps"
PYTHON = ROOT / ".venv" / "bin" / "python"
# A cold start that imports vLLM on a busy machine.
START_LIMIT_S = 180.0
# The largest transfer over the slowest wire, many times over.
ANSWER_LIMIT_S = 60.0


def environment() -> dict[str, str]:
    """TCP on the loopback interface for every UCX, and for kvpush the NIXL that is installed for Python."""
    env = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    if not Path("/sys/class/infiniband").exists():
        env["UCX_MODULES"] = "^ib"  # NIXL's UCX crashes at exit when it finds no device
    if (nixl := nixl_folder()) is not None:
        env["KVPUSH_NIXL_DIR"] = str(nixl)
    return env


def nixl_folder() -> Path | None:
    """Where the wheel keeps libnixl_capi.so."""
    found = sorted((ROOT / ".venv" / "lib").glob("python*/site-packages/.nixl_cu*.mesonpy.libs"))
    return found[-1] if found else None


class Worker:
    """One such program. Its first line is "ready", or says why it cannot be measured."""

    def __init__(self, name: str, command: Sequence[str | Path], logs: Path) -> None:
        self.name = name
        self._process = Process(name, command, logs / f"{name}.log", environment(), piped=True)

    def start(self) -> str | None:
        """Returns why it cannot be measured; else it is stopped until running()."""
        self._process.start()
        try:
            line = self._read(START_LIMIT_S)
        except ProcessError as error:
            return str(error)
        if line != "ready":
            return line
        self._process.pause()
        return None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._process.resume()
        try:
            yield
        finally:
            self._process.pause()

    def ask(self, question: str) -> str:
        """Raises ProcessError if it ends or stays silent."""
        stream = self._process.child.stdin
        with contextlib.suppress(BrokenPipeError):  # reading tells
            stream.write(question + "\n")
            stream.flush()
        return self._read(ANSWER_LIMIT_S)

    def stop(self) -> None:
        self._process.stop()

    def _read(self, limit_s: float) -> str:
        stream = self._process.child.stdout
        if not select.select([stream], [], [], limit_s)[0]:
            raise ProcessError(f"{self.name} has not answered within {limit_s:.0f} s; {self._process.log}")
        line = stream.readline()
        if not line:
            self._process.child.wait(ANSWER_LIMIT_S)
            self._process.check_running()
        return line.rstrip("\n")


@contextlib.contextmanager
def started(workers: Sequence[Worker], say) -> Iterator[list[Worker]]:
    """Those that can be measured; all are stopped at the end."""
    ready = []
    try:
        for worker in workers:
            reason = worker.start()
            if reason is None:
                ready.append(worker)
            say(f"{worker.name}: {reason or 'up'}")
        yield ready
    finally:
        for worker in workers:
            worker.stop()


def rotated(workers: Sequence[Worker], rotation: int) -> list[Worker]:
    shift = rotation % max(1, len(workers))
    return [*workers[shift:], *workers[:shift]]


def own_output() -> int:
    """For a worker in Python, first of all: a descriptor for its answers. What libraries print goes to the log."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers
