"""When a decode leg takes its blocks: at once, or when its prefill has begun."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from engine import BLOCK, FakeEngine, decode_params, prefill_params

from kvpush.types import Await, AwaitEnded, Decline, Receive, Send
from kvpush.vllm.metadata import StepEnd
from kvpush.vllm.scheduler import Engine, SchedulerHalf

AWAIT = Await("t", "10.0.0.2", 4712)
DECLINE = Decline(*AWAIT)
PROMPT = 100  # tokens: 7 blocks

both_depths = pytest.mark.parametrize("depth", [1, 2], ids=["one batch", "two batches in flight"])


# Not before its prefill has begun.


@both_depths
def test_decode_takes_no_blocks_before_its_prefill_has_begun(depth):
    engine = FakeEngine(depth=depth, reserve="admitted")
    request = engine.add("d", PROMPT, decode_params())
    engine.run(turns=5)
    assert (engine.agent.commands, request.blocks) == ([AWAIT], [])

    engine.agent.end_await(AWAIT)
    engine.run(turns=3)

    (receive,) = engine.agent.told(Receive)
    assert (receive.first, receive.end) == (0, PROMPT - 1)
    engine.agent.end("d")
    engine.run()
    assert (request.outcome, request.local) == ("stopped", 1)
    engine.assert_nothing_left()


def test_requests_behind_one_whose_prefill_has_not_begun_are_served():
    engine = FakeEngine(reserve="admitted")
    engine.add("d", PROMPT, decode_params())
    behind = [engine.add("plain", PROMPT), engine.add("e", PROMPT, decode_params("other"))]
    engine.step()
    engine.agent.end_await(Await("other", "10.0.0.2", 4712))
    engine.run(turns=3)
    engine.agent.end("e")
    engine.run(turns=3)

    assert [request.outcome for request in behind] == ["stopped", "stopped"]
    assert engine.requests["d"].blocks == []


def test_asking_a_leg_that_waits_changes_nothing():
    engine = FakeEngine(reserve="admitted")
    engine.add("d", PROMPT, decode_params())
    engine.step()
    assert {engine.half.tokens_to_receive("d", 16) for _ in range(10)} == {(None, False)}
    assert not engine.half.has_something_to_say()

    engine.agent.end_await(AWAIT)
    engine.step()

    assert {engine.half.tokens_to_receive("d", 16) for _ in range(10)} == {(83, True)}
    assert not engine.half.has_something_to_say()


@pytest.mark.parametrize(("prompt", "cached"), [(1, 0), (49, 48)])
def test_a_leg_that_needs_nothing_waits_for_nothing(prompt, cached):
    engine = FakeEngine(reserve="admitted")
    request = engine.add("d", prompt, decode_params(), cached=cached)
    engine.run()

    assert (request.outcome, engine.agent.commands) == ("stopped", [DECLINE])
    engine.assert_nothing_left()


def test_a_leg_whose_prompt_is_cached_while_it_waits_declines():
    engine = FakeEngine(reserve="admitted")
    request = engine.add("d", 49, decode_params())
    engine.step()
    request.cached = 48
    engine.run()

    assert (request.outcome, engine.agent.commands) == ("stopped", [AWAIT, DECLINE])
    engine.assert_nothing_left()


def test_a_leg_that_vllm_computes_itself_declines():
    # vLLM throws the answer away for requests with prompt log-probabilities, also that it shall ask again.
    engine = FakeEngine(reserve="admitted")
    engine.half.arrived("d", PROMPT, decode_params())
    assert engine.half.tokens_to_receive("d", 0) == (None, False)
    engine.half.allocated("d", ([1, 2, 3, 4, 5, 6, 7],), 0)

    assert engine.half.take_step().commands == [DECLINE]


@both_depths
def test_abort_of_a_leg_that_waits_ends_what_was_awaited(depth):
    engine = FakeEngine(depth=depth, reserve="admitted")
    engine.add("d", PROMPT, decode_params())
    engine.run(turns=3)
    engine.abort("d")
    engine.run()

    assert engine.agent.commands == [AWAIT, DECLINE]
    engine.assert_nothing_left()


@both_depths
@pytest.mark.parametrize("recompute", [False, True])
def test_a_leg_that_has_nothing_to_wait_for_fails_by_the_engines_policy(depth, recompute):
    engine = FakeEngine(depth=depth, recompute=recompute, reserve="admitted")
    request = engine.add("d", PROMPT, decode_params())
    engine.run(turns=3)
    engine.agent.end_await(AWAIT)  # its producer was lost, for one
    engine.run(turns=3)
    engine.agent.end("d", "peer_lost")
    engine.run()

    assert (request.outcome, request.local) == (("stopped", PROMPT) if recompute else ("error", 0))
    engine.assert_nothing_left()


def test_a_preempted_leg_waits_for_nothing_again():
    engine = FakeEngine(reserve="admitted")
    request = engine.add("d", PROMPT, decode_params(), output=10)
    engine.step()
    engine.agent.end_await(AWAIT)
    engine.run(turns=3)
    engine.agent.end("d")
    engine.run(turns=3)
    engine.preempt("d")
    engine.run()

    assert request.outcome == "stopped"
    assert [type(command) for command in engine.agent.commands] == [Await, Receive]
    engine.assert_nothing_left()


def test_params_that_cannot_be_used_wait_for_nothing():
    engine = FakeEngine(reserve="admitted")
    request = engine.add("bad", PROMPT, {"do_remote_prefill": True})
    engine.run()
    assert request.outcome == "error"
    engine.assert_nothing_left()


# Whose end it was.


def waiting_half(*legs, workers=1):
    """A scheduler half that has announced these Awaits, of requests with the transfers' names."""
    half = SchedulerHalf(Engine("10.0.0.1", 4711, produces=False, consumes=True, reserve="admitted", workers=workers))
    for leg in legs:
        half.arrived(leg.transfer_id, PROMPT, decode_params(leg.transfer_id))
    half.take_step()
    return half


