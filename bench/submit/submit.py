"""What it costs to submit a transfer: kvpush beside the Python path of vLLM's NIXL connector, same block tables.

For each number of descriptors, with a free and with a busy interpreter (a thread of the same process that runs Python
all the time): time on engine threads, planning, and beside these the transport's own time. vLLM's path is its function
for descriptor ids, `make_prepped_xfer` and `transfer` of NIXL's Python package; the thread that calls waits for all of
it. kvpush's engine threads make three kinds of calls to the agent (receive, send, take events), the agent's thread
plans and posts. Everything goes over TCP on the loopback interface. NIXL's threads that spin have a lower priority, so
that they do not take the cores that the others need.

The ways take turns in an order that moves on with each rotation. Prints one table and writes JSON and an SVG.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import results
import submit_report
from bench import build
from process import ROOT, run_program
from results import say
from submit_case import CASES, Case
from worker import PYTHON, Worker, rotated, started

OUT = ROOT / "build" / "bench" / "submit"
HERE = Path(__file__).resolve().parent
SIZES = sorted({case.descriptors for case in CASES})
# Such a case takes longer than all others together, and varies less: half of the repeats are enough for it.
LONG_DESCRIPTORS = 50_000
WAYS = {
    "kvpush-ucx": [PYTHON, HERE / "submit_kvpush.py", "ucx"],
    "kvpush-nixl": [PYTHON, HERE / "submit_kvpush.py", "nixl"],
    submit_report.VLLM: [PYTHON, HERE / "submit_vllm.py"],
}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS), help="what is compared (default: %(default)s)")
    parser.add_argument("--rotations", type=int, default=7)
    parser.add_argument(
        "--repeats",
        type=int,
        default=7,
        help="submissions in a rotation; their median counts (half as many of the largest)",
    )
    parser.add_argument("--descriptors", type=numbers, default=SIZES, metavar="N,N", help="which cases (default: all)")
    parser.add_argument("--no-build", action="store_true", help="measure the programs that are there")
    parser.add_argument("--out", type=Path, default=OUT / "submit.json")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.ways.split(",") if name not in WAYS]
    if unknown:
        parser.error(f"unknown ways {unknown}; there are {', '.join(WAYS)}")
    if not set(arguments.descriptors) <= set(SIZES):
        parser.error(f"there are cases of {SIZES} descriptors")
    return arguments


class Measurement:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._cases = [case for case in CASES if case.descriptors in arguments.descriptors]
        self._samples: dict[tuple[str, Case, bool], list[dict[str, list[float]]]] = defaultdict(list)

    def run(self, workers: list[Worker]) -> None:
        for worker in workers:  # opens sessions, fills caches; not counted
            with worker.running():
                for case in self._cases:
                    self._ask(worker, case, False, -1)
        for rotation in range(self._arguments.rotations):
            for worker in rotated(workers, rotation):
                with worker.running():
                    for case in self._cases:
                        for busy in (False, True):
                            self._measure(worker, case, busy, rotation)
            say(f"rotation {rotation + 1} of {self._arguments.rotations}")
            self.write()

    def _measure(self, worker: Worker, case: Case, busy: bool, rotation: int) -> None:
        parts: dict[str, list[float]] = defaultdict(list)
        repeats = self._arguments.repeats
        if case.descriptors > LONG_DESCRIPTORS:
            repeats = max(1, repeats // 2)
        for repeat in range(repeats):
            answer = self._ask(worker, case, busy, rotation * self._arguments.repeats + repeat)
            for part, seconds in answer.items():
                parts[part].append(seconds)
        self._samples[worker.name, case, busy].append(parts)

    @staticmethod
    def _ask(worker: Worker, case: Case, busy: bool, turn: int) -> dict[str, float]:
        question = {"case": asdict(case), "busy": busy, "turn": turn}
        return json.loads(worker.ask(json.dumps(question)))

    def rows(self) -> list[dict]:
        return submit_report.Figures(self._samples).rows()

    def write(self) -> None:
        rows = self.rows()
        results.write(self._arguments.out, self._arguments, rows, submit_report.picture(rows))


def main() -> int:
    arguments = parse()
    if not arguments.no_build:
        build(["bench_submit"])
    measurement = Measurement(arguments)
    workers = [Worker(name, WAYS[name], OUT / "logs") for name in arguments.ways.split(",")]
    with started(workers, say) as ready:
        if not ready:
            sys.exit("none of the ways can be measured here")
        measurement.run(ready)
    rows = measurement.rows()
    print(json.dumps(results.measured_on()))
    print(submit_report.table(rows))
    print("", *submit_report.verdicts(rows), sep="\n")
    print(f"\n{arguments.out} has all of it; {arguments.out.with_suffix('.svg')} is a picture")
    return 0


if __name__ == "__main__":
    run_program(main)
