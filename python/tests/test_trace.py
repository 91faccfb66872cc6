"""`kvpush trace` on documents made by hand: what is joined, what the table says, what the trace file holds."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvpush import cli, trace

ROUTER, P, D = "10.0.0.9:8000", "10.0.0.1:9100", "10.0.1.1:9200"
# Three machines: each clock began when its machine did.
BOOT = {ROUTER: 5000.0, P: 100.0, D: 90000.0}
UNIX = 1_800_000_000.0


def record(role: str, address: str, start: float, points: dict[str, float], **more: Any) -> dict[str, Any]:
    """`start` in seconds after the common beginning, the points in milliseconds after `start`."""
    return {
        "transfer_id": "t1",
        "request": f"{role} request",
        "role": role,
        "peer": {"router": f"{P} 10.0.1.1:8200", "producer": "decode", "consumer": P}[role],
        "outcome": "delivered",
        "start_boot_seconds": BOOT[address] + start,
        "timeline_seconds": {name: at / 1000 for name, at in points.items()},
    } | more


def document(address: str, **parts: Any) -> trace.Document:
    now = {"now_boot_seconds": BOOT[address] + 60, "now_unix_seconds": UNIX + 60}
    return trace.Document(address, now | parts)


def documents(transfer: str = "t1", start: float = 0.0) -> list[trace.Document]:
    """Everyone's timelines of one transfer whose every step takes another number of milliseconds."""

    def at(milliseconds: float) -> float:
        return start + milliseconds / 1000

    more = {"transfer_id": transfer}
    router = record(
        "router",
        ROUTER,
        at(0),
        {"arrived": 0, "legs_sent": 1, "prefill_answered": 64, "first_byte": 100, "answered": 300},
        **more,
    )
    p = record("producer", P, at(2), {"arrived": 0, "admitted": 8, "prefill_end": 58}, tokens=700, **more)
    p_rank = record(
        "producer",
        P,
        at(61),
        {"offered": 0, "matched": 0, "first_post": 1, "last_post": 3, "completed": 9},
        bytes=1 << 20,
        tokens=700,
        **more,
    )
    d = record(
        "consumer", D, at(3), {"arrived": 0, "admitted": 1, "reported": 71, "first_step": 73}, tokens=700, **more
    )
    d_rank = record(
        "consumer",
        D,
        at(5),
        {
            "received": 0,
            "registered": 2,
            "offered": 56,
            "matched": 56,
            "first_post": 57,
            "last_post": 59,
            "delivered": 66,
            "seen_by_engine": 68,
        },
        bytes=1 << 20,
        tokens=699,
        **more,
    )
    return [
        document(ROUTER, live=[], ended=[router]),
        document(P, engine=[p], ranks=[{"rank": 0, "live": [], "ended": [p_rank]}]),
        document(D, engine=[d], ranks=[{"rank": 0, "live": [], "ended": [d_rank]}]),
    ]


def joined(*all_documents: trace.Document) -> list[trace.Transfer]:
    return trace.join(one for document in all_documents for one in document.records())


def milliseconds(transfer: trace.Transfer) -> dict[str, float]:
    known = {phase.name: transfer.seconds(phase) for phase in (*trace.PATH_PHASES, *trace.OVERVIEW_PHASES)}
    return {name: round(1000 * seconds, 3) for name, seconds in known.items() if seconds is not None}


def test_timelines_of_three_machines_are_joined_on_one_clock():
    (transfer,) = joined(*documents())

    assert transfer.transfer_id == "t1"
    assert len(transfer.records) == 5
    assert milliseconds(transfer) == {
        "router to prefill": 2,
        "prefill: queue": 8,
        "prefill: compute": 50,
        "prefill: tell its agent": 1,
        "wait for decode to register": 0,
        "plan": 1,
        "write": 8,
        "tell decode's agent": 1,
        "decode: engine looks": 2,
        "decode: scheduler hears": 1,
        "decode: wait for a step": 2,
        "first step to first byte": 24,
        "destination held early": 54,
        "exposed: prefill end to first step": 16,
        "first byte after arrival": 100,
        "answer after arrival": 300,
    }


def test_the_phases_to_the_first_byte_leave_no_gap():
    (transfer,) = joined(*documents())
    path = [transfer.seconds(phase) for phase in trace.PATH_PHASES]
    assert sum(path) == pytest.approx(0.1)


