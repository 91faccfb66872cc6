"""Both halves of the connector under a model of vLLM's scheduler, in its orders and in wrong ones."""

from __future__ import annotations

import itertools
import random
from typing import get_args

import numpy as np
import pytest
from engine import BLOCK, FakeEngine, decode_params, prefill_params

from kvpush.types import ABSENT, Abandon, Admit, Await, AwaitEnded, Cancel, Decline, Receive, Send, Withdraw
from kvpush.vllm.options import Reserve
from kvpush.vllm.scheduler import tables

both_depths = pytest.mark.parametrize("depth", [1, 2], ids=["one batch", "two batches in flight"])


# Decode.


@both_depths
def test_decode_receives_all_but_the_last_prompt_token_and_computes_that_one(depth):
    engine = FakeEngine(depth=depth)
    request = engine.add("d", 100, decode_params(), output=3)
    engine.step()

    (receive,) = engine.agent.told(Receive)
    assert (receive.request, receive.transfer_id, receive.host, receive.port) == ("d", "t", "10.0.0.2", 4712)
    assert (receive.first, receive.end) == (0, 99)
    assert receive.tables[0].tolist() == request.blocks

    engine.agent.end("d")
    engine.run()
    assert (request.outcome, request.local) == ("stopped", 1)
    engine.assert_nothing_left()


# Shows B5.
@both_depths
def test_decode_with_a_prefix_hit_receives_what_is_missing(depth):
    engine = FakeEngine(depth=depth)
    request = engine.add("d", 100, decode_params(), cached=50)
    engine.step()

    (receive,) = engine.agent.told(Receive)
    assert (receive.first, receive.end) == (48, 99)
    engine.agent.end("d")
    engine.run()
    assert request.local == 1
    engine.assert_nothing_left()


@pytest.mark.parametrize(("prompt", "end"), [(2, 16), (17, 16), (18, 32), (33, 32), (34, 48)])
def test_decode_asks_for_whole_units_where_tokens_are_interleaved(prompt, end):
    engine = FakeEngine(unit=BLOCK)
    engine.add("d", prompt, decode_params())
    engine.step()

    (receive,) = engine.agent.told(Receive)
    assert (receive.first, receive.end) == (0, end)
    assert len(receive.tables[0]) * BLOCK == end


# Shows B4.
@pytest.mark.parametrize(("prompt", "cached"), [(1, 0), (17, 16), (49, 48)])
def test_decode_that_needs_nothing_declines_so_that_prefill_lets_go(prompt, cached):
    engine = FakeEngine()
    request = engine.add("d", prompt, decode_params(), cached=cached)
    engine.run()

    assert engine.agent.commands == [Decline("t", "10.0.0.2", 4712)]
    assert request.outcome == "stopped"
    engine.assert_nothing_left()


def test_decode_that_is_told_to_read_nothing_declines():
    # vLLM throws the answer away for requests with prompt log-probabilities.
    engine = FakeEngine()
    engine.half.arrived("d", 100, decode_params())
    assert engine.half.tokens_to_receive("d", 0) == (99, True)
    engine.half.allocated("d", ([1, 2, 3, 4, 5, 6, 7],), 0)

    assert engine.half.take_step().commands == [Decline("t", "10.0.0.2", 4712)]
    assert engine.half.finished("d", True, ([],)) == (False, None)
    assert not engine.half.has_something_to_say()


def test_asking_how_much_comes_changes_nothing():
    engine = FakeEngine()
    engine.half.arrived("d", 100, decode_params())
    answers = {engine.half.tokens_to_receive("d", 16) for _ in range(10)}
    assert answers == {(83, True)}
    assert not engine.half.has_something_to_say()


@both_depths
def test_failed_receive_ends_the_request_under_policy_fail(depth):
    engine = FakeEngine(depth=depth)
    request = engine.add("d", 100, decode_params())
    engine.step()
    engine.agent.end("d", "peer_lost")
    engine.run()

    assert request.outcome == "error"
    engine.assert_nothing_left()


@both_depths
def test_failed_receive_is_computed_here_under_policy_recompute(depth):
    engine = FakeEngine(depth=depth, recompute=True)
    request = engine.add("d", 100, decode_params())
    engine.step()
    engine.agent.end("d", "timeout")
    engine.run()

    assert (request.outcome, request.failed, request.local) == ("stopped", True, 100)
    assert len(engine.agent.told(Receive)) == 1
    engine.assert_nothing_left()


