"""Where the time of each transfer went, from what router, prefill and decode engines remember of it.

Everyone keeps a timeline of its own transfers on its own clock (docs/directory.md, docs/router.md). Here the timelines
are fetched, put on one time axis with the two clocks that stand in each document, and joined by transfer id: for the
table that is printed, and for a trace that Perfetto and chrome://tracing show.
"""

from __future__ import annotations

import http.client
import json
import math
import statistics
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

PATH = "/kvpush/v1/transfers"
# A directory waits a second for each of its ranks, all at once.
ANSWER_LIMIT_S = 5.0
# More than the way of one message between hosts, and than the pauses of a busy one.
CLOCK_DIFFERENCE_S = 0.01

# Engines are asked directly, whatever proxy the environment names for the rest of the world.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# Whose record it is: a router's, that of an engine's scheduler, or that of one of its ranks.
Kind = tuple[str, bool]  # role, whether of a rank
ROUTER: Kind = ("router", False)
P: Kind = ("producer", False)
P_RANK: Kind = ("producer", True)
D: Kind = ("consumer", False)
D_RANK: Kind = ("consumer", True)


class TraceError(Exception):
    """One sentence for the person at the terminal."""


@dataclass(frozen=True)
class Document:
    """What one address answered."""

    address: str
    body: dict[str, Any]

    def producers(self) -> set[str]:
        """The directories of prefill engines that it names."""
        return {one.peer.split()[0] for one in self.records() if one.role != "producer" and one.peer}

    def records(self) -> Iterator[Record]:
        """Those with a point. Raises TraceError when it is no document of docs/directory.md or docs/router.md."""
        try:
            offset = self.body["now_unix_seconds"] - self.body["now_boot_seconds"]
            for part, one in self._parts():
                record = Record.read(one, self.address, part, offset)
                # Newer ones may remember what is not known here.
                if record.points.keys() & POINTS.get(record.kind, ()):
                    yield record
        except (KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"{self.address} answers, but not as this version of kvpush does ({error!r})") from error

    def _parts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(part, entry) of everything that is remembered here."""
        if "ranks" not in self.body:
            yield from (("", one) for one in [*self.body["ended"], *self.body["live"]])
            return
        yield from (("scheduler", one) for one in self.body["engine"])
        for rank in self.body["ranks"]:
            yield from ((f"rank {rank['rank']}", one) for one in [*rank.get("ended", ()), *rank.get("live", ())])

    def silent_ranks(self) -> list[str]:
        return [f"rank {one['rank']}: {one['error']}" for one in self.body.get("ranks", ()) if "error" in one]


@dataclass(frozen=True)
class Record:
    """One timeline. `part` is "" for a router, else "scheduler" or "rank N"; `points` are seconds since 1970."""

    address: str
    part: str
    role: str
    transfer_id: str
    request: str
    peer: str
    outcome: str
    bytes: int | None
    tokens: int | None
    points: dict[str, float]

    @staticmethod
    def read(one: dict[str, Any], address: str, part: str, offset: float) -> Record:
        start = one["start_boot_seconds"] + offset
        return Record(
            address,
            part,
            one["role"],
            one["transfer_id"],
            one["request"],
            one["peer"],
            one["outcome"],
            one.get("bytes"),
            one.get("tokens"),
            {name: start + seconds for name, seconds in one["timeline_seconds"].items()},
        )

    @property
    def call_id(self) -> str:
        """What the router knows: the other prompts of a call are transfers of their own, "<id>#<index>"."""
        return self.transfer_id.partition("#")[0]

    @property
    def kind(self) -> Kind:
        return self.role, self.part.startswith("rank")


def fetch(address: str) -> Document:
    """Raises TraceError when nobody answers, or somebody else does."""
    url = f"http://{address}{PATH}"
    try:
        with DIRECT.open(url, timeout=ANSWER_LIMIT_S) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        raise TraceError(f"{address} answers {PATH} with status {error.code}: no router and no directory?") from error
    except urllib.error.URLError as error:
        raise TraceError(f"{address} does not answer: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise TraceError(f"{address} does not answer: {error}") from error
    except ValueError as error:
        raise TraceError(f"{address} answers {PATH} with something that is not JSON") from error
    if not isinstance(body, dict):
        raise TraceError(f"{address} answers {PATH} with something that is no object")
    return Document(address, body)


# One transfer, from everyone's records.

# The points of each kind of record in the order in which they happen. Of a consumer's copies of the producer's points
# only `matched` stands here: the others are the producer's to tell.
POINTS: dict[Kind, tuple[str, ...]] = {
    ROUTER: ("arrived", "legs_sent", "prefill_answered", "first_byte", "answered"),
    P: ("arrived", "admitted", "prefill_end"),
    P_RANK: ("offered", "matched", "first_post", "last_post", "completed"),
    D: ("arrived", "admitted", "reported", "first_step"),
    D_RANK: ("received", "registered", "matched", "delivered", "seen_by_engine"),
}

# What time goes to between two points of one record: the name of a slice in the trace, by the point that ends it.
SLICES: dict[Kind, dict[str, str]] = {
    ROUTER: {"legs_sent": "send both legs", "first_byte": "wait for the first byte", "answered": "answer"},
    P: {"admitted": "queue", "prefill_end": "prefill"},
    P_RANK: {
        "matched": "wait for the registration",
        "first_post": "plan",
        "last_post": "post",
        "completed": "complete",
    },
    D: {"admitted": "queue", "reported": "wait for KV", "first_step": "wait for a step"},
    D_RANK: {
        "registered": "reach the producer",
        "matched": "wait for the prefill",
        "delivered": "KV arrives",
        "seen_by_engine": "wait for the engine",
    },
}


@dataclass(frozen=True)
class Phase:
    """From one point to another, each of some kind of record."""

    name: str
    begin: tuple[Kind, str]
    end: tuple[Kind, str]


# In the order in which a request goes through them; the sum of the first group is the time to the first token.
PATH_PHASES = (
    Phase("router to prefill", (ROUTER, "arrived"), (P, "arrived")),
    Phase("prefill: queue", (P, "arrived"), (P, "admitted")),
    Phase("prefill: compute", (P, "admitted"), (P, "prefill_end")),
    Phase("prefill: tell its agent", (P, "prefill_end"), (P_RANK, "offered")),
    Phase("wait for decode to register", (P_RANK, "offered"), (P_RANK, "matched")),
    Phase("plan", (P_RANK, "matched"), (P_RANK, "first_post")),
    Phase("write", (P_RANK, "first_post"), (P_RANK, "completed")),
    Phase("tell decode's agent", (P_RANK, "completed"), (D_RANK, "delivered")),
    Phase("decode: engine looks", (D_RANK, "delivered"), (D_RANK, "seen_by_engine")),
    Phase("decode: scheduler hears", (D_RANK, "seen_by_engine"), (D, "reported")),
    Phase("decode: wait for a step", (D, "reported"), (D, "first_step")),
    Phase("first step to first byte", (D, "first_step"), (ROUTER, "first_byte")),
)
OVERVIEW_PHASES = (
    Phase("destination held early", (D_RANK, "registered"), (D_RANK, "matched")),
    Phase("exposed: prefill end to first step", (P, "prefill_end"), (D, "first_step")),
    Phase("first byte after arrival", (ROUTER, "arrived"), (ROUTER, "first_byte")),
    Phase("answer after arrival", (ROUTER, "arrived"), (ROUTER, "answered")),
)


@dataclass
class Transfer:
    """Everyone's records of one transfer."""

    transfer_id: str
    records: list[Record] = field(default_factory=list)

    def at(self, kind: Kind, point: str) -> float | None:
        """When it happened; on the last rank where several have it."""
        found = [one.points[point] for one in self.with_point(kind, point)]
        if not found and kind == P_RANK:
            # What the producer told the consumer, when nobody asked the producer or it has forgotten.
            found = [one.points[point] for one in self.records if one.role == "consumer" and point in one.points]
        return max(found, default=None)

    def with_point(self, kind: Kind, point: str) -> list[Record]:
        return [one for one in self.records if one.kind == kind and point in one.points]

    def seconds(self, phase: Phase) -> float | None:
        begin, end = self.at(*phase.begin), self.at(*phase.end)
        return None if begin is None or end is None else end - begin


