"""Stand-in engines and the router as processes: KV pushed between them, answers compared with those of one engine.

An answer depends on every byte of its prompt's KV, so that equal answers are equal bytes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine_process import EngineProcess, engine_binary, events_of, text_of
from http_process import ProgramEnded, Sent, wait_until
from router_process import RouterProcess

BLOCK = 16
TOKENS = 8


def prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * 7919 + 31 * i) % 50000 for i in range(length)]


LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 777, 5000]
SHARED = [prompt(5 * BLOCK) + prompt(tail, seed=2 + tail) for tail in (1, BLOCK - 1, BLOCK, 3 * BLOCK + 5)]
PROMPTS = [prompt(length) for length in LENGTHS] + SHARED + [list(b"a text of bytes")]


@dataclass
class Trio:
    """A prefill engine, a decode engine, and the router before them."""

    p: EngineProcess
    d: EngineProcess
    router: RouterProcess

    def complete(self, tokens: list[int], count: int = TOKENS, **more: object) -> Sent:
        return self.router.post("/v1/completions", {"prompt": tokens, "max_tokens": count} | more)

    def wait_for_rest(self) -> None:
        for engine in (self.p, self.d):
            engine.wait_for_rest()


@pytest.fixture(scope="module")
def alone() -> Iterator[dict[tuple[int, ...], str]]:
    """What one engine alone answers to each prompt."""
    with EngineProcess("both") as engine:
        yield {tuple(one): text_of(engine.complete(one, TOKENS)) for one in PROMPTS}


def start_trio(*flags: str, p_flags: tuple[str, ...] = ()) -> Iterator[Trio]:
    with EngineProcess("prefill", *flags, *p_flags) as p, EngineProcess("decode", *flags) as d:
        with RouterProcess([p.with_directory], [d.address]) as router:
            yield Trio(p, d, router)
        for engine in (p, d):
            if engine.process.poll() is None:
                engine.terminate()
                assert engine.wait() == 0, "an engine stops when it is told to"


@pytest.fixture(params=[True, False], ids=["caching", "plain"])
def trio(request: pytest.FixtureRequest) -> Iterator[Trio]:
    yield from start_trio(*(() if request.param else ("--no-prefix-caching",)))


@pytest.fixture
def plain_trio() -> Iterator[Trio]:
    yield from start_trio("--no-prefix-caching")


def test_every_answer_is_that_of_one_engine_alone(trio, alone):
    for one in PROMPTS:
        assert text_of(trio.complete(one)) == alone[tuple(one)], f"{len(one)} tokens"
    trio.wait_for_rest()


def test_many_answers_at_once_are_those_of_one_engine_alone(trio, alone):
    sent = [(one, trio.complete(one)) for one in PROMPTS * 3]

    for one, answer in sent:
        assert text_of(answer) == alone[tuple(one)], f"{len(one)} tokens"
    trio.wait_for_rest()


def test_decode_computes_the_last_token_of_each_prompt_and_no_other(plain_trio):
    for one in PROMPTS:
        text_of(plain_trio.complete(one))

    assert plain_trio.d.prompt_tokens("computed") == len(PROMPTS)
    assert plain_trio.d.prompt_tokens("received") == sum(len(one) - 1 for one in PROMPTS)
    assert plain_trio.p.prompt_tokens("computed") == sum(len(one) for one in PROMPTS)


def test_decode_receives_only_what_it_does_not_know():
    for trio in start_trio():
        shared = 5 * BLOCK
        for one in SHARED:
            text_of(trio.complete(one))

        assert trio.d.prompt_tokens("cached") == shared * (len(SHARED) - 1)
        assert trio.d.prompt_tokens("computed") == len(SHARED)
        assert trio.p.prompt_tokens("cached") == shared * (len(SHARED) - 1)


def test_blocks_of_different_size_are_no_hindrance(alone):
    for trio in start_trio(p_flags=("--block-tokens", "24")):
        for one in PROMPTS:
            assert text_of(trio.complete(one)) == alone[tuple(one)], f"{len(one)} tokens"
        trio.wait_for_rest()


@pytest.mark.parametrize("transport", ["ucx", "nixl"])
def test_the_network_transports_give_the_same_answers(alone, transport, monkeypatch):
    nixl = Path(sysconfig.get_path("platlib"), ".nixl_cu13.mesonpy.libs")
    if nixl.is_dir() and "KVPUSH_NIXL_DIR" not in os.environ:
        monkeypatch.setenv("KVPUSH_NIXL_DIR", str(nixl))
    try:
        for trio in start_trio("--transport", transport):
            for one in PROMPTS:
                assert text_of(trio.complete(one)) == alone[tuple(one)], f"{len(one)} tokens"
            trio.wait_for_rest()
    except ProgramEnded as ended:
        if ended.status != 2:
            raise
        pytest.skip(f"{transport} cannot be opened here")


@pytest.mark.parametrize("with_id", [True, False], ids=["named", "unnamed"])
def test_decode_may_be_called_after_prefill_has_answered(trio, alone, with_id):
    for number, one in enumerate(PROMPTS):
        params = {"do_remote_decode": True} | ({"transfer_id": f"serial-{number}"} if with_id else {})
        first = trio.p.complete(one, 1, kv_transfer_params=params).finish().json
        transfer = first["kv_transfer_params"]
        assert transfer["remote_port"] == trio.p.directory_port

        assert text_of(trio.d.complete(one, TOKENS, kv_transfer_params=transfer)) == alone[tuple(one)]
    trio.wait_for_rest()


def test_an_answer_can_be_streamed(trio, alone):
    one = PROMPTS[-1]

    events = events_of(trio.complete(one, stream=True))

    texts = [event["choices"][0]["text"] for event in events]
    assert len(texts) == TOKENS + 1
    assert "".join(texts) == alone[tuple(one)]
    assert events[-1]["usage"]["completion_tokens"] == TOKENS


def test_a_text_is_its_bytes(alone):
    with EngineProcess() as engine:
        assert text_of(engine.complete("a text of bytes", TOKENS)) == alone[tuple(b"a text of bytes")]


def test_answers_stay_right_when_the_pool_is_too_small_for_all(alone):
    long = prompt(777)
    for trio in start_trio("--blocks", "120"):
        sent = [(one, trio.complete(one)) for one in [long, *SHARED, prompt(2 * BLOCK + 1)] * 4]
        for one, answer in sent:
            assert text_of(answer) == alone[tuple(one)], f"{len(one)} tokens"
        trio.wait_for_rest()


def test_preemption_changes_no_answer():
    prompts = [prompt(2 * BLOCK, seed) for seed in range(8)]
    with EngineProcess() as large, EngineProcess("both", "--blocks", "12", "--no-prefix-caching") as small:
        expected = [text_of(large.complete(one, 3 * BLOCK)) for one in prompts]

        sent = [small.complete(one, 3 * BLOCK) for one in prompts]

        assert [text_of(one) for one in sent] == expected
        assert small.metric("kvpush_engine_preemptions_total") > 0
        small.wait_for_rest()


def test_an_engine_can_be_both_sides_of_a_transfer(alone):
    with (
        EngineProcess("both", "--transport", "loopback", "--no-prefix-caching") as engine,
        RouterProcess([engine.with_directory], [engine.address]) as router,
    ):
        for one in PROMPTS:
            answer = text_of(router.post("/v1/completions", {"prompt": one, "max_tokens": TOKENS}))
            assert answer == alone[tuple(one)], f"{len(one)} tokens"
        engine.wait_for_rest()
        assert engine.prompt_tokens("received") == sum(len(one) - 1 for one in PROMPTS)


def test_steps_and_tokens_take_the_time_that_is_asked_for():
    with EngineProcess("both", "--step-ms", "20", "--token-us", "1000") as engine:
        begin = time.monotonic()
        text_of(engine.complete(prompt(100), 5))
        took = time.monotonic() - begin

    assert took >= 0.2, "5 steps of 20 ms, 104 tokens of 1 ms"


def test_a_client_that_goes_away_frees_its_blocks(plain_trio):
    plain_trio.p.debug("delay", milliseconds=60000).finish()
    sent = plain_trio.complete(prompt(777))
    wait_until(lambda: plain_trio.d.requests()["receiving"] == 1, "decode has reserved its blocks")

    sent.go_away()

    plain_trio.d.wait_for_rest()


# What goes wrong


def flipped(engine: EngineProcess, block: int, offset: int) -> None:
    assert engine.debug("corrupt", block=block, offset=offset).finish().status == 200


def test_a_wrong_byte_in_a_cached_prefix_is_found_and_named():
    with EngineProcess() as engine:
        one = prompt(3 * BLOCK)
        right = text_of(engine.complete(one))
        flipped(engine, block=1, offset=64)  # the first layer's keys, first head, second token of the block

        answer = engine.complete(one).finish()

        assert answer.status == 500
        assert answer.error["message"] == "wrong KV in block 1: token 17, layer layers.0, key, head 0"
        assert engine.metric("kvpush_engine_wrong_kv_total") == 1
        flipped(engine, block=1, offset=64)
        assert text_of(engine.complete(one)) == right


def test_a_wrong_byte_that_was_pushed_is_found_by_decode(plain_trio):
    one = prompt(3 * BLOCK)
    params = {"do_remote_decode": True}
    first = plain_trio.p.complete(one, 1, kv_transfer_params=params).finish().json
    flipped(plain_trio.p, block=2, offset=0)

    answer = plain_trio.d.complete(one, TOKENS, kv_transfer_params=first["kv_transfer_params"]).finish()

    assert answer.status == 500
    assert f"token {2 * BLOCK}, layer layers.0" in answer.error["message"]
    assert plain_trio.d.metric("kvpush_engine_requests_total", outcome="failed") == 1
    plain_trio.wait_for_rest()


def test_an_engine_refuses_what_it_is_told_to_refuse():
    with EngineProcess() as engine:
        engine.debug("refuse", count=2).finish()

        assert [engine.complete([1]).finish().status for _ in range(3)] == [503, 503, 200]
        assert engine.metric("kvpush_engine_requests_total", outcome="refused") == 2


def test_a_stopped_engine_goes_on_when_it_is_continued():
    with EngineProcess() as engine:
        stop = engine.debug("stop")
        wait_until(lambda: process_stat(engine.process.pid)[0] == "T", "the process is stopped")
        sent = engine.complete([1, 2, 3])

        engine.process.send_signal(signal.SIGCONT)

        assert stop.finish().status == 200
        text_of(sent)


def process_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_prefill_that_dies_ends_its_requests_soon_and_cleanly(plain_trio):
    plain_trio.p.debug("delay", milliseconds=60000).finish()
    sent = plain_trio.complete(prompt(777))
    wait_until(lambda: plain_trio.d.requests()["receiving"] == 1, "decode has reserved its blocks")
    begin = time.monotonic()

    plain_trio.p.debug("die")

    assert sent.finish().status == 502
    plain_trio.d.wait_for_rest()
    assert time.monotonic() - begin < 15
    assert plain_trio.p.wait() == -signal.SIGKILL
    assert text_of(plain_trio.d.complete(prompt(777))), "decode itself is well"


def test_an_idle_engine_uses_no_cpu_time():
    with EngineProcess() as engine:
        text_of(engine.complete(prompt(100)))
        before = cpu_ticks(engine.process.pid)
        time.sleep(1)  # the time is what is measured
        assert cpu_ticks(engine.process.pid) - before <= 1


def cpu_ticks(pid: int) -> int:
    """Of 10 ms, in user and kernel mode."""
    user, kernel = process_stat(pid)[11:13]
    return int(user) + int(kernel)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--transport", "pigeon"), "--transport pigeon"),
        (("--directory", "nowhere"), "--directory nowhere"),
        (("--row-bytes", "12"), "--row-bytes 12"),
        (("--blocks", "1000000", "--layers", "256", "--row-bytes", "4096"), "--blocks 1000000"),
        (("--role", "king"), "--role"),
    ],
)
def test_a_flag_that_cannot_work_is_one_line_and_status_2(flags, what):
    ended = subprocess.run([engine_binary(), *flags], capture_output=True, text=True, timeout=20, check=False)

    assert ended.returncode == 2
    assert what in ended.stderr
    assert ended.stderr.count("\n") == 1


# Shows E10.
def test_requests_that_queue_for_longer_than_a_lease_lose_no_kv():
    prompts = [prompt(3 * BLOCK - 4, seed) for seed in range(128)]
    with EngineProcess("both") as engine:
        expected = [text_of(sent) for sent in [engine.complete(one, 1) for one in prompts]]
    times = ("--lease-ms", "200", "--hold-ms", "200", "--no-prefix-caching")
    # Room for one request, which takes longer than a hundredth of what the queue must.
    decode = EngineProcess("decode", *times, "--blocks", "4", "--step-ms", "8")
    with EngineProcess("prefill", *times) as p, decode as d, RouterProcess([p.with_directory], [d.address]) as router:
        begun = time.monotonic()
        calls = [router.post("/v1/completions", {"prompt": one, "max_tokens": 1}) for one in prompts]
        assert [text_of(sent) for sent in calls] == expected
        assert time.monotonic() - begun > 4 * 0.2, "the last one waited for longer than lease and hold time"
        assert d.prompt_tokens("computed") == len(prompts), "of each prompt the last token, and no other"
        p.wait_for_rest()
        d.wait_for_rest()