@both_depths
def test_preempted_decode_computes_its_prompt_here(depth):
    engine = FakeEngine(depth=depth)
    request = engine.add("d", 100, decode_params(), output=10)
    engine.step()
    engine.agent.end("d")
    while request.status != "running":
        engine.step()
    engine.preempt("d")
    engine.run()

    assert (request.outcome, request.local) == ("stopped", 101)
    assert len(engine.agent.commands) == 1
    engine.assert_nothing_left()


# Shows E7.
@pytest.mark.parametrize("params", ["bad", {"do_remote_prefill": 1}, {"do_remote_prefill": True}])
@pytest.mark.parametrize("recompute", [False, True])
def test_bad_decode_params_end_that_request_alone(params, recompute):
    engine = FakeEngine(recompute=recompute)
    good = engine.add("good", 20, None)
    bad = engine.add("bad", 100, params)
    engine.run()

    assert good.outcome == "stopped"
    # What is no object is no decode leg; the request is served without transfer.
    assert bad.outcome == ("stopped" if recompute or params == "bad" else "error")
    assert engine.half.counts["bad_params"] == 1
    assert engine.agent.commands == []
    engine.assert_nothing_left()


def test_a_second_request_for_a_transfer_in_use_is_refused():
    engine = FakeEngine()
    first = engine.add("a", 100, decode_params())
    second = engine.add("b", 100, decode_params())
    engine.step()
    engine.agent.end("a")
    engine.run()

    assert (first.outcome, second.outcome) == ("stopped", "error")
    engine.assert_nothing_left()
    retry = engine.add("c", 100, decode_params())
    engine.step()
    engine.agent.end("c")
    engine.run()
    assert retry.outcome == "stopped"


# Decode, in the queue.


def queued_decode(engine, id="d", transfer_id="t", prompt=100):
    """A request that finds no free blocks until "first" has ended."""
    engine.add("first", 100, None, output=1000)
    engine.step()
    assert len(engine.free) < 7
    request = engine.add(id, prompt, decode_params(transfer_id))
    engine.step()
    assert request.status == "waiting"
    return request


@both_depths
@pytest.mark.parametrize("reserve", get_args(Reserve))
def test_decode_that_waits_for_blocks_says_so_once_and_receives_when_it_has_them(depth, reserve):
    engine = FakeEngine(depth=depth, blocks=10, reserve=reserve)
    queued_decode(engine)
    for _ in range(5):
        engine.step()
    assert engine.agent.commands == [Await("t", "10.0.0.2", 4712)]

    engine.agent.end_await(Await("t", "10.0.0.2", 4712))
    engine.abort("first")
    engine.run(turns=3)
    assert [type(command) for command in engine.agent.commands] == [Await, Receive]
    engine.agent.end("d")
    engine.run()
    engine.assert_nothing_left()


@both_depths
@pytest.mark.parametrize("reserve", ["auto", "early"])
def test_decode_that_gets_its_blocks_in_the_step_after_its_arrival_is_not_awaited(depth, reserve):
    engine = FakeEngine(depth=depth, reserve=reserve)
    engine.add("d", 100, decode_params())
    engine.step()
    engine.agent.end("d")
    engine.run()
    assert [type(command) for command in engine.agent.commands] == [Receive]


@both_depths
@pytest.mark.parametrize("told", [False, True], ids=["while it waits", "when its prefill has begun"])
def test_abort_of_a_decode_in_the_queue_declines_what_was_awaited(depth, told):
    engine = FakeEngine(depth=depth, blocks=10)
    queued_decode(engine)
    if told:
        engine.agent.end_await(Await("t", "10.0.0.2", 4712))
    engine.abort("d")
    engine.abort("first")
    engine.run()

    assert engine.agent.commands == [Await("t", "10.0.0.2", 4712), Decline("t", "10.0.0.2", 4712)]
    engine.assert_nothing_left()


def test_abort_before_a_step_was_taken_awaits_nothing():
    engine = FakeEngine()
    engine.half.arrived("d", 100, decode_params())
    engine.half.finished("d", False, ([],))
    assert engine.half.take_step().commands == [Decline("t", "10.0.0.2", 4712)]
    assert engine.half.take_step().commands == []


