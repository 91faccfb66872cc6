#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "kvpush/base/ids.h"
#include "kvpush/base/instant.h"

namespace kvpush {

// Something that happened to a transfer, on this machine's clock. `name` is a string literal.
struct TimelinePoint {
  const char* name = nullptr;
  Instant at{};
};

// A consumer has registered, delivered, seen_by_engine and, as times before delivered that the producer told, its
// offered, matched, first_post and last_post; a producer has offered, matched, first_post, last_post, completed.
inline constexpr std::size_t kTimelinePointsMax = 8;

// The points of one transfer in order of noting.
//
// Job: keeps a few named instants without allocating.
// Thread: value type.
class Timeline {
 public:
  // More than kTimelinePointsMax points are a bug.
  void note(const char* name, Instant at);
  const TimelinePoint* begin() const { return points_.data(); }
  const TimelinePoint* end() const { return points_.data() + count_; }
  bool empty() const { return count_ == 0; }

 private:
  std::array<TimelinePoint, kTimelinePointsMax> points_{};
  std::size_t count_ = 0;
};

// What became of one transfer on one rank.
struct TransferRecord {
  TransferId transfer_id;
  std::string request;       // the engine's name of the request, for people
  const char* role = "";     // "producer" or "consumer"
  std::string peer;          // engine id and rank of the other side
  std::string_view outcome;  // "delivered" or an error_name; a live transfer's state. A string literal
  std::uint64_t bytes = 0;
  std::uint64_t tokens = 0;
  Timeline timeline;
};

// Appends the record as a JSON object, as docs/directory.md describes it. Agents render live transfers with it too.
void append_json(std::string& out, const TransferRecord& record);

// Enough that a person who looks minutes after a failure still finds it; about 100 KiB.
inline constexpr std::size_t kTransferRecordsMax = 256;

// The last transfers of a rank that ended.
//
// Job: keeps the newest kTransferRecordsMax records, oldest first; renders them.
// Not here: live transfers.
// Owner: Agent.
// Thread: agent role.
class TransferLog {
 public:
  // Names the record for note().
  std::uint64_t add(TransferRecord record);
  // Adds a point that came after the end (seen_by_engine). Ignored when the record has been dropped.
  void note(std::uint64_t number, const char* name, Instant at);

  const std::deque<TransferRecord>& records() const { return records_; }
  // A JSON array, oldest first.
  std::string to_json() const;

 private:
  std::deque<TransferRecord> records_;
  std::uint64_t first_number_ = 0;  // of records_.front()
};

}  // namespace kvpush
