"""KvPushConnector itself: two engines in this process, vLLM's hooks called as vLLM calls them, real caches."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import vllm.v1.kv_cache_interface as vllm
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole, supports_hma
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from kvpush import Error, trace
from kvpush.types import Await
from kvpush.vllm import register
from kvpush.vllm.layout import Unsupported
from kvpush.vllm.metadata import StepEnd

LAYERS = ["layer.0", "layer.1"]
BLOCKS, HEADS, SLOTS, SIZE = 8, 2, 32, 64
LIMIT_S = 10.0


class Layer(AttentionLayerBase):
    """What the connector asks of an attention layer."""

    isa = "vec"

    def get_attn_backend(self):
        return SimpleNamespace(get_name=lambda: "CPU_ATTN")

    def get_kv_cache_spec(self, vllm_config):
        return None


def vllm_config(role, **extra):
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="KvPushConnector",
            kv_role=role,
            kv_connector_extra_config={"directory_port": 0, "transport": "cma", **extra},
        ),
        parallel_config=SimpleNamespace(world_size=1, data_parallel_size=1),
        model_config=SimpleNamespace(is_encoder_decoder=False, max_model_len=2 * SLOTS),
        compilation_config=SimpleNamespace(static_forward_context={name: Layer() for name in LAYERS}),
        max_concurrent_batches=2,
    )


def kv_cache_config():
    spec = vllm.FullAttentionSpec(block_size=SLOTS, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.bfloat16)
    page = spec.page_size_bytes
    tensor = vllm.KVCacheTensor(
        size=len(LAYERS) * BLOCKS * page, layers=list(LAYERS), layer_stride=BLOCKS * page, block_stride=page
    )
    return vllm.KVCacheConfig(BLOCKS, [tensor], [vllm.KVCacheGroupSpec(list(LAYERS), spec)])


class Engine:
    """Both instances of the connector in one engine, made and called in vLLM's order."""

    def __init__(self, role: str, seed: int, **extra: str) -> None:
        register()
        config, cache_config = vllm_config(role, **extra), kv_cache_config()
        cls = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
        self.worker = cls(config, KVConnectorRole.WORKER, cache_config)
        (tensor,) = cache_config.kv_cache_tensors
        memory = torch.randint(0, 127, (tensor.size,), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))
        spec = cache_config.kv_cache_groups[0].kv_cache_spec
        views = vllm.create_kv_cache_views(memory, spec, BLOCKS, KVCacheLayout.LBHNC, tensor)
        self.caches = dict(zip(LAYERS, views, strict=True))
        self.worker.register_kv_caches(self.caches)
        self.scheduler = cls(config, KVConnectorRole.SCHEDULER, cache_config)
        self.pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=SLOTS)
        self.scheduler.bind_kv_cache_manager(SimpleNamespace(block_pool=self.pool))
        handshake = pickle.loads(pickle.dumps(self.worker.get_handshake_metadata()))
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): handshake})

    def step(self, new=(), cached=(), preempted=()):
        """`new` and `cached` are (request, computed before, tokens, new block ids), as the step output has them."""
        empty = SchedulerOutput.make_empty()
        cached_data = replace(
            empty.scheduled_cached_reqs,
            req_ids=[name for name, *_ in cached],
            num_computed_tokens=[computed for _, computed, _, _ in cached],
            new_block_ids=[(list(ids),) if ids else None for *_, ids in cached],
        )
        tokens = {name: count for name, _, count, _ in (*new, *cached)}
        output = replace(
            empty,
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=(list(ids),))
                for name, computed, _, ids in new
            ],
            scheduled_cached_reqs=cached_data,
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            preempted_req_ids=set(preempted),
        )
        metadata = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))
        self.worker.handle_preemptions(metadata)
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(set())
        ended = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
        )
        self.worker.clear_connector_metadata()
        self.scheduler.update_connector_output(pickle.loads(pickle.dumps(ended)))
        return results

    def step_until(self, done):
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            results = self.step()
            if done(results):
                return results
        raise AssertionError(f"not within {LIMIT_S} s")

    def stop(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()
        self.scheduler.shutdown()


@pytest.fixture
def engines():
    try:
        pair = Engine("kv_producer", 1), Engine("kv_consumer", 2)
    except Error as error:
        if error.code != "unavailable":
            raise
        pytest.skip(f"cma cannot be used here: {error}")
    yield pair
    for engine in pair:
        engine.stop()


def request(name, prompt, params, status=RequestStatus.WAITING, computed=0):
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=prompt,
        num_computed_tokens=computed,
        kv_transfer_params=params,
        max_tokens=1,
        status=status,
    )


