"""Two engines of one process with real agents of the installed package, and the calls that their threads make."""

from __future__ import annotations

import time

import numpy as np

from kvpush import Agent, DirectoryServer
from kvpush.types import Plane, Receive, Send
from submit_case import BLOCK_TOKENS, Case
from submit_worker import Parts, begin_anywhere, timed

EVENT_LIMIT_S = 30.0
# The agents move bytes as well; how many does not change what the engine's thread does.
PAGE_BYTES = 4 * BLOCK_TOKENS


class Engine:
    """One engine of one rank with its agent and its directory."""

    def __init__(self, name: str, case: Case, transport: str) -> None:
        self._memory = np.zeros(case.memory_bytes(PAGE_BYTES), dtype=np.uint8)
        base = self._memory.ctypes.data
        self.agent = Agent.open(
            engine_id=name,
            host="127.0.0.1",
            control_port=0,
            transport=transport,
            planes=[self._plane(case, layer, base + offset) for layer, offset in enumerate(case.offsets(PAGE_BYTES))],
            regions=[(base, self._memory.nbytes)],
        )
        self.directory = DirectoryServer.open("127.0.0.1", 0)
        self.directory.set_ranks([self.agent.document])

    @staticmethod
    def _plane(case: Case, layer: int, base: int) -> Plane:
        row = PAGE_BYTES // BLOCK_TOKENS
        return Plane(
            layer=f"layer{layer}",
            component="key",
            group=0,
            dtype="uint8",
            element_bytes=1,
            block_tokens=BLOCK_TOKENS,
            block_count=case.pool_blocks,
            head_first=0,
            head_count=1,
            head_total=1,
            base=base,
            block_stride_bytes=PAGE_BYTES,
            head_stride_bytes=row,
            token_stride_bytes=row,
            inner_bytes=row,
        )


class Engines:
    """Both ends of a transfer."""

    def __init__(self, case: Case, transport: str) -> None:
        self._case = case
        self._prefill, self._decode = (Engine(name, case, transport) for name in ("prefill", "decode"))

    def submit(self, turn: int, parts: Parts) -> None:
        """All calls that engine threads make for one transfer, with the block ids as an engine has them."""
        name = f"transfer-{turn}-{time.monotonic_ns()}"
        case, port = self._case, self._prefill.directory.port
        from_blocks, to_blocks = case.tables(turn)
        begin_anywhere()
        with timed(parts, "engine"):
            tables = (np.array(to_blocks, dtype=np.uint32),)
            self._decode.agent.submit([Receive(name, name, "127.0.0.1", port, 0, case.tokens, tables)])
        begin_anywhere()
        with timed(parts, "engine"):
            tables = (np.array(from_blocks, dtype=np.uint32),)
            self._prefill.agent.submit([Send(name, name, case.tokens, tables)])
        for engine in (self._decode, self._prefill):
            if not engine.agent.wait(EVENT_LIMIT_S):
                raise TimeoutError(f"a transfer has not ended within {EVENT_LIMIT_S:.0f} s")
            begin_anywhere()
            with timed(parts, "engine"):
                events = engine.agent.take_events()
            if [event[2] for event in events] != [None]:
                raise RuntimeError(f"a transfer has failed: {events}")
