// Which producer rank writes which heads of which planes for a consumer rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvpush/base/error.h"
#include "kvpush/layout/layout.h"

namespace kvpush {

// `head_count` heads of one plane that one producer rank writes. Head indices count within each rank's own plane.
struct PlaneShare {
  std::uint32_t producer_plane = 0;
  std::uint32_t consumer_plane = 0;
  std::uint32_t producer_head = 0;
  std::uint32_t consumer_head = 0;
  std::uint32_t head_count = 0;
  bool operator==(const PlaneShare&) const = default;
};

// What one producer rank writes for one consumer rank.
using Assignment = std::vector<PlaneShare>;

// Why two engines cannot be mapped onto each other: a whole sentence that names layer, component and the two values.
struct Mismatch {
  std::string text;
};

// For a consumer rank with layout `consumer` (index `consumer_rank` in its engine): for each producer rank, in the
// order given, what it writes. Planes are matched by layer name and component. Every (plane, head) of the consumer is
// written by exactly one producer rank; where several hold it, the choice is a fixed function of consumer_rank.
// Both layouts must have passed validate(). Refused: a consumer plane that no producer rank has, different dtype,
// element or inner bytes, different head totals, heads that no producer rank holds.
// Block sizes may differ; planning splits at the finer boundary.
std::expected<std::vector<Assignment>, Mismatch> assign(const RankLayout& consumer, std::uint32_t consumer_rank,
                                                        std::span<const RankLayout> producers);

// Whether an assignment that came from a peer names only planes and heads that exist and agree in size; for the
// producer, which has both layouts (its own and the consumer's from Hello). kLayoutMismatch otherwise.
Result<void> validate(const Assignment& assignment, const RankLayout& producer, const RankLayout& consumer);

}  // namespace kvpush
