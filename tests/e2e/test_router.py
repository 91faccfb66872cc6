"""kvpush-router between a client and prefill and decode servers that the test plays itself."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
from collections.abc import Iterator

import pytest
from fake_server import WAIT_SECONDS, FakeServer, unused_address
from router_process import RouterProcess, router_binary

DIRECTORY = "10.1.2.3:9100"
COMPLETION = {"model": "m", "prompt": "Once upon", "max_tokens": 7, "temperature": 0}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7}


@pytest.fixture
def prefill() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def decode() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def router(prefill: FakeServer, decode: FakeServer) -> Iterator[RouterProcess]:
    with RouterProcess([f"{prefill.address}={DIRECTORY}"], [decode.address]) as process:
        yield process
        assert process.process.poll() in (None, 0), "the router died"


def wait_for_metric(router: RouterProcess, value: float, name: str, **labels: str) -> None:
    """Asks until what ends a moment after the answer has ended; each turn is a whole HTTP exchange."""
    for _ in range(2000):
        if router.metric(name, **labels) == value:
            return
    pytest.fail(f"{name} {labels} is {router.metric(name, **labels)} and not {value}")


def assert_refused(router: RouterProcess, endpoint: str, by: str, cancelled: str) -> None:
    """The one request was the client's mistake, and nothing that an operator should be warned of."""
    assert router.metric("kvpush_router_requests_total", endpoint=endpoint, outcome="refused") == 1
    assert router.metric("kvpush_router_requests_total", endpoint=endpoint, outcome=f"{by}_failed") == 0
    assert router.metric("kvpush_router_legs_total", role=by, outcome="refused") == 1
    assert router.metric("kvpush_router_legs_total", role=by, outcome="failed") == 0
    assert router.metric("kvpush_router_legs_total", role=cancelled, outcome="cancelled") == 1
    assert len(router.logged(" info ", f"{by} leg at", "refused")) == 1
    assert router.logged(" warning ") == []


# Both legs


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_decode_is_asked_while_prefill_still_works(router, prefill, decode, path, body):
    sent = router.post(path, body)
    p_leg = prefill.next()
    d_leg = decode.next()  # arrives although prefill has not answered

    assert (p_leg.method, p_leg.path) == ("POST", path) == (d_leg.method, d_leg.path)
    p_leg.answer({"choices": []})
    d_leg.answer({"choices": [{"text": " a time"}]})
    answer = sent.finish()
    assert answer.status == 200
    assert answer.json == {"choices": [{"text": " a time"}]}


def test_legs_are_bound_by_one_transfer_id(router, prefill, decode):
    router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()

    transfer_id = p_leg.transfer["transfer_id"]
    assert re.fullmatch("[0-9a-f]{32}", transfer_id)
    assert p_leg.body == COMPLETION | {
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": {"do_remote_decode": True, "transfer_id": transfer_id},
    }
    assert d_leg.body == COMPLETION | {
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_host": "10.1.2.3",
            "remote_port": 9100,
        }
    }


# Shows C2.
def test_every_attempt_has_its_own_transfer_id(router, prefill, decode):
    for _ in range(3):
        router.post("/v1/completions", COMPLETION)

    assert len({prefill.next().transfer["transfer_id"] for _ in range(3)}) == 3


def test_request_id_and_credentials_reach_both_legs(router, prefill, decode):
    headers = {
        "X-Request-Id": "mine-7",
        "Authorization": "Bearer secret",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "X-Unknown": "stays here",
        "Accept-Encoding": "gzip",
    }
    sent = router.post("/v1/completions", COMPLETION, headers)

    for leg in (prefill.next(), decode.next()):
        assert leg.headers["X-Request-Id"] == "mine-7"
        assert leg.headers["Authorization"] == "Bearer secret"
        assert leg.headers["traceparent"] == headers["traceparent"]
        assert leg.headers["X-Unknown"] is None
        assert leg.headers["Accept-Encoding"] is None
        leg.answer({})
    assert sent.finish().headers["X-Request-Id"] == "mine-7"