def join(records: Iterable[Record]) -> list[Transfer]:
    """By transfer id, in order of their first point. A router's record belongs to each prompt of its call.

    A record that came from two addresses, which are two names of one engine then, counts once.
    """
    transfers: dict[str, Transfer] = {}
    of_routers = defaultdict(list)
    for one in {(one.role, one.part, one.transfer_id, one.request): one for one in records}.values():
        if one.role == "router":
            of_routers[one.transfer_id].append(one)
        else:
            transfers.setdefault(one.transfer_id, Transfer(one.transfer_id)).records.append(one)
    for transfer_id, found in of_routers.items():
        calls = [one for one in transfers.values() if one.records[0].call_id == transfer_id]
        for transfer in calls or [transfers.setdefault(transfer_id, Transfer(transfer_id))]:
            transfer.records += found
    return sorted(transfers.values(), key=lambda one: min(min(record.points.values()) for record in one.records))


def clock_differences(transfers: Iterable[Transfer]) -> dict[tuple[str, str], float]:
    """(producer's, consumer's address) -> by how much the first one's clock is ahead, where that is noticeable.

    A consumer knows the producer's points as times before its own `delivered`, whatever the clocks are. The way of the
    message that told them is inside the difference.
    """
    found = defaultdict(list)
    for transfer in transfers:
        for p in transfer.with_point(P_RANK, "matched"):
            for d in transfer.with_point(D_RANK, "matched"):
                found[p.address, d.address].append(p.points["matched"] - d.points["matched"])
    medians = {pair: statistics.median(values) for pair, values in found.items()}
    return {pair: median for pair, median in medians.items() if abs(median) > CLOCK_DIFFERENCE_S}


