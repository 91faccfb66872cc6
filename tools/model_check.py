#!/usr/bin/env python3
"""Checks the model of the protocol, docs/protocol/protocol.pml, with spin: that it is sound, and that it can fail.

  sound    the protocol as it is: no state breaks an invariant, and wherever a run ends nothing is left undone
  ends     no run goes on for ever, so that every run comes to such an end
  sights   situations without which the proof would be worth little do occur
  plant    with one mistake put in, spin finds the invariant that it breaks

Each search is one test case. --long lets all troubles meet a lease that runs out: minutes, and more than 5 GB.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "docs" / "protocol" / "protocol.pml"
OUT = ROOT / "build" / "check" / "model"
JOBS = len(os.sched_getaffinity(0))
# Runs have 200 steps at most; a search that is cut off here fails.
DEPTH_MAX = 10_000
# The largest search takes 1 GB, or with --long more than 5.
MEMORY_MB_MAX = {False: 4_000, True: 12_000}
# It takes half a minute where nothing else runs, or with --long four.
SEARCH_LIMIT_S = {False: 600.0, True: 3600.0}

TRANSPORTS = {"plain": [], "fencing": ["-DFENCING"]}
SMALL = ["-DTROUBLES=1", "-DLAPSES=1"]
# Each mistake, a transport on which it does harm, and the invariant that it breaks.
PLANTS = {
    "NO_CHECK": ("plain", "landed_after_give_back"),
    "RELEASE_ON_REVOKE": ("plain", "landed_after_give_back"),
    "LEASE_IS_PROOF": ("plain", "landed_after_give_back"),
    "OLD_SESSION": ("plain", "landed_after_give_back"),
    "REGISTER_AGAIN": ("plain", "landed_after_give_back"),
    "EARLY_REVOKED": ("fencing", "landed_after_give_back"),
    "EARLY_CANCEL": ("plain", "read_after_give_back"),
    "EARLY_DELIVERED": ("plain", "ready_with_wrong_bytes"),
    "FORGET": ("plain", "ended_differently"),
    "SILENT_REVOKE": ("plain", "never_ended"),
    "KEEP_AFTER_DONE": ("fencing", "something_remains"),
}


@dataclass(frozen=True)
class Case:
    """One search of the model."""

    name: str
    defines: Sequence[str]
    kind: str
    breaks: str = ""  # what a planted mistake must be found to break


@dataclass
class Verdict:
    """What came of a case; without a complaint it is as it should be."""

    case: Case
    complaint: str = ""
    states: int = 0
    depth: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        found = f"{self.states:>10,} states, depth {self.depth:>3}, {self.seconds:5.1f} s"
        line = f"{'FAILED' if self.complaint else 'ok':<7}{self.case.name:<58}{found}"
        return f"{line}\n       {self.complaint}" if self.complaint else line


def cases(long: bool) -> Iterator[Case]:
    """The longest first, so that they run beside each other."""
    bounded = (("sound", 2, 1 if long else 0), ("sound", 1, 1), ("ends", 1, 0), ("ends", 0, 1))
    for kind, troubles, lapses in bounded:
        for transport, defines in TRANSPORTS.items():
            bounds = [f"-DTROUBLES={troubles}", f"-DLAPSES={lapses}"]
            yield Case(f"{kind}: {transport}, troubles {troubles}, lapses {lapses}", [*defines, *bounds], kind)
    for transport, defines in TRANSPORTS.items():
        yield Case(f"sights: {transport}", [*defines, *SMALL, "-DSIGHTS"], "sights")
    for plant, (transport, breaks) in PLANTS.items():
        defines = [*TRANSPORTS[transport], *SMALL, f"-DPLANT_{plant}", f"-DONLY={breaks}"]
        yield Case(f"plant: {plant.lower()} shows as {breaks}", defines, "plant", breaks)


def search(case: Case, long: bool) -> Verdict:
    """Makes, compiles and runs the verifier of a case, in a folder of its own."""
    folder = OUT / re.sub(r"\W+", "-", case.name)
    folder.mkdir(parents=True)
    verdict = Verdict(case)
    begin = time.monotonic()
    # Mistakes are found at once; for them a fast compiler is worth more than a fast verifier.
    flags = ["-O0" if case.kind == "plant" else "-O1", "-w", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB_MAX[long]}"]
    flags.append("-DNP" if case.kind == "ends" else "-DSAFETY")
    commands = (
        ["spin", "-a", *case.defines, str(MODEL)],
        ["gcc", *flags, "-o", "pan", "pan.c"],
        ["./pan", f"-m{DEPTH_MAX}", *(["-l"] if case.kind == "ends" else [])],
    )
    text = ""
    for command in commands:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SEARCH_LIMIT_S[long],
                check=False,
            )
        except subprocess.TimeoutExpired:
            verdict.complaint = f"{command[0]} took more than {SEARCH_LIMIT_S[long]:.0f} s"
            return verdict
        text = done.stdout + done.stderr
        (folder / f"{Path(command[0]).name}.log").write_text(text)
        if done.returncode != 0:
            verdict.complaint = f"{command[0]} ended with {done.returncode}: {text.strip()[-300:]}"
            return verdict
    verdict.seconds = time.monotonic() - begin
    verdict.states = int(re.search(r"(\d+) states, stored", text)[1])
    verdict.depth = int(re.search(r"depth reached (\d+)", text)[1])
    verdict.complaint = complaint(case, text)
    if not verdict.complaint:
        shutil.rmtree(folder)
    elif (folder / "protocol.pml.trail").exists():
        replay = ["spin", "-k", "protocol.pml.trail", "-p", "-l", *case.defines, str(MODEL)]
        verdict.complaint += f"; its steps: (cd {folder.relative_to(ROOT)} && {' '.join(replay)})"
    return verdict


def complaint(case: Case, text: str) -> str:
    """What is wrong with the verifier's output, or nothing."""
    error = re.search(r"^pan:\d+: (.*)$", text, re.MULTILINE)
    found = error[1] if error else ""
    if case.kind == "plant":
        if re.match(rf"assertion violated +!\({case.breaks}\)", found):
            return ""
        return f"spin did not find it: {found}" if found else "spin did not find it"
    if found:
        return found
    if "Search not completed" in text or "error: max search depth too small" in text or "errors: 0" not in text:
        return f"the search was not completed: {text.strip()[:300]}"
    if case.kind == "sights":
        return unseen(text)
    return ""