def test_decode_whose_prompt_was_cached_while_it_waited_declines():
    engine = FakeEngine(blocks=10)
    request = queued_decode(engine, prompt=6 * BLOCK + 1)
    request.cached = 6 * BLOCK
    engine.abort("first")
    engine.run()

    assert request.local == 1
    assert [type(command) for command in engine.agent.commands] == [Await, Decline]
    engine.assert_nothing_left()


def test_only_requests_that_can_receive_are_awaited():
    engine = FakeEngine(blocks=10)
    queued_decode(engine, "0_cmpl-x-0-0123abcd")
    for id, params in [
        ("1_cmpl-x-0-0123abcd", decode_params()),
        ("again", decode_params()),
        ("bad", {"do_remote_prefill": True}),
        ("prefill", prefill_params("p")),
        ("plain", None),
    ]:
        engine.add(id, 100, params)
    engine.step()
    assert engine.agent.commands == [Await("t", "10.0.0.2", 4712)]


def test_the_end_of_an_await_is_no_end_of_a_request_of_that_name():
    engine = FakeEngine(blocks=17)
    engine.add("t", 100, decode_params("other"))
    queued_decode(engine, "d", "t")
    engine.agent.end_await(Await("t", "10.0.0.2", 4712))
    for _ in range(3):
        engine.step()

    assert engine.requests["t"].status == "remote"
    assert not engine.worker.counts
    engine.agent.end("t")
    engine.abort("first")
    engine.run(turns=5)
    engine.agent.end("d")
    engine.run()
    assert [engine.ended[id].outcome for id in ("t", "d")] == ["stopped", "stopped"]
    engine.assert_nothing_left()


def test_the_end_of_an_await_lets_no_step_overwrite_what_is_read():
    engine = FakeEngine(depth=2)
    engine.agent.slow = True
    early_prefill(engine)
    engine.agent.wait = lambda limit_s: bool(engine.agent.events)  # writes of what was cancelled go on
    engine.agent.events.append(AwaitEnded("await", "p", "10.0.0.2", 4712))
    engine.preempt("p")
    engine.execute({})
    assert engine.worker.counts["unfenced"] == 1


# Aborts of decode, at each point.


def test_abort_before_blocks_declines():
    engine = FakeEngine(blocks=2)
    engine.add("d", 100, decode_params())
    engine.step()
    assert not engine.agent.told(Decline)
    engine.abort("d")
    engine.run()

    assert engine.agent.told(Decline) == [Decline("t", "10.0.0.2", 4712)]
    engine.assert_nothing_left()


# Shows A1.
@both_depths
def test_abort_while_receiving_keeps_the_blocks_until_nothing_can_land(depth):
    engine = FakeEngine(depth=depth)
    engine.agent.slow = True
    request = engine.add("d", 100, decode_params())
    engine.step()
    engine.abort("d")
    for _ in range(10):
        engine.step()
    assert engine.agent.told(Abandon) == [Abandon("d")]
    assert len(request.blocks) == 7

    engine.agent.end("d", "aborted")
    engine.run()
    assert engine.ended["d"] is request
    engine.assert_nothing_left()


def test_abort_before_the_receive_was_shipped():
    engine = FakeEngine()
    engine.add("d", 100, decode_params())
    engine.schedule()
    engine.abort("d")
    engine.run()

    assert [type(command) for command in engine.agent.commands] == [Receive, Abandon]
    engine.assert_nothing_left()


# Shows B6.
@both_depths
def test_abort_while_the_end_of_the_receive_is_on_its_way(depth):
    engine = FakeEngine(depth=depth)
    engine.add("d", 100, decode_params())
    engine.step()
    engine.agent.end("d")
    scheduled = engine.schedule()
    results = engine.execute(scheduled)
    engine.abort("d")
    engine.in_flight.append((scheduled, results))
    while engine.in_flight:
        engine.update(*engine.in_flight.popleft())
    engine.run()

    assert engine.agent.told(Abandon) == []
    engine.assert_nothing_left()


@both_depths
def test_abort_after_the_report_and_before_promotion(depth):
    engine = FakeEngine(depth=depth)
    engine.add("d", 100, decode_params())
    engine.step()
    engine.agent.end("d")
    while "d" not in engine.received:
        engine.step()
    engine.abort("d")
    engine.run()

    assert engine.agent.told(Abandon) == []
    engine.assert_nothing_left()