def ended(*awaits):
    return StepEnd(Counter(awaits))


def test_a_leg_waits_until_every_worker_has_heard():
    half = waiting_half(AWAIT, workers=2)
    half.awaits_ended(ended(AWAIT))
    assert half.tokens_to_receive("t", 0) == (None, False)
    half.awaits_ended(ended(AWAIT))
    assert half.tokens_to_receive("t", 0) == (PROMPT - 1, True)


def test_what_workers_heard_in_one_step_adds_up():
    half = waiting_half(AWAIT, workers=2)
    half.awaits_ended(ended(AWAIT).aggregate(ended(AWAIT, Await("u", "10.0.0.2", 4712))))
    assert half.tokens_to_receive("t", 0) == (PROMPT - 1, True)


@pytest.mark.parametrize("other", [AWAIT._replace(transfer_id="u"), AWAIT._replace(host="h"), AWAIT._replace(port=1)])
def test_the_end_of_another_await_changes_nothing(other):
    half = waiting_half(AWAIT)
    half.awaits_ended(ended(other))
    assert half.tokens_to_receive("t", 0) == (None, False)


def test_the_late_end_for_an_aborted_leg_is_not_that_for_the_next_with_its_transfer():
    half = waiting_half(AWAIT)
    half.finished("t", False, ([],))
    half.arrived("again", PROMPT, decode_params())
    assert half.take_step().commands == [DECLINE, AWAIT]

    half.awaits_ended(ended(AWAIT))
    assert half.tokens_to_receive("again", 0) == (None, False)
    half.awaits_ended(ended(AWAIT))
    assert half.tokens_to_receive("again", 0) == (PROMPT - 1, True)


def test_the_end_of_an_await_that_nobody_announced_is_counted_and_not_told():
    engine = FakeEngine(reserve="admitted")
    engine.add("d", PROMPT, decode_params())
    engine.step()
    engine.agent.events = [AwaitEnded("await", "t", "10.0.0.2", 1)]
    engine.step()

    assert engine.worker.counts["unexpected_events"] == 1
    assert engine.half.tokens_to_receive("d", 0) == (None, False)


def test_an_idle_step_waits_for_a_prefill_to_begin_and_no_longer():
    engine = FakeEngine(reserve="admitted")
    engine.add("d", PROMPT, decode_params())
    engine.step()
    assert engine.agent.waits == [0.001]

    engine.abort("d")
    engine.run()
    waits = len(engine.agent.waits)
    engine.step()
    assert len(engine.agent.waits) == waits


# At once while there is room.


def fill(engine, blocks):
    """A request that computes here and keeps so many blocks."""
    engine.add("filler", blocks * BLOCK - 1, None, output=10**6)
    engine.step()
    assert engine.block_count - len(engine.free) == blocks


@pytest.mark.parametrize(("used", "is_early"), [(83, True), (84, False)])
def test_a_tenth_of_the_pool_stays_free(used, is_early):
    engine = FakeEngine(blocks=100, tokens_max=PROMPT)
    fill(engine, used)
    request = engine.add("d", PROMPT, decode_params())
    engine.step()
    assert (len(request.blocks) == 7, engine.agent.told(Await) == []) == (is_early, is_early)


