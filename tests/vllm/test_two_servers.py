"""Prompts pushed from one vLLM server to another: the answers, the bytes, what decode computed, what is left over."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
import urllib.error
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import prompts
import servers
from deployment import OPTIONS, TOKENS, Pair, Reference, ask_worker, blocks_left
from kvpush import trace

AT_ONCE = 8
# Of these servers; vLLM's default on CPUs.
BLOCK_TOKENS = 128
# Requests that wait for blocks at decode at once, and in what time they get there.
QUEUED = 128
QUEUE_LIMIT_S = 30.0
# ProtocolOptions::lease.
LEASE_S = 5.0

# For what does not depend on prefix caching.
without_caching = pytest.mark.parametrize("running_pair", [False], ids=["plain"], indirect=True)


def differences(got: dict[str, str], reference: Reference) -> list[str]:
    return [
        f"{reference.prompt_tokens[prompt]} tokens, {prompt[:40]!r}: {text!r} instead of {reference.texts[prompt]!r}"
        for prompt, text in got.items()
        if text != reference.texts[prompt]
    ]


class Sources:
    """Prompt tokens that decode took from each source since this object was made."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._start = {name: pair.d.prompt_tokens(name) for name in self.names}

    names = ("local_compute", "local_cache_hit", "external_kv_transfer")

    def __call__(self) -> dict[str, int]:
        return {name: self._pair.d.prompt_tokens(name) - self._start[name] for name in self.names}


# Shows D1.
@pytest.mark.parametrize("at_once", [1, AT_ONCE])
def test_every_answer_equals_that_of_a_single_server(pair, reference, at_once):
    sources, before = Sources(pair), pair.expected()

    got = pair.complete_all(prompts.ALL, at_once)

    if at_once == 1:
        assert pair.expected() == before, "decode has room and reserves in its first step"
    assert differences(got, reference) == []
    taken = sources()
    assert taken["local_compute"] == len(prompts.ALL), (
        "decode computes the last prompt token of each prompt and no other"
    )
    elsewhere = sum(reference.prompt_tokens[prompt] - 1 for prompt in prompts.ALL)
    assert taken["external_kv_transfer"] + taken["local_cache_hit"] == elsewhere
    if not pair.caching:
        assert taken["local_cache_hit"] == 0


def test_the_reference_computes_the_last_prompt_token_in_a_step_of_its_own(reference):
    assert reference.steps_of_first == [reference.prompt_tokens[prompts.STORIES[0]] - 1, 1]


# Shows F3.
def test_prefill_computes_in_chunks_and_decode_one_token_a_step(pair, reference):
    longest = prompts.STORIES[-1]

    pair.complete(longest)

    assert len(ask_worker(pair.p, "kv_steps")) > (0 if pair.caching else 2)
    assert ask_worker(pair.d, "kv_steps") == [1] * TOKENS


def test_the_prompts_are_what_these_tests_need(reference):
    lengths = [reference.prompt_tokens[prompt] for prompt in prompts.ALL]
    assert len(lengths) >= 40
    assert min(lengths) == 1
    assert max(lengths) > 2000


# Shows B5.
def test_prompts_with_a_common_beginning_give_the_same_answers(pair, reference):
    if not pair.caching:
        # Nothing is cached here: the same prompts, computed and pushed in full.
        got = pair.complete_all(prompts.SHARED_PREFIX, 1)
        assert differences(got, reference) == []
        return
    for at_once in (1, AT_ONCE):
        sources = Sources(pair)
        texts = prompts.SHARED_PREFIX + prompts.STORIES[-4:]

        got = pair.complete_all(texts, at_once)

        assert differences(got, reference) == []
        taken = sources()
        assert taken["local_compute"] == len(texts)
        assert taken["local_cache_hit"] > 0


