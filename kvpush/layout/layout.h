// What one rank's KV cache looks like. Shapes and strides come from the engine; nothing here reads cache memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/error.h"

namespace kvpush {

// The part of a layer's KV that a plane holds. Numbers are those on the wire.
enum class Component : std::uint8_t { kKey = 1, kValue = 2, kLatent = 3, kState = 4 };
std::string_view component_name(Component component);  // "key", "value", "latent", "state"

// A rank's share of the model's heads: [first, first + count) of `total`. A plane that has no head axis, or is held
// whole by every rank (MLA latent), is {0, 1, 1}.
struct HeadRange {
  std::uint32_t first = 0;
  std::uint32_t count = 1;
  std::uint32_t total = 1;
  bool operator==(const HeadRange&) const = default;
};

// One (layer, component) of a rank's KV cache. The bytes of one token and head of this rank begin at
//   base + block * block_stride_bytes + head * head_stride_bytes + token * token_stride_bytes
// (`head` and `token` counted within the rank and the block) and are `inner_bytes` contiguous ones.
struct Plane {
  std::string layer;  // the engine's name of the layer, equal on all engines of a model
  Component component = Component::kKey;
  std::uint16_t group = 0;  // index of the KV cache group, whose block table the plane uses
  std::string dtype;        // the engine's name of the element type, "bfloat16"
  std::uint32_t element_bytes = 0;
  std::uint32_t block_tokens = 0;  // token slots in a block
  std::uint32_t block_count = 0;
  HeadRange heads;
  std::uint64_t base = 0;  // address in the owner's process
  std::uint64_t block_stride_bytes = 0;
  std::uint64_t head_stride_bytes = 0;
  std::uint64_t token_stride_bytes = 0;
  std::uint64_t inner_bytes = 0;
  bool operator==(const Plane&) const = default;
};

// The KV cache of one rank.
struct RankLayout {
  std::vector<Plane> planes;
  bool operator==(const RankLayout&) const = default;
};

// A contiguous piece of a process's memory.
struct MemoryRange {
  std::uint64_t base = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const MemoryRange&) const = default;
};

// kLayoutMismatch with the reason when the layout cannot be planned with: no planes or more than kPlanesMax, a (layer,
// component) twice, an unknown component, a group past kGroupsMax, a name that is too long or no
// name of a layer, a zero size, a head range outside its total, inner
// bytes that are no multiple of the element, planes of one group with different block sizes, an address past 2^63, more
// than 2 GiB for a token, or elements of one plane that overlap (planes may interleave). A stride along which there is
// only one element may be anything. Safe for layouts that came from a peer.
Result<void> validate(const RankLayout& layout);

// The memory from the first to the last byte, over all blocks, heads and tokens, of a plane that has passed validate().
MemoryRange extent(const Plane& plane);

}  // namespace kvpush