def test_transfers_come_in_the_order_of_their_beginning():
    found = joined(*documents("later", 2.0), *documents("sooner", 1.0))
    assert [one.transfer_id for one in found] == ["sooner", "later"]
    assert all(len(one.records) == 5 for one in found)


def test_what_the_producer_told_stands_in_for_a_producer_that_was_not_asked():
    router, _, d = documents()
    (transfer,) = joined(router, d)
    phases = milliseconds(transfer)
    assert phases["plan"] == 1
    assert "write" not in phases
    assert "prefill: compute" not in phases


def test_the_slowest_rank_counts():
    _, p, d = documents()
    slow = record("consumer", D, 0.005, {"received": 0, "delivered": 96, "seen_by_engine": 98})
    d.body["ranks"].append({"rank": 1, "live": [], "ended": [slow]})
    (transfer,) = joined(p, d)
    assert milliseconds(transfer)["tell decode's agent"] == 31


def test_the_prompts_of_one_call_share_the_routers_record():
    router, p, _ = documents()
    second = record("producer", P, 0.1, {"offered": 0, "completed": 5}, transfer_id="t1#1")
    p.body["ranks"][0]["ended"].append(second)
    found = joined(router, p)
    assert [one.transfer_id for one in found] == ["t1", "t1#1"]
    assert all(any(one.role == "router" for one in transfer.records) for transfer in found)


def test_an_engine_that_was_asked_by_two_names_counts_once():
    _, p, d = documents()
    (transfer,) = joined(p, d, trace.Document("prefill.example:9100", p.body))
    assert len(transfer.records) == 4


def test_a_request_that_only_the_router_knows_is_shown():
    (transfer,) = joined(documents()[0])
    assert milliseconds(transfer) == {"first byte after arrival": 100, "answer after arrival": 300}


def test_clocks_that_differ_are_noticed():
    router, p, d = documents()
    assert trace.clock_differences(joined(router, p, d)) == {}
    p.body["now_unix_seconds"] += 0.5
    ((pair, seconds),) = trace.clock_differences(joined(router, p, d)).items()
    assert pair == (P, D)
    assert seconds == pytest.approx(0.5)


def test_the_table_has_median_and_90th_percentile_of_each_phase():
    all_documents = [one for index in range(9) for one in documents(f"t{index}", float(index))]
    router, p, d = documents("slow", 20.0)
    p.body["engine"][0]["timeline_seconds"]["admitted"] = 0.030
    text = trace.table(joined(*all_documents, router, p, d))

    rows = {line[:34].strip(): line[34:].split() for line in text.splitlines()}
    assert rows["phase"] == ["transfers", "median", "ms", "p90", "ms"]
    assert rows["prefill: queue"] == ["10", "8.000", "8.000"]
    assert rows["write"] == ["10", "8.000", "8.000"]
    assert rows["exposed: prefill end to first step"] == ["10", "16.000", "16.000"]


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (90, 9), (100, 10), (1, 1)])
def test_a_percentile_is_a_value_that_occurred(percent, value):
    assert trace.percentile([10, 1, 9, 2, 8, 3, 7, 4, 6, 5], percent) == value


def slices(events: list[dict], pid: int) -> dict[str, tuple[float, float]]:
    return {one["name"]: (one["ts"], one["dur"]) for one in events if one["ph"] == "X" and one["pid"] == pid}


def test_the_trace_has_a_process_for_each_and_nested_slices():
    events = trace.ChromeTrace(joined(*documents())).events

    processes = {one["args"]["name"]: one["pid"] for one in events if one["ph"] == "M"}
    assert sorted(processes) == [
        f"decode {D} rank 0",
        f"decode {D} scheduler",
        f"prefill {P} rank 0",
        f"prefill {P} scheduler",
        f"router {ROUTER}",
    ]
    assert slices(events, processes[f"prefill {P} scheduler"]) == {
        "t1": (2000, 58000),
        "queue": (2000, 8000),
        "prefill": (10000, 50000),
    }
    assert slices(events, processes[f"decode {D} rank 0"]) == {
        "t1": (5000, 68000),
        "reach the producer": (5000, 2000),
        "wait for the prefill": (7000, 54000),
        "KV arrives": (61000, 10000),
        "wait for the engine": (71000, 2000),
    }
    (outer,) = [one for one in events if one["name"] == "t1" and one["pid"] == processes[f"prefill {P} rank 0"]]
    assert outer["args"]["bytes"] == 1 << 20
    (instant,) = [one for one in events if one["ph"] == "i"]
    assert (instant["name"], instant["ts"]) == ("prefill_answered", 64000)


