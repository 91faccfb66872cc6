"""Which threads of a process count as spinning."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import threads


def test_only_the_thread_that_is_busy_spins():
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    busy, calm = threading.Thread(target=spin), threading.Thread(target=stop.wait)
    busy.start()
    calm.start()
    try:
        assert threads.spinners([busy.native_id, calm.native_id]) == [busy.native_id]
    finally:
        stop.set()
        busy.join()
        calm.join()
