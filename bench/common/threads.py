"""Threads that are busy although nobody asked them for anything."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from process import cpu_ticks, session_stats, stat_fields

# NIXL's progress thread takes about half of its core beside another busy thread.
SPINNER_SHARE = 0.25
LOOK_S = 1.0


def of_session(session: int) -> list[int]:
    """Threads of all processes of a session."""
    return [thread for stat in session_stats(session) for thread in of_process(stat.parent)]


def of_process(folder: Path = Path("/proc/self")) -> list[int]:
    with contextlib.suppress(OSError):  # ended meanwhile
        return [int(task.name) for task in (folder / "task").iterdir()]
    return []


def spinners(threads: Iterable[int]) -> list[int]:
    """Those of them that use CPU all the time. Takes LOOK_S."""
    before = {thread: _ticks(thread) for thread in threads}
    time.sleep(LOOK_S)
    limit = SPINNER_SHARE * LOOK_S * os.sysconf("SC_CLK_TCK")
    return [thread for thread, start in before.items() if _ticks(thread) - start > limit]


def set_niceness(threads: Iterable[int], niceness: int) -> None:
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def demote_spinners(threads: Iterable[int], niceness: int) -> int:
    """Gives those of them that use CPU all the time a lower priority; returns how many. Takes LOOK_S."""
    found = spinners(threads)
    set_niceness(found, niceness)
    return len(found)


def _ticks(thread: int) -> int:
    """Its own: /proc/N/stat counts the whole process, also where N is a thread of it."""
    return cpu_ticks(stat_fields(Path(f"/proc/{thread}/task/{thread}/stat")))