def blocks(*ids):
    return SimpleNamespace(get_block_ids=lambda: (list(ids),))


def test_a_prompt_goes_from_prefill_to_decode(engines):
    prefill, decode = engines
    computed = request("p", 70, {"do_remote_decode": True}, RequestStatus.FINISHED_LENGTH_CAPPED, computed=70)
    prefill.scheduler.on_new_request(computed)
    assert prefill.scheduler.get_num_new_matched_tokens(computed, 0) == (0, False)
    prefill.scheduler.update_state_after_alloc(computed, blocks(3, 1, 6), 0)
    prefill.step(new=[("p", 0, 70, (3, 1, 6))])
    delay_free, params = prefill.scheduler.request_finished_all_groups(computed, ([3, 1, 6],))
    assert delay_free
    assert prefill.scheduler.has_pending_push_work()
    prefill.step()
    assert not prefill.scheduler.has_pending_push_work()

    waiting = request("d", 70, params)
    before = {name: cache.clone() for name, cache in decode.caches.items()}
    decode.scheduler.on_new_request(waiting)
    assert decode.scheduler.get_num_new_matched_tokens(waiting, 32) == (37, True)
    assert decode.scheduler.get_loaded_kv_cache_group_ids(waiting) == (0,)
    decode.scheduler.update_state_after_alloc(waiting, blocks(2, 5, 7), 37)
    results = decode.step_until(lambda results: results.finished_recving)

    assert (results.finished_recving, results.failed_recving) == ({"d"}, set())
    assert prefill.step_until(lambda results: results.finished_sending).finished_sending == {"p"}
    for name in LAYERS:
        expected = before[name]
        expected[5], expected[7] = prefill.caches[name][1], prefill.caches[name][6]
        assert torch.equal(decode.caches[name].view(torch.int16), expected.view(torch.int16))


def test_the_kv_of_a_prompt_goes_while_its_request_still_runs(engines):
    prefill, decode = engines
    leg = request("p", 70, {"do_remote_decode": True, "transfer_id": "t"}, RequestStatus.RUNNING)
    prefill.scheduler.on_new_request(leg)
    prefill.scheduler.update_state_after_alloc(leg, blocks(3), 0)
    prefill.step(new=[("p", 0, 32, (3,))])
    prefill.step(cached=[("p", 32, 38, (1, 6))])
    prefill.step()

    params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "transfer_id": "t"}
    waiting = request("d", 70, {**params, "remote_port": prefill.scheduler._directory.port})
    decode.scheduler.on_new_request(waiting)
    decode.scheduler.update_state_after_alloc(waiting, blocks(2, 5, 7), 69)
    assert decode.step_until(lambda results: results.finished_recving).failed_recving == set()
    for name in LAYERS:
        for source, target in zip((3, 1, 6), (2, 5, 7), strict=True):
            moved, there = prefill.caches[name][source], decode.caches[name][target]
            assert torch.equal(moved.view(torch.int16), there.view(torch.int16))

    assert prefill.step().finished_sending == set(), "vLLM does not know yet that the request has finished"
    leg.status, leg.num_computed_tokens = RequestStatus.FINISHED_LENGTH_CAPPED, 70
    assert prefill.scheduler.request_finished_all_groups(leg, ([3, 1, 6],))[0]
    assert prefill.step_until(lambda results: results.finished_sending).finished_sending == {"p"}


# Shows A3.
def test_a_preempted_request_is_sent_again_from_its_new_blocks(engines):
    prefill, decode = engines
    leg = request("p", 20, {"do_remote_decode": True, "transfer_id": "t"}, RequestStatus.RUNNING)
    prefill.scheduler.on_new_request(leg)
    prefill.scheduler.update_state_after_alloc(leg, blocks(3), 0)
    prefill.step(new=[("p", 0, 20, (3,))])
    prefill.step()
    prefill.step(new=[("p", 0, 20, (4,))], preempted=["p"])
    prefill.step()

    params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "transfer_id": "t"}
    waiting = request("d", 20, {**params, "remote_port": prefill.scheduler._directory.port})
    decode.scheduler.on_new_request(waiting)
    decode.scheduler.update_state_after_alloc(waiting, blocks(2), 19)
    assert decode.step_until(lambda results: results.finished_recving).failed_recving == set()
    for name in LAYERS:
        moved, there = prefill.caches[name][4], decode.caches[name][2]
        assert torch.equal(moved.view(torch.int16), there.view(torch.int16))


