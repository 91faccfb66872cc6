// The bounds that only messages have, beside those of base/limits.h.
#pragma once

#include <cstddef>

#include "kvpush/base/instant.h"
#include "kvpush/base/limits.h"

namespace kvpush {

// Transports that one rank offers; four are planned.
inline constexpr std::size_t kTransportsMax = 8;
inline constexpr std::size_t kTransportNameBytesMax = 32;  // "loopback" is the longest
// A producer rank holds the heads of a plane as one range, so one share a consumer plane is usual; a choice between
// ranks that hold the same heads can cut it into a few.
inline constexpr std::size_t kSharesMax = 4 * kPlanesMax;
// A sentence that names a layer (kLayerNameBytesMax), a component and two values, twice over.
inline constexpr std::size_t kRefusalBytesMax = 1024;
// All tables of a registration together: kBlocksPerTableMax blocks no two of which are neighbours. Their 8 bytes each
// are half of a frame.
inline constexpr std::size_t kSpansMax = kBlocksPerTableMax;
// Either way from the sending of a message: longer than a machine runs, and far from overflow in any sum with an
// Instant.
inline constexpr Duration kSendTimeMax = std::chrono::years(50);

}  // namespace kvpush