def test_a_router_that_runs_the_legs_one_after_the_other_needs_no_transfer_id(pair, reference):
    for prompt in (prompts.SHORT[0], prompts.SHORT[3], *prompts.STORIES[::8]):
        first = servers.complete(pair.p.url, prompt, 1, kv_transfer_params={"do_remote_decode": True})
        assert first.kv_transfer_params is not None, "prefill tells where its KV is"

        second = servers.complete(pair.d.url, prompt, TOKENS, kv_transfer_params=first.kv_transfer_params)

        assert second.text == reference.texts[prompt]


def test_such_a_router_is_told_of_the_kv_of_several_samples(pair, reference):
    prompt = prompts.STORIES[8]
    samples = {"n": 3, "temperature": 1, "top_k": 1}  # vLLM refuses several where the temperature is 0
    first = servers.complete(pair.p.url, prompt, 1, **samples, kv_transfer_params={"do_remote_decode": True})
    assert first.kv_transfer_params is not None, "prefill tells where its KV is"

    second = servers.complete(pair.d.url, prompt, TOKENS, **samples, kv_transfer_params=first.kv_transfer_params)

    assert second.text == reference.texts[prompt]
    assert pair.d.transfers("ended")[-1]["outcome"] == "delivered"


# Shows C1.
def test_conversations_of_a_batch_are_transferred_one_by_one(pair):
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts.SHORT[:3]]
    common = {"model": servers.MODEL_NAME, "temperature": 0}
    transfer = {"transfer_id": uuid.uuid4().hex, "remote_host": servers.HOST, "remote_port": pair.p.directory_port}

    def ask(server: servers.VllmServer, path: str, **body: object) -> dict:
        url = f"{server.url}/v1/chat/completions{path}"
        return servers.post_json(url, {**common, **body}, servers.COMPLETION_LIMIT_S)

    def ask_leg(server: servers.VllmServer, tokens: int, role: str) -> dict:
        params = {**transfer, role: True}
        return ask(server, "/batch", messages=conversations, max_tokens=tokens, kv_transfer_params=params)

    sources = Sources(pair)
    with ThreadPoolExecutor(2) as pool:
        prefill = pool.submit(ask_leg, pair.p, 1, "do_remote_decode")
        answer = pool.submit(ask_leg, pair.d, TOKENS, "do_remote_prefill").result()
        prefill.result()

    assert sources()["local_compute"] == len(conversations), "decode computes the last prompt token of each"
    alone = [ask(pair.p, "", messages=messages, max_tokens=TOKENS) for messages in conversations]
    assert [choice["message"]["content"] for choice in answer["choices"]] == [
        one["choices"][0]["message"]["content"] for one in alone
    ]


def test_decode_holds_the_bytes_that_prefill_computed(pair, reference, tmp_path: Path):
    for prompt in (prompts.SHORT[1], prompts.SHORT[10], prompts.STORIES[3], prompts.STORIES[9], prompts.STORIES[-1]):
        count = reference.prompt_tokens[prompt] - 1  # decode computes the last one itself
        pair.wait_for_rest()
        if not pair.caching:  # it would spoil what is cached
            for one in (pair.p, pair.d):
                ask_worker(one, "kv_poison")

        pair.complete(prompt)

        dumps = [tmp_path / f"{one.name}.kv" for one in (pair.p, pair.d)]
        elements = [
            ask_worker(one, "kv_dump", count, dump)["elements"]
            for one, dump in zip((pair.p, pair.d), dumps, strict=True)
        ]
        assert elements[0] == elements[1] > 0
        assert elements[0] % count == 0, "as many elements of each token"
        assert dumps[0].read_bytes() == dumps[1].read_bytes(), f"KV of {prompt[:40]!r}, {count} tokens"


@without_caching
def test_prefill_knows_of_the_requests_that_queue_at_decode(pair, reference):
    def decode_runs() -> float:
        return pair.d.metric("vllm:num_requests_running")

    before, texts = pair.expected(), prompts.STORIES[:4]
    with ThreadPoolExecutor(OPTIONS.seqs_max) as pool:
        others = [
            pool.submit(servers.complete, pair.d.url, prompts.SHORT[0], 40 * TOKENS) for _ in range(OPTIONS.seqs_max)
        ]
        assert servers.wait_until(lambda: decode_runs() == OPTIONS.seqs_max, 30.0), "every place is taken"
        got = pair.complete_all(texts, len(texts))
        for other in others:
            other.result()

    assert differences(got, reference) == []
    assert pair.expected() - before == len(texts)