def test_abort_while_a_refused_request_waits_for_its_report():
    engine = FakeEngine()
    engine.add("d", 100, {"do_remote_prefill": True})
    engine.schedule()
    engine.abort("d")
    engine.run()

    assert engine.agent.commands == []
    engine.assert_nothing_left()


def test_request_that_the_front_end_rejected_lets_prefill_go():
    engine = FakeEngine()
    engine.half.arrived("call", 1, decode_params())
    assert engine.half.finished("call", False, ([],)) == (False, None)
    assert engine.half.has_something_to_say()
    engine.run()

    assert engine.agent.commands == [Decline("t", "10.0.0.2", 4712)]
    engine.assert_nothing_left()


# Prefill.


@both_depths
def test_prefill_sends_its_prompt_and_tells_where_it_is(depth):
    engine = FakeEngine(depth=depth)
    engine.chunk = 40
    request = engine.add("p", 100, prefill_params())
    while request.status != "finished":
        assert not engine.agent.told(Send)
        engine.step()
    engine.step()

    (send,) = engine.agent.told(Send)
    assert (send.request, send.transfer_id, send.token_count) == ("p", "t", 100)
    assert send.tables[0].tolist() == request.blocks
    assert request.response == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": "t",
        "remote_host": "10.0.0.1",
        "remote_port": 4711,
    }
    for _ in range(5):
        engine.step()
    assert request.blocks
    engine.agent.end("p")
    engine.run()
    engine.assert_nothing_left()


def early_prefill(engine):
    """A request whose KV is being sent although the engine has not seen its token yet."""
    engine.chunk = 40
    request = engine.add("p", 100, prefill_params())
    while not engine.agent.told(Send):
        assert request.status != "finished"
        engine.execute(engine.schedule())
    assert request.status == "running"
    return request


def test_prefill_sends_before_its_token_was_seen_where_another_step_is_in_flight():
    engine = FakeEngine(depth=2)
    request = engine.add("p", 100, prefill_params())
    engine.step()
    assert not engine.agent.told(Send)
    scheduled = engine.schedule()
    engine.execute(scheduled)

    (send,) = engine.agent.told(Send)
    assert (request.status, send.token_count) == ("running", 100)
    assert send.tables[0].tolist() == request.blocks[:7]
    engine.agent.end("p")
    engine.run()
    assert len(engine.agent.told(Send)) == 1
    engine.assert_nothing_left()


def test_prefill_that_goes_on_to_generate_sends_when_it_has_finished():
    engine = FakeEngine(depth=2)
    request = engine.add("p", 100, prefill_params(), output=3)
    while request.status != "finished":
        assert not engine.agent.told(Send)
        engine.step()
    engine.step()
    assert engine.agent.told(Send)
    engine.agent.end("p")
    engine.run()
    engine.assert_nothing_left()


@pytest.mark.parametrize("ended", [False, True])
def test_a_send_that_ends_early_is_reported_when_its_request_has_finished(ended):
    engine = FakeEngine(depth=2)
    request = early_prefill(engine)
    if ended:
        engine.agent.end("p")
    assert engine.execute(engine.schedule()).sent == set()

    engine._finish(request, "stopped", keep=False)
    assert request.blocks
    assert engine.execute({}).sent == ({"p"} if ended else set())
    if not ended:
        engine.agent.end("p")
        assert engine.execute({}).sent == {"p"}


def test_abort_of_an_early_send_keeps_the_blocks_until_nothing_reads_them():
    engine = FakeEngine(depth=2)
    engine.agent.slow = True
    request = early_prefill(engine)
    engine.abort("p")
    assert request.blocks

    engine.run()
    assert engine.agent.told(Cancel) == [Cancel("p")]
    engine.assert_nothing_left()


# Shows A3.
def test_preemption_of_an_early_send_waits_for_its_writes_and_sends_again():
    engine = FakeEngine(depth=2)
    engine.agent.slow = True
    request = early_prefill(engine)
    engine.preempt("p")
    engine.free.reverse()
    engine.execute(engine.schedule())
    assert "p" not in engine.agent.live, "nothing reads what the step may overwrite"
    assert not engine.worker.counts["unfenced"]

    while len(engine.agent.told(Send)) < 2:
        engine.execute(engine.schedule())
    first, second = engine.agent.told(Send)
    assert first.tables[0].tolist() != second.tables[0].tolist() == request.blocks[:7]


