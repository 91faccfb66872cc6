#!/usr/bin/env python3
"""Builds and runs the micro benchmarks: every `*_bench` program of the release build, one after the other.

Prints the machine and the commit first, so that the output can go to docs/benchmarks as it is. Arguments are passed on
to each program, such as --benchmark_filter=Plan.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import process
from machine import machine
from process import ROOT

BUILD = ROOT / "build" / "release"
BUILD_LIMIT_S = 1800.0


def build(targets: Sequence[str] = ("all",)) -> None:
    """The release build's, with what it needs."""
    for name, command in (
        ("setup", [ROOT / "tools" / "setup", "packages"]),
        ("configure", ["cmake", "--preset", "release"]),
        ("build", ["ninja", "-C", BUILD, "-j", str(len(os.sched_getaffinity(0))), *targets]),
    ):
        one = process.Process(name, command, ROOT / "build" / "bench" / f"{name}.log")
        code = process.run(one, BUILD_LIMIT_S, lambda line: print(f"still at it: {line}", file=sys.stderr, flush=True))
        if code != 0:
            sys.exit(f"{process.tail(one.log, 30)}\n{name} failed with {code}; see {one.log}")


def main() -> int:
    build()
    print("{cpu}, {cores} cores, Linux {kernel}; commit {commit}".format(**machine()), flush=True)
    programs = sorted(path for path in BUILD.rglob("*_bench") if os.access(path, os.X_OK) and path.is_file())
    failed = []
    for program in programs:
        print(f"\n# {program.relative_to(BUILD)}", flush=True)
        if subprocess.run([program, *sys.argv[1:]], cwd=ROOT, check=False).returncode != 0:
            failed.append(program.name)
    if failed or not programs:
        sys.exit(f"failed: {' '.join(failed)}" if failed else "there are no benchmarks")
    return 0


if __name__ == "__main__":
    process.run_program(main)