def decode_leg(prefill, prompt):
    """A request for the transfer "t"."""
    port = prefill.scheduler._directory.port
    params = {"do_remote_prefill": True, "transfer_id": "t", "remote_host": "127.0.0.1", "remote_port": port}
    return request("d", prompt, params)


def test_decode_reserves_when_its_prefill_has_blocks(engines):
    prefill, _ = engines
    decode = Engine("kv_consumer", 3, reserve="admitted")
    waiting = decode_leg(prefill, 70)
    decode.scheduler.on_new_request(waiting)
    for _ in range(3):
        assert decode.scheduler.get_num_new_matched_tokens(waiting, 0) == (None, False)
        decode.step()

    leg = request("p", 70, {"do_remote_decode": True, "transfer_id": "t"}, RequestStatus.RUNNING)
    prefill.scheduler.on_new_request(leg)
    prefill.scheduler.update_state_after_alloc(leg, blocks(3, 1, 6), 0)
    prefill.step(new=[("p", 0, 70, (3, 1, 6))])

    decode.step_until(lambda _: decode.scheduler.get_num_new_matched_tokens(waiting, 0) == (69, True))
    decode.scheduler.update_state_after_alloc(waiting, blocks(2, 5, 7), 69)
    prefill.step()
    assert decode.step_until(lambda results: results.finished_recving).failed_recving == set()
    decode.stop()


@pytest.mark.parametrize(("prompt", "answer"), [(5 * SLOTS, (5 * SLOTS - 1, True)), (5 * SLOTS + 1, (None, False))])
def test_decode_reserves_early_what_leaves_room_for_the_longest_request(engines, prompt, answer):
    # 7 blocks, without vLLM's null block; the longest request has 2.
    prefill, decode = engines
    waiting = decode_leg(prefill, prompt)
    decode.scheduler.on_new_request(waiting)
    assert decode.scheduler.get_num_new_matched_tokens(waiting, 0) == answer


def test_decode_reserves_early_only_while_blocks_are_free(engines):
    prefill, decode = engines
    decode.pool.get_new_blocks(7)
    waiting = decode_leg(prefill, 70)
    decode.scheduler.on_new_request(waiting)
    assert decode.scheduler.get_num_new_matched_tokens(waiting, 0) == (None, False)


def test_vllm_adds_up_what_its_workers_heard():
    await_t, await_u = Await("t", "127.0.0.1", 1), Await("u", "127.0.0.1", 1)
    heard = [{await_t: 1}, None, {await_t: 1, await_u: 1}]
    outputs = [
        ModelRunnerOutput.with_kv_conn_output_only(
            KVConnectorOutput(kv_connector_worker_meta=None if awaits is None else StepEnd(Counter(awaits)))
        )
        for awaits in heard
    ]
    together = KVOutputAggregator(len(heard)).aggregate(outputs)
    assert together.kv_connector_output.kv_connector_worker_meta == StepEnd(Counter({await_t: 2, await_u: 1}))


def transfer(prefill, decode):
    """One prompt of 70 tokens from `prefill` to `decode`, up to the step in which decode goes on."""
    leg = request("p", 70, {"do_remote_decode": True}, RequestStatus.FINISHED_LENGTH_CAPPED, computed=70)
    prefill.scheduler.on_new_request(leg)
    prefill.scheduler.update_state_after_alloc(leg, blocks(3, 1, 6), 0)
    _, params = prefill.scheduler.request_finished_all_groups(leg, ([3, 1, 6],))
    prefill.step()
    waiting = request("d", 70, params)
    decode.scheduler.on_new_request(waiting)
    decode.scheduler.get_num_new_matched_tokens(waiting, 0)
    decode.scheduler.update_state_after_alloc(waiting, blocks(2, 5, 7), 69)
    decode.step_until(lambda results: results.finished_recving)
    decode.scheduler.update_state_after_alloc(waiting, blocks(2, 5, 7), 0)
    prefill.step_until(lambda results: results.finished_sending)


def test_vllm_gets_statistics_of_a_transfer_once(engines):
    prefill, decode = engines
    assert prefill.worker.get_kv_connector_stats() is None

    transfer(prefill, decode)

    for engine, title in ((prefill, "Sent"), (decode, "Received")):
        summary = engine.worker.get_kv_connector_stats().reduce()
        assert summary[f"{title} transfers"] == 1
        assert 0 < summary[f"{title} avg time (ms)"] < 1000 * LIMIT_S
        assert engine.worker.get_kv_connector_stats() is None
        assert engine.scheduler.get_kv_connector_stats() is None


