"""Prefill and decode engines behind a router, small and with short leases; what a fault may change and what not."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
from engine_process import EngineProcess, text_of
from http_process import ProgramEnded, Sent, wait_until
from link import Detour, Link
from network import Network
from router_process import RouterProcess

TOKENS = 4
# Long enough that a busy machine does not lose a peer that is well, short enough to wait for.
LEASE_S = 0.8
# What prefill has computed and nobody fetches, because its decode leg failed or was aborted, waits this long for
# another attempt.
HOLD_S = 1.5
# Of drain_limit (1 s), and the time that a busy machine needs for what takes it none.
DRAIN_S = 1.0
SLACK_S = 2.0
# A decode engine knows of a dead prefill process within a second.
DEATH_S = 1.0
# A request that never got a session ends after session_limit.
SESSION_S = 10.0
# Data endpoints that have not met are given up within this, and a request is registered in so many sessions.
MEETING_S = 6.0
SESSIONS_OF_REQUEST = 3


# The agent's counters of what went wrong, or what an abort causes.
TROUBLES = (
    "sessions_refused sessions_lost sessions_silent sessions_unauthenticated frames_forged leases_expired"
    " bad_messages writes_failed revokes fences resolves_failed unwanted receives sends"
).split()


def prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * 7919 + 31 * i) % 50000 for i in range(length)]


PROMPT = prompt(777)
OTHER = prompt(300, seed=2)
SHORT = [prompt(17 + 5 * i, seed=3 + i) for i in range(8)]


def troubles(engine: EngineProcess) -> dict[str, int]:
    """The agent's counters of TROUBLES that are not 0: `sessions_lost producer`, `receives peer_lost`, `fences`."""
    found = {}
    for name, labels, value in re.findall(r"^kvpush_(\w+)_total\{(.*)\} (\d+)$", engine.agent_metrics(), re.MULTILINE):
        which = [text for key, text in re.findall(r'(\w+)="([^"]*)"', labels) if key != "rank"]
        if name in TROUBLES and which != ["delivered"] and value != "0":
            found[" ".join([name, *which])] = int(value)
    return found


@dataclass
class Legs:
    """Both legs of one prompt, sent to the engines themselves: no router cancels one when the other fails."""

    transfer_id: str
    prefill: Sent
    decode: Sent


@dataclass
class Cluster:
    prefill: list[EngineProcess]
    decode: list[EngineProcess]
    router: RouterProcess
    alone: EngineProcess
    detour: Detour | None  # between the decode engines and the first prefill engine
    _right: dict[tuple[int, ...], str] = field(default_factory=dict)

    @property
    def p(self) -> EngineProcess:
        return self.prefill[0]

    @property
    def d(self) -> EngineProcess:
        return self.decode[0]

    @property
    def link(self) -> Link:
        assert self.detour is not None, "this cluster was made with a link"
        return self.detour.link

    def directory_of(self, p: EngineProcess) -> int:
        """The port that decode is told."""
        return self.detour.directory_port if self.detour is not None and p is self.p else p.directory_port

    def complete(self, tokens: list[int], **more: object) -> Sent:
        return self.router.post("/v1/completions", {"prompt": tokens, "max_tokens": TOKENS} | more)

    def legs(self, tokens: list[int], p: EngineProcess | None = None, d: EngineProcess | None = None) -> Legs:
        transfer_id = uuid.uuid4().hex
        decode = self.decode_leg(tokens, transfer_id, self.directory_of(p or self.p), d)
        return Legs(transfer_id, self.prefill_leg(tokens, transfer_id, p), decode)

    def prefill_leg(self, tokens: list[int], transfer_id: str, p: EngineProcess | None = None) -> Sent:
        params = {"do_remote_decode": True, "transfer_id": transfer_id}
        return (p or self.p).complete(tokens, 1, kv_transfer_params=params)

    def decode_leg(
        self, tokens: list[int], transfer_id: str, directory_port: int, d: EngineProcess | None = None
    ) -> Sent:
        where = {"remote_host": "127.0.0.1", "remote_port": directory_port}
        params = {"do_remote_prefill": True, "transfer_id": transfer_id} | where
        return (d or self.d).complete(tokens, TOKENS, kv_transfer_params=params)

    def right(self, tokens: list[int]) -> str:
        """What one engine alone answers."""
        key = tuple(tokens)
        if key not in self._right:
            self._right[key] = text_of(self.alone.complete(tokens, TOKENS))
        return self._right[key]

    def expect_right(self, *prompts: list[int]) -> None:
        """New requests through the router get the right answers."""
        sent = [(tokens, self.complete(tokens)) for tokens in prompts]
        for tokens, answer in sent:
            assert text_of(answer) == self.right(tokens), f"{len(tokens)} tokens"

    def expect_rest(self, within: float = HOLD_S + SLACK_S) -> None:
        """No live engine has a request, all their blocks are free, and nothing is in quarantine."""
        for engine in (*self.prefill, *self.decode):
            if engine.process.poll() is None:
                wait_until(engine.is_at_rest, f"{engine.role} is at rest", within, engine.requests)