def test_preemption_and_abort_of_an_early_send_report_it_once():
    engine = FakeEngine(depth=2)
    engine.agent.slow = True
    early_prefill(engine)
    engine.preempt("p")
    engine.abort("p")
    assert engine.execute({}).sent == {"p"}
    assert engine.worker.outstanding() == 0


def test_preemption_and_abort_withdraw_an_early_send_that_the_agent_never_heard_of():
    engine = FakeEngine(depth=2)
    engine.add("p", 100, prefill_params())
    engine.execute(engine.schedule())
    assert engine.agent.admitted == {"t"}
    engine.agent.full = True
    engine.execute(engine.schedule())
    engine.agent.full = False
    engine.preempt("p")
    engine.abort("p")
    engine.execute({})

    assert not engine.agent.told(Send)
    assert engine.agent.told(Withdraw) == [Withdraw("t")]
    assert not engine.agent.admitted


def test_a_preempted_send_that_does_not_end_in_time_is_counted():
    engine = FakeEngine(depth=2)
    early_prefill(engine)
    engine.agent.full = True  # the agent does not even hear of it
    engine.preempt("p")
    engine.execute({})
    assert engine.worker.counts["unfenced"] == 1


def test_prefill_offers_whole_units_where_tokens_are_interleaved():
    engine = FakeEngine(unit=BLOCK)
    engine.add("p", 100, prefill_params())
    engine.step()
    engine.step()
    (send,) = engine.agent.told(Send)
    assert send.token_count == 112 and len(send.tables[0]) == 7


def test_prefill_makes_a_transfer_id_that_decode_can_use():
    engine = FakeEngine()
    request = engine.add("cmpl-x-0-0123abcd", 100, prefill_params(None))
    engine.step()
    assert request.response["transfer_id"] == "made-0"

    decode = FakeEngine()
    decode.add("cmpl-y-0-0123abcd", 100, request.response)
    decode.step()
    (receive,) = decode.agent.told(Receive)
    assert (receive.transfer_id, receive.host, receive.port) == ("made-0", "10.0.0.1", 4711)


def test_failed_send_gives_the_blocks_back():
    engine = FakeEngine()
    engine.add("p", 100, prefill_params())
    engine.step()
    engine.step()
    engine.agent.end("p", "timeout")
    engine.run()
    assert engine.worker.counts["send_errors"] == 1
    engine.assert_nothing_left()


@both_depths
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_abort_of_prefill_withdraws_and_frees_at_once(depth, steps):
    engine = FakeEngine(depth=depth)
    engine.chunk = 30
    request = engine.add("p", 100, prefill_params())
    for _ in range(steps):
        engine.step()
    engine.abort("p")
    assert not request.blocks
    engine.run()

    assert engine.agent.commands == [Admit("t")] * (steps > 0) + [Withdraw("t")]
    engine.assert_nothing_left()


@both_depths
def test_prefill_that_has_its_blocks_says_so_before_it_sends(depth):
    engine = FakeEngine(depth=depth)
    engine.chunk = 40
    engine.add("p", 100, prefill_params())
    engine.step()
    assert engine.agent.commands == [Admit("t")]
    while not engine.agent.told(Send):
        engine.step()
    engine.agent.end("p")
    engine.run()

    assert [type(command) for command in engine.agent.commands] == [Admit, Send]
    engine.assert_nothing_left()


def test_preempted_prefill_sends_once_and_what_it_computed_last():
    engine = FakeEngine()
    engine.chunk = 40
    request = engine.add("p", 100, prefill_params())
    engine.step()
    old = list(request.blocks)
    engine.preempt("p")
    engine.free.reverse()
    while request.status != "finished":
        engine.step()
    engine.step()

    (send,) = engine.agent.told(Send)
    assert send.tables[0].tolist() == request.blocks != old
    assert engine.agent.told(Admit) == [Admit("t")]
    engine.agent.end("p")
    engine.run()
    engine.assert_nothing_left()


def test_prefill_that_ended_without_its_prompt_is_withdrawn():
    engine = FakeEngine()
    engine.half.arrived("p", 100, prefill_params())
    assert engine.half.finished("p", False, ([],)) == (False, None)
    assert engine.half.take_step().commands == [Withdraw("t")]


