"""KvPushConnector: vLLM's hooks, each handed to the half that it belongs to."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.config import get_layers_from_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import RequestStatus

from kvpush import Agent, DirectoryServer, Error
from kvpush.vllm import layout
from kvpush.vllm.metadata import Step, StepEnd
from kvpush.vllm.options import Options, check_supported
from kvpush.vllm.scheduler import Engine, Pool, Progress, SchedulerHalf
from kvpush.vllm.stats import PromMetrics, Stats
from kvpush.vllm.worker import WorkerHalf

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

KVConnectorMetadata.register(Step)
KVConnectorWorkerMetadata.register(StepEnd)

# Transfers that run when the engine stops have this long to end. vLLM's own patience with its workers is longer.
STOP_LIMIT_S = 3.0
# The outcomes whose KV decode can go on from.
COMPLETE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass
class RankHandshake(KVConnectorHandshakeMetadata):
    """What a worker tells its scheduler once: its agent's part of the directory document."""

    document: str


class KvPushConnector(KVConnectorBase_V1, SupportsHMA):
    """Made once by the scheduler and once by each worker; `role` says which half it is."""

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises ValueError when the engine cannot be served, and kvpush.Error when its address cannot be bound."""
        super().__init__(vllm_config, role, kv_cache_config)
        check_supported(vllm_config)
        transfer = self._kv_transfer_config
        self._options = Options.read(transfer.kv_connector_extra_config, transfer.kv_port)
        self._directory: DirectoryServer | None = None
        self._agent: Agent | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._directory = _open_directory(self._options)
            engine = Engine(
                host=self._options.host,
                port=self._directory.port,
                produces=transfer.is_kv_producer,
                consumes=transfer.is_kv_consumer,
                unit_tokens=layout.unit_tokens(kv_cache_config),
                sends_early=vllm_config.max_concurrent_batches == 2,
                reserve=self._options.reserve,
                workers=vllm_config.parallel_config.world_size,
            )
            self._scheduler = SchedulerHalf(engine, tell=self._directory.add)
        atexit.register(self.shutdown)

    def shutdown(self) -> None:
        atexit.unregister(self.shutdown)
        if self._agent is not None and not self._agent.stop(STOP_LIMIT_S):
            log.warning("kvpush: transfers were failed because the engine stops")
        if self._directory is not None:
            self._directory.stop()
        self._agent = self._directory = None

    # Scheduler.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        pool = Pool(
            blocks=gpu_block_pool.num_gpu_blocks - 1,  # without the null block
            block_tokens=layout.unit_tokens(self._kv_cache_config),
            groups=len(self._kv_cache_config.kv_cache_groups),
            tokens_max=self._vllm_config.model_config.max_model_len,
            free=gpu_block_pool.get_num_free_blocks,
        )
        self._scheduler.bind(pool)

    def on_new_request(self, request: Any) -> None:
        self._scheduler.arrived(
            request.request_id, request.num_prompt_tokens, request.kv_transfer_params, request.max_tokens
        )
        if not isinstance(request.kv_transfer_params, dict):
            request.kv_transfer_params = None  # vLLM itself would call .get() on whatever a client sent

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.tokens_to_receive(request.request_id, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return self._kv_cache_config.transfer_group_ids

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request.request_id, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        progress = _progress(scheduler_output) if self._scheduler.follows_prefills() else ()
        is_idle = scheduler_output.total_num_scheduled_tokens == 0
        return self._scheduler.take_step(progress, scheduler_output.preempted_req_ids or (), idle=is_idle)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.reported(connector_output.finished_sending or (), connector_output.finished_recving or ())
        if connector_output.kv_connector_worker_meta is not None:
            self._scheduler.awaits_ended(connector_output.kv_connector_worker_meta)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        complete = request.status in COMPLETE and request.num_computed_tokens >= request.num_prompt_tokens
        return self._scheduler.finished(request.request_id, complete, block_ids)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def has_pending_push_work(self) -> bool:
        return self._scheduler.has_something_to_say()

    def set_xfer_handshake_metadata(self, metadata: dict[int, RankHandshake]) -> None:
        self._directory.set_ranks([metadata[rank].document for rank in sorted(metadata)])

    # Worker.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._agent = Agent.open(
            engine_id=self._kv_transfer_config.engine_id,
            host=self._options.host,
            control_port=self._options.control_port,
            transport=self._options.transport,
            secret_file=self._options.secret_file,
            allow_unauthenticated=self._options.allow_unauthenticated,
            planes=layout.planes(self._kv_cache_config, kv_caches, _packing(self._vllm_config, kv_caches)),
            regions=layout.regions(kv_caches),
        )
        self._worker = WorkerHalf(self._agent, self._options.idle_wait_ms / 1000)

    def get_handshake_metadata(self) -> RankHandshake | None:
        return None if self._agent is None else RankHandshake(self._agent.document)

    def handle_preemptions(self, kv_connector_metadata: Step) -> None:
        if kv_connector_metadata.preempted:
            self._worker.fence(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: Step) -> None:
        super().bind_connector_metadata(connector_metadata)
        # Here and not in start_load_kv, which vLLM calls after the forward pass: a producer may be ready now.
        self._worker.begin(connector_metadata)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = self._worker.poll()
        return KVConnectorTransferResults(results.sent, results.received, results.failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        results = self._worker.poll()
        return results.sent, results.received

    def build_connector_worker_meta(self) -> StepEnd | None:
        return self._worker.take_step_end()

    def get_kv_connector_stats(self) -> Stats | None:
        """Asked of both halves after each step; the workers know all that there is to tell."""
        if self._agent is None:
            return None
        stats = Stats(self._worker.take_tally()._asdict())
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> PromMetrics:
        return PromMetrics(*arguments)

    # Nothing happens layer by layer.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass


def _open_directory(options: Options) -> DirectoryServer:
    try:
        return DirectoryServer.open(options.host, options.directory_port)
    except Error as error:
        raise Error(
            error.code,
            f"the directory cannot listen on {options.host}:{options.directory_port} ({error}); "
            "set host and directory_port in kv_connector_extra_config",
        ) from None


def _progress(scheduler_output: Any) -> Iterator[Progress]:
    scheduled = scheduler_output.num_scheduled_tokens
    for new in scheduler_output.scheduled_new_reqs:
        yield Progress(new.req_id, new.num_computed_tokens + scheduled[new.req_id], new.block_ids, True)
    cached = scheduler_output.scheduled_cached_reqs
    for request, block_ids, computed in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        yield Progress(request, computed + scheduled[request], block_ids or (), request in cached.resumed_req_ids)


def _packing(vllm_config: Any, kv_caches: dict[str, torch.Tensor]) -> dict[str, str]:
    """How the attention backend of each layer packs a block; Unsupported is raised for all but that for CPUs."""
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase, list(kv_caches))
    packing = {}
    for name, layer in layers.items():
        backend = layer.get_attn_backend().get_name()
        instruction_set = getattr(layer, "isa", None)  # set by CPUAttentionMetadataBuilder
        if backend != "CPU_ATTN" or instruction_set is None:
            raise layout.Unsupported(f"layer {name}: kvpush does not know how the attention backend {backend} packs KV")
        packing[name] = f"cpu.{instruction_set}"
    return packing
