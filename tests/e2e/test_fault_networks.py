"""The way of the data leads nowhere while control goes on, over UCX in a network of the test's own."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from cluster import (
    DRAIN_S,
    HOLD_S,
    MEETING_S,
    OTHER,
    PROMPT,
    SESSIONS_OF_REQUEST,
    SHORT,
    SLACK_S,
    Cluster,
    prompt,
    troubles,
    ucx_pair,
    wait_for_writes,
)
from engine_process import text_of
from http_process import wait_until
from network import Network, NoNetwork

# TCP repeats what was lost after 0.2 s, then after twice as long each time: so much later than the way is back.
REPEAT_S = 2.0
# 16 MiB of KV for the longest prompt here, so that a cut can come before they are written.
LARGE = ("--layers", "8", "--row-bytes", "1024", "--step-tokens", "4096")


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        made = Network()
    except NoNetwork as why:
        pytest.skip(str(why))
    with made:
        yield made


@pytest.fixture
def pair(network) -> Iterator[Cluster]:
    with ucx_pair(*LARGE, network=network) as made:
        yield made


# Shows B12, F1.
def test_a_request_aborted_while_its_data_is_stuck_gives_its_blocks_back_within_twice_the_drain_limit(pair, network):
    pair.expect_right(OTHER)  # both ways are there
    network.lose_data()
    legs = pair.legs(PROMPT)
    wait_for_writes(pair.p)

    legs.decode.go_away()

    pair.d.wait_for_rest(within=2 * DRAIN_S + SLACK_S)
    assert len(pair.p.logged("consumer decode", "writes to it did not end within drain_limit (1 s)")) == 1
    assert troubles(pair.d) == {"revokes": 1, "fences": 1, "sessions_lost consumer": 1, "receives aborted": 1}
    seen = troubles(pair.p)
    assert seen.pop("sessions_lost producer") == 1
    assert set(seen) <= {"writes_failed"}, "what was on its way has been cut"
    network.find_data()
    pair.expect_right(PROMPT, OTHER)
    pair.expect_rest(REPEAT_S + HOLD_S + SLACK_S)


# Shows B12, C4.
def test_data_that_is_cut_while_it_is_written_arrives_right_when_the_way_is_back(pair, network):
    tokens = [prompt(512, seed=20 + i) for i in range(4)]
    right = [pair.right(one) for one in tokens]
    pair.expect_right(*SHORT)
    chance = random.Random(12)

    for one, expected in zip(tokens, right, strict=True):
        answer = pair.legs(one).decode
        wait_until(
            lambda answer=answer: pair.p.agent_metric("kvpush_writes_in_flight") > 0 or answer.is_answered(),
            "prefill writes",
        )
        network.lose_data()
        time.sleep(chance.uniform(0.05, 0.3))  # the time is what is tested
        network.find_data()
        found_at = time.monotonic()
        assert text_of(answer) == expected
        assert time.monotonic() - found_at < REPEAT_S + SLACK_S

    pair.expect_right(*SHORT)
    pair.expect_rest(REPEAT_S + HOLD_S + SLACK_S)
    assert (troubles(pair.p), troubles(pair.d)) == ({}, {})


# Shows B12.
def test_engines_whose_data_never_finds_its_way_give_up_in_time_and_find_it_when_it_is_there(pair, network):
    network.lose_data()
    asked_at = time.monotonic()
    legs = pair.legs(PROMPT)

    assert legs.decode.finish().status == 500
    assert time.monotonic() - asked_at < SESSIONS_OF_REQUEST * MEETING_S + SLACK_S
    pair.expect_rest()

    network.find_data()
    pair.expect_right(PROMPT, OTHER)
