"""What the scheduler half tells of each leg: when it got blocks, when its KV was there, when it went on."""

from __future__ import annotations

import json
import urllib.request

import pytest
from engine import FakeEngine, decode_params, prefill_params

from kvpush import DirectoryServer
from kvpush.types import Scheduled


def test_a_prefill_leg_is_told_when_its_prompt_is_computed():
    engine = FakeEngine()
    engine.add("p", 40, prefill_params("t"))
    engine.run(2)

    (told,) = engine.told
    assert told == Scheduled("producer", "t", "p", 40, told.arrived, admitted=told.admitted, computed=told.computed)
    assert told.arrived < told.admitted < told.computed

    engine.agent.end("p")
    engine.run()
    assert len(engine.told) == 1, "each leg is told once"


def test_a_decode_leg_is_told_when_it_goes_on_with_received_kv():
    engine = FakeEngine()
    engine.add("d", 40, decode_params("t"), output=5)
    engine.run(3)
    assert engine.told == []

    engine.agent.end("d")
    engine.run(2)
    assert engine.requests["d"].generated < 5, "the answer is not complete yet"

    (told,) = engine.told
    assert told[:7] == ("consumer", "t", "d", 40, told.arrived, "10.0.0.2", 4712)
    assert told.computed is None
    assert told.arrived < told.admitted < told.reported < told.first_step
    engine.run()
    assert len(engine.told) == 1


def test_legs_that_are_aborted_are_told_as_far_as_they_came():
    engine = FakeEngine()
    engine.add("d", 40, decode_params("t1"))
    engine.step()
    engine.abort("d")
    engine.add("p", 40, prefill_params("t2"))
    engine.abort("p")
    engine.add("early", 40, decode_params("t3"))
    engine.abort("early")
    engine.run()

    decode, prefill, early = engine.told
    assert (decode.transfer_id, decode.reported, decode.first_step) == ("t1", None, None)
    assert decode.admitted is not None
    assert (prefill.transfer_id, prefill.admitted, prefill.computed) == ("t2", None, None)
    assert (early.transfer_id, early.admitted, early.first_step) == ("t3", None, None)
    engine.assert_nothing_left()


def test_what_is_not_transferred_is_not_told():
    engine = FakeEngine()
    engine.add("plain", 40)
    engine.add("cached", 33, decode_params("t1"), cached=32)
    engine.add("refused", 40, decode_params("t2", remote_port="x"))
    engine.run()

    assert engine.told == []


def test_the_directory_shows_what_it_is_told():
    directory = DirectoryServer.open("127.0.0.1", 0)
    try:
        directory.add(Scheduled("consumer", "t", "d", 40, 100.0, "10.0.0.2", 4712, admitted=100.25, first_step=101.5))
        with urllib.request.urlopen(f"http://127.0.0.1:{directory.port}/kvpush/v1/transfers", timeout=10) as answer:
            (record,) = json.load(answer)["engine"]
    finally:
        directory.stop()

    assert (record["role"], record["peer"], record["tokens"]) == ("consumer", "10.0.0.2:4712", 40)
    assert record["start_boot_seconds"] == 100.0
    assert record["timeline_seconds"] == {"arrived": 0.0, "admitted": 0.25, "first_step": 1.5}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (Scheduled("neither", "t", "d", 40, 100.0), ValueError),
        (Scheduled("producer", "t", "d", 40, "noon"), TypeError),
        (Scheduled("producer", "t", "d", -1, 100.0), TypeError),
    ],
)
def test_the_directory_refuses_what_is_no_record(wrong, error):
    directory = DirectoryServer.open("127.0.0.1", 0)
    try:
        with pytest.raises(error):
            directory.add(wrong)
    finally:
        directory.stop()
