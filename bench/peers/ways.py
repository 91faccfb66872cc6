"""The ways to serve a prompt that are compared: which servers, which connector, in which order the legs go."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import servers
import threads

REST_S = 3.0  # vLLM polls for a second after its last message


@dataclass(frozen=True)
class Way:
    """One way.

    `legs` is "alone" (one server, no connector), "serial" (prefill answers, then decode is asked with what it returned)
    or "concurrent" (both are asked at once). `extra` goes to kv_connector_extra_config. `niceness` is that of the
    servers' threads that spin although no request runs.
    """

    name: str
    legs: str
    connector: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)
    niceness: int = 0

    @property
    def servers(self) -> tuple[str, str]:
        """Ways that are equal in it can share servers."""
        return self.connector, json.dumps(self.extra)

    def demoted(self, niceness: int) -> Way:
        return replace(self, name=f"{self.name}, spinners at nice {niceness}", niceness=niceness)

    @property
    def is_nixl(self) -> bool:
        return self.connector.startswith("Nixl")


WAYS = {
    way.name: way
    for way in (
        Way("alone", "alone"),
        Way("nixl-pull", "serial", "NixlConnector"),
        Way("nixl-push", "concurrent", "NixlPushConnector"),
        Way("kvpush-cma", "concurrent", "KvPushConnector", {"transport": "cma"}),
        Way("kvpush-late", "serial", "KvPushConnector", {"transport": "cma"}),
        Way("kvpush-ucx", "concurrent", "KvPushConnector", {"transport": "ucx"}),
        Way("kvpush-nixl", "concurrent", "KvPushConnector", {"transport": "nixl"}),
    )
}


class Deployment:
    """The servers of a way, or of several that can share them, paused while others are measured.

    A paused server uses no core, so that all ways can be up at once and take turns within the same minute.
    """

    def __init__(self, way: Way, options: servers.Vllm, logs: Path) -> None:
        self.way = way
        self.spinners: list[int] = []
        self._niceness = 0
        sides = ("d",) if way.legs == "alone" else ("p", "d")
        self.servers = {side: self._server(side, options, logs) for side in sides}

    def _server(self, side: str, options: servers.Vllm, logs: Path) -> servers.VllmServer:
        name = f"{self.way.name}-{side}"
        core = 0 if side == "p" else 1
        log = logs / f"{name}.log"
        if not self.way.connector:
            return servers.VllmServer(name, options, log, core=core)
        role = "kv_producer" if side == "p" else "kv_consumer"
        if not self.way.is_nixl:
            return servers.VllmServer(name, replace(options, connector=self.way.extra), log, role=role, core=core)
        (port,) = servers.free_ports(1)
        env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": servers.HOST, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
        config = {
            "kv_connector": self.way.connector,
            "kv_role": role,
            "kv_buffer_device": "cpu",
            "engine_id": f"{name}-{os.getpid()}",
        }
        args = (*options.args, "--kv-transfer-config", json.dumps(config))
        one = servers.VllmServer(name, replace(options, args=args, env={**options.env, **env}), log, core=core)
        one.directory_port = port  # what decode is told, as for the others
        return one

    def keep_on_cores(self) -> int:
        """Puts threads that left their server's core back on it; returns how many.

        vLLM's NIXL worker moves its model thread to the last core of the machine, so that P and D of one host would
        compute on the same core.
        """
        moved = 0
        for one in self.servers.values():
            for thread in threads.of_session(one.pid):
                with contextlib.suppress(OSError):  # ended meanwhile
                    if one.cores and not os.sched_getaffinity(thread) <= one.cores:
                        os.sched_setaffinity(thread, one.cores)
                        moved += 1
        return moved

    def find_spinners(self) -> None:
        """Notes the threads that spin although no request runs."""
        time.sleep(REST_S)
        everyone = [thread for one in self.servers.values() for thread in threads.of_session(one.pid)]
        self.spinners = threads.spinners(everyone)

    @contextlib.contextmanager
    def running(self, way: Way) -> Iterator[None]:
        """While it lasts the servers serve in this way."""
        self.way = way
        if way.niceness != self._niceness:
            threads.set_niceness(self.spinners, way.niceness)
            self._niceness = way.niceness
        for one in self.servers.values():
            one.resume()
        try:
            yield
        finally:
            for one in self.servers.values():
                one.pause()

    def cpu_seconds(self) -> dict[str, float]:
        return {side: one.cpu_seconds() for side, one in self.servers.items()}

    def idle_share(self, seconds: float) -> dict[str, float]:
        """Share of a core that each server uses without a request."""
        time.sleep(REST_S)
        before = self.cpu_seconds()
        time.sleep(seconds)
        return {side: (now - before[side]) / seconds for side, now in self.cpu_seconds().items()}

    def decode_params(self, transfer_id: str, request_id: str) -> dict[str, object]:
        """What decode is told when it is asked at once with prefill."""
        p = self.servers["p"]
        params: dict[str, object] = {
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_host": servers.HOST,
            "remote_port": p.directory_port,
        }
        if self.way.is_nixl:
            params |= {
                "do_remote_decode": False,
                "remote_engine_id": f"{p.name}-{os.getpid()}",
                "remote_request_id": f"cmpl-{request_id}-0",
                "remote_block_ids": None,
                "tp_size": 1,
                "pp_size": 1,
            }
        return params