@pytest.mark.parametrize("params", [7, [], "x", {"do_remote_decode": "yes"}, prefill_params(5), prefill_params("")])
def test_bad_prefill_params_are_ignored_and_counted(params):
    engine = FakeEngine()
    request = engine.add("p", 100, params)
    engine.run()

    assert (request.outcome, request.response) == ("stopped", None)
    assert engine.half.counts["bad_params"] == 1
    assert engine.agent.commands == []
    engine.assert_nothing_left()


def test_a_transfer_id_in_use_by_another_prefill_is_ignored():
    engine = FakeEngine()
    engine.add("p", 100, prefill_params())
    second = engine.add("q", 100, prefill_params())
    engine.step()
    engine.step()
    assert len(engine.agent.told(Send)) == 1 and second.response is None
    engine.agent.end("p")
    engine.run()
    engine.assert_nothing_left()


# Several prompts, several samples.


# Shows C1.
def test_prompts_of_one_call_are_transfers_of_their_own():
    prefill, decode = FakeEngine(), FakeEngine()
    requests = [prefill.add(f"cmpl-x-{i}-0123abc{i}", 100, prefill_params(None)) for i in range(3)]
    prefill.step()
    prefill.step()
    ids = [send.transfer_id for send in prefill.agent.told(Send)]
    assert ids == ["made-0", "made-0#1", "made-0#2"]

    # A server answers with the params of the first prompt.
    for i in range(3):
        decode.add(f"cmpl-y-{i}-9123abc{i}", 100, requests[0].response)
    decode.step()
    assert [receive.transfer_id for receive in decode.agent.told(Receive)] == ids


# Shows C1.
def test_conversations_of_a_batch_are_transfers_of_their_own():
    prefill, decode = FakeEngine(), FakeEngine()
    for i in range(3):
        prefill.add(f"chatcmpl-x_{i}-0123abc{i}", 100, prefill_params())
        decode.add(f"chatcmpl-y_{i}-9123abc{i}", 100, decode_params())
    prefill.run(turns=3)
    decode.step()
    ids = ["t", "t#1", "t#2"]
    assert [send.transfer_id for send in prefill.agent.told(Send)] == ids
    assert [receive.transfer_id for receive in decode.agent.told(Receive)] == ids


@pytest.mark.parametrize("call", ["cmpl-x-0", "chatcmpl-x", "chatcmpl-x_7"])
def test_a_later_call_with_the_same_request_id_gets_another_transfer_id(call):
    engine = FakeEngine()
    first = engine.add(f"{call}-0123abcd", 100, prefill_params(None))
    second = engine.add(f"{call}-1123abcd", 100, prefill_params(None))
    engine.step()
    assert first.response["transfer_id"] != second.response["transfer_id"]


@both_depths
def test_later_samples_wait_for_the_first_and_are_not_transferred(depth):
    engine = FakeEngine(depth=depth)
    samples = [engine.add(f"{i}_cmpl-x-0-0123abcd", 100, decode_params()) for i in range(3)]
    for _ in range(4):
        engine.step()
    assert [sample.status for sample in samples] == ["remote", "waiting", "waiting"]
    assert len(engine.agent.commands) == 1

    engine.agent.end(samples[0].id)
    samples[1].cached = samples[2].cached = 99
    engine.run()
    assert [sample.outcome for sample in samples] == ["stopped"] * 3
    assert [sample.local for sample in samples] == [1, 4, 4]
    assert engine.half.counts["later_samples"] == 2
    engine.assert_nothing_left()


def test_later_samples_go_on_when_the_first_is_aborted():
    engine = FakeEngine()
    first, second = (engine.add(f"{i}_cmpl-x-0-0123abcd", 100, decode_params()) for i in range(2))
    engine.step()
    engine.abort(first.id)
    engine.run()
    assert (second.outcome, second.local) == ("stopped", 100)
    engine.assert_nothing_left()


def prefill_samples(engine, outputs=(1, 1, 1), params=None):
    """A call with as many samples, which generate so many tokens each."""
    params = prefill_params() if params is None else params
    return [engine.add(f"{i}_cmpl-x-0-0123abcd", 100, params, output=output) for i, output in enumerate(outputs)]


def test_prefill_sends_the_first_sample_only():
    engine = FakeEngine()
    first, *later = prefill_samples(engine)
    engine.step()
    engine.step()
    assert [send.request for send in engine.agent.told(Send)] == [first.id]
    assert list(engine.requests) == [first.id], "the others keep no blocks"
    assert [sample.outcome for sample in later] == ["stopped", "stopped"]
    engine.agent.end(first.id)
    engine.run()
    engine.assert_nothing_left()


