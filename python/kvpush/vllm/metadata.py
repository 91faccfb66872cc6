"""What the scheduler half and the worker halves tell each other with each step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvpush.types import Await, Command, Send


@dataclass(frozen=True)
class Step:
    """Everything of one engine step; the same object may be read by several workers, so nobody changes it.

    `refused` are requests that wait for KV which will not come: the workers report them as failed. `early` are sends of
    requests that have not finished yet: they are not reported before a step names them in `finished`. `preempted` are
    those of earlier steps whose blocks this step may overwrite. `idle` says that the step computes nothing.
    """

    commands: list[Command] = field(default_factory=list)
    early: list[Send] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    idle: bool = False


@dataclass(frozen=True)
class StepEnd:
    """What a worker half tells the scheduler half after a step, or all together do: how many of these Awaits ended."""

    awaits: Counter[Await]

    def aggregate(self, other: StepEnd) -> StepEnd:
        """Of two workers."""
        return StepEnd(self.awaits + other.awaits)
