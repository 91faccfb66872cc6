"""A pair of vLLM servers with the router before them, and a single server that gives the reference.

Each is started as few times as possible: a start costs half a minute of a core.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import prompts
import servers

HERE = Path(__file__).resolve().parent
LOGS = servers.ROOT / "build" / "check" / "vllm"
TOKENS = 6  # answered to each prompt
REST_LIMIT_S = 15.0

# A batch adds in another order than a request alone. In bfloat16 near-ties then part: a single server, asked 8 requests
# at a time, was seen to differ from itself in 5 of 46 prompts. In float32 the orders differ by a millionth, and these
# prompts have no near-tie that close. So equality is asked for without exception.
OPTIONS = servers.Vllm(
    dtype="float32",
    batched_tokens_max=512,  # prompts of up to five chunks
    env={"PYTHONPATH": str(HERE), "VLLM_SERVER_DEV_MODE": "1"},
    args=("--worker-extension-cls", "kv_reader.KvReader"),
)


def has_nixl() -> bool:
    if importlib.util.find_spec("nixl_cu13") is not None:
        return True
    print("  NIXL is not installed: both pairs move KV with cma", flush=True)
    return False


def ask_worker(server: servers.VllmServer, method: str, *arguments: object) -> Any:
    """Calls a method of kv_reader.KvReader."""
    body = {"method": method, "args": [str(one) for one in arguments]}
    answer = servers.post_json(server.url + "/collective_rpc", body, servers.COMPLETION_LIMIT_S)
    return answer["results"][0]


@contextlib.contextmanager
def blocks_left(server: servers.VllmServer, blocks: int) -> Iterator[None]:
    """Meanwhile the server has only so many of those that were free. Its gauge tells it with its next step."""
    ask_worker(server, "kv_take_all_but", blocks)
    try:
        yield
    finally:
        ask_worker(server, "kv_give_back")


@dataclass
class Pair:
    """A prefill and a decode server, the router before them, and how many blocks were free at their start.

    `transport` is what they were told to move KV with.
    """

    caching: bool
    transport: str
    p: servers.VllmServer
    d: servers.VllmServer
    router: servers.Router
    free_blocks: Mapping[str, int]

    def complete(self, prompt: str) -> str:
        return servers.complete(self.router.url, prompt, TOKENS).text

    def prefill(self, prompt: str, transfer_id: str) -> servers.Answer:
        """The prefill leg alone, without the router; returns when the prompt is computed."""
        params = {"do_remote_decode": True, "transfer_id": transfer_id}
        return servers.complete(self.p.url, prompt, 1, kv_transfer_params=params)

    def decode(self, prompt: str, transfer_id: str) -> servers.Answer:
        """The decode leg alone."""
        params = {
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_host": servers.HOST,
            "remote_port": self.p.directory_port,
        }
        return servers.complete(self.d.url, prompt, TOKENS, kv_transfer_params=params)

    def expected(self) -> int:
        """How many requests in the queue of decode prefill has heard of, since its start."""
        text = servers.http_get(self.p.directory_url + "/metrics")
        return int(sum(servers.metric_values(text, "kvpush_expected_total", role="producer")))

    def complete_all(self, texts: Sequence[str], at_once: int) -> dict[str, str]:
        with ThreadPoolExecutor(at_once) as pool:
            return dict(zip(texts, pool.map(self.complete, texts), strict=True))

    def left_over(self) -> list[str]:
        """What is still held although no request runs."""
        found = []
        for one in (self.p, self.d):
            free, start = ask_worker(one, "kv_free_blocks")["free"], self.free_blocks[one.name]
            if free != start:
                found.append(f"{one.name}: {free} of {start} blocks are free")
            if usage := one.metric("vllm:kv_cache_usage_perc"):
                found.append(f"{one.name}: KV cache usage is {usage}")
            found += [f"{one.name}: live transfer {transfer}" for transfer in one.transfers("live")]
        return found

    def wait_for_rest(self) -> None:
        """Fails unless all blocks are free again and no transfer is left within the limit."""
        deadline = time.monotonic() + REST_LIMIT_S
        while (found := self.left_over()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not found, f"{REST_LIMIT_S:.0f} s after the last request:\n" + "\n".join(found)


@dataclass
class ReferenceAnswers:
    texts: dict[str, str] = field(default_factory=dict)
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    steps_of_first: list[int] = field(default_factory=list)  # tokens computed in each, for prompts.STORIES[0]


def ask_reference(server: servers.VllmServer) -> ReferenceAnswers:
    answers = ReferenceAnswers()
    ask_worker(server, "kv_watch")
    servers.complete(server.url, prompts.STORIES[0], 1)
    answers.steps_of_first = ask_worker(server, "kv_steps")
    for prompt in (*prompts.ALL, *prompts.SHARED_PREFIX):
        answer = servers.complete(server.url, prompt, TOKENS)
        answers.texts[prompt], answers.prompt_tokens[prompt] = answer.text, answer.prompt_tokens
    return answers


class Reference:
    """What a single server without a connector answers. Its attributes wait until it has answered everything."""

    def __init__(self, answers: Future[ReferenceAnswers]) -> None:
        self._answers = answers

    @property
    def texts(self) -> dict[str, str]:
        return self._answers.result().texts

    @property
    def prompt_tokens(self) -> dict[str, int]:
        return self._answers.result().prompt_tokens

    @property
    def steps_of_first(self) -> list[int]:
        return self._answers.result().steps_of_first


class Deployment:
    """Starts one pair at a time; with the first one, at once, the server that gives the reference.

    The reference is asked in the background: while prompts go one by one, P and D compute in turn and leave it a core.
    """

    reference: Reference

    def __init__(self, cluster: servers.Cluster) -> None:
        self._cluster = cluster
        self._asker = ThreadPoolExecutor(1)
        self._lone: servers.VllmServer | None = None  # runs until the cluster ends

    def start(self, caching: bool) -> Pair:
        # The second pair runs without the idle wait, so that both ways are tested and their cost can be compared, and
        # over NIXL.
        transport = "nixl" if caching and has_nixl() else "cma"
        connector = {"transport": transport, **({"idle_wait_ms": 0} if caching else {})}
        common = replace(OPTIONS, prefix_caching=caching, connector=connector)
        way = "cached" if caching else "plain"
        p = servers.VllmServer("p", common, LOGS / f"{way}-p.log", role="kv_producer", core=0)
        d = servers.VllmServer("d", common, LOGS / f"{way}-d.log", role="kv_consumer", core=1)
        router = servers.Router([p], [d], LOGS / f"{way}-router.log")
        if self._lone is None:
            args = (*OPTIONS.args, "--scheduler-cls", "reference.LastTokenAlone")
            self._lone = servers.VllmServer("reference", replace(OPTIONS, args=args), LOGS / "reference.log")
            self._cluster.start(p, d, self._lone)
            self.reference = Reference(self._asker.submit(ask_reference, self._lone))
        else:
            self._cluster.start(p, d)
        self._cluster.start(router)
        for one in (p, d):
            ask_worker(one, "kv_watch")
        free = {one.name: ask_worker(one, "kv_free_blocks")["free"] for one in (p, d)}
        return Pair(caching, transport, p, d, router, free)

    def replace(self, pair: Pair, side: str, load_failure_policy: str = "fail") -> None:
        """Starts a server where the one of that side (\"p\" or \"d\") was, which has died."""
        dead: servers.VllmServer = getattr(pair, side)
        self._cluster.stop(dead)
        connector = {"transport": pair.transport}
        options = replace(OPTIONS, connector=connector, load_failure_policy=load_failure_policy)
        log = dead.log.with_name(f"{dead.log.stem}-again.log")
        core = 0 if side == "p" else 1
        one = servers.VllmServer(
            side, options, log, role=dead.role, core=core, ports=(dead.http_port, dead.directory_port)
        )
        self._cluster.start(one)
        setattr(pair, side, one)
        ask_worker(one, "kv_watch")

    def stop(self, pair: Pair) -> None:
        self._cluster.stop(pair.router, pair.d, pair.p)
