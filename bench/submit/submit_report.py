"""The figures of `make bench-submit`, from what the workers measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import figures
import plot
from figures import Estimate, percentile
from submit_case import Case

VLLM = "vllm"

# Compared: time on engine threads and planning. vLLM's make_prepped_xfer counts as planning: NIXL makes the request.
WORK = {"kvpush": ("engine", "plan"), VLLM: ("ids", "make")}
# Beside it: the transport's own. For kvpush all that its thread spends in it until the last byte has gone; for vLLM the
# call that posts, since a thread of NIXL's does the rest.
TRANSPORT = {"kvpush": ("post", "poll"), VLLM: ("post",)}
# What holds up an engine's thread: kvpush plans and posts on a thread of its own.
ENGINE_THREAD = {"kvpush": ("engine",), VLLM: ("ids", "make", "post")}

AIM_DESCRIPTORS = 18880
AIM_TIMES_LESS = 20.0
AIM_BUSY_OF_FREE = 1.10

# By way, case and whether the interpreter was busy: for each rotation, for each part, its samples.
Samples = Mapping[tuple[str, Case, bool], Sequence[Mapping[str, Sequence[float]]]]


def kind(way: str) -> str:
    return VLLM if way == VLLM else "kvpush"


def work(way: str) -> tuple[str, ...]:
    return WORK[kind(way)]


def with_transport(way: str) -> tuple[str, ...]:
    return WORK[kind(way)] + TRANSPORT[kind(way)]


def engine_thread(way: str) -> tuple[str, ...]:
    """All that the engine's thread waits for."""
    return ENGINE_THREAD[kind(way)]


def median(rotation: Mapping[str, Sequence[float]], parts: Sequence[str]) -> float:
    """Of the sums of these parts, submission by submission."""
    return percentile([sum(one) for one in zip(*(rotation[part] for part in parts), strict=True)], 0.5)


class Figures:
    """All rows of one run."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def rows(self) -> list[dict]:
        rows = [self._row(way, case, busy) for way, case, busy in self._samples]
        return sorted(rows, key=lambda row: (row["descriptors"], row["layers"], row["interpreter"] == "busy"))

    def _row(self, way: str, case: Case, busy: bool) -> dict:
        rotations = self._samples[way, case, busy]
        row: dict = {
            "way": way,
            "descriptors": case.descriptors,
            "planes": case.planes,
            "blocks": case.blocks,
            "layers": "even" if case.even else "uneven",
            "interpreter": "busy" if busy else "free",
            "rotations": len(rotations),
        }
        for part in rotations[0]:
            row[f"{part}_s"] = percentile([median(one, [part]) for one in rotations], 0.5)
        row["work_s"] = percentile(self._medians(way, case, busy, work(way)), 0.5)
        if busy:
            row["busy_of_free"] = figures.ratio(
                self._medians(way, case, True, work(way)), self._medians(way, case, False, work(way))
            )
        if way != VLLM and (VLLM, case, busy) in self._samples:
            row["times_less"] = self._times_less(way, case, busy, work)
            row["times_less_thread"] = self._times_less(way, case, busy, engine_thread)
            row["times_less_with_transport"] = self._times_less(way, case, busy, with_transport)
        return row

    def _medians(self, way: str, case: Case, busy: bool, parts: Sequence[str]) -> list[float]:
        return [median(one, parts) for one in self._samples[way, case, busy]]

    def _times_less(self, way: str, case: Case, busy: bool, parts) -> Estimate:
        theirs = self._medians(VLLM, case, busy, parts(VLLM))
        return figures.ratio(theirs, self._medians(way, case, busy, parts(way)))


COLUMNS = {
    "descriptors": lambda row: row["descriptors"],
    "layers": lambda row: row["layers"],
    "interpreter": lambda row: row["interpreter"],
    "way": lambda row: row["way"],
    "engine calls": lambda row: figures.seconds(row["engine_s"]),
    "planning": lambda row: figures.seconds(row["plan_s"]),
    "ids": lambda row: figures.seconds(row["ids_s"]),
    "make_prepped_xfer": lambda row: figures.seconds(row["make_s"]),
    "together": lambda row: figures.seconds(row["work_s"]),
    "times less than vLLM": lambda row: figures.times(row["times_less"]),
    "engine thread, times less": lambda row: figures.times(row["times_less_thread"]),
    "busy of free": lambda row: figures.percent(row["busy_of_free"]),
    "transport: post": lambda row: figures.seconds(row["post_s"]),
    "transport: poll": lambda row: figures.seconds(row["poll_s"]),
    "times less with transport": lambda row: figures.times(row["times_less_with_transport"]),
}


def table(rows: Iterable[dict]) -> str:
    return "\n".join(figures.table(COLUMNS, rows))


def verdicts(rows: Iterable[dict]) -> list[str]:
    """A line for each aim that these rows can say something about."""
    lines = []
    for row in rows:
        if row["descriptors"] != AIM_DESCRIPTORS or row["way"] == VLLM:
            continue
        what = f"{row['way']}, {AIM_DESCRIPTORS} descriptors, {row['layers']} layers, {row['interpreter']} interpreter"
        if "times_less" in row:
            verdict = figures.at_least(row["times_less"], AIM_TIMES_LESS)
            lines.append(f"{what}: {figures.times(row['times_less'])} times less, aim {AIM_TIMES_LESS:.0f}: {verdict}")
        if "busy_of_free" in row:
            verdict = figures.at_most(row["busy_of_free"], AIM_BUSY_OF_FREE)
            share = figures.percent(row["busy_of_free"])
            lines.append(f"{what}: {share} of free, aim at most {100 * AIM_BUSY_OF_FREE:.0f} %: {verdict}")
    return lines


def picture(rows: Iterable[dict]) -> str:
    """An SVG with a bar for each row."""
    bars = [
        plot.Bar(
            f"{row['descriptors']} {row['layers']}, {row['way']}, {row['interpreter']}",
            row["work_s"],
            figures.seconds(row["work_s"]),
            plot.OTHER if row["way"] == VLLM else plot.OWN,
        )
        for row in rows
    ]
    title = "Engine threads and planning for one transfer (descriptors and layers, way, interpreter), logarithmic"
    return plot.bars(title, bars, logarithmic=True)
