"""Values that nobody should send: what clients write into kv_transfer_params, what Python hands to the native module.

Each case is a seed, so a failure names what repeats it.
"""

from __future__ import annotations

import contextlib
import json
import random
import urllib.request
from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest

from kvpush import Agent, DirectoryServer, Error
from kvpush.types import (
    ABSENT,
    Abandon,
    Admit,
    Await,
    AwaitEnded,
    Cancel,
    Decline,
    Event,
    Plane,
    Receive,
    Scheduled,
    Send,
    Withdraw,
)
from kvpush.vllm import params
from kvpush.vllm.metadata import StepEnd
from kvpush.vllm.options import Reserve
from kvpush.vllm.scheduler import Engine, SchedulerHalf

SEEDS = range(20)
CASES = 500
LIMIT_S = 10.0

NUMBERS = (0, 1, -1, 80, 127, 255, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63))
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e9, 1e18, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "t",
    "127.0.0.1",
    "::1",
    "key",
    "producer",
    "a\nb",
    "\0",
    "é" * 65,
    "x" * 128,
    "x" * 129,
    "\ud800",
    "\U0010ffff",
)
KEYS = (
    "do_remote_decode",
    "do_remote_prefill",
    "transfer_id",
    "remote_host",
    "remote_port",
    "remote_block_ids",
    "",
    "x",
)


def any_json(rng: random.Random, depth: int = 0) -> Any:
    """What a JSON parser can make of a client's text."""
    kind = rng.randrange(6 if depth > 2 else 8)
    if kind < 2:
        return rng.choice((None, True, False))
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice(FLOATS)
    if kind < 6:
        return rng.choice(TEXTS)
    if kind == 6:
        return [any_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): any_json(rng, depth + 1) for _ in range(rng.randrange(4))}


def any_params(rng: random.Random) -> Any:
    """Mostly right, or anything at all."""
    if rng.randrange(4) == 0:
        return any_json(rng)
    good = {"transfer_id": "t", "remote_host": "h", "remote_port": 1}
    good[rng.choice(("do_remote_prefill", "do_remote_decode"))] = True
    for _ in range(rng.randrange(3)):
        good[rng.choice(KEYS)] = any_json(rng)
    return good


# Shows E7.
@pytest.mark.parametrize("seed", SEEDS)
def test_params_are_refused_or_make_a_leg_that_the_core_takes(seed):
    rng = random.Random(seed)
    for _ in range(CASES):
        value = any_params(rng)
        try:
            leg = params.parse(value)
        except params.BadParams as error:
            assert str(error).isprintable(), value
            continue
        if leg is None:
            assert not params.wants_remote_prefill(value), value
        elif leg.transfer_id is not None:
            assert 0 < len(leg.transfer_id.encode()) <= params.TRANSFER_ID_BYTES_MAX, value
        if isinstance(leg, params.DecodeLeg):
            assert 0 < leg.port < 65536 and leg.host.isprintable(), value


