"""The scheduler half: what each request means for the agents.

Pure: no vLLM, no agent; its clock is an argument. `connector.py` calls it from vLLM's scheduler hooks, in the order
that vLLM documents; tests call it in that order and in wrong ones. No value that a client controls makes it raise,
since that would end the engine.
"""

from __future__ import annotations

import enum
import logging
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kvpush.types import (
    ABSENT,
    Abandon,
    Admit,
    Await,
    BlockTables,
    Cancel,
    Command,
    Decline,
    Receive,
    Scheduled,
    Send,
    Withdraw,
)
from kvpush.vllm import params as transfer_params
from kvpush.vllm.metadata import Step, StepEnd
from kvpush.vllm.options import Reserve
from kvpush.vllm.params import BadParams, DecodeLeg, PrefillLeg

log = logging.getLogger(__name__)

# Calls whose made-up transfer id is remembered for their other prompts: those arrive right behind the first.
MADE_IDS_MAX = 1024
# Of the pool, this part stays free where destinations are reserved early: for the requests that run to grow into.
SPARE_PARTS = 10
# vLLM pads tables with its null block (outside a sliding window), which holds nobody's KV.
NULL_BLOCK = 0


class State(enum.Enum):
    """Of a decode leg."""

    NEW = enum.auto()  # no blocks yet
    RECEIVING = enum.auto()  # the agents were told to receive, or the request to fail
    LOCAL = enum.auto()  # what it still needs, this engine computes


@dataclass
class Decode:
    """A request whose prompt is computed elsewhere; `leg` is None if its params cannot be used."""

    leg: DecodeLeg | None
    prompt_tokens: int
    first_sample: str | None
    arrived: float
    state: State = State.NEW
    cached_tokens: int = 0
    admitted: float | None = None
    reported: float | None = None


@dataclass
class Prefill:
    """A request whose KV goes elsewhere; `call_id` is what the client must be told.

    `block_ids` are followed only where the KV may be sent before the request has finished. `is_withdrawn`: it was, and
    the request was aborted then.
    """

    transfer_id: str
    prompt_tokens: int
    call_id: str
    arrived: float
    is_followed: bool
    admitted: float | None = None
    computed: float | None = None
    block_ids: list[list[int]] = field(default_factory=list)
    is_withdrawn: bool = False


class Progress(NamedTuple):
    """What a step does for one of its requests.

    After it the KV of tokens [0, end) exists. The block ids of each group follow those the request has, or replace them
    if it `begins` (for the first time, or after a preemption); there may be none.
    """

    request: str
    end: int
    block_ids: Sequence[Sequence[int]]
    begins: bool


@dataclass(frozen=True)
class Engine:
    """What the scheduler half knows of its engine.

    `host` and `port` are the directory's address for others. KV can be copied in units of `unit_tokens` tokens: 1, or
    the block size if the attention backend interleaves the tokens of a block.

    `sends_early`: vLLM schedules a step while the one before it runs, and none but these two are ever in flight. Then a
    request of one output token keeps its blocks until it finishes once the step behind that of its last prompt tokens
    is scheduled without preempting it, and that step may tell the workers to send, before vLLM has seen the token.

    Each command reaches every one of the `workers`.
    """

    host: str
    port: int
    produces: bool
    consumes: bool
    unit_tokens: int = 1
    sends_early: bool = False
    reserve: Reserve = "auto"
    workers: int = 1


