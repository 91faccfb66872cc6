"""The native module: real agents in this process, real bytes of torch tensors, and what it refuses."""

from __future__ import annotations

import gc
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kvpush import Agent, DirectoryServer, Error
from kvpush.types import ABSENT, Abandon, Admit, Await, AwaitEnded, Decline, Event, Plane, Receive, Send, Withdraw

LAYERS, BLOCKS, HEADS, SLOTS, ROW = 2, 10, 2, 16, 32
LIMIT_S = 10.0


class Rank:
    """One engine of one rank: a cache, its agent and its directory."""

    def __init__(self, name: str, seed: int, dtype: str = "uint8", transport: str = "cma") -> None:
        shape = (LAYERS, BLOCKS, HEADS, SLOTS, ROW)
        self.cache = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        region = (self.cache.data_ptr(), self.cache.nbytes)
        planes = [self.plane(layer, dtype) for layer in range(LAYERS)]
        self.agent = Agent.open(
            engine_id=name, host="127.0.0.1", control_port=0, transport=transport, planes=planes, regions=[region]
        )
        self.directory = DirectoryServer.open("127.0.0.1", 0)
        self.directory.set_ranks([self.agent.document])
        self.events: dict[str, Event] = {}
        self.awaits_ended: list[AwaitEnded] = []

    def plane(self, layer: int, dtype: str) -> Plane:
        cache = self.cache[layer]
        return Plane(
            layer=f"layer.{layer}",
            component="key",
            group=0,
            dtype=dtype,
            element_bytes=1,
            block_tokens=SLOTS,
            block_count=BLOCKS,
            head_first=0,
            head_count=HEADS,
            head_total=HEADS,
            base=cache.data_ptr(),
            block_stride_bytes=cache.stride(0),
            head_stride_bytes=cache.stride(1),
            token_stride_bytes=cache.stride(2),
            inner_bytes=ROW,
        )

    def event(self, request: str) -> str | None:
        """The error of the request's one event, waited for."""
        self._take_events_until(lambda: request in self.events, request)
        return self.events[request].error

    def await_ended(self) -> AwaitEnded:
        """The end of the one Await, waited for."""
        self._take_events_until(lambda: self.awaits_ended, "an await")
        (ended,) = self.awaits_ended
        return ended

    def _take_events_until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not done() and time.monotonic() < deadline:
            self.agent.wait(0.1)
            for event in self.agent.take_events():
                if event[0] == "await":
                    self.awaits_ended.append(AwaitEnded._make(event))
                    continue
                assert event[1] not in self.events, "one event for each request"
                self.events[event[1]] = Event._make(event)
        assert done(), f"no event for {what} within {LIMIT_S} s"

    def stop(self) -> None:
        self.agent.stop(LIMIT_S)
        self.directory.stop()


@pytest.fixture(params=["cma", "nixl"])
def pair(request):
    try:
        ranks = Rank("prefill", 1, transport=request.param), Rank("decode", 2, transport=request.param)
    except Error as error:
        if error.code != "unavailable":
            raise
        pytest.skip(f"{request.param} cannot be used here: {error}")
    yield ranks
    for rank in ranks:
        rank.stop()


def ids(*blocks: int) -> tuple[np.ndarray]:
    return (np.array(blocks, dtype=np.uint32),)


def receive(prefill: Rank, request: str, transfer: str, first: int, end: int, blocks) -> Receive:
    return Receive(request, transfer, "127.0.0.1", prefill.directory.port, first, end, blocks)


@pytest.mark.parametrize("decode_first", [True, False], ids=["decode registers first", "prefill ends first"])
def test_the_bytes_of_a_prompt_arrive_and_nothing_else_changes(pair, decode_first):
    prefill, decode = pair
    before, expected = prefill.cache.clone(), decode.cache.clone()
    # Tokens 16 to 39 of the prompt: all of its second block and half of the third.
    expected[:, 4] = prefill.cache[:, 2]
    expected[:, 9, :, :8] = prefill.cache[:, 7, :, :8]
    commands = [
        (decode, receive(prefill, "d", "t", 16, 40, ids(3, 4, 9))),
        (prefill, Send("p", "t", 41, ids(5, 2, 7))),
    ]
    for rank, command in commands if decode_first else reversed(commands):
        assert rank.agent.submit([command])

    assert decode.event("d") is None
    assert prefill.event("p") is None
    assert torch.equal(decode.cache, expected)
    assert torch.equal(prefill.cache, before)


