"""Planning and posting as an agent's thread does them, timed within the native library.

Imports nothing that starts threads: the library forks.
"""

from __future__ import annotations

import ctypes
from array import array

from submit_case import CASES, PAGE_BYTES, Case
from submit_worker import Parts
from worker import APPS

LIBRARY = APPS / "bench_submit.so"


class Submitter:
    """A transport connected with that of a child process."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p(handle)
        self._prepared: Case | None = None

    @staticmethod
    def open(transport: str) -> Submitter | None:
        """None if the transport cannot be used here. To be called before this process has threads."""
        library = ctypes.CDLL(str(LIBRARY))
        library.kvpush_submit_open.restype = ctypes.c_void_p
        library.kvpush_submit_send.restype = ctypes.c_uint64
        size_bytes = max(case.memory_bytes() for case in CASES)
        handle = library.kvpush_submit_open(transport.encode(), ctypes.c_uint64(size_bytes))
        return None if handle is None else Submitter(library, handle)

    def send(self, case: Case, turn: int, parts: Parts) -> None:
        if case != self._prepared:
            offsets = array("Q", case.offsets())
            self._library.kvpush_submit_prepare(
                self._handle, _place(offsets), case.planes, case.pool_blocks, PAGE_BYTES
            )
            self._prepared = case
        tables = [array("I", table) for table in case.tables(turn)]
        seconds = (ctypes.c_double * 3)()
        count = self._library.kvpush_submit_send(
            self._handle, *map(_place, tables), ctypes.c_uint64(case.blocks), seconds
        )
        if count != case.descriptors:
            raise RuntimeError(f"{count} descriptors were made for {case.descriptors}")
        parts["plan"], parts["post"], parts["poll"] = seconds


def _place(numbers: array) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])