@contextmanager
def cluster(
    *flags: str,
    prefill: int = 1,
    decode: int = 1,
    blocks: int = 256,
    lease_s: float = LEASE_S,
    hold_s: float = HOLD_S,
    has_link: bool = False,
    network: Network | None = None,
) -> Iterator[Cluster]:
    """With a link, decode's sessions to the first prefill engine go through it. With a network, all of it is there."""
    times = ("--lease-ms", str(round(lease_s * 1000)), "--hold-ms", str(round(hold_s * 1000)))
    flags = ("--no-prefix-caching", "--blocks", str(blocks), *times, *flags)
    with ExitStack() as stack:
        ps = [stack.enter_context(EngineProcess("prefill", *flags, network=network)) for _ in range(prefill)]
        ds = [stack.enter_context(EngineProcess("decode", *flags, network=network)) for _ in range(decode)]
        alone = stack.enter_context(EngineProcess("both", *flags, network=network))
        detour = stack.enter_context(Detour(ps[0].directory_port)) if has_link else None
        directories = [p.directory_port for p in ps]
        if detour is not None:
            directories[0] = detour.directory_port
        servers = [f"{p.address}={directory}" for p, directory in zip(ps, directories, strict=True)]
        router = stack.enter_context(RouterProcess(servers, [d.address for d in ds], network=network))
        yield Cluster(ps, ds, router, alone, detour)


@contextmanager
def ucx_pair(*flags: str, lease_s: float = LEASE_S, network: Network | None = None) -> Iterator[Cluster]:
    """Over UCX, whose writes wait for their target to take them; skips the test where it is not there."""
    try:
        with cluster("--transport", "ucx", *flags, lease_s=lease_s, network=network) as made:
            yield made
    except ProgramEnded as ended:
        if ended.status != 2:
            raise
        pytest.skip("ucx cannot be opened here")


def wait_for_registrations(producer: EngineProcess, count: int = 1) -> None:
    wait_until(
        lambda: producer.agent_metric("kvpush_registrations_total", role="producer") >= count,
        f"{count} registrations have arrived",
    )


def wait_for_writes(producer: EngineProcess) -> None:
    wait_until(lambda: producer.agent_metric("kvpush_writes_in_flight") > 0, "it writes")


def peer_lines(d: EngineProcess, directory_port: int) -> list[str]:
    """What decode's log says of its trouble with a prefill engine."""
    return d.logged(f"producer engine at 127.0.0.1:{directory_port}: ")


def control_port(engine: EngineProcess) -> int:
    (rank,) = engine.get("/kvpush/v1/engine", engine.directory_port).json["ranks"]
    return rank["control"]["port"]