def unseen(text: str) -> str:
    """The steps of the process Sights that no state allowed."""
    section = re.search(
        r"^unreached in proctype Sights\n(.*?)\n\t\(\d+ of \d+ states\)", text, re.MULTILINE | re.DOTALL
    )
    if not section:
        return "spin says nothing about the process Sights"
    never = [line.strip() for line in section[1].splitlines() if '"-end-"' not in line]
    return f"never seen: {'; '.join(never)}" if never else ""


def write_junit(path: Path, verdicts: Sequence[Verdict]) -> None:
    suite = ElementTree.Element("testsuite", name="model")
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", name=verdict.case.name, time=f"{verdict.seconds:.1f}")
        if verdict.complaint:
            ElementTree.SubElement(case, "failure", message=verdict.complaint)
    ElementTree.ElementTree(suite).write(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="a part of the names of the cases to run")
    parser.add_argument("--long", action="store_true", help="larger searches")
    parser.add_argument("--junit", type=Path, help="where the verdicts are written for tools/check")
    arguments = parser.parse_args()
    chosen = [case for case in cases(arguments.long) if arguments.only in case.name]
    if not chosen:
        parser.error("no case has that in its name")
    if shutil.which("spin") is None:
        sys.exit("spin is not installed: tools/setup packages installs it")
    shutil.rmtree(OUT, ignore_errors=True)
    verdicts = []
    with ThreadPoolExecutor(1 if arguments.long else JOBS) as pool:  # the long ones need all memory
        for verdict in pool.map(lambda case: search(case, arguments.long), chosen):
            print(verdict, flush=True)
            verdicts.append(verdict)
    if arguments.junit:
        write_junit(arguments.junit, verdicts)
    return 1 if any(verdict.complaint for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