@both_depths
@pytest.mark.parametrize("outputs", list(itertools.permutations((1, 2, 3))))
def test_the_sample_that_ends_last_tells_where_the_kv_is(depth, outputs):
    # vLLM answers a call with what that one tells, whichever it is.
    engine = FakeEngine(depth=depth)
    samples = prefill_samples(engine, outputs, prefill_params(None))
    engine.run(turns=10)
    (send,) = engine.agent.told(Send)
    last = samples[outputs.index(3)]
    assert last.response == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": send.transfer_id,
        "remote_host": "10.0.0.1",
        "remote_port": 4711,
    }

    engine.agent.end(samples[0].id)
    engine.run()
    engine.assert_nothing_left()


@both_depths
def test_samples_that_end_with_the_first_or_after_it_tell_the_same_and_share_nothing(depth):
    engine = FakeEngine(depth=depth)
    first, *later = prefill_samples(engine, (1, 1, 2))
    engine.run(turns=5)
    assert first.response is not None
    first.response["remote_prefill_cached_tokens"] = 0  # as vLLM does
    assert [{**sample.response, "remote_prefill_cached_tokens": 0} for sample in later] == [first.response] * 2
    assert later[0].response is not later[1].response


def test_a_sample_that_arrives_when_the_first_is_sent_tells_where_the_kv_is():
    engine = FakeEngine()
    (first,) = prefill_samples(engine, (1,))
    engine.run(turns=3)
    late = engine.add("1_cmpl-x-0-0123abcd", 100, prefill_params())
    engine.run(turns=3)
    assert late.response == first.response is not None


def test_a_sample_tells_nothing_when_the_kv_is_held_no_longer():
    engine = FakeEngine()
    first, later = prefill_samples(engine, (1, 10))
    engine.run(turns=3)
    engine.agent.end(first.id, "timeout")
    engine.run()
    assert (later.outcome, later.response) == ("stopped", None)
    engine.assert_nothing_left()


@both_depths
def test_samples_of_a_first_that_was_aborted_tell_nothing(depth):
    engine = FakeEngine(depth=depth)
    first, *later = prefill_samples(engine, (10, 3, 3))
    engine.step()
    engine.abort(first.id)
    engine.run()
    assert [(sample.outcome, sample.response) for sample in later] == [("stopped", None)] * 2
    engine.assert_nothing_left()


def test_samples_of_a_first_that_was_aborted_while_it_is_sent_early_tell_nothing():
    engine = FakeEngine(depth=2)
    engine.agent.slow = True
    first, later = prefill_samples(engine, (1, 1))
    for _ in range(2):
        engine.execute(engine.schedule())
    assert [send.request for send in engine.agent.told(Send)] == [first.id]
    engine.abort(first.id)
    engine._finish(later, "stopped", keep=False)
    assert first.blocks, "it is being sent"
    assert later.response is None


def test_samples_of_a_first_that_was_refused_tell_nothing():
    engine = FakeEngine()
    other = engine.add("other", 100, prefill_params())
    samples = prefill_samples(engine)
    engine.run(turns=5)
    assert other.response is not None
    assert [(sample.outcome, sample.response) for sample in samples] == [("stopped", None)] * 3


# Turns of a call with tools.


@both_depths
def test_decode_computes_the_turn_after_a_tool_itself(depth):
    engine = FakeEngine(depth=depth)
    engine.add("resp_x_0-0123abcd", 100, decode_params())
    engine.step()
    engine.agent.end("resp_x_0-0123abcd")
    engine.run()
    later = engine.add("resp_x_1-1123abcd", 120, decode_params(), cached=96)
    engine.run()

    assert (later.outcome, later.local) == ("stopped", 24)
    assert len(engine.agent.commands) == 1, "the first turn's"
    engine.assert_nothing_left()


def test_prefill_sends_the_first_turn_only():
    engine = FakeEngine()
    engine.add("resp_x_0-0123abcd", 100, prefill_params())
    engine.run(turns=3)
    engine.agent.end("resp_x_0-0123abcd")
    engine.run()
    later = engine.add("resp_x_1-1123abcd", 120, prefill_params())
    engine.run()

    assert (later.outcome, later.response) == ("stopped", None)
    assert [send.request for send in engine.agent.told(Send)] == ["resp_x_0-0123abcd"]
    engine.assert_nothing_left()