def test_an_event_says_what_was_moved_and_how_long_it_took(pair):
    prefill, decode = pair
    prefill.agent.submit([Send("p", "t", 32, ids(1, 6))])
    decode.agent.submit([receive(prefill, "d", "t", 0, 32, ids(2, 5))])

    for rank, request, kind in ((decode, "d", "receive"), (prefill, "p", "send")):
        rank.event(request)
        event = rank.events[request]
        assert (event.kind, event.bytes) == (kind, 2 * LAYERS * HEADS * SLOTS * ROW)
        assert 0 < event.seconds < LIMIT_S


def test_an_event_of_a_failed_receive_has_moved_nothing(pair):
    prefill, decode = pair
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(1))])
    prefill.agent.submit([Withdraw("t")])
    assert decode.event("d") == "aborted"
    assert (decode.events["d"].bytes, decode.events["d"].seconds) == (0, 0.0)


def test_many_transfers_at_once_end_once_each(pair):
    prefill, decode = pair
    for i in range(8):
        decode.agent.submit([receive(prefill, f"d{i}", f"t{i}", 0, 16, ids(i + 1))])
    prefill.agent.submit([Send(f"p{i}", f"t{i}", 16, ids(8 - i)) for i in range(8)])

    for i in range(8):
        assert decode.event(f"d{i}") is None
        assert prefill.event(f"p{i}") is None
        assert torch.equal(decode.cache[:, i + 1], prefill.cache[:, 8 - i])


def test_a_declined_transfer_gives_the_blocks_back(pair):
    prefill, decode = pair
    prefill.agent.submit([Send("p", "t", 16, ids(1))])
    decode.agent.submit([Decline("t", "127.0.0.1", prefill.directory.port)])
    assert prefill.event("p") is None


def test_a_withdrawn_transfer_fails_the_receive(pair):
    prefill, decode = pair
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(1))])
    prefill.agent.submit([Withdraw("t")])
    assert decode.event("d") == "aborted"


def test_who_awaits_a_transfer_hears_once_that_its_prefill_begins_and_can_receive_then(pair):
    prefill, decode = pair
    awaited = Await("t", "127.0.0.1", prefill.directory.port)
    decode.agent.submit([awaited])
    prefill.agent.submit([Admit("t")])
    assert decode.await_ended() == AwaitEnded("await", *awaited)

    prefill.agent.submit([Send("p", "t", 16, ids(1))])
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(2))])
    assert decode.event("d") is None
    assert prefill.event("p") is None
    assert torch.equal(decode.cache[:, 2], prefill.cache[:, 1])


@pytest.mark.parametrize("in_one_call", [True, False])
def test_an_await_that_is_declined_ends_and_gives_the_blocks_back(pair, in_one_call):
    prefill, decode = pair
    prefill.agent.submit([Send("p", "t", 16, ids(1))])
    commands = [kind("t", "127.0.0.1", prefill.directory.port) for kind in (Await, Decline)]
    for some in [commands] if in_one_call else [[one] for one in commands]:
        decode.agent.submit(some)
    assert decode.await_ended().transfer_id == "t"
    assert prefill.event("p") is None


def test_an_abandoned_receive_ends(pair):
    prefill, decode = pair
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(1)), Abandon("d"), Abandon("unknown")])
    assert decode.event("d") == "aborted"


def test_a_receive_that_cannot_be_carried_out_ends_with_an_error(pair):
    prefill, decode = pair
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(BLOCKS))])
    assert decode.event("d") == "bad_message"


def test_an_awaited_receive_that_cannot_be_carried_out_lets_prefill_go(pair):
    prefill, decode = pair
    prefill.agent.submit([Send("p", "t", 16, ids(1))])
    decode.agent.submit([Await("t", "127.0.0.1", prefill.directory.port)])
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(BLOCKS))])
    assert decode.event("d") == "bad_message"
    assert decode.await_ended().transfer_id == "t"
    assert prefill.event("p") is None


def test_engines_that_pack_differently_refuse_each_other(pair):
    prefill, _ = pair
    other = Rank("other", 3, dtype="uint8/cpu.amx/16")
    try:
        other.agent.submit([receive(prefill, "d", "t", 0, 16, ids(1))])
        assert other.event("d") == "layout_mismatch"
    finally:
        other.stop()


