#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace kvpush {

// An integer that cannot be mistaken for another kind of integer.
template <class Tag, class Rep = std::uint64_t>
struct Id {
  Rep value{};
  auto operator<=>(const Id&) const = default;
};

using Incarnation = Id<struct IncarnationTag>;          // random, new at every process start
using SessionNumber = Id<struct SessionNumberTag>;      // grows within a consumer's incarnation
using RegistrationNumber = Id<struct RegistrationTag>;  // unique within a consumer's incarnation
using ConnectionId = Id<struct ConnectionTag>;          // one control connection of this process, never reused
using PeerId = Id<struct PeerTag, std::uint32_t>;       // one connected peer of a transport, never reused
using RegionId = Id<struct RegionTag, std::uint32_t>;   // one registered memory region of a transport
using WriteToken = Id<struct WriteTokenTag>;            // one batch of posted descriptors, chosen by its poster

// A block of a KV cache group; kAbsentBlock stands where a table has none (outside a sliding window).
using BlockId = Id<struct BlockTag, std::uint32_t>;
inline constexpr BlockId kAbsentBlock{0xffffffff};

// Chosen by the router, one for each attempt; at most kTransferIdBytesMax bytes.
using TransferId = std::string;

// The engine's name for one of its requests, unique among those it has running.
using RequestId = std::string;

}  // namespace kvpush

template <class Tag, class Rep>
struct std::hash<kvpush::Id<Tag, Rep>> {
  std::size_t operator()(kvpush::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