# The worker's half: wrong orders.


# Shows B6.
def test_events_that_nobody_announced_are_counted_and_not_reported():
    engine = FakeEngine()
    engine.add("d", 100, decode_params())
    engine.step()
    engine.agent.events = [("receive", "stranger", None, 0, 0.0), ("send", "d", None, 0, 0.0)]
    engine.agent.end("d")
    engine.agent.events.append(("receive", "d", None, 0, 0.0))
    engine.run()

    assert engine.worker.counts["unexpected_events"] == 3
    engine.assert_nothing_left()


def test_a_full_agent_is_told_later_and_in_order():
    engine = FakeEngine()
    engine.agent.full = True
    engine.add("d", 100, decode_params())
    engine.step()
    engine.abort("d")
    engine.step()
    assert engine.agent.commands == []

    engine.agent.full = False
    engine.run()
    assert [type(command) for command in engine.agent.commands] == [Receive, Abandon]
    engine.assert_nothing_left()


def test_a_storm_of_aborts_passes_in_pieces():
    engine = FakeEngine(blocks=1)
    sizes = []
    submit = engine.agent.submit
    engine.agent.submit = lambda commands: sizes.append(len(commands)) or submit(commands)
    for i in range(10_000):
        engine.add(f"d{i}", 100, decode_params(f"t{i}"))
        engine.abort(f"d{i}")
    engine.step()
    assert sum(sizes) == 10_000 and max(sizes) <= 4096


def test_only_idle_steps_with_something_outstanding_wait():
    engine = FakeEngine()
    engine.step()
    engine.add("running", 20, None, output=3)
    engine.add("d", 100, decode_params())
    for _ in range(3):
        engine.step()
    assert engine.agent.waits == []

    engine.step()
    assert engine.agent.waits == [0.001]
    engine.agent.end("d")
    engine.run()
    engine.step()
    assert len(engine.agent.waits) == 2


def test_null_blocks_are_absent_ones():
    (table,) = tables(([0, 0, 5, 6],))
    assert table.dtype == np.uint32
    assert table.tolist() == [ABSENT, ABSENT, 5, 6]


# Everything at once.


@pytest.mark.parametrize("seed", range(200))
def test_no_order_of_events_ends_the_engine_or_leaves_anything(seed):
    chance = random.Random(seed)
    engine = FakeEngine(
        depth=chance.choice([1, 2]),
        recompute=chance.random() < 0.5,
        blocks=chance.choice([20, 60, 500]),
        reserve=chance.choice(get_args(Reserve)),
    )
    engine.chunk = chance.choice([7, 40, 1000])
    engine.agent.slow = chance.random() < 0.5
    kinds = [lambda i: decode_params(f"t{i}"), lambda i: prefill_params(f"t{i}"), lambda i: None]
    kinds += [lambda i: decode_params(f"cmpl-{i}-0-0123abcd")]  # as one of the request ids
    kinds += [lambda i: decode_params("same"), lambda i: {"do_remote_prefill": True}, lambda i: prefill_params(None)]
    for i in range(300):
        what = chance.random()
        if what < 0.25:
            sample = f"{chance.randrange(3)}_" if chance.random() < 0.3 else ""
            id = f"{sample}cmpl-{i}-{chance.randrange(2)}-0123abcd"
            engine.add(id, chance.randrange(1, 120), chance.choice(kinds)(i), cached=chance.randrange(100))
        elif what < 0.35 and engine.requests:
            engine.abort(chance.choice(list(engine.requests)))
        elif what < 0.5 and engine.agent.live:
            engine.agent.end(chance.choice(list(engine.agent.live)), chance.choice([None, None, "timeout"]))
        elif what < 0.55:
            running = [request.id for request in engine.requests.values() if request.status == "running"]
            if running:
                engine.preempt(chance.choice(running))
        elif what < 0.58 and engine.agent.awaited:
            engine.agent.end_await(chance.choice(list(engine.agent.awaited)))
        elif what < 0.62:
            engine.agent.full = not engine.agent.full
        else:
            engine.step()
    engine.agent.full = False
    for _ in range(2000):
        if not engine.has_work():
            break
        engine.step()
        for id in list(engine.agent.live):
            engine.agent.end(id)
        for awaited in engine.agent.awaited:
            engine.agent.end_await(awaited)
    engine.assert_nothing_left()