# Shows E9.
@without_caching
def test_pools_for_one_prompt_that_are_asked_in_opposite_order_serve_both(pair, reference):
    texts = prompts.STORIES[-3:-1]
    blocks = max(-(-(reference.prompt_tokens[text] + TOKENS) // BLOCK_TOKENS) for text in texts)
    first, second = (uuid.uuid4().hex for _ in texts)
    sources = Sources(pair)
    with blocks_left(pair.p, blocks), blocks_left(pair.d, blocks), ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(pair.decode, texts[0], first)]
        assert servers.wait_until(lambda: pair.d.metric("vllm:num_requests_waiting") == 1, QUEUE_LIMIT_S)
        pair.prefill(texts[1], second)  # its KV fills the pool of prefill
        pool.submit(pair.prefill, texts[0], first)
        answers.append(pool.submit(pair.decode, texts[1], second))
        got = {text: answer.result().text for text, answer in zip(texts, answers, strict=True)}

    assert differences(got, reference) == []
    assert sources()["local_compute"] == len(texts)
    pair.complete(texts[0])  # after a step the servers' gauges know that the blocks are back


# Shows E10.
@without_caching
def test_requests_that_queue_at_decode_for_longer_than_a_lease_lose_no_kv(pair, reference, record_property):
    texts = [prompts.SHORT[i % len(prompts.SHORT)] for i in range(QUEUED)]
    sources, before = Sources(pair), pair.expected()
    with ThreadPoolExecutor(QUEUED) as pool:
        with blocks_left(pair.d, 0):
            answers = [pool.submit(pair.complete, text) for text in texts]
            assert servers.wait_until(lambda: pair.expected() == before + QUEUED, QUEUE_LIMIT_S), "all are in the queue"
            begin = pair.d.cpu_seconds()
            time.sleep(LEASE_S + 1)
            share = (pair.d.cpu_seconds() - begin) / (LEASE_S + 1)
        got = [answer.result() for answer in answers]

    assert got == [reference.texts[text] for text in texts]
    assert sources()["local_compute"] == QUEUED, "no KV was lost and computed again"
    record_property("queue_cpu_share", share)
    print(f"  decode server with {QUEUED} requests in its queue: {share:.0%} of a core")


# Shows E6.
def test_a_client_that_goes_away_leaves_nothing_behind(pair):
    with pytest.raises(OSError):  # the time is over long before the answer
        servers.post_json(
            pair.router.url + "/v1/completions",
            {"model": servers.MODEL_NAME, "prompt": prompts.STORIES[-1], "max_tokens": 1000, "ignore_eos": True},
            timeout_s=0.5,
        )


@without_caching
@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "transfer_id": 7, "remote_host": [], "remote_port": "x"},
        {"do_remote_prefill": True, "transfer_id": "t", "remote_host": "127.0.0.1", "remote_port": 1},
    ],
    ids=["nothing", "wrong types", "nobody there"],
)
# Shows E7.
def test_transfer_parameters_that_lead_nowhere_end_that_request_alone(pair, reference, params):
    try:
        answer = servers.complete(pair.d.url, prompts.STORIES[0], TOKENS, kv_transfer_params=params)
        assert answer.text == reference.texts[prompts.STORIES[0]]  # computed here instead
    except urllib.error.HTTPError as error:
        assert error.code in (400, 500)

    assert pair.complete(prompts.STORIES[1]) == reference.texts[prompts.STORIES[1]]


