#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
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

// Of a consumer rank: received, registered, delivered, seen_by_engine and, as times before delivered that the producer
// told, its offered, matched, first_post and last_post. All others have fewer.
inline constexpr std::size_t kTimelinePointsMax = 8;

// The points of one transfer in order of noting.
//
// Job: keeps a few named instants without allocating.
// Thread: value type.
class Timeline {
 public:
  // A point that has not come is left out. More than kTimelinePointsMax points are a bug.
  void note(const char* name, std::optional<Instant> at);
  const TimelinePoint* begin() const { return points_.data(); }
  const TimelinePoint* end() const { return points_.data() + count_; }
  bool empty() const { return count_ == 0; }

 private:
  std::array<TimelinePoint, kTimelinePointsMax> points_{};
  std::size_t count_ = 0;
};

// What became of one transfer on one rank, in an engine's scheduler, or in a router.
struct TransferRecord {
  TransferId transfer_id;
  std::string request;       // its name there, for people
  const char* role = "";     // "producer", "consumer" or "router"
  std::string peer;          // the other side
  std::string_view outcome;  // how it ended; a live transfer's state. A string literal
  std::optional<std::uint64_t> bytes{};
  std::optional<std::uint64_t> tokens{};
  Timeline timeline;
};

// Appends the record as a JSON object, as docs/directory.md describes it. Agents render live transfers with it too.
void append_json(std::string& out, const TransferRecord& record);

// One moment on both clocks of a machine. Timelines are on the first, whose zero each machine has for itself; the
// second is the same everywhere, as far as the machines' clocks are set.
struct Moment {
  Instant boot{};
  std::chrono::system_clock::time_point wall{};
};

// Appends `"now_boot_seconds":1.000000,"now_unix_seconds":2.000000`: with it readers put the timelines of several
// machines on one axis.
void append_json(std::string& out, const Moment& now);

// Enough that a person who looks minutes after a failure still finds it; about 100 KiB.
inline constexpr std::size_t kTransferRecordsMax = 256;

// The last transfers that ended.
//
// Job: keeps the newest kTransferRecordsMax records, oldest first; renders them.
// Not here: live transfers.
// Thread: value type.
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
