"""More than fits: storms of aborts, and pools that hold little more than one request."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import HOLD_S, LEASE_S, SLACK_S, cluster, prompt, troubles
from engine_process import text_of
from http_process import wait_until

SHORT = [prompt(100 + 37 * i, seed=3 + i) for i in range(8)]
AT_ONCE = 16


# Shows B8.
def test_prefill_holds_nothing_milliseconds_after_the_last_write_without_another_request():
    with cluster() as pair:
        pair.expect_right(*SHORT)
        pair.expect_rest()
        pair.d.debug("delay", milliseconds=3000).finish()
        pair.complete(prompt(777))

        wait_until(lambda: pair.d.prompt_tokens("received") > sum(map(len, SHORT)), "it is delivered")
        wait_until(pair.p.is_at_rest, "prefill holds nothing", within=0.5, seen=pair.p.requests)

        ended = pair.p.ended_transfers()[-1]["timeline_seconds"]
        assert ended["completed"] - ended["last_post"] < 0.1


# Shows E1.
def test_goodput_is_back_after_a_storm_of_aborts():
    chance = random.Random(1)
    # What an abort leaves at prefill is kept for a lease, not for as long as what nobody has asked for yet.
    with cluster("--step-ms", "1", decode=2, hold_s=30) as three, ThreadPoolExecutor(AT_ONCE) as pool:

        def ask(number: int) -> None:
            tokens = SHORT[number % len(SHORT)]
            assert text_of(three.complete(tokens)) == three.right(tokens)

        def ask_and_perhaps_hang_up(patience_s: float | None) -> None:
            tokens = chance.choice(SHORT)
            sent = three.complete(tokens)
            if patience_s is None:
                assert text_of(sent) == three.right(tokens)
            else:
                sent.wait_for_answer(patience_s)
                sent.go_away()

        def seconds_for_requests() -> float:
            begin = time.monotonic()
            list(pool.map(ask, range(100)))
            return time.monotonic() - begin

        three.expect_right(*SHORT)
        before = seconds_for_requests()
        whole_request = before * AT_ONCE / 100
        patience = [chance.uniform(0, whole_request) if chance.random() < 0.9 else None for _ in range(600)]
        list(pool.map(ask_and_perhaps_hang_up, patience))

        after = seconds_for_requests()

        assert after < 3 * before + 0.5, f"{after:.2f} s instead of {before:.2f} s"
        three.expect_rest(LEASE_S + SLACK_S)
        gone = sum(d.metric("kvpush_engine_requests_total", outcome="client_gone") for d in three.decode)
        assert gone > 100, "the storm hit few requests"
        for engine in (three.p, *three.decode):
            assert engine.metric("kvpush_engine_wrong_kv_total") == 0
            aborts = {"revokes", "receives aborted", "sends aborted", "sends timeout"}
            assert set(troubles(engine)) <= aborts | {"unwanted producer", "unwanted consumer"}


# Pools for 1.1 requests.
TIGHT_BLOCKS = 11


# Shows E9.
def test_pools_for_one_request_taken_in_opposite_order_serve_both():
    one, two = prompt(10 * 16, seed=1), prompt(10 * 16, seed=2)
    with cluster(blocks=TIGHT_BLOCKS) as pair:
        right = [pair.right(one), pair.right(two)]
        begin = time.monotonic()
        decode_two = pair.decode_leg(two, "two", pair.p.directory_port)
        wait_until(lambda: not pair.d.is_at_rest(), "decode has taken the second")
        pair.prefill_leg(one, "one").finish()
        prefill_two = pair.prefill_leg(two, "two")
        decode_one = pair.decode_leg(one, "one", pair.p.directory_port)

        assert [text_of(decode_one), text_of(decode_two)] == right

        assert prefill_two.finish().status == 200
        assert time.monotonic() - begin < HOLD_S + SLACK_S
        pair.expect_rest()
        pair.expect_right(one, two)


# Shows E9.
def test_many_requests_to_pools_for_one_are_all_served():
    prompts = [prompt(9 * 16 + i, seed=i) for i in range(8)]
    with cluster(blocks=TIGHT_BLOCKS) as pair:
        right = [pair.right(tokens) for tokens in prompts]
        begin = time.monotonic()
        sent = [pair.complete(tokens) for tokens in prompts]

        assert [text_of(one) for one in sent] == right
        assert time.monotonic() - begin < HOLD_S + SLACK_S
        pair.expect_rest()
        pair.expect_right(*prompts[:1])
