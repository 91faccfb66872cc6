"""Engines that are killed, stopped and told to end, at each moment of a transfer that makes a difference."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cluster import (
    DEATH_S,
    DRAIN_S,
    HOLD_S,
    LEASE_S,
    OTHER,
    PROMPT,
    SLACK_S,
    Cluster,
    Legs,
    cluster,
    peer_lines,
    prompt,
    troubles,
    ucx_pair,
    wait_for_registrations,
    wait_for_writes,
)
from engine_process import EngineProcess, text_of
from http_process import Sent, wait_until

FOREVER_MS = 60000
# What decode counts of a prefill process that died: it looks once whether prefill is back, which is a line of its own.
FENCED_AND_NOT_BACK = {
    "sessions_lost consumer": 1,
    "fences": 1,
    "resolves_failed": 1,
    "sessions_refused consumer": 1,
    "receives peer_lost": 1,
}
LONGER_MS = round((LEASE_S + 1) * 1000)  # than a lease, with what it takes to see that it is over
DRAIN_MS = 300  # of an engine that is told to end
STOP_S = 2.0  # and what its agent has after that
LONG_LEASE_S = 10.0
NOT_COME = "the KV of its prompt did not come: "


@pytest.fixture
def pair() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def wait_for_live(engine: EngineProcess, outcome: str) -> None:
    wait_until(
        lambda: outcome in [one["outcome"] for one in engine.live_transfers()],
        f"a transfer of {engine.role} is {outcome}",
        seen=engine.live_transfers,
    )


def wait_for_writing(d: EngineProcess, answer: Sent) -> None:
    """Or until it is too late for that."""
    wait_until(
        lambda: "writing" in [one["outcome"] for one in d.live_transfers()] or answer.is_answered(), "it is written"
    )


def let_meet(pair: Cluster) -> None:
    """UCX 1.13 ends a process whose peer goes while the two still connect (docs/transports.md)."""
    pair.expect_right(OTHER)


def legs_stuck_at_decode(pair: Cluster) -> Legs:
    """Over UCX: decode stands still, and prefill writes to it."""
    let_meet(pair)
    pair.p.debug("delay", milliseconds=300).finish()
    legs = pair.legs(PROMPT)
    wait_for_registrations(pair.p, 2)
    pair.d.stop()
    wait_for_writes(pair.p)
    return legs


# Prefill is killed


# Shows B2, F1.
def test_prefill_killed_after_registration_fails_the_request_within_a_second(pair):
    pair.p.debug("delay", milliseconds=FOREVER_MS).finish()
    legs = pair.legs(PROMPT)
    wait_for_registrations(pair.p)
    pair.p.kill()
    died_at = time.monotonic()

    answer = legs.decode.finish()

    assert time.monotonic() - died_at < DEATH_S
    assert (answer.status, answer.error["message"]) == (500, NOT_COME + "peer_lost")
    pair.expect_rest()
    assert troubles(pair.d) == {"sessions_lost consumer": 1, "receives peer_lost": 1}
    assert len(peer_lines(pair.d, pair.p.directory_port)) == 1


# Shows B2, F1.
def test_prefill_killed_while_it_writes_over_shared_memory_leaves_no_wrong_byte():
    # 64 MiB of KV are many slices of process_vm_writev, but nothing holds them up: the moment is tried for again.
    with cluster("--layers", "16", "--row-bytes", "2048", "--step-tokens", "4096", prefill=2) as two:
        tokens = prompt(512)
        right = two.right(tokens)
        answer, kills = None, 0
        while answer is None or answer.status == 200:
            assert kills < 20, "never killed in the middle of writing"
            legs = two.legs(tokens, two.p)
            wait_for_writing(two.d, legs.decode)
            two.p.kill()
            kills += 1
            answer = legs.decode.finish()
            two.expect_rest()
            if answer.status == 200:
                assert answer.json["choices"][0]["text"] == right
                two.p.restart()

        assert (answer.status, answer.error["message"]) == (500, NOT_COME + "peer_lost")
        assert troubles(two.d) == {"sessions_lost consumer": kills, "receives peer_lost": 1}
        assert text_of(two.legs(tokens, two.prefill[1]).decode) == right
        two.expect_rest()


# Shows B2, F1.
def test_prefill_killed_while_it_writes_over_a_network_fails_the_request():
    with ucx_pair() as pair:
        legs = legs_stuck_at_decode(pair)
        pair.p.kill()
        pair.d.go_on()
        answer = legs.decode.finish()

        assert (answer.status, answer.error["message"]) == (500, NOT_COME + "peer_lost")
        pair.expect_rest()
        assert troubles(pair.d) == FENCED_AND_NOT_BACK
        assert len(peer_lines(pair.d, pair.p.directory_port)) == 2


# Shows B2, F1.
def test_prefill_killed_after_delivery_changes_nothing(pair):
    pair.expect_right(OTHER)
    pair.d.debug("delay", milliseconds=300).finish()
    legs = pair.legs(PROMPT)
    wait_until(lambda: pair.d.requests()["receiving"] == 0 and not any(pair.p.requests().values()), "it is delivered")
    pair.p.kill()

    assert text_of(legs.decode) == pair.right(PROMPT)
    pair.expect_rest()
    assert troubles(pair.d) == {"sessions_lost consumer": 1}
    assert len(peer_lines(pair.d, pair.p.directory_port)) == 1


# Decode is killed


# Shows B9, F1.
def test_decode_killed_after_registration_leaves_prefill_with_nothing(pair):
    pair.p.debug("delay", milliseconds=200).finish()
    answer = pair.complete(PROMPT)
    wait_for_registrations(pair.p)
    pair.d.kill()

    assert answer.finish().status == 502
    pair.expect_rest()
    assert troubles(pair.p) == {"sessions_lost producer": 1}
    assert len(pair.p.logged("consumer decode", "lost")) == 1
    pair.d.restart()
    pair.expect_right(PROMPT)


# Shows A5, B9, F1.
def test_decode_killed_while_it_is_written_to_gets_nothing_of_it_when_it_is_there_again():
    with ucx_pair() as pair:
        legs_stuck_at_decode(pair)
        pair.d.restart()

        pair.expect_rest(LEASE_S + DRAIN_S + SLACK_S)
        assert troubles(pair.d) == {}
        pair.expect_right(PROMPT, OTHER)
        seen = troubles(pair.p)
        assert seen.pop("sessions_lost producer") == 1
        seen.pop("writes_failed", None)  # as many as the transport could not end
        assert seen == {"sends timeout": 1}


# Shows B9, F1.
def test_decode_killed_after_delivery_leaves_prefill_with_nothing(pair):
    pair.d.debug("delay", milliseconds=FOREVER_MS).finish()
    pair.legs(PROMPT)
    wait_until(lambda: pair.p.agent_metric("kvpush_sends_total", outcome="delivered") == 1, "it is delivered")
    pair.d.kill()

    pair.expect_rest()
    wait_until(lambda: troubles(pair.p) == {"sessions_lost producer": 1}, "the session is lost")
    assert len(pair.p.logged("consumer decode", "lost")) == 1


# One of them stands still


# Shows F1.
@pytest.mark.parametrize("side", ["p", "d"])
def test_a_side_that_stands_still_for_less_than_a_lease_loses_nothing(pair, side):
    pair.p.debug("delay", milliseconds=200).finish()
    legs = pair.legs(PROMPT)
    wait_for_registrations(pair.p)
    still = getattr(pair, side)
    still.stop()
    time.sleep(LEASE_S / 4)  # the time is what is tested
    still.go_on()

    assert text_of(legs.decode) == pair.right(PROMPT)
    pair.expect_rest()
    assert (troubles(pair.p), troubles(pair.d)) == ({}, {})


# Shows F1.
def test_decode_that_stands_still_for_longer_than_a_lease_comes_back_for_its_request(pair):
    pair.p.debug("delay", milliseconds=LONGER_MS).finish()
    answer = pair.complete(PROMPT)
    wait_for_registrations(pair.p)
    pair.d.stop()
    wait_until(lambda: troubles(pair.p) == {"sessions_lost producer": 1, "sessions_silent producer": 1}, "it is lost")
    assert len(pair.p.logged("consumer decode", "has been silent for a lease")) == 1
    pair.d.go_on()

    assert text_of(answer) == pair.right(PROMPT)
    pair.expect_rest()
    assert troubles(pair.d) == {"sessions_lost consumer": 1, "revokes": 1}


# Shows A7, F1.
def test_blocks_that_stopped_prefill_may_write_to_are_withheld_until_it_goes_on(pair):
    pair.p.debug("delay", milliseconds=LONGER_MS).finish()
    answer = pair.complete(PROMPT)
    wait_for_registrations(pair.p)
    pair.p.stop()
    wait_for_live(pair.d, "quarantined")
    assert pair.d.agent_metric("kvpush_quarantined_requests") == 1
    assert pair.d.free_blocks() < pair.d.blocks
    assert len(peer_lines(pair.d, pair.p.directory_port)) == 1
    pair.p.go_on()

    failed = answer.finish()
    assert failed.status == 502 and "peer_lost" in failed.error["message"], failed.body
    pair.expect_right(OTHER)
    pair.expect_rest(LONGER_MS / 1000 + HOLD_S + SLACK_S)
    seen = troubles(pair.d)
    assert seen["sessions_silent consumer"] == 1 and seen["receives peer_lost"] == 1


# Shows B2, F1.
def test_prefill_that_stands_still_is_fenced_where_the_transport_can():
    with ucx_pair() as pair:
        let_meet(pair)
        pair.p.debug("delay", milliseconds=LONGER_MS).finish()
        answer = pair.complete(PROMPT)
        wait_for_registrations(pair.p, 2)
        pair.p.stop()
        stopped_at = time.monotonic()

        failed = answer.finish()

        assert time.monotonic() - stopped_at < LEASE_S + DRAIN_S + SLACK_S
        assert failed.status == 502 and "peer_lost" in failed.error["message"], failed.body
        pair.d.wait_for_rest()
        expected = {"sessions_lost consumer": 1, "sessions_silent consumer": 1, "fences": 1, "receives peer_lost": 1}
        assert troubles(pair.d) == expected
        assert len(peer_lines(pair.d, pair.p.directory_port)) == 1
        pair.p.go_on()
        pair.expect_right(OTHER)
        pair.expect_rest(LONGER_MS / 1000 + HOLD_S + SLACK_S)


# One of them is told to end


# Shows C8.
def test_prefill_told_to_end_still_sends_what_it_holds(pair):
    transfer_id = "held"
    pair.prefill_leg(PROMPT, transfer_id).finish()
    pair.p.terminate()

    answer = pair.decode_leg(PROMPT, transfer_id, pair.p.directory_port)

    assert text_of(answer) == pair.right(PROMPT)
    assert pair.p.wait() == 0
    pair.expect_rest()


# Shows C8.
def test_decode_told_to_end_still_answers(pair):
    pair.p.debug("delay", milliseconds=300).finish()
    answer = pair.complete(PROMPT)
    wait_for_registrations(pair.p)
    pair.d.terminate()

    assert text_of(answer) == pair.right(PROMPT)
    assert pair.d.wait() == 0
    pair.expect_rest()


# Shows C8.
@pytest.mark.parametrize("side", ["p", "d"])
def test_a_side_told_twice_to_end_does_so_at_once_and_the_other_goes_on(pair, side):
    pair.p.debug("delay", milliseconds=500).finish()
    answer = pair.complete(PROMPT)
    wait_for_registrations(pair.p)
    ending = getattr(pair, side)
    ending.terminate()
    wait_until(lambda: refuses_connections(ending), "it has heard the first signal")
    ending.terminate()
    told_at = time.monotonic()

    ending.wait()
    assert answer.finish().status == 502
    assert time.monotonic() - told_at < DEATH_S
    ending.restart()
    pair.expect_right(PROMPT)
    pair.expect_rest()


# Shows C8, F1.
def test_prefill_told_to_end_gives_up_writes_that_never_end_within_its_limit():
    # A lease that outlasts the limit: nothing but the limit ends the writes.
    with ucx_pair("--drain-ms", str(DRAIN_MS), lease_s=LONG_LEASE_S) as pair:
        legs = legs_stuck_at_decode(pair)
        pair.p.terminate()
        told_at = time.monotonic()

        assert pair.p.wait() == 1, "it had to fail a transfer"
        assert time.monotonic() - told_at < DRAIN_MS / 1000 + STOP_S + SLACK_S
        pair.d.go_on()
        answer = legs.decode.finish()
        assert (answer.status, answer.error["message"]) == (500, NOT_COME + "peer_lost")
        pair.d.wait_for_rest()
        assert troubles(pair.d) == FENCED_AND_NOT_BACK
        pair.p.restart()
        pair.expect_right(PROMPT)
        pair.expect_rest()


# Shows C8, F1.
def test_decode_told_to_end_gives_up_blocks_that_may_be_written_to_within_its_limit():
    with cluster("--drain-ms", str(DRAIN_MS)) as pair:
        pair.p.debug("delay", milliseconds=LONGER_MS).finish()
        answer = pair.complete(PROMPT)
        wait_for_registrations(pair.p)
        pair.p.stop()
        pair.d.terminate()
        told_at = time.monotonic()

        assert pair.d.wait() == 1, "it had to fail a transfer"
        assert time.monotonic() - told_at < DRAIN_MS / 1000 + STOP_S + SLACK_S
        pair.p.go_on()
        assert answer.finish().status == 502
        pair.expect_rest(LONGER_MS / 1000 + HOLD_S + SLACK_S)
        assert troubles(pair.p)["sessions_lost producer"] == 1
        pair.d.restart()
        pair.expect_right(PROMPT)
        pair.expect_rest()


def refuses_connections(engine: EngineProcess) -> bool:
    try:
        engine.get("/health")
    except ConnectionError:  # also one that waited to be accepted when the engine stopped to listen
        return True
    return False