@dataclass(frozen=True)
class Pool:
    """The blocks of the engine's KV cache, of which `free` says how many nobody holds now.

    The tokens of a block are those of one KV cache group; a request has `tokens_max` tokens at most.
    """

    blocks: int
    block_tokens: int
    groups: int
    tokens_max: int
    free: Callable[[], int]

    def blocks_for(self, tokens: int) -> int:
        return self.groups * -(-tokens // self.block_tokens)


class SchedulerHalf:
    """Follows each request from its arrival to its end, and collects commands for the next step.

    What it saw of a leg goes to `tell`, once: when the leg's part of the transfer is over, or its request is.
    """

    def __init__(
        self,
        engine: Engine,
        make_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        tell: Callable[[Scheduled], None] = lambda scheduled: None,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._make_id = make_id
        self._tell = tell
        self._clock = clock
        self._made_ids: OrderedDict[str, str] = OrderedDict()
        self._decodes: dict[str, Decode] = {}
        self._prefills: dict[str, Prefill] = {}
        self._pool: Pool | None = None
        self._arrivals: dict[str, DecodeLeg] = {}  # since the last step; of those that have no blocks yet
        self._awaited: Counter[Await] = Counter()  # how many workers have not said that it ended
        self._reserved_early: dict[str, int] = {}  # request -> blocks that may wait for its prefill to begin
        self._computed: list[str] = []  # their prompts are whole when the step that was scheduled last has run
        self._early: dict[str, Prefill] = {}  # of those in _prefills: what the agents were told to send
        self._sending: dict[str, Prefill] = {}  # from finish to report
        self._transfers: dict[DecodeLeg | str, str] = {}  # what is in use -> its request
        self._commands: list[Command] = []
        self._refused: list[str] = []
        self._finished: list[str] = []

    def bind(self, pool: Pool) -> None:
        """bind_gpu_block_pool: before the first request. Without it no leg reserves early."""
        self._pool = pool

    # The life of a request, in vLLM's order.

    def arrived(self, request: str, prompt_tokens: int, params: Any, output_tokens_max: int | None = None) -> None:
        """on_new_request."""
        try:
            leg = transfer_params.parse(params)
            if leg is not None and transfer_params.is_later_turn(request):
                self._count("later_turns", request, "the call's transfer was for its first turn", logging.DEBUG)
            elif isinstance(leg, DecodeLeg):
                self._decode_arrived(request, prompt_tokens, leg)
            elif isinstance(leg, PrefillLeg):
                self._prefill_arrived(request, prompt_tokens, leg, output_tokens_max)
        except BadParams as bad:
            self._count("bad_params", request, str(bad))
            if transfer_params.wants_remote_prefill(params):
                self._decodes[request] = Decode(None, prompt_tokens, None, self._clock())

    def tokens_to_receive(self, request: str, cached_tokens: int) -> tuple[int | None, bool]:
        """get_num_new_matched_tokens: how many tokens beyond the cached ones will come, and whether asynchronously.

        All but the last prompt token, which decode must compute anyway to have something to sample from. Asking for it
        too would make vLLM put a block into its prefix cache whose last slot is not there yet. None: ask again later;
        vLLM then goes on to the requests behind it.
        """
        decode = self._decodes.get(request)
        if decode is None or decode.state is not State.NEW:
            return 0, False
        if decode.first_sample is not None:
            first = self._decodes.get(decode.first_sample)
            return (0, False) if first is None or first.state is State.LOCAL else (None, False)
        decode.cached_tokens = cached_tokens
        wanted = decode.prompt_tokens - 1 - cached_tokens
        if wanted <= 0:
            return 0, False
        return (wanted, True) if self._may_reserve(request, decode) else (None, False)

    def allocated(self, request: str, block_ids: Sequence[Sequence[int]], tokens: int) -> None:
        """update_state_after_alloc: all blocks of the request, by group, and how many tokens shall come.

        After a load it is called again, with 0 tokens, by the step that the request is then part of.
        """
        prefill = self._prefills.get(request)
        if prefill is not None and prefill.admitted is None:
            prefill.admitted = self._clock()
            self._commands.append(Admit(prefill.transfer_id))
        is_early = self._arrivals.pop(request, None) is not None
        decode = self._decodes.get(request)
        if decode is None:
            return
        if decode.state is State.NEW and tokens > 0:
            decode.state = State.RECEIVING
            if is_early and self._pool is not None:
                self._reserved_early[request] = self._pool.blocks_for(decode.prompt_tokens)
            decode.admitted = self._clock()
            if decode.leg is None:
                self._refused.append(request)
            else:
                self._commands.append(self._receive(request, decode, decode.leg, block_ids, tokens))
            return
        if decode.state is State.NEW:
            self._decline(request, decode)
        elif decode.state is State.RECEIVING:
            self._tell_decode(request, decode, first_step=self._clock())
        decode.state = State.LOCAL

    def finished(
        self, request: str, complete: bool, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """request_finished: whether its blocks must be kept until it is reported as sent, and params for the client.

        `complete` says that the request ended as asked, with the KV of its whole prompt in `block_ids`.
        """
        self._decode_finished(request)
        prefill = self._prefills.pop(request, None)
        if prefill is None:
            return False, self._answer_of_later_sample(request)
        if complete and prefill.computed is None:
            prefill.computed = self._clock()
        self._tell_prefill(request, prefill)
        is_early = self._early.pop(request, None) is not None
        if not complete and not is_early:
            self._transfers.pop(prefill.transfer_id)
            self._commands.append(Withdraw(prefill.transfer_id))
            return False, None
        self._sending[request] = prefill
        if is_early:
            self._finished.append(request)
        else:
            self._commands.append(self._send(request, prefill, block_ids))
        if not complete:
            prefill.is_withdrawn = True
            # Withdraw is for a send that a fence kept from the agent, which ignores it otherwise.
            self._commands += [Cancel(request), Withdraw(prefill.transfer_id)]
            return True, None
        return True, self._answer(prefill)

    def reported(self, sent: Iterable[str], received: Iterable[str]) -> None:
        """update_connector_output: all workers have reported these requests."""
        for request in received:
            self._reserved_early.pop(request, None)
            decode = self._decodes.get(request)
            if decode is not None:
                decode.reported = self._clock()
        for request in sent:
            prefill = self._sending.pop(request, None)
            if prefill is not None:
                self._transfers.pop(prefill.transfer_id)

    def awaits_ended(self, step_end: StepEnd) -> None:
        """update_connector_output: each worker says it once of each Await that it was told."""
        self._awaited -= step_end.awaits

    # Steps.

    def follows_prefills(self) -> bool:
        """Whether take_step() wants to know what the step does."""
        return self._engine.sends_early and bool(self._prefills)

    def take_step(
        self, progress: Iterable[Progress] = (), preempted: Iterable[str] = (), *, idle: bool = False
    ) -> Step:
        """build_connector_meta: everything since the last call.

        A decode leg that arrived since then and has no blocks yet waits in vLLM's queue, for longer than the step.
        """
        for awaited in map(_await, self._arrivals.values()):
            self._commands.append(awaited)
            self._awaited[awaited] += self._engine.workers
        self._arrivals.clear()
        fenced = [request for request in preempted if self._preempted(request)]
        early = [self._send_early(request) for request in self._computed if request in self._prefills]
        self._computed = [one.request for one in progress if self._completes_prompt(one)]
        step = Step(self._commands, early, self._finished, fenced, self._refused, idle)
        self._commands, self._finished, self._refused = [], [], []
        return step

    def has_something_to_say(self) -> bool:
        """has_pending_push_work: a step is needed although no request may be left to run."""
        return bool(self._commands or self._finished or self._refused)

    def requests(self) -> int:
        """How many requests it follows; 0 when all have ended."""
        return len(self._decodes) + len(self._prefills) + len(self._sending)

    # Decode legs.

    def _decode_arrived(self, request: str, prompt_tokens: int, leg: DecodeLeg) -> None:
        if not self._engine.consumes:
            raise BadParams("do_remote_prefill, but this engine is a kv_producer")
        first_sample = transfer_params.first_sample_of(request)
        if first_sample is not None:
            self._count("later_samples", request, "its prompt's KV comes with the first sample", logging.DEBUG)
            self._decodes[request] = Decode(leg, prompt_tokens, first_sample, self._clock())
            return
        leg = DecodeLeg(transfer_params.transfer_of(leg.transfer_id, request), leg.host, leg.port)
        if leg in self._transfers:
            raise BadParams(f"request {self._transfers[leg]} of this engine receives that transfer")
        self._transfers[leg] = request
        self._arrivals[request] = leg
        self._decodes[request] = Decode(leg, prompt_tokens, None, self._clock())

    def _may_reserve(self, request: str, decode: Decode) -> bool:
        """Whether it may take blocks now.

        Taken before its prefill has any, they are idle while the prompt queues for it; and if they are too many, two
        engines can wait for each other: prefill for decode to take what it has computed, decode for blocks that wait
        for prefill. A leg that was awaited is never early, or one that vLLM finds no blocks for would stop the
        scheduling pass, step after step, before those behind it that prefill waits for.
        """
        if decode.leg is None or self._engine.reserve == "early":
            return True
        if request in self._arrivals:
            return self._engine.reserve == "auto" and self._has_room(decode.prompt_tokens)
        return _await(decode.leg) not in self._awaited

    def _has_room(self, prompt_tokens: int) -> bool:
        """Whether it may take blocks early.

        All that do leave enough for any one request, so that those whose prefill has begun go on, one by one at least.
        """
        pool = self._pool
        if pool is None:
            return False
        needed = pool.blocks_for(prompt_tokens)
        left = pool.blocks - sum(self._reserved_early.values()) - needed
        has_spare = pool.free() - needed >= pool.blocks // SPARE_PARTS
        return has_spare and left >= pool.blocks_for(pool.tokens_max)

    def _receive(
        self, request: str, decode: Decode, leg: DecodeLeg, block_ids: Sequence[Sequence[int]], tokens: int
    ) -> Receive:
        first = decode.cached_tokens  # whole blocks: vLLM rounds its own hits down
        end = self._whole_units(first + tokens)
        return Receive(request, leg.transfer_id, leg.host, leg.port, first, end, tables(block_ids))

    def _decline(self, request: str, decode: Decode) -> None:
        if decode.leg is None or decode.first_sample is not None:
            return
        self._commands.append(Decline(decode.leg.transfer_id, decode.leg.host, decode.leg.port))

    def _decode_finished(self, request: str) -> None:
        self._arrivals.pop(request, None)
        self._reserved_early.pop(request, None)
        decode = self._decodes.pop(request, None)
        if decode is None:
            return
        if decode.leg is not None and decode.first_sample is None:
            self._transfers.pop(decode.leg)
        if decode.state is State.NEW:
            self._decline(request, decode)
        elif decode.state is State.RECEIVING and decode.leg is not None:
            # vLLM keeps the blocks until the workers report the request, which they do when nothing can land any more.
            self._commands.append(Abandon(request))
        if decode.state is not State.LOCAL:
            self._tell_decode(request, decode)

    # Prefill legs.

    def _prefill_arrived(
        self, request: str, prompt_tokens: int, leg: PrefillLeg, output_tokens_max: int | None
    ) -> None:
        if not self._engine.produces:
            raise BadParams("do_remote_decode, but this engine is a kv_consumer")
        if transfer_params.first_sample_of(request) is not None:
            self._count("later_samples", request, "its prompt's KV goes with the first sample", logging.DEBUG)
            return
        call_id = leg.transfer_id if leg.transfer_id is not None else self._made_id(request)
        transfer_id = transfer_params.transfer_of(call_id, request)
        if transfer_id in self._transfers:
            raise BadParams(f"request {self._transfers[transfer_id]} of this engine has that transfer_id")
        self._transfers[transfer_id] = request
        is_followed = self._engine.sends_early and output_tokens_max == 1
        self._prefills[request] = Prefill(transfer_id, prompt_tokens, call_id, self._clock(), is_followed)

    def _send(self, request: str, prefill: Prefill, block_ids: Sequence[Sequence[int]]) -> Send:
        return Send(request, prefill.transfer_id, self._whole_units(prefill.prompt_tokens), tables(block_ids))

    def _send_early(self, request: str) -> Send:
        prefill = self._early[request] = self._prefills[request]
        prefill.computed = self._clock()
        return self._send(request, prefill, prefill.block_ids)

    def _completes_prompt(self, progress: Progress) -> bool:
        """Notes the blocks of a request that is followed."""
        prefill = self._prefills.get(progress.request)
        if prefill is None or not prefill.is_followed:
            return False
        if progress.begins:
            prefill.block_ids = [[] for _ in progress.block_ids]
        for ids, more in zip(prefill.block_ids, progress.block_ids, strict=False):
            ids.extend(more)
        return progress.end >= prefill.prompt_tokens and progress.request not in self._early

    def _preempted(self, request: str) -> bool:
        """Whether the workers must stop reading its blocks. Unless it was aborted since, it will be sent again."""
        if request in self._computed:
            self._computed.remove(request)
        prefill = self._early.pop(request, None)
        if prefill is not None:
            prefill.computed = None
        return prefill is not None or request in self._finished

    def _made_id(self, request: str) -> str:
        """A transfer id for a call without one; the later prompts of a call share that of the first."""
        call, index = transfer_params.prompt_of(request)
        if index > 0 and call in self._made_ids:
            return self._made_ids[call]
        made = self._made_ids[call] = self._make_id()
        self._made_ids.move_to_end(call)
        if len(self._made_ids) > MADE_IDS_MAX:
            self._made_ids.popitem(last=False)
        return made

    def _answer(self, prefill: Prefill) -> dict[str, Any]:
        """What the client must send to decode; a new object each time, as vLLM adds to it."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": prefill.call_id,
            "remote_host": self._engine.host,
            "remote_port": self._engine.port,
        }

    def _answer_of_later_sample(self, request: str) -> dict[str, Any] | None:
        """That of the first sample while its KV is held.

        vLLM answers a call with the params of the sample that ends last, so one that ends before the first needs none.
        """
        first = self._sending.get(transfer_params.first_sample_of(request) or "")
        return None if first is None or first.is_withdrawn else self._answer(first)

    # Both.

    def _tell_decode(self, request: str, decode: Decode, first_step: float | None = None) -> None:
        if decode.leg is None or decode.first_sample is not None:
            return
        self._tell(
            Scheduled(
                "consumer",
                decode.leg.transfer_id,
                request,
                decode.prompt_tokens,
                decode.arrived,
                decode.leg.host,
                decode.leg.port,
                admitted=decode.admitted,
                reported=decode.reported,
                first_step=first_step,
            )
        )

    def _tell_prefill(self, request: str, prefill: Prefill) -> None:
        self._tell(
            Scheduled(
                "producer",
                prefill.transfer_id,
                request,
                prefill.prompt_tokens,
                prefill.arrived,
                admitted=prefill.admitted,
                computed=prefill.computed,
            )
        )

    def _whole_units(self, tokens: int) -> int:
        return -(-tokens // self._engine.unit_tokens) * self._engine.unit_tokens

    def _count(self, what: str, request: str, text: str, level: int = logging.WARNING) -> None:
        self.counts[what] += 1
        log.log(level, "kvpush: request %s: %s", request, text)


def _await(leg: DecodeLeg) -> Await:
    return Await(leg.transfer_id, leg.host, leg.port)


def tables(block_ids: Sequence[Sequence[int]]) -> BlockTables:
    """vLLM's block ids of each group as the agent's block tables."""
    arrays = tuple(np.array(ids, dtype=np.uint32) for ids in block_ids)
    for array in arrays:
        array[array == NULL_BLOCK] = ABSENT
    return arrays
