"""A model of vLLM's engine core around the two halves of the connector, for tests.

It calls the halves in the orders that vLLM 0.32 does (v1/core/sched/scheduler.py, v1/engine/core.py), with one or two
batches in flight, and asserts what vLLM asserts: a report that would end the engine fails the test. Tokens and
attention are not modelled, only who holds blocks and which hook comes when.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvpush.types import Abandon, Admit, Await, AwaitEnded, Cancel, Command, Decline, Receive, Scheduled, Send, Withdraw
from kvpush.vllm.metadata import Step, StepEnd
from kvpush.vllm.options import Reserve
from kvpush.vllm.scheduler import Engine, Pool, Progress, SchedulerHalf
from kvpush.vllm.worker import Results, WorkerHalf

BLOCK = 16


class FakeAgent:
    """Keeps what it is told; a test says what ends and how. An abandoned request ends at once unless `slow`.

    Each Await must be followed by a Receive or Decline, and each Admit by a Send or Withdraw.
    """

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.live: dict[str, str] = {}
        self.awaited: dict[Await, bool] = {}  # whether its event was there
        self.admitted: set[str] = set()
        self.events: list[tuple[Any, ...]] = []
        self.waits: list[float] = []
        self.full = False
        self.slow = False
        self.cancelled: set[str] = set()

    def submit(self, commands: list[Command]) -> bool:
        if self.full:
            return False
        for command in commands:
            self.commands.append(command)
            if isinstance(command, Receive | Send):
                assert command.request not in self.live, "an agent hears of a request once"
                self.live[command.request] = "receive" if isinstance(command, Receive) else "send"
            self._follow(command)
            if isinstance(command, Abandon | Cancel) and command.request in self.live:
                if not self.slow:
                    self.end(command.request, "aborted")
                elif isinstance(command, Cancel):
                    self.cancelled.add(command.request)
        return True

    def take_events(self) -> list[tuple[Any, ...]]:
        events, self.events = self.events, []
        return events

    def wait(self, limit_s: float) -> bool:
        """Time passes, so that writes of what was cancelled end."""
        self.waits.append(limit_s)
        while self.cancelled:
            self.end(self.cancelled.pop(), "aborted")
        return bool(self.events)

    def end(self, request: str, error: str | None = None) -> None:
        moved = (0, 0.0) if error else (4096, 0.25)
        self.cancelled.discard(request)
        self.events.append((self.live.pop(request), request, error, *moved))

    def end_await(self, awaited: Await) -> None:
        """Its prefill has begun."""
        if not self.awaited[awaited]:
            self.awaited[awaited] = True
            self.events.append(AwaitEnded("await", *awaited))

    def _follow(self, command: Command) -> None:
        match command:
            case Await():
                assert command not in self.awaited, "a transfer is awaited once"
                self.awaited[command] = False
            case Receive() | Decline():
                awaited = Await(command.transfer_id, command.host, command.port)
                if awaited in self.awaited:
                    self.end_await(awaited)
                    del self.awaited[awaited]
            case Admit():
                assert command.transfer_id not in self.admitted, "a prefill begins once"
                self.admitted.add(command.transfer_id)
            case Send() | Withdraw():
                self.admitted.discard(command.transfer_id)

    def told(self, kind: type) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]


@dataclass
class Request:
    id: str
    prompt: int
    params: Any
    cached: int = 0  # tokens of the local prefix cache
    output: int = 1  # tokens to generate
    status: str = "waiting"  # waiting, remote, running, finished
    computed: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    blocks_told: int = 0  # to the scheduler half, as vLLM's step output does
    local: int = 0  # prompt tokens it computed itself
    failed: bool = False
    response: dict[str, Any] | None = None
    outcome: str = ""


class FakeEngine:
    """One vLLM engine; `depth` batches are in flight at most (1: synchronous scheduling)."""

    def __init__(
        self,
        *,
        depth: int = 1,
        recompute: bool = False,
        blocks: int = 1000,
        unit: int = 1,
        reserve: Reserve = "auto",
        tokens_max: int = 8 * BLOCK,
    ) -> None:
        ids = iter(range(10**6))
        engine = Engine(
            "10.0.0.1",
            4711,
            produces=True,
            consumes=True,
            unit_tokens=unit,
            sends_early=depth == 2,
            reserve=reserve,
        )
        self.told: list[Scheduled] = []
        self.clock = 100.0  # a second later each time the scheduler half reads it
        self.half = SchedulerHalf(
            engine, make_id=lambda: f"made-{next(ids)}", tell=self.told.append, clock=self._read_clock
        )
        self.agent = FakeAgent()
        self.worker = WorkerHalf(self.agent, idle_wait_s=0.001)
        self.requests: dict[str, Request] = {}
        self.ended: dict[str, Request] = {}
        self.free = list(range(1, blocks + 1))
        self.block_count = blocks
        self.half.bind(Pool(blocks, BLOCK, groups=1, tokens_max=tokens_max, free=lambda: len(self.free)))
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.depth, self.recompute = depth, recompute
        self.in_flight: deque[tuple[dict[str, int], Results, StepEnd | None]] = deque()
        self.chunk = 10**9
        self.progress: list[Progress] = []
        self.preempted: list[str] = []

    # What clients do.

    def add(self, id: str, prompt: int, params: Any = None, **more: Any) -> Request:
        request = self.requests[id] = Request(id, prompt, params, **more)
        self.half.arrived(id, prompt, params, request.output)
        return request

    def abort(self, id: str) -> None:
        request = self.requests.get(id)
        if request is None or request.status == "finished":
            return
        keep = request.status == "remote" and id not in self.received
        self.received.discard(id)
        self.failed.discard(id)
        self._finish(request, "aborted", keep)

    def preempt(self, id: str) -> None:
        request = self.requests[id]
        assert request.status == "running"
        self._give_back(request)
        request.status, request.computed, request.cached = "waiting", 0, 0
        self.preempted.append(id)
        self.progress = [one for one in self.progress if one.request != id]

    # The engine core's loop.

    def has_work(self) -> bool:
        return bool(self.requests or self.in_flight or self.half.has_something_to_say())

    def step(self) -> None:
        """One turn of the busy loop: a new batch if anybody needs one, results of the oldest if none may follow."""
        has_requests = bool(self.requests or self.half.has_something_to_say())
        if has_requests:
            scheduled = self.schedule()
            results = self.execute(scheduled)
            self.in_flight.append((scheduled, results, pickle.loads(pickle.dumps(self.worker.take_step_end()))))
        if self.in_flight and (len(self.in_flight) >= self.depth or not has_requests):
            self.update(*self.in_flight.popleft())

    def run(self, turns: int = 50) -> None:
        while self.has_work() and turns:
            self.step()
            turns -= 1

    def schedule(self) -> dict[str, int]:
        scheduled: dict[str, int] = {}
        for request in self.requests.values():
            if request.status == "running" and request.id not in scheduled:
                self._schedule_running(request, scheduled)
        holding = [r for r in self.requests.values() if r.blocks and r.status in ("remote", "waiting")]
        for request in [*holding, *(r for r in list(self.requests.values()) if r not in holding)]:
            if request.status == "remote" and request.id in self.received:
                self._promote(request)
            if request.status == "waiting" and request.id not in scheduled and not self._admit(request, scheduled):
                break
        return scheduled

    def execute(self, scheduled: dict[str, int]) -> Results:
        """The worker's part, with metadata as another process would get it."""
        taken = self.half.take_step(self.progress, self.preempted, idle=not scheduled)
        self.progress, self.preempted = [], []
        step: Step = pickle.loads(pickle.dumps(taken))
        if step.preempted:
            self.worker.fence(step)
        self._assert_reads_what_is_held()
        self.worker.begin(step)
        return self.worker.poll()

    def update(self, scheduled: dict[str, int], results: Results, step_end: StepEnd | None = None) -> None:
        """update_from_output: failures, tokens, error finishes, then what the workers report."""
        errors = []
        for id in results.failed:
            request = self.requests.get(id)
            if request is not None and request.status == "remote":
                if self.recompute:
                    request.computed = 0
                    self.failed.add(id)
                else:
                    errors.append(request)
        for id in scheduled:
            request = self.requests.get(id)
            if request is None or request.status != "running":
                continue
            if request.computed >= request.prompt:
                request.generated += 1
                if request.generated >= request.output:
                    self._finish(request, "stopped", keep=False)
        for request in errors:
            self._finish(request, "error", keep=request.id not in self.received)
        self.half.reported(results.sent, results.received)
        if step_end is not None:
            self.half.awaits_ended(step_end)
        for id in results.received:
            assert id in self.requests, f"{id} is reported as received but unknown: this ends vLLM"
            request = self.requests[id]
            if request.status == "remote":
                self.received.add(id)
            else:
                assert request.status == "finished", f"{id} is reported as received while {request.status}"
                self._free(request)
        for id in results.sent:
            assert id in self.requests, f"{id} is reported as sent but unknown: this ends vLLM"
            assert self.requests[id].status == "finished", f"{id} is reported as sent before its end"
            self._free(self.requests[id])

    # Inside.

    def _read_clock(self) -> float:
        self.clock += 1
        return self.clock

    def _schedule_running(self, request: Request, scheduled: dict[str, int]) -> None:
        tokens = min(request.prompt + request.generated - request.computed, self.chunk)
        if request.computed >= request.prompt:
            tokens = 1
        while not self._allocate(request, request.computed + tokens):
            last = [other for other in self.requests.values() if other.status == "running"][-1]
            self.preempt(last.id)
            scheduled.pop(last.id, None)
            if last is request:
                return
        self._compute(request, tokens, scheduled)

    def _admit(self, request: Request, scheduled: dict[str, int]) -> bool:
        """False ends the scheduling pass, as vLLM's does when blocks are short."""
        external, is_async = 0, False
        if request.computed == 0:
            cached = min(request.cached, request.prompt - 1) // BLOCK * BLOCK
            answer, is_async = self.half.tokens_to_receive(request.id, cached)
            if answer is None:
                return True
            assert not (is_async and answer == 0) and cached + answer <= request.prompt
            external, request.computed = answer, cached + answer
        tokens = 0 if is_async else min(request.prompt + request.generated - request.computed, self.chunk)
        reserved = self._reserved(request) if is_async else 0
        if not self._allocate(request, request.computed + tokens, reserved):
            if not request.blocks:
                request.computed = 0
            return False
        self.half.allocated(request.id, (list(request.blocks),), external)
        if is_async:
            request.status = "remote"
            return True
        request.status = "running"
        self._compute(request, tokens, scheduled)
        return True

    def _compute(self, request: Request, tokens: int, scheduled: dict[str, int]) -> None:
        request.local += max(0, min(request.computed + tokens, request.prompt) - request.computed)
        request.computed += tokens
        scheduled[request.id] = tokens
        new = (request.blocks[request.blocks_told :],)
        self.progress.append(Progress(request.id, request.computed, new, request.blocks_told == 0))
        request.blocks_told = len(request.blocks)

    def _assert_reads_what_is_held(self) -> None:
        """Before a step writes KV."""
        sends = {send.request: send for send in self.agent.told(Send)}
        for id, kind in self.agent.live.items():
            if kind == "send" and not self.worker.counts["unfenced"]:
                table = sends[id].tables[0].tolist()
                assert table == self.requests[id].blocks[: len(table)], f"{id} is read after it lost its blocks"

    def _promote(self, request: Request) -> None:
        if request.id in self.failed:
            self.failed.remove(request.id)
            request.failed = True
            self._give_back(request)
        self.received.remove(request.id)
        request.status = "waiting"

    def _reserved(self, new: Request) -> int:
        """Blocks that prefills in progress still need, and `new` after its load: an asynchronous load leaves them."""
        begun = [request for request in self.requests.values() if request.blocks and request.computed < request.prompt]
        needed = sum(max(0, -(-request.prompt // BLOCK) - len(request.blocks)) for request in begun)
        return needed + -(-new.prompt // BLOCK) - -(-new.computed // BLOCK)

    def _allocate(self, request: Request, tokens: int, reserved: int = 0) -> bool:
        missing = max(0, -(-tokens // BLOCK) - len(request.blocks))
        if missing + reserved > len(self.free):
            return False
        request.blocks += [self.free.pop() for _ in range(missing)]
        return True

    def _finish(self, request: Request, outcome: str, keep: bool) -> None:
        request.status, request.outcome = "finished", outcome
        complete = outcome == "stopped" and request.computed >= request.prompt
        delay, request.response = self.half.finished(request.id, complete, (list(request.blocks),))
        if not (keep or delay):
            self._free(request)

    def _free(self, request: Request) -> None:
        self._give_back(request)
        self.ended[request.id] = self.requests.pop(request.id)

    def _give_back(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks, request.blocks_told = [], 0

    def assert_nothing_left(self) -> None:
        assert not self.requests and not self.agent.live and not self.has_work()
        assert not self.agent.awaited and not self.agent.admitted
        assert len(self.free) == self.block_count, "blocks were lost"
        assert self.half.requests() == 0 and not self.half._transfers and self.worker.outstanding() == 0
        assert not self.half._awaited and not self.half._reserved_early and not self.worker._awaited


def decode_params(transfer_id: str = "t", **more: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "transfer_id": transfer_id,
        "remote_host": "10.0.0.2",
        "remote_port": 4712,
        **more,
    }


def prefill_params(transfer_id: str | None = "t", **more: Any) -> dict[str, Any]:
    return {"do_remote_decode": True, "transfer_id": transfer_id, **more}
