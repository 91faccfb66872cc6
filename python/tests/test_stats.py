"""vLLM's statistics of the connector: what a tally becomes in vLLM's log line and in its /metrics."""

from __future__ import annotations

import msgspec
import pytest
from engine import FakeEngine, decode_params, prefill_params
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig

from kvpush.vllm.connector import KvPushConnector
from kvpush.vllm.stats import Stats
from kvpush.vllm.worker import Tally

MB = 1_000_000


def stats(received=(), sent=(), receive_errors=(), send_errors=()) -> Stats:
    return Stats(Tally(list(received), list(sent), list(receive_errors), list(send_errors))._asdict())


def as_sent_to_the_front_end(one: Stats) -> Stats:
    return KvPushConnector.build_kv_connector_stats(msgspec.msgpack.decode(msgspec.msgpack.encode(one.to_dict())))


def test_the_log_line_says_how_many_how_fast_and_how_much():
    received = [(MB, 0.010)] * 8 + [(MB, 0.020), (11 * MB, 0.100)]

    summary = as_sent_to_the_front_end(stats(received=received)).reduce()

    assert summary == {
        "Received transfers": 10,
        "Received avg time (ms)": 20.0,
        "Received P90 time (ms)": 20.0,
        "Received avg MB per transfer": 2.0,
        "Received throughput (MB/s)": 100.0,
    }


def test_the_log_line_tells_both_directions_and_what_failed():
    one = stats(received=[(MB, 0.5)], sent=[(2 * MB, 0.5)], receive_errors=["timeout", "peer_lost"], send_errors=["x"])

    summary = one.reduce()

    assert summary["Received throughput (MB/s)"] == 2.0
    assert summary["Sent throughput (MB/s)"] == 4.0
    assert summary["Receive errors"] == 2
    assert summary["Send errors"] == 1


def test_a_transfer_that_took_no_time_has_no_throughput():
    assert "Received throughput (MB/s)" not in stats(received=[(0, 0.0)]).reduce()


def test_stats_of_several_ranks_and_steps_are_folded():
    all_of_it = KvPushConnector.build_kv_connector_stats()
    assert all_of_it.is_empty()

    folded = all_of_it.aggregate(stats(received=[(MB, 0.1)])).aggregate(stats(receive_errors=["timeout"]))

    assert not folded.is_empty()
    assert folded.reduce()["Received transfers"] == 1
    assert folded.reduce()["Receive errors"] == 1


def test_a_tally_is_taken_once_and_holds_each_end_of_a_transfer():
    engine = FakeEngine()
    engine.add("d", 40, decode_params("t1"))
    engine.add("lost", 40, decode_params("t2"))
    engine.add("p", 40, prefill_params("t3"))
    engine.add("refused", 40, decode_params("t4", remote_port="x"))
    engine.run(3)
    engine.agent.end("d")
    engine.agent.end("lost", "peer_lost")
    engine.agent.end("p")
    engine.run()

    assert engine.worker.take_tally() == Tally([(4096, 0.25)], [(4096, 0.25)], ["bad_params", "peer_lost"], [])
    assert engine.worker.take_tally() == Tally([], [], [], [])


class Exported:
    """The connector's Prometheus metrics for an API server of two engines, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def of(kind):
            return lambda **arguments: kind(registry=self.registry, **arguments)

        types = {kind: of(kind) for kind in (Gauge, Counter, Histogram)}
        values = {0: ["m", "0"], 1: ["m", "1"]}
        config = type("Config", (), {"kv_transfer_config": KVTransferConfig()})
        self.metrics = KvPushConnector.build_prom_metrics(config, types, ["model_name", "engine"], values)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:kvpush_{name}", {"model_name": "m", "engine": "0"} | labels)


@pytest.fixture
def exported() -> Exported:
    return Exported()


def test_prometheus_has_times_and_sizes_by_role(exported):
    one = as_sent_to_the_front_end(stats(received=[(1 << 20, 0.003), (1 << 22, 0.3)], sent=[(1 << 14, 0.001)]))

    exported.metrics.observe(one.to_dict())

    assert exported.value("transfer_seconds_count", role="consumer") == 2
    assert exported.value("transfer_seconds_sum", role="consumer") == pytest.approx(0.303)
    assert exported.value("transfer_seconds_bucket", role="consumer", le="0.005") == 1
    assert exported.value("transfer_bytes_sum", role="consumer") == (1 << 20) + (1 << 22)
    assert exported.value("transfer_bytes_bucket", role="producer", le="16384.0") == 1
    assert exported.value("transfer_seconds_count", role="consumer", engine="1") == 0


def test_prometheus_counts_failures_by_reason_and_engine(exported):
    exported.metrics.observe(stats(receive_errors=["timeout", "peer_lost", "timeout"]).to_dict(), 1)
    exported.metrics.observe(stats(send_errors=["timeout"]).to_dict(), 1)

    assert exported.value("failed_transfers_total", engine="1", role="consumer", error="timeout") == 2
    assert exported.value("failed_transfers_total", engine="1", role="consumer", error="peer_lost") == 1
    assert exported.value("failed_transfers_total", engine="1", role="producer", error="timeout") == 1
    assert exported.value("failed_transfers_total", role="consumer", error="timeout") is None