# The table.


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def table(transfers: Sequence[Transfer]) -> str:
    """Median and 90th percentile of each phase, in milliseconds. Phases that nobody knew are left out."""
    lines = [f"{'phase':34}  transfers  median ms     p90 ms"]
    for group in (PATH_PHASES, OVERVIEW_PHASES):
        rows = []
        for phase in group:
            known = [1000 * seconds for one in transfers if (seconds := one.seconds(phase)) is not None]
            if known:
                rows.append(
                    f"{phase.name:34}  {len(known):9}  {percentile(known, 50):9.3f}  {percentile(known, 90):9.3f}"
                )
        if rows:
            lines += ["-" * len(lines[0]), *rows]
    return "\n".join(lines)


# The trace.


class Lanes:
    """Puts slices of one process side by side so that those of one lane do not overlap."""

    def __init__(self) -> None:
        self._free_from: list[float] = []

    def take(self, begin: float, end: float) -> int:
        """To be called in order of `begin`."""
        for lane, free_from in enumerate(self._free_from):
            if free_from <= begin:
                self._free_from[lane] = end
                return lane
        self._free_from.append(end)
        return len(self._free_from) - 1


class ChromeTrace:
    """Transfers as events of Chrome's trace format.

    One process for each who kept timelines, one slice for each timeline with its phases inside. Arrows lead from the
    router to the engines, and with the KV from prefill to decode.
    """

    ARROWS = (
        ((ROUTER, "arrived"), (P, "arrived")),
        ((ROUTER, "arrived"), (D, "arrived")),
        ((P_RANK, "first_post"), (D_RANK, "delivered")),
    )

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        # By identity, since a router's record may belong to several transfers.
        records = list({id(one): one for transfer in transfers for one in transfer.records}.values())
        records.sort(key=lambda one: min(one.points.values()))
        self.events: list[dict[str, Any]] = []
        self._origin = min(records[0].points.values()) if records else 0.0
        self._processes = {key: number for number, key in enumerate(sorted({self._process(one) for one in records}), 1)}
        self._lanes: dict[int, Lanes] = defaultdict(Lanes)
        self._tracks: dict[int, dict[str, int]] = {}  # of a record, by its id()
        for (_, name), number in self._processes.items():
            self.events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        for one in records:
            self._add_record(one)
        for transfer in transfers:
            self._add_arrows(transfer)

    def to_json(self) -> str:
        return json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"})

    @staticmethod
    def _process(record: Record) -> tuple[int, str]:
        """Its place among the processes, and its name."""
        place = ("router", "producer", "consumer").index(record.role)
        return place, f"{('router', 'prefill', 'decode')[place]} {record.address} {record.part}".rstrip()

    def _add_record(self, record: Record) -> None:
        points = {name: record.points[name] for name in POINTS[record.kind] if name in record.points}
        begin, end = min(points.values()), max(points.values())
        pid = self._processes[self._process(record)]
        track = self._tracks[id(record)] = {"pid": pid, "tid": self._lanes[pid].take(begin, end)}
        told = {"transfer": record.transfer_id, "request": record.request, "outcome": record.outcome}
        told |= {"peer": record.peer, "bytes": record.bytes, "tokens": record.tokens}
        self._add_slice(record.transfer_id, begin, end, track, args={k: v for k, v in told.items() if v is not None})
        before = begin
        for name, at in points.items():
            title = SLICES[record.kind].get(name)
            if title is not None:
                self._add_slice(title, before, at, track)
                before = max(before, at)
            elif at > begin:
                self.events.append({"ph": "i", "s": "t", "name": name, "ts": self._microseconds(at), **track})

    def _add_slice(self, name: str, begin: float, end: float, track: dict[str, int], **more: Any) -> None:
        ts = self._microseconds(begin)
        duration = self._microseconds(end) - ts
        if duration > 0:
            self.events.append({"ph": "X", "name": name, "ts": ts, "dur": duration, **track, **more})

    def _add_arrows(self, transfer: Transfer) -> None:
        for (begin_kind, begin), (end_kind, end) in self.ARROWS:
            for source in transfer.with_point(begin_kind, begin):
                for target in transfer.with_point(end_kind, end):
                    arrow = {"name": "transfer", "cat": "transfer", "id": len(self.events)}
                    for ph, record, point in (("s", source, begin), ("f", target, end)):
                        ts = self._microseconds(record.points[point])
                        self.events.append({"ph": ph, "bp": "e", "ts": ts, **arrow, **self._tracks[id(record)]})

    def _microseconds(self, at: float) -> int:
        """As fine as the timelines are."""
        return round(1e6 * (at - self._origin))


def gather(addresses: Sequence[str]) -> tuple[list[Document], list[str]]:
    """The documents of these addresses, and of the prefill engines that they name; and what could not be had.

    Raises TraceError when one of `addresses` does not answer: a table without it would lead astray.
    """
    documents = [fetch(address) for address in dict.fromkeys(addresses)]
    missing = []
    for address in sorted(set().union(*(one.producers() for one in documents)) - set(addresses)):
        try:
            documents.append(fetch(address))
        except TraceError as error:
            missing.append(f"{error}; it is named as the directory of a prefill engine")
    missing += [f"{one.address}: {rank}" for one in documents for rank in one.silent_ranks()]
    return documents, missing
