#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"
#include "kvpush/layout/block_table.h"
#include "kvpush/protocol/consumer.h"
#include "kvpush/protocol/producer.h"
#include "kvpush/sim/blocks.h"
#include "kvpush/sim/books.h"
#include "kvpush/wire/message.h"

namespace kvpush::sim {

// What a machine's clock says: it began at another moment than that of others, and runs a little faster or slower.
//
// Thread: value type.
class Clock {
 public:
  Clock() = default;
  Clock(Duration ahead, std::int64_t drift_ppm) : ahead_(ahead), drift_ppm_(drift_ppm) {}

  Instant at(Instant now) const;
  // A moment at which the clock says `then` or later, less than a microsecond after the first.
  Instant when(Instant then) const;

 private:
  Duration ahead_{};
  std::int64_t drift_ppm_ = 0;  // nanoseconds gained in a millisecond
};

// A request of an engine that has not ended.
struct LocalRequest {
  TransferId transfer_id;
  TokenRange tokens;
  Blocks::Held held;
  Instant asked{};
};

// One rank of an engine, which is either a producer or a consumer here: the two machines of a rank that is both share
// nothing.
struct Rank {
  std::string name;  // "P", or "P0" and "P1" where the engine has two
  std::string engine;
  std::uint32_t place = 0;  // among all ranks
  RankName id;
  bool is_alive = true;
  bool is_full = false;        // its transport takes no writes for now
  bool is_stopped = false;     // the process stands still, as after SIGSTOP
  bool stops_at_post = false;  // it will, after the next check and before what was checked is posted
  Clock clock{};
  Instant resumed{};   // when it last began or went on
  Instant troubled{};  // until then something is wrong with it or the way to it
  Blocks blocks;
  std::optional<Producer> producer{};
  std::optional<Consumer> consumer{};
  ProducerBook book{{}};
  std::unordered_map<RequestId, LocalRequest> requests{};
  std::set<TransferId> awaited{};  // whose AwaitEnded is to come
  std::size_t complete_count = 0;
  std::size_t failed_count = 0;
};

}  // namespace kvpush::sim
