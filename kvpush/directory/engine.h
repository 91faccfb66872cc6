// What an engine says of itself over HTTP (docs/directory.md), as structs and as JSON text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/endpoint.h"
#include "kvpush/base/error.h"
#include "kvpush/base/ids.h"
#include "kvpush/layout/layout.h"

namespace kvpush {

// Planes of a rank that differ in nothing but their layer and address: what people and routers compare between engines.
// Addresses stay at home; a consumer hears the whole layout when its session starts.
struct PlaneKind {
  Component component = Component::kKey;
  std::uint16_t group = 0;
  std::string dtype;
  std::uint32_t element_bytes = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t block_count = 0;
  HeadRange heads;
  std::uint64_t inner_bytes = 0;
  std::vector<std::string> layers;
  bool operator==(const PlaneKind&) const = default;
};

// The kinds in order of their first plane.
std::vector<PlaneKind> plane_kinds(const RankLayout& layout);

// One rank's part of its engine's document.
struct RankDocument {
  std::string engine_id;
  Incarnation incarnation;
  std::string version;  // of kvpush, for people
  std::uint32_t protocol = 0;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;
  Endpoint control;
  Endpoint http;
  std::vector<PlaneKind> planes;
  bool operator==(const RankDocument&) const = default;
};

// All ranks of one run of an engine, in order of rank.
struct EngineDocument {
  std::vector<RankDocument> ranks;

  const std::string& engine_id() const { return ranks.front().engine_id; }
  // The engine's incarnation is that of its rank 0; each rank is a process of its own.
  Incarnation incarnation() const { return ranks.front().incarnation; }
  bool operator==(const EngineDocument&) const = default;
};

// A document of kRanksMax ranks with some hundred layers each, many times over; more is refused unread.
inline constexpr std::size_t kDocumentBytesMax = 4u << 20;

std::string to_json(const RankDocument& rank);
std::string to_json(const EngineDocument& engine);

// Text from anywhere. kBadMessage: no JSON, a field is missing, of a wrong type or outside its bounds. Fields that are
// not known are ignored. The ranks of an engine are there exactly once each and agree on what they have in common.
Result<RankDocument> parse_rank(std::string_view text);
Result<EngineDocument> parse_engine(std::string_view text);

// The engine of these ranks, given in any order. kBadMessage: they are not the ranks of one engine.
Result<EngineDocument> gather_ranks(std::vector<RankDocument> ranks);

}  // namespace kvpush