def test_arrows_lead_from_router_to_engines_and_with_the_kv():
    events = trace.ChromeTrace(joined(*documents())).events
    names = {one["pid"]: one["args"]["name"] for one in events if one["ph"] == "M"}
    begins = {one["id"]: one for one in events if one["ph"] == "s"}
    ends = {one["id"]: one for one in events if one["ph"] == "f"}

    assert begins.keys() == ends.keys()
    arrows = {(names[begins[id]["pid"]], names[ends[id]["pid"]]) for id in begins}
    assert arrows == {
        (f"router {ROUTER}", f"prefill {P} scheduler"),
        (f"router {ROUTER}", f"decode {D} scheduler"),
        (f"prefill {P} rank 0", f"decode {D} rank 0"),
    }


def test_transfers_at_once_are_on_lanes_of_their_own():
    found = joined(*documents("a", 0.0), *documents("b", 0.01), *documents("c", 5.0))
    events = trace.ChromeTrace(found).events
    (router,) = [one["pid"] for one in events if one["ph"] == "M" and one["args"]["name"].startswith("router")]
    lanes = {one["name"]: one["tid"] for one in events if one["ph"] == "X" and one["pid"] == router}
    assert lanes["a"] == lanes["c"] != lanes["b"]


# The command.


class Server:
    """Answers every GET with what it is given."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def start(body: Any, status: int = 200) -> str:
            server = Server(body if isinstance(body, bytes) else json.dumps(body).encode(), status)
            stack.callback(server.stop)
            return server.address

        yield start


def nobody() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_the_command_asks_prefill_engines_that_others_name(serve, tmp_path, capsys):
    router, p, d = documents()
    p_address = serve(p.body)
    router.body["ended"][0]["peer"] = f"{p_address} 10.0.1.1:8200"
    d.body["ranks"][0]["ended"][0]["peer"] = d.body["engine"][0]["peer"] = p_address
    out = tmp_path / "trace.json"

    status = cli.main(["trace", serve(router.body), f"http://{serve(d.body)}/", "--out", str(out)])

    told = capsys.readouterr()
    assert (status, told.err) == (0, "")
    assert "prefill: compute                            1     50.000     50.000" in told.out
    assert any(one["name"] == "prefill" for one in json.loads(out.read_text())["traceEvents"])


def test_a_prefill_engine_that_is_gone_is_named_and_the_rest_is_shown(serve, tmp_path, capsys):
    _, _, d = documents()
    gone = nobody()
    d.body["ranks"][0]["ended"][0]["peer"] = d.body["engine"][0]["peer"] = gone

    status = cli.main(["trace", serve(d.body), "--out", str(tmp_path / "trace.json")])

    told = capsys.readouterr()
    assert status == 0
    assert f"kvpush: {gone} does not answer" in told.err
    assert "decode: wait for a step" in told.out


def test_a_silent_rank_is_named(serve, tmp_path, capsys):
    _, _, d = documents()
    d.body["ranks"].append({"rank": 1, "error": "timeout"})
    for part in (d.body["engine"][0], d.body["ranks"][0]["ended"][0]):
        part["peer"] = ""
    cli.main(["trace", serve(d.body), "--out", str(tmp_path / "trace.json")])
    assert "rank 1: timeout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"<html>", 200, "not JSON"),
        (b"[]", 200, "no object"),
        (b"{}", 200, "not as this version of kvpush does"),
        (b"{}", 404, "status 404"),
    ],
    ids=["no JSON", "a list", "another version", "another server"],
)
def test_whoever_is_no_router_and_no_directory_is_named(serve, tmp_path, capsys, body, status, says):
    address = serve(body, status)
    out = tmp_path / "trace.json"
    assert cli.main(["trace", address, "--out", str(out)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"kvpush: {address} ")
    assert says in told
    assert told.count("\n") == 1
    assert not out.exists()


def test_an_address_where_nobody_listens_is_named(serve, tmp_path, capsys):
    router, _, _ = documents()
    gone = nobody()
    assert cli.main(["trace", serve(router.body), gone, "--out", str(tmp_path / "trace.json")]) == 1
    assert capsys.readouterr().err.startswith(f"kvpush: {gone} does not answer: ")


def test_nothing_to_show_is_said(serve, tmp_path, capsys):
    router = document(ROUTER, live=[], ended=[])
    assert cli.main(["trace", serve(router.body), "--out", str(tmp_path / "trace.json")]) == 1
    assert "nobody remembers a transfer yet" in capsys.readouterr().err
