"""Engines that are killed and there again at the same address, that share a name, or cannot start."""

from __future__ import annotations

import random
import socket
import subprocess
import threading

import pytest
from cluster import HOLD_S, LEASE_S, SHORT, SLACK_S, cluster, troubles
from engine_process import engine_binary, text_of

RESTARTS = 50


# Shows C3, F1.
def test_engines_restarted_often_under_load_serve_the_first_request():
    chance = random.Random(3)
    with cluster(prefill=2, decode=2) as four:
        is_over = threading.Event()
        wrong: list[str] = []
        right = [0]
        expected = [four.right(tokens) for tokens in SHORT]

        def load() -> None:
            while not is_over.is_set():
                for tokens, text in zip(SHORT, expected, strict=True):
                    answer = four.complete(tokens).finish()
                    if answer.status == 200 and answer.json["choices"][0]["text"] == text:
                        right[0] += 1
                    elif answer.status != 502:
                        wrong.append(f"{answer.status} {answer.body!r}")

        loader = threading.Thread(target=load)
        loader.start()
        try:
            for _ in range(RESTARTS):
                engine = chance.choice([*four.prefill, *four.decode])
                engine.restart()
                p = engine if engine in four.prefill else four.prefill[0]
                d = engine if engine in four.decode else four.decode[0]
                tokens = chance.choice(SHORT)
                assert text_of(four.legs(tokens, p, d).decode) == four.right(tokens)
        finally:
            is_over.set()
            loader.join()

        assert wrong == []
        assert right[0] > RESTARTS
        four.expect_right(*SHORT)
        four.expect_rest(LEASE_S + HOLD_S + SLACK_S)
        for engine in (*four.prefill, *four.decode):
            assert engine.process.poll() is None
            assert engine.agent_metric("kvpush_bad_messages_total", role="producer") == 0
            assert engine.agent_metric("kvpush_bad_messages_total", role="consumer") == 0


# Shows C11.
def test_engines_of_one_name_work_side_by_side():
    with cluster("--engine-id", "twin", prefill=2, decode=2) as four:
        pairs = [(p, d) for p in four.prefill for d in four.decode]
        for _ in range(4):
            legs = [(tokens, four.legs(tokens, p, d)) for tokens, (p, d) in zip(SHORT, pairs * 2, strict=True)]
            for tokens, one in legs:
                assert text_of(one.decode) == four.right(tokens)

        four.expect_rest()
        for engine in (*four.prefill, *four.decode):
            assert troubles(engine) == {}
        for p in four.prefill:
            assert p.agent_metric("kvpush_sessions_started_total", role="producer") == len(four.decode)


# Shows C6.
@pytest.mark.parametrize("flag", ["--listen", "--directory"])
def test_a_port_that_is_taken_ends_the_engine_with_a_sentence(flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        expect_refusal(flag, f"127.0.0.1:{taken.getsockname()[1]}", "taken")


# Shows C6.
@pytest.mark.parametrize("flag", ["--listen", "--directory"])
def test_a_host_of_another_machine_ends_the_engine_with_a_sentence(flag):
    expect_refusal(flag, "192.0.2.1:0", "listen", "--allow-unauthenticated")  # an address kept for documents


def expect_refusal(flag: str, address: str, says: str, *more: str) -> None:
    places = {"--listen": "127.0.0.1:0", "--directory": "127.0.0.1:0"} | {flag: address}
    command = [engine_binary(), *(part for place in places.items() for part in place), *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("kvpush-engine: ")]
    assert (ended.returncode, len(errors)) == (2, 1), ended.stderr
    assert says in errors[0]
