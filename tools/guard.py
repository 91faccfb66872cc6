"""Kills the process groups of a parent that has gone: the last resort of process.py, for a parent ended by SIGKILL.

Standard input is a pipe from the parent: a line `+N` when group N has started, `-N` when it has ended. The pipe's end
means that the parent is gone, whatever ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
