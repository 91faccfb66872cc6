"""What is submitted: the same planes and block tables for every way."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate

# Small, so that moving the bytes takes little of the run: neither planning nor submitting depends on it.
PAGE_BYTES = 2048
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Case:
    """A prompt of `blocks` blocks in `planes` planes (a layer's keys or its values), each a row of pages of its own."""

    planes: int
    blocks: int
    # Whether the planes begin even steps apart, as layers of one size that were allocated one after the other. If not,
    # kvpush cannot plan all of them as one.
    even: bool = False

    @property
    def descriptors(self) -> int:
        return self.planes * self.blocks

    @property
    def pool_blocks(self) -> int:
        """Of each plane: twice the prompt, so that none of its blocks adjoin."""
        return 2 * self.blocks

    @property
    def tokens(self) -> int:
        return self.blocks * BLOCK_TOKENS

    def offsets(self, page_bytes: int = PAGE_BYTES) -> list[int]:
        """Where the planes begin."""
        return [pages * page_bytes for pages in accumulate(self._pages(plane) for plane in range(self.planes))]

    def memory_bytes(self, page_bytes: int = PAGE_BYTES) -> int:
        return self.offsets(page_bytes)[-1] + self.pool_blocks * page_bytes

    def tables(self, turn: int) -> tuple[list[int], list[int]]:
        """The blocks of the producer and of the consumer, in an order of their own, other ones each turn."""
        chance = random.Random(f"{self.planes}/{self.blocks}/{turn}")
        every_second = range(0, self.pool_blocks, 2)
        return chance.sample(every_second, self.blocks), chance.sample(every_second, self.blocks)

    def _pages(self, plane: int) -> int:
        """From the begin of the plane before this one to its own."""
        return 0 if plane == 0 else self.pool_blocks + (0 if self.even else plane * plane % 13)


CASES = (Case(118, 1), Case(51, 35), Case(118, 160), Case(118, 160, even=True), Case(100, 1000))
