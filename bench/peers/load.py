"""Asks a deployment for completions, the same for every way, and notes when their tokens came."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from dataclasses import dataclass

import aiohttp

import servers
from ways import Deployment

REQUEST_LIMIT_S = 120.0
# A connector may keep blocks for a while after the last answer.
RESET_LIMIT_S = 60.0
# Token ids that every model used here has and that are no special tokens.
TOKEN_IDS = range(1000, 40000)


@dataclass(frozen=True)
class Load:
    """A closed loop of `at_once` clients; lengths are in tokens.

    The first `common_tokens` are those of every prompt of a rotation, as a system prompt would be. With any, servers
    that have a prefix cache begin with an empty one.
    """

    prompt_tokens: int
    at_once: int
    requests: int
    output_tokens: int
    common_tokens: int = 0

    def prompt(self, rotation: int, index: int) -> list[int]:
        common = random.Random(f"{rotation}/{self.prompt_tokens}")
        own = random.Random(f"{rotation}/{index}/{self.prompt_tokens}")
        own_tokens = self.prompt_tokens - self.common_tokens
        return [*common.choices(TOKEN_IDS, k=self.common_tokens), *own.choices(TOKEN_IDS, k=own_tokens)]


@dataclass
class Record:
    """One request: seconds to the first token, seconds for each later one, what was answered, or what went wrong."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    text: str = ""
    tokens: int = 0
    error: str = ""


class Client:
    def __init__(self, deployment: Deployment, session: aiohttp.ClientSession) -> None:
        self._deployment = deployment
        self._session = session

    async def ask(self, prompt: list[int], output_tokens: int) -> Record:
        """Never raises: a request that fails is a figure of the run."""
        record = Record()
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                await self._ask(prompt, output_tokens, record)
        except* Exception as errors:
            record.error = repr(errors.exceptions[0])[:300]
        return record

    async def _ask(self, prompt: list[int], output_tokens: int, record: Record) -> None:
        transfer_id, request_id = uuid.uuid4().hex, uuid.uuid4().hex[:12] + "x"
        body = {"model": servers.MODEL_NAME, "prompt": prompt, "temperature": 0, "ignore_eos": True}
        decode = {**body, "max_tokens": output_tokens, "stream": True, "stream_options": {"include_usage": True}}
        legs = self._deployment.way.legs
        begin = time.perf_counter()
        if legs == "alone":
            times = await self._decode(decode, request_id, record)
        elif legs == "serial":
            params = await self._prefill(body, transfer_id, request_id)
            times = await self._decode({**decode, "kv_transfer_params": params}, request_id, record)
        else:
            params = self._deployment.decode_params(transfer_id, request_id)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._prefill(body, transfer_id, request_id))
                answer = both.create_task(self._decode({**decode, "kv_transfer_params": params}, request_id, record))
            times = answer.result()
        if record.tokens != output_tokens:
            raise ValueError(f"{record.tokens} tokens came instead of {output_tokens}")
        record.ttft_s = times[0] - begin
        record.tpot_s = (times[-1] - times[0]) / (output_tokens - 1)

    async def empty_caches(self) -> None:
        """Fails with a sentence when some server still holds blocks after RESET_LIMIT_S."""
        for one in self._deployment.servers.values():
            until = time.monotonic() + RESET_LIMIT_S
            while not await self._empty_cache(one.url):
                if time.monotonic() > until:
                    raise TimeoutError(f"{one.name} holds blocks {RESET_LIMIT_S:.0f} s after its last request")
                await asyncio.sleep(0.1)

    async def _empty_cache(self, url: str) -> bool:
        async with self._session.post(url + "/reset_prefix_cache") as answer:
            return answer.status == 200 and (await answer.json())["success"]

    async def _prefill(self, body: dict, transfer_id: str, request_id: str) -> dict:
        url = self._deployment.servers["p"].url + "/v1/completions"
        params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        for name in ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"):
            params[name] = None
        body = {**body, "max_tokens": 1, "kv_transfer_params": params}
        async with self._session.post(url, json=body, headers={"X-Request-Id": request_id}) as answer:
            if answer.status != 200:
                raise ValueError(f"prefill answered {answer.status}: {(await answer.text())[:200]}")
            return (await answer.json()).get("kv_transfer_params") or {}

    async def _decode(self, body: dict, request_id: str, record: Record) -> list[float]:
        """Returns when each piece of the answer came; tokens may share one."""
        url = self._deployment.servers["d"].url + "/v1/completions"
        times: list[float] = []
        async with self._session.post(url, json=body, headers={"X-Request-Id": request_id}) as answer:
            if answer.status != 200:
                raise ValueError(f"decode answered {answer.status}: {(await answer.text())[:200]}")
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len("data: ") :])
                if event.get("error"):
                    raise ValueError(str(event["error"])[:200])
                if event.get("usage"):
                    record.tokens = event["usage"]["completion_tokens"]
                if event["choices"]:
                    times.append(time.perf_counter())
                    record.text += event["choices"][0]["text"]
        return times


def _unlimited() -> aiohttp.ClientSession:
    """A session that makes no request wait; Client has the limits."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0))


async def _run(deployment: Deployment, load: Load, rotation: int) -> list[Record]:
    async with _unlimited() as session:
        client = Client(deployment, session)
        if load.common_tokens:
            await client.empty_caches()
        # Pays for what was lost while the servers were paused; not measured.
        await client.ask(load.prompt(rotation, -1), load.output_tokens)
        records = [Record() for _ in range(load.requests)]
        todo = iter(range(load.requests))

        async def one_client() -> None:
            for index in todo:
                records[index] = await client.ask(load.prompt(rotation, index), load.output_tokens)

        await asyncio.gather(*(one_client() for _ in range(load.at_once)))
        return records


def run(deployment: Deployment, load: Load, rotation: int) -> list[Record]:
    """All requests of a load, in their order. Every way gets the same prompts in the same rotation."""
    return asyncio.run(_run(deployment, load, rotation))


async def _fragment(deployment: Deployment, seed: int, count: int) -> None:
    chance = random.Random(seed)
    async with _unlimited() as session:
        client = Client(deployment, session)
        loads = [Load(chance.randrange(130, 900), 1, 1, 2) for _ in range(count)]
        outputs = [chance.randrange(2, 24) for _ in loads]
        asked = (client.ask(one.prompt(-1, index), outputs[index]) for index, one in enumerate(loads))
        await asyncio.gather(*asked)


def fragment(deployment: Deployment, seed: int = 1, count: int = 24) -> None:
    """Leaves the block pools in disorder: requests of different lengths that end at different times."""
    asyncio.run(_fragment(deployment, seed, count))
