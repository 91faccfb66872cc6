"""kv_transfer_params and the ids of requests: every value is a client's."""

from __future__ import annotations

import pytest

from kvpush.vllm.params import (
    BadParams,
    DecodeLeg,
    PrefillLeg,
    first_sample_of,
    is_later_turn,
    parse,
    prompt_of,
    transfer_of,
    wants_remote_prefill,
)

GOOD = {"do_remote_prefill": True, "transfer_id": "t", "remote_host": "h", "remote_port": 1}


def test_requests_without_transfer_have_no_leg():
    for params in (None, {}, {"do_remote_decode": False, "do_remote_prefill": None}, {"transfer_id": "t"}):
        assert parse(params) is None


def test_both_legs_are_read():
    assert parse({"do_remote_decode": True, "transfer_id": "t"}) == PrefillLeg("t")
    assert parse({"do_remote_decode": True, "transfer_id": None}) == PrefillLeg(None)
    assert parse(GOOD) == DecodeLeg("t", "h", 1)


def test_fields_of_routers_made_for_other_connectors_are_accepted():
    more = {"remote_block_ids": [[1, 2]], "remote_engine_id": None, "tp_size": 1, "do_remote_decode": False}
    assert parse(GOOD | more) == DecodeLeg("t", "h", 1)
    prefill = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None, "remote_port": None}
    assert parse(prefill) == PrefillLeg(None)


@pytest.mark.parametrize(
    "change",
    [
        {"do_remote_decode": True},
        {"do_remote_prefill": "true"},
        {"do_remote_prefill": 1},
        {"transfer_id": None},
        {"transfer_id": ""},
        {"transfer_id": 7},
        {"transfer_id": "x" * 129},
        {"transfer_id": "é" * 65},
        {"transfer_id": "a\nb"},
        {"transfer_id": "\ud800"},
        {"remote_host": None},
        {"remote_host": ["h"]},
        {"remote_host": "x" * 254},
        {"remote_port": None},
        {"remote_port": True},
        {"remote_port": "80"},
        {"remote_port": 80.0},
        {"remote_port": 0},
        {"remote_port": 65536},
        {"remote_port": 10**30},
    ],
)
def test_bad_values_are_refused_with_a_reason(change):
    with pytest.raises(BadParams, match=next(iter(change))):
        parse(GOOD | change)
    assert wants_remote_prefill(GOOD | change)


@pytest.mark.parametrize("params", [7, 1.5, "x", True, [GOOD], [["do_remote_prefill", True]]])
def test_what_is_no_object_is_refused(params):
    with pytest.raises(BadParams):
        parse(params)
    assert not wants_remote_prefill(params)


@pytest.mark.parametrize(
    ("request_id", "call", "index"),
    [
        ("cmpl-abc-0-0123abcd", "cmpl-abc", 0),
        ("cmpl-abc-12-01234567", "cmpl-abc", 12),
        ("cmpl-a-5-b-7-3-deadbeef", "cmpl-a-5-b-7", 3),
        ("cmpl-abc-4", "cmpl-abc", 4),
        ("2_cmpl-abc-1-0123abcd", "cmpl-abc", 1),
        ("chatcmpl-abc-3-0123abcd", "chatcmpl-abc-3-0123abcd", 0),
        ("cmpl-chatcmpl-x_3-0-0123abcd", "cmpl-chatcmpl-x_3", 0),
        ("cmpl-abc", "cmpl-abc", 0),
        ("", "", 0),
        ("7", "7", 0),
    ],
)
def test_the_prompt_of_a_request_is_in_its_id(request_id, call, index):
    assert prompt_of(request_id) == (call, index)


@pytest.mark.parametrize(
    ("request_id", "index"),
    [
        ("chatcmpl-abc_0-0123abcd", 0),
        ("chatcmpl-abc_12-01234567", 12),
        ("chatcmpl-abc_12-deadbeef", 12),
        ("chatcmpl-a_7_2-0123abcd", 2),
        ("chatcmpl-abc_4", 4),
        ("1_chatcmpl-abc_4-0123abcd", 4),
        ("chatcmpl-abc-0123abcd", 0),
        ("chatcmpl-a_3-b-0123abcd", 0),
        ("chatcmpl-a_3-deadbeef-0123abcd", 0),
        ("chatcmpl-a_12345678-0123abcd", 0),
        ("generate-tokens-abc_3-0123abcd", 0),
    ],
)
def test_the_conversation_of_a_batch_is_in_its_id(request_id, index):
    assert prompt_of(request_id) == (request_id, index)


@pytest.mark.parametrize(
    ("request_id", "is_later"),
    [
        ("resp_abc_0-0123abcd", False),
        ("resp_abc_1-0123abcd", True),
        ("resp_abc_12-01234567", True),
        ("resp_a_1_0-0123abcd", False),
        ("resp_a_1", False),
        ("chatcmpl-abc_1-0123abcd", False),
        ("generate-tokens-abc_1-0123abcd", False),
        ("abc_1-0123abcd", False),
    ],
)
def test_turns_after_a_tool_are_known(request_id, is_later):
    assert is_later_turn(request_id) == is_later


def test_later_samples_know_the_first():
    assert first_sample_of("2_cmpl-x-0-0123abcd") == "0_cmpl-x-0-0123abcd"
    assert first_sample_of("0_cmpl-x-0-0123abcd") is None
    assert first_sample_of("cmpl-x-0-0123abcd") is None


def test_a_transfer_is_named_by_call_and_prompt():
    assert transfer_of("t", "cmpl-x-0-0123abcd") == "t"
    assert transfer_of("t", "cmpl-x-3-0123abcd") == "t#3"
    assert transfer_of("t", "chatcmpl-x_3-0123abcd") == "t#3"
    with pytest.raises(BadParams):
        transfer_of("x" * 127, "cmpl-x-3-0123abcd")
