"""NIXL's Python package between two processes of this machine; as a program, the target of such a pair."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import select
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import threads
import worker

# As the benchmark of the servers offers it: so that they do not take the cores that the other threads need.
SPINNER_NICE = 10
# As vLLM's connector asks for by default.
VLLM_THREADS = 4
NOTES_PERIOD_S = 0.2


def nixl_api():
    """The module of the front package, or of the wheel behind it."""
    try:
        import nixl._api as api
    except ImportError:
        import nixl_cu13._api as api
    return api


class Side:
    """One process's agent over UCX, with its memory registered.

    With `as_vllm` the agent is configured as vLLM's connector does it, and its progress thread spins, at a lower
    priority. Without, there is none, and whoever waits makes the progress.
    """

    def __init__(self, name: str, size_bytes: int, as_vllm: bool) -> None:
        api = nixl_api()
        if as_vllm:
            config = api.nixl_agent_config(num_threads=VLLM_THREADS, capture_telemetry=True)
        else:
            config = api.nixl_agent_config(enable_prog_thread=False)
        self.agent = api.nixl_agent(name, config)
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.memset(self.base, 1, size_bytes)
        self.agent.register_memory([(self.base, size_bytes, 0, "")], "DRAM")
        if as_vllm:
            threads.demote_spinners(threads.of_process(), SPINNER_NICE)


class Pair:
    """The writer's side, and the target in a process of its own, which ends with this one."""

    def __init__(self, size_bytes: int, as_vllm: bool) -> None:
        command = [sys.executable, __file__, str(size_bytes), *(["as-vllm"] if as_vllm else [])]
        self._target = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.side = Side("writer", size_bytes, as_vllm)
        metadata, self.target_base = pickle.load(self._target.stdout)
        self.target = self.side.agent.add_remote_agent(metadata)


def be_the_target(size_bytes: int, as_vllm: bool) -> None:
    answers = os.fdopen(worker.own_output(), "wb")
    side = Side("target", size_bytes, as_vllm)
    pickle.dump((side.agent.get_agent_metadata(), side.base), answers)
    answers.flush()
    period_s = NOTES_PERIOD_S if as_vllm else 0.0
    while not select.select([sys.stdin], [], [], period_s)[0]:  # it becomes readable when the writer is gone
        side.agent.get_new_notifs()


if __name__ == "__main__":
    be_the_target(int(sys.argv[1]), "as-vllm" in sys.argv)
