"""What was measured, as a table, as JSON and as a picture."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from load import Load, Record

RESAMPLES = 2000
BASE = "alone"
PEERS = ("nixl-pull", "nixl-push")


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the means of resamples, always the same ones."""
    chance = random.Random(1)
    means = [statistics.fmean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return percentile(means, 0.025), percentile(means, 0.975)


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


@dataclass
class Exposed:
    """TTFT beyond that of a single server, in seconds: the mean over the rotations and its 95 % interval."""

    mean_s: float
    low_s: float
    high_s: float


def exposed(series: Series, base: Series, share: float) -> Exposed | None:
    """Paired: each rotation's TTFT percentile minus that of the single server in the same rotation."""
    beyond = []
    for rotation in range(len(series.rotations)):
        own, alone = series.ttft_s(rotation, share), base.ttft_s(rotation, share)
        if own is not None and alone is not None:
            beyond.append(own - alone)
    return Exposed(statistics.fmean(beyond), *interval(beyond)) if beyond else None


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
            if beyond := exposed(series, all_of_load[BASE], share):
                row[name] = [round(1000 * v, 1) for v in (beyond.mean_s, beyond.low_s, beyond.high_s)]
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


def table(rows: Sequence[dict]) -> str:
    """Markdown, one table for each load."""
    lines: list[str] = []
    for prompt_tokens, at_once in dict.fromkeys((row["prompt_tokens"], row["at_once"]) for row in rows):
        lines += ["", f"Prompts of {prompt_tokens} tokens, {at_once} at once; times in ms:", ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
        for row in rows:
            if (row["prompt_tokens"], row["at_once"]) == (prompt_tokens, at_once):
                lines.append("| " + " | ".join(_cell(cell, row) for cell in COLUMNS.values()) + " |")
    return "\n".join(lines)


def _cell(cell, row: dict) -> str:
    try:
        return str(cell(row))
    except KeyError:  # not measured for this way
        return "-"


def picture(rows: Sequence[dict]) -> str:
    """An SVG with one bar for each way and load: exposed time at p50, with its interval."""
    bars = [row for row in rows if "exposed_p50_ms" in row]
    longest = max([row["exposed_p50_ms"][2] for row in bars] + [1.0])
    left, width, step = 300, 600, 22
    scale = width / longest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{step * len(bars) + 40}" '
        'font-family="sans-serif" font-size="12">',
        '<text x="10" y="18" font-weight="bold">Time to first token beyond a single server, p50, ms (95 %)</text>',
    ]
    for index, row in enumerate(bars):
        mean, low, high = row["exposed_p50_ms"]
        y = 30 + index * step
        colour = "#2a7" if row["way"].startswith("kvpush") else "#888"
        label = f"{row['way']}, {row['prompt_tokens']} tokens, {row['at_once']} at once"
        parts += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{left}" y="{y}" width="{max(0.0, mean * scale):.1f}" height="16" fill="{colour}"/>',
            f'<line x1="{left + max(0.0, low * scale):.1f}" x2="{left + max(0.0, high * scale):.1f}" y1="{y + 8}" '
            f'y2="{y + 8}" stroke="black"/>',
            f'<text x="{left + max(0.0, high * scale) + 6:.1f}" y="{y + 13}">{mean}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