def test_absent_blocks_are_left_alone(pair):
    prefill, decode = pair
    expected = decode.cache.clone()
    expected[:, 5] = prefill.cache[:, 6]
    prefill.agent.submit([Send("p", "t", 32, ids(1, 6))])
    decode.agent.submit([receive(prefill, "d", "t", 0, 32, ids(ABSENT, 5))])
    assert decode.event("d") is None
    assert torch.equal(decode.cache, expected)


def test_stop_fails_what_runs_and_can_be_repeated(pair):
    prefill, decode = pair
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(1))])
    decode.agent.stop(0.2)
    decode.agent.stop(0.2)
    assert decode.event("d") is not None
    with pytest.raises(Error) as stopped:
        decode.agent.submit([Abandon("d")])
    assert stopped.value.code == "stopped"


def test_an_agent_that_is_forgotten_stops(pair):
    threads = len(list_threads())
    rank = Rank("forgotten", 4)
    assert len(list_threads()) > threads
    del rank
    gc.collect()
    assert len(list_threads()) == threads


def list_threads() -> list[str]:
    return [entry.name for entry in Path("/proc/self/task").iterdir()]


def test_wait_lets_other_threads_run(pair):
    _, decode = pair
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    thread.start()
    assert not decode.agent.wait(0.2)
    assert ran.is_set()
    thread.join()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("Abandon", TypeError),
        (("Abandon", "d"), TypeError),
        (None, TypeError),
        (Send("p", "t", 16, ([1, 2],)), TypeError),
        (Send("p", "t", 16, (np.array([1, 2], dtype=np.int64),)), TypeError),
        (Send("p", "t", 16, 7), TypeError),
        (Send("p", "t", -1, ids(1)), TypeError),
        (Receive("d", "t", "h", 70000, 0, 1, ids(1)), TypeError),
        (Abandon(5), TypeError),
    ],
)
def test_what_is_no_command_is_refused_before_the_agent_sees_it(pair, command, error):
    _, decode = pair
    with pytest.raises(error):
        decode.agent.submit([Abandon("x"), command])


def test_errors_have_the_name_of_their_code():
    with pytest.raises(Error) as refused:
        Agent.open(engine_id="e", host="127.0.0.1", control_port=0, transport="carrier pigeon", planes=[], regions=[])
    assert refused.value.code == "bad_config"
    with pytest.raises(Error) as refused:
        Agent.open(engine_id="e", host="127.0.0.1", control_port=0, transport="cma", planes=[], regions=[])
    assert refused.value.code == "layout_mismatch"
    directory = DirectoryServer.open("127.0.0.1", 0)
    with pytest.raises(Error) as refused:
        DirectoryServer.open("127.0.0.1", directory.port)
    assert refused.value.code == "bad_config"
    with pytest.raises(Error) as refused:
        directory.set_ranks(["{}"])
    assert refused.value.code == "bad_message"


@pytest.mark.parametrize(("host", "secret_file"), [("0.0.0.0", ""), ("127.0.0.1", "/nowhere")])
def test_an_agent_that_others_reach_needs_a_secret_that_can_be_read(host, secret_file):
    rank = Rank("e", seed=1)
    region = (rank.cache.data_ptr(), rank.cache.nbytes)
    with pytest.raises(Error, match=r"bad_config.*secret_file"):
        Agent.open(
            engine_id="e",
            host=host,
            control_port=0,
            transport="cma",
            planes=[rank.plane(0, "uint8")],
            regions=[region],
            secret_file=secret_file,
        )
    rank.stop()


def test_the_directory_tells_of_transfers(pair):
    prefill, decode = pair
    decode.agent.submit([receive(prefill, "d", "t", 0, 16, ids(1))])
    prefill.agent.submit([Send("p", "t", 16, ids(1))])
    decode.event("d")
    prefill.event("p")

    for rank, role in ((prefill, "producer"), (decode, "consumer")):
        with urllib.request.urlopen(f"http://127.0.0.1:{rank.directory.port}/kvpush/v1/transfers", timeout=5) as answer:
            (part,) = json.load(answer)["ranks"]
        (record,) = part["ended"]
        assert (record["transfer_id"], record["role"], record["outcome"]) == ("t", role, "delivered")
        assert record["bytes"] == LAYERS * HEADS * SLOTS * ROW
