"""The worker half: hands commands to the agent, and tells vLLM what ended.

Pure but for its agent, which tests replace. A wrong report ends the engine, so each id is followed here: it is reported
once, and only if a step announced it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import NamedTuple, Protocol

from kvpush.types import Abandon, Await, AwaitEnded, Cancel, Command, Event, Receive, Send
from kvpush.vllm.metadata import Step, StepEnd

log = logging.getLogger(__name__)

# Well below what the agent's mailbox holds (kMailboxCommandsMax), so that a storm of aborts passes in pieces.
COMMANDS_PER_CALL = 4096

# Within a second (drain_limit) the agent ends what it was told to cancel, by closing the endpoint if need be.
FENCE_LIMIT_S = 1.5


class AgentLike(Protocol):
    """The part of `kvpush.Agent` that is used here."""

    def submit(self, commands: list[Command]) -> bool: ...
    def take_events(self) -> list[tuple[str, str, str | None, int, float] | tuple[str, str, str, int]]: ...
    def wait(self, limit_s: float) -> bool: ...


class Tally(NamedTuple):
    """What ended since the last tally: (bytes, seconds) of each delivered transfer, the error's name of each failed.

    The seconds are those of `types.Event`. A refused request counts as one that failed with "bad_params".
    """

    received: list[tuple[int, float]]
    sent: list[tuple[int, float]]
    receive_errors: list[str]
    send_errors: list[str]


class Results(NamedTuple):
    """Request ids to report; those that failed are among the received too, as vLLM asks for."""

    sent: set[str]
    received: set[str]
    failed: set[str]


class WorkerHalf:
    """Follows each announced request until it is reported."""

    def __init__(self, agent: AgentLike, idle_wait_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self._agent = agent
        self._idle_wait_s = idle_wait_s
        self._announced: dict[str, str] = {}  # request -> kind of the event that it waits for
        self._refused: set[str] = set()
        self._aborted: set[str] = set()  # to be reported as sent
        self._unfinished: set[str] = set()  # of those announced: sent before their end, which comes with a later step
        self._early_ends: dict[str, Event] = {}  # of sends that were over before their requests
        self._ended: list[Event] = []  # to be looked at by the next poll
        self._awaited: Counter[Await] = Counter()
        self._ended_awaits: Counter[Await] = Counter()  # since the last StepEnd
        self._unsent: list[Command] = []  # a full agent takes them later
        self._idle = False
        self._tally = Tally([], [], [], [])

    def fence(self, step: Step) -> None:
        """Before the step that may overwrite the blocks of preempted requests: returns when no write reads those.

        Waits for FENCE_LIMIT_S at most; a request whose writes did not end until then is counted as "unfenced".
        """
        unsent = {one.request for one in self._unsent if isinstance(one, Send)}
        reading = set(step.preempted) - unsent - self._early_ends.keys()
        self._unsent = [one for one in self._unsent if not (isinstance(one, Send) and one.request in step.preempted)]
        self._unsent += map(Cancel, reading)
        self._submit()
        until = time.monotonic() + FENCE_LIMIT_S
        while reading and self._agent.wait(max(0.0, until - time.monotonic())):
            events = self._take_events()
            reading.difference_update(event.request for event in events)
            self._ended += [event for event in events if event.request not in step.preempted]
            self._submit()
        for request in reading:
            self._count("unfenced", request, "was preempted, and its KV may still be read for its transfer")
        for request in step.preempted:
            del self._announced[request]
            self._unfinished.discard(request)
            self._early_ends.pop(request, None)

    def begin(self, step: Step) -> None:
        """Before the step's forward pass: what it announces goes to the agent at once.

        A Send may go now too: an earlier step computed the prompt, and its forward pass is over. For an early one that
        is the step just before. On a GPU its kernels may still run then: the Send would have to wait for an event
        recorded behind them.
        """
        self._idle = step.idle
        self._refused.update(step.refused)
        self._aborted.update(set(step.finished) - self._announced.keys())  # fenced
        self._tally.receive_errors.extend("bad_params" for _ in step.refused)
        self._unsent += [command for command in (*step.commands, *step.early) if self._announce(command)]
        self._unfinished.update(send.request for send in step.early)
        self._unfinished.difference_update(step.finished)
        self._ended += [self._early_ends.pop(request) for request in step.finished if request in self._early_ends]
        self._submit()

    def poll(self) -> Results:
        """After the step: what has ended since the last call. An idle step waits a little for something to end."""
        self._submit()
        waits = self._awaited or len(self._announced) > len(self._unfinished)
        if self._idle and waits and not (self._refused or self._ended or self._ended_awaits):
            self._agent.wait(self._idle_wait_s)
        self._idle = False
        results = Results(self._aborted, self._refused, set(self._refused))
        self._aborted, self._refused = set(), set()
        ended, self._ended = self._ended, []
        for event in (*ended, *self._take_events()):
            self._end(results, event)
        return results

    def take_step_end(self) -> StepEnd | None:
        """After poll(): what the scheduler half must hear, if anything."""
        if not self._ended_awaits:
            return None
        ended, self._ended_awaits = self._ended_awaits, Counter()
        return StepEnd(ended)

    def take_tally(self) -> Tally:
        """Since the last call; bounded by what one step can end, as vLLM asks after each."""
        tally, self._tally = self._tally, Tally([], [], [], [])
        return tally

    def outstanding(self) -> int:
        """Requests announced and not yet reported."""
        return len(self._announced) + len(self._aborted) + len(self._refused)

    def _announce(self, command: Command) -> bool:
        """Notes what will end; False for a command that the agent need not hear."""
        match command:
            case Receive() | Send():
                if command.request in self._announced:
                    self._count("announced_twice", command.request, "announced again before its end; ignored")
                    return False
                self._announced[command.request] = "receive" if isinstance(command, Receive) else "send"
            case Abandon() | Cancel():
                return command.request in self._announced
            case Await():
                self._awaited[command] += 1
        return True

    def _submit(self) -> None:
        while self._unsent and self._agent.submit(self._unsent[:COMMANDS_PER_CALL]):
            del self._unsent[:COMMANDS_PER_CALL]

    def _take_events(self) -> list[Event]:
        """Ends of requests; those of Awaits, which name transfers, are noted."""
        ended = []
        for event in self._agent.take_events():
            if event[0] == "await":
                self._end_await(AwaitEnded._make(event))
            else:
                ended.append(Event._make(event))
        return ended

    def _end_await(self, ended: AwaitEnded) -> None:
        one = Await(ended.transfer_id, ended.host, ended.port)
        if one not in self._awaited:
            self.counts["unexpected_events"] += 1
            log.warning("kvpush: transfer %s: an await ended that was not announced; ignored", ended.transfer_id)
            return
        self._awaited[one] -= 1
        if not self._awaited[one]:
            del self._awaited[one]
        self._ended_awaits[one] += 1

    def _end(self, results: Results, event: Event) -> None:
        kind, request, error = event.kind, event.request, event.error
        if self._announced.get(request) != kind:
            self._count("unexpected_events", request, f"a {kind} ended that was not announced; ignored")
            return
        if request in self._unfinished:
            self._early_ends[request] = event
            return
        del self._announced[request]
        if error is not None:
            self._count(f"{kind}_errors", request, f"{kind} ended with {error}")
        self._add_to_tally(event)
        if kind == "send":
            results.sent.add(request)
            return
        results.received.add(request)
        if error is not None:
            results.failed.add(request)

    def _add_to_tally(self, event: Event) -> None:
        is_send = event.kind == "send"
        if event.error is not None:
            (self._tally.send_errors if is_send else self._tally.receive_errors).append(event.error)
        else:
            (self._tally.sent if is_send else self._tally.received).append((event.bytes, event.seconds))

    def _count(self, what: str, request: str, text: str) -> None:
        self.counts[what] += 1
        log.warning("kvpush: request %s: %s", request, text)
