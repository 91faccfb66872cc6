"""What the router remembers of each request: when it sent the legs, when they answered."""

from __future__ import annotations

import time

import pytest
from fake_server import FakeServer
from router_process import RouterProcess

DIRECTORY = "10.1.2.3:9100"
COMPLETION = {"model": "m", "prompt": "Once upon", "max_tokens": 7}


@pytest.fixture
def servers():
    pair = FakeServer(), FakeServer()
    yield pair
    for server in pair:
        server.stop()


@pytest.fixture
def router(servers):
    prefill, decode = servers
    with RouterProcess([f"{prefill.address}={DIRECTORY}"], [decode.address]) as process:
        yield process


def test_a_request_is_live_until_its_answer_has_gone_out(servers, router):
    prefill, decode = servers
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    sent = router.post("/v1/completions", COMPLETION, {"X-Request-Id": "mine"})
    p_leg, d_leg = prefill.next(), decode.next()

    (live,) = router.get("/kvpush/v1/transfers").json["live"]
    assert live["outcome"] == "in_flight"
    assert set(live["timeline_seconds"]) == {"arrived", "legs_sent"}
    p_leg.answer({})
    d_leg.answer({})
    sent.finish()

    for _ in range(1000):  # each turn is a whole HTTP exchange; the end of a leg may follow the answer
        transfers = router.get("/kvpush/v1/transfers").json
        if transfers["ended"]:
            break
    assert transfers["live"] == []
    (ended,) = transfers["ended"]
    assert ended["transfer_id"] == p_leg.transfer["transfer_id"]
    assert (ended["request"], ended["role"], ended["outcome"]) == ("mine", "router", "ok")
    assert ended["peer"] == f"{DIRECTORY} {decode.address}"
    assert "bytes" not in ended
    points = ended["timeline_seconds"]
    assert set(points) == {"arrived", "legs_sent", "prefill_answered", "first_byte", "answered"}
    assert 0 == points["arrived"] <= points["legs_sent"] <= points["first_byte"] <= points["answered"]
    assert before <= ended["start_boot_seconds"] <= transfers["now_boot_seconds"]
    assert abs(transfers["now_unix_seconds"] - time.time()) < 60


def test_a_request_that_failed_says_how(servers, router):
    prefill, decode = servers
    sent = router.post("/v1/completions", COMPLETION)
    decode.next()
    prefill.next().answer({"error": "no"}, status=500)
    assert sent.finish().status == 502

    (ended,) = router.get("/kvpush/v1/transfers").json["ended"]
    assert ended["outcome"] == "prefill_failed"
    assert set(ended["timeline_seconds"]) == {"arrived", "legs_sent", "answered"}
