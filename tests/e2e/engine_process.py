"""kvpush-engine, the stand-in for an inference engine, as a process."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from http_process import WAIT_SECONDS, HttpProcess, Sent, binary


def engine_binary() -> str:
    """KVPUSH_ENGINE, else the newest one built in this tree, else the installed one."""
    return binary("kvpush-engine", "KVPUSH_ENGINE")


class EngineProcess(HttpProcess):
    """A running engine. Its answers are texts with one word for each token."""

    def __init__(self, role: str = "both", *more: str) -> None:
        transport = () if "--transport" in more else ("--transport", "cma")
        flags = ("--role", role, "--engine-id", role, "--listen", "127.0.0.1:0", *transport, *more)
        super().__init__(engine_binary(), *flags)
        self.directory_port, self.port = (self._port(what) for what in ("directory", "listening"))
        self.blocks = self.metric("kvpush_engine_free_blocks")

    def _port(self, what: str) -> int:
        line = self._line()
        match = re.fullmatch(rf"{what} on http://127\.0\.0\.1:(\d+)", line)
        assert match, f"the engine said {line!r}"
        return int(match[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def with_directory(self) -> str:
        """As the router's --prefill takes it."""
        return f"{self.address}={self.directory_port}"

    def complete(self, prompt: Any, tokens: int = 8, **more: Any) -> Sent:
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens} | more)

    def debug(self, verb: str, **numbers: int) -> Sent:
        return self.post(f"/debug/{verb}", numbers)

    def prompt_tokens(self, source: str) -> int:
        return int(self.metric("kvpush_engine_prompt_tokens_total", source=source))

    def requests(self) -> dict[str, int]:
        """By state."""
        states = ("waiting", "running", "receiving", "sending")
        return {state: int(self.metric("kvpush_engine_requests", state=state)) for state in states}

    def wait_for_rest(self) -> None:
        """Returns when it has no request and all of its blocks are free."""
        until = time.monotonic() + WAIT_SECONDS
        while any((requests := self.requests()).values()) or self.free_blocks() != self.blocks:
            assert time.monotonic() < until, f"{requests}, {self.free_blocks()} of {self.blocks} blocks are free"

    def free_blocks(self) -> int:
        return int(self.metric("kvpush_engine_free_blocks"))


def text_of(sent: Sent) -> str:
    """The text of an answer that is not streamed."""
    answer = sent.finish()
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["text"]


def events_of(sent: Sent) -> list[dict[str, Any]]:
    """The events of a streamed answer, which must have ended properly."""
    answer = sent.finish()
    assert answer.headers["Content-Type"] == "text/event-stream", answer.body
    *events, last, rest = answer.body.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]
