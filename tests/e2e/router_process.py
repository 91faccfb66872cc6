"""kvpush-router as a process."""

from __future__ import annotations

from http_process import HttpProcess, binary
from network import Network


def router_binary() -> str:
    """KVPUSH_ROUTER, else the newest one built in this tree, else the installed one."""
    return binary("kvpush-router", "KVPUSH_ROUTER")


class RouterProcess(HttpProcess):
    """A running router."""

    def __init__(self, prefill: list[str], decode: list[str], *more: str, network: Network | None = None) -> None:
        """`prefill` as HOST:PORT=DIRECTORY_HOST:PORT, `decode` as HOST:PORT."""
        flags = [flag for server in prefill for flag in ("--prefill", server)]
        flags += [flag for server in decode for flag in ("--decode", server)]
        super().__init__(router_binary(), "--listen", "127.0.0.1:0", *flags, *more, network=network)
