"""Starts and stops the processes of a kvpush deployment on this machine: vLLM servers and the router.

Used by the demo and by the tests. `Cluster` is a context manager: whatever happens inside it, nothing is left running.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from process import ROOT, Guard, Process, ProcessError, cpu_ticks, session_stats, stat_fields, tail

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MODEL = ROOT / "build" / "models" / "smollm2-135m"
HOST = "127.0.0.1"
MODEL_NAME = "smollm2-135m"

# A server alone needs about half a minute; three at once on two busy cores a few.
START_LIMIT_S = 400.0
HTTP_LIMIT_S = 5.0
# 2,000 tokens of prompt on a core that is busy with other work.
COMPLETION_LIMIT_S = 120.0


def free_ports(count: int) -> list[int]:
    """Returns `count` different TCP ports that nobody uses at the moment.

    They lie below the range from which the kernel takes ports for outgoing connections, so that no connection takes one
    while the server that will listen on it is still loading.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(first_outgoing // 2, first_outgoing)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            if port not in ports:
                ports.append(port)
    return ports


def http_get(url: str, timeout_s: float = HTTP_LIMIT_S) -> str:
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        return answer.read().decode()


def get_json(url: str) -> dict:
    return json.loads(http_get(url))


def metric_values(text: str, name: str, **labels: str) -> list[float]:
    """Values of the series of one metric in Prometheus text whose labels include `labels`."""
    values = []
    for line in text.splitlines():
        match = re.fullmatch(rf"{re.escape(name)}(\{{.*\}})? (\S+)", line)
        if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
            values.append(float(match[2]))
    return values


def core_for(index: int) -> frozenset[int]:
    """One core for each process in turn, so that two servers on two cores do not take time from each other."""
    cores = sorted(os.sched_getaffinity(0))
    return frozenset({cores[index % len(cores)]})


@dataclass
class Answer:
    """A completion."""

    text: str
    prompt_tokens: int
    kv_transfer_params: dict | None


def post_json(url: str, body: Mapping[str, object], timeout_s: float) -> dict:
    """Posts a JSON body and returns the JSON answer; raises urllib.error.HTTPError with the server's reason."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


def complete(url: str, prompt: str, tokens: int, **more: object) -> Answer:
    """Asks a server or the router for exactly `tokens` greedy tokens."""
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
    answer = post_json(url + "/v1/completions", body, COMPLETION_LIMIT_S)
    usage = answer["usage"]
    return Answer(answer["choices"][0]["text"], usage["prompt_tokens"], answer.get("kv_transfer_params"))


@dataclass(frozen=True)
class Vllm:
    """What the vLLM servers of one cluster have in common. The KV cache size is in GiB, lengths are in tokens."""

    model: Path = MODEL
    dtype: str = "bfloat16"
    model_len_max: int = 4096
    batched_tokens_max: int = 2048
    seqs_max: int = 16
    kv_cache_gib: int = 1
    prefix_caching: bool = False
    connector: Mapping[str, object] = field(default_factory=dict)  # added to kv_connector_extra_config
    load_failure_policy: str = "fail"  # or "recompute": what decode does with a request whose KV does not come
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class VllmServer(Process):
    """A vLLM server that computes with one thread, on one core if `core` is given; with the connector if it has a role.

    `role` is "kv_producer", "kv_consumer" or "" (no connector). A server in the place of another has its `ports`.
    """

    def __init__(
        self,
        name: str,
        options: Vllm,
        log: Path,
        *,
        role: str = "",
        core: int | None = None,
        ports: Sequence[int] = (),
    ) -> None:
        self.http_port, self.directory_port = ports or free_ports(2)
        self.role = role
        command: list[str | Path] = [PYTHON, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", options.model, "--served-model-name", MODEL_NAME]
        command += ["--host", HOST, "--port", str(self.http_port), "--disable-uvicorn-access-log"]
        command += ["--dtype", options.dtype, "--enforce-eager", "--distributed-executor-backend=uni"]
        command += ["--max-model-len", str(options.model_len_max), "--max-num-seqs", str(options.seqs_max)]
        command += ["--max-num-batched-tokens", str(options.batched_tokens_max)]
        command += ["--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching"]
        command += options.args
        if role:
            extra = {"host": HOST, "directory_port": self.directory_port, "control_port": 0, "transport": "auto"}
            config = {
                "kv_connector": "KvPushConnector",
                "kv_role": role,
                "kv_load_failure_policy": options.load_failure_policy,
                "engine_id": f"{name}-{os.getpid()}",
                "kv_connector_extra_config": {**extra, **options.connector},
            }
            command += ["--kv-transfer-config", json.dumps(config)]
        env = {
            # The worker lives in the engine's process: nothing polls between the two.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(options.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the core is chosen below
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **options.env,
        }
        super().__init__(name, command, log, env, None if core is None else core_for(core))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def directory_url(self) -> str:
        return f"http://{HOST}:{self.directory_port}"

    def ready(self) -> bool:
        return answers(self.url + "/health")

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's series over `labels` as the server states it now; 0 if there are none."""
        return sum(metric_values(http_get(self.url + "/metrics"), name, **labels))

    def prompt_tokens(self, source: str) -> int:
        """Prompt tokens since the start, by source: "local_compute", "local_cache_hit" or "external_kv_transfer"."""
        return int(self.metric("vllm:prompt_tokens_by_source_total", source=source))

    def transfers(self, which: str) -> list[dict]:
        """The "live" or the "ended" transfers of all ranks, as docs/directory.md describes them."""
        ranks = get_json(self.directory_url + "/kvpush/v1/transfers")["ranks"]
        return [one for rank in ranks for one in rank[which]]

    def cpu_seconds(self) -> float:
        """CPU time that the server and its children have used."""
        ticks = sum(cpu_ticks(stat_fields(stat)) for stat in session_stats(self.pid))
        return ticks / os.sysconf("SC_CLK_TCK")


def wait_until(condition: Callable[[], object], limit_s: float) -> bool:
    """Whether it came true within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def answers(url: str) -> bool:
    try:
        http_get(url)
    except OSError:
        return False
    return True


def router_binary() -> Path:
    for path in (VENV / "bin" / "kvpush-router", ROOT / "build" / "release" / "apps" / "kvpush-router"):
        if path.exists():
            return path
    raise ProcessError("kvpush-router is not built; `tools/setup kvpush` builds it")


class Router(Process):
    """kvpush-router in front of prefill and decode servers."""

    def __init__(self, prefill: Sequence[VllmServer], decode: Sequence[VllmServer], log: Path) -> None:
        command: list[str | Path] = [router_binary(), "--listen", f"{HOST}:0"]
        for one in prefill:
            command += ["--prefill", f"{HOST}:{one.http_port}={one.directory_port}"]
        for one in decode:
            command += ["--decode", f"{HOST}:{one.http_port}"]
        super().__init__("router", command, log)

    @property
    def url(self) -> str:
        url = self._announced_url()
        assert url, "the router is not ready"
        return url

    def ready(self) -> bool:
        return self._announced_url() is not None

    def _announced_url(self) -> str | None:
        match = re.search(r"^listening on (http://\S+)$", self.log.read_text(), re.MULTILINE)
        return match and match[1]


class Cluster:
    """Processes that are started together and stopped together, last started first."""

    def __init__(self, report: Callable[[str], None] = lambda line: None) -> None:
        self._processes: list[Process] = []
        self._report = report
        self._guard = Guard()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._guard.close()

    def start(self, *processes: Process) -> None:
        """Starts the processes at once and returns when all of them are ready; raises ProcessError otherwise."""
        begin = time.monotonic()
        for process in processes:
            process.start()
            self._processes.append(process)
            self._guard.add(process.pid)
        waiting, told = list(processes), begin
        while waiting:
            for process in list(waiting):
                process.check_running()
                if process.ready():
                    waiting.remove(process)
                    self._report(f"{process.name} is ready after {time.monotonic() - begin:.0f} s")
            now = time.monotonic()
            if waiting and now - begin > START_LIMIT_S:
                slow = waiting[0]
                raise ProcessError(
                    f"{slow.name} is not ready after {now - begin:.0f} s; {slow.log}:\n{tail(slow.log, 25)}"
                )
            if waiting and now - told >= 10:
                told = now
                names = " and ".join(process.name for process in waiting)
                self._report(f"waiting for {names}, {now - begin:.0f} s so far")
            if waiting:
                time.sleep(0.2)

    def check_running(self) -> None:
        """Raises ProcessError if one of the processes has ended."""
        for process in self._processes:
            process.check_running()

    def stop(self, *processes: Process) -> None:
        """Stops the processes named, or all; also those after one that could not be stopped."""
        with contextlib.ExitStack() as stack:  # which calls back in reverse
            for process in reversed(processes) if processes else self._processes:
                stack.callback(self._stop, process)

    def _stop(self, process: Process) -> None:
        process.stop()
        self._guard.remove(process.pid)
        self._processes.remove(process)
