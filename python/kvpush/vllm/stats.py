"""The connector's part of vLLM's own statistics: its log line and its /metrics.

The workers fill `Stats`, one object a step; vLLM folds those of all ranks, sends their `data` to its front end, and
there logs and exports them. Everything the agents know, also while no step runs, is at the directory's /metrics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

from kvpush.vllm.worker import Tally

MEGABYTE = 1e6
# From one small prompt over memory of one host to a limit that ends a request.
SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# From one block of a small model (16 KiB) to a long prompt of a large one (16 GiB), in steps of four.
BYTES_BUCKETS = tuple(float(1 << bits) for bits in range(14, 35, 2))

# The fields of a tally by the role whose they are.
DELIVERED = {"consumer": "received", "producer": "sent"}
FAILED = {"consumer": "receive_errors", "producer": "send_errors"}


@dataclass
class Stats(KVConnectorStats):
    """A `Tally` as vLLM carries it: `data` has the tally's fields, each a list that grows by folding."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = Tally([], [], [], [])._asdict()

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def aggregate(self, other: KVConnectorStats) -> Stats:
        for name, values in other.data.items():
            self.data[name].extend(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """What vLLM logs of an interval. A direction in which nothing happened is left out."""
        summary: dict[str, int | float] = {}
        for name in DELIVERED.values():
            if self.data[name]:
                summary |= _summary(name, self.data[name])
        for name in FAILED.values():
            if self.data[name]:
                summary[name.replace("_", " ").capitalize()] = len(self.data[name])
        return summary


def _summary(name: str, transfers: list[tuple[int, float]]) -> dict[str, int | float]:
    title = name.capitalize()
    count = len(transfers)
    megabytes = sum(size for size, _ in transfers) / MEGABYTE
    seconds = sorted(duration for _, duration in transfers)
    summary = {
        f"{title} transfers": count,
        f"{title} avg time (ms)": round(1000 * fmean(seconds), 3),
        f"{title} P90 time (ms)": round(1000 * seconds[math.ceil(0.9 * count) - 1], 3),
        f"{title} avg MB per transfer": round(megabytes / count, 3),
    }
    if sum(seconds) > 0:  # 0: prompts of which every token was cached
        summary[f"{title} throughput (MB/s)"] = round(megabytes / sum(seconds), 3)
    return summary


class PromMetrics(KVConnectorPromMetrics):
    """The same as Prometheus metrics `vllm:kvpush_...` with the labels of vLLM's own and `role`."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        seconds = metric_types[Histogram](
            name="vllm:kvpush_transfer_seconds",
            documentation="From registration and computed prompt having met to the delivery of the KV, by rank.",
            buckets=SECONDS_BUCKETS,
            labelnames=[*labelnames, "role"],
        )
        size = metric_types[Histogram](
            name="vllm:kvpush_transfer_bytes",
            documentation="KV bytes of a delivered transfer, by rank.",
            buckets=BYTES_BUCKETS,
            labelnames=[*labelnames, "role"],
        )
        self._seconds = self._by_role(seconds)
        self._bytes = self._by_role(size)
        self._failed = metric_types[Counter](
            name="vllm:kvpush_failed_transfers",
            documentation="Transfers that were not delivered, by rank and reason (docs/errors.md).",
            labelnames=[*labelnames, "role", "error"],
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for role, name in DELIVERED.items():
            for size, seconds in transfer_stats_data[name]:
                self._bytes[engine_idx, role].observe(size)
                self._seconds[engine_idx, role].observe(seconds)
        for role, name in FAILED.items():
            for error in transfer_stats_data[name]:
                self._failed.labels(*self.per_engine_labelvalues[engine_idx], role, error).inc()

    def _by_role(self, metric: PromMetric) -> dict[tuple[int, str], PromMetric]:
        return {
            (engine, role): metric.labels(*values, role)
            for engine, values in self.per_engine_labelvalues.items()
            for role in DELIVERED
        }