def test_request_id_is_made_when_the_client_gives_none(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()

    assert p_leg.headers["X-Request-Id"] == d_leg.headers["X-Request-Id"] == p_leg.transfer["transfer_id"]
    p_leg.answer({})
    d_leg.answer({})
    assert sent.finish().headers["X-Request-Id"] == p_leg.transfer["transfer_id"]


def test_servers_take_turns():
    servers = [FakeServer() for _ in range(4)]
    p0, p1, d0, d1 = servers
    prefill = [f"{p0.address}=10.0.0.1:1", f"{p1.address}=10.0.0.2:2"]
    try:
        with RouterProcess(prefill, [d0.address, d1.address]) as router:
            for p, d, port in [(p0, d0, 1), (p1, d1, 2), (p0, d0, 1), (p1, d1, 2)]:
                sent = router.post("/v1/completions", COMPLETION)
                d_leg = d.next()
                assert d_leg.transfer["remote_port"] == port
                p.next().answer({})
                d_leg.answer({})
                assert sent.finish().status == 200
            assert not any(server.has_request() for server in servers)
    finally:
        for server in servers:
            server.stop()


def test_a_directory_may_be_a_port_alone(prefill, decode):
    with RouterProcess([f"{prefill.address}=9100"], [decode.address]) as router:
        router.post("/v1/completions", COMPLETION)

        d_leg = decode.next()

    assert (d_leg.transfer["remote_host"], d_leg.transfer["remote_port"]) == ("127.0.0.1", 9100)


# Streaming


def test_pieces_arrive_as_they_come(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION | {"stream": True})
    p_leg, d_leg = prefill.next(), decode.next()
    assert p_leg.body["stream"] is False
    assert d_leg.body["stream"] is True

    p_leg.answer({})
    d_leg.start_stream({"X-From-Decode": "1"})
    for data in (b'data: {"a": 1}\n\n', b"data: half", b" of an event\n\n", b"data: [DONE]\n\n"):
        d_leg.piece(data)
        assert sent.piece() == data  # before the next one is sent
    d_leg.end_stream()

    assert sent.piece() == b""
    assert sent.head().status == 200
    assert sent.head().headers["Content-Type"] == "text/event-stream"
    assert sent.head().headers["X-From-Decode"] == "1"


def test_decode_may_answer_before_prefill(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()

    d_leg.answer({"choices": []})

    assert sent.finish().status == 200
    assert not p_leg.is_cancelled()
    p_leg.answer({})
    wait_for_metric(router, 1, "kvpush_router_legs_total", role="prefill", outcome="ok")


def test_a_slow_client_slows_decode_down(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION | {"stream": True})
    prefill.next().answer({})
    d_leg = decode.next()
    piece = b"x" * (1 << 20)
    count_max = 256  # far more than sockets hold

    d_leg.start_stream()
    count = d_leg.pieces_until_full(piece, count_max, full_seconds=1.0)

    assert count < count_max
    received = 0
    while received < count * len(piece):
        data = sent.piece()
        assert data.strip(b"x") == b""
        received += len(data)
    d_leg.end_stream()
    assert sent.piece() == b""


def test_connections_to_servers_are_kept(router, prefill, decode):
    ports = set()
    for _ in range(3):
        sent = router.post("/v1/completions", COMPLETION)
        prefill.next().answer({})
        d_leg = decode.next()
        ports.add(d_leg.asker_port)
        d_leg.answer({})
        sent.finish()

    assert len(ports) == 1


# Failures


# Shows E5.
def test_prefill_refusing_cancels_decode_and_is_the_answer(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()

    p_leg.answer({"error": {"message": "too long"}}, status=400)

    d_leg.wait_until_cancelled()
    answer = sent.finish()
    assert (answer.status, answer.json) == (400, {"error": {"message": "too long"}})
    assert answer.headers["X-Request-Id"]
    assert_refused(router, "completions", by="prefill", cancelled="decode")


def test_prefill_failing_cancels_decode_and_is_named(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()

    p_leg.answer({"error": {"message": "engine dead"}}, status=500)

    d_leg.wait_until_cancelled()
    answer = sent.finish()
    assert answer.status == 502
    assert answer.error["type"] == "upstream_error"
    assert answer.error["code"] == 502
    assert f"the prefill server {prefill.address} answered 500" in answer.error["message"]
    assert "engine dead" in answer.error["message"]
    assert router.metric("kvpush_router_requests_total", endpoint="completions", outcome="prefill_failed") == 1
    assert router.metric("kvpush_router_legs_total", role="prefill", outcome="failed") == 1
    assert router.metric("kvpush_router_legs_total", role="decode", outcome="cancelled") == 1


# Shows E5.
def test_prefill_breaking_off_cancels_decode(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()

    p_leg.close()

    d_leg.wait_until_cancelled()
    answer = sent.finish()
    assert answer.status == 502
    assert "closed before it answered" in answer.error["message"]


def test_prefill_failing_after_decodes_head_is_still_a_proper_error(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION | {"stream": True})
    p_leg, d_leg = prefill.next(), decode.next()

    d_leg.start_stream()  # what a streaming server sends before it has computed anything
    p_leg.answer({}, status=500)

    d_leg.wait_until_cancelled()
    assert sent.finish().status == 502


def test_prefill_failing_after_decodes_first_piece_does_not_matter(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION | {"stream": True})
    p_leg, d_leg = prefill.next(), decode.next()

    d_leg.start_stream()
    d_leg.piece(b"data: 1\n\n")
    assert sent.piece() == b"data: 1\n\n"
    p_leg.answer({}, status=500)
    wait_for_metric(router, 1, "kvpush_router_legs_total", role="prefill", outcome="failed")
    d_leg.piece(b"data: 2\n\n")
    d_leg.end_stream()

    assert sent.piece() == b"data: 2\n\n"
    assert sent.piece() == b""


def test_decode_refusing_cancels_prefill_and_is_the_answer(router, prefill, decode):
    sent = router.post("/v1/chat/completions", CHAT)
    p_leg, d_leg = prefill.next(), decode.next()

    d_leg.answer({"error": {"message": "no such model"}}, status=404, headers={"X-From-Decode": "1"})

    p_leg.wait_until_cancelled()
    answer = sent.finish()
    assert (answer.status, answer.json) == (404, {"error": {"message": "no such model"}})
    assert answer.headers["X-From-Decode"] == "1"
    assert_refused(router, "chat_completions", by="decode", cancelled="prefill")


# Shows E5.
def test_decode_failing_cancels_prefill_and_is_named(router, prefill, decode):
    sent = router.post("/v1/chat/completions", CHAT)
    p_leg, d_leg = prefill.next(), decode.next()

    d_leg.answer({"error": {"message": "out of blocks"}}, status=500)

    p_leg.wait_until_cancelled()
    answer = sent.finish()
    assert answer.status == 502
    assert f"the decode server {decode.address} answered 500" in answer.error["message"]
    assert router.metric("kvpush_router_requests_total", endpoint="chat_completions", outcome="decode_failed") == 1


def test_decode_breaking_off_in_its_answer_breaks_the_clients(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION | {"stream": True})
    p_leg, d_leg = prefill.next(), decode.next()

    d_leg.start_stream()
    d_leg.piece(b"data: 1\n\n")
    assert sent.piece() == b"data: 1\n\n"
    d_leg.close()

    p_leg.wait_until_cancelled()
    with pytest.raises((http.client.IncompleteRead, ConnectionError, ValueError)):
        while sent.piece():
            pass
        raise AssertionError("the answer seemed complete")
    wait_for_metric(router, 1, "kvpush_router_requests_total", endpoint="completions", outcome="broken")


def test_decode_breaking_off_in_its_answer_resets_an_http_1_0_client(router, prefill, decode):
    body = json.dumps(COMPLETION | {"stream": True}).encode()
    with socket.create_connection(("127.0.0.1", router.port), WAIT_SECONDS) as client:
        client.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        prefill.next().answer({})
        d_leg = decode.next()
        d_leg.start_stream()
        d_leg.piece(b"data: 1\n\n")
        received = b""
        while not received.endswith(b"data: 1\n\n"):
            received += client.recv(4096)

        d_leg.close()

        with pytest.raises(ConnectionResetError):
            client.recv(4096)


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_a_server_that_is_not_there_is_named(prefill, decode, missing):
    nobody = unused_address()
    p_address = nobody if missing == "prefill" else prefill.address
    d_address = nobody if missing == "decode" else decode.address
    with RouterProcess([f"{p_address}={DIRECTORY}"], [d_address]) as router:
        answer = router.post("/v1/completions", COMPLETION).finish()

    assert answer.status == 502
    assert answer.error["message"] == f"the {missing} server {nobody} failed: connection refused"


def test_a_server_that_restarted_between_two_requests_is_asked_anew(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    prefill.next().answer({})
    d_leg = decode.next()
    d_leg.keep_alive = False  # the fake closes the connection that the router keeps
    d_leg.answer({})
    sent.finish()

    again = router.post("/v1/completions", COMPLETION)
    prefill.next().answer({})
    decode.next().answer({})

    assert again.finish().status == 200


# Clients that go away


# Shows E6.
def test_a_client_that_goes_away_before_the_answer_cancels_both(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()

    sent.go_away()

    p_leg.wait_until_cancelled()
    d_leg.wait_until_cancelled()
    wait_for_metric(router, 1, "kvpush_router_requests_total", endpoint="completions", outcome="client_gone")
    wait_for_metric(router, 0, "kvpush_router_requests_in_flight")


# Shows E6.
def test_decode_hears_of_a_request_whose_client_went_away_before_decode_could_be_reached(prefill):
    # Else prefill would keep what it has computed for hold_timeout: only decode can say that it does not want it.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as decode:
        address = decode.getsockname()
        with (
            socket.create_connection(address),  # all that the kernel takes before it is accepted
            RouterProcess([f"{prefill.address}={DIRECTORY}"], ["{}:{}".format(*address)]) as router,
        ):
            sent = router.post("/v1/completions", COMPLETION)
            p_leg = prefill.next()

            sent.go_away()

            p_leg.wait_until_cancelled()
            decode.settimeout(WAIT_SECONDS)
            decode.accept()[0].close()
            d_leg = decode.accept()[0]
            d_leg.settimeout(WAIT_SECONDS)
            told = b"".join(iter(lambda: d_leg.recv(4096), b""))  # and is closed
            d_leg.close()
    assert p_leg.transfer["transfer_id"].encode() in told


# Shows E6.
def test_a_client_that_goes_away_in_the_stream_cancels_decode(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION | {"stream": True})
    prefill.next().answer({})
    d_leg = decode.next()
    d_leg.start_stream()
    d_leg.piece(b"data: 1\n\n")
    assert sent.piece() == b"data: 1\n\n"

    sent.go_away()

    d_leg.wait_until_cancelled()


# Requests that are refused


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        ("/v1/completions", b"{", None, "not JSON"),
        ("/v1/completions", b"[]", None, "not a JSON object"),
        ("/v1/completions", {"model": "m"}, "prompt", "no prompt"),
        ("/v1/chat/completions", {"model": "m"}, "messages", "no messages"),
        ("/v1/completions", COMPLETION | {"n": 0}, "n", "at least 1"),
        ("/v1/completions", COMPLETION | {"best_of": "2"}, "best_of", "at least 1"),
        ("/v1/completions", COMPLETION | {"prompt_logprobs": 1}, "prompt_logprobs", "leave it out"),
        (
            "/v1/completions",
            COMPLETION | {"kv_transfer_params": {"do_remote_decode": True}},
            "kv_transfer_params",
            "leave them out",
        ),
    ],
)
# Shows E7.
def test_a_bad_request_is_told_what_is_wrong(router, prefill, decode, path, body, param, says):
    answer = router.post(path, body).finish()

    assert answer.status == 400
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["code"] == 400
    assert says in answer.error["message"]
    assert not prefill.has_request()
    assert not decode.has_request()
    endpoint = "chat_completions" if "chat" in path else "completions"
    assert router.metric("kvpush_router_requests_total", endpoint=endpoint, outcome="refused") == 1


def test_a_body_above_the_limit_is_refused_before_it_is_sent(router):
    sent = router.send("POST", "/v1/completions", b"", {"Content-Length": str(1 << 30)})

    answer = sent.finish()

    assert answer.status == 413
    assert "16777216 bytes" in answer.error["message"]


def test_unknown_paths_and_methods_are_refused(router):
    nowhere = router.get("/v1/embeddings")
    wrong = router.get("/v1/completions")

    assert (nowhere.status, nowhere.error["code"]) == (404, 404)
    assert (wrong.status, wrong.error["code"]) == (405, 405)
    assert wrong.headers["Allow"] == "POST"


def test_one_request_too_many_is_told_to_come_back(prefill, decode):
    with RouterProcess([f"{prefill.address}={DIRECTORY}"], [decode.address], "--requests-max", "1") as router:
        first = router.post("/v1/completions", COMPLETION)
        p_leg, d_leg = prefill.next(), decode.next()

        answer = router.post("/v1/completions", COMPLETION).finish()
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert answer.headers["Connection"] == "close"
        assert answer.error["type"] == "overloaded_error"

        p_leg.answer({})
        d_leg.answer({})
        assert first.finish().status == 200
        wait_for_metric(router, 0, "kvpush_router_requests_in_flight")
        router.post("/v1/completions", COMPLETION)
        prefill.next()


# What is asked about the router


def test_models_come_from_decode(router, decode):
    sent = router.send("GET", "/v1/models", headers={"Authorization": "Bearer secret"})
    asked = decode.next()
    assert (asked.method, asked.path) == ("GET", "/v1/models")
    assert asked.headers["Authorization"] == "Bearer secret"

    asked.answer({"object": "list", "data": [{"id": "m"}]})

    answer = sent.finish()
    assert (answer.status, answer.json) == (200, {"object": "list", "data": [{"id": "m"}]})


def test_health_counts_who_can_be_reached(prefill, decode):
    nobody = unused_address()
    with RouterProcess([f"{prefill.address}=1", f"{nobody}=1"], [decode.address]) as router:
        answer = router.get("/health")

    assert answer.status == 200
    assert answer.json == {
        "status": "ok",
        "prefill": {"reachable": 1, "configured": 2},
        "decode": {"reachable": 1, "configured": 1},
    }


def test_health_is_bad_when_one_side_is_missing(prefill):
    with RouterProcess([f"{prefill.address}=1"], [unused_address()]) as router:
        answer = router.get("/health")

    assert answer.status == 503
    assert answer.json["decode"] == {"reachable": 0, "configured": 1}


def test_metrics_tell_what_happened(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION)
    p_leg, d_leg = prefill.next(), decode.next()
    assert router.metric("kvpush_router_requests_in_flight") == 1

    p_leg.answer({})
    d_leg.answer({})
    sent.finish()

    assert router.get("/metrics").headers["Content-Type"].startswith("text/plain; version=0.0.4")
    wait_for_metric(router, 0, "kvpush_router_requests_in_flight")
    assert router.metric("kvpush_router_requests_total", endpoint="completions", outcome="ok") == 1
    assert router.metric("kvpush_router_legs_total", role="prefill", outcome="ok") == 1
    assert router.metric("kvpush_router_legs_total", role="decode", outcome="ok") == 1
    assert router.metric("kvpush_router_first_byte_seconds_count", endpoint="completions") == 1
    assert router.metric("kvpush_router_request_seconds_count", endpoint="completions") == 1


# The process


def test_a_stop_signal_lets_answers_end(router, prefill, decode):
    sent = router.post("/v1/completions", COMPLETION | {"stream": True})
    prefill.next().answer({})
    d_leg = decode.next()
    d_leg.start_stream()
    d_leg.piece(b"data: 1\n\n")
    assert sent.piece() == b"data: 1\n\n"
    idle = http.client.HTTPConnection("127.0.0.1", router.port, timeout=WAIT_SECONDS)
    idle.connect()
    assert idle.sock is not None

    router.terminate()
    assert idle.sock.recv(1) == b""  # it stops listening before it closes what is idle
    with pytest.raises(ConnectionRefusedError):
        router.get("/health")
    d_leg.piece(b"data: 2\n\n")
    assert sent.piece() == b"data: 2\n\n"
    d_leg.end_stream()
    assert sent.piece() == b""
    sent.go_away()

    assert router.wait() == 0


def test_a_stop_signal_ends_an_idle_router(prefill, decode):
    with RouterProcess([f"{prefill.address}=1"], [decode.address]) as router:
        router.terminate()

        assert router.wait() == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--prefill is required"),
        (["--prefill", "127.0.0.1:1=2"], "--decode is required"),
        (["--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:2"], "HOST:PORT=[DIRECTORY_HOST:]PORT"),
        (["--prefill", "127.0.0.1:1=x", "--decode", "127.0.0.1:2"], "a port is a number"),
        (["--prefill", "127.0.0.1:1=2", "--decode", "127.0.0.1:0"], "from 1 to 65535"),
        (["--prefill", "127.0.0.1:1=2", "--decode", "127.0.0.1:2", "--listen", "nowhere"], "host:port"),
        (["--prefill", "127.0.0.1:1=2", "--decode", "127.0.0.1:2", "--listen", "192.0.2.1:0"], "cannot listen"),
        (["--prefill", "127.0.0.1:1=2", "--decode", "127.0.0.1:2", "--requests-max", "0"], "--requests-max"),
        (["--prefill", "127.0.0.1:1=2", "--decode", "127.0.0.1:2", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2(flags, says):
    done = subprocess.run([router_binary(), *flags], capture_output=True, text=True, timeout=WAIT_SECONDS)

    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"kvpush-router: [^\n]*\n", done.stderr), done.stderr
    assert says in done.stderr
