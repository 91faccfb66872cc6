#!/usr/bin/env python3
"""Writes docs/faults.md: the rows of tests/faults.txt, each with the tests that show it.

A test says what it shows by its name, which begins with the row's id (`A4WhatWaits...`), or by a comment above it that
begins with "Shows" and the ids: `// Shows A4, B9.` In a transcript the comment that tells what happens ends with it.
`tools/check house` fails if the page is not up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MATRIX = "tests/faults.txt"
PAGE = "docs/faults.md"

SHOWS = re.compile(r"\s*(?://|#) (.*\b)?Shows ([A-F]\d+(?:, [A-F]\d+)*)\.$")
ID = re.compile(r"[A-F]\d+")
CPP_TEST = re.compile(r"(?:TEST(?:_[FP])?|RC_GTEST_PROP)\((\w+), (([A-F]\d+)?\w+)")
PYTHON_TEST = re.compile(r"(?:async )?def (test_\w+)\(")
FUZZ_TARGET = re.compile(r'extern "C" int LLVMFuzzerTestOneInput\(.*\{')
TESTS = re.compile(r".*_test\.cc|tests/fuzz/fuzz_\w+\.cc|.*/test_\w+\.py|tests/protocol/.*\.txt")


@dataclass(frozen=True)
class Row:
    id: str
    situation: str
    must_show: str


@dataclass(frozen=True)
class Shown:
    """A test and the rows it shows."""

    path: str
    test: str
    ids: tuple[str, ...]


def read_matrix(text: str) -> dict[str, list[Row]]:
    """The rows below each heading. Raises ValueError on a line that is no row, or an id that stands twice."""
    parts: dict[str, list[Row]] = {}
    seen: set[str] = set()
    for line in text.splitlines():
        if line.startswith("## "):
            parts[line.removeprefix("## ")] = []
        elif line and not line.startswith("#"):
            cells = line.split(" | ")
            if len(cells) != 3 or not ID.fullmatch(cells[0]) or cells[0] in seen or not parts:
                raise ValueError(f"{MATRIX}: no row, or one that stands there already: {line}")
            seen.add(cells[0])
            parts[list(parts)[-1]].append(Row(*cells))
    return parts


def shown_in(path: str, text: str) -> Iterator[Shown]:
    """What the tests of a file show. Raises ValueError on a comment that no test follows."""
    pending: tuple[str, ...] = ()
    for line in text.splitlines():
        if match := SHOWS.match(line):
            ids = tuple(match[2].split(", "))
            if path.endswith(".txt"):
                yield Shown(path, (match[1] or "").strip(), ids)
            else:
                pending = ids
        elif match := CPP_TEST.match(line):
            if ids := (*pending, *((match[3],) if match[3] else ())):
                yield Shown(path, f"{match[1]}.{match[2]}", ids)
            pending = ()
        elif FUZZ_TARGET.match(line):
            if pending:
                yield Shown(path, Path(path).stem, pending)
            pending = ()
        elif match := PYTHON_TEST.match(line):
            if pending:
                yield Shown(path, match[1], pending)
            pending = ()
    if pending:
        raise ValueError(f"{path}: no test follows the comment that shows {', '.join(pending)}")


def page(files: Mapping[str, str]) -> str:
    """The page as it should be, from the tree's files as {path: text}. Raises ValueError that names what is wrong."""
    matrix = read_matrix(files[MATRIX])
    shown = [one for path in sorted(files) if TESTS.fullmatch(path) for one in shown_in(path, files[path])]
    known = {row.id for rows in matrix.values() for row in rows}
    for one in shown:
        if unknown := set(one.ids) - known:
            raise ValueError(f"{one.path}: {one.test} shows {', '.join(unknown)}, which {MATRIX} does not have")
    lines = [
        "# Faults",
        "",
        "What goes wrong in the field, what must be seen then, and the tests that show it.",
        f"`tools/faults.py` writes this page from `{MATRIX}` and the tests.",
    ]
    for heading, rows in matrix.items():
        lines += ["", f"## {heading}"]
        for row in rows:
            tests = [f"- {one.test} (`{one.path}`)" for one in shown if row.id in one.ids]
            lines += ["", f"**{row.id}** {row.situation}: {row.must_show}", "", *(tests or ["- no test yet"])]
    return "\n".join([*lines, ""])


def check(files: Mapping[str, str]) -> list[str]:
    """A check of tools/house.py."""
    try:
        up_to_date = files.get(PAGE) == page(files)
    except ValueError as error:
        return [str(error)]
    return [] if up_to_date else [f"{PAGE}:1: is not up to date: run tools/faults.py"]


def main() -> int:
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True, capture_output=True)
    paths = [name for name in names.stdout.splitlines() if name == MATRIX or TESTS.fullmatch(name)]
    try:
        made = page({name: (ROOT / name).read_text() for name in paths if (ROOT / name).exists()})
    except ValueError as error:
        sys.exit(str(error))
    (ROOT / PAGE).write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
