"""What both ways to submit share: questions by line, and an interpreter that is busy or not."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import worker
from submit_case import Case

# Seconds of each part of one submission, by name.
Parts = dict[str, float]
Submit = Callable[[Case, int], Parts]


class _Spinner(threading.Thread):
    """Runs Python as an engine does that schedules and samples; gives the lock away only when told to."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.on = True

    def run(self) -> None:
        while self.on:
            pass


@contextlib.contextmanager
def interpreter(busy: bool) -> Iterator[None]:
    if not busy:
        yield
        return
    spinner = _Spinner()
    spinner.start()
    try:
        yield
    finally:
        spinner.on = False
        spinner.join()


def begin_anywhere() -> None:
    """Returns at any point of this thread's turn with the interpreter, as an engine's call would come.

    Right after waiting a thread has a whole turn before it.
    """
    end = time.perf_counter() + random.uniform(0, sys.getswitchinterval())
    while time.perf_counter() < end:
        pass


@contextlib.contextmanager
def timed(parts: Parts, name: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    parts[name] = parts.get(name, 0.0) + time.perf_counter() - begin


def serve(make: Callable[[], Submit | str]) -> None:
    """`make` returns what submits, or why nothing can."""
    answers = os.fdopen(worker.own_output(), "w")
    submit = make()
    print(submit if isinstance(submit, str) else "ready", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        with interpreter(question["busy"]):
            parts = submit(Case(**question["case"]), question["turn"])
        print(json.dumps(parts), file=answers, flush=True)