# Shows F2.
def test_kv_moves_over_the_transport_that_was_asked_for(pair):
    pair.complete(f"Over which road? {prompts.STORIES[8]}")

    for one in (pair.p, pair.d):
        metrics = servers.http_get(one.directory_url + "/metrics")
        assert servers.metric_values(metrics, "kvpush_transport_info", transport=pair.transport) == [1]


# How much of a core a decode server uses while it waits for KV. Measured once for each way of waiting.
WAIT_S = 4.0
# A request that has arrived waits for its KV within this time.
ARRIVAL_S = 2.0


def test_decode_that_waits_for_kv_uses_little_cpu(pair, record_property):
    """An engine with requests that wait steps all the time; the idle wait slows the empty steps down."""
    orphan = {
        "do_remote_prefill": True,
        "transfer_id": "no-prefill-has-this",
        "remote_host": servers.HOST,
        "remote_port": pair.p.directory_port,
    }

    def wait_in_vain() -> None:
        body = {"model": servers.MODEL_NAME, "prompt": prompts.STORIES[5], "kv_transfer_params": orphan}
        with contextlib.suppress(OSError):  # nothing comes: hanging up ends the request
            servers.post_json(pair.d.url + "/v1/completions", body, timeout_s=ARRIVAL_S + WAIT_S)

    client = threading.Thread(target=wait_in_vain)
    client.start()
    servers.wait_until(lambda: pair.d.transfers("live"), ARRIVAL_S)
    assert [one["transfer_id"] for one in pair.d.transfers("live")] == ["no-prefill-has-this"]
    begin = pair.d.cpu_seconds()
    time.sleep(WAIT_S)
    share = (pair.d.cpu_seconds() - begin) / WAIT_S
    client.join()

    record_property("cpu_share", share)
    print(f"  waiting decode server, idle wait {'off' if pair.caching else 'on'}: {share:.0%} of a core")
    if not pair.caching:
        assert share < 0.5


@without_caching
def test_the_engine_sees_a_delivery_at_once(pair, record_property):
    # One at a time: an engine that computes tokens of other requests takes events when that step has ended.
    texts = prompts.STORIES[6:18]  # longer than a block, so that something is pushed even when most is cached
    known = {one["transfer_id"] for one in pair.d.transfers("ended")}
    for number, prompt in enumerate(texts):
        pair.complete(f"Chapter {number}. {prompt}")

    late_ms = sorted(
        1000 * (one["timeline_seconds"]["seen_by_engine"] - one["timeline_seconds"]["delivered"])
        for one in pair.d.transfers("ended")
        if one["transfer_id"] not in known
    )
    assert len(late_ms) == len(texts)
    p99_ms = late_ms[-1]  # nearest rank
    record_property("delivered_to_seen_p99_ms", p99_ms)
    print(
        f"  delivered to seen by the engine, {len(late_ms)} times: "
        f"median {statistics.median(late_ms):.2f} ms, largest {p99_ms:.2f} ms"
    )
    assert statistics.median(late_ms) <= 3


# Shows F4.
@without_caching
def test_vllm_counts_transfers_and_kvpush_traces_them(pair):
    def counted() -> list[float]:
        sides = ((pair.p, "producer"), (pair.d, "consumer"))
        return [one.metric("vllm:kvpush_transfer_seconds_count", role=role) for one, role in sides]

    expected = [count + 1 for count in counted()]
    pair.complete(f"Where did the time go? {prompts.STORIES[7]}")
    pair.wait_for_rest()
    # The last step's statistics arrive at the front end.
    servers.wait_until(lambda: counted() == expected, ARRIVAL_S)

    assert counted() == expected
    addresses = [f"{servers.HOST}:{pair.d.directory_port}", pair.router.url.removeprefix("http://")]
    documents, _ = trace.gather(addresses)  # prefill engines of earlier tests may be missing
    newest = trace.join(record for document in documents for record in document.records())[-1]
    assert [phase.name for phase in trace.PATH_PHASES if newest.seconds(phase) is None] == []
    assert newest.at(trace.P, "prefill_end") < newest.at(trace.D, "first_step")
