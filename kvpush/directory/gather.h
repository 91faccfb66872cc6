// One answer from the answers of an engine's ranks. A rank that gave none is named with the reason.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvpush/base/error.h"

namespace kvpush {

// What the HTTP address of one rank answered.
struct RankAnswer {
  std::uint32_t rank = 0;
  Result<std::string> body;
};

// [{"rank": 0, "live": [...], "ended": [...]}, {"rank": 1, "error": "timeout"}]
std::string gather_transfers(const std::vector<RankAnswer>& answers);

// The Prometheus text of all ranks and the directory's own as one: each sample of a rank gets the label `rank` as its
// first, families are written once, and kvpush_rank_up says which ranks answered.
std::string gather_metrics(const std::vector<RankAnswer>& answers, std::string_view own);

}  // namespace kvpush
