"""Clients that hang up, and servers that are killed: what goes on gives the right answers, and nothing is kept.

The servers of the pair without prefix caching die here, so this comes after the other tests of that pair.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import urllib.error
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import prompts
import servers
from deployment import Deployment, Pair, ask_worker

pytestmark = pytest.mark.parametrize("running_pair", [False], ids=["plain"], indirect=True)

AT_ONCE = 12
REQUESTS = 240
# A client that hangs up does so within the time that prefill and decode of these prompts take.
PATIENCE_S = (0.0, 1.5)
# Decode knows of a dead producer process within a second, and tells its client with its next steps.
FAILURE_LIMIT_S = 5.0
# A lease (5 s), in which the producer learns that its consumer is silent or comes back, and drain_limit (1 s).
BLOCKS_BACK_LIMIT_S = 8.0
LONG = prompts.STORIES[-1]


# Shows A1, E1, E6.
def test_clients_that_hang_up_at_any_time_disturb_nobody(pair, reference):
    chance = random.Random(1)
    texts = [chance.choice(prompts.SHORT + prompts.STORIES[:14]) for _ in range(REQUESTS)]
    patience = [chance.uniform(*PATIENCE_S) if chance.random() < 0.6 else None for _ in texts]

    def ask(index: int) -> str | None:
        if patience[index] is None:
            return pair.complete(texts[index])
        body = {"model": servers.MODEL_NAME, "prompt": texts[index], "max_tokens": 20, "ignore_eos": True}
        with contextlib.suppress(OSError):
            servers.post_json(pair.router.url + "/v1/completions", body, timeout_s=max(0.01, patience[index]))
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        got = list(pool.map(ask, range(REQUESTS)))

    wrong = [text for text, answer in zip(texts, got, strict=True) if answer not in (None, reference.texts[text])]
    assert wrong == []
    assert sum(answer is not None for answer in got) > REQUESTS / 4


class Legs:
    """Both legs of one prompt, sent to the servers themselves, on threads of their own."""

    def __init__(self, pair: Pair, prompt: str) -> None:
        self.transfer_id = uuid.uuid4().hex
        self.answer: servers.Answer | None = None
        self.error: OSError | None = None
        self.ended_at = 0.0
        self._pair = pair
        self._threads = [threading.Thread(target=leg, args=(prompt,)) for leg in (self._prefill, self._decode)]

    def _prefill(self, prompt: str) -> None:
        with contextlib.suppress(OSError):  # it may die
            self._pair.prefill(prompt, self.transfer_id)

    def _decode(self, prompt: str) -> None:
        try:
            self.answer = self._pair.decode(prompt, self.transfer_id)
        except OSError as error:
            self.error = error
        self.ended_at = time.monotonic()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """From the moment at which decode has registered, while prefill computes; to the end of both legs."""
        for thread in self._threads:
            thread.start()
        try:
            registered = servers.wait_until(self._is_registered, servers.HTTP_LIMIT_S)
            assert registered, "decode has not registered"
            yield
        finally:
            for thread in self._threads:
                thread.join()

    def _is_registered(self) -> bool:
        return any(one["transfer_id"] == self.transfer_id for one in self._pair.d.transfers("live"))


# Shows B2, C3.
def test_decode_fails_the_requests_of_a_prefill_server_that_dies_and_goes_on_with_the_next(
    deployment: Deployment, running_pair: Pair, reference
):
    pair = running_pair
    legs = Legs(pair, LONG)
    with legs.under_way():
        pair.p.kill()
        killed_at = time.monotonic()
    assert isinstance(legs.error, urllib.error.HTTPError) and legs.error.code == 500
    assert legs.ended_at - killed_at < FAILURE_LIMIT_S
    assert servers.wait_until(
        lambda: ask_worker(pair.d, "kv_free_blocks")["free"] == pair.free_blocks["d"], BLOCKS_BACK_LIMIT_S
    )

    deployment.replace(pair, "p")

    assert pair.complete(LONG) == reference.texts[LONG]
    pair.wait_for_rest()


# Shows B9, C3.
def test_prefill_gives_back_the_blocks_of_a_decode_server_that_dies_and_serves_the_next(
    deployment: Deployment, running_pair: Pair, reference
):
    pair = running_pair
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(pair.complete, LONG)
        assert servers.wait_until(lambda: pair.d.transfers("live"), servers.HTTP_LIMIT_S), "decode has not registered"
        pair.d.kill()
        with pytest.raises(urllib.error.HTTPError) as failed:
            answer.result()
    assert failed.value.code in (502, 503)
    assert servers.wait_until(
        lambda: ask_worker(pair.p, "kv_free_blocks")["free"] == pair.free_blocks["p"], BLOCKS_BACK_LIMIT_S
    ), "prefill keeps blocks for a dead decode server"

    deployment.replace(pair, "d", load_failure_policy="recompute")

    assert pair.complete(LONG) == reference.texts[LONG]
    pair.wait_for_rest()


# Shows B2, F3.
def test_decode_computes_the_prompt_itself_when_prefill_dies_and_the_policy_says_so(running_pair: Pair, reference):
    pair = running_pair
    before = pair.d.prompt_tokens("local_compute")
    legs = Legs(pair, LONG)
    with legs.under_way():
        pair.p.kill()
    assert legs.error is None and legs.answer is not None
    assert legs.answer.text == reference.texts[LONG]
    assert pair.d.prompt_tokens("local_compute") - before == reference.prompt_tokens[LONG]
    assert servers.wait_until(
        lambda: ask_worker(pair.d, "kv_free_blocks")["free"] == pair.free_blocks["d"], BLOCKS_BACK_LIMIT_S
    )
