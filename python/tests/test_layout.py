"""Planes from real tensors, made by vLLM's own allocation from a small configuration."""

from __future__ import annotations

import ctypes
import dataclasses

import pytest
import torch
import vllm.v1.kv_cache_interface as vllm
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvpush.vllm import layout

LAYERS = ["model.layers.0.attn", "model.layers.1.attn"]
BLOCKS, HEADS, SLOTS, SIZE = 5, 3, 32, 64
PACKING = dict.fromkeys(LAYERS, "cpu.vec")


def spec(**changes):
    kind = changes.pop("kind", vllm.FullAttentionSpec)
    return kind(**{"block_size": SLOTS, "num_kv_heads": HEADS, "head_size": SIZE, "dtype": torch.bfloat16} | changes)


def config(kv_spec=None):
    kv_spec = kv_spec or spec()
    page = kv_spec.page_size_bytes
    tensor = vllm.KVCacheTensor(
        size=len(LAYERS) * BLOCKS * page, layers=list(LAYERS), layer_stride=BLOCKS * page, block_stride=page
    )
    return vllm.KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[tensor], kv_cache_groups=[vllm.KVCacheGroupSpec(list(LAYERS), kv_spec)]
    )


def caches(kv_cache_config, kv_layout=KVCacheLayout.LBHNC, kernel_block_size=None):
    """As v1/worker/utils.py:allocate_kv_cache makes them."""
    (tensor,) = kv_cache_config.kv_cache_tensors
    memory = torch.zeros(tensor.size, dtype=torch.int8)
    kv_spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    views = vllm.create_kv_cache_views(memory, kv_spec, BLOCKS, kv_layout, tensor, kernel_block_size)
    return dict(zip(tensor.layers, views, strict=True))


def bytes_at(plane, block, head):
    """The bytes that the plane says belong to a (block, head), through its address and strides."""
    address = plane.base + block * plane.block_stride_bytes + head * plane.head_stride_bytes
    return ctypes.string_at(address, plane.block_tokens * plane.token_stride_bytes)


def test_each_layer_is_a_plane_of_keys_and_one_of_values():
    kv_cache_config = config()
    planes = layout.planes(kv_cache_config, caches(kv_cache_config), PACKING)

    assert [(plane.layer, plane.component) for plane in planes] == [(la, c) for la in LAYERS for c in ("key", "value")]
    for plane in planes:
        assert (plane.block_count, plane.head_count, plane.head_total, plane.block_tokens) == (
            BLOCKS,
            HEADS,
            HEADS,
            SLOTS,
        )
        assert plane.inner_bytes == plane.token_stride_bytes == SIZE * 2
        assert plane.dtype == "bfloat16/cpu.vec/32"


def test_planes_point_at_what_the_cpu_backend_reads_as_keys_and_values():
    kv_cache_config = config()
    tensors = caches(kv_cache_config)
    for number, tensor in enumerate(tensors.values()):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
    planes = layout.planes(kv_cache_config, tensors, PACKING)

    for plane in planes:
        halves = tensors[plane.layer].view(BLOCKS, HEADS, 2 * SLOTS, SIZE).chunk(2, dim=2)
        half = halves[0 if plane.component == "key" else 1]
        for block in range(BLOCKS):
            for head in range(HEADS):
                expected = half[block, head].contiguous().view(torch.uint8).numpy().tobytes()
                assert bytes_at(plane, block, head) == expected


def test_planes_cover_every_byte_of_the_one_region_once():
    kv_cache_config = config()
    tensors = caches(kv_cache_config)
    ((base, size),) = layout.regions(tensors)

    runs = sorted(
        plane.base + block * plane.block_stride_bytes + head * plane.head_stride_bytes
        for plane in layout.planes(kv_cache_config, tensors, PACKING)
        for block in range(BLOCKS)
        for head in range(HEADS)
    )
    assert runs == list(range(base, base + size, SLOTS * SIZE * 2))


def test_a_padded_page_moves_its_padding_nowhere():
    kv_spec = spec()
    kv_spec = dataclasses.replace(kv_spec, page_size_padded=kv_spec.page_size_bytes + 4096)
    kv_cache_config = config(kv_spec)
    planes = layout.planes(kv_cache_config, caches(kv_cache_config), PACKING)

    assert {plane.block_stride_bytes for plane in planes} == {kv_spec.page_size_bytes}
    assert sum(p.block_tokens * p.inner_bytes * p.head_count for p in planes[:2]) == kv_spec.page_size_bytes - 4096


def test_layers_that_own_no_cache_are_left_out():
    kv_cache_config = config()
    tensors = caches(kv_cache_config)
    kv_cache_config.kv_cache_groups[0].layer_names.append("shares.the.cache.of.another")
    tensors["shares.the.cache.of.another"] = tensors[LAYERS[0]]
    assert len(layout.planes(kv_cache_config, tensors, PACKING)) == 2 * len(LAYERS)


@pytest.mark.parametrize(
    ("kv_spec", "reason"),
    [
        (spec(kind=vllm.SlidingWindowSpec, sliding_window=64), "SlidingWindowSpec"),
        (spec(kv_quant_mode=vllm.KVQuantMode.FP8_PER_TENSOR), "quantised"),
        (spec(head_size_v=32), "different sizes"),
    ],
)
def test_what_cannot_be_moved_is_refused_with_its_layer_and_reason(kv_spec, reason):
    kv_cache_config = config(kv_spec)
    with pytest.raises(layout.Unsupported, match=f"{LAYERS[0]}.*{reason}"):
        layout.planes(kv_cache_config, caches(kv_cache_config), PACKING)


def test_split_blocks_and_other_memory_are_refused():
    kv_cache_config = config()
    split = caches(kv_cache_config, kernel_block_size=SLOTS // 2)
    with pytest.raises(layout.Unsupported, match="block-size"):
        layout.planes(kv_cache_config, split, PACKING)
    elsewhere = {name: tensor.to("meta") for name, tensor in caches(kv_cache_config).items()}
    with pytest.raises(layout.Unsupported, match="memory on meta"):
        layout.planes(kv_cache_config, elsewhere, PACKING)
    interleaved = caches(kv_cache_config, KVCacheLayout.LBNHC)
    with pytest.raises(layout.Unsupported, match="strides"):
        layout.planes(kv_cache_config, interleaved, PACKING)


def test_one_block_size_is_the_unit():
    assert layout.unit_tokens(config()) == SLOTS
    two = config()
    two.kv_cache_groups.append(vllm.KVCacheGroupSpec(["other"], spec(block_size=64)))
    with pytest.raises(layout.Unsupported, match="block sizes"):
        layout.unit_tokens(two)
