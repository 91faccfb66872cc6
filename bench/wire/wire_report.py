"""The figures of `make bench-wire`, from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import figures
import plot
from figures import percentile


@dataclass(frozen=True)
class Load:
    """`total_bytes` in descriptors of `length_bytes`; both divide the memory of bench/wire/load.h."""

    length_bytes: int
    total_bytes: int

    @property
    def descriptors(self) -> int:
        return self.total_bytes // self.length_bytes


@dataclass(frozen=True)
class Sample:
    seconds: float
    posting_s: float | None = None


# What ways of kvpush stand beside, and the ways that have it: of several the fastest in each rotation counts.
REFERENCES = {
    "writev": ("writev",),
    "memcpy": ("memcpy",),
    "bare UCX": ("ucx-put", "ucx-message"),
    "perftest": ("perftest",),
    "nixl": ("nixl",),
}
BESIDE = {
    "kvpush-cma": ("writev", "memcpy"),
    "kvpush-ucx": ("bare UCX", "perftest"),
    "kvpush-nixl": ("bare UCX", "perftest", "nixl"),
}


@dataclass(frozen=True)
class Aim:
    way: str
    of: str
    share: float
    length_bytes_min: int = 0


AIMS = (
    Aim("kvpush-cma", "writev", 0.95),
    Aim("kvpush-ucx", "bare UCX", 0.90, 64 << 10),
    Aim("kvpush-nixl", "bare UCX", 0.90, 64 << 10),
)

# By load and way: for each rotation its samples.
Samples = Mapping[tuple[Load, str], Sequence[Sequence[Sample]]]


class Figures:
    """All rows of one run."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def rows(self) -> list[dict]:
        return [self._row(load, way) for load, way in self._samples]

    def _row(self, load: Load, way: str) -> dict:
        rotations = self._samples[load, way]
        row: dict = {
            "way": way,
            "length_bytes": load.length_bytes,
            "total_bytes": load.total_bytes,
            "descriptors": load.descriptors,
            "rotations": len(rotations),
            "seconds": percentile(self._medians(load, way), 0.5),
            "of": {
                reference: figures.ratio(self._fastest(load, others), self._medians(load, way))
                for reference in BESIDE.get(way, ())
                if (others := [other for other in REFERENCES[reference] if (load, other) in self._samples])
            },
        }
        row["bytes_per_s"] = load.total_bytes / row["seconds"]
        posting = [sample.posting_s for rotation in rotations for sample in rotation if sample.posting_s is not None]
        if posting:
            row["posting_s"] = percentile(posting, 0.5)
        return row

    def _fastest(self, load: Load, ways: Sequence[str]) -> list[float]:
        return [min(one) for one in zip(*(self._medians(load, way) for way in ways), strict=True)]

    def _medians(self, load: Load, way: str) -> list[float]:
        """Of each rotation."""
        return [percentile([sample.seconds for sample in one], 0.5) for one in self._samples[load, way]]


def _share(other: str):
    return lambda row: figures.percent(row["of"][other])


COLUMNS = {
    "bytes": lambda row: figures.size(row["total_bytes"]),
    "descriptors": lambda row: f"{row['descriptors']} of {figures.size(row['length_bytes'])}",
    "way": lambda row: row["way"],
    "time": lambda row: figures.seconds(row["seconds"]),
    "GB/s": lambda row: f"{row['bytes_per_s'] / 1e9:.2f}",
    "posting": lambda row: figures.seconds(row["posting_s"]),
    **{f"of {reference}": _share(reference) for reference in REFERENCES},
}


def table(rows: Iterable[dict]) -> str:
    return "\n".join(figures.table(COLUMNS, rows))


def verdicts(rows: Iterable[dict]) -> list[str]:
    """A line for each aim and load."""
    lines = []
    for row in rows:
        for aim in AIMS:
            if row["way"] != aim.way or row["length_bytes"] < aim.length_bytes_min or aim.of not in row["of"]:
                continue
            share = row["of"][aim.of]
            lines.append(
                f"{aim.way}, {row['descriptors']} of {figures.size(row['length_bytes'])}: {figures.percent(share)} of "
                f"{aim.of}, aim {100 * aim.share:.0f} %: {figures.at_least(share, aim.share)}"
            )
    return lines


def picture(rows: Sequence[dict]) -> str:
    """An SVG with a bar for each way of the largest transfers."""
    total = max((row["total_bytes"] for row in rows), default=0)
    bars = [
        plot.Bar(
            f"{row['descriptors']} of {figures.size(row['length_bytes'])}, {row['way']}",
            row["bytes_per_s"] / 1e9,
            f"{row['bytes_per_s'] / 1e9:.2f} GB/s",
            plot.OWN if row["way"] in BESIDE else plot.OTHER,
        )
        for row in rows
        if row["total_bytes"] == total
    ]
    return plot.bars(f"{figures.size(total)} from process to process (descriptors, way)", bars)