# Shows E7.
@pytest.mark.parametrize("reserve", get_args(Reserve))
@pytest.mark.parametrize("seed", SEEDS)
def test_params_of_any_request_let_it_go_on_in_the_end(seed, reserve):
    rng = random.Random(seed)
    half = SchedulerHalf(Engine("h", 1, produces=True, consumes=True, reserve=reserve))
    for i in range(CASES // 5):
        half.arrived(f"r{i}", 100, any_params(rng), rng.choice((None, 1, 2)))
        half.tokens_to_receive(f"r{i}", rng.choice((0, 96)))
    awaits = [command for command in half.take_step().commands if isinstance(command, Await)]
    half.awaits_ended(StepEnd(Counter(awaits)))
    for i in range(CASES // 5):
        assert half.tokens_to_receive(f"r{i}", 0)[0] is not None
        half.finished(f"r{i}", False, ([],))
    half.take_step()
    assert half.requests() == 0 and not half.has_something_to_say()


@pytest.mark.parametrize("seed", SEEDS)
def test_ids_of_requests_are_read_whatever_they_are(seed):
    rng = random.Random(seed)
    pieces = ("cmpl-", "-", "_", "0", "1", "9999999", "12345678", "deadbeef", "chatcmpl", "\n", "é", "")
    for _ in range(CASES):
        request = "".join(rng.choice(pieces) for _ in range(rng.randrange(8)))
        call, index = params.prompt_of(request)
        assert call in request and index >= 0, request
        first = params.first_sample_of(request)
        assert first is None or params.first_sample_of(first) is None, request
        with contextlib.suppress(params.BadParams):
            assert params.transfer_of("t", request).startswith("t"), request


def any_value(rng: random.Random) -> Any:
    """What Python code could hand over by mistake."""
    kinds = (
        lambda: any_json(rng),
        lambda: np.arange(rng.randrange(4), dtype=rng.choice((np.uint32, np.int64, np.float32))),
        lambda: np.array(3, dtype=np.uint32),
        lambda: np.zeros((2, 2), dtype=np.uint32),
        lambda: np.arange(8, dtype=np.uint32)[::2],
        lambda: b"bytes",
        lambda: object(),
        lambda: Abandon("r"),
    )
    return rng.choice(kinds)()


def any_tables(rng: random.Random) -> Any:
    if rng.randrange(4) == 0:
        return any_value(rng)
    blocks = [rng.choice((0, 1, 3, 4, ABSENT, 2**31)) for _ in range(rng.randrange(5))]
    return tuple(np.array(blocks, dtype=np.uint32) for _ in range(rng.randrange(3)))


def change(rng: random.Random, value: Any) -> Any:
    """The named tuple with up to two of its fields replaced by anything."""
    for _ in range(rng.randrange(3)):
        value = value._replace(**{rng.choice(value._fields): any_value(rng)})
    return value


def any_command(rng: random.Random, port: int) -> Any:
    request, transfer = rng.choice(("a", "b", "c")), rng.choice(("t", "u", "x" * 129))
    commands = (
        lambda: Receive(request, transfer, "127.0.0.1", port, rng.randrange(20), rng.randrange(40), any_tables(rng)),
        lambda: Send(request, transfer, rng.randrange(40), any_tables(rng)),
        lambda: Decline(transfer, "127.0.0.1", port),
        lambda: Await(transfer, "127.0.0.1", port),
        lambda: Admit(transfer),
        lambda: Abandon(request),
        lambda: Cancel(request),
        lambda: Withdraw(transfer),
        lambda: any_value(rng),
    )
    command = rng.choice(commands)()
    return change(rng, command) if hasattr(command, "_replace") else command


def plane_of(cache: np.ndarray) -> Plane:
    return Plane("layer.0", "key", 0, "uint8", 1, 4, 4, 0, 1, 1, cache.ctypes.data, 32, 8, 8, 8)


def open_agent(cache: np.ndarray, **changes: Any) -> Agent:
    options = {
        "engine_id": "e",
        "host": "127.0.0.1",
        "control_port": 0,
        "transport": "cma",
        "planes": [plane_of(cache)],
        "regions": [(cache.ctypes.data, cache.nbytes)],
    }
    return Agent.open(**options | changes)


@pytest.fixture(scope="module")
def agent():
    """An agent, and the port of a directory that names it as its producer as well."""
    cache = np.zeros((4, 4, 8), dtype=np.uint8)
    try:
        agent = open_agent(cache)
    except Error as error:
        if error.code != "unavailable":
            raise
        pytest.skip(f"cma cannot be used here: {error}")
    directory = DirectoryServer.open("127.0.0.1", 0)
    directory.set_ranks([agent.document])
    yield agent, directory.port
    agent.stop(LIMIT_S)
    directory.stop()


@pytest.mark.parametrize("seed", SEEDS)
def test_commands_are_taken_or_raise_and_the_agent_lives(agent, seed):
    agent, port = agent
    rng = random.Random(seed)
    for _ in range(CASES // 5):
        command = any_command(rng, port)
        with contextlib.suppress(TypeError, ValueError, AttributeError, Error):
            agent.submit([command])
    for request in ("a", "b", "c"):
        agent.submit([Abandon(request), Cancel(request)])
    agent.wait(0.01)
    for event in agent.take_events():
        made = (AwaitEnded if event[0] == "await" else Event)._make(event)
        assert made.kind in ("await", "receive", "send"), event
    # It still does what it is asked.
    agent.submit([Receive("after", f"after-{seed}", "127.0.0.1", port, 0, 0, ()), Abandon("after")])
    assert wait_for(agent, "after") == "aborted"


def wait_for(agent: Agent, request: str) -> str | None:
    for _ in range(int(LIMIT_S * 10)):
        agent.wait(0.1)
        for kind, name, error, *_ in agent.take_events():
            if kind != "await" and name == request:
                return error
    raise AssertionError(f"no event for {request} within {LIMIT_S} s")


@pytest.mark.parametrize("seed", SEEDS)
def test_layouts_and_addresses_are_taken_or_raise(seed):
    cache = np.zeros((4, 4, 8), dtype=np.uint8)
    rng = random.Random(seed)
    for _ in range(20):
        changes: dict[str, Any] = {}
        for name in rng.sample(("engine_id", "planes", "regions", "rank", "rank_count"), rng.randrange(1, 3)):
            changes[name] = any_value(rng)
        if rng.randrange(2):
            changes["planes"] = [change(rng, plane_of(cache))]
        if rng.randrange(4) == 0:
            changes["regions"] = [(rng.choice(NUMBERS), rng.choice(NUMBERS))]
        try:
            opened = open_agent(cache, **changes)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, Error):
            continue
        opened.stop(LIMIT_S)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_schedulers_saw_is_told_as_json_or_raises(seed):
    rng = random.Random(seed)
    cache = np.zeros((4, 4, 8), dtype=np.uint8)
    opened = open_agent(cache)
    directory = DirectoryServer.open("127.0.0.1", 0)
    directory.set_ranks([opened.document])
    try:
        for _ in range(CASES // 5):
            scheduled = change(rng, Scheduled("producer", "t", "r", 1, rng.choice(FLOATS)))
            scheduled = scheduled._replace(**{rng.choice(("computed", "first_step")): rng.choice(FLOATS)})
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                directory.add(scheduled)
        url = f"http://127.0.0.1:{directory.port}/kvpush/v1/transfers"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            assert "engine" in json.loads(answer.read())
    finally:
        directory.stop()
        opened.stop(LIMIT_S)


@pytest.mark.parametrize("limit_s", [float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 1.1e9])
def test_a_limit_that_is_no_time_raises(agent, limit_s):
    agent, _ = agent
    with pytest.raises(ValueError, match="finite number of seconds"):
        agent.wait(limit_s)
