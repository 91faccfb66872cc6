"""Control connections that are cut, held up, slow, or lead nowhere."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import (
    HOLD_S,
    LEASE_S,
    OTHER,
    PROMPT,
    SESSION_S,
    SHORT,
    SLACK_S,
    Cluster,
    Legs,
    cluster,
    control_port,
    peer_lines,
    troubles,
    wait_for_registrations,
)
from engine_process import text_of
from http_process import wait_until


@pytest.fixture
def linked() -> Iterator[Cluster]:
    with cluster(has_link=True) as made:
        yield made


# Shows C4, F1.
def test_links_cut_at_random_times_give_no_wrong_answer(linked):
    chance = random.Random(4)
    is_over = threading.Event()

    def cut_often() -> None:
        while not is_over.wait(chance.expovariate(1 / 0.03)):
            linked.link.cut()

    def lost() -> int:
        return linked.d.agent_metric("kvpush_sessions_lost_total", role="consumer")

    cutter = threading.Thread(target=cut_often)
    cutter.start()
    right = 0
    until = time.monotonic() + 20
    try:
        while right < 100 or lost() < 20:
            assert time.monotonic() < until, f"{lost()} sessions were lost, {right} answers were right"
            sent = [(tokens, linked.complete(tokens)) for tokens in SHORT]
            for tokens, one in sent:
                answer = one.finish()
                assert answer.status in (200, 502), answer.body
                if answer.status == 200:
                    assert answer.json["choices"][0]["text"] == linked.right(tokens)
                    right += 1
    finally:
        is_over.set()
        cutter.join()

    linked.expect_right(PROMPT, *SHORT)
    linked.expect_rest(LEASE_S + HOLD_S + SLACK_S)
    assert len(peer_lines(linked.d, linked.detour.directory_port)) >= lost()
    assert linked.d.agent_metric("kvpush_bad_messages_total", role="consumer") == 0
    assert linked.p.agent_metric("kvpush_bad_messages_total", role="producer") == 0


# Shows C4, F1.
def test_a_link_cut_while_prefill_runs_loses_nothing(linked):
    linked.p.debug("delay", milliseconds=500).finish()
    answer = linked.complete(PROMPT)
    wait_for_registrations(linked.p)
    linked.link.cut()

    assert text_of(answer) == linked.right(PROMPT)
    linked.expect_rest()
    assert troubles(linked.d) == {"sessions_lost consumer": 1, "revokes": 1}
    assert troubles(linked.p) == {"sessions_lost producer": 1}
    assert len(peer_lines(linked.d, linked.detour.directory_port)) == 1
    assert len(linked.p.logged("consumer decode", "is lost")) == 1


# Shows F1.
def test_a_request_whose_link_is_cut_three_times_fails(linked):
    linked.p.debug("delay", milliseconds=5000).finish()
    answer = linked.complete(PROMPT)
    for number in range(3):
        wait_for_registrations(linked.p, number + 1)
        linked.link.cut()

    failed = answer.finish()

    assert failed.status == 502 and "peer_lost" in failed.error["message"], failed.body
    assert troubles(linked.d) == {"sessions_lost consumer": 3, "revokes": 3, "receives peer_lost": 1}
    linked.expect_rest(5 + HOLD_S + SLACK_S)


# Shows F1.
def test_a_link_held_up_for_less_than_a_lease_loses_nothing(linked):
    linked.p.debug("delay", milliseconds=200).finish()
    answer = linked.complete(PROMPT)
    wait_for_registrations(linked.p)
    linked.link.hold()
    time.sleep(LEASE_S / 4)  # the time is what is tested
    linked.link.release()

    assert text_of(answer) == linked.right(PROMPT)
    linked.expect_rest()
    assert (troubles(linked.p), troubles(linked.d)) == ({}, {})


# Shows B9, F1.
def test_a_link_held_up_for_longer_than_a_lease_is_lost_on_both_sides(linked):
    linked.p.debug("delay", milliseconds=round((2 * LEASE_S + 1) * 1000)).finish()
    answer = linked.complete(PROMPT)
    wait_for_registrations(linked.p)
    linked.link.hold()
    wait_until(lambda: linked.p.agent_metric("kvpush_sessions_silent_total", role="producer") == 1, "prefill sees it")
    wait_until(lambda: linked.d.agent_metric("kvpush_sessions_silent_total", role="consumer") == 1, "decode sees it")
    wait_until(lambda: linked.d.agent_metric("kvpush_quarantined_requests") == 1, "decode waits for it no longer")
    linked.link.release()

    failed = answer.finish()

    assert failed.status == 502 and "peer_lost" in failed.error["message"], failed.body
    linked.expect_right(OTHER)
    linked.expect_rest(2 * LEASE_S + 1 + HOLD_S + SLACK_S)
    assert len(peer_lines(linked.d, linked.detour.directory_port)) == 1
    assert len(linked.p.logged("consumer decode", "silent for a lease")) == 1


def test_a_slow_link_is_only_slow(linked):
    linked.link.piece_bytes, linked.link.pause_s = 64, 0.0005

    linked.expect_right(PROMPT, OTHER, *SHORT)

    linked.expect_rest()
    assert (troubles(linked.p), troubles(linked.d)) == ({}, {})


# Shows C5, F1.
def test_prefill_that_is_not_there_yet_is_found_when_it_is(linked):
    transfer_id = "early"
    linked.p.kill()
    decode = linked.decode_leg(PROMPT, transfer_id, linked.p.directory_port)
    wait_until(lambda: linked.d.agent_metric("kvpush_resolves_failed_total") > 1, "decode has tried twice")
    linked.p.restart()
    linked.prefill_leg(PROMPT, transfer_id)

    assert text_of(decode) == linked.right(PROMPT)
    linked.expect_rest()
    seen = troubles(linked.d)
    assert seen.pop("resolves_failed") > 1
    assert set(seen) <= {"sessions_refused consumer"}
    assert len(peer_lines(linked.d, linked.p.directory_port)) == 1


# Shows C9, F1.
def test_peers_that_never_answer_cost_the_others_nothing():
    with cluster(prefill=2, has_link=True) as two, silent_port() as nobody:
        two.link.swallow()
        hole, well = two.prefill
        before = latencies(two, well)
        lost = [two.decode_leg(tokens, f"lost-{number}", hole_port) for number, tokens in enumerate(SHORT)
                for hole_port in (two.directory_of(hole), nobody)]  # fmt: skip
        mute = [socket.create_connection(("127.0.0.1", control_port(well))) for _ in range(50)]
        wait_until(lambda: two.d.requests()["receiving"] == len(lost), "decode waits for those that never answer")
        begin = time.monotonic()

        during = latencies(two, well)

        # A turn of the agent is bounded to about a millisecond of work, and those that do not answer make none.
        assert during < 2 * before + 0.02, f"p99 of {during * 1e3:.1f} ms instead of {before * 1e3:.1f} ms"
        assert [one.finish().status for one in lost] == [500] * len(lost)
        assert time.monotonic() - begin < SESSION_S + SLACK_S
        wait_until(lambda: troubles(well) == {"sessions_refused producer": len(mute)}, "prefill gives up the mute")
        two.expect_rest()
        seen = troubles(two.d)
        assert seen.pop("receives timeout") == len(lost)
        assert set(seen) == {"sessions_refused consumer", "resolves_failed"}
        for one in mute:
            one.close()


def latencies(two: Cluster, p) -> float:
    """The 99th percentile of short requests one after the other."""
    took = []
    for number in range(100):
        tokens = SHORT[number % len(SHORT)]
        begin = time.monotonic()
        legs: Legs = two.legs(tokens, p)
        text = text_of(legs.decode)
        took.append(time.monotonic() - begin)
        assert text == two.right(tokens)
    return sorted(took)[98]


@contextmanager
def silent_port() -> Iterator[int]:
    """Of an address that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        yield server.getsockname()[1]
