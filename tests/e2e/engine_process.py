"""kvpush-engine, the stand-in for an inference engine, as a process."""

from __future__ import annotations

import json
import re
from typing import Any

from http_process import WAIT_SECONDS, HttpProcess, Sent, binary, wait_until
from network import Network


def engine_binary() -> str:
    """KVPUSH_ENGINE, else the newest one built in this tree, else the installed one."""
    return binary("kvpush-engine", "KVPUSH_ENGINE")


class EngineProcess(HttpProcess):
    """A running engine. Its answers are texts with one word for each token."""

    _says = ("directory", "listening")

    def __init__(
        self,
        role: str = "both",
        *more: str,
        port: int = 0,
        directory_port: int = 0,
        network: Network | None = None,
    ) -> None:
        transport = () if "--transport" in more else ("--transport", "cma")
        self.role = role
        name = () if "--engine-id" in more else ("--engine-id", role)
        self._flags = ("--role", role, *name, *transport, *more)
        super().__init__(*self._command(port, directory_port), network=network)
        self.blocks = self.metric("kvpush_engine_free_blocks")

    def restart(self) -> None:
        """Killed, and a new process with the same flags at the same addresses. The log goes on."""
        self._end()
        self._start(*self._command(self.port, self.directory_port))

    def _command(self, port: int, directory_port: int) -> tuple[str, ...]:
        places = ("--listen", f"127.0.0.1:{port}", "--directory", f"127.0.0.1:{directory_port}")
        return (engine_binary(), *places, *self._flags)

    @property
    def directory_port(self) -> int:
        return self._ports["directory"]

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

    def agent_metrics(self) -> str:
        """Of its agent, as Prometheus text."""
        return self.get("/metrics", self.directory_port).body.decode()

    def agent_metric(self, name: str, **labels: str) -> int:
        """The value of one of the agent's series; 0 when it does not exist."""
        wanted = {"rank": "0"} | labels
        for series, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", self.agent_metrics(), re.MULTILINE):
            if dict(re.findall(r'(\w+)="([^"]*)"', series)) == wanted:
                return int(float(value))
        return 0

    def live_transfers(self) -> list[dict[str, Any]]:
        return self._transfers()["live"]

    def ended_transfers(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return self._transfers()["ended"]

    def _transfers(self) -> dict[str, Any]:
        (rank,) = self.get("/kvpush/v1/transfers", self.directory_port).json["ranks"]
        return rank

    def is_at_rest(self) -> bool:
        """No request, no transfer, and all of its blocks are free."""
        return not any(self.requests().values()) and self.free_blocks() == self.blocks and not self.live_transfers()

    def wait_for_rest(self, within: float = WAIT_SECONDS) -> None:
        """Returns when it has no request and all of its blocks are free."""
        wait_until(self.is_at_rest, f"{self.role} is at rest", within, self.requests)

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
