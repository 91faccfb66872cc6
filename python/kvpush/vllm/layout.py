"""The planes of vLLM's KV cache, from its configuration and the strides of its real tensors.

Facts of vLLM 0.32 this rests on: every layer is a view [blocks, heads, slots, content] into one allocation
(v1/worker/utils.py, allocate_kv_cache), with K and V packed into one content axis. The CPU backend reads each (block,
head) as `slots` rows of K, then `slots` rows of V (v1/attention/backends/cpu_attn.py), and within those halves its
kernels interleave tokens as the instruction set likes: "vec" keeps K transposed, "amx" also pairs the rows of V. So
only whole blocks can be copied, and only between engines that pack alike. The name of the packing and the block size
therefore stand in each plane's dtype, which engines compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvpush.types import Plane

if TYPE_CHECKING:
    import torch


class Unsupported(ValueError):
    """Something of this engine that kvpush cannot move safely; the text is for whoever starts the engine."""


def unit_tokens(kv_cache_config: Any) -> int:
    """In which units of tokens KV can be copied: the block size, which all groups must share. Raises Unsupported."""
    sizes = {group.kv_cache_spec.block_size for group in kv_cache_config.transfer_groups}
    if len(sizes) != 1:
        raise Unsupported(
            f"KV cache groups with block sizes {sorted(sizes)}: kvpush needs one block size for all groups"
        )
    return sizes.pop()


def planes(kv_cache_config: Any, kv_caches: Mapping[str, torch.Tensor], packing: Mapping[str, str]) -> list[Plane]:
    """Two planes, K and V, for each layer that owns a cache; `packing` names how a layer's backend packs a block.

    `kv_caches` has a view [blocks, heads, slots, K and V] for each layer. Raises Unsupported.
    """
    group_of = {
        layer: index
        for index in kv_cache_config.transfer_group_ids
        for layer in kv_cache_config.kv_cache_groups[index].layer_names
    }
    found: list[Plane] = []
    for tensor in kv_cache_config.kv_cache_tensors:
        for layer in tensor.layers:
            if layer in group_of:
                group = kv_cache_config.kv_cache_groups[group_of[layer]]
                spec = getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(layer, group.kv_cache_spec)
                _check(layer, spec, kv_caches[layer], kv_cache_config.num_blocks)
                found += _key_and_value(layer, group_of[layer], kv_caches[layer], packing[layer])
    if not found:
        raise Unsupported("the model has no KV cache that can be moved")
    return found


def regions(kv_caches: Mapping[str, torch.Tensor]) -> list[tuple[int, int]]:
    """The allocations behind the caches, each once: (address, bytes)."""
    storages = (cache.untyped_storage() for cache in kv_caches.values())
    return sorted({(storage.data_ptr(), storage.nbytes()) for storage in storages})


def _check(layer: str, spec: Any, cache: torch.Tensor, block_count: int) -> None:
    """Raises Unsupported unless each (block, head) of the layer is one dense run of K rows and V rows."""

    def refuse(what: str) -> None:
        raise Unsupported(f"KV cache of layer {layer}: kvpush does not support {what}")

    if type(spec).__name__ != "FullAttentionSpec":  # a subclass holds other things, or frees blocks during prefill
        refuse(
            f"{type(spec).__name__}; for sliding windows, --disable-hybrid-kv-cache-manager makes it FullAttentionSpec"
        )
    if cache.device.type != "cpu":
        refuse(f"memory on {cache.device} yet, only an engine on CPUs")
    if spec.kv_quant_mode != 0:
        refuse(f"the quantised form {spec.kv_quant_mode!r}")
    if spec.head_size != spec.head_size_v or spec.num_head_slots is not None or spec.state_content_bytes is not None:
        refuse("K and V of different sizes or in a packed form")
    if cache.dim() != 4 or cache.shape[0] != block_count or cache.shape[2] != spec.block_size:
        refuse(
            f"a cache of shape {tuple(cache.shape)} for {block_count} blocks of {spec.block_size} tokens; "
            "is --block-size a size that the attention backend takes as it is?"
        )
    if cache.shape[3] != 2 * spec.head_size or cache.stride(3) != 1 or cache.stride(2) != cache.shape[3]:
        refuse(f"strides {tuple(cache.stride())}: the tokens of a (block, head) must lie together")


def _key_and_value(layer: str, group: int, cache: torch.Tensor, packing: str) -> list[Plane]:
    blocks, heads, slots, content = cache.shape
    element = cache.element_size()
    row = content // 2 * element

    def plane(component: str, offset: int) -> Plane:
        return Plane(
            layer=layer,
            component=component,
            group=group,
            dtype=f"{str(cache.dtype).removeprefix('torch.')}/{packing}/{slots}",
            element_bytes=element,
            block_tokens=slots,
            block_count=blocks,
            head_first=0,
            head_count=heads,
            head_total=heads,
            base=cache.data_ptr() + offset,
            block_stride_bytes=cache.stride(0) * element,
            head_stride_bytes=cache.stride(1) * element,
            token_stride_bytes=row,
            inner_bytes=row,
        )

    return [plane("key", 0), plane("value", slots * row)]
