"""NIXL alone over UCX, from process to process by its Python package: a prepared list of all memory on both sides, then
a request for each transfer. Answers the questions of bench/wire/load.h."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import numpy as np

import worker
from nixl_pair import Pair

MEMORY_BYTES = 256 << 20


class Lists:
    """All memory in descriptors of one length, and an order for each side."""

    def __init__(self, pair: Pair, length_bytes: int) -> None:
        self._agent = pair.side.agent
        count = MEMORY_BYTES // length_bytes
        self._local = self._prepare("NIXL_INIT_AGENT", pair.side.base, length_bytes, count)
        self._remote = self._prepare(pair.target, pair.target_base, length_bytes, count)
        chance = random.Random(length_bytes)
        self._orders = [np.array(chance.sample(range(count), count), dtype=np.int32) for _ in range(2)]
        self._count, self._next = count, 0

    def _prepare(self, agent: str, base: int, length_bytes: int, count: int):
        places = base + length_bytes * np.arange(count, dtype=np.uint64)
        lengths = np.full(count, length_bytes, dtype=np.uint64)
        blocks = np.stack([places, lengths, np.zeros(count, dtype=np.uint64)], axis=1)
        return self._agent.prep_xfer_dlist(agent, self._agent.get_xfer_descs(blocks, "DRAM"))

    def move(self, count: int) -> tuple[float, float]:
        """Seconds until the end and, of these, until all was posted; other places than the last time."""
        if self._next + count > self._count:
            self._next = 0
        local, remote = (order[self._next : self._next + count] for order in self._orders)
        self._next += count
        begin = time.perf_counter()
        handle = self._agent.make_prepped_xfer("WRITE", self._local, local, self._remote, remote)
        state = self._agent.transfer(handle)
        posted = time.perf_counter()
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
        end = time.perf_counter()
        if state != "DONE":
            raise RuntimeError(f"a transfer has ended as {state}")
        self._agent.release_xfer_handle(handle)
        return end - begin, posted - begin


def main() -> None:
    answers = os.fdopen(worker.own_output(), "w")
    try:
        pair = Pair(MEMORY_BYTES, as_vllm=False)
    except ImportError as error:
        print(f"NIXL is not installed: {error}", file=answers, flush=True)
        return
    print("ready", file=answers, flush=True)
    lists: dict[int, Lists] = {}
    for line in sys.stdin:
        length_bytes, total_bytes = map(int, line.split()[1:])
        if length_bytes not in lists:
            lists[length_bytes] = Lists(pair, length_bytes)
        seconds = lists[length_bytes].move(total_bytes // length_bytes)
        print(*seconds, file=answers, flush=True)


if __name__ == "__main__":
    main()
