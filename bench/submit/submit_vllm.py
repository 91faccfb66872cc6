"""vLLM's way to submit: its own function for the ids of descriptors, then the calls of NIXL's Python package that its
push worker makes, with agents configured as it does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))

import numpy as np

from nixl_pair import Pair
from submit_case import CASES, PAGE_BYTES, Case
from submit_worker import Parts, begin_anywhere, serve, timed

POLL_S = 0.005  # not within what is timed


def bare_worker(case: Case):
    """A worker without an engine: only what `_compute_desc_ids` reads, for one group of full attention."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker

    one = object.__new__(NixlBaseConnectorWorker)
    one._has_mamba = False
    one._transfer_layer_group_ids = []
    one._uses_region_group_mapping = False
    one.num_regions = case.planes
    one.block_len_per_layer = [PAGE_BYTES] * case.planes
    one.region_group_ids = [0] * case.planes
    return one


class Session:
    """What the connector keeps for a peer and a case: prepared lists of every block on both sides."""

    def __init__(self, pair: Pair, case: Case) -> None:
        self._case = case
        self._agent = pair.side.agent
        self._worker = bare_worker(case)
        self._local = self._prepare("NIXL_INIT_AGENT", pair.side.base)
        self._remote = self._prepare(pair.target, pair.target_base)

    def _prepare(self, agent: str, base: int):
        case = self._case
        blocks = [
            (base + offset + block * PAGE_BYTES, PAGE_BYTES, 0)
            for offset in case.offsets()
            for block in range(case.pool_blocks)
        ]
        descriptors = self._agent.get_xfer_descs(np.array(blocks, dtype=np.uint64), "DRAM")
        return self._agent.prep_xfer_dlist(agent, descriptors)

    def _ids(self, blocks: list[int], block_size_ratio: float | None) -> np.ndarray:
        case = self._case
        return self._worker._compute_desc_ids(
            block_ids=(blocks,),
            dst_num_blocks=case.pool_blocks,
            block_size_ratio=block_size_ratio,
            physical_blocks_per_logical=1,
            region_num_blocks=[case.pool_blocks] * case.planes,
            region_group_ids=self._worker.region_group_ids,
            uses_region_group_mapping=False,
        )

    def submit(self, turn: int) -> Parts:
        parts: Parts = {}
        from_blocks, to_blocks = self._case.tables(turn)
        begin_anywhere()
        with timed(parts, "ids"):
            remote_ids = self._ids(to_blocks, None)
            local_ids = self._ids(from_blocks, 1)
        with timed(parts, "make"):
            handle = self._agent.make_prepped_xfer(
                "WRITE", self._local, local_ids, self._remote, remote_ids, notif_msg=b"transfer:1"
            )
        with timed(parts, "post"):
            state = self._agent.transfer(handle)
        while state == "PROC":
            time.sleep(POLL_S)
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"a transfer has ended as {state}")
        self._agent.release_xfer_handle(handle)
        return parts


def make():
    try:
        pair = Pair(max(case.memory_bytes() for case in CASES), as_vllm=True)
        sessions = {case: Session(pair, case) for case in CASES}
    except ImportError as error:
        return f"vLLM with NIXL is not installed: {error}"

    def submit(case: Case, turn: int) -> Parts:
        if case not in sessions:
            sessions[case] = Session(pair, case)
        return sessions[case].submit(turn)

    return submit


if __name__ == "__main__":
    serve(make)