# Shows F4.
def test_both_directories_know_when_the_schedulers_saw_the_transfer(engines):
    prefill, decode = engines
    transfer(prefill, decode)

    found = trace.join(
        record
        for engine in engines
        for record in trace.fetch(f"127.0.0.1:{engine.scheduler._directory.port}").records()
    )

    (one,) = found
    assert sorted((record.role, record.part) for record in one.records) == [
        ("consumer", "rank 0"),
        ("consumer", "scheduler"),
        ("producer", "rank 0"),
        ("producer", "scheduler"),
    ]
    unknown = {phase.name for phase in trace.PATH_PHASES if one.seconds(phase) is None}
    assert unknown == {"router to prefill", "first step to first byte"}, "there is no router here"
    assert 0 < one.at(trace.D, "first_step") - one.at(trace.P, "prefill_end") < LIMIT_S


def test_a_request_whose_prefill_was_aborted_fails(engines):
    prefill, decode = engines
    leg = request("p", 70, {"do_remote_decode": True, "transfer_id": "t"}, RequestStatus.FINISHED_ABORTED)
    prefill.scheduler.on_new_request(leg)
    assert prefill.scheduler.request_finished(leg, []) == (False, None)
    waiting = request(
        "d",
        70,
        {
            "do_remote_prefill": True,
            "transfer_id": "t",
            "remote_host": "127.0.0.1",
            "remote_port": prefill.scheduler._directory.port,
        },
    )
    decode.scheduler.on_new_request(waiting)
    decode.scheduler.update_state_after_alloc(waiting, blocks(2, 5, 7), 69)
    decode.step()
    time_limit = time.monotonic() + LIMIT_S
    results = decode.step()
    prefill.step()
    while not results.failed_recving and time.monotonic() < time_limit:
        results = decode.step()
    assert results.failed_recving == results.finished_recving == {"d"}


def test_params_that_are_no_object_never_reach_vllm(engines):
    _, decode = engines
    strange = request("x", 70, "do_remote_prefill")
    decode.scheduler.on_new_request(strange)
    assert strange.kv_transfer_params is None


def test_an_engine_takes_its_own_role_only(engines):
    prefill, _ = engines
    leg = request("d", 70, {"do_remote_prefill": True, "transfer_id": "t", "remote_host": "h", "remote_port": 1})
    prefill.scheduler.on_new_request(leg)
    assert prefill.scheduler.get_num_new_matched_tokens(leg, 0) == (69, True)
    prefill.scheduler.update_state_after_alloc(leg, blocks(1, 2, 3), 69)
    assert prefill.step().failed_recving == {"d"}


def test_the_connector_keeps_the_hybrid_manager_and_can_be_registered_twice():
    register()
    register()
    assert supports_hma(KVConnectorFactory.get_connector_class_by_name("KvPushConnector"))


def test_an_engine_that_cannot_be_served_is_refused_by_both_halves():
    config = vllm_config("kv_producer")
    config.parallel_config.world_size = 2
    cls = KVConnectorFactory.get_connector_class_by_name("KvPushConnector")
    for role in KVConnectorRole:
        with pytest.raises(Unsupported, match="one worker"):
            cls(config, role, kv_cache_config())
    with pytest.raises(ValueError, match="hots"):
        cls(vllm_config("kv_producer", hots=1), KVConnectorRole.SCHEDULER, kv_cache_config())


# Shows C6.
def test_a_taken_directory_port_is_named(engines):
    prefill, _ = engines
    cls = type(prefill.scheduler)
    config = vllm_config("kv_consumer", directory_port=prefill.scheduler._directory.port)
    with pytest.raises(Error, match=r"directory_port"):
        cls(config, KVConnectorRole.SCHEDULER, kv_cache_config())


def test_an_unknown_attention_backend_is_refused():
    cls = KVConnectorFactory.get_connector_class_by_name("KvPushConnector")
    config = vllm_config("kv_producer")
    config.compilation_config.static_forward_context[LAYERS[1]].isa = None
    worker = cls(config, KVConnectorRole.WORKER, kv_cache_config())
    caches = {name: torch.zeros(BLOCKS, HEADS, SLOTS, 2 * SIZE, dtype=torch.bfloat16) for name in LAYERS}
    with pytest.raises(Unsupported, match=r"layer\.1"):
        worker.register_kv_caches(caches)
    worker.shutdown()