def test_those_whose_prefill_may_not_have_begun_leave_the_longest_request_its_blocks():
    engine = FakeEngine(blocks=3 * 7 + 6, tokens_max=PROMPT)
    requests = [engine.add(f"d{i}", PROMPT, decode_params(f"t{i}")) for i in range(3)]
    engine.step()
    assert [len(request.blocks) for request in requests] == [7, 7, 0]

    engine.agent.end("d0")
    engine.run(turns=3)
    late = engine.add("late", PROMPT, decode_params("late"))
    engine.step()
    assert [len(requests[2].blocks), len(late.blocks)] == [0, 7], "who was awaited waits for the answer"

    engine.agent.end_await(Await("t2", "10.0.0.2", 4712))
    engine.run(turns=3)
    assert len(requests[2].blocks) == 7


def test_early_blocks_count_until_their_request_is_aborted_or_fails():
    engine = FakeEngine(blocks=3 * 7, tokens_max=2 * PROMPT)
    for i, end in enumerate([lambda: engine.abort("d0"), lambda: engine.agent.end("d1", "timeout"), lambda: None]):
        request = engine.add(f"d{i}", PROMPT, decode_params(f"t{i}"))
        engine.step()
        assert len(request.blocks) == 7, f"d{i} is early"
        end()
        engine.run(turns=3)


def test_a_leg_that_vllm_had_no_blocks_for_does_not_stop_those_behind_it():
    engine = FakeEngine(blocks=40, tokens_max=PROMPT)
    engine.chunk = 1
    engine.add("prefill", 30 * BLOCK, None)  # vLLM keeps free what it still needs, although it holds one block
    engine.step()
    first = engine.add("d", 14 * BLOCK, decode_params())
    second = engine.add("plain", BLOCK)
    engine.step()
    assert (first.blocks, second.blocks) == ([], []), "vLLM tried, and went no further"

    engine.step()
    assert len(second.blocks) == 1


def test_without_a_pool_nobody_is_early():
    half = SchedulerHalf(Engine("10.0.0.1", 4711, produces=False, consumes=True))
    half.arrived("d", PROMPT, decode_params())
    assert half.tokens_to_receive("d", 0) == (None, False)


# Two engines.


class Pair:
    """A prefill and a decode engine, and agents between them that do what they are told at once."""

    def __init__(self, blocks, reserve, depth=1):
        self.prefill = FakeEngine(blocks=blocks, depth=depth)
        self.decode = FakeEngine(blocks=blocks, depth=depth, reserve=reserve)

    def run(self, turns):
        """False when requests are left."""
        for _ in range(turns):
            for engine in (self.prefill, self.decode):
                if engine.has_work():
                    engine.step()
            self._move()
        return not (self.prefill.requests or self.decode.requests)

    def _move(self):
        sends = {send.transfer_id: send.request for send in self.prefill.agent.told(Send)}
        for awaited in self.decode.agent.awaited:
            if awaited.transfer_id in self.prefill.agent.admitted | sends.keys():
                self.decode.agent.end_await(awaited)
        for receive in self.decode.agent.told(Receive):
            send = sends.get(receive.transfer_id)
            if send in self.prefill.agent.live and receive.request in self.decode.agent.live:
                self.prefill.agent.end(send)
                self.decode.agent.end(receive.request)
        for declined in self.decode.agent.told(Decline):
            if sends.get(declined.transfer_id) in self.prefill.agent.live:
                self.prefill.agent.end(sends[declined.transfer_id])


# Shows E9.
@both_depths
@pytest.mark.parametrize(("reserve", "is_served"), [("auto", True), ("admitted", True), ("early", False)])
def test_pools_for_one_request_that_are_asked_in_opposite_order_serve_both(reserve, is_served, depth):
    pair = Pair(8, reserve, depth)
    for engine, params, order in ((pair.prefill, prefill_params, "ab"), (pair.decode, decode_params, "ba")):
        for name in order:
            engine.add(name, PROMPT, params(name))

    assert pair.run(turns=30) == is_served
    if is_served:
        assert all(request.local == 1 for request in pair.decode.ended.values())


# Shows E9.
@pytest.mark.parametrize("reserve", ["auto", "admitted"])
@pytest.mark.parametrize("seed", range(20))
def test_pools_of_any_size_serve_all_in_any_order(seed, reserve):
    chance = random.Random(seed)
    pair = Pair(chance.randrange(8, 30), reserve, depth=chance.choice([1, 2]))
    prompts = [chance.randrange(1, 8 * BLOCK) for _ in range(20)]
    for engine, params in ((pair.prefill, prefill_params), (pair.decode, decode_params)):
        order = list(enumerate(prompts))
        chance.shuffle(order)
        for i, prompt in order:
            engine.add(f"r{i}", prompt, params(f"t{i}"))

    assert pair.run(turns=3000)
    assert {request.outcome for engine in (pair.prefill, pair.decode) for request in engine.ended.values()} == {
        "stopped"
    }
    for engine in (pair.prefill, pair.decode):
        engine.assert_nothing_left()
