"""What was measured, as a table, as JSON and as a picture."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import figures
import plot
from figures import percentile
from load import Load, Record

BASE = "alone"
PEERS = ("nixl-pull", "nixl-push")
OWN = "kvpush"


@dataclass
class Series:
    """All that one way did under one load: its records by rotation, and CPU seconds by server."""

    way: str
    load: Load
    rotations: list[list[Record]] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        return [record for rotation in self.rotations for record in rotation]

    @property
    def good(self) -> list[Record]:
        return [record for record in self.records if not record.error]

    @property
    def failures(self) -> int:
        return len(self.records) - len(self.good)

    def ttft_s(self, rotation: int, share: float) -> float | None:
        times = [record.ttft_s for record in self.rotations[rotation] if not record.error]
        return percentile(times, share) if times else None

    def texts(self) -> list[str]:
        return [record.text for record in self.records]


def beyond(series: Series, base: Series, share: float) -> dict[int, float]:
    """Seconds by rotation: its TTFT percentile minus that of the single server in the same rotation."""
    times = {}
    for rotation in range(len(series.rotations)):
        own, alone = series.ttft_s(rotation, share), base.ttft_s(rotation, share)
        if own is not None and alone is not None:
            times[rotation] = own - alone
    return times


def exposed(series: Series, base: Series, share: float) -> figures.Estimate | None:
    """TTFT beyond that of a single server, in seconds."""
    times = beyond(series, base, share)
    return figures.mean(list(times.values())) if times else None


def of_best_peer(series: Series, all_of_load: dict[str, Series], share: float, ending: str) -> figures.Estimate | None:
    """Exposed time over that of the peer with the least of it, among the peers whose names end so."""
    base = all_of_load[BASE]
    peers = [beyond(all_of_load[name + ending], base, share) for name in PEERS if name + ending in all_of_load]
    own = beyond(series, base, share)
    best = min(filter(None, peers), key=lambda times: statistics.fmean(times.values()), default={})
    both = sorted(own.keys() & best.keys())
    return figures.ratio_of_means([own[one] for one in both], [best[one] for one in both]) if both else None


def summary(series: Series, all_of_load: dict[str, Series], idle: dict[str, float]) -> dict:
    """One row of the table, times in milliseconds."""
    good = series.good
    row: dict = {
        "way": series.way,
        "prompt_tokens": series.load.prompt_tokens,
        "at_once": series.load.at_once,
        "requests": len(series.records),
        "failures": series.failures,
        "errors": sorted({record.error for record in series.records if record.error})[:3],
        "cpu_s": {side: round(seconds, 2) for side, seconds in series.cpu_s.items()},
        "idle_share": {side: round(share, 3) for side, share in idle.items()},
    }
    for name, values in (("ttft_ms", [one.ttft_s for one in good]), ("tpot_ms", [one.tpot_s for one in good])):
        if values:
            shares = {f"p{round(100 * share)}": percentile(values, share) for share in (0.5, 0.9, 0.99)}
            row[name] = {k: round(1000 * v, 2) for k, v in {"mean": statistics.fmean(values), **shares}.items()}
    if series.way != BASE and BASE in all_of_load:
        for share, name in ((0.5, "exposed_p50_ms"), (0.9, "exposed_p90_ms")):
            if times := exposed(series, all_of_load[BASE], share):
                row[name] = [round(1000 * v, 1) for v in times]
        endings = {name.removeprefix(peer) for name in all_of_load for peer in PEERS if name.startswith(peer)}
        for ending, share in itertools.product(sorted(endings) if series.way.startswith(OWN) else (), (0.5, 0.9)):
            if ratio := of_best_peer(series, all_of_load, share, ending):
                row[f"of_best_peer_p{round(100 * share)}{ending}"] = [round(value, 3) for value in ratio]
    for other in (BASE, PEERS[0]):
        if other in all_of_load and other != series.way:
            pairs = zip(series.texts(), all_of_load[other].texts(), strict=True)
            row[f"equal_to_{other}"] = sum(own == theirs for own, theirs in pairs)
    return row


COLUMNS = {
    "way": lambda row: row["way"],
    "n": lambda row: row["requests"],
    "fail": lambda row: row["failures"],
    "ttft p50": lambda row: row["ttft_ms"]["p50"],
    "p90": lambda row: row["ttft_ms"]["p90"],
    "p99": lambda row: row["ttft_ms"]["p99"],
    "mean": lambda row: row["ttft_ms"]["mean"],
    "exposed p50": lambda row: _with_interval(row["exposed_p50_ms"]),
    "exposed p90": lambda row: _with_interval(row["exposed_p90_ms"]),
    "tpot p50": lambda row: row["tpot_ms"]["p50"],
    "p90 ": lambda row: row["tpot_ms"]["p90"],
    "cpu s": lambda row: " ".join(f"{side} {seconds:.1f}" for side, seconds in row["cpu_s"].items()),
    "idle %": lambda row: " ".join(f"{side} {100 * share:.1f}" for side, share in row["idle_share"].items()),
    "as alone": lambda row: row["equal_to_alone"],
    "as pull": lambda row: row["equal_to_nixl-pull"],
}


def _with_interval(values: Sequence[float]) -> str:
    return "{} ({} to {})".format(*values)


def _ratio_column(name: str) -> figures.Column:
    return lambda row: figures.times(figures.Estimate(*row[name]))


def table(rows: Sequence[dict]) -> str:
    """Markdown, one table for each load."""
    lines: list[str] = []
    ratios = sorted({name for row in rows for name in row if name.startswith("of_best_peer")})
    columns = COLUMNS | {name.replace("_", " "): _ratio_column(name) for name in ratios}
    for load in dict.fromkeys((row["prompt_tokens"], row["at_once"]) for row in rows):
        lines += ["", "Prompts of {} tokens, {} at once; times in ms:".format(*load), ""]
        lines += figures.table(columns, [row for row in rows if (row["prompt_tokens"], row["at_once"]) == load])
    return "\n".join(lines)


def picture(rows: Sequence[dict]) -> str:
    """An SVG with one bar for each way and load: exposed time at p50, with its interval."""
    bars = []
    for row in rows:
        if "exposed_p50_ms" in row:
            mean, low, high = row["exposed_p50_ms"]
            label = f"{row['way']}, {row['prompt_tokens']} tokens, {row['at_once']} at once"
            colour = plot.OWN if row["way"].startswith(OWN) else plot.OTHER
            bars.append(plot.Bar(label, mean, str(mean), colour, (low, high)))
    return plot.bars("Time to first token beyond a single server, p50, ms (95 %)", bars)
