"""Looks into a vLLM server of these tests: its free blocks, of which it can keep some, and the bytes of a request's KV.

A worker extension (`--worker-extension-cls kv_reader.KvReader`) that tests call over `/collective_rpc`
(`VLLM_SERVER_DEV_MODE=1`). Arguments arrive as strings. It leans on internals of vLLM 0.32's CPU worker; with the `uni`
executor the scheduler lives in its process.
"""

from __future__ import annotations

from pathlib import Path

import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.core.block_pool import BlockPool

POISON = 3.0  # finite, so that slots nobody has written do not spoil attention

_pools: list[BlockPool] = []
_make_pool = BlockPool.__init__


def _make_and_remember(pool: BlockPool, *arguments, **more) -> None:
    _make_pool(pool, *arguments, **more)
    _pools.append(pool)


BlockPool.__init__ = _make_and_remember  # vLLM imports this module before its scheduler makes the pool


class KvReader:
    """Methods added to vLLM's worker."""

    def kv_watch(self) -> None:
        """From now on remembers of the newest request its block table and how many tokens each step computed."""
        inner = self.model_runner.execute_model

        def execute_model(scheduler_output, *arguments, **more):
            for request in scheduler_output.scheduled_new_reqs:
                self._watched, self._table, self._steps = request.req_id, list(request.block_ids[0]), []
            cached = scheduler_output.scheduled_cached_reqs
            for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
                if request_id == self._watched and blocks is not None:
                    self._table += blocks[0]
            if self._watched in scheduler_output.num_scheduled_tokens:
                self._steps.append(scheduler_output.num_scheduled_tokens[self._watched])
            return inner(scheduler_output, *arguments, **more)

        self._watched, self._table, self._steps = "", [], []
        self.model_runner.execute_model = execute_model

    def kv_steps(self) -> list[int]:
        """How many tokens of the newest request each step computed."""
        return self._steps

    def kv_poison(self) -> None:
        """Overwrites the whole KV cache. Only while nothing runs, and without prefix caching."""
        for layer in self.model_runner.kv_caches:
            layer.fill_(POISON)

    def kv_dump(self, tokens: str, path: str) -> dict[str, int]:
        """Writes the KV of the newest request's first `tokens` tokens to a file: layer by layer, page by page.

        Within the last page, which they may fill in part only, elements of other tokens are written as zero. Returns
        how many elements belong to the tokens, in all.
        """
        count = int(tokens)
        elements = 0
        with Path(path).open("wb") as out:
            for layer in self.model_runner.kv_caches:
                block_tokens = layer.shape[2]
                for first in range(0, count, block_tokens):
                    page = layer[self._table[first // block_tokens]]
                    mine = _elements_of(layer, min(count - first, block_tokens))
                    elements += int(mine.sum())
                    out.write(torch.where(mine, page, 0).view(torch.uint8).numpy().tobytes())
        return {"elements": elements}

    def kv_free_blocks(self) -> dict[str, int]:
        (pool,) = _pools
        return {"free": pool.get_num_free_blocks(), "all": pool.num_gpu_blocks}

    def kv_take_all_but(self, blocks: str) -> None:
        """Leaves so many blocks for requests, until kv_give_back()."""
        (pool,) = _pools
        self._taken = pool.get_new_blocks(pool.get_num_free_blocks() - int(blocks))

    def kv_give_back(self) -> None:
        (pool,) = _pools
        pool.free_blocks(self._taken)


def _elements_of(layer: torch.Tensor, count: int) -> torch.Tensor:
    """Which elements of a page hold the first `count` tokens: those that the backend's own writer writes for them.

    Where they are depends on the CPU: keys are transposed, and with AMX both are packed.
    """
    page = torch.zeros_like(layer[:1])
    _, heads, block_tokens, width = page.shape
    ones = torch.ones(count, heads, width // 2, dtype=page.dtype)
    keys, values = page.view(1, heads, 2 * block_tokens, -1).chunk(2, dim=2)
    isa = _get_attn_isa(page.dtype, block_tokens, width // 2)
    ops.cpu_attn_reshape_and_cache(ones, ones.clone(), keys, values, torch.arange(count), isa)
    return page[0] != 0
