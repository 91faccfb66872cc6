"""Bytes from process to process: kvpush's transports beside the barest programs that move the same descriptors.

cma stands beside a bare loop over `process_vm_writev` and a memcpy within one process; UCX over TCP beside bare UCX
(one put for each descriptor, or messages that the target copies) and UCX's own perftest; NIXL over TCP beside NIXL's
Python package alone. Descriptors are in an order of their own on each side, as paged blocks are.

All programs are up at once, and all but the one being measured are paused. For each load the ways take turns, in an
order that moves on with each rotation; the first transfer of a turn is not counted. Prints one table and writes JSON
and an SVG.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import results
import wire_perftest
import wire_report
from bench import build
from process import ROOT, run_program
from results import say
from wire_report import Load, Sample
from worker import APPS, PYTHON, Worker, rotated, started

OUT = ROOT / "build" / "bench" / "wire"
HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "cma": [APPS / "bench_wires", "cma"],
    "ucx": [APPS / "bench_wires", "ucx"],
    "nixl": [APPS / "bench_wires", "nixl"],
    "bare-ucx": [APPS / "bench_bare_ucx"],
    "nixl-alone": [PYTHON, HERE / "wire_nixl.py"],
}
# The program that has each way, and the name that it has there.
WAYS = {
    "kvpush-cma": ("cma", "kvpush"),
    "writev": ("cma", "writev"),
    "memcpy": ("cma", "memcpy"),
    "kvpush-ucx": ("ucx", "kvpush"),
    "ucx-put": ("bare-ucx", "put"),
    "ucx-message": ("bare-ucx", "message"),
    "kvpush-nixl": ("nixl", "kvpush"),
    "nixl": ("nixl-alone", "nixl"),
}
KIB, MIB = 1 << 10, 1 << 20
LOADS = tuple(
    Load(length, total)
    for total, lengths in (
        (4 * KIB, (4 * KIB,)),
        (64 * KIB, (64 * KIB,)),
        (MIB, (4 * KIB, 64 * KIB)),
        (16 * MIB, (4 * KIB, 64 * KIB, MIB)),
        (256 * MIB, (4 * KIB, 64 * KIB, MIB)),
    )
    for length in lengths
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rotations", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=5, help="transfers in a turn; their median counts")
    parser.add_argument("--bytes-max", type=int, default=256 * MIB, help="leave out larger transfers")
    parser.add_argument("--no-build", action="store_true", help="measure the programs that are there")
    parser.add_argument("--out", type=Path, default=OUT / "wire.json")
    return parser.parse_args()


def sample(answer: str) -> Sample:
    """Of what bench/wire/load.h answers; ways that post nothing say 0."""
    seconds, posting_s = map(float, answer.split())
    return Sample(seconds, posting_s or None)


@dataclass(frozen=True)
class Asked:
    """A way that a program has."""

    name: str
    worker: Worker
    word: str

    def turn(self, load: Load, repeats: int) -> list[Sample]:
        question = f"{self.word} {load.length_bytes} {load.total_bytes}"
        with self.worker.running():
            answers = [self.worker.ask(question) for _ in range(1 + repeats)]
        return [sample(answer) for answer in answers[1:]]


@dataclass(frozen=True)
class Perftest:
    """UCX's own program, started for each turn and once only, since it takes seconds."""

    name: str = "perftest"

    def turn(self, load: Load, repeats: int) -> list[Sample]:
        return [Sample(wire_perftest.seconds(load.length_bytes, load.total_bytes))]


class Measurement:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._loads = [load for load in LOADS if load.total_bytes <= arguments.bytes_max]
        self._samples: dict[tuple[Load, str], list[list[Sample]]] = defaultdict(list)

    def run(self, ways: list[Asked | Perftest]) -> None:
        for rotation in range(self._arguments.rotations):
            for load in self._loads:
                for way in rotated(ways, rotation):
                    self._measure(way, load)
            say(f"rotation {rotation + 1} of {self._arguments.rotations}")
            self.write()

    def _measure(self, way: Asked | Perftest, load: Load) -> None:
        # Bandwidth is all that it tells, which needs many puts.
        if isinstance(way, Perftest) and load.total_bytes < LOADS[-1].total_bytes:
            return
        self._samples[load, way.name].append(way.turn(load, self._arguments.repeats))

    def rows(self) -> list[dict]:
        return wire_report.Figures(self._samples).rows()

    def write(self) -> None:
        rows = self.rows()
        results.write(self._arguments.out, self._arguments, rows, wire_report.picture(rows))


def ways_of(ready: list[Worker]) -> list[Asked | Perftest]:
    workers = {worker.name: worker for worker in ready}
    ways = [Asked(name, workers[program], word) for name, (program, word) in WAYS.items() if program in workers]
    if wire_perftest.installed():
        return [*ways, Perftest()]
    say("perftest: not installed")
    return ways


def main() -> int:
    arguments = parse()
    if not arguments.no_build:
        build(["bench_wires", "bench_bare_ucx", "kvpush_ucx"])
    measurement = Measurement(arguments)
    workers = [Worker(name, command, OUT / "logs") for name, command in PROGRAMS.items()]
    with started(workers, say) as ready:
        if not ready:
            sys.exit("nothing can be measured here")
        measurement.run(ways_of(ready))
    rows = measurement.rows()
    print(json.dumps(results.measured_on()))
    print(wire_report.table(rows))
    print("", *wire_report.verdicts(rows), sep="\n")
    print(f"\n{arguments.out} has all of it; {arguments.out.with_suffix('.svg')} is a picture")
    return 0


if __name__ == "__main__":
    run_program(main)
