"""Child processes that leave nothing behind: setup, check, the demo and the tests start theirs through this.

A child has a process group of its own and a log file. It is killed when the thread that started it ends
(`PR_SET_PDEATHSIG`), and its whole group by `stop()`. For when this process is killed before, `run()` and
`servers.Cluster` have a `Guard`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
STOP_LIMIT_S = 10.0  # a vLLM server without requests needs about three
KILL_LIMIT_S = 5.0
HEARTBEAT_S = 15.0

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessError(RuntimeError):
    """A process ended or stayed silent when it should not have; the text holds the end of its log."""


def tail(log: Path, lines: int) -> str:
    """The last lines of a log, indented and cut to what a screen shows."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join("    " + line[:240] for line in text.splitlines()[-lines:])


def end_on_signals() -> None:
    """Lets SIGINT, SIGTERM and SIGHUP unwind the main thread, so that what was started is stopped.

    SIGINT too needs it: shells start background jobs with it ignored. SIGHUP stays ignored under nohup.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, end)


def run_program(main: Callable[[], int]) -> NoReturn:
    """Ends this process with main()'s status, or with one line about a child or a signal that ended it."""
    end_on_signals()
    try:
        sys.exit(main())
    except ProcessError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")


def stat_fields(stat: Path) -> list[str]:
    """The fields of a /proc/*/stat from the state on, which is the first; [] if what it tells of has ended."""
    try:
        return stat.read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def cpu_ticks(fields: Sequence[str]) -> int:
    """CPU time, of user and kernel, in clock ticks; 0 for what has ended."""
    return int(fields[11]) + int(fields[12]) if fields else 0


def session_stats(session: int) -> Iterator[Path]:
    """The /proc/*/stat of each process of a session."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        if stat_fields(stat)[3:4] == [str(session)]:
            yield stat


def end_with_parent(parent: int) -> None:
    """Called in a new child before it becomes another program: it is killed when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which ended before prctl took effect
        os._exit(1)


class Guard:
    """Kills the groups that are still on its list when this process has gone without stopping them."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
            stdin=subprocess.PIPE,
            start_new_session=True,  # out of the reach of Ctrl-C and of a kill of our group
            text=True,
        )

    def add(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        self._child.stdin.close()
        self._child.wait()

    def _tell(self, line: str) -> None:
        self._child.stdin.write(line)
        self._child.stdin.flush()


@dataclass
class Process:
    """One child process and all that it starts."""

    name: str
    command: Sequence[str | Path]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] | None = None
    append: bool = False
    piped: bool = False  # the caller writes its standard input and reads its standard output, as text
    child: subprocess.Popen | None = field(default=None, init=False)

    def start(self) -> None:
        """Call from a thread that outlives the child."""
        parent, cores = os.getpid(), self.cores

        def in_child() -> None:
            end_with_parent(parent)
            if cores is not None:
                os.sched_setaffinity(0, cores)

        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab" if self.append else "wb") as out:
            out.write(f"$ {' '.join(map(str, self.command))}\n".encode())
            out.flush()
            self.child = subprocess.Popen(
                [str(word) for word in self.command],
                cwd=ROOT,
                env={**os.environ, **self.env},
                stdin=subprocess.PIPE if self.piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.piped else out,
                stderr=out,
                text=self.piped or None,
                start_new_session=True,
                preexec_fn=in_child,
            )

    @property
    def pid(self) -> int:
        assert self.child is not None, f"{self.name} was not started"
        return self.child.pid

    def ready(self) -> bool:
        return True

    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def check_running(self) -> None:
        """Raises ProcessError if the process has ended."""
        assert self.child is not None, f"{self.name} was not started"
        if not self.running():
            raise ProcessError(f"{self.name} ended with {self.child.returncode}; {self.log}:\n{tail(self.log, 25)}")

    def wait(self, limit_s: float, heartbeat: Callable[[str], None]) -> int | None:
        """Returns the exit status, or None when the limit is over. `heartbeat` gets the log's last line at times."""
        assert self.child is not None, f"{self.name} was not started"
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                return self.child.wait(timeout=min(HEARTBEAT_S, left_s))
            except subprocess.TimeoutExpired:
                heartbeat(tail(self.log, 1).strip()[:100])
        return None

    def pause(self) -> None:
        """Stops the whole process group where it is; it uses no CPU until resume()."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the whole process group at once, as a machine that dies would."""
        os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ends the whole process group, paused or not: asks first, then kills."""
        if self.child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        for number, limit_s in ((signal.SIGTERM, STOP_LIMIT_S), (signal.SIGKILL, KILL_LIMIT_S)):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + limit_s
            while self._group_exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        self.child.wait()

    def _group_exists(self) -> bool:
        self.running()  # reaps it
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def run(process: Process, limit_s: float, heartbeat: Callable[[str], None]) -> int | None:
    """Runs a process to its end; None when it was stopped at the limit. Nothing of it is left, whatever happens."""
    with contextlib.closing(Guard()) as guard:
        process.start()
        try:
            guard.add(process.pid)
            return process.wait(limit_s, heartbeat)
        finally:
            process.stop()
            guard.remove(process.pid)
